//! The compiled kernels, and the pipelines made of them so far.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sparsimd_gpu_abi::{PushConstants, format, spec};
use sparsimd_gpu_host::{Device, Manifest, Module, Pipeline};

use super::{DeviceStored, Storage};
use crate::error::{Error, Result};
use crate::plan::Team;

/// A module: its file's name, and what the file has.
type Committed = (&'static str, &'static [u8]);

/// A kernel, by its function's name in `gpu-spirv/src/entry.rs`, with its modules for each element type.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    name: &'static str,
    single: Committed,
    /// On dense operands of bf16 or f16.
    half: Option<Committed>,
    double: Option<Committed>,
}

macro_rules! module {
    ($kind:literal, $name:literal) => {
        (concat!($kind, ".", $name, ".spv"), include_bytes!(concat!("../../gpu-spirv/spv/", $kind, ".", $name, ".spv")))
    };
}

/// `NAME = "name";`, or `NAME = "name", half;` where dense operands may be narrow.
macro_rules! kernels {
    (@half $name:literal) => { None };
    (@half $name:literal half) => { Some(module!("half", $name)) };
    ($($constant:ident = $name:literal $(, $half:ident)?;)*) => {
        $(pub(super) const $constant: Kernel = Kernel {
            name: $name,
            single: module!("single", $name),
            half: kernels!(@half $name $($half)?),
            double: Some(module!("double", $name)),
        };)*
    };
}

kernels! {
    SPMM = "spmm", half;
    REDUCE_ROWS = "reduce_rows", half;
    SDDMM = "sddmm", half;
    FUSEDMM = "fusedmm", half;
    EDGE = "edge";
    GATHER = "gather";
    MTTKRP_FIBERS = "mttkrp_fibers";
    MTTKRP_NONZEROS = "mttkrp_nonzeros";
    MTTKRP_BLOCKS = "mttkrp_blocks";
    ELEMENTS = "elements";
    TTV = "ttv";
    ELEMENTWISE = "elementwise";
    CEILINGS = "ceilings";
}

/// Atomic addition is there for f32 alone.
pub(super) const MTTKRP_ATOMIC: Kernel =
    Kernel { name: "mttkrp_atomic", single: module!("atomic", "mttkrp_atomic"), half: None, double: None };

const MANIFEST: &str = include_str!("../../gpu-spirv/spv/manifest.json");

/// What makes one pipeline differ from another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    name: &'static str,
    storage: Storage,
    team: Team,
    /// The edge function, or the operator.
    variant: u32,
}

/// The pipelines of one device, made when first asked for.
pub(super) struct Kernels {
    device: Device,
    manifest: Manifest,
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
}

impl Kernels {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), manifest: Manifest::parse(MANIFEST)?, made: Mutex::default() })
    }

    /// `kernel` on dense operands of `D` for `team`, with push constants `P` and the given variant.
    pub(super) fn get<D: DeviceStored, P: PushConstants>(
        &self,
        kernel: Kernel,
        team: Team,
        variant: u32,
    ) -> Result<Arc<Pipeline>> {
        self.made((kernel, team, variant), (D::STORAGE, D::DTYPE), size_of::<P>())
    }

    /// The pipeline of a specialised kernel on operands stored so, with `push` bytes of push constants; made if it is not there yet.
    fn made(
        &self,
        (kernel, team, variant): (Kernel, Team, u32),
        (storage, dtype): (Storage, &'static str),
        push: usize,
    ) -> Result<Arc<Pipeline>> {
        let key = Key { name: kernel.name, storage, team, variant };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = made.get(&key) {
            return Ok(pipeline.clone());
        }
        let files = match storage {
            Storage::Single => Some(kernel.single),
            Storage::Double => kernel.double,
            Storage::Bf16 | Storage::F16 => kernel.half,
        };
        let Some((file, bytes)) = files else {
            let detail = format!("{}: {} has no kernel for {}", self.device.info().name, kernel.name, dtype);
            return Err(Error::Unavailable { what: "the operation on this element type", detail });
        };
        let module = Module::new(&self.manifest, file, bytes)?;
        let constants = [
            (spec::TEAM, team.lanes),
            (spec::REGISTERS, team.registers),
            (spec::VARIANT, variant),
            (spec::FORMAT, if storage == Storage::Bf16 { format::BF16 } else { format::F16 }),
        ];
        let pipeline = Arc::new(Pipeline::new(&self.device, &module, push, &constants)?);
        made.insert(key, pipeline.clone());
        Ok(pipeline)
    }
}

/// Workgroups for `items` pieces of work, `per_group` to a group, folded over x and y; `z` of each.
pub(super) fn groups(device: &Device, items: usize, per_group: usize, z: usize) -> [u32; 3] {
    let n = items.div_ceil(per_group);
    let x = n.min(device.info().max_groups[0] as usize).max(1);
    [if n == 0 { 0 } else { x as u32 }, n.div_ceil(x) as u32, z as u32]
}
