//! Panel format: the nonzeros of a CSR pattern re-laid in row blocks x column panels.
//!
//! A *block* is one row block crossed with one panel of columns; a *row segment* is one row's nonzeros in a block.
//! While the panel of B is in L1, all the row segments of the block pass over it. Column offsets inside a panel take 8
//! bits, are padded to whole words of 8 per row segment, and are kept apart from the values, so that new values are one
//! copy. The row segments of a block are ordered by their number of nonzeros: trip counts that change from row to row
//! cost a branch miss per row segment. Rows with equally many may be visited two at a time, so that what they have in
//! common is loaded once.

use std::mem::MaybeUninit;
use std::ops::Range;

use sparsimd_kernels::{Arch, prefetch_row};

use super::csr::Pattern;
use super::places::gather;
use super::row_block::RowBlock;
use crate::parallel;

/// Rows that one task looks at or sorts.
const ROWS_PER_TASK: usize = 256;

/// Widest panel that 8-bit offsets can address.
pub const MAX_WIDTH: usize = 256;

/// The nonzeros of a pattern in row blocks x column panels.
#[derive(Clone, Debug)]
pub struct Panel {
    rows: usize,
    cols: usize,
    width: usize,
    row_blocks: Vec<RowBlock>,
    /// For patterns with unsorted rows: the position in CSR order of each nonzero in row-sorted order.
    unsorted: Option<Vec<usize>>,
}

impl Panel {
    /// `pattern` in panels of `width` columns (at most [`MAX_WIDTH`]) and row blocks of the rows between the `bounds`,
    /// which ascend from 0 to the number of rows; rows are paired where there is a `pairing`, which does the search.
    /// Runs on the current rayon pool.
    pub(crate) fn new(pattern: &Pattern, width: usize, bounds: &[usize], pairing: Option<Arch>) -> Self {
        debug_assert!((1..=MAX_WIDTH).contains(&width));
        let unsorted = sort_rows(pattern);
        let sorted: Option<Vec<u32>> = unsorted.as_ref().map(|order| gather(pattern.col_idx(), order));
        let columns = sorted.as_deref().unwrap_or(pattern.col_idx());
        let row_block = |b: usize| {
            RowBlock::new(bounds[b]..bounds[b + 1], pattern.row_ptr(), columns, [width, pattern.cols()], pairing)
        };
        let row_blocks = parallel::map_tasks(bounds.len().saturating_sub(1), row_block);
        Self { rows: pattern.rows(), cols: pattern.cols(), width, row_blocks, unsorted }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.row_blocks.iter().map(|row_block| row_block.nnz).sum()
    }

    /// Number of row segments: rows times the panels in which they have nonzeros.
    pub fn segments(&self) -> usize {
        self.row_blocks.iter().map(RowBlock::segments).sum()
    }

    /// Share of the nonzeros that are taken together with one of another row, in the same column.
    pub fn shared(&self) -> f64 {
        let shared: usize = self.row_blocks.iter().map(RowBlock::shared).sum();
        shared as f64 / self.nnz().max(1) as f64
    }

    /// Bytes of indices: offsets, pairs, row segments and their starts, blocks.
    pub fn index_bytes(&self) -> usize {
        self.row_blocks.iter().map(RowBlock::index_bytes).sum::<usize>()
            + self.unsorted.as_ref().map_or(0, |order| order.len() * size_of::<usize>())
    }

    /// Where the arrays of each row block are.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.row_blocks.iter().flat_map(RowBlock::memory)
    }

    /// The row blocks.
    pub(crate) fn row_blocks(&self) -> &[RowBlock] {
        &self.row_blocks
    }

    /// For patterns with unsorted rows: the position in CSR order of each nonzero in row-sorted order.
    pub(crate) fn unsorted(&self) -> Option<&[usize]> {
        self.unsorted.as_deref()
    }

    /// Writes `values`, one per nonzero in CSR order, in panel order to `out`, which is as long: every element of it.
    /// Runs on the current rayon pool.
    pub(crate) fn arrange<T: Copy + Send + Sync>(&self, values: &[T], out: &mut [MaybeUninit<T>]) {
        let mut parts = Vec::with_capacity(self.row_blocks.len());
        let mut rest = out;
        for row_block in &self.row_blocks {
            let (part, after) = rest.split_at_mut(row_block.nnz);
            parts.push((row_block, part));
            rest = after;
        }
        assert!(rest.is_empty(), "the row_blocks have all nonzeros");
        parallel::consume(parts, |(row_block, part): (&RowBlock, _)| match &self.unsorted {
            None => {
                let ask = |p, n| prefetch_row(&raw const values[p], n * size_of::<T>());
                row_block.arrange(part, |p| values[p], ask);
            }
            Some(order) => {
                let ask = |p, n| prefetch_row(&raw const order[p], n * size_of::<usize>());
                row_block.arrange(part, |p| values[order[p]], ask);
            }
        });
    }
}

/// For each row its nonzeros by ascending column, as positions in CSR order; `None` when they already are.
fn sort_rows(pattern: &Pattern) -> Option<Vec<usize>> {
    // Without a branch for each nonzero, so that it is done by vectors.
    let sorted = |i: usize| pattern.row(i).windows(2).fold(true, |sorted, w| sorted & (w[0] < w[1]));
    let all_sorted = |t: usize| (t * ROWS_PER_TASK..pattern.rows().min((t + 1) * ROWS_PER_TASK)).all(sorted);
    if parallel::map_tasks(pattern.rows().div_ceil(ROWS_PER_TASK), all_sorted).into_iter().all(|sorted| sorted) {
        return None;
    }
    let mut order: Vec<usize> = (0..pattern.nnz()).collect();
    let mut rest = &mut order[..];
    let mut rows = Vec::with_capacity(pattern.rows());
    for w in pattern.row_ptr().windows(2) {
        let (row, after) = rest.split_at_mut(w[1] - w[0]);
        rows.push(row);
        rest = after;
    }
    parallel::chunks_mut(&mut rows, ROWS_PER_TASK, |_, rows| {
        rows.iter_mut().for_each(|row| row.sort_unstable_by_key(|&p| pattern.col_idx()[p]));
    });
    Some(order)
}
