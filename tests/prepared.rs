//! What is prepared on one instruction set and run on another: refused where the layout depends on it, right where not.

mod common;

use common::matrices::{STRATEGIES, aligned, prepare};
use sparsimd::plan::{Op, Strategy};
use sparsimd::{Arch, Cpu, Error, Mat, Scalar, edge, generate, reference};

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
