//! Tucker's decomposition by higher-order orthogonal iteration (De Lathauwer, De Moor and Vandewalle 2000).
//!
//! X ~ G x_1 U_1 x_2 U_2 ..., U_n orthonormal I_n x R_n, G dense R_1 x R_2 x ....
//! ```text
//! repeat: for every mode n
//!             Y = X x_m U_m^T for all m but n, unfolded in mode n        TTM chain
//!             U_n = the R_n leading left singular vectors of Y
//!         G = U_N^T Y;  fit = 1 - sqrt(|X|^2 - |G|^2) / |X|
//! ```

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use nalgebra::DMatrix;
use sparsimd_kernels::Scalar;

use super::converged;
use super::linalg::{dense, left_singular, orthonormal, row_major, symmetric_eigen};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csf, FiberCoo, rooted_mode_order};
use crate::generate::uniform_dense;
use crate::parallel;

/// Up to this many multiply-adds the singular vectors come from an SVD of Y itself, exact to rounding; beyond, from the
/// eigenvectors of its Gram matrix in double precision, which takes a tenth of the time.
const SVD_WORK: usize = 1 << 30;
/// Rounds of subspace iteration that start from: HOOI itself goes on from there.
const INIT_ROUNDS: usize = 4;

/// How the factors begin.
#[derive(Clone, Debug)]
pub enum TuckerInit {
    /// The leading left singular vectors of X unfolded in each mode (HOSVD), to the accuracy of a few subspace iterations.
    Svd,
    /// Orthonormalised uniform random numbers.
    Random,
    /// These, one I_n x R_n matrix for each mode; the first one's values have no influence.
    Given(Vec<Mat<f64>>),
    /// What an earlier run had reached.
    Resume(TuckerState),
}

/// What to compute.
#[derive(Clone, Debug)]
pub struct TuckerOptions {
    /// Columns of each mode's factor.
    pub ranks: Vec<usize>,
    /// Most iterations, those of a resumed run included.
    pub iterations: usize,
    /// Ends when the fit improves by less than this; 0 for never.
    pub tolerance: f64,
    /// Seed of random numbers.
    pub seed: u64,
    /// How the factors begin.
    pub init: TuckerInit,
}

impl TuckerOptions {
    /// Ranks `ranks`, 50 iterations at most, tolerance 1e-5, begun from the HOSVD.
    pub fn new(ranks: Vec<usize>) -> Self {
        Self { ranks, iterations: 50, tolerance: 1e-5, seed: 0, init: TuckerInit::Svd }
    }
}

/// The model after some iterations: all that the next one depends on, and the core.
#[derive(Clone, Debug, Default)]
pub struct TuckerState {
    /// One matrix with orthonormal columns for each mode.
    pub factors: Vec<Mat<f64>>,
    /// The core, row-major, as long in each mode as that mode's factor has columns.
    pub core: Vec<f64>,
    /// The fit after each iteration.
    pub fits: Vec<f64>,
}

/// One iteration's outcome.
#[derive(Clone, Copy, Debug)]
pub struct TuckerIteration {
    /// Counted from 1, those before a resumption included.
    pub number: usize,
    /// 1 - |X - model| / |X|.
    pub fit: f64,
    /// Time of the iteration.
    pub time: Duration,
    /// The part of it that the TTM chains took.
    pub ttm: Duration,
}

/// X ~ core x_1 U_1 x_2 U_2 ..., U_m = `factors[m - 1]`.
#[derive(Clone, Debug)]
pub struct Tucker {
    /// One matrix with orthonormal columns for each mode.
    pub factors: Vec<Mat<f64>>,
    /// The core, row-major, as long in each mode as that mode's factor has columns.
    pub core: Vec<f64>,
    /// 1 - |X - model| / |X|; 1 for a tensor of zeros.
    pub fit: f64,
    /// The fit after each iteration, those before a resumption included.
    pub fits: Vec<f64>,
    /// The iterations of this run.
    pub iterations: Vec<TuckerIteration>,
}

impl Cpu {
    /// Tucker's decomposition of `x`. `observe` is called after every iteration and may end the run. A resumed run goes on
    /// with the bits of an unbroken one.
    ///
    /// TTM chains run in the element type `T`, singular vectors are computed in double precision.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is not one rank for each mode, a rank is 0, exceeds its mode's length or the product of the other
    /// ranks, `iterations` is 0, or given factors have other shapes; [`Error::Shape`] for a tensor of order 1; [`Error::Structure`] when two entries have the
    /// same place, or a value is not finite.
    pub fn tucker<T: Scalar>(
        &self,
        x: &CooTensor<T>,
        options: &TuckerOptions,
        mut observe: impl FnMut(&TuckerState, &TuckerIteration) -> ControlFlow<()> + Send,
    ) -> Result<Tucker> {
        decompose(self, x, options, &mut observe)
    }
}

/// Which rows and columns the product of a mode's TTM chain has.
pub(super) struct Unfolding {
    /// The coordinate of each row in the mode: its nonempty slices.
    rows: Vec<u32>,
    /// The mode, then those of the columns, the last one fastest.
    mode_order: Vec<usize>,
}

/// The TTM chain that leaves a mode out, by whatever executor holds the trees: `chain(factors, mode)`, for one mode after the other, over
/// and over. Between two calls only the factor of the earlier one's mode has changed.
type Chain<'a, T> = dyn FnMut(&[Mat<T>], usize) -> Result<Mat<T>> + 'a;

/// Called after every iteration, by the caller's thread.
pub(crate) type Observer<'a> = dyn FnMut(&TuckerState, &TuckerIteration) -> ControlFlow<()> + Send + 'a;

#[inline(never)]
pub(crate) fn decompose<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &TuckerOptions,
    observe: &mut Observer<'_>,
) -> Result<Tucker> {
    let (unfoldings, trees) = each_tree(cpu, x, options, Ok)?;
    let mut chain = |factors: &[Mat<T>], mode: usize| {
        let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
        cpu.ttm_chain(&trees[mode], &views)
    };
    run(cpu, x, options, &unfoldings, &mut chain, observe)
}

/// Checks the options, and makes of a tree for each mode, which is its root, what an executor needs of it.
pub(super) fn each_tree<T: Scalar, R>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &TuckerOptions,
    mut make: impl FnMut(Csf<T>) -> Result<R>,
) -> Result<(Vec<Unfolding>, Vec<R>)> {
    check(x, options)?;
    let each = (0..x.order()).map(|mode| {
        let tree = cpu.install(|| Csf::from_coo(x, &rooted_mode_order(x.dims(), mode)))?;
        let (rows, mode_order) = (tree.pattern().idx(0).to_vec(), tree.pattern().mode_order().to_vec());
        Ok((Unfolding { rows, mode_order }, make(tree)?))
    });
    each.collect()
}

#[inline(never)]
fn check<T: Scalar>(x: &CooTensor<T>, options: &TuckerOptions) -> Result<()> {
    let (dims, ranks) = (x.dims(), &options.ranks);
    if dims.len() < 2 {
        return Err(Error::shape("tucker", "a tensor of order 1 has no Tucker decomposition"));
    }
    if ranks.len() != dims.len() {
        return Err(Error::argument("ranks", format!("{} ranks for order {}", ranks.len(), dims.len())));
    }
    for (mode, (&rank, &dim)) in ranks.iter().zip(dims).enumerate() {
        let others = ranks.iter().enumerate().filter(|&(m, _)| m != mode).map(|(_, &r)| r as f64).product::<f64>();
        if rank == 0 || rank > dim || rank as f64 > others {
            let detail = format!(
                "rank {rank} of mode {mode} is not from 1 to its length {dim} and the other ranks' product {others}"
            );
            return Err(Error::argument("ranks", detail));
        }
    }
    if options.iterations == 0 {
        return Err(Error::argument("iterations", "0; at least 1"));
    }
    let given = match &options.init {
        TuckerInit::Given(factors) => Some(factors),
        TuckerInit::Resume(state) => {
            let len: usize = ranks.iter().product();
            if state.fits.is_empty() || state.core.len() != len {
                let detail = format!("a core of {} elements after {} iterations", state.core.len(), state.fits.len());
                return Err(Error::argument("init", format!("{detail} for ranks {ranks:?}")));
            }
            Some(&state.factors)
        }
        _ => None,
    };
    if let Some(factors) = given {
        let shapes: Vec<_> = factors.iter().map(|f| (f.rows(), f.cols())).collect();
        if !shapes.iter().copied().eq(dims.iter().copied().zip(ranks.iter().copied())) {
            return Err(Error::argument("init", format!("factors of {shapes:?} for dims {dims:?}, ranks {ranks:?}")));
        }
    }
    if let Some(p) = x.values().iter().position(|x| !x.to_f64().is_finite()) {
        return Err(Error::structure("tensor", format!("entry {p} is {}", x.values()[p])));
    }
    Ok(())
}

/// The algorithm with the dense half on `cpu`, for checked options.
#[inline(never)]
pub(super) fn run<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &TuckerOptions,
    unfoldings: &[Unfolding],
    chain: &mut Chain<'_, T>,
    observe: &mut Observer<'_>,
) -> Result<Tucker> {
    let (order, ranks) = (x.order(), &options.ranks);
    let mut state = match &options.init {
        TuckerInit::Resume(state) => state.clone(),
        _ => TuckerState {
            factors: cpu.install(|| (0..order).map(|mode| begin(x, options, mode)).collect::<Result<_>>())?,
            ..TuckerState::default()
        },
    };
    let mut rounded: Vec<Mat<T>> = state.factors.iter().map(convert).collect::<Result<_>>()?;
    let norm = x.values().iter().map(|x| x.to_f64() * x.to_f64()).sum::<f64>().sqrt();
    let mut iterations = Vec::new();
    while state.fits.len() < options.iterations && !converged(&state.fits, options.tolerance) {
        let start = Instant::now();
        let mut ttm = Duration::ZERO;
        for mode in 0..order {
            let begun = Instant::now();
            let y = chain(&rounded, mode)?;
            ttm += begun.elapsed();
            let Unfolding { rows, mode_order } = &unfoldings[mode];
            state.factors[mode] =
                cpu.install(|| leading_vectors(&y, rows, x.dims()[mode], ranks[mode], options.seed))?;
            rounded[mode] = convert(&state.factors[mode])?;
            if mode + 1 == order {
                state.core = core(&y, rows, &state.factors[mode], mode_order, ranks);
            }
        }
        let energy = state.core.iter().map(|g| g * g).sum::<f64>();
        let fit = if norm > 0.0 { 1.0 - (norm * norm - energy).max(0.0).sqrt() / norm } else { 1.0 };
        state.fits.push(fit);
        let iteration = TuckerIteration { number: state.fits.len(), fit, time: start.elapsed(), ttm };
        iterations.push(iteration);
        if observe(&state, &iteration).is_break() {
            break;
        }
    }
    let TuckerState { factors, core, fits } = state;
    Ok(Tucker { factors, core, fit: fits.last().copied().unwrap_or(0.0), fits, iterations })
}

/// The factor of `mode` to begin with.
fn begin<T: Scalar>(x: &CooTensor<T>, options: &TuckerOptions, mode: usize) -> Result<Mat<f64>> {
    let (dim, rank) = (x.dims()[mode], options.ranks[mode]);
    let random = |cols| uniform_dense::<f64>(dim, cols, options.seed ^ ((mode as u64 + 1) << 48));
    match &options.init {
        TuckerInit::Given(factors) => Ok(factors[mode].clone()),
        TuckerInit::Resume(state) => Ok(state.factors[mode].clone()),
        TuckerInit::Random => orthonormal(&random(rank)?),
        TuckerInit::Svd => {
            let fibers = FiberCoo::new(x.clone(), mode)?;
            // A few columns more than asked for make the wanted ones converge faster (Halko, Martinsson and Tropp 2011).
            let mut q = orthonormal(&random(dim.min(rank + 5))?)?;
            for _ in 0..INIT_ROUNDS {
                q = orthonormal(&gram_times(&fibers, &q)?)?;
            }
            // Rayleigh and Ritz: the leading directions inside the subspace.
            let z = gram_times(&fibers, &q)?;
            let q = dense(&q);
            let small = q.tr_mul(&dense(&z));
            let vectors = eigenvectors(0.5 * (&small + small.transpose()), rank)?;
            row_major(&(q * vectors))
        }
    }
}

/// X_(n) X_(n)^T q, fiber by fiber: nothing larger than q is stored, for each thread.
fn gram_times<T: Scalar>(x: &FiberCoo<T>, q: &Mat<f64>) -> Result<Mat<f64>> {
    let fibers = x.num_fibers();
    let step = fibers.div_ceil(rayon::current_num_threads()).max(1);
    let part = |t: usize| gram_times_part(x, t * step..((t + 1) * step).min(fibers), q);
    let parts = parallel::map_tasks(fibers.div_ceil(step), part);
    let mut parts = parts.into_iter().collect::<Result<Vec<_>>>()?.into_iter();
    let Some(mut sum) = parts.next() else { return Mat::zeros(q.rows(), q.cols()) };
    // In order, so that the sum is the same on every run.
    for part in parts {
        let data = sum.as_mut().into_data();
        data.iter_mut().zip(part.as_ref().data()).for_each(|(a, &b)| *a += b);
    }
    Ok(sum)
}

fn gram_times_part<T: Scalar>(x: &FiberCoo<T>, fibers: Range<usize>, q: &Mat<f64>) -> Result<Mat<f64>> {
    let mut z = Mat::zeros(q.rows(), q.cols())?;
    let stride = z.as_ref().stride();
    let data = z.as_mut().into_data();
    let mut t = vec![0.0; q.cols()];
    for fiber in fibers {
        let range = x.ptr()[fiber]..x.ptr()[fiber + 1];
        let nonzeros = || x.leaf()[range.clone()].iter().zip(&x.values()[range.clone()]);
        t.fill(0.0);
        for (&k, value) in nonzeros() {
            t.iter_mut().zip(q.row(k as usize)).for_each(|(t, &q)| *t += value.to_f64() * q);
        }
        for (&k, value) in nonzeros() {
            let row = &mut data[k as usize * stride..][..t.len()];
            row.iter_mut().zip(&t).for_each(|(z, &t)| *z += value.to_f64() * t);
        }
    }
    Ok(z)
}

/// The `rank` leading left singular vectors of the matrix whose rows `rows` are those of `y` and whose other rows, of `dim`
/// together, are 0. Where it has fewer, orthonormal vectors fill up.
fn leading_vectors<T: Scalar>(y: &Mat<T>, rows: &[u32], dim: usize, rank: usize, seed: u64) -> Result<Mat<f64>> {
    let (m, n) = (y.rows(), y.cols());
    let y = dense(y);
    let k = rank.min(m).min(n);
    let vectors = if m * n * m.min(n) <= SVD_WORK {
        let (s, u) = left_singular("tucker", y)?;
        let tiny = f64::EPSILON * m.max(n) as f64 * if k > 0 { s[0] } else { 0.0 };
        let k = (0..k).take_while(|&j| s[j] > tiny).count();
        u.columns(0, k).into_owned()
    } else if m <= n {
        eigenvectors(&y * y.transpose(), k)?
    } else {
        &y * eigenvectors(y.tr_mul(&y), k)?
    };
    // Columns in the places of the nonempty rows; the rest random, which makes the orthonormal basis fill up.
    let mut full = uniform_dense::<f64>(dim, rank, seed)?;
    let stride = full.as_ref().stride();
    let data = full.as_mut().into_data();
    for j in 0..vectors.ncols() {
        (0..dim).for_each(|i| data[i * stride + j] = 0.0);
        rows.iter().enumerate().for_each(|(i, &row)| data[row as usize * stride + j] = vectors[(i, j)]);
    }
    orthonormal(&full)
}

/// G = U^T Y, its modes brought into their natural order.
fn core<T: Scalar>(y: &Mat<T>, rows: &[u32], u: &Mat<f64>, mode_order: &[usize], ranks: &[usize]) -> Vec<f64> {
    let (root_rank, cols) = (ranks[mode_order[0]], y.cols());
    let mut unfolded = vec![0.0; root_rank * cols];
    for (i, &row) in rows.iter().enumerate() {
        for (r, &u) in u.row(row as usize).iter().enumerate() {
            let line = &mut unfolded[r * cols..(r + 1) * cols];
            line.iter_mut().zip(y.row(i)).for_each(|(g, y)| *g += u * y.to_f64());
        }
    }
    let mut natural = vec![0.0; unfolded.len()];
    let mut place = vec![0; ranks.len()];
    for (at, g) in unfolded.into_iter().enumerate() {
        let mut rest = at;
        for &mode in mode_order.iter().rev() {
            place[mode] = rest % ranks[mode];
            rest /= ranks[mode];
        }
        natural[place.iter().zip(ranks).fold(0, |at, (&i, &rank)| at * rank + i)] = g;
    }
    natural
}

/// The eigenvectors of the `k` largest eigenvalues of a symmetric matrix, largest first.
fn eigenvectors(a: DMatrix<f64>, k: usize) -> Result<DMatrix<f64>> {
    Ok(symmetric_eigen("tucker", a)?.1.columns(0, k).into_owned())
}

fn convert<T: Scalar>(a: &Mat<f64>) -> Result<Mat<T>> {
    Mat::from_fn(a.rows(), a.cols(), |i, j| T::from_f64(a.row(i)[j]))
}
