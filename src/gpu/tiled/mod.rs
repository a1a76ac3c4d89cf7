//! Dense patterns: panels of four rows, B in workgroup memory.

mod fusedmm;
mod sddmm;
mod spmm;

use sparsimd_gpu_abi::{BLOCK, TILE_BYTES, Walk};
use sparsimd_gpu_host::{Binding, Buffer};

use super::kernels::Special;
use super::operands::GpuValues;
use super::{DeviceScalar, Gpu};
use crate::error::Result;
use crate::formats::Pattern;
use crate::plan::{DevicePanels, DeviceShape, Op, Tiling};

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
    /// The parts that the columns are cut into where the prepared launch has several, and the rows that are added after it.
    cut: Option<(usize, Buffer<[u32; 4]>)>,
}

/// Panels, or the reason why there are none.
pub(super) enum Panels<T> {
    Made(Box<GpuPanels<T>>),
    Refused(String),
}

impl<T: DeviceScalar> GpuPanels<T> {
    /// The panels of `pattern` for `op` on `n` columns, without values; refused where they would have more than `bytes` bytes.
    pub(super) fn lay_out(gpu: &Gpu, pattern: &Pattern, op: Op, n: usize, bytes: u64) -> Result<Panels<T>> {
        let blocks = n.div_ceil(BLOCK);
        if let Some(why) = gpu.panels_refused::<T>(op, blocks) {
            return Ok(Panels::Refused(why));
        }
        let shape = gpu.shape::<T>();
        let Some(host) = DevicePanels::new(pattern.row_ptr(), pattern.col_idx(), pattern.cols(), shape.max_len) else {
            return Ok(Panels::Refused("are more than a kernel can see by panels".to_owned()));
        };
        let needed = host.order.len() * (4 + size_of::<T>()) + 8 * host.columns.len() + 4 * host.ptr.len();
        if needed as u64 > bytes {
            return Ok(Panels::Refused(format!("by panels take {needed} bytes; {bytes} are left")));
        }
        fn uploaded<W: sparsimd_gpu_host::Pod>(gpu: &Gpu, data: &[W]) -> Result<Buffer<W>> {
            let mut buffer = Buffer::new(gpu.device(), data.len(), "panels")?;
            gpu.timed_upload(|s| s.stream.upload(&mut buffer, 0, data))?;
            Ok(buffer)
        }
        // SDDMM has no partial rows to add.
        let parts = launch::<T>(op, &host.rows, host.granules, blocks, shape).parts;
        let cut = match parts > 1 && op != Op::Sddmm {
            true => Some((parts, uploaded(gpu, &DevicePanels::cut(&host.rows, parts))?)),
            false => None,
        };
        Ok(Panels::Made(Box::new(Self {
            rows: uploaded(gpu, &host.rows)?,
            ptr: uploaded(gpu, &host.ptr)?,
            columns: uploaded(gpu, &host.columns)?,
            order: uploaded(gpu, &host.order)?,
            values: Buffer::new(gpu.device(), host.order.len(), "values by panels")?,
            cut,
            granules: host.granules,
            cols: pattern.cols(),
            host_rows: host.rows,
        })))
    }

    /// Takes `values`, in CSR order of the pattern, in the order of the panels.
    pub(super) fn arrange(&mut self, gpu: &Gpu, values: &GpuValues<T>) -> Result<()> {
        // Without rows there is no chunk, and nothing to gather.
        let [(_, values)] = values.chunks.as_slice() else { return Ok(()) };
        // SAFETY: the order names nonzeros of the one chunk, or nothing, and has an element for each value.
        unsafe { gpu.gather::<T>(&self.order, values.bind(), self.values.bind_mut()) }
    }

    /// Rows, pointers and columns, as every tiled kernel binds them first.
    fn pattern(&self) -> [Binding<'_>; 3] {
        [self.rows.bind(), self.ptr.bind(), self.columns.bind()]
    }

    /// How `op` is launched on rows of `blocks` blocks. Where partial rows are added: in the parts that were prepared, or in one.
    fn tiling(&self, gpu: &Gpu, op: Op, blocks: usize) -> Tiling {
        let tiling = launch::<T>(op, &self.host_rows, self.granules, blocks, gpu.shape::<T>());
        let prepared = self.cut.as_ref().map_or(1, |&(parts, _)| parts);
        if op == Op::Sddmm || tiling.parts == prepared { tiling } else { tiling.undivided() }
    }

    /// The rows that are added after a launch of several parts.
    fn cut(&self, tiling: &Tiling) -> Option<&Buffer<[u32; 4]>> {
        self.cut.as_ref().filter(|_| tiling.parts > 1).map(|(_, rows)| rows)
    }

    fn walk(&self, tiling: &Tiling) -> Walk {
        Walk { granules: self.granules as u32, span: tiling.span as u32, b_rows: self.cols as u32, zero: 0 }
    }

    /// Partial rows of a launch.
    fn slots(&self, tiling: &Tiling) -> usize {
        if tiling.parts > 1 { 4 * self.host_rows.len() * tiling.parts } else { 0 }
    }
}

/// How `op` on panels of these rows is launched with dense rows of `blocks` blocks.
fn launch<T>(op: Op, rows: &[[u32; 4]], granules: usize, blocks: usize, shape: DeviceShape) -> Tiling {
    DevicePanels::tiling(op, rows.len(), granules, blocks, size_of::<T>(), shape)
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
