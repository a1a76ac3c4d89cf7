//! `sparsimd roofline`.

mod device;
mod hetero;
mod picture;

use std::path::PathBuf;

use serde::Serialize;
use sparsimd::formats::{DEFAULT_BLOCK_BITS, FiberCoo, HiCoo};
use sparsimd::generate::{self, TensorSpec};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::ops::Arithmetic;
use sparsimd::plan::{MttkrpFormat, Op, PlanOptions, TensorOptions};
use sparsimd::{CooTensor, Cpu, Csr, Error, Mat, Pattern, Result, Scalar, edge};
use sparsimd_measure::{Ceilings, TensorCounts, TensorOp, Work};

use super::device::{DeviceScalar, Devices, Place};
use super::executor::Executor;
use super::machine::{ceilings, f32_lanes, table};
use super::matrix::REUSE;
use super::mttkrp::format_of;
use super::progress::Progress;
use super::source::RandomSpec;
use super::tensor::TensorFormat;
use super::timing::{Dtype, Times};
use super::{Verdict, output, tensor};
pub use picture::{Roofline, levels_of};

/// Arguments of `roofline`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Columns of the dense operands of matrix operations
    #[arg(short = 'n', value_name = "N", default_value_t = 128)]
    n: usize,
    /// Columns of the factors of tensor operations
    #[arg(long, value_name = "R", default_value_t = 32)]
    rank: usize,
    /// Storage of the tensor for MTTKRP
    #[arg(long, value_enum, default_value_t = TensorFormat::Auto)]
    format: TensorFormat,
    /// Mode of tensor operations, counted from 0 [default: the last]
    #[arg(long, value_name = "M")]
    mode: Option<usize>,
    /// Element type
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    executor: Executor,
    /// Measured runs of each operation [default: about a second of them]
    #[arg(long, value_name = "R")]
    repeat: Option<usize>,
    /// Seed of everything random
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Folder for roofline.svg and roofline.png
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Measure the machine again
    #[arg(long)]
    fresh: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Whose operations are run; a random matrix of 4096 x 4096 with 70 % zeros when nothing is said.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Input {
    /// Run the matrix operations on a file: .mtx or .smtx, .gz may follow
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Run them on a random matrix
    #[arg(long, value_name = "MxK@SPARSITY")]
    random: Option<RandomSpec>,
    /// Run the tensor operations on a file: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    tensor: Option<PathBuf>,
    /// Run them on a generated tensor
    #[arg(long, value_name = "NAME")]
    generate: Option<TensorSpec>,
}

/// One operation on the picture.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Its name.
    pub label: String,
    /// Storage of the tensor; null for matrices.
    pub format: Option<String>,
    /// Operations per byte requested, by the model.
    pub intensity: f64,
    /// Achieved, at best.
    pub gflops: f64,
    /// The most that DRAM's bandwidth would allow if every byte came from there.
    pub dram_roof: f64,
    /// The most that the nearest cache's bandwidth and the arithmetic allow.
    pub roof: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    input: &'a str,
    dtype: &'static str,
    threads: usize,
    points: &'a [Point],
    ceilings: &'a Ceilings,
    pictures: Vec<String>,
}

/// Measures the machine and the operations, prints both and draws them.
pub fn run(args: &Args) -> Result<Verdict> {
    match args.dtype {
        Dtype::F32 => draw::<f32>(args),
        Dtype::F64 => draw::<f64>(args),
    }
}

fn draw<T: DeviceScalar>(args: &Args) -> Result<Verdict> {
    let cpu = args.executor.cpu()?;
    match &Devices::open(&args.place, &cpu)? {
        None => {}
        Some(Devices::One(gpu)) => return device::draw::<T>(args, &cpu, gpu),
        Some(devices @ Devices::Both(both)) => return hetero::draw::<T>(args, &cpu, devices, both),
    }
    // The input first: a mistake there should not wait for the machine to be measured.
    let (input, operations) = match args.load::<T>(&cpu)? {
        Loaded::Matrix(name, a) => (args.matrix_name(&name, &a), args.matrix_operations(&cpu, &a)?),
        Loaded::Tensor(name, x) => (args.tensor_name(&name, &x), args.tensor_operations(&cpu, &x)?),
    };
    let (ceilings, _, kept) = ceilings(&cpu, args.fresh)?;
    let ([fma, add], [near, far]) = (peaks::<T>(&ceilings), ends(&ceilings));
    let points = points(operations, fma, near, far);
    let title = format!(
        "{}: {}, {}, {} thread(s)  |  {input}",
        cpu.machine().processor(),
        ceilings.simd,
        T::NAME,
        ceilings.threads
    );
    let picture = Roofline { title, levels: &levels_of(&ceilings), fma, add: Some(add), points: &points };
    let pictures = picture.save(&args.out)?.map(|path| path.display().to_string());
    if args.json {
        let pictures = pictures.to_vec();
        let (dtype, threads) = (T::NAME, cpu.threads());
        output::json(&Report { input: &input, dtype, threads, points: &points, ceilings: &ceilings, pictures })?;
        return Ok(Verdict::Good);
    }
    let mut lines = vec![table(&ceilings, f32_lanes(cpu.machine()))];
    lines.extend(kept.map(|path| format!("kept in {} (--fresh measures again)", path.display())));
    lines.extend(point_lines(&format!("{input}, {}", T::NAME), &points, ["DRAM roof", "L1 roof"]));
    lines.push(format!("drawn to {}", pictures.join(" and ")));
    output::line(&lines.join("\n"))?;
    Ok(Verdict::Good)
}

/// GFLOP/s of multiply-adds and of additions, all threads together.
fn peaks<T: Scalar>(ceilings: &Ceilings) -> [f64; 2] {
    let is_f32 = size_of::<T>() == size_of::<f32>();
    let both = if is_f32 { [ceilings.fma_f32, ceilings.add_f32] } else { [ceilings.fma_f64, ceilings.add_f64] };
    both.map(|rate| rate.all)
}

/// GB/s of the nearest level and of the memory, all threads together.
fn ends(ceilings: &Ceilings) -> [f64; 2] {
    [ceilings.levels.first(), ceilings.levels.last()].map(|level| level.map_or(0.0, |l| l.read.all))
}

/// SpMM, SDDMM and FusedMM on `pattern`, which took `times`.
fn of_matrix<T: Scalar>(pattern: &Pattern, n: usize, times: [Times; 3]) -> Vec<Operation> {
    let [spmm, sddmm, fused] = times;
    let operation = |label, work, times| Operation { label, format: None, work, times };
    vec![
        operation("SpMM", Work::spmm::<T>(pattern, n), spmm),
        operation("SDDMM", Work::sddmm::<T>(pattern, n), sddmm),
        operation("FusedMM", Work::fusedmm::<T>(pattern, n), fused),
    ]
}

/// TEW, TS, TTV and TTM on coordinates, in `mode` and with `rank` columns, which took `times`.
fn of_tensor<T: Scalar>(counts: &TensorCounts, mode: usize, rank: usize, times: [Times; 4]) -> Vec<Operation> {
    let operations = [("TEW", TensorOp::Tew), ("TS", TensorOp::Ts), ("TTV", TensorOp::Ttv), ("TTM", TensorOp::Ttm)];
    let operation =
        |((label, op), times)| Operation { label, format: Some("coo"), work: counts.work::<T>(op, mode, rank), times };
    operations.into_iter().zip(times).map(operation).collect()
}

/// The operations under roofs of `fma` GFLOP/s and of the GB/s of the nearest and the farthest level.
fn points(operations: Vec<Operation>, fma: f64, near: f64, far: f64) -> Vec<Point> {
    let point = |Operation { label, format, work, times }: Operation| Point {
        label: label.to_owned(),
        format: format.map(str::to_owned),
        intensity: work.intensity(),
        gflops: work.flops / times.min / 1e9,
        dram_roof: fma.min(work.intensity() * far),
        roof: fma.min(work.intensity() * near),
    };
    operations.into_iter().map(point).collect()
}

/// The points as a table under `title`, with these names of the roofs.
fn point_lines(title: &str, points: &[Point], [far, near]: [&str; 2]) -> Vec<String> {
    let head = format!("\n{title}\n{:<20}{:>12}{:>10}{far:>12}{near:>12}", "", "FLOP/byte", "GFLOP/s");
    let line = |p: &Point| {
        let label = p.format.as_ref().map_or(p.label.clone(), |format| format!("{} ({format})", p.label));
        format!("{label:<20}{:>12.3}{:>10.1}{:>12.1}{:>12.1}", p.intensity, p.gflops, p.dram_roof, p.roof)
    };
    std::iter::once(head).chain(points.iter().map(line)).collect()
}

enum Loaded<T> {
    Matrix(String, Csr<T>),
    Tensor(String, CooTensor<T>),
}

/// What was run.
struct Operation {
    label: &'static str,
    /// Storage of a tensor.
    format: Option<&'static str>,
    /// What it does by the model.
    work: Work,
    times: Times,
}

/// The last part of a path.
fn file_name(path: &std::path::Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Args {
    fn load<T: Scalar>(&self, cpu: &Cpu) -> Result<Loaded<T>> {
        let random = RandomSpec { rows: 4096, cols: 4096, sparsity: 0.7 };
        cpu.install(|| match &self.input {
            Input { matrix: Some(path), .. } => {
                let progress = Progress::of(path);
                let update = |done, total| progress.update(done, total);
                let a = read_matrix(path, ReadOptions::default().progress(&update))?.into_csr()?;
                Ok(Loaded::Matrix(file_name(path), a))
            }
            Input { tensor: Some(path), .. } => {
                Ok(Loaded::Tensor(file_name(path), tensor::read_file(path, false, false)?))
            }
            Input { generate: Some(spec), .. } => Ok(Loaded::Tensor("generated".to_owned(), spec.generate(self.seed)?)),
            Input { random: spec, .. } => {
                let RandomSpec { rows, cols, sparsity } = spec.unwrap_or(random);
                let a = generate::random_matrix(rows, cols, sparsity, self.seed)?;
                Ok(Loaded::Matrix(format!("random @{sparsity}"), a))
            }
        })
    }

    fn matrix_name<T: Scalar>(&self, name: &str, a: &Csr<T>) -> String {
        format!("{name}, {} x {}, {} nonzeros, N = {}", a.rows(), a.cols(), a.nnz(), self.n)
    }

    fn tensor_name<T: Scalar>(&self, name: &str, x: &CooTensor<T>) -> String {
        let dims: Vec<_> = x.dims().iter().map(usize::to_string).collect();
        format!("{name}, {}, {} nonzeros, R = {}", dims.join(" x "), x.nnz(), self.rank)
    }

    fn matrix_operations<T: Scalar>(&self, cpu: &Cpu, a: &Csr<T>) -> Result<Vec<Operation>> {
        let dense = |rows, which| cpu.install(|| generate::uniform_dense::<T>(rows, self.n, self.seed + which));
        let prepare = |op| cpu.prepare(a, &PlanOptions::new(op, self.n).reuse(REUSE));
        let (c, b, d) = (dense(a.rows(), 1)?, dense(a.cols(), 2)?, dense(a.cols(), 3)?);
        let mut rows = Mat::zeros(a.rows(), self.n)?;
        let mut values = vec![T::ZERO; a.nnz()];
        let pattern = a.pattern();

        let prepared = prepare(Op::Spmm)?;
        let spmm = Times::measure(self.repeat, || cpu.spmm(T::ONE, &prepared, b.as_ref(), T::ZERO, rows.as_mut()))?;
        let prepared = prepare(Op::Sddmm)?;
        let sddmm = Times::measure(self.repeat, || cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut values))?;
        let prepared = prepare(Op::FusedMm)?;
        let fused = Times::measure(self.repeat, || {
            cpu.fusedmm(&prepared, edge::Identity, c.as_ref(), b.as_ref(), d.as_ref(), rows.as_mut())
        })?;
        Ok(of_matrix::<T>(pattern, self.n, [spmm, sddmm, fused]))
    }

    /// The mode of the tensor operations, after it and the rank have been checked.
    fn mode_of<T: Scalar>(&self, x: &CooTensor<T>) -> Result<usize> {
        let (order, mode) = (x.order(), self.mode.unwrap_or(x.order() - 1));
        if self.rank == 0 {
            return Err(Error::Argument { name: "rank", detail: "0 columns; at least 1".to_owned() });
        }
        if mode >= order {
            let detail = format!("{mode} is not a mode of a tensor of order {order}");
            return Err(Error::Argument { name: "mode", detail });
        }
        Ok(mode)
    }

    fn tensor_operations<T: Scalar>(&self, cpu: &Cpu, x: &CooTensor<T>) -> Result<Vec<Operation>> {
        let (order, mode) = (x.order(), self.mode_of(x)?);
        let counts = cpu.install(|| TensorCounts::of(x))?;
        let u = cpu.install(|| generate::uniform_dense::<T>(x.dims()[mode], self.rank, self.seed + 1))?;
        let v: Vec<T> = generate::uniform_values(x.dims()[mode], self.seed + 2);
        let fibers = cpu.install(|| FiberCoo::new(x.clone(), mode))?;
        let mut values = vec![T::ZERO; x.nnz()];
        let mut y = vec![T::ZERO; fibers.num_fibers()];
        let mut rows = Mat::zeros(fibers.num_fibers(), self.rank)?;

        let tew = Times::measure(self.repeat, || cpu.tew_values(Arithmetic::Add, x.values(), x.values(), &mut values))?;
        let ts =
            Times::measure(self.repeat, || cpu.ts_values(Arithmetic::Mul, x.values(), T::from_f64(1.5), &mut values))?;
        let ttv = Times::measure(self.repeat, || cpu.ttv_into(&fibers, &v, &mut y))?;
        let ttm = Times::measure(self.repeat, || cpu.ttm_into(&fibers, u.as_ref(), Default::default(), rows.as_mut()))?;
        let mut operations = of_tensor::<T>(&counts, mode, self.rank, [tew, ts, ttv, ttm]);
        if order > 1 {
            let factor =
                |(m, &rows): (usize, &usize)| generate::uniform_dense::<T>(rows, self.rank, self.seed + m as u64);
            let factors = cpu.install(|| x.dims().iter().enumerate().map(factor).collect::<Result<Vec<_>>>())?;
            let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
            let options = TensorOptions::new(self.rank).format(format_of(self.format));
            let prepared = cpu.prepare_tensor(x, &options)?;
            let mut out = Mat::zeros(x.dims()[mode], self.rank)?;
            let times = Times::measure(self.repeat, || cpu.mttkrp(&prepared, &views, mode, out.as_mut()))?;
            let format = prepared.plan().format();
            let work = match format {
                MttkrpFormat::HiCoo => {
                    let blocks = cpu.install(|| HiCoo::new(x, DEFAULT_BLOCK_BITS))?.pattern().num_blocks();
                    counts.mttkrp_hicoo::<T>(blocks, 1 << DEFAULT_BLOCK_BITS, self.rank)
                }
                _ => Work::mttkrp::<T>(order, x.nnz(), &cpu.install(|| prepared.counts(mode)), self.rank),
            };
            operations.push(Operation { label: "MTTKRP", format: Some(format.name()), work, times });
        }
        Ok(operations)
    }
}
