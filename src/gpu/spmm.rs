//! SpMM on the device.

use std::sync::PoisonError;

use sparsimd_gpu_abi::{SpmmParams, WORKGROUP};

use super::kernels::{REDUCE_ROWS, SPMM, groups};
use super::operands::{GpuMat, GpuValues, Panel};
use super::sparse::{GpuCsr, GpuPattern};
use super::{DeviceScalar, Gpu, Scratch, State};
use crate::error::{Error, Result};

impl Gpu {
    /// C = alpha A B + beta C. As in BLAS, `c` is not read when `beta` is 0.
    ///
    /// `a` is m x k, `b` k x n, `c` m x n. By rows, or by panels once [`GpuCsr::prepare_spmm`] has made them: the two may differ
    /// in the order of the sums, each gives the same bits every time.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ, [`Error::Device`] when the device fails.
    pub fn spmm<T: DeviceScalar>(
        &self,
        alpha: T,
        a: &GpuCsr<T>,
        b: &GpuMat<T>,
        beta: T,
        c: &mut GpuMat<T>,
    ) -> Result<()> {
        self.check_own("spmm", "A", &a.gpu)?;
        b.expect(self, "spmm", "B", a.cols(), b.cols())?;
        c.expect(self, "spmm", "C", a.rows(), b.cols())?;
        let mut slot = a.panels.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(panels) = slot.as_mut() else {
            return self.product(alpha, &a.pattern, &a.values, b, beta, c);
        };
        if panels.version != Some(a.version) {
            a.refresh_panels(panels)?;
            panels.version = Some(a.version);
        }
        self.product_by_panels(alpha, panels, b, beta, c)
    }

    /// C = alpha A^T B + beta C. As in BLAS, `c` is not read when `beta` is 0.
    ///
    /// `a` is k x m, `b` k x n, `c` m x n. The first call makes A^T in device memory, where it stays.
    ///
    /// # Errors
    /// As [`Gpu::spmm`].
    pub fn spmm_t<T: DeviceScalar>(
        &self,
        alpha: T,
        a: &GpuCsr<T>,
        b: &GpuMat<T>,
        beta: T,
        c: &mut GpuMat<T>,
    ) -> Result<()> {
        self.check_own("spmm_t", "A", &a.gpu)?;
        b.expect(self, "spmm_t", "B", a.rows(), b.cols())?;
        c.expect(self, "spmm_t", "C", a.cols(), b.cols())?;
        a.with_transposed(|t| self.product(alpha, &t.pattern, &t.values, b, beta, c))
    }

    /// C = alpha A B + beta C of checked operands, panel by panel and chunk by chunk.
    pub(super) fn product<T: DeviceScalar>(
        &self,
        alpha: T,
        pattern: &GpuPattern,
        values: &GpuValues<T>,
        b: &GpuMat<T>,
        beta: T,
        c: &mut GpuMat<T>,
    ) -> Result<()> {
        let read_c = u32::from(beta != T::ZERO);
        let slots = pattern.chunks.iter().map(|chunk| chunk.tasks.slots).max().unwrap_or(0);
        // Partial rows are kept for as many columns at a time as a kernel can see.
        let block_bytes = sparsimd_gpu_abi::BLOCK * size_of::<T>();
        let most = self.shape::<T>().max_len * size_of::<T>() / block_bytes / slots.max(1);
        let most = most.clamp(1, c.blocks());
        let pieces: Vec<_> = pieces(b, c, most).collect();
        let tails: Vec<u32> = pieces.iter().map(|p| c.tail(p.blocks.end)).collect();
        let width = pieces.iter().map(|p| p.blocks.len()).max().unwrap_or(0);
        let team = self.team::<T>(width);
        let multiply = self.shared.kernels.get::<T, SpmmParams<T>>(SPMM, team, 0)?;
        let reduce = self.shared.kernels.get::<T, SpmmParams<T>>(REDUCE_ROWS, team, 0)?;

        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let partial = Scratch::grow(&mut scratch.partial, self.device(), slots * width * block_bytes)?.bind_mut();
        let c_strides: Vec<_> = c.parts().iter().map(|p| p.blocks.clone()).collect();
        let c_bindings: Vec<_> = c.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let device = self.device();
        let seconds = stream.record(|r| {
            for (piece, &tail) in pieces.iter().zip(&tails) {
                let (bp, cp) = (&b.parts()[piece.b], &c_strides[piece.c]);
                for (chunk, (_, val)) in pattern.chunks.iter().zip(&values.chunks) {
                    let tasks = &chunk.tasks;
                    let mut p = SpmmParams {
                        alpha,
                        beta,
                        tasks: tasks.tasks.len() as u32,
                        width: piece.blocks.len() as u32,
                        b_stride: bp.blocks.len() as u32,
                        b_offset: (piece.blocks.start - bp.blocks.start) as u32,
                        c_stride: cp.len() as u32,
                        c_offset: (piece.blocks.start - cp.start) as u32,
                        read_c,
                        tail,
                    };
                    let bindings = [
                        tasks.tasks.bind(),
                        chunk.idx.bind(),
                        chunk.idx.bind(),
                        val.bind(),
                        val.bind(),
                        bp.bind(),
                        c_bindings[piece.c],
                        partial,
                    ];
                    let tiles = piece.blocks.len().div_ceil(team.blocks());
                    let per_group = (WORKGROUP / team.lanes) as usize;
                    // SAFETY: tasks name rows of C and nonzeros of the chunk, indices are below B's rows, the block range lies
                    // in both panels and there is a partial row for each slot.
                    unsafe { r.launch(&multiply, &bindings, &p, groups(device, tasks.tasks.len(), per_group, tiles)) }?;
                    if tasks.slots == 0 {
                        continue;
                    }
                    r.barrier();
                    p.tasks = tasks.cut.len() as u32;
                    let bindings = [tasks.cut.bind(), partial, partial, c_bindings[piece.c]];
                    let items = tasks.cut.len() * piece.blocks.len();
                    // SAFETY: as above; each cut row's slots were written by the launch before the barrier.
                    unsafe { r.launch(&reduce, &bindings, &p, groups(device, items, WORKGROUP as usize, 1)) }?;
                    // The next launch writes the same partial rows.
                    r.barrier();
                }
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }
}

/// Blocks that lie in one panel of B and one of C.
pub(super) struct Piece {
    pub(super) b: usize,
    pub(super) c: usize,
    pub(super) blocks: std::ops::Range<usize>,
}

/// All of them, cut to at most `most` blocks.
pub(super) fn pieces<T: DeviceScalar>(b: &GpuMat<T>, c: &GpuMat<T>, most: usize) -> impl Iterator<Item = Piece> {
    b.parts().iter().enumerate().flat_map(move |(ib, pb)| {
        c.parts().iter().enumerate().flat_map(move |(ic, pc)| {
            let (start, end) = (pb.blocks.start.max(pc.blocks.start), pb.blocks.end.min(pc.blocks.end));
            (start..end.max(start)).step_by(most).map(move |s| Piece { b: ib, c: ic, blocks: s..(s + most).min(end) })
        })
    })
}
