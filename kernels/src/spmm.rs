//! SpMM: C = alpha A B + beta C, A sparse.
//!
//! ```text
//! direct                                    panel (one row block, one tile of B's columns)
//! for i in rows                             for each panel of B's rows
//!     c = 0                                     copy it, times alpha, into L1
//!     for j in columns of row i                 for each row i with nonzeros there
//!         c += a_ij B_j                             c = C_i
//!     C_i = alpha c + beta C_i                      for j in columns of row i in the panel: c += a_ij B_j
//!                                                   C_i = c
//! ```
//!
//! The row of C is in registers for the whole inner loop (Zubair and Bauinger 2023, their Figure 10). In the direct
//! path every nonzero reads a row of B from wherever it is; in the panel path the rows are in L1, at the price of one
//! load and store of C's row per panel.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::rows::{Gathered, Offsets, axpy_gathered, axpy_packed};
use crate::tile::{self, Tile, tiles, with_width};
use crate::{Arch, Scalar};

/// Rows of a CSR matrix times B, straight from CSR.
#[derive(Clone, Copy, Debug)]
pub struct SpmmRows<T> {
    /// CSR row pointers.
    pub row_ptr: *const usize,
    /// CSR column indices.
    pub columns: *const u32,
    /// CSR values.
    pub values: *const T,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: rows that begin before or end after are taken in part.
    pub nonzeros: [usize; 2],
    /// B.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Columns of B and C.
    pub n: usize,
    /// alpha.
    pub alpha: T,
    /// beta; with 0, C is not read.
    pub beta: T,
    /// C.
    pub c: *mut T,
    /// Row stride of C.
    pub ldc: usize,
    /// Where the first row goes instead of C (with beta 0), unless null.
    pub head: *mut T,
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub ahead: usize,
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every column is a row of B, B and C have the strides and sizes stated, and no one else
/// writes the rows or reads `head` at the same time.
pub unsafe fn spmm_rows<T: Scalar>(arch: Arch, task: SpmmRows<T>) {
    dispatch_compiled!(arch, Rows(task), Rows<f32>, Rows<f64>);
}

#[derive(Clone, Copy)]
struct Rows<T>(SpmmRows<T>);

impl<T: Scalar> WithSimd for Rows<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.0.n == 1 {
            // SAFETY: the promise of `spmm_rows`.
            return unsafe { spmv(&self.0) };
        }
        for tile in tiles(self.0.n, T::lanes::<S>(), 8) {
            // SAFETY: the promise of `spmm_rows`; the tile is inside the rows of B and C.
            unsafe { with_width!(tile, rows_tile::<S, T>(simd, &self.0, tile)) }
        }
    }
}

impl<T: Scalar> SpmmRows<T> {
    /// The part of row `i` to take, and where its result goes, with which beta.
    ///
    /// # Safety
    /// `i` is one of the task's rows.
    #[inline(always)]
    unsafe fn row(&self, i: usize) -> ([usize; 2], *mut T, T) {
        // SAFETY: the caller's promise.
        unsafe {
            let start = (*self.row_ptr.add(i)).max(self.nonzeros[0]);
            let end = (*self.row_ptr.add(i + 1)).min(self.nonzeros[1]);
            if i == self.rows[0] && !self.head.is_null() {
                ([start, end], self.head, T::ZERO)
            } else {
                ([start, end], self.c.add(i * self.ldc), self.beta)
            }
        }
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`spmm_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(simd: S, task: &SpmmRows<T>, tile: Tile) {
    let mask = T::first_lanes(simd, tile.rest);
    let alpha = T::splat(simd, task.alpha);
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        for i in task.rows[0]..task.rows[1] {
            let ([start, end], c, beta) = task.row(i);
            let rows = Gathered {
                columns: task.columns.add(start),
                base: task.b.add(tile.start),
                stride: task.ldb,
                last: task.nonzeros[1] - 1 - start.min(task.nonzeros[1] - 1),
                ahead: task.ahead,
            };
            let zero = [T::splat(simd, T::ZERO); NV];
            let sum = axpy_gathered::<S, T, NV, TAIL>(
                simd,
                mask,
                zero,
                end.saturating_sub(start),
                task.values.add(start),
                &rows,
            );
            let c = c.add(tile.start);
            let mut out = zero;
            if beta != T::ZERO {
                let old = tile::load::<S, T, NV, TAIL>(simd, mask, c);
                for j in 0..NV {
                    out[j] = T::vmul(simd, T::splat(simd, beta), old[j]);
                }
            }
            for j in 0..NV {
                out[j] = T::vmul_add(simd, alpha, sum[j], out[j]);
            }
            tile::store::<S, T, NV, TAIL>(simd, mask, c, out);
        }
    }
}

/// N = 1: eight partial sums in turn, since a sum of its own is one chain of dependent additions.
///
/// # Safety
/// As [`spmm_rows`].
#[inline(always)]
unsafe fn spmv<T: Scalar>(task: &SpmmRows<T>) {
    const SUMS: usize = 8;
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        for i in task.rows[0]..task.rows[1] {
            let ([start, end], c, beta) = task.row(i);
            let mut sums = [T::ZERO; SUMS];
            let mut p = start;
            while p + SUMS <= end {
                for (u, sum) in sums.iter_mut().enumerate() {
                    *sum += spmv_term(task, p + u);
                }
                p += SUMS;
            }
            for (u, p) in (p..end).enumerate() {
                sums[u] += spmv_term(task, p);
            }
            let [a, b, c0, d, e, f, g, h] = sums;
            let sum = task.alpha * (((a + b) + (c0 + d)) + ((e + f) + (g + h)));
            *c = if beta == T::ZERO { sum } else { sum + beta * *c };
        }
    }
}

/// a_ij b_j of nonzero `p`.
///
/// # Safety
/// As [`spmm_rows`]; `p` is one of the task's nonzeros.
#[inline(always)]
unsafe fn spmv_term<T: Scalar>(task: &SpmmRows<T>, p: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { *task.values.add(p) * *task.b.add(*task.columns.add(p) as usize * task.ldb) }
}

/// C = beta C for `rows` rows of `n` elements; with beta 0, C is not read.
///
/// # Safety
/// `c` is valid for reads and writes of the rows.
pub unsafe fn scale_rows<T: Scalar>(arch: Arch, beta: T, rows: usize, n: usize, c: *mut T, ldc: usize) {
    dispatch_compiled!(arch, Scale { beta, rows, n, c, ldc }, Scale<f32>, Scale<f64>);
}

#[derive(Clone, Copy)]
struct Scale<T> {
    beta: T,
    rows: usize,
    n: usize,
    c: *mut T,
    ldc: usize,
}

impl<T: Scalar> WithSimd for Scale<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for i in 0..self.rows {
            // SAFETY: the promise of `scale_rows`; nothing else refers to the row.
            let row = unsafe { std::slice::from_raw_parts_mut(self.c.add(i * self.ldc), self.n) };
            if self.beta == T::ZERO {
                row.fill(T::ZERO);
            } else if self.beta != T::ONE {
                for x in row {
                    *x = self.beta * *x;
                }
            }
        }
    }
}

/// The nonzeros of a row inside a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Row, counted from the row block's first.
    pub row: u32,
    /// Number of nonzeros.
    pub nnz: u32,
}

/// The nonzeros of one row block in one panel, in the order in which they are visited.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// The rows.
    pub visits: &'a [Visit],
    /// Column in the panel of each nonzero; each visit's are padded to whole words of 8, and two words follow the last.
    pub offsets: &'a [u8],
}

/// One row block times one panel of B, packed: C_i += sum_j w_j B_j.
#[derive(Clone, Copy, Debug)]
pub struct SpmmPanel<'a, T> {
    /// Where the nonzeros are.
    pub cell: Cell<'a>,
    /// The weight of each nonzero in the order of the cell.
    pub weights: *const T,
    /// The rows of B in the panel, from the first of the tile's columns.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Rows of B in the panel.
    pub width: usize,
    /// Columns of B and C to compute.
    pub n: usize,
    /// Factor of B.
    pub alpha: T,
    /// The row block of C.
    pub c: *mut T,
    /// Row stride of C.
    pub ldc: usize,
    /// Factor of each row of C before the addition, by row of the block; null for 1.
    pub rescale: *const T,
    /// Vectors of a tile: columns of B and C that are computed in one pass over the nonzeros.
    pub vectors: usize,
    /// Room for the packed panel: `width` rows of `vectors` registers.
    pub scratch: *mut T,
}

/// Runs the task.
///
/// # Safety
/// The cell's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the rows of C or the scratch at the same time.
pub unsafe fn spmm_panel<T: Scalar>(arch: Arch, task: SpmmPanel<'_, T>) {
    dispatch_compiled!(arch, Panel(task), Panel<'_, f32>, Panel<'_, f64>);
}

#[derive(Clone, Copy)]
struct Panel<'a, T>(SpmmPanel<'a, T>);

impl<T: Scalar> WithSimd for Panel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in tiles(self.0.n, T::lanes::<S>(), self.0.vectors) {
            // SAFETY: the promise of `spmm_panel`.
            unsafe { with_width!(tile, panel_tile::<S, T>(simd, &self.0, tile)) }
        }
    }
}

/// One tile of a panel.
///
/// # Safety
/// As [`spmm_panel`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &SpmmPanel<'_, T>,
    tile: Tile,
) {
    let mask = T::first_lanes(simd, tile.rest);
    let mut weights = task.weights;
    // SAFETY: the promise of `spmm_panel`; weights and offsets advance over the cell's own.
    unsafe {
        let mut offsets = Offsets::new(task.cell.offsets.as_ptr());
        tile::pack::<S, T, NV, TAIL>(
            simd,
            mask,
            task.b.add(tile.start),
            task.ldb,
            task.width,
            Some(task.alpha),
            task.scratch,
        );
        for visit in task.cell.visits {
            let nnz = visit.nnz as usize;
            let c = task.c.add(visit.row as usize * task.ldc + tile.start);
            let mut sum = tile::load::<S, T, NV, TAIL>(simd, mask, c);
            if !task.rescale.is_null() {
                let factor = T::splat(simd, *task.rescale.add(visit.row as usize));
                for x in &mut sum {
                    *x = T::vmul(simd, factor, *x);
                }
            }
            let sum = axpy_packed::<S, T, NV>(simd, sum, nnz, weights, &mut offsets, task.scratch);
            tile::store::<S, T, NV, TAIL>(simd, mask, c, sum);
            weights = weights.add(nnz);
        }
    }
}
