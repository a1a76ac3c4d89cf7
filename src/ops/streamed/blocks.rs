//! A piece of A against B, all of it or one block of its rows after the other.

use std::ops::Range;
use std::thread;

use sparsimd_kernels::Scalar;

use super::memory::Sizes;
use super::{DenseRows, first_rows};
use crate::dense::{Mat, MatRef};
use crate::error::Result;
use crate::formats::{CooTensor, CsrRef, PatternRef};
use crate::io::NpyStream;
use crate::{machine, memory};

/// Some rows of a chunk.
pub(super) struct Piece<'a, T> {
    /// Which rows of A.
    pub rows: Range<usize>,
    /// Columns of A.
    width: usize,
    /// Where each row begins, counted from the piece's first nonzero.
    row_ptr: Vec<usize>,
    /// Columns of the nonzeros.
    pub cols: &'a [u32],
    /// Values of the nonzeros.
    pub values: &'a [T],
}

impl<'a, T: Scalar> Piece<'a, T> {
    /// Rows of `chunk` from `row` on, at most `most`, up to its last one; the first nonzero that is not before `row` is number `at`.
    pub fn new(chunk: &'a CooTensor<T>, at: usize, row: usize, most: usize) -> Self {
        let all = &chunk.coords(0)[at..];
        let last = all.last().map_or(row, |&last| last as usize);
        let rows = row..(last + 1).min(row.saturating_add(most));
        let own = &all[..all.partition_point(|&i| (i as usize) < rows.end)];
        let mut row_ptr = Vec::with_capacity(rows.len() + 1);
        row_ptr.push(0);
        for (p, &i) in own.iter().enumerate() {
            while row_ptr.len() <= i as usize - row {
                row_ptr.push(p);
            }
        }
        row_ptr.resize(rows.len() + 1, own.len());
        let nonzeros = at..at + own.len();
        let (cols, values) = (&chunk.coords(1)[nonzeros.clone()], &chunk.values()[nonzeros]);
        Self { rows, width: chunk.dims()[1], row_ptr, cols, values }
    }
}

/// B as it is read.
pub(super) enum Side<'a, T> {
    /// All of it is in memory.
    Whole(MatRef<'a, T>),
    /// Two blocks of so many rows are.
    Blocks(&'a NpyStream, usize, Box<[Mat<T>; 2]>),
}

/// What is done with a block: the piece's nonzeros in it, its rows of B, and, unless the block is all of B, where each row of the piece
/// begins in the block, counted from the piece's first nonzero.
type Work<'w, T> = dyn FnMut(CsrRef<'_, T>, MatRef<'_, T>, Option<&[usize]>) -> Result<()> + 'w;

impl<'a, T: Scalar> Side<'a, T> {
    /// `b`, or `held`, which is all of it.
    pub fn new(b: &DenseRows<'a, T>, held: Option<&'a Mat<T>>, sizes: &Sizes) -> Result<Self> {
        Ok(match (*b, held, sizes.block) {
            (_, Some(held), _) => Self::Whole(held.as_ref()),
            (DenseRows::Memory(b), ..) => Self::Whole(b),
            (DenseRows::File(file), None, rows) => {
                let rows = rows.unwrap_or(file.rows());
                Self::Blocks(file, rows, Box::new([Mat::zeros(rows, file.cols())?, Mat::zeros(rows, file.cols())?]))
            }
        })
    }

    /// Calls `work` for every block of B that `piece` has nonzeros for, in order; meanwhile a thread reads the next one.
    pub fn for_each_block(&mut self, piece: &Piece<'_, T>, work: &mut Work<'_, T>) -> Result<()> {
        let (rows, width) = (piece.rows.len(), piece.width);
        let (file, height, buffers) = match self {
            Self::Whole(b) => {
                let pattern = PatternRef::from_checked(rows, width, &piece.row_ptr, piece.cols);
                return work(CsrRef::on(pattern, piece.values)?, *b, None);
            }
            Self::Blocks(file, height, buffers) => (*file, *height, buffers),
        };
        let size = |block: usize| height.min(width - block * height);
        let read = |block: usize, to: &mut Mat<T>| file.read_rows(block * height, first_rows(to, size(block))?);
        let mut cut = Cut::new(piece, height)?;
        let Some(mut block) = cut.first(piece) else { return Ok(()) };
        let [here, ahead] = &mut **buffers;
        let (mut here, mut ahead) = (here, ahead);
        read(block, here)?;
        loop {
            let next = cut.take(piece, block);
            let pattern = PatternRef::from_checked(rows, size(block), &cut.row_ptr, &cut.cols);
            let (a, b) = (CsrRef::on(pattern, &cut.values)?, here.as_ref().row_range(0..size(block))?);
            let Some(next) = next else { return work(a, b, Some(&cut.starts)) };
            thread::scope(|scope| {
                let reader = machine::start_reader(scope, || read(next, ahead))?;
                let done = work(a, b, Some(&cut.starts));
                let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                done.and(read)
            })?;
            std::mem::swap(&mut here, &mut ahead);
            block = next;
        }
    }
}

/// A piece cut by blocks of columns, which ascend in each row.
struct Cut<T> {
    /// Columns of a block.
    height: usize,
    /// The first nonzero of each row that has not been taken.
    next: Vec<usize>,
    /// What was taken: where each row began in the piece, and the block's rows, columns and values.
    starts: Vec<usize>,
    row_ptr: Vec<usize>,
    cols: Vec<u32>,
    values: Vec<T>,
}

impl<T: Scalar> Cut<T> {
    fn new(piece: &Piece<'_, T>, height: usize) -> Result<Self> {
        let (rows, nnz) = (piece.rows.len(), piece.values.len());
        let what = "a block of the matrix";
        Ok(Self {
            height,
            next: piece.row_ptr[..rows].to_vec(),
            starts: memory::reserve(what, rows)?,
            row_ptr: memory::reserve(what, rows + 1)?,
            cols: memory::reserve(what, nnz)?,
            values: memory::reserve(what, nnz)?,
        })
    }

    /// The first block that has a nonzero.
    fn first(&self, piece: &Piece<'_, T>) -> Option<usize> {
        let filled = piece.row_ptr.windows(2).filter(|row| row[0] < row[1]);
        filled.map(|row| piece.cols[row[0]] as usize / self.height).min()
    }

    /// Takes the nonzeros of `block`, before which all have been taken. The next block that has one.
    fn take(&mut self, piece: &Piece<'_, T>, block: usize) -> Option<usize> {
        let begin = block * self.height;
        let end = begin + self.height;
        self.starts.clear();
        self.starts.extend_from_slice(&self.next);
        self.row_ptr.clear();
        self.cols.clear();
        self.values.clear();
        self.row_ptr.push(0);
        let mut least = None::<u32>;
        for (next, row) in self.next.iter_mut().zip(piece.row_ptr.windows(2)) {
            let left = &piece.cols[*next..row[1]];
            let own = left.iter().position(|&j| j as usize >= end).unwrap_or(left.len());
            self.cols.extend(left[..own].iter().map(|&j| j - begin as u32));
            self.values.extend_from_slice(&piece.values[*next..*next + own]);
            self.row_ptr.push(self.cols.len());
            *next += own;
            least = left.get(own).copied().into_iter().chain(least).min();
        }
        least.map(|j| j as usize / self.height)
    }
}
