//! Batches: several matrices along the diagonal of one.
//!
//! ```text
//! A_0             B_0       A_0 B_0
//!     A_1      x  B_1   =   A_1 B_1        rows of all blocks one after another, in A, B and C alike
//!         A_2     B_2       A_2 B_2
//! ```
//!
//! Every operation on the one matrix is that operation on each of the batch: it has one plan, threads share the rows of all blocks, and a dense
//! operand batch x rows x columns without gaps is the operand already. Where one pattern serves a whole batch, heads do with less: they read
//! its indices once ([`Cpu::spmm_heads`](crate::Cpu::spmm_heads)).

use std::sync::Arc;

use super::{Csr, CsrRef, Pattern, PatternRef, check_dims};
use crate::error::Result;

impl Pattern {
    /// The pattern with `blocks` along its diagonal, and nothing elsewhere: row i of block b follows all rows of the blocks before, and
    /// its columns are counted from theirs. Blocks may differ in shape and may be empty. O(rows + nonzeros).
    ///
    /// # Errors
    /// [`Error::Structure`](crate::Error::Structure) when the rows or the columns of all blocks together exceed u32.
    ///
    /// ```
    /// use sparsimd::Pattern;
    /// let (a, b) = (Pattern::new(1, 2, vec![0, 1], vec![1])?, Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?);
    /// let both = Pattern::block_diagonal([&a, &b])?;
    /// assert_eq!((both.rows(), both.cols(), both.row_ptr(), both.col_idx()), (3, 5, &[0, 1, 3, 4][..], &[1, 2, 4, 3][..]));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn block_diagonal<'a>(blocks: impl IntoIterator<Item = impl Into<PatternRef<'a>>>) -> Result<Arc<Self>> {
        let (mut row_ptr, mut col_idx, mut cols) = (vec![0], Vec::new(), 0usize);
        for block in blocks {
            let block: PatternRef<'_> = block.into();
            let before = col_idx.len();
            // Checked before indices are made that would not fit.
            check_dims("CSR", (row_ptr.len() - 1).saturating_add(block.rows()), cols.saturating_add(block.cols()))?;
            row_ptr.extend((0..block.rows()).map(|i| before + block.row_ptr().at(i + 1)));
            col_idx.extend(block.col_idx().iter().map(|&j| cols as u32 + j));
            cols += block.cols();
        }
        Ok(Arc::new(Self::from_parts(row_ptr.len() - 1, cols, row_ptr, col_idx)))
    }
}

impl<T: Copy> Csr<T> {
    /// The matrix with `blocks` along its diagonal, as [`Pattern::block_diagonal`]; values in the order of the blocks.
    ///
    /// # Errors
    /// As there.
    pub fn block_diagonal<'a>(blocks: impl IntoIterator<Item = impl Into<CsrRef<'a, T>>>) -> Result<Self>
    where
        T: 'a,
    {
        let blocks: Vec<CsrRef<'a, T>> = blocks.into_iter().map(Into::into).collect();
        let pattern = Pattern::block_diagonal(blocks.iter().map(|block| block.pattern()))?;
        Ok(Self::from_parts(pattern, blocks.iter().flat_map(|block| block.values()).copied().collect()))
    }
}
