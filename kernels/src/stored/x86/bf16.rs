//! Two registers of bf16 at a time. One instruction each takes the elements in even places, by a shift, and those in odd ones, by a mask; in
//! order, each register takes two.

use core::arch::x86_64::*;
use core::mem::transmute_copy;

use half::bf16;
use pulp::Simd;
use pulp::x86::{V3, V4};

use super::{first_of_eight, lanes_of, rounded_bf16};
use crate::arch::same;
use crate::stored::{Element, Mask, Vector};

/// Whether [`read_two`] is for `D`.
#[inline(always)]
pub fn reorders<S: Simd, D: Element>() -> bool {
    (same::<S, V4>() || same::<S, V3>()) && same::<D, bf16>()
}

/// # Safety
/// As [`Element::read_two`], and [`reorders`] is true.
#[inline(always)]
pub unsafe fn read_two<S: Simd, D: Element>(mask: Option<Mask<D, S>>, p: *const D) -> [Vector<D, S>; 2] {
    // SAFETY: S is the one that each arm says, V4's masks of 16 lanes are 16 bits; the caller's promise.
    unsafe {
        if same::<S, V4>() {
            let all = match mask {
                Some(mask) => {
                    let second = transmute_copy::<_, u16>(&mask);
                    _mm512_maskz_loadu_epi16(u32::from(second) << 16 | 0xffff, p.cast())
                }
                None => _mm512_loadu_si512(p.cast()),
            };
            let odd = _mm512_set1_epi32(ODD);
            return [transmute_copy(&_mm512_slli_epi32::<16>(all)), transmute_copy(&_mm512_and_si512(all, odd))];
        }
        let all = match mask {
            Some(mask) => {
                let n = lanes_of::<S>(&transmute_copy(&mask)).unwrap_unchecked();
                _mm256_set_m128i(first_of_eight(p.add(8), n), _mm_loadu_si128(p.cast()))
            }
            None => _mm256_loadu_si256(p.cast()),
        };
        [transmute_copy(&_mm256_slli_epi32::<16>(all)), transmute_copy(&_mm256_and_si256(all, _mm256_set1_epi32(ODD)))]
    }
}

/// The bits of the element in the odd place of each pair.
const ODD: i32 = 0xffff_0000_u32 as i32;

/// # Safety
/// [`reorders`] is true.
#[inline(always)]
pub unsafe fn in_order<S: Simd, D: Element>([even, odd]: [Vector<D, S>; 2]) -> [Vector<D, S>; 2] {
    // SAFETY: S is the one that each arm says, whose registers of f32 these are.
    unsafe {
        if same::<S, V4>() {
            let (even, odd): (__m512, __m512) = (transmute_copy(&even), transmute_copy(&odd));
            let first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
            let second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
            let (first, second) = (_mm512_permutex2var_ps(even, first, odd), _mm512_permutex2var_ps(even, second, odd));
            return [transmute_copy(&first), transmute_copy(&second)];
        }
        let (even, odd): (__m256, __m256) = (transmute_copy(&even), transmute_copy(&odd));
        let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        let (first, second) = (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high));
        [transmute_copy(&first), transmute_copy(&second)]
    }
}

/// The nearest bf16 in the upper halves of the eight lanes, as `narrowed_bf16` has it; anything in the lower ones.
///
/// # Safety
/// The instruction set is V3.
#[inline(always)]
unsafe fn rounded_eight(x: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let last = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_blendv_epi8(rounded, quiet, nan)
    }
}

/// Stores two registers from [`read_two`], or sums of such, at `p` in the elements' order: the odd ones are in place, the even ones
/// move down. Past the caches if they are to `stream`.
///
/// # Safety
/// [`reorders`] is true; `p` is valid for writes of both registers' elements, and a multiple of 64 bytes if they are to stream.
#[inline(always)]
pub unsafe fn write_two<S: Simd, D: Element>(p: *mut D, [even, odd]: [Vector<D, S>; 2], stream: bool) {
    // SAFETY: S is the one that each arm says, whose registers of f32 these are; the caller's promise.
    unsafe {
        if same::<S, V3>() {
            let (even, odd) = (rounded_eight(transmute_copy(&even)), rounded_eight(transmute_copy(&odd)));
            let both = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(even), odd);
            return if stream { _mm256_stream_si256(p.cast(), both) } else { _mm256_storeu_si256(p.cast(), both) };
        }
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
    // SAFETY: likewise.
    unsafe {
        if same::<S, V3>() {
            let (first, second) = (rounded_eight(transmute_copy(&first)), rounded_eight(transmute_copy(&second)));
            // The upper halves of each group of four lanes, which are put in order then.
            let packed = _mm256_packus_epi32(_mm256_srli_epi32::<16>(first), _mm256_srli_epi32::<16>(second));
            return _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
        let (first, second) = (rounded_bf16(transmute_copy(&first)), rounded_bf16(transmute_copy(&second)));
        let upper = _mm512_loadu_si512(UPPER.as_ptr().cast());
        _mm512_storeu_si512(p.cast(), _mm512_permutex2var_epi16(first, upper, second));
    }
}
