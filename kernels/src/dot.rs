//! Many dot products with one row: out_t = C . B_(j_t).
//!
//! Four dots are accumulated side by side and summed across lanes together, by a tree of shuffles and additions; four (two)
//! such groups end in one register of 16 (8) dots: 15 additions and 30 shuffles, against 16 x 4 of each for one horizontal
//! sum per dot. With 8-40 nonzeros to a row segment the tail is as important as the body: it is computed in groups of four,
//! too, the last one with the dots that there are and no more (8 nonzeros to a row segment, N = 128: four in each group
//! of the tail reach 34 % of peak, those that there are 37 %), and stored masked.

#[cfg(target_arch = "x86_64")]
mod x86;

use pulp::Simd;

use crate::address::row_address;
use crate::block::{OFFSETS_PER_WORD, Offsets, Pair};
use crate::rows::{Gathered, by_prefetch};
use crate::stored::{Mask, Vector};
use crate::{Number, Scalar, Stored, tile};

/// Dots of one group.
pub(crate) const GROUP: usize = 4;

/// Groups of one register, at most: 16 lanes.
const GROUPS: usize = 4;

/// Vectors of a row from which a branch for each dot of the last group is cheaper than dots that nobody takes. SDDMM straight from
/// CSR, one thread of a Zen 4: with 8 vectors graphs take 0.86 to 0.97 of the time, rows of five nonzeros 0.86; with 2 vectors, where
/// a dot is cheap and a wrong guess is not, 0.94 to 1.1.
const BRANCHES_PAY: usize = 5;

/// Where the dots go. A trait and not a closure: a closure that is not inlined loses the target features.
pub(crate) trait Sink<T: Scalar> {
    /// Takes the dots of t = `at`, `at` + 1, ..., the lanes `lanes[0]..lanes[1]` of `dots`.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>);

    /// Takes as many dots as half a register has, from lane `first` on, which is 0 or the middle: without a mask where
    /// it can.
    ///
    /// # Safety
    /// As [`Sink::emit`].
    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe { self.emit(simd, at, [first, first + T::lanes::<S>() / 2], dots) }
    }
}

/// out_t for t in 0..n, `c` from [`tile::load_reordered`].
///
/// # Safety
/// `rows` has n rows, valid for reads of the tile, and `sink` room for n dots.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    c: &[Vector<D, S>; NV],
    n: usize,
    rows: &Gathered<D>,
    sink: &impl Sink<D::Scalar>,
) {
    let lanes = D::Scalar::lanes::<S>();
    let bytes = NV * lanes * size_of::<D>();
    let mut t = 0;
    // SAFETY: groups begin at rows below n, and registers of dots at places below n: the caller's promise.
    unsafe {
        by_prefetch!(rows.prefetch, PREFETCH => {
            while t + lanes <= n {
                let mut sums = [D::Scalar::splat(simd, D::Scalar::ZERO); GROUPS];
                for g in 0..lanes.div_ceil(GROUP) {
                    let rows = rows.group::<PREFETCH>(t + g * GROUP, lanes - g * GROUP, bytes);
                    sums[g] = group::<S, D, NV, TAIL, GROUP>(simd, mask, c, rows);
                }
                sink.emit(simd, t, [0, lanes], join::<S, D::Scalar>(simd, sums));
                t += lanes;
            }
            let rest = n - t;
            if rest > 0 {
                let mut sums = [D::Scalar::splat(simd, D::Scalar::ZERO); GROUPS];
                // Written out: as a loop with a branch in it, the sums would be kept in memory.
                macro_rules! step {
                    ($g:literal) => {
                        if $g * GROUP < lanes && $g * GROUP < rest {
                            let rows = rows.group::<PREFETCH>(t + $g * GROUP, rest - $g * GROUP, bytes);
                            let most = if NV >= BRANCHES_PAY { rest - $g * GROUP } else { GROUP };
                            sums[$g] = group_of::<S, D, NV, TAIL, GROUP>(simd, mask, c, rows, most);
                        }
                    };
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                sink.emit(simd, t, [0, rest], join::<S, D::Scalar>(simd, sums));
            }
        });
    }
}

/// out_t for t in 0..n, rows packed `NV` vectors apart and named by the next offsets.
///
/// # Safety
/// `offsets` has `n` more offsets rounded up to a word, all of them (the padding too) rows of the panel, and `sink` room
/// for n dots.
#[inline(always)]
pub(crate) unsafe fn dots_packed<S: Simd, T: Scalar, const NV: usize>(
    simd: S,
    c: &[T::Vector<S>; NV],
    n: usize,
    offsets: &mut Offsets,
    panel: *const T,
    sink: &impl Sink<T>,
) {
    let lanes = T::lanes::<S>();
    // Only whole vectors are packed: no tail, and no mask.
    let mask = T::first_lanes(simd, 0);
    let zero = T::splat(simd, T::ZERO);
    let mut t = 0;
    // SAFETY: a word is taken for every eight dots begun; dots below n have room: the caller's promise.
    unsafe {
        if lanes >= OFFSETS_PER_WORD {
            while t + lanes <= n {
                let (a, b) = (offsets.take(), if lanes > OFFSETS_PER_WORD { offsets.take() } else { 0 });
                // All addresses first. Written out: a closure that an array maps is not inlined.
                let groups = [
                    packed_rows::<S, T, NV>(panel, a),
                    packed_rows::<S, T, NV>(panel, a >> 32),
                    packed_rows::<S, T, NV>(panel, b),
                    packed_rows::<S, T, NV>(panel, b >> 32),
                ];
                let mut sums = [zero; GROUPS];
                // Written out: whether a loop is unrolled changes with what is compiled around it. Where it is not, the sums are
                // kept in memory (4096 x 4096, 70 % zeros, N = 128, one thread of a Zen 4: 56 % of peak instead of 64).
                macro_rules! step {
                    ($g:literal) => {
                        if $g * GROUP < lanes {
                            sums[$g] = group::<S, T, NV, false, GROUP>(simd, mask, c, groups[$g]);
                        }
                    };
                }
                step!(0);
                step!(1);
                step!(2);
                step!(3);
                sink.emit(simd, t, [0, lanes], join::<S, T>(simd, sums));
                t += lanes;
            }
        }
        while t < n {
            // From 8 lanes on, what is left is less than a register.
            let rest = if lanes >= OFFSETS_PER_WORD { n - t } else { (n - t).min(OFFSETS_PER_WORD) };
            let mut sums = [zero; GROUPS];
            let mut word = 0;
            // Written out: as a loop it is too long to be unrolled, and the sums would be kept in memory.
            macro_rules! step {
                ($g:literal) => {
                    if $g * GROUP < lanes.max(OFFSETS_PER_WORD) && $g * GROUP < rest {
                        word = if $g % 2 == 0 { offsets.take() } else { word >> 32 };
                        let rows = packed_rows::<S, T, NV>(panel, word);
                        if lanes > GROUP {
                            // The dots that there are and no more.
                            sums[$g] = match rest - $g * GROUP {
                                1 => group::<S, T, NV, false, 1>(simd, mask, c, rows),
                                2 => group::<S, T, NV, false, 2>(simd, mask, c, rows),
                                3 => group::<S, T, NV, false, 3>(simd, mask, c, rows),
                                _ => group::<S, T, NV, false, GROUP>(simd, mask, c, rows),
                            };
                        } else {
                            small_group::<S, T, NV>(simd, c, rows, t + $g * GROUP, rest - $g * GROUP, sink);
                        }
                    }
                };
            }
            step!(0);
            step!(1);
            step!(2);
            step!(3);
            if lanes > GROUP {
                if lanes >= OFFSETS_PER_WORD {
                    core::hint::assert_unchecked(rest < lanes);
                }
                sink.emit(simd, t, [0, rest], join::<S, T>(simd, sums));
            }
            t += rest;
        }
    }
}

/// The first `n` of the four dots with `rows`, where a group is a register of dots, or several.
///
/// # Safety
/// The rows are valid for reads of the tile, and `sink` has room for the dots from `at` on.
#[inline(always)]
unsafe fn small_group<S: Simd, T: Scalar, const NV: usize>(
    simd: S,
    c: &[T::Vector<S>; NV],
    rows: [*const T; GROUP],
    at: usize,
    n: usize,
    sink: &impl Sink<T>,
) {
    let lanes = T::lanes::<S>();
    let mask = T::first_lanes(simd, 0);
    for u in (0..GROUP.min(n)).step_by(lanes) {
        let mut part = [rows[u]; GROUP];
        let mut k = 0;
        while k < lanes {
            part[k] = rows[u + k];
            k += 1;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let dots = group::<S, T, NV, false, GROUP>(simd, mask, c, part);
            sink.emit(simd, at + u, [0, lanes.min(n - u)], dots);
        }
    }
}

/// Gives `sink` the `n` dots at `dots` in another order: at t that at position `order[t]`.
///
/// # Safety
/// `order` has `n` positions below `n` and is valid for reads of a register's lanes more, `dots` for `n` dots and four
/// registers, and `sink` has room for n dots.
#[inline(always)]
pub(crate) unsafe fn emit_in_order<S: Simd, T: Scalar>(
    simd: S,
    dots: *const T,
    order: *const u8,
    n: usize,
    sink: &impl Sink<T>,
) {
    let lanes = T::lanes::<S>();
    for t in (0..n).step_by(lanes) {
        let len = lanes.min(n - t);
        // SAFETY: the caller's promise.
        unsafe { sink.emit(simd, t, [0, len], permuted::<S, T>(simd, dots, order.add(t), [len, n])) }
    }
}

/// The dots at the first `len` positions of `order`, of `n` that there are.
///
/// # Safety
/// As [`emit_in_order`].
#[inline(always)]
unsafe fn permuted<S: Simd, T: Scalar>(
    simd: S,
    dots: *const T,
    order: *const u8,
    [len, n]: [usize; 2],
) -> T::Vector<S> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    if let Some(dots) = unsafe { x86::permuted::<S, T>(simd, dots, order, n) } {
        return dots;
    }
    let _ = n;
    let mut out = T::splat(simd, T::ZERO);
    let lanes = (&raw mut out).cast::<T>();
    for u in 0..len {
        // SAFETY: the caller's promise, and there are at least `len` lanes.
        unsafe { *lanes.add(u) = *dots.add(usize::from(*order.add(u))) }
    }
    out
}

/// The dots of two rows with the columns of `pair`: first those that both have, then row r's own ones, into `sinks[r]`.
///
/// Half a register of dots is the one row's, the other half the other's; a row of B that both meet is loaded once.
///
/// # Safety
/// `offsets` has the pair's offsets next, all of them (the padding too) rows of the panel, and the sinks have room for
/// the pair's dots.
#[inline(always)]
pub(crate) unsafe fn dots_pair<S: Simd, T: Scalar, const NV: usize>(
    simd: S,
    c: &[[T::Vector<S>; NV]; 2],
    pair: &Pair,
    offsets: &mut Offsets,
    panel: *const T,
    sinks: [&impl Sink<T>; 2],
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        let both = pair.both as usize;
        dots_pair_run::<S, T, NV, true>(simd, c, [0, both], offsets, panel, sinks);
        dots_pair_run::<S, T, NV, false>(simd, c, [both, pair.nnz() as usize], offsets, panel, sinks);
    }
}

/// One run of [`dots_pair`], the dots `run[0]..run[1]`: of the common columns (`BOTH`), or of each row's own.
///
/// # Safety
/// As [`dots_pair`].
#[inline(always)]
unsafe fn dots_pair_run<S: Simd, T: Scalar, const NV: usize, const BOTH: bool>(
    simd: S,
    c: &[[T::Vector<S>; NV]; 2],
    [start, end]: [usize; 2],
    offsets: &mut Offsets,
    panel: *const T,
    sinks: [&impl Sink<T>; 2],
) {
    let lanes = T::lanes::<S>();
    // Groups of one row in a register, and the dots of one row in it.
    let groups = (lanes / (2 * GROUP)).max(1);
    let half = groups * GROUP;
    let mut word = 0;
    let mut at = start;
    // SAFETY: a word is taken for every eight offsets begun; dots below `end` have room: the caller's promise.
    unsafe {
        while at < end {
            let rest = (end - at).min(half);
            let mut sums = [T::splat(simd, T::ZERO); GROUPS];
            // Written out: in a loop the sums would be kept in memory, unaligned, and where that crosses a page, which
            // depends on the caller's stack, FusedMM falls from 69 to 54 % of peak (4096 x 4096, 70 % zeros, N = 128).
            macro_rules! step {
                ($g:literal) => {
                    if $g < groups && $g * GROUP < rest {
                        // Common columns come eight to a word, those of each row four and four in turn.
                        let low = !BOTH || ((at - start) / GROUP + $g).is_multiple_of(2);
                        word = if low { offsets.take() } else { word >> 32 };
                        let rows = if BOTH {
                            [packed_rows::<S, T, NV>(panel, word); 2]
                        } else {
                            let rows =
                                [packed_rows::<S, T, NV>(panel, word), packed_rows::<S, T, NV>(panel, word >> 32)];
                            let every_other = |u: usize| [rows[0][u], rows[0][u + 2], rows[1][u], rows[1][u + 2]];
                            [every_other(0), every_other(1)]
                        };
                        if lanes > GROUP {
                            // The dots that there are and no more; common columns come in twos.
                            let [x, y] = match rest - $g * GROUP {
                                1 if !BOTH => group_pair::<S, T, NV, 1>(simd, c, rows),
                                1 | 2 => group_pair::<S, T, NV, 2>(simd, c, rows),
                                3 if !BOTH => group_pair::<S, T, NV, 3>(simd, c, rows),
                                _ => group_pair::<S, T, NV, GROUP>(simd, c, rows),
                            };
                            (sums[$g], sums[groups + $g]) = (x, y);
                        } else {
                            for r in 0..2 {
                                small_group::<S, T, NV>(simd, &c[r], rows[r], at, rest, sinks[r]);
                            }
                        }
                    }
                };
            }
            step!(0);
            step!(1);
            if lanes > GROUP {
                let dots = join::<S, T>(simd, sums);
                if rest == half {
                    sinks[0].emit_half(simd, at, 0, dots);
                    sinks[1].emit_half(simd, at, half, dots);
                } else {
                    sinks[0].emit(simd, at, [0, rest], dots);
                    sinks[1].emit(simd, at, [half, half + rest], dots);
                }
            }
            at += half;
        }
    }
}

/// [`group`] for two rows of C, without masks.
///
/// # Safety
/// The first `DOTS` rows of each are valid for reads of the tile.
#[inline(always)]
unsafe fn group_pair<S: Simd, T: Scalar, const NV: usize, const DOTS: usize>(
    simd: S,
    c: &[[T::Vector<S>; NV]; 2],
    rows: [[*const T; GROUP]; 2],
) -> [T::Vector<S>; 2] {
    let mut sums = [[T::splat(simd, T::ZERO); GROUP]; 2];
    for j in 0..NV {
        for u in 0..DOTS {
            for r in 0..2 {
                // SAFETY: the caller's promise. Where both rows are the same, the compiler loads once.
                let b = unsafe { T::load(simd, rows[r][u].add(j * T::lanes::<S>())) };
                sums[r][u] = if j == 0 { T::vmul(simd, c[r][j], b) } else { T::vmul_add(simd, c[r][j], b, sums[r][u]) };
            }
        }
    }
    [sum_group::<S, T>(simd, &sums[0]), sum_group::<S, T>(simd, &sums[1])]
}

/// The rows named by the low four offsets of `word`.
#[inline(always)]
fn packed_rows<S: Simd, T: Scalar, const NV: usize>(panel: *const T, mut word: u64) -> [*const T; GROUP] {
    let mut rows = [panel; GROUP];
    for r in &mut rows {
        *r = row_address::<T, NV>(panel.wrapping_add((word & 255) as usize * (NV * T::lanes::<S>())));
        word >>= 8;
    }
    rows
}

/// The first `DOTS` of the four dots with the rows at `rows`, zeros for the others: their sums by lane, as far as one
/// register holds them apart.
///
/// Their multiply-adds take turns: one after the other, each dot would be a chain that the next ones hide only if the processor looks so far
/// ahead. Registers of narrow elements are widened two at a time, which leaves none for four rows.
///
/// # Safety
/// The first `DOTS` rows are valid for reads of the tile.
#[inline(always)]
unsafe fn group<S: Simd, D: Stored, const NV: usize, const TAIL: bool, const DOTS: usize>(
    simd: S,
    mask: Mask<D, S>,
    c: &[Vector<D, S>; NV],
    rows: [*const D; GROUP],
) -> Vector<D, S> {
    if D::NARROW {
        // SAFETY: the caller's promise.
        return unsafe { group_of::<S, D, NV, TAIL, DOTS>(simd, mask, c, rows, DOTS) };
    }
    let lanes = D::Scalar::lanes::<S>();
    let mut sums = [D::Scalar::splat(simd, D::Scalar::ZERO); GROUP];
    for j in 0..NV {
        // Fewer lanes than a group: as many dots as there are lanes.
        for u in 0..DOTS.min(lanes) {
            // SAFETY: the caller's promise; register j is inside the tile.
            let [b] = unsafe {
                let b = rows[u].add(j * lanes);
                if j + 1 < NV {
                    tile::load::<S, D, 1, false>(simd, mask, b)
                } else {
                    tile::load::<S, D, 1, TAIL>(simd, mask, b)
                }
            };
            sums[u] = if j == 0 { D::Scalar::vmul(simd, c[j], b) } else { D::Scalar::vmul_add(simd, c[j], b, sums[u]) };
        }
    }
    sum_group::<S, D::Scalar>(simd, &sums)
}

/// [`group`], dot by dot, with at most `most` of them.
///
/// # Safety
/// The first `most` rows, and `DOTS` of them at most, are valid for reads of the tile.
#[inline(always)]
unsafe fn group_of<S: Simd, D: Stored, const NV: usize, const TAIL: bool, const DOTS: usize>(
    simd: S,
    mask: Mask<D, S>,
    c: &[Vector<D, S>; NV],
    rows: [*const D; GROUP],
    most: usize,
) -> Vector<D, S> {
    // Fewer lanes than a group: as many dots as there are lanes.
    let dots = DOTS.min(D::Scalar::lanes::<S>());
    let mut sums = [D::Scalar::splat(simd, D::Scalar::ZERO); GROUP];
    // SAFETY: the caller's promise.
    unsafe {
        for u in 0..dots {
            if u >= most {
                break;
            }
            let b = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, rows[u]);
            sums[u] = D::Scalar::vmul(simd, c[0], b[0]);
            for j in 1..NV {
                sums[u] = D::Scalar::vmul_add(simd, c[j], b[j], sums[u]);
            }
        }
    }
    sum_group::<S, D::Scalar>(simd, &sums)
}

/// The sums across the lanes of four registers, as far as one register holds them apart.
#[inline(always)]
pub(crate) fn sum_group<S: Simd, T: Scalar>(simd: S, sums: &[T::Vector<S>; GROUP]) -> T::Vector<S> {
    #[cfg(target_arch = "x86_64")]
    if let Some(sum) = x86::sum_group::<S, T>(simd, sums) {
        return sum;
    }
    // Fewer lanes than a group: as many dots as there are lanes.
    let dots = GROUP.min(T::lanes::<S>());
    let mut out = sums[0];
    let lanes = (&raw mut out).cast::<T>();
    for u in 0..dots {
        // SAFETY: there are at least `dots` lanes.
        unsafe { *lanes.add(u) = T::reduce_sum(simd, sums[u]) }
    }
    out
}

/// The register of the dots of all groups.
#[inline(always)]
pub(crate) fn join<S: Simd, T: Scalar>(simd: S, groups: [T::Vector<S>; GROUPS]) -> T::Vector<S> {
    #[cfg(target_arch = "x86_64")]
    if let Some(dots) = x86::join::<S, T>(simd, &groups) {
        return dots;
    }
    let _ = simd;
    // Without the tree a group is its dots already, and a register of at most four lanes is one group.
    groups[0]
}
