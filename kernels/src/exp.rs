//! e^x by lane: x = k ln 2 + r, e^x = 2^k sum r^i / i!.
//!
//! The Taylor series is taken to the degree where its remainder on |r| <= ln 2 / 2 is below the rounding (5e-9 relative
//! for degree 7, 4e-18 for degree 13), k comes from adding and subtracting a number so large that the fraction is
//! rounded away, and 2^k from moving k into the exponent. Arguments are clamped to the range where 2^k is a normal
//! number: below it the result is that of the lower end (1e-38 in f32), above it that of the upper end.

use pulp::Simd;

use crate::Scalar;

/// 1 / i! for i = 0, 1, ...; the degrees in use end at 13.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut inverse = [1.0; 14];
    let mut i = 1;
    while i < inverse.len() {
        inverse[i] = inverse[i - 1] / i as f64;
        i += 1;
    }
    inverse
};

/// e^x by lane, relative error below 4 roundings inside the range; NaN stays NaN.
#[inline(always)]
pub fn exp<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let splat = |x: T| T::splat(simd, x);
    let clamped = T::vmin(simd, T::vmax(simd, x, splat(T::EXP_RANGE[0])), splat(T::EXP_RANGE[1]));
    let shifted = T::vmul_add(simd, clamped, splat(T::from_f64(std::f64::consts::LOG2_E)), splat(T::ROUNDER));
    let k = T::vsub(simd, shifted, splat(T::ROUNDER));
    let r = T::vmul_add(simd, k, splat(-T::LN_2[0]), clamped);
    let r = T::vmul_add(simd, k, splat(-T::LN_2[1]), r);
    let mut sum = splat(T::from_f64(INVERSE_FACTORIALS[T::EXP_DEGREE]));
    for i in (0..T::EXP_DEGREE).rev() {
        sum = T::vmul_add(simd, sum, r, splat(T::from_f64(INVERSE_FACTORIALS[i])));
    }
    // k stands in the low bits of `shifted`; added to the exponent of 1 and moved up, it is 2^k.
    let biased = T::vadd(simd, shifted, splat(T::EXPONENT_OF_ONE));
    let power = T::vshift_to_exponent(simd, biased);
    T::vpropagate_nan(simd, x, T::vmul(simd, sum, power))
}
