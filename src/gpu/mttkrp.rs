//! MTTKRP on the device.

use sparsimd_gpu_abi::{BLOCK, MttkrpParams, RUN, SpmmParams, WORKGROUP};
use sparsimd_gpu_host::Binding;

use super::kernels::{Kernel, MTTKRP_ATOMIC, MTTKRP_FIBERS, MTTKRP_NONZEROS, REDUCE_ROWS, groups};
use super::operands::{GpuMat, Panel};
use super::pieces::{pieces, reduce_rows, widest};
use super::sparse::{TaskBuffers, most_slots};
use super::tensor::{GpuFactors, GpuTensor, Unit};
use super::{DeviceScalar, Gpu, Scratch, State};
use crate::error::{Error, Result};

/// Tasks that one kernel adds to rows of the output.
pub(super) struct TaskLaunch<'a> {
    pub(super) kernel: Kernel,
    pub(super) tasks: &'a TaskBuffers,
    /// What the kernel reads besides the tasks and the stack of factors, in its order.
    pub(super) lists: Vec<Binding<'a>>,
    /// Coordinates of an item.
    pub(super) levels: usize,
    /// Which of them is the output's row.
    pub(super) skip: usize,
    /// Whether the first list is an order of the items.
    pub(super) ordered: bool,
}

impl Gpu {
    /// M_i = sum over the nonzeros x of slice i of `mode` of x times the product of the other modes' factor rows.
    ///
    /// `out` is I_mode x R. The result does not depend on timing: every task owns its rows, or parts are added in order; the atomic
    /// algorithm is the exception.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is no such mode, [`Error::Shape`] when the shapes or the devices of the operands differ,
    /// [`Error::Device`] when the device fails.
    #[inline(never)]
    pub fn mttkrp<T: DeviceScalar>(
        &self,
        tensor: &GpuTensor<T>,
        factors: &GpuFactors<T>,
        mode: usize,
        out: &mut GpuMat<T>,
    ) -> Result<()> {
        const OP: &str = "mttkrp";
        self.check_own(OP, "the tensor", &tensor.gpu)?;
        let Some(&rows) = tensor.dims.get(mode) else {
            return Err(Error::argument("mode", format!("{mode} of a tensor of order {}", tensor.dims.len())));
        };
        if factors.dims != tensor.dims {
            return Err(Error::shape(
                OP,
                format!("factors of {:?} rows, the tensor is {:?}", factors.dims, tensor.dims),
            ));
        }
        let stack = &factors.stack;
        stack.expect(self, OP, "the factors", stack.rows(), stack.cols())?;
        out.expect(self, OP, "the output", rows, stack.cols())?;

        match tensor.unit {
            Unit::Row => {}
            Unit::Run => return self.mttkrp_atomic(tensor, factors, mode, out),
            Unit::Element => return self.mttkrp_by_elements(tensor, factors, mode, out),
        }
        if let Some(blocks) = &tensor.blocks {
            return self.mttkrp_by_blocks(blocks, factors, mode, out);
        }
        let launches = tensor.routes(mode).map(|(tree, route)| {
            let (order, val) = (route.order.as_ref().unwrap_or(&tree.ptr).bind(), tree.values.bind());
            let (kernel, lists) = if route.fibers {
                let leaf = tree.leaf.bind();
                (MTTKRP_FIBERS, vec![order, tree.ptr.bind(), tree.table.bind(), leaf, leaf, val, val])
            } else {
                let fiber_of = route.fiber_of.as_ref().unwrap_or(&tree.ptr).bind();
                (MTTKRP_NONZEROS, vec![order, fiber_of, tree.table.bind(), val])
            };
            let ordered = route.order.is_some();
            TaskLaunch { kernel, tasks: &route.tasks, lists, levels: tree.levels, skip: route.skip, ordered }
        });
        let launches: Vec<_> = launches.collect();
        // SAFETY: tasks name rows of the output and items of the list, items name fibers or nonzeros of the tree, its
        // coordinates are rows of the stack.
        unsafe { self.mttkrp_by_tasks(&launches, stack, out) }
    }

    /// [`Gpu::mttkrp`] of checked operands by launches, one after the other, each of which adds its tasks to their rows of the output.
    ///
    /// # Safety
    /// Tasks name rows of the output and items of the lists, which name rows of the stack; each part of a cut row is a slot.
    pub(super) unsafe fn mttkrp_by_tasks<T: DeviceScalar>(
        &self,
        launches: &[TaskLaunch<'_>],
        stack: &GpuMat<T>,
        out: &mut GpuMat<T>,
    ) -> Result<()> {
        let slots = most_slots(launches.iter().map(|launch| launch.tasks));
        let most = self.shape::<T>().max_len / BLOCK / slots.max(1);
        // Columns that lie in one panel of the factors and one of the output, as many as there is room for partial rows.
        let pieces = pieces(stack, out, most.clamp(1, out.blocks()));
        let width = widest(&pieces);
        let team = self.team::<T>(width);
        let kernel_of = |launch: &TaskLaunch<'_>| self.shared.kernels.get::<T, MttkrpParams<T>>(launch.kernel, team, 0);
        let kernels = launches.iter().map(kernel_of).collect::<Result<Vec<_>>>()?;
        let reduce = self.shared.kernels.get::<T, SpmmParams<T>>(REDUCE_ROWS, team, 0)?;
        out.clear()?;

        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let bytes = slots * width * BLOCK * size_of::<T>();
        let partial = Scratch::grow(&mut scratch.partial, self.device(), bytes)?.bind_mut();
        let outputs: Vec<_> = out.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let device = self.device();
        let seconds = stream.record(|r| {
            for (TaskLaunch { tasks, lists, levels, skip, ordered, .. }, kernel) in launches.iter().zip(&kernels) {
                for piece in &pieces {
                    let p = MttkrpParams {
                        tasks: tasks.tasks.len() as u32,
                        skip: *skip as u32,
                        ordered: u32::from(*ordered),
                        ..piece.tensor::<T>(*levels)
                    };
                    let output = outputs[piece.c];
                    let dense = [stack.parts()[piece.b].bind(), output, partial];
                    let bindings = [&[tasks.tasks.bind()], &lists[..], &dense].concat();
                    let tiles = piece.blocks.len().div_ceil(team.blocks());
                    let groups = groups(device, tasks.tasks.len(), (WORKGROUP / team.lanes) as usize, tiles);
                    // SAFETY: the caller's promise; the block range lies in both panels, and there is a partial row for each slot.
                    unsafe { r.launch(kernel, &bindings, &p, groups) }?;
                    // The next launch adds to the same rows.
                    r.barrier();
                    if tasks.slots > 0 {
                        let sums = piece.product(T::ONE, T::ONE, 0);
                        // SAFETY: as above: the tasks of cut rows are the slots.
                        unsafe { reduce_rows(r, device, &reduce, &tasks.cut, sums, [partial, partial, output]) }?;
                    }
                }
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }

    /// [`Gpu::mttkrp`] of checked operands by atomic additions.
    fn mttkrp_atomic<T: DeviceScalar>(
        &self,
        tensor: &GpuTensor<T>,
        factors: &GpuFactors<T>,
        mode: usize,
        out: &mut GpuMat<T>,
    ) -> Result<()> {
        let stack = &factors.stack;
        let pieces = pieces(stack, out, out.blocks());
        let team = self.team::<T>(widest(&pieces));
        let kernel = self.shared.kernels.get::<T, MttkrpParams<T>>(MTTKRP_ATOMIC, team, 0)?;
        out.clear()?;
        let outputs: Vec<_> = out.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        // The table has rows of the stack, in which the mode's do not start at 0.
        let base: usize = tensor.dims[..mode].iter().sum();
        let seconds = self.state().stream.record(|r| {
            for tree in &tensor.trees {
                for piece in &pieces {
                    let fp = &stack.parts()[piece.b];
                    let mut p = piece.tensor::<T>(tree.levels);
                    (p.tasks, p.skip) = (tree.values.len() as u32, mode as u32);
                    p.c_offset = p.c_offset.wrapping_sub((base as u32).wrapping_mul(p.c_stride));
                    let tiles = piece.blocks.len().div_ceil(team.blocks());
                    let runs = tree.values.len().div_ceil(RUN as usize);
                    let groups = groups(self.device(), runs, (WORKGROUP / team.lanes) as usize, tiles);
                    let bindings = [tree.table.bind(), tree.values.bind(), fp.bind(), outputs[piece.c]];
                    // SAFETY: the table's coordinates are rows of the stack, those of the mode less `base` rows of the output;
                    // the block range lies in both panels.
                    unsafe { r.launch(&kernel, &bindings, &p, groups) }?;
                    r.barrier();
                }
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}
