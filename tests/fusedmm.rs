//! E = f(C B^T at the nonzeros of A) D for every edge function, on every instruction set, path, element type and shape.

mod common;

use common::matrices::{
    STRATEGIES, Strided, WIDTHS, aligned, assert_dense, bits, executors, executors_with_small_caches, on_every_path,
    pieces, prepare, shapes, sparse_rows, streams,
};
use pulp::Simd;
use sparsimd::edge::{self, Edge, Map};
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Error, Mat, Scalar, Stored, bf16, f16, generate, reference};

/// Checks `edge` against `wanted` on all shapes; `widths` are those of C, B and D.
fn check<D: Stored, F: Edge<D::Scalar>>(widths: &[usize], edge: impl Fn(usize) -> F, wanted: impl Fn(usize) -> Wanted) {
    check_stored::<D, D::Scalar, F>(&shapes::<D::Scalar>(), widths, edge, wanted);
}

/// The same for matrices with values of `V`.
fn check_stored<D: Stored, V: Stored<Scalar = D::Scalar>, F: Edge<D::Scalar>>(
    matrices: &[(&str, Csr<V>)],
    widths: &[usize],
    edge: impl Fn(usize) -> F,
    wanted: impl Fn(usize) -> Wanted,
) {
    let cpus = executors();
    for (shape, a) in matrices {
        let exact = a.stored_as();
        for &n in widths {
            let (c, b) = (Strided::<D>::random(a.rows(), n, 1), Strided::<D>::random(a.cols(), n, 2));
            let d = Strided::<D>::random(a.cols(), n, 3);
            // Directly, D that is B takes another way.
            for (d, which) in [(&d, "D is not B"), (&b, "D is B")] {
                let expected = wanted(n).expected(&exact, &c, &b, d);
                on_every_path(&cpus, Op::FusedMm, a, n, |cpu, operand, how| {
                    let mut e = Strided::<D>::nan(a.rows(), n);
                    cpu.fusedmm(operand, edge(n), c.view(), b.view(), d.view(), e.view_mut()).unwrap();
                    assert_dense(&expected, &e, || format!("{}, {shape}, N = {n}, {which}, {how}", D::DTYPE));
                });
            }
        }
    }
}

/// The reference's edge function; `Map` stands for [`leaky`].
#[derive(Clone, Copy)]
enum Wanted {
    Identity,
    Scale,
    Sigmoid,
    Softmax(f64),
    LeakyRelu(f64),
    SoftmaxLeakyRelu(f64),
    Leaky,
    Ratio(f64),
}

impl Wanted {
    fn expected<D: Stored>(
        self,
        a: &Csr<D::Scalar>,
        c: &Strided<D>,
        b: &Strided<D>,
        d: &Strided<D>,
    ) -> reference::Expected {
        // A jump would make the bound of the scores useless; this function is continuous, its slope at most |a|.
        let each = |s: f64, a: f64| (if s > 0.0 { a * s } else { 0.125 * a * s }, a.abs());
        let floor = if let Self::Ratio(floor) = self { floor } else { 1.0 };
        let ratio = |s: f64, a: f64| (a / s.max(floor), a.abs() / (floor * floor));
        let edge = match self {
            Self::Identity => reference::Edge::Identity,
            Self::Scale => reference::Edge::Scale,
            Self::Sigmoid => reference::Edge::Sigmoid,
            Self::Softmax(scale) => reference::Edge::Softmax { scale },
            Self::LeakyRelu(slope) => reference::Edge::LeakyRelu { slope },
            Self::SoftmaxLeakyRelu(slope) => reference::Edge::SoftmaxLeakyRelu { slope },
            Self::Leaky => reference::Edge::Map(&each),
            Self::Ratio(_) => reference::Edge::Map(&ratio),
        };
        reference::fusedmm(a, edge, c.view(), b.view(), d.view()).unwrap()
    }
}

/// A user's own edge function: a leaky rectifier of the scaled score.
fn leaky<T: Scalar>(s: T, a: T) -> T {
    if s > T::ZERO { a * s } else { T::from_f64(0.125) * a * s }
}

/// The factor that attention uses, exact in f32.
fn attention_scale(n: usize) -> f64 {
    f64::from(1.0 / (n as f32).sqrt())
}

/// A user's own softmax, of the scaled score.
#[derive(Clone, Copy)]
struct OwnSoftmax<T>(T);

impl<T: Scalar> Edge<T> for OwnSoftmax<T> {
    fn is_softmax(self) -> bool {
        true
    }

    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, T::splat(simd, self.0), dot)
    }
}

macro_rules! every_edge {
    ($($t:ident: $identity:ident $scale:ident $sigmoid:ident $softmax:ident $steep:ident $leaky_relu:ident $each:ident $ratio:ident;)*) => {$(
        #[test]
        fn $identity() {
            check::<$t, _>(&WIDTHS, |_| edge::Identity, |_| Wanted::Identity);
        }
        #[test]
        fn $scale() {
            check::<$t, _>(&WIDTHS, |_| edge::Scale, |_| Wanted::Scale);
        }
        #[test]
        fn $sigmoid() {
            check::<$t, _>(&WIDTHS, |_| edge::Sigmoid, |_| Wanted::Sigmoid);
        }
        #[test]
        fn $softmax() {
            let edge = |n| edge::Softmax { scale: attention_scale(n) as $t };
            check::<$t, _>(&WIDTHS, edge, |n| Wanted::Softmax(attention_scale(n)));
        }
        /// Weights that differ by hundreds of orders of magnitude.
        #[test]
        fn $steep() {
            check::<$t, _>(&[3, 33, 128], |_| edge::Softmax { scale: -300.0 }, |_| Wanted::Softmax(-300.0));
            // Some logits of a row, or of rows that are taken together, are above 20.
            check::<$t, _>(&[3, 16, 33], |_| edge::Softmax { scale: 9.0 }, |_| Wanted::Softmax(9.0));
        }
        #[test]
        fn $leaky_relu() {
            let widths = [1, 17, 64];
            check::<$t, _>(&widths, |_| edge::LeakyRelu { slope: 0.25 }, |_| Wanted::LeakyRelu(0.25));
            let edge = edge::SoftmaxLeakyRelu { slope: 0.25 };
            check::<$t, _>(&widths, |_| edge, |_| Wanted::SoftmaxLeakyRelu(0.25));
        }
        #[test]
        fn $each() {
            check::<$t, _>(&[1, 17, 64, 130], |_| Map(leaky::<$t>), |_| Wanted::Leaky);
            check::<$t, _>(&[1, 17, 64], |_| OwnSoftmax(0.5), |_| Wanted::Softmax(0.5));
            check::<$t, _>(&[3, 33], |_| OwnSoftmax(9.0), |_| Wanted::Softmax(9.0));
        }
        #[test]
        fn $ratio() {
            check::<$t, _>(&[1, 17, 64], |_| edge::Ratio { floor: 0.5 }, |_| Wanted::Ratio(0.5));
        }
    )*};
}

every_edge! {
    f32: identity_f32 scale_f32 sigmoid_f32 softmax_f32 steep_softmax_f32 leaky_relu_f32 own_function_f32 ratio_f32;
    f64: identity_f64 scale_f64 sigmoid_f64 softmax_f64 steep_softmax_f64 leaky_relu_f64 own_function_f64 ratio_f64;
}

/// Every edge function of operands that store halves, whose sums are f32.
fn check_narrow<D: Stored<Scalar = f32>>() {
    const WIDTHS: [usize; 8] = [1, 3, 16, 33, 64, 100, 128, 257];
    check::<D, _>(&WIDTHS, |_| edge::Identity, |_| Wanted::Identity);
    check::<D, _>(&WIDTHS, |_| edge::Scale, |_| Wanted::Scale);
    check::<D, _>(&WIDTHS, |_| edge::Sigmoid, |_| Wanted::Sigmoid);
    let softmax = |n| edge::Softmax { scale: attention_scale(n) as f32 };
    check::<D, _>(&WIDTHS, softmax, |n| Wanted::Softmax(attention_scale(n)));
    check::<D, _>(&[3, 33, 128], |_| edge::Softmax { scale: -300.0 }, |_| Wanted::Softmax(-300.0));
    check::<D, _>(&[17, 130], |_| Map(leaky::<f32>), |_| Wanted::Leaky);
}

/// The edge functions that use values, which are narrow.
fn check_values<D: Stored<Scalar = f32>, V: Stored<Scalar = f32>>() {
    let narrow: Vec<(&str, Csr<V>)> = shapes::<f32>().into_iter().map(|(name, a)| (name, a.stored_as())).collect();
    check_stored::<D, V, _>(&narrow, &[1, 3, 16, 33, 128, 257], |_| edge::Scale, |_| Wanted::Scale);
    check_stored::<D, V, _>(&narrow, &[17, 130], |_| Map(leaky::<f32>), |_| Wanted::Leaky);
    check_stored::<D, V, _>(&[("pieces", pieces())], &[1, 35], |_| edge::Scale, |_| Wanted::Scale);
}

#[test]
fn values_of_bf16() {
    check_values::<f32, bf16>();
    check_values::<bf16, bf16>();
}

#[test]
fn values_of_f16() {
    check_values::<f32, f16>();
    check_values::<f16, f16>();
}

/// Attention does not look at them, but its rows are cut as those of operations that do.
#[test]
fn softmax_in_pieces() {
    let softmax = |n| edge::Softmax { scale: attention_scale(n) as f32 };
    check_stored::<f32, bf16, _>(&[("pieces", pieces())], &[20], softmax, |n| Wanted::Softmax(attention_scale(n)));
}

#[test]
fn every_edge_bf16() {
    check_narrow::<bf16>();
}

#[test]
fn every_edge_f16() {
    check_narrow::<f16>();
}

#[test]
fn sigmoid_of_large_scores_saturates() {
    // One score per nonzero, from -2e4 to 2e4.
    let a = generate::random_matrix::<f32>(1, 41, 0.0, 1).unwrap();
    let c = Mat::from_fn(1, 1, |_, _| 1000.0f32).unwrap();
    let b = Mat::from_fn(41, 1, |i, _| i as f32 - 20.0).unwrap();
    // Row j of D is a unit vector, so column j of E is the weight of edge j.
    let d = Mat::from_fn(41, 41, |i, j| f32::from(i == j)).unwrap();
    for cpu in executors() {
        let mut e = Mat::zeros(1, 41).unwrap();
        cpu.fusedmm(&a, edge::Sigmoid, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()).unwrap();
        for (j, &w) in e.row(0).iter().enumerate() {
            let right = match j {
                0..20 => (0.0..1e-30).contains(&w),
                20 => w == 0.5,
                _ => w == 1.0,
            };
            assert!(right, "{}: sigmoid({}) = {w}", cpu.arch().name(), (j as f64 - 20.0) * 1000.0);
        }
    }
}

#[test]
fn scores_that_are_no_numbers_stay_in_their_row() {
    let cpus = executors();
    for (shape, a) in shapes::<f32>() {
        let n = 17;
        let (c, b, d) = (aligned::<f32>(a.rows(), n, 1), aligned(a.cols(), n, 2), aligned(a.cols(), n, 3));
        let mut bad = c.clone();
        let bad_row = a.rows() / 2;
        if a.rows() > 0 {
            bad.as_mut().into_row(bad_row).fill(f32::NAN);
        }
        on_every_path(&cpus, Op::FusedMm, &a, n, |cpu, operand, how| {
            let run = |c: &Mat<f32>| {
                let mut e = Mat::zeros(a.rows(), n).unwrap();
                let edge = edge::Softmax { scale: 0.3 };
                cpu.fusedmm(operand, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()).unwrap();
                e
            };
            let (right, e) = (run(&c), run(&bad));
            for i in 0..a.rows() {
                let same = e.row(i).iter().zip(right.row(i)).all(|(x, y)| x.to_bits() == y.to_bits());
                let empty = a.pattern().row_ptr().get(i) == a.pattern().row_ptr().get(i + 1);
                let all_nan = e.row(i).iter().all(|x| x.is_nan());
                assert!(if i == bad_row && !empty { all_nan } else { same }, "{shape}, row {i}, {how}");
            }
        });
    }
}

#[test]
fn results_written_past_the_caches() {
    let cpus = executors_with_small_caches();
    for (a, together) in sparse_rows::<f32>().iter().flat_map(|a| [(a, false), (a, true)]) {
        for n in [32, 100, 128, 256] {
            let (c, b, d) = (aligned::<f32>(a.rows(), n, 1), aligned(a.cols(), n, 2), aligned(a.cols(), n, 3));
            let (c, b) = (c.as_ref(), b.as_ref());
            let d = if together { b } else { d.as_ref() };
            let scale = attention_scale(n);
            let sigmoid = reference::fusedmm(a, reference::Edge::Sigmoid, c, b, d).unwrap();
            let softmax = reference::fusedmm(a, reference::Edge::Softmax { scale }, c, b, d).unwrap();
            for cpu in &cpus {
                let prepared = prepare(cpu, Op::FusedMm, a, n, STRATEGIES[0]);
                assert_eq!(streams(&prepared), 2 * (a.rows() + a.cols()) * n * 4 > 56 << 10);
                let mut e = Mat::from_fn(a.rows(), n, |_, _| f32::NAN).unwrap();
                cpu.fusedmm(&prepared, edge::Sigmoid, c, b, d, e.as_mut()).unwrap();
                assert!(sigmoid.deviation(e.as_ref()).unwrap().error <= 1.0, "N = {n}, {}", cpu.arch().name());
                let edge = edge::Softmax { scale: scale as f32 };
                cpu.fusedmm(&prepared, edge, c, b, d, e.as_mut()).unwrap();
                assert!(softmax.deviation(e.as_ref()).unwrap().error <= 1.0, "N = {n}, {}", cpu.arch().name());
            }
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    let a = common::matrices::skewed::<f32>();
    let cpu = Cpu::builder().threads(4).pin(false).build().unwrap();
    for n in [1, 33, 128] {
        let (c, b, d) = (aligned::<f32>(200, n, 1), aligned::<f32>(3000, n, 2), aligned::<f32>(3000, n, 3));
        for path in STRATEGIES {
            let prepared = prepare(&cpu, Op::FusedMm, &a, n, path);
            let run = || {
                let mut e = Mat::zeros(200, n).unwrap();
                let edge = edge::Softmax { scale: 0.1 };
                cpu.fusedmm(&prepared, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()).unwrap();
                bits(e.as_ref())
            };
            let first = run();
            assert!((0..20).all(|_| run() == first), "N = {n}, {path:?}");
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.5, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    for (c, b, d, mut e) in [
        (m(5, 3), m(5, 3), m(5, 3), m(4, 3)),
        (m(4, 3), m(4, 3), m(5, 3), m(4, 3)),
        (m(4, 3), m(5, 2), m(5, 3), m(4, 3)),
        (m(4, 3), m(5, 3), m(4, 3), m(4, 3)),
        (m(4, 3), m(5, 3), m(5, 3), m(5, 3)),
        (m(4, 3), m(5, 3), m(5, 3), m(4, 2)),
        (m(4, 0), m(5, 0), m(5, 0), m(4, 0)),
    ] {
        let refused = cpu.fusedmm(&a, edge::Identity, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()).unwrap_err();
        assert!(matches!(refused, Error::Shape { op: "fusedmm", .. } | Error::Argument { .. }), "{refused}");
    }
    // A pattern has no values to scale by.
    let (c, b, mut e) = (m(4, 3), m(5, 3), m(4, 3));
    assert!(cpu.fusedmm(a.pattern(), edge::Scale, c.as_ref(), b.as_ref(), b.as_ref(), e.as_mut()).is_err());
    cpu.fusedmm(a.pattern(), edge::Sigmoid, c.as_ref(), b.as_ref(), b.as_ref(), e.as_mut()).unwrap();
}
