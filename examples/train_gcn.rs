//! A graph-convolution network of two layers (Kipf and Welling 2017) learns the classes of a graph's nodes:
//! Z = A relu(A X W) V with A = D^-1/2 (A + I) D^-1/2, in f32, beside the same in f64.
//!
//! Forward and backward are SpMM with A and with A^T, prepared once.
//!
//! `cargo run --release --example train_gcn [GRAPH.mtx]`; by default pubmed's graph, where the folder of real matrices is there.

mod common;

use common::{
    Adam, Nodes, argument, compare, converted, converted_matrix, cross_entropy, data, graph, made_nodes, normalised,
    product, product_of_transpose, rectify, rectify_gradient, transpose, weights,
};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Mat, Result, Scalar};

const FEATURES: usize = 16;
const HIDDEN: usize = 32;
const CLASSES: usize = 4;
const EPOCHS: usize = 60;

fn main() -> Result<()> {
    let cpu = Cpu::new()?;
    let a = normalised(&graph(&cpu, argument().or_else(|| data("pubmed.mtx")))?)?;
    let nodes = made_nodes(&cpu, &a, FEATURES, CLASSES)?;
    println!("{} nodes, {} edges\nepoch  f32      f64", a.rows(), a.nnz());
    let (single, double) = (train::<f32>(&cpu, &a, &nodes)?, train::<f64>(&cpu, &a, &nodes)?);
    compare(&single, &double);
    Ok(())
}

/// The loss of each epoch.
fn train<T: Scalar>(cpu: &Cpu, a: &Csr<f64>, nodes: &Nodes) -> Result<Vec<f64>> {
    let (a, features) = (converted_matrix::<T>(a)?, converted::<T>(&nodes.features)?);
    let n = a.rows();
    let prepared = cpu.prepare_differentiable(&a, &PlanOptions::new(Op::Spmm, HIDDEN).reuse(4 * EPOCHS))?;
    let forward = cpu.prepare(&a, &PlanOptions::new(Op::Spmm, HIDDEN).reuse(4 * EPOCHS))?;
    // The features are averaged once: A (X W) = (A X) W.
    let mut x = Mat::zeros(n, FEATURES)?;
    cpu.spmm(T::ONE, &a, features.as_ref(), T::ZERO, x.as_mut())?;
    let (mut w, mut v) = (weights::<T>(FEATURES, HIDDEN, 4)?, weights::<T>(HIDDEN, CLASSES, 5)?);
    let (mut adam_w, mut adam_v) = (Adam::new(&w)?, Adam::new(&v)?);
    let (mut averaged, mut dh) = (Mat::zeros(n, HIDDEN)?, Mat::zeros(n, HIDDEN)?);
    let mut losses = Vec::new();
    for _ in 0..EPOCHS {
        let mut h = product(&x, &w)?;
        rectify(&mut h);
        cpu.spmm(T::ONE, &forward, h.as_ref(), T::ZERO, averaged.as_mut())?;
        let (loss, dz, _) = cross_entropy(&product(&averaged, &v)?, &nodes.classes)?;
        losses.push(loss);

        let dv = product_of_transpose(&averaged, &dz)?;
        let daveraged = product(&dz, &transpose(&v)?)?;
        cpu.spmm_gradient(&prepared, 1, a.values(), h.as_ref(), daveraged.as_ref(), None, Some(dh.as_mut()))?;
        rectify_gradient(&mut dh, &h);
        let dw = product_of_transpose(&x, &dh)?;
        adam_v.step(&mut v, &dv, 0.02);
        adam_w.step(&mut w, &dw, 0.02);
    }
    Ok(losses)
}
