//! One operation on two executors against the reference, and what happens when a device fails. Without a device every test reports
//! so and passes.
use std::ops::ControlFlow;
use std::time::Duration;

use sparsimd::decomp::CpOptions;
use sparsimd::edge::{Sigmoid, Softmax};
use sparsimd::formats::FiberCoo;
use sparsimd::generate::{random_matrix, skewed, uniform_dense, uniform_values};
use sparsimd::gpu::DeviceOptions;
use sparsimd::hetero::{Hetero, HeteroCsr, HeteroFibers, HeteroTensor, Split};
use sparsimd::ops::{Arithmetic, TtmAlgorithm};
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat, Op, PlanOptions, Strategy, TensorOptions};
use sparsimd::{CooTensor, Cpu, Csr, Error, Mat, MatRef, reference};

mod common;

use common::device::limited;

const SPLITS: [Split; 4] = [Split::Static(0.0), Split::Static(0.3), Split::Static(1.0), Split::Adaptive];

fn cpu() -> Cpu {
    Cpu::builder().threads(1).build().unwrap()
}

/// A device with the processor, and two devices: one driver opened twice will do.
fn executors(split: Split) -> Vec<Hetero> {
    let Some(first) = limited(DeviceOptions::default()) else { return Vec::new() };
    let second = limited(DeviceOptions::default()).unwrap();
    let alone = Hetero::new(cpu(), first.clone(), split).unwrap();
    vec![alone, Hetero::pair(cpu(), first, second, split).unwrap()]
}

fn quiet(both: &Hetero) {
    assert_eq!(both.take_failures(), Vec::<String>::new());
    assert_eq!(both.gpu().validation_messages(), Vec::<String>::new());
}

#[test]
fn every_share_of_a_matrix_gives_the_reference() {
    for split in SPLITS {
        for both in executors(split) {
            for (m, k, sparsity) in [(200, 150, 0.8), (120, 90, 0.7), (1, 40, 0.1), (0, 5, 0.5), (90, 30, 1.0)] {
                let a: Csr<f32> = random_matrix(m, k, sparsity, 3).unwrap();
                let mut shared = HeteroCsr::new(a.clone());
                // One matrix by panels on the processor.
                if m == 200 {
                    for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
                        shared.prepare(&PlanOptions::new(op, 33).strategy(Strategy::Panel)).unwrap();
                    }
                }
                let c: Mat<f32> = uniform_dense(m, 33, 1).unwrap();
                let b: Mat<f32> = uniform_dense(k, 33, 2).unwrap();
                let what = format!("{split:?}, {m} x {k}");
                // Twice: the second adaptive call runs by the remembered rate.
                for _ in 0..2 {
                    let mut out = c.clone();
                    both.spmm(0.5, &mut shared, b.as_ref(), -1.0, out.as_mut()).unwrap();
                    let want = reference::spmm(0.5, &a, b.as_ref(), -1.0, c.as_ref()).unwrap();
                    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "spmm, {what}");

                    let mut values = vec![f32::NAN; a.nnz()];
                    for scaled in [false, true] {
                        match scaled {
                            false => both.sddmm(&mut shared, c.as_ref(), b.as_ref(), &mut values).unwrap(),
                            true => both.sddmm_scaled(&mut shared, c.as_ref(), b.as_ref(), &mut values).unwrap(),
                        }
                        let want = reference::sddmm(&a, scaled, c.as_ref(), b.as_ref()).unwrap();
                        let error = want.deviation_of_values(&values).unwrap().error;
                        assert!(error <= 1.0, "sddmm, {what}, scaled {scaled}");
                    }

                    both.fusedmm(&mut shared, Sigmoid, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut()).unwrap();
                    let edge = reference::Edge::Sigmoid;
                    let want = reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
                    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "sigmoid, {what}");

                    let softmax = Softmax { scale: 0.25 };
                    both.fusedmm(&mut shared, softmax, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut()).unwrap();
                    let edge = reference::Edge::Softmax { scale: 0.25 };
                    let want = reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
                    assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "softmax, {what}");
                }
                let measured = shared.share("spmm");
                assert_eq!(measured.is_some(), split == Split::Adaptive);
                assert!(measured.is_none_or(|s| (0.0..=1.0).contains(&s)));
            }
            quiet(&both);
        }
    }
}

fn tensors() -> Vec<CooTensor<f32>> {
    vec![
        skewed(&[60, 25, 40], 3000, 1).unwrap(),
        skewed(&[8, 9, 10, 11], 1500, 2).unwrap(),
        CooTensor::new(vec![4, 5, 6], vec![vec![3], vec![0], vec![5]], vec![2.0]).unwrap(),
        CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]).unwrap(),
    ]
}

#[test]
fn every_share_of_a_tensor_gives_the_reference() {
    for split in SPLITS {
        for both in executors(split) {
            for x in tensors() {
                let factors: Vec<Mat<f32>> =
                    x.dims().iter().enumerate().map(|(m, &d)| uniform_dense(d, 17, m as u64).unwrap()).collect();
                let views: Vec<MatRef<'_, f32>> = factors.iter().map(Mat::as_ref).collect();
                let slices = HeteroTensor::new(x.clone(), 17);
                let mut cut = [slices, HeteroTensor::new(x.clone(), 17).by_elements()];
                assert_eq!(
                    cut.each_ref().map(HeteroTensor::algorithm),
                    [MttkrpAlgorithm::Slice, MttkrpAlgorithm::Element]
                );
                for mode in 0..x.order() {
                    let what = format!("{split:?}, {:?}, mode {mode}", x.dims());
                    let fibers = FiberCoo::new(x.clone(), mode).unwrap();
                    let mut shared = HeteroFibers::new(&fibers);
                    // Twice: the second adaptive call runs by the remembered rate.
                    for algorithm in [TtmAlgorithm::Auto, TtmAlgorithm::Element].repeat(2) {
                        let mut y = Mat::zeros(fibers.num_fibers(), 17).unwrap();
                        both.ttm_into(&mut shared, views[mode], algorithm, y.as_mut()).unwrap();
                        let want = reference::ttm(&x, mode, views[mode], fibers.coords()).unwrap();
                        assert!(want.deviation(y.as_ref()).unwrap().error <= 1.0, "ttm, {what}");

                        let v: Vec<f32> = uniform_values(x.dims()[mode], 4);
                        let mut y = vec![f32::NAN; fibers.num_fibers()];
                        both.ttv_into(&mut shared, &v, &mut y).unwrap();
                        let want = reference::ttv(&x, mode, &v, fibers.coords()).unwrap();
                        let got = MatRef::new(&y, y.len(), 1, 1).unwrap();
                        assert!(want.deviation(got).unwrap().error <= 1.0, "ttv, {what}");

                        let want = reference::mttkrp(&x, &views, mode).unwrap();
                        for shared in &mut cut {
                            let mut out = Mat::from_fn(x.dims()[mode], 17, |_, _| f32::NAN).unwrap();
                            both.mttkrp(shared, &views, mode, out.as_mut()).unwrap();
                            let (error, by) = (want.deviation(out.as_ref()).unwrap().error, shared.algorithm());
                            assert!(error <= 1.0, "mttkrp by {}, {what}", by.name());
                        }
                    }
                    for shared in &cut {
                        assert_eq!(shared.share(mode).is_some(), split == Split::Adaptive);
                    }
                }
                let y: Vec<f32> = uniform_values(x.nnz(), 9);
                let mut z = vec![f32::NAN; x.nnz()];
                both.tew(x.values(), Arithmetic::Sub, &y, &mut z).unwrap();
                assert!(z.iter().zip(x.values().iter().zip(&y)).all(|(&z, (&x, &y))| z == x - y));
                both.ts(x.values(), Arithmetic::Mul, 3.0, &mut z).unwrap();
                assert!(z.iter().zip(x.values()).all(|(&z, &x)| z == 3.0 * x));
            }
            quiet(&both);
        }
    }
}

#[test]
fn cp_on_both_sides_fits_as_on_the_processor() {
    let x: CooTensor<f32> = skewed(&[20, 15, 12], 1500, 3).unwrap();
    let mut options = CpOptions::new(4);
    (options.iterations, options.tolerance) = (8, 0.0);
    // The modes in their natural order, as devices take them.
    let alone = cpu().prepare_tensor(&x, &TensorOptions::new(4).format(MttkrpFormat::CsfAll)).unwrap();
    let want = cpu().cp_als(&alone, &options, |_, _| ControlFlow::Continue(())).unwrap().fit();
    for both in executors(Split::Static(0.5)) {
        let mut shared = HeteroTensor::new(x.clone(), 4);
        let got = both.cp_als(&mut shared, &options, |_, _| ControlFlow::Continue(())).unwrap().fit();
        assert!((got - want).abs() < 1e-4, "{got}, on the processor {want}");
        quiet(&both);
    }
}

/// C = 0.5 A B - C by executors of which one may fail; the result must be right all the same.
fn survives(both: &Hetero, what: &str) {
    let a: Csr<f32> = random_matrix(400, 300, 0.8, 3).unwrap();
    let (b, c): (Mat<f32>, Mat<f32>) = (uniform_dense(300, 40, 1).unwrap(), uniform_dense(400, 40, 2).unwrap());
    let mut shared = HeteroCsr::new(a.clone());
    for call in 0..2 {
        let mut out = c.clone();
        both.spmm(0.5, &mut shared, b.as_ref(), -1.0, out.as_mut()).unwrap();
        let want = reference::spmm(0.5, &a, b.as_ref(), -1.0, c.as_ref()).unwrap();
        assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "{what}, call {call}");
    }
}

#[test]
fn a_lost_device_is_replaced_by_the_processor() {
    for split in [Split::Static(0.6), Split::Adaptive] {
        let mut lost = 0;
        // Lost at its first submission, its second, ...: while operands go up, in the kernel, while the result comes down.
        for lose_at in 0..12 {
            // Every copy is a submission.
            let options = DeviceOptions { lose_at: Some(lose_at), always_stage: true, ..DeviceOptions::default() };
            let Some(first) = limited(options) else { return };
            let name = first.info().name.clone();
            let both = match lose_at % 2 {
                0 => Hetero::new(cpu(), first, split).unwrap(),
                _ => Hetero::pair(cpu(), first, limited(DeviceOptions::default()).unwrap(), split).unwrap(),
            };
            survives(&both, &format!("{split:?}, lost at {lose_at}"));
            for reason in both.take_failures() {
                assert!(reason.contains(&name) && reason.contains("lost"), "{reason}");
                lost += 1;
            }
        }
        assert!(lost >= 10, "only {lost} of 12 devices were lost");
    }
}

#[test]
fn a_device_that_does_not_answer_is_replaced_by_the_processor() {
    let Some(slow) = limited(DeviceOptions { time_limit: Duration::ZERO, ..DeviceOptions::default() }) else { return };
    let both = Hetero::new(cpu(), slow, Split::Static(0.6)).unwrap();
    // A thread that is held up between submitting and waiting may find the work done; not every time.
    let mut failed = (0..50).map(|_| {
        survives(&both, "no answer");
        both.take_failures()
    });
    let reasons = failed.find(|reasons| !reasons.is_empty()).unwrap_or_default();
    assert!(reasons.len() == 1 && reasons[0].contains("no answer within 0 s"), "{reasons:?}");
}

#[test]
fn a_device_without_room_is_replaced_by_the_processor() {
    let Some(small) = limited(DeviceOptions { memory_limit: Some(20_000), ..DeviceOptions::default() }) else { return };
    let both = Hetero::new(cpu(), small, Split::Adaptive).unwrap();
    survives(&both, "no room");
    let reasons = both.take_failures();
    assert!(reasons.len() == 1 && reasons[0].contains("out of memory"), "{reasons:?}");
}

/// C = A B on both sides, verified; the bytes that went to the device, and why it took no share.
fn product(both: &Hetero, a: &mut HeteroCsr<f32>, n: usize) -> (u64, Vec<String>) {
    let b: Mat<f32> = uniform_dense(a.matrix().cols(), n, 1).unwrap();
    let mut c = Mat::zeros(a.matrix().rows(), n).unwrap();
    both.gpu().take_times();
    both.spmm(1.0, a, b.as_ref(), 0.0, c.as_mut()).unwrap();
    let want = reference::spmm(1.0, a.matrix(), b.as_ref(), 0.0, c.as_ref()).unwrap();
    assert!(want.deviation(c.as_ref()).unwrap().error <= 1.0);
    (both.gpu().take_times().uploaded_bytes, both.take_failures())
}

#[test]
fn a_refusal_is_of_one_operation_on_one_operand() {
    for split in [Split::Static(0.5), Split::Adaptive] {
        let options = DeviceOptions { memory_limit: Some(400_000), ..DeviceOptions::default() };
        let Some(device) = limited(options) else { return };
        let both = Hetero::new(cpu(), device, split).unwrap();
        let matrix = |k, seed| HeteroCsr::new(random_matrix::<f32>(60, k, 0.9, seed).unwrap());
        // B has 512000 bytes, or 12800.
        let (mut large, mut small) = (matrix(2000, 3), matrix(50, 4));
        let (_, reasons) = product(&both, &mut large, 64);
        let refused = |reasons: &[String]| {
            reasons.len() == 1 && reasons[0].starts_with("spmm: ") && reasons[0].contains("out of memory")
        };
        assert!(refused(&reasons) && large.share("spmm").is_none(), "{split:?}, {reasons:?}");
        for _ in 0..2 {
            let (uploaded, reasons) = product(&both, &mut small, 64);
            assert!(uploaded > 0 && reasons.is_empty(), "{split:?}, {reasons:?}");
            // It is not asked again, and the reason is told again.
            let (uploaded, reasons) = product(&both, &mut large, 64);
            assert!(uploaded == 0 && refused(&reasons), "{split:?}, {reasons:?}");
        }
        // Another operation on the same operand.
        let (c, b): (Mat<f32>, Mat<f32>) = (uniform_dense(60, 4, 1).unwrap(), uniform_dense(2000, 4, 2).unwrap());
        let mut values = vec![f32::NAN; large.matrix().nnz()];
        both.sddmm(&mut large, c.as_ref(), b.as_ref(), &mut values).unwrap();
        assert!(both.gpu().take_times().uploaded_bytes > 0 && both.take_failures().is_empty(), "{split:?}");
        let want = reference::sddmm(large.matrix(), false, c.as_ref(), b.as_ref()).unwrap();
        assert!(want.deviation_of_values(&values).unwrap().error <= 1.0);
        // What is prepared anew is asked again.
        large.prepare(&PlanOptions::new(Op::Spmm, 4).strategy(Strategy::Direct)).unwrap();
        let (uploaded, reasons) = product(&both, &mut large, 4);
        assert!(uploaded > 0 && reasons.is_empty(), "{split:?}, {reasons:?}");
        quiet(&both);
    }
}

#[test]
fn a_lost_device_refuses_all_operands() {
    let options = DeviceOptions { lose_at: Some(0), always_stage: true, ..DeviceOptions::default() };
    let Some(device) = limited(options) else { return };
    let both = Hetero::new(cpu(), device, Split::Static(0.5)).unwrap();
    for seed in 0..2 {
        let mut a = HeteroCsr::new(random_matrix::<f32>(60, 50, 0.9, seed).unwrap());
        let (uploaded, reasons) = product(&both, &mut a, 8);
        // Nothing is sent to it any more.
        assert!(seed == 0 || uploaded == 0, "{uploaded}");
        assert!(reasons.len() == 1 && reasons[0].contains("lost"), "{reasons:?}");
        let mut z = [0.0f32; 2];
        both.ts(&[1.0f32, 2.0], Arithmetic::Mul, 2.0, &mut z).unwrap();
        let reasons = both.take_failures();
        assert!(z == [2.0, 4.0] && reasons.len() == 1 && reasons[0].starts_with("ts: "), "{z:?}, {reasons:?}");
    }
}

#[test]
fn cp_survives_a_lost_device() {
    let x: CooTensor<f32> = skewed(&[20, 15, 12], 1500, 3).unwrap();
    let mut options = CpOptions::new(4);
    (options.iterations, options.tolerance) = (8, 0.0);
    // The modes in their natural order, as devices take them.
    let alone = cpu().prepare_tensor(&x, &TensorOptions::new(4).format(MttkrpFormat::CsfAll)).unwrap();
    let want = cpu().cp_als(&alone, &options, |_, _| ControlFlow::Continue(())).unwrap().fit();
    for lose_at in [0, 7, 30] {
        let options_of_device = DeviceOptions { lose_at: Some(lose_at), ..DeviceOptions::default() };
        let Some(device) = limited(options_of_device) else { return };
        let both = Hetero::new(cpu(), device, Split::Static(0.5)).unwrap();
        let mut shared = HeteroTensor::new(x.clone(), 4);
        let got = both.cp_als(&mut shared, &options, |_, _| ControlFlow::Continue(())).unwrap().fit();
        assert!((got - want).abs() < 1e-4, "{got}, on the processor {want}");
        assert_eq!(both.take_failures().len(), 1);
    }
}

#[test]
fn wrong_shapes_and_shares_are_errors() {
    assert!("1.5".parse::<Split>().is_err() && "fast".parse::<Split>().is_err());
    assert_eq!("adaptive".parse(), Ok(Split::Adaptive));
    assert_eq!("0.25".parse(), Ok(Split::Static(0.25)));
    for both in executors(Split::Adaptive) {
        let mut a = HeteroCsr::new(random_matrix::<f32>(6, 7, 0.5, 1).unwrap());
        let b: Mat<f32> = Mat::zeros(6, 4).unwrap();
        let mut c: Mat<f32> = Mat::zeros(6, 4).unwrap();
        let spmm = both.spmm(1.0, &mut a, b.as_ref(), 0.0, c.as_mut());
        assert!(matches!(spmm, Err(Error::Shape { op: "spmm", .. })));
        assert!(matches!(a.prepare(&PlanOptions::new(Op::Spmm, 0)), Err(Error::Argument { name: "n", .. })));
        let mut x = HeteroTensor::new(skewed::<f32>(&[6, 7, 8], 30, 1).unwrap(), 4);
        let views = [b.as_ref(); 3];
        assert!(matches!(both.mttkrp(&mut x, &views, 0, c.as_mut()), Err(Error::Shape { op: "mttkrp", .. })));
        assert!(matches!(both.mttkrp(&mut x, &views[..2], 0, c.as_mut()), Err(Error::Shape { op: "mttkrp", .. })));
        let division = both.ts(&[1.0f32, 2.0], Arithmetic::Div, 0.0, &mut [0.0; 2]);
        assert!(matches!(division, Err(Error::Argument { name: "s", .. })));
        let nothing = Hetero::new(cpu(), both.gpu().clone(), Split::Static(1.5));
        assert!(matches!(nothing, Err(Error::Argument { .. })));
        quiet(&both);
    }
}
