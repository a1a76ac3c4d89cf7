//! Compressed sparse rows: a [`Pattern`] that many value arrays can live on, and [`Csr`], one of them.

use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::coo::check_dims;
use crate::error::{Error, Result};

/// Where the nonzeros of a matrix are.
///
/// Invariants, checked by [`Pattern::new`] and trusted by every kernel:
/// - `row_ptr` has `rows + 1` entries, starts at 0, never decreases and ends at `col_idx.len()`;
/// - every column index is below `cols`; no column occurs twice in a row. Columns need not ascend.
#[derive(Debug, PartialEq, Eq)]
pub struct Pattern {
    rows: usize,
    cols: usize,
    row_ptr: Vec<usize>,
    col_idx: Vec<u32>,
}

/// An invariant of [`Pattern`] that arrays break, and where.
#[derive(Debug)]
pub(crate) struct Violation {
    /// Which number is to blame, if a single one is.
    pub place: Option<Place>,
    /// What is wrong with it.
    pub detail: String,
}

/// A number of a pattern's arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// This row pointer.
    Pointer(usize),
    /// This column index.
    Column(usize),
}

impl Pattern {
    /// The pattern whose row `i` has nonzeros in the columns `col_idx[row_ptr[i]..row_ptr[i + 1]]`.
    ///
    /// # Errors
    /// [`Error::Structure`] naming the first violated invariant and its place.
    pub fn new(rows: usize, cols: usize, row_ptr: Vec<usize>, col_idx: Vec<u32>) -> Result<Arc<Self>> {
        check_dims("CSR", rows, cols)?;
        Self::located(rows, cols, row_ptr, col_idx).map_err(|violation| Error::structure("CSR", violation.detail))
    }

    /// As [`Pattern::new`] for dimensions that fit u32; the error knows its place.
    pub(crate) fn located(
        rows: usize,
        cols: usize,
        row_ptr: Vec<usize>,
        col_idx: Vec<u32>,
    ) -> Result<Arc<Self>, Violation> {
        let fail = |place, detail| Err(Violation { place, detail });
        if row_ptr.len() != rows + 1 {
            return fail(None, format!("{} row pointers for {rows} rows", row_ptr.len()));
        }
        if row_ptr[0] != 0 {
            return fail(Some(Place::Pointer(0)), format!("the first row pointer is {}, not 0", row_ptr[0]));
        }
        if row_ptr[rows] != col_idx.len() {
            let detail = format!("the last row pointer is {} for {} column indices", row_ptr[rows], col_idx.len());
            return fail(Some(Place::Pointer(rows)), detail);
        }
        if let Some(i) = (0..rows).find(|&i| row_ptr[i] > row_ptr[i + 1]) {
            let detail = format!("row {i}: pointers decrease from {} to {}", row_ptr[i], row_ptr[i + 1]);
            return fail(Some(Place::Pointer(i + 1)), detail);
        }
        // The last row seen in each column, made only when a row does not ascend.
        let mut seen: Vec<u32> = Vec::new();
        for i in 0..rows {
            let row = &col_idx[row_ptr[i]..row_ptr[i + 1]];
            let column = |at: usize| Some(Place::Column(row_ptr[i] + at));
            if let Some(at) = row.iter().position(|&j| j as usize >= cols) {
                return fail(column(at), format!("row {i}: column index {} is not below {cols}", row[at]));
            }
            if row.windows(2).all(|w| w[0] < w[1]) {
                continue;
            }
            seen.resize(cols, u32::MAX);
            for (at, &j) in row.iter().enumerate() {
                if std::mem::replace(&mut seen[j as usize], i as u32) == i as u32 {
                    return fail(column(at), format!("row {i}: column {j} occurs twice"));
                }
            }
        }
        Ok(Arc::new(Self { rows, cols, row_ptr, col_idx }))
    }

    /// The pattern of arrays that are known to be valid; nothing is checked in a release build.
    ///
    /// # Safety
    /// The invariants listed on [`Pattern`] hold: kernels read memory by these indices unchecked.
    pub unsafe fn new_unchecked(rows: usize, cols: usize, row_ptr: Vec<usize>, col_idx: Vec<u32>) -> Arc<Self> {
        debug_assert_eq!(row_ptr.len(), rows + 1);
        debug_assert_eq!(row_ptr[rows], col_idx.len());
        Arc::new(Self { rows, cols, row_ptr, col_idx })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.col_idx.len()
    }

    /// Start of each row in [`Pattern::col_idx`], and the end of the last one.
    pub fn row_ptr(&self) -> &[usize] {
        &self.row_ptr
    }

    /// Column of each nonzero.
    pub fn col_idx(&self) -> &[u32] {
        &self.col_idx
    }

    /// Columns of the nonzeros of row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`Pattern::rows`], as slice indexing does.
    pub fn row(&self, i: usize) -> &[u32] {
        &self.col_idx[self.row_ptr[i]..self.row_ptr[i + 1]]
    }

    /// The pattern of arrays whose invariants hold.
    pub(super) fn from_parts(rows: usize, cols: usize, row_ptr: Vec<usize>, col_idx: Vec<u32>) -> Self {
        Self { rows, cols, row_ptr, col_idx }
    }
}

/// A sparse matrix by rows: a shared [`Pattern`] and one value per nonzero.
#[derive(Clone, Debug, PartialEq)]
pub struct Csr<T> {
    pattern: Arc<Pattern>,
    values: Vec<T>,
}

impl<T: Scalar> Csr<T> {
    /// The matrix with `values` on `pattern`.
    ///
    /// # Errors
    /// [`Error::Structure`] when the number of values is not the number of nonzeros.
    pub fn new(pattern: Arc<Pattern>, values: Vec<T>) -> Result<Self> {
        if values.len() != pattern.nnz() {
            return Err(Error::structure(
                "CSR",
                format!("{} values for a pattern of {} nonzeros", values.len(), pattern.nnz()),
            ));
        }
        Ok(Self { pattern, values })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.pattern.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.pattern.cols
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.pattern.nnz()
    }

    /// Where the nonzeros are.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern
    }

    /// The value of each nonzero.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of each nonzero, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// A^T, which is also A by columns (CSC).
    pub fn transpose(&self) -> Self {
        let (pattern, order) = self.pattern.transpose();
        Self { pattern, values: order.iter().map(|&p| self.values[p]).collect() }
    }
}
