//! One number for each nonzero as it is stored: values of the sparse operand and results of SDDMM, bf16 and f16 among them.
//!
//! Kernels take and give what is computed with. Where numbers are narrow, a task widens those of its nonzeros into room of its own, or
//! narrows its results from there: [`PIECE`] nonzeros at a time, which stay in L2.

use std::borrow::Cow;

use sparsimd_kernels::{Arch, NarrowRows, Number, Stored, WidenRows, narrow_rows, widen_rows};

use super::run::{Shared, scratch};
use crate::dense::Aligned;
use crate::formats::PatternRef;
use crate::parallel;

/// Nonzeros of a task whose numbers are narrow: 64 KiB of f32, half of what an allocation may have that does not go to the system.
pub(super) const PIECE: usize = 1 << 14;

/// Most lanes of a register of f32: what is widened ends with a whole register.
const LANES: usize = 16;

/// A narrow element type that is computed with as `T`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow<T> {
    widen: unsafe fn(Arch, *const u16, usize, *mut T),
    narrow: unsafe fn(Arch, *const T, usize, *mut u16),
}

impl<T> Narrow<T> {
    fn of<D: Stored<Scalar = T>>() -> Self {
        Self { widen: widen::<D>, narrow: narrow::<D> }
    }
}

/// Widens `n` elements of `D`.
///
/// # Safety
/// `from` is valid for reads of them, `to` for writes of as many, rounded up to [`LANES`].
#[inline(never)]
unsafe fn widen<D: Stored>(arch: Arch, from: *const u16, n: usize, to: *mut D::Scalar) {
    let to_stride = n.next_multiple_of(arch.lanes::<D::Scalar>());
    let (from, factor) = (from.cast::<D>(), D::Scalar::ONE);
    // SAFETY: the caller's promise; no register of what 16 bits widen to has more lanes.
    unsafe { widen_rows(arch, WidenRows { from, stride: n, rows: 1, n, factor, to, to_stride }) }
}

/// Rounds `n` numbers to elements of `D`.
///
/// # Safety
/// `from` is valid for reads, `to` for writes of them.
#[inline(never)]
unsafe fn narrow<D: Stored>(arch: Arch, from: *const D::Scalar, n: usize, to: *mut u16) {
    let to = to.cast::<D>();
    // SAFETY: the caller's promise.
    unsafe { narrow_rows(arch, NarrowRows { from, stride: n, rows: 1, n, to, to_stride: n, stream: false }) }
}

/// A sparse matrix by rows whose values are bf16 or f16, as operations on `T` take it.
#[derive(Clone, Copy, Debug)]
pub struct NarrowCsr<'a, T> {
    pub(super) pattern: PatternRef<'a>,
    pub(super) values: Values<'a, T>,
}

/// Numbers, one for each nonzero.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a, T> {
    /// As they are computed with.
    Same(&'a [T]),
    /// The bits of narrow ones.
    Narrow(&'a [u16], Narrow<T>),
}

impl<'a, T> Values<'a, T> {
    pub fn of<D: Stored<Scalar = T>>(values: &'a [D]) -> Self {
        let (at, len) = (values.as_ptr(), values.len());
        // SAFETY: an element type that is not narrow is what it is computed with; the others are the bits of a u16.
        unsafe {
            match D::NARROW {
                true => Self::Narrow(std::slice::from_raw_parts(at.cast(), len), Narrow::of::<D>()),
                false => Self::Same(std::slice::from_raw_parts(at.cast(), len)),
            }
        }
    }

    pub fn len(self) -> usize {
        match self {
            Self::Same(values) => values.len(),
            Self::Narrow(bits, _) => bits.len(),
        }
    }

    /// Them, where they are as they are computed with.
    pub fn same(self) -> Option<&'a [T]> {
        if let Self::Same(values) = self { Some(values) } else { None }
    }

    /// Where a task reads those of its `nonzeros`, counted from the matrix' first: there, or widened in `room`.
    pub fn of_task(self, arch: Arch, [begin, end]: [usize; 2], room: &mut Aligned<T>) -> *const T {
        match self {
            Self::Same(values) => values.as_ptr(),
            Self::Narrow(bits, of) => {
                let bits = &bits[begin..end];
                *room = scratch(bits.len().next_multiple_of(LANES));
                // SAFETY: the room has as many, and whole registers.
                unsafe { (of.widen)(arch, bits.as_ptr(), bits.len(), room.as_mut_ptr()) };
                room.as_ptr().wrapping_sub(begin)
            }
        }
    }
}

impl<'a, T: Number> Values<'a, T> {
    /// All of them as they are computed with; on the current rayon pool.
    pub fn widened(self, arch: Arch) -> Cow<'a, [T]> {
        let (bits, of) = match self {
            Self::Same(values) => return Cow::Borrowed(values),
            Self::Narrow(bits, of) => (bits, of),
        };
        let registers = bits.len().div_ceil(LANES);
        let mut all = Vec::with_capacity(registers * LANES);
        let to = Shared::<T>(all.as_mut_ptr());
        parallel::ranges(registers, parallel::GRAIN / LANES, |range| {
            let part = range.start * LANES..bits.len().min(range.end * LANES);
            let to = to.get().wrapping_add(part.start);
            // SAFETY: there is room for whole registers, of which each range has its own.
            unsafe { (of.widen)(arch, bits[part.clone()].as_ptr(), part.len(), to) };
        });
        // SAFETY: the ranges have written them.
        unsafe { all.set_len(bits.len()) };
        Cow::Owned(all)
    }
}

/// Where results go, one for each nonzero.
#[derive(Debug)]
pub(crate) enum ValuesMut<'a, T> {
    /// As they are computed.
    Same(&'a mut [T]),
    /// Rounded to narrow ones, of which these are the bits.
    Narrow(&'a mut [u16], Narrow<T>),
}

impl<'a, T: Copy> ValuesMut<'a, T> {
    pub fn of<D: Stored<Scalar = T>>(values: &'a mut [D]) -> Self {
        let (at, len) = (values.as_mut_ptr(), values.len());
        // SAFETY: as in `Values::of`; any bits are a bf16 or f16.
        unsafe {
            match D::NARROW {
                true => Self::Narrow(std::slice::from_raw_parts_mut(at.cast(), len), Narrow::of::<D>()),
                false => Self::Same(std::slice::from_raw_parts_mut(at.cast(), len)),
            }
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Same(values) => values.len(),
            Self::Narrow(bits, _) => bits.len(),
        }
    }

    /// As tasks share them.
    pub fn shared(&mut self) -> Results<T> {
        match self {
            Self::Same(values) => Results::Same(Shared(values.as_mut_ptr())),
            Self::Narrow(bits, of) => Results::Narrow(Shared(bits.as_mut_ptr()), *of),
        }
    }
}

/// [`ValuesMut`] that tasks share; each writes the results of its own nonzeros.
#[derive(Clone, Copy)]
pub(crate) enum Results<T> {
    Same(Shared<T>),
    Narrow(Shared<u16>, Narrow<T>),
}

impl<T> Results<T> {
    /// Has `compute` write the results of `nonzeros` at the pointer that it gets, counted from the matrix' first nonzero.
    ///
    /// # Safety
    /// The results have these nonzeros, which no one else uses, and `compute` writes them all.
    pub unsafe fn of_task(self, arch: Arch, [begin, end]: [usize; 2], compute: impl FnOnce(*mut T)) {
        match self {
            Self::Same(out) => compute(out.get()),
            Self::Narrow(out, of) => {
                let mut room = scratch::<T>(end - begin);
                compute(room.as_mut_ptr().wrapping_sub(begin));
                // SAFETY: the caller's promise.
                unsafe { (of.narrow)(arch, room.as_ptr(), end - begin, out.get().wrapping_add(begin)) };
            }
        }
    }
}
