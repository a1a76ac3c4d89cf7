//! The logical device: queues, memory and the pipeline cache.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ash::{ext, vk};
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::instance::Instance;
use crate::select::{Choice, DeviceInfo};

/// How to open a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Which one.
    pub choice: Choice,
    /// How long a submission may take; the device counts as dead afterwards.
    pub time_limit: Duration,
    /// Where compiled pipelines are kept between runs; `None`: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Bytes of device memory that may be used, if less than the device has.
    pub memory_limit: Option<u64>,
    /// Bytes that a kernel may see of one buffer, if less than the device allows.
    pub range_limit: Option<u64>,
    /// Copies go through staging memory and the transfer queue even where the processor can write the device's memory.
    pub always_stage: bool,
    /// The submission with this number, counted from 0, and all later ones fail as those of a lost device do: for tests of
    /// what a program does then.
    pub lose_at: Option<u64>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            choice: Choice::Best,
            // Longer than any sensible kernel; the operating system's own watchdog is usually shorter.
            time_limit: Duration::from_secs(120),
            cache_dir: default_cache_dir(),
            memory_limit: None,
            range_limit: None,
            always_stage: false,
            lose_at: None,
        }
    }
}

/// `$XDG_CACHE_HOME/sparsimd`, else `$HOME/.cache/sparsimd`.
fn default_cache_dir() -> Option<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    Some(from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")))?.join("sparsimd"))
}

/// An open device. Clones share it.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

/// What all clones, buffers, pipelines and streams of a device hold.
pub(crate) struct Shared {
    pub(crate) raw: ash::Device,
    pub(crate) info: DeviceInfo,
    pub(crate) options: DeviceOptions,
    pub(crate) compute: Mutex<vk::Queue>,
    pub(crate) transfer: Mutex<vk::Queue>,
    pub(crate) pipeline_cache: vk::PipelineCache,
    // `None` only while dropping.
    allocator: Mutex<Option<Allocator>>,
    used: AtomicU64,
    submitted: AtomicU64,
    dead: AtomicBool,
    instance: Arc<Instance>,
}

impl Device {
    /// Opens the device that `options` choose.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Feature`], or a failed call.
    pub fn new(instance: &Arc<Instance>, options: DeviceOptions) -> Result<Self> {
        let mut info = instance.choose(&options.choice)?;
        if let Some(limit) = options.range_limit {
            info.max_range = info.max_range.min(limit.max(4096));
        }
        let failed = |call| {
            let device = info.name.clone();
            move |code| match code {
                vk::Result::ERROR_FEATURE_NOT_PRESENT => Error::Feature { device, feature: call_feature(call) },
                vk::Result::ERROR_DEVICE_LOST => Error::Lost { device },
                _ => Error::Call { device, call, code },
            }
        };
        let priority = [1.0];
        let families = [info.compute_family, info.transfer_family];
        let distinct = if families[0] == families[1] { &families[..1] } else { &families[..] };
        let queues: Vec<_> = distinct
            .iter()
            .map(|&f| vk::DeviceQueueCreateInfo::default().queue_family_index(f).queue_priorities(&priority))
            .collect();
        let mut extensions = Vec::new();
        if !info.core13 {
            extensions.push(ext::subgroup_size_control::NAME.as_ptr());
        }
        if info.has_budget {
            extensions.push(ext::memory_budget::NAME.as_ptr());
        }
        if info.atomic_add_f32 {
            extensions.push(ext::shader_atomic_float::NAME.as_ptr());
        }
        let base = vk::PhysicalDeviceFeatures::default().shader_float64(info.float64).shader_int64(info.float64);
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .vulkan_memory_model(true)
            // Atomics of device scope need it; only kernels with float atomics have those.
            .vulkan_memory_model_device_scope(info.atomic_add_f32);
        let mut size = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
            .subgroup_size_control(true)
            .compute_full_subgroups(true);
        let mut atomic =
            vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default().shader_buffer_float32_atomic_add(true);
        let mut create = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(&base)
            .push_next(&mut v12)
            .push_next(&mut size);
        if info.atomic_add_f32 {
            create = create.push_next(&mut atomic);
        }
        // SAFETY: the instance is live and everything in `create` outlives the call.
        let raw = unsafe { instance.raw.create_device(info.raw, &create, None) }.map_err(failed("vkCreateDevice"))?;
        // SAFETY: the queues were asked for above.
        let (compute, transfer) =
            unsafe { (raw.get_device_queue(families[0], 0), raw.get_device_queue(families[1], 0)) };
        let allocator = Allocator::new(&AllocatorCreateDesc {
            instance: instance.raw.clone(),
            device: raw.clone(),
            physical_device: info.raw,
            debug_settings: Default::default(),
            buffer_device_address: false,
            allocation_sizes: Default::default(),
        });
        let allocator = match allocator {
            Ok(a) => a,
            Err(e) => {
                // SAFETY: nothing was made from the device yet.
                unsafe { raw.destroy_device(None) };
                return Err(Error::Limit { device: info.name, detail: format!("allocator: {e}") });
            }
        };
        let mut shared = Shared {
            raw,
            options,
            compute: Mutex::new(compute),
            transfer: Mutex::new(transfer),
            pipeline_cache: vk::PipelineCache::null(),
            allocator: Mutex::new(Some(allocator)),
            used: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            instance: instance.clone(),
            info,
        };
        shared.open_cache()?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    /// Bytes that may still be allocated.
    pub fn memory_left(&self) -> u64 {
        self.shared.memory_left()
    }

    /// Bytes that a kernel can see of one buffer.
    pub fn max_range(&self) -> u64 {
        self.shared.info.max_range
    }

    /// The instance that the device belongs to.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.shared.instance
    }
}

/// The feature behind a device that cannot be made.
fn call_feature(call: &'static str) -> String {
    format!("a feature that {call} refused")
}

impl Shared {
    /// Turns a failed call into an error; after a lost device nothing more is sent to it.
    pub(crate) fn failed(&self, call: &'static str) -> impl FnOnce(vk::Result) -> Error + '_ {
        move |code| match code {
            vk::Result::ERROR_DEVICE_LOST => {
                self.dead.store(true, Ordering::Relaxed);
                Error::Lost { device: self.info.name.clone() }
            }
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                Error::OutOfMemory { device: self.info.name.clone(), bytes: 0, left: self.memory_left() }
            }
            _ => Error::Call { device: self.info.name.clone(), call, code },
        }
    }

    /// Refuses work for a device that was lost or did not answer.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.dead.load(Ordering::Relaxed) {
            true => Err(Error::Lost { device: self.info.name.clone() }),
            false => Ok(()),
        }
    }

    /// Sends complete commands to a queue whose guard the caller holds.
    pub(crate) fn submit(&self, queue: vk::Queue, commands: vk::CommandBuffer, fence: vk::Fence) -> Result<()> {
        let number = self.submitted.fetch_add(1, Ordering::Relaxed);
        if self.options.lose_at.is_some_and(|at| number >= at) {
            return Err(self.failed("vkQueueSubmit")(vk::Result::ERROR_DEVICE_LOST));
        }
        let commands = [commands];
        let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
        // SAFETY: the queue is guarded, the command buffer complete, the fence unsignalled: the caller's promises.
        unsafe { self.raw.queue_submit(queue, &submit, fence) }.map_err(self.failed("vkQueueSubmit"))
    }

    /// The device did not answer in time: it may still be running, so nothing it uses may be freed.
    pub(crate) fn give_up(&self) -> Error {
        self.dead.store(true, Ordering::Relaxed);
        Error::Timeout { device: self.info.name.clone(), seconds: self.options.time_limit.as_secs_f64() }
    }

    /// Whether resources must be left to the operating system.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn allocator(&self) -> MutexGuard<'_, Option<Allocator>> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_allocated(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_freed(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn memory_left(&self) -> u64 {
        let used = self.used.load(Ordering::Relaxed);
        let limit = self.options.memory_limit.unwrap_or(u64::MAX);
        limit.min(self.info.memory).saturating_sub(used).min(self.budget())
    }

    /// What the driver says is left on the largest local heap, other programs' use included.
    fn budget(&self) -> u64 {
        if !self.info.has_budget {
            return u64::MAX;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the instance is live and the extension is there.
        unsafe { self.instance.raw.get_physical_device_memory_properties2(self.info.raw, &mut memory) };
        let heaps = memory.memory_properties;
        (0..heaps.memory_heap_count as usize)
            .filter(|&i| heaps.memory_heaps[i].flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .map(|i| budget.heap_budget[i].saturating_sub(budget.heap_usage[i]))
            .max()
            .unwrap_or(0)
    }

    fn cache_file(&self) -> Option<PathBuf> {
        let id: String = self.info.cache_id.iter().map(|b| format!("{b:02x}")).collect();
        Some(self.options.cache_dir.as_ref()?.join(format!("pipelines-{id}.bin")))
    }

    /// Opens the pipeline cache, from the file when there is one that is whole and that the driver takes.
    fn open_cache(&mut self) -> Result<()> {
        let stored = self.cache_file().and_then(|f| read_checked(&f)).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&stored);
        // SAFETY: the device is live; the data are what this driver once gave, to the last bit.
        let made = unsafe { self.raw.create_pipeline_cache(&info, None) };
        // SAFETY: as above, without data.
        let made =
            made.or_else(|_| unsafe { self.raw.create_pipeline_cache(&vk::PipelineCacheCreateInfo::default(), None) });
        self.pipeline_cache = made.map_err(self.failed("vkCreatePipelineCache"))?;
        Ok(())
    }

    /// Writes the cache beside its place and renames it: readers never see half a file. Failure costs only time.
    fn save_cache(&self) -> Option<()> {
        let file = self.cache_file()?;
        // SAFETY: the device and the cache are live.
        let data = unsafe { self.raw.get_pipeline_cache_data(self.pipeline_cache) }.ok()?;
        std::fs::create_dir_all(file.parent()?).ok()?;
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&fresh, [&Sha256::digest(&data)[..], &data].concat()).ok()?;
        std::fs::rename(&fresh, &file).ok()
    }
}

/// What follows the checksum at the head of a file, if it is what the checksum says: drivers trust what they are given.
fn read_checked(file: &Path) -> Option<Vec<u8>> {
    const LEN: usize = 32;
    let mut bytes = std::fs::read(file).ok()?;
    let data = bytes.split_off(LEN.min(bytes.len()));
    (Sha256::digest(&data)[..] == bytes[..]).then_some(data)
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_dead() {
            // Work may still be running on it: freeing would be worse than leaving the rest to the system. The instance goes
            // with its last device, so it must stay as well.
            std::mem::forget(self.allocator().take());
            std::mem::forget(self.instance.clone());
            return;
        }
        self.save_cache();
        // SAFETY: buffers, pipelines and streams hold an `Arc` of this value, so none is left, and streams wait for their
        // work. The allocator frees its blocks before the device goes.
        unsafe {
            self.raw.destroy_pipeline_cache(self.pipeline_cache, None);
            drop(self.allocator().take());
            self.raw.destroy_device(None);
        }
    }
}
