//! Fibers so long that all threads share one, in TTM and TTV.
//!
//! A task of these has whole fibers, which leaves one thread with a fiber that has much of the nonzeros. Such a fiber is a row of a matrix
//! with the other operand as B: it is cut into parts, which are added in their order. Neither which fibers these are nor their
//! parts depend on the threads.

use std::borrow::Cow;
use std::ops::Range;

use sparsimd_kernels::{Number, Stored};

use super::prepare::Direct;
use super::values::Values;
use crate::cpu::Cpu;
use crate::cut;
use crate::dense::{MatMut, MatRef};
use crate::formats::{PatternRef, RowPointers};
use crate::plan::{Stages, by_nonzeros};

/// A long fiber has more nonzeros: parts of fewer are not worth a loop of all threads, some 10 us.
const LEAST: usize = 1 << 16;
/// And more than one in so many of all nonzeros: less than that, threads share well by whole fibers.
const SHARE: usize = 256;
/// Parts of a long fiber: threads that share one.
const PARTS: usize = 64;

/// The long ones of the fibers that begin at `ptr`, ascending.
pub(super) fn long_fibers(ptr: &[usize]) -> Vec<usize> {
    let (fibers, nnz) = (ptr.len() - 1, ptr[ptr.len() - 1]);
    let most = LEAST.max(nnz / SHARE);
    // A fiber of more nonzeros has one whose number is a multiple.
    let mut long: Vec<usize> =
        (0..nnz).step_by(most).map(|p| cut::first(0..fibers, |fiber| ptr[fiber + 1] > p)).collect();
    long.dedup();
    long.retain(|&fiber| ptr[fiber + 1] - ptr[fiber] > most);
    long
}

/// `runs` of fibers without the `long` ones.
pub(super) fn without(runs: Vec<Range<usize>>, long: &[usize]) -> Vec<Range<usize>> {
    if long.is_empty() {
        return runs;
    }
    let mut rest = Vec::with_capacity(runs.len() + long.len());
    for run in runs {
        let mut start = run.start;
        for &fiber in long.iter().filter(|&&fiber| run.contains(&fiber)) {
            rest.push(start..fiber);
            start = fiber + 1;
        }
        rest.push(start..run.end);
    }
    rest.retain(|run| !run.is_empty());
    rest
}

impl Cpu {
    /// `y` = the sum over the nonzeros (k, x) of a fiber, at `leaf` and `values`, of x U_k. Coordinates are below U's number of rows.
    pub(super) fn multiply_long<D: Stored>(
        &self,
        leaf: &[u32],
        values: &[D::Scalar],
        u: MatRef<'_, D>,
        prefetch_distance: usize,
        y: &mut [D],
    ) {
        let row_ptr = [0, leaf.len()];
        let pattern = PatternRef::from_checked(1, u.rows(), &row_ptr, leaf);
        let tasks = Cow::Owned(by_nonzeros(RowPointers::of(&row_ptr), PARTS, PARTS));
        let stages = Stages { nonzeros: 0, stream: false };
        let direct = Direct { prefetch_distance, width: u.rows(), stream: false, stages, tasks };
        let n = y.len();
        let y = MatMut::new(y, 1, n, n).expect("a row");
        self.spmm_directly(D::Scalar::ONE, pattern, Values::Same(values), &direct, u, D::Scalar::ZERO, y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_fibers_are_found_wherever_they_are() {
        let ptr_of = |lens: &[usize]| -> Vec<usize> {
            [0].into_iter()
                .chain(lens.iter().scan(0, |sum, len| {
                    *sum += len;
                    Some(*sum)
                }))
                .collect()
        };
        let (long, short) = (LEAST + 1, LEAST);
        for (lens, expected) in [
            (&[][..], &[][..]),
            (&[0, 0], &[]),
            (&[short, 3, short, short, 1], &[]),
            (&[long], &[0]),
            (&[0, 7, long, 0, long, long, 9, short, 3 * long], &[2, 4, 5, 8]),
            // Many: a share of all, not the least length, decides.
            (&[vec![short; 2 * SHARE], vec![2 * short], vec![3 * short]].concat(), &[2 * SHARE + 1]),
        ] {
            assert_eq!(long_fibers(&ptr_of(lens)), expected, "{} fibers", lens.len());
        }
        assert_eq!(without(vec![0..3, 3..4, 4..9], &[0, 3, 6, 8]), [1..3, 4..6, 7..8]);
        assert_eq!(without(vec![0..3, 4..9], &[]), [0..3, 4..9]);
    }
}
