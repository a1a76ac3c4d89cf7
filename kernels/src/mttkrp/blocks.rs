//! MTTKRP over blocks of nonzeros (HiCOO): Algorithm 3 of the PASTA paper, after Li, Sun and Vuduc.
//!
//! ```text
//! for block in blocks:
//!     base_m = factor_m + 2^b block_m          the addresses of the block's rows, once per block
//!     for p in the block's nonzeros:
//!         prefetch the rows of a coming nonzero, from the bases of its own block
//!         base_n[e_n] += x * prod base_m[e_m]  offsets of 8 bits
//! ```
//!
//! Hypersparse tensors have a nonzero or two in a block, so rows are prefetched across blocks: a second set of bases runs
//! ahead of the first one.

use pulp::{Simd, WithSimd};

use super::{MAX_ORDER, Operands, Panel, accumulate, load, panels, prefetch_panel, scale_by, store};
use crate::arch::dispatch_compiled;
use crate::{Arch, Scalar};

/// A tensor in blocks of 2^b coordinates a side, and the part of it that one task computes.
#[derive(Clone, Copy, Debug)]
pub struct BlocksView<'a, T> {
    /// First nonzero of each block, and the end of the last one.
    pub ptr: &'a [usize],
    /// For each mode the blocks' coordinates divided by 2^b.
    pub blocks: &'a [&'a [u32]],
    /// b, at most 8.
    pub block_bits: u32,
    /// For each mode the nonzeros' coordinates inside their blocks.
    pub elements: &'a [&'a [u8]],
    /// The values.
    pub values: &'a [T],
    /// The mode of the output.
    pub mode: usize,
    /// The blocks of this task: first, and one past the last.
    pub part: (usize, usize),
}

/// INPUTS 0 stands for a number known at run time only.
#[derive(Clone, Copy)]
struct Blocks<'a, T: Scalar, const INPUTS: usize> {
    view: BlocksView<'a, T>,
    operands: Operands<'a, T>,
}

/// Adds `x * prod_{m != mode} factor_m[i_m]` to row `i_mode` of the output for every nonzero of the part.
///
/// # Safety
/// Stride and columns of `operands` are whole registers of `arch`. There are 2 to 8 modes; `ptr` ascends and ends within the
/// values; every mode has a coordinate for each block and each value, which together are rows of its factor, or of the
/// output, and nobody else uses these columns of those output rows; the part is one of the blocks.
pub unsafe fn mttkrp_blocks<T: Scalar>(arch: Arch, view: BlocksView<'_, T>, operands: Operands<'_, T>) {
    if view.part.0 < view.part.1 {
        let task = Blocks::<T, 0> { view, operands };
        dispatch_compiled!(arch, task, Blocks<'_, f32, 0>, Blocks<'_, f64, 0>, |arch, task| task.dispatch(arch));
    }
}

impl<T: Scalar> Blocks<'_, T, 0> {
    /// To the code for the task's number of input modes.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        let Self { view, operands } = self;
        let general = |simd| self.general(simd);
        match view.blocks.len() {
            3 => arch.dispatch_vectors(Blocks::<T, 2> { view, operands }, general),
            4 => arch.dispatch_vectors(Blocks::<T, 3> { view, operands }, general),
            _ => arch.dispatch_vectors(self, general),
        }
    }

    /// Without vectors there is nothing to specialise for.
    #[inline(never)]
    fn general(self, simd: pulp::Scalar) {
        self.with_simd(simd);
    }
}

impl<T: Scalar, const INPUTS: usize> WithSimd for Blocks<'_, T, INPUTS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels(simd, self.operands.columns, &self) }
    }
}

impl<T: Scalar, const INPUTS: usize> Panel<T> for Blocks<'_, T, INPUTS> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let Self { view, operands } = self;
        let inputs = if INPUTS == 0 { view.blocks.len() - 1 } else { INPUTS };
        let stride = operands.stride;
        // The inputs, then the output.
        let mut blocks = [view.blocks[view.mode].as_ptr(); MAX_ORDER];
        let mut elements = [view.elements[view.mode].as_ptr(); MAX_ORDER];
        let mut origins = [operands.out.cast_const().wrapping_add(column); MAX_ORDER];
        for m in 0..inputs {
            let mode = m + usize::from(m >= view.mode);
            blocks[m] = view.blocks[mode].as_ptr();
            elements[m] = view.elements[mode].as_ptr();
            origins[m] = operands.factors[mode].wrapping_add(column);
        }
        // The rows of a block's first coordinates.
        let base_of = |block: usize| {
            let mut base = origins;
            for m in 0..inputs + 1 {
                // SAFETY: every mode has a coordinate for the block.
                let corner = unsafe { *blocks[m].add(block) } as usize;
                base[m] = origins[m].wrapping_add((corner << view.block_bits) * stride);
            }
            base
        };
        let (first, end) = view.part;
        let last = view.ptr[end];
        let (mut coming_block, mut coming) = (first, base_of(first));
        for block in first..end {
            let base = base_of(block);
            // SAFETY: blocks and nonzeros are in range, and the rows exist by the caller's promise.
            unsafe {
                for p in *view.ptr.get_unchecked(block)..*view.ptr.get_unchecked(block + 1) {
                    let q = p + operands.prefetch_distance;
                    if operands.prefetch_distance != 0 && q < last {
                        if q >= *view.ptr.get_unchecked(coming_block + 1) {
                            while q >= *view.ptr.get_unchecked(coming_block + 1) {
                                coming_block += 1;
                            }
                            coming = base_of(coming_block);
                        }
                        for m in 0..inputs + 1 {
                            prefetch_panel::<S, T, G>(
                                coming[m].wrapping_add(usize::from(*elements[m].add(q)) * stride),
                            );
                        }
                    }
                    let row = |m: usize| base[m].wrapping_add(usize::from(*elements[m].add(p)) * stride);
                    let mut product = [T::splat(simd, *view.values.get_unchecked(p)); G];
                    for m in 0..inputs - 1 {
                        scale_by(simd, &mut product, row(m));
                    }
                    let out = row(inputs).cast_mut();
                    let mut sum = load::<S, T, G>(simd, out);
                    accumulate::<S, T, G>(simd, &mut sum, &product, &load(simd, row(inputs - 1)));
                    store(simd, out, &sum);
                }
            }
        }
    }
}
