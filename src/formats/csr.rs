//! Compressed sparse rows: a [`Pattern`] that many value arrays can live on, and [`Csr`], one of them.

use std::sync::Arc;

use sparsimd_kernels::Stored;

use super::{CsrRef, PatternRef, check_dims};
use crate::error::{Error, Result};
use crate::memory::collected;

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
        let fail = |i, detail| Err(Violation { place: Some(Place::Pointer(i)), detail });
        PatternRef::located(rows, cols, &row_ptr, &col_idx)?;
        if row_ptr[0] != 0 {
            return fail(0, format!("the first row pointer is {}, not 0", row_ptr[0]));
        }
        if row_ptr[rows] != col_idx.len() {
            let detail = format!("the last row pointer is {} for {} column indices", row_ptr[rows], col_idx.len());
            return fail(rows, detail);
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

    /// The pattern of the nonzeros (i, j) for which `keep(i, j)`, in the same order.
    ///
    /// The causal mask of attention is `filtered(|i, j| j <= i)`: what it excludes is then not computed at all.
    ///
    /// ```
    /// let all = sparsimd::Pattern::new(2, 2, vec![0, 2, 4], vec![0, 1, 0, 1])?;
    /// assert_eq!(all.filtered(|i, j| j <= i).col_idx(), [0, 0, 1]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn filtered(&self, keep: impl Fn(usize, usize) -> bool) -> Arc<Self> {
        self.kept(keep, |_| {})
    }

    /// As [`Pattern::filtered`]; `each` is called with the position of every nonzero that is kept.
    fn kept(&self, keep: impl Fn(usize, usize) -> bool, mut each: impl FnMut(usize)) -> Arc<Self> {
        let (mut row_ptr, mut col_idx) = (vec![0], Vec::new());
        for i in 0..self.rows {
            for p in self.row_ptr[i]..self.row_ptr[i + 1] {
                if keep(i, self.col_idx[p] as usize) {
                    col_idx.push(self.col_idx[p]);
                    each(p);
                }
            }
            row_ptr.push(col_idx.len());
        }
        Arc::new(Self::from_parts(self.rows, self.cols, row_ptr, col_idx))
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

impl<D: Stored> Csr<D> {
    /// The same matrix with values of another element type: the same numbers, or the nearest that it has.
    ///
    /// ```
    /// use sparsimd::{Csr, Pattern, bf16};
    /// let a = Csr::new(Pattern::new(1, 2, vec![0, 2], vec![0, 1])?, vec![1.5f32, 0.1])?;
    /// let narrow: Csr<bf16> = a.stored_as();
    /// assert_eq!(narrow.stored_as::<f32>().values(), [1.5, 0.100_097_656]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    #[inline(never)]
    pub fn stored_as<V: Stored<Scalar = D::Scalar>>(&self) -> Csr<V> {
        let values = collected(self.values.iter().map(|x| V::narrow(x.widen())));
        Csr { pattern: self.pattern.clone(), values }
    }
}

impl<T: Copy> Csr<T> {
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

    /// The value of each nonzero, without its place.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// A view of the whole matrix.
    pub fn as_ref(&self) -> CsrRef<'_, T> {
        self.into()
    }

    /// The matrix with `values`, as many as there are nonzeros, on `pattern`.
    pub(super) fn from_parts(pattern: Arc<Pattern>, values: Vec<T>) -> Self {
        Self { pattern, values }
    }

    /// The nonzeros (i, j) for which `keep(i, j)`, in the same order ([`Pattern::filtered`]).
    pub fn filtered(&self, keep: impl Fn(usize, usize) -> bool) -> Self {
        let mut values = Vec::new();
        let pattern = self.pattern.kept(keep, |p| values.push(self.values[p]));
        Self { pattern, values }
    }

    /// A^T, which is also A by columns (CSC).
    pub fn transpose(&self) -> Self {
        let (pattern, order) = self.pattern.transpose();
        Self { pattern, values: collected(order.iter().map(|&p| self.values[p])) }
    }
}
