//! SDDMM: out_p = (C B^T)_ij for each nonzero p = (i, j) of a pattern.

use sparsimd_kernels::{Number, Scalar, SddmmPanel, SddmmRows, Stored, sddmm_panel, sddmm_rows};

use super::operand::{SparseOperand, check_columns};
use super::prepare::Direct;
use super::row_sums::Widened;
use super::run::{Shared, scratch};
use crate::cpu::Cpu;
use crate::dense::{MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::{Panel, PatternRef};
use crate::plan::Op;

impl Cpu {
    /// out_p = (C B^T)_ij for each nonzero p = (i, j) of the pattern, in CSR order; C dense M x N, B dense K x N.
    ///
    /// C and B may store bf16 or f16 ([`Stored`]): what is computed, and stored in `out`, is f32 then.
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
    /// let mut out = [0.0; 3];
    /// cpu.sddmm(&pattern, c.as_ref(), b.as_ref(), &mut out)?;
    /// assert_eq!(out, [4.0, 12.0, 16.0]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn sddmm<'a, D: Stored>(
        &self,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Scalar],
    ) -> Result<()> {
        self.sampled("sddmm", a.into(), None, c, b, out)
    }

    /// out_p = a_ij (C B^T)_ij for each nonzero p = (i, j) of A, in CSR order; C dense M x N, B dense K x N.
    ///
    /// # Errors
    /// As [`Cpu::sddmm`], and when `a` has no values.
    pub fn sddmm_scaled<'a, D: Stored>(
        &self,
        a: impl Into<SparseOperand<'a, D::Scalar>>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Scalar],
    ) -> Result<()> {
        let a = a.into();
        self.sampled("sddmm_scaled", a, Some(a.need_values("sddmm_scaled")?), c, b, out)
    }

    /// Both, by path.
    #[inline(never)]
    pub(crate) fn sampled<D: Stored>(
        &self,
        op: &'static str,
        a: SparseOperand<'_, D::Scalar>,
        values: Option<&[D::Scalar]>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Scalar],
    ) -> Result<()> {
        let pattern = a.pattern();
        check_columns(op, c.cols())?;
        check_shape(op, "C", c.shape(), (pattern.rows(), c.cols()))?;
        check_shape(op, "B", b.shape(), (pattern.cols(), c.cols()))?;
        if out.len() != pattern.nnz() {
            let detail = format!("out has {} elements for a pattern of {} nonzeros", out.len(), pattern.nnz());
            return Err(Error::shape(op, detail));
        }
        let panel = match a {
            SparseOperand::Prepared(prepared) => {
                prepared.panels_for(Op::Sddmm, self)?.map(|(plan, panel)| (panel, plan.tile_vectors))
            }
            _ => None,
        };
        let Some(panel) = panel else {
            let direct = self.direct(Op::Sddmm, a, pattern, c.cols())?;
            self.sampled_directly(pattern, values, &direct, c, b, out);
            return Ok(());
        };
        let Some(order) = panel.0.unsorted() else {
            self.sampled_by_panels(panel, values, c, b, out);
            return Ok(());
        };
        // Dots come out by ascending column; then each goes to its place, and meets its value there.
        let mut sorted = vec![D::Scalar::ZERO; out.len()];
        self.sampled_by_panels(panel, None, c, b, &mut sorted);
        match values {
            None => order.iter().zip(&sorted).for_each(|(&p, &dot)| out[p] = dot),
            Some(values) => order.iter().zip(&sorted).for_each(|(&p, &dot)| out[p] = values[p] * dot),
        }
        Ok(())
    }

    /// The direct path; shapes have been checked.
    fn sampled_directly<D: Stored>(
        &self,
        pattern: PatternRef<'_>,
        values: Option<&[D::Scalar]>,
        direct: &Direct<'_>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Scalar],
    ) {
        let n = c.cols();
        let tasks = &direct.tasks;
        let out = Shared(out.as_mut_ptr());
        self.for_each(tasks.len(), pattern.nnz().saturating_mul(n), |k| {
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; a nonzero is one task's.
            unsafe {
                sddmm_rows(
                    self.arch(),
                    SddmmRows {
                        row_ptr: pattern.row_ptr().raw(),
                        columns: pattern.col_idx().as_ptr(),
                        values: values.map_or(std::ptr::null(), <[D::Scalar]>::as_ptr),
                        rows: tasks[k].rows,
                        nonzeros: tasks[k].nonzeros,
                        c: c.data().as_ptr(),
                        ldc: c.stride(),
                        b: b.data().as_ptr(),
                        ldb: b.stride(),
                        n,
                        out: out.get(),
                        prefetch_distance: direct.prefetch_distance,
                        panel: [direct.width, pattern.cols()],
                    },
                );
            }
        });
    }

    /// The panel path, by panels and vectors of a tile; shapes have been checked, `values` and `out` are in row-sorted
    /// order.
    fn sampled_by_panels<D: Stored>(
        &self,
        (panel, tile_vectors): (&Panel, usize),
        values: Option<&[D::Scalar]>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Scalar],
    ) {
        let n = c.cols();
        let work = out.len().saturating_mul(n);
        let out = Shared(out.as_mut_ptr());
        self.for_each(panel.row_blocks().len(), work, |k| {
            let row_block = &panel.row_blocks()[k];
            let rows = Widened::new(self.arch(), c, row_block.rows.clone());
            let mut packed = self.packed_panel::<D::Scalar>(panel, tile_vectors);
            let mut sums = scratch::<D::Scalar>(row_block.blocks().map(|block| block.nnz).max().unwrap_or(0));
            for block in row_block.blocks() {
                let task = SddmmPanel {
                    block: block.block,
                    starts: block.starts.as_ptr(),
                    order: block.order.as_ptr(),
                    values: values.map_or(std::ptr::null(), <[D::Scalar]>::as_ptr),
                    c: rows.as_ptr(),
                    ldc: rows.stride(),
                    b: b.data()[block.column * b.stride()..].as_ptr(),
                    ldb: b.stride(),
                    width: block.width,
                    n,
                    out: out.get(),
                    tile_vectors,
                    sums: sums.as_mut_ptr(),
                    scratch: packed.as_mut_ptr(),
                };
                // SAFETY: a panel's blocks index its own rows and columns, which are those of C and B; a row segment's
                // dots and the scratch are this task's own, and the scratch has room for a tile, the sums for any
                // block.
                unsafe { sddmm_panel(self.arch(), task) };
            }
        });
    }

    /// Room for a packed panel in tiles of as many vectors.
    pub(super) fn packed_panel<T: Scalar>(&self, panel: &Panel, vectors: usize) -> crate::dense::Aligned<T> {
        scratch(panel.width() * vectors * self.arch().vector_bytes() / size_of::<T>())
    }
}
