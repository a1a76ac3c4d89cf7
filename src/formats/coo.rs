//! Coordinate format of a matrix: the hub that files are read into and every other format is made from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use sparsimd_kernels::Scalar;

use super::csr::{Csr, Pattern};
use super::transpose::places;
use super::{ColumnIndex, check_dims};
use crate::cut;
use crate::error::{Error, Result};
use crate::memory::{self, copied, reserved};
use crate::parallel::{self, GRAIN, Slots};

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

    /// The matrix of arrays that are known to be valid.
    pub(crate) fn from_checked(rows: usize, cols: usize, row_idx: Vec<u32>, col_idx: Vec<u32>, values: Vec<T>) -> Self {
        debug_assert!(CooRef::new(rows, cols, &row_idx, &col_idx, &values).is_ok());
        Self { rows, cols, row_idx, col_idx, values }
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

    /// The same matrix by rows in the memory of the entries, if they come by rows with columns ascending; else, or where there is no
    /// memory for the row pointers, the entries again.
    pub(crate) fn into_csr(self) -> Result<Csr<T>, Self> {
        let place = |p: usize| (self.row_idx[p], self.col_idx[p]);
        if !parallel::all(self.nnz().saturating_sub(1), |p| place(p) < place(p + 1)) {
            return Err(self);
        }
        let Ok(mut row_ptr) = memory::zeros("CSR", self.rows + 1) else { return Err(self) };
        parallel::chunks_mut(&mut row_ptr, GRAIN, |k, starts| {
            let mut p = self.row_idx.partition_point(|&row| (row as usize) < k * GRAIN);
            for (i, start) in (k * GRAIN..).zip(starts) {
                p += self.row_idx[p..].iter().take_while(|&&row| (row as usize) < i).count();
                *start = p;
            }
        });
        // Indices were checked when the matrix was made, and no place comes twice among those that ascend.
        let pattern = Pattern::from_parts(self.rows, self.cols, row_ptr, self.col_idx);
        Ok(Csr::from_parts(Arc::new(pattern), self.values))
    }

    /// Two entries at the same place, as positions in storage order: of all that come again, the first one, and the one
    /// that it repeats.
    pub fn first_repeated(&self) -> Option<(usize, usize)> {
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

    /// The same matrix by rows, columns ascending inside a row, on the threads of the current rayon pool: a stable counting sort by
    /// row, unless the entries come by rows, then a sort of each row whose columns do not ascend.
    ///
    /// # Errors
    /// [`Error::Structure`] when two entries have the same place; [`Error::Memory`].
    #[inline(never)]
    pub fn to_csr(&self) -> Result<Csr<T>> {
        let nnz = self.values.len();
        let parts = parallel::threads().min(nnz / self.rows.max(1)).max(1);
        let counters = memory::total(&[(self.rows, parts * size_of::<usize>())]);
        let arrays = [(self.rows + 1, size_of::<usize>()), (nnz, size_of::<u32>() + size_of::<T>()), (counters, 1)];
        memory::ensure("CSR", memory::total(&arrays))?;
        let by_rows = parallel::all(nnz.saturating_sub(1), |p| self.row_idx[p] <= self.row_idx[p + 1]);
        let (row_ptr, mut col_idx, mut values) =
            if by_rows { self.copied_by_rows() } else { self.sorted_by_rows(parts) };
        let pattern = match sort_rows(&row_ptr, &mut col_idx, &mut values) {
            // Indices were checked when the view was made.
            true => Arc::new(Pattern::from_parts(self.rows, self.cols, row_ptr, col_idx)),
            false => Pattern::new(self.rows, self.cols, row_ptr, col_idx)?,
        };
        Csr::new(pattern, values)
    }

    /// Entries that come by rows.
    fn copied_by_rows(&self) -> (Vec<usize>, Vec<u32>, Vec<T>) {
        let (row_ptr, _) = places(1, self.rows, |_| self.row_idx);
        let chunks = self.values.len().div_ceil(GRAIN);
        let (mut col_idx, mut values) = (reserved(self.values.len()), reserved(self.values.len()));
        let range = |k: usize| k * GRAIN..self.values.len().min((k + 1) * GRAIN);
        parallel::extend_from_parts(&mut col_idx, chunks, |k| &self.col_idx[range(k)]);
        parallel::extend_from_parts(&mut values, chunks, |k| &self.values[range(k)]);
        (row_ptr, col_idx, values)
    }

    /// Entries in any order, by rows; those of a row in storage order.
    fn sorted_by_rows(&self, parts: usize) -> (Vec<usize>, Vec<u32>, Vec<T>) {
        let nnz = self.values.len();
        let range = |t: usize| cut::share(nnz, t, parts)..cut::share(nnz, t + 1, parts);
        let (row_ptr, mut next) = places(parts, self.rows, |t| &self.row_idx[range(t)]);
        let (mut col_idx, mut values) = (reserved::<u32>(nnz), reserved::<T>(nnz));
        let (columns_at, values_at) = (Slots::of(&mut col_idx), Slots::of(&mut values));
        parallel::chunks_mut(&mut next, 1, |t, next| {
            for p in range(t) {
                let place = &mut next[0][self.row_idx[p] as usize];
                // SAFETY: the places of all (row, part) pairs are disjoint runs, together 0..nnz, each as long as the number of
                // entries that were counted in the same part.
                unsafe {
                    columns_at.write(*place, self.col_idx[p]);
                    values_at.write(*place, self.values[p]);
                }
                *place += 1;
            }
        });
        // SAFETY: every place below nnz, the capacity asked for, has been written.
        unsafe {
            col_idx.set_len(nnz);
            values.set_len(nnz);
        }
        (row_ptr, col_idx, values)
    }
}

/// Sorts the entries of each row whose columns do not ascend, equal columns in the order they have; whether none are equal.
fn sort_rows<T: Scalar>(row_ptr: &[usize], col_idx: &mut [u32], values: &mut [T]) -> bool {
    let repeated = AtomicBool::new(false);
    let parts = cut::ranges(row_ptr.len() - 1, values.len().div_ceil(GRAIN).max(1), |i| row_ptr[i]);
    let mut rest = (col_idx, values);
    let jobs = parts.into_iter().map(|rows| {
        let len = row_ptr[rows.end] - row_ptr[rows.start];
        let (columns, values) = std::mem::take(&mut rest);
        let ((columns, more_columns), (values, more_values)) = (columns.split_at_mut(len), values.split_at_mut(len));
        rest = (more_columns, more_values);
        (rows, columns, values)
    });
    let jobs: Vec<_> = jobs.collect();
    parallel::consume(jobs, |(rows, columns, values)| {
        let mut sorted: Vec<(u32, T)> = Vec::new();
        for i in rows.clone() {
            let range = row_ptr[i] - row_ptr[rows.start]..row_ptr[i + 1] - row_ptr[rows.start];
            let (columns, values) = (&mut columns[range.clone()], &mut values[range]);
            if columns.is_sorted_by(|a, b| a < b) {
                continue;
            }
            sorted.clear();
            sorted.extend(columns.iter().copied().zip(values.iter().copied()));
            sorted.sort_by_key(|&(column, _)| column);
            for ((column, value), &(j, x)) in columns.iter_mut().zip(values).zip(&sorted) {
                (*column, *value) = (j, x);
            }
            if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                repeated.store(true, Relaxed);
            }
        }
    });
    !repeated.into_inner()
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
        let mut row_idx = reserved(pattern.nnz());
        for i in 0..pattern.rows() {
            row_idx.resize(pattern.row_ptr()[i + 1], i as u32);
        }
        Self {
            rows: pattern.rows(),
            cols: pattern.cols(),
            row_idx,
            col_idx: copied(pattern.col_idx()),
            values: copied(a.values()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries in the order of `key`, a permutation of the places p = 0, 7, 14, ... of a matrix.
    fn entries(rows: usize, cols: usize, key: impl Fn(usize) -> usize) -> Coo<f64> {
        let mut places: Vec<usize> = (0..rows * cols).step_by(7).collect();
        places.sort_by_key(|&p| key(p));
        let split = |f: &dyn Fn(usize) -> usize| places.iter().map(|&p| f(p) as u32).collect();
        let values = places.iter().map(|&p| p as f64).collect();
        Coo::new(rows, cols, split(&|p| p / cols), split(&|p| p % cols), values).unwrap()
    }

    #[test]
    fn entries_in_any_order_make_the_same_rows_on_any_number_of_threads() {
        for (rows, cols) in [(900, 700), (1, 200_000), (200_000, 1), (0, 4), (3, 0), (1, 1)] {
            let by_rows = entries(rows, cols, |p| p);
            let want = by_rows.to_csr().unwrap();
            assert_eq!(want.nnz(), (rows * cols).div_ceil(7));
            for i in 0..rows {
                let row = want.pattern().row(i);
                assert!(row.windows(2).all(|pair| pair[0] < pair[1]), "row {i}");
                let range = want.pattern().row_ptr()[i]..want.pattern().row_ptr()[i + 1];
                let places = row.iter().map(|&j| (i * cols + j as usize) as f64);
                assert!(places.eq(want.values()[range].iter().copied()), "row {i}");
            }
            let by_columns = entries(rows, cols, |p| p % cols.max(1) * rows + p / cols.max(1));
            let scattered = entries(rows, cols, |p| p.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                for coo in [&by_rows, &by_columns, &scattered] {
                    assert_eq!(pool.install(|| coo.to_csr()).unwrap(), want, "{rows} x {cols}, {threads} threads");
                }
                assert_eq!(pool.install(|| by_rows.clone().into_csr()).unwrap(), want, "{rows} x {cols}");
            }
            let ascend = cols < 2 || rows < 2;
            assert_eq!(by_columns.clone().into_csr(), if ascend { Ok(want) } else { Err(by_columns) });
        }
        let twice = Coo::new(2, 3, vec![1, 0, 1], vec![2, 0, 2], vec![1.0, 2.0, 3.0]).unwrap();
        assert!(matches!(twice.to_csr(), Err(Error::Structure { .. })));
        let twice = Coo::new(2, 3, vec![0, 1, 1], vec![0, 2, 2], vec![2.0, 1.0, 3.0]).unwrap();
        assert_eq!(twice.clone().into_csr(), Err(twice));
    }
}
