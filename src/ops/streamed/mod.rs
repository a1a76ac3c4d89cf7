//! SpMM and SDDMM of a matrix in a file that may be larger than memory; dense operands in memory or in files.
//!
//! ```text
//! for each chunk of A's nonzeros, in the order of the file, which is by rows:    the next chunk is read meanwhile
//!     for each piece, as many of its rows as there is memory for:
//!         for each block of B's rows that the piece has nonzeros for:            the next block is read meanwhile
//!             SpMM:    C[piece, :] += A[piece, block] B[block, :]
//!             SDDMM:   out_p = C_i . B_j for the nonzeros p = (i, j) of A[piece, block]
//!         the piece of the result is handed out
//! ```
//!
//! A is read once, and so is SDDMM's C. B is read once where half of the memory holds it, else once for each piece, but for the blocks
//! that the piece has no nonzeros for. The result is handed out as it is made: it may be larger than memory, too.

mod blocks;
mod memory;

use sparsimd_kernels::Scalar;

use self::blocks::{Piece, Side};
use self::memory::Sizes;
use super::operand::check_columns;
use super::values::{Values, ValuesMut};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::io::{NpyStream, TnsbStream};
use crate::parallel;

/// A dense operand of an operation in passes.
#[derive(Clone, Copy, Debug)]
pub enum DenseRows<'a, T> {
    /// All of it, in memory.
    Memory(MatRef<'a, T>),
    /// In a file, of which rows are read when they are needed.
    File(&'a NpyStream),
}

impl<'a, T> From<MatRef<'a, T>> for DenseRows<'a, T> {
    fn from(rows: MatRef<'a, T>) -> Self {
        Self::Memory(rows)
    }
}

impl<'a, T> From<&'a NpyStream> for DenseRows<'a, T> {
    fn from(rows: &'a NpyStream) -> Self {
        Self::File(rows)
    }
}

impl<T> DenseRows<'_, T> {
    /// Rows and columns.
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Memory(rows) => rows.shape(),
            Self::File(rows) => (rows.rows(), rows.cols()),
        }
    }
}

/// What takes results: rows, columns and values of nonzeros.
type Entries<'c, T> = dyn FnMut(&[u32], &[u32], &[T]) -> Result<()> + 'c;

/// The first rows of `buffer`.
fn first_rows<T: Copy + Default>(buffer: &mut Mat<T>, rows: usize) -> Result<MatMut<'_, T>> {
    let (cols, stride) = (buffer.cols(), buffer.as_ref().stride());
    MatMut::new(&mut buffer.as_mut().into_data()[..rows * stride], rows, cols, stride)
}

/// Rows and columns of the matrix in the file.
fn dims(op: &'static str, a: &TnsbStream) -> Result<[usize; 2]> {
    let order = a.dims().len();
    a.dims().try_into().map_err(|_| Error::shape(op, format!("A has {order} modes; a matrix has 2")))
}

/// Whether the nonzeros of `chunk`, whose first is the file's number `first`, ascend by row and column from `before` on; the last place.
fn check_order<T: Scalar>(
    cpu: &Cpu,
    first: usize,
    chunk: &CooTensor<T>,
    before: Option<(u32, u32)>,
) -> Result<Option<(u32, u32)>> {
    let (rows, cols) = (chunk.coords(0), chunk.coords(1));
    let place = |p: usize| (rows[p], cols[p]);
    let ascends =
        |p: usize| if p == 0 { before.is_none_or(|before| before < place(0)) } else { place(p - 1) < place(p) };
    match cpu.install(|| parallel::find_first(chunk.nnz(), |p| !ascends(p))) {
        None => Ok(chunk.nnz().checked_sub(1).map(place).or(before)),
        Some(p) => {
            let detail = format!("nonzero {} is not behind the one before it, by row and column", first + p);
            Err(Error::structure("matrix", detail))
        }
    }
}

/// The row that the next chunk may go on with.
struct OpenRow<T> {
    /// The first row that has not been handed out.
    row: usize,
    /// What there is of it so far.
    sum: Option<Vec<T>>,
}

impl<T: Scalar> OpenRow<T> {
    /// Adds what there is to its row.
    fn add_to(&mut self, row: &mut [T]) {
        for (to, x) in row.iter_mut().zip(self.sum.take().into_iter().flatten()) {
            *to += x;
        }
    }
}

impl Cpu {
    /// C = A B of the matrix in a `.tnsb` file of two modes whose nonzeros ascend by row and column, as `convert` writes them, in one pass
    /// over it: `consume` is given the rows of C in order, some at a time, with the number of the first.
    ///
    /// A is M x K, `b` K x N, C M x N. Besides operands that are in memory already, and what `consume` keeps, `memory` bytes are used at
    /// most. B from a file is read once where half of `memory` holds it, else once for each piece of rows. The same bits for the same
    /// memory, file and number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes do not fit, N is 0 or A is no matrix; [`Error::Argument`] when `memory` is too little, which says
    /// what would do; [`Error::Structure`], once it is found, for nonzeros in another order or at the same place; as [`TnsbStream::pass`] and
    /// [`NpyStream::read_rows`], and then what was handed out is of no use; what `consume` returns.
    ///
    /// ```no_run
    /// use sparsimd::{Cpu, MatRef, io};
    /// let (a, b) = (io::TnsbStream::open("A.tnsb".as_ref())?, io::NpyStream::open("B.npy".as_ref())?);
    /// let shape = [a.dims()[0], b.cols()];
    /// io::write_npy_rows("C.npy".as_ref(), &shape, |write| {
    ///     Cpu::new()?.spmm_streamed(&a, &b, 256 << 20, |_, rows: MatRef<'_, f32>| write(rows))
    /// })?;
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn spmm_streamed<'a, T: Scalar>(
        &self,
        a: &TnsbStream,
        b: impl Into<DenseRows<'a, T>>,
        memory: usize,
        mut consume: impl FnMut(usize, MatRef<'_, T>) -> Result<()>,
    ) -> Result<()> {
        self.spmm_streamed_by_reference(a, b.into(), memory, &mut consume)
    }

    /// [`Cpu::spmm_streamed`] with the consumer by reference.
    #[inline(never)]
    pub(crate) fn spmm_streamed_by_reference<T: Scalar>(
        &self,
        a: &TnsbStream,
        b: DenseRows<'_, T>,
        memory: usize,
        consume: &mut dyn FnMut(usize, MatRef<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let op = "spmm_streamed";
        let ([m, k], n) = (dims(op, a)?, b.shape().1);
        check_columns(op, n)?;
        check_shape(op, "B", b.shape(), (k, n))?;
        let sizes = Sizes::new::<T>(a, &b, 0, memory)?;
        let held = sizes.hold(&b)?;
        let mut side = Side::new(&b, held.as_ref(), &sizes)?;
        let mut buffer = Mat::zeros(sizes.rows, n)?;
        let (mut before, mut open) = (None, OpenRow { row: 0, sum: None });
        a.pass(sizes.chunk, |first, chunk| {
            before = check_order(self, first, &chunk, before)?;
            let mut at = 0;
            while at < chunk.nnz() {
                let piece = Piece::new(&chunk, at, open.row, sizes.rows);
                let rows = piece.rows.len();
                self.product_of_piece(&piece, &mut side, first_rows(&mut buffer, rows)?)?;
                open.add_to(buffer.row_mut(0));
                at += piece.values.len();
                // The last row of the chunk may go on in the next one.
                let done = rows - usize::from(at == chunk.nnz());
                if done > 0 {
                    consume(piece.rows.start, buffer.as_ref().row_range(0..done)?)?;
                }
                open.row = piece.rows.start + done;
                open.sum = (done < rows).then(|| buffer.row(done).to_vec());
            }
            Ok(chunk)
        })?;
        // The row that the file ended in, and those without nonzeros behind it.
        while open.row < m {
            let rows = sizes.rows.min(m - open.row);
            first_rows(&mut buffer, rows)?.into_data().fill(T::ZERO);
            open.add_to(buffer.row_mut(0));
            consume(open.row, buffer.as_ref().row_range(0..rows)?)?;
            open.row += rows;
        }
        Ok(())
    }

    /// C[piece, :] = A[piece, :] B.
    fn product_of_piece<T: Scalar>(
        &self,
        piece: &Piece<'_, T>,
        side: &mut Side<'_, T>,
        mut c: MatMut<'_, T>,
    ) -> Result<()> {
        if piece.values.is_empty() {
            c.into_data().fill(T::ZERO);
            return Ok(());
        }
        let mut beta = T::ZERO;
        side.for_each_block(piece, &mut |a, b, _| {
            self.spmm_operand(T::ONE, a.into(), b, beta, c.reborrow())?;
            beta = T::ONE;
            Ok(())
        })
    }

    /// out_p = (C B^T)_ij for each nonzero p = (i, j) of the matrix in a `.tnsb` file of two modes whose nonzeros ascend by row and column,
    /// in one pass over it: `consume` is given the rows, the columns and the results of the nonzeros in order, some at a time.
    ///
    /// A is M x K, `c` M x N, `b` K x N. C from a file is read once; memory and B are as [`Cpu::spmm_streamed`] has them.
    ///
    /// # Errors
    /// As [`Cpu::spmm_streamed`].
    pub fn sddmm_streamed<'a, T: Scalar>(
        &self,
        a: &TnsbStream,
        c: impl Into<DenseRows<'a, T>>,
        b: impl Into<DenseRows<'a, T>>,
        memory: usize,
        mut consume: impl FnMut(&[u32], &[u32], &[T]) -> Result<()>,
    ) -> Result<()> {
        self.sampled_streamed_by_reference("sddmm_streamed", false, a, [c.into(), b.into()], memory, &mut consume)
    }

    /// out_p = a_ij (C B^T)_ij, otherwise as [`Cpu::sddmm_streamed`].
    ///
    /// # Errors
    /// As [`Cpu::spmm_streamed`].
    pub fn sddmm_scaled_streamed<'a, T: Scalar>(
        &self,
        a: &TnsbStream,
        c: impl Into<DenseRows<'a, T>>,
        b: impl Into<DenseRows<'a, T>>,
        memory: usize,
        mut consume: impl FnMut(&[u32], &[u32], &[T]) -> Result<()>,
    ) -> Result<()> {
        self.sampled_streamed_by_reference("sddmm_scaled_streamed", true, a, [c.into(), b.into()], memory, &mut consume)
    }

    /// Both, with the consumer by reference.
    #[inline(never)]
    pub(crate) fn sampled_streamed_by_reference<T: Scalar>(
        &self,
        op: &'static str,
        scaled: bool,
        a: &TnsbStream,
        [c, b]: [DenseRows<'_, T>; 2],
        memory: usize,
        consume: &mut Entries<'_, T>,
    ) -> Result<()> {
        let ([m, k], n) = (dims(op, a)?, b.shape().1);
        check_columns(op, n)?;
        check_shape(op, "C", c.shape(), (m, n))?;
        check_shape(op, "B", b.shape(), (k, n))?;
        let sizes = Sizes::new::<T>(a, &b, 1, memory)?;
        let held = sizes.hold(&b)?;
        let mut side = Side::new(&b, held.as_ref(), &sizes)?;
        // Rows of C that are in memory are used where they are.
        let mut buffer = Mat::zeros(if matches!(c, DenseRows::File(_)) { sizes.rows } else { 0 }, n)?;
        let (mut before, mut out, mut part) = (None, Vec::new(), Vec::new());
        a.pass(sizes.chunk, |first, chunk| {
            before = check_order(self, first, &chunk, before)?;
            let mut at = 0;
            while at < chunk.nnz() {
                let piece = Piece::new(&chunk, at, chunk.coords(0)[at] as usize, sizes.rows);
                let rows = match c {
                    DenseRows::Memory(c) => c.row_range(piece.rows.clone())?,
                    DenseRows::File(file) => {
                        file.read_rows(piece.rows.start, first_rows(&mut buffer, piece.rows.len())?)?;
                        buffer.as_ref().row_range(0..piece.rows.len())?
                    }
                };
                out.resize(piece.values.len(), T::ZERO);
                side.for_each_block(&piece, &mut |a, b, starts| {
                    let values = scaled.then(|| Values::Same(a.values()));
                    let Some(starts) = starts else {
                        return self.sampled(op, a.into(), values, rows, b, ValuesMut::Same(&mut out));
                    };
                    part.resize(a.nnz(), T::ZERO);
                    self.sampled(op, a.into(), values, rows, b, ValuesMut::Same(&mut part))?;
                    for (i, &start) in starts.iter().enumerate() {
                        let own = &part[a.pattern().row_ptr().row(i)];
                        out[start..start + own.len()].copy_from_slice(own);
                    }
                    Ok(())
                })?;
                let nonzeros = at..at + piece.values.len();
                consume(&chunk.coords(0)[nonzeros.clone()], piece.cols, &out)?;
                at = nonzeros.end;
            }
            Ok(chunk)
        })
    }
}
