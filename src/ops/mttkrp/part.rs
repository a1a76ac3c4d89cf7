//! A stored tensor cut into tasks: what one pass over nonzeros runs on.

use sparsimd_kernels::mttkrp::Operands;
use sparsimd_kernels::{Arch, Scalar};

use super::operands::{Buffers, kernel_stride};
use super::stored::Stored;
use super::windows::Tasks;
use crate::plan::MttkrpPlan;

/// Row 0 of the factor of each mode, read by many threads.
pub(super) struct Pointers<T>(pub(super) Vec<*const T>);
// SAFETY: the factors are only read, and outlive the call that shares them.
unsafe impl<T: Sync> Sync for Pointers<T> {}

impl<T> Pointers<T> {
    fn get(&self) -> &[*const T] {
        &self.0
    }
}

/// What the passes of one call share.
#[derive(Clone, Copy)]
pub(super) struct Call<'a, T> {
    pub(super) arch: Arch,
    /// Elements from row to row of all operands: whole cache lines.
    pub(super) stride: usize,
    pub(super) buffers: &'a Buffers<T>,
}

/// A tensor in one format, with tasks for its first modes.
#[derive(Debug)]
pub(super) struct Part<T> {
    pub(super) stored: Stored<T>,
    tasks: Vec<Tasks>,
    /// Prefetch distance of each of these modes.
    ahead: Vec<usize>,
}

impl<T: Scalar> Part<T> {
    /// Tasks as `plan` allows for the modes that `ahead` has a distance for, of `dims` rows each.
    pub(super) fn new(stored: Stored<T>, dims: &[usize], ahead: Vec<usize>, plan: &MttkrpPlan) -> Self {
        let row_bytes = kernel_stride::<T>(plan.rank) * size_of::<T>();
        let tasks = (0..ahead.len())
            .map(|mode| {
                let mut count = plan.tasks.max(1);
                loop {
                    let tasks = Tasks::new(stored.tasks(mode, count), dims[mode]);
                    // Windows beyond the budget: fewer tasks. One task per tree cannot be had with fewer.
                    if count == 1 || tasks.private_rows().saturating_mul(row_bytes) <= plan.window_bytes {
                        return tasks;
                    }
                    count = count.div_ceil(2);
                }
            })
            .collect();
        Self { stored, tasks, ahead }
    }

    /// Rows of private windows that the tasks of `mode` add up.
    pub(super) fn private_rows(&self, mode: usize) -> usize {
        self.tasks[mode].private_rows()
    }

    /// `rows`, a stride apart, become the MTTKRP of `mode`. Runs in the rayon pool of the caller.
    ///
    /// # Safety
    /// `rows` are as many as the length of `mode`, and each factor but that of `mode` has as many, a stride apart and
    /// readable, as its mode's length.
    pub(super) unsafe fn run(&self, call: Call<'_, T>, mode: usize, factors: &Pointers<T>, rows: &mut [T]) {
        let Call { arch, stride, buffers } = call;
        self.tasks[mode].run(rows, stride, buffers, |task, row0| {
            let operands = Operands { factors: factors.get(), stride, out: row0, ahead: self.ahead[mode] };
            // SAFETY: whole cache lines are whole registers; formats hold coordinates below the lengths of their modes,
            // for which the caller has rows; `Tasks::run` gives the task rows of its own window, which contains every
            // row that its part names.
            unsafe { self.stored.compute(arch, task, mode, operands) };
        });
    }
}
