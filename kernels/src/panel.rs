//! One row block times one panel of B, packed, over a semiring: C_i = add over j of multiply(w_j, B_j), and C_i.
//!
//! The panel path of SpMM and of its reductions. Only copying the panel and the rows of C know tails: what is packed has whole
//! registers.

use pulp::{Simd, WithSimd};

use crate::block::{Block, Offsets, Pair, RowSegment};
use crate::rows::Packed;
use crate::semiring::Semiring;
use crate::spread::Spread;
use crate::stored::Vector;
use crate::tile::{Tile, TileRows, tiles, with_elements, with_vectors};
use crate::{Arch, Element, Number, prefetch_row};

/// Where the sums of a row block are while panel after panel adds to them, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct RowBlockSums<D: Element> {
    /// The sums of the first row.
    pub sums: *mut D::Number,
    /// Their row stride; where elements are narrow, a multiple of the registers' lanes: the sums have whole registers there.
    pub stride: usize,
    /// Whether rows without nonzeros in the panels before begin with this one, and what is there is not read.
    pub begin: bool,
    /// Where the block's rows go instead, rounded, if elements are narrow and no other panel follows; else null.
    pub rounded: *mut D,
    /// The row stride there.
    pub rounded_stride: usize,
}

impl<D: Element> RowBlockSums<D> {
    /// Sums that have begun and stay where they are.
    pub fn to_add_to(sums: *mut D::Number, stride: usize) -> Self {
        Self { sums, stride, begin: false, rounded: std::ptr::null_mut(), rounded_stride: 0 }
    }

    /// Of the columns from `column` on.
    #[inline(always)]
    pub(crate) fn at_column(self, column: usize) -> Self {
        let rounded = if self.rounded.is_null() { self.rounded } else { self.rounded.wrapping_add(column) };
        Self { sums: self.sums.wrapping_add(column), rounded, ..self }
    }
}

/// The row block and the panel; its fields are those of [`SpmmPanel`](crate::SpmmPanel) and [`ReducePanel`](crate::ReducePanel).
#[derive(Clone, Copy)]
pub(crate) struct PanelTask<'a, D: Element, R> {
    pub semiring: R,
    pub block: Block<'a>,
    pub weights: *const D::Number,
    /// Null when the scratch has them already.
    pub b: *const D::Number,
    pub ldb: usize,
    pub width: usize,
    pub n: usize,
    pub alpha: Option<D::Number>,
    pub c: RowBlockSums<D>,
    pub vectors: usize,
    pub scratch: *mut D::Number,
}

impl<D: Element, R: Semiring<D::Number>> PanelTask<'_, D, R> {
    /// Runs the task, whose rows may `BEGIN`: the code for each tile's width.
    ///
    /// # Safety
    /// As [`spmm_panel`](crate::spmm_panel).
    #[inline(always)]
    pub unsafe fn run<const BEGIN: bool>(&self, arch: Arch) {
        for tile in tiles(self.n, arch.lanes::<D::Number>(), self.vectors) {
            with_vectors!(tile, run_tile::<D, R; BEGIN>(arch, self, tile));
        }
    }
}

/// Row segments ahead at which the row of C, which is in L2 or L3, is prefetched (4096 x 4096, one thread: 70 % zeros,
/// N = 32, 55 % of peak instead of 49; 90 %, N = 128, 58 instead of 53).
const PREFETCH_DISTANCE: usize = 2;

/// One tile of a panel.
struct PanelTile<'a, D: Element, R, const BEGIN: bool, const NV: usize> {
    task: &'a PanelTask<'a, D, R>,
    tile: Tile,
}

/// Runs the tile.
#[inline(always)]
fn run_tile<D: Element, R: Semiring<D::Number>, const BEGIN: bool, const NV: usize>(
    arch: Arch,
    task: &PanelTask<'_, D, R>,
    tile: Tile,
) {
    arch.dispatch_vectors(PanelTile::<D, R, BEGIN, NV> { task, tile }, |simd| {
        run_elements::<D, R, BEGIN>(simd, task, tile)
    });
}

/// Runs the tile where vectors are single elements.
#[inline(never)]
fn run_elements<D: Element, R: Semiring<D::Number>, const BEGIN: bool>(
    simd: pulp::Scalar,
    task: &PanelTask<'_, D, R>,
    tile: Tile,
) {
    // SAFETY: the promise of `PanelTask::run`.
    unsafe { with_elements!(tile, panel_tile::<pulp::Scalar, D, R; BEGIN>(simd, task, tile)) }
}

impl<D: Element, R: Semiring<D::Number>, const BEGIN: bool, const NV: usize> WithSimd
    for PanelTile<'_, D, R, BEGIN, NV>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `PanelTask::run`.
        unsafe { panel_tile::<S, D, R, BEGIN, NV>(simd, self.task, self.tile) }
    }
}

/// One tile of a panel.
///
/// # Safety
/// As [`PanelTask::run`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, D: Element, R: Semiring<D::Number>, const BEGIN: bool, const NV: usize>(
    simd: S,
    task: &PanelTask<'_, D, R>,
    tile: Tile,
) {
    let rows = TileRows::<S, D::Number, NV>::new(simd, tile);
    // Sums of narrow rows are in a buffer.
    let sums = if D::NARROW { TileRows::whole(simd, tile) } else { rows };
    let (c, semiring) = (task.c.at_column(tile.start), task.semiring);
    let row_block = BlockRows::<S, D, R, NV> { simd, semiring, rows, sums, c };
    let packed = Packed::<S, D::Number, R, NV> { simd, semiring, rows: task.scratch };
    let mut weights = task.weights;
    let Block { pairs, segments, .. } = task.block;
    let begins = if BEGIN && task.c.begin { task.block.begins } else { [0; 2] };
    // SAFETY: the promise of `PanelTask::run`; weights and offsets advance over the block's own.
    unsafe {
        if !task.b.is_null() {
            rows.pack(task.b.add(tile.start), task.ldb, task.width, task.alpha, task.scratch);
        }
        let mut offsets = Offsets::new(task.block.offsets.as_ptr());
        let (first, others) = pairs.split_at(begins[0].min(pairs.len()));
        weights = row_block.pairs::<true>(&packed, first, weights, &mut offsets);
        weights = row_block.pairs::<false>(&packed, others, weights, &mut offsets);
        let spread = Spread::<S, D::Number>::new(simd);
        let (first, others) = segments.split_at(begins[1].min(segments.len()));
        weights = row_block.segments::<true>(&packed, &spread, first, weights, &mut offsets);
        row_block.segments::<false>(&packed, &spread, others, weights, &mut offsets);
    }
}

/// The rows of a block of C in one tile. By value, so that the loops do not look them up in the task at every row
/// segment: loads that those of B would wait for.
#[derive(Clone, Copy)]
struct BlockRows<S: Simd, D: Element, R, const NV: usize> {
    simd: S,
    semiring: R,
    rows: TileRows<S, D::Number, NV>,
    sums: TileRows<S, D::Number, NV>,
    c: RowBlockSums<D>,
}

impl<S: Simd, D: Element, R: Semiring<D::Number>, const NV: usize> BlockRows<S, D, R, NV> {
    /// Adds the panel to pairs of rows, whose sums `BEGIN` or go on, and returns the weights that follow.
    ///
    /// # Safety
    /// As [`PanelTask::run`]; they are the block's next ones.
    #[inline(always)]
    unsafe fn pairs<const BEGIN: bool>(
        &self,
        packed: &Packed<S, D::Number, R, NV>,
        pairs: &[Pair],
        mut weights: *const D::Number,
        offsets: &mut Offsets,
    ) -> *const D::Number {
        for (k, pair) in pairs.iter().enumerate() {
            // The next pair's rows of C, which are in L2: 2 % faster.
            for row in pairs.get(k + 1).unwrap_or(pair).rows {
                self.prefetch(row);
            }
            let [i, j] = pair.rows;
            // SAFETY: the caller's promise.
            unsafe {
                let sums = [self.load::<BEGIN>(i), self.load::<BEGIN>(j)];
                let [x, y] = packed.axpy_pair(sums, pair, weights, offsets);
                self.store(i, x);
                self.store(j, y);
                weights = weights.add(2 * pair.nnz() as usize);
            }
        }
        weights
    }

    /// Likewise to rows alone.
    ///
    /// # Safety
    /// As [`BlockRows::pairs`].
    #[inline(always)]
    unsafe fn segments<const BEGIN: bool>(
        &self,
        packed: &Packed<S, D::Number, R, NV>,
        spread: &Spread<S, D::Number>,
        segments: &[RowSegment],
        mut weights: *const D::Number,
        offsets: &mut Offsets,
    ) -> *const D::Number {
        for (v, segment) in segments.iter().enumerate() {
            self.prefetch(segments[(v + PREFETCH_DISTANCE).min(segments.len() - 1)].row);
            let nnz = segment.nnz as usize;
            // SAFETY: the caller's promise.
            unsafe {
                let c = self.load::<BEGIN>(segment.row);
                let sum = packed.axpy(spread, c, nnz, weights, offsets);
                self.store(segment.row, sum);
                weights = weights.add(nnz);
            }
        }
        weights
    }

    #[inline(always)]
    fn at(&self, row: u32) -> *mut D::Number {
        self.c.sums.wrapping_add(row as usize * self.c.stride)
    }

    #[inline(always)]
    fn prefetch(&self, row: u32) {
        prefetch_row(self.at(row), TileRows::<S, D::Number, NV>::BYTES);
    }

    /// Row `row`; of no terms if its sums `BEGIN`.
    ///
    /// # Safety
    /// As [`PanelTask::run`]; the block has the row.
    #[inline(always)]
    unsafe fn load<const BEGIN: bool>(&self, row: u32) -> [Vector<D, S>; NV] {
        if BEGIN {
            return [D::Number::splat(self.simd, self.semiring.zero()); NV];
        }
        // SAFETY: the caller's promise.
        unsafe { self.sums.load(self.at(row)) }
    }

    /// Stores row `row`, rounded if it ends here.
    ///
    /// # Safety
    /// As [`BlockRows::load`].
    #[inline(always)]
    unsafe fn store(&self, row: u32, c: [Vector<D, S>; NV]) {
        // SAFETY: the caller's promise.
        unsafe {
            if D::NARROW && !self.c.rounded.is_null() {
                self.rows.store(self.c.rounded.wrapping_add(row as usize * self.c.rounded_stride), c);
            } else {
                self.sums.store(self.at(row), c);
            }
        }
    }
}
