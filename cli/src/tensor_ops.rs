//! `sparsimd ttm`, `ttv`, `tew` and `ts`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use sparsimd::formats::{Csf, DEFAULT_BLOCK_BITS, FiberCoo, Fibers, HiCoo, SemiCoo};
use sparsimd::generate::{uniform_dense, uniform_values};
use sparsimd::io::write_tensor;
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::{CooTensor, Cpu, Error, Mat, Result, Scalar, Stored, bf16, f16, reference};

use super::Verdict;
use super::device::{DeviceName, DeviceScalar, Ran, TensorDevice};
use super::factors::Folders;
use super::matrix::widened;
use super::numa::Numa;
use super::reorder::Reordered;
use super::tensor::{Algorithm, Common, Report, TensorFormat};
use super::timing::{Check, Dtype, Speed, StoredDtype, Times, timed};

/// Arguments of `ttm` and `ttv`.
#[derive(Debug, clap::Args)]
pub struct ProductArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    folders: Folders,
}

impl ProductArgs {
    /// Settles what arguments mean that depend on files.
    pub fn settle(&mut self) -> Result<()> {
        self.common.rank = self.folders.settle()?.unwrap_or(self.common.rank);
        Ok(())
    }

    /// The tensor as the user named it.
    pub fn operand(&self) -> Option<String> {
        self.common.source.operand()
    }

    /// Writes the product `y` of `x` in `mode`, if that is asked for.
    fn write_product<T: Scalar>(
        &self,
        cpu: &Cpu,
        x: &CooTensor<T>,
        mode: usize,
        prepared: &Prepared<T>,
        y: Mat<T>,
    ) -> Result<()> {
        let Some(path) = self.folders.sparse(mode) else { return Ok(()) };
        let mut dims = x.dims().to_vec();
        dims[mode] = y.cols();
        let product = SemiCoo::new(dims, vec![mode], prepared.places()?, y)?.to_coo();
        cpu.install(|| write_tensor(&path, &product))
    }
}

/// Arguments of `ttm`.
#[derive(Debug, clap::Args)]
pub struct TtmArgs {
    #[command(flatten)]
    pub product: ProductArgs,
    /// MiB of memory for a .tnsb file that is larger, whose nonzeros are sorted with the mode last: the file is read once, and --out is
    /// written as the product is made. --verify needs both in memory besides
    #[arg(long, value_name = "MIB", requires = "tensor")]
    passes: Option<usize>,
}

/// Arguments of `tew` and `ts`.
#[derive(Debug, clap::Args)]
pub struct ElementwiseArgs {
    #[command(flatten)]
    common: Common,
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::Add)]
    op: Op,
}

/// Arguments of `tew`.
#[derive(Debug, clap::Args)]
pub struct TewArgs {
    #[command(flatten)]
    elementwise: ElementwiseArgs,
    /// Second tensor, of any pattern; a smaller one is repeated along the modes in which it has length 1. Without it, one of the
    /// same pattern is made
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
}

/// An elementary operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// x + z.
    Add,
    /// x - z.
    Sub,
    /// x z.
    Mul,
    /// x / z.
    Div,
}

impl Op {
    /// As the library has it.
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Add => Arithmetic::Add,
            Self::Sub => Arithmetic::Sub,
            Self::Mul => Arithmetic::Mul,
            Self::Div => Arithmetic::Div,
        }
    }
}

/// `ttm`.
pub fn ttm(args: &TtmArgs) -> Result<Verdict> {
    let (passes, args) = (args.passes, &args.product);
    if let Some(mib) = passes {
        return super::ttm_streamed::run(&args.common, &args.folders, mib);
    }
    match args.common.dtype {
        StoredDtype::F32 => product::<f32>(args, true),
        StoredDtype::F64 => product::<f64>(args, true),
        StoredDtype::Bf16 => narrow_ttm::<bf16>(args),
        StoredDtype::F16 => narrow_ttm::<f16>(args),
    }
}

/// `ttv`.
pub fn ttv(args: &ProductArgs) -> Result<Verdict> {
    match args.common.wide_dtype("ttv")? {
        Dtype::F32 => product::<f32>(args, false),
        Dtype::F64 => product::<f64>(args, false),
    }
}

/// `tew`.
pub fn tew(args: &TewArgs) -> Result<Verdict> {
    let (with, args) = (&args.with, &args.elementwise);
    match (args.common.wide_dtype("tew")?, with) {
        (Dtype::F32, None) => elementwise::<f32>(args, true),
        (Dtype::F64, None) => elementwise::<f64>(args, true),
        (Dtype::F32, Some(path)) => two_tensors::<f32>(args, path),
        (Dtype::F64, Some(path)) => two_tensors::<f64>(args, path),
    }
}

/// `ts`.
pub fn ts(args: &ElementwiseArgs) -> Result<Verdict> {
    match args.common.wide_dtype("ts")? {
        Dtype::F32 => elementwise::<f32>(args, false),
        Dtype::F64 => elementwise::<f64>(args, false),
    }
}

/// A tensor prepared for products in one mode.
enum Prepared<T> {
    Coo(FiberCoo<T>),
    Csf(Csf<T>),
    HiCoo(HiCoo<T>),
}

impl<T: Scalar> Prepared<T> {
    fn new(common: &Common, op: &str, x: &CooTensor<T>, mode: usize) -> Result<Self> {
        match common.format {
            TensorFormat::Auto | TensorFormat::Coo => FiberCoo::new(x.clone(), mode).map(Self::Coo),
            TensorFormat::CsfAll => {
                let mut mode_order: Vec<usize> = (0..x.order()).filter(|&m| m != mode).collect();
                mode_order.sort_by_key(|&m| x.dims()[m]);
                mode_order.push(mode);
                Csf::from_coo(x, &mode_order).map(Self::Csf)
            }
            TensorFormat::Hicoo => HiCoo::with_free_modes(x, DEFAULT_BLOCK_BITS, &[mode]).map(Self::HiCoo),
            _ => Err(common.unsupported(op)),
        }
    }

    fn fibers(&self) -> Result<Fibers<'_, T>> {
        match self {
            Self::Coo(x) => Ok(x.into()),
            Self::Csf(x) => Fibers::of_csf(x),
            Self::HiCoo(x) => x.fibers(),
        }
    }

    fn index_bytes(&self) -> usize {
        match self {
            Self::Coo(x) => x.index_bytes(),
            Self::Csf(x) => x.pattern().index_bytes(),
            Self::HiCoo(x) => x.index_bytes(),
        }
    }

    fn format(&self) -> &'static str {
        match self {
            Self::Coo(_) => "coo",
            Self::Csf(_) => "csf-all",
            Self::HiCoo(_) => "hicoo",
        }
    }

    /// The coordinates of the fibers, in their order.
    fn places(&self) -> Result<Vec<Vec<u32>>> {
        match self {
            Self::Coo(x) => Ok(x.coords().to_vec()),
            Self::Csf(x) => Ok(FiberCoo::from_csf(x)?.coords().to_vec()),
            Self::HiCoo(x) => {
                let pattern = x.fiber_pattern()?;
                Ok((0..pattern.modes().len()).map(|level| pattern.expand(level)).collect())
            }
        }
    }
}

/// The sums over the modes that a report has.
#[derive(Default)]
pub(super) struct Sweep {
    formats: Vec<String>,
    algs: Vec<String>,
    mode_min_s: Vec<f64>,
    mode_median_s: Vec<f64>,
    runs: usize,
    pub(super) prepare_s: f64,
    pub(super) flops: f64,
    pub(super) bytes: f64,
    pub(super) index_bytes: usize,
    worst: Option<f64>,
    pub(super) device: Option<TensorDevice>,
    /// What became of pages.
    pub(super) numa: Option<Numa>,
    /// What became of the order of indices.
    pub(super) reorder: Option<Reordered>,
    /// What dense operands store, where that is another type.
    pub(super) stored_as: Option<&'static str>,
}

impl Sweep {
    /// Nothing measured yet of a tensor whose preparation took `prepare_s` and whose indices take `index_bytes`.
    pub(super) fn new(prepare_s: f64, index_bytes: usize) -> Self {
        Self { prepare_s, index_bytes, ..Self::default() }
    }

    pub(super) fn add(&mut self, times: Times, format: &str, alg: &str) {
        self.mode_min_s.push(times.min);
        self.mode_median_s.push(times.median);
        self.runs = times.runs;
        self.formats.push(format.to_owned());
        self.algs.push(alg.to_owned());
    }

    pub(super) fn check(&mut self, error: f64) {
        self.worst = Some(self.worst.unwrap_or(0.0).max(error));
    }

    /// Adds the operations and bytes of a mode's MTTKRP.
    pub(super) fn count<D: Stored>(&mut self, dims: &[usize], nnz: usize, rank: usize, mode: usize) {
        let (order, value) = (dims.len(), size_of::<D::Scalar>());
        self.flops += (order * nnz * rank) as f64;
        // Every nonzero with its coordinates, and every factor and the output once.
        let factors: usize = dims.iter().sum::<usize>() - dims[mode];
        self.bytes += (nnz * (value + 4 * order) + rank * (factors * size_of::<D>() + dims[mode] * value)) as f64;
    }

    /// Adds the operations and bytes of a mode's TTM.
    pub(super) fn count_ttm<D: Stored>(&mut self, nnz: usize, dim: usize, fibers: usize, cols: usize) {
        self.flops += 2.0 * nnz as f64 * cols as f64;
        // Every nonzero with its coordinate, every pointer, U and Y once.
        self.bytes += (nnz * (size_of::<D::Scalar>() + 4) + fibers * 8 + (dim + fibers) * cols * size_of::<D>()) as f64;
    }

    pub(super) fn report<T: Scalar>(
        self,
        op: &'static str,
        common: &Common,
        cpu: &Cpu,
        (dims, nnz): (&[usize], usize),
        rank: Option<usize>,
        mode: Vec<usize>,
    ) -> Result<Verdict> {
        let times =
            Times { min: self.mode_min_s.iter().sum(), median: self.mode_median_s.iter().sum(), runs: self.runs };
        let check = self.worst.map_or(Check::NONE, Check::of);
        let mut speed = Speed::new::<T>(cpu, self.prepare_s, times, self.flops, self.bytes);
        if self.device.is_some() {
            speed = speed.without_peak();
        }
        speed = speed.stored_as(self.stored_as.unwrap_or(T::NAME));
        let report = Report {
            op,
            order: dims.len(),
            dims: dims.to_vec(),
            nnz,
            rank,
            mode,
            format: self.formats,
            alg: self.algs,
            index_bytes: self.index_bytes,
            mode_min_s: self.mode_min_s,
            mode_median_s: self.mode_median_s,
            reorder: self.reorder,
            numa: self.numa.filter(|_| self.device.is_none()),
            ran: self.device.as_ref().map_or_else(Ran::on_cpu, TensorDevice::ran),
            speed,
            check,
        };
        report.print(common.json)?;
        Ok(if check.verified == Some(false) { Verdict::Wrong } else { Verdict::Good })
    }
}

/// How the product is cut into tasks.
fn algorithm_of(common: &Common, matrix: bool) -> Result<TtmAlgorithm> {
    match (common.alg, matrix) {
        (Algorithm::Auto, _) => Ok(TtmAlgorithm::Auto),
        (Algorithm::Fiber, _) => Ok(TtmAlgorithm::Fiber),
        (Algorithm::Element, true) => Ok(TtmAlgorithm::Element),
        _ => Err(common.unsupported(if matrix { "ttm" } else { "ttv" })),
    }
}

/// TTM of dense operands that store bf16 or f16.
fn narrow_ttm<D: Stored<Scalar = f32>>(args: &ProductArgs) -> Result<Verdict> {
    let common = &args.common;
    let algorithm = algorithm_of(common, true)?;
    if common.place.device != DeviceName::Cpu {
        return Err(common.no_dtype("ttm on devices"));
    }
    products(args, true, |cpu, _, fibers, u: &Mat<D>, y| {
        Times::measure(common.repeat, || cpu.ttm_into(fibers, u.as_ref(), algorithm, y.as_mut()))
    })
}

/// TTM or, with a vector instead of the matrix, TTV.
fn product<T: DeviceScalar>(args: &ProductArgs, matrix: bool) -> Result<Verdict> {
    let common = &args.common;
    let algorithm = algorithm_of(common, matrix)?;
    products(args, matrix, |cpu, sweep, fibers, u: &Mat<T>, y| {
        let Some(device) = &mut sweep.device else {
            return Times::measure(common.repeat, || match matrix {
                true => cpu.ttm_into(fibers, u.as_ref(), algorithm, y.as_mut()),
                false => cpu.ttv_into(fibers, u.as_ref().data(), y.as_mut().into_data()),
            });
        };
        let (times, upload_s) = match matrix {
            true => device.ttm(common.repeat, algorithm, fibers, u.as_ref(), y.as_mut())?,
            false => device.ttv(common.repeat, fibers, u.as_ref().data(), y.as_mut().into_data())?,
        };
        sweep.prepare_s += upload_s;
        Ok(times)
    })
}

/// The product of the tensor's fibers with U, or with a vector, as `run` computes and times it, in every mode asked for.
fn products<D: Stored>(
    args: &ProductArgs,
    matrix: bool,
    mut run: impl FnMut(&Cpu, &mut Sweep, Fibers<'_, D::Scalar>, &Mat<D>, &mut Mat<D>) -> Result<Times>,
) -> Result<Verdict> {
    let common = &args.common;
    let op = if matrix { "ttm" } else { "ttv" };
    let (algorithm, cols) = (algorithm_of(common, matrix)?, if matrix { common.rank } else { 1 });
    let (cpu, numa) = common.executor.cpu()?;
    let x: CooTensor<D::Scalar> = cpu.install(|| common.source.load())?;
    let modes = common.modes(x.order())?;
    let mut sweep = Sweep { device: TensorDevice::open(&common.place, &cpu)?, numa: Some(numa), ..Sweep::default() };
    for &mode in &modes {
        let (dim, seed) = (x.dims()[mode], common.source.seed ^ mode as u64);
        let (prepared, prepare_s) = timed(|| cpu.install(|| Prepared::new(common, op, &x, mode)))?;
        sweep.prepare_s += prepare_s;
        let fibers = prepared.fibers()?;
        let u: Mat<D> = args.folders.operand(mode, dim, cols, || uniform_dense(dim, cols, seed))?;
        let mut y: Mat<D> = Mat::zeros(fibers.len(), cols)?;
        let times = run(&cpu, &mut sweep, fibers, &u, &mut y)?;
        // Where none is asked for, a device has the one by fibers, and so has TTV.
        let ran = match algorithm {
            TtmAlgorithm::Auto if sweep.device.is_some() || !matrix => TtmAlgorithm::Fiber,
            asked => cpu.ttm_algorithm::<D::Scalar>(fibers.len(), cols, asked),
        };
        sweep.add(times, prepared.format(), ran.name());
        sweep.index_bytes += prepared.index_bytes();
        sweep.count_ttm::<D>(x.nnz(), dim, fibers.len(), cols);
        if common.verify {
            let places = prepared.places()?;
            let expected = cpu.install(|| reference::ttm(&x, mode, u.as_ref(), &places))?;
            sweep.check(expected.deviation(y.as_ref())?.error);
        }
        args.write_product(&cpu, &x, mode, &prepared, widened(y.as_ref())?)?;
    }
    sweep.stored_as = Some(D::DTYPE);
    sweep.report::<D::Scalar>(op, common, &cpu, (x.dims(), x.nnz()), matrix.then_some(common.rank), modes)
}

/// TEW of the tensor and one of any pattern, which are merged.
fn two_tensors<T: DeviceScalar>(args: &ElementwiseArgs, path: &Path) -> Result<Verdict> {
    let common = &args.common;
    let plain = matches!(common.format, TensorFormat::Auto | TensorFormat::Coo);
    if common.alg != Algorithm::Auto || !plain {
        return Err(common.unsupported("tew --with"));
    }
    let (cpu, numa) = common.executor.cpu()?;
    if TensorDevice::open(&common.place, &cpu)?.is_some() {
        return Err(Error::Argument { name: "with", detail: "tensors are merged on the processor alone".to_owned() });
    }
    let x: CooTensor<T> = cpu.install(|| common.source.load())?;
    let z: CooTensor<T> = cpu.install(|| common.source.load_beside(path))?;
    let op = args.op.arithmetic();
    let mut y = cpu.tew(op, &x, &z)?;
    let times = Times::measure(common.repeat, || cpu.tew(op, &x, &z).map(|again| y = again))?;
    let mut sweep = Sweep::new(0.0, x.index_bytes() + z.index_bytes());
    sweep.numa = Some(numa);
    sweep.add(times, "coo", "merge");
    sweep.flops = y.nnz() as f64;
    let bytes = |t: &CooTensor<T>| t.index_bytes() + size_of_val(t.values());
    sweep.bytes = (bytes(&x) + bytes(&z) + bytes(&y)) as f64;
    if common.verify {
        sweep.check(reference::tew(op, &x, &z, &y)?);
    }
    sweep.report::<T>("tew", common, &cpu, (y.dims(), y.nnz()), None, Vec::new())
}

/// TEW of the tensor and another one of the same pattern, or TS.
fn elementwise<T: DeviceScalar>(args: &ElementwiseArgs, two_tensors: bool) -> Result<Verdict> {
    let common = &args.common;
    let name = if two_tensors { "tew" } else { "ts" };
    if common.alg != Algorithm::Auto {
        return Err(common.unsupported(name));
    }
    let op = args.op.arithmetic();
    let (cpu, numa) = common.executor.cpu()?;
    let coo: CooTensor<T> = cpu.install(|| common.source.load())?;
    let start = Instant::now();
    let (values, index_bytes, format) = match common.format {
        TensorFormat::Auto | TensorFormat::Coo => (coo.values().to_vec(), coo.index_bytes(), "coo"),
        TensorFormat::Hicoo => {
            let h = cpu.install(|| HiCoo::new(&coo, DEFAULT_BLOCK_BITS))?;
            (h.values().to_vec(), h.index_bytes(), "hicoo")
        }
        _ => return Err(common.unsupported(name)),
    };
    let mut sweep = Sweep::new(start.elapsed().as_secs_f64(), index_bytes);
    (sweep.device, sweep.numa) = (TensorDevice::open(&common.place, &cpu)?, Some(numa));
    // From 0.5 to 1.5: divisors that are never 0.
    let z: Vec<T> = uniform_values::<T>(values.len(), common.source.seed).into_iter().map(|z| z + T::ONE).collect();
    let s = T::from_f64(1.5);
    let mut y = vec![T::ZERO; values.len()];
    let times = match &mut sweep.device {
        Some(device) => {
            let z = two_tensors.then_some(z.as_slice());
            let (times, upload_s) = device.elementwise(common.repeat, op, &values, z, s, &mut y)?;
            sweep.prepare_s += upload_s;
            times
        }
        None => Times::measure(common.repeat, || match two_tensors {
            true => cpu.tew_values(op, &values, &z, &mut y),
            false => cpu.ts_values(op, &values, s, &mut y),
        })?,
    };
    sweep.add(times, format, "element");
    sweep.flops = values.len() as f64;
    sweep.bytes = ((if two_tensors { 3 } else { 2 }) * values.len() * size_of::<T>()) as f64;
    if common.verify {
        let exact = |p: usize| {
            let (x, z) = (values[p].to_f64(), if two_tensors { z[p] } else { s }.to_f64());
            match op {
                Arithmetic::Add => x + z,
                Arithmetic::Sub => x - z,
                Arithmetic::Mul => x * z,
                Arithmetic::Div => x / z,
            }
        };
        // One rounding each, half an eps of the result; Vulkan allows a quotient 2.5 units in the last place.
        let units = if sweep.device.is_some() && op == Arithmetic::Div { 2.5 } else { 1.0 };
        let bound = |value: f64| units * T::EPSILON.to_f64() * value.abs();
        let error = |p: usize| match (y[p].to_f64() - exact(p)).abs() {
            0.0 => 0.0,
            error => error / bound(exact(p)),
        };
        sweep.check((0..y.len()).map(error).fold(0.0, f64::max));
    }
    sweep.report::<T>(name, common, &cpu, (coo.dims(), coo.nnz()), None, Vec::new())
}
