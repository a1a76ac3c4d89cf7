//! Which rows, pages and copies belong to which node, on machines that are only described.

mod common;

use sparsimd::cpu::{NodeCpus, NumaCsr};
use sparsimd::formats::Csr;
use sparsimd::generate::{random_matrix, uniform_dense};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::machine::{CpuSet, MemoryMode, MemoryPolicy, PageBuffer};
use sparsimd::plan::{BPlacement, NumaPolicy, PlanOptions, RowPlacement, SharedOperand, split_rows};
use sparsimd::{Cpu, Machine};

fn shares(machine: &Machine) -> Vec<(usize, usize)> {
    machine.processors_by_node().iter().map(|(node, cpus)| (*node, cpus.len())).collect()
}

/// Every row once, in order; nonzeros within 2 % of the share or one row apart from it.
fn assert_fair(row_ptr: &[usize], weights: &[usize]) {
    let parts = split_rows(row_ptr, weights);
    assert_eq!(parts.len(), weights.len());
    assert_eq!(parts[0].start, 0);
    assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
    assert_eq!(parts[parts.len() - 1].end, row_ptr.len() - 1);
    let nnz = row_ptr[row_ptr.len() - 1] as f64;
    let longest = row_ptr.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0) as f64;
    let total: usize = weights.iter().sum();
    for (part, &weight) in parts.iter().zip(weights) {
        let own = (row_ptr[part.end] - row_ptr[part.start]) as f64;
        let share = nnz * weight as f64 / total as f64;
        assert!((own - share).abs() <= (0.02 * share).max(longest), "{own} nonzeros for a share of {share}: {part:?}");
    }
}

#[test]
fn rows_are_split_by_nonzeros() {
    for row_ptr in [
        vec![0],
        vec![0, 0, 0, 0],
        vec![0, 5],
        vec![0, 0, 0, 100, 100, 100],
        vec![0, 1000, 1001, 1002, 1003],
        (0..1000).collect(),
        (0..1000).map(|i| i * i).collect::<Vec<_>>(),
    ] {
        for weights in [&[1][..], &[1, 1], &[1, 1, 1, 1], &[3, 1], &[8, 8, 8, 8, 8, 8, 8, 8]] {
            assert_fair(&row_ptr, weights);
        }
    }
    assert_eq!(split_rows(&[0, 0, 0, 0, 0], &[1, 1]), [0..2, 2..4], "rows count where nonzeros do not");
    assert_eq!(split_rows(&[0, 10, 20, 30, 40], &[3, 1]), [0..3, 3..4]);
}

#[test]
fn real_matrices_are_split_within_two_percent() {
    let Some(dir) = common::data_dir() else { return };
    for file in common::matrix_files(&dir) {
        let matrix: Csr<f32> = read_matrix(&file, ReadOptions::default()).unwrap().into_csr().unwrap();
        for nodes in [1, 2, 4] {
            assert_fair(matrix.pattern().row_ptr(), &vec![1; nodes]);
        }
    }
}

#[test]
fn shared_operands_by_size_and_reuse() {
    let machine = Machine::describe("numa:2(memory=64GB) l3:1(size=32MB) core:8 pu:1").unwrap();
    let row_ptr: Vec<_> = (0..=1000).map(|i| i * 30).collect();
    let choose = |policy, bytes, read_per_run, runs| {
        let shared = SharedOperand { bytes, read_per_run, runs };
        RowPlacement::choose(&machine, &shares(&machine), &MemoryPolicy::FIRST_TOUCH, policy, &row_ptr, shared).unwrap()
    };
    let mb = 1 << 20;
    assert_eq!(choose(NumaPolicy::Auto, 8 * mb, 1000 * mb, 100).shared(), BPlacement::Interleave, "fits the cache");
    assert_eq!(choose(NumaPolicy::Auto, 512 * mb, 512 * mb, 1).shared(), BPlacement::Interleave, "read once");
    assert_eq!(choose(NumaPolicy::Auto, 512 * mb, 8192 * mb, 1).shared(), BPlacement::Replicate, "read 16 times");
    assert_eq!(choose(NumaPolicy::Auto, 512 * mb, 512 * mb, 100).shared(), BPlacement::Replicate, "100 runs");
    assert_eq!(choose(NumaPolicy::Auto, 40960 * mb, 40960 * mb, 100).shared(), BPlacement::Interleave, "too large");
    assert_eq!(choose(NumaPolicy::FirstTouch, 512 * mb, 8192 * mb, 9).shared(), BPlacement::Alone);
    assert_eq!(choose(NumaPolicy::Interleave, 512 * mb, 8192 * mb, 9).shared(), BPlacement::Interleave);
    let forced = choose(NumaPolicy::Replicate, 1, 1, 1);
    assert_eq!((forced.shared(), forced.parts()), (BPlacement::Replicate, &[(0, 0..500), (1, 500..1000)][..]));
    assert_eq!(choose(NumaPolicy::Off, 512 * mb, 8192 * mb, 9).parts(), [(0, 0..1000)]);
}

#[test]
fn outer_policies_and_single_nodes_win() {
    let row_ptr = [0, 1, 2];
    let shared = SharedOperand { bytes: 1 << 30, read_per_run: 1 << 40, runs: 9 };
    let two = Machine::describe("numa:2 core:2").unwrap();
    let outer = MemoryPolicy { mode: MemoryMode::Bind, nodes: CpuSet::parse("0").unwrap() };
    let placed = RowPlacement::choose(&two, &shares(&two), &outer, NumaPolicy::Replicate, &row_ptr, shared).unwrap();
    assert_eq!((placed.parts().len(), placed.shared()), (1, BPlacement::Alone));
    assert!(placed.explain().contains("bind on nodes 0"), "{}", placed.explain());
    let one = Machine::describe("core:2").unwrap();
    let placed =
        RowPlacement::choose(&one, &shares(&one), &MemoryPolicy::FIRST_TOUCH, NumaPolicy::Replicate, &row_ptr, shared)
            .unwrap();
    assert!(placed.parts().len() == 1 && placed.explain().contains("one node"), "{}", placed.explain());
}

#[test]
fn policies_have_names() {
    for name in ["auto", "off", "first-touch", "interleave", "replicate"] {
        assert_eq!(name.parse::<NumaPolicy>().unwrap().to_string(), name);
    }
    assert!("nearby".parse::<NumaPolicy>().unwrap_err().to_string().contains("first-touch"));
}

#[test]
fn node_pools_partition_the_threads() {
    let machine = Machine::describe("numa:2 core:2 pu:1").unwrap();
    let cpu = Cpu::builder().machine(machine.clone()).threads(3).build().unwrap();
    let pools = NodeCpus::new(&cpu).unwrap();
    assert_eq!(pools.shares(), [(0, 2), (1, 1)]);
    assert_eq!(pools.iter().map(|(_, cpu)| cpu.binding().to_vec()).collect::<Vec<_>>(), [vec![0, 1], vec![2]]);
    let threads = |pools: &NodeCpus| -> Vec<_> {
        pools.iter().map(|(_, cpu)| cpu.install(|| rayon::broadcast(|_| std::thread::current().id()))).collect()
    };
    let clone = cpu.clone();
    assert_eq!(threads(&pools), threads(&NodeCpus::new(&clone).unwrap()), "started once");
    let unbound = Cpu::builder().machine(machine).pin(false).threads(2).build().unwrap();
    assert_eq!(NodeCpus::new(&unbound).unwrap().shares(), [(0, 1), (1, 1)], "a thread on each node");
}

#[test]
fn every_chunk_runs_once_and_idle_nodes_help() {
    let machine = Machine::describe("numa:2 core:1").unwrap();
    let pools = NodeCpus::new(&Cpu::builder().machine(machine).build().unwrap()).unwrap();
    for chunks in [[0, 0], [5, 0], [0, 7], [3, 4]] {
        let ran = std::sync::Mutex::new(Vec::new());
        pools.run(&chunks, |place, cpu, owner, chunk| {
            assert_eq!(cpu.threads(), 1);
            ran.lock().unwrap().push((owner, chunk, place));
        });
        let mut ran = ran.into_inner().unwrap();
        ran.sort_unstable();
        let seen: Vec<_> = ran.iter().map(|(owner, chunk, _)| (*owner, *chunk)).collect();
        let all: Vec<_> = (0..2).flat_map(|owner| (0..chunks[owner]).map(move |chunk| (owner, chunk))).collect();
        assert_eq!(seen, all);
    }
    // One node's first chunk lasts until the other node has done all the rest of it.
    let done = std::sync::atomic::AtomicUsize::new(0);
    let helped = std::sync::atomic::AtomicUsize::new(0);
    pools.run(&[4, 0], |place, _, _, chunk| {
        if place == 1 {
            helped.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        let start = std::time::Instant::now();
        while chunk == 0 && done.load(std::sync::atomic::Ordering::SeqCst) < 3 && start.elapsed().as_secs() < 20 {
            std::thread::yield_now();
        }
        done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    // Whichever node took chunk 0 was held; the other did three.
    assert!([1, 3].contains(&helped.into_inner()));
}

#[test]
fn chunks_are_the_matrix() {
    let machine = Machine::describe("numa:2 core:1").unwrap();
    let pools = NodeCpus::new(&Cpu::builder().machine(machine.clone()).build().unwrap()).unwrap();
    let a = random_matrix::<f32>(700, 900, 0.4, 1).unwrap();
    let shared = SharedOperand { bytes: 0, read_per_run: 0, runs: 1 };
    let placement = RowPlacement::choose(
        &machine,
        &pools.shares(),
        &MemoryPolicy::FIRST_TOUCH,
        NumaPolicy::Replicate,
        a.pattern().row_ptr(),
        shared,
    )
    .unwrap();
    let placed = NumaCsr::new(pools, &a, placement).unwrap();
    let mut next = 0;
    for chunk in placed.chunks().iter().flatten() {
        assert_eq!(chunk.rows().start, next);
        for (own, whole) in chunk.rows().enumerate() {
            assert_eq!(chunk.matrix().pattern().row(own), a.pattern().row(whole));
        }
        next = chunk.rows().end;
    }
    assert_eq!(next, 700);
    assert!(placed.chunks().iter().all(|part| part.len() >= 2), "large enough to be shared");
    let values: Vec<_> = placed.chunks().iter().flatten().flat_map(|c| c.matrix().values().to_vec()).collect();
    assert_eq!(values, a.values());

    let b = uniform_dense::<f32>(900, 37, 2).unwrap();
    let copies = placed.share(b.as_ref()).unwrap();
    for i in [0, 450, 899] {
        assert_eq!(copies.on(0).unwrap().row(i), b.row(i));
        assert_eq!(copies.on(1).unwrap().row(i), b.row(i));
    }
    assert_ne!(copies.on(0).unwrap().data().as_ptr(), copies.on(1).unwrap().data().as_ptr());
    assert!(copies.on(2).unwrap_err().to_string().contains("copies for 2 pools"));

    // Every row of the output is handed out once, with the chunk that it belongs to.
    let mut out = placed.output::<f32>(3).unwrap();
    placed
        .run(out.as_mut(), |_, _, (owner, chunk), mut rows| {
            let first = placed.chunks()[owner][chunk].rows().start;
            for i in 0..rows.rows() {
                rows.reborrow().into_row(i).iter_mut().for_each(|x| *x += (first + i) as f32);
            }
            Ok(())
        })
        .unwrap();
    for i in 0..700 {
        assert_eq!(out.as_ref().row(i), [i as f32; 3]);
    }

    let mut short = uniform_dense::<f32>(699, 3, 1).unwrap();
    assert!(placed.run(short.as_mut(), |_, _, _, _| Ok(())).is_err());
}

#[test]
fn page_buffers_hold_zeros() {
    for len in [0, 1, 1000, 1 << 20] {
        let mut buffer = PageBuffer::<f64>::zeros(len).unwrap();
        assert_eq!(buffer.len(), len);
        assert!(buffer.iter().all(|&x| x == 0.0));
        buffer.fill(1.5);
        assert!(buffer.iter().all(|&x| x == 1.5));
    }
    assert!(PageBuffer::<f64>::zeros(usize::MAX / 4).is_err());
    assert!(PageBuffer::<f64>::zeros(1 << 60).is_err());
}

/// The operations on a described two-node machine give the reference's results, whatever the placement of B.
#[test]
fn placed_operations_are_right() {
    use sparsimd::plan::{Op, Strategy};
    use sparsimd::{Mat, edge, reference};
    let machine = Machine::describe("numa:2 core:1").unwrap();
    let cpu = Cpu::builder().machine(machine).build().unwrap();
    for (rows, cols, zeros, n) in [(600, 700, 0.5, 33), (3, 5, 0.2, 8), (1, 40, 0.9, 1), (0, 4, 0.5, 2)] {
        let a = random_matrix::<f32>(rows, cols, zeros, 7).unwrap();
        let dense = |rows, seed| uniform_dense::<f32>(rows, n, seed).unwrap();
        let (c, b, d) = (dense(rows, 1), dense(cols, 2), dense(cols, 3));
        for policy in [NumaPolicy::FirstTouch, NumaPolicy::Replicate, NumaPolicy::Off] {
            for path in [Strategy::Direct, Strategy::Panel] {
                let placement = cpu.placement::<f32>(a.pattern(), n, 10, policy).unwrap();
                assert_eq!(placement.parts().len(), if policy == NumaPolicy::Off { 1 } else { 2 });
                let place =
                    |op| cpu.place(&a, &PlanOptions::new(op, n).strategy(path).reuse(10), placement.clone()).unwrap();
                let case = format!("{rows} x {cols}, {policy}, {path:?}");

                let placed = place(Op::Spmm);
                let mut out = placed.output(n).unwrap();
                out.as_mut().into_data().fill(0.5);
                placed.spmm(2.0, &placed.share(b.as_ref()).unwrap(), -1.0, out.as_mut()).unwrap();
                let before = Mat::from_fn(rows, n, |_, _| 0.5).unwrap();
                let expected = reference::spmm(2.0, &a, b.as_ref(), -1.0, before.as_ref()).unwrap();
                assert!(expected.deviation(out.as_ref()).unwrap().error <= 1.0, "spmm {case}");

                let placed = place(Op::Sddmm);
                let mut values = placed.values().unwrap();
                let own = placed.owned(c.as_ref()).unwrap();
                for scaled in [false, true] {
                    placed.sddmm(scaled, own.as_ref(), &placed.share(b.as_ref()).unwrap(), &mut values).unwrap();
                    let expected = reference::sddmm(&a, scaled, c.as_ref(), b.as_ref()).unwrap();
                    assert!(expected.deviation_of_values(&values).unwrap().error <= 1.0, "sddmm {scaled} {case}");
                }

                let placed = place(Op::FusedMm);
                let mut out = placed.output(n).unwrap();
                let (b_on, d_on) = (placed.share(b.as_ref()).unwrap(), placed.share(d.as_ref()).unwrap());
                placed.fusedmm(edge::Scale, c.as_ref(), &b_on, &d_on, out.as_mut()).unwrap();
                let expected = reference::fusedmm(&a, reference::Edge::Scale, c.as_ref(), b.as_ref(), d.as_ref());
                assert!(expected.unwrap().deviation(out.as_ref()).unwrap().error <= 1.0, "fusedmm {case}");

                assert!(placed.sddmm(false, d.as_ref(), &b_on, &mut values).is_err(), "wrong operation or shape");
                assert!(placed.fusedmm(edge::Scale, c.as_ref(), &b_on, &d_on, dense(rows + 1, 1).as_mut()).is_err());
            }
        }
    }
    let a = random_matrix::<f32>(3, 3, 0.5, 1).unwrap();
    let placement = cpu.placement::<f32>(a.pattern(), 4, 1, NumaPolicy::Auto).unwrap();
    assert!(cpu.place(&a, &PlanOptions::new(Op::SpmmTransposed, 4).reuse(1), placement.clone()).is_err());
    assert!(cpu.place(&a, &PlanOptions::new(Op::Spmm, 0).reuse(1), placement.clone()).is_err());
    let placed = cpu.place(&a, &PlanOptions::new(Op::Spmm, 4).reuse(1), placement).unwrap();
    assert!(placed.owned(uniform_dense::<f32>(4, 4, 1).unwrap().as_ref()).is_err(), "a row too many");
}

#[test]
fn parts_are_checked() {
    let new = |parts| RowPlacement::new(parts, BPlacement::Alone, "by hand");
    let refused = |parts| new(parts).unwrap_err().to_string();
    assert!(refused(vec![(0, 0..5), (1, 6..9)]).contains("not the next rows"));
    assert!(refused(vec![(0, 1..5)]).contains("not the next rows"));
    assert!(refused(vec![(1, 0..5), (0, 5..9)]).contains("nodes ascend"));
    assert!(refused(vec![(0, 0..5), (0, 5..9)]).contains("nodes ascend"));
    let placement = new(vec![(0, 0..5), (1, 5..9)]).unwrap();
    assert_eq!((placement.rows(), placement.explain().as_str()), (9, "by hand"));

    let machine = Machine::describe("numa:2 core:1").unwrap();
    let pools = NodeCpus::new(&Cpu::builder().machine(machine.clone()).build().unwrap()).unwrap();
    let a = random_matrix::<f32>(9, 9, 0.5, 1).unwrap();
    assert!(NumaCsr::new(pools.clone(), &a, placement).is_ok());
    let other = |parts| NumaCsr::new(pools.clone(), &a, new(parts).unwrap()).unwrap_err().to_string();
    assert!(other(vec![(0, 0..8)]).contains("8 rows for a matrix of 9"));
    assert!(other(vec![(0, 0..5), (2, 5..9)]).contains("no threads"));
    let shared = SharedOperand { bytes: 1, read_per_run: 1, runs: 1 };
    let choose = |nodes: &[(usize, usize)]| {
        let outer = MemoryPolicy::FIRST_TOUCH;
        RowPlacement::choose(&machine, nodes, &outer, NumaPolicy::Interleave, &[0, 1, 2], shared).map(|p| p.rows())
    };
    assert!(choose(&[(0, 1), (2, 1)]).unwrap_err().to_string().contains("node 2 of a machine with 2"));
    assert!(choose(&[(1, 1), (0, 1)]).unwrap_err().to_string().contains("nodes ascend"));
}
