//! `sparsimd spmm`: C = A B.

use sparsimd::plan::Op;
use sparsimd::{Cpu, Mat, MatRef, Result, Scalar, reference};

use super::Verdict;
use super::device;
use super::matrix::{Common, EdgeName, Measured, Ready, dense_bytes, sparse_bytes};
use super::reorder::Ordered;
use super::timing::{Dtype, Times};

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

fn measure<T: Scalar>(args: &Common, cpu: &Cpu, ordered: &Ordered<T>) -> Result<Measured> {
    let (a, given) = (ordered.matrix(), ordered.given());
    let (ready, setup) = args.ready(cpu, Op::Spmm, a)?;
    let b = ordered.by_cols(args.operand::<T>(cpu, "b", a.cols(), 1)?)?;
    let expected = |c: MatRef<'_, T>| reference::spmm(T::ONE, given, b.given.as_ref(), T::ZERO, c);
    let finish = |c: MatRef<'_, T>| ordered.in_given_rows(c, |c| args.finish(cpu, c, || expected(c)));
    let (times, check) = match ready {
        Ready::Whole(prepared) => {
            let mut c = Mat::zeros(a.rows(), args.n)?;
            let times = Times::measure(args.repeat, || cpu.spmm(T::ONE, &prepared, b.as_ref(), T::ZERO, c.as_mut()))?;
            (times, finish(c.as_ref())?)
        }
        Ready::NumaPrepared(placed) => {
            let (shared, mut c) = (placed.share(b.as_ref())?, placed.output(args.n)?);
            let times = Times::measure(args.repeat, || placed.spmm(T::ONE, &shared, T::ZERO, c.as_mut()))?;
            (times, finish(c.as_ref())?)
        }
    };
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes(a, true) + dense_bytes::<T>(a.rows() + a.cols(), args.n);
    Ok(setup.measured(times, check, (flops, bytes)))
}
