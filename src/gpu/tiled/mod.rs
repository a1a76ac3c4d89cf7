//! Dense patterns: panels of four rows, B in workgroup memory.

mod fusedmm;
mod sddmm;
mod spmm;

use std::collections::HashMap;
use std::sync::PoisonError;

use sparsimd_gpu_abi::{BLOCK, TILE_BYTES, WORKGROUP};
use sparsimd_gpu_host::Buffer;

use super::kernels::{GATHER, groups};
use super::panels::GpuPanels;
use super::sparse::GpuCsr;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::{DevicePanels, Op, PlanOptions, Strategy, Team, device_panels_pay};

impl<T: DeviceScalar> GpuCsr<T> {
    /// Prepares many runs of the operation of `options`: lays the nonzeros out by panels of four rows, beside the rows
    /// that the other operations use. Then B (and D) go through workgroup memory, and one load of them serves all rows of a
    /// panel that have its column. [`Strategy::Auto`] does so where it pays by [`device_panels_pay`] and memory is left, [`Strategy::Panel`]
    /// always; [`Strategy::Direct`] undoes it for this operation. Answers how the operation runs from now on: [`Strategy::Panel`] or
    /// [`Strategy::Direct`]. All operations share one layout.
    /// New values ([`GpuCsr::set_values`]) are laid out on the device at the next run that reads them.
    ///
    /// SpMM and SDDMM may then be run with any number of columns. FusedMM goes by panels only where a team has rows of C and E in
    /// registers and workgroup memory has rows of B and D: up to 128 columns of 32 bits (64 with subgroups of four lanes) or 64 of
    /// 64 bits; wider operands go as if nothing was prepared. A^T has no panels.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense operands have no columns, [`Error::Unavailable`] when panels are asked for and the operation has none, the rows
    /// are too wide or the matrix is too large for them, [`Error::Device`] when the device fails or its memory runs out.
    #[inline(never)]
    pub fn prepare(&self, options: &PlanOptions) -> Result<Strategy> {
        let &PlanOptions { op, n, strategy, .. } = options;
        if n == 0 {
            return Err(Error::argument("n", "a dense operand needs a column".to_owned()));
        }
        let mut slot = self.panels.lock().unwrap_or_else(PoisonError::into_inner);
        slot.serves.retain(|&other| other != op);
        let wanted = match strategy {
            Strategy::Direct => false,
            Strategy::Panel => true,
            Strategy::Auto => device_panels_pay(self.rows(), self.cols(), self.nnz()),
        };
        let made = match wanted {
            false => Ok(false),
            true => match self.gpu.panels_refused::<T>(op, n.div_ceil(BLOCK)) {
                None if slot.layout.is_some() => Ok(true),
                None => self.lay_out(strategy == Strategy::Panel).map(|layout| {
                    slot.layout = layout;
                    slot.layout.is_some()
                }),
                Some(_) if strategy == Strategy::Auto => Ok(false),
                Some(why) => Err(self.no_panels(&why)),
            },
        };
        if matches!(made, Ok(true)) {
            slot.serves.push(op);
        }
        if slot.serves.is_empty() {
            slot.layout = None;
        }
        Ok(if made? { Strategy::Panel } else { Strategy::Direct })
    }

    fn no_panels(&self, why: &str) -> Error {
        let detail = format!("{}: {} nonzeros {why}", self.gpu.info().name, self.nnz());
        Error::Unavailable { what: "a matrix by panels", detail }
    }

    /// The panels; `None` where they do not fit, an error then if they `must`.
    fn lay_out(&self, must: bool) -> Result<Option<GpuPanels<T>>> {
        let gpu = &self.gpu;
        let refused = |why: &str| if must { Err(self.no_panels(why)) } else { Ok(None) };
        if self.chunks() > 1 {
            return refused("are more than a kernel can see");
        }
        let pattern = self.pattern();
        let Some(host) = DevicePanels::new(pattern.row_ptr(), pattern.col_idx(), self.cols(), gpu.shape::<T>().max_len)
        else {
            return refused("are more than a kernel can see by panels");
        };
        let bytes = host.order.len() * (4 + size_of::<T>()) + 8 * host.columns.len() + 4 * host.ptr.len();
        // The dense operands want the other half.
        if !must && bytes as u64 > gpu.memory_left() / 2 {
            return Ok(None);
        }
        fn uploaded<W: sparsimd_gpu_host::Pod>(gpu: &Gpu, data: &[W]) -> Result<Buffer<W>> {
            let mut buffer = Buffer::new(gpu.device(), data.len(), "panels")?;
            gpu.timed_upload(|s| s.stream.upload(&mut buffer, 0, data))?;
            Ok(buffer)
        }
        Ok(Some(GpuPanels {
            rows: uploaded(gpu, &host.rows)?,
            ptr: uploaded(gpu, &host.ptr)?,
            columns: uploaded(gpu, &host.columns)?,
            order: uploaded(gpu, &host.order)?,
            values: Buffer::new(gpu.device(), host.order.len(), "values by panels")?,
            version: None,
            cut: HashMap::new(),
            granules: host.granules,
            cols: self.cols(),
            host_rows: host.rows,
        }))
    }

    /// Brings the panels' values up to date.
    #[inline(never)]
    pub(super) fn refresh_panels(&self, panels: &mut GpuPanels<T>) -> Result<()> {
        if panels.version == Some(self.version) {
            return Ok(());
        }
        let (n, gpu) = (panels.order.len(), &self.gpu);
        // Without rows there is no chunk, and nothing to gather.
        if let [(_, values)] = self.values.chunks.as_slice() {
            let gather = gpu.shared.kernels.get::<T, u32>(GATHER, Team { lanes: 4, registers: 1 }, 0)?;
            let bindings = [panels.order.bind(), values.bind(), panels.values.bind_mut()];
            let groups = groups(gpu.device(), n, WORKGROUP as usize, 1);
            let seconds = gpu.state().stream.record(|r| {
                // SAFETY: the order names nonzeros of the one chunk, or nothing, and has an element for each value.
                unsafe { r.launch(&gather, &bindings, &(n as u32), groups) }?;
                Ok::<_, Error>(())
            })?;
            gpu.note_kernel(seconds);
        }
        panels.version = Some(self.version);
        Ok(())
    }
}

impl Gpu {
    /// Why `op` on rows of so many blocks has no panels here, if so.
    fn panels_refused<T: DeviceScalar>(&self, op: Op, blocks: usize) -> Option<String> {
        match op {
            Op::Spmm | Op::Sddmm => None,
            Op::SpmmTransposed => Some("have no panels for the product with A^T".to_owned()),
            Op::FusedMm => (!self.fuses_by_panels::<T>(blocks))
                .then(|| format!("have no panels for FusedMM on {} columns", blocks * BLOCK)),
        }
    }

    /// Whether FusedMM on rows of at most so many blocks goes by panels.
    pub(super) fn fuses_by_panels<T: DeviceScalar>(&self, blocks: usize) -> bool {
        self.info().shared_memory as usize >= 2 * TILE_BYTES
            && blocks <= DevicePanels::widest(Op::FusedMm, size_of::<T>(), self.shape::<T>())
    }
}
