//! Device memory of one element type.

use std::marker::PhantomData;
use std::sync::Arc;

use ash::vk;
use bytemuck::Pod;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};

use crate::device::{Device, Shared};
use crate::error::{Error, Result};

/// Bytes of device memory, freed when dropped.
pub(crate) struct RawBuffer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) raw: vk::Buffer,
    pub(crate) bytes: u64,
    allocation: Option<Allocation>,
    /// Bytes taken from the device's memory.
    taken: u64,
}

impl RawBuffer {
    pub(crate) fn new(shared: &Arc<Shared>, bytes: u64, location: MemoryLocation, name: &str) -> Result<Self> {
        shared.check_alive()?;
        let no_room = || Error::OutOfMemory { device: shared.info.name.clone(), bytes, left: shared.memory_left() };
        if bytes > shared.info.max_allocation || (location == MemoryLocation::GpuOnly && bytes > shared.memory_left()) {
            return Err(no_room());
        }
        let families = [shared.info.compute_family, shared.info.transfer_family];
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let mut info = vk::BufferCreateInfo::default().size(bytes.max(16)).usage(usage);
        if families[0] != families[1] {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&families);
        }
        // SAFETY: the device is live (as below) and `info` outlives the call.
        let raw = unsafe { shared.raw.create_buffer(&info, None) }.map_err(shared.failed("vkCreateBuffer"))?;
        // SAFETY: the buffer was just made.
        let requirements = unsafe { shared.raw.get_buffer_memory_requirements(raw) };
        let allocation = shared.allocator().as_mut().map(|a| {
            a.allocate(&AllocationCreateDesc {
                name,
                requirements,
                location,
                linear: true,
                allocation_scheme: AllocationScheme::GpuAllocatorManaged,
            })
        });
        let Some(Ok(allocation)) = allocation else {
            // SAFETY: nothing uses the buffer.
            unsafe { shared.raw.destroy_buffer(raw, None) };
            return Err(no_room());
        };
        // SAFETY: buffer and memory are fresh, and the memory answers the buffer's requirements.
        let bound = unsafe { shared.raw.bind_buffer_memory(raw, allocation.memory(), allocation.offset()) };
        let taken = if location == MemoryLocation::GpuOnly { allocation.size() } else { 0 };
        shared.note_allocated(taken);
        let buffer = Self { shared: shared.clone(), raw, bytes, allocation: Some(allocation), taken };
        bound.map_err(shared.failed("vkBindBufferMemory"))?;
        Ok(buffer)
    }

    /// The memory as the CPU sees it, where it can without flushes.
    pub(crate) fn mapped(&self) -> Option<&[u8]> {
        let allocation = self.allocation.as_ref()?;
        let coherent = allocation.memory_properties().contains(vk::MemoryPropertyFlags::HOST_COHERENT);
        allocation.mapped_slice().filter(|_| coherent).map(|s| &s[..self.bytes as usize])
    }

    /// The same, to write.
    pub(crate) fn mapped_mut(&mut self) -> Option<&mut [u8]> {
        let bytes = self.bytes as usize;
        let allocation = self.allocation.as_mut()?;
        let coherent = allocation.memory_properties().contains(vk::MemoryPropertyFlags::HOST_COHERENT);
        allocation.mapped_slice_mut().filter(|_| coherent).map(|s| &mut s[..bytes])
    }

    /// Whether the CPU reads this memory at its usual speed.
    pub(crate) fn is_cached(&self) -> bool {
        self.allocation.as_ref().is_some_and(|a| a.memory_properties().contains(vk::MemoryPropertyFlags::HOST_CACHED))
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        let allocation = self.allocation.take();
        if self.shared.is_dead() {
            // The device may still be writing here.
            std::mem::forget(allocation);
            return;
        }
        // SAFETY: streams wait for their work before they return, so nothing uses the buffer any more.
        unsafe { self.shared.raw.destroy_buffer(self.raw, None) };
        if let (Some(allocation), Some(allocator)) = (allocation, self.shared.allocator().as_mut()) {
            // Freeing fails only for an allocation that is not the allocator's.
            let freed = allocator.free(allocation);
            debug_assert!(freed.is_ok());
        }
        self.shared.note_freed(self.taken);
    }
}

/// `len` elements of device memory, rounded up to whole blocks plus a spare one: kernels read by fours and look one step
/// ahead. Freed when dropped.
pub struct Buffer<T> {
    pub(crate) inner: RawBuffer,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Elements after the last that kernels may read.
    const SPARE: usize = 8;

    /// Room for `len` elements, of no certain value.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the device's memory, or what is left of it, does not suffice.
    pub fn new(device: &Device, len: usize, name: &str) -> Result<Self> {
        let bytes = len
            .checked_next_multiple_of(Self::SPARE)
            .and_then(|n| n.checked_add(Self::SPARE)?.checked_mul(size_of::<T>()))
            .ok_or_else(|| Error::OutOfMemory {
                device: device.info().name.clone(),
                bytes: u64::MAX,
                left: device.memory_left(),
            })?;
        let inner = RawBuffer::new(&device.shared, bytes as u64, MemoryLocation::GpuOnly, name)?;
        Ok(Self { inner, len, element: PhantomData })
    }

    /// The most elements that one kernel can see of a buffer.
    pub fn max_len(device: &Device) -> usize {
        (device.max_range() as usize / size_of::<T>()).saturating_sub(2 * Self::SPARE)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of device memory, spare ones included.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }
}
