//! The operations on a Vulkan device (feature `vulkan`).
//!
//! A [`Gpu`] is an open device. Operands are uploaded once ([`Gpu::csr`], [`Gpu::mat`]) and stay; the operations have the names
//! and the argument order of [`Cpu`](crate::Cpu)'s. A call returns when the device has finished. Kernels are SPIR-V, written
//! in Rust (`gpu-spirv/src`) and committed compiled; any Vulkan 1.2 device with subgroup shuffles runs them, a CPU driver
//! included.
//!
//! Determinism: the same operands, device and shape give the same bits; no atomics are used, but where they are asked for
//! ([`MttkrpAlgorithm::Atomic`](crate::plan::MttkrpAlgorithm::Atomic)).

mod blocks;
mod ceilings;
mod edge;
mod elements;
mod elementwise;
mod error;
mod fibers;
mod fusedmm;
mod gather;
mod kernels;
mod mttkrp;
mod operands;
mod pieces;
mod prepare;
mod sddmm;
mod sparse;
mod spmm;
mod streamed;
mod tensor;
mod ttm_chain;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use ceilings::{DeviceCeilings, DeviceLevel};
pub use edge::{DeviceEdge, EdgeKind};
pub use fibers::GpuFibers;
pub use operands::{GpuMat, GpuValues};
pub use sparse::GpuCsr;
use sparsimd_gpu_host::{Buffer, Device, Instance, Pod, Stream};
pub use sparsimd_gpu_host::{Choice, DeviceInfo, DeviceOptions, Kind};
use sparsimd_kernels::{Scalar, Stored, bf16, f16};
pub use tensor::{GpuFactors, GpuTensor};
pub use ttm_chain::GpuChain;

use crate::error::{Error, Result};
use crate::plan::{DeviceShape, Team};
pub(crate) use tensor::{Unit, sort_items};

/// An element type with kernels: `f32` or `f64`.
pub trait DeviceScalar: Scalar + Pod + sparsimd_gpu_abi::Number + DeviceStored<Sum = Self> {
    /// Whether the device must have 64-bit floats.
    const DOUBLE: bool;
}

impl DeviceScalar for f32 {
    const DOUBLE: bool = false;
}

impl DeviceScalar for f64 {
    const DOUBLE: bool = true;
}

/// What dense operands of SpMM, SDDMM and FusedMM may store: a [`DeviceScalar`], or bf16 or f16, which kernels widen to f32 when they load
/// it; the results of SpMM and FusedMM are rounded once. No feature of the device is asked for.
pub trait DeviceStored: Stored {
    /// What it is computed with: [`Stored::Scalar`].
    type Sum: DeviceScalar;
    /// Its bits, as they lie in memory.
    type Bits: Pod + Send + Sync + std::fmt::Debug;
    /// Which kernels read it.
    const STORAGE: Storage;
    /// To memory.
    fn to_bits(self) -> Self::Bits;
    /// From memory.
    fn from_bits(bits: Self::Bits) -> Self;
}

/// What both a device and the processor compute with alike: every [`DeviceStored`] is.
pub trait Portable: DeviceStored + Stored<Scalar = <Self as DeviceStored>::Sum> {}

impl<D: DeviceStored + Stored<Scalar = <D as DeviceStored>::Sum>> Portable for D {}

/// How the elements of dense operands lie in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// f32.
    Single,
    /// f64.
    Double,
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

macro_rules! stored {
    ($($t:ty as $sum:ty, $bits:ty, $storage:ident, $to:expr, $from:expr;)*) => {
        $(impl DeviceStored for $t {
            type Sum = $sum;
            type Bits = $bits;
            const STORAGE: Storage = Storage::$storage;
            fn to_bits(self) -> $bits {
                $to(self)
            }
            fn from_bits(bits: $bits) -> Self {
                $from(bits)
            }
        })*
    };
}

stored! {
    f32 as f32, f32, Single, std::convert::identity, std::convert::identity;
    f64 as f64, f64, Double, std::convert::identity, std::convert::identity;
    bf16 as f32, u16, Bf16, bf16::to_bits, bf16::from_bits;
    f16 as f32, u16, F16, f16::to_bits, f16::from_bits;
}

/// Seconds spent and bytes copied since [`Gpu::take_times`] was last called.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// In kernels, by the device's own clock; `None` when the device has none.
    pub kernel_s: Option<f64>,
    /// Copying to the device.
    pub upload_s: f64,
    /// Copying from the device.
    pub download_s: f64,
    /// Bytes copied to the device.
    pub uploaded_bytes: u64,
    /// Bytes copied from the device.
    pub downloaded_bytes: u64,
}

/// An open Vulkan device. Clones share it.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

struct Shared {
    kernels: kernels::Kernels,
    state: Mutex<State>,
    times: Mutex<Times>,
    device: Device,
}

/// What one call at a time uses.
struct State {
    stream: Stream,
    scratch: Scratch,
}

/// Memory for partial results, which only grows: repeated calls allocate nothing.
#[derive(Default)]
struct Scratch {
    partial: Option<Buffer<u32>>,
    stats: Option<Buffer<u32>>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.info().name)
    }
}

impl Gpu {
    /// The best device there is: discrete before integrated before a CPU driver.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no Vulkan loader, no device, or none with what the
    /// kernels need.
    pub fn new() -> Result<Self> {
        Self::with_options(DeviceOptions::default())
    }

    /// The device that `choice` names.
    ///
    /// # Errors
    /// As [`Gpu::new`].
    pub fn open(choice: Choice) -> Result<Self> {
        Self::with_options(DeviceOptions { choice, ..DeviceOptions::default() })
    }

    /// A device opened with limits of one's own.
    ///
    /// # Errors
    /// As [`Gpu::new`].
    pub fn with_options(options: DeviceOptions) -> Result<Self> {
        Self::on(&Instance::new(false)?, options)
    }

    /// A device opened with the validation layer, whose words [`Gpu::validation_messages`] gives.
    ///
    /// # Errors
    /// As [`Gpu::new`], and when the layer is not installed.
    pub fn validated(options: DeviceOptions) -> Result<Self> {
        Self::on(&Instance::new(true)?, options)
    }

    fn on(instance: &Arc<Instance>, options: DeviceOptions) -> Result<Self> {
        let device = Device::new(instance, options)?;
        let state = State { stream: Stream::new(&device)?, scratch: Scratch::default() };
        let kernels = kernels::Kernels::new(&device)?;
        Ok(Self { shared: Arc::new(Shared { kernels, state: Mutex::new(state), times: Mutex::default(), device }) })
    }

    /// All devices of this machine, the preferred ones first.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when there is no Vulkan loader.
    pub fn devices() -> Result<Vec<DeviceInfo>> {
        Ok(Instance::new(false)?.devices()?)
    }

    /// What the device is and can do.
    pub fn info(&self) -> &DeviceInfo {
        self.shared.device.info()
    }

    /// Bytes of the device's memory that may still be taken.
    pub fn memory_left(&self) -> u64 {
        self.shared.device.memory_left()
    }

    /// What the validation layer has said: empty without it.
    pub fn validation_messages(&self) -> Vec<String> {
        self.shared.device.instance().messages()
    }

    /// The seconds spent and the bytes copied since the last call of this function.
    pub fn take_times(&self) -> Times {
        let [uploaded_bytes, downloaded_bytes] = self.state().stream.take_copied();
        Times { uploaded_bytes, downloaded_bytes, ..std::mem::take(&mut *self.times()) }
    }

    /// The seconds spent in kernels since this function or [`Gpu::take_times`] was last called; copies stay on account.
    pub fn take_kernel_time(&self) -> Option<f64> {
        self.times().kernel_s.take()
    }

    /// The device as plans see it, for elements of `T`.
    pub fn shape<T>(&self) -> DeviceShape {
        let info = self.info();
        DeviceShape {
            subgroup: info.subgroup as usize,
            resident: info.resident_subgroups.map_or(DeviceShape::DEFAULT_RESIDENT, |n| n as usize),
            max_len: max_len::<T>(&self.shared.device),
        }
    }

    fn team<T>(&self, blocks: usize) -> Team {
        Team::choose(blocks, self.shape::<T>())
    }

    /// Refuses rows for which an invocation takes more steps than the device's loops go; `rows` are looked at where there is such an end.
    fn check_steps(&self, what: &'static str, mut rows: impl Iterator<Item = usize>) -> Result<()> {
        if self.info().kind != Kind::Cpu {
            return Ok(());
        }
        match rows.find(|&steps| steps > STEPS) {
            Some(steps) => {
                let detail = format!("{}: a row of {steps} steps, more than {STEPS}", self.info().name);
                Err(Error::Unavailable { what, detail })
            }
            None => Ok(()),
        }
    }

    fn device(&self) -> &Device {
        &self.shared.device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.shared.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_kernel(&self, seconds: Option<f64>) {
        if let Some(s) = seconds {
            *self.times().kernel_s.get_or_insert(0.0) += s;
        }
    }

    fn timed_upload<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        let start = std::time::Instant::now();
        let result = f(&self.state());
        self.times().upload_s += start.elapsed().as_secs_f64();
        result
    }

    fn timed_download<R>(&self, f: impl FnOnce(&State) -> R) -> R {
        let start = std::time::Instant::now();
        let result = f(&self.state());
        self.times().download_s += start.elapsed().as_secs_f64();
        result
    }
}

/// Steps that an invocation's loops take together at most where the processor runs the driver: Mesa's ends them there, without an error
/// and with a wrong sum. No other device has such an end.
const STEPS: usize = 65535;

/// Elements of the wider of `T` and an index that a kernel can see of one array, room for padding left.
fn max_len<T>(device: &Device) -> usize {
    let widest = size_of::<T>().max(size_of::<u32>());
    (device.max_range() as usize / widest).saturating_sub(64)
}

impl Scratch {
    /// A buffer of at least `bytes`, the old one when it suffices.
    fn grow<'a>(slot: &'a mut Option<Buffer<u32>>, device: &Device, bytes: usize) -> Result<&'a mut Buffer<u32>> {
        let words = bytes.div_ceil(4);
        let kept = slot.take().filter(|b| b.len() >= words);
        let buffer = match kept {
            Some(b) => b,
            None => Buffer::new(device, words, "scratch")?,
        };
        Ok(slot.insert(buffer))
    }
}
