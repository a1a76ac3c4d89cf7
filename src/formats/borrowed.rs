//! CSR matrices in arrays of the caller: [`PatternRef`] and [`CsrRef`], checked once and never copied.
//!
//! ```text
//! row pointers   u32 | i32 | u64 | i64 | usize   ->   [u32] or [u64]   (the bits of a non-negative i32 are those of a u32)
//! columns        u32 | i32                       ->   [u32]
//! ```

use std::ops::Range;
use std::sync::Arc;

use sparsimd_kernels::RowPtr;

use super::check_dims;
use super::csr::{Csr, Pattern, Place, Violation};
use crate::dense::check_range;
use crate::error::{Error, Result};
use crate::memory::{collected, copied};

/// An integer type that row pointers of a borrowed matrix may have: u32, i32, u64, i64 or usize.
pub trait PointerIndex: sealed::Pointer {}

/// An integer type that column indices of a borrowed matrix (and coordinates of a list of entries) may have: u32 or i32.
pub trait ColumnIndex: sealed::Column {}

mod sealed {
    use super::Pointers;

    pub trait Pointer: Copy + Default + PartialOrd + std::fmt::Display + 'static {
        /// The same bits, unsigned.
        fn bits(pointers: &[Self]) -> Pointers<'_>;
    }

    pub trait Column: Copy + 'static {
        /// The same bits, unsigned.
        fn bits(columns: &[Self]) -> &[u32];

        /// Whether these bits are those of a negative index.
        fn is_negative(bits: u32) -> bool;
    }
}

/// Row pointers by width.
#[derive(Clone, Copy, Debug)]
pub enum Pointers<'a> {
    Narrow(&'a [u32]),
    Wide(&'a [u64]),
}

macro_rules! pointer_index {
    ($($type:ty => $width:ident),*) => {$(
        impl PointerIndex for $type {}
        impl sealed::Pointer for $type {
            fn bits(pointers: &[Self]) -> Pointers<'_> {
                Pointers::$width(bytemuck::cast_slice(pointers))
            }
        }
    )*};
}
pointer_index!(u32 => Narrow, i32 => Narrow, u64 => Wide, i64 => Wide);
#[cfg(target_pointer_width = "64")]
pointer_index!(usize => Wide);
#[cfg(target_pointer_width = "32")]
pointer_index!(usize => Narrow);

macro_rules! column_index {
    ($($type:ty => $signed:literal),*) => {$(
        impl ColumnIndex for $type {}
        impl sealed::Column for $type {
            fn bits(columns: &[Self]) -> &[u32] {
                bytemuck::cast_slice(columns)
            }

            fn is_negative(bits: u32) -> bool {
                $signed && bits > i32::MAX as u32
            }
        }
    )*};
}
column_index!(u32 => false, i32 => true);

/// Row pointers of 32 or 64 bits, counted from the first of them: one more than there are rows, which never decrease.
#[derive(Clone, Copy, Debug)]
pub struct RowPointers<'a> {
    pointers: Pointers<'a>,
    first: usize,
}

impl<'a> RowPointers<'a> {
    /// `pointers` as they are.
    pub(crate) fn of<P: PointerIndex>(pointers: &'a [P]) -> Self {
        Self { pointers: P::bits(pointers), first: 0 }
    }

    /// Number of pointers.
    fn len(self) -> usize {
        match self.pointers {
            Pointers::Narrow(pointers) => pointers.len(),
            Pointers::Wide(pointers) => pointers.len(),
        }
    }

    /// Pointer `i` as the array has it.
    fn stored(self, i: usize) -> u64 {
        match self.pointers {
            Pointers::Narrow(pointers) => pointers[i].into(),
            Pointers::Wide(pointers) => pointers[i],
        }
    }

    /// Number of rows.
    pub fn rows(self) -> usize {
        self.len() - 1
    }

    /// Where row `i` starts, and where the row before it ends; 0 for the first.
    ///
    /// # Panics
    /// When `i` exceeds the number of rows, as slice indexing does.
    pub fn at(self, i: usize) -> usize {
        self.stored(i) as usize - self.first
    }

    /// The nonzeros of row `i`.
    ///
    /// # Panics
    /// When `i` is not below the number of rows, as slice indexing does.
    pub fn row(self, i: usize) -> Range<usize> {
        self.at(i)..self.at(i + 1)
    }

    /// The pointers of `rows`, counted from their first.
    fn slice(self, rows: Range<usize>) -> Self {
        let first = self.first + self.at(rows.start);
        let pointers = match self.pointers {
            Pointers::Narrow(pointers) => Pointers::Narrow(&pointers[rows.start..=rows.end]),
            Pointers::Wide(pointers) => Pointers::Wide(&pointers[rows.start..=rows.end]),
        };
        Self { pointers, first }
    }

    /// As the kernels read them, for as long as the array is borrowed.
    pub(crate) fn raw(self) -> RowPtr {
        match self.pointers {
            Pointers::Narrow(pointers) => RowPtr::narrow(pointers, self.first),
            Pointers::Wide(pointers) => RowPtr::wide(pointers, self.first),
        }
    }
}

/// Where the nonzeros of a matrix are, in arrays of the caller.
///
/// The invariants are those of [`Pattern`], but for the start: row pointers may begin above 0 and end below the number of
/// column indices, as those of some rows of a larger matrix do. Nonzeros are counted from the first row pointer.
#[derive(Clone, Copy, Debug)]
pub struct PatternRef<'a> {
    rows: usize,
    cols: usize,
    row_ptr: RowPointers<'a>,
    col_idx: &'a [u32],
    /// The pattern of which this is all.
    owner: Option<&'a Arc<Pattern>>,
}

impl<'a> PatternRef<'a> {
    /// The pattern whose row `i` has nonzeros in the columns `col_idx[row_ptr[i]..row_ptr[i + 1]]`.
    ///
    /// One pass over both arrays; nothing is copied.
    ///
    /// # Errors
    /// [`Error::Structure`] naming the first violated invariant and its place: a dimension exceeds u32, row pointers are not
    /// `rows + 1`, are negative, decrease, or go beyond `col_idx`; a column index is negative or not below `cols`, or occurs
    /// twice in a row.
    pub fn new<P: PointerIndex, C: ColumnIndex>(
        rows: usize,
        cols: usize,
        row_ptr: &'a [P],
        col_idx: &'a [C],
    ) -> Result<Self> {
        check_dims("CSR", rows, cols)?;
        Self::located(rows, cols, row_ptr, col_idx).map_err(|violation| Error::structure("CSR", violation.detail))
    }

    /// As [`PatternRef::new`] for dimensions that fit u32; the error knows its place.
    pub(super) fn located<P: PointerIndex, C: ColumnIndex>(
        rows: usize,
        cols: usize,
        row_ptr: &'a [P],
        col_idx: &'a [C],
    ) -> Result<Self, Violation> {
        let fail = |place, detail| Err(Violation { place, detail });
        if row_ptr.len() != rows + 1 {
            return fail(None, format!("{} row pointers for {rows} rows", row_ptr.len()));
        }
        if let Some(i) = row_ptr.iter().position(|&p| p < P::default()) {
            return fail(Some(Place::Pointer(i)), format!("row pointer {i} is negative: {}", row_ptr[i]));
        }
        if let Some(i) = (0..rows).find(|&i| row_ptr[i] > row_ptr[i + 1]) {
            let detail = format!("row {i}: pointers decrease from {} to {}", row_ptr[i], row_ptr[i + 1]);
            return fail(Some(Place::Pointer(i + 1)), detail);
        }
        let row_ptr = RowPointers::of(row_ptr);
        let (first, last) = (row_ptr.stored(0), row_ptr.stored(rows));
        if last > col_idx.len() as u64 {
            let detail = format!("the last row pointer is {last} for {} column indices", col_idx.len());
            return fail(Some(Place::Pointer(rows)), detail);
        }
        let row_ptr = RowPointers { first: first as usize, ..row_ptr };
        let pattern =
            Self { rows, cols, row_ptr, col_idx: &C::bits(col_idx)[first as usize..last as usize], owner: None };
        pattern.check_columns(C::is_negative)?;
        Ok(pattern)
    }

    /// Checks that columns are inside the matrix and occur once in a row; `negative` tells the bits of a negative one.
    fn check_columns(self, negative: impl Fn(u32) -> bool) -> Result<(), Violation> {
        let fail = |row: usize, at: usize, what: String| {
            let place = Some(Place::Column(self.row_ptr.at(row) + at));
            Err(Violation { place, detail: format!("row {row}: {what}") })
        };
        // The columns of a row that does not ascend, sorted, each with its position. Their number is the row's: an array of
        // all columns would be as large as the dimensions claim.
        let mut sorted: Vec<(u32, usize)> = Vec::new();
        for i in 0..self.rows {
            let row = self.row(i);
            if let Some(at) = row.iter().position(|&j| j as usize >= self.cols || negative(j)) {
                let j = row[at];
                return match negative(j) {
                    true => fail(i, at, format!("column index {} is negative", j as i32)),
                    false => fail(i, at, format!("column index {j} is not below {}", self.cols)),
                };
            }
            if row.windows(2).all(|w| w[0] < w[1]) {
                continue;
            }
            sorted.clear();
            sorted.extend(row.iter().copied().zip(0..));
            sorted.sort_unstable();
            let again = sorted.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| pair[1].1).min();
            if let Some(at) = again {
                return fail(i, at, format!("column {} occurs twice", row[at]));
            }
        }
        Ok(())
    }

    /// All of `pattern`.
    pub(super) fn of(pattern: &'a Pattern) -> Self {
        let (row_ptr, col_idx) = (RowPointers::of(pattern.row_ptr()), pattern.col_idx());
        Self { rows: pattern.rows(), cols: pattern.cols(), row_ptr, col_idx, owner: None }
    }

    /// The pattern of arrays that are known to hold what [`PatternRef::new`] asks for, row pointers from 0 to all columns.
    pub(crate) fn from_checked(rows: usize, cols: usize, row_ptr: &'a [usize], col_idx: &'a [u32]) -> Self {
        debug_assert!(Self::located(rows, cols, row_ptr, col_idx).is_ok_and(|own| own.nnz() == col_idx.len()));
        Self { rows, cols, row_ptr: RowPointers::of(row_ptr), col_idx, owner: None }
    }

    /// Number of rows.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(self) -> usize {
        self.cols
    }

    /// Number of nonzeros.
    pub fn nnz(self) -> usize {
        self.col_idx.len()
    }

    /// Where the rows start.
    pub fn row_ptr(self) -> RowPointers<'a> {
        self.row_ptr
    }

    /// Column of each nonzero.
    pub fn col_idx(self) -> &'a [u32] {
        self.col_idx
    }

    /// Columns of the nonzeros of row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`PatternRef::rows`], as slice indexing does.
    pub fn row(self, i: usize) -> &'a [u32] {
        &self.col_idx[self.row_ptr.row(i)]
    }

    /// Rows `rows` as a pattern of their own, without a copy.
    ///
    /// # Errors
    /// [`Error::Argument`] when there are no such rows.
    pub fn row_range(self, rows: Range<usize>) -> Result<Self> {
        check_range(&rows, self.rows)?;
        let nonzeros = self.row_ptr.at(rows.start)..self.row_ptr.at(rows.end);
        let (row_ptr, col_idx) = (self.row_ptr.slice(rows.clone()), &self.col_idx[nonzeros]);
        Ok(Self { rows: rows.len(), row_ptr, col_idx, owner: None, ..self })
    }

    /// The pattern in memory of its own; what is borrowed from an `Arc<Pattern>` is shared and not copied.
    pub fn to_pattern(self) -> Arc<Pattern> {
        let copy = || {
            let row_ptr = collected((0..self.rows + 1).map(|i| self.row_ptr.at(i)));
            Arc::new(Pattern::from_parts(self.rows, self.cols, row_ptr, copied(self.col_idx)))
        };
        self.owner.map_or_else(copy, Arc::clone)
    }
}

impl<'a> From<&'a Arc<Pattern>> for PatternRef<'a> {
    fn from(pattern: &'a Arc<Pattern>) -> Self {
        Self { owner: Some(pattern), ..Self::of(pattern) }
    }
}

impl<'a> From<&'a Pattern> for PatternRef<'a> {
    fn from(pattern: &'a Pattern) -> Self {
        Self::of(pattern)
    }
}

/// A sparse matrix by rows in arrays of the caller.
///
/// Operations take it as they take a [`Csr`], and the direct strategy reads the arrays where they are.
///
/// ```
/// use sparsimd::{Cpu, CsrRef, Mat, MatRef};
/// // As scipy.sparse and PyTorch hold them.
/// let (row_ptr, col_idx, values) = ([0i64, 2, 3], [0i32, 2, 1], [1.0f32, 2.0, 3.0]);
/// let a = CsrRef::new(2, 3, &row_ptr, &col_idx, &values)?;
/// let b = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let mut c = Mat::zeros(2, 2)?;
/// Cpu::new()?.spmm(1.0, a, MatRef::new(&b, 3, 2, 2)?, 0.0, c.as_mut())?;
/// assert_eq!((c.row(0), c.row(1)), (&[11.0, 14.0][..], &[9.0, 12.0][..]));
/// # Ok::<(), sparsimd::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CsrRef<'a, T> {
    pattern: PatternRef<'a>,
    values: &'a [T],
}

impl<'a, T: Copy> CsrRef<'a, T> {
    /// The matrix whose row `i` has the nonzeros `row_ptr[i]..row_ptr[i + 1]` of `col_idx` and `values`.
    ///
    /// # Errors
    /// As [`PatternRef::new`], and when `values` are not as many as column indices.
    pub fn new<P: PointerIndex, C: ColumnIndex>(
        rows: usize,
        cols: usize,
        row_ptr: &'a [P],
        col_idx: &'a [C],
        values: &'a [T],
    ) -> Result<Self> {
        if values.len() != col_idx.len() {
            let detail = format!("{} values for {} column indices", values.len(), col_idx.len());
            return Err(Error::structure("CSR", detail));
        }
        let pattern = PatternRef::new(rows, cols, row_ptr, col_idx)?;
        Ok(Self { pattern, values: &values[pattern.row_ptr.first..][..pattern.nnz()] })
    }

    /// The matrix with `values`, one per nonzero, on `pattern`.
    ///
    /// # Errors
    /// [`Error::Structure`] when the number of values is not the number of nonzeros.
    pub fn on(pattern: impl Into<PatternRef<'a>>, values: &'a [T]) -> Result<Self> {
        let pattern = pattern.into();
        if values.len() != pattern.nnz() {
            let detail = format!("{} values for a pattern of {} nonzeros", values.len(), pattern.nnz());
            return Err(Error::structure("CSR", detail));
        }
        Ok(Self { pattern, values })
    }

    /// The matrix with `values`, as many as there are nonzeros, on `pattern`.
    pub(crate) fn from_parts(pattern: PatternRef<'a>, values: &'a [T]) -> Self {
        Self { pattern, values }
    }

    /// Number of rows.
    pub fn rows(self) -> usize {
        self.pattern.rows
    }

    /// Number of columns.
    pub fn cols(self) -> usize {
        self.pattern.cols
    }

    /// Number of nonzeros.
    pub fn nnz(self) -> usize {
        self.pattern.nnz()
    }

    /// Where the nonzeros are.
    pub fn pattern(self) -> PatternRef<'a> {
        self.pattern
    }

    /// The value of each nonzero.
    pub fn values(self) -> &'a [T] {
        self.values
    }

    /// Rows `rows` as a matrix of their own, without a copy.
    ///
    /// # Errors
    /// As [`PatternRef::row_range`].
    pub fn row_range(self, rows: Range<usize>) -> Result<Self> {
        let pattern = self.pattern.row_range(rows.clone())?;
        let row_ptr = self.pattern.row_ptr;
        Ok(Self { pattern, values: &self.values[row_ptr.at(rows.start)..row_ptr.at(rows.end)] })
    }

    /// The matrix in memory of its own; a pattern that is borrowed from an `Arc<Pattern>` is shared.
    pub fn to_csr(self) -> Csr<T> {
        Csr::from_parts(self.pattern.to_pattern(), copied(self.values))
    }
}

impl<'a, T: Copy> From<&'a Csr<T>> for CsrRef<'a, T> {
    fn from(a: &'a Csr<T>) -> Self {
        Self { pattern: a.pattern().into(), values: a.values() }
    }
}
