//! `sparsimd tune`: measured plans for typical patterns, kept as wisdom.

use std::path::PathBuf;

use serde::Serialize;
use sparsimd::generate::{Initiator, kronecker, random_matrix};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::plan::{Effort, Op, PlanOptions};
use sparsimd::{Coo, Cpu, Csr, Result, Scalar};

use super::executor::Executor;
use super::progress::Progress;
use super::timing::Dtype;
use super::{Verdict, output};

/// Rows and columns of the uniformly random matrices, and their shares of zeros: those of pruned networks.
const SIZE: usize = 4096;
const SPARSITIES: [f64; 3] = [0.7, 0.9, 0.98];

/// Rows and nonzeros of the graph.
const GRAPH: (usize, usize) = (1 << 16, 1 << 19);

/// So many runs are announced that only the limit on measuring counts.
const RUNS: usize = 1 << 30;

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sparse matrices to measure on: .mtx or .smtx, .gz may follow [default: uniformly random ones of 4096 x 4096 with
    /// 70, 90 and 98 % zeros, and a graph of 65536 nodes]
    #[arg(long, value_name = "FILE")]
    matrix: Vec<PathBuf>,
    /// Columns of the dense matrices
    #[arg(short = 'n', value_name = "N", value_delimiter = ',', default_values_t = [32, 128])]
    n: Vec<usize>,
    /// Element type [default: both]
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    #[command(flatten)]
    executor: Executor,
    /// One JSON object for each case instead of text
    #[arg(long)]
    json: bool,
}

/// What was measured for one case.
#[derive(Serialize)]
struct Tuned<'a> {
    op: &'static str,
    matrix: &'a str,
    dtype: &'static str,
    n: usize,
    plan: String,
    plans: usize,
    seconds: f64,
    /// How many times as fast as the estimate.
    gain: f64,
}

/// Measures every case; the library keeps what it learns.
pub fn run(args: &Args) -> Result<Verdict> {
    let cpu = args.executor.cpu()?;
    if args.dtype != Some(Dtype::F64) {
        args.tune::<f32>(&cpu)?;
    }
    if args.dtype != Some(Dtype::F32) {
        args.tune::<f64>(&cpu)?;
    }
    output::note(&match cpu.wisdom_file() {
        Some(path) => format!("kept in {}", path.display()),
        None => "not kept: SPARSIMD_WISDOM says so, or no folder for it is known".to_owned(),
    });
    Ok(Verdict::Good)
}

impl Args {
    fn tune<T: Scalar>(&self, cpu: &Cpu) -> Result<()> {
        for (name, a) in cpu.install(|| self.matrices::<T>())? {
            for (op, n) in
                [Op::Spmm, Op::Sddmm, Op::FusedMm].into_iter().flat_map(|op| self.n.iter().map(move |&n| (op, n)))
            {
                let options = PlanOptions::new(op, n).reuse(RUNS).effort(Effort::Measure);
                let prepared = cpu.prepare(&a, &options)?;
                let plan = prepared.plan().explain();
                // An empty matrix has nothing to measure.
                let (plans, seconds, gain) =
                    prepared.measured().map_or((0, 0.0, 1.0), |m| (m.plans, m.seconds, m.gain));
                let tuned = Tuned { op: op.name(), matrix: &name, dtype: T::NAME, n, plan, plans, seconds, gain };
                match self.json {
                    true => output::json(&tuned)?,
                    false => output::line(&format!("{} {} N = {n}, {name}: {}", tuned.op, T::NAME, tuned.plan))?,
                }
            }
        }
        Ok(())
    }

    /// The matrices to measure on, with their names.
    fn matrices<T: Scalar>(&self) -> Result<Vec<(String, Csr<T>)>> {
        if !self.matrix.is_empty() {
            let read = |path: &PathBuf| {
                let progress = Progress::of(path);
                let update = |done, total| progress.update(done, total);
                let a = read_matrix(path, ReadOptions::default().progress(&update))?.into_csr()?;
                Ok((path.display().to_string(), a))
            };
            return self.matrix.iter().map(read).collect();
        }
        let random = |sparsity: f64| {
            let name = format!("{SIZE} x {SIZE} with {:.0} % zeros", 100.0 * sparsity);
            Ok((name, random_matrix(SIZE, SIZE, sparsity, 1)?))
        };
        let mut all: Vec<_> = SPARSITIES.into_iter().map(random).collect::<Result<_>>()?;
        let (nodes, edges) = GRAPH;
        let graph = kronecker::<T>(&[nodes; 2], edges, &Initiator::core_periphery(2), 1)?;
        let places = |mode| graph.coords(mode).to_vec();
        let graph = Coo::new(nodes, nodes, places(0), places(1), graph.values().to_vec())?.to_csr()?;
        all.push((format!("graph of {nodes} nodes"), graph));
        Ok(all)
    }
}
