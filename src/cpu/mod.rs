//! [`Cpu`]: an instruction set and a pool of pinned threads, as a value.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sparsimd_kernels::Arch;

use crate::error::{Error, Result};

/// Executes operations on this machine's processor.
///
/// Holds its own pool of threads; several may live side by side. Cloning shares the pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    arch: Arch,
    pool: Arc<rayon::ThreadPool>,
    unpinned: Arc<AtomicUsize>,
}

/// Builds a [`Cpu`].
#[derive(Clone, Debug, Default)]
pub struct CpuBuilder {
    threads: Option<usize>,
    arch: Option<Arch>,
    pin: Option<bool>,
}

impl Cpu {
    /// One thread per processor that the process may use, pinned, with the widest instruction set.
    ///
    /// # Errors
    /// As [`CpuBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Threads, pinning and instruction set by choice.
    pub fn builder() -> CpuBuilder {
        CpuBuilder::default()
    }

    /// The instruction set that the kernels run with.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Threads that the operating system refused to pin; they run wherever it puts them.
    pub fn unpinned_threads(&self) -> usize {
        self.unpinned.load(Ordering::Relaxed)
    }

    /// Runs `f` inside the pool, where rayon's parallel iterators use its threads.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.pool.install(f)
    }
}

impl CpuBuilder {
    /// Number of threads, at least 1. Default: the processors that the process may use.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// The instruction set. Default: [`Arch::detect`].
    pub fn arch(mut self, arch: Arch) -> Self {
        self.arch = Some(arch);
        self
    }

    /// Whether each thread is bound to one processor. Default: yes, unless there are more threads than processors.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = Some(pin);
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 threads; [`Error::Unavailable`] when the operating system refuses the threads.
    pub fn build(self) -> Result<Cpu> {
        // Read before any thread is pinned: the list is of the calling thread's own mask.
        let allowed = core_affinity::get_core_ids().unwrap_or_default();
        let threads = self.threads.unwrap_or(allowed.len().max(1));
        if threads == 0 {
            return Err(Error::argument("threads", "0 is not a number of threads; at least 1"));
        }
        let pin = self.pin.unwrap_or(threads <= allowed.len());
        let unpinned = Arc::new(AtomicUsize::new(0));
        let failures = Arc::clone(&unpinned);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("sparsimd-{i}"))
            .start_handler(move |i| {
                let bound = !pin || allowed.get(i).is_some_and(|&core| core_affinity::set_for_current(core));
                failures.fetch_add(usize::from(!bound), Ordering::Relaxed);
            })
            .build()
            .map_err(|e| Error::Unavailable { what: "a thread pool", detail: e.to_string() })?;
        Ok(Cpu { arch: self.arch.unwrap_or_else(Arch::detect), pool: Arc::new(pool), unpinned })
    }
}
