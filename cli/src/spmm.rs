//! `sparsimd spmm`: C = A B.

use sparsimd::plan::Op;
use sparsimd::{Cpu, Mat, MatRef, Result, Scalar, Stored, bf16, f16, reference};

use super::Verdict;
use super::device;
use super::matrix::{Common, EdgeName, Measured, Ready, dense_bytes, sparse_bytes};
use super::reorder::Ordered;
use super::timing::{StoredDtype, Times};

/// Runs, verifies and times the operation.
pub fn run(args: &Common) -> Result<Verdict> {
    if args.edge != EdgeName::Identity {
        return Err(args.no_edge("spmm"));
    }
    match args.dtype {
        StoredDtype::F32 => args.run::<f32>("spmm", measure::<f32>, device::spmm),
        StoredDtype::F64 => args.run::<f64>("spmm", measure::<f64>, device::spmm),
        StoredDtype::Bf16 => args.run::<bf16>("spmm", measure::<bf16>, |_, _, _| Err(args.no_dtype("spmm on devices"))),
        StoredDtype::F16 => args.run::<f16>("spmm", measure::<f16>, |_, _, _| Err(args.no_dtype("spmm on devices"))),
    }
}

fn measure<D: Stored>(args: &Common, cpu: &Cpu, ordered: &Ordered<D::Scalar>) -> Result<Measured> {
    let (one, zero) = (D::Scalar::ONE, D::Scalar::ZERO);
    let (a, given) = (ordered.matrix(), ordered.given());
    let (ready, setup) = args.ready(cpu, Op::Spmm, a)?;
    let b = ordered.by_cols(args.operand::<D>(cpu, "b", a.cols(), 1)?)?;
    let expected = |c: MatRef<'_, D>| reference::spmm(one, given, b.given.as_ref(), zero, c);
    let finish = |c: MatRef<'_, D>| ordered.in_given_rows(c, |c| args.finish(cpu, c, || expected(c)));
    let (times, check) = match ready {
        Ready::Whole(prepared) => {
            let mut c = Mat::zeros(a.rows(), args.n)?;
            let times = Times::measure(args.repeat, || cpu.spmm(one, &prepared, b.as_ref(), zero, c.as_mut()))?;
            (times, finish(c.as_ref())?)
        }
        Ready::NumaPrepared(placed) => {
            let (shared, mut c) = (placed.share(b.as_ref())?, placed.output(args.n)?);
            let times = Times::measure(args.repeat, || placed.spmm(one, &shared, zero, c.as_mut()))?;
            (times, finish(c.as_ref())?)
        }
    };
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes(a, true) + dense_bytes::<D>(a.rows() + a.cols(), args.n);
    Ok(setup.measured(times, check, (flops, bytes)))
}
