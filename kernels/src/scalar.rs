//! The element types, f32 and f64, as one sealed trait over pulp's typed methods.

use core::fmt::{Debug, Display};
use core::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use pulp::{MemMask, Simd};

use crate::Stored;

/// An element type: `f32` or `f64`.
///
/// The vector methods are pulp's, named without the type, so that one generic kernel serves both. A vector has
/// [`Scalar::lanes`] elements. Nothing here branches on the instruction set.
pub trait Scalar:
    Stored<Scalar = Self>
    + Copy
    + Default
    + Debug
    + Display
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// The register type of instruction set `S`.
    type Vector<S: Simd>: Copy + Debug + Send + Sync;
    /// The lane mask of instruction set `S`.
    type Mask<S: Simd>: Copy + Debug + Send + Sync;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// As many ones as the widest register has lanes.
    const ONES: &'static [Self; 16];
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// The unit roundoff's double: distance from 1 to the next number.
    const EPSILON: Self;
    /// `"f32"` or `"f64"`.
    const NAME: &'static str;
    /// Bits of the stored mantissa: the position of the exponent.
    const MANTISSA_BITS: u32;
    /// 1.5 * 2^[`Scalar::MANTISSA_BITS`]: adding it rounds to an integer, which then stands in the low bits.
    const ROUNDER: Self;
    /// The exponent field of 1, as a number: 127 or 1023.
    const EXPONENT_OF_ONE: Self;
    /// Arguments of e^x between which neither the result nor 2^k leaves the normal range.
    const EXP_RANGE: [Self; 2];
    /// Degree at which the Taylor series of e^r, |r| <= ln 2 / 2, is exact to rounding.
    const EXP_DEGREE: usize;
    /// ln 2 in two parts, the first with so few bits that its product with any exponent is exact.
    const LN_2: [Self; 2];

    /// Elements of one register.
    fn lanes<S: Simd>() -> usize;
    /// The nearest value.
    fn from_f64(x: f64) -> Self;
    /// The exact value.
    fn to_f64(self) -> f64;
    /// e to the power of the value.
    fn exp(self) -> Self;
    /// `self * a + b`, rounded once where the target can.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// All lanes `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b` by lane.
    fn vadd<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b` by lane.
    fn vsub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b` by lane.
    fn vmul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a / b` by lane.
    fn vdiv<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger by lane (pulp's rule for NaN).
    fn vmax<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The smaller by lane (pulp's rule for NaN).
    fn vmin<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `x` where `x` is NaN, else `y`.
    fn vpropagate_nan<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    /// `a` where `x` is above 0, else (and where `x` is NaN) `b`.
    fn vselect_positive<S: Simd>(
        simd: S,
        x: Self::Vector<S>,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// The lanes as integers, shifted left by [`Scalar::MANTISSA_BITS`]: moves a small integer into the exponent.
    fn vshift_to_exponent<S: Simd>(simd: S, a: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b + c` by lane, fused where the instruction set can (unfused on the scalar one: a library call otherwise).
    fn vmul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of all lanes.
    fn reduce_sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The largest lane.
    fn reduce_max<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The mask of the first `n` lanes (all of them when `n` is larger).
    fn first_lanes<S: Simd>(simd: S, n: usize) -> Self::Mask<S>;

    /// The mask of the lanes from `start` to before `end`.
    fn lanes_between<S: Simd>(simd: S, start: usize, end: usize) -> Self::Mask<S>;

    /// The register of the lanes at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for reads of [`Scalar::lanes`] elements.
    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, p: *const Self) -> Self::Vector<S> {
        // SAFETY: the caller's promise; a register is exactly `lanes` elements, all of whose bit patterns are valid.
        unsafe { p.cast::<Self::Vector<S>>().read_unaligned() }
    }

    /// Stores all lanes at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for writes of [`Scalar::lanes`] elements.
    #[inline(always)]
    unsafe fn store<S: Simd>(_: S, p: *mut Self, x: Self::Vector<S>) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self::Vector<S>>().write_unaligned(x) }
    }

    /// The lanes of `mask` from `p`, zero elsewhere.
    ///
    /// # Safety
    /// `p` is valid for reads of the lanes in `mask`.
    unsafe fn load_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *const Self) -> Self::Vector<S>;

    /// Stores the lanes of `mask` at `p`.
    ///
    /// # Safety
    /// `p` is valid for writes of the lanes in `mask`.
    unsafe fn store_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *mut Self, x: Self::Vector<S>);
}

macro_rules! scalar {
    ($t:ident, $v:ident, $m:ident, $lanes:ident, $uint:ident, $name:literal, $splat:ident, $add:ident, $sub:ident,
     $mul:ident, $div:ident, $max:ident, $min:ident, $equal:ident, $select:ident, $range:expr, $degree:literal, $ln2:expr, $mul_add:ident, $sum:ident, $rmax:ident, $between:ident, $load:ident,
     $store:ident) => {
        impl Scalar for $t {
            type Vector<S: Simd> = S::$v;
            type Mask<S: Simd> = S::$m;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const ONES: &'static [Self; 16] = &[1.0; 16];
            const NEG_INFINITY: Self = $t::NEG_INFINITY;
            const EPSILON: Self = $t::EPSILON;
            const NAME: &'static str = $name;
            const MANTISSA_BITS: u32 = $t::MANTISSA_DIGITS - 1;
            const ROUNDER: Self = 1.5 * (1u64 << Self::MANTISSA_BITS) as $t;
            const EXPONENT_OF_ONE: Self = ($t::MAX_EXP - 1) as $t;
            const EXP_RANGE: [Self; 2] = $range;
            const EXP_DEGREE: usize = $degree;
            const LN_2: [Self; 2] = $ln2;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as Self
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $t::exp(self)
            }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self {
                $t::mul_add(self, a, b)
            }
            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S> {
                simd.$splat(x)
            }
            #[inline(always)]
            fn vadd<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$add(a, b)
            }
            #[inline(always)]
            fn vsub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$sub(a, b)
            }
            #[inline(always)]
            fn vmul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$mul(a, b)
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
            fn vpropagate_nan<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S> {
                simd.$select(simd.$equal(x, x), y, x)
            }
            #[inline(always)]
            fn vselect_positive<S: Simd>(
                simd: S,
                x: Self::Vector<S>,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
            ) -> Self::Vector<S> {
                // max(x, tiny) is x for what is above 0, and for nothing else.
                let tiny = simd.$splat($t::from_bits(1));
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
            fn vmul_add<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                c: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$mul_add(a, b, c)
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
            fn first_lanes<S: Simd>(simd: S, n: usize) -> Self::Mask<S> {
                simd.$between(0, n.min(S::$lanes) as $uint).mask()
            }
            #[inline(always)]
            fn lanes_between<S: Simd>(simd: S, start: usize, end: usize) -> Self::Mask<S> {
                simd.$between(start.min(S::$lanes) as $uint, end.min(S::$lanes) as $uint).mask()
            }
            #[inline(always)]
            unsafe fn load_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *const Self) -> Self::Vector<S> {
                // SAFETY: the caller's promise. A plain mask (not pulp's jump table) keeps this a masked move.
                unsafe { simd.$load(MemMask::new(mask), p) }
            }
            #[inline(always)]
            unsafe fn store_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *mut Self, x: Self::Vector<S>) {
                // SAFETY: the caller's promise.
                unsafe { simd.$store(MemMask::new(mask), p, x) }
            }
        }
    };
}

scalar!(
    f32,
    f32s,
    m32s,
    F32_LANES,
    u32,
    "f32",
    splat_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    max_f32s,
    min_f32s,
    equal_f32s,
    select_f32s,
    [-87.0, 88.0],
    7,
    [0.693_359_4, -2.121_944_4e-4],
    mul_add_e_f32s,
    reduce_sum_f32s,
    reduce_max_f32s,
    mask_between_m32s,
    mask_load_ptr_f32s,
    mask_store_ptr_f32s
);
scalar!(
    f64,
    f64s,
    m64s,
    F64_LANES,
    u64,
    "f64",
    splat_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    max_f64s,
    min_f64s,
    equal_f64s,
    select_f64s,
    [-708.0, 709.0],
    13,
    [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10],
    mul_add_e_f64s,
    reduce_sum_f64s,
    reduce_max_f64s,
    mask_between_m64s,
    mask_load_ptr_f64s,
    mask_store_ptr_f64s
);
