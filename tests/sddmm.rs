//! (C B^T) at the nonzeros of A, plain and scaled, on every instruction set, path, element type and shape.

mod common;

use common::matrices::{
    STRATEGIES, Strided, WIDTHS, aligned, executors, from_rows, on_every_path, pieces, prepare, shapes,
};
use sparsimd::ops::SparseOperand;
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Error, Mat, MatMut, MatRef, Number, Stored, bf16, edge, f16, generate, reference};

/// Dense operands of `D`, values and results of `V`.
fn check<D: Stored, V: Stored<Scalar = D::Scalar>>(scaled: bool) {
    let cpus = executors();
    for (shape, a) in shapes::<D::Scalar>() {
        check_case::<D, V>(&cpus, shape, &a.stored_as(), &WIDTHS, scaled);
    }
}

fn check_case<D: Stored, V: Stored<Scalar = D::Scalar>>(
    cpus: &[Cpu],
    shape: &str,
    a: &Csr<V>,
    widths: &[usize],
    scaled: bool,
) {
    for &n in widths {
        let (c, b) = (Strided::<D>::random(a.rows(), n, 1), Strided::<D>::random(a.cols(), n, 2));
        let expected = reference::sddmm(&a.stored_as(), scaled, c.view(), b.view()).unwrap().stored_as::<V>();
        on_every_path(cpus, Op::Sddmm, a, n, |cpu, operand, how| {
            let mut out = vec![V::narrow(D::Scalar::from_f64(f64::NAN)); a.nnz()];
            match (scaled, operand) {
                (true, _) => cpu.sddmm_scaled(operand, c.view(), b.view(), &mut out),
                // The pattern alone will do.
                (false, SparseOperand::Csr(a)) => cpu.sddmm(a.pattern(), c.view(), b.view(), &mut out),
                (false, _) => cpu.sddmm(operand, c.view(), b.view(), &mut out),
            }
            .unwrap();
            let worst = expected.deviation_of_values(&out).unwrap();
            assert!(worst.error <= 1.0, "{}, {shape}, N = {n}, {how}: {worst:?}", D::DTYPE);
        });
    }
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
fn scaled_bf16_matches_the_reference() {
    check::<bf16, f32>(true);
}

#[test]
fn scaled_f32_matches_the_reference() {
    check::<f32, f32>(true);
}

#[test]
fn scaled_f64_matches_the_reference() {
    check::<f64, f64>(true);
}

#[test]
fn values_and_results_of_bf16_match_the_reference() {
    check::<f32, bf16>(true);
    check::<bf16, bf16>(true);
    check::<bf16, bf16>(false);
}

#[test]
fn values_and_results_of_f16_match_the_reference() {
    check::<f32, f16>(true);
    check::<f16, f16>(false);
}

#[test]
fn values_in_pieces() {
    let (a, cpus) = (pieces(), executors());
    check_case::<f32, bf16>(&cpus, "pieces", &a, &[1, 35], true);
    check_case::<bf16, bf16>(&cpus, "pieces", &a, &[20], false);
}

/// Values of one element type, results of another.
#[test]
fn results_of_another_element_type_than_values() {
    let (a, cpus) = (pieces::<f16>(), executors());
    let (c, b) = (aligned::<f32>(a.rows(), 5, 1), aligned::<f32>(a.cols(), 5, 2));
    let expected = reference::sddmm(&a.stored_as(), true, c.as_ref(), b.as_ref()).unwrap();
    on_every_path(&cpus, Op::Sddmm, &a, 5, |cpu, operand, how| {
        let (mut wide, mut narrow) = (vec![f32::NAN; a.nnz()], vec![bf16::NAN; a.nnz()]);
        cpu.sddmm_scaled(operand, c.as_ref(), b.as_ref(), &mut wide).unwrap();
        cpu.sddmm_scaled(operand, c.as_ref(), b.as_ref(), &mut narrow).unwrap();
        assert!(expected.deviation_of_values(&wide).unwrap().error <= 1.0, "{how}");
        assert!(expected.clone().stored_as::<bf16>().deviation_of_values(&narrow).unwrap().error <= 1.0, "{how}");
    });
}

/// Rows of 0 to 69 nonzeros: every number of dots past the last whole register, over panels of every width. The dense rows
/// are aligned and, where N is a whole number of registers, without gaps: panels are then taken where they are.
fn check_row_lengths<D: Stored>() {
    let rows: Vec<Vec<u32>> = (0..70).map(|len| (0..len).map(|t| t * (600 / len)).collect()).collect();
    let dense: Vec<Vec<u32>> = (0..70).map(|len| (5..5 + len).collect()).collect();
    let cpus = executors();
    for a in [from_rows::<D::Scalar>(600, &rows), from_rows::<D::Scalar>(600, &dense)] {
        for n in [8, 16, 24, 32, 48, 64, 128, 256] {
            let (c, b) = (aligned::<D>(a.rows(), n, 1), aligned::<D>(a.cols(), n, 2));
            let expected = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap();
            on_every_path(&cpus, Op::Sddmm, &a, n, |cpu, operand, how| {
                let mut out = vec![D::Scalar::from_f64(f64::NAN); a.nnz()];
                cpu.sddmm(operand, c.as_ref(), b.as_ref(), &mut out).unwrap();
                let worst = expected.deviation_of_values(&out).unwrap();
                assert!(worst.error <= 1.0, "N = {n}, {how}: {worst:?}");
            });
        }
    }
}

#[test]
fn rows_of_every_length_f32() {
    check_row_lengths::<f32>();
}

#[test]
fn rows_of_every_length_bf16() {
    check_row_lengths::<bf16>();
}

#[test]
fn rows_of_every_length_f64() {
    check_row_lengths::<f64>();
}

/// Three rows each with 0 to 53 of the first 53 columns, some of them the same, and all of the others: pairs with every number of
/// dots, common and own, in rows of several tiles, whole or not.
#[test]
fn pairs_of_every_length() {
    const COLUMNS: u32 = 53;
    let rows: Vec<Vec<u32>> = (0..=COLUMNS)
        .flat_map(|len| [1, 3, 5].map(|step| (len, step)))
        .map(|(len, step)| {
            let mut row: Vec<u32> = (0..len).map(|t| (t * step + step) % COLUMNS).collect();
            row.sort_unstable();
            row.extend(COLUMNS..2 * COLUMNS);
            row
        })
        .collect();
    let a = from_rows::<f64>(2 * COLUMNS as usize, &rows);
    let cpus = executors();
    for n in [121, 128, 200, 256] {
        let (c, b) = (aligned::<f64>(a.rows(), n, 1), aligned::<f64>(a.cols(), n, 2));
        for scaled in [false, true] {
            let expected = reference::sddmm(&a, scaled, c.as_ref(), b.as_ref()).unwrap();
            on_every_path(&cpus, Op::Sddmm, &a, n, |cpu, operand, how| {
                let mut out = vec![f64::NAN; a.nnz()];
                match scaled {
                    true => cpu.sddmm_scaled(operand, c.as_ref(), b.as_ref(), &mut out),
                    false => cpu.sddmm(operand, c.as_ref(), b.as_ref(), &mut out),
                }
                .unwrap();
                let worst = expected.deviation_of_values(&out).unwrap();
                assert!(worst.error <= 1.0, "N = {n}, scaled: {scaled}, {how}: {worst:?}");
            });
        }
    }
}

#[test]
fn the_same_bits_every_time() {
    let a = generate::random_matrix::<f32>(50, 2000, 0.6, 3).unwrap();
    let cpu = Cpu::builder().threads(4).pin(false).build().unwrap();
    for n in [1, 33, 128] {
        let (c, b) = (aligned::<f32>(50, n, 1), aligned::<f32>(2000, n, 2));
        for path in STRATEGIES {
            let prepared = prepare(&cpu, Op::Sddmm, &a, n, path);
            let run = || {
                let mut out = vec![0.0f32; a.nnz()];
                cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out).unwrap();
                out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let first = run();
            assert!((0..20).all(|_| run() == first), "N = {n}, {path:?}");
        }
    }
}

#[test]
fn nan_and_infinity_propagate() {
    let a = generate::random_matrix::<f64>(40, 60, 0.5, 1).unwrap();
    let c = aligned::<f64>(40, 19, 1);
    let mut b = aligned::<f64>(60, 19, 2);
    b.as_mut().into_row(7)[3] = f64::NAN;
    b.as_mut().into_row(9)[18] = f64::NEG_INFINITY;
    let expected = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap();
    assert!(expected.values().iter().any(|x| x.is_nan()) && expected.values().iter().any(|x| x.is_infinite()));
    for cpu in executors() {
        for path in STRATEGIES {
            let mut out = vec![0.0; a.nnz()];
            let prepared = prepare(&cpu, Op::Sddmm, &a, 19, path);
            cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out).unwrap();
            assert!(expected.deviation_of_values(&out).unwrap().error <= 1.0, "{path:?}, {}", cpu.arch().name());
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f32>(4, 5, 0.5, 1).unwrap();
    let m = |rows, cols| Mat::<f32>::zeros(rows, cols).unwrap();
    for (c, b, len) in [
        (m(5, 3), m(5, 3), a.nnz()),
        (m(4, 3), m(4, 3), a.nnz()),
        (m(4, 3), m(5, 2), a.nnz()),
        (m(4, 3), m(5, 3), a.nnz() - 1),
        (m(4, 0), m(5, 0), a.nnz()),
    ] {
        let error = cpu.sddmm(&a, c.as_ref(), b.as_ref(), &mut vec![0f32; len]).unwrap_err();
        assert!(matches!(error, Error::Shape { op: "sddmm", .. } | Error::Argument { .. }), "{error}");
    }
    // A pattern has no values to scale by.
    let mut out = vec![0f32; a.nnz()];
    assert!(cpu.sddmm_scaled(a.pattern(), m(4, 3).as_ref(), m(5, 3).as_ref(), &mut out).is_err());
}

/// The stride of a single row is any number: what lies rows ahead is no address, and computing it no overflow.
#[test]
fn strided_to_the_end_of_the_address_space() {
    let a = from_rows::<f32>(3, &[vec![0, 2]]);
    let (c, b, n) = ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 3);
    let far = MatRef::new(&c, 1, n, usize::MAX).unwrap();
    let b = MatRef::new(&b, 3, n, n).unwrap();
    for cpu in executors() {
        let mut out = [0f32; 2];
        cpu.sddmm(a.pattern(), far, b, &mut out).unwrap();
        assert_eq!(out, [8.0, 44.0]);
        let mut e = [0.0; 3];
        cpu.fusedmm(&a, edge::Identity, far, b, b, MatMut::new(&mut e, 1, n, usize::MAX).unwrap()).unwrap();
        assert_eq!(e, [264.0, 316.0, 368.0]);
        cpu.spmm(1.0, &a, b, 0.0, MatMut::new(&mut e, 1, n, usize::MAX).unwrap()).unwrap();
        let expected: Vec<f32> = (0..n).map(|j| a.values()[0] * b.row(0)[j] + a.values()[1] * b.row(2)[j]).collect();
        assert!(e.iter().zip(&expected).all(|(x, y)| (x - y).abs() <= 1e-5 * y.abs()), "{e:?}, not {expected:?}");
    }
}
