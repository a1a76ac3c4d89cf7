//! SDDMM: out_p = (C B^T)_ij for each nonzero p = (i, j) of a pattern, times a_ij if asked for.
//!
//! ```text
//! direct: for i in rows                         panel: for each panel of B's rows, copied into L1
//!     c = C_i                                       for each row i with nonzeros there
//!     for j in columns of row i                         c = C_i
//!         out_ij = c . B_j                              for j in columns of row i in the panel: out_ij = c . B_j
//! ```
//!
//! The row of C is in registers (Zubair and Bauinger 2023, their Figure 8); their one reduction per nonzero is a tree
//! over as many dots as a register has lanes (see `dot`). Rows longer than a tile are summed over tiles in `out`.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::cell::{Cell, Offsets};
use crate::dot::{Sink, dots, dots_packed, dots_pair};
use crate::rows::Gathered;
use crate::tile::{self, Tile, tiles, with_width};
use crate::walk::{Part, Walk};
use crate::{Arch, Scalar, prefetch_row};

/// Dots for rows of a CSR pattern.
#[derive(Clone, Copy, Debug)]
pub struct SddmmRows<T> {
    /// CSR row pointers.
    pub row_ptr: *const usize,
    /// CSR column indices.
    pub columns: *const u32,
    /// Factors of the dots, one per nonzero; null for none.
    pub values: *const T,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: rows that begin before or end after are taken in part.
    pub nonzeros: [usize; 2],
    /// C.
    pub c: *const T,
    /// Row stride of C.
    pub ldc: usize,
    /// B.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Columns of B and C.
    pub n: usize,
    /// One element per nonzero.
    pub out: *mut T,
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub ahead: usize,
    /// Columns of a panel that a block of rows shares, and all columns.
    pub panel: [usize; 2],
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every row is a row of C and every column a row of B, the operands have the strides and
/// sizes stated, and no one else uses the task's part of `out` at the same time.
pub unsafe fn sddmm_rows<T: Scalar>(arch: Arch, task: SddmmRows<T>) {
    dispatch_compiled!(arch, Rows(task), Rows<f32>, Rows<f64>);
}

#[derive(Clone, Copy)]
struct Rows<T>(SddmmRows<T>);

/// Widest tile of C held in registers beside one accumulator per lane.
#[inline(always)]
pub(crate) fn max_vectors<S: Simd>() -> usize {
    // 16 accumulators + 8 of C + operands fit 32 registers; 8 + 4 + operands fit 16.
    if S::REGISTER_COUNT >= 32 { 8 } else { 4 }
}

impl<T: Scalar> WithSimd for Rows<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in tiles(self.0.n, T::lanes::<S>(), max_vectors::<S>()) {
            // SAFETY: the promise of `sddmm_rows`; the tile is inside the rows of B and C.
            unsafe { with_width!(tile, rows_tile::<S, T>(simd, &self.0, tile)) }
        }
    }
}

/// What a register of dots becomes: added to earlier tiles' sums, multiplied by the values after the last tile.
#[derive(Clone, Copy)]
pub(crate) struct Output<T> {
    /// Where the first dot goes.
    out: *mut T,
    values: *const T,
    add: bool,
}

impl<T: Scalar> Output<T> {
    /// Of the tile at `tile`, of rows of `n` elements.
    #[inline(always)]
    fn new<S: Simd>(out: *mut T, values: *const T, tile: Tile, n: usize) -> Self {
        let last = tile.start + tile.vectors * T::lanes::<S>() >= n;
        Self { out, values: if last { values } else { std::ptr::null() }, add: tile.start > 0 }
    }

    /// The same from position `at` on.
    ///
    /// # Safety
    /// `at` is inside the output.
    #[inline(always)]
    unsafe fn at(self, at: usize) -> Self {
        // SAFETY: the caller's promise, and there are as many values as outputs.
        let values = if self.values.is_null() { self.values } else { unsafe { self.values.add(at) } };
        // SAFETY: the caller's promise.
        Self { out: unsafe { self.out.add(at) }, values, add: self.add }
    }
}

impl<T: Scalar> Sink<T> for Output<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise; where lanes before the first are left out, the mask keeps them from memory.
        unsafe {
            let out = self.out.wrapping_add(at).wrapping_sub(lanes[0]);
            if lanes == [0, T::lanes::<S>()] {
                if self.add {
                    dots = T::vadd(simd, dots, T::load(simd, out));
                }
                if !self.values.is_null() {
                    dots = T::vmul(simd, dots, T::load(simd, self.values.add(at)));
                }
                T::store(simd, out, dots);
            } else {
                let mask = T::lanes_between(simd, lanes[0], lanes[1]);
                if self.add {
                    dots = T::vadd(simd, dots, T::load_masked(simd, mask, out));
                }
                if !self.values.is_null() {
                    let values = self.values.wrapping_add(at).wrapping_sub(lanes[0]);
                    dots = T::vmul(simd, dots, T::load_masked(simd, mask, values));
                }
                T::store_masked(simd, mask, out, dots);
            }
        }
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`sddmm_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(simd: S, task: &SddmmRows<T>, tile: Tile) {
    let mask = T::first_lanes(simd, tile.rest);
    let output = Output::new::<S>(task.out, task.values, tile, task.n);
    // SAFETY: the promise of `sddmm_rows`.
    unsafe {
        for Part { row: i, start, end, .. } in
            Walk::new(task.row_ptr, task.columns, task.out, task.rows, task.nonzeros, task.panel)
        {
            if start == end {
                continue;
            }
            let rows = Gathered {
                columns: task.columns.add(start),
                base: task.b.add(tile.start),
                stride: task.ldb,
                last: task.nonzeros[1] - 1 - start,
                ahead: task.ahead,
            };
            let c = task.c.wrapping_add(i * task.ldc + tile.start);
            prefetch_row(c.wrapping_add(2 * task.ldc), NV * T::lanes::<S>() * size_of::<T>());
            let c = tile::load::<S, T, NV, TAIL>(simd, mask, c);
            dots::<S, T, NV, TAIL>(simd, mask, &c, end - start, &rows, &output.at(start));
        }
    }
}

/// Dots of one row block with one panel of B, packed.
#[derive(Clone, Copy, Debug)]
pub struct SddmmPanel<'a, T> {
    /// Where the nonzeros are.
    pub cell: Cell<'a>,
    /// Position in `out` (and `values`) of each visit's first dot, the others following; null for the cell's own order,
    /// which a cell with pairs must have.
    pub starts: *const usize,
    /// Factors of the dots, by position in `out`; null for none.
    pub values: *const T,
    /// The row block of C.
    pub c: *const T,
    /// Row stride of C.
    pub ldc: usize,
    /// The rows of B in the panel.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Rows of B in the panel.
    pub width: usize,
    /// Columns of B and C.
    pub n: usize,
    /// The dots.
    pub out: *mut T,
    /// Room for the packed panel: `width` rows of a tile.
    pub scratch: *mut T,
}

/// Runs the task.
///
/// # Safety
/// The cell's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the task's part of `out` or the scratch at the same time.
pub unsafe fn sddmm_panel<T: Scalar>(arch: Arch, task: SddmmPanel<'_, T>) {
    dispatch_compiled!(arch, Panel(task), Panel<'_, f32>, Panel<'_, f64>);
}

#[derive(Clone, Copy)]
struct Panel<'a, T>(SddmmPanel<'a, T>);

impl<T: Scalar> WithSimd for Panel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in tiles(self.0.n, T::lanes::<S>(), max_vectors::<S>()) {
            // SAFETY: the promise of `sddmm_panel`.
            unsafe { with_width!(tile, panel_tile::<S, T>(simd, &self.0, tile)) }
        }
    }
}

/// Visits ahead at which the lines of `out` are prefetched.
const AHEAD: usize = 4;

/// One tile of a panel.
///
/// # Safety
/// As [`sddmm_panel`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &SddmmPanel<'_, T>,
    tile: Tile,
) {
    let mask = T::first_lanes(simd, tile.rest);
    let output = Output::new::<S>(task.out, task.values, tile, task.n);
    let mut own = 0;
    // SAFETY: the promise of `sddmm_panel`; offsets advance over the cell's own.
    unsafe {
        let mut offsets = Offsets::new(task.cell.offsets.as_ptr());
        let b = task.b.add(tile.start);
        tile::pack::<S, T, NV, TAIL>(simd, mask, b, task.ldb, task.width, None, task.scratch);
        let row = |i: u32| task.c.wrapping_add(i as usize * task.ldc + tile.start);
        for (k, pair) in task.cell.pairs.iter().enumerate() {
            for i in task.cell.pairs.get(k + 1).unwrap_or(pair).rows {
                prefetch_row(row(i), NV * T::lanes::<S>() * size_of::<T>());
            }
            let mut c = [[T::splat(simd, T::ZERO); NV]; 2];
            for r in 0..2 {
                c[r] = tile::load::<S, T, NV, TAIL>(simd, mask, row(pair.rows[r]));
            }
            let nnz = pair.nnz() as usize;
            let outputs = [output.at(own), output.at(own + nnz)];
            dots_pair::<S, T, NV>(simd, &c, pair, &mut offsets, task.scratch, outputs.each_ref());
            own += 2 * nnz;
        }
        for (v, visit) in task.cell.visits.iter().enumerate() {
            let nnz = visit.nnz as usize;
            let start = if task.starts.is_null() {
                own
            } else {
                // Dots of neighbouring visits are far apart: their lines are asked for in time.
                let later = (v + AHEAD).min(task.cell.visits.len() - 1);
                prefetch_row(task.out.add(*task.starts.add(later)), nnz * size_of::<T>() + 63);
                *task.starts.add(v)
            };
            // The packed rows end in zeros, so that only the row of C needs the mask.
            let c = tile::load::<S, T, NV, TAIL>(simd, mask, row(visit.row));
            dots_packed::<S, T, NV>(simd, &c, nnz, &mut offsets, task.scratch, &output.at(start));
            own += nnz;
        }
    }
}
