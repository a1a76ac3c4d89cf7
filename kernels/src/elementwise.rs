//! TEW and TS on values: y = x op z and y = x op s, element by element.
//!
//! One operation for 12 or 8 bytes: the memory is the limit, so the only questions are whole registers and whether the
//! result bypasses the caches.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::{Arch, Scalar, store_streaming, stream_fence};

/// An elementary operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// x + z.
    Add,
    /// x - z.
    Sub,
    /// x z.
    Mul,
    /// x / z.
    Div,
}

/// The second operand.
#[derive(Clone, Copy, Debug)]
pub enum Second<'a, T> {
    /// As many numbers as the first one has.
    Values(&'a [T]),
    /// One number for all.
    Number(T),
}

/// y = x op z. `stream`: y bypasses the caches.
///
/// # Panics
/// When the slices differ in length.
pub fn elementwise<T: Scalar>(arch: Arch, op: Arithmetic, x: &[T], z: Second<'_, T>, y: &mut [T], stream: bool) {
    assert_eq!(x.len(), y.len(), "x and y have one length");
    if let Second::Values(z) = z {
        assert_eq!(x.len(), z.len(), "x and z have one length");
    }
    let task = Elementwise { op, x, z, y: y.as_mut_ptr(), stream };
    dispatch_compiled!(arch, task, Elementwise<'_, f32>, Elementwise<'_, f64>);
}

#[derive(Clone, Copy)]
struct Elementwise<'a, T> {
    op: Arithmetic,
    x: &'a [T],
    z: Second<'a, T>,
    /// As many numbers as x has, which nobody else uses meanwhile.
    y: *mut T,
    stream: bool,
}

impl<T: Scalar> WithSimd for Elementwise<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.op {
            Arithmetic::Add => self.run(simd, T::vadd),
            Arithmetic::Sub => self.run(simd, T::vsub),
            Arithmetic::Mul => self.run(simd, T::vmul),
            Arithmetic::Div => self.run(simd, T::vdiv),
        }
        if self.stream {
            stream_fence();
        }
    }
}

impl<T: Scalar> Elementwise<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, f: impl Fn(S, T::Vector<S>, T::Vector<S>) -> T::Vector<S>) {
        let (n, lanes) = (self.x.len(), T::lanes::<S>());
        // Up to the first element of y that starts a register: streaming stores must be aligned.
        let head = self.y.align_offset(size_of::<T::Vector<S>>()).min(n);
        self.part(simd, 0, head, &f);
        let whole = head + (n - head) / lanes * lanes;
        let (x, y) = (self.x.as_ptr(), self.y);
        // SAFETY: `p + lanes` is at most `n`, the length of all slices; y is aligned from `head` on by whole registers.
        unsafe {
            for p in (head..whole).step_by(lanes) {
                let z = match self.z {
                    Second::Values(z) => T::load(simd, z.as_ptr().add(p)),
                    Second::Number(s) => T::splat(simd, s),
                };
                let value = f(simd, T::load(simd, x.add(p)), z);
                if self.stream {
                    store_streaming(simd, y.add(p), value);
                } else {
                    T::store(simd, y.add(p), value);
                }
            }
        }
        self.part(simd, whole, n, &f);
    }

    /// Fewer elements than a register has.
    #[inline(always)]
    fn part<S: Simd>(
        self,
        simd: S,
        start: usize,
        end: usize,
        f: &impl Fn(S, T::Vector<S>, T::Vector<S>) -> T::Vector<S>,
    ) {
        let lanes = T::lanes::<S>();
        for p in (start..end).step_by(lanes) {
            let mask = T::first_lanes(simd, end - p);
            // SAFETY: the masked lanes are below `end`, which is at most the length of all slices.
            unsafe {
                let z = match self.z {
                    Second::Values(z) => T::load_masked(simd, mask, z.as_ptr().add(p)),
                    Second::Number(s) => T::splat(simd, s),
                };
                let value = f(simd, T::load_masked(simd, mask, self.x.as_ptr().add(p)), z);
                T::store_masked(simd, mask, self.y.add(p), value);
            }
        }
    }
}
