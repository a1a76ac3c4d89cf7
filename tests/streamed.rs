//! Tensors that are read from their file in passes.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;

use sparsimd::decomp::{CpInit, CpOptions};
use sparsimd::formats::{CooTensor, FiberCoo};
use sparsimd::generate::{skewed, uniform_dense};
use sparsimd::io::{TnsbStream, write_tnsb};
use sparsimd::plan::TensorOptions;
use sparsimd::{Arch, Cpu, Error, Mat, MatMut, MatRef, Scalar, Stored, f16, reference};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

fn cpu(threads: usize) -> Cpu {
    Cpu::builder().threads(threads).pin(false).build().unwrap()
}

fn factors<T: Scalar>(dims: &[usize], rank: usize) -> Vec<Mat<T>> {
    dims.iter().enumerate().map(|(m, &dim)| uniform_dense(dim, rank, 11 + m as u64).unwrap()).collect()
}

fn views<T: Scalar>(factors: &[Mat<T>]) -> Vec<MatRef<'_, T>> {
    factors.iter().map(Mat::as_ref).collect()
}

/// Just enough memory for chunks of the least length, which the error names in MiB.
fn least<T: Scalar>(cpu: &Cpu, path: &std::path::Path, rank: usize) -> usize {
    let refused = cpu.stream_tensor::<T>(path, rank, 0).unwrap_err().to_string();
    let mib: usize = refused.rsplit(' ').next().unwrap().parse().unwrap();
    mib << 20
}

#[test]
fn a_pass_has_every_nonzero_once_whatever_the_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    for (nnz, order) in [(0, 3), (1, 1), (1000, 2), (70_000, 4)] {
        let dims: Vec<usize> = [300, 200, 50, 9][..order].to_vec();
        let x = skewed::<f32>(&dims, nnz, 3).unwrap();
        write_tnsb(&path, &x).unwrap();
        let stream = TnsbStream::open(&path).unwrap();
        assert_eq!((stream.dims(), stream.nnz()), (&dims[..], nnz));
        let squares: f64 = x.values().iter().map(|x| f64::from(*x).powi(2)).sum();
        let (norm_squared, checksum) = stream.norm_and_checksum::<f32>().unwrap();
        assert!((norm_squared - squares).abs() <= 1e-12 * squares);
        assert_eq!(checksum, x.checksum());
        assert_eq!(stream.norm_and_checksum::<f64>().unwrap().1, x.cast::<f64>().checksum());
        for len in [1, 7, 999, 1000, 65_536, usize::MAX] {
            if len < 100 && nnz > 10_000 {
                continue;
            }
            let (mut coords, mut values) = (vec![Vec::new(); order], Vec::<f64>::new());
            let read = stream.pass::<f64>(len, |first, chunk| {
                assert_eq!(first, values.len());
                coords.iter_mut().zip(chunk.all_coords()).for_each(|(all, part)| all.extend_from_slice(part));
                values.extend_from_slice(chunk.values());
                Ok(chunk)
            });
            read.unwrap();
            assert_eq!(coords, x.all_coords());
            assert!(values.iter().zip(x.values()).all(|(a, b)| *a == f64::from(*b)) && values.len() == nnz);
        }
        // An error of the consumer's ends the pass.
        let ended = stream.pass::<f32>(10, |_, _| Err(Error::Argument { name: "test", detail: String::new() }));
        assert_eq!(ended.is_err(), nnz > 0);
    }
}

#[test]
fn damaged_files_are_refused_at_the_end_of_a_pass() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    let x = skewed::<f32>(&[300, 200, 50], 10_000, 3).unwrap();
    write_tnsb(&path, &x).unwrap();
    let good = std::fs::read(&path).unwrap();
    for at in [200, 40_500, 81_000, 160_000] {
        let mut bad = good.clone();
        // The lowest bit: coordinates stay in range.
        bad[at & !3] ^= 1;
        std::fs::write(&path, bad).unwrap();
        let stream = TnsbStream::open(&path).unwrap();
        let pass = stream.pass::<f32>(999, |_, chunk| Ok(chunk));
        assert!(matches!(pass, Err(Error::Parse { .. })), "byte {at}: {pass:?}");
        assert!(stream.norm_and_checksum::<f32>().is_err(), "byte {at}");
    }
    std::fs::write(&path, &good[..good.len() - 8]).unwrap();
    assert!(matches!(TnsbStream::open(&path), Err(Error::Parse { .. })));
}

/// Writes the `.tnsb` file of an order 2 tensor of `nnz` nonzeros: `entries` at their positions, by coordinates and the bits of an
/// f16, and zeros at place (0, 0), which are holes of the file and take no room.
fn write_holes(path: &std::path::Path, dims: [u64; 2], nnz: u64, entries: &[(u64, [u32; 2], u16)]) {
    let mut file = std::fs::File::options().create_new(true).read(true).write(true).open(path).unwrap();
    let sections = [(192, 4), (192 + 4 * nnz, 4), (192 + 8 * nnz, 2)];
    assert!(nnz.is_multiple_of(16), "sections that follow each other");
    file.set_len(192 + 10 * nnz).unwrap();
    let mut write = |at: u64, bytes: &[u8]| {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
    };
    for &(p, [i, j], bits) in entries {
        write(sections[0].0 + 4 * p, &i.to_le_bytes());
        write(sections[1].0 + 4 * p, &j.to_le_bytes());
        write(sections[2].0 + 2 * p, &bits.to_le_bytes());
    }
    let sums = sections.map(|(at, each)| {
        let (mut sum, mut piece) = (Xxh3::new(), vec![0; 1 << 20]);
        let mut section = std::fs::File::open(path).unwrap();
        section.seek(SeekFrom::Start(at)).unwrap();
        let mut section = section.take(each * nnz);
        loop {
            match section.read(&mut piece).unwrap() {
                0 => break sum.digest(),
                len => sum.update(&piece[..len]),
            }
        }
    });
    // The first version: no checksums of chunks.
    let mut header = b"\x89TNSB\r\n\n\x01\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
    let checksums = [sums[0], sums[1], 0, 0, 0, 0, 0, 0, sums[2]];
    for number in [nnz, dims[0], dims[1], 0, 0, 0, 0, 0, 0].into_iter().chain(checksums) {
        header.extend(number.to_le_bytes());
    }
    header.extend(xxh3_64(&header).to_le_bytes());
    write(0, &header);
}

#[test]
#[ignore = "some minutes"]
fn more_nonzeros_than_32_bits_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    let over = 1u64 << 32;
    let entries = [
        (3, [1, 2], 1.5),
        (over - 1, [2, 0], 0.25),
        (over, [3, 4], -2.0),
        (over + 3, [1, 1], 0.5),
        (over + 31, [5, 6], 4.0),
    ];
    write_holes(&path, [6, 7], over + 32, &entries.map(|(p, place, x)| (p, place, f16::narrow(x).to_bits())));
    let cpu = Cpu::builder().build().unwrap();
    let tensor = cpu.stream_tensor::<f32>(&path, 9, 256 << 20).unwrap();
    assert_eq!(tensor.nnz(), 4_294_967_328);
    let coords = (0..2).map(|mode| entries.iter().map(|(_, place, _)| place[mode]).collect()).collect();
    let few = CooTensor::new(vec![6, 7], coords, entries.iter().map(|(.., x)| *x).collect()).unwrap();
    assert_eq!(tensor.norm_squared(), few.values().iter().map(|x| f64::from(x * x)).sum::<f64>());
    let factors = factors::<f32>(&[6, 7], 9);
    for mode in 0..2 {
        let expected = reference::mttkrp(&few, &views(&factors), mode).unwrap();
        let mut out = Mat::zeros(few.dims()[mode], 9).unwrap();
        cpu.mttkrp_streamed(&tensor, &views(&factors), mode, out.as_mut()).unwrap();
        let worst = expected.deviation(out.as_ref()).unwrap();
        assert!(worst.error <= 1.0, "mode {mode}: {worst:?}");
    }
}

fn check<T: Scalar>(cpu: &Cpu, x: &CooTensor<T>, rank: usize, chunks: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    write_tnsb(&path, x).unwrap();
    let tensor = cpu.stream_tensor::<T>(&path, rank, least::<T>(cpu, &path, rank)).unwrap();
    assert!(x.nnz().div_ceil(tensor.chunk()) >= chunks, "{} of {} at a time", tensor.chunk(), x.nnz());
    let factors = factors::<T>(x.dims(), rank);
    for mode in 0..x.order() {
        let expected = cpu.install(|| reference::mttkrp(x, &views(&factors), mode)).unwrap();
        // Twice: into what is there, which does not count.
        let mut out = Mat::from_fn(x.dims()[mode], rank, |_, _| T::from_f64(f64::NAN)).unwrap();
        for _ in 0..2 {
            cpu.mttkrp_streamed(&tensor, &views(&factors), mode, out.as_mut()).unwrap();
            let worst = cpu.install(|| expected.deviation(out.as_ref())).unwrap();
            assert!(worst.error <= 1.0, "{:?}, mode {mode}, {}, R = {rank}: {worst:?}", x.dims(), T::NAME);
        }
    }
}

/// The same nonzeros in no order.
fn shuffled<T: Scalar>(x: &CooTensor<T>) -> CooTensor<T> {
    let mut order: Vec<usize> = (0..x.nnz()).collect();
    order.sort_by_key(|&p| (p as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let coords = x.all_coords().iter().map(|mode| order.iter().map(|&p| mode[p]).collect()).collect();
    let values = order.iter().map(|&p| x.values()[p]).collect();
    CooTensor::new(x.dims().to_vec(), coords, values).unwrap()
}

#[test]
fn mttkrp_in_passes_is_mttkrp() {
    let shapes: [(&[usize], usize); 5] = [
        (&[400, 300, 500], 150_000),
        (&[1, 900, 800], 140_000),
        (&[60_000, 3, 40], 70_000),
        (&[9, 8], 60),
        (&[50, 40, 30, 20], 0),
    ];
    for (dims, nnz) in shapes {
        let x = skewed::<f32>(dims, nnz, 3).unwrap();
        let mut sorted = x.clone();
        sorted.sort(&(0..dims.len()).collect::<Vec<_>>()).unwrap();
        for rank in [1, 8, 17] {
            let chunks = if nnz > 100_000 { 2 } else { 0 };
            check(&cpu(2), &x, rank, chunks);
            check(&cpu(3), &sorted.cast::<f64>(), rank, chunks);
            check(&cpu(3), &shuffled(&x), rank, chunks);
        }
    }
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(2).arch(arch).pin(false).build().unwrap();
        check(&cpu, &skewed::<f64>(&[400, 300, 500, 7], 150_000, 3).unwrap(), 16, 2);
    }
}

#[test]
fn cp_in_passes_has_the_fits_of_cp_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    let x = skewed::<f64>(&[80, 60, 90], 150_000, 3).unwrap();
    write_tnsb(&path, &x).unwrap();
    let cpu = cpu(2);
    let mut options = CpOptions::new(6);
    (options.iterations, options.tolerance) = (6, 0.0);
    let loaded = cpu.prepare_tensor(&x, &TensorOptions::new(6)).unwrap();
    let in_memory = cpu.cp_als(&loaded, &options, |_, _| ControlFlow::Continue(())).unwrap();
    let streamed = cpu.stream_tensor::<f64>(&path, 6, least::<f64>(&cpu, &path, 6)).unwrap();
    assert!(streamed.chunk() < x.nnz());
    let observe = |stop: usize| {
        move |_: &_, iteration: &sparsimd::decomp::CpIteration| match iteration.number {
            n if n == stop => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    };
    let whole = cpu.cp_als_streamed(&streamed, &options, observe(0)).unwrap();
    assert!(whole.fits.iter().zip(&in_memory.fits).all(|(a, b)| (a - b).abs() < 1e-9), "{:?}", whole.fits);
    let half = cpu.cp_als_streamed(&streamed, &options, observe(3)).unwrap();
    let rest = CpOptions { init: CpInit::Resume(half), ..options };
    assert_eq!(cpu.cp_als_streamed(&streamed, &rest, observe(0)).unwrap().fits, whole.fits);
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    let cpu = cpu(1);
    write_tnsb(&path, &skewed::<f32>(&[30, 20], 50, 3).unwrap()).unwrap();
    let refused = |rank, memory| cpu.stream_tensor::<f32>(&path, rank, memory).unwrap_err();
    assert!(matches!(refused(0, 1 << 20), Error::Argument { name: "rank", .. }));
    assert!(matches!(refused(8, 100), Error::Argument { name: "memory", .. }));
    let tensor = cpu.stream_tensor::<f32>(&path, 8, 1 << 20).unwrap();
    let run = |rows: usize, rank: usize, mode: usize| {
        let factors = factors::<f32>(&[rows, 20], rank);
        let mut out = vec![0.0; 30 * rank];
        cpu.mttkrp_streamed(&tensor, &views(&factors), mode, MatMut::new(&mut out, 30, rank, rank).unwrap())
    };
    assert!(run(30, 8, 0).is_ok());
    assert!(matches!(run(30, 9, 0), Err(Error::Shape { .. })));
    assert!(matches!(run(30, 8, 1), Err(Error::Shape { .. })));
    assert!(matches!(run(30, 8, 2), Err(Error::Argument { .. })));
    write_tnsb(&path, &skewed::<f32>(&[30], 20, 3).unwrap()).unwrap();
    assert!(matches!(refused(8, 1 << 20), Error::Structure { .. }));
}

/// The product as coordinates in order, from pieces no two of which have the same place.
fn ttm<T: Scalar>(cpu: &Cpu, path: &std::path::Path, mode: usize, u: &Mat<T>, memory: usize) -> (CooTensor<T>, usize) {
    let stream = TnsbStream::open(path).unwrap();
    let mut dims = stream.dims().to_vec();
    dims[mode] = u.cols();
    let (mut coords, mut values, mut pieces) = (vec![Vec::new(); dims.len()], Vec::new(), 0);
    let done = cpu.ttm_streamed(&stream, mode, u.as_ref(), memory, |piece| {
        let piece = piece.to_coo();
        coords.iter_mut().zip(piece.all_coords()).for_each(|(all, own)| all.extend_from_slice(own));
        values.extend_from_slice(piece.values());
        pieces += 1;
        Ok(())
    });
    done.unwrap();
    // Refuses a place that is there twice.
    let mut all = CooTensor::new(dims, coords, values).unwrap();
    all.sort(&(0..all.order()).collect::<Vec<_>>()).unwrap();
    (all, pieces)
}

#[test]
fn ttm_in_passes_is_ttm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    // Many short fibers; fibers of thousands of nonzeros, one of which is longer than a chunk; one fiber; no nonzeros; order 2.
    let shapes: [(&[usize], usize); 5] = [
        (&[300, 200, 500], 200_000),
        (&[2, 3, 200_000], 400_000),
        (&[1, 1, 150_000], 140_000),
        (&[7, 8, 9], 0),
        (&[90, 40], 1500),
    ];
    for (dims, nnz) in shapes {
        let x = skewed::<f64>(dims, nnz, 3).unwrap();
        for mode in 0..dims.len() {
            let mut sorted = x.clone();
            let mut order: Vec<usize> = (0..dims.len()).filter(|&m| m != mode).collect();
            order.push(mode);
            sorted.sort(&order).unwrap();
            write_tnsb(&path, &sorted).unwrap();
            for rank in [1, 5, 16] {
                let u: Mat<f64> = uniform_dense(dims[mode], rank, 7).unwrap();
                let cpu = cpu(3);
                let stream = TnsbStream::open(&path).unwrap();
                let refused = cpu.ttm_streamed(&stream, mode, u.as_ref(), 0, |_| Ok(())).unwrap_err().to_string();
                let mib: usize = refused.rsplit(' ').next().unwrap().parse().unwrap();
                let (product, pieces) = ttm(&cpu, &path, mode, &u, mib << 20);
                let expected =
                    cpu.ttm(&FiberCoo::new(x.clone(), mode).unwrap(), u.as_ref(), Default::default()).unwrap();
                let mut expected = expected.to_coo();
                expected.sort(&(0..dims.len()).collect::<Vec<_>>()).unwrap();
                assert_eq!(product.all_coords(), expected.all_coords(), "{dims:?}, mode {mode}, R = {rank}");
                // Sums of at most 2^18 terms of less than a half.
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9;
                assert!(product.values().iter().zip(expected.values()).all(near), "{dims:?}, mode {mode}, R = {rank}");
                assert!(pieces >= nnz.min(1) && (nnz < 200_000 || dims[0] == 2 || pieces > 2), "{pieces} pieces");
            }
        }
    }
}

#[test]
fn ttm_in_passes_refuses_what_it_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    let cpu = cpu(2);
    // Fibers of mode 1: two nonzeros of (0, .) with one of (1, .) between them, and in descending order.
    for rows in [[0, 1, 0], [1, 1, 0]] {
        write_tnsb(&path, &CooTensor::new(vec![2, 3], vec![rows.to_vec(), vec![0, 1, 2]], vec![1.0; 3]).unwrap())
            .unwrap();
        let stream = TnsbStream::open(&path).unwrap();
        let u: Mat<f64> = uniform_dense(3, 4, 7).unwrap();
        let unsorted = cpu.ttm_streamed(&stream, 1, u.as_ref(), 1 << 20, |_| Ok(())).unwrap_err();
        assert!(
            matches!(&unsorted, Error::Structure { .. }) && unsorted.to_string().contains("nonzero 2"),
            "{unsorted}"
        );
        let run = |mode: usize| cpu.ttm_streamed(&stream, mode, u.as_ref(), 1 << 20, |_| Ok(())).unwrap_err();
        assert!(matches!((run(0), run(2)), (Error::Shape { .. }, Error::Argument { .. })));
    }
    // Over the border of chunks: the last nonzero belongs to the first fiber.
    let n = 70_000;
    let rows: Vec<u32> = (0..n).map(|p| if p + 1 == n { 0 } else { p / 7 }).collect();
    let cols = (0..n).map(|p| if p + 1 == n { 9 } else { p % 7 }).collect();
    let x = CooTensor::new(vec![n as usize, 10], vec![rows, cols], vec![1.0f32; n as usize]).unwrap();
    write_tnsb(&path, &x).unwrap();
    let stream = TnsbStream::open(&path).unwrap();
    let u: Mat<f32> = uniform_dense(10, 2, 7).unwrap();
    let refused = cpu.ttm_streamed(&stream, 1, u.as_ref(), 0, |_| Ok(())).unwrap_err().to_string();
    let mib: usize = refused.rsplit(' ').next().unwrap().parse().unwrap();
    let unsorted = cpu.ttm_streamed(&stream, 1, u.as_ref(), mib << 20, |_| Ok(())).unwrap_err();
    assert!(unsorted.to_string().contains("nonzero 69999"), "{unsorted}");
    // The consumer's error ends it.
    let u: Mat<f32> = uniform_dense(n as usize, 2, 7).unwrap();
    let stop = |_| Err(Error::Argument { name: "test", detail: String::new() });
    let mut swapped = x.clone();
    swapped.sort(&[1, 0]).unwrap();
    write_tnsb(&path, &swapped).unwrap();
    let ended = cpu.ttm_streamed(&TnsbStream::open(&path).unwrap(), 0, u.as_ref(), 64 << 20, stop).unwrap_err();
    assert!(matches!(ended, Error::Argument { name: "test", .. }));
}

/// A pass inside a pool whose threads are bound has a thread that reads beside them, not in turns with the one that started it.
#[cfg(target_os = "linux")]
#[test]
fn the_thread_that_reads_is_not_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tnsb");
    write_tnsb(&path, &CooTensor::new(vec![9, 1], vec![(0..9).collect(), vec![0; 9]], vec![1.0f64; 9]).unwrap())
        .unwrap();
    let stream = TnsbStream::open(&path).unwrap();
    let line = |task: &std::path::Path, key: &str| {
        // A thread of another test may have ended.
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned()
    };
    let process = line("/proc/self".as_ref(), "Cpus_allowed_list:");
    let mut first = true;
    let bound = Cpu::builder().threads(1).pin(true).build().unwrap();
    let pass = bound.install(|| {
        stream.pass::<f64>(1, |_, chunk| {
            // Chunks are left to be read: the thread is there.
            if std::mem::take(&mut first) {
                let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
                let readers: Vec<_> = tasks.filter(|task| line(task, "Name:") == "sparsimd-read").collect();
                assert!(!readers.is_empty());
                for reader in readers {
                    // That of another test may only just have begun.
                    let unbound = || {
                        std::thread::sleep(std::time::Duration::from_millis(1));
                        let allowed = line(&reader, "Cpus_allowed_list:");
                        allowed.is_empty() || allowed == process
                    };
                    assert!((0..1000).any(|_| unbound()), "{reader:?} is bound");
                }
            }
            Ok(chunk)
        })
    });
    pass.unwrap();
}
