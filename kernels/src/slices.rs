//! SpMM with one column, SpMV, from slices of rows: c_i = alpha sum over row i of a_ij b_j + beta c_i, a register of rows at a time.
//!
//! ```text
//! for slice in slices                               as many rows as 64 bytes have elements
//!     sums = 0
//!     for run:      sums += values * b[j..]         row l has its nonzero in column j + l: one load of b
//!     for gathered: sums += values * b[j_0, j_1, ..]
//!     c[rows] = alpha sums + beta c[rows]
//! ```
//!
//! SELL-C-sigma (Kreutzer, Hager, Wellein, Fehske and Bishop 2014) with runs beside the gathered columns. There is no branch for a row's
//! length and no sum across lanes: what a row costs beside its nonzeros is a lane. Rows of a slice that have fewer nonzeros than others
//! have zeros instead, times some element of b: where a sum is not a number, it may be because of that, and the rows are computed again
//! straight from CSR.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_stored;
use crate::prefetch::prefetch_l1;
use crate::spmm::SpmmRows;
use crate::spmv::{AHEAD, put, spmv_rows};
use crate::stored::Vector;
use crate::{Arch, Number, Stored};

/// Bytes of the sums of a slice: the widest register. Narrower ones are taken several at a time, so that the format is the same for all.
const SLICE_BYTES: usize = 64;

/// The most rows of a slice.
const MOST_ROWS: usize = SLICE_BYTES / size_of::<f32>();

/// Rows of a slice of elements of `T`.
pub const fn slice_rows<T>() -> usize {
    SLICE_BYTES / size_of::<T>()
}

/// Rows that are computed together. Its indices are the rows, if they are listed; the first column of each run, and one more where runs
/// are odd in number; the columns of the gathered nonzeros, one of each row after the other.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// The first row of rows that follow each other, counted from the block's first; [`Slice::LISTED`] where the indices say which.
    pub first: u32,
    /// Rows: fewer than a whole slice in the last ones alone.
    pub rows: u32,
    /// Runs: nonzeros of all rows in columns that follow each other as the rows do.
    pub runs: u32,
    /// Nonzeros of a row beside its runs, the longest row's.
    pub gathered: u32,
}

impl Slice {
    /// The rows are in the indices.
    pub const LISTED: u32 = u32::MAX;
}

/// A block of rows in slices.
#[derive(Clone, Copy, Debug)]
pub struct SpmvSlices<'a, D: Stored> {
    /// The slices.
    pub slices: &'a [Slice],
    /// Their indices, one after the other, aligned as a word of 64 bits.
    pub indices: *const u32,
    /// Their values, likewise: of each row for each run, then for each gathered nonzero.
    pub values: *const D::Scalar,
    /// Rows that are in no slice, counted from the block's first: long ones.
    pub long: &'a [u32],
    /// The whole block straight from CSR, of one column, with b dense.
    pub direct: SpmmRows<D>,
}

/// Runs the task.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows) of the block's rows, which no other task has a part of; they are in one slice each, or long. Columns
/// of slices are elements of b, runs whole slices of them.
pub unsafe fn spmv_slices<D: Stored>(arch: Arch, task: SpmvSlices<'_, D>) {
    dispatch_stored!(arch, Block(task), Block);
}

#[derive(Clone, Copy)]
struct Block<'a, D: Stored>(SpmvSlices<'a, D>);

impl<D: Stored> WithSimd for Block<'_, D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `spmv_slices`.
        unsafe {
            match slice_rows::<D::Scalar>() / D::Scalar::lanes::<S>() {
                1 => slices::<S, D, 1>(simd, &self.0),
                2 => slices::<S, D, 2>(simd, &self.0),
                4 => slices::<S, D, 4>(simd, &self.0),
                8 => slices::<S, D, 8>(simd, &self.0),
                _ => slices::<S, D, 16>(simd, &self.0),
            }
            for &row in self.0.long {
                self.0.one_row(row);
            }
            let SpmmRows { b, c, ldc, beta, rows, panel: [_, columns], .. } = self.0.direct;
            // Of a finite b, a padded zero adds nothing to sums that are not: those that have no room in a narrow C, in most rows of some
            // matrices in f16.
            if beta == D::Scalar::ZERO
                && !are_finite::<S, D>(simd, c, ldc, rows)
                && !are_finite::<S, D>(simd, b, 1, [0, columns])
            {
                spmv_rows::<D, true>(&self.0.direct);
            }
        }
    }
}

impl<D: Stored> SpmvSlices<'_, D> {
    /// A row straight from CSR, counted from the block's first.
    ///
    /// # Safety
    /// As [`spmv_slices`].
    #[inline(always)]
    unsafe fn one_row(&self, row: u32) {
        let row = self.direct.rows[0] + row as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let start = self.direct.row_ptr.at(row);
            let nonzeros = [start, self.direct.nonzeros[1]];
            spmv_rows::<D, true>(&SpmmRows { rows: [row, row + 1], nonzeros, ..self.direct });
        }
    }
}

/// Whether the elements `first..end` of `x`, `stride` apart, are finite. Asked once for all rows of a block: a sum of what is not, kept from
/// slice to slice, would be a chain as long as a slice of runs takes.
///
/// # Safety
/// There are these elements.
#[inline(always)]
unsafe fn are_finite<S: Simd, D: Stored>(simd: S, x: *const D, stride: usize, [first, end]: [usize; 2]) -> bool {
    let (lanes, zero) = (D::Scalar::lanes::<S>(), D::Scalar::splat(simd, D::Scalar::ZERO));
    let (mut sums, mut rest, mut at) = ([zero; 4], D::Scalar::ZERO, first);
    // SAFETY: the caller's promise.
    unsafe {
        while stride == 1 && at + 4 * lanes <= end {
            for v in 0..4 {
                sums[v] = D::Scalar::vmul_add(simd, D::read(simd, x.wrapping_add(at + v * lanes)), zero, sums[v]);
            }
            at += 4 * lanes;
        }
        for at in at..end {
            rest += D::Scalar::ZERO * (*x.wrapping_add(at * stride)).widen();
        }
    }
    finite::<S, D, 4>(simd, sums) && rest == D::Scalar::ZERO
}

/// All slices. With beta 0, sums that are not numbers are stored, too.
///
/// # Safety
/// As [`spmv_slices`]; `NV` registers are a slice.
#[inline(always)]
unsafe fn slices<S: Simd, D: Stored, const NV: usize>(simd: S, task: &SpmvSlices<'_, D>) {
    let (count, lanes) = (slice_rows::<D::Scalar>(), D::Scalar::lanes::<S>());
    let &SpmvSlices { slices, mut indices, mut values, direct: SpmmRows { b, alpha, beta, c, ldc, rows, .. }, .. } =
        task;
    let c = c.wrapping_add(rows[0] * ldc);
    let zero = D::Scalar::splat(simd, D::Scalar::ZERO);
    // SAFETY: indices, values and columns are as the caller promises.
    unsafe {
        for slice in slices {
            let listed = indices;
            indices = indices.wrapping_add(if slice.first == Slice::LISTED { count } else { 0 });
            let mut sums = [zero; NV];
            for run in 0..slice.runs as usize {
                let first = b.wrapping_add(*indices.wrapping_add(run) as usize);
                for v in 0..NV {
                    let a = D::Scalar::load(simd, values.wrapping_add(v * lanes));
                    sums[v] = D::Scalar::vmul_add(simd, a, D::read(simd, first.wrapping_add(v * lanes)), sums[v]);
                }
                values = values.wrapping_add(count);
            }
            indices = indices.wrapping_add(slice.runs.next_multiple_of(2) as usize);
            for _ in 0..slice.gathered {
                // As in `spmv`: the hardware's own prefetches come late where b comes from afar.
                prefetch_l1(indices.wrapping_add(AHEAD));
                prefetch_l1(values.wrapping_add(AHEAD));
                let gathered = gather::<S, D, NV>(simd, b, indices);
                for v in 0..NV {
                    let a = D::Scalar::load(simd, values.wrapping_add(v * lanes));
                    sums[v] = D::Scalar::vmul_add(simd, a, gathered[v], sums[v]);
                }
                (indices, values) = (indices.wrapping_add(count), values.wrapping_add(count));
            }
            let own = slice.rows as usize;
            let row = |l: usize| match slice.first {
                Slice::LISTED => *listed.wrapping_add(l),
                first => first + l as u32,
            };
            if beta != D::Scalar::ZERO {
                // What C was is needed for rows that are computed again.
                let (mut zeros, mut lane) = ([zero; NV], [D::Scalar::ZERO; MOST_ROWS]);
                for v in 0..NV {
                    zeros[v] = D::Scalar::vmul(simd, sums[v], zero);
                    D::Scalar::store(simd, lane.as_mut_ptr().wrapping_add(v * lanes), sums[v]);
                }
                let right = finite::<S, D, NV>(simd, zeros);
                for l in 0..own {
                    if right {
                        put(c.wrapping_add(row(l) as usize * ldc), alpha * lane[l], beta);
                    } else {
                        task.one_row(row(l));
                    }
                }
                continue;
            }
            let whole = own == count;
            let together = whole && ldc == 1 && slice.first != Slice::LISTED;
            let mut lane = [D::default(); MOST_ROWS];
            let to = if together { c.wrapping_add(slice.first as usize) } else { lane.as_mut_ptr() };
            for v in 0..NV {
                let sum = D::Scalar::vmul(simd, D::Scalar::splat(simd, alpha), sums[v]);
                D::write(simd, to.wrapping_add(v * lanes), sum);
            }
            if whole && slice.first == Slice::LISTED {
                // As many as are known when it is compiled.
                for l in 0..count {
                    *c.wrapping_add(*listed.wrapping_add(l) as usize * ldc) = lane[l];
                }
            } else if !together {
                for l in 0..own {
                    *c.wrapping_add(row(l) as usize * ldc) = lane[l];
                }
            }
        }
    }
}

/// Whether zeros times what was looked at are zeros, not NaN.
#[inline(always)]
fn finite<S: Simd, D: Stored, const NV: usize>(simd: S, zeros: [Vector<D, S>; NV]) -> bool {
    let mut sum = zeros[0];
    for zeros in &zeros[1..] {
        sum = D::Scalar::vadd(simd, sum, *zeros);
    }
    <D::Scalar as crate::Scalar>::reduce_sum(simd, sum) == D::Scalar::ZERO
}

/// The elements of b in the columns of a slice.
///
/// The compiler makes insertions into registers of this; with two columns in a load it takes 0.82 to 0.97 times as long as with one, 0.6 to
/// 0.9 times as long as the instructions that gather, and 0.55 to 0.85 of a copy through memory (matrices of 2 to 59 nonzeros a row in
/// caches, f32, Zen 4).
///
/// # Safety
/// `columns` are as many as a slice has rows, aligned as a word of 64 bits, and elements of b.
#[inline(always)]
unsafe fn gather<S: Simd, D: Stored, const NV: usize>(simd: S, b: *const D, columns: *const u32) -> [Vector<D, S>; NV] {
    let mut elements = [D::default(); MOST_ROWS];
    let mut gathered = [D::Scalar::splat(simd, D::Scalar::ZERO); NV];
    // SAFETY: the caller's promise.
    unsafe {
        for pair in 0..slice_rows::<D::Scalar>() / 2 {
            // Volatile: else it would be an instruction that gathers.
            let both = columns.cast::<u64>().wrapping_add(pair).read_volatile();
            let both = if cfg!(target_endian = "little") { both } else { both.rotate_left(32) };
            elements[2 * pair] = *b.wrapping_add(both as u32 as usize);
            elements[2 * pair + 1] = *b.wrapping_add((both >> 32) as usize);
        }
        for v in 0..NV {
            gathered[v] = D::read(simd, elements.as_ptr().wrapping_add(v * D::Scalar::lanes::<S>()));
        }
    }
    gathered
}
