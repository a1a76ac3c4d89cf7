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
//! The panel path is SpMM's own code (`panel`), the direct path has the same loop. A term is two or three instructions instead of one
//! multiply-add, so there is nothing to gain from several sets of sums, and the direct path is compiled for fewer widths of tiles.

mod column;

use pulp::{Simd, WithSimd};

use crate::block::Block;
use crate::finite::Operands;
use crate::panel::{PanelTask, RowBlockSums};
use crate::rows::{Gathered, Prefetch, by_prefetch};
use crate::semiring::{BuiltIn, Extreme, MAX_TIMES, MIN_TIMES, Semiring};
use crate::tile::{Tile, TileRows, store_or_stream};
use crate::walk::{Part, Walk};
use crate::{Arch, Number, RowPtr, stream_fence};

/// Dispatches `$task`, a `$task_of<T, $semiring>`, as its element type: in this crate, once. The last argument, if there is one, is what
/// to do with the task instead.
macro_rules! dispatch_numbers {
    ($arch:expr, $task:expr, $task_of:ident) => {
        $crate::reduce::dispatch_numbers!($arch, $task, $task_of<BuiltIn>, f32 f64 i32 i64)
    };
    ($arch:expr, $task:expr, $task_of:ident<$semiring:ty>, $($t:ident)+) => {
        $crate::reduce::dispatch_numbers!($arch, $task, $task_of<$semiring>, $($t)+, |arch, task| arch.dispatch(task))
    };
    ($arch:expr, $task:expr, $task_of:ident<$semiring:ty>, $($t:ident)+, |$a:ident, $x:ident| $run:expr) => {{
        $(
            fn $t($a: $crate::Arch, $x: $task_of<$t, $semiring>) {
                $run;
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

/// The most vectors of a tile where there are so many registers: the sums and a row's terms in half of them.
#[inline(always)]
pub(crate) const fn most_vectors(registers: usize) -> usize {
    if registers < 32 { 4 } else { 8 }
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
    macro_rules! run {
        ($semiring:expr, $of:ty) => {{
            let task = Rows { semiring: $semiring, task };
            dispatch_numbers!(arch, task, Rows<$of>, f32 f64 i32 i64, |arch, task| task.dispatch(arch));
        }};
    }
    if let Some(built_in) = const { R::BUILT_IN } {
        // The largest and the smallest term are compiled by themselves: in rows of few nonzeros, the branches on the operations take as
        // long as the operations.
        match built_in(semiring) {
            MAX_TIMES => run!(Extreme::<true, false>, Extreme<true, false>),
            MIN_TIMES => run!(Extreme::<false, false>, Extreme<false, false>),
            semiring => run!(semiring, BuiltIn),
        }
    } else if const { R::BUILT_IN.is_none() } {
        Rows { semiring, task }.dispatch(arch);
    }
}

/// A task with its semiring.
#[derive(Clone, Copy)]
struct Rows<T, R> {
    semiring: R,
    task: ReduceRows<T>,
}

impl<T: Number, R: Semiring<T>> Rows<T, R> {
    /// To the code for each tile's width: all widths in one function take the compiler longer.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        if self.task.n == 1 {
            by_prefetch!(Prefetch::at(self.task.prefetch_distance), PREFETCH => {
                return arch.dispatch(Column::<T, R, PREFETCH>(self));
            });
        }
        for tile in
            (ReduceTiles { n: self.task.n, lanes: arch.lanes::<T>(), max: most_vectors(arch.registers()), start: 0 })
        {
            match tile.vectors {
                8 => arch.dispatch(RowsTile::<T, R, 8> { rows: self, tile }),
                4 => arch.dispatch(RowsTile::<T, R, 4> { rows: self, tile }),
                2 => arch.dispatch(RowsTile::<T, R, 2> { rows: self, tile }),
                _ => arch.dispatch(RowsTile::<T, R, 1> { rows: self, tile }),
            }
        }
        if self.task.stream {
            stream_fence();
        }
    }
}

/// N = 1, rows of B prefetched by the constant for [`Gathered::row`].
struct Column<T, R, const PREFETCH: u8>(Rows<T, R>);

impl<T: Number, R: Semiring<T>, const PREFETCH: u8> WithSimd for Column<T, R, PREFETCH> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Rows { semiring, task } = &self.0;
        // SAFETY: the promise of `reduce_rows`; this is the task's code where N is 1.
        unsafe { column::column::<S, T, R, PREFETCH>(simd, *semiring, task) }
    }
}

/// One tile of all the rows, as pulp runs it.
struct RowsTile<T, R, const NV: usize> {
    rows: Rows<T, R>,
    tile: Tile,
}

impl<T: Number, R: Semiring<T>, const NV: usize> WithSimd for RowsTile<T, R, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Other widths are not compiled, as no tile has them.
        if const { NV <= most_vectors(S::REGISTER_COUNT) && !(S::IS_SCALAR && NV == 2) } {
            let Rows { semiring, task } = &self.rows;
            // SAFETY: the promise of `reduce_rows`; the tile is inside the rows of B and C.
            unsafe { rows_tile::<S, T, R, NV>(simd, *semiring, task, self.tile) }
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
    let one = T::ONE;
    // SAFETY: the promise of `reduce_rows`.
    unsafe {
        let walk = Walk::new(task.row_ptr, task.columns, task.values, task.rows, task.nonzeros, task.panel);
        for Part { row, start, end, first, last, .. } in walk.gathering(task.prefetch_distance, NV) {
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
                prefetch: Prefetch::at(task.prefetch_distance),
            };
            // Without values, one 1 again and again: no branch for each nonzero.
            let (values, step) = match task.values.is_null() {
                true => (&raw const one, 0),
                false => (task.values.wrapping_add(start), 1),
            };
            by_prefetch!(gathered.prefetch, PREFETCH => {
                for t in 0..end - start {
                    let b = rows.load(gathered.row::<PREFETCH>(t, bytes));
                    semiring.accumulate(simd, &mut sum, T::splat(simd, *values.wrapping_add(t * step)), &b);
                }
            });
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
    /// The weight of each nonzero in the order of the block.
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

/// Runs the task, whose numbers are f32 or f64: no others are prepared.
///
/// # Safety
/// The block's rows are rows of C and its offsets below `width`; the operands have the strides and sizes stated, and no
/// one else uses the rows of C or the scratch at the same time.
pub unsafe fn reduce_panel<T: Number, R: Semiring<T>>(arch: Arch, semiring: R, task: ReducePanel<'_, T>) {
    macro_rules! run {
        ($semiring:expr, $of:ty) => {{
            let task = task.over($semiring, arch);
            // SAFETY: the caller's promise.
            dispatch_numbers!(arch, task, PanelTask<$of>, f32 f64, |arch, task| unsafe { task.run::<false>(arch) });
        }};
    }
    if let Some(built_in) = const { R::BUILT_IN } {
        // Of finite operands no product is NaN.
        // SAFETY: the caller's promise.
        let finite = || unsafe { Operands::of(&task).are_finite(arch) };
        match built_in(semiring) {
            MAX_TIMES if finite() => run!(Extreme::<true, true>, Extreme<true, true>),
            MIN_TIMES if finite() => run!(Extreme::<false, true>, Extreme<false, true>),
            semiring => run!(semiring, BuiltIn),
        }
    } else if const { R::BUILT_IN.is_none() } {
        // SAFETY: the caller's promise.
        unsafe { task.over(semiring, arch).run::<false>(arch) };
    }
}

impl<'a, T: Number> ReducePanel<'a, T> {
    fn over<R>(self, semiring: R, arch: Arch) -> PanelTask<'a, T, R> {
        let Self { block, weights, b, ldb, width, n, c, ldc, vectors, scratch } = self;
        // The sums and a row's terms in half of the registers.
        let vectors = vectors.min(arch.registers() / 4);
        let c = RowBlockSums::to_add_to(c, ldc);
        PanelTask { semiring, block, weights, b, ldb, width, n, alpha: None, c, vectors, scratch }
    }
}

/// y = add(x, y), element by element: joins the parts of a row that tasks shared.
///
/// # Panics
/// When the slices differ in length.
pub fn reduce_into<T: Number, R: Semiring<T>>(semiring: R, x: &[T], y: &mut [T]) {
    assert_eq!(x.len(), y.len(), "x and y have one length");
    for (&x, y) in x.iter().zip(y) {
        *y = column::added(semiring, x, *y);
    }
}
