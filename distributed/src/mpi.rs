//! [`MpiComm`]: ranks that an MPI launcher has started.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Destination, Source};
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{Equivalence, Root};

use crate::blocks::Blocks;
use crate::comm::{Comm, Received, Sent};
use crate::error::{Error, Result};

/// Bytes of one MPI message, whose length is an `int`, at most: longer ones are cut.
const PIECE: usize = 256 << 20;

/// A rank of `MPI_COMM_WORLD`. MPI is called by the thread that made it, and by no other.
pub struct MpiComm {
    world: SimpleCommunicator,
    /// The lowest rank on this rank's machine.
    node: usize,
    /// Ends MPI when it is dropped: last.
    _universe: Universe,
    /// Some MPIs' handles are numbers, which any thread could use.
    _one_thread: PhantomData<*const ()>,
}

/// Whether MPI runs: a panic then ends all ranks.
static RUNNING: AtomicBool = AtomicBool::new(false);

impl Drop for MpiComm {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Relaxed);
    }
}

impl MpiComm {
    /// Starts MPI. From here on a panic, on any thread, ends the whole job with status 2: unwinding would wait for ranks that wait
    /// for this one.
    ///
    /// # Errors
    /// [`sparsimd::Error::Unavailable`] when MPI has been started before, or cannot be called by one of several threads.
    pub fn start() -> Result<Self> {
        let unavailable =
            |detail: &str| Error::Local(sparsimd::Error::Unavailable { what: "MPI", detail: detail.to_owned() });
        let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled)
            .ok_or_else(|| unavailable("it has been started before"))?;
        if threading < Threading::Funneled {
            return Err(unavailable("this one does not allow programs to have threads"));
        }
        RUNNING.store(true, Ordering::Relaxed);
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print(panic);
            if RUNNING.load(Ordering::Relaxed) {
                SimpleCommunicator::world().abort(2);
            }
        }));
        let world = universe.world();
        let mut lowest = world.rank();
        world.split_shared(world.rank()).process_at_rank(0).broadcast_into(&mut lowest);
        Ok(Self { world, node: lowest as usize, _universe: universe, _one_thread: PhantomData })
    }

    /// Which of `processors`, those that this rank may use, are its own: ranks of one machine that may use the same ones have equal
    /// shares of them. None where there are more ranks than processors.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn share<'a>(&self, processors: &'a [usize]) -> Result<&'a [usize]> {
        let comm: &dyn Comm = self;
        let least = processors.iter().min().map_or(0, |&p| p as u64);
        let mine = [self.node as u64, least, processors.len() as u64];
        let all = comm.all_gather(&mine, &vec![mine.len(); comm.size()])?;
        let same: Vec<usize> = (0..comm.size()).filter(|&r| all[3 * r..3 * r + 3] == mine).collect();
        let number = same.iter().filter(|&&r| r < comm.rank()).count();
        Ok(&processors[Blocks::even(processors.len(), same.len()).range(number)])
    }
}

impl Comm for MpiComm {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        mpi::request::scope(|scope| {
            let mut incoming = Vec::new();
            for (from, room) in receives {
                let process = self.world.process_at_rank(*from as i32);
                for piece in room.chunks_mut(PIECE) {
                    let len = piece.len();
                    incoming.push((*from, len, process.immediate_receive_into(scope, piece)));
                }
            }
            let mut outgoing = Vec::new();
            for &(to, data) in sends {
                let process = self.world.process_at_rank(to as i32);
                outgoing.extend(data.chunks(PIECE).map(|piece| process.immediate_send(scope, piece)));
            }
            work();
            // All are waited for, whatever arrives.
            let mut done = Ok(());
            for (rank, len, request) in incoming {
                let got = request.wait().count(u8::equivalent_datatype()) as usize;
                if got != len && done.is_ok() {
                    done = Err(Error::Message { rank, detail: format!("{got} bytes instead of {len}") });
                }
            }
            outgoing.into_iter().for_each(mpi::request::Request::wait_without_status);
            done
        })
    }
}
