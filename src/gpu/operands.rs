//! Dense matrices and value arrays in device memory.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use sparsimd_gpu_abi::BLOCK;
use sparsimd_gpu_host::{Binding, Buffer};

use super::{DeviceScalar, DeviceStored, Gpu};
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};

/// A dense matrix in device memory.
///
/// Its elements may be bf16 or f16, as the processor's may. Rows are padded with zeros to whole blocks of four elements. A matrix larger than what a kernel can see of one buffer is cut
/// into panels of columns; results are the same.
#[derive(Debug)]
pub struct GpuMat<D: DeviceStored> {
    gpu: Gpu,
    rows: usize,
    cols: usize,
    panels: Vec<Panel<D::Bits>>,
}

/// Some blocks of every row.
pub(super) struct Panel<T> {
    pub(super) blocks: Range<usize>,
    buffer: Buffer<T>,
}

impl<T> std::fmt::Debug for Panel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Panel({:?})", self.blocks)
    }
}

impl<T: Pod> Panel<T> {
    pub(super) fn bind(&self) -> Binding<'_> {
        self.buffer.bind()
    }

    pub(super) fn bind_mut(&mut self) -> Binding<'_> {
        self.buffer.bind_mut()
    }

    /// Elements of a row.
    fn width(&self) -> usize {
        self.blocks.len() * BLOCK
    }
}

impl Gpu {
    /// The matrix in device memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for a matrix without columns or one too tall for any panel, [`Error::Device`] when memory runs out.
    #[inline(never)]
    pub fn mat<D: DeviceStored>(&self, m: MatRef<'_, D>) -> Result<GpuMat<D>> {
        let mut made = self.uninitialised(m.rows(), m.cols())?;
        made.upload(m)?;
        Ok(made)
    }

    /// A matrix of zeros in device memory.
    ///
    /// # Errors
    /// As [`Gpu::mat`].
    #[inline(never)]
    pub fn zeros<D: DeviceStored>(&self, rows: usize, cols: usize) -> Result<GpuMat<D>> {
        let mut made = self.uninitialised::<D>(rows, cols)?;
        made.clear()?;
        Ok(made)
    }

    /// A matrix of no certain content.
    pub(super) fn uninitialised<D: DeviceStored>(&self, rows: usize, cols: usize) -> Result<GpuMat<D>> {
        if cols == 0 {
            return Err(Error::argument("matrix", "a matrix in device memory needs a column".to_owned()));
        }
        let max_len = self.shape::<D>().max_len;
        let blocks = cols.div_ceil(BLOCK);
        let most = max_len / rows.max(1) / BLOCK;
        if most == 0 {
            return Err(Error::Device {
                detail: format!(
                    "{}: a panel of {rows} rows is larger than the {} bytes that a kernel can see",
                    self.info().name,
                    self.info().max_range
                ),
            });
        }
        let panels = (0..blocks.div_ceil(most)).map(|i| {
            let blocks = i * most..((i + 1) * most).min(blocks);
            let buffer = Buffer::new(self.device(), rows * blocks.len() * BLOCK, "matrix")?;
            Ok(Panel { blocks, buffer })
        });
        let panels = panels.collect::<Result<_>>()?;
        Ok(GpuMat { gpu: self.clone(), rows, cols, panels })
    }
}

impl<D: DeviceStored> GpuMat<D> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of panels that the matrix is cut into.
    pub fn panels(&self) -> usize {
        self.panels.len()
    }

    /// Makes all elements zero.
    pub(super) fn clear(&mut self) -> Result<()> {
        self.gpu.state().stream.record(|r| {
            self.panels.iter_mut().for_each(|p| r.clear(&mut p.buffer));
            Ok::<_, Error>(())
        })?;
        Ok(())
    }

    /// Replaces the elements.
    ///
    /// # Errors
    /// [`Error::Shape`], or [`Error::Device`] when a copy fails.
    pub fn upload(&mut self, m: MatRef<'_, D>) -> Result<()> {
        self.check("GpuMat::upload", m.rows(), m.cols())?;
        self.upload_rows(0, m)
    }

    /// Replaces the rows from `first_row` on, which are there.
    pub(super) fn upload_rows(&mut self, first_row: usize, m: MatRef<'_, D>) -> Result<()> {
        self.check_rows("GpuMat::upload", first_row, m.rows(), m.cols())?;
        let gpu = self.gpu.clone();
        gpu.timed_upload(|state| {
            for panel in &mut self.panels {
                let (width, first) = (panel.width(), panel.blocks.start * BLOCK);
                state.stream.upload_with(&mut panel.buffer, first_row * width, m.rows() * width, |at, out| {
                    for (i, col, part) in segments(at, out, width) {
                        let row = &m.row(i)[(first + col).min(m.cols())..];
                        let n = row.len().min(part.len());
                        part.iter_mut().zip(row).for_each(|(to, &from)| *to = from.to_bits());
                        part[n..].fill(D::Bits::zeroed());
                    }
                })?;
            }
            Ok(())
        })
    }

    /// Copies the elements to `m`.
    ///
    /// # Errors
    /// As [`GpuMat::upload`].
    pub fn download(&self, m: MatMut<'_, D>) -> Result<()> {
        self.check("GpuMat::download", m.rows(), m.cols())?;
        self.download_rows(0, m)
    }

    /// Copies the rows from `first_row` on, which are there.
    pub(crate) fn download_rows(&self, first_row: usize, mut m: MatMut<'_, D>) -> Result<()> {
        self.check_rows("GpuMat::download", first_row, m.rows(), m.cols())?;
        self.gpu.timed_download(|state| {
            for panel in &self.panels {
                let (width, first) = (panel.width(), panel.blocks.start * BLOCK);
                state.stream.download_with(&panel.buffer, first_row * width, m.rows() * width, |at, part| {
                    for (i, col, from) in segments_ref(at, part, width) {
                        let cols = m.cols();
                        let row = &mut m.reborrow().into_row(i)[(first + col).min(cols)..];
                        row.iter_mut().zip(from).for_each(|(to, &from)| *to = D::from_bits(from));
                    }
                })?;
            }
            Ok(())
        })
    }

    fn check(&self, op: &'static str, rows: usize, cols: usize) -> Result<()> {
        match (rows, cols) == (self.rows, self.cols) {
            true => Ok(()),
            false => Err(Error::shape(op, format!("{rows} x {cols}, on the device {} x {}", self.rows, self.cols))),
        }
    }

    fn check_rows(&self, op: &'static str, first_row: usize, rows: usize, cols: usize) -> Result<()> {
        match cols == self.cols && first_row + rows <= self.rows {
            true => Ok(()),
            false => {
                let device = format!("{} x {}", self.rows, self.cols);
                Err(Error::shape(op, format!("{rows} x {cols} from row {first_row}, on the device {device}")))
            }
        }
    }

    /// The matrix of an operation: on `gpu`, of the given shape.
    pub(super) fn expect(&self, gpu: &Gpu, op: &'static str, name: &str, rows: usize, cols: usize) -> Result<()> {
        gpu.check_own(op, name, &self.gpu)?;
        check_shape(op, name, (self.rows, self.cols), (rows, cols))
    }

    pub(super) fn parts(&self) -> &[Panel<D::Bits>] {
        &self.panels
    }

    pub(super) fn parts_mut(&mut self) -> &mut [Panel<D::Bits>] {
        &mut self.panels
    }

    /// Blocks of a row.
    pub(super) fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Elements that count in the last of the blocks up to `end`.
    pub(super) fn tail(&self, end: usize) -> u32 {
        (self.cols - (end - 1) * BLOCK).min(BLOCK) as u32
    }
}

/// Cuts elements `at ..` of rows of `width` elements at the rows' ends: (row, first column, elements).
fn segments<T>(at: usize, mut out: &mut [T], width: usize) -> impl Iterator<Item = (usize, usize, &mut [T])> {
    let mut pos = at;
    std::iter::from_fn(move || {
        if out.is_empty() {
            return None;
        }
        let (row, col) = (pos / width, pos % width);
        let n = (width - col).min(out.len());
        let (part, rest) = std::mem::take(&mut out).split_at_mut(n);
        out = rest;
        pos += part.len();
        Some((row, col, part))
    })
}

/// [`segments`] of shared elements.
fn segments_ref<T>(at: usize, mut part: &[T], width: usize) -> impl Iterator<Item = (usize, usize, &[T])> {
    let mut pos = at;
    std::iter::from_fn(move || {
        if part.is_empty() {
            return None;
        }
        let (row, col) = (pos / width, pos % width);
        let (now, rest) = part.split_at((width - col).min(part.len()));
        part = rest;
        pos += now.len();
        Some((row, col, now))
    })
}

/// One value for each nonzero of a pattern, in device memory, cut where the pattern is.
pub struct GpuValues<T> {
    pub(super) gpu: Gpu,
    pub(super) chunks: Vec<(Range<usize>, Buffer<T>)>,
}

impl<T: DeviceScalar> GpuValues<T> {
    pub(super) fn new(gpu: &Gpu, ranges: impl Iterator<Item = Range<usize>>) -> Result<Self> {
        let chunks = ranges.map(|r| {
            let buffer = Buffer::new(gpu.device(), r.len(), "values")?;
            Ok((r, buffer))
        });
        Ok(Self { gpu: gpu.clone(), chunks: chunks.collect::<Result<_>>()? })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.chunks.last().map_or(0, |(r, _)| r.end)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the values.
    ///
    /// # Errors
    /// [`Error::Shape`], or [`Error::Device`] when a copy fails.
    pub fn upload(&mut self, values: &[T]) -> Result<()> {
        self.check("GpuValues::upload", values.len())?;
        let gpu = self.gpu.clone();
        gpu.timed_upload(|state| {
            for (range, buffer) in &mut self.chunks {
                state.stream.upload(buffer, 0, &values[range.clone()])?;
            }
            Ok(())
        })
    }

    /// Copies the values to `values`.
    ///
    /// # Errors
    /// As [`GpuValues::upload`].
    pub fn download(&self, values: &mut [T]) -> Result<()> {
        self.check("GpuValues::download", values.len())?;
        self.gpu.timed_download(|state| {
            for (range, buffer) in &self.chunks {
                state.stream.download(buffer, 0, &mut values[range.clone()])?;
            }
            Ok(())
        })
    }

    fn check(&self, op: &'static str, len: usize) -> Result<()> {
        match len == self.len() {
            true => Ok(()),
            false => Err(Error::shape(op, format!("{len} values, on the device {}", self.len()))),
        }
    }
}

impl Gpu {
    /// Refuses an operand that lives on another device.
    pub(super) fn check_own(&self, op: &'static str, name: &str, other: &Self) -> Result<()> {
        match Arc::ptr_eq(&self.shared, &other.shared) {
            true => Ok(()),
            false => Err(Error::shape(op, format!("{name} lives on another device, {}", other.info().name))),
        }
    }
}
