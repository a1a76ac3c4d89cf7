//! MTTKRP of one mode from nonzeros re-laid for it: by tiles of the input factors, then by rows of the output.
//!
//! ```text
//! for tile:                                  rows of the factors that fit L2 together
//!     for run (row i, chunks of length F):   the sum of a row in registers
//!         for chunk:                         F nonzeros that share the coordinates of SHARED modes
//!             t = sum over the chunk of x * (product of the FREE factors' rows)
//!             sum += t * (product of the SHARED factors' rows)
//!         out[i] += sum                      or out[i] = sum, where every row has one run
//! ```
//!
//! The chunk length F is 1, 2, 4 or 8 for a whole run, so no branch depends on the length of a single fiber: with fibers
//! of one or two nonzeros, mispredicted loop ends cost more than the arithmetic they save. Coordinates are stored as
//! offsets from the tile's corner, of 16 bits where tiles are small enough.

use pulp::{Simd, WithSimd};

use super::{
    MAX_ORDER, Operands, Panel, accumulate, add, add_to, load, panels, prefetch_panel, scale_by, store, zeros,
};
use crate::arch::dispatch_stored;
use crate::stored::Vector;
use crate::stream::{store_streaming, stream_fence};
use crate::{Arch, LINE, Number, Stored};

/// The farthest prefetch, in nonzeros.
pub const TILED_MOST_DISTANCE: usize = 63;

/// Offsets that must be readable after the last one: as far as a prefetch looks ahead.
pub const TILED_PADDING: usize = (TILED_MOST_DISTANCE + 1) * MAX_ORDER;

/// Coordinates' distances from the corner of their tile.
#[derive(Clone, Copy, Debug)]
pub enum OffsetsView<'a> {
    /// Of tiles up to 65 536 long.
    Short {
        /// For every chunk the offsets of its shared modes; [`TILED_PADDING`] more follow the last, if there are such
        /// modes.
        shared: &'a [u16],
        /// For every nonzero the offsets of its free modes; [`TILED_PADDING`] more follow the last.
        free: &'a [u16],
    },
    /// Of longer ones.
    Long {
        /// As above.
        shared: &'a [u32],
        /// As above.
        free: &'a [u32],
    },
}

/// A type of offsets.
trait Offset: Copy {
    fn get(self) -> usize;
}

impl Offset for u16 {
    #[inline(always)]
    fn get(self) -> usize {
        usize::from(self)
    }
}

impl Offset for u32 {
    #[inline(always)]
    fn get(self) -> usize {
        self as usize
    }
}

/// Chunks of one length in one row of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    row: u32,
    /// Number of chunks in the low 30 bits, the chunk length's logarithm in the high two.
    chunks: u32,
}

impl Run {
    /// The most chunks of a run.
    pub const MOST_CHUNKS: usize = (1 << 30) - 1;

    /// At most [`Run::MOST_CHUNKS`] chunks of `2^log_length` nonzeros, 1 to 8, in a row of the output.
    pub fn new(row: u32, chunks: usize, log_length: u32) -> Self {
        debug_assert!(chunks <= Self::MOST_CHUNKS && log_length <= 3);
        Self { row, chunks: chunks as u32 | log_length << 30 }
    }

    /// The row of the output.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        self.row
    }

    /// Number of chunks.
    #[inline(always)]
    pub fn chunks(&self) -> usize {
        self.chunks as usize & Self::MOST_CHUNKS
    }

    /// The logarithm of the chunks' length: 0 to 3.
    #[inline(always)]
    pub fn log_length(&self) -> u32 {
        self.chunks >> 30
    }
}

/// What becomes of the sum of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// It is added to the row of the output.
    Add,
    /// It becomes the row, which has no other run.
    Store,
    /// The same past the caches.
    Stream,
}

/// A box of the tensor: the rows of all factors that its nonzeros name are close together.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    /// The smallest coordinate of each input mode, in the order of [`TiledView::inputs`].
    pub corner: [u32; MAX_ORDER],
    /// Its runs: first, and one past the last.
    pub runs: (usize, usize),
    /// Its first chunk.
    pub chunk: usize,
    /// Its first nonzero.
    pub entry: usize,
}

/// Nonzeros laid out for one output mode, and the part of them that one task computes.
#[derive(Clone, Copy, Debug)]
pub struct TiledView<'a, T> {
    /// The input modes: `shared` ones that a chunk's nonzeros share, then the free ones (at least one).
    pub inputs: &'a [usize],
    /// Number of shared modes.
    pub shared: usize,
    /// The tiles of the task.
    pub tiles: &'a [Tile],
    /// All runs.
    pub runs: &'a [Run],
    /// The offsets of all chunks and nonzeros.
    pub offsets: OffsetsView<'a>,
    /// The values.
    pub values: &'a [T],
}

/// A task as it comes, before its offsets and numbers of modes have become types.
#[derive(Clone, Copy)]
struct Task<'a, D: Stored> {
    view: TiledView<'a, D::Scalar>,
    operands: Operands<'a, D>,
    write: Write,
}

struct Tiled<'a, D: Stored, I, const SHARED: usize, const FREE: usize> {
    view: TiledView<'a, D::Scalar>,
    shared_offsets: *const I,
    free_offsets: *const I,
    operands: Operands<'a, D>,
    write: Write,
}

/// Adds the contributions of the task's tiles to the rows of the output that their runs name, or overwrites them.
///
/// # Safety
/// Stride and columns of `operands` are whole registers of `arch`, and the prefetch distance is at most
/// [`TILED_MOST_DISTANCE`]. Runs, chunks and nonzeros are as many as the tiles and runs say, every corner plus offset
/// is a row of its factor; every run's row is one of the output's that nobody else uses. Past the caches only rows are
/// written that are aligned to registers.
pub unsafe fn mttkrp_tiled<D: Stored>(
    arch: Arch,
    view: TiledView<'_, D::Scalar>,
    operands: Operands<'_, D>,
    write: Write,
) {
    dispatch_stored!(arch, Task::<D> { view, operands, write }, Task, |arch, task| task.dispatch(arch));
    if write == Write::Stream {
        stream_fence();
    }
}

impl<D: Stored> Task<'_, D> {
    /// Numbers of shared and of free modes.
    fn modes(&self) -> (usize, usize) {
        (self.view.shared, self.view.inputs.len() - self.view.shared)
    }

    /// To the code for the task's offsets and numbers of shared and free modes.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        match self.view.offsets {
            OffsetsView::Short { shared, free } => {
                let offsets = (shared.as_ptr(), free.as_ptr());
                match self.modes() {
                    _ if const { D::NARROW } => Tiled::<D, u16, 0, 0>::run(arch, self, offsets),
                    (0, 2) => Tiled::<D, u16, 0, 2>::run(arch, self, offsets),
                    (1, 1) => Tiled::<D, u16, 1, 1>::run(arch, self, offsets),
                    (0, 3) => Tiled::<D, u16, 0, 3>::run(arch, self, offsets),
                    (1, 2) => Tiled::<D, u16, 1, 2>::run(arch, self, offsets),
                    (2, 1) => Tiled::<D, u16, 2, 1>::run(arch, self, offsets),
                    // FREE 0 stands for numbers known at run time only.
                    _ => Tiled::<D, u16, 0, 0>::run(arch, self, offsets),
                }
            }
            // Tiles as long as these mean rows from L3 or beyond, which hide what the loops over the modes cost; not so at order 3
            // without shared modes, where they cost 4 %.
            OffsetsView::Long { shared, free } => {
                let offsets = (shared.as_ptr(), free.as_ptr());
                match self.modes() {
                    (0, 2) => Tiled::<D, u32, 0, 2>::run(arch, self, offsets),
                    _ => Tiled::<D, u32, 0, 0>::run(arch, self, offsets),
                }
            }
        }
    }
}

impl<'a, D: Stored, I: Offset, const SHARED: usize, const FREE: usize> Tiled<'a, D, I, SHARED, FREE> {
    #[inline(always)]
    fn run(arch: Arch, task: Task<'a, D>, (shared_offsets, free_offsets): (*const I, *const I)) {
        let Task { view, operands, write } = task;
        let tiled = Self { view, shared_offsets, free_offsets, operands, write };
        // Without vectors there is nothing to specialise for.
        arch.dispatch_vectors(tiled, |simd| {
            Tiled::<D, I, 0, 0> { view, shared_offsets, free_offsets, operands, write }.general(simd);
        });
    }
}

impl<D: Stored, I: Offset> Tiled<'_, D, I, 0, 0> {
    #[inline(never)]
    fn general(self, simd: pulp::Scalar) {
        self.with_simd(simd);
    }
}

impl<D: Stored, I: Offset, const SHARED: usize, const FREE: usize> WithSimd for Tiled<'_, D, I, SHARED, FREE> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels::<S, D::Scalar, _>(simd, self.operands.columns, &self) }
    }
}

/// Where a tile's traversal stands.
struct Cursor<T, I> {
    shared: *const I,
    free: *const I,
    value: *const T,
}

impl<D: Stored, I: Offset, const SHARED: usize, const FREE: usize> Tiled<'_, D, I, SHARED, FREE> {
    #[inline(always)]
    fn shared(&self) -> usize {
        if FREE == 0 { self.view.shared } else { SHARED }
    }

    #[inline(always)]
    fn free(&self) -> usize {
        if FREE == 0 { self.view.inputs.len() - self.view.shared } else { FREE }
    }

    /// `sum += x * (product of the free rows)` for the nonzero at the cursor, which moves on.
    #[inline(always)]
    unsafe fn nonzero<S: Simd, const G: usize>(
        &self,
        simd: S,
        cursor: &mut Cursor<D::Scalar, I>,
        factors: &[*const D; MAX_ORDER],
        sum: &mut [Vector<D, S>; G],
    ) {
        let (shared, free) = (self.shared(), self.free());
        let stride = self.operands.stride;
        // SAFETY: the cursor is at a nonzero; the padding covers what a prefetch reads; rows exist.
        unsafe {
            if self.operands.prefetch_distance != 0 {
                for m in 0..free {
                    let i = (*cursor.free.add(self.operands.prefetch_distance * free + m)).get();
                    prefetch_panel::<S, D, G>(
                        factors[shared + m].wrapping_add(i * stride),
                        self.operands.prefetch_distance,
                    );
                }
            }
            let row = |m: usize| factors[shared + m].add((*cursor.free.add(m)).get() * stride);
            let mut product = [D::Scalar::splat(simd, *cursor.value); G];
            for m in 0..free - 1 {
                scale_by::<S, D, G>(simd, &mut product, row(m));
            }
            accumulate::<S, D::Scalar, G>(simd, sum, &product, &load(simd, row(free - 1)));
            cursor.free = cursor.free.add(free);
            cursor.value = cursor.value.add(1);
        }
    }

    /// `sum += (sum of 2^log_length nonzeros) * (product of the shared rows)`; the cursor, at a chunk, moves on.
    #[inline(always)]
    unsafe fn chunk<S: Simd, const G: usize>(
        &self,
        simd: S,
        log_length: u32,
        cursor: &mut Cursor<D::Scalar, I>,
        factors: &[*const D; MAX_ORDER],
        sum: &mut [Vector<D, S>; G],
    ) {
        let shared = self.shared();
        // SAFETY: the cursor is at a chunk of as many nonzeros; the padding covers what a prefetch reads.
        unsafe {
            let mut partial = zeros::<S, D::Scalar, G>(simd);
            // Numbers of modes known at run time are loops in each nonzero: nothing is gained from two in a row.
            if FREE == 0 || log_length == 0 {
                for _ in 0..1usize << log_length {
                    self.nonzero::<S, G>(simd, cursor, factors, &mut partial);
                }
            } else {
                for _ in 0..(1usize << log_length) / 2 {
                    self.nonzero::<S, G>(simd, cursor, factors, &mut partial);
                    self.nonzero::<S, G>(simd, cursor, factors, &mut partial);
                }
            }
            let row = |place: usize, m: usize| {
                let offset = (*cursor.shared.add(place * shared + m)).get();
                factors[m].wrapping_add(offset * self.operands.stride)
            };
            // Where prefetches of the free rows keep the processor busy, what is not prefetched waits behind them: a
            // mode with shared fibers takes 14.8 ms instead of 18.5 (order 4, f64, R = 32, Zen 4). Rows of two lines
            // gain nothing.
            if self.operands.prefetch_distance != 0 && G * D::Scalar::lanes::<S>() * size_of::<D>() > 2 * LINE {
                // As far in chunks as the free rows are in nonzeros.
                let chunks = (self.operands.prefetch_distance >> log_length).max(1);
                for m in 0..shared {
                    prefetch_panel::<S, D, G>(row(chunks, m), self.operands.prefetch_distance);
                }
            }
            let mut product = load::<S, D, G>(simd, row(0, 0));
            for m in 1..shared {
                scale_by::<S, D, G>(simd, &mut product, row(0, m));
            }
            accumulate::<S, D::Scalar, G>(simd, sum, &partial, &product);
            cursor.shared = cursor.shared.add(shared);
        }
    }

    /// A run of nonzeros without shared modes, summed in two chains that hide the latency of the multiply-add.
    #[inline(always)]
    unsafe fn sum_nonzeros<S: Simd, const G: usize>(
        &self,
        simd: S,
        count: usize,
        cursor: &mut Cursor<D::Scalar, I>,
        factors: &[*const D; MAX_ORDER],
    ) -> [Vector<D, S>; G] {
        let mut even = zeros::<S, D::Scalar, G>(simd);
        let mut odd = zeros::<S, D::Scalar, G>(simd);
        // SAFETY: the cursor is at `count` nonzeros.
        unsafe {
            for _ in 0..count / 2 {
                self.nonzero::<S, G>(simd, cursor, factors, &mut even);
                self.nonzero::<S, G>(simd, cursor, factors, &mut odd);
            }
            if count % 2 == 1 {
                self.nonzero::<S, G>(simd, cursor, factors, &mut even);
            }
        }
        add::<S, D::Scalar, G>(simd, &mut even, &odd);
        even
    }
}

impl<D: Stored, I: Offset, const SHARED: usize, const FREE: usize> Panel<D::Scalar> for Tiled<'_, D, I, SHARED, FREE> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let Self { view, operands, .. } = self;
        let stride = operands.stride;
        for tile in view.tiles {
            let mut factors = [operands.factors[view.inputs[0]]; MAX_ORDER];
            for (m, &mode) in view.inputs.iter().enumerate() {
                factors[m] = operands.factors[mode].wrapping_add(tile.corner[m] as usize * stride + column);
            }
            // SAFETY: the tile's chunks and nonzeros are in range.
            let mut cursor = unsafe {
                Cursor {
                    shared: self.shared_offsets.add(tile.chunk * view.shared),
                    free: self.free_offsets.add(tile.entry * (view.inputs.len() - view.shared)),
                    value: view.values.as_ptr().add(tile.entry),
                }
            };
            let last = tile.runs.1.saturating_sub(1);
            for r in tile.runs.0..tile.runs.1 {
                // SAFETY: the runs are in range, the cursor is at the run's first nonzero, rows exist.
                unsafe {
                    let run = view.runs.get_unchecked(r);
                    let out = operands.out.wrapping_add(run.row() as usize * stride + column);
                    if self.write != Write::Stream {
                        let next = view.runs.get_unchecked((r + 3).min(last)).row() as usize;
                        prefetch_panel::<S, D::Scalar, G>(
                            operands.out.wrapping_add(next * stride + column),
                            operands.prefetch_distance,
                        );
                    }
                    let count = run.chunks();
                    let sum = if self.shared() == 0 {
                        self.sum_nonzeros::<S, G>(simd, count, &mut cursor, &factors)
                    } else {
                        // The chunks' own sums are independent, so one chain between them will do. Their length
                        // stays the same for the whole run, and so do the branches on it.
                        let mut sum = zeros::<S, D::Scalar, G>(simd);
                        let log_length = run.log_length();
                        for _ in 0..count {
                            self.chunk::<S, G>(simd, log_length, &mut cursor, &factors, &mut sum);
                        }
                        sum
                    };
                    match self.write {
                        Write::Add => add_to::<S, D::Scalar, G>(simd, out, &sum),
                        Write::Store => store::<S, D::Scalar, G>(simd, out, &sum),
                        Write::Stream => sum.iter().enumerate().for_each(|(g, &register)| {
                            store_streaming::<S, D::Scalar>(simd, out.add(g * D::Scalar::lanes::<S>()), register);
                        }),
                    }
                }
            }
        }
    }
}
