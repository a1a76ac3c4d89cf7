//! Rows of an `.npy` file, read and written some at a time: for dense matrices larger than memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sparsimd_kernels::{Scalar, Stored};

use super::atomic::write_pieces;
use super::npy::{Element, Npy, PIECE, head, write_elements};
use super::tnsb_stream::read_ahead;
use crate::dense::{MatMut, MatRef, check_range};
use crate::error::{Error, Result};
use crate::memory;

/// A dense matrix in an `.npy` file whose header has been read, and whose rows are read when they are needed.
#[derive(Debug)]
pub struct NpyStream {
    path: PathBuf,
    start: usize,
    element: Element,
    rows: usize,
    cols: usize,
}

impl NpyStream {
    /// Reads the header of `path`.
    ///
    /// # Errors
    /// As [`read_npy`](super::read_npy) as far as the header goes; [`Error::Argument`] for a compressed file, a pipe, and an array in
    /// Fortran's order, whose rows are no runs of bytes.
    pub fn open(path: &Path) -> Result<Self> {
        let npy = Npy::open(path)?;
        let refused = |why: &str| Err(Error::argument("file", format!("{} {why}", path.display())));
        if !npy.source.plain {
            return refused("is compressed or no regular file: rows are read from an unpacked one");
        }
        // Of a single column both orders are the same.
        if npy.by_columns && npy.cols != 1 {
            return refused("is in Fortran's order: rows are read from one in C's (numpy.ascontiguousarray)");
        }
        npy.check_length(npy.bytes()?, npy.source.meter.stored.saturating_sub(npy.start as u64))?;
        let Npy { start, element, rows, cols, .. } = npy;
        Ok(Self { path: path.to_owned(), start, element, rows, cols })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Reads as many rows as `out` has, from row `first` on, elements rounded to `T`.
    ///
    /// # Errors
    /// [`Error::Argument`] when there are no such rows; [`Error::Shape`] for another number of columns; [`Error::Io`]; [`Error::Memory`].
    #[inline(never)]
    pub fn read_rows<T: Scalar>(&self, first: usize, mut out: MatMut<'_, T>) -> Result<()> {
        let (rows, cols) = out.shape();
        check_range(&(first..first.saturating_add(rows)), self.rows)?;
        if cols != self.cols {
            let detail = format!("{cols} columns of {}, which has {}", self.path.display(), self.cols);
            return Err(Error::shape("read_rows", detail));
        }
        let io = |source| Error::Io { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(io)?;
        // No overflow: all elements fit the address space.
        let start = self.start + first * cols * self.element.bytes;
        read_ahead(&file, start, rows * cols * self.element.bytes);
        file.seek(SeekFrom::Start(start as u64)).map_err(io)?;
        // Whole rows at a time; of long ones, parts.
        let (mut row, mut at) = (0, 0);
        let mut piece: Vec<u8> = memory::zeros(self.path.display(), self.element.bytes * PIECE.min(rows * cols))?;
        for start in (0..rows * cols).step_by(PIECE) {
            let mut piece = &mut piece[..self.element.bytes * PIECE.min(rows * cols - start)];
            file.read_exact(piece).map_err(io)?;
            while !piece.is_empty() {
                let (part, rest) = piece.split_at_mut(piece.len().min(self.element.bytes * (cols - at)));
                let len = part.len() / self.element.bytes;
                let to = &mut out.reborrow().into_row(row)[at..at + len];
                self.element.decode(part, |k, x| to[k] = T::from_f64(x));
                at += len;
                if at == cols {
                    (row, at) = (row + 1, 0);
                }
                piece = rest;
            }
        }
        Ok(())
    }
}

/// Writes an `.npy` file of `shape`, of elements as [`write_npy`](super::write_npy) has them, from rows that come some at a time: `fill`
/// calls what it is given with each of them. A name ending in `.gz` is compressed.
///
/// # Errors
/// What `fill` returns; [`Error::Argument`] when there are more or fewer elements than `shape` has; [`Error::Io`]. Nothing is left behind.
pub fn write_npy_rows<D: Stored>(
    path: &Path,
    shape: &[usize],
    fill: impl FnOnce(&mut dyn FnMut(MatRef<'_, D>) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let head = head::<D>(shape)?;
    let wanted = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    write_pieces(path, |out| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        out.write_all(&head).map_err(io)?;
        let mut written = 0usize;
        fill(&mut |rows| {
            written = written.saturating_add(rows.rows().saturating_mul(rows.cols()));
            write_elements(out, rows).map_err(io)
        })?;
        match wanted == Some(written) {
            true => Ok(()),
            false => Err(Error::argument("shape", format!("{shape:?} for {written} elements"))),
        }
    })
}
