//! Four-element vectors and their element types.

use core::ops::{Add, Mul, Sub};
#[cfg(target_arch = "spirv")]
use spirv_std::arch::IndexUnchecked;
use spirv_std::glam::{DVec4, Vec4};

/// An element: `f32` or `f64`.
pub trait Element: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + PartialOrd {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Minus infinity.
    const LOWEST: Self;
    /// `self / other`.
    fn over(self, other: Self) -> Self;
    /// e to the power of `self`.
    fn exponential(self) -> Self;
    /// The value of the lane of the subgroup whose number differs by the bits of `mask`.
    #[cfg(target_arch = "spirv")]
    fn hardware_shuffle_xor(self, mask: u32) -> Self;
    /// The value of lane `lane` of the subgroup.
    #[cfg(target_arch = "spirv")]
    fn hardware_shuffle(self, lane: u32) -> Self;
    /// The value as f64, to pass between emulated lanes.
    #[cfg(not(target_arch = "spirv"))]
    fn to_f64(self) -> f64;
    /// The nearest value.
    #[cfg(not(target_arch = "spirv"))]
    fn from_f64(x: f64) -> Self;
}

/// Four elements, the unit of loads and stores.
pub trait Block: Copy {
    /// The element type.
    type Element: Element;
    /// All zeros.
    const ZERO: Self;
    /// All four `s`.
    fn splat(s: Self::Element) -> Self;
    /// `self + s b`.
    fn add_scaled(self, s: Self::Element, b: Self) -> Self;
    /// `s self`.
    fn scaled(self, s: Self::Element) -> Self;
    /// `self + b`.
    fn plus(self, b: Self) -> Self;
    /// `s` and the sum of products.
    fn add_dot(self, b: Self, s: Self::Element) -> Self::Element;
    /// The block of four elements.
    fn of(x: [Self::Element; 4]) -> Self;
    /// `self * b` by element.
    fn times(self, b: Self) -> Self;
    /// The first `n` elements, zeros after them.
    fn first(self, n: u32) -> Self;
    /// Element 0.
    fn x(self) -> Self::Element;
    /// Element 1.
    fn y(self) -> Self::Element;
    /// Element 2.
    fn z(self) -> Self::Element;
    /// Element 3.
    fn w(self) -> Self::Element;
}

macro_rules! block {
    ($t:ident, $v:ident, $exp:path) => {
        impl Element for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn exponential(self) -> Self {
                $exp(self)
            }
            #[cfg(target_arch = "spirv")]
            #[inline(always)]
            fn hardware_shuffle_xor(self, mask: u32) -> Self {
                spirv_std::arch::subgroup_shuffle_xor(self, mask)
            }
            #[cfg(target_arch = "spirv")]
            #[inline(always)]
            fn hardware_shuffle(self, lane: u32) -> Self {
                spirv_std::arch::subgroup_shuffle(self, lane)
            }
            #[cfg(not(target_arch = "spirv"))]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[cfg(not(target_arch = "spirv"))]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
        }

        impl Block for $v {
            type Element = $t;
            const ZERO: Self = $v::ZERO;
            #[inline(always)]
            fn splat(s: $t) -> Self {
                $v::splat(s)
            }
            #[inline(always)]
            fn add_scaled(self, s: $t, b: Self) -> Self {
                self + b * s
            }
            #[inline(always)]
            fn scaled(self, s: $t) -> Self {
                self * s
            }
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                self + b
            }
            #[inline(always)]
            fn add_dot(self, b: Self, s: $t) -> $t {
                // One after the other: a fused multiply-add for each.
                s + self.x * b.x + self.y * b.y + self.z * b.z + self.w * b.w
            }
            #[inline(always)]
            fn of(x: [$t; 4]) -> Self {
                $v::new(x[0], x[1], x[2], x[3])
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                self * b
            }
            #[inline(always)]
            fn first(self, n: u32) -> Self {
                $v::new(
                    self.x,
                    if n > 1 { self.y } else { 0.0 },
                    if n > 2 { self.z } else { 0.0 },
                    if n > 3 { self.w } else { 0.0 },
                )
            }
            #[inline(always)]
            fn x(self) -> $t {
                self.x
            }
            #[inline(always)]
            fn y(self) -> $t {
                self.y
            }
            #[inline(always)]
            fn z(self) -> $t {
                self.z
            }
            #[inline(always)]
            fn w(self) -> $t {
                self.w
            }
        }
    };
}

block!(f32, Vec4, exp_f32);
block!(f64, DVec4, exp_f64);

#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    #[cfg(target_arch = "spirv")]
    use spirv_std::num_traits::Float;
    x.exp()
}

/// SPIR-V's exponential has no f64 form. x = k ln 2 + r with |r| <= ln 2 / 2, then the Taylor polynomial of degree 13 (the next
/// term is below 2^-57), then 2^k in two steps so that subnormal results come out right.
#[inline(always)]
fn exp_f64(x: f64) -> f64 {
    #[cfg(target_arch = "spirv")]
    use spirv_std::num_traits::Float;
    // Past these the result is infinite or zero; a NaN stays one.
    let x = x.clamp(-746.0, 710.0);
    let k = (x * core::f64::consts::LOG2_E + 0.5).floor();
    // ln 2 in two parts: the first has trailing zeros enough for k times it to be exact.
    let r = (x - k * 6.931_471_803_691_238e-1) - k * 1.908_214_929_270_587_7e-10;
    let p = 1.0 / 479_001_600.0 + r * (1.0 / 6_227_020_800.0);
    let p = 1.0 / 39_916_800.0 + r * p;
    let p = 1.0 / 3_628_800.0 + r * p;
    let p = 1.0 / 362_880.0 + r * p;
    let p = 1.0 / 40_320.0 + r * p;
    let p = 1.0 / 5_040.0 + r * p;
    let p = 1.0 / 720.0 + r * p;
    let p = 1.0 / 120.0 + r * p;
    let p = 1.0 / 24.0 + r * p;
    let p = 1.0 / 6.0 + r * p;
    let p = 0.5 + r * p;
    let p = 1.0 + r * (1.0 + r * p);
    let k = k as i32;
    p * power_of_two(k / 2) * power_of_two(k - k / 2)
}

/// 2^k for -1022 <= k <= 1023.
#[inline(always)]
fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

/// `buffer[i]`: unchecked on the device, checked on the CPU.
#[inline(always)]
pub fn at<T: Copy>(buffer: &[T], i: u32) -> T {
    #[cfg(target_arch = "spirv")]
    // SAFETY: the host builds every index array against the operands' shapes and pads buffers to whole blocks.
    unsafe {
        *buffer.index_unchecked(i as usize)
    }
    #[cfg(not(target_arch = "spirv"))]
    buffer[i as usize]
}

/// `buffer[i] = x`: unchecked on the device, checked on the CPU.
#[inline(always)]
pub fn put<T: Copy>(buffer: &mut [T], i: u32, x: T) {
    #[cfg(target_arch = "spirv")]
    // SAFETY: as for `at`; every task owns its outputs alone.
    unsafe {
        *buffer.index_unchecked_mut(i as usize) = x;
    }
    #[cfg(not(target_arch = "spirv"))]
    {
        buffer[i as usize] = x;
    }
}

/// Runs a statement for each register of a lane with a constant index: a loop variable would put the array in memory.
#[macro_export]
macro_rules! each_register {
    ($count:expr, |$r:ident| $body:block) => {{
        const $r: usize = 0;
        $body
    }
    if $count > 1 {
        const $r: usize = 1;
        $body
    }
    if $count > 2 {
        {
            const $r: usize = 2;
            $body
        }
        const $r: usize = 3;
        $body
    }};
}
