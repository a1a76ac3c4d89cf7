//! Dense patterns: panels of four rows, B in workgroup memory.

mod fusedmm;
mod sddmm;
mod spmm;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::PoisonError;

use sparsimd_gpu_abi::{BLOCK, TILE_BYTES, WORKGROUP, Walk};
use sparsimd_gpu_host::{Binding, Buffer};

use super::kernels::{GATHER, Special, groups};
use super::sparse::GpuCsr;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::plan::{DevicePanels, Op, PlanOptions, Strategy, Team, Tiling, device_panels_pay};

/// A matrix by panels, in device memory beside the rows.
pub(super) struct GpuPanels<T> {
    host_rows: Vec<[u32; 4]>,
    granules: usize,
    /// Columns of the matrix.
    cols: usize,
    rows: Buffer<[u32; 4]>,
    ptr: Buffer<u32>,
    columns: Buffer<[u32; 2]>,
    /// Which nonzero each value is.
    order: Buffer<u32>,
    values: Buffer<T>,
    /// Of the values; `None` before the first use.
    version: Option<u64>,
    /// What to add for each number of parts that was used.
    cut: HashMap<usize, Buffer<[u32; 4]>>,
}

/// The panels of a matrix, and which operations go by them.
pub(super) struct Prepared<T> {
    layout: Option<GpuPanels<T>>,
    serves: Vec<Op>,
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self { layout: None, serves: Vec::new() }
    }
}

impl<T> Prepared<T> {
    /// The panels, where `op` goes by them.
    pub(super) fn serving(&mut self, op: Op) -> Option<&mut GpuPanels<T>> {
        self.layout.as_mut().filter(|_| self.serves.contains(&op))
    }
}

impl<T: DeviceScalar> GpuCsr<T> {
    /// Prepares many runs of the operation of `options`: lays the nonzeros out by panels of four rows, beside the rows
    /// that the other operations use. Then B (and D) go through workgroup memory, and one load of them serves all rows of a
    /// panel that have its column. [`Strategy::Auto`] does so where it pays by [`device_panels_pay`] and memory is left, [`Strategy::Panel`]
    /// always; [`Strategy::Direct`] undoes it for this operation. Tells whether the operation goes by panels now. All operations share one layout.
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
    pub fn prepare(&self, options: &PlanOptions) -> Result<bool> {
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
        made
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

impl<T: DeviceScalar> GpuPanels<T> {
    /// Rows, pointers and columns, as every tiled kernel binds them first.
    fn pattern(&self) -> [Binding<'_>; 3] {
        [self.rows.bind(), self.ptr.bind(), self.columns.bind()]
    }

    /// How `op` is launched on rows of `blocks` blocks.
    fn tiling(&self, gpu: &Gpu, op: Op, blocks: usize) -> Tiling {
        DevicePanels::tiling(op, self.host_rows.len(), self.granules, blocks, size_of::<T>(), gpu.shape::<T>())
    }

    fn walk(&self, tiling: &Tiling) -> Walk {
        Walk { granules: self.granules as u32, span: tiling.span as u32, b_rows: self.cols as u32, zero: 0 }
    }

    /// Partial rows of a launch.
    fn slots(&self, tiling: &Tiling) -> usize {
        if tiling.parts > 1 { 4 * self.host_rows.len() * tiling.parts } else { 0 }
    }

    /// Makes what to add where panels have parts.
    fn cut(&mut self, gpu: &Gpu, tiling: &Tiling) -> Result<()> {
        let parts = tiling.parts;
        if let (true, Entry::Vacant(free)) = (parts > 1, self.cut.entry(parts)) {
            let rows = DevicePanels::cut(&self.host_rows, parts);
            let mut buffer = Buffer::new(gpu.device(), rows.len(), "tasks")?;
            gpu.timed_upload(|s| s.stream.upload(&mut buffer, 0, &rows))?;
            free.insert(buffer);
        }
        Ok(())
    }
}

impl From<Tiling> for Special {
    fn from(tiling: Tiling) -> Self {
        Self { parts: tiling.parts as u32, ..Self::from(tiling.team) }
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
