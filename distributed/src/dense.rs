//! [`DistMat`]: a rank's rows of a dense matrix.

use bytemuck::Pod;
use sparsimd::{Mat, MatRef, Scalar};

use crate::blocks::Blocks;
use crate::error::{Error, Result};

/// An element type whose bytes are sent as they are: `f32` or `f64`.
pub trait Element: Scalar + Pod {}
impl Element for f32 {}
impl Element for f64 {}

/// The rows of a dense matrix that a rank has: those of its block.
#[derive(Clone, Debug)]
pub struct DistMat<T> {
    rows: usize,
    local: Mat<T>,
}

impl<T: Element> DistMat<T> {
    /// `rank`'s rows of a matrix of zeros of `blocks.len()` x `cols`.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    pub fn zeros(blocks: &Blocks, rank: usize, cols: usize) -> Result<Self> {
        Ok(Self { rows: blocks.len(), local: Mat::zeros(blocks.range(rank).len(), cols)? })
    }

    /// `rank`'s rows of the matrix with element `f(i, j)` at row `i`, counted in the whole matrix, and column `j`.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    pub fn from_fn(blocks: &Blocks, rank: usize, cols: usize, mut f: impl FnMut(usize, usize) -> T) -> Result<Self> {
        let first = blocks.range(rank).start;
        let local = Mat::from_fn(blocks.range(rank).len(), cols, |i, j| f(first + i, j))?;
        Ok(Self { rows: blocks.len(), local })
    }

    /// `local` as `rank`'s rows.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when the block of `rank` has another number of rows.
    pub fn new(blocks: &Blocks, rank: usize, local: Mat<T>) -> Result<Self> {
        let rows = blocks.range(rank).len();
        if local.rows() != rows {
            let detail = format!("{} rows for a block of {rows}", local.rows());
            return Err(Error::shape("a distributed matrix", detail));
        }
        Ok(Self { rows: blocks.len(), local })
    }

    /// Rows of all ranks together.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.local.cols()
    }

    /// This rank's rows.
    pub fn local(&self) -> &Mat<T> {
        &self.local
    }

    /// This rank's rows, to be changed.
    pub fn local_mut(&mut self) -> &mut Mat<T> {
        &mut self.local
    }
}

/// `rows` of each of `matrices`, row after row without gaps: as they are sent.
pub(crate) fn pack<T: Element>(matrices: &[MatRef<'_, T>], rows: impl ExactSizeIterator<Item = usize>) -> Vec<T> {
    let mut packed = Vec::with_capacity(rows.len() * matrices.iter().map(|a| a.cols()).sum::<usize>());
    for i in rows {
        matrices.iter().for_each(|a| packed.extend_from_slice(a.row(i)));
    }
    packed
}

/// The rows that [`pack`] packed, of all of `matrices`, which have as many.
pub(crate) fn unpack<T: Element>(packed: &[T], matrices: &mut [Mat<T>]) {
    let mut rest = packed;
    for i in 0..matrices.first().map_or(0, Mat::rows) {
        for a in &mut *matrices {
            let (row, others) = rest.split_at(a.cols());
            a.row_mut(i).copy_from_slice(row);
            rest = others;
        }
    }
}
