//! What can go wrong between the program and the device.

use ash::vk;

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, with the device's name where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Vulkan loader is not on this machine, or refuses to start.
    #[error("no Vulkan: {0}")]
    NoVulkan(String),
    /// No device, or none that answers the wish.
    #[error("no device: {0}")]
    NoDevice(String),
    /// The device lacks what the kernels need.
    #[error("{device}: needs {feature}")]
    Feature {
        /// The device.
        device: String,
        /// What is missing, as Vulkan calls it.
        feature: String,
    },
    /// The device's memory does not suffice.
    #[error("{device}: out of memory: {bytes} bytes wanted, {left} left")]
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes left of the budget.
        left: u64,
    },
    /// The driver gave the device up; it cannot be used any more.
    #[error("{device}: the device was lost")]
    Lost {
        /// The device.
        device: String,
    },
    /// Work did not end within the time limit; the device is not used any more.
    #[error("{device}: no answer within {seconds} s")]
    Timeout {
        /// The device.
        device: String,
        /// The limit.
        seconds: f64,
    },
    /// A compiled module is not what its manifest says.
    #[error("{file}: {detail}")]
    Module {
        /// The module's file.
        file: String,
        /// Where it differs.
        detail: String,
    },
    /// A call failed for another reason.
    #[error("{device}: {call}: {code}")]
    Call {
        /// The device.
        device: String,
        /// The Vulkan function.
        call: &'static str,
        /// Its result.
        code: vk::Result,
    },
    /// A request outside the device's limits.
    #[error("{device}: {detail}")]
    Limit {
        /// The device.
        device: String,
        /// The request and the limit.
        detail: String,
    },
}
