//! The gradients of SpMM, SDDMM and FusedMM, from what the forward pass keeps in numbers for each row.
//!
//! With L the loss, and the gradient of the result given:
//!
//! ```text
//! SpMM     C = A_v B           dv_p = dC_i . B_j                        dB = A_v^T dC
//! SDDMM    s_p = C_i . B_j     dC = A_ds B                              dB = A_ds^T C
//! FusedMM  E = A_w D           g_p = dE_i . D_j                         dD = A_w^T dE
//!          w = k f(s)          ds = f'(s) k g                           or, for a softmax, with z = f(s) + bias,
//!                              w = e^(z - lse), delta_i = sum over the row of w k g, ds = f'(s) w (k g - delta_i)
//!          s = C B^T           dC = A_ds B                              dB = A_ds^T C
//!          s = a_i + b_j       da_i = sum over the row of ds            db_j = sum over the column of ds
//! ```
//!
//! (A_v: the pattern of A with the values v.) The scores are computed again, and the weights from them and the log-sum-exp, as flash attention
//! does (Dao et al. 2022): two products at the nonzeros, one with A and two with A^T, against one of each forward. With heads, everything is by
//! head; values and bias, which all heads share, have the sum of their gradients.

use sparsimd_kernels::edge::Edge;
use sparsimd_kernels::{RowSums, Scalar, row_sums};

use super::differentiable::Differentiable;
use super::fusedmm_heads::EdgeWeighting;
use super::gradient_rows::Edges;
use super::heads::{check_heads, check_numbers};
use super::run::Shared;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::PatternRef;
use crate::plan::streams;

/// Where the gradients of FusedMM go.
pub struct FusedGradient<'a, T> {
    /// By the left operand of the scores, C or a.
    pub left: MatMut<'a, T>,
    /// By the right operand of the scores, B or b.
    pub right: MatMut<'a, T>,
    /// By D.
    pub d: MatMut<'a, T>,
    /// By the values of A, one for each nonzero, where the edge function uses them.
    pub values: Option<&'a mut [T]>,
    /// By the bias, one for each nonzero.
    pub bias: Option<&'a mut [T]>,
}

impl Cpu {
    /// The gradients of C_ih = sum over p = (i, j) of v_ph B_jh ([`Cpu::spmm_heads`]; with one head, of SpMM with alpha = 1 and beta = 0):
    /// dv_ph = dC_ih . B_jh and dB_jh = sum over p = (i, j) of v_ph dC_ih.
    ///
    /// # Errors
    /// As [`Cpu::fusedmm_gradient`].
    #[expect(clippy::too_many_arguments, reason = "operands and results")]
    pub fn spmm_gradient<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        heads: usize,
        values: &[T],
        b: MatRef<'_, T>,
        dc: MatRef<'_, T>,
        dvalues: Option<&mut [T]>,
        db: Option<MatMut<'_, T>>,
    ) -> Result<()> {
        let op = "spmm_gradient";
        let (pattern, n) = (a.pattern(), b.cols());
        check_heads(op, heads, n)?;
        check_numbers(op, "values", values.len(), pattern.nnz(), heads)?;
        check_shape(op, "B", b.shape(), (pattern.cols(), n))?;
        check_shape(op, "dC", dc.shape(), (pattern.rows(), n))?;
        if let Some(dvalues) = dvalues {
            check_numbers(op, "dvalues", dvalues.len(), pattern.nnz(), heads)?;
            self.dots_at(a, heads, dc, b, dvalues)?;
        }
        if let Some(db) = db {
            check_shape(op, "dB", db.shape(), b.shape())?;
            self.transposed_product(a, heads, values, dc, db)?;
        }
        Ok(())
    }

    /// The gradients of s_ph = C_ih . B_jh ([`Cpu::sddmm_heads`]; with one head, of SDDMM): dC_ih = sum over p = (i, j) of ds_ph B_jh and
    /// dB_jh = sum over p = (i, j) of ds_ph C_ih.
    ///
    /// # Errors
    /// As [`Cpu::fusedmm_gradient`].
    #[expect(clippy::too_many_arguments, reason = "operands and results")]
    pub fn sddmm_gradient<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        heads: usize,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        ds: &[T],
        dc: Option<MatMut<'_, T>>,
        db: Option<MatMut<'_, T>>,
    ) -> Result<()> {
        let op = "sddmm_gradient";
        let (pattern, n) = (a.pattern(), b.cols());
        check_heads(op, heads, n)?;
        check_numbers(op, "ds", ds.len(), pattern.nnz(), heads)?;
        check_shape(op, "C", c.shape(), (pattern.rows(), n))?;
        check_shape(op, "B", b.shape(), (pattern.cols(), n))?;
        if let Some(dc) = dc {
            check_shape(op, "dC", dc.shape(), c.shape())?;
            self.product_of(&a.rows, heads, ds, b, dc, false)?;
        }
        if let Some(db) = db {
            check_shape(op, "dB", db.shape(), b.shape())?;
            self.transposed_product(a, heads, ds, c, db)?;
        }
        Ok(())
    }

    /// C = A_v^T B; shapes have been checked.
    fn transposed_product<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        heads: usize,
        v: &[T],
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        let mut by_columns = a.take(v.len())?;
        self.transpose_numbers(a, heads, v, [&mut by_columns]);
        self.product_of(&a.columns, heads, &by_columns, b, c, false)?;
        a.give([by_columns]);
        Ok(())
    }

    /// The gradients of [`Cpu::fusedmm_heads`], and of [`Cpu::fusedmm`] with one of the library's edge functions, by the formulas of this
    /// module: from the operands, the log-sum-exp `lse` (M x H; for a softmax, not looked at otherwise) and `de`, the gradient of E (M x P).
    ///
    /// Needs four numbers for each nonzero and head.
    ///
    /// # Errors
    /// As [`Cpu::fusedmm_heads`], for the gradients' shapes, too, which are those of what they are gradients of.
    #[inline(never)]
    pub fn fusedmm_gradient<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        weights: &EdgeWeighting<'_, T>,
        d: MatRef<'_, T>,
        lse: Option<MatRef<'_, T>>,
        de: MatRef<'_, T>,
        out: FusedGradient<'_, T>,
    ) -> Result<()> {
        let op = "fusedmm_gradient";
        let (pattern, heads, [left, right]) = (a.pattern(), weights.heads, weights.operands());
        let values = weights.check(op, a, de.cols())?;
        check_shape(op, "D", d.shape(), (pattern.cols(), de.cols()))?;
        check_shape(op, "dE", de.shape(), (pattern.rows(), de.cols()))?;
        check_shape(op, "the gradient of the left operand", out.left.shape(), left.shape())?;
        check_shape(op, "the gradient of the right operand", out.right.shape(), right.shape())?;
        check_shape(op, "dD", out.d.shape(), d.shape())?;
        for (name, numbers) in [("the values' gradient", &out.values), ("the bias' gradient", &out.bias)] {
            if let Some(numbers) = numbers {
                check_numbers(op, name, numbers.len(), pattern.nnz(), 1)?;
            }
        }
        if out.values.is_some() && !weights.edge.uses_values() || out.bias.is_some() && weights.bias.is_none() {
            return Err(Error::argument("out", "has room for the gradient of values or a bias that are not used"));
        }
        if weights.edge.is_softmax() {
            let lse = lse.ok_or_else(|| Error::argument("lse", "is needed for the gradient of a softmax"))?;
            check_shape(op, "lse", lse.shape(), (pattern.rows(), heads))?;
        }
        let len = pattern.nnz() * heads;
        let (mut w, mut ds, mut pairs) = (a.take(len)?, a.take(len)?, a.take(2 * len)?);
        self.dots_at(a, heads, de, d, &mut ds)?;
        let edges =
            Edges { values, lse, s: &mut w, ds: &mut ds, pairs: &mut pairs, dvalues: out.values, dbias: out.bias };
        // What is gathered meanwhile, and again, is not to make room for results.
        let of_rows = pattern.rows().saturating_mul(2 * left.cols() + de.cols());
        let of_columns = pattern.cols().saturating_mul(2 * (right.cols() + d.cols()));
        let stream = streams(self.machine(), of_rows.saturating_add(of_columns).saturating_mul(size_of::<T>()));
        self.gradients_by_rows(a, weights, edges, out.left, stream)?;
        // From here on w and ds are in the order of the transposed pattern.
        self.transpose_numbers(a, heads, &pairs, [&mut w, &mut ds]);
        if weights.are_sums() {
            self.sums_of_rows(a.transposed().into(), heads, &ds, out.right);
        } else {
            self.product_of(&a.columns, heads, &ds, left, out.right, stream)?;
        }
        self.product_of(&a.columns, heads, &w, de, out.d, stream)?;
        a.give([w, ds, pairs]);
        Ok(())
    }

    /// out_ih = sum of x_ph over the nonzeros of row i of `pattern`; shapes have been checked.
    pub(super) fn sums_of_rows<T: Scalar>(&self, pattern: PatternRef<'_>, heads: usize, x: &[T], out: MatMut<'_, T>) {
        let (stride, out) = (out.stride(), Shared(out.into_data().as_mut_ptr()));
        self.by_rows(pattern, heads, |rows| {
            let task =
                RowSums { row_ptr: pattern.row_ptr().raw(), rows, heads, x: x.as_ptr(), out: (out.get(), stride) };
            // SAFETY: the pattern's invariants and the checked shapes; the rows are this task's own.
            unsafe { row_sums(self.arch(), task) };
        });
    }
}
