//! SDDMM: out_p = (C B^T)_ij for each nonzero p = (i, j) of a pattern.

use sparsimd_kernels::{Number, Scalar, SddmmPanel, SddmmRows, Stored, sddmm_panel, sddmm_rows};

use super::operand::{SparseOperand, check_columns};
use super::prepare::Direct;
use super::run::scratch;
use super::values::{Values, ValuesMut};
use crate::cpu::Cpu;
use crate::dense::{MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::{Panel, PatternRef};
use crate::plan::{Op, Task, work};

impl Cpu {
    /// out_p = (C B^T)_ij for each nonzero p = (i, j) of the pattern, in CSR order; C dense M x N, B dense K x N.
    ///
    /// C and B may store bf16 or f16 ([`Stored`]), and so may `out`: what is computed is f32 then, and rounded once where it is stored.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes do not fit, N is 0, or `a` was prepared for another operation;
    /// [`Error::Argument`] when it was prepared for another instruction set.
    ///
    /// ```
    /// use sparsimd::{Cpu, Mat, Pattern};
    /// let cpu = Cpu::new()?;
    /// let pattern = Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
    /// let c = Mat::from_fn(2, 4, |i, _| (i + 1) as f32)?;
    /// let b = Mat::from_fn(3, 4, |j, _| (j + 1) as f32)?;
    /// let mut out = [0f32; 3];
    /// cpu.sddmm(&pattern, c.as_ref(), b.as_ref(), &mut out)?;
    /// assert_eq!(out, [4.0, 12.0, 16.0]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn sddmm<'a, D: Stored, V: Stored<Scalar = D::Scalar>>(
        &self,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [V],
    ) -> Result<()> {
        self.sampled("sddmm", a.into(), None, c, b, ValuesMut::of(out))
    }

    /// out_p = a_ij (C B^T)_ij for each nonzero p = (i, j) of A, in CSR order; C dense M x N, B dense K x N.
    ///
    /// Each may store bf16 or f16, as in [`Cpu::sddmm`].
    ///
    /// # Errors
    /// As [`Cpu::sddmm`], and when `a` has no values.
    pub fn sddmm_scaled<'a, D: Stored, V: Stored<Scalar = D::Scalar>>(
        &self,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [V],
    ) -> Result<()> {
        let a = a.into();
        self.sampled("sddmm_scaled", a, Some(a.need_values("sddmm_scaled")?), c, b, ValuesMut::of(out))
    }

    /// Both, by path.
    #[inline(never)]
    pub(crate) fn sampled<D: Stored>(
        &self,
        op: &'static str,
        a: SparseOperand<'_, D::Scalar>,
        values: Option<Values<'_, D::Scalar>>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        mut out: ValuesMut<'_, D::Scalar>,
    ) -> Result<()> {
        let pattern = a.pattern();
        check_columns(op, c.cols())?;
        check_shape(op, "C", c.shape(), (pattern.rows(), c.cols()))?;
        check_shape(op, "B", b.shape(), (pattern.cols(), c.cols()))?;
        if out.len() != pattern.nnz() {
            let detail = format!("out has {} elements for a pattern of {} nonzeros", out.len(), pattern.nnz());
            return Err(Error::shape(op, detail));
        }
        let Some((plan, panel)) = a.panels_for(Op::Sddmm, self)? else {
            let direct = self.direct(Op::Sddmm, a, pattern, c.cols())?;
            let direct = if let ValuesMut::Narrow(..) = out { direct.in_pieces(pattern) } else { direct };
            self.sampled_directly(pattern, values, &direct, c, b, out);
            return Ok(());
        };
        let (panel, values) = ((panel, plan.tile_vectors), values.and_then(Values::same));
        let Some(order) = panel.0.unsorted() else {
            self.sampled_by_panels(panel, pattern, values, c, b, out);
            return Ok(());
        };
        // Dots come out by ascending column; then each goes to its place, and meets its value there.
        let mut sorted = vec![D::Scalar::ZERO; out.len()];
        self.sampled_by_panels(panel, pattern, None, c, b, ValuesMut::Same(&mut sorted));
        // SAFETY: all of `out` is this call's, and the order has each position once.
        unsafe {
            out.shared().of_task(self.arch(), [0, sorted.len()], |out| match values {
                None => order.iter().zip(&sorted).for_each(|(&p, &dot)| *out.add(p) = dot),
                Some(values) => order.iter().zip(&sorted).for_each(|(&p, &dot)| *out.add(p) = values[p] * dot),
            });
        }
        Ok(())
    }

    /// The direct path; shapes have been checked.
    fn sampled_directly<D: Stored>(
        &self,
        pattern: PatternRef<'_>,
        values: Option<Values<'_, D::Scalar>>,
        direct: &Direct<'_>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        mut out: ValuesMut<'_, D::Scalar>,
    ) {
        let tasks = &direct.tasks;
        let (arch, out) = (self.arch(), out.shared());
        self.for_each(tasks.len(), work(pattern.nnz(), c.cols()), |k| {
            let nonzeros = tasks[k].nonzeros;
            let mut room = scratch(0);
            let values = values.map_or(std::ptr::null(), |values| values.of_task(arch, nonzeros, &mut room));
            let task = |out| SddmmRows { values, out, ..direct_dots(pattern, &tasks[k], direct, c, b) };
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; a nonzero is one task's.
            unsafe { out.of_task(arch, nonzeros, |out| sddmm_rows(arch, task(out))) };
        });
    }

    /// The panel path, by panels and vectors of a tile; shapes have been checked, `values` and `out` are in row-sorted
    /// order.
    fn sampled_by_panels<D: Stored>(
        &self,
        (panel, tile_vectors): (&Panel, usize),
        pattern: PatternRef<'_>,
        values: Option<&[D::Scalar]>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        mut out: ValuesMut<'_, D::Scalar>,
    ) {
        let n = c.cols();
        let work = work(out.len(), n);
        let out = out.shared();
        self.for_each(panel.row_blocks().len(), work, |k| {
            let row_block = &panel.row_blocks()[k];
            let nonzeros = [row_block.rows.start, row_block.rows.end].map(|row| pattern.row_ptr().at(row));
            let rows = &c.data()[row_block.rows.start * c.stride()..];
            let mut packed = self.packed_panel::<D::Scalar>(panel, tile_vectors);
            let mut sums = scratch::<D::Scalar>(row_block.blocks().map(|block| block.nnz).max().unwrap_or(0));
            let compute = |out| {
                for block in row_block.blocks() {
                    let task = SddmmPanel {
                        block: block.block,
                        starts: block.starts.as_ptr(),
                        order: block.order.as_ptr(),
                        values: values.map_or(std::ptr::null(), <[D::Scalar]>::as_ptr),
                        c: rows.as_ptr(),
                        ldc: c.stride(),
                        b: b.data()[block.column * b.stride()..].as_ptr(),
                        ldb: b.stride(),
                        width: block.width,
                        n,
                        out,
                        tile_vectors,
                        sums: sums.as_mut_ptr(),
                        scratch: packed.as_mut_ptr(),
                    };
                    // SAFETY: a panel's blocks index its own rows and columns, which are those of C and B; a row segment's
                    // dots and the scratch are this task's own, and the scratch has room for a tile, the sums for any
                    // block.
                    unsafe { sddmm_panel(self.arch(), task) };
                }
            };
            // SAFETY: the blocks have all nonzeros of the row block, which is this task's own.
            unsafe { out.of_task(self.arch(), nonzeros, compute) };
        });
    }

    /// Room for a packed panel in tiles of as many vectors.
    pub(super) fn packed_panel<T: Scalar>(&self, panel: &Panel, vectors: usize) -> crate::dense::Aligned<T> {
        scratch(panel.width() * vectors * self.arch().vector_bytes() / size_of::<T>())
    }
}

/// The dots of a task of the direct path, without values and a place for them yet.
pub(super) fn direct_dots<D: Stored>(
    pattern: PatternRef<'_>,
    task: &Task,
    direct: &Direct<'_>,
    c: MatRef<'_, D>,
    b: MatRef<'_, D>,
) -> SddmmRows<D> {
    SddmmRows {
        row_ptr: pattern.row_ptr().raw(),
        columns: pattern.col_idx().as_ptr(),
        values: std::ptr::null(),
        rows: task.rows,
        nonzeros: task.nonzeros,
        c: c.data().as_ptr(),
        ldc: c.stride(),
        b: b.data().as_ptr(),
        ldb: b.stride(),
        n: c.cols(),
        out: std::ptr::null_mut(),
        prefetch_distance: direct.prefetch_distance,
        panel: [direct.width, pattern.cols()],
    }
}
