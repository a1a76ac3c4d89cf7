//! `--numa`: what of an operation is on which node, as reports tell it.

use serde::Serialize;
use sparsimd::cpu::NodeCpus;
use sparsimd::formats::Pattern;
use sparsimd::machine::{MemoryMode, MemoryPolicy};
use sparsimd::plan::{NumaPolicy, RowPlacement};
use sparsimd::{Cpu, Error, Machine, Result};

use super::executor::Executor;

/// What was asked for and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Numa {
    /// As asked.
    policy: String,
    /// Whether anything was placed.
    placed: bool,
    /// Each node's rows; empty when nothing was placed, or pages were and not rows.
    nodes: Vec<Part>,
    /// Why, in one line.
    reason: String,
}

/// The rows of one node.
#[derive(Clone, Debug, Serialize)]
struct Part {
    /// As the operating system numbers it.
    node: usize,
    rows: usize,
    nnz: usize,
}

/// The executor of operations that have no owners of rows, and what becomes of their pages.
#[derive(Debug, clap::Args)]
pub struct Paged {
    #[command(flatten)]
    executor: Executor,
    /// NUMA placement of all pages: first-touch leaves them with the threads that write them, interleave spreads them over the
    /// nodes; auto interleaves where there are nodes
    #[arg(long, value_name = "POLICY", default_value_t = NumaPolicy::Auto)]
    numa: NumaPolicy,
}

impl Paged {
    /// The threads asked for.
    #[cfg(feature = "mpi")]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Starts the executor and applies the policy.
    pub fn cpu(&self) -> Result<(Cpu, Numa)> {
        let cpu = self.executor.cpu()?;
        let numa = Numa::of_pages(self.numa, &cpu)?;
        Ok((cpu, numa))
    }
}

impl Numa {
    /// Rows of a matrix of pattern `a` placed as `placement` says on `machine`.
    pub fn of_rows(policy: NumaPolicy, placement: &RowPlacement, a: &Pattern, machine: &Machine) -> Self {
        let row_ptr = a.row_ptr();
        let parts = placement.parts().iter().map(|(node, rows)| Part {
            node: machine.nodes()[*node].id,
            rows: rows.len(),
            nnz: row_ptr[rows.end] - row_ptr[rows.start],
        });
        let placed = placement.parts().len() > 1;
        let nodes = if placed { parts.collect() } else { Vec::new() };
        Self { policy: policy.to_string(), placed, nodes, reason: placement.explain() }
    }

    /// Applies `policy` to all pages that this thread and those of `cpu` write first from now on: for operations that have
    /// no owners of rows.
    ///
    /// Interleaving is what `auto` takes, since all threads read all factors.
    fn of_pages(policy: NumaPolicy, cpu: &Cpu) -> Result<Self> {
        let done = |placed, reason: String| Ok(Self { policy: policy.to_string(), placed, nodes: Vec::new(), reason });
        let (machine, outer) = (cpu.machine(), MemoryPolicy::current());
        match policy {
            NumaPolicy::Replicate => {
                let detail = "tensor operations keep no copies per node: off, first-touch or interleave".to_owned();
                return Err(Error::Argument { name: "numa", detail });
            }
            NumaPolicy::Off => return done(false, "off: as asked".to_owned()),
            _ if NodeCpus::shares_of(cpu)?.len() < 2 => {
                return done(false, "off: all threads are on one node".to_owned());
            }
            _ if outer.is_chosen() => {
                return done(false, format!("off: the process runs under the memory policy '{outer}', which wins"));
            }
            NumaPolicy::FirstTouch => return done(true, "pages on the node of the thread that wrote them".to_owned()),
            NumaPolicy::Auto | NumaPolicy::Interleave => {}
        }
        let nodes = machine.allowed_memory().clone();
        let reason = format!("all pages in turns over nodes {nodes}");
        let pages = MemoryPolicy { mode: MemoryMode::Interleave, nodes };
        pages.apply()?;
        cpu.set_memory_policy(&pages)?;
        done(true, reason)
    }

    /// In words, as many lines as there are nodes and one.
    pub fn text(&self) -> String {
        let parts = self.nodes.iter().map(|part| {
            let Part { node, rows, nnz } = part;
            format!("node {node:<5}{rows} rows, {nnz} nonzeros\n")
        });
        format!("numa     {}\n{}", self.reason, parts.collect::<String>())
    }
}
