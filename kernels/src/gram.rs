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

/// Rows that are taken together: a register of the small matrix is loaded (and of the Gram matrix stored) once for all.
const ROWS: usize = 4;

/// Registers across: with as many rows of them in registers, and what they meet, four fit 32 registers, two 16.
macro_rules! with_registers {
    ($run:ident::<$S:ty, $T:ty>($($arg:expr),*)) => {
        match <$S>::REGISTER_COUNT {
            0..32 => $run::<$S, $T, 2>($($arg),*),
            _ => $run::<$S, $T, 4>($($arg),*),
        }
    };
}

impl<T: Scalar> WithSimd for Gram<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        with_registers!(gram::<S, T>(simd, self));
    }
}

impl<T: Scalar> WithSimd for Times<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        with_registers!(times::<S, T>(simd, self));
    }
}

#[inline(always)]
fn gram<S: Simd, T: Scalar, const ACROSS: usize>(simd: S, task: Gram<'_, T>) {
    let Gram { rows, stride, gram } = task;
    let whole = rows.len() / (ROWS * stride) * (ROWS * stride);
    let gram = gram.as_mut_ptr();
    // SAFETY: the lengths were checked: columns below `stride` are in every row, and `gram` has `stride` rows.
    unsafe {
        for rows in rows[..whole].chunks_exact(ROWS * stride) {
            add_rows::<S, T, ROWS, ACROSS>(simd, rows.as_ptr(), stride, gram);
        }
        for row in rows[whole..].chunks_exact(stride) {
            add_rows::<S, T, 1, ACROSS>(simd, row.as_ptr(), stride, gram);
        }
    }
}

/// `gram += A^T A` for `R` rows.
///
/// # Safety
/// There are so many rows, and `gram` has `stride` rows, `stride` being whole registers.
#[inline(always)]
unsafe fn add_rows<S: Simd, T: Scalar, const R: usize, const ACROSS: usize>(
    simd: S,
    rows: *const T,
    stride: usize,
    gram: *mut T,
) {
    let lanes = T::lanes::<S>();
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + ACROSS * lanes <= stride {
            add_columns::<S, T, R, ACROSS>(simd, rows, stride, j, gram);
            j += ACROSS * lanes;
        }
        while j < stride {
            add_columns::<S, T, R, 1>(simd, rows, stride, j, gram);
            j += lanes;
        }
    }
}

/// The columns of the Gram matrix from `j` on, `V` registers of them.
///
/// # Safety
/// As [`add_rows`]; the columns are below `stride`.
#[inline(always)]
unsafe fn add_columns<S: Simd, T: Scalar, const R: usize, const V: usize>(
    simd: S,
    rows: *const T,
    stride: usize,
    j: usize,
    gram: *mut T,
) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's promise.
    unsafe {
        let mut a = [[T::splat(simd, T::ZERO); V]; R];
        for (k, a) in a.iter_mut().enumerate() {
            for (v, a) in a.iter_mut().enumerate() {
                *a = T::load(simd, rows.add(k * stride + j + v * lanes));
            }
        }
        for i in 0..stride {
            let mut x = [T::splat(simd, T::ZERO); R];
            for (k, x) in x.iter_mut().enumerate() {
                *x = T::splat(simd, *rows.add(k * stride + i));
            }
            for v in 0..V {
                let at = gram.add(i * stride + j + v * lanes);
                let mut sum = T::load(simd, at);
                for k in 0..R {
                    sum = T::vmul_add(simd, x[k], a[k][v], sum);
                }
                T::store(simd, at, sum);
            }
        }
    }
}

#[inline(always)]
fn times<S: Simd, T: Scalar, const ACROSS: usize>(simd: S, task: Times<'_, T>) {
    let Times { rows, stride, small, inner, out } = task;
    let whole = rows.len() / (ROWS * stride) * (ROWS * stride);
    let (rows, rest) = rows.split_at(whole);
    let (out, last) = out.split_at_mut(whole);
    // SAFETY: the lengths were checked: `inner <= stride` columns are in every row, and `small` has as many rows.
    unsafe {
        for (rows, out) in rows.chunks_exact(ROWS * stride).zip(out.chunks_exact_mut(ROWS * stride)) {
            multiply_rows::<S, T, ROWS, ACROSS>(simd, rows.as_ptr(), stride, small, inner, out.as_mut_ptr());
        }
        for (row, out) in rest.chunks_exact(stride).zip(last.chunks_exact_mut(stride)) {
            multiply_rows::<S, T, 1, ACROSS>(simd, row.as_ptr(), stride, small, inner, out.as_mut_ptr());
        }
    }
}

/// `out = A B` for `R` rows.
///
/// # Safety
/// There are so many rows of both, and `small` has `inner` rows, `stride` being whole registers.
#[inline(always)]
unsafe fn multiply_rows<S: Simd, T: Scalar, const R: usize, const ACROSS: usize>(
    simd: S,
    rows: *const T,
    stride: usize,
    small: &[T],
    inner: usize,
    out: *mut T,
) {
    let lanes = T::lanes::<S>();
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + ACROSS * lanes <= stride {
            multiply_columns::<S, T, R, ACROSS>(simd, rows, stride, small.as_ptr().add(j), inner, out.add(j));
            j += ACROSS * lanes;
        }
        while j < stride {
            multiply_columns::<S, T, R, 1>(simd, rows, stride, small.as_ptr().add(j), inner, out.add(j));
            j += lanes;
        }
    }
}

/// `V` registers of columns of the product, those of B at `small` and of the result at `out`.
///
/// # Safety
/// As [`multiply_rows`]; the columns are below `stride`.
#[inline(always)]
unsafe fn multiply_columns<S: Simd, T: Scalar, const R: usize, const V: usize>(
    simd: S,
    rows: *const T,
    stride: usize,
    small: *const T,
    inner: usize,
    out: *mut T,
) {
    let lanes = T::lanes::<S>();
    let mut sums = [[T::splat(simd, T::ZERO); V]; R];
    // SAFETY: the caller's promise.
    unsafe {
        for k in 0..inner {
            let mut b = [T::splat(simd, T::ZERO); V];
            for (v, b) in b.iter_mut().enumerate() {
                *b = T::load(simd, small.add(k * stride + v * lanes));
            }
            for r in 0..R {
                let x = T::splat(simd, *rows.add(r * stride + k));
                for v in 0..V {
                    sums[r][v] = T::vmul_add(simd, x, b[v], sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                T::store(simd, out.add(r * stride + v * lanes), sums[r][v]);
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
            for (rows, stride, inner) in
                [(0, 16, 3), (1, 16, 16), (7, 32, 20), (9, 48, 48), (4, 80, 79), (13, 112, 100)]
            {
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
