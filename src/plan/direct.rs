//! Plans of the direct strategy: how many tasks, in which order nonzeros are taken, how far ahead is prefetched.

use std::borrow::Cow;
use std::fmt;

use super::choices::DirectChoices;
use super::options::{Op, Target, check_columns};
use super::{Stats, Task, by_nonzeros, streams, threads_per_row};
use crate::error::Result;
use crate::formats::PatternRef;
use crate::machine::Machine;

/// Tasks per thread of the direct path: enough that a late thread can be helped, few enough that starting them is free.
const TASKS_PER_THREAD: usize = 16;

/// Multiply-adds that are worth a task of their own: some 200 ns.
const LEAST_TASK: usize = 1 << 12;

/// Density from which the direct path takes blocks of rows panel by panel: a block's rows then meet a row of B 4 times.
const DENSE: f64 = 1.0 / 32.0;

/// Nonzeros of a row in a panel of the direct path. Fewer are spent on loading and storing C, more outgrow the caches:
/// 19, 38, 77 reach 37, 39, 33 % of peak at 70 % zeros, 13, 26, 51 reach 28, 31, 31 % at 90 %.
const DIRECT_VISIT: f64 = 32.0;

/// Nonzeros ahead at which the direct path prefetches rows. On graphs of 20 000 to 70 000 rows 8 and 16 are best by 3-15 %
/// over 4 and 32.
const PREFETCH_DISTANCE: usize = 16;

/// The farthest that rows are prefetched: farther ones are evicted before they are used.
const MOST_DISTANCE: usize = 256;

/// Bytes of edge values between the stages of FusedMM, for each thread. The more, the seldomer B and D drive each other out of
/// the caches: on ca-CondMat 32 KiB lose a quarter to SDDMM and SpMM one after the other, and on a graph of 2^20 rows with 8 M
/// nonzeros, N = 64, 4 MiB lose an eighth, 8 MiB nothing (one thread of a Zen 4: 267 and 235 ms, 236 one after the other).
const STAGE_BYTES: usize = 8 << 20;

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
    /// How FusedMM runs where D is not B.
    pub(crate) stages: Stages,
    pub(super) reason: Cow<'static, str>,
}

/// FusedMM where D is not B: dots, edge function and sums of some rows after one another, as SDDMM and SpMM would run. Nonzero by
/// nonzero, two gathered matrices compete for the caches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stages {
    /// Nonzeros whose edge values are there at a time, for each thread.
    pub nonzeros: usize,
    /// Columns that a block of rows passes over together, and the prefetch distance: of the dots.
    pub dots: (usize, usize),
    /// The same of the sums.
    pub sums: (usize, usize),
    /// Whether the result bypasses the caches.
    pub stream: bool,
}

impl DirectPlan {
    /// The plan for `op` with `n` columns, at least one. Of the pattern it needs no more than the size.
    pub(super) fn new(
        op: Op,
        n: usize,
        stats: &Stats,
        machine: &Machine,
        target: &Target,
        reason: Cow<'static, str>,
    ) -> Self {
        let row_bytes = match op {
            // B and D.
            Op::FusedMm => 2 * n * target.value_bytes,
            _ => (n * target.value_bytes).min(8 * target.vector_bytes),
        };
        let (column_slab, prefetch_distance) = direct_order(op, stats, machine.l2_bytes() / 2, row_bytes);
        let stream = streams_result(op, stats, machine, n.saturating_mul(target.value_bytes));
        let tile_bytes = (n * target.value_bytes).min(8 * target.vector_bytes);
        let order = |op| direct_order(op, stats, machine.l2_bytes() / 2, tile_bytes);
        let stages = Stages {
            nonzeros: (STAGE_BYTES / target.value_bytes.max(1)).max(1),
            dots: order(Op::Sddmm),
            sums: order(Op::Spmm),
            stream: streams_result(Op::Spmm, stats, machine, n.saturating_mul(target.value_bytes)),
        };
        let threads = target.threads.max(1);
        let work_items = threads * TASKS_PER_THREAD;
        let threads_per_row = threads_per_row(stats.rows, work_items);
        let most = stats.nnz.saturating_mul(n).div_ceil(LEAST_TASK).max(1);
        let tasks = if threads == 1 { 1 } else { work_items.min(most) };
        // As many as the stages have room for.
        let tasks = if op == Op::FusedMm { tasks.max(stats.nnz.div_ceil(stages.nonzeros)) } else { tasks };
        Self { op, n, tasks, threads_per_row, prefetch_distance, column_slab, stream, stages, reason }
    }

    /// The plan for an operand that is not prepared.
    pub(crate) fn unprepared(op: Op, n: usize, stats: &Stats, machine: &Machine, target: &Target) -> Result<Self> {
        check_columns(n)?;
        Ok(Self::new(op, n, stats, machine, target, Cow::Borrowed("not prepared")))
    }

    /// What of it is open.
    pub(super) fn choices(&self) -> DirectChoices {
        let (column_slab, prefetch_distance) = match self.op {
            Op::FusedMm => self.stages.sums,
            _ => (self.column_slab, self.prefetch_distance),
        };
        DirectChoices { column_slab, prefetch_distance }
    }

    /// The same with these choices; FusedMM's are both stages'.
    pub(super) fn with(mut self, choices: DirectChoices) -> Self {
        let order = (choices.column_slab.max(1), choices.prefetch_distance.min(MOST_DISTANCE));
        (self.column_slab, self.prefetch_distance) = order;
        (self.stages.dots, self.stages.sums) = (order, order);
        self
    }

    /// The operation.
    pub(super) fn op(&self) -> Op {
        self.op
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
        // Sums of rows lose by prefetching what is near already (4096 rows of 128 bytes: 28 % of peak with, 31 %
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

impl fmt::Display for DirectPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "direct: {} tasks, at most {} per row, ", self.tasks, self.threads_per_row)?;
        match (self.column_slab, self.prefetch_distance) {
            (usize::MAX, 0) => write!(f, "no prefetch")?,
            (columns, 0) => write!(f, "{columns} columns at a time")?,
            (_, distance) => write!(f, "prefetch {distance} ahead")?,
        }
        if self.stream {
            write!(f, ", results past the caches")?;
        }
        write!(f, " ({})", self.reason)
    }
}
