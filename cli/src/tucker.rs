//! `sparsimd tucker`.

use std::time::Duration;

use sparsimd::decomp::{TuckerInit, TuckerIteration, TuckerOptions, TuckerState};
use sparsimd::{CooTensor, Cpu, Error, MatRef, Result};

use super::Verdict;
use super::decomposition::{Common, Report, Watch};
use super::device::{DeviceScalar, Place, Ran, TensorDevice};
use super::numa::Numa;
use super::timing::Dtype;

/// Arguments of `tucker`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Columns of every mode's factor, or one number for all modes
    #[arg(long, value_name = "R[,R,...]", value_delimiter = ',', required = true)]
    rank: Vec<usize>,
    /// Begin from random factors of this seed [default: from singular vectors]
    #[arg(long, value_name = "S", conflicts_with = "init")]
    seed: Option<u64>,
    #[command(flatten)]
    place: Place,
}

impl Args {
    /// The operand as the user named it.
    pub fn operand(&self) -> String {
        self.common.operand()
    }
}

/// Decomposes the tensor and writes the result.
pub fn run(args: &Args) -> Result<Verdict> {
    let (cpu, numa) = args.common.cpu()?;
    match args.common.dtype {
        Dtype::F32 => decompose::<f32>(args, &cpu, numa),
        Dtype::F64 => decompose::<f64>(args, &cpu, numa),
    }
}

fn decompose<T: DeviceScalar>(args: &Args, cpu: &Cpu, numa: Numa) -> Result<Verdict> {
    let common = &args.common;
    if common.nonneg {
        let detail = "tucker's factors are orthonormal, which non-negative ones are not; cp has a non-negative variant";
        return Err(Error::Argument { name: "nonneg", detail: detail.to_owned() });
    }
    let x: CooTensor<T> = common.load(cpu)?;
    let ranks = if let [rank] = args.rank[..] { vec![rank; x.order()] } else { args.rank.clone() };
    let checksum = cpu.install(|| x.checksum());
    let init = match (common.resumed(), common.given(x.order())?, args.seed) {
        (Some(path), ..) => TuckerInit::Resume(TuckerState::load_of(path, checksum)?),
        (None, Some(factors), _) => TuckerInit::Given(factors),
        (None, None, Some(_)) => TuckerInit::Random,
        (None, None, None) => TuckerInit::Svd,
    };
    let mut options = TuckerOptions::new(ranks);
    (options.iterations, options.tolerance, options.seed, options.init) =
        (common.iters, common.tol, args.seed.unwrap_or(0), init);

    let mut device = TensorDevice::open(&args.place, cpu)?;
    let watch = Watch::start(common.iters, true)?;
    let mut unsaved = Ok(());
    let observe = |state: &TuckerState, iteration: &TuckerIteration| {
        watch.show(iteration.number, iteration.fit, iteration.time);
        unsaved = common.keep(iteration.number, &watch, |path| state.save_of(path, checksum));
        watch.flow(unsaved.is_err())
    };
    let result = match &mut device {
        Some(device) => device.tucker(cpu, &x, &options, observe),
        None => cpu.tucker(&x, &options, observe),
    };
    let seconds = watch.finish();
    let result = result?;
    let cols = options.ranks[1..].iter().product();
    common.write(
        &result.factors,
        ("core", &options.ranks[..], MatRef::new(&result.core, options.ranks[0], cols, cols)?),
    )?;
    unsaved?;
    let total = |part: fn(&TuckerIteration) -> Duration| result.iterations.iter().map(|i| part(i).as_secs_f64()).sum();
    common.report(&Report {
        fit: result.fit,
        iterations: result.fits.len(),
        seconds,
        iterations_s: total(|i| i.time),
        mttkrp_s: None,
        objective: None,
        violation: None,
        ttm_s: Some(total(|i| i.ttm)),
        numa,
        interrupted: watch.interrupted(),
        ran: device.as_ref().map_or_else(Ran::on_cpu, TensorDevice::ran),
    })
}
