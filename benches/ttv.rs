//! y = X x_n v, mode by mode.

mod settings;
mod tensor;

use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::formats::FiberCoo;
use sparsimd::{generate, reference};
use tensor::{one, setting};

fn ttv(c: &mut Criterion) {
    let (x, cpus) = setting();
    for mode in 0..x.order() {
        let fibers = FiberCoo::new(x.clone(), mode).expect("fibers");
        let v: Vec<f32> = generate::uniform_values(x.dims()[mode], 1);
        let expected = reference::ttv(&x, mode, &v, fibers.coords()).expect("a reference");
        for cpu in &cpus {
            let mut y = vec![0.0; fibers.num_fibers()];
            cpu.ttv_into(&fibers, &v, &mut y).expect("a run");
            let view = sparsimd::MatRef::new(&y, y.len(), 1, 1).expect("a column");
            let deviation = expected.deviation(view).expect("a comparison");
            let case = format!("mode={mode}/threads={}", cpu.threads());
            one(c, "ttv", &case, 2 * x.nnz(), deviation, || cpu.ttv_into(&fibers, &v, &mut y));
        }
    }
}

criterion_group! { name = benches; config = settings::criterion(); targets = ttv }
criterion_main!(benches);
