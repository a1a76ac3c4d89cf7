//! The machine as hwloc (version 2) sees it.

use hwlocality::Topology;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::ObjectAttributes;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::BuildFlags;

use super::assemble::{Raw, assemble};
use super::{Caches, CpuSet, Machine, NumaNode, Source, default_distances, sysfs};

/// This machine; `None` when hwloc cannot tell.
pub(super) fn read(allowed: &CpuSet) -> Option<Machine> {
    // All processors, as /sys has them; which ones are allowed is asked elsewhere.
    let topology = Topology::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED).ok()?.build().ok()?;
    let mut objects: Vec<_> = topology.objects_with_type(ObjectType::NUMANode).collect();
    objects.sort_by_key(|object| object.os_index());
    let nodes: Vec<_> = objects
        .iter()
        .enumerate()
        .map(|(at, object)| NumaNode {
            id: object.os_index().unwrap_or(at),
            memory: match object.attributes() {
                Some(ObjectAttributes::NUMANode(numa)) => numa.local_memory().map_or(0, u64::from),
                _ => 0,
            },
            distances: distances(&topology, &objects, at),
        })
        .collect();
    let mut raw: Vec<_> =
        topology.objects_with_type(ObjectType::PU).filter_map(|thread| processor(thread, &objects)).collect();
    raw.sort_by_key(|r| r.cpu);
    let root = "/".as_ref();
    assemble(Source::Hwloc, sysfs::processor(root), &raw, nodes, allowed, sysfs::huge_pages(root))
}

fn processor(thread: &TopologyObject, nodes: &[&TopologyObject]) -> Option<Raw> {
    let cpu = thread.os_index()?;
    let above = |kind| thread.first_ancestor_with_type(kind);
    let number = |kind| above(kind).map(TopologyObject::logical_index);
    let cache = |kind| match above(kind)?.attributes() {
        Some(ObjectAttributes::Cache(cache)) => Some((cache.size()?.get() as usize, cache.line_size())),
        _ => None,
    };
    let levels = [ObjectType::L1Cache, ObjectType::L2Cache, ObjectType::L3Cache].map(cache);
    let usual = Caches::default();
    let size = |level: usize| levels[level].map(|(size, _)| size);
    let known = levels.iter().any(Option::is_some);
    let caches = Caches {
        l1d: size(0).unwrap_or(usual.l1d),
        l2: size(1).unwrap_or(usual.l2),
        l3: if known { size(2) } else { usual.l3 },
        line: levels.iter().flatten().find_map(|(_, line)| *line).map_or(usual.line, usize::from),
    };
    let socket = number(ObjectType::Package).unwrap_or(0);
    Some(Raw {
        cpu,
        socket,
        core: number(ObjectType::Core).unwrap_or(cpu),
        l3: number(ObjectType::L3Cache).or(number(ObjectType::L2Cache)).unwrap_or(socket),
        node: nodes.iter().position(|node| node.cpuset().is_some_and(|set| set.is_set(cpu))).unwrap_or(0),
        caches,
    })
}

/// Distances from node `at` to each of `nodes`.
fn distances(topology: &Topology, nodes: &[&TopologyObject], at: usize) -> Vec<u32> {
    let known = || {
        let matrix = topology.distances_with_type(None, ObjectType::NUMANode).ok()?.into_iter().next()?;
        // The matrix has an order of its own.
        let order: Vec<_> = matrix.objects().map(|object| object.and_then(TopologyObject::os_index)).collect();
        let place = |node: &TopologyObject| order.iter().position(|index| *index == node.os_index());
        let row = place(nodes[at])? * order.len();
        nodes
            .iter()
            .map(|node| u32::try_from(*matrix.distances().get(row + place(node)?)?).ok())
            .collect::<Option<Vec<_>>>()
    };
    known().unwrap_or_else(|| default_distances(at, nodes.len()))
}
