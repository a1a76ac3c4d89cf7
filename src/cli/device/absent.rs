//! Builds without Vulkan: every wish for a device is an error.

use std::ops::ControlFlow;

use serde::Serialize;
use sparsimd::decomp::{CpIteration, CpOptions, CpState};
use sparsimd::formats::Fibers;
use sparsimd::ops::Arithmetic;
use sparsimd::plan::MttkrpFormat;
use sparsimd::{CooTensor, Cpu, Csr, Error, MatMut, MatRef, Result, Scalar};

use super::{DeviceName, Place, Ran};
use crate::cli::matrix::{Common, Measured};
use crate::cli::timing::Times;

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

/// A device for tensor operations: there is none.
pub enum TensorDevice {}

impl TensorDevice {
    /// `None` for the processor, an error for anything else.
    pub fn open(place: &Place, _: &Cpu) -> Result<Option<Self>> {
        if place.device == DeviceName::Cpu { Ok(None) } else { absent() }
    }

    /// Where the operations ran.
    pub fn ran(&self) -> Ran {
        match *self {}
    }

    /// TTM.
    pub fn ttm<T: Scalar>(
        &mut self,
        _: Option<usize>,
        _: Fibers<'_, T>,
        _: MatRef<'_, T>,
        _: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        match *self {}
    }

    /// TTV.
    pub fn ttv<T: Scalar>(&mut self, _: Option<usize>, _: Fibers<'_, T>, _: &[T], _: &mut [T]) -> Result<(Times, f64)> {
        match *self {}
    }

    /// TEW or TS.
    pub fn elementwise<T: Scalar>(
        &mut self,
        _: Option<usize>,
        _: Arithmetic,
        _: &[T],
        _: Option<&[T]>,
        _: T,
        _: &mut [T],
    ) -> Result<(Times, f64)> {
        match *self {}
    }

    /// A tensor for MTTKRP.
    pub fn prepare<T: Scalar>(&self, _: &CooTensor<T>, _: usize, _: Option<MttkrpFormat>) -> Result<(Absent, f64)> {
        match *self {}
    }

    /// A tensor for MTTKRP by atomic additions.
    pub fn prepare_atomic<T: Scalar>(&self, _: &CooTensor<T>) -> Result<(Absent, f64)> {
        match *self {}
    }

    /// MTTKRP.
    pub fn mttkrp<T: Scalar>(
        &mut self,
        _: Option<usize>,
        _: &mut Absent,
        _: &[MatRef<'_, T>],
        _: usize,
        _: MatMut<'_, T>,
    ) -> Result<(Times, f64)> {
        match *self {}
    }

    /// CP-ALS.
    pub fn cp_als<T: Scalar>(
        &mut self,
        _: &Cpu,
        _: &CooTensor<T>,
        _: Option<MttkrpFormat>,
        _: &CpOptions<T>,
        _: impl FnMut(&CpState<T>, &CpIteration) -> ControlFlow<()> + Send,
    ) -> Result<CpState<T>> {
        match *self {}
    }
}

/// A tensor on a device: there is none.
pub enum Absent {}

impl Absent {
    /// How it is stored.
    pub fn format(&self) -> MttkrpFormat {
        match *self {}
    }

    /// The algorithm of a mode.
    pub fn algorithm(&self, _: usize) -> &'static str {
        match *self {}
    }

    /// Bytes of indices.
    pub fn index_bytes(&self) -> usize {
        match *self {}
    }
}
