//! Sparse matrices in device memory.

use std::sync::{Arc, Mutex, PoisonError};

use sparsimd_gpu_host::Buffer;

use super::operands::GpuValues;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};
use crate::plan::{DeviceTasks, RowChunk};

/// Indices after the last that kernels may read.
const PADDING: usize = 8;

/// A [`Csr`] in device memory with the tasks that the kernels run over it.
///
/// Nonzeros beyond what a kernel can see of one buffer are cut into chunks of whole rows.
pub struct GpuCsr<T> {
    pub(super) gpu: Gpu,
    pub(super) pattern: GpuPattern,
    pub(super) values: GpuValues<T>,
    /// Changes with the values.
    version: u64,
    /// Made by the first operation with A^T.
    transposed: Mutex<Option<Transposed<T>>>,
    /// Edge values of FusedMM on operands too large to fuse.
    pub(super) edges: Mutex<Option<GpuValues<T>>>,
}

/// The pattern's part.
pub(super) struct GpuPattern {
    pub(super) host: Arc<Pattern>,
    pub(super) chunks: Vec<Chunk>,
    /// Tasks that have been asked for, of each chunk.
    made: Mutex<Vec<(Cut, Arc<[TaskBuffers]>)>>,
}

/// How rows are cut into tasks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Not at all.
    Whole,
    /// Into parts of so many threads, by [`DeviceTasks::choose`].
    Parts(usize),
}

/// Rows whose nonzeros one kernel sees.
pub(super) struct Chunk {
    pub(super) range: RowChunk,
    pub(super) idx: Buffer<u32>,
}

/// Tasks in device memory.
pub(super) struct TaskBuffers {
    pub(super) tasks: Buffer<[u32; 4]>,
    pub(super) cut: Buffer<[u32; 4]>,
    pub(super) slots: usize,
}

/// A^T.
pub(super) struct Transposed<T> {
    pub(super) pattern: GpuPattern,
    pub(super) values: GpuValues<T>,
    order: Vec<usize>,
    /// The order as the gather kernel reads it, where both matrices are of one chunk.
    device_order: Option<Buffer<u32>>,
    version: u64,
}

impl GpuPattern {
    /// The nonzeros of each row.
    pub(super) fn row_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.host.row_ptr().windows(2).map(|row| row[1] - row[0])
    }
}

/// Partial rows that launches over `tasks`, one after the other, have room for.
pub(super) fn most_slots<'a>(tasks: impl IntoIterator<Item = &'a TaskBuffers>) -> usize {
    tasks.into_iter().map(|tasks| tasks.slots).max().unwrap_or(0)
}

impl TaskBuffers {
    pub(super) fn new(gpu: &Gpu, tasks: &DeviceTasks) -> Result<Self> {
        let upload = |data: &[[u32; 4]]| -> Result<Buffer<[u32; 4]>> {
            let mut buffer = Buffer::new(gpu.device(), data.len(), "tasks")?;
            gpu.timed_upload(|s| s.stream.upload(&mut buffer, 0, data))?;
            Ok(buffer)
        };
        Ok(Self { tasks: upload(&tasks.tasks)?, cut: upload(&tasks.cut)?, slots: tasks.slots })
    }
}

impl GpuPattern {
    pub(super) fn new(gpu: &Gpu, host: &Arc<Pattern>, max_len: usize) -> Result<Self> {
        // A task is four words. A row gives at most two tasks and one for each `MIN_PART` of its nonzeros, so a buffer of tasks
        // stays within the limit when a chunk has a sixteenth as many rows as it may have nonzeros.
        let row_ptr = host.row_ptr();
        let chunks = RowChunk::split(row_ptr, max_len / 16, max_len).map_err(|row| Error::Device {
            detail: format!(
                "{}: row {row} has {} nonzeros, more than one chunk of {max_len} holds",
                gpu.info().name,
                host.row(row).len()
            ),
        })?;
        let chunks = chunks.into_iter().map(|range| {
            let columns = &host.col_idx()[range.nonzeros.clone()];
            // Kernels read indices by eights: what they read past the end must be a column too.
            let padded = columns.len() + PADDING;
            let mut idx = Buffer::new(gpu.device(), padded, "columns")?;
            gpu.timed_upload(|s| {
                s.stream.upload_with(&mut idx, 0, padded, |at, out| {
                    let part = &columns[at.min(columns.len())..];
                    let n = part.len().min(out.len());
                    out[..n].copy_from_slice(&part[..n]);
                    out[n..].fill(0);
                })
            })?;
            Ok(Chunk { range, idx })
        });
        let chunks = chunks.collect::<Result<_>>()?;
        Ok(Self { host: host.clone(), chunks, made: Mutex::default() })
    }

    /// The tasks of each chunk, made when first asked for.
    pub(super) fn tasks(&self, gpu: &Gpu, cut: Cut) -> Result<Arc<[TaskBuffers]>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tasks)) = made.iter().find(|(of, _)| *of == cut) {
            return Ok(tasks.clone());
        }
        let row_ptr = self.host.row_ptr();
        let tasks = self.chunks.iter().map(|chunk| {
            let tasks = match cut {
                Cut::Whole => DeviceTasks::whole(row_ptr, &chunk.range),
                Cut::Parts(parts) => DeviceTasks::choose(row_ptr, &chunk.range, parts),
            };
            TaskBuffers::new(gpu, &tasks)
        });
        let tasks: Arc<[_]> = tasks.collect::<Result<_>>()?;
        made.push((cut, tasks.clone()));
        Ok(tasks)
    }

    /// The tasks for teams of so many lanes.
    pub(super) fn tasks_for(&self, gpu: &Gpu, lanes: u32) -> Result<Arc<[TaskBuffers]>> {
        let parts = DeviceTasks::parts(self.host.rows(), lanes, gpu.shape::<u32>());
        self.tasks(gpu, Cut::Parts(parts))
    }

    /// Room for one value for each nonzero, of no certain content.
    pub(super) fn values<T: DeviceScalar>(&self, gpu: &Gpu) -> Result<GpuValues<T>> {
        GpuValues::new(gpu, self.chunks.iter().map(|c| c.range.nonzeros.clone()))
    }
}

impl Gpu {
    /// The sparse matrix in device memory.
    ///
    /// # Errors
    /// [`Error::Device`] when memory runs out or a row alone is larger than what a kernel can see.
    #[inline(never)]
    pub fn csr<T: DeviceScalar>(&self, a: &Csr<T>) -> Result<GpuCsr<T>> {
        let pattern = GpuPattern::new(self, a.pattern(), self.shape::<T>().max_len)?;
        let mut values = pattern.values(self)?;
        values.upload(a.values())?;
        Ok(GpuCsr {
            gpu: self.clone(),
            pattern,
            values,
            version: 0,
            transposed: Mutex::default(),
            edges: Mutex::default(),
        })
    }
}

impl<T: DeviceScalar> GpuCsr<T> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.pattern.host.rows()
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.pattern.host.cols()
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.pattern.host.nnz()
    }

    /// Where the nonzeros are.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern.host
    }

    /// Number of chunks that the nonzeros are cut into.
    pub fn chunks(&self) -> usize {
        self.pattern.chunks.len()
    }

    /// Room for one value for each nonzero, of no certain content: the output of SDDMM.
    ///
    /// # Errors
    /// [`Error::Device`] when memory runs out.
    pub fn new_values(&self) -> Result<GpuValues<T>> {
        self.pattern.values(&self.gpu)
    }

    /// Replaces the values.
    ///
    /// # Errors
    /// [`Error::Shape`], or [`Error::Device`] when the copy fails.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        self.version += 1;
        self.values.upload(values)
    }

    /// Exchanges the values for others on the same pattern without a copy: SDDMM's output becomes SpMM's input.
    ///
    /// # Errors
    /// [`Error::Shape`] when `values` belong to another pattern or device.
    pub fn swap_values(&mut self, values: &mut GpuValues<T>) -> Result<()> {
        self.expect_values("GpuCsr::swap_values", values)?;
        self.version += 1;
        std::mem::swap(&mut self.values, values);
        Ok(())
    }

    pub(super) fn expect_values(&self, op: &'static str, values: &GpuValues<T>) -> Result<()> {
        self.gpu.check_own(op, "values", &values.gpu)?;
        let ours = self.values.chunks.iter().map(|(r, _)| r);
        match ours.eq(values.chunks.iter().map(|(r, _)| r)) {
            true => Ok(()),
            false => Err(Error::shape(op, format!("{} values for {} nonzeros", values.len(), self.nnz()))),
        }
    }

    /// Runs `f` on A^T with the values of now, made on the first call and kept.
    pub(super) fn with_transposed<R>(&self, f: impl FnOnce(&Transposed<T>) -> Result<R>) -> Result<R> {
        let mut slot = self.transposed.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match slot.take() {
            Some(made) => made,
            None => self.transpose()?,
        };
        let made = slot.insert(made);
        if made.version != self.version {
            self.refresh(made)?;
            made.version = self.version;
        }
        f(made)
    }

    fn transpose(&self) -> Result<Transposed<T>> {
        let (host, order) = self.pattern.host.transpose();
        let pattern = GpuPattern::new(&self.gpu, &host, self.gpu.shape::<T>().max_len)?;
        let values = pattern.values(&self.gpu)?;
        let device_order = match (self.pattern.chunks.len(), pattern.chunks.len()) {
            (1, 1) => {
                let mut buffer = Buffer::new(self.gpu.device(), order.len(), "order")?;
                self.gpu.timed_upload(|s| {
                    s.stream.upload_with(&mut buffer, 0, order.len(), |at, out| {
                        out.iter_mut().zip(&order[at..]).for_each(|(o, &p)| *o = p as u32);
                    })
                })?;
                Some(buffer)
            }
            _ => None,
        };
        // No version of the values yet: the first use fetches them.
        Ok(Transposed { pattern, values, order, device_order, version: u64::MAX })
    }

    /// Brings the values of A^T up to date: on the device, or through the CPU where either matrix is cut.
    fn refresh(&self, t: &mut Transposed<T>) -> Result<()> {
        let Some(order) = &t.device_order else {
            let mut values = vec![T::ZERO; self.nnz()];
            self.values.download(&mut values)?;
            let permuted: Vec<T> = t.order.iter().map(|&p| values[p]).collect();
            return t.values.upload(&permuted);
        };
        let (from, to) = (self.values.chunks[0].1.bind(), t.values.chunks[0].1.bind_mut());
        // SAFETY: the order is a permutation of the nonzeros, and both value arrays have one element for each.
        unsafe { self.gpu.gather::<T>(order, from, to) }
    }
}
