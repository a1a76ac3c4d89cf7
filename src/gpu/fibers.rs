//! TTV and TTM on the device: a tensor by the fibers of one mode is a sparse matrix with a row for each fiber.

use sparsimd_gpu_abi::WORKGROUP;

use super::kernels::{TTV, groups};
use super::operands::{GpuMat, GpuValues};
use super::sparse::{Cut, GpuCsr};
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::formats::{Csr, Fibers, Pattern};
use crate::ops::TtmAlgorithm;
use crate::plan::Team;

/// The nonzeros of a tensor by the fibers of one mode, in device memory.
pub struct GpuFibers<T> {
    rows: GpuCsr<T>,
}

impl<T: DeviceScalar> GpuFibers<T> {
    /// Number of fibers: values of a TTV's result, rows of a TTM's.
    pub fn len(&self) -> usize {
        self.rows.rows()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of the mode.
    pub fn dim(&self) -> usize {
        self.rows.cols()
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.rows.nnz()
    }
}

impl Gpu {
    /// The tensor in device memory.
    ///
    /// # Errors
    /// [`Error::Device`] when memory runs out.
    pub fn fibers<'a, T: DeviceScalar>(&self, x: impl Into<Fibers<'a, T>>) -> Result<GpuFibers<T>> {
        let x = x.into();
        let pattern = Pattern::new(x.len(), x.dim(), x.ptr.to_vec(), x.leaf.to_vec())?;
        Ok(GpuFibers { rows: self.csr(&Csr::new(pattern, x.values.to_vec())?)? })
    }

    /// Y_f = sum over the nonzeros (k, x) of fiber f of x U_k, a row of Y for each fiber: TTM as
    /// [`Cpu::ttm_into`](crate::Cpu::ttm_into) computes it.
    ///
    /// By fibers, a team of lanes computes a row of Y, each lane a register block of it, and long fibers are cut: what
    /// [`TtmAlgorithm::Auto`] is here. By elements, a lane computes one element of Y.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes or the devices of the operands differ, [`Error::Device`] when the device fails,
    /// [`Error::Unavailable`] by elements for fibers of more than 8191 nonzeros where the processor is the device.
    #[inline(never)]
    pub fn ttm_into<T: DeviceScalar>(
        &self,
        x: &GpuFibers<T>,
        u: &GpuMat<T>,
        algorithm: TtmAlgorithm,
        y: &mut GpuMat<T>,
    ) -> Result<()> {
        self.check_own("ttm", "X", &x.rows.gpu)?;
        u.expect(self, "ttm", "U", x.dim(), u.cols())?;
        y.expect(self, "ttm", "Y", x.len(), u.cols())?;
        let (pattern, values) = (&x.rows.pattern, &x.rows.values);
        match algorithm {
            TtmAlgorithm::Element => self.product_by_elements(pattern, values, u, y),
            TtmAlgorithm::Auto | TtmAlgorithm::Fiber => self.product(T::ONE, pattern, values, u, T::ZERO, y),
        }
    }

    /// y_f = sum over the nonzeros (k, x) of fiber f of x v_k: TTV as [`Cpu::ttv_into`](crate::Cpu::ttv_into) computes it.
    /// `v` and `y` are made by [`Gpu::values`].
    ///
    /// # Errors
    /// As [`Gpu::ttm_into`]; [`Error::Device`] also for a vector or a result larger than what a kernel can see, [`Error::Unavailable`]
    /// for fibers of more than 65535 nonzeros for each lane of a team where the processor is the device.
    #[inline(never)]
    pub fn ttv_into<T: DeviceScalar>(&self, x: &GpuFibers<T>, v: &GpuValues<T>, y: &mut GpuValues<T>) -> Result<()> {
        const OP: &str = "ttv";
        self.check_own(OP, "X", &x.rows.gpu)?;
        self.check_own(OP, "v", &v.gpu)?;
        self.check_own(OP, "y", &y.gpu)?;
        if v.len() != x.dim() || y.len() != x.len() {
            let detail = format!("v of {} and y of {}, expected {} and {}", v.len(), y.len(), x.dim(), x.len());
            return Err(Error::shape(OP, detail));
        }
        let ([(_, v)], [(_, y)]) = (v.chunks.as_slice(), y.chunks.as_mut_slice()) else {
            return match x.nnz() {
                // No fibers, or a mode of length 0: nothing to compute.
                0 => Ok(()),
                _ => Err(Error::Device { detail: format!("{}: v or y does not fit a kernel", self.info().name) }),
            };
        };
        // As many lanes as an average fiber has nonzeros.
        let team = Team { registers: 1, ..self.team::<T>((x.nnz() / x.len().max(1)).max(1)) };
        let lanes = team.lanes as usize;
        self.check_steps(OP, x.rows.pattern.row_lengths().map(|nonzeros| nonzeros.div_ceil(lanes)))?;
        let fibers = x.rows.pattern.tasks(self, Cut::Whole)?;
        let kernel = self.shared.kernels.get::<T, u32>(TTV, team, 0)?;
        let output = y.bind_mut();
        let seconds = self.state().stream.record(|r| {
            for ((chunk, tasks), (_, val)) in x.rows.pattern.chunks.iter().zip(&*fibers).zip(&x.rows.values.chunks) {
                let tasks = &tasks.tasks;
                let groups = groups(self.device(), tasks.len(), WORKGROUP as usize / lanes, 1);
                let bindings = [tasks.bind(), chunk.idx.bind(), val.bind(), v.bind(), output];
                // SAFETY: tasks name fibers, elements of y, and nonzeros of the chunk; indices are below v's length.
                unsafe { r.launch(&kernel, &bindings, &(tasks.len() as u32), groups) }?;
            }
            Ok::<_, Error>(())
        })?;
        self.note_kernel(seconds);
        Ok(())
    }
}
