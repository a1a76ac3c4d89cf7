//! TEW on equal patterns and TS on the device.

use sparsimd_gpu_abi::{ElementwiseParams, WORKGROUP, operator};

use super::kernels::{ELEMENTWISE, groups};
use super::operands::GpuValues;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::Team;

/// What is done to two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// x + y.
    Add,
    /// x - y.
    Sub,
    /// x y.
    Mul,
    /// x / y.
    Div,
}

impl Operator {
    fn variant(self) -> u32 {
        match self {
            Self::Add => operator::ADD,
            Self::Sub => operator::SUB,
            Self::Mul => operator::MUL,
            Self::Div => operator::DIV,
        }
    }
}

impl Gpu {
    /// The values in device memory: those of a tensor, for [`Gpu::tew`] and [`Gpu::ts`].
    ///
    /// # Errors
    /// [`Error::Device`] when memory runs out.
    pub fn values<T: DeviceScalar>(&self, values: &[T]) -> Result<GpuValues<T>> {
        let most = self.shape::<T>().max_len;
        let ranges = (0..values.len()).step_by(most).map(|s| s..(s + most).min(values.len()));
        let mut made = GpuValues::new(self, ranges)?;
        made.upload(values)?;
        Ok(made)
    }

    /// z_p = x_p o y_p: TEW of tensors with the same pattern.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths or the devices differ, [`Error::Device`] when the device fails.
    pub fn tew<T: DeviceScalar>(
        &self,
        x: &GpuValues<T>,
        operator: Operator,
        y: &GpuValues<T>,
        z: &mut GpuValues<T>,
    ) -> Result<()> {
        self.elementwise("tew", x, operator, Some(y), T::ZERO, z)
    }

    /// z_p = x_p o s: TS.
    ///
    /// # Errors
    /// As [`Gpu::tew`].
    pub fn ts<T: DeviceScalar>(&self, x: &GpuValues<T>, operator: Operator, s: T, z: &mut GpuValues<T>) -> Result<()> {
        self.elementwise("ts", x, operator, None, s, z)
    }

    fn elementwise<T: DeviceScalar>(
        &self,
        op: &'static str,
        x: &GpuValues<T>,
        operator: Operator,
        y: Option<&GpuValues<T>>,
        scalar: T,
        z: &mut GpuValues<T>,
    ) -> Result<()> {
        self.check_own(op, "x", &x.gpu)?;
        for (name, other) in [("y", y.unwrap_or(x)), ("z", &*z)] {
            self.check_own(op, name, &other.gpu)?;
            if !x.chunks.iter().map(|c| &c.0).eq(other.chunks.iter().map(|c| &c.0)) {
                return Err(Error::shape(op, format!("{name} has {} values, x {}", other.len(), x.len())));
            }
        }
        let team = Team { lanes: 4, registers: 1 };
        let kernel = self.shared.kernels.get::<T, ElementwiseParams<T>>(ELEMENTWISE, team, operator.variant())?;
        let outputs: Vec<_> = z.chunks.iter_mut().map(|(_, buffer)| buffer.bind_mut()).collect();
        let pairwise = u32::from(y.is_some());
        let others = &y.unwrap_or(x).chunks;
        let seconds = self.state().stream.record(|r| {
            for (((range, x), (_, y)), &z) in x.chunks.iter().zip(others).zip(&outputs) {
                let p = ElementwiseParams { scalar, zero: T::ZERO, count: range.len() as u32, pairwise };
                let groups = groups(self.device(), range.len(), WORKGROUP as usize, 1);
                // SAFETY: all three have `count` elements.
                unsafe { r.launch(&kernel, &[x.bind(), y.bind(), z], &p, groups) }?;
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}
