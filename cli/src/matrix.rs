//! What the matrix operations share: how to run, what to report.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::edge::{self, BuiltIn};
use sparsimd::formats::PatternRef;
use sparsimd::io::{DenseFormat, Matrix, write_dense, write_mtx, write_npy};
use sparsimd::ops::{NumaPrepared, SparseOperand};
use sparsimd::plan::{NumaPolicy, Op, PlanOptions, Strategy};
use sparsimd::reference::Expected;
use sparsimd::reorder;
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Pattern, Prepared, Result, Scalar, Stored, generate, reference};

use super::device::{DeviceName, Place, Ran};
use super::executor::{EffortName, Executor};
use super::numa::Numa;
use super::operands::Operands;
use super::ranks::Ranks;
use super::reorder::{Order, Ordered, Reordered};
use super::source::Source;
use super::timing::{Check, Speed, StoredDtype, Times};
use super::{Verdict, output};

/// Runs that a plan may count on when nobody says: enough for any preparation to pay.
pub const REUSE: usize = 1000;

/// What every matrix operation takes.
#[derive(Debug, clap::Args)]
pub struct Common {
    #[command(flatten)]
    pub source: Source,
    /// Columns of the dense matrices [default: those of the files]
    #[arg(short = 'n', value_name = "N", required_unless_present_any = ["b", "c", "d"])]
    given_n: Option<usize>,
    /// N, once it is settled
    #[arg(skip)]
    pub n: usize,
    #[command(flatten)]
    pub operands: Operands,
    /// Element type of the values of A, the dense matrices and results; bf16 and f16 are computed with as f32 [default: f64 where an .npy file has it, else f32]
    #[arg(long = "dtype", value_enum)]
    given_dtype: Option<StoredDtype>,
    /// The element type, once it is settled
    #[arg(skip = StoredDtype::F32)]
    pub dtype: StoredDtype,
    /// What becomes of an entry of C B^T (spmm: identity; sddmm: identity or scale; fusedmm: all)
    #[arg(long, value_enum, default_value_t = EdgeName::Identity)]
    pub edge: EdgeName,
    /// Straight from CSR, by panels that are prepared once, or whichever the plan finds faster
    #[arg(long, value_enum, default_value_t = PathName::Auto)]
    pub path: PathName,
    /// Whether the plan is estimated or some plans are run, for at most a tenth of the time of the runs that are announced
    #[arg(long, value_enum, default_value_t = EffortName::Estimate)]
    pub effort: EffortName,
    /// New numbers for the rows and columns of A; operands and results stay in the given order
    #[arg(long, value_enum, default_value_t = Order::None)]
    pub reorder: Order,
    #[command(flatten)]
    pub ranks: Ranks,
    #[command(flatten)]
    pub executor: Executor,
    /// NUMA placement: rows of A and C on the nodes that own them, B left alone (first-touch), interleaved or replicated;
    /// auto chooses, off places nothing
    #[arg(long, value_name = "POLICY", default_value_t = NumaPolicy::Auto)]
    pub numa: NumaPolicy,
    #[command(flatten)]
    pub place: Place,
    /// Measured runs, after one to warm up [default: 1 on operands from files, else as many as fit a second, at least 5]
    #[arg(long, value_name = "R")]
    pub repeat: Option<usize>,
    /// Compare with a naive loop in double precision; exit status 1 if an element is out of its bound
    #[arg(long)]
    pub verify: bool,
    /// Write the result to a file: .npy, .mtx or .txt, .gz may follow; of sddmm .mtx, or .npy for the values alone, row by row
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// The edge function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EdgeName {
    /// s, the entry itself
    Identity,
    /// a s, a the value of the sparse matrix
    Scale,
    /// 1 / (1 + e^-s)
    Sigmoid,
    /// Softmax of s / sqrt(N) over each row
    Softmax,
    /// max(s, 0.2 s)
    LeakyRelu,
    /// Softmax of max(s, 0.2 s) over each row
    SoftmaxLeakyRelu,
}

/// The slope of the leaky rectifiers (Velickovic et al. 2018), the same number in f32 and f64.
const SLOPE: f32 = 0.2;

impl EdgeName {
    /// The edge function for dot products of `n` columns, and the reference's.
    pub fn function<T: Scalar>(self, n: usize) -> (BuiltIn<T>, reference::Edge<'static>) {
        let scale = T::from_f64(1.0 / (n as f64).sqrt());
        let slope = f64::from(SLOPE);
        let own = T::from_f64(slope);
        match self {
            Self::Identity => (BuiltIn::Identity, reference::Edge::Identity),
            Self::Scale => (BuiltIn::Scale, reference::Edge::Scale),
            Self::Sigmoid => (BuiltIn::Sigmoid, reference::Edge::Sigmoid),
            Self::Softmax => (edge::Softmax { scale }.into(), reference::Edge::Softmax { scale: scale.to_f64() }),
            Self::LeakyRelu => (edge::LeakyRelu { slope: own }.into(), reference::Edge::LeakyRelu { slope }),
            Self::SoftmaxLeakyRelu => {
                (edge::SoftmaxLeakyRelu { slope: own }.into(), reference::Edge::SoftmaxLeakyRelu { slope })
            }
        }
    }
}

/// The path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PathName {
    /// By the plan
    Auto,
    /// Straight from CSR
    Direct,
    /// By panels
    Panel,
    /// By slices of rows, one column of SpMM
    Slices,
}

/// The name of a plan's path.
pub fn path_name(path: Strategy) -> &'static str {
    match path {
        Strategy::Panel => "panel",
        Strategy::Slices => "slices",
        _ => "direct",
    }
}

/// A matrix as it is run.
pub enum Ready<T> {
    /// As a whole.
    Whole(Prepared<T>),
    /// By rows, on the nodes that own them.
    NumaPrepared(NumaPrepared<T>),
}

/// How a matrix was prepared.
pub struct Setup {
    plan: String,
    path: Strategy,
    prepare_s: f64,
    numa: Option<Numa>,
}

impl Setup {
    /// The outcome of `times` runs, each of `flops` operations and `bytes` of compulsory traffic.
    pub fn measured(self, times: Times, check: Check, (flops, bytes): (f64, f64)) -> Measured {
        let Self { plan, path, prepare_s, numa } = self;
        Measured { plan, path, heads: 1, prepare_s, times, check, flops, bytes, numa, ran: Ran::on_cpu() }
    }
}

/// What a run of an operation came to.
pub struct Measured {
    /// Of the prepared operand, in words.
    pub plan: String,
    /// The path taken.
    pub path: Strategy,
    /// Into which the columns of the dense operands are cut.
    pub heads: usize,
    /// Of preparing it, in seconds.
    pub prepare_s: f64,
    /// Of the runs.
    pub times: Times,
    /// Against the reference.
    pub check: Check,
    /// Operations, counted as the papers do.
    pub flops: f64,
    /// Every operand once.
    pub bytes: f64,
    /// What was placed on which node; `None` on a device.
    pub numa: Option<Numa>,
    /// Where it ran.
    pub ran: Ran,
}

/// One line of JSON, or some of text.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    m: usize,
    k: usize,
    n: usize,
    nnz: usize,
    heads: usize,
    path: &'static str,
    /// Null where no order was asked for.
    reorder: Option<Reordered>,
    numa: Option<Numa>,
    #[serde(flatten)]
    ran: Ran,
    #[serde(flatten)]
    speed: Speed,
    #[serde(flatten)]
    check: Check,
}

impl Common {
    /// Settles what the files of the dense operands say, for the operation `op` on the operands `needed`.
    pub fn settle(&mut self, op: &str, needed: &[&'static str]) -> Result<()> {
        let settled = self.operands.settle(op, needed, self.given_n)?;
        self.n = settled.as_ref().map(|s| s.n).or(self.given_n).unwrap_or(0);
        let double = settled.as_ref().is_some_and(|s| s.element == Some(8));
        self.dtype = self.given_dtype.unwrap_or(if double { StoredDtype::F64 } else { StoredDtype::F32 });
        // One result is asked for, not a speed: neither many runs nor a preparation that pays after many.
        self.repeat = self.repeat.or(settled.map(|_| 1));
        Ok(())
    }

    /// Before the work: is there anything that could be written where `--out` says?
    pub fn check_out(&self, op: &str) -> Result<()> {
        let Some(path) = &self.out else { return Ok(()) };
        if DenseFormat::of(path)? == DenseFormat::Txt && op == "sddmm" {
            let detail = format!("{}: sddmm's result is sparse, for .mtx, or for .npy without places", path.display());
            return Err(Error::Argument { name: "out", detail });
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.map(std::fs::read_dir) {
            Some(Err(source)) => Err(Error::Io { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    /// Loads the matrix, runs `measure` or, where a device is asked for, `on_device` on it and reports.
    pub fn run<D: Stored>(
        &self,
        op: &'static str,
        measure: impl FnOnce(&Self, &Cpu, &Ordered<D::Scalar>) -> Result<Measured>,
        on_device: impl FnOnce(&Self, &Cpu, &Csr<D::Scalar>) -> Result<Measured>,
    ) -> Result<Verdict> {
        self.run_on::<D>(op, |a| a, measure, on_device)
    }

    /// The same on what `part` makes of the matrix.
    pub fn run_on<D: Stored>(
        &self,
        op: &'static str,
        part: impl FnOnce(Csr<D::Scalar>) -> Csr<D::Scalar> + Send,
        measure: impl FnOnce(&Self, &Cpu, &Ordered<D::Scalar>) -> Result<Measured>,
        on_device: impl FnOnce(&Self, &Cpu, &Csr<D::Scalar>) -> Result<Measured>,
    ) -> Result<Verdict> {
        self.check_out(op)?;
        if self.place.device != DeviceName::Cpu && self.effort == EffortName::Measure {
            let detail = "measuring is for plans of the processor".to_owned();
            return Err(Error::Argument { name: "effort", detail });
        }
        let cpu = self.executor.cpu()?;
        if self.reorder != Order::None && self.place.device != DeviceName::Cpu {
            let detail =
                "matrices are reordered on the processor: convert --reorder writes one for a device".to_owned();
            return Err(Error::Argument { name: "reorder", detail });
        }
        // FusedMM reads a row of B and one of D for each nonzero.
        let row_bytes = self.n.saturating_mul(size_of::<D>()).saturating_mul(if op == "fusedmm" { 2 } else { 1 });
        let (l2_bytes, runs) = (cpu.machine().l2_bytes(), self.repeat.unwrap_or(REUSE));
        let auto = |a: PatternRef<'_>| reorder::auto(a, l2_bytes, row_bytes, runs);
        let ordered = cpu.install(|| {
            let a = part(self.source.load::<D::Scalar>()?);
            let a = if D::NARROW { a.stored_as::<D>().stored_as() } else { a };
            Ordered::new(a, self.reorder, auto)
        })?;
        let a = ordered.given();
        let done = match self.place.device {
            DeviceName::Cpu => measure(self, &cpu, &ordered)?,
            _ => on_device(self, &cpu, a)?,
        };
        let path = match &self.place.device {
            DeviceName::Cpu => path_name(done.path),
            DeviceName::Gpu(_) => "gpu",
            DeviceName::Hetero(_) => "hetero",
        };
        self.report::<D>(op, &cpu, (a.rows(), a.cols(), a.nnz()), path, done, ordered.report())
    }

    /// Reports what `op` on an A of m rows, k columns and nnz nonzeros came to.
    pub fn report<D: Stored>(
        &self,
        op: &'static str,
        cpu: &Cpu,
        (m, k, nnz): (usize, usize, usize),
        path: &'static str,
        done: Measured,
        reorder: Option<Reordered>,
    ) -> Result<Verdict> {
        let mut speed =
            Speed::new::<D::Scalar>(cpu, done.prepare_s, done.times, done.flops, done.bytes).stored_as(D::DTYPE);
        if self.place.device != DeviceName::Cpu {
            // The peak is the processor's: no measure for a device.
            speed = speed.without_peak();
        }
        let (numa, ran, check) = (done.numa, done.ran, done.check);
        let report = Report { op, m, k, n: self.n, nnz, heads: done.heads, path, reorder, numa, ran, speed, check };
        if self.json {
            output::json(&report)?;
        } else {
            let (plan, speed, check) = (&done.plan, report.speed.text(), report.check.text());
            output::line(&format!(
                "{op}: A is {m} x {k} with {nnz} nonzeros, N = {}\n{}plan     {plan}\n{}{}{speed}\n{check}",
                self.n,
                report.reorder.as_ref().map(Reordered::text).unwrap_or_default(),
                report.numa.as_ref().map(Numa::text).unwrap_or_default(),
                report.ran.text().unwrap_or_default()
            ))?;
        }
        Ok(if report.check.verified == Some(false) { Verdict::Wrong } else { Verdict::Good })
    }

    /// The path asked for.
    pub fn path(&self) -> Strategy {
        match self.path {
            PathName::Auto => Strategy::Auto,
            PathName::Direct => Strategy::Direct,
            PathName::Panel => Strategy::Panel,
            PathName::Slices => Strategy::Slices,
        }
    }

    /// Prepares `a` with values of `D`, on the nodes that own its rows where `--numa` and the machine have it so: there as they are
    /// computed with.
    pub fn ready<D: Stored>(&self, cpu: &Cpu, op: Op, a: &Csr<D::Scalar>) -> Result<(Ready<D::Scalar>, Setup)> {
        let (reuse, start) = (self.repeat.unwrap_or(REUSE), Instant::now());
        let options = PlanOptions::new(op, self.n).strategy(self.path()).reuse(reuse).effort(self.effort.effort());
        let placement = cpu.placement::<D::Scalar>(a.pattern(), self.n, reuse, self.numa)?;
        let numa = Some(Numa::of_rows(self.numa, &placement, a.pattern(), cpu.machine()));
        let seconds = |start: Instant| start.elapsed().as_secs_f64();
        if placement.parts().len() < 2 {
            let prepared = match D::NARROW {
                true => cpu.prepare(SparseOperand::of(&a.stored_as::<D>()), &options)?,
                false => cpu.prepare(a, &options)?,
            };
            let (plan, path) = (prepared.plan().to_string(), prepared.plan().strategy());
            return Ok((Ready::Whole(prepared), Setup { plan, path, prepare_s: seconds(start), numa }));
        }
        let placed = cpu.place(a, &options, placement)?;
        let prepare_s = seconds(start);
        // The first chunk's plan stands for all: they differ in rows alone.
        let (plan, path) = placed
            .prepared()
            .map_or((String::new(), Strategy::Direct), |p| (p.plan().to_string(), p.plan().strategy()));
        let chunks: Vec<_> = placed.matrix().chunks().iter().map(|part| part.len().to_string()).collect();
        let plan = format!("{plan}; chunks by node: {}", chunks.join(", "));
        Ok((Ready::NumaPrepared(placed), Setup { plan, path, prepare_s, numa }))
    }

    /// Compares the dense `result` with what is expected, if that is asked for, and writes it, if that is.
    pub fn finish<D: Stored>(
        &self,
        cpu: &Cpu,
        result: MatRef<'_, D>,
        expected: impl FnOnce() -> Result<Expected> + Send,
    ) -> Result<Check> {
        let check = Check::when(self.verify, || cpu.install(|| expected()?.deviation(result)))?;
        self.write_dense(result)?;
        Ok(check)
    }

    /// Writes a dense result, if that is asked for.
    pub fn write_dense<D: Stored>(&self, result: MatRef<'_, D>) -> Result<()> {
        let Some(path) = &self.out else { return Ok(()) };
        match DenseFormat::of(path)? {
            DenseFormat::Npy => write_npy(path, &[result.rows(), result.cols()], result),
            _ => write_dense(path, widened(result)?.as_ref()),
        }
    }

    /// Writes the `values` of sddmm at the nonzeros of `pattern`, if that is asked for.
    pub fn write_values<V: Stored>(&self, pattern: &Arc<Pattern>, values: Vec<V>) -> Result<()> {
        let Some(path) = &self.out else { return Ok(()) };
        match DenseFormat::of(path)? {
            DenseFormat::Npy => write_npy(path, &[values.len()], MatRef::new(&values, values.len(), 1, 1)?),
            _ => write_mtx(path, &Matrix::Values(Csr::new(pattern.clone(), values)?.stored_as::<V::Scalar>())),
        }
    }

    /// Dense operand `name`, of `rows` rows: from its file, or random, by the seed and its number `which`.
    pub fn operand<D: Stored>(&self, cpu: &Cpu, name: &'static str, rows: usize, which: u64) -> Result<Mat<D>> {
        cpu.install(|| match self.operands.read(name, rows)? {
            Some(read) => narrowed(read),
            None => generate::uniform_dense(rows, self.n, self.source.seed.wrapping_add(which)),
        })
    }

    /// The error that `op` has no such element type.
    pub fn no_dtype(&self, op: &str) -> Error {
        let name = self.dtype.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        Error::Argument { name: "dtype", detail: format!("{op} has no element type {name}") }
    }

    /// The error that `what` is for one machine.
    pub fn not_on_ranks(what: &str) -> Error {
        Error::Argument { name: "mpi", detail: format!("{what} run on one machine") }
    }

    /// The error that `op` has no such edge function.
    pub fn no_edge(&self, op: &str) -> Error {
        let name = self.edge.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        Error::Argument { name: "edge", detail: format!("{op} has no edge function {name}") }
    }
}

/// `a` as it is computed with.
pub fn widened<D: Stored>(a: MatRef<'_, D>) -> Result<Mat<D::Scalar>> {
    Mat::from_fn(a.rows(), a.cols(), |i, j| a[(i, j)].widen())
}

/// `a` as it is stored; where that is what it is computed with, itself.
pub fn narrowed<D: Stored>(a: Mat<D::Scalar>) -> Result<Mat<D>> {
    let a: Box<dyn Any> = Box::new(a);
    match a.downcast::<Mat<D>>() {
        Ok(same) => Ok(*same),
        Err(wide) => {
            let wide = wide.downcast::<Mat<D::Scalar>>().unwrap_or_else(|_| unreachable!("it was made of that type"));
            Mat::from_fn(wide.rows(), wide.cols(), |i, j| D::narrow(wide[(i, j)]))
        }
    }
}

/// Bytes of the sparse matrix: row pointers and column indices, and the values, of `D`, if they are read.
pub fn sparse_bytes<D: Stored>(a: &Csr<D::Scalar>, valued: bool) -> f64 {
    let value = if valued { size_of::<D>() } else { 0 };
    ((a.rows() + 1) * size_of::<usize>() + a.nnz() * (size_of::<u32>() + value)) as f64
}

/// Bytes of a dense matrix of `rows` x `cols`.
pub fn dense_bytes<T>(rows: usize, cols: usize) -> f64 {
    rows as f64 * cols as f64 * size_of::<T>() as f64
}
