//! MTTKRP over a list of coordinates, in any order.
//!
//! ```text
//! for p in nonzeros:                        element-centric: one row of the output read and written per nonzero
//!     out[i_n] += x * prod factor_m[i_m]
//! for run of nonzeros with one i_n:         row-centric (lists sorted by the output's mode): the sum in registers
//!     out[i_n] += sum ...
//! ```

use pulp::{Simd, WithSimd};

use super::{MAX_ORDER, Operands, Panel, accumulate, add_to, load, panels, prefetch_panel, scale_by, zeros};
use crate::arch::dispatch_stored;
use crate::{Arch, Number, Stored};

/// Some nonzeros as one coordinate array per mode.
#[derive(Clone, Copy, Debug)]
pub struct EntriesView<'a, T> {
    /// The coordinates of each mode, as many as values.
    pub coords: &'a [&'a [u32]],
    /// The values.
    pub values: &'a [T],
    /// The mode of the output.
    pub mode: usize,
    /// Whether runs of nonzeros in the same row of the output are summed in registers first. Worth it for runs of 2 or
    /// more on average; correct for any order.
    pub by_rows: bool,
}

/// A task as it comes, before its number of inputs has become a type.
type Task<'a, D> = Entries<'a, D, 0>;

/// INPUTS 0 stands for a number known at run time only.
#[derive(Clone, Copy)]
struct Entries<'a, D: Stored, const INPUTS: usize> {
    view: EntriesView<'a, D::Scalar>,
    operands: Operands<'a, D>,
}

/// Adds `x * prod_{m != mode} factor_m[i_m]` to row `i_mode` of the output for every nonzero.
///
/// # Safety
/// Stride and columns of `operands` are whole registers of `arch`. The coordinate arrays are as long as the values, one
/// per mode (2 to 8); every coordinate is a row of its factor, or of the output, and nobody else uses these columns of
/// those output rows.
pub unsafe fn mttkrp_entries<D: Stored>(arch: Arch, view: EntriesView<'_, D::Scalar>, operands: Operands<'_, D>) {
    dispatch_stored!(arch, Task { view, operands }, Task, |arch, task| task.dispatch(arch));
}

impl<D: Stored> Entries<'_, D, 0> {
    /// To the code for the task's number of input modes.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        let Self { view, operands } = self;
        let general = |simd| self.general(simd);
        // Loops over the modes cost little where narrow rows are worth it: where they come from L3 or beyond.
        if const { D::NARROW } {
            return arch.dispatch_vectors(self, general);
        }
        match view.coords.len() {
            3 => arch.dispatch_vectors(Entries::<D, 2> { view, operands }, general),
            4 => arch.dispatch_vectors(Entries::<D, 3> { view, operands }, general),
            _ => arch.dispatch_vectors(self, general),
        }
    }

    /// Without vectors there is nothing to specialise for.
    #[inline(never)]
    fn general(self, simd: pulp::Scalar) {
        self.with_simd(simd);
    }
}

impl<D: Stored, const INPUTS: usize> WithSimd for Entries<'_, D, INPUTS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels::<S, D::Scalar, _>(simd, self.operands.columns, &self) }
    }
}

impl<D: Stored, const INPUTS: usize> Panel<D::Scalar> for Entries<'_, D, INPUTS> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let Self { view, operands } = self;
        let order = view.coords.len();
        let inputs = if INPUTS == 0 { order - 1 } else { INPUTS };
        let stride = operands.stride;
        let mut coords = [view.coords[0].as_ptr(); MAX_ORDER];
        let mut factors = [operands.factors[0]; MAX_ORDER];
        for m in 0..inputs {
            let mode = m + usize::from(m >= view.mode);
            coords[m] = view.coords[mode].as_ptr();
            factors[m] = operands.factors[mode].wrapping_add(column);
        }
        let rows = view.coords[view.mode];
        let out = operands.out.wrapping_add(column);
        let nnz = view.values.len();

        let mut sum = zeros::<S, D::Scalar, G>(simd);
        for p in 0..nnz {
            // SAFETY: `p` is below the length of every array; the rows exist by the caller's promise.
            unsafe {
                if operands.prefetch_distance != 0 {
                    let q = (p + operands.prefetch_distance).min(nnz - 1);
                    for m in 0..inputs {
                        let i = *coords[m].add(q) as usize;
                        prefetch_panel::<S, D, G>(factors[m].wrapping_add(i * stride), operands.prefetch_distance);
                    }
                    prefetch_panel::<S, D::Scalar, G>(
                        out.wrapping_add(*rows.get_unchecked(q) as usize * stride),
                        operands.prefetch_distance,
                    );
                }
                let factor_row = |m: usize| factors[m].add(*coords[m].add(p) as usize * stride);
                let mut product = [D::Scalar::splat(simd, *view.values.get_unchecked(p)); G];
                for m in 0..inputs - 1 {
                    scale_by::<S, D, G>(simd, &mut product, factor_row(m));
                }
                accumulate::<S, D::Scalar, G>(simd, &mut sum, &product, &load::<S, D, G>(simd, factor_row(inputs - 1)));
                let row = *rows.get_unchecked(p);
                if !view.by_rows || p + 1 == nnz || *rows.get_unchecked(p + 1) != row {
                    add_to::<S, D::Scalar, G>(simd, out.wrapping_add(row as usize * stride), &sum);
                    sum = zeros::<S, D::Scalar, G>(simd);
                }
            }
        }
    }
}
