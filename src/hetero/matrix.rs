//! SpMM, SDDMM and FusedMM on both sides.

use std::collections::HashMap;
use std::ops::Range;

use sparsimd_kernels::edge::Edge;

use super::{Hetero, PROBE, Split, both, cut, share_by_rates};
use crate::dense::{MatMut, MatRef};
use crate::error::Result;
use crate::formats::Csr;
use crate::gpu::{DeviceEdge, DeviceScalar, Gpu, GpuCsr, dense_rows, expect, rows_of};

/// A sparse matrix with the parts that each side works on, and the rates measured so far.
pub struct HeteroCsr<T> {
    matrix: Csr<T>,
    /// The parts made so far: a repeated call finds its own again.
    device: HashMap<Range<usize>, GpuCsr<T>>,
    processor: HashMap<Range<usize>, Csr<T>>,
    /// The device's share of each operation.
    shares: HashMap<&'static str, f64>,
}

impl<T: DeviceScalar> HeteroCsr<T> {
    /// The matrix, not cut yet.
    pub fn new(matrix: Csr<T>) -> Self {
        Self { matrix, device: HashMap::new(), processor: HashMap::new(), shares: HashMap::new() }
    }

    /// The whole matrix.
    pub fn matrix(&self) -> &Csr<T> {
        &self.matrix
    }

    /// The device's share of the work that an adaptive run of the operation `op` found.
    pub fn share(&self, op: &str) -> Option<f64> {
        self.shares.get(op).copied()
    }

    fn row_ptr(&self) -> &[usize] {
        self.matrix.pattern().row_ptr()
    }

    /// Makes the parts of one step where they are not there yet.
    fn prepare(&mut self, gpu: &Gpu, device: &Range<usize>, processor: &Range<usize>) -> Result<()> {
        if !device.is_empty() && !self.device.contains_key(device) {
            let part = gpu.csr(&rows_of(&self.matrix, device)?)?;
            self.device.insert(device.clone(), part);
        }
        if !processor.is_empty() && !self.processor.contains_key(processor) {
            self.processor.insert(processor.clone(), rows_of(&self.matrix, processor)?);
        }
        Ok(())
    }
}

/// An output that can be cut at a row.
trait Output: Sized + Send {
    /// The first `rows` rows and the rest.
    fn cut(self, rows: usize) -> Result<(Self, Self)>;
}

impl<T: DeviceScalar> Output for MatMut<'_, T> {
    fn cut(self, rows: usize) -> Result<(Self, Self)> {
        let (all, cols, stride) = (self.rows(), self.cols(), self.stride());
        let data = self.into_data();
        let (head, tail) = data.split_at_mut((rows * stride).min(data.len()));
        Ok((MatMut::new(head, rows, cols, stride)?, MatMut::new(tail, all - rows, cols, stride)?))
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
    /// [`Error::Shape`](crate::Error::Shape), and [`Error::Device`](crate::Error::Device) when the device fails.
    pub fn spmm<T: DeviceScalar>(
        &self,
        alpha: T,
        a: &mut HeteroCsr<T>,
        b: MatRef<'_, T>,
        beta: T,
        c: MatMut<'_, T>,
    ) -> Result<()> {
        expect("spmm", "B", (b.rows(), b.cols()), (a.matrix.cols(), b.cols()))?;
        expect("spmm", "C", (c.rows(), c.cols()), (a.matrix.rows(), b.cols()))?;
        let on_device = self.gpu().mat(b)?;
        self.share_out(
            "spmm",
            a,
            c,
            |a, _, mut c| {
                let mut out = self.gpu().zeros(c.rows(), c.cols())?;
                if beta != T::ZERO {
                    out.upload(c.as_ref())?;
                }
                self.gpu().spmm(alpha, a, &on_device, beta, &mut out)?;
                out.download(c.reborrow())
            },
            |a, _, c| self.cpu().spmm(alpha, a, b, beta, c),
        )
    }

    /// out_p = C_i . B_j for the nonzeros (i, j) of A in CSR order, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::spmm`].
    pub fn sddmm<T: DeviceScalar>(
        &self,
        a: &mut HeteroCsr<T>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        expect("sddmm", "C", (c.rows(), c.cols()), (a.matrix.rows(), c.cols()))?;
        expect("sddmm", "B", (b.rows(), b.cols()), (a.matrix.cols(), c.cols()))?;
        expect("sddmm", "out", (1, out.len()), (1, a.matrix.nnz()))?;
        let on_device = self.gpu().mat(b)?;
        let pattern = a.matrix.pattern().clone();
        self.share_out(
            "sddmm",
            a,
            Values { row_ptr: pattern.row_ptr(), values: out },
            |a, rows, out| {
                let c = self.gpu().mat(dense_rows(c, &rows)?)?;
                let mut values = a.new_values()?;
                self.gpu().sddmm(a, &c, &on_device, &mut values)?;
                values.download(out.values)
            },
            |a, rows, out| self.cpu().sddmm(a, dense_rows(c, &rows)?, b, out.values),
        )
    }

    /// E_i = sum over j of f(C_i . B_j, a_ij) D_j for the nonzeros (i, j) of A, on both sides.
    ///
    /// # Errors
    /// As [`Hetero::spmm`].
    pub fn fusedmm<T: DeviceScalar, F: Edge<T> + DeviceEdge<T>>(
        &self,
        a: &mut HeteroCsr<T>,
        edge: F,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        d: MatRef<'_, T>,
        e: MatMut<'_, T>,
    ) -> Result<()> {
        expect("fusedmm", "C", (c.rows(), c.cols()), (a.matrix.rows(), c.cols()))?;
        expect("fusedmm", "B", (b.rows(), b.cols()), (a.matrix.cols(), c.cols()))?;
        expect("fusedmm", "D", (d.rows(), d.cols()), (a.matrix.cols(), d.cols()))?;
        expect("fusedmm", "E", (e.rows(), e.cols()), (a.matrix.rows(), d.cols()))?;
        let (device_b, device_d) = (self.gpu().mat(b)?, self.gpu().mat(d)?);
        self.share_out(
            "fusedmm",
            a,
            e,
            |a, rows, e| {
                let c = self.gpu().mat(dense_rows(c, &rows)?)?;
                let mut out = self.gpu().zeros(e.rows(), e.cols())?;
                self.gpu().fusedmm(a, edge, &c, &device_b, &device_d, &mut out)?;
                out.download(e)
            },
            |a, rows, e| self.cpu().fusedmm(a, edge, dense_rows(c, &rows)?, b, d, e),
        )
    }

    /// Runs `device` and `processor` on their rows of `a` and `out`.
    fn share_out<T: DeviceScalar, O: Output>(
        &self,
        op: &'static str,
        a: &mut HeteroCsr<T>,
        mut out: O,
        device: impl Fn(&GpuCsr<T>, Range<usize>, O) -> Result<()> + Sync,
        processor: impl Fn(&Csr<T>, Range<usize>, O) -> Result<()>,
    ) -> Result<()> {
        let rows = a.matrix.rows();
        let step = |a: &mut HeteroCsr<T>, first: usize, middle: usize, end: usize, out: O| -> Result<(O, f64, f64)> {
            let (theirs, ours) = (first..middle, middle..end);
            a.prepare(self.gpu(), &theirs, &ours)?;
            let (top, rest) = out.cut(middle - first)?;
            let (bottom, rest) = rest.cut(end - middle)?;
            let (d, p) = both(
                || a.device.get(&theirs).map_or(Ok(()), |part| device(part, theirs.clone(), top)),
                || a.processor.get(&ours).map_or(Ok(()), |part| processor(part, ours.clone(), bottom)),
            )?;
            Ok((rest, d, p))
        };
        let mut first = 0;
        let known = match self.split {
            Split::Static(share) => Some(share),
            Split::Adaptive => a.shares.get(op).copied(),
        };
        let share = match known {
            Some(share) => share,
            None => {
                let (middle, end) = (cut(a.row_ptr(), 0, PROBE / 2.0), cut(a.row_ptr(), 0, PROBE));
                let (rest, d, p) = step(a, 0, middle, end, out)?;
                out = rest;
                first = end;
                let work = |r: Range<usize>| a.row_ptr()[r.end] - a.row_ptr()[r.start] + r.len();
                let share = share_by_rates((work(0..middle), d), (work(middle..end), p));
                a.shares.insert(op, share);
                share
            }
        };
        let middle = cut(a.row_ptr(), first, share);
        step(a, first, middle, rows, out)?;
        Ok(())
    }
}
