//! Coordinate format of a matrix: the hub that files are read into and every other format is made from.

use sparsimd_kernels::Scalar;

use super::csr::{Csr, Pattern};
use super::{ColumnIndex, check_dims};
use crate::error::{Error, Result};
use crate::memory;

/// A sparse matrix as a list of `(row, column, value)`; any order, no duplicates required.
#[derive(Clone, Debug, PartialEq)]
pub struct Coo<T> {
    rows: usize,
    cols: usize,
    row_idx: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<T>,
}

impl<T: Scalar> Coo<T> {
    /// The matrix with `values[p]` at row `row_idx[p]`, column `col_idx[p]`.
    ///
    /// # Errors
    /// [`Error::Structure`] when a dimension exceeds u32, the arrays differ in length, or an index is out of range.
    pub fn new(rows: usize, cols: usize, row_idx: Vec<u32>, col_idx: Vec<u32>, values: Vec<T>) -> Result<Self> {
        CooRef::new(rows, cols, &row_idx, &col_idx, &values)?;
        Ok(Self { rows, cols, row_idx, col_idx, values })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// Row index of each entry.
    pub fn row_idx(&self) -> &[u32] {
        &self.row_idx
    }

    /// Column index of each entry.
    pub fn col_idx(&self) -> &[u32] {
        &self.col_idx
    }

    /// Value of each entry.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// A view of the whole matrix.
    pub fn as_ref(&self) -> CooRef<'_, T> {
        let Self { rows, cols, row_idx, col_idx, values } = self;
        CooRef { rows: *rows, cols: *cols, row_idx, col_idx, values }
    }

    /// As [`CooRef::to_csr`].
    ///
    /// # Errors
    /// As [`CooRef::to_csr`].
    #[inline(never)]
    pub fn to_csr(&self) -> Result<Csr<T>> {
        self.as_ref().to_csr()
    }

    /// Two entries at the same place, as positions in storage order: of all that come again, the first one, and the one
    /// that it repeats.
    pub(crate) fn first_repeated(&self) -> Option<(usize, usize)> {
        let place = |p: usize| (self.row_idx[p], self.col_idx[p]);
        let mut order: Vec<usize> = (0..self.nnz()).collect();
        order.sort_unstable_by_key(|&p| (place(p), p));
        let repeated = order.windows(2).filter(|pair| place(pair[0]) == place(pair[1]));
        repeated.map(|pair| (pair[0], pair[1])).min_by_key(|(_, again)| *again)
    }
}

/// A sparse matrix as a list of `(row, column, value)` in arrays of the caller, with indices of u32 or i32.
#[derive(Clone, Copy, Debug)]
pub struct CooRef<'a, T> {
    rows: usize,
    cols: usize,
    row_idx: &'a [u32],
    col_idx: &'a [u32],
    values: &'a [T],
}

impl<'a, T: Scalar> CooRef<'a, T> {
    /// The matrix with `values[p]` at row `row_idx[p]`, column `col_idx[p]`.
    ///
    /// # Errors
    /// [`Error::Structure`] when a dimension exceeds u32, the arrays differ in length, or an index is negative or out of range.
    pub fn new<I: ColumnIndex>(
        rows: usize,
        cols: usize,
        row_idx: &'a [I],
        col_idx: &'a [I],
        values: &'a [T],
    ) -> Result<Self> {
        check_dims("COO", rows, cols)?;
        if row_idx.len() != values.len() || col_idx.len() != values.len() {
            let lens = (row_idx.len(), col_idx.len(), values.len());
            let detail = format!("{} row indices, {} column indices and {} values", lens.0, lens.1, lens.2);
            return Err(Error::structure("COO", detail));
        }
        let (row_idx, col_idx) = (I::bits(row_idx), I::bits(col_idx));
        for (name, indices, bound) in [("row", row_idx, rows), ("column", col_idx, cols)] {
            if let Some(p) = indices.iter().position(|&i| i as usize >= bound || I::is_negative(i)) {
                let i = indices[p];
                return Err(Error::structure(
                    "COO",
                    match I::is_negative(i) {
                        true => format!("entry {p}: {name} index {} is negative", i as i32),
                        false => format!("entry {p}: {name} index {i} is not below {bound}"),
                    },
                ));
            }
        }
        Ok(Self { rows, cols, row_idx, col_idx, values })
    }

    /// The same matrix by rows, columns ascending inside a row (a stable counting sort by column, then by row).
    ///
    /// # Errors
    /// [`Error::Structure`] when two entries have the same place; [`Error::Memory`].
    #[inline(never)]
    pub fn to_csr(&self) -> Result<Csr<T>> {
        let (lines, nnz) = (self.rows + self.cols + 2, self.values.len());
        let each = 2 * size_of::<usize>() + size_of::<u32>() + size_of::<T>();
        memory::ensure("CSR", memory::total(&[(lines, 2 * size_of::<usize>()), (nnz, each)]))?;
        let (_, by_col) = counting_sort(self.col_idx, self.cols, None);
        let (row_ptr, order) = counting_sort(self.row_idx, self.rows, Some(&by_col));
        let col_idx = order.iter().map(|&p| self.col_idx[p]).collect();
        let pattern = Pattern::new(self.rows, self.cols, row_ptr, col_idx)?;
        Csr::new(pattern, order.iter().map(|&p| self.values[p]).collect())
    }
}

/// Pointers to the start of each key's run, and the entries in key order; entries are visited in the order `first`.
pub(crate) fn counting_sort(keys: &[u32], bound: usize, first: Option<&[usize]>) -> (Vec<usize>, Vec<usize>) {
    let mut ptr = vec![0usize; bound + 1];
    for &k in keys {
        ptr[k as usize + 1] += 1;
    }
    for i in 0..bound {
        ptr[i + 1] += ptr[i];
    }
    let mut next = ptr.clone();
    let mut order = vec![0usize; keys.len()];
    let mut place = |p: usize| {
        let slot = &mut next[keys[p] as usize];
        order[*slot] = p;
        *slot += 1;
    };
    match first {
        Some(first) => first.iter().for_each(|&p| place(p)),
        None => (0..keys.len()).for_each(&mut place),
    }
    (ptr, order)
}

impl<T: Scalar> From<&Csr<T>> for Coo<T> {
    fn from(a: &Csr<T>) -> Self {
        let pattern = a.pattern();
        let mut row_idx = Vec::with_capacity(pattern.nnz());
        for i in 0..pattern.rows() {
            row_idx.resize(pattern.row_ptr()[i + 1], i as u32);
        }
        Self {
            rows: pattern.rows(),
            cols: pattern.cols(),
            row_idx,
            col_idx: pattern.col_idx().to_vec(),
            values: a.values().to_vec(),
        }
    }
}
