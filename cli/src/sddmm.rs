//! `sparsimd sddmm`: the entries of C B^T at the nonzeros of A, as they are or times a_ij; or rows of C and B, element by element.

use sparsimd::ops::Arithmetic;
use sparsimd::plan::Op;
use sparsimd::reference::Expected;
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Result, Scalar, Stored, bf16, f16, reference};

use super::Verdict;
use super::device::{self, DeviceName};
use super::heads::{self, Heads};
use super::matrix::{Common, EdgeName, Measured, Ready, dense_bytes, sparse_bytes};
use super::matrix_streamed::{self, Passes, refused};
use super::reorder::{Order, Ordered};
use super::tensor_ops;
use super::timing::{Check, StoredDtype, Times};

/// What `sddmm` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    heads: Heads,
    /// Instead of dot products, rows of C and B by this operation, element by element: N numbers for each nonzero
    #[arg(long, value_enum, value_name = "OP")]
    elementwise: Option<tensor_ops::Op>,
    #[command(flatten)]
    passes: Passes,
}

/// Runs, verifies and times the operation.
pub fn run(args: &Args) -> Result<Verdict> {
    match args.elementwise {
        _ if args.passes.mib.is_some() && args.heads.are_asked_for() => Err(refused("heads")),
        None if args.heads.are_asked_for() => run_heads(&args.common, &args.heads),
        Some(_) if args.heads.are_asked_for() => {
            Err(Error::Argument { name: "heads", detail: "are for dot products: without --elementwise".to_owned() })
        }
        Some(_) if args.passes.mib.is_some() => Err(refused("rows element by element")),
        Some(op) => run_elementwise(&args.common, op.arithmetic()),
        None => run_dots(&args.common, args.passes.mib),
    }
}

/// Dot products of heads.
fn run_heads(args: &Common, heads: &Heads) -> Result<Verdict> {
    if args.edge != EdgeName::Identity {
        return Err(args.no_edge("sddmm with heads"));
    }
    if args.ranks.mpi {
        return Err(Common::not_on_ranks("heads"));
    }
    heads.check(args, "heads")?;
    match args.dtype {
        StoredDtype::F32 => {
            args.run::<f32>("sddmm", |args, cpu, a| heads::sddmm(heads, args, cpu, a), device::sddmm::<f32>)
        }
        StoredDtype::F64 => {
            args.run::<f64>("sddmm", |args, cpu, a| heads::sddmm(heads, args, cpu, a), device::sddmm::<f64>)
        }
        StoredDtype::Bf16 | StoredDtype::F16 => Err(args.no_dtype("sddmm with heads")),
    }
}

/// Rows element by element, on the processor.
fn run_elementwise(args: &Common, op: Arithmetic) -> Result<Verdict> {
    let refused = |name, detail: &str| Err(Error::Argument { name, detail: detail.to_owned() });
    if args.edge != EdgeName::Identity {
        return refused("edge", "is for dot products");
    }
    if args.place.device != DeviceName::Cpu {
        return refused("device", "rows element by element are for the processor");
    }
    if args.ranks.mpi {
        return Err(Common::not_on_ranks("rows element by element"));
    }
    if args.reorder != Order::None {
        return refused("reorder", "not with --elementwise: convert --reorder writes a reordered matrix");
    }
    let name = "sddmm-elementwise";
    match args.dtype {
        StoredDtype::F32 => args.run::<f32>(name, |args, cpu, a| elementwise(args, cpu, a, op), device::sddmm::<f32>),
        StoredDtype::F64 => args.run::<f64>(name, |args, cpu, a| elementwise(args, cpu, a, op), device::sddmm::<f64>),
        StoredDtype::Bf16 | StoredDtype::F16 => Err(args.no_dtype("sddmm element by element")),
    }
}

fn elementwise<T: Scalar>(args: &Common, cpu: &Cpu, ordered: &Ordered<T>, op: Arithmetic) -> Result<Measured> {
    let a = ordered.given();
    let c = args.operand::<T>(cpu, "c", a.rows(), 1)?;
    let b = args.operand::<T>(cpu, "b", a.cols(), 2)?;
    let (ready, setup) = args.ready::<T>(cpu, Op::Sddmm, a)?;
    let Ready::Whole(prepared) = ready else {
        let detail = "dot products alone are placed on several nodes: off".to_owned();
        return Err(Error::Argument { name: "numa", detail });
    };
    let mut out = Mat::zeros(a.nnz(), args.n)?;
    let times =
        Times::measure(args.repeat, || cpu.sddmm_elementwise(op, &prepared, c.as_ref(), b.as_ref(), out.as_mut()))?;
    let check = if args.verify { Check::of(wrong(op, a, c.as_ref(), b.as_ref(), out.as_ref())) } else { Check::NONE };
    args.write_dense(out.as_ref())?;
    let flops = a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes::<T>(a, false) + dense_bytes::<T>(a.rows() + a.cols() + a.nnz(), args.n);
    Ok(setup.measured(times, check, (flops, bytes)))
}

/// 0 if all of `out` is right, else infinity: a single operation is rounded alike everywhere.
fn wrong<T: Scalar>(op: Arithmetic, a: &Csr<T>, c: MatRef<'_, T>, b: MatRef<'_, T>, out: MatRef<'_, T>) -> f64 {
    let of = |x: T, z: T| match op {
        Arithmetic::Add => x + z,
        Arithmetic::Sub => x - z,
        Arithmetic::Mul => x * z,
        Arithmetic::Div => x / z,
    };
    let same = |x: T, y: T| x == y || x.to_f64().is_nan() && y.to_f64().is_nan();
    let row_ptr = a.pattern().row_ptr();
    let right = (0..a.rows()).all(|i| {
        (row_ptr[i]..row_ptr[i + 1]).all(|p| {
            let (c, b) = (c.row(i), b.row(a.pattern().col_idx()[p] as usize));
            out.row(p).iter().zip(c.iter().zip(b)).all(|(&out, (&c, &b))| same(out, of(c, b)))
        })
    });
    if right { 0.0 } else { f64::INFINITY }
}

/// Dot products.
fn run_dots(args: &Common, passes: Option<usize>) -> Result<Verdict> {
    if !matches!(args.edge, EdgeName::Identity | EdgeName::Scale) {
        return Err(args.no_edge("sddmm"));
    }
    if let Some(mib) = passes {
        return matrix_streamed::sddmm(args, mib);
    }
    if args.ranks.mpi {
        return args.run_on_ranks(Op::Sddmm, false);
    }
    match args.dtype {
        StoredDtype::F32 => args.run::<f32>("sddmm", measure::<f32>, device::sddmm::<f32>),
        StoredDtype::F64 => args.run::<f64>("sddmm", measure::<f64>, device::sddmm::<f64>),
        StoredDtype::Bf16 => args.run::<bf16>("sddmm", measure::<bf16>, device::sddmm::<bf16>),
        StoredDtype::F16 => args.run::<f16>("sddmm", measure::<f16>, device::sddmm::<f16>),
    }
}

fn measure<D: Stored>(args: &Common, cpu: &Cpu, ordered: &Ordered<D::Scalar>) -> Result<Measured> {
    let (a, given) = (ordered.matrix(), ordered.given());
    let scaled = args.edge == EdgeName::Scale;
    let c = ordered.by_rows(args.operand::<D>(cpu, "c", a.rows(), 1)?)?;
    let b = ordered.by_cols(args.operand::<D>(cpu, "b", a.cols(), 2)?)?;
    let (ready, setup) = args.ready::<D>(cpu, Op::Sddmm, a)?;
    let expected = || reference::sddmm(given, scaled, c.given.as_ref(), b.given.as_ref());
    let (times, check) = match ready {
        Ready::Whole(prepared) => {
            let mut out = vec![D::default(); a.nnz()];
            let times = Times::measure(args.repeat, || match scaled {
                true => cpu.sddmm_scaled(&prepared, c.as_ref(), b.as_ref(), &mut out),
                false => cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out),
            })?;
            (times, finish(args, cpu, ordered, &out, expected)?)
        }
        Ready::NumaPrepared(placed) => {
            let (own, shared, mut out) = (placed.owned(c.as_ref())?, placed.share(b.as_ref())?, placed.values()?);
            let times = Times::measure(args.repeat, || placed.sddmm(scaled, own.as_ref(), &shared, &mut out))?;
            (times, finish(args, cpu, ordered, &out, expected)?)
        }
    };
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let dense = dense_bytes::<D>(a.rows() + a.cols(), args.n) + dense_bytes::<D>(a.nnz(), 1);
    Ok(setup.measured(times, check, (flops, sparse_bytes::<D>(a, scaled) + dense)))
}

/// Compares the results with what is expected, if that is asked for, and writes them, if that is.
fn finish<V: Stored>(
    args: &Common,
    cpu: &Cpu,
    ordered: &Ordered<V::Scalar>,
    out: &[V],
    expected: impl FnOnce() -> Result<Expected> + Send,
) -> Result<Check> {
    let out = ordered.in_given_places(out);
    let deviation = || expected()?.stored_as::<V>().deviation_of_values(&out);
    let check = Check::when(args.verify, || cpu.install(deviation))?;
    args.write_values(ordered.given().pattern(), out.into_owned())?;
    Ok(check)
}
