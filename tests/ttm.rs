//! TTM and TTV on every format against naive loops, at every instruction set and rank, sparse and semi-sparse.

mod common;

use sparsimd::formats::{Csf, FiberCoo, Fibers, HiCoo, SemiCoo};
use sparsimd::generate::TensorSpec;
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::ops::TtmAlgorithm;
use sparsimd::reference::Expected;
use sparsimd::{Arch, CooTensor, Cpu, Error, Machine, Mat, MatRef, Number, Scalar, Stored, bf16, f16, reference};

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

/// TTM in `mode` on every format, by every algorithm, at every one of `ranks`.
fn check_ttm<T: Scalar>(cpu: &Cpu, name: &str, t: &CooTensor<T>, mode: usize, ranks: &[usize]) {
    let widest = *ranks.iter().max().unwrap();
    let wide = matrix::<T>(t.dims()[mode], widest);
    let reference = |places: &[Vec<u32>]| cpu.install(|| reference::ttm(t, mode, wide.as_ref(), places)).unwrap();
    let check = |expected: &Expected, y: MatRef<'_, T>, what: &str| {
        let error = cpu.install(|| expected.first_columns(y.cols()).unwrap().deviation(y)).unwrap().error;
        let (rank, arch) = (y.cols(), cpu.arch().name());
        assert!(error <= 1.0, "{name} mode {mode} rank {rank} {} {arch} {what}: {error}", T::NAME);
    };
    let fibers = FiberCoo::new(t.clone(), mode).unwrap();
    let expected = reference(fibers.coords());
    for &rank in ranks {
        let u = matrix::<T>(t.dims()[mode], rank);
        for algorithm in ALGORITHMS {
            let y = cpu.ttm(&fibers, u.as_ref(), algorithm).unwrap();
            assert_eq!((y.dims()[mode], y.dense_modes()), (rank, &[mode][..]));
            check(&expected, y.values(), &format!("{algorithm:?}"));
        }
    }
    if t.order() > 1 {
        let mut mode_order: Vec<usize> = (0..t.order()).rev().filter(|&m| m != mode).collect();
        mode_order.push(mode);
        let csf = Csf::from_coo(t, &mode_order).unwrap();
        let from_csf = FiberCoo::from_csf(&csf).unwrap();
        let expected = reference(from_csf.coords());
        for &rank in ranks {
            let mut y = Mat::zeros(from_csf.num_fibers(), rank).unwrap();
            let u = matrix::<T>(t.dims()[mode], rank);
            cpu.ttm_into(Fibers::of_csf(&csf).unwrap(), u.as_ref(), TtmAlgorithm::Auto, y.as_mut()).unwrap();
            check(&expected, y.as_ref(), "CSF");
        }
    }
    let h = HiCoo::with_free_modes(t, 4, &[mode]).unwrap();
    let places = h.fiber_pattern().unwrap();
    let places: Vec<Vec<u32>> = (0..places.modes().len()).map(|level| places.expand(level)).collect();
    let expected = reference(&places);
    for &rank in ranks {
        let u = matrix::<T>(t.dims()[mode], rank);
        let y = cpu.ttm_hicoo(&h, u.as_ref(), TtmAlgorithm::Auto).unwrap().to_semi_coo();
        assert_eq!(y.all_coords(), places);
        check(&expected, y.values(), "gHiCOO");
    }
}

/// TTM of narrow operands on `cpu`, against the naive loop on what they store, rounded once.
fn check_narrow<D: Stored<Scalar = f32>>(cpu: &Cpu, t: &CooTensor<f32>, mode: usize, rank: usize) {
    let fibers = FiberCoo::new(t.clone(), mode).unwrap();
    let number = |i: usize, j: usize| ((i * 37 + j * 11) % 101) as f32 / 50.0 - 1.0;
    let u = Mat::from_fn(t.dims()[mode], rank, |i, j| D::narrow(number(i, j))).unwrap();
    let expected = cpu.install(|| reference::ttm(t, mode, u.as_ref(), fibers.coords())).unwrap();
    for algorithm in ALGORITHMS {
        let mut y = Mat::from_fn(fibers.num_fibers(), rank, |_, _| D::narrow(f32::from_f64(f64::NAN))).unwrap();
        cpu.ttm_into(&fibers, u.as_ref(), algorithm, y.as_mut()).unwrap();
        let error = cpu.install(|| expected.deviation(y.as_ref())).unwrap().error;
        let (dims, arch) = (t.dims(), cpu.arch().name());
        assert!(error <= 1.0, "{dims:?} mode {mode} rank {rank} {} {arch} {algorithm:?}: {error}", D::DTYPE);
    }
}

#[test]
fn narrow_operands_in_every_mode_rank_and_instruction_set() {
    // Two caches: with the small one every result is stored past it.
    let small = Machine::describe("l3:1(size=64KB) core:4").unwrap();
    for arch in Arch::available() {
        let streaming = Cpu::builder().machine(small.clone()).threads(3).pin(false).arch(arch).build().unwrap();
        for cpu in [cpu(arch), streaming] {
            for t in tensors::<f32>() {
                for mode in 0..t.order() {
                    for rank in [1, 16, 33, 64, 150] {
                        check_narrow::<bf16>(&cpu, &t, mode, rank);
                    }
                    for rank in [5, 32] {
                        check_narrow::<f16>(&cpu, &t, mode, rank);
                    }
                }
            }
        }
    }
}

#[test]
fn bf16_results_round_as_numbers_do() {
    // The products are the numbers themselves: ties, NaN, infinity, the largest and the least, in every lane of two registers.
    let tie = |n: f32| 1.0 + n / 256.0;
    let numbers = [tie(1.0), tie(3.0), f32::NAN, f32::INFINITY, -f32::MAX, f32::MIN_POSITIVE, -1.5e-45, -0.0];
    for arch in Arch::available() {
        let cpu = cpu(arch);
        for (at, &x) in numbers.iter().enumerate() {
            let t = CooTensor::new(vec![1, 1], vec![vec![0], vec![0]], vec![x]).unwrap();
            let u = Mat::from_fn(1, 64, |_, j| bf16::from_f32([1.0, -1.0][(j + at) % 2])).unwrap();
            let mut y = Mat::<bf16>::zeros(1, 64).unwrap();
            cpu.ttm_into(&FiberCoo::new(t, 1).unwrap(), u.as_ref(), TtmAlgorithm::Fiber, y.as_mut()).unwrap();
            for (j, got) in y.row(0).iter().enumerate() {
                let wanted = bf16::from_f32(x * u.row(0)[j].to_f32() + 0.0);
                let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
                assert!(same, "{x} in column {j}, {}: {got}", arch.name());
            }
        }
    }
}

#[test]
fn few_fibers_are_computed_by_elements() {
    let cpu = cpu(Arch::available()[0]);
    let lanes = cpu.arch().lanes::<f32>();
    let of = |fibers, cols, asked| cpu.ttm_algorithm::<f32>(fibers, cols, asked);
    assert_eq!(of(11, lanes + 1, TtmAlgorithm::Auto), TtmAlgorithm::Element);
    assert_eq!(of(12, lanes + 1, TtmAlgorithm::Auto), TtmAlgorithm::Fiber);
    assert_eq!(of(1, lanes, TtmAlgorithm::Auto), TtmAlgorithm::Fiber);
    assert_eq!(of(1, lanes + 1, TtmAlgorithm::Fiber), TtmAlgorithm::Fiber);
    assert_eq!(of(100, 1, TtmAlgorithm::Element), TtmAlgorithm::Element);
}

#[test]
fn ttm_on_every_format_mode_rank_type_and_instruction_set() {
    for arch in Arch::available() {
        let cpu = cpu(arch);
        for (single, double) in tensors::<f32>().iter().zip(&tensors::<f64>()) {
            let name = format!("{:?}", single.dims());
            for mode in 0..single.order() {
                check_ttm(&cpu, &name, single, mode, &RANKS);
                check_ttm(&cpu, &name, double, mode, &RANKS);
            }
        }
    }
}

#[test]
fn results_larger_than_the_caches_are_right_too() {
    // Thousands of fibers x 40 columns (padded to 48) of 4 bytes: streaming stores, with a tail that is not streamed.
    let t: CooTensor<f32> = "skew:300x400x50:14000".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    let machine = Machine::describe("l3:1(size=64KB) core:4").unwrap();
    for arch in Arch::available() {
        for rank in [32, 40] {
            let fibers = FiberCoo::new(t.clone(), 2).unwrap();
            let u = matrix::<f32>(50, rank);
            assert!(fibers.num_fibers() * rank * 4 > machine.l3_bytes());
            let cpu = Cpu::builder().machine(machine.clone()).threads(3).pin(false).arch(arch).build().unwrap();
            let expected = reference::ttm(&t, 2, u.as_ref(), fibers.coords()).unwrap();
            for algorithm in [TtmAlgorithm::Fiber, TtmAlgorithm::Element] {
                let y = cpu.ttm(&fibers, u.as_ref(), algorithm).unwrap();
                assert!(expected.deviation(y.values()).unwrap().error <= 1.0, "{} {algorithm:?}", arch.name());
            }
        }
    }
}

#[test]
fn the_same_bits_on_every_thread_count() {
    let skewed: CooTensor<f32> = "skew:300x400x50:50000".parse::<TensorSpec>().unwrap().generate(1).unwrap();
    for (t, mode) in [(skewed, 0), (long_fiber(), 1)] {
        let dim = t.dims()[mode];
        let fibers = FiberCoo::new(t, mode).unwrap();
        let u = matrix::<f32>(dim, 37);
        let run = |threads| {
            let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
            let y = cpu.ttm(&fibers, u.as_ref(), TtmAlgorithm::Auto).unwrap();
            let v: Vec<f32> = (0..dim).map(|i| i as f32 / 7.0).collect();
            (y.to_coo(), cpu.ttv(&fibers, &v).unwrap())
        };
        assert!(run(1) == run(4));
    }
}

/// A fiber of 150,000 nonzeros and 300 short ones.
fn long_fiber<T: Scalar>() -> CooTensor<T> {
    let place = |p: usize| if p < 150_000 { [3, p, 1] } else { [p % 30, p * 7 % 200_000, 2 + p % 10] };
    let coords = (0..3).map(|mode| (0..150_300).map(|p| place(p)[mode] as u32).collect()).collect();
    CooTensor::new(vec![30, 200_000, 12], coords, (0..150_300).map(|p| T::from_f64((p % 13) as f64 - 6.0)).collect())
        .unwrap()
}

#[test]
fn threads_share_a_long_fiber() {
    for arch in Arch::available() {
        check_ttm(&cpu(arch), "a long fiber", &long_fiber::<f32>(), 1, &[1, 5, 33]);
        check_ttm(&cpu(arch), "a long fiber", &long_fiber::<f64>(), 1, &[1, 16]);
        check_ttv(&cpu(arch), "a long fiber", &long_fiber::<f32>(), 1);
        check_ttv(&cpu(arch), "a long fiber", &long_fiber::<f64>(), 1);
        check_narrow::<bf16>(&cpu(arch), &long_fiber(), 1, 33);
    }
}

/// TTV in `mode` on every format.
fn check_ttv<T: Scalar>(cpu: &Cpu, name: &str, t: &CooTensor<T>, mode: usize) {
    let v: Vec<T> = (0..t.dims()[mode]).map(|i| T::from_f64((i % 17) as f64 / 4.0 - 2.0)).collect();
    let check = |values: &[T], places: &[Vec<u32>], what: &str| {
        let expected = cpu.install(|| reference::ttv(t, mode, &v, places)).unwrap();
        let error = expected.deviation(MatRef::new(values, values.len(), 1, 1).unwrap()).unwrap().error;
        assert!(error <= 1.0, "{name} mode {mode} {} {what}: {error}", T::NAME);
    };
    let y = cpu.ttv(&FiberCoo::new(t.clone(), mode).unwrap(), &v).unwrap();
    assert_eq!(y.order() + 1, t.order());
    check(y.values(), y.all_coords(), "COO");
    let y = cpu.ttv_hicoo(&HiCoo::with_free_modes(t, 3, &[mode]).unwrap(), &v).unwrap().to_coo();
    check(y.values(), y.all_coords(), "gHiCOO");
    let mut mode_order: Vec<usize> = (0..t.order()).filter(|&m| m != mode).collect();
    mode_order.push(mode);
    let csf = Csf::from_coo(t, &mode_order).unwrap();
    let fibers = Fibers::of_csf(&csf).unwrap();
    let mut y = vec![T::ZERO; fibers.len()];
    cpu.ttv_into(fibers, &v, &mut y).unwrap();
    check(&y, FiberCoo::from_csf(&csf).unwrap().coords(), "CSF");
}

#[test]
fn ttv_on_every_format_and_mode() {
    let cpu = cpu(Arch::detect());
    for (single, double) in tensors::<f32>().iter().zip(&tensors::<f64>()).filter(|(t, _)| t.order() > 1) {
        for mode in 0..single.order() {
            check_ttv(&cpu, &format!("{:?}", single.dims()), single, mode);
            check_ttv(&cpu, &format!("{:?}", single.dims()), double, mode);
        }
    }
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

fn check_real_tensors<T: Scalar>() {
    let Some(dir) = common::data_dir() else { return };
    let cpu = cpu(Arch::detect());
    for path in common::tensor_files(&dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let t: CooTensor<T> = read_tensor(&path, false, Duplicates::Sum, ReadOptions::default()).unwrap();
        for mode in 0..t.order() {
            check_ttm(&cpu, &name, &t, mode, common::real_ranks(t.nnz()));
            check_ttv(&cpu, &name, &t, mode);
        }
    }
}

#[test]
fn every_format_mode_and_rank_on_real_tensors_f32() {
    check_real_tensors::<f32>();
}

#[test]
fn every_format_mode_and_rank_on_real_tensors_f64() {
    check_real_tensors::<f64>();
}
