//! Intensities as the papers' tables state them, and the counts of real patterns that they are computed from.

use std::collections::HashSet;

use approx::assert_relative_eq;
use sparsimd::formats::{CooTensor, Pattern};
use sparsimd::generate;
use sparsimd_measure::{Fpga, Granularity, TensorCounts, TensorOp, TreeCounts, Work};

#[test]
fn limits_of_the_coordinate_table() {
    // I << M_F << M, as the table assumes.
    let counts = TensorCounts { nnz: 1 << 40, slices: vec![1 << 10; 3], fibers: vec![1 << 20; 3] };
    for (op, limit) in [
        (TensorOp::Tew, 1.0 / 12.0),
        (TensorOp::Ts, 1.0 / 8.0),
        (TensorOp::Ttv, 1.0 / 6.0),
        (TensorOp::Ttm, 1.0 / 2.0),
        (TensorOp::Mttkrp, 1.0 / 4.0),
    ] {
        assert_relative_eq!(counts.work::<f32>(op, 1, 1 << 20).intensity(), limit, max_relative = 1e-4);
    }
}

#[test]
fn the_coordinate_table_itself() {
    let (m, f, r) = (1000.0, 300.0, 16.0);
    let counts = TensorCounts { nnz: 1000, slices: vec![10, 20, 30], fibers: vec![1, 300, 1] };
    for (op, flops, bytes) in [
        (TensorOp::Tew, m, 12.0 * m),
        (TensorOp::Ts, m, 8.0 * m),
        (TensorOp::Ttv, 2.0 * m, 12.0 * m + 12.0 * f),
        (TensorOp::Ttm, 2.0 * m * r, 4.0 * m * r + 4.0 * f * r + 8.0 * m + 8.0 * f),
        (TensorOp::Mttkrp, 3.0 * m * r, 12.0 * m * r + 16.0 * m),
    ] {
        assert_eq!(counts.work::<f32>(op, 1, 16), Work { flops, bytes }, "{op:?}");
    }
    let few = counts.mttkrp_hicoo::<f32>(5, 128, 16);
    assert_eq!(few, Work { flops: 3.0 * m * r, bytes: 12.0 * r * (5.0 * 128.0) + 7.0 * m + 20.0 * 5.0 });
    let many = counts.mttkrp_hicoo::<f32>(500, 128, 16);
    assert_eq!(many.bytes, 12.0 * r * m + 7.0 * m + 20.0 * 500.0);
}

#[test]
fn limits_of_the_fiber_tables() {
    let (one, huge) = (TreeCounts::new(1, 1, 1), TreeCounts::new(1, 1, 1 << 30));
    let many = 1 << 20;
    let check = |got: f64, expected: f64| assert_relative_eq!(got, expected, max_relative = 1e-4);
    check(one.ttm(Granularity::Element, 1).intensity(), 1.0 / 12.0);
    check(huge.ttm(Granularity::Element, 1).intensity(), 1.0 / 6.0);
    check(one.ttm(Granularity::Row, 1).intensity(), 1.0 / 12.0);
    check(huge.ttm(Granularity::Row, many).intensity(), 1.0 / 2.0);
    check(one.mttkrp(Granularity::Element, 1).intensity(), 1.0 / 10.0);
    check(huge.mttkrp(Granularity::Element, 1).intensity(), 1.0 / 6.0);
    check(one.mttkrp(Granularity::Row, 1).intensity(), 1.0 / 10.0);
    check(huge.mttkrp(Granularity::Row, many).intensity(), 1.0 / 2.0);
    let fpga = Fpga { dsps: 1 << 30, clock_ghz: 1.0, bandwidth: 1.0 };
    check(fpga.ttm(&one, 1, None).intensity, 1.0 / 12.0);
    check(fpga.ttm(&huge, many, None).intensity, 1.0 / 2.0);
    check(fpga.mttkrp(&one, 1, None).intensity, 1.0 / 10.0);
    check(fpga.mttkrp(&huge, many, None).intensity, 1.0 / 2.0);
}

#[test]
fn fpga_designs() {
    // The paper's board: an Arria 10 GX 1150.
    let fpga = Fpga { dsps: 1518, clock_ghz: 0.45, bandwidth: 34.0 };
    let tree = TreeCounts::new(12_092, 337_365, 76_879_419);
    let (ttm, mttkrp) = (fpga.ttm(&tree, 16, Some(1)), fpga.mttkrp(&tree, 16, Some(1)));
    assert_eq!((ttm.dsps, mttkrp.dsps), (16, 32), "as the paper counts them for 16 columns");
    assert_relative_eq!(ttm.peak, 2.0 * 16.0 * 0.45);
    assert_relative_eq!(mttkrp.peak, 4.0 * 16.0 * 0.45);
    // One element is bound by its multipliers, all that fit by the memory.
    assert_relative_eq!(ttm.attainable, ttm.peak.min(ttm.intensity * 34.0));
    let all = fpga.ttm(&tree, 16, None);
    assert_eq!(all.elements, 94);
    assert_relative_eq!(all.attainable, all.intensity * 34.0);
    let rising: Vec<_> = (0..8).map(|b| fpga.ttm(&tree, 1 << b, Some(1)).attainable).collect();
    assert!(rising.is_sorted(), "{rising:?}");
    let none = fpga.mttkrp(&tree, 1024, None);
    assert_eq!((none.elements, none.attainable), (0, 0.0), "2048 blocks do not fit");
}

#[test]
fn counts_are_those_of_the_pattern() {
    for dims in [vec![7, 5, 9], vec![6, 5, 4, 3], vec![20, 30], vec![50]] {
        let order = dims.len();
        let x: CooTensor<f32> = generate::skewed(&dims, 20, 3).unwrap();
        let counts = TensorCounts::of(&x).unwrap();
        let distinct = |modes: &[usize]| {
            (0..x.nnz())
                .map(|p| modes.iter().map(|&m| x.coords(m)[p]).collect::<Vec<_>>())
                .collect::<HashSet<_>>()
                .len()
        };
        for mode in 0..order {
            let others: Vec<_> = (0..order).filter(|&m| m != mode).collect();
            assert_eq!(counts.slices[mode], distinct(&[mode]), "{dims:?} mode {mode}");
            assert_eq!(counts.fibers[mode], distinct(&others), "{dims:?} mode {mode}");
        }
        if order == 3 {
            // Root 0, then the shorter of the others.
            let tree = TreeCounts::of(&x, 0).unwrap();
            assert_eq!(tree, TreeCounts::new(distinct(&[0]), distinct(&[0, 1]), x.nnz()));
        }
    }
    let empty = CooTensor::<f64>::new(vec![3, 4, 5], vec![vec![]; 3], vec![]).unwrap();
    let counts = TensorCounts::of(&empty).unwrap();
    assert_eq!((counts.nnz, counts.slices.clone(), counts.fibers.clone()), (0, vec![0; 3], vec![0; 3]));
    assert_eq!(counts.work::<f64>(TensorOp::Tew, 0, 1).intensity(), 0.0);
    assert_eq!(TreeCounts::of(&empty, 2).unwrap().ttm(Granularity::Row, 8).intensity(), 0.0);
    assert!(TreeCounts::of(&empty, 3).is_err());
}

#[test]
fn matrix_operations() {
    // 2 rows, 3 nonzeros, 4 columns.
    let a = Pattern::new(2, 5, vec![0, 1, 3], vec![0, 2, 4]).unwrap();
    let spmm = Work::spmm::<f32>(&a, 4);
    assert_eq!(spmm.flops, 24.0);
    assert_eq!(spmm.bytes, 3.0 * (4.0 + 4.0 + 16.0) + 3.0 * 8.0 + 2.0 * 16.0);
    assert_eq!(Work::sddmm::<f64>(&a, 4).bytes, 3.0 * (4.0 + 8.0 + 32.0) + 3.0 * 8.0 + 2.0 * 32.0);
    let fused = Work::fusedmm::<f32>(&a, 4);
    assert_eq!((fused.flops, fused.bytes), (48.0, spmm.bytes + 3.0 * 16.0 + 2.0 * 16.0));
}
