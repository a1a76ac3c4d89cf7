//! The row segments of a row block: the nonzeros of each row in each panel.

use std::ops::Range;

use sparsimd_kernels::prefetch_row;

use crate::memory::reserved;

/// Row segments ahead at which nonzeros are prefetched: those of a block are all over the matrix.
pub const PREFETCH_DISTANCE: usize = 8;

/// A row's nonzeros in a panel, before the row segments are ordered.
#[derive(Clone, Copy, Default)]
pub struct Found {
    pub nnz: u32,
    pub row: u32,
    pub start: usize,
}

/// The row segments of a row block's rows, by panel.
pub struct Segments {
    pub found: Vec<Found>,
    /// For each panel, where its row segments end.
    ends: Vec<usize>,
}

impl Segments {
    /// Those of `rows`.
    pub fn find(rows: Range<usize>, row_ptr: &[usize], columns: &[u32], width: u32) -> Self {
        // Panel and number of nonzeros of each row segment, row by row.
        let mut pieces: Vec<(u32, u32)> = Vec::with_capacity(rows.len());
        for i in rows.clone() {
            let mut row = &columns[row_ptr[i]..row_ptr[i + 1]];
            while let Some(&column) = row.first() {
                let panel = column / width;
                let limit = (u64::from(panel) + 1) * u64::from(width);
                // A panel is at most 256 columns wide: a short scan, not a search.
                let nnz = row.iter().take_while(|&&j| u64::from(j) < limit).count();
                pieces.push((panel, nnz as u32));
                row = &row[nnz..];
            }
        }
        // A counting sort by panel.
        let panels = pieces.iter().map(|&(panel, _)| panel as usize + 1).max().unwrap_or(0);
        let mut ends = vec![0usize; panels + 1];
        pieces.iter().for_each(|&(panel, _)| ends[panel as usize + 1] += 1);
        for panel in 0..panels {
            ends[panel + 1] += ends[panel];
        }
        let mut found = reserved(pieces.len());
        found.resize(pieces.len(), Found::default());
        let mut pieces = pieces.iter();
        for (row, w) in row_ptr[rows.start..=rows.end].windows(2).enumerate() {
            let mut start = w[0];
            while start < w[1]
                && let Some(&(panel, nnz)) = pieces.next()
            {
                let slot = &mut ends[panel as usize];
                found[*slot] = Found { nnz, row: row as u32, start };
                *slot += 1;
                start += nnz as usize;
            }
        }
        // What would be the start of one panel more.
        ends.pop();
        Self { found, ends }
    }

    /// Calls `out` with each panel that has row segments and them, those first that are their row's first, by number of nonzeros, and how
    /// many these are; `row_ptr` are the rows'.
    pub fn each_block(mut self, row_ptr: &[usize], mut out: impl FnMut(usize, &[Found], usize)) {
        let mut start = 0;
        for (panel, &end) in self.ends.iter().enumerate() {
            let block = &mut self.found[start..end];
            start = end;
            if !block.is_empty() {
                let goes_on = |segment: &Found| segment.start > row_ptr[segment.row as usize];
                block.sort_unstable_by_key(|v| u64::from(goes_on(v)) << 63 | u64::from(v.nnz) << 32 | u64::from(v.row));
                let begins = block.partition_point(|segment| !goes_on(segment));
                out(panel, block, begins);
            }
        }
    }
}

/// Prefetches the columns of the row segment that comes [`PREFETCH_DISTANCE`] after `v`.
#[inline(always)]
pub fn prefetch_columns(block: &[Found], v: usize, columns: &[u32]) {
    if let Some(segment) = block.get(v + PREFETCH_DISTANCE) {
        prefetch_row(&raw const columns[segment.start], segment.nnz as usize * size_of::<u32>());
    }
}
