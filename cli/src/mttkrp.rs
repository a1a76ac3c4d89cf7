//! `sparsimd mttkrp`.

use std::time::Instant;

use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Cpu, Error, Mat, MatMut, MatRef, Result, Stored, bf16, f16, reference};

use super::device::{DeviceName, DeviceScalar, TensorDevice};
use super::executor::EffortName;
use super::factors::Folders;
use super::matrix::REUSE;
use super::reorder::{Order, OrderedTensor};
use super::tensor::{Algorithm, Common, TensorFormat, Trees};
use super::tensor_ops::Sweep;
use super::timing::{StoredDtype, Times, timed};
use super::{Verdict, output};

/// Arguments of `mttkrp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub folders: Folders,
    /// MiB that the prepared tensor may take [default: no limit]
    #[arg(long, value_name = "MIB")]
    pub memory: Option<usize>,
    /// MiB of memory for a .tnsb file that is larger: it is read once for each mode. --verify needs the whole of it in memory besides
    #[arg(long, value_name = "MIB", requires = "tensor")]
    pub passes: Option<usize>,
    #[command(flatten)]
    pub trees: Trees,
    /// On a device, on coordinates: sums by atomic additions, without lists; the last bits differ from run to run
    #[arg(long)]
    pub atomics: bool,
    /// New numbers for the indices of each mode; factors and results stay in the given order
    #[arg(long, value_enum, default_value_t = Order::None)]
    pub reorder: Order,
    /// Whether the format is estimated or some are run, for at most a tenth of the time of the runs that are announced
    #[arg(long, value_enum, default_value_t = EffortName::Estimate)]
    pub effort: EffortName,
    /// Say on standard error why the plan is what it is
    #[arg(long)]
    pub explain: bool,
}

impl Args {
    /// Settles what arguments mean that depend on files.
    pub fn settle(&mut self) -> Result<()> {
        self.common.rank = self.folders.settle()?.unwrap_or(self.common.rank);
        Ok(())
    }

    /// The tensor as the user named it.
    pub fn operand(&self) -> Option<String> {
        self.common.source.operand()
    }
}

/// Runs, verifies and times MTTKRP in the modes asked for.
pub fn run(args: &Args) -> Result<Verdict> {
    match args.common.dtype {
        StoredDtype::F32 => product::<f32>(args),
        StoredDtype::F64 => product::<f64>(args),
        StoredDtype::Bf16 => narrow::<bf16>(args),
        StoredDtype::F16 => narrow::<f16>(args),
    }
}

/// The library's name of a format; none for `auto`.
pub fn format_of(format: TensorFormat) -> Option<MttkrpFormat> {
    Some(match format {
        TensorFormat::Auto => return None,
        TensorFormat::Coo => MttkrpFormat::Coo,
        TensorFormat::CsfAll => MttkrpFormat::CsfAll,
        TensorFormat::CsfOne => MttkrpFormat::CsfOne,
        TensorFormat::CsfTwo => MttkrpFormat::CsfTwo,
        TensorFormat::Bcsf => MttkrpFormat::Bcsf,
        TensorFormat::Mmcsf => MttkrpFormat::MmCsf,
        TensorFormat::Hicoo => MttkrpFormat::HiCoo,
        TensorFormat::Alto => MttkrpFormat::Alto,
        TensorFormat::Tiled => MttkrpFormat::Tiled,
        TensorFormat::Tree => MttkrpFormat::Tree,
        TensorFormat::Joint => MttkrpFormat::Joint,
    })
}

/// The library's name of an algorithm; none for `auto`.
fn algorithm_of(alg: Algorithm) -> Option<MttkrpAlgorithm> {
    Some(match alg {
        Algorithm::Auto => return None,
        Algorithm::Element => MttkrpAlgorithm::Element,
        Algorithm::Row => MttkrpAlgorithm::Row,
        Algorithm::Slice => MttkrpAlgorithm::Slice,
        Algorithm::Fiber => MttkrpAlgorithm::Fiber,
        Algorithm::Nonzero => MttkrpAlgorithm::Nonzero,
    })
}

/// The format that has the choice of `algorithm`, where none is asked for.
fn format_for(algorithm: MttkrpAlgorithm) -> MttkrpFormat {
    match algorithm {
        MttkrpAlgorithm::Slice | MttkrpAlgorithm::Fiber | MttkrpAlgorithm::Nonzero => MttkrpFormat::CsfAll,
        _ => MttkrpFormat::Coo,
    }
}

fn product<T: DeviceScalar>(args: &Args) -> Result<Verdict> {
    if let Some(mib) = args.passes {
        return super::mttkrp_streamed::run::<T>(args, mib);
    }
    let common = &args.common;
    let (cpu, numa) = common.executor.cpu()?;
    let x: CooTensor<T> = cpu.install(|| common.source.load())?;
    let modes = common.modes(x.order())?;
    let factors: Vec<Mat<T>> = args.operands(x.dims())?;
    let mut sweep = match TensorDevice::open(&common.place, &cpu)? {
        None if args.atomics => {
            let detail = "the processor needs none: --device gpu".to_owned();
            return Err(Error::Argument { name: "atomics", detail });
        }
        None => on_cpu(args, &cpu, &x, &factors, &modes)?,
        Some(device) => on_device(args, &cpu, device, &x, &views(&factors), &modes)?,
    };
    sweep.numa = Some(numa);
    sweep.report::<T>("mttkrp", common, &cpu, (x.dims(), x.nnz()), Some(common.rank), modes)
}

fn on_cpu<T: DeviceScalar>(
    args: &Args,
    cpu: &Cpu,
    x: &CooTensor<T>,
    given: &[Mat<T>],
    modes: &[usize],
) -> Result<Sweep> {
    let common = &args.common;
    let (ordered, order_s) = timed(|| cpu.install(|| OrderedTensor::new(x, args.reorder)))?;
    let (mut factors, mut permute_s) = timed(|| ordered.factors(given))?;
    let (x, factors) = (ordered.tensor(), &mut factors[..]);
    let (prepared, mut sweep) = prepare::<T>(args, cpu, x, modes)?;
    let mut products: Vec<Mat<T>> = x.dims().iter().map(|&dim| Mat::zeros(dim, common.rank)).collect::<Result<_>>()?;
    let at_once = prepared.plan().format() == MttkrpFormat::Joint && modes.len() == x.order();
    let times = if at_once {
        times_at_once(cpu, &prepared, factors, &mut products, common.repeat)?
    } else if modes.len() == x.order() {
        sweep_times(cpu, &prepared, factors, &mut products, common.repeat)?
    } else {
        let views = views(factors);
        let run = |&mode: &usize| {
            let out = &mut products[mode];
            Times::measure(common.repeat, || cpu.mttkrp(&prepared, &views, mode, out.as_mut()))
        };
        modes.iter().map(run).collect::<Result<_>>()?
    };
    for (&mode, times) in modes.iter().zip(times) {
        let algorithm = if at_once { "joint" } else { algorithm_name(prepared.algorithm(mode)) };
        sweep.add(times, prepared.plan().format().name(), algorithm);
        let product = std::mem::replace(&mut products[mode], Mat::zeros(0, 0)?);
        let (product, seconds) = timed(|| ordered.in_given_rows(mode, product))?;
        permute_s += seconds;
        account(&mut sweep, args, cpu, ordered.given(), &views(given), mode, product.as_ref())?;
    }
    sweep.reorder = ordered.report(args.reorder, order_s, permute_s);
    Ok(sweep)
}

/// The tensor prepared for factors of `D` as the arguments say, and nothing measured yet.
fn prepare<D: Stored>(
    args: &Args,
    cpu: &Cpu,
    x: &CooTensor<D::Scalar>,
    modes: &[usize],
) -> Result<(MttkrpTensor<D::Scalar>, Sweep)> {
    let common = &args.common;
    let algorithm = algorithm_of(common.alg);
    let options = TensorOptions::new(common.rank)
        .factors::<D>()
        .memory(args.memory.map(|mib| mib << 20))
        .format(format_of(common.format).or(algorithm.map(format_for)))
        .algorithm(algorithm)
        .effort(args.effort.effort())
        .reuse(common.repeat.unwrap_or(REUSE));
    let options = args.trees.of(common.format, options)?;
    let (prepared, prepare_s) = timed(|| cpu.prepare_tensor(x, &options))?;
    if args.explain {
        prepared.plan().explain().lines().for_each(output::note);
    }
    let sweep = Sweep::new(prepare_s, prepared.index_bytes());
    check_algorithm(args, modes, |mode| prepared.algorithm(mode))?;
    Ok((prepared, sweep))
}

/// Factors that store bf16 or f16, mode by mode.
fn narrow<D: Stored<Scalar = f32>>(args: &Args) -> Result<Verdict> {
    let common = &args.common;
    if args.passes.is_some() || args.reorder != Order::None || common.place.device != DeviceName::Cpu {
        return Err(common.no_dtype("mttkrp with --passes, --reorder or --device"));
    }
    let (cpu, numa) = common.executor.cpu()?;
    let x: CooTensor<f32> = cpu.install(|| common.source.load())?;
    let modes = common.modes(x.order())?;
    let factors: Vec<Mat<D>> = args.operands(x.dims())?;
    let views: Vec<MatRef<'_, D>> = factors.iter().map(Mat::as_ref).collect();
    let (prepared, mut sweep) = prepare::<D>(args, &cpu, &x, &modes)?;
    for &mode in &modes {
        let mut out = Mat::zeros(x.dims()[mode], common.rank)?;
        let times = Times::measure(common.repeat, || cpu.mttkrp(&prepared, &views, mode, out.as_mut()))?;
        sweep.add(times, prepared.plan().format().name(), algorithm_name(prepared.algorithm(mode)));
        account(&mut sweep, args, &cpu, &x, &views, mode, out.as_ref())?;
    }
    (sweep.numa, sweep.stored_as) = (Some(numa), Some(D::DTYPE));
    sweep.report::<f32>("mttkrp", common, &cpu, (x.dims(), x.nnz()), Some(common.rank), modes)
}

fn views<T: DeviceScalar>(factors: &[Mat<T>]) -> Vec<MatRef<'_, T>> {
    factors.iter().map(Mat::as_ref).collect()
}

/// The times of every mode in whole sweeps, as a decomposition runs them: modes evict each other's operands, and may share
/// partial products, whose time the first mode that needs them has.
fn sweep_times<T: DeviceScalar>(
    cpu: &Cpu,
    prepared: &MttkrpTensor<T>,
    factors: &mut [Mat<T>],
    products: &mut [Mat<T>],
    repeat: Option<usize>,
) -> Result<Vec<Times>> {
    let mut seconds = vec![Vec::new(); factors.len()];
    let whole = Times::measure(repeat, || {
        let mut before = Instant::now();
        cpu.mttkrp_sweep(prepared, factors, products, |mode, _, _| {
            seconds[mode].push(before.elapsed().as_secs_f64());
            before = Instant::now();
            Ok(())
        })
    })?;
    let of_mode = |seconds: &mut Vec<f64>| {
        // The runs before the measured ones were to warm up.
        Times::of(seconds.split_off(seconds.len() - whole.runs))
    };
    Ok(seconds.iter_mut().map(of_mode).collect())
}

/// The times of all modes at once, each mode's an equal part of the whole.
fn times_at_once<T: DeviceScalar>(
    cpu: &Cpu,
    prepared: &MttkrpTensor<T>,
    factors: &[Mat<T>],
    products: &mut [Mat<T>],
    repeat: Option<usize>,
) -> Result<Vec<Times>> {
    let (order, views) = (products.len(), views(factors));
    let mut outs: Vec<MatMut<'_, T>> = products.iter_mut().map(Mat::as_mut).collect();
    let whole = Times::measure(repeat, || cpu.mttkrp_all(prepared, &views, &mut outs))?;
    let part = |seconds: f64| seconds / order as f64;
    Ok(vec![Times { min: part(whole.min), median: part(whole.median), runs: whole.runs }; order])
}

fn on_device<T: DeviceScalar>(
    args: &Args,
    cpu: &Cpu,
    mut device: TensorDevice,
    x: &CooTensor<T>,
    factors: &[MatRef<'_, T>],
    modes: &[usize],
) -> Result<Sweep> {
    let common = &args.common;
    let measured = args.effort == EffortName::Measure;
    if args.memory.is_some() || args.explain || measured || args.reorder != Order::None || args.trees.given().is_some()
    {
        let detail =
            "--memory, --explain, --effort, --reorder, --partition and --limits are about plans of the processor"
                .to_owned();
        return Err(Error::Argument { name: "device", detail });
    }
    let format = format_of(common.format);
    if args.atomics && format.is_some_and(|format| format != MttkrpFormat::Coo) {
        let detail = "they are for coordinates alone: --format coo".to_owned();
        return Err(Error::Argument { name: "atomics", detail });
    }
    let algorithm = if args.atomics { Some(MttkrpAlgorithm::Atomic) } else { algorithm_of(common.alg) };
    let (mut tensor, prepare_s) = cpu.install(|| device.prepare(x, common.rank, format, algorithm))?;
    let mut sweep = Sweep::new(prepare_s, tensor.index_bytes());
    check_algorithm(args, modes, |mode| tensor.algorithm(mode))?;
    for &mode in modes {
        let mut out: Mat<T> = Mat::zeros(x.dims()[mode], common.rank)?;
        let (times, upload_s) = device.mttkrp(common.repeat, &mut tensor, factors, mode, out.as_mut())?;
        sweep.prepare_s += upload_s;
        sweep.add(times, tensor.format().name(), algorithm_name(tensor.algorithm(mode)));
        account(&mut sweep, args, cpu, x, factors, mode, out.as_ref())?;
    }
    sweep.device = Some(device);
    Ok(sweep)
}

/// The algorithm of a mode in the output: `"mixed"` for several trees with different ones.
pub fn algorithm_name(algorithm: Option<MttkrpAlgorithm>) -> &'static str {
    algorithm.map_or("mixed", MttkrpAlgorithm::name)
}

/// An error unless every mode is computed by the algorithm asked for.
fn check_algorithm(args: &Args, modes: &[usize], of_mode: impl Fn(usize) -> Option<MttkrpAlgorithm>) -> Result<()> {
    match algorithm_of(args.common.alg) {
        Some(wanted) if modes.iter().any(|&mode| of_mode(mode) != Some(wanted)) => {
            Err(args.common.unsupported("mttkrp"))
        }
        _ => Ok(()),
    }
}

/// Adds the mode's operations and bytes to the sums, and verifies and writes its result if asked to.
fn account<D: Stored>(
    sweep: &mut Sweep,
    args: &Args,
    cpu: &Cpu,
    x: &CooTensor<D::Scalar>,
    factors: &[MatRef<'_, D>],
    mode: usize,
    out: MatRef<'_, D::Scalar>,
) -> Result<()> {
    sweep.count::<D>(x.dims(), x.nnz(), args.common.rank, mode);
    if args.common.verify {
        let expected = cpu.install(|| reference::mttkrp(x, factors, mode))?;
        sweep.check(expected.deviation(out)?.error);
    }
    args.folders.write(mode, out)
}
