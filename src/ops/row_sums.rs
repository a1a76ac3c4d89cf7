//! Rows of dense operands as the panel strategy works on them.
//!
//! Rows of a dense result while panel after panel adds to them: where they are, or, where they are stored narrower than sums are
//! computed, in a buffer of the task's own, from which they are rounded once.

use std::ops::Range;

use sparsimd_kernels::{Arch, NarrowRows, Number, Stored, WidenRows, narrow_rows, scale_rows, widen_rows};

use super::run::scratch;
use crate::dense::{Aligned, MatRef};

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

/// The rows of a dense operand as they are computed with: where they are, or a copy.
pub(super) struct Widened<D: Stored> {
    room: Aligned<D::Scalar>,
    at: *const D::Scalar,
    stride: usize,
}

impl<D: Stored> Widened<D> {
    /// Of the `rows` of `c`, to which nobody may write meanwhile.
    pub fn new(arch: Arch, c: MatRef<'_, D>, rows: Range<usize>) -> Self {
        let (from, stride) = (c.data()[rows.start * c.stride()..].as_ptr(), c.stride());
        if !D::NARROW {
            return Self { room: scratch(0), at: from.cast(), stride };
        }
        let to_stride = c.cols().next_multiple_of(arch.lanes::<D::Scalar>());
        let mut room = scratch(rows.len() * to_stride);
        let (rows, to, factor) = (rows.len(), room.as_mut_ptr(), D::Scalar::ONE);
        // SAFETY: the rows are rows of C, and the room has as many of whole registers.
        unsafe { widen_rows(arch, WidenRows { from, stride, rows, n: c.cols(), factor, to, to_stride }) };
        Self { room, at: std::ptr::null(), stride: to_stride }
    }

    /// The first row.
    pub fn as_ptr(&self) -> *const D::Scalar {
        if D::NARROW { self.room.as_ptr() } else { self.at }
    }

    /// The row stride.
    pub fn stride(&self) -> usize {
        self.stride
    }
}
