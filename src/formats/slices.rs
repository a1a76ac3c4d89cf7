//! The format of SpMM with one column: slices of rows that are computed together.
//!
//! ```text
//! for each as many rows that follow each other as a slice has
//!     diagonals with a nonzero in more than half of the rows become runs, one load of b each
//!     rows whose slice costs no more than their share of sorted ones stay together
//! the other rows of the block, the longest first
//!     a row that costs more in a slice than all the slice's rows straight from CSR is left to that
//!     else it and those after it are a slice, which lists its rows
//! ```
//!
//! SELL-C-sigma, with the block of rows as sigma; runs are what bands, stencils and finite elements consist of.

use std::mem::MaybeUninit;
use std::ops::Range;

use sparsimd_kernels::{Slice, slice_rows};

use super::Pattern;
use crate::dense::{Aligned, addresses, reserved_aligned};
use crate::parallel;

/// Cycles of a slice on one core of a Zen 4, f32: for a run, for a nonzero of each row that is gathered, for storing rows that follow each
/// other or are listed.
const RUN: usize = 2;
const GATHERED: usize = 10;
const STORED: usize = 4;
const LISTED: usize = 30;

/// Cycles of a row straight from CSR, and of five of its nonzeros.
const ROW: usize = 20;
const FIVE_NONZEROS: usize = 6;

/// The nonzeros of a pattern in slices of rows.
#[derive(Clone, Debug)]
pub struct Slices {
    blocks: Vec<SliceBlock>,
    /// Rows of a slice.
    count: usize,
    /// About how many cycles of one core a run takes on operands in its caches.
    pub(crate) cycles: usize,
}

/// A block of rows.
#[derive(Clone, Debug)]
pub(crate) struct SliceBlock {
    /// Its rows.
    pub rows: Range<usize>,
    /// The slices, and their rows, runs and columns.
    pub slices: Vec<Slice>,
    pub indices: Aligned<u32>,
    /// Rows that are in no slice, counted from the first.
    pub long: Vec<u32>,
    /// Its values among all.
    pub values: Range<usize>,
}

impl Slices {
    /// `pattern` in slices for elements of `T`, in blocks of the rows between the `bounds`, which ascend from 0 to the number of rows. Runs
    /// on the current rayon pool.
    pub(crate) fn new<T>(pattern: &Pattern, bounds: &[usize]) -> Self {
        let count = slice_rows::<T>();
        let block = |b: usize| Builder::new(pattern, bounds[b]..bounds[b + 1], count).block();
        let mut blocks = parallel::map_tasks(bounds.len().saturating_sub(1), block);
        let mut end = 0;
        for block in &mut blocks {
            let begin = end;
            end += block.values.len();
            block.values = begin..end;
        }
        let cycles = blocks.iter().flat_map(|block| &block.slices).map(cost).sum();
        Self { blocks, count, cycles }
    }

    /// Number of values: the nonzeros of rows in slices, and zeros where rows of a slice are shorter.
    pub fn len(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.values.end)
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Share of the values that are in runs.
    pub fn in_runs(&self) -> f64 {
        let runs: usize = self.slices().map(|slice| slice.runs as usize).sum();
        (runs * self.count) as f64 / self.len().max(1) as f64
    }

    /// Bytes of indices: slices, their rows and columns, long rows.
    pub fn index_bytes(&self) -> usize {
        self.memory().map(|range| range.len()).sum()
    }

    fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.blocks.iter().flat_map(|block| &block.slices)
    }

    /// Where the arrays of each block are.
    pub(crate) fn memory(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.blocks
            .iter()
            .flat_map(|block| [addresses(&block.slices), addresses(&block.indices), addresses(&block.long)])
    }

    /// The blocks of rows.
    pub(crate) fn blocks(&self) -> &[SliceBlock] {
        &self.blocks
    }

    /// Writes `values`, one per nonzero of `pattern` in CSR order, in the order of the slices to `out`, which has [`Slices::len`]: every
    /// element of it. Runs on the current rayon pool.
    pub(crate) fn arrange<T: Copy + Default + Send + Sync>(
        &self,
        pattern: &Pattern,
        values: &[T],
        out: &mut [MaybeUninit<T>],
    ) {
        let mut parts = Vec::with_capacity(self.blocks.len());
        let mut rest = out;
        for block in &self.blocks {
            let (part, after) = rest.split_at_mut(block.values.len());
            parts.push((block, part));
            rest = after;
        }
        assert!(rest.is_empty(), "the blocks have all values");
        let count = self.count;
        parallel::consume(parts, |(block, mut out): (&SliceBlock, &mut [MaybeUninit<T>])| {
            out.fill(MaybeUninit::new(T::default()));
            let mut indices = &block.indices[..];
            for slice in &block.slices {
                let (listed, rest) = indices.split_at(if slice.first == Slice::LISTED { count } else { 0 });
                let (runs, rest) = rest.split_at(slice.runs.next_multiple_of(2) as usize);
                let runs = &runs[..slice.runs as usize];
                indices = &rest[slice.gathered as usize * count..];
                let (own, after) = out.split_at_mut((runs.len() + slice.gathered as usize) * count);
                out = after;
                for l in 0..slice.rows as usize {
                    let row = block.rows.start + listed.get(l).map_or(slice.first as usize + l, |&row| row as usize);
                    let range = pattern.row_ptr()[row]..pattern.row_ptr()[row + 1];
                    if runs.is_empty() {
                        let to = own.iter_mut().skip(l).step_by(count);
                        to.zip(&values[range]).for_each(|(to, &value)| _ = to.write(value));
                        continue;
                    }
                    let mut gathered = runs.len();
                    for (&column, &value) in pattern.row(row).iter().zip(&values[range]) {
                        let at = run_of(column, l, runs).unwrap_or_else(|| {
                            gathered += 1;
                            gathered - 1
                        });
                        own[at * count + l].write(value);
                    }
                }
            }
        });
    }
}

/// The run that the nonzero of row `l` of a slice in `column` is in, if it is in one.
fn run_of(column: u32, l: usize, runs: &[u32]) -> Option<usize> {
    runs.binary_search(&column.checked_sub(l as u32)?).ok()
}

/// Cycles of a slice.
fn cost(slice: &Slice) -> usize {
    let stored = if slice.first == Slice::LISTED { LISTED } else { STORED };
    RUN * slice.runs as usize + GATHERED * slice.gathered as usize + stored
}

/// A block as it is built.
struct Builder<'a> {
    pattern: &'a Pattern,
    rows: Range<usize>,
    count: usize,
    slices: Vec<Slice>,
    indices: Vec<u32>,
    values: usize,
}

impl<'a> Builder<'a> {
    fn new(pattern: &'a Pattern, rows: Range<usize>, count: usize) -> Self {
        let nnz = pattern.row_ptr()[rows.end] - pattern.row_ptr()[rows.start];
        let (slices, indices) = (Vec::with_capacity(rows.len().div_ceil(count)), Vec::with_capacity(nnz));
        Self { pattern, rows, count, slices, indices, values: 0 }
    }

    /// The columns of a row, counted from the first.
    fn row(&self, row: u32) -> &'a [u32] {
        self.pattern.row(self.rows.start + row as usize)
    }

    fn block(mut self) -> SliceBlock {
        let mut others: Vec<u32> = Vec::new();
        let mut diagonals = Vec::new();
        for first in (0..self.rows.len()).step_by(self.count) {
            let rows: Vec<u32> = (first..self.rows.len().min(first + self.count)).map(|row| row as u32).collect();
            let runs = self.runs(&rows, &mut diagonals);
            let slice = self.slice(Some(first as u32), &rows, &runs);
            let nnz: usize = rows.iter().map(|&row| self.row(row).len()).sum();
            if cost(&slice) <= (GATHERED * nnz + LISTED * rows.len()) / self.count {
                self.push(slice, &rows, &runs);
            } else {
                others.extend(rows);
            }
        }
        others.sort_by_cached_key(|&row| std::cmp::Reverse(self.row(row).len()));
        let (mut long, mut next) = (Vec::new(), 0);
        while next < others.len() {
            let rows = &others[next..others.len().min(next + self.count)];
            let slice = self.slice(None, rows, &[]);
            let directly = |&row: &u32| ROW + FIVE_NONZEROS * self.row(row).len() / 5;
            if cost(&slice) > rows.iter().map(directly).sum::<usize>() {
                long.push(rows[0]);
                next += 1;
            } else {
                self.push(slice, rows, &[]);
                next += rows.len();
            }
        }
        let mut indices = reserved_aligned(self.indices.len());
        indices.extend_from_slice(&self.indices);
        SliceBlock { rows: self.rows, slices: self.slices, indices, long, values: 0..self.values }
    }

    /// The first columns of the runs of `rows`, which follow each other; ascending.
    fn runs(&self, rows: &[u32], diagonals: &mut Vec<u32>) -> Vec<u32> {
        diagonals.clear();
        if !self.has_diagonals(rows) {
            return Vec::new();
        }
        for (l, &row) in rows.iter().enumerate() {
            diagonals.extend(self.row(row).iter().filter_map(|&j| j.checked_sub(l as u32)));
        }
        diagonals.sort_unstable();
        let inside = |first: u32| first as usize + self.count <= self.pattern.cols();
        // A run's column and values are 68 bytes, a gathered nonzero's 8.
        let pays = |diagonal: &&[u32]| 2 * diagonal.len() > self.count && inside(diagonal[0]);
        diagonals.chunk_by(|a, b| a == b).filter(pays).map(|diagonal| diagonal[0]).collect()
    }

    /// Whether diagonals go on from a row to the next in some places of `rows`. To count all takes longer than the rest of preparing; of rows
    /// whose columns do not ascend some are missed.
    fn has_diagonals(&self, rows: &[u32]) -> bool {
        let goes_on = |&[row, next]: &[u32; 2]| {
            let next = self.row(next);
            let found = self.row(row).iter().filter(|&&j| next.binary_search(&(j + 1)).is_ok()).count();
            2 * found > next.len()
        };
        let pair = |l: usize| Some([*rows.get(l)?, *rows.get(l + 1)?]);
        [1, 4, 6, 9, 12, 14].into_iter().filter_map(pair).any(|pair| goes_on(&pair))
    }

    /// The slice of `rows`, the first of which is `first` if they follow each other.
    fn slice(&self, first: Option<u32>, rows: &[u32], runs: &[u32]) -> Slice {
        let gathered = |(l, &row): (usize, &u32)| match runs {
            [] => self.row(row).len(),
            _ => self.gathered(row, l, runs).count(),
        };
        let gathered = rows.iter().enumerate().map(gathered).max().unwrap_or(0);
        let (rows, runs, gathered) = (rows.len() as u32, runs.len() as u32, gathered as u32);
        Slice { first: first.unwrap_or(Slice::LISTED), rows, runs, gathered }
    }

    /// The columns of row `l` of a slice that are in no run.
    fn gathered<'b>(&self, row: u32, l: usize, runs: &'b [u32]) -> impl Iterator<Item = u32> + use<'a, 'b> {
        self.row(row).iter().copied().filter(move |&column| run_of(column, l, runs).is_none())
    }

    fn push(&mut self, slice: Slice, rows: &[u32], runs: &[u32]) {
        let count = self.count;
        if slice.first == Slice::LISTED {
            self.indices.extend(rows);
            self.indices.extend(std::iter::repeat_n(0, count - rows.len()));
        }
        self.indices.extend(runs);
        self.indices.extend(std::iter::repeat_n(0, runs.len() % 2));
        let start = self.indices.len();
        self.indices.resize(start + slice.gathered as usize * count, 0);
        for (l, &row) in rows.iter().enumerate() {
            // Past its nonzeros a row's last column: near, and an element of b.
            let last = self.row(row).last().copied().unwrap_or(0);
            let to = &mut self.indices[start..][..slice.gathered as usize * count];
            let mut to = to.iter_mut().skip(l).step_by(count);
            let columns = self.pattern.row(self.rows.start + row as usize).iter();
            let own = columns.filter(|&&column| runs.is_empty() || run_of(column, l, runs).is_none());
            own.zip(&mut to).for_each(|(&column, to)| *to = column);
            to.for_each(|to| *to = last);
        }
        self.values += (runs.len() + slice.gathered as usize) * count;
        self.slices.push(slice);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// `rows` as a pattern with `cols` columns.
    fn pattern(cols: usize, rows: &[Vec<u32>]) -> Arc<Pattern> {
        let mut starts = vec![0];
        starts.extend(rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        Pattern::new(rows.len(), cols, starts, rows.concat()).unwrap()
    }

    #[test]
    fn bands_are_runs_and_nothing_else() {
        let rows: Vec<Vec<u32>> = (0..64).map(|i| vec![i, i + 3, i + 9]).collect();
        let slices = Slices::new::<f32>(&pattern(73, &rows), &[0, 32, 64]);
        assert_eq!((slices.len(), slices.in_runs()), (3 * 64, 1.0));
        assert!(slices.slices().all(|slice| (slice.runs, slice.gathered) == (3, 0)));
        // Two words of columns for the three runs of each slice.
        assert!(slices.blocks().iter().all(|block| block.indices.len() == 2 * 4 && block.long.is_empty()));
        // Runs stay inside of b: the last one does not, one column before its end.
        let slices = Slices::new::<f32>(&pattern(72, &rows[..63]), &[0, 63]);
        assert_eq!(slices.slices().map(|slice| slice.runs).collect::<Vec<_>>(), [3, 3, 3, 2]);
    }

    #[test]
    fn lengths_are_sorted_and_giants_apart() {
        let row = |i: u32| (0..if i == 40 { 900 } else { 6 * (i % 4) }).map(|j| (i + 7 * j) % 997).collect();
        let rows: Vec<Vec<u32>> = (0..64).map(row).collect();
        let slices = Slices::new::<f64>(&pattern(1000, &rows), &[0, 64]);
        let block = &slices.blocks()[0];
        assert_eq!(block.long, [40]);
        let nnz: usize = rows.iter().map(Vec::len).sum();
        assert!(slices.len() < (nnz - 900) * 5 / 4, "{} values", slices.len());
        let rows: u32 = block.slices.iter().map(|slice| slice.rows).sum();
        assert_eq!(rows, 63);
    }
}
