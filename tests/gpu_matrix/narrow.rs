//! Dense operands of bf16 and f16.

use sparsimd::gpu::{DeviceOptions, EdgeKind, Portable};
use sparsimd::{Csr, Mat, MatRef, Pattern, bf16, f16};

use super::{check_fusedmm, check_sddmm, check_spmm, edge_matrices, gpu, limited, quiet};

/// Sums are f32, and what is stored is rounded once: the reference's bound of the type.
fn every_edge_case<D: Portable<Sum = f32>>() {
    let Some(gpu) = gpu() else { return };
    for (name, a) in edge_matrices::<f32>() {
        for n in [1, 3, 17, 128, 257] {
            check_spmm::<D>(&gpu, name, &a, n);
            check_sddmm::<D>(&gpu, name, &a, n);
            check_fusedmm::<D>(&gpu, name, &a, n, n);
        }
        // Wide operands go in stages.
        check_fusedmm::<D>(&gpu, name, &a, 600, 5);
    }
    quiet(&gpu);
}

#[test]
fn edge_cases_bf16() {
    every_edge_case::<bf16>();
}

#[test]
fn edge_cases_f16() {
    every_edge_case::<f16>();
}

#[test]
fn narrow_operands_are_cut() {
    let Some(gpu) = limited(DeviceOptions { range_limit: Some(32 << 10), ..DeviceOptions::default() }) else { return };
    for (name, a) in edge_matrices::<f32>() {
        check_spmm::<bf16>(&gpu, name, &a, 41);
        check_sddmm::<f16>(&gpu, name, &a, 41);
        check_fusedmm::<bf16>(&gpu, name, &a, 41, 41);
    }
    quiet(&gpu);
}

/// All 65536 bit patterns, 255 to a row, by the identity: infinite and subnormal numbers stay what they are, NaNs stay NaNs. What is
/// subnormal in f32 may be computed with as zero, as Vulkan allows and NVIDIA's devices do.
fn every_number_passes<D: Portable<Sum = f32, Bits = u16>>() {
    const COLS: usize = 255;
    let Some(gpu) = gpu() else { return };
    let rows = (1usize << 16).div_ceil(COLS);
    let all = Mat::from_fn(rows, COLS, |i, j| D::from_bits((i * COLS + j) as u16)).unwrap();
    let pattern = Pattern::new(rows, rows, (0..=rows).collect(), (0..rows as u32).collect()).unwrap();
    let one = gpu.csr(&Csr::new(pattern, vec![1.0; rows]).unwrap()).unwrap();
    let gb = gpu.mat(all.as_ref()).unwrap();
    let same = |got: MatRef<'_, D>, computed: bool, what: &str| {
        for (i, j) in (0..rows).flat_map(|i| (0..COLS).map(move |j| (i, j))) {
            let (got, want) = (got.row(i)[j].widen(), all.row(i)[j].widen());
            let flushed = computed && want.is_subnormal() && got == 0.0;
            assert!(got == want || flushed || got.is_nan() && want.is_nan(), "{what}: {got}, not {want}");
        }
    };
    let mut got: Mat<D> = Mat::zeros(rows, COLS).unwrap();
    gb.download(got.as_mut()).unwrap();
    same(got.as_ref(), false, "copied");
    let mut gc = gpu.zeros(rows, COLS).unwrap();
    gpu.spmm(1.0, &one, &gb, 0.0, &mut gc).unwrap();
    gc.download(got.as_mut()).unwrap();
    same(got.as_ref(), true, "spmm");
    // The old C, alone.
    gpu.spmm(
        0.0,
        &gpu.csr(&Csr::new(one.pattern().clone(), vec![0.0; rows]).unwrap()).unwrap(),
        &gpu.zeros(rows, COLS).unwrap(),
        1.0,
        &mut gc,
    )
    .unwrap();
    gc.download(got.as_mut()).unwrap();
    same(got.as_ref(), true, "old C");
    quiet(&gpu);
}

#[test]
fn every_bf16_and_f16_passes() {
    every_number_passes::<bf16>();
    every_number_passes::<f16>();
}

#[test]
fn narrow_operands_pass_through_a_small_device() {
    let Some(gpu) = limited(DeviceOptions { memory_limit: Some(400 << 10), ..DeviceOptions::default() }) else {
        return;
    };
    let a: Csr<f32> = sparsimd::generate::random_matrix(3000, 900, 0.95, 5).unwrap();
    let dense = |rows, seed| sparsimd::generate::uniform_dense::<bf16>(rows, 120, seed).unwrap();
    let (b, c) = (dense(900, 1), dense(3000, 2));
    let mut out = c.clone();
    gpu.spmm_streamed(1.5, &a, b.as_ref(), 0.5, out.as_mut()).unwrap();
    let want = sparsimd::reference::spmm(1.5, &a, b.as_ref(), 0.5, c.as_ref()).unwrap();
    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0);
    gpu.fusedmm_streamed(&a, EdgeKind::Scale, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut()).unwrap();
    let edge = sparsimd::reference::Edge::Scale;
    let want = sparsimd::reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0);
    quiet(&gpu);
}
