//! Rows of dense operands as the panel strategy works on them.
//!
//! Rows of a dense result while panel after panel adds to them: where they are, or, where they are stored narrower than sums are
//! computed, in a buffer of the task's own, from which they are rounded once.

use sparsimd_kernels::{Arch, NarrowRows, Number, Stored, WidenRows, narrow_rows, scale_rows, widen_rows};

use super::run::scratch;
use crate::dense::Aligned;

/// The sums of a row block.
pub(super) struct RowSums<D: Stored> {
    arch: Arch,
    rows: usize,
    stride: usize,
    /// Room for them, if elements are narrow.
    room: Aligned<D::Scalar>,
}

impl<D: Stored> RowSums<D> {
    /// Of `rows` rows of at most `columns` columns.
    pub fn new(arch: Arch, rows: usize, columns: usize) -> Self {
        let stride = columns.next_multiple_of(arch.lanes::<D::Scalar>());
        let room = scratch(if D::NARROW { rows * stride } else { 0 });
        Self { arch, rows, stride, room }
    }

    /// Begins with beta times the rows at `c`, `columns` elements of each: where the sums are, and their row stride.
    ///
    /// # Safety
    /// `c` is valid for reads and writes of the rows, which no one else uses.
    pub unsafe fn begin(&mut self, beta: D::Scalar, columns: usize, c: *mut D, ldc: usize) -> (*mut D::Scalar, usize) {
        let Self { arch, rows, stride, ref mut room } = *self;
        if !D::NARROW {
            // SAFETY: the caller's promise.
            unsafe { scale_rows(arch, beta, rows, columns, c, ldc) };
            return (c.cast(), ldc);
        }
        let to = room.as_mut_ptr();
        // SAFETY: the room has the rows, and whole registers of them; the caller's promise.
        unsafe {
            if beta == D::Scalar::ZERO {
                scale_rows(arch, beta, rows, columns, to, stride);
            } else {
                let from = c.cast_const();
                let task = WidenRows { from, stride: ldc, rows, n: columns, factor: beta, to, to_stride: stride };
                widen_rows(arch, task);
            }
        }
        (to, stride)
    }

    /// Stores the sums of `columns` columns at `c`, if they are not there already.
    ///
    /// # Safety
    /// As [`RowSums::begin`].
    pub unsafe fn end(&self, columns: usize, c: *mut D, ldc: usize) {
        if D::NARROW {
            let Self { arch, rows, stride, ref room } = *self;
            let from = room.as_ptr();
            let task = NarrowRows { from, stride, rows, n: columns, to: c, to_stride: ldc, stream: false };
            // SAFETY: `begin` has written the rows; the caller's promise.
            unsafe { narrow_rows(arch, task) };
        }
    }
}
