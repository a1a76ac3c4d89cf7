//! One graph-convolution layer (Kipf and Welling 2017) on a real graph: H' = relu(D^-1/2 (A + I) D^-1/2 H W), D the
//! degrees of A + I, and its gradients with respect to H W and to the edge weights.
//!
//! `cargo run --release --example graph_convolution [GRAPH.mtx]`; by default the graph that ships with the project.

mod common;

use common::{argument, graph, normalised, shortest};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Mat, Result, generate};

const FEATURES_IN: usize = 64;
const FEATURES_OUT: usize = 128;
const RUNS: usize = 20;

fn main() -> Result<()> {
    let cpu = Cpu::new()?;
    let a = normalised(&graph::<f32>(&cpu, argument())?)?;
    let nodes = a.rows();

    let h = generate::uniform_dense::<f32>(nodes, FEATURES_IN, 1)?;
    let w = generate::uniform_dense::<f32>(FEATURES_IN, FEATURES_OUT, 2)?;
    // H W is dense: a real model would leave it to a BLAS.
    let hw = Mat::from_fn(nodes, FEATURES_OUT, |i, j| (0..FEATURES_IN).map(|k| h.row(i)[k] * w.row(k)[j]).sum())?;

    // Forward: Z = A (H W), H' = relu(Z).
    let forward = cpu.prepare(&a, &PlanOptions::new(Op::Spmm, FEATURES_OUT).reuse(RUNS))?;
    let mut z = Mat::zeros(nodes, FEATURES_OUT)?;
    let seconds = shortest(RUNS, || cpu.spmm(1.0, &forward, hw.as_ref(), 0.0, z.as_mut()))?;
    report("forward   A (H W)", seconds, &a, &forward.plan().to_string());

    // Backward, from dL/dH' = 1: dL/dZ is 1 where the rectifier passed.
    let dz = Mat::from_fn(nodes, FEATURES_OUT, |i, j| if z.row(i)[j] > 0.0 { 1.0f32 } else { 0.0 })?;
    let backward = cpu.prepare(&a, &PlanOptions::new(Op::SpmmTransposed, FEATURES_OUT).reuse(RUNS))?;
    let mut dhw = Mat::zeros(nodes, FEATURES_OUT)?;
    let seconds = shortest(RUNS, || cpu.spmm_t(1.0, &backward, dz.as_ref(), 0.0, dhw.as_mut()))?;
    report("backward  A^T dZ", seconds, &a, &backward.plan().to_string());

    let edges = cpu.prepare(&a, &PlanOptions::new(Op::Sddmm, FEATURES_OUT).reuse(RUNS))?;
    let mut da = vec![0.0f32; a.nnz()];
    let seconds = shortest(RUNS, || cpu.sddmm(&edges, dz.as_ref(), hw.as_ref(), &mut da))?;
    report("edges     dZ (H W)^T", seconds, &a, &edges.plan().to_string());

    let active = (0..nodes).flat_map(|i| z.row(i)).filter(|&&x| x > 0.0).count();
    println!("{:.1} % of the {} outputs are active", 100.0 * active as f64 / (nodes * FEATURES_OUT) as f64, nodes);
    Ok(())
}

fn report(what: &str, seconds: f64, a: &Csr<f32>, plan: &str) {
    let gflops = 2.0 * a.nnz() as f64 * FEATURES_OUT as f64 / seconds / 1e9;
    println!("{what:<20} {:.3} ms, {gflops:.1} GFLOP/s ({plan})", 1e3 * seconds);
}
