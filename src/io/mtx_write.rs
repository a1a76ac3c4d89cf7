//! Matrix Market files written: a sparse matrix, a dense one, and entries that come some at a time, of results larger than memory.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::Matrix;
use super::atomic::{write_atomically, write_pieces};
use super::number::write_chunks;
use crate::dense::MatRef;
use crate::error::{Error, Result};

/// Writes `matrix` as a general coordinate file: of field `pattern` when it has no values, else `real` with the shortest
/// digits that read back as the same number. A name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind.
#[inline(never)]
pub fn write_mtx<T: Scalar>(path: &Path, matrix: &Matrix<T>) -> Result<()> {
    let pattern = matrix.pattern();
    let (field, values) = match matrix {
        Matrix::Pattern(_) => ("pattern", None),
        Matrix::Values(csr) => ("real", Some(csr.values())),
    };
    write_atomically(path, |out| {
        writeln!(out, "%%MatrixMarket matrix coordinate {field} general")?;
        writeln!(out, "{} {} {}", pattern.rows(), pattern.cols(), pattern.nnz())?;
        write_chunks(out, pattern.nnz(), |text, range| {
            // The row of the first entry: the last one that starts at or before it.
            let mut i = pattern.row_ptr().partition_point(|&start| start <= range.start) - 1;
            for p in range {
                while pattern.row_ptr()[i + 1] <= p {
                    i += 1;
                }
                text.unsigned(i as u64 + 1).byte(b' ').unsigned(u64::from(pattern.col_idx()[p]) + 1);
                if let Some(values) = values {
                    text.byte(b' ').float(values[p]);
                }
                text.byte(b'\n');
            }
        })
    })
}

/// Writes the dense matrix `c` as a general array file, column by column. A name ending in `.gz` is compressed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind.
#[inline(never)]
pub fn write_mtx_dense<T: Scalar>(path: &Path, c: MatRef<'_, T>) -> Result<()> {
    write_atomically(path, |out| {
        writeln!(out, "%%MatrixMarket matrix array real general\n{} {}", c.rows(), c.cols())?;
        write_chunks(out, c.rows() * c.cols(), |text, range| {
            for p in range {
                text.float(c.row(p % c.rows())[p / c.rows()]).byte(b'\n');
            }
        })
    })
}

/// Writes a general coordinate file of `rows` x `cols` with `nnz` real entries that come some at a time, as their rows, columns and
/// values: `fill` calls what it is given with each of them. Numbers are written as by [`write_mtx`](super::write_mtx); a name ending in `.gz`
/// is compressed.
///
/// # Errors
/// What `fill` returns; [`Error::Argument`] when a place is outside, when a call's arrays have different lengths, and when there are
/// more or fewer entries than `nnz`; [`Error::Io`]. Nothing is left behind.
pub fn write_mtx_entries<T: Scalar>(
    path: &Path,
    (rows, cols): (usize, usize),
    nnz: usize,
    fill: impl FnOnce(&mut dyn FnMut(&[u32], &[u32], &[T]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    write_pieces(path, |out| {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let head = format!("%%MatrixMarket matrix coordinate real general\n{rows} {cols} {nnz}\n");
        out.write_all(head.as_bytes()).map_err(io)?;
        let mut written = 0usize;
        fill(&mut |i, j, values| {
            if i.len() != values.len() || j.len() != values.len() {
                let detail = format!("{} rows and {} columns for {} values", i.len(), j.len(), values.len());
                return Err(Error::argument("entries", detail));
            }
            if let Some(p) = (0..i.len()).find(|&p| i[p] as usize >= rows || j[p] as usize >= cols) {
                let detail = format!("entry {}: ({}, {}) is not in {rows} x {cols}", written + p, i[p], j[p]);
                return Err(Error::argument("entries", detail));
            }
            written += values.len();
            let written = write_chunks(out, values.len(), |text, range| {
                for p in range {
                    text.unsigned(u64::from(i[p]) + 1).byte(b' ').unsigned(u64::from(j[p]) + 1);
                    text.byte(b' ').float(values[p]).byte(b'\n');
                }
            });
            written.map_err(io)
        })?;
        match written == nnz {
            true => Ok(()),
            false => Err(Error::argument("entries", format!("{written} of {nnz}"))),
        }
    })
}
