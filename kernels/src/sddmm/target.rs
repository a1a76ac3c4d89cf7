//! Where the dots of a row go: to their places, plus the sums of earlier tiles, times the values; or to a buffer, to be put in
//! order.

use pulp::Simd;

use crate::Scalar;
use crate::dot::Sink;
use crate::tile::Tile;

/// Where the dots of a row go.
pub(super) trait Target<T: Scalar>: Sink<T> + Copy {
    /// The same for dots from position `place` on, whose sums of earlier tiles begin at `own`.
    ///
    /// # Safety
    /// Both are inside the output.
    unsafe fn at(self, place: usize, own: usize) -> Self;

    /// Where they are kept meanwhile if they do not come in the order of their places: at `room`, as sums only.
    fn in_scratch(self, room: *mut T) -> Scratch<T>;

    /// Where they go from there: nothing is left to be added.
    fn after_scratch(self) -> Self;
}

/// Dots are the result: one tile, no values.
#[derive(Clone, Copy)]
pub(super) struct Plain<T>(pub *mut T);

impl<T: Scalar> Target<T> for Plain<T> {
    #[inline(always)]
    unsafe fn at(self, place: usize, _: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { self.0.add(place) })
    }

    #[inline(always)]
    fn in_scratch(self, room: *mut T) -> Scratch<T> {
        Scratch { room, sums: Each::NONE }
    }

    #[inline(always)]
    fn after_scratch(self) -> Self {
        self
    }
}

impl<T: Scalar> Sink<T> for Plain<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe { store(simd, self.0.wrapping_add(at), lanes, dots) }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, _: S, at: usize, first: usize, dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe { store_half::<S, T>(self.0.add(at), first, dots) }
    }
}

/// Dots are added to the sums of earlier tiles, where they are.
#[derive(Clone, Copy)]
pub(super) struct Sums<T>(pub *mut T);

impl<T: Scalar> Target<T> for Sums<T> {
    #[inline(always)]
    unsafe fn at(self, place: usize, _: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { self.0.add(place) })
    }

    #[inline(always)]
    fn in_scratch(self, room: *mut T) -> Scratch<T> {
        Scratch { room, sums: Each(self.0.cast_const()) }
    }

    #[inline(always)]
    fn after_scratch(self) -> Self {
        self
    }
}

impl<T: Scalar> Sink<T> for Sums<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = Each(self.0.cast_const()).load(simd, at, lanes).unwrap_unchecked();
            store(simd, self.0.wrapping_add(at), lanes, T::vadd(simd, dots, sums));
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = Each(self.0.cast_const()).load_half(simd, at, first).unwrap_unchecked();
            store_half::<S, T>(self.0.add(at), first, T::vadd(simd, dots, sums));
        }
    }
}

/// Dots are added to earlier tiles' sums and multiplied by the values after the last tile.
#[derive(Clone, Copy)]
pub(super) struct Output<T> {
    /// Where the first dot goes.
    out: *mut T,
    values: Each<T>,
    /// Earlier tiles' sums.
    sums: Each<T>,
}

impl<T: Scalar> Output<T> {
    /// Of the tile at `tile`: the sums of tiles are at `sums` until the `last`, which goes to `out`. No `values` if null.
    #[inline(always)]
    pub(super) fn new(out: *mut T, values: *const T, sums: *mut T, tile: Tile, last: bool) -> Self {
        Self {
            out: if last { out } else { sums },
            values: if last { Each(values) } else { Each::NONE },
            sums: if tile.start > 0 { Each(sums) } else { Each::NONE },
        }
    }

    /// The place of the dots, where that is all there is to it.
    #[inline(always)]
    pub(super) fn plain(&self) -> Option<Plain<T>> {
        (self.values.0.is_null() && self.sums.0.is_null()).then_some(Plain(self.out))
    }
}

impl<T: Scalar> Target<T> for Output<T> {
    #[inline(always)]
    unsafe fn at(self, place: usize, own: usize) -> Self {
        // There are as many values as outputs.
        Self { out: self.out.wrapping_add(place), values: self.values.at(place), sums: self.sums.at(own) }
    }

    #[inline(always)]
    fn in_scratch(self, room: *mut T) -> Scratch<T> {
        Scratch { room, sums: self.sums }
    }

    #[inline(always)]
    fn after_scratch(self) -> Self {
        Self { sums: Each::NONE, ..self }
    }
}

impl<T: Scalar> Sink<T> for Output<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(sums) = self.sums.load(simd, at, lanes) {
                dots = T::vadd(simd, dots, sums);
            }
            if let Some(values) = self.values.load(simd, at, lanes) {
                dots = T::vmul(simd, dots, values);
            }
            store(simd, self.out.wrapping_add(at), lanes, dots);
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(sums) = self.sums.load_half(simd, at, first) {
                dots = T::vadd(simd, dots, sums);
            }
            if let Some(values) = self.values.load_half(simd, at, first) {
                dots = T::vmul(simd, dots, values);
            }
            store_half::<S, T>(self.out.wrapping_add(at), first, dots);
        }
    }
}

/// Dots that are read again at once, plus the sums of earlier tiles if there are any: stored by whole registers or halves of them,
/// since what is stored under a mask cannot be forwarded to loads.
pub(super) struct Scratch<T> {
    room: *mut T,
    sums: Each<T>,
}

impl<T: Scalar> Sink<T> for Scratch<T> {
    #[inline(always)]
    unsafe fn emit<S: Simd>(&self, simd: S, at: usize, lanes: [usize; 2], mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise, and the room has place for a register more than there are dots.
        unsafe {
            if let Some(sums) = self.sums.load(simd, at, lanes) {
                dots = T::vadd(simd, dots, sums);
            }
            let room = self.room.add(at);
            if lanes[0] == 0 { T::store(simd, room, dots) } else { store_half::<S, T>(room, lanes[0], dots) }
        }
    }

    #[inline(always)]
    unsafe fn emit_half<S: Simd>(&self, simd: S, at: usize, first: usize, mut dots: T::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(sums) = self.sums.load_half(simd, at, first) {
                dots = T::vadd(simd, dots, sums);
            }
            store_half::<S, T>(self.room.add(at), first, dots);
        }
    }
}

/// One number for each dot, from the first on; null for none.
#[derive(Clone, Copy)]
struct Each<T>(*const T);

impl<T: Scalar> Each<T> {
    const NONE: Self = Self(std::ptr::null());

    /// From the number at `at` on.
    #[inline(always)]
    fn at(self, at: usize) -> Self {
        if self.0.is_null() { self } else { Self(self.0.wrapping_add(at)) }
    }

    /// Those of the dots at `at`, in the lanes `lanes[0]..lanes[1]`.
    ///
    /// # Safety
    /// There are that many.
    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, at: usize, lanes: [usize; 2]) -> Option<T::Vector<S>> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; where lanes before the first are left out, the mask keeps them from memory.
        Some(unsafe {
            if lanes == [0, T::lanes::<S>()] {
                T::load(simd, self.0.add(at))
            } else {
                let first = self.0.wrapping_add(at).wrapping_sub(lanes[0]);
                T::load_masked(simd, T::lanes_between(simd, lanes[0], lanes[1]), first)
            }
        })
    }

    /// Those of the dots at `at`, in the half of a register that begins at lane `first`, which is 0 or the middle; zeros in the
    /// other.
    ///
    /// # Safety
    /// There are that many.
    #[inline(always)]
    unsafe fn load_half<S: Simd>(self, simd: S, at: usize, first: usize) -> Option<T::Vector<S>> {
        if self.0.is_null() {
            return None;
        }
        let mut x = T::splat(simd, T::ZERO);
        let half = (&raw mut x).cast::<T>().wrapping_add(first);
        // SAFETY: the caller's promise; a register is its lanes, one after the other.
        unsafe { half.copy_from_nonoverlapping(self.0.add(at), T::lanes::<S>() / 2) }
        Some(x)
    }
}

/// Stores the lanes `lanes[0]..lanes[1]` of `dots` from `out` on.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn store<S: Simd, T: Scalar>(simd: S, out: *mut T, lanes: [usize; 2], dots: T::Vector<S>) {
    // SAFETY: the caller's promise; where lanes before the first are left out, the mask keeps them from memory.
    unsafe {
        if lanes == [0, T::lanes::<S>()] {
            T::store(simd, out, dots);
        } else {
            T::store_masked(simd, T::lanes_between(simd, lanes[0], lanes[1]), out.wrapping_sub(lanes[0]), dots);
        }
    }
}

/// Stores the half of `x` that begins at lane `first` at `p`.
///
/// # Safety
/// `p` is valid for writes of half a register, of which `first` is the first or the middle lane.
#[inline(always)]
unsafe fn store_half<S: Simd, T: Scalar>(p: *mut T, first: usize, x: T::Vector<S>) {
    // SAFETY: the caller's promise; a register is its lanes, one after the other.
    unsafe { (&raw const x).cast::<T>().add(first).copy_to_nonoverlapping(p, T::lanes::<S>() / 2) }
}
