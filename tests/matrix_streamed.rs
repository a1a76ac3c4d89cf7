//! SpMM and SDDMM of a matrix that is read from its file in passes, dense operands in memory and in files.

use std::path::Path;

use sparsimd::formats::{Coo, CooTensor};
use sparsimd::generate::{uniform_dense, uniform_values};
use sparsimd::io::{
    Matrix, NpyStream, ReadOptions, TnsbStream, read_matrix, read_npy, write_mtx, write_mtx_entries, write_npy,
    write_npy_rows, write_tnsb,
};
use sparsimd::ops::DenseRows;
use sparsimd::{Arch, Cpu, Csr, Error, Mat, MatRef, Scalar, reference};

fn cpu(threads: usize) -> Cpu {
    Cpu::builder().threads(threads).pin(false).build().unwrap()
}

/// A matrix with nonzeros in the rows and columns that `place` has for their number, repeated ones left out, by row and column.
fn matrix<T: Scalar>(rows: usize, cols: usize, nnz: usize, place: impl Fn(u64) -> (u64, u64)) -> CooTensor<T> {
    let mut places: Vec<(u32, u32)> = (0..nnz as u64)
        .map(|p| place(p.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ p))
        .map(|(i, j)| ((i % rows as u64) as u32, (j % cols as u64) as u32))
        .collect();
    places.sort_unstable();
    places.dedup();
    let (i, j): (Vec<u32>, Vec<u32>) = places.into_iter().unzip();
    let values = uniform_values(i.len(), 5);
    CooTensor::new(vec![rows, cols], vec![i, j], values).unwrap()
}

fn csr<T: Scalar>(x: &CooTensor<T>) -> Csr<T> {
    let (i, j) = (x.coords(0).to_vec(), x.coords(1).to_vec());
    Coo::new(x.dims()[0], x.dims()[1], i, j, x.values().to_vec()).unwrap().to_csr().unwrap()
}

/// Just enough memory for what `run` computes, which its error names in MiB.
fn least(run: impl FnOnce(usize) -> Result<(), Error>) -> usize {
    match run(0) {
        Ok(()) => 0,
        Err(refused) => {
            let text = refused.to_string();
            let mib: usize = text.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{text}"));
            mib << 20
        }
    }
}

/// The product, and in how many pieces it came.
fn spmm<T: Scalar>(cpu: &Cpu, a: &TnsbStream, b: DenseRows<'_, T>, n: usize, memory: usize) -> (Mat<T>, usize) {
    let mut c = Mat::from_fn(a.dims()[0], n, |_, _| T::from_f64(f64::NAN)).unwrap();
    let (mut next, mut pieces) = (0, 0);
    let done = cpu.spmm_streamed(a, b, memory, |first, rows: MatRef<'_, T>| {
        assert_eq!(first, next, "rows come in order");
        rows.iter_rows().zip(first..).for_each(|(row, i)| c.row_mut(i).copy_from_slice(row));
        next += rows.rows();
        pieces += 1;
        Ok(())
    });
    done.unwrap();
    assert_eq!(next, a.dims()[0]);
    (c, pieces)
}

/// The results at the nonzeros.
fn sddmm<T: Scalar>(
    cpu: &Cpu,
    a: &TnsbStream,
    [c, b]: [DenseRows<'_, T>; 2],
    scaled: bool,
    memory: usize,
    x: &CooTensor<T>,
) -> (Vec<T>, usize) {
    let (mut all, mut pieces) = (Vec::new(), 0);
    let mut consume = |i: &[u32], j: &[u32], values: &[T]| {
        let own = all.len()..all.len() + values.len();
        assert_eq!((i, j), (&x.coords(0)[own.clone()], &x.coords(1)[own]));
        all.extend_from_slice(values);
        pieces += 1;
        Ok(())
    };
    match scaled {
        true => cpu.sddmm_scaled_streamed(a, c, b, memory, &mut consume),
        false => cpu.sddmm_streamed(a, c, b, memory, &mut consume),
    }
    .unwrap();
    (all, pieces)
}

/// Both operations with dense operands from memory and from files, with as little memory as they need and with much.
fn check<T: Scalar>(cpu: &Cpu, folder: &Path, x: &CooTensor<T>, n: usize) -> usize {
    let (tensor, b_file, c_file) = (folder.join("a.tnsb"), folder.join("b.npy"), folder.join("c.npy"));
    write_tnsb(&tensor, x).unwrap();
    let stream = TnsbStream::open(&tensor).unwrap();
    let (m, k) = (x.dims()[0], x.dims()[1]);
    let (c, b): (Mat<T>, Mat<T>) = (uniform_dense(m, n, 7).unwrap(), uniform_dense(k, n, 8).unwrap());
    write_npy(&b_file, &[k, n], b.as_ref()).unwrap();
    write_npy(&c_file, &[m, n], c.as_ref()).unwrap();
    let (b_rows, c_rows) = (NpyStream::open(&b_file).unwrap(), NpyStream::open(&c_file).unwrap());
    let a = csr(x);
    let none = Mat::<T>::zeros(m, n).unwrap();
    let product = cpu.install(|| reference::spmm(T::ONE, &a, b.as_ref(), T::ZERO, none.as_ref())).unwrap();
    let dots = [false, true].map(|s| cpu.install(|| reference::sddmm(&a, s, c.as_ref(), b.as_ref())).unwrap());
    let mut most = 0;
    for (from_file, plenty) in [(false, false), (false, true), (true, false), (true, true)] {
        let place = format!("{m} x {k}, N = {n}, {}, from a file: {from_file}, plenty: {plenty}", T::NAME);
        let b = if from_file { DenseRows::File(&b_rows) } else { b.as_ref().into() };
        let c = if from_file { DenseRows::File(&c_rows) } else { c.as_ref().into() };
        let least = least(|memory| cpu.spmm_streamed(&stream, b, memory, |_, _| Ok(())));
        let memory = if plenty { 1 << 30 } else { least };
        for _ in 0..2 {
            let (result, pieces) = spmm(cpu, &stream, b, n, memory);
            let worst = cpu.install(|| product.deviation(result.as_ref())).unwrap();
            assert!(worst.error <= 1.0, "{place}: {worst:?}");
            most = most.max(pieces);
        }
        let least =
            self::least(|memory| cpu.sddmm_streamed(&stream, c, b, memory, |_: &[u32], _: &[u32], _: &[T]| Ok(())));
        let memory = if plenty { 1 << 30 } else { least };
        for scaled in [false, true] {
            let (result, pieces) = sddmm(cpu, &stream, [c, b], scaled, memory, x);
            let worst = cpu.install(|| dots[usize::from(scaled)].deviation_of_values(&result)).unwrap();
            assert!(worst.error <= 1.0, "{place}, scaled: {scaled}: {worst:?}");
            most = most.max(pieces);
        }
    }
    most
}

#[test]
fn matrices_in_passes_have_the_results_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    // Rows of some nonzeros; B in many blocks; rows longer than a chunk; gaps of more rows than a piece; next to nothing.
    let even = matrix::<f64>(3000, 5000, 150_000, |x| (x >> 40, x >> 10));
    let wide = matrix::<f64>(900, 400_000, 200_000, |x| (x >> 40, x >> 7));
    let banded = matrix::<f64>(200_000, 200_000, 200_000, |x| (x >> 30, (x >> 30) % 200_000 + x % 5));
    let long = matrix::<f64>(3, 100_000, 290_000, |x| (x >> 60, x >> 9));
    let gaps = matrix::<f64>(500_000, 50, 70_000, |x| ((x >> 50) % 40 * 12_000, x >> 9));
    for n in [1, 8, 17] {
        assert!(check(&cpu(2), dir, &even, n) > 1);
        assert!(check(&cpu(3), dir, &even.cast::<f32>(), n) > 1);
        assert!(check(&cpu(2), dir, &wide.cast::<f32>(), n) > 1);
        assert!(check(&cpu(3), dir, &banded, n) > 1);
        assert!(check(&cpu(2), dir, &long.cast::<f32>(), n) > 1);
        assert!(check(&cpu(2), dir, &gaps.cast::<f32>(), n) > 1);
        for (rows, cols, nnz) in [(1, 1, 1), (7, 9, 20), (5, 4, 0), (4000, 3, 2)] {
            check(&cpu(2), dir, &matrix::<f64>(rows, cols, nnz, |x| (x >> 9, x >> 20)), n);
        }
    }
    check(&cpu(2), dir, &even.cast::<f32>(), 128);
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(2).arch(arch).pin(false).build().unwrap();
        assert!(check(&cpu, dir, &wide.cast::<f32>(), 16) > 1);
    }
}

#[test]
fn elements_of_any_type_are_read_by_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.npy");
    let b: Mat<f64> = uniform_dense(5000, 19, 3).unwrap();
    write_npy(&path, &[5000, 19], b.as_ref()).unwrap();
    let rows = NpyStream::open(&path).unwrap();
    assert_eq!((rows.rows(), rows.cols(), rows.path()), (5000, 19, &*path));
    for (first, count) in [(0, 5000), (0, 1), (4999, 1), (123, 4321), (5000, 0)] {
        let (mut wide, mut narrow) = (Mat::<f64>::zeros(count, 19).unwrap(), Mat::<f32>::zeros(count, 19).unwrap());
        rows.read_rows(first, wide.as_mut()).unwrap();
        rows.read_rows(first, narrow.as_mut()).unwrap();
        for i in 0..count {
            assert_eq!(wide.row(i), b.row(first + i));
            assert!(narrow.row(i).iter().zip(b.row(first + i)).all(|(x, y)| *x == *y as f32));
        }
    }
    let mut out = Mat::<f32>::zeros(2, 19).unwrap();
    assert!(matches!(rows.read_rows(4999, out.as_mut()), Err(Error::Argument { .. })));
    assert!(matches!(rows.read_rows(usize::MAX, out.as_mut()), Err(Error::Argument { .. })));
    let mut out = Mat::<f32>::zeros(2, 18).unwrap();
    assert!(matches!(rows.read_rows(0, out.as_mut()), Err(Error::Shape { .. })));
    // Big-endian f4, as numpy has them: 2 x 3.
    let header = format!("{:<117}\n", "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }");
    let mut bytes = [&b"\x93NUMPY\x01\x00"[..], &118u16.to_le_bytes(), header.as_bytes()].concat();
    (0..6).for_each(|x| bytes.extend((x as f32).to_be_bytes()));
    std::fs::write(&path, &bytes).unwrap();
    let mut out = Mat::<f32>::zeros(1, 3).unwrap();
    NpyStream::open(&path).unwrap().read_rows(1, out.as_mut()).unwrap();
    assert_eq!(out.row(0), [3.0, 4.0, 5.0]);
    // What has no rows to be read: cut short, by columns, compressed.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(NpyStream::open(&path), Err(Error::Parse { .. })));
    let by_columns = String::from_utf8_lossy(&bytes[..128]).replace("False", "True ").into_bytes();
    let by_columns: Vec<u8> = [&bytes[..10], &by_columns[by_columns.len() - 118..], &bytes[128..]].concat();
    std::fs::write(&path, &by_columns).unwrap();
    assert!(NpyStream::open(&path).unwrap_err().to_string().contains("Fortran"));
    let packed = dir.path().join("b.npy.gz");
    write_npy(&packed, &[5000, 19], b.as_ref()).unwrap();
    assert!(NpyStream::open(&packed).unwrap_err().to_string().contains("compressed"));
}

#[test]
fn results_are_written_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole.npy"), dir.path().join("parts.npy"));
    let c: Mat<f32> = uniform_dense(100, 7, 3).unwrap();
    write_npy(&whole, &[100, 7], c.as_ref()).unwrap();
    let write = |rows: usize| {
        write_npy_rows::<f32>(&parts, &[100, 7], |write| {
            (0..rows).step_by(30).try_for_each(|i| write(c.as_ref().row_range(i..rows.min(i + 30))?))
        })
    };
    write(100).unwrap();
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parts).unwrap());
    std::fs::remove_file(&parts).unwrap();
    assert!(matches!(write(99), Err(Error::Argument { name: "shape", .. })));
    let own = |_: &mut dyn FnMut(MatRef<'_, f32>) -> Result<(), Error>| {
        Err(Error::Argument { name: "test", detail: String::new() })
    };
    assert!(matches!(write_npy_rows(&parts, &[100, 7], own), Err(Error::Argument { name: "test", .. })));
    assert!(!parts.exists());

    let x = matrix::<f64>(300, 200, 9000, |x| (x >> 40, x >> 10));
    let (whole, parts) = (dir.path().join("whole.mtx"), dir.path().join("parts.mtx"));
    write_mtx(&whole, &Matrix::Values(csr(&x))).unwrap();
    let write = |nnz: usize, cols: usize| {
        write_mtx_entries::<f64>(&parts, (300, cols), x.nnz(), |write| {
            (0..nnz).step_by(700).try_for_each(|p| {
                let own = p..nnz.min(p + 700);
                write(&x.coords(0)[own.clone()], &x.coords(1)[own.clone()], &x.values()[own])
            })
        })
    };
    write(x.nnz(), 200).unwrap();
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&parts).unwrap());
    std::fs::remove_file(&parts).unwrap();
    assert!(matches!(write(x.nnz() - 1, 200), Err(Error::Argument { .. })));
    assert!(matches!(write(x.nnz(), 199), Err(Error::Argument { .. })));
    let uneven = write_mtx_entries::<f64>(&parts, (3, 3), 2, |write| write(&[0, 1], &[0], &[1.0, 2.0]));
    assert!(matches!(uneven, Err(Error::Argument { .. })));
    assert!(!parts.exists());
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.tnsb");
    let cpu = cpu(2);
    let open = |rows: &[u32], cols: &[u32]| {
        let values = vec![1.0f32; rows.len()];
        let dims = vec![4, 3];
        write_tnsb(&path, &CooTensor::new(dims, vec![rows.to_vec(), cols.to_vec()], values).unwrap()).unwrap();
        TnsbStream::open(&path).unwrap()
    };
    let run = |a: &TnsbStream, rows: usize, n: usize| {
        let b: Mat<f32> = uniform_dense(rows, n, 7).unwrap();
        cpu.spmm_streamed(a, b.as_ref(), 1 << 20, |_, _| Ok(()))
    };
    // By columns, in descending order, twice.
    for (rows, cols) in [([0, 1, 0], [0, 0, 1]), ([0, 2, 1], [0, 0, 0]), ([0, 1, 1], [0, 2, 2])] {
        let refused = run(&open(&rows, &cols), 3, 2).unwrap_err();
        assert!(matches!(refused, Error::Structure { .. }) && refused.to_string().contains("nonzero 2"), "{refused}");
    }
    let a = open(&[0, 1, 3], &[0, 2, 1]);
    assert!(run(&a, 3, 2).is_ok());
    assert!(matches!(run(&a, 4, 2), Err(Error::Shape { .. })));
    assert!(matches!(run(&a, 3, 0), Err(Error::Shape { .. })));
    let dense = |rows: usize, n: usize| -> Mat<f32> { uniform_dense(rows, n, 7).unwrap() };
    let sampled = |c: &Mat<f32>, b: &Mat<f32>, memory: usize| {
        cpu.sddmm_streamed(&a, c.as_ref(), b.as_ref(), memory, |_, _, _: &[f32]| Ok(()))
    };
    assert!(sampled(&dense(4, 2), &dense(3, 2), 1 << 20).is_ok());
    assert!(matches!(sampled(&dense(3, 2), &dense(3, 2), 1 << 20), Err(Error::Shape { .. })));
    assert!(matches!(sampled(&dense(4, 2), &dense(3, 3), 1 << 20), Err(Error::Shape { .. })));
    assert!(matches!(sampled(&dense(4, 2), &dense(3, 2), 9), Err(Error::Argument { name: "memory", .. })));
    let stop = |_: usize, _: MatRef<'_, f32>| Err(Error::Argument { name: "test", detail: String::new() });
    let ended = cpu.spmm_streamed(&a, dense(3, 2).as_ref(), 1 << 20, stop);
    assert!(matches!(ended, Err(Error::Argument { name: "test", .. })));
    // Damage is found at the end of the pass, when the checksum is complete.
    let mut bytes = std::fs::read(&path).unwrap();
    let value = bytes.windows(4).rposition(|bytes| bytes == 1.0f32.to_le_bytes()).unwrap();
    bytes[value] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(run(&TnsbStream::open(&path).unwrap(), 3, 2), Err(Error::Parse { .. })));
    write_tnsb(&path, &CooTensor::new(vec![2, 2, 2], vec![vec![0]; 3], vec![1.0f32]).unwrap()).unwrap();
    assert!(matches!(run(&TnsbStream::open(&path).unwrap(), 2, 2), Err(Error::Shape { .. })));
}

#[test]
fn what_was_written_in_passes_is_read_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = cpu(2);
    let x = matrix::<f32>(2000, 3000, 80_000, |x| (x >> 40, x >> 10));
    let (tensor, b_file) = (dir.path().join("a.tnsb"), dir.path().join("b.npy"));
    write_tnsb(&tensor, &x).unwrap();
    let b: Mat<f32> = uniform_dense(3000, 16, 8).unwrap();
    write_npy(&b_file, &[3000, 16], b.as_ref()).unwrap();
    let (a, b_rows) = (TnsbStream::open(&tensor).unwrap(), NpyStream::open(&b_file).unwrap());
    let (product, dots) = (dir.path().join("c.npy"), dir.path().join("s.mtx"));
    let memory = 16 << 20;
    write_npy_rows(&product, &[2000, 16], |write| {
        cpu.spmm_streamed(&a, &b_rows, memory, |_, rows: MatRef<'_, f32>| write(rows))
    })
    .unwrap();
    let c: Mat<f32> = read_npy(&product, ReadOptions::default()).unwrap();
    let mut expected = Mat::<f32>::zeros(2000, 16).unwrap();
    cpu.spmm(1.0, &csr(&x), b.as_ref(), 0.0, expected.as_mut()).unwrap();
    // Sums of about 40 products of numbers below 1/2.
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
    assert!(c.iter_rows().flatten().zip(expected.iter_rows().flatten()).all(near));
    write_mtx_entries(&dots, (2000, 3000), x.nnz(), |write| {
        cpu.sddmm_streamed(&a, &NpyStream::open(&product)?, &b_rows, memory, |i, j, values: &[f32]| write(i, j, values))
    })
    .unwrap();
    let read: Csr<f32> = read_matrix(&dots, ReadOptions::default()).unwrap().into_csr().unwrap();
    let mut values = vec![0.0; x.nnz()];
    cpu.sddmm(&csr(&x), c.as_ref(), b.as_ref(), &mut values).unwrap();
    assert_eq!(read.pattern().col_idx(), x.coords(1));
    assert!(read.values().iter().zip(&values).all(near));
}
