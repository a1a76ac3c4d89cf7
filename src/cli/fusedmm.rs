//! `sparsimd fusedmm`: E = f(C B^T at the nonzeros of A) D.

use sparsimd::edge::{self, Edge};
use sparsimd::io::write_mtx_dense;
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Mat, Result, Scalar, reference};

use super::Verdict;
use super::device::{self, Ran};
use super::matrix::{Common, EdgeName, Measured, dense_bytes, sparse_bytes};
use super::timing::{Check, Dtype, Times};

/// Runs, verifies and times the operation.
pub fn run(args: &Common) -> Result<Verdict> {
    match args.dtype {
        Dtype::F32 => args.run::<f32>("fusedmm", by_edge, device::fusedmm),
        Dtype::F64 => args.run::<f64>("fusedmm", by_edge, device::fusedmm),
    }
}

fn by_edge<T: Scalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    match args.edge {
        EdgeName::Identity => measure(args, cpu, a, edge::Identity, reference::Edge::Identity),
        EdgeName::Scale => measure(args, cpu, a, edge::Scale, reference::Edge::Scale),
        EdgeName::Sigmoid => measure(args, cpu, a, edge::Sigmoid, reference::Edge::Sigmoid),
        EdgeName::Softmax => {
            let scale = T::from_f64(1.0 / (args.n as f64).sqrt());
            let wanted = reference::Edge::Softmax { scale: scale.to_f64() };
            measure(args, cpu, a, edge::Softmax { scale }, wanted)
        }
    }
}

fn measure<T: Scalar, F: Edge<T>>(
    args: &Common,
    cpu: &Cpu,
    a: &Csr<T>,
    edge: F,
    wanted: reference::Edge<'_>,
) -> Result<Measured> {
    let c = args.operand::<T>(cpu, a.rows(), 1)?;
    let b = args.operand::<T>(cpu, a.cols(), 2)?;
    let d = args.operand::<T>(cpu, a.cols(), 3)?;
    let mut e = Mat::zeros(a.rows(), args.n)?;
    let (plan, path, prepare_s, times) = match args.place(cpu, Op::FusedMm, a)? {
        Some((placed, prepare_s)) => {
            let (b, d) = (placed.share(b.as_ref())?, placed.share(d.as_ref())?);
            let times = Times::measure(args.repeat, || placed.fusedmm(edge, c.as_ref(), &b, &d, e.as_mut()))?;
            let (plan, path) = args.plan_of(&placed);
            (plan, path, prepare_s, times)
        }
        None => {
            let (prepared, prepare_s) = args.prepare(cpu, Op::FusedMm, a)?;
            let times = Times::measure(args.repeat, || {
                cpu.fusedmm(&prepared, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut())
            })?;
            (prepared.plan().to_string(), prepared.plan().path, prepare_s, times)
        }
    };
    let check = Check::when(args.verify, || {
        reference::fusedmm(a, wanted, c.as_ref(), b.as_ref(), d.as_ref())?.deviation(e.as_ref())
    })?;
    if let Some(path) = &args.out {
        write_mtx_dense(path, e.as_ref())?;
    }
    Ok(Measured {
        plan,
        path,
        prepare_s,
        times,
        check,
        flops: 4.0 * a.nnz() as f64 * args.n as f64,
        bytes: sparse_bytes(a, F::USES_VALUES) + 2.0 * dense_bytes::<T>(a.rows() + a.cols(), args.n),
        ran: Ran::on_cpu(),
    })
}
