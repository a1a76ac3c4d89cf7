//! FusedMM: E = f(C B^T on a pattern) D, few edge values stored at a time: at most 32 MiB, or 8 MiB for each thread where that is more.
//!
//! ```text
//! direct, D is B: for each nonzero's row of B, its dot and its part of the sum (`fused_rows`)
//! direct, D is not B: for rows whose edge values fit a buffer: all dots, all weights, all sums
//! panel: for each block of the row block: dots, weights, sums
//! ```

use sparsimd_kernels::edge::Edge;
use sparsimd_kernels::{
    EdgeBlock, EdgeFunction, EdgeRows, FusedRows, Number, RowBlockSums, Scalar, SddmmPanel, SddmmRows, SoftmaxRow,
    SoftmaxScale, SpmmPanel, SpmmRows, Stored, edge_block, edge_rows, fused_rows, sddmm_panel, sddmm_rows,
    softmax_scale, spmm_panel, spmm_rows,
};

use super::operand::{SparseOperand, check_columns};
use super::prepare::Direct;
use super::row_sums::RowSums;
use super::run::{CarryOuts, Shared, scratch, shared_rows};
use super::values::Values;
use crate::cpu::Cpu;
use crate::cut;
use crate::dense::{Aligned, MatMut, MatRef, check_shape};
use crate::error::Result;
use crate::formats::{BlockView, Panel, PatternRef};
use crate::plan::{Op, PanelPlan, Task, work};

/// Most vectors of a tile, of dots and of sums.
const TILE_VECTORS: usize = 8;

/// The dense operands of one call.
#[derive(Clone, Copy)]
struct Dense<'a, T> {
    c: MatRef<'a, T>,
    b: MatRef<'a, T>,
    d: MatRef<'a, T>,
}

impl Cpu {
    /// E_i = sum over the nonzeros (i, j) of A of f((C B^T)_ij, a_ij) D_j; C dense M x N, B dense K x N, D dense K x P,
    /// E dense M x P.
    ///
    /// f is one of [`edge`](crate::edge): the identity, a scaling by a_ij, a sigmoid, a softmax over the row (sparse
    /// attention), or a function of the caller's own, which is called for runs of nonzeros. Rows without nonzeros become
    /// zeros. Edge values take at most 32 MiB at a time, or 8 MiB for each thread where that is more; the executor keeps the room for its
    /// next call.
    ///
    /// The dense operands may store bf16 or f16 ([`Stored`]), and so may A: edge values and sums are f32 then, and each element of E is
    /// rounded once.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) when the shapes do not fit, N or P is 0, `a` was prepared for another
    /// operation, or it has no values where f needs them; [`Error::Argument`](crate::Error::Argument) when `a` was prepared
    /// for another instruction set.
    ///
    /// ```
    /// use sparsimd::{Cpu, Mat, Pattern, edge};
    /// let cpu = Cpu::new()?;
    /// let pattern = Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
    /// let x = |rows| Mat::from_fn(rows, 4, |i, j| (i + j) as f32);
    /// let (q, k, v) = (x(2)?, x(3)?, x(3)?);
    /// let mut e = Mat::zeros(2, 4)?;
    /// cpu.fusedmm(&pattern, edge::Softmax { scale: 0.5 }, q.as_ref(), k.as_ref(), v.as_ref(), e.as_mut())?;
    /// assert_eq!(e.row(1), v.row(1)); // one neighbour has all the weight
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn fusedmm<'a, D: Stored, F: Edge<D::Scalar>>(
        &self,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        edge: F,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        self.fusedmm_operand(a.into(), EdgeFunction::of(&edge), c, b, d, e)
    }

    /// [`Cpu::fusedmm`] of an operand.
    #[inline(never)]
    pub(crate) fn fusedmm_operand<D: Stored>(
        &self,
        a: SparseOperand<'_, D::Scalar>,
        edge: EdgeFunction<'_, D::Scalar>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        const OP: &str = "fusedmm";
        let pattern = a.pattern();
        check_columns(OP, c.cols())?;
        check_columns(OP, e.cols())?;
        check_shape(OP, "C", c.shape(), (pattern.rows(), c.cols()))?;
        check_shape(OP, "B", b.shape(), (pattern.cols(), c.cols()))?;
        check_shape(OP, "D", d.shape(), (pattern.cols(), e.cols()))?;
        check_shape(OP, "E", e.as_ref().shape(), (pattern.rows(), e.cols()))?;
        let values = if edge.uses_values() { Some(a.need_values(OP)?) } else { None };
        let dense = Dense { c, b, d };
        if let Some(panels) = a.panels_for(Op::FusedMm, self)? {
            self.fused_by_panels(panels, values.and_then(Values::same), edge, dense, e);
            return Ok(());
        }
        let direct = self.direct(Op::FusedMm, a, pattern, c.cols())?;
        self.fused_directly(pattern, values, &direct, edge, dense, e);
        Ok(())
    }

    /// The direct path; shapes have been checked.
    fn fused_directly<D: Stored>(
        &self,
        pattern: PatternRef<'_>,
        values: Option<Values<'_, D::Scalar>>,
        direct: &Direct<'_>,
        edge: EdgeFunction<'_, D::Scalar>,
        Dense { c, b, d }: Dense<'_, D>,
        mut e: MatMut<'_, D>,
    ) {
        let (n, width) = (c.cols(), e.cols());
        let tasks = &direct.tasks;
        let mut carry_outs = CarryOuts::new(tasks, width, D::NARROW);
        let carry_out = carry_outs.shared(tasks);
        let mut partial = vec![[[D::Scalar::ZERO; 2]; 2]; tasks.len()];
        let states = Shared(partial.as_mut_ptr());
        let (lde, out) = (e.stride(), Shared(e.reborrow().into_data().as_mut_ptr()));
        let rows = |k: usize| FusedRows {
            row_ptr: pattern.row_ptr().raw(),
            columns: pattern.col_idx().as_ptr(),
            values: std::ptr::null(),
            rows: tasks[k].rows,
            nonzeros: tasks[k].nonzeros,
            c: (c.data().as_ptr(), c.stride()),
            b: (b.data().as_ptr(), b.stride()),
            n,
            d: (d.data().as_ptr(), d.stride()),
            e: (out.get(), lde),
            width,
            carry_out: carry_out(k),
            row: std::ptr::null_mut(),
            partial: states.get().wrapping_add(k),
            prefetch_distance: direct.prefetch_distance,
            panel: [if D::NARROW { pattern.cols() } else { direct.width }, pattern.cols()],
            stream: direct.stream,
        };
        let values = |k: usize, room: &mut Aligned<D::Scalar>| {
            values.map_or(std::ptr::null(), |values| values.of_task(self.arch(), tasks[k].nonzeros, room))
        };
        let work = work(pattern.nnz(), n + width);
        if (b.data().as_ptr(), b.stride()) == (d.data().as_ptr(), d.stride()) {
            self.for_each(tasks.len(), work, |k| {
                let (mut row, mut room) = (scratch::<D::Scalar>(if D::NARROW { width } else { 0 }), scratch(0));
                let task = FusedRows { row: row.as_mut_ptr(), values: values(k, &mut room), ..rows(k) };
                // SAFETY: the pattern's invariants and the checked shapes make every index valid; the rows that begin in a
                // task, its carry-outs, its states and its room for a row are its own.
                unsafe { fused_rows(self.arch(), edge, task) }
            });
        } else {
            self.fused_in_stages(direct, edge, work, rows, values);
        }
        if edge.is_softmax() {
            merge_softmax(tasks, &carry_outs, &partial, e);
        } else {
            carry_outs.add_to(tasks, D::Scalar::ZERO, e);
        }
    }

    /// The direct path where D is not B: dots and weights of many tasks, then their sums. `rows` are those of a task, as
    /// [`fused_rows`] takes them, and `values` finds their values, in room that they may need.
    fn fused_in_stages<D: Stored>(
        &self,
        &Direct { ref tasks, ref stages, width, prefetch_distance, .. }: &Direct<'_>,
        edge: EdgeFunction<'_, D::Scalar>,
        work: usize,
        rows: impl Fn(usize) -> FusedRows<D> + Send + Sync,
        values: impl Fn(usize, &mut Aligned<D::Scalar>) -> *const D::Scalar + Send + Sync,
    ) {
        let mut begin = 0;
        while begin < tasks.len() {
            let base = tasks[begin].nonzeros[0];
            let fit = cut::first(begin..tasks.len(), |k| tasks[k].nonzeros[1] - base > stages.nonzeros);
            let count = (fit - begin).max(1);
            self.with_room(tasks[begin + count - 1].nonzeros[1] - base, |weights: *mut D::Scalar| {
                let weights = Shared(weights);
                // Of the nonzero 0 of the matrix: only those of the tasks are there.
                let first = Shared(weights.get().wrapping_sub(base));
                self.for_each(count, work, |k| {
                    let task = rows(begin + k);
                    let FusedRows { row_ptr, columns, rows, nonzeros, n, partial, .. } = task;
                    let mut room = scratch(0);
                    let values = values(begin + k, &mut room);
                    let dots = SddmmRows {
                        row_ptr,
                        columns,
                        values: std::ptr::null(),
                        rows,
                        nonzeros,
                        c: task.c.0,
                        ldc: task.c.1,
                        b: task.b.0,
                        ldb: task.b.1,
                        n,
                        out: first.get(),
                        prefetch_distance,
                        panel: [width, task.panel[1]],
                    };
                    let weights = weights.get().wrapping_add(nonzeros[0] - base);
                    // SAFETY: the pattern's invariants and the checked shapes make every index valid; there is a weight for each
                    // nonzero of the tasks, and a task's are its own, as are its states.
                    unsafe {
                        sddmm_rows(self.arch(), dots);
                        edge_rows(self.arch(), edge, EdgeRows { row_ptr, values, rows, nonzeros, weights, partial });
                    }
                });
                self.for_each(count, work, |k| {
                    let task = rows(begin + k);
                    let sums = SpmmRows {
                        row_ptr: task.row_ptr,
                        columns: task.columns,
                        values: first.get(),
                        rows: task.rows,
                        nonzeros: task.nonzeros,
                        b: task.d.0,
                        ldb: task.d.1,
                        n: task.width,
                        alpha: D::Scalar::ONE,
                        beta: D::Scalar::ZERO,
                        c: task.e.0,
                        ldc: task.e.1,
                        carry_out: task.carry_out,
                        prefetch_distance,
                        panel: task.panel,
                        stream: stages.stream,
                    };
                    // SAFETY: as above, and the stage before has written the weights; the rows that begin in a task and its
                    // carry-out are its own.
                    unsafe { spmm_rows(self.arch(), sums) };
                });
            });
            begin += count;
        }
    }

    /// The panel path; shapes have been checked, `values` are in panel order.
    fn fused_by_panels<D: Stored>(
        &self,
        (plan, panel): (&PanelPlan, &Panel),
        values: Option<&[D::Scalar]>,
        edge: EdgeFunction<'_, D::Scalar>,
        dense: Dense<'_, D>,
        e: MatMut<'_, D>,
    ) {
        let (width, vectors) = (e.cols(), plan.tile_vectors);
        let work = work(panel.nnz(), dense.c.cols() + width);
        let (lde, out) = (e.stride(), Shared(e.into_data().as_mut_ptr()));
        self.for_each(panel.row_blocks().len(), work, |k| {
            let row_block = &panel.row_blocks()[k];
            let e = out.get().wrapping_add(row_block.rows.start * lde);
            let c = &dense.c.data()[row_block.rows.start * dense.c.stride()..];
            let mut sums = RowSums::<D>::new(self.arch(), row_block, width, !edge.is_softmax());
            let largest = row_block.blocks().map(|block| block.nnz).max().unwrap_or(0);
            let mut room = Room {
                packed: self.packed_panel(panel, TILE_VECTORS),
                weights: vec![D::Scalar::ZERO; largest],
                softmax: Vec::new(),
                maximum: false,
                rescaled: Vec::new(),
            };
            if edge.is_softmax() {
                let row = SoftmaxRow { m: D::Scalar::ZERO, l: D::Scalar::ZERO, rescale: D::Scalar::ONE };
                room.softmax = vec![row; row_block.rows.len()];
                room.rescaled = vec![0; row_block.rows.len()];
            }
            // SAFETY: the rows of a row block are its own task's, and inside E.
            let begun = unsafe { sums.begin(D::Scalar::ZERO, width, e, lde) };
            for block in row_block.blocks() {
                let values = values.map(|values| &values[block.first..]);
                // SAFETY: as above.
                let output = Output { e: unsafe { begun.begin_block(&block) }, width, vectors };
                self.fused_block(c, &block, values, edge, dense, output, &mut room);
                // SAFETY: as above, and the block's sums have been added.
                unsafe { begun.end_block(&block) };
            }
        });
    }

    /// One block: its dots, their weights, and the sum weighted by them; `c` from the first row of its row block on.
    #[expect(clippy::too_many_arguments, reason = "one block of the caller's loop, with all that the loop holds")]
    fn fused_block<D: Stored>(
        &self,
        c: &[D],
        block: &BlockView<'_>,
        values: Option<&[D::Scalar]>,
        edge: EdgeFunction<'_, D::Scalar>,
        dense: Dense<'_, D>,
        out: Output<D>,
        room: &mut Room<D::Scalar>,
    ) {
        let (Dense { b, d, .. }, weights) = (dense, room.weights.as_mut_ptr());
        let dots = SddmmPanel {
            block: block.block,
            starts: std::ptr::null(),
            order: std::ptr::null(),
            values: std::ptr::null(),
            c: c.as_ptr(),
            ldc: dense.c.stride(),
            b: b.data()[block.column * b.stride()..].as_ptr(),
            ldb: b.stride(),
            width: block.width,
            n: b.cols(),
            out: weights,
            tile_vectors: TILE_VECTORS,
            scratch: room.packed.as_mut_ptr(),
            sums: std::ptr::null_mut(),
        };
        let mut rescaled_count = 0;
        let edges = EdgeBlock {
            block: block.block,
            weights,
            values: values.map_or(std::ptr::null(), <[D::Scalar]>::as_ptr),
            nnz: block.nnz,
            rows: room.softmax.as_mut_ptr(),
            rescaled: room.rescaled.as_mut_ptr(),
            rescaled_count: &raw mut rescaled_count,
            maximum: &raw mut room.maximum,
        };
        let sums = SpmmPanel {
            block: block.block,
            weights,
            b: d.data()[block.column * d.stride()..].as_ptr(),
            ldb: d.stride(),
            width: block.width,
            n: out.width,
            alpha: D::Scalar::ONE,
            c: out.e,
            vectors: out.vectors,
            scratch: room.packed.as_mut_ptr(),
        };
        // SAFETY: a panel's blocks index its own rows and columns, which are those of the operands; the weights hold the
        // largest block, what a softmax knows of rows and those to be rescaled a row block's rows, the scratch the widest tile, and all
        // are this task's own.
        unsafe {
            sddmm_panel(self.arch(), dots);
            edge_block(self.arch(), edge, edges);
            let known = room.softmax.as_ptr();
            let scale = |rows, divide| {
                let RowBlockSums { sums: e, stride: lde, .. } = out.e;
                softmax_scale(self.arch(), SoftmaxScale { rows, known, divide, e, lde, n: out.width });
            };
            if rescaled_count > 0 {
                scale(&room.rescaled[..rescaled_count], false);
            }
            spmm_panel(self.arch(), sums);
            if edge.is_softmax() {
                scale(block.ends, true);
            }
        }
    }
}

/// The row block of E.
#[derive(Clone, Copy)]
struct Output<D: Stored> {
    e: RowBlockSums<D>,
    width: usize,
    /// Vectors of a tile.
    vectors: usize,
}

/// What a task of the panel path works in.
struct Room<T> {
    packed: crate::dense::Aligned<T>,
    weights: Vec<T>,
    /// For a softmax, what is known of each row, whether one has an m, and those to rescale before a block's sums.
    softmax: Vec<SoftmaxRow<T>>,
    maximum: bool,
    rescaled: Vec<u32>,
}

/// Rows in several parts, each with its own (m, l): E_i = sum_k e^(m_k - m) E_k / sum_k e^(m_k - m) l_k, m the largest.
fn merge_softmax<D: Stored>(
    tasks: &[Task],
    carry_outs: &CarryOuts<D::Scalar>,
    partial: &[[[D::Scalar; 2]; 2]],
    mut e: MatMut<'_, D>,
) {
    for (k, row, end) in shared_rows(tasks) {
        let states: Vec<_> = (k..end).map(|part| partial[part][usize::from(part == k)]).collect();
        let largest = states.iter().fold(D::Scalar::NEG_INFINITY, |m, s| if s[0] > m { s[0] } else { m });
        let factor = |m: D::Scalar| if m == D::Scalar::NEG_INFINITY { D::Scalar::ZERO } else { (m - largest).exp() };
        let mut sum = D::Scalar::ZERO;
        for &[m, l] in &states {
            sum += factor(m) * l;
        }
        let out = e.reborrow().into_row(row);
        let mut total = carry_outs.first_part(k, out);
        total.iter_mut().for_each(|x| *x = factor(states[0][0]) / sum * *x);
        for (part, &[m, _]) in (k..end).zip(&states).skip(1) {
            let weight = factor(m) / sum;
            total.iter_mut().zip(carry_outs.row(part)).for_each(|(x, &carry_out)| *x += weight * carry_out);
        }
        out.iter_mut().zip(total).for_each(|(x, total)| *x = D::narrow(total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Stages, by_nonzeros};
    use crate::{Csr, Mat, Pattern, edge, generate, reference};

    /// More edge values than there is room for between the stages, of rows that are shorter and longer than it.
    #[test]
    fn edge_values_that_pass_the_room() {
        let cols = 9000;
        let mut row_ptr = vec![0];
        let mut col_idx: Vec<u32> = Vec::new();
        for i in 0..40 {
            // One row in full, one without nonzeros, and the rest of 300 nonzeros each.
            match i {
                1 => col_idx.extend(0..cols as u32),
                2 => {}
                _ => col_idx.extend((0..300).map(|k| k * 29 + i)),
            }
            row_ptr.push(col_idx.len());
        }
        let values = generate::uniform_values::<f32>(col_idx.len(), 7);
        let a = Csr::new(Pattern::new(40, cols, row_ptr, col_idx).unwrap(), values).unwrap();
        let dense = |rows, n, seed| generate::uniform_dense::<f32>(rows, n, seed).unwrap();
        let (c, b, d) = (dense(40, 3, 1), dense(cols, 3, 2), dense(cols, 2, 3));
        let (c, b, d) = (c.as_ref(), b.as_ref(), d.as_ref());
        let scale = 0.5;
        let weighted = reference::fusedmm(&a, reference::Edge::Scale, c, b, d).unwrap();
        let softmax = reference::fusedmm(&a, reference::Edge::Softmax { scale }, c, b, d).unwrap();
        let pattern = crate::CsrRef::from(&a).pattern();
        for (threads, parts, nonzeros) in [(1, 1, 1000), (1, 7, 1000), (2, 30, 1000), (2, 30, 5000), (2, 30, 1 << 20)] {
            let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
            let stages = Stages { nonzeros, stream: false };
            let tasks = by_nonzeros(pattern.row_ptr(), parts, parts);
            let direct = Direct { prefetch_distance: 0, width: cols, stream: false, stages, tasks: tasks.into() };
            let mut e = Mat::from_fn(40, 2, |_, _| f32::NAN).unwrap();
            let values = Some(Values::Same(a.values()));
            cpu.fused_directly(pattern, values, &direct, EdgeFunction::of(&edge::Scale), Dense { c, b, d }, e.as_mut());
            assert!(weighted.deviation(e.as_ref()).unwrap().error <= 1.0, "{threads} threads, {parts}, {nonzeros}");
            let edge = edge::Softmax { scale: scale as f32 };
            cpu.fused_directly(pattern, None, &direct, EdgeFunction::of(&edge), Dense { c, b, d }, e.as_mut());
            assert!(softmax.deviation(e.as_ref()).unwrap().error <= 1.0, "{threads} threads, {parts}, {nonzeros}");
        }
    }
}
