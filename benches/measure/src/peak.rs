//! The rate of fused multiply-adds that this machine sustains: the ceiling that every operation is reported against.

use sparsimd::{Arch, Cpu, Scalar};

use crate::bursts::{add_burst, fma_burst, integer_burst};
use crate::rate::{best_rate, rate_now};

/// Rounds of independent operations in one step: some microseconds.
const ROUNDS: u64 = 1 << 12;

/// The largest rate of multiply-adds of `T` in GFLOP/s (two operations each) that all threads of `cpu` together reach,
/// with its instruction set: the best of several bursts, about 0.1 s in all.
#[inline(never)]
pub fn fma_peak<T: Scalar>(cpu: &Cpu) -> f64 {
    peak(cpu, fma_burst::<T>)
}

/// Like [`fma_peak`] with additions only, one operation each: the ceiling of code without multiplications.
#[inline(never)]
pub fn add_peak<T: Scalar>(cpu: &Cpu) -> f64 {
    peak(cpu, add_burst::<T>)
}

/// The rate of integer additions at the moment, 10^9 a second, all threads of `cpu` together: of one burst of half a millisecond.
///
/// Nothing but the number of instructions that a core starts bounds them. Where other work has the core's second hardware thread, it falls to
/// little more than half, while [`fma_peak`] may stay what it is.
pub fn integer_rate_now(cpu: &Cpu) -> f64 {
    rate_now(cpu, |_, steps| integer_burst(steps * ROUNDS)) / 1e9
}

fn peak<T: Scalar>(cpu: &Cpu, burst: fn(Arch, u64) -> (T, u64)) -> f64 {
    best_rate(cpu, |_, steps| {
        let (value, flops) = burst(cpu.arch(), steps * ROUNDS);
        std::hint::black_box(value);
        flops
    }) / 1e9
}
