//! CP-ALS with its MTTKRPs on a Vulkan device, or shared between two executors.
//!
//! The tensor and all factors stay in device memory. What the algorithm moves in a mode's turn is the least that the dense half on
//! the processor (Gram matrices, a solve of R x R, normalisation) allows: the product comes back, the one factor that has
//! changed goes up. Both are I_n x R; the tensor and the other factors are not touched.

use std::ops::ControlFlow;

use super::{CpIteration, CpOptions, CpState, Target, decompose, whole};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatRef};
use crate::error::Result;
use crate::gpu::{DeviceScalar, Gpu, GpuFactors, GpuMat, GpuTensor};
use crate::hetero::{Hetero, HeteroTensor};

/// What stays on the device between the turns of the modes.
struct Resident<T: DeviceScalar> {
    factors: GpuFactors<T>,
    /// One product for each mode.
    products: Vec<GpuMat<T>>,
    /// The mode whose factor the processor has changed since the last turn.
    changed: usize,
}

impl Gpu {
    /// The CP decomposition of `tensor`, its MTTKRPs on this device and the small dense algebra on `cpu`: the same algorithm as
    /// [`Cpu::cp_als`], with the same options and observer. The modes take turns in their natural order.
    ///
    /// Bit-reproducible for the same tensor and device.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`], and [`Error::Device`](crate::Error::Device) when the device fails.
    pub fn cp_als<T: DeviceScalar>(
        &self,
        cpu: &Cpu,
        tensor: &GpuTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        let order: Vec<usize> = (0..tensor.dims().len()).collect();
        let rows = whole(tensor.dims());
        let target = Target { rows: &rows, order: &order, norm_squared: tensor.norm_squared() };
        let mut resident: Option<Resident<T>> = None;
        let mut mttkrp = |factors: &[Mat<T>], mode: usize, out: &mut Mat<T>| {
            let on_device = match &mut resident {
                Some(on_device) => {
                    on_device.factors.set(on_device.changed, factors[on_device.changed].as_ref())?;
                    on_device
                }
                None => resident.insert(self.resident(factors)?),
            };
            let product = &mut on_device.products[mode];
            self.mttkrp(tensor, &on_device.factors, mode, product)?;
            on_device.changed = mode;
            product.download(out.as_mut())
        };
        decompose(cpu, target, options, &mut mttkrp, &mut |_| Ok(()), &mut observe)
    }

    fn resident<T: DeviceScalar>(&self, factors: &[Mat<T>]) -> Result<Resident<T>> {
        let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
        let products = views.iter().map(|f| self.zeros(f.rows(), f.cols())).collect::<Result<_>>()?;
        Ok(Resident { factors: self.factors(&views)?, products, changed: 0 })
    }
}

impl Hetero {
    /// The CP decomposition of `tensor`, its MTTKRPs cut by slices between both sides: the same algorithm as [`Cpu::cp_als`], with
    /// the same options and observer.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`]. A device that fails is replaced: see [`Hetero::take_failures`].
    pub fn cp_als<T: DeviceScalar>(
        &self,
        tensor: &mut HeteroTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        let dims = tensor.tensor().dims().to_vec();
        let norm_squared = tensor.tensor().values().iter().map(|x| x.to_f64() * x.to_f64()).sum();
        let order: Vec<usize> = (0..dims.len()).collect();
        let rows = whole(&dims);
        let target = Target { rows: &rows, order: &order, norm_squared };
        let mut mttkrp = |factors: &[Mat<T>], mode: usize, out: &mut Mat<T>| {
            let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
            self.mttkrp(tensor, &views, mode, out.as_mut())
        };
        decompose(self.cpu(), target, options, &mut mttkrp, &mut |_| Ok(()), &mut observe)
    }
}
