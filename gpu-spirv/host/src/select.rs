//! Which devices there are, what they can do, and which one is meant.

use ash::{ext, vk};

use crate::error::{Error, Result};
use crate::instance::Instance;

/// What a device is, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A card with its own memory.
    Discrete,
    /// A part of the processor.
    Integrated,
    /// A device of a virtual machine.
    Virtual,
    /// A driver that runs on the processor.
    Cpu,
    /// Anything else.
    Other,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Cpu => "cpu",
            Self::Other => "other",
        })
    }
}

/// Which device is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first usable one: discrete before integrated before virtual before CPU.
    #[default]
    Best,
    /// The one with this index in [`Instance::devices`].
    Index(usize),
    /// The first whose name contains this text, in any case.
    Name(String),
}

impl std::str::FromStr for Choice {
    type Err = std::convert::Infallible;

    /// Nothing: the best device; a number: that index; else a part of the name.
    fn from_str(s: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match s.parse() {
            _ if s.is_empty() => Self::Best,
            Ok(i) => Self::Index(i),
            Err(_) => Self::Name(s.to_owned()),
        })
    }
}

/// A device with the limits and features that matter here.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The Vulkan version, as major and minor.
    pub api: (u32, u32),
    /// Driver name and version in words.
    pub driver: String,
    /// The subgroup size that kernels will have.
    pub subgroup: u32,
    /// Bytes of memory local to it.
    pub memory: u64,
    /// Bytes that a kernel can see of one buffer.
    pub max_range: u64,
    /// Bytes of one allocation.
    pub max_allocation: u64,
    /// Bytes of workgroup memory.
    pub shared_memory: u32,
    /// Most workgroups along x, y and z.
    pub max_groups: [u32; 3],
    /// Bytes that the start of a bound range is a multiple of.
    pub offset_alignment: u64,
    /// Subgroups resident at once on the whole device, where the driver tells it.
    pub resident_subgroups: Option<u32>,
    /// 64-bit floats (and the 64-bit integers their exponential needs).
    pub float64: bool,
    /// Atomic addition of 32-bit floats in buffers.
    pub atomic_add_f32: bool,
    /// A queue for transfers alone.
    pub transfer_queue: bool,
    /// Nanoseconds of a timestamp's tick; `None` where the queue has no timestamps.
    pub timestamp_ns: Option<f64>,
    /// Names of features that the kernels need and the device lacks: empty when it is usable.
    pub missing: Vec<&'static str>,
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) compute_family: u32,
    pub(crate) transfer_family: u32,
    pub(crate) has_budget: bool,
    pub(crate) core13: bool,
    pub(crate) cache_id: [u8; 16],
}

impl Instance {
    /// All devices, the preferred ones first. Unusable ones are listed with what they lack.
    ///
    /// # Errors
    /// [`Error::NoVulkan`] when the driver cannot list them.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        // SAFETY: the instance is live; so it is in every query below.
        let raw =
            unsafe { self.raw.enumerate_physical_devices() }.map_err(|e| Error::NoVulkan(format!("devices: {e}")))?;
        let mut all: Vec<_> = raw.into_iter().filter_map(|d| self.describe(d)).collect();
        all.sort_by_key(|d| (!d.missing.is_empty(), d.kind));
        Ok(all)
    }

    /// The device that is meant.
    ///
    /// # Errors
    /// [`Error::NoDevice`] when none answers, [`Error::Feature`] when the one that does lacks something.
    pub fn choose(&self, choice: &Choice) -> Result<DeviceInfo> {
        let all = self.devices()?;
        pick(&all, choice).cloned()
    }

    /// What the driver says of a device; `None` for one without a compute queue.
    fn describe(&self, raw: vk::PhysicalDevice) -> Option<DeviceInfo> {
        let text = |s: Result<&std::ffi::CStr, _>| {
            s.map_or_else(|_: std::ffi::FromBytesUntilNulError| String::new(), |s| s.to_string_lossy().into_owned())
        };
        // SAFETY: `raw` belongs to the live instance; so in all queries of this function.
        let basic = unsafe { self.raw.get_physical_device_properties(raw) };
        // SAFETY: as above.
        let extensions = unsafe { self.raw.enumerate_device_extension_properties(raw) }.unwrap_or_default();
        let has = |name: &std::ffi::CStr| extensions.iter().any(|e| e.extension_name_as_c_str() == Ok(name));
        // SAFETY: as above.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(raw) };
        let find =
            |f: &dyn Fn(vk::QueueFlags) -> bool| families.iter().position(|q| f(q.queue_flags)).map(|i| i as u32);
        // A compute queue that does not draw runs beside the display; any other will do.
        let compute_family = find(&|f| f.contains(vk::QueueFlags::COMPUTE) && !f.contains(vk::QueueFlags::GRAPHICS))
            .or_else(|| find(&|f| f.contains(vk::QueueFlags::COMPUTE)))?;
        let own_transfer = find(&|f| {
            f.contains(vk::QueueFlags::TRANSFER) && !f.intersects(vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS)
        });
        let core13 = basic.api_version >= vk::API_VERSION_1_3;
        let core12 = basic.api_version >= vk::API_VERSION_1_2;
        let size_control = core13 || has(ext::subgroup_size_control::NAME);

        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut size = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut builtins = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut v12f = vk::PhysicalDeviceVulkan12Features::default();
        let mut sizef = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut atomicf = vk::PhysicalDeviceShaderAtomicFloatFeaturesEXT::default();
        let mut properties = vk::PhysicalDeviceProperties2::default();
        let mut features = vk::PhysicalDeviceFeatures2::default();
        if core12 {
            properties = properties.push_next(&mut v11).push_next(&mut driver);
            features = features.push_next(&mut v12f);
        }
        if size_control {
            properties = properties.push_next(&mut size);
            features = features.push_next(&mut sizef);
        }
        let nvidia = has(ash::nv::shader_sm_builtins::NAME);
        let amd_core = has(ash::amd::shader_core_properties::NAME);
        let atomics = has(ext::shader_atomic_float::NAME);
        if nvidia {
            properties = properties.push_next(&mut builtins);
        }
        if amd_core {
            properties = properties.push_next(&mut amd);
        }
        if atomics {
            features = features.push_next(&mut atomicf);
        }
        // SAFETY: as above; every chained struct is one that the version or an extension of this device knows.
        unsafe {
            self.raw.get_physical_device_properties2(raw, &mut properties);
            self.raw.get_physical_device_features2(raw, &mut features);
        }
        let base = features.features;
        // 32 lanes of 16 bytes are one row of N = 128; devices with other fixed sizes keep theirs.
        let subgroup = if size_control {
            32u32.clamp(size.min_subgroup_size.max(1), size.max_subgroup_size.max(1))
        } else {
            v11.subgroup_size
        };
        let limits = basic.limits;
        let offer = Offer {
            vulkan12: core12,
            memory_model: v12f.vulkan_memory_model != 0,
            size_control: size_control && sizef.subgroup_size_control != 0,
            full_subgroups: size_control && sizef.compute_full_subgroups != 0,
            sized_stages: size.required_subgroup_size_stages,
            operations: v11.subgroup_supported_operations,
            subgroup,
            invocations: limits.max_compute_work_group_invocations,
            storage_buffers: limits.max_per_stage_descriptor_storage_buffers,
            push_bytes: limits.max_push_constants_size,
        };
        // SAFETY: as above.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(raw) };
        let local = memory
            .memory_heaps_as_slice()
            .iter()
            .filter(|h| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
            .map(|h| h.size)
            .max()
            .unwrap_or(0);
        let resident_subgroups = if nvidia {
            Some(builtins.shader_sm_count * builtins.shader_warps_per_sm)
        } else if amd_core {
            Some(
                amd.shader_engine_count
                    * amd.shader_arrays_per_engine_count
                    * amd.compute_units_per_shader_array
                    * amd.simd_per_compute_unit
                    * amd.wavefronts_per_simd,
            )
        } else {
            None
        };
        let ticks = families[compute_family as usize].timestamp_valid_bits > 0;
        let kind = match basic.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => Kind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => Kind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => Kind::Virtual,
            vk::PhysicalDeviceType::CPU => Kind::Cpu,
            _ => Kind::Other,
        };
        // The cache must not outlive a driver update: driver version and device together name it.
        let mut cache_id = basic.pipeline_cache_uuid;
        for (i, b) in basic.driver_version.to_le_bytes().into_iter().chain(basic.device_id.to_le_bytes()).enumerate() {
            cache_id[i] ^= b;
        }
        Some(DeviceInfo {
            name: text(basic.device_name_as_c_str()),
            kind,
            api: (vk::api_version_major(basic.api_version), vk::api_version_minor(basic.api_version)),
            driver: format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str())),
            subgroup,
            memory: local,
            max_range: u64::from(limits.max_storage_buffer_range),
            max_allocation: v11.max_memory_allocation_size,
            shared_memory: limits.max_compute_shared_memory_size,
            max_groups: limits.max_compute_work_group_count,
            offset_alignment: limits.min_storage_buffer_offset_alignment,
            resident_subgroups: resident_subgroups.filter(|&n| n > 0),
            float64: base.shader_float64 != 0 && base.shader_int64 != 0,
            atomic_add_f32: atomics && atomicf.shader_buffer_float32_atomic_add != 0,
            transfer_queue: own_transfer.is_some(),
            timestamp_ns: ticks.then_some(f64::from(limits.timestamp_period)),
            missing: offer.missing(),
            raw,
            compute_family,
            transfer_family: own_transfer.unwrap_or(compute_family),
            has_budget: has(ext::memory_budget::NAME),
            core13,
            cache_id,
        })
    }
}

/// The device among `all` that is meant.
fn pick<'a>(all: &'a [DeviceInfo], choice: &Choice) -> Result<&'a DeviceInfo> {
    let found = match choice {
        Choice::Best => all.first(),
        Choice::Index(i) => all.get(*i),
        Choice::Name(part) => all.iter().find(|d| d.name.to_lowercase().contains(&part.to_lowercase())),
    };
    let Some(found) = found else {
        let names: Vec<_> = all.iter().enumerate().map(|(i, d)| format!("{i}: {}", d.name)).collect();
        let there = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
        return Err(Error::NoDevice(match choice {
            Choice::Best => there,
            Choice::Index(i) => format!("index {i} of {there}"),
            Choice::Name(n) => format!("\"{n}\" among {there}"),
        }));
    };
    match found.missing.is_empty() {
        true => Ok(found),
        false => Err(Error::Feature { device: found.name.clone(), feature: found.missing.join(", ") }),
    }
}

/// What a device has of what the kernels need.
#[derive(Clone)]
struct Offer {
    vulkan12: bool,
    memory_model: bool,
    size_control: bool,
    full_subgroups: bool,
    /// Stages whose subgroup size can be asked for.
    sized_stages: vk::ShaderStageFlags,
    /// Operations inside a subgroup.
    operations: vk::SubgroupFeatureFlags,
    /// The size that kernels will have.
    subgroup: u32,
    /// Invocations of a workgroup.
    invocations: u32,
    /// Storage buffers of a kernel.
    storage_buffers: u32,
    push_bytes: u32,
}

impl Offer {
    /// What it lacks, in Vulkan's words.
    fn missing(&self) -> Vec<&'static str> {
        let needs = [
            (self.vulkan12, "Vulkan 1.2"),
            (self.memory_model, "vulkanMemoryModel"),
            (self.size_control, "subgroupSizeControl"),
            (self.full_subgroups, "computeFullSubgroups"),
            (self.sized_stages.contains(vk::ShaderStageFlags::COMPUTE), "requiredSubgroupSizeStages: compute"),
            (self.operations.contains(vk::SubgroupFeatureFlags::ARITHMETIC), "subgroup arithmetic"),
            (self.operations.contains(vk::SubgroupFeatureFlags::SHUFFLE), "subgroup shuffle"),
            (self.subgroup >= sparsimd_gpu_abi::MIN_TEAM, "subgroups of at least 4 invocations"),
            (self.subgroup <= sparsimd_gpu_abi::WORKGROUP, "subgroups of at most 128 invocations"),
            (self.invocations >= sparsimd_gpu_abi::WORKGROUP, "workgroups of 128 invocations"),
            (self.storage_buffers >= 12, "12 storage buffers in a kernel"),
            (self.push_bytes >= 128, "128 bytes of push constants"),
        ];
        needs.into_iter().filter(|(there, _)| !there).map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Offer = Offer {
        vulkan12: true,
        memory_model: true,
        size_control: true,
        full_subgroups: true,
        sized_stages: vk::ShaderStageFlags::COMPUTE,
        operations: vk::SubgroupFeatureFlags::from_raw(
            vk::SubgroupFeatureFlags::ARITHMETIC.as_raw() | vk::SubgroupFeatureFlags::SHUFFLE.as_raw(),
        ),
        subgroup: 32,
        invocations: 1024,
        storage_buffers: 12,
        push_bytes: 128,
    };

    fn named(name: &str, offer: &Offer) -> DeviceInfo {
        DeviceInfo {
            name: name.to_owned(),
            kind: Kind::Discrete,
            api: (1, 3),
            driver: String::new(),
            subgroup: offer.subgroup,
            memory: 1 << 30,
            max_range: 1 << 27,
            max_allocation: 1 << 30,
            shared_memory: 1 << 15,
            max_groups: [65535; 3],
            offset_alignment: 16,
            resident_subgroups: None,
            float64: false,
            atomic_add_f32: false,
            transfer_queue: false,
            timestamp_ns: None,
            missing: offer.missing(),
            raw: vk::PhysicalDevice::null(),
            compute_family: 0,
            transfer_family: 0,
            has_budget: false,
            core13: true,
            cache_id: [0; 16],
        }
    }

    #[test]
    fn a_device_that_lacks_something_is_refused_with_its_name_and_the_feature() {
        let cases: [(Offer, &str); 6] = [
            (Offer { operations: vk::SubgroupFeatureFlags::ARITHMETIC, ..ENOUGH }, "subgroup shuffle"),
            (Offer { operations: vk::SubgroupFeatureFlags::SHUFFLE, ..ENOUGH }, "subgroup arithmetic"),
            (Offer { subgroup: 2, ..ENOUGH }, "subgroups of at least 4 invocations"),
            (Offer { subgroup: 256, ..ENOUGH }, "subgroups of at most 128 invocations"),
            (Offer { memory_model: false, ..ENOUGH }, "vulkanMemoryModel"),
            (Offer { sized_stages: vk::ShaderStageFlags::VERTEX, ..ENOUGH }, "requiredSubgroupSizeStages: compute"),
        ];
        for (offer, feature) in cases {
            assert_eq!(offer.missing(), [feature]);
            let all = [named("Some GPU", &offer)];
            let error = pick(&all, &Choice::Best).unwrap_err();
            assert_eq!(error.to_string(), format!("Some GPU: needs {feature}"));
        }
        assert!(ENOUGH.missing().is_empty());
    }

    #[test]
    fn devices_are_found_by_index_and_by_a_part_of_their_name() {
        let all = [named("First Card", &ENOUGH), named("Second Card", &ENOUGH)];
        let name = |choice: &str| pick(&all, &choice.parse().unwrap()).map(|d| d.name.clone());
        assert_eq!(name("").unwrap(), "First Card");
        assert_eq!(name("1").unwrap(), "Second Card");
        assert_eq!(name("second").unwrap(), "Second Card");
        assert_eq!(name("2").unwrap_err().to_string(), "no device: index 2 of 0: First Card, 1: Second Card");
        assert!(name("third").unwrap_err().to_string().contains("\"third\" among"));
        assert!(pick(&[], &Choice::Best).unwrap_err().to_string().contains("there is none"));
    }
}
