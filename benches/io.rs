//! Bytes of text a second that the readers parse: an `.mtx` with 17 digits a value, a pattern, the same compressed, and an
//! `.smtx`, by all threads.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparsimd::io::{Matrix, ReadOptions, read_mtx, read_smtx, write_matrix};
use sparsimd::{Cpu, generate};

fn readers(c: &mut Criterion) {
    let cpu = Cpu::new().expect("a pool");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let a = generate::random_matrix::<f64>(4096, 4096, 0.9, 1).expect("a matrix");
    let pattern = Matrix::<f64>::Pattern(a.pattern().clone());
    let valued = Matrix::Values(a);
    let mut group = c.benchmark_group("read");
    for (name, matrix) in
        [("values.mtx", &valued), ("pattern.mtx", &pattern), ("pattern.mtx.gz", &pattern), ("pattern.smtx", &pattern)]
    {
        let path = dir.path().join(name);
        write_matrix(&path, matrix).expect("a written file");
        let plain = dir.path().join(name.trim_end_matches(".gz"));
        // Of the text, also where the file is compressed.
        group.throughput(Throughput::Bytes(std::fs::metadata(plain).expect("its size").len()));
        let read = || {
            if name.ends_with(".smtx") {
                read_smtx(&path, ReadOptions::default()).expect("a pattern").nnz()
            } else {
                read_mtx::<f32>(&path, ReadOptions::default()).expect("a matrix").0.nnz()
            }
        };
        assert_eq!(cpu.install(read), matrix.pattern().nnz());
        group.bench_function(name, |bench| bench.iter(|| black_box(cpu.install(read))));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = readers
}
criterion_main!(benches);
