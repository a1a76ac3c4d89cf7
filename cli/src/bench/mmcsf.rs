//! Formats for MTTKRP compared: time of each mode, fibers and bytes, as Tables 7, 5 and 8 of the MM-CSF paper.

use std::collections::BTreeMap;
use std::path::Path;

use sparsimd::generate::TensorSpec;
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Mat, Result, reference};

use super::report::{self, Section};
use super::results::{Case, Results, Sample};
use super::summary::{distinct, geometric_mean};
use super::tensors::{Form, Input, Kept, cuts, empty, factors, race, way};
use super::{Bench, Job, Suite};
use crate::mttkrp::algorithm_name;
use crate::stats::storage;
use crate::timing::timed;

/// Columns of the factors, as in the paper.
const RANK: usize = 32;
/// Nonzeros at most of a generated tensor, in the usual and the short form.
const MOST: [usize; 2] = [4_000_000, 100_000];
/// The paper's tensors, as look-alikes: their shapes with skewed coordinates.
const TENSORS: [&str; 12] = [
    "deli-like",
    "nell1-like",
    "nell2-like",
    "flickr-like",
    "fb-m-like",
    "fb-s-like",
    "darpa-like",
    "uber4d-like",
    "nips4d-like",
    "crime4d-like",
    "flickr4d-like",
    "enron4d-like",
];
/// Those of the short form.
const QUICK: [&str; 4] = ["nell2-like", "darpa-like", "fb-m-like", "uber4d-like"];
/// With the name that the table of sizes has for it; the first one is what the others are compared with.
const FORMATS: [(MttkrpFormat, &str); 9] = [
    (MttkrpFormat::MmCsf, "mmcsf-dyn"),
    (MttkrpFormat::Bcsf, "bcsf-all"),
    (MttkrpFormat::CsfAll, "csf-all"),
    (MttkrpFormat::CsfOne, "csf-one"),
    (MttkrpFormat::Coo, "coo"),
    (MttkrpFormat::HiCoo, "hicoo"),
    (MttkrpFormat::Alto, "alto"),
    (MttkrpFormat::Tiled, "tiled"),
    (MttkrpFormat::Tree, "tree"),
];
/// Names of the figures.
const BYTES: &str = "index bytes";
const FIBERS: &str = "fibers";

/// A tensor in all formats.
struct Stored {
    x: CooTensor<f32>,
    factors: Vec<Mat<f32>>,
    formats: Vec<Format>,
    notes: Vec<String>,
}

/// The tensor in one of them.
struct Format {
    name: &'static str,
    /// Of preparing it.
    seconds: f64,
    prepared: MttkrpTensor<f32>,
    /// Bytes of its indices, and its fibers if it has any.
    figures: BTreeMap<String, f64>,
}

/// A table over tensors and formats.
struct Table {
    title: &'static str,
    text: &'static str,
    /// A format's number, from its samples in all modes.
    value: fn(&[&Sample]) -> Option<f64>,
    digits: usize,
}

/// What the paper's tables have.
const TABLES: [Table; 3] = [
    Table {
        title: "Milliseconds of MTTKRP in all modes (as Table 7)",
        text: "The shortest run of each mode, added up. Every mode runs alone: tree computes the partial products that a \
               sweep would share for each of them anew.",
        value: |modes| Some(modes.iter().map(|s| 1e3 * s.min_s).sum()),
        digits: 2,
    },
    Table {
        title: "Fibers stored, in thousands (as Table 5)",
        text: "Over all trees of a format; formats without fibers have none.",
        value: |modes| modes.first()?.figures.get(FIBERS).map(|fibers| fibers / 1e3),
        digits: 1,
    },
    Table {
        title: "MiB of indices (as Table 8)",
        text: "Values left out: every format has as many.",
        value: |modes| modes.first()?.figures.get(BYTES).map(|bytes| bytes / f64::from(1 << 20)),
        digits: 2,
    },
];

/// The suite.
pub struct MmCsf {
    inputs: Vec<Input>,
    /// Tensor and mode of each job.
    specs: Vec<(usize, usize)>,
    kept: Kept<Stored>,
}

/// Bytes that a tensor takes in all formats at once, copies while they are made included, with factors and results.
fn memory(spec: &TensorSpec) -> f64 {
    let (order, nnz) = (spec.dims.len() as f64, spec.nnz as f64);
    let rows: f64 = spec.dims.iter().map(|&dim| dim as f64).sum();
    // Trees for each mode twice, tiles for each mode, and some copies more; 12 bytes and a value for each node.
    nnz * (3.0 * order + 6.0) * 4.0 * (order + 1.0) + rows * RANK as f64 * 32.0
}

impl MmCsf {
    /// The files below `data`, else look-alikes of the paper's tensors; some of them in the short form.
    ///
    /// # Errors
    /// As [`Input::list`].
    pub fn new(data: Option<&Path>, form: Form) -> Result<Self> {
        let (names, limit) = if form == Form::Quick { (&QUICK[..], QUICK.len()) } else { (&TENSORS[..], usize::MAX) };
        let inputs = Input::list(data, names, form.most(MOST, memory), limit)?;
        // Orders are known before tensors are read only of generated ones: a file's later modes are jobs that turn out empty.
        let order = |input: &Input| match input {
            Input::Made(_, spec, _) => spec.dims.len(),
            Input::File(path) => super::tensors::order_of(path),
        };
        let specs = inputs.iter().map(order).enumerate().flat_map(|(at, order)| (0..order).map(move |m| (at, m)));
        Ok(Self { specs: specs.collect(), inputs, kept: Kept::none() })
    }

    fn id(&self, job: usize) -> String {
        let (input, mode) = self.specs[job];
        format!("MTTKRP {} mode {mode}", self.inputs[input].name())
    }
}

impl Stored {
    fn new(bench: &Bench, input: &Input) -> Result<Self> {
        let cpu = &bench.cpu;
        let x = input.load(cpu)?;
        let factors = factors(cpu, &x, RANK)?;
        let sizes = cpu.install(|| storage(&x))?;
        let mut stored = Self { x, factors, formats: Vec::new(), notes: Vec::new() };
        for (format, name) in FORMATS {
            match timed(|| cpu.prepare_tensor(&stored.x, &TensorOptions::new(RANK).format(format))) {
                Ok((prepared, seconds)) => {
                    let mut figures = BTreeMap::from([(BYTES.to_owned(), prepared.index_bytes() as f64)]);
                    if let Some(fibers) = sizes.iter().find(|size| size.format == name).and_then(|size| size.fibers) {
                        figures.insert(FIBERS.to_owned(), fibers as f64);
                    }
                    stored.formats.push(Format { name, seconds, prepared, figures });
                }
                // Such as places that need more bits than the format has.
                Err(why) => stored.notes.push(format!("{name}: {why}")),
            }
        }
        Ok(stored)
    }
}

impl Suite for MmCsf {
    fn jobs(&self) -> Vec<Job> {
        let job = |(job, &(input, mode)): (usize, &(usize, usize))| {
            // Preparing all formats comes with the first mode.
            let first = if mode == 0 { 12.0 } else { 1.0 };
            Job { id: self.id(job), weight: 1.0 + 1e-6 * first * self.inputs[input].size() }
        };
        self.specs.iter().enumerate().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let (id, (at, mode)) = (self.id(job), self.specs[job]);
        let input = &self.inputs[at];
        let stored = self.kept.get(at, || Stored::new(bench, input))?;
        let (cpu, x) = (&bench.cpu, &stored.x);
        let mut case = empty(&id, &format!("mode {mode}"), &input.name(), x, RANK);
        case.notes.clone_from(&stored.notes);
        case.flops = (x.order() * x.nnz() * RANK) as f64;
        let views: Vec<_> = stored.factors.iter().map(Mat::as_ref).collect();
        let expected = cpu.install(|| reference::mttkrp(x, &views, mode))?;
        let views = &views;
        let mut list = Vec::new();
        for Format { name, seconds, prepared, figures } in &stored.formats {
            let mut out = Mat::zeros(x.dims()[mode], RANK)?;
            cpu.mttkrp(prepared, views, mode, out.as_mut())?;
            let deviation = cpu.install(|| expected.deviation(out.as_ref()))?;
            let run = move || cpu.mttkrp(prepared, views, mode, out.as_mut());
            way(&mut case, &mut list, name, *seconds, deviation, run);
            if let Some(last) = list.last_mut() {
                last.figures.clone_from(figures);
                last.detail = algorithm_name(prepared.algorithm(mode)).to_owned();
            }
        }
        race(bench, &mut case, list)?;
        Ok(case)
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let inputs = distinct(results.cases.iter().map(|case| case.input.as_str()));
        let mut sections = Vec::new();
        for Table { title, text, value, digits } in TABLES {
            let mut rows = Vec::new();
            // By how much each format's number is the first format's, over the tensors that both have.
            let mut ratios = vec![Vec::new(); FORMATS.len()];
            for input in &inputs {
                let cases: Vec<_> = results.cases.iter().filter(|case| case.input == *input).collect();
                let values = FORMATS.map(|(_, name)| {
                    let modes: Vec<_> =
                        cases.iter().filter_map(|case| case.samples.iter().find(|s| s.name == name)).collect();
                    if modes.len() == cases.len() { value(&modes) } else { None }
                });
                for (ratio, other) in ratios.iter_mut().zip(values) {
                    ratio.extend(values[0].zip(other).map(|(first, other)| other / first));
                }
                let cells = values.map(|v| v.map_or("-".to_owned(), |v| format!("{v:.digits$}")));
                rows.push(std::iter::once((*input).to_owned()).chain(cells).collect());
            }
            let means = ratios.into_iter().map(|r| geometric_mean(r).map_or("-".to_owned(), |r| format!("{r:.2} x")));
            rows.push(std::iter::once(format!("by {}'s, mean", FORMATS[0].1)).chain(means).collect());
            let head = std::iter::once("tensor").chain(FORMATS.map(|(_, name)| name)).map(str::to_owned).collect();
            let table = Some((head, rows));
            sections.push(Section {
                title: title.to_owned(),
                text: vec![text.to_owned()],
                table,
                pictures: Vec::new(),
            });
        }
        for mode in distinct(results.cases.iter().map(|case| case.op.as_str())) {
            let cases: Vec<_> = results.cases.iter().filter(|case| case.op == mode).collect();
            let (name, title) = (mode.replace(' ', "-"), format!("MTTKRP, {mode}, rank {RANK}: GFLOP/s"));
            sections.extend(super::picture::speeds(folder, &name, title, "tensor", &cases)?);
        }
        let text = cuts(self.inputs.iter());
        sections.push(Section { title: "Tensors".to_owned(), text, ..Section::default() });
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}
