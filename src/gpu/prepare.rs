//! Laying a sparse tensor out on the device for many runs.

use super::tensor::{GpuTensor, Unit};
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, CsfKind, CsfSet, DEFAULT_BLOCK_BITS, HiCoo, MmCsf, MmCsfStrategy};
use crate::plan::{MttkrpAlgorithm, MttkrpFormat, device_mttkrp_format};

impl Gpu {
    /// `coo` in device memory, laid out for MTTKRP in every mode in the format given, or in the one that the algorithm needs or
    /// [`device_mttkrp_format`] chooses. The device has coordinates, CSF-ALL, CSF-ONE, MM-CSF and HiCOO; the element-centric algorithm has
    /// CSF-ALL, the atomic one ([`Gpu::tensor_atomic`]) coordinates.
    ///
    /// # Errors
    /// [`Error::Argument`] for another format, or an algorithm that computes no mode in it, [`Error::Structure`] for order 1 or two
    /// entries at one place, [`Error::Device`] when memory runs out or a tree is larger than what a kernel can see,
    /// [`Error::Unavailable`] as for [`Gpu::tensor_atomic`], in HiCOO for more than four modes, and by elements for slices of thousands of nonzeros where the processor is
    /// the device.
    #[inline(never)]
    pub fn prepare_mttkrp<T: DeviceScalar>(
        &self,
        coo: &CooTensor<T>,
        format: Option<MttkrpFormat>,
        algorithm: Option<MttkrpAlgorithm>,
    ) -> Result<GpuTensor<T>> {
        let chosen = format.unwrap_or_else(|| match algorithm {
            Some(MttkrpAlgorithm::Row | MttkrpAlgorithm::Atomic) => MttkrpFormat::Coo,
            Some(MttkrpAlgorithm::Element) => MttkrpFormat::CsfAll,
            _ => {
                let max_len = self.shape::<T>().max_len;
                device_mttkrp_format(coo.order(), coo.nnz(), size_of::<T>(), max_len, self.memory_left())
            }
        });
        let made = match (chosen, algorithm) {
            (MttkrpFormat::Coo, Some(MttkrpAlgorithm::Atomic)) => self.tensor_atomic(coo),
            (MttkrpFormat::Coo, _) => self.tensor(coo),
            (MttkrpFormat::CsfAll, _) => {
                let unit = if algorithm == Some(MttkrpAlgorithm::Element) { Unit::Element } else { Unit::Row };
                self.tensor_of_roots(CsfSet::from_coo(coo, CsfKind::All)?.trees(), unit)
            }
            (MttkrpFormat::CsfOne, _) => self.tensor_of_parts(CsfSet::from_coo(coo, CsfKind::One)?.trees()),
            (MttkrpFormat::MmCsf, _) => self.tensor_of_parts(MmCsf::from_coo(coo, MmCsfStrategy::Dynamic)?.trees()),
            (MttkrpFormat::HiCoo, _) => self.tensor_of_blocks(&HiCoo::new(coo, DEFAULT_BLOCK_BITS)?),
            (other, _) => {
                let detail =
                    format!("a device has no MTTKRP on {}: coo, csf-all, csf-one, mmcsf or hicoo", other.name());
                return Err(Error::argument("format", detail));
            }
        }?;
        match algorithm {
            Some(asked) if !(0..coo.order()).any(|mode| made.algorithm(mode) == Some(asked)) => {
                let detail = format!("a device has no MTTKRP on {} by {}", chosen.name(), asked.name());
                Err(Error::argument("algorithm", detail))
            }
            _ => Ok(made),
        }
    }
}
