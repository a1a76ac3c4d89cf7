//! SpMM with one column, SpMV: c_i = alpha sum over row i of a_ij b_j + beta c_i, straight from CSR.

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
        let mut next = task.row_ptr.at(task.rows[0]);
        for row in task.rows[0]..task.rows[1] {
            let start = next.max(task.nonzeros[0]);
            next = task.row_ptr.at(row + 1);
            let end = next.min(task.nonzeros[1]);
            let part = Part { row, slot: 0, start, end, first: true, last: true };
            let (carries, c, beta) = task.target(&part);
            let sum = task.alpha * spmv_row(task, start, end);
            if carries.is_null() {
                *c = D::narrow(if beta == D::Scalar::ZERO { sum } else { sum + beta * (*c).widen() });
            } else {
                *carries = sum;
            }
        }
    }
}

/// Sum over the nonzeros p from `start` to `end` of a_p b_(j_p), in eight partial sums: one of its own is a chain of dependent
/// additions.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn spmv_row<D: Stored>(task: &SpmmRows<D>, start: usize, end: usize) -> D::Scalar {
    const SUMS: usize = 8;
    let mut sums = [D::Scalar::ZERO; SUMS];
    // SAFETY: the nonzeros below `end` are the task's, and their columns rows of B.
    unsafe {
        let term = |p: usize| {
            let j = *task.columns.wrapping_add(p) as usize;
            *task.values.wrapping_add(p) * (*task.b.wrapping_add(j * task.ldb)).widen()
        };
        let mut p = start;
        while p + SUMS <= end {
            for (u, sum) in sums.iter_mut().enumerate() {
                *sum += term(p + u);
            }
            p += SUMS;
        }
        for (u, p) in (p..end).enumerate() {
            sums[u] += term(p);
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}
