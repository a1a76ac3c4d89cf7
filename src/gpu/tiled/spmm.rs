//! SpMM by panels.

use sparsimd_gpu_abi::{BLOCK, SpmmParams, Tiled};

use super::GpuPanels;
use crate::error::{Error, Result};
use crate::gpu::kernels::{REDUCE_ROWS, SPMM_TILED, groups};
use crate::gpu::operands::{GpuMat, Panel};
use crate::gpu::pieces::{pieces, reduce_rows, widest};
use crate::gpu::{DeviceStored, Gpu, Scratch, State};
use crate::plan::Op;

impl Gpu {
    /// C = alpha A B + beta C of checked operands, A by panels.
    pub(in crate::gpu) fn product_by_panels<D: DeviceStored>(
        &self,
        alpha: D::Sum,
        panels: &GpuPanels<D::Sum>,
        b: &GpuMat<D>,
        beta: D::Sum,
        c: &mut GpuMat<D>,
    ) -> Result<()> {
        let count = panels.host_rows.len();
        let tiling = panels.tiling(self, Op::Spmm, widest(&pieces(b, c, c.blocks())));
        let slots = panels.slots(&tiling);
        // Partial rows are kept for as many columns at a time as a kernel can see.
        let most = (self.shape::<D>().max_len / BLOCK / slots.max(1)).clamp(1, c.blocks());
        let pieces = pieces(b, c, most);
        let multiply = self.shared.kernels.special::<D, Tiled<SpmmParams<D::Sum>>>(SPMM_TILED, tiling.into())?;
        let reduce = self.shared.kernels.get::<D, SpmmParams<D::Sum>>(REDUCE_ROWS, tiling.team, 0)?;
        let (cut, walk) = (panels.cut(&tiling), panels.walk(&tiling));
        let [rows, ptr, columns] = panels.pattern();
        let outputs: Vec<_> = c.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let bytes = slots * widest(&pieces) * BLOCK * size_of::<D::Sum>();
        let partial = Scratch::grow(&mut scratch.partial, self.device(), bytes)?.bind_mut();
        let seconds = stream.record(|r| {
            for piece in &pieces {
                let p = Tiled { of: piece.product(alpha, beta, count), walk };
                let (b, c) = (b.parts()[piece.b].bind(), outputs[piece.c]);
                let bindings = [rows, ptr, columns, panels.values.bind(), b, c, partial];
                let tiles = piece.blocks.len().div_ceil(tiling.team.blocks());
                // SAFETY: panels name rows of C, granules cover the rows of B and a span of them fits workgroup memory, the block
                // range lies in both panels of columns, and there is a partial row for each row of a panel and part.
                unsafe { r.launch(&multiply, &bindings, &p, groups(self.device(), tiling.groups, 1, tiles)) }?;
                if let Some(cut) = cut {
                    // SAFETY: every row of a panel has its parts' partial rows.
                    unsafe { reduce_rows(r, self.device(), &reduce, cut, p.of, [partial, partial, c]) }?;
                }
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }
}
