//! SpMM, SDDMM and FusedMM on 1 to 9 ranks against the reference: every algorithm, awkward shapes, empty ranks, hubs; and the
//! words that travel against the plan's.

#[allow(dead_code, reason = "the tests of one machine use the rest")]
#[path = "../../tests/common/matrices.rs"]
mod matrices;

use matrices::{bits, shapes, skewed};
use pulp::Simd;
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::reference::{self, Expected};
use sparsimd::{Cpu, Csr, CsrRef, Mat, MatRef, Number, edge, generate};
use sparsimd_distributed::{
    Algorithm, Blocks, Cluster, Comm, CountComm, DistCsr, DistMat, DistPlan, Element, Operation, Result, ThreadComm,
    Traffic,
};

/// Columns of B and C, and of D and E.
const N: [usize; 2] = [19, 8];

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

/// Aware, and dense shift with every replication.
fn algorithms(ranks: usize) -> Vec<Algorithm> {
    let dense = (1..=ranks).filter(|&c| ranks.is_multiple_of(c)).map(|c| Algorithm::DenseShift { replication: c });
    std::iter::once(Algorithm::Aware).chain(dense).collect()
}

/// `rank`'s rows of `a`.
fn local<T: Element>(a: &Csr<T>, blocks: &Blocks, rank: usize) -> Csr<T> {
    CsrRef::from(a).row_range(blocks.range(rank)).unwrap().to_csr()
}

/// `rank`'s rows of `a`.
fn share<T: Element>(a: &Mat<T>, blocks: &Blocks, rank: usize) -> DistMat<T> {
    DistMat::from_fn(blocks, rank, a.cols(), |i, j| a.row(i)[j]).unwrap()
}

/// Rows cut evenly, by nonzeros, and all on the last rank.
fn cuts<T: Element>(a: &Csr<T>, ranks: usize) -> Vec<(Blocks, Blocks)> {
    let weights: Vec<u64> = (0..a.rows()).map(|i| a.pattern().row(i).len() as u64).collect();
    let even = |n: usize| Blocks::even(n, ranks);
    let last = |n: usize| Blocks::new(vec![0; ranks].into_iter().chain([n]).collect()).unwrap();
    vec![
        (even(a.rows()), even(a.cols())),
        (Blocks::balanced(&weights, ranks), even(a.cols())),
        (last(a.rows()), even(a.cols())),
        (even(a.rows()), last(a.cols())),
    ]
}

/// Operands of the whole, and what the operations make of them.
struct Case<T> {
    a: Csr<T>,
    b: Mat<T>,
    c: Mat<T>,
    d: Mat<T>,
    product: Expected,
    dots: [Expected; 2],
    fused: Vec<Expected>,
}

impl<T: Element> Case<T> {
    fn new(a: Csr<T>) -> Self {
        let dense = |rows, cols, seed| generate::uniform_dense::<T>(rows, cols, seed).unwrap();
        let (b, c, d) = (dense(a.cols(), N[0], 1), dense(a.rows(), N[0], 2), dense(a.cols(), N[1], 3));
        let zeros = Mat::zeros(a.rows(), N[0]).unwrap();
        let product = reference::spmm(T::ONE, &a, b.as_ref(), T::ZERO, zeros.as_ref()).unwrap();
        let dots = [false, true].map(|scaled| reference::sddmm(&a, scaled, c.as_ref(), b.as_ref()).unwrap());
        let fused = |edge, d: &Mat<T>| reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), d.as_ref()).unwrap();
        let fused = vec![
            fused(reference::Edge::Identity, &b),
            fused(reference::Edge::Scale, &d),
            fused(reference::Edge::Sigmoid, &d),
            fused(reference::Edge::Softmax { scale: 0.5 }, &d),
            fused(reference::Edge::SoftmaxLeakyRelu { slope: 0.25 }, &b),
        ];
        Self { a, b, c, d, product, dots, fused }
    }

    /// All operations with these rows and columns, on a rank: the largest error, in units of its bound.
    fn run(&self, comm: &dyn Comm, rows: &Blocks, cols: &Blocks, algorithm: Algorithm) -> Result<f64> {
        let (cpu, rank) = (cpu(), comm.rank());
        let given = local(&self.a, rows, rank);
        let a = DistCsr::new(comm, rows, cols, &given, algorithm)?;
        let (b, d) = (share(&self.b, cols, rank), share(&self.d, cols, rank));
        let c = share(&self.c, rows, rank);
        let mut worst = 0.0f64;
        let mut compare = |expected: &Expected, got: MatRef<'_, T>| {
            // Other ranks' rows are right by being the reference's.
            let own = rows.range(rank);
            let values = expected.values();
            let whole = Mat::from_fn(rows.len(), got.cols(), |i, j| match own.contains(&i) {
                true => got.row(i - own.start)[j],
                false => T::from_f64(values[i * got.cols() + j]),
            });
            worst = worst.max(expected.deviation(whole.unwrap().as_ref()).unwrap().error);
        };
        let nan = |cols| DistMat::from_fn(rows, rank, cols, |_, _| T::from_f64(f64::NAN)).unwrap();

        let mut out = nan(N[0]);
        a.spmm(&cpu, comm, &b, &mut out)?;
        compare(&self.product, out.local());
        a.fusedmm(&cpu, comm, edge::Identity, &c, &b, &b, &mut out)?;
        compare(&self.fused[0], out.local());
        let mut out = nan(N[1]);
        a.fusedmm(&cpu, comm, edge::Scale, &c, &b, &d, &mut out)?;
        compare(&self.fused[1], out.local());
        a.fusedmm(&cpu, comm, edge::Sigmoid, &c, &b, &d, &mut out)?;
        compare(&self.fused[2], out.local());
        a.fusedmm(&cpu, comm, edge::Softmax { scale: T::from_f64(0.5) }, &c, &b, &d, &mut out)?;
        compare(&self.fused[3], out.local());
        let mut out = nan(N[0]);
        a.fusedmm(&cpu, comm, edge::SoftmaxLeakyRelu { slope: T::from_f64(0.25) }, &c, &b, &b, &mut out)?;
        compare(&self.fused[4], out.local());
        for scaled in [false, true] {
            let mut values = vec![T::from_f64(f64::NAN); given.nnz()];
            a.sddmm(&cpu, comm, scaled, &c, &b, &mut values)?;
            let first = self.a.pattern().row_ptr()[rows.range(rank).start];
            let expected = &self.dots[usize::from(scaled)];
            let mut whole: Vec<T> = expected.values().iter().map(|&x| T::from_f64(x)).collect();
            whole[first..first + values.len()].copy_from_slice(&values);
            worst = worst.max(expected.deviation_of_values(&whole).unwrap().error);
        }
        Ok(worst)
    }
}

fn every_shape<T: Element>() {
    let all = shapes::<T>().into_iter().chain([("skewed", skewed())]);
    for (name, a) in all {
        let case = Case::new(a);
        for ranks in 1..=9 {
            for (cut, (rows, cols)) in cuts(&case.a, ranks).into_iter().enumerate() {
                // All cuts on some numbers of ranks; one on each.
                if cut > 0 && ![4, 7].contains(&ranks) {
                    continue;
                }
                for algorithm in algorithms(ranks) {
                    let errors =
                        ThreadComm::run(ranks, |comm: &dyn Comm| case.run(comm, &rows, &cols, algorithm).unwrap());
                    let worst = errors.into_iter().fold(0.0, f64::max);
                    assert!(worst <= 1.0, "{name}, {ranks} ranks, cut {cut}, {algorithm:?}: {worst}");
                }
            }
        }
    }
}

#[test]
fn every_operation_is_right_f32() {
    every_shape::<f32>();
}

#[test]
fn every_operation_is_right_f64() {
    every_shape::<f64>();
}

/// A softmax of the caller's own.
#[derive(Clone, Copy)]
struct Own;

impl edge::Edge<f32> for Own {
    fn is_softmax(self) -> bool {
        true
    }

    fn apply<S: Simd>(self, simd: S, dot: S::f32s, _: S::f32s) -> S::f32s {
        f32::vadd(simd, dot, dot)
    }
}

#[test]
fn a_softmax_of_the_callers_own_needs_whole_rows() {
    let case = Case::<f32>::new(skewed());
    let edge = reference::Edge::Softmax { scale: 2.0 };
    let expected = reference::fusedmm(&case.a, edge, case.c.as_ref(), case.b.as_ref(), case.b.as_ref()).unwrap();
    for (ranks, algorithm) in
        [1, 4].into_iter().flat_map(|ranks| algorithms(ranks).into_iter().map(move |a| (ranks, a)))
    {
        let (rows, cols) = (Blocks::even(case.a.rows(), ranks), Blocks::even(case.a.cols(), ranks));
        let done = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let rank = comm.rank();
            let a = DistCsr::new(comm, &rows, &cols, &local(&case.a, &rows, rank), algorithm).unwrap();
            let (c, b) = (share(&case.c, &rows, rank), share(&case.b, &cols, rank));
            let mut e = DistMat::zeros(&rows, rank, N[0]).unwrap();
            a.fusedmm(&cpu(), comm, Own, &c, &b, &b, &mut e)?;
            Ok::<_, sparsimd_distributed::Error>(e)
        });
        for done in done {
            match done {
                Ok(e) if ranks == 1 => assert!(expected.deviation(e.local()).unwrap().error <= 1.0, "{algorithm:?}"),
                Err(e) if ranks > 1 => assert!(e.to_string().contains("softmax"), "{algorithm:?}: {e}"),
                other => panic!("{algorithm:?}, {ranks} ranks: {:?}", other.map(|_| ())),
            }
        }
    }
}

#[test]
fn prepared_parts_give_the_product_and_the_same_bits_again() {
    let case = Case::<f32>::new(skewed());
    let (rows, cols) = (Blocks::even(case.a.rows(), 3), Blocks::even(case.a.cols(), 3));
    for algorithm in [Algorithm::Aware, Algorithm::DenseShift { replication: 1 }] {
        for strategy in [Strategy::Direct, Strategy::Panel] {
            let run = || {
                ThreadComm::run(3, |comm: &dyn Comm| {
                    let given = local(&case.a, &rows, comm.rank());
                    let mut a = DistCsr::new(comm, &rows, &cols, &given, algorithm).unwrap();
                    a.prepare(&cpu(), &PlanOptions::new(Op::Spmm, N[0]).strategy(strategy)).unwrap();
                    let mut c = DistMat::zeros(&rows, comm.rank(), N[0]).unwrap();
                    a.spmm(&cpu(), comm, &share(&case.b, &cols, comm.rank()), &mut c).unwrap();
                    c
                })
            };
            let (first, second) = (run(), run());
            let stacked: Vec<f32> = first.iter().flat_map(|c| c.local().iter_rows()).flatten().copied().collect();
            let whole = Mat::from_vec(case.a.rows(), N[0], stacked).unwrap();
            assert!(case.product.deviation(whole.as_ref()).unwrap().error <= 1.0);
            for (x, y) in first.iter().zip(&second) {
                assert_eq!(bits(x.local()), bits(y.local()));
            }
        }
    }
}

/// The plan of one algorithm.
fn plan<T: Element>(
    comm: &dyn Comm,
    rows: &Blocks,
    cols: &Blocks,
    a: &Csr<T>,
    operation: Operation,
    algorithm: Algorithm,
) -> DistPlan {
    DistPlan::new(comm, rows, cols, a, operation, Cluster::default(), |allowed| allowed == algorithm).unwrap()
}

#[test]
fn the_words_that_travel_are_the_plans() {
    let case = Case::<f64>::new(skewed());
    let [n, width] = N;
    let operations = [
        Operation::Spmm { n },
        Operation::SpmmTransposed { n },
        Operation::Sddmm { n },
        Operation::FusedMm { n, width: n, same: true, softmax: false },
        Operation::FusedMm { n, width, same: false, softmax: false },
        Operation::FusedMm { n, width: n, same: true, softmax: true },
    ];
    for ranks in [1, 2, 4, 6, 9] {
        for (rows, cols) in cuts(&case.a, ranks) {
            for algorithm in algorithms(ranks) {
                for operation in operations {
                    // Terms of ghosts are sent: the plan counts those.
                    let reversed =
                        algorithm == Algorithm::Aware && matches!(operation, Operation::SpmmTransposed { .. });
                    let traffic = ThreadComm::run(ranks, |comm: &dyn Comm| {
                        let rank = comm.rank();
                        let given = local(&case.a, &rows, rank);
                        let plan = plan(comm, &rows, &cols, &given, operation, algorithm);
                        let a = DistCsr::new(comm, &rows, &cols, &given, algorithm).unwrap();
                        let (b, d) = (share(&case.b, &cols, rank), share(&case.d, &cols, rank));
                        let c = share(&case.c, &rows, rank);
                        let counted = CountComm::new(comm);
                        match operation {
                            Operation::Spmm { n } => {
                                a.spmm(&cpu(), &counted, &b, &mut DistMat::zeros(&rows, rank, n).unwrap()).unwrap();
                            }
                            Operation::SpmmTransposed { n } => {
                                let mut b = DistMat::zeros(&cols, rank, n).unwrap();
                                a.spmm_transposed(&cpu(), &counted, &c, &mut b).unwrap();
                            }
                            Operation::Sddmm { .. } => {
                                let mut values = vec![0.0; given.nnz()];
                                a.sddmm(&cpu(), &counted, false, &c, &b, &mut values).unwrap();
                            }
                            Operation::FusedMm { width, same, softmax, .. } => {
                                let mut e = DistMat::zeros(&rows, rank, width).unwrap();
                                let d = if same { &b } else { &d };
                                match softmax {
                                    true => {
                                        a.fusedmm(&cpu(), &counted, edge::Softmax { scale: 1.0 }, &c, &b, d, &mut e)
                                    }
                                    false => a.fusedmm(&cpu(), &counted, edge::Identity, &c, &b, d, &mut e),
                                }
                                .unwrap();
                            }
                            Operation::FusedMmGradient { .. } => unreachable!("tests/gradient.rs counts those"),
                        }
                        let traffic = counted.take();
                        let moved = if reversed { traffic.bytes_sent } else { traffic.bytes_received };
                        assert_eq!(moved, plan.chosen().words * 8, "{operation:?}, {algorithm:?}");
                        (traffic, *plan.chosen())
                    });
                    let most = |of: fn(&Traffic) -> [usize; 2]| -> usize {
                        traffic.iter().map(|(t, _)| of(t)[usize::from(reversed)]).max().unwrap()
                    };
                    let messages = most(|t| [t.messages_received, t.messages_sent]);
                    let words = most(|t| [t.bytes_received, t.bytes_sent]) / 8;
                    let sent: usize = traffic.iter().map(|(t, _)| t.bytes_sent).sum();
                    for (_, chosen) in &traffic {
                        assert_eq!((chosen.most_words, chosen.most_messages), (words as f64, messages as f64));
                        assert_eq!(chosen.total_words, (sent / 8) as f64);
                    }
                }
            }
        }
    }
}

#[test]
fn counted_words_are_near_the_closed_forms() {
    let (size, n, ranks) = (2304, 24, 36usize);
    let a = generate::random_matrix::<f32>(size, size, 1.0 - 32.0 / size as f64, 5).unwrap();
    let blocks = Blocks::even(size, ranks);
    let words = |operation: Operation, algorithm: Algorithm| {
        ThreadComm::run(ranks, |comm: &dyn Comm| {
            let given = local(&a, &blocks, comm.rank());
            plan(comm, &blocks, &blocks, &given, operation, algorithm).chosen().most_words
        })[0]
    };
    let (p, r, size) = (ranks as f64, n as f64, size as f64);
    for replication in [1, 2, 3, 4, 6] {
        let c = replication as f64;
        let dense = Algorithm::DenseShift { replication };
        // The rank's own block does not travel.
        let (travel, share) = (size * r / c - size * r / p, (c - 1.0) * size * r / p);
        let near = |operation, model: f64| {
            let words = words(operation, dense);
            assert!((words / model - 1.0).abs() <= 0.05, "{operation:?}, c = {c}: {words} words, model {model}");
        };
        near(Operation::Spmm { n }, travel + share);
        near(Operation::FusedMm { n, width: n, same: true, softmax: false }, travel + 2.0 * share);
        near(Operation::FusedMm { n, width: n, same: false, softmax: false }, 2.0 * travel + 2.0 * share);
        let gradient = |same| Operation::FusedMmGradient { n, width: n, same, softmax: false, values: false };
        near(gradient(false), 5.0 * travel + 3.0 * share);
        near(gradient(true), 4.0 * travel + 3.0 * share);
    }
    // Each of the n - n/p other rows is named with probability 1 - (1 - d)^(n/p).
    let named = 1.0 - (1.0 - 32.0 / size).powf(size / p);
    let words = words(Operation::Spmm { n }, Algorithm::Aware);
    let model = (size - size / p) * named * r;
    assert!((words / model - 1.0).abs() <= 0.05, "aware: {words} words, model {model}");
}

#[test]
fn plans_choose_by_cost_and_memory_and_say_why() {
    let (size, ranks) = (640, 16);
    let blocks = Blocks::even(size, ranks);
    let choose = |a: &Csr<f32>, cluster: Cluster, memory: f64| {
        let plans = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let given = local(a, &blocks, comm.rank());
            let operation = Operation::Spmm { n: 32 };
            DistPlan::new(comm, &blocks, &blocks, &given, operation, Cluster { memory, ..cluster }, |_| true)
                .map_err(|e| e.to_string())
        });
        let same = |plan: &DistPlan| plan.chosen().algorithm;
        if let Ok(first) = &plans[0] {
            assert!(plans.iter().all(|plan| same(plan.as_ref().unwrap()) == same(first)));
        }
        plans.into_iter().next().unwrap()
    };
    // Neighbours on a line: few ghosts.
    let line: Vec<Vec<u32>> =
        (0..size as u32).map(|i| (i.saturating_sub(1)..(i + 2).min(size as u32)).collect()).collect();
    let local_graph = matrices::from_rows::<f32>(size, &line);
    let full = generate::random_matrix::<f32>(size, size, 0.0, 1).unwrap();
    let chosen = choose(&local_graph, Cluster::default(), f64::INFINITY).unwrap();
    assert_eq!(chosen.chosen().algorithm, Algorithm::Aware);
    let wide = Cluster { latency: 0.0, ..Cluster::default() };
    let plan = choose(&full, wide, f64::INFINITY).unwrap();
    // n r / c + (c - 1) n r / p is least at c = 4 for 16 ranks.
    assert_eq!(plan.chosen().algorithm, Algorithm::DenseShift { replication: 4 });
    // Read in place, rows are counted, and cost nothing beside the nonzeros; but those of A transposed still travel.
    let common = Cluster { in_common: true, ..wide };
    let placed = *choose(&full, common, f64::INFINITY).unwrap().chosen();
    let travelled = plan.others().iter().find(|c| c.algorithm == Algorithm::Aware).unwrap();
    assert_eq!((placed.algorithm, placed.most_words), (Algorithm::Aware, travelled.most_words));
    assert_eq!((placed.most_messages, placed.bytes), (0.0, 0.0));
    let most = (0..ranks).map(|rank| local(&full, &blocks, rank).nnz()).max().unwrap();
    assert!((placed.seconds - (64 * most) as f64 / common.flops).abs() < 1e-12 && placed.seconds < travelled.seconds);
    let transposed = ThreadComm::run(ranks, |comm: &dyn Comm| {
        let (given, operation) = (local(&full, &blocks, comm.rank()), Operation::SpmmTransposed { n: 32 });
        let of = |cluster| DistPlan::new(comm, &blocks, &blocks, &given, operation, cluster, |_| true).unwrap();
        of(common).chosen() == of(wide).chosen()
    });
    assert!(transposed.into_iter().all(|same| same));
    let words = plan.to_string();
    assert!(
        words.starts_with("dense shift with replication 4: at most") && words.contains("instead of aware"),
        "{words}"
    );
    let least = plan.others().iter().map(|c| c.bytes).fold(f64::INFINITY, f64::min);
    assert!(choose(&full, wide, plan.chosen().bytes - 1.0).unwrap().chosen().algorithm != plan.chosen().algorithm);
    let error = choose(&full, wide, least.min(plan.chosen().bytes) - 1.0).unwrap_err();
    assert!(error.contains("algorithm: none that is allowed"), "{error}");
}

#[test]
fn what_does_not_fit_on_one_rank_is_an_error_of_all() {
    let case = Case::<f32>::new(skewed());
    let (rows, cols) = (Blocks::even(case.a.rows(), 4), Blocks::even(case.a.cols(), 4));
    let errors = ThreadComm::run(4, |comm: &dyn Comm| {
        let rank = comm.rank();
        let given = local(&case.a, &rows, rank);
        let a = DistCsr::new(comm, &rows, &cols, &given, Algorithm::DenseShift { replication: 2 }).unwrap();
        let b = share(&case.b, &cols, rank);
        let mut c = DistMat::zeros(&rows, rank, if rank == 2 { 3 } else { N[0] }).unwrap();
        let first = a.spmm(&cpu(), comm, &b, &mut c).unwrap_err().to_string();
        let mut few = vec![0.0; given.nnz() - usize::from(rank == 1)];
        let c = share(&case.c, &rows, rank);
        let second = a.sddmm(&cpu(), comm, false, &c, &b, &mut few).unwrap_err().to_string();
        let third = DistCsr::new(comm, &rows, &cols, &given, Algorithm::DenseShift { replication: 3 });
        [first, second, third.unwrap_err().to_string()]
    });
    for error in &errors {
        assert_eq!(*error, errors[0]);
    }
    assert!(errors[0][0].starts_with("rank 2: distributed spmm: C is 200 x 3 with 50 rows here"), "{}", errors[0][0]);
    assert!(errors[0][1].starts_with("rank 1: distributed sddmm: "), "{}", errors[0][1]);
    assert!(errors[0][2].ends_with("replication: 3 does not divide the 4 ranks"), "{}", errors[0][2]);
}
