//! `sparsimd sddmm`: the entries of C B^T at the nonzeros of A, as they are or times a_ij.

use sparsimd::io::{Matrix, write_mtx};
use sparsimd::plan::Op;
use sparsimd::{Cpu, Csr, Result, Scalar, reference};

use super::Verdict;
use super::device::{self, Ran};
use super::matrix::{Common, EdgeName, Measured, dense_bytes, sparse_bytes};
use super::timing::{Check, Dtype, Times};

/// Runs, verifies and times the operation.
pub fn run(args: &Common) -> Result<Verdict> {
    if !matches!(args.edge, EdgeName::Identity | EdgeName::Scale) {
        return Err(args.no_edge("sddmm"));
    }
    match args.dtype {
        Dtype::F32 => args.run::<f32>("sddmm", measure, device::sddmm),
        Dtype::F64 => args.run::<f64>("sddmm", measure, device::sddmm),
    }
}

fn measure<T: Scalar>(args: &Common, cpu: &Cpu, a: &Csr<T>) -> Result<Measured> {
    let scaled = args.edge == EdgeName::Scale;
    let c = args.operand::<T>(cpu, a.rows(), 1)?;
    let b = args.operand::<T>(cpu, a.cols(), 2)?;
    let mut out = vec![T::ZERO; a.nnz()];
    let (plan, path, prepare_s, times) = match args.place(cpu, Op::Sddmm, a)? {
        Some((placed, prepare_s)) => {
            let shared = placed.share(b.as_ref())?;
            let times = Times::measure(args.repeat, || placed.sddmm(scaled, c.as_ref(), &shared, &mut out))?;
            let (plan, path) = args.plan_of(&placed);
            (plan, path, prepare_s, times)
        }
        None => {
            let (prepared, prepare_s) = args.prepare(cpu, Op::Sddmm, a)?;
            let times = Times::measure(args.repeat, || match scaled {
                true => cpu.sddmm_scaled(&prepared, c.as_ref(), b.as_ref(), &mut out),
                false => cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out),
            })?;
            (prepared.plan().to_string(), prepared.plan().path, prepare_s, times)
        }
    };
    let check =
        Check::when(args.verify, || reference::sddmm(a, scaled, c.as_ref(), b.as_ref())?.deviation_of_values(&out))?;
    if let Some(path) = &args.out {
        write_mtx(path, &Matrix::Values(Csr::new(a.pattern().clone(), out)?))?;
    }
    Ok(Measured {
        plan,
        path,
        prepare_s,
        times,
        check,
        flops: 2.0 * a.nnz() as f64 * args.n as f64,
        bytes: sparse_bytes(a, scaled) + dense_bytes::<T>(a.rows() + a.cols(), args.n) + dense_bytes::<T>(a.nnz(), 1),
        ran: Ran::on_cpu(),
    })
}
