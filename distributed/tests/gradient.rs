//! SpMM with A transposed, and the gradients of the operations, on 1 to 9 ranks against the reference.

#[allow(dead_code, reason = "the tests of one machine use the rest")]
#[path = "../../tests/common/matrices.rs"]
mod matrices;

use matrices::{bits, shapes, skewed};
use sparsimd::edge::{self, BuiltIn, Edge};
use sparsimd::reference::{self, Expected, FusedGradients, Scores, Weighting};
use sparsimd::{Cpu, Csr, CsrRef, Mat, MatRef, generate};
use sparsimd_distributed::{
    Algorithm, Blocks, Cluster, Comm, CountComm, DistCsr, DistGradient, DistMat, DistPlan, Element, Operation, Result,
    ThreadComm,
};

/// Columns of B and C, and of D and E.
const N: [usize; 2] = [19, 8];

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

fn algorithms(ranks: usize) -> Vec<Algorithm> {
    let dense = (1..=ranks).filter(|&c| ranks.is_multiple_of(c)).map(|c| Algorithm::DenseShift { replication: c });
    std::iter::once(Algorithm::Aware).chain(dense).collect()
}

fn share<T: Element>(a: &Mat<T>, blocks: &Blocks, rank: usize) -> DistMat<T> {
    DistMat::from_fn(blocks, rank, a.cols(), |i, j| a.row(i)[j]).unwrap()
}

/// `A` with other values.
fn with<T: Element>(a: &Csr<T>, values: &[T]) -> Csr<T> {
    CsrRef::on(a.pattern(), values).unwrap().to_csr()
}

/// Operands of the whole, and the gradients.
struct Case<T> {
    a: Csr<T>,
    b: Mat<T>,
    c: Mat<T>,
    d: Mat<T>,
    de: Mat<T>,
    ds: Vec<T>,
    /// A^T C, and of SDDMM.
    transposed: Expected,
    sddmm: [Expected; 2],
    /// dC . B at the nonzeros, C taken for dC.
    dots: Expected,
    fused: Vec<(BuiltIn<T>, FusedGradients)>,
}

impl<T: Element> Case<T> {
    fn new(a: Csr<T>) -> Self {
        let dense = |rows, cols, seed| generate::uniform_dense::<T>(rows, cols, seed).unwrap();
        let (b, c) = (dense(a.cols(), N[0], 1), dense(a.rows(), N[0], 2));
        let (d, de) = (dense(a.cols(), N[1], 3), dense(a.rows(), N[1], 4));
        let ds: Vec<T> = (0..a.nnz()).map(|p| T::from_f64((p % 13) as f64 / 7.0 - 1.0)).collect();
        let product = |a: &Csr<T>, b: &Mat<T>| {
            let zeros = Mat::zeros(a.rows(), b.cols()).unwrap();
            reference::spmm(T::ONE, a, b.as_ref(), T::ZERO, zeros.as_ref()).unwrap()
        };
        let by_ds = with(&a, &ds);
        let scalar = T::from_f64(0.25);
        let edges: [(BuiltIn<T>, reference::Edge<'_>); 6] = [
            (edge::Identity.into(), reference::Edge::Identity),
            (edge::Scale.into(), reference::Edge::Scale),
            (edge::Sigmoid.into(), reference::Edge::Sigmoid),
            (edge::Softmax { scale: scalar }.into(), reference::Edge::Softmax { scale: 0.25 }),
            (edge::LeakyRelu { slope: scalar }.into(), reference::Edge::LeakyRelu { slope: 0.25 }),
            (edge::SoftmaxLeakyRelu { slope: scalar }.into(), reference::Edge::SoftmaxLeakyRelu { slope: 0.25 }),
        ];
        let scores = Scores::Dots(c.as_ref(), b.as_ref());
        let gradients = edges.map(|(built_in, edge)| {
            let weighting = Weighting { edge, scores, heads: 1, bias: None, dropout: None };
            (built_in, reference::fusedmm_gradient(&a, weighting, d.as_ref(), de.as_ref()).unwrap())
        });
        Self {
            transposed: product(&a.transpose(), &c),
            sddmm: [product(&by_ds, &b), product(&by_ds.transpose(), &c)],
            dots: reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap(),
            fused: gradients.into(),
            a,
            b,
            c,
            d,
            de,
            ds,
        }
    }

    /// All of them on a rank: the largest error, in units of its bound.
    fn run(&self, comm: &dyn Comm, rows: &Blocks, cols: &Blocks, algorithm: Algorithm) -> Result<f64> {
        let (cpu, rank) = (cpu(), comm.rank());
        let given = CsrRef::from(&self.a).row_range(rows.range(rank)).unwrap().to_csr();
        let a = DistCsr::new(comm, rows, cols, &given, algorithm)?;
        let (b, d) = (share(&self.b, cols, rank), share(&self.d, cols, rank));
        let (c, de) = (share(&self.c, rows, rank), share(&self.de, rows, rank));
        let nan = |blocks, cols| DistMat::from_fn(blocks, rank, cols, |_, _| T::from_f64(f64::NAN)).unwrap();
        let first = self.a.pattern().row_ptr()[rows.range(rank).start];
        let mut worst = 0.0f64;
        let mut compare = |expected: &Expected, got: MatRef<'_, T>, blocks: &Blocks| {
            // Other ranks' rows are right by being the reference's.
            let (own, values) = (blocks.range(rank), expected.values());
            let whole = Mat::from_fn(blocks.len(), got.cols(), |i, j| match own.contains(&i) {
                true => got.row(i - own.start)[j],
                false => T::from_f64(values[i * got.cols() + j]),
            });
            worst = worst.max(expected.deviation(whole.unwrap().as_ref()).unwrap().error);
        };
        let of_values = |expected: &Expected, got: &[T]| {
            let mut whole: Vec<T> = expected.values().iter().map(|&x| T::from_f64(x)).collect();
            whole[first..first + got.len()].copy_from_slice(got);
            expected.deviation_of_values(&whole).unwrap().error
        };
        let (mut dc, mut db) = (nan(rows, N[0]), nan(cols, N[0]));
        let mut values = vec![T::from_f64(f64::NAN); given.nnz()];
        a.spmm_gradient(&cpu, comm, &b, &c, &mut values, &mut db)?;
        compare(&self.transposed, db.local(), cols);
        let mut worst_values = of_values(&self.dots, &values);
        let ds = &self.ds[first..first + given.nnz()];
        a.sddmm_gradient(&cpu, comm, &c, &b, ds, &mut dc, &mut db)?;
        compare(&self.sddmm[0], dc.local(), rows);
        compare(&self.sddmm[1], db.local(), cols);
        for (edge, wanted) in &self.fused {
            let (mut dc, mut db, mut dd) = (nan(rows, N[0]), nan(cols, N[0]), nan(cols, N[1]));
            let mut values = vec![T::from_f64(f64::NAN); given.nnz()];
            let out =
                DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: edge.uses_values().then_some(&mut values) };
            a.fusedmm_gradient(&cpu, comm, *edge, &c, &b, &d, &de, out)?;
            compare(&wanted.left, dc.local(), rows);
            compare(&wanted.right, db.local(), cols);
            compare(&wanted.d, dd.local(), cols);
            if edge.uses_values() {
                worst_values = worst_values.max(of_values(&wanted.values, &values));
            }
        }
        Ok(worst.max(worst_values))
    }
}

fn every_shape<T: Element>() {
    for (name, a) in shapes::<T>().into_iter().chain([("skewed", skewed())]) {
        let case = Case::new(a);
        for ranks in 1..=9 {
            let even = |n: usize| Blocks::even(n, ranks);
            let last = |n: usize| Blocks::new(vec![0; ranks].into_iter().chain([n]).collect()).unwrap();
            let (m, k) = (case.a.rows(), case.a.cols());
            let cuts = [(even(m), even(k)), (last(m), even(k)), (even(m), last(k))];
            for (rows, cols) in cuts.iter().take(if [4, 7].contains(&ranks) { 3 } else { 1 }) {
                for algorithm in algorithms(ranks) {
                    let errors = ThreadComm::run(ranks, |comm| case.run(comm, rows, cols, algorithm).unwrap());
                    let worst = errors.into_iter().fold(0.0, f64::max);
                    assert!(worst <= 1.0, "{name}, {ranks} ranks, {algorithm:?}: {worst}");
                }
            }
        }
    }
}

#[test]
fn every_gradient_is_right_f32() {
    every_shape::<f32>();
}

#[test]
fn every_gradient_is_right_f64() {
    every_shape::<f64>();
}

#[test]
fn the_same_ranks_give_the_same_bits() {
    let case = Case::<f32>::new(skewed());
    for (ranks, algorithm) in [(4, Algorithm::Aware), (6, Algorithm::DenseShift { replication: 2 })] {
        let (rows, cols) = (Blocks::even(case.a.rows(), ranks), Blocks::even(case.a.cols(), ranks));
        let run = || {
            ThreadComm::run(ranks, |comm| {
                let given = CsrRef::from(&case.a).row_range(rows.range(comm.rank())).unwrap().to_csr();
                let a = DistCsr::new(comm, &rows, &cols, &given, algorithm).unwrap();
                let mut b = DistMat::zeros(&cols, comm.rank(), N[0]).unwrap();
                // The second time in rooms that the first one has left.
                for _ in 0..2 {
                    a.spmm_transposed(&cpu(), comm, &share(&case.c, &rows, comm.rank()), &mut b).unwrap();
                }
                bits(b.local())
            })
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn the_words_of_gradients_are_the_plans() {
    let case = Case::<f64>::new(skewed());
    let [n, width] = N;
    for ranks in [1, 3, 4, 6] {
        let (rows, cols) = (Blocks::even(case.a.rows(), ranks), Blocks::even(case.a.cols(), ranks));
        for algorithm in algorithms(ranks) {
            for (edge, _) in &case.fused {
                let (softmax, values) = (edge.is_softmax(), edge.uses_values());
                let operation = Operation::FusedMmGradient { n, width, same: false, softmax, values };
                let counts = ThreadComm::run(ranks, |comm| {
                    let rank = comm.rank();
                    let given = CsrRef::from(&case.a).row_range(rows.range(rank)).unwrap().to_csr();
                    let allowed = |other| other == algorithm;
                    let cluster = Cluster::default();
                    let plan = DistPlan::new(comm, &rows, &cols, &given, operation, cluster, allowed).unwrap();
                    let a = DistCsr::new(comm, &rows, &cols, &given, algorithm).unwrap();
                    let (c, b) = (share(&case.c, &rows, rank), share(&case.b, &cols, rank));
                    let (d, de) = (share(&case.d, &cols, rank), share(&case.de, &rows, rank));
                    let (mut dc, mut db, mut dd) = (c.clone(), b.clone(), d.clone());
                    let mut room = vec![0.0; given.nnz()];
                    let out =
                        DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: values.then_some(&mut room[..]) };
                    let counted = CountComm::new(comm);
                    a.fusedmm_gradient(&cpu(), &counted, *edge, &c, &b, &d, &de, out).unwrap();
                    (counted.take().bytes_received / size_of::<f64>(), plan.chosen().total_words)
                });
                let received: usize = counts.iter().map(|(words, _)| words).sum();
                for (_, planned) in counts {
                    assert_eq!(received as f64, planned, "{ranks} ranks, {algorithm:?}, {edge:?}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error_of_all() {
    let case = Case::<f64>::new(skewed());
    let (rows, cols) = (Blocks::even(case.a.rows(), 4), Blocks::even(case.a.cols(), 4));
    let errors = ThreadComm::run(4, |comm| {
        let rank = comm.rank();
        let given = CsrRef::from(&case.a).row_range(rows.range(rank)).unwrap().to_csr();
        let a = DistCsr::new(comm, &rows, &cols, &given, Algorithm::DenseShift { replication: 2 }).unwrap();
        let (b, d) = (share(&case.b, &cols, rank), share(&case.d, &cols, rank));
        let (c, de) = (share(&case.c, &rows, rank), share(&case.de, &rows, rank));
        let (mut dc, mut db, mut dd) = (c.clone(), b.clone(), d.clone());
        let ds = &case.ds[..given.nnz() - usize::from(rank == 3)];
        let first = a.sddmm_gradient(&cpu(), comm, &c, &b, ds, &mut dc, &mut db).unwrap_err().to_string();
        let mut values = vec![0.0; given.nnz()];
        let out = DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: Some(&mut values) };
        let second = a.fusedmm_gradient(&cpu(), comm, edge::Sigmoid, &c, &b, &d, &de, out).unwrap_err().to_string();
        let out = DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: None };
        let ratio = BuiltIn::Ratio(edge::Ratio { floor: 0.5 });
        let third = a.fusedmm_gradient(&cpu(), comm, ratio, &c, &b, &d, &de, out).unwrap_err().to_string();
        let fourth = a.spmm_transposed(&cpu(), comm, &b, &mut db).unwrap_err().to_string();
        [first, second, third, fourth]
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    let words = ["rank 3: distributed sddmm_gradient: ", "rank 0: out: has room", "rank 0: edge: Ratio", "C is "];
    for (error, words) in errors[0].iter().zip(words) {
        assert!(error.contains(words), "{error}");
    }
}
