//! [`DistMat`]: a rank's rows of a dense matrix.

use bytemuck::Pod;
use sparsimd::{Mat, MatMut, MatRef, Scalar};

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

    /// This rank's rows, with the number of all.
    pub(crate) fn view(&self) -> Rows<'_, T> {
        Rows { all: self.rows, local: self.local.as_ref() }
    }

    /// Likewise, to be changed.
    pub(crate) fn view_mut(&mut self) -> RowsMut<'_, T> {
        RowsMut { all: self.rows, local: self.local.as_mut() }
    }
}

/// A rank's rows of a dense matrix of `all` rows, wherever they are.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    pub all: usize,
    pub local: MatRef<'a, T>,
}

impl<T> Rows<'_, T> {
    pub fn cols(&self) -> usize {
        self.local.cols()
    }
}

/// Likewise, to be changed.
pub(crate) struct RowsMut<'a, T> {
    pub all: usize,
    pub local: MatMut<'a, T>,
}

impl<T> RowsMut<'_, T> {
    pub fn as_ref(&self) -> Rows<'_, T> {
        Rows { all: self.all, local: self.local.as_ref() }
    }
}

/// Rows of several matrices side by side without gaps: as they are sent, and as they are worked on once they have come.
#[derive(Debug)]
pub(crate) struct Packed<T> {
    /// One row, which begins at a cache line.
    room: Mat<T>,
    rows: usize,
    widths: Vec<usize>,
}

impl<T: Element> Packed<T> {
    /// Zeros, of matrices of these `widths`.
    pub fn zeros(rows: usize, widths: &[usize]) -> Result<Self> {
        let room = Mat::zeros(1, rows.saturating_mul(widths.iter().sum()))?;
        Ok(Self { room, rows, widths: widths.to_vec() })
    }

    /// Whether there is room for as much.
    pub fn holds(&self, rows: usize, widths: &[usize]) -> bool {
        rows.saturating_mul(widths.iter().sum()) <= self.room.cols()
    }

    /// Becomes as much, of any content; there is room for it.
    pub fn reshape(&mut self, rows: usize, widths: &[usize]) {
        debug_assert!(self.holds(rows, widths));
        (self.rows, self.widths) = (rows, widths.to_vec());
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.widths.iter().sum()
    }

    /// All of it.
    pub fn data(&self) -> &[T] {
        &self.room.row(0)[..self.rows * self.width()]
    }

    /// All of it, to be changed.
    pub fn data_mut(&mut self) -> &mut [T] {
        let len = self.rows * self.width();
        &mut self.room.row_mut(0)[..len]
    }

    /// Each of the matrices.
    pub fn views(&self) -> Result<Vec<MatRef<'_, T>>> {
        let mut first = 0;
        let view = |&cols: &usize| {
            // Without rows there is nothing to begin in.
            let data = self.data().get(first..).unwrap_or_default();
            first += cols;
            Ok(MatRef::new(data, self.rows, cols, self.width())?)
        };
        self.widths.iter().map(view).collect()
    }

    /// Adds the first rows of `matrices`, which have as many at least and are as wide.
    pub fn add_rows(&mut self, matrices: &[Mat<T>]) {
        let (width, mut first) = (self.width(), 0);
        for a in matrices {
            let to = self.data_mut().chunks_exact_mut(width.max(1));
            to.zip(a.iter_rows()).for_each(|(to, from)| add(&mut to[first..first + from.len()], from));
            first += a.cols();
        }
    }

    /// Becomes `rows` of `matrices`, which have as many and are as wide.
    pub fn fill(&mut self, matrices: &[MatRef<'_, T>], rows: impl Iterator<Item = usize>) {
        let mut rest = self.data_mut();
        for i in rows {
            for a in matrices {
                let (row, others) = std::mem::take(&mut rest).split_at_mut(a.cols());
                row.copy_from_slice(a.row(i));
                rest = others;
            }
        }
    }
}

/// `rows` of `matrix`, row after row without gaps: as they are sent.
pub(crate) fn pack<T: Element>(matrix: MatRef<'_, T>, rows: impl ExactSizeIterator<Item = usize>) -> Vec<T> {
    let mut packed = Vec::with_capacity(rows.len() * matrix.cols());
    rows.for_each(|i| packed.extend_from_slice(matrix.row(i)));
    packed
}

/// Rows as [`Packed`] has them, into those `rows` of `matrices`: `put(to, from)` for each row of each.
pub(crate) fn unpack<T: Element>(
    packed: &[T],
    rows: impl Iterator<Item = usize>,
    matrices: &mut [MatMut<'_, T>],
    put: impl Fn(&mut [T], &[T]),
) {
    let mut rest = packed;
    for i in rows {
        for a in &mut *matrices {
            let (row, others) = rest.split_at(a.cols());
            put(a.reborrow().into_row(i), row);
            rest = others;
        }
    }
}

/// `to += from`.
pub(crate) fn add<T: Element>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(x, &y)| *x += y);
}
