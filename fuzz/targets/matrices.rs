//! SpMM, its transpose, SDDMM and FusedMM on arbitrary structure, against the reference.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Arch, Cpu, Csr, Mat, Pattern, Scalar, SparseOperand, edge, generate, reference};

/// One executor for each instruction set, with one thread and with two.
static CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| {
    let build = |arch, threads| Cpu::builder().arch(arch).threads(threads).pin(false).build().expect("an executor");
    Arch::available().into_iter().flat_map(|arch| [build(arch, 1), build(arch, 2)]).collect()
});

#[derive(Arbitrary, Debug)]
struct Input {
    double: bool,
    cpu: u8,
    strategy: u8,
    cols: u16,
    n: u8,
    width: u8,
    edge: u8,
    seed: u64,
    /// The columns of each row, in any order and with repetitions.
    rows: Vec<Vec<u16>>,
}

fuzz_target!(|input: Input| if input.double { run::<f64>(&input) } else { run::<f32>(&input) });

fn run<T: Scalar>(input: &Input) {
    let cpu = &CPUS[usize::from(input.cpu) % CPUS.len()];
    let cols = usize::from(input.cols) % 700 + 1;
    let (n, width) = (usize::from(input.n) % 140 + 1, usize::from(input.width) % 140 + 1);
    let mut row_ptr = vec![0];
    let mut col_idx = Vec::new();
    for row in input.rows.iter().take(80) {
        let mut row: Vec<u32> = row.iter().map(|&j| u32::from(j) % cols as u32).collect();
        // Unsorted rows are legal, repetitions are not.
        let mut seen = std::collections::HashSet::new();
        row.retain(|&j| seen.insert(j));
        col_idx.extend(row);
        row_ptr.push(col_idx.len());
    }
    let rows = row_ptr.len() - 1;
    let nnz = col_idx.len();
    let pattern = Pattern::new(rows, cols, row_ptr, col_idx).expect("a pattern");
    let a = Csr::new(pattern, generate::uniform_values::<T>(nnz, input.seed)).expect("a matrix");
    let dense = |rows, cols, seed| generate::uniform_dense::<T>(rows, cols, seed).expect("memory");
    let (b, c, d) = (dense(cols, n, 1), dense(rows, n, 2), dense(cols, width, 3));
    let prepared = |op| match input.strategy % 4 {
        0 => None,
        1 => Some(cpu.prepare(&a, &PlanOptions::new(op, n).strategy(Strategy::Direct)).expect("a plan")),
        2 => Some(cpu.prepare(&a, &PlanOptions::new(op, n).strategy(Strategy::Panel)).expect("a plan")),
        _ => Some(cpu.prepare(&a, &PlanOptions::new(op, n).strategy(Strategy::Slices)).expect("a plan")),
    };
    let one = T::ONE;

    let spmm = prepared(Op::Spmm);
    let operand = spmm.as_ref().map_or(SparseOperand::from(&a), SparseOperand::from);
    let mut out = c.clone();
    cpu.spmm(one, operand, b.as_ref(), one, out.as_mut()).expect("shapes fit");
    let expected = reference::spmm(one, &a, b.as_ref(), one, c.as_ref()).expect("shapes fit");
    assert!(expected.deviation(out.as_ref()).expect("shapes fit").error <= 1.0, "spmm");

    let spmm_t = prepared(Op::SpmmTransposed);
    let operand = spmm_t.as_ref().map_or(SparseOperand::from(&a), SparseOperand::from);
    let mut out = Mat::zeros(cols, n).expect("memory");
    cpu.spmm_t(one, operand, c.as_ref(), T::ZERO, out.as_mut()).expect("shapes fit");
    let zeros = Mat::zeros(cols, n).expect("memory");
    let expected = reference::spmm_t(one, &a, c.as_ref(), T::ZERO, zeros.as_ref()).expect("shapes fit");
    assert!(expected.deviation(out.as_ref()).expect("shapes fit").error <= 1.0, "spmm_t");

    let sddmm = prepared(Op::Sddmm);
    let operand = sddmm.as_ref().map_or(SparseOperand::from(&a), SparseOperand::from);
    let mut values = vec![T::ZERO; a.nnz()];
    cpu.sddmm(operand, c.as_ref(), b.as_ref(), &mut values).expect("shapes fit");
    let expected = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).expect("shapes fit");
    assert!(expected.deviation_of_values(&values).expect("shapes fit").error <= 1.0, "sddmm");

    let fusedmm = prepared(Op::FusedMm);
    let operand = fusedmm.as_ref().map_or(SparseOperand::from(&a), SparseOperand::from);
    let mut e = Mat::zeros(rows, width).expect("memory");
    let (c, b, d) = (c.as_ref(), b.as_ref(), d.as_ref());
    let kind = match input.edge % 4 {
        0 => cpu.fusedmm(operand, edge::Identity, c, b, d, e.as_mut()).map(|()| reference::Edge::Identity),
        1 => cpu.fusedmm(operand, edge::Scale, c, b, d, e.as_mut()).map(|()| reference::Edge::Scale),
        2 => cpu.fusedmm(operand, edge::Sigmoid, c, b, d, e.as_mut()).map(|()| reference::Edge::Sigmoid),
        _ => {
            let scale = 0.25;
            let softmax = edge::Softmax { scale: T::from_f64(scale) };
            cpu.fusedmm(operand, softmax, c, b, d, e.as_mut()).map(|()| reference::Edge::Softmax { scale })
        }
    };
    let expected = reference::fusedmm(&a, kind.expect("shapes fit"), c, b, d).expect("shapes fit");
    assert!(expected.deviation(e.as_ref()).expect("shapes fit").error <= 1.0, "fusedmm");
}
