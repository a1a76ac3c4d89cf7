//! Reductions and semirings on every instruction set, path, element type and shape.

mod common;

use common::matrices::{
    STRATEGIES, Strided, WIDTHS, aligned, assert_dense, bits, executors, executors_with_small_caches, on_every_path,
    pieces, prepare, shapes, skewed, sparse_rows, streams,
};
use pulp::Simd;
use sparsimd::ops::{Arithmetic, Reduction};
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::semiring::{self, Addition, BuiltIn, MAX_SECOND, MIN_PLUS, Multiplication, PLUS_TIMES, Semiring};
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Number, Pattern, Scalar, Stored, bf16, f16, generate, reference};

const REDUCTIONS: [Reduction; 4] = [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min];

/// Widths for every number of registers of a tile, and tails.
const SOME_WIDTHS: [usize; 8] = [1, 3, 16, 17, 33, 64, 100, 257];

fn check_reductions<T: Scalar>() {
    let cpus = executors();
    for (shape, a) in shapes::<T>() {
        for (at, &n) in WIDTHS.iter().enumerate() {
            // Sums are SpMM's own; means, maxima and minima in turn.
            let reduction = REDUCTIONS[1 + at % 3];
            let b = Strided::<T>::random(a.cols(), n, 1);
            let expected = reference::reduce(reduction, &a, b.view()).unwrap();
            on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
                let mut c = Strided::<T>::nan(a.rows(), n);
                cpu.spmm_reduce(reduction, operand, b.view(), c.view_mut()).unwrap();
                assert_dense(&expected, &c, || format!("{shape}, N = {n}, {how}, {reduction:?}"));
            });
        }
    }
}

#[test]
fn f32_reductions_match_the_reference() {
    check_reductions::<f32>();
}

#[test]
fn f64_reductions_match_the_reference() {
    check_reductions::<f64>();
}

/// Reductions, a semiring and positions of values that are narrow.
fn check_narrow_values<V: Stored<Scalar = f32>>() {
    let cpus = executors();
    let narrow = shapes::<f32>().into_iter().map(|(name, a)| (name, a.stored_as::<V>()));
    for (shape, a) in narrow.chain([("pieces", pieces())]) {
        let exact = a.stored_as();
        for (&n, reduction) in [35, 17, 1].iter().zip([Reduction::Mean, Reduction::Max, Reduction::Min]) {
            let b = Strided::<f32>::random(a.cols(), n, 1);
            let expected = reference::reduce(reduction, &exact, b.view()).unwrap();
            let by_semiring = reference::semiring(MIN_PLUS, &exact, b.view()).unwrap();
            let mut wanted = vec![0; a.rows() * n];
            if reduction != Reduction::Mean {
                let mut c = Strided::<f32>::nan(a.rows(), n);
                cpus[0].spmm_reduce_positions(reduction, &exact, b.view(), c.view_mut(), &mut wanted).unwrap();
            }
            on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
                let case = || format!("{shape}, N = {n}, {how}, {reduction:?}");
                let mut c = Strided::<f32>::nan(a.rows(), n);
                cpu.spmm_reduce(reduction, operand, b.view(), c.view_mut()).unwrap();
                assert_dense(&expected, &c, case);
                cpu.spmm_semiring(MIN_PLUS, operand, b.view(), c.view_mut()).unwrap();
                assert_dense(&by_semiring, &c, case);
                if reduction != Reduction::Mean {
                    let mut positions = vec![7; a.rows() * n];
                    cpu.spmm_reduce_positions(reduction, operand, b.view(), c.view_mut(), &mut positions).unwrap();
                    assert!(positions == wanted, "{}", case());
                }
            });
        }
    }
}

#[test]
fn values_of_bf16() {
    check_narrow_values::<bf16>();
}

#[test]
fn values_of_f16() {
    check_narrow_values::<f16>();
}

/// A prepared operand keeps what a mean made of its values, until it gets others.
#[test]
fn means_of_new_values() {
    let a = generate::random_matrix::<f64>(50, 60, 0.8, 1).unwrap();
    let b = generate::uniform_dense::<f64>(60, 24, 2).unwrap();
    let new = Csr::new(a.pattern().clone(), generate::uniform_values(a.nnz(), 3)).unwrap();
    for strategy in [Strategy::Direct, Strategy::Panel] {
        let cpu = Cpu::builder().threads(2).build().unwrap();
        let mut prepared = cpu.prepare(&a, &PlanOptions::new(Op::Spmm, 24).strategy(strategy)).unwrap();
        for a in [&a, &a, &new] {
            prepared.set_values(&cpu, a.values()).unwrap();
            let expected = reference::reduce(Reduction::Mean, a, b.as_ref()).unwrap();
            for _ in 0..2 {
                let mut c = Mat::zeros(50, 24).unwrap();
                cpu.spmm_reduce(Reduction::Mean, &prepared, b.as_ref(), c.as_mut()).unwrap();
                let worst = expected.deviation(c.as_ref()).unwrap();
                assert!(worst.error <= 1.0, "{strategy:?}: {worst:?}");
            }
        }
    }
}

fn check_semirings<T: Scalar>() {
    let cpus = executors();
    for (shape, a) in shapes::<T>() {
        for (at, &(name, semiring)) in BuiltIn::NAMED.iter().enumerate() {
            let n = SOME_WIDTHS[at % SOME_WIDTHS.len()];
            let b = Strided::<T>::random(a.cols(), n, 1);
            let expected = reference::semiring(semiring, &a, b.view()).unwrap();
            on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
                let mut c = Strided::<T>::nan(a.rows(), n);
                cpu.spmm_semiring(semiring, operand, b.view(), c.view_mut()).unwrap();
                assert_dense(&expected, &c, || format!("{shape}, N = {n}, {how}, {name}"));
            });
        }
    }
}

#[test]
fn f32_semirings_match_the_reference() {
    check_semirings::<f32>();
}

#[test]
fn f64_semirings_match_the_reference() {
    check_semirings::<f64>();
}

/// What the kernels must give exactly, as integers do.
fn integer_loop<T: Number>(
    semiring: BuiltIn,
    a: &Csr<T>,
    b: MatRef<'_, T>,
    multiply: impl Fn(T, T) -> T,
    add: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut out = Vec::new();
    for i in 0..a.rows() {
        for k in 0..b.cols() {
            let row = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
            let zero = Semiring::<T>::zero(semiring);
            out.push(row.fold(zero, |c, p| add(multiply(a.values()[p], b[(a.pattern().col_idx()[p] as usize, k)]), c)));
        }
    }
    out
}

macro_rules! integers {
    ($name:ident, $t:ident) => {
        #[test]
        fn $name() {
            // Products that overflow, and both signs.
            let number = |x: f64| ((x * 1e6) as $t).wrapping_mul($t::MAX / 1_000_003);
            let cases: [(BuiltIn, fn($t, $t) -> $t, fn($t, $t) -> $t); 5] = [
                (PLUS_TIMES, $t::wrapping_mul, $t::wrapping_add),
                (MIN_PLUS, $t::wrapping_add, |a, b| a.min(b)),
                (semiring::MAX_TIMES, $t::wrapping_mul, |a, b| a.max(b)),
                (semiring::OR_AND, |a, b| $t::from(a != 0 && b != 0), |a, b| a | b),
                (MAX_SECOND, |_, b| b, |a, b| a.max(b)),
            ];
            for (shape, a) in shapes::<f64>() {
                let values = a.values().iter().map(|&x| number(x)).collect();
                let a = Csr::new(a.pattern().clone(), values).unwrap();
                for (at, &n) in SOME_WIDTHS.iter().enumerate() {
                    let b = generate::uniform_dense::<f64>(a.cols(), n, 3).unwrap();
                    let b = Mat::from_fn(a.cols(), n, |i, k| number(b[(i, k)])).unwrap();
                    let (semiring, multiply, add) = cases[at % cases.len()];
                    let expected = integer_loop(semiring, &a, b.as_ref(), multiply, add);
                    for cpu in executors() {
                        let mut c = Mat::from_fn(a.rows(), n, |_, _| 77).unwrap();
                        cpu.spmm_semiring(semiring, &a, b.as_ref(), c.as_mut()).unwrap();
                        let got: Vec<$t> = c.iter_rows().flatten().copied().collect();
                        assert!(got == expected, "{shape}, N = {n}, {}, {semiring:?}", cpu.arch().name());
                    }
                }
            }
        }
    };
}
integers!(i32_wraps_around_as_loops_do, i32);
integers!(i64_wraps_around_as_loops_do, i64);

/// One that is not built in: the largest difference.
#[derive(Clone, Copy)]
struct Chebyshev;

impl<T: Number> Semiring<T> for Chebyshev {
    fn zero(self) -> T {
        T::ZERO
    }

    #[inline(always)]
    fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
        T::vmaximum(simd, term, sum)
    }

    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
        T::vmaximum(simd, T::vsub(simd, a, b), T::vsub(simd, b, a))
    }
}

#[test]
fn a_semiring_of_the_callers() {
    let cpus = executors();
    for a in sparse_rows::<f32>() {
        for n in [1, 20, 130] {
            let b = aligned::<f32>(a.cols(), n, 1);
            on_every_path(&cpus, Op::Spmm, &a, n, |cpu, operand, how| {
                let mut c = Mat::zeros(a.rows(), n).unwrap();
                cpu.spmm_semiring(Chebyshev, operand, b.as_ref(), c.as_mut()).unwrap();
                for (i, k) in (0..a.rows()).flat_map(|i| (0..n).map(move |k| (i, k))) {
                    let row = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
                    let term = |p: usize| (a.values()[p] - b[(a.pattern().col_idx()[p] as usize, k)]).abs();
                    assert_eq!(c[(i, k)], row.map(term).fold(0.0, f32::max), "({i}, {k}), N = {n}, {how}");
                }
            });
        }
    }
}

/// B with values that repeat, so that maxima are reached more than once; some are NaN or infinite.
fn with_ties<T: Scalar>(rows: usize, n: usize) -> Mat<T> {
    Mat::from_fn(rows, n, |i, k| {
        T::from_f64(match (i * 7 + k * 3) % 101 {
            0 => f64::NAN,
            1 => f64::NEG_INFINITY,
            2 if k % 5 == 0 => f64::INFINITY,
            x => (x % 6) as f64 - 3.0,
        })
    })
    .unwrap()
}

fn check_positions<T: Scalar>() {
    for a in sparse_rows::<T>() {
        // Few distinct values, too.
        let values = a.values().iter().map(|x| T::from_f64((x.to_f64() * 4.0).round())).collect();
        let a = Csr::new(a.pattern().clone(), values).unwrap();
        for (n, reduction) in [(1, Reduction::Max), (5, Reduction::Min), (33, Reduction::Max), (100, Reduction::Min)] {
            let b = with_ties::<T>(a.cols(), n);
            let sign = T::from_f64(if reduction == Reduction::Max { 1.0 } else { -1.0 });
            on_every_path(&executors(), Op::Spmm, &a, n, |cpu, operand, how| {
                let mut c = Strided::<T>::nan(a.rows(), n);
                let mut positions = vec![7; a.rows() * n];
                cpu.spmm_reduce_positions(reduction, operand, b.as_ref(), c.view_mut(), &mut positions).unwrap();
                let mut plain = Mat::zeros(a.rows(), n).unwrap();
                cpu.spmm_reduce(reduction, operand, b.as_ref(), plain.as_mut()).unwrap();
                for (i, k) in (0..a.rows()).flat_map(|i| (0..n).map(move |k| (i, k))) {
                    let term = |p: usize| sign * (a.values()[p] * b[(a.pattern().col_idx()[p] as usize, k)]);
                    let is_nan = |x: T| x.to_f64().is_nan();
                    let better = |x: T, best: T| x > best || is_nan(x) && !is_nan(best);
                    let row = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
                    let first = row.reduce(|best, p| if better(term(p), term(best)) { p } else { best });
                    let value = first.map_or(T::ZERO, |p| sign * term(p));
                    let case = || format!("({i}, {k}), N = {n}, {how}, {reduction:?}");
                    assert_eq!(positions[i * n + k], first.map_or(u32::MAX, |p| p as u32), "{}", case());
                    for got in [c.view()[(i, k)], plain[(i, k)]] {
                        assert!(got == value || is_nan(got) && is_nan(value), "{}: {got} for {value}", case());
                    }
                }
                assert!(c.gaps_untouched());
            });
        }
    }
}

#[test]
fn f32_positions_of_maxima_and_minima() {
    check_positions::<f32>();
}

#[test]
fn f64_positions_of_maxima_and_minima() {
    check_positions::<f64>();
}

#[test]
fn results_written_past_the_caches() {
    for a in sparse_rows::<f32>() {
        for n in [32, 100, 128, 256] {
            let b = aligned::<f32>(a.cols(), n, 1);
            let expected = reference::reduce(Reduction::Max, &a, b.as_ref()).unwrap();
            for cpu in &executors_with_small_caches() {
                let prepared = prepare(cpu, Op::Spmm, &a, n, Strategy::Direct);
                assert_eq!(streams(&prepared), (a.rows() + a.cols()) * n * 4 > 56 << 10);
                let mut c = Mat::zeros(a.rows(), n).unwrap();
                cpu.spmm_reduce(Reduction::Max, &prepared, b.as_ref(), c.as_mut()).unwrap();
                assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "N = {n}, {}", cpu.arch().name());
            }
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    let a = skewed::<f32>();
    let cpu = Cpu::builder().threads(4).pin(false).build().unwrap();
    let b = aligned::<f32>(3000, 33, 1);
    for path in STRATEGIES {
        let prepared = prepare(&cpu, Op::Spmm, &a, 33, path);
        let run = || {
            let mut c = Mat::zeros(200, 33).unwrap();
            cpu.spmm_semiring(semiring::PLUS_MIN, &prepared, b.as_ref(), c.as_mut()).unwrap();
            bits(c.as_ref())
        };
        let first = run();
        assert!((0..20).all(|_| run() == first), "{path:?}");
    }
}

#[test]
fn every_addition_meets_every_multiplication() {
    let a = generate::random_matrix::<f32>(20, 30, 0.5, 1).unwrap();
    let b = aligned::<f32>(30, 19, 1);
    let all = [Multiplication::Times, Multiplication::Plus, Multiplication::Min, Multiplication::Max];
    let all = all.into_iter().chain([Multiplication::And, Multiplication::Second]);
    for multiply in all {
        for add in [Addition::Plus, Addition::Min, Addition::Max, Addition::Or] {
            let semiring = BuiltIn { add, multiply };
            let expected = reference::semiring(semiring, &a, b.as_ref()).unwrap();
            for cpu in executors() {
                let mut c = Mat::zeros(20, 19).unwrap();
                cpu.spmm_semiring(semiring, &a, b.as_ref(), c.as_mut()).unwrap();
                let worst = expected.deviation(c.as_ref()).unwrap();
                assert!(worst.error <= 1.0, "{semiring:?}, {}: {worst:?}", cpu.arch().name());
            }
        }
    }
}

fn check_pairs<T: Scalar>() {
    let ops = [Arithmetic::Add, Arithmetic::Sub, Arithmetic::Mul, Arithmetic::Div];
    let of = |op, x: T, y: T| match op {
        Arithmetic::Add => x + y,
        Arithmetic::Sub => x - y,
        Arithmetic::Mul => x * y,
        Arithmetic::Div => x / y,
    };
    let machines = [executors(), executors_with_small_caches()];
    for (shape, a) in shapes::<T>() {
        let ends: Vec<(usize, usize)> =
            (0..a.rows()).flat_map(|i| a.pattern().row(i).iter().map(move |&j| (i, j as usize))).collect();
        for (at, &n) in SOME_WIDTHS.iter().enumerate() {
            let (c, b) = (Strided::<T>::random(a.rows(), n, 1), Strided::<T>::random(a.cols(), n, 2));
            let op = ops[at % 4];
            let (_, semiring) = BuiltIn::NAMED[at % BuiltIn::NAMED.len()];
            for cpu in &machines[at % 2] {
                let mut out = Strided::<T>::nan(a.nnz(), n);
                cpu.sddmm_elementwise(op, &a, c.view(), b.view(), out.view_mut()).unwrap();
                // Single operations are rounded alike everywhere.
                let right = |p: usize, k: usize| of(op, c.view()[(ends[p].0, k)], b.view()[(ends[p].1, k)]);
                let wrong = (0..a.nnz()).find(|&p| (0..n).any(|k| out.view()[(p, k)] != right(p, k)));
                assert_eq!(wrong, None, "{shape}, N = {n}, {op:?}, {}", cpu.arch().name());
                assert!(out.gaps_untouched(), "{shape}, N = {n}, {op:?}");

                let mut sums = vec![T::from_f64(f64::NAN); a.nnz()];
                cpu.sddmm_semiring(semiring, &a, c.view(), b.view(), &mut sums).unwrap();
                for (p, &(i, j)) in ends.iter().enumerate().step_by(97) {
                    // One row of C, times the transpose of one of B.
                    let pattern = Pattern::new(1, n, vec![0, n], (0..n as u32).collect()).unwrap();
                    let row = Csr::new(pattern, c.view().row(i).to_vec());
                    let column = MatRef::new(b.view().row(j), n, 1, 1).unwrap();
                    let expected = reference::semiring(semiring, &row.unwrap(), column).unwrap();
                    let worst = expected.deviation_of_values(&sums[p..=p]).unwrap();
                    assert!(worst.error <= 1.0, "{shape}, N = {n}, {semiring:?}, {}: {worst:?}", cpu.arch().name());
                }
            }
        }
    }
}

#[test]
fn f32_pairs_of_rows() {
    check_pairs::<f32>();
}

#[test]
fn f64_pairs_of_rows() {
    check_pairs::<f64>();
}

#[test]
fn wrong_pairs_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.0, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    for (c, b, mut out) in [
        (m(5, 3), m(5, 3), m(20, 3)),
        (m(4, 3), m(4, 3), m(20, 3)),
        (m(4, 3), m(5, 2), m(20, 3)),
        (m(4, 3), m(5, 3), m(19, 3)),
        (m(4, 3), m(5, 3), m(20, 2)),
        (m(4, 0), m(5, 0), m(20, 0)),
    ] {
        let run = cpu.sddmm_elementwise(Arithmetic::Add, &a, c.as_ref(), b.as_ref(), out.as_mut());
        assert!(matches!(run, Err(Error::Shape { .. })));
    }
    let (c, b, mut out) = (m(4, 3), m(5, 3), vec![0.0; 20]);
    assert!(cpu.sddmm_semiring(MIN_PLUS, &a, c.as_ref(), b.as_ref(), &mut out[1..]).is_err());
    let prepared = prepare(&cpu, Op::Spmm, &a, 3, Strategy::Panel);
    assert!(cpu.sddmm_semiring(MIN_PLUS, &prepared, c.as_ref(), b.as_ref(), &mut out).is_err());
}

#[test]
fn names() {
    assert_eq!(BuiltIn::by_name("min-plus"), Some(MIN_PLUS));
    assert_eq!(BuiltIn::by_name("plus"), None);
}

#[test]
fn wrong_operands_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.5, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    for (b, mut c) in [(m(4, 3), m(4, 3)), (m(5, 3), m(5, 3)), (m(5, 3), m(4, 2)), (m(5, 0), m(4, 0))] {
        for reduction in REDUCTIONS {
            assert!(matches!(cpu.spmm_reduce(reduction, &a, b.as_ref(), c.as_mut()), Err(Error::Shape { .. })));
        }
    }
    let (b, mut c) = (m(5, 3), m(4, 3));
    let mut positions = [0; 12];
    let mut run = |reduction, len: usize| {
        cpu.spmm_reduce_positions(reduction, &a, b.as_ref(), c.as_mut(), &mut positions[..len]).unwrap_err().to_string()
    };
    assert!(run(Reduction::Mean, 12).contains("Mean"));
    assert!(run(Reduction::Max, 11).contains("11"));
    // A pattern has no values, which `Second` does not need.
    let mut c = m(4, 3);
    assert!(cpu.spmm_semiring(MIN_PLUS, a.pattern(), b.as_ref(), c.as_mut()).is_err());
    cpu.spmm_semiring(MAX_SECOND, a.pattern(), b.as_ref(), c.as_mut()).unwrap();
    let prepared = prepare(&cpu, Op::Sddmm, &a, 3, Strategy::Panel);
    assert!(cpu.spmm_semiring(MIN_PLUS, &prepared, b.as_ref(), c.as_mut()).is_err());
}
