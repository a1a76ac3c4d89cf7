//! MTTKRP in every format, mode by mode.

mod settings;
mod tensor;

use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::plan::MttkrpFormat;
use sparsimd::{Mat, MatRef, Result, generate, reference};
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
            let prepared = cpu.prepare_mttkrp_as(&x, RANK, Some(format)).expect("a prepared tensor");
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
}

criterion_group! { name = benches; config = settings::criterion(); targets = mttkrp }
criterion_main!(benches);
