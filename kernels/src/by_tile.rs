//! Tasks that go over their rows once for each tile of the dense rows' columns, each width of a tile compiled by itself.
//!
//! All widths in one function take the compiler several times as long: some of its passes go through the outermost loop, there that over
//! tiles, for each of the loops inside.

use pulp::{Simd, WithSimd};

use crate::tile::{Tile, tiles_in, with_width};
use crate::{Arch, Element, Stored};

/// A task that goes over its rows once for each tile of their columns.
pub(crate) trait ByTile: Copy {
    /// What the dense rows store.
    type Stored: Stored;

    /// One tile of all the rows. Mark it `#[inline(always)]`.
    ///
    /// # Safety
    /// As [`by_tile`]; the tile is inside the rows, has `NV` vectors, and its last one has a mask if it is a `TAIL`.
    unsafe fn tile<S: Simd, const NV: usize, const TAIL: bool>(&self, simd: S, tile: Tile);
}

/// Runs the task on rows of `n` elements, in tiles of at most `most` vectors.
///
/// # Safety
/// The promise that comes with the task.
#[inline(always)]
pub(crate) unsafe fn by_tile<K: ByTile>(arch: Arch, task: K, n: usize, most: usize) {
    for tile in tiles_in::<K::Stored>(n, arch.lanes::<<K::Stored as Element>::Number>(), most) {
        // SAFETY: the caller's promise; the tile is inside the rows.
        unsafe { with_width!(tile, run::<K::Stored>(arch, task, tile)) }
    }
}

/// One tile as pulp runs it. The task by value: what is read through a reference is read again after every store.
struct OneTile<K, const NV: usize, const TAIL: bool> {
    task: K,
    tile: Tile,
}

impl<K: ByTile, const NV: usize, const TAIL: bool> WithSimd for OneTile<K, NV, TAIL> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `by_tile`; only `run` makes the value.
        unsafe { self.task.tile::<S, NV, TAIL>(simd, self.tile) }
    }
}

/// Runs one tile.
///
/// # Safety
/// As [`ByTile::tile`].
#[inline(always)]
unsafe fn run<D: Stored, const NV: usize, const TAIL: bool>(arch: Arch, task: impl ByTile<Stored = D>, tile: Tile) {
    // SAFETY: the caller's promise.
    arch.dispatch_vectors(OneTile::<_, NV, TAIL> { task, tile }, |simd| unsafe { run_elements(simd, &task, tile) });
}

/// Runs one tile where vectors are single elements.
///
/// # Safety
/// As [`ByTile::tile`].
#[inline(never)]
unsafe fn run_elements<K: ByTile>(simd: pulp::Scalar, task: &K, tile: Tile) {
    // SAFETY: the caller's promise.
    unsafe { with_width!(tile, one_tile::<pulp::Scalar, K::Stored>(simd, task, tile)) }
}

/// [`ByTile::tile`] with its constants where [`with_width`] puts them.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn one_tile<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    task: &impl ByTile<Stored = D>,
    tile: Tile,
) {
    // SAFETY: the caller's promise.
    unsafe { task.tile::<S, NV, TAIL>(simd, tile) }
}
