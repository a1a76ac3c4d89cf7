//! The edge function as a stage between a block of dots and the sums that its weights make.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::block::Block;
use crate::edge::{BuiltIn, Custom, Edge, Weights};
use crate::exp;
use crate::{Arch, RowPtr, Scalar};

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
pub unsafe fn edge_rows<T: Scalar, F: Edge<T>>(arch: Arch, edge: F, task: EdgeRows<T>) {
    if let Some(built_in) = const { F::BUILT_IN } {
        let task = RowsTask { edge: built_in(edge), softmax: edge.is_softmax(), task };
        dispatch_compiled!(arch, task, RowsTask<f32, BuiltIn<f32>>, RowsTask<f64, BuiltIn<f64>>);
    } else if const { F::BUILT_IN.is_none() } {
        arch.dispatch(RowsTask { edge: Custom(edge), softmax: edge.is_softmax(), task });
    }
}

/// The edge function of rows as pulp runs it.
#[derive(Clone, Copy)]
struct RowsTask<T, W> {
    edge: W,
    softmax: bool,
    task: EdgeRows<T>,
}

impl<T: Scalar, W: Weights<T>> WithSimd for RowsTask<T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { edge, softmax, task } = self;
        let [begin, end] = task.nonzeros;
        // SAFETY: the promise of `edge_rows`.
        unsafe {
            let values = if task.values.is_null() { task.values } else { task.values.wrapping_add(begin) };
            edge.apply::<S, false>(simd, task.weights, values, end - begin);
            if !softmax {
                return;
            }
            for i in task.rows[0]..task.rows[1] {
                let row = [task.row_ptr.at(i), task.row_ptr.at(i + 1)];
                let [first, last] = [row[0].max(begin), row[1].min(end)];
                if first >= last {
                    continue;
                }
                let (w, len) = (task.weights.add(first - begin), last - first);
                let state = exponentials::<S, T>(simd, w, len);
                if row == [first, last] {
                    scale_row::<S, T>(simd, w, len, T::ONE / state[1]);
                } else {
                    (*task.partial)[usize::from(row[0] == first)] = state;
                }
            }
        }
    }
}

/// Makes e^(w - m) of `len` logits, m the largest: (m, their sum).
///
/// # Safety
/// `w` holds `len` elements, at least one.
#[inline(always)]
unsafe fn exponentials<S: Simd, T: Scalar>(simd: S, w: *mut T, len: usize) -> [T; 2] {
    let lanes = T::lanes::<S>();
    let whole = len / lanes * lanes;
    let mask = T::first_lanes(simd, len - whole);
    // SAFETY: the caller's promise; what lies beyond the last whole register is masked, and there are as many ones as any
    // register has lanes.
    unsafe {
        let mut largest = T::splat(simd, T::NEG_INFINITY);
        for at in (0..whole).step_by(lanes) {
            largest = T::vmax(simd, largest, T::load(simd, w.add(at)));
        }
        let (tail, ones) = (T::load_masked(simd, mask, w.add(whole)), T::load_masked(simd, mask, T::ONES.as_ptr()));
        if whole < len {
            // Infinity in the mask, and minus infinity beyond it, where the loads give zeros.
            let signs = T::vsub(simd, T::vadd(simd, ones, ones), T::splat(simd, T::ONE));
            let limit = T::vmul(simd, signs, T::splat(simd, -T::NEG_INFINITY));
            largest = T::vmax(simd, largest, T::vmin(simd, limit, tail));
        }
        let m = T::reduce_max(simd, largest);
        let shift = T::splat(simd, m);
        let mut sum = T::splat(simd, T::ZERO);
        for at in (0..whole).step_by(lanes) {
            let x = exp::<T, S>(simd, T::vsub(simd, T::load(simd, w.add(at)), shift));
            T::store(simd, w.add(at), x);
            sum = T::vadd(simd, sum, x);
        }
        if whole < len {
            let x = exp::<T, S>(simd, T::vsub(simd, tail, shift));
            T::store_masked(simd, mask, w.add(whole), x);
            sum = T::vmul_add(simd, x, ones, sum);
        }
        [m, T::reduce_sum(simd, sum)]
    }
}

/// Takes `len` logits into (m, l): they become e^(w - m). Also the factor e^(old m - new m).
///
/// # Safety
/// `w` holds `len` elements, at least one.
#[inline(always)]
pub(super) unsafe fn softmax_step<S: Simd, T: Scalar>(simd: S, [m, l]: [T; 2], w: *mut T, len: usize) -> ([T; 2], T) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut largest = m;
        for t in 0..len {
            let x = *w.add(t);
            largest = if x > largest { x } else { largest };
        }
        let shift = T::splat(simd, largest);
        let mut sum = T::splat(simd, T::ZERO);
        for at in (0..len).step_by(T::lanes::<S>()) {
            let mask = T::first_lanes(simd, len - at);
            let x = exp::<T, S>(simd, T::vsub(simd, T::load_masked(simd, mask, w.add(at)), shift));
            T::store_masked(simd, mask, w.add(at), x);
            // Read back, so that the lanes outside the mask add nothing.
            sum = T::vadd(simd, sum, T::load_masked(simd, mask, w.add(at)));
        }
        let rescale = T::reduce_max(simd, exp::<T, S>(simd, T::splat(simd, m - largest)));
        // Nothing was there to rescale (and -inf - -inf is no number) while m is -inf.
        let rescale = if m == T::NEG_INFINITY { T::ZERO } else { rescale };
        ([largest, l * rescale + T::reduce_sum(simd, sum)], rescale)
    }
}

/// row = factor row.
///
/// # Safety
/// `row` holds `n` elements.
#[inline(always)]
pub(super) unsafe fn scale_row<S: Simd, T: Scalar>(simd: S, row: *mut T, n: usize, factor: T) {
    for at in (0..n).step_by(T::lanes::<S>()) {
        let mask = T::first_lanes(simd, n - at);
        // SAFETY: the caller's promise.
        unsafe {
            let x = T::vmul(simd, T::splat(simd, factor), T::load_masked(simd, mask, row.add(at)));
            T::store_masked(simd, mask, row.add(at), x);
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
    /// For a softmax, (m, l) by row of the block.
    pub states: *mut [T; 2],
    /// For a softmax, the factor by which each visited row of E is to be multiplied before the weights are used.
    pub rescale: *mut T,
}

/// Runs the task.
///
/// # Safety
/// `weights` and `values`, unless null, hold `nnz` elements, those of the block; for a softmax `states` and
/// `rescale` have every visited row.
pub unsafe fn edge_block<T: Scalar, F: Edge<T>>(arch: Arch, edge: F, task: EdgeBlock<'_, T>) {
    if let Some(built_in) = const { F::BUILT_IN } {
        let task = EdgeTask { edge: built_in(edge), softmax: edge.is_softmax(), task };
        dispatch_compiled!(arch, task, EdgeTask<'_, f32, BuiltIn<f32>>, EdgeTask<'_, f64, BuiltIn<f64>>);
    } else if const { F::BUILT_IN.is_none() } {
        arch.dispatch(EdgeTask { edge: Custom(edge), softmax: edge.is_softmax(), task });
    }
}

/// The edge function of a block as pulp runs it.
#[derive(Clone, Copy)]
struct EdgeTask<'a, T, W> {
    edge: W,
    softmax: bool,
    task: EdgeBlock<'a, T>,
}

impl<T: Scalar, W: Weights<T>> WithSimd for EdgeTask<'_, T, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { edge, softmax, task } = self;
        // SAFETY: the promise of `edge_block`.
        unsafe {
            edge.apply::<S, false>(simd, task.weights, task.values, task.nnz);
            if softmax {
                let mut w = task.weights;
                for pair in task.block.pairs {
                    for row in pair.rows {
                        w = task.softmax::<S>(simd, row, w, pair.nnz());
                    }
                }
                for segment in task.block.segments {
                    w = task.softmax::<S>(simd, segment.row, w, segment.nnz);
                }
            }
        }
    }
}

impl<T: Scalar> EdgeBlock<'_, T> {
    /// Takes the `nnz` logits of `row` at `w` into its state; the end of them.
    ///
    /// # Safety
    /// `w` holds them, and the row has a state.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, simd: S, row: u32, w: *mut T, nnz: u32) -> *mut T {
        let (row, nnz) = (row as usize, nnz as usize);
        // SAFETY: the caller's promise.
        unsafe {
            let (state, rescale) = softmax_step::<S, T>(simd, *self.states.add(row), w, nnz);
            *self.states.add(row) = state;
            *self.rescale.add(row) = rescale;
            w.add(nnz)
        }
    }
}

/// Divides row r of `e` by `states[r][1]`, the sum of its weights; rows without weights become zeros.
///
/// # Safety
/// `e` is valid for reads and writes of one row of `n` elements per state.
pub unsafe fn normalise_rows<T: Scalar>(arch: Arch, states: &[[T; 2]], n: usize, e: *mut T, lde: usize) {
    dispatch_compiled!(arch, Normalise { states, n, e, lde }, Normalise<'_, f32>, Normalise<'_, f64>);
}

#[derive(Clone, Copy)]
struct Normalise<'a, T> {
    states: &'a [[T; 2]],
    n: usize,
    e: *mut T,
    lde: usize,
}

impl<T: Scalar> WithSimd for Normalise<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (r, &[_, sum]) in self.states.iter().enumerate() {
            let factor = if sum == T::ZERO { T::ZERO } else { T::ONE / sum };
            // SAFETY: the promise of `normalise_rows`.
            unsafe { scale_row::<S, T>(simd, self.e.add(r * self.lde), self.n, factor) }
        }
    }
}
