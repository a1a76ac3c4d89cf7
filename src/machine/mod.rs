//! The hardware as plain data: caches, cores, NUMA nodes, SIMD width, and what of it this process may use.
//!
//! A [`Machine`] is a value: [`Machine::detect`] reads this one, so that plans and placements are functions that can be
//! tested for hardware that is not at hand.

mod assemble;
mod cpuset;
mod describe;
#[cfg(feature = "hwloc")]
mod hwloc;
mod page_buffer;
mod pages;
mod pinning;
mod sysfs;
mod tree;

use std::path::PathBuf;
use std::thread::{self, Scope, ScopedJoinHandle};

use sparsimd_kernels::Arch;

use crate::error::{Error, Result};

pub use cpuset::CpuSet;
pub use page_buffer::PageBuffer;
pub use pages::{MemoryMode, MemoryPolicy, move_pages, move_pages_at, page_bytes, page_nodes, page_nodes_at};
pub use pinning::Pinning;

/// Bytes of memory and swap space of this system that nobody uses, where it says.
pub fn available_memory() -> Option<u64> {
    sysfs::available_memory("/".as_ref())
}

/// The user's folder for what is measured once: `sparsimd` in `XDG_CACHE_HOME` or in `~/.cache`; none where the environment names
/// neither. It need not exist.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    Some(folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?.join("sparsimd"))
}

/// Assumed when nothing tells: the smallest L1 data cache of today's server and desktop cores.
const DEFAULT_L1D: usize = 32 << 10;
/// Assumed when nothing tells.
const DEFAULT_L2: usize = 1 << 20;
/// Assumed when nothing tells.
const DEFAULT_L3: usize = 8 << 20;
/// Assumed when nothing tells: x86-64 and most AArch64 processors.
const DEFAULT_LINE: usize = 64;

/// A processor with its memory, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    source: Source,
    processor: String,
    simd: Simd,
    caches: Caches,
    threads: Vec<HwThread>,
    nodes: Vec<NumaNode>,
    allowed: CpuSet,
    allowed_memory: CpuSet,
    parallelism: usize,
    huge_pages: HugePages,
}

/// Where a [`Machine`]'s facts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Linux's /sys.
    Sysfs,
    /// The library hwloc.
    Hwloc,
    /// [`Machine::describe`].
    Described,
    /// Nothing could be read: as many single-threaded cores as the process may use, one NUMA node, usual caches.
    Assumed,
}

/// The widest instruction set that the kernels are compiled for and the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simd {
    /// As [`Arch::name`].
    pub name: &'static str,
    /// Bytes of one vector register.
    pub vector_bytes: usize,
}

/// Bytes of one instance of each cache, as the allowed processor with the smallest L2 sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First-level data cache.
    pub l1d: usize,
    /// Second level.
    pub l2: usize,
    /// Third level; `None` when the processor has only two.
    pub l3: Option<usize>,
    /// Bytes of one line.
    pub line: usize,
}

/// A hardware thread (what the operating system calls a processor) and the things that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwThread {
    /// The operating system's number.
    pub cpu: usize,
    /// Core, counted over the whole machine from 0.
    pub core: usize,
    /// Which of its core's threads this is, from 0.
    pub smt: usize,
    /// Group of cores that share a last-level cache, counted over the whole machine from 0.
    pub l3: usize,
    /// Index into [`Machine::nodes`].
    pub node: usize,
    /// Processor package, counted from 0.
    pub socket: usize,
}

/// A NUMA node: memory, and perhaps processors, at one distance.
#[derive(Clone, Debug, PartialEq)]
pub struct NumaNode {
    /// The operating system's number.
    pub id: usize,
    /// Bytes of memory; 0 when unknown.
    pub memory: u64,
    /// Relative distance to each of [`Machine::nodes`]: 10 is local, 20 twice as far.
    pub distances: Vec<u32>,
}

/// Transparent huge pages and the reserved ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// When the kernel gives transparent huge pages.
    pub transparent: TransparentHugePages,
    /// Bytes of one; 0 when unknown.
    pub size: usize,
    /// Number of reserved huge pages of that size.
    pub reserved: usize,
}

/// The kernel's policy for transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransparentHugePages {
    /// Everywhere.
    Always,
    /// Where the program advises it.
    Madvise,
    /// Nowhere.
    Never,
    /// The kernel does not say.
    Unknown,
}

impl Machine {
    /// This machine: from hwloc where this build has it, else from /sys. Reads some files per processor: keep the value
    /// rather than asking again. What cannot be read is assumed; [`Machine::source`] says so.
    pub fn detect() -> Self {
        #[cfg(feature = "hwloc")]
        if let Some(machine) = Self::from_hwloc() {
            return machine;
        }
        Self::from_sysfs().unwrap_or_else(|| Self::assumed(allowed_cpus()))
    }

    /// Keeps as allowed the memory of those of `nodes` that exist; of all when there are none, or nobody told.
    fn with_memory_of(mut self, nodes: Option<CpuSet>) -> Self {
        let known = |id: &usize| self.nodes.iter().any(|node| node.id == *id);
        let allowed: CpuSet = nodes.iter().flat_map(CpuSet::iter).filter(known).collect();
        if !allowed.is_empty() {
            self.allowed_memory = allowed;
        }
        self
    }

    /// This machine as Linux describes it in /sys; `None` where there is no such thing.
    pub fn from_sysfs() -> Option<Self> {
        Some(sysfs::read("/".as_ref(), &allowed_cpus())?.with_memory_of(pages::allowed_nodes()))
    }

    /// This machine as hwloc sees it; `None` when hwloc fails.
    #[cfg(feature = "hwloc")]
    pub fn from_hwloc() -> Option<Self> {
        Some(hwloc::read(&allowed_cpus())?.with_memory_of(pages::allowed_nodes()))
    }

    /// One node of single-threaded cores, the allowed ones.
    fn assumed(allowed: CpuSet) -> Self {
        let threads = allowed
            .iter()
            .enumerate()
            .map(|(core, cpu)| HwThread { cpu, core, smt: 0, l3: 0, node: 0, socket: 0 })
            .collect();
        Self {
            source: Source::Assumed,
            processor: std::env::consts::ARCH.to_owned(),
            simd: Simd::detect(),
            caches: Caches::default(),
            threads,
            nodes: vec![NumaNode { id: 0, memory: 0, distances: vec![10] }],
            allowed_memory: CpuSet::from_iter([0]),
            parallelism: parallelism(&allowed),
            allowed,
            huge_pages: HugePages { transparent: TransparentHugePages::Unknown, size: 0, reserved: 0 },
        }
    }

    /// Where the facts come from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The processor's name.
    pub fn processor(&self) -> &str {
        &self.processor
    }

    /// The instruction set.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    /// All cache sizes.
    pub fn caches(&self) -> Caches {
        self.caches
    }

    /// Bytes of one core's first-level data cache.
    pub fn l1d_bytes(&self) -> usize {
        self.caches.l1d
    }

    /// Bytes of one second-level cache.
    pub fn l2_bytes(&self) -> usize {
        self.caches.l2
    }

    /// Bytes of one last-level cache: the third level, or the second where there is no third.
    pub fn l3_bytes(&self) -> usize {
        self.caches.l3.unwrap_or(self.caches.l2)
    }

    /// Bytes of last-level cache that each of `threads` threads has for itself when all are at work.
    pub fn l3_share(&self, threads: usize) -> usize {
        self.l3_bytes() * self.l3_groups() / threads.max(1)
    }

    /// Whether L3 is in slices all over a processor, and so hardly nearer than memory: a group of eight cores has at most 96 MiB of its own.
    /// The 480 MiB of a Granite Rapids give two threads 35 GB/s.
    pub(crate) fn l3_is_far(&self) -> bool {
        self.l3_bytes() > 96 << 20
    }

    /// Bytes of a cache line.
    pub fn line_bytes(&self) -> usize {
        self.caches.line
    }

    /// Every hardware thread, allowed or not, in ascending order of [`HwThread::cpu`].
    pub fn threads(&self) -> &[HwThread] {
        &self.threads
    }

    /// The hardware threads that this process may use, in ascending order of [`HwThread::cpu`].
    pub fn allowed_threads(&self) -> impl Iterator<Item = &HwThread> + '_ {
        self.threads.iter().filter(|t| self.allowed.contains(t.cpu))
    }

    /// The processors that this process may use (control groups, `taskset`, `numactl --cpunodebind`).
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// The NUMA nodes (by [`NumaNode::id`]) whose memory this process may use: all, unless a control group's `cpuset.mems`
    /// says otherwise. What `numactl --membind` says is a [`MemoryPolicy`], which programs can change.
    pub fn allowed_memory(&self) -> &CpuSet {
        &self.allowed_memory
    }

    /// Threads that can run at the same time: the allowed processors, or fewer under a control group's time quota.
    pub fn parallelism(&self) -> usize {
        self.parallelism
    }

    /// The NUMA nodes in ascending order of [`NumaNode::id`]; at least one.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// Number of processor packages.
    pub fn sockets(&self) -> usize {
        count(&self.threads, |t| t.socket)
    }

    /// Number of groups of cores that share a last-level cache.
    pub fn l3_groups(&self) -> usize {
        count(&self.threads, |t| t.l3)
    }

    /// Number of cores.
    pub fn cores(&self) -> usize {
        count(&self.threads, |t| t.core)
    }

    /// Huge pages.
    pub fn huge_pages(&self) -> HugePages {
        self.huge_pages
    }
}

impl Simd {
    /// The widest instruction set here.
    pub fn detect() -> Self {
        let arch = Arch::detect();
        Self { name: arch.name(), vector_bytes: arch.vector_bytes() }
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self { l1d: DEFAULT_L1D, l2: DEFAULT_L2, l3: Some(DEFAULT_L3), line: DEFAULT_LINE }
    }
}

/// Distances from node `id` to each of `count` nodes when nothing tells them: 10 is local, 20 is remote.
fn default_distances(id: usize, count: usize) -> Vec<u32> {
    (0..count).map(|other| if other == id { 10 } else { 20 }).collect()
}

/// Number of different values of `index`, which counts from 0 without gaps.
fn count(threads: &[HwThread], index: impl Fn(&HwThread) -> usize) -> usize {
    threads.iter().map(|t| index(t) + 1).max().unwrap_or(0)
}

/// The processors that the operating system lets this process run on. Asked of the process's first thread, since the
/// calling thread may be a pinned worker.
fn allowed_cpus() -> CpuSet {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    affinity_of_process().unwrap_or_else(|| (0..usable).collect())
}

/// How many of `allowed` can be busy at once.
fn parallelism(allowed: &CpuSet) -> usize {
    // available_parallelism knows control group quotas, but counts the calling thread's mask, which is a single
    // processor in a pinned worker: a quota below one whole processor cannot be told from that and does not matter.
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => allowed.len().max(1),
        n => n.min(allowed.len()).max(1),
    }
}

/// Words of a mask of 65 536 processors, eight times the kernel's largest.
#[cfg(target_os = "linux")]
const WORDS: usize = 1024;

/// The mask of the process's first thread.
#[cfg(target_os = "linux")]
fn mask_of_process() -> Option<[u64; WORDS]> {
    let mut mask = [0u64; WORDS];
    // SAFETY: getpid has no preconditions; sched_getaffinity writes at most the given number of bytes to the array,
    // for which every bit pattern is valid.
    let written =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, libc::getpid(), size_of_val(&mask), mask.as_mut_ptr()) };
    (written > 0).then_some(mask)
}

#[cfg(target_os = "linux")]
fn affinity_of_process() -> Option<CpuSet> {
    let mask = mask_of_process()?;
    let set: CpuSet = (0..WORDS * 64).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect();
    (!set.is_empty()).then_some(set)
}

/// Bytes of the stack of a thread that reads files, and of what it allocates when it starts.
const READER_STACK: usize = if cfg!(debug_assertions) { 2 << 20 } else { 512 << 10 };
const READER_ROOM: usize = 128 << 10;

/// Starts a thread that reads files beside the caller's work, and may run wherever the process's first thread may: a thread that a pinned
/// worker has started is bound to the worker's processor, and would take turns with it. Nothing depends on that but time.
pub(crate) fn start_reader<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    read: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let run = move || {
        unbind();
        read()
    };
    let refused = |e: std::io::Error| Error::Unavailable { what: "a thread", detail: e.to_string() };
    // A thread that starts and finds no room for its signal stack ends the process: room is asked for first.
    drop(memmap2::MmapMut::map_anon(READER_STACK + READER_ROOM).map_err(refused)?);
    let reader = thread::Builder::new().name("sparsimd-read".to_owned()).stack_size(READER_STACK);
    reader.spawn_scoped(scope, run).map_err(refused)
}

fn unbind() {
    #[cfg(target_os = "linux")]
    if let Some(mask) = mask_of_process() {
        // SAFETY: sched_setaffinity reads the given number of bytes of the array; 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask), mask.as_ptr()) };
    }
}

#[cfg(not(target_os = "linux"))]
fn affinity_of_process() -> Option<CpuSet> {
    let ids = core_affinity::get_core_ids()?;
    (!ids.is_empty()).then(|| ids.into_iter().map(|core| core.id).collect())
}
