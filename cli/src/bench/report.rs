//! report.html: one file with everything in it.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use sparsimd::io::write_atomically;
use sparsimd::{Error, Result};

use super::results::{Case, Results};
use super::summary::PEAK;

/// A part of the report.
#[derive(Default)]
pub struct Section {
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// The head and the rows.
    pub table: Option<(Vec<String>, Vec<Vec<String>>)>,
    /// SVG files, which are copied into the report.
    pub pictures: Vec<PathBuf>,
}

/// How we compare, a line for each operation and peer.
pub fn summary(results: &Results) -> Section {
    let head = ["operation", "against", "cases", "geometric mean", "least", "in", "greatest"];
    let row = |r: &super::results::Ratio| {
        let number = |x: f64| if r.against == PEAK { format!("{:.1} %", 100.0 * x) } else { format!("{x:.2} x") };
        vec![
            r.op.clone(),
            r.against.clone(),
            r.cases.to_string(),
            number(r.mean),
            number(r.min),
            r.min_case.clone(),
            number(r.max),
        ]
    };
    Section {
        title: "How we compare".to_owned(),
        text: vec![
            "Their shortest time by ours, over all cases that both did; above 1 we are faster. Against the FMA peak: our share \
             of the rate of fused multiply-adds that the same threads reached just before each case."
                .to_owned(),
        ],
        table: Some((head.map(str::to_owned).to_vec(), results.summary.iter().map(row).collect())),
        ..Section::default()
    }
}

/// Every contender of every case.
pub fn table(title: &str, results: &Results) -> Section {
    let figures = super::summary::distinct(
        results.cases.iter().flat_map(|c| &c.samples).flat_map(|s| s.figures.keys().map(String::as_str)),
    );
    let mut head: Vec<String> = [
        "case",
        "nonzeros",
        "contender",
        "GFLOP/s",
        "of peak",
        "min ms",
        "median ms",
        "cold ms",
        "prepare ms",
        "pays after",
        "error",
        "how",
    ]
    .map(str::to_owned)
    .to_vec();
    head.extend(figures.iter().map(|&name| name.to_owned()));
    let ms = |seconds: f64| format!("{:.3}", 1e3 * seconds);
    let mut rows = Vec::new();
    for case in &results.cases {
        for sample in &case.samples {
            let mut row = vec![
                case.id.clone(),
                case.nnz.to_string(),
                sample.name.clone(),
                format!("{:.1}", sample.gflops),
                if case.peak_gflops > 0.0 {
                    format!("{:.1} %", 100.0 * sample.gflops / case.peak_gflops)
                } else {
                    String::new()
                },
                ms(sample.min_s),
                ms(sample.median_s),
                ms(sample.cold_s),
                sample.prepare_s.map_or(String::new(), ms),
                if sample.ours { pays_after(case) } else { String::new() },
                sample.error.map_or(String::new(), |error| format!("{error:.3}")),
                sample.detail.clone(),
            ];
            let figure = |name: &&str| sample.figures.get(*name).map_or(String::new(), |value| format!("{value:.4}"));
            row.extend(figures.iter().map(figure));
            rows.push(row);
        }
    }
    let notes = results.cases.iter().flat_map(|case| case.notes.iter().map(move |note| format!("{}: {note}", case.id)));
    Section { title: title.to_owned(), text: notes.collect(), table: Some((head, rows)), pictures: Vec::new() }
}

/// Calls after which our preparation has paid against the fastest peer.
fn pays_after(case: &Case) -> String {
    let (Some(ours), Some(peer)) = (case.ours(), case.peers().map(|peer| peer.min_s).min_by(f64::total_cmp)) else {
        return String::new();
    };
    match ours.prepare_s {
        Some(prepare_s) if peer > ours.min_s => format!("{:.0}", (prepare_s / (peer - ours.min_s)).ceil()),
        Some(_) => "never".to_owned(),
        None => String::new(),
    }
}

/// Writes report.html into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub fn write(folder: &Path, results: &Results, sections: &[Section]) -> Result<PathBuf> {
    let settings = &results.settings;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>sparsimd bench {0}</title>\n<style>\
         body{{font:15px/1.45 sans-serif;margin:2em auto;max-width:100em;padding:0 1em}}\
         table{{border-collapse:collapse;font-size:13px}}td,th{{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:left;\
         white-space:nowrap}}th{{border-bottom:2px solid #888}}td{{font-variant-numeric:tabular-nums}}\
         .wide{{overflow-x:auto}}svg{{max-width:100%;height:auto}}</style></head><body>\n\
         <h1>sparsimd bench {0}{1}</h1>\n",
        escaped(&settings.suite),
        match (settings.quick, settings.full) {
            (true, _) => ", short form",
            (_, true) => ", tensors of the papers' sizes",
            _ => "",
        },
    );
    let mut facts = vec![
        format!("{}, {} thread(s), {}, {}", settings.processor, settings.threads, settings.simd, settings.dtype),
        format!("sparsimd {}", settings.program),
    ];
    // The tensor suites' devices say themselves what is timed.
    let tensors = ["pasta", "mmcsf", "sycl"].contains(&settings.suite.as_str());
    let times = if tensors { "" } else { ": times of kernels, by the device's clock" };
    facts.extend(settings.device.iter().map(|device| format!("on {device}{times}")));
    facts.extend(settings.peers.iter().map(|(name, detail)| format!("{name}: {detail}")));
    facts.extend(results.absent.iter().map(|absent| format!("not compared with {absent}")));
    facts.push(format!("{} of {} cases", results.cases.len(), results.planned.max(results.cases.len())));
    let wrong = results.cases.iter().filter(|case| case.wrong).count();
    if wrong > 0 {
        facts.push(format!("{wrong} of our results are WRONG and were not timed"));
    }
    page.push_str("<ul>\n");
    for fact in facts {
        let _ = writeln!(page, "<li>{}</li>", escaped(&fact));
    }
    let _ = writeln!(
        page,
        "<li>written <script>document.write(new Date({}).toISOString())</script></li>\n</ul>",
        1000 * results.written
    );
    for section in sections {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(&section.title));
        for paragraph in &section.text {
            let _ = writeln!(page, "<p>{}</p>", escaped(paragraph));
        }
        for picture in &section.pictures {
            let read = std::fs::read_to_string(picture);
            let svg = read.map_err(|source| Error::Io { path: picture.clone(), source })?;
            // Inside HTML an SVG needs no declaration of its own.
            let _ = writeln!(page, "<div class=\"wide\">{}</div>", &svg[svg.find("<svg").unwrap_or(0)..]);
        }
        if let Some((head, rows)) = &section.table {
            let cells = |tag: &str, cells: &[String]| {
                let cells: Vec<_> = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
                format!("<tr>{}</tr>\n", cells.concat())
            };
            let _ = write!(page, "<div class=\"wide\"><table>\n{}", cells("th", head));
            for row in rows {
                page.push_str(&cells("td", row));
            }
            page.push_str("</table></div>\n");
        }
    }
    page.push_str("</body></html>\n");
    let path = folder.join("report.html");
    write_atomically(&path, |file| file.write_all(page.as_bytes()))?;
    Ok(path)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
