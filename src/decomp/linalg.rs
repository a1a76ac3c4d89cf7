//! Dense linear algebra of small and of tall matrices, in double precision: nalgebra's, behind this library's matrices and errors.

use nalgebra::{Cholesky, DMatrix, DVector, SVD, SymmetricEigen};
use sparsimd_kernels::Scalar;

use crate::dense::Mat;
use crate::error::{Error, Result};

/// Iterations of an eigenvalue or singular value, on average, after which none is expected to converge; 30 are LAPACK's limit.
const MOST_ITERATIONS: usize = 60;

/// Rows for each column from which a QR decomposition before an SVD pays: the SVD of a 1000 x 100 matrix takes 30 ms, its QR
/// decomposition 5 and the SVD of R 1.
const TALL: usize = 2;

/// `a` as nalgebra's.
pub(super) fn dense<T: Scalar>(a: &Mat<T>) -> DMatrix<f64> {
    DMatrix::from_fn(a.rows(), a.cols(), |i, j| a.row(i)[j].to_f64())
}

/// `a` as this library's.
pub(super) fn row_major(a: &DMatrix<f64>) -> Result<Mat<f64>> {
    Mat::from_fn(a.nrows(), a.ncols(), |i, j| a[(i, j)])
}

/// Eigenvalues of a symmetric matrix, largest first, and their vectors as columns.
///
/// # Errors
/// They do not converge, as with values that are not finite; `op` is the operation's name.
pub(super) fn symmetric_eigen(op: &'static str, a: DMatrix<f64>) -> Result<(DVector<f64>, DMatrix<f64>)> {
    let n = a.nrows();
    if n == 0 {
        return Ok((DVector::zeros(0), a));
    }
    let eigen = finite(a).and_then(|a| SymmetricEigen::try_new(a, f64::EPSILON, MOST_ITERATIONS * n));
    descending(op, eigen.map(|eigen| (eigen.eigenvalues, eigen.eigenvectors)))
}

/// Singular values, largest first, and the left singular vectors as columns; as many as the smaller dimension.
///
/// # Errors
/// They do not converge, as with values that are not finite; `op` is the operation's name.
pub(super) fn left_singular(op: &'static str, a: DMatrix<f64>) -> Result<(DVector<f64>, DMatrix<f64>)> {
    let (m, n) = a.shape();
    if m == 0 || n == 0 {
        return Ok((DVector::zeros(0), DMatrix::zeros(m, 0)));
    }
    if m >= TALL * n {
        let qr = a.qr();
        let (values, vectors) = left_singular(op, qr.r())?;
        return Ok((values, qr.q() * vectors));
    }
    let svd = finite(a).and_then(|a| SVD::try_new_unordered(a, true, false, f64::EPSILON, MOST_ITERATIONS * m.min(n)));
    descending(op, svd.and_then(|svd| Some((svd.singular_values, svd.u?))))
}

/// `a` if all its elements are finite.
fn finite(a: DMatrix<f64>) -> Option<DMatrix<f64>> {
    a.iter().all(|x| x.is_finite()).then_some(a)
}

/// Values and their vectors, the largest value first; an error where they are missing or not finite.
fn descending(op: &'static str, found: Option<(DVector<f64>, DMatrix<f64>)>) -> Result<(DVector<f64>, DMatrix<f64>)> {
    let (values, vectors) = found
        .filter(|(values, _)| values.iter().all(|x| x.is_finite()))
        .ok_or_else(|| Error::structure(op, "eigenvalues or singular values did not converge"))?;
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[j].total_cmp(&values[i]));
    let sorted = DVector::from_fn(values.len(), |i, _| values[order[i]]);
    Ok((sorted, DMatrix::from_fn(vectors.nrows(), order.len(), |i, j| vectors[(i, order[j])])))
}

/// An orthonormal basis of the columns of `a` (rows at least as many), in their order.
pub(super) fn orthonormal(a: &Mat<f64>) -> Result<Mat<f64>> {
    row_major(&dense(a).qr().q())
}

/// The inverse of a symmetric positive definite matrix whose pivots are all above `tolerance` of the largest; `None` for others.
pub(super) fn inverse(a: &DMatrix<f64>, tolerance: f64) -> Option<DMatrix<f64>> {
    let cholesky = Cholesky::new(a.clone())?;
    let l = cholesky.l_dirty();
    let pivots = (0..a.nrows()).map(|i| l[(i, i)] * l[(i, i)]);
    let (least, largest) = pivots.fold((f64::INFINITY, 0.0f64), |(least, largest), p| (least.min(p), largest.max(p)));
    (least > tolerance * largest).then(|| cholesky.inverse())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(rows: usize, cols: usize) -> DMatrix<f64> {
        DMatrix::from_fn(rows, cols, |i, j| (((i + 3) * (i + 3) * (j + 7)) as f64 * 1.37).sin())
    }

    #[test]
    fn singular_vectors_diagonalise() {
        for (m, n) in [(0, 0), (0, 2), (2, 0), (1, 1), (3, 1), (1, 3), (4, 4), (9, 4), (4, 9), (60, 20), (30, 20)] {
            let a = numbers(m, n);
            let (values, u) = left_singular("test", a.clone()).unwrap();
            assert_eq!((values.len(), u.shape()), (m.min(n), (m, m.min(n))));
            assert!(values.as_slice().is_sorted_by(|a, b| a >= b));
            let z = a.tr_mul(&u);
            for j in 0..values.len() {
                assert!((z.column(j).norm() - values[j]).abs() < 1e-12 * values[0], "{m} x {n}, {j}");
            }
        }
    }

    #[test]
    fn bases_are_orthonormal_whatever_the_rank() {
        let ones = DMatrix::from_element(7, 3, 1.0);
        let with_zeros = DMatrix::from_fn(7, 3, |i, j| if j == 1 { 0.0 } else { (i + j) as f64 });
        for a in [numbers(7, 3), ones, with_zeros, DMatrix::zeros(7, 3), numbers(3, 3), numbers(3, 0)] {
            let q = dense(&orthonormal(&row_major(&a).unwrap()).unwrap());
            assert_eq!(q.shape(), a.shape());
            assert!((q.tr_mul(&q) - DMatrix::identity(a.ncols(), a.ncols())).norm() < 1e-13, "{a}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_end_in_an_error() {
        for n in [1, 2, 5] {
            for bad in [f64::NAN, f64::INFINITY] {
                assert!(symmetric_eigen("test", DMatrix::from_element(n, n, bad)).is_err());
                assert!(left_singular("test", DMatrix::from_element(n, n, bad)).is_err());
                assert!(inverse(&DMatrix::from_element(n, n, bad), 1e-6).is_none());
            }
        }
    }

    #[test]
    fn inverses_are_of_well_conditioned_matrices_only() {
        let a = numbers(9, 5);
        let gram = a.tr_mul(&a);
        let product = inverse(&gram, 1e-8).unwrap() * &gram;
        assert!((product - DMatrix::identity(5, 5)).norm() < 1e-9);
        assert!(inverse(&DMatrix::from_element(4, 4, 1.0), 1e-8).is_none());
        assert!(inverse(&DMatrix::zeros(2, 2), 1e-8).is_none());
    }
}
