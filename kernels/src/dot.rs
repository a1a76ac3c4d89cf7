//! Many dot products with one row: out_t = C . B_(j_t).
//!
//! As many dots as a register has lanes are accumulated side by side and then summed across lanes together, by a tree of
//! shuffles and additions that ends in one register with one dot per lane: for 16 lanes 15 additions and 30 shuffles,
//! against 16 x 4 of each for one horizontal sum per dot.
//!
//! The last dots of a row are computed in groups of four (the surplus ones repeat the last row) and stored masked: with
//! 15-40 nonzeros to a visit the tail is as important as the body.

use core::any::TypeId;

use pulp::Simd;

use crate::{Scalar, tile};

/// Dots computed together at the end of a row.
const GROUP: usize = 4;

/// Where the rows B_(j_t) are. Traits and not closures: a closure that is not inlined loses the target features.
pub(crate) trait RowSource<T> {
    /// Row t; may prefetch `bytes` of a later one.
    ///
    /// # Safety
    /// There is a row t.
    unsafe fn row(&self, t: usize, bytes: usize) -> *const T;
}

/// Where the dots go.
pub(crate) trait Sink<T: Scalar> {
    /// Takes the dots of t = `at`, `at` + 1, ..., the first `lanes` lanes of `dots`.
    ///
    /// # Safety
    /// There is room for them.
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: usize, dots: T::Vector<S>);
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
    rows: &impl RowSource<T>,
    sink: &impl Sink<T>,
) {
    // SAFETY: the caller's promise is the callee's.
    unsafe {
        match T::lanes::<S>() {
            16 => dots_by::<S, T, 16, NV, TAIL>(simd, mask, c, n, rows, sink),
            8 => dots_by::<S, T, 8, NV, TAIL>(simd, mask, c, n, rows, sink),
            4 => dots_by::<S, T, 4, NV, TAIL>(simd, mask, c, n, rows, sink),
            2 => dots_by::<S, T, 2, NV, TAIL>(simd, mask, c, n, rows, sink),
            _ => dots_by::<S, T, 1, NV, TAIL>(simd, mask, c, n, rows, sink),
        }
    }
}

/// As [`dots`], `L` the number of lanes.
///
/// # Safety
/// As [`dots`].
#[inline(always)]
unsafe fn dots_by<S: Simd, T: Scalar, const L: usize, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: T::Mask<S>,
    c: &[T::Vector<S>; NV],
    n: usize,
    rows: &impl RowSource<T>,
    sink: &impl Sink<T>,
) {
    let mut t = 0;
    // SAFETY: rows below n exist, and dots below n have room: the caller's promise.
    unsafe {
        while t + L <= n {
            let mut sums = [T::splat(simd, T::ZERO); L];
            for u in 0..L {
                sums[u] = lane_sums::<S, T, NV, TAIL>(simd, mask, c, t + u, rows);
            }
            sink.emit(simd, t, L, sum_lanes::<S, T, L>(simd, sums));
            t += L;
        }
        let rest = n - t;
        if rest == 0 {
            return;
        }
        let mut sums = [T::splat(simd, T::ZERO); L];
        for group in 0..L.div_ceil(GROUP) {
            if group * GROUP < rest {
                for u in group * GROUP..((group + 1) * GROUP).min(L) {
                    sums[u] = lane_sums::<S, T, NV, TAIL>(simd, mask, c, t + u.min(rest - 1), rows);
                }
            }
        }
        sink.emit(simd, t, rest, sum_lanes::<S, T, L>(simd, sums));
    }
}

/// Lane by lane the sum over the tile's vectors of C times those of row `t`.
///
/// # Safety
/// As [`dots`], t < n.
#[inline(always)]
unsafe fn lane_sums<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: T::Mask<S>,
    c: &[T::Vector<S>; NV],
    t: usize,
    rows: &impl RowSource<T>,
) -> T::Vector<S> {
    // SAFETY: the caller's promise.
    let b = unsafe { tile::load::<S, T, NV, TAIL>(simd, mask, rows.row(t, NV * T::lanes::<S>() * size_of::<T>())) };
    let mut sum = T::vmul(simd, c[0], b[0]);
    for j in 1..NV {
        sum = T::vmul_add(simd, c[j], b[j], sum);
    }
    sum
}

/// The register whose lane t is the sum of the lanes of `v[t]`.
#[inline(always)]
pub(crate) fn sum_lanes<S: Simd, T: Scalar, const L: usize>(simd: S, v: [T::Vector<S>; L]) -> T::Vector<S> {
    #[cfg(target_arch = "x86_64")]
    if let Some(sum) = x86::sum_lanes::<S, T, L>(simd, &v) {
        return sum;
    }
    let mut out = T::splat(simd, T::ZERO);
    let lanes = (&raw mut out).cast::<T>();
    for (t, &x) in v.iter().enumerate() {
        // SAFETY: L is the number of lanes.
        unsafe { *lanes.add(t) = T::reduce_sum(simd, x) }
    }
    out
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

    #[inline(always)]
    pub fn sum_lanes<S: Simd, T: Scalar, const L: usize>(simd: S, v: &[T::Vector<S>; L]) -> Option<T::Vector<S>> {
        // SAFETY: in each arm the types on both sides are the same, as its condition has just shown.
        unsafe {
            if same::<S, V4>() && same::<T, f32>() {
                Some(transmute_copy(&v4_f32(transmute_copy(&simd), transmute_copy(v))))
            } else if same::<S, V4>() && same::<T, f64>() {
                Some(transmute_copy(&v4_f64(transmute_copy(&simd), transmute_copy(v))))
            } else if same::<S, V3>() && same::<T, f32>() {
                Some(transmute_copy(&v3_f32(transmute_copy(&simd), transmute_copy(v))))
            } else if same::<S, V3>() && same::<T, f64>() {
                Some(transmute_copy(&v3_f64(transmute_copy(&simd), transmute_copy(v))))
            } else {
                None
            }
        }
    }

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
    fn v4_f32(s: V4, v: [__m512; 16]) -> __m512 {
        tree!(s, v, v4_ps_by_1, v4_ps_by_2, v4_ps_by_4, v4_ps_by_8)
    }

    #[inline(always)]
    fn v4_f64(s: V4, v: [__m512d; 8]) -> __m512d {
        tree!(s, v, v4_pd_by_1, v4_pd_by_2, v4_pd_by_4)
    }

    #[inline(always)]
    fn v3_f32(s: V3, v: [__m256; 8]) -> __m256 {
        tree!(s, v, v3_ps_by_1, v3_ps_by_2, v3_ps_by_4)
    }

    #[inline(always)]
    fn v3_f64(s: V3, v: [__m256d; 4]) -> __m256d {
        tree!(s, v, v3_pd_by_1, v3_pd_by_2)
    }
}
