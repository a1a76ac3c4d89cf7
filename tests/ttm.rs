//! TTM and TTV on every format against naive loops, at every instruction set and rank, sparse and semi-sparse.

mod common;

use sparsimd::formats::{Csf, FiberCoo, Fibers, HiCoo, SemiCoo};
use sparsimd::generate::TensorSpec;
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::ops::TtmAlgorithm;
use sparsimd::{Arch, CooTensor, Cpu, Error, Mat, Scalar, reference};

const RANKS: [usize; 9] = [1, 5, 8, 16, 31, 32, 33, 64, 150];
const ALGORITHMS: [TtmAlgorithm; 3] = [TtmAlgorithm::Auto, TtmAlgorithm::Fiber, TtmAlgorithm::Element];

fn cpu(arch: Arch) -> Cpu {
    Cpu::builder().threads(3).pin(false).arch(arch).build().unwrap()
}

fn matrix<T: Scalar>(rows: usize, cols: usize) -> Mat<T> {
    Mat::from_fn(rows, cols, |i, j| T::from_f64(((i * 37 + j * 11) % 101) as f64 / 50.0 - 1.0)).unwrap()
}

fn tensors<T: Scalar>() -> Vec<CooTensor<T>> {
    let specs = [
        "skew:70x600x5:3000",
        "skew:40x3x50x1x9:5000",
        "best-ttm:30x20x100:5000",
        "worst-ttm:100x90x64:3000",
        "skew:6x5x4x3x2x7:900",
        "skew:50:20",
        "skew:40x30:700",
    ];
    let mut all: Vec<_> = specs.iter().map(|s| s.parse::<TensorSpec>().unwrap().generate(3).unwrap()).collect();
    all.push(CooTensor::new(vec![4, 1, 3], vec![vec![]; 3], vec![]).unwrap());
    all
}

fn check_ttm<T: Scalar>(cpu: &Cpu, t: &CooTensor<T>, mode: usize, rank: usize) {
    let u = matrix::<T>(t.dims()[mode], rank);
    let fibers = FiberCoo::new(t.clone(), mode).unwrap();
    let expected = reference::ttm(t, mode, u.as_ref(), fibers.coords()).unwrap();
    let place = format!("{:?} mode {mode} rank {rank} {} {}", t.dims(), T::NAME, cpu.arch().name());
    for algorithm in ALGORITHMS {
        let y = cpu.ttm(&fibers, u.as_ref(), algorithm).unwrap();
        assert_eq!((y.dims()[mode], y.dense_modes()), (rank, &[mode][..]));
        let error = expected.deviation(y.values()).unwrap().error;
        assert!(error <= 1.0, "{place} {algorithm:?}: {error}");
    }
    if t.order() > 1 {
        let mut mode_order: Vec<usize> = (0..t.order()).rev().filter(|&m| m != mode).collect();
        mode_order.push(mode);
        let csf = Csf::from_coo(t, &mode_order).unwrap();
        let from_csf = FiberCoo::from_csf(&csf).unwrap();
        let expected = reference::ttm(t, mode, u.as_ref(), from_csf.coords()).unwrap();
        let mut y = Mat::zeros(from_csf.num_fibers(), rank).unwrap();
        cpu.ttm_into(Fibers::of_csf(&csf).unwrap(), u.as_ref(), TtmAlgorithm::Auto, y.as_mut()).unwrap();
        assert!(expected.deviation(y.as_ref()).unwrap().error <= 1.0, "{place} CSF");
    }
    let h = HiCoo::with_free_modes(t, 4, &[mode]).unwrap();
    let y = cpu.ttm_hicoo(&h, u.as_ref(), TtmAlgorithm::Auto).unwrap().to_semi_coo();
    let expected = reference::ttm(t, mode, u.as_ref(), y.all_coords()).unwrap();
    assert!(expected.deviation(y.values()).unwrap().error <= 1.0, "{place} gHiCOO");
}

#[test]
fn ttm_on_every_format_mode_rank_type_and_instruction_set() {
    for arch in Arch::available() {
        let cpu = cpu(arch);
        for (single, double) in tensors::<f32>().iter().zip(&tensors::<f64>()) {
            for mode in 0..single.order() {
                for rank in RANKS {
                    check_ttm(&cpu, single, mode, rank);
                    check_ttm(&cpu, double, mode, rank);
                }
            }
        }
    }
}

#[test]
fn results_larger_than_the_caches_are_right_too() {
    // 130 000 fibers x 40 columns (padded to 48) of 4 bytes: streaming stores, with a tail that is not streamed.
    let t: CooTensor<f32> = "skew:3000x4000x500:140000".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    for arch in Arch::available() {
        for rank in [32, 40] {
            let fibers = FiberCoo::new(t.clone(), 2).unwrap();
            let u = matrix::<f32>(500, rank);
            let expected = reference::ttm(&t, 2, u.as_ref(), fibers.coords()).unwrap();
            for algorithm in [TtmAlgorithm::Fiber, TtmAlgorithm::Element] {
                let y = cpu(arch).ttm(&fibers, u.as_ref(), algorithm).unwrap();
                assert!(expected.deviation(y.values()).unwrap().error <= 1.0, "{} {algorithm:?}", arch.name());
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_thread_count() {
    let t: CooTensor<f32> = "skew:300x400x50:50000".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    let fibers = FiberCoo::new(t, 0).unwrap();
    let u = matrix::<f32>(300, 37);
    let run = |threads| {
        let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
        let y = cpu.ttm(&fibers, u.as_ref(), TtmAlgorithm::Auto).unwrap();
        let v: Vec<f32> = (0..300).map(|i| i as f32 / 7.0).collect();
        (y.to_coo(), cpu.ttv(&fibers, &v).unwrap())
    };
    assert!(run(1) == run(4));
}

#[test]
fn ttv_on_every_format_and_mode() {
    fn check<T: Scalar>(cpu: &Cpu) {
        for t in tensors::<T>().iter().filter(|t| t.order() > 1) {
            for mode in 0..t.order() {
                let v: Vec<T> = (0..t.dims()[mode]).map(|i| T::from_f64((i % 17) as f64 / 4.0 - 2.0)).collect();
                let fibers = FiberCoo::new(t.clone(), mode).unwrap();
                let y = cpu.ttv(&fibers, &v).unwrap();
                let expected = reference::ttv(t, mode, &v, y.all_coords()).unwrap();
                let column = sparsimd::MatRef::new(y.values(), y.nnz(), 1, 1).unwrap();
                assert!(expected.deviation(column).unwrap().error <= 1.0, "{:?} mode {mode}", t.dims());
                assert_eq!(y.order() + 1, t.order());

                let y = cpu.ttv_hicoo(&HiCoo::with_free_modes(t, 3, &[mode]).unwrap(), &v).unwrap().to_coo();
                let expected = reference::ttv(t, mode, &v, y.all_coords()).unwrap();
                let column = sparsimd::MatRef::new(y.values(), y.nnz(), 1, 1).unwrap();
                assert!(expected.deviation(column).unwrap().error <= 1.0, "{:?} mode {mode} gHiCOO", t.dims());
            }
        }
    }
    check::<f32>(&cpu(Arch::detect()));
    check::<f64>(&cpu(Arch::detect()));
}

/// The tensor as a dense array, row-major.
fn dense<T: Scalar>(t: &CooTensor<T>) -> Vec<f64> {
    let mut out = vec![0.0; t.dims().iter().product()];
    for p in 0..t.nnz() {
        let at = (0..t.order()).fold(0, |at, m| at * t.dims()[m] + t.coords(m)[p] as usize);
        out[at] = t.values()[p].to_f64();
    }
    out
}

/// x x_n u for dense arrays.
fn dense_ttm<T: Scalar>(dims: &mut [usize], x: &[f64], mode: usize, u: &Mat<T>, magnitude: bool) -> Vec<f64> {
    let (n, r) = (dims[mode], u.cols());
    let inner: usize = dims[mode + 1..].iter().product();
    let outer: usize = dims[..mode].iter().product();
    let mut y = vec![0.0; outer * r * inner];
    for (o, i, k, c) in (0..outer * inner * n * r).map(|p| (p / (inner * n * r), p / (n * r) % inner, p / r % n, p % r))
    {
        let product = x[(o * n + k) * inner + i] * u.row(k)[c].to_f64();
        y[(o * r + c) * inner + i] += if magnitude { product.abs() } else { product };
    }
    dims[mode] = r;
    y
}

#[test]
fn semi_sparse_chains_in_any_order_of_modes() {
    fn check<T: Scalar>(arch: Arch) {
        let cpu = cpu(arch);
        for text in ["skew:7x60x5:300", "skew:6x5x4x3:150", "skew:20x9:50", "skew:11:6"] {
            let t: CooTensor<T> = text.parse::<TensorSpec>().unwrap().generate(2).unwrap();
            for ranks in [[3, 4, 2, 5], [16, 17, 1, 2], [33, 2, 20, 1]] {
                for first in 0..t.order() {
                    let mut dims = t.dims().to_vec();
                    let mut exact = dense(&t);
                    let mut bound: Vec<f64> = exact.iter().map(|x| x.abs()).collect();
                    let mut y: Option<SemiCoo<T>> = None;
                    let mut terms = 0;
                    for step in 0..t.order() + 1 {
                        // One mode twice: once sparse, once dense.
                        let mode = (first + step) % t.order();
                        let u = matrix::<T>(dims[mode], ranks[step % 4]);
                        terms += dims[mode] + 3;
                        y = Some(match y {
                            None => cpu
                                .ttm(&FiberCoo::new(t.clone(), mode).unwrap(), u.as_ref(), TtmAlgorithm::Auto)
                                .unwrap(),
                            Some(y) => cpu.ttm_semi(&y, mode, u.as_ref()).unwrap(),
                        });
                        let mut same = dims.clone();
                        exact = dense_ttm(&mut dims, &exact, mode, &u, false);
                        bound = dense_ttm(&mut same, &bound, mode, &u, true);
                        let y = y.as_ref().unwrap();
                        assert_eq!(y.dims(), dims);
                        let eps = T::EPSILON.to_f64();
                        for (got, (value, magnitude)) in dense(&y.to_coo()).iter().zip(exact.iter().zip(&bound)) {
                            let most = terms as f64 * eps * magnitude;
                            assert!((got - value).abs() <= most, "{text} {ranks:?} from {first}, step {step}");
                        }
                    }
                }
            }
        }
    }
    for arch in Arch::available() {
        check::<f32>(arch);
        check::<f64>(arch);
    }
}

#[test]
fn bad_shapes_are_refused() {
    let cpu = cpu(Arch::detect());
    let t = &tensors::<f32>()[0];
    let fibers = FiberCoo::new(t.clone(), 1).unwrap();
    let u = matrix::<f32>(600, 4);
    assert!(matches!(cpu.ttm(&fibers, matrix(599, 4).as_ref(), Default::default()), Err(Error::Shape { .. })));
    assert!(cpu.ttm(&fibers, matrix(600, 0).as_ref(), Default::default()).is_err());
    let mut y = Mat::zeros(fibers.num_fibers() + 1, 4).unwrap();
    assert!(cpu.ttm_into(&fibers, u.as_ref(), Default::default(), y.as_mut()).is_err());
    assert!(cpu.ttv(&fibers, &[1.0; 599]).is_err());
    assert!(cpu.ttv_into(&fibers, &[1.0; 600], &mut [0.0; 3]).is_err());
    assert!(matches!(FiberCoo::new(t.clone(), 3), Err(Error::Argument { name: "mode", .. })));
    let semi = cpu.ttm(&fibers, u.as_ref(), Default::default()).unwrap();
    assert!(cpu.ttm_semi(&semi, 3, u.as_ref()).is_err());
    assert!(cpu.ttm_semi(&semi, 0, u.as_ref()).is_err());
    assert!(cpu.ttm_hicoo(&HiCoo::new(t, 3).unwrap(), u.as_ref(), Default::default()).is_err());
    assert!(cpu.ttm_hicoo(&HiCoo::with_free_modes(t, 3, &[0, 1]).unwrap(), u.as_ref(), Default::default()).is_err());
    let line = CooTensor::new(vec![3], vec![vec![1]], vec![2.0f32]).unwrap();
    assert!(cpu.ttv(&FiberCoo::new(line, 0).unwrap(), &[1.0; 3]).is_err());
    let twice = CooTensor::new(vec![3, 3], vec![vec![1, 1], vec![2, 2]], vec![2.0f32; 2]).unwrap();
    assert!(matches!(FiberCoo::new(twice, 0), Err(Error::Structure { .. })));
}

#[test]
fn real_tensors() {
    let Some(dir) = common::data_dir() else { return };
    let cpu = cpu(Arch::detect());
    for path in common::tensor_files(&dir) {
        let t: CooTensor<f32> = read_tensor(&path, false, Duplicates::Refuse, ReadOptions::default()).unwrap();
        // The largest one in its shortest mode only: the reference is slow.
        for mode in (0..t.order()).take(if t.nnz() > 500_000 { 1 } else { t.order() }) {
            let u = matrix::<f32>(t.dims()[mode], 17);
            let fibers = FiberCoo::new(t.clone(), mode).unwrap();
            let y = cpu.ttm(&fibers, u.as_ref(), TtmAlgorithm::Auto).unwrap();
            let expected = reference::ttm(&t, mode, u.as_ref(), fibers.coords()).unwrap();
            let error = expected.deviation(y.values()).unwrap().error;
            assert!(error <= 1.0, "{} mode {mode}: {error}", path.display());
        }
    }
}
