//! `sparsimd stats` of a matrix.

use std::path::Path;

use serde::Serialize;
use sparsimd::formats::PatternRef;
use sparsimd::io::{Matrix, ReadOptions, read_matrix};
use sparsimd::plan::{Op, Plan, PlanOptions, Stats as PlanStats};
use sparsimd::{Cpu, Result};

use super::matrix::{REUSE, path_name};
use super::progress::Progress;

/// Columns of a panel: the most that a plan takes.
const PANEL: usize = 256;
/// Ranges of panels whose densities are told, at most.
const RANGES: usize = 64;

/// What a matrix looks like, and what plans make of it.
#[derive(Debug, Serialize)]
pub struct MatrixStats {
    rows: usize,
    cols: usize,
    nnz: usize,
    density: f64,
    /// Whether the file has values.
    valued: bool,
    /// Nonzeros of the rows.
    row_degrees: Degrees,
    /// Nonzeros of the columns.
    column_degrees: Degrees,
    bandwidth: Bandwidth,
    panels: Panels,
    plans: Vec<PlanOf>,
}

#[derive(Debug, Serialize)]
struct Degrees {
    empty: usize,
    mean: f64,
    median: usize,
    max: usize,
    /// Standard deviation by mean.
    variation: f64,
    /// How many have 0, 1, 2, 3 to 4, 5 to 8, ... nonzeros.
    degree_histogram: Vec<usize>,
}

/// How far from the diagonal nonzeros are.
#[derive(Debug, Serialize)]
struct Bandwidth {
    /// Largest i - j, and j - i, of a nonzero; 0 where there is none on that side.
    lower: usize,
    upper: usize,
    mean_distance: f64,
}

/// Columns in panels.
#[derive(Debug, Serialize)]
struct Panels {
    width: usize,
    count: usize,
    /// Rows in panels that have a nonzero there.
    row_segments: usize,
    nnz_per_segment: f64,
    /// Panels that each number of `density` is of.
    panels_per_range: usize,
    /// Share of the places that are nonzero, by ranges of panels, from the left.
    density: Vec<f64>,
}

/// What the plan of an operation is, estimated.
#[derive(Debug, Serialize)]
struct PlanOf {
    op: &'static str,
    n: usize,
    path: &'static str,
    plan: String,
}

impl Degrees {
    fn of(mut degrees: Vec<usize>) -> Self {
        let (count, nnz) = (degrees.len().max(1) as f64, degrees.iter().sum::<usize>() as f64);
        let mean = nnz / count;
        let mut histogram = Vec::new();
        for &degree in &degrees {
            // 0, and then powers of 2 up to which.
            let bin = if degree == 0 { 0 } else { 1 + degree.next_power_of_two().trailing_zeros() as usize };
            if histogram.len() <= bin {
                histogram.resize(bin + 1, 0);
            }
            histogram[bin] += 1;
        }
        let deviation = (degrees.iter().map(|&d| (d as f64 - mean).powi(2)).sum::<f64>() / count).sqrt();
        degrees.sort_unstable();
        Self {
            empty: histogram.first().copied().unwrap_or(0),
            mean,
            median: degrees.get(degrees.len() / 2).copied().unwrap_or(0),
            max: degrees.last().copied().unwrap_or(0),
            variation: if nnz > 0.0 { deviation / mean } else { 0.0 },
            degree_histogram: histogram,
        }
    }

    fn text(&self, name: &str) -> String {
        let Self { empty, mean, median, max, variation, degree_histogram } = self;
        let bins = degree_histogram.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        format!(
            "{name:<9}{mean:.2} nonzeros on average (median {median}, most {max}, deviation {variation:.3} of the mean), {empty} empty\n         with 0, 1, 2, 3-4, 5-8, ... nonzeros: {bins}\n"
        )
    }
}

/// Reads the matrix `path` in the rayon pool of `cpu`; its plans are for `n` dense columns in f32.
pub fn of(cpu: &Cpu, path: &Path, n: usize) -> Result<MatrixStats> {
    let progress = Progress::of(path);
    let update = |done, total| progress.update(done, total);
    let matrix: Matrix<f32> = cpu.install(|| read_matrix(path, ReadOptions::default().progress(&update)))?;
    let a = PatternRef::from(matrix.pattern());
    let (rows, cols, nnz) = (a.rows(), a.cols(), a.nnz());
    let (mut of_column, mut of_panel) = (vec![0usize; cols], vec![0usize; cols.div_ceil(PANEL)]);
    let (mut lower, mut upper, mut distance, mut segments) = (0, 0, 0.0, 0);
    let mut last = vec![usize::MAX; of_panel.len()];
    for i in 0..rows {
        for &j in a.row(i) {
            let j = j as usize;
            of_column[j] += 1;
            of_panel[j / PANEL] += 1;
            lower = lower.max(i.saturating_sub(j));
            upper = upper.max(j.saturating_sub(i));
            distance += i.abs_diff(j) as f64;
            segments += usize::from(std::mem::replace(&mut last[j / PANEL], i) != i);
        }
    }
    let per_range = of_panel.len().div_ceil(RANGES).max(1);
    let density = |(range, panels): (usize, &[usize])| {
        let width = cols.min((range + 1) * per_range * PANEL) - range * per_range * PANEL;
        panels.iter().sum::<usize>() as f64 / (rows as f64 * width as f64).max(1.0)
    };
    let (stats, target) = (PlanStats::of(matrix.pattern()), cpu.target::<f32>());
    let plan = |(op, name): (Op, &'static str)| -> Result<PlanOf> {
        let plan = Plan::choose(&stats, cpu.machine(), &PlanOptions::new(op, n).reuse(REUSE), &target)?;
        Ok(PlanOf { op: name, n, path: path_name(plan.strategy()), plan: plan.explain() })
    };
    Ok(MatrixStats {
        rows,
        cols,
        nnz,
        density: stats.density(),
        valued: matches!(matrix, Matrix::Values(_)),
        row_degrees: Degrees::of((0..rows).map(|i| a.row(i).len()).collect()),
        column_degrees: Degrees::of(of_column),
        bandwidth: Bandwidth { lower, upper, mean_distance: distance / nnz.max(1) as f64 },
        panels: Panels {
            width: PANEL,
            count: of_panel.len(),
            row_segments: segments,
            nnz_per_segment: nnz as f64 / segments.max(1) as f64,
            panels_per_range: per_range,
            density: of_panel.chunks(per_range).enumerate().map(density).collect(),
        },
        plans: [(Op::Spmm, "spmm"), (Op::Sddmm, "sddmm"), (Op::FusedMm, "fusedmm")]
            .into_iter()
            .map(plan)
            .collect::<Result<_>>()?,
    })
}

impl MatrixStats {
    /// In words.
    pub fn text(&self) -> String {
        let Self { rows, cols, nnz, density, bandwidth, panels, .. } = self;
        let valued = if self.valued { "with values" } else { "without values" };
        let mut out = format!("{rows} x {cols}, {nnz} nonzeros {valued}, density {density:.3e}\n");
        out += &self.row_degrees.text("rows");
        out += &self.column_degrees.text("columns");
        let Bandwidth { lower, upper, mean_distance } = bandwidth;
        out += &format!(
            "band     {lower} below the diagonal, {upper} above, {mean_distance:.1} on average\n\
             panels   {} of {} columns: {} row segments of {:.2} nonzeros\n         density by {} panels from the left:",
            panels.count, panels.width, panels.row_segments, panels.nnz_per_segment, panels.panels_per_range
        );
        panels.density.iter().for_each(|density| out += &format!(" {density:.1e}"));
        for PlanOf { op, n, plan, .. } in &self.plans {
            out += &format!("\n{op:<8} N = {n}: {plan}");
        }
        out
    }
}
