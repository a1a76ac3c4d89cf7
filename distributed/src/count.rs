//! [`CountComm`]: another transport, with what it carries counted.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::comm::{Comm, Received, Sent};
use crate::error::Result;

/// What a rank has sent and received, agreements left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages sent.
    pub messages_sent: usize,
    /// Bytes sent.
    pub bytes_sent: usize,
    /// Messages received.
    pub messages_received: usize,
    /// Bytes received.
    pub bytes_received: usize,
    /// Time in exchanges, agreements among them, less that of the work that went on meanwhile.
    pub time: Duration,
}

/// Counts what `comm` carries.
pub struct CountComm<'a> {
    comm: &'a (dyn Comm + 'a),
    traffic: Cell<Traffic>,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.messages_sent += other.messages_sent;
        self.bytes_sent += other.bytes_sent;
        self.messages_received += other.messages_received;
        self.bytes_received += other.bytes_received;
        self.time += other.time;
    }
}

impl<'a> CountComm<'a> {
    /// Over `comm`.
    pub fn new(comm: &'a (dyn Comm + 'a)) -> Self {
        Self { comm, traffic: Cell::default() }
    }

    /// What was carried since the last call.
    pub fn take(&self) -> Traffic {
        self.traffic.take()
    }
}

impl Comm for CountComm<'_> {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        let (start, mut worked) = (Instant::now(), Duration::ZERO);
        let done = self.comm.exchange(sends, receives, &mut || {
            let start = Instant::now();
            work();
            worked += start.elapsed();
        });
        self.note(Traffic {
            messages_sent: sends.len(),
            bytes_sent: sends.iter().map(|(_, data)| data.len()).sum(),
            messages_received: receives.len(),
            bytes_received: receives.iter().map(|(_, room)| room.len()).sum(),
            time: start.elapsed().saturating_sub(worked),
        });
        done
    }

    fn least(&self, x: u64) -> Result<u64> {
        let start = Instant::now();
        let least = self.comm.least(x);
        self.note(Traffic { time: start.elapsed(), ..Traffic::default() });
        least
    }

    fn one_machine(&self) -> bool {
        self.comm.one_machine()
    }

    fn note(&self, traffic: Traffic) {
        let mut all = self.traffic.get();
        all += traffic;
        self.traffic.set(all);
    }
}
