//! SpMM and SDDMM of H heads side by side, one pattern for all.

use sparsimd_kernels::{HeadRows, Scalar, SddmmHeads, SpmmHeads, sddmm_heads, spmm_heads};

use super::operand::{SparseOperand, check_columns};
use super::run::{CarryOuts, Shared};
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::PatternRef;
use crate::plan::{self, Op, Task, work};

impl Cpu {
    /// C_ih = sum over the nonzeros p = (i, j) of the pattern of v_ph B_jh for the heads h = 0, ..., H - 1.
    ///
    /// B is dense K x N, C dense M x N; head h has the columns h N / H to (h + 1) N / H of them. `values` has H numbers for each nonzero,
    /// v_ph at p H + h in CSR order; those of `a`, if it has any, are not used. Column indices are read once for up to eight heads, and
    /// threads share rows, all heads of each. It runs directly, from a [`Prepared`](super::Prepared) of SpMM in its tasks.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes do not fit, N is 0 or no multiple of H, H is 0, or `a` was prepared for another operation.
    ///
    /// ```
    /// use sparsimd::{Cpu, Mat, Pattern};
    /// let cpu = Cpu::new()?;
    /// let pattern = Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
    /// let b = Mat::from_fn(3, 2, |j, head| (10 * j + head) as f32)?;
    /// let mut c = Mat::zeros(2, 2)?;
    /// cpu.spmm_heads(&pattern, 2, &[1.0, 1.0, 1.0, 2.0, 3.0, 0.5], b.as_ref(), c.as_mut())?;
    /// assert_eq!((c.row(0), c.row(1)), (&[20.0, 43.0][..], &[30.0, 5.5][..]));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn spmm_heads<'a, T: Scalar>(
        &self,
        a: impl Into<SparseOperand<'a, T>>,
        heads: usize,
        values: &[T],
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        let (op, a) = ("spmm_heads", a.into());
        let pattern = a.pattern();
        if let SparseOperand::Prepared(prepared) = a {
            prepared.panels_for(Op::Spmm, self)?;
        }
        check_heads(op, heads, c.cols())?;
        check_shape(op, "B", b.shape(), (pattern.cols(), c.cols()))?;
        check_shape(op, "C", c.as_ref().shape(), (pattern.rows(), c.cols()))?;
        check_numbers(op, "values", values.len(), pattern.nnz(), heads)?;
        self.sums_of_heads(a, pattern, heads, values, b, c, false)
    }

    /// out_ph = C_ih . B_jh for each nonzero p = (i, j) of the pattern and the heads h = 0, ..., H - 1.
    ///
    /// C is dense M x N, B dense K x N; head h has the columns h N / H to (h + 1) N / H of them. `out` has H numbers for each nonzero, that
    /// of head h at p H + h in CSR order. It runs directly, from a [`Prepared`](super::Prepared) of SDDMM in its tasks.
    ///
    /// # Errors
    /// As [`Cpu::spmm_heads`].
    pub fn sddmm_heads<'a, T: Scalar>(
        &self,
        a: impl Into<SparseOperand<'a, T>>,
        heads: usize,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let (op, a) = ("sddmm_heads", a.into());
        let pattern = a.pattern();
        if let SparseOperand::Prepared(prepared) = a {
            prepared.panels_for(Op::Sddmm, self)?;
        }
        check_heads(op, heads, c.cols())?;
        check_shape(op, "C", c.shape(), (pattern.rows(), c.cols()))?;
        check_shape(op, "B", b.shape(), (pattern.cols(), c.cols()))?;
        check_numbers(op, "out", out.len(), pattern.nnz(), heads)?;
        self.dots_of_heads(a, heads, c, b, out)
    }

    /// [`Cpu::spmm_heads`] on the pattern that is worked on, of A or A^T; past the caches where the plan says so or `stream` does. Shapes
    /// have been checked.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "operands and results")]
    pub(crate) fn sums_of_heads<T: Scalar>(
        &self,
        a: SparseOperand<'_, T>,
        pattern: PatternRef<'_>,
        heads: usize,
        values: &[T],
        b: MatRef<'_, T>,
        mut c: MatMut<'_, T>,
        stream: bool,
    ) -> Result<()> {
        let n = c.cols();
        let direct = self.direct(Op::Spmm, a, pattern, n)?;
        let tasks = &direct.tasks;
        let mut carry_outs = CarryOuts::new(tasks, n, false);
        let carry_out = carry_outs.shared(tasks);
        let (ldc, out) = (c.stride(), Shared(c.reborrow().into_data().as_mut_ptr()));
        let arch = self.arch().dividing::<T>(n / heads);
        let stream = stream || direct.stream || self.streams_heads(pattern, n, values);
        self.for_each(tasks.len(), work(pattern.nnz(), n), |k| {
            let task = SpmmHeads {
                rows: head_rows(pattern, &tasks[k], b, heads, direct.prefetch_distance),
                values: values.as_ptr(),
                c: out.get(),
                ldc,
                carry_out: carry_out(k)[0],
                stream,
            };
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; the rows that begin in this task, and
            // its carry-out, are its own.
            unsafe { spmm_heads(arch, task) };
        });
        carry_outs.add_to(tasks, T::ZERO, c);
        Ok(())
    }

    /// Whether a result goes past the caches, where dense operands of `n` columns and H `numbers` for each nonzero pass through them. A plan
    /// knows of one number.
    fn streams_heads<T>(&self, pattern: PatternRef<'_>, n: usize, numbers: &[T]) -> bool {
        let operands = pattern.rows().saturating_add(pattern.cols()).saturating_mul(n).saturating_mul(size_of::<T>());
        plan::streams(self.machine(), operands.saturating_add(size_of_val(numbers)))
    }

    /// [`Cpu::sddmm_heads`]; shapes have been checked.
    #[inline(never)]
    pub(crate) fn dots_of_heads<T: Scalar>(
        &self,
        a: SparseOperand<'_, T>,
        heads: usize,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let pattern = a.pattern();
        let direct = self.direct(Op::Sddmm, a, pattern, c.cols())?;
        let tasks = &direct.tasks;
        let arch = self.arch().dividing::<T>(c.cols() / heads);
        let stream = self.streams_heads(pattern, c.cols(), out);
        let out = Shared(out.as_mut_ptr());
        self.for_each(tasks.len(), work(pattern.nnz(), c.cols()), |k| {
            let task = SddmmHeads {
                rows: head_rows(pattern, &tasks[k], b, heads, direct.prefetch_distance),
                c: c.data().as_ptr(),
                ldc: c.stride(),
                out: out.get(),
                stream,
            };
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; a nonzero is one task's.
            unsafe { sddmm_heads(arch, task) };
        });
        Ok(())
    }
}

/// The rows of a task.
pub(super) fn head_rows<T: Scalar>(
    pattern: PatternRef<'_>,
    task: &Task,
    b: MatRef<'_, T>,
    heads: usize,
    prefetch_distance: usize,
) -> HeadRows<T> {
    HeadRows {
        row_ptr: pattern.row_ptr().raw(),
        columns: pattern.col_idx().as_ptr(),
        rows: task.rows,
        nonzeros: task.nonzeros,
        b: b.data().as_ptr(),
        ldb: b.stride(),
        heads,
        width: b.cols() / heads,
        prefetch_distance,
    }
}

/// Checks that `n` columns, at least one, are those of `heads` heads.
pub(super) fn check_heads(op: &'static str, heads: usize, n: usize) -> Result<()> {
    check_columns(op, n)?;
    if heads == 0 || !n.is_multiple_of(heads) {
        return Err(Error::shape(op, format!("{n} columns are not those of {heads} heads")));
    }
    Ok(())
}

/// Checks that operand `name` has `each` numbers for each of `nnz` nonzeros.
pub(super) fn check_numbers(op: &'static str, name: &str, len: usize, nnz: usize, each: usize) -> Result<()> {
    if Some(len) == nnz.checked_mul(each) {
        return Ok(());
    }
    Err(Error::shape(op, format!("{name} has {len} elements, expected {each} for each of {nnz} nonzeros")))
}
