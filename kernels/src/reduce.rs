//! SpMM over a semiring: C_i = add over the nonzeros j of row i of multiply(a_ij, B_j).
//!
//! ```text
//! direct (in the order of `walk`)                    panel (one row block, one tile of B's columns)
//! for i in rows                                      for each panel of B's rows
//!     c = zero                                           copy it into L1
//!     for j in columns of row i                          for each row i, or pair of rows, with nonzeros there
//!         c = add(multiply(a_ij, B_j), c)                    c = C_i
//!     C_i = c                                                for j ...: c = add(multiply(a_ij, B_j), c)
//!                                                            C_i = c
//! ```
//!
//! The same loops as SpMM's. A term is two or three instructions instead of one multiply-add, so there is nothing to gain from
//! several sets of sums, and fewer widths of tiles are compiled.

use pulp::{Simd, WithSimd};

use crate::block::{Block, OFFSETS_PER_WORD, Offsets};
use crate::finite::Operands;
use crate::rows::Gathered;
use crate::semiring::{BuiltIn, Extreme, MAX_TIMES, MIN_TIMES, Semiring};
use crate::tile::{self, Tile, TileRows, store_or_stream};
use crate::walk::{Part, Walk};
use crate::{Arch, Number, RowPtr, prefetch_row, stream_fence};

/// Dispatches `$task`, a `$task_of<T, $semiring>`, as its element type: in this crate, once.
macro_rules! dispatch_numbers {
    ($arch:expr, $task:expr, $task_of:ident) => {
        $crate::reduce::dispatch_numbers!($arch, $task, $task_of<BuiltIn>, f32 f64 i32 i64)
    };
    ($arch:expr, $task:expr, $task_of:ident<$semiring:ty>, $($t:ident)+) => {{
        $(
            fn $t(arch: $crate::Arch, task: $task_of<$t, $semiring>) {
                arch.dispatch(task);
            }
            if T::NAME == <$t as $crate::Number>::NAME {
                // SAFETY: T is this type (`Number` is sealed), so that the tasks' types are the same; they are `Copy`.
                $t($arch, unsafe { core::mem::transmute_copy(&$task) });
            }
        )+
    }};
}
pub(crate) use dispatch_numbers;

/// The tiles of a row of `n` elements in vectors of `lanes`: of 8, 4, 2 or 1 vectors each, or 4 and 1 where registers are few or
/// vectors single elements; the last one may be masked.
#[derive(Clone, Copy)]
pub(crate) struct ReduceTiles {
    pub n: usize,
    pub lanes: usize,
    pub max: usize,
    pub start: usize,
}

impl Iterator for ReduceTiles {
    type Item = Tile;

    #[inline(always)]
    fn next(&mut self) -> Option<Tile> {
        let start = self.start;
        if start >= self.n {
            return None;
        }
        let vectors = match (self.n - start).div_ceil(self.lanes).min(self.max) {
            8.. => 8,
            4.. => 4,
            2.. if self.lanes > 1 => 2,
            _ => 1,
        };
        self.start = start + vectors * self.lanes;
        Some(Tile { start, vectors, rest: if self.start > self.n { self.n % self.lanes } else { 0 } })
    }
}

/// The most vectors of a tile: the sums and a row's terms in half of the registers.
#[inline(always)]
pub(crate) const fn most_vectors<S: Simd>() -> usize {
    if S::IS_SCALAR || S::REGISTER_COUNT < 32 { 4 } else { 8 }
}

/// Calls `$f::<$g.., NV>($args)` with the tile's vectors.
macro_rules! with_reduce_tile {
    ($s:ty, $tile:expr, $f:ident :: <$($g:ty),*> ($($arg:expr),* $(,)?)) => {
        match $tile.vectors {
            8 if const { $crate::reduce::most_vectors::<$s>() == 8 } => $f::<$($g,)* 8>($($arg),*),
            4 => $f::<$($g,)* 4>($($arg),*),
            2 if const { !<$s as Simd>::IS_SCALAR } => $f::<$($g,)* 2>($($arg),*),
            _ => $f::<$($g,)* 1>($($arg),*),
        }
    };
}

/// Rows of a CSR matrix times B over a semiring, straight from CSR.
#[derive(Clone, Copy, Debug)]
pub struct ReduceRows<T> {
    /// What a row without nonzeros becomes.
    pub empty: T,
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// CSR values, of which the task's are read; null for ones.
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
    /// C.
    pub c: *mut T,
    /// Row stride of C.
    pub ldc: usize,
    /// Where the first row goes instead of C, unless null.
    pub carry_out: *mut T,
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all.
    pub prefetch_distance: usize,
    /// Columns of a panel that a block of rows shares, and all columns.
    pub panel: [usize; 2],
    /// Whether rows of C bypass the caches, where they are written in one go.
    pub stream: bool,
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every column is a row of B, B and C have the strides and sizes stated, and no one else
/// writes the rows or reads `carry_out` at the same time.
pub unsafe fn reduce_rows<T: Number, R: Semiring<T>>(arch: Arch, semiring: R, task: ReduceRows<T>) {
    if let Some(built_in) = const { R::BUILT_IN } {
        // The largest and the smallest term are compiled by themselves: in rows of few nonzeros, the branches on the operations take as
        // long as the operations.
        match built_in(semiring) {
            MAX_TIMES => {
                let task = Rows { semiring: Extreme::<true, false>, task };
                dispatch_numbers!(arch, task, Rows<Extreme<true, false>>, f32 f64 i32 i64);
            }
            MIN_TIMES => {
                let task = Rows { semiring: Extreme::<false, false>, task };
                dispatch_numbers!(arch, task, Rows<Extreme<false, false>>, f32 f64 i32 i64);
            }
            semiring => {
                let task = Rows { semiring, task };
                dispatch_numbers!(arch, task, Rows);
            }
        }
    } else if const { R::BUILT_IN.is_none() } {
        arch.dispatch(Rows { semiring, task });
    }
}

#[derive(Clone, Copy)]
struct Rows<T, R> {
    semiring: R,
    task: ReduceRows<T>,
}

impl<T: Number, R: Semiring<T>> WithSimd for Rows<T, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (semiring, task) = (self.semiring, &self.task);
        if task.n == 1 {
            // One number of a row, without masks.
            let tile = Tile { start: 0, vectors: 1, rest: 0 };
            // SAFETY: the promise of `reduce_rows`.
            return unsafe { rows_tile::<pulp::Scalar, T, R, 1>(pulp::Scalar, semiring, task, tile) };
        }
        for tile in (ReduceTiles { n: task.n, lanes: T::lanes::<S>(), max: most_vectors::<S>(), start: 0 }) {
            // SAFETY: the promise of `reduce_rows`; the tile is inside the rows of B and C.
            unsafe { with_reduce_tile!(S, tile, rows_tile::<S, T, R>(simd, semiring, task, tile)) }
        }
        if task.stream {
            stream_fence();
        }
    }
}

/// One tile of all the rows.
///
/// # Safety
/// As [`reduce_rows`].
#[inline(always)]
unsafe fn rows_tile<S: Simd, T: Number, R: Semiring<T>, const NV: usize>(
    simd: S,
    semiring: R,
    task: &ReduceRows<T>,
    tile: Tile,
) {
    let rows = TileRows::<S, T, NV>::new(simd, tile);
    let bytes = TileRows::<S, T, NV>::BYTES;
    let zero = [T::splat(simd, semiring.zero()); NV];
    // SAFETY: the promise of `reduce_rows`.
    unsafe {
        let walk = Walk::new(task.row_ptr, task.columns, task.values, task.rows, task.nonzeros, task.panel);
        for Part { row, start, end, first, last, .. } in walk {
            if start == end && !first {
                continue;
            }
            let carries = row == task.rows[0] && !task.carry_out.is_null();
            let c = if carries { task.carry_out } else { task.c.add(row * task.ldc) }.add(tile.start);
            let mut sum = if first { zero } else { rows.load(c) };
            if first && start == end && task.row_ptr.at(row) == task.row_ptr.at(row + 1) {
                sum = [T::splat(simd, task.empty); NV];
            }
            let gathered = Gathered {
                columns: task.columns.wrapping_add(start),
                base: task.b.wrapping_add(tile.start),
                stride: task.ldb,
                last: task.nonzeros[1].saturating_sub(1 + start),
                prefetch_distance: task.prefetch_distance,
            };
            for t in 0..end - start {
                let b = rows.load(gathered.row(t, bytes));
                let a = if task.values.is_null() { T::ONE } else { *task.values.wrapping_add(start + t) };
                semiring.accumulate(simd, &mut sum, T::splat(simd, a), &b);
            }
            if task.stream && first && last && tile.rest == 0 {
                let mask = T::first_lanes(simd, 0);
                store_or_stream::<S, T, NV, false>(simd, mask, c, sum, true);
            } else {
                rows.store(c, sum);
            }
        }
    }
}

/// One row block times one panel of B, packed, over a semiring: C_i = add over j of multiply(w_j, B_j), and C_i.
#[derive(Clone, Copy, Debug)]
pub struct ReducePanel<'a, T> {
    /// Where the nonzeros are.
    pub block: Block<'a>,
    /// The weight of each nonzero in the order of the block; null for ones.
    pub weights: *const T,
    /// The rows of B in the panel, from the first of the tile's columns.
    pub b: *const T,
    /// Row stride of B.
    pub ldb: usize,
    /// Rows of B in the panel.
    pub width: usize,
    /// Columns of B and C to compute.
    pub n: usize,
    /// The row block of C.
    pub c: *mut T,
    /// Row stride of C.
    pub ldc: usize,
    /// Vectors of a tile, at most.
    pub vectors: usize,
    /// Room for the packed panel: `width` rows of `vectors` registers.
    pub scratch: *mut T,
}

/// Runs the task.
///
/// # Safety
/// The block's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the rows of C or the scratch at the same time.
pub unsafe fn reduce_panel<T: Number, R: Semiring<T>>(arch: Arch, semiring: R, task: ReducePanel<'_, T>) {
    if let Some(built_in) = const { R::BUILT_IN } {
        // Of finite operands no product is NaN.
        // SAFETY: the caller's promise.
        let finite = || unsafe { Operands::of(&task).are_finite(arch) };
        match built_in(semiring) {
            MAX_TIMES if finite() => {
                let task = Panel { semiring: Extreme::<true, true>, task };
                dispatch_numbers!(arch, task, Panel<Extreme<true, true>>, f32 f64 i32 i64);
            }
            MIN_TIMES if finite() => {
                let task = Panel { semiring: Extreme::<false, true>, task };
                dispatch_numbers!(arch, task, Panel<Extreme<false, true>>, f32 f64 i32 i64);
            }
            semiring => {
                let task = Panel { semiring, task };
                dispatch_numbers!(arch, task, Panel);
            }
        }
    } else if const { R::BUILT_IN.is_none() } {
        arch.dispatch(Panel { semiring, task });
    }
}

#[derive(Clone, Copy)]
struct Panel<'a, T, R> {
    semiring: R,
    task: ReducePanel<'a, T>,
}

impl<T: Number, R: Semiring<T>> WithSimd for Panel<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (semiring, task) = (self.semiring, &self.task);
        let max = task.vectors.min(most_vectors::<S>());
        for tile in (ReduceTiles { n: task.n, lanes: T::lanes::<S>(), max, start: 0 }) {
            // SAFETY: the promise of `reduce_panel`; the tile is inside the rows of B and C.
            unsafe { with_reduce_tile!(S, tile, panel_tile::<S, T, R>(simd, semiring, task, tile)) }
        }
    }
}

/// One tile of a panel.
///
/// # Safety
/// As [`reduce_panel`].
#[inline(always)]
unsafe fn panel_tile<S: Simd, T: Number, R: Semiring<T>, const NV: usize>(
    simd: S,
    semiring: R,
    task: &ReducePanel<'_, T>,
    tile: Tile,
) {
    let rows = TileRows::<S, T, NV>::new(simd, tile);
    let packed = Packed::<S, T, NV> { simd, rows: task.scratch };
    let c = |row: u32| task.c.wrapping_add(row as usize * task.ldc + tile.start);
    let weighted = !task.weights.is_null();
    // SAFETY: the promise of `reduce_panel`; weights and offsets advance over the block's own.
    unsafe {
        rows.pack(task.b.add(tile.start), task.ldb, task.width, None, task.scratch);
        let (mut weights, mut offsets) = (task.weights, Offsets::new(task.block.offsets.as_ptr()));
        for pair in task.block.pairs {
            let [i, j] = pair.rows;
            let (mut x, mut y) = (rows.load(c(i)), rows.load(c(j)));
            let [mut w, mut v] = [weights, weights.wrapping_add(pair.nnz() as usize)];
            // Columns that both have, one load of B for both; then those of each, in turn.
            for (columns, each) in [(pair.both as usize, 1), (pair.each as usize, 2)] {
                let mut word = 0;
                for t in 0..columns {
                    if (t * each).is_multiple_of(OFFSETS_PER_WORD) {
                        word = offsets.take();
                    }
                    let mut b = packed.row(word);
                    semiring.accumulate(simd, &mut x, weight(simd, weighted, w), &b);
                    if each == 2 {
                        word >>= 8;
                        b = packed.row(word);
                    }
                    word >>= 8;
                    semiring.accumulate(simd, &mut y, weight(simd, weighted, v), &b);
                    (w, v) = (w.wrapping_add(1), v.wrapping_add(1));
                }
            }
            rows.store(c(i), x);
            rows.store(c(j), y);
            weights = weights.wrapping_add(2 * pair.nnz() as usize);
        }
        for (s, segment) in task.block.segments.iter().enumerate() {
            if let Some(next) = task.block.segments.get(s + 2) {
                prefetch_row(c(next.row), TileRows::<S, T, NV>::BYTES);
            }
            let mut sum = rows.load(c(segment.row));
            let mut word = 0;
            for t in 0..segment.nnz as usize {
                if t.is_multiple_of(OFFSETS_PER_WORD) {
                    word = offsets.take();
                }
                semiring.accumulate(simd, &mut sum, weight(simd, weighted, weights.wrapping_add(t)), &packed.row(word));
                word >>= 8;
            }
            rows.store(c(segment.row), sum);
            weights = weights.wrapping_add(segment.nnz as usize);
        }
    }
}

/// The weight at `w` in all lanes, or ones.
///
/// # Safety
/// `w` is valid for reads where rows are `weighted`.
#[inline(always)]
unsafe fn weight<S: Simd, T: Number>(simd: S, weighted: bool, w: *const T) -> T::Vector<S> {
    // SAFETY: the caller's promise.
    T::splat(simd, if weighted { unsafe { *w } } else { T::ONE })
}

/// A packed panel.
#[derive(Clone, Copy)]
struct Packed<S, T, const NV: usize> {
    simd: S,
    rows: *const T,
}

impl<S: Simd, T: Number, const NV: usize> Packed<S, T, NV> {
    /// The row at the offset in the low byte of `word`.
    ///
    /// # Safety
    /// It is one of the panel's.
    #[inline(always)]
    unsafe fn row(&self, word: u64) -> [T::Vector<S>; NV] {
        // SAFETY: the caller's promise; no mask is used.
        unsafe {
            let row = self.rows.add((word & 255) as usize * NV * T::lanes::<S>());
            tile::load::<S, T, NV, false>(self.simd, T::first_lanes(self.simd, 0), row)
        }
    }
}

/// y = add(x, y), element by element: joins the parts of a row that tasks shared.
///
/// # Panics
/// When the slices differ in length.
pub fn reduce_into<T: Number, R: Semiring<T>>(semiring: R, x: &[T], y: &mut [T]) {
    assert_eq!(x.len(), y.len(), "x and y have one length");
    let simd = pulp::Scalar;
    for i in 0..x.len() {
        // SAFETY: a vector of this instruction set is one element.
        unsafe {
            let (x, y) = (x.as_ptr().add(i), y.as_mut_ptr().add(i));
            T::store(simd, y, semiring.add(simd, T::load(simd, x), T::load(simd, y)));
        }
    }
}
