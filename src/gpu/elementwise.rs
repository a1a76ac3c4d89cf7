//! TEW on equal patterns and TS on the device.

use sparsimd_gpu_abi::{ElementwiseParams, WORKGROUP, operator};

use super::kernels::{ELEMENTWISE, groups};
use super::operands::GpuValues;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::ops::Arithmetic;
use crate::plan::Team;

/// The value of the specialisation constant.
fn variant(operation: Arithmetic) -> u32 {
    match operation {
        Arithmetic::Add => operator::ADD,
        Arithmetic::Sub => operator::SUB,
        Arithmetic::Mul => operator::MUL,
        Arithmetic::Div => operator::DIV,
    }
}

impl Gpu {
    /// The values in device memory: those of a tensor, for [`Gpu::tew`] and [`Gpu::ts`].
    ///
    /// # Errors
    /// [`Error::Device`] when memory runs out.
    #[inline(never)]
    pub fn values<T: DeviceScalar>(&self, values: &[T]) -> Result<GpuValues<T>> {
        let mut made = self.new_values(values.len())?;
        made.upload(values)?;
        Ok(made)
    }

    /// Room for `len` values, of no certain content: an output of [`Gpu::tew`], [`Gpu::ts`] and [`Gpu::ttv_into`].
    ///
    /// # Errors
    /// As [`Gpu::values`].
    pub fn new_values<T: DeviceScalar>(&self, len: usize) -> Result<GpuValues<T>> {
        let most = self.shape::<T>().max_len;
        GpuValues::new(self, (0..len).step_by(most).map(|s| s..(s + most).min(len)))
    }

    /// z_p = x_p o y_p: TEW of tensors with the same pattern.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths or the devices differ, [`Error::Device`] when the device fails.
    pub fn tew<T: DeviceScalar>(
        &self,
        x: &GpuValues<T>,
        op: Arithmetic,
        y: &GpuValues<T>,
        z: &mut GpuValues<T>,
    ) -> Result<()> {
        self.elementwise("tew", x, op, Some(y), T::ZERO, z)
    }

    /// z_p = x_p o s: TS.
    ///
    /// # Errors
    /// As [`Gpu::tew`], and [`Error::Argument`] for a division by 0.
    pub fn ts<T: DeviceScalar>(&self, x: &GpuValues<T>, op: Arithmetic, s: T, z: &mut GpuValues<T>) -> Result<()> {
        if op == Arithmetic::Div && s == T::ZERO {
            return Err(Error::argument("s", "division by 0"));
        }
        self.elementwise("ts", x, op, None, s, z)
    }

    #[inline(never)]
    pub(crate) fn elementwise<T: DeviceScalar>(
        &self,
        name: &'static str,
        x: &GpuValues<T>,
        op: Arithmetic,
        y: Option<&GpuValues<T>>,
        scalar: T,
        z: &mut GpuValues<T>,
    ) -> Result<()> {
        self.check_own(name, "x", &x.gpu)?;
        for (operand, other) in [("y", y.unwrap_or(x)), ("z", &*z)] {
            self.check_own(name, operand, &other.gpu)?;
            if !x.chunks.iter().map(|c| &c.0).eq(other.chunks.iter().map(|c| &c.0)) {
                return Err(Error::shape(name, format!("{operand} has {} values, x {}", other.len(), x.len())));
            }
        }
        let team = Team { lanes: 4, registers: 1 };
        let kernel = self.shared.kernels.get::<T, ElementwiseParams<T>>(ELEMENTWISE, team, variant(op))?;
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
