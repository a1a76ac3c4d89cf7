//! Register tiles: `NV` vectors of one dense row, the last one masked where the row ends inside it.
//!
//! A row of n elements is cut into tiles of at most `max` vectors. Whole tiles need no mask, and only the last vector of
//! the last tile has one: masking every load costs 2 x (AVX-512) to 5 x (AVX2).

use pulp::Simd;

use crate::stored::{Mask, Vector};
use crate::{Element, LINE, Number};

/// One tile of a row: `vectors` registers from element `start` on.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    pub start: usize,
    pub vectors: usize,
    /// Elements of the last vector when the row ends inside it, else 0.
    pub rest: usize,
}

impl Tile {
    /// Whether no tile of a row of `n` elements comes after this one.
    #[inline(always)]
    pub fn is_last(&self, lanes: usize, n: usize) -> bool {
        self.start + self.vectors * lanes >= n
    }

    /// The mask of its last vector in loops that always have one.
    #[inline(always)]
    pub fn mask<S: Simd, T: Number>(&self, simd: S) -> T::Mask<S> {
        T::first_lanes(simd, if self.rest == 0 { T::lanes::<S>() } else { self.rest })
    }
}

/// The tiles of a row, from its start; made by [`tiles`]. An iterator by hand: a closure per tile would not be inlined,
/// and would lose the target features. The first tile is known before the iteration: a loop over rows does not cut each of them anew.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    n: usize,
    lanes: usize,
    max: usize,
    /// Whether tiles may have three vectors.
    threes: bool,
    /// The next tile; none starts at `n` or beyond.
    next: Tile,
}

/// The tiles of a row of `n` elements in vectors of `lanes`, of 1, 2, 3, 4 or 8 vectors each and at most `max`.
///
/// Eight vectors hide the latency of the multiply-add behind the other seven; what is left is split evenly. Vectors of one
/// element come in fours or alone: the scalar instruction set exists as a fallback, and is compiled for no more.
#[inline(always)]
pub(crate) fn tiles(n: usize, lanes: usize, max: usize) -> Tiles {
    Tiles::new(n, lanes, max, true)
}

/// Likewise for elements of `D`. Where they are narrow there are fewer widths, none of three vectors, and the last vector always has
/// a mask: half as much to compile, for loops that wait for memory.
#[inline(always)]
pub(crate) fn tiles_of<S: Simd, D: Element>(n: usize, max: usize) -> Tiles {
    tiles_in::<D>(n, D::Number::lanes::<S>(), max)
}

/// Likewise above the dispatch, in vectors of `lanes`.
#[inline(always)]
pub(crate) fn tiles_in<D: Element>(n: usize, lanes: usize, max: usize) -> Tiles {
    Tiles::new(n, lanes, max, !D::NARROW)
}

impl Tiles {
    #[inline(always)]
    fn new(n: usize, lanes: usize, max: usize, threes: bool) -> Self {
        let mut tiles = Self { n, lanes, max, threes, next: Tile { start: 0, vectors: 0, rest: 0 } };
        tiles.next = tiles.at(0);
        tiles
    }

    /// The tile from element `start` on, if there is such an element.
    #[inline(always)]
    fn at(&self, start: usize) -> Tile {
        let vectors = match (self.n - start).div_ceil(self.lanes).min(self.max) {
            v if self.lanes == 1 => {
                if v >= 4 {
                    4
                } else {
                    1
                }
            }
            8.. => 8,
            v @ (1 | 2) => v,
            3 | 5 | 6 if self.threes => 3,
            3 => 2,
            _ => 4,
        };
        let end = start + vectors * self.lanes;
        Tile { start, vectors, rest: if end > self.n { self.n % self.lanes } else { 0 } }
    }
}

impl Iterator for Tiles {
    type Item = Tile;

    #[inline(always)]
    fn next(&mut self) -> Option<Tile> {
        let tile = self.next;
        if tile.start >= self.n {
            return None;
        }
        let end = tile.start + tile.vectors * self.lanes;
        // What comes after the last tile is not cut.
        self.next = if end < self.n { self.at(end) } else { Tile { start: end, ..tile } };
        Some(tile)
    }
}

/// Calls `$f::<.., NV, TAIL>($args)` with the tile's width as const generics. Above the dispatch, `$f` is generic over the elements alone.
macro_rules! with_width {
    ($tile:expr, $f:ident :: <$s:ty, $t:ty> ($($arg:expr),* $(,)?)) => {
        if const { size_of::<$crate::stored::Vector<$t, $s>>() == size_of::<<$t as $crate::Element>::Number>() } {
            match $tile.vectors {
                4 => $f::<$s, $t, 4, false>($($arg),*),
                _ => $f::<$s, $t, 1, false>($($arg),*),
            }
        } else {
            $crate::tile::with_width!(@vectors $tile, $t, $f::<$s, $t>($($arg),*))
        }
    };
    ($tile:expr, $f:ident :: <$t:ty> ($($arg:expr),* $(,)?)) => {
        $crate::tile::with_width!(@vectors $tile, $t, $f::<$t>($($arg),*))
    };
    (@vectors $tile:expr, $t:ty, $f:ident :: <$($g:ty),*> ($($arg:expr),*)) => {
        if const { <$t as $crate::Element>::NARROW } {
            match $tile.vectors {
                1 => $f::<$($g,)* 1, true>($($arg),*),
                2 => $f::<$($g,)* 2, true>($($arg),*),
                4 => $f::<$($g,)* 4, true>($($arg),*),
                _ => $f::<$($g,)* 8, true>($($arg),*),
            }
        } else {
            match ($tile.vectors, $tile.rest != 0) {
                (1, false) => $f::<$($g,)* 1, false>($($arg),*),
                (1, true) => $f::<$($g,)* 1, true>($($arg),*),
                (2, false) => $f::<$($g,)* 2, false>($($arg),*),
                (2, true) => $f::<$($g,)* 2, true>($($arg),*),
                (3, false) => $f::<$($g,)* 3, false>($($arg),*),
                (3, true) => $f::<$($g,)* 3, true>($($arg),*),
                (4, false) => $f::<$($g,)* 4, false>($($arg),*),
                (4, true) => $f::<$($g,)* 4, true>($($arg),*),
                (_, false) => $f::<$($g,)* 8, false>($($arg),*),
                (_, true) => $f::<$($g,)* 8, true>($($arg),*),
            }
        }
    };
}
pub(crate) use with_width;

/// Likewise with the number of vectors only, for loops to which a tail makes no difference: half as much to compile. Other
/// constants come before it, after a semicolon.
macro_rules! with_vectors {
    ($tile:expr, $f:ident :: <$($g:ty),* $(; $c:tt)?> ($($arg:expr),* $(,)?)) => {
        match $tile.vectors {
            1 => $f::<$($g,)* $($c,)? 1>($($arg),*),
            2 => $f::<$($g,)* $($c,)? 2>($($arg),*),
            3 => $f::<$($g,)* $($c,)? 3>($($arg),*),
            4 => $f::<$($g,)* $($c,)? 4>($($arg),*),
            _ => $f::<$($g,)* $($c,)? 8>($($arg),*),
        }
    };
}
pub(crate) use with_vectors;

/// As [`with_vectors`], for tiles of vectors of one element.
macro_rules! with_elements {
    ($tile:expr, $f:ident :: <$($g:ty),* $(; $c:tt)?> ($($arg:expr),* $(,)?)) => {
        match $tile.vectors {
            4 => $f::<$($g,)* $($c,)? 4>($($arg),*),
            _ => $f::<$($g,)* $($c,)? 1>($($arg),*),
        }
    };
}
pub(crate) use with_elements;

/// The tile at `p`: zero in the lanes outside `mask` of the last vector when `TAIL`.
///
/// # Safety
/// `p` is valid for reads of the tile's elements.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd, D: Element, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    p: *const D,
) -> [Vector<D, S>; NV] {
    let mut tile = [D::Number::splat(simd, D::Number::ZERO); NV];
    for j in 0..NV {
        // SAFETY: the caller's promise; vector j is inside the tile.
        unsafe {
            let p = p.add(j * D::Number::lanes::<S>());
            tile[j] = if TAIL && j == NV - 1 { D::read_masked(simd, mask, p) } else { D::read(simd, p) };
        }
    }
    tile
}

/// As [`load`], for what is summed lane by lane: the elements may be in another order, which is the same for all rows' tiles, and
/// which [`in_order`] ends.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub(crate) unsafe fn load_reordered<S: Simd, D: Element, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    p: *const D,
) -> [Vector<D, S>; NV] {
    if !D::reorders::<S>() {
        // SAFETY: the caller's promise.
        return unsafe { load::<S, D, NV, TAIL>(simd, mask, p) };
    }
    let mut tile = [D::Number::splat(simd, D::Number::ZERO); NV];
    for j in 0..NV / 2 {
        let tail = if TAIL && 2 * j + 2 == NV { Some(mask) } else { None };
        // SAFETY: the caller's promise; vectors 2 j and 2 j + 1 are inside the tile.
        unsafe { [tile[2 * j], tile[2 * j + 1]] = D::read_two(simd, tail, p.add(2 * j * D::Number::lanes::<S>())) }
    }
    if NV % 2 == 1 {
        // SAFETY: likewise.
        unsafe { [tile[NV - 1]] = load::<S, D, 1, TAIL>(simd, mask, p.add((NV - 1) * D::Number::lanes::<S>())) }
    }
    tile
}

/// A tile from [`load_reordered`], or sums of such, in the elements' order.
#[inline(always)]
pub(crate) fn in_order<S: Simd, D: Element, const NV: usize>(
    simd: S,
    mut tile: [Vector<D, S>; NV],
) -> [Vector<D, S>; NV] {
    if D::reorders::<S>() {
        for j in 0..NV / 2 {
            [tile[2 * j], tile[2 * j + 1]] = D::in_order(simd, [tile[2 * j], tile[2 * j + 1]]);
        }
    }
    tile
}

/// Stores the tile at `p`.
///
/// # Safety
/// `p` is valid for writes of the tile's elements.
#[inline(always)]
pub(crate) unsafe fn store<S: Simd, D: Element, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    p: *mut D,
    tile: [Vector<D, S>; NV],
) {
    let pairs = if D::NARROW { (NV - usize::from(TAIL)) / 2 } else { 0 };
    for j in 0..pairs {
        // SAFETY: the caller's promise; vectors 2 j and 2 j + 1 are inside the tile.
        unsafe {
            let p = p.add(2 * j * D::Number::lanes::<S>());
            D::write_ordered_two(simd, p, [tile[2 * j], tile[2 * j + 1]]);
        }
    }
    for j in 2 * pairs..NV {
        // SAFETY: the caller's promise; vector j is inside the tile.
        unsafe {
            let p = p.add(j * D::Number::lanes::<S>());
            if TAIL && j == NV - 1 {
                D::write_masked(simd, mask, p, tile[j]);
            } else {
                D::write(simd, p, tile[j]);
            }
        }
    }
}

/// Stores the tile at `p`, past the caches if it is to `stream` and consists of whole cache lines: a part of a line would
/// have to be merged in memory. Narrow tiles to `stream` have no tail. [`stream_fence`](crate::stream_fence) follows before another thread reads it.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub(crate) unsafe fn store_or_stream<S: Simd, D: Element, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    p: *mut D,
    tile: [Vector<D, S>; NV],
    stream: bool,
) {
    let whole = (!TAIL || D::NARROW) && (NV * D::Number::lanes::<S>() * size_of::<D>()).is_multiple_of(LINE);
    // SAFETY: the caller's promise; lines are multiples of registers, so that registers are aligned.
    unsafe {
        if whole && stream && p.addr().is_multiple_of(LINE) {
            for j in 0..NV {
                D::write_streaming(simd, p.add(j * D::Number::lanes::<S>()), tile[j]);
            }
        } else {
            store::<S, D, NV, TAIL>(simd, mask, p, tile);
        }
    }
}

/// Stores a tile of zeros at `p`, whose last vector has `rest` elements unless that is 0; past the caches as [`store_or_stream`] does.
///
/// # Safety
/// As there.
#[inline(always)]
pub(crate) unsafe fn store_zeros<S: Simd, D: Element, const NV: usize>(simd: S, p: *mut D, rest: usize, stream: bool) {
    let lanes = D::Number::lanes::<S>();
    let bytes = NV * lanes * size_of::<D>();
    // SAFETY: the caller's promise; lines are multiples of registers, and zero bytes are zeros. Numbers of bytes that the compiler knows
    // take no call, around which the loops of the caller would spill.
    unsafe {
        if rest != 0 {
            p.write_bytes(0, (NV - 1) * lanes + rest);
        } else if stream && bytes.is_multiple_of(LINE) && p.addr().is_multiple_of(LINE) {
            for j in 0..bytes / size_of::<Vector<D, S>>() {
                let zero = D::Number::splat(simd, D::Number::ZERO);
                crate::store_streaming::<S, D::Number>(simd, p.cast::<D::Number>().add(j * lanes), zero);
            }
        } else {
            p.write_bytes(0, NV * lanes);
        }
    }
}

/// Stores a tile from [`load_reordered`], or a sum of such, at `p` in the elements' order; past the caches if it is to `stream`. The tile
/// has an even number of vectors.
///
/// # Safety
/// As [`store`]; `p` is a multiple of [`LINE`] if the tile is to stream.
#[inline(always)]
pub(crate) unsafe fn store_reordered<S: Simd, D: Element, const NV: usize>(
    simd: S,
    p: *mut D,
    tile: [Vector<D, S>; NV],
    stream: bool,
) {
    for j in 0..NV / 2 {
        // SAFETY: the caller's promise; vectors 2 j and 2 j + 1 are inside the tile.
        unsafe { D::write_two(simd, p.add(2 * j * D::Number::lanes::<S>()), [tile[2 * j], tile[2 * j + 1]], stream) }
    }
}

/// An array that registers are stored to, on cache lines of its own: vectors ask for no more alignment than their elements. A
/// store that crosses a line is two; one that crosses a page, which depends on where the caller's stack happens to be, costs tens
/// of cycles.
#[repr(C, align(64))]
pub(crate) struct Lines<A>(pub A);

/// One tile of dense rows in loops to which a tail makes no difference, and which are compiled once for both: whether the last
/// vector is masked is decided row by row.
#[derive(Clone, Copy)]
pub(crate) struct TileRows<S: Simd, D: Element, const NV: usize> {
    simd: S,
    mask: Mask<D, S>,
    whole: bool,
}

impl<S: Simd, D: Element, const NV: usize> TileRows<S, D, NV> {
    /// Bytes of a row.
    pub const BYTES: usize = NV * size_of::<Vector<D, S>>() / size_of::<D::Number>() * size_of::<D>();

    /// Those of `tile`, which has `NV` vectors.
    #[inline(always)]
    pub fn new(simd: S, tile: Tile) -> Self {
        Self { simd, mask: D::Number::first_lanes(simd, tile.rest), whole: tile.rest == 0 }
    }

    /// Those of `tile`, where rows have whole registers whatever their end.
    #[inline(always)]
    pub fn whole(simd: S, tile: Tile) -> Self {
        Self { whole: true, ..Self::new(simd, tile) }
    }

    /// The row's tile at `p`, zero beyond its end, in the order of [`load_reordered`]: that of the elements, unless these are narrow.
    ///
    /// # Safety
    /// As [`load`].
    #[inline(always)]
    pub unsafe fn load(&self, p: *const D) -> [Vector<D, S>; NV] {
        // SAFETY: the caller's promise.
        unsafe {
            match self.whole {
                true => load_reordered::<S, D, NV, false>(self.simd, self.mask, p),
                false => load_reordered::<S, D, NV, true>(self.simd, self.mask, p),
            }
        }
    }

    /// Copies `rows` rows' tiles, the first at `b`, into `out`, tightly, as they are computed with and in the order of
    /// [`load_reordered`], times `alpha` if there is one.
    ///
    /// Packed rows are aligned whatever B's stride is, end in zeros, and do not compete for the same cache sets.
    ///
    /// # Safety
    /// `b` is valid for reads of the rows' tiles, `out` for writes of `rows * NV` vectors, and they do not overlap.
    #[inline(always)]
    pub unsafe fn pack(&self, b: *const D, ldb: usize, rows: usize, alpha: Option<D::Number>, out: *mut D::Number) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.whole {
                true => pack::<S, D, NV, false>(self.simd, self.mask, b, ldb, rows, alpha, out),
                false => pack::<S, D, NV, true>(self.simd, self.mask, b, ldb, rows, alpha, out),
            }
        }
    }
}

impl<S: Simd, T: Number, const NV: usize> TileRows<S, T, NV> {
    /// Stores the row's tile at `p`, rounded to what is stored there.
    ///
    /// # Safety
    /// As [`store`].
    #[inline(always)]
    pub unsafe fn store<D: Element<Number = T>>(&self, p: *mut D, tile: [T::Vector<S>; NV]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.whole {
                true => store::<S, D, NV, false>(self.simd, self.mask, p, tile),
                false => store::<S, D, NV, true>(self.simd, self.mask, p, tile),
            }
        }
    }
}

/// [`TileRows::pack`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn pack<S: Simd, D: Element, const NV: usize, const TAIL: bool>(
    simd: S,
    mask: Mask<D, S>,
    b: *const D,
    ldb: usize,
    rows: usize,
    alpha: Option<D::Number>,
    out: *mut D::Number,
) {
    let lanes = D::Number::lanes::<S>();
    for r in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let (row, out) = (b.add(r * ldb), out.add(r * NV * lanes));
            if alpha.is_none() && !TAIL && !D::NARROW {
                // Through an array of registers it would be copied twice, to the stack and on.
                row.cast::<D::Number>().copy_to_nonoverlapping(out, NV * lanes);
                continue;
            }
            let mut tile = load_reordered::<S, D, NV, TAIL>(simd, mask, row);
            if let Some(alpha) = alpha {
                for x in &mut tile {
                    *x = D::Number::vmul(simd, D::Number::splat(simd, alpha), *x);
                }
            }
            store::<S, D::Number, NV, false>(simd, mask, out, tile);
        }
    }
}
