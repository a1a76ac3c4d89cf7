//! Which layout a tensor gets on the device.

use super::tensor::GpuTensor;
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, CsfKind, CsfSet, MmCsf, MmCsfStrategy};
use crate::plan::{MttkrpFormat, device_mttkrp_format};

impl Gpu {
    /// `coo` in device memory, laid out for MTTKRP in every mode in the format given, or in the one that
    /// [`device_mttkrp_format`] chooses. The device has coordinates, CSF-ALL,
    /// CSF-ONE and MM-CSF.
    ///
    /// # Errors
    /// [`Error::Argument`] for another format, [`Error::Structure`] for order 1 or two entries at one place,
    /// [`Error::Device`] when memory runs out or a tree is larger than what a kernel can see.
    #[inline(never)]
    pub fn prepare_mttkrp<T: DeviceScalar>(
        &self,
        coo: &CooTensor<T>,
        format: Option<MttkrpFormat>,
    ) -> Result<GpuTensor<T>> {
        let chosen = format.unwrap_or_else(|| {
            device_mttkrp_format(coo.order(), coo.nnz(), size_of::<T>(), self.shape::<T>().max_len, self.memory_left())
        });
        match chosen {
            MttkrpFormat::Coo => self.tensor(coo),
            MttkrpFormat::CsfAll => self.tensor_of_all(CsfSet::from_coo(coo, CsfKind::All)?.trees()),
            MttkrpFormat::CsfOne => self.tensor_of_parts(CsfSet::from_coo(coo, CsfKind::One)?.trees()),
            MttkrpFormat::MmCsf => self.tensor_of_parts(MmCsf::from_coo(coo, MmCsfStrategy::Dynamic)?.trees()),
            other => {
                let detail = format!("a device has no MTTKRP on {}: coo, csf-all, csf-one or mmcsf", other.name());
                Err(Error::argument("format", detail))
            }
        }
    }
}
