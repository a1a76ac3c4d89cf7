//! The command line of sparsimd: one module per subcommand, over the library's public interface.
//!
//! Results go to standard output, everything else to standard error. Exit status: 0; 1 when a verification failed; 2 for
//! an error, which is one line; 130 for a decomposition that Ctrl-C or SIGTERM ended early.

mod allocator;
mod bench;
mod convert;
mod cp;
mod decomposition;
mod device;
mod executor;
mod factors;
mod fpga;
mod fpga_shared;
mod fused_heads;
mod fusedmm;
mod generate;
mod heads;
mod info;
mod interrupt;
mod machine;
mod manual;
mod matrix;
mod matrix_stats;
mod matrix_streamed;
mod mttkrp;
mod mttkrp_streamed;
mod numa;
mod operands;
mod output;
mod plot;
mod power;
mod progress;
mod ranks;
mod reorder;
mod roofline;
mod sddmm;
mod simulate;
mod source;
mod spmm;
mod stats;
mod tensor;
mod tensor_ops;
mod timing;
mod topology;
mod ttm_streamed;
mod tucker;
mod tune;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use sparsimd::{Error, Result};

#[global_allocator]
static ALLOCATOR: allocator::Checked = allocator::Checked;

/// What a command that ran came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Done, and right as far as it was checked.
    Good,
    /// The result is further from the reference than it may be.
    Wrong,
    /// Ended early, as a signal asked, with what there was until then.
    Interrupted,
    /// An error, which has been reported: by one of many ranks.
    Failed,
}

/// Sparse matrix and tensor kernels: run, verify and time them on files or random inputs.
#[derive(Debug, Parser)]
#[command(name = "sparsimd", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// This machine as the library sees it, and what this build can do.
    Info(info::Args),
    /// The machine as a tree, with where threads would be bound.
    Topology(topology::Args),
    /// C = A B, A sparse; or the mean, maximum or minimum instead of the sum, or over a semiring.
    Spmm(spmm::Args),
    /// The entries of C B^T at the nonzeros of A; or rows of C and B, element by element, for each of them.
    Sddmm(sddmm::Args),
    /// E = f(C B^T at the nonzeros of A) D, without storing the entries.
    Fusedmm(fused_heads::Fused),
    /// Measure the machine and the operations on an input, and draw both.
    Roofline(roofline::Args),
    /// Write a matrix, tensor or dense file in another format or order; the endings of the names tell which.
    Convert(convert::Args),
    /// Make a synthetic sparse matrix or tensor and write it to a file.
    Generate(generate::Args),
    /// Tensor times the Khatri-Rao product of all factors but one, in one mode or in each.
    Mttkrp(mttkrp::Args),
    /// CP decomposition: by alternating least squares, all factors at once, or of counts by Poisson regression.
    Cp(cp::Args),
    /// Tensor times matrix, in one mode or in each.
    Ttm(tensor_ops::TtmArgs),
    /// Tensor times vector, in one mode or in each.
    Ttv(tensor_ops::ProductArgs),
    /// Element by element of two tensors.
    Tew(tensor_ops::TewArgs),
    /// Tensor and number, on the stored entries.
    Ts(tensor_ops::ElementwiseArgs),
    /// Tucker's decomposition of a sparse tensor.
    Tucker(tucker::Args),
    /// Orthogonal components of a symmetric sparse tensor, by the power method.
    Power(power::Args),
    /// TTM or MTTKRP on a described FPGA board, or shared with it: by an analytic model, and simulated cycle by cycle.
    Fpga(fpga::Args),
    /// The distributed operations on many ranks of a described cluster, by SimGrid.
    Simulate(simulate::Args),
    /// A suite of benchmarks against other libraries, verified, as a report with pictures.
    Bench(bench::Args),
    /// One try of a peer, for `bench`.
    #[command(hide = true)]
    BenchProbe(bench::ProbeArgs),
    /// Measure plans of the matrix operations on typical patterns or given files, for all later runs on this processor.
    Tune(tune::Args),
    /// What a sparse matrix looks like and what plans make of it, or a sparse tensor and what each format's indices take.
    Stats(stats::Args),
    /// Print a script with which a shell completes this command line.
    Completions(manual::CompletionsArgs),
    /// Write a manual page for each command.
    Man(manual::ManArgs),
}

impl Command {
    fn run(&self) -> Result<Verdict> {
        match self {
            Self::Info(args) => info::run(args),
            Self::Topology(args) => topology::run(args),
            Self::Spmm(args) => spmm::run(args),
            Self::Sddmm(args) => sddmm::run(args),
            Self::Fusedmm(args) => fusedmm::run(args),
            Self::Roofline(args) => roofline::run(args),
            Self::Convert(args) => convert::run(args),
            Self::Generate(args) => generate::run(args),
            Self::Mttkrp(args) => mttkrp::run(args),
            Self::Cp(args) => cp::run(args),
            Self::Ttm(args) => tensor_ops::ttm(args),
            Self::Ttv(args) => tensor_ops::ttv(args),
            Self::Tew(args) => tensor_ops::tew(args),
            Self::Ts(args) => tensor_ops::ts(args),
            Self::Tucker(args) => tucker::run(args),
            Self::Power(args) => power::run(args),
            Self::Fpga(args) => fpga::run(args),
            Self::Tune(args) => tune::run(args),
            Self::Stats(args) => stats::run(args),
            Self::Completions(args) => manual::completions(args),
            Self::Man(args) => manual::man(args),
            Self::Simulate(args) => simulate::run(args),
            Self::Bench(args) => bench::run(args),
            Self::BenchProbe(args) => bench::probe(args),
        }
    }

    /// Settles what arguments mean that depend on files.
    fn settle(&mut self) -> Result<()> {
        match self {
            Self::Spmm(args) => args.common.settle("spmm", &["b"]),
            Self::Sddmm(args) => args.common.settle("sddmm", &["c", "b"]),
            Self::Fusedmm(args) => args.common.settle("fusedmm", &["c", "b", "d"]),
            Self::Mttkrp(args) => args.settle(),
            Self::Ttm(args) => args.product.settle(),
            Self::Ttv(args) => args.settle(),
            _ => Ok(()),
        }
    }

    /// Whether it runs on the ranks of a launcher.
    fn on_ranks(&self) -> bool {
        match self {
            Self::Spmm(args) => args.common.ranks.mpi,
            Self::Sddmm(args) => args.common.ranks.mpi,
            Self::Fusedmm(args) => args.common.ranks.mpi,
            Self::Cp(args) => args.mpi,
            Self::Simulate(args) => args.mpi,
            _ => false,
        }
    }

    /// The sparse operand as the user named it, where the command has one.
    fn operand(&self) -> Option<String> {
        match self {
            Self::Spmm(args) => args.common.source.operand(),
            Self::Sddmm(args) => args.common.source.operand(),
            Self::Fusedmm(args) => args.common.source.operand(),
            Self::Convert(args) => Some(args.operand()),
            Self::Generate(args) => Some(args.operand()),
            Self::Mttkrp(args) => args.operand(),
            Self::Fpga(args) => args.operand(),
            Self::Cp(args) => Some(args.operand()),
            Self::Tucker(args) => Some(args.operand()),
            Self::Power(args) => Some(args.operand()),
            Self::Ttm(args) => args.product.operand(),
            Self::Ttv(args) => args.operand(),
            Self::Stats(args) => Some(args.operand()),
            _ => None,
        }
    }

    /// `error` with the operand's name, where the memory for an object made from it is not available.
    fn with_operand(&self, error: Error) -> Error {
        match (error, self.operand()) {
            (Error::Memory { what, bytes }, Some(operand)) if !what.starts_with(&operand) => {
                Error::Memory { what: format!("{operand}: {what}"), bytes }
            }
            (error, _) => error,
        }
    }
}

/// Parses the arguments, runs the command, reports.
fn main() -> ExitCode {
    allocator::share_arena_under_limit();
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) if matches!(help.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // Nothing is left to be said when even this cannot be printed.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return refuse("a command is missing (see --help)");
        }
        Err(error) => return refuse(&usage_line(&error)),
    };
    if let Err(error) = ranks::check_launcher(cli.command.on_ranks()) {
        return refuse(&error.to_string());
    }
    cli.command.operand().into_iter().for_each(allocator::name_operand);
    match cli.command.settle().and_then(|()| cli.command.run()) {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(1),
        Ok(Verdict::Interrupted) => ExitCode::from(interrupt::STATUS),
        Ok(Verdict::Failed) => ExitCode::from(2),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&cli.command.with_operand(error).to_string()),
    }
}

/// Reports the error `message` of the arguments, which all ranks have alike. The others leave the status to the first: a launcher that
/// sees one of them fail may end the first before it has reported.
fn refuse(message: &str) -> ExitCode {
    if ranks::speaks() { fail(message) } else { ExitCode::SUCCESS }
}

/// Reports the error `message`; of many ranks, the first does.
fn fail(message: &str) -> ExitCode {
    if ranks::speaks() {
        output::note(&format!("sparsimd: {message}"));
    }
    ExitCode::from(2)
}

/// clap's message in one line: up to the hints on usage, which `--help` has.
fn usage_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let words =
        text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let line = words.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}
