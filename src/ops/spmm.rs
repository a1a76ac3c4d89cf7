//! SpMM: C = alpha A B + beta C and C = alpha A^T B + beta C. [`spmv`](super::spmv) has what one column alone has.

use sparsimd_kernels::{Number, SpmmPanel, SpmmRows, Stored, scale_rows, spmm_panel, spmm_rows};

use super::operand::{SparseOperand, check_columns};
use super::prepare::Direct;
use super::row_sums::RowSums;
use super::run::{CarryOuts, Shared, scratch};
use super::values::Values;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::Result;
use crate::formats::{Panel, PatternRef, gather};
use crate::plan::{Op, PanelPlan, Task, work};

impl Cpu {
    /// C = alpha A B + beta C, A sparse M x K, B dense K x N, C dense M x N.
    ///
    /// With beta = 0, C is not read. From a [`Csr`](crate::Csr) it runs directly; from a
    /// [`Prepared`](super::Prepared) as its plan says. The same operand, plan and number of threads give the same bits.
    ///
    /// B and C may store bf16 or f16 ([`Stored`]), and so may A: alpha, beta and the sums are f32 then, and each element of C is rounded
    /// once.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) when the shapes do not fit, N is 0, or `a` has no values or was prepared for
    /// another operation; [`Error::Argument`](crate::Error::Argument) when it was prepared for another instruction set.
    ///
    /// ```
    /// use sparsimd::{Cpu, Csr, Mat, Pattern};
    /// let cpu = Cpu::new()?;
    /// let a = Csr::new(Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?, vec![1.0, 2.0, 3.0])?;
    /// let b = Mat::from_fn(3, 4, |i, j| (10 * i + j) as f64)?;
    /// let mut c = Mat::zeros(2, 4)?;
    /// cpu.spmm(1.0, &a, b.as_ref(), 0.0, c.as_mut())?;
    /// assert_eq!(c.row(0), [40.0, 43.0, 46.0, 49.0]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn spmm<'a, D: Stored>(
        &self,
        alpha: D::Scalar,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        c: MatMut<'_, D>,
    ) -> Result<()> {
        self.spmm_operand(alpha, a.into(), b, beta, c)
    }

    /// [`Cpu::spmm`] of an operand.
    #[inline(never)]
    pub(crate) fn spmm_operand<D: Stored>(
        &self,
        alpha: D::Scalar,
        a: SparseOperand<'_, D::Scalar>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        mut c: MatMut<'_, D>,
    ) -> Result<()> {
        let values = a.need_values("spmm")?;
        check_operands("spmm", a.pattern().rows(), a.pattern().cols(), b, c.as_ref())?;
        if let (Some(panels), Values::Same(values)) = (a.panels_for(Op::Spmm, self)?, values) {
            self.spmm_by_panels(alpha, panels, values, b, beta, c);
            return Ok(());
        }
        if let SparseOperand::Prepared(prepared) = a
            && self.spmm_by_slices(alpha, prepared, b, beta, &mut c)
        {
            return Ok(());
        }
        let direct = self.direct(Op::Spmm, a, a.pattern(), c.cols())?;
        self.spmm_directly(alpha, a.pattern(), values, &direct, b, beta, c);
        Ok(())
    }

    /// C = alpha A^T B + beta C, A sparse M x K, B dense M x N, C dense K x N: the gradient of SpMM by its B.
    ///
    /// From a [`Csr`](crate::Csr) the transpose is made on every call; from a [`Prepared`](super::Prepared) it was made
    /// once.
    ///
    /// # Errors
    /// As [`Cpu::spmm`].
    pub fn spmm_t<'a, D: Stored>(
        &self,
        alpha: D::Scalar,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        c: MatMut<'_, D>,
    ) -> Result<()> {
        self.spmm_t_operand(alpha, a.into(), b, beta, c)
    }

    /// [`Cpu::spmm_t`] of an operand.
    #[inline(never)]
    pub(crate) fn spmm_t_operand<D: Stored>(
        &self,
        alpha: D::Scalar,
        a: SparseOperand<'_, D::Scalar>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        mut c: MatMut<'_, D>,
    ) -> Result<()> {
        let values = a.need_values("spmm_t")?;
        check_operands("spmm_t", a.pattern().cols(), a.pattern().rows(), b, c.as_ref())?;
        let SparseOperand::Prepared(prepared) = a else {
            let (pattern, values) = self.install(|| {
                let (pattern, order) = a.pattern().transpose_in(self.threads());
                (pattern, gather(&values.widened(self.arch()), &order))
            });
            let direct = self.direct(Op::Spmm, a, PatternRef::from(&pattern), c.cols())?;
            self.spmm_directly(alpha, PatternRef::from(&pattern), Values::Same(&values), &direct, b, beta, c);
            return Ok(());
        };
        match (prepared.panels_for(Op::SpmmTransposed, self)?, values) {
            (Some(panels), Values::Same(values)) => self.spmm_by_panels(alpha, panels, values, b, beta, c),
            _ if self.spmm_by_slices(alpha, prepared, b, beta, &mut c) => {}
            _ => {
                let worked = prepared.worked().into();
                let direct = self.direct(Op::Spmm, a, worked, c.cols())?;
                self.spmm_directly(alpha, worked, values, &direct, b, beta, c);
            }
        }
        Ok(())
    }

    /// The direct path; shapes have been checked.
    #[expect(clippy::too_many_arguments, reason = "the operation's own, and how to run it")]
    pub(super) fn spmm_directly<D: Stored>(
        &self,
        alpha: D::Scalar,
        pattern: PatternRef<'_>,
        values: Values<'_, D::Scalar>,
        direct: &Direct<'_>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        mut c: MatMut<'_, D>,
    ) {
        let n = c.cols();
        // alpha = 0 does not look at A and B, as in BLAS.
        let skip = alpha == D::Scalar::ZERO;
        let tasks = &direct.tasks;
        let mut carry_outs = CarryOuts::new(tasks, n, D::NARROW);
        let carry_out = carry_outs.shared(tasks);
        let (ldc, out) = (c.stride(), Shared(c.reborrow().into_data().as_mut_ptr()));
        self.for_each(tasks.len(), work(pattern.nnz(), n), |k| {
            let task = &tasks[k];
            if skip {
                let begun = task.rows[0] + usize::from(task.continues);
                let row = out.get().wrapping_add(begun * ldc);
                // SAFETY: the rows that begin in this task are its own.
                return unsafe { scale_rows(self.arch(), beta, task.rows[1] - begun, n, row, ldc) };
            }
            let mut room = scratch(0);
            let values = values.of_task(self.arch(), task.nonzeros, &mut room);
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; the rows that begin in this
            // task, and its carry-out, are its own.
            unsafe {
                let sums = direct_sums(pattern, task, direct, b, (out.get(), ldc));
                spmm_rows(self.arch(), SpmmRows { values, alpha, beta, carry_out: carry_out(k), ..sums });
            }
        });
        if !skip {
            carry_outs.add_to(tasks, beta, c);
        }
    }

    /// The panel path; shapes have been checked, `values` are in panel order.
    pub(super) fn spmm_by_panels<D: Stored>(
        &self,
        alpha: D::Scalar,
        (plan, panel): (&PanelPlan, &Panel),
        values: &[D::Scalar],
        b: MatRef<'_, D>,
        beta: D::Scalar,
        c: MatMut<'_, D>,
    ) {
        let n = c.cols();
        let (ldc, out) = (c.stride(), Shared(c.into_data().as_mut_ptr()));
        let columns_of = |vectors: usize| vectors * self.arch().vector_bytes() / size_of::<D::Scalar>();
        let (tile, pass) = (columns_of(plan.tile_vectors), columns_of(plan.pass_vectors));
        self.for_each(panel.row_blocks().len(), work(values.len(), n), |k| {
            let row_block = &panel.row_blocks()[k];
            let (rows, c) = (row_block.rows.len(), out.get().wrapping_add(row_block.rows.start * ldc));
            if alpha == D::Scalar::ZERO {
                // SAFETY: the rows of a row block are its own task's, and inside C.
                return unsafe { scale_rows(self.arch(), beta, rows, n, c, ldc) };
            }
            let mut packed = scratch::<D::Scalar>(panel.width() * tile);
            // So many columns pass over all panels at a time that the row block of C stays in L2 however wide C is; a
            // block's values are read from afar once per pass, not once per tile.
            let mut sums = RowSums::<D>::new(self.arch(), row_block, pass.min(n), true);
            for column in (0..n).step_by(pass) {
                let columns = pass.min(n - column);
                // SAFETY: the rows of a row block are its own task's, and inside C.
                let begun = unsafe { sums.begin(beta, columns, c.wrapping_add(column), ldc) };
                for block in row_block.blocks() {
                    let task = SpmmPanel {
                        block: block.block,
                        weights: values[block.first..].as_ptr(),
                        b: b.data()[block.column * b.stride()..].as_ptr().wrapping_add(column),
                        ldb: b.stride(),
                        width: block.width,
                        n: columns,
                        alpha,
                        // SAFETY: as above.
                        c: unsafe { begun.begin_block(&block) },
                        vectors: plan.tile_vectors,
                        scratch: packed.as_mut_ptr(),
                    };
                    // SAFETY: a panel's blocks index its own rows and columns, which are those of C and B; the row block's
                    // rows and the scratch are this task's own, and the scratch has a panel's room.
                    unsafe {
                        spmm_panel(self.arch(), task);
                        begun.end_block(&block);
                    }
                }
            }
        });
    }
}

/// The sums A_v B of a task of the direct path into C, given with its row stride; without values yet.
pub(super) fn direct_sums<D: Stored>(
    pattern: PatternRef<'_>,
    task: &Task,
    direct: &Direct<'_>,
    b: MatRef<'_, D>,
    (c, ldc): (*mut D, usize),
) -> SpmmRows<D> {
    // Parts of narrow rows would be rounded each.
    let width = if D::NARROW { pattern.cols() } else { direct.width };
    SpmmRows {
        row_ptr: pattern.row_ptr().raw(),
        columns: pattern.col_idx().as_ptr(),
        values: std::ptr::null(),
        rows: task.rows,
        nonzeros: task.nonzeros,
        b: b.data().as_ptr(),
        ldb: b.stride(),
        n: b.cols(),
        alpha: D::Scalar::ONE,
        beta: D::Scalar::ZERO,
        c,
        ldc,
        carry_out: [std::ptr::null_mut(); 2],
        prefetch_distance: direct.prefetch_distance,
        panel: [width, pattern.cols()],
        stream: direct.stream,
    }
}

/// Checks B and C against op(A) of `rows` x `cols`.
pub(super) fn check_operands<T>(
    op: &'static str,
    rows: usize,
    cols: usize,
    b: MatRef<'_, T>,
    c: MatRef<'_, T>,
) -> Result<()> {
    check_columns(op, c.cols())?;
    check_shape(op, "B", b.shape(), (cols, c.cols()))?;
    check_shape(op, "C", c.shape(), (rows, c.cols()))
}
