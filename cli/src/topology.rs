//! `sparsimd topology`.

use std::path::{Path, PathBuf};

use sparsimd::io::{Matrix, ReadOptions, read_matrix};
use sparsimd::machine::{MemoryPolicy, Pinning, Source};
use sparsimd::plan::{NumaPolicy, RowPlacement, SharedOperand};
use sparsimd::{Cpu, Error, Machine, Result};

use super::machine::MachineArgs;
use super::matrix::REUSE;
use super::numa::Numa;
use super::progress::Progress;
use super::{Verdict, output};

/// Arguments of `topology`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Where threads are bound: none, compact, scatter, cores, or a processor list such as 0-3,8
    #[arg(long, value_name = "POLICY", default_value_t = Pinning::Cores)]
    pin: Pinning,
    /// Number of threads [default: one per allowed processor, or the length of the list]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Also which rows of this matrix each node would own: .mtx or .smtx, .gz may follow
    #[arg(long, value_name = "FILE")]
    matrix: Option<PathBuf>,
    /// Columns of the dense operand that all rows of the matrix use
    #[arg(short = 'n', value_name = "N", default_value_t = 128, requires = "matrix")]
    n: usize,
    /// Policy of the placement: auto, off, first-touch, interleave or replicate
    #[arg(long, value_name = "POLICY", default_value_t = NumaPolicy::Auto, requires = "matrix")]
    numa: NumaPolicy,
}

/// Prints the machine as a tree with the threads that a pool would bind to it; on this machine, binds them.
pub fn run(args: &Args) -> Result<Verdict> {
    let machine = args.machine.get()?;
    let threads = args.threads.unwrap_or(match &args.pin {
        Pinning::List(list) => list.len(),
        _ => machine.parallelism(),
    });
    if threads == 0 {
        let detail = "0 is not a number of threads; at least 1".to_owned();
        return Err(Error::Argument { name: "threads", detail });
    }
    let binding = machine.pin(&args.pin, threads)?;
    // What can be refused comes before the first line of output.
    let partition = args.matrix.as_ref().map(|path| partition(args, path, &machine, &binding)).transpose()?;
    let tree = machine.tree(&binding);
    let refused = match machine.source() {
        Source::Described => 0,
        _ => {
            let cpu = Cpu::builder().machine(machine).pinning(args.pin.clone()).threads(threads).build()?;
            cpu.unpinned_threads().saturating_sub(threads - binding.len())
        }
    };
    output::line(tree.trim_end())?;
    if binding.len() < threads && args.pin != Pinning::None {
        output::line(&format!("{} of {threads} threads are not bound: no processor is left", threads - binding.len()))?;
    }
    if let Some(text) = partition {
        output::line(text.trim_end())?;
    }
    if refused > 0 && args.pin != Pinning::None {
        output::line(&format!("the operating system refused to bind {refused} threads: they run unbound"))?;
    }
    Ok(Verdict::Good)
}

/// What a run of an operation on the matrix would place where, as the operations report it.
fn partition(args: &Args, path: &Path, machine: &Machine, binding: &[usize]) -> Result<String> {
    let progress = Progress::of(path);
    let update = |done, total| progress.update(done, total);
    let matrix: Matrix<f32> = read_matrix(path, ReadOptions::default().progress(&update))?;
    let pattern = matrix.pattern();
    let shares: Vec<_> = machine.by_node(binding).into_iter().map(|(node, own)| (node, own.len())).collect();
    // Another machine has no policies of this one's processes.
    let outer = match machine.source() {
        Source::Described => MemoryPolicy::FIRST_TOUCH,
        _ => MemoryPolicy::current(),
    };
    let shared = SharedOperand::of::<f32>(pattern, args.n, REUSE);
    let placement = RowPlacement::choose(machine, &shares, &outer, args.numa, pattern.row_ptr(), shared)?;
    Ok(Numa::of_rows(args.numa, &placement, pattern, machine).text())
}
