//! `--threads`, `--pin` and `--arch`: the executor that a command runs on.

use clap::ValueEnum;
use sparsimd::machine::Pinning;
use sparsimd::plan::Effort;
use sparsimd::{Arch, Cpu, CpuBuilder, Error, Result};

use super::output;

/// How a command uses the processor.
#[derive(Debug, clap::Args)]
pub struct Executor {
    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Where threads are bound: none, compact, scatter, cores, or a processor list such as 0-3,8 [default: cores]
    #[arg(long, value_name = "POLICY")]
    pin: Option<Pinning>,
    /// SIMD instruction set, one of those that `sparsimd info` lists [default: the widest]
    #[arg(long, value_name = "NAME")]
    arch: Option<String>,
}

impl Executor {
    /// Starts it; standard error tells when the operating system refuses to bind threads.
    pub fn cpu(&self) -> Result<Cpu> {
        self.start(Cpu::builder())
    }

    /// Likewise, with one thread on each of `processors`, or one thread where there are none, unless threads or their binding are given.
    #[cfg(feature = "mpi")]
    pub fn cpu_of(&self, processors: &[usize]) -> Result<Cpu> {
        let pinning = if processors.is_empty() { Pinning::None } else { Pinning::List(processors.to_vec()) };
        match (self.threads, &self.pin) {
            (None, None) => self.start(Cpu::builder().threads(processors.len().max(1)).pinning(pinning)),
            // Ranks that bind threads by themselves would all bind them to the same processors.
            (_, None) => self.start(Cpu::builder().pin(false)),
            _ => self.cpu(),
        }
    }

    fn start(&self, mut builder: CpuBuilder) -> Result<Cpu> {
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        if let Some(pinning) = &self.pin {
            builder = builder.pinning(pinning.clone());
        }
        if let Some(name) = &self.arch {
            let missing = || Error::Unavailable {
                what: "the instruction set",
                detail: format!("{name:?} is not among those of this processor and build (see sparsimd info)"),
            };
            builder = builder.arch(Arch::by_name(name).ok_or_else(missing)?);
        }
        let cpu = builder.build()?;
        if cpu.unpinned_threads() > 0 {
            output::note(&format!("{} threads could not be bound: they run unbound", cpu.unpinned_threads()));
        }
        Ok(cpu)
    }
}

/// How the plan is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EffortName {
    /// By the model and what was measured before
    Estimate,
    /// By running plans on the operand
    Measure,
}

impl EffortName {
    /// As the library calls it.
    pub fn effort(self) -> Effort {
        match self {
            Self::Estimate => Effort::Estimate,
            Self::Measure => Effort::Measure,
        }
    }
}
