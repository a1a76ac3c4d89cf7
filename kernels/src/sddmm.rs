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
use crate::dot::{Sink, dots, dots_packed, dots_pair, emit_in_order};
use crate::prefetch::prefetch_row_l2;
use crate::rows::Gathered;
use crate::tile::{self, Lines, Tile, TileRows, tiles, with_vectors, with_width};
use crate::walk::{Part, Walk};
use crate::{Arch, Scalar, prefetch_l1, prefetch_row};

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

/// Widest tile of C held in registers beside the sums of a group of dots and what becomes of them.
#[inline(always)]
pub(crate) fn max_vectors(registers: usize) -> usize {
    if registers >= 32 { 8 } else { 4 }
}

impl<T: Scalar> WithSimd for Rows<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for tile in tiles(self.0.n, T::lanes::<S>(), max_vectors(S::REGISTER_COUNT)) {
            // SAFETY: the promise of `sddmm_rows`; the tile is inside the rows of B and C.
            unsafe { with_width!(tile, rows_tile::<S, T>(simd, &self.0, tile)) }
        }
    }
}

/// Where the dots of a row go.
trait Target<T: Scalar>: Sink<T> + Copy {
    /// The same for dots from position `place` on, whose sums of earlier tiles begin at `own`.
    ///
    /// # Safety
    /// Both are inside the output.
    unsafe fn at(self, place: usize, own: usize) -> Self;

    /// Where they are kept meanwhile if they do not come in the order of their places: at `room`, as sums only.
    fn meanwhile(self, room: *mut T) -> Meanwhile<T>;

    /// Where they go from there: nothing is left to be added.
    fn finally(self) -> Self;
}

/// Dots that are read again at once, plus the sums of earlier tiles if there are any: stored by whole registers or halves of them,
/// since what is stored under a mask cannot be forwarded to loads.
struct Meanwhile<T> {
    room: *mut T,
    /// Null for none.
    sums: *const T,
}

/// Dots of one visit, at most, and what is stored beyond them.
const MOST_DOTS: usize = 256 + 16;

impl<T: Scalar> Sink<T> for Meanwhile<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, [first, end]: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise; the mask keeps lanes before the first and after the last from memory, and the room has
        // place for a register more than there are dots.
        unsafe {
            if !self.sums.is_null() {
                let sums = self.sums.wrapping_add(at).wrapping_sub(first);
                dots = T::vadd(simd, dots, T::load_masked(simd, T::lanes_between(simd, first, end), sums));
            }
            let room = self.room.add(at);
            if first == 0 { T::store(simd, room, dots) } else { store_half::<S, T>(room, first, dots) }
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.sums.is_null() {
                dots = T::vadd(simd, dots, load_half::<S, T>(simd, self.sums.add(at), first));
            }
            store_half::<S, T>(self.room.add(at), first, dots);
        }
    }
}

/// Dots are the result: one tile, no values.
#[derive(Clone, Copy)]
struct Plain<T>(*mut T);

impl<T: Scalar> Target<T> for Plain<T> {
    #[inline(always)]
    unsafe fn at(self, place: usize, _: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { self.0.add(place) })
    }

    #[inline(always)]
    fn meanwhile(self, room: *mut T) -> Meanwhile<T> {
        Meanwhile { room, sums: std::ptr::null() }
    }

    #[inline(always)]
    fn finally(self) -> Self {
        self
    }
}

impl<T: Scalar> Sink<T> for Plain<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>) {
        // SAFETY: the caller's promise; where lanes before the first are left out, the mask keeps them from memory.
        unsafe {
            let out = self.0.wrapping_add(at).wrapping_sub(lanes[0]);
            if lanes == [0, T::lanes::<S>()] {
                T::store(simd, out, dots);
            } else {
                T::store_masked(simd, T::lanes_between(simd, lanes[0], lanes[1]), out, dots);
            }
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, _: S, at: usize, first: usize, dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe { store_half::<S, T>(self.0.add(at), first, dots) }
    }
}

/// Dots are added to earlier tiles' sums and multiplied by the values after the last tile.
#[derive(Clone, Copy)]
struct Output<T> {
    /// Where the first dot goes.
    out: *mut T,
    /// Null for none.
    values: *const T,
    /// Earlier tiles' sum of the first dot; null for none.
    sums: *const T,
}

impl<T: Scalar> Output<T> {
    /// Of the tile at `tile`: the sums of tiles are at `sums` until the `last`, which goes to `out`.
    #[inline(always)]
    fn new(out: *mut T, values: *const T, sums: *mut T, tile: Tile, last: bool) -> Self {
        Self {
            out: if last { out } else { sums },
            values: if last { values } else { std::ptr::null() },
            sums: if tile.start > 0 { sums } else { std::ptr::null() },
        }
    }

    /// The place of the dots, where that is all there is to it.
    #[inline(always)]
    fn plain(&self) -> Option<Plain<T>> {
        (self.values.is_null() && self.sums.is_null()).then_some(Plain(self.out))
    }
}

impl<T: Scalar> Target<T> for Output<T> {
    #[inline(always)]
    unsafe fn at(self, place: usize, own: usize) -> Self {
        // SAFETY: the caller's promise, and there are as many values as outputs.
        let from = |p: *const T, at: usize| if p.is_null() { p } else { unsafe { p.add(at) } };
        // SAFETY: the caller's promise.
        Self { out: unsafe { self.out.add(place) }, values: from(self.values, place), sums: from(self.sums, own) }
    }

    #[inline(always)]
    fn meanwhile(self, room: *mut T) -> Meanwhile<T> {
        Meanwhile { room, sums: self.sums }
    }

    #[inline(always)]
    fn finally(self) -> Self {
        Self { sums: std::ptr::null(), ..self }
    }
}

impl<T: Scalar> Sink<T> for Output<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise; where lanes before the first are left out, the mask keeps them from memory.
        unsafe {
            let out = self.out.wrapping_add(at).wrapping_sub(lanes[0]);
            if lanes == [0, T::lanes::<S>()] {
                if !self.sums.is_null() {
                    dots = T::vadd(simd, dots, T::load(simd, self.sums.add(at)));
                }
                if !self.values.is_null() {
                    dots = T::vmul(simd, dots, T::load(simd, self.values.add(at)));
                }
                T::store(simd, out, dots);
            } else {
                let mask = T::lanes_between(simd, lanes[0], lanes[1]);
                if !self.sums.is_null() {
                    let sums = self.sums.wrapping_add(at).wrapping_sub(lanes[0]);
                    dots = T::vadd(simd, dots, T::load_masked(simd, mask, sums));
                }
                if !self.values.is_null() {
                    let values = self.values.wrapping_add(at).wrapping_sub(lanes[0]);
                    dots = T::vmul(simd, dots, T::load_masked(simd, mask, values));
                }
                T::store_masked(simd, mask, out, dots);
            }
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.sums.is_null() {
                dots = T::vadd(simd, dots, load_half::<S, T>(simd, self.sums.add(at), first));
            }
            if !self.values.is_null() {
                dots = T::vmul(simd, dots, load_half::<S, T>(simd, self.values.add(at), first));
            }
            store_half::<S, T>(self.out.add(at), first, dots);
        }
    }
}

/// Stores the half of `x` that begins at lane `first` at `p`.
///
/// # Safety
/// `p` is valid for writes of half a register, of which `first` is the first or the middle lane.
#[inline(always)]
unsafe fn store_half<S: Simd, T: Scalar>(p: *mut T, first: usize, x: T::Vector<S>) {
    // SAFETY: the caller's promise; a register is its lanes, one after the other.
    unsafe { (&raw const x).cast::<T>().add(first).copy_to_nonoverlapping(p, T::lanes::<S>() / 2) }
}

/// The half of a register at `p`, from lane `first` on; zeros in the other.
///
/// # Safety
/// `p` is valid for reads of half a register, of which `first` is the first or the middle lane.
#[inline(always)]
unsafe fn load_half<S: Simd, T: Scalar>(simd: S, p: *const T, first: usize) -> T::Vector<S> {
    let mut x = T::splat(simd, T::ZERO);
    // SAFETY: the caller's promise; a register is its lanes, one after the other.
    unsafe { (&raw mut x).cast::<T>().add(first).copy_from_nonoverlapping(p, T::lanes::<S>() / 2) }
    x
}

/// One tile of all the rows.
///
/// # Safety
/// As [`sddmm_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, T: Scalar, const NV: usize, const TAIL: bool>(simd: S, task: &SddmmRows<T>, tile: Tile) {
    let mask = T::first_lanes(simd, tile.rest);
    let output = Output::new(task.out, task.values, task.out, tile, tile.is_last(T::lanes::<S>(), task.n));
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
            dots::<S, T, NV, TAIL>(simd, mask, &c, end - start, &rows, &output.at(start, start));
        }
    }
}

/// Dots of a register where pairs of rows pay though their dots have to be put in CSR order: two or three instructions for a
/// register (4096 x 4096, 70 % zeros, N = 128, one thread: f64 35.6 instead of 33.7 GFLOP/s; f32, 16 to a register, equal, Zen 4).
pub const PAIRED_LANES: usize = 8;

/// Dots of one row block with one panel of B, packed unless it is already.
#[derive(Clone, Copy, Debug)]
pub struct SddmmPanel<'a, T> {
    /// Where the nonzeros are.
    pub cell: Cell<'a>,
    /// Position in `out` (and `values`) of each visit's first dot, the others following, two to a pair; null for the cell's own
    /// order, which a cell with pairs must have where a register does not hold [`PAIRED_LANES`] dots.
    pub starts: *const usize,
    /// Where `starts` is not null, for each dot of a pair, by position in `out`, which one of its visit's it is; valid for reads of
    /// [`PAIRED_LANES`] more.
    pub order: *const u8,
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
    /// Most vectors of a tile, at most 8. Narrow tiles leave room for wide panels.
    pub tile_vectors: usize,
    /// Room for the packed panel: `width` rows of a tile.
    pub scratch: *mut T,
    /// Where `starts` is not null and the row is longer than a tile, room for the cell's dots.
    pub sums: *mut T,
}

/// Runs the task.
///
/// # Safety
/// The cell's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the task's part of `out`, the scratch or the sums at the same time.
pub unsafe fn sddmm_panel<T: Scalar>(arch: Arch, task: SddmmPanel<'_, T>) {
    dispatch_compiled!(arch, task, SddmmPanel<'_, f32>, SddmmPanel<'_, f64>, |arch, task| task.dispatch(arch));
}

impl<T: Scalar> SddmmPanel<'_, T> {
    /// To the code for each tile. The scattered order has a function for each width and kind of output: what is known before the
    /// loop is no load and no branch in it (4096 x 4096, one thread, 90 % zeros, N = 32: 45 % of peak instead of 42). The
    /// cell's order gains nothing by that.
    #[inline(always)]
    fn dispatch(&self, arch: Arch) {
        // Sums of tiles stay in the cell's own order, near; only the last tile's go to their places, far apart.
        let sums = if self.starts.is_null() { self.out } else { self.sums };
        let lanes = arch.lanes::<T>();
        for tile in tiles(self.n, lanes, max_vectors(arch.registers()).min(self.tile_vectors)) {
            let last = tile.is_last(lanes, self.n);
            let output = Output::new(self.out, self.values, sums, tile, last);
            match output.plain() {
                _ if !last || self.starts.is_null() => arch.dispatch(InOrder { task: self, tile, output }),
                Some(plain) => with_vectors!(tile, scatter::<T, Plain<T>>(arch, self, tile, plain)),
                None => with_vectors!(tile, scatter::<T, Output<T>>(arch, self, tile, output)),
            }
        }
    }
}

/// One tile of a panel, the dots in the cell's order.
struct InOrder<'a, T> {
    task: &'a SddmmPanel<'a, T>,
    tile: Tile,
    output: Output<T>,
}

impl<T: Scalar> WithSimd for InOrder<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { task, tile, output } = self;
        // SAFETY: the promise of `sddmm_panel`. Looking for values and sums at every register of dots costs 5 % where rows
        // are short.
        unsafe {
            match output.plain() {
                Some(plain) => with_vectors!(tile, panel_tile::<S, T, Plain<T>; false>(simd, task, tile, plain)),
                None => with_vectors!(tile, panel_tile::<S, T, Output<T>; false>(simd, task, tile, output)),
            }
        }
    }
}

/// One tile of a panel, the dots of each visit at its start.
struct Scattered<'a, T, O, const NV: usize> {
    task: &'a SddmmPanel<'a, T>,
    tile: Tile,
    output: O,
}

/// Runs [`Scattered`].
#[inline(always)]
fn scatter<T: Scalar, O: Target<T>, const NV: usize>(arch: Arch, task: &SddmmPanel<'_, T>, tile: Tile, output: O) {
    arch.dispatch(Scattered::<T, O, NV> { task, tile, output });
}

impl<T: Scalar, O: Target<T>, const NV: usize> WithSimd for Scattered<'_, T, O, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `sddmm_panel`.
        unsafe { panel_tile::<S, T, O, true, NV>(simd, self.task, self.tile, self.output) }
    }
}

/// Visits ahead at which the lines of `out` are prefetched. From 4 to 32 all are within the noise.
const AHEAD: usize = 8;

/// Visits ahead at which the row of C, which is in L2, is prefetched: without, its eight lines cost 30 cycles of a visit's 200
/// (4096 x 4096, one thread: 70 % zeros, N = 128, 55 % of peak instead of 45; 90 %, N = 32, 39 instead of 36). 1 ahead gains less.
const AHEAD_C: usize = 2;

/// One tile of a panel. The dots are in the cell's order, or, `SCATTERED`, each visit's are at its start.
///
/// # Safety
/// As [`sddmm_panel`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, T: Scalar, O: Target<T>, const SCATTERED: bool, const NV: usize>(
    simd: S,
    task: &SddmmPanel<'_, T>,
    tile: Tile,
    output: O,
) {
    // Not looked up in the task at every visit: loads that those of B would wait for.
    let (c, ldc, starts, out) = (task.c.wrapping_add(tile.start), task.ldc, task.starts, task.out);
    let row = |i: u32| c.wrapping_add(i as usize * ldc);
    let rows = TileRows::<S, T, NV>::new(simd, tile);
    let row_bytes = TileRows::<S, T, NV>::BYTES;
    let mut own = 0;
    // SAFETY: the promise of `sddmm_panel`; offsets advance over the cell's own, as do sums.
    unsafe {
        let panel = task.packed(&rows, tile);
        // What is copied next is asked for meanwhile, a row at each pair or visit: this panel's next tile or, as blocks mostly have
        // nonzeros in all panels, the first one of the next.
        let copied = if panel == task.scratch.cast_const() { task.width } else { 0 };
        let to_come = match tile.is_last(T::lanes::<S>(), task.n) {
            true => task.b.wrapping_add(task.width * task.ldb),
            false => task.b.wrapping_add(tile.start + NV * T::lanes::<S>()),
        };
        let ask_for = |r: usize| {
            if r < copied {
                prefetch_row_l2(to_come.wrapping_add(r * task.ldb), row_bytes);
            }
        };
        let mut offsets = Offsets::new(task.cell.offsets.as_ptr());
        // Known before the loops are compiled, so that there is nothing of pairs in the others.
        let pairs = if SCATTERED && T::lanes::<S>() != PAIRED_LANES { &[] } else { task.cell.pairs };
        let mut room = const { [const { Lines([T::ZERO; MOST_DOTS]) }; 2] };
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
                let later = (k + AHEAD / 2).min(pairs.len() - 1);
                for r in 0..2 {
                    prefetch_dots(out.wrapping_add(*starts.add(2 * later + r)), nnz);
                }
                let room = room.each_mut().map(|room| room.0.as_mut_ptr());
                let near = [0, 1].map(|r| output.at(0, owns[r]).meanwhile(room[r]));
                dots_pair::<S, T, NV>(simd, &c, pair, &mut offsets, panel, near.each_ref());
                for r in 0..2 {
                    let output = output.at(*starts.add(2 * k + r), own).finally();
                    emit_in_order::<S, T>(simd, room[r], task.order.add(owns[r]), nnz, &output);
                }
            } else {
                let outputs = owns.map(|own| output.at(own, own));
                dots_pair::<S, T, NV>(simd, &c, pair, &mut offsets, panel, outputs.each_ref());
            }
            own += 2 * nnz;
        }
        let starts = starts.wrapping_add(2 * pairs.len());
        let visits = task.cell.visits;
        for (v, visit) in visits.iter().enumerate() {
            let nnz = visit.nnz as usize;
            let later = |ahead: usize| (v + ahead).min(visits.len() - 1);
            let mut place = own;
            ask_for(pairs.len() + v);
            if SCATTERED {
                // Dots of neighbouring visits are far apart: their lines are asked for in time.
                place = *starts.add(v);
                // Visits are ordered by length: the later one is about as long.
                prefetch_dots(out.wrapping_add(*starts.add(later(AHEAD))), nnz);
            }
            prefetch_row(row(visits[later(AHEAD_C)].row), row_bytes);
            let c = rows.load(row(visit.row));
            dots_packed::<S, T, NV>(simd, &c, nnz, &mut offsets, panel, &output.at(place, own));
            own += nnz;
        }
    }
}

/// Asks for the lines of `n` dots at `out`. Beyond three of them the processor follows.
#[inline(always)]
fn prefetch_dots<T>(out: *mut T, n: usize) {
    for at in [0, 64 / size_of::<T>(), n] {
        prefetch_l1(out.wrapping_add(at));
    }
}

impl<T: Scalar> SddmmPanel<'_, T> {
    /// The panel's rows of the tile, packed: where they are one after the other already, each on cache lines of its own,
    /// they are taken where they are.
    ///
    /// # Safety
    /// As [`sddmm_panel`].
    #[inline(always)]
    unsafe fn packed<S: Simd, const NV: usize>(&self, rows: &TileRows<S, T, NV>, tile: Tile) -> *const T {
        let row_bytes = TileRows::<S, T, NV>::BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            let b = self.b.add(tile.start);
            let tight = tile.rest == 0 && self.ldb * size_of::<T>() == row_bytes;
            if tight && b.addr().is_multiple_of(row_bytes.min(64)) {
                return b;
            }
            rows.pack(b, self.ldb, self.width, None, self.scratch);
        }
        self.scratch
    }
}
