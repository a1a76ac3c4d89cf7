//! Plans of the direct strategy: how many tasks, in which order nonzeros are taken, how far ahead is prefetched.

use std::borrow::Cow;
use std::fmt;

use super::choices::DirectChoices;
use super::matrix::WIDEST_TILE;
use super::options::{Op, Target, check_columns};
use super::{Stats, TASKS_PER_THREAD, Task, alone, by_nonzeros, streams, tasks, threads_per_row};
use crate::error::Result;
use crate::formats::PatternRef;
use crate::machine::Machine;

/// Multiply-adds from which on there are more tasks, up to four times as many: for the last one, the other threads wait, a fifth of a
/// millisecond where rows come from memory (2^20 rows, N = 64, two threads of a Zen 5: SDDMM 30.3 ms with 32 tasks, 28.3 with 128).
const LARGE_TASK: usize = 1 << 22;

/// Density from which the direct path takes blocks of rows panel by panel: a block's rows then meet a row of B 4 times.
const DENSE: f64 = 1.0 / 32.0;

/// Nonzeros of a row in a panel of the direct path. Fewer are spent on loading and storing C, more outgrow the caches:
/// 19, 38, 77 reach 37, 39, 33 % of peak at 70 % zeros, 13, 26, 51 reach 28, 31, 31 % at 90 %.
const DIRECT_VISIT: f64 = 32.0;

/// Nonzeros ahead at which the direct path prefetches rows that come from L3. On graphs of 20 000 to 70 000 rows 8 and 16
/// are best by 3-15 % over 4 and 32.
const PREFETCH_DISTANCE: usize = 16;

/// The same for rows from memory. So far ahead they are prefetched in L2, which has room for more requests to memory than L1 (2^20 rows,
/// two threads of a Zen 4, SpMM, N = 64: in L1 16 ahead 50.1 ms; in L2 32, 64, 128 ahead 39.4, 38.9, 40.2, in bf16 26.7, 23.4, 24.5).
const FAR_DISTANCE: usize = 80;

/// The same for rows of at most [`SHORT_ROW`] bytes: of four lines, 80, 100, 120, 160 ahead take 45.4, 42.0, 43.3, 45.6 ms, of eight 85,
/// 88, 87, 90 (2^20 rows, SpMM, N = 128 in bf16 and f32, one thread of a Zen 5), of two 37.7 and 35.7 with 80 and 120.
const FAR_SHORT_DISTANCE: usize = 100;

/// The same in a narrow band, where one row in many is new, and comes from memory: 16 takes 1.11 to 1.5 times as long (bands of
/// 9 to 49 columns, 12 000 to 400 000 rows, SpMM and SDDMM, N = 128 and 256, one thread of a Zen 4), in L2 1.2 to 1.3.
const BAND_DISTANCE: usize = 64;

/// Nonzeros of a column from which on its row of B is as good as in L3 all the time. f32, N = 128, prefetched as from memory: FusedMM on
/// amazon_book with 26 takes 1.09 to 1.21 times as long on a Zen 5 (0.95 to 0.99 on a Zen 4), the gradients on pubmed with 4.5 0.93 to 0.95
/// (0.85 to 0.89).
const MANY_USES: usize = 16;

/// How many times as often as in a uniformly random pattern columns repeat where most reads of B are of rows that stay in L3, unless B is
/// [`MOST_SKEWED`] times as large: 15 to 30 in samples of R-MAT with 2^16 to 2^18 rows. The transpose of amazon_book has 6, and takes 0.70
/// of the time with prefetches in L2 (a Zen 4).
const SKEWED: f64 = 10.0;

/// The time of SpMM with prefetches in L2 by that with 16 ahead in L1, R-MAT, N = 128, one and two threads of a Zen 5: B as large as L3 1.03
/// and 1.20, twice 1.09 and 1.05, four times 0.97 and 0.99, eight times 0.93 and 0.99.
const MOST_SKEWED: usize = 3;

/// Bytes of a short row. A band of such needs no prefetch: the processor's own reordering reaches the rows to come.
const SHORT_ROW: usize = 256;

/// The farthest that rows are prefetched: farther ones are evicted before they are used.
const MOST_DISTANCE: usize = 256;

/// Bytes of edge values between the stages of FusedMM, for each thread, and at least for all of them. The more, the seldomer B and D drive
/// each other out of the caches: on ca-CondMat 32 KiB lose a quarter to SDDMM and SpMM one after the other, and on a graph of 2^20 rows
/// with 8 M nonzeros, N = 64, 4 MiB lose an eighth on a Zen 4, 8 MiB nothing; on a Zen 5, whose one thread is faster, 8 MiB a tenth, 32
/// MiB 2 %.
const STAGE_BYTES: usize = 8 << 20;
const LEAST_STAGE_BYTES: usize = 32 << 20;

/// How an operation runs straight from CSR.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectPlan {
    op: Op,
    n: usize,
    tasks: usize,
    threads_per_row: usize,
    pub(crate) prefetch_distance: usize,
    /// The same where operations on other gathered matrices come before and after.
    distance_among_others: usize,
    /// Columns that a block of rows passes over together; the largest number for all.
    pub(crate) column_slab: usize,
    pub(crate) stream: bool,
    /// How FusedMM runs where D is not B.
    pub(crate) stages: Stages,
    pub(super) reason: Cow<'static, str>,
}

/// FusedMM where D is not B: dots, edge function and sums of some rows after one another, as SDDMM and SpMM would run. Nonzero by
/// nonzero, two gathered matrices compete for the caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stages {
    /// Nonzeros whose edge values are there at a time.
    pub nonzeros: usize,
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
        let row_bytes = n.saturating_mul(target.value_bytes);
        let tile_bytes = row_bytes.min(WIDEST_TILE * target.vector_bytes);
        let order = |operands: usize| direct_order(stats, machine, target.threads, tile_bytes, row_bytes, operands);
        // Also FusedMM's where D is not B: B is gathered for all tasks of a stage, then D. Prefetched as two that drive each other out, pubmed
        // and ca-CondMat took 1.02 to 1.17 times as long (N = 128, one and two threads of a Zen 3), on a Zen 5 0.93 to 1.04.
        let (column_slab, prefetch_distance) = order(1);
        let distance_among_others = order(2).1;
        let stream = streams_result(op, stats, machine, row_bytes);
        let threads = target.threads.max(1);
        let stage_bytes = LEAST_STAGE_BYTES.max(threads.saturating_mul(STAGE_BYTES));
        let stages = Stages {
            nonzeros: stage_bytes / target.value_bytes.max(1),
            stream: streams_result(Op::Spmm, stats, machine, row_bytes),
        };
        let threads_per_row = threads_per_row(stats.rows, TASKS_PER_THREAD * threads);
        let work = op.work(stats.nnz, n);
        // Tasks of FusedMM are run twice, for dots and for sums: each time half of the work, of which two parts are worth it.
        let alone = alone(target.vector_bytes);
        let at_once = if op == Op::FusedMm { (work / 2).max(alone.min(work)) } else { work };
        let tasks = match tasks(at_once, threads, alone) {
            1 => 1,
            several => several.max((work / LARGE_TASK).min(4 * several)),
        };
        // As many as the stages have room for.
        let tasks = if op == Op::FusedMm { tasks.max(stats.nnz.div_ceil(stages.nonzeros)) } else { tasks };
        Self {
            op,
            n,
            tasks,
            threads_per_row,
            prefetch_distance,
            distance_among_others,
            column_slab,
            stream,
            stages,
            reason,
        }
    }

    /// The plan for an operand that is not prepared.
    pub(crate) fn unprepared(op: Op, n: usize, stats: &Stats, machine: &Machine, target: &Target) -> Result<Self> {
        check_columns(n)?;
        Ok(Self::new(op, n, stats, machine, target, Cow::Borrowed("not prepared")))
    }

    /// What of it is open.
    pub(super) fn choices(&self) -> DirectChoices {
        DirectChoices { column_slab: self.column_slab, prefetch_distance: self.prefetch_distance }
    }

    /// The same with these choices.
    pub(super) fn with(mut self, choices: DirectChoices) -> Self {
        self.prefetch_distance = choices.prefetch_distance.min(MOST_DISTANCE);
        self.column_slab = choices.column_slab.max(1);
        self
    }

    /// Prefetches rows as those of two operands, each of which drives the other out of the caches, also where they are gathered one after
    /// the other.
    pub(crate) fn among_others(&mut self) {
        self.prefetch_distance = self.prefetch_distance.max(self.distance_among_others);
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

/// The direct path's columns of a panel, and how many nonzeros ahead it prefetches, where a row takes `row_bytes` and a pass over
/// the nonzeros gathers `tile_bytes` of it, from so many operands in turns.
fn direct_order(
    stats: &Stats,
    machine: &Machine,
    threads: usize,
    tile_bytes: usize,
    row_bytes: usize,
    operands: usize,
) -> (usize, usize) {
    let near = machine.l2_bytes() / 2;
    // What is near already loses by prefetching: SpMM, SDDMM and FusedMM 20 to 36 % on matrices of 2500 to 4096 columns at N = 32,
    // nothing on 4096 x 4096 with 90 % zeros (Zen 4).
    if stats.cols.saturating_mul(tile_bytes) <= near {
        return (usize::MAX, 0);
    }
    // So does a band whose rows stay in L1: 20 to 36 % at N = 32 and 64; at N = 128 until the operands outgrow a part of L3 (a
    // band of 49 columns with 8 000 rows 20 % for none, with 12 000 rows 23 % for 64).
    let bytes = stats.rows.saturating_add(stats.cols).saturating_mul(row_bytes);
    let far = tile_bytes > SHORT_ROW && bytes > machine.l3_bytes() / 4;
    if stats.in_l1(machine, tile_bytes) {
        return (usize::MAX, if far { BAND_DISTANCE } else { 0 });
    }
    // And a wider one whose rows stay in L2. Bands and blocks of 300 to 600 columns, N = 128, one thread of an Emerald Rapids, none by 16 ahead: 8000
    // rows SpMM 1.02 to 1.08, SDDMM 1.11 to 1.20, FusedMM 1.05 to 1.13 of the speed, 150 000 rows 0.94, 0.86, 0.91, 80 ahead 0.81, 0.83, 0.89.
    // bcsstk16, none by 16 ahead, SpMM 1.42, SDDMM 1.33.
    if stats.in_l2(machine, tile_bytes) {
        return (usize::MAX, if far { PREFETCH_DISTANCE } else { 0 });
    }
    if stats.density() < DENSE {
        // A half of L3, since what else is read and written is there, too: 18 MB of 32 take 0.98 of the time, 27 MB 0.73, 13 MB 1.03.
        let l3 = machine.l3_bytes();
        let skewed = stats.column_skew > SKEWED;
        let room = if skewed { l3.saturating_mul(MOST_SKEWED) } else { l3 / 2 };
        let outgrow = |operands| stats.cols.saturating_mul(row_bytes.saturating_mul(operands)) > room;
        // Rows that only another operand drove out come from memory once, and from L3 for all their nonzeros but one.
        let few_uses = stats.nnz < MANY_USES.saturating_mul(stats.cols);
        // A far L3 gives several threads no more than memory does. N = 128, f32, two threads of a Granite Rapids, by 16 ahead in L1: SpMM,
        // SDDMM and FusedMM 0.79, 0.84, 0.75 to 0.89 (ca-CondMat), 0.91, 0.98, 0.75 to 0.91 (pubmed), 0.90, 0.86, 0.86 to 0.93
        // (p2p-Gnutella31); amazon_book with 26 nonzeros of a column 0.91 to 1.03. N = 32 1.09 to 1.12; one thread 0.97 to 1.18. R-MAT of 2^16
        // rows 1.30, 1.28, 1.22 (an Emerald Rapids).
        let as_memory = machine.l3_is_far()
            && threads > 1
            && !skewed
            && tile_bytes > SHORT_ROW
            && stats.cols.saturating_mul(row_bytes) > 2 * machine.l2_bytes();
        let distance = match outgrow(1) || few_uses && (outgrow(operands) || as_memory) {
            true if tile_bytes <= SHORT_ROW => FAR_SHORT_DISTANCE,
            true => FAR_DISTANCE,
            false => PREFETCH_DISTANCE,
        };
        return (usize::MAX, distance);
    }
    let width = ((DIRECT_VISIT / stats.density()) as usize).min(near / tile_bytes).max(1);
    (width, if width < stats.cols { 0 } else { PREFETCH_DISTANCE })
}

/// Whether `op` on dense operands of rows of `row_bytes` writes its result past the caches.
fn streams_result(op: Op, stats: &Stats, machine: &Machine, row_bytes: usize) -> bool {
    let rows = match op {
        // B and C.
        Op::Spmm | Op::SpmmTransposed => stats.rows.saturating_add(stats.cols),
        // B, D, E, and C, which passes through the caches beside them (pubmed, D = B, 10 MB each, L3 of 32 MB: 0.91 of the time on a
        // Zen 5).
        Op::FusedMm => stats.rows.saturating_add(stats.cols).saturating_mul(2),
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
        match (self.column_slab, self.prefetch_distance()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;

    /// Four nonzeros in each of `rows` rows, `apart` columns from each other, along the diagonal.
    fn stats(rows: usize, apart: usize) -> Stats {
        let first = |i: usize| i % (rows - 3 * apart);
        let columns = (0..rows).flat_map(|i| (0..4).map(move |k| (first(i) + k * apart) as u32)).collect();
        Stats::of(&*Pattern::new(rows, rows, (0..=rows).map(|i| 4 * i).collect(), columns).unwrap())
    }

    #[test]
    fn rows_are_prefetched_from_where_they_are() {
        let machine = Machine::describe("l3:1(size=8MB) l2:1(size=1MB) l1d:1(size=32KB) core:1").unwrap();
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        let distance = |rows, apart, n| {
            DirectPlan::new(Op::Spmm, n, &stats(rows, apart), &machine, &target, Cow::Borrowed("")).prefetch_distance()
        };
        // B in half of L2, whatever the pattern.
        assert_eq!((distance(4096, 2, 32), distance(4096, 1000, 32)), (0, 0));
        // A band: short rows, long rows, long rows from memory; its columns in L1 and in L2.
        assert_eq!((distance(20000, 2, 64), distance(2000, 2, 128), distance(20000, 2, 128)), (0, 0, BAND_DISTANCE));
        assert_eq!((distance(20000, 42, 128), distance(20000, 43, 128)), (BAND_DISTANCE, PREFETCH_DISTANCE));
        // In L2 and beyond, and what else is read in L3.
        assert_eq!((distance(20000, 340, 128), distance(20000, 341, 128)), (PREFETCH_DISTANCE, FAR_DISTANCE));
        assert_eq!((distance(2000, 43, 128), distance(2000, 341, 128)), (0, PREFETCH_DISTANCE));
        assert_eq!(distance(20000, 5000, 32), PREFETCH_DISTANCE);
        // From L3 and from memory.
        assert_eq!((distance(32768, 5000, 32), distance(32769, 5000, 32)), (PREFETCH_DISTANCE, FAR_SHORT_DISTANCE));
        // Two that drive each other out, by how many nonzeros a row of them has.
        let distances = |uses: usize| {
            let columns =
                (0..20000).flat_map(|i: u32| (0..uses as u32).map(move |k| i * 7919 % 4999 + 1000 * k)).collect();
            let pattern = Pattern::new(20000, 20000, (0..=20000).map(|i| uses * i).collect(), columns).unwrap();
            let stats = Stats::of(&*pattern);
            let mut plan = DirectPlan::new(Op::Spmm, 32, &stats, &machine, &target, Cow::Borrowed(""));
            let alone = plan.prefetch_distance();
            plan.among_others();
            [alone, plan.prefetch_distance()]
        };
        assert_eq!(distances(MANY_USES - 1), [PREFETCH_DISTANCE, FAR_SHORT_DISTANCE]);
        assert_eq!(distances(MANY_USES), [PREFETCH_DISTANCE; 2]);
    }

    #[test]
    fn a_far_l3_is_as_memory_to_several_threads() {
        let distance = |l3: usize, threads: usize, rows: usize, n: usize, skew: f64| {
            let machine = format!("l3:1(size={l3}MB) l2:1(size=2MB) l1d:1(size=48KB) core:2");
            let machine = Machine::describe(&machine).unwrap();
            let target = Target { threads, vector_bytes: 64, registers: 32, value_bytes: 4 };
            let mut stats = stats(rows, 2000);
            stats.column_skew = skew;
            DirectPlan::new(Op::Spmm, n, &stats, &machine, &target, Cow::Borrowed("")).prefetch_distance()
        };
        assert_eq!(distance(480, 2, 20000, 128, SKEWED), FAR_DISTANCE);
        assert!(stats(20000, 2000).column_skew < 2.0);
        // One thread; a near L3; short rows; B in twice L2; columns that repeat.
        let others = [(480, 1, 20000, 128), (96, 2, 20000, 128), (480, 2, 20000, 64), (480, 2, 8192, 128)];
        assert_eq!(others.map(|(l3, threads, rows, n)| distance(l3, threads, rows, n, 1.0)), [PREFETCH_DISTANCE; 4]);
        assert_eq!(distance(480, 2, 20000, 128, SKEWED + 1.0), PREFETCH_DISTANCE);
    }

    #[test]
    fn rows_that_many_nonzeros_name_stay_near() {
        let machine = Machine::describe("l3:1(size=8MB) l2:1(size=1MB) l1d:1(size=32KB) core:1").unwrap();
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        // Half of the nonzeros in the first columns, the others anywhere.
        let distance = |cols: usize| {
            let row = |i: usize| [i % 8, 8 + i * 7919 % (cols - 8)].map(|j| j as u32);
            let pattern =
                Pattern::new(20000, cols, (0..=20000).map(|i| 2 * i).collect(), (0..20000).flat_map(row).collect());
            let stats = Stats::of(&*pattern.unwrap());
            assert!(stats.column_skew > SKEWED, "{}", stats.column_skew);
            DirectPlan::new(Op::Spmm, 32, &stats, &machine, &target, Cow::Borrowed("")).prefetch_distance()
        };
        // 128 bytes of each row in three times 8 MiB.
        assert_eq!((distance(196_608), distance(196_609)), (PREFETCH_DISTANCE, FAR_SHORT_DISTANCE));
    }

    #[test]
    fn spans_of_neighbouring_rows() {
        assert_eq!((stats(100, 1).span, stats(100, 10).span), (5, 32));
        let of = |row_ptr, columns| Stats::of(&*Pattern::new(4, 9, row_ptr, columns).unwrap()).span;
        // Empty rows, one nonzero, a row between empty ones.
        assert_eq!(of(vec![0; 5], vec![]), 9);
        assert_eq!(of(vec![0, 0, 0, 0, 1], vec![7]), 1);
        assert_eq!(of(vec![0, 0, 2, 2, 2], vec![3, 8]), 6);
    }
}
