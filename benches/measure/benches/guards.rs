//! Assertions about speed: they need a quiet machine, so they are no tests. `cargo bench -p sparsimd-measure --bench guards`.
//!
//! A kernel that loses its target features (a helper that is not inlined) gives correct results, 18 to 25 times slower. Every
//! dispatched kernel must be faster than the same kernel on the scalar instruction set. `tests/inlining` checks the same without a clock.

use std::time::Instant;

use sparsimd::formats::{Csf, FiberCoo};
use sparsimd::ops::TtmAlgorithm;
use sparsimd::plan::{MttkrpFormat, Op, PlanOptions, Strategy, TensorOptions};
use sparsimd::{Arch, Cpu, Mat, MatRef, Result, edge, generate};
use sparsimd_measure::{Ceilings, clock_ghz, fma_peak};

/// A dispatched kernel is 5 (AVX2) to 20 times (AVX-512) as fast as the scalar one where it computes, and less where it waits for
/// memory; one that lost its features is slower than it.
const LEAST_GAIN: f64 = 1.5;

/// Other work on the machine disturbs a measurement: one of several tries must be right.
const TRIES: usize = 10;

/// What a guard found wrong, or nothing.
type Verdict = std::result::Result<(), String>;

/// What is guarded, and the try.
type Guard = (String, Box<dyn Fn() -> Verdict>);

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("guards: run by cargo bench");
        return;
    }
    let mut guards: Vec<Guard> = vec![
        ("ceilings".into(), Box::new(ceilings)),
        ("multiply-adds per cycle".into(), Box::new(multiply_adds_per_cycle)),
        ("peaks of the instruction sets".into(), Box::new(peaks)),
    ];
    guards.extend(matrices().expect("matrices"));
    guards.extend(tensors().expect("tensors"));
    let mut failed = 0;
    for (name, guard) in &guards {
        let mut verdict = guard();
        for _ in 1..TRIES {
            if verdict.is_err() {
                verdict = guard();
            }
        }
        match verdict {
            Ok(()) => println!("{name}: ok"),
            Err(detail) => {
                println!("{name}: FAILED: {detail}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 0, "of {} guards", guards.len());
}

/// The shortest of many short runs: other work on the machine makes most of them longer, not all.
fn shortest(mut run: impl FnMut()) -> f64 {
    (0..20).fold(f64::INFINITY, |best, _| {
        let start = Instant::now();
        run();
        best.min(start.elapsed().as_secs_f64())
    })
}

/// `time` on the scalar instruction set must be longer than on each other one.
fn faster_than_scalar(time: impl Fn(&Cpu) -> Result<f64>) -> Verdict {
    let archs = Arch::available();
    let of = |arch| Cpu::builder().arch(arch).threads(1).build().and_then(|cpu| time(&cpu)).map_err(|e| e.to_string());
    let scalar = of(archs[0])?;
    for &arch in &archs[1..] {
        let gain = scalar / of(arch)?;
        if gain < LEAST_GAIN {
            return Err(format!("{} only {gain:.2} times as fast as scalar", arch.name()));
        }
    }
    Ok(())
}

fn guard(name: String, time: impl Fn(&Cpu) -> Result<f64> + 'static) -> Guard {
    (name, Box::new(move || faster_than_scalar(&time)))
}

/// SpMM, SDDMM and FusedMM by both strategies.
fn matrices() -> Result<Vec<Guard>> {
    const N: usize = 128;
    let a = generate::random_matrix::<f32>(200, 300, 0.5, 1)?;
    let (b, c) = (generate::uniform_dense::<f32>(300, N, 1)?, generate::uniform_dense::<f32>(200, N, 2)?);
    let mut guards = Vec::new();
    for strategy in [Strategy::Direct, Strategy::Panel] {
        let (a, b, c) = (a.clone(), b.clone(), c.clone());
        let prepare = move |cpu: &Cpu, op| cpu.prepare(&a, &PlanOptions::new(op, N).strategy(strategy));
        let spmm = {
            let (prepare, b) = (prepare.clone(), b.clone());
            move |cpu: &Cpu| {
                let (a, mut out) = (prepare(cpu, Op::Spmm)?, Mat::zeros(200, N)?);
                Ok(shortest(|| cpu.spmm(1.0, &a, b.as_ref(), 0.0, out.as_mut()).expect("a run")))
            }
        };
        let sddmm = {
            let (prepare, b, c) = (prepare.clone(), b.clone(), c.clone());
            move |cpu: &Cpu| {
                let a = prepare(cpu, Op::Sddmm)?;
                let mut out = vec![0f32; a.pattern().nnz()];
                Ok(shortest(|| cpu.sddmm(&a, c.as_ref(), b.as_ref(), &mut out).expect("a run")))
            }
        };
        let fusedmm = move |cpu: &Cpu| {
            let (a, mut e) = (prepare(cpu, Op::FusedMm)?, Mat::zeros(200, N)?);
            let (b, c) = (b.as_ref(), c.as_ref());
            let softmax = edge::Softmax { scale: 0.1 };
            Ok(shortest(|| cpu.fusedmm(&a, softmax, c, b, b, e.as_mut()).expect("a run")))
        };
        guards.push(guard(format!("spmm {strategy:?}"), spmm));
        guards.push(guard(format!("sddmm {strategy:?}"), sddmm));
        guards.push(guard(format!("fusedmm {strategy:?}"), fusedmm));
    }
    Ok(guards)
}

/// MTTKRP in every format, TTM by both algorithms, and the chain of TTMs. TTV is scalar on every instruction set.
fn tensors() -> Result<Vec<Guard>> {
    const R: usize = 64;
    let x = generate::skewed::<f32>(&[60, 50, 40], 20_000, 1)?;
    let factors: Vec<Mat<f32>> =
        x.dims().iter().map(|&dim| generate::uniform_dense(dim, R, dim as u64)).collect::<Result<_>>()?;
    let mut guards = Vec::new();
    for format in MttkrpFormat::ALL {
        let (x, factors) = (x.clone(), factors.clone());
        guards.push(guard(format!("mttkrp {format}"), move |cpu| {
            let tensor = cpu.prepare_tensor(&x, &TensorOptions::new(R).format(format))?;
            let views: Vec<MatRef<'_, f32>> = factors.iter().map(Mat::as_ref).collect();
            let mut out = Mat::zeros(x.dims()[0], R)?;
            Ok(shortest(|| cpu.mttkrp(&tensor, &views, 0, out.as_mut()).expect("a run")))
        }));
    }
    let fibers = FiberCoo::new(x.clone(), 2)?;
    for algorithm in [TtmAlgorithm::Fiber, TtmAlgorithm::Element] {
        let (fibers, u) = (fibers.clone(), factors[2].clone());
        guards.push(guard(format!("ttm {algorithm:?}"), move |cpu| {
            let mut y = Mat::zeros(fibers.num_fibers(), R)?;
            Ok(shortest(|| cpu.ttm_into(&fibers, u.as_ref(), algorithm, y.as_mut()).expect("a run")))
        }));
    }
    let tree = Csf::from_coo(&x, &[0, 1, 2])?;
    guards.push(guard("ttm_chain".into(), move |cpu| {
        let u: Vec<Mat<f32>> =
            [60, 50, 40].iter().map(|&dim| generate::uniform_dense(dim, 16, 1)).collect::<Result<_>>()?;
        let u: Vec<MatRef<'_, f32>> = u.iter().map(Mat::as_ref).collect();
        Ok(shortest(|| drop(cpu.ttm_chain(&tree, &u).expect("a run"))))
    }));
    Ok(guards)
}

/// Measured ceilings are of the right size and order.
fn ceilings() -> Verdict {
    let cpu = Cpu::new().map_err(|e| e.to_string())?;
    let start = Instant::now();
    let ceilings = Ceilings::measure(&cpu).map_err(|e| e.to_string())?;
    let (near, far) = (&ceilings.levels[0], &ceilings.levels[ceilings.levels.len() - 1]);
    let lanes = ceilings.fma_f32.one / ceilings.fma_f64.one;
    let operations = ceilings.fma_f32.one / ceilings.add_f32.one;
    let holds = [
        (start.elapsed().as_secs() < 15, "15 seconds"),
        (near.read.one > 2.0 * far.read.one, "reads of the first level twice those of the last"),
        (near.triad.one > 2.0 * far.triad.one, "triads likewise"),
        (far.latency_ns > 4.0 * near.latency_ns, "four times the latency"),
        (ceilings.gather.one < near.read.one, "gathers slower than reads"),
        ((1.2..3.0).contains(&operations), "two operations instead of one"),
        ((1.2..3.3).contains(&lanes), "half the lanes"),
    ];
    match holds.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(format!("{what}: {ceilings:?}")),
        None => Ok(()),
    }
}

/// The peak is lanes * 2 * (1 or 2 multiply-adds per cycle) * clock. The clock is measured with scalar code; the widest vectors may
/// run at a lower one.
fn multiply_adds_per_cycle() -> Verdict {
    let cpu = Cpu::builder().threads(1).build().map_err(|e| e.to_string())?;
    let lanes = cpu.machine().simd().vector_bytes / 4;
    let Some(clock) = clock_ghz(&cpu).filter(|_| lanes >= 8) else {
        return Ok(());
    };
    let per_cycle = fma_peak::<f32>(&cpu) / (lanes as f64 * 2.0 * clock);
    match [1.0, 2.0].iter().any(|whole| (0.75..1.03).contains(&(per_cycle / whole))) {
        true => Ok(()),
        false => Err(format!("{per_cycle}")),
    }
}

/// 8 or 16 lanes and fused operations against one lane.
fn peaks() -> Verdict {
    faster_than_scalar(|cpu| Ok(1.0 / fma_peak::<f32>(cpu)))
}
