//! One operation shared between the processor and a Vulkan device, or between two devices (feature `vulkan`).
//!
//! The output is cut in two by work: rows of a matrix, fibers and slices of a tensor, each of which weighs its nonzeros and one
//! more. The device takes the first part, the processor (or the second device) the second, both at the same time. How much
//! each takes is either given ([`Split::Static`]) or measured ([`Split::Adaptive`], the adaptive static scheme of "Exploring
//! the Limits of Cross-Platform Sparse Tensor Processing"): a tenth of the work is timed, half of it on each side, the rest is
//! cut by the two rates, and the rate is remembered with the operand for the calls that follow.
//!
//! A device that fails costs time, not the result: the processor computes its part again. It stands in for the device in the later calls
//! of that operation on that operand, which remembers the refusal: the device may take other ones, unless it was lost, which refuses all.
//! [`Hetero::take_failures`] has the reasons.

mod elementwise;
mod matrix;
mod share;
mod tensor;
mod ttm_chain;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

pub use matrix::HeteroCsr;
pub use tensor::{HeteroFibers, HeteroTensor};
pub use ttm_chain::HeteroChain;

use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::gpu::Gpu;

/// How the work is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// The (first) device takes this share of the work, from 0 to 1.
    Static(f64),
    /// By rates that the first call measures.
    Adaptive,
}

impl std::str::FromStr for Split {
    type Err = String;

    /// `adaptive`, or a share from 0 to 1.
    fn from_str(s: &str) -> Result<Self, String> {
        match s.parse::<f64>() {
            _ if s == "adaptive" => Ok(Self::Adaptive),
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Self::Static(share)),
            _ => Err(format!("\"{s}\" is neither 'adaptive' nor a share from 0 to 1")),
        }
    }
}

/// Executors that work together.
#[derive(Debug)]
pub struct Hetero {
    cpu: Cpu,
    gpus: Vec<Gpu>,
    split: Split,
    /// Why the device of a place took no share of an operation lately.
    failures: Mutex<BTreeMap<(usize, &'static str), String>>,
}

impl Hetero {
    /// A device and the processor.
    ///
    /// # Errors
    /// [`Error::Argument`] for a share outside 0 to 1.
    pub fn new(cpu: Cpu, gpu: Gpu, split: Split) -> Result<Self> {
        Self::of(cpu, vec![gpu], split)
    }

    /// Two devices; the processor stands in for one that fails.
    ///
    /// # Errors
    /// As [`Hetero::new`].
    pub fn pair(cpu: Cpu, first: Gpu, second: Gpu, split: Split) -> Result<Self> {
        Self::of(cpu, vec![first, second], split)
    }

    fn of(cpu: Cpu, gpus: Vec<Gpu>, split: Split) -> Result<Self> {
        if let Split::Static(share) = split
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Error::argument("share", format!("{share} is not from 0 to 1")));
        }
        Ok(Self { cpu, gpus, split, failures: Mutex::default() })
    }

    /// How the work is shared.
    pub fn split(&self) -> Split {
        self.split
    }

    /// The processor.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The (first) device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpus[0]
    }

    /// Why devices took no share since this function was last called, in words: the last reason for each device and operation, and
    /// nothing when all did.
    pub fn take_failures(&self) -> Vec<String> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *failures).into_iter().map(|((_, op), why)| format!("{op}: {why}")).collect()
    }

    fn note_failure(&self, place: usize, op: &'static str, why: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).insert((place, op), why);
    }
}
