//! FusedMM of heads, with scores that are dots or sums, bias, dropout and log-sum-exp: all that its gradient needs to know, too.
//!
//! ```text
//! scores of all edges (SDDMM, or sums)  ->  their weights (by rows)  ->  the rows that they weigh (SpMM)
//! ```
//!
//! Each stage passes over the whole matrix, so that only one gathered operand at a time competes for the caches; in between there is
//! one number for each edge and head.

use sparsimd_kernels::edge::{BuiltIn, Edge};
use sparsimd_kernels::{Dropout, EdgeWeights, Scalar, SumRows, edge_weights, sum_rows};

use super::differentiable::Differentiable;
use super::heads::{check_heads, check_numbers};
use super::run::{Shared, scratch};
use crate::cpu::Cpu;
use crate::cut;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::PatternRef;

/// Where the score s of an edge (i, j) and head h comes from.
#[derive(Clone, Copy, Debug)]
enum Scores<'a, T> {
    /// C_ih . B_jh.
    Dots(MatRef<'a, T>, MatRef<'a, T>),
    /// a_ih + b_jh.
    Sums(MatRef<'a, T>, MatRef<'a, T>),
}

/// How FusedMM weighs edges: w_ijh = k_ijh f(s_ijh), with scores s, an edge function f and, for dropout, factors k.
///
/// ```
/// use sparsimd::{Mat, ops::EdgeWeighting, edge};
/// let (q, k) = (Mat::<f32>::zeros(5, 16)?, Mat::zeros(5, 16)?);
/// // Attention of two heads of eight columns.
/// let attention = EdgeWeighting::dots(edge::Softmax { scale: 0.35 }, q.as_ref(), k.as_ref()).heads(2).dropout(0.1, 42);
/// // Graph attention: one number for each node and head on either side.
/// let (left, right) = (Mat::<f32>::zeros(5, 2)?, Mat::zeros(5, 2)?);
/// let gat = EdgeWeighting::sums(edge::SoftmaxLeakyRelu { slope: 0.2 }, left.as_ref(), right.as_ref());
/// # Ok::<(), sparsimd::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EdgeWeighting<'a, T> {
    pub(super) edge: BuiltIn<T>,
    scores: Scores<'a, T>,
    pub(super) heads: usize,
    pub(super) bias: Option<&'a [T]>,
    values: Option<&'a [T]>,
    dropout: Option<(f64, u64)>,
}

impl<'a, T: Scalar> EdgeWeighting<'a, T> {
    /// s_ijh = C_ih . B_jh: C dense M x N, B dense K x N; of one head, unless [`EdgeWeighting::heads`] says otherwise.
    pub fn dots(edge: impl Into<BuiltIn<T>>, c: MatRef<'a, T>, b: MatRef<'a, T>) -> Self {
        Self { edge: edge.into(), scores: Scores::Dots(c, b), heads: 1, bias: None, values: None, dropout: None }
    }

    /// s_ijh = a_ih + b_jh: a dense M x H, b dense K x H, of as many heads as they have columns.
    pub fn sums(edge: impl Into<BuiltIn<T>>, a: MatRef<'a, T>, b: MatRef<'a, T>) -> Self {
        Self { edge: edge.into(), scores: Scores::Sums(a, b), heads: a.cols(), bias: None, values: None, dropout: None }
    }

    /// The same with the columns of the dense operands shared out to `heads` heads, side by side.
    pub fn heads(self, heads: usize) -> Self {
        Self { heads, ..self }
    }

    /// The same with a number for each nonzero, in CSR order, added to the logits of a softmax, of all heads: f(s) + bias. Finite.
    pub fn bias(self, bias: &'a [T]) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// The same with these values of A, one for each nonzero in CSR order, instead of those that it was prepared with.
    pub fn values(self, values: &'a [T]) -> Self {
        Self { values: Some(values), ..self }
    }

    /// The same with weights dropped, each with probability `rate`, and the others multiplied by 1 / (1 - rate). Which are dropped depends
    /// on the seed and the edge's and the head's number alone, so that the gradient finds the same.
    pub fn dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: Some((rate, seed)), ..self }
    }

    /// Whether the weights of a row are normalised by softmax.
    #[cfg(feature = "capi")]
    pub(crate) fn is_softmax(&self) -> bool {
        self.edge.is_softmax()
    }

    /// H.
    #[cfg(feature = "capi")]
    pub(crate) fn head_count(&self) -> usize {
        self.heads
    }

    /// Columns of the scores' operands.
    #[cfg(feature = "capi")]
    pub(crate) fn operand_columns(&self) -> usize {
        self.operands()[0].cols()
    }

    /// The left and the right operand of the scores.
    pub(super) fn operands(&self) -> [MatRef<'a, T>; 2] {
        match self.scores {
            Scores::Dots(left, right) | Scores::Sums(left, right) => [left, right],
        }
    }

    /// Whether scores are sums.
    pub(super) fn are_sums(&self) -> bool {
        matches!(self.scores, Scores::Sums(..))
    }

    /// Checks what can be checked without results; the values that the edge function uses.
    pub(super) fn check<'v>(
        &'v self,
        op: &'static str,
        a: &'v Differentiable<T>,
        width: usize,
    ) -> Result<Option<&'v [T]>> {
        let pattern = a.pattern();
        let [left, right] = self.operands();
        check_heads(op, self.heads, width)?;
        check_heads(op, self.heads, left.cols())?;
        let (names, n) = if self.are_sums() { (["a", "b"], self.heads) } else { (["C", "B"], left.cols()) };
        check_shape(op, names[0], left.shape(), (pattern.rows(), n))?;
        check_shape(op, names[1], right.shape(), (pattern.cols(), n))?;
        if let Some(bias) = self.bias {
            if !self.edge.is_softmax() {
                return Err(Error::argument("bias", "is added to the logits of a softmax; the edge function is none"));
            }
            check_numbers(op, "bias", bias.len(), pattern.nnz(), 1)?;
        }
        match self.dropout {
            Some((rate, _)) if !(0.0..1.0).contains(&rate) => {
                Err(Error::argument("dropout", format!("{rate} is not from 0 to below 1")))
            }
            _ if !self.edge.uses_values() => Ok(None),
            _ => match self.values {
                Some(values) => {
                    check_numbers(op, "values", values.len(), pattern.nnz(), 1)?;
                    Ok(Some(values))
                }
                None => a.need_values(op).map(Some),
            },
        }
    }

    /// What the kernels know of dropout.
    fn dropped(&self) -> Option<Dropout<T>> {
        let (rate, seed) = self.dropout.filter(|&(rate, _)| rate > 0.0)?;
        let threshold = (rate * 4_294_967_296.0) as u32;
        Some(Dropout { threshold, seed, factor: T::from_f64(1.0 / (1.0 - rate)) })
    }
}

/// Rows that are worth a task, in edges: some 10 us of exponentials.
const EDGES_OF_TASK: usize = 1 << 13;

impl Cpu {
    /// E_ih = sum over the nonzeros (i, j) of A of w_ijh D_jh, w as `weights` say; D dense K x P, E dense M x P, P columns of H heads side by
    /// side. With `lse`, dense M x H, also log(sum over the row of exp(f_ijh + bias_ij)) of a softmax, before dropout; minus infinity for rows
    /// without nonzeros. For other edge functions `lse` becomes 0.
    ///
    /// Rows without nonzeros become zeros. Edge values take one number for each nonzero and head.
    ///
    /// # Errors
    /// [`Error::Shape`] when shapes do not fit, columns are 0 or no multiple of H, or A has no values where f needs them;
    /// [`Error::Argument`] when there is a bias without softmax, a dropout rate outside 0 to 1, or A was prepared for another instruction
    /// set; [`Error::Memory`].
    #[inline(never)]
    pub fn fusedmm_heads<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        weights: &EdgeWeighting<'_, T>,
        d: MatRef<'_, T>,
        e: MatMut<'_, T>,
        lse: Option<MatMut<'_, T>>,
    ) -> Result<()> {
        let op = "fusedmm_heads";
        let (pattern, heads) = (a.pattern(), weights.heads);
        let values = weights.check(op, a, e.cols())?;
        check_shape(op, "D", d.shape(), (pattern.cols(), e.cols()))?;
        check_shape(op, "E", e.as_ref().shape(), (pattern.rows(), e.cols()))?;
        if let Some(lse) = &lse {
            check_shape(op, "lse", lse.shape(), (pattern.rows(), heads))?;
        }
        let mut w = a.take(pattern.nnz() * heads)?;
        self.scores(a, weights, &mut w)?;
        let mut states =
            vec![[T::NEG_INFINITY, T::ZERO]; if weights.edge.is_softmax() { pattern.rows() * heads } else { 0 }];
        let (shared, states_at) = (Shared(w.as_mut_ptr()), Shared(states.as_mut_ptr()));
        self.by_rows(pattern.into(), heads, |rows| {
            let mut room = scratch::<T>(EdgeWeights::<T>::scratch_len(heads));
            let task = weights.task(pattern.into(), rows, values, shared.get(), room.as_mut_ptr());
            // SAFETY: the pattern's invariants; there are as many scores, values and states as stated, and the rows' are this task's own.
            unsafe { edge_weights(self.arch(), task, states_at.get()) };
        });
        if let Some(mut lse) = lse {
            for i in 0..pattern.rows() {
                let row = lse.reborrow().into_row(i);
                match states.get(i * heads..(i + 1) * heads) {
                    Some(states) => {
                        row.iter_mut().zip(states).for_each(|(lse, &[m, l])| *lse = m + T::from_f64(l.to_f64().ln()))
                    }
                    None => row.fill(T::ZERO),
                }
            }
        }
        self.product_of(&a.rows, heads, &w, d, e, false)?;
        a.give([w]);
        Ok(())
    }

    /// The scores of all edges; shapes have been checked.
    pub(super) fn scores<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        weights: &EdgeWeighting<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let [left, right] = weights.operands();
        if !weights.are_sums() {
            return self.dots_at(a, weights.heads, left, right, out);
        }
        let pattern = PatternRef::from(a.pattern());
        let out = Shared(out.as_mut_ptr());
        self.by_rows(pattern, weights.heads, |rows| {
            let task = SumRows {
                row_ptr: pattern.row_ptr().raw(),
                columns: pattern.col_idx().as_ptr(),
                rows,
                heads: weights.heads,
                a: (left.data().as_ptr(), left.stride()),
                b: (right.data().as_ptr(), right.stride()),
                out: out.get(),
            };
            // SAFETY: the pattern's invariants and the checked shapes; the rows' scores are this task's own.
            unsafe { sum_rows(self.arch(), task) };
        });
        Ok(())
    }

    /// `run([first, one past the last])` for ranges of whole rows of about equal work on the edges of each.
    pub(super) fn by_rows(&self, pattern: PatternRef<'_>, heads: usize, run: impl Fn([usize; 2]) + Send + Sync) {
        let before = |i: usize| pattern.row_ptr().at(i).saturating_mul(heads).saturating_add(i);
        let (rows, work) = (pattern.rows(), before(pattern.rows()));
        let parts = cut::ranges(rows, work.div_ceil(EDGES_OF_TASK).clamp(1, 16 * self.threads()), before);
        // An edge is worth some ten multiply-adds.
        self.for_each(parts.len(), work.saturating_mul(10), |k| run([parts[k].start, parts[k].end]));
    }
}

impl<T: Scalar> EdgeWeighting<'_, T> {
    /// The rows as the kernels take them.
    pub(super) fn task(
        &self,
        pattern: PatternRef<'_>,
        rows: [usize; 2],
        values: Option<&[T]>,
        weights: *mut T,
        scratch: *mut T,
    ) -> EdgeWeights<T> {
        EdgeWeights {
            edge: self.edge,
            dropout: self.dropped(),
            row_ptr: pattern.row_ptr().raw(),
            rows,
            heads: self.heads,
            values: values.map_or(std::ptr::null(), <[T]>::as_ptr),
            bias: self.bias.map_or(std::ptr::null(), <[T]>::as_ptr),
            weights,
            scratch,
        }
    }
}
