//! `sparsimd roofline --device gpu`: a device's own ceilings, and the operations on it.

use serde::Serialize;
use sparsimd::formats::FiberCoo;
use sparsimd::gpu::{DeviceCeilings, DeviceScalar, Gpu, Kind};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::TensorOptions;
use sparsimd::{CooTensor, Cpu, Csr, Mat, Result, edge, generate};
use sparsimd_measure::{TensorCounts, Work};

use super::{Args, Loaded, Operation, Point, Roofline, point_lines};
use crate::mttkrp::format_of;
use crate::timing::Times;
use crate::{Verdict, output};

#[derive(Serialize)]
struct Level {
    name: &'static str,
    bytes: usize,
    copy: f64,
    add: f64,
    multiply_add: f64,
}

/// A device's ceilings in GFLOP/s and GB/s.
#[derive(Serialize)]
pub struct DeviceReport {
    pub multiply_add: f64,
    levels: Vec<Level>,
    device_clock: bool,
}

impl DeviceReport {
    /// Of what was measured.
    pub fn of(measured: DeviceCeilings) -> Self {
        let level = |l: &sparsimd::gpu::DeviceLevel| Level {
            name: l.name,
            bytes: l.bytes,
            copy: l.copy,
            add: l.add,
            multiply_add: l.multiply_add,
        };
        let DeviceCeilings { multiply_add, device_clock, .. } = measured;
        Self { multiply_add, levels: measured.levels.iter().map(level).collect(), device_clock }
    }

    /// GB/s of the nearest level and of the memory.
    pub fn ends(&self) -> [f64; 2] {
        [self.levels.first(), self.levels.last()].map(|level| level.map_or(0.0, |l| l.multiply_add))
    }
}

/// Whether the device is the processor, by its driver, and a mark that says so.
pub fn mark_of(gpu: &Gpu) -> (bool, &'static str) {
    match gpu.info().kind {
        Kind::Cpu => (true, " (the processor's driver)"),
        _ => (false, ""),
    }
}

/// What is printed as JSON of operations on a device, alone or beside the processor.
#[derive(Serialize)]
pub struct Report<'a, C> {
    pub input: &'a str,
    pub dtype: &'static str,
    pub device: &'a str,
    /// The device is the processor, by its driver: figures of no other device.
    pub on_processor: bool,
    pub points: &'a [Point],
    #[serde(flatten)]
    pub ceilings: C,
    pub pictures: Vec<String>,
}

#[derive(Serialize)]
struct Alone {
    ceilings: DeviceReport,
}

/// Measures the device and the operations on it, prints both and draws them.
pub fn draw<T: DeviceScalar>(args: &Args, cpu: &Cpu, gpu: &Gpu) -> Result<Verdict> {
    let (input, operations) = match args.load::<T>(cpu)? {
        Loaded::Matrix(name, a) => (args.matrix_name(&name, &a), matrix_operations(args, cpu, gpu, &a)?),
        Loaded::Tensor(name, x) => (args.tensor_name(&name, &x), tensor_operations(args, cpu, gpu, &x)?),
    };
    output::note("measuring the device's ceilings, some seconds ...");
    let measured = DeviceReport::of(gpu.ceilings::<T>()?);
    let levels: Vec<(String, f64)> = measured.levels.iter().map(|l| (l.name.to_owned(), l.multiply_add)).collect();
    let [near, far] = measured.ends();
    let points = super::points(operations, measured.multiply_add, near, far);
    let name = &gpu.info().name;
    let (on_processor, mark) = mark_of(gpu);
    let title = format!("{name}{mark}: {}  |  {input}", T::NAME);
    let picture = Roofline { title, levels: &levels, fma: measured.multiply_add, add: None, points: &points };
    let pictures = picture.save(&args.out)?.map(|path| path.display().to_string()).to_vec();
    if args.json {
        let dtype = T::NAME;
        output::json(&Report {
            input: &input,
            dtype,
            device: name,
            on_processor,
            points: &points,
            ceilings: Alone { ceilings: measured },
            pictures,
        })?;
        return Ok(Verdict::Good);
    }
    let clock = if measured.device_clock { "the device's clock" } else { "the processor's clock" };
    let mut lines = vec![
        format!("{name}{mark}, by {clock}"),
        format!("multiply-add {:<10}{:>10.1}  GFLOP/s", T::NAME, measured.multiply_add),
        format!("{:<23}{:>10}{:>10}{:>14}  GB/s", "", "copy", "add", "multiply-add"),
    ];
    lines.extend(measured.levels.iter().map(|l| {
        let label = format!("{} ({} KiB)", l.name, l.bytes >> 10);
        format!("{label:<23}{:>10.1}{:>10.1}{:>14.1}", l.copy, l.add, l.multiply_add)
    }));
    lines.extend(point_lines(&format!("{input}, {}", T::NAME), &points, ["memory roof", "near roof"]));
    lines.push(format!("drawn to {}", pictures.join(" and ")));
    output::line(&lines.join("\n"))?;
    Ok(Verdict::Good)
}

/// Times `run`; the shortest is the device's, in kernels, where it has a clock.
fn measure(gpu: &Gpu, args: &Args, mut run: impl FnMut() -> Result<()>) -> Result<Times> {
    let mut shortest = f64::INFINITY;
    gpu.take_kernel_time();
    let times = Times::measure(args.repeat, || {
        run()?;
        shortest = shortest.min(gpu.take_kernel_time().unwrap_or(f64::INFINITY));
        Ok(())
    })?;
    Ok(if shortest.is_finite() { Times { min: shortest, ..times } } else { times })
}

fn matrix_operations<T: DeviceScalar>(args: &Args, cpu: &Cpu, gpu: &Gpu, a: &Csr<T>) -> Result<Vec<Operation>> {
    let dense = |rows, which| {
        let dense = cpu.install(|| generate::uniform_dense::<T>(rows, args.n, args.seed + which))?;
        gpu.mat(dense.as_ref())
    };
    let (c, b, d) = (dense(a.rows(), 1)?, dense(a.cols(), 2)?, dense(a.cols(), 3)?);
    let mut rows = gpu.zeros(a.rows(), args.n)?;
    let pattern = a.pattern();
    let on_device = gpu.csr(a)?;
    let spmm = measure(gpu, args, || gpu.spmm(T::ONE, &on_device, &b, T::ZERO, &mut rows))?;
    let mut values = gpu.new_values(a.nnz())?;
    let sddmm = measure(gpu, args, || gpu.sddmm(&on_device, &c, &b, &mut values))?;
    let fused = measure(gpu, args, || gpu.fusedmm(&on_device, edge::Identity, &c, &b, &d, &mut rows))?;
    Ok(super::of_matrix::<T>(pattern, args.n, [spmm, sddmm, fused]))
}

fn tensor_operations<T: DeviceScalar>(args: &Args, cpu: &Cpu, gpu: &Gpu, x: &CooTensor<T>) -> Result<Vec<Operation>> {
    let mode = args.mode_of(x)?;
    let counts = cpu.install(|| TensorCounts::of(x))?;
    let dense = |rows: usize, which| cpu.install(|| generate::uniform_dense::<T>(rows, args.rank, args.seed + which));
    let fibers = cpu.install(|| FiberCoo::new(x.clone(), mode))?;
    let on_device = gpu.fibers(&fibers)?;
    let (left, right) = (gpu.values(x.values())?, gpu.values(x.values())?);
    let mut values = gpu.new_values(x.nnz())?;
    let tew = measure(gpu, args, || gpu.tew(&left, Arithmetic::Add, &right, &mut values))?;
    let ts = measure(gpu, args, || gpu.ts(&left, Arithmetic::Mul, T::from_f64(1.5), &mut values))?;
    let v = gpu.values(&generate::uniform_values::<T>(x.dims()[mode], args.seed + 2))?;
    let mut y = gpu.new_values(fibers.num_fibers())?;
    let ttv = measure(gpu, args, || gpu.ttv_into(&on_device, &v, &mut y))?;
    let u = gpu.mat(dense(x.dims()[mode], 1)?.as_ref())?;
    let mut rows = gpu.zeros(fibers.num_fibers(), args.rank)?;
    let ttm = measure(gpu, args, || gpu.ttm_into(&on_device, &u, TtmAlgorithm::Auto, &mut rows))?;
    let mut operations = super::of_tensor::<T>(&counts, mode, args.rank, [tew, ts, ttv, ttm]);
    if x.order() > 1 {
        let factors = x.dims().iter().zip(0..).map(|(&rows, m)| dense(rows, m)).collect::<Result<Vec<_>>>()?;
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let tensor = cpu.install(|| gpu.prepare_mttkrp(x, format_of(args.format), None))?;
        let (on_device, mut out) = (gpu.factors(&views)?, gpu.zeros(x.dims()[mode], args.rank)?);
        let times = measure(gpu, args, || gpu.mttkrp(&tensor, &on_device, mode, &mut out))?;
        // The processor's counts of the same format.
        let same = cpu.prepare_tensor(x, &TensorOptions::new(args.rank).format(Some(tensor.format())))?;
        let work = Work::mttkrp::<T>(x.order(), x.nnz(), &cpu.install(|| same.counts(mode)), args.rank);
        operations.push(Operation { label: "MTTKRP", format: Some(tensor.format().name()), work, times });
    }
    Ok(operations)
}
