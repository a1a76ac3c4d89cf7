//! What the benches of the tensor operations share: the tensor, and that each case is verified before it is timed.
//!
//! Throughput is in elements a second, one element for each floating point operation: Gelem/s are GFLOP/s.

use criterion::{Criterion, Throughput};
use sparsimd::reference::Deviation;
use sparsimd::{CooTensor, Cpu, Result, generate};

/// A million nonzeros in the shape of nell-2, coordinates skewed; executors of one and two threads.
pub fn setting() -> (CooTensor<f32>, [Cpu; 2]) {
    let x = generate::skewed(&[12_000, 9_000, 29_000], 1_000_000, 0).expect("a tensor");
    (x, [1, 2].map(|threads| Cpu::builder().threads(threads).build().expect("a pool")))
}

/// Times `run` of `flops` operations after the check that its result, `deviation`, is right.
pub fn one(
    c: &mut Criterion,
    group: &str,
    case: &str,
    flops: usize,
    deviation: Deviation,
    mut run: impl FnMut() -> Result<()>,
) {
    assert!(deviation.error <= 1.0, "{group} {case}: {deviation:?}");
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements(flops as u64));
    group.bench_function(case, |bench| bench.iter(&mut run));
    group.finish();
}
