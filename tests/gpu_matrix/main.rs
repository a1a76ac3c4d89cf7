//! SpMM, SDDMM and FusedMM on a Vulkan device against the reference, with the validation layer on. Without a device (or
//! without the validation layer) every test reports so and passes.
use std::collections::HashSet;

use sparsimd::generate::{random_matrix, uniform_dense, uniform_values};
use sparsimd::gpu::{DeviceOptions, DeviceScalar, EdgeKind, Gpu, Kind, Portable};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::{Csr, Error, Mat, Number, Pattern, reference};

#[path = "../common/mod.rs"]
mod common;
mod narrow;

use common::device::{gpu, limited, quiet};

/// Matrices at the edges: of each shape a kernel may trip over.
fn edge_matrices<T: DeviceScalar>() -> Vec<(&'static str, Csr<T>)> {
    let of = |rows, cols, row_ptr: Vec<usize>, idx: Vec<u32>| {
        let values = uniform_values(idx.len(), 7);
        Csr::new(Pattern::new(rows, cols, row_ptr, idx).unwrap(), values).unwrap()
    };
    // One row of every column, one long enough to be cut, the rest short or empty.
    let mut row_ptr = vec![0];
    let mut idx = Vec::new();
    for i in 0..70u32 {
        let len = match i {
            3 => 2000,
            5 => 1500,
            _ => i % 7,
        };
        // Columns that do not ascend.
        idx.extend((0..len).map(|j| (j * 1009 + i) % 2003));
        row_ptr.push(idx.len());
    }
    vec![
        ("no rows", of(0, 5, vec![0], vec![])),
        ("no columns", of(3, 0, vec![0; 4], vec![])),
        ("no nonzeros", of(40, 9, vec![0; 41], vec![])),
        ("one element", of(1, 1, vec![0, 1], vec![0])),
        ("one row", of(1, 300, vec![0, 300], (0..300).collect())),
        ("one column", of(100, 1, (0..=100).collect(), vec![0; 100])),
        ("skewed, unsorted", of(70, 2003, row_ptr, idx)),
        ("dense", random_matrix(33, 65, 0.0, 1).unwrap()),
        ("random", random_matrix(257, 129, 0.8, 2).unwrap()),
        ("few rows", random_matrix(60, 1000, 0.5, 3).unwrap()),
    ]
}

const COLUMNS: &[usize] = &[1, 3, 17, 32, 100, 128, 257];

fn check_spmm<D: Portable>(gpu: &Gpu, name: &str, a: &Csr<D::Sum>, n: usize) {
    let ga = gpu.csr(a).unwrap();
    for transposed in [false, true] {
        let (m, k) = if transposed { (a.cols(), a.rows()) } else { (a.rows(), a.cols()) };
        let b: Mat<D> = uniform_dense(k, n, 3).unwrap();
        let mut c: Mat<D> = uniform_dense(m, n, 4).unwrap();
        let gb = gpu.mat(b.as_ref()).unwrap();
        for (alpha, beta) in [(1.0, 0.0), (-1.5, 0.75)] {
            let (alpha, beta) = (D::Sum::from_f64(alpha), D::Sum::from_f64(beta));
            let mut gc = gpu.mat(c.as_ref()).unwrap();
            let want = if transposed {
                gpu.spmm_t(alpha, &ga, &gb, beta, &mut gc).unwrap();
                reference::spmm_t(alpha, a, b.as_ref(), beta, c.as_ref()).unwrap()
            } else {
                gpu.spmm(alpha, &ga, &gb, beta, &mut gc).unwrap();
                reference::spmm(alpha, a, b.as_ref(), beta, c.as_ref()).unwrap()
            };
            gc.download(c.as_mut()).unwrap();
            let d = want.deviation(c.as_ref()).unwrap();
            assert!(d.error <= 1.0, "{name}, {}, n = {n}, transposed {transposed}: {d:?}", D::DTYPE);
        }
    }
}

/// Rows that the first half of the rows of A have no nonzero for become infinite.
fn make_unused_rows_infinite<D: Portable>(a: &Csr<D::Sum>, m: &mut Mat<D>) {
    let used: HashSet<u32> = (0..a.rows() / 2).flat_map(|i| a.pattern().row(i)).copied().collect();
    for k in (0..a.cols()).filter(|&k| !used.contains(&(k as u32))) {
        m.as_mut().into_row(k).fill(D::narrow(D::Sum::from_f64(f64::INFINITY)));
    }
}

fn check_sddmm<D: Portable>(gpu: &Gpu, name: &str, a: &Csr<D::Sum>, n: usize) {
    let ga = gpu.csr(a).unwrap();
    let c: Mat<D> = uniform_dense(a.rows(), n, 3).unwrap();
    let mut b: Mat<D> = uniform_dense(a.cols(), n, 4).unwrap();
    make_unused_rows_infinite(a, &mut b);
    let (gc, gb) = (gpu.mat(c.as_ref()).unwrap(), gpu.mat(b.as_ref()).unwrap());
    let mut out = ga.new_values().unwrap();
    let mut got = vec![D::Sum::ZERO; a.nnz()];
    for scaled in [false, true] {
        if scaled {
            gpu.sddmm_scaled(&ga, &gc, &gb, &mut out).unwrap();
        } else {
            gpu.sddmm(&ga, &gc, &gb, &mut out).unwrap();
        }
        out.download(&mut got).unwrap();
        let want = reference::sddmm(a, scaled, c.as_ref(), b.as_ref()).unwrap();
        let d = want.deviation_of_values(&got).unwrap();
        assert!(d.error <= 1.0, "{name}, {}, n = {n}, scaled {scaled}: {d:?}", D::DTYPE);
    }
}

fn check_fusedmm<D: Portable>(gpu: &Gpu, name: &str, a: &Csr<D::Sum>, n: usize, out: usize) {
    let c: Mat<D> = uniform_dense(a.rows(), n, 3).unwrap();
    let b: Mat<D> = uniform_dense(a.cols(), n, 4).unwrap();
    let mut d: Mat<D> = uniform_dense(a.cols(), out, 5).unwrap();
    make_unused_rows_infinite(a, &mut d);
    let ga = gpu.csr(a).unwrap();
    let mut e: Mat<D> = Mat::zeros(a.rows(), out).unwrap();
    let [gc, gb, gd] = [&c, &b, &d].map(|m| gpu.mat(m.as_ref()).unwrap());
    let mut ge = gpu.zeros(a.rows(), out).unwrap();
    let scale = 1.0 / (n as f64).sqrt();
    let kinds = [
        (EdgeKind::Identity, reference::Edge::Identity),
        (EdgeKind::Scale, reference::Edge::Scale),
        (EdgeKind::Sigmoid, reference::Edge::Sigmoid),
        (
            EdgeKind::Softmax { scale: D::Sum::from_f64(scale) },
            reference::Edge::Softmax { scale: D::Sum::from_f64(scale).to_f64() },
        ),
    ];
    for (kind, edge) in kinds {
        gpu.fusedmm(&ga, kind, &gc, &gb, &gd, &mut ge).unwrap();
        ge.download(e.as_mut()).unwrap();
        let want = reference::fusedmm(a, edge, c.as_ref(), b.as_ref(), d.as_ref()).unwrap();
        let dev = want.deviation(e.as_ref()).unwrap();
        assert!(dev.error <= 1.0, "{name}, {}, n = {n} -> {out}, {kind:?}: {dev:?}", D::DTYPE);
    }
}

fn every_edge_case<T: DeviceScalar>() {
    let Some(gpu) = gpu() else { return };
    if T::DOUBLE && !gpu.info().float64 {
        common::skip::skip(
            common::skip::Missing::Other,
            format_args!("a device, {}, that has no 64-bit floats", gpu.info().name),
        );
        return;
    }
    for (name, a) in edge_matrices::<T>() {
        for &n in COLUMNS {
            check_spmm::<T>(&gpu, name, &a, n);
            check_sddmm::<T>(&gpu, name, &a, n);
            check_fusedmm::<T>(&gpu, name, &a, n, n);
        }
        for (n, out) in [(20, 33), (50, 9)] {
            check_fusedmm::<T>(&gpu, name, &a, n, out);
        }
    }
    quiet(&gpu);
}

#[test]
fn edge_cases_f32() {
    every_edge_case::<f32>();
}

#[test]
fn edge_cases_f64() {
    every_edge_case::<f64>();
}

#[test]
fn operands_cut_in_chunks_and_panels_give_the_same_bits() {
    let Some(whole) = gpu() else { return };
    // 32 KiB of a buffer at a time: panels of a few columns, chunks of some thousand nonzeros.
    let Some(cut) = limited(DeviceOptions { range_limit: Some(32 << 10), ..DeviceOptions::default() }) else { return };
    let a: Csr<f32> = random_matrix(300, 500, 0.8, 5).unwrap();
    let b: Mat<f32> = uniform_dense(500, 40, 6).unwrap();
    let run = |gpu: &Gpu| {
        let ga = gpu.csr(&a).unwrap();
        let gb = gpu.mat(b.as_ref()).unwrap();
        let mut gc = gpu.zeros(300, 40).unwrap();
        gpu.spmm(1.0, &ga, &gb, 0.0, &mut gc).unwrap();
        let mut c = Mat::zeros(300, 40).unwrap();
        gc.download(c.as_mut()).unwrap();
        ((0..300).map(|i| c.row(i).to_vec()).collect::<Vec<_>>(), ga.chunks(), gb.panels())
    };
    let (one, chunks, panels) = run(&whole);
    assert_eq!((chunks, panels), (1, 1));
    let (many, chunks, panels) = run(&cut);
    assert!(chunks > 1 && panels > 1, "{chunks} chunks, {panels} panels");
    assert_eq!(one, many);
    for (name, a) in edge_matrices::<f32>() {
        for n in [3, 40] {
            check_spmm::<f32>(&cut, name, &a, n);
            check_sddmm::<f32>(&cut, name, &a, n);
            check_fusedmm::<f32>(&cut, name, &a, n, n);
        }
    }
    quiet(&cut);
}

#[test]
fn wide_operands_take_the_unfused_way() {
    let Some(gpu) = gpu() else { return };
    for (name, a) in edge_matrices::<f32>() {
        check_fusedmm::<f32>(&gpu, name, &a, 600, 5);
    }
    quiet(&gpu);
}

#[test]
fn real_matrices() {
    let (Some(gpu), Some(dir)) = (gpu(), common::data_dir()) else { return };
    for file in common::matrix_files(&dir) {
        let a = read_matrix::<f32>(&file, ReadOptions::default())
            .unwrap()
            .into_csr_with(|nnz| uniform_values(nnz, 1))
            .unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        // The largest ones at one width: the reference is what takes the time.
        let widths: &[usize] = if a.nnz() > 300_000 { &[17] } else { &[1, 32, 100] };
        for &n in widths {
            check_spmm::<f32>(&gpu, &name, &a, n);
            check_sddmm::<f32>(&gpu, &name, &a, n);
            check_fusedmm::<f32>(&gpu, &name, &a, n, n);
        }
    }
    quiet(&gpu);
}

#[test]
fn repeated_runs_give_the_same_bits_and_values_can_be_exchanged() {
    // A device of its own, with a limit far below what the driver has: what is left then changes by this test's buffers alone.
    let Some(gpu) = limited(DeviceOptions { memory_limit: Some(64 << 20), ..DeviceOptions::default() }) else { return };
    let (_, a) = edge_matrices::<f32>().swap_remove(6);
    let c: Mat<f32> = uniform_dense(a.rows(), 48, 1).unwrap();
    let b: Mat<f32> = uniform_dense(a.cols(), 48, 2).unwrap();
    let (gc, gb) = (gpu.mat(c.as_ref()).unwrap(), gpu.mat(b.as_ref()).unwrap());
    let mut ga = gpu.csr(&a).unwrap();
    let mut out = ga.new_values().unwrap();
    let mut ge = gpu.zeros(a.rows(), 48).unwrap();
    let (mut first, mut second) = (Mat::zeros(a.rows(), 48).unwrap(), Mat::zeros(a.rows(), 48).unwrap());
    gpu.fusedmm(&ga, EdgeKind::Identity, &gc, &gb, &gb, &mut ge).unwrap();
    ge.download(first.as_mut()).unwrap();
    let left = gpu.memory_left();
    for _ in 0..3 {
        gpu.fusedmm(&ga, EdgeKind::Identity, &gc, &gb, &gb, &mut ge).unwrap();
        ge.download(second.as_mut()).unwrap();
        assert!((0..a.rows()).all(|i| first.row(i) == second.row(i)));
    }
    assert_eq!(gpu.memory_left(), left, "a repeated call allocated");
    // SDDMM's output as SpMM's input, and with A^T, is what FusedMM gives, without a copy.
    gpu.sddmm(&ga, &gc, &gb, &mut out).unwrap();
    ga.swap_values(&mut out).unwrap();
    gpu.spmm(1.0, &ga, &gb, 0.0, &mut ge).unwrap();
    ge.download(second.as_mut()).unwrap();
    let mut edges = vec![0.0; a.nnz()];
    gpu.sddmm(&ga, &gc, &gb, &mut out).unwrap();
    out.download(&mut edges).unwrap();
    let weighted = Csr::new(a.pattern().clone(), edges).unwrap();
    let want = reference::spmm(1.0, &weighted, b.as_ref(), 0.0, second.as_ref()).unwrap();
    assert!(want.deviation(second.as_ref()).unwrap().error <= 1.0);
    let mut gt = gpu.zeros(a.cols(), 48).unwrap();
    let mut t = Mat::zeros(a.cols(), 48).unwrap();
    gpu.spmm_t(1.0, &ga, &gc, 0.0, &mut gt).unwrap();
    gt.download(t.as_mut()).unwrap();
    let want = reference::spmm_t(1.0, &weighted, c.as_ref(), 0.0, t.as_ref()).unwrap();
    assert!(want.deviation(t.as_ref()).unwrap().error <= 1.0);
    ga.set_values(a.values()).unwrap();
    gpu.spmm_t(1.0, &ga, &gc, 0.0, &mut gt).unwrap();
    gt.download(t.as_mut()).unwrap();
    let want = reference::spmm_t(1.0, &a, c.as_ref(), 0.0, t.as_ref()).unwrap();
    assert!(want.deviation(t.as_ref()).unwrap().error <= 1.0);
    quiet(&gpu);
}

#[test]
fn infinities_and_nans_stay_in_their_places() {
    let Some(gpu) = gpu() else { return };
    let a: Csr<f32> = random_matrix(64, 64, 0.9, 9).unwrap();
    let mut b: Mat<f32> = uniform_dense(64, 6, 1).unwrap();
    // Row 0 is what padded indices read; row 9 is some row.
    b.as_mut().into_row(0).fill(f32::INFINITY);
    b.as_mut().into_row(9)[2] = f32::NAN;
    let c: Mat<f32> = uniform_dense(64, 6, 2).unwrap();
    let (ga, gb, gc) = (gpu.csr(&a).unwrap(), gpu.mat(b.as_ref()).unwrap(), gpu.mat(c.as_ref()).unwrap());
    let mut got = Mat::zeros(64, 6).unwrap();
    let mut out = gpu.zeros(64, 6).unwrap();
    gpu.spmm(1.0, &ga, &gb, 0.0, &mut out).unwrap();
    out.download(got.as_mut()).unwrap();
    let want = reference::spmm(1.0, &a, b.as_ref(), 0.0, got.as_ref()).unwrap();
    assert!(want.deviation(got.as_ref()).unwrap().error <= 1.0);
    // The result's padding took part in infinity times zero; it must not reach a dot product.
    let mut edges = ga.new_values().unwrap();
    let mut values = vec![0.0; a.nnz()];
    gpu.sddmm(&ga, &out, &gc, &mut edges).unwrap();
    edges.download(&mut values).unwrap();
    let want = reference::sddmm(&a, false, got.as_ref(), c.as_ref()).unwrap();
    assert!(want.deviation_of_values(&values).unwrap().error <= 1.0);
    for kind in [EdgeKind::Identity, EdgeKind::Softmax { scale: 0.5 }] {
        gpu.fusedmm(&ga, kind, &gc, &gc, &gb, &mut out).unwrap();
        out.download(got.as_mut()).unwrap();
        let edge = match kind {
            EdgeKind::Identity => reference::Edge::Identity,
            _ => reference::Edge::Softmax { scale: 0.5 },
        };
        let want = reference::fusedmm(&a, edge, c.as_ref(), c.as_ref(), b.as_ref()).unwrap();
        assert!(want.deviation(got.as_ref()).unwrap().error <= 1.0, "{kind:?}");
    }
    quiet(&gpu);
}

/// A softmax over a row longer than the loops of a driver that runs on the processor, where edge values are stored: it is refused there,
/// and never wrong.
#[test]
fn softmax_of_a_long_row() {
    let Some(gpu) = gpu() else { return };
    let (lanes, nonzeros) = (gpu.info().subgroup as usize, 90_000);
    // Wider than the registers of a team. More lanes take longer rows, of which B alone has hundreds of megabytes.
    let n = 16 * lanes + 4;
    let pattern = Pattern::new(1, nonzeros, vec![0, nonzeros], (0..nonzeros as u32).collect()).unwrap();
    let a = Csr::new(pattern, vec![1.0f32; nonzeros]).unwrap();
    let (c, b) = (Mat::zeros(1, n).unwrap(), Mat::from_fn(nonzeros, n, |_, j| j as f32).unwrap());
    let (ga, gc, gb) = (gpu.csr(&a).unwrap(), gpu.mat(c.as_ref()).unwrap(), gpu.mat(b.as_ref()).unwrap());
    let (mut e, mut got) = (gpu.zeros(1, n).unwrap(), Mat::zeros(1, n).unwrap());
    match gpu.fusedmm(&ga, EdgeKind::Softmax { scale: 0.5 }, &gc, &gb, &gb, &mut e) {
        Err(Error::Unavailable { .. }) => assert!(lanes == 4 && gpu.info().kind == Kind::Cpu),
        done => {
            done.unwrap();
            e.download(got.as_mut()).unwrap();
            // All weights are the same.
            let right = |(j, &e): (usize, &f32)| (e - j as f32).abs() <= 1e-3 * j as f32;
            assert!(got.row(0).iter().enumerate().all(right), "{:?}", got.row(0));
        }
    }
    quiet(&gpu);
}

#[test]
fn wrong_operands_are_errors() {
    let Some(gpu) = gpu() else { return };
    let Some(other) = limited(DeviceOptions { memory_limit: Some(1 << 20), ..DeviceOptions::default() }) else {
        return;
    };
    let a = gpu.csr(&random_matrix::<f32>(8, 9, 0.5, 1).unwrap()).unwrap();
    let b = gpu.zeros::<f32>(9, 4).unwrap();
    let mut c = gpu.zeros::<f32>(8, 4).unwrap();
    let mut wrong = gpu.zeros::<f32>(8, 5).unwrap();
    let foreign = other.zeros::<f32>(9, 4).unwrap();
    assert!(matches!(gpu.spmm(1.0, &a, &b, 0.0, &mut wrong), Err(Error::Shape { op: "spmm", .. })));
    assert!(matches!(gpu.spmm(1.0, &a, &wrong, 0.0, &mut c), Err(Error::Shape { op: "spmm", .. })));
    assert!(matches!(gpu.spmm(1.0, &a, &foreign, 0.0, &mut c), Err(Error::Shape { op: "spmm", .. })));
    assert!(matches!(gpu.zeros::<f32>(3, 0), Err(Error::Argument { .. })));
    assert!(matches!(other.zeros::<f32>(1 << 12, 1 << 12), Err(Error::Device { .. })), "over the memory limit");
    let narrow = limited(DeviceOptions { range_limit: Some(4096), ..DeviceOptions::default() }).unwrap();
    assert!(matches!(narrow.zeros::<f32>(1 << 12, 1), Err(Error::Device { .. })), "no panel holds a block of each row");
    let long = random_matrix::<f32>(1, 5000, 0.0, 1).unwrap();
    assert!(matches!(narrow.csr(&long), Err(Error::Device { .. })), "no chunk holds the row");
    gpu.spmm(1.0, &a, &b, 0.0, &mut c).unwrap();
    quiet(&gpu);
    quiet(&other);
}

#[test]
fn operands_larger_than_the_device_pass_through_it() {
    // 400 KiB of device memory; A, B and C are 3 MB together.
    let Some(gpu) = limited(DeviceOptions { memory_limit: Some(400 << 10), ..DeviceOptions::default() }) else {
        return;
    };
    let a: Csr<f32> = random_matrix(3000, 900, 0.95, 5).unwrap();
    let (b, c): (Mat<f32>, Mat<f32>) = (uniform_dense(900, 120, 1).unwrap(), uniform_dense(3000, 120, 2).unwrap());
    assert!(matches!(gpu.csr(&a), Err(Error::Device { .. })), "A alone is too large");
    let mut out = c.clone();
    gpu.spmm_streamed(1.5, &a, b.as_ref(), 0.5, out.as_mut()).unwrap();
    let want = reference::spmm(1.5, &a, b.as_ref(), 0.5, c.as_ref()).unwrap();
    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0);

    let (b, c): (Mat<f32>, Mat<f32>) = (uniform_dense(900, 20, 1).unwrap(), uniform_dense(3000, 20, 2).unwrap());
    let mut values = vec![f32::NAN; a.nnz()];
    gpu.sddmm_streamed(&a, c.as_ref(), b.as_ref(), &mut values).unwrap();
    let want = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap();
    assert!(want.deviation_of_values(&values).unwrap().error <= 1.0);

    // B is larger than what the device has: cut by rows, and every dot product has the bits that it has when all fits.
    let Some(whole) = self::gpu() else { return };
    let (b, c): (Mat<f32>, Mat<f32>) = (uniform_dense(900, 120, 1).unwrap(), uniform_dense(3000, 120, 2).unwrap());
    assert!(matches!(gpu.mat(b.as_ref()), Err(Error::Device { .. })), "B alone is too large");
    let on_device = (whole.csr(&a).unwrap(), whole.mat(c.as_ref()).unwrap(), whole.mat(b.as_ref()).unwrap());
    let mut kept = on_device.0.new_values().unwrap();
    let mut at_once = vec![f32::NAN; a.nnz()];
    whole.sddmm(&on_device.0, &on_device.1, &on_device.2, &mut kept).unwrap();
    kept.download(&mut at_once).unwrap();
    values.fill(f32::NAN);
    gpu.sddmm_streamed(&a, c.as_ref(), b.as_ref(), &mut values).unwrap();
    assert_eq!(values, at_once);
    gpu.sddmm_scaled_streamed(&a, c.as_ref(), b.as_ref(), &mut values).unwrap();
    let want = reference::sddmm(&a, true, c.as_ref(), b.as_ref()).unwrap();
    assert!(want.deviation_of_values(&values).unwrap().error <= 1.0);
    let mut e = Mat::zeros(3000, 120).unwrap();
    for (kind, edge) in [
        (EdgeKind::Scale, reference::Edge::Scale),
        (EdgeKind::Softmax { scale: 0.5 }, reference::Edge::Softmax { scale: 0.5 }),
    ] {
        gpu.fusedmm_streamed(&a, kind, c.as_ref(), b.as_ref(), b.as_ref(), e.as_mut()).unwrap();
        let want = reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
        assert!(want.deviation(e.as_ref()).unwrap().error <= 1.0, "{kind:?}");
    }

    let (b, c): (Mat<f32>, Mat<f32>) = (uniform_dense(900, 20, 1).unwrap(), uniform_dense(3000, 20, 2).unwrap());
    let mut e = Mat::zeros(3000, 20).unwrap();
    let softmax = EdgeKind::Softmax { scale: 0.5 };
    gpu.fusedmm_streamed(&a, softmax, c.as_ref(), b.as_ref(), b.as_ref(), e.as_mut()).unwrap();
    let want =
        reference::fusedmm(&a, reference::Edge::Softmax { scale: 0.5 }, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
    assert!(want.deviation(e.as_ref()).unwrap().error <= 1.0);
    quiet(&gpu);
}
