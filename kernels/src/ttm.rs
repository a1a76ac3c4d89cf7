//! TTM: Y_f = sum over the nonzeros p of fiber f of x_p (outer) U_k(p), with x_p a number or a dense block.
//!
//! ```text
//! for every fiber f
//!     for every tile of the block's D values (4 or 1) and of U's columns (up to 8 registers)
//!         y = 0                                   D x columns, in registers
//!         for every nonzero p of the fiber
//!             prefetch the row of U of a coming nonzero
//!             for d in the tile: y_d += x_p[d] U_k(p)
//!         store y                                 past the caches where Y is larger than they are
//! ```
//!
//! Most fibers of real tensors have one nonzero or two, so the work is one read of a row of U and one write of a row of
//! Y each: rows are prefetched since their order is random, and streamed out since there are more of them than any
//! cache holds. With `block` 1 this is the TTM of a sparse tensor (fiber-centric in the terms of Sousa et al.; with a
//! window of one register of columns, element-centric); with larger blocks that of a semi-sparse one.
//!
//! U and Y may store bf16 or f16: rows of U are widened as they are loaded, x and the sums are f32, and Y is rounded once.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_stored;
use crate::prefetch::prefetch_row_l2;
use crate::rows::L1_DISTANCE;
use crate::tile::{self, Tile, tiles_of, with_width};
use crate::{Arch, Number, Stored, prefetch_row, stream_fence};

/// Some fibers' part of a TTM.
#[derive(Clone, Copy, Debug)]
pub struct TtmFibers<'a, D: Stored> {
    /// First nonzero of each fiber, and the end of the last one.
    pub ptr: &'a [usize],
    /// Row of U of each nonzero of the tensor.
    pub leaf: &'a [u32],
    /// Values: nonzero `p` has `block` values from `p * x_stride` on.
    pub x: &'a [D::Scalar],
    /// Values from one nonzero to the next.
    pub x_stride: usize,
    /// Values of a nonzero: 1 for a sparse tensor, and wherever elements are narrow.
    pub block: usize,
    /// U.
    pub u: *const D,
    /// Row stride of U.
    pub u_stride: usize,
    /// Columns of U and Y that this task computes, from the pointers on.
    pub cols: usize,
    /// Y: the first fiber's.
    pub y: *mut D,
    /// Elements from one fiber's result to the next one's.
    pub y_stride: usize,
    /// Elements of a result from one value of the block to the next.
    pub y_block: usize,
    /// How many nonzeros ahead rows of U are prefetched; 0 for not at all.
    pub prefetch_distance: usize,
    /// Whether results bypass the caches. They are then 64-byte aligned and a multiple of 64 bytes apart; narrow ones
    /// are whole multiples of 64 bytes.
    pub stream: bool,
}

/// Runs the task.
///
/// # Safety
/// - `ptr` never decreases and ends within `leaf`; `x` holds a block for every entry of `leaf`;
/// - U has a row of at least `cols` elements for every entry of `leaf`;
/// - Y is valid for writes of `block` rows of `cols` elements, `y_block` apart, for every fiber, `y_stride` apart, and
///   nobody else touches them meanwhile.
pub unsafe fn ttm_fibers<D: Stored>(arch: Arch, task: TtmFibers<'_, D>) {
    debug_assert!(task.ptr.last().is_none_or(|&end| end <= task.leaf.len()));
    debug_assert!(task.block == 1 || !D::NARROW);
    dispatch_stored!(arch, Fibers(task), Fibers);
}

#[derive(Clone, Copy)]
struct Fibers<'a, D: Stored>(TtmFibers<'a, D>);

impl<D: Stored> WithSimd for Fibers<'_, D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let task = &self.0;
        // SAFETY: the promise of `ttm_fibers`; tiles are inside the columns.
        unsafe {
            if D::NARROW || task.block == 1 {
                for f in 0..task.ptr.len().saturating_sub(1) {
                    let range = [*task.ptr.get_unchecked(f), *task.ptr.get_unchecked(f + 1)];
                    let y = task.y.add(f * task.y_stride);
                    for tile in tiles_of::<S, D>(task.cols, 8) {
                        with_width!(tile, single::<S, D>(simd, task, range, y, tile));
                    }
                }
            } else {
                // 4 x 2 accumulators leave room for a row of U in 16 registers.
                for tile in tiles_of::<S, D>(task.cols, 2) {
                    match (tile.vectors, tile.rest != 0) {
                        (1, false) => blocks::<S, D, 4, 1, false>(simd, task, tile),
                        (1, true) => blocks::<S, D, 4, 1, true>(simd, task, tile),
                        (_, false) => blocks::<S, D, 4, 2, false>(simd, task, tile),
                        (_, true) => blocks::<S, D, 4, 2, true>(simd, task, tile),
                    }
                }
            }
        }
        if task.stream {
            stream_fence();
        }
    }
}

/// One tile of columns of one fiber, nonzeros being numbers.
///
/// # Safety
/// As [`fiber`]; `y` is the fiber's result.
#[inline(always)]
unsafe fn single<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &TtmFibers<'_, D>,
    range: [usize; 2],
    y: *mut D,
    tile: Tile,
) {
    // SAFETY: the caller's promise.
    unsafe { fiber::<S, D, 1, NV, TAIL>(simd, task, range, y.add(tile.start), 0, tile) }
}

/// One tile of columns of all the fibers, `MD` values of a block at a time.
///
/// # Safety
/// As [`ttm_fibers`]; the tile is inside the columns.
#[inline(always)]
unsafe fn blocks<S: Simd, D: Stored, const MD: usize, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &TtmFibers<'_, D>,
    tile: Tile,
) {
    // SAFETY: the caller's promise: `ptr` ends within `leaf`.
    unsafe {
        for f in 0..task.ptr.len().saturating_sub(1) {
            let range = [*task.ptr.get_unchecked(f), *task.ptr.get_unchecked(f + 1)];
            let y = task.y.add(f * task.y_stride + tile.start);
            let mut d = 0;
            while d + MD <= task.block {
                fiber::<S, D, MD, NV, TAIL>(simd, task, range, y.add(d * task.y_block), d, tile);
                d += MD;
            }
            while MD > 1 && d < task.block {
                fiber::<S, D, 1, NV, TAIL>(simd, task, range, y.add(d * task.y_block), d, tile);
                d += 1;
            }
        }
    }
}

/// `MD` values of the block of one fiber, from `d` on.
///
/// # Safety
/// As [`blocks`]; `d + MD` is at most `block`, `range` one of the fibers, `y` its result's tile.
#[inline(always)]
unsafe fn fiber<S: Simd, D: Stored, const MD: usize, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &TtmFibers<'_, D>,
    [start, end]: [usize; 2],
    y: *mut D,
    d: usize,
    tile: Tile,
) {
    let lanes = D::Scalar::lanes::<S>();
    let mask = tile.mask::<S, D::Scalar>(simd);
    let mut acc = [[D::Scalar::splat(simd, D::Scalar::ZERO); NV]; MD];
    let u = task.u.wrapping_add(tile.start);
    // SAFETY: `p` is below `end`, which is within `leaf`; rows of U and blocks of X exist for all of them.
    unsafe {
        for p in start..end {
            if task.prefetch_distance > 0 && d == 0 {
                let coming = *task.leaf.get_unchecked((p + task.prefetch_distance).min(task.leaf.len() - 1));
                let (coming, bytes) = (u.wrapping_add(coming as usize * task.u_stride), NV * lanes * size_of::<D>());
                if task.prefetch_distance > L1_DISTANCE {
                    prefetch_row_l2(coming, bytes)
                } else {
                    prefetch_row(coming, bytes)
                }
            }
            let row = u.add(*task.leaf.get_unchecked(p) as usize * task.u_stride);
            let row = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, row);
            let x = task.x.as_ptr().add(p * task.x_stride + d);
            for m in 0..MD {
                let x = D::Scalar::splat(simd, *x.add(m));
                for j in 0..NV {
                    acc[m][j] = D::Scalar::vmul_add(simd, x, row[j], acc[m][j]);
                }
            }
        }
        for m in 0..MD {
            let y = y.add(m * task.y_block);
            if D::reorders::<S>() && NV > 1 && tile.rest == 0 {
                tile::store_reordered::<S, D, NV>(simd, y, acc[m], task.stream);
                continue;
            }
            let row = tile::in_order::<S, D, NV>(simd, acc[m]);
            for j in 0..NV {
                let y = y.add(j * lanes);
                if TAIL && j == NV - 1 && (!D::NARROW || tile.rest > 0) {
                    D::write_masked(simd, mask, y, row[j]);
                } else if task.stream {
                    D::write_streaming(simd, y, row[j]);
                } else {
                    D::write(simd, y, row[j]);
                }
            }
        }
    }
}
