//! Proof of placement: the node of every page after allocation, asked of the kernel.
//!
//! Runs as an ordinary test on whatever machine there is (on one node most of it is vacuous), and as the only program of
//! a two-node guest (`tests/numa/run`), where it is process 1 and insists on two nodes. Prints one line per check and
//! `verdict: ...` at the end.

use sparsimd::cpu::{NodeCpus, PlacedCsr, PlacedMat, SharedMat};
use sparsimd::formats::{Csr, Pattern};
use sparsimd::generate::{uniform_dense, uniform_values};
use sparsimd::machine::{
    BPlacement, MemoryMode, MemoryPolicy, NumaPolicy, PageBuffer, RowPlacement, SharedOperand, move_pages, page_bytes,
    page_nodes,
};
use sparsimd::{Cpu, Machine};

/// Columns of the dense operands: a row of C is half a page.
const N: usize = 512;

fn main() {
    let guest = std::process::id() == 1;
    if guest {
        mount("proc");
        mount("sysfs");
    }
    let outcome = std::panic::catch_unwind(|| checks(guest));
    println!("verdict: {}", if outcome.is_ok() { "all pages are where they should be" } else { "FAILED" });
    if guest {
        // SAFETY: no preconditions; process 1 switches the guest off.
        unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF) };
    }
    std::process::exit(i32::from(outcome.is_err()));
}

/// Mounts the file system `kind` where it belongs.
fn mount(kind: &str) {
    let target = if kind == "proc" { "/proc" } else { "/sys" };
    std::fs::create_dir_all(target).expect("a writable root");
    let (kind, target) = (format!("{kind}\0"), format!("{target}\0"));
    // SAFETY: the strings end with 0 and outlive the call.
    let result =
        unsafe { libc::mount(kind.as_ptr().cast(), target.as_ptr().cast(), kind.as_ptr().cast(), 0, std::ptr::null()) };
    assert_eq!(result, 0, "mount {target}: {}", std::io::Error::last_os_error());
}

fn checks(guest: bool) {
    let machine = Machine::detect();
    let ids: Vec<_> = machine.nodes().iter().map(|node| node.id).collect();
    println!("nodes {ids:?}, {} processors, distances {:?}", machine.threads().len(), machine.nodes()[0].distances);
    if guest {
        assert_eq!(ids, [0, 1], "the guest was started with two nodes");
        assert_eq!(machine.processors_by_node(), [(0, vec![0, 1]), (1, vec![2, 3])]);
        assert_eq!(machine.nodes()[0].distances, [10, 21]);
        assert!(machine.nodes().iter().all(|node| node.memory > 100 << 20));
    } else if page_nodes(&[0u8]).is_err() {
        println!("skipped: the operating system does not tell where pages are");
        return;
    }
    let cpu = Cpu::builder().machine(machine.clone()).build().expect("a pool");
    assert_eq!(cpu.unpinned_threads(), 0);
    let pools = NodeCpus::new(&cpu).expect("pools");
    assert!(!guest || pools.shares() == [(0, 2), (1, 2)]);

    existing_pages_move(&ids);
    let a = triangle(3000);
    for policy in [NumaPolicy::FirstTouch, NumaPolicy::Interleave, NumaPolicy::Replicate] {
        operands_are_placed(&machine, &pools, &a, policy);
    }
    outer_policy_wins(&machine, &pools, &ids);
}

/// Row `i` has `i` nonzeros: the halves by nonzeros are not the halves by rows.
fn triangle(rows: usize) -> Csr<f32> {
    let row_ptr: Vec<_> = (0..=rows).map(|i| i * i.saturating_sub(1) / 2).collect();
    let col_idx: Vec<_> = (0..rows).flat_map(|i| 0..i as u32).collect();
    let nnz = col_idx.len();
    let pattern = Pattern::new(rows, rows, row_ptr, col_idx).expect("a valid pattern");
    Csr::new(pattern, uniform_values(nnz, 1)).expect("a value each")
}

/// Pages written by this thread go to each node and, in turns, to all.
fn existing_pages_move(ids: &[usize]) {
    let mut data = PageBuffer::<f64>::zeros(1 << 17).expect("a megabyte");
    assert!(page_nodes(&data).expect("an answer").iter().all(Option::is_none), "nobody has touched them");
    data.fill(1.0);
    for &id in ids {
        let (there, all) = move_pages(&data, |_| id).expect("moving");
        assert_eq!((there, all), (256, 256));
        assert!(page_nodes(&data).expect("an answer").iter().all(|&at| at == Some(id)));
    }
    move_pages(&data, |page| ids[page % ids.len()]).expect("moving");
    let at = page_nodes(&data).expect("an answer");
    assert!(at.iter().enumerate().all(|(page, &at)| at == Some(ids[page % ids.len()])));
    assert!(data.iter().all(|&x| x == 1.0), "contents stay");
    assert!(move_pages(&data, |_| 1000).is_err(), "a node that does not exist");
    println!("existing pages move: ok");
}

fn operands_are_placed(machine: &Machine, pools: &NodeCpus, a: &Csr<f32>, policy: NumaPolicy) {
    let b = uniform_dense::<f32>(a.cols(), N, 2).expect("B");
    let shared = SharedOperand { bytes: a.cols() * N * 4, read_per_run: a.nnz() * N * 4, runs: 1 };
    let row_ptr = a.pattern().row_ptr();
    let outer = MemoryPolicy::current();
    let placement = RowPlacement::choose(machine, &pools.shares(), &outer, policy, row_ptr, shared);
    println!("{policy}: {}", placement.reason);
    let placed = PlacedCsr::new(pools.clone(), a, placement).expect("placing");
    let c = placed.output(N).expect("C");
    let b = placed.share(b.as_ref()).expect("B");

    for (owner, chunks) in placed.chunks().iter().enumerate() {
        let node = pools.iter().nth(owner).map(|(node, _)| machine.nodes()[node].id);
        for chunk in chunks {
            let pattern = chunk.matrix().pattern();
            assert_inside(pattern.col_idx(), node, "columns of A");
            assert_inside(chunk.matrix().values(), node, "values of A");
            let stride = c.as_ref().stride();
            assert_inside(&c.as_ref().data()[chunk.rows().start * stride..chunk.rows().end * stride], node, "C");
        }
    }
    match (placed.placement().shared, &b) {
        (BPlacement::Interleave, SharedMat::Interleaved(copy)) => assert_interleaved(copy, machine),
        (BPlacement::Replicate, SharedMat::Copies(copies)) => {
            for (copy, (node, _)) in copies.iter().zip(pools.iter()) {
                assert_inside(copy.as_ref().data(), Some(machine.nodes()[node].id), "copy of B");
            }
        }
        (BPlacement::Alone, SharedMat::Alone(_)) => {}
        other => panic!("{other:?}"),
    }
    let parts = placed.chunks().iter().map(|c| c.iter().map(|c| c.matrix().nnz()).sum::<usize>()).collect::<Vec<_>>();
    println!("{policy}: nonzeros by node {parts:?}, pages of A, C and B: ok");
}

/// All pages that lie wholly inside `data` are on `node`.
fn assert_inside<T>(data: &[T], node: Option<usize>, what: &str) {
    let at = page_nodes(data).expect("an answer");
    let page = page_bytes();
    let start = data.as_ptr() as usize;
    let first = usize::from(!start.is_multiple_of(page));
    let last = at.len() - usize::from(!(start + size_of_val(data)).is_multiple_of(page));
    assert!(last > first + 10, "{what}: hardly any pages to look at");
    let wrong = at[first..last].iter().filter(|&&at| at != node).count();
    assert_eq!(wrong, 0, "{what}: {wrong} of {} pages are not on node {node:?}", last - first);
}

/// Neighbouring pages are on different nodes, all nodes have equally many.
fn assert_interleaved(b: &PlacedMat<f32>, machine: &Machine) {
    let at = page_nodes(b.as_ref().data()).expect("an answer");
    let nodes = machine.processors_by_node();
    assert!(nodes.len() < 2 || at.windows(2).all(|w| w[0] != w[1]), "neighbours on one node");
    for (node, _) in &nodes {
        let own = at.iter().filter(|&&at| at == Some(machine.nodes()[*node].id)).count();
        assert!(own.abs_diff(at.len() / nodes.len()) <= 1, "{own} of {} pages on node {node}", at.len());
    }
}

/// A thread that runs under `numactl --membind` keeps that policy, and we place nothing.
fn outer_policy_wins(machine: &Machine, pools: &NodeCpus, ids: &[usize]) {
    let last = ids[ids.len() - 1];
    let mask = [1u64 << last];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the mask has 64 bits, and the policy is this thread's alone.
            let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND, mask.as_ptr(), 65usize) };
            assert_eq!(set, 0, "set_mempolicy: {}", std::io::Error::last_os_error());
            let outer = MemoryPolicy::current();
            assert_eq!((outer.mode, outer.nodes.first(), outer.nodes.len()), (MemoryMode::Bind, Some(last), 1));
            let shared = SharedOperand { bytes: 1 << 30, read_per_run: 1 << 40, runs: 1 };
            let placed = RowPlacement::choose(machine, &pools.shares(), &outer, NumaPolicy::Auto, &[0, 1, 2], shared);
            assert_eq!((placed.parts.len(), placed.shared), (1, BPlacement::Alone), "{}", placed.reason);
            let mut data = PageBuffer::<f32>::zeros(1 << 16).expect("pages");
            data.fill(1.0);
            assert!(page_nodes(&data).expect("an answer").iter().all(|&at| at == Some(last)));
        });
    });
    assert!(!MemoryPolicy::current().is_chosen());
    println!("outer policy wins: ok");
}
