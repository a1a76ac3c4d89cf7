//! The processor and a Vulkan device on one operation, against the reference. Without a device every test reports so and passes.
#![cfg(feature = "vulkan")]

use sparsimd::edge::{Sigmoid, Softmax};
use sparsimd::generate::{random_matrix, uniform_dense};
use sparsimd::gpu::{DeviceOptions, Gpu};
use sparsimd::hetero::{Hetero, HeteroCsr, Split};
use sparsimd::{Cpu, Csr, Error, Mat, reference};

fn pair(split: Split) -> Option<Hetero> {
    match Gpu::validated(DeviceOptions { cache_dir: None, ..DeviceOptions::default() }) {
        Ok(gpu) => Some(Hetero::new(Cpu::builder().threads(1).build().unwrap(), gpu, split).unwrap()),
        Err(e @ Error::Unavailable { .. }) => {
            println!("skipped: no device ({e})");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn every_share_gives_the_reference() {
    for split in [Split::Static(0.0), Split::Static(0.3), Split::Static(1.0), Split::Adaptive] {
        let Some(both) = pair(split) else { return };
        for (m, k, sparsity) in [(200, 150, 0.8), (1, 40, 0.1), (0, 5, 0.5), (90, 30, 1.0)] {
            let a: Csr<f32> = random_matrix(m, k, sparsity, 3).unwrap();
            let mut shared = HeteroCsr::new(a.clone());
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
                both.sddmm(&mut shared, c.as_ref(), b.as_ref(), &mut values).unwrap();
                let want = reference::sddmm(&a, false, c.as_ref(), b.as_ref()).unwrap();
                assert!(want.deviation_of_values(&values).unwrap().error <= 1.0, "sddmm, {what}");

                both.fusedmm(&mut shared, Sigmoid, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut()).unwrap();
                let want =
                    reference::fusedmm(&a, reference::Edge::Sigmoid, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
                assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "sigmoid, {what}");

                both.fusedmm(&mut shared, Softmax { scale: 0.25 }, c.as_ref(), b.as_ref(), b.as_ref(), out.as_mut())
                    .unwrap();
                let edge = reference::Edge::Softmax { scale: 0.25 };
                let want = reference::fusedmm(&a, edge, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
                assert!(want.deviation(out.as_ref()).unwrap().error <= 1.0, "softmax, {what}");
            }
            let measured = shared.share("spmm");
            assert_eq!(measured.is_some(), split == Split::Adaptive);
            assert!(measured.is_none_or(|s| (0.0..=1.0).contains(&s)));
        }
        assert_eq!(both.gpu().validation_messages(), Vec::<String>::new());
    }
}

#[test]
fn wrong_shapes_and_shares_are_errors() {
    let Some(both) = pair(Split::Adaptive) else { return };
    let mut a = HeteroCsr::new(random_matrix::<f32>(6, 7, 0.5, 1).unwrap());
    let b: Mat<f32> = Mat::zeros(6, 4).unwrap();
    let mut c: Mat<f32> = Mat::zeros(6, 4).unwrap();
    let spmm = both.spmm(1.0, &mut a, b.as_ref(), 0.0, c.as_mut());
    assert!(matches!(spmm, Err(Error::Shape { op: "spmm", .. })));
    let nothing = Hetero::new(Cpu::new().unwrap(), both.gpu().clone(), Split::Static(1.5));
    assert!(matches!(nothing, Err(Error::Argument { .. })));
}
