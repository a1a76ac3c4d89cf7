//! Proof of placement: the node of every page after allocation, asked of the kernel.
//!
//! Runs as an ordinary test on whatever machine there is (on one node most of it is vacuous), and as the only program of
//! a two-node guest (`tests/numa/run`), where it is process 1 and insists on two nodes. There the operations themselves run
//! on placed operands, too, and a control group takes a node's memory away. Prints one line per check and `verdict: ...` at
//! the end.

use std::ops::Range;

use sparsimd::cpu::{NodeCpus, NumaCsr, NumaMat, SharedMat};
use sparsimd::edge;
use sparsimd::formats::{Csr, Pattern};
use sparsimd::generate::{uniform_dense, uniform_values};
use sparsimd::machine::{
    CpuSet, MemoryMode, MemoryPolicy, PageBuffer, move_pages, page_bytes, page_nodes, page_nodes_at,
};
use sparsimd::ops::NumaPrepared;
use sparsimd::plan::{BPlacement, NumaPolicy, PlanOptions, RowPlacement, SharedOperand};
use sparsimd::plan::{Op, Strategy};
use sparsimd::reference::{self, Expected};
use sparsimd::{Cpu, Machine, Mat, MatRef};

/// Columns of the dense operands that are only placed: a row of C is half a page.
const N: usize = 512;
/// Columns of those that are computed with, which an emulated processor should not take long for.
const COMPUTED: usize = 64;

fn main() {
    let guest = std::process::id() == 1;
    if guest {
        mount("proc", "/proc");
        mount("sysfs", "/sys");
    }
    let outcome = std::panic::catch_unwind(|| checks(guest));
    println!("verdict: {}", if outcome.is_ok() { "all pages are where they should be" } else { "FAILED" });
    if guest {
        // SAFETY: no preconditions; process 1 switches the guest off.
        unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_POWER_OFF) };
    }
    std::process::exit(i32::from(outcome.is_err()));
}

/// Mounts a file system of `kind` at `target`.
fn mount(kind: &str, target: &str) {
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
        assert_eq!(machine.allowed_memory().to_string(), "0-1");
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
    operations_on_placed_operands(&cpu, &triangle(800));
    pages_of_a_pool_follow_its_policy(&cpu, &ids);
    outer_policy_wins(&machine, &pools, &ids);
    if guest {
        a_control_group_takes_memory_away(&triangle(10));
    }
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
    let placement = RowPlacement::choose(machine, &pools.shares(), &outer, policy, row_ptr, shared).expect("nodes");
    println!("{policy}: {}", placement.explain());
    let placed = NumaCsr::new(pools.clone(), a, placement).expect("placing");
    let c = placed.output(N).expect("C");
    let b = placed.share(b.as_ref()).expect("B");

    assert_owned(&placed, c.as_ref());
    assert_shared(&placed, &b);
    let parts = placed.chunks().iter().map(|c| c.iter().map(|c| c.matrix().nnz()).sum::<usize>()).collect::<Vec<_>>();
    println!("{policy}: nonzeros by node {parts:?}, pages of A, C and B: ok");
}

/// The rows of A, and those of the dense operand `c` that has the same rows, are on their owners' nodes.
fn assert_owned(placed: &NumaCsr<f32>, c: MatRef<'_, f32>) {
    for ((node, cpu), chunks) in placed.pools().iter().zip(placed.chunks()) {
        let node = Some(cpu.machine().nodes()[node].id);
        for chunk in chunks {
            assert_inside(chunk.matrix().pattern().col_idx(), node, "columns of A");
            assert_inside(chunk.matrix().values(), node, "values of A");
        }
        assert_inside(&c.data()[rows_of(chunks).start * c.stride()..rows_of(chunks).end * c.stride()], node, "rows");
    }
}

/// The rows of one owner.
fn rows_of(chunks: &[sparsimd::cpu::Chunk<f32>]) -> Range<usize> {
    chunks[0].rows().start..chunks[chunks.len() - 1].rows().end
}

/// The shared operand is where the placement wants it.
fn assert_shared(placed: &NumaCsr<f32>, b: &SharedMat<'_, f32>) {
    match (placed.placement().shared(), b) {
        (BPlacement::Interleave, SharedMat::Interleaved(copy)) => {
            assert_interleaved(copy, placed.pools().iter().next().expect("a pool").1.machine());
        }
        (BPlacement::Replicate, SharedMat::Copies(copies)) => {
            for (copy, (node, cpu)) in copies.iter().zip(placed.pools().iter()) {
                assert_inside(copy.as_ref().data(), Some(cpu.machine().nodes()[node].id), "copy of B");
            }
        }
        (BPlacement::Alone, SharedMat::Alone(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// SpMM, SDDMM and FusedMM on placed operands give what the reference gives, and after several runs, in which nodes that
/// ran dry took chunks from others, every page is still where it was put: those of the prepared A, of C and of B.
fn operations_on_placed_operands(cpu: &Cpu, a: &Csr<f32>) {
    let dense = |seed| -> Mat<f32> { uniform_dense(a.cols(), COMPUTED, seed).expect("an operand") };
    let (c, b, d) = (dense(1), dense(2), dense(3));
    let spmm = reference::spmm(1.0, a, b.as_ref(), 0.0, c.as_ref()).expect("shapes that fit");
    let sddmm = reference::sddmm(a, true, c.as_ref(), b.as_ref()).expect("shapes that fit");
    let fused = reference::fusedmm(a, reference::Edge::Sigmoid, c.as_ref(), b.as_ref(), d.as_ref()).expect("fitting");
    for policy in [NumaPolicy::FirstTouch, NumaPolicy::Interleave, NumaPolicy::Replicate, NumaPolicy::Auto] {
        for path in [Strategy::Direct, Strategy::Panel] {
            let placement = cpu.placement::<f32>(a.pattern(), COMPUTED, 100, policy).expect("a decision");
            let place = |op| {
                let placed = cpu
                    .place(a, &PlanOptions::new(op, COMPUTED).strategy(path).reuse(100), placement.clone())
                    .expect("placing");
                assert!(placed.prepared().is_some_and(|prepared| prepared.plan().strategy() == path));
                placed
            };
            let right = |expected: &Expected, out: MatRef<'_, f32>, op| {
                let worst = expected.deviation(out).expect("the same shape");
                assert!(worst.error <= 1.0, "{op}, {policy}, {path:?}: {worst:?}");
            };

            let placed = place(Op::Spmm);
            let (b_on, mut out) = (placed.share(b.as_ref()).expect("B"), placed.output(COMPUTED).expect("C"));
            (0..3).for_each(|_| placed.spmm(1.0, &b_on, 0.0, out.as_mut()).expect("SpMM"));
            right(&spmm, out.as_ref(), "SpMM");
            assert_in_place(&placed, out.as_ref(), &b_on);

            let placed = place(Op::Sddmm);
            let (own, b_on) = (placed.owned(c.as_ref()).expect("C"), placed.share(b.as_ref()).expect("B"));
            let mut values = placed.values().expect("values");
            (0..3).for_each(|_| placed.sddmm(true, own.as_ref(), &b_on, &mut values).expect("SDDMM"));
            let worst = sddmm.deviation_of_values(&values).expect("a value per nonzero");
            assert!(worst.error <= 1.0, "SDDMM, {policy}, {path:?}: {worst:?}");
            assert_in_place(&placed, own.as_ref(), &b_on);
            let row_ptr = a.pattern().row_ptr();
            for ((node, cpu), chunks) in placed.matrix().pools().iter().zip(placed.matrix().chunks()) {
                let rows = rows_of(chunks);
                let node = Some(cpu.machine().nodes()[node].id);
                assert_inside(&values[row_ptr[rows.start]..row_ptr[rows.end]], node, "result of SDDMM");
            }

            let placed = place(Op::FusedMm);
            let (own, b_on) = (placed.owned(c.as_ref()).expect("C"), placed.share(b.as_ref()).expect("B"));
            let (d_on, mut out) = (placed.share(d.as_ref()).expect("D"), placed.output(COMPUTED).expect("E"));
            let mut run = || placed.fusedmm(edge::Sigmoid, own.as_ref(), &b_on, &d_on, out.as_mut()).expect("FusedMM");
            (0..3).for_each(|_| run());
            right(&fused, out.as_ref(), "FusedMM");
            assert_in_place(&placed, out.as_ref(), &d_on);
            assert_in_place(&placed, own.as_ref(), &b_on);
        }
        println!("{policy}: SpMM, SDDMM and FusedMM by both paths, results and pages: ok");
    }
}

/// Everything that a run reads and writes is where the placement wants it.
fn assert_in_place(placed: &NumaPrepared<f32>, c: MatRef<'_, f32>, b: &SharedMat<'_, f32>) {
    assert_owned(placed.matrix(), c);
    assert_shared(placed.matrix(), b);
    for (place, (node, cpu)) in placed.matrix().pools().iter().enumerate() {
        let mut pages = 0;
        for addresses in placed.prepared_on(place).iter().flat_map(|prepared| prepared.memory()) {
            pages += count_inside(addresses, Some(cpu.machine().nodes()[node].id), "the prepared A");
        }
        assert!(pages > 50, "{pages} pages of the prepared A looked at");
    }
}

/// What the threads of a pool write first follows the policy that the pool was given.
fn pages_of_a_pool_follow_its_policy(cpu: &Cpu, ids: &[usize]) {
    let fill = || {
        let mut data = PageBuffer::<f32>::zeros(1 << 18).expect("a megabyte");
        // Small pages, which take turns one by one.
        data.advise_huge_pages(&[]);
        cpu.install(|| data.fill(1.0));
        page_nodes(&data).expect("an answer")
    };
    let all = MemoryPolicy { mode: MemoryMode::Interleave, nodes: ids.iter().copied().collect() };
    cpu.set_memory_policy(&all).expect("a policy");
    let at = fill();
    let shares = |at: &[Option<usize>]| -> Vec<_> {
        ids.iter().map(|&id| at.iter().filter(|&&node| node == Some(id)).count()).collect()
    };
    assert!(shares(&at).iter().all(|&pages| pages == at.len() / ids.len()), "{:?}", shares(&at));
    let last = MemoryPolicy { mode: MemoryMode::Bind, nodes: CpuSet::from_iter([ids[ids.len() - 1]]) };
    cpu.set_memory_policy(&last).expect("a policy");
    assert!(fill().iter().all(|&node| node == last.nodes.first()));
    let nowhere = MemoryPolicy { mode: MemoryMode::Bind, nodes: CpuSet::from_iter([1000]) };
    assert!(nowhere.apply().is_err() && cpu.set_memory_policy(&nowhere).is_err(), "a node that does not exist");
    cpu.set_memory_policy(&MemoryPolicy::FIRST_TOUCH).expect("no policy");
    assert!(!cpu.install(MemoryPolicy::current).is_chosen());
    println!("pages of a pool follow its policy: ok");
}

/// A control group that leaves the memory of node 1 and the processors of both: nothing is placed, and the reason says why.
/// Then one that leaves two processors.
fn a_control_group_takes_memory_away(a: &Csr<f32>) {
    let root = std::path::Path::new("/sys/fs/cgroup");
    mount("cgroup2", "/sys/fs/cgroup");
    let write = |path: &str, text: &str| {
        std::fs::write(root.join(path), text).unwrap_or_else(|e| panic!("{text} to {path}: {e}"));
    };
    write("cgroup.subtree_control", "+cpuset");
    std::fs::create_dir(root.join("half")).expect("a control group");
    write("half/cpuset.mems", "1");
    write("half/cgroup.procs", "1");
    let machine = Machine::detect();
    assert_eq!((machine.allowed_memory().to_string(), machine.allowed().to_string()), ("1".into(), "0-3".into()));
    let cpu = Cpu::builder().machine(machine).build().expect("a pool");
    let placement = cpu.placement::<f32>(a.pattern(), COMPUTED, 100, NumaPolicy::Replicate).expect("a decision");
    assert_eq!((placement.parts().len(), placement.shared()), (1, BPlacement::Alone));
    assert!(placement.explain().contains("node 0"), "{}", placement.explain());
    println!("{}", placement.explain());
    let mut data = PageBuffer::<f32>::zeros(1 << 16).expect("pages");
    cpu.install(|| data.fill(1.0));
    assert!(page_nodes(&data).expect("an answer").iter().all(|&at| at == Some(1)));
    write("half/cpuset.cpus", "2-3");
    let machine = Machine::detect();
    assert_eq!((machine.allowed().to_string(), machine.parallelism()), ("2-3".into(), 2));
    println!("a control group takes memory and processors away: ok");
}

/// All pages that lie wholly inside `data` are on `node`, and there are some.
fn assert_inside<T>(data: &[T], node: Option<usize>, what: &str) {
    let start = data.as_ptr() as usize;
    let pages = count_inside(start..start + size_of_val(data), node, what);
    assert!(pages > 10, "{what}: {pages} pages are hardly any to look at");
}

/// All pages that lie wholly inside the addresses are on `node`; how many there are.
fn count_inside(addresses: Range<usize>, node: Option<usize>, what: &str) -> usize {
    let page = page_bytes();
    let whole = addresses.start.next_multiple_of(page)..addresses.end / page * page;
    if whole.is_empty() {
        return 0;
    }
    let at = page_nodes_at(whole).expect("an answer");
    let wrong = at.iter().filter(|&&at| at != node).count();
    assert_eq!(wrong, 0, "{what}: {wrong} of {} pages are not on node {node:?}: {at:?}", at.len());
    at.len()
}

/// Neighbouring pages are on different nodes, all nodes have equally many.
fn assert_interleaved(b: &NumaMat<f32>, machine: &Machine) {
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
    let bind = MemoryPolicy { mode: MemoryMode::Bind, nodes: CpuSet::from_iter([last]) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind.apply().expect("this thread's policy");
            let outer = MemoryPolicy::current();
            assert_eq!(outer, bind);
            let shared = SharedOperand { bytes: 1 << 30, read_per_run: 1 << 40, runs: 1 };
            let placed = RowPlacement::choose(machine, &pools.shares(), &outer, NumaPolicy::Auto, &[0, 1, 2], shared);
            let placed = placed.expect("nodes");
            assert_eq!((placed.parts().len(), placed.shared()), (1, BPlacement::Alone), "{}", placed.explain());
            let mut data = PageBuffer::<f32>::zeros(1 << 16).expect("pages");
            data.fill(1.0);
            assert!(page_nodes(&data).expect("an answer").iter().all(|&at| at == Some(last)));
        });
    });
    assert!(!MemoryPolicy::current().is_chosen());
    println!("outer policy wins: ok");
}
