//! Recording, submitting and waiting: kernels on the compute queue, copies on the transfer queue.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use bytemuck::Pod;
use gpu_allocator::MemoryLocation;
use sparsimd_gpu_abi::PushConstants;

use crate::buffer::{Buffer, RawBuffer};
use crate::commands::Commands;
use crate::device::{Device, Shared};
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;

/// Bytes of the staging buffer: large enough to hide the cost of a submission, small beside any device's memory.
const STAGING: usize = 32 << 20;

/// A range of a buffer as a kernel sees it.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    buffer: vk::Buffer,
    range: u64,
    life: PhantomData<&'a ()>,
}

impl<T: Pod> Buffer<T> {
    /// The whole buffer, to be read.
    pub fn bind(&self) -> Binding<'_> {
        Binding { buffer: self.inner.raw, range: self.inner.bytes.max(16), life: PhantomData }
    }

    /// The whole buffer, to be read and written.
    pub fn bind_mut(&mut self) -> Binding<'_> {
        self.bind()
    }
}

/// Launches kernels and copies data, one batch at a time: [`Stream::record`] returns when its batch has ended.
pub struct Stream {
    compute: Commands,
    copy: Mutex<Copy>,
    /// Each serves [`Stream::SETS`] launches; a batch of more adds another, which is kept.
    pools: Vec<vk::DescriptorPool>,
    used_sets: usize,
    queries: vk::QueryPool,
    /// Bytes copied to and from the device since they were last asked for.
    copied: [AtomicU64; 2],
}

/// The transfer side: its commands and the staging memory.
struct Copy {
    commands: Commands,
    up: Option<RawBuffer>,
    down: Option<RawBuffer>,
}

/// A batch being recorded, on buffers that live for `'b`.
pub struct Recorder<'a, 'b> {
    stream: &'a mut Stream,
    buffers: PhantomData<fn(&'b ())>,
}

impl Stream {
    /// Launches that one descriptor pool serves.
    const SETS: usize = 64;
    /// Storage buffers that a kernel binds at most.
    const BINDINGS: usize = 12;

    /// A stream of the device.
    ///
    /// # Errors
    /// A failed call.
    pub fn new(device: &Device) -> Result<Self> {
        let shared = &device.shared;
        let compute = Commands::new(shared, false)?;
        let copy = Mutex::new(Copy { commands: Commands::new(shared, true)?, up: None, down: None });
        let mut queries = vk::QueryPool::null();
        if shared.info.timestamp_ns.is_some() {
            let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(2);
            // SAFETY: the device is live.
            queries =
                unsafe { shared.raw.create_query_pool(&info, None) }.map_err(shared.failed("vkCreateQueryPool"))?;
        }
        Ok(Self { compute, copy, pools: Vec::new(), used_sets: 0, queries, copied: Default::default() })
    }

    /// Bytes copied to and from the device since this function was last called.
    pub fn take_copied(&self) -> [u64; 2] {
        [self.copied[0].swap(0, Ordering::Relaxed), self.copied[1].swap(0, Ordering::Relaxed)]
    }

    /// Records a batch, submits it and waits. Returns the device's time from its first to its last kernel in seconds, if the
    /// device tells.
    ///
    /// # Errors
    /// What `fill` returns, a failed call, [`Error::Timeout`] or [`Error::Lost`].
    pub fn record<'b, E: From<Error>>(
        &mut self,
        fill: impl FnOnce(&mut Recorder<'_, 'b>) -> Result<(), E>,
    ) -> Result<Option<f64>, E> {
        let timed = self.begin_batch()?;
        fill(&mut Recorder { stream: self, buffers: PhantomData })?;
        Ok(self.end_batch(timed)?)
    }

    /// Begins to record. Returns whether the device tells its time.
    fn begin_batch(&mut self) -> Result<bool> {
        let shared = self.compute.shared.clone();
        let raw = self.compute.raw;
        self.compute.begin()?;
        for &pool in &self.pools {
            // SAFETY: the last batch was waited for, so no set of the pool is in use.
            unsafe { shared.raw.reset_descriptor_pool(pool, vk::DescriptorPoolResetFlags::empty()) }
                .map_err(shared.failed("vkResetDescriptorPool"))?;
        }
        self.used_sets = 0;
        let timed = self.queries != vk::QueryPool::null();
        if timed {
            // SAFETY: the command buffer is recording; the pool holds two queries.
            unsafe {
                shared.raw.cmd_reset_query_pool(raw, self.queries, 0, 2);
                shared.raw.cmd_write_timestamp(raw, vk::PipelineStageFlags::TOP_OF_PIPE, self.queries, 0);
            }
        }
        // What transfers and earlier batches wrote is to be seen by the first kernel.
        self.compute.barrier(false);
        Ok(timed)
    }

    /// Submits what was recorded, and waits. Returns the device's time, if it is `timed`.
    fn end_batch(&mut self, timed: bool) -> Result<Option<f64>> {
        let shared = self.compute.shared.clone();
        let raw = self.compute.raw;
        if timed {
            // SAFETY: the command buffer is recording; the pool holds two queries.
            unsafe { shared.raw.cmd_write_timestamp(raw, vk::PipelineStageFlags::BOTTOM_OF_PIPE, self.queries, 1) };
        }
        self.compute.barrier(true);
        self.compute.run()?;
        let Some(tick) = shared.info.timestamp_ns.filter(|_| timed) else { return Ok(None) };
        let mut ticks = [0u64; 2];
        // SAFETY: both queries were written by the batch that has ended.
        unsafe { shared.raw.get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
            .map_err(shared.failed("vkGetQueryPoolResults"))?;
        Ok(Some(ticks[1].saturating_sub(ticks[0]) as f64 * tick * 1e-9))
    }

    fn descriptor_set(&mut self, layout: vk::DescriptorSetLayout) -> Result<vk::DescriptorSet> {
        let shared = &self.compute.shared;
        let pool = self.used_sets / Self::SETS;
        if pool == self.pools.len() {
            let sizes = [vk::DescriptorPoolSize {
                ty: vk::DescriptorType::STORAGE_BUFFER,
                descriptor_count: (Self::SETS * Self::BINDINGS) as u32,
            }];
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(Self::SETS as u32).pool_sizes(&sizes);
            // SAFETY: the device is live.
            let made = unsafe { shared.raw.create_descriptor_pool(&info, None) }
                .map_err(shared.failed("vkCreateDescriptorPool"))?;
            self.pools.push(made);
        }
        let layouts = [layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(self.pools[pool]).set_layouts(&layouts);
        // SAFETY: the pool has room: it was reset at the batch's start and `used_sets` counts.
        let set = unsafe { shared.raw.allocate_descriptor_sets(&info) }
            .map_err(shared.failed("vkAllocateDescriptorSets"))?[0];
        self.used_sets += 1;
        Ok(set)
    }

    /// Copies `data` into `buffer` from element `first` on; directly where the CPU can write the device's memory, else
    /// through the staging buffer and the transfer queue.
    ///
    /// # Errors
    /// [`Error::Limit`] when it does not fit, or a failed call.
    pub fn upload<T: Pod>(&self, buffer: &mut Buffer<T>, first: usize, data: &[T]) -> Result<()> {
        self.upload_with(buffer, first, data.len(), |at, out| {
            out.copy_from_slice(&data[at..at + out.len()]);
        })
    }

    /// Like [`Stream::upload`], of `len` elements that `fill(i, out)` writes: `out` receives elements `i ..` of them. No copy
    /// besides is made.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn upload_with<T: Pod>(
        &self,
        buffer: &mut Buffer<T>,
        first: usize,
        len: usize,
        mut fill: impl FnMut(usize, &mut [T]),
    ) -> Result<()> {
        let shared = &self.compute.shared;
        shared.check_alive()?;
        check_fit(shared, buffer, first, len)?;
        let size = size_of::<T>();
        self.copied[0].fetch_add((len * size) as u64, Ordering::Relaxed);
        if let Some(memory) = buffer.inner.mapped_mut().filter(|_| !shared.options.always_stage) {
            fill(0, bytemuck::cast_slice_mut(&mut memory[first * size..(first + len) * size]));
            return Ok(());
        }
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let Copy { commands, up, .. } = &mut *copy;
        let staging = staging(up, shared, MemoryLocation::CpuToGpu)?;
        let step = STAGING / size;
        for at in (0..len).step_by(step) {
            let n = step.min(len - at);
            let memory = staging.mapped_mut().ok_or_else(|| no_staging(shared))?;
            fill(at, bytemuck::cast_slice_mut(&mut memory[..n * size]));
            let region = region(0, (first + at) * size, n * size);
            commands.copy(staging.raw, buffer.inner.raw, region)?;
        }
        Ok(())
    }

    /// Copies elements `first ..` of `buffer` to `data`.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn download<T: Pod>(&self, buffer: &Buffer<T>, first: usize, data: &mut [T]) -> Result<()> {
        let len = data.len();
        self.download_with(buffer, first, len, |at, out| data[at..at + out.len()].copy_from_slice(out))
    }

    /// Like [`Stream::download`], of `len` elements that are given to `take(i, part)` piece by piece.
    ///
    /// # Errors
    /// As [`Stream::upload`].
    pub fn download_with<T: Pod>(
        &self,
        buffer: &Buffer<T>,
        first: usize,
        len: usize,
        mut take: impl FnMut(usize, &[T]),
    ) -> Result<()> {
        let shared = &self.compute.shared;
        shared.check_alive()?;
        check_fit(shared, buffer, first, len)?;
        let size = size_of::<T>();
        self.copied[1].fetch_add((len * size) as u64, Ordering::Relaxed);
        // Uncached memory is read many times slower than a staged copy.
        if let Some(memory) = buffer.inner.mapped().filter(|_| !shared.options.always_stage && buffer.inner.is_cached())
        {
            take(0, bytemuck::cast_slice(&memory[first * size..(first + len) * size]));
            return Ok(());
        }
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let Copy { commands, down, .. } = &mut *copy;
        let staging = staging(down, shared, MemoryLocation::GpuToCpu)?;
        let step = STAGING / size;
        for at in (0..len).step_by(step) {
            let n = step.min(len - at);
            commands.copy(buffer.inner.raw, staging.raw, region((first + at) * size, 0, n * size))?;
            let memory = staging.mapped().ok_or_else(|| no_staging(shared))?;
            take(at, bytemuck::cast_slice(&memory[..n * size]));
        }
        Ok(())
    }
}

fn check_fit<T: Pod>(shared: &Shared, buffer: &Buffer<T>, first: usize, len: usize) -> Result<()> {
    match first.checked_add(len).is_some_and(|end| end <= buffer.len()) {
        true => Ok(()),
        false => Err(Error::Limit {
            device: shared.info.name.clone(),
            detail: format!("elements {first} .. {first} + {len} of a buffer of {}", buffer.len()),
        }),
    }
}

fn no_staging(shared: &Shared) -> Error {
    Error::Feature { device: shared.info.name.clone(), feature: "memory that the CPU sees coherently".into() }
}

fn region(from: usize, to: usize, bytes: usize) -> vk::BufferCopy {
    vk::BufferCopy { src_offset: from as u64, dst_offset: to as u64, size: bytes as u64 }
}

fn staging<'a>(
    slot: &'a mut Option<RawBuffer>,
    shared: &Arc<Shared>,
    location: MemoryLocation,
) -> Result<&'a mut RawBuffer> {
    let made = match slot.take() {
        Some(b) => b,
        None => RawBuffer::new(shared, STAGING as u64, location, "staging")?,
    };
    Ok(slot.insert(made))
}

impl<'b> Recorder<'_, 'b> {
    /// Launches `groups` workgroups of a kernel on `bindings`, in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Limit`] for too many workgroups or a wrong number of bindings, or a failed call.
    ///
    /// # Safety
    /// With these constants and groups the kernel stays inside the bound buffers, and it writes only those bound by
    /// [`Buffer::bind_mut`].
    pub unsafe fn launch<P: PushConstants>(
        &mut self,
        pipeline: &'b Pipeline,
        bindings: &[Binding<'b>],
        push: &P,
        groups: [u32; 3],
    ) -> Result<()> {
        // SAFETY: a `PushConstants` is plain words without padding; the rest is the caller's promise.
        unsafe {
            let bytes = std::slice::from_raw_parts(std::ptr::from_ref(push).cast::<u8>(), size_of::<P>());
            self.launch_with(pipeline, bindings, bytes, groups)
        }
    }

    /// [`Recorder::launch`] with the bytes of the push constants.
    ///
    /// # Safety
    /// As there.
    unsafe fn launch_with(
        &mut self,
        pipeline: &'b Pipeline,
        bindings: &[Binding<'b>],
        bytes: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        let shared = self.stream.compute.shared.clone();
        let limit = |detail: String| Err(Error::Limit { device: shared.info.name.clone(), detail });
        if bindings.len() != pipeline.bindings as usize || bindings.len() > Stream::BINDINGS {
            return limit(format!("{} bindings for a kernel with {}", bindings.len(), pipeline.bindings));
        }
        if bytes.len() != pipeline.push_bytes as usize {
            return limit(format!("{} bytes pushed to a kernel that takes {}", bytes.len(), pipeline.push_bytes));
        }
        if groups.iter().zip(&shared.info.max_groups).any(|(g, m)| g > m) {
            return limit(format!("{groups:?} workgroups, at most {:?}", shared.info.max_groups));
        }
        if let Some(b) = bindings.iter().find(|b| b.range > shared.info.max_range) {
            return limit(format!("a range of {} bytes, at most {}", b.range, shared.info.max_range));
        }
        if groups.contains(&0) {
            return Ok(());
        }
        let set = self.stream.descriptor_set(pipeline.set_layout)?;
        let mut infos = [vk::DescriptorBufferInfo::default(); Stream::BINDINGS];
        for (info, b) in infos.iter_mut().zip(bindings) {
            *info = vk::DescriptorBufferInfo { buffer: b.buffer, offset: 0, range: b.range };
        }
        let mut writes = [vk::WriteDescriptorSet::default(); Stream::BINDINGS];
        for (i, (write, info)) in writes.iter_mut().zip(infos.chunks(1)).enumerate() {
            *write = vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(i as u32)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(info);
        }
        let raw = self.stream.compute.raw;
        // SAFETY: the command buffer is recording; pipeline and buffers live for 'b, which is longer than the call of `record`,
        // which waits for the batch. What the kernel touches is the caller's promise.
        unsafe {
            shared.raw.update_descriptor_sets(&writes[..bindings.len()], &[]);
            shared.raw.cmd_bind_pipeline(raw, vk::PipelineBindPoint::COMPUTE, pipeline.raw);
            shared.raw.cmd_bind_descriptor_sets(raw, vk::PipelineBindPoint::COMPUTE, pipeline.layout, 0, &[set], &[]);
            if !bytes.is_empty() {
                shared.raw.cmd_push_constants(raw, pipeline.layout, vk::ShaderStageFlags::COMPUTE, 0, bytes);
            }
            shared.raw.cmd_dispatch(raw, groups[0], groups[1], groups[2]);
        }
        Ok(())
    }

    /// What was launched before is seen by what is launched after.
    pub fn barrier(&mut self) {
        self.stream.compute.barrier(false);
    }

    /// Fills a buffer with zeros.
    pub fn clear<T: Pod>(&mut self, buffer: &'b mut Buffer<T>) {
        // SAFETY: the command buffer is recording; the size is a multiple of four as every element's is.
        unsafe {
            self.stream.compute.shared.raw.cmd_fill_buffer(
                self.stream.compute.raw,
                buffer.inner.raw,
                0,
                vk::WHOLE_SIZE,
                0,
            );
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let shared = &self.compute.shared;
        if shared.is_dead() {
            return;
        }
        // SAFETY: every batch was waited for; a null query pool is ignored.
        unsafe {
            for &pool in &self.pools {
                shared.raw.destroy_descriptor_pool(pool, None);
            }
            shared.raw.destroy_query_pool(self.queries, None);
        }
    }
}
