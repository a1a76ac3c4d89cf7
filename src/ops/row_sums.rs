//! Rows of a dense result while panel after panel adds to them: where they are, or, where they are stored narrower than sums are
//! computed, in a buffer of the task's own, from which they are rounded once.
//!
//! A row begins with the first block that has it and ends after the last one: in a band, to clear all rows first took 11 % of SpMM's
//! time (bcsstk16, Granite Rapids). With beta 0 it begins in registers: to clear it just before the block took another 11 to 12 % of SpMM's and
//! 3 to 6 % of FusedMM's (bcsstk16, facebook_combined, Emerald Rapids). The last block rounds its rows while they are in registers.

use sparsimd_kernels::{
    Arch, NarrowRows, Number, RowBlockSums, Stored, WidenRows, narrow_rows, scale_rows, widen_rows,
};

use super::run::scratch;
use crate::dense::Aligned;
use crate::formats::{BlockView, RowBlock};

/// The sums of a row block.
pub(super) struct RowSums<'a, D: Stored> {
    arch: Arch,
    row_block: &'a RowBlock,
    stride: usize,
    /// Room for them, if elements are narrow.
    room: Aligned<D::Scalar>,
    /// Whether the last block rounds them.
    rounds: bool,
}

/// Sums to which blocks are added.
pub(super) struct BegunSums<D: Stored> {
    arch: Arch,
    beta: D::Scalar,
    columns: usize,
    c: *mut D,
    ldc: usize,
    /// Where they are.
    sums: *mut D::Scalar,
    stride: usize,
    rounds: bool,
}

impl<'a, D: Stored> RowSums<'a, D> {
    /// Of the rows of `row_block`, of at most `columns` columns. If the last block `rounds` its rows, nothing may happen to them after it.
    pub fn new(arch: Arch, row_block: &'a RowBlock, columns: usize, rounds: bool) -> Self {
        let stride = columns.next_multiple_of(arch.lanes::<D::Scalar>());
        let room = scratch(if D::NARROW { row_block.rows.len() * stride } else { 0 });
        Self { arch, row_block, stride, room, rounds }
    }

    /// Begins with beta times the rows at `c`, `columns` elements of each.
    ///
    /// # Safety
    /// `c` is valid for reads and writes of the rows, which no one else uses until the last block has ended.
    pub unsafe fn begin(&mut self, beta: D::Scalar, columns: usize, c: *mut D, ldc: usize) -> BegunSums<D> {
        let Self { arch, row_block, stride, rounds, .. } = *self;
        for [first, rows] in runs(row_block.without_nonzeros()) {
            // SAFETY: the caller's promise.
            unsafe { scale_rows(arch, beta, rows, columns, c.wrapping_add(first * ldc), ldc) }
        }
        let (sums, stride) = if D::NARROW { (self.room.as_mut_ptr(), stride) } else { (c.cast(), ldc) };
        BegunSums { arch, beta, columns, c, ldc, sums, stride, rounds }
    }
}

impl<D: Stored> BegunSums<D> {
    /// Begins the rows that `block` has first: what it does to the sums.
    ///
    /// # Safety
    /// It is one of the row block's, and those before have been added.
    pub unsafe fn begin_block(&self, block: &BlockView<'_>) -> RowBlockSums<D> {
        let &Self { arch, beta, columns, c, ldc, sums, stride, rounds } = self;
        let begin = beta == D::Scalar::ZERO;
        if !begin && (D::NARROW || beta != D::Scalar::ONE) {
            for [first, rows] in runs(block.begins) {
                let to = sums.wrapping_add(first * stride);
                // SAFETY: the promise of `begin`; the room has the rows, and whole registers of them.
                unsafe {
                    if !D::NARROW {
                        scale_rows(arch, beta, rows, columns, to, stride);
                    } else {
                        let from = c.wrapping_add(first * ldc).cast_const();
                        let (stride, to_stride) = (ldc, stride);
                        widen_rows(arch, WidenRows { from, stride, rows, n: columns, factor: beta, to, to_stride });
                    }
                }
            }
        }
        let rounded = if D::NARROW && block.last && rounds { c } else { std::ptr::null_mut() };
        RowBlockSums { sums, stride, begin, rounded, rounded_stride: ldc }
    }

    /// Stores the rows in C that no later block has, unless they are there already.
    ///
    /// # Safety
    /// As [`BegunSums::begin_block`], and `block` has been added.
    pub unsafe fn end_block(&self, block: &BlockView<'_>) {
        let &Self { arch, columns: n, c, ldc: to_stride, sums, stride, rounds, .. } = self;
        if !D::NARROW || block.last && rounds {
            return;
        }
        for [first, rows] in runs(block.ends) {
            let (from, to) = (sums.wrapping_add(first * stride), c.wrapping_add(first * to_stride));
            let task = NarrowRows { from, stride, rows, n, to, to_stride, stream: false };
            // SAFETY: the blocks have begun and added the rows; the promise of `begin`.
            unsafe { narrow_rows(arch, task) }
        }
    }
}

/// Ascending rows, as runs of rows that follow each other: the first, and how many.
fn runs(rows: &[u32]) -> impl Iterator<Item = [usize; 2]> {
    rows.chunk_by(|row, next| row + 1 == *next).map(|run| [run[0] as usize, run.len()])
}
