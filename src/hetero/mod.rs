//! One operation shared between the processor and a Vulkan device (feature `vulkan`).
//!
//! The rows of the output are cut in two by work, nonzeros plus one for each row: the device takes the first part, the processor
//! the second, both at the same time. How much each takes is either given ([`Split::Static`]) or measured
//! ([`Split::Adaptive`], the adaptive static scheme of "Exploring the Limits of Cross-Platform Sparse Tensor Processing"): a tenth of the work is timed, half of it on each
//! side, the rest is cut by the two rates, and the rate is remembered with the matrix for the calls that follow.

mod matrix;

use std::time::Instant;

pub use matrix::HeteroCsr;

use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::gpu::Gpu;

/// Share of the work that an adaptive run times, half of it on each side.
const PROBE: f64 = 0.1;

/// How the work is shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// The device takes this share of the work, from 0 to 1.
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

/// A processor and a device that work together.
#[derive(Debug)]
pub struct Hetero {
    cpu: Cpu,
    gpu: Gpu,
    split: Split,
}

impl Hetero {
    /// Both executors with a way to share.
    ///
    /// # Errors
    /// [`Error::Argument`] for a share outside 0 to 1.
    pub fn new(cpu: Cpu, gpu: Gpu, split: Split) -> Result<Self> {
        if let Split::Static(share) = split
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Error::argument("share", format!("{share} is not from 0 to 1")));
        }
        Ok(Self { cpu, gpu, split })
    }

    /// The processor's side.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The device's side.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

/// The first row at which `share` of the work in rows `first ..` is done: rows are weighed by their nonzeros plus one.
fn cut(row_ptr: &[usize], first: usize, share: f64) -> usize {
    let rows = row_ptr.len() - 1;
    let work = |i: usize| row_ptr[i] - row_ptr[first] + (i - first);
    let wanted = share * work(rows) as f64;
    let mut found = first;
    // The largest row with no more than the wanted work before it.
    let (mut low, mut high) = (first, rows);
    while low <= high {
        let middle = low.midpoint(high);
        if work(middle) as f64 <= wanted {
            found = middle;
            low = middle + 1;
        } else if middle == 0 {
            break;
        } else {
            high = middle - 1;
        }
    }
    found
}

/// The device's share by the two rates: `work / seconds` of each. An even one where nothing was measured.
fn share_by_rates(device: (usize, f64), processor: (usize, f64)) -> f64 {
    let rate = |(work, seconds): (usize, f64)| work as f64 / seconds.max(1e-9);
    let (d, p) = (rate(device), rate(processor));
    if d + p > 0.0 { d / (d + p) } else { 0.5 }
}

/// Runs both at the same time: the device's side on a thread of its own. Returns the seconds of each.
fn both(device: impl FnOnce() -> Result<()> + Send, processor: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    fn timed(f: impl FnOnce() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        f()?;
        Ok(start.elapsed().as_secs_f64())
    }
    std::thread::scope(|scope| {
        let device = scope.spawn(|| timed(device));
        let processor = timed(processor);
        let device = device.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((device?, processor?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_by_work() {
        // Work before each row: 0, 11, 12, 13, 24.
        let row_ptr = [0, 10, 10, 10, 20];
        assert_eq!(cut(&row_ptr, 0, 0.0), 0);
        assert_eq!(cut(&row_ptr, 0, 0.5), 2);
        assert_eq!(cut(&row_ptr, 0, 1.0), 4);
        assert_eq!(cut(&row_ptr, 1, 0.5), 3);
        assert_eq!(cut(&row_ptr, 4, 0.5), 4);
        assert_eq!(cut(&[0], 0, 0.5), 0);
    }

    #[test]
    fn shares_follow_rates() {
        assert_eq!(share_by_rates((100, 1.0), (100, 3.0)), 0.75);
        assert_eq!(share_by_rates((0, 1.0), (0, 1.0)), 0.5);
        assert!("1.5".parse::<Split>().is_err() && "fast".parse::<Split>().is_err());
        assert_eq!("adaptive".parse(), Ok(Split::Adaptive));
        assert_eq!("0.25".parse(), Ok(Split::Static(0.25)));
    }
}
