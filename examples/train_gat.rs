//! A graph-attention network of two layers (Velickovic et al. 2018) learns the classes of a graph's nodes, in f32, beside the same in f64.
//!
//! A layer of H heads: Y = X W, a_ih = Y_ih . l_h, b_jh = Y_jh . r_h, and E_ih the average of the neighbours' Y_jh with the weights
//! softmax over j of leaky-relu(a_ih + b_jh): one FusedMM for all heads, whose gradient needs one number for each node and head of it.
//!
//! `cargo run --release --example train_gat [GRAPH.mtx]`; by default pubmed's graph, where the folder of real matrices is there.

mod common;

use common::{
    Adam, Nodes, argument, compare, converted, converted_matrix, cross_entropy, data, graph, made_nodes, normalised,
    product, product_of_transpose, rectify, rectify_gradient, transpose, weights,
};
use sparsimd::ops::{Differentiable, EdgeWeighting, FusedGradient};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Mat, Result, Scalar, edge};

const FEATURES: usize = 16;
const HEADS: usize = 4;
const HIDDEN: usize = 32;
const CLASSES: usize = 4;
const EPOCHS: usize = 60;
const RATE: f64 = 0.02;

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
    let prepared = cpu.prepare_differentiable(&a, &PlanOptions::new(Op::FusedMm, HIDDEN).reuse(2 * EPOCHS))?;
    let mut first = Layer::new(FEATURES, HIDDEN, HEADS, 4)?;
    let mut second = Layer::new(HIDDEN, CLASSES, 1, 7)?;
    let mut losses = Vec::new();
    for _ in 0..EPOCHS {
        let mut hidden = first.forward(cpu, &prepared, &features)?;
        rectify(&mut hidden);
        let logits = second.forward(cpu, &prepared, &hidden)?;
        let (loss, gradient, _) = cross_entropy(&logits, &nodes.classes)?;
        losses.push(loss);
        let mut gradient = second.backward(cpu, &prepared, &hidden, &gradient)?;
        rectify_gradient(&mut gradient, &hidden);
        first.backward(cpu, &prepared, &features, &gradient)?;
    }
    Ok(losses)
}

/// Weights, and what the forward pass keeps.
struct Layer<T> {
    w: Mat<T>,
    /// l and r, a row for each head, one below the other.
    attention: [Mat<T>; 2],
    adam: [Adam<T>; 3],
    y: Mat<T>,
    scores: [Mat<T>; 2],
    lse: Mat<T>,
}

impl<T: Scalar> Layer<T> {
    fn new(inputs: usize, outputs: usize, heads: usize, seed: u64) -> Result<Self> {
        let w = weights(inputs, outputs, seed)?;
        let attention = [weights(heads, outputs / heads, seed + 1)?, weights(heads, outputs / heads, seed + 2)?];
        let adam = [Adam::new(&w)?, Adam::new(&attention[0])?, Adam::new(&attention[1])?];
        let none = || Mat::zeros(0, 0);
        Ok(Self { w, attention, adam, y: none()?, scores: [none()?, none()?], lse: none()? })
    }

    fn weighting(&self) -> EdgeWeighting<'_, T> {
        let edge = edge::SoftmaxLeakyRelu { slope: T::from_f64(0.2) };
        EdgeWeighting::sums(edge, self.scores[0].as_ref(), self.scores[1].as_ref())
    }

    /// E.
    fn forward(&mut self, cpu: &Cpu, a: &Differentiable<T>, x: &Mat<T>) -> Result<Mat<T>> {
        let (n, heads) = (x.rows(), self.attention[0].rows());
        self.y = product(x, &self.w)?;
        for (scores, l) in self.scores.iter_mut().zip(&self.attention) {
            let width = l.cols();
            let dot = |i: usize, h: usize| {
                let y = &self.y.row(i)[h * width..];
                l.row(h).iter().zip(y).fold(T::ZERO, |sum, (&l, &y)| sum + l * y)
            };
            *scores = Mat::from_fn(n, heads, dot)?;
        }
        let (mut e, mut lse) = (Mat::zeros(n, self.y.cols())?, Mat::zeros(n, heads)?);
        cpu.fusedmm_heads(a, &self.weighting(), self.y.as_ref(), e.as_mut(), Some(lse.as_mut()))?;
        self.lse = lse;
        Ok(e)
    }

    /// The gradient of X from that of E; the weights make a step.
    fn backward(&mut self, cpu: &Cpu, a: &Differentiable<T>, x: &Mat<T>, de: &Mat<T>) -> Result<Mat<T>> {
        let (n, heads, outputs) = (x.rows(), self.attention[0].rows(), self.y.cols());
        let (mut da, mut db, mut dy) = (Mat::zeros(n, heads)?, Mat::zeros(n, heads)?, Mat::zeros(n, outputs)?);
        let out = FusedGradient { left: da.as_mut(), right: db.as_mut(), d: dy.as_mut(), values: None, bias: None };
        let (y, lse) = (self.y.as_ref(), Some(self.lse.as_ref()));
        cpu.fusedmm_gradient(a, &self.weighting(), y, lse, de.as_ref(), out)?;
        let width = outputs / heads;
        let mut gradients = Vec::new();
        for (ds, l) in [&da, &db].into_iter().zip(&self.attention) {
            let mut dl = Mat::zeros(heads, width)?;
            for i in 0..n {
                for h in 0..heads {
                    let (g, columns) = (ds.row(i)[h], h * width..(h + 1) * width);
                    let pairs = dl.row_mut(h).iter_mut().zip(&self.y.row(i)[columns.clone()]);
                    pairs.for_each(|(dl, &y)| *dl += g * y);
                    dy.row_mut(i)[columns].iter_mut().zip(l.row(h)).for_each(|(dy, &l)| *dy += g * l);
                }
            }
            gradients.push(dl);
        }
        let dx = product(&dy, &transpose(&self.w)?)?;
        self.adam[0].step(&mut self.w, &product_of_transpose(x, &dy)?, RATE);
        for ((adam, l), gradient) in self.adam[1..].iter_mut().zip(&mut self.attention).zip(&gradients) {
            adam.step(l, gradient, RATE);
        }
        Ok(dx)
    }
}
