//! The CP decomposition: by alternating least squares (here), all factors at once ([`opt`]), and of counts ([`apr`]).
//!
//! X ~ sum_r lambda_r a_r o b_r o c_r ..., the columns of every factor of length 1.
//! ```text
//! repeat: for every mode n                        in the order of the tensor's sweep
//!             M = MTTKRP of X in mode n           from partial products shared between modes, where the plan says so
//!             V = elementwise product of A_m^T A_m for m != n, + ridge I
//!             A_n = M V^+                         or, non-negative, one pass of HALS over A_n's columns
//!             lambda = lengths of A_n's columns;  A_n = A_n / lambda
//!         fit = 1 - |X - model| / |X|,  |X - model|^2 = |X|^2 - 2 <M, A_n lambda> + lambda^T (V * A_n^T A_n) lambda
//! ```
//!
//! Factors may be cut by rows between several executors ([`CpShare`]): the sums over rows are then those of all of them.
//!
//! Small matrices are in double precision, whatever the element type; sums over rows are made of chunks of fixed size,
//! added in order, so that a run has the same bits every time and a resumed one those of an unbroken one.

pub(crate) mod apr;
mod checkpoint;
mod dense;
#[cfg(feature = "vulkan")]
mod device;
mod lbfgs;
pub(crate) mod opt;
mod sections;

use std::cell::RefCell;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use sparsimd_kernels::Scalar;

use self::dense::{Small, Weights, gram, hals, inner_product, pseudo_inverse, settle};
pub use self::sections::CpSection;
use super::converged;
use crate::cpu::Cpu;
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::generate::uniform_rows;
use crate::ops::{MttkrpTensor, StreamedTensor, SweepState};

/// Columns that a decomposition may have: their Gram matrices stay in L2.
pub const MAX_CP_RANK: usize = 128;

/// What a decomposition starts from.
#[derive(Clone, Debug)]
pub enum CpInit<T> {
    /// Uniform random factors from this seed.
    Seed(u64),
    /// These factors, one of R columns per mode.
    Factors(Vec<Mat<T>>),
    /// What an earlier run had reached.
    Resume(CpState<T>),
}

/// How to decompose.
#[derive(Clone, Debug)]
pub struct CpOptions<T> {
    /// Number of components R.
    pub rank: usize,
    /// Most iterations, those of a resumed run included.
    pub iterations: usize,
    /// Ends when the fit improves by less than this; 0 for never. Of [`Cpu::cp_apr`], the violation to end at.
    pub tolerance: f64,
    /// Added to the diagonal of V; 0 for none.
    pub ridge: f64,
    /// Whether all factors are kept non-negative.
    pub nonnegative: bool,
    /// Where it starts.
    pub init: CpInit<T>,
}

impl<T: Scalar> CpOptions<T> {
    /// 50 iterations at most, tolerance 1e-5, no ridge, any sign, from seed 0.
    pub fn new(rank: usize) -> Self {
        Self { rank, iterations: 50, tolerance: 1e-5, ridge: 0.0, nonnegative: false, init: CpInit::Seed(0) }
    }
}

/// The model after some iterations: all that the next one depends on.
#[derive(Clone, Debug)]
pub struct CpState<T> {
    /// One matrix of R columns per mode, each of length 1 (or 0); of [`Cpu::cp_apr`], each adding up to 1 (or 0).
    pub factors: Vec<Mat<T>>,
    /// The weight of each component.
    pub lambda: Vec<f64>,
    /// The fit after each iteration.
    pub fits: Vec<f64>,
    /// What else the method's next iteration depends on: of [`Cpu::cp_opt`], the factors as they were reached and L-BFGS's steps; of
    /// [`Cpu::cp_apr`], whether it has converged. Empty for [`Cpu::cp_als`], and for a method that is to begin anew from the model.
    pub memory: Vec<Vec<f64>>,
}

/// One iteration's outcome.
#[derive(Clone, Copy, Debug)]
pub struct CpIteration {
    /// Counted from 1, those before a resumption included.
    pub number: usize,
    /// 1 - |X - model| / |X|; 1 for a tensor of zeros.
    pub fit: f64,
    /// Time of the iteration.
    pub time: Duration,
    /// The part of it that MTTKRP took, or what the method has in its place.
    pub mttkrp: Duration,
    /// What the method minimises: half of |X - model|^2 (with the ridge's term, in [`Cpu::cp_opt`]), or the sum of m - x log m
    /// over all places ([`Cpu::cp_apr`]).
    pub objective: f64,
    /// The largest violation of the conditions of optimality: the largest |element| of the gradient ([`Cpu::cp_opt`]), or of
    /// |min(B, 1 - Phi)| ([`Cpu::cp_apr`]).
    pub violation: Option<f64>,
}

impl<T: Scalar> CpState<T> {
    /// 1 - |X - model| / |X| after the last iteration; 0 before the first.
    pub fn fit(&self) -> f64 {
        self.fits.last().copied().unwrap_or(0.0)
    }
}

impl Cpu {
    /// The CP decomposition of `tensor`. `observe` is called after every iteration and may end the run, which then returns
    /// what it has.
    ///
    /// Bit-reproducible for the same plan of `tensor`.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rank of 0 or beyond [`MAX_CP_RANK`], no iterations, a negative ridge, and initial factors
    /// that do not fit; [`Error::Structure`] for a tensor with values that are not finite.
    pub fn cp_als<T: Scalar>(
        &self,
        tensor: &MttkrpTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        self.cp_als_observed(tensor, options, &mut observe)
    }

    /// [`Cpu::cp_als`] with the observer by reference.
    #[inline(never)]
    pub(crate) fn cp_als_observed<T: Scalar>(
        &self,
        tensor: &MttkrpTensor<T>,
        options: &CpOptions<T>,
        observe: &mut Observer<'_, T>,
    ) -> Result<CpState<T>> {
        // Entered once: a sweep over a small tensor takes no longer than to hand each of its steps to the pool and back.
        self.install(|| {
            let (rows, order) = (whole(tensor.dims()), tensor.sweep_order());
            let target = Target { rows: &rows, order: &order, norm_squared: tensor.norm_squared() };
            let mut state = SweepState::new(self, tensor);
            let mut mttkrp = |factors: &[Mat<T>], mode: usize, out: &mut Mat<T>| {
                let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
                state.product(&views, mode, out.as_mut())
            };
            decompose(self, target, options, &mut mttkrp, &mut |_| Ok(()), observe)
        })
    }

    /// [`Cpu::cp_als`] with factors that are cut by rows between several executors, of which each calls this: `share` is this one's.
    /// The modes take turns in their natural order. The state that `observe` sees, and the one that is returned, has the rows here; so
    /// have factors to start from.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`], and what `share` returns.
    pub fn cp_als_share<T: Scalar>(
        &self,
        share: &mut dyn CpShare<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()>,
    ) -> Result<CpState<T>> {
        let rows = share.rows();
        let order: Vec<usize> = (0..rows.len()).collect();
        let target = Target { rows: &rows, order: &order, norm_squared: share.norm_squared() };
        // One at a time uses the share.
        let share = RefCell::new(share);
        let mut mttkrp =
            |factors: &[Mat<T>], mode: usize, out: &mut Mat<T>| share.borrow_mut().product(factors, mode, out);
        let mut sum = |numbers: &mut [f64]| share.borrow_mut().sum(numbers);
        decompose(self, target, options, &mut mttkrp, &mut sum, &mut observe)
    }
}

/// A tensor whose factors' rows several executors have, each some of every mode.
///
/// All of them call the algorithm, which calls these functions in the same order everywhere.
pub trait CpShare<T> {
    /// The rows of each mode's factor here.
    fn rows(&self) -> Vec<Range<usize>>;

    /// The sum of the squares of all values of the tensor.
    fn norm_squared(&self) -> f64;

    /// The rows here of the MTTKRP of `mode`, from the `factors`' rows here. Between two calls only the factor of the earlier one's
    /// mode has changed.
    ///
    /// # Errors
    /// As they come.
    fn product(&mut self, factors: &[Mat<T>], mode: usize, out: &mut Mat<T>) -> Result<()>;

    /// Each of `numbers` becomes its sum over all executors, of the same bits on each.
    ///
    /// # Errors
    /// As they come.
    fn sum(&mut self, numbers: &mut [f64]) -> Result<()>;
}

/// All rows of every mode.
fn whole(dims: &[usize]) -> Vec<Range<usize>> {
    dims.iter().map(|&dim| 0..dim).collect()
}

impl Cpu {
    /// The CP decomposition of a tensor in a file that may be larger than memory: [`Cpu::cp_als`] with one pass of reading for each
    /// mode. Bit-reproducible for the same memory and number of threads.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`] and [`Cpu::mttkrp_streamed`].
    pub fn cp_als_streamed<T: Scalar>(
        &self,
        tensor: &StreamedTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        self.cp_als_streamed_observed(tensor, options, &mut observe)
    }

    /// [`Cpu::cp_als_streamed`] with the observer by reference.
    #[inline(never)]
    pub(crate) fn cp_als_streamed_observed<T: Scalar>(
        &self,
        tensor: &StreamedTensor<T>,
        options: &CpOptions<T>,
        observe: &mut Observer<'_, T>,
    ) -> Result<CpState<T>> {
        let order: Vec<usize> = (0..tensor.dims().len()).collect();
        let rows = whole(tensor.dims());
        let target = Target { rows: &rows, order: &order, norm_squared: tensor.norm_squared() };
        let mut mttkrp = |factors: &[Mat<T>], mode: usize, out: &mut Mat<T>| {
            let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
            self.mttkrp_streamed(tensor, &views, mode, out.as_mut())
        };
        decompose(self, target, options, &mut mttkrp, &mut |_| Ok(()), observe)
    }
}

/// What the algorithm needs to know of the tensor, besides its MTTKRP.
#[derive(Clone, Copy)]
struct Target<'a> {
    /// Those of each mode's factor that are here.
    rows: &'a [Range<usize>],
    /// The order in which the modes have their turns.
    order: &'a [usize],
    norm_squared: f64,
}

/// The MTTKRP of a tensor in one mode, by whatever executor holds it: `mttkrp(factors, mode, out)`, in the target's order of
/// the modes, over and over. Between two calls only the factor of the earlier one's mode has changed.
type ModeProduct<'a, T> = dyn FnMut(&[Mat<T>], usize, &mut Mat<T>) -> Result<()> + 'a;

/// Makes of numbers their sums over all executors that have rows of the factors.
type Sum<'a> = dyn FnMut(&mut [f64]) -> Result<()> + 'a;

/// What is called after every iteration, and may end the run.
pub(crate) type Observer<'a, T> = dyn FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send + 'a;

/// Likewise, by the caller's thread alone.
type LocalObserver<'a, T> = dyn FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + 'a;

/// Checks the options and runs the algorithm with the dense half on `cpu`: `mttkrp`, `sum` and `observe` on the caller's thread.
#[inline(never)]
fn decompose<T: Scalar>(
    cpu: &Cpu,
    target: Target<'_>,
    options: &CpOptions<T>,
    mttkrp: &mut ModeProduct<'_, T>,
    sum: &mut Sum<'_>,
    observe: &mut LocalObserver<'_, T>,
) -> Result<CpState<T>> {
    check(target, options)?;
    run(cpu, target, options, mttkrp, sum, observe)
}

fn check<T: Scalar>(tensor: Target<'_>, options: &CpOptions<T>) -> Result<()> {
    if options.rank == 0 || options.rank > MAX_CP_RANK {
        return Err(Error::argument("rank", format!("{} components; 1 to {MAX_CP_RANK}", options.rank)));
    }
    if options.iterations == 0 {
        return Err(Error::argument("iterations", "0 iterations; at least 1"));
    }
    if options.ridge < 0.0 || !options.ridge.is_finite() {
        return Err(Error::argument("ridge", format!("{} is not a number from 0 on", options.ridge)));
    }
    if !tensor.norm_squared.is_finite() {
        return Err(Error::structure("tensor", "a value is not finite, or their squares' sum is not"));
    }
    let given = match &options.init {
        CpInit::Seed(_) => return Ok(()),
        CpInit::Factors(factors) => factors,
        CpInit::Resume(state) => {
            if state.lambda.len() != options.rank {
                let detail = format!("a state of {} components for rank {}", state.lambda.len(), options.rank);
                return Err(Error::argument("init", detail));
            }
            &state.factors
        }
    };
    let shapes: Vec<_> = given.iter().map(|f| (f.rows(), f.cols())).collect();
    let dims: Vec<usize> = tensor.rows.iter().map(ExactSizeIterator::len).collect();
    if !shapes.iter().copied().eq(dims.iter().map(|&dim| (dim, options.rank))) {
        let detail = format!("factors of {shapes:?} for dims {dims:?} and rank {}", options.rank);
        return Err(Error::argument("init", detail));
    }
    let finite = |f: &Mat<T>| (0..f.rows()).all(|i| f.row(i).iter().all(|x| x.to_f64().is_finite()));
    match given.iter().position(|f| !finite(f)) {
        Some(mode) => Err(Error::argument("init", format!("the factor of mode {mode} has a value that is not finite"))),
        None => Ok(()),
    }
}

/// 1 - |X - model| / |X| from the squares; 1 for a tensor of zeros.
pub(super) fn fit_of(residual: f64, norm_squared: f64) -> f64 {
    if norm_squared > 0.0 { 1.0 - (residual.max(0.0) / norm_squared).sqrt() } else { 1.0 }
}

/// The state before the first iteration, and the Gram matrices of its factors.
fn begin<T: Scalar>(
    cpu: &Cpu,
    tensor: Target<'_>,
    options: &CpOptions<T>,
    sum: &mut Sum<'_>,
) -> Result<(CpState<T>, Vec<Small>)> {
    let mut factors = match &options.init {
        CpInit::Resume(state) => {
            let grams = state.factors.iter().map(|f| gram(cpu, f, sum)).collect::<Result<_>>()?;
            return Ok((state.clone(), grams));
        }
        CpInit::Factors(factors) => factors.clone(),
        CpInit::Seed(seed) => {
            // From 0 to 1: components that all point into the positive orthant overlap with whatever data there are.
            let random = |(mode, rows): (usize, &Range<usize>)| {
                let uniform = uniform_rows::<T>(rows.clone(), options.rank, seed ^ ((mode as u64 + 1) << 48))?;
                Mat::from_fn(rows.len(), options.rank, |i, r| uniform.row(i)[r] + T::from_f64(0.5))
            };
            tensor.rows.iter().enumerate().map(random).collect::<Result<_>>()?
        }
    };
    if options.nonnegative {
        for factor in &mut factors {
            let data = factor.as_mut().into_data();
            data.iter_mut().filter(|x| **x < T::ZERO).for_each(|x| *x = T::ZERO);
        }
    }
    let mut lambda = vec![1.0; options.rank];
    let mut grams = Vec::with_capacity(factors.len());
    for factor in &mut factors {
        let settled = settle(cpu, factor, sum, |_, _| 0.0)?;
        lambda.iter_mut().zip(settled.lengths).for_each(|(lambda, length)| *lambda *= length);
        grams.push(settled.gram);
    }
    Ok((CpState { factors, lambda, fits: Vec::new(), memory: Vec::new() }, grams))
}

fn run<T: Scalar>(
    cpu: &Cpu,
    tensor: Target<'_>,
    options: &CpOptions<T>,
    mttkrp: &mut ModeProduct<'_, T>,
    sum: &mut Sum<'_>,
    observe: &mut LocalObserver<'_, T>,
) -> Result<CpState<T>> {
    let rank = options.rank;
    let (mut state, mut grams) = begin(cpu, tensor, options, sum)?;
    let zeros = |rows: &Range<usize>| Mat::zeros(rows.len(), rank);
    let mut products: Vec<Mat<T>> = tensor.rows.iter().map(zeros).collect::<Result<_>>()?;
    while state.fits.len() < options.iterations && !converged(&state.fits, options.tolerance) {
        let start = Instant::now();
        let mut in_mttkrp = Duration::ZERO;
        let (mut fit, mut residual) = (1.0, 0.0);
        for (turn, &mode) in tensor.order.iter().enumerate() {
            let before = Instant::now();
            mttkrp(&state.factors, mode, &mut products[mode])?;
            in_mttkrp += before.elapsed();

            let mut v = Small::ones(rank);
            grams.iter().enumerate().filter(|&(m, _)| m != mode).for_each(|(_, g)| v.scale_by(g));
            let mut damped = v.clone();
            damped.add_diagonal(options.ridge);
            let last = turn + 1 == tensor.order.len();
            let (factor, lambda) = (&mut state.factors[mode], &state.lambda);
            let view = products[mode].as_ref();
            let stride = view.stride();
            let product = |first: usize, len: usize| &view.data()[first * stride..][..len];
            // sum_ir m_ir a_ir before the columns are divided by what lambda will be.
            let inner = |rows: &[T], m: &[T]| if last { inner_product(m, rows, stride) } else { 0.0 };
            let settled = if options.nonnegative {
                settle(cpu, factor, sum, |first, rows| {
                    let m = product(first, rows.len());
                    hals(rows, stride, lambda, m, &damped);
                    inner(rows, m)
                })?
            } else {
                let inverse = Weights::new(&pseudo_inverse(&damped)?, &products[mode]);
                settle(cpu, factor, sum, |first, rows| {
                    let m = product(first, rows.len());
                    inverse.times(cpu, m, rows);
                    inner(rows, m)
                })?
            };
            (state.lambda, grams[mode]) = (settled.lengths, settled.gram);
            if last {
                v.scale_by(&grams[mode]);
                residual = (tensor.norm_squared - 2.0 * settled.sum + v.quadratic(&state.lambda)).max(0.0);
                fit = fit_of(residual, tensor.norm_squared);
            }
        }
        state.fits.push(fit);
        let iteration = CpIteration {
            number: state.fits.len(),
            fit,
            time: start.elapsed(),
            mttkrp: in_mttkrp,
            objective: 0.5 * residual,
            violation: None,
        };
        if observe(&state, &iteration).is_break() {
            break;
        }
    }
    Ok(state)
}
