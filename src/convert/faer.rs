//! faer: dense matrices and views.

use std::slice;

use faer::{MatMut as FaerMut, MatRef as FaerRef};
use sparsimd_kernels::Scalar;

use super::not_row_major;
use crate::dense::{Mat, MatMut, MatRef};
use crate::error::{Error, Result};

/// Whether elements (i, j) are at `i * cols + j`.
fn is_row_major(rows: usize, cols: usize, row_stride: isize, col_stride: isize) -> bool {
    rows == 0 || cols == 0 || (cols == 1 || col_stride == 1) && (rows == 1 || row_stride == cols as isize)
}

/// The matrix's elements where they are.
///
/// Only rows that follow each other without gaps, as the transpose of most faer matrices has them: between other rows,
/// elements may belong to a view that changes them.
impl<'a, T> TryFrom<FaerRef<'a, T>> for MatRef<'a, T> {
    type Error = Error;

    fn try_from(matrix: FaerRef<'a, T>) -> Result<Self> {
        let (rows, cols) = matrix.shape();
        if !is_row_major(rows, cols, matrix.row_stride(), matrix.col_stride()) {
            return Err(not_row_major());
        }
        if rows == 0 || cols == 0 {
            return Self::new(&[], rows, cols, cols);
        }
        // SAFETY: the view borrows `rows * cols` elements for 'a, which the strides say are one run of memory.
        Self::new(unsafe { slice::from_raw_parts(matrix.as_ptr(), rows * cols) }, rows, cols, cols)
    }
}

/// As for [`MatRef`].
impl<'a, T> TryFrom<FaerMut<'a, T>> for MatMut<'a, T> {
    type Error = Error;

    fn try_from(matrix: FaerMut<'a, T>) -> Result<Self> {
        let (rows, cols) = matrix.shape();
        if !is_row_major(rows, cols, matrix.row_stride(), matrix.col_stride()) {
            return Err(not_row_major());
        }
        if rows == 0 || cols == 0 {
            return Self::new(&mut [], rows, cols, cols);
        }
        // SAFETY: as for `MatRef`; the view is the only one for 'a, and is given up.
        Self::new(unsafe { slice::from_raw_parts_mut(matrix.as_ptr_mut(), rows * cols) }, rows, cols, cols)
    }
}

/// A copy of a matrix of any layout.
impl<T: Scalar> TryFrom<FaerRef<'_, T>> for Mat<T> {
    type Error = Error;

    fn try_from(matrix: FaerRef<'_, T>) -> Result<Self> {
        Self::from_fn(matrix.nrows(), matrix.ncols(), |i, j| *matrix.get(i, j))
    }
}

/// The matrix's elements where they are.
impl<'a, T> From<MatRef<'a, T>> for FaerRef<'a, T> {
    fn from(matrix: MatRef<'a, T>) -> Self {
        Self::from_row_major_slice_with_stride(matrix.data(), matrix.rows(), matrix.cols(), matrix.stride())
    }
}

/// The matrix's elements where they are.
impl<'a, T> From<MatMut<'a, T>> for FaerMut<'a, T> {
    fn from(matrix: MatMut<'a, T>) -> Self {
        let (rows, cols, stride) = (matrix.rows(), matrix.cols(), matrix.stride());
        // SAFETY: the view borrows the rows, which are inside its data a stride apart, for 'a and alone. (faer 0.24.4's own
        // from_row_major_slice_with_stride_mut exchanges the strides.)
        unsafe { Self::from_raw_parts_mut(matrix.into_data().as_mut_ptr(), rows, cols, stride as isize, 1) }
    }
}
