//! Products of a tall matrix with a small one: the dense half of an ALS iteration.
//!
//! Rows are `stride` elements apart, a whole number of registers; padding is computed along.

use pulp::{Simd, WithSimd};

use crate::{Arch, Scalar};

struct Gram<'a, T> {
    rows: &'a [T],
    stride: usize,
    gram: &'a mut [T],
}

struct Times<'a, T> {
    rows: &'a [T],
    stride: usize,
    small: &'a [T],
    inner: usize,
    out: &'a mut [T],
}

/// `gram += A^T A` for the rows of A, `gram` being `stride` x `stride`.
///
/// # Panics
/// When `rows` is not a whole number of rows, or `gram` too short; `stride` must be whole registers of `arch`.
pub fn add_gram<T: Scalar>(arch: Arch, rows: &[T], stride: usize, gram: &mut [T]) {
    assert!(stride > 0 && (stride * size_of::<T>()).is_multiple_of(arch.vector_bytes()));
    assert!(rows.len().is_multiple_of(stride) && gram.len() >= stride * stride);
    arch.dispatch(Gram { rows, stride, gram });
}

/// `out = A B` for the rows of A, B being `inner` x `stride`.
///
/// # Panics
/// When an array is too short, or `rows` is not a whole number of rows; `stride` must be whole registers of `arch`.
pub fn times_small<T: Scalar>(arch: Arch, rows: &[T], stride: usize, small: &[T], inner: usize, out: &mut [T]) {
    assert!(stride > 0 && (stride * size_of::<T>()).is_multiple_of(arch.vector_bytes()) && inner <= stride);
    assert!(rows.len().is_multiple_of(stride) && small.len() >= inner * stride && out.len() >= rows.len());
    arch.dispatch(Times { rows, stride, small, inner, out });
}

impl<T: Scalar> WithSimd for Gram<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, stride, gram } = self;
        let lanes = T::lanes::<S>();
        // Four rows at a time, so that a register of the Gram matrix is loaded and stored once for four products.
        let whole = rows.len() / (4 * stride) * (4 * stride);
        for four in rows[..whole].chunks_exact(4 * stride) {
            for i in 0..stride {
                let x = [0, 1, 2, 3].map(|k| T::splat(simd, four[k * stride + i]));
                for j in (0..stride).step_by(lanes) {
                    // SAFETY: i, j + lanes <= stride, and the lengths were checked.
                    unsafe {
                        let at = gram.as_mut_ptr().add(i * stride + j);
                        let mut sum = T::load(simd, at);
                        for (k, &x) in x.iter().enumerate() {
                            sum = T::vmul_add(simd, x, T::load(simd, four.as_ptr().add(k * stride + j)), sum);
                        }
                        T::store(simd, at, sum);
                    }
                }
            }
        }
        for row in rows[whole..].chunks_exact(stride) {
            for i in 0..stride {
                let x = T::splat(simd, row[i]);
                for j in (0..stride).step_by(lanes) {
                    // SAFETY: as above.
                    unsafe {
                        let at = gram.as_mut_ptr().add(i * stride + j);
                        T::store(simd, at, T::vmul_add(simd, x, T::load(simd, row.as_ptr().add(j)), T::load(simd, at)));
                    }
                }
            }
        }
    }
}

impl<T: Scalar> WithSimd for Times<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, stride, small, inner, out } = self;
        let lanes = T::lanes::<S>();
        for (row, out) in rows.chunks_exact(stride).zip(out.chunks_exact_mut(stride)) {
            let mut j = 0;
            while j < stride {
                // Two chains, which halve the latency of the sum.
                let mut sums = [T::splat(simd, T::ZERO); 2];
                // SAFETY: j + lanes <= stride, k < inner, and the lengths were checked.
                unsafe {
                    for (k, &x) in row[..inner].iter().enumerate() {
                        let b = T::load(simd, small.as_ptr().add(k * stride + j));
                        sums[k % 2] = T::vmul_add(simd, T::splat(simd, x), b, sums[k % 2]);
                    }
                    T::store(simd, out.as_mut_ptr().add(j), T::vadd(simd, sums[0], sums[1]));
                }
                j += lanes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_match_naive_loops() {
        for arch in Arch::available() {
            for (rows, stride, inner) in [(0, 16, 3), (1, 16, 16), (7, 32, 20), (9, 48, 48)] {
                // Small integers: every order of summation is exact.
                let a: Vec<f32> = (0..rows * stride).map(|p| (p * 7 % 5) as f32 - 2.0).collect();
                let b: Vec<f32> = (0..inner * stride).map(|p| (p * 3 % 7) as f32 - 3.0).collect();
                let mut gram = vec![1.0; stride * stride];
                add_gram(arch, &a, stride, &mut gram);
                let mut out = vec![9.0; rows * stride];
                times_small(arch, &a, stride, &b, inner, &mut out);
                for i in 0..stride {
                    for j in 0..stride {
                        let sum: f32 = (0..rows).map(|k| a[k * stride + i] * a[k * stride + j]).sum();
                        assert_eq!(gram[i * stride + j], 1.0 + sum);
                    }
                }
                for i in 0..rows {
                    for j in 0..stride {
                        let sum: f32 = (0..inner).map(|k| a[i * stride + k] * b[k * stride + j]).sum();
                        assert_eq!(out[i * stride + j], sum);
                    }
                }
            }
        }
    }
}
