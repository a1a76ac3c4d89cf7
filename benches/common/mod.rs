//! What the benches of the matrix operations share: which cases, and that each is verified before it is timed.
//!
//! Throughput is in elements a second, one element for each floating point operation: Gelem/s are GFLOP/s.

use std::path::{Path as File, PathBuf};

use criterion::{Criterion, Throughput};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::reference::Deviation;
use sparsimd::{Cpu, Csr, Prepared, Result, generate};

/// Rows and columns of the random matrices.
const SIZE: usize = 4096;
/// Runs that the automatic plan may count on.
const REUSE: usize = 1000;

/// An operation with its dense operands.
pub trait Operation: Sized {
    /// The operation.
    const OP: Op;
    /// Its name, also of the bench.
    const NAME: &'static str;
    /// Floating point operations for each nonzero and dense column.
    const FLOPS: u64;

    /// Operands for `a`, of `n` columns.
    fn new(a: &Csr<f32>, n: usize) -> Result<Self>;
    /// What is timed.
    fn run(&mut self, cpu: &Cpu, a: &Prepared<f32>) -> Result<()>;
    /// How far the last run's result is from the reference.
    fn deviation(&self, a: &Csr<f32>) -> Result<Deviation>;
}

/// Random matrices of the given sparsity and N on both paths with one and two threads; then real matrices with the
/// automatic plan and all threads, N = 128.
pub fn bench<O: Operation>(c: &mut Criterion, random: &[(f64, usize)]) {
    for &(sparsity, n) in random {
        let a = generate::random_matrix(SIZE, SIZE, sparsity, 0).expect("a matrix");
        for path in [Strategy::Direct, Strategy::Panel] {
            for threads in [1, 2] {
                let cpu = Cpu::builder().threads(threads).build().expect("a pool");
                let case = format!("{SIZE}x{SIZE}@{sparsity}/N={n}/{path:?}/threads={threads}").to_lowercase();
                one::<O>(c, &case, &cpu, &a, n, path);
            }
        }
    }
    let cpu = Cpu::new().expect("a pool");
    for file in real_matrices() {
        let matrix = cpu.install(|| read_matrix(&file, ReadOptions::default())).expect("a readable matrix");
        let a = matrix.into_csr().expect("values");
        let name = file.file_name().expect("a file's name").to_string_lossy().into_owned();
        one::<O>(c, &format!("{name}/n=128/auto"), &cpu, &a, 128, Strategy::Auto);
    }
}

/// The graph that ships with the project, and what there is of real matrices in `SPARSIMD_DATA` or `../shared/data`.
fn real_matrices() -> Vec<PathBuf> {
    let root = File::new(env!("CARGO_MANIFEST_DIR"));
    let data = std::env::var_os("SPARSIMD_DATA").map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let mut files = vec![root.join("tests/data/ca-CondMat.mtx.gz")];
    files.extend(["bcsstk16.mtx.gz", "amazon_book.mtx.gz"].map(|name| data.join(name)));
    files.retain(|file| file.exists());
    files
}

fn one<O: Operation>(c: &mut Criterion, case: &str, cpu: &Cpu, a: &Csr<f32>, n: usize, path: Strategy) {
    let prepared = cpu.prepare(a, &PlanOptions::new(O::OP, n).strategy(path).reuse(REUSE)).expect("a plan");
    let mut operation = O::new(a, n).expect("operands");
    operation.run(cpu, &prepared).expect("a run");
    let worst = operation.deviation(a).expect("a comparison");
    assert!(worst.error <= 1.0, "{} {case}: {worst:?}", O::NAME);
    let mut group = c.benchmark_group(O::NAME);
    group.throughput(Throughput::Elements(O::FLOPS * a.nnz() as u64 * n as u64));
    group.bench_function(case, |bench| bench.iter(|| operation.run(cpu, &prepared)));
    group.finish();
    if path == Strategy::Panel {
        c.bench_function(&format!("{}/prepare/{case}", O::NAME), |bench| {
            bench.iter_with_large_drop(|| cpu.prepare(a, &PlanOptions::new(O::OP, n).strategy(path).reuse(REUSE)));
        });
    }
}
