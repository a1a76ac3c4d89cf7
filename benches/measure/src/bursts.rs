//! acc_k = acc_k m + a, or acc_k + a, for independent k: nothing but arithmetic, to measure what the processor can do.
//!
//! The chains are independent, so that the units' latency is hidden: 4 cycles by 2 units need 8 of them on the x86
//! processors of the last ten years; 12 leave a margin and, with `m` and `a`, fit the 16 registers of AVX2.

use pulp::{Simd, WithSimd};
use sparsimd::{Arch, Scalar};

/// Chains in flight.
const CHAINS: usize = 12;

struct Burst<T, const FUSED: bool> {
    rounds: u64,
    m: T,
    a: T,
}

impl<T: Scalar, const FUSED: bool> WithSimd for Burst<T, FUSED> {
    type Output = (T, u64);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let (m, a) = (T::splat(simd, self.m), T::splat(simd, self.a));
        // Different starts: chains that are equal could be computed once.
        let mut acc: [_; CHAINS] = core::array::from_fn(|k| T::splat(simd, T::from_f64(k as f64)));
        for _ in 0..self.rounds {
            for x in &mut acc {
                *x = if FUSED { T::vmul_add(simd, *x, m, a) } else { T::vadd(simd, *x, a) };
            }
        }
        let mut sum = acc[0];
        for &x in &acc[1..] {
            sum = T::vadd(simd, sum, x);
        }
        let flops = if FUSED { 2 } else { 1 };
        (T::reduce_sum(simd, sum), flops * self.rounds * (CHAINS * T::lanes::<S>()) as u64)
    }
}

/// Runs `rounds` rounds of independent multiply-adds in registers and returns a value that depends on all of them (so
/// that the compiler keeps them) and the number of floating point operations done, two per multiply-add.
#[inline(never)]
pub fn fma_burst<T: Scalar>(arch: Arch, rounds: u64) -> (T, u64) {
    // acc converges to a / (1 - m) = 2 without ever being subnormal. The black boxes keep the chains from being folded.
    let (m, a) = (core::hint::black_box(T::from_f64(0.5)), core::hint::black_box(T::ONE));
    arch.dispatch(Burst::<T, true> { rounds, m, a })
}

/// Like [`fma_burst`] with additions only, one operation each.
#[inline(never)]
pub fn add_burst<T: Scalar>(arch: Arch, rounds: u64) -> (T, u64) {
    let a = core::hint::black_box(T::ONE);
    arch.dispatch(Burst::<T, false> { rounds, m: a, a })
}

/// Integers that [`integer_burst`] counts up side by side, and how often in one pass of its loop: more than any processor starts in a clock.
const COUNTERS: usize = 8;
const UNROLLED: usize = 4;

/// Runs `rounds` rounds of additions of integers in registers; returns how many.
#[inline(never)]
pub fn integer_burst(rounds: u64) -> u64 {
    let mut counters = [0usize; COUNTERS];
    for _ in 0..rounds {
        for _ in 0..UNROLLED {
            for x in &mut counters {
                *x = unknown(*x + 1);
            }
        }
    }
    counters.iter().map(|&x| x as u64).sum()
}

/// `x`, of which the compiler knows nothing more: it can neither fold additions nor make vectors of them.
#[inline(always)]
fn unknown(x: usize) -> usize {
    let mut x = x;
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: there is no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) x, options(pure, nomem, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        x = core::hint::black_box(x);
    }
    x
}
