//! C = A B.

mod common;
mod settings;

use common::Operation;
use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::plan::Op;
use sparsimd::reference::{self, Deviation};
use sparsimd::{Cpu, Csr, Mat, Prepared, Result, generate};

struct Spmm {
    b: Mat<f32>,
    c: Mat<f32>,
}

impl Operation for Spmm {
    const OP: Op = Op::Spmm;
    const NAME: &'static str = "spmm";
    const FLOPS: u64 = 2;

    fn new(a: &Csr<f32>, n: usize) -> Result<Self> {
        Ok(Self { b: generate::uniform_dense(a.cols(), n, 1)?, c: Mat::zeros(a.rows(), n)? })
    }

    fn run(&mut self, cpu: &Cpu, a: &Prepared<f32>) -> Result<()> {
        cpu.spmm(1.0, a, self.b.as_ref(), 0.0, self.c.as_mut())
    }

    fn deviation(&self, a: &Csr<f32>) -> Result<Deviation> {
        reference::spmm(1.0, a, self.b.as_ref(), 0.0, self.c.as_ref())?.deviation(self.c.as_ref())
    }
}

fn spmm(c: &mut Criterion) {
    common::bench::<Spmm>(c, &[(0.7, 128), (0.9, 128), (0.7, 32)]);
}

criterion_group! { name = benches; config = settings::criterion(); targets = spmm }
criterion_main!(benches);
