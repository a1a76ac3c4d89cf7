//! Whether panels pay.

use std::borrow::Cow;

use super::{PanelPlan, WIDEST_TILE};
use crate::machine::Machine;
use crate::plan::Stats;
use crate::plan::options::{Op, PANEL_PAYS_AFTER, PlanOptions, Target};

/// Nonzeros per row segment below which the panel path loses to the direct one, for tiles and rows of so many vectors. Times of the direct path by
/// those of panels, uniformly random, 1024 to 16384 columns, f32, Zen 4:
///
/// | nonzeros | SpMM | SDDMM | FusedMM |
/// | --- | --- | --- | --- |
/// | 7.7, two vectors | 0.98-1.22 | 1.05-1.43 | 1.05-1.23 |
/// | 5.1, two vectors | 0.91-1.11 | 0.87-0.99 | 0.91-1.11 |
/// | 5.1, four and eight vectors | 1.05-1.68 | 1.01-1.82 | 1.09-1.39 |
/// | 2.6, four and eight vectors; B more than twice L2 | 0.87-0.95; 0.99-1.31 | 0.79-0.88; 0.91-1.22 | 0.93-0.98; 1.23-1.63 |
///
/// In bands, whose rows of B stay in L1, the direct path gathers as fast, and panels gain by narrow rows alone: with 2 to 48 nonzeros one
/// and two vectors 1.2-2.1, SDDMM with four vectors 1.2; else 0.5-0.95 up to 13 nonzeros, 0.83-1.09 with 16, 1.09-1.36 from 19 on.
///
/// Bands of which tiles fit L1 but not the sets of it that they use, 280 columns, AVX2 of a Zen 3, N = 128: 6 nonzeros 0.91, 0.52, 1.7; 12
/// nonzeros 1.07, 0.84, 1.24; 27 nonzeros 1.59, 1.85, 1.47; bcsstk16 (18 nonzeros; SpMM 27) 1.95, 1.19, 1.44.
///
/// SDDMM with 16 registers, 2048 and 4096 columns, f32 and f64, one and two threads of a Zen 3, direct by panels: 5.1 nonzeros, N = 32, 0.58-0.93,
/// N = 128, 0.61-1.06; 7.7 nonzeros, N = 32, 0.57-1.06, N = 128, 0.64-1.37; 10.2 nonzeros, N = 32, 1.0-1.85; 12.8 nonzeros, f32, 1.5-1.7.
///
/// Where neighbouring rows of A name rows of B that take half of L2, one thread of an Emerald Rapids (L2 of 2 MiB, which gives two registers in
/// three clocks), direct by panels; 512 and 1024 columns, f32 and f64, and bands of 300 and 600:
///
/// | nonzeros | SpMM | SDDMM | FusedMM |
/// | --- | --- | --- | --- |
/// | 3.8, four to sixteen vectors | 0.94-1.52 | | 1.15-1.62 |
/// | 7.7, four vectors; eight; sixteen | 0.93-0.97; 0.93-1.0; 0.90 | 1.0-1.07; 1.20-1.56; 0.89-1.04 | 0.67-0.90; 0.88-1.0; 1.05-1.13 |
/// | 15, eight vectors | 0.75-0.80 | 0.93-1.09 | 0.83-0.86 |
/// | 6.0 and 7.7 in bands, eight vectors | 1.27, 1.08 | 1.28, 1.15 | 1.17, 1.06 |
fn least_segment(op: Op, (tile, all): (usize, usize), kept: Kept, machine: &Machine, few_registers: bool) -> f64 {
    match (kept, op) {
        (Kept::RowsInL1, Op::Sddmm) if all <= 4 => 2.0,
        (Kept::RowsInL1, _) if all < 4 => 2.0,
        (Kept::RowsInL1, _) => 18.0,
        (Kept::TilesInL1, Op::Sddmm) => 14.0,
        (Kept::TilesInL1, _) => 8.0,
        _ if all < 4 => 5.5,
        (_, Op::Sddmm) if few_registers && all <= 8 => 9.0,
        (_, Op::Sddmm) if few_registers => 6.5,
        // Dots go to memory between tiles, and the direct path has one pass. Not known of other cores.
        (Kept::InL2, Op::Sddmm) if tile < all && all <= WIDEST_TILE && machine.l3_is_far() => 12.5,
        (Kept::InL2, _) => 6.0,
        (_, Op::Sddmm) => 4.0,
        (Kept::Far, _) => 2.3,
        (Kept::Near, _) => 3.5,
    }
}

/// What of the rows of B stays in the caches from one row of A to the next.
#[derive(Clone, Copy)]
enum Kept {
    /// In L1, what is read of them in one pass.
    RowsInL1,
    /// A tile of each would fit L1, but not the sets that tiles use.
    TilesInL1,
    /// In half of L2, whole rows.
    InL2,
    /// Less than that.
    Near,
    /// The same, and B takes more than twice L2.
    Far,
}

impl Kept {
    fn new(stats: &Stats, machine: &Machine, row_bytes: usize, tile_bytes: usize) -> Self {
        match stats.in_l1(machine, tile_bytes) {
            true if stats.in_l1(machine, bytes_in_sets(row_bytes, tile_bytes)) => Self::RowsInL1,
            true => Self::TilesInL1,
            false if stats.in_l2(machine, row_bytes) => Self::InL2,
            false if stats.cols.saturating_mul(row_bytes) > 2 * machine.l2_bytes() => Self::Far,
            false => Self::Near,
        }
    }
}

/// Copied rows of B per nonzero beyond which panels lose (R-MAT of 2^16 rows, 1.6 M nonzeros, N = 128, f32: 0.66 copies, 92 ms where
/// the direct path takes 19; Zen 4).
///
/// SDDMM whose rows are one tile copies nothing where B is aligned and has no gaps, which plans do not know: R-MAT of 2^16 rows, 1 M nonzeros,
/// tiles of eight vectors 15.2 GFLOP/s by 12.7 straight from CSR, of four, which are copied, 4.5 (one thread of an Emerald Rapids).
const MOST_COPIES: f64 = 0.25;

/// The same where columns repeat, so that the direct path finds most rows of B in a cache. R-MAT, N = 128, direct by panels, of SpMM, SDDMM and
/// FusedMM: 0.07 copies (2^14 rows, 1 M nonzeros) 1.39, 1.04, 1.11; 0.22 (the first 11 000 of 2^16 rows) 0.66, 0.57, 0.80; uniformly random
/// with 0.2 (512 x 65536, 99 % zeros) 1.55, 1.53, 1.69.
const MOST_COPIES_SKEWED: f64 = 0.125;

/// From how many times as often as in a uniformly random pattern columns count as repeating: in R-MAT of 2^14 rows 20 times, of 2^16 46.
const SKEWED: f64 = 4.0;

/// Bytes of L1 that tiles of `tile_bytes` of rows of `row_bytes` keep busy: tiles that are a power of two apart leave the sets between
/// them idle.
fn bytes_in_sets(row_bytes: usize, tile_bytes: usize) -> usize {
    const SETS: u32 = 4096_u32.trailing_zeros();
    tile_bytes.max(1 << row_bytes.trailing_zeros().min(SETS)).min(row_bytes)
}

impl PanelPlan {
    /// Why the direct strategy is expected to be faster, if it is.
    pub(super) fn loses(
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
        let row_bytes = self.n.saturating_mul(target.value_bytes);
        let tile_bytes = row_bytes.min(WIDEST_TILE * target.vector_bytes);
        let kept = Kept::new(stats, machine, row_bytes, tile_bytes);
        let few_registers = target.registers < 32;
        let vectors = (self.tile_vectors, self.n.div_ceil(target.lanes()));
        if per_segment < least_segment(self.op, vectors, kept, machine, few_registers) {
            return Some(format!("{per_segment:.1} nonzeros of a row in a panel do not pay for its row of C").into());
        }
        // Copying a panel into L1 must be a small part of using it: a copied row costs what a nonzero of the direct path does.
        let share = self.block_rows.min(stats.rows) as f64 / stats.rows.max(1) as f64;
        let block_nnz = share * stats.nnz as f64;
        // In a band the rows of a block name their share of all columns, and no others but at its two ends.
        let within = share * stats.cols as f64 + stats.span as f64;
        let touched = (stats.cols as f64).min(within).min(block_nnz / per_segment.max(1.0) * self.width as f64);
        let copies_per_nonzero = touched / block_nnz.max(1.0);
        let most = if stats.column_skew > SKEWED { MOST_COPIES_SKEWED } else { MOST_COPIES };
        (copies_per_nonzero > most)
            .then(|| format!("panels would be copied {copies_per_nonzero:.2} times per use").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;
    use crate::plan::{Plan, Strategy};

    #[test]
    fn tiles_of_rows_that_share_sets_are_no_band() {
        assert_eq!(
            [(512, 512), (512, 256), (400, 256), (640, 256)].map(|(row, tile)| bytes_in_sets(row, tile)),
            [512, 512, 256, 256]
        );
        assert_eq!(bytes_in_sets(1 << 20, 512), 4096);
        // 16 nonzeros of a row near the diagonal, every eleventh column: 166 columns, 83 KiB of rows of 512 bytes.
        let columns = (0..2048).flat_map(|i: usize| (0..16).map(move |k| (i.min(1880) + 11 * k) as u32)).collect();
        let pattern = Pattern::new(2048, 2048, (0..=2048).map(|i| 16 * i).collect(), columns).unwrap();
        let machine = Machine::describe("l3:1(size=32MB) l2:1(size=512KB) l1d:1(size=32KB) core:1").unwrap();
        let target = Target { threads: 1, vector_bytes: 32, registers: 16, value_bytes: 4 };
        let strategy = |n: usize| {
            let options = PlanOptions::new(Op::FusedMm, n).reuse(1000);
            Plan::choose(&Stats::of(&*pattern), &machine, &options, &target).unwrap().strategy()
        };
        assert_eq!((strategy(128), strategy(120)), (Strategy::Panel, Strategy::Direct));
    }

    #[test]
    fn short_segments_do_not_pay_where_l2_has_the_rows_of_b() {
        let strategy = |l3: usize, op: Op, cols: usize, apart: usize| {
            let per_row = cols / apart;
            let columns =
                (0..2048).flat_map(|i| (0..per_row).map(move |k| (i * 31 / 4 % apart + k * apart) as u32)).collect();
            let pattern = Pattern::new(2048, cols, (0..=2048).map(|i| i * per_row).collect(), columns).unwrap();
            let machine = format!("l3:1(size={l3}MB) l2:1(size=2MB) l1d:1(size=48KB) core:1");
            let target = Target { threads: 1, vector_bytes: 64, registers: 32, value_bytes: 4 };
            let options = PlanOptions::new(op, 128).reuse(1000);
            Plan::choose(&Stats::of(&*pattern), &Machine::describe(&machine).unwrap(), &options, &target)
                .unwrap()
                .strategy()
        };
        for op in [Op::Spmm, Op::FusedMm, Op::Sddmm] {
            // Four of 256 columns, 1 and 3 MiB of B.
            assert_eq!([2048, 6144].map(|cols| strategy(32, op, cols, 64)), [Strategy::Direct, Strategy::Panel]);
        }
        // Eight of 256 columns.
        assert_eq!([32, 300].map(|l3| strategy(l3, Op::Sddmm, 1024, 32)), [Strategy::Panel, Strategy::Direct]);
        assert_eq!(strategy(300, Op::Spmm, 1024, 32), Strategy::Panel);
    }
}
