//! The tensor operations on a Vulkan device, alone or beside the processor.

use std::ops::ControlFlow;

use sparsimd::decomp::{CpIteration, CpOptions, CpState, Tucker, TuckerIteration, TuckerOptions, TuckerState};
use sparsimd::formats::Fibers;
use sparsimd::gpu::{DeviceScalar, GpuTensor};
use sparsimd::hetero::{HeteroFibers, HeteroTensor};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat};
use sparsimd::{CooTensor, Cpu, Error, MatMut, MatRef, Result};

use super::executor::Devices;
use super::{Place, Ran};
use crate::timing::{Times, timed};

/// An open device for tensor operations.
pub struct TensorDevice {
    devices: Devices,
    kernel_s: Option<f64>,
}

/// A tensor laid out for MTTKRP.
pub enum Prepared<T: DeviceScalar> {
    /// For a device alone.
    One(GpuTensor<T>),
    /// To be cut by slices.
    Both(Box<HeteroTensor<T>>),
}

impl<T: DeviceScalar> Prepared<T> {
    /// How it is stored: for both sides, each mode has a tree of its own.
    pub fn format(&self) -> MttkrpFormat {
        match self {
            Self::One(x) => x.format(),
            Self::Both(_) => MttkrpFormat::CsfAll,
        }
    }

    /// The algorithm of a mode.
    pub fn algorithm(&self, mode: usize) -> Option<MttkrpAlgorithm> {
        match self {
            Self::One(x) => x.algorithm(mode),
            Self::Both(x) => Some(x.algorithm()),
        }
    }

    /// Bytes of indices; before it is cut, those of the coordinates.
    pub fn index_bytes(&self) -> usize {
        match self {
            Self::One(x) => x.index_bytes(),
            Self::Both(x) => x.tensor().index_bytes(),
        }
    }
}

impl TensorDevice {
    /// The device that is asked for; `None` for the processor.
    pub fn open(place: &Place, cpu: &Cpu) -> Result<Option<Self>> {
        Ok(Devices::open(place, cpu)?.map(|devices| Self { devices, kernel_s: None }))
    }

    /// Where the operations ran, and the sums of the copies and of each one's shortest kernel time.
    pub fn ran(&self) -> Ran {
        self.devices.note_failures();
        let times = self.devices.gpu().take_times();
        Ran {
            device: self.devices.name(),
            kernel_s: self.kernel_s,
            upload_s: Some(times.upload_s),
            download_s: Some(times.download_s),
        }
    }

    /// The shortest time that the device's clock has seen in the runs of `measure`.
    fn note_kernel(&mut self, shortest: f64) {
        if shortest.is_finite() {
            *self.kernel_s.get_or_insert(0.0) += shortest;
        }
    }

    /// TTM, and the seconds of uploading.
    pub fn ttm<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        algorithm: TtmAlgorithm,
        x: Fibers<'_, T>,
        u: MatRef<'_, T>,
        mut y: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        let (times, shortest, prepare_s) = match &self.devices {
            Devices::One(gpu) => {
                let ((x, u, mut out), prepare_s) =
                    timed(|| Ok::<_, Error>((gpu.fibers(x)?, gpu.mat(u)?, gpu.zeros(x.len(), u.cols())?)))?;
                let (times, shortest) = measure(&self.devices, repeat, || gpu.ttm_into(&x, &u, algorithm, &mut out))?;
                out.download(y)?;
                (times, shortest, prepare_s)
            }
            Devices::Both(both) => {
                let mut x = HeteroFibers::new(x);
                let (_, prepare_s) = timed(|| both.ttm_into(&mut x, u, algorithm, y.reborrow()))?;
                let (times, shortest) =
                    measure(&self.devices, repeat, || both.ttm_into(&mut x, u, algorithm, y.reborrow()))?;
                (times, shortest, prepare_s)
            }
        };
        self.note_kernel(shortest);
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
        let (v, y) = (&v[..x.dim()], &mut y[..x.len()]);
        let (times, shortest, prepare_s) = match &self.devices {
            Devices::One(gpu) => {
                let ((x, v, mut out), prepare_s) =
                    timed(|| Ok::<_, Error>((gpu.fibers(x)?, gpu.values(v)?, gpu.new_values(x.len())?)))?;
                let (times, shortest) = measure(&self.devices, repeat, || gpu.ttv_into(&x, &v, &mut out))?;
                out.download(y)?;
                (times, shortest, prepare_s)
            }
            Devices::Both(both) => {
                let mut x = HeteroFibers::new(x);
                let (_, prepare_s) = timed(|| both.ttv_into(&mut x, v, y))?;
                let (times, shortest) = measure(&self.devices, repeat, || both.ttv_into(&mut x, v, y))?;
                (times, shortest, prepare_s)
            }
        };
        self.note_kernel(shortest);
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
        let (times, shortest, prepare_s) = match &self.devices {
            Devices::One(gpu) => {
                let ((z, x, mut out), prepare_s) = timed(|| {
                    let z = z.map(|z| gpu.values(z)).transpose()?;
                    Ok::<_, Error>((z, gpu.values(x)?, gpu.new_values(y.len())?))
                })?;
                let (times, shortest) = measure(&self.devices, repeat, || match &z {
                    Some(z) => gpu.tew(&x, op, z, &mut out),
                    None => gpu.ts(&x, op, s, &mut out),
                })?;
                out.download(y)?;
                (times, shortest, prepare_s)
            }
            Devices::Both(both) => {
                let (times, shortest) = measure(&self.devices, repeat, || match z {
                    Some(z) => both.tew(x, op, z, y),
                    None => both.ts(x, op, s, y),
                })?;
                (times, shortest, 0.0)
            }
        };
        self.note_kernel(shortest);
        Ok((times, prepare_s))
    }

    /// The tensor laid out for MTTKRP, and the seconds that took.
    pub fn prepare<T: DeviceScalar>(
        &self,
        x: &CooTensor<T>,
        rank: usize,
        format: Option<MttkrpFormat>,
        algorithm: Option<MttkrpAlgorithm>,
    ) -> Result<(Prepared<T>, f64)> {
        timed(|| match (&self.devices, format, algorithm) {
            (Devices::One(gpu), ..) => Ok(Prepared::One(gpu.prepare_mttkrp(x, format, algorithm)?)),
            (Devices::Both(_), None | Some(MttkrpFormat::CsfAll), None | Some(MttkrpAlgorithm::Slice)) => {
                Ok(Prepared::Both(Box::new(HeteroTensor::new(x.clone(), rank))))
            }
            (Devices::Both(_), None | Some(MttkrpFormat::CsfAll), Some(MttkrpAlgorithm::Element)) => {
                Ok(Prepared::Both(Box::new(HeteroTensor::new(x.clone(), rank).by_elements())))
            }
            (Devices::Both(_), ..) => {
                let detail = "hetero has the algorithms slice and element on csf-all only".to_owned();
                Err(Error::Argument { name: "device", detail })
            }
        })
    }

    /// MTTKRP, and the seconds of uploading the factors.
    pub fn mttkrp<T: DeviceScalar>(
        &mut self,
        repeat: Option<usize>,
        tensor: &mut Prepared<T>,
        factors: &[MatRef<'_, T>],
        mode: usize,
        mut out: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        let (times, shortest, prepare_s) = match (&self.devices, tensor) {
            (Devices::Both(both), Prepared::Both(tensor)) => {
                let (_, prepare_s) = timed(|| both.mttkrp(tensor, factors, mode, out.reborrow()))?;
                let (times, shortest) =
                    measure(&self.devices, repeat, || both.mttkrp(tensor, factors, mode, out.reborrow()))?;
                (times, shortest, prepare_s)
            }
            (Devices::One(gpu), Prepared::One(tensor)) => {
                let ((on_device, mut product), prepare_s) =
                    timed(|| Ok::<_, Error>((gpu.factors(factors)?, gpu.zeros(out.rows(), out.cols())?)))?;
                let (times, shortest) =
                    measure(&self.devices, repeat, || gpu.mttkrp(tensor, &on_device, mode, &mut product))?;
                product.download(out)?;
                (times, shortest, prepare_s)
            }
            _ => {
                let detail = "the tensor was prepared for other devices".to_owned();
                return Err(Error::Argument { name: "tensor", detail });
            }
        };
        self.note_kernel(shortest);
        Ok((times, prepare_s))
    }

    /// CP-ALS with its MTTKRPs on the device, or on both sides.
    pub fn cp_als<T: DeviceScalar>(
        &mut self,
        cpu: &Cpu,
        x: &CooTensor<T>,
        format: Option<MttkrpFormat>,
        options: &CpOptions<T>,
        observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        let (mut tensor, _) = cpu.install(|| self.prepare(x, options.rank, format, None))?;
        let result = match (&self.devices, &mut tensor) {
            (Devices::Both(both), Prepared::Both(tensor)) => both.cp_als(tensor, options, observe),
            (devices, Prepared::One(tensor)) => devices.gpu().cp_als(cpu, tensor, options, observe),
            (devices, Prepared::Both(tensor)) => {
                let tensor = cpu.install(|| devices.gpu().prepare_mttkrp(tensor.tensor(), format, None))?;
                devices.gpu().cp_als(cpu, &tensor, options, observe)
            }
        };
        self.kernel_s = self.devices.gpu().take_kernel_time();
        result
    }

    /// Tucker's decomposition with its TTM chains on the device, or on both sides.
    pub fn tucker<T: DeviceScalar>(
        &mut self,
        cpu: &Cpu,
        x: &CooTensor<T>,
        options: &TuckerOptions,
        observe: impl FnMut(&TuckerState, &TuckerIteration) -> ControlFlow<()> + Send,
    ) -> Result<Tucker> {
        let result = match &self.devices {
            Devices::Both(both) => both.tucker(x, options, observe),
            Devices::One(gpu) => gpu.tucker(cpu, x, options, observe),
        };
        self.kernel_s = self.devices.gpu().take_kernel_time();
        result
    }
}

/// Times `run`, and the shortest time of it in kernels, infinite without a clock; the copies' seconds stay on the device's
/// account.
fn measure(devices: &Devices, repeat: Option<usize>, mut run: impl FnMut() -> Result<()>) -> Result<(Times, f64)> {
    let mut shortest = f64::INFINITY;
    let times = Times::measure(repeat, || {
        devices.gpu().take_kernel_time();
        run()?;
        shortest = shortest.min(devices.gpu().take_kernel_time().unwrap_or(f64::INFINITY));
        Ok(())
    })?;
    Ok((times, shortest))
}
