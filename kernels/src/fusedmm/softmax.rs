//! The weights of a row softmax, from the dots of consecutive row segments: those of one row block in a panel, or rows of CSR.
//!
//! ```text
//! until all segments are taken:
//!     up to 16 of them, with at most 1024 dots; z = f(dots)
//!     x = e^z in full registers, wherever one segment ends and the next begins
//!     if |z| <= 20 and no row has an m so far:   m = 0, l += the sum of the row's x;               w = x (by rows: x / l)
//!     else each segment by itself:               m = its largest logit and those before,           w = e^(z - m)
//! ```
//!
//! So logits of usual size need neither their maximum nor the difference from it, and their exponentials fill registers where segments are
//! short. Sums of e^z are as exact as those of e^(z - m): w is from 2e-9 to 5e8, which leaves D and its sums f32's range from 1e-29 to 1e29.

use pulp::Simd;

use crate::dot::{GROUP, join, sum_group};
use crate::scalar::WIDEST;
use crate::tile::Lines;
use crate::{Arch, EdgeFunction, Scalar, exp};

/// Dots that are taken together, at most: but for a longer segment.
const MOST_DOTS: usize = 1024;

/// 20^2: the largest square of a logit whose weight may be e^z.
const MOST_SQUARE: f64 = 400.0;

/// Registers of a segment up to which all segments that are taken together have as many as the longest of them. A branch for each segment
/// is often mistaken: on an Ice Lake, of 14 +- 3.5 dots, it took 8 of 44 clocks.
const ALIKE: usize = 4;

/// The row segments in the order of their dots.
pub(super) trait Segments<T: Scalar> {
    /// How many there are.
    fn count(&self) -> usize;

    /// The rows and the numbers of dots of `count` of them, from `next` on; the sum of these numbers.
    ///
    /// # Safety
    /// There are as many, and the pointers of the task are valid.
    unsafe fn read(&self, next: usize, count: usize, rows: &mut [u32; WIDEST], lens: &mut [u32; WIDEST]) -> usize;

    /// Whether m is 0 for all rows so far.
    ///
    /// # Safety
    /// The pointers of the task are valid.
    unsafe fn without_maximum(&self) -> bool;

    /// Takes the sums of a group's x, and makes weights of x, at `w`.
    ///
    /// # Safety
    /// The group has been filled from these segments and has its sums, and `w` is where its dots are.
    unsafe fn take<S: Simd>(&self, simd: S, group: &Group<T>, w: *mut T);

    /// Takes the `len` logits of `row`, and makes weights of them, from their maximum.
    ///
    /// # Safety
    /// The row has them, and `w`, which may be the same, as many weights.
    unsafe fn take_by_maximum<S: Simd>(&self, simd: S, row: usize, logits: *const T, w: *mut T, len: usize);
}

/// Makes weights of all dots of `segments`.
///
/// # Safety
/// `dots` and, unless null, `values` hold as many elements as the segments have. The pointers of the task are valid.
#[inline(always)]
pub(super) unsafe fn softmax_weights<S: Simd, T: Scalar>(
    (arch, simd): (Arch, S),
    edge: EdgeFunction<'_, T>,
    mut dots: *mut T,
    mut values: *const T,
    segments: &impl Segments<T>,
) {
    let mut group = Group::<T>::new();
    let mut next = 0;
    while next < segments.count() {
        // SAFETY: the caller's promise; `next` is below the number of segments, and the group's dots are the next ones.
        unsafe {
            group.fill(segments, next);
            next += group.count;
            let x = group.x.0.as_mut_ptr();
            let fit = group.dots <= MOST_DOTS;
            if fit
                && segments.without_maximum()
                && edge.exponentials::<S>((arch, simd), dots, x, values, group.dots) <= T::from_f64(MOST_SQUARE)
            {
                group.make_sums::<S>(simd);
                segments.take::<S>(simd, &group, dots);
            } else {
                let logits = if fit { x } else { dots };
                edge.apply::<S>((arch, simd), false, dots, logits, values, group.dots);
                let mut at = 0;
                for k in 0..group.count {
                    let (row, len) = (group.rows.0[k] as usize, group.lens.0[k] as usize);
                    if len > 0 {
                        segments.take_by_maximum::<S>(simd, row, logits.add(at), dots.add(at), len);
                    }
                    at += len;
                }
            }
            dots = dots.add(group.dots);
            if !values.is_null() {
                values = values.add(group.dots);
            }
        }
    }
}

/// Segments that are taken together.
pub(super) struct Group<T> {
    /// How many there are.
    pub count: usize,
    /// Their rows.
    pub rows: Lines<[u32; WIDEST]>,
    /// Their numbers of dots; 0 where there is no segment.
    lens: Lines<[u32; WIDEST]>,
    /// Dots of all of them.
    dots: usize,
    /// e^z, and room for registers that begin at the last one.
    x: Lines<[T; MOST_DOTS + ALIKE * WIDEST]>,
    /// A register for each segment.
    partial: Lines<[[T; WIDEST]; WIDEST]>,
    /// The sums of the segments' x.
    pub sums: Lines<[T; WIDEST]>,
}

impl<T: Scalar> Group<T> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            count: 0,
            rows: Lines([0; WIDEST]),
            lens: Lines([0; WIDEST]),
            dots: 0,
            x: Lines([T::ZERO; MOST_DOTS + ALIKE * WIDEST]),
            partial: Lines([[T::ZERO; WIDEST]; WIDEST]),
            sums: Lines([T::ZERO; WIDEST]),
        }
    }

    /// Becomes the segments from `next` on, one at least, as many as have at most [`MOST_DOTS`].
    ///
    /// # Safety
    /// There are more than `next`, and the pointers of their task are valid.
    #[inline(always)]
    unsafe fn fill(&mut self, segments: &impl Segments<T>, next: usize) {
        self.count = WIDEST.min(segments.count() - next);
        self.lens.0 = [0; WIDEST];
        // SAFETY: so many follow `next`; the pointers are the caller's promise.
        self.dots = unsafe { segments.read(next, self.count, &mut self.rows.0, &mut self.lens.0) };
        while self.dots > MOST_DOTS && self.count > 1 {
            self.count -= 1;
            self.dots -= std::mem::take(&mut self.lens.0[self.count]) as usize;
        }
    }

    /// Sums the segments' x.
    ///
    /// # Safety
    /// x has been made, of at most [`MOST_DOTS`].
    #[inline(always)]
    unsafe fn make_sums<S: Simd>(&mut self, simd: S) {
        let lanes = T::lanes::<S>();
        let (mut longest, mut lens) = (0, Lines([T::ZERO; WIDEST]));
        for k in 0..WIDEST {
            longest = longest.max(self.lens.0[k]);
            lens.0[k] = T::from_f64(f64::from(self.lens.0[k]));
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (longest as usize).div_ceil(lanes) {
                0 | 1 => self.partial_sums::<S, 1>(simd, &lens.0),
                2 => self.partial_sums::<S, 2>(simd, &lens.0),
                3 => self.partial_sums::<S, 3>(simd, &lens.0),
                _ => self.partial_sums::<S, ALIKE>(simd, &lens.0),
            }
        }
        for first in (0..self.count).step_by(lanes) {
            let mut groups = [T::splat(simd, T::ZERO); WIDEST / GROUP];
            for g in 0..lanes.div_ceil(GROUP) {
                let mut sums = [T::splat(simd, T::ZERO); GROUP];
                for u in 0..GROUP.min(lanes) {
                    // SAFETY: each segment's part has room for a register.
                    sums[u] = unsafe { T::load(simd, self.partial.0[first + g * GROUP + u].as_ptr()) };
                }
                groups[g] = sum_group::<S, T>(simd, &sums);
            }
            // SAFETY: there is a sum for each segment, and a multiple of the lanes of them.
            unsafe { T::store(simd, self.sums.0.as_mut_ptr().add(first), join::<S, T>(simd, groups)) }
        }
    }

    /// The sums of each segment's registers, of which there are `NV`, or more where that is the most.
    ///
    /// # Safety
    /// As [`Group::make_sums`]; `lens` are the numbers of dots.
    #[inline(always)]
    unsafe fn partial_sums<S: Simd, const NV: usize>(&mut self, simd: S, lens: &[T; WIDEST]) {
        let lanes = T::lanes::<S>();
        // Minus zero added is nothing: with masks, one instruction adds under one.
        let (nothing, step) = (T::splat(simd, -T::ZERO), T::splat(simd, T::from_f64(lanes as f64)));
        // SAFETY: the caller's promise: `NV` registers from any segment's first x on are in the room, and all of a longer one. Those of
        // no segment begin after the last. As many numbers as any register has lanes are there.
        unsafe {
            let mut numbers = [T::load(simd, T::NUMBERS.as_ptr()); NV];
            for v in 1..NV {
                numbers[v] = T::vadd(simd, numbers[v - 1], step);
            }
            let mut x = self.x.0.as_ptr();
            // All: a loop of known length is unrolled, 5 to 10 % of the whole.
            for k in 0..WIDEST {
                let (len, end) = (self.lens.0[k] as usize, T::splat(simd, lens[k]));
                let mut sum = nothing;
                for v in 0..NV {
                    let part = T::load(simd, x.add(v * lanes));
                    sum = T::vadd(simd, sum, T::vselect_greater(simd, end, numbers[v], part, nothing));
                }
                if NV == ALIKE {
                    let mut number = numbers[NV - 1];
                    for v in NV..len.div_ceil(lanes) {
                        number = T::vadd(simd, number, step);
                        let part = T::load(simd, x.add(v * lanes));
                        sum = T::vadd(simd, sum, T::vselect_greater(simd, end, number, part, nothing));
                    }
                }
                T::store(simd, self.partial.0[k].as_mut_ptr(), sum);
                x = x.add(len);
            }
        }
    }

    /// 1 / l.
    #[inline(always)]
    pub fn reciprocals<S: Simd>(&self, simd: S) -> Lines<[T; WIDEST]> {
        let mut factors = Lines([T::ZERO; WIDEST]);
        for first in (0..WIDEST).step_by(T::lanes::<S>()) {
            // SAFETY: registers begin at multiples of their lanes.
            unsafe {
                let sums = T::load(simd, self.sums.0.as_ptr().add(first));
                T::store(simd, factors.0.as_mut_ptr().add(first), T::vdiv(simd, T::splat(simd, T::ONE), sums));
            }
        }
        factors
    }

    /// The weights x, where the dots are.
    ///
    /// # Safety
    /// They have been made, and `w` has room for them.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(&self, simd: S, w: *mut T) {
        let lanes = T::lanes::<S>();
        // SAFETY: the caller's promise; places end at the last of the dots.
        unsafe {
            for at in (0..self.dots / lanes * lanes).step_by(lanes) {
                T::store(simd, w.add(at), T::load(simd, self.x.0.as_ptr().add(at)));
            }
            if self.dots >= lanes {
                // What is stored under a mask would hold up the load of the dots that follow.
                let at = self.dots - lanes;
                T::store(simd, w.add(at), T::load(simd, self.x.0.as_ptr().add(at)));
            } else {
                T::store_masked(simd, T::first_lanes(simd, self.dots), w, T::load(simd, self.x.0.as_ptr()));
            }
        }
    }

    /// The weights x times their segment's factor, where the dots are.
    ///
    /// # Safety
    /// As [`Group::store`].
    #[inline(always)]
    pub unsafe fn store_times<S: Simd>(&self, simd: S, factors: &[T; WIDEST], w: *mut T) {
        let lanes = T::lanes::<S>();
        let mut at = 0;
        // SAFETY: the caller's promise. A whole register overwrites weights that are still to come, and nothing beyond the dots.
        unsafe {
            for k in 0..self.count {
                let len = self.lens.0[k] as usize;
                let factor = T::splat(simd, factors[k]);
                let end = at + len;
                while at < end {
                    let x = T::vmul(simd, factor, T::load(simd, self.x.0.as_ptr().add(at)));
                    if at + lanes <= self.dots {
                        T::store(simd, w.add(at), x);
                    } else {
                        T::store_masked(simd, T::first_lanes(simd, self.dots - at), w.add(at), x);
                    }
                    at += lanes;
                }
                at = end;
            }
        }
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
    let (lanes, factor) = (T::lanes::<S>(), T::splat(simd, factor));
    let whole = n / lanes * lanes;
    // SAFETY: the caller's promise; what lies beyond the last whole register is masked.
    unsafe {
        for at in (0..whole).step_by(lanes) {
            T::store(simd, row.add(at), T::vmul(simd, factor, T::load(simd, row.add(at))));
        }
        if whole < n {
            let (row, mask) = (row.add(whole), T::first_lanes(simd, n - whole));
            T::store_masked(simd, mask, row, T::vmul(simd, factor, T::load_masked(simd, mask, row)));
        }
    }
}
