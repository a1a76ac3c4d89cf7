//! The order in which the direct path takes the nonzeros of CSR rows.
//!
//! ```text
//! for block of rows                                   ROWS of them
//!     for panel of columns                            all columns at once where rows are sparse
//!         for row in block
//!             the row's nonzeros in the panel
//! ```
//!
//! A panel's rows of B are read once from afar and then, for the other rows of the block, from the nearest caches,
//! where B is too large for them and rows are dense enough to meet again. Nothing is prepared: a cursor per row says
//! how far it is.

use crate::{RowPtr, prefetch_l1, prefetch_row};

/// Rows of a block: each of them reads a panel of B that the first has brought near. 32, 64, 128 rows: 35, 37, 38 % of peak
/// (SpMM, 4096 x 4096, 70 % zeros, N = 128).
pub(crate) const ROWS: usize = 128;

/// Rows ahead at which nonzeros are prefetched: the processor follows one row's, not those of a block's rows in turn.
/// Without it, 31 % of peak instead of 37 %.
const PREFETCH_DISTANCE: usize = 4;

/// Nonzeros ahead at which they are prefetched where they follow each other and rows of B come from afar: the loads of indices and values
/// waited for a tenth of the time (SpMM, SDDMM and FusedMM on amazon_book and ca-CondMat, N = 64 and 128, 4 to 10 % faster on a Zen 4).
pub(crate) const AHEAD: usize = 128;

/// Vectors of dense rows for each nonzero up to which they are not: amazon_book took 1.02 to 1.08 times as long at N = 32.
const FEW: usize = 2;

/// Rows of a CSR pattern in blocks and panels.
pub(crate) struct Walk<T> {
    columns: *const u32,
    /// Values or results, which go along with the columns.
    values: *const T,
    row_ptr: RowPtr,
    nonzeros: [usize; 2],
    /// Columns of a panel, and of the pattern.
    panel: usize,
    cols: usize,
    ahead: bool,
    /// The rows after the block.
    rows: [usize; 2],
    /// The first of all rows.
    first_row: usize,
    /// The block's first row and its number of rows.
    base: usize,
    len: usize,
    /// The next row of the block, and the columns before which its nonzeros are due.
    slot: usize,
    limit: usize,
    first: bool,
    /// What is left of each row.
    left: [[usize; 2]; ROWS],
}

/// Nonzeros of one row in one panel.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub row: usize,
    /// The row's place in its block.
    pub slot: usize,
    pub start: usize,
    pub end: usize,
    /// Whether it is the row's first part; every row has one, be it empty.
    pub first: bool,
    /// Whether it is the row's last part, likewise.
    pub last: bool,
    /// Whether the row is neither the walk's first nor its last, and this is all of it: nothing is carried to or from another task.
    /// With short rows, what is decided for each of them costs as much as its products.
    pub inner: bool,
}

impl<T> Walk<T> {
    /// The nonzeros `nonzeros[0]..nonzeros[1]` of `rows[0]..rows[1]`, in panels of `panel` of the `cols` columns. `values` may be null.
    ///
    /// # Safety
    /// The CSR arrays are valid for the rows as long as the walk is used.
    #[inline(always)]
    pub unsafe fn new(
        row_ptr: RowPtr,
        columns: *const u32,
        values: *const T,
        rows: [usize; 2],
        nonzeros: [usize; 2],
        [panel, cols]: [usize; 2],
    ) -> Self {
        // Where nothing is mapped, a prefetch waits for the page tables (5 % of FusedMM on amazon_book, D = B, Zen 5).
        let values = if values.is_null() { columns.cast() } else { values };
        let left = [[0; 2]; ROWS];
        let (base, len, slot) = (0, 0, 0);
        let (limit, first, ahead, first_row) = (cols, true, false, rows[0]);
        Self {
            columns,
            values,
            row_ptr,
            nonzeros,
            panel,
            cols,
            ahead,
            rows,
            first_row,
            base,
            len,
            slot,
            limit,
            first,
            left,
        }
    }

    /// The same for dense rows of so many vectors for each nonzero, prefetched `distance` nonzeros ahead, 0 for not at all. Nonzeros that
    /// follow each other are prefetched where such rows are, if these are not short.
    #[inline(always)]
    pub fn gathering(mut self, distance: usize, vectors: usize) -> Self {
        self.ahead = prefetches_nonzeros(distance, vectors);
        self
    }

    /// Goes on from row `row`, where one panel has all columns.
    #[inline(always)]
    pub fn skip_to(&mut self, row: usize) {
        self.rows[0] = row;
    }

    /// The next row where one panel has all columns: no block, and nothing to remember.
    #[inline(always)]
    fn next_row(&mut self) -> Option<Part> {
        let [row, past] = self.rows;
        if row == past {
            return None;
        }
        self.rows[0] += 1;
        let inner = row != self.first_row && row + 1 != past;
        // SAFETY: the promise of `new`: it is one of its rows.
        let [start, end] = unsafe { [self.row_ptr.at(row), self.row_ptr.at(row + 1)] };
        let start = start.max(self.nonzeros[0]);
        let end = end.min(self.nonzeros[1]).max(start);
        if self.ahead {
            prefetch_nonzeros(self.columns.wrapping_add(end), self.values.wrapping_add(end));
        }
        Some(Part { row, slot: 0, start, end, first: true, last: true, inner })
    }
}

impl<T> Iterator for Walk<T> {
    type Item = Part;

    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        if self.panel >= self.cols {
            return self.next_row();
        }
        if self.slot == self.len {
            self.slot = 0;
            if self.limit < self.cols {
                self.limit = self.limit.saturating_add(self.panel);
                self.first = false;
            } else {
                self.base = self.rows[0];
                self.len = ROWS.min(self.rows[1] - self.rows[0]);
                if self.len == 0 {
                    return None;
                }
                self.rows[0] += self.len;
                for r in 0..self.len {
                    // SAFETY: the promise of `new`: these are its rows.
                    let [start, end] = unsafe { [self.row_ptr.at(self.base + r), self.row_ptr.at(self.base + r + 1)] };
                    self.left[r] = [start.max(self.nonzeros[0]), end.min(self.nonzeros[1])];
                }
                self.limit = self.panel;
                self.first = true;
            }
        }
        let slot = self.slot;
        self.slot += 1;
        let last = self.limit >= self.cols;
        let [start, end] = self.left[slot];
        let end = end.max(start);
        // SAFETY: the part of the row that is left is inside the arrays.
        let end = if last { end } else { unsafe { below(self.columns, start, end, self.limit) } };
        self.left[slot][0] = end;
        let later = self.left[(slot + PREFETCH_DISTANCE).min(self.len - 1)][0];
        prefetch_row(self.columns.wrapping_add(later), (end - start) * size_of::<u32>() + 64);
        prefetch_row(self.values.wrapping_add(later), (end - start) * size_of::<T>() + 64);
        Some(Part { row: self.base + slot, slot, start, end, first: self.first, last, inner: false })
    }
}

/// The rows of a task between the first and the last: its alone, with all of their nonzeros.
#[inline(always)]
pub(crate) fn inner_rows([first, end]: [usize; 2]) -> [usize; 2] {
    let begin = (first + 1).min(end);
    [begin, begin.max(end.saturating_sub(1))]
}

/// Whether nonzeros that follow each other are prefetched, for dense rows of so many vectors, prefetched `distance` nonzeros ahead.
#[inline(always)]
pub(crate) fn prefetches_nonzeros(distance: usize, vectors: usize) -> bool {
    distance > 0 && vectors > FEW
}

/// Prefetches the nonzeros some time after those that `columns` and `values` point to.
#[inline(always)]
pub(crate) fn prefetch_nonzeros<T>(columns: *const u32, values: *const T) {
    prefetch_l1(columns.wrapping_add(AHEAD));
    prefetch_l1(values.wrapping_add(AHEAD));
}

/// The first of the nonzeros from `start` to `end` whose column is not below `limit`, looked for four at a time.
///
/// Where columns do not ascend, some that are not below may be passed over and some that are may stay behind: they are
/// taken in another panel, which is as correct.
///
/// # Safety
/// `columns` is valid for reads from `start` to `end`.
#[inline(always)]
unsafe fn below(columns: *const u32, start: usize, end: usize, limit: usize) -> usize {
    let mut p = start;
    // SAFETY: p stays below `end`.
    unsafe {
        while p + 4 <= end && (*columns.add(p + 3) as usize) < limit {
            p += 4;
        }
        while p < end && (*columns.add(p) as usize) < limit {
            p += 1;
        }
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nonzero_once_in_blocks_and_panels() {
        // 150 rows of 0 to 6 nonzeros, columns not sorted, the task beginning and ending inside rows.
        let lens: Vec<usize> = (0..150).map(|i| i % 7).collect();
        let mut row_ptr = vec![0];
        lens.iter().for_each(|len| row_ptr.push(row_ptr[row_ptr.len() - 1] + len));
        let nnz = row_ptr[150];
        let columns: Vec<u32> = (0..nnz as u32).map(|p| p * 37 % 100).collect();
        let wide: Vec<u64> = row_ptr.iter().map(|&p| p as u64).collect();
        // Of rows inside a larger matrix.
        let narrow: Vec<u32> = row_ptr.iter().map(|&p| p as u32 + 1000).collect();
        let widths = [RowPtr::wide(&wide, 0), RowPtr::narrow(&narrow, 1000)];
        for (panel, starts) in [1, 8, 33, 100, usize::MAX].into_iter().flat_map(|panel| widths.map(|w| (panel, w))) {
            let nonzeros = [2, nnz - 3];
            let columns = columns.as_ptr();
            // SAFETY: the arrays are those of 150 rows.
            let walk = unsafe { Walk::<f32>::new(starts, columns, std::ptr::null(), [0, 150], nonzeros, [panel, 100]) };
            let mut seen = vec![0; nnz];
            let (mut firsts, mut lasts) = (vec![0; 150], vec![0; 150]);
            for part in walk.gathering(1, 8) {
                assert!(part.start == part.end || (row_ptr[part.row]..row_ptr[part.row + 1]).contains(&part.start));
                assert!(!part.inner || part.first && part.last && (1..149).contains(&part.row));
                assert!(part.slot < ROWS && firsts[part.row] == usize::from(!part.first) && lasts[part.row] == 0);
                firsts[part.row] += usize::from(part.first);
                lasts[part.row] += usize::from(part.last);
                seen[part.start..part.end].iter_mut().for_each(|n| *n += 1);
            }
            assert!(seen.iter().enumerate().all(|(p, &n)| n == usize::from((2..nnz - 3).contains(&p))), "{panel}");
            assert_eq!((firsts, lasts), (vec![1; 150], vec![1; 150]));
        }
    }
}
