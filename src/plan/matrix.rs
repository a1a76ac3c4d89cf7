//! Plans of the matrix operations: which path, which panels, how many tasks.

use std::borrow::Cow;
use std::fmt;

use sparsimd_kernels::PAIRED_LANES;

use super::{Stats, Task, by_nonzeros, streams, threads_per_row};
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

impl Op {
    /// The name of the operation in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spmm => "spmm",
            Self::SpmmTransposed => "spmm_t",
            Self::Sddmm => "sddmm",
            Self::FusedMm => "fusedmm",
        }
    }
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

/// What a matrix operand is prepared for: the operation, the columns of the dense operands, and how often it will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    pub(crate) op: Op,
    pub(crate) n: usize,
    pub(crate) strategy: Strategy,
    pub(crate) reuse: usize,
}

impl PlanOptions {
    /// For 1000 runs of `op` with dense operands of `n` columns, by the strategy that is expected to be faster.
    pub fn new(op: Op, n: usize) -> Self {
        Self { op, n, strategy: Strategy::Auto, reuse: 1000 }
    }

    /// The same with this strategy.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// The same for so many runs. Panels cost the time of some runs to prepare.
    pub fn reuse(self, runs: usize) -> Self {
        Self { reuse: runs, ..self }
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Columns of the dense operands.
    pub fn n(&self) -> usize {
        self.n
    }
}

/// What will run a plan: threads, registers and the size of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Threads.
    pub threads: usize,
    /// Bytes of a vector register.
    pub vector_bytes: usize,
    /// Vector registers.
    pub registers: usize,
    /// Bytes of a value: 4 or 8.
    pub value_bytes: usize,
}

impl Target {
    /// Elements of a vector register.
    fn lanes(&self) -> usize {
        (self.vector_bytes / self.value_bytes.max(1)).max(1)
    }
}

/// Runs after which a panel has paid for its preparation. Zen 4, 70 % zeros, N = 128: SpMM takes 5 runs to prepare (8
/// where the system has to find the memory first) and is 1.5 times as fast as directly, FusedMM 3 and 1.9, SDDMM 2 and
/// 1.35.
const PANEL_PAYS_AFTER: usize = 12;

/// Tasks per thread of the direct path: enough that a late thread can be helped, few enough that starting them is free.
const TASKS_PER_THREAD: usize = 16;

/// Density from which the direct path takes blocks of rows panel by panel: a block's rows then meet a row of B 4 times.
const DENSE: f64 = 1.0 / 32.0;

/// Nonzeros of a row in a panel of the direct path. Fewer are spent on loading and storing C, more outgrow the caches:
/// 19, 38, 77 reach 37, 39, 33 % of peak at 70 % zeros, 13, 26, 51 reach 28, 31, 31 % at 90 %.
const DIRECT_VISIT: f64 = 32.0;

/// Share of L1 that the packed panel takes: the rest is for the row of C, the offsets and the values that stream by.
/// Measured: 40 of 48 KiB is best; the whole loses 8 %, two thirds 2 %.
const L1_SHARE: (usize, usize) = (5, 6);

/// Nonzeros ahead at which the direct path prefetches rows. On graphs of 20 000 to 70 000 rows 8 and 16 are best by 3-15 %
/// over 4 and 32.
const PREFETCH_DISTANCE: usize = 16;

/// Bytes of a row of C that are computed in one pass: more leave too few rows to a block for the copies of panels.
/// Values are read from afar once per pass: two tiles in one, f64, N = 128, 82 GFLOP/s; each in its own, 74.
const MOST_ROW_BYTES: usize = 1024;

/// Vectors per nonzero from which pairing rows pays: finding partners costs as much whatever N is, more than all the
/// rest of preparing. 8 vectors: 74 instead of 66 % of peak; 2 vectors: 57 % where rows by themselves reach 64.
const PAIRS_PAY: usize = 8;

/// Nonzeros per row segment that a tile should have: at 12, eight vectors of C are loaded and stored per 96 multiply-adds.
const GOOD_SEGMENT: f64 = 12.0;

/// Nonzeros per row segment below which the panel path loses to the direct one: SpMM, and the operations with dots,
/// whose tails weigh more. Facebook's ego networks, 5.4 per row segment: SpMM equal, SDDMM and FusedMM 20-50 % faster
/// directly; uniformly random with 8 per row segment: SDDMM 25 % faster by panels.
const LEAST_SEGMENT: (f64, f64) = (3.5, 6.5);

/// How one operation on one pattern will be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Straight from CSR.
    Direct(DirectPlan),
    /// From panels.
    Panel(PanelPlan),
}

/// How an operation runs straight from CSR.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectPlan {
    op: Op,
    n: usize,
    tasks: usize,
    threads_per_row: usize,
    pub(crate) prefetch_distance: usize,
    /// Columns that a block of rows passes over together; the largest number for all.
    pub(crate) column_slab: usize,
    pub(crate) stream: bool,
    reason: Cow<'static, str>,
}

/// How an operation runs from panels: row blocks x column panels, which [`Cpu::prepare`](crate::Cpu::prepare) lays out.
#[derive(Clone, Debug, PartialEq)]
pub struct PanelPlan {
    op: Op,
    n: usize,
    pub(crate) width: usize,
    pub(crate) block_rows: usize,
    pub(crate) tile_vectors: usize,
    /// Vectors of the row that are computed, tile by tile, in one pass over the panels of a row block.
    pub(crate) pass_vectors: usize,
    pub(crate) pairs: bool,
    /// Row blocks come in multiples of this: the threads.
    pub(crate) blocks_multiple: usize,
    reason: Cow<'static, str>,
}

impl Plan {
    /// The plan for the operation of `options` on a pattern with these statistics.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense operands have no columns.
    pub fn choose(stats: &Stats, machine: &Machine, options: &PlanOptions, target: &Target) -> Result<Self> {
        let &PlanOptions { op, n, strategy, .. } = options;
        check_columns(n)?;
        let direct = |reason| Self::Direct(DirectPlan::new(op, n, stats, machine, target, reason));
        if strategy == Strategy::Direct {
            return Ok(direct(AS_ASKED));
        }
        let plan = PanelPlan::new(stats, machine, options, target);
        Ok(match strategy {
            Strategy::Panel => Self::Panel(PanelPlan { reason: AS_ASKED, ..plan }),
            _ => match plan.loses(stats, machine, options, target) {
                Some(reason) => direct(reason),
                None => Self::Panel(plan),
            },
        })
    }

    /// The error of a run of `op` on what was prepared for another operation.
    pub(crate) fn check_op(&self, op: Op) -> Result<()> {
        if self.op() == op {
            return Ok(());
        }
        Err(Error::shape(op.name(), format!("the sparse operand was prepared for {:?}", self.op())))
    }

    /// The operation.
    pub fn op(&self) -> Op {
        match self {
            Self::Direct(plan) => plan.op,
            Self::Panel(plan) => plan.op,
        }
    }

    /// Columns of the dense operands.
    pub fn n(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.n,
            Self::Panel(plan) => plan.n,
        }
    }

    /// [`Strategy::Direct`] or [`Strategy::Panel`].
    pub fn strategy(&self) -> Strategy {
        match self {
            Self::Direct(_) => Strategy::Direct,
            Self::Panel(_) => Strategy::Panel,
        }
    }

    /// What will be done and why, in one line.
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

/// The reason of a strategy that the caller chose.
const AS_ASKED: Cow<'static, str> = Cow::Borrowed("as asked");

fn check_columns(n: usize) -> Result<()> {
    if n == 0 { Err(Error::argument("n", "0 columns; dense operands have at least 1")) } else { Ok(()) }
}

/// Columns of a panel whose tiles of so many vectors take their share of L1.
fn width_of(vectors: usize, machine: &Machine, target: &Target) -> usize {
    let l1 = machine.l1d_bytes() * L1_SHARE.0 / L1_SHARE.1;
    (l1 / (vectors * target.lanes() * target.value_bytes)).clamp(16, MAX_WIDTH)
}

/// Vectors of the widest tile of rows of `all` vectors.
fn widest_tile(op: Op, all: usize, target: &Target) -> usize {
    match op {
        Op::Spmm | Op::SpmmTransposed => all.min(8),
        // SDDMM keeps its dots beside the row of C, and FusedMM uses SDDMM's panels.
        Op::Sddmm | Op::FusedMm => all.min(if target.registers >= 32 { 8 } else { 4 }),
    }
}

impl PanelPlan {
    /// The panels for the operation of `options`, whether they pay or not.
    fn new(stats: &Stats, machine: &Machine, options: &PlanOptions, target: &Target) -> Self {
        let &PlanOptions { op, n, .. } = options;
        let &Target { vector_bytes, registers, value_bytes, .. } = target;
        let (threads, lanes) = (target.threads.max(1), target.lanes());
        let all = n.div_ceil(lanes);
        let widest = widest_tile(op, all, target);
        let mut vectors = widest;
        // Narrower tiles make wider panels, so that a visit to a row of C is worth its load and store. A tile of dots
        // ends in a tree, whatever its width: four vectors at least (90 %: 8 vectors of 80 columns 9.1 cycles per
        // nonzero, 4 of 160 columns 4.2).
        let narrowest = match op {
            Op::Spmm | Op::SpmmTransposed => 2,
            Op::Sddmm => 4,
            Op::FusedMm => widest,
        };
        while vectors > narrowest && stats.per_segment(width_of(vectors, machine, target)) < GOOD_SEGMENT {
            vectors = vectors.div_ceil(2);
        }
        let width = width_of(vectors, machine, target);

        // Two rows' accumulators, their two weights and the row of B.
        let fit = 2 * vectors + 3 <= registers;
        let pairs = match op {
            Op::Spmm | Op::SpmmTransposed => fit && all >= PAIRS_PAY,
            Op::FusedMm => fit && 2 * all >= PAIRS_PAY,
            // Dots of pairs are put in order, which a second tile pays (70 % zeros, f64: N = 64 32.3 instead of 33.6
            // GFLOP/s, N = 128 35.6 instead of 33.7, N = 256 36.1 instead of 31.0, Zen 4).
            Op::Sddmm => fit && lanes == PAIRED_LANES && vectors >= PAIRS_PAY && all >= 2 * PAIRS_PAY,
        };

        // A tile of C that is narrower than its rows uses some of the cache's sets only: count whole rows.
        let row_bytes = (all * vector_bytes).clamp(64, MOST_ROW_BYTES);
        let block_rows = if op == Op::Sddmm {
            // Dots go to their places in CSR order, a few at a time: a block's should stay in L2, beside what streams
            // past, until their lines are full. But row segments of one length follow each other, and the more rows,
            // the more seldom the length changes, which costs a branch miss or two (4096 x 4096, 70 %: with 128, 256,
            // 512 rows N = 128 reaches 42, 50, 52 % of peak and N = 32 in 256, 512 rows 42, 48 %; 90 %, N = 32 in 256,
            // 512, 1024 rows 43, 45, 46 %). Dots in f64 take twice the room (N = 128 in 256, 384, 512 rows 33.7, 34.1,
            // 33.4 GFLOP/s, N = 256 32.2, 35.9, 34.9, Zen 4).
            let row_dots = stats.nnz * value_bytes / stats.rows.max(1);
            let least = if value_bytes > 4 { 384 } else { 512 };
            (machine.l2_bytes() / 2 / (row_bytes + row_dots)).clamp(least, 2048)
        } else {
            // Rows of C are read and written whole and in order: they come from L3 as well, and more rows mean better
            // pairs, longer runs of one length and fewer copies of B (4096 x 4096, N = 128, one thread, blocks of 1024
            // and 4096 rows: 70 % f32 71 and 74 % of peak, f64 64 and 72 %; 90 % f32 54 and 57 %; FusedMM 63 and 68 %;
            // 16384 rows lose again where C exceeds the caches).
            ((machine.l3_share(threads) / 4).max(machine.l2_bytes() / 2) / row_bytes).clamp(256, 4096)
        };
        let pass_vectors = (row_bytes / vector_bytes / vectors).max(1) * vectors;
        let reason = format!("{:.1} nonzeros of a row in a panel", stats.per_segment(width)).into();
        let blocks_multiple = threads;
        Self { op, n, width, block_rows, tile_vectors: vectors, pass_vectors, pairs, blocks_multiple, reason }
    }

    /// Why the direct strategy is expected to be faster, if it is.
    fn loses(
        &self,
        stats: &Stats,
        machine: &Machine,
        options: &PlanOptions,
        target: &Target,
    ) -> Option<Cow<'static, str>> {
        if self.n == 1 {
            return Some("one column: nothing to keep in registers".into());
        }
        if options.reuse < PANEL_PAYS_AFTER {
            return Some(format!("{} runs do not pay for preparing panels", options.reuse).into());
        }
        let per_segment = stats.per_segment(self.width);
        // Dots in narrow tiles are not the cheaper for it: what counts is a row segment of the widest.
        let (worth, least_segment) = match self.op {
            Op::Spmm | Op::SpmmTransposed => (per_segment, LEAST_SEGMENT.0),
            Op::Sddmm | Op::FusedMm => {
                let widest = widest_tile(self.op, self.n.div_ceil(target.lanes()), target);
                (stats.per_segment(width_of(widest, machine, target)), LEAST_SEGMENT.1)
            }
        };
        if worth < least_segment {
            return Some(format!("{worth:.1} nonzeros of a row in a panel do not pay for its row of C").into());
        }
        // Copying a panel into L1 must be a small part of using it.
        let block_nnz = stats.nnz as f64 / stats.rows.max(1) as f64 * self.block_rows.min(stats.rows) as f64;
        let touched = (stats.cols as f64).min(block_nnz / per_segment.max(1.0) * self.width as f64);
        let copies_per_nonzero = touched / block_nnz.max(1.0);
        (copies_per_nonzero > 1.0)
            .then(|| format!("panels would be copied {copies_per_nonzero:.1} times per use").into())
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of a block, at most.
    pub fn block_rows(&self) -> usize {
        self.block_rows
    }

    /// Vectors of a tile: so many registers hold a part of a row of the result.
    pub fn tile_vectors(&self) -> usize {
        self.tile_vectors
    }

    /// Whether rows with common columns are taken two at a time.
    pub fn pairs(&self) -> bool {
        self.pairs
    }
}

impl DirectPlan {
    /// The plan for `op` with `n` columns, at least one. Of the pattern it needs no more than the size.
    fn new(op: Op, n: usize, stats: &Stats, machine: &Machine, target: &Target, reason: Cow<'static, str>) -> Self {
        let row_bytes = match op {
            // B and D.
            Op::FusedMm => 2 * n * target.value_bytes,
            _ => (n * target.value_bytes).min(8 * target.vector_bytes),
        };
        let (column_slab, prefetch_distance) = direct_order(op, stats, machine.l2_bytes() / 2, row_bytes);
        let stream = streams_result(op, stats, machine, n.saturating_mul(target.value_bytes));
        let threads = target.threads.max(1);
        let work_items = threads * TASKS_PER_THREAD;
        let threads_per_row = threads_per_row(stats.rows, work_items);
        let tasks = if threads == 1 { 1 } else { work_items };
        Self { op, n, tasks, threads_per_row, prefetch_distance, column_slab, stream, reason }
    }

    /// The plan for an operand that is not prepared.
    pub(crate) fn unprepared(op: Op, n: usize, stats: &Stats, machine: &Machine, target: &Target) -> Result<Self> {
        check_columns(n)?;
        Ok(Self::new(op, n, stats, machine, target, Cow::Borrowed("not prepared")))
    }

    /// Columns of the dense operands.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Tasks that the rows are cut into, at most.
    pub fn tasks(&self) -> usize {
        self.tasks
    }

    /// Threads that may share a row (see [`threads_per_row`]).
    pub fn threads_per_row(&self) -> usize {
        self.threads_per_row
    }

    /// Nonzeros between the one computed and the one whose row of B is prefetched; 0 for no prefetch.
    pub fn prefetch_distance(&self) -> usize {
        self.prefetch_distance
    }

    /// Columns that a block of rows passes over together, if not all.
    pub fn column_slab(&self) -> Option<usize> {
        Some(self.column_slab).filter(|&columns| columns != usize::MAX)
    }

    /// Whether the result is written past the caches.
    pub fn streams(&self) -> bool {
        self.stream
    }
}

/// The direct path's columns of a panel, and how many nonzeros ahead it prefetches, where a row of what it gathers takes
/// `row_bytes` and `near` bytes are near.
fn direct_order(op: Op, stats: &Stats, near: usize, row_bytes: usize) -> (usize, usize) {
    if stats.cols.saturating_mul(row_bytes) <= near {
        // Sums of rows lose by asking for what is near already (4096 rows of 128 bytes: 28 % of peak with, 31 %
        // without); dots, whose groups end in a tree, gain (24 % with, 15 % without).
        let sums = matches!(op, Op::Spmm | Op::SpmmTransposed);
        return (usize::MAX, if sums { 0 } else { PREFETCH_DISTANCE });
    }
    if stats.density() < DENSE {
        return (usize::MAX, PREFETCH_DISTANCE);
    }
    let width = ((DIRECT_VISIT / stats.density()) as usize).min(near / row_bytes).max(1);
    (width, if width < stats.cols { 0 } else { PREFETCH_DISTANCE })
}

/// Whether `op` on dense operands of rows of `row_bytes` writes its result past the caches.
fn streams_result(op: Op, stats: &Stats, machine: &Machine, row_bytes: usize) -> bool {
    let rows = match op {
        // B and C.
        Op::Spmm | Op::SpmmTransposed => stats.rows.saturating_add(stats.cols),
        // B, D and E; C is read once.
        Op::FusedMm => stats.rows.saturating_add(stats.cols.saturating_mul(2)),
        // Numbers per nonzero, not rows.
        Op::Sddmm => return false,
    };
    streams(machine, rows.saturating_mul(row_bytes))
}

impl DirectPlan {
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
        match self {
            Self::Panel(plan) => write!(
                f,
                "panel: {} columns x {} rows, {} vectors of {} at a time ({})",
                plan.width,
                plan.block_rows,
                plan.tile_vectors,
                if plan.pairs { "two rows" } else { "the row" },
                plan.reason
            ),
            Self::Direct(plan) => {
                write!(f, "direct: {} tasks, at most {} per row, ", plan.tasks, plan.threads_per_row)?;
                match (plan.column_slab, plan.prefetch_distance) {
                    (usize::MAX, 0) => write!(f, "no prefetch")?,
                    (columns, 0) => write!(f, "{columns} columns at a time")?,
                    (_, distance) => write!(f, "prefetch {distance} ahead")?,
                }
                if plan.stream {
                    write!(f, ", results past the caches")?;
                }
                write!(f, " ({})", plan.reason)
            }
        }
    }
}
