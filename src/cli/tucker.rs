//! `sparsimd tucker`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sparsimd::decomp::{Tucker, TuckerInit, TuckerIteration, TuckerOptions};
use sparsimd::io::{ReadOptions, read_dense, write_dense};
use sparsimd::{CooTensor, Cpu, Error, MatRef, Result, Scalar};

use super::tensor::read_file;
use super::timing::Dtype;
use super::{Verdict, interrupt, output};

/// Arguments of `tucker`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Tensor: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    tensor: PathBuf,
    /// Columns of every mode's factor, or one number for all modes
    #[arg(long, value_name = "R[,R,...]", value_delimiter = ',', required = true)]
    rank: Vec<usize>,
    /// Most iterations
    #[arg(long, value_name = "I", default_value_t = 50)]
    iters: usize,
    /// End when the fit improves by less than this; 0: never
    #[arg(long, value_name = "TOL", default_value_t = 1e-5)]
    tol: f64,
    /// Begin from random factors of this seed [default: from singular vectors]
    #[arg(long, value_name = "S", conflicts_with = "init")]
    seed: Option<u64>,
    /// Begin from the factors mode0.txt, mode1.txt, ... of this folder
    #[arg(long, value_name = "DIR")]
    init: Option<PathBuf>,
    /// Folder for the result: a matrix mode0.txt, mode1.txt, ... for each mode, and core.txt, the core unfolded in mode 0 (its
    /// last mode fastest); numpy.loadtxt reads them
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Coordinates of a text file start at 0 instead of 1
    #[arg(long)]
    zero_based: bool,
    /// Add up entries at the same place instead of refusing the file
    #[arg(long)]
    sum_duplicates: bool,
    /// Element type of the tensor products
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
    ttm_s: f64,
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

fn decompose<T: Scalar>(args: &Args, cpu: &Cpu) -> Result<Verdict> {
    // Before the work: can the result be written at all?
    std::fs::create_dir_all(&args.out).map_err(|source| Error::Io { path: args.out.clone(), source })?;
    let x: CooTensor<T> = cpu.install(|| read_file(&args.tensor, args.zero_based, args.sum_duplicates))?;
    let ranks = if let [rank] = args.rank[..] { vec![rank; x.order()] } else { args.rank.clone() };
    let init = match (&args.init, args.seed) {
        (Some(dir), _) => {
            let read = |mode| read_dense(&file(dir, mode), ReadOptions::default());
            TuckerInit::Given((0..x.order()).map(read).collect::<Result<_>>()?)
        }
        (None, Some(_)) => TuckerInit::Random,
        (None, None) => TuckerInit::Svd,
    };
    let mut options = TuckerOptions::new(ranks);
    (options.iterations, options.tolerance, options.seed, options.init) =
        (args.iters, args.tol, args.seed.unwrap_or(0), init);

    let stop = interrupt::flag()?;
    let bar = ProgressBar::new(args.iters as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let start = Instant::now();
    let result = cpu.tucker(&x, &options, |iteration: &TuckerIteration| {
        bar.set_position(iteration.number as u64);
        bar.set_message(format!("fit {:.6}, {:.3} s", iteration.fit, iteration.time.as_secs_f64()));
        if stop.raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let (result, seconds) = (result?, start.elapsed().as_secs_f64());
    write(&args.out, &result, &options.ranks)?;

    let report = Report {
        fit: result.fit,
        iterations: result.iterations.len(),
        seconds,
        ttm_s: result.iterations.iter().map(|i| i.ttm.as_secs_f64()).sum(),
        interrupted: stop.raised(),
    };
    if args.json {
        output::json(&report)?;
    } else {
        let Report { fit, iterations, seconds, ttm_s, .. } = report;
        let text =
            format!("fit {fit:.6} after {iterations} iterations, {seconds:.3} s ({ttm_s:.3} s in tensor products)");
        output::line(&text)?;
    }
    Ok(Verdict::Good)
}

fn file(dir: &Path, mode: usize) -> PathBuf {
    dir.join(format!("mode{mode}.txt"))
}

fn write(dir: &Path, result: &Tucker, ranks: &[usize]) -> Result<()> {
    for (mode, factor) in result.factors.iter().enumerate() {
        write_dense(&file(dir, mode), factor.as_ref())?;
    }
    let cols: usize = ranks[1..].iter().product();
    write_dense(&dir.join("core.txt"), MatRef::new(&result.core, ranks[0], cols, cols)?)
}
