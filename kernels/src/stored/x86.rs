//! AVX-512 has instructions for f16, and masks for 16 bits; AVX2 comes with F16C. `None` and `false` on other instruction sets.

mod bf16;

use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::transmute_copy;

use half::f16;
use pulp::Simd;
use pulp::x86::{V3, V4};

pub use self::bf16::{in_order, read_two, reorders, write_ordered_two, write_two};
use super::{Element, MOST_LANES, Packed};
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

/// The numbers in the 8 lanes.
///
/// # Safety
/// The instruction set is V3.
#[inline(always)]
unsafe fn widened_eight<S: Simd, D: Element>(x: __m128i) -> S::f32s {
    // SAFETY: the caller's promise; a register is 32 bytes of plain numbers.
    unsafe {
        match same::<D, f16>() {
            true => {
                let halves = [widened_four(x), widened_four(_mm_unpackhi_epi64(x, x))];
                transmute_copy(&_mm256_set_m128(halves[1], halves[0]))
            }
            false => transmute_copy(&_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))),
        }
    }
}

/// Four numbers from the lower half of a register of f16. The instruction is F16C's: the standard library's function for it would be a
/// call, as pulp does not tell the compiler that V3 has it.
///
/// # Safety
/// The instruction set is V3, which [`Arch`](crate::Arch) has where there is F16C.
#[inline(always)]
unsafe fn widened_four(x: __m128i) -> __m128 {
    let wide;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vcvtph2ps {}, {}", lateout(xmm_reg) wide, in(xmm_reg) x, options(pure, nomem, nostack, preserves_flags))
    }
    wide
}

/// Likewise the nearest f16 in the lower half, zeros in the other.
///
/// # Safety
/// As [`widened_four`].
#[inline(always)]
unsafe fn narrowed_four(x: __m128) -> __m128i {
    let narrow;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vcvtps2ph {}, {}, 0", lateout(xmm_reg) narrow, in(xmm_reg) x, options(pure, nomem, nostack, preserves_flags))
    }
    narrow
}

/// The first `n` of eight elements at `p`, zeros after them. By their bits: what went to memory in parts is not forwarded to a load of all.
///
/// # Safety
/// `p` is valid for reads of them, and `n` is at most eight.
#[inline(always)]
unsafe fn first_of_eight<D>(p: *const D, n: usize) -> __m128i {
    let p = p.cast::<u16>();
    // SAFETY: the caller's promise: of two words that overlap, the second ends where the elements do.
    unsafe {
        let four = |at: usize| p.add(at).cast::<u64>().read_unaligned();
        let two = |at: usize| u64::from(p.add(at).cast::<u32>().read_unaligned());
        if n == 8 {
            return _mm_loadu_si128(p.cast());
        }
        let (low, high) = match n {
            0 => (0, 0),
            1 => (u64::from(p.read()), 0),
            2 | 3 => (two(0) | two(n - 2) << (16 * (n - 2)), 0),
            4 => (four(0), 0),
            _ => (four(0), four(n - 4) >> (16 * (8 - n))),
        };
        _mm_set_epi64x(high as i64, low as i64)
    }
}

/// # Safety
/// As [`Element::read`].
#[inline(always)]
pub unsafe fn read<S: Simd, D: Element>(p: *const D) -> Option<S::f32s> {
    // SAFETY: S is the one that each arm says; the caller's promise.
    unsafe {
        if same::<S, V4>() {
            Some(widened::<S, D>(_mm256_loadu_si256(p.cast())))
        } else if same::<S, V3>() {
            Some(widened_eight::<S, D>(_mm_loadu_si128(p.cast())))
        } else {
            None
        }
    }
}

/// # Safety
/// As [`Element::read_masked`].
#[inline(always)]
pub unsafe fn read_masked<S: Simd, D: Element>(mask: S::m32s, p: *const D) -> Option<S::f32s> {
    // SAFETY: S is the one that each arm says, V4's masks of 16 lanes are 16 bits; the caller's promise.
    unsafe {
        if same::<S, V4>() {
            Some(widened::<S, D>(_mm256_maskz_loadu_epi16(transmute_copy::<_, u16>(&mask), p.cast())))
        } else {
            lanes_of::<S>(&mask).map(|n| widened_eight::<S, D>(first_of_eight(p, n)))
        }
    }
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
    if same::<S, V3>() && same::<D, f16>() {
        // SAFETY: S is V3, whose registers of f32 are AVX's; the caller's promise.
        unsafe {
            let x = transmute_copy(&x);
            let halves = [_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)];
            _mm_storeu_si128(p.cast(), _mm_unpacklo_epi64(narrowed_four(halves[0]), narrowed_four(halves[1])));
        }
        return true;
    }
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
