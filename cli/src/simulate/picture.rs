//! Weak and strong scaling, side by side: dots are simulated, lines are the model.

use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;
use sparsimd::Result;

use super::Row;
use super::cases::Case;
use crate::plot::{COLORS, Drawn, FONT, save};

/// Pixels.
const SIZE: (u32, u32) = (1500, 760);

/// The part of the height that the legend has to itself: it takes 149 of 649 pixels, wherever the lines begin.
const LEGEND: f64 = 0.25;

/// Writes `scaling.svg` and `scaling.png`.
pub fn save_scaling(folder: &Path, rows: &[Row]) -> Result<()> {
    save(folder, "scaling", SIZE, |area| draw(area, rows), |area| draw(area, rows)).map(drop)
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, rows: &[Row]) -> Drawn {
    let text = |e: DrawingAreaErrorKind<B::ErrorType>| e.to_string();
    area.fill(&WHITE).map_err(text)?;
    for (panel, scaling) in area.split_evenly((1, 2)).iter().zip(["weak", "strong"]) {
        let of: Vec<&Row> = rows.iter().filter(|row| row.scaling == scaling).collect();
        half(panel, scaling, &of)?;
    }
    Ok(())
}

/// Two curves a case: the whole run, and its communication.
fn half<B: DrawingBackend>(area: &DrawingArea<B, Shift>, scaling: &str, rows: &[&Row]) -> Drawn {
    let text = |e: DrawingAreaErrorKind<B::ErrorType>| e.to_string();
    let times = || {
        let all = |row: &&Row| [row.simulated_s, row.simulated_communication_s, row.model_s, row.model_communication_s];
        rows.iter().flat_map(all).filter(|s| *s > 0.0)
    };
    let (least, most) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let ranks = || rows.iter().map(|row| row.ranks as f64);
    let (first, last) = (ranks().fold(f64::INFINITY, f64::min), ranks().fold(0.0, f64::max));
    if most <= 0.0 {
        return Ok(());
    }
    let bottom = least / 2.0;
    let top = bottom * (most / bottom).powf(1.0 / (1.0 - LEGEND));
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{scaling} scaling, simulated (dots) and by the model (lines)"), (FONT, 22))
        .margin(14)
        .x_label_area_size(56)
        .y_label_area_size(90)
        .build_cartesian_2d((first / 1.2..last * 1.2).log_scale().base(2.0), (bottom..top).log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("ranks")
        .y_desc("seconds")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0e}"))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .label_style((FONT, 18))
        .axis_desc_style((FONT, 20))
        .draw()
        .map_err(text)?;
    for (k, case) in Case::ALL.into_iter().enumerate() {
        let own = || rows.iter().filter(move |row| row.case == case.name());
        for (part, words) in ["", ": communication"].into_iter().enumerate() {
            let of = |row: &Row| match part {
                0 => [row.simulated_s, row.model_s],
                _ => [row.simulated_communication_s, row.model_communication_s],
            };
            let color = COLORS[2 * k + part];
            let points =
                |which: usize| own().map(move |row| (row.ranks as f64, of(row)[which])).filter(|(_, s)| *s > 0.0);
            chart
                .draw_series(LineSeries::new(points(1), color.stroke_width(2)))
                .map_err(text)?
                .label(format!("{}{words}", case.name()))
                .legend(move |(x, y)| Circle::new((x + 8, y), 5, color.filled()));
            chart.draw_series(points(0).map(|point| Circle::new(point, 5, color.filled()))).map_err(text)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 17))
        .draw()
        .map_err(text)
}
