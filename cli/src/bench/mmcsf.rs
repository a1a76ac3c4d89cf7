//! Formats for MTTKRP compared in every mode and in CP-ALS: the tables and figures of the MM-CSF paper.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use sparsimd::decomp::{CpInit, CpOptions};
use sparsimd::formats::{MmCsf as Parts, MmCsfStrategy};
use sparsimd::generate::TensorSpec;
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{CooTensor, Mat, Result, reference};
use sparsimd_measure::{Ceilings, Work};

use super::cp::{ITERATIONS, SAME_FIT, Times};
use super::economics::{self, BYTES, CP, FIBERS, LENGTHS, MIXED, MODEL, OPERATIONS, READS, SINGLE, STATIC, WRITES};
use super::report::{self, Section};
use super::results::{Case, Results};
use super::summary::distinct;
use super::tensors::{Form, Input, Kept, cuts, empty, factors, race, way};
use super::{Bench, Job, Suite};
use crate::machine::ceilings;
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
    (MttkrpFormat::MmCsf, MIXED),
    (MttkrpFormat::Bcsf, "bcsf-all"),
    (MttkrpFormat::CsfAll, "csf-all"),
    (MttkrpFormat::CsfOne, "csf-one"),
    (MttkrpFormat::Coo, "coo"),
    (MttkrpFormat::HiCoo, "hicoo"),
    (MttkrpFormat::Alto, "alto"),
    (MttkrpFormat::Tiled, "tiled"),
    (MttkrpFormat::Tree, "tree"),
];

/// A tensor in all formats.
struct Stored {
    x: CooTensor<f32>,
    factors: Vec<Mat<f32>>,
    formats: Vec<Format>,
    notes: Vec<String>,
}

/// The tensor in one of them.
struct Format {
    name: String,
    /// Of preparing it.
    seconds: f64,
    prepared: MttkrpTensor<f32>,
    /// Bytes of its indices, and its fibers if it has any; their lengths where it is parted over orientations.
    figures: BTreeMap<String, f64>,
}

/// Added to the diagonal of the least squares systems, whose columns have length 1: a mode shorter than the rank makes them singular, and then
/// fits in single precision have nothing in common.
const RIDGE: f64 = 0.1;

/// The suite.
pub struct MmCsf {
    inputs: Vec<Input>,
    /// Tensor and mode of each job; without a mode, the whole decomposition.
    specs: Vec<(usize, Option<usize>)>,
    kept: Kept<Stored>,
    ceilings: Option<Ceilings>,
}

/// Bytes that a tensor takes in all formats at once, copies while they are made included, with factors and results.
fn memory(spec: &TensorSpec) -> f64 {
    let (order, nnz) = (spec.dims.len() as f64, spec.nnz as f64);
    let rows: f64 = spec.dims.iter().map(|&dim| dim as f64).sum();
    // Trees for each mode three times, tiles for each mode, and some copies more; 12 bytes and a value for each node.
    nnz * (4.0 * order + 6.0) * 4.0 * (order + 1.0) + rows * RANK as f64 * 32.0
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
        let specs = inputs.iter().map(order).enumerate().flat_map(|(at, order)| {
            let whole = (order > 1).then_some((at, None));
            (0..order).map(move |m| (at, Some(m))).chain(whole)
        });
        Ok(Self { specs: specs.collect(), inputs, kept: Kept::none(), ceilings: None })
    }

    fn id(&self, job: usize) -> String {
        let (input, mode) = self.specs[job];
        let name = self.inputs[input].name();
        mode.map_or_else(|| format!("{CP} {name}"), |mode| format!("MTTKRP {name} mode {mode}"))
    }
}

impl Stored {
    fn new(bench: &Bench, input: &Input) -> Result<Self> {
        let cpu = &bench.cpu;
        let x = input.load(cpu)?;
        let factors = factors(cpu, &x, RANK)?;
        let sizes = cpu.install(|| storage(&x))?;
        let mut stored = Self { x, factors, formats: Vec::new(), notes: Vec::new() };
        let options = TensorOptions::new(RANK);
        let mut all = FORMATS.map(|(format, name)| (name.to_owned(), options.format(format))).to_vec();
        if stored.x.order() > 1 {
            let parted = |name: String, strategy| (name, options.format(MttkrpFormat::MmCsf).partition(strategy));
            all.push(parted(STATIC.to_owned(), MmCsfStrategy::Static));
            all.extend(
                (0..stored.x.order()).map(|leaf| parted(format!("{SINGLE}{leaf}"), MmCsfStrategy::Single(leaf))),
            );
        }
        for (name, options) in all {
            match timed(|| cpu.prepare_tensor(&stored.x, &options)) {
                Ok((prepared, seconds)) => {
                    let mut figures = BTreeMap::from([(BYTES.to_owned(), prepared.index_bytes() as f64)]);
                    let parted = if name == MIXED { Some(MmCsfStrategy::Dynamic) } else { strategy_of(&name) };
                    if let Some(strategy) = parted.filter(|_| stored.x.order() > 1) {
                        let parts = cpu.install(|| Parts::from_coo(&stored.x, strategy))?;
                        figures.extend(lengths(&parts));
                    }
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

/// The partition of a contender that is not among the formats.
fn strategy_of(name: &str) -> Option<MmCsfStrategy> {
    if name == STATIC {
        return Some(MmCsfStrategy::Static);
    }
    name.strip_prefix(SINGLE).and_then(|leaf| leaf.parse().ok()).map(MmCsfStrategy::Single)
}

/// Fibers by their length.
fn lengths(parts: &Parts<f32>) -> BTreeMap<String, f64> {
    let mut counts: BTreeMap<String, f64> = LENGTHS.map(|(name, _)| (name.to_owned(), 0.0)).into();
    for tree in parts.trees() {
        let pattern = tree.pattern();
        for fiber in pattern.ptr(pattern.order() - 2).windows(2) {
            let bin = LENGTHS.iter().find(|&&(_, most)| fiber[1] - fiber[0] <= most);
            if let Some(count) = bin.and_then(|&(name, _)| counts.get_mut(name)) {
                *count += 1.0;
            }
        }
    }
    counts
}

/// Some iterations of CP-ALS in every format, from one first guess.
fn decompositions(bench: &Bench, stored: &Stored, case: &mut Case) -> Result<()> {
    let (order, nnz) = (stored.x.order(), stored.x.nnz());
    // MTTKRP in every mode.
    case.flops = (order * order * nnz * RANK) as f64;
    // From 0 to 1, so that no component begins orthogonal to the data.
    let positive = |f: &Mat<f32>| Mat::from_fn(f.rows(), RANK, |i, r| f.row(i)[r] + 0.5);
    let mut options = CpOptions::new(RANK);
    (options.iterations, options.tolerance, options.ridge) = (ITERATIONS, 0.0, RIDGE);
    options.init = CpInit::Factors(stored.factors.iter().map(positive).collect::<Result<_>>()?);
    let mut first: Option<f64> = None;
    for Format { name, seconds, prepared, .. } in &stored.formats {
        let mut times = Times::default();
        let (mut iterations, mut mttkrp) = (Vec::new(), Vec::new());
        let state = bench.cpu.cp_als(prepared, &options, |_, iteration| {
            iterations.push(iteration.time.as_secs_f64());
            mttkrp.push(iteration.mttkrp.as_secs_f64());
            ControlFlow::Continue(())
        })?;
        times.add(&iterations, &mttkrp, state.fit());
        // Another order of the modes is another path to the same end.
        let fit = state.fit();
        if prepared.sweep_order().is_sorted() && (fit - *first.get_or_insert(fit)).abs() > SAME_FIT[1] {
            case.wrong = true;
            case.notes.push(format!("{name}: a fit of {fit} instead of {first:?}"));
            continue;
        }
        let mut sample = times.sample(name, true, case.flops);
        sample.prepare_s = Some(*seconds);
        case.samples.push(sample);
    }
    Ok(())
}

impl Suite for MmCsf {
    fn jobs(&self) -> Vec<Job> {
        let job = |(job, &(input, mode)): (usize, &(usize, Option<usize>))| {
            // Preparing all formats comes with the first mode; a decomposition takes three iterations of all modes.
            let parts = match mode {
                Some(0) => 16.0,
                Some(_) => 1.0,
                None => 6.0,
            };
            Job { id: self.id(job), weight: 1.0 + 1e-6 * parts * self.inputs[input].size() }
        };
        self.specs.iter().enumerate().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let (id, (at, mode)) = (self.id(job), self.specs[job]);
        let input = &self.inputs[at];
        if self.ceilings.is_none() {
            self.ceilings = Some(ceilings(&bench.cpu, false)?.0);
        }
        let far = self.ceilings.as_ref().and_then(|all| Some((all.levels.last()?.read.all, all.fma_f32.all)));
        let (bandwidth, peak) = far.unwrap_or((0.0, 0.0));
        let stored = self.kept.get(at, || Stored::new(bench, input))?;
        let (cpu, x) = (&bench.cpu, &stored.x);
        let op = mode.map_or(CP.to_owned(), |mode| format!("mode {mode}"));
        let mut case = empty(&id, &op, &input.name(), x, RANK);
        case.notes.clone_from(&stored.notes);
        let Some(mode) = mode else {
            decompositions(bench, stored, &mut case)?;
            return Ok(case);
        };
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
                let counts = cpu.install(|| prepared.counts(mode));
                let work = Work::mttkrp::<f32>(x.order(), x.nnz(), &counts, RANK);
                last.figures.extend([
                    (OPERATIONS.to_owned(), counts.operations as f64),
                    (READS.to_owned(), counts.reads as f64),
                    (WRITES.to_owned(), counts.writes as f64),
                    (MODEL.to_owned(), peak.min(work.intensity() * bandwidth)),
                ]);
                last.detail = algorithm_name(prepared.algorithm(mode)).to_owned();
            }
        }
        if let Some(target) = &bench.tensors {
            for format in [MttkrpFormat::Coo, MttkrpFormat::CsfAll, MttkrpFormat::MmCsf, MttkrpFormat::HiCoo] {
                target.mttkrp((cpu, x), &mut case, &mut list, (format.name(), format, None), views, &[mode])?;
            }
        }
        race(bench, &mut case, list)?;
        Ok(case)
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut sections = economics::sections(results, &FORMATS.map(|(_, name)| name), folder)?;
        for op in distinct(results.cases.iter().map(|case| case.op.as_str())) {
            let cases: Vec<_> = results.cases.iter().filter(|case| case.op == op).collect();
            let what = if op == CP { "CP-ALS, whole iterations".to_owned() } else { format!("MTTKRP, {op}") };
            let (name, title) = (op.replace(' ', "-").to_lowercase(), format!("{what}, rank {RANK}: GFLOP/s"));
            sections.extend(super::picture::speeds(folder, &name, title, "tensor", &cases)?);
        }
        let text = cuts(self.inputs.iter());
        sections.push(Section { title: "Tensors".to_owned(), text, ..Section::default() });
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}
