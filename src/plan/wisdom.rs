//! What was measured: choices by the case that they were found for, as lines of text.
//!
//! ```text
//! 2 spmm 4 avx512 2 128 4096 4096 1677722 38.4 panel 8 80 4096 1
//! ```
//!
//! The version, then the case: operation, bytes of a value, instruction set, threads, columns, rows and columns of A, nonzeros,
//! nonzeros of a row in a panel of 128 columns; then the choices. A later line replaces an earlier one of the same case.

use std::fmt::Write;

use super::choices::Choices;
use super::options::{Op, Target};
use super::stats::Stats;

/// The first word of a line: what another version wrote is not read. 1 knew prefetches in L1 only, whose distances lose for rows from memory.
const VERSION: &str = "2";

/// Columns of the panel that row segments are compared by.
const SEGMENT_WIDTH: usize = 128;

/// The largest ratio of rows, columns, nonzeros of a row or of a segment between cases that are alike.
const ALIKE: f64 = 1.5;

/// What choices are found for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WisdomCase {
    op: Op,
    value_bytes: usize,
    arch: String,
    threads: usize,
    n: usize,
    /// Rows, columns, nonzeros, and nonzeros of a row in a panel.
    pattern: [f64; 4],
}

impl WisdomCase {
    /// `op` with dense operands of `n` columns on a pattern with these statistics, on an executor of `arch`.
    pub fn new(op: Op, n: usize, stats: &Stats, target: &Target, arch: &str) -> Self {
        let pattern = [stats.rows as f64, stats.cols as f64, stats.nnz as f64, stats.per_segment(SEGMENT_WIDTH)];
        // A^T B is the product of the transpose, whose statistics these are.
        let op = if op == Op::SpmmTransposed { Op::Spmm } else { op };
        Self { op, value_bytes: target.value_bytes, arch: arch.to_owned(), threads: target.threads, n, pattern }
    }

    /// How far apart two cases are, as a ratio; none where choices for one say nothing of the other.
    fn distance(&self, other: &Self) -> Option<f64> {
        let exact = |case: &Self| (case.op, case.value_bytes, case.threads, case.n);
        if exact(self) != exact(other) || self.arch != other.arch {
            return None;
        }
        let ratio = |(x, y): (&f64, &f64)| (x / y).max(y / x);
        let farthest = self.pattern.iter().zip(&other.pattern).map(ratio).fold(1.0, f64::max);
        (farthest <= ALIKE).then_some(farthest)
    }

    /// The line that keeps `choices` for it.
    pub fn line(&self, choices: &Choices) -> String {
        let Self { op, value_bytes, arch, threads, n, pattern } = self;
        let mut line = format!("{VERSION} {} {value_bytes} {arch} {threads} {n}", op.name());
        for (figure, digits) in pattern.iter().zip([0, 0, 0, 2]) {
            let _ = write!(line, " {figure:.digits$}");
        }
        line + &format!(" {choices}\n")
    }
}

/// Cases and the choices that were found for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wisdom {
    cases: Vec<(WisdomCase, Choices)>,
    /// Lines that say nothing that is understood here.
    pub foreign: usize,
}

impl Wisdom {
    /// Reads lines. What is not understood is counted and passed over.
    pub fn read(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match read_line(line) {
                Some((case, choices)) => all.insert(case, choices),
                None => all.foreign += 1,
            }
        }
        all
    }

    /// Keeps `choices` for `case`, instead of earlier ones for the same.
    pub fn insert(&mut self, case: WisdomCase, choices: Choices) {
        match self.cases.iter_mut().find(|(known, _)| *known == case) {
            Some((_, old)) => *old = choices,
            None => self.cases.push((case, choices)),
        }
    }

    /// The choices of the case that is most like `case`, if one is.
    pub fn find(&self, case: &WisdomCase) -> Option<Choices> {
        let near = self.cases.iter().filter_map(|(known, choices)| Some((known.distance(case)?, *choices)));
        near.min_by(|x, y| x.0.total_cmp(&y.0)).map(|(_, choices)| choices)
    }
}

fn read_line(line: &str) -> Option<(WisdomCase, Choices)> {
    let mut words = line.split_ascii_whitespace();
    if words.next()? != VERSION {
        return None;
    }
    let name = words.next()?;
    let op = [Op::Spmm, Op::Sddmm, Op::FusedMm].into_iter().find(|op| op.name() == name)?;
    let value_bytes = words.next()?.parse().ok()?;
    let arch = words.next()?.to_owned();
    let (threads, n) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let mut pattern = [0.0; 4];
    for figure in &mut pattern {
        *figure = words.next()?.parse().ok().filter(|&x: &f64| x.is_finite() && x >= 0.0)?;
    }
    let choices = Choices::read(&mut words)?;
    // A line that was cut, or two that were written into each other, has other words.
    words.next().is_none().then_some((WisdomCase { op, value_bytes, arch, threads, n, pattern }, choices))
}

#[cfg(test)]
mod tests {
    use super::super::choices::{DirectChoices, PanelChoices};
    use super::*;

    fn case(rows: f64, n: usize) -> WisdomCase {
        let pattern = [rows, 4096.0, 100_000.0, 3.25];
        WisdomCase { op: Op::Sddmm, value_bytes: 8, arch: "avx2".to_owned(), threads: 3, n, pattern }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let direct = |column_slab| Choices::Direct(DirectChoices { column_slab, prefetch_distance: 32 });
        let panel = Choices::Panel(PanelChoices { tile_vectors: 8, width: 80, block_rows: 4096, pairs: true });
        for choices in [direct(usize::MAX), direct(100), panel, Choices::Slices] {
            let wisdom = Wisdom::read(&case(1000.0, 64).line(&choices));
            assert_eq!((wisdom.find(&case(1000.0, 64)), wisdom.foreign), (Some(choices), 0));
        }
    }

    #[test]
    fn the_nearest_case_counts_and_the_last_of_the_same() {
        let slab = |column_slab| Choices::Direct(DirectChoices { column_slab, prefetch_distance: 8 });
        let lines = [(1000.0, 1), (1200.0, 2), (1000.0, 3)].map(|(rows, s)| case(rows, 64).line(&slab(s))).concat();
        let wisdom = Wisdom::read(&lines);
        assert_eq!(wisdom.cases.len(), 2);
        assert_eq!(wisdom.find(&case(1050.0, 64)), Some(slab(3)));
        assert_eq!(wisdom.find(&case(1400.0, 64)), Some(slab(2)));
        assert_eq!(wisdom.find(&case(2000.0, 64)), None);
        assert_eq!(wisdom.find(&case(1000.0, 65)), None);
    }

    #[test]
    fn what_is_broken_or_foreign_is_passed_over() {
        let good = case(1000.0, 64).line(&Choices::Direct(DirectChoices { column_slab: 7, prefetch_distance: 0 }));
        let newer = good.replacen(VERSION, "9", 1);
        let cut = &good[..good.len() - 6];
        let twice = format!("{} {good}", good.trim());
        let infinite = good.replace("3.25", "inf");
        let lines = [&newer, cut, &twice, "\u{0}", "", "2 spmm nan", &infinite, &good];
        let wisdom = Wisdom::read(&lines.map(str::trim).join("\n"));
        assert_eq!((wisdom.cases.len(), wisdom.foreign), (1, 6));
    }
}
