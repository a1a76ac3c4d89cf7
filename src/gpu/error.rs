//! The host layer's errors as the library's.

use sparsimd_gpu_host::Error as HostError;

use crate::error::Error;

impl From<HostError> for Error {
    fn from(e: HostError) -> Self {
        match e {
            HostError::NoVulkan(_) | HostError::NoDevice(_) | HostError::Feature { .. } => {
                Self::Unavailable { what: "Vulkan device", detail: e.to_string() }
            }
            e => Self::Device { detail: e.to_string() },
        }
    }
}
