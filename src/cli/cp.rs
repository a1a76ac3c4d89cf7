//! `sparsimd cp`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sparsimd::decomp::{CpInit, CpIteration, CpOptions, CpState};
use sparsimd::io::{ReadOptions, read_dense, write_dense};
use sparsimd::{CooTensor, Cpu, Error, MatRef, Result, Scalar};

use super::mttkrp::format_of;
use super::tensor::{TensorFormat, read_file};
use super::timing::Dtype;
use super::{Verdict, interrupt, output};

/// Arguments of `cp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tensor: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    tensor: PathBuf,
    /// Number of components
    #[arg(long, value_name = "R")]
    rank: usize,
    /// Most iterations, those before a resumption included
    #[arg(long, value_name = "I", default_value_t = 50)]
    iters: usize,
    /// End when the fit improves by less than this; 0: never
    #[arg(long, value_name = "TOL", default_value_t = 1e-5)]
    tol: f64,
    /// Begin from random factors of this seed
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "init")]
    seed: u64,
    /// Begin from the factors mode0.txt, mode1.txt, ... of this folder
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,
    /// Keep all factors non-negative
    #[arg(long)]
    nonneg: bool,
    /// Added to the diagonal of every least squares system
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    ridge: f64,
    /// Folder for the result: a matrix mode0.txt, mode1.txt, ... for each mode, and lambda.txt, the components' weights;
    /// numpy.loadtxt reads them
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write what the next iteration needs to this file
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// After so many iterations, each time
    #[arg(long, value_name = "K", default_value_t = 10, requires = "checkpoint")]
    every: usize,
    /// Go on from the checkpoint, if the file is there
    #[arg(long, requires = "checkpoint", conflicts_with_all = ["init"])]
    resume: bool,
    /// Storage of the tensor
    #[arg(long, value_enum, default_value_t = TensorFormat::Auto)]
    format: TensorFormat,
    /// Coordinates of a text file start at 0 instead of 1
    #[arg(long)]
    zero_based: bool,
    /// Add up entries at the same place instead of refusing the file
    #[arg(long)]
    sum_duplicates: bool,
    /// Element type of tensor and factors
    #[arg(long, value_enum, default_value_t = Dtype::F64)]
    dtype: Dtype,
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// End with one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    fit: f64,
    iterations: usize,
    seconds: f64,
    mttkrp_s: f64,
    interrupted: bool,
}

/// Decomposes the tensor and writes the result.
pub fn run(args: &Args) -> Result<Verdict> {
    let cpu = match args.threads {
        Some(threads) => Cpu::builder().threads(threads).build()?,
        None => Cpu::new()?,
    };
    match args.dtype {
        Dtype::F32 => decompose::<f32>(args, &cpu),
        Dtype::F64 => decompose::<f64>(args, &cpu),
    }
}

fn init<T: Scalar>(args: &Args, order: usize) -> Result<CpInit<T>> {
    if let (true, Some(path)) = (args.resume, &args.checkpoint)
        && path.exists()
    {
        return Ok(CpInit::Resume(CpState::load(path)?));
    }
    match &args.init {
        Some(dir) => {
            let read = |mode| read_dense(&file(dir, mode), ReadOptions::default());
            Ok(CpInit::Factors((0..order).map(read).collect::<Result<_>>()?))
        }
        None => Ok(CpInit::Seed(args.seed)),
    }
}

fn decompose<T: Scalar>(args: &Args, cpu: &Cpu) -> Result<Verdict> {
    if args.every == 0 {
        return Err(Error::Argument { name: "every", detail: "0 iterations; at least 1".to_owned() });
    }
    // Before the work: can the result be written at all?
    std::fs::create_dir_all(&args.out).map_err(|source| Error::Io { path: args.out.clone(), source })?;
    let x: CooTensor<T> = cpu.install(|| read_file(&args.tensor, args.zero_based, args.sum_duplicates))?;
    let mut options = CpOptions::new(args.rank);
    (options.iterations, options.tolerance, options.ridge) = (args.iters, args.tol, args.ridge);
    (options.nonnegative, options.init) = (args.nonneg, init(args, x.order())?);

    let stop = interrupt::flag()?;
    let bar = ProgressBar::new(args.iters as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let start = Instant::now();
    let tensor = cpu.prepare_mttkrp_as(&x, args.rank, format_of(args.format))?;
    let mut mttkrp_s = 0.0;
    let mut unsaved = Ok(());
    let result = cpu.cp_als(&tensor, &options, |state: &CpState<T>, iteration: &CpIteration| {
        mttkrp_s += iteration.mttkrp.as_secs_f64();
        bar.set_position(iteration.number as u64);
        bar.set_message(format!("fit {:.6}, {:.3} s", iteration.fit, iteration.time.as_secs_f64()));
        if let Some(path) = &args.checkpoint
            && (iteration.number.is_multiple_of(args.every) || stop.raised())
        {
            unsaved = state.save(path);
        }
        if stop.raised() || unsaved.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let (result, seconds) = (result?, start.elapsed().as_secs_f64());
    write(&args.out, &result)?;
    unsaved?;

    let report =
        Report { fit: result.fit(), iterations: result.fits.len(), seconds, mttkrp_s, interrupted: stop.raised() };
    if args.json {
        output::json(&report)?;
    } else {
        let Report { fit, iterations, seconds, mttkrp_s, .. } = report;
        let text = format!("fit {fit:.6} after {iterations} iterations, {seconds:.3} s ({mttkrp_s:.3} s in MTTKRP)");
        output::line(&text)?;
    }
    Ok(Verdict::Good)
}

fn file(dir: &Path, mode: usize) -> PathBuf {
    dir.join(format!("mode{mode}.txt"))
}

fn write<T: Scalar>(dir: &Path, result: &CpState<T>) -> Result<()> {
    for (mode, factor) in result.factors.iter().enumerate() {
        write_dense(&file(dir, mode), factor.as_ref())?;
    }
    let rank = result.lambda.len();
    write_dense(&dir.join("lambda.txt"), MatRef::new(&result.lambda, rank, 1, 1)?)
}
