//! sprs: compressed sparse rows.

use sparsimd_kernels::Scalar;
use sprs::{CsMatViewI, SpIndex};

use crate::error::{Error, Result};
use crate::formats::{ColumnIndex, Csr, CsrRef, Pattern, PointerIndex};

/// The error that the matrix is by columns.
fn by_columns() -> Error {
    Error::argument("matrix", "it is by columns (CSC): its transpose is by rows")
}

/// The matrix's arrays where they are, with columns of u32 or i32 (sprs's own choice, usize, is copied into a [`Csr`]).
impl<'a, T, C, P> TryFrom<CsMatViewI<'a, T, C, P>> for CsrRef<'a, T>
where
    T: Scalar,
    C: ColumnIndex + SpIndex,
    P: PointerIndex + SpIndex,
{
    type Error = Error;

    fn try_from(matrix: CsMatViewI<'a, T, C, P>) -> Result<Self> {
        if !matrix.is_csr() {
            return Err(by_columns());
        }
        let (rows, cols) = matrix.shape();
        let (row_ptr, col_idx, values) = matrix.into_raw_storage();
        Self::new(rows, cols, row_ptr, col_idx, values)
    }
}

/// A copy of a matrix with indices of any type.
impl<T: Scalar, C: SpIndex, P: SpIndex> TryFrom<CsMatViewI<'_, T, C, P>> for Csr<T> {
    type Error = Error;

    fn try_from(matrix: CsMatViewI<'_, T, C, P>) -> Result<Self> {
        if !matrix.is_csr() {
            return Err(by_columns());
        }
        let mut row_ptr = Vec::with_capacity(matrix.rows() + 1);
        let (mut col_idx, mut values) = (Vec::with_capacity(matrix.nnz()), Vec::with_capacity(matrix.nnz()));
        row_ptr.push(0);
        for row in matrix.outer_iterator() {
            for (column, &value) in row.iter() {
                let too_large = |_| Error::structure("CSR", format!("column {column} exceeds {}", u32::MAX));
                col_idx.push(u32::try_from(column).map_err(too_large)?);
                values.push(value);
            }
            row_ptr.push(values.len());
        }
        Self::new(Pattern::new(matrix.rows(), matrix.cols(), row_ptr, col_idx)?, values)
    }
}

/// The matrix's arrays where they are; an error when the columns of a row do not ascend, which sprs needs.
impl<'a, T: Scalar> TryFrom<&'a Csr<T>> for CsMatViewI<'a, T, u32, usize> {
    type Error = Error;

    fn try_from(matrix: &'a Csr<T>) -> Result<Self> {
        let pattern = matrix.pattern();
        Self::try_new((matrix.rows(), matrix.cols()), pattern.row_ptr(), pattern.col_idx(), matrix.values())
            .map_err(|(.., error)| Error::structure("CSR", error.to_string()))
    }
}
