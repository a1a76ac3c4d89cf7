//! The devices that `sparsimd info` lists.

use serde::Serialize;
use sparsimd::Result;
use sparsimd::gpu::{DeviceInfo, Gpu};

/// A device with what matters of its limits and features.
#[derive(Serialize)]
pub struct Device {
    name: String,
    kind: String,
    vulkan: String,
    driver: String,
    subgroup: u32,
    resident_subgroups: Option<u32>,
    memory_bytes: u64,
    max_buffer_range: u64,
    max_allocation: u64,
    workgroup_memory: u32,
    float64: bool,
    atomic_add_f32: bool,
    transfer_queue: bool,
    timestamps: bool,
    missing: Vec<&'static str>,
}

/// The devices, the preferred ones first.
pub fn devices() -> Result<Vec<Device>> {
    Ok(Gpu::devices()?.into_iter().map(Device::from).collect())
}

impl From<DeviceInfo> for Device {
    fn from(d: DeviceInfo) -> Self {
        Self {
            kind: d.kind.to_string(),
            vulkan: format!("{}.{}", d.api.0, d.api.1),
            driver: d.driver,
            subgroup: d.subgroup,
            resident_subgroups: d.resident_subgroups,
            memory_bytes: d.memory,
            max_buffer_range: d.max_range,
            max_allocation: d.max_allocation,
            workgroup_memory: d.shared_memory,
            float64: d.float64,
            atomic_add_f32: d.atomic_add_f32,
            transfer_queue: d.transfer_queue,
            timestamps: d.timestamp_ns.is_some(),
            missing: d.missing,
            name: d.name,
        }
    }
}

impl Device {
    /// In words, one line.
    pub fn text(&self) -> String {
        let usable = match self.missing.is_empty() {
            true => String::new(),
            false => format!("; not usable, lacks {}", self.missing.join(", ")),
        };
        format!(
            "{} ({}, Vulkan {}, {}): {:.1} GiB, subgroups of {}, {} MiB of a buffer at a time{}{}{usable}",
            self.name,
            self.kind,
            self.vulkan,
            self.driver,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.subgroup,
            self.max_buffer_range >> 20,
            if self.float64 { ", f64" } else { "" },
            if self.atomic_add_f32 { ", f32 atomics" } else { "" },
        )
    }
}
