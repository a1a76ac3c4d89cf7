//! Traces: what schedules say is what operations send, message by message and in this order.

#[allow(dead_code, reason = "the tests of one machine use the rest")]
#[path = "../../tests/common/matrices.rs"]
mod matrices;

use std::cell::RefCell;
use std::ops::ControlFlow;

use matrices::skewed;
use sparsimd::decomp::CpOptions;
use sparsimd::edge::BuiltIn;
use sparsimd::{CooTensor, Cpu, Csr, CsrRef, edge};
use sparsimd_distributed::{
    Algorithm, Blocks, Comm, DistCsr, DistGradient, DistMat, DistTensor, Operation, RandomTensor, RankLoad, Step,
    ThreadComm, TraceComm, grid, matrix_steps,
};

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

/// The messages of `steps`, without those that have none.
fn messages(steps: &[Step]) -> Vec<Step> {
    let some = |step: &&Step| !step.sends.is_empty() || !step.receives.is_empty();
    let sorted = |step: &Step| {
        let mut step = Step { flops: 0.0, ..step.clone() };
        step.sends.sort_unstable();
        step.receives.sort_unstable();
        step
    };
    steps.iter().filter(some).map(sorted).collect()
}

fn local(a: &Csr<f64>, blocks: &Blocks, rank: usize) -> Csr<f64> {
    CsrRef::from(a).row_range(blocks.range(rank)).unwrap().to_csr()
}

/// One run of `operation` on a rank, recorded.
fn record(
    comm: &dyn Comm,
    a: &Csr<f64>,
    blocks: [&Blocks; 2],
    algorithm: Algorithm,
    operation: Operation,
) -> Vec<Step> {
    let ([rows, cols], rank) = (blocks, comm.rank());
    let given = local(a, rows, rank);
    let dist = DistCsr::new(comm, rows, cols, &given, algorithm).unwrap();
    let of = |blocks, cols| DistMat::from_fn(blocks, rank, cols, |i, j| (i + j) as f64 * 0.001).unwrap();
    let traced = TraceComm::new(comm, 1e9);
    match operation {
        Operation::Spmm { n } => dist.spmm(&cpu(), &traced, &of(cols, n), &mut of(rows, n)),
        Operation::SpmmTransposed { n } => dist.spmm_transposed(&cpu(), &traced, &of(rows, n), &mut of(cols, n)),
        Operation::Sddmm { n } => {
            dist.sddmm(&cpu(), &traced, false, &of(rows, n), &of(cols, n), &mut vec![0.0; given.nnz()])
        }
        Operation::FusedMm { n, width, same, softmax } => {
            let (c, b, other, mut e) = (of(rows, n), of(cols, n), of(cols, width), of(rows, width));
            let d = if same { &b } else { &other };
            match softmax {
                true => dist.fusedmm(&cpu(), &traced, edge::Softmax { scale: 1.0 }, &c, &b, d, &mut e),
                false => dist.fusedmm(&cpu(), &traced, edge::Identity, &c, &b, d, &mut e),
            }
        }
        Operation::FusedMmGradient { n, width, same, softmax, values } => {
            let (c, b, other, de) = (of(rows, n), of(cols, n), of(cols, width), of(rows, width));
            let (mut dc, mut db, mut dd) = (of(rows, n), of(cols, n), of(cols, width));
            let d = if same { &b } else { &other };
            let edge: BuiltIn<f64> = match (softmax, values) {
                (true, _) => edge::Softmax { scale: 1.0 }.into(),
                (false, true) => edge::Scale.into(),
                (false, false) => edge::Sigmoid.into(),
            };
            let mut numbers = values.then(|| vec![0.0; given.nnz()]);
            let out = DistGradient { c: &mut dc, b: &mut db, d: &mut dd, values: numbers.as_deref_mut() };
            dist.fusedmm_gradient(&cpu(), &traced, edge, &c, &b, d, &de, out)
        }
    }
    .unwrap();
    traced.take()
}

#[test]
fn matrix_operations_send_what_their_schedules_say() {
    let a: Csr<f64> = skewed();
    let operations = [
        Operation::Spmm { n: 7 },
        Operation::SpmmTransposed { n: 7 },
        Operation::Sddmm { n: 7 },
        Operation::FusedMm { n: 7, width: 7, same: true, softmax: false },
        Operation::FusedMm { n: 7, width: 3, same: false, softmax: false },
        Operation::FusedMm { n: 7, width: 3, same: false, softmax: true },
        Operation::FusedMmGradient { n: 7, width: 7, same: true, softmax: false, values: false },
        Operation::FusedMmGradient { n: 7, width: 3, same: false, softmax: false, values: true },
        Operation::FusedMmGradient { n: 7, width: 3, same: false, softmax: true, values: false },
    ];
    for ranks in [1, 2, 3, 4, 6, 9usize] {
        let (rows, cols) = (Blocks::even(a.rows(), ranks), Blocks::even(a.cols(), ranks));
        let dense =
            (1..=ranks).filter(|c| ranks.is_multiple_of(*c)).map(|replication| Algorithm::DenseShift { replication });
        for algorithm in std::iter::once(Algorithm::Aware).chain(dense) {
            for operation in operations {
                let recorded =
                    ThreadComm::run(ranks, |comm: &dyn Comm| record(comm, &a, [&rows, &cols], algorithm, operation));
                let share =
                    |rank: usize| RankLoad::of(rank, &cols, local(&a, &rows, rank).pattern().col_idx(), algorithm);
                let told = matrix_steps(&rows, &cols, share, algorithm, operation, size_of::<f64>());
                for (rank, (recorded, told)) in recorded.iter().zip(&told).enumerate() {
                    let case = format!("rank {rank} of {ranks}, {algorithm:?}, {operation:?}");
                    assert_eq!(messages(recorded), messages(told), "{case}");
                }
                // Every multiplication is somebody's.
                let flops: f64 = told.iter().flatten().map(|step| step.flops).sum();
                let each = match operation {
                    Operation::Spmm { n } | Operation::SpmmTransposed { n } | Operation::Sddmm { n } => 2 * n,
                    Operation::FusedMm { n, width, .. } => 2 * (n + width),
                    Operation::FusedMmGradient { n, width, .. } => 6 * n + 4 * width,
                };
                assert!((flops / (a.nnz() * each) as f64 - 1.0).abs() < 1e-9, "{flops}");
            }
        }
    }
}

/// Recorded between the observer's calls of the second and the third iteration.
fn record_iteration(comm: &dyn Comm, x: &CooTensor<f64>) -> Vec<Step> {
    let ranks = comm.size();
    let some = |p: usize| p % ranks == comm.rank();
    let pick = |mode: usize| {
        x.coords(mode).iter().enumerate().filter(|(p, _)| some(*p)).map(|(_, &i)| i).collect::<Vec<u32>>()
    };
    let values = x.values().iter().enumerate().filter(|(p, _)| some(*p)).map(|(_, &x)| x).collect();
    let part = CooTensor::new(x.dims().to_vec(), (0..x.order()).map(pick).collect(), values).unwrap();
    let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part).unwrap();
    let options = CpOptions { iterations: 3, tolerance: 0.0, ..CpOptions::new(5) };
    let traced = TraceComm::new(comm, 1e9);
    let last = RefCell::new(Vec::new());
    tensor
        .cp_als(&cpu(), &traced, &options, |_, iteration| {
            let steps = traced.take();
            if iteration.number == 3 {
                last.replace(steps);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    last.take()
}

#[test]
fn an_iteration_of_cp_sends_what_its_schedule_says() {
    // Full: every row of a chunk is named by all of its cells.
    let dims = vec![8usize, 16, 8];
    let nnz: usize = dims.iter().product();
    let coords = vec![
        (0..nnz).map(|p| (p / 128) as u32).collect(),
        (0..nnz).map(|p| (p / 8 % 16) as u32).collect(),
        (0..nnz).map(|p| (p % 8) as u32).collect(),
    ];
    let x = CooTensor::new(dims.clone(), coords, (0..nnz).map(|p| (p * p % 17) as f64 - 3.0).collect()).unwrap();
    for ranks in [1usize, 2, 3, 4, 8] {
        let told =
            RandomTensor { grid: grid(&dims, ranks), dims: dims.clone(), nnz: 1e9 }.cp_steps(5, size_of::<f64>());
        let recorded = ThreadComm::run(ranks, |comm: &dyn Comm| record_iteration(comm, &x));
        for (rank, (recorded, told)) in recorded.iter().zip(&told).enumerate() {
            // The agreement to go on, by which the schedule ends, is the recording's first.
            let (recorded, mut told) = (messages(recorded), messages(told));
            told.rotate_right(messages_of_agreement(rank, ranks));
            assert_eq!(recorded, told, "rank {rank} of {ranks}");
        }
    }
}

/// Exchanges of a rank in one agreement.
fn messages_of_agreement(rank: usize, ranks: usize) -> usize {
    ThreadComm::run(ranks, |comm: &dyn Comm| {
        let traced = TraceComm::new(comm, 1.0);
        traced.least(0).unwrap();
        messages(&traced.take()).len()
    })[rank]
}
