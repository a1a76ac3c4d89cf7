//! Vulkan devices with the validation layer on.

use std::sync::OnceLock;

use sparsimd::Error;
use sparsimd::gpu::{DeviceOptions, Gpu};

/// A device that is shared by the tests which need no limits of their own.
pub fn gpu() -> Option<Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    super::turn::wait();
    GPU.get_or_init(|| limited(DeviceOptions::default())).clone()
}

/// A device with limits. Without a device (or without the layer) a line says so.
pub fn limited(options: DeviceOptions) -> Option<Gpu> {
    super::turn::wait();
    match Gpu::validated(DeviceOptions { cache_dir: None, ..options }) {
        Ok(gpu) => Some(gpu),
        Err(e @ Error::Unavailable { .. }) => {
            println!("skipped: no device ({e})");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The layer has said nothing.
pub fn quiet(gpu: &Gpu) {
    assert_eq!(gpu.validation_messages(), Vec::<String>::new());
}
