//! SDDMM on the device.

use sparsimd_gpu_abi::{SddmmParams, WORKGROUP};

use super::kernels::{SDDMM, groups};
use super::operands::{GpuMat, GpuValues};
use super::pieces::{pieces, widest};
use super::sparse::GpuCsr;
use super::{DeviceStored, Gpu};
use crate::error::{Error, Result};
use crate::plan::Team;

impl Gpu {
    /// out_p = C_i . B_j for the nonzeros (i, j) of A in CSR order.
    ///
    /// `a` is m x k, `c` m x n, `b` k x n, `out` made by [`GpuCsr::new_values`]. The same bits every time.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ, [`Error::Device`] when the device fails.
    pub fn sddmm<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        self.sampled("sddmm", a, false, c, b, out)
    }

    /// out_p = a_p C_i . B_j for the nonzeros (i, j) of A in CSR order.
    ///
    /// # Errors
    /// As [`Gpu::sddmm`].
    pub fn sddmm_scaled<D: DeviceStored>(
        &self,
        a: &GpuCsr<D::Sum>,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        self.sampled("sddmm_scaled", a, true, c, b, out)
    }

    #[inline(never)]
    pub(crate) fn sampled<D: DeviceStored>(
        &self,
        op: &'static str,
        a: &GpuCsr<D::Sum>,
        scaled: bool,
        c: &GpuMat<D>,
        b: &GpuMat<D>,
        out: &mut GpuValues<D::Sum>,
    ) -> Result<()> {
        self.check_own(op, "A", &a.gpu)?;
        c.expect(self, op, "C", a.rows(), c.cols())?;
        b.expect(self, op, "B", a.cols(), c.cols())?;
        a.expect_values(op, out)?;
        // Where C and B are cut at different columns, each common piece adds its share of the dot products.
        let pieces = pieces(b, c, c.blocks());
        let team = Team::of_dots(widest(&pieces), self.shape::<D>());
        let tasks = a.pattern.tasks_for(self, team.lanes)?;
        let kernel = self.shared.kernels.get::<D, SddmmParams<D::Sum>>(SDDMM, team, 0)?;
        let outputs: Vec<_> = out.chunks.iter_mut().map(|(_, buffer)| buffer.bind_mut()).collect();
        let seconds = self.state().stream.record(|r| {
            for (i, piece) in pieces.iter().enumerate() {
                if i > 0 {
                    r.barrier();
                }
                let (c, b) = (c.parts()[piece.c].bind(), b.parts()[piece.b].bind());
                let chunks = a.pattern.chunks.iter().zip(&*tasks).zip(&a.values.chunks);
                for (((chunk, tasks), (_, val)), &output) in chunks.zip(&outputs) {
                    let tasks = &tasks.tasks;
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
