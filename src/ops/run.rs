//! Running tasks on a [`Cpu`]: disjoint parts of an output, partial rows added in task order.

use sparsimd_kernels::Scalar;

use crate::cpu::Cpu;
use crate::dense::{ALIGN, Aligned, MatMut};
use crate::plan::Task;

/// Multiply-adds of a nanosecond that a thread does on operands in its caches.
const RATE: usize = 16;

/// Multiply-adds below which handing a part to a thread that is awake costs more than it gains (some 2 us).
const ALONE: usize = 1 << 16;

/// A pointer that tasks share; which parts of it they use is the user's to keep apart.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(pub *mut T);

// SAFETY: the pointer is only dereferenced by kernels, whose callers keep the parts apart.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer. A method, so that closures capture the wrapper and not the pointer in it.
    pub fn get(self) -> *mut T {
        self.0
    }
}

impl Cpu {
    /// `f(i)` for i in 0..n on the pool, or here when all of it is only `work` multiply-adds.
    pub(super) fn for_each(&self, n: usize, work: usize, f: impl Fn(usize) + Send + Sync) {
        // Unoptimised, a kernel's frame takes megabytes: more than a caller's thread may have, not more than the pool's.
        let here = !cfg!(debug_assertions) && (self.threads() == 1 && n <= 1 || work < ALONE);
        if here {
            return (0..n).for_each(f);
        }
        self.run_tasks(n, (work / RATE) as u64, &f);
    }
}

/// Room for the first rows of tasks that continue a row, one row of `n` elements per task.
pub(super) struct CarryOuts<T> {
    rows: Vec<T>,
    n: usize,
}

impl<T: Copy + Default + Send> CarryOuts<T> {
    /// For `tasks`; no room when none continues a row.
    pub fn new(tasks: &[Task], n: usize) -> Self {
        let len = if tasks.iter().any(|task| task.continues) { tasks.len() * n } else { 0 };
        Self { rows: vec![T::default(); len], n }
    }

    /// Where task `k` puts its first row; for tasks that begin with a row of their own, null.
    pub fn shared(&mut self) -> impl Fn(usize, &Task) -> *mut T + Send + Sync + use<T> {
        let (base, n) = (Shared(self.rows.as_mut_ptr()), self.n);
        move |k, task| if task.continues { base.get().wrapping_add(k * n) } else { std::ptr::null_mut() }
    }

    /// The row of task `k`.
    pub fn row(&self, k: usize) -> &[T] {
        &self.rows[k * self.n..(k + 1) * self.n]
    }

    /// Adds each carry-out to its row of `c`, in task order, so that the sum is the same on every run.
    pub fn add_to(&self, tasks: &[Task], mut c: MatMut<'_, T>)
    where
        T: Scalar,
    {
        for (k, task) in tasks.iter().enumerate().filter(|(_, task)| task.continues) {
            let row = c.reborrow().into_row(task.rows[0]);
            row.iter_mut().zip(self.row(k)).for_each(|(x, &carry_out)| *x += carry_out);
        }
    }
}

/// Uninitialised aligned room for `n` elements, for a task's packed panel or dots.
pub(super) fn scratch<T>(n: usize) -> Aligned<T> {
    Aligned::with_capacity(ALIGN, n)
}
