//! One row block times one panel of B, packed, over a semiring: C_i = add over j of multiply(w_j, B_j), and C_i.
//!
//! The panel path of SpMM and of its reductions. Only copying the panel and the rows of C know tails: what is packed has whole
//! registers.

use pulp::{Simd, WithSimd};

use crate::block::{Block, Offsets};
use crate::rows::Packed;
use crate::semiring::Semiring;
use crate::spread::Spread;
use crate::tile::{Tile, TileRows, tiles, with_elements, with_vectors};
use crate::{Arch, Number, prefetch_row};

/// The row block and the panel; its fields are those of [`SpmmPanel`](crate::SpmmPanel) and [`ReducePanel`](crate::ReducePanel).
#[derive(Clone, Copy)]
pub(crate) struct PanelTask<'a, T, R> {
    pub semiring: R,
    pub block: Block<'a>,
    pub weights: *const T,
    /// Null when the scratch has them already.
    pub b: *const T,
    pub ldb: usize,
    pub width: usize,
    pub n: usize,
    pub alpha: Option<T>,
    pub c: *mut T,
    pub ldc: usize,
    /// Null for 1.
    pub rescale: *const T,
    pub vectors: usize,
    pub scratch: *mut T,
}

impl<T: Number, R: Semiring<T>> PanelTask<'_, T, R> {
    /// Runs the task: the code for each tile's width.
    ///
    /// # Safety
    /// As [`spmm_panel`](crate::spmm_panel).
    #[inline(always)]
    pub unsafe fn run(&self, arch: Arch) {
        for tile in tiles(self.n, arch.lanes::<T>(), self.vectors) {
            with_vectors!(tile, run_tile::<T, R>(arch, self, tile));
        }
    }
}

/// Row segments ahead at which the row of C, which is in L2 or L3, is prefetched (4096 x 4096, one thread: 70 % zeros,
/// N = 32, 55 % of peak instead of 49; 90 %, N = 128, 58 instead of 53).
const PREFETCH_DISTANCE: usize = 2;

/// One tile of a panel.
struct PanelTile<'a, T, R, const NV: usize> {
    task: &'a PanelTask<'a, T, R>,
    tile: Tile,
}

/// Runs the tile.
#[inline(always)]
fn run_tile<T: Number, R: Semiring<T>, const NV: usize>(arch: Arch, task: &PanelTask<'_, T, R>, tile: Tile) {
    arch.dispatch_vectors(PanelTile::<T, R, NV> { task, tile }, |simd| run_elements(simd, task, tile));
}

/// Runs the tile where vectors are single elements.
#[inline(never)]
fn run_elements<T: Number, R: Semiring<T>>(simd: pulp::Scalar, task: &PanelTask<'_, T, R>, tile: Tile) {
    // SAFETY: the promise of `PanelTask::run`.
    unsafe { with_elements!(tile, panel_tile::<pulp::Scalar, T, R>(simd, task, tile)) }
}

impl<T: Number, R: Semiring<T>, const NV: usize> WithSimd for PanelTile<'_, T, R, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `PanelTask::run`.
        unsafe { panel_tile::<S, T, R, NV>(simd, self.task, self.tile) }
    }
}

/// One tile of a panel.
///
/// # Safety
/// As [`PanelTask::run`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, T: Number, R: Semiring<T>, const NV: usize>(
    simd: S,
    task: &PanelTask<'_, T, R>,
    tile: Tile,
) {
    let rows = TileRows::<S, T, NV>::new(simd, tile);
    let row_block =
        BlockRows::<S, T, NV> { simd, rows, c: task.c.wrapping_add(tile.start), ldc: task.ldc, rescale: task.rescale };
    let packed = Packed::<S, T, R, NV> { simd, semiring: task.semiring, rows: task.scratch };
    let mut weights = task.weights;
    // SAFETY: the promise of `PanelTask::run`; weights and offsets advance over the block's own.
    unsafe {
        if !task.b.is_null() {
            rows.pack(task.b.add(tile.start), task.ldb, task.width, task.alpha, task.scratch);
        }
        let mut offsets = Offsets::new(task.block.offsets.as_ptr());
        let pairs = task.block.pairs;
        for (k, pair) in pairs.iter().enumerate() {
            // The next pair's rows of C, which are in L2: 2 % faster.
            for row in pairs.get(k + 1).unwrap_or(pair).rows {
                row_block.prefetch(row);
            }
            let [i, j] = pair.rows;
            let sums = [row_block.load(i), row_block.load(j)];
            let [x, y] = packed.axpy_pair(sums, pair, weights, &mut offsets);
            row_block.store(i, x);
            row_block.store(j, y);
            weights = weights.add(2 * pair.nnz() as usize);
        }
        let spread = Spread::<S, T>::new(simd);
        let segments = task.block.segments;
        for (v, segment) in segments.iter().enumerate() {
            row_block.prefetch(segments[(v + PREFETCH_DISTANCE).min(segments.len() - 1)].row);
            let nnz = segment.nnz as usize;
            let c = row_block.load(segment.row);
            let sum = packed.axpy(&spread, c, nnz, weights, &mut offsets);
            row_block.store(segment.row, sum);
            weights = weights.add(nnz);
        }
    }
}

/// The rows of a block of C in one tile. By value, so that the loops do not look them up in the task at every row
/// segment: loads that those of B would wait for.
#[derive(Clone, Copy)]
struct BlockRows<S: Simd, T: Number, const NV: usize> {
    simd: S,
    rows: TileRows<S, T, NV>,
    c: *mut T,
    ldc: usize,
    rescale: *const T,
}

impl<S: Simd, T: Number, const NV: usize> BlockRows<S, T, NV> {
    #[inline(always)]
    fn at(&self, row: u32) -> *mut T {
        self.c.wrapping_add(row as usize * self.ldc)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        prefetch_row(self.at(row), TileRows::<S, T, NV>::BYTES);
    }

    /// Row `row`, rescaled.
    ///
    /// # Safety
    /// As [`PanelTask::run`]; the block has the row.
    #[inline(always)]
    unsafe fn load(&self, row: u32) -> [T::Vector<S>; NV] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut c = self.rows.load(self.at(row));
            if !self.rescale.is_null() {
                let factor = T::splat(self.simd, *self.rescale.add(row as usize));
                for x in &mut c {
                    *x = T::vmul(self.simd, factor, *x);
                }
            }
            c
        }
    }

    /// Stores row `row`.
    ///
    /// # Safety
    /// As [`PanelTask::run`]; the block has the row.
    #[inline(always)]
    unsafe fn store(&self, row: u32, c: [T::Vector<S>; NV]) {
        // SAFETY: the caller's promise.
        unsafe { self.rows.store(self.at(row), c) }
    }
}
