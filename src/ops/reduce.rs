//! SpMM with other additions than the sum: mean, maximum, minimum, and any semiring.

use sparsimd_kernels::semiring::{MAX_TIMES, MIN_TIMES, Semiring};
use sparsimd_kernels::{
    Arch, NO_POSITION, Number, ReducePanel, ReduceRows, Scalar, positions_into, reduce_into, reduce_panel,
    reduce_positions, reduce_rows,
};

use super::operand::SparseOperand;
use super::prepare::Direct;
use super::run::{CarryOuts, Shared, scratch};
use super::spmm::check_operands;
use super::values::Values;
use crate::cpu::Cpu;
use crate::dense::{Aligned, MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::{Panel, PatternRef};
use crate::parallel;
use crate::plan::{Op, PanelPlan, Task, work};

/// What becomes of the terms a_ij B_j of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum: SpMM itself.
    Sum,
    /// Their sum by the number of the row's nonzeros.
    Mean,
    /// The largest, by column; NaN where one is.
    Max,
    /// The smallest, by column; NaN where one is.
    Min,
}

/// An operand in CSR order, and where its result goes.
struct Rows<'a, 'd, T> {
    pattern: PatternRef<'a>,
    values: Option<Values<'a, T>>,
    direct: &'d Direct<'d>,
    b: MatRef<'a, T>,
    /// What rows without nonzeros become.
    empty: T,
}

impl Cpu {
    /// C_ik = reduction over the nonzeros (i, j) of A of a_ij b_jk: A sparse M x K, B dense K x N, C dense M x N.
    ///
    /// Rows without nonzeros become 0, whatever the reduction: PyTorch's convention. In maxima and minima NaN wins, and
    /// infinities are numbers like others ([`semiring`](crate::semiring)). C is not read. A prepared operand is one of
    /// [`Op::Spmm`]. The same operand, plan and number of threads give the same bits.
    ///
    /// # Errors
    /// As [`Cpu::spmm`].
    ///
    /// ```
    /// use sparsimd::ops::Reduction;
    /// use sparsimd::{Cpu, Csr, Mat, Pattern};
    /// let cpu = Cpu::new()?;
    /// let a = Csr::new(Pattern::new(2, 3, vec![0, 2, 2], vec![0, 2])?, vec![1.0, -1.0])?;
    /// let b = Mat::from_fn(3, 2, |i, j| (10 * i + j) as f64)?;
    /// let mut c = Mat::zeros(2, 2)?;
    /// cpu.spmm_reduce(Reduction::Max, &a, b.as_ref(), c.as_mut())?;
    /// assert_eq!((c.row(0), c.row(1)), (&[0.0, 1.0][..], &[0.0, 0.0][..]));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn spmm_reduce<'a, T: Scalar>(
        &self,
        reduction: Reduction,
        a: impl Into<SparseOperand<'a, T>>,
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        self.reduce_operand(reduction, a.into(), b, c)
    }

    /// [`Cpu::spmm_reduce`] of an operand.
    #[inline(never)]
    pub(crate) fn reduce_operand<T: Scalar>(
        &self,
        reduction: Reduction,
        a: SparseOperand<'_, T>,
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        match reduction {
            Reduction::Sum => self.spmm_operand(T::ONE, a, b, T::ZERO, c),
            Reduction::Max => self.semiring_operand(MAX_TIMES, a, b, c, Some(T::ZERO)),
            Reduction::Min => self.semiring_operand(MIN_TIMES, a, b, c, Some(T::ZERO)),
            Reduction::Mean => self.mean_operand(a, b, c),
        }
    }

    /// The sum with the values of A divided before, which are fewer numbers than those of C (amazon_book, N = 128: 3.2 instead of
    /// 4.0 ms, the sum 2.5 to 2.7); a prepared operand keeps them.
    fn mean_operand<T: Scalar>(&self, a: SparseOperand<'_, T>, b: MatRef<'_, T>, c: MatMut<'_, T>) -> Result<()> {
        let (pattern, values) = (a.pattern(), a.need_values("spmm")?);
        check_operands("spmm", pattern.rows(), pattern.cols(), b, c.as_ref())?;
        let own;
        let (panels, short) = (a.panels_for(Op::Spmm, self)?, values.len() < parallel::GRAIN);
        let weights = match a {
            SparseOperand::Prepared(prepared) => {
                prepared.kept_means(|values| self.install_loops(short, || means(pattern, values)))
            }
            _ => {
                own = self.install_loops(short, || means(pattern, &values.widened(self.arch())));
                &own[..]
            }
        };
        if let Some(panels) = panels {
            self.spmm_by_panels(T::ONE, panels, weights, b, T::ZERO, c);
            return Ok(());
        }
        let direct = self.direct(Op::Spmm, a, pattern, c.cols())?;
        self.spmm_directly(T::ONE, pattern, Values::Same(weights), &direct, b, T::ZERO, c);
        Ok(())
    }

    /// C_ik = add over the nonzeros (i, j) of A of multiply(a_ij, b_jk), in a semiring: A sparse M x K, B dense K x N, C
    /// dense M x N; of f32, f64, i32 or i64.
    ///
    /// Ready-made semirings are in [`semiring`](crate::semiring), and any type with [`Semiring`] is compiled into the
    /// kernel. Rows without nonzeros become the neutral element of the addition. C is not read. Where a semiring does not
    /// use the values of A, a pattern will do. A prepared operand is one of [`Op::Spmm`]; integers are never prepared and run
    /// straight from CSR, as plans and panels are for f32 and f64 alone. Tasks that share a row join its parts by the semiring's
    /// addition, in their order, so that the same operand, plan and number of threads give the same bits.
    ///
    /// # Errors
    /// As [`Cpu::spmm`].
    ///
    /// ```
    /// use sparsimd::{Cpu, Csr, Mat, Pattern, semiring};
    /// // Lengths of edges 0 -> 1, 0 -> 2 and 1 -> 2; the shortest ways of at most one edge to node 2.
    /// let cpu = Cpu::new()?;
    /// let a = Csr::new(Pattern::new(3, 3, vec![0, 2, 3, 3], vec![1, 2, 2])?, vec![1, 5, 2])?;
    /// let far = i64::MAX / 2;
    /// let from = Mat::from_fn(3, 1, |i, _| [5, 2, 0][i])?;
    /// let mut to = Mat::from_fn(3, 1, |_, _| far)?;
    /// cpu.spmm_semiring(semiring::MIN_PLUS, &a, from.as_ref(), to.as_mut())?;
    /// assert_eq!((to[(0, 0)], to[(1, 0)], to[(2, 0)]), (3, 2, i64::MAX));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn spmm_semiring<'a, T: Number, R: Semiring<T>>(
        &self,
        semiring: R,
        a: impl Into<SparseOperand<'a, T>>,
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        self.semiring_operand(semiring, a.into(), b, c, None)
    }

    /// [`Cpu::spmm_semiring`] of an operand; rows without nonzeros become `empty`, if it is given.
    #[inline(never)]
    pub(crate) fn semiring_operand<T: Number, R: Semiring<T>>(
        &self,
        semiring: R,
        a: SparseOperand<'_, T>,
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
        empty: Option<T>,
    ) -> Result<()> {
        let values = if semiring.uses_values() { Some(a.need_values("spmm")?) } else { None };
        check_operands("spmm", a.pattern().rows(), a.pattern().cols(), b, c.as_ref())?;
        let empty = empty.unwrap_or(semiring.zero());
        if let Some(panels) = a.panels_for(Op::Spmm, self)? {
            let values = values.and_then(Values::same);
            self.reduce_by_panels(semiring, panels, (a.pattern(), values), b, c, empty);
            return Ok(());
        }
        let direct = &self.direct(Op::Spmm, a, a.pattern(), c.cols())?;
        self.reduce_directly(semiring, &Rows { pattern: a.pattern(), values, direct, b, empty }, c);
        Ok(())
    }

    /// The direct path; shapes have been checked.
    fn reduce_directly<T: Number, R: Semiring<T>>(&self, semiring: R, rows: &Rows<'_, '_, T>, mut c: MatMut<'_, T>) {
        let (n, ldc, tasks) = (c.cols(), c.stride(), &rows.direct.tasks);
        let mut carry_outs = CarryOuts::new(tasks, n, false);
        let carry_out = carry_outs.shared(tasks);
        let out = Shared(c.reborrow().into_data().as_mut_ptr());
        self.for_each(tasks.len(), work(rows.pattern.nnz(), n), |k| {
            let mut room = scratch(0);
            let values = rows.values_of(self.arch(), &tasks[k], &mut room);
            let task = rows.task(&tasks[k], values, (out.get(), ldc), n, carry_out(k)[0]);
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; the rows that begin in this
            // task, and its carry-out, are its own.
            unsafe { reduce_rows(self.arch(), semiring, task) };
        });
        for (k, task) in tasks.iter().enumerate().filter(|(_, task)| task.continues) {
            reduce_into(semiring, carry_outs.row(k), c.reborrow().into_row(task.rows[0]));
        }
    }

    /// The panel path; shapes have been checked, values are in panel order.
    fn reduce_by_panels<T: Number, R: Semiring<T>>(
        &self,
        semiring: R,
        (plan, panel): (&PanelPlan, &Panel),
        (pattern, values): (PatternRef<'_>, Option<&[T]>),
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
        empty: T,
    ) {
        let n = c.cols();
        let (ldc, out) = (c.stride(), Shared(c.into_data().as_mut_ptr()));
        let columns_of = |vectors: usize| vectors * self.arch().vector_bytes() / size_of::<T>();
        let (tile, pass) = (columns_of(plan.tile_vectors), columns_of(plan.pass_vectors));
        self.for_each(panel.row_blocks().len(), work(pattern.nnz(), n), |k| {
            let row_block = &panel.row_blocks()[k];
            for i in row_block.rows.clone() {
                let none = pattern.row_ptr().at(i) == pattern.row_ptr().at(i + 1);
                // SAFETY: the rows of a row block are its own task's, and inside C.
                let row = unsafe { std::slice::from_raw_parts_mut(out.get().wrapping_add(i * ldc), n) };
                row.fill(if none { empty } else { semiring.zero() });
            }
            let c = out.get().wrapping_add(row_block.rows.start * ldc);
            let mut packed = scratch::<T>(panel.width() * tile);
            let largest =
                if values.is_none() { row_block.blocks().map(|block| block.nnz).max().unwrap_or(0) } else { 0 };
            let ones = vec![T::ONE; largest];
            // In passes as SpMM's, so that the row block of C stays in L2.
            for column in (0..n).step_by(pass) {
                for block in row_block.blocks() {
                    let task = ReducePanel {
                        block: block.block,
                        weights: values.map_or(&ones[..], |values| &values[block.first..]).as_ptr(),
                        b: b.data()[block.column * b.stride()..].as_ptr().wrapping_add(column),
                        ldb: b.stride(),
                        width: block.width,
                        n: pass.min(n - column),
                        c: c.wrapping_add(column),
                        ldc,
                        vectors: plan.tile_vectors,
                        scratch: packed.as_mut_ptr(),
                    };
                    // SAFETY: a panel's blocks index its own rows and columns, which are those of C and B; the row block's
                    // rows and the scratch are this task's own, and the scratch has a panel's room.
                    unsafe { reduce_panel(self.arch(), semiring, task) };
                }
            }
        });
    }

    /// As [`Cpu::spmm_reduce`] by `Max` or `Min`, and for each element of C the nonzero that it comes from:
    /// `positions[i * N + k]` is that one's position among A's nonzeros in CSR order, of equal terms the first one's, of NaN
    /// the first NaN's; `u32::MAX` in rows without nonzeros. `positions` has M x N elements.
    ///
    /// The gradient of C_ik goes to that nonzero alone: b_jk times it to a_ij, a_ij times it to b_jk. Runs straight from CSR;
    /// values of an operand in panels are put in that order first, on every call.
    ///
    /// # Errors
    /// As [`Cpu::spmm`]; [`Error::Shape`] when `positions` has another length; [`Error::Argument`] for another reduction, or
    /// when A has 2^32 - 1 nonzeros or more.
    pub fn spmm_reduce_positions<'a, T: Scalar>(
        &self,
        reduction: Reduction,
        a: impl Into<SparseOperand<'a, T>>,
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
        positions: &mut [u32],
    ) -> Result<()> {
        self.positions_operand(reduction, a.into(), b, c, positions)
    }

    /// [`Cpu::spmm_reduce_positions`] of an operand.
    #[inline(never)]
    pub(crate) fn positions_operand<T: Scalar>(
        &self,
        reduction: Reduction,
        a: SparseOperand<'_, T>,
        b: MatRef<'_, T>,
        mut c: MatMut<'_, T>,
        positions: &mut [u32],
    ) -> Result<()> {
        let semiring = match reduction {
            Reduction::Max => MAX_TIMES,
            Reduction::Min => MIN_TIMES,
            other => return Err(Error::argument("reduction", format!("{other:?} has no positions; Max and Min have"))),
        };
        let (pattern, n) = (a.pattern(), c.cols());
        let values = a.need_values("spmm")?;
        check_operands("spmm", pattern.rows(), pattern.cols(), b, c.as_ref())?;
        if positions.len() != pattern.rows() * n {
            let detail = format!("{} positions for a result of {} x {n}", positions.len(), pattern.rows());
            return Err(Error::shape("spmm", detail));
        }
        if pattern.nnz() >= NO_POSITION as usize {
            return Err(Error::argument("a", format!("{} nonzeros; positions have 32 bits", pattern.nnz())));
        }
        let in_order;
        let values = match a {
            SparseOperand::Prepared(prepared) if prepared.panels_for(Op::Spmm, self)?.is_some() => {
                in_order = self.install(|| prepared.values_in_order());
                in_order.as_deref().map_or(values, Values::Same)
            }
            _ => values,
        };
        let direct = &self.direct(Op::Spmm, a, pattern, n)?;
        let rows = Rows { pattern, values: Some(values), direct, b, empty: T::ZERO };
        let tasks = &direct.tasks;
        let (mut carry_outs, mut carry_positions) = (CarryOuts::new(tasks, n, false), CarryOuts::new(tasks, n, false));
        let (carry_out, carry_position) = (carry_outs.shared(tasks), carry_positions.shared(tasks));
        let (ldc, out) = (c.stride(), Shared(c.reborrow().into_data().as_mut_ptr()));
        let places = Shared(positions.as_mut_ptr());
        self.for_each(tasks.len(), work(pattern.nnz(), n), |k| {
            let mut room = scratch(0);
            let values = rows.values_of(self.arch(), &tasks[k], &mut room);
            let task = rows.task(&tasks[k], values, (out.get(), ldc), n, carry_out(k)[0]);
            // SAFETY: as in `reduce_directly`; of positions there are as many as elements of C.
            unsafe { reduce_positions(self.arch(), semiring, task, places.get(), carry_position(k)[0]) };
        });
        for (k, task) in tasks.iter().enumerate().filter(|(_, task)| task.continues) {
            let (row, places) = (c.reborrow().into_row(task.rows[0]), &mut positions[task.rows[0] * n..][..n]);
            positions_into(semiring, carry_outs.row(k), carry_positions.row(k), row, places);
        }
        Ok(())
    }
}

/// `values`, one for each nonzero in CSR order, each divided by the number of nonzeros of its row. In the current rayon pool.
fn means<T: Scalar>(pattern: PatternRef<'_>, values: &[T]) -> Vec<T> {
    let mut weights = vec![T::ZERO; values.len()];
    let out = Shared(weights.as_mut_ptr());
    parallel::ranges(pattern.rows(), parallel::GRAIN / 64, |rows| {
        for i in rows {
            let nonzeros = pattern.row_ptr().at(i)..pattern.row_ptr().at(i + 1);
            let factor = T::from_f64(1.0 / nonzeros.len() as f64);
            for p in nonzeros {
                // SAFETY: there is a weight for each nonzero, and those of the row are its range's own.
                unsafe { *out.get().wrapping_add(p) = factor * values[p] };
            }
        }
    });
    weights
}

impl<T: Number> Rows<'_, '_, T> {
    /// Where the values of `task` are as they are computed with, in `room` where they are stored otherwise; null for none.
    fn values_of(&self, arch: Arch, task: &Task, room: &mut Aligned<T>) -> *const T {
        self.values.map_or(std::ptr::null(), |values| values.of_task(arch, task.nonzeros, room))
    }

    /// The kernel's task for `task` with `values`, whose rows of `n` columns go to `c` or, a row that it continues, to `carry_out`.
    fn task(
        &self,
        task: &Task,
        values: *const T,
        (c, ldc): (*mut T, usize),
        n: usize,
        carry_out: *mut T,
    ) -> ReduceRows<T> {
        ReduceRows {
            empty: self.empty,
            row_ptr: self.pattern.row_ptr().raw(),
            columns: self.pattern.col_idx().as_ptr(),
            values,
            rows: task.rows,
            nonzeros: task.nonzeros,
            b: self.b.data().as_ptr(),
            ldb: self.b.stride(),
            n,
            c,
            ldc,
            carry_out,
            prefetch_distance: self.direct.prefetch_distance,
            panel: [self.direct.width, self.pattern.cols()],
            stream: self.direct.stream,
        }
    }
}
