//! Plans of the matrix operations: which path, which panels, how many tasks.

use std::fmt;

use sparsimd_kernels::PAIRED_LANES;

use super::{Stats, Task, by_nonzeros, threads_per_row};
use crate::error::{Error, Result};
use crate::formats::{MAX_WIDTH, PatternRef};
use crate::machine::Machine;

/// An operation on a sparse matrix A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// C = alpha A B + beta C.
    Spmm,
    /// C = alpha A^T B + beta C.
    SpmmTransposed,
    /// A_ij = (C B^T)_ij on the pattern.
    Sddmm,
    /// E = f(C B^T on the pattern) D.
    FusedMm,
}

/// Where the kernels read the nonzeros from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Whichever the model says is faster.
    #[default]
    Auto,
    /// Straight from CSR, no preparation.
    Direct,
    /// From panels that are prepared once.
    Panel,
}

/// What the caller knows about the use of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// The path, or [`Strategy::Auto`].
    pub path: Strategy,
    /// How often the plan will be run. A panel costs the time of some runs to prepare.
    pub reuse: usize,
    /// Threads that will run it.
    pub threads: usize,
    /// Bytes of a vector register.
    pub vector_bytes: usize,
    /// Vector registers.
    pub registers: usize,
}

/// Runs after which a panel has paid for its preparation. Zen 4, 70 % zeros, N = 128: SpMM takes 5 runs to prepare (8 where the
/// system has to find the memory first) and is 1.5 times as fast as directly, FusedMM 3 and 1.9, SDDMM 2 and 1.35.
const PANEL_PAYS_AFTER: usize = 12;

/// Tasks per thread of the direct path: enough that a late thread can be helped, few enough that starting them is free.
const TASKS_PER_THREAD: usize = 16;

/// Density from which the direct path takes blocks of rows panel by panel: a block's rows then meet a row of B 4 times.
const DENSE: f64 = 1.0 / 32.0;

/// Nonzeros of a row in a panel of the direct path. Fewer are spent on loading and storing C, more outgrow the caches: 19, 38,
/// 77 reach 37, 39, 33 % of peak at 70 % zeros, 13, 26, 51 reach 28, 31, 31 % at 90 %.
const DIRECT_VISIT: f64 = 32.0;

/// Share of L1 that the packed panel takes: the rest is for the row of C, the offsets and the values that stream by.
/// Measured: 40 of 48 KiB is best; the whole loses 8 %, two thirds 2 %.
const L1_SHARE: (usize, usize) = (5, 6);

/// Nonzeros ahead at which the direct path prefetches rows. On graphs of 20 000 to 70 000 rows 8 and 16 are best by 3-15 %
/// over 4 and 32.
const PREFETCH_AHEAD: usize = 16;

/// Bytes of a row of C that are computed in one pass: more leave too few rows to a block for the copies of panels. Values are
/// read from afar once per pass: two tiles in one, f64, N = 128, 82 GFLOP/s; each in its own, 74.
const MOST_ROW_BYTES: usize = 1024;

/// Vectors per nonzero from which pairing rows pays: finding partners costs as much whatever N is, more than all the rest of
/// preparing. 8 vectors: 74 instead of 66 % of peak; 2 vectors: 57 % where rows by themselves reach 64.
const PAIRS_PAY: usize = 8;

/// Nonzeros per visit that a tile should have: at 12, eight vectors of C are loaded and stored per 96 multiply-adds.
const GOOD_VISIT: f64 = 12.0;

/// Nonzeros per visit below which the panel path loses to the direct one: SpMM, and the operations with dots, whose tails
/// weigh more. Facebook's ego networks, 5.4 per visit: SpMM equal, SDDMM and FusedMM 20-50 % faster directly; uniformly
/// random with 8 per visit: SDDMM 25 % faster by panels.
const LEAST_VISIT: (f64, f64) = (3.5, 6.5);

/// How one operation on one pattern will be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// Columns of the dense operands.
    pub n: usize,
    /// [`Strategy::Direct`] or [`Strategy::Panel`].
    pub path: Strategy,
    /// NT: threads that may share a row (see [`threads_per_row`]).
    pub threads_per_row: usize,
    /// Tasks of the direct path.
    pub tasks: usize,
    /// Nonzeros ahead at which the direct path prefetches rows of B; 0 for not at all.
    pub ahead: usize,
    /// Columns that a block of rows passes over together in the direct path; more than there are for all.
    pub direct_width: usize,
    /// Whether the direct path writes its result past the caches.
    pub stream: bool,
    /// Columns of a panel.
    pub panel_width: usize,
    /// Rows of a block, at most.
    pub block_rows: usize,
    /// Vectors of a tile in the panel path.
    pub tile_vectors: usize,
    /// Vectors of the row that are computed, tile by tile, in one pass over the panels of a row block.
    pub pass_vectors: usize,
    /// Whether rows with common columns are taken two at a time in the panel path.
    pub pairs: bool,
    /// Row blocks come in multiples of this: the threads.
    pub blocks_multiple: usize,
    reason: String,
}

impl Plan {
    /// The plan for `op` with dense operands of `n` columns of `scalar_bytes`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `n` is 0.
    pub fn choose(
        op: Op,
        stats: &Stats,
        machine: &Machine,
        n: usize,
        scalar_bytes: usize,
        options: &PlanOptions,
    ) -> Result<Self> {
        if n == 0 {
            return Err(Error::argument("n", "0 columns; dense operands have at least 1"));
        }
        let threads = options.threads.max(1);
        let lanes = (options.vector_bytes / scalar_bytes).max(1);
        let l1 = machine.l1d_bytes() * L1_SHARE.0 / L1_SHARE.1;
        let width_of = |vectors: usize| (l1 / (vectors * lanes * scalar_bytes)).clamp(16, MAX_WIDTH);

        let all = n.div_ceil(lanes);
        let widest = match op {
            Op::Spmm | Op::SpmmTransposed => all.min(8),
            // SDDMM keeps its dots beside the row of C, and FusedMM uses SDDMM's panels.
            Op::Sddmm | Op::FusedMm => all.min(if options.registers >= 32 { 8 } else { 4 }),
        };
        let mut vectors = widest;
        // Narrower tiles make wider panels, so that a visit to a row of C is worth its load and store. A tile of dots ends in
        // a tree, whatever its width: four vectors at least (90 %: 8 vectors of 80 columns 9.1 cycles per nonzero, 4 of 160
        // columns 4.2).
        let narrowest = match op {
            Op::Spmm | Op::SpmmTransposed => 2,
            Op::Sddmm => 4,
            Op::FusedMm => widest,
        };
        while vectors > narrowest && stats.per_visit(width_of(vectors)) < GOOD_VISIT {
            vectors = vectors.div_ceil(2);
        }
        let panel_width = width_of(vectors);
        let per_visit = stats.per_visit(panel_width);

        // Two rows' accumulators, their two weights and the row of B.
        let fit = 2 * vectors + 3 <= options.registers;
        let pairs = match op {
            Op::Spmm | Op::SpmmTransposed => fit && all >= PAIRS_PAY,
            Op::FusedMm => fit && 2 * all >= PAIRS_PAY,
            // Dots of pairs are put in order, which a second tile pays (70 % zeros, f64: N = 64 32.3 instead of 33.6 GFLOP/s, N = 128
            // 35.6 instead of 33.7, N = 256 36.1 instead of 31.0, Zen 4).
            Op::Sddmm => fit && lanes == PAIRED_LANES && vectors >= PAIRS_PAY && all >= 2 * PAIRS_PAY,
        };

        // A tile of C that is narrower than its rows uses some of the cache's sets only: count whole rows.
        let row_bytes = (all * options.vector_bytes).clamp(64, MOST_ROW_BYTES);
        let block_rows = if op == Op::Sddmm {
            // Dots go to their places in CSR order, a few at a time: a block's should stay in L2, beside what streams
            // past, until their lines are full. But visits of one length follow each other, and the more rows, the more
            // seldom the length changes, which costs a branch miss or two (4096 x 4096, 70 %: with 128, 256, 512 rows
            // N = 128 reaches 42, 50, 52 % of peak and N = 32 in 256, 512 rows 42, 48 %; 90 %, N = 32 in 256, 512, 1024
            // rows 43, 45, 46 %). Dots in f64 take twice the room (N = 128 in 256, 384, 512 rows
            // 33.7, 34.1, 33.4 GFLOP/s, N = 256 32.2, 35.9, 34.9, Zen 4).
            let row_dots = stats.nnz * scalar_bytes / stats.rows.max(1);
            let least = if scalar_bytes > 4 { 384 } else { 512 };
            (machine.l2_bytes() / 2 / (row_bytes + row_dots)).clamp(least, 2048)
        } else {
            // Rows of C are read and written whole and in order: they come from L3 as well, and more rows mean better
            // pairs, longer runs of one length and fewer copies of B (4096 x 4096, N = 128, one thread, blocks of 1024
            // and 4096 rows: 70 % f32 71 and 74 % of peak, f64 64 and 72 %; 90 % f32 54 and 57 %; FusedMM 63 and 68 %;
            // 16384 rows lose again where C exceeds the caches).
            ((machine.l3_share(threads) / 4).max(machine.l2_bytes() / 2) / row_bytes).clamp(256, 4096)
        };
        let pass_vectors = (row_bytes / options.vector_bytes / vectors).max(1) * vectors;
        // Copying a panel into L1 must be a small part of using it.
        let block_nnz = stats.nnz as f64 / stats.rows.max(1) as f64 * block_rows.min(stats.rows) as f64;
        let touched = (stats.cols as f64).min(block_nnz / per_visit.max(1.0) * panel_width as f64);
        let copies_per_nonzero = touched / block_nnz.max(1.0);

        // Dots in narrow tiles are not the cheaper for it: what counts is a visit of the widest.
        let (worth, least_visit) = match op {
            Op::Spmm | Op::SpmmTransposed => (per_visit, LEAST_VISIT.0),
            Op::Sddmm | Op::FusedMm => (stats.per_visit(width_of(widest)), LEAST_VISIT.1),
        };
        let (path, reason) = match options.path {
            Strategy::Direct | Strategy::Panel => (options.path, "as asked".to_string()),
            Strategy::Auto if n == 1 => (Strategy::Direct, "one column: nothing to keep in registers".to_string()),
            Strategy::Auto if options.reuse < PANEL_PAYS_AFTER => {
                (Strategy::Direct, format!("{} runs do not pay for preparing panels", options.reuse))
            }
            Strategy::Auto if worth < least_visit => {
                (Strategy::Direct, format!("{worth:.1} nonzeros of a row in a panel do not pay for its row of C"))
            }
            Strategy::Auto if copies_per_nonzero > 1.0 => {
                (Strategy::Direct, format!("panels would be copied {copies_per_nonzero:.1} times per use"))
            }
            Strategy::Auto => (Strategy::Panel, format!("{per_visit:.1} nonzeros of a row in a panel")),
        };
        let row_bytes = match op {
            // B and D.
            Op::FusedMm => 2 * n * scalar_bytes,
            _ => (n * scalar_bytes).min(8 * options.vector_bytes),
        };
        let (direct_width, ahead) = direct_order(op, stats, machine.l2_bytes() / 2, row_bytes);
        let stream = outgrows_caches(op, stats, machine, n.saturating_mul(scalar_bytes));
        let work_items = threads * TASKS_PER_THREAD;
        let nt = threads_per_row(stats.rows, work_items);
        Ok(Self {
            op,
            n,
            path,
            threads_per_row: nt,
            tasks: if threads == 1 { 1 } else { work_items },
            ahead,
            direct_width,
            stream,
            panel_width,
            block_rows,
            tile_vectors: vectors,
            pass_vectors,
            pairs,
            blocks_multiple: threads,
            reason,
        })
    }
}

/// The direct path's columns of a panel, and how many nonzeros ahead it prefetches, where a row of what it gathers takes
/// `row_bytes` and `near` bytes are near.
fn direct_order(op: Op, stats: &Stats, near: usize, row_bytes: usize) -> (usize, usize) {
    if stats.cols.saturating_mul(row_bytes) <= near {
        // Sums of rows lose by asking for what is near already (4096 rows of 128 bytes: 28 % of peak with, 31 % without); dots,
        // whose groups end in a tree, gain (24 % with, 15 % without).
        let sums = matches!(op, Op::Spmm | Op::SpmmTransposed);
        return (usize::MAX, if sums { 0 } else { PREFETCH_AHEAD });
    }
    if stats.density() < DENSE {
        return (usize::MAX, PREFETCH_AHEAD);
    }
    let width = ((DIRECT_VISIT / stats.density()) as usize).min(near / row_bytes).max(1);
    (width, if width < stats.cols { 0 } else { PREFETCH_AHEAD })
}

/// Whether the dense operands of rows of `row_bytes` outgrow the last cache, so that a result left there would be gone
/// before it is read, and would drive out the rows that are gathered.
fn outgrows_caches(op: Op, stats: &Stats, machine: &Machine, row_bytes: usize) -> bool {
    let rows = match op {
        // B and C.
        Op::Spmm | Op::SpmmTransposed => stats.rows.saturating_add(stats.cols),
        // B, D and E; C is read once.
        Op::FusedMm => stats.rows.saturating_add(stats.cols.saturating_mul(2)),
        // Numbers per nonzero, not rows.
        Op::Sddmm => return false,
    };
    rows.saturating_mul(row_bytes) > machine.l3_bytes()
}

impl Plan {
    /// The direct path's tasks on `pattern`. A row may be cut into NT pieces where rows are fewer than the tasks, else into
    /// as many as balance needs, since one long row would hold up all.
    pub(crate) fn cut(&self, pattern: PatternRef<'_>) -> Vec<Task> {
        let rows = pattern.rows();
        let pieces = if rows < self.tasks { self.threads_per_row.max(self.tasks / rows.max(1)) } else { self.tasks };
        by_nonzeros(pattern.row_ptr(), self.tasks, pieces)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            Strategy::Panel => write!(
                f,
                "panel: {} columns x {} rows, {} vectors of {} at a time ({})",
                self.panel_width,
                self.block_rows,
                self.tile_vectors,
                if self.pairs { "two rows" } else { "the row" },
                self.reason
            ),
            _ => {
                write!(f, "direct: {} tasks, at most {} per row, ", self.tasks, self.threads_per_row)?;
                match (self.direct_width, self.ahead) {
                    (usize::MAX, 0) => write!(f, "no prefetch")?,
                    (width, 0) => write!(f, "{width} columns at a time")?,
                    (_, ahead) => write!(f, "prefetch {ahead} ahead")?,
                }
                if self.stream {
                    write!(f, ", results past the caches")?;
                }
                write!(f, " ({})", self.reason)
            }
        }
    }
}
