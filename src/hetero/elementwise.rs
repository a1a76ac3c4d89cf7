//! TEW on equal patterns and TS on both sides.

use std::ops::Range;

use super::Hetero;
use super::share::{Divisible, Job, Output, Parts};
use crate::cpu::Cpu;
use crate::dense::check_shape;
use crate::error::Result;
use crate::gpu::{DeviceScalar, Gpu};
use crate::ops::Arithmetic;

/// So many values, of which a part needs nothing but its place.
struct Count(usize);

impl Divisible for Count {
    type OnDevice = ();
    type OnHost = ();

    fn items(&self) -> usize {
        self.0
    }

    fn work(&self, i: usize) -> usize {
        i
    }

    fn device_part(&self, _: &Gpu, _: &Range<usize>) -> Result<()> {
        Ok(())
    }

    fn host_part(&self, _: &Cpu, _: &Range<usize>) -> Result<()> {
        Ok(())
    }
}

impl<T: Send> Output for &mut [T] {
    fn cut(self, items: usize) -> Result<(Self, Self)> {
        Ok(self.split_at_mut(items))
    }
}

impl Hetero {
    /// z_p = x_p o y_p: TEW of tensors with the same pattern, on both sides.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) when the lengths differ. A device that fails is replaced: see
    /// [`Hetero::take_failures`].
    pub fn tew<T: DeviceScalar>(&self, x: &[T], operator: Arithmetic, y: &[T], z: &mut [T]) -> Result<()> {
        check_shape("tew", "y", (1, y.len()), (1, x.len()))?;
        self.elementwise("tew", x, operator, Some(y), T::ZERO, z)
    }

    /// z_p = x_p o s: TS, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::tew`].
    pub fn ts<T: DeviceScalar>(&self, x: &[T], operator: Arithmetic, s: T, z: &mut [T]) -> Result<()> {
        self.elementwise("ts", x, operator, None, s, z)
    }

    /// Moving the values costs more than the operation, so the rates are measured anew in every call, and no refusal is remembered.
    #[inline(never)]
    pub(crate) fn elementwise<T: DeviceScalar>(
        &self,
        op: &'static str,
        x: &[T],
        operator: Arithmetic,
        y: Option<&[T]>,
        s: T,
        z: &mut [T],
    ) -> Result<()> {
        check_shape(op, "z", (1, z.len()), (1, x.len()))?;
        let job = Job {
            op,
            upload: |_: &Gpu| Ok(()),
            device: |gpu: &Gpu, (): &(), (): &(), items: &Range<usize>, z: &mut &mut [T]| {
                let x = gpu.values(&x[items.clone()])?;
                let y = y.map(|y| gpu.values(&y[items.clone()])).transpose()?;
                let mut out = gpu.new_values(items.len())?;
                match &y {
                    Some(y) => gpu.tew(&x, operator, y, &mut out),
                    None => gpu.ts(&x, operator, s, &mut out),
                }?;
                out.download(z)
            },
            processor: |cpu: &Cpu, (): &(), items: &Range<usize>, z: &mut &mut [T]| match y {
                Some(y) => cpu.tew_values(operator, &x[items.clone()], &y[items.clone()], z),
                None => cpu.ts_values(operator, &x[items.clone()], s, z),
            },
        };
        self.share_out(&mut Parts::new(Count(x.len())), z, job)
    }
}
