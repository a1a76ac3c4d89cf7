//! Stores of a part of a register on AVX2. `vmaskmov` to memory takes a Zen 17 cycles, in which nothing else begins, and what it has
//! stored cannot be forwarded to loads.

use core::arch::x86_64::*;
use core::mem::transmute_copy;

use pulp::Simd;
use pulp::x86::V3;

use super::Number;
use crate::arch::same;

/// Whether the lanes of `mask` in `x` were stored at `p`: by halves, quarters and eighths of a register, as many as there are.
///
/// # Safety
/// As [`Number::store_masked`].
#[inline(always)]
pub unsafe fn store_masked<S: Simd, T: Number>(mask: &T::Mask<S>, p: *mut T, x: &T::Vector<S>) -> bool {
    if !same::<S, V3>() {
        return false;
    }
    // SAFETY: S is V3, whose masks and vectors are registers of 32 bytes; the caller's promise. The lanes of a mask in a half of the
    // register are the first ones of it.
    unsafe {
        let x = transmute_copy(x);
        let lanes = match size_of::<T>() {
            4 => _mm256_movemask_ps(transmute_copy(mask)) as u32,
            _ => _mm256_movemask_pd(transmute_copy(mask)) as u32,
        };
        let half = T::lanes::<S>() / 2;
        store_first(p, (lanes & ((1 << half) - 1)).count_ones(), _mm256_castps256_ps128(x));
        store_first(p.wrapping_add(half), (lanes >> half).count_ones(), _mm256_extractf128_ps::<1>(x));
    }
    true
}

/// Stores the first `n` numbers of `x` at `p`.
///
/// # Safety
/// `p` is valid for writes of them; the processor has AVX.
#[inline(always)]
unsafe fn store_first<T>(p: *mut T, n: u32, x: __m128) {
    let words = n * (size_of::<T>() / size_of::<f32>()) as u32;
    let p = p.cast::<f32>();
    // SAFETY: the caller's promise.
    unsafe {
        if words == 4 {
            return _mm_storeu_ps(p, x);
        }
        let mut rest = (p, x);
        if words & 2 != 0 {
            _mm_storel_pd(p.cast(), _mm_castps_pd(x));
            rest = (p.add(2), _mm_movehl_ps(x, x));
        }
        if words & 1 != 0 {
            _mm_store_ss(rest.0, rest.1);
        }
    }
}
