//! Operands that do not fit the device together: they stay in the processor's memory, and parts of them pass through the device.
//!
//! ```text
//! for a tile of columns of B that takes a third of the free memory
//!   for rows of A and C that take another third
//!     upload, multiply, download
//! ```
//!
//! SDDMM cuts B by rows instead, that is A by columns, so that every dot product is computed at once; FusedMM goes through SDDMM, the
//! edge function and SpMM where B and D do not fit together. Each element of the result is summed in the same order as when
//! everything fits.

use std::ops::Range;

use sparsimd_gpu_abi::BLOCK;
use sparsimd_kernels::Number;

use super::edge::{DeviceEdge, EdgeKind};
use super::{DeviceScalar, DeviceStored, Gpu};
use crate::dense::{MatMut, MatRef, check_shape};
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
    #[inline(never)]
    pub fn spmm_streamed<D: DeviceStored>(
        &self,
        alpha: D::Sum,
        a: &Csr<D::Sum>,
        b: MatRef<'_, D>,
        beta: D::Sum,
        mut c: MatMut<'_, D>,
    ) -> Result<()> {
        check_shape("spmm", "B", b.shape(), (a.cols(), b.cols()))?;
        check_shape("spmm", "C", c.shape(), (a.rows(), b.cols()))?;
        for tile in self.column_tiles::<D>(a.cols(), b.cols())? {
            let on_device = self.mat(columns(b, &tile)?)?;
            for rows in self.row_parts(a, tile.len())? {
                let part = self.csr(&a.as_ref().row_range(rows.clone())?.to_csr())?;
                let mut out = self.zeros(rows.len(), tile.len())?;
                if beta != D::Sum::ZERO {
                    out.upload(columns(c.as_ref().row_range(rows.clone())?, &tile)?)?;
                }
                self.spmm(alpha, &part, &on_device, beta, &mut out)?;
                out.download(block(&mut c, &rows, &tile)?)?;
            }
        }
        Ok(())
    }

    /// out_p = C_i . B_j for the nonzeros (i, j) of A, of operands in the processor's memory, of any size. Shapes as in
    /// [`Gpu::sddmm`].
    ///
    /// # Errors
    /// [`Error::Shape`], and [`Error::Device`] when a row of A, or of B or C, does not fit the device.
    pub fn sddmm_streamed<D: DeviceStored>(
        &self,
        a: &Csr<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        self.sampled_streamed("sddmm", a, false, c, b, out)
    }

    /// out_p = a_p C_i . B_j, otherwise as [`Gpu::sddmm_streamed`].
    ///
    /// # Errors
    /// As [`Gpu::sddmm_streamed`].
    pub fn sddmm_scaled_streamed<D: DeviceStored>(
        &self,
        a: &Csr<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        self.sampled_streamed("sddmm_scaled", a, true, c, b, out)
    }

    #[inline(never)]
    pub(crate) fn sampled_streamed<D: DeviceStored>(
        &self,
        op: &'static str,
        a: &Csr<D::Sum>,
        scaled: bool,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        out: &mut [D::Sum],
    ) -> Result<()> {
        check_shape(op, "C", c.shape(), (a.rows(), c.cols()))?;
        check_shape(op, "B", b.shape(), (a.cols(), c.cols()))?;
        check_shape(op, "out", (1, out.len()), (1, a.nnz()))?;
        for tile in self.row_tiles::<D>(b.rows(), b.cols())? {
            let on_device = self.mat(b.row_range(tile.clone())?)?;
            let (part, places) = columns_of(a, &tile)?;
            let row_ptr = part.pattern().row_ptr();
            for rows in self.row_parts(&part, c.cols())? {
                let nonzeros = row_ptr[rows.start]..row_ptr[rows.end];
                let sparse = self.csr(&part.as_ref().row_range(rows.clone())?.to_csr())?;
                let mut values = sparse.new_values()?;
                let c = self.mat(c.row_range(rows.clone())?)?;
                self.sampled(op, &sparse, scaled, &c, &on_device, &mut values)?;
                let mut got = vec![D::Sum::ZERO; nonzeros.len()];
                values.download(&mut got)?;
                places[nonzeros].iter().zip(got).for_each(|(&p, value)| out[p] = value);
            }
        }
        Ok(())
    }

    /// E_i = sum over j of f(C_i . B_j, a_ij) D_j, of operands in the processor's memory, of any size. Where B and D fit the device
    /// together, they stay there and A, C and E pass through; else the edge values are stored in the processor's memory.
    /// Shapes as in [`Gpu::fusedmm`].
    ///
    /// # Errors
    /// [`Error::Shape`], and [`Error::Device`] when a row of A does not fit the device.
    pub fn fusedmm_streamed<D: DeviceStored>(
        &self,
        a: &Csr<D::Sum>,
        edge: impl DeviceEdge<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        self.fusedmm_streamed_of(a, edge.kind(), c, b, d, e)
    }

    /// [`Gpu::fusedmm_streamed`] with the edge function chosen at run time.
    #[inline(never)]
    pub(crate) fn fusedmm_streamed_of<D: DeviceStored>(
        &self,
        a: &Csr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
        d: MatRef<'_, D>,
        mut e: MatMut<'_, D>,
    ) -> Result<()> {
        check_shape("fusedmm", "C", c.shape(), (a.rows(), c.cols()))?;
        check_shape("fusedmm", "B", b.shape(), (a.cols(), c.cols()))?;
        check_shape("fusedmm", "D", d.shape(), (a.cols(), d.cols()))?;
        check_shape("fusedmm", "E", e.shape(), (a.rows(), d.cols()))?;
        let whole = self.row_tiles::<D>(a.cols(), b.cols() + d.cols() + BLOCK).is_ok_and(|tiles| tiles.len() <= 1);
        if !whole {
            let edges = self.edges_streamed(a, edge, c, b)?;
            return self.spmm_streamed(D::Sum::ONE, &Csr::new(a.pattern().clone(), edges)?, d, D::Sum::ZERO, e);
        }
        let (device_b, device_d) = (self.mat(b)?, self.mat(d)?);
        for rows in self.row_parts(a, c.cols() + d.cols())? {
            let part = self.csr(&a.as_ref().row_range(rows.clone())?.to_csr())?;
            let mut out = self.zeros(rows.len(), d.cols())?;
            let c = self.mat(c.row_range(rows.clone())?)?;
            self.fusedmm_of(&part, edge, &c, &device_b, &device_d, &mut out)?;
            out.download(block(&mut e, &rows, &(0..d.cols()))?)?;
        }
        Ok(())
    }

    /// f(C_i . B_j, a_ij) for the nonzeros (i, j) of A.
    fn edges_streamed<D: DeviceStored>(
        &self,
        a: &Csr<D::Sum>,
        edge: EdgeKind<D::Sum>,
        c: MatRef<'_, D>,
        b: MatRef<'_, D>,
    ) -> Result<Vec<D::Sum>> {
        let mut edges = vec![D::Sum::ZERO; a.nnz()];
        self.sddmm_streamed(a, c, b, &mut edges)?;
        let row_ptr = a.pattern().row_ptr();
        // The values of A and of the edges: two numbers and no dense row for each nonzero.
        for rows in self.row_parts(a, BLOCK)? {
            let own = &mut edges[row_ptr[rows.start]..row_ptr[rows.end]];
            let part = self.csr(&a.as_ref().row_range(rows.clone())?.to_csr())?;
            let mut values = part.new_values()?;
            values.upload(own)?;
            self.apply_edge(&part, edge.kind(), &mut values)?;
            values.download(own)?;
        }
        Ok(edges)
    }

    /// Rows of a matrix of `cols` columns that a part of the free memory holds at a time.
    fn row_tiles<T>(&self, rows: usize, cols: usize) -> Result<Vec<Range<usize>>> {
        let room = (self.memory_left() / PARTS) as usize;
        let most = room / size_of::<T>() / cols.next_multiple_of(BLOCK).max(1);
        if most == 0 {
            let detail = format!("{}: {room} bytes do not hold a row of {cols} columns", self.info().name);
            return Err(Error::Device { detail });
        }
        Ok((0..rows).step_by(most).map(|s| s..(s + most).min(rows)).collect())
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

/// Some columns of a matrix as a matrix, and for each of its nonzeros which one of `a` it is.
fn columns_of<T: DeviceScalar>(a: &Csr<T>, cols: &Range<usize>) -> Result<(Csr<T>, Vec<usize>)> {
    let (row_ptr, idx) = (a.pattern().row_ptr(), a.pattern().col_idx());
    let inside = |&p: &usize| cols.contains(&(idx[p] as usize));
    let mut starts = vec![0];
    let mut places = Vec::new();
    for row in row_ptr.windows(2) {
        places.extend((row[0]..row[1]).filter(inside));
        starts.push(places.len());
    }
    let own = places.iter().map(|&p| idx[p] - cols.start as u32).collect();
    let values = places.iter().map(|&p| a.values()[p]).collect();
    Ok((Csr::new(Pattern::new(a.rows(), cols.len(), starts, own)?, values)?, places))
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
