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
fn exp_inside<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let (shifted, k) = exponent::<T, S>(simd, x);
    let r = T::vmul_add(simd, k, T::splat(simd, -T::LN_2[0]), x);
    let r = T::vmul_add(simd, k, T::splat(simd, -T::LN_2[1]), r);
    power::<T, S>(simd, shifted, r)
}

/// [`exp`] of arguments from -20 to 20, or NaN; of others anything. ln 2 is rounded, which weighs less than a third of what rounding x
/// does.
#[inline(always)]
pub(crate) fn exp_near<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let (shifted, k) = exponent::<T, S>(simd, x);
    let r = T::vmul_add(simd, k, T::splat(simd, T::from_f64(-std::f64::consts::LN_2)), x);
    power::<T, S>(simd, shifted, r)
}

/// The integer nearest to x / ln 2: with the exponent of 1 in the low bits, and by itself.
#[inline(always)]
fn exponent<T: Scalar, S: Simd>(simd: S, x: T::Vector<S>) -> (T::Vector<S>, T::Vector<S>) {
    let rounder = T::splat(simd, T::ROUNDER);
    let shifted = T::vmul_add(simd, x, T::splat(simd, T::from_f64(std::f64::consts::LOG2_E)), rounder);
    (shifted, T::vsub(simd, shifted, rounder))
}

/// 2^k e^r, where k, with the exponent of 1, stands in the low bits of `shifted`: moved up, it is 2^k.
#[inline(always)]
fn power<T: Scalar, S: Simd>(simd: S, shifted: T::Vector<S>, r: T::Vector<S>) -> T::Vector<S> {
    let degree = T::EXP.len() - 1;
    let mut sum = T::splat(simd, T::EXP[degree]);
    for i in (0..degree).rev() {
        sum = T::vmul_add(simd, sum, r, T::splat(simd, T::EXP[i]));
    }
    T::vmul(simd, sum, T::vshift_to_exponent(simd, shifted))
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::Arch;

    struct Each<'a, T, const NEAR: bool>(&'a mut [T]);

    impl<T: Scalar, const NEAR: bool> WithSimd for Each<'_, T, NEAR> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let exp = if NEAR { exp_near::<T, S> } else { exp::<T, S> };
            for x in self.0.chunks_exact_mut(T::lanes::<S>()) {
                // SAFETY: the chunk is a register.
                unsafe { T::store(simd, x.as_mut_ptr(), exp(simd, T::load(simd, x.as_ptr()))) }
            }
        }
    }

    /// From end to end of a range, and at the points `beyond`, on every instruction set; `slope` roundings more for each unit of |x|.
    fn check<T: Scalar, const NEAR: bool>([least, most]: [f64; 2], beyond: &[f64], slope: f64) {
        let points = 64 * 1024;
        let inside = |i: usize| least + (most - least) * i as f64 / (points - 1) as f64;
        let ends = [&[f64::NAN, 0.0, -0.0, 1e-30], beyond].concat();
        let from: Vec<T> = (0..points).map(inside).chain(ends.repeat(16)).map(T::from_f64).collect();
        for arch in Arch::available() {
            let mut to = from.clone();
            arch.dispatch(Each::<T, NEAR>(&mut to));
            for (&x, &y) in from.iter().zip(&to) {
                let (x, y) = (x.to_f64(), y.to_f64());
                let inside = x.clamp(least, most);
                let exact = inside.exp();
                let bound = (2.0 + slope / 2.0 * inside.abs()) * T::EPSILON.to_f64() * exact;
                let right = if x.is_nan() { y.is_nan() } else { (y - exact).abs() <= bound };
                assert!(right, "{} {x:e}: {y:e}, not {exact:e}", arch.name());
            }
        }
    }

    #[test]
    fn is_exact_but_for_rounding() {
        fn checked<T: Scalar>() {
            let range = T::EXP_RANGE.map(T::to_f64);
            check::<T, false>(range, &[f64::INFINITY, f64::NEG_INFINITY, 2.0 * range[0], 2.0 * range[1]], 0.0);
            check::<T, true>([-20.0, 20.0], &[], 1.0 / 3.0);
        }
        checked::<f32>();
        checked::<f64>();
    }
}
