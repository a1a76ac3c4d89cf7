//! Vulkan devices with the validation layer on.

use std::sync::OnceLock;

use sparsimd::Error;
use sparsimd::gpu::{DeviceOptions, Gpu};

use super::skip::{Missing, skip};

/// A device that is shared by the tests which need no limits of their own.
pub fn gpu() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    super::turn::wait();
    GPU.get_or_init(|| limited(DeviceOptions::default())).clone()
}

/// A device with limits. Without a device (or without the layer) the calling test is skipped.
pub fn limited(options: DeviceOptions) -> Option<Gpu> {
    super::turn::wait();
    match Gpu::validated(DeviceOptions { cache_dir: None, ..options }) {
        Ok(gpu) => Some(gpu),
        Err(e @ Error::Unavailable { .. }) => {
            skip(Missing::Device, format_args!("no device ({e})"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The layer has said nothing.
pub fn quiet(gpu: &Gpu) {
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}
