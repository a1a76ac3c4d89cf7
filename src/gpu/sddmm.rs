//! SDDMM on the device.

use sparsimd_gpu_abi::{SddmmParams, WORKGROUP};

use super::kernels::{SDDMM, groups};
use super::operands::{GpuMat, GpuValues};
use super::pieces::{pieces, widest};
use super::prepare::GpuOperand;
use super::{DeviceStored, Gpu};
use crate::error::{Error, Result};
use crate::plan::Op;

impl Gpu {
    /// out_p = C_i . B_j for the nonzeros (i, j) of A in CSR order.
    ///
    /// `a` is m x k, `c` m x n, `b` k x n, `out` made by [`GpuCsr::new_values`](super::GpuCsr::new_values). By rows, or by the
    /// panels that [`Gpu::prepare`] made: the two may differ in the order of the sums, each gives the same bits every time.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ or A was prepared for another operation,
    /// [`Error::Device`] when the device fails.
    pub fn sddmm<'a, D: DeviceStored>(
        &self,
        a: impl Into<GpuOperand<'a, D::Sum>>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        self.sampled("sddmm", a.into(), false, c, b, out)
    }

    /// out_p = a_p C_i . B_j for the nonzeros (i, j) of A in CSR order.
    ///
    /// # Errors
    /// As [`Gpu::sddmm`].
    pub fn sddmm_scaled<'a, D: DeviceStored>(
        &self,
        a: impl Into<GpuOperand<'a, D::Sum>>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        self.sampled("sddmm_scaled", a.into(), true, c, b, out)
    }

    #[inline(never)]
    pub(crate) fn sampled<D: DeviceStored>(
        &self,
        op: &'static str,
        operand: GpuOperand<'_, D::Sum>,
        scaled: bool,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        let a = operand.matrix();
        self.check_own(op, "A", &a.gpu)?;
        c.expect(self, op, "C", a.rows(), c.cols())?;
        b.expect(self, op, "B", a.cols(), c.cols())?;
        a.expect_values(op, out)?;
        if let Some(panels) = operand.panels_for::<D>(Op::Sddmm)? {
            return self.sampled_by_panels(panels, &a.values, scaled, c, b, out);
        }
        // Where C and B are cut at different columns, each common piece adds its share of the dot products.
        let pieces = pieces(b, c, c.blocks());
        let team = self.team::<D>(widest(&pieces));
        let kernel = self.shared.kernels.get::<D, SddmmParams<D::Sum>>(SDDMM, team, 0)?;
        let outputs: Vec<_> = out.chunks.iter_mut().map(|(_, buffer)| buffer.bind_mut()).collect();
        let seconds = self.state().stream.record(|r| {
            for (i, piece) in pieces.iter().enumerate() {
                if i > 0 {
                    r.barrier();
                }
                let (c, b) = (c.parts()[piece.c].bind(), b.parts()[piece.b].bind());
                for ((chunk, (_, val)), &output) in a.pattern.chunks.iter().zip(&a.values.chunks).zip(&outputs) {
                    let tasks = &chunk.tasks.tasks;
                    let p = piece.sampled::<D::Sum>(tasks.len(), scaled, i > 0);
                    let bindings = [tasks.bind(), chunk.idx.bind(), val.bind(), c, b, output];
                    let groups = groups(self.device(), tasks.len(), (WORKGROUP / team.lanes) as usize, 1);
                    // SAFETY: tasks name rows of C and nonzeros of the chunk, indices (and the padding's zeros, read only beside
                    // a nonzero) are below B's rows, the block range lies in both panels.
                    unsafe { r.launch(&kernel, &bindings, &p, groups) }?;
                }
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}
