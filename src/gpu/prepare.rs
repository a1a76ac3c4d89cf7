//! Preparing a sparse operand on the device for many runs.

use super::sparse::GpuCsr;
use super::tensor::{GpuTensor, Unit};
use super::tiled::{GpuPanels, Panels};
use super::{DeviceScalar, DeviceStored, Gpu, GpuValues};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, CsfKind, CsfSet, Csr, DEFAULT_BLOCK_BITS, HiCoo, MmCsf, MmCsfStrategy};
use crate::plan::{
    MttkrpAlgorithm, MttkrpFormat, Op, PlanOptions, Strategy, check_columns, device_mttkrp_format, device_panels_pay,
};

/// A sparse matrix in device memory prepared for one operation and one number of dense columns, by [`Gpu::prepare`].
///
/// New values over the same pattern are one call, [`GpuPrepared::set_values`]. Running with another number of columns is correct
/// and may be slower.
pub struct GpuPrepared<T> {
    op: Op,
    matrix: GpuCsr<T>,
    panels: Option<Box<GpuPanels<T>>>,
}

/// The sparse operand of an operation on the device: everything that is [`Into`] it will do.
#[derive(Clone, Copy)]
pub enum GpuOperand<'a, T> {
    /// By rows: nothing to prepare.
    Csr(&'a GpuCsr<T>),
    /// Prepared by [`Gpu::prepare`], for many runs.
    Prepared(&'a GpuPrepared<T>),
}

impl<'a, T> From<&'a GpuCsr<T>> for GpuOperand<'a, T> {
    fn from(matrix: &'a GpuCsr<T>) -> Self {
        Self::Csr(matrix)
    }
}

impl<'a, T> From<&'a GpuPrepared<T>> for GpuOperand<'a, T> {
    fn from(prepared: &'a GpuPrepared<T>) -> Self {
        Self::Prepared(prepared)
    }
}

impl<'a, T> GpuOperand<'a, T> {
    /// The matrix by rows.
    pub fn matrix(self) -> &'a GpuCsr<T> {
        match self {
            Self::Csr(matrix) => matrix,
            Self::Prepared(prepared) => &prepared.matrix,
        }
    }

    /// The panels for a run of `op` on dense operands of `D`, if it was prepared with some that read those.
    pub(super) fn panels_for<D: DeviceStored>(self, op: Op) -> Result<Option<&'a GpuPanels<T>>> {
        match self {
            Self::Csr(_) => Ok(None),
            Self::Prepared(prepared) => {
                op.check_prepared(prepared.op)?;
                Ok(prepared.panels.as_deref().filter(|_| !D::STORAGE.is_narrow()))
            }
        }
    }
}

impl Gpu {
    /// Uploads `a` and prepares it for many runs of the operation of `options`.
    ///
    /// [`Strategy::Panel`] lays the nonzeros out by panels of four rows, beside the rows. Then B (and D) go through workgroup memory,
    /// and one load of them serves all rows of a panel that have its column. [`Strategy::Direct`] keeps the rows alone.
    /// [`Strategy::Auto`] makes panels where they pay by [`device_panels_pay`] and half of the free memory holds them.
    ///
    /// SpMM and SDDMM have panels for any number of columns. FusedMM has them where a team holds rows of C and E in
    /// registers and workgroup memory holds rows of B and D: up to 128 columns of 32 bits (64 with subgroups of four lanes) or 64 of
    /// 64 bits; runs on wider operands go by rows, and so do all on operands of bf16 or f16. A^T has no panels; it is made here instead of in the first run.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense operands have no columns, [`Error::Unavailable`] for [`Strategy::Panel`] where the operation
    /// has no panels, the rows are too wide or the matrix is too large, [`Error::Device`] when the device fails or its memory runs out.
    #[inline(never)]
    pub fn prepare<T: DeviceScalar>(&self, a: &Csr<T>, options: &PlanOptions) -> Result<GpuPrepared<T>> {
        let &PlanOptions { op, n, strategy, .. } = options;
        check_columns(n)?;
        let matrix = self.csr(a)?;
        let must = strategy == Strategy::Panel;
        // The dense operands want the other half.
        let room = if must { u64::MAX } else { self.memory_left() / 2 };
        let made = match must || strategy == Strategy::Auto && device_panels_pay(a.rows(), a.cols(), a.nnz()) {
            true if matrix.chunks() > 1 => Panels::Refused("are more than a kernel can see".to_owned()),
            true => GpuPanels::lay_out(self, a.pattern(), op, n, room)?,
            false => Panels::Refused(String::new()),
        };
        let panels = match made {
            Panels::Made(panels) => Some(panels),
            Panels::Refused(why) if must => {
                let detail = format!("{}: {} nonzeros {why}", self.info().name, a.nnz());
                return Err(Error::Unavailable { what: "a matrix by panels", detail });
            }
            Panels::Refused(_) => None,
        };
        if op == Op::SpmmTransposed {
            matrix.with_transposed(|_| Ok(()))?;
        }
        let mut prepared = GpuPrepared { op, matrix, panels };
        prepared.arrange()?;
        Ok(prepared)
    }

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

impl<T: DeviceScalar> GpuPrepared<T> {
    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// How it runs: [`Strategy::Panel`] or [`Strategy::Direct`].
    pub fn strategy(&self) -> Strategy {
        if self.panels.is_some() { Strategy::Panel } else { Strategy::Direct }
    }

    /// The matrix by rows.
    pub fn matrix(&self) -> &GpuCsr<T> {
        &self.matrix
    }

    /// Takes new values, in CSR order of the pattern that was prepared.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the number of nonzeros, [`Error::Device`] when the device fails.
    #[inline(never)]
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        self.matrix.set_values(values)?;
        self.arrange()
    }

    /// Exchanges the values for others on the same pattern, as [`GpuCsr::swap_values`].
    ///
    /// # Errors
    /// [`Error::Shape`] when `values` belong to another pattern or device, [`Error::Device`] when the device fails.
    #[inline(never)]
    pub fn swap_values(&mut self, values: &mut GpuValues<T>) -> Result<()> {
        self.matrix.swap_values(values)?;
        self.arrange()
    }

    /// Brings the panels' values up to date. SDDMM reads those by rows.
    fn arrange(&mut self) -> Result<()> {
        match &mut self.panels {
            Some(panels) if self.op != Op::Sddmm => {
                let arranged = panels.arrange(&self.matrix.gpu, &self.matrix.values);
                if arranged.is_err() {
                    // The old values must not be used for the new ones: the rows serve.
                    self.panels = None;
                }
                arranged
            }
            _ => Ok(()),
        }
    }
}
