//! `sparsimd topology`.

use sparsimd::machine::{Pinning, Source};
use sparsimd::{Cpu, Error, Result};

use super::machine::MachineArgs;
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
    output::line(machine.tree(&binding).trim_end())?;
    if binding.len() < threads && args.pin != Pinning::None {
        output::line(&format!("{} of {threads} threads are not bound: no processor is left", threads - binding.len()))?;
    }
    if machine.source() != Source::Described {
        let cpu = Cpu::builder().machine(machine).pinning(args.pin.clone()).threads(threads).build()?;
        let refused = cpu.unpinned_threads().saturating_sub(threads - binding.len());
        if refused > 0 && args.pin != Pinning::None {
            output::line(&format!("the operating system refused to bind {refused} threads: they run unbound"))?;
        }
    }
    Ok(Verdict::Good)
}
