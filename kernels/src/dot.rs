//! Many dot products with one row: out_t = C . B_(j_t).
//!
//! Four dots are accumulated side by side and summed across lanes together, by a tree of shuffles and additions; four (two)
//! such groups end in one register of 16 (8) dots: 15 additions and 30 shuffles, against 16 x 4 of each for one horizontal
//! sum per dot. With 8-40 nonzeros to a visit the tail is as important as the body: it is computed in groups of four,
//! too, the last one with the dots that there are and no more (8 nonzeros to a visit, N = 128: four in each group of the
//! tail reach 34 % of peak, those that there are 37 %), and stored masked.

use core::any::TypeId;

use pulp::Simd;

use crate::cell::{CHUNK, Offsets, Pair};
use crate::rows::Gathered;
use crate::{Scalar, tile};

/// Dots of one group.
const GROUP: usize = 4;

/// Groups of one register, at most: 16 lanes.
const GROUPS: usize = 4;

/// Where the dots go. A trait and not a closure: a closure that is not inlined loses the target features.
pub(crate) trait Sink<T: Scalar> {
    /// Takes the dots of t = `at`, `at` + 1, ..., the lanes `lanes[0]..lanes[1]` of `dots`.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>);
}

/// out_t for t in 0..n.
///
/// # Safety
/// `rows` has n rows, valid for reads of the tile, and `sink` room for n dots.
#[inline(always)]
pub(crate) unsafe fn dots<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: T::Mask<S>,
    c: &[T::Vector<S>; NV],
    n: usize,
    rows: &Gathered<T>,
    sink: &impl Sink<T>,
) {
    let lanes = T::lanes::<S>();
    let bytes = NV * lanes * size_of::<T>();
    let mut t = 0;
    // SAFETY: groups begin at rows below n, and registers of dots at places below n: the caller's promise.
    unsafe {
        while t + lanes <= n {
            let mut groups = [T::splat(simd, T::ZERO); GROUPS];
            for g in 0..lanes.div_ceil(GROUP) {
                let rows = rows.group(t + g * GROUP, t + lanes, bytes);
                groups[g] = group::<S, T, NV, TAIL, GROUP>(simd, mask, c, rows);
            }
            sink.emit(simd, t, [0, lanes], join::<S, T>(simd, groups));
            t += lanes;
        }
        let rest = n - t;
        if rest > 0 {
            let mut groups = [T::splat(simd, T::ZERO); GROUPS];
            for g in 0..lanes.div_ceil(GROUP) {
                if g * GROUP < rest {
                    let rows = rows.group(t + g * GROUP, n, bytes);
                    groups[g] = group::<S, T, NV, TAIL, GROUP>(simd, mask, c, rows);
                }
            }
            sink.emit(simd, t, [0, rest], join::<S, T>(simd, groups));
        }
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
        if lanes == 2 * CHUNK {
            while t + lanes <= n {
                let (a, b) = (offsets.take(), offsets.take());
                let groups = [a, a >> 32, b, b >> 32].map(|word| packed_rows::<T>(panel, NV * lanes, word));
                let mut sums = [zero; GROUPS];
                for g in 0..GROUPS {
                    sums[g] = group::<S, T, NV, false, GROUP>(simd, mask, c, groups[g]);
                }
                sink.emit(simd, t, [0, lanes], join::<S, T>(simd, sums));
                t += lanes;
            }
        }
        while t < n {
            // At 16 lanes what is left is less than a register.
            let rest = if lanes == 2 * CHUNK { n - t } else { (n - t).min(CHUNK) };
            let mut sums = [zero; GROUPS];
            let mut word = 0;
            // Written out: as a loop it is too long to be unrolled, and the sums would be kept in memory.
            macro_rules! step {
                ($g:literal) => {
                    if $g * GROUP < lanes.max(CHUNK) && $g * GROUP < rest {
                        word = if $g % 2 == 0 { offsets.take() } else { word >> 32 };
                        let rows = packed_rows::<T>(panel, NV * lanes, word);
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
                if lanes == 2 * CHUNK {
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
        part[..lanes].copy_from_slice(&rows[u..u + lanes]);
        // SAFETY: the caller's promise.
        unsafe {
            let dots = group::<S, T, NV, false, GROUP>(simd, mask, c, part);
            sink.emit(simd, at + u, [0, lanes.min(n - u)], dots);
        }
    }
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
    let stride = NV * lanes;
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
            for g in 0..groups {
                if g * GROUP < rest {
                    // Common columns come eight to a word, those of each row four and four in turn.
                    let low = !BOTH || ((at - start) / GROUP + g).is_multiple_of(2);
                    word = if low { offsets.take() } else { word >> 32 };
                    let rows = if BOTH {
                        [packed_rows(panel, stride, word); 2]
                    } else {
                        let rows = [packed_rows(panel, stride, word), packed_rows(panel, stride, word >> 32)];
                        let every_other = |u: usize| [rows[0][u], rows[0][u + 2], rows[1][u], rows[1][u + 2]];
                        [every_other(0), every_other(1)]
                    };
                    if lanes > GROUP {
                        let [x, y] = group_pair::<S, T, NV>(simd, c, rows);
                        (sums[g], sums[groups + g]) = (x, y);
                    } else {
                        for r in 0..2 {
                            small_group::<S, T, NV>(simd, &c[r], rows[r], at, rest, sinks[r]);
                        }
                    }
                }
            }
            if lanes > GROUP {
                let dots = join::<S, T>(simd, sums);
                sinks[0].emit(simd, at, [0, rest], dots);
                sinks[1].emit(simd, at, [half, half + rest], dots);
            }
            at += half;
        }
    }
}

/// [`group`] for two rows of C, without tails.
///
/// # Safety
/// The rows are valid for reads of the tile.
#[inline(always)]
unsafe fn group_pair<S: Simd, T: Scalar, const NV: usize>(
    simd: S,
    c: &[[T::Vector<S>; NV]; 2],
    rows: [[*const T; GROUP]; 2],
) -> [T::Vector<S>; 2] {
    let mut sums = [[T::splat(simd, T::ZERO); GROUP]; 2];
    for u in 0..GROUP {
        for j in 0..NV {
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
fn packed_rows<T>(panel: *const T, row: usize, mut word: u64) -> [*const T; GROUP] {
    let mut rows = [panel; GROUP];
    for r in &mut rows {
        *r = panel.wrapping_add((word & 255) as usize * row);
        word >>= 8;
    }
    rows
}

/// The first `DOTS` of the four dots with the rows at `rows`, zeros for the others: their sums by lane, as far as one register
/// holds them apart.
///
/// # Safety
/// The first `DOTS` rows are valid for reads of the tile.
#[inline(always)]
unsafe fn group<S: Simd, T: Scalar, const NV: usize, const TAIL: bool, const DOTS: usize>(
    simd: S,
    mask: T::Mask<S>,
    c: &[T::Vector<S>; NV],
    rows: [*const T; GROUP],
) -> T::Vector<S> {
    // Fewer lanes than a group: as many dots as there are lanes.
    let dots = DOTS.min(T::lanes::<S>());
    let mut sums = [T::splat(simd, T::ZERO); GROUP];
    // SAFETY: the caller's promise.
    unsafe {
        for u in 0..dots {
            let b = tile::load::<S, T, NV, TAIL>(simd, mask, rows[u]);
            sums[u] = T::vmul(simd, c[0], b[0]);
            for j in 1..NV {
                sums[u] = T::vmul_add(simd, c[j], b[j], sums[u]);
            }
        }
    }
    sum_group::<S, T>(simd, &sums)
}

/// The sums across the lanes of four registers, as far as one register holds them apart.
#[inline(always)]
fn sum_group<S: Simd, T: Scalar>(simd: S, sums: &[T::Vector<S>; GROUP]) -> T::Vector<S> {
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
fn join<S: Simd, T: Scalar>(simd: S, groups: [T::Vector<S>; GROUPS]) -> T::Vector<S> {
    #[cfg(target_arch = "x86_64")]
    if let Some(dots) = x86::join::<S, T>(simd, &groups) {
        return dots;
    }
    let _ = simd;
    // Without the tree a group is its dots already, and a register of at most four lanes is one group.
    groups[0]
}

/// Whether `A` and `B` are the same type; known at compile time, so that the other arm vanishes.
fn same<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The shuffle trees. pulp names the instructions, but not generically; which shuffle follows which is a property of
    //! the register width and is the only place in the kernels that knows it.

    use core::arch::x86_64::*;
    use core::mem::transmute_copy;

    use pulp::Simd;
    use pulp::x86::{V3, V4};

    use super::same;
    use crate::Scalar;

    /// Defines a function over the four pairs of register and element type.
    macro_rules! by_type {
        ($(#[$doc:meta])* $name:ident, $v4_f32:ident, $v4_f64:ident, $v3_f32:ident, $v3_f64:ident) => {
            $(#[$doc])*
            #[inline(always)]
            pub fn $name<S: Simd, T: Scalar>(simd: S, v: &[T::Vector<S>; 4]) -> Option<T::Vector<S>> {
                // SAFETY: in each arm the types on both sides are the same, as its condition has just shown.
                unsafe {
                    if same::<S, V4>() && same::<T, f32>() {
                        Some(transmute_copy(&$v4_f32(transmute_copy(&simd), transmute_copy(v))))
                    } else if same::<S, V4>() && same::<T, f64>() {
                        Some(transmute_copy(&$v4_f64(transmute_copy(&simd), transmute_copy(v))))
                    } else if same::<S, V3>() && same::<T, f32>() {
                        Some(transmute_copy(&$v3_f32(transmute_copy(&simd), transmute_copy(v))))
                    } else if same::<S, V3>() && same::<T, f64>() {
                        Some(transmute_copy(&$v3_f64(transmute_copy(&simd), transmute_copy(v))))
                    } else {
                        None
                    }
                }
            }
        };
    }

    by_type!(
        /// Four registers to one that holds four dots, each in as many partial sums as there are groups.
        sum_group, v4_f32_group, v4_f64_group, v3_f32_group, v3_f64_group
    );
    by_type!(
        /// Groups to the register of their dots.
        join, v4_f32_join, v4_f64_join, v3_f32_join, v3_f64_join
    );

    /// One level: lanes `by_n` apart are added, of `a` into the lower half of each group of lanes, of `b` into the upper.
    /// `tree!(simd, registers, by_1, by_2, ..)` runs the levels, the registers halving in number.
    macro_rules! tree {
        ($s:ident, $v:ident, $($level:ident),+) => {{
            let mut v = $v;
            let mut n = v.len();
            $(
                n /= 2;
                for i in 0..n {
                    v[i] = $level($s, v[2 * i], v[2 * i + 1]);
                }
            )+
            v[0]
        }};
    }

    #[inline(always)]
    fn v4_ps_by_1(s: V4, a: __m512, b: __m512) -> __m512 {
        let f = s.avx512f;
        f._mm512_add_ps(f._mm512_unpacklo_ps(a, b), f._mm512_unpackhi_ps(a, b))
    }

    #[inline(always)]
    fn v4_ps_by_2(s: V4, a: __m512, b: __m512) -> __m512 {
        let f = s.avx512f;
        let (a, b) = (f._mm512_castps_pd(a), f._mm512_castps_pd(b));
        f._mm512_add_ps(f._mm512_castpd_ps(f._mm512_unpacklo_pd(a, b)), f._mm512_castpd_ps(f._mm512_unpackhi_pd(a, b)))
    }

    #[inline(always)]
    fn v4_ps_by_4(s: V4, a: __m512, b: __m512) -> __m512 {
        let f = s.avx512f;
        f._mm512_add_ps(f._mm512_shuffle_f32x4::<0x44>(a, b), f._mm512_shuffle_f32x4::<0xee>(a, b))
    }

    #[inline(always)]
    fn v4_ps_by_8(s: V4, a: __m512, b: __m512) -> __m512 {
        let f = s.avx512f;
        f._mm512_add_ps(f._mm512_shuffle_f32x4::<0x88>(a, b), f._mm512_shuffle_f32x4::<0xdd>(a, b))
    }

    #[inline(always)]
    fn v4_pd_by_1(s: V4, a: __m512d, b: __m512d) -> __m512d {
        let f = s.avx512f;
        f._mm512_add_pd(f._mm512_unpacklo_pd(a, b), f._mm512_unpackhi_pd(a, b))
    }

    #[inline(always)]
    fn v4_pd_by_2(s: V4, a: __m512d, b: __m512d) -> __m512d {
        let f = s.avx512f;
        f._mm512_add_pd(f._mm512_shuffle_f64x2::<0x44>(a, b), f._mm512_shuffle_f64x2::<0xee>(a, b))
    }

    #[inline(always)]
    fn v4_pd_by_4(s: V4, a: __m512d, b: __m512d) -> __m512d {
        let f = s.avx512f;
        f._mm512_add_pd(f._mm512_shuffle_f64x2::<0x88>(a, b), f._mm512_shuffle_f64x2::<0xdd>(a, b))
    }

    #[inline(always)]
    fn v3_ps_by_1(s: V3, a: __m256, b: __m256) -> __m256 {
        let f = s.avx;
        f._mm256_add_ps(f._mm256_unpacklo_ps(a, b), f._mm256_unpackhi_ps(a, b))
    }

    #[inline(always)]
    fn v3_ps_by_2(s: V3, a: __m256, b: __m256) -> __m256 {
        let f = s.avx;
        let (a, b) = (f._mm256_castps_pd(a), f._mm256_castps_pd(b));
        f._mm256_add_ps(f._mm256_castpd_ps(f._mm256_unpacklo_pd(a, b)), f._mm256_castpd_ps(f._mm256_unpackhi_pd(a, b)))
    }

    #[inline(always)]
    fn v3_ps_by_4(s: V3, a: __m256, b: __m256) -> __m256 {
        let f = s.avx;
        f._mm256_add_ps(f._mm256_permute2f128_ps::<0x20>(a, b), f._mm256_permute2f128_ps::<0x31>(a, b))
    }

    #[inline(always)]
    fn v3_pd_by_1(s: V3, a: __m256d, b: __m256d) -> __m256d {
        let f = s.avx;
        f._mm256_add_pd(f._mm256_unpacklo_pd(a, b), f._mm256_unpackhi_pd(a, b))
    }

    #[inline(always)]
    fn v3_pd_by_2(s: V3, a: __m256d, b: __m256d) -> __m256d {
        let f = s.avx;
        f._mm256_add_pd(f._mm256_permute2f128_pd::<0x20>(a, b), f._mm256_permute2f128_pd::<0x31>(a, b))
    }

    #[inline(always)]
    fn v4_f32_group(s: V4, v: [__m512; 4]) -> __m512 {
        tree!(s, v, v4_ps_by_1, v4_ps_by_2)
    }

    #[inline(always)]
    fn v4_f32_join(s: V4, v: [__m512; 4]) -> __m512 {
        tree!(s, v, v4_ps_by_4, v4_ps_by_8)
    }

    #[inline(always)]
    fn v4_f64_group(s: V4, v: [__m512d; 4]) -> __m512d {
        tree!(s, v, v4_pd_by_1, v4_pd_by_2)
    }

    #[inline(always)]
    fn v4_f64_join(s: V4, [v, w, ..]: [__m512d; 4]) -> __m512d {
        v4_pd_by_4(s, v, w)
    }

    #[inline(always)]
    fn v3_f32_group(s: V3, v: [__m256; 4]) -> __m256 {
        tree!(s, v, v3_ps_by_1, v3_ps_by_2)
    }

    #[inline(always)]
    fn v3_f32_join(s: V3, [v, w, ..]: [__m256; 4]) -> __m256 {
        v3_ps_by_4(s, v, w)
    }

    #[inline(always)]
    fn v3_f64_group(s: V3, v: [__m256d; 4]) -> __m256d {
        tree!(s, v, v3_pd_by_1, v3_pd_by_2)
    }

    #[inline(always)]
    fn v3_f64_join(_: V3, [v, ..]: [__m256d; 4]) -> __m256d {
        v
    }
}
