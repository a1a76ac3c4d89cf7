//! [`MpiComm`]: ranks that an MPI launcher has started.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::{AtomicBool, Ordering};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Destination, Source};
use mpi::raw::FromRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::{Equivalence, Root};

use crate::blocks::Blocks;
use crate::comm::{Comm, Received, Sent};
use crate::error::{Error, Result};

/// Bytes of one MPI message, whose length is an `int`, at most: longer ones are cut.
const PIECE: usize = 256 << 20;

/// A rank of a communicator: `MPI_COMM_WORLD`, or a copy of a caller's. MPI is called by the thread that made it, and by no other.
pub struct MpiComm {
    ranks: ManuallyDrop<SimpleCommunicator>,
    /// The lowest rank on this rank's machine.
    node: usize,
    /// Whether all ranks are on it.
    one_machine: bool,
    /// Ends MPI when it is dropped: last. None where somebody else has started it.
    universe: Option<Universe>,
    /// Some MPIs' handles are numbers, which any thread could use.
    _one_thread: PhantomData<*const ()>,
}

/// Whether MPI runs: a panic then ends all ranks.
static RUNNING: AtomicBool = AtomicBool::new(false);

impl Drop for MpiComm {
    fn drop(&mut self) {
        if self.universe.is_some() {
            RUNNING.store(false, Ordering::Relaxed);
        }
        // Whoever has started MPI may have ended it before.
        if !mpi::environment::is_finalized() {
            // SAFETY: it is not used from here on.
            unsafe { ManuallyDrop::drop(&mut self.ranks) };
        }
    }
}

/// What an MPI takes for a communicator, from its number in Fortran.
trait FromFortran {
    /// # Safety
    /// `handle` is of a communicator of this MPI.
    unsafe fn from_fortran(handle: c_int) -> Self;
}

/// Of MPICH and its relatives, it is the number.
impl FromFortran for c_int {
    unsafe fn from_fortran(handle: c_int) -> Self {
        handle
    }
}

/// Of Open MPI, a pointer. Only there is the function needed, and there.
impl<C> FromFortran for *mut C {
    unsafe fn from_fortran(handle: c_int) -> Self {
        unsafe extern "C" {
            fn MPI_Comm_f2c(handle: c_int) -> *mut c_void;
        }
        // SAFETY: the caller's promise.
        unsafe { MPI_Comm_f2c(handle) }.cast()
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
        Ok(Self::of(world, Some(universe)))
    }

    /// A copy of a communicator that the program has already, by its number in Fortran (`MPI_Comm_c2f`, mpi4py's `comm.py2f()`): messages
    /// of the one and of the other do not meet. All of its ranks call this. MPI stays the caller's to end, after this has been dropped,
    /// on all ranks, or not at all.
    ///
    /// # Errors
    /// [`sparsimd::Error::Unavailable`] when MPI does not run, or cannot be called by one of several threads.
    ///
    /// # Safety
    /// `handle` is that of an intracommunicator of the MPI that this library was built for.
    pub unsafe fn of_handle(handle: c_int) -> Result<Self> {
        let unavailable =
            |detail: &str| Error::Local(sparsimd::Error::Unavailable { what: "MPI", detail: detail.to_owned() });
        if !mpi::environment::is_initialized() || mpi::environment::is_finalized() {
            return Err(unavailable("it does not run"));
        }
        if mpi::environment::threading_support() < Threading::Funneled {
            return Err(unavailable("it has been started for programs without threads"));
        }
        // SAFETY: the caller's promise.
        let theirs = mpi::ffi::MPI_Comm(unsafe { FromFortran::from_fortran(handle) });
        let mut copy = MaybeUninit::uninit();
        // SAFETY: a live communicator, and room for another one.
        let status = unsafe { mpi::ffi::MPI_Comm_dup(theirs, copy.as_mut_ptr()) };
        if status != 0 {
            return Err(unavailable(&format!("the communicator cannot be duplicated: error {status}")));
        }
        // SAFETY: MPI has written a communicator, which is nobody else's.
        Ok(Self::of(unsafe { SimpleCommunicator::from_raw(copy.assume_init()) }, None))
    }

    fn of(ranks: SimpleCommunicator, universe: Option<Universe>) -> Self {
        let mut lowest = ranks.rank();
        let here = ranks.split_shared(ranks.rank());
        here.process_at_rank(0).broadcast_into(&mut lowest);
        let (node, one_machine) = (lowest as usize, here.size() == ranks.size());
        Self { ranks: ManuallyDrop::new(ranks), node, one_machine, universe, _one_thread: PhantomData }
    }

    /// Ends all of the communicator's ranks, with `status`.
    pub fn abort(&self, status: c_int) -> ! {
        self.ranks.abort(status)
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
        self.ranks.rank() as usize
    }

    fn size(&self) -> usize {
        self.ranks.size() as usize
    }

    fn exchange(&self, sends: &[Sent<'_>], receives: &mut [Received<'_>], work: &mut dyn FnMut()) -> Result<()> {
        mpi::request::scope(|scope| {
            let mut incoming = Vec::new();
            for (from, room) in receives {
                let process = self.ranks.process_at_rank(*from as i32);
                for piece in room.chunks_mut(PIECE) {
                    let len = piece.len();
                    incoming.push((*from, len, process.immediate_receive_into(scope, piece)));
                }
            }
            let mut outgoing = Vec::new();
            for &(to, data) in sends {
                let process = self.ranks.process_at_rank(to as i32);
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

    fn one_machine(&self) -> bool {
        self.one_machine
    }
}
