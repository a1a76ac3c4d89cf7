//! e^x by lane: x = k ln 2 + r, e^x = 2^k p(r).
//!
//! p(r) is 1 + r q(r), with q through (e^r - 1) / r at the Chebyshev points of |r| <= ln 2 / 2, of the degree from which on the error is
//! below the rounding: 1e-8 relative for a p of degree 6, 1e-17 for 11 (Taylor's series takes one and two more). k comes from adding and
//! subtracting a number so large that the fraction is rounded away, and 2^k from moving k into the exponent. Arguments are clamped to the
//! range where 2^k is a normal number: below it the result is that of the lower end (1e-38 in f32), above it that of the upper end.

use pulp::Simd;

use crate::Scalar;

/// e^x by lane, relative error below 4 roundings inside the range; NaN stays NaN.
#[inline(always)]
pub fn exp<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let splat = |x: T| T::splat(simd, x);
    // The second operand where one is NaN: x.
    exp_inside::<T, S>(simd, T::vsmaller(simd, splat(T::EXP_RANGE[1]), T::vlarger(simd, splat(T::EXP_RANGE[0]), x)))
}

/// [`exp`] of arguments inside [`Scalar::EXP_RANGE`], or NaN; of others anything.
#[inline(always)]
pub(crate) fn exp_inside<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let splat = |x: T| T::splat(simd, x);
    let shifted = T::vmul_add(simd, x, splat(T::from_f64(std::f64::consts::LOG2_E)), splat(T::ROUNDER));
    let k = T::vsub(simd, shifted, splat(T::ROUNDER));
    let r = T::vmul_add(simd, k, splat(-T::LN_2[0]), x);
    let r = T::vmul_add(simd, k, splat(-T::LN_2[1]), r);
    let degree = T::EXP.len() - 1;
    let mut sum = splat(T::EXP[degree]);
    for i in (0..degree).rev() {
        sum = T::vmul_add(simd, sum, r, splat(T::EXP[i]));
    }
    // k, with the exponent of 1, stands in the low bits of `shifted`; moved up, it is 2^k.
    T::vmul(simd, sum, T::vshift_to_exponent(simd, shifted))
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::Arch;

    struct Each<'a, T>(&'a mut [T]);

    impl<T: Scalar> WithSimd for Each<'_, T> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for x in self.0.chunks_exact_mut(T::lanes::<S>()) {
                // SAFETY: the chunk is a register.
                unsafe { T::store(simd, x.as_mut_ptr(), exp::<T, S>(simd, T::load(simd, x.as_ptr()))) }
            }
        }
    }

    /// From end to end of the range, and beyond it, on every instruction set.
    fn check<T: Scalar>() {
        let [least, most] = T::EXP_RANGE.map(T::to_f64);
        let points = 64 * 1024;
        let inside = |i: usize| least + (most - least) * i as f64 / (points - 1) as f64;
        let ends = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 2.0 * least, 2.0 * most, 0.0, -0.0, 1e-30];
        let from: Vec<T> = (0..points).map(inside).chain(ends.repeat(2)).map(T::from_f64).collect();
        for arch in Arch::available() {
            let mut to = from.clone();
            arch.dispatch(Each(&mut to));
            for (&x, &y) in from.iter().zip(&to) {
                let (x, y) = (x.to_f64(), y.to_f64());
                let exact = x.clamp(least, most).exp();
                let right =
                    if x.is_nan() { y.is_nan() } else { (y - exact).abs() <= 2.0 * T::EPSILON.to_f64() * exact };
                assert!(right, "{} {x:e}: {y:e}, not {exact:e}", arch.name());
            }
        }
    }

    #[test]
    fn is_exact_but_for_rounding() {
        check::<f32>();
        check::<f64>();
    }
}
