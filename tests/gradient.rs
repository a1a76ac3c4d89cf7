//! The gradients of SpMM are the library's own operations: dA is an SDDMM, dB an SpMM with A^T. Shown by finite
//! differences.

use sparsimd::{Cpu, Csr, Mat, generate};

/// L = sum_ij W_ij (A B)_ij.
fn loss(cpu: &Cpu, a: &Csr<f64>, b: &Mat<f64>, w: &Mat<f64>) -> f64 {
    let mut c = Mat::zeros(a.rows(), b.cols()).unwrap();
    cpu.spmm(1.0, a, b.as_ref(), 0.0, c.as_mut()).unwrap();
    (0..c.rows()).flat_map(|i| c.row(i).iter().zip(w.row(i))).map(|(c, w)| c * w).sum()
}

#[test]
fn gradients_match_finite_differences() {
    let cpu = Cpu::new().unwrap();
    let (m, k, n) = (23, 31, 19);
    let a = generate::random_matrix::<f64>(m, k, 0.8, 1).unwrap();
    let b = generate::uniform_dense::<f64>(k, n, 2).unwrap();
    let w = generate::uniform_dense::<f64>(m, n, 3).unwrap();

    // dL/da_ij = W_i . B_j, and dL/dB = A^T W.
    let mut da = vec![0.0; a.nnz()];
    cpu.sddmm(&a, w.as_ref(), b.as_ref(), &mut da).unwrap();
    let mut db = Mat::zeros(k, n).unwrap();
    cpu.spmm_t(1.0, &a, w.as_ref(), 0.0, db.as_mut()).unwrap();

    // L is linear in each entry, so the central difference has no error but rounding, about 1e-16 * |L| / h.
    let h = 1.0 / 64.0;
    for (p, &da) in da.iter().enumerate() {
        let at = |x: f64| {
            let mut a = a.clone();
            a.values_mut()[p] += x;
            loss(&cpu, &a, &b, &w)
        };
        approx::assert_abs_diff_eq!((at(h) - at(-h)) / (2.0 * h), da, epsilon = 1e-11);
    }
    for i in 0..k {
        for j in 0..n {
            let at = |x: f64| {
                let mut b = b.clone();
                b.as_mut().into_row(i)[j] += x;
                loss(&cpu, &a, &b, &w)
            };
            approx::assert_abs_diff_eq!((at(h) - at(-h)) / (2.0 * h), db.row(i)[j], epsilon = 1e-11);
        }
    }
}
