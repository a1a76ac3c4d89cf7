//! `sparsimd roofline --device hetero`: the operations shared by the processor and a device, under the ceilings of both together.

use serde::Serialize;
use sparsimd::formats::FiberCoo;
use sparsimd::gpu::DeviceScalar;
use sparsimd::hetero::{Hetero, HeteroCsr, HeteroFibers, HeteroTensor};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::{MttkrpFormat, Op, PlanOptions, TensorOptions};
use sparsimd::{CooTensor, Cpu, Csr, Mat, Result, edge, generate};
use sparsimd_measure::{Ceilings, TensorCounts, Work};

use super::device::{DeviceReport, Report, mark_of};
use super::{Args, Loaded, Operation, Roofline, point_lines};
use crate::device::Devices;
use crate::machine::ceilings;
use crate::matrix::REUSE;
use crate::mttkrp::format_of;
use crate::timing::Times;
use crate::{Verdict, output};

/// GFLOP/s and GB/s of the processor and the device, added up: what both would reach if each ran at its own ceiling.
#[derive(Serialize)]
struct Sum {
    multiply_add: f64,
    /// The nearest level of each.
    near: f64,
    /// The memory of each.
    memory: f64,
}

/// Where the device is the processor, by its driver, the sum counts it twice.
#[derive(Serialize)]
struct Together<'a> {
    ceilings: Sum,
    cpu_ceilings: &'a Ceilings,
    device_ceilings: DeviceReport,
}

/// Measures the processor, the device and the operations on both, prints all and draws them.
pub fn draw<T: DeviceScalar>(args: &Args, cpu: &Cpu, devices: &Devices, both: &Hetero) -> Result<Verdict> {
    let (input, operations) = match args.load::<T>(cpu)? {
        Loaded::Matrix(name, a) => (args.matrix_name(&name, &a), matrix_operations(args, cpu, both, a)?),
        Loaded::Tensor(name, x) => (args.tensor_name(&name, &x), tensor_operations(args, cpu, both, &x)?),
    };
    devices.note_failures();
    let (own, _, _) = ceilings(cpu, args.fresh)?;
    output::note("measuring the device's ceilings, some seconds ...");
    let device = DeviceReport::of(both.gpu().ceilings::<T>()?);
    let ([fma, _], [own_near, own_far], [near, far]) = (super::peaks::<T>(&own), super::ends(&own), device.ends());
    let sum = Sum { multiply_add: fma + device.multiply_add, near: own_near + near, memory: own_far + far };
    let points = super::points(operations, sum.multiply_add, sum.near, sum.memory);
    let name = devices.name();
    let (on_processor, mark) = mark_of(both.gpu());
    let title = format!("{name}{mark}: {}  |  {input}", T::NAME);
    let levels = [("nearest levels".to_owned(), sum.near), ("memories".to_owned(), sum.memory)];
    let picture = Roofline { title, levels: &levels, fma: sum.multiply_add, add: None, points: &points };
    let pictures = picture.save(&args.out)?.map(|path| path.display().to_string()).to_vec();
    if args.json {
        output::json(&Report {
            input: &input,
            dtype: T::NAME,
            device: &name,
            on_processor,
            points: &points,
            ceilings: Together { ceilings: sum, cpu_ceilings: &own, device_ceilings: device },
            pictures,
        })?;
        return Ok(Verdict::Good);
    }
    let mut lines = vec![
        format!("{name}{mark}"),
        format!("{:<23}{:>12}{:>12}{:>12}", "", "processor", "device", "sum"),
        format!(
            "multiply-add {:<10}{fma:>12.1}{:>12.1}{:>12.1}  GFLOP/s",
            T::NAME,
            device.multiply_add,
            sum.multiply_add
        ),
        format!("{:<23}{:>12.1}{near:>12.1}{:>12.1}  GB/s", "nearest level", own_near, sum.near),
        format!("{:<23}{:>12.1}{far:>12.1}{:>12.1}  GB/s", "memory", own_far, sum.memory),
    ];
    lines.extend(point_lines(&format!("{input}, {}", T::NAME), &points, ["memory roof", "near roof"]));
    lines.push(format!("drawn to {}", pictures.join(" and ")));
    output::line(&lines.join("\n"))?;
    Ok(Verdict::Good)
}

fn matrix_operations<T: DeviceScalar>(args: &Args, cpu: &Cpu, both: &Hetero, a: Csr<T>) -> Result<Vec<Operation>> {
    let dense = |rows, which| cpu.install(|| generate::uniform_dense::<T>(rows, args.n, args.seed + which));
    let (c, b, d) = (dense(a.rows(), 1)?, dense(a.cols(), 2)?, dense(a.cols(), 3)?);
    let mut rows = Mat::zeros(a.rows(), args.n)?;
    let mut values = vec![T::ZERO; a.nnz()];
    let pattern = a.pattern().clone();
    let mut a = HeteroCsr::new(a);
    for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
        a.prepare(&PlanOptions::new(op, args.n).reuse(REUSE))?;
    }
    let spmm = measure(args, || both.spmm(T::ONE, &mut a, b.as_ref(), T::ZERO, rows.as_mut()))?;
    let sddmm = measure(args, || both.sddmm(&mut a, c.as_ref(), b.as_ref(), &mut values))?;
    let fused =
        measure(args, || both.fusedmm(&mut a, edge::Identity, c.as_ref(), b.as_ref(), d.as_ref(), rows.as_mut()))?;
    Ok(super::of_matrix::<T>(&pattern, args.n, [spmm, sddmm, fused]))
}

/// Times `run` after a run that cuts, uploads and measures the rates of both sides.
fn measure(args: &Args, mut run: impl FnMut() -> Result<()>) -> Result<Times> {
    run()?;
    Times::measure(args.repeat, run)
}

fn tensor_operations<T: DeviceScalar>(
    args: &Args,
    cpu: &Cpu,
    both: &Hetero,
    x: &CooTensor<T>,
) -> Result<Vec<Operation>> {
    let mode = args.mode_of(x)?;
    let counts = cpu.install(|| TensorCounts::of(x))?;
    let dense = |rows: usize, which| cpu.install(|| generate::uniform_dense::<T>(rows, args.rank, args.seed + which));
    let fibers = cpu.install(|| FiberCoo::new(x.clone(), mode))?;
    let mut values = vec![T::ZERO; x.nnz()];
    let mut y = vec![T::ZERO; fibers.num_fibers()];
    let mut rows = Mat::zeros(fibers.num_fibers(), args.rank)?;
    let v = generate::uniform_values::<T>(x.dims()[mode], args.seed + 2);
    let u = dense(x.dims()[mode], 1)?;
    let tew = measure(args, || both.tew(x.values(), Arithmetic::Add, x.values(), &mut values))?;
    let ts = measure(args, || both.ts(x.values(), Arithmetic::Mul, T::from_f64(1.5), &mut values))?;
    let mut shared = HeteroFibers::new(&fibers);
    let ttv = measure(args, || both.ttv_into(&mut shared, &v, &mut y))?;
    let ttm = measure(args, || both.ttm_into(&mut shared, u.as_ref(), TtmAlgorithm::Auto, rows.as_mut()))?;
    let mut operations = super::of_tensor::<T>(&counts, mode, args.rank, [tew, ts, ttv, ttm]);
    // Both sides have a tree for each mode, and no other format.
    let format = MttkrpFormat::CsfAll;
    if x.order() > 1 && format_of(args.format).is_none_or(|asked| asked == format) {
        let factors = x.dims().iter().zip(0..).map(|(&rows, m)| dense(rows, m)).collect::<Result<Vec<_>>>()?;
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let mut tensor = HeteroTensor::new(x.clone(), args.rank);
        let mut out = Mat::zeros(x.dims()[mode], args.rank)?;
        let times = measure(args, || both.mttkrp(&mut tensor, &views, mode, out.as_mut()))?;
        let same = cpu.prepare_tensor(x, &TensorOptions::new(args.rank).format(Some(format)))?;
        let work = Work::mttkrp::<T>(x.order(), x.nnz(), &cpu.install(|| same.counts(mode)), args.rank);
        operations.push(Operation { label: "MTTKRP", format: Some(format.name()), work, times });
    } else if x.order() > 1 {
        output::note("MTTKRP by both sides takes csf-all alone: left out");
    }
    Ok(operations)
}
