//! The element types of most operations, f32 and f64: what they have beyond other numbers.

use core::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use pulp::Simd;

use crate::{Number, Stored};

/// Lanes of the widest register.
pub(crate) const WIDEST: usize = 16;

/// An element type: `f32` or `f64`.
///
/// A [`Number`] with division, rounding and the functions that need them.
pub trait Scalar:
    Number
    + Stored<Scalar = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// As many ones as the widest register has lanes.
    const ONES: &'static [Self; 16];
    /// As many numbers, from 0 on.
    const NUMBERS: &'static [Self; 16];
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// The unit roundoff's double: distance from 1 to the next number.
    const EPSILON: Self;
    /// Bits of the stored mantissa: the position of the exponent.
    const MANTISSA_BITS: u32;
    /// 1.5 * 2^[`Scalar::MANTISSA_BITS`], and the exponent field of 1 (127 or 1023): adding it rounds to an integer, which then stands in
    /// the low bits as an exponent.
    const ROUNDER: Self;
    /// Arguments of e^x between which neither the result nor 2^k leaves the normal range.
    const EXP_RANGE: [Self; 2];
    /// The coefficients of a polynomial that is e^r, |r| <= ln 2 / 2, but for rounding; that of r^0 first.
    const EXP: &'static [Self];
    /// ln 2 in two parts, the first with so few bits that its product with any exponent is exact.
    const LN_2: [Self; 2];

    /// e to the power of the value.
    fn exp(self) -> Self;
    /// `self * a + b`, rounded once where the target can.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// `a / b` by lane.
    fn vdiv<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger by lane (pulp's rule for NaN).
    fn vmax<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The smaller by lane (pulp's rule for NaN).
    fn vmin<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a` where `x` is above 0, else (and where `x` is NaN) `b`.
    fn vselect_positive<S: Simd>(
        simd: S,
        x: Self::Vector<S>,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The lanes as integers, shifted left by [`Scalar::MANTISSA_BITS`]: moves a small integer into the exponent.
    fn vshift_to_exponent<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of all lanes.
    fn reduce_sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The largest lane.
    fn reduce_max<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The mask of the lanes from `start` to before `end`.
    fn lanes_between<S: Simd>(simd: S, start: usize, end: usize) -> Self::Mask<S>;
}

macro_rules! scalar {
    ($t:ident, $lanes:ident, $uint:ident, $div:ident, $max:ident, $min:ident, $equal:ident, $select:ident,
     $range:expr, $exp:expr, $ln2:expr, $sum:ident, $rmax:ident, $between:ident) => {
        impl Scalar for $t {
            const ONES: &'static [Self; 16] = &[1.0; 16];
            const NUMBERS: &'static [Self; 16] =
                &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            const EPSILON: Self = $t::EPSILON;
            const MANTISSA_BITS: u32 = $t::MANTISSA_DIGITS - 1;
            const ROUNDER: Self = 1.5 * (1u64 << Self::MANTISSA_BITS) as $t + ($t::MAX_EXP - 1) as $t;
            const EXP_RANGE: [Self; 2] = $range;
            const EXP: &'static [Self] = $exp;
            const LN_2: [Self; 2] = $ln2;

            #[inline(always)]
            fn exp(self) -> Self {
                $t::exp(self)
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                $t::mul_add(self, a, b)
            }
            #[inline(always)]
            fn vdiv<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$div(a, b)
            }
            #[inline(always)]
            fn vmax<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$max(a, b)
            }
            #[inline(always)]
            fn vmin<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$min(a, b)
            }
            #[inline(always)]
            fn vselect_positive<S: Simd>(
                simd: S,
                x: Self::Vector<S>,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
            ) -> Self::Vector<S> {
                // max(x, tiny) is x for what is above 0, and for nothing else.
                let tiny = Self::splat(simd, $t::from_bits(1));
                simd.$select(simd.$equal(simd.$max(x, tiny), x), a, b)
            }
            #[inline(always)]
            fn vshift_to_exponent<S: Simd>(_: S, mut a: Self::Vector<S>) -> Self::Vector<S> {
                // pulp shifts no 64-bit lanes; a loop of fixed length over them compiles to the one instruction.
                let bits = (&raw mut a).cast::<$uint>();
                for lane in 0..S::$lanes {
                    // SAFETY: a vector is `lanes` numbers of this width, and any bits are a number.
                    unsafe { *bits.add(lane) <<= Self::MANTISSA_BITS }
                }
                a
            }
            #[inline(always)]
            fn reduce_sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self {
                simd.$sum(a)
            }
            #[inline(always)]
            fn reduce_max<S: Simd>(simd: S, a: Self::Vector<S>) -> Self {
                simd.$rmax(a)
            }
            #[inline(always)]
            fn lanes_between<S: Simd>(simd: S, start: usize, end: usize) -> Self::Mask<S> {
                simd.$between(start.min(S::$lanes) as $uint, end.min(S::$lanes) as $uint).mask()
            }
        }
    };
}

scalar!(
    f32,
    F32_LANES,
    u32,
    div_f32s,
    max_f32s,
    min_f32s,
    equal_f32s,
    select_f32s,
    [-87.0, 88.0],
    &[1.0, 1.0, 0.5, 0.166_665_05, 0.041_666_463, 0.008_369_22, 0.001_393_373_1],
    [0.693_359_4, -2.121_944_4e-4],
    reduce_sum_f32s,
    reduce_max_f32s,
    mask_between_m32s
);
scalar!(
    f64,
    F64_LANES,
    u64,
    div_f64s,
    max_f64s,
    min_f64s,
    equal_f64s,
    select_f64s,
    [-708.0, 709.0],
    &[
        1.0,
        1.0,
        0.500_000_000_000_000_6,
        0.166_666_666_666_666_7,
        0.041_666_666_666_572_39,
        0.008_333_333_333_326_083,
        0.001_388_888_893_275_1,
        1.984_126_987_500_228e-4,
        2.480_150_401_442_690_5e-5,
        2.755_725_517_000_089e-6,
        2.762_649_554_643_219_6e-7,
        2.510_531_272_962_210_2e-8,
    ],
    [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10],
    reduce_sum_f64s,
    reduce_max_f64s,
    mask_between_m64s
);
