//! A stored tensor cut into tasks: what one pass over nonzeros runs on.

use std::ops::Range;

use sparsimd_kernels::mttkrp::{JointOperands, Operands, Write};
use sparsimd_kernels::{Arch, Scalar, Stored as Element};

use super::operands::{Buffers, kernel_stride};
use super::privatised::{Rows, Task, TaskOutput, Tasks, add_up};
use super::stored::Stored;
use crate::cpu::Cpu;
use crate::machine::Machine;
use crate::parallel;
use crate::plan::{MttkrpFormat, MttkrpPlan, streams};

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
    pub(super) machine: &'a Machine,
    /// Elements from row to row of all operands: whole cache lines.
    pub(super) stride: usize,
    pub(super) buffers: &'a Buffers<T>,
    /// Whether one mode's result is added to the output.
    pub(super) add: bool,
}

impl<'a, T: Scalar> Call<'a, T> {
    /// A call of `cpu` with operands of `cols` columns, whose result is not added to the output.
    pub(super) fn new(cpu: &'a Cpu, cols: usize, buffers: &'a Buffers<T>) -> Self {
        Self { arch: cpu.arch(), machine: cpu.machine(), stride: kernel_stride::<T>(cols), buffers, add: false }
    }
}

/// A tensor in one format, with tasks for its first modes.
#[derive(Debug)]
pub(super) struct Part<T> {
    pub(super) stored: Stored<T>,
    tasks: Vec<Tasks>,
    /// Prefetch distance of each of these modes.
    prefetch_distance: Vec<usize>,
    /// Rows of all factors and outputs.
    rows: usize,
    /// Whether the tasks of all modes are of the same nonzeros, so that one pass serves all of them.
    joint: bool,
}

/// The tasks of `modes`, whose outputs are needed at the same time.
fn tasks_of<T: Scalar>(stored: &Stored<T>, modes: Range<usize>, dims: &[usize], plan: &MttkrpPlan) -> Vec<Tasks> {
    let row_bytes = kernel_stride::<T>(plan.rank) * size_of::<T>();
    let mut count = plan.tasks.max(1);
    loop {
        let of_mode = |mode: usize| Tasks::new(stored.tasks(mode, count), dims[mode]);
        let tasks: Vec<Tasks> = modes.clone().map(of_mode).collect();
        let private: usize = tasks.iter().map(Tasks::privatised_rows).sum();
        // Privatised outputs beyond the budget: fewer tasks. One task per tree cannot be had with fewer.
        if count == 1 || private.saturating_mul(row_bytes) <= plan.privatised_bytes {
            return tasks;
        }
        count = count.div_ceil(2);
    }
}

impl<T: Scalar> Part<T> {
    /// Tasks as `plan` allows for the modes that `prefetch_distance` has a number for, of `dims` rows each.
    pub(super) fn new(stored: Stored<T>, dims: &[usize], prefetch_distance: Vec<usize>, plan: &MttkrpPlan) -> Self {
        // The only mode of a tensor of order 1 has a product over no factors.
        let joint = plan.format == MttkrpFormat::Joint && dims.len() > 1;
        let tasks = match joint {
            true => tasks_of(&stored, 0..prefetch_distance.len(), dims, plan),
            false => {
                (0..prefetch_distance.len()).flat_map(|mode| tasks_of(&stored, mode..mode + 1, dims, plan)).collect()
            }
        };
        Self { stored, tasks, prefetch_distance, rows: dims.iter().sum(), joint }
    }

    /// With tasks for `mode` alone.
    pub(super) fn of_mode(
        stored: Stored<T>,
        mode: usize,
        dims: &[usize],
        prefetch_distance: &[usize],
        plan: &MttkrpPlan,
    ) -> Self {
        let none = |_| Tasks::new(Vec::new(), 0);
        let mut tasks: Vec<Tasks> = (0..dims.len()).map(none).collect();
        tasks.splice(mode..mode + 1, tasks_of(&stored, mode..mode + 1, dims, plan));
        Self { stored, tasks, prefetch_distance: prefetch_distance.to_vec(), rows: dims.iter().sum(), joint: false }
    }

    /// Rows of privatised outputs that the tasks of `mode` add up.
    pub(super) fn privatised_rows(&self, mode: usize) -> usize {
        self.tasks[mode].privatised_rows()
    }

    /// Whether [`Part::run_all`] can be called.
    pub(super) fn is_joint(&self) -> bool {
        self.joint
    }

    /// `rows`, a stride apart, become the MTTKRP of `mode`, or it is added to them. Runs in the rayon pool of the caller.
    ///
    /// # Safety
    /// `rows` begin at a cache line and are as many as the length of `mode`, and each factor but that of `mode` has as many,
    /// a stride apart and readable, as its mode's length.
    pub(super) unsafe fn run<D: Element<Scalar = T>>(
        &self,
        call: Call<'_, T>,
        mode: usize,
        factors: &Pointers<D>,
        rows: &mut [T],
    ) {
        let Call { arch, machine, stride, buffers, add } = call;
        let inputs = self.rows.saturating_mul(stride).saturating_sub(rows.len());
        let stream = streams(machine, size_of_val(rows).saturating_add(inputs.saturating_mul(size_of::<D>())));
        let compute = |task: &Task, out: *mut T, columns: (usize, usize), add: bool| {
            let write = match stream {
                _ if add || !task.overwrites => Write::Add,
                true => Write::Stream,
                false => Write::Store,
            };
            let prefetch_distance = self.prefetch_distance[mode];
            let operands = Operands { factors: factors.get(), stride, columns, out, prefetch_distance };
            // Rows of the output, or of a copy of its range, are whole cache lines apart, from the start of one on.
            // SAFETY: so they are whole, aligned registers; formats hold coordinates below the lengths of their modes, for which the
            // caller has rows; the task has its columns of the rows of its own range, which contains every row that its part names.
            unsafe { self.stored.compute(arch, task, mode, operands, write) };
        };
        if self.stored.by_columns() {
            let width = arch.lanes::<T>();
            self.tasks[mode]
                .run_by_columns(rows, stride, width, add, |task, out, columns| compute(task, out, columns, add));
        } else {
            self.tasks[mode].run(rows, stride, add, buffers, |task, out, add| compute(task, out, (0, stride), add));
        }
    }

    /// `outs` become the MTTKRPs of all modes, in one pass over the nonzeros. Runs in the rayon pool of the caller.
    ///
    /// # Safety
    /// The part is joint, and for every mode the factors and outputs are as for [`Part::run`].
    pub(super) unsafe fn run_all(&self, call: Call<'_, T>, factors: &Pointers<T>, outs: &mut [&mut [T]]) {
        let Call { arch, stride, buffers, .. } = call;
        self.tasks.iter().zip(&mut *outs).for_each(|(tasks, out)| tasks.clear_gaps(out, stride));
        let outputs: Vec<Rows<T>> = outs.iter_mut().map(|out| Rows::new(out)).collect();
        let nonzeros: Vec<_> = self.tasks.first().into_iter().flat_map(Tasks::iter).collect();
        let run = |t: usize| {
            let open = |(tasks, rows): (&Tasks, &Rows<T>)| {
                // SAFETY: each task has its range of each output once, and nobody else uses the outputs meanwhile.
                unsafe { tasks.open(t, rows, stride, false, buffers) }
            };
            let (rows, task_outputs): (Vec<_>, Vec<_>) = self.tasks.iter().zip(&outputs).map(open).unzip();
            let operands = JointOperands {
                factors: factors.get(),
                outs: &rows,
                stride,
                prefetch_distance: self.prefetch_distance[0],
            };
            // SAFETY: as in `run`, for every mode.
            unsafe { self.stored.compute_all(arch, nonzeros[t], operands) };
            task_outputs
        };
        let task_outputs: Vec<Vec<TaskOutput<T>>> = parallel::map_tasks(nonzeros.len(), run);
        let mut of_mode: Vec<Vec<TaskOutput<T>>> = outs.iter().map(|_| Vec::new()).collect();
        task_outputs.into_iter().for_each(|task| of_mode.iter_mut().zip(task).for_each(|(all, one)| all.push(one)));
        outs.iter_mut().zip(of_mode).for_each(|(out, of_tasks)| add_up(of_tasks, out, stride, buffers));
    }
}
