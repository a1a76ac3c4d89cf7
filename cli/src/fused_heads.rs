//! `sparsimd fusedmm` with heads, sums for scores, dropout or gradients.

use std::time::Instant;

use clap::ValueEnum;
use sparsimd::edge::Edge;
use sparsimd::ops::{EdgeWeighting, FusedGradient};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::reference::{Scores, Weighting};
use sparsimd::{Cpu, Csr, Mat, Result, Scalar, generate, reference};

use super::device::Ran;
use super::heads::Heads;
use super::matrix::{Common, Measured, REUSE, dense_bytes, sparse_bytes};
use super::reorder::Ordered;
use super::timing::{Check, Times};

/// What FusedMM takes besides the rest.
#[derive(Debug, clap::Args)]
pub struct Fused {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    heads: Heads,
    /// Scores: dot products of rows of C and B, or, as in graph attention, sums of one number for each row and head and one for each column
    #[arg(long, value_enum, default_value_t = ScoresName::Dots)]
    scores: ScoresName,
    /// Probability that a weight is dropped
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    dropout: f64,
    /// Leave the nonzeros (i, j) with j > i out: the causal mask of attention
    #[arg(long)]
    causal: bool,
    /// Time the gradients by all dense operands (and by the values of A, with --edge scale) instead of the result; --verify checks both
    #[arg(long)]
    pub backward: bool,
}

/// Where scores come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScoresName {
    /// C_i . B_j
    Dots,
    /// a_i + b_j
    Sums,
}

impl Fused {
    /// Whether the operation is more than FusedMM as it ever was.
    pub fn is_general(&self) -> bool {
        self.heads.are_asked_for() || self.scores != ScoresName::Dots || self.dropout != 0.0 || self.backward
    }

    /// Whether ranks have it, or its gradients.
    pub fn is_for_ranks(&self) -> bool {
        !self.heads.are_asked_for() && self.scores == ScoresName::Dots && self.dropout == 0.0 && !self.causal
    }

    /// The nonzeros of `a` that count.
    pub fn masked<T: Scalar>(&self, a: Csr<T>) -> Csr<T> {
        if self.causal { a.filtered(|i, j| j <= i) } else { a }
    }

    /// What cannot be combined.
    pub fn check(&self) -> Result<()> {
        self.heads.check(&self.common, "heads, sums, dropout and gradients")
    }
}

/// Runs, verifies and times it.
pub fn measure<T: Scalar>(fused: &Fused, cpu: &Cpu, ordered: &Ordered<T>) -> Result<Measured> {
    let (a, args, heads) = (ordered.given(), &fused.common, fused.heads.count);
    let sums = fused.scores == ScoresName::Sums;
    let operand = |name, rows, which| args.operand::<T>(cpu, name, rows, which);
    let (left, right) = match sums {
        true => {
            (first_columns(&operand("c", a.rows(), 1)?, heads)?, first_columns(&operand("b", a.cols(), 2)?, heads)?)
        }
        false => (operand("c", a.rows(), 1)?, operand("b", a.cols(), 2)?),
    };
    let d = operand("d", a.cols(), 3)?;
    let de = cpu.install(|| generate::uniform_dense::<T>(a.rows(), args.n, args.source.seed.wrapping_add(4)))?;
    let start = Instant::now();
    let options = PlanOptions::new(Op::FusedMm, args.n).strategy(args.path()).reuse(args.repeat.unwrap_or(REUSE));
    let prepared = cpu.prepare_differentiable(a, &options)?;
    let prepare_s = start.elapsed().as_secs_f64();
    let (edge, wanted) = args.edge.function::<T>(args.n / heads);
    let weights = match sums {
        true => EdgeWeighting::sums(edge, left.as_ref(), right.as_ref()),
        false => EdgeWeighting::dots(edge, left.as_ref(), right.as_ref()).heads(heads),
    };
    let weights = weights.dropout(fused.dropout, args.source.seed);
    let scores =
        if sums { Scores::Sums(left.as_ref(), right.as_ref()) } else { Scores::Dots(left.as_ref(), right.as_ref()) };
    let dropout = (fused.dropout > 0.0).then_some((fused.dropout, args.source.seed));
    let weighting = Weighting { edge: wanted, scores, heads, bias: None, dropout };

    let (mut e, mut lse) = (Mat::zeros(a.rows(), args.n)?, Mat::zeros(a.rows(), heads)?);
    let mut forward = || cpu.fusedmm_heads(&prepared, &weights, d.as_ref(), e.as_mut(), Some(lse.as_mut()));
    let (times, check);
    if fused.backward {
        forward()?;
        let mut gradients = Gradients::new(&left, &right, &d, a, edge.uses_values())?;
        times = Times::measure(args.repeat, || {
            cpu.fusedmm_gradient(&prepared, &weights, d.as_ref(), Some(lse.as_ref()), de.as_ref(), gradients.out())
        })?;
        let result = args.finish(cpu, e.as_ref(), || Ok(reference::fusedmm_heads(a, weighting, d.as_ref())?.0))?;
        let wanted = || reference::fusedmm_gradient(a, weighting, d.as_ref(), de.as_ref());
        check = match result.max_err {
            Some(error) => Check::of(error.max(cpu.install(|| gradients.deviation(wanted()?))?)),
            None => result,
        };
    } else {
        times = Times::measure(args.repeat, forward)?;
        check = args.finish(cpu, e.as_ref(), || Ok(reference::fusedmm_heads(a, weighting, d.as_ref())?.0))?;
    }

    // Products of 2 nnz N operations each: of the scores, unless they are sums, and with D; for the gradients, by both operands, too.
    let products = match (fused.backward, sums) {
        (false, false) => 2.0,
        (false, true) => 1.0,
        (true, false) => 5.0,
        (true, true) => 2.0,
    };
    let flops = 2.0 * products * a.nnz() as f64 * args.n as f64;
    let dense = |rows: usize| dense_bytes::<T>(rows, args.n);
    let bytes = sparse_bytes::<T>(a, edge.uses_values()) + products * dense(a.rows() + a.cols());
    let [dots, rows, columns] = prepared.plans();
    let plan = if heads > 1 {
        format!("heads, straight from CSR; dots: {dots}; sums: {rows}; by columns: {columns}")
    } else {
        format!("dots: {dots}; sums: {rows}; by columns: {columns}")
    };
    let path = if heads > 1 { sparsimd::plan::Strategy::Direct } else { rows.strategy() };
    Ok(Measured { plan, path, heads, prepare_s, times, check, flops, bytes, numa: None, ran: Ran::on_cpu() })
}

/// The first `cols` columns of `x`.
fn first_columns<T: Scalar>(x: &Mat<T>, cols: usize) -> Result<Mat<T>> {
    Mat::from_fn(x.rows(), cols, |i, j| x.row(i)[j])
}

/// Room for all gradients.
struct Gradients<T> {
    left: Mat<T>,
    right: Mat<T>,
    d: Mat<T>,
    values: Option<Vec<T>>,
}

impl<T: Scalar> Gradients<T> {
    fn new(left: &Mat<T>, right: &Mat<T>, d: &Mat<T>, a: &Csr<T>, values: bool) -> Result<Self> {
        let zeros = |like: &Mat<T>| Mat::zeros(like.rows(), like.cols());
        let values = values.then(|| vec![T::ZERO; a.nnz()]);
        Ok(Self { left: zeros(left)?, right: zeros(right)?, d: zeros(d)?, values })
    }

    fn out(&mut self) -> FusedGradient<'_, T> {
        let Self { left, right, d, values } = self;
        let (left, right, d) = (left.as_mut(), right.as_mut(), d.as_mut());
        FusedGradient { left, right, d, values: values.as_deref_mut(), bias: None }
    }

    /// The largest error in units of its bound.
    fn deviation(&self, wanted: reference::FusedGradients) -> Result<f64> {
        let mut error = 0.0f64;
        for (wanted, got) in [(&wanted.left, &self.left), (&wanted.right, &self.right), (&wanted.d, &self.d)] {
            error = error.max(wanted.deviation(got.as_ref())?.error);
        }
        if let Some(values) = &self.values {
            error = error.max(wanted.values.deviation_of_values(values)?.error);
        }
        Ok(error)
    }
}
