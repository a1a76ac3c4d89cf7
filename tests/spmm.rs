//! C = alpha A B + beta C and C = alpha A^T B + beta C on every instruction set, path, element type and shape.

mod common;

use common::matrices::{
    STRATEGIES, Strided, WIDTHS, aligned, assert_dense, bits, executors, executors_with_small_caches, on_every_path,
    prepare, shapes, sparse_rows, streams,
};
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Error, Mat, Number, Prepared, Stored, bf16, f16, generate, reference};

/// (alpha, beta): beta = 0 must not read C.
const FACTORS: [(f64, f64); 4] = [(1.0, 0.0), (1.0, 1.0), (-0.75, 0.0), (0.5, -2.0)];

/// Dense operands of `D`, values of `V`.
fn check<D: Stored, V: Stored<Scalar = D::Scalar>>(transposed: bool) {
    let cpus = executors();
    for (shape, a) in shapes::<D::Scalar>() {
        let a = a.stored_as::<V>();
        for (at, &n) in WIDTHS.iter().enumerate() {
            let (alpha, beta) = FACTORS[at % FACTORS.len()];
            check_case::<D, V>(&cpus, shape, &a, n, D::Scalar::from_f64(alpha), D::Scalar::from_f64(beta), transposed);
        }
        for (alpha, beta) in FACTORS {
            check_case::<D, V>(&cpus, shape, &a, 20, D::Scalar::from_f64(alpha), D::Scalar::from_f64(beta), transposed);
        }
    }
}

fn check_case<D: Stored, V: Stored<Scalar = D::Scalar>>(
    cpus: &[Cpu],
    shape: &str,
    a: &Csr<V>,
    n: usize,
    alpha: D::Scalar,
    beta: D::Scalar,
    transposed: bool,
) {
    let (m, k) = if transposed { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
    let b = Strided::<D>::random(k, n, 1);
    let start = || if beta == D::Scalar::ZERO { Strided::<D>::nan(m, n) } else { Strided::<D>::random(m, n, 2) };
    let before = start();
    let exact = &a.stored_as();
    let expected = if transposed {
        reference::spmm_t(alpha, exact, b.view(), beta, before.view())
    } else {
        reference::spmm(alpha, exact, b.view(), beta, before.view())
    }
    .unwrap();
    let op = if transposed { Op::SpmmTransposed } else { Op::Spmm };
    on_every_path(cpus, op, a, n, |cpu, operand, how| {
        let mut c = start();
        if transposed {
            cpu.spmm_t(alpha, operand, b.view(), beta, c.view_mut()).unwrap();
        } else {
            cpu.spmm(alpha, operand, b.view(), beta, c.view_mut()).unwrap();
        }
        assert_dense(&expected, &c, || format!("{}, {shape}, N = {n}, {how}, {alpha} {beta}", D::DTYPE));
    });
}

#[test]
fn f32_matches_the_reference() {
    check::<f32, f32>(false);
}

#[test]
fn f64_matches_the_reference() {
    check::<f64, f64>(false);
}

#[test]
fn bf16_matches_the_reference() {
    check::<bf16, f32>(false);
}

#[test]
fn f16_matches_the_reference() {
    check::<f16, f32>(false);
}

#[test]
fn transposed_bf16_matches_the_reference() {
    check::<bf16, f32>(true);
}

#[test]
fn transposed_f32_matches_the_reference() {
    check::<f32, f32>(true);
}

#[test]
fn transposed_f64_matches_the_reference() {
    check::<f64, f64>(true);
}

#[test]
fn values_of_bf16_match_the_reference() {
    check::<f32, bf16>(false);
    check::<bf16, bf16>(false);
}

#[test]
fn values_of_f16_match_the_reference() {
    check::<f32, f16>(false);
    check::<f16, f16>(false);
}

#[test]
fn transposed_values_of_bf16_match_the_reference() {
    check::<f32, bf16>(true);
}

#[test]
fn values_in_pieces() {
    let (a, cpus) = (common::matrices::pieces(), executors());
    for n in [1, 35] {
        check_case::<f32, bf16>(&cpus, "pieces", &a, n, 0.5, -2.0, false);
        check_case::<bf16, bf16>(&cpus, "pieces", &a, n, 1.0, 0.0, false);
    }
    check_case::<f32, bf16>(&cpus, "pieces", &a, 3, 1.0, 0.0, true);
}

#[test]
fn aligned_operands_of_whole_registers() {
    let a = generate::random_matrix::<f32>(300, 500, 0.7, 1).unwrap();
    for cpu in executors() {
        for n in [32, 64, 128, 256] {
            let b = aligned::<f32>(500, n, 1);
            let zeros = Mat::zeros(300, n).unwrap();
            let expected = reference::spmm(1.0, &a, b.as_ref(), 0.0, zeros.as_ref()).unwrap();
            for path in STRATEGIES {
                let mut c = Mat::zeros(300, n).unwrap();
                cpu.spmm(1.0, &prepare(&cpu, Op::Spmm, &a, n, path), b.as_ref(), 0.0, c.as_mut()).unwrap();
                assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "{n} {path:?} {}", cpu.arch().name());
            }
        }
    }
}

#[test]
fn results_written_past_the_caches() {
    past_the_caches::<f32>();
    past_the_caches::<bf16>();
    past_the_caches::<f16>();
}

fn past_the_caches<D: Stored<Scalar = f32>>() {
    let (alpha, cpus) = (-0.75, executors_with_small_caches());
    for a in sparse_rows::<f32>() {
        for n in [32, 100, 128, 256] {
            let b = aligned::<D>(a.cols(), n, 1);
            for beta in [0.0, 2.0] {
                let before = if beta == 0.0 { f32::NAN } else { 0.5 };
                let before = Mat::from_fn(a.rows(), n, |_, _| D::narrow(before)).unwrap();
                let expected = reference::spmm(alpha, &a, b.as_ref(), beta, before.as_ref()).unwrap();
                for cpu in &cpus {
                    let prepared = prepare(cpu, Op::Spmm, &a, n, STRATEGIES[0]);
                    assert_eq!(streams(&prepared), (a.rows() + a.cols()) * n * 4 > 56 << 10);
                    let mut c = before.clone();
                    cpu.spmm(alpha, &prepared, b.as_ref(), beta, c.as_mut()).unwrap();
                    let worst = expected.deviation(c.as_ref()).unwrap();
                    assert!(worst.error <= 1.0, "{} rows, N = {n}, {}: {worst:?}", a.rows(), cpu.arch().name());
                }
            }
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    the_same_bits::<f32>();
    the_same_bits::<bf16>();
}

fn the_same_bits<D: Stored<Scalar = f32>>() {
    let a = common::matrices::skewed::<f32>();
    let cpu = Cpu::builder().threads(4).pin(false).build().unwrap();
    for n in [1, 33, 128] {
        let b = aligned::<D>(3000, n, 1);
        for path in STRATEGIES {
            let prepared = prepare(&cpu, Op::Spmm, &a, n, path);
            let run = || {
                let mut c = Mat::zeros(200, n).unwrap();
                cpu.spmm(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
                bits(c.as_ref())
            };
            let first = run();
            assert!((0..20).all(|_| run() == first), "N = {n}, {path:?}");
        }
    }
}

#[test]
fn new_values_on_a_prepared_pattern() {
    let a = generate::random_matrix::<f64>(90, 80, 0.8, 1).unwrap();
    let b = aligned::<f64>(80, 20, 1);
    let cpu = Cpu::new().unwrap();
    for path in STRATEGIES {
        let mut prepared = prepare(&cpu, Op::Spmm, &a, 20, path);
        let changed = Csr::new(a.pattern().clone(), generate::uniform_values(a.nnz(), 99)).unwrap();
        prepared.set_values(&cpu, changed.values()).unwrap();
        let mut c = Mat::zeros(90, 20).unwrap();
        cpu.spmm(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
        let expected = reference::spmm(1.0, &changed, b.as_ref(), 0.0, c.as_ref()).unwrap();
        assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "{path:?}");
        assert!(prepared.set_values(&cpu, &changed.values()[1..]).is_err());
    }
}

/// From one element type to another and back, on one pattern.
#[test]
fn new_values_of_another_element_type() {
    fn check<V: Stored<Scalar = f32>>(cpu: &Cpu, prepared: &mut Prepared<f32>, a: &Csr<f32>, b: &Mat<f32>) {
        let a = a.stored_as::<V>();
        prepared.set_values(cpu, a.values()).unwrap();
        let mut c = Mat::zeros(a.rows(), b.cols()).unwrap();
        cpu.spmm(1.0, &*prepared, b.as_ref(), 0.0, c.as_mut()).unwrap();
        let expected = reference::spmm(1.0, &a.stored_as(), b.as_ref(), 0.0, c.as_ref()).unwrap();
        assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "{}, {}", V::DTYPE, prepared.plan());
    }
    let a = generate::random_matrix::<f32>(90, 80, 0.8, 1).unwrap();
    let b = aligned::<f32>(80, 20, 1);
    let cpu = Cpu::new().unwrap();
    for path in STRATEGIES {
        let mut prepared = prepare(&cpu, Op::Spmm, &a.stored_as::<f16>(), 20, path);
        check::<bf16>(&cpu, &mut prepared, &a, &b);
        check::<f32>(&cpu, &mut prepared, &a, &b);
        check::<f16>(&cpu, &mut prepared, &a, &b);
        // What is read: 2 or 4 bytes for each value, beside the pattern or the panels.
        let bytes = |of: &Prepared<f32>| of.memory().iter().map(|range| range.len()).sum::<usize>();
        let wide = bytes(&prepare(&cpu, Op::Spmm, &a, 20, path));
        let saved = if path == STRATEGIES[0] { 2 * a.nnz() } else { 0 };
        assert_eq!(wide - bytes(&prepared), saved, "{path:?}");
    }
}

#[test]
fn nan_and_infinity_propagate() {
    nan_and_infinity::<f32>();
    nan_and_infinity::<bf16>();
    nan_and_infinity::<f16>();
}

fn nan_and_infinity<D: Stored<Scalar = f32>>() {
    let a = generate::random_matrix::<f32>(40, 60, 0.5, 1).unwrap();
    let mut b = aligned::<D>(60, 33, 1);
    b.as_mut().into_row(7)[3] = D::narrow(f32::NAN);
    b.as_mut().into_row(9)[32] = D::narrow(f32::INFINITY);
    for cpu in executors() {
        for path in STRATEGIES {
            let mut c = Mat::zeros(40, 33).unwrap();
            cpu.spmm(1.0, &prepare(&cpu, Op::Spmm, &a, 33, path), b.as_ref(), 0.0, c.as_mut()).unwrap();
            let expected = reference::spmm(1.0, &a, b.as_ref(), 0.0, c.as_ref()).unwrap();
            assert!(expected.values().iter().any(|x| x.is_nan()) && expected.values().iter().any(|x| x.is_infinite()));
            assert!(expected.deviation(c.as_ref()).unwrap().error <= 1.0, "{path:?}, {}", cpu.arch().name());
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.5, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    for (b, mut c, transposed) in [
        (m(4, 3), m(4, 3), false),
        (m(5, 3), m(5, 3), false),
        (m(5, 3), m(4, 2), false),
        (m(5, 0), m(4, 0), false),
        (m(5, 3), m(5, 3), true),
        (m(4, 3), m(4, 3), true),
        (m(4, 3), m(5, 2), true),
    ] {
        let error = if transposed {
            cpu.spmm_t(1.0, &a, b.as_ref(), 0.0, c.as_mut()).unwrap_err()
        } else {
            cpu.spmm(1.0, &a, b.as_ref(), 0.0, c.as_mut()).unwrap_err()
        };
        let (op, text) = (if transposed { "spmm_t" } else { "spmm" }, error.to_string());
        assert!(matches!(error, Error::Shape { op: at, .. } if at == op) || text.contains('0'), "{text}");
    }
    // Prepared for another operation or width.
    let prepared = prepare(&cpu, Op::Spmm, &a, 3, STRATEGIES[1]);
    assert!(cpu.spmm_t(1.0, &prepared, m(4, 3).as_ref(), 0.0, m(5, 3).as_mut()).is_err());
}
