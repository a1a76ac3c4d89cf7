//! SpMM with one column, SpMV: c_i = alpha sum over row i of a_ij b_j + beta c_i, straight from CSR.

use crate::prefetch::prefetch_l1;
use crate::spmm::SpmmRows;
use crate::walk::{Part, inner_rows};
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
pub(crate) unsafe fn spmv_rows<D: Stored, const DENSE: bool>(task: &SpmmRows<D>) {
    let ([first, end], [inner, last]) = (task.rows, inner_rows(task.rows));
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        for row in first..inner {
            shared_row::<D, DENSE>(task, row);
        }
        let mut next = task.row_ptr.at(inner);
        for row in inner..last {
            let start = next;
            next = task.row_ptr.at(row + 1);
            let sum = task.alpha * spmv_row::<D, DENSE>(task, start, next);
            put(task.c.wrapping_add(row * task.ldc), sum, task.beta);
        }
        for row in last..end {
            shared_row::<D, DENSE>(task, row);
        }
    }
}

/// A row that another task may have a part of.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the row is the task's.
#[inline(always)]
unsafe fn shared_row<D: Stored, const DENSE: bool>(task: &SpmmRows<D>, row: usize) {
    // SAFETY: the promise of `spmm_rows`.
    unsafe {
        let (start, end) = (task.row_ptr.at(row).max(task.nonzeros[0]), task.row_ptr.at(row + 1).min(task.nonzeros[1]));
        let (carries, c, beta) = task.target(&Part { row, slot: 0, start, end, first: true, last: true, inner: false });
        let sum = task.alpha * spmv_row::<D, DENSE>(task, start, end);
        if carries.is_null() {
            put(c, sum, beta);
        } else {
            *carries = sum;
        }
    }
}

/// c = `sum` + `beta` c; c is not read where beta is 0.
///
/// # Safety
/// `c` is valid for reads and writes, and no one else uses it meanwhile.
#[inline(always)]
pub(crate) unsafe fn put<D: Stored>(c: *mut D, sum: D::Scalar, beta: D::Scalar) {
    // SAFETY: the caller's promise.
    unsafe { *c = D::narrow(if beta == D::Scalar::ZERO { sum } else { sum + beta * (*c).widen() }) };
}

/// Nonzeros ahead of which columns and values are prefetched.
pub(crate) const AHEAD: usize = 256;

/// Nonzeros that are taken together.
const CHUNK: usize = 8;

/// Sum over the nonzeros p from `start` to `end` of a_p b_(j_p).
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn spmv_row<D: Stored, const DENSE: bool>(task: &SpmmRows<D>, start: usize, end: usize) -> D::Scalar {
    // One sum alone would be a chain of dependent additions.
    let mut sums = [D::Scalar::ZERO; CHUNK];
    let mut p = start;
    // SAFETY: the nonzeros below `end` and below the task's are there.
    unsafe {
        while p + CHUNK < end {
            // The hardware's own prefetches come late where rows of b come from L3 (2^20 rows, 8 M nonzeros: 17.7 ms, 15.9 with these).
            prefetch_l1(task.columns.wrapping_add(p + AHEAD));
            prefetch_l1(task.values.wrapping_add(p + AHEAD));
            let products = products::<D, DENSE, CHUNK>(task, p);
            (0..CHUNK).for_each(|u| sums[u] += products[u]);
            p += CHUNK;
        }
        // Nonzeros of the next rows are multiplied, too, and left out: a branch for each number of nonzeros would be mispredicted in most
        // rows of a graph.
        if p + CHUNK <= task.nonzeros[1] {
            if p + CHUNK / 2 < end {
                add_first::<D, DENSE, CHUNK>(task, p, end - p, &mut sums);
            } else {
                add_first::<D, DENSE, { CHUNK / 2 }>(task, p, end - p, &mut sums);
            }
        } else {
            for p in p..end {
                let b = *task.b.wrapping_add(*task.columns.wrapping_add(p) as usize * task.ldb);
                sums[0] += *task.values.wrapping_add(p) * b.widen();
            }
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Adds the first `own` of the products of `COUNT` nonzeros from p on to `sums`.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn add_first<D: Stored, const DENSE: bool, const COUNT: usize>(
    task: &SpmmRows<D>,
    p: usize,
    own: usize,
    sums: &mut [D::Scalar; CHUNK],
) {
    // SAFETY: the caller's promise.
    let products = unsafe { products::<D, DENSE, COUNT>(task, p) };
    for (u, product) in products.into_iter().enumerate() {
        sums[u] += if u < own { product } else { D::Scalar::ZERO };
    }
}

/// a_p b_(j_p) of `COUNT` nonzeros from p on.
///
/// # Safety
/// As [`spmm_rows`](crate::spmm_rows); the nonzeros are the task's.
#[inline(always)]
unsafe fn products<D: Stored, const DENSE: bool, const COUNT: usize>(
    task: &SpmmRows<D>,
    p: usize,
) -> [D::Scalar; COUNT] {
    let mut b = [D::narrow(D::Scalar::ZERO); COUNT];
    let mut products = [D::Scalar::ZERO; COUNT];
    // SAFETY: the nonzeros are the task's, and their columns rows of B.
    unsafe {
        for (u, b) in b.iter_mut().enumerate() {
            // Volatile: the compiler would make a gather of the loads of b, which takes twice as long as they do (Zen 4). There is none of
            // narrow elements.
            let j = task.columns.wrapping_add(p + u);
            let j = if D::NARROW { *j } else { j.read_volatile() } as usize;
            *b = *task.b.wrapping_add(if DENSE { j } else { j * task.ldb });
        }
        for (u, product) in products.iter_mut().enumerate() {
            *product = *task.values.wrapping_add(p + u) * b[u].widen();
        }
    }
    products
}
