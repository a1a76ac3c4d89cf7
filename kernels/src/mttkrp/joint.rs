//! MTTKRP of all modes at once, from the same factors: the gradient of a CP model needs no more.
//!
//! ```text
//! for run of nonzeros with coordinate i in the root mode:          c = row i of its factor, in registers
//!     for nonzero x of the run, with rows a_1 .. a_n of the other factors:
//!         out_m[..] += (x c a_1 .. a_(m-1)) (a_(m+1) .. a_n)       for every other mode m
//!         sum += x a_1 .. a_n
//!     out_root[i] += sum
//! ```
//!
//! Mode by mode each nonzero reads n rows n + 1 times; here n rows once, and reads and writes n rows of outputs. The
//! products of rows before and after each mode are running ones: 3 n operations for each column, instead of n (n + 1).

use pulp::{Simd, WithSimd};

use super::{MAX_ORDER, Panel, add_to, load, panels, prefetch_panel, zeros};
use crate::arch::dispatch_compiled;
use crate::{Arch, Scalar};

/// Some nonzeros as one coordinate array per mode. Worth it where runs of nonzeros with one coordinate in `root` are long;
/// correct for any order.
#[derive(Clone, Copy, Debug)]
pub struct JointView<'a, T> {
    /// The coordinates of each mode, as many as values.
    pub coords: &'a [&'a [u32]],
    /// The values.
    pub values: &'a [T],
    /// The mode whose rows stay in registers.
    pub root: usize,
}

/// The dense operands of one task, as in [`super::Operands`], with an output for each mode.
#[derive(Clone, Copy, Debug)]
pub struct JointOperands<'a, T> {
    /// Row 0 of the factor of each mode.
    pub factors: &'a [*const T],
    /// Where row 0 of the output of each mode would be; only the rows that the task's nonzeros name are touched.
    pub outs: &'a [*mut T],
    /// Elements from row to row, all of which are computed.
    pub stride: usize,
    /// Nonzeros between the one computed and the one whose rows are prefetched; 0 for no prefetch.
    pub prefetch_distance: usize,
}

/// A task as it comes, before its number of modes has become a type.
#[derive(Clone, Copy)]
struct Task<'a, T> {
    view: JointView<'a, T>,
    operands: JointOperands<'a, T>,
}

/// OTHERS is the number of modes but the root: known when compiled, so that the running products stay in registers. 0
/// stands for a number known at run time only.
struct Joint<'a, T, const OTHERS: usize> {
    view: JointView<'a, T>,
    operands: JointOperands<'a, T>,
}

/// Adds `x * prod_{m != n} factor_m[i_m]` to row `i_n` of the output of every mode n for every nonzero.
///
/// # Safety
/// `operands.stride` is a whole number of registers of `arch`. The coordinate arrays are as long as the values, one
/// per mode (2 to 8); every coordinate is a row of its factor and its output, and nobody else uses those output rows.
pub unsafe fn mttkrp_joint<T: Scalar>(arch: Arch, view: JointView<'_, T>, operands: JointOperands<'_, T>) {
    let task = Task { view, operands };
    dispatch_compiled!(arch, task, Task<'_, f32>, Task<'_, f64>, |arch, task| task.dispatch(arch));
}

impl<T: Scalar> Task<'_, T> {
    /// To the code for the task's number of modes.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        let Self { view, operands } = self;
        let general = |simd| self.general(simd);
        match view.coords.len() {
            3 => arch.dispatch_vectors(Joint::<T, 2> { view, operands }, general),
            4 => arch.dispatch_vectors(Joint::<T, 3> { view, operands }, general),
            5 => arch.dispatch_vectors(Joint::<T, 4> { view, operands }, general),
            6 => arch.dispatch_vectors(Joint::<T, 5> { view, operands }, general),
            7 => arch.dispatch_vectors(Joint::<T, 6> { view, operands }, general),
            8 => arch.dispatch_vectors(Joint::<T, 7> { view, operands }, general),
            _ => arch.dispatch_vectors(Joint::<T, 0> { view, operands }, general),
        }
    }

    /// Any number of modes: for vectors that of a matrix, which no plan takes this way, and all without vectors.
    #[inline(never)]
    fn general(self, simd: pulp::Scalar) {
        Joint::<T, 0> { view: self.view, operands: self.operands }.with_simd(simd);
    }
}

impl<T: Scalar, const OTHERS: usize> WithSimd for Joint<'_, T, OTHERS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels(simd, (0, self.operands.stride), &self) }
    }
}

impl<T: Scalar, const OTHERS: usize> Panel<T> for Joint<'_, T, OTHERS> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let Self { view, operands } = self;
        let JointOperands { stride, prefetch_distance, .. } = *operands;
        let others = if OTHERS == 0 { view.coords.len() - 1 } else { OTHERS };
        let mut coords = [view.coords[0].as_ptr(); MAX_ORDER];
        let mut factors = [operands.factors[0]; MAX_ORDER];
        let mut outs = [operands.outs[0]; MAX_ORDER];
        for m in 0..others {
            let mode = m + usize::from(m >= view.root);
            coords[m] = view.coords[mode].as_ptr();
            factors[m] = operands.factors[mode].wrapping_add(column);
            outs[m] = operands.outs[mode].wrapping_add(column);
        }
        let rows = view.coords[view.root];
        let nnz = view.values.len();
        let mut p = 0;
        while p < nnz {
            // SAFETY: places below `nnz` are below the length of every array; the rows exist by the caller's promise.
            unsafe {
                let row = *rows.get_unchecked(p);
                let root = row as usize * stride + column;
                let c = load::<S, T, G>(simd, operands.factors[view.root].wrapping_add(root));
                let mut sum = zeros::<S, T, G>(simd);
                while p < nnz && *rows.get_unchecked(p) == row {
                    if prefetch_distance != 0 {
                        let q = (p + prefetch_distance).min(nnz - 1);
                        for m in 0..others {
                            let at = *coords[m].add(q) as usize * stride;
                            prefetch_panel::<S, T, G>(factors[m].wrapping_add(at), prefetch_distance);
                            prefetch_panel::<S, T, G>(outs[m].wrapping_add(at), prefetch_distance);
                        }
                    }
                    let mut at = [0; MAX_ORDER];
                    for m in 0..others {
                        at[m] = *coords[m].add(p) as usize * stride;
                    }
                    let x = T::splat(simd, *view.values.get_unchecked(p));
                    for g in 0..G {
                        // All loads, then all stores: a store delays younger loads from addresses that agree with its
                        // own in the low 12 bits, as those of rows in no order often do (order 4, R = 32, Zen 4: 42 to
                        // 35 ms at f64, 21 to 16 at f32).
                        let register = g * T::lanes::<S>();
                        let mut row = [x; MAX_ORDER];
                        let mut out = [x; MAX_ORDER];
                        for m in 0..others {
                            row[m] = T::load(simd, factors[m].add(at[m] + register));
                            out[m] = T::load(simd, outs[m].add(at[m] + register).cast_const());
                        }
                        // r_0 is the root's row, r_m that of the m-th of the others.
                        let r = |m: usize| if m == 0 { c[g] } else { row[m - 1] };
                        let mut add = |m: usize, a, b| out[m - 1] = T::vmul_add(simd, a, b, out[m - 1]);
                        // before[m] = x r_0 .. r_(m-1), and after = r_(m+1) .. r_others
                        let mut before = [x; MAX_ORDER];
                        for m in 1..others {
                            before[m] = T::vmul(simd, before[m - 1], r(m - 1));
                        }
                        add(others, before[others - 1], r(others - 1));
                        let mut after = r(others);
                        for m in (1..others).rev() {
                            add(m, before[m], after);
                            after = T::vmul(simd, after, r(m));
                        }
                        sum[g] = T::vmul_add(simd, x, after, sum[g]);
                        for m in 0..others {
                            T::store(simd, outs[m].add(at[m] + register), out[m]);
                        }
                    }
                    p += 1;
                }
                add_to(simd, operands.outs[view.root].wrapping_add(root), &sum);
            }
        }
    }
}
