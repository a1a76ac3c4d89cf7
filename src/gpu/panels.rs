//! A matrix by panels of four rows in device memory, as the kernels of `tiled` take it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use sparsimd_gpu_abi::Walk;
use sparsimd_gpu_host::{Binding, Buffer};

use super::kernels::Special;
use super::{DeviceScalar, Gpu};
use crate::error::Result;
use crate::plan::{DevicePanels, Op, Tiling};

/// A matrix by panels, in device memory beside the rows.
pub(super) struct GpuPanels<T> {
    pub(super) host_rows: Vec<[u32; 4]>,
    pub(super) granules: usize,
    /// Columns of the matrix.
    pub(super) cols: usize,
    pub(super) rows: Buffer<[u32; 4]>,
    pub(super) ptr: Buffer<u32>,
    pub(super) columns: Buffer<[u32; 2]>,
    /// Which nonzero each value is.
    pub(super) order: Buffer<u32>,
    pub(super) values: Buffer<T>,
    /// Of the values; `None` before the first use.
    pub(super) version: Option<u64>,
    /// What to add for each number of parts that was used.
    pub(super) cut: HashMap<usize, Buffer<[u32; 4]>>,
}

/// The panels of a matrix, and which operations go by them.
pub(super) struct PanelsOf<T> {
    pub(super) layout: Option<GpuPanels<T>>,
    pub(super) serves: Vec<Op>,
}

impl<T> Default for PanelsOf<T> {
    fn default() -> Self {
        Self { layout: None, serves: Vec::new() }
    }
}

impl<T> PanelsOf<T> {
    /// The panels, where `op` goes by them.
    pub(super) fn serving(&mut self, op: Op) -> Option<&mut GpuPanels<T>> {
        self.layout.as_mut().filter(|_| self.serves.contains(&op))
    }
}

impl<T: DeviceScalar> GpuPanels<T> {
    /// Rows, pointers and columns, as every tiled kernel binds them first.
    pub(super) fn pattern(&self) -> [Binding<'_>; 3] {
        [self.rows.bind(), self.ptr.bind(), self.columns.bind()]
    }

    /// How `op` is launched on rows of `blocks` blocks.
    pub(super) fn tiling(&self, gpu: &Gpu, op: Op, blocks: usize) -> Tiling {
        DevicePanels::tiling(op, self.host_rows.len(), self.granules, blocks, size_of::<T>(), gpu.shape::<T>())
    }

    pub(super) fn walk(&self, tiling: &Tiling) -> Walk {
        Walk { granules: self.granules as u32, span: tiling.span as u32, b_rows: self.cols as u32, zero: 0 }
    }

    /// Partial rows of a launch.
    pub(super) fn slots(&self, tiling: &Tiling) -> usize {
        if tiling.parts > 1 { 4 * self.host_rows.len() * tiling.parts } else { 0 }
    }

    /// Makes what to add where panels have parts.
    pub(super) fn cut(&mut self, gpu: &Gpu, tiling: &Tiling) -> Result<()> {
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
