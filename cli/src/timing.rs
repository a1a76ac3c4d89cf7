//! Repeated runs of an operation, and what they say about its speed.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::reference::Deviation;
use sparsimd::{Cpu, Error, Result, Scalar};
use sparsimd_measure::fma_peak;

/// Before anything is measured: caches, page tables and the clock settle.
const WARM_UP: Duration = Duration::from_millis(100);
/// All measured runs together, unless their number is given.
const MEASURE: f64 = 1.0;
/// Runs, unless their number is given: enough for a median, and not so many that storing their times takes time.
const RUNS: std::ops::RangeInclusive<usize> = 5..=100_000;

/// The element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 4 bytes.
    F32,
    /// 8 bytes.
    F64,
}

/// What dense operands store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredDtype {
    /// 4 bytes
    F32,
    /// 8 bytes
    F64,
    /// 2 bytes, computed with as f32: 8 bits of exponent, 7 of mantissa
    Bf16,
    /// 2 bytes, computed with as f32: 5 bits of exponent, 10 of mantissa
    F16,
}

/// Times of one run, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The shortest.
    pub min: f64,
    /// The one in the middle.
    pub median: f64,
    /// How many there were.
    pub runs: usize,
}

impl Times {
    /// Runs `run` once and then `repeat` times; or until it is warm, and then for about a second and at least five times.
    pub fn measure(repeat: Option<usize>, mut run: impl FnMut() -> Result<()>) -> Result<Self> {
        // The loop is compiled once, not for each operation: a call more is nothing beside a run.
        Self::measure_dyn(repeat, &mut run)
    }

    fn measure_dyn(repeat: Option<usize>, mut run: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        check_repeat(repeat)?;
        let start = Instant::now();
        let mut shortest = f64::INFINITY;
        while shortest == f64::INFINITY || repeat.is_none() && start.elapsed() < WARM_UP {
            shortest = shortest.min(seconds(&mut run)?);
        }
        let runs = repeat.unwrap_or(((MEASURE / shortest) as usize).clamp(*RUNS.start(), *RUNS.end()));
        Ok(Self::of((0..runs).map(|_| seconds(&mut run)).collect::<Result<Vec<_>>>()?))
    }

    /// Runs `run` `repeat` times, or once, and not to warm up: of runs that read files as large as memory, none is warm.
    pub fn cold(repeat: Option<usize>, mut run: impl FnMut() -> Result<()>) -> Result<Self> {
        check_repeat(repeat)?;
        Ok(Self::of((0..repeat.unwrap_or(1)).map(|_| seconds(&mut run)).collect::<Result<Vec<_>>>()?))
    }

    /// Of the runs that took `seconds`, at least one.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self { min: seconds[0], median: seconds[seconds.len() / 2], runs: seconds.len() }
    }
}

/// Whether there is a run to be timed.
fn check_repeat(repeat: Option<usize>) -> Result<()> {
    match repeat {
        Some(0) => Err(Error::Argument { name: "repeat", detail: "0 runs have no time; at least 1".to_owned() }),
        _ => Ok(()),
    }
}

/// The result of `f`, and the seconds it took.
pub fn timed<R, E>(f: impl FnOnce() -> Result<R, E>) -> Result<(R, f64), E> {
    let start = Instant::now();
    let result = f()?;
    Ok((result, start.elapsed().as_secs_f64()))
}

/// The seconds that `run` takes.
pub fn seconds<E>(run: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    timed(run).map(|((), seconds)| seconds)
}

/// The speed of an operation and its share of what the machine can do, as every command reports it.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Element type.
    pub dtype: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Those of them that the operating system refused to bind, or that no processor was left for.
    pub unpinned_threads: usize,
    /// Preparation of the operand, in seconds.
    pub prepare_s: f64,
    /// The shortest run, in seconds.
    pub min_s: f64,
    /// The median run, in seconds.
    pub median_s: f64,
    /// Of the shortest run.
    pub gflops: f64,
    /// The rate of multiply-adds that this element type and number of threads reached in this same run.
    pub peak_gflops: f64,
    /// `gflops / peak_gflops`.
    pub peak_share: f64,
    /// Compulsory traffic (every operand once) by the shortest run.
    pub gbytes_per_s: f64,
    #[serde(skip)]
    arch: &'static str,
    #[serde(skip)]
    runs: usize,
}

impl Speed {
    /// Of an operation of `flops` operations and `bytes` of compulsory traffic on elements of `T`. Measures the peak.
    pub fn new<T: Scalar>(cpu: &Cpu, prepare_s: f64, times: Times, flops: f64, bytes: f64) -> Self {
        let peak_gflops = fma_peak::<T>(cpu);
        let gflops = flops / times.min / 1e9;
        Self {
            dtype: T::NAME,
            threads: cpu.threads(),
            unpinned_threads: cpu.unpinned_threads(),
            prepare_s,
            min_s: times.min,
            median_s: times.median,
            gflops,
            peak_gflops,
            peak_share: gflops / peak_gflops,
            gbytes_per_s: bytes / times.min / 1e9,
            arch: cpu.arch().name(),
            runs: times.runs,
        }
    }

    /// The same of dense operands that store elements of another name.
    pub fn stored_as(self, dtype: &'static str) -> Self {
        Self { dtype, ..self }
    }

    /// The same without the processor's peak, which says nothing of another device.
    pub fn without_peak(self) -> Self {
        Self { peak_gflops: f64::NAN, peak_share: f64::NAN, ..self }
    }

    /// In words, three lines.
    pub fn text(&self) -> String {
        if self.peak_gflops.is_nan() {
            return format!(
                "prepare  {:.3e} s\ntime     {:.3e} s at best, {:.3e} s median of {} runs\n\
                 speed    {:.2} GFLOP/s ({}); {:.2} GB/s",
                self.prepare_s, self.min_s, self.median_s, self.runs, self.gflops, self.dtype, self.gbytes_per_s,
            );
        }
        format!(
            "prepare  {:.3e} s\ntime     {:.3e} s at best, {:.3e} s median of {} runs\n\
             speed    {:.2} GFLOP/s, {:.1} % of the FMA peak ({:.1} GFLOP/s: {}, {}, threads: {}); {:.2} GB/s",
            self.prepare_s,
            self.min_s,
            self.median_s,
            self.runs,
            self.gflops,
            100.0 * self.peak_share,
            self.peak_gflops,
            self.arch,
            self.dtype,
            self.threads,
            self.gbytes_per_s,
        )
    }
}

/// The outcome of `--verify`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Check {
    /// Whether every element is within its bound; null when nothing was verified.
    pub verified: Option<bool>,
    /// The largest error in units of the bound; null when nothing was verified or an element is not a number that
    /// should be one.
    pub max_err: Option<f64>,
}

impl Check {
    /// Nothing was verified.
    pub const NONE: Self = Self { verified: None, max_err: None };

    /// What `compare` finds, if it is asked for.
    pub fn when(asked: bool, compare: impl FnOnce() -> Result<Deviation>) -> Result<Self> {
        if asked { Ok(Self::of(compare()?.error)) } else { Ok(Self::NONE) }
    }

    /// The largest error was `error`, in units of the bound.
    pub fn of(error: f64) -> Self {
        Self { verified: Some(error <= 1.0), max_err: Some(error) }
    }

    /// In words, one line.
    pub fn text(&self) -> String {
        match (self.verified, self.max_err) {
            (Some(good), Some(error)) => {
                let word = if good { "right" } else { "WRONG" };
                format!("verify   {word}: the largest error is {error:.3} of its bound")
            }
            _ => "verify   not asked for (--verify)".to_owned(),
        }
    }
}
