//! Bytes of text a second that the readers parse: an `.mtx` with 17 digits a value, a pattern, the same compressed, and an
//! `.smtx`, by all threads; and bytes a second of a tensor's `.tns` and of its `.tnsb`: with its checksums verified, and
//! as a tensor whose coordinates have been checked.

mod settings;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparsimd::io::{
    Duplicates, Matrix, ReadOptions, TnsbFile, read_mtx, read_smtx, read_tensor, read_tnsb, write_matrix, write_tensor,
};
use sparsimd::{CooTensor, Cpu, generate};

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

fn tensors(c: &mut Criterion) {
    let cpu = Cpu::new().expect("a pool");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let made = cpu.install(|| generate::skewed::<f32>(&[12_000, 9_000, 29_000], 4_000_000, 1)).expect("a tensor");
    let (text, binary) = (dir.path().join("made.tns"), dir.path().join("made.tnsb"));
    let mut group = c.benchmark_group("tensor");
    for path in [&text, &binary] {
        cpu.install(|| write_tensor(path, &made)).expect("a written file");
    }
    let size = |path| Throughput::Bytes(std::fs::metadata(path).expect("its size").len());
    let of_text = || {
        let read: CooTensor<f32> =
            read_tensor(&text, false, Duplicates::Refuse, ReadOptions::default()).expect("a tensor");
        read.nnz()
    };
    let opened = || TnsbFile::open(&binary).expect("a tensor").nnz();
    let checked = || read_tnsb::<f32>(&binary).expect("a tensor").nnz();
    let ways: [(&str, _, &(dyn Fn() -> usize + Sync)); 3] =
        [("read.tns", &text, &of_text), ("open.tnsb", &binary, &opened), ("read.tnsb", &binary, &checked)];
    for (name, path, read) in ways {
        group.throughput(size(path));
        assert_eq!(cpu.install(read), made.nnz());
        group.bench_function(name, |bench| bench.iter(|| black_box(cpu.install(read))));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = settings::criterion();
    targets = readers, tensors
}
criterion_main!(benches);
