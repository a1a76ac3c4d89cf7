//! SpMM: C = alpha A B + beta C, A sparse.
//!
//! ```text
//! direct (in the order of `walk`)           panel (one row block, one tile of B's columns)
//! for i in rows                             for each panel of B's rows
//!     c = 0                                     copy it, times alpha, into L1
//!     for j in columns of row i                 for each row i, or pair of rows, with nonzeros there
//!         c += a_ij B_j                             c = C_i
//!     C_i = alpha c + beta C_i                      for j in columns of row i in the panel: c += a_ij B_j
//!                                                   C_i = c
//! ```
//!
//! The row of C is in registers for the whole inner loop (Zubair and Bauinger 2023, their Figure 10). In the direct
//! path every nonzero reads a row of B from wherever it is; in the panel path the rows are in L1, at the price of one
//! load and store of C's row per panel. There the loads are the bottleneck; of two rows taken together, a column that both
//! have is loaded once (75 instead of 66 % of peak for 4096 x 4096, 70 % zeros, N = 128).
//!
//! Where the operands outgrow the caches, the direct path writes C past them: an ordinary store would first read the
//! line that it is about to overwrite, and would drive rows of B out.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_stored;
use crate::block::Block;
use crate::by_tile::{ByTile, by_tile};
use crate::convert::{WidenRows, widen_rows};
use crate::panel::{PanelTask, RowBlockSums};
use crate::rows::{Gathered, Prefetch, axpy_reordered};
use crate::semiring::PlusTimes;
use crate::spmv::spmv;
use crate::stored::{Mask, Vector};
use crate::tile::{self, Tile, tiles};
use crate::walk::{self, Part, Walk, prefetch_nonzeros, prefetches_nonzeros};
use crate::{Arch, LINE, Number, RowPtr, Stored, prefetch_row, stream_fence};

/// Rows of a CSR matrix times B, straight from CSR.
#[derive(Clone, Copy, Debug)]
pub struct SpmmRows<D: Stored> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// CSR values, of which the task's are read.
    pub values: *const D::Scalar,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: the first row may begin before and the last one end after; those between have all of theirs here.
    pub nonzeros: [usize; 2],
    /// B.
    pub b: *const D,
    /// Row stride of B.
    pub ldb: usize,
    /// Columns of B and C.
    pub n: usize,
    /// alpha.
    pub alpha: D::Scalar,
    /// beta; with 0, C is not read.
    pub beta: D::Scalar,
    /// C.
    pub c: *mut D,
    /// Row stride of C.
    pub ldc: usize,
    /// Where the first row goes instead of C (with beta 0), unless null; likewise the last one, if it is another, where elements are
    /// narrow: the parts of a row are rounded once, together.
    pub carry_out: [*mut D::Scalar; 2],
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub prefetch_distance: usize,
    /// Columns of a panel that a block of rows shares, and all columns. Narrow elements have all of them in one panel: a row that
    /// came in parts would be rounded at each.
    pub panel: [usize; 2],
    /// Whether rows of C bypass the caches, where they are written in one go.
    pub stream: bool,
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every column is a row of B, B and C have the strides and sizes stated, and no one else
/// writes the rows or reads `carry_out` at the same time.
pub unsafe fn spmm_rows<D: Stored>(arch: Arch, task: SpmmRows<D>) {
    dispatch_stored!(arch, task, SpmmRows, |arch, task| task.dispatch(arch));
}

impl<D: Stored> SpmmRows<D> {
    /// To the code for N = 1, or for each tile's width.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        if self.n == 1 {
            return arch.dispatch(Column(self));
        }
        // SAFETY: the promise of `spmm_rows`.
        unsafe { by_tile(arch, self, self.n, 8) };
        if self.stream {
            stream_fence();
        }
    }
}

/// N = 1.
struct Column<D: Stored>(SpmmRows<D>);

impl<D: Stored> WithSimd for Column<D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        // SAFETY: the promise of `spmm_rows`.
        unsafe { spmv(&self.0) }
    }
}

impl<D: Stored> SpmmRows<D> {
    /// Its parts of rows, in order.
    ///
    /// # Safety
    /// As [`spmm_rows`].
    #[inline(always)]
    unsafe fn walk(&self) -> Walk<D::Scalar> {
        // SAFETY: the caller's promise.
        unsafe { Walk::new(self.row_ptr, self.columns, self.values, self.rows, self.nonzeros, self.panel) }
    }

    /// The sum over the nonzeros from `start` to before `end`, in the order of [`tile::load_reordered`].
    ///
    /// # Safety
    /// As [`spmm_rows`]; the nonzeros are the task's, and the tile, whose mask it is, is inside the rows of B.
    #[inline(always)]
    unsafe fn sum<S: Simd, const NV: usize, const TAIL: bool>(
        &self,
        simd: S,
        mask: Mask<D, S>,
        tile: Tile,
        [start, end]: [usize; 2],
    ) -> [Vector<D, S>; NV] {
        let zero = [D::Scalar::splat(simd, D::Scalar::ZERO); NV];
        // SAFETY: the caller's promise.
        unsafe {
            let rows = Gathered {
                columns: self.columns.add(start),
                base: self.b.add(tile.start),
                stride: self.ldb,
                last: self.nonzeros[1].saturating_sub(1 + start),
                prefetch_distance: self.prefetch_distance,
                prefetch: Prefetch::at(self.prefetch_distance),
            };
            axpy_reordered::<S, D, NV, TAIL>(simd, mask, zero, end - start, self.values.wrapping_add(start), &rows)
        }
    }

    /// Where the result of a part goes instead of C; null for C.
    #[inline(always)]
    fn carries(&self, part: &Part) -> *mut D::Scalar {
        if part.row == self.rows[0] && !self.carry_out[0].is_null() {
            self.carry_out[0]
        } else if D::NARROW && part.row + 1 == self.rows[1] {
            self.carry_out[1]
        } else {
            std::ptr::null_mut()
        }
    }

    /// Where the result of a part goes, as it is computed or, with null there, as C stores it; and with which beta: the parts of a
    /// row add up.
    #[inline(always)]
    pub(crate) fn target(&self, part: &Part) -> (*mut D::Scalar, *mut D, D::Scalar) {
        let carries = self.carries(part);
        let beta = if !part.first {
            D::Scalar::ONE
        } else if carries.is_null() {
            self.beta
        } else {
            D::Scalar::ZERO
        };
        let c = self.c.wrapping_add(part.row * self.ldc);
        match D::NARROW {
            true => (carries, c, beta),
            // One place, and one copy of the code that stores there.
            false => (std::ptr::null_mut(), if carries.is_null() { c } else { carries.cast() }, beta),
        }
    }
}

impl<D: Stored> ByTile for SpmmRows<D> {
    type Stored = D;

    #[inline(always)]
    unsafe fn tile<S: Simd, const NV: usize, const TAIL: bool>(&self, simd: S, tile: Tile) {
        // SAFETY: the caller's promise.
        unsafe { rows_tile::<S, D, NV, TAIL>(simd, self, tile) }
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`spmm_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(simd: S, task: &SpmmRows<D>, tile: Tile) {
    let mask = tile.mask::<S, D::Scalar>(simd);
    // Whether alpha times nothing is nothing.
    let zeros = task.beta == D::Scalar::ZERO && task.alpha * D::Scalar::ZERO == D::Scalar::ZERO;
    let whole = tile.rest == 0;
    let own_loop = task.beta == D::Scalar::ZERO && task.panel[0] >= task.panel[1];
    let inner = if own_loop { walk::inner_rows(task.rows) } else { [task.rows[1]; 2] };
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        inner_rows::<S, D, NV, TAIL>(simd, task, tile, zeros, inner);
        let mut walk = task.walk().gathering(task.prefetch_distance, NV);
        while let Some(part) = walk.next() {
            if part.row + 1 == inner[0] {
                walk.skip_to(inner[1]);
            }
            let c = task.c.wrapping_add(part.row * task.ldc + tile.start);
            if part.start == part.end {
                let is_own = task.carries(&part).is_null();
                if zeros && part.first && part.last && is_own {
                    tile::store_zeros::<S, D, NV>(simd, c, tile.rest, task.stream);
                    continue;
                }
                // Nothing is added: of a matrix whose nonzeros are in few rows, most of C is not touched.
                if !part.first || task.beta == D::Scalar::ONE && is_own {
                    continue;
                }
            }
            let sum = task.sum::<S, NV, TAIL>(simd, mask, tile, [part.start, part.end]);
            let (carries, c, beta) = task.target(&part);
            let (c, factors) = (c.wrapping_add(tile.start), [task.alpha, beta]);
            if !carries.is_null() {
                let sum = tile::in_order::<S, D, NV>(simd, sum);
                finish::<S, D::Scalar, NV, TAIL>(simd, mask, sum, factors, carries.add(tile.start), [false, false]);
                continue;
            }
            if task.panel[0] < task.panel[1] {
                prefetch_row(c.wrapping_add(task.ldc.wrapping_mul(4)), NV * D::Scalar::lanes::<S>() * size_of::<D>());
            }
            let stream = task.stream && part.first && part.last && beta == D::Scalar::ZERO && whole;
            finish::<S, D, NV, TAIL>(simd, mask, sum, factors, c, [whole, stream]);
        }
    }
}

/// One tile of the [`walk::inner_rows`], without beta C. With short rows, what is decided for each of them costs
/// as much as its products.
///
/// # Safety
/// As [`spmm_rows`]; the rows `rows[0]..rows[1]` are among them.
#[inline(always)]
unsafe fn inner_rows<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &SpmmRows<D>,
    tile: Tile,
    zeros: bool,
    rows: [usize; 2],
) {
    if rows[0] >= rows[1] {
        return;
    }
    let mask = tile.mask::<S, D::Scalar>(simd);
    let ahead = prefetches_nonzeros(task.prefetch_distance, NV);
    let whole = tile.rest == 0;
    let mut c = task.c.wrapping_add(rows[0] * task.ldc + tile.start);
    // SAFETY: the promise of `spmm_rows`: the rows between its first and its last are its own, with all their nonzeros.
    unsafe {
        let mut next = task.row_ptr.at(rows[0]);
        for row in rows[0]..rows[1] {
            let start = next;
            next = task.row_ptr.at(row + 1);
            if ahead {
                prefetch_nonzeros(task.columns.wrapping_add(next), task.values.wrapping_add(next));
            }
            if start == next && zeros {
                tile::store_zeros::<S, D, NV>(simd, c, tile.rest, task.stream);
            } else {
                let sum = task.sum::<S, NV, TAIL>(simd, mask, tile, [start, next]);
                let factors = [task.alpha, D::Scalar::ZERO];
                finish::<S, D, NV, TAIL>(simd, mask, sum, factors, c, [whole, whole && task.stream]);
            }
            c = c.wrapping_add(task.ldc);
        }
    }
}

/// out = alpha sum + beta out, `sum` in the order of [`tile::load_reordered`]; with beta 0, `out` is not read. Whether the tile is `whole`
/// and is to `stream`.
///
/// # Safety
/// `out` is valid for reads and writes of the tile.
#[inline(always)]
unsafe fn finish<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    sum: [Vector<D, S>; NV],
    [alpha, beta]: [D::Scalar; 2],
    out: *mut D,
    [whole, stream]: [bool; 2],
) {
    let mut tile = sum;
    for x in &mut tile {
        *x = D::Scalar::vmul(simd, D::Scalar::splat(simd, alpha), *x);
    }
    if D::reorders::<S>() && NV.is_multiple_of(2) && whole && beta == D::Scalar::ZERO {
        // SAFETY: the caller's promise.
        return unsafe {
            tile::store_reordered::<S, D, NV>(simd, out, tile, stream && out.addr().is_multiple_of(LINE))
        };
    }
    let mut tile = tile::in_order::<S, D, NV>(simd, tile);
    // SAFETY: the caller's promise.
    unsafe {
        if beta != D::Scalar::ZERO {
            let beta = D::Scalar::splat(simd, beta);
            let old = tile::load::<S, D, NV, TAIL>(simd, mask, out);
            for j in 0..NV {
                tile[j] = D::Scalar::vmul_add(simd, beta, old[j], tile[j]);
            }
        }
        tile::store_or_stream::<S, D, NV, TAIL>(simd, mask, out, tile, stream);
    }
}

/// C = beta C for `rows` rows of `n` elements; with beta 0, C is not read.
///
/// # Safety
/// `c` is valid for writes of the rows and, unless beta is 0, for reads.
pub unsafe fn scale_rows<D: Stored>(arch: Arch, beta: D::Scalar, rows: usize, n: usize, c: *mut D, ldc: usize) {
    dispatch_stored!(arch, Scale { beta, rows, n, c, ldc }, Scale);
}

#[derive(Clone, Copy)]
struct Scale<D: Stored> {
    beta: D::Scalar,
    rows: usize,
    n: usize,
    c: *mut D,
    ldc: usize,
}

impl<D: Stored> WithSimd for Scale<D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.beta == D::Scalar::ZERO && self.ldc == self.n {
            // SAFETY: the promise of `scale_rows`: the rows follow each other, and zero bytes are zeros.
            return unsafe { self.c.write_bytes(0, self.rows * self.n) };
        }
        for i in 0..self.rows {
            let row = self.c.wrapping_add(i * self.ldc);
            // SAFETY: the promise of `scale_rows`; nothing else refers to the row, and zero bytes are zeros.
            unsafe {
                if self.beta == D::Scalar::ZERO {
                    row.write_bytes(0, self.n);
                } else if self.beta != D::Scalar::ONE {
                    for x in std::slice::from_raw_parts_mut(row, self.n) {
                        *x = D::narrow(self.beta * x.widen());
                    }
                }
            }
        }
    }
}

/// One row block times one panel of B, packed: C_i += sum_j w_j B_j, or C_i begins with the sum.
#[derive(Clone, Copy, Debug)]
pub struct SpmmPanel<'a, D: Stored> {
    /// Where the nonzeros are.
    pub block: Block<'a>,
    /// The weight of each nonzero in the order of the block.
    pub weights: *const D::Scalar,
    /// The rows of B in the panel, from the first of the tile's columns; null when the scratch has them already, times alpha.
    pub b: *const D,
    /// Row stride of B.
    pub ldb: usize,
    /// Rows of B in the panel.
    pub width: usize,
    /// Columns of B and C to compute.
    pub n: usize,
    /// Factor of B.
    pub alpha: D::Scalar,
    /// The row block of C.
    pub c: RowBlockSums<D>,
    /// Vectors of a tile: columns of B and C that are computed in one pass over the nonzeros.
    pub vectors: usize,
    /// Room for the packed panel: `width` rows of `vectors` registers.
    pub scratch: *mut D::Scalar,
}

/// Runs the task.
///
/// # Safety
/// The block's rows are rows of C, each once, and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the rows of C or the scratch at the same time.
pub unsafe fn spmm_panel<D: Stored>(arch: Arch, task: SpmmPanel<'_, D>) {
    let SpmmPanel { block, weights, b, ldb, width, n, alpha, c, vectors, scratch } = task;
    let run = |b: *const D::Scalar, n, c: RowBlockSums<D>, vectors| {
        let alpha = Some(alpha);
        let task = PanelTask { semiring: PlusTimes, block, weights, b, ldb, width, n, alpha, c, vectors, scratch };
        // SAFETY: the caller's promise.
        unsafe { run_sums(arch, task) };
    };
    if !D::NARROW {
        return run(b.cast(), n, c, vectors);
    }
    let lanes = arch.lanes::<D::Scalar>();
    for Tile { start, vectors, .. } in tiles(n, lanes, vectors) {
        let (row, columns) = (vectors * lanes, (vectors * lanes).min(n - start));
        let from = b.wrapping_add(start);
        let rows = WidenRows { from, stride: ldb, rows: width, n: columns, factor: alpha, to: scratch, to_stride: row };
        // SAFETY: the caller's promise.
        unsafe { widen_rows(arch, rows) };
        run(std::ptr::null(), columns, c.at_column(start), vectors);
    }
}

/// Runs the task, whose operands are as they are computed with.
///
/// # Safety
/// As [`spmm_panel`].
unsafe fn run_sums<D: Stored>(arch: Arch, task: Sums<'_, D>) {
    dispatch_stored!(arch, task, Sums, |arch, task| task.dispatch(arch));
}

type Sums<'a, D> = PanelTask<'a, D, PlusTimes>;

impl<D: Stored> Sums<'_, D> {
    /// To the code for each tile's width.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        // SAFETY: the promise of `spmm_panel`.
        unsafe { self.run::<true>(arch) }
    }
}
