//! The element types of dense operands: what is stored, and what it is computed with.
//!
//! bf16 is the upper half of an f32: loads shift it there. f16 has 5 bits of exponent and 10 of mantissa: loads move both up, and a
//! multiplication by 2^112 corrects the exponent, of subnormal numbers too. Stores round to nearest, ties to even.

#[cfg(target_arch = "x86_64")]
mod x86;

use core::fmt::{Debug, Display};

use half::{bf16, f16};
use pulp::Simd;

use crate::number::sealed::Sealed;
use crate::{Number, Scalar};

impl Sealed for bf16 {}
impl Sealed for f16 {}

/// What is stored, and loaded into registers of numbers: `f32`, `f64`, `i32` and `i64` as they are, `bf16` and `f16` as f32.
pub trait Element: Sealed + Copy + Default + Debug + Display + PartialEq + Send + Sync + 'static {
    /// What registers of it are computed with.
    type Number: Number;

    /// Whether it takes less room than what it is computed with.
    const NARROW: bool = size_of::<Self>() < size_of::<Self::Number>();

    /// A register of the numbers at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for reads of as many elements as a register of [`Element::Number`] has.
    unsafe fn read<S: Simd>(simd: S, p: *const Self) -> Vector<Self, S>;

    /// The lanes of `mask`, which are the first ones, from `p`; zero elsewhere.
    ///
    /// # Safety
    /// `p` is valid for reads of the lanes in `mask`.
    unsafe fn read_masked<S: Simd>(simd: S, mask: Mask<Self, S>, p: *const Self) -> Vector<Self, S>;

    /// Whether [`Element::read_two`] takes the elements in another order than theirs.
    #[inline(always)]
    fn reorders<S: Simd>() -> bool {
        #[cfg(target_arch = "x86_64")]
        return x86::reorders::<S, Self>();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Loads two registers from `p` on, zero in the second one's lanes outside `mask` if there is one. The elements of both may be
    /// in an order of the instruction set's choice, which [`Element::in_order`] ends.
    ///
    /// # Safety
    /// `p` is valid for reads of both registers' elements, or of those in the mask.
    #[inline(always)]
    unsafe fn read_two<S: Simd>(simd: S, mask: Option<Mask<Self, S>>, p: *const Self) -> [Vector<Self, S>; 2] {
        #[cfg(target_arch = "x86_64")]
        if Self::reorders::<S>() {
            // SAFETY: the caller's promise.
            return unsafe { x86::read_two::<S, Self>(mask, p) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            let second = p.add(Self::Number::lanes::<S>());
            [
                Self::read(simd, p),
                match mask {
                    Some(mask) => Self::read_masked(simd, mask, second),
                    None => Self::read(simd, second),
                },
            ]
        }
    }

    /// Two registers from [`Element::read_two`], or sums of such, in the elements' order.
    #[inline(always)]
    fn in_order<S: Simd>(_: S, two: [Vector<Self, S>; 2]) -> [Vector<Self, S>; 2] {
        #[cfg(target_arch = "x86_64")]
        if Self::reorders::<S>() {
            // SAFETY: so the instruction set is the one it is for.
            return unsafe { x86::in_order::<S, Self>(two) };
        }
        two
    }

    /// Stores two registers from [`Element::read_two`], or sums of such, at `p` in the elements' order; past the caches if they are to
    /// `stream` and the instruction set can.
    ///
    /// # Safety
    /// `p` is valid for writes of both registers' elements, and a multiple of their size if they are to stream. Then
    /// [`stream_fence`](crate::stream_fence) follows before another thread reads them.
    #[inline(always)]
    unsafe fn write_two<S: Simd>(simd: S, p: *mut Self, two: [Vector<Self, S>; 2], stream: bool) {
        #[cfg(target_arch = "x86_64")]
        if Self::reorders::<S>() {
            // SAFETY: the caller's promise.
            return unsafe { x86::write_two::<S, Self>(p, two, stream) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            let second = p.add(Self::Number::lanes::<S>());
            if stream {
                Self::write_streaming(simd, p, two[0]);
                Self::write_streaming(simd, second, two[1]);
            } else {
                Self::write(simd, p, two[0]);
                Self::write(simd, second, two[1]);
            }
        }
    }

    /// Stores two registers that are in the elements' order at `p`.
    ///
    /// # Safety
    /// `p` is valid for writes of both registers' elements.
    #[inline(always)]
    unsafe fn write_ordered_two<S: Simd>(simd: S, p: *mut Self, two: [Vector<Self, S>; 2]) {
        #[cfg(target_arch = "x86_64")]
        if Self::reorders::<S>() {
            // SAFETY: the caller's promise.
            return unsafe { x86::write_ordered_two::<S, Self>(p, two) };
        }
        // SAFETY: the caller's promise; where elements are not reordered, all registers are in their order.
        unsafe { Self::write_two(simd, p, two, false) }
    }

    /// Stores all lanes of `x` at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for writes of as many elements as a register of [`Element::Number`] has.
    unsafe fn write<S: Simd>(simd: S, p: *mut Self, x: Vector<Self, S>);

    /// Stores the lanes of `mask`, which are the first ones, at `p`.
    ///
    /// # Safety
    /// `p` is valid for writes of the lanes in `mask`.
    unsafe fn write_masked<S: Simd>(simd: S, mask: Mask<Self, S>, p: *mut Self, x: Vector<Self, S>);

    /// As [`Element::write`], past the caches where the instruction set can.
    ///
    /// # Safety
    /// As there, and `p` is a multiple of the size of what is written. [`stream_fence`](crate::stream_fence) follows before another
    /// thread reads the elements.
    unsafe fn write_streaming<S: Simd>(simd: S, p: *mut Self, x: Vector<Self, S>);
}

/// An element type of dense operands: `f32` and `f64`, which are computed with as they are, or `bf16` and `f16`, which loads widen
/// to f32 and stores round.
pub trait Stored: Element<Number = <Self as Stored>::Scalar> {
    /// What it is computed with.
    type Scalar: Scalar;

    /// `"f32"`, `"f64"`, `"bf16"` or `"f16"`.
    const DTYPE: &'static str;

    /// The same number, as it is computed with.
    fn widen(self) -> Self::Scalar;
    /// The nearest number of this type; of two, the even one.
    fn narrow(x: Self::Scalar) -> Self;
}

/// The register of instruction set `S` in which elements of `D` are computed with.
pub type Vector<D, S> = <<D as Element>::Number as Number>::Vector<S>;

/// Its mask.
pub type Mask<D, S> = <<D as Element>::Number as Number>::Mask<S>;

macro_rules! as_it_is {
    ($t:ident) => {
        impl Element for $t {
            type Number = Self;

            #[inline(always)]
            unsafe fn read<S: Simd>(simd: S, p: *const Self) -> Vector<Self, S> {
                // SAFETY: the caller's promise.
                unsafe { <Self as Number>::load(simd, p) }
            }
            #[inline(always)]
            unsafe fn read_masked<S: Simd>(simd: S, mask: Mask<Self, S>, p: *const Self) -> Vector<Self, S> {
                // SAFETY: the caller's promise.
                unsafe { <Self as Number>::load_masked(simd, mask, p) }
            }
            #[inline(always)]
            unsafe fn write<S: Simd>(simd: S, p: *mut Self, x: Vector<Self, S>) {
                // SAFETY: the caller's promise.
                unsafe { <Self as Number>::store(simd, p, x) }
            }
            #[inline(always)]
            unsafe fn write_masked<S: Simd>(simd: S, mask: Mask<Self, S>, p: *mut Self, x: Vector<Self, S>) {
                // SAFETY: the caller's promise.
                unsafe { <Self as Number>::store_masked(simd, mask, p, x) }
            }
            #[inline(always)]
            unsafe fn write_streaming<S: Simd>(simd: S, p: *mut Self, x: Vector<Self, S>) {
                // SAFETY: the caller's promise.
                unsafe { crate::store_streaming::<S, Self>(simd, p, x) }
            }
        }
    };
}

as_it_is!(f32);
as_it_is!(f64);
as_it_is!(i32);
as_it_is!(i64);

macro_rules! same_number {
    ($t:ident) => {
        impl Stored for $t {
            type Scalar = Self;
            const DTYPE: &'static str = Self::NAME;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(x: Self) -> Self {
                x
            }
        }
    };
}

same_number!(f32);
same_number!(f64);

/// Lanes of the widest register.
const MOST_LANES: usize = 16;

macro_rules! half {
    ($t:ident, $name:literal, $widened:ident, $narrowed:ident) => {
        impl Stored for $t {
            type Scalar = f32;
            const DTYPE: &'static str = $name;

            #[inline(always)]
            fn widen(self) -> f32 {
                f32::from_bits($widened(self.to_bits()))
            }
            #[inline(always)]
            fn narrow(x: f32) -> Self {
                Self::from_bits($narrowed(x.to_bits()))
            }
        }

        impl Element for $t {
            type Number = f32;

            #[inline(always)]
            unsafe fn read<S: Simd>(simd: S, p: *const Self) -> S::f32s {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's promise.
                if let Some(x) = unsafe { x86::read::<S, Self>(p) } {
                    return x;
                }
                // A loop of fixed length over the lanes compiles to the instructions for all of them.
                let mut x = simd.splat_f32s(0.0);
                let lanes = (&raw mut x).cast::<u32>();
                for i in 0..S::F32_LANES {
                    // SAFETY: a register is its lanes, one after the other; the caller's promise.
                    unsafe { *lanes.add(i) = $widened((*p.add(i)).to_bits()) }
                }
                x
            }
            #[inline(always)]
            unsafe fn read_masked<S: Simd>(simd: S, mask: S::m32s, p: *const Self) -> S::f32s {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's promise.
                if let Some(x) = unsafe { x86::read_masked::<S, Self>(mask, p) } {
                    return x;
                }
                let n = lanes_of(simd, mask);
                if n == S::F32_LANES {
                    // SAFETY: the caller's promise.
                    return unsafe { Self::read(simd, p) };
                }
                let mut some = [Self::default(); MOST_LANES];
                // SAFETY: the caller's promise; no register has more lanes.
                unsafe { copy_lanes::<S, Self>(p, some.as_mut_ptr(), n) }
                // SAFETY: no register has more lanes.
                unsafe { Self::read(simd, some.as_ptr()) }
            }
            #[inline(always)]
            unsafe fn write<S: Simd>(_: S, p: *mut Self, x: S::f32s) {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the caller's promise.
                if unsafe { x86::write::<S, Self>(p, x) } {
                    return;
                }
                let lanes = (&raw const x).cast::<u32>();
                for i in 0..S::F32_LANES {
                    // SAFETY: a register is its lanes, one after the other; the caller's promise.
                    unsafe { *p.add(i) = Self::from_bits($narrowed(*lanes.add(i))) }
                }
            }
            #[inline(always)]
            unsafe fn write_masked<S: Simd>(simd: S, mask: S::m32s, p: *mut Self, x: S::f32s) {
                let mut all = [Self::default(); MOST_LANES];
                // SAFETY: no register has more lanes; the caller's promise.
                unsafe {
                    Self::write(simd, all.as_mut_ptr(), x);
                    #[cfg(target_arch = "x86_64")]
                    if x86::write_masked::<S, Self>(mask, p, &all) {
                        return;
                    }
                    copy_lanes::<S, Self>(all.as_ptr(), p, lanes_of(simd, mask));
                }
            }
            #[inline(always)]
            unsafe fn write_streaming<S: Simd>(simd: S, p: *mut Self, x: S::f32s) {
                // SAFETY: no register has more lanes; the caller's promise.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    {
                        let mut all = Packed([Self::default(); MOST_LANES]);
                        Self::write(simd, all.0.as_mut_ptr(), x);
                        if x86::stream::<S, Self>(p, &all) {
                            return;
                        }
                    }
                    Self::write(simd, p, x);
                }
            }
        }
    };
}

half!(bf16, "bf16", widened_bf16, narrowed_bf16);
half!(f16, "f16", widened_f16, narrowed_f16);

/// A register of halves on its way to memory.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(32))]
struct Packed<D>([D; MOST_LANES]);

/// Copies `n` elements, by powers of two: a register of `S` has no more.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of them, and they do not overlap.
#[inline(always)]
unsafe fn copy_lanes<S: Simd, D>(mut from: *const D, mut to: *mut D, n: usize) {
    for some in [16, 8, 4, 2, 1] {
        if some <= S::F32_LANES && n & some != 0 {
            // SAFETY: the caller's promise; the set bits of `n` add up to `n`.
            unsafe {
                from.copy_to_nonoverlapping(to, some);
                (from, to) = (from.add(some), to.add(some));
            }
        }
    }
}

/// How many lanes `mask` has, which are the first ones.
#[inline(always)]
fn lanes_of<S: Simd>(simd: S, mask: S::m32s) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = x86::lanes_of::<S>(&mask) {
        return lanes;
    }
    // SAFETY: there are as many ones as the widest register has lanes.
    simd.reduce_sum_f32s(unsafe { f32::load_masked(simd, mask, f32::ONES.as_ptr()) }) as usize
}

/// The bits of an f32 from those of a bf16.
#[inline(always)]
fn widened_bf16(bits: u16) -> u32 {
    u32::from(bits) << 16
}

/// The bits of the nearest bf16. NaN stays NaN.
#[inline(always)]
fn narrowed_bf16(bits: u32) -> u16 {
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits | 0x40_0000;
    ((if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) >> 16) as u16
}

/// The bits of an f32 from those of an f16.
#[inline(always)]
fn widened_f16(bits: u16) -> u32 {
    let moved = u32::from(bits) << 13;
    let magnitude = moved & 0x0fff_e000;
    // 2^(127 - 15): the exponents' biases.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    scaled | special | (moved & 0x1000_0000) << 3
}

/// The bits of the nearest f16. NaN stays NaN; beyond the largest number there is infinity.
#[inline(always)]
fn narrowed_f16(bits: u32) -> u16 {
    let sign = bits & 0x8000_0000;
    let magnitude = bits ^ sign;
    // 0.5 has the last bit of its mantissa where subnormal f16 have theirs: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    ((if magnitude >= 143 << 23 { special } else { finite }) | sign >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arch;
    use pulp::WithSimd;

    /// Widens all of `from`, and narrows all of `to`, by whole and by masked registers.
    struct Convert<'a, D> {
        from: &'a [D],
        wide: &'a mut [f32],
        back: &'a mut [D],
        masked: usize,
    }

    impl<D: Stored<Scalar = f32>> WithSimd for Convert<'_, D> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let lanes = S::F32_LANES;
            for at in (0..self.from.len()).step_by(lanes) {
                // SAFETY: the slices are whole registers; masks have at most all lanes.
                unsafe {
                    let (p, q) = (self.from.as_ptr().add(at), self.back.as_mut_ptr().add(at));
                    let mask = f32::first_lanes(simd, self.masked);
                    let x = if self.masked > 0 { D::read_masked(simd, mask, p) } else { D::read(simd, p) };
                    f32::store(simd, self.wide.as_mut_ptr().add(at), x);
                    if self.masked > 0 { D::write_masked(simd, mask, q, x) } else { D::write(simd, q, x) }
                }
            }
        }
    }

    /// Every 16-bit pattern there and back, on every instruction set.
    fn there_and_back<D: Stored<Scalar = f32>>(from_bits: fn(u16) -> D, exact: fn(D) -> f32) {
        let from: Vec<D> = (0..=u16::MAX).map(from_bits).collect();
        let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
        for arch in Arch::available() {
            let lanes = arch.lanes::<f32>();
            for masked in 0..=lanes {
                let (mut wide, mut back) = (vec![0.0; from.len()], vec![D::default(); from.len()]);
                arch.dispatch(Convert { from: &from, wide: &mut wide, back: &mut back, masked });
                for (i, &x) in from.iter().enumerate() {
                    let there = masked == 0 || i % lanes < masked;
                    let expected = if there { exact(x) } else { 0.0 };
                    let case = (arch.name(), masked, i);
                    assert!(same(wide[i], expected) && same(exact(back[i]), expected), "{case:?} {}", wide[i]);
                }
            }
        }
    }

    #[test]
    fn every_half_widens_exactly_and_comes_back() {
        there_and_back(bf16::from_bits, bf16::to_f32);
        there_and_back(f16::from_bits, f16::to_f32);
    }

    /// Numbers between halves round as the crate `half` rounds them.
    struct Narrow<'a, D>(&'a [f32], &'a mut [D]);

    impl<D: Stored<Scalar = f32>> WithSimd for Narrow<'_, D> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for at in (0..self.0.len()).step_by(S::F32_LANES) {
                // SAFETY: the slices are whole registers.
                unsafe { D::write(simd, self.1.as_mut_ptr().add(at), f32::load(simd, self.0.as_ptr().add(at))) }
            }
        }
    }

    #[test]
    fn stores_round_to_nearest_even() {
        // All exponents and signs, mantissas around every tie.
        let last = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000, 0x7f_ffff];
        let mut from: Vec<f32> = (0..512u32).flat_map(|top| last.map(|low| f32::from_bits(top << 23 | low))).collect();
        from.resize(from.len().next_multiple_of(MOST_LANES), 0.0);
        for arch in Arch::available() {
            let (mut bf16s, mut f16s) = (vec![bf16::default(); from.len()], vec![f16::default(); from.len()]);
            arch.dispatch(Narrow(&from, &mut bf16s));
            arch.dispatch(Narrow(&from, &mut f16s));
            for (i, &x) in from.iter().enumerate() {
                let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(same(bf16s[i].to_f32(), bf16::from_f32_const(x).to_f32()), "{} {x:e}", arch.name());
                assert!(same(f16s[i].to_f32(), f16::from_f32_const(x).to_f32()), "{} {x:e}", arch.name());
                assert!(same(f16::narrow(x).to_f32(), f16s[i].to_f32()), "{x:e}");
            }
        }
    }
}
