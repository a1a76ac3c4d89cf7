//! Plans of SpMM with one column from slices of rows.

use std::borrow::Cow;
use std::fmt;

use super::Stats;
use super::options::{Op, PlanOptions, SLICES_PAY_AFTER, Target};

/// Rows that are sorted by length together: more than this gain 1 to 2 % (p2p-Gnutella31, pubmed, ca-CondMat and amazon_book with 4096 rows
/// and with all, one thread of a Zen 4), and results go farther apart.
const SORTED_ROWS: usize = 8192;

/// Blocks of rows for each thread, and the nonzeros that are worth one.
const BLOCKS_PER_THREAD: usize = 4;
const LEAST_BLOCK: usize = 1 << 12;

/// Bytes of the narrowest register that slices pay with.
const NARROWEST: usize = 16;

/// How SpMM with one column runs from slices of rows, which [`Cpu::prepare`](crate::Cpu::prepare) lays out.
#[derive(Clone, Debug, PartialEq)]
pub struct SlicesPlan {
    pub(super) op: Op,
    /// Blocks come in multiples of this.
    pub(crate) blocks_multiple: usize,
    pub(super) reason: Cow<'static, str>,
}

impl SlicesPlan {
    /// Rows of a block, at most.
    pub(crate) const BLOCK_ROWS: usize = SORTED_ROWS;

    /// The plan for the operation of `options`, if there are slices for it: SpMM with one column, of A or A^T.
    pub(super) fn new(
        stats: &Stats,
        options: &PlanOptions,
        target: &Target,
        reason: Cow<'static, str>,
    ) -> Option<Self> {
        if options.n != 1 || !matches!(options.op, Op::Spmm | Op::SpmmTransposed) {
            return None;
        }
        let most = stats.nnz.div_ceil(LEAST_BLOCK).max(1);
        let blocks_multiple = if target.threads <= 1 { 1 } else { most.min(BLOCKS_PER_THREAD * target.threads) };
        Some(Self { op: options.op, blocks_multiple, reason })
    }

    /// Why the direct strategy is expected to be faster, if it is.
    pub(super) fn loses(stats: &Stats, options: &PlanOptions, target: &Target) -> Option<Cow<'static, str>> {
        if options.reuse < SLICES_PAY_AFTER {
            return Some(format!("{} runs do not pay for preparing slices", options.reuse).into());
        }
        if target.vector_bytes < NARROWEST {
            return Some("no registers of several rows".into());
        }
        // A row is one task's in slices, a few tasks' else.
        (target.threads > 1 && stats.max_row.saturating_mul(2 * target.threads) > stats.nnz)
            .then(|| format!("a row of {} nonzeros is shared by threads", stats.max_row).into())
    }
}

impl fmt::Display for SlicesPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slices: a register of rows at a time, sorted by length or in runs ({})", self.reason)
    }
}
