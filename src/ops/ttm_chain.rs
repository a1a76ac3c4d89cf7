//! TTM chain, the kernel of Tucker's decomposition: Y = X times U_m in every mode m but one, without a tensor in between.
//!
//! In the mode left out, n, Y is unfolded: row i is the slice i_n of X,
//! ```text
//! Y_i = sum over the nonzeros of the slice of x kron(U_a[i_a], U_b[i_b], ...),     (a, b, ...) the other modes
//! ```
//! computed on the tree whose root is mode n, in that tree's order of the other modes.

use sparsimd_kernels::{ChainLevel, Scalar, TtmChain, chain_scratch, ttm_chain};

use super::run::Shared;
use super::ttm::cut_fibers;
use crate::cpu::Cpu;
use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::formats::{Csf, CsfPattern};
use crate::parallel;

/// Nonzeros between the one at hand and the one whose row is prefetched, as in TTM.
const PREFETCH_DISTANCE: usize = 16;
/// Tasks for each thread: slices differ in size, but every task may cost one more row of Y.
const TASKS_PER_THREAD: usize = 8;

impl Cpu {
    /// Y = X times all matrices but that of the tree's root mode: one row for each nonempty slice, in the order of
    /// [`CsfPattern::idx`](crate::formats::CsfPattern::idx)`(0)`. Columns run over the other modes in the order of the
    /// tree, the last one fastest.
    ///
    /// `u[m]` is I_m x R_m; that of the root mode is not looked at. Bit-reproducible for the same number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`] when X is of order 1, there is not one matrix for each mode, or one has not I_m rows or no column;
    /// [`Error::Argument`] when Y does not fit the address space.
    #[inline(never)]
    pub fn ttm_chain<T: Scalar>(&self, x: &Csf<T>, u: &[MatRef<'_, T>]) -> Result<Mat<T>> {
        let pattern = x.pattern();
        let (order, modes) = (pattern.order(), pattern.mode_order());
        let shapes: Vec<_> = u.iter().map(MatRef::shape).collect();
        let cols = chain_cols(pattern, &shapes)?;
        let ranks: Vec<usize> = modes.iter().map(|&mode| u[mode].cols()).collect();
        let mut y = Mat::zeros(pattern.nodes(0), cols)?;
        if pattern.nnz() == 0 {
            return Ok(y);
        }
        let levels: Vec<ChainLevel<'_, T>> = (0..order)
            .map(|l| ChainLevel {
                ptr: if l + 1 < order { pattern.ptr(l) } else { &[] },
                idx: pattern.idx(l),
                u: u[modes[l]].data().as_ptr(),
                u_stride: u[modes[l]].stride(),
                rank: ranks[l],
            })
            .collect();
        // The root that a fiber is below, and whether the fiber is its first.
        let root = |fiber: usize| {
            (0..order - 2).rev().fold((fiber, true), |(node, first), l| {
                let parent = pattern.ptr(l).partition_point(|&child| child <= node) - 1;
                (parent, first && pattern.ptr(l)[parent] == node)
            })
        };
        let tasks: Vec<([usize; 2], usize, bool)> =
            cut_fibers(pattern.ptr(order - 2), TASKS_PER_THREAD * self.threads())
                .into_iter()
                .map(|fibers| {
                    let (row, first) = root(fibers.start);
                    ([fibers.start, fibers.end], row, first)
                })
                .collect();
        let stride = y.as_ref().stride();
        let mut carry_outs: Vec<Vec<T>> =
            tasks.iter().map(|task| vec![T::ZERO; if task.2 { 0 } else { cols }]).collect();
        let shared = Shared(y.as_mut().into_data().as_mut_ptr());
        let levels = SharedLevels(&levels);
        self.install(|| {
            parallel::chunks_mut(&mut carry_outs, 1, |k, carry_out| {
                let (fibers, row, first) = tasks[k];
                let mut scratch = vec![T::ZERO; chain_scratch(&ranks)];
                {
                    let task = TtmChain {
                        levels: levels.get(),
                        x: x.values(),
                        fibers,
                        y: shared.get().wrapping_add(row * stride),
                        y_stride: stride,
                        carry_out: if first { std::ptr::null_mut() } else { carry_out[0].as_mut_ptr() },
                        scratch: scratch.as_mut_ptr(),
                        prefetch_distance: PREFETCH_DISTANCE,
                    };
                    // SAFETY: the pattern is a checked tree and the matrices have a row for every coordinate, as checked
                    // above; a row of Y belongs to the task that has its first fiber, every other task with fibers of
                    // that root writes its own carry-out.
                    unsafe { ttm_chain(self.arch(), task) };
                }
            });
        });
        // In the order of the tasks, so that the sum is the same on every run.
        let data = y.as_mut().into_data();
        for (&(_, row, _), carry_out) in tasks.iter().zip(&carry_outs).filter(|(task, _)| !task.2) {
            data[row * stride..][..cols].iter_mut().zip(carry_out).for_each(|(y, &x)| *y += x);
        }
        Ok(y)
    }
}

/// Columns of the chain of a tree with matrices of these shapes, which are checked; that of the root's mode has no influence.
pub(crate) fn chain_cols(pattern: &CsfPattern, shapes: &[(usize, usize)]) -> Result<usize> {
    const OP: &str = "ttm_chain";
    let order = pattern.order();
    if order < 2 {
        return Err(Error::shape(OP, "a tensor of order 1 has no other mode to multiply"));
    }
    if shapes.len() != order {
        return Err(Error::shape(OP, format!("{} matrices for order {order}", shapes.len())));
    }
    let mut columns = 1usize;
    for &mode in &pattern.mode_order()[1..] {
        let ((rows, rank), dim) = (shapes[mode], pattern.dims()[mode]);
        if rows != dim || rank == 0 {
            let detail = format!("matrix {mode} is {rows} x {rank}, expected {dim} rows and a column");
            return Err(Error::shape(OP, detail));
        }
        let too_many = || Error::argument(OP, format!("matrices of {shapes:?} do not fit the address space"));
        columns = columns.checked_mul(rank).ok_or_else(too_many)?;
    }
    Ok(columns)
}

/// Levels that tasks share: their matrices are only read.
struct SharedLevels<'a, 'b, T>(&'a [ChainLevel<'b, T>]);
// SAFETY: the pointers in the levels are of matrices that live and stay unchanged for the whole operation.
unsafe impl<T: Sync> Sync for SharedLevels<'_, '_, T> {}

impl<'a, 'b, T> SharedLevels<'a, 'b, T> {
    /// A method, so that closures capture the wrapper and not the reference in it.
    fn get(&self) -> &'a [ChainLevel<'b, T>] {
        self.0
    }
}
