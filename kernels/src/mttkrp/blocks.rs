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
use crate::arch::dispatch_stored;
use crate::{Arch, Number, Stored};

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

/// A task as it comes, before its number of inputs has become a type.
type Task<'a, D> = Blocks<'a, D, 0>;

/// INPUTS 0 stands for a number known at run time only.
#[derive(Clone, Copy)]
struct Blocks<'a, D: Stored, const INPUTS: usize> {
    view: BlocksView<'a, D::Scalar>,
    operands: Operands<'a, D>,
}

/// Adds `x * prod_{m != mode} factor_m[i_m]` to row `i_mode` of the output for every nonzero of the part.
///
/// # Safety
/// Stride and columns of `operands` are whole registers of `arch`. There are 2 to 8 modes; `ptr` ascends and ends within the
/// values; every mode has a coordinate for each block and each value, which together are rows of its factor, or of the
/// output, and nobody else uses these columns of those output rows; the part is one of the blocks.
pub unsafe fn mttkrp_blocks<D: Stored>(arch: Arch, view: BlocksView<'_, D::Scalar>, operands: Operands<'_, D>) {
    if view.part.0 < view.part.1 {
        dispatch_stored!(arch, Task { view, operands }, Task, |arch, task| task.dispatch(arch));
    }
}

impl<D: Stored> Blocks<'_, D, 0> {
    /// To the code for the task's number of input modes.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        let Self { view, operands } = self;
        let general = |simd| self.general(simd);
        // As in `entries`: where narrow rows are worth it, loops over the modes cost little.
        if const { D::NARROW } {
            return arch.dispatch_vectors(self, general);
        }
        match view.blocks.len() {
            3 => arch.dispatch_vectors(Blocks::<D, 2> { view, operands }, general),
            4 => arch.dispatch_vectors(Blocks::<D, 3> { view, operands }, general),
            _ => arch.dispatch_vectors(self, general),
        }
    }

    /// Without vectors there is nothing to specialise for.
    #[inline(never)]
    fn general(self, simd: pulp::Scalar) {
        self.with_simd(simd);
    }
}

impl<D: Stored, const INPUTS: usize> WithSimd for Blocks<'_, D, INPUTS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels::<S, D::Scalar, _>(simd, self.operands.columns, &self) }
    }
}

/// The coordinates of a block and of its nonzeros in one mode, and row 0 of the mode's factor, or of the output.
#[derive(Clone, Copy)]
struct Mode<E> {
    blocks: *const u32,
    elements: *const u8,
    origin: *mut E,
}

impl<E> Mode<E> {
    /// `mode` of `view`, whose rows begin at `origin`.
    #[inline(always)]
    fn new<T>(view: &BlocksView<'_, T>, mode: usize, origin: *mut E) -> Self {
        Self { blocks: view.blocks[mode].as_ptr(), elements: view.elements[mode].as_ptr(), origin }
    }

    /// The row of the first coordinate of `block`.
    ///
    /// # Safety
    /// The mode has a coordinate for the block.
    #[inline(always)]
    unsafe fn base(&self, block: usize, bits: u32, stride: usize) -> *mut E {
        // SAFETY: the caller's promise.
        let corner = unsafe { *self.blocks.add(block) } as usize;
        self.origin.wrapping_add((corner << bits) * stride)
    }

    /// The row of nonzero `p`, of a block that begins at `base`.
    ///
    /// # Safety
    /// The mode has a coordinate for the nonzero.
    #[inline(always)]
    unsafe fn row(&self, base: *mut E, p: usize, stride: usize) -> *mut E {
        // SAFETY: the caller's promise.
        base.wrapping_add(usize::from(unsafe { *self.elements.add(p) }) * stride)
    }
}

/// The rows of a block's first coordinates.
#[derive(Clone, Copy)]
struct Bases<D: Stored> {
    inputs: [*mut D; MAX_ORDER],
    output: *mut D::Scalar,
}

impl<D: Stored> Bases<D> {
    /// Of `block`, in the first `inputs` of `modes` and in `output`.
    ///
    /// # Safety
    /// As [`Mode::base`], for all of them.
    #[inline(always)]
    unsafe fn new(
        modes: &[Mode<D>; MAX_ORDER],
        inputs: usize,
        output: &Mode<D::Scalar>,
        block: usize,
        bits: u32,
        stride: usize,
    ) -> Self {
        let mut bases = [std::ptr::null_mut(); MAX_ORDER];
        // SAFETY: the caller's promise.
        unsafe {
            for m in 0..inputs {
                bases[m] = modes[m].base(block, bits, stride);
            }
            Self { inputs: bases, output: output.base(block, bits, stride) }
        }
    }
}

impl<D: Stored, const INPUTS: usize> Panel<D::Scalar> for Blocks<'_, D, INPUTS> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let Self { view, operands } = self;
        let inputs = if INPUTS == 0 { view.blocks.len() - 1 } else { INPUTS };
        let (stride, bits) = (operands.stride, view.block_bits);
        let output = Mode::new(view, view.mode, operands.out.wrapping_add(column));
        let mut modes = [Mode::new(view, 0, std::ptr::null_mut::<D>()); MAX_ORDER];
        for m in 0..inputs {
            let mode = m + usize::from(m >= view.mode);
            modes[m] = Mode::new(view, mode, operands.factors[mode].wrapping_add(column).cast_mut());
        }
        let (first, end) = view.part;
        let last = view.ptr[end];
        // SAFETY: every mode has a coordinate for each block, of which the part has one at least.
        let mut coming = unsafe { Bases::new(&modes, inputs, &output, first, bits, stride) };
        let mut coming_block = first;
        for block in first..end {
            // SAFETY: blocks and nonzeros are in range, and the rows exist by the caller's promise.
            unsafe {
                let bases = Bases::new(&modes, inputs, &output, block, bits, stride);
                for p in *view.ptr.get_unchecked(block)..*view.ptr.get_unchecked(block + 1) {
                    let q = p + operands.prefetch_distance;
                    if operands.prefetch_distance != 0 && q < last {
                        if q >= *view.ptr.get_unchecked(coming_block + 1) {
                            while q >= *view.ptr.get_unchecked(coming_block + 1) {
                                coming_block += 1;
                            }
                            coming = Bases::new(&modes, inputs, &output, coming_block, bits, stride);
                        }
                        for m in 0..inputs {
                            prefetch_panel::<S, D, G>(
                                modes[m].row(coming.inputs[m], q, stride),
                                operands.prefetch_distance,
                            );
                        }
                        prefetch_panel::<S, D::Scalar, G>(
                            output.row(coming.output, q, stride),
                            operands.prefetch_distance,
                        );
                    }
                    let row = |m: usize| modes[m].row(bases.inputs[m], p, stride).cast_const();
                    let mut product = [D::Scalar::splat(simd, *view.values.get_unchecked(p)); G];
                    for m in 0..inputs - 1 {
                        scale_by::<S, D, G>(simd, &mut product, row(m));
                    }
                    let out = output.row(bases.output, p, stride);
                    let mut sum = load::<S, D::Scalar, G>(simd, out);
                    accumulate::<S, D::Scalar, G>(simd, &mut sum, &product, &load::<S, D, G>(simd, row(inputs - 1)));
                    store::<S, D::Scalar, G>(simd, out, &sum);
                }
            }
        }
    }
}
