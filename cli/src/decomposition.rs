//! What `cp` and `tucker` share: where the tensor comes from, when to stop, what is shown on the way, where the result goes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sparsimd::io::{ReadOptions, check_finite, read_dense, write_dense, write_npy};
use sparsimd::ops::StreamedTensor;
use sparsimd::{CooTensor, Cpu, Error, Mat, MatRef, Result, Scalar};

use super::device::Ran;
use super::numa::{Numa, Paged};
use super::tensor::read_file;
use super::timing::Dtype;
use super::{Verdict, factors, interrupt, output};

/// What every decomposition takes.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Tensor: .tns, .tns.gz or .tnsb
    #[arg(long, value_name = "FILE")]
    tensor: PathBuf,
    /// Most iterations, those before a resumption included
    #[arg(long, value_name = "I", default_value_t = 50)]
    pub iters: usize,
    /// End when the fit improves by less than this; 0: never
    #[arg(long, value_name = "TOL", default_value_t = 1e-5)]
    pub tol: f64,
    /// Begin from the factors mode0.npy, mode1.npy, ..., or .txt, of this folder
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,
    /// Folder for the result: the factors mode0.txt, mode1.txt, ... and lambda.txt, the components' weights (cp), or
    /// core.txt, the core unfolded in mode 0, its last mode fastest (tucker); numpy.loadtxt reads them
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Write mode0.npy, mode1.npy, ..., lambda.npy or core.npy instead, the core with all of its modes
    #[arg(long)]
    npy: bool,
    /// Coordinates of a text file start at 0 instead of 1
    #[arg(long)]
    zero_based: bool,
    /// Add up entries at the same place instead of refusing the file
    #[arg(long)]
    sum_duplicates: bool,
    /// Element type of the products with the tensor
    #[arg(long, value_enum, default_value_t = Dtype::F64)]
    pub dtype: Dtype,
    /// Keep all factors non-negative (cp only)
    #[arg(long)]
    pub nonneg: bool,
    /// Write what the next iteration needs to this file
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// After so many iterations, each time
    #[arg(long, value_name = "K", default_value_t = 10, requires = "checkpoint")]
    every: usize,
    /// Go on from the checkpoint, if the file is there
    #[arg(long, requires = "checkpoint", conflicts_with_all = ["init"])]
    resume: bool,
    #[command(flatten)]
    executor: Paged,
    /// End with one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What a decomposition came to.
#[derive(Debug, Serialize)]
pub struct Report {
    /// 1 - |X - its approximation| / |X|.
    pub fit: f64,
    /// Iterations done.
    pub iterations: usize,
    /// From laying out the tensor to the end of the last iteration.
    pub seconds: f64,
    /// Of them in iterations.
    pub iterations_s: f64,
    /// Of these in MTTKRP (cp).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mttkrp_s: Option<f64>,
    /// Of these in products with matrices (tucker).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttm_s: Option<f64>,
    /// What was minimised, of the methods that minimise something other than the residual (cp).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// By how much the conditions of optimality are violated at the end (cp, power).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<f64>,
    /// What became of pages.
    pub numa: Numa,
    /// Whether Ctrl-C or SIGTERM ended it.
    pub interrupted: bool,
    /// Where its products with the tensor ran.
    #[serde(flatten)]
    pub ran: Ran,
}

impl Common {
    /// The tensor as the user named it.
    pub fn operand(&self) -> String {
        self.tensor.display().to_string()
    }

    /// The executor, and what becomes of its pages.
    pub fn cpu(&self) -> Result<(Cpu, Numa)> {
        self.executor.cpu()
    }

    /// Reads the tensor and makes the folder of the result: whether it can be written is found before the work.
    pub fn load<T: Scalar>(&self, cpu: &Cpu) -> Result<CooTensor<T>> {
        self.check()?;
        let tensor = cpu.install(|| read_file(&self.tensor, self.zero_based, self.sum_duplicates))?;
        if !self.sum_duplicates {
            check_finite(&self.tensor, &tensor)?;
        }
        self.make_folder()?;
        Ok(tensor)
    }

    /// Opens the tensor to be read in passes of at most `mib` MiB, and makes the folder of the result.
    pub fn stream<T: Scalar>(&self, cpu: &Cpu, rank: usize, mib: usize) -> Result<StreamedTensor<T>> {
        self.check()?;
        if self.tensor.extension().is_none_or(|ending| ending != "tnsb") {
            let detail = format!("{}: tensors that are read in passes are .tnsb files", self.tensor.display());
            return Err(Error::Argument { name: "memory", detail });
        }
        if self.sum_duplicates {
            let detail = "a tensor that is read in passes is used as it is in the file".to_owned();
            return Err(Error::Argument { name: "sum_duplicates", detail });
        }
        let tensor = cpu.stream_tensor(&self.tensor, rank, mib.saturating_mul(1 << 20))?;
        self.make_folder()?;
        Ok(tensor)
    }

    /// Whether the numbers make sense.
    pub fn check(&self) -> Result<()> {
        if self.every == 0 {
            return Err(Error::Argument { name: "every", detail: "0 iterations; at least 1".to_owned() });
        }
        if !self.tol.is_finite() {
            return Err(Error::Argument { name: "tol", detail: format!("{} is not a finite number", self.tol) });
        }
        Ok(())
    }

    /// Makes the folder of the result.
    pub fn make_folder(&self) -> Result<()> {
        std::fs::create_dir_all(&self.out).map_err(|source| Error::Io { path: self.out.clone(), source })
    }

    /// The tensor's file, and whether its coordinates start at 0.
    #[cfg(feature = "mpi")]
    pub fn file(&self) -> (&Path, bool) {
        (&self.tensor, self.zero_based)
    }

    /// The threads asked for.
    #[cfg(feature = "mpi")]
    pub fn executor(&self) -> &super::executor::Executor {
        self.executor.executor()
    }

    /// The checkpoint, if one is due after iteration `number`.
    #[cfg(feature = "mpi")]
    pub fn due(&self, number: usize) -> Option<&Path> {
        self.checkpoint.as_deref().filter(|_| number.is_multiple_of(self.every))
    }

    /// The checkpoint.
    #[cfg(feature = "mpi")]
    pub fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_deref()
    }

    /// Whether the result is one JSON object.
    #[cfg(feature = "mpi")]
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// The factors of `--init`, one per mode.
    pub fn given<T: Scalar>(&self, order: usize) -> Result<Option<Vec<Mat<T>>>> {
        let read = |dir: &PathBuf| {
            (0..order).map(|mode| read_dense(&factors::file(dir, mode), ReadOptions::default())).collect()
        };
        self.init.as_ref().map(read).transpose()
    }

    /// The checkpoint to go on from, if there is one and it is asked for.
    pub fn resumed(&self) -> Option<&Path> {
        self.checkpoint.as_deref().filter(|path| self.resume && path.exists())
    }

    /// Has `save` write the checkpoint, if one is due after iteration `number` or the run is about to be interrupted.
    pub fn keep(&self, number: usize, watch: &Watch, save: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        match &self.checkpoint {
            Some(path) if number.is_multiple_of(self.every) || watch.interrupted() => save(path),
            _ => Ok(()),
        }
    }

    /// Writes the factors and the array `other`, of `shape` in a binary file and as a matrix in text.
    pub fn write<F: Scalar>(
        &self,
        factors: &[Mat<F>],
        (name, shape, other): (&str, &[usize], MatRef<'_, f64>),
    ) -> Result<()> {
        let ending = if self.npy { "npy" } else { "txt" };
        for (mode, factor) in factors.iter().enumerate() {
            write_dense(&self.out.join(format!("mode{mode}.{ending}")), factor.as_ref())?;
        }
        let path = self.out.join(format!("{name}.{ending}"));
        if self.npy { write_npy(&path, shape, other) } else { write_dense(&path, other) }
    }

    /// Says that a signal ended the run after so many iterations.
    pub fn note_interrupted(&self, iterations: usize) {
        output::note(&format!(
            "interrupted after {iterations} of {} iterations; what they came to is in {}{}",
            self.iters,
            self.out.display(),
            self.checkpoint
                .as_ref()
                .map_or(String::new(), |file| format!(", and to go on: --checkpoint {} --resume", file.display()))
        ));
    }

    /// Prints what it came to.
    pub fn report(&self, report: &Report) -> Result<Verdict> {
        if report.interrupted {
            self.note_interrupted(report.iterations);
        }
        if self.json {
            output::json(report)?;
        } else {
            let Report { fit, iterations, seconds, iterations_s, .. } = report;
            let (products, name) = match (report.mttkrp_s, report.ttm_s) {
                (Some(seconds), _) => (seconds, "MTTKRP"),
                (None, seconds) => (seconds.unwrap_or(0.0), "tensor products"),
            };
            let ran = report.ran.text().unwrap_or_default();
            let objective = report.objective.map_or(String::new(), |f| format!("objective {f:.9e}, "));
            let violation = report.violation.map_or(String::new(), |v| format!("violation {v:.1e}, "));
            output::line(&format!(
                "{}{ran}{objective}{violation}fit {fit:.6} after {iterations} iterations of {iterations_s:.3} s ({products:.3} s in {name}), {seconds:.3} s in all",
                report.numa.text()
            ))?;
        }
        Ok(if report.interrupted { Verdict::Interrupted } else { Verdict::Good })
    }
}

/// Shows iterations on standard error as they come, and knows whether a signal asked to end.
pub struct Watch {
    bar: ProgressBar,
    stop: interrupt::Flag,
    start: Instant,
}

impl Watch {
    /// Over at most `iterations`, shown or not; its clock starts now.
    pub fn start(iterations: usize, shown: bool) -> Result<Self> {
        let stop = interrupt::flag()?;
        let bar = if shown { ProgressBar::new(iterations as u64) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Ok(Self { bar, stop, start: Instant::now() })
    }

    /// Iteration `number` reached `fit` in `time`.
    pub fn show(&self, number: usize, fit: f64, time: Duration) {
        self.bar.set_position(number as u64);
        self.bar.set_message(format!("fit {fit:.6}, {:.3} s", time.as_secs_f64()));
    }

    /// Whether a signal asked to end.
    pub fn interrupted(&self) -> bool {
        self.stop.raised()
    }

    /// To break when a signal asked to end or `failed`.
    pub fn flow(&self, failed: bool) -> ControlFlow<()> {
        if failed || self.interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Takes the bar away; seconds since the start.
    pub fn finish(&self) -> f64 {
        self.bar.finish_and_clear();
        self.start.elapsed().as_secs_f64()
    }
}
