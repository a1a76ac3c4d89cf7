//! The matrix operations on many ranks: who reads what, what is measured, compared and reported.

use std::time::Instant;

use serde::Serialize;
use sparsimd::io::Format;
use sparsimd::machine::{Machine, Pinning};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::reference::{self, Deviation};
use sparsimd::{Cpu, Mat, generate};
use sparsimd_distributed::{
    Algorithm, Blocks, Cluster, Comm, CountComm, DistCsr, DistMat, DistPlan, Element, Error, MpiComm, Operation,
    Partition, Result, RowsOf, Traffic, read_rows, share_rows,
};

use super::{AlgorithmName, PartitionName};
use crate::executor::Executor;
use crate::matrix::{Common, EdgeName, REUSE};
use crate::timing::{Check, StoredDtype, Times};
use crate::{Verdict, output};

/// Measured runs, unless their number is given: ranks cannot each decide when it has been enough.
const RUNS: usize = 10;

impl Common {
    /// Runs `op` on the launcher's ranks, or its gradients if `backward` (FusedMM).
    pub fn run_on_ranks(&self, op: Op, backward: bool) -> sparsimd::Result<Verdict> {
        match self.dtype {
            StoredDtype::F32 => on_ranks(|mpi| Run::<f32>::new(self, mpi, op, backward)?.report(mpi)),
            StoredDtype::F64 => on_ranks(|mpi| Run::<f64>::new(self, mpi, op, backward)?.report(mpi)),
            StoredDtype::Bf16 | StoredDtype::F16 => Err(self.no_dtype("--mpi")),
        }
    }

    /// Whether the user leaves the choice of `algorithm`.
    fn allows(&self, algorithm: Algorithm) -> bool {
        let named = match self.ranks.algorithm {
            AlgorithmName::Auto => true,
            AlgorithmName::Aware => algorithm == Algorithm::Aware,
            AlgorithmName::Dense => algorithm != Algorithm::Aware,
        };
        named && self.ranks.replication.0.is_none_or(|c| algorithm.replication() == c)
    }

    /// Who has which rows.
    fn partition(&self) -> Partition<'_> {
        match &self.ranks.partition {
            PartitionName::Balanced => Partition::Balanced,
            PartitionName::Metis => Partition::Metis,
            PartitionName::File(path) => Partition::File(path),
        }
    }
}

/// Starts MPI and runs `run`. The first rank reports errors.
pub fn on_ranks(run: impl FnOnce(&MpiComm) -> Result<Verdict>) -> sparsimd::Result<Verdict> {
    let mpi = match MpiComm::start() {
        Ok(mpi) => mpi,
        Err(Error::Local(error)) => return Err(error),
        Err(error) => {
            output::note(&format!("sparsimd: {error}"));
            return Ok(Verdict::Failed);
        }
    };
    // Before MPI ends: a launcher may end all processes once one of them has failed.
    Ok(run(&mpi).unwrap_or_else(|error| {
        if mpi.rank() == 0 {
            output::note(&format!("sparsimd: {error}"));
        }
        Verdict::Failed
    }))
}

/// An executor with this rank's share of the processors.
pub fn executor(mpi: &MpiComm, wanted: &Executor) -> Result<Cpu> {
    let comm: &dyn Comm = mpi;
    let machine = Machine::detect();
    // Neighbours of one core are of one rank.
    let processors = comm.agree(machine.pin(&Pinning::Compact, machine.allowed().len()).map_err(Error::from))?;
    comm.agree(wanted.cpu_of(mpi.share(&processors)?).map_err(Error::from))
}

/// One line of JSON, or some of text.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    m: usize,
    k: usize,
    n: usize,
    nnz: usize,
    dtype: &'static str,
    ranks: usize,
    /// Of each rank.
    threads: usize,
    algorithm: &'static str,
    replication: usize,
    /// All ranks' together, in a run.
    words_sent: usize,
    /// Likewise, by the plan.
    model_words: usize,
    /// Of a run on the rank that waits longest, in seconds, less the work that goes on meanwhile: the median.
    communication_s: f64,
    prepare_s: f64,
    min_s: f64,
    median_s: f64,
    gflops: f64,
    #[serde(flatten)]
    check: Check,
    #[serde(skip)]
    plan: String,
}

/// An operation on the ranks, ready to run.
pub(super) struct Run<'a, T> {
    pub args: &'a Common,
    op: Op,
    backward: bool,
    pub cpu: Cpu,
    pub given: RowsOf<T>,
    plan: DistPlan,
    pub a: DistCsr<T>,
    prepare_s: f64,
}

/// What runs came to: seconds of each on the slowest rank, those of its communication, and a run's traffic on this rank.
pub(super) struct Runs {
    seconds: Vec<f64>,
    communication: Vec<f64>,
    traffic: Traffic,
}

impl<'a, T: Element> Run<'a, T> {
    fn new(args: &'a Common, mpi: &MpiComm, op: Op, backward: bool) -> Result<Self> {
        let comm: &dyn Comm = mpi;
        let cpu = executor(mpi, &args.executor)?;
        // Matrix Market files are read by parts; others are small, and whole on every rank.
        let format = comm.agree(args.source.file().map(Format::of).transpose().map_err(Error::from))?;
        let given = match args.source.file().filter(|_| format == Some(Format::Mtx)) {
            Some(path) => read_rows(&cpu, comm, path, &args.partition())?,
            None if args.ranks.partition != PartitionName::Balanced => {
                let detail = "only the rows of a Matrix Market file are partitioned".to_owned();
                return Err(sparsimd::Error::Argument { name: "partition", detail }.into());
            }
            None => share_rows(comm, &comm.agree(cpu.install(|| args.source.load()).map_err(Error::from))?)?,
        };
        let start = Instant::now();
        let softmax = matches!(args.edge, EdgeName::Softmax | EdgeName::SoftmaxLeakyRelu);
        let n = args.n;
        let operation = match op {
            Op::Sddmm => Operation::Sddmm { n },
            Op::FusedMm if backward => {
                let values = args.edge == EdgeName::Scale;
                Operation::FusedMmGradient { n, width: n, same: false, softmax, values }
            }
            Op::FusedMm => Operation::FusedMm { n, width: n, same: false, softmax },
            _ => Operation::Spmm { n },
        };
        let cluster = Cluster { in_common: comm.one_machine(), ..Cluster::default().measured(comm)? };
        let RowsOf { rows, cols, local, .. } = &given;
        let plan = DistPlan::new(comm, rows, cols, local, operation, cluster, |algorithm| args.allows(algorithm))?;
        let mut a = DistCsr::new(comm, rows, cols, local, plan.chosen().algorithm)?;
        // Of gradients, the sums of products are those with A's own values.
        let prepared_for = if backward { Op::Sddmm } else { op };
        let options = PlanOptions::new(prepared_for, n).strategy(args.path()).reuse(args.repeat.unwrap_or(REUSE));
        comm.agree(a.prepare(&cpu, &options))?;
        let prepare_s = start.elapsed().as_secs_f64();
        Ok(Self { args, op, backward, cpu, given, plan, a, prepare_s })
    }

    /// Dense operand number `which`, of the rows `blocks`: this rank's.
    pub fn operand(&self, rank: usize, blocks: &Blocks, which: u64) -> Result<DistMat<T>> {
        let seed = self.args.source.seed.wrapping_add(which);
        DistMat::new(blocks, rank, generate::uniform_rows(blocks.range(rank), self.args.n, seed)?)
    }

    /// Likewise, of rows that others need: in memory of all ranks, where they have that.
    fn needed(&self, comm: &dyn Comm, which: u64) -> Result<DistMat<T>> {
        comm.agree(self.operand(comm.rank(), &self.given.cols, which))?.into_common(comm)
    }

    /// Likewise, all of it: to compare with.
    pub fn whole(&self, rows: usize, which: u64) -> Result<Mat<T>> {
        Ok(generate::uniform_dense(rows, self.args.n, self.args.source.seed.wrapping_add(which))?)
    }

    /// Measures the operation, compares and, on the first rank, reports.
    fn report(&self, comm: &dyn Comm) -> Result<Verdict> {
        let RowsOf { rows, cols, local, .. } = &self.given;
        let (rank, n) = (comm.rank(), self.args.n);
        let (runs, check) = match self.op {
            Op::FusedMm => self.fused(comm)?,
            Op::Sddmm => {
                let scaled = self.args.edge == EdgeName::Scale;
                let (c, b) = (comm.agree(self.operand(rank, rows, 1))?, self.needed(comm, 2)?);
                let mut values = vec![T::ZERO; local.nnz()];
                let runs = self.measure(comm, |comm| self.a.sddmm(&self.cpu, comm, scaled, &c, &b, &mut values))?;
                let check = self.check(comm, || {
                    let b = self.whole(cols.len(), 2)?;
                    let expected = reference::sddmm(local, scaled, c.local(), b.as_ref())?;
                    Ok(expected.deviation_of_values(&values)?)
                })?;
                (runs, check)
            }
            _ => {
                let b = self.needed(comm, 1)?;
                let mut c = comm.agree(DistMat::zeros(rows, rank, n))?;
                let runs = self.measure(comm, |comm| self.a.spmm(&self.cpu, comm, &b, &mut c))?;
                let check = self.check(comm, || {
                    let (b, got) = (self.whole(cols.len(), 1)?, c.local());
                    Ok(reference::spmm(T::ONE, local, b.as_ref(), T::ZERO, got)?.deviation(got)?)
                })?;
                (runs, check)
            }
        };
        self.print(comm, runs, check)
    }

    fn fused(&self, comm: &dyn Comm) -> Result<(Runs, Check)> {
        let (edge, wanted) = self.args.edge.function::<T>(self.args.n);
        if self.backward {
            return self.gradient(comm, edge, wanted);
        }
        let RowsOf { rows, cols, local, .. } = &self.given;
        let rank = comm.rank();
        let operands = || -> Result<_> { Ok((self.operand(rank, rows, 1)?, DistMat::zeros(rows, rank, self.args.n)?)) };
        let ((c, mut e), b, d) = (comm.agree(operands())?, self.needed(comm, 2)?, self.needed(comm, 3)?);
        let runs = self.measure(comm, |comm| self.a.fusedmm(&self.cpu, comm, edge, &c, &b, &d, &mut e))?;
        let check = self.check(comm, || {
            let (b, d) = (self.whole(cols.len(), 2)?, self.whole(cols.len(), 3)?);
            let expected = reference::fusedmm(local, wanted, c.local(), b.as_ref(), d.as_ref())?;
            Ok(expected.deviation(e.local())?)
        })?;
        Ok((runs, check))
    }

    /// Runs `run` once, and then as often as is wanted.
    pub fn measure(&self, comm: &dyn Comm, mut run: impl FnMut(&dyn Comm) -> Result<()>) -> Result<Runs> {
        if self.args.repeat == Some(0) {
            let detail = "0 runs have no time; at least 1".to_owned();
            return Err(sparsimd::Error::Argument { name: "repeat", detail }.into());
        }
        let counted = CountComm::new(comm);
        run(&counted)?;
        let (mut seconds, mut communication) = (Vec::new(), Vec::new());
        let mut traffic = counted.take();
        for _ in 0..self.args.repeat.unwrap_or(RUNS) {
            // All begin together.
            comm.least(0)?;
            let start = Instant::now();
            run(&counted)?;
            seconds.push(start.elapsed().as_secs_f64());
            traffic = counted.take();
            communication.push(traffic.time.as_secs_f64());
        }
        comm.largest(&mut seconds)?;
        comm.largest(&mut communication)?;
        Ok(Runs { seconds, communication, traffic })
    }

    /// The largest deviation of all ranks, if it is asked for.
    pub fn check(&self, comm: &dyn Comm, compare: impl FnOnce() -> Result<Deviation> + Send) -> Result<Check> {
        if !self.args.verify {
            return Ok(Check::NONE);
        }
        let mut error = [comm.agree(self.cpu.install(compare))?.error];
        comm.largest(&mut error)?;
        Ok(Check::of(error[0]))
    }

    fn print(&self, comm: &dyn Comm, runs: Runs, check: Check) -> Result<Verdict> {
        let RowsOf { rows, cols, local, .. } = &self.given;
        let mut totals = [local.nnz() as f64, (runs.traffic.bytes_sent / size_of::<T>()) as f64];
        comm.sum(&mut totals)?;
        let [nnz, words_sent] = totals;
        let (times, communication) = (Times::of(runs.seconds), Times::of(runs.communication));
        // Products of 2 nnz N operations each.
        let products = match (self.op, self.backward) {
            (Op::FusedMm, true) => 5.0,
            (Op::FusedMm, false) => 2.0,
            _ => 1.0,
        };
        let flops = 2.0 * products * nnz * self.args.n as f64;
        let chosen = self.plan.chosen();
        let report = Report {
            op: if self.backward { "fusedmm_gradient" } else { self.op.name() },
            m: rows.len(),
            k: cols.len(),
            n: self.args.n,
            nnz: nnz as usize,
            dtype: T::NAME,
            ranks: comm.size(),
            threads: self.cpu.threads(),
            algorithm: chosen.algorithm.name(),
            replication: chosen.algorithm.replication(),
            words_sent: words_sent as usize,
            model_words: chosen.total_words as usize,
            communication_s: communication.median,
            prepare_s: self.prepare_s,
            min_s: times.min,
            median_s: times.median,
            gflops: flops / times.min / 1e9,
            check,
            plan: self.plan.to_string(),
        };
        let printed = if comm.rank() == 0 { report.print(self.args.json) } else { Ok(()) };
        comm.agree(printed.map_err(Error::from))?;
        Ok(if check.verified == Some(false) { Verdict::Wrong } else { Verdict::Good })
    }
}

impl Report {
    fn print(&self, json: bool) -> sparsimd::Result<()> {
        if json {
            return output::json(self);
        }
        let Self { op, m, k, n, nnz, plan, ranks, threads, words_sent, model_words, .. } = self;
        output::line(&format!(
            "{op}: A is {m} x {k} with {nnz} nonzeros, N = {n}; {ranks} ranks of {threads} threads\n\
             plan     {plan}\nwords    {words_sent} sent in a run, {model_words} by the plan\nprepare  {:.3e} s\n\
             time     {:.3e} s at best, {:.3e} s median, of that {:.3e} s communication\nspeed    {:.2} GFLOP/s ({})\n{}",
            self.prepare_s,
            self.min_s,
            self.median_s,
            self.communication_s,
            self.gflops,
            self.dtype,
            self.check.text()
        ))
    }
}
