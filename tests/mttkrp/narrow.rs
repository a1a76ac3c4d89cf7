//! Factors that store bf16 or f16, against the naive loop on what they store: the result is f32, and its bound that of f32.

use sparsimd::formats::CooTensor;
use sparsimd::generate::{skewed, uniform_dense};
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{Arch, Cpu, Mat, MatRef, Stored, bf16, f16, reference};

use super::generated;

/// All formats and modes at every one of `ranks`.
fn check<D: Stored<Scalar = f32>>(cpu: &Cpu, name: &str, coo: &CooTensor<f32>, ranks: &[usize]) {
    for &rank in ranks {
        let factors: Vec<Mat<D>> =
            coo.dims().iter().zip(11..).map(|(&dim, seed)| uniform_dense(dim, rank, seed).unwrap()).collect();
        let views: Vec<MatRef<'_, D>> = factors.iter().map(Mat::as_ref).collect();
        let expected: Vec<_> =
            (0..coo.order()).map(|mode| cpu.install(|| reference::mttkrp(coo, &views, mode)).unwrap()).collect();
        for format in MttkrpFormat::ALL {
            let options = TensorOptions::new(rank).factors::<D>().format(format);
            let prepared = cpu.prepare_tensor(coo, &options).unwrap();
            for (mode, expected) in expected.iter().enumerate() {
                let mut out = Mat::from_fn(coo.dims()[mode], rank, |_, _| f32::NAN).unwrap();
                cpu.mttkrp(&prepared, &views, mode, out.as_mut()).unwrap();
                let worst = cpu.install(|| expected.deviation(out.as_ref())).unwrap();
                let arch = cpu.arch().name();
                assert!(
                    worst.error <= 1.0,
                    "{name}, {format}, mode {mode}, {}, {arch}, R = {rank}: {worst:?}",
                    D::DTYPE
                );
            }
        }
    }
}

#[test]
fn narrow_factors_in_every_format_mode_and_rank() {
    let cpu = Cpu::builder().threads(2).pin(false).build().unwrap();
    for (name, coo) in generated::<f32>() {
        check::<bf16>(&cpu, name, &coo, &[1, 16, 33, 64]);
        check::<f16>(&cpu, name, &coo, &[5, 32]);
    }
}

#[test]
fn narrow_factors_on_every_instruction_set() {
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(3).arch(arch).pin(false).build().unwrap();
        let coo = skewed::<f32>(&[50, 30, 70, 9], 4000, 3).unwrap();
        check::<bf16>(&cpu, arch.name(), &coo, &[3, 64, 160]);
        check::<f16>(&cpu, arch.name(), &coo, &[3, 80]);
    }
}

#[test]
fn tiles_are_longer_for_narrow_factors() {
    let cpu = Cpu::builder().threads(1).pin(false).build().unwrap();
    let coo = skewed::<f32>(&[2000, 200_000, 200_000], 400_000, 3).unwrap();
    let plan = |options: TensorOptions| cpu.plan_tensor(&coo, &options.format(MttkrpFormat::Tiled)).unwrap().explain();
    assert_ne!(plan(TensorOptions::new(64)), plan(TensorOptions::new(64).factors::<bf16>()));
    assert_eq!(plan(TensorOptions::new(64)), plan(TensorOptions::new(64).factors::<f32>()));
}
