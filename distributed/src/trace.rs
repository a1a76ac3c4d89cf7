//! Time-independent traces: what ranks send, receive and compute, for [SimGrid](https://simgrid.org) to replay on a described cluster.
//!
//! ```text
//! rank init
//! rank irecv FROM TAG BYTES 6         6: MPI_BYTE
//! rank isend TO TAG BYTES 6
//! rank compute FLOPS                  while these messages travel
//! rank waitall
//! rank finalize
//! ```

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::time::Instant;

use crate::comm::{Comm, Received, Sent};
use crate::error::Result;

/// What a rank does from one wait for messages to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Rank and bytes of each message sent.
    pub sends: Vec<(usize, usize)>,
    /// Rank and bytes of each message received.
    pub receives: Vec<(usize, usize)>,
    /// Floating-point operations while these travel.
    pub flops: f64,
}

/// Writes the `steps` of `rank` as a trace.
///
/// # Errors
/// As they come from `out`.
pub fn write_trace(out: &mut impl Write, rank: usize, steps: &[Step]) -> std::io::Result<()> {
    writeln!(out, "{rank} init")?;
    for Step { sends, receives, flops } in steps {
        for (from, bytes) in receives {
            writeln!(out, "{rank} irecv {from} 0 {bytes} 6")?;
        }
        for (to, bytes) in sends {
            writeln!(out, "{rank} isend {to} 0 {bytes} 6")?;
        }
        if *flops > 0.0 {
            writeln!(out, "{rank} compute {flops:.0}")?;
        }
        if !sends.is_empty() || !receives.is_empty() {
            writeln!(out, "{rank} waitall")?;
        }
    }
    writeln!(out, "{rank} finalize")
}

/// Records what `comm` carries, agreements too, and the time between and during exchanges as floating-point operations.
pub struct TraceComm<'a> {
    comm: &'a (dyn Comm + 'a),
    rate: f64,
    steps: RefCell<Vec<Step>>,
    /// The end of the last exchange.
    since: Cell<Instant>,
}

impl<'a> TraceComm<'a> {
    /// Over `comm`; a second of work is `rate` operations.
    pub fn new(comm: &'a (dyn Comm + 'a), rate: f64) -> Self {
        Self { comm, rate, steps: RefCell::default(), since: Cell::new(Instant::now()) }
    }

    /// What was recorded since the last call.
    pub fn take(&self) -> Vec<Step> {
        self.since.set(Instant::now());
        self.steps.take()
    }
}

impl Comm for TraceComm<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        let before = self.since.get().elapsed().as_secs_f64();
        let mut during = 0.0;
        let done = self.comm.exchange(sends, receives, &mut || {
            let start = Instant::now();
            work();
            during = start.elapsed().as_secs_f64();
        });
        let mut steps = self.steps.borrow_mut();
        steps.push(Step { flops: before * self.rate, ..Step::default() });
        steps.push(step(sends, receives, during * self.rate));
        self.since.set(Instant::now());
        done
    }
}

fn step(sends: &[Sent<'_>], receives: &[Received<'_>], flops: f64) -> Step {
    Step {
        sends: sends.iter().map(|(to, data)| (*to, data.len())).collect(),
        receives: receives.iter().map(|(from, room)| (*from, room.len())).collect(),
        flops,
    }
}

/// A rank that is alone: messages are written down, nothing arrives.
pub(crate) struct Alone {
    rank: usize,
    size: usize,
    steps: RefCell<Vec<Step>>,
}

impl Alone {
    /// The messages of `collective` as rank `rank` of `size`, whatever arrives.
    pub fn steps(rank: usize, size: usize, collective: impl FnOnce(&dyn Comm) -> Result<()>) -> Vec<Step> {
        let alone = Self { rank, size, steps: RefCell::default() };
        // Nothing fails that does nothing.
        let _ = collective(&alone);
        alone.steps.into_inner()
    }
}

impl Comm for Alone {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], _: &mut dyn FnMut()) -> Result<()> {
        self.steps.borrow_mut().push(step(sends, receives, 0.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_lines_of_actions() {
        let steps = [
            Step { sends: vec![(1, 8)], receives: vec![(2, 16)], flops: 1e12 },
            Step { flops: 5.0, ..Step::default() },
        ];
        let mut out = Vec::new();
        write_trace(&mut out, 3, &steps).unwrap();
        let wanted = "3 init\n3 irecv 2 0 16 6\n3 isend 1 0 8 6\n3 compute 1000000000000\n3 waitall\n3 compute 5\n3 finalize\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }
}
