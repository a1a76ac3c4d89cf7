//! Where the dense rows of a sparse row's nonzeros are, and the sum over them: y += sum_t w_t B_(j_t).
//!
//! Two sources of rows: [`Gathered`], B itself addressed by column indices (the direct path), and a packed panel of B,
//! which is copied into L1 and addressed by 8-bit offsets, eight of which come in one load. The difference matters: a
//! multiply-add whose row address comes out of a load of its own runs at 70 % of peak from L1, one whose address is
//! shifted out of a register at 78 %.

use pulp::Simd;

use crate::address::row_address;
use crate::block::{OFFSETS_PER_WORD, Offsets, Pair};
use crate::prefetch::prefetch_row_l2;
use crate::semiring::{PlusTimes, Semiring};
use crate::spread::Spread;
use crate::stored::{Mask, Vector};
use crate::{LINE, Number, Stored, prefetch_l1, prefetch_row, tile};

/// Vectors of a packed row up to which weights are prefetched, and bytes ahead. The processor's own prefetches come too late where a weight
/// is used by so few multiply-adds: its loads were a fifth of the time (SpMM by panels, 4096 x 4096 with 70 % zeros, N = 32, a thread of a
/// Zen 4: 71 % of peak instead of 60). Four vectors gain 4 % where the weights outgrow L3 and lose 2 % where they do not; pairs of rows
/// lose 3 %.
const FEW: usize = 2;
const AHEAD: usize = 1024;

/// Nonzeros ahead up to which rows are prefetched in L1. What is prefetched from farther on comes from memory: it goes to L2, which has room
/// for more requests, and [`FROM_L2`] nonzeros ahead to L1 (SpMM and SDDMM with 36 MB and more of B take 0.65 to 0.79 of the time on a Zen 4).
pub(crate) const L1_DISTANCE: usize = 64;
const FROM_L2: usize = 16;

/// Rows of B at `base + columns[t] * stride`; those to come are prefetched.
#[derive(Clone, Copy)]
pub(crate) struct Gathered<T> {
    pub columns: *const u32,
    pub base: *const T,
    pub stride: usize,
    /// Nonzeros from `columns` to the last one that may be prefetched.
    pub last: usize,
    /// Distance of the prefetch in nonzeros.
    pub prefetch_distance: usize,
    /// Whether and where rows to come are prefetched.
    pub prefetch: Prefetch,
}

impl<T> Gathered<T> {
    /// Row t, `bytes` of a later one prefetched as [`Gathered::prefetch`] says, a constant by [`by_prefetch`].
    ///
    /// # Safety
    /// `columns` is valid for reads up to t and `last`, and its indices are rows of B.
    #[inline(always)]
    pub unsafe fn row<const PREFETCH: u8>(&self, t: usize, bytes: usize) -> *const T {
        // SAFETY: the caller's promise.
        unsafe {
            let row = |t: usize| self.base.add(*self.columns.add(t) as usize * self.stride);
            let later = |distance: usize| row((t + distance).min(self.last));
            if PREFETCH == Prefetch::L2 as u8 {
                prefetch_row_l2(later(self.prefetch_distance), bytes);
                prefetch_row(later(FROM_L2), bytes);
            } else if PREFETCH == Prefetch::L1 as u8 {
                prefetch_row(later(self.prefetch_distance), bytes);
            }
            // More than a line is more than a register.
            if bytes > LINE { row_address::<T, 2>(row(t)) } else { row(t) }
        }
    }

    /// Row t becomes row 0.
    #[inline(always)]
    fn advance(&mut self, t: usize) {
        self.columns = self.columns.wrapping_add(t);
        self.last = self.last.wrapping_sub(t);
    }

    /// Rows t to t + 3, of which there are `most`, the last one again for those past it; `bytes` of later ones prefetched.
    ///
    /// # Safety
    /// As [`Gathered::row`] up to t + most - 1, most at least 1.
    #[inline(always)]
    pub unsafe fn group<const PREFETCH: u8>(&self, t: usize, most: usize, bytes: usize) -> [*const T; 4] {
        let mut rows = [self.base; 4];
        for u in 0..4 {
            // SAFETY: the caller's promise; past the last row, the last one again.
            rows[u] = unsafe { self.row::<PREFETCH>(t + u.min(most - 1), bytes) };
        }
        rows
    }
}

/// Whether and where rows to come are prefetched.
#[derive(Clone, Copy)]
pub(crate) enum Prefetch {
    None,
    L1,
    /// In L2, and the nearer ones of them in L1.
    L2,
}

impl Prefetch {
    /// Where rows so many nonzeros ahead are prefetched; 0 for not at all.
    #[inline(always)]
    pub fn at(distance: usize) -> Self {
        match distance {
            0 => Self::None,
            1..=L1_DISTANCE => Self::L1,
            _ => Self::L2,
        }
    }

    /// The one whose number it is.
    #[inline(always)]
    pub const fn of(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::L1,
            _ => Self::L2,
        }
    }
}

/// Runs a loop over [`Gathered`] rows with the constant for [`Gathered::row`]: the branches on it at every row took a tenth of the time
/// of SpMM in bf16 (amazon_book, N = 128, Zen 5).
macro_rules! by_prefetch {
    ($prefetch:expr, $PREFETCH:ident => $run:expr) => {
        match $prefetch {
            $crate::rows::Prefetch::None => {
                const $PREFETCH: u8 = $crate::rows::Prefetch::None as u8;
                $run
            }
            $crate::rows::Prefetch::L1 => {
                const $PREFETCH: u8 = $crate::rows::Prefetch::L1 as u8;
                $run
            }
            $crate::rows::Prefetch::L2 => {
                const $PREFETCH: u8 = $crate::rows::Prefetch::L2 as u8;
                $run
            }
        }
    };
}
pub(crate) use by_prefetch;

/// y + sum over t in 0..n of weights_t * row(t), rows given by `rows`.
///
/// # Safety
/// `weights` holds `n` elements; the rows of `rows` up to nonzero `n` are valid for reads of the tile.
#[inline(always)]
pub(crate) unsafe fn axpy_gathered<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    y: [Vector<D, S>; NV],
    n: usize,
    weights: *const D::Scalar,
    rows: &Gathered<D>,
) -> [Vector<D, S>; NV] {
    if !D::reorders::<S>() {
        // SAFETY: the caller's promise is the callee's.
        return unsafe { axpy_reordered::<S, D, NV, TAIL>(simd, mask, y, n, weights, rows) };
    }
    let zero = [D::Scalar::splat(simd, D::Scalar::ZERO); NV];
    // SAFETY: likewise.
    let sum = unsafe { axpy_reordered::<S, D, NV, TAIL>(simd, mask, zero, n, weights, rows) };
    add_sets::<S, D::Scalar, PlusTimes, 2, NV>(simd, PlusTimes, [y, tile::in_order::<S, D, NV>(simd, sum)])
}

/// As [`axpy_gathered`], y and the result in the order of [`tile::load_reordered`].
///
/// # Safety
/// As [`axpy_gathered`].
#[inline(always)]
pub(crate) unsafe fn axpy_reordered<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    y: [Vector<D, S>; NV],
    n: usize,
    weights: *const D::Scalar,
    rows: &Gathered<D>,
) -> [Vector<D, S>; NV] {
    // Sets of accumulators, used in turn, so that there are eight chains of dependent multiply-adds: the latency (4)
    // times the throughput (2 a cycle).
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        match NV {
            1 | 2 => axpy_gathered_sets::<S, D, 4, NV, TAIL>(simd, mask, y, n, weights, rows),
            3 | 4 => axpy_gathered_sets::<S, D, 2, NV, TAIL>(simd, mask, y, n, weights, rows),
            _ => axpy_gathered_sets::<S, D, 1, NV, TAIL>(simd, mask, y, n, weights, rows),
        }
    }
}

/// As [`axpy_reordered`], `SETS` nonzeros per step.
///
/// # Safety
/// As [`axpy_gathered`].
#[inline(always)]
unsafe fn axpy_gathered_sets<S: Simd, D: Stored, const SETS: usize, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    y: [Vector<D, S>; NV],
    n: usize,
    weights: *const D::Scalar,
    rows: &Gathered<D>,
) -> [Vector<D, S>; NV] {
    let mut acc = [[D::Scalar::splat(simd, D::Scalar::ZERO); NV]; SETS];
    acc[0] = y;
    let bytes = NV * D::Scalar::lanes::<S>() * size_of::<D>();
    // Both go along with the nonzeros: where they stayed, and an index went, the compiler kept them in memory, two loads more for each.
    let (mut weights, mut rows) = (weights, *rows);
    // SAFETY: weights and rows are valid for n nonzeros by the caller's promise.
    unsafe {
        by_prefetch!(rows.prefetch, PREFETCH => {
            let (end, whole) = (weights.wrapping_add(n), weights.wrapping_add(n - n % SETS));
            while weights < whole {
                for u in 0..SETS {
                    let w = D::Scalar::splat(simd, *weights.add(u));
                    let b = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, rows.row::<PREFETCH>(u, bytes));
                    for j in 0..NV {
                        acc[u][j] = D::Scalar::vmul_add(simd, w, b[j], acc[u][j]);
                    }
                }
                weights = weights.add(SETS);
                rows.advance(SETS);
            }
            // None are left by one set: without its loop, the compiler copies no accumulators.
            while SETS > 1 && weights < end {
                let w = D::Scalar::splat(simd, *weights);
                let b = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, rows.row::<PREFETCH>(0, bytes));
                for j in 0..NV {
                    acc[0][j] = D::Scalar::vmul_add(simd, w, b[j], acc[0][j]);
                }
                weights = weights.add(1);
                rows.advance(1);
            }
        });
    }
    add_sets::<S, D::Scalar, PlusTimes, SETS, NV>(simd, PlusTimes, acc)
}

/// The sum of the sets of accumulators.
#[inline(always)]
fn add_sets<S: Simd, T: Number, R: Semiring<T>, const SETS: usize, const NV: usize>(
    simd: S,
    semiring: R,
    acc: [[T::Vector<S>; NV]; SETS],
) -> [T::Vector<S>; NV] {
    let mut y = acc[0];
    for set in &acc[1..] {
        for j in 0..NV {
            y[j] = semiring.add(simd, set[j], y[j]);
        }
    }
    y
}

/// A packed panel of rows of `NV` vectors, and the semiring that its rows are summed in.
#[derive(Clone, Copy)]
pub(crate) struct Packed<S, T, R, const NV: usize> {
    pub simd: S,
    pub semiring: R,
    pub rows: *const T,
}

impl<S: Simd, T: Number, R: Semiring<T>, const NV: usize> Packed<S, T, R, NV> {
    /// y + sum over t in 0..n of weights_t * (row at the next offset).
    ///
    /// # Safety
    /// `weights` holds `n` elements, `offsets` has `n` more offsets rounded up to a word, and the panel every row they name.
    #[inline(always)]
    pub unsafe fn axpy(
        self,
        spread: &Spread<S, T>,
        y: [T::Vector<S>; NV],
        n: usize,
        weights: *const T,
        offsets: &mut Offsets,
    ) -> [T::Vector<S>; NV] {
        // SAFETY: the caller's promise is the callee's. Sets as in `axpy_gathered`.
        unsafe {
            match NV {
                1 | 2 if R::LATENT => self.axpy_sets::<4>(spread, y, n, weights, offsets),
                3 | 4 if R::LATENT => self.axpy_sets::<2>(spread, y, n, weights, offsets),
                _ => self.axpy_sets::<1>(spread, y, n, weights, offsets),
            }
        }
    }

    /// As [`Packed::axpy`], with `SETS` sets of accumulators.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn axpy_sets<const SETS: usize>(
        self,
        spread: &Spread<S, T>,
        y: [T::Vector<S>; NV],
        n: usize,
        mut weights: *const T,
        offsets: &mut Offsets,
    ) -> [T::Vector<S>; NV] {
        let (simd, semiring) = (self.simd, self.semiring);
        let mut acc = [[T::splat(simd, semiring.zero()); NV]; SETS];
        acc[0] = y;
        // SAFETY: reads of weights stay below n, as many words are taken as hold n offsets; rows are in the panel.
        unsafe {
            let end = weights.add(n & !(OFFSETS_PER_WORD - 1));
            while weights < end {
                let mut word = offsets.take();
                if NV <= FEW {
                    prefetch_l1(weights.wrapping_byte_add(AHEAD));
                }
                let eight = spread.eight(weights);
                for t in 0..OFFSETS_PER_WORD {
                    semiring.accumulate(simd, &mut acc[t % SETS], spread.lane(&eight, t), &self.row(word));
                    word >>= 8;
                }
                weights = weights.add(OFFSETS_PER_WORD);
            }
            let mut rest = n & (OFFSETS_PER_WORD - 1);
            if rest > 0 {
                let mut word = offsets.take();
                if rest >= 4 {
                    for t in 0..4 {
                        let w = T::splat(simd, *weights.add(t));
                        semiring.accumulate(simd, &mut acc[t % SETS], w, &self.row(word));
                        word >>= 8;
                    }
                    weights = weights.add(4);
                    rest -= 4;
                }
                while rest > 0 {
                    let w = T::splat(simd, *weights);
                    semiring.accumulate(simd, &mut acc[SETS - 1], w, &self.row(word));
                    word >>= 8;
                    weights = weights.add(1);
                    rest -= 1;
                }
            }
        }
        add_sets::<S, T, R, SETS, NV>(simd, semiring, acc)
    }

    /// The row at the offset in the low byte of `word`.
    ///
    /// # Safety
    /// It is one of the panel's.
    #[inline(always)]
    unsafe fn row(&self, word: u64) -> [T::Vector<S>; NV] {
        // SAFETY: the caller's promise; no mask is used.
        unsafe {
            let row = self.rows.add((word & 255) as usize * (NV * T::lanes::<S>()));
            tile::load::<S, T, NV, false>(self.simd, T::first_lanes(self.simd, 0), row_address::<T, NV>(row))
        }
    }

    /// Both rows' sums: y_r + sum of weights * packed rows over the common columns of the pair and row r's own.
    ///
    /// A row of B in the common columns is loaded once and used twice: there the loads are no longer the bottleneck.
    ///
    /// # Safety
    /// `weights` holds the nonzeros of the pair, `offsets` has its offsets next, and the panel every row that they name.
    #[inline(always)]
    pub unsafe fn axpy_pair(
        self,
        y: [[T::Vector<S>; NV]; 2],
        pair: &Pair,
        weights: *const T,
        offsets: &mut Offsets,
    ) -> [[T::Vector<S>; NV]; 2] {
        // SAFETY: the caller's promise is the callee's. Sets as in `axpy_gathered`, for two rows at once.
        unsafe {
            match NV {
                1 if R::LATENT => self.axpy_pair_sets::<4>(y, pair, weights, offsets),
                2 if R::LATENT => self.axpy_pair_sets::<2>(y, pair, weights, offsets),
                _ => self.axpy_pair_sets::<1>(y, pair, weights, offsets),
            }
        }
    }

    /// As [`Packed::axpy_pair`], with `SETS` sets of accumulators.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn axpy_pair_sets<const SETS: usize>(
        self,
        y: [[T::Vector<S>; NV]; 2],
        pair: &Pair,
        weights: *const T,
        offsets: &mut Offsets,
    ) -> [[T::Vector<S>; NV]; 2] {
        let (simd, semiring) = (self.simd, self.semiring);
        let zero = [T::splat(simd, semiring.zero()); NV];
        let (mut first, mut second) = ([zero; SETS], [zero; SETS]);
        (first[0], second[0]) = (y[0], y[1]);
        // SAFETY: each row has `both + each` weights; as many words are taken as hold the offsets; rows are in the panel.
        unsafe {
            let weights = [weights, weights.add(pair.nnz() as usize)];
            let mut steps = Steps { panel: self, offsets, word: 0, weights };
            steps.run::<SETS, true>(pair.both as usize, &mut first, &mut second);
            steps.run::<SETS, false>(pair.each as usize, &mut first, &mut second);
        }
        let first = add_sets::<S, T, R, SETS, NV>(simd, semiring, first);
        [first, add_sets::<S, T, R, SETS, NV>(simd, semiring, second)]
    }
}

/// Steps of [`Packed::axpy_pair`] through the offsets and the weights of both rows.
struct Steps<'a, S, T, R, const NV: usize> {
    panel: Packed<S, T, R, NV>,
    offsets: &'a mut Offsets,
    /// The offsets to come of the word in use, the next in the low byte.
    word: u64,
    weights: [*const T; 2],
}

impl<S: Simd, T: Number, R: Semiring<T>, const NV: usize> Steps<'_, S, T, R, NV> {
    /// `n` columns that `BOTH` rows have, one row of B for both; or `n` of each row, in turn.
    ///
    /// # Safety
    /// The next words have their offsets, of rows in the panel, and each row `n` more weights.
    #[inline(always)]
    unsafe fn run<const SETS: usize, const BOTH: bool>(
        &mut self,
        mut n: usize,
        first: &mut [[T::Vector<S>; NV]; SETS],
        second: &mut [[T::Vector<S>; NV]; SETS],
    ) {
        let whole = if BOTH { OFFSETS_PER_WORD } else { OFFSETS_PER_WORD / 2 };
        // SAFETY: the caller's promise; a word is taken for every `whole` columns begun.
        unsafe {
            while n >= whole {
                self.word = self.offsets.take();
                match BOTH {
                    true => self.columns::<SETS, OFFSETS_PER_WORD, BOTH>(first, second),
                    false => self.columns::<SETS, { OFFSETS_PER_WORD / 2 }, BOTH>(first, second),
                }
                n -= whole;
            }
            if n > 0 {
                self.word = self.offsets.take();
                // Pairs of one length follow each other, so that these branches are foreseen.
                if BOTH && n & 4 != 0 {
                    self.columns::<SETS, 4, BOTH>(first, second);
                }
                if n & 2 != 0 {
                    self.columns::<SETS, 2, BOTH>(first, second);
                }
                if n & 1 != 0 {
                    self.columns::<SETS, 1, BOTH>(first, second);
                }
            }
        }
    }

    /// K columns of `run`, whose offsets are in the word.
    ///
    /// # Safety
    /// They are, and each row has K more weights.
    #[inline(always)]
    unsafe fn columns<const SETS: usize, const K: usize, const BOTH: bool>(
        &mut self,
        first: &mut [[T::Vector<S>; NV]; SETS],
        second: &mut [[T::Vector<S>; NV]; SETS],
    ) {
        let (Packed { simd, semiring, .. }, [w, v]) = (self.panel, self.weights);
        // SAFETY: the caller's promise.
        unsafe {
            for t in 0..K {
                let mut b = self.next();
                semiring.accumulate(simd, &mut first[t % SETS], T::splat(simd, *w.add(t)), &b);
                if !BOTH {
                    b = self.next();
                }
                semiring.accumulate(simd, &mut second[t % SETS], T::splat(simd, *v.add(t)), &b);
            }
            self.weights = [w.add(K), v.add(K)];
        }
    }

    /// The packed row at the next offset.
    ///
    /// # Safety
    /// There is a next offset, and it names a row of the panel.
    #[inline(always)]
    unsafe fn next(&mut self) -> [T::Vector<S>; NV] {
        // SAFETY: the caller's promise.
        let row = unsafe { self.panel.row(self.word) };
        self.word >>= 8;
        row
    }
}
