//! SpMM, SDDMM and FusedMM of heads, and the gradients of all three, on every instruction set, strategy, element type and shape.

mod common;

use common::matrices::{
    STRATEGIES, Strided, aligned, assert_dense, executors, executors_with_small_caches, on_every_path, prepare, shapes,
    skewed, sparse_rows, streams,
};
use sparsimd::ops::{Differentiable, EdgeWeighting, FusedGradient};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::reference::{self, Edge, FusedGradients, Scores, Weighting};
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Scalar, edge, generate};

/// Heads and columns of each: whole registers of every instruction set, one, two, four and more; parts of them; one head.
const HEADS: [(usize, usize); 12] =
    [(1, 17), (8, 16), (4, 32), (2, 64), (3, 5), (8, 8), (16, 4), (4, 16), (12, 16), (2, 16), (5, 64), (2, 33)];

fn matrices<T: Scalar>() -> Vec<(&'static str, Csr<T>)> {
    let mut all = shapes::<T>();
    all.push(("skewed", skewed()));
    all
}

/// The columns of head `h` of `heads`.
fn head<T: Scalar>(x: MatRef<'_, T>, h: usize, heads: usize) -> MatRef<'_, T> {
    let width = x.cols() / heads;
    MatRef::new(x.data().get(h * width..).unwrap_or_default(), x.rows(), width, x.stride()).unwrap()
}

fn products<T: Scalar>() {
    let cpus = executors();
    for (shape, a) in matrices::<T>() {
        for (heads, width) in HEADS {
            let n = heads * width;
            let values = generate::uniform_values::<T>(a.nnz() * heads, 5);
            let (c, b) = (Strided::<T>::random(a.rows(), n, 1), Strided::<T>::random(a.cols(), n, 2));
            let of_head = |h: usize| values.iter().skip(h).step_by(heads).copied().collect::<Vec<_>>();
            let sums: Vec<_> = (0..heads)
                .map(|h| {
                    let a = Csr::new(a.pattern().clone(), of_head(h)).unwrap();
                    reference::spmm(T::ONE, &a, head(b.view(), h, heads), T::ZERO, head(c.view(), h, heads)).unwrap()
                })
                .collect();
            let dots: Vec<_> = (0..heads)
                .map(|h| reference::sddmm(&a, false, head(c.view(), h, heads), head(b.view(), h, heads)).unwrap())
                .collect();
            on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
                let mut out = Strided::<T>::nan(a.rows(), n);
                cpu.spmm_heads(operand, heads, &values, b.view(), out.view_mut()).unwrap();
                assert!(out.gaps_untouched());
                for (h, sums) in sums.iter().enumerate() {
                    let worst = sums.deviation(head(out.view(), h, heads)).unwrap();
                    assert!(worst.error <= 1.0, "{shape}, {heads} x {width}, head {h}, {how}: {worst:?}");
                }
            });
            on_every_path(&cpus, Op::Sddmm, &a, n, |cpu, operand, how| {
                let mut out = vec![T::from_f64(f64::NAN); a.nnz() * heads];
                cpu.sddmm_heads(operand, heads, c.view(), b.view(), &mut out).unwrap();
                for (h, dots) in dots.iter().enumerate() {
                    let own: Vec<T> = out.iter().skip(h).step_by(heads).copied().collect();
                    let worst = dots.deviation_of_values(&own).unwrap();
                    assert!(worst.error <= 1.0, "{shape}, {heads} x {width}, head {h}, {how}: {worst:?}");
                }
            });
        }
    }
}

#[test]
fn products_f32() {
    products::<f32>();
}

#[test]
fn products_f64() {
    products::<f64>();
}

/// Results that outgrow the caches are written past them, also rows that tasks share.
#[test]
fn sums_past_the_caches() {
    let (heads, n) = (8, 128);
    for a in sparse_rows::<f32>() {
        let (b, values) = (aligned::<f32>(a.cols(), n, 1), generate::uniform_values::<f32>(a.nnz() * heads, 5));
        for cpu in executors_with_small_caches() {
            let prepared = prepare(&cpu, Op::Spmm, &a, n, STRATEGIES[0]);
            assert_eq!(streams(&prepared), (a.rows() + a.cols()) * n * 4 > 56 << 10);
            let mut out = Mat::from_fn(a.rows(), n, |_, _| f32::NAN).unwrap();
            cpu.spmm_heads(&prepared, heads, &values, b.as_ref(), out.as_mut()).unwrap();
            for h in 0..heads {
                let own = values.iter().skip(h).step_by(heads).copied().collect();
                let of_head = Csr::new(a.pattern().clone(), own).unwrap();
                let (b, out) = (head(b.as_ref(), h, heads), head(out.as_ref(), h, heads));
                let worst = reference::spmm(1.0, &of_head, b, 0.0, out).unwrap().deviation(out).unwrap();
                assert!(worst.error <= 1.0, "{} rows, head {h}, {}: {worst:?}", a.rows(), cpu.arch().name());
            }
        }
    }
}

/// What FusedMM is asked for.
#[derive(Clone, Copy, Debug)]
struct Case {
    edge: &'static str,
    sums: bool,
    heads: usize,
    /// Columns of a head, of the scores' operands and of D.
    widths: (usize, usize),
    bias: bool,
    dropout: Option<(f64, u64)>,
}

const CASES: [Case; 13] = {
    const fn case(edge: &'static str, sums: bool, heads: usize, widths: (usize, usize)) -> Case {
        Case { edge, sums, heads, widths, bias: false, dropout: None }
    }
    const DROPOUT: Option<(f64, u64)> = Some((0.25, 7));
    [
        case("identity", false, 1, (17, 33)),
        case("identity", true, 2, (1, 16)),
        case("scale", false, 1, (16, 16)),
        Case { dropout: DROPOUT, ..case("scale", false, 3, (5, 4)) },
        case("sigmoid", false, 1, (3, 40)),
        Case { dropout: DROPOUT, ..case("sigmoid", false, 4, (16, 16)) },
        case("leaky-relu", false, 1, (8, 8)),
        case("leaky-relu", true, 5, (1, 3)),
        case("softmax", false, 1, (33, 17)),
        Case { bias: true, ..case("softmax", false, 1, (4, 16)) },
        Case { bias: true, dropout: DROPOUT, ..case("softmax", false, 8, (16, 8)) },
        case("softmax-leaky-relu", true, 1, (1, 20)),
        Case { bias: true, dropout: DROPOUT, ..case("softmax-leaky-relu", true, 3, (1, 16)) },
    ]
};

/// Operands of a case.
struct Problem<T> {
    case: Case,
    left: Strided<T>,
    right: Strided<T>,
    d: Strided<T>,
    de: Strided<T>,
    bias: Vec<T>,
}

impl<T: Scalar> Problem<T> {
    fn new(a: &Csr<T>, case: Case) -> Self {
        let (n, p) = (case.heads * case.widths.0, case.heads * case.widths.1);
        Self {
            case,
            left: Strided::random(a.rows(), n, 1),
            right: Strided::random(a.cols(), n, 2),
            d: Strided::random(a.cols(), p, 3),
            de: Strided::random(a.rows(), p, 4),
            bias: generate::uniform_values(a.nnz(), 6),
        }
    }

    fn weights(&self) -> EdgeWeighting<'_, T> {
        let Case { sums, heads, bias, dropout, .. } = self.case;
        let (scale, slope) = (T::from_f64(0.75), T::from_f64(0.25));
        let function: edge::BuiltIn<T> = match self.case.edge {
            "identity" => edge::Identity.into(),
            "scale" => edge::Scale.into(),
            "sigmoid" => edge::Sigmoid.into(),
            "leaky-relu" => edge::LeakyRelu { slope }.into(),
            "softmax" => edge::Softmax { scale }.into(),
            _ => edge::SoftmaxLeakyRelu { slope }.into(),
        };
        let (left, right) = (self.left.view(), self.right.view());
        let mut weights = match sums {
            true => EdgeWeighting::sums(function, left, right),
            false => EdgeWeighting::dots(function, left, right).heads(heads),
        };
        if bias {
            weights = weights.bias(&self.bias);
        }
        match dropout {
            Some((rate, seed)) => weights.dropout(rate, seed),
            None => weights,
        }
    }

    fn wanted(&self) -> Weighting<'_, T> {
        let edge = match self.case.edge {
            "identity" => Edge::Identity,
            "scale" => Edge::Scale,
            "sigmoid" => Edge::Sigmoid,
            "leaky-relu" => Edge::LeakyRelu { slope: 0.25 },
            "softmax" => Edge::Softmax { scale: 0.75 },
            _ => Edge::SoftmaxLeakyRelu { slope: 0.25 },
        };
        let (left, right) = (self.left.view(), self.right.view());
        let scores = if self.case.sums { Scores::Sums(left, right) } else { Scores::Dots(left, right) };
        let bias = self.case.bias.then_some(&self.bias[..]);
        Weighting { edge, scores, heads: self.case.heads, bias, dropout: self.case.dropout }
    }
}

fn fused<T: Scalar>() {
    let cpus = executors();
    for (shape, a) in matrices::<T>() {
        for case in CASES {
            let problem = Problem::new(&a, case);
            let (d, de) = (problem.d.view(), problem.de.view());
            let (e, lse) = reference::fusedmm_heads(&a, problem.wanted(), d).unwrap();
            let gradients = reference::fusedmm_gradient(&a, problem.wanted(), d, de).unwrap();
            for cpu in &cpus {
                for strategy in STRATEGIES {
                    let options = PlanOptions::new(Op::FusedMm, case.heads * case.widths.0).strategy(strategy);
                    let how = || format!("{shape}, {case:?}, {}, {}, {strategy:?}", T::NAME, cpu.arch().name());
                    check(cpu, &a, &options, &problem, (&e, &lse, &gradients), how);
                }
            }
        }
    }
}

fn check<T: Scalar>(
    cpu: &Cpu,
    a: &Csr<T>,
    options: &PlanOptions,
    problem: &Problem<T>,
    (e, lse, wanted): (&reference::Expected, &reference::Expected, &FusedGradients),
    how: impl Fn() -> String,
) {
    let (weights, heads) = (problem.weights(), problem.case.heads);
    let prepared = cpu.prepare_differentiable(a, options).unwrap();
    let nan = |of: &Strided<T>| Strided::<T>::nan(of.view().rows(), of.view().cols());
    let mut out = nan(&problem.de);
    let mut got_lse = Mat::from_fn(a.rows(), heads, |_, _| T::from_f64(f64::NAN)).unwrap();
    cpu.fusedmm_heads(&prepared, &weights, problem.d.view(), out.view_mut(), Some(got_lse.as_mut())).unwrap();
    assert_dense(e, &out, || format!("E, {}", how()));
    let worst = lse.deviation(got_lse.as_ref()).unwrap();
    assert!(worst.error <= 1.0, "lse, {}: {worst:?}", how());
    let (mut left, mut right, mut d) = (nan(&problem.left), nan(&problem.right), nan(&problem.d));
    let mut values = vec![T::from_f64(f64::NAN); a.nnz()];
    let mut bias = values.clone();
    let (with_values, with_bias) = (problem.case.edge == "scale", problem.case.bias);
    let gradient = FusedGradient {
        left: left.view_mut(),
        right: right.view_mut(),
        d: d.view_mut(),
        values: with_values.then_some(&mut values[..]),
        bias: with_bias.then_some(&mut bias[..]),
    };
    let (d_of, de) = (problem.d.view(), problem.de.view());
    cpu.fusedmm_gradient(&prepared, &weights, d_of, Some(got_lse.as_ref()), de, gradient).unwrap();
    assert_dense(&wanted.left, &left, || format!("left, {}", how()));
    assert_dense(&wanted.right, &right, || format!("right, {}", how()));
    assert_dense(&wanted.d, &d, || format!("D, {}", how()));
    if with_values {
        let worst = wanted.values.deviation_of_values(&values).unwrap();
        assert!(worst.error <= 1.0, "values, {}: {worst:?}", how());
    }
    if with_bias {
        let worst = wanted.bias.deviation_of_values(&bias).unwrap();
        assert!(worst.error <= 1.0, "bias, {}: {worst:?}", how());
    }
}

#[test]
fn fused_f32() {
    fused::<f32>();
}

#[test]
fn fused_f64() {
    fused::<f64>();
}

/// Dots of heads and gradients that outgrow the caches are written past them, and gradients are computed by several blocks of rows.
#[test]
fn dots_and_gradients_past_the_caches() {
    let softmax = |heads, width| Case { heads, widths: (width, width), ..CASES[8] };
    for a in sparse_rows::<f32>() {
        for case in [softmax(1, 32), softmax(8, 16), softmax(4, 32)] {
            let n = case.heads * case.widths.0;
            let problem = Problem::new(&a, case);
            let (e, lse) = reference::fusedmm_heads(&a, problem.wanted(), problem.d.view()).unwrap();
            let gradients =
                reference::fusedmm_gradient(&a, problem.wanted(), problem.d.view(), problem.de.view()).unwrap();
            let (c, b) = (aligned::<f32>(a.rows(), n, 1), aligned::<f32>(a.cols(), n, 2));
            for cpu in executors_with_small_caches() {
                let how = || format!("{} rows, {case:?}, {}", a.rows(), cpu.arch().name());
                let options = PlanOptions::new(Op::FusedMm, n).strategy(STRATEGIES[0]);
                check(&cpu, &a, &options, &problem, (&e, &lse, &gradients), how);
                let mut out = vec![f32::NAN; a.nnz() * case.heads];
                cpu.sddmm_heads(&a, case.heads, c.as_ref(), b.as_ref(), &mut out).unwrap();
                for h in 0..case.heads {
                    let own: Vec<f32> = out.iter().skip(h).step_by(case.heads).copied().collect();
                    let (c, b) = (head(c.as_ref(), h, case.heads), head(b.as_ref(), h, case.heads));
                    let worst = reference::sddmm(&a, false, c, b).unwrap().deviation_of_values(&own).unwrap();
                    assert!(worst.error <= 1.0, "head {h}, {}: {worst:?}", how());
                }
            }
        }
    }
}

/// The general operation with one head and nothing else is FusedMM.
#[test]
fn one_head_is_fusedmm() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f64>(40, 60, 0.8, 1).unwrap();
    let dense = |rows, seed| generate::uniform_dense::<f64>(rows, 24, seed).unwrap();
    let (c, b, d) = (dense(40, 1), dense(60, 2), dense(60, 3));
    let prepared = cpu.prepare_differentiable(&a, &PlanOptions::new(Op::FusedMm, 24)).unwrap();
    let (mut one, mut other) = (Mat::zeros(40, 24).unwrap(), Mat::zeros(40, 24).unwrap());
    let edge = edge::Softmax { scale: 0.5 };
    cpu.fusedmm(&a, edge, c.as_ref(), b.as_ref(), d.as_ref(), one.as_mut()).unwrap();
    let weights = EdgeWeighting::dots(edge, c.as_ref(), b.as_ref());
    cpu.fusedmm_heads(&prepared, &weights, d.as_ref(), other.as_mut(), None).unwrap();
    for (x, y) in one.iter_rows().flatten().zip(other.iter_rows().flatten()) {
        approx::assert_abs_diff_eq!(x, y, epsilon = 1e-14);
    }
}

/// Values of a call are used instead of those that were prepared, whether there are any or not.
#[test]
fn values_of_a_call() {
    let a = generate::random_matrix::<f64>(30, 40, 0.8, 1).unwrap();
    let cpu = Cpu::builder().threads(2).build().unwrap();
    let options = PlanOptions::new(Op::FusedMm, 8);
    let operand = |rows, seed| generate::uniform_dense::<f64>(rows, 8, seed).unwrap();
    let (c, b, d) = (operand(30, 2), operand(40, 3), operand(40, 4));
    let new = generate::uniform_values::<f64>(a.nnz(), 5);
    let weights = EdgeWeighting::dots(edge::Scale, c.as_ref(), b.as_ref()).heads(2);
    let run = |prepared: &Differentiable<f64>, weights: EdgeWeighting<'_, f64>| {
        let mut e = Mat::zeros(30, 8).unwrap();
        cpu.fusedmm_heads(prepared, &weights, d.as_ref(), e.as_mut(), None)
            .map(|()| e.iter_rows().flatten().copied().collect::<Vec<_>>())
    };
    let with_new = Csr::new(a.pattern().clone(), new.clone()).unwrap();
    let wanted = run(&cpu.prepare_differentiable(&with_new, &options).unwrap(), weights).unwrap();
    let (valued, pattern) = (
        cpu.prepare_differentiable(&a, &options).unwrap(),
        cpu.prepare_differentiable::<f64>(a.pattern(), &options).unwrap(),
    );
    assert_ne!(run(&valued, weights).unwrap(), wanted);
    assert_eq!(run(&valued, weights.values(&new)).unwrap(), wanted);
    assert_eq!(run(&pattern, weights.values(&new)).unwrap(), wanted);
    assert!(matches!(run(&pattern, weights), Err(Error::Shape { .. })));
    assert!(matches!(run(&valued, weights.values(&new[1..])), Err(Error::Shape { .. })));
}

/// About as many weights are dropped as the rate says, whatever the seed, and not the same for two seeds.
#[test]
fn dropout_drops_its_share() {
    let cpu = Cpu::new().unwrap();
    let n = 200;
    let a = generate::random_matrix::<f64>(n, n, 0.0, 1).unwrap();
    let prepared = cpu.prepare_differentiable(&a, &PlanOptions::new(Op::FusedMm, n)).unwrap();
    let zeros = Mat::zeros(n, 1).unwrap();
    let unit = Mat::from_fn(n, n, |i, j| f64::from(u8::from(i == j))).unwrap();
    let weights_of = |rate, seed| {
        let softmax = edge::Softmax { scale: 1.0 };
        let weights = EdgeWeighting::dots(softmax, zeros.as_ref(), zeros.as_ref()).dropout(rate, seed);
        let mut e = Mat::zeros(n, n).unwrap();
        cpu.fusedmm_heads(&prepared, &weights, unit.as_ref(), e.as_mut(), None).unwrap();
        e.iter_rows().flatten().map(|&w| w > 0.0).collect::<Vec<_>>()
    };
    for rate in [0.0, 0.1, 0.5, 0.9] {
        let (one, other) = (weights_of(rate, 1), weights_of(rate, 2));
        let dropped = one.iter().filter(|kept| !**kept).count() as f64;
        let total = (n * n) as f64;
        // Six standard deviations.
        assert!((dropped - rate * total).abs() <= 6.0 * (rate * (1.0 - rate) * total).sqrt(), "{rate}: {dropped}");
        let differ = one.iter().zip(&other).filter(|(x, y)| x != y).count() as f64;
        let expected = 2.0 * rate * (1.0 - rate) * total;
        assert!((differ - expected).abs() <= 6.0 * expected.sqrt(), "{rate}: {differ}");
    }
}

#[test]
fn the_same_bits_every_time() {
    let a = skewed::<f32>();
    let cpu = Cpu::builder().threads(4).pin(false).build().unwrap();
    let problem = Problem::new(&a, CASES[10]);
    let options = PlanOptions::new(Op::FusedMm, 128);
    let prepared = cpu.prepare_differentiable(&a, &options).unwrap();
    let run = || {
        let (mut e, mut lse) = (Mat::zeros(a.rows(), 64).unwrap(), Mat::zeros(a.rows(), 8).unwrap());
        let weights = problem.weights();
        cpu.fusedmm_heads(&prepared, &weights, problem.d.view(), e.as_mut(), Some(lse.as_mut())).unwrap();
        let (mut left, mut right) = (Mat::zeros(a.rows(), 128).unwrap(), Mat::zeros(a.cols(), 128).unwrap());
        let mut d = Mat::zeros(a.cols(), 64).unwrap();
        let out = FusedGradient { left: left.as_mut(), right: right.as_mut(), d: d.as_mut(), values: None, bias: None };
        let de = problem.de.view();
        cpu.fusedmm_gradient(&prepared, &weights, problem.d.view(), Some(lse.as_ref()), de, out).unwrap();
        [e, left, right, d].iter().map(|x| common::matrices::bits(x.as_ref())).collect::<Vec<_>>()
    };
    let first = run();
    assert!((0..10).all(|_| run() == first));
}

#[test]
fn wrong_calls_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.5, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    let pattern = a.pattern();
    let values = vec![0.0; 2 * a.nnz()];
    let shape = |result: sparsimd::Result<()>| assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
    let argument = |result: sparsimd::Result<()>| assert!(matches!(result, Err(Error::Argument { .. })), "{result:?}");
    // Heads that do not divide the columns, and none; too few values; a wrong shape.
    for (heads, n, len) in [(2, 3, 2 * a.nnz()), (0, 4, 0), (2, 4, a.nnz()), (2, 0, 2 * a.nnz())] {
        shape(cpu.spmm_heads(pattern, heads, &values[..len], m(5, n).as_ref(), m(4, n).as_mut()));
        shape(cpu.sddmm_heads(pattern, heads, m(4, n).as_ref(), m(5, n).as_ref(), &mut vec![0.0; len]));
    }
    shape(cpu.spmm_heads(pattern, 2, &values, m(4, 4).as_ref(), m(4, 4).as_mut()));
    let panel = PlanOptions::new(Op::Sddmm, 4);
    let other = cpu.prepare(&a, &panel).unwrap();
    shape(cpu.spmm_heads(&other, 2, &values, m(5, 4).as_ref(), m(4, 4).as_mut()));
    let prepared = cpu.prepare_differentiable::<f32>(pattern, &PlanOptions::new(Op::FusedMm, 4)).unwrap();
    assert!(cpu.prepare_differentiable(&other, &panel).is_err());
    let (c, b, d) = (m(4, 4), m(5, 4), m(5, 4));
    let fused =
        |weights: EdgeWeighting<'_, f32>| cpu.fusedmm_heads(&prepared, &weights, d.as_ref(), m(4, 4).as_mut(), None);
    let dots = |edge: edge::BuiltIn<f32>| EdgeWeighting::dots(edge, c.as_ref(), b.as_ref());
    fused(dots(edge::Identity.into()).heads(4)).unwrap();
    shape(fused(dots(edge::Identity.into()).heads(3)));
    // A pattern has no values.
    shape(fused(dots(edge::Scale.into())));
    argument(fused(dots(edge::Identity.into()).bias(&values[..a.nnz()])));
    shape(fused(dots(edge::Softmax { scale: 1.0 }.into()).bias(&values)));
    argument(fused(dots(edge::Identity.into()).dropout(1.0, 0)));
    argument(fused(dots(edge::Identity.into()).dropout(f64::NAN, 0)));
    shape(fused(EdgeWeighting::sums(edge::Identity, c.as_ref(), c.as_ref())));
    // The gradient of a softmax needs lse, and no gradient of a bias without one.
    let gradient = |lse: Option<&Mat<f32>>, bias: Option<&mut [f32]>| {
        let (mut left, mut right, mut d_out) = (m(4, 4), m(5, 4), m(5, 4));
        let out = FusedGradient { left: left.as_mut(), right: right.as_mut(), d: d_out.as_mut(), values: None, bias };
        let weights = dots(edge::Softmax { scale: 1.0 }.into());
        cpu.fusedmm_gradient(&prepared, &weights, d.as_ref(), lse.map(Mat::as_ref), c.as_ref(), out)
    };
    argument(gradient(None, None));
    shape(gradient(Some(&m(4, 2)), None));
    argument(gradient(Some(&m(4, 1)), Some(&mut vec![0.0; a.nnz()])));
    gradient(Some(&m(4, 1)), None).unwrap();
}
