//! SpMM with one column from slices of rows: c = alpha A b + beta c and c = alpha A^T b + beta c.

use sparsimd_kernels::{SpmmRows, SpmvSlices, Stored, spmv_slices};

use super::prepare::Prepared;
use super::run::Shared;
use super::values::Values;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef};
use crate::formats::PatternRef;

/// Multiply-adds for a cycle, for [`Cpu::for_each`]: some 16 in a nanosecond.
const WORK: usize = 4;

impl Cpu {
    /// The slices' path, if it is there for these operands: false otherwise, and nothing is done. Shapes have been checked.
    ///
    /// A factor of zero, which is not multiplied with, and elements of b that are apart are the direct path's.
    pub(super) fn spmm_by_slices<D: Stored>(
        &self,
        alpha: D::Scalar,
        a: &Prepared<D::Scalar>,
        b: MatRef<'_, D>,
        beta: D::Scalar,
        c: &mut MatMut<'_, D>,
    ) -> bool {
        let (Some((slices, sliced)), Some(Values::Same(values))) = (a.sliced(), a.values()) else { return false };
        if b.cols() != 1 || b.stride() != 1 || alpha == <D::Scalar as sparsimd_kernels::Number>::ZERO {
            return false;
        }
        let pattern = PatternRef::from(a.worked());
        let (ldc, out) = (c.stride(), Shared(c.reborrow().into_data().as_mut_ptr()));
        self.for_each(slices.blocks().len(), slices.cycles.saturating_mul(WORK), |k| {
            let block = &slices.blocks()[k];
            let rows = [block.rows.start, block.rows.end];
            let direct = SpmmRows {
                row_ptr: pattern.row_ptr().raw(),
                columns: pattern.col_idx().as_ptr(),
                values: values.as_ptr(),
                rows,
                nonzeros: rows.map(|row| pattern.row_ptr().at(row)),
                b: b.data().as_ptr(),
                ldb: 1,
                n: 1,
                alpha,
                beta,
                c: out.get(),
                ldc,
                carry_out: [std::ptr::null_mut(); 2],
                prefetch_distance: 0,
                panel: [usize::MAX, pattern.cols()],
                stream: false,
            };
            let task = SpmvSlices {
                slices: &block.slices,
                indices: block.indices.as_ptr(),
                values: sliced[block.values.clone()].as_ptr(),
                long: &block.long,
                direct,
            };
            // SAFETY: the pattern's invariants, the checked shapes and how slices are made from the pattern make every index valid; a
            // block's rows are its own task's.
            unsafe { spmv_slices(self.arch(), task) };
        });
        true
    }
}
