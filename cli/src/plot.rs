//! What pictures share: the font, one drawing for both file formats, errors, and labels that do not cover each other.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use sparsimd::{Error, Result};

/// The family that text is drawn in: compiled in, since a server may have no fonts.
pub const FONT: &str = "sans-serif";

/// Dark enough to read text in, and told apart by most eyes.
pub const COLORS: [RGBColor; 10] = [
    RGBColor(200, 30, 60),
    RGBColor(20, 120, 40),
    RGBColor(150, 90, 0),
    RGBColor(0, 90, 180),
    RGBColor(120, 30, 150),
    RGBColor(225, 100, 0),
    RGBColor(0, 130, 140),
    RGBColor(90, 60, 40),
    RGBColor(210, 60, 160),
    RGBColor(70, 70, 70),
];

/// What went wrong while drawing, as text: backends have different errors.
pub type Drawn = std::result::Result<(), String>;

/// Pixels of text of `size` per character, on average, a little generous.
const CHARACTER: f64 = 0.52;

/// Draws the same picture to `folder/name.svg` and `folder/name.png`; `draw` gets the drawing area of either.
///
/// # Errors
/// [`Error::Io`] when the folder or a file cannot be written.
pub fn save(
    folder: &Path,
    name: &str,
    size: (u32, u32),
    svg: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn,
    png: impl FnOnce(&DrawingArea<BitMapBackend<'_>, Shift>) -> Drawn,
) -> Result<[PathBuf; 2]> {
    static FONTS: OnceLock<()> = OnceLock::new();
    FONTS.get_or_init(|| {
        // The only error is a malformed font, and then text is missing from the pictures.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    let paths = ["svg", "png"].map(|ending| folder.join(format!("{name}.{ending}")));
    let fail = |path: &Path, detail: String| Error::Io { path: path.to_owned(), source: std::io::Error::other(detail) };
    std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_owned(), source })?;

    {
        let area = SVGBackend::new(&paths[0], size).into_drawing_area();
        svg(&area).and_then(|()| area.present().map_err(|e| e.to_string())).map_err(|e| fail(&paths[0], e))?;
    }
    let mut pixels = vec![0; size.0 as usize * size.1 as usize * 3];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
        png(&area).and_then(|()| area.present().map_err(|e| e.to_string())).map_err(|e| fail(&paths[1], e))?;
    }
    write_png(&paths[1], size, &pixels).map_err(|e| fail(&paths[1], e.to_string()))?;
    Ok(paths)
}

/// Writes red, green and blue bytes as PNG.
fn write_png(path: &Path, (width, height): (u32, u32), pixels: &[u8]) -> std::result::Result<(), png::EncodingError> {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(path)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()
}

/// Places for labels such that none covers another.
#[derive(Debug, Default)]
pub struct Labels {
    taken: Vec<[f64; 4]>,
}

impl Labels {
    /// Keeps labels away from a rectangle: left, top, right, bottom.
    pub fn avoid(&mut self, rectangle: [f64; 4]) {
        self.taken.push(rectangle);
    }

    /// The upper left corner for `text` of `size` near the point (x, y): right of it, left, above or below, and farther
    /// away until there is room inside `bounds`.
    pub fn place(&mut self, (x, y): (f64, f64), text: &str, size: f64, bounds: [f64; 4]) -> (f64, f64) {
        let (width, height) = (text.chars().count() as f64 * size * CHARACTER, size * 1.1);
        let mut best = (x + 10.0, y - height / 2.0);
        'search: for distance in 0..24 {
            let step = f64::from(distance) * height / 2.0;
            for (left, top) in [
                (x + 10.0, y - height / 2.0 - step),
                (x + 10.0, y - height / 2.0 + step),
                (x - 10.0 - width, y - height / 2.0 - step),
                (x - 10.0 - width, y - height / 2.0 + step),
                (x - width / 2.0, y - 10.0 - height - step),
                (x - width / 2.0, y + 10.0 + step),
            ] {
                let own = [left, top, left + width, top + height];
                let inside = own[0] >= bounds[0] && own[1] >= bounds[1] && own[2] <= bounds[2] && own[3] <= bounds[3];
                let free = |other: &[f64; 4]| {
                    own[0] >= other[2] || own[2] <= other[0] || own[1] >= other[3] || own[3] <= other[1]
                };
                if inside && self.taken.iter().all(free) {
                    best = (left, top);
                    break 'search;
                }
            }
        }
        self.avoid([best.0, best.1, best.0 + width, best.1 + height]);
        best
    }
}

#[cfg(test)]
mod tests {
    use super::Labels;

    #[test]
    fn labels_keep_apart_and_inside() {
        let bounds = [0.0, 0.0, 400.0, 300.0];
        let mut labels = Labels::default();
        let places: Vec<_> = (0..6).map(|_| labels.place((200.0, 150.0), "a dozen signs", 20.0, bounds)).collect();
        let (width, height) = (13.0 * 20.0 * 0.52, 22.0);
        for (i, a) in places.iter().enumerate() {
            assert!(a.0 >= 0.0 && a.1 >= 0.0 && a.0 + width <= 400.0 && a.1 + height <= 300.0, "{a:?}");
            for b in &places[..i] {
                let apart = (a.0 - b.0).abs() >= width || (a.1 - b.1).abs() >= height;
                assert!(apart, "{a:?} covers {b:?}");
            }
        }
    }
}
