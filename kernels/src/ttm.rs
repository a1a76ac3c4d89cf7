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
//! Y each: rows are prefetched since their order is random, and streamed out since there are more of them than any cache holds.
//! With `block` 1 this is the TTM of a sparse tensor (fiber-centric in the terms of Sousa et al.; with a window
//! of one register of columns, element-centric); with larger blocks that of a semi-sparse one.

use pulp::{Simd, WithSimd};

use crate::{Arch, Scalar, prefetch_l1, store_streaming, stream_fence};

/// Some fibers' part of a TTM.
#[derive(Clone, Copy, Debug)]
pub struct TtmFibers<'a, T> {
    /// First nonzero of each fiber, and the end of the last one.
    pub ptr: &'a [usize],
    /// Row of U of each nonzero of the tensor.
    pub leaf: &'a [u32],
    /// Values: nonzero `p` has `block` values from `p * x_stride` on.
    pub x: &'a [T],
    /// Values from one nonzero to the next.
    pub x_stride: usize,
    /// Values of a nonzero: 1 for a sparse tensor.
    pub block: usize,
    /// U.
    pub u: *const T,
    /// Row stride of U.
    pub u_stride: usize,
    /// Columns of U and Y that this task computes, from the pointers on.
    pub cols: usize,
    /// Y: the first fiber's.
    pub y: *mut T,
    /// Elements from one fiber's result to the next one's.
    pub y_stride: usize,
    /// Elements of a result from one value of the block to the next.
    pub y_block: usize,
    /// How many nonzeros ahead rows of U are prefetched; 0 for not at all.
    pub ahead: usize,
    /// Whether results bypass the caches. They are then 64-byte aligned and a multiple of 64 bytes apart.
    pub stream: bool,
}

/// Runs the task.
///
/// # Safety
/// - `ptr` never decreases and ends within `leaf`; `x` holds a block for every entry of `leaf`;
/// - U has a row of at least `cols` elements for every entry of `leaf`;
/// - Y is valid for writes of `block` rows of `cols` elements, `y_block` apart, for every fiber, `y_stride` apart, and nobody else
///   touches them meanwhile.
pub unsafe fn ttm_fibers<T: Scalar>(arch: Arch, task: TtmFibers<'_, T>) {
    debug_assert!(task.ptr.last().is_none_or(|&end| end <= task.leaf.len()));
    crate::arch::dispatch_compiled!(arch, Fibers(task), Fibers<'_, f32>, Fibers<'_, f64>);
}

#[derive(Clone, Copy)]
struct Fibers<'a, T>(TtmFibers<'a, T>);

impl<T: Scalar> WithSimd for Fibers<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let task = &self.0;
        // SAFETY: the promise of `ttm_fibers`; tiles stay inside the columns.
        unsafe {
            if task.block == 1 {
                by_columns::<S, T, 1>(simd, task, 8);
            } else {
                // 4 x 2 accumulators and a tail of 4 leave room for a row of U in 16 registers.
                by_columns::<S, T, 4>(simd, task, 2);
            }
        }
        if task.stream {
            stream_fence();
        }
    }
}

/// All tiles of up to `most` registers of columns.
///
/// # Safety
/// As [`ttm_fibers`].
#[inline(always)]
unsafe fn by_columns<S: Simd, T: Scalar, const MD: usize>(simd: S, task: &TtmFibers<'_, T>, most: usize) {
    let lanes = T::lanes::<S>();
    let (full, rest) = (task.cols / lanes, task.cols % lanes);
    let mut done = 0;
    // SAFETY: the caller's promise.
    unsafe {
        loop {
            let n = (full - done).min(most);
            let last = done + n == full;
            let at = done * lanes;
            match (n, last && rest > 0) {
                (0, false) => return,
                (0, true) => tile::<S, T, MD, 0, true>(simd, task, at),
                (1, false) => tile::<S, T, MD, 1, false>(simd, task, at),
                (1, true) => tile::<S, T, MD, 1, true>(simd, task, at),
                (2, false) => tile::<S, T, MD, 2, false>(simd, task, at),
                (2, true) => tile::<S, T, MD, 2, true>(simd, task, at),
                (3, false) => tile::<S, T, 1, 3, false>(simd, task, at),
                (3, true) => tile::<S, T, 1, 3, true>(simd, task, at),
                (4, false) => tile::<S, T, 1, 4, false>(simd, task, at),
                (4, true) => tile::<S, T, 1, 4, true>(simd, task, at),
                (5, false) => tile::<S, T, 1, 5, false>(simd, task, at),
                (5, true) => tile::<S, T, 1, 5, true>(simd, task, at),
                (6, false) => tile::<S, T, 1, 6, false>(simd, task, at),
                (6, true) => tile::<S, T, 1, 6, true>(simd, task, at),
                (7, false) => tile::<S, T, 1, 7, false>(simd, task, at),
                (7, true) => tile::<S, T, 1, 7, true>(simd, task, at),
                (_, false) => tile::<S, T, 1, 8, false>(simd, task, at),
                (_, true) => tile::<S, T, 1, 8, true>(simd, task, at),
            }
            done += n;
            if last {
                return;
            }
        }
    }
}

/// One tile of columns of all the fibers: `NR` registers from column `at` on, and a masked one if `TAIL`.
///
/// # Safety
/// As [`ttm_fibers`]; the tile is inside the columns.
#[inline(always)]
unsafe fn tile<S: Simd, T: Scalar, const MD: usize, const NR: usize, const TAIL: bool>(
    simd: S,
    task: &TtmFibers<'_, T>,
    at: usize,
) {
    // SAFETY: the caller's promise: `ptr` ends within `leaf`.
    unsafe {
        for f in 0..task.ptr.len().saturating_sub(1) {
            let range = [*task.ptr.get_unchecked(f), *task.ptr.get_unchecked(f + 1)];
            let y = task.y.add(f * task.y_stride + at);
            let mut d = 0;
            while d + MD <= task.block {
                fiber::<S, T, MD, NR, TAIL>(simd, task, range, y.add(d * task.y_block), d, at);
                d += MD;
            }
            while MD > 1 && d < task.block {
                fiber::<S, T, 1, NR, TAIL>(simd, task, range, y.add(d * task.y_block), d, at);
                d += 1;
            }
        }
    }
}

/// `MD` values of the block of one fiber, from `d` on.
///
/// # Safety
/// As [`tile`]; `d + MD` is at most `block`, `range` one of the fibers, `y` its result's tile.
#[inline(always)]
unsafe fn fiber<S: Simd, T: Scalar, const MD: usize, const NR: usize, const TAIL: bool>(
    simd: S,
    task: &TtmFibers<'_, T>,
    [start, end]: [usize; 2],
    y: *mut T,
    d: usize,
    at: usize,
) {
    let lanes = T::lanes::<S>();
    let mask = T::first_lanes(simd, task.cols % lanes);
    let zero = T::splat(simd, T::ZERO);
    let mut acc = [[zero; NR]; MD];
    let mut tail = [zero; MD];
    let u = task.u.wrapping_add(at);
    // SAFETY: `p` is below `end`, which is within `leaf`; rows of U and blocks of X exist for all of them.
    unsafe {
        for p in start..end {
            if task.ahead > 0 && d == 0 {
                let coming = *task.leaf.get_unchecked((p + task.ahead).min(task.leaf.len() - 1));
                let row = u.wrapping_add(coming as usize * task.u_stride).cast::<u8>();
                let bytes = (NR * lanes + if TAIL { 1 } else { 0 }) * size_of::<T>();
                let mut line = 0;
                while line < bytes {
                    prefetch_l1(row.wrapping_add(line));
                    line += 64;
                }
            }
            let row = u.add(*task.leaf.get_unchecked(p) as usize * task.u_stride);
            let x = task.x.as_ptr().add(p * task.x_stride + d);
            for m in 0..MD {
                let x = T::splat(simd, *x.add(m));
                for (r, acc) in acc[m].iter_mut().enumerate() {
                    *acc = T::vmul_add(simd, x, T::load(simd, row.add(r * lanes)), *acc);
                }
                if TAIL {
                    let u = T::load_masked(simd, mask, row.add(NR * lanes));
                    tail[m] = T::vmul_add(simd, x, u, tail[m]);
                }
            }
        }
        for m in 0..MD {
            let y = y.add(m * task.y_block);
            for (r, &acc) in acc[m].iter().enumerate() {
                if task.stream {
                    store_streaming(simd, y.add(r * lanes), acc);
                } else {
                    T::store(simd, y.add(r * lanes), acc);
                }
            }
            if TAIL {
                T::store_masked(simd, mask, y.add(NR * lanes), tail[m]);
            }
        }
    }
}

/// Some fibers' part of a TTV: y_f = sum over the nonzeros p of fiber f of x_p v_k(p).
///
/// # Panics
/// When `y` is not one number for every fiber, or the pointers reach beyond `leaf` or `x`.
pub fn ttv_fibers<T: Scalar>(ptr: &[usize], leaf: &[u32], x: &[T], v: &[T], y: &mut [T]) {
    assert_eq!(y.len() + 1, ptr.len(), "one result for each fiber");
    for (y, range) in y.iter_mut().zip(ptr.windows(2)) {
        let (leaf, x) = (&leaf[range[0]..range[1]], &x[range[0]..range[1]]);
        // Four sums side by side: one chain of dependent additions would wait four cycles for each.
        let mut sums = [T::ZERO; 4];
        let (leaf4, x4) = (leaf.chunks_exact(4), x.chunks_exact(4));
        let rest = leaf4.remainder().iter().zip(x4.remainder());
        for (k, x) in leaf4.zip(x4) {
            for i in 0..4 {
                sums[i] += x[i] * v[k[i] as usize];
            }
        }
        let tail = rest.fold(T::ZERO, |sum, (&k, &x)| sum + x * v[k as usize]);
        *y = (sums[0] + sums[1]) + (sums[2] + sums[3]) + tail;
    }
}
