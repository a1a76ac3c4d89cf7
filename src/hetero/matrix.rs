//! SpMM, SDDMM and FusedMM on both sides.

use std::ops::Range;

use sparsimd_kernels::Number;
use sparsimd_kernels::edge::BuiltIn;

use super::Hetero;
use super::share::{Divisible, Job, Output, Parts};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::Csr;
use crate::gpu::{DeviceEdge, DeviceScalar, EdgeKind, Gpu, GpuCsr, Portable};
use crate::ops::{Prepared, SparseOperand};
use crate::plan::{Op, PlanOptions, Strategy};

/// A sparse matrix with the parts that each side works on, and the rates measured so far.
pub struct HeteroCsr<T: DeviceScalar> {
    parts: Parts<Whole<T>>,
}

/// The matrix, and what its parts are prepared for: operation, columns, path.
struct Whole<T> {
    matrix: Csr<T>,
    runs: Vec<PlanOptions>,
}

/// Some rows for the processor, and the same prepared for each operation.
struct HostRows<T> {
    rows: Csr<T>,
    prepared: Vec<Prepared<T>>,
}

impl<T: DeviceScalar> HostRows<T> {
    /// The rows as `op` takes them.
    fn of(&self, op: Op) -> SparseOperand<'_, T> {
        let prepared = self.prepared.iter().find(|prepared| prepared.plan().op() == op);
        prepared.map_or((&self.rows).into(), SparseOperand::Prepared)
    }
}

impl<T: DeviceScalar> Divisible for Whole<T> {
    type OnDevice = GpuCsr<T>;
    type OnHost = HostRows<T>;

    fn items(&self) -> usize {
        self.matrix.rows()
    }

    fn work(&self, i: usize) -> usize {
        self.matrix.pattern().row_ptr()[i] + i
    }

    fn device_part(&self, gpu: &Gpu, rows: &Range<usize>) -> Result<GpuCsr<T>> {
        gpu.csr(&self.matrix.as_ref().row_range(rows.clone())?.to_csr())
    }

    fn host_part(&self, cpu: &Cpu, rows: &Range<usize>) -> Result<HostRows<T>> {
        let rows = self.matrix.as_ref().row_range(rows.clone())?.to_csr();
        let prepared = self.runs.iter().map(|options| cpu.prepare(&rows, &options.reuse(usize::MAX)));
        Ok(HostRows { prepared: prepared.collect::<Result<_>>()?, rows })
    }
}

impl<T: DeviceScalar> HeteroCsr<T> {
    /// The matrix, not cut yet.
    pub fn new(matrix: Csr<T>) -> Self {
        Self { parts: Parts::new(Whole { matrix, runs: Vec::new() }) }
    }

    /// The whole matrix.
    pub fn matrix(&self) -> &Csr<T> {
        &self.parts.whole.matrix
    }

    /// Prepares many runs of the operation of `options`: the processor lays its part out by panels, by [`Cpu::prepare`], where its plan
    /// finds that this pays ([`Strategy::Auto`]), always ([`Strategy::Panel`]) or not any more ([`Strategy::Direct`]). A device takes its
    /// part by rows in any case. The parts are made anew in the next run, the rates measured again and refusals forgotten.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense operands have no columns.
    pub fn prepare(&mut self, options: &PlanOptions) -> Result<()> {
        if options.n == 0 {
            return Err(Error::argument("n", "a dense operand needs a column".to_owned()));
        }
        let runs = &mut self.parts.whole.runs;
        runs.retain(|other| other.op != options.op);
        if options.strategy != Strategy::Direct {
            runs.push(*options);
        }
        self.parts.forget();
        Ok(())
    }

    /// The (first) device's share of the work that an adaptive run of the operation `op` found.
    pub fn share(&self, op: &str) -> Option<f64> {
        self.parts.share(op)
    }
}

/// Values of the nonzeros of some rows.
struct Values<'a, T> {
    row_ptr: &'a [usize],
    values: &'a mut [T],
}

impl<T: DeviceScalar> Output for Values<'_, T> {
    fn cut(self, rows: usize) -> Result<(Self, Self)> {
        let (head, tail) = self.values.split_at_mut(self.row_ptr[rows] - self.row_ptr[0]);
        Ok((
            Self { row_ptr: &self.row_ptr[..=rows], values: head },
            Self { row_ptr: &self.row_ptr[rows..], values: tail },
        ))
    }
}

impl Hetero {
    /// C = alpha A B + beta C on both sides. Shapes as in [`Cpu::spmm`](crate::Cpu::spmm).
    ///
    /// # Errors
    /// [`Error::Shape`]. A device that fails is replaced: see [`Hetero::take_failures`].
    #[inline(never)]
    pub fn spmm<D: Portable>(
        &self,
        alpha: D::Sum,
        a: &mut HeteroCsr<D::Sum>,
        b: MatRef<'_, D>,
        beta: D::Sum,
        c: MatMut<'_, D>,
    ) -> Result<()> {
        check_shape("spmm", "B", b.shape(), (a.matrix().cols(), b.cols()))?;
        check_shape("spmm", "C", c.shape(), (a.matrix().rows(), b.cols()))?;
        let job = Job {
            op: "spmm",
            upload: |gpu: &Gpu| gpu.mat(b),
            device: |gpu: &Gpu, a: &GpuCsr<D::Sum>, b: &_, _: &Range<usize>, c: &mut MatMut<'_, D>| {
                let mut out = gpu.zeros(c.rows(), c.cols())?;
                if beta == D::Sum::ZERO {
                    gpu.spmm(alpha, a, b, beta, &mut out)?;
                    return out.download(c.reborrow());
                }
                out.upload(c.as_ref())?;
                gpu.spmm(alpha, a, b, beta, &mut out)?;
                // A copy that fails half way must leave the old C to the processor.
                let mut result: Mat<D> = Mat::zeros(c.rows(), c.cols())?;
                out.download(result.as_mut())?;
                (0..c.rows()).for_each(|i| c.reborrow().into_row(i).copy_from_slice(result.row(i)));
                Ok(())
            },
            processor: |cpu: &Cpu, a: &HostRows<D::Sum>, _: &Range<usize>, c: &mut MatMut<'_, D>| {
                cpu.spmm(alpha, a.of(Op::Spmm), b, beta, c.reborrow())
            },
        };
        self.share_out(&mut a.parts, c, job)
    }

    /// out_p = C_i . B_j for the nonzeros (i, j) of A in CSR order, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::spmm`].
    pub fn sddmm<D: Portable>(
        &self,
        a: &mut HeteroCsr<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        self.sampled("sddmm", a, false, c, b, out)
    }

    /// out_p = a_p C_i . B_j for the nonzeros (i, j) of A in CSR order, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::spmm`].
    pub fn sddmm_scaled<D: Portable>(
        &self,
        a: &mut HeteroCsr<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        self.sampled("sddmm_scaled", a, true, c, b, out)
    }

    #[inline(never)]
    pub(crate) fn sampled<D: Portable>(
        &self,
        op: &'static str,
        a: &mut HeteroCsr<D::Sum>,
        scaled: bool,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        check_shape(op, "C", c.shape(), (a.matrix().rows(), c.cols()))?;
        check_shape(op, "B", b.shape(), (a.matrix().cols(), c.cols()))?;
        check_shape(op, "out", (1, out.len()), (1, a.matrix().nnz()))?;
        let pattern = a.matrix().pattern().clone();
        let job = Job {
            op,
            upload: |gpu: &Gpu| gpu.mat(b),
            device: |gpu: &Gpu, a: &GpuCsr<D::Sum>, b: &_, rows: &Range<usize>, out: &mut Values<'_, D::Sum>| {
                let c = gpu.mat(c.row_range(rows.clone())?)?;
                let mut values = a.new_values()?;
                gpu.sampled(op, a, scaled, &c, b, &mut values)?;
                values.download(out.values)
            },
            processor: |cpu: &Cpu, a: &HostRows<D::Sum>, rows: &Range<usize>, out: &mut Values<'_, D::Sum>| match scaled
            {
                true => cpu.sddmm_scaled(a.of(Op::Sddmm), c.row_range(rows.clone())?, b, out.values),
                false => cpu.sddmm(a.of(Op::Sddmm), c.row_range(rows.clone())?, b, out.values),
            },
        };
        self.share_out(&mut a.parts, Values { row_ptr: pattern.row_ptr(), values: out }, job)
    }

    /// E_i = sum over j of f(C_i . B_j, a_ij) D_j for the nonzeros (i, j) of A, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::spmm`].
    pub fn fusedmm<D: Portable>(
        &self,
        a: &mut HeteroCsr<D::Sum>,
        edge: impl DeviceEdge<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        self.fusedmm_of(a, edge.kind(), c, b, d, e)
    }

    /// [`Hetero::fusedmm`] with the edge function chosen at run time.
    #[inline(never)]
    pub(crate) fn fusedmm_of<D: Portable>(
        &self,
        a: &mut HeteroCsr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        check_shape("fusedmm", "C", c.shape(), (a.matrix().rows(), c.cols()))?;
        check_shape("fusedmm", "B", b.shape(), (a.matrix().cols(), c.cols()))?;
        check_shape("fusedmm", "D", d.shape(), (a.matrix().cols(), d.cols()))?;
        check_shape("fusedmm", "E", e.shape(), (a.matrix().rows(), d.cols()))?;
        let job = Job {
            op: "fusedmm",
            upload: |gpu: &Gpu| Ok((gpu.mat(b)?, gpu.mat(d)?)),
            device: |gpu: &Gpu, a: &GpuCsr<D::Sum>, (b, d): &(_, _), rows: &Range<usize>, e: &mut MatMut<'_, D>| {
                let c = gpu.mat(c.row_range(rows.clone())?)?;
                let mut out = gpu.zeros(e.rows(), e.cols())?;
                gpu.fusedmm(a, edge, &c, b, d, &mut out)?;
                out.download(e.reborrow())
            },
            processor: |cpu: &Cpu, a: &HostRows<D::Sum>, rows: &Range<usize>, e: &mut MatMut<'_, D>| {
                cpu.fusedmm(a.of(Op::FusedMm), BuiltIn::from(edge), c.row_range(rows.clone())?, b, d, e.reborrow())
            },
        };
        self.share_out(&mut a.parts, e, job)
    }
}
