//! SpMM of dense patterns: panels of four rows, B in workgroup memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::PoisonError;

use sparsimd_gpu_abi::{BLOCK, SpmmParams, TILE_BYTES, TiledParams, WORKGROUP};
use sparsimd_gpu_host::Buffer;

use super::kernels::{GATHER, REDUCE_ROWS, SPMM_TILED, Special, groups};
use super::operands::{GpuMat, Panel};
use super::sparse::GpuCsr;
use super::spmm::pieces;
use super::{DeviceScalar, Gpu, Scratch, State};
use crate::error::{Error, Result};
use crate::plan::{DevicePanels, Path, Team, device_panels_pay};

/// A matrix by panels, in device memory beside the rows.
pub(super) struct GpuPanels<T> {
    host_rows: Vec<[u32; 4]>,
    granules: usize,
    rows: Buffer<[u32; 4]>,
    ptr: Buffer<u32>,
    columns: Buffer<[u32; 2]>,
    /// Which nonzero each value is.
    order: Buffer<u32>,
    values: Buffer<T>,
    /// Of the values; `None` before the first use.
    pub(super) version: Option<u64>,
    /// What to add for each number of parts that was used.
    cut: HashMap<usize, Buffer<[u32; 4]>>,
}

impl<T: DeviceScalar> GpuCsr<T> {
    /// Lays the nonzeros out by panels of four rows for [`Gpu::spmm`], beside the rows that the other operations use: then B
    /// goes through workgroup memory, and one load of it serves all rows of a panel that have its column. [`Path::Auto`] does so
    /// where it pays by [`device_panels_pay`] and memory is left, [`Path::Panel`] always; [`Path::Direct`] undoes it. Tells
    /// whether there are panels now. New values ([`GpuCsr::set_values`]) are laid out on the device at the next product.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when panels are asked for and the matrix is too large for them, [`Error::Device`] when the device
    /// fails or its memory runs out.
    pub fn prepare_spmm(&self, path: Path) -> Result<bool> {
        let mut slot = self.panels.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = match path {
            Path::Direct => false,
            Path::Panel => true,
            _ => device_panels_pay(self.rows(), self.cols(), self.nnz()),
        };
        if !wanted {
            *slot = None;
            return Ok(false);
        }
        if slot.is_none() {
            *slot = self.lay_out(path == Path::Panel)?;
        }
        Ok(slot.is_some())
    }

    /// The panels; `None` where they do not fit, an error then if they `must`.
    fn lay_out(&self, must: bool) -> Result<Option<GpuPanels<T>>> {
        let gpu = &self.gpu;
        let refused = |why: &str| match must {
            false => Ok(None),
            true => {
                let detail = format!("{}: {} nonzeros {why}", gpu.info().name, self.nnz());
                Err(Error::Unavailable { what: "a matrix by panels", detail })
            }
        };
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
            host_rows: host.rows,
        }))
    }

    /// Brings the panels' values up to date.
    pub(super) fn refresh_panels(&self, panels: &mut GpuPanels<T>) -> Result<()> {
        let (n, gpu) = (panels.order.len(), &self.gpu);
        let [(_, values)] = self.values.chunks.as_slice() else {
            // No rows at all: nothing to gather.
            return Ok(());
        };
        let gather = gpu.shared.kernels.get::<T, u32>(GATHER, Team { lanes: 4, registers: 1 }, 0)?;
        let bindings = [panels.order.bind(), values.bind(), panels.values.bind_mut()];
        let groups = groups(gpu.device(), n, WORKGROUP as usize, 1);
        let seconds = gpu.state().stream.record(|r| {
            // SAFETY: the order names nonzeros of the one chunk, or nowhere, and has an element for each value.
            unsafe { r.launch(&gather, &bindings, &(n as u32), groups) }?;
            Ok::<_, Error>(())
        })?;
        gpu.note_kernel(seconds);
        Ok(())
    }
}

impl Gpu {
    /// C = alpha A B + beta C of checked operands, A by panels.
    pub(super) fn product_by_panels<T: DeviceScalar>(
        &self,
        alpha: T,
        panels: &mut GpuPanels<T>,
        b: &GpuMat<T>,
        beta: T,
        c: &mut GpuMat<T>,
    ) -> Result<()> {
        let block_bytes = BLOCK * size_of::<T>();
        let (count, granules, shape) = (panels.host_rows.len(), panels.granules, self.shape::<T>());
        let widest = |pieces: &[super::spmm::Piece]| pieces.iter().map(|p| p.blocks.len()).max().unwrap_or(0);
        let whole: Vec<_> = pieces(b, c, c.blocks()).collect();
        let tiling = DevicePanels::tiling(count, granules, widest(&whole), TILE_BYTES / block_bytes, shape);
        let slots = if tiling.parts > 1 { 4 * count * tiling.parts } else { 0 };
        // Partial rows are kept for as many columns at a time as a kernel can see.
        let most = (shape.max_len / BLOCK / slots.max(1)).clamp(1, c.blocks());
        let pieces: Vec<_> = pieces(b, c, most).collect();
        let width = widest(&pieces);
        let special = Special { parts: tiling.parts as u32, ..Special::from(tiling.team) };
        let multiply = self.shared.kernels.special::<T, TiledParams<T>>(SPMM_TILED, special)?;
        let reduce = self.shared.kernels.get::<T, SpmmParams<T>>(REDUCE_ROWS, tiling.team, 0)?;
        let cut = match panels.cut.entry(tiling.parts) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(free) => {
                let rows = DevicePanels::cut(&panels.host_rows, tiling.parts);
                let mut buffer = Buffer::new(self.device(), rows.len(), "tasks")?;
                self.timed_upload(|s| s.stream.upload(&mut buffer, 0, &rows))?;
                free.insert(buffer)
            }
        };
        let tails: Vec<u32> = pieces.iter().map(|p| c.tail(p.blocks.end)).collect();
        let c_strides: Vec<_> = c.parts().iter().map(|p| p.blocks.clone()).collect();
        let c_bindings: Vec<_> = c.parts_mut().iter_mut().map(Panel::bind_mut).collect();
        let mut state = self.state();
        let State { stream, scratch } = &mut *state;
        let partial = Scratch::grow(&mut scratch.partial, self.device(), slots * width * block_bytes)?.bind_mut();
        let seconds = stream.record(|r| {
            for (piece, &tail) in pieces.iter().zip(&tails) {
                let (bp, cp) = (&b.parts()[piece.b], &c_strides[piece.c]);
                let blocks = piece.blocks.len();
                let p = TiledParams {
                    alpha,
                    beta,
                    panels: count as u32,
                    width: blocks as u32,
                    b_stride: bp.blocks.len() as u32,
                    b_offset: (piece.blocks.start - bp.blocks.start) as u32,
                    c_stride: cp.len() as u32,
                    c_offset: (piece.blocks.start - cp.start) as u32,
                    read_c: u32::from(beta != T::ZERO),
                    tail,
                    granules: granules as u32,
                    span: tiling.span as u32,
                    b_rows: b.rows() as u32,
                    zero: 0,
                };
                let bindings = [
                    panels.rows.bind(),
                    panels.ptr.bind(),
                    panels.columns.bind(),
                    panels.values.bind(),
                    bp.bind(),
                    c_bindings[piece.c],
                    partial,
                ];
                let tiles = blocks.div_ceil(tiling.team.blocks());
                // SAFETY: panels name rows of C, granules cover the rows of B and a span of them fits workgroup memory, the block
                // range lies in both panels of columns, and there is a partial row for each row of a panel and part.
                unsafe { r.launch(&multiply, &bindings, &p, groups(self.device(), tiling.groups, 1, tiles)) }?;
                if tiling.parts == 1 {
                    continue;
                }
                r.barrier();
                let p = SpmmParams {
                    alpha,
                    beta,
                    tasks: cut.len() as u32,
                    width: p.width,
                    b_stride: p.b_stride,
                    b_offset: p.b_offset,
                    c_stride: p.c_stride,
                    c_offset: p.c_offset,
                    read_c: p.read_c,
                    tail,
                };
                let bindings = [cut.bind(), partial, partial, c_bindings[piece.c]];
                let items = cut.len() * blocks;
                // SAFETY: every row's partial rows were written by the launch before the barrier.
                unsafe { r.launch(&reduce, &bindings, &p, groups(self.device(), items, WORKGROUP as usize, 1)) }?;
                // The next launch writes the same partial rows.
                r.barrier();
            }
            Ok::<_, Error>(())
        })?;
        drop(state);
        self.note_kernel(seconds);
        Ok(())
    }
}
