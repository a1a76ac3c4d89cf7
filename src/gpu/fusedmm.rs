//! FusedMM on the device.

use std::sync::PoisonError;

use sparsimd_gpu_abi::{BLOCK, FusedParams, SpmmParams, WORKGROUP};
use sparsimd_kernels::Number;

use super::edge::{DeviceEdge, EdgeKind};
use super::kernels::{EDGE, FUSEDMM, REDUCE_ROWS, groups};
use super::operands::{GpuMat, GpuValues};
use super::pieces::{pieces, reduce_rows};
use super::sparse::{Cut, GpuCsr, TaskBuffers, most_slots};
use super::{DeviceScalar, DeviceStored, Gpu, Scratch, State};
use crate::error::{Error, Result};
use crate::plan::Team;

impl Gpu {
    /// E_i = sum over j of f(C_i . B_j, a_ij) D_j for the nonzeros (i, j) of A, f the edge function.
    ///
    /// `a` is m x k, `c` m x n, `b` k x n, `d` k x n', `e` m x n'. The edge values are never stored, except for operands that are cut
    /// into panels or whose rows are longer than a team's registers (more than 512 columns with subgroups of 32): these go
    /// through SDDMM, the edge function and SpMM.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ, [`Error::Device`] when the device fails, [`Error::Unavailable`] for a softmax, where edge values are stored, over rows of more than
    /// 21845 nonzeros for each lane of a team where the processor is the device.
    pub fn fusedmm<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        edge: impl DeviceEdge<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        d: &GpuMat<D>,
        e: &mut GpuMat<D>,
    ) -> Result<()> {
        self.fusedmm_of(a, edge.kind(), c, b, d, e)
    }

    /// [`Gpu::fusedmm`] with the edge function chosen at run time.
    #[inline(never)]
    pub(crate) fn fusedmm_of<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        d: &GpuMat<D>,
        e: &mut GpuMat<D>,
    ) -> Result<()> {
        self.check_own("fusedmm", "A", &a.gpu)?;
        c.expect(self, "fusedmm", "C", a.rows(), c.cols())?;
        b.expect(self, "fusedmm", "B", a.cols(), c.cols())?;
        d.expect(self, "fusedmm", "D", a.cols(), d.cols())?;
        e.expect(self, "fusedmm", "E", a.rows(), d.cols())?;
        let widest = c.blocks().max(d.blocks());
        let one_panel = c.panels() == 1 && b.panels() == 1 && d.panels() == 1 && e.panels() == 1;
        let team = Team::of_fused(widest, a.nnz() / a.rows().max(1), self.shape::<D>());
        let tasks = a.pattern.tasks_for(self, team.lanes)?;
        let partial = most_slots(&*tasks) * d.blocks() * BLOCK;
        let fits = widest <= team.blocks() && partial <= self.shape::<D>().max_len;
        match one_panel && fits {
            true => self.fused(a, edge, c, b, d, e, team, &tasks),
            false => self.unfused(a, edge, c, b, d, e),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the operands of the operation, its team and its tasks")]
    fn fused<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        d: &GpuMat<D>,
        e: &mut GpuMat<D>,
        team: Team,
        tasks: &[TaskBuffers],
    ) -> Result<()> {
        let variant = edge.variant();
        let fuse = self.shared.kernels.get::<D, FusedParams<D::Sum>>(FUSEDMM, team, variant)?;
        let reduce = self.shared.kernels.get::<D, SpmmParams<D::Sum>>(REDUCE_ROWS, team, variant)?;
        let sums = pieces(d, e, e.blocks()).into_iter().next().map(|piece| piece.product(D::Sum::ONE, D::Sum::ZERO, 0));
        let p = params(edge, 0, [c, b, d, e]);
        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let slots = most_slots(tasks);
        let bytes = slots * e.blocks() * BLOCK * size_of::<D::Sum>();
        let partial = Scratch::grow(&mut scratch.partial, self.device(), bytes)?.bind_mut();
        let stats = Scratch::grow(&mut scratch.stats, self.device(), 2 * slots * size_of::<D::Sum>())?.bind_mut();
        let output = e.parts_mut()[0].bind_mut();
        let seconds = stream.record(|r| {
            for ((chunk, tasks), (_, val)) in a.pattern.chunks.iter().zip(tasks).zip(&a.values.chunks) {
                let p = FusedParams { tasks: tasks.tasks.len() as u32, ..p };
                let bindings = [
                    tasks.tasks.bind(),
                    chunk.idx.bind(),
                    val.bind(),
                    c.parts()[0].bind(),
                    b.parts()[0].bind(),
                    d.parts()[0].bind(),
                    output,
                    partial,
                    stats,
                ];
                let groups_of_tasks = groups(self.device(), tasks.tasks.len(), (WORKGROUP / team.lanes) as usize, 1);
                // SAFETY: tasks name rows of C and E and nonzeros of the chunk, indices are below the rows of B and D, all
                // operands are of one panel, and there is a partial row and a pair of numbers for each slot.
                unsafe { r.launch(&fuse, &bindings, &p, groups_of_tasks) }?;
                if let (1.., Some(sums)) = (tasks.slots, sums) {
                    // SAFETY: as above: the tasks of cut rows are the slots.
                    unsafe { reduce_rows(r, self.device(), &reduce, &tasks.cut, sums, [partial, stats, output]) }?;
                }
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }

    /// SDDMM, the edge function in place, SpMM.
    fn unfused<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        d: &GpuMat<D>,
        e: &mut GpuMat<D>,
    ) -> Result<()> {
        let mut slot = a.edges.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match slot.take() {
            Some(values) => values,
            None => a.new_values()?,
        };
        let edges = slot.insert(kept);
        self.sampled("fusedmm", a, false, c, b, edges)?;
        self.apply_edge(a, edge, edges)?;
        self.product(D::Sum::ONE, &a.pattern, edges, d, D::Sum::ZERO, e)
    }

    #[inline(never)]
    pub(super) fn apply_edge<T: DeviceScalar>(
        &self,
        a: &GpuCsr<T>,
        edge: EdgeKind<T>,
        edges: &mut GpuValues<T>,
    ) -> Result<()> {
        // As many lanes as an average row has nonzeros.
        let team = self.team::<T>((a.nnz() / a.rows().max(1)).max(1));
        let team = Team { registers: 1, ..team };
        let lanes = team.lanes as usize;
        // The largest score, the sum, and the weights.
        let passes = if matches!(edge, EdgeKind::Softmax { .. }) { 3 } else { 1 };
        self.check_steps(
            "the edge function",
            a.pattern.row_lengths().map(|nonzeros| passes * nonzeros.div_ceil(lanes)),
        )?;
        let rows = a.pattern.tasks(self, Cut::Whole)?;
        let kernel = self.shared.kernels.get::<T, FusedParams<T>>(EDGE, team, edge.variant())?;
        let outputs: Vec<_> = edges.chunks.iter_mut().map(|(_, buffer)| buffer.bind_mut()).collect();
        let seconds = self.state().stream.record(|r| {
            for ((tasks, (_, val)), &output) in rows.iter().zip(&a.values.chunks).zip(&outputs) {
                let tasks = &tasks.tasks;
                let p = FusedParams {
                    scale: edge.scale(),
                    zero: T::ZERO,
                    tasks: tasks.len() as u32,
                    width: 0,
                    c_stride: 0,
                    b_stride: 0,
                    d_stride: 0,
                    e_stride: 0,
                    out_width: 0,
                    tail: 0,
                };
                let groups = groups(self.device(), tasks.len(), WORKGROUP as usize / lanes, 1);
                // SAFETY: tasks name nonzeros of the chunk, of which each array has one value.
                unsafe { r.launch(&kernel, &[tasks.bind(), val.bind(), output], &p, groups) }?;
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}

/// The constants of a launch on whole operands C, B, D and E.
pub(super) fn params<D: DeviceStored>(
    edge: EdgeKind<D::Sum>,
    tasks: usize,
    operands: [&GpuMat<D>; 4],
) -> FusedParams<D::Sum> {
    let [c, b, d, e] = operands.map(|m| m.blocks() as u32);
    FusedParams {
        scale: edge.scale(),
        zero: D::Sum::ZERO,
        tasks: tasks as u32,
        width: c,
        c_stride: c,
        b_stride: b,
        d_stride: d,
        e_stride: e,
        out_width: e,
        tail: operands[3].tail(operands[3].blocks()),
    }
}
