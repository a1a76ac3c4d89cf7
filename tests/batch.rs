//! Batches of matrices, along the diagonal of one: every operation on it is the operation on each of them.

mod common;

use common::matrices::{STRATEGIES, Strided, executors, on_every_path, shapes, skewed};
use sparsimd::ops::EdgeWeighting;
use sparsimd::plan::{Op, Plan, PlanOptions, Stats, Strategy};
use sparsimd::reference::{self, Edge, Scores, Weighting};
use sparsimd::{Arch, Cpu, Csr, Error, MatRef, Pattern, PatternRef, Scalar, edge, generate};

/// Every awkward shape, one after another: blocks without rows, without columns, without nonzeros, and long rows.
fn batch<T: Scalar>() -> Vec<Csr<T>> {
    shapes().into_iter().map(|(_, a)| a).chain([skewed()]).collect()
}

/// The rows of `x` that belong to each block, which has `rows(block)` of them.
fn parts<'a, T: Scalar>(x: &'a Strided<T>, blocks: &[Csr<T>], rows: impl Fn(&Csr<T>) -> usize) -> Vec<MatRef<'a, T>> {
    let mut start = 0;
    let part = |a| {
        start += rows(a);
        x.view().row_range(start - rows(a)..start).unwrap()
    };
    blocks.iter().map(part).collect()
}

fn products<T: Scalar>() {
    let (cpus, blocks) = (executors(), batch::<T>());
    let a = Csr::block_diagonal(&blocks).unwrap();
    let total = |of: fn(&Csr<T>) -> usize| blocks.iter().map(of).sum::<usize>();
    assert_eq!((a.rows(), a.cols(), a.nnz()), (total(Csr::rows), total(Csr::cols), total(Csr::nnz)));
    for n in [1, 17, 64] {
        let (c, b, d) =
            (Strided::random(a.rows(), n, 1), Strided::random(a.cols(), n, 2), Strided::random(a.cols(), n, 3));
        let (cs, bs) = (parts(&c, &blocks, Csr::rows), parts(&b, &blocks, Csr::cols));
        let ds = parts(&d, &blocks, Csr::cols);
        on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
            let mut out = Strided::<T>::nan(a.rows(), n);
            cpu.spmm(T::ONE, operand, b.view(), T::ZERO, out.view_mut()).unwrap();
            for (k, out) in parts(&out, &blocks, Csr::rows).into_iter().enumerate() {
                let worst = reference::spmm(T::ONE, &blocks[k], bs[k], T::ZERO, out).unwrap().deviation(out).unwrap();
                assert!(worst.error <= 1.0, "block {k}, N = {n}, {how}: {worst:?}");
            }
        });
        on_every_path(&cpus, Op::Sddmm, &a, n, |cpu, operand, how| {
            let mut out = vec![T::from_f64(f64::NAN); a.nnz()];
            cpu.sddmm(operand, c.view(), b.view(), &mut out).unwrap();
            let mut rest = &out[..];
            for (k, block) in blocks.iter().enumerate() {
                let own;
                (own, rest) = rest.split_at(block.nnz());
                let worst = reference::sddmm(block, false, cs[k], bs[k]).unwrap().deviation_of_values(own).unwrap();
                assert!(worst.error <= 1.0, "block {k}, N = {n}, {how}: {worst:?}");
            }
        });
        let (scale, softmax) = (T::from_f64(0.25), Edge::Softmax { scale: 0.25 });
        on_every_path(&cpus, Op::FusedMm, &a, n, |cpu, operand, how| {
            let mut out = Strided::<T>::nan(a.rows(), n);
            let edge = edge::Softmax { scale };
            cpu.fusedmm(operand, edge, c.view(), b.view(), d.view(), out.view_mut()).unwrap();
            for (k, out) in parts(&out, &blocks, Csr::rows).into_iter().enumerate() {
                let expected = reference::fusedmm(&blocks[k], softmax, cs[k], bs[k], ds[k]).unwrap();
                let worst = expected.deviation(out).unwrap();
                assert!(worst.error <= 1.0, "block {k}, N = {n}, {how}: {worst:?}");
            }
        });
    }
}

#[test]
fn products_of_batches_f32() {
    products::<f32>();
}

#[test]
fn products_of_batches_f64() {
    products::<f64>();
}

/// Attention of heads over a batch, by one preparation.
#[test]
fn heads_of_batches() {
    let blocks = batch::<f64>();
    let a = Csr::block_diagonal(&blocks).unwrap();
    let (heads, n) = (4, 32);
    let (c, b, d) = (Strided::random(a.rows(), n, 1), Strided::random(a.cols(), n, 2), Strided::random(a.cols(), n, 3));
    let (cs, bs) = (parts(&c, &blocks, Csr::rows), parts(&b, &blocks, Csr::cols));
    let ds = parts(&d, &blocks, Csr::cols);
    for cpu in executors() {
        for path in STRATEGIES {
            let prepared = cpu.prepare_differentiable(&a, &PlanOptions::new(Op::FusedMm, n).strategy(path)).unwrap();
            let weights = EdgeWeighting::dots(edge::Softmax { scale: 0.5 }, c.view(), b.view()).heads(heads);
            let mut out = Strided::<f64>::nan(a.rows(), n);
            cpu.fusedmm_heads(&prepared, &weights, d.view(), out.view_mut(), None).unwrap();
            for (k, out) in parts(&out, &blocks, Csr::rows).into_iter().enumerate() {
                let (edge, scores) = (Edge::Softmax { scale: 0.5 }, Scores::Dots(cs[k], bs[k]));
                let weighting = Weighting { edge, scores, heads, bias: None, dropout: None };
                let worst = reference::fusedmm_heads(&blocks[k], weighting, ds[k]).unwrap().0.deviation(out).unwrap();
                assert!(worst.error <= 1.0, "block {k}, {}, {path:?}: {worst:?}", cpu.arch().name());
            }
        }
    }
}

/// A batch of some members is not run worse than one of them.
#[test]
fn batches_have_the_plan_of_their_members() {
    let cpu = Cpu::builder().arch(Arch::detect()).threads(2).pin(false).build().unwrap();
    for (zeros, wanted) in [(0.8, Strategy::Panel), (0.999, Strategy::Direct)] {
        let one = generate::random_matrix::<f32>(256, 256, zeros, 3).unwrap();
        for count in [1, 16] {
            let batch = Csr::block_diagonal(vec![&one; count]).unwrap();
            for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
                let (stats, options) = (Stats::of(batch.pattern()), PlanOptions::new(op, 128).reuse(1000));
                let plan = Plan::choose(&stats, cpu.machine(), &options, &cpu.target::<f32>()).unwrap();
                assert_eq!(plan.strategy(), wanted, "{count} of {zeros}, {op:?}: {plan}");
            }
        }
    }
}

#[test]
fn batches_that_are_refused_and_empty_ones() {
    let wide = Pattern::new(1, u32::MAX as usize, vec![0, 1], vec![u32::MAX - 1]).unwrap();
    let both = Pattern::block_diagonal([&wide, &wide]);
    assert!(matches!(both, Err(Error::Structure { .. })), "{both:?}");
    let none = Pattern::block_diagonal(std::iter::empty::<PatternRef<'_>>()).unwrap();
    assert_eq!((none.rows(), none.cols(), none.nnz()), (0, 0, 0));
    // Rows of a larger matrix, whose pointers do not begin at 0.
    let a = generate::random_matrix::<f32>(20, 9, 0.5, 1).unwrap();
    let halves = [a.as_ref().row_range(0..8).unwrap(), a.as_ref().row_range(8..20).unwrap()];
    let split = Csr::block_diagonal(halves).unwrap();
    assert_eq!((split.pattern().row_ptr(), split.values()), (a.pattern().row_ptr(), a.values()));
    assert!((0..20).all(|i| {
        split.pattern().row(i).iter().zip(a.pattern().row(i)).all(|(s, j)| s - j == if i < 8 { 0 } else { 9 })
    }));
}
