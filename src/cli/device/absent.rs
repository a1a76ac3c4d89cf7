//! Builds without Vulkan: every wish for a device is an error.

use serde::Serialize;
use sparsimd::{Cpu, Csr, Error, Result, Scalar};

use crate::cli::matrix::{Common, Measured};

fn absent<R>() -> Result<R> {
    let detail = "this build is without the feature 'vulkan'".to_owned();
    Err(Error::Unavailable { what: "the device", detail })
}

/// A device that this build could use: none.
#[derive(Serialize)]
pub enum Device {}

/// The devices, or why there are none.
pub fn devices() -> Result<Vec<Device>> {
    absent()
}

impl Device {
    /// In words.
    pub fn text(&self) -> String {
        match *self {}
    }
}

/// SpMM on a device.
pub fn spmm<T: Scalar>(_: &Common, _: &Cpu, _: &Csr<T>) -> Result<Measured> {
    absent()
}

/// SDDMM on a device.
pub fn sddmm<T: Scalar>(_: &Common, _: &Cpu, _: &Csr<T>) -> Result<Measured> {
    absent()
}

/// FusedMM on a device.
pub fn fusedmm<T: Scalar>(_: &Common, _: &Cpu, _: &Csr<T>) -> Result<Measured> {
    absent()
}
