//! Panel format: the nonzeros of a CSR pattern re-laid in row blocks x column panels.
//!
//! A *cell* is one row block crossed with one panel of columns; a *visit* is one row's nonzeros in a cell. While the
//! panel of B is in L1, all the visits of the cell pass over it. Column offsets inside a panel take 8 bits, are padded to
//! whole words of 8 per visit, and are kept apart from the values, so that new values are one copy. The visits of a cell
//! are ordered by their number of nonzeros: trip counts that change from row to row cost a branch miss per visit.

use std::ops::Range;

use rayon::prelude::*;
use sparsimd_kernels::{Cell, Scalar, Visit};

use super::csr::Pattern;
use crate::machine::addresses;

/// Widest panel that 8-bit offsets can address.
pub const MAX_WIDTH: usize = 256;

/// Offsets of one word in the kernels.
const CHUNK: usize = 8;

/// The nonzeros of a pattern in row blocks x column panels.
#[derive(Clone, Debug)]
pub struct Panel {
    rows: usize,
    cols: usize,
    width: usize,
    blocks: Vec<Block>,
    /// For patterns with unsorted rows: the position in CSR order of each nonzero in row-sorted order.
    unsorted: Option<Vec<usize>>,
}

/// One row block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// Its rows.
    pub rows: Range<usize>,
    /// Position of its first nonzero in the panel order of the whole matrix (and, rows being whole, in CSR order).
    pub first: usize,
    cells: Vec<CellSpan>,
    visits: Vec<Visit>,
    starts: Vec<usize>,
    offsets: Vec<u8>,
}

/// Where a cell's parts begin in the block's arrays.
#[derive(Clone, Copy, Debug)]
struct CellSpan {
    panel: usize,
    visits: usize,
    offsets: usize,
    nonzeros: usize,
}

/// One cell, as the kernels take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellView<'a> {
    /// First column of the panel.
    pub column: usize,
    /// Columns of the panel.
    pub width: usize,
    /// Position of the cell's first nonzero in the panel order of the whole matrix.
    pub first: usize,
    /// Number of nonzeros.
    pub nnz: usize,
    /// Position of each visit's first nonzero in row-sorted CSR order.
    pub starts: &'a [usize],
    /// Visits and offsets.
    pub cell: Cell<'a>,
}

impl Panel {
    /// `pattern` in panels of `width` columns (at most [`MAX_WIDTH`]) and blocks of the rows between the `bounds`, which
    /// ascend from 0 to the number of rows. Runs on the current rayon pool.
    pub(crate) fn new(pattern: &Pattern, width: usize, bounds: &[usize]) -> Self {
        debug_assert!((1..=MAX_WIDTH).contains(&width));
        let unsorted = sort_rows(pattern);
        let sorted: Option<Vec<u32>> =
            unsorted.as_ref().map(|order| order.par_iter().map(|&p| pattern.col_idx()[p]).collect());
        let columns = sorted.as_deref().unwrap_or(pattern.col_idx());
        let blocks = bounds
            .par_windows(2)
            .with_max_len(1)
            .map(|w| Block::new(w[0]..w[1], pattern.row_ptr(), columns, width))
            .collect();
        Self { rows: pattern.rows(), cols: pattern.cols(), width, blocks, unsorted }
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

    /// Number of visits: rows times the panels in which they have nonzeros.
    pub fn visits(&self) -> usize {
        self.blocks.iter().map(|block| block.visits.len()).sum()
    }

    /// Bytes of indices: offsets, visits and their starts, cells.
    pub fn index_bytes(&self) -> usize {
        let block = |b: &Block| {
            b.offsets.len()
                + b.visits.len() * (size_of::<Visit>() + size_of::<usize>())
                + b.cells.len() * size_of::<CellSpan>()
        };
        self.blocks.iter().map(block).sum::<usize>()
            + self.unsorted.as_ref().map_or(0, |order| order.len() * size_of::<usize>())
    }

    /// Where the arrays of each block are.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let block = |b: &Block| [addresses(&b.visits), addresses(&b.starts), addresses(&b.offsets)];
        self.blocks.iter().flat_map(block)
    }

    /// The row blocks.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// For patterns with unsorted rows: the position in CSR order of each nonzero in row-sorted order.
    pub(crate) fn unsorted(&self) -> Option<&[usize]> {
        self.unsorted.as_deref()
    }

    /// `values`, one per nonzero in CSR order, in panel order. Runs on the current rayon pool.
    pub(crate) fn arrange<T: Scalar>(&self, values: &[T], out: &mut [T]) {
        let mut parts: Vec<(&Block, &mut [T])> = Vec::with_capacity(self.blocks.len());
        let mut rest = out;
        for (i, block) in self.blocks.iter().enumerate() {
            let end = self.blocks.get(i + 1).map_or(values.len(), |next| next.first);
            let (part, after) = rest.split_at_mut(end - block.first);
            parts.push((block, part));
            rest = after;
        }
        parts.into_par_iter().with_max_len(1).for_each(|(block, mut part)| {
            for (visit, &start) in block.visits.iter().zip(&block.starts) {
                let (here, after) = part.split_at_mut(visit.nnz as usize);
                match &self.unsorted {
                    None => here.copy_from_slice(&values[start..start + visit.nnz as usize]),
                    Some(order) => here.iter_mut().zip(&order[start..]).for_each(|(x, &p)| *x = values[p]),
                }
                part = after;
            }
        });
    }
}

/// For each row its nonzeros by ascending column, as positions in CSR order; `None` when they already are.
fn sort_rows(pattern: &Pattern) -> Option<Vec<usize>> {
    let sorted = |i: usize| pattern.row(i).windows(2).all(|w| w[0] < w[1]);
    if (0..pattern.rows()).into_par_iter().with_min_len(1024).all(sorted) {
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
    rows.into_par_iter().with_min_len(64).for_each(|row| row.sort_unstable_by_key(|&p| pattern.col_idx()[p]));
    Some(order)
}

/// A row's nonzeros in a panel, before the visits are ordered.
#[derive(Clone, Copy, Default)]
struct Found {
    panel: u32,
    nnz: u32,
    row: u32,
    start: usize,
}

/// `items` by ascending key below `bound`, equal keys in their order.
fn counting_sort(items: &[Found], bound: usize, key: impl Fn(&Found) -> usize) -> Vec<Found> {
    let mut next = vec![0usize; bound + 1];
    items.iter().for_each(|item| next[key(item) + 1] += 1);
    for k in 0..bound {
        next[k + 1] += next[k];
    }
    let mut sorted = vec![Found::default(); items.len()];
    for item in items {
        let slot = &mut next[key(item)];
        sorted[*slot] = *item;
        *slot += 1;
    }
    sorted
}

impl Block {
    /// The block of `rows`, columns ascending in each row.
    fn new(rows: Range<usize>, row_ptr: &[usize], columns: &[u32], width: usize) -> Self {
        let width = width as u32;
        let mut visits: Vec<Found> = Vec::new();
        for i in rows.clone() {
            let mut start = row_ptr[i];
            while start < row_ptr[i + 1] {
                let panel = columns[start] / width;
                let limit = (u64::from(panel) + 1) * u64::from(width);
                let row_rest = &columns[start..row_ptr[i + 1]];
                // A panel is at most 256 columns wide: a short scan, not a search.
                let nnz = row_rest.iter().take_while(|&&j| u64::from(j) < limit).count();
                visits.push(Found { panel, nnz: nnz as u32, row: (i - rows.start) as u32, start });
                start += nnz;
            }
        }
        // By panel, then by number of nonzeros: two stable counting sorts, the less significant key first.
        let panels = visits.iter().map(|v| v.panel + 1).max().unwrap_or(0);
        visits = counting_sort(&visits, MAX_WIDTH + 1, |v| v.nnz as usize);
        visits = counting_sort(&visits, panels as usize, |v| v.panel as usize);
        let mut block = Self { first: row_ptr[rows.start], rows, ..Self::default() };
        let padded = |nnz: u32| (nnz as usize).next_multiple_of(CHUNK);
        block.offsets.reserve_exact(visits.iter().map(|v| padded(v.nnz)).sum::<usize>() + 2 * CHUNK);
        block.visits.reserve_exact(visits.len());
        block.starts.reserve_exact(visits.len());
        let mut nonzeros = 0;
        let mut last_panel = u32::MAX;
        for Found { panel, nnz, row, start } in visits {
            if panel != last_panel || block.cells.is_empty() {
                let (visits, offsets) = (block.visits.len(), block.offsets.len());
                block.cells.push(CellSpan { panel: panel as usize, visits, offsets, nonzeros });
                last_panel = panel;
            }
            block.visits.push(Visit { row, nnz });
            block.starts.push(start);
            let base = panel * width;
            block.offsets.extend(columns[start..start + nnz as usize].iter().map(|&j| (j - base) as u8));
            block.offsets.resize(block.offsets.len().next_multiple_of(CHUNK), 0);
            nonzeros += nnz as usize;
        }
        // The kernels read two words ahead.
        block.offsets.resize(block.offsets.len() + 2 * CHUNK, 0);
        block
    }

    /// The cells with nonzeros, by ascending panel.
    pub(crate) fn cells<'a>(&'a self, panel: &'a Panel) -> impl Iterator<Item = CellView<'a>> + 'a {
        (0..self.cells.len()).map(move |c| {
            let span = self.cells[c];
            let (end, end_nonzeros) = match self.cells.get(c + 1) {
                Some(next) => (next.visits, next.nonzeros),
                None => (self.visits.len(), self.nonzeros()),
            };
            let column = span.panel * panel.width;
            CellView {
                column,
                width: panel.width.min(panel.cols - column),
                first: self.first + span.nonzeros,
                nnz: end_nonzeros - span.nonzeros,
                starts: &self.starts[span.visits..end],
                cell: Cell { visits: &self.visits[span.visits..end], offsets: &self.offsets[span.offsets..] },
            }
        })
    }

    /// Number of nonzeros.
    fn nonzeros(&self) -> usize {
        self.visits.iter().map(|visit| visit.nnz as usize).sum()
    }
}
