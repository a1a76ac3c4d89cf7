//! CP-OPT: all factors at once by a quasi-Newton method (Acar, Dunlavy and Kolda 2011).
//!
//! ```text
//! f = 1/2 |X - M|^2 + ridge/2 sum_n |A_n|^2,   M = sum_r a_r o b_r o c_r ...
//! repeat: d = -H G                             L-BFGS
//!         A = A + t d                          t from a search along d
//! G_n = A_n (V_n + ridge I) - M_n              M_n = MTTKRP of mode n, all modes from the same factors
//! |X - M|^2 = |X|^2 - 2 <M_0, A_0> + sum of V_0 * A_0^T A_0
//! ```
//!
//! V_n is that of CP-ALS. Where ALS crawls, as with more components than the tensor has, this finds them still; an evaluation is
//! one pass over the nonzeros for all modes, where the tensor is prepared in [`crate::plan::MttkrpFormat::Joint`].

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use sparsimd_kernels::Scalar;

use super::dense::{CHUNK, Small, Weights, gram, inner_product, settle};
use super::lbfgs::{PAIRS, direction, dot, search, update};
use super::{CpInit, CpIteration, CpOptions, CpState, Observer, Target, begin, check, converged, fit_of, whole};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut, MatRef};
use crate::error::{Error, Result};
use crate::ops::MttkrpTensor;
use crate::parallel;

/// The first step, which has no curvature to go by, changes the factors by about this part of their length.
const FIRST_STEP: f64 = 0.1;

impl Cpu {
    /// The CP decomposition of `tensor`, all factors at once: minimises 1/2 |X - model|^2 + ridge/2 sum_n |A_n|^2 by L-BFGS. Options,
    /// state and observer are those of [`Cpu::cp_als`]; the components' lengths are shared equally between the modes at the
    /// start, and factors from a seed are scaled to the tensor. An iteration is cheaper than one of ALS where the tensor is
    /// prepared in [`crate::plan::MttkrpFormat::Joint`], and more of them are needed: take a tolerance of 1e-8 or so.
    ///
    /// Ends, besides, when no step decreases f. Bit-reproducible for the same plan of `tensor`; a resumed run has the bits of an
    /// unbroken one.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`]; [`Error::Argument`] for `nonnegative`, which this method does not have.
    pub fn cp_opt<T: Scalar>(
        &self,
        tensor: &MttkrpTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        decompose(self, tensor, options, &mut observe)
    }
}

/// [`Cpu::cp_opt`] with the observer by reference.
#[inline(never)]
pub(crate) fn decompose<T: Scalar>(
    cpu: &Cpu,
    tensor: &MttkrpTensor<T>,
    options: &CpOptions<T>,
    observe: &mut Observer<'_, T>,
) -> Result<CpState<T>> {
    let rows = whole(tensor.dims());
    let target = Target { rows: &rows, order: &[], norm_squared: tensor.norm_squared() };
    check(target, options)?;
    if options.nonnegative {
        return Err(Error::argument(
            "nonnegative",
            "CP-OPT has no bounds; CP-ALS and CP-APR keep factors non-negative",
        ));
    }
    cpu.install(|| run(cpu, tensor, target, options, observe))
}

/// The function that is minimised, of all factors' elements in a row.
struct Problem<'a, T: Scalar> {
    cpu: &'a Cpu,
    tensor: &'a MttkrpTensor<T>,
    rank: usize,
    ridge: f64,
    /// Where the elements of each factor are.
    parts: Vec<Range<usize>>,
    /// The factors of the last evaluation, and their MTTKRPs.
    factors: Vec<Mat<T>>,
    products: Vec<Mat<T>>,
    /// Time in MTTKRP.
    mttkrp: Duration,
}

/// What an evaluation came to.
#[derive(Clone, Copy)]
struct Value {
    f: f64,
    /// |X - M|^2.
    residual: f64,
    /// <X, M>.
    inner: f64,
    /// |M|^2.
    model: f64,
}

impl<'a, T: Scalar> Problem<'a, T> {
    fn new(cpu: &'a Cpu, tensor: &'a MttkrpTensor<T>, options: &CpOptions<T>) -> Result<Self> {
        let (rank, dims) = (options.rank, tensor.dims());
        let mut end = 0;
        let mut part = |&dim: &usize| {
            let start = end;
            end += dim * rank;
            start..end
        };
        let parts = dims.iter().map(&mut part).collect();
        let zeros = || dims.iter().map(|&dim| Mat::zeros(dim, rank)).collect::<Result<_>>();
        let (factors, products) = (zeros()?, zeros()?);
        Ok(Self { cpu, tensor, rank, ridge: options.ridge, parts, factors, products, mttkrp: Duration::ZERO })
    }

    /// The model's factors with their lengths shared between the modes, in a row.
    fn start(&self, state: &CpState<T>) -> Vec<f64> {
        let order = self.parts.len() as f64;
        let scale: Vec<f64> = state.lambda.iter().map(|l| l.abs().powf(1.0 / order)).collect();
        // A component's sign is that of its first factor.
        let signed: Vec<f64> = scale.iter().zip(&state.lambda).map(|(s, l)| s.copysign(*l)).collect();
        let rows = state.factors.iter().enumerate().flat_map(|(m, f)| f.iter_rows().map(move |row| (m, row)));
        let scale_of = |m: usize| if m == 0 { &signed } else { &scale };
        rows.flat_map(|(m, row)| row.iter().zip(scale_of(m)).map(|(x, s)| x.to_f64() * s)).collect()
    }

    /// f of `x`, and its gradient.
    fn evaluate(&mut self, x: &[f64], gradient: &mut [f64]) -> Result<Value> {
        let rank = self.rank;
        for (factor, part) in self.factors.iter_mut().zip(&self.parts) {
            let (stride, x) = (factor.as_ref().stride(), &x[part.clone()]);
            parallel::chunks_mut(factor.as_mut().into_data(), CHUNK * stride, |k, rows| {
                for (row, x) in rows.chunks_mut(stride).zip(x[k * CHUNK * rank..].chunks(rank)) {
                    row.iter_mut().zip(x).for_each(|(to, &x)| *to = T::from_f64(x));
                }
            });
        }
        let before = Instant::now();
        let views: Vec<MatRef<'_, T>> = self.factors.iter().map(Mat::as_ref).collect();
        let mut outs: Vec<MatMut<'_, T>> = self.products.iter_mut().map(Mat::as_mut).collect();
        self.cpu.mttkrp_all(self.tensor, &views, &mut outs)?;
        self.mttkrp += before.elapsed();

        let grams: Vec<Small> =
            self.factors.iter().map(|f| gram(self.cpu, f, &mut |_| Ok(()))).collect::<Result<_>>()?;
        let (mut inner, mut model) = (0.0, 0.0);
        for (mode, part) in self.parts.iter().enumerate() {
            let mut v = Small::ones(rank);
            grams.iter().enumerate().filter(|&(m, _)| m != mode).for_each(|(_, g)| v.scale_by(g));
            if mode == 0 {
                let mut all = v.clone();
                all.scale_by(&grams[0]);
                model = all.quadratic(&vec![1.0; rank]);
            }
            v.add_diagonal(self.ridge);
            let weights = Weights::new(&v, &self.factors[mode]);
            let (factor, product) = (self.factors[mode].as_ref(), self.products[mode].as_ref());
            let stride = factor.stride();
            let sums = parallel::map_chunks_mut(&mut gradient[part.clone()], CHUNK * rank, |k, gradient| {
                let range = k * CHUNK * stride..(k * CHUNK + gradient.len() / rank) * stride;
                let (rows, m) = (&factor.data()[range.clone()], &product.data()[range]);
                let mut own = vec![T::ZERO; rows.len()];
                weights.times(self.cpu, rows, &mut own);
                for ((gradient, own), m) in gradient.chunks_mut(rank).zip(own.chunks(stride)).zip(m.chunks(stride)) {
                    let terms = gradient.iter_mut().zip(own).zip(m);
                    terms.for_each(|((g, own), m)| *g = own.to_f64() - m.to_f64());
                }
                if mode == 0 { inner_product(m, rows, stride) } else { 0.0 }
            });
            inner += sums.iter().sum::<f64>();
        }
        let residual = self.tensor.norm_squared() - 2.0 * inner + model;
        let f = 0.5 * residual + if self.ridge > 0.0 { 0.5 * self.ridge * dot(x, x) } else { 0.0 };
        Ok(Value { f, residual, inner, model })
    }

    /// The factors of the last evaluation, with columns of length 1.
    fn model(&self, state: &mut CpState<T>) -> Result<()> {
        state.lambda.fill(1.0);
        for (to, from) in state.factors.iter_mut().zip(&self.factors) {
            let from = from.as_ref();
            let settled = settle(self.cpu, to, &mut |_| Ok(()), |first, rows| {
                rows.copy_from_slice(&from.data()[first * from.stride()..][..rows.len()]);
                0.0
            })?;
            state.lambda.iter_mut().zip(settled.lengths).for_each(|(lambda, length)| *lambda *= length);
        }
        Ok(())
    }
}

/// Whether `memory` is this method's, of factors of `n` elements in all.
fn is_own(memory: &[Vec<f64>], n: usize) -> bool {
    memory.len() % 2 == 1 && memory.len() <= 1 + 2 * PAIRS && memory.iter().all(|vector| vector.len() == n)
}

fn run<T: Scalar>(
    cpu: &Cpu,
    tensor: &MttkrpTensor<T>,
    target: Target<'_>,
    options: &CpOptions<T>,
    observe: &mut Observer<'_, T>,
) -> Result<CpState<T>> {
    let (mut state, _) = begin(cpu, target, options, &mut |_| Ok(()))?;
    let mut problem = Problem::new(cpu, tensor, options)?;
    let n = problem.parts.last().map_or(0, |part| part.end);
    // The point, then s and y of every step, the oldest first.
    let mut memory = std::mem::take(&mut state.memory);
    if !is_own(&memory, n) {
        memory = vec![problem.start(&state)];
    }
    let mut gradient = vec![0.0; n];
    let mut value = problem.evaluate(&memory[0], &mut gradient)?;
    if matches!(options.init, CpInit::Seed(_)) && value.inner > 0.0 && value.model > 0.0 {
        let scale = (value.inner / value.model).powf(1.0 / problem.parts.len() as f64);
        memory[0].iter_mut().for_each(|x| *x *= scale);
        value = problem.evaluate(&memory[0], &mut gradient)?;
    }
    let (mut next, mut next_gradient, mut step) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    while state.fits.len() < options.iterations && !converged(&state.fits, options.tolerance) {
        let start = Instant::now();
        problem.mttkrp = Duration::ZERO;
        let mut found = None;
        // Where the steps remembered lead nowhere, once more without them.
        while found.is_none() {
            direction(&memory[1..], &gradient, &mut step);
            let slope = dot(&step, &gradient);
            let alone = memory.len() == 1;
            if slope < 0.0 {
                let first = if alone { FIRST_STEP * (dot(&memory[0], &memory[0]) / -slope).sqrt() } else { 1.0 };
                let evaluate = |t: f64| {
                    update(&mut next, &memory[0], |_, x| x);
                    update(&mut next, &step, |x, d| x + t * d);
                    let value = problem.evaluate(&next, &mut next_gradient)?;
                    found = Some(value);
                    Ok((value.f, dot(&step, &next_gradient)))
                };
                if !search((value.f, slope), first, evaluate)? {
                    found = None;
                }
            }
            if found.is_none() && alone {
                break;
            }
            if found.is_none() {
                memory.truncate(1);
            }
        }
        let Some(reached) = found else { break };
        let (mut s, mut y) =
            if memory.len() > 2 * PAIRS { (memory.remove(1), memory.remove(1)) } else { (vec![0.0; n], vec![0.0; n]) };
        update(&mut s, &next, |_, x| x);
        update(&mut s, &memory[0], |next, x| next - x);
        update(&mut y, &next_gradient, |_, g| g);
        update(&mut y, &gradient, |next, g| next - g);
        if dot(&s, &y) > 0.0 {
            memory.extend([s, y]);
        }
        std::mem::swap(&mut memory[0], &mut next);
        std::mem::swap(&mut gradient, &mut next_gradient);
        value = reached;
        problem.model(&mut state)?;
        state.memory = std::mem::take(&mut memory);
        let fit = fit_of(value.residual, target.norm_squared);
        state.fits.push(fit);
        let iteration = CpIteration {
            number: state.fits.len(),
            fit,
            time: start.elapsed(),
            mttkrp: problem.mttkrp,
            objective: value.f,
            violation: Some(gradient.iter().fold(0.0, |largest, g| g.abs().max(largest))),
        };
        let flow = observe(&state, &iteration);
        memory = std::mem::take(&mut state.memory);
        if flow.is_break() {
            break;
        }
    }
    state.memory = memory;
    Ok(state)
}
