//! The matrix operations on a Vulkan device, alone or beside the processor.

use std::time::Instant;

use serde::Serialize;
use sparsimd::edge::{self, Edge};
use sparsimd::gpu::{self, Choice, DeviceEdge, DeviceInfo, DeviceScalar, Gpu};
use sparsimd::hetero::{Hetero, HeteroCsr, Split};
use sparsimd::io::{Matrix, write_mtx, write_mtx_dense};
use sparsimd::plan::Path;
use sparsimd::{Cpu, Csr, Error, Mat, Result, reference};

use super::{DeviceName, Ran};
use crate::cli::matrix::{Common, EdgeName, Measured, dense_bytes, sparse_bytes};
use crate::cli::timing::{Check, Times};

/// A device with what matters of its limits and features.
#[derive(Serialize)]
pub struct Device {
    name: String,
    kind: String,
    vulkan: String,
    driver: String,
    subgroup: u32,
    resident_subgroups: Option<u32>,
    memory_bytes: u64,
    max_buffer_range: u64,
    max_allocation: u64,
    workgroup_memory: u32,
    float64: bool,
    atomic_add_f32: bool,
    transfer_queue: bool,
    timestamps: bool,
    missing: Vec<&'static str>,
}

/// The devices, the preferred ones first.
pub fn devices() -> Result<Vec<Device>> {
    Ok(Gpu::devices()?.into_iter().map(Device::from).collect())
}

impl From<DeviceInfo> for Device {
    fn from(d: DeviceInfo) -> Self {
        Self {
            kind: d.kind.to_string(),
            vulkan: format!("{}.{}", d.api.0, d.api.1),
            driver: d.driver,
            subgroup: d.subgroup,
            resident_subgroups: d.resident_subgroups,
            memory_bytes: d.memory,
            max_buffer_range: d.max_range,
            max_allocation: d.max_allocation,
            workgroup_memory: d.shared_memory,
            float64: d.float64,
            atomic_add_f32: d.atomic_add_f32,
            transfer_queue: d.transfer_queue,
            timestamps: d.timestamp_ns.is_some(),
            missing: d.missing,
            name: d.name,
        }
    }
}

impl Device {
    /// In words, one line.
    pub fn text(&self) -> String {
        let usable = match self.missing.is_empty() {
            true => String::new(),
            false => format!("; not usable, lacks {}", self.missing.join(", ")),
        };
        format!(
            "{} ({}, Vulkan {}, {}): {:.1} GiB, subgroups of {}, {} MiB of a buffer at a time{}{}{usable}",
            self.name,
            self.kind,
            self.vulkan,
            self.driver,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.subgroup,
            self.max_buffer_range >> 20,
            if self.float64 { ", f64" } else { "" },
            if self.atomic_add_f32 { ", f32 atomics" } else { "" },
        )
    }
}

/// Times of the runs, and what the device says of one of them.
struct Timed {
    times: Times,
    kernel_s: Option<f64>,
    upload_s: f64,
    download_s: f64,
}

/// What runs the operation.
enum Executor {
    Gpu(Gpu),
    Both(Box<Hetero>),
}

impl Executor {
    fn open(args: &Common, cpu: &Cpu) -> Result<Self> {
        match &args.device {
            DeviceName::Hetero(split) => {
                let split = split.parse::<Split>().map_err(|detail| Error::Argument { name: "device", detail })?;
                Ok(Self::Both(Box::new(Hetero::new(cpu.clone(), Gpu::new()?, split)?)))
            }
            DeviceName::Gpu(which) => {
                let choice = which.parse::<Choice>().unwrap_or_default();
                Ok(Self::Gpu(Gpu::open(choice)?))
            }
            DeviceName::Cpu => Err(Error::Argument { name: "device", detail: "the processor is none".to_owned() }),
        }
    }

    fn gpu(&self) -> &Gpu {
        match self {
            Self::Gpu(gpu) => gpu,
            Self::Both(both) => both.gpu(),
        }
    }

    /// Times `run`, and what the device says of it.
    fn measure(&self, args: &Common, mut run: impl FnMut() -> Result<()>) -> Result<Timed> {
        let before = self.gpu().take_times();
        let mut kernel_s: Option<f64> = None;
        let mut last = gpu::Times::default();
        let times = Times::measure(args.repeat, || {
            run()?;
            last = self.gpu().take_times();
            // The shortest run's, as the speed is.
            kernel_s = match (kernel_s, last.kernel_s) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            Ok(())
        })?;
        // Operands of a device alone were uploaded before; those of both are with each run.
        let upload_s = match self {
            Self::Gpu(_) => before.upload_s,
            Self::Both(_) => last.upload_s,
        };
        Ok(Timed { times, kernel_s, upload_s, download_s: last.download_s })
    }

    fn report<T: DeviceScalar>(
        &self,
        a: &Csr<T>,
        prepare_s: f64,
        share: Option<f64>,
        timed: Timed,
        check: Check,
        (flops, bytes): (f64, f64),
    ) -> Measured {
        let Timed { times, kernel_s, upload_s, download_s } = timed;
        // A device alone gives its result once, after the runs.
        let download_s = download_s + self.gpu().take_times().download_s;
        let name = &self.gpu().info().name;
        let plan = match self {
            Self::Gpu(gpu) => {
                format!("{} nonzeros on {name}, subgroups of {}", a.nnz(), gpu.info().subgroup)
            }
            Self::Both(_) => {
                let share = share.map_or("as given".to_owned(), |s| format!("{:.1} % by measured rates", 100.0 * s));
                format!("share of {name}: {share}")
            }
        };
        let device = match self {
            Self::Gpu(_) => name.clone(),
            Self::Both(_) => format!("cpu + {name}"),
        };
        let ran = Ran { device, kernel_s, upload_s: Some(upload_s), download_s: Some(download_s) };
        Measured { plan, path: Path::Direct, prepare_s, times, check, flops, bytes, numa: None, ran }
    }
}

/// Times `f`.
fn timed<R>(f: impl FnOnce() -> Result<R>) -> Result<(R, f64)> {
    let start = Instant::now();
    let result = f()?;
    Ok((result, start.elapsed().as_secs_f64()))
}

/// SpMM on a device.
pub fn spmm<T: DeviceScalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    let executor = Executor::open(args, cpu)?;
    let b = args.operand::<T>(cpu, a.cols(), 1)?;
    let mut c = Mat::zeros(a.rows(), args.n)?;
    let (prepare_s, share, times) = match &executor {
        Executor::Gpu(gpu) => {
            let ((ga, gb, mut gc), prepare_s) =
                timed(|| Ok((gpu.csr(a)?, gpu.mat(b.as_ref())?, gpu.zeros(a.rows(), args.n)?)))?;
            let times = executor.measure(args, || gpu.spmm(T::ONE, &ga, &gb, T::ZERO, &mut gc))?;
            gc.download(c.as_mut())?;
            (prepare_s, None, times)
        }
        Executor::Both(both) => {
            let mut shared = HeteroCsr::new(a.clone());
            let (_, prepare_s) = timed(|| both.spmm(T::ONE, &mut shared, b.as_ref(), T::ZERO, c.as_mut()))?;
            let times = executor.measure(args, || both.spmm(T::ONE, &mut shared, b.as_ref(), T::ZERO, c.as_mut()))?;
            (prepare_s, shared.share("spmm"), times)
        }
    };
    let check = Check::when(args.verify, || {
        reference::spmm(T::ONE, a, b.as_ref(), T::ZERO, c.as_ref())?.deviation(c.as_ref())
    })?;
    if let Some(out) = &args.out {
        write_mtx_dense(out, c.as_ref())?;
    }
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes(a, true) + dense_bytes::<T>(a.rows() + a.cols(), args.n);
    Ok(executor.report(a, prepare_s, share, times, check, (flops, bytes)))
}

/// SDDMM on a device.
pub fn sddmm<T: DeviceScalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    let scaled = args.edge == EdgeName::Scale;
    let executor = Executor::open(args, cpu)?;
    let c = args.operand::<T>(cpu, a.rows(), 1)?;
    let b = args.operand::<T>(cpu, a.cols(), 2)?;
    let mut out = vec![T::ZERO; a.nnz()];
    let (prepare_s, share, times) = match &executor {
        Executor::Gpu(gpu) => {
            let ((ga, gc, gb), prepare_s) = timed(|| Ok((gpu.csr(a)?, gpu.mat(c.as_ref())?, gpu.mat(b.as_ref())?)))?;
            let mut values = ga.new_values()?;
            let times = executor.measure(args, || match scaled {
                true => gpu.sddmm_scaled(&ga, &gc, &gb, &mut values),
                false => gpu.sddmm(&ga, &gc, &gb, &mut values),
            })?;
            values.download(&mut out)?;
            (prepare_s, None, times)
        }
        Executor::Both(_) if scaled => {
            let detail = "hetero has no scaled sddmm".to_owned();
            return Err(Error::Argument { name: "edge", detail });
        }
        Executor::Both(both) => {
            let mut shared = HeteroCsr::new(a.clone());
            let (_, prepare_s) = timed(|| both.sddmm(&mut shared, c.as_ref(), b.as_ref(), &mut out))?;
            let times = executor.measure(args, || both.sddmm(&mut shared, c.as_ref(), b.as_ref(), &mut out))?;
            (prepare_s, shared.share("sddmm"), times)
        }
    };
    let check =
        Check::when(args.verify, || reference::sddmm(a, scaled, c.as_ref(), b.as_ref())?.deviation_of_values(&out))?;
    if let Some(path) = &args.out {
        write_mtx(path, &Matrix::Values(Csr::new(a.pattern().clone(), out)?))?;
    }
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let dense = dense_bytes::<T>(a.rows() + a.cols(), args.n);
    let bytes = sparse_bytes(a, scaled) + dense + dense_bytes::<T>(a.nnz(), 1);
    Ok(executor.report(a, prepare_s, share, times, check, (flops, bytes)))
}

/// FusedMM on a device.
pub fn fusedmm<T: DeviceScalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    match args.edge {
        EdgeName::Identity => fused(args, cpu, a, edge::Identity, reference::Edge::Identity),
        EdgeName::Scale => fused(args, cpu, a, edge::Scale, reference::Edge::Scale),
        EdgeName::Sigmoid => fused(args, cpu, a, edge::Sigmoid, reference::Edge::Sigmoid),
        EdgeName::Softmax => {
            let scale = T::from_f64(1.0 / (args.n as f64).sqrt());
            let wanted = reference::Edge::Softmax { scale: scale.to_f64() };
            fused(args, cpu, a, edge::Softmax { scale }, wanted)
        }
    }
}

fn fused<T: DeviceScalar, F: Edge<T> + DeviceEdge<T>>(
    args: &Common,
    cpu: &Cpu,
    a: &Csr<T>,
    edge: F,
    wanted: reference::Edge<'_>,
) -> Result<Measured> {
    let executor = Executor::open(args, cpu)?;
    let c = args.operand::<T>(cpu, a.rows(), 1)?;
    let b = args.operand::<T>(cpu, a.cols(), 2)?;
    let d = args.operand::<T>(cpu, a.cols(), 3)?;
    let mut e = Mat::zeros(a.rows(), args.n)?;
    let (prepare_s, share, times) = match &executor {
        Executor::Gpu(gpu) => {
            let ((ga, gc, gb, gd, mut ge), prepare_s) = timed(|| {
                let dense = |m: &Mat<T>| gpu.mat(m.as_ref());
                Ok((gpu.csr(a)?, dense(&c)?, dense(&b)?, dense(&d)?, gpu.zeros(a.rows(), args.n)?))
            })?;
            let times = executor.measure(args, || gpu.fusedmm(&ga, edge, &gc, &gb, &gd, &mut ge))?;
            ge.download(e.as_mut())?;
            (prepare_s, None, times)
        }
        Executor::Both(both) => {
            let mut shared = HeteroCsr::new(a.clone());
            let mut run = || both.fusedmm(&mut shared, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut());
            let (_, prepare_s) = timed(&mut run)?;
            let times = executor.measure(args, run)?;
            (prepare_s, shared.share("fusedmm"), times)
        }
    };
    let check = Check::when(args.verify, || {
        reference::fusedmm(a, wanted, c.as_ref(), b.as_ref(), d.as_ref())?.deviation(e.as_ref())
    })?;
    if let Some(path) = &args.out {
        write_mtx_dense(path, e.as_ref())?;
    }
    let flops = 4.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes(a, F::USES_VALUES) + 2.0 * dense_bytes::<T>(a.rows() + a.cols(), args.n);
    Ok(executor.report(a, prepare_s, share, times, check, (flops, bytes)))
}
