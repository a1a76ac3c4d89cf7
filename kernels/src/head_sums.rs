//! Sums of one number for each row, column and head: scores a_i + b_j of edges, and the sums of edges' numbers over rows.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::{Arch, RowPtr, Scalar};

/// Scores that are sums: out_ph = a_ih + b_jh for each nonzero p = (i, j).
#[derive(Clone, Copy, Debug)]
pub struct SumRows<T> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// CSR column indices.
    pub columns: *const u32,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// H.
    pub heads: usize,
    /// a, H numbers for each row, and its stride.
    pub a: (*const T, usize),
    /// b, H numbers for each column, and its stride.
    pub b: (*const T, usize),
    /// H numbers for each nonzero.
    pub out: *mut T,
}

/// Runs the task.
///
/// # Safety
/// The CSR arrays are valid, every row is a row of `a` and every column one of `b`, and no one else uses the rows' part of `out`.
pub unsafe fn sum_rows<T: Scalar>(arch: Arch, task: SumRows<T>) {
    dispatch_compiled!(arch, task, SumRows<f32>, SumRows<f64>);
}

impl<T: Scalar> WithSimd for SumRows<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (lanes, heads) = (T::lanes::<S>(), self.heads);
        // SAFETY: the promise of `sum_rows`.
        unsafe {
            for i in self.rows[0]..self.rows[1] {
                let a = self.a.0.add(i * self.a.1);
                for p in self.row_ptr.at(i)..self.row_ptr.at(i + 1) {
                    let b = self.b.0.add(*self.columns.add(p) as usize * self.b.1);
                    let out = self.out.add(p * heads);
                    if heads == 1 {
                        *out = *a + *b;
                        continue;
                    }
                    let mut h = 0;
                    while h < heads {
                        let mask = T::first_lanes(simd, heads - h);
                        let sum =
                            T::vadd(simd, T::load_masked(simd, mask, a.add(h)), T::load_masked(simd, mask, b.add(h)));
                        T::store_masked(simd, mask, out.add(h), sum);
                        h += lanes;
                    }
                }
            }
        }
    }
}

/// Sums of the numbers of each row's nonzeros by head: out_ih = sum over p of row i of x_ph.
#[derive(Clone, Copy, Debug)]
pub struct RowSums<T> {
    /// CSR row pointers.
    pub row_ptr: RowPtr,
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// H.
    pub heads: usize,
    /// H numbers for each nonzero.
    pub x: *const T,
    /// H sums for each row, and its stride.
    pub out: (*mut T, usize),
}

/// Runs the task.
///
/// # Safety
/// The row pointers are valid, the arrays as long as stated, and no one else uses the rows of `out`.
pub unsafe fn row_sums<T: Scalar>(arch: Arch, task: RowSums<T>) {
    dispatch_compiled!(arch, task, RowSums<f32>, RowSums<f64>);
}

impl<T: Scalar> WithSimd for RowSums<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (lanes, heads) = (T::lanes::<S>(), self.heads);
        // SAFETY: the promise of `row_sums`.
        unsafe {
            for i in self.rows[0]..self.rows[1] {
                let (start, end) = (self.row_ptr.at(i), self.row_ptr.at(i + 1));
                let out = self.out.0.add(i * self.out.1);
                let mut sum = T::splat(simd, T::ZERO);
                if heads == 1 {
                    for at in (start..end).step_by(lanes) {
                        sum = T::vadd(simd, sum, T::load_masked(simd, T::first_lanes(simd, end - at), self.x.add(at)));
                    }
                    *out = T::reduce_sum(simd, sum);
                    continue;
                }
                let mut h = 0;
                while h < heads {
                    let mask = T::first_lanes(simd, heads - h);
                    sum = T::splat(simd, T::ZERO);
                    for p in start..end {
                        sum = T::vadd(simd, sum, T::load_masked(simd, mask, self.x.add(p * heads + h)));
                    }
                    T::store_masked(simd, mask, out.add(h), sum);
                    h += lanes;
                }
            }
        }
    }
}
