//! What a call costs besides its arithmetic, and from which size on threads pay: SpMM of all sizes with one thread and with all.
//! Throughput is in elements a second, one element for each multiply-add.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparsimd::ops::SparseOperand;
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Cpu, Csr, Mat, Pattern, generate, reference};

/// Columns of the dense operands.
const N: usize = 32;
/// Zeros of A.
const SPARSITY: f64 = 0.9;

/// C = A B as `a` says, verified and timed.
fn spmm(c: &mut Criterion, group: &str, name: &str, cpu: &Cpu, matrix: &Csr<f32>, a: SparseOperand<'_, f32>) {
    let b = Mat::from_fn(matrix.cols(), N, |i, j| ((7 * i + j) % 5) as f32).expect("an operand");
    let mut out = Mat::zeros(matrix.rows(), N).expect("a result");
    let expected = reference::spmm(1.0, matrix, b.as_ref(), 0.0, out.as_ref()).expect("a reference");
    let mut run = || cpu.spmm(1.0, a, b.as_ref(), 0.0, out.as_mut()).expect("a run");
    run();
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements((matrix.nnz() * N) as u64));
    group.bench_function(name, |bench| bench.iter(&mut run));
    group.finish();
    let worst = expected.deviation(out.as_ref()).expect("a comparison");
    assert!(worst.error <= 1.0, "{name}: {worst:?}");
}

fn overhead(c: &mut Criterion) {
    let all = Cpu::new().expect("a pool");
    let one = Cpu::builder().threads(1).build().expect("a pool");
    let executors = [("one thread", &one), ("all threads", &all)];

    // One nonzero: next to no arithmetic.
    let tiny = Csr::new(Pattern::new(1, 1, vec![0, 1], vec![0]).expect("a pattern"), vec![2.0]).expect("a matrix");
    for (threads, cpu) in executors {
        spmm(c, "call", &format!("{threads}/not prepared"), cpu, &tiny, (&tiny).into());
        for strategy in [Strategy::Direct, Strategy::Panel] {
            let options = PlanOptions::new(Op::Spmm, N).strategy(strategy);
            let prepared = cpu.prepare(&tiny, &options).expect("a plan");
            spmm(
                c,
                "call",
                &format!("{threads}/prepared, {strategy:?}").to_lowercase(),
                cpu,
                &tiny,
                (&prepared).into(),
            );
        }
    }

    // 10^2.5 to 10^7.5 multiply-adds.
    for size in [10, 32, 100, 150, 200, 256, 400, 600, 1000, 1600, 3200] {
        let a = generate::random_matrix(size, size, SPARSITY, 1).expect("a matrix");
        for (threads, cpu) in executors {
            let prepared = cpu.prepare(&a, &PlanOptions::new(Op::Spmm, N)).expect("a plan");
            spmm(c, &format!("{size} x {size}"), threads, cpu, &a, (&prepared).into());
        }
    }
}

criterion_group!(benches, overhead);
criterion_main!(benches);
