//! What the report of `bench mmcsf` says: the tables and figures of the MM-CSF paper (Nisa and others, SC '19), made of the
//! figures that the samples carry.

use std::path::Path;

use sparsimd::Result;

use super::picture::Bars;
use super::report::Section;
use super::results::{Case, Results, Sample};
use super::summary::{distinct, geometric_mean};

/// Operation of the cases of whole decompositions; those of MTTKRP are called after their mode.
pub const CP: &str = "CP-ALS";
/// The format that others are compared with, the same with static partition, and all nonzeros in one orientation.
pub const MIXED: &str = "mmcsf-dyn";
pub const STATIC: &str = "mmcsf-static";
pub const SINGLE: &str = "leaf mode ";
/// Names of the figures.
pub const BYTES: &str = "index bytes";
pub const FIBERS: &str = "fibers";
pub const OPERATIONS: &str = "operations";
pub const READS: &str = "rows read";
pub const WRITES: &str = "rows written";
pub const MODEL: &str = "model GFLOP/s";
/// Fibers by their length, as in Table 2.
pub const LENGTHS: [(&str, usize); 4] =
    [("fibers to 100", 100), ("fibers to 5000", 5_000), ("fibers to 10000", 10_000), ("fibers over 10000", usize::MAX)];

/// A table over tensors and formats.
struct Table {
    title: &'static str,
    text: &'static str,
    /// Of the cases of whole decompositions rather than of MTTKRP.
    cp: bool,
    /// A format's number, from its samples in all modes.
    value: fn(&[&Sample]) -> Option<f64>,
    digits: usize,
}

/// The sum of a figure over the modes, in millions.
fn millions(modes: &[&Sample], figure: &str) -> Option<f64> {
    modes.iter().map(|s| s.figures.get(figure).map(|x| x / 1e6)).sum()
}

/// What the paper's tables have.
const TABLES: [Table; 8] = [
    Table {
        title: "Milliseconds of MTTKRP in all modes (as Table 7)",
        text: "The shortest run of each mode, added up. Every mode runs alone: tree computes the partial products that a \
               sweep would share for each of them anew.",
        cp: false,
        value: |modes| Some(modes.iter().map(|s| 1e3 * s.min_s).sum()),
        digits: 2,
    },
    Table {
        title: "Milliseconds of an iteration of CP-ALS (as Figure 11)",
        text: "The shortest of some iterations in single precision, all from one first guess.",
        cp: true,
        value: |samples| samples.first().map(|s| 1e3 * s.min_s),
        digits: 2,
    },
    Table {
        title: "Conversion in runs of MTTKRP (as Figure 10)",
        text: "Seconds of making the format from coordinates by seconds of its MTTKRP in all modes.",
        cp: false,
        value: |modes| Some(modes.first()?.prepare_s? / modes.iter().map(|s| s.min_s).sum::<f64>()),
        digits: 1,
    },
    Table {
        title: "Operations in all modes, in millions for each column (as Table 3)",
        text: "Counted by each format's loops on the tensor. A tree whose leaves are the output multiplies the rows above them once a fiber, \
               the paper once a nonzero.",
        cp: false,
        value: |modes| millions(modes, OPERATIONS),
        digits: 2,
    },
    Table {
        title: "Rows of factors read in all modes, in millions (as Table 3)",
        text: "Partial products included.",
        cp: false,
        value: |modes| millions(modes, READS),
        digits: 2,
    },
    Table {
        title: "Rows of outputs changed in all modes, in millions (as Table 3)",
        text: "Partial products included. Sums of slices, fibers or runs of nonzeros change a row once.",
        cp: false,
        value: |modes| millions(modes, WRITES),
        digits: 2,
    },
    Table {
        title: "Fibers stored, in thousands (as Table 5)",
        text: "Over all trees of a format; formats without fibers have none.",
        cp: false,
        value: |modes| modes.first()?.figures.get(FIBERS).map(|fibers| fibers / 1e3),
        digits: 1,
    },
    Table {
        title: "MiB of indices (as Table 8)",
        text: "Values left out: every format has as many.",
        cp: false,
        value: |modes| modes.first()?.figures.get(BYTES).map(|bytes| bytes / f64::from(1 << 20)),
        digits: 2,
    },
];

/// The cases of a tensor: those of MTTKRP, or those of decompositions.
fn cases_of<'a>(results: &'a Results, input: &str, cp: bool) -> Vec<&'a Case> {
    results.cases.iter().filter(|case| case.input == input && (case.op == CP) == cp).collect()
}

/// The samples of a format in all cases; none where one lacks it.
fn samples<'a>(cases: &[&'a Case], name: &str) -> Option<Vec<&'a Sample>> {
    let all = cases.iter().map(|case| case.samples.iter().find(|s| s.name == name)).collect::<Option<Vec<_>>>();
    all.filter(|all| !all.is_empty())
}

/// Operations of all modes by the time that they take together, in GFLOP/s.
fn speed(cases: &[&Case], modes: &[&Sample]) -> f64 {
    let flops: f64 = cases.iter().map(|case| case.flops).sum();
    flops / modes.iter().map(|s| s.min_s).sum::<f64>() / 1e9
}

/// The tables over `formats`, the first of which is what the others are compared with, and the figures.
pub fn sections(results: &Results, formats: &[&str], folder: &Path) -> Result<Vec<Section>> {
    let inputs = distinct(results.cases.iter().map(|case| case.input.as_str()));
    let mut sections: Vec<_> = TABLES.iter().filter_map(|table| table.section(results, formats, &inputs)).collect();
    sections.extend(lengths(results, &inputs));
    sections.extend(single_against_mixed(results, &inputs, folder)?);
    sections.extend(achieved(results, &inputs, folder)?);
    Ok(sections)
}

impl Table {
    /// Nothing where there are no such cases.
    fn section(&self, results: &Results, formats: &[&str], inputs: &[&str]) -> Option<Section> {
        let digits = self.digits;
        let mut rows = Vec::new();
        // By how much each format's number is the first format's, over the tensors that both have.
        let mut ratios = vec![Vec::new(); formats.len()];
        for input in inputs {
            let cases = cases_of(results, input, self.cp);
            if cases.is_empty() {
                continue;
            }
            let value = |name: &&str| samples(&cases, name).and_then(|modes| (self.value)(&modes));
            let values: Vec<Option<f64>> = formats.iter().map(value).collect();
            for (ratio, other) in ratios.iter_mut().zip(&values) {
                ratio.extend(
                    values[0].zip(*other).filter(|&(first, _)| first > 0.0).map(|(first, other)| other / first),
                );
            }
            let cells = values.iter().map(|v| v.map_or("-".to_owned(), |v| format!("{v:.digits$}")));
            rows.push(std::iter::once((*input).to_owned()).chain(cells).collect());
        }
        if rows.is_empty() {
            return None;
        }
        let means = ratios.into_iter().map(|r| geometric_mean(r).map_or("-".to_owned(), |r| format!("{r:.2} x")));
        rows.push(std::iter::once(format!("by {}'s, mean", formats[0])).chain(means).collect());
        let head = std::iter::once("tensor").chain(formats.iter().copied()).map(str::to_owned).collect();
        let text = vec![self.text.to_owned()];
        Some(Section { title: self.title.to_owned(), text, table: Some((head, rows)), pictures: Vec::new() })
    }
}

/// Orientations of a tensor, and their mixture: the names of their samples.
fn orientations(cases: &[&Case]) -> Vec<String> {
    let order = cases.iter().map(|case| case.dims.len()).max().unwrap_or(0);
    (0..order).map(|mode| format!("{SINGLE}{mode}")).chain([STATIC.to_owned(), MIXED.to_owned()]).collect()
}

/// Table 2.
fn lengths(results: &Results, inputs: &[&str]) -> Option<Section> {
    let mut rows = Vec::new();
    for input in inputs {
        let cases = cases_of(results, input, false);
        for name in orientations(&cases) {
            let Some(sample) = samples(&cases, &name).and_then(|modes| modes.first().copied()) else { continue };
            let counts = LENGTHS.map(|(figure, _)| sample.figures.get(figure).map_or("-".to_owned(), f64::to_string));
            rows.push([(*input).to_owned(), name].into_iter().chain(counts).collect());
        }
    }
    let head = ["tensor", "orientation"].into_iter().chain(LENGTHS.map(|(figure, _)| figure));
    let text = "Nonzeros of a fiber when all nonzeros are in the orientation with one mode at the leaves, and when they are parted over \
                all of them. CSF-one takes the one of the longest mode.";
    (!rows.is_empty()).then(|| Section {
        title: "Fibers by their length (as Table 2)".to_owned(),
        text: vec![text.to_owned()],
        table: Some((head.map(str::to_owned).collect(), rows)),
        pictures: Vec::new(),
    })
}

/// Figure 6.
fn single_against_mixed(results: &Results, inputs: &[&str], folder: &Path) -> Result<Option<Section>> {
    let all: Vec<_> = inputs.iter().map(|input| cases_of(results, input, false)).collect();
    let mut names: Vec<String> = all.iter().flat_map(|cases| orientations(cases)).collect();
    // The orientations of the tensor with most modes, then the mixtures.
    names.sort_by_key(|name| (!name.starts_with(SINGLE), name == MIXED, name.clone()));
    names.dedup();
    let of = |name: &str| {
        all.iter().map(|cases| samples(cases, name).map_or(0.0, |modes| speed(cases, &modes))).collect::<Vec<f64>>()
    };
    let series: Vec<_> = names.iter().map(|name| (name.clone(), of(name))).collect();
    if series.iter().all(|(_, values)| values.iter().all(|&v| v == 0.0)) {
        return Ok(None);
    }
    let bars = Bars {
        title: "MTTKRP in all modes: one orientation against mixed modes (as Figure 6)".to_owned(),
        x: "tensor".to_owned(),
        y: "GFLOP/s".to_owned(),
        groups: inputs.iter().map(|&input| input.to_owned()).collect(),
        series,
        marks: None,
    };
    let [svg, _] = bars.save(folder, "single-against-mixed")?;
    Ok(Some(Section { title: bars.title, pictures: vec![svg], ..Section::default() }))
}

/// Figure 8.
fn achieved(results: &Results, inputs: &[&str], folder: &Path) -> Result<Option<Section>> {
    let mut groups = Vec::new();
    let (mut speeds, mut models) = (Vec::new(), Vec::new());
    for input in inputs {
        let cases = cases_of(results, input, false);
        let Some(modes) = samples(&cases, MIXED) else { continue };
        // The times that the model allows, added up.
        let time = |(case, sample): (&&Case, &&Sample)| Some(case.flops / sample.figures.get(MODEL)?);
        let Some(model) = cases.iter().zip(&modes).map(time).sum::<Option<f64>>() else { continue };
        groups.push((*input).to_owned());
        speeds.push(speed(&cases, &modes));
        models.push(cases.iter().map(|case| case.flops).sum::<f64>() / model);
    }
    if groups.is_empty() {
        return Ok(None);
    }
    let row = |at: usize| {
        let (speed, model) = (speeds[at], models[at]);
        vec![
            groups[at].clone(),
            format!("{speed:.1}"),
            format!("{model:.1}"),
            format!("{:.0} %", 100.0 * speed / model),
        ]
    };
    let rows = (0..groups.len()).map(row).collect();
    let head = ["tensor", "GFLOP/s", "model", "of the model"].map(str::to_owned).to_vec();
    let bars = Bars {
        title: format!("{MIXED} in all modes: achieved against the model (as Figure 8)"),
        x: "tensor".to_owned(),
        y: "GFLOP/s".to_owned(),
        groups,
        series: vec![(MIXED.to_owned(), speeds)],
        marks: Some(("model".to_owned(), models)),
    };
    let [svg, _] = bars.save(folder, "achieved")?;
    let text = "Model: the operations of coordinates, as everywhere here, in the time that the format's indices and values and the rows \
                that it reads and changes take at the measured bandwidth of main memory. Rows that caches still hold make it faster.";
    Ok(Some(Section { title: bars.title, text: vec![text.to_owned()], table: Some((head, rows)), pictures: vec![svg] }))
}
