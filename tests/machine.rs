//! The machine as a value: detection here, and on folders that look like other machines' /sys.

use sparsimd::Machine;

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
