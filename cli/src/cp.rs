//! `sparsimd cp`.

use std::path::Path;

use clap::ValueEnum;
use sparsimd::decomp::{CpInit, CpIteration, CpOptions, CpState};
use sparsimd::ops::StreamedTensor;
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Cpu, Error, MatRef, Result, Scalar};

use super::Verdict;
use super::decomposition::{Common, Report, Watch};
use super::device::{DeviceName, DeviceScalar, Place, Ran, TensorDevice};
use super::mttkrp::format_of;
use super::numa::Numa;
use super::tensor::{TensorFormat, Trees};
use super::timing::Dtype;

/// How the factors are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// One factor after the other, by least squares.
    Als,
    /// All factors at once, by a quasi-Newton method; takes more iterations and a smaller --tol, as 1e-8.
    Opt,
    /// Of counts, by Poisson regression; ends when the optimality conditions are violated by less than --tol.
    Apr,
}

/// Arguments of `cp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// How the factors are found
    #[arg(long, value_enum, default_value_t = Method::Als)]
    method: Method,
    /// Number of components
    #[arg(long, value_name = "R")]
    pub rank: usize,
    /// Begin from random factors of this seed
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "init")]
    seed: u64,
    /// Added to the diagonal of every least squares system
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    ridge: f64,
    /// Storage of the tensor
    #[arg(long, value_enum, default_value_t = TensorFormat::Auto)]
    format: TensorFormat,
    #[command(flatten)]
    trees: Trees,
    /// MiB of memory for a .tnsb file that is larger: it is read once for each mode and iteration (als only)
    #[arg(long, value_name = "MIB")]
    memory: Option<usize>,
    #[command(flatten)]
    place: Place,
    /// Run on the ranks that an MPI launcher starts, each with a cell of a grid over the modes (a build with the feature mpi)
    #[arg(long, conflicts_with_all = ["format", "device", "numa", "sum_duplicates", "memory", "partition", "limits"])]
    pub mpi: bool,
}

/// Where the nonzeros are.
enum Operand<T: Scalar> {
    Loaded(CooTensor<T>),
    Streamed(Box<StreamedTensor<T>>),
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.common.operand()
    }
}

/// Decomposes the tensor and writes the result.
pub fn run(args: &Args) -> Result<Verdict> {
    if args.mpi {
        if args.method != Method::Als {
            let detail = "the methods opt and apr run on one machine".to_owned();
            return Err(Error::Argument { name: "mpi", detail });
        }
        return args.run_on_ranks();
    }
    let (cpu, numa) = args.common.cpu()?;
    match args.common.dtype {
        Dtype::F32 => decompose::<f32>(args, &cpu, numa),
        Dtype::F64 => decompose::<f64>(args, &cpu, numa),
    }
}

/// What to begin from, for a tensor of `order` modes; `resume` reads the checkpoint to go on from.
pub fn init<T: Scalar>(args: &Args, order: usize, resume: impl Fn(&Path) -> Result<CpState<T>>) -> Result<CpInit<T>> {
    if let Some(path) = args.common.resumed() {
        return Ok(CpInit::Resume(resume(path)?));
    }
    Ok(args.common.given(order)?.map_or(CpInit::Seed(args.seed), CpInit::Factors))
}

/// How to decompose.
pub fn options<T: Scalar>(args: &Args, init: CpInit<T>) -> CpOptions<T> {
    let (common, rank) = (&args.common, args.rank);
    let (iterations, tolerance, nonnegative) = (common.iters, common.tol, common.nonneg);
    CpOptions { rank, iterations, tolerance, ridge: args.ridge, nonnegative, init }
}

fn decompose<T: DeviceScalar>(args: &Args, cpu: &Cpu, numa: Numa) -> Result<Verdict> {
    let common = &args.common;
    if args.memory.is_some() && (args.method != Method::Als || args.place.device != DeviceName::Cpu) {
        let detail = "only als, on the processor, reads the tensor in passes";
        return Err(Error::Argument { name: "memory", detail: detail.to_owned() });
    }
    if args.memory.is_some() && args.format != TensorFormat::Auto {
        let detail = "a tensor that is read in passes is used as coordinates, as they are in the file".to_owned();
        return Err(Error::Argument { name: "format", detail });
    }
    let operand: Operand<T> = match args.memory {
        None => Operand::Loaded(common.load(cpu)?),
        Some(mib) => Operand::Streamed(Box::new(common.stream(cpu, args.rank, mib)?)),
    };
    let (order, checksum) = match &operand {
        Operand::Loaded(x) => (x.order(), cpu.install(|| x.checksum())),
        Operand::Streamed(x) => (x.dims().len(), x.checksum()),
    };
    let options = options(args, init(args, order, |path| CpState::load_of(path, checksum))?);

    if args.method != Method::Als && args.place.device != DeviceName::Cpu {
        let detail = "the methods opt and apr run on the processor alone";
        return Err(Error::Argument { name: "device", detail: detail.to_owned() });
    }
    if let Some(name) =
        args.trees.given().filter(|_| args.method == Method::Apr || args.place.device != DeviceName::Cpu)
    {
        let detail = "trees are made for the methods als and opt on the processor".to_owned();
        return Err(Error::Argument { name, detail });
    }
    let mut device = TensorDevice::open(&args.place, cpu)?;
    let watch = Watch::start(common.iters, true)?;
    let (mut iterations_s, mut mttkrp_s) = (0.0, 0.0);
    let (mut objective, mut violation) = (None, None);
    let mut unsaved = Ok(());
    let observe = |state: &CpState<T>, iteration: &CpIteration| {
        iterations_s += iteration.time.as_secs_f64();
        mttkrp_s += iteration.mttkrp.as_secs_f64();
        (objective, violation) = (Some(iteration.objective), iteration.violation);
        watch.show(iteration.number, iteration.fit, iteration.time);
        unsaved = common.keep(iteration.number, &watch, |path| state.save_of(path, checksum));
        watch.flow(unsaved.is_err())
    };
    let format = format_of(args.format);
    let result = match (&operand, &mut device) {
        (Operand::Streamed(x), _) => cpu.cp_als_streamed(x, &options, observe),
        (Operand::Loaded(x), Some(device)) => device.cp_als(cpu, x, format, &options, observe),
        (Operand::Loaded(x), None) => {
            let prepare = |format| {
                let wanted = TensorOptions::new(args.rank).format(format);
                cpu.prepare_tensor(x, &args.trees.of(args.format, wanted)?)
            };
            match args.method {
                Method::Als => cpu.cp_als(&prepare(format)?, &options, observe),
                Method::Opt => cpu.cp_opt(&prepare(format.or(Some(MttkrpFormat::Joint)))?, &options, observe),
                Method::Apr => cpu.cp_apr(x, &options, observe),
            }
        }
    };
    let seconds = watch.finish();
    let result = result?;
    let lambda = MatRef::new(&result.lambda, result.lambda.len(), 1, 1)?;
    common.write(&result.factors, ("lambda", &[result.lambda.len()][..], lambda))?;
    unsaved?;
    common.report(&Report {
        fit: result.fit(),
        iterations: result.fits.len(),
        seconds,
        iterations_s,
        mttkrp_s: Some(mttkrp_s),
        ttm_s: None,
        objective: objective.filter(|_| args.method != Method::Als),
        violation,
        numa,
        interrupted: watch.interrupted(),
        ran: device.as_ref().map_or_else(Ran::on_cpu, TensorDevice::ran),
    })
}
