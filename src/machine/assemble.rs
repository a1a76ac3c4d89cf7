//! From what is said of each processor to a [`Machine`] that counts from 0.

use std::collections::BTreeMap;

use super::{Caches, CpuSet, HugePages, HwThread, Machine, NumaNode, Simd, Source, parallelism};

/// What a source says of one processor. Sockets, cores and caches may have any numbers that tell them apart.
pub(super) struct Raw {
    pub cpu: usize,
    pub socket: usize,
    pub core: usize,
    /// The last-level cache.
    pub l3: usize,
    /// Position among the nodes.
    pub node: usize,
    pub caches: Caches,
}

/// The machine with these processors, ascending, and nodes; `None` without any.
pub(super) fn assemble(
    source: Source,
    processor: String,
    raw: &[Raw],
    nodes: Vec<NumaNode>,
    allowed: &CpuSet,
    huge_pages: HugePages,
) -> Option<Machine> {
    // A list that names none of the processors seen is not this machine's: then all count.
    let usable: CpuSet = raw.iter().map(|r| r.cpu).filter(|&cpu| allowed.contains(cpu)).collect();
    let allowed = if usable.is_empty() { raw.iter().map(|r| r.cpu).collect() } else { usable };
    let caches = raw.iter().filter(|r| allowed.contains(r.cpu)).map(|r| r.caches).min_by_key(|c| c.l2)?;
    Some(Machine {
        source,
        processor,
        simd: Simd::detect(),
        caches,
        threads: count_from_zero(raw),
        allowed_memory: nodes.iter().map(|node| node.id).collect(),
        nodes,
        parallelism: parallelism(&allowed),
        allowed,
        huge_pages,
    })
}

/// Numbers sockets, shared caches, cores and a core's threads in the order of their first processor.
fn count_from_zero(raw: &[Raw]) -> Vec<HwThread> {
    let mut sockets = Ranks::default();
    let mut caches = Ranks::default();
    let mut cores = Ranks::default();
    let mut siblings: BTreeMap<usize, usize> = BTreeMap::new();
    raw.iter()
        .map(|r| {
            let core = cores.of(r.core);
            let next = siblings.entry(core).or_default();
            let smt = *next;
            *next += 1;
            HwThread { cpu: r.cpu, core, smt, l3: caches.of(r.l3), node: r.node, socket: sockets.of(r.socket) }
        })
        .collect()
}

/// Numbers names in the order in which they come.
#[derive(Default)]
struct Ranks(BTreeMap<usize, usize>);

impl Ranks {
    fn of(&mut self, name: usize) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}
