//! TTM and TTV by fibers, MTTKRP by slices, on both sides.

use std::ops::Range;

use super::Hetero;
use super::share::{Divisible, Job, Parts};
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csf, Fibers, rooted_mode_order};
use crate::gpu::{DeviceScalar, Gpu, GpuFibers, GpuTensor, Unit, sort_items};
use crate::ops::{MttkrpTensor, TtmAlgorithm};
use crate::plan::{MttkrpAlgorithm, MttkrpFormat, TensorOptions, device_mttkrp_format};

/// The nonzeros of a tensor by the fibers of one mode, with the parts that each side works on.
pub struct HeteroFibers<T: DeviceScalar> {
    parts: Parts<OwnFibers<T>>,
}

/// Fibers that own their arrays.
struct OwnFibers<T> {
    dim: usize,
    ptr: Vec<usize>,
    leaf: Vec<u32>,
    values: Vec<T>,
}

impl<T: DeviceScalar> OwnFibers<T> {
    /// The fibers of a range of `x`.
    fn of(x: Fibers<'_, T>, range: &Range<usize>) -> Self {
        let nonzeros = x.ptr[range.start]..x.ptr[range.end];
        Self {
            dim: x.dim,
            ptr: x.ptr[range.start..=range.end].iter().map(|p| p - nonzeros.start).collect(),
            leaf: x.leaf[nonzeros.clone()].to_vec(),
            values: x.values[nonzeros].to_vec(),
        }
    }

    fn view(&self) -> Fibers<'_, T> {
        Fibers { dim: self.dim, ptr: &self.ptr, leaf: &self.leaf, values: &self.values }
    }
}

impl<T: DeviceScalar> Divisible for OwnFibers<T> {
    type OnDevice = GpuFibers<T>;
    type OnHost = Self;

    fn items(&self) -> usize {
        self.ptr.len() - 1
    }

    fn work(&self, i: usize) -> usize {
        self.ptr[i] + i
    }

    fn device_part(&self, gpu: &Gpu, fibers: &Range<usize>) -> Result<GpuFibers<T>> {
        gpu.fibers(Self::of(self.view(), fibers).view())
    }

    fn host_part(&self, _: &Cpu, fibers: &Range<usize>) -> Result<Self> {
        Ok(Self::of(self.view(), fibers))
    }
}

impl<T: DeviceScalar> HeteroFibers<T> {
    /// A copy of the fibers, not cut yet.
    pub fn new<'a>(x: impl Into<Fibers<'a, T>>) -> Self {
        let x = x.into();
        Self { parts: Parts::new(OwnFibers::of(x, &(0..x.len()))) }
    }

    /// Number of fibers: rows of a TTM's result.
    pub fn len(&self) -> usize {
        self.parts.whole.items()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The (first) device's share of the work that an adaptive run of the operation `op` found.
    pub fn share(&self, op: &str) -> Option<f64> {
        self.parts.share(op)
    }
}

impl Hetero {
    /// Y_f = sum over the nonzeros (k, x) of fiber f of x U_k, on both sides by the same algorithm. Shapes as in
    /// [`Cpu::ttm_into`](crate::Cpu::ttm_into).
    ///
    /// # Errors
    /// [`Error::Shape`]. A device that fails is replaced: see [`Hetero::take_failures`].
    #[inline(never)]
    pub fn ttm_into<T: DeviceScalar>(
        &self,
        x: &mut HeteroFibers<T>,
        u: MatRef<'_, T>,
        algorithm: TtmAlgorithm,
        y: MatMut<'_, T>,
    ) -> Result<()> {
        check_shape("ttm", "U", u.shape(), (x.parts.whole.dim, u.cols()))?;
        check_shape("ttm", "Y", y.shape(), (x.len(), u.cols()))?;
        let job = Job {
            // Each has a rate of its own.
            op: if algorithm == TtmAlgorithm::Element { "ttm by elements" } else { "ttm" },
            upload: |gpu: &Gpu| gpu.mat(u),
            device: |gpu: &Gpu, x: &GpuFibers<T>, u: &_, _: &Range<usize>, y: &mut MatMut<'_, T>| {
                let mut out = gpu.zeros(y.rows(), y.cols())?;
                gpu.ttm_into(x, u, algorithm, &mut out)?;
                out.download(y.reborrow())
            },
            processor: |cpu: &Cpu, x: &OwnFibers<T>, _: &Range<usize>, y: &mut MatMut<'_, T>| {
                cpu.ttm_into(x.view(), u, algorithm, y.reborrow())
            },
        };
        self.share_out(&mut x.parts, y, job)
    }

    /// y_f = sum over the nonzeros (k, x) of fiber f of x v_k, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::ttm_into`].
    #[inline(never)]
    pub fn ttv_into<T: DeviceScalar>(&self, x: &mut HeteroFibers<T>, v: &[T], y: &mut [T]) -> Result<()> {
        check_shape("ttv", "v", (1, v.len()), (1, x.parts.whole.dim))?;
        check_shape("ttv", "y", (1, y.len()), (1, x.len()))?;
        let job = Job {
            op: "ttv",
            upload: |gpu: &Gpu| gpu.values(v),
            device: |gpu: &Gpu, x: &GpuFibers<T>, v: &_, _: &Range<usize>, y: &mut &mut [T]| {
                let mut out = gpu.new_values(y.len())?;
                gpu.ttv_into(x, v, &mut out)?;
                out.download(y)
            },
            processor: |cpu: &Cpu, x: &OwnFibers<T>, _: &Range<usize>, y: &mut &mut [T]| cpu.ttv_into(x.view(), v, y),
        };
        self.share_out(&mut x.parts, y, job)
    }

    /// M_i = sum over the nonzeros x of slice i of `mode` of x times the product of the other modes' factor rows, on both sides.
    /// Shapes as in [`Cpu::mttkrp`](crate::Cpu::mttkrp).
    ///
    /// # Errors
    /// [`Error::Argument`] when there is no such mode, and as [`Hetero::ttm_into`].
    #[inline(never)]
    pub fn mttkrp<T: DeviceScalar>(
        &self,
        x: &mut HeteroTensor<T>,
        factors: &[MatRef<'_, T>],
        mode: usize,
        out: MatMut<'_, T>,
    ) -> Result<()> {
        const OP: &str = "mttkrp";
        let (rank, dims) = (out.cols(), x.coo.dims().to_vec());
        if factors.len() != dims.len() {
            return Err(Error::shape(OP, format!("{} factors for a tensor of order {}", factors.len(), dims.len())));
        }
        for (m, (factor, &dim)) in factors.iter().zip(&dims).enumerate().filter(|&(m, _)| m != mode) {
            check_shape(OP, &format!("factor {m}"), factor.shape(), (dim, rank))?;
        }
        let slices = x.slices(mode)?;
        check_shape(OP, "the output", (out.rows(), rank), (dims[mode], rank))?;
        let job = Job {
            op: OP,
            upload: |gpu: &Gpu| gpu.factors_but(mode, &dims, factors, rank),
            device: |gpu: &Gpu, x: &GpuTensor<T>, factors: &_, rows: &Range<usize>, out: &mut MatMut<'_, T>| {
                let mut product = gpu.zeros(dims[mode], rank)?;
                gpu.mttkrp(x, factors, mode, &mut product)?;
                product.download_rows(rows.start, out.reborrow())
            },
            processor: |cpu: &Cpu, x: &MttkrpTensor<T>, _: &Range<usize>, out: &mut MatMut<'_, T>| {
                cpu.mttkrp(x, factors, mode, out.reborrow())
            },
        };
        self.share_out(slices, out, job)
    }
}

/// A tensor with, for each mode that was asked for, the slices that each side works on.
pub struct HeteroTensor<T: DeviceScalar> {
    coo: CooTensor<T>,
    rank: usize,
    by_elements: bool,
    modes: Vec<Option<Parts<Slices<T>>>>,
}

impl<T: DeviceScalar> HeteroTensor<T> {
    /// The tensor, not cut yet. The processor's parts are planned for `rank` columns; others are right as well.
    pub fn new(coo: CooTensor<T>, rank: usize) -> Self {
        let modes = coo.dims().iter().map(|_| None).collect();
        Self { coo, rank, by_elements: false, modes }
    }

    /// The same, computed by elements on both sides ([`MttkrpAlgorithm::Element`]).
    pub fn by_elements(self) -> Self {
        Self { by_elements: true, ..Self::new(self.coo, self.rank) }
    }

    /// How the work of every mode is cut on each side: slice, unless it is element.
    pub fn algorithm(&self) -> MttkrpAlgorithm {
        if self.by_elements { MttkrpAlgorithm::Element } else { MttkrpAlgorithm::Slice }
    }

    /// The whole tensor.
    pub fn tensor(&self) -> &CooTensor<T> {
        &self.coo
    }

    /// The (first) device's share of the work in `mode` that an adaptive run found.
    pub fn share(&self, mode: usize) -> Option<f64> {
        self.modes.get(mode)?.as_ref()?.share("mttkrp")
    }

    fn slices(&mut self, mode: usize) -> Result<&mut Parts<Slices<T>>> {
        let order = self.modes.len();
        let Some(slot) = self.modes.get_mut(mode) else {
            return Err(Error::argument("mode", format!("{mode} of a tensor of order {order}")));
        };
        Ok(slot.get_or_insert_with(|| Parts::new(Slices::of(&self.coo, mode, self.rank, self.by_elements))))
    }
}

/// The nonzeros of a tensor, sorted by the slices of one mode.
struct Slices<T> {
    mode: usize,
    rank: usize,
    by_elements: bool,
    ptr: Vec<usize>,
    coo: CooTensor<T>,
}

impl<T: DeviceScalar> Slices<T> {
    fn of(coo: &CooTensor<T>, mode: usize, rank: usize, by_elements: bool) -> Self {
        let slice = coo.coords(mode);
        let (ptr, order) = sort_items(coo.nnz(), coo.dims()[mode], |p| slice[p] as usize);
        Self { mode, rank, by_elements, ptr, coo: gather(coo, order.iter().map(|&p| p as usize)) }
    }

    /// The nonzeros of some slices.
    fn part(&self, slices: &Range<usize>) -> CooTensor<T> {
        gather(&self.coo, self.ptr[slices.start]..self.ptr[slices.end])
    }
}

/// Some nonzeros of a tensor.
fn gather<T: DeviceScalar>(coo: &CooTensor<T>, which: impl Iterator<Item = usize> + Clone) -> CooTensor<T> {
    let coords = coo.all_coords().iter().map(|c| which.clone().map(|p| c[p]).collect()).collect();
    CooTensor::from_checked(coo.dims().to_vec(), coords, which.map(|p| coo.values()[p]).collect())
}

impl<T: DeviceScalar> Divisible for Slices<T> {
    type OnDevice = GpuTensor<T>;
    type OnHost = MttkrpTensor<T>;

    fn items(&self) -> usize {
        self.ptr.len() - 1
    }

    fn work(&self, i: usize) -> usize {
        self.ptr[i] + i
    }

    /// One tree with the mode at its root where a kernel can see it, else coordinates, which are not for elements. Slices keep their
    /// numbers.
    fn device_part(&self, gpu: &Gpu, slices: &Range<usize>) -> Result<GpuTensor<T>> {
        let part = self.part(slices);
        let tree = || Csf::from_coo(&part, &rooted_mode_order(part.dims(), self.mode));
        if self.by_elements {
            return gpu.tensor_of_roots(&[tree()?], Unit::Element);
        }
        let max_len = gpu.shape::<T>().max_len;
        match device_mttkrp_format(part.order(), part.nnz(), size_of::<T>(), max_len, gpu.memory_left()) {
            MttkrpFormat::Coo => gpu.tensor(&part),
            _ => gpu.tensor_of_all(&[tree()?]),
        }
    }

    /// The slices as a tensor of their own, whose first one has number 0.
    fn host_part(&self, cpu: &Cpu, slices: &Range<usize>) -> Result<MttkrpTensor<T>> {
        let (mut dims, mut coords, values) = self.part(slices).into_parts();
        dims[self.mode] = slices.len();
        coords[self.mode].iter_mut().for_each(|i| *i -= slices.start as u32);
        let options = TensorOptions::new(self.rank);
        let options = match self.by_elements {
            true => options.format(MttkrpFormat::CsfAll).algorithm(MttkrpAlgorithm::Element),
            false => options,
        };
        cpu.prepare_tensor(&CooTensor::from_checked(dims, coords, values), &options)
    }
}
