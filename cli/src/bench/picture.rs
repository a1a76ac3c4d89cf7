//! Groups of bars.

use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use sparsimd::Result;

use super::report::Section;
use super::results::Case;
use super::summary::distinct;
use crate::plot::{COLORS, Drawn, FONT, save};

/// Pixels between the picture's edge and the bars: left, top, right, bottom.
const MARGINS: [i32; 4] = [80, 90, 20, 150];
/// Of the lines across groups.
const MARK: RGBColor = BLACK;
/// Pixels of a picture's height.
const HEIGHT: u32 = 620;

/// A group of bars for each input, a bar for each contender.
pub struct Bars {
    pub title: String,
    pub x: String,
    pub y: String,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Names and a value per group; 0 draws nothing.
    pub series: Vec<(String, Vec<f64>)>,
    /// A line across each group, and what it stands for.
    pub marks: Option<(String, Vec<f64>)>,
}

/// Useful GFLOP/s of everybody in each of `cases`, ours last; nothing where there are none.
///
/// # Errors
/// As [`save`].
pub fn speeds(folder: &Path, name: &str, title: String, x: &str, cases: &[&Case]) -> Result<Option<Section>> {
    let theirs = cases.iter().flat_map(|case| case.peers());
    let ours = cases.iter().flat_map(|case| case.samples.iter().filter(|sample| sample.ours));
    let names = distinct(theirs.chain(ours).map(|sample| sample.name.as_str()));
    if names.is_empty() {
        return Ok(None);
    }
    let series = names.into_iter().map(|name| {
        let speed = |case: &&Case| case.samples.iter().find(|s| s.name == name).map_or(0.0, |s| s.gflops);
        (name.to_owned(), cases.iter().map(speed).collect())
    });
    let groups = cases.iter().map(|case| case.input.clone()).collect();
    let y = "GFLOP/s".to_owned();
    let bars = Bars { title: title.clone(), x: x.to_owned(), y, groups, series: series.collect(), marks: None };
    let [svg, _] = bars.save(folder, name)?;
    Ok(Some(Section { title, pictures: vec![svg], ..Section::default() }))
}

impl Bars {
    /// Writes `folder/name.svg` and `folder/name.png`.
    pub fn save(&self, folder: &Path, name: &str) -> Result<[PathBuf; 2]> {
        // Room for every bar to be told from its neighbours.
        let bars = self.groups.len() * (self.series.len() + 1);
        let width = (bars as u32 * 9).clamp(900, 4000);
        save(folder, name, (width, HEIGHT), |area| self.draw(area), |area| self.draw(area))
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Drawn {
        let text = |e: DrawingAreaErrorKind<B::ErrorType>| e.to_string();
        area.fill(&WHITE).map_err(text)?;
        let (width, height) = area.dim_in_pixel();
        let [left, top, right, bottom] = MARGINS;
        let (width, height) = (width as i32 - left - right, height as i32 - top - bottom);
        let all = self.series.iter().chain(&self.marks);
        let greatest = all.flat_map(|(_, values)| values).fold(0.0, |a: f64, &b| a.max(b));
        let step = round_step(greatest / 6.0);
        let most = step * (greatest / step).ceil().max(1.0);
        let y_of = |value: f64| top + height - (value / most * f64::from(height)) as i32;
        let style = |size: i32| TextStyle::from((FONT, size).into_font());

        area.draw_text(&self.title, &style(26), (left, 14)).map_err(text)?;
        for line in 0..=(most / step).round() as i32 {
            let value = f64::from(line) * step;
            let y = y_of(value);
            let grid = if line == 0 { BLACK.mix(1.0) } else { BLACK.mix(0.15) };
            area.draw(&PathElement::new(vec![(left, y), (left + width, y)], grid)).map_err(text)?;
            let label = if step < 1.0 { format!("{value:.1}") } else { format!("{value:.0}") };
            let right_of = style(17).pos(Pos::new(HPos::Right, VPos::Center));
            area.draw_text(&label, &right_of, (left - 8, y)).map_err(text)?;
        }
        let upwards = style(18).transform(FontTransform::Rotate270).pos(Pos::new(HPos::Center, VPos::Center));
        area.draw_text(&self.y, &upwards, (18, top + height / 2)).map_err(text)?;

        let group = f64::from(width) / self.groups.len().max(1) as f64;
        // A bar's width of space between groups.
        let bar = group / (self.series.len() + 1) as f64;
        for (g, name) in self.groups.iter().enumerate() {
            let start = f64::from(left) + g as f64 * group + bar / 2.0;
            for (s, (_, values)) in self.series.iter().enumerate() {
                let value = values.get(g).copied().unwrap_or(0.0);
                if value > 0.0 {
                    let x = (start + s as f64 * bar) as i32;
                    let end = ((start + (s + 1) as f64 * bar) as i32 - 1).max(x + 1);
                    let shape = Rectangle::new([(x, y_of(value)), (end, y_of(0.0))], self.color(s).filled());
                    area.draw(&shape).map_err(text)?;
                }
            }
            if let Some(mark) = self.marks.as_ref().and_then(|(_, values)| values.get(g)) {
                let ends = [f64::from(left) + g as f64 * group, f64::from(left) + (g + 1) as f64 * group];
                let ends = ends.map(|x| (x as i32, y_of(*mark))).to_vec();
                area.draw(&PathElement::new(ends, MARK.stroke_width(2))).map_err(text)?;
            }
            let down = style(16).transform(FontTransform::Rotate90).pos(Pos::new(HPos::Left, VPos::Center));
            let middle = (f64::from(left) + (g as f64 + 0.5) * group) as i32;
            area.draw_text(name, &down, (middle, top + height + 8)).map_err(text)?;
        }
        let below = style(18).pos(Pos::new(HPos::Center, VPos::Bottom));
        area.draw_text(&self.x, &below, (left + width / 2, top + height + bottom - 4)).map_err(text)?;

        let mut x = left;
        for (s, (name, _)) in self.series.iter().enumerate() {
            area.draw(&Rectangle::new([(x, 54), (x + 18, 72)], self.color(s).filled())).map_err(text)?;
            area.draw_text(name, &style(18), (x + 26, 54)).map_err(text)?;
            x += 26 + name.chars().count() as i32 * 10 + 24;
        }
        if let Some((name, _)) = &self.marks {
            area.draw(&PathElement::new(vec![(x, 63), (x + 18, 63)], MARK.stroke_width(2))).map_err(text)?;
            area.draw_text(name, &style(18), (x + 26, 54)).map_err(text)?;
        }
        Ok(())
    }

    /// The last one, who is compared with the others, has the same colour in every picture.
    fn color(&self, series: usize) -> RGBColor {
        if series + 1 == self.series.len() { COLORS[0] } else { COLORS[(series + 1) % COLORS.len()] }
    }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-3).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|&step| step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_large_enough() {
        for (least, step) in [(0.3, 0.5), (1.0, 1.0), (1.1, 2.0), (37.0, 50.0), (70.0, 100.0)] {
            assert!((round_step(least) / step - 1.0).abs() < 1e-12, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn both_files_show_all_names() {
        let folder = tempfile::tempdir().unwrap();
        let bars = Bars {
            title: "a title".to_owned(),
            x: "below".to_owned(),
            y: "beside".to_owned(),
            groups: vec!["g1".to_owned(), "g2".to_owned()],
            series: vec![("peer".to_owned(), vec![3.0, 0.0]), ("we".to_owned(), vec![5.0, 7.0])],
            marks: Some(("roof".to_owned(), vec![8.0, 9.0])),
        };
        let [svg, png] = bars.save(folder.path(), "bars").unwrap();
        let text = std::fs::read_to_string(svg).unwrap();
        for word in ["a title", "below", "beside", "g1", "g2", "peer", "we", "roof"] {
            assert!(text.contains(word), "{word}");
        }
        // Three bars, two squares of the legend, the ground.
        assert_eq!(text.matches("<rect").count(), 6);
        assert!(std::fs::metadata(png).unwrap().len() > 1000);
    }
}
