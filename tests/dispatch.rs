//! Guards the SIMD dispatch. A kernel that loses its target features (a helper that is not inlined, a closure in the wrong
//! place) still gives correct results, 18 to 25 times slower: only a clock can tell.

mod common;

use std::time::Instant;

use common::matrices::{STRATEGIES, aligned, prepare};
use sparsimd::plan::Op;
use sparsimd::{Arch, Cpu, Mat, edge, generate};

/// A dispatched kernel is 5 (AVX2) to 20 times (AVX-512) as fast as the scalar one; one that lost its features is slower
/// than it. Between the two, with room for a busy machine on either side.
const LEAST_GAIN: f64 = 2.5;

/// The shortest of many short runs: other work on the machine makes most of them longer, not all.
fn shortest(mut run: impl FnMut()) -> f64 {
    (0..40).fold(f64::INFINITY, |best, _| {
        let start = Instant::now();
        run();
        best.min(start.elapsed().as_secs_f64())
    })
}

/// Time of `run` on the scalar instruction set over that on each other one, for both paths.
fn guard(what: &str, run: impl Fn(&Cpu, sparsimd::plan::Strategy) -> f64) {
    let archs = Arch::available();
    let cpu = |arch| Cpu::builder().arch(arch).threads(1).build().unwrap();
    for path in STRATEGIES {
        let scalar = run(&cpu(archs[0]), path);
        for &arch in &archs[1..] {
            let gain = scalar / run(&cpu(arch), path);
            println!("{what}, {path:?}: {} is {gain:.1} times as fast as scalar", arch.name());
            assert!(gain > LEAST_GAIN, "{what}, {path:?}: {} only {gain:.2} times as fast as scalar", arch.name());
        }
    }
}

const ROWS: usize = 200;
const COLS: usize = 300;

#[test]
fn spmm_runs_on_vectors() {
    let a = generate::random_matrix::<f32>(ROWS, COLS, 0.5, 1).unwrap();
    let b = aligned::<f32>(COLS, 128, 1);
    guard("spmm", |cpu, path| {
        let prepared = prepare(cpu, Op::Spmm, &a, 128, path);
        let mut c = Mat::zeros(ROWS, 128).unwrap();
        shortest(|| cpu.spmm(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()).unwrap())
    });
}

#[test]
fn sddmm_runs_on_vectors() {
    let a = generate::random_matrix::<f32>(ROWS, COLS, 0.5, 1).unwrap();
    let (c, b) = (aligned::<f32>(ROWS, 128, 1), aligned::<f32>(COLS, 128, 2));
    guard("sddmm", |cpu, path| {
        let prepared = prepare(cpu, Op::Sddmm, &a, 128, path);
        let mut out = vec![0.0; a.nnz()];
        shortest(|| cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out).unwrap())
    });
}

#[test]
fn fusedmm_runs_on_vectors() {
    let a = generate::random_matrix::<f32>(ROWS, COLS, 0.5, 1).unwrap();
    let (c, b) = (aligned::<f32>(ROWS, 128, 1), aligned::<f32>(COLS, 128, 2));
    fn time<F: edge::Edge<f32>>(what: &str, edge: F, a: &sparsimd::Csr<f32>, c: &Mat<f32>, b: &Mat<f32>) {
        guard(what, |cpu, path| {
            let prepared = prepare(cpu, Op::FusedMm, a, 128, path);
            let mut e = Mat::zeros(ROWS, 128).unwrap();
            shortest(|| cpu.fusedmm(&prepared, edge, c.as_ref(), b.as_ref(), b.as_ref(), e.as_mut()).unwrap())
        });
    }
    time("fusedmm identity", edge::Identity, &a, &c, &b);
    time("fusedmm sigmoid", edge::Sigmoid, &a, &c, &b);
    time("fusedmm softmax", edge::Softmax { scale: 0.1 }, &a, &c, &b);
}
