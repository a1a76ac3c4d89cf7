//! Vulkan compute as owned values: [`Instance`], [`Device`], [`Buffer`], [`Pipeline`], [`Stream`]. Each frees what it holds
//! and keeps alive what it needs. Nothing here knows of sparsity.
//!
//! The Vulkan loader is opened at run time. Every wait has a time limit, and every failure is an [`Error`] that names the
//! device.

mod buffer;
mod commands;
mod device;
mod error;
mod instance;
mod module;
mod pipeline;
mod select;
mod stream;

pub use buffer::Buffer;
pub use bytemuck::Pod;
pub use device::{Device, DeviceOptions};
pub use error::{Error, Result};
pub use instance::Instance;
pub use module::{Manifest, Module, ModuleInfo, describe, sha256};
pub use pipeline::Pipeline;
pub use select::{Choice, DeviceInfo, Kind};
pub use stream::{Binding, Recorder, Stream};
