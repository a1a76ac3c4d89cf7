//! `sparsimd sddmm`: the entries of C B^T at the nonzeros of A, as they are or times a_ij.

use sparsimd::plan::Op;
use sparsimd::{Cpu, Number, Result, Stored, bf16, f16, reference};

use super::Verdict;
use super::device;
use super::matrix::{Common, EdgeName, Measured, Ready, dense_bytes, sparse_bytes};
use super::reorder::Ordered;
use super::timing::{Check, StoredDtype, Times};

/// Runs, verifies and times the operation.
pub fn run(args: &Common) -> Result<Verdict> {
    if !matches!(args.edge, EdgeName::Identity | EdgeName::Scale) {
        return Err(args.no_edge("sddmm"));
    }
    if args.ranks.mpi {
        return args.run_on_ranks(Op::Sddmm);
    }
    match args.dtype {
        StoredDtype::F32 => args.run::<f32>("sddmm", measure::<f32>, device::sddmm),
        StoredDtype::F64 => args.run::<f64>("sddmm", measure::<f64>, device::sddmm),
        StoredDtype::Bf16 => {
            args.run::<bf16>("sddmm", measure::<bf16>, |_, _, _| Err(args.no_dtype("sddmm on devices")))
        }
        StoredDtype::F16 => args.run::<f16>("sddmm", measure::<f16>, |_, _, _| Err(args.no_dtype("sddmm on devices"))),
    }
}

fn measure<D: Stored>(args: &Common, cpu: &Cpu, ordered: &Ordered<D::Scalar>) -> Result<Measured> {
    let (a, given) = (ordered.matrix(), ordered.given());
    let scaled = args.edge == EdgeName::Scale;
    let c = ordered.by_rows(args.operand::<D>(cpu, "c", a.rows(), 1)?)?;
    let b = ordered.by_cols(args.operand::<D>(cpu, "b", a.cols(), 2)?)?;
    let (ready, setup) = args.ready(cpu, Op::Sddmm, a)?;
    let finish = |out: &[D::Scalar]| {
        let out = ordered.in_given_places(out);
        let expected = || reference::sddmm(given, scaled, c.given.as_ref(), b.given.as_ref());
        let check = Check::when(args.verify, || cpu.install(|| expected()?.deviation_of_values(&out)))?;
        args.write_values(given, out.into_owned())?;
        Ok::<_, sparsimd::Error>(check)
    };
    let (times, check) = match ready {
        Ready::Whole(prepared) => {
            let mut out = vec![D::Scalar::ZERO; a.nnz()];
            let times = Times::measure(args.repeat, || match scaled {
                true => cpu.sddmm_scaled(&prepared, c.as_ref(), b.as_ref(), &mut out),
                false => cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out),
            })?;
            (times, finish(&out)?)
        }
        Ready::NumaPrepared(placed) => {
            let (own, shared, mut out) = (placed.owned(c.as_ref())?, placed.share(b.as_ref())?, placed.values()?);
            let times = Times::measure(args.repeat, || placed.sddmm(scaled, own.as_ref(), &shared, &mut out))?;
            (times, finish(&out)?)
        }
    };
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let dense = dense_bytes::<D>(a.rows() + a.cols(), args.n) + dense_bytes::<D::Scalar>(a.nnz(), 1);
    Ok(setup.measured(times, check, (flops, sparse_bytes(a, scaled) + dense)))
}
