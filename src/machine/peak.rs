//! The rate of fused multiply-adds that this machine sustains: the ceiling that every operation is reported against.

use std::sync::Barrier;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sparsimd_kernels::{Scalar, fma_burst};

use crate::cpu::Cpu;

/// One burst: long against the barrier and the timer, short against the operating system's time slice.
const BURST: Duration = Duration::from_millis(3);
/// All bursts: enough for the clock to rise and for one of them to go undisturbed.
const TOTAL: Duration = Duration::from_millis(80);

/// The largest rate of multiply-adds of `T` in GFLOP/s (two operations each) that all threads of `cpu` together reach,
/// with its instruction set: the best of several bursts, about 0.1 s in all.
pub fn fma_peak<T: Scalar>(cpu: &Cpu) -> f64 {
    let mut rounds = 1 << 12;
    while burst::<T>(cpu, rounds).0 < BURST {
        rounds *= 2;
    }
    let start = Instant::now();
    let mut best = 0.0f64;
    while start.elapsed() < TOTAL {
        let (time, flops) = burst::<T>(cpu, rounds);
        best = best.max(flops as f64 / time.as_secs_f64() / 1e9);
    }
    best
}

/// The time from the first thread's start to the last one's end, and the operations done by all.
fn burst<T: Scalar>(cpu: &Cpu, rounds: u64) -> (Duration, u64) {
    let barrier = Barrier::new(cpu.threads());
    let spans = Mutex::new(Vec::with_capacity(cpu.threads()));
    cpu.install(|| {
        rayon::broadcast(|_| {
            barrier.wait();
            let start = Instant::now();
            let (value, flops) = fma_burst::<T>(cpu.arch(), rounds);
            let end = Instant::now();
            std::hint::black_box(value);
            if let Ok(mut spans) = spans.lock() {
                spans.push((start, end, flops));
            }
        })
    });
    let spans = spans.into_inner().unwrap_or_default();
    let start = spans.iter().map(|s| s.0).min();
    let end = spans.iter().map(|s| s.1).max();
    let time = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    (time, spans.iter().map(|s| s.2).sum())
}

#[cfg(test)]
mod tests {
    use super::fma_peak;
    use crate::cpu::Cpu;

    #[test]
    fn a_wider_instruction_set_is_faster() {
        let peak = |arch| fma_peak::<f32>(&Cpu::builder().threads(1).arch(arch).build().unwrap());
        let all = sparsimd_kernels::Arch::available();
        let (narrow, wide) = (peak(all[0]), peak(all[all.len() - 1]));
        // 8 or 16 lanes and fused operations against one lane; other work on the machine disturbs both.
        assert!(all.len() == 1 || wide > 3.0 * narrow, "{wide} GFLOP/s against {narrow}");
    }
}
