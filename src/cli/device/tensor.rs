//! The tensor operations on a Vulkan device.

use std::ops::ControlFlow;
use std::time::Instant;

use sparsimd::decomp::{CpIteration, CpOptions, CpState};
use sparsimd::formats::Fibers;
use sparsimd::gpu::{Choice, DeviceScalar, Gpu, GpuTensor, Operator};
use sparsimd::ops::Arithmetic;
use sparsimd::plan::MttkrpFormat;
use sparsimd::{CooTensor, Cpu, Error, MatMut, MatRef, Result};

use super::{DeviceName, Ran};
use crate::cli::timing::Times;

/// An open device for tensor operations.
pub struct TensorDevice {
    gpu: Gpu,
    kernel_s: Option<f64>,
}

impl TensorDevice {
    /// The device that is asked for; `None` for the processor.
    pub fn open(name: &DeviceName) -> Result<Option<Self>> {
        match name {
            DeviceName::Cpu => Ok(None),
            DeviceName::Gpu(which) => {
                let gpu = Gpu::open(which.parse::<Choice>().unwrap_or_default())?;
                Ok(Some(Self { gpu, kernel_s: None }))
            }
            DeviceName::Hetero(_) => {
                let detail = "tensor operations run on cpu or gpu, not on both".to_owned();
                Err(Error::Argument { name: "device", detail })
            }
        }
    }

    /// Where the operations ran, and the sums of the copies and of each one's shortest kernel time.
    pub fn ran(&self) -> Ran {
        let times = self.gpu.take_times();
        Ran {
            device: self.gpu.info().name.clone(),
            kernel_s: self.kernel_s,
            upload_s: Some(times.upload_s),
            download_s: Some(times.download_s),
        }
    }

    /// Times `run`; the copies' seconds stay on the device's account.
    fn measure(&mut self, repeat: Option<usize>, mut run: impl FnMut(&Gpu) -> Result<()>) -> Result<Times> {
        let mut shortest = f64::INFINITY;
        let times = Times::measure(repeat, || {
            self.gpu.take_kernel_time();
            run(&self.gpu)?;
            shortest = shortest.min(self.gpu.take_kernel_time().unwrap_or(f64::INFINITY));
            Ok(())
        })?;
        if shortest.is_finite() {
            *self.kernel_s.get_or_insert(0.0) += shortest;
        }
        Ok(times)
    }

    /// TTM, and the seconds of uploading.
    pub fn ttm<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        x: Fibers<'_, T>,
        u: MatRef<'_, T>,
        y: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        let start = Instant::now();
        let x = self.gpu.fibers(x)?;
        let u = self.gpu.mat(u)?;
        let mut out = self.gpu.zeros(x.len(), u.cols())?;
        let prepare_s = start.elapsed().as_secs_f64();
        let times = self.measure(repeat, |gpu| gpu.ttm_into(&x, &u, &mut out))?;
        out.download(y)?;
        Ok((times, prepare_s))
    }

    /// TTV, and the seconds of uploading.
    pub fn ttv<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        x: Fibers<'_, T>,
        v: &[T],
        y: &mut [T],
    ) -> Result<(Times, f64)> {
        let start = Instant::now();
        let x = self.gpu.fibers(x)?;
        let v = self.gpu.values(&v[..x.dim()])?;
        let mut out = self.gpu.values(&y[..x.len()])?;
        let prepare_s = start.elapsed().as_secs_f64();
        let times = self.measure(repeat, |gpu| gpu.ttv_into(&x, &v, &mut out))?;
        out.download(&mut y[..x.len()])?;
        Ok((times, prepare_s))
    }

    /// TEW with `z`, or TS with `s`, and the seconds of uploading.
    pub fn elementwise<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        op: Arithmetic,
        x: &[T],
        z: Option<&[T]>,
        s: T,
        y: &mut [T],
    ) -> Result<(Times, f64)> {
        let operator = match op {
            Arithmetic::Add => Operator::Add,
            Arithmetic::Sub => Operator::Sub,
            Arithmetic::Mul => Operator::Mul,
            Arithmetic::Div => Operator::Div,
        };
        let start = Instant::now();
        let z = z.map(|z| self.gpu.values(z)).transpose()?;
        let x = self.gpu.values(x)?;
        let mut out = self.gpu.values(y)?;
        let prepare_s = start.elapsed().as_secs_f64();
        let times = self.measure(repeat, |gpu| match &z {
            Some(z) => gpu.tew(&x, operator, z, &mut out),
            None => gpu.ts(&x, operator, s, &mut out),
        })?;
        out.download(y)?;
        Ok((times, prepare_s))
    }

    /// The tensor on the device, laid out for MTTKRP, and the seconds that took.
    pub fn prepare<T: DeviceScalar>(
        &self,
        x: &CooTensor<T>,
        format: Option<MttkrpFormat>,
    ) -> Result<(GpuTensor<T>, f64)> {
        let start = Instant::now();
        let tensor = self.gpu.prepare_mttkrp(x, format)?;
        Ok((tensor, start.elapsed().as_secs_f64()))
    }

    /// MTTKRP, and the seconds of uploading the factors.
    pub fn mttkrp<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        tensor: &GpuTensor<T>,
        factors: &[MatRef<'_, T>],
        mode: usize,
        out: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        let start = Instant::now();
        let on_device = self.gpu.factors(factors)?;
        let mut product = self.gpu.zeros(out.rows(), out.cols())?;
        let prepare_s = start.elapsed().as_secs_f64();
        let times = self.measure(repeat, |gpu| gpu.mttkrp(tensor, &on_device, mode, &mut product))?;
        product.download(out)?;
        Ok((times, prepare_s))
    }

    /// CP-ALS with its MTTKRPs on the device.
    pub fn cp_als<T: DeviceScalar>(
        &mut self,
        cpu: &Cpu,
        x: &CooTensor<T>,
        format: Option<MttkrpFormat>,
        options: &CpOptions<T>,
        observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        let tensor = cpu.install(|| self.gpu.prepare_mttkrp(x, format))?;
        let result = self.gpu.cp_als(cpu, &tensor, options, observe);
        self.kernel_s = self.gpu.take_kernel_time();
        result
    }
}
