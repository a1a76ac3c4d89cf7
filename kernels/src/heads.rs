//! SpMM and SDDMM of H heads side by side: head h has the columns h w to (h + 1) w of the dense operands and the numbers at
//! p H + h of the nonzeros p.
//!
//! ```text
//! SpMM:   C_i,h = sum over p = (i, j) of a_ph B_j,h       SDDMM:  out_ph = C_i,h . B_j,h
//! ```
//!
//! Where a head is whole registers, 1, 2 or 4 of them, a tile of the row is several heads, and a nonzero's column index is read
//! once for them (`dots` for SDDMM). Otherwise head goes after head.

mod dots;

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::block::OFFSETS_PER_WORD;
use crate::rows::{Gathered, Prefetch, axpy_gathered, by_prefetch};
use crate::spread::Spread;
use crate::tile::{self, Lines, Tile, tiles, with_vectors};
use crate::walk::AHEAD;
use crate::{Arch, RowPtr, Scalar, prefetch_l1, stream_fence};

/// Rows of a CSR pattern, and what is gathered for them.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<T> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: rows that begin before or end after are taken in part.
    pub nonzeros: [usize; 2],
    /// B.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// H.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub prefetch_distance: usize,
}

/// SpMM of heads.
#[derive(Clone, Copy, Debug)]
pub struct SpmmHeads<T> {
    /// The rows.
    pub rows: HeadRows<T>,
    /// H values for each nonzero.
    pub values: *const T,
    /// C.
    pub c: *mut T,
    /// Row stride of C.
    pub ldc: usize,
    /// Where the first row goes instead of C, unless null.
    pub carry_out: *mut T,
    /// Whether rows of C bypass the caches, where several heads are computed at a time.
    pub stream: bool,
}

/// SDDMM of heads.
#[derive(Clone, Copy, Debug)]
pub struct SddmmHeads<T> {
    /// The rows.
    pub rows: HeadRows<T>,
    /// C.
    pub c: *const T,
    /// Row stride of C.
    pub ldc: usize,
    /// H numbers for each nonzero, of which the task's are written.
    pub out: *mut T,
    /// Whether they bypass the caches, where all heads are computed at a time.
    pub stream: bool,
}

/// Runs the task. With the instruction set that [`Arch::dividing`] gives for the heads' width several heads are computed at a time; any
/// other is right, too.
///
/// # Safety
/// The CSR arrays are valid, every row is a row of C and every column a row of B, the operands have the strides and sizes stated,
/// and no one else uses the task's rows of C or `carry_out` at the same time.
pub unsafe fn spmm_heads<T: Scalar>(arch: Arch, task: SpmmHeads<T>) {
    dispatch_compiled!(arch, Sums(task), Sums<f32>, Sums<f64>);
}

/// Runs the task.
///
/// # Safety
/// As [`spmm_heads`], with the task's part of `out` instead of rows of C.
pub unsafe fn sddmm_heads<T: Scalar>(arch: Arch, task: SddmmHeads<T>) {
    dispatch_compiled!(arch, task, SddmmHeads<f32>, SddmmHeads<f64>, |arch, task| task.dispatch(arch));
}

impl<T: Scalar> HeadRows<T> {
    /// The task's nonzeros of row `i`; indices to come are prefetched where rows of B are.
    ///
    /// # Safety
    /// As [`spmm_heads`].
    #[inline(always)]
    unsafe fn nonzeros(&self, i: usize) -> [usize; 2] {
        // SAFETY: the caller's promise.
        let [start, end] = unsafe { [self.row_ptr.at(i), self.row_ptr.at(i + 1)] };
        let start = start.max(self.nonzeros[0]);
        let end = end.min(self.nonzeros[1]).max(start);
        if self.prefetch_distance > 0 {
            prefetch_l1(self.columns.wrapping_add(end + AHEAD));
        }
        [start, end]
    }

    /// The rows of B of the nonzeros from `start` on, which is one of the task's, from column `column` on.
    ///
    /// # Safety
    /// As [`spmm_heads`].
    #[inline(always)]
    unsafe fn gathered(&self, start: usize, column: usize) -> Gathered<T> {
        // SAFETY: the caller's promise.
        unsafe {
            Gathered {
                columns: self.columns.add(start),
                base: self.b.add(column),
                stride: self.ldb,
                last: self.nonzeros[1] - 1 - start,
                prefetch_distance: self.prefetch_distance,
                prefetch: Prefetch::at(self.prefetch_distance),
            }
        }
    }

    /// Registers of a head, where it is whole registers of `lanes` elements, more than one; else 0.
    #[inline(always)]
    fn registers(&self, lanes: usize) -> usize {
        if lanes > 1 && self.width.is_multiple_of(lanes) { self.width / lanes } else { 0 }
    }
}

#[derive(Clone, Copy)]
struct Sums<T>(SpmmHeads<T>);

impl<T: Scalar> WithSimd for Sums<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let task = &self.0;
        let registers = task.rows.registers(T::lanes::<S>());
        let total = task.rows.heads * registers;
        // SAFETY: the promise of `spmm_heads`; registers from `first` on are inside the rows.
        unsafe {
            if !matches!(registers, 1 | 2 | 4) {
                return task.by_heads(simd);
            }
            let mut first = 0;
            while first < total {
                let left = total - first;
                first += match (registers, left) {
                    (1, 8..) => task.tile::<S, 1, 8>(simd, first),
                    (1, 4..) => task.tile::<S, 1, 4>(simd, first),
                    (1, 2..) => task.tile::<S, 1, 2>(simd, first),
                    (1, _) => task.tile::<S, 1, 1>(simd, first),
                    (2, 8..) => task.tile::<S, 2, 8>(simd, first),
                    (2, _) => task.tile::<S, 2, 2>(simd, first),
                    (_, 8..) => task.tile::<S, 4, 8>(simd, first),
                    _ => task.tile::<S, 4, 4>(simd, first),
                };
            }
        }
        if task.stream {
            stream_fence();
        }
    }
}

impl<T: Scalar> SpmmHeads<T> {
    /// Where row `i` goes.
    #[inline(always)]
    fn target(&self, i: usize) -> *mut T {
        if i == self.rows.rows[0] && !self.carry_out.is_null() {
            self.carry_out
        } else {
            self.c.wrapping_add(i * self.ldc)
        }
    }

    /// The `NV` registers from register `first` of the rows on, `K` to a head; `NV`.
    ///
    /// # Safety
    /// As [`spmm_heads`].
    #[inline(always)]
    unsafe fn tile<S: Simd, const K: usize, const NV: usize>(&self, simd: S, first: usize) -> usize {
        // As in `axpy_gathered`: eight chains of dependent multiply-adds.
        match NV {
            // SAFETY: the caller's promise.
            1 | 2 => unsafe { self.sets::<S, 4, K, NV>(simd, first) },
            // SAFETY: likewise.
            4 => unsafe { self.sets::<S, 2, K, NV>(simd, first) },
            // SAFETY: likewise.
            _ => unsafe { self.sets::<S, 1, K, NV>(simd, first) },
        }
        NV
    }

    /// [`SpmmHeads::tile`] in `SETS` nonzeros per step.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn sets<S: Simd, const SETS: usize, const K: usize, const NV: usize>(&self, simd: S, first: usize) {
        let (lanes, heads) = (T::lanes::<S>(), self.rows.heads);
        let bytes = NV * lanes * size_of::<T>();
        let (mask, spread) = (T::first_lanes(simd, 0), Spread::new(simd));
        // SAFETY: the caller's promise; t + u < n throughout.
        unsafe {
            for i in self.rows.rows[0]..self.rows.rows[1] {
                let [start, end] = self.rows.nonzeros(i);
                let n = end - start;
                let mut sums = [[T::splat(simd, T::ZERO); NV]; SETS];
                if n > 0 {
                    let rows = self.rows.gathered(start, first * lanes);
                    let values = self.values.add(start * heads + first / K);
                    let mut t = 0;
                    let whole = n - n % SETS;
                    by_prefetch!(rows.prefetch, PREFETCH => {
                        while t < whole {
                            for u in 0..SETS {
                                let (b, w) = (rows.row::<PREFETCH>(t + u, bytes), values.add((t + u) * heads));
                                sums[u] = weighed::<S, T, K, NV>(simd, &spread, sums[u], b, w);
                            }
                            t += SETS;
                        }
                        while SETS > 1 && t < n {
                            let (b, w) = (rows.row::<PREFETCH>(t, bytes), values.add(t * heads));
                            sums[0] = weighed::<S, T, K, NV>(simd, &spread, sums[0], b, w);
                            t += 1;
                        }
                    });
                }
                let mut sum = sums[0];
                for set in &sums[1..] {
                    for j in 0..NV {
                        sum[j] = T::vadd(simd, sum[j], set[j]);
                    }
                }
                let c = self.target(i).add(first * lanes);
                tile::store_or_stream::<S, T, NV, false>(simd, mask, c, sum, self.stream);
            }
        }
    }

    /// Head after head.
    ///
    /// # Safety
    /// As [`spmm_heads`].
    #[inline(always)]
    unsafe fn by_heads<S: Simd>(&self, simd: S) {
        for tile in tiles(self.rows.width, T::lanes::<S>(), 8) {
            // SAFETY: the caller's promise; the tile is inside each head's columns.
            unsafe { with_vectors!(tile, sums_of_heads::<S, T>(simd, self, tile)) }
        }
    }
}

/// `sums` + the `NV` registers at `b`, each times the value of its head, of `K` registers: those from `w` on. Eight values are
/// loaded together, as a broadcast from memory is a load like that of a register of B (8 heads of 16 columns by one of 128, f32, one thread of
/// a Zen 4: B in L1 1.38 by broadcasts, 1.09 so; 70 000 rows of 9 nonzeros, B of 12 MB 1.09 and 1.0).
///
/// # Safety
/// All of them are valid for reads.
#[inline(always)]
unsafe fn weighed<S: Simd, T: Scalar, const K: usize, const NV: usize>(
    simd: S,
    spread: &Spread<S, T>,
    mut sums: [T::Vector<S>; NV],
    b: *const T,
    w: *const T,
) -> [T::Vector<S>; NV] {
    // SAFETY: the caller's promise; there are eight values where they are loaded together.
    unsafe {
        if NV / K == OFFSETS_PER_WORD {
            let eight = spread.eight(w);
            for j in 0..NV {
                let w = spread.lane(&eight, j / K);
                sums[j] = T::vmul_add(simd, w, T::load(simd, b.add(j * T::lanes::<S>())), sums[j]);
            }
        } else {
            for j in 0..NV {
                let w = T::splat(simd, *w.add(j / K));
                sums[j] = T::vmul_add(simd, w, T::load(simd, b.add(j * T::lanes::<S>())), sums[j]);
            }
        }
    }
    sums
}

/// Values of one head that are held at a time.
const CHUNK: usize = 64;

/// One tile of each head, whose last register is masked.
///
/// # Safety
/// As [`spmm_heads`].
#[inline(always)]
unsafe fn sums_of_heads<S: Simd, T: Scalar, const NV: usize>(simd: S, task: &SpmmHeads<T>, tile: Tile) {
    let (lanes, heads) = (T::lanes::<S>(), task.rows.heads);
    let mask = T::first_lanes(simd, if tile.rest == 0 { lanes } else { tile.rest });
    let mut weights = Lines([T::ZERO; CHUNK]);
    // SAFETY: the caller's promise; a chunk's values fit the buffer.
    unsafe {
        for i in task.rows.rows[0]..task.rows.rows[1] {
            let [start, end] = task.rows.nonzeros(i);
            for h in 0..heads {
                let column = h * task.rows.width + tile.start;
                let mut sum = [T::splat(simd, T::ZERO); NV];
                let mut at = start;
                while at < end {
                    let len = CHUNK.min(end - at);
                    for t in 0..len {
                        weights.0[t] = *task.values.add((at + t) * heads + h);
                    }
                    let rows = task.rows.gathered(at, column);
                    sum = axpy_gathered::<S, T, NV, true>(simd, mask, sum, len, weights.0.as_ptr(), &rows);
                    at += len;
                }
                tile::store::<S, T, NV, true>(simd, mask, task.target(i).add(column), sum);
            }
        }
    }
}
