//! Handing one of eight weights to all lanes.
//!
//! A broadcast from memory is a load, and in the panel loops loads are the bottleneck: three for two multiply-adds
//! where a row has two vectors. Where lanes can be permuted by a register (AVX-512), eight weights are one load, and
//! handing one of them to all lanes is left to the units that shuffle (4096 x 4096, one thread, N = 32: SpMM 64 instead
//! of 55 % of peak at 70 % zeros, 59 instead of 53 at 90).

use pulp::Simd;

use crate::Number;
use crate::block::OFFSETS_PER_WORD;

/// How it is done: the permutations, in registers.
#[derive(Clone, Copy)]
pub(crate) struct Spread<S: Simd, T: Number> {
    simd: S,
    lanes: [T::Vector<S>; OFFSETS_PER_WORD],
}

/// Eight weights: where they are, and as many as are loaded together.
#[derive(Clone, Copy)]
pub(crate) struct Eight<S: Simd, T: Number> {
    at: *const T,
    loaded: T::Vector<S>,
}

impl<S: Simd, T: Number> Spread<S, T> {
    /// Made once, before the loops.
    #[inline(always)]
    pub fn new(simd: S) -> Self {
        let zero = T::splat(simd, T::ZERO);
        let mut lanes = [zero; OFFSETS_PER_WORD];
        #[cfg(target_arch = "x86_64")]
        if let Some(permutations) = x86::permutations::<S, T>(simd) {
            // Hidden: a compiler that knows the lane makes a broadcast from memory of it again.
            lanes = core::hint::black_box(permutations);
        }
        Self { simd, lanes }
    }

    /// The eight weights at `at`.
    ///
    /// # Safety
    /// They are valid for reads, as long as one is asked for.
    #[inline(always)]
    pub unsafe fn eight(&self, at: *const T) -> Eight<S, T> {
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        if let Some(loaded) = unsafe { x86::load_eight::<S, T>(self.simd, at) } {
            return Eight { at, loaded };
        }
        Eight { at, loaded: self.lanes[0] }
    }

    /// Weight `t` in all lanes.
    ///
    /// # Safety
    /// `t` is below 8.
    #[inline(always)]
    pub unsafe fn lane(&self, eight: &Eight<S, T>, t: usize) -> T::Vector<S> {
        #[cfg(target_arch = "x86_64")]
        if let Some(all) = x86::permute::<S, T>(self.simd, self.lanes[t], eight.loaded) {
            return all;
        }
        // SAFETY: the caller's promise, and that of `eight`.
        T::splat(self.simd, unsafe { *eight.at.add(t) })
    }
}

/// With permutations by a register; `None` on other instruction sets.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m256, __m512, __m512d};
    use core::mem::transmute_copy;

    use pulp::Simd;
    use pulp::x86::V4;

    use crate::Number;
    use crate::arch::same;
    use crate::block::OFFSETS_PER_WORD;

    /// The permutation for each lane.
    #[inline(always)]
    pub fn permutations<S: Simd, T: Number>(simd: S) -> Option<[T::Vector<S>; OFFSETS_PER_WORD]> {
        if !same::<S, V4>() {
            return None;
        }
        // SAFETY: S is V4, whose registers are of one size whatever is in them.
        unsafe {
            let f = transmute_copy::<S, V4>(&simd).avx512f;
            let mut permutations = [T::splat(simd, T::ZERO); OFFSETS_PER_WORD];
            for (t, permutation) in permutations.iter_mut().enumerate() {
                *permutation = match size_of::<T>() == 4 {
                    true => transmute_copy(&f._mm512_set1_epi32(t as i32)),
                    false => transmute_copy(&f._mm512_set1_epi64(t as i64)),
                };
            }
            Some(permutations)
        }
    }

    /// The eight at `at`, in the lower lanes.
    ///
    /// # Safety
    /// They are valid for reads.
    #[inline(always)]
    pub unsafe fn load_eight<S: Simd, T: Number>(simd: S, at: *const T) -> Option<T::Vector<S>> {
        if !same::<S, V4>() {
            return None;
        }
        // SAFETY: S is V4; the caller's promise.
        unsafe {
            let f = transmute_copy::<S, V4>(&simd).avx512f;
            Some(match size_of::<T>() == 4 {
                true => transmute_copy(&f._mm512_castps256_ps512(at.cast::<__m256>().read_unaligned())),
                false => T::load(simd, at),
            })
        }
    }

    /// `x` permuted by `lanes`.
    #[inline(always)]
    pub fn permute<S: Simd, T: Number>(simd: S, lanes: T::Vector<S>, x: T::Vector<S>) -> Option<T::Vector<S>> {
        if !same::<S, V4>() {
            return None;
        }
        // SAFETY: S is V4, and T has the size that each arm says: permutations move bits.
        unsafe {
            let f = transmute_copy::<S, V4>(&simd).avx512f;
            let lanes = transmute_copy(&lanes);
            Some(match size_of::<T>() == 4 {
                true => transmute_copy(&f._mm512_permutexvar_ps(lanes, transmute_copy::<_, __m512>(&x))),
                false => transmute_copy(&f._mm512_permutexvar_pd(lanes, transmute_copy::<_, __m512d>(&x))),
            })
        }
    }
}
