//! N = 1: a register of nonzeros at a time where a row has several, and a single one after the other where it has few.

use pulp::Simd;

use super::ReduceRows;
use crate::Number;
use crate::rows::{Gathered, Prefetch};
use crate::scalar::WIDEST;
use crate::semiring::Semiring;
use crate::tile::Lines;
use crate::walk::{Part, Walk};

/// Registers of nonzeros from which on a part of a row is taken by registers: the sums' lanes have to be added in the end.
const REGISTERS: usize = 2;

/// All the rows, rows of B prefetched by the constant for [`Gathered::row`].
///
/// # Safety
/// As [`reduce_rows`](super::reduce_rows); N is 1.
#[inline(always)]
pub(super) unsafe fn column<S: Simd, T: Number, R: Semiring<T>, const PREFETCH: u8>(
    simd: S,
    semiring: R,
    task: &ReduceRows<T>,
) {
    let (lanes, one) = (T::lanes::<S>(), T::ONE);
    let b = Gathered {
        columns: task.columns,
        base: task.b,
        stride: task.ldb,
        last: task.nonzeros[1].saturating_sub(1),
        prefetch_distance: task.prefetch_distance,
        prefetch: Prefetch::of(PREFETCH),
    };
    // SAFETY: the promise of `reduce_rows`; the nonzeros from `p` on are the part's. A vector of `pulp::Scalar` is one number, and there is
    // room for any register's.
    unsafe {
        let b = |p: usize| b.row::<PREFETCH>(p, size_of::<T>());
        // Without values, one 1 again and again: no branch for each nonzero.
        let (values, step) = if task.values.is_null() { (&raw const one, 0) } else { (task.values, 1) };
        let ones = T::splat(simd, one);
        for Part { row, start, end, first, .. } in
            Walk::new(task.row_ptr, task.columns, task.values, task.rows, task.nonzeros, task.panel)
        {
            if start == end && !first {
                continue;
            }
            let carries = row == task.rows[0] && !task.carry_out.is_null();
            let c = if carries { task.carry_out } else { task.c.add(row * task.ldc) };
            let mut sum = if first { semiring.zero() } else { *c };
            if first && start == end && task.row_ptr.at(row) == task.row_ptr.at(row + 1) {
                sum = task.empty;
            }
            let mut p = start;
            if lanes > 1 && end - start >= REGISTERS * lanes {
                let mut sums = [T::splat(simd, semiring.zero())];
                let mut room = Lines([T::ZERO; WIDEST]);
                while p + lanes <= end {
                    for u in 0..lanes {
                        room.0[u] = *b(p + u);
                    }
                    let a = if step == 0 { ones } else { T::load(simd, values.wrapping_add(p)) };
                    semiring.accumulate(simd, &mut sums, a, &[T::load(simd, room.0.as_ptr())]);
                    p += lanes;
                }
                T::store(simd, room.0.as_mut_ptr(), sums[0]);
                for u in 0..lanes {
                    sum = added(semiring, room.0[u], sum);
                }
            }
            let mut sums = [T::load(pulp::Scalar, &raw const sum)];
            for p in p..end {
                let a = T::load(pulp::Scalar, values.wrapping_add(p * step));
                semiring.accumulate(pulp::Scalar, &mut sums, a, &[T::load(pulp::Scalar, b(p))]);
            }
            T::store(pulp::Scalar, c, sums[0]);
        }
    }
}

/// `term + sum` of single numbers.
#[inline(always)]
pub(super) fn added<T: Number, R: Semiring<T>>(semiring: R, term: T, sum: T) -> T {
    let simd = pulp::Scalar;
    let mut out = T::ZERO;
    // SAFETY: a vector of this instruction set is one number.
    unsafe {
        let sum = semiring.add(simd, T::load(simd, &raw const term), T::load(simd, &raw const sum));
        T::store(simd, &raw mut out, sum);
    }
    out
}
