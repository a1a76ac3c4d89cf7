//! MTTKRP in every format, mode by mode, and of all modes at once.

mod settings;
mod tensor;

use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{Mat, MatMut, MatRef, Result, generate, reference};
use tensor::{one, setting};

/// Columns of the dense operands.
const RANK: usize = 32;

fn mttkrp(c: &mut Criterion) {
    let (x, cpus) = setting();
    let factor = |(mode, &rows): (usize, &usize)| generate::uniform_dense(rows, RANK, 1 + mode as u64);
    let factors: Vec<Mat<f32>> = x.dims().iter().enumerate().map(factor).collect::<Result<_>>().expect("factors");
    let views: Vec<MatRef<'_, f32>> = factors.iter().map(Mat::as_ref).collect();
    for format in MttkrpFormat::ALL {
        for cpu in &cpus {
            let prepared = cpu.prepare_tensor(&x, &TensorOptions::new(RANK).format(format)).expect("a prepared tensor");
            for mode in 0..x.order() {
                let mut out = Mat::zeros(x.dims()[mode], RANK).expect("memory");
                cpu.mttkrp(&prepared, &views, mode, out.as_mut()).expect("a run");
                let expected = cpu.install(|| reference::mttkrp(&x, &views, mode)).expect("a reference");
                let deviation = cpu.install(|| expected.deviation(out.as_ref())).expect("a comparison");
                let case = format!("{format}/mode={mode}/threads={}", cpu.threads());
                let flops = x.order() * x.nnz() * RANK;
                one(c, "mttkrp", &case, flops, deviation, || cpu.mttkrp(&prepared, &views, mode, out.as_mut()));
            }
        }
    }
    for cpu in &cpus {
        let prepared =
            cpu.prepare_tensor(&x, &TensorOptions::new(RANK).format(MttkrpFormat::Joint)).expect("a prepared tensor");
        let mut products: Vec<Mat<f32>> =
            x.dims().iter().map(|&dim| Mat::zeros(dim, RANK)).collect::<Result<_>>().expect("memory");
        let run = |products: &mut [Mat<f32>]| {
            let mut outs: Vec<MatMut<'_, f32>> = products.iter_mut().map(Mat::as_mut).collect();
            cpu.mttkrp_all(&prepared, &views, &mut outs)
        };
        run(&mut products).expect("a run");
        let worst = |(mode, product): (usize, &Mat<f32>)| {
            let expected = cpu.install(|| reference::mttkrp(&x, &views, mode)).expect("a reference");
            cpu.install(|| expected.deviation(product.as_ref())).expect("a comparison")
        };
        let worst = products.iter().enumerate().map(worst).max_by(|a, b| a.error.total_cmp(&b.error)).expect("modes");
        let case = format!("joint/mode=all/threads={}", cpu.threads());
        one(c, "mttkrp", &case, x.order() * x.order() * x.nnz() * RANK, worst, || run(&mut products));
    }
}

criterion_group! { name = benches; config = settings::criterion(); targets = mttkrp }
criterion_main!(benches);
