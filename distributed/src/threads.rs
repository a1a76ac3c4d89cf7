//! [`ThreadComm`]: ranks are threads of one program.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::comm::{Comm, Received, Sent};
use crate::error::{Error, Result};

/// A rank that is a thread, with a queue from every other one.
#[derive(Debug)]
pub struct ThreadComm {
    rank: usize,
    /// To each rank.
    to: Vec<Sender<Vec<u8>>>,
    /// From each rank.
    from: Vec<Receiver<Vec<u8>>>,
}

impl ThreadComm {
    /// What `run` returns on each of `size` ranks, in their order. A rank that ends early is an error of those that wait for it.
    ///
    /// # Panics
    /// When a rank panics, after all have ended.
    pub fn run<R: Send>(size: usize, run: impl Fn(&dyn Comm) -> R + Sync) -> Vec<R> {
        let run = &run;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = Self::all(size).into_iter().map(|comm| scope.spawn(move || run(&comm))).collect();
            let ended: Vec<_> = ranks.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            ended.into_iter().map(|r| r.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// `size` connected ranks.
    fn all(size: usize) -> Vec<Self> {
        let mut ranks: Vec<Self> = (0..size).map(|rank| Self { rank, to: Vec::new(), from: Vec::new() }).collect();
        for from in 0..size {
            for to in 0..size {
                let (sender, receiver) = channel();
                ranks[from].to.push(sender);
                ranks[to].from.push(receiver);
            }
        }
        ranks
    }
}

impl Comm for ThreadComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        let gone = |rank| Error::Message { rank, detail: "the rank has ended".to_owned() };
        for &(to, data) in sends {
            self.to[to].send(data.to_vec()).map_err(|_| gone(to))?;
        }
        work();
        for (from, room) in receives {
            let message = self.from[*from].recv().map_err(|_| gone(*from))?;
            if message.len() != room.len() {
                let detail = format!("{} bytes instead of {}", message.len(), room.len());
                return Err(Error::Message { rank: *from, detail });
            }
            room.copy_from_slice(&message);
        }
        Ok(())
    }
}
