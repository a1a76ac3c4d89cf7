//! FusedMM by panels.

use sparsimd_gpu_abi::{BLOCK, FusedParams, SpmmParams, Tiled};
use sparsimd_kernels::Number;

use super::GpuPanels;
use crate::error::{Error, Result};
use crate::gpu::edge::EdgeKind;
use crate::gpu::fusedmm::params;
use crate::gpu::kernels::{FUSEDMM_TILED, REDUCE_ROWS, Special, groups};
use crate::gpu::operands::GpuMat;
use crate::gpu::pieces::{pieces, reduce_rows};
use crate::gpu::{DeviceStored, Gpu, Scratch, State};
use crate::plan::Op;

impl Gpu {
    /// FusedMM of checked operands of one panel of columns each, which [`Gpu::fuses_by_panels`] allows; A by panels.
    pub(in crate::gpu) fn fused_by_panels<D: DeviceStored>(
        &self,
        panels: &GpuPanels<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        d: &GpuMat<D>,
        e: &mut GpuMat<D>,
    ) -> Result<()> {
        let mut tiling = panels.tiling(self, Op::FusedMm, c.blocks().max(d.blocks()));
        if panels.slots(&tiling) * d.blocks() * BLOCK > self.shape::<D>().max_len {
            tiling = tiling.undivided();
        }
        let slots = panels.slots(&tiling);
        let special = Special { variant: edge.variant(), ..tiling.into() };
        let fuse = self.shared.kernels.special::<D, Tiled<FusedParams<D::Sum>>>(FUSEDMM_TILED, special)?;
        let reduce = self.shared.kernels.get::<D, SpmmParams<D::Sum>>(REDUCE_ROWS, tiling.team, special.variant)?;
        let cut = panels.cut(&tiling);
        let of = params(edge, panels.host_rows.len(), [c, b, d, e]);
        let p = Tiled { of, walk: panels.walk(&tiling) };
        let sums = pieces(d, e, e.blocks()).into_iter().next().map(|piece| piece.product(D::Sum::ONE, D::Sum::ZERO, 0));
        let [rows, ptr, columns] = panels.pattern();
        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let bytes = slots * d.blocks() * BLOCK * size_of::<D::Sum>();
        let partial = Scratch::grow(&mut scratch.partial, self.device(), bytes)?.bind_mut();
        let stats = Scratch::grow(&mut scratch.stats, self.device(), 2 * slots * size_of::<D::Sum>())?.bind_mut();
        let [c, b, d] = [c, b, d].map(|m| m.parts()[0].bind());
        let output = e.parts_mut()[0].bind_mut();
        let bindings = [rows, ptr, columns, panels.values.bind(), c, b, d, output, partial, stats];
        let seconds = stream.record(|r| {
            // SAFETY: panels name rows of C and E, granules cover the rows of B and D and a span of both fits workgroup memory, rows
            // fit a team's registers, all operands are of one panel of columns, and there are a partial row and a pair of numbers
            // for each row of a panel and part.
            unsafe { r.launch(&fuse, &bindings, &p, groups(self.device(), tiling.groups, 1, 1)) }?;
            if let (Some(cut), Some(sums)) = (cut, sums) {
                // SAFETY: every row of a panel has its parts' partial rows and numbers.
                unsafe { reduce_rows(r, self.device(), &reduce, cut, sums, [partial, stats, output]) }?;
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }
}
