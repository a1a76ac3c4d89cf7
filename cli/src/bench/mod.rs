//! `sparsimd bench`: suites of cases, each verified and then timed in turns with other libraries.
//!
//! A suite is a list of jobs; a job makes one case of results. Files are written after every job, and a job whose case is in
//! the folder's results.json already is not run again.

mod cp;
mod device;
mod economics;
mod esimd;
mod files;
mod genten;
mod matrix;
mod mmcsf;
mod mttkrp;
mod package;
mod pasta;
mod peers;
mod picture;
mod python;
mod race;
mod report;
mod results;
mod stored;
mod summary;
mod sycl;
mod tensor_device;
mod tensors;
mod torch;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use sparsimd::{Cpu, Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::device::DeviceName;
use super::timing::StoredDtype;
use super::{Verdict, interrupt, output};
use device::Target;
use files::Files;
use peers::{PeerName, Peers, Subject};
use race::Race;
use report::Section;
use results::{Case, Results, Settings};
use tensor_device::TensorTarget;
use tensors::Form;

pub use peers::{ProbeArgs, probe};

/// Timed runs of one contender in one case: full and short form.
const BUDGET: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(60)];
/// Multiplications of the reference with which a result is verified: some tenths of a second, some hundredths.
const VERIFY: [usize; 2] = [40_000_000, 8_000_000];

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The suite
    #[arg(value_enum)]
    suite: SuiteName,
    /// Whom to compare with, separated by commas [default: all that this build and machine have]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    peers: Option<Vec<PeerName>>,
    /// Only cases whose names have each of these words, such as "spmm 4k/4k"
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Threads, ours and each peer's [default: one per allowed processor]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Folder for results.json, results.csv, report.html and pictures; finished cases that it has are not run again
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What dense operands store, in suites of matrices; of another type than f32 ours run beside ours in f32, without peers
    #[arg(long, value_enum, default_value_t = StoredDtype::F32)]
    dtype: StoredDtype,
    /// Folder of the files that dlmc and graphs take [default: the one that SPARSIMD_DATA names], pasta, mmcsf, cp, mttkrp and sycl may take
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where our operations run: cpu, or gpu[:INDEX|:NAME] (a Vulkan device). In suites of matrices times are then of kernels, and the one
    /// peer is cuSPARSE through PyTorch, in the python3 of the path or of SPARSIMD_PYTHON. In pasta, mmcsf and sycl the device, or with
    /// hetero[:adaptive|:SHARE] both sides together, stand beside the processor
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// Rate of f32 multiply-adds of the device, for the shares of it: no device tells
    #[arg(long, value_name = "GFLOPS")]
    device_peak: Option<f64>,
    /// Fewer and shorter cases: under a minute on two cores
    #[arg(long)]
    quick: bool,
    /// Tensors as large as in the papers, as far as they fit the free memory (pasta, mmcsf)
    #[arg(long, conflicts_with = "quick")]
    full: bool,
}

/// The suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SuiteName {
    /// SDDMM, SpMM and FusedMM on the 72 random matrices of the ESIMD paper
    Esimd,
    /// The same operations on every .smtx file below --data: patterns of pruned networks
    Dlmc,
    /// The same operations on every .mtx file below --data: graphs and other real matrices, N = 128; SpMV
    Graphs,
    /// TEW, TS, TTV, TTM and MTTKRP in COO and HiCOO against their rooflines, on the .tns files below --data or on the synthetic
    /// tensors of the PASTA paper
    Pasta,
    /// Formats for MTTKRP: time, fibers and bytes, on the .tns files below --data or on look-alikes of the MM-CSF paper's
    Mmcsf,
    /// CP-ALS, an iteration beside GenTen's, on generated tensors or the .tns files below --data
    Cp,
    /// MTTKRP in all modes beside GenTen's, pyttb's and tensorly's, on generated tensors or the .tns files below --data
    Mttkrp,
    /// TTM and MTTKRP by rows and by elements, best, worst and real-like cases, over 1 to 128 columns
    Sycl,
}

impl SuiteName {
    /// What peers are asked for.
    fn subject(self) -> Subject {
        match self {
            Self::Esimd | Self::Dlmc | Self::Graphs => Subject::Matrices,
            Self::Cp => Subject::Cp,
            Self::Mttkrp => Subject::Mttkrp,
            Self::Pasta | Self::Mmcsf | Self::Sycl => Subject::Formats,
        }
    }
}

impl Args {
    /// How large the tensors of the suite are.
    fn form(&self) -> Form {
        match (self.quick, self.full) {
            (true, _) => Form::Quick,
            (_, true) => Form::Full,
            _ => Form::Usual,
        }
    }

    /// The folder of files.
    fn data(&self) -> Result<PathBuf> {
        let named = || std::env::var_os("SPARSIMD_DATA").map(PathBuf::from);
        let missing = || Error::Argument {
            name: "data",
            detail: "this suite needs a folder of files: --data DIR, or SPARSIMD_DATA in the environment".to_owned(),
        };
        self.data.clone().or_else(named).ok_or_else(missing)
    }
}

/// A list of jobs.
trait Suite {
    /// Its jobs, in the order in which they are done.
    fn jobs(&self) -> Vec<Job>;
    /// Does one of them.
    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case>;
    /// What the report says of `results`.
    fn sections(&self, bench: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>>;
}

/// One case to come.
struct Job {
    /// Its name.
    id: String,
    /// How long it takes, in a unit of the suite.
    weight: f64,
}

/// What every case needs.
struct Bench {
    cpu: Cpu,
    /// Where ours run, if not on the processor.
    device: Option<Target>,
    /// Where our tensor operations run besides, if not on the processor alone.
    tensors: Option<TensorTarget>,
    peers: Peers,
    /// What dense operands store, in suites of matrices.
    dtype: StoredDtype,
    race: Race,
    verify_work: usize,
    /// The highest rate of multiply-adds of the run so far.
    peak: Cell<f64>,
}

/// Runs what is not done yet of the suite, and writes the report.
pub fn run(args: &Args) -> Result<Verdict> {
    let mut builder = Cpu::builder();
    if let Some(threads) = args.threads {
        builder = builder.threads(threads);
    }
    let cpu = builder.build()?;
    if args.full && !matches!(args.suite, SuiteName::Pasta | SuiteName::Mmcsf) {
        let detail = "the suites with tensors of a paper's sizes are pasta and mmcsf".to_owned();
        return Err(Error::Argument { name: "full", detail });
    }
    let mut suite: Box<dyn Suite> = match args.suite {
        SuiteName::Esimd => Box::new(esimd::Esimd::new(args.quick)),
        SuiteName::Dlmc => Box::new(Files::new(&args.data()?, ".smtx", &[32, 128], args.quick)?),
        SuiteName::Graphs => Box::new(Files::new(&args.data()?, ".mtx", &[1, 128], args.quick)?),
        SuiteName::Pasta => Box::new(pasta::Pasta::new(args.data.as_deref(), args.form())?),
        SuiteName::Mmcsf => Box::new(mmcsf::MmCsf::new(args.data.as_deref(), args.form())?),
        SuiteName::Cp => Box::new(cp::Cp::new(args.data.as_deref(), args.quick)?),
        SuiteName::Mttkrp => Box::new(mttkrp::Mttkrp::new(args.data.as_deref(), args.quick)?),
        SuiteName::Sycl => Box::new(sycl::Sycl::new(args.data.as_deref(), args.quick)?),
    };
    let jobs = suite.jobs();
    let words: Vec<_> = args.filter.split_whitespace().map(str::to_lowercase).collect();
    let wanted: Vec<usize> = (0..jobs.len())
        .filter(|&job| words.iter().all(|word| jobs[job].id.to_lowercase().contains(word.as_str())))
        .collect();
    if wanted.is_empty() {
        let list = if args.quick { "no case of the short list, which --quick takes," } else { "no case" };
        let names =
            jobs.first().map_or("there are none".to_owned(), |job| format!("they are called like {:?}", job.id));
        let detail = format!("{list} has the words {:?}; {names}", args.filter);
        return Err(Error::Argument { name: "filter", detail });
    }
    writable(&args.out)?;
    let subject = args.suite.subject();
    let on_device = args.device != DeviceName::Cpu;
    if on_device && matches!(subject, Subject::Cp | Subject::Mttkrp) {
        let detail = "the suites cp and mttkrp compare on the processor".to_owned();
        return Err(Error::Argument { name: "device", detail });
    }
    let stored = args.dtype != StoredDtype::F32;
    if stored && (subject != Subject::Matrices || on_device || args.peers.is_some()) {
        let detail =
            "another type than f32 is for the suites of matrices, on the processor and without peers".to_owned();
        return Err(Error::Argument { name: "dtype", detail });
    }
    let names = match (&args.peers, subject) {
        (_, Subject::Matrices) if stored => vec![PeerName::None],
        // There is no peer of theirs to load.
        (_, Subject::Formats) => vec![PeerName::None],
        (Some(names), _) => names.clone(),
        (None, Subject::Cp) => vec![PeerName::Genten],
        (None, Subject::Mttkrp) => vec![PeerName::Genten, PeerName::Pyttb, PeerName::Tensorly],
        (None, Subject::Matrices) if on_device => vec![PeerName::Torch],
        (None, Subject::Matrices) => default_peers(),
    };
    if let Some(name) = names.iter().find(|name| !name.knows(subject)) {
        let detail = format!("{} has nothing to do with this suite", name.text());
        return Err(Error::Argument { name: "peers", detail });
    }
    let form = usize::from(args.quick);
    let (device, tensors) = match subject {
        Subject::Formats => (None, TensorTarget::open(&args.device, &cpu)?),
        _ => (Target::open(&args.device, &names, args.device_peak, BUDGET[form])?, None),
    };
    let peers = match &device {
        Some(device) => Peers { details: device.details(), absent: device.absent.clone(), ..Peers::default() },
        None => {
            peers::choose_settings(&names, cpu.threads())?;
            Peers::load(&names, cpu.threads())
        }
    };
    for absent in &peers.absent {
        output::note(&format!("not compared with {absent}"));
    }
    let on = device.as_ref().map(Target::name).or(tensors.as_ref().map(TensorTarget::name));
    let settings = settings(args, &cpu, on, &peers);
    let mut results = Results::open(&args.out, settings, peers.absent.clone())?;
    results.planned = wanted.len();
    let bench = Bench {
        race: Race::new(&cpu, BUDGET[form]),
        verify_work: VERIFY[form],
        dtype: args.dtype,
        peak: Cell::new(0.0),
        device,
        tensors,
        peers,
        cpu,
    };
    let left: Vec<usize> = wanted.into_iter().filter(|&job| !results.has(&jobs[job].id)).collect();
    let stopped = run_jobs(&bench, suite.as_mut(), &jobs, &left, &mut results, &args.out)?;
    results.write(&args.out)?;
    let sections = suite.sections(&bench, &results, &args.out)?;
    let report = report::write(&args.out, &results, &sections)?;
    for ratio in &results.summary {
        output::line(&ratio.text())?;
    }
    if stopped {
        output::note("stopped; the same command goes on from here");
    }
    output::line(&format!("report   {}", report.display()))?;
    Ok(if results.cases.iter().any(|case| case.wrong) { Verdict::Wrong } else { Verdict::Good })
}

/// Does the jobs `left`, files written after each; whether Ctrl-C ended that.
fn run_jobs(
    bench: &Bench,
    suite: &mut dyn Suite,
    jobs: &[Job],
    left: &[usize],
    results: &mut Results,
    folder: &Path,
) -> Result<bool> {
    let stop = interrupt::flag()?;
    // Thousandths: the bar counts in whole numbers.
    let weight = |job: usize| (1000.0 * jobs[job].weight) as u64 + 1;
    let bar = ProgressBar::new(left.iter().map(|&job| weight(job)).sum());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {elapsed}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for &job in left {
        if stop.raised() {
            bar.finish_and_clear();
            return Ok(true);
        }
        bar.set_message(jobs[job].id.clone());
        let case = suite.run(bench, job)?;
        bar.inc(weight(job));
        bar.suspend(|| output::line(&line(&case)))?;
        results.cases.push(case);
        results.write(folder)?;
    }
    bar.finish_and_clear();
    Ok(false)
}

/// A case in a line.
fn line(case: &Case) -> String {
    let speeds: Vec<_> = case.samples.iter().map(|s| format!("{} {:.1}", s.name, s.gflops)).collect();
    let notes: Vec<_> = case.notes.iter().map(|note| format!(" ({note})")).collect();
    format!("{:<28} {} GFLOP/s{}", case.id, speeds.join(", "), notes.concat())
}

/// All that this build can have.
fn default_peers() -> Vec<PeerName> {
    let rust = [PeerName::Sprs, PeerName::Faer, PeerName::Gemm];
    let rust = rust.into_iter().filter(|_| cfg!(feature = "rust-peers"));
    [PeerName::Mkl, PeerName::Openblas].into_iter().chain(rust).collect()
}

/// Makes `folder`, and tries it: better now than after the first case.
fn writable(folder: &Path) -> Result<()> {
    let fail = |source| Error::Io { path: folder.to_owned(), source };
    std::fs::create_dir_all(folder).map_err(fail)?;
    tempfile::tempfile_in(folder).map(drop).map_err(fail)
}

fn settings(args: &Args, cpu: &Cpu, device: Option<String>, peers: &Peers) -> Settings {
    let program = std::env::current_exe().and_then(std::fs::read).unwrap_or_default();
    Settings {
        suite: args.suite.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
        quick: args.quick,
        full: args.full,
        dtype: match args.suite.subject() {
            Subject::Cp | Subject::Mttkrp => "f64".to_owned(),
            _ => args.dtype.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default(),
        },
        threads: cpu.threads(),
        simd: cpu.arch().name().to_owned(),
        processor: cpu.machine().processor().to_owned(),
        device,
        program: format!("{} ({:016x})", env!("CARGO_PKG_VERSION"), xxh3_64(&program)),
        peers: peers.details.clone(),
    }
}
