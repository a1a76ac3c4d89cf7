//! The peers that this machine has compute what they should, on odd shapes and strides.

use sparsimd_peers::{Blas, Element, Error, Gemm, Loaded, Mkl, MklCsr};

#[path = "../../../tests/common/skip.rs"]
mod skip;

use skip::{Missing, skip};

/// Small whole numbers: every product below is exact.
fn numbers<T: From<i8>>(count: usize) -> Vec<T> {
    (0..count).map(|i| T::from((i * i % 7) as i8 - 3)).collect()
}

fn check_gemm<T: Element + From<i8> + Into<f64> + std::fmt::Debug>(blas: &Blas) {
    for (m, n, k) in [(1, 1, 1), (5, 7, 3), (33, 18, 65), (2, 3, 0)] {
        for b_transposed in [false, true] {
            let (lda, ldc) = (k + 1, n + 2);
            let (b_rows, b_cols) = if b_transposed { (n, k) } else { (k, n) };
            let ldb = b_cols + 3;
            let (a, b) = (numbers::<T>(m * lda), numbers::<T>(b_rows.max(1) * ldb));
            let mut c = numbers::<T>(m * ldc);
            let before = c.clone();
            blas.gemm(Gemm { m, n, k, lda, ldb, ldc, b_transposed }, &a, &b, &mut c).unwrap();
            for i in 0..m {
                for j in 0..ldc {
                    let place = |l: usize| if b_transposed { j * ldb + l } else { l * ldb + j };
                    let got: f64 = c[i * ldc + j].into();
                    let want = if j < n {
                        (0..k).map(|l| a[i * lda + l].into() * b[place(l)].into()).sum::<f64>()
                    } else {
                        before[i * ldc + j].into()
                    };
                    assert_eq!(got, want, "({i}, {j}) of {m} x {n} x {k}, {b_transposed}");
                }
            }
        }
    }
}

fn check_sparse<T: Element + From<i8> + Into<f64> + std::fmt::Debug>(mkl: &Mkl) {
    let (row_ptr, columns) = ([0, 2, 2, 3], [0u32, 3, 1]);
    let values = [2, 3, -1].map(T::from);
    let (n, ldb, ldc) = (2, 3, 4);
    // By the product with a matrix and, of one column that lies together, with a vector.
    for (ldb, ldc) in [(1, 1), (2, 3)] {
        let b = numbers::<T>(4 * ldb);
        let mut c = vec![T::from(9); 3 * ldc];
        let a = MklCsr::new(mkl, (3, 4, 1), &row_ptr, &columns, &values).unwrap();
        a.multiply(&b, ldb, &mut c, ldc).unwrap();
        for i in 0..3 {
            let nonzeros = row_ptr[i]..row_ptr[i + 1];
            let want: f64 = nonzeros.map(|p| values[p].into() * b[columns[p] as usize * ldb].into()).sum();
            assert_eq!(c[i * ldc].into(), want, "{i} at {ldb}, {ldc}");
        }
        assert!(matches!(a.multiply(&b[..3 * ldb], ldb, &mut c, ldc), Err(Error::Operands(_))));
    }
    let b = numbers::<T>(4 * ldb);
    let mut c = vec![T::from(9); 3 * ldc];
    let a = MklCsr::new(mkl, (3, 4, n), &row_ptr, &columns, &values).unwrap();
    a.multiply(&b, ldb, &mut c, ldc).unwrap();
    for i in 0..3 {
        for j in 0..ldc {
            let nonzeros = row_ptr[i]..row_ptr[i + 1];
            let want: f64 =
                nonzeros.map(|p| values[p].into() * b[columns[p] as usize * ldb + j.min(n - 1)].into()).sum();
            let got: f64 = c[i * ldc + j].into();
            assert_eq!(got, if j < n { want } else { 9.0 }, "({i}, {j})");
        }
    }
    assert!(matches!(a.multiply(&b[1..], ldb + 1, &mut c, ldc), Err(Error::Operands(_))));
    for (row_ptr, columns) in [([0, 2, 1, 3], [0u32, 3, 1]), ([0, 2, 2, 3], [0, 4, 1]), ([0, 2, 2, 2], [0, 3, 1])] {
        assert!(matches!(MklCsr::new(mkl, (3, 4, n), &row_ptr, &columns, &values), Err(Error::Operands(_))));
    }
}

#[test]
fn loaded_peers_multiply() {
    for peer in Loaded::ALL {
        match peer.gemm(2) {
            Ok(blas) => {
                println!("{}: {}", peer.name(), blas.detail());
                check_gemm::<f32>(&blas);
                check_gemm::<f64>(&blas);
                let shape = Gemm { m: 2, n: 2, k: 2, lda: 2, ldb: 2, ldc: 1, b_transposed: false };
                assert!(matches!(blas.gemm(shape, &[1.0; 4], &[1.0; 4], &mut [0.0; 4]), Err(Error::Operands(_))));
                let shape = Gemm { ldc: 2, ..shape };
                assert!(matches!(blas.gemm(shape, &[1.0; 4], &[1.0; 3], &mut [0.0; 4]), Err(Error::Operands(_))));
            }
            Err(why) => skip(Missing::Other, format_args!("no {}: {why}", peer.name())),
        }
    }
    match Mkl::load(2) {
        Ok(mkl) => {
            check_sparse::<f32>(&mkl);
            check_sparse::<f64>(&mkl);
        }
        Err(why) => skip(Missing::Other, format_args!("no MKL: {why}")),
    }
}

#[cfg(feature = "rust")]
#[test]
fn linked_peers_multiply() {
    use sparsimd_peers::rust::{Sprs, faer, gemm, sprs};
    let (m, n, k) = (5, 7, 3);
    let shape = Gemm { m, n, k, lda: k, ldb: k + 1, ldc: n, b_transposed: true };
    let (a, b) = (numbers::<f32>(m * k), numbers::<f32>(n * (k + 1)));
    let want: Vec<f32> = (0..m * n).map(|p| (0..k).map(|l| a[p / n * k + l] * b[p % n * (k + 1) + l]).sum()).collect();
    for multiply in [gemm, faer] {
        let mut c = vec![9.0; m * n];
        multiply(1, shape, &a, &b, &mut c).unwrap();
        assert_eq!(c, want);
        assert!(multiply(1, shape, &a[1..], &b, &mut c).is_err());
    }
    let (row_ptr, columns, values) = ([0usize, 2, 3], [0u32, 2, 1], [2.0f32, 3.0, -1.0]);
    let matrix = Sprs::new((2, 3), &row_ptr, &columns, &values).unwrap();
    let mut c = [9.0f32; 4];
    sprs(&matrix, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, &mut c, 2).unwrap();
    assert_eq!(c, [17.0, 22.0, -3.0, -4.0]);
    assert!(Sprs::new((2, 3), &row_ptr, &[0, 3, 1], &values).is_err());
}
