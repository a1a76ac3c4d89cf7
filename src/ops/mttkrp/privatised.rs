//! Tasks that add to rows of one output, without locks and with the same bits every time.
//!
//! The rows that a task's nonzeros name lie in the task's *range*. Tasks whose ranges do not overlap an earlier one's write
//! to the output itself. Each of the others writes to a *privatised output*, a copy of its range, which is added to the
//! output afterwards, in the order of the tasks.

use std::ops::Range;

use sparsimd_kernels::Scalar;

use super::operands::Buffers;
use crate::dense::Aligned;
use crate::parallel;

/// A part of the nonzeros and the rows of the output that it touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    /// Which tree or copy of the format, where it has several.
    pub(super) copy: usize,
    /// Nonzeros, fibers or blocks, as the format counts.
    pub(super) part: Range<usize>,
    /// The range of rows.
    pub(super) rows: Range<usize>,
    /// Whether it can write all rows of the range without having read them.
    pub(super) overwrites: bool,
}

impl Task {
    /// A task that adds to its rows.
    pub(super) fn new(copy: usize, part: Range<usize>, rows: Range<usize>) -> Self {
        Self { copy, part, rows, overwrites: false }
    }
}

/// All tasks of one mode.
#[derive(Clone, Debug)]
pub(super) struct Tasks {
    tasks: Vec<(Task, bool)>,
    /// Rows that no task writes to the output itself.
    gaps: Vec<Range<usize>>,
}

/// Rows of an output, handed to tasks that own disjoint parts of it.
pub(super) struct Rows<T>(*mut T);
// SAFETY: only tasks with disjoint ranges write through it.
unsafe impl<T: Send> Sync for Rows<T> {}

impl<T> Rows<T> {
    pub(super) fn new(out: &mut [T]) -> Self {
        Self(out.as_mut_ptr())
    }

    fn row(&self, row: usize, stride: usize) -> *mut T {
        self.0.wrapping_add(row * stride)
    }
}

/// Where a task writes: its range of rows, and its privatised output if it has one.
pub(super) struct TaskOutput<T> {
    rows: Range<usize>,
    privatised: Option<Aligned<T>>,
}

impl Tasks {
    /// The tasks, for an output of `dim` rows.
    pub(super) fn new(tasks: Vec<Task>, dim: usize) -> Self {
        let mut direct: Vec<Range<usize>> = Vec::new();
        let mut marked = Vec::with_capacity(tasks.len());
        for task in tasks {
            let alone = direct.iter().all(|d| task.rows.end <= d.start || d.end <= task.rows.start);
            if alone {
                direct.push(task.rows.clone());
            }
            marked.push((task, alone));
        }
        direct.sort_by_key(|d| d.start);
        let mut gaps = Vec::new();
        let mut covered = 0;
        for range in direct {
            gaps.push(covered..range.start.max(covered));
            covered = covered.max(range.end);
        }
        gaps.push(covered..dim);
        gaps.retain(|gap| !gap.is_empty());
        Self { tasks: marked, gaps }
    }

    /// Rows of privatised outputs.
    pub(super) fn privatised_rows(&self) -> usize {
        self.tasks.iter().filter(|(_, direct)| !direct).map(|(task, _)| task.rows.len()).sum()
    }

    /// The tasks.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Task> {
        self.tasks.iter().map(|(task, _)| task)
    }

    /// `out = sum of all tasks`, or `out +=` it where it is to `add`: `work(task, row0, add)` adds its nonzeros' contributions to the rows
    /// of its range, where `row0` is the place that row 0 of the output would have; a task that overwrites has them overwritten unless it
    /// is to add. Runs in the rayon pool of the caller.
    pub(super) fn run<T: Scalar>(
        &self,
        out: &mut [T],
        stride: usize,
        add: bool,
        buffers: &Buffers<T>,
        work: impl Fn(&Task, *mut T, bool) + Sync,
    ) {
        if !add {
            self.clear_gaps(out, stride);
        }
        let rows = Rows::new(out);
        let outputs = parallel::map_tasks(self.tasks.len(), |t| {
            // SAFETY: each task has its range once, and nobody else uses the output before the tasks end.
            let (row0, output) = unsafe { self.open(t, &rows, stride, add, buffers) };
            work(&self.tasks[t].0, row0, add && output.privatised.is_none());
            output
        });
        add_up(outputs, out, stride, buffers);
    }

    /// As [`Tasks::run`] for tasks of disjoint ranges, each one in turns of `width` columns that run side by side:
    /// `work(task, row0, (first, end))` adds to these columns.
    pub(super) fn run_by_columns<T: Scalar>(
        &self,
        out: &mut [T],
        stride: usize,
        width: usize,
        add: bool,
        work: impl Fn(&Task, *mut T, (usize, usize)) + Sync,
    ) {
        debug_assert!(self.tasks.iter().all(|(_, direct)| *direct));
        if !add {
            self.clear_gaps(out, stride);
        }
        let (rows, turns) = (Rows::new(out), stride.div_ceil(width));
        parallel::tasks(self.tasks.len() * turns, &|t| {
            let (task, first) = (&self.tasks[t / turns].0, t % turns * width);
            let end = stride.min(first + width);
            for row in task.rows.clone().take_while(|_| !add) {
                // SAFETY: ranges are disjoint and inside the output, which nobody else uses before the tasks end, and
                // so are the columns of a range's turns.
                unsafe { std::slice::from_raw_parts_mut(rows.row(row, stride).wrapping_add(first), end - first) }
                    .fill(T::ZERO);
            }
            work(task, rows.row(0, stride), (first, end));
        });
    }

    /// Zeros the rows that no task writes to the output itself.
    pub(super) fn clear_gaps<T: Scalar>(&self, out: &mut [T], stride: usize) {
        for gap in &self.gaps {
            parallel::chunks_mut(&mut out[gap.start * stride..gap.end * stride], 1 << 16, |_, rows| rows.fill(T::ZERO));
        }
    }

    /// The rows of task number `t`, zeroed unless the task overwrites them, or they are the output's and it is to `add` to them, and the
    /// place that row 0 of the output would have in it.
    ///
    /// # Safety
    /// `rows` are those of an output of the tasks' length, a stride apart; nobody else uses the rows of the task's
    /// range as long as the task does.
    pub(super) unsafe fn open<T: Scalar>(
        &self,
        t: usize,
        rows: &Rows<T>,
        stride: usize,
        add: bool,
        buffers: &Buffers<T>,
    ) -> (*mut T, TaskOutput<T>) {
        let (task, direct) = &self.tasks[t];
        let len = task.rows.len() * stride;
        if *direct {
            if !add && !task.overwrites {
                let first = rows.row(task.rows.start, stride);
                // SAFETY: direct ranges are disjoint and inside the output, which nobody else uses before the tasks end.
                unsafe { std::slice::from_raw_parts_mut(first, len) }.fill(T::ZERO);
            }
            return (rows.row(0, stride), TaskOutput { rows: task.rows.clone(), privatised: None });
        }
        let mut copy = buffers.take(len);
        if !task.overwrites {
            copy[..len].fill(T::ZERO);
        }
        let row0 = copy.as_mut_ptr().wrapping_sub(task.rows.start * stride);
        (row0, TaskOutput { rows: task.rows.clone(), privatised: Some(copy) })
    }
}

/// Adds the privatised ones of `outputs` to the output, in the order of the tasks. Runs in the rayon pool of the caller.
pub(super) fn add_up<T: Scalar>(outputs: Vec<TaskOutput<T>>, out: &mut [T], stride: usize, buffers: &Buffers<T>) {
    let privatised: Vec<_> =
        outputs.into_iter().filter_map(|output| output.privatised.map(|copy| (output.rows, copy))).collect();
    // Blocks of rows are independent; inside each one the copies are added in the order of the tasks.
    let block = (1 << 14) / stride.max(1) + 1;
    if !privatised.is_empty() {
        parallel::chunks_mut(out, block * stride, |b, rows| {
            let (first, end) = (b * block, b * block + rows.len() / stride);
            for (range, copy) in &privatised {
                let (from, to) = (first.max(range.start), end.min(range.end));
                if from < to {
                    let source = &copy[(from - range.start) * stride..(to - range.start) * stride];
                    let target = &mut rows[(from - first) * stride..(to - first) * stride];
                    target.iter_mut().zip(source).for_each(|(x, &y)| *x += y);
                }
            }
        });
    }
    privatised.into_iter().for_each(|(_, copy)| buffers.give(copy));
}

/// The smallest range that contains `rows`.
pub(super) fn row_range(rows: &[u32]) -> Range<usize> {
    let ends = |part: &[u32]| part.iter().fold((u32::MAX, 0), |(low, high), &i| (low.min(i), high.max(i)));
    let parts: Vec<&[u32]> = rows.chunks(parallel::GRAIN).collect();
    let parts = parallel::map_tasks(parts.len(), |t| ends(parts[t]));
    let ends = parts.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    ends.map_or(0..0, |(low, high)| low as usize..high as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_are_privatised_and_all_rows_are_defined() {
        let task = |rows: Range<usize>| Task::new(0, 0..1, rows);
        let tasks = Tasks::new(vec![task(2..5), task(4..8), task(5..6), task(9..9)], 10);
        assert_eq!(tasks.privatised_rows(), 4);
        for add in [false, true] {
            let mut out = vec![7.0f64; 20];
            tasks.run(&mut out, 2, add, &Buffers::default(), |task, row0, _| {
                for row in task.rows.clone() {
                    // SAFETY: the rows of the task's range.
                    unsafe { *row0.wrapping_add(row * 2) += 1.0 };
                }
            });
            let before = if add { 7.0 } else { 0.0 };
            let first: Vec<f64> = out.iter().step_by(2).map(|x| x - before).collect();
            assert_eq!(first, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0]);
            assert!(out.iter().skip(1).step_by(2).all(|&x| x == before));
        }
    }

    #[test]
    fn ranges_contain_their_rows() {
        assert_eq!((row_range(&[5, 3, 9]), row_range(&[])), (3..10, 0..0));
    }
}
