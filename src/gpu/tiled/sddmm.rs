//! SDDMM by panels.

use sparsimd_gpu_abi::{SddmmParams, Tiled};

use super::GpuPanels;
use crate::error::{Error, Result};
use crate::gpu::kernels::{SDDMM_TILED, groups};
use crate::gpu::operands::{GpuMat, GpuValues};
use crate::gpu::pieces::{pieces, widest};
use crate::gpu::{DeviceStored, Gpu};
use crate::plan::Op;

impl Gpu {
    /// SDDMM of checked operands, A by panels; `values` are those of A, read where the result is `scaled` by them.
    pub(in crate::gpu) fn sampled_by_panels<D: DeviceStored>(
        &self,
        panels: &GpuPanels<D::Sum>,
        values: &GpuValues<D::Sum>,
        scaled: bool,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        let ([(_, values)], [(_, out)]) = (values.chunks.as_slice(), out.chunks.as_mut_slice()) else {
            // Without rows there is no chunk, and no dot product.
            return Ok(());
        };
        let tiling = panels.tiling(self, Op::Sddmm, widest(&pieces(b, c, c.blocks())));
        // Dot products of wider rows are summed by launches that follow each other.
        let pieces = pieces(b, c, tiling.team.blocks());
        let kernel = self.shared.kernels.special::<D, Tiled<SddmmParams<D::Sum>>>(SDDMM_TILED, tiling.into())?;
        let walk = panels.walk(&tiling);
        let [rows, ptr, columns] = panels.pattern();
        let output = out.bind_mut();
        let groups = groups(self.device(), tiling.groups, 1, 1);
        let seconds = self.state().stream.record(|r| {
            for (i, piece) in pieces.iter().enumerate() {
                if i > 0 {
                    r.barrier();
                }
                let of = piece.sampled::<D::Sum>(panels.host_rows.len(), scaled, i > 0);
                let (c, b) = (c.parts()[piece.c].bind(), b.parts()[piece.b].bind());
                let bindings = [rows, ptr, columns, panels.order.bind(), values.bind(), c, b, output];
                // SAFETY: panels name rows of C, the order nonzeros of the one chunk or nothing, granules cover the rows of B and
                // a span of them fits workgroup memory; the block range lies in both panels of columns and in a team's registers.
                unsafe { r.launch(&kernel, &bindings, &Tiled { of, walk }, groups) }?;
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}
