//! FusedMM: E = f(C B^T on a pattern) D, the edge values f(..) never stored for the whole matrix.
//!
//! ```text
//! direct: for i in rows                             panel: for each panel of B's and D's rows
//!     for chunk of row i's columns                      dots of the row block with the panel (SDDMM) -> w, in L2
//!         w_j = f(C_i . B_j) for j in chunk             w = f(w)                                  (`edge_block`)
//!         E_i += sum over the chunk of w_j D_j          E_i += sum_j w_j D_j for the row block (SpMM)
//! ```
//!
//! Nonzero by nonzero, B and D compete for the caches where they are two matrices: the direct path then runs SDDMM, the edge
//! function and SpMM on rows whose edge values fit a buffer (`stage`), and the loop above where D is B.
//!
//! (Zubair and Bauinger 2023, their Figure 11; Rahman, Sujon and Azad 2021.) The row-softmax is online: with m the largest
//! f so far and l the sum of e^(f - m), a chunk that raises m by d scales l and E_i by e^-d; E_i is divided by l at the end. In stages m is
//! 0 as long as no f is far from it (`softmax`).

mod inner_rows;
mod softmax;
mod stage;

use pulp::{Simd, WithSimd};

use self::inner_rows::run_inner;
use self::softmax::{exponentials, scale_row, softmax_step};
pub use self::stage::{EdgeBlock, EdgeRows, SoftmaxRow, SoftmaxScale, edge_block, edge_rows, softmax_scale};
use crate::arch::dispatch_stored;
use crate::convert::narrow_row;
use crate::dot::{Sink, dots};
use crate::rows::{Gathered, Prefetch, axpy_gathered, by_prefetch};
use crate::sddmm::{MOST_VECTORS, prefetch_later_rows};
use crate::tile::{self, Lines, Tile, Tiles, store_zeros, tiles_of, with_vectors, with_width};
use crate::walk::{Part, ROWS, Walk};
use crate::{Arch, EdgeFunction, Number, RowPtr, Scalar, Stored, stream_fence};

/// Most nonzeros of a row whose weights are held at a time.
const CHUNK: usize = 64;

/// Bytes of B's rows in between, half of a small L1: those of D, where it is B, are read again. 32 rows instead of 64 at N = 128:
/// 107 instead of 100 GFLOP/s on facebook_combined, 60 instead of 55 on ca-CondMat (f32, two threads, Zen 4).
const CHUNK_BYTES: usize = 16 << 10;

/// Rows of the direct path.
#[derive(Clone, Copy, Debug)]
pub struct FusedRows<D: Stored> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// CSR values; null (then they are zeros to the edge function) when the edge function does not use them.
    pub values: *const D::Scalar,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: the first row may begin before and the last one end after.
    pub nonzeros: [usize; 2],
    /// C and its row stride.
    pub c: (*const D, usize),
    /// B and its row stride.
    pub b: (*const D, usize),
    /// Columns of C and B.
    pub n: usize,
    /// D and its row stride.
    pub d: (*const D, usize),
    /// E and its row stride.
    pub e: (*mut D, usize),
    /// Columns of D and E.
    pub width: usize,
    /// Where the first row goes instead of E, unless null; likewise the last one, if it is another, where elements are narrow.
    pub carry_out: [*mut D::Scalar; 2],
    /// Where elements are narrow, room for a row of E: it is rounded when it is complete.
    pub row: *mut D::Scalar,
    /// For a softmax over rows taken in part: (m, l) of the first row and of the last. Such rows are not divided by l.
    pub partial: *mut [[D::Scalar; 2]; 2],
    /// How many nonzeros ahead rows of B are prefetched; 0 for not at all. Those of D, which is B as a rule, are not.
    pub prefetch_distance: usize,
    /// Columns of a panel that a block of rows shares, and all columns. Narrow elements have all of them in one panel.
    pub panel: [usize; 2],
    /// Whether rows of E bypass the caches, where they are written in one go.
    pub stream: bool,
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every row is a row of C and E and every column a row of B and D, the operands have the
/// strides and sizes stated, and no one else uses the task's rows of E, `carry_out` or `partial` at the same time.
pub unsafe fn fused_rows<D: Stored>(arch: Arch, edge: EdgeFunction<'_, D::Scalar>, task: FusedRows<D>) {
    let task = Rows { edge, softmax: edge.is_softmax(), task };
    dispatch_stored!(arch, task, Rows, |arch, task| task.dispatch(arch));
}

/// The direct path.
#[derive(Clone, Copy)]
struct Rows<'a, D: Stored> {
    edge: EdgeFunction<'a, D::Scalar>,
    /// Whether the weights of a row are normalised.
    softmax: bool,
    task: FusedRows<D>,
}

impl<D: Stored> Rows<'_, D> {
    /// To the code for where rows are prefetched. All loops over nonzeros in one function take the compiler long: some of its passes go
    /// through the outermost loop, there that over rows, for each of the loops inside.
    #[inline(always)]
    fn dispatch(self, arch: Arch) {
        // SAFETY: the promise of `fused_rows`.
        let done = unsafe { run_inner(arch, &self) };
        by_prefetch!(Prefetch::at(self.task.prefetch_distance), PREFETCH => {
            arch.dispatch(Prefetching::<D, PREFETCH> { arch, rows: self, done });
        });
    }
}

/// The direct path as pulp runs it, where rows are prefetched as the constant says.
#[derive(Clone, Copy)]
struct Prefetching<'a, D: Stored, const PREFETCH: u8> {
    arch: Arch,
    rows: Rows<'a, D>,
    /// Rows that have been taken already, after the first and before the last one.
    done: [usize; 2],
}

impl<D: Stored, const PREFETCH: u8> WithSimd for Prefetching<'_, D, PREFETCH> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Rows { softmax, ref task, .. } = self.rows;
        let none = [D::Scalar::NEG_INFINITY, D::Scalar::ZERO];
        // SAFETY: the promise of `fused_rows`.
        unsafe {
            let mut states = [none; ROWS];
            let walk = Walk::new(task.row_ptr, task.columns, task.values, task.rows, task.nonzeros, task.panel);
            let vectors = (task.n + task.width).div_ceil(D::Scalar::lanes::<S>());
            let mut walk = walk.gathering(task.prefetch_distance, vectors);
            let mut weights = Lines([D::Scalar::ZERO; CHUNK]);
            let chunk = (weights.0.as_mut_ptr(), task.chunk());
            let tiles = [tiles_of::<S, D>(task.n, MOST_VECTORS), tiles_of::<S, D>(task.width, 8)];
            while let Some(part) = walk.next() {
                if part.row + 1 == self.done[0] {
                    walk.skip_to(self.done[1]);
                }
                let own = task.e.0.wrapping_add(part.row * task.e.1);
                let row = match part.inner {
                    true => RowOf::whole(if D::NARROW { task.row } else { own.cast() }, &part),
                    false => task.row_of(own, &part),
                };
                // Stores to rows of E in L3 waited for a sixth of the time (pubmed, N = 128, D = B, Zen 5). Where the operands are in L2
                // the prefetches cost 5 to 10 %.
                if task.prefetch_distance > 0 && !task.stream {
                    prefetch_later_rows(own, task.e.1, task.width * size_of::<D>());
                }
                if part.first && row.empty {
                    if D::NARROW {
                        row.e.write_bytes(0, task.width);
                    } else {
                        for tile in tiles[1] {
                            let e = row.e.add(tile.start);
                            with_vectors!(tile, store_zeros::<S, D::Scalar>(simd, e, tile.rest, task.stream));
                        }
                    }
                }
                let state = fused_part::<S, D, 0>(
                    (self.arch, simd),
                    &self.rows,
                    Prefetch::of(PREFETCH),
                    &part,
                    row,
                    (chunk, tiles),
                    if part.first { none } else { states[part.slot] },
                );
                if softmax && !part.last {
                    states[part.slot] = state;
                } else if softmax {
                    if row.all {
                        // A row without nonzeros is zeros; the weights of a row of one chunk are divided already.
                        if state[1] != D::Scalar::ZERO && state[1] != D::Scalar::ONE {
                            scale_row::<S, D::Scalar>(simd, row.e, task.width, D::Scalar::ONE / state[1]);
                        }
                    } else {
                        (*task.partial)[usize::from(!row.carries)] = state;
                    }
                }
                if D::NARROW && row.e == task.row {
                    narrow_row::<S, D>(simd, row.e, task.width, own, task.stream);
                }
            }
            if task.stream {
                stream_fence();
            }
        }
    }
}

impl<D: Stored> FusedRows<D> {
    /// Most nonzeros of a row whose weights are held at a time.
    #[inline(always)]
    fn chunk(&self) -> usize {
        (CHUNK_BYTES / (self.n * size_of::<D>()).max(1)).clamp(16, CHUNK)
    }

    /// The row of a part, which may be taken in part, or in parts; `own` is its row of E.
    ///
    /// # Safety
    /// The part is one of the task's.
    #[inline(always)]
    unsafe fn row_of(&self, own: *mut D, part: &Part) -> RowOf<D::Scalar> {
        let i = part.row;
        // SAFETY: the caller's promise.
        let [start, end] = unsafe { [self.row_ptr.at(i), self.row_ptr.at(i + 1)] };
        let begin = start.max(self.nonzeros[0]);
        let carries = i == self.rows[0] && !self.carry_out[0].is_null();
        let goes_on = D::NARROW && i + 1 == self.rows[1] && !self.carry_out[1].is_null();
        let e = if carries {
            self.carry_out[0]
        } else if goes_on {
            self.carry_out[1]
        } else if D::NARROW {
            self.row
        } else {
            own.cast()
        };
        let all = start >= self.nonzeros[0] && end <= self.nonzeros[1];
        RowOf { e, fresh: part.start == begin, all, carries, empty: begin >= end.min(self.nonzeros[1]) }
    }

    /// One tile of the rows of B or D for the nonzeros from `start` on.
    ///
    /// # Safety
    /// `start` is one of the task's nonzeros, the tile inside the rows.
    #[inline(always)]
    unsafe fn rows_of(
        &self,
        prefetch: Prefetch,
        (base, stride): (*const D, usize),
        start: usize,
        tile: Tile,
    ) -> Gathered<D> {
        // SAFETY: the caller's promise.
        unsafe {
            Gathered {
                columns: self.columns.add(start),
                base: base.add(tile.start),
                stride,
                last: self.nonzeros[1] - 1 - start,
                prefetch_distance: self.prefetch_distance,
                prefetch,
            }
        }
    }
}

/// A row of E.
#[derive(Clone, Copy)]
struct RowOf<T> {
    /// Where it goes.
    e: *mut T,
    /// It is not read: the part is its first with nonzeros.
    fresh: bool,
    /// All of its nonzeros are the task's.
    all: bool,
    /// It is the task's first, and goes elsewhere than to E.
    carries: bool,
    /// The task has no nonzero of it.
    empty: bool,
}

impl<T> RowOf<T> {
    /// That of a part that is all of it.
    #[inline(always)]
    fn whole(e: *mut T, part: &Part) -> Self {
        Self { e, fresh: true, all: true, carries: false, empty: part.start == part.end }
    }
}

/// One part of a row, and its (m, l) so far: l is 1 where the weights are divided by their sum already. Rows are one whole tile of `NV` vectors,
/// or, with 0, as `tiles` say.
///
/// # Safety
/// As [`fused_rows`]; `part` is one of the task's, `e` is valid for writes of a row of E, and `w` of `most` weights rounded up to registers.
#[inline(always)]
unsafe fn fused_part<S: Simd, D: Stored, const NV: usize>(
    (arch, simd): (Arch, S),
    &Rows { edge, softmax, ref task }: &Rows<'_, D>,
    prefetch: Prefetch,
    part: &Part,
    RowOf { e, fresh, all, .. }: RowOf<D::Scalar>,
    ((w, most), tiles): ((*mut D::Scalar, usize), [Tiles; 2]),
    mut state: [D::Scalar; 2],
) -> [D::Scalar; 2] {
    // SAFETY: the promise of `fused_rows`; chunks are inside `part`, and a chunk's weights fit `w`.
    unsafe {
        let mut start = part.start;
        while start < part.end {
            let len = most.min(part.end - start);
            for tile in tiles[0] {
                let c = task.c.0.add(part.row * task.c.1 + tile.start);
                let rows = task.rows_of(prefetch, task.b, start, tile);
                if NV > 0 {
                    dots_tile::<S, D, NV, false>(simd, tile, (c, task.c.1), &rows, len, w);
                    break;
                }
                with_width!(tile, dots_tile::<S, D>(simd, tile, (c, task.c.1), &rows, len, w));
            }
            let values = if task.values.is_null() { task.values } else { task.values.wrapping_add(start) };
            edge.apply::<S>((arch, simd), true, w, w, values, len);
            let fresh = fresh && start == part.start;
            // The row's only chunk.
            let only = fresh && part.last && start + len == part.end;
            let mut rescale = D::Scalar::ONE;
            if softmax && only && all {
                let [m, _] = exponentials::<S, D::Scalar, true>(simd, D::Scalar::NEG_INFINITY, w, w, len, true);
                state = [m, D::Scalar::ONE];
            } else if softmax {
                (state, rescale) = softmax_step::<S, D::Scalar, true>(simd, state, w, w, len);
            }
            // Further chunks read the row again; so does a softmax that is not divided yet.
            let stream = task.stream && !D::NARROW && only && (all || !softmax);
            let mode = Accumulate { fresh, rescale, stream };
            for tile in tiles[1] {
                // D is B as a rule: its rows have just been read. To prefetch those of the dots to come is no gain: 1.0 to 1.1 times the time
                // with whole rows, 1.0 to 1.13 with a half of each here and the other beside the dots (six graphs, N = 128, f32, Zen 4).
                let rows = task.rows_of(Prefetch::None, task.d, start, tile);
                if NV > 0 {
                    add_tile::<S, D, NV, false>(simd, tile, e.add(tile.start), &rows, len, w, mode);
                    break;
                }
                with_width!(tile, add_tile::<S, D>(simd, tile, e.add(tile.start), &rows, len, w, mode));
            }
            start += len;
        }
    }
    state
}

/// Dots of one tile, added to those of the tiles before.
///
/// # Safety
/// `c` and the rows are valid for the tile, `out` for `len` elements rounded up to registers.
#[inline(always)]
unsafe fn dots_tile<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    tile: Tile,
    (c, ldc): (*const D, usize),
    rows: &Gathered<D>,
    len: usize,
    out: *mut D::Scalar,
) {
    let mask = tile.mask::<S, D::Scalar>(simd);
    if rows.prefetch_distance > 0 {
        prefetch_later_rows(c, ldc, NV * D::Scalar::lanes::<S>() * size_of::<D>());
    }
    // SAFETY: the caller's promise.
    unsafe {
        let c = tile::load_reordered::<S, D, NV, TAIL>(simd, mask, c);
        dots::<S, D, NV, TAIL>(simd, mask, &c, len, rows, &Chunk { out, add: tile.start > 0 });
    }
}

/// The dots of a chunk: whole registers are stored, whatever the number of dots, since what is stored under a mask
/// cannot be forwarded to the loads that follow at once. They would wait until all stores before are done: those of E,
/// in memory.
struct Chunk<T> {
    out: *mut T,
    /// To the sums of the tiles before.
    add: bool,
}

impl<T: Scalar> Sink<T> for Chunk<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, _: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: registers of dots begin at multiples of their lanes, and a chunk's room is a multiple of those.
        unsafe {
            let out = self.out.add(at);
            if self.add {
                dots = T::vadd(simd, dots, T::load(simd, out));
            }
            T::store(simd, out, dots);
        }
    }
}

/// What becomes of the row of E before a chunk is added.
#[derive(Clone, Copy)]
struct Accumulate<T> {
    /// It is not read: this is the first chunk.
    fresh: bool,
    /// It is multiplied by this.
    rescale: T,
    /// What becomes of it bypasses the caches.
    stream: bool,
}

/// One tile of E plus a chunk.
///
/// # Safety
/// `e` and the rows are valid for the tile, `weights` for `len` elements.
#[inline(always)]
unsafe fn add_tile<S: Simd, D: Stored, const NV: usize, const TAIL: bool>(
    simd: S,
    tile: Tile,
    e: *mut D::Scalar,
    rows: &Gathered<D>,
    len: usize,
    weights: *const D::Scalar,
    mode: Accumulate<D::Scalar>,
) {
    let mask = tile.mask::<S, D::Scalar>(simd);
    let mut sum = [D::Scalar::splat(simd, D::Scalar::ZERO); NV];
    // SAFETY: the caller's promise.
    unsafe {
        if !mode.fresh {
            let rescale = D::Scalar::splat(simd, mode.rescale);
            sum = tile::load::<S, D::Scalar, NV, TAIL>(simd, mask, e);
            for x in &mut sum {
                *x = D::Scalar::vmul(simd, rescale, *x);
            }
        }
        let sum = axpy_gathered::<S, D, NV, TAIL>(simd, mask, sum, len, weights, rows);
        tile::store_or_stream::<S, D::Scalar, NV, TAIL>(simd, mask, e, sum, mode.stream);
    }
}
