//! What is prepared on one instruction set and run on another: refused where the layout depends on it, right where not.

mod common;

use common::matrices::{STRATEGIES, aligned, prepare};
use sparsimd::plan::{MttkrpFormat, NumaPolicy, Op, PlanOptions, Strategy, TensorOptions};
use sparsimd::{Arch, Cpu, Error, Machine, Mat, MatMut, MatRef, Scalar, edge, generate, reference};

fn executors() -> Vec<Cpu> {
    Arch::available().into_iter().map(|arch| Cpu::builder().arch(arch).threads(2).pin(false).build().unwrap()).collect()
}

/// Runs `run` for every pair of instruction sets and strategy; it gives the error of a result in units of its bound.
fn on_every_pair<T: Scalar>(
    op: Op,
    a: &sparsimd::Csr<T>,
    n: usize,
    mut run: impl FnMut(&Cpu, &sparsimd::Prepared<T>) -> sparsimd::Result<f64>,
) {
    let cpus = executors();
    for strategy in STRATEGIES {
        for from in &cpus {
            let prepared = prepare(from, op, a, n, strategy);
            for to in &cpus {
                let (own, other) = (from.arch().name(), to.arch().name());
                match run(to, &prepared) {
                    Ok(error) => {
                        assert!(
                            own == other || strategy == Strategy::Direct,
                            "{op:?} by panels of {own} ran on {other}"
                        );
                        assert!(error <= 1.0, "{op:?}, {strategy:?}, {own} on {other}: {error}");
                    }
                    Err(Error::Argument { name: "a", detail }) => {
                        assert!(own != other && strategy == Strategy::Panel, "{op:?}, {strategy:?}, {own}: {detail}");
                        assert!(detail.contains(own) && detail.contains(other), "{detail}");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// Matrices whose panels have pairs in f64 on AVX-512, and rows that end inside of a panel.
fn check<T: Scalar>() {
    for (rows, cols, sparsity) in [(256, 256, 0.7), (300, 170, 0.5)] {
        let a = generate::random_matrix::<T>(rows, cols, sparsity, 1).unwrap();
        for n in [32, 128] {
            let (c, b) = (aligned::<T>(rows, n, 1), aligned::<T>(cols, n, 2));
            let zero = Mat::zeros(rows, n).unwrap();
            let product = reference::spmm(T::ONE, &a, b.as_ref(), T::ZERO, zero.as_ref()).unwrap();
            on_every_pair(Op::Spmm, &a, n, |cpu, prepared| {
                let mut out = zero.clone();
                cpu.spmm(T::ONE, prepared, b.as_ref(), T::ZERO, out.as_mut())?;
                Ok(product.deviation(out.as_ref())?.error)
            });
            let zero_t = Mat::zeros(cols, n).unwrap();
            let product = reference::spmm_t(T::ONE, &a, c.as_ref(), T::ZERO, zero_t.as_ref()).unwrap();
            on_every_pair(Op::SpmmTransposed, &a, n, |cpu, prepared| {
                let mut out = zero_t.clone();
                cpu.spmm_t(T::ONE, prepared, c.as_ref(), T::ZERO, out.as_mut())?;
                Ok(product.deviation(out.as_ref())?.error)
            });
            let dots = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap();
            on_every_pair(Op::Sddmm, &a, n, |cpu, prepared| {
                let mut out = vec![T::ZERO; a.nnz()];
                cpu.sddmm(prepared, c.as_ref(), b.as_ref(), &mut out)?;
                Ok(dots.deviation_of_values(&out)?.error)
            });
            let fused = reference::fusedmm(&a, reference::Edge::Sigmoid, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
            on_every_pair(Op::FusedMm, &a, n, |cpu, prepared| {
                let mut out = zero.clone();
                cpu.fusedmm(prepared, edge::Sigmoid, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut())?;
                Ok(fused.deviation(out.as_ref())?.error)
            });
        }
    }
}

#[test]
fn every_operation_on_every_pair_of_instruction_sets_f32() {
    check::<f32>();
}

#[test]
fn every_operation_on_every_pair_of_instruction_sets_f64() {
    check::<f64>();
}

/// No format of a tensor depends on the width of registers: every pair gives the right result, in every way to run it.
fn check_tensors<T: Scalar>(rank: usize) {
    let cpus = executors();
    let coo = generate::skewed::<T>(&[50, 30, 70, 9], 4000, 3).unwrap();
    let dense = |mode: usize, seed| aligned::<T>(coo.dims()[mode], rank, seed + mode as u64);
    let factors: Vec<_> = (0..coo.order()).map(|mode| dense(mode, 1)).collect();
    let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
    let expected: Vec<_> = (0..coo.order()).map(|mode| reference::mttkrp(&coo, &views, mode).unwrap()).collect();
    for format in MttkrpFormat::ALL {
        for from in &cpus {
            let prepared = from.prepare_tensor(&coo, &TensorOptions::new(rank).format(format)).unwrap();
            for to in &cpus {
                let words = format!("{format}, {}, {} on {}", T::NAME, from.arch().name(), to.arch().name());
                // What the single modes, a sweep that updates nothing, and all modes at once give.
                let mut single: Vec<_> = (0..coo.order()).map(|mode| dense(mode, 50)).collect();
                for (mode, out) in single.iter_mut().enumerate() {
                    to.mttkrp(&prepared, &views, mode, out.as_mut()).unwrap();
                }
                let (mut swept, mut all) = (single.clone(), single.clone());
                swept.iter_mut().chain(&mut all).for_each(|out| out.as_mut().into_data().fill(T::from_f64(f64::NAN)));
                to.mttkrp_sweep(&prepared, &mut factors.clone(), &mut swept, |_, _, _| Ok(())).unwrap();
                let mut outs: Vec<MatMut<'_, T>> = all.iter_mut().map(Mat::as_mut).collect();
                to.mttkrp_all(&prepared, &views, &mut outs).unwrap();
                for results in [&single, &swept, &all] {
                    for (mode, (expected, out)) in expected.iter().zip(results).enumerate() {
                        let worst = expected.deviation(out.as_ref()).unwrap();
                        assert!(worst.error <= 1.0, "{words}, mode {mode}: {worst:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_tensor_format_on_every_pair_of_instruction_sets() {
    check_tensors::<f32>(33);
    check_tensors::<f64>(16);
}

/// A placed matrix runs on its own pools; operands that another executor placed fit or are refused.
#[test]
fn placed_operands_of_another_executor() {
    let a = generate::random_matrix::<f64>(300, 170, 0.5, 1).unwrap();
    let b = aligned::<f64>(170, 128, 2);
    let zero = Mat::zeros(300, 128).unwrap();
    let product = reference::spmm(1.0, &a, b.as_ref(), 0.0, zero.as_ref()).unwrap();
    let placed = |arch: Arch, machine: &str| {
        let machine = Machine::describe(machine).unwrap();
        let cpu = Cpu::builder().arch(arch).machine(machine).build().unwrap();
        let placement = cpu.placement::<f64>(a.pattern(), 128, 1000, NumaPolicy::Replicate).unwrap();
        cpu.place(&a, &PlanOptions::new(Op::Spmm, 128).strategy(Strategy::Panel), placement).unwrap()
    };
    for from in Arch::available() {
        let one = placed(from, "numa:1 core:2");
        let two = placed(from, "numa:2 core:1");
        for to in Arch::available() {
            let other = placed(to, "numa:2 core:1");
            let shared = two.share(b.as_ref()).unwrap();
            let mut out = zero.clone();
            other.spmm(1.0, &shared, 0.0, out.as_mut()).unwrap();
            assert!(product.deviation(out.as_ref()).unwrap().error <= 1.0, "{} on {}", from.name(), to.name());
            out = zero.clone();
            other.spmm(1.0, &one.share(b.as_ref()).unwrap(), 0.0, out.as_mut()).unwrap();
            assert!(product.deviation(out.as_ref()).unwrap().error <= 1.0, "{} on {}", from.name(), to.name());
        }
    }
}
