//! [`Cpu`]: an instruction set and a pool of pinned threads, as a value.

mod nodes;
mod placed;
mod room;
mod team;
mod wisdom;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sparsimd_kernels::Arch;

use crate::error::{Error, Result};
use crate::machine::{Machine, MemoryPolicy, Pinning};
use crate::parallel::{self, handover};

use team::Team;
use wisdom::WisdomFile;

pub use nodes::NodeCpus;
pub use placed::{Chunk, NumaCsr, NumaMat, SharedMat};

/// Executes operations on this machine's processor.
///
/// Holds its own pool of threads; several may live side by side. Cloning shares the pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    arch: Arch,
    pool: Arc<rayon::ThreadPool>,
    team: Arc<Team>,
    unpinned: Arc<AtomicUsize>,
    machine: Arc<Machine>,
    binding: Arc<[usize]>,
    wisdom: Arc<WisdomFile>,
    /// The pools of [`NodeCpus::new`], once they were asked for.
    nodes: Arc<OnceLock<NodeCpus>>,
    room: Arc<room::Room>,
}

/// Builds a [`Cpu`].
#[derive(Clone, Debug, Default)]
pub struct CpuBuilder {
    threads: Option<usize>,
    arch: Option<Arch>,
    pinning: Option<Pinning>,
    machine: Option<Machine>,
    spin: Option<Duration>,
    /// A file, or none; the user's by default.
    wisdom: Option<Option<PathBuf>>,
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

    /// The machine that the threads were laid out for.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The processor that each thread is bound to, in the order of threads, as far as the operating system agreed
    /// ([`Cpu::unpinned_threads`]); threads past the end are not bound.
    pub fn binding(&self) -> &[usize] {
        &self.binding
    }

    /// The file of plans that were measured, if there may be one ([`CpuBuilder::wisdom`]).
    pub fn wisdom_file(&self) -> Option<&Path> {
        self.wisdom.path()
    }

    /// What was measured before.
    pub(crate) fn wisdom(&self) -> &WisdomFile {
        &self.wisdom
    }

    /// Makes `policy` that of every thread: what they allocate and write first follows it. What else the program's threads
    /// write first does not, unless they [`MemoryPolicy::apply`] it too.
    ///
    /// # Errors
    /// As [`MemoryPolicy::apply`]; threads may then differ.
    pub fn set_memory_policy(&self, policy: &MemoryPolicy) -> Result<()> {
        self.pool.broadcast(|_| policy.apply()).into_iter().collect()
    }

    /// Runs `f` inside the pool, where rayon's parallel iterators use its threads.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.install_loops(false, f)
    }

    /// As [`Cpu::install`], or on the caller's thread alone where f has only `short` loops: waking the pool takes some 20 us.
    pub(crate) fn install_loops<R: Send>(&self, short: bool, f: impl FnOnce() -> R + Send) -> R {
        let (mut f, mut result) = (Some(f), None);
        let mut run = || result = f.take().map(|f| f());
        // Unoptimised, a kernel's frame takes megabytes: more than a caller's thread may have, not more than the pool's.
        if short && !cfg!(debug_assertions) {
            parallel::alone(&mut run);
        } else {
            self.run(&mut run);
        }
        result.expect("f has run")
    }

    /// `f(i)` for i in 0..n, a loop of about `nanoseconds` on one thread: by the caller and threads that are awake where it is short,
    /// by the pool where it is long.
    #[inline(never)]
    pub(crate) fn run_tasks(&self, n: usize, nanoseconds: u64, f: &(dyn Fn(usize) + Sync)) {
        // The pool's own threads are the helpers: a loop inside one is the pool's. Unoptimised, a kernel's frame takes megabytes: more
        // than a caller's thread may have, not more than the pool's.
        let short = nanoseconds < LONG_LOOP && !cfg!(debug_assertions) && self.pool.current_thread_index().is_none();
        // A task alone is not shared: helpers that join for nothing hold up its end.
        if short && n <= 1 {
            return (0..n).for_each(f);
        }
        if !(short && self.team.run(&self.pool, n, nanoseconds, f)) {
            self.install(|| parallel::tasks(n, f));
        }
    }

    /// As [`Cpu::install`], compiled once.
    fn run(&self, f: &mut (dyn FnMut() + Send)) {
        self.team.dismiss();
        handover::to_tasks();
        self.pool.install(|| handover::task(f));
        handover::from_tasks();
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
    pub fn pin(self, pin: bool) -> Self {
        self.pinning(if pin { Pinning::default() } else { Pinning::None })
    }

    /// Which thread is bound to which processor. Default: [`Pinning::Cores`], unless there are more threads than
    /// processors.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = Some(pinning);
        self
    }

    /// The machine to lay threads out for. Default: [`Machine::detect`]. Processors of another machine that do not exist
    /// here are refused by the operating system; their threads run unbound.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
        self
    }

    /// How long threads look for the next operation before they sleep. Waking them takes tens of microseconds. Default: 200
    /// microseconds; none where there are more threads than processors.
    pub fn spin(mut self, time: Duration) -> Self {
        self.spin = Some(time);
        self
    }

    /// The file of plans that were measured ([`Effort::Measure`](crate::plan::Effort::Measure)), which estimates start from. Default:
    /// the one that the environment variable `SPARSIMD_WISDOM` names (`off`: none), else
    /// `wisdom-PROCESSOR.txt` in [`cache_folder`](crate::machine::cache_folder). A file that cannot be read or written, or is of another version, is as if it were
    /// not there; several programs may use one.
    pub fn wisdom(mut self, file: impl Into<PathBuf>) -> Self {
        self.wisdom = Some(Some(file.into()));
        self
    }

    /// Nothing is read that was measured before, and what is measured is forgotten with this executor.
    pub fn without_wisdom(mut self) -> Self {
        self.wisdom = Some(None);
        self
    }

    /// Starts the threads. Where the operating system refuses to bind one, it runs unbound
    /// ([`Cpu::unpinned_threads`]).
    ///
    /// # Errors
    /// [`Error::Argument`] for 0 threads, more than 16 (but at least 256) per processor, or an explicit processor list that does not fit ([`Machine::pin`]);
    /// [`Error::Unavailable`] when the operating system refuses the threads.
    pub fn build(self) -> Result<Cpu> {
        // Read before any thread is pinned.
        let machine = self.machine.unwrap_or_else(Machine::detect);
        let threads = self.threads.unwrap_or(match &self.pinning {
            Some(Pinning::List(list)) => list.len(),
            _ => machine.parallelism(),
        });
        if threads == 0 {
            return Err(Error::argument("threads", "0 is not a number of threads; at least 1"));
        }
        let most = MOST_PER_PROCESSOR.saturating_mul(machine.threads().len()).max(MOST_ANYWAY);
        if threads > most {
            return Err(Error::argument("threads", format!("{threads} threads; at most {most} on this machine")));
        }
        let fits = threads <= machine.allowed().len();
        let pinning = self.pinning.unwrap_or(if fits { Pinning::default() } else { Pinning::None });
        let binding: Arc<[usize]> = machine.pin(&pinning, threads)?.into();
        let unpinned = Arc::new(AtomicUsize::new(0));
        let (failures, targets) = (Arc::clone(&unpinned), Arc::clone(&binding));
        let pool = rayon::ThreadPoolBuilder::new();
        let pool = if cfg!(debug_assertions) { pool.stack_size(UNOPTIMISED_STACK) } else { pool };
        let pool = pool
            .num_threads(threads)
            .thread_name(|i| format!("sparsimd-{i}"))
            .start_handler(move |i| {
                handover::task(|| ());
                let bound = pinning == Pinning::None || targets.get(i).is_some_and(|&cpu| bind(cpu));
                failures.fetch_add(usize::from(!bound), Ordering::Relaxed);
            })
            .build()
            .map_err(|e| Error::Unavailable { what: "a thread pool", detail: e.to_string() })?;
        // Returns when every thread has run its start handler, so that the count of refusals is complete.
        pool.broadcast(|_| handover::task(|| ()));
        handover::from_tasks();
        let wisdom = Arc::new(WisdomFile::open(self.wisdom.unwrap_or_else(|| wisdom::users_file(&machine))));
        let machine = Arc::new(machine);
        let arch = self.arch.unwrap_or_else(Arch::detect);
        let spin = self.spin.unwrap_or(if fits { SPIN } else { Duration::ZERO });
        let team = Arc::new(Team::new(threads, Arc::clone(&binding), spin));
        let (nodes, room) = (Arc::default(), Arc::default());
        Ok(Cpu { arch, team, pool: Arc::new(pool), unpinned, machine, binding, wisdom, nodes, room })
    }
}

/// How long threads spin, unless the caller says.
const SPIN: Duration = Duration::from_micros(200);

/// Nanoseconds from which waking threads costs a loop nothing that counts.
const LONG_LOOP: u64 = 20_000_000;

/// Bytes of a thread's stack in unoptimised builds, where all that is inlined into a kernel has room of its own there: up to
/// 8 MiB. What is not touched costs nothing.
const UNOPTIMISED_STACK: usize = 64 << 20;

/// More threads than this on each processor have no use, and a slip of the keyboard should not start millions.
const MOST_PER_PROCESSOR: usize = 16;
/// As many are allowed on any machine.
const MOST_ANYWAY: usize = 256;

/// Binds the calling thread to processor `id`; whether the operating system did.
fn bind(id: usize) -> bool {
    /// Processors of the C library's mask, beyond which core_affinity panics.
    const MASK: usize = 1024;
    id < MASK && core_affinity::set_for_current(core_affinity::CoreId { id })
}
