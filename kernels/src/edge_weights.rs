//! Edge weights of H heads by rows of a CSR pattern, and their gradients.
//!
//! Head h of nonzero p is at p H + h. With z = f(s) + bias, k = 0 for a dropped edge and else 1 / (1 - dropout rate):
//!
//! ```text
//! forward                                        backward, from g = dL/dw
//! pointwise:  w = k f(s, a)                      ds = f'(s, a) k g,  da = sum over heads of df/da k g
//! softmax:    m = max z, l = sum e^(z - m)       w = e^(z - lse)
//!             w = k e^(z - m) / l                delta = sum over the row of w k g
//!             (lse = m + ln l)                   dz = w (k g - delta),  ds = f'(s) dz,  dbias = sum over heads of dz
//! ```
//!
//! As flash attention does (Dao et al. 2022), the backward pass makes the weights again from the scores and one number for each
//! row and head. A row's heads follow each other in memory, so that a register has several heads, whose numbers are kept
//! periodically continued: those of a register that begins with head h are the ones from h on.

mod row;

use pulp::{Simd, WithSimd};

use self::row::{At, Heads, Row, Segment};
use crate::arch::dispatch_compiled;
use crate::edge::{BuiltIn, Edge, LeakyRelu, Sigmoid};
use crate::exp;
use crate::scalar::WIDEST;
use crate::{Arch, RowPtr, Scalar};

/// Edges that are dropped: by a hash of the seed and the edge's number, so that each pass finds the same.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<T> {
    /// Those whose hash, 32 bits, is below it are dropped.
    pub threshold: u32,
    /// Seed of the hash.
    pub seed: u64,
    /// Factor of the others.
    pub factor: T,
}

impl<T: Scalar> Dropout<T> {
    /// 0 if edge `index` is dropped, else the factor: the finaliser of SplitMix64 (Steele, Lea and Flood 2014) of a counter.
    #[inline(always)]
    pub fn keep(&self, index: usize) -> T {
        let mut z = self.seed.wrapping_add((index as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        if (z >> 32) < u64::from(self.threshold) { T::ZERO } else { self.factor }
    }
}

/// Edge weights of rows of a CSR pattern.
#[derive(Clone, Copy, Debug)]
pub struct EdgeWeights<T> {
    /// The edge function.
    pub edge: BuiltIn<T>,
    /// Edges that are dropped, if any are.
    pub dropout: Option<Dropout<T>>,
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// H.
    pub heads: usize,
    /// CSR values; null (then they are zeros to the edge function) when the edge function does not use them.
    pub values: *const T,
    /// What is added to the logits of a softmax, one number for each nonzero; null for none.
    pub bias: *const T,
    /// Scores by nonzero and head; they become the weights of [`edge_weights`]. What [`edge_gradients`] leaves there is not stated.
    pub weights: *mut T,
    /// Room for [`EdgeWeights::scratch_len`] numbers.
    pub scratch: *mut T,
}

impl<T: Scalar> EdgeWeights<T> {
    /// Numbers that the scratch has for so many heads: two for each head and two for each number of a segment, continued by a register.
    pub fn scratch_len(heads: usize) -> usize {
        2 * (heads + WIDEST) + 2 * (Segment::<T>::MOST + WIDEST)
    }
}

/// Makes the weights. For a softmax, `states` of row i and head h at i H + h become (m, l).
///
/// # Safety
/// The row pointers are valid for the rows, the arrays as long as stated, and no one else uses the rows' weights and states or the
/// scratch at the same time.
pub unsafe fn edge_weights<T: Scalar>(arch: Arch, task: EdgeWeights<T>, states: *mut [T; 2]) {
    dispatch_compiled!(arch, Forward { task, states }, Forward<f32>, Forward<f64>);
}

/// What [`edge_gradients`] needs and gives.
#[derive(Clone, Copy, Debug)]
pub struct EdgeGradients<T> {
    /// lse of rows and heads and its row stride, for a softmax.
    pub lse: (*const T, usize),
    /// dL/dw by nonzero and head; they become dL/ds.
    pub gradients: *mut T,
    /// Where the weights and dL/ds of each nonzero go, H of the ones beside H of the others.
    pub pairs: *mut T,
    /// dL/da by nonzero, where the edge function uses values; null for none.
    pub values: *mut T,
    /// dL/dbias by nonzero, for a softmax; null for none.
    pub bias: *mut T,
}

/// Makes the weights and the gradients of the scores, values and bias.
///
/// # Safety
/// As [`edge_weights`], for the arrays of `out`, too.
pub unsafe fn edge_gradients<T: Scalar>(arch: Arch, task: EdgeWeights<T>, out: EdgeGradients<T>) {
    dispatch_compiled!(arch, Backward { task, out }, Backward<f32>, Backward<f64>);
}

#[derive(Clone, Copy)]
struct Forward<T> {
    task: EdgeWeights<T>,
    states: *mut [T; 2],
}

impl<T: Scalar> WithSimd for Forward<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `edge_weights`.
        unsafe {
            match self.task.heads {
                1 => self.run::<S, true>(simd),
                _ => self.run::<S, false>(simd),
            }
        }
    }
}

impl<T: Scalar> Forward<T> {
    /// All rows.
    ///
    /// # Safety
    /// As [`edge_weights`]; `ONE` says whether there is one head.
    #[inline(always)]
    unsafe fn run<S: Simd, const ONE: bool>(self, simd: S) {
        let Self { task, states } = self;
        // SAFETY: the caller's promise.
        unsafe {
            let mut next = task.rows[0];
            while next < task.rows[1] {
                let segment = Segment::new(&task, next, [task.weights; 2]);
                next = segment.rows[1];
                let weights = segment.results[0];
                if !task.edge.is_softmax() {
                    let row = Row::<T>::all::<S>(&task, &segment);
                    let mut at = row.start();
                    while at.q < row.len {
                        let w = task.weight(simd, &row, at);
                        row.put(simd, weights, at, task.kept(simd, &row, at, w));
                        at.advance(&row);
                    }
                } else {
                    for i in segment.rows[0]..segment.rows[1] {
                        let row = Row::<T>::new::<S>(&task, &segment, i);
                        self.softmax::<S, ONE>(simd, &row, weights, states.add(i * row.heads));
                    }
                }
                segment.finish(0, task.weights);
            }
        }
    }

    /// One row, for a softmax.
    ///
    /// # Safety
    /// As [`Forward::run`]; the row has `states`, and its weights go to `weights`.
    #[inline(always)]
    unsafe fn softmax<S: Simd, const ONE: bool>(&self, simd: S, row: &Row<T>, weights: *mut T, states: *mut [T; 2]) {
        let task = &self.task;
        // SAFETY: the caller's promise.
        unsafe {
            let (mut largest, mut sum) = (Heads::<S, T, ONE>::max(simd, row, 0), Heads::<S, T, ONE>::sum(simd, row, 1));
            let mut at = row.start();
            while at.q < row.len {
                let z = task.logit(simd, row, at);
                row.put(simd, weights, at, z);
                largest.take_max(simd, at, row.limited(simd, at, z));
                at.advance(row);
            }
            largest.fold_max(simd, row);
            let mut at = row.start();
            while at.q < row.len {
                let z = row.take(simd, weights, at);
                let x = exp::<T, S>(simd, T::vsub(simd, z, largest.of(simd, at)));
                row.put(simd, weights, at, x);
                sum.take_sum(simd, at, x, row.ones(simd, at));
                at.advance(row);
            }
            sum.fold_sum(simd, row);
            for h in 0..row.heads {
                let l = *sum.numbers.add(h);
                *states.add(h) = [*largest.numbers.add(h), l];
                *sum.numbers.add(h) = if l == T::ZERO { T::ZERO } else { T::ONE / l };
            }
            sum.extend(row);
            let mut at = row.start();
            while at.q < row.len {
                let w = T::vmul(simd, row.take(simd, weights, at), sum.of(simd, at));
                row.put(simd, weights, at, task.kept(simd, row, at, w));
                at.advance(row);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Backward<T> {
    task: EdgeWeights<T>,
    out: EdgeGradients<T>,
}

impl<T: Scalar> WithSimd for Backward<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise of `edge_gradients`.
        unsafe {
            match self.task.heads {
                1 => self.run::<S, true>(simd),
                _ => self.run::<S, false>(simd),
            }
        }
    }
}

impl<T: Scalar> Backward<T> {
    /// All rows.
    ///
    /// # Safety
    /// As [`edge_gradients`]; `ONE` says whether there is one head.
    #[inline(always)]
    unsafe fn run<S: Simd, const ONE: bool>(self, simd: S) {
        let Self { task, out } = self;
        let mut next = task.rows[0];
        while next < task.rows[1] {
            // SAFETY: the caller's promise.
            unsafe {
                let segment = Segment::new(&task, next, [task.weights, out.gradients]);
                next = segment.rows[1];
                let all = Row::<T>::all::<S>(&task, &segment);
                if task.edge.is_softmax() {
                    self.exponentials::<S, ONE>(simd, &segment, &all);
                    for i in segment.rows[0]..segment.rows[1] {
                        self.softmax::<S, ONE>(simd, &Row::new::<S>(&task, &segment, i), segment.results);
                    }
                } else {
                    self.pointwise::<S>(simd, &all, segment.results);
                }
                segment.join(task.heads, out.pairs);
                segment.finish(1, out.gradients);
            }
        }
    }

    /// The scores of `all` rows of a segment become e^(z - lse), with the sign of the score where the edge function needs it, and the
    /// gradients k g.
    ///
    /// # Safety
    /// As [`Backward::run`].
    #[inline(always)]
    unsafe fn exponentials<S: Simd, const ONE: bool>(&self, simd: S, segment: &Segment<T>, all: &Row<T>) {
        let Self { task, out } = self;
        let (spread, zero) = (segment.results[0], T::splat(simd, T::ZERO));
        // SAFETY: the caller's promise.
        unsafe {
            let lse = Heads::<S, T, ONE>::sum(simd, all, 0);
            for i in segment.rows[0]..segment.rows[1] {
                let from = out.lse.0.add(i * out.lse.1);
                lse.numbers.copy_from_nonoverlapping(from, task.heads);
                lse.extend(all);
                if segment.staged {
                    let row = Row::new::<S>(task, segment, i);
                    let mut at = row.start();
                    while at.q < row.len {
                        row.put(simd, spread, at, lse.of(simd, at));
                        at.advance(&row);
                    }
                }
            }
            let mut at = all.start();
            while at.q < all.len {
                let lse = if segment.staged { all.take(simd, spread, at) } else { lse.of(simd, at) };
                let s = all.take(simd, task.weights, at);
                let mut w = exp::<T, S>(simd, T::vsub(simd, task.logit(simd, all, at), lse));
                if matches!(task.edge, BuiltIn::SoftmaxLeakyRelu(_)) {
                    w = T::vselect_positive(simd, s, w, T::vsub(simd, zero, w));
                }
                all.put_exactly(simd, task.weights, at, w);
                if task.dropout.is_some() {
                    let g = task.kept(simd, all, at, all.take(simd, out.gradients, at));
                    all.put_exactly(simd, out.gradients, at, g);
                }
                at.advance(all);
            }
        }
    }

    /// The weights and gradients of a row for a softmax, from what [`Backward::exponentials`] made.
    ///
    /// # Safety
    /// As [`Backward::run`]; `results` are those of the row's segment.
    #[inline(always)]
    unsafe fn softmax<S: Simd, const ONE: bool>(&self, simd: S, row: &Row<T>, [weights, gradients]: [*mut T; 2]) {
        let Self { task, out } = self;
        let zero = T::splat(simd, T::ZERO);
        let abs = |x: T::Vector<S>| T::vmax(simd, x, T::vsub(simd, zero, x));
        // SAFETY: the caller's promise.
        unsafe {
            let mut delta = Heads::<S, T, ONE>::sum(simd, row, 1);
            let mut at = row.start();
            while at.q < row.len {
                let (w, g) = (row.take(simd, task.weights, at), row.take(simd, out.gradients, at));
                // Beyond the row both are zeros.
                delta.take_sum(simd, at, T::vmul(simd, abs(w), g), None);
                at.advance(row);
            }
            delta.fold_sum(simd, row);
            let mut at = row.start();
            while at.q < row.len {
                let signed = row.take(simd, task.weights, at);
                let w = abs(signed);
                let g = row.take(simd, out.gradients, at);
                let dz = T::vmul(simd, w, T::vsub(simd, g, delta.of(simd, at)));
                if !out.bias.is_null() {
                    row.add_over_heads(out.bias, at, dz);
                }
                let slope = match task.edge {
                    BuiltIn::Softmax(edge) => T::splat(simd, edge.scale),
                    BuiltIn::SoftmaxLeakyRelu(edge) => {
                        let (one, slope) = (T::splat(simd, T::ONE), T::splat(simd, edge.slope));
                        T::vselect_positive(simd, signed, one, slope)
                    }
                    _ => zero,
                };
                row.put(simd, gradients, at, T::vmul(simd, slope, dz));
                row.put(simd, weights, at, task.kept(simd, row, at, w));
                at.advance(row);
            }
        }
    }

    /// The rows of a segment, for an edge function without softmax.
    ///
    /// # Safety
    /// As [`Backward::run`]; `results` are those of the segment.
    #[inline(always)]
    unsafe fn pointwise<S: Simd>(&self, simd: S, row: &Row<T>, [weights, gradients]: [*mut T; 2]) {
        let Self { task, out } = self;
        let one = T::splat(simd, T::ONE);
        let mut at = row.start();
        // SAFETY: the caller's promise.
        unsafe {
            while at.q < row.len {
                let s = row.take(simd, task.weights, at);
                let w = task.weight(simd, row, at);
                let g = task.kept(simd, row, at, row.take(simd, out.gradients, at));
                let slope = match task.edge {
                    BuiltIn::Scale => {
                        if !out.values.is_null() {
                            row.add_over_heads(out.values, at, T::vmul(simd, s, g));
                        }
                        row.of_edges(simd, task.values, at)
                    }
                    BuiltIn::Sigmoid => T::vmul(simd, w, T::vsub(simd, one, w)),
                    BuiltIn::LeakyRelu(edge) => T::vselect_positive(simd, s, one, T::splat(simd, edge.slope)),
                    _ => one,
                };
                row.put(simd, gradients, at, T::vmul(simd, slope, g));
                row.put(simd, weights, at, task.kept(simd, row, at, w));
                at.advance(row);
            }
        }
    }
}

impl<T: Scalar> EdgeWeights<T> {
    /// f of the scores at `at`, where it is no softmax.
    ///
    /// # Safety
    /// As [`edge_weights`]; `at` is inside `row`.
    #[inline(always)]
    unsafe fn weight<S: Simd>(&self, simd: S, row: &Row<T>, at: At) -> T::Vector<S> {
        // SAFETY: the caller's promise.
        unsafe {
            let s = row.take(simd, self.weights, at);
            match self.edge {
                BuiltIn::Scale => T::vmul(simd, s, row.of_edges(simd, self.values, at)),
                BuiltIn::Sigmoid => Edge::<T>::apply(Sigmoid, simd, s, s),
                BuiltIn::LeakyRelu(edge) => edge.apply(simd, s, s),
                _ => s,
            }
        }
    }

    /// z of the scores at `at`, for a softmax.
    ///
    /// # Safety
    /// As [`edge_weights`]; `at` is inside `row`.
    #[inline(always)]
    unsafe fn logit<S: Simd>(&self, simd: S, row: &Row<T>, at: At) -> T::Vector<S> {
        // SAFETY: the caller's promise.
        unsafe {
            let s = row.take(simd, self.weights, at);
            let z = match self.edge {
                BuiltIn::Softmax(edge) => T::vmul(simd, T::splat(simd, edge.scale), s),
                BuiltIn::SoftmaxLeakyRelu(edge) => LeakyRelu { slope: edge.slope }.apply(simd, s, s),
                _ => s,
            };
            if self.bias.is_null() { z } else { T::vadd(simd, z, row.of_edges(simd, self.bias, at)) }
        }
    }

    /// `x` by lane, 0 for dropped edges.
    #[inline(always)]
    fn kept<S: Simd>(&self, simd: S, row: &Row<T>, at: At, x: T::Vector<S>) -> T::Vector<S> {
        let Some(dropout) = &self.dropout else { return x };
        let mut keep = T::splat(simd, T::ZERO);
        let lanes = (&raw mut keep).cast::<T>();
        for lane in 0..T::lanes::<S>() {
            // SAFETY: a vector is its lanes.
            unsafe { *lanes.add(lane) = dropout.keep(row.base + at.q + lane) }
        }
        T::vmul(simd, keep, x)
    }
}
