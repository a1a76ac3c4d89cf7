//! What a pass has in memory at a time.

use sparsimd_kernels::Scalar;

use super::DenseRows;
use crate::dense::{Mat, padded_stride};
use crate::error::{Error, Result};
use crate::io::TnsbStream;

/// Fewest nonzeros of a chunk: with fewer, starting the threads would take as long as their work.
const FEWEST: usize = 1 << 16;
/// Fewest rows of a piece, likewise.
const FEWEST_ROWS: usize = 1 << 10;
/// The part of the memory that each of two blocks of B takes: the smaller, the larger a chunk of A, and B is read for each of them.
const BLOCK: usize = 8;

/// How much is worked on at a time.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Nonzeros of a chunk.
    pub chunk: usize,
    /// Most rows of a piece.
    pub rows: usize,
    /// Rows of a block of B; `None` where all of B is in memory.
    pub block: Option<usize>,
}

impl Sizes {
    /// Sizes for the matrix `a` and the dense operand `b` that take `memory` bytes at most; `results` for each nonzero are kept, of a piece
    /// and of a block.
    pub fn new<T: Scalar>(a: &TnsbStream, b: &DenseRows<'_, T>, results: usize, memory: usize) -> Result<Self> {
        let (m, nnz, (k, n)) = (a.dims()[0].max(1), a.nnz().max(1), b.shape());
        let row = padded_stride::<T>(n).saturating_mul(size_of::<T>()).max(1);
        // Besides two chunks: a column and a value for a block.
        let each = a.entry_bytes::<T>() + size_of::<u32>() + (1 + 2 * results) * size_of::<T>();
        // A row of the result or of C; where it begins in the piece and in the block, and how far it has been used.
        let each_row = row.saturating_add(4 * size_of::<usize>());
        let (fewest, fewest_rows) = (FEWEST.min(nnz), FEWEST_ROWS.min(m));
        let least = fewest_rows.saturating_mul(each_row).saturating_add(fewest * each);
        let whole = k.saturating_mul(row);
        let (block, rest) = match b {
            DenseRows::Memory(_) => (None, memory),
            DenseRows::File(_) if whole <= memory / 2 && memory - whole >= least => (None, memory - whole),
            DenseRows::File(_) => {
                let rows = (memory / BLOCK / row).clamp(1, k.max(1));
                (Some(rows), memory.saturating_sub(2 * rows * row))
            }
        };
        if rest < least {
            let whole_and_least = whole.saturating_add(least).max(whole.saturating_mul(2));
            let in_blocks =
                (least / (BLOCK - 2)).saturating_mul(BLOCK).max(row.saturating_mul(BLOCK)).saturating_add(BLOCK);
            let need = if block.is_some() { in_blocks.min(whole_and_least) } else { least };
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let detail = format!(
                "{} MiB; {fewest} nonzeros, {fewest_rows} rows of {n} columns and as many of B as are worked on take {}",
                memory >> 20,
                mib(need)
            );
            return Err(Error::argument("memory", detail));
        }
        // As many rows as a chunk's nonzeros have on average.
        let all = nnz.saturating_mul(each).saturating_add(m.saturating_mul(each_row));
        let chunk = match all <= rest {
            true => nnz,
            false => ((nnz as f64 * (rest as f64 / all as f64)) as usize).clamp(fewest, nnz),
        };
        // Rounding may take a little more than there is.
        let rows = (rest.saturating_sub(chunk * each) / each_row).clamp(1, m);
        Ok(Self { chunk, rows, block })
    }

    /// All of `b`, if it is in a file and there is memory for it.
    pub fn hold<T: Scalar>(&self, b: &DenseRows<'_, T>) -> Result<Option<Mat<T>>> {
        let (DenseRows::File(file), None) = (b, self.block) else { return Ok(None) };
        let mut all = Mat::zeros(file.rows(), file.cols())?;
        file.read_rows(0, all.as_mut())?;
        Ok(Some(all))
    }
}
