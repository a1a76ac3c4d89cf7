//! Y = X x_n U, mode by mode, by both algorithms.

mod settings;
mod tensor;

use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::formats::FiberCoo;
use sparsimd::ops::TtmAlgorithm;
use sparsimd::{Mat, generate, reference};
use tensor::{one, setting};

/// Columns of the dense operands.
const RANK: usize = 32;

fn ttm(c: &mut Criterion) {
    let (x, cpus) = setting();
    for mode in 0..x.order() {
        let fibers = FiberCoo::new(x.clone(), mode).expect("fibers");
        let u = generate::uniform_dense::<f32>(x.dims()[mode], RANK, 1).expect("a matrix");
        let u = u.as_ref();
        let expected = reference::ttm(&x, mode, u, fibers.coords()).expect("a reference");
        for cpu in &cpus {
            for (name, algorithm) in [("fiber", TtmAlgorithm::Fiber), ("element", TtmAlgorithm::Element)] {
                let mut y = Mat::zeros(fibers.num_fibers(), RANK).expect("memory");
                cpu.ttm_into(&fibers, u, algorithm, y.as_mut()).expect("a run");
                let deviation = expected.deviation(y.as_ref()).expect("a comparison");
                let case = format!("{name}/mode={mode}/threads={}", cpu.threads());
                let flops = 2 * x.nnz() * RANK;
                one(c, "ttm", &case, flops, deviation, || cpu.ttm_into(&fibers, u, algorithm, y.as_mut()));
            }
        }
    }
}

criterion_group! { name = benches; config = settings::criterion(); targets = ttm }
criterion_main!(benches);
