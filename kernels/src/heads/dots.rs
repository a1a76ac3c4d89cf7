//! SDDMM of heads.
//!
//! Four dots of a tile, of four heads, are summed across the lanes as those of four nonzeros are in SDDMM with one head (`dot`). There
//! the lanes of one register are summed for each dot, whatever the columns, so that with H heads there are H times the shuffles. With
//! registers of half the width a head is twice as many of them, which multiply-adds sum into one: of the tree, its lowest level, half of
//! the shuffles and additions by their width, is gone. So AVX-512 takes heads of one and two of its registers in halves, 32 of which
//! it has.

use pulp::{Simd, WithSimd};

use super::SddmmHeads;
use crate::dot::{GROUP, Sink, dots, join, sum_group};
use crate::rows::by_prefetch;
use crate::sddmm::{MOST_VECTORS, prefetch_later_rows};
use crate::stream::{store_streaming, stream_fence};
use crate::tile::{self, Tile, tiles, with_elements, with_vectors};
use crate::{Arch, Scalar};

impl<T: Scalar> SddmmHeads<T> {
    /// To the code for each number of registers: all of it in one function takes the compiler several times as long.
    #[inline(always)]
    pub(super) fn dispatch(self, arch: Arch) {
        let (lanes, heads) = (arch.lanes::<T>(), self.rows.heads);
        let registers = self.rows.registers(lanes);
        if lanes < GROUP || !heads.is_multiple_of(GROUP) || !matches!(registers, 1 | 2) {
            for tile in tiles(self.rows.width, lanes, MOST_VECTORS) {
                with_vectors!(tile, run_each_head::<T>(arch, self, tile));
            }
            return;
        }
        let mut first = 0;
        while first < heads {
            first += match (registers, heads - first) {
                (1, 8..) => run_heads::<T, 1, 8, 2, 16>(arch, self, first),
                (1, _) => run_heads::<T, 1, 4, 2, 8>(arch, self, first),
                _ => run_heads::<T, 2, 8, 4, 16>(arch, self, first),
            };
        }
        if self.stream {
            stream_fence();
        }
    }
}

/// Some heads from `first` on, as pulp runs them: `NV` registers, `K` to a head.
struct Heads<T, const K: usize, const NV: usize> {
    task: SddmmHeads<T>,
    first: usize,
}

/// Runs the `NV / K` heads from `first` on, `NV_HALVES` registers of half the size where these are used; how many.
#[inline(always)]
fn run_heads<T: Scalar, const K: usize, const NV: usize, const K_HALVES: usize, const NV_HALVES: usize>(
    arch: Arch,
    task: SddmmHeads<T>,
    first: usize,
) -> usize {
    arch.dispatch_halves(Heads::<T, K_HALVES, NV_HALVES> { task, first }, Heads::<T, K, NV> { task, first });
    NV / K
}

impl<T: Scalar, const K: usize, const NV: usize> WithSimd for Heads<T, K, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `sddmm_heads`; the heads are the task's.
        unsafe { self.task.tile::<S, K, NV>(simd, self.first) }
    }
}

/// One tile of each head, as pulp runs it.
struct HeadTile<T, const NV: usize> {
    task: SddmmHeads<T>,
    tile: Tile,
}

/// Runs the tile.
#[inline(always)]
fn run_each_head<T: Scalar, const NV: usize>(arch: Arch, task: SddmmHeads<T>, tile: Tile) {
    arch.dispatch_vectors(HeadTile::<T, NV> { task, tile }, |simd| each_head_of_elements(simd, &task, tile));
}

/// Runs the tile where vectors are single elements.
#[inline(never)]
fn each_head_of_elements<T: Scalar>(simd: pulp::Scalar, task: &SddmmHeads<T>, tile: Tile) {
    // SAFETY: the promise of `sddmm_heads`; the tile is inside each head.
    unsafe { with_elements!(tile, each_head::<pulp::Scalar, T>(simd, task, tile)) }
}

impl<T: Scalar, const NV: usize> WithSimd for HeadTile<T, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `sddmm_heads`; the tile is inside each head.
        unsafe { each_head::<S, T, NV>(simd, &self.task, self.tile) }
    }
}

impl<T: Scalar> SddmmHeads<T> {
    /// The `NV / K` heads from `first` on, four or eight, of `K` registers each.
    ///
    /// # Safety
    /// As [`sddmm_heads`].
    #[inline(always)]
    unsafe fn tile<S: Simd, const K: usize, const NV: usize>(&self, simd: S, first: usize) {
        let (lanes, own) = (T::lanes::<S>(), NV / K);
        let (column, bytes, mask) = (first * K * lanes, NV * lanes * size_of::<T>(), T::first_lanes(simd, 0));
        // Groups of a register of dots, and of a nonzero; nonzeros of a step, whose dots are whole registers.
        let (of_register, of_nonzero) = (lanes / GROUP, own / GROUP);
        let step = (of_register / of_nonzero).max(1);
        // SAFETY: the caller's promise; past the last nonzero, the last one again.
        unsafe {
            for i in self.rows.rows[0]..self.rows.rows[1] {
                let [start, end] = self.rows.nonzeros(i);
                if start == end {
                    continue;
                }
                let c = self.c.wrapping_add(i * self.ldc + column);
                prefetch_later_rows(c, self.ldc, bytes);
                let c = tile::load::<S, T, NV, false>(simd, mask, c);
                let rows = self.rows.gathered(start, column);
                let n = end - start;
                let mut t = 0;
                by_prefetch!(rows.prefetch, PREFETCH => {
                    while t < n {
                        let mut register = 0;
                        while register * lanes < step * own {
                            let mut sums = [T::splat(simd, T::ZERO); GROUP];
                            for g in 0..of_register {
                                let group = register * of_register + g;
                                let b = rows.row::<PREFETCH>(
                                    (t + group / of_nonzero).min(n - 1),
                                    if group.is_multiple_of(of_nonzero) { bytes } else { 0 },
                                );
                                let part = group % of_nonzero * GROUP;
                                let mut products = [T::splat(simd, T::ZERO); GROUP];
                                for u in 0..GROUP {
                                    let j = (part + u) * K;
                                    products[u] = T::vmul(simd, c[j], T::load(simd, b.add(j * lanes)));
                                    for k in 1..K {
                                        let b = T::load(simd, b.add((j + k) * lanes));
                                        products[u] = T::vmul_add(simd, c[j + k], b, products[u]);
                                    }
                                }
                                sums[g] = sum_group::<S, T>(simd, &products);
                            }
                            let dots = join::<S, T>(simd, sums);
                            self.emit::<S>(simd, (start + t, first), own, register * lanes, (n - t).min(step) * own, dots);
                            register += 1;
                        }
                        t += step;
                    }
                });
            }
        }
    }

    /// Stores `dots`, those from `at` on of the step's `count`, which are `own` for each nonzero from `p` on and head from `first` on.
    ///
    /// # Safety
    /// There is room for them.
    #[inline(always)]
    unsafe fn emit<S: Simd>(
        &self,
        simd: S,
        (p, first): (usize, usize),
        own: usize,
        at: usize,
        count: usize,
        dots: T::Vector<S>,
    ) {
        let (lanes, heads) = (T::lanes::<S>(), self.rows.heads);
        // SAFETY: the caller's promise.
        unsafe {
            if own == heads {
                let out = self.out.add(p * heads + at);
                if at + lanes <= count {
                    // Aligned, where the first register of the nonzeros' dots is.
                    if self.stream && out.addr().is_multiple_of(size_of::<T::Vector<S>>()) {
                        store_streaming::<S, T>(simd, out, dots);
                    } else {
                        T::store(simd, out, dots);
                    }
                } else if at < count {
                    T::store_masked(simd, T::first_lanes(simd, count - at), out, dots);
                }
                return;
            }
            let from = (&raw const dots).cast::<T>();
            let mut t = 0;
            while t < lanes && at + t < count {
                let (nonzero, head) = ((at + t) / own, (at + t) % own);
                from.add(t).copy_to_nonoverlapping(self.out.add((p + nonzero) * heads + first + head), GROUP);
                t += GROUP;
            }
        }
    }
}

/// One tile of each head, whose last register is masked, added to those of the tiles before.
///
/// # Safety
/// As [`sddmm_heads`].
#[inline(always)]
unsafe fn each_head<S: Simd, T: Scalar, const NV: usize>(simd: S, task: &SddmmHeads<T>, tile: Tile) {
    let (lanes, heads) = (T::lanes::<S>(), task.rows.heads);
    let mask = T::first_lanes(simd, if tile.rest == 0 { lanes } else { tile.rest });
    // SAFETY: the caller's promise.
    unsafe {
        for i in task.rows.rows[0]..task.rows.rows[1] {
            let [start, end] = task.rows.nonzeros(i);
            if start == end {
                continue;
            }
            for h in 0..heads {
                let column = h * task.rows.width + tile.start;
                let c = task.c.wrapping_add(i * task.ldc + column);
                prefetch_later_rows(c, task.ldc, NV * lanes * size_of::<T>());
                let c = tile::load::<S, T, NV, true>(simd, mask, c);
                let rows = task.rows.gathered(start, column);
                let sink = Strided { out: task.out.add(start * heads + h), heads, add: tile.start > 0 };
                dots::<S, T, NV, true>(simd, mask, &c, end - start, &rows, &sink);
            }
        }
    }
}

/// The dots of one head.
struct Strided<T> {
    out: *mut T,
    heads: usize,
    /// To the sums of the tiles before.
    add: bool,
}

impl<T: Scalar> Sink<T> for Strided<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, _: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>) {
        let from = (&raw const dots).cast::<T>();
        for lane in lanes[0]..lanes[1] {
            // SAFETY: the caller's promise; a vector is its lanes.
            unsafe {
                let out = self.out.add((at + lane - lanes[0]) * self.heads);
                let dot = *from.add(lane);
                *out = if self.add { *out + dot } else { dot };
            }
        }
    }
}
