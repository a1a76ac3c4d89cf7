//! One row of edge values: registers of several heads, and one number for each head.

use pulp::Simd;

use super::EdgeWeights;
use crate::scalar::WIDEST;
use crate::{Scalar, prefetch_row};

/// Rows whose results are kept in the scratch until all are there: what is stored under a mask where a row ends cannot be forwarded to the
/// loads of the next row, which would wait for it. In the scratch, registers are stored whole.
pub(super) struct Segment<T> {
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// The places of the first of their numbers and one past the last.
    numbers: [usize; 2],
    /// Where the results go, of which there are up to two for each number, at the numbers' places.
    pub results: [*mut T; 2],
    /// They go to the scratch. A longer row's go where they belong at once.
    pub staged: bool,
}

impl<T: Scalar> Segment<T> {
    /// Most numbers of a segment of several rows.
    pub const MOST: usize = 1024;

    /// The rows from `first` on; where the results belong.
    ///
    /// # Safety
    /// As [`super::edge_weights`].
    #[inline(always)]
    pub unsafe fn new(task: &EdgeWeights<T>, first: usize, results: [*mut T; 2]) -> Self {
        // SAFETY: the caller's promise.
        let at = |i: usize| unsafe { task.row_ptr.at(i) * task.heads };
        let mut end = first + 1;
        while end < task.rows[1] && at(end + 1) - at(first) <= Self::MOST {
            end += 1;
        }
        let numbers = [at(first), at(end)];
        let bytes = (numbers[1] - numbers[0]).min(Self::MOST) * size_of::<T>();
        for from in results {
            // A row is a chain of loads, exponentials and a sum: it would wait for each line.
            prefetch_row(from.wrapping_add(numbers[0]), bytes);
        }
        let staged = numbers[1] - numbers[0] <= Self::MOST;
        let room = |which: usize| {
            let heads = 2 * (task.heads + WIDEST);
            task.scratch.wrapping_add(heads + which * (Self::MOST + WIDEST)).wrapping_sub(numbers[0])
        };
        Self { rows: [first, end], numbers, results: if staged { [room(0), room(1)] } else { results }, staged }
    }

    /// Copies the results `which` to where they belong.
    ///
    /// # Safety
    /// They have been made, and `to` has room for them.
    #[inline(always)]
    pub unsafe fn finish(&self, which: usize, to: *mut T) {
        if self.staged {
            let [begin, end] = self.numbers;
            // SAFETY: the caller's promise.
            unsafe { to.add(begin).copy_from_nonoverlapping(self.results[which].wrapping_add(begin), end - begin) }
        }
    }

    /// Writes both results of each nonzero to `to`, H of the one beside H of the other.
    ///
    /// # Safety
    /// As [`Segment::finish`].
    #[inline(always)]
    pub unsafe fn join(&self, heads: usize, to: *mut T) {
        let [begin, end] = self.numbers;
        let [first, second] = self.results;
        // SAFETY: the caller's promise.
        unsafe {
            if heads == 1 {
                for p in begin..end {
                    to.add(2 * p).write(*first.wrapping_add(p));
                    to.add(2 * p + 1).write(*second.wrapping_add(p));
                }
                return;
            }
            for p in (begin..end).step_by(heads) {
                to.add(2 * p).copy_from_nonoverlapping(first.wrapping_add(p), heads);
                to.add(2 * p + heads).copy_from_nonoverlapping(second.wrapping_add(p), heads);
            }
        }
    }
}

/// One row, or all rows of a segment: the numbers by nonzero and head.
pub(super) struct Row<T> {
    /// The place of the first.
    pub base: usize,
    /// How many there are.
    pub len: usize,
    pub heads: usize,
    /// What a register adds to the head that it begins with.
    step: usize,
    lanes: usize,
    scratch: *mut T,
    /// There is room for whole registers where results go.
    whole: bool,
}

/// A register's place in a row: its first number, and that one's head.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub q: usize,
    head: usize,
}

impl At {
    #[inline(always)]
    pub fn advance<T>(&mut self, row: &Row<T>) {
        self.q += row.lanes;
        self.head += row.step;
        if self.head >= row.heads {
            self.head -= row.heads;
        }
    }
}

impl<T: Scalar> Row<T> {
    /// Row `i` of `segment`.
    ///
    /// # Safety
    /// As [`super::edge_weights`].
    #[inline(always)]
    pub unsafe fn new<S: Simd>(task: &EdgeWeights<T>, segment: &Segment<T>, i: usize) -> Self {
        // SAFETY: the caller's promise.
        let numbers = unsafe { [task.row_ptr.at(i) * task.heads, task.row_ptr.at(i + 1) * task.heads] };
        Self::of::<S>(task, segment, numbers)
    }

    /// All rows of `segment`.
    #[inline(always)]
    pub fn all<S: Simd>(task: &EdgeWeights<T>, segment: &Segment<T>) -> Self {
        Self::of::<S>(task, segment, segment.numbers)
    }

    #[inline(always)]
    fn of<S: Simd>(task: &EdgeWeights<T>, segment: &Segment<T>, [base, end]: [usize; 2]) -> Self {
        let (heads, lanes) = (task.heads, T::lanes::<S>());
        let step = if heads == 1 { 0 } else { lanes % heads };
        Self { base, len: end - base, heads, step, lanes, scratch: task.scratch, whole: segment.staged }
    }

    #[inline(always)]
    pub fn start(&self) -> At {
        At { q: 0, head: 0 }
    }

    /// The numbers of `from` at `at`, zeros beyond the row.
    ///
    /// # Safety
    /// `from` has the row, and `at` is inside it.
    #[inline(always)]
    pub unsafe fn take<S: Simd>(&self, simd: S, from: *const T, at: At) -> T::Vector<S> {
        // SAFETY: the caller's promise.
        unsafe {
            let p = from.wrapping_add(self.base + at.q);
            if at.q + self.lanes <= self.len {
                T::load(simd, p)
            } else {
                T::load_masked(simd, T::first_lanes(simd, self.len - at.q), p)
            }
        }
    }

    /// Writes the numbers of `to`, one of the segment's results, at `at`.
    ///
    /// # Safety
    /// As [`Row::take`].
    #[inline(always)]
    pub unsafe fn put<S: Simd>(&self, simd: S, to: *mut T, at: At, x: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.whole {
                T::store(simd, to.wrapping_add(self.base + at.q), x);
            } else {
                self.put_exactly(simd, to, at, x);
            }
        }
    }

    /// Writes the numbers of `to` at `at`, none beyond the row.
    ///
    /// # Safety
    /// As [`Row::take`].
    #[inline(always)]
    pub unsafe fn put_exactly<S: Simd>(&self, simd: S, to: *mut T, at: At, x: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            let p = to.add(self.base + at.q);
            if at.q + self.lanes <= self.len {
                T::store(simd, p, x);
            } else {
                T::store_masked(simd, T::first_lanes(simd, self.len - at.q), p, x);
            }
        }
    }

    /// 1 inside the row, 0 beyond; none where all lanes are inside.
    #[inline(always)]
    pub fn ones<S: Simd>(&self, simd: S, at: At) -> Option<T::Vector<S>> {
        let mask = T::first_lanes(simd, self.len - at.q);
        // SAFETY: there are as many ones as any register has lanes.
        (at.q + self.lanes > self.len).then(|| unsafe { T::load_masked(simd, mask, T::ONES.as_ptr()) })
    }

    /// `z` inside the row, minus infinity beyond.
    #[inline(always)]
    pub fn limited<S: Simd>(&self, simd: S, at: At, z: T::Vector<S>) -> T::Vector<S> {
        let Some(ones) = self.ones(simd, at) else { return z };
        let signs = T::vsub(simd, T::vadd(simd, ones, ones), T::splat(simd, T::ONE));
        T::vmin(simd, T::vmul(simd, signs, T::splat(simd, -T::NEG_INFINITY)), z)
    }

    /// The numbers of the nonzeros at `at`, each once for each head; zeros where `from` is null.
    ///
    /// # Safety
    /// `from` has one for each nonzero, unless null.
    #[inline(always)]
    pub unsafe fn of_edges<S: Simd>(&self, simd: S, from: *const T, at: At) -> T::Vector<S> {
        let mut x = T::splat(simd, T::ZERO);
        if from.is_null() {
            return x;
        }
        // SAFETY: the caller's promise; a vector is its lanes.
        unsafe {
            if self.heads == 1 {
                return self.take(simd, from, at);
            }
            let to = (&raw mut x).cast::<T>();
            self.each_lane(at, |lane, p| *to.add(lane) = *from.add(p));
        }
        x
    }

    /// Adds the lanes of `x` to the numbers of their nonzeros, of which the first head's is the first.
    ///
    /// # Safety
    /// `to` has one for each nonzero.
    #[inline(always)]
    pub unsafe fn add_over_heads<V: Copy>(&self, to: *mut T, at: At, x: V) {
        let from = (&raw const x).cast::<T>();
        let mut first = at.head == 0;
        let mut head = at.head;
        // SAFETY: the caller's promise; a vector is its lanes.
        self.each_lane(at, |lane, p| unsafe {
            let old = if first { T::ZERO } else { *to.add(p) };
            *to.add(p) = old + *from.add(lane);
            head += 1;
            first = head == self.heads;
            head = if first { 0 } else { head };
        });
    }

    /// `f(lane, nonzero)` for the lanes at `at` inside the row.
    #[inline(always)]
    fn each_lane(&self, at: At, mut f: impl FnMut(usize, usize)) {
        let (mut p, mut head) = ((self.base + at.q) / self.heads, at.head);
        for lane in 0..self.lanes.min(self.len - at.q) {
            f(lane, p);
            head += 1;
            if head == self.heads {
                (p, head) = (p + 1, 0);
            }
        }
    }
}

/// One number for each head of a row. With `ONE` head, a register of partial results.
pub(super) struct Heads<S: Simd, T: Scalar, const ONE: bool> {
    /// The numbers, continued for a register's lanes.
    pub numbers: *mut T,
    partial: T::Vector<S>,
}

impl<S: Simd, T: Scalar, const ONE: bool> Heads<S, T, ONE> {
    /// Number `which` (0 or 1) of the scratch, all `x`.
    ///
    /// # Safety
    /// The scratch of the row has its length.
    #[inline(always)]
    unsafe fn all(simd: S, row: &Row<T>, which: usize, x: T) -> Self {
        let numbers = row.scratch.wrapping_add(which * (row.heads + WIDEST));
        if !ONE {
            for t in 0..row.heads + row.lanes {
                // SAFETY: the caller's promise.
                unsafe { *numbers.add(t) = x }
            }
        }
        Self { numbers, partial: T::splat(simd, x) }
    }

    /// For maxima.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn max(simd: S, row: &Row<T>, which: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::all(simd, row, which, T::NEG_INFINITY) }
    }

    /// For sums.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn sum(simd: S, row: &Row<T>, which: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::all(simd, row, which, T::ZERO) }
    }

    /// The numbers of the heads of a register at `at`.
    ///
    /// # Safety
    /// They have been set and continued.
    #[inline(always)]
    pub unsafe fn of(&self, simd: S, at: At) -> T::Vector<S> {
        // SAFETY: the caller's promise.
        unsafe { if ONE { T::splat(simd, *self.numbers) } else { T::load(simd, self.numbers.add(at.head)) } }
    }

    /// Takes the register at `at` into the maxima.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn take_max(&mut self, simd: S, at: At, x: T::Vector<S>) {
        if ONE {
            self.partial = T::vmax(simd, self.partial, x);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let p = self.numbers.add(at.head);
            T::store(simd, p, T::vmax(simd, T::load(simd, p), x));
        }
    }

    /// Takes the register at `at`, times `ones`, into the sums.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn take_sum(&mut self, simd: S, at: At, mut x: T::Vector<S>, ones: Option<T::Vector<S>>) {
        if let Some(ones) = ones {
            x = T::vmul(simd, x, ones);
        }
        if ONE {
            self.partial = T::vadd(simd, self.partial, x);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let p = self.numbers.add(at.head);
            T::store(simd, p, T::vadd(simd, T::load(simd, p), x));
        }
    }

    /// The maxima of the heads, continued.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn fold_max(&self, simd: S, row: &Row<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            if ONE {
                *self.numbers = T::reduce_max(simd, self.partial);
            } else {
                self.fold(row, |a, b| if b > a { b } else { a });
            }
        }
    }

    /// The sums of the heads, continued.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn fold_sum(&self, simd: S, row: &Row<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            if ONE {
                *self.numbers = T::reduce_sum(simd, self.partial);
            } else {
                self.fold(row, |a, b| a + b);
            }
        }
    }

    /// Takes what stands in the continuation into the heads' numbers, and continues these.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    unsafe fn fold(&self, row: &Row<T>, f: impl Fn(T, T) -> T) {
        let mut head = 0;
        for t in row.heads..row.heads + row.lanes {
            // SAFETY: the caller's promise.
            unsafe { *self.numbers.add(head) = f(*self.numbers.add(head), *self.numbers.add(t)) }
            head = if head + 1 == row.heads { 0 } else { head + 1 };
        }
        // SAFETY: the caller's promise.
        unsafe { self.extend(row) }
    }

    /// Continues the heads' numbers for a register.
    ///
    /// # Safety
    /// As [`Heads::all`].
    #[inline(always)]
    pub unsafe fn extend(&self, row: &Row<T>) {
        if !ONE {
            for t in row.heads..row.heads + row.lanes {
                // SAFETY: the caller's promise.
                unsafe { *self.numbers.add(t) = *self.numbers.add(t - row.heads) }
            }
        }
    }
}
