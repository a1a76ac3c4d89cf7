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

mod target;

use pulp::{Simd, WithSimd};

use self::target::{Output, Plain, Sums, Target};
use crate::arch::dispatch_stored;
use crate::block::{Block, Offsets};
use crate::by_tile::{ByTile, by_tile};
use crate::dot::{dots, dots_packed, dots_pair, emit_in_order};
use crate::prefetch::prefetch_row_l2;
use crate::rows::{Gathered, Prefetch};
use crate::tile::{self, Lines, Tile, TileRows, tiles, with_elements, with_vectors};
use crate::walk::{Part, Walk};
use crate::{Arch, LINE, Number, RowPtr, Stored, prefetch_l1, prefetch_row};

/// Dots for rows of a CSR pattern.
#[derive(Clone, Copy, Debug)]
pub struct SddmmRows<D: Stored> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// Factors of the dots, one per nonzero; null for none.
    pub values: *const D::Scalar,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: rows that begin before or end after are taken in part.
    pub nonzeros: [usize; 2],
    /// C.
    pub c: *const D,
    /// Row stride of C.
    pub ldc: usize,
    /// B.
    pub b: *const D,
    /// Row stride of B.
    pub ldb: usize,
    /// Columns of B and C.
    pub n: usize,
    /// One element per nonzero, of which the task's are written.
    pub out: *mut D::Scalar,
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub prefetch_distance: usize,
    /// Columns of a panel that a block of rows shares, and all columns.
    pub panel: [usize; 2],
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every row is a row of C and every column a row of B, the operands have the strides and
/// sizes stated, and no one else uses the task's part of `out` at the same time.
pub unsafe fn sddmm_rows<D: Stored>(arch: Arch, task: SddmmRows<D>) {
    dispatch_stored!(arch, task, SddmmRows, |arch, task| task.dispatch(arch));
}

/// Vectors of the widest tile of C, held in registers beside the sums of a group of dots and what becomes of them. Of 16 registers none is
/// left then, and two go by the stack. But each tile sums all dots across lanes and passes over the nonzeros: with eight vectors instead
/// of four SDDMM takes 0.85 and FusedMM 0.68 of the time (4096 x 4096, 70 % zeros, N = 128, AVX2 of a Zen 3).
pub(crate) const MOST_VECTORS: usize = 8;

impl<D: Stored> SddmmRows<D> {
    /// To the code for each tile's width.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        // SAFETY: the promise of `sddmm_rows`.
        unsafe { by_tile(arch, self, self.n, MOST_VECTORS) }
    }
}

impl<D: Stored> ByTile for SddmmRows<D> {
    type Stored = D;

    #[inline(always)]
    unsafe fn tile<S: Simd, const NV: usize, const TAIL: bool>(&self, simd: S, tile: Tile) {
        // SAFETY: the caller's promise.
        unsafe { rows_tile::<S, D, NV, TAIL>(simd, self, tile) }
    }
}

/// Rows ahead at which the row of C is prefetched: in L2, since in L1 the prefetches of B's rows leave no room for it, and from there in L1,
/// unless it is [`SHORT`]. Its loads come first after the end of the row before, a branch that is mispredicted, and nothing hides them.
/// Zen 4, N = 128: SDDMM of eight heads takes 0.83 to 0.89 of the time with both, of one 0.94 to 1.00.
const C_AHEAD: [usize; 2] = [8, 2];

/// Bytes of a row of C up to which the processor's reordering reaches the next one: 1.02 of the time with both on pubmed, N = 64.
const SHORT: usize = 256;

/// Prefetches `bytes` of the rows of C, or of a result, that come after the one at `c`.
#[inline(always)]
pub(crate) fn prefetch_later_rows<T>(c: *const T, ldc: usize, bytes: usize) {
    let row = |ahead: usize| c.wrapping_add(ahead.wrapping_mul(ldc));
    prefetch_row_l2(row(C_AHEAD[0]), bytes);
    if bytes > SHORT {
        prefetch_row(row(C_AHEAD[1]), bytes);
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`sddmm_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(simd: S, task: &SddmmRows<D>, tile: Tile) {
    let mask = tile.mask::<S, D::Scalar>(simd);
    let output = Output::new(task.out, task.values, task.out, tile, tile.is_last(D::Scalar::lanes::<S>(), task.n));
    // SAFETY: the promise of `sddmm_rows`.
    unsafe {
        let walk = Walk::new(task.row_ptr, task.columns, task.out, task.rows, task.nonzeros, task.panel);
        for Part { row: i, start, end, .. } in walk.gathering(task.prefetch_distance, NV) {
            if start == end {
                continue;
            }
            let rows = Gathered {
                columns: task.columns.add(start),
                base: task.b.add(tile.start),
                stride: task.ldb,
                last: task.nonzeros[1] - 1 - start,
                prefetch_distance: task.prefetch_distance,
                prefetch: Prefetch::at(task.prefetch_distance),
            };
            let c = task.c.wrapping_add(i * task.ldc + tile.start);
            if task.prefetch_distance > 0 {
                prefetch_later_rows(c, task.ldc, NV * D::Scalar::lanes::<S>() * size_of::<D>());
            }
            let c = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, c);
            dots::<S, D, NV, TAIL>(simd, mask, &c, end - start, &rows, &output.at(start, start));
        }
    }
}

/// Dots of a register where pairs of rows pay though their dots have to be put in CSR order: that takes two or three
/// instructions for eight (the plan says what it gains), and as much as is gained for 16.
pub const PAIRED_LANES: usize = 8;

/// Dots of one row block with one panel of B, packed unless it is already.
#[derive(Clone, Copy, Debug)]
pub struct SddmmPanel<'a, D: Stored> {
    /// Where the nonzeros are.
    pub block: Block<'a>,
    /// Position in `out` (and `values`) of each row segment's first dot, the others following, two to a pair; null for
    /// the block's own order, which a block with pairs must have where a register does not hold [`PAIRED_LANES`] dots.
    pub starts: *const usize,
    /// Where `starts` is not null, for each dot of a pair, by position in `out`, which one of its row segment's it is;
    /// valid for reads of [`PAIRED_LANES`] more.
    pub order: *const u8,
    /// Factors of the dots, by position in `out`; null for none, which they must be where `starts` is null.
    pub values: *const D::Scalar,
    /// The row block of C.
    pub c: *const D,
    /// Row stride of C.
    pub ldc: usize,
    /// The rows of B in the panel.
    pub b: *const D,
    /// Row stride of B.
    pub ldb: usize,
    /// Rows of B in the panel.
    pub width: usize,
    /// Columns of B and C.
    pub n: usize,
    /// The dots.
    pub out: *mut D::Scalar,
    /// Most vectors of a tile, at most 8. Narrow tiles leave room for wide panels.
    pub tile_vectors: usize,
    /// Room for the packed panel: `width` rows of a tile.
    pub scratch: *mut D::Scalar,
    /// Where `starts` is not null and the row is longer than a tile, room for the block's dots.
    pub sums: *mut D::Scalar,
}

/// Runs the task.
///
/// # Safety
/// The block's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the task's part of `out`, the scratch or the sums at the same time.
pub unsafe fn sddmm_panel<D: Stored>(arch: Arch, task: SddmmPanel<'_, D>) {
    dispatch_stored!(arch, task, SddmmPanel, |arch, task| task.dispatch(arch));
}

impl<D: Stored> SddmmPanel<'_, D> {
    /// To the code for each tile's width, order of the dots and kind of output: what is known before the loop is no
    /// load and no branch in it (scattered, 4096 x 4096, one thread, 90 % zeros, N = 32: 45 % of peak instead of 42).
    #[inline(always)]
    fn dispatch(&self, arch: Arch) {
        // Sums of tiles stay in the block's own order, near; only the last tile's go to their places, far apart.
        let sums = if self.starts.is_null() { self.out } else { self.sums };
        let lanes = arch.lanes::<D::Scalar>();
        for tile in tiles(self.n, lanes, self.tile_vectors) {
            let last = tile.is_last(lanes, self.n);
            let output = Output::new(self.out, self.values, sums, tile, last);
            match output.plain() {
                Some(plain) if !last || self.starts.is_null() => {
                    with_vectors!(tile, run_tile::<D, Plain<D::Scalar>; false>(arch, self, tile, plain));
                }
                None if !last || self.starts.is_null() => {
                    with_vectors!(tile, run_tile::<D, Sums<D::Scalar>; false>(arch, self, tile, Sums(sums)));
                }
                Some(plain) => with_vectors!(tile, run_tile::<D, Plain<D::Scalar>; true>(arch, self, tile, plain)),
                None => with_vectors!(tile, run_tile::<D, Output<D::Scalar>; true>(arch, self, tile, output)),
            }
        }
    }
}

/// One tile of a panel.
struct PanelTile<'a, D: Stored, O, const SCATTERED: bool, const NV: usize> {
    task: &'a SddmmPanel<'a, D>,
    tile: Tile,
    output: O,
}

/// Runs the tile.
#[inline(always)]
fn run_tile<D: Stored, O: Target<D::Scalar>, const SCATTERED: bool, const NV: usize>(
    arch: Arch,
    task: &SddmmPanel<'_, D>,
    tile: Tile,
    output: O,
) {
    arch.dispatch_vectors(PanelTile::<D, O, SCATTERED, NV> { task, tile, output }, |simd| {
        run_elements::<D, O, SCATTERED>(simd, task, tile, output);
    });
}

/// Runs the tile where vectors are single elements.
#[inline(never)]
fn run_elements<D: Stored, O: Target<D::Scalar>, const SCATTERED: bool>(
    simd: pulp::Scalar,
    task: &SddmmPanel<'_, D>,
    tile: Tile,
    output: O,
) {
    // SAFETY: the promise of `sddmm_panel`.
    unsafe { with_elements!(tile, panel_tile::<pulp::Scalar, D, O; SCATTERED>(simd, task, tile, output)) }
}

impl<D: Stored, O: Target<D::Scalar>, const SCATTERED: bool, const NV: usize> WithSimd
    for PanelTile<'_, D, O, SCATTERED, NV>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `sddmm_panel`.
        unsafe { panel_tile::<S, D, O, SCATTERED, NV>(simd, self.task, self.tile, self.output) }
    }
}

/// Dots of one row of a pair, at most, and what is stored beyond them.
const MOST_DOTS: usize = 256 + 16;

/// Row segments ahead at which the lines of `out` are prefetched. From 4 to 32 all are within the noise.
const PREFETCH_DISTANCE: usize = 8;

/// Row segments ahead at which the row of C, which is in L2, is prefetched: without, its eight lines cost 30 cycles of
/// a row segment's 200 (4096 x 4096, one thread: 70 % zeros, N = 128, 55 % of peak instead of 45; 90 %, N = 32, 39
/// instead of 36). 1 ahead gains less.
const PREFETCH_DISTANCE_C: usize = 2;

/// Vectors of a tile up to which the row of C is loaded one row segment ahead, for which registers are left: 0.98 to 0.99 of the time in
/// f32, 0.9 in bf16, whose widening delays the start of a row segment (4096 x 4096 and 1024 x 1024, 90 % zeros, N = 32).
const LOADED_AHEAD: usize = 2;

/// One tile of a panel. The dots are in the block's order, or, `SCATTERED`, each row segment's are at its start.
///
/// # Safety
/// As [`sddmm_panel`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, D: Stored, O: Target<D::Scalar>, const SCATTERED: bool, const NV: usize>(
    simd: S,
    task: &SddmmPanel<'_, D>,
    tile: Tile,
    output: O,
) {
    // Not looked up in the task at every row segment: loads that those of B would wait for.
    let (c, ldc, starts, out) = (task.c.wrapping_add(tile.start), task.ldc, task.starts, task.out);
    let row = |i: u32| c.wrapping_add(i as usize * ldc);
    let rows = TileRows::<S, D, NV>::new(simd, tile);
    let row_bytes = TileRows::<S, D, NV>::BYTES;
    let mut own = 0;
    // SAFETY: the promise of `sddmm_panel`; offsets advance over the block's own, as do sums.
    unsafe {
        let panel = task.packed(&rows, tile);
        // What is copied next is prefetched meanwhile, a row at each pair or row segment: this panel's next tile or, as
        // blocks mostly have nonzeros in all panels, the first one of the next. The processor follows rows of a line by itself.
        let copied = if panel == task.scratch.cast_const() && row_bytes > LINE { task.width } else { 0 };
        let to_come = match tile.is_last(D::Scalar::lanes::<S>(), task.n) {
            true => task.b.wrapping_add(task.width * task.ldb),
            false => task.b.wrapping_add(tile.start + NV * D::Scalar::lanes::<S>()),
        };
        let ask_for = |r: usize| {
            if r < copied {
                prefetch_row_l2(to_come.wrapping_add(r * task.ldb), row_bytes);
            }
        };
        let mut offsets = Offsets::new(task.block.offsets.as_ptr());
        // Known before the loops are compiled, so that there is nothing of pairs in the others.
        let pairs = if SCATTERED && D::Scalar::lanes::<S>() != PAIRED_LANES { &[] } else { task.block.pairs };
        let mut room = const { [const { Lines([D::Scalar::ZERO; MOST_DOTS]) }; 2] };
        for (k, pair) in pairs.iter().enumerate() {
            for i in pairs.get(k + 1).unwrap_or(pair).rows {
                prefetch_row(row(i), row_bytes);
            }
            ask_for(k);
            let [i, j] = pair.rows;
            let c = [rows.load(row(i)), rows.load(row(j))];
            let nnz = pair.nnz() as usize;
            let owns = [own, own + nnz];
            if SCATTERED {
                let later = (k + PREFETCH_DISTANCE / 2).min(pairs.len() - 1);
                for r in 0..2 {
                    prefetch_dots(out.wrapping_add(*starts.add(2 * later + r)), nnz);
                }
                // Written out: a closure that an array maps is not inlined.
                let room = [room[0].0.as_mut_ptr(), room[1].0.as_mut_ptr()];
                let near = [output.at(0, owns[0]).in_scratch(room[0]), output.at(0, owns[1]).in_scratch(room[1])];
                dots_pair::<S, D::Scalar, NV>(simd, &c, pair, &mut offsets, panel, near.each_ref());
                for r in 0..2 {
                    let output = output.at(*starts.add(2 * k + r), own).after_scratch();
                    emit_in_order::<S, D::Scalar>(simd, room[r], task.order.add(owns[r]), nnz, &output);
                }
            } else {
                let outputs = [output.at(owns[0], owns[0]), output.at(owns[1], owns[1])];
                dots_pair::<S, D::Scalar, NV>(simd, &c, pair, &mut offsets, panel, outputs.each_ref());
            }
            own += 2 * nnz;
        }
        let starts = starts.wrapping_add(2 * pairs.len());
        let segments = task.block.segments;
        let mut next = [D::Scalar::splat(simd, D::Scalar::ZERO); NV];
        if NV <= LOADED_AHEAD
            && let Some(first) = segments.first()
        {
            next = rows.load(row(first.row));
        }
        for (v, segment) in segments.iter().enumerate() {
            let nnz = segment.nnz as usize;
            let later = |distance: usize| (v + distance).min(segments.len() - 1);
            let mut place = own;
            ask_for(pairs.len() + v);
            if SCATTERED {
                // Dots of neighbouring row segments are far apart: their lines are prefetched in time.
                place = *starts.add(v);
                // Row segments are ordered by length: the later one is about as long.
                prefetch_dots(out.wrapping_add(*starts.add(later(PREFETCH_DISTANCE))), nnz);
            }
            prefetch_row(row(segments[later(PREFETCH_DISTANCE_C)].row), row_bytes);
            let c = match NV <= LOADED_AHEAD {
                true => std::mem::replace(&mut next, rows.load(row(segments[later(1)].row))),
                false => rows.load(row(segment.row)),
            };
            dots_packed::<S, D::Scalar, NV>(simd, &c, nnz, &mut offsets, panel, &output.at(place, own));
            own += nnz;
        }
    }
}

/// Prefetches the lines of `n` dots at `out`. Beyond three of them the processor follows.
#[inline(always)]
fn prefetch_dots<T>(out: *mut T, n: usize) {
    for at in [0, 64 / size_of::<T>(), n] {
        prefetch_l1(out.wrapping_add(at));
    }
}

impl<D: Stored> SddmmPanel<'_, D> {
    /// The panel's rows of the tile, packed: where they are one after the other already, each on cache lines of its own,
    /// they are taken where they are.
    ///
    /// # Safety
    /// As [`sddmm_panel`].
    #[inline(always)]
    unsafe fn packed<S: Simd, const NV: usize>(&self, rows: &TileRows<S, D, NV>, tile: Tile) -> *const D::Scalar {
        let row_bytes = TileRows::<S, D, NV>::BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            let b = self.b.add(tile.start);
            let tight = tile.rest == 0 && self.ldb * size_of::<D>() == row_bytes;
            if !D::NARROW && tight && b.addr().is_multiple_of(row_bytes.min(64)) {
                return b.cast();
            }
            rows.pack(b, self.ldb, self.width, None, self.scratch);
        }
        self.scratch
    }
}
