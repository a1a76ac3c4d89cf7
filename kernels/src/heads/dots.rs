//! SDDMM of heads.
//!
//! Four dots of a tile, of four heads, are summed across the lanes as those of four nonzeros are in SDDMM with one head (`dot`). There
//! the lanes of one register are summed for each dot, whatever the columns, so that with H heads there are H times the shuffles. With
//! registers of half the width a head is twice as many of them, which multiply-adds sum into one: of the tree, its lowest level, half of
//! the shuffles and additions by their width, is gone. So AVX-512 takes heads of one and two of its registers in halves, 32 of which
//! it has.

use pulp::{Simd, WithSimd};

use super::SddmmHeads;
use crate::Scalar;
use crate::arch::halved;
use crate::dot::{GROUP, Sink, dots, join, sum_group};
use crate::rows::by_prefetch;
use crate::sddmm::{MOST_VECTORS, prefetch_later_rows};
use crate::stream::{store_streaming, stream_fence};
use crate::tile::{self, Tile, tiles, with_vectors};

/// SDDMM of heads as pulp runs it.
#[derive(Clone, Copy)]
pub(super) struct Dots<T>(pub SddmmHeads<T>);

impl<T: Scalar> WithSimd for Dots<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let task = &self.0;
        let (registers, heads, lanes) = (task.rows.registers::<S>(), task.rows.heads, T::lanes::<S>());
        // SAFETY: the promise of `sddmm_heads`; heads from `first` on are inside the rows.
        unsafe {
            if lanes < GROUP || !heads.is_multiple_of(GROUP) || !matches!(registers, 1 | 2) {
                for tile in tiles(task.rows.width, lanes, MOST_VECTORS) {
                    with_vectors!(tile, dots_of_heads::<S, T>(simd, task, tile));
                }
                return;
            }
            let mut first = 0;
            while first < heads {
                first += match (halved(simd), registers, heads - first) {
                    (Some(half), 1, 8..) => task.tile::<_, 2, 16>(half, first),
                    (Some(half), 1, _) => task.tile::<_, 2, 8>(half, first),
                    (Some(half), ..) => task.tile::<_, 4, 16>(half, first),
                    (None, 1, _) => task.tile::<S, 1, 4>(simd, first),
                    (None, ..) => task.tile::<S, 2, 8>(simd, first),
                };
            }
            if task.stream {
                stream_fence();
            }
        }
    }
}

impl<T: Scalar> SddmmHeads<T> {
    /// The `NV / K` heads from `first` on, four or eight, of `K` registers each; how many.
    ///
    /// # Safety
    /// As [`sddmm_heads`].
    #[inline(always)]
    unsafe fn tile<S: Simd, const K: usize, const NV: usize>(&self, simd: S, first: usize) -> usize {
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
        own
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
unsafe fn dots_of_heads<S: Simd, T: Scalar, const NV: usize>(simd: S, task: &SddmmHeads<T>, tile: Tile) {
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
