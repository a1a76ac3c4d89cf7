//! Builds without Vulkan: there is no device to bench on.

use std::collections::BTreeMap;
use std::time::Duration;

use sparsimd::{Error, Result};

use super::matrix::{SampledRows, Task};
use super::peers::PeerName;
use super::results::Case;
use crate::cli::device::DeviceName;

/// A device: there is none.
pub struct Target {
    never: std::convert::Infallible,
    /// Nobody.
    pub absent: Vec<String>,
}

impl Target {
    /// `None` for the processor, an error for anything else.
    pub fn open(name: &DeviceName, _: &[PeerName], _: Option<f64>, _: Duration) -> Result<Option<Self>> {
        if *name == DeviceName::Cpu {
            return Ok(None);
        }
        let detail = "this build is without the feature 'vulkan'".to_owned();
        Err(Error::Unavailable { what: "the device", detail })
    }

    /// The device in words.
    pub fn name(&self) -> String {
        match self.never {}
    }

    /// Versions of the peers.
    pub fn details(&self) -> BTreeMap<String, String> {
        match self.never {}
    }

    /// Verifies and times.
    pub fn case(&self, _: &Task<'_>, _: &SampledRows, _: &mut Case) -> Result<()> {
        match self.never {}
    }
}
