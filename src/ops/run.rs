//! Running tasks on a [`Cpu`]: disjoint parts of an output, partial rows added in task order.

use sparsimd_kernels::{Scalar, Stored};

use crate::cpu::Cpu;
use crate::dense::{ALIGN, Aligned, MatMut};
use crate::plan::{Task, alone};

/// Multiply-adds of a nanosecond that a thread does on operands in its caches.
const RATE: usize = 16;

/// A pointer that tasks share; which parts of it they use is the user's to keep apart.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub *mut T);

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
    /// Multiply-adds below which a thread runs alone.
    pub(super) fn alone(&self) -> usize {
        alone(self.arch().vector_bytes())
    }

    /// `f(i)` for i in 0..n on the pool, or here when all of it is only `work` multiply-adds.
    pub(super) fn for_each(&self, n: usize, work: usize, f: impl Fn(usize) + Send + Sync) {
        // Unoptimised, a kernel's frame takes megabytes: more than a caller's thread may have, not more than the pool's.
        let here = !cfg!(debug_assertions) && (self.threads() == 1 && n <= 1 || work < self.alone());
        if here {
            return (0..n).for_each(f);
        }
        self.run_tasks(n, (work / RATE) as u64, &f);
    }
}

/// Room for rows that tasks share, as they are computed: the first row of a task that continues it, and, where the result is narrow,
/// the last row of one that the next continues. One row of `n` elements per task, or two.
pub(super) struct CarryOuts<T> {
    rows: Vec<T>,
    n: usize,
    narrow: bool,
}

impl<T: Copy + Default + Send> CarryOuts<T> {
    /// For `tasks`, whose result is stored as it is computed or `narrow`; no room when none continues a row.
    pub fn new(tasks: &[Task], n: usize, narrow: bool) -> Self {
        let each = if narrow { 2 * n } else { n };
        let len = if tasks.iter().any(|task| task.continues) { tasks.len() * each } else { 0 };
        Self { rows: vec![T::default(); len], n, narrow }
    }

    /// Where task `k` of `tasks` puts its first row and its last one; null for rows that are its own.
    pub fn shared<'a>(&mut self, tasks: &'a [Task]) -> impl Fn(usize) -> [*mut T; 2] + Send + Sync + use<'a, T> {
        let (base, n, narrow) = (Shared(self.rows.as_mut_ptr()), self.n, self.narrow);
        let room = move |there: bool, row: usize| match there {
            true => base.get().wrapping_add(row * n),
            false => std::ptr::null_mut(),
        };
        move |k| match narrow {
            true => [room(tasks[k].continues, 2 * k), room(goes_on(tasks, k), 2 * k + 1)],
            false => [room(tasks[k].continues, k), std::ptr::null_mut()],
        }
    }

    /// The first row of task `k`, which continues it.
    pub fn row(&self, k: usize) -> &[T] {
        self.at(if self.narrow { 2 * k } else { k })
    }

    /// The first part of the row that begins in task `k` and is `row` in the result, as it was computed.
    pub fn first_part<D: Stored<Scalar = T>>(&self, k: usize, row: &[D]) -> Vec<T> {
        if D::NARROW { self.at(2 * k + 1).to_vec() } else { row.iter().map(|x| x.widen()).collect() }
    }

    fn at(&self, row: usize) -> &[T] {
        &self.rows[row * self.n..(row + 1) * self.n]
    }

    /// Adds each carry-out to its row of `c`, in task order, so that the sum is the same on every run. Narrow rows, of which `c` has
    /// nothing yet, become the sum of all their parts and beta times what they were, rounded once.
    pub fn add_to<D: Stored<Scalar = T>>(&self, tasks: &[Task], beta: T, mut c: MatMut<'_, D>)
    where
        T: Scalar,
    {
        if !D::NARROW {
            for (k, task) in tasks.iter().enumerate().filter(|(_, task)| task.continues) {
                let row = c.reborrow().into_row(task.rows[0]);
                row.iter_mut().zip(self.row(k)).for_each(|(x, &carry_out)| *x = D::narrow(x.widen() + carry_out));
            }
            return;
        }
        for (k, row, end) in shared_rows(tasks) {
            let out = c.reborrow().into_row(row);
            let mut sum = self.first_part(k, out);
            for part in k + 1..end {
                sum.iter_mut().zip(self.row(part)).for_each(|(x, &carry_out)| *x += carry_out);
            }
            for (x, sum) in out.iter_mut().zip(sum) {
                *x = D::narrow(if beta == T::ZERO { sum } else { sum + beta * x.widen() });
            }
        }
    }
}

/// The rows that tasks share: (the task where it begins, the row, one past the last task that continues it).
pub(super) fn shared_rows(tasks: &[Task]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..tasks.len()).filter(|&k| goes_on(tasks, k)).map(|k| {
        let row = tasks[k].rows[1] - 1;
        let more = tasks[k + 1..].iter().take_while(|next| next.continues && next.rows[0] == row).count();
        (k, row, k + 1 + more)
    })
}

/// Whether the last row of task `k` begins there and goes on in the next one.
fn goes_on(tasks: &[Task], k: usize) -> bool {
    let own = tasks[k].rows[1] - tasks[k].rows[0] > usize::from(tasks[k].continues);
    own && tasks.get(k + 1).is_some_and(|next| next.continues)
}

/// Uninitialised aligned room for `n` elements, for a task's packed panel or dots.
pub(super) fn scratch<T>(n: usize) -> Aligned<T> {
    Aligned::with_capacity(ALIGN, n)
}
