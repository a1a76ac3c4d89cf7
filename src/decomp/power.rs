//! The power method for symmetric tensors (Anandkumar, Ge, Hsu, Kakade and Telgarsky 2014, algorithm 1), with a shift (Kolda and Mayo
//! 2011): X ~ sum_k lambda_k v_k o v_k o ... o v_k, orthogonal where X is the sum of such.
//!
//! ```text
//! repeat:  for every start:  theta = random, |theta| = 1
//!                            repeat: theta = X(I, theta, ..., theta) + shift theta, then to length 1
//!          v = the theta with the largest |X(theta, ..., theta)|;  lambda = X(v, ..., v)
//!          X = X - lambda v o v o ... o v
//! ```
//!
//! `X(I, theta, ..., theta)` is a TTV in every mode but the first: each level of one CSF, from the leaves up, is the tensor of the
//! TTV before it. The terms that were taken from X are subtracted from the result, so that X stays as sparse as it is.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use sparsimd_kernels::Scalar;

use super::cp::fit_of;
use super::{CpIteration, CpState};
use crate::cpu::Cpu;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csf, Fibers};
use crate::generate::uniform_dense;

/// Values of one class of places may differ by so many units of the largest one's rounding.
const SYMMETRY: f64 = 16.0;

/// What is left of X counts as nothing when its eigenvalue is below so many units of rounding of |X|: what sums have lost.
const NOTHING: f64 = 1000.0;

/// How to look for components.
#[derive(Clone, Debug)]
pub struct PowerOptions<T> {
    /// Most components.
    pub components: usize,
    /// Random starts for each; the largest |eigenvalue| of all is taken.
    pub starts: usize,
    /// Most iterations from a start.
    pub iterations: usize,
    /// A start ends when theta changes by less than this.
    pub tolerance: f64,
    /// Added times theta: 0 for orthogonal tensors. Above (order - 1) times the largest |eigenvalue| every start converges, whatever
    /// symmetric tensor it is; to a local maximum of X(theta, ..., theta), or to a minimum where it is negative.
    pub shift: f64,
    /// Of the starts.
    pub seed: u64,
    /// The components that an earlier run had found.
    pub resume: Option<CpState<T>>,
}

impl<T> PowerOptions<T> {
    /// 10 starts of 100 iterations at most, tolerance 1e-9, no shift, seed 0.
    pub fn new(components: usize) -> Self {
        Self { components, starts: 10, iterations: 100, tolerance: 1e-9, shift: 0.0, seed: 0, resume: None }
    }
}

impl Cpu {
    /// The components of the symmetric tensor `x`, largest |eigenvalue| first: one after the other by the power method. The state has
    /// one factor, for all modes: V, a column of length 1 for each component; `observe` is called after every component, which
    /// counts as an iteration: its objective is half of |X - model|^2, its violation the length of
    /// `X(I, v, ..., v) - lambda v`, X without the components before.
    ///
    /// Exact for tensors that are a sum of orthogonal components with positive weights (any weights, for an odd order); of others, a
    /// greedy approximation. Ends early when nothing is left. Bit-reproducible on any number of threads, and a resumed run has the bits of an unbroken one.
    ///
    /// # Errors
    /// [`Error::Structure`] when `x` is not symmetric, of order 1, or has values that are not finite; [`Error::Argument`] for no
    /// components, starts or iterations, a shift that is not finite, and a state that does not fit.
    pub fn power_method<T: Scalar>(
        &self,
        x: &CooTensor<T>,
        options: &PowerOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        decompose(self, x, options, &mut observe)
    }
}

/// [`Cpu::power_method`] with the observer by reference.
#[inline(never)]
pub(crate) fn decompose<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &PowerOptions<T>,
    observe: &mut super::cp::Observer<'_, T>,
) -> Result<CpState<T>> {
    let none = [("components", options.components), ("starts", options.starts), ("iterations", options.iterations)];
    if let Some((name, _)) = none.into_iter().find(|&(_, n)| n == 0) {
        return Err(Error::argument(name, "0; at least 1"));
    }
    if !options.shift.is_finite() {
        return Err(Error::argument("shift", format!("{} is not a finite number", options.shift)));
    }
    cpu.install(|| {
        check_symmetric(x)?;
        run(cpu, x, options, observe)
    })
}

/// Whether `x` is the same for every order of its modes.
fn check_symmetric<T: Scalar>(x: &CooTensor<T>) -> Result<()> {
    let fail = |detail: String| Err(Error::structure("tensor", detail));
    let (order, dims) = (x.order(), x.dims());
    if order < 2 {
        return fail("a tensor of order 1 has no eigenvectors".to_owned());
    }
    if dims.iter().any(|&dim| dim != dims[0]) {
        return fail(format!("{dims:?} are not the dims of a symmetric tensor"));
    }
    let mut largest = 0.0f64;
    for (p, value) in x.values().iter().enumerate() {
        let value = value.to_f64();
        if !value.is_finite() {
            return fail(format!("entry {p} is {value}"));
        }
        largest = largest.max(value.abs());
    }
    let bound = SYMMETRY * T::EPSILON.to_f64() * largest;
    let natural: Vec<usize> = (0..order).collect();
    let mut sorted = x.clone();
    sorted.sort(&natural)?;
    // Exchanges of the first mode with each of the others make all orders.
    for mode in 1..order {
        let mut coords = x.all_coords().to_vec();
        coords.swap(0, mode);
        let mut exchanged = CooTensor::from_checked(dims.to_vec(), coords, x.values().to_vec());
        exchanged.sort(&natural)?;
        let same = |p: usize| (0..order).all(|m| sorted.coords(m)[p] == exchanged.coords(m)[p]);
        let close = |p: usize| (sorted.values()[p].to_f64() - exchanged.values()[p].to_f64()).abs() <= bound;
        if let Some(p) = (0..x.nnz()).find(|&p| !same(p) || !close(p)) {
            let mut place: Vec<u32> = (0..order).map(|m| sorted.coords(m)[p]).collect();
            let (here, at) = (sorted.values()[p].to_f64(), format!("{place:?}"));
            place.swap(0, mode);
            return fail(format!("is not symmetric: {here} at {at}, and another value or none at {place:?}"));
        }
    }
    Ok(())
}

/// Products of the tensor with a vector in all modes but the first.
struct Contraction<'a, T> {
    cpu: &'a Cpu,
    csf: Csf<T>,
    /// The values of each level above the leaves.
    levels: Vec<Vec<T>>,
    /// Time of it all.
    time: Duration,
}

impl<'a, T: Scalar> Contraction<'a, T> {
    fn new(cpu: &'a Cpu, x: &CooTensor<T>) -> Result<Self> {
        let csf = Csf::from_coo(x, &(0..x.order()).collect::<Vec<_>>())?;
        let levels = (0..x.order() - 1).map(|level| vec![T::ZERO; csf.pattern().nodes(level)]).collect();
        Ok(Self { cpu, csf, levels, time: Duration::ZERO })
    }

    /// `y = X(I, theta, ..., theta)`.
    fn apply(&mut self, theta: &[f64], y: &mut [f64]) -> Result<()> {
        let start = Instant::now();
        let v: Vec<T> = theta.iter().map(|&x| T::from_f64(x)).collect();
        let pattern = self.csf.pattern();
        for level in (0..self.levels.len()).rev() {
            let (above, below) = self.levels.split_at_mut(level + 1);
            let values = below.first().map_or(self.csf.values(), |values| values);
            let fibers = Fibers { dim: v.len(), ptr: pattern.ptr(level), leaf: pattern.idx(level + 1), values };
            self.cpu.ttv_fibers_into(fibers, &v, &mut above[level])?;
        }
        y.fill(0.0);
        pattern.idx(0).iter().zip(&self.levels[0]).for_each(|(&i, x)| y[i as usize] = x.to_f64());
        self.time += start.elapsed();
        Ok(())
    }
}

/// Components so far, in double precision.
#[derive(Default)]
struct Found {
    lambda: Vec<f64>,
    vectors: Vec<Vec<f64>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Divides `x` by its length, unless that is 0.
fn to_length_one(x: &mut [f64]) {
    let length = dot(x, x).sqrt();
    if length > 0.0 {
        x.iter_mut().for_each(|x| *x /= length);
    }
}

impl Found {
    /// Takes them from `y = X(I, theta, ..., theta)`.
    fn deflate(&self, order: usize, theta: &[f64], y: &mut [f64]) {
        for (lambda, v) in self.lambda.iter().zip(&self.vectors) {
            let weight = lambda * dot(v, theta).powi(order as i32 - 1);
            y.iter_mut().zip(v).for_each(|(y, v)| *y -= weight * v);
        }
    }

    /// |X - sum_k lambda_k v_k o ... o v_k|^2. lambda_k is X(v_k, ..., v_k) less what the components before it have of that.
    fn residual(&self, order: usize, norm_squared: f64) -> f64 {
        let common = |j: usize, k: usize| dot(&self.vectors[j], &self.vectors[k]).powi(order as i32);
        let mut residual = norm_squared;
        for (k, lambda) in self.lambda.iter().enumerate() {
            let before: f64 = (0..k).map(|j| self.lambda[j] * common(j, k)).sum();
            residual += lambda * lambda * common(k, k) + 2.0 * lambda * before;
            residual -= 2.0 * lambda * (lambda + before);
        }
        residual
    }
}

/// Iterates from `theta`, which becomes an eigenvector; its eigenvalue.
fn iterate<T: Scalar>(
    x: &mut Contraction<'_, T>,
    found: &Found,
    options: &PowerOptions<T>,
    theta: &mut Vec<f64>,
) -> Result<(f64, f64)> {
    let order = x.csf.pattern().order();
    let mut y = vec![0.0; theta.len()];
    let mut steps = 0;
    loop {
        x.apply(theta, &mut y)?;
        found.deflate(order, theta, &mut y);
        let lambda = dot(theta, &y);
        let violation = theta.iter().zip(&y).map(|(theta, y)| (y - lambda * theta).powi(2)).sum::<f64>().sqrt();
        if steps == options.iterations {
            return Ok((lambda, violation));
        }
        y.iter_mut().zip(&*theta).for_each(|(y, theta)| *y += options.shift * theta);
        to_length_one(&mut y);
        // A negative eigenvalue of an even order turns theta around every time.
        let change = |sign: f64| theta.iter().zip(&y).map(|(a, b)| (a - sign * b).powi(2)).sum::<f64>();
        let change = change(1.0).min(change(-1.0)).sqrt();
        std::mem::swap(theta, &mut y);
        // Whatever theta is now, its eigenvalue is what is told.
        steps = if change < options.tolerance { options.iterations } else { steps + 1 };
    }
}

/// The state of the components so far.
fn resumed<T: Scalar>(options: &PowerOptions<T>, dim: usize) -> Result<(CpState<T>, Found)> {
    let fail = |detail: String| Err(Error::argument("resume", detail));
    let Some(state) = &options.resume else {
        let none = vec![Mat::zeros(dim, 0)?];
        let state = CpState { factors: none, lambda: Vec::new(), fits: Vec::new(), memory: Vec::new() };
        return Ok((state, Found::default()));
    };
    let n = state.lambda.len();
    let shapes: Vec<_> = state.factors.iter().map(|f| (f.rows(), f.cols())).collect();
    if shapes != [(dim, n)] || state.fits.len() != n {
        return fail(format!("factors of {shapes:?} and {n} weights, for one factor of {dim} rows"));
    }
    let vectors: Vec<Vec<f64>> =
        (0..n).map(|k| state.factors[0].iter_rows().map(|row| row[k].to_f64()).collect()).collect();
    if vectors.iter().flatten().chain(&state.lambda).any(|x| !x.is_finite()) {
        return fail("a value is not finite".to_owned());
    }
    Ok((state.clone(), Found { lambda: state.lambda.clone(), vectors }))
}

fn run<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &PowerOptions<T>,
    observe: &mut super::cp::Observer<'_, T>,
) -> Result<CpState<T>> {
    let (order, dim) = (x.order(), x.dims()[0]);
    let norm_squared: f64 = x.values().iter().map(|x| x.to_f64() * x.to_f64()).sum();
    let (mut state, mut found) = resumed(options, dim)?;
    let mut contraction = Contraction::new(cpu, x)?;
    while found.lambda.len() < options.components {
        let start = Instant::now();
        contraction.time = Duration::ZERO;
        let mut best: Option<(f64, Vec<f64>)> = None;
        for number in 0..options.starts {
            let seed = options.seed ^ ((found.lambda.len() as u64 + 1) << 40) ^ ((number as u64 + 1) << 20);
            let uniform = uniform_dense::<f64>(dim, 1, seed)?;
            let mut theta: Vec<f64> = uniform.iter_rows().map(|row| row[0]).collect();
            to_length_one(&mut theta);
            let (lambda, _) = iterate(&mut contraction, &found, options, &mut theta)?;
            // What a shift goes to, or the largest.
            let score = |lambda: f64| if options.shift == 0.0 { lambda.abs() } else { lambda * options.shift.signum() };
            if best.as_ref().is_none_or(|(least, _)| score(lambda) > score(*least)) {
                best = Some((lambda, theta));
            }
        }
        let Some((_, mut v)) = best else { break };
        iterate(&mut contraction, &found, options, &mut v)?;
        // What is kept is what the element type holds: a resumed run starts from no more.
        v.iter_mut().for_each(|x| *x = T::from_f64(*x).to_f64());
        let mut y = vec![0.0; dim];
        contraction.apply(&v, &mut y)?;
        found.deflate(order, &v, &mut y);
        let mut lambda = dot(&v, &y);
        let violation = v.iter().zip(&y).map(|(v, y)| (y - lambda * v).powi(2)).sum::<f64>().sqrt();
        if lambda.abs() <= NOTHING * T::EPSILON.to_f64() * norm_squared.sqrt() {
            break;
        }
        // lambda (-v) o (-v) o (-v) = -lambda v o v o v.
        if order % 2 == 1 && lambda < 0.0 {
            lambda = -lambda;
            v.iter_mut().for_each(|x| *x = -*x);
        }
        found.lambda.push(lambda);
        found.vectors.push(v);
        let residual = found.residual(order, norm_squared).max(0.0);
        let column = |i: usize, k: usize| T::from_f64(found.vectors[k][i]);
        state.factors = vec![Mat::from_fn(dim, found.lambda.len(), column)?];
        state.lambda.clone_from(&found.lambda);
        state.fits.push(fit_of(residual, norm_squared));
        let iteration = CpIteration {
            number: state.fits.len(),
            fit: state.fit(),
            time: start.elapsed(),
            mttkrp: contraction.time,
            objective: 0.5 * residual,
            violation: Some(violation),
        };
        if observe(&state, &iteration).is_break() {
            break;
        }
    }
    Ok(state)
}
