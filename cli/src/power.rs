//! `sparsimd power`.

use sparsimd::decomp::{CpIteration, CpState, PowerOptions};
use sparsimd::{CooTensor, Cpu, Error, MatRef, Result, Scalar};

use super::Verdict;
use super::decomposition::{Common, Report, Watch};
use super::device::Ran;
use super::numa::Numa;
use super::timing::Dtype;

/// Arguments of `power`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Most components; --iters and --tol are those of one start: how often theta is multiplied, and the change it ends at
    #[arg(long, value_name = "K")]
    rank: usize,
    /// Random starts for each component, of which the best is taken
    #[arg(long, value_name = "L", default_value_t = 10)]
    starts: usize,
    /// Added times theta in every iteration: makes it converge for tensors that are not orthogonal
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    shift: f64,
    /// Of the starts
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
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

fn decompose<T: Scalar>(args: &Args, cpu: &Cpu, numa: Numa) -> Result<Verdict> {
    let common = &args.common;
    let unwanted = [("nonneg", common.nonneg), ("init", common.init.is_some())];
    if let Some((name, _)) = unwanted.into_iter().find(|&(_, given)| given) {
        return Err(Error::Argument { name, detail: "the power method has no such option".to_owned() });
    }
    let x: CooTensor<T> = common.load(cpu)?;
    let checksum = cpu.install(|| x.checksum());
    let options = PowerOptions {
        starts: args.starts,
        iterations: common.iters,
        tolerance: common.tol,
        shift: args.shift,
        seed: args.seed,
        resume: common.resumed().map(|path| CpState::load_of(path, checksum)).transpose()?,
        ..PowerOptions::new(args.rank)
    };
    let watch = Watch::start(args.rank, true)?;
    let (mut iterations_s, mut products_s, mut violation) = (0.0, 0.0, None);
    let mut unsaved = Ok(());
    let result = cpu.power_method(&x, &options, |state: &CpState<T>, iteration: &CpIteration| {
        iterations_s += iteration.time.as_secs_f64();
        products_s += iteration.mttkrp.as_secs_f64();
        violation = violation.into_iter().chain(iteration.violation).reduce(f64::max);
        watch.show(iteration.number, iteration.fit, iteration.time);
        unsaved = common.keep(iteration.number, &watch, |path| state.save_of(path, checksum));
        watch.flow(unsaved.is_err())
    });
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
        mttkrp_s: None,
        ttm_s: Some(products_s),
        objective: None,
        violation,
        numa,
        interrupted: watch.interrupted(),
        ran: Ran::on_cpu(),
    })
}
