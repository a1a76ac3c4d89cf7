//! The numbers that kernels compute with: f32, f64, i32 and i64 as one sealed trait over pulp's typed methods.
//!
//! Integers wrap around: a sum or product is the low 32 or 64 bits of the exact one, in every build and on every
//! instruction set.

#[cfg(target_arch = "x86_64")]
mod x86;

use core::fmt::Debug;

use pulp::{MemMask, Simd};

use crate::Element;

pub(crate) mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// A number: `f32`, `f64`, `i32` or `i64`.
///
/// The vector methods are named without the type, so that one generic kernel serves all. A vector has [`Number::lanes`]
/// elements. Nothing here branches on the instruction set. Integers wrap around.
pub trait Number: Element<Number = Self> + PartialOrd {
    /// The register type of instruction set `S`.
    type Vector<S: Simd>: Copy + Debug + Send + Sync;
    /// The lane mask of instruction set `S`.
    type Mask<S: Simd>: Copy + Debug + Send + Sync;

    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// What no number is below: minus infinity, or the least integer.
    const LOWEST: Self;
    /// What no number is above: infinity, or the largest integer.
    const HIGHEST: Self;
    /// `"f32"`, `"f64"`, `"i32"` or `"i64"`.
    const NAME: &'static str;

    /// Elements of one register.
    fn lanes<S: Simd>() -> usize;
    /// The nearest value; of integers the one toward 0.
    fn from_f64(x: f64) -> Self;
    /// The value: exactly, but for integers beyond 2^53.
    fn to_f64(self) -> f64;

    /// All lanes `x`.
    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// `a + b` by lane.
    fn vadd<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a - b` by lane.
    fn vsub<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b` by lane.
    fn vmul<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `a b + c` by lane, fused where the instruction set can (unfused on the scalar one: a library call otherwise).
    fn vmul_add<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>, c: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger by lane, `b` where either is NaN.
    fn vlarger<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The smaller by lane, `b` where either is NaN.
    fn vsmaller<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The larger by lane, NaN where either is (IEEE 754-2019 calls it maximum).
    fn vmaximum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The smaller by lane, NaN where either is.
    fn vminimum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// `x` where `a > b`, else `y`: also where either is NaN.
    fn vselect_greater<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        x: Self::Vector<S>,
        y: Self::Vector<S>,
    ) -> Self::Vector<S>;
    /// `x` where `a` is NaN, else `y`.
    fn vselect_nan<S: Simd>(simd: S, a: Self::Vector<S>, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    /// The number whose bits are `index`: a lane that holds an index beside numbers. Not for arithmetic.
    fn from_index(index: u32) -> Self;
    /// The low 32 bits: undoes [`Number::from_index`].
    fn index(self) -> u32;
    /// The mask of the first `n` lanes (all of them when `n` is larger).
    fn first_lanes<S: Simd>(simd: S, n: usize) -> Self::Mask<S>;

    /// The register of the lanes at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for reads of [`Number::lanes`] elements.
    #[inline(always)]
    unsafe fn load<S: Simd>(_: S, p: *const Self) -> Self::Vector<S> {
        // SAFETY: the caller's promise; a register is exactly `lanes` elements, all of whose bit patterns are valid.
        unsafe { p.cast::<Self::Vector<S>>().read_unaligned() }
    }

    /// Stores all lanes at `p`, which need not be aligned.
    ///
    /// # Safety
    /// `p` is valid for writes of [`Number::lanes`] elements.
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

    /// Stores the lanes of `mask` at `p`, in each half of the register the first ones of it or none.
    ///
    /// # Safety
    /// `p` is valid for writes of the lanes in `mask`.
    unsafe fn store_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *mut Self, x: Self::Vector<S>);
}

/// What is done alike for all four types.
macro_rules! common {
    ($t:ident, $v:ident, $m:ident, $lanes:ident, $uint:ident, $splat:ident, $between:ident, $load:ident, $store:ident) => {
        type Vector<S: Simd> = S::$v;
        type Mask<S: Simd> = S::$m;
        const NAME: &'static str = stringify!($t);

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
            self as f64
        }
        #[inline(always)]
        fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S> {
            simd.$splat(x)
        }
        #[inline(always)]
        fn first_lanes<S: Simd>(simd: S, n: usize) -> Self::Mask<S> {
            simd.$between(0, n.min(S::$lanes) as $uint).mask()
        }
        #[inline(always)]
        unsafe fn load_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *const Self) -> Self::Vector<S> {
            // SAFETY: the caller's promise. A plain mask (not pulp's jump table) keeps this a masked move.
            unsafe { simd.$load(MemMask::new(mask), p) }
        }
        #[inline(always)]
        unsafe fn store_masked<S: Simd>(simd: S, mask: Self::Mask<S>, p: *mut Self, x: Self::Vector<S>) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise is the callee's.
            if unsafe { x86::store_masked::<S, Self>(&mask, p, &x) } {
                return;
            }
            // SAFETY: the caller's promise.
            unsafe { simd.$store(MemMask::new(mask), p, x) }
        }
    };
}

macro_rules! float {
    ($t:ident, $v:ident, $m:ident, $lanes:ident, $uint:ident, $splat:ident, $between:ident, $load:ident, $store:ident,
     $add:ident, $sub:ident, $mul:ident, $mul_add:ident, $max:ident, $min:ident, $equal:ident, $greater:ident,
     $select:ident) => {
        impl Number for $t {
            common!($t, $v, $m, $lanes, $uint, $splat, $between, $load, $store);
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;

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
            fn vmul_add<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                c: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$mul_add(a, b, c)
            }
            #[inline(always)]
            fn vlarger<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                // Pulp's scalar maximum would give the number.
                if S::IS_SCALAR { simd.$select(simd.$greater(a, b), a, b) } else { simd.$max(a, b) }
            }
            #[inline(always)]
            fn vsmaller<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                if S::IS_SCALAR { simd.$select(simd.$greater(b, a), a, b) } else { simd.$min(a, b) }
            }
            #[inline(always)]
            fn vmaximum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$select(simd.$equal(a, a), Self::vlarger(simd, a, b), a)
            }
            #[inline(always)]
            fn vminimum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                simd.$select(simd.$equal(a, a), Self::vsmaller(simd, a, b), a)
            }
            #[inline(always)]
            fn vselect_greater<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                x: Self::Vector<S>,
                y: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$select(simd.$greater(a, b), x, y)
            }
            #[inline(always)]
            fn vselect_nan<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                x: Self::Vector<S>,
                y: Self::Vector<S>,
            ) -> Self::Vector<S> {
                simd.$select(simd.$equal(a, a), y, x)
            }
            #[inline(always)]
            fn from_index(index: u32) -> Self {
                Self::from_bits($uint::from(index))
            }
            #[inline(always)]
            fn index(self) -> u32 {
                self.to_bits() as u32
            }
        }
    };
}

float!(
    f32,
    f32s,
    m32s,
    F32_LANES,
    u32,
    splat_f32s,
    mask_between_m32s,
    mask_load_ptr_f32s,
    mask_store_ptr_f32s,
    add_f32s,
    sub_f32s,
    mul_f32s,
    mul_add_e_f32s,
    max_f32s,
    min_f32s,
    equal_f32s,
    greater_than_f32s,
    select_f32s
);
float!(
    f64,
    f64s,
    m64s,
    F64_LANES,
    u64,
    splat_f64s,
    mask_between_m64s,
    mask_load_ptr_f64s,
    mask_store_ptr_f64s,
    add_f64s,
    sub_f64s,
    mul_f64s,
    mul_add_e_f64s,
    max_f64s,
    min_f64s,
    equal_f64s,
    greater_than_f64s,
    select_f64s
);

/// `f` by lane: a loop of fixed length, which compiles to the instructions that there are. pulp has no products and no
/// order of 64-bit lanes on AVX2.
#[inline(always)]
fn by_lane<S: Simd, T: Number>(mut a: T::Vector<S>, b: T::Vector<S>, f: impl Fn(T, T) -> T) -> T::Vector<S> {
    let (x, y) = ((&raw mut a).cast::<T>(), (&raw const b).cast::<T>());
    for lane in 0..T::lanes::<S>() {
        // SAFETY: a vector is `lanes` numbers.
        unsafe { *x.add(lane) = f(*x.add(lane), *y.add(lane)) }
    }
    a
}

macro_rules! integer {
    ($t:ident, $v:ident, $m:ident, $lanes:ident, $uint:ident, $splat:ident, $between:ident, $load:ident, $store:ident) => {
        impl Number for $t {
            common!($t, $v, $m, $lanes, $uint, $splat, $between, $load, $store);
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $t::MIN;
            const HIGHEST: Self = $t::MAX;

            #[inline(always)]
            fn vadd<S: Simd>(_: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                by_lane::<S, Self>(a, b, $t::wrapping_add)
            }
            #[inline(always)]
            fn vsub<S: Simd>(_: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                by_lane::<S, Self>(a, b, $t::wrapping_sub)
            }
            #[inline(always)]
            fn vmul<S: Simd>(_: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                by_lane::<S, Self>(a, b, $t::wrapping_mul)
            }
            #[inline(always)]
            fn vmul_add<S: Simd>(
                simd: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                c: Self::Vector<S>,
            ) -> Self::Vector<S> {
                Self::vadd(simd, Self::vmul(simd, a, b), c)
            }
            #[inline(always)]
            fn vlarger<S: Simd>(_: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                by_lane::<S, Self>(a, b, |a, b| if a > b { a } else { b })
            }
            #[inline(always)]
            fn vsmaller<S: Simd>(_: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                by_lane::<S, Self>(a, b, |a, b| if a < b { a } else { b })
            }
            #[inline(always)]
            fn vmaximum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                Self::vlarger(simd, a, b)
            }
            #[inline(always)]
            fn vminimum<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S> {
                Self::vsmaller(simd, a, b)
            }
            #[inline(always)]
            fn vselect_greater<S: Simd>(
                _: S,
                a: Self::Vector<S>,
                b: Self::Vector<S>,
                x: Self::Vector<S>,
                mut y: Self::Vector<S>,
            ) -> Self::Vector<S> {
                let (a, b) = ((&raw const a).cast::<Self>(), (&raw const b).cast::<Self>());
                let x = (&raw const x).cast::<Self>();
                let out = (&raw mut y).cast::<Self>();
                for lane in 0..S::$lanes {
                    // SAFETY: a vector is `lanes` numbers.
                    unsafe { *out.add(lane) = if *a.add(lane) > *b.add(lane) { *x.add(lane) } else { *out.add(lane) } }
                }
                y
            }
            #[inline(always)]
            fn vselect_nan<S: Simd>(
                _: S,
                _: Self::Vector<S>,
                _: Self::Vector<S>,
                y: Self::Vector<S>,
            ) -> Self::Vector<S> {
                y
            }
            #[inline(always)]
            fn from_index(index: u32) -> Self {
                index as Self
            }
            #[inline(always)]
            fn index(self) -> u32 {
                self as u32
            }
        }
    };
}

integer!(i32, i32s, m32s, I32_LANES, u32, splat_i32s, mask_between_m32s, mask_load_ptr_i32s, mask_store_ptr_i32s);
integer!(i64, i64s, m64s, I64_LANES, u64, splat_i64s, mask_between_m64s, mask_load_ptr_i64s, mask_store_ptr_i64s);
