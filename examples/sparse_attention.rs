//! Sparse attention in one pass: each of 4096 tokens attends to its 128 neighbours and to 16 tokens that all attend to.
//!
//! E = softmax(Q K^T / sqrt(d) on the pattern) V, by one FusedMM that never stores a score, against the same by three
//! steps: SDDMM, a softmax over the stored scores, SpMM.
//!
//! `cargo run --release --example sparse_attention`

mod common;

use common::shortest;
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Mat, Pattern, Result, edge, generate};

const TOKENS: usize = 4096;
const WIDTH: usize = 64;
const WINDOW: usize = 64;
const GLOBAL: usize = 16;
const RUNS: usize = 20;

fn main() -> Result<()> {
    let cpu = Cpu::new()?;
    // Token i sees the global tokens and those from i - WINDOW to i + WINDOW.
    let (mut row_ptr, mut col_idx) = (vec![0], Vec::new());
    for i in 0..TOKENS {
        let window = i.saturating_sub(WINDOW).max(GLOBAL)..(i + WINDOW + 1).min(TOKENS);
        col_idx.extend((0..GLOBAL).chain(window).map(|j| j as u32));
        row_ptr.push(col_idx.len());
    }
    let pattern = Pattern::new(TOKENS, TOKENS, row_ptr, col_idx)?;
    let operand = |seed| generate::uniform_dense::<f32>(TOKENS, WIDTH, seed);
    let (q, k, v) = (operand(1)?, operand(2)?, operand(3)?);
    let scale = 1.0 / (WIDTH as f32).sqrt();

    // One pass.
    let attention = cpu.prepare::<f32>(&pattern, &PlanOptions::new(Op::FusedMm, WIDTH).reuse(RUNS))?;
    println!("plan: {}", attention.plan());
    let mut fused = Mat::zeros(TOKENS, WIDTH)?;
    let softmax = edge::Softmax { scale };
    let one_pass =
        shortest(RUNS, || cpu.fusedmm(&attention, softmax, q.as_ref(), k.as_ref(), v.as_ref(), fused.as_mut()))?;

    // Three steps, with the weights in memory between them.
    let mut weights = Csr::new(pattern.clone(), vec![0.0f32; pattern.nnz()])?;
    let scores = cpu.prepare::<f32>(&pattern, &PlanOptions::new(Op::Sddmm, WIDTH).reuse(RUNS))?;
    let mut average = cpu.prepare(&weights, &PlanOptions::new(Op::Spmm, WIDTH).reuse(RUNS))?;
    let mut stepwise = Mat::zeros(TOKENS, WIDTH)?;
    let three_steps = shortest(RUNS, || {
        cpu.sddmm(&scores, q.as_ref(), k.as_ref(), weights.values_mut())?;
        for i in 0..TOKENS {
            softmax_of(&mut weights.values_mut()[pattern.row_ptr()[i]..pattern.row_ptr()[i + 1]], scale);
        }
        average.set_values(&cpu, weights.values())?;
        cpu.spmm(1.0, &average, v.as_ref(), 0.0, stepwise.as_mut())
    })?;

    let difference = (0..TOKENS)
        .flat_map(|i| fused.row(i).iter().zip(stepwise.row(i)))
        .fold(0.0f32, |largest, (x, y)| largest.max((x - y).abs()));
    println!("{TOKENS} tokens, {} scores, width {WIDTH}, {} thread(s)", pattern.nnz(), cpu.threads());
    println!("one pass     {:.3} ms", 1e3 * one_pass);
    println!("three steps  {:.3} ms", 1e3 * three_steps);
    println!("largest difference {difference:.1e}");
    assert!(difference < 1e-5, "the two ways disagree");
    Ok(())
}

/// The softmax of one row of scores.
fn softmax_of(row: &mut [f32], scale: f32) {
    let largest = row.iter().fold(f32::NEG_INFINITY, |largest, &s| largest.max(scale * s));
    let mut sum = 0.0;
    for s in &mut *row {
        *s = (scale * *s - largest).exp();
        sum += *s;
    }
    row.iter_mut().for_each(|s| *s /= sum);
}
