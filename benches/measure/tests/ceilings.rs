//! What a measurement of the ceilings consists of. How large they must be is guarded by the bench `guards`.

use sparsimd::Cpu;
use sparsimd_measure::Ceilings;

#[test]
fn ceilings_are_complete() {
    let cpu = Cpu::new().unwrap();
    let ceilings = Ceilings::measure(&cpu).unwrap();
    let names: Vec<_> = ceilings.levels.iter().map(|level| level.name.as_str()).collect();
    assert!(names == ["L1", "L2", "L3", "DRAM"] || names == ["L1", "L2", "DRAM"], "{names:?}");
    let rates = ceilings.levels.iter().flat_map(|level| [level.read.one, level.triad.one, level.latency_ns]);
    let arithmetic = [ceilings.fma_f32.one, ceilings.fma_f64.one, ceilings.add_f32.one, ceilings.gather.one];
    assert!(rates.chain(arithmetic).all(|rate| rate.is_finite() && rate > 0.0), "{ceilings:?}");
    assert_eq!((ceilings.threads, ceilings.simd.as_str()), (cpu.threads(), cpu.arch().name()));
}
