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

/// Messages that a trace has under way at once, to and from each rank: the time of a simulator grows with the number of all of them. As
/// many as a box of a mesh has faces, and two more.
pub const AT_ONCE: usize = 8;

/// Writes the `steps` of `rank` of `size` as a trace. A step of many messages goes by rounds, each rank to those after it first: where
/// all of a group send to each other, everybody sends and receives as much in each round.
///
/// # Errors
/// As they come from `out`.
pub fn write_trace(out: &mut impl Write, rank: usize, size: usize, steps: &[Step]) -> std::io::Result<()> {
    writeln!(out, "{rank} init")?;
    for Step { sends, receives, flops } in steps {
        let (mut sends, mut receives) = (sends.clone(), receives.clone());
        sends.sort_by_key(|&(to, _)| (to + size - rank) % size);
        receives.sort_by_key(|&(from, _)| (rank + size - from) % size);
        let round = |messages: &[(usize, usize)], k: usize| -> Vec<(usize, usize)> {
            messages.iter().skip(k * AT_ONCE).take(AT_ONCE).copied().collect()
        };
        let rounds = sends.len().max(receives.len()).div_ceil(AT_ONCE);
        for k in 0..rounds.max(1) {
            for (from, bytes) in round(&receives, k) {
                writeln!(out, "{rank} irecv {from} 0 {bytes} 6")?;
            }
            for (to, bytes) in round(&sends, k) {
                writeln!(out, "{rank} isend {to} 0 {bytes} 6")?;
            }
            if *flops > 0.0 && k == 0 {
                writeln!(out, "{rank} compute {flops:.0}")?;
            }
            if k < rounds {
                writeln!(out, "{rank} waitall")?;
            }
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
        write_trace(&mut out, 3, 4, &steps).unwrap();
        let wanted =
            "3 init\n3 irecv 2 0 16 6\n3 isend 1 0 8 6\n3 compute 1000000000000\n3 waitall\n3 compute 5\n3 finalize\n";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
    }

    #[test]
    fn rounds_of_a_group_meet() {
        // All of 0, 2, 4, ..., 18 to each other: whom one sends to in a round, that one receives from in it.
        let group: Vec<usize> = (0..10).map(|k| 2 * k).collect();
        let rounds = |rank: usize| -> Vec<Vec<String>> {
            let others: Vec<_> = group.iter().filter(|&&r| r != rank).map(|&r| (r, 8)).collect();
            let step = Step { sends: others.clone(), receives: others, flops: 0.0 };
            let mut out = Vec::new();
            write_trace(&mut out, rank, 20, &[step]).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.split("waitall").map(|round| round.lines().map(str::to_owned).collect()).collect()
        };
        let all: Vec<_> = group.iter().map(|&rank| rounds(rank)).collect();
        for (rank, own) in group.iter().zip(&all) {
            assert_eq!(own.len(), 9usize.div_ceil(AT_ONCE) + 1);
            for (k, round) in own.iter().enumerate() {
                for line in round.iter().filter(|line| line.contains("isend")) {
                    let to: usize = line.split(' ').nth(2).unwrap().parse().unwrap();
                    assert!(all[to / 2][k].contains(&format!("{to} irecv {rank} 0 8 6")), "{line}");
                }
            }
        }
    }
}
