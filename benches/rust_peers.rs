//! Crates that do the same: the sparse product of sprs, and the dense ones of gemm and faer, counted by the nonzeros as in
//! the ESIMD paper. Beside `spmm` and `sddmm` on the same matrix.

mod settings;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparsimd::reference::Deviation;
use sparsimd::{Cpu, Mat, Result, generate, reference};
use sparsimd_peers::Gemm;
use sparsimd_peers::rust::{Sprs, faer, gemm, sprs};

/// Rows and columns, zeros, dense columns.
const SIZE: usize = 4096;
const ZEROS: f64 = 0.7;
const N: usize = 128;

fn peers(c: &mut Criterion) {
    run(c).expect("operands");
}

fn run(criterion: &mut Criterion) -> Result<()> {
    let a = generate::random_matrix::<f32>(SIZE, SIZE, ZEROS, 0)?;
    let (c, b) = (generate::uniform_dense::<f32>(SIZE, N, 1)?, generate::uniform_dense::<f32>(SIZE, N, 2)?);
    let (c, b) = (c.as_ref(), b.as_ref());
    let mut group = criterion.benchmark_group(format!("{SIZE}x{SIZE}@{ZEROS}/n={N}"));
    group.throughput(Throughput::Elements((2 * a.nnz() * N) as u64));

    let mut product = Mat::zeros(SIZE, N)?;
    let pattern = a.pattern();
    let inspected = Sprs::new((SIZE, SIZE), pattern.row_ptr(), pattern.col_idx(), a.values()).expect("a matrix");
    let stride = product.as_ref().stride();
    let mut multiply = || sprs(&inspected, N, b.data(), b.stride(), product.as_mut().into_data(), stride);
    multiply().expect("a product");
    group.bench_function("spmm/sprs/threads=1", |bench| bench.iter(&mut multiply));
    let zero = Mat::zeros(SIZE, N)?;
    right("sprs", reference::spmm(1.0, &a, b, 0.0, zero.as_ref())?.deviation(product.as_ref())?);

    let expected = reference::sddmm(&a, false, c, b)?;
    let mut all = Mat::<f32>::zeros(SIZE, SIZE)?;
    let ldc = all.as_ref().stride();
    let shape = Gemm { m: SIZE, n: SIZE, k: N, lda: c.stride(), ldb: b.stride(), ldc, b_transposed: true };
    for threads in [1, 2] {
        let cpu = Cpu::builder().threads(threads).build()?;
        for (name, dense) in [("gemm", gemm as fn(_, _, &[f32], &[f32], &mut [f32]) -> _), ("faer", faer)] {
            let mut multiply = || {
                cpu.install(|| dense(threads, shape, c.data(), b.data(), all.as_mut().into_data()).expect("a product"))
            };
            multiply();
            group.bench_function(format!("sddmm/{name}/threads={threads}"), |bench| bench.iter(&mut multiply));
            let at = |i: usize| pattern.row(i).iter().map(move |&j| (i, j as usize));
            let sampled: Vec<f32> = (0..SIZE).flat_map(at).map(|(i, j)| all.row(i)[j]).collect();
            right(name, expected.deviation_of_values(&sampled)?);
        }
    }
    group.finish();
    Ok(())
}

fn right(name: &str, deviation: Deviation) {
    assert!(deviation.error <= 1.0, "{name}: {deviation:?}");
}

criterion_group! { name = benches; config = settings::criterion(); targets = peers }
criterion_main!(benches);
