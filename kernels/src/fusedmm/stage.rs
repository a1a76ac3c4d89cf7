//! The edge function as a stage between a block of dots and the sums that its weights make.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::block::Block;
use crate::fusedmm::softmax::{Group, Segments, exponentials, scale_row, softmax_step, softmax_weights};
use crate::scalar::WIDEST;
use crate::{Arch, EdgeFunction, RowPtr, Scalar, prefetch_l1, prefetch_row};

/// Rows ahead at which rows of E that are scaled are prefetched: the sums of a block have left them in L2.
const PREFETCH_DISTANCE: usize = 4;

/// The edge function over the dots of rows of a CSR pattern.
#[derive(Clone, Copy, Debug)]
pub struct EdgeRows<T> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR values; null (then they are zeros to the edge function) when the edge function does not use them.
    pub values: *const T,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The nonzeros to take: the first row may begin before and the last one end after.
    pub nonzeros: [usize; 2],
    /// The dots of these nonzeros and no others; they become the weights.
    pub weights: *mut T,
    /// For a softmax, (m, l) of a first row that began before, and of a last one that goes on: their weights are not
    /// divided by l.
    pub partial: *mut [[T; 2]; 2],
}

/// Runs the task.
///
/// # Safety
/// The row pointers are valid for the rows, `weights` holds as many elements as there are nonzeros, `values`, unless
/// null, are those of the matrix, `partial` is valid for writes, and no one else uses `weights` and `partial`.
pub unsafe fn edge_rows<T: Scalar>(arch: Arch, edge: EdgeFunction<'_, T>, task: EdgeRows<T>) {
    dispatch_compiled!(arch, RowsTask { arch, edge, task }, RowsTask<'_, f32>, RowsTask<'_, f64>);
}

/// The edge function of rows as pulp runs it.
#[derive(Clone, Copy)]
struct RowsTask<'a, T> {
    arch: Arch,
    edge: EdgeFunction<'a, T>,
    task: EdgeRows<T>,
}

impl<T: Scalar> WithSimd for RowsTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { arch, edge, task } = self;
        let [begin, end] = task.nonzeros;
        // SAFETY: the promise of `edge_rows`.
        unsafe {
            let values = if task.values.is_null() { task.values } else { task.values.wrapping_add(begin) };
            if !edge.is_softmax() {
                edge.apply::<S>((arch, simd), false, task.weights, task.weights, values, end - begin);
                return;
            }
            softmax_weights::<S, T>((arch, simd), edge, task.weights, values, &task);
        }
    }
}

impl<T: Scalar> EdgeRows<T> {
    /// Where the (m, l) of row `i` goes if it is one that is taken in part.
    ///
    /// # Safety
    /// The row is one of the task's.
    #[inline(always)]
    unsafe fn partial_of(&self, i: usize) -> Option<*mut [T; 2]> {
        // SAFETY: the caller's promise; there are two of them.
        unsafe {
            let begun_before = self.row_ptr.at(i) < self.nonzeros[0];
            let goes_on = self.row_ptr.at(i + 1) > self.nonzeros[1];
            (begun_before || goes_on).then(|| self.partial.cast::<[T; 2]>().add(usize::from(!begun_before)))
        }
    }
}

/// Rows of CSR.
impl<T: Scalar> Segments<T> for EdgeRows<T> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.rows[1] - self.rows[0]
    }

    #[inline(always)]
    unsafe fn read(&self, next: usize, count: usize, rows: &mut [u32; WIDEST], lens: &mut [u32; WIDEST]) -> usize {
        let ([begin, end], row) = (self.nonzeros, self.rows[0] + next);
        // SAFETY: the caller's promise: it is one of the rows.
        let start = unsafe { self.row_ptr.at(row) }.max(begin);
        let mut first = start;
        for k in 0..count {
            // SAFETY: likewise: the rows from `next` on are as many as `count`.
            let last = unsafe { self.row_ptr.at(row + k + 1) }.min(end).max(first);
            (rows[k], lens[k]) = ((row + k) as u32, (last - first) as u32);
            first = last;
        }
        first - start
    }

    #[inline(always)]
    unsafe fn without_maximum(&self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&self, simd: S, group: &Group<T>, w: *mut T) {
        let mut factors = group.reciprocals::<S>(simd);
        // SAFETY: the caller's promise: rows are taken in part at the task's ends alone.
        unsafe {
            for k in [0, group.count - 1] {
                if let Some(partial) = self.partial_of(group.rows.0[k] as usize) {
                    (*partial, factors.0[k]) = ([T::ZERO, group.sums.0[k]], T::ONE);
                }
            }
            group.store_times::<S>(simd, &factors.0, w);
        }
    }

    #[inline(always)]
    unsafe fn take_by_maximum<S: Simd>(&self, simd: S, row: usize, logits: *const T, w: *mut T, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let partial = self.partial_of(row);
            let state = exponentials::<S, T, false>(simd, T::NEG_INFINITY, logits, w, len, partial.is_none());
            if let Some(partial) = partial {
                *partial = state;
            }
        }
    }
}

/// The edge function over the dots of one row block with one panel.
#[derive(Clone, Copy, Debug)]
pub struct EdgeBlock<'a, T> {
    /// The rows.
    pub block: Block<'a>,
    /// The dots, in the order of the block; they become the weights.
    pub weights: *mut T,
    /// The values in the same order; null (then zeros) when the edge function does not use them.
    pub values: *const T,
    /// Number of dots.
    pub nnz: usize,
    /// For a softmax, what is known of each row of the row block.
    pub rows: *mut SoftmaxRow<T>,
    /// For a softmax, room for the rows of E that are to be rescaled before this block's sums are added.
    pub rescaled: *mut u32,
    /// How many they are.
    pub rescaled_count: *mut usize,
    /// Becomes true where a row's m is not 0; false before the row block's first block.
    pub maximum: *mut bool,
}

/// A row of a row block, for a softmax.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxRow<T> {
    /// The weights so far are e^(f - m): 0 before the first.
    pub m: T,
    /// Their sum.
    pub l: T,
    /// What the row of E is multiplied by where it is rescaled: e^(m before - m).
    pub rescale: T,
}

/// Runs the task.
///
/// # Safety
/// `weights` and `values`, unless null, hold `nnz` elements, those of the block; for a softmax `rows` has every row
/// of the block, `rescaled` room for as many, and `rescaled_count` and `maximum` are valid for reads and writes.
pub unsafe fn edge_block<T: Scalar>(arch: Arch, edge: EdgeFunction<'_, T>, task: EdgeBlock<'_, T>) {
    dispatch_compiled!(arch, BlockTask { arch, edge, task }, BlockTask<'_, f32>, BlockTask<'_, f64>);
}

/// The edge function of a block as pulp runs it.
#[derive(Clone, Copy)]
struct BlockTask<'a, T> {
    arch: Arch,
    edge: EdgeFunction<'a, T>,
    task: EdgeBlock<'a, T>,
}

impl<T: Scalar> WithSimd for BlockTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { arch, edge, task } = self;
        // SAFETY: the promise of `edge_block`.
        unsafe {
            if !edge.is_softmax() {
                edge.apply::<S>((arch, simd), false, task.weights, task.weights, task.values, task.nnz);
                return;
            }
            *task.rescaled_count = 0;
            softmax_weights::<S, T>((arch, simd), edge, task.weights, task.values, &task);
        }
    }
}

/// The rows' parts in a panel.
impl<T: Scalar> Segments<T> for EdgeBlock<'_, T> {
    #[inline(always)]
    fn count(&self) -> usize {
        2 * self.block.pairs.len() + self.block.segments.len()
    }

    #[inline(always)]
    unsafe fn read(&self, next: usize, count: usize, rows: &mut [u32; WIDEST], lens: &mut [u32; WIDEST]) -> usize {
        let Block { pairs, segments, .. } = self.block;
        let alone = 2 * pairs.len();
        let mut dots = 0;
        for k in 0..count {
            let at = next + k;
            // SAFETY: the caller's promise: half of `at` is below the number of pairs, or what it exceeds their rows by below that of the others.
            let (row, len) = unsafe {
                if at < alone {
                    let pair = pairs.get_unchecked(at / 2);
                    (pair.rows[at % 2], pair.nnz())
                } else {
                    let segment = segments.get_unchecked(at - alone);
                    (segment.row, segment.nnz)
                }
            };
            // What is known of the row is in L2, and needed when its sum is there.
            prefetch_l1(self.rows.wrapping_add(row as usize));
            (rows[k], lens[k]) = (row, len);
            dots += len as usize;
        }
        dots
    }

    #[inline(always)]
    unsafe fn without_maximum(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { !*self.maximum }
    }

    #[inline(always)]
    unsafe fn take<S: Simd>(&self, simd: S, group: &Group<T>, w: *mut T) {
        // SAFETY: the caller's promise.
        unsafe {
            for k in 0..group.count {
                (*self.rows.add(group.rows.0[k] as usize)).l += group.sums.0[k];
            }
            group.store::<S>(simd, w);
        }
    }

    #[inline(always)]
    unsafe fn take_by_maximum<S: Simd>(&self, simd: S, row: usize, logits: *const T, w: *mut T, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            *self.maximum = true;
            let SoftmaxRow { m, l, rescale } = &mut *self.rows.add(row);
            // Before the first weights, m says nothing.
            let before = if *l == T::ZERO { T::NEG_INFINITY } else { *m };
            ([*m, *l], *rescale) = softmax_step::<S, T, false>(simd, [before, *l], logits, w, len);
            if *rescale != T::ONE {
                let count = &mut *self.rescaled_count;
                *self.rescaled.add(*count) = row as u32;
                *count += 1;
            }
        }
    }
}

/// Rows of E in a softmax by panels: rescaled before a block's sums are added, or divided after the last ones.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxScale<'a, T> {
    /// Which ones, counted from the row block's first.
    pub rows: &'a [u32],
    /// What is known of each row of the row block.
    pub known: *const SoftmaxRow<T>,
    /// Whether they are divided by l.
    pub divide: bool,
    /// The first row of the row block.
    pub e: *mut T,
    /// Its row stride.
    pub lde: usize,
    /// Elements of a row.
    pub n: usize,
}

/// Runs the task.
///
/// # Safety
/// `known` has the rows, and `e` is valid for reads and writes of `n` elements of each, which no one else uses.
pub unsafe fn softmax_scale<T: Scalar>(arch: Arch, task: SoftmaxScale<'_, T>) {
    dispatch_compiled!(arch, task, SoftmaxScale<'_, f32>, SoftmaxScale<'_, f64>);
}

impl<T: Scalar> WithSimd for SoftmaxScale<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, known, divide, e, lde, n } = self;
        let at = |row: u32| e.wrapping_add(row as usize * lde);
        for (k, &row) in rows.iter().enumerate() {
            if let Some(&later) = rows.get(k + PREFETCH_DISTANCE) {
                prefetch_row(at(later), n * size_of::<T>());
            }
            // SAFETY: the promise of `softmax_scale`.
            unsafe {
                let SoftmaxRow { l, rescale, .. } = *known.add(row as usize);
                scale_row::<S, T>(simd, at(row), n, if divide { T::ONE / l } else { rescale });
            }
        }
    }
}
