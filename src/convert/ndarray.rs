//! ndarray: two-dimensional arrays and views.

use ndarray::{ArrayView2, ArrayViewMut2, Ix2, ShapeBuilder, StrideShape};
use sparsimd_kernels::Scalar;

use super::not_row_major;
use crate::dense::{Mat, MatMut, MatRef};
use crate::error::{Error, Result};

/// The array's elements where they are.
///
/// Only an array in standard layout: between the rows of another one, elements may belong to a view that changes them.
impl<'a, T> TryFrom<ArrayView2<'a, T>> for MatRef<'a, T> {
    type Error = Error;

    fn try_from(array: ArrayView2<'a, T>) -> Result<Self> {
        let (rows, cols) = array.dim();
        Self::new(array.to_slice().ok_or_else(not_row_major)?, rows, cols, cols)
    }
}

/// As for [`MatRef`].
impl<'a, T> TryFrom<ArrayViewMut2<'a, T>> for MatMut<'a, T> {
    type Error = Error;

    fn try_from(array: ArrayViewMut2<'a, T>) -> Result<Self> {
        let (rows, cols) = array.dim();
        Self::new(array.into_slice().ok_or_else(not_row_major)?, rows, cols, cols)
    }
}

/// The shape and strides; no strides where there are no elements, since ndarray looks for those of one row.
fn shape(rows: usize, cols: usize, stride: usize) -> StrideShape<Ix2> {
    if rows == 0 || cols == 0 { (rows, cols).into() } else { (rows, cols).strides((stride, 1)) }
}

/// A copy of an array of any layout.
impl<T: Scalar> TryFrom<ArrayView2<'_, T>> for Mat<T> {
    type Error = Error;

    fn try_from(array: ArrayView2<'_, T>) -> Result<Self> {
        Self::from_fn(array.nrows(), array.ncols(), |i, j| array[(i, j)])
    }
}

/// The matrix's elements where they are.
impl<'a, T> From<MatRef<'a, T>> for ArrayView2<'a, T> {
    fn from(matrix: MatRef<'a, T>) -> Self {
        let shape = shape(matrix.rows(), matrix.cols(), matrix.stride());
        Self::from_shape(shape, matrix.data()).expect("rows inside the data, a stride apart")
    }
}

/// The matrix's elements where they are.
impl<'a, T> From<MatMut<'a, T>> for ArrayViewMut2<'a, T> {
    fn from(matrix: MatMut<'a, T>) -> Self {
        let shape = shape(matrix.rows(), matrix.cols(), matrix.stride());
        Self::from_shape(shape, matrix.into_data()).expect("rows inside the data, a stride apart")
    }
}
