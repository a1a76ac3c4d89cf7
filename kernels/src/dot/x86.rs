//! The shuffle trees. pulp names the instructions, but not generically: which shuffle follows which is a property of the
//! register's width and the element type. (`spread` and `stream` name instructions of x86-64, too.)

use core::arch::x86_64::*;
use core::mem::transmute_copy;

use pulp::Simd;
use pulp::x86::{V3, V4};

use crate::Scalar;
use crate::arch::same;

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

// A blend takes the place of one of two shuffles, of which fewer units are capable, where both put the lanes as they are to be.

#[inline(always)]
fn v3_ps_by_2(s: V3, a: __m256, b: __m256) -> __m256 {
    let f = s.avx;
    let (x, y) = (f._mm256_castps_pd(a), f._mm256_castps_pd(b));
    let crossed = f._mm256_castpd_ps(f._mm256_shuffle_pd::<0b0101>(x, y));
    f._mm256_add_ps(crossed, f._mm256_blend_ps::<0b1100_1100>(a, b))
}

#[inline(always)]
fn v3_ps_by_4(s: V3, a: __m256, b: __m256) -> __m256 {
    let f = s.avx;
    f._mm256_add_ps(f._mm256_permute2f128_ps::<0x21>(a, b), f._mm256_blend_ps::<0b1111_0000>(a, b))
}

#[inline(always)]
fn v3_pd_by_1(s: V3, a: __m256d, b: __m256d) -> __m256d {
    let f = s.avx;
    f._mm256_add_pd(f._mm256_shuffle_pd::<0b0101>(a, b), f._mm256_blend_pd::<0b1010>(a, b))
}

#[inline(always)]
fn v3_pd_by_2(s: V3, a: __m256d, b: __m256d) -> __m256d {
    let f = s.avx;
    f._mm256_add_pd(f._mm256_permute2f128_pd::<0x21>(a, b), f._mm256_blend_pd::<0b1100>(a, b))
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

/// The register of the dots `order[0]`, `order[1]`, ... of the `n` in `dots`, where a register has eight and `n` is at most four
/// registers.
///
/// # Safety
/// `order` is valid for reads of eight positions, those that are looked at are below `n`, and `dots` is valid for reads of four
/// registers.
#[inline(always)]
pub unsafe fn permuted<S: Simd, T: Scalar>(
    simd: S,
    dots: *const T,
    order: *const u8,
    n: usize,
) -> Option<T::Vector<S>> {
    if !same::<S, V4>() || !same::<T, f64>() || n > 32 {
        return None;
    }
    // SAFETY: the types on both sides are the same, as has just been shown.
    unsafe { Some(transmute_copy(&v4_f64_permuted(transmute_copy(&simd), dots.cast(), order, n))) }
}

/// # Safety
/// As [`permuted`].
#[inline(always)]
unsafe fn v4_f64_permuted(s: V4, dots: *const f64, order: *const u8, n: usize) -> __m512d {
    let f = s.avx512f;
    // SAFETY: the caller's promise; vectors are numbers, whatever the bits.
    unsafe {
        let at = f._mm512_cvtepu8_epi64(s.sse2._mm_set_epi64x(0, order.cast::<i64>().read_unaligned()));
        let of_two = |first: usize| {
            let register = |t: usize| dots.add(t).cast::<__m512d>().read_unaligned();
            f._mm512_permutex2var_pd(register(first), at, register(first + 8))
        };
        if n <= 16 {
            return of_two(0);
        }
        f._mm512_mask_blend_pd(f._mm512_test_epi64_mask(at, f._mm512_set1_epi64(16)), of_two(0), of_two(16))
    }
}
