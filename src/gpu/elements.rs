//! Element-centric TTM and MTTKRP on the device: an invocation computes one element of the result, so that a few rows occupy all of
//! it as long as they are wide; the nonzeros of a row are read again for each of its columns.

use sparsimd_gpu_abi::{BLOCK, MttkrpParams, WORKGROUP};
use sparsimd_gpu_host::{Binding, Buffer, Pipeline, Recorder};

use super::kernels::{ELEMENTS, groups};
use super::operands::{GpuMat, GpuValues, Panel};
use super::pieces::{Piece, pieces};
use super::sparse::{Cut, GpuPattern};
use super::tensor::{GpuFactors, GpuTensor};
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::Team;

/// No lanes work together.
const ALONE: Team = Team { lanes: 1, registers: 1 };

/// What Mesa counts of an element's steps: those of the eight lanes beside it, too.
pub(super) const COUNTED: usize = 8;

impl Gpu {
    /// Y_f = sum over the nonzeros (k, x) of row f of x U_k, of checked operands.
    pub(super) fn product_by_elements<T: DeviceScalar>(
        &self,
        pattern: &GpuPattern,
        values: &GpuValues<T>,
        u: &GpuMat<T>,
        y: &mut GpuMat<T>,
    ) -> Result<()> {
        self.check_steps("TTM by elements", pattern.row_lengths().map(|nonzeros| COUNTED * nonzeros))?;
        let rows = pattern.tasks(self, Cut::Whole)?;
        let pieces = pieces(u, y, y.blocks());
        let kernel = self.shared.kernels.get::<T, MttkrpParams<T>>(ELEMENTS, ALONE, 0)?;
        let outputs: Vec<_> = y.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let seconds = self.state().stream.record(|r| {
            for piece in &pieces {
                for ((chunk, tasks), (_, val)) in pattern.chunks.iter().zip(&*rows).zip(&values.chunks) {
                    let idx = chunk.idx.bind();
                    let operands = [idx, idx, idx, val.bind(), u.parts()[piece.b].bind(), outputs[piece.c]];
                    // SAFETY: tasks name rows of Y and nonzeros of the chunk, indices are below U's rows, and without levels
                    // neither pointers nor coordinates are read.
                    unsafe { self.launch(r, &kernel, &tasks.tasks, piece, piece.tensor::<T>(0), operands) }?;
                }
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }

    /// [`Gpu::mttkrp`] of checked operands by trees whose root is the mode.
    pub(super) fn mttkrp_by_elements<T: DeviceScalar>(
        &self,
        tensor: &GpuTensor<T>,
        factors: &GpuFactors<T>,
        mode: usize,
        out: &mut GpuMat<T>,
    ) -> Result<()> {
        let stack = &factors.stack;
        let pieces = pieces(stack, out, out.blocks());
        let kernel = self.shared.kernels.get::<T, MttkrpParams<T>>(ELEMENTS, ALONE, 0)?;
        // Rows without nonzeros have no task.
        out.clear()?;
        let outputs: Vec<_> = out.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let seconds = self.state().stream.record(|r| {
            for (tree, route) in tensor.routes(mode) {
                for piece in &pieces {
                    let stack = stack.parts()[piece.b].bind();
                    let (ptr, table, leaf) = (tree.ptr.bind(), tree.table.bind(), tree.leaf.bind());
                    let operands = [ptr, table, leaf, tree.values.bind(), stack, outputs[piece.c]];
                    let p = MttkrpParams { skip: route.skip as u32, ..piece.tensor::<T>(tree.levels) };
                    // SAFETY: tasks name rows of the output and fibers of the tree, whose coordinates are rows of the stack.
                    unsafe { self.launch(r, &kernel, &route.tasks.tasks, piece, p, operands) }?;
                }
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }

    /// Records the kernel on the columns of `piece` of the rows of `tasks`, with the constants of `p` and the bindings after the tasks'.
    ///
    /// # Safety
    /// No task is cut; tasks name rows of the output and items of the operands, which name rows of the dense one.
    unsafe fn launch<'b, T: DeviceScalar>(
        &self,
        r: &mut Recorder<'_, 'b>,
        kernel: &'b Pipeline,
        tasks: &'b Buffer<[u32; 4]>,
        piece: &Piece,
        p: MttkrpParams<T>,
        operands: [Binding<'b>; 6],
    ) -> Result<()> {
        let [ptr, table, idx, val, factors, out] = operands;
        let columns = (piece.blocks.len() - 1) * BLOCK + piece.tail as usize;
        let groups = groups(self.device(), tasks.len() * columns, WORKGROUP as usize, 1);
        let p = MttkrpParams { tasks: tasks.len() as u32, ..p };
        // SAFETY: the caller's promise; the blocks of the piece lie in a panel of both dense operands.
        unsafe { r.launch(kernel, &[tasks.bind(), ptr, table, idx, val, factors, out], &p, groups) }?;
        Ok(())
    }
}
