//! SDDMM, SpMM and FusedMM beside the dense products of MKL and OpenBLAS that give the same numbers, as the ESIMD paper compares:
//! C B^T whole for SDDMM, A with its zeros for SpMM, both for FusedMM. Libraries that are not there are named and left out
//! (`benches/peers/install` fetches them). Throughput counts the nonzeros alone, for everybody.

mod settings;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::reference::Deviation;
use sparsimd::{Cpu, Csr, Mat, Result, edge, generate, reference};
use sparsimd_peers::{Blas, Gemm, Loaded};

/// Rows and columns, zeros, dense columns.
const SIZE: usize = 4096;
const ZEROS: [f64; 2] = [0.7, 0.9];
const N: usize = 128;

/// The operands of all three operations, and where their results go.
struct Operands {
    a: Csr<f32>,
    /// A with its zeros.
    dense: Mat<f32>,
    c: Mat<f32>,
    b: Mat<f32>,
    /// SIZE x N.
    product: Mat<f32>,
    /// SIZE x SIZE.
    all: Mat<f32>,
}

impl Operands {
    fn new(zeros: f64) -> Result<Self> {
        let a = generate::random_matrix::<f32>(SIZE, SIZE, zeros, 0)?;
        let mut dense = Mat::zeros(SIZE, SIZE)?;
        for (i, row) in dense.iter_rows_mut().enumerate() {
            let of_row = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
            a.pattern().row(i).iter().zip(&a.values()[of_row]).for_each(|(&j, &value)| row[j as usize] = value);
        }
        let (c, b) = (generate::uniform_dense(SIZE, N, 1)?, generate::uniform_dense(SIZE, N, 2)?);
        Ok(Self { a, dense, c, b, product: Mat::zeros(SIZE, N)?, all: Mat::zeros(SIZE, SIZE)? })
    }

    /// all = C B^T, or product = X B with X = A or C B^T.
    fn gemm(&mut self, blas: &Blas, of: Of) {
        let Self { dense, c, b, product, all, .. } = self;
        let (left, out, n, k) = match of {
            Of::Rows => (&*c, all, SIZE, N),
            Of::Matrix => (&*dense, product, N, SIZE),
            Of::Dots => (&*all, product, N, SIZE),
        };
        let (lda, ldb, ldc) = (left.as_ref().stride(), b.as_ref().stride(), out.as_ref().stride());
        let shape = Gemm { m: SIZE, n, k, lda, ldb, ldc, b_transposed: matches!(of, Of::Rows) };
        blas.gemm(shape, left.as_ref().data(), b.as_ref().data(), out.as_mut().into_data()).expect("a product");
    }
}

/// What is multiplied by B.
#[derive(Clone, Copy)]
enum Of {
    /// C, by B^T.
    Rows,
    /// A with its zeros.
    Matrix,
    /// C B^T.
    Dots,
}

fn right(name: &str, deviation: Deviation) {
    assert!(deviation.error <= 1.0, "{name}: {deviation:?}");
}

/// Ours, each verified.
fn ours(group: &mut BenchmarkGroup<'_, WallTime>, cpu: &Cpu, x: &mut Operands) -> Result<()> {
    let prepare = |op| cpu.prepare(&x.a, &PlanOptions::new(op, N));
    let threads = cpu.threads();
    let (c, b) = (x.c.as_ref(), x.b.as_ref());

    let (prepared, mut dots) = (prepare(Op::Sddmm)?, vec![0f32; x.a.nnz()]);
    group.bench_function(format!("sddmm/ours/threads={threads}"), |bench| {
        bench.iter(|| cpu.sddmm(&prepared, c, b, &mut dots).expect("a run"));
    });
    right("sddmm", reference::sddmm(&x.a, false, c, b)?.deviation_of_values(&dots)?);

    let prepared = prepare(Op::Spmm)?;
    group.bench_function(format!("spmm/ours/threads={threads}"), |bench| {
        bench.iter(|| cpu.spmm(1.0, &prepared, b, 0.0, x.product.as_mut()).expect("a run"));
    });
    let zero = Mat::zeros(SIZE, N)?;
    right("spmm", reference::spmm(1.0, &x.a, b, 0.0, zero.as_ref())?.deviation(x.product.as_ref())?);

    let prepared = prepare(Op::FusedMm)?;
    group.bench_function(format!("fusedmm/ours/threads={threads}"), |bench| {
        bench.iter(|| cpu.fusedmm(&prepared, edge::Identity, c, b, b, x.product.as_mut()).expect("a run"));
    });
    right("fusedmm", reference::fusedmm(&x.a, reference::Edge::Identity, c, b, b)?.deviation(x.product.as_ref())?);
    Ok(())
}

/// A library's dense products, those that can be compared verified: FusedMM's has no sampling between them, as in the paper.
fn library(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    threads: usize,
    blas: &Blas,
    x: &mut Operands,
) -> Result<()> {
    let case = |op: &str| format!("{op}/{name}/threads={threads}");
    group.bench_function(case("sddmm"), |bench| bench.iter(|| x.gemm(blas, Of::Rows)));
    let at = |i: usize| x.a.pattern().row(i).iter().map(move |&j| (i, j as usize));
    let sampled: Vec<f32> = (0..SIZE).flat_map(at).map(|(i, j)| x.all.row(i)[j]).collect();
    right(name, reference::sddmm(&x.a, false, x.c.as_ref(), x.b.as_ref())?.deviation_of_values(&sampled)?);

    group.bench_function(case("spmm"), |bench| bench.iter(|| x.gemm(blas, Of::Matrix)));
    let zero = Mat::zeros(SIZE, N)?;
    right(name, reference::spmm(1.0, &x.a, x.b.as_ref(), 0.0, zero.as_ref())?.deviation(x.product.as_ref())?);

    group.bench_function(case("fusedmm"), |bench| {
        bench.iter(|| {
            x.gemm(blas, Of::Rows);
            x.gemm(blas, Of::Dots);
        });
    });
    Ok(())
}

fn compare(criterion: &mut Criterion) {
    for zeros in ZEROS {
        let mut x = Operands::new(zeros).expect("operands");
        let mut group = criterion.benchmark_group(format!("{SIZE}x{SIZE}@{zeros}/n={N}"));
        group.throughput(Throughput::Elements((2 * x.a.nnz() * N) as u64));
        for threads in [1, 2] {
            let cpu = Cpu::builder().threads(threads).build().expect("a pool");
            ours(&mut group, &cpu, &mut x).expect("right results");
            for loaded in Loaded::ALL {
                match loaded.gemm(threads) {
                    Ok(blas) => library(&mut group, loaded.name(), threads, &blas, &mut x).expect("right results"),
                    Err(absent) => eprintln!("{} is left out: {absent}", loaded.name()),
                }
            }
        }
        group.finish();
    }
}

criterion_group! { name = benches; config = settings::criterion(); targets = compare }
criterion_main!(benches);
