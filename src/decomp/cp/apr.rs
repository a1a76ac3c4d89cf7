//! CP-APR: the CP decomposition of counts by alternating Poisson regression, with multiplicative updates (Chi and Kolda 2012).
//!
//! minimise sum over all places of m - x log m, M = sum_r lambda_r a_r o b_r o ..., all factors >= 0, columns adding up to 1.
//! ```text
//! repeat: for every mode n:
//!             A_n += KAPPA where A_n is 0 and Phi_n > 1     zeros that should not be: updates would keep them
//!             B = A_n diag(lambda)
//!             up to INNER times:
//!                 Phi_n = (X_(n) / max(B Pi, FLOOR)) Pi^T   Pi: Khatri-Rao product of the other factors
//!                 violation = max |min(B, 1 - Phi_n)|       done with this mode below the tolerance
//!                 B = B * Phi_n
//!             lambda = column sums of B;  A_n = B / lambda
//! ```
//!
//! Pi, as large as the nonzeros times R, is never there. By fibers f of a tree rooted at mode n, whose leaves k are another mode:
//!
//! ```text
//! q_f   = B_i * the middle modes' rows                 element by element
//! e_f   = sum over the fiber of x / (q_f . C_k) C_k    FusedMM with the edge function `Ratio`
//! Phi_i = sum over the slice of the middle modes' rows * e_f
//! ```

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use sparsimd_kernels::{Scalar, edge};

use super::dense::{CHUNK, Small, gram};
use super::{CpInit, CpIteration, CpOptions, CpState, Observer, Target, begin, check, fit_of, whole};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csf, CsrRef, rooted_mode_order};
use crate::parallel;

/// Most updates of a mode before the next one's turn; these four constants are those of Chi and Kolda's implementation.
const INNER: usize = 10;
/// Added to a zero that keeps the model from its optimum.
const KAPPA: f64 = 0.01;
/// What counts as such a zero.
const KAPPA_TOLERANCE: f64 = 1e-10;
/// The model is divided by as if it were at least this.
const FLOOR: f64 = 1e-10;

/// Bytes of the rows of one piece's fibers: two such buffers stay in L2 and L3, while a piece still feeds many threads.
const PIECE_BYTES: usize = 4 << 20;
/// Fibers of one task of the element-wise steps.
const FIBERS: usize = 1024;

impl Cpu {
    /// The CP decomposition of counts: the non-negative model M under which the values of `x`, as independent Poisson variables with
    /// the means M, are most likely. Options, state and observer are those of [`Cpu::cp_als`]; `tolerance` is the largest
    /// violation of the Karush-Kuhn-Tucker conditions at which it ends (1e-4 is usual), columns add up to 1,
    /// [`CpIteration::objective`] is sum of m - x log m, and [`CpIteration::violation`] that violation.
    ///
    /// Zeros that should not be are told by the current Phi, which the paper keeps from the turn before: so the state is the model
    /// alone, and a resumed run has the bits of an unbroken one. Bit-reproducible on any number of threads. Besides the tensor
    /// it takes a tree of it for every mode.
    ///
    /// # Errors
    /// As [`Cpu::cp_als`]; [`Error::Argument`] for a ridge and for initial factors with negative elements;
    /// [`Error::Structure`] for a tensor of order 1, and when a value is negative.
    pub fn cp_apr<T: Scalar>(
        &self,
        x: &CooTensor<T>,
        options: &CpOptions<T>,
        mut observe: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        decompose(self, x, options, &mut observe)
    }
}

/// [`Cpu::cp_apr`] with the observer by reference.
#[inline(never)]
pub(crate) fn decompose<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    options: &CpOptions<T>,
    observe: &mut Observer<'_, T>,
) -> Result<CpState<T>> {
    if x.order() < 2 {
        return Err(Error::structure("tensor", "CP-APR needs two modes or more"));
    }
    if let Some(p) = x.values().iter().position(|&value| value < T::ZERO) {
        let value = x.values()[p].to_f64();
        return Err(Error::structure("tensor", format!("entry {p} is {value}; counts are not negative")));
    }
    if options.ridge > 0.0 {
        return Err(Error::argument("ridge", "CP-APR has none"));
    }
    let norm_squared = x.values().iter().map(|x| x.to_f64() * x.to_f64()).sum();
    let rows = whole(x.dims());
    let target = Target { rows: &rows, order: &[], norm_squared };
    check(target, options)?;
    if let CpInit::Factors(factors) | CpInit::Resume(CpState { factors, .. }) = &options.init {
        let negative = |f: &Mat<T>| f.iter_rows().any(|row| row.iter().any(|&x| x < T::ZERO));
        if let Some(mode) = factors.iter().position(negative) {
            return Err(Error::argument("init", format!("the factor of mode {mode} has a negative element")));
        }
    }
    cpu.install(|| run(cpu, x, target, options, observe))
}

/// The tensor as a tree with one mode at its root.
struct Slices<T> {
    csf: Csf<T>,
    /// The mode of the leaves.
    leaf: usize,
    /// The modes between, with each fiber's coordinate.
    middle: Vec<(usize, Vec<u32>)>,
    /// The fibers of slice s: `first[s]..first[s + 1]`.
    first: Vec<usize>,
}

impl<T: Scalar> Slices<T> {
    fn new(x: &CooTensor<T>, mode: usize) -> Result<Self> {
        let mode_order = rooted_mode_order(x.dims(), mode);
        let csf = Csf::from_coo(x, &mode_order)?;
        let pattern = csf.pattern();
        let last = mode_order.len() - 1;
        // Level by level from the fibers up: where the fibers of its nodes begin.
        let mut first: Vec<usize> = (0..=pattern.nodes(last - 1)).collect();
        let mut middle = Vec::new();
        for level in (0..last).rev() {
            if level + 1 < last {
                first = pattern.ptr(level).iter().map(|&child| first[child]).collect();
            }
            if level > 0 {
                let nodes = pattern.idx(level).iter().zip(first.windows(2));
                let coords = nodes.flat_map(|(&i, fibers)| std::iter::repeat_n(i, fibers[1] - fibers[0])).collect();
                middle.push((mode_order[level], coords));
            }
        }
        let leaf = mode_order[last];
        Ok(Self { csf, leaf, middle, first })
    }

    /// Its fibers as the rows of a matrix, whose columns are the leaves' coordinates.
    fn matrix(&self) -> Result<CsrRef<'_, T>> {
        let (pattern, last) = (self.csf.pattern(), self.csf.pattern().order() - 1);
        let cols = pattern.dims()[self.leaf];
        CsrRef::new(pattern.nodes(last - 1), cols, pattern.ptr(last - 1), pattern.idx(last), self.csf.values())
    }

    /// The slice of a fiber.
    fn slice_of(&self, fiber: usize) -> usize {
        self.first.partition_point(|&first| first <= fiber) - 1
    }
}

/// What is computed from a mode's slices, piece by piece of the fibers.
struct Pieces<T> {
    /// Fibers of a piece.
    len: usize,
    q: Mat<T>,
    e: Mat<T>,
}

impl<T: Scalar> Pieces<T> {
    fn new(rank: usize, fibers: usize) -> Result<Self> {
        let len = (PIECE_BYTES / (rank.max(1) * size_of::<T>())).min(fibers).max(1);
        Ok(Self { len, q: Mat::zeros(len, rank)?, e: Mat::zeros(len, rank)? })
    }

    /// `q_f` of `fibers`.
    fn rows(&mut self, slices: &Slices<T>, factors: &[Mat<T>], b: &Mat<T>, fibers: &Range<usize>) {
        let (stride, roots) = (self.q.as_ref().stride(), slices.csf.pattern().idx(0));
        let q = &mut self.q.as_mut().into_data()[..fibers.len() * stride];
        parallel::chunks_mut(q, FIBERS * stride, |k, rows| {
            let from = fibers.start + k * FIBERS;
            let mut slice = slices.slice_of(from);
            for (fiber, q) in (from..).zip(rows.chunks_mut(stride)) {
                while slices.first[slice + 1] <= fiber {
                    slice += 1;
                }
                let own = b.row(roots[slice] as usize);
                q[..own.len()].copy_from_slice(own);
                for (mode, coords) in &slices.middle {
                    let row = factors[*mode].row(coords[fiber] as usize);
                    q.iter_mut().zip(row).for_each(|(q, &x)| *q = *q * x);
                }
            }
        });
    }

    /// Phi of a mode; `b` stands for its factor.
    fn phi(
        &mut self,
        cpu: &Cpu,
        (slices, matrix): (&Slices<T>, CsrRef<'_, T>),
        factors: &[Mat<T>],
        b: &Mat<T>,
        phi: &mut Mat<T>,
    ) -> Result<()> {
        let (leaves, stride) = (factors[slices.leaf].as_ref(), phi.as_ref().stride());
        let roots = slices.csf.pattern().idx(0);
        phi.as_mut().into_data().fill(T::ZERO);
        for start in (0..matrix.rows()).step_by(self.len) {
            let fibers = start..matrix.rows().min(start + self.len);
            self.rows(slices, factors, b, &fibers);
            let (q, cols) = (self.q.as_ref().row_range(0..fibers.len())?, b.cols());
            let mut e = self.e.as_mut();
            let own = MatMut::new(e.reborrow().into_data(), fibers.len(), cols, self.q.as_ref().stride())?;
            let floor = T::from_f64(FLOOR);
            cpu.fusedmm(matrix.row_range(fibers.clone())?, edge::Ratio { floor }, q, leaves, leaves, own)?;

            // Every row of Phi is one slice's: rows are shared out between tasks.
            let touched = slices.slice_of(fibers.start)..slices.slice_of(fibers.end - 1) + 1;
            let (low, high) = (roots[touched.start] as usize, roots[touched.end - 1] as usize + 1);
            let e = self.e.as_ref();
            let rows = (high - low).div_ceil(8 * parallel::threads()).max(1);
            parallel::chunks_mut(
                &mut phi.as_mut().into_data()[low * stride..high * stride],
                rows * stride,
                |k, phi| {
                    let from = low + k * rows;
                    let begin = touched.start + roots[touched.clone()].partition_point(|&i| (i as usize) < from);
                    let mut term = vec![T::ZERO; cols];
                    for (slice, &root) in (begin..touched.end).zip(&roots[begin..]) {
                        let row = root as usize - from;
                        if row >= rows {
                            break;
                        }
                        let sum = &mut phi[row * stride..][..cols];
                        let own = slices.first[slice].max(fibers.start)..slices.first[slice + 1].min(fibers.end);
                        for fiber in own {
                            term.copy_from_slice(e.row(fiber - fibers.start));
                            for (mode, coords) in &slices.middle {
                                let row = factors[*mode].row(coords[fiber] as usize);
                                term.iter_mut().zip(row).for_each(|(t, &x)| *t = *t * x);
                            }
                            sum.iter_mut().zip(&term).for_each(|(sum, &t)| *sum += t);
                        }
                    }
                },
            );
        }
        Ok(())
    }

    /// Sums over the nonzeros of x log m and of x m; `b` stands for the root's factor.
    fn sums(
        &mut self,
        cpu: &Cpu,
        (slices, matrix): (&Slices<T>, CsrRef<'_, T>),
        factors: &[Mat<T>],
        b: &Mat<T>,
    ) -> Result<(f64, f64)> {
        let (mut logarithms, mut inner) = (0.0, 0.0);
        for start in (0..matrix.rows()).step_by(self.len) {
            let fibers = start..matrix.rows().min(start + self.len);
            self.rows(slices, factors, b, &fibers);
            let piece = matrix.row_range(fibers.clone())?;
            let mut model = vec![T::ZERO; piece.nnz()];
            let q = self.q.as_ref().row_range(0..fibers.len())?;
            cpu.sddmm(piece.pattern(), q, factors[slices.leaf].as_ref(), &mut model)?;
            let parts = parallel::map_tasks(model.len().div_ceil(parallel::GRAIN), |k| {
                let range = k * parallel::GRAIN..model.len().min((k + 1) * parallel::GRAIN);
                let terms = piece.values()[range.clone()].iter().zip(&model[range]);
                terms.fold((0.0, 0.0), |(logarithms, inner), (x, m)| {
                    let (x, m) = (x.to_f64(), m.to_f64());
                    let logarithm = if x > 0.0 { x * m.max(f64::MIN_POSITIVE).ln() } else { 0.0 };
                    (logarithms + logarithm, inner + x * m)
                })
            });
            parts.iter().for_each(|part| (logarithms, inner) = (logarithms + part.0, inner + part.1));
        }
        Ok((logarithms, inner))
    }
}

/// `f(rows of a, rows of b)` for some rows at a time; the largest of what it gives.
fn largest<T: Scalar>(a: &mut Mat<T>, b: &Mat<T>, f: impl Fn(&mut [T], &[T]) -> f64 + Sync) -> f64 {
    let (stride, cols, b) = (a.as_ref().stride(), a.cols(), b.as_ref());
    let rows = parallel::map_chunks_mut(a.as_mut().into_data(), CHUNK * stride, |k, rows| {
        let pairs = (k * CHUNK..b.rows()).zip(rows.chunks_mut(stride));
        pairs.map(|(i, row)| f(&mut row[..cols], b.row(i))).fold(0.0, f64::max)
    });
    rows.into_iter().fold(0.0, f64::max)
}

/// Divides the columns by their sums; the sums. Columns of zeros stay.
fn normalise<T: Scalar>(a: &mut Mat<T>) -> Vec<f64> {
    let (stride, cols) = (a.as_ref().stride(), a.cols());
    let data = a.as_mut().into_data();
    let parts = parallel::map_chunks_mut(data, CHUNK * stride, |_, rows| {
        let mut sums = vec![0.0; cols];
        rows.chunks(stride).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64()));
        sums
    });
    let mut sums = vec![0.0; cols];
    parts.iter().for_each(|part| sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part));
    let inverse: Vec<f64> = sums.iter().map(|&sum| if sum > 0.0 { 1.0 / sum } else { 0.0 }).collect();
    scale(a, &inverse);
    sums
}

/// Multiplies the columns by `by`.
fn scale<T: Scalar>(a: &mut Mat<T>, by: &[f64]) {
    let stride = a.as_ref().stride();
    parallel::chunks_mut(a.as_mut().into_data(), CHUNK * stride, |_, rows| {
        for row in rows.chunks_mut(stride) {
            row.iter_mut().zip(by).for_each(|(x, by)| *x = T::from_f64(x.to_f64() * by));
        }
    });
}

fn run<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    target: Target<'_>,
    options: &CpOptions<T>,
    observe: &mut Observer<'_, T>,
) -> Result<CpState<T>> {
    let (rank, order) = (options.rank, x.order());
    let (mut state, _) = begin(cpu, target, options, &mut |_| Ok(()))?;
    // What the method remembers is whether it had converged: then the columns add up to 1, too.
    let mut converged = matches!(&state.memory[..], [flag] if flag[..] == [1.0]);
    if !matches!(&state.memory[..], [flag] if flag.len() == 1) {
        for factor in &mut state.factors {
            state.lambda.iter_mut().zip(normalise(factor)).for_each(|(lambda, sum)| *lambda *= sum);
        }
    }
    let slices = (0..order).map(|mode| Slices::new(x, mode)).collect::<Result<Vec<_>>>()?;
    let matrices = slices.iter().map(Slices::matrix).collect::<Result<Vec<_>>>()?;
    let most = matrices.iter().map(|matrix| matrix.rows()).max().unwrap_or(0);
    let mut pieces = Pieces::new(rank, most)?;
    let mut phis = x.dims().iter().map(|&dim| Mat::zeros(dim, rank)).collect::<Result<Vec<Mat<T>>>>()?;
    while state.fits.len() < options.iterations && !converged {
        let (start, mut in_products) = (Instant::now(), Duration::ZERO);
        let mut violations = vec![0.0; order];
        converged = true;
        for mode in 0..order {
            let (operand, phi) = ((&slices[mode], matrices[mode]), &mut phis[mode]);
            let mut b = std::mem::replace(&mut state.factors[mode], Mat::zeros(0, rank)?);
            let mut update = |b: &Mat<T>, phi: &mut Mat<T>, factors: &[Mat<T>]| {
                let before = Instant::now();
                pieces.phi(cpu, operand, factors, b, phi)?;
                in_products += before.elapsed();
                Ok::<_, Error>(())
            };
            let zero = |x: T| x.to_f64() < KAPPA_TOLERANCE;
            if !state.fits.is_empty() && b.iter_rows().any(|row| row.iter().any(|&x| zero(x))) {
                let mut weighted = b.clone();
                scale(&mut weighted, &state.lambda);
                update(&weighted, phi, &state.factors)?;
                largest(&mut b, phi, |b, phi| {
                    let wrong = b.iter_mut().zip(phi).filter(|(b, phi)| zero(**b) && phi.to_f64() > 1.0);
                    wrong.for_each(|(b, _)| *b += T::from_f64(KAPPA));
                    0.0
                });
            }
            scale(&mut b, &state.lambda);
            for _ in 0..INNER {
                update(&b, phi, &state.factors)?;
                violations[mode] = largest(&mut b, phi, |b, phi| {
                    let terms = b.iter().zip(phi).map(|(b, phi)| b.to_f64().min(1.0 - phi.to_f64()).abs());
                    terms.fold(0.0, f64::max)
                });
                if violations[mode] < options.tolerance {
                    break;
                }
                converged = false;
                largest(&mut b, phi, |b, phi| {
                    b.iter_mut().zip(phi).for_each(|(b, &phi)| *b = *b * phi);
                    0.0
                });
            }
            state.lambda = normalise(&mut b);
            state.factors[mode] = b;
        }
        let mut weighted = state.factors[order - 1].clone();
        scale(&mut weighted, &state.lambda);
        let operand = (&slices[order - 1], matrices[order - 1]);
        let (logarithms, inner) = pieces.sums(cpu, operand, &state.factors, &weighted)?;
        let mut v = Small::ones(rank);
        for factor in &state.factors {
            v.scale_by(&gram(cpu, factor, &mut |_| Ok(()))?);
        }
        let residual = target.norm_squared - 2.0 * inner + v.quadratic(&state.lambda);
        let fit = fit_of(residual, target.norm_squared);
        state.fits.push(fit);
        state.memory = vec![vec![f64::from(u8::from(converged))]];
        let iteration = CpIteration {
            number: state.fits.len(),
            fit,
            time: start.elapsed(),
            mttkrp: in_products,
            objective: state.lambda.iter().sum::<f64>() - logarithms,
            violation: Some(violations.iter().copied().fold(0.0, f64::max)),
        };
        if observe(&state, &iteration).is_break() {
            break;
        }
    }
    Ok(state)
}
