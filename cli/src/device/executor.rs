//! What runs an operation on a device: the device alone, or with the processor beside it.

use sparsimd::gpu::{Choice, DeviceOptions, Gpu};
use sparsimd::hetero::{Hetero, Split};
use sparsimd::{Cpu, Error, Result};

use super::{DeviceName, Place};
use crate::output;

/// An open device, alone or beside the processor.
pub enum Devices {
    One(Gpu),
    Both(Box<Hetero>),
}

impl Devices {
    /// What is asked for; `None` for the processor alone.
    pub fn open(place: &Place, cpu: &Cpu) -> Result<Option<Self>> {
        let memory_limit = place.device_memory.map(|mib| mib << 20);
        let open = |choice| Gpu::with_options(DeviceOptions { choice, memory_limit, ..DeviceOptions::default() });
        match &place.device {
            DeviceName::Cpu => Ok(None),
            DeviceName::Gpu(which) => Ok(Some(Self::One(open(which.parse().unwrap_or_default())?))),
            DeviceName::Hetero(split) => {
                let split = split.parse::<Split>().map_err(|detail| Error::Argument { name: "device", detail })?;
                let both = Hetero::new(cpu.clone(), open(Choice::Best)?, split)?;
                Ok(Some(Self::Both(Box::new(both))))
            }
        }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        match self {
            Self::One(gpu) => gpu,
            Self::Both(both) => both.gpu(),
        }
    }

    /// In words.
    pub fn name(&self) -> String {
        match self {
            Self::One(gpu) => gpu.info().name.clone(),
            Self::Both(both) => format!("cpu + {}", both.gpu().info().name),
        }
    }

    /// Says on standard error why a device was replaced by the processor, if it was.
    pub fn note_failures(&self) {
        if let Self::Both(both) = self {
            both.take_failures().iter().for_each(|reason| output::note(&format!("the processor stands in: {reason}")));
        }
    }
}
