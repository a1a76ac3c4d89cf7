//! The machine as a value: detection here, and on folders that look like other machines' /sys.

use sparsimd::machine::Pinning;
use sparsimd::{Cpu, Machine};

/// Every index of the tree counts from 0 without gaps, and sizes are of this world.
fn assert_consistent(machine: &Machine) {
    assert!(!machine.threads().is_empty() && !machine.nodes().is_empty() && machine.sockets() >= 1);
    assert!(machine.threads().is_sorted_by(|a, b| a.cpu < b.cpu));
    assert!(machine.cores() <= machine.threads().len() && machine.l3_groups() <= machine.cores());
    for thread in machine.threads() {
        assert!(thread.node < machine.nodes().len(), "{thread:?}");
    }
    for core in 0..machine.cores() {
        let mut smt: Vec<_> = machine.threads().iter().filter(|t| t.core == core).map(|t| t.smt).collect();
        smt.sort_unstable();
        assert_eq!(smt, (0..smt.len()).collect::<Vec<_>>(), "core {core}");
        assert!(!smt.is_empty(), "core {core} has no threads");
    }
    for (i, node) in machine.nodes().iter().enumerate() {
        assert_eq!(node.distances.len(), machine.nodes().len());
        assert!(node.distances.iter().all(|&d| d >= node.distances[i]), "{node:?}");
    }
    assert!(machine.l1d_bytes() >= 4 << 10 && machine.l1d_bytes() <= machine.l2_bytes());
    assert!(machine.l2_bytes() <= machine.l3_bytes() && machine.line_bytes().is_power_of_two());
    assert!(machine.allowed().iter().all(|cpu| machine.threads().iter().any(|t| t.cpu == cpu)));
    assert!((1..=machine.allowed().len()).contains(&machine.parallelism()));
}

#[test]
fn this_machine_is_consistent() {
    let machine = Machine::detect();
    assert_consistent(&machine);
    assert_eq!(machine.allowed_threads().count(), machine.allowed().len());
    assert_eq!(machine.threads(), Machine::detect().threads(), "detection depends on nothing but the machine");
}

#[test]
fn described_machines_have_the_described_shape() {
    for (text, sockets, nodes, l3, cores, threads) in [
        ("numa:2 core:8 pu:2", 2, 2, 2, 16, 32),
        ("core:4 pu:1", 1, 1, 1, 4, 4),
        ("pu:3", 1, 1, 1, 3, 3),
        ("numa:4 core:2", 4, 4, 4, 8, 8),
        ("pack:2 [numa] l3:4 core:2 pu:2", 2, 2, 8, 16, 32),
        ("Package:2 NUMA:2(memory=64GB) L3:1(size=32MB) l2:4(size=1MB) l1d:1(size=48KB) core:1 pu:2", 2, 4, 4, 16, 32),
    ] {
        let machine = Machine::describe(text).unwrap();
        assert_consistent(&machine);
        let shape = (machine.sockets(), machine.nodes().len(), machine.l3_groups(), machine.cores());
        assert_eq!((shape, machine.threads().len()), ((sockets, nodes, l3, cores), threads), "{text}");
    }
    let machine =
        Machine::describe("numa:2(memory=64GB) l3:1(size=32MB) l2:4(size=2MB) l1d:1(size=48KB) core:1").unwrap();
    assert_eq!((machine.l1d_bytes(), machine.l2_bytes(), machine.l3_bytes()), (48 << 10, 2 << 20, 32 << 20));
    assert_eq!(machine.nodes()[1].memory, 64 << 30);
}

#[test]
fn malformed_descriptions_name_the_part() {
    for (text, part) in [
        ("", "no levels"),
        ("numa:2 blob:3", "'blob:3'"),
        ("numa:0 core:2", "'numa:0'"),
        ("numa:two", "'numa:two'"),
        ("numa: core:2", "'numa:'"),
        ("pu:2 core:2", "innermost"),
        ("core:2 core:2", "twice"),
        ("core:9999 pu:9999", "65536"),
        ("core:99999999999999999999", "at least 1"),
        ("l3:2(size=32XB) core:2", "'32XB'"),
        ("l3:2(size=99999999999TB) core:2", "size"),
        ("l3:2(size=32MB core:2", "parentheses"),
        ("l3:2)size( core:2", "parentheses"),
        ("numa:2(memory) core:2", "key=value"),
        ("pack:2 [core:2]", "NUMA"),
        ("pack:2 [numa core:2", "']'"),
        ("2 8 2", "'2'"),
    ] {
        let message = Machine::describe(text).unwrap_err().to_string();
        assert!(message.starts_with("machine: ") && message.contains(part), "{text}: {message}");
    }
}

#[test]
fn pinning_policies_on_a_described_server() {
    // Cores 0-3 on node 0 (threads 0-7), cores 4-7 on node 1 (threads 8-15), two shared caches per node.
    let machine = Machine::describe("numa:2 l3:2 core:2 pu:2").unwrap();
    let pin = |policy: &str, threads| machine.pin(&policy.parse().unwrap(), threads).unwrap();
    assert_eq!(pin("compact", 5), [0, 1, 2, 3, 4]);
    assert_eq!(pin("cores", 9), [0, 2, 4, 6, 8, 10, 12, 14, 1]);
    assert_eq!(pin("scatter", 8), [0, 8, 4, 12, 2, 10, 6, 14]);
    assert_eq!(pin("scatter", 16)[8..], [1, 9, 5, 13, 3, 11, 7, 15]);
    assert_eq!(pin("7,3,8-9", 3), [7, 3, 8]);
    assert_eq!(pin("none", 4), Vec::<usize>::new());
    for policy in ["compact", "cores", "scatter"] {
        let mut all = pin(policy, 99);
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>(), "{policy} binds every processor once");
    }
    let nodes = machine.processors_by_node();
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[1], (1, vec![8, 10, 12, 14, 9, 11, 13, 15]));
}

#[test]
fn impossible_pinnings_are_refused_with_the_reason() {
    let machine = Machine::describe("numa:2 core:2").unwrap();
    for (list, threads, reason) in
        [("0,9", 2, "does not exist"), ("0,0", 2, "twice"), ("0", 2, "1 processors are listed")]
    {
        let message = machine.pin(&list.parse().unwrap(), threads).unwrap_err().to_string();
        assert!(message.contains(reason), "{list}: {message}");
    }
    for text in ["", "nearby", "0,", "1-0"] {
        assert!(text.parse::<Pinning>().is_err(), "'{text}'");
    }
    for text in ["none", "compact", "scatter", "cores", "3,1"] {
        assert_eq!(text.parse::<Pinning>().unwrap().to_string(), text);
    }
}

#[test]
fn threads_run_where_they_are_bound() {
    let machine = Machine::detect();
    let list: Vec<_> = machine.allowed().iter().collect();
    let reversed: Vec<_> = list.iter().rev().copied().collect();
    for pinning in [Pinning::Compact, Pinning::Scatter, Pinning::Cores, Pinning::List(reversed)] {
        let cpu = Cpu::builder().pinning(pinning.clone()).build().unwrap();
        assert_eq!(cpu.unpinned_threads(), 0, "{pinning}");
        let masks = cpu.install(|| {
            rayon::broadcast(|_| {
                core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect::<Vec<_>>()
            })
        });
        let expected: Vec<_> = cpu.binding().iter().map(|&id| vec![id]).collect();
        assert_eq!(masks, expected, "{pinning}");
    }
    let absent = machine.threads().last().unwrap().cpu + 1;
    let refused = Cpu::builder().pinning(Pinning::List(vec![absent])).build();
    assert!(refused.unwrap_err().to_string().contains("does not exist"));
}

#[test]
fn refused_bindings_are_counted_and_the_pool_works() {
    // A machine whose processors 998 and 4999 do not exist here: the operating system refuses them.
    let machine = Machine::describe("core:5000").unwrap();
    let cpu = Cpu::builder().machine(machine).pinning(Pinning::List(vec![998, 4999])).build().unwrap();
    assert_eq!((cpu.threads(), cpu.unpinned_threads()), (2, 2));
    assert_eq!(cpu.install(rayon::current_num_threads), 2);
    let many = Cpu::builder().threads(Machine::detect().allowed().len() + 3).build().unwrap();
    assert_eq!((many.unpinned_threads(), many.binding().len()), (0, 0), "more threads than processors: not bound");
    let forced = Cpu::builder().threads(Machine::detect().allowed().len() + 3).pin(true).build().unwrap();
    assert_eq!(forced.unpinned_threads(), 3);
}

#[cfg(feature = "hwloc")]
#[test]
fn hwloc_and_sysfs_agree() {
    let (hwloc, sysfs) = (Machine::from_hwloc().unwrap(), Machine::from_sysfs().unwrap());
    assert_consistent(&hwloc);
    assert_eq!(hwloc.threads(), sysfs.threads());
    assert_eq!(hwloc.caches(), sysfs.caches());
    assert_eq!((hwloc.allowed(), hwloc.parallelism()), (sysfs.allowed(), sysfs.parallelism()));
    assert_eq!((hwloc.processor(), hwloc.huge_pages()), (sysfs.processor(), sysfs.huge_pages()));
    assert_eq!(hwloc.nodes().len(), sysfs.nodes().len());
    for (a, b) in hwloc.nodes().iter().zip(sysfs.nodes()) {
        // Memory is left out: a virtual machine's may change between the two questions.
        assert_eq!((a.id, &a.distances), (b.id, &b.distances));
    }
}

/// Descriptions mean the same to us and to hwloc.
#[cfg(feature = "hwloc")]
#[test]
fn descriptions_are_hwlocs() {
    use hwlocality::Topology;
    use hwlocality::object::types::ObjectType;
    for text in ["numa:2 core:8 pu:2", "pack:2 [numa] l3:4 core:2 pu:2", "pack:2 numa:2 l3:1 l2:4 l1d:1 core:1 pu:2"] {
        let theirs = Topology::builder().from_synthetic(text).unwrap().build().unwrap();
        let ours = Machine::describe(text).unwrap();
        let count = |kind| theirs.objects_with_type(kind).count();
        assert_eq!(
            (ours.threads().len(), ours.cores(), ours.nodes().len()),
            (count(ObjectType::PU), count(ObjectType::Core), count(ObjectType::NUMANode)),
            "{text}"
        );
        for thread in theirs.objects_with_type(ObjectType::PU) {
            let cpu = thread.os_index().unwrap();
            let node = theirs.objects_with_type(ObjectType::NUMANode).position(|n| n.cpuset().unwrap().is_set(cpu));
            assert_eq!(Some(ours.threads()[cpu].node), node, "{text}: processor {cpu}");
        }
    }
}
