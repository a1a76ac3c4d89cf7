//! Facts about a pattern that plans are chosen by.

use crate::formats::PatternRef;
use crate::machine::Machine;

/// Binary logarithms of the widths of panels at which row segments are counted: 32, 64, 128, 256.
const WIDTH_BITS: [u32; 4] = [5, 6, 7, 8];

/// Rows that are looked at for the number of row segments; more would tell the same.
const SAMPLE: usize = 512;

/// Nonzeros that are looked at for how often columns repeat.
const SAMPLED_COLUMNS: usize = 4096;

/// Facts about a sparsity pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Number of nonzeros.
    pub nnz: usize,
    /// Rows without nonzeros.
    pub empty_rows: usize,
    /// Most nonzeros in a row.
    pub max_row: usize,
    /// Mean nonzeros of a row in a panel of 32, 64, 128 and 256 columns where it has any.
    per_segment: [f64; WIDTH_BITS.len()],
    /// Columns from the first to the last nonzero of two neighbouring rows, so that half of the nonzeros are in such of fewer; all where it
    /// is not known.
    pub(super) span: usize,
    /// Nonzeros in the column of a nonzero, in the mean, by those of a uniformly random pattern of the same size; 1 where it is not known.
    pub(super) column_skew: f64,
}

impl Stats {
    /// The facts about `pattern`, in one pass over its row pointers and one over a sample of its rows.
    pub fn of<'a>(pattern: impl Into<PatternRef<'a>>) -> Self {
        let pattern = pattern.into();
        let lens = || (0..pattern.rows()).map(|i| pattern.row_ptr().row(i).len());
        let rows = pattern.rows();
        // One row in so many, and one nonzero in so many of theirs, at no regular distance: patterns are often regular themselves.
        let step = rows.div_ceil(SAMPLE).max(1);
        let sample = || (0..rows).step_by(step).map(|i| (i + spread(i) % step).min(rows - 1));
        let mut segments = [0usize; WIDTH_BITS.len()];
        let mut nnz = 0;
        let mut spans = Vec::with_capacity(SAMPLE);
        for i in sample() {
            let row = pattern.row(i);
            nnz += row.len();
            let next = if i + 1 < rows { pattern.row(i + 1) } else { &[] };
            spans.extend(span([row, next]).map(|span| (span, row.len() + next.len())));
            for (segments, bits) in segments.iter_mut().zip(WIDTH_BITS) {
                // Neighbours in different panels; unsorted rows count too many, and are seldom.
                *segments += usize::from(!row.is_empty());
                *segments += row.windows(2).filter(|w| (w[0] ^ w[1]) >> bits != 0).count();
            }
        }
        let one_in = nnz.div_ceil(SAMPLED_COLUMNS).max(1);
        let nonzeros = sample().flat_map(|i| pattern.row(i)).enumerate();
        let sampled = nonzeros.filter(|&(at, _)| spread(at).is_multiple_of(one_in)).map(|(_, &column)| column);
        let per_segment = segments.map(|segments| nnz as f64 / segments.max(1) as f64);
        Self {
            rows,
            cols: pattern.cols(),
            nnz: pattern.nnz(),
            empty_rows: lens().filter(|&len| len == 0).count(),
            max_row: lens().max().unwrap_or(0),
            per_segment,
            span: weighted_median(spans).map_or(pattern.cols(), |span| span as usize),
            column_skew: column_skew(pattern.cols(), sampled.collect()),
        }
    }

    /// The size of `pattern` and nothing else, without a pass over it: enough for the direct path.
    pub(crate) fn size_of(pattern: PatternRef<'_>) -> Self {
        let (rows, cols, nnz) = (pattern.rows(), pattern.cols(), pattern.nnz());
        Self {
            rows,
            cols,
            nnz,
            empty_rows: 0,
            max_row: 0,
            per_segment: [0.0; WIDTH_BITS.len()],
            span: cols,
            column_skew: 1.0,
        }
    }

    /// Whether the pattern is a band so narrow that rows of B, of which `row_bytes` are read at a time, stay in L1 from one of its
    /// rows to the next: the two ends are the only ones that change, so twice L1 will do (101 columns at N = 128 and 401 at N = 32
    /// do, 401 at N = 64 do not, 32 KiB, Zen 4).
    pub(super) fn in_l1(&self, machine: &Machine, row_bytes: usize) -> bool {
        self.span.saturating_mul(row_bytes) <= 2 * machine.l1d_bytes()
    }

    /// Whether rows of B, of which `row_bytes` are read at a time, stay in half of L2 from one row of the pattern to the next.
    pub(super) fn in_l2(&self, machine: &Machine, row_bytes: usize) -> bool {
        self.span.saturating_mul(row_bytes) <= machine.l2_bytes() / 2
    }

    /// Share of the entries that are nonzero.
    pub fn density(&self) -> f64 {
        self.nnz as f64 / (self.rows as f64 * self.cols as f64).max(1.0)
    }

    /// Mean nonzeros of a row in a panel of `width` columns where it has any, interpolated between the counted widths.
    pub fn per_segment(&self, width: usize) -> f64 {
        let width_of = |bits: u32| 1usize << bits;
        let upper = WIDTH_BITS.iter().position(|&bits| width_of(bits) >= width).unwrap_or(WIDTH_BITS.len() - 1);
        let lower = upper.saturating_sub(1);
        let (w0, w1) = (width_of(WIDTH_BITS[lower]) as f64, width_of(WIDTH_BITS[upper]) as f64);
        let share = if w1 > w0 { ((width as f64 - w0) / (w1 - w0)).clamp(0.0, 1.0) } else { 0.0 };
        self.per_segment[lower] + share * (self.per_segment[upper] - self.per_segment[lower])
    }

    /// Mean share of the rows that have a nonzero in a panel of `width` columns: above 0, at most 1.
    pub fn visited_rows(&self, width: usize) -> f64 {
        let segments = self.nnz as f64 / self.per_segment(width).max(1.0);
        let visits = self.rows as f64 * (self.cols as f64 / width.max(1) as f64).max(1.0);
        (segments / visits.max(1.0)).clamp(f64::MIN_POSITIVE, 1.0)
    }
}

/// How many times as often as uniformly random ones two of `sample`, columns below `cols`, are the same.
fn column_skew(cols: usize, mut sample: Vec<u32>) -> f64 {
    sample.sort_unstable();
    let pairs = |n: usize| (n * n.saturating_sub(1) / 2) as f64;
    let same: f64 = sample.chunk_by(|a, b| a == b).map(|equal| pairs(equal.len())).sum();
    let expected = pairs(sample.len()) / cols.max(1) as f64;
    // A few pairs may be chance.
    if same < 8.0 { 1.0 } else { same / expected.max(f64::MIN_POSITIVE) }
}

/// 16 bits that consecutive numbers spread evenly over (Fibonacci hashing).
fn spread(number: usize) -> usize {
    (number as u32).wrapping_mul(0x9e37_79b9) as usize >> 16
}

/// The value up to which half of the weights are, of pairs of values and weights; none where there are none.
fn weighted_median(mut pairs: Vec<(u32, usize)>) -> Option<u32> {
    pairs.sort_unstable();
    let all: usize = pairs.iter().map(|pair| pair.1).sum();
    let mut up_to = 0;
    let median = pairs.iter().find(|pair| {
        up_to += pair.1;
        2 * up_to >= all
    });
    median.map(|pair| pair.0)
}

/// Columns from the first to the last nonzero of these rows, whose columns ascend; none where they are empty.
fn span(rows: [&[u32]; 2]) -> Option<u32> {
    let first = rows.iter().filter_map(|row| row.first()).min()?;
    let last = rows.iter().filter_map(|row| row.last()).max()?;
    Some(last.saturating_sub(*first) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;

    /// `rows` rows of four nonzeros in 10 000 columns, anywhere, `hot` of them in the first four.
    fn skew(rows: usize, hot: usize) -> f64 {
        let row = |i: usize| {
            let anywhere = (hot..4).map(move |k| (4 + (i * 4 + k) * 7919 % 9996) as u32);
            let mut row: Vec<u32> = (0..hot as u32).chain(anywhere).collect();
            row.sort_unstable();
            row
        };
        let columns = (0..rows).flat_map(row).collect();
        Stats::of(&*Pattern::new(rows, 10_000, (0..=rows).map(|i| 4 * i).collect(), columns).unwrap()).column_skew
    }

    #[test]
    fn span_is_that_of_most_nonzeros() {
        assert_eq!(weighted_median(vec![]), None);
        assert_eq!(weighted_median(vec![(9, 1), (2, 5), (4, 6)]), Some(4));
        // Three rows of four have two nonzeros next to each other, the fourth 40 all over 4000 columns.
        let row = |i: usize| {
            if i.is_multiple_of(4) { (0..40).map(|k| 100 * k).collect() } else { vec![i as u32, i as u32 + 1] }
        };
        let columns: Vec<u32> = (0..400).flat_map(row).collect();
        let row_ptr = (0..=400).map(|i: usize| (0..i).map(|i| row(i).len()).sum()).collect();
        assert_eq!(Stats::of(&*Pattern::new(400, 4000, row_ptr, columns).unwrap()).span, 3901);
    }

    #[test]
    fn repeating_columns_are_told_from_random_ones() {
        assert!(skew(20_000, 0) < 2.0, "{}", skew(20_000, 0));
        assert!(skew(20_000, 1) > 100.0 && skew(20_000, 3) > skew(20_000, 1));
        // Too few to tell, and none.
        assert_eq!((skew(2, 0), skew(0, 0)), (1.0, 1.0));
    }
}
