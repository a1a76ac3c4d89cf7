//! E = f(C B^T at the nonzeros of A) D for the identity and the sigmoid.

mod common;
mod settings;

use common::Operation;
use criterion::{Criterion, criterion_group, criterion_main};
use sparsimd::edge;
use sparsimd::plan::Op;
use sparsimd::reference::{self, Deviation};
use sparsimd::{Cpu, Csr, Mat, Prepared, Result, generate};

struct Operands {
    c: Mat<f32>,
    b: Mat<f32>,
    d: Mat<f32>,
    e: Mat<f32>,
}

impl Operands {
    fn new(a: &Csr<f32>, n: usize) -> Result<Self> {
        let operand = |rows, seed| generate::uniform_dense(rows, n, seed);
        Ok(Self {
            c: operand(a.rows(), 1)?,
            b: operand(a.cols(), 2)?,
            d: operand(a.cols(), 3)?,
            e: Mat::zeros(a.rows(), n)?,
        })
    }

    fn run<F: edge::Edge<f32>>(&mut self, cpu: &Cpu, a: &Prepared<f32>, edge: F) -> Result<()> {
        cpu.fusedmm(a, edge, self.c.as_ref(), self.b.as_ref(), self.d.as_ref(), self.e.as_mut())
    }

    fn deviation(&self, a: &Csr<f32>, edge: reference::Edge<'_>) -> Result<Deviation> {
        let (c, b, d) = (self.c.as_ref(), self.b.as_ref(), self.d.as_ref());
        reference::fusedmm(a, edge, c, b, d)?.deviation(self.e.as_ref())
    }
}

macro_rules! edge_bench {
    ($bench:ident, $name:literal) => {
        struct $bench(Operands);

        impl Operation for $bench {
            const OP: Op = Op::FusedMm;
            const NAME: &'static str = $name;
            const FLOPS: u64 = 4;

            fn new(a: &Csr<f32>, n: usize) -> Result<Self> {
                Operands::new(a, n).map(Self)
            }

            fn run(&mut self, cpu: &Cpu, a: &Prepared<f32>) -> Result<()> {
                self.0.run(cpu, a, edge::$bench)
            }

            fn deviation(&self, a: &Csr<f32>) -> Result<Deviation> {
                self.0.deviation(a, reference::Edge::$bench)
            }
        }
    };
}

edge_bench!(Identity, "fusedmm");
edge_bench!(Sigmoid, "fusedmm sigmoid");

fn fusedmm(c: &mut Criterion) {
    common::bench::<Identity>(c, &[(0.7, 128)]);
    common::bench::<Sigmoid>(c, &[]);
}

criterion_group! { name = benches; config = settings::criterion(); targets = fusedmm }
criterion_main!(benches);
