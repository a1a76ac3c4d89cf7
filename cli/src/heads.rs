//! Heads, side by side in the columns of dense matrices: what the operations on several share, and SpMM and SDDMM of them.

use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::reference::Deviation;
use sparsimd::{Cpu, Csr, Error, Mat, MatRef, Prepared, Result, Scalar, reference};

use super::device::{DeviceName, Ran};
use super::matrix::{Common, Measured, REUSE, dense_bytes, sparse_bytes};
use super::reorder::{Order, Ordered};
use super::timing::{Check, Times, timed};

/// `--heads H`.
#[derive(Debug, clap::Args)]
pub struct Heads {
    /// Heads, side by side in the N columns of each dense matrix; more than one run straight from CSR
    #[arg(long = "heads", value_name = "H", default_value_t = 1)]
    pub count: usize,
}

impl Heads {
    /// Whether there is another number of them than one.
    pub fn are_asked_for(&self) -> bool {
        self.count != 1
    }

    /// What cannot be combined with heads and the other things that `what` has.
    pub fn check(&self, args: &Common, what: &str) -> Result<()> {
        let refused = |name, detail| Err(Error::Argument { name, detail });
        if args.place.device != DeviceName::Cpu {
            return refused("device", format!("{what} are for the processor"));
        }
        if args.reorder != Order::None {
            return refused("reorder", format!("not with {what}: convert --reorder writes a reordered matrix"));
        }
        if self.count == 0 || !args.n.is_multiple_of(self.count) {
            return refused("heads", format!("{} columns are not those of {} heads", args.n, self.count));
        }
        Ok(())
    }

    /// The values of `a` for each nonzero and head: those of head h are h + 1 times the matrix', so that no two are alike.
    fn values<T: Scalar>(&self, a: &Csr<T>) -> Vec<T> {
        let of_head = |h: usize| T::from_f64((h + 1) as f64);
        a.values().iter().flat_map(|&x| (0..self.count).map(move |h| of_head(h) * x)).collect()
    }

    /// The numbers of head `h`.
    fn of<T: Copy>(&self, numbers: &[T], h: usize) -> Vec<T> {
        numbers.iter().skip(h).step_by(self.count).copied().collect()
    }

    /// The largest error of all heads, if that is asked for.
    fn check_each(&self, args: &Common, cpu: &Cpu, each: impl Fn(usize) -> Result<Deviation> + Sync) -> Result<Check> {
        if !args.verify {
            return Ok(Check::NONE);
        }
        let errors = cpu.install(|| (0..self.count).map(|h| Ok(each(h)?.error)).collect::<Result<Vec<f64>>>())?;
        Ok(Check::of(errors.into_iter().fold(0.0, f64::max)))
    }
}

/// The columns of head `h` of `heads`.
fn head<T: Scalar>(x: MatRef<'_, T>, h: usize, heads: usize) -> Result<MatRef<'_, T>> {
    let width = x.cols() / heads;
    MatRef::new(x.data().get(h * width..).unwrap_or_default(), x.rows(), width, x.stride())
}

/// `a` in the tasks of the direct strategy, which heads are run in, and the seconds that took.
fn prepared<T: Scalar>(args: &Common, cpu: &Cpu, op: Op, a: &Csr<T>) -> Result<(Prepared<T>, f64)> {
    let reuse = args.repeat.unwrap_or(REUSE);
    timed(|| cpu.prepare(a, &PlanOptions::new(op, args.n).strategy(Strategy::Direct).reuse(reuse)))
}

/// C_ih = sum over the nonzeros p = (i, j) of v_ph B_jh.
pub fn spmm<T: Scalar>(heads: &Heads, args: &Common, cpu: &Cpu, ordered: &Ordered<T>) -> Result<Measured> {
    let (a, count, values) = (ordered.given(), heads.count, heads.values(ordered.given()));
    let b = args.operand::<T>(cpu, "b", a.cols(), 1)?;
    let (prepared, prepare_s) = prepared(args, cpu, Op::Spmm, a)?;
    let mut c = Mat::zeros(a.rows(), args.n)?;
    let times = Times::measure(args.repeat, || cpu.spmm_heads(&prepared, count, &values, b.as_ref(), c.as_mut()))?;
    let check = heads.check_each(args, cpu, |h| {
        let (a, c) = (Csr::new(a.pattern().clone(), heads.of(&values, h))?, head(c.as_ref(), h, count)?);
        reference::spmm(T::ONE, &a, head(b.as_ref(), h, count)?, T::ZERO, c)?.deviation(c)
    })?;
    args.write_dense(c.as_ref())?;
    Ok(measured(heads, &prepared, a, args.n, (times, check, prepare_s)))
}

/// out_ph = C_ih . B_jh for each nonzero p = (i, j).
pub fn sddmm<T: Scalar>(heads: &Heads, args: &Common, cpu: &Cpu, ordered: &Ordered<T>) -> Result<Measured> {
    let (a, count) = (ordered.given(), heads.count);
    let (c, b) = (args.operand::<T>(cpu, "c", a.rows(), 1)?, args.operand::<T>(cpu, "b", a.cols(), 2)?);
    let (prepared, prepare_s) = prepared(args, cpu, Op::Sddmm, a)?;
    let mut dots = vec![T::ZERO; a.nnz() * count];
    let times = Times::measure(args.repeat, || cpu.sddmm_heads(&prepared, count, c.as_ref(), b.as_ref(), &mut dots))?;
    let check = heads.check_each(args, cpu, |h| {
        let expected = reference::sddmm(a, false, head(c.as_ref(), h, count)?, head(b.as_ref(), h, count)?)?;
        expected.deviation_of_values(&heads.of(&dots, h))
    })?;
    args.write_dense(MatRef::new(&dots, a.nnz(), count, count)?)?;
    Ok(measured(heads, &prepared, a, args.n, (times, check, prepare_s)))
}

/// What it came to: H numbers for each nonzero are read or written.
fn measured<T: Scalar>(
    heads: &Heads,
    prepared: &Prepared<T>,
    a: &Csr<T>,
    n: usize,
    (times, check, prepare_s): (Times, Check, f64),
) -> Measured {
    let plan = format!("heads, straight from CSR; {}", prepared.plan());
    let dense = dense_bytes::<T>(a.rows() + a.cols(), n) + dense_bytes::<T>(a.nnz(), heads.count);
    let bytes = sparse_bytes::<T>(a, false) + dense;
    let (path, flops, ran) = (Strategy::Direct, 2.0 * a.nnz() as f64 * n as f64, Ran::on_cpu());
    Measured { plan, path, heads: heads.count, prepare_s, times, check, flops, bytes, numa: None, ran }
}
