//! SpMM over semirings.

use sparsimd_kernels::Scalar;
use sparsimd_kernels::semiring::{Addition, BuiltIn, Multiplication};

use super::{Expected, Limits, finite, finite_rows, matrix};
use crate::dense::{MatRef, check_shape};
use crate::error::Result;
use crate::formats::Csr;
use crate::ops::Reduction;

/// C_ik = reduction over the nonzeros (i, j) of A of a_ij b_jk; 0 in rows without nonzeros.
///
/// `a` is m x k, `b` k x n, the result m x n.
///
/// # Errors
/// [`crate::Error::Shape`].
pub fn reduce<T: Scalar>(reduction: Reduction, a: &Csr<T>, b: MatRef<'_, T>) -> Result<Expected> {
    let mean = match reduction {
        Reduction::Max => return fold(sparsimd_kernels::semiring::MAX_TIMES, a, b, Some(0.0)),
        Reduction::Min => return fold(sparsimd_kernels::semiring::MIN_TIMES, a, b, Some(0.0)),
        Reduction::Mean => true,
        Reduction::Sum => false,
    };
    let zeros = vec![T::ZERO; a.rows() * b.cols()];
    let sum = matrix::spmm(T::ONE, a, b, T::ZERO, MatRef::new(&zeros, a.rows(), b.cols(), b.cols())?)?;
    if !mean {
        return Ok(sum);
    }
    // The bound of the sum counts three operations besides it; two are the reciprocal of the count and the product with it.
    let Expected { rows, cols, mut values, mut bounds } = sum;
    let limits = Limits::of::<T>();
    for (p, (value, bound)) in values.iter_mut().zip(&mut bounds).enumerate() {
        let count = a.pattern().row(p / cols).len().max(1) as f64;
        (*value, *bound) = (*value / count, *bound / count + limits.tiny);
    }
    Ok(Expected { rows, cols, values, bounds })
}

/// C_ik = add over the nonzeros (i, j) of A of multiply(a_ij, b_jk); the neutral element in rows without nonzeros.
///
/// `a` is m x k, `b` k x n, the result m x n. A term is rounded once, which the order of numbers survives: the bound of
/// minima and maxima is that of one term. Sums of terms have the bound of sums.
///
/// # Errors
/// [`crate::Error::Shape`].
pub fn semiring<T: Scalar>(semiring: BuiltIn, a: &Csr<T>, b: MatRef<'_, T>) -> Result<Expected> {
    fold(semiring, a, b, None)
}

#[inline(never)]
fn fold<T: Scalar>(semiring: BuiltIn, a: &Csr<T>, b: MatRef<'_, T>, empty: Option<f64>) -> Result<Expected> {
    let op = "reference::semiring";
    let n = b.cols();
    check_shape(op, "B", b.shape(), (a.cols(), n))?;
    let limits = Limits::of::<T>();
    let zero = match semiring.add {
        Addition::Min => f64::INFINITY,
        Addition::Max => f64::NEG_INFINITY,
        _ => 0.0,
    };
    let expected = Expected::by_rows(a.rows(), n, |i, values, bounds| {
        let nonzeros = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
        for (k, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
            let mut magnitude = 0.0;
            *value = if nonzeros.is_empty() { empty.unwrap_or(zero) } else { zero };
            for p in nonzeros.clone() {
                let (x, y) = (a.values()[p].to_f64(), b.row(a.pattern().col_idx()[p] as usize)[k].to_f64());
                let term = match semiring.multiply {
                    Multiplication::Times => x * y,
                    Multiplication::Plus => x + y,
                    Multiplication::Min => minimum(x, y),
                    Multiplication::Max => maximum(x, y),
                    Multiplication::And => truth(x) * truth(y),
                    _ => y,
                };
                *value = match semiring.add {
                    Addition::Plus => *value + term,
                    Addition::Min => minimum(*value, term),
                    Addition::Max => maximum(*value, term),
                    _ => maximum(*value, truth(term)),
                };
                magnitude += term.abs();
            }
            let rounded = matches!(semiring.multiply, Multiplication::Times | Multiplication::Plus);
            *bound = match semiring.add {
                Addition::Plus => limits.sum(nonzeros.len(), magnitude),
                Addition::Min | Addition::Max if rounded => limits.eps * value.abs() + limits.tiny,
                _ => 0.0,
            };
            if bound.is_nan() || value.is_infinite() {
                *bound = 0.0;
            }
        }
    })?;
    Ok(expected.forgive_overflow(|| semiring.add == Addition::Plus && finite(a.values()) && finite_rows(b)))
}

/// The smaller; NaN where either is.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// The larger; NaN where either is.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// 1 for numbers but 0, else 0.
fn truth(x: f64) -> f64 {
    f64::from(u8::from(x != 0.0 && !x.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;
    use sparsimd_kernels::semiring::{MAX_MIN, MIN_PLUS, OR_AND};

    #[test]
    fn values_by_hand() {
        // [ 2 . -3 ]
        // [ . .  . ]
        let a = Csr::new(Pattern::new(2, 3, vec![0, 2, 2], vec![2, 0]).unwrap(), vec![-3.0f32, 2.0]).unwrap();
        let b = [1.0, f32::NAN, 9.0, 9.0, 5.0, 6.0];
        let b = MatRef::new(&b, 3, 2, 2).unwrap();
        let first =
            |expected: Result<Expected>| expected.unwrap().values().iter().step_by(2).copied().collect::<Vec<_>>();
        assert_eq!(first(reduce(Reduction::Sum, &a, b)), [-13.0, 0.0]);
        assert_eq!(first(reduce(Reduction::Mean, &a, b)), [-6.5, 0.0]);
        assert_eq!(first(reduce(Reduction::Max, &a, b)), [2.0, 0.0]);
        assert_eq!(first(reduce(Reduction::Min, &a, b)), [-15.0, 0.0]);
        assert_eq!(first(semiring(MIN_PLUS, &a, b)), [2.0, f64::INFINITY]);
        assert_eq!(first(semiring(MAX_MIN, &a, b)), [1.0, f64::NEG_INFINITY]);
        assert_eq!(first(semiring(OR_AND, &a, b)), [1.0, 0.0]);
        let max = reduce(Reduction::Max, &a, b).unwrap();
        assert!(max.values()[1].is_nan());
        assert_eq!(semiring(OR_AND, &a, b).unwrap().values()[1], 1.0);
    }
}
