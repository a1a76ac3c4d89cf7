//! A Matrix Market file written some entries at a time: for results larger than memory.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::atomic::write_pieces;
use super::number::write_chunks;
use crate::error::{Error, Result};

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
