//! AVX-512 has instructions for f16, and masks for 16 bits. `None` and `false` on other instruction sets.

use core::arch::x86_64::*;
use core::mem::transmute_copy;

use half::{bf16, f16};
use pulp::Simd;
use pulp::x86::{V3, V4};

use super::{Element, MOST_LANES, Mask, Packed, Vector};
use crate::arch::same;

/// The numbers in the 16 lanes.
///
/// # Safety
/// The instruction set is V4.
#[inline(always)]
unsafe fn widened<S: Simd, D: Element>(x: __m256i) -> S::f32s {
    // SAFETY: the caller's promise; a register is 64 bytes of plain numbers.
    unsafe {
        match same::<D, f16>() {
            true => transmute_copy(&_mm512_cvtph_ps(x)),
            false => transmute_copy(&_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))),
        }
    }
}

/// # Safety
/// As [`Element::read`].
#[inline(always)]
pub unsafe fn read<S: Simd, D: Element>(p: *const D) -> Option<S::f32s> {
    if !same::<S, V4>() {
        return None;
    }
    // SAFETY: S is V4; the caller's promise.
    unsafe { Some(widened::<S, D>(_mm256_loadu_si256(p.cast()))) }
}

/// # Safety
/// As [`Element::read_masked`].
#[inline(always)]
pub unsafe fn read_masked<S: Simd, D: Element>(mask: S::m32s, p: *const D) -> Option<S::f32s> {
    if !same::<S, V4>() {
        return None;
    }
    // SAFETY: S is V4, whose masks of 16 lanes are 16 bits; the caller's promise.
    unsafe { Some(widened::<S, D>(_mm256_maskz_loadu_epi16(transmute_copy::<_, u16>(&mask), p.cast()))) }
}

/// Whether the lanes of `mask` in `x` were stored at `p`.
///
/// # Safety
/// As [`Element::write_masked`].
#[inline(always)]
pub unsafe fn write_masked<S: Simd, D: Element>(mask: S::m32s, p: *mut D, x: &[D; MOST_LANES]) -> bool {
    if !same::<S, V4>() {
        return false;
    }
    // SAFETY: S is V4, whose masks of 16 lanes are 16 bits; the caller's promise.
    unsafe {
        _mm256_mask_storeu_epi16(p.cast(), transmute_copy::<_, u16>(&mask), _mm256_loadu_si256(x.as_ptr().cast()))
    }
    true
}

/// How many lanes `mask` has.
#[inline(always)]
pub fn lanes_of<S: Simd>(mask: &S::m32s) -> Option<usize> {
    // SAFETY: S is V3, whose masks are registers of AVX.
    same::<S, V3>().then(|| unsafe { _mm256_movemask_ps(transmute_copy(mask)).count_ones() as usize })
}

/// Whether `x` was stored at `p`.
///
/// # Safety
/// As [`Element::write`].
#[inline(always)]
pub unsafe fn write<S: Simd, D: Element>(p: *mut D, x: S::f32s) -> bool {
    if !same::<S, V4>() {
        return false;
    }
    // SAFETY: S is V4; the caller's promise.
    unsafe {
        let narrow = match same::<D, f16>() {
            true => _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(transmute_copy(&x)),
            false => _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded_bf16(transmute_copy(&x)))),
        };
        _mm256_storeu_si256(p.cast(), narrow);
    }
    true
}

/// The nearest bf16 in the upper halves of the lanes, as `narrowed_bf16` has it; anything in the lower ones.
///
/// # Safety
/// The instruction set is V4.
#[inline(always)]
unsafe fn rounded_bf16(x: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(x);
        // With the last bit that stays: half of its place rounds up. Without: what is below half rounds down, half itself too.
        let even = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
        let up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
        let rounded = _mm512_mask_sub_epi32(up, even, up, _mm512_set1_epi32(1));
        // Quiet and signaling NaN become quiet ones of the same bits; all other classes keep the rounded number.
        let table = _mm512_set1_epi32(0x22);
        _mm512_castps_si512(_mm512_fixupimm_ps::<0>(_mm512_castsi512_ps(rounded), x, table))
    }
}

/// Stores two registers from [`read_two`], or sums of such, at `p` in the elements' order: the odd ones are in place, the even ones
/// move down. Past the caches if they are to `stream`.
///
/// # Safety
/// [`reorders`] is true; `p` is valid for writes of both registers' elements, and a multiple of 64 bytes if they are to stream.
#[inline(always)]
pub unsafe fn write_two<S: Simd, D: Element>(p: *mut D, [even, odd]: [Vector<D, S>; 2], stream: bool) {
    // SAFETY: S is V4, whose registers of f32 these are; the caller's promise.
    unsafe {
        let (even, odd) = (rounded_bf16(transmute_copy(&even)), rounded_bf16(transmute_copy(&odd)));
        let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd);
        if stream { _mm512_stream_si512(p.cast(), both) } else { _mm512_storeu_si512(p.cast(), both) }
    }
}

/// Stores two registers that are in the elements' order at `p`: one permutation takes the upper halves of both, where each by itself
/// would be shifted and packed.
///
/// # Safety
/// [`reorders`] is true; `p` is valid for writes of both registers' elements.
#[inline(always)]
pub unsafe fn write_ordered_two<S: Simd, D: Element>(p: *mut D, [first, second]: [Vector<D, S>; 2]) {
    const UPPER: [u16; 32] = {
        let mut upper = [0; 32];
        let mut i = 0;
        while i < upper.len() {
            upper[i] = 2 * i as u16 + 1;
            i += 1;
        }
        upper
    };
    // SAFETY: S is V4, whose registers of f32 these are; the caller's promise.
    unsafe {
        let (first, second) = (rounded_bf16(transmute_copy(&first)), rounded_bf16(transmute_copy(&second)));
        let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
        _mm512_storeu_si512(p.cast(), _mm512_permutex2var_epi16(first, upper, second));
    }
}

/// Whether `x`, as many elements as a register has lanes, was stored at `p` past the caches.
///
/// # Safety
/// As [`Element::write_streaming`].
#[inline(always)]
pub unsafe fn stream<S: Simd, D: Element>(p: *mut D, x: &Packed<D>) -> bool {
    let x = &raw const x.0;
    // SAFETY: eight lanes are AVX's, which has both instructions, and 16 are AVX-512's; the caller's promise.
    unsafe {
        match S::F32_LANES {
            16 => _mm256_stream_si256(p.cast(), _mm256_load_si256(x.cast())),
            8 => _mm_stream_si128(p.cast(), _mm_load_si128(x.cast())),
            _ => return false,
        }
    }
    true
}

/// Whether [`read_two`] is for `D`: bf16, of which a register of 32 makes two of f32 by one instruction each, those in even places by
/// a shift and those in odd ones by a mask. In order, each takes two.
#[inline(always)]
pub fn reorders<S: Simd, D: Element>() -> bool {
    same::<S, V4>() && same::<D, bf16>()
}

/// # Safety
/// As [`Element::read_two`], and [`reorders`] is true.
#[inline(always)]
pub unsafe fn read_two<S: Simd, D: Element>(mask: Option<Mask<D, S>>, p: *const D) -> [Vector<D, S>; 2] {
    // SAFETY: S is V4, whose masks of 16 lanes are 16 bits; the caller's promise.
    unsafe {
        let all = match mask {
            Some(mask) => {
                let second = transmute_copy::<_, u16>(&mask);
                _mm512_maskz_loadu_epi16(u32::from(second) << 16 | 0xffff, p.cast())
            }
            None => _mm512_loadu_si512(p.cast()),
        };
        let (even, odd) =
            (_mm512_slli_epi32::<16>(all), _mm512_and_si512(all, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        [transmute_copy(&even), transmute_copy(&odd)]
    }
}

/// # Safety
/// [`reorders`] is true.
#[inline(always)]
pub unsafe fn in_order<S: Simd, D: Element>([even, odd]: [Vector<D, S>; 2]) -> [Vector<D, S>; 2] {
    // SAFETY: S is V4, whose registers of f32 these are.
    unsafe {
        let (even, odd): (__m512, __m512) = (transmute_copy(&even), transmute_copy(&odd));
        let first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        let (first, second) = (_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd));
        [transmute_copy(&first), transmute_copy(&second)]
    }
}
