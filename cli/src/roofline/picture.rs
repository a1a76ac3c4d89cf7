//! The roofline as a picture: both axes logarithmic, a slanted line per level of memory, a flat one per kind of
//! arithmetic, a dot per operation.

use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;
use sparsimd::Result;
use sparsimd_measure::Ceilings;

use super::Point;
use crate::plot::{COLORS, Drawn, FONT, Labels, save};

/// Pixels.
const SIZE: (u32, u32) = (1280, 860);
/// Pixels of text beside dots and lines.
const TEXT: f64 = 20.0;

/// What is drawn.
pub struct Roofline<'a> {
    pub title: String,
    /// Levels of memory, nearest first, and their GB/s.
    pub levels: &'a [(String, f64)],
    /// GFLOP/s of multiply-adds, and of additions where they are known.
    pub fma: f64,
    pub add: Option<f64>,
    pub points: &'a [Point],
}

/// Each level's name and GB/s of loads, all threads together.
pub fn levels_of(ceilings: &Ceilings) -> Vec<(String, f64)> {
    ceilings.levels.iter().map(|level| (level.name.clone(), level.read.all)).collect()
}

impl Roofline<'_> {
    /// Writes `roofline.svg` and `roofline.png`.
    pub fn save(&self, folder: &Path) -> Result<[PathBuf; 2]> {
        save(folder, "roofline", SIZE, |area| self.draw(area), |area| self.draw(area))
    }

    /// Ends of both axes: powers of two that hold all dots and the ridges of all levels.
    fn ranges(&self) -> [(f64, f64); 2] {
        let bandwidths = || self.levels.iter().map(|level| level.1);
        let slowest = bandwidths().fold(f64::INFINITY, f64::min);
        let xs = || self.points.iter().map(|p| p.intensity).filter(|&x| x > 0.0);
        let ys = self.points.iter().map(|p| p.gflops).filter(|&y| y > 0.0);
        let left = xs().fold(self.add.unwrap_or(self.fma) / bandwidths().fold(0.0, f64::max), f64::min);
        let right = xs().fold(self.fma / slowest, f64::max);
        let x = (power_of_two(left / 4.0, f64::floor), power_of_two(right * 2.0, f64::ceil));
        let bottom = ys.fold(slowest * x.0 * 2.0, f64::min);
        [x, (power_of_two(bottom / 1.5, f64::floor), power_of_two(self.fma * 1.3, f64::ceil))]
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        let text = |e: DrawingAreaErrorKind<B::ErrorType>| e.to_string();
        area.fill(&WHITE).map_err(text)?;
        let [x, y] = self.ranges();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, title_size(&self.title)))
            .margin(16)
            .x_label_area_size(64)
            .y_label_area_size(90)
            .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale().base(2.0))
            .map_err(text)?;
        chart
            .configure_mesh()
            .x_desc("operational intensity, FLOP per byte requested")
            .y_desc("GFLOP/s")
            .x_label_formatter(&|x| fraction(*x))
            .y_label_formatter(&|y| fraction(*y))
            .x_labels(20)
            .y_labels(20)
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style((FONT, 20))
            .axis_desc_style((FONT, 22))
            .draw()
            .map_err(text)?;

        // Pixels of a place.
        let (width, height) = chart.plotting_area().dim_in_pixel();
        let base = chart.plotting_area().get_base_pixel();
        let at = |px: f64, py: f64| {
            let share = |v: f64, (a, b): (f64, f64)| (v / a).log2() / (b / a).log2();
            (
                f64::from(base.0) + share(px, x) * f64::from(width),
                f64::from(base.1) + (1.0 - share(py, y)) * f64::from(height),
            )
        };
        let bounds = [base.0, base.1, base.0 + width as i32, base.1 + height as i32].map(f64::from);
        // All lines first: labels lie on top of them.
        let mut texts: Vec<(String, (f64, f64), RGBColor)> = Vec::new();
        let mut labels = Labels::default();

        let peaks = [
            Some(("multiply-add peak", self.fma, BLACK)),
            self.add.map(|add| ("vector add peak", add, RGBColor(110, 110, 110))),
        ];
        for (name, roof, color) in peaks.into_iter().flatten() {
            let from = self.levels.iter().map(|level| roof / level.1).fold(f64::INFINITY, f64::min).max(x.0);
            chart
                .draw_series([PathElement::new(vec![(from, roof), (x.1, roof)], color.stroke_width(3))])
                .map_err(text)?;
            let label = format!("{name}: {roof:.0} GFLOP/s");
            let (right, line) = at(x.1, roof);
            let width = label.chars().count() as f64 * TEXT * 0.5;
            let corner = (right - width - 8.0, line - TEXT - 6.0);
            labels.avoid([corner.0, corner.1, right, line + 2.0]);
            texts.push((label, corner, color));
        }
        // Right and lower end of the label before.
        let mut before = [f64::NEG_INFINITY; 2];
        for (i, &(ref name, bandwidth)) in self.levels.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            // From the left or lower edge of the picture to the multiply-add peak.
            let from = x.0.max(y.0 / bandwidth);
            let to = (self.fma / bandwidth).min(x.1);
            let ends = vec![(from, from * bandwidth), (to, to * bandwidth)];
            chart.draw_series([PathElement::new(ends, color.stroke_width(3))]).map_err(text)?;
            let label = format!("{name} {bandwidth:.0} GB/s");
            let start = at(from, from * bandwidth);
            // Right of and below the line's start, where it rises away from the text, and below the label of a line that starts close
            // by; farther right at the lower edge, where the text must be above the start.
            let lowest = bounds[3] - TEXT - 6.0;
            let top = start.1.max(before[1]);
            let corner = if top <= lowest { (start.0 + 14.0, top) } else { (start.0.max(before[0]) + 48.0, lowest) };
            let width = label.chars().count() as f64 * TEXT * 0.52;
            labels.avoid([corner.0, corner.1, corner.0 + width, corner.1 + TEXT]);
            before = [corner.0 + width, corner.1 + TEXT];
            texts.push((label, corner, color));
        }
        for (label, corner, color) in &texts {
            self.write(area, label, *corner, color)?;
        }
        let dots: Vec<_> = self.points.iter().filter(|p| p.intensity > 0.0 && p.gflops > 0.0).collect();
        for point in &dots {
            let (px, py) = at(point.intensity, point.gflops);
            labels.avoid([px - 8.0, py - 8.0, px + 8.0, py + 8.0]);
        }
        for (i, point) in dots.iter().enumerate() {
            let color = COLORS[(i + self.levels.len()) % COLORS.len()];
            let (px, py) = at(point.intensity, point.gflops);
            let dot = Circle::new((point.intensity, point.gflops), 7, color.filled());
            chart.draw_series([dot]).map_err(text)?;
            let label = format!("{} {:.1}", point.label, point.gflops);
            let corner = labels.place((px, py), &label, TEXT, bounds);
            // In the colour of the dot: dots may be too close together for the place of a label to tell.
            self.write(area, &label, corner, &color)?;
        }
        Ok(())
    }

    fn write<B: DrawingBackend, C: Color>(
        &self,
        area: &DrawingArea<B, Shift>,
        label: &str,
        (left, top): (f64, f64),
        color: &C,
    ) -> Drawn {
        // A white ground, so that lines do not cross the text.
        let right = left + label.chars().count() as f64 * TEXT * 0.47;
        let ground = [(left as i32 - 2, top as i32 + 1), (right as i32, (top + TEXT) as i32)];
        area.draw(&Rectangle::new(ground, WHITE.mix(0.85).filled())).map_err(|e| e.to_string())?;
        let style = TextStyle::from((FONT, TEXT).into_font()).color(color);
        area.draw_text(label, &style, (left as i32, top as i32)).map_err(|e| e.to_string())
    }
}

/// Pixels of a title of one line, so that it fits into the picture.
fn title_size(title: &str) -> f64 {
    let room = f64::from(SIZE.0) - 60.0;
    (room / (0.5 * title.chars().count().max(1) as f64)).min(26.0)
}

/// The power of two at or beyond `value`.
fn power_of_two(value: f64, round: fn(f64) -> f64) -> f64 {
    round(value.max(f64::MIN_POSITIVE).log2()).exp2()
}

/// 1/8, 1/4, 1/2, 1, 2, 4, ...
fn fraction(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("1/{:.0}", 1.0 / value) }
}
