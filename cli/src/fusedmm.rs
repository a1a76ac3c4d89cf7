//! `sparsimd fusedmm`: E = f(C B^T at the nonzeros of A) D.

use sparsimd::edge::Edge;
use sparsimd::plan::Op;
use sparsimd::{Cpu, Mat, MatRef, Result, Stored, bf16, f16, reference};

use super::Verdict;
use super::device;
use super::fused_heads::{self, Fused};
use super::matrix::{Common, Measured, Ready, dense_bytes, sparse_bytes};
use super::reorder::Ordered;
use super::timing::{StoredDtype, Times};

/// Runs, verifies and times the operation.
pub fn run(fused: &Fused) -> Result<Verdict> {
    let args = &fused.common;
    if args.ranks.mpi {
        return match fused.is_for_ranks() {
            true => args.run_on_ranks(Op::FusedMm, fused.backward),
            false => Err(Common::not_on_ranks("heads, sums, dropout and causal masks")),
        };
    }
    if fused.is_general() {
        fused.check()?;
        let op = if fused.backward { "fusedmm_gradient" } else { "fusedmm" };
        return match args.dtype {
            StoredDtype::F32 => general::<f32>(fused, op),
            StoredDtype::F64 => general::<f64>(fused, op),
            StoredDtype::Bf16 | StoredDtype::F16 => Err(args.no_dtype("fusedmm with heads, masks or gradients")),
        };
    }
    match args.dtype {
        StoredDtype::F32 => args.run_on::<f32>("fusedmm", |a| fused.masked(a), measure::<f32>, device::fusedmm::<f32>),
        StoredDtype::F64 => args.run_on::<f64>("fusedmm", |a| fused.masked(a), measure::<f64>, device::fusedmm::<f64>),
        StoredDtype::Bf16 => {
            args.run_on::<bf16>("fusedmm", |a| fused.masked(a), measure::<bf16>, device::fusedmm::<bf16>)
        }
        StoredDtype::F16 => args.run_on::<f16>("fusedmm", |a| fused.masked(a), measure::<f16>, device::fusedmm::<f16>),
    }
}

fn general<T: device::DeviceScalar>(fused: &Fused, op: &'static str) -> Result<Verdict> {
    let measure = |_: &Common, cpu: &Cpu, a: &Ordered<T>| fused_heads::measure(fused, cpu, a);
    fused.common.run_on::<T>(op, |a| fused.masked(a), measure, device::fusedmm::<T>)
}

fn measure<D: Stored>(args: &Common, cpu: &Cpu, ordered: &Ordered<D::Scalar>) -> Result<Measured> {
    let (edge, wanted) = args.edge.function::<D::Scalar>(args.n);
    let (a, given) = (ordered.matrix(), ordered.given());
    let c = ordered.by_rows(args.operand::<D>(cpu, "c", a.rows(), 1)?)?;
    let b = ordered.by_cols(args.operand::<D>(cpu, "b", a.cols(), 2)?)?;
    let d = ordered.by_cols(args.operand::<D>(cpu, "d", a.cols(), 3)?)?;
    let width = d.given.cols();
    let (ready, setup) = args.ready::<D>(cpu, Op::FusedMm, a)?;
    let expected = || reference::fusedmm(given, wanted, c.given.as_ref(), b.given.as_ref(), d.given.as_ref());
    let finish = |e: MatRef<'_, D>| ordered.in_given_rows(e, |e| args.finish(cpu, e, expected));
    let (times, check) = match ready {
        Ready::Whole(prepared) => {
            let mut e = Mat::zeros(a.rows(), width)?;
            let times = Times::measure(args.repeat, || {
                cpu.fusedmm(&prepared, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut())
            })?;
            (times, finish(e.as_ref())?)
        }
        Ready::NumaPrepared(placed) => {
            let (own, b, d) = (placed.owned(c.as_ref())?, placed.share(b.as_ref())?, placed.share(d.as_ref())?);
            let mut e = placed.output(width)?;
            let times = Times::measure(args.repeat, || placed.fusedmm(edge, own.as_ref(), &b, &d, e.as_mut()))?;
            (times, finish(e.as_ref())?)
        }
    };
    let flops = 2.0 * a.nnz() as f64 * (args.n + width) as f64;
    let bytes = sparse_bytes::<D>(a, edge.uses_values()) + dense_bytes::<D>(a.rows() + a.cols(), args.n + width);
    Ok(setup.measured(times, check, (flops, bytes)))
}
