//! MTTKRP, TTM, TTV, TEW and TS on a Vulkan device against naive loops, with the validation layer on. Without a device every
//! test reports so and passes.
use std::ops::ControlFlow;

use sparsimd::decomp::{CpOptions, CpState};
use sparsimd::formats::{Csf, CsfKind, CsfSet, DEFAULT_BLOCK_BITS, FiberCoo, HiCoo};
use sparsimd::generate::{uniform_dense, uniform_values};
use sparsimd::gpu::{DeviceOptions, DeviceScalar, Gpu, GpuTensor, Kind};
use sparsimd::io::{Duplicates, read_tensor};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Cpu, Error, Mat, MatRef, reference};

mod common;

use common::device::{gpu, limited};

/// `count` places at pseudo-random coordinates that crowd at small ones, without duplicates.
fn tensor<T: DeviceScalar>(dims: &[usize], count: usize) -> CooTensor<T> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1u64 << 24) as f64
    };
    let coords = dims.iter().map(|&d| (0..count).map(|_| (next().powi(3) * d as f64) as u32).collect());
    let mut made = CooTensor::new(dims.to_vec(), coords.collect(), uniform_values(count, 5)).unwrap();
    made.sum_duplicates().unwrap();
    made
}

fn tensors<T: DeviceScalar>() -> Vec<CooTensor<T>> {
    // Slices and fibers long enough to be cut, empty slices, order 2 to 5, a single nonzero, none.
    let long = CooTensor::new(
        vec![3, 2, 1000],
        vec![vec![1; 1000], vec![0; 1000], (0..1000).collect()],
        uniform_values(1000, 8),
    );
    let none = CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]);
    let one = CooTensor::new(vec![4, 1, 6], vec![vec![3], vec![0], vec![5]], uniform_values(1, 9));
    vec![
        tensor(&[30, 20], 200),
        tensor(&[40, 7, 90], 6000),
        tensor(&[5, 300, 11], 3000),
        tensor(&[12, 13, 14, 15], 4000),
        tensor(&[6, 5, 7, 4, 9], 2000),
        long.unwrap(),
        one.unwrap(),
        none.unwrap(),
    ]
}

/// The largest error of an MTTKRP in units of (n + order + 3) eps sum |x| |..|, n the nonzeros of the slice.
fn mttkrp_error<T: DeviceScalar>(x: &CooTensor<T>, factors: &[Mat<T>], mode: usize, got: &Mat<T>) -> f64 {
    let rank = got.cols();
    let mut sums = vec![(0.0, 0.0); got.rows() * rank];
    let mut counts = vec![0; got.rows()];
    for p in 0..x.nnz() {
        let i = x.coords(mode)[p] as usize;
        counts[i] += 1;
        for r in 0..rank {
            let others = (0..x.order()).filter(|&m| m != mode);
            let product: f64 = others.map(|m| factors[m].row(x.coords(m)[p] as usize)[r].to_f64()).product();
            let term = x.values()[p].to_f64() * product;
            sums[i * rank + r].0 += term;
            sums[i * rank + r].1 += term.abs();
        }
    }
    let mut worst: f64 = 0.0;
    for i in 0..got.rows() {
        for (r, value) in got.row(i).iter().enumerate() {
            let (sum, magnitude) = sums[i * rank + r];
            let bound = (counts[i] + x.order() + 3) as f64 * T::EPSILON.to_f64() * magnitude + f64::MIN_POSITIVE;
            worst = worst.max((value.to_f64() - sum).abs() / bound);
        }
    }
    worst
}

fn check_mttkrp<T: DeviceScalar>(gpu: &Gpu, ranks: &[usize]) {
    for x in tensors::<T>() {
        let one = CsfSet::from_coo(&x, CsfKind::One).unwrap();
        let all = CsfSet::from_coo(&x, CsfKind::All).unwrap();
        // Two trees with half of the nonzeros each, in different orders, as MM-CSF has them.
        let half = |odd: usize, modes: &[usize]| {
            let keep: Vec<usize> = (0..x.nnz()).filter(|p| p % 2 == odd).collect();
            let coords = (0..x.order()).map(|m| keep.iter().map(|&p| x.coords(m)[p]).collect()).collect();
            let values = keep.iter().map(|&p| x.values()[p]).collect();
            Csf::from_coo(&CooTensor::new(x.dims().to_vec(), coords, values).unwrap(), modes).unwrap()
        };
        let forward: Vec<usize> = (0..x.order()).collect();
        let backward: Vec<usize> = forward.iter().rev().copied().collect();
        let by_elements = gpu.prepare_mttkrp(&x, None, Some(MttkrpAlgorithm::Element)).unwrap();
        let formats: [(&str, GpuTensor<T>); 5] = [
            ("coo", gpu.tensor(&x).unwrap()),
            ("csf-one", gpu.tensor_of_parts(one.trees()).unwrap()),
            ("csf-all", gpu.tensor_of_all(all.trees()).unwrap()),
            ("elements", by_elements),
            ("mixed", gpu.tensor_of_parts(&[half(0, &forward), half(1, &backward)]).unwrap()),
        ];
        for (name, tensor) in &formats {
            check_format(gpu, name, &x, tensor, ranks);
        }
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

/// A tensor in device memory against naive loops, in every mode.
fn check_format<T: DeviceScalar>(gpu: &Gpu, name: &str, x: &CooTensor<T>, tensor: &GpuTensor<T>, ranks: &[usize]) {
    for &rank in ranks {
        let factors: Vec<Mat<T>> =
            x.dims().iter().enumerate().map(|(m, &d)| uniform_dense(d, rank, m as u64).unwrap()).collect();
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let on_device = gpu.factors(&views).unwrap();
        for mode in 0..x.order() {
            let mut out = gpu.zeros(x.dims()[mode], rank).unwrap();
            let mut got = Mat::zeros(x.dims()[mode], rank).unwrap();
            gpu.mttkrp(tensor, &on_device, mode, &mut out).unwrap();
            out.download(got.as_mut()).unwrap();
            let error = mttkrp_error(x, &factors, mode, &got);
            assert!(error <= 1.0, "{name}, {:?}, mode {mode}, rank {rank}, {}: {error}", x.dims(), T::NAME);
            // The same bits again, in the same memory.
            let mut again = Mat::zeros(x.dims()[mode], rank).unwrap();
            gpu.mttkrp(tensor, &on_device, mode, &mut out).unwrap();
            out.download(again.as_mut()).unwrap();
            assert!((0..got.rows()).all(|i| got.row(i) == again.row(i)));
        }
    }
}

#[test]
fn mttkrp_f32() {
    let Some(gpu) = gpu() else { return };
    check_mttkrp::<f32>(&gpu, &[1, 5, 16, 33, 64]);
}

#[test]
fn mttkrp_f64() {
    let Some(gpu) = gpu() else { return };
    if gpu.info().float64 {
        check_mttkrp::<f64>(&gpu, &[8, 32]);
    }
}

#[test]
fn ttm_of_operands_that_are_cut() {
    // 40 KiB of a buffer at a time: chunks of fibers, panels of a few columns.
    let Some(gpu) = limited(DeviceOptions { range_limit: Some(40 << 10), ..DeviceOptions::default() }) else { return };
    for mode in 0..3 {
        check_fibers(&gpu, "cut", &tensor(&[30, 20, 40], 12_000), mode, &[50]);
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

#[test]
fn mttkrp_of_operands_that_are_cut() {
    let Some(gpu) = limited(DeviceOptions { range_limit: Some(40 << 10), ..DeviceOptions::default() }) else { return };
    // 40 KiB of a buffer at a time: trees of at most 1700 coordinates' quarter, factor panels of a few columns.
    for x in tensors::<f32>().iter().filter(|x| x.nnz() > 0) {
        let tensor = gpu.tensor(x).unwrap();
        let factors: Vec<Mat<f32>> = x.dims().iter().map(|&d| uniform_dense(d, 48, d as u64).unwrap()).collect();
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let on_device = gpu.factors(&views).unwrap();
        for mode in 0..x.order() {
            let mut out = gpu.zeros(x.dims()[mode], 48).unwrap();
            let mut got = Mat::zeros(x.dims()[mode], 48).unwrap();
            gpu.mttkrp(&tensor, &on_device, mode, &mut out).unwrap();
            out.download(got.as_mut()).unwrap();
            let error = mttkrp_error(x, &factors, mode, &got);
            assert!(error <= 1.0, "{:?}, mode {mode}: {error}", x.dims());
        }
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

fn check_blocks<T: DeviceScalar>(gpu: &Gpu) {
    // Blocks and their places in a mode beyond what one task takes, lengths that no block divides, one block, none.
    let large = [tensor(&[300, 200, 150], 30_000), tensor(&[1000, 130], 9000), tensor(&[40, 300, 20, 129], 9000)];
    for x in large.into_iter().chain(tensors::<T>()) {
        let blocks = HiCoo::new(&x, DEFAULT_BLOCK_BITS).unwrap();
        if x.order() > 4 {
            assert!(matches!(gpu.tensor_of_blocks(&blocks), Err(Error::Unavailable { .. })));
            continue;
        }
        let on_device = gpu.tensor_of_blocks(&blocks).unwrap();
        assert_eq!(on_device.nnz(), x.nnz());
        check_format(gpu, "hicoo", &x, &on_device, &[1, 5, 33]);
    }
    let line = CooTensor::new(vec![9], vec![vec![1]], vec![T::ONE]).unwrap();
    let refused = |bits, x: &CooTensor<T>| gpu.tensor_of_blocks(&HiCoo::new(x, bits).unwrap()).err().unwrap();
    assert!(matches!(refused(DEFAULT_BLOCK_BITS, &line), Error::Structure { .. }));
    assert!(matches!(refused(3, &tensor(&[4, 5, 6], 30)), Error::Unavailable { .. }));
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

#[test]
fn mttkrp_by_blocks() {
    let Some(gpu) = gpu() else { return };
    check_blocks::<f32>(&gpu);
    if gpu.info().float64 {
        check_blocks::<f64>(&gpu);
    }
}

#[test]
fn mttkrp_by_atomic_additions() {
    // A second device, on which tensor and factors are cut.
    for gpu in [gpu(), limited(DeviceOptions { range_limit: Some(40 << 10), ..DeviceOptions::default() })] {
        let Some(gpu) = gpu else { return };
        if !gpu.info().atomic_add_f32 {
            common::skip::skip(
                common::skip::Missing::Other,
                format_args!("a device, {}, that has no atomic addition of floats", gpu.info().name),
            );
            return;
        }
        for x in tensors::<f32>() {
            let tensor = gpu.tensor_atomic(&x).unwrap();
            for rank in [1, 5, 32, 50] {
                let factors: Vec<Mat<f32>> =
                    x.dims().iter().enumerate().map(|(m, &d)| uniform_dense(d, rank, m as u64).unwrap()).collect();
                let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
                let on_device = gpu.factors(&views).unwrap();
                for mode in 0..x.order() {
                    assert_eq!(tensor.algorithm(mode), Some(MttkrpAlgorithm::Atomic));
                    let mut out = gpu.zeros(x.dims()[mode], rank).unwrap();
                    let mut got = Mat::zeros(x.dims()[mode], rank).unwrap();
                    // Twice in the same memory: the second call must not add to the first one's sums.
                    for _ in 0..2 {
                        gpu.mttkrp(&tensor, &on_device, mode, &mut out).unwrap();
                    }
                    out.download(got.as_mut()).unwrap();
                    let error = mttkrp_error(&x, &factors, mode, &got);
                    assert!(error <= 1.0, "{:?}, mode {mode}, rank {rank}: {error}", x.dims());
                }
            }
        }
        let double = tensor::<f64>(&[4, 5, 6], 30);
        assert!(matches!(gpu.tensor_atomic(&double), Err(Error::Unavailable { .. })));
        assert_eq!(gpu.validation_messages(), Vec::<String>::new());
    }
}

fn check_cp<T: DeviceScalar>(gpu: &Gpu, tolerance: f64) {
    let cpu = Cpu::builder().threads(2).build().unwrap();
    for dims in [&[20, 15, 12][..], &[9, 8, 7, 6]] {
        let x = tensor::<T>(dims, 1500);
        for nonnegative in [false, true] {
            let mut options = CpOptions::new(5);
            (options.iterations, options.tolerance, options.nonnegative) = (10, 0.0, nonnegative);
            // The automatic plan may take the modes in another order, as no device does: another path to the fit.
            let on_cpu = cpu.prepare_tensor(&x, &TensorOptions::new(5).format(MttkrpFormat::CsfAll)).unwrap();
            let want = cpu.cp_als(&on_cpu, &options, |_, _| ControlFlow::Continue(())).unwrap();
            for format in [None, Some(MttkrpFormat::Coo), Some(MttkrpFormat::CsfOne), Some(MttkrpFormat::MmCsf)] {
                let on_device = gpu.prepare_mttkrp(&x, format, None).unwrap();
                let run = || gpu.cp_als(&cpu, &on_device, &options, |_, _| ControlFlow::Continue(())).unwrap();
                let got: CpState<T> = run();
                let off = (got.fit() - want.fit()).abs();
                assert!(off < tolerance, "{dims:?}, {format:?}, non-negative {nonnegative}: {off}");
                assert_eq!(run().fits, got.fits);
            }
        }
    }
}

#[test]
fn cp_fits_as_on_the_processor() {
    let Some(gpu) = gpu() else { return };
    check_cp::<f32>(&gpu, 1e-4);
    if gpu.info().float64 {
        check_cp::<f64>(&gpu, 1e-10);
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

#[test]
fn cp_moves_one_factor_and_one_product_in_a_modes_turn() {
    // A device of its own: the account of copied bytes is the device's.
    let Some(gpu) = limited(DeviceOptions::default()) else { return };
    let (dims, rank, iterations) = ([20usize, 15, 12], 8, 7);
    let x = gpu.prepare_mttkrp(&tensor::<f32>(&dims, 1500), None, None).unwrap();
    let mut options = CpOptions::new(rank);
    (options.iterations, options.tolerance) = (iterations, 0.0);
    gpu.take_times();
    gpu.cp_als(&Cpu::new().unwrap(), &x, &options, |_, _| ControlFlow::Continue(())).unwrap();
    let times = gpu.take_times();
    let rows: usize = dims.iter().sum();
    // All factors once at the beginning, and after each turn but the last the factor that it has changed.
    let up = (iterations + 1) * rows - dims[dims.len() - 1];
    assert_eq!(times.uploaded_bytes, (up * rank * 4) as u64);
    assert_eq!(times.downloaded_bytes, (iterations * rows * rank * 4) as u64);
}

#[test]
fn prepared_tensors_say_how_they_are_computed() {
    let Some(gpu) = gpu() else { return };
    let x = tensor::<f32>(&[20, 15, 12], 1500);
    let algorithms = |format| {
        let prepared = gpu.prepare_mttkrp(&x, format, None).unwrap();
        assert!(prepared.index_bytes() > 0 && prepared.norm_squared() > 0.0);
        (prepared.format(), [0, 1, 2].map(|mode| prepared.algorithm(mode)))
    };
    assert_eq!(algorithms(None), (MttkrpFormat::CsfAll, [Some(MttkrpAlgorithm::Slice); 3]));
    assert_eq!(algorithms(Some(MttkrpFormat::Coo)), (MttkrpFormat::Coo, [Some(MttkrpAlgorithm::Row); 3]));
    // The shortest mode is the root, the longest the leaf.
    assert_eq!(
        algorithms(Some(MttkrpFormat::CsfOne)),
        (MttkrpFormat::CsfOne, [MttkrpAlgorithm::Nonzero, MttkrpAlgorithm::Fiber, MttkrpAlgorithm::Slice].map(Some))
    );
    let refused = |format, algorithm| gpu.prepare_mttkrp(&x, Some(format), algorithm).err();
    assert_eq!(algorithms(Some(MttkrpFormat::HiCoo)), (MttkrpFormat::HiCoo, [Some(MttkrpAlgorithm::Element); 3]));
    assert!(matches!(refused(MttkrpFormat::Alto, None), Some(Error::Argument { name: "format", .. })));
    // An algorithm brings its format, and no other has it.
    for (algorithm, format, other) in [
        (MttkrpAlgorithm::Element, MttkrpFormat::CsfAll, MttkrpFormat::CsfOne),
        (MttkrpAlgorithm::Row, MttkrpFormat::Coo, MttkrpFormat::CsfAll),
        (MttkrpAlgorithm::Slice, MttkrpFormat::CsfAll, MttkrpFormat::Coo),
    ] {
        let prepared = gpu.prepare_mttkrp(&x, None, Some(algorithm)).unwrap();
        assert_eq!((prepared.format(), prepared.algorithm(2)), (format, Some(algorithm)));
        assert!(matches!(refused(other, Some(algorithm)), Some(Error::Argument { name: "algorithm", .. })));
    }
}

/// TTM at some ranks and TTV.
fn check_fibers(gpu: &Gpu, name: &str, x: &CooTensor<f32>, mode: usize, ranks: &[usize]) {
    let fibers = FiberCoo::new(x.clone(), mode).unwrap();
    let on_device = gpu.fibers(&fibers).unwrap();
    for &rank in ranks {
        let u: Mat<f32> = uniform_dense(x.dims()[mode], rank, 3).unwrap();
        let gu = gpu.mat(u.as_ref()).unwrap();
        let want = reference::ttm(x, mode, u.as_ref(), fibers.coords()).unwrap();
        for algorithm in [TtmAlgorithm::Fiber, TtmAlgorithm::Element] {
            let mut y = gpu.zeros(fibers.num_fibers(), rank).unwrap();
            let mut got = Mat::zeros(fibers.num_fibers(), rank).unwrap();
            match gpu.ttm_into(&on_device, &gu, algorithm, &mut y) {
                // Fibers too long for the processor's driver.
                Err(Error::Unavailable { .. }) if x.nnz() > 8191 && algorithm == TtmAlgorithm::Element => continue,
                done => done.unwrap(),
            }
            y.download(got.as_mut()).unwrap();
            let d = want.deviation(got.as_ref()).unwrap();
            let what = format!("ttm, {name} {:?}, mode {mode}, rank {rank}, {}", x.dims(), algorithm.name());
            assert!(d.error <= 1.0, "{what}: {d:?}");
        }
    }
    let v: Vec<f32> = uniform_values(x.dims()[mode], 4);
    let gv = gpu.values(&v).unwrap();
    let mut y = gpu.values(&vec![f32::NAN; fibers.num_fibers()]).unwrap();
    let mut got = vec![0.0; fibers.num_fibers()];
    gpu.ttv_into(&on_device, &gv, &mut y).unwrap();
    y.download(&mut got).unwrap();
    let want = reference::ttv(x, mode, &v, fibers.coords()).unwrap();
    let d = want.deviation(MatRef::new(&got, got.len(), 1, 1).unwrap()).unwrap();
    assert!(d.error <= 1.0, "ttv, {name} {:?}, mode {mode}: {d:?}", x.dims());
}

#[test]
fn ttm_and_ttv() {
    let Some(gpu) = gpu() else { return };
    for x in tensors::<f32>() {
        (0..x.order()).for_each(|mode| check_fibers(&gpu, "made", &x, mode, &[1, 8, 33]));
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

/// A fiber longer than the loops of a driver that runs on the processor: it is refused there, and never wrong.
#[test]
fn ttv_of_a_long_fiber() {
    let Some(gpu) = gpu() else { return };
    // Fiber 0 has as many nonzeros as all others together, which have one each: few lanes work together.
    let n = 1 << 19;
    let along: Vec<u32> = (0..n).chain(0..n).collect();
    let others: Vec<u32> = std::iter::repeat_n(0, n as usize).chain(1..=n).collect();
    let x =
        CooTensor::new(vec![n as usize + 1, n as usize], vec![others, along], vec![1.0f32; 2 * n as usize]).unwrap();
    let fibers = FiberCoo::new(x, 1).unwrap();
    let (on_device, v) = (gpu.fibers(&fibers).unwrap(), gpu.values(&vec![1.0f32; n as usize]).unwrap());
    let mut y = gpu.values(&vec![f32::NAN; fibers.num_fibers()]).unwrap();
    match gpu.ttv_into(&on_device, &v, &mut y) {
        Err(Error::Unavailable { what, .. }) => assert_eq!((what, gpu.info().kind), ("ttv", Kind::Cpu)),
        done => {
            done.unwrap();
            let mut got = vec![0.0; fibers.num_fibers()];
            y.download(&mut got).unwrap();
            assert_eq!(got[0], n as f32);
            assert!(got[1..].iter().all(|&y| y == 1.0));
        }
    }
}

/// Every operation and format on the real tensors, at one rank: the naive loops take most of the time.
#[test]
fn real_tensors() {
    const RANK: usize = 17;
    let (Some(gpu), Some(dir)) = (gpu(), common::data_dir()) else { return };
    for path in common::tensor_files(&dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let x = read_tensor::<f32>(&path, false, Duplicates::Sum, Default::default()).unwrap();
        let random = |(m, &d): (usize, &usize)| uniform_dense(d, RANK, m as u64).unwrap();
        let factors: Vec<Mat<f32>> = x.dims().iter().enumerate().map(random).collect();
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let on_device = gpu.factors(&views).unwrap();
        let formats = [MttkrpFormat::Coo, MttkrpFormat::CsfAll, MttkrpFormat::CsfOne, MttkrpFormat::MmCsf];
        let mut tensors: Vec<_> = formats.map(|f| gpu.prepare_mttkrp(&x, Some(f), None).unwrap()).into();
        match gpu.prepare_mttkrp(&x, None, Some(MttkrpAlgorithm::Element)) {
            // Slices too long for the processor's driver.
            Err(Error::Unavailable { .. }) if x.nnz() > 1000 => {}
            made => tensors.push(made.unwrap()),
        }
        if gpu.info().atomic_add_f32 {
            tensors.push(gpu.tensor_atomic(&x).unwrap());
        }
        for mode in 0..x.order() {
            check_fibers(&gpu, &name, &x, mode, &[RANK]);
            let want = reference::mttkrp(&x, &views, mode).unwrap();
            let mut out = gpu.zeros(x.dims()[mode], RANK).unwrap();
            let mut got = Mat::zeros(x.dims()[mode], RANK).unwrap();
            for tensor in &tensors {
                gpu.mttkrp(tensor, &on_device, mode, &mut out).unwrap();
                out.download(got.as_mut()).unwrap();
                let d = want.deviation(got.as_ref()).unwrap();
                let (format, algorithm) = (tensor.format().name(), tensor.algorithm(mode));
                assert!(d.error <= 1.0, "{name}, {format} by {algorithm:?}, mode {mode}: {d:?}");
            }
        }
        let (gx, mut gz) = (gpu.values(x.values()).unwrap(), gpu.values(x.values()).unwrap());
        let mut z = vec![0.0; x.nnz()];
        gpu.tew(&gx, Arithmetic::Mul, &gx, &mut gz).unwrap();
        gz.download(&mut z).unwrap();
        assert!(z.iter().zip(x.values()).all(|(&z, &x)| z == x * x), "{name}: tew");
        gpu.ts(&gx, Arithmetic::Sub, 0.75, &mut gz).unwrap();
        gz.download(&mut z).unwrap();
        assert!(z.iter().zip(x.values()).all(|(&z, &x)| z == x - 0.75), "{name}: ts");
    }
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}

#[test]
fn elementwise_rounds_as_the_processor_does() {
    // A second device, whose values do not fit one kernel.
    for gpu in [gpu(), limited(DeviceOptions { range_limit: Some(4096), ..DeviceOptions::default() })] {
        let Some(gpu) = gpu else { return };
        let x: Vec<f32> = uniform_values(5000, 1);
        let y: Vec<f32> = uniform_values(5000, 2);
        let (gx, gy) = (gpu.values(&x).unwrap(), gpu.values(&y).unwrap());
        let mut gz = gpu.values(&x).unwrap();
        let mut z = vec![0.0; 5000];
        type Case = (Arithmetic, fn(f32, f32) -> f32);
        let cases: [Case; 4] = [
            (Arithmetic::Add, |x, y| x + y),
            (Arithmetic::Sub, |x, y| x - y),
            (Arithmetic::Mul, |x, y| x * y),
            (Arithmetic::Div, |x, y| x / y),
        ];
        for (operator, f) in cases {
            // Vulkan rounds sums and products correctly, quotients to 2.5 units in the last place.
            let near = |got: f32, want: f32| match operator {
                Arithmetic::Div => (got - want).abs() <= 2.5 * f32::EPSILON * want.abs(),
                _ => got == want,
            };
            gpu.tew(&gx, operator, &gy, &mut gz).unwrap();
            gz.download(&mut z).unwrap();
            assert!(z.iter().zip(x.iter().zip(&y)).all(|(&z, (&x, &y))| near(z, f(x, y))), "tew {operator:?}");
            gpu.ts(&gx, operator, 0.3, &mut gz).unwrap();
            gz.download(&mut z).unwrap();
            assert!(z.iter().zip(&x).all(|(&z, &x)| near(z, f(x, 0.3))), "ts {operator:?}");
        }
        let shorter = gpu.values(&x[..7]).unwrap();
        assert!(matches!(gpu.tew(&gx, Arithmetic::Add, &shorter, &mut gz), Err(Error::Shape { .. })));
        assert_eq!(gpu.validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn wrong_operands_are_errors() {
    let Some(gpu) = gpu() else { return };
    let x = tensor::<f32>(&[4, 5, 6], 30);
    let tensor = gpu.tensor(&x).unwrap();
    let views: Vec<Mat<f32>> = [4, 5, 6].map(|d| Mat::zeros(d, 3).unwrap()).into();
    let refs: Vec<_> = views.iter().map(Mat::as_ref).collect();
    let mut factors = gpu.factors(&refs).unwrap();
    let mut out = gpu.zeros(4, 3).unwrap();
    assert!(matches!(gpu.mttkrp(&tensor, &factors, 3, &mut out), Err(Error::Argument { name: "mode", .. })));
    assert!(matches!(gpu.mttkrp(&tensor, &factors, 1, &mut out), Err(Error::Shape { .. })));
    assert!(matches!(factors.set(0, refs[1]), Err(Error::Shape { .. })));
    assert!(matches!(factors.set(9, refs[1]), Err(Error::Argument { .. })));
    assert!(matches!(gpu.tensor_of_parts::<f32>(&[]), Err(Error::Structure { .. })));
    let two = gpu.factors(&refs[..2]).unwrap();
    assert!(matches!(gpu.mttkrp(&tensor, &two, 0, &mut out), Err(Error::Shape { .. })));
    gpu.mttkrp(&tensor, &factors, 0, &mut out).unwrap();
}
