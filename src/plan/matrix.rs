//! Plans of the matrix operations: which strategy, and which panels.

mod pays;

use std::borrow::Cow;
use std::fmt;

use sparsimd_kernels::PAIRED_LANES;

use super::choices::{Choices, PanelChoices};
use super::direct::DirectPlan;
use super::options::{Op, PlanOptions, Strategy, Target, check_columns};
use super::slices::SlicesPlan;
use super::{Stats, alone};
use crate::error::Result;
use crate::formats::MAX_WIDTH;
use crate::machine::Machine;

/// Share of L1 that the packed panel takes: the rest is for the row of C, the offsets and the values that stream by.
/// Measured: 40 of 48 KiB is best; the whole loses 8 %, two thirds 2 %.
const L1_SHARE: (usize, usize) = (5, 6);

/// Bytes of a row of C that are computed in one pass: more leave too few rows to a block for the copies of panels.
/// Values are read from afar once per pass: two tiles in one, f64, N = 128, 82 GFLOP/s; each in its own, 74.
const MOST_ROW_BYTES: usize = 1024;

/// Columns of the narrowest panel.
const NARROWEST: usize = 16;

/// Least and most rows of a row block.
const LEAST_ROWS: usize = 64;
const MOST_ROWS: usize = 4096;

/// Vectors per nonzero from which pairing rows pays: finding partners costs as much whatever N is, more than all the
/// rest of preparing. 8 vectors: 74 instead of 66 % of peak; 2 vectors: 57 % where rows by themselves reach 64.
const PAIRS_PAY: usize = 8;

/// Runs after which pairs of rows of fewer vectors have paid for finding partners, where pairs are faster: 4096 x 4096, f32, one thread of an
/// Emerald Rapids, N = 32, 61 ms more to prepare and 0.25 ms less to run with 70 % zeros, 29 and 0.04 with 90 %.
const NARROW_PAIRS_PAY_AFTER: usize = 500;

/// Columns from which pairs of narrow rows are faster where L3 is far; in SpMM of f32 all are. Pairs by rows by themselves, GFLOP/s, 70 % zeros:
/// SpMM f32 N = 16 72 by 64, N = 32 108 by 100, N = 64 110 by 103, f64 N = 16 44 by 46, N = 32 45 by 41; FusedMM f32 N = 16 52 by 53 (AVX2
/// 46 by 48), N = 32 82 by 80.
const NARROW_PAIRS_FROM: usize = 32;

/// Nonzeros per row segment below which narrower tiles, whose panels are wider, are faster: a visit to a row of C pays for its load and
/// store. Uniformly random, N = 128, f32, ms with 8 x 53 and 4 x 106 vectors x columns (32 KiB of L1, Zen 4): SpMM 50 % zeros (26.5
/// nonzeros) 20.7, 20.7; 70 % (15.9) 13.9, 13.4.
const GOOD_SEGMENT: f64 = 20.0;

/// The same of dots, of which each tile ends in a tree: SDDMM 70 % 17.0, 16.9, bcsstk16 0.88, 0.98; FusedMM 70 % 27.4, 28.7, 90 % (5.3)
/// 12.5, 11.7.
const GOOD_FUSED: f64 = 12.0;

/// The same of SDDMM alone, whose dots go back to memory between tiles: 90 % (8.0 nonzeros), 8 x 80 by 4 x 160 1.00 (4096 x 4096) to 1.15
/// (24576 x 8192) of the speed, two threads of a Granite Rapids.
const GOOD_DOTS: f64 = 7.5;

/// From how many times as often as in a uniformly random pattern columns repeat where SDDMM's tiles stay as wide as they are, as its panels
/// become wider: most rows of B that are read are in L1 even so. N = 128, one thread of an Emerald Rapids, 8 x 192 by 4 x 256 vectors x columns:
/// facebook_combined (2.8 times) 58 by 51 GFLOP/s, R-MAT of 2^12 and 2^13 rows (7 times) 46 by 41, 51 by 45; uniformly random 52 by 59.
const REPEATING: f64 = 2.0;

/// Vectors of the narrowest tile that is worth wider panels: two lose everywhere (as above, SpMM, 2 x 213 and 4 x 159: 90 % 5.63,
/// 5.35; 95 % 3.32, 3.19).
const NARROWEST_TILE: usize = 4;

/// Nonzeros per row segment below which panels exceed their share of L1, up to twice its size: part of them comes from L2 then, and rows
/// of C are visited less often. With 4 x 106, 4 x 159, 4 x 256 (as above): SpMM 80 % (21 nonzeros at 106) 9.46,
/// 9.53, 10.65; 90 % (10.6) 5.50, 5.35, 5.59; 95 % 3.54, 3.19, 3.22; 98 % 2.21, 1.90, 1.63; SDDMM 90 % 6.44, 6.08 and 6.38 at 213.
const SHORT_SEGMENT: f64 = 15.0;

/// The same of SDDMM: 90 % zeros, tiles of 8 vectors, 80, 120 and 180 columns, 8, 12 and 18 nonzeros: N = 128 67.9, 70.0, 64.7 GFLOP/s, N = 256
/// 65.8, 62.6, 52.7, f64 30.3, 28.0, 24.5 (one thread of an Emerald Rapids, 48 KiB of L1, whose L2 gives two registers in three clocks; 180
/// columns in blocks of twice the rows).
const SHORT_DOTS: f64 = 11.0;

/// Nonzeros per row segment from which on SDDMM of rows of at most three vectors takes blocks whose dots fit a third of L2, so that lines
/// are full before they leave it. A dot is a few multiply-adds there, so that its lines' way to memory weighs most; so many nonzeros pay
/// for the copies of B and for the changes of length. Ice Lake (1280 KiB of L2; L3 and memory give one thread 21 and 10 GB/s), 4096 x
/// 4096, N = 32, ms in blocks of three times L2, 1024, 512, 256 and 128 rows: 70 % (77 nonzeros) 11.0, 10.0, 10.5, 9.6, 9.2; 90 % (26)
/// 2.40, 2.43, 2.54, 2.46, 2.28; N = 128, 70 % (24) 18.1, 18.4, 19.2, 18.5, 19.3.
const LONG_SEGMENT: f64 = 32.0;

/// How one operation on one pattern will be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// Straight from CSR.
    Direct(DirectPlan),
    /// From panels.
    Panel(PanelPlan),
    /// From slices of rows.
    Slices(SlicesPlan),
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
    /// Row blocks come in multiples of this: the threads, or as many as there is work for.
    pub(crate) blocks_multiple: usize,
    reason: Cow<'static, str>,
}

impl Plan {
    /// The plan for the operation of `options` on a pattern with these statistics.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) when the dense operands have no columns.
    pub fn choose(stats: &Stats, machine: &Machine, options: &PlanOptions, target: &Target) -> Result<Self> {
        let &PlanOptions { op, n, strategy, .. } = options;
        check_columns(n)?;
        let direct = |reason| Self::Direct(DirectPlan::new(op, n, stats, machine, target, reason));
        if strategy == Strategy::Direct {
            return Ok(direct(AS_ASKED));
        }
        if let (Strategy::Auto | Strategy::Slices, Some(slices)) =
            (strategy, SlicesPlan::new(stats, options, target, AS_ASKED))
        {
            return Ok(match SlicesPlan::loses(stats, options, target) {
                Some(reason) if strategy == Strategy::Auto => direct(reason),
                _ if strategy == Strategy::Auto => Self::Slices(SlicesPlan { reason: "one column".into(), ..slices }),
                _ => Self::Slices(slices),
            });
        }
        let plan = PanelPlan::new(stats, machine, options, target);
        Ok(match strategy {
            Strategy::Slices => direct("slices are for one column of SpMM".into()),
            Strategy::Panel => Self::Panel(PanelPlan { reason: AS_ASKED, ..plan }),
            _ => match plan.loses(stats, machine, options, target) {
                Some(reason) => direct(reason),
                None => Self::Panel(plan),
            },
        })
    }

    /// What of it is open.
    pub(crate) fn choices(&self) -> Choices {
        match self {
            Self::Direct(plan) => Choices::Direct(plan.choices()),
            Self::Panel(plan) => Choices::Panel(plan.choices()),
            Self::Slices(_) => Choices::Slices,
        }
    }

    /// The plan for the operation of `options`, with `choices` instead of those that an estimate makes, because of `reason`.
    pub(crate) fn with(
        stats: &Stats,
        machine: &Machine,
        options: &PlanOptions,
        target: &Target,
        choices: Choices,
        reason: String,
    ) -> Self {
        let reason = Cow::from(reason);
        let direct = || DirectPlan::new(options.op, options.n, stats, machine, target, reason.clone());
        match choices {
            Choices::Slices => match SlicesPlan::new(stats, options, target, reason.clone()) {
                Some(plan) => Self::Slices(plan),
                None => Self::Direct(direct()),
            },
            Choices::Direct(choices) => Self::Direct(direct().with(choices)),
            Choices::Panel(choices) => Self::Panel(PanelPlan::of(stats, options, target, choices, reason)),
        }
    }

    /// The same because of `reason`.
    pub(crate) fn because(mut self, reason: String) -> Self {
        match &mut self {
            Self::Direct(plan) => plan.reason = reason.into(),
            Self::Panel(plan) => plan.reason = reason.into(),
            Self::Slices(plan) => plan.reason = reason.into(),
        }
        self
    }

    /// The operation.
    pub fn op(&self) -> Op {
        match self {
            Self::Direct(plan) => plan.op(),
            Self::Panel(plan) => plan.op,
            Self::Slices(plan) => plan.op,
        }
    }

    /// Columns of the dense operands.
    pub fn n(&self) -> usize {
        match self {
            Self::Direct(plan) => plan.n(),
            Self::Panel(plan) => plan.n,
            Self::Slices(_) => 1,
        }
    }

    /// [`Strategy::Direct`], [`Strategy::Panel`] or [`Strategy::Slices`].
    pub fn strategy(&self) -> Strategy {
        match self {
            Self::Direct(_) => Strategy::Direct,
            Self::Panel(_) => Strategy::Panel,
            Self::Slices(_) => Strategy::Slices,
        }
    }

    /// What will be done and why, in one line.
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

/// The reason of a strategy that the caller chose.
const AS_ASKED: Cow<'static, str> = Cow::Borrowed("as asked");

/// Columns of a panel whose tiles of so many vectors take their share of L1.
fn width_of(vectors: usize, machine: &Machine, target: &Target) -> usize {
    let l1 = machine.l1d_bytes() * L1_SHARE.0 / L1_SHARE.1;
    (l1 / (vectors * target.lanes() * target.value_bytes)).clamp(NARROWEST, MAX_WIDTH)
}

/// Bytes of the part of a row of C that a row block is sized for: a tile that is narrower than the rows uses some of the cache's
/// sets only, so that whole rows count.
fn row_bytes(all: usize, target: &Target) -> usize {
    (all * target.vector_bytes).clamp(64, MOST_ROW_BYTES)
}

/// Whether registers hold two rows' accumulators, their two weights and the row of B, and the kernels of `op` take pairs.
fn pairs_fit(op: Op, vectors: usize, target: &Target) -> bool {
    // Dots of pairs are put in order by as many lanes as they were written for.
    2 * vectors + 3 <= target.registers && (op != Op::Sddmm || target.lanes() == PAIRED_LANES && vectors >= PAIRS_PAY)
}

/// Whether pairs are expected to pay, with tiles of `vectors` and rows of `all`.
fn pairs_pay(options: &PlanOptions, vectors: usize, all: usize, machine: &Machine, target: &Target) -> bool {
    let sums_of_f32 = options.op != Op::FusedMm && target.value_bytes <= 4;
    let narrow = machine.l3_is_far()
        && options.reuse >= NARROW_PAIRS_PAY_AFTER
        && (sums_of_f32 || options.n >= NARROW_PAIRS_FROM);
    pairs_fit(options.op, vectors, target)
        && match options.op {
            Op::Spmm | Op::SpmmTransposed => all >= PAIRS_PAY || narrow,
            Op::FusedMm => 2 * all >= PAIRS_PAY || narrow,
            // Putting dots in order is paid by a second tile (70 % zeros, f64: N = 64 32.3 instead of 33.6 GFLOP/s, N = 128 35.6
            // instead of 33.7, N = 256 36.1 instead of 31.0, Zen 4). Not where L3 is far, where blocks have fewer rows (N = 128, 384 rows 32.0
            // instead of 36.5; 90 % 26.1 instead of 27.6; N = 256 37.0 instead of 41.4, Emerald Rapids).
            Op::Sddmm => all >= 2 * PAIRS_PAY && !machine.l3_is_far(),
        }
}

/// Vectors of the widest tile.
pub(super) const WIDEST_TILE: usize = 8;

impl PanelPlan {
    /// The panels for the operation of `options`, whether they pay or not.
    fn new(stats: &Stats, machine: &Machine, options: &PlanOptions, target: &Target) -> Self {
        let &PlanOptions { op, n, .. } = options;
        let value_bytes = target.value_bytes;
        let threads = target.threads.max(1);
        let all = n.div_ceil(target.lanes());
        let widest = all.min(WIDEST_TILE);
        let (good, short) = match op {
            Op::Sddmm => (GOOD_DOTS, SHORT_DOTS),
            Op::FusedMm => (GOOD_FUSED, SHORT_SEGMENT),
            Op::Spmm | Op::SpmmTransposed => (GOOD_SEGMENT, SHORT_SEGMENT),
        };
        let (mut vectors, mut width) = (widest, width_of(widest, machine, target));
        let narrower = op != Op::Sddmm || stats.column_skew <= REPEATING;
        while narrower && vectors > NARROWEST_TILE && stats.per_segment(width) < good {
            vectors = vectors.div_ceil(2);
            width = width_of(vectors, machine, target);
        }
        let most = (2 * machine.l1d_bytes() / (vectors * target.vector_bytes)).min(MAX_WIDTH);
        while width < most && stats.per_segment(width) < short {
            width = (width * 3 / 2).min(most);
        }
        let pairs = pairs_pay(options, vectors, all, machine, target);

        let row_bytes = row_bytes(all, target);
        let block_rows = if op == Op::Sddmm {
            // Dots go to their places in CSR order, a few at a time: a block's should stay near until their lines are full. But
            // the more rows, the more seldom the length of row segments changes, which costs a branch miss or two, and the fewer
            // copies of B (4096 x 4096, N = 128, ms in 512, 1024, 1536, 2048, 4096 rows: 70 % 17.0, 17.6, 18.3, 21.5, 24.5; 90 % 6.49,
            // 6.20, 6.11, 6.27, 6.87; 95 % 3.91, 3.60, 3.49, 3.54, 3.49; Facebook's ego networks 0.54, 0.47, 0.44, 0.42, 0.39; 1 MiB
            // of L2, Zen 4). Dots in f64 take twice the room (70 %, N = 128 in 256, 384, 512 rows 33.7, 34.1, 33.4 GFLOP/s).
            let row_dots = stats.nnz * value_bytes / stats.rows.max(1);
            // Where L3 is far, half as much: 70 % in 1158, 772, 512 rows 85.8, 86.5, 87.3 GFLOP/s; 80 % in 1660, 1107, 768 rows 79.5, 82.1,
            // 83.7 (one thread of an Emerald Rapids).
            let l2 = machine.l2_bytes();
            let several = if machine.l3_is_far() { l2 * 3 / 2 } else { 3 * l2 };
            let (room, least) = match value_bytes > 4 {
                _ if all < 4 && stats.per_segment(width) >= LONG_SEGMENT => (l2 / 3, LEAST_ROWS),
                true => (several, 384),
                false => (several, 512),
            };
            (room / (row_bytes + row_dots)).clamp(least, MOST_ROWS)
        } else if machine.l3_is_far() {
            // The rows of C, and of E in FusedMM, that a panel visits take two thirds of L2. 4096 x 4096, one thread of a Granite Rapids
            // (L2 of 2 MiB, L3 of 480), GFLOP/s in blocks of 4096 rows and of so many: SpMM 70 % 145, 154; 90 % 114, 125; f64 57, 73;
            // N = 256 121, 149; FusedMM 70 % 118, 137; 90 % 89, 106; f64 53, 64; N = 256 108, 128. With 1024 rows SpMM has 150 and 118.
            // The dots of FusedMM's rows are among them: N = 32, 12288 x 4096, 4096 and 3000 rows 74.6, 79.2; 90 % 64.0, 69.1 (Emerald Rapids).
            let bytes = match op {
                Op::FusedMm => 2.0 * row_bytes as f64 + stats.per_segment(width) * value_bytes as f64,
                _ => row_bytes as f64,
            };
            let fit = (machine.l2_bytes() / 3 * 2) as f64 / bytes;
            ((fit / stats.visited_rows(width)) as usize).clamp(256, MOST_ROWS)
        } else {
            // Rows of C are read and written whole and in order: they come from L3 as well, and more rows mean better
            // pairs, longer runs of one length and fewer copies of B (4096 x 4096, N = 128, one thread, blocks of 1024
            // and 4096 rows: 70 % f32 71 and 74 % of peak, f64 64 and 72 %; 90 % f32 54 and 57 %; FusedMM 63 and 68 %;
            // 16384 rows lose again where C exceeds the caches).
            ((machine.l3_share(threads) / 4).max(machine.l2_bytes() / 2) / row_bytes).clamp(256, MOST_ROWS)
        };
        let reason = format!("{:.1} nonzeros of a row in a panel", stats.per_segment(width)).into();
        Self::of(stats, options, target, PanelChoices { tile_vectors: vectors, width, block_rows, pairs }, reason)
    }

    /// The panels that `choices` stand for, each number within what kernels and formats take.
    fn of(
        stats: &Stats,
        options: &PlanOptions,
        target: &Target,
        choices: PanelChoices,
        reason: Cow<'static, str>,
    ) -> Self {
        let &PlanOptions { op, n, .. } = options;
        let all = n.div_ceil(target.lanes());
        let tile_vectors = choices.tile_vectors.clamp(1, all.min(WIDEST_TILE));
        let pass_vectors = (row_bytes(all, target) / target.vector_bytes / tile_vectors).max(1) * tile_vectors;
        Self {
            op,
            n,
            width: choices.width.clamp(NARROWEST, MAX_WIDTH),
            block_rows: choices.block_rows.clamp(LEAST_ROWS, MOST_ROWS),
            tile_vectors,
            pass_vectors,
            pairs: choices.pairs && pairs_fit(op, tile_vectors, target),
            // Every row block copies the panels of B. With one block up to 2^20 multiply-adds SpMM and FusedMM of 400 x 400 and 500 x 500, 90 %
            // zeros, N = 32, took 1.2 to 1.8 times as long as with two (two threads of a Zen 3).
            blocks_multiple: (op.work(stats.nnz, n) / alone(target.vector_bytes)).clamp(1, target.threads.max(1)),
            reason,
        }
    }

    /// What of it is open.
    fn choices(&self) -> PanelChoices {
        let &Self { tile_vectors, width, block_rows, pairs, .. } = self;
        PanelChoices { tile_vectors, width, block_rows, pairs }
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
            Self::Direct(plan) => plan.fmt(f),
            Self::Slices(plan) => plan.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;

    #[test]
    fn rows_that_panels_visit_fit_l2_where_l3_is_far() {
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        let rows = |l3: usize, op: Op, n: usize, pattern: &Pattern| {
            let machine = format!("l3:1(size={l3}MB) l2:1(size=2MB) l1d:1(size=48KB) core:1");
            let options = PlanOptions::new(op, n).strategy(Strategy::Panel);
            let plan =
                Plan::choose(&Stats::of(pattern), &Machine::describe(&machine).unwrap(), &options, &target).unwrap();
            let Plan::Panel(plan) = plan else { panic!("{}", plan.explain()) };
            plan.block_rows()
        };
        // Every fourth of 2048 columns in all rows, or of 40 near the diagonal.
        let pattern = |first: fn(usize) -> usize, columns: usize| {
            let row = |i| (first(i)..first(i) + columns).step_by(4).map(|j| j as u32);
            let row_ptr = (0..=2048).map(|i| i * columns / 4).collect();
            Pattern::new(2048, 2048, row_ptr, (0..2048).flat_map(row).collect()).unwrap()
        };
        let (all, band) = (pattern(|_| 0, 2048), pattern(|i| i.min(2008), 40));
        // A row of a panel of 80 columns has 20 dots.
        for (op, n, bytes) in [(Op::Spmm, 128, 512), (Op::FusedMm, 128, 1024 + 4 * 20), (Op::Spmm, 512, 1024)] {
            assert_eq!(rows(480, op, n, &all), (2 << 20) / 3 * 2 / bytes);
            assert_eq!((rows(480, op, n, &band), rows(32, op, n, &all)), (4096, 4096));
        }
        // Dots and rows of C.
        assert_eq!(
            [480, 32].map(|l3| rows(l3, Op::Sddmm, 128, &all)),
            [3, 6].map(|room| (room << 20) / (4 * 512 + 512))
        );
    }

    #[test]
    fn pairs_of_narrow_rows_are_for_many_runs_where_l3_is_far() {
        // Every second of 1024 columns.
        let columns = (0..256).flat_map(|_| (0..1024).step_by(2)).collect();
        let pattern = Pattern::new(256, 1024, (0..=256).map(|i| i * 512).collect(), columns).unwrap();
        let pairs = |l3: usize, op: Op, n: usize, reuse: usize, value_bytes: usize| {
            let machine =
                Machine::describe(&format!("l3:1(size={l3}MB) l2:1(size=2MB) l1d:1(size=48KB) core:1")).unwrap();
            let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes };
            let options = PlanOptions::new(op, n).strategy(Strategy::Panel).reuse(reuse);
            let plan = Plan::choose(&Stats::of(&*pattern), &machine, &options, &target).unwrap();
            let Plan::Panel(plan) = plan else { panic!("{}", plan.explain()) };
            plan.pairs()
        };
        for op in [Op::Spmm, Op::SpmmTransposed, Op::FusedMm] {
            assert_eq!(
                [(300, 1000), (300, 100), (32, 1000)].map(|(l3, runs)| pairs(l3, op, 32, runs, 4)),
                [true, false, false]
            );
            assert_eq!([16, 32].map(|n| pairs(300, op, n, 1000, 8)), [false, true]);
            assert_eq!(pairs(300, op, 16, 1000, 4), op != Op::FusedMm);
            assert!(pairs(32, op, 128, 100, 4) && pairs(300, op, 128, 100, 4));
        }
        assert!(!pairs(300, Op::Sddmm, 32, 1000, 4));
    }

    #[test]
    fn tiles_of_dots_stay_wide_where_columns_repeat() {
        let machine = Machine::describe("l3:1(size=32MB) l2:1(size=2MB) l1d:1(size=48KB) core:1").unwrap();
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        // Every 32nd of 4064 columns, the same in all rows or others in each.
        let tile = |shift: usize| {
            let columns = (0..512).flat_map(|i| (0..127).map(move |k| (i * shift % 32 + 32 * k) as u32)).collect();
            let pattern = Pattern::new(512, 4064, (0..=512).map(|i| i * 127).collect(), columns).unwrap();
            let options = PlanOptions::new(Op::Sddmm, 128).strategy(Strategy::Panel);
            match Plan::choose(&Stats::of(&*pattern), &machine, &options, &target).unwrap() {
                Plan::Panel(plan) => [plan.tile_vectors(), plan.width()],
                plan => panic!("{}", plan.explain()),
            }
        };
        assert_eq!([0, 1].map(tile), [[8, 192], [4, 256]]);
    }

    #[test]
    fn dots_of_long_segments_fit_l2() {
        let machine = Machine::describe("l3:1(size=48MB) l2:1(size=1MB) l1d:1(size=48KB) core:1").unwrap();
        let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
        // Every third or every ninth of 2048 columns: 85 and 28 nonzeros of a row in 256 of them.
        let rows = |n: usize, apart: usize| {
            let per_row = 2048_usize.div_ceil(apart);
            let columns = (0..1024).flat_map(|_| (0..2048).step_by(apart)).map(|j: usize| j as u32).collect();
            let pattern = Pattern::new(1024, 2048, (0..=1024).map(|i| i * per_row).collect(), columns).unwrap();
            let options = PlanOptions::new(Op::Sddmm, n).strategy(Strategy::Panel);
            let plan = Plan::choose(&Stats::of(&*pattern), &machine, &options, &target).unwrap();
            let Plan::Panel(plan) = plan else { panic!("{}", plan.explain()) };
            (plan.block_rows(), plan.block_rows() * (row_bytes(n.div_ceil(16), &target) + 4 * per_row))
        };
        let (few, bytes) = rows(32, 3);
        assert!(
            bytes <= machine.l2_bytes() / 3 && bytes + bytes / few > machine.l2_bytes() / 3,
            "{few} rows, {bytes} bytes"
        );
        // Short segments, and rows of four vectors.
        assert!(rows(32, 9).0 >= 512 && rows(64, 3).0 >= 512);
    }
}
