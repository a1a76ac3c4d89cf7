//! `sparsimd spmm`: C = A B.

use sparsimd::io::write_mtx_dense;
use sparsimd::ops::Placed;
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Mat, Result, Scalar, reference};

use super::Verdict;
use super::device::{self, Ran};
use super::matrix::{Common, EdgeName, Measured, dense_bytes, sparse_bytes};
use super::timing::{Check, Dtype, Times};

/// Runs, verifies and times the operation.
pub fn run(args: &Common) -> Result<Verdict> {
    if args.edge != EdgeName::Identity {
        return Err(args.no_edge("spmm"));
    }
    match args.dtype {
        Dtype::F32 => args.run::<f32>("spmm", measure, device::spmm),
        Dtype::F64 => args.run::<f64>("spmm", measure, device::spmm),
    }
}

fn measure<T: Scalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    if let Some((placed, prepare_s)) = args.place(cpu, Op::Spmm, a)? {
        return measure_placed(args, cpu, a, &placed, prepare_s);
    }
    let (prepared, prepare_s) = args.prepare(cpu, Op::Spmm, a)?;
    let b = args.operand::<T>(cpu, a.cols(), 1)?;
    let mut c = Mat::zeros(a.rows(), args.n)?;
    let times = Times::measure(args.repeat, || cpu.spmm(T::ONE, &prepared, b.as_ref(), T::ZERO, c.as_mut()))?;
    let check = Check::when(args.verify, || {
        reference::spmm(T::ONE, a, b.as_ref(), T::ZERO, c.as_ref())?.deviation(c.as_ref())
    })?;
    if let Some(out) = &args.out {
        write_mtx_dense(out, c.as_ref())?;
    }
    Ok(Measured {
        plan: prepared.plan().to_string(),
        path: prepared.plan().path,
        prepare_s,
        times,
        check,
        flops: 2.0 * a.nnz() as f64 * args.n as f64,
        bytes: sparse_bytes(a, true) + dense_bytes::<T>(a.rows() + a.cols(), args.n),
        ran: Ran::on_cpu(),
    })
}

/// As [`measure`], with rows on the NUMA nodes that own them.
fn measure_placed<T: Scalar>(
    args: &Common,
    cpu: &Cpu,
    a: &Csr<T>,
    placed: &Placed<T>,
    prepare_s: f64,
) -> Result<Measured> {
    let b = args.operand::<T>(cpu, a.cols(), 1)?;
    let shared = placed.share(b.as_ref())?;
    let mut c = placed.output(args.n)?;
    let times = Times::measure(args.repeat, || placed.spmm(T::ONE, &shared, T::ZERO, c.as_mut()))?;
    let check = Check::when(args.verify, || {
        reference::spmm(T::ONE, a, b.as_ref(), T::ZERO, c.as_ref())?.deviation(c.as_ref())
    })?;
    if let Some(out) = &args.out {
        write_mtx_dense(out, c.as_ref())?;
    }
    let (plan, path) = args.plan_of(placed);
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes(a, true) + dense_bytes::<T>(a.rows() + a.cols(), args.n);
    Ok(Measured { plan, path, prepare_s, times, check, flops, bytes, ran: Ran::on_cpu() })
}
