//! The edge function as a stage between a block of dots and the sums that its weights make.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::block::Block;
use crate::edge::{BuiltIn, Custom, Edge, Weights};
use crate::exp;
use crate::tile::Lines;
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
            if !softmax {
                edge.apply::<S, false>(simd, task.weights, task.weights, values, end - begin);
                return;
            }
            let mut logits = Logits::new(edge, task.weights, values, end - begin);
            for i in task.rows[0]..task.rows[1] {
                let row = [task.row_ptr.at(i), task.row_ptr.at(i + 1)];
                let [first, last] = [row[0].max(begin), row[1].min(end)];
                if first >= last {
                    continue;
                }
                let all = row == [first, last];
                let (from, w) = logits.take::<S>(simd, last - first);
                let state = exponentials::<S, T, false>(simd, T::NEG_INFINITY, from, w, last - first, all);
                if !all {
                    (*task.partial)[usize::from(row[0] == first)] = state;
                }
            }
        }
    }
}

/// Logits that are made of the dots of some rows at a time, beside them: the weights of a row, which take the place of its dots, would
/// hold up the logits of the next one there (`exponentials`).
struct Logits<T, W> {
    edge: W,
    /// The dots to come, and their values, unless null.
    dots: *mut T,
    values: *const T,
    len: usize,
    room: Lines<[T; LOGITS]>,
    /// Those in the room that were not taken yet.
    made: [usize; 2],
}

/// Logits that are made at a time.
const LOGITS: usize = 1024;

impl<T: Scalar, W: Weights<T>> Logits<T, W> {
    fn new(edge: W, dots: *mut T, values: *const T, len: usize) -> Self {
        Self { edge, dots, values, len, room: Lines([T::ZERO; LOGITS]), made: [0, 0] }
    }

    /// The next `n` logits, and where their dots are.
    ///
    /// # Safety
    /// There are `len` dots and, unless null, values; no more are taken. The logits are used before the next are taken.
    #[inline(always)]
    unsafe fn take<S: Simd>(&mut self, simd: S, n: usize) -> (*const T, *mut T) {
        let dots = self.dots;
        let mut from = dots.cast_const();
        // SAFETY: the caller's promise; as many are made as there is room for.
        unsafe {
            if n > LOGITS {
                self.edge.apply::<S, false>(simd, dots, dots, self.values, n);
                self.made = [0, 0];
            } else {
                if self.made[1] - self.made[0] < n {
                    self.made = [0, LOGITS.min(self.len)];
                    self.edge.apply::<S, false>(simd, dots, self.room.0.as_mut_ptr(), self.values, self.made[1]);
                }
                from = self.room.0.as_ptr().add(self.made[0]);
                self.made[0] += n;
            }
            self.dots = dots.add(n);
            if !self.values.is_null() {
                self.values = self.values.add(n);
            }
        }
        self.len -= n;
        (from, dots)
    }
}

/// w = e^(logits - m), m the largest of `len` logits and of `least`: (m, their sum), by which they are divided if the logits are `all` of
/// a row. The last register is stored whole where there is `ROOM`. What is stored under a mask cannot be forwarded: loads that follow at
/// once from the register's place, those of the next row among them, wait until it is in the cache.
///
/// # Safety
/// `logits` and `w`, which may be the same, hold `len` elements, at least one; where there is `ROOM`, `w` has it for whole registers.
#[inline(always)]
pub(super) unsafe fn exponentials<S: Simd, T: Scalar, const ROOM: bool>(
    simd: S,
    least: T,
    logits: *const T,
    w: *mut T,
    len: usize,
    all: bool,
) -> [T; 2] {
    let lanes = T::lanes::<S>();
    let whole = len / lanes * lanes;
    let mask = T::first_lanes(simd, len - whole);
    // SAFETY: the caller's promise; what lies beyond the last whole register is masked, or in the room of `w`, and there are as many
    // ones as any register has lanes.
    unsafe {
        let mut largest = T::splat(simd, least);
        for at in (0..whole).step_by(lanes) {
            largest = T::vmax(simd, largest, T::load(simd, logits.add(at)));
        }
        let (mut tail, ones) = (T::splat(simd, T::ZERO), T::load_masked(simd, mask, T::ONES.as_ptr()));
        if whole < len {
            tail = T::load_masked(simd, mask, logits.add(whole));
            // Infinity in the mask, and minus infinity beyond it, where the load gives zeros.
            let signs = T::vsub(simd, T::vadd(simd, ones, ones), T::splat(simd, T::ONE));
            let limit = T::vmul(simd, signs, T::splat(simd, -T::NEG_INFINITY));
            largest = T::vmax(simd, largest, T::vmin(simd, limit, tail));
        }
        let m = T::reduce_max(simd, largest);
        let shift = T::splat(simd, m);
        let mut sum = T::splat(simd, T::ZERO);
        for at in (0..whole).step_by(lanes) {
            let x = exp::<T, S>(simd, T::vsub(simd, T::load(simd, logits.add(at)), shift));
            T::store(simd, w.add(at), x);
            sum = T::vadd(simd, sum, x);
        }
        if whole < len {
            tail = exp::<T, S>(simd, T::vsub(simd, tail, shift));
            sum = T::vmul_add(simd, tail, ones, sum);
        }
        let sum = T::reduce_sum(simd, sum);
        if all {
            let factor = T::splat(simd, T::ONE / sum);
            for at in (0..whole).step_by(lanes) {
                T::store(simd, w.add(at), T::vmul(simd, factor, T::load(simd, w.add(at))));
            }
            tail = T::vmul(simd, factor, tail);
        }
        if whole < len {
            if ROOM { T::store(simd, w.add(whole), tail) } else { T::store_masked(simd, mask, w.add(whole), tail) }
        }
        [m, sum]
    }
}

/// w = e^(logits - m): the sum of w, or nothing where that says that a logit may be far above m, or m is minus infinity. The sums of rows
/// that are divided in the end need a number near the largest logit, not the largest itself.
///
/// # Safety
/// As [`exponentials`]; `w` is apart from the logits, which are there for another way if there is no sum.
#[inline(always)]
unsafe fn exponentials_near<S: Simd, T: Scalar>(simd: S, m: T, logits: *const T, w: *mut T, len: usize) -> Option<T> {
    if m == T::NEG_INFINITY {
        return None;
    }
    let lanes = T::lanes::<S>();
    let whole = len / lanes * lanes;
    let shift = T::splat(simd, m);
    let mut sum = T::splat(simd, T::ZERO);
    // SAFETY: the caller's promise; what lies beyond the last whole register is masked, and there are as many ones as any register has
    // lanes.
    unsafe {
        for at in (0..whole).step_by(lanes) {
            let x = exp::<T, S>(simd, T::vsub(simd, T::load(simd, logits.add(at)), shift));
            T::store(simd, w.add(at), x);
            sum = T::vadd(simd, sum, x);
        }
        if whole < len {
            let mask = T::first_lanes(simd, len - whole);
            let x = exp::<T, S>(simd, T::vsub(simd, T::load_masked(simd, mask, logits.add(whole)), shift));
            T::store_masked(simd, mask, w.add(whole), x);
            // e^-m beyond the last logit is finite, and times 0.
            sum = T::vmul_add(simd, x, T::load_masked(simd, mask, T::ONES.as_ptr()), sum);
        }
    }
    let sum = T::reduce_sum(simd, sum);
    if sum > T::from_f64(MOST_NEAR) { None } else { Some(sum) }
}

/// e^8, the most that the sum of a row segment's exponentials may be: no logit is by more above the number that they are taken from, by so
/// little that they lose nothing. Asked of the sum, it needs no pass over the logits before.
const MOST_NEAR: f64 = 2980.96;

/// Takes `len` logits into (m, l): w = e^(logits - m). Also the factor e^(old m - new m).
///
/// # Safety
/// As [`exponentials`].
#[inline(always)]
pub(super) unsafe fn softmax_step<S: Simd, T: Scalar, const ROOM: bool>(
    simd: S,
    [m, l]: [T; 2],
    logits: *const T,
    w: *mut T,
    len: usize,
) -> ([T; 2], T) {
    // SAFETY: `exponentials` asks of its caller what this function asks of its own.
    let [largest, sum] = unsafe { exponentials::<S, T, ROOM>(simd, m, logits, w, len, false) };
    let rescale = if m == T::NEG_INFINITY || m == largest {
        // Nothing was there to rescale (and -inf - -inf is no number), or m stays: of the parts of a row, few raise it.
        T::ONE
    } else {
        T::reduce_max(simd, exp::<T, S>(simd, T::splat(simd, m - largest)))
    };
    ([largest, l * rescale + sum], rescale)
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
    /// Becomes true where one of them is not 1.
    pub rescaled: *mut bool,
}

/// Runs the task.
///
/// # Safety
/// `weights` and `values`, unless null, hold `nnz` elements, those of the block; for a softmax `states` and
/// `rescale` have every visited row, and `rescaled` is valid for writes.
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
            if !softmax {
                edge.apply::<S, false>(simd, task.weights, task.weights, task.values, task.nnz);
                return;
            }
            let mut logits = Logits::new(edge, task.weights, task.values, task.nnz);
            for pair in task.block.pairs {
                for row in pair.rows {
                    let nnz = pair.nnz() as usize;
                    task.softmax::<S>(simd, row, logits.take::<S>(simd, nnz), nnz);
                }
            }
            for segment in task.block.segments {
                let nnz = segment.nnz as usize;
                task.softmax::<S>(simd, segment.row, logits.take::<S>(simd, nnz), nnz);
            }
        }
    }
}

impl<T: Scalar> EdgeBlock<'_, T> {
    /// Takes the `nnz` logits of `row` into its state, and makes weights of them.
    ///
    /// # Safety
    /// The logits and the weights are those of the row, which has a state.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, simd: S, row: u32, (logits, w): (*const T, *mut T), nnz: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (state, rescale) = (&mut *self.states.add(row as usize), &mut *self.rescale.add(row as usize));
            *rescale = T::ONE;
            if let Some(sum) = exponentials_near::<S, T>(simd, state[0], logits, w, nnz) {
                state[1] += sum;
                return;
            }
            (*state, *rescale) = softmax_step::<S, T, false>(simd, *state, logits, w, nnz);
            *self.rescaled |= *rescale != T::ONE;
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
