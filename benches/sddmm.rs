//! The entries of C B^T at the nonzeros of A.

mod common;
mod settings;

use common::Operation;
use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::plan::Op;
use sparsimd::reference::{self, Deviation};
use sparsimd::{Cpu, Csr, Mat, Prepared, Result, generate};

struct Sddmm {
    c: Mat<f32>,
    b: Mat<f32>,
    out: Vec<f32>,
}

impl Operation for Sddmm {
    const OP: Op = Op::Sddmm;
    const NAME: &'static str = "sddmm";
    const FLOPS: u64 = 2;

    fn new(a: &Csr<f32>, n: usize) -> Result<Self> {
        let (c, b) = (generate::uniform_dense(a.rows(), n, 1)?, generate::uniform_dense(a.cols(), n, 2)?);
        Ok(Self { c, b, out: vec![0.0; a.nnz()] })
    }

    fn run(&mut self, cpu: &Cpu, a: &Prepared<f32>) -> Result<()> {
        cpu.sddmm(a, self.c.as_ref(), self.b.as_ref(), &mut self.out)
    }

    fn deviation(&self, a: &Csr<f32>) -> Result<Deviation> {
        reference::sddmm(a, false, self.c.as_ref(), self.b.as_ref())?.deviation_of_values(&self.out)
    }
}

fn sddmm(c: &mut Criterion) {
    common::bench::<Sddmm>(c, &[(0.7, 128), (0.9, 32)]);
}

criterion_group! { name = benches; config = settings::criterion(); targets = sddmm }
criterion_main!(benches);
