//! Operands that do not fit the device together: they stay in the processor's memory, and parts of them pass through the device.
//!
//! ```text
//! for a tile of columns of B that takes a third of the free memory
//!   for rows of A and C that take another third
//!     upload, multiply, download
//! ```
//!
//! Each element of the result is summed in the same order as when everything fits.

use std::ops::Range;

use sparsimd_gpu_abi::BLOCK;

use super::edge::DeviceEdge;
use super::{DeviceScalar, Gpu};
use crate::dense::{MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};
use crate::plan::RowChunk;

/// Parts that the free memory is divided into: the resident operand, the passing one, and the rest for tasks, partial rows and
/// what the allocator rounds up.
const PARTS: u64 = 3;

impl Gpu {
    /// C = alpha A B + beta C of operands in the processor's memory, of any size. Shapes as in [`Gpu::spmm`].
    ///
    /// # Errors
    /// [`Error::Shape`], and [`Error::Device`] when not even one row of A and four columns of B fit the device.
    pub fn spmm_streamed<T: DeviceScalar>(
        &self,
        alpha: T,
        a: &Csr<T>,
        b: MatRef<'_, T>,
        beta: T,
        mut c: MatMut<'_, T>,
    ) -> Result<()> {
        expect("spmm", "B", (b.rows(), b.cols()), (a.cols(), b.cols()))?;
        expect("spmm", "C", (c.rows(), c.cols()), (a.rows(), b.cols()))?;
        for tile in self.column_tiles::<T>(a.cols(), b.cols())? {
            let on_device = self.mat(columns(b, &tile)?)?;
            for rows in self.row_parts(a, tile.len())? {
                let part = self.csr(&rows_of(a, &rows)?)?;
                let mut out = self.zeros(rows.len(), tile.len())?;
                if beta != T::ZERO {
                    out.upload(columns(dense_rows(c.as_ref(), &rows)?, &tile)?)?;
                }
                self.spmm(alpha, &part, &on_device, beta, &mut out)?;
                out.download(block(&mut c, &rows, &tile)?)?;
            }
        }
        Ok(())
    }

    /// out_p = C_i . B_j for the nonzeros (i, j) of A, of operands in the processor's memory: A, C and the result pass through, B
    /// stays on the device. Shapes as in [`Gpu::sddmm`].
    ///
    /// # Errors
    /// [`Error::Shape`], and [`Error::Device`] when B or a row of A does not fit the device.
    pub fn sddmm_streamed<T: DeviceScalar>(
        &self,
        a: &Csr<T>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        expect("sddmm", "C", (c.rows(), c.cols()), (a.rows(), c.cols()))?;
        expect("sddmm", "B", (b.rows(), b.cols()), (a.cols(), c.cols()))?;
        expect("sddmm", "out", (1, out.len()), (1, a.nnz()))?;
        let on_device = self.mat(b)?;
        for rows in self.row_parts(a, c.cols())? {
            let part = self.csr(&rows_of(a, &rows)?)?;
            let mut values = part.new_values()?;
            self.sddmm(&part, &self.mat(dense_rows(c, &rows)?)?, &on_device, &mut values)?;
            let row_ptr = a.pattern().row_ptr();
            values.download(&mut out[row_ptr[rows.start]..row_ptr[rows.end]])?;
        }
        Ok(())
    }

    /// E_i = sum over j of f(C_i . B_j, a_ij) D_j, of operands in the processor's memory: A, C and E pass through, B and D stay on
    /// the device. Shapes as in [`Gpu::fusedmm`].
    ///
    /// # Errors
    /// [`Error::Shape`], and [`Error::Device`] when B and D or a row of A do not fit the device.
    pub fn fusedmm_streamed<T: DeviceScalar>(
        &self,
        a: &Csr<T>,
        edge: impl DeviceEdge<T> + Copy,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        d: MatRef<'_, T>,
        mut e: MatMut<'_, T>,
    ) -> Result<()> {
        expect("fusedmm", "C", (c.rows(), c.cols()), (a.rows(), c.cols()))?;
        expect("fusedmm", "B", (b.rows(), b.cols()), (a.cols(), c.cols()))?;
        expect("fusedmm", "D", (d.rows(), d.cols()), (a.cols(), d.cols()))?;
        expect("fusedmm", "E", (e.rows(), e.cols()), (a.rows(), d.cols()))?;
        let (device_b, device_d) = (self.mat(b)?, self.mat(d)?);
        for rows in self.row_parts(a, c.cols() + d.cols())? {
            let part = self.csr(&rows_of(a, &rows)?)?;
            let mut out = self.zeros(rows.len(), d.cols())?;
            self.fusedmm(&part, edge, &self.mat(dense_rows(c, &rows)?)?, &device_b, &device_d, &mut out)?;
            out.download(block(&mut e, &rows, &(0..d.cols()))?)?;
        }
        Ok(())
    }

    /// Columns of a matrix of `rows` rows that a part of the free memory holds at a time.
    fn column_tiles<T>(&self, rows: usize, cols: usize) -> Result<Vec<Range<usize>>> {
        let room = (self.memory_left() / PARTS) as usize;
        let most = room / size_of::<T>() / rows.max(1) / BLOCK * BLOCK;
        if most == 0 {
            return Err(Error::Device {
                detail: format!("{}: {room} bytes do not hold {BLOCK} columns of {rows} rows", self.info().name),
            });
        }
        Ok((0..cols).step_by(most).map(|s| s..(s + most).min(cols)).collect())
    }

    /// Rows of A that, with `width` elements of dense rows beside them, a part of the free memory holds at a time.
    fn row_parts<T: DeviceScalar>(&self, a: &Csr<T>, width: usize) -> Result<Vec<Range<usize>>> {
        let room = (self.memory_left() / PARTS) as usize / 2;
        // A row has a task of four words, and is padded to blocks; a nonzero has an index and a value.
        let row = 16 + (width + 2 * BLOCK) * size_of::<T>();
        let parts = RowChunk::split(a.pattern().row_ptr(), (room / row).max(1), room / (4 + size_of::<T>()));
        let parts = parts.map_err(|row| Error::Device {
            detail: format!("{}: row {row} of {} nonzeros does not fit", self.info().name, a.pattern().row(row).len()),
        })?;
        Ok(parts.into_iter().map(|part| part.rows).collect())
    }
}

/// Some rows of a matrix as a matrix.
pub(crate) fn rows_of<T: DeviceScalar>(a: &Csr<T>, rows: &Range<usize>) -> Result<Csr<T>> {
    let row_ptr = &a.pattern().row_ptr()[rows.start..=rows.end];
    let (start, end) = (row_ptr[0], row_ptr[row_ptr.len() - 1]);
    let row_ptr = row_ptr.iter().map(|p| p - start).collect();
    let pattern = Pattern::new(rows.len(), a.cols(), row_ptr, a.pattern().col_idx()[start..end].to_vec())?;
    Csr::new(pattern, a.values()[start..end].to_vec())
}

/// Some rows of a dense matrix.
pub(crate) fn dense_rows<'a, T>(m: MatRef<'a, T>, rows: &Range<usize>) -> Result<MatRef<'a, T>> {
    let data = m.data().get(rows.start * m.stride()..).unwrap_or_default();
    MatRef::new(data, rows.len(), m.cols(), m.stride())
}

/// Some columns of a dense matrix.
fn columns<'a, T>(m: MatRef<'a, T>, cols: &Range<usize>) -> Result<MatRef<'a, T>> {
    MatRef::new(m.data().get(cols.start..).unwrap_or_default(), m.rows(), cols.len(), m.stride())
}

/// Some rows and columns of a dense matrix.
fn block<'a, T>(m: &'a mut MatMut<'_, T>, rows: &Range<usize>, cols: &Range<usize>) -> Result<MatMut<'a, T>> {
    let stride = m.stride();
    let data = m.reborrow().into_data().get_mut(rows.start * stride + cols.start..).unwrap_or_default();
    MatMut::new(data, rows.len(), cols.len(), stride)
}

pub(crate) fn expect(op: &'static str, name: &str, got: (usize, usize), want: (usize, usize)) -> Result<()> {
    match got == want {
        true => Ok(()),
        false => Err(Error::shape(op, format!("{name} is {} x {}, expected {} x {}", got.0, got.1, want.0, want.1))),
    }
}
