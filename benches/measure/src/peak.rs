//! The rate of fused multiply-adds that this machine sustains: the ceiling that every operation is reported against.

use sparsimd::{Arch, Cpu, Scalar};

use crate::bursts::{add_burst, fma_burst};
use crate::rate::best_rate;

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

fn peak<T: Scalar>(cpu: &Cpu, burst: fn(Arch, u64) -> (T, u64)) -> f64 {
    best_rate(cpu, |_, steps| {
        let (value, flops) = burst(cpu.arch(), steps * ROUNDS);
        std::hint::black_box(value);
        flops
    }) / 1e9
}
