//! `sparsimd spmm`: C = A B, also with another reduction than the sum or over a semiring.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use sparsimd::io::write_dense;
use sparsimd::ops::Reduction;
use sparsimd::plan::Op;
use sparsimd::semiring::BuiltIn;
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Number, Result, Scalar, Stored, bf16, f16, reference};

use super::Verdict;
use super::device::{self, DeviceName};
use super::heads::{self, Heads};
use super::matrix::{Common, EdgeName, Measured, Ready, dense_bytes, sparse_bytes};
use super::matrix_streamed::{self, Passes, refused};
use super::reorder::{Order, Ordered};
use super::timing::{Check, StoredDtype, Times};

/// What `spmm` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    heads: Heads,
    /// What becomes of the products of a row's nonzeros with rows of B, by column; 0 where there are none
    #[arg(long, value_enum, default_value_t = ReductionName::Sum)]
    reduce: ReductionName,
    /// Addition and multiplication of a semiring, such as min-plus; its neutral element where there are no nonzeros
    #[arg(long, value_name = "NAME", value_parser = named_semiring, conflicts_with = "reduce")]
    semiring: Option<Named>,
    /// With --reduce max or min, also find the nonzero that each element comes from, and write its position in the order of the matrix to
    /// this file, a .npy; -1 in rows without nonzeros
    #[arg(long, value_name = "FILE", conflicts_with = "semiring")]
    positions: Option<PathBuf>,
    #[command(flatten)]
    passes: Passes,
}

/// A semiring and its name.
type Named = (&'static str, BuiltIn);

/// The reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReductionName {
    /// Their sum
    Sum,
    /// Their sum by their number
    Mean,
    /// The largest
    Max,
    /// The smallest
    Min,
}

/// What is computed.
#[derive(Clone, Copy)]
enum Rule {
    Reduction(Reduction),
    Semiring(BuiltIn),
}

fn named_semiring(name: &str) -> Result<Named, String> {
    let names = || BuiltIn::NAMED.iter().map(|&(name, _)| name).collect::<Vec<_>>().join(", ");
    BuiltIn::NAMED.iter().find(|(known, _)| *known == name).copied().ok_or_else(|| format!("none of {}", names()))
}

impl Args {
    fn rule(&self) -> (&'static str, Rule) {
        if let Some((name, semiring)) = self.semiring {
            return (name, Rule::Semiring(semiring));
        }
        let (op, reduction) = match self.reduce {
            ReductionName::Sum => ("spmm", Reduction::Sum),
            ReductionName::Mean => ("spmm-mean", Reduction::Mean),
            ReductionName::Max => ("spmm-max", Reduction::Max),
            ReductionName::Min => ("spmm-min", Reduction::Min),
        };
        (op, Rule::Reduction(reduction))
    }

    /// What heads cannot be combined with.
    fn check_heads(&self) -> Result<()> {
        if self.rule().0 != "spmm" || self.positions.is_some() {
            let detail = "are for sums: without --reduce, --semiring and --positions".to_owned();
            return Err(Error::Argument { name: "heads", detail });
        }
        if self.common.ranks.mpi {
            return Err(Common::not_on_ranks("heads"));
        }
        self.heads.check(&self.common, "heads")
    }

    /// What positions cannot be combined with.
    fn check_positions(&self, rule: Rule) -> Result<()> {
        let refused = |detail: &str| Err(Error::Argument { name: "positions", detail: detail.to_owned() });
        if !matches!(rule, Rule::Reduction(Reduction::Max | Reduction::Min)) {
            return refused("are for --reduce max and min");
        }
        if self.common.reorder != Order::None {
            return refused("not with --reorder: convert --reorder writes a reordered matrix");
        }
        Ok(())
    }
}

/// Runs, verifies and times the operation.
pub fn run(args: &Args) -> Result<Verdict> {
    let common = &args.common;
    if common.edge != EdgeName::Identity {
        return Err(common.no_edge("spmm"));
    }
    if let Some(mib) = args.passes.mib {
        return match args.rule().0 {
            _ if args.heads.are_asked_for() => Err(refused("heads")),
            _ if args.positions.is_some() => Err(refused("positions")),
            "spmm" => matrix_streamed::spmm(common, mib),
            name => Err(refused(name)),
        };
    }
    if args.heads.are_asked_for() {
        args.check_heads()?;
    }
    if common.ranks.mpi {
        return match args.rule().0 {
            _ if args.positions.is_some() => Err(Common::not_on_ranks("positions")),
            "spmm" => common.run_on_ranks(Op::Spmm, false),
            name => Err(Common::not_on_ranks(name)),
        };
    }
    match common.dtype {
        StoredDtype::F32 => run_as::<f32>(args),
        StoredDtype::F64 => run_as::<f64>(args),
        StoredDtype::Bf16 => run_narrow::<bf16>(args),
        StoredDtype::F16 => run_narrow::<f16>(args),
    }
}

fn run_as<T: device::DeviceScalar>(args: &Args) -> Result<Verdict> {
    let (op, rule) = args.rule();
    if args.heads.are_asked_for() {
        return args.common.run::<T>(op, |common, cpu, a| heads::spmm(&args.heads, common, cpu, a), device::spmm::<T>);
    }
    if args.positions.is_some() {
        args.check_positions(rule)?;
    } else if matches!(rule, Rule::Reduction(Reduction::Sum)) {
        return args.common.run::<T>(op, measure::<T>, device::spmm::<T>);
    }
    if args.common.place.device != DeviceName::Cpu {
        let name = if args.semiring.is_some() { "semiring" } else { "reduce" };
        return Err(Error::Argument { name, detail: format!("{op} runs on the processor alone") });
    }
    if let Some(path) = &args.positions {
        return args.common.run::<T>(
            op,
            |common, cpu, ordered| measure_positions(common, cpu, ordered, rule, path),
            device::spmm::<T>,
        );
    }
    args.common.run::<T>(op, |common, cpu, ordered| measure_rule(common, cpu, ordered, rule), device::spmm::<T>)
}

/// Sums alone, and on the processor.
fn run_narrow<D: device::Portable>(args: &Args) -> Result<Verdict> {
    let (op, rule) = args.rule();
    if args.heads.are_asked_for() {
        return Err(args.common.no_dtype("spmm with heads"));
    }
    if args.positions.is_some() || !matches!(rule, Rule::Reduction(Reduction::Sum)) {
        return Err(args.common.no_dtype(op));
    }
    args.common.run::<D>(op, measure::<D>, device::spmm::<D>)
}

/// The sum.
fn measure<D: Stored>(args: &Common, cpu: &Cpu, ordered: &Ordered<D::Scalar>) -> Result<Measured> {
    let (one, zero) = (D::Scalar::ONE, D::Scalar::ZERO);
    let (a, given) = (ordered.matrix(), ordered.given());
    let (ready, setup) = args.ready::<D>(cpu, Op::Spmm, a)?;
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
    Ok(setup.measured(times, check, work::<D>(args, ordered)))
}

/// Anything else.
fn measure_rule<T: Scalar>(args: &Common, cpu: &Cpu, ordered: &Ordered<T>, rule: Rule) -> Result<Measured> {
    let (a, given) = (ordered.matrix(), ordered.given());
    let (ready, setup) = args.ready::<T>(cpu, Op::Spmm, a)?;
    let Ready::Whole(prepared) = ready else {
        let detail = "sums alone are placed on several nodes: off".to_owned();
        return Err(Error::Argument { name: "numa", detail });
    };
    let b = ordered.by_cols(args.operand::<T>(cpu, "b", a.cols(), 1)?)?;
    let mut c = Mat::zeros(a.rows(), args.n)?;
    let times = Times::measure(args.repeat, || match rule {
        Rule::Reduction(reduction) => cpu.spmm_reduce(reduction, &prepared, b.as_ref(), c.as_mut()),
        Rule::Semiring(semiring) => cpu.spmm_semiring(semiring, &prepared, b.as_ref(), c.as_mut()),
    })?;
    let expected = || match rule {
        Rule::Reduction(reduction) => reference::reduce(reduction, given, b.given.as_ref()),
        Rule::Semiring(semiring) => reference::semiring(semiring, given, b.given.as_ref()),
    };
    let check = ordered.in_given_rows(c.as_ref(), |c| args.finish(cpu, c, expected))?;
    Ok(setup.measured(times, check, work::<T>(args, ordered)))
}

/// The maximum or minimum, and where it comes from.
fn measure_positions<T: Scalar>(
    args: &Common,
    cpu: &Cpu,
    ordered: &Ordered<T>,
    rule: Rule,
    path: &Path,
) -> Result<Measured> {
    let a = ordered.given();
    let (Rule::Reduction(reduction), (Ready::Whole(prepared), setup)) = (rule, args.ready::<T>(cpu, Op::Spmm, a)?)
    else {
        let detail = "sums alone are placed on several nodes: off".to_owned();
        return Err(Error::Argument { name: "numa", detail });
    };
    let b = args.operand::<T>(cpu, "b", a.cols(), 1)?;
    let (mut c, mut positions) = (Mat::zeros(a.rows(), args.n)?, vec![0u32; a.rows() * args.n]);
    let times = Times::measure(args.repeat, || {
        cpu.spmm_reduce_positions(reduction, &prepared, b.as_ref(), c.as_mut(), &mut positions)
    })?;
    let mut check = args.finish(cpu, c.as_ref(), || reference::reduce(reduction, a, b.as_ref()))?;
    if check.max_err.is_some()
        && !(0..a.rows()).all(|i| (0..args.n).all(|k| is_from(a, &b, c[(i, k)], (i, k), positions[i * args.n + k])))
    {
        check = Check::of(f64::INFINITY);
    }
    // Exact: a number of f64 has 53 bits.
    let written = Mat::from_fn(a.rows(), args.n, |i, k| match positions[i * args.n + k] {
        u32::MAX => -1.0,
        position => f64::from(position),
    })?;
    write_dense(path, written.as_ref())?;
    Ok(setup.measured(times, check, work::<T>(args, ordered)))
}

/// Whether `c`, the element (i, k) of the result, is the term of the nonzero at `position`, or there is none and it is 0.
fn is_from<T: Scalar>(a: &Csr<T>, b: &Mat<T>, c: T, (i, k): (usize, usize), position: u32) -> bool {
    let row = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
    if position == u32::MAX {
        return row.is_empty() && c == T::ZERO;
    }
    let p = position as usize;
    let term = || a.values()[p] * b[(a.pattern().col_idx()[p] as usize, k)];
    row.contains(&p) && (term() == c || c.to_f64().is_nan() && term().to_f64().is_nan())
}

/// Operations, two for each nonzero and column, and compulsory traffic.
fn work<D: Stored>(args: &Common, ordered: &Ordered<D::Scalar>) -> (f64, f64) {
    let a = ordered.matrix();
    let bytes = sparse_bytes::<D>(a, true) + dense_bytes::<D>(a.rows() + a.cols(), args.n);
    (2.0 * a.nnz() as f64 * args.n as f64, bytes)
}
