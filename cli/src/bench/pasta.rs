//! The five operations of the PASTA suite in its two formats, over its synthetic tensors or those in files, against each one's roofline.

use std::path::Path;

use sparsimd::formats::{DEFAULT_BLOCK_BITS, FiberCoo, Fibers, HiCoo};
use sparsimd::generate::{self, TensorSpec};
use sparsimd::ops::{Arithmetic, MttkrpTensor, TtmAlgorithm};
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::reference::{self, Deviation};
use sparsimd::{CooTensor, Mat, Result};
use sparsimd_measure::{Ceilings, TensorCounts, TensorOp, Work};

use super::picture::Bars;
use super::report::{self, Section};
use super::results::{Case, Results};
use super::summary::{distinct, geometric_mean};
use super::tensors::{Form, Input, Kept, cuts, empty, factors, race, way};
use super::{Bench, Job, Suite};
use crate::machine::ceilings;
use crate::timing::timed;

/// Columns of TTM's matrix and of the factors, as in the paper.
const RANK: usize = 16;
/// Nonzeros at most of a generated tensor, in the usual and the short form: what a minute of each tensor's preparing and
/// running allows.
const MOST: [usize; 2] = [8_000_000, 150_000];
/// The tensors of Table II(b).
const TENSORS: [&str; 15] = [
    "regS", "regM", "regL", "irrS", "irrM", "irrL", "regS4d", "regM4d", "regL4d", "irrS4d", "irrM4d", "irrL4d",
    "irr2S4d", "irr2M4d", "irr2L4d",
];
/// Those of the short form.
const QUICK: [&str; 4] = ["regS", "irrS", "regS4d", "irr2S4d"];
/// The operations with their names.
const OPS: [(&str, TensorOp); 5] = [
    ("TEW", TensorOp::Tew),
    ("TS", TensorOp::Ts),
    ("TTV", TensorOp::Ttv),
    ("TTM", TensorOp::Ttm),
    ("MTTKRP", TensorOp::Mttkrp),
];
/// The figures of each sample.
const ROOF: &str = "roofline GFLOP/s";
const SHARE: &str = "share of roofline";

/// The suite.
pub struct Pasta {
    inputs: Vec<Input>,
    kept: Kept<(CooTensor<f32>, TensorCounts)>,
    ceilings: Option<Ceilings>,
}

impl Pasta {
    /// The files below `data`, else the generated tensors of the form: with `full` as large as in the paper.
    ///
    /// # Errors
    /// As [`Input::list`].
    pub fn new(data: Option<&Path>, form: Form) -> Result<Self> {
        let (names, limit) = if form == Form::Quick { (&QUICK[..], QUICK.len()) } else { (&TENSORS[..], usize::MAX) };
        let inputs = Input::list(data, names, form.most(MOST, memory), limit)?;
        Ok(Self { inputs, kept: Kept::none(), ceilings: None })
    }

    fn id(&self, job: usize) -> (usize, &'static str, TensorOp, String) {
        let (input, (name, op)) = (job / OPS.len(), OPS[job % OPS.len()]);
        (input, name, op, format!("{name} {}", self.inputs[input].name()))
    }
}

/// Bytes that the cases of a tensor take at most: its copies, one for each mode; TTM's results of all modes in both formats,
/// and one more in double precision with its bounds; factors and results of MTTKRP.
fn memory(spec: &TensorSpec) -> f64 {
    let (order, nnz) = (spec.dims.len() as f64, spec.nnz as f64);
    let rows: f64 = spec.dims.iter().map(|&dim| dim as f64).sum();
    let entry = 4.0 * (order + 1.0);
    nnz * (entry * (order + 3.0) + RANK as f64 * (8.0 * order + 24.0)) + rows * RANK as f64 * 32.0
}

impl Suite for Pasta {
    fn jobs(&self) -> Vec<Job> {
        let job = |job| {
            let (input, _, op, id) = self.id(job);
            // Sorting by every mode, and the reference.
            let sorted = if matches!(op, TensorOp::Tew | TensorOp::Ts) { 0.2 } else { 3.0 };
            Job { id, weight: 1.0 + 1e-6 * sorted * self.inputs[input].size() }
        };
        (0..self.inputs.len() * OPS.len()).map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let (at, name, op, id) = self.id(job);
        if self.ceilings.is_none() {
            self.ceilings = Some(ceilings(&bench.cpu, false)?.0);
        }
        let input = &self.inputs[at];
        let (x, counts) = self.kept.get(at, || {
            let x = input.load(&bench.cpu)?;
            let counts = bench.cpu.install(|| TensorCounts::of(&x))?;
            Ok((x, counts))
        })?;
        let columns = if matches!(op, TensorOp::Ttm | TensorOp::Mttkrp) { RANK } else { 1 };
        let mut case = empty(&id, name, &input.name(), x, columns);
        match op {
            TensorOp::Tew | TensorOp::Ts => elementwise(bench, x, counts, op, &mut case)?,
            TensorOp::Ttv | TensorOp::Ttm => product(bench, x, counts, op, &mut case)?,
            TensorOp::Mttkrp => mttkrp(bench, x, counts, &mut case)?,
        }
        // Figure 3's roofline: the model's bytes at the bandwidth of main memory.
        let far = self.ceilings.as_ref().and_then(|all| Some((all.levels.last()?.read.all, all.fma_f32.all)));
        let (bandwidth, peak) = far.unwrap_or((0.0, 0.0));
        let flops = case.flops;
        for sample in &mut case.samples {
            let bytes = sample.figures.get("bytes").copied().unwrap_or(case.bytes);
            let roof = peak.min(Work { flops, bytes }.intensity() * bandwidth);
            sample.figures.insert(ROOF.to_owned(), roof);
            sample.figures.insert(SHARE.to_owned(), sample.gflops / roof);
        }
        Ok(case)
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut means = Vec::new();
        let mut pictures = Vec::new();
        for (op, _) in OPS {
            let cases: Vec<_> = results.cases.iter().filter(|case| case.op == op && !case.samples.is_empty()).collect();
            if cases.is_empty() {
                continue;
            }
            let of = |format: &str, figure: &dyn Fn(&super::results::Sample) -> f64| -> Vec<f64> {
                let sample = |case: &&Case| case.samples.iter().find(|s| s.name == format).map_or(0.0, figure);
                cases.iter().map(sample).collect()
            };
            let names = distinct(cases.iter().flat_map(|case| &case.samples).map(|sample| sample.name.as_str()));
            let series: Vec<_> = names.iter().map(|&name| (name.to_owned(), of(name, &|s| s.gflops))).collect();
            for (format, speeds) in &series {
                let shares = of(format, &|s| s.figures.get(SHARE).copied().unwrap_or(0.0));
                let mean = |values: &[f64]| geometric_mean(values.iter().copied().filter(|&v| v > 0.0)).unwrap_or(0.0);
                let row = [format!("{op} in {format}"), cases.len().to_string()]
                    .into_iter()
                    .chain([format!("{:.2}", mean(speeds)), format!("{:.0} %", 100.0 * mean(&shares))]);
                means.push(row.collect());
            }
            let bars = Bars {
                title: format!("{op}: GFLOP/s, and the roofline of main memory"),
                x: "tensor".to_owned(),
                y: "GFLOP/s".to_owned(),
                groups: cases.iter().map(|case| case.input.clone()).collect(),
                series,
                marks: Some(("roofline".to_owned(), of("COO", &|s| s.figures.get(ROOF).copied().unwrap_or(0.0)))),
            };
            let [svg, _] = bars.save(folder, &op.to_lowercase())?;
            pictures.push(Section { title: bars.title.clone(), pictures: vec![svg], ..Section::default() });
        }
        let head = ["operation", "tensors", "GFLOP/s, geometric mean", "of the roofline"].map(str::to_owned).to_vec();
        let mut text = vec![
            "Roofline: the operation's bytes by the paper's model at this machine's measured bandwidth of main memory. What \
             fits a cache can be faster. TTV, TTM and MTTKRP: every mode once; TTM and MTTKRP with 16 columns."
                .to_owned(),
        ];
        text.extend(cuts(self.inputs.iter()));
        let means = Section { title: "Means".to_owned(), text, table: Some((head, means)), pictures: Vec::new() };
        Ok([means].into_iter().chain(pictures).chain([report::table("All cases", results)]).collect())
    }
}

/// TEW (y = x + z) and TS (y = 1.5 x) on the values of either format, which are the same numbers in another order.
fn elementwise(bench: &Bench, x: &CooTensor<f32>, counts: &TensorCounts, op: TensorOp, case: &mut Case) -> Result<()> {
    let cpu = &bench.cpu;
    let work = counts.work::<f32>(op, 0, 1);
    (case.flops, case.bytes) = (work.flops, work.bytes);
    let (blocked, prepare_s) = timed(|| cpu.install(|| HiCoo::new(x, DEFAULT_BLOCK_BITS)))?;
    let z: Vec<f32> = cpu.install(|| generate::uniform_values(x.nnz(), 9));
    let mut results = [vec![0.0f32; x.nnz()], vec![0.0f32; x.nnz()]];
    let mut list = Vec::new();
    let formats = [("COO", x.values(), 0.0), ("HiCOO", blocked.values(), prepare_s)];
    for ((name, values, prepare_s), y) in formats.into_iter().zip(&mut results) {
        let z = &z;
        let run = move |y: &mut [f32]| match op {
            TensorOp::Tew => cpu.tew_values(Arithmetic::Add, values, z, y),
            _ => cpu.ts_values(Arithmetic::Mul, values, 1.5, y),
        };
        run(y)?;
        // One rounding each: the correctly rounded result is the only right one.
        let want = |p: usize| if op == TensorOp::Tew { values[p] + z[p] } else { values[p] * 1.5 };
        let wrong = (0..values.len()).find(|&p| y[p] != want(p));
        let error = wrong.map_or(0.0, |_| f64::INFINITY);
        let deviation = Deviation { error, row: wrong.unwrap_or(0), col: 0 };
        way(case, &mut list, name, prepare_s, deviation, move || run(y));
    }
    if let Some(target) = &bench.tensors {
        let z = (op == TensorOp::Tew).then_some(&z[..]);
        target.elementwise(case, &mut list, "COO", x.values(), z)?;
    }
    race(bench, case, list)
}

/// A tensor in one format, ready for products in one mode.
enum Ready {
    Coo(FiberCoo<f32>),
    HiCoo(HiCoo<f32>),
}

impl Ready {
    fn fibers(&self) -> Result<Fibers<'_, f32>> {
        match self {
            Self::Coo(x) => Ok(x.into()),
            Self::HiCoo(x) => x.fibers(),
        }
    }

    fn places(&self) -> Result<Vec<Vec<u32>>> {
        match self {
            Self::Coo(x) => Ok(x.coords().to_vec()),
            Self::HiCoo(x) => {
                let pattern = x.fiber_pattern()?;
                Ok((0..pattern.modes().len()).map(|level| pattern.expand(level)).collect())
            }
        }
    }
}

/// How a format is made for one mode.
type Make = fn(&CooTensor<f32>, usize) -> Result<Ready>;

/// TTV and TTM in every mode.
fn product(bench: &Bench, x: &CooTensor<f32>, counts: &TensorCounts, op: TensorOp, case: &mut Case) -> Result<()> {
    let cpu = &bench.cpu;
    let columns = case.n;
    for mode in 0..x.order() {
        let work = counts.work::<f32>(op, mode, columns);
        case.flops += work.flops;
        case.bytes += work.bytes;
    }
    let operands = factors(cpu, x, columns)?;
    let mut list = Vec::new();
    let formats: [(&str, Make); 2] = [
        ("COO", |x, mode| FiberCoo::new(x.clone(), mode).map(Ready::Coo)),
        ("HiCOO", |x, mode| HiCoo::with_free_modes(x, DEFAULT_BLOCK_BITS, &[mode]).map(Ready::HiCoo)),
    ];
    for (name, make) in formats {
        let all = || (0..x.order()).map(|mode| make(x, mode)).collect::<Result<Vec<_>>>();
        let (ready, prepare_s) = timed(|| cpu.install(all))?;
        let rows = ready.iter().map(|x| Mat::zeros(x.fibers()?.len(), columns)).collect::<Result<Vec<_>>>();
        let mut results: Vec<Mat<f32>> = rows?;
        let run = {
            let operands = &operands;
            move |ready: &[Ready], results: &mut [Mat<f32>]| {
                ready.iter().zip(operands).zip(results).try_for_each(|((x, u), y)| {
                    let x = x.fibers()?;
                    match op {
                        TensorOp::Ttv => cpu.ttv_into(x, u.as_ref().data(), y.as_mut().into_data()),
                        _ => cpu.ttm_into(x, u.as_ref(), Default::default(), y.as_mut()),
                    }
                })
            }
        };
        run(&ready, &mut results)?;
        let mut worst = Deviation { error: 0.0, row: 0, col: 0 };
        for (mode, ((ready, u), y)) in ready.iter().zip(&operands).zip(&results).enumerate() {
            let places = ready.places()?;
            let found = cpu.install(|| reference::ttm(x, mode, u.as_ref(), &places)?.deviation(y.as_ref()))?;
            if found.error > worst.error {
                worst = found;
            }
        }
        if let Some(target) = &bench.tensors {
            let mut modes = Vec::new();
            for (mode, ready) in ready.iter().enumerate() {
                modes.push((mode, ready.fibers()?, ready.places()?));
            }
            target.product(
                (cpu, x),
                case,
                &mut list,
                (name, (op == TensorOp::Ttm).then_some(TtmAlgorithm::Auto)),
                &modes,
                &operands,
            )?;
        }
        way(case, &mut list, name, prepare_s, worst, move || run(&ready, &mut results));
    }
    race(bench, case, list)
}

/// MTTKRP in every mode.
fn mttkrp(bench: &Bench, x: &CooTensor<f32>, counts: &TensorCounts, case: &mut Case) -> Result<()> {
    let cpu = &bench.cpu;
    for mode in 0..x.order() {
        let work = counts.work::<f32>(TensorOp::Mttkrp, mode, RANK);
        case.flops += work.flops;
        case.bytes += work.bytes;
    }
    let factors = factors(cpu, x, RANK)?;
    let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
    let mut list = Vec::new();
    for (name, format) in [("COO", MttkrpFormat::Coo), ("HiCOO", MttkrpFormat::HiCoo)] {
        let prepared = timed(|| cpu.prepare_tensor(x, &TensorOptions::new(RANK).format(format)));
        let (prepared, prepare_s) = match prepared {
            Ok(prepared) => prepared,
            // Such as places that need more bits than the format has.
            Err(why) => {
                case.notes.push(format!("{name}: {why}"));
                continue;
            }
        };
        let rows = x.dims().iter().map(|&dim| Mat::zeros(dim, RANK)).collect::<Result<Vec<_>>>();
        let mut results: Vec<Mat<f32>> = rows?;
        let views = &views;
        let run = move |prepared: &MttkrpTensor<f32>, results: &mut [Mat<f32>]| {
            let mut modes = results.iter_mut().enumerate();
            modes.try_for_each(|(mode, out)| cpu.mttkrp(prepared, views, mode, out.as_mut()))
        };
        run(&prepared, &mut results)?;
        let mut worst = Deviation { error: 0.0, row: 0, col: 0 };
        for (mode, out) in results.iter().enumerate() {
            let found = cpu.install(|| reference::mttkrp(x, views, mode)?.deviation(out.as_ref()))?;
            if found.error > worst.error {
                worst = found;
            }
        }
        way(case, &mut list, name, prepare_s, worst, move || run(&prepared, &mut results));
        if let (MttkrpFormat::HiCoo, Some(last)) = (format, list.last_mut()) {
            let blocks = cpu.install(|| HiCoo::new(x, DEFAULT_BLOCK_BITS))?.pattern().num_blocks();
            let one = counts.mttkrp_hicoo::<f32>(blocks, 1 << DEFAULT_BLOCK_BITS, RANK);
            last.figures.insert("bytes".to_owned(), one.bytes * x.order() as f64);
        }
    }
    if let Some(target) = &bench.tensors {
        let modes: Vec<usize> = (0..x.order()).collect();
        for format in [("COO", MttkrpFormat::Coo), ("HiCOO", MttkrpFormat::HiCoo), ("CSF", MttkrpFormat::CsfAll)] {
            target.mttkrp((cpu, x), case, &mut list, (format.0, format.1, None), &views, &modes)?;
        }
    }
    race(bench, case, list)
}
