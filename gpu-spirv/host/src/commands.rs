//! A command buffer: begin, barriers, submission, and the wait that has a time limit.

use std::sync::{Arc, PoisonError};

use ash::vk;

use crate::device::Shared;
use crate::error::Result;

/// One command buffer with its fence.
pub(crate) struct Commands {
    pub(crate) shared: Arc<Shared>,
    pool: vk::CommandPool,
    pub(crate) raw: vk::CommandBuffer,
    fence: vk::Fence,
    transfer: bool,
}

impl Commands {
    pub(crate) fn new(shared: &Arc<Shared>, transfer: bool) -> Result<Self> {
        let family = if transfer { shared.info.transfer_family } else { shared.info.compute_family };
        let mut made = Self {
            shared: shared.clone(),
            pool: vk::CommandPool::null(),
            raw: vk::CommandBuffer::null(),
            fence: vk::Fence::null(),
            transfer,
        };
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device is live, as in every call below; `made` frees what exists when a later step fails.
        made.pool =
            unsafe { shared.raw.create_command_pool(&pool, None) }.map_err(shared.failed("vkCreateCommandPool"))?;
        let allocate = vk::CommandBufferAllocateInfo::default().command_pool(made.pool).command_buffer_count(1);
        // SAFETY: as above.
        made.raw = unsafe { shared.raw.allocate_command_buffers(&allocate) }
            .map_err(shared.failed("vkAllocateCommandBuffers"))?[0];
        // SAFETY: as above.
        made.fence = unsafe { shared.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
            .map_err(shared.failed("vkCreateFence"))?;
        Ok(made)
    }

    pub(crate) fn begin(&self) -> Result<()> {
        self.shared.check_alive()?;
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the pool allows resets, and the last submission was waited for.
        unsafe { self.shared.raw.begin_command_buffer(self.raw, &info) }
            .map_err(self.shared.failed("vkBeginCommandBuffer"))
    }

    /// Everything recorded before is seen by everything recorded after.
    pub(crate) fn barrier(&self, to_host: bool) {
        let (stages, access) = match self.transfer {
            true => {
                (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE)
            }
            false => (
                vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER,
                vk::AccessFlags::SHADER_READ
                    | vk::AccessFlags::SHADER_WRITE
                    | vk::AccessFlags::TRANSFER_READ
                    | vk::AccessFlags::TRANSFER_WRITE,
            ),
        };
        let (after, seen) = match to_host {
            true => (vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ),
            false => (stages, access),
        };
        let memory = vk::MemoryBarrier::default().src_access_mask(access).dst_access_mask(seen);
        // SAFETY: the command buffer is recording.
        unsafe {
            self.shared.raw.cmd_pipeline_barrier(
                self.raw,
                stages,
                after,
                vk::DependencyFlags::empty(),
                &[memory],
                &[],
                &[],
            );
        }
    }

    /// Submits what was recorded and waits for it, within the time limit.
    pub(crate) fn run(&self) -> Result<()> {
        let shared = &self.shared;
        // SAFETY: the command buffer is recording.
        unsafe { shared.raw.end_command_buffer(self.raw) }.map_err(shared.failed("vkEndCommandBuffer"))?;
        {
            let queue = if self.transfer { &shared.transfer } else { &shared.compute };
            let compute;
            let transfer;
            // One family has one queue, which both mutexes would guard: then the compute mutex stands for it.
            let queue = if shared.info.transfer_family == shared.info.compute_family {
                compute = shared.compute.lock().unwrap_or_else(PoisonError::into_inner);
                *compute
            } else {
                transfer = queue.lock().unwrap_or_else(PoisonError::into_inner);
                *transfer
            };
            shared.submit(queue, self.raw, self.fence)?;
        }
        let limit = u64::try_from(shared.options.time_limit.as_nanos()).unwrap_or(u64::MAX);
        let fence = [self.fence];
        // SAFETY: the fence is live.
        match unsafe { shared.raw.wait_for_fences(&fence, true, limit) } {
            Ok(()) => {}
            Err(vk::Result::TIMEOUT) => return Err(shared.give_up()),
            Err(code) => return Err(shared.failed("vkWaitForFences")(code)),
        }
        // SAFETY: the fence was waited for.
        unsafe { shared.raw.reset_fences(&fence) }.map_err(shared.failed("vkResetFences"))
    }

    /// Copies within the device and waits. Both ranges must lie in their buffers.
    pub(crate) fn copy(&self, from: vk::Buffer, to: vk::Buffer, region: vk::BufferCopy) -> Result<()> {
        self.begin()?;
        self.barrier(false);
        // SAFETY: the command buffer is recording; both ranges were checked against their buffers.
        unsafe { self.shared.raw.cmd_copy_buffer(self.raw, from, to, &[region]) };
        self.barrier(true);
        self.run()
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        if self.shared.is_dead() {
            return;
        }
        // SAFETY: every submission was waited for; null handles are ignored.
        unsafe {
            self.shared.raw.destroy_fence(self.fence, None);
            self.shared.raw.destroy_command_pool(self.pool, None);
        }
    }
}
