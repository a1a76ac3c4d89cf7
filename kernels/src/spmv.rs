//! SpMM with one column, SpMV: c_i = alpha sum over row i of a_ij b_j + beta c_i, straight from CSR.

use crate::prefetch::prefetch_l1;
use crate::spmm::SpmmRows;
use crate::walk::Part;
use crate::{Number, Stored};

/// N = 1, row after row. Neither slabs of columns nor prefetches of b pay (a random matrix of 2^20 rows and 8.2 M nonzeros, two
/// threads: 11.5 ms, 13.4 in slabs).
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows).
#[inline(always)]
pub(crate) unsafe fn spmv<D: Stored>(task: &SpmmRows<D>) {
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        match task.ldb {
            1 => spmv_rows::<D, true>(task),
            _ => spmv_rows::<D, false>(task),
        }
    }
}

/// Rows of a b whose elements are next to each other (`DENSE`), or as far apart as the task says.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows).
#[inline(always)]
unsafe fn spmv_rows<D: Stored, const DENSE: bool>(task: &SpmmRows<D>) {
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        let mut next = task.row_ptr.at(task.rows[0]);
        for row in task.rows[0]..task.rows[1] {
            let start = next.max(task.nonzeros[0]);
            next = task.row_ptr.at(row + 1);
            let end = next.min(task.nonzeros[1]);
            let part = Part { row, slot: 0, start, end, first: true, last: true };
            let (carries, c, beta) = task.target(&part);
            let sum = task.alpha * spmv_row::<D, DENSE>(task, start, end);
            if carries.is_null() {
                *c = D::narrow(if beta == D::Scalar::ZERO { sum } else { sum + beta * (*c).widen() });
            } else {
                *carries = sum;
            }
        }
    }
}

/// Nonzeros ahead of which columns and values are prefetched.
const AHEAD: usize = 256;

/// Partial sums of a row: one alone is a chain of dependent additions. Narrow elements are widened eight at a time.
const fn sums_of<D: Stored>() -> usize {
    if D::NARROW { 8 } else { 4 }
}

/// Sum over the nonzeros p from `start` to `end` of a_p b_(j_p).
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn spmv_row<D: Stored, const DENSE: bool>(task: &SpmmRows<D>, start: usize, end: usize) -> D::Scalar {
    let mut sums = [D::Scalar::ZERO; 8];
    let mut p = start;
    // SAFETY: the nonzeros below `end` are the task's.
    unsafe {
        while p + 8 <= end {
            // The hardware's own prefetches come late where rows of b come from L3 (2^20 rows, 8 M nonzeros: 17.7 ms, 15.9 with these).
            prefetch_l1(task.columns.wrapping_add(p + AHEAD));
            prefetch_l1(task.values.wrapping_add(p + AHEAD));
            add_products::<D, DENSE, 8>(task, p, &mut sums);
            p += 8;
        }
        if p + 4 <= end {
            add_products::<D, DENSE, 4>(task, p, &mut sums);
            p += 4;
        }
        match end.saturating_sub(p) {
            1 => add_products::<D, DENSE, 1>(task, p, &mut sums),
            2 => add_products::<D, DENSE, 2>(task, p, &mut sums),
            3 => add_products::<D, DENSE, 3>(task, p, &mut sums),
            _ => {}
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    let sum = (a + b) + (c + d);
    if D::NARROW { sum + ((e + f) + (g + h)) } else { sum }
}

/// Adds a_p b_(j_p) of the nonzeros p, p + 1, ..., p + `COUNT` - 1 to `sums` in turns.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn add_products<D: Stored, const DENSE: bool, const COUNT: usize>(
    task: &SpmmRows<D>,
    p: usize,
    sums: &mut [D::Scalar; 8],
) {
    let mut b = [D::narrow(D::Scalar::ZERO); COUNT];
    for (u, b) in b.iter_mut().enumerate() {
        // SAFETY: the nonzero is the task's, and its column a row of B.
        unsafe {
            // Volatile: the compiler would make a gather of the loads of b, which takes twice as long as they do (Zen 4). There is none of
            // narrow elements.
            let j = task.columns.wrapping_add(p + u);
            let j = if D::NARROW { *j } else { j.read_volatile() } as usize;
            *b = *task.b.wrapping_add(if DENSE { j } else { j * task.ldb });
        }
    }
    for (u, &b) in b.iter().enumerate() {
        // SAFETY: the nonzero is the task's.
        sums[u % sums_of::<D>()] += unsafe { *task.values.wrapping_add(p + u) } * b.widen();
    }
}
