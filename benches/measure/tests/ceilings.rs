//! Measured ceilings are of the right size and order, as far as that can be told on a machine that has other work.

use std::time::Instant;

use sparsimd::Cpu;
use sparsimd_measure::{Ceilings, clock_ghz, fma_peak};

#[test]
fn ceilings_are_ordered_and_quick() {
    let cpu = Cpu::new().unwrap();
    let start = Instant::now();
    let ceilings = Ceilings::measure(&cpu).unwrap();
    assert!(start.elapsed().as_secs() < 15, "{:?}", start.elapsed());
    let names: Vec<_> = ceilings.levels.iter().map(|level| level.name.as_str()).collect();
    assert!(names == ["L1", "L2", "L3", "DRAM"] || names == ["L1", "L2", "DRAM"], "{names:?}");
    let (near, far) = (&ceilings.levels[0], &ceilings.levels[names.len() - 1]);
    assert!(near.read.one > 2.0 * far.read.one, "{ceilings:?}");
    assert!(near.triad.one > 2.0 * far.triad.one, "{ceilings:?}");
    assert!(far.latency_ns > 4.0 * near.latency_ns, "{ceilings:?}");
    assert!(ceilings.gather.one < near.read.one && ceilings.gather.one > 0.1, "{ceilings:?}");
    // Two operations instead of one.
    let ratio = ceilings.fma_f32.one / ceilings.add_f32.one;
    assert!((1.2..3.0).contains(&ratio), "{ceilings:?}");
    // Half the lanes.
    let ratio = ceilings.fma_f32.one / ceilings.fma_f64.one;
    assert!((1.2..3.3).contains(&ratio), "{ceilings:?}");
    assert_eq!((ceilings.threads, ceilings.simd.as_str()), (cpu.threads(), cpu.arch().name()));
}

/// The peak is lanes * 2 * (1 or 2 multiply-adds per cycle) * clock. Other work on the machine disturbs either measurement
/// at times, so one try of several must be right.
#[test]
fn the_fma_peak_is_what_the_clock_allows() {
    let cpu = Cpu::builder().threads(1).build().unwrap();
    let lanes = cpu.machine().simd().vector_bytes / 4;
    if lanes < 8 {
        println!("skipped: no vector instruction set to count by");
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        let Some(clock) = clock_ghz(&cpu) else {
            println!("skipped: the clock is not known on this processor");
            return;
        };
        let per_cycle = fma_peak::<f32>(&cpu) / (lanes as f64 * 2.0 * clock);
        if [1.0, 2.0].iter().any(|whole| (per_cycle / whole - 1.0).abs() < 0.03) {
            return;
        }
        seen.push(per_cycle);
    }
    panic!("multiply-adds per cycle: {seen:?}");
}
