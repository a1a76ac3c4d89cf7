//! SpMM on the device.

use sparsimd_gpu_abi::{BLOCK, SpmmParams, WORKGROUP};

use super::kernels::{REDUCE_ROWS, SPMM, groups};
use super::operands::{GpuMat, GpuValues, Panel};
use super::pieces::{pieces, reduce_rows, widest};
use super::sparse::{GpuCsr, GpuPattern, most_slots};
use super::{DeviceStored, Gpu, Scratch, State};
use crate::error::{Error, Result};

impl Gpu {
    /// C = alpha A B + beta C. As in BLAS, `c` is not read when `beta` is 0.
    ///
    /// `a` is m x k, `b` k x n, `c` m x n. The same bits every time.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ, [`Error::Device`] when the device fails.
    #[inline(never)]
    pub fn spmm<D: DeviceStored>(
        &self,
        alpha: D::Sum,
        a: &GpuCsr<D::Sum>,
        b: &GpuMat<D>,
        beta: D::Sum,
        c: &mut GpuMat<D>,
    ) -> Result<()> {
        self.check_own("spmm", "A", &a.gpu)?;
        b.expect(self, "spmm", "B", a.cols(), b.cols())?;
        c.expect(self, "spmm", "C", a.rows(), b.cols())?;
        self.product(alpha, &a.pattern, &a.values, b, beta, c)
    }

    /// C = alpha A^T B + beta C. As in BLAS, `c` is not read when `beta` is 0.
    ///
    /// `a` is k x m, `b` k x n, `c` m x n. The first call makes A^T in device memory, where it stays.
    ///
    /// # Errors
    /// As [`Gpu::spmm`].
    #[inline(never)]
    pub fn spmm_t<D: DeviceStored>(
        &self,
        alpha: D::Sum,
        a: &GpuCsr<D::Sum>,
        b: &GpuMat<D>,
        beta: D::Sum,
        c: &mut GpuMat<D>,
    ) -> Result<()> {
        self.check_own("spmm_t", "A", &a.gpu)?;
        b.expect(self, "spmm_t", "B", a.rows(), b.cols())?;
        c.expect(self, "spmm_t", "C", a.cols(), b.cols())?;
        a.with_transposed(|t| self.product(alpha, &t.pattern, &t.values, b, beta, c))
    }

    /// C = alpha A B + beta C of checked operands, panel by panel and chunk by chunk.
    pub(super) fn product<D: DeviceStored>(
        &self,
        alpha: D::Sum,
        pattern: &GpuPattern,
        values: &GpuValues<D::Sum>,
        b: &GpuMat<D>,
        beta: D::Sum,
        c: &mut GpuMat<D>,
    ) -> Result<()> {
        let tasks = pattern.tasks_for(self, self.team::<D>(c.blocks()).lanes)?;
        let slots = most_slots(&*tasks);
        // Partial rows are kept for as many columns at a time as a kernel can see.
        let most = (self.shape::<D>().max_len / BLOCK / slots.max(1)).clamp(1, c.blocks());
        let pieces = pieces(b, c, most);
        let width = widest(&pieces);
        let team = self.team::<D>(width);
        let multiply = self.shared.kernels.get::<D, SpmmParams<D::Sum>>(SPMM, team, 0)?;
        let reduce = self.shared.kernels.get::<D, SpmmParams<D::Sum>>(REDUCE_ROWS, team, 0)?;

        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let bytes = slots * width * BLOCK * size_of::<D::Sum>();
        let partial = Scratch::grow(&mut scratch.partial, self.device(), bytes)?.bind_mut();
        let outputs: Vec<_> = c.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let device = self.device();
        let seconds = stream.record(|r| {
            for piece in &pieces {
                let (b, c) = (b.parts()[piece.b].bind(), outputs[piece.c]);
                for ((chunk, tasks), (_, val)) in pattern.chunks.iter().zip(&*tasks).zip(&values.chunks) {
                    let p = piece.product(alpha, beta, tasks.tasks.len());
                    let (idx, val) = (chunk.idx.bind(), val.bind());
                    let bindings = [tasks.tasks.bind(), idx, idx, val, val, b, c, partial];
                    let tiles = piece.blocks.len().div_ceil(team.blocks());
                    let per_group = (WORKGROUP / team.lanes) as usize;
                    // SAFETY: tasks name rows of C and nonzeros of the chunk, indices are below B's rows, the block range lies
                    // in both panels and there is a partial row for each slot.
                    unsafe { r.launch(&multiply, &bindings, &p, groups(device, tasks.tasks.len(), per_group, tiles)) }?;
                    if tasks.slots > 0 {
                        // SAFETY: as above: the tasks of cut rows are the slots.
                        unsafe { reduce_rows(r, device, &reduce, &tasks.cut, p, [partial, partial, c]) }?;
                    }
                }
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }
}
