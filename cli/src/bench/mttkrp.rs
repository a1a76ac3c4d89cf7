//! MTTKRP in all modes, one after the other from the same factors, beside other libraries' own.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use sparsimd::decomp::{CpInit, CpOptions};
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::TensorOptions;
use sparsimd::{CooTensor, Mat, Result, Scalar, generate, reference};

use super::cp::{SAME_FIT, fastest_method};
use super::package::Package;
use super::report::{self, Section};
use super::results::{Case, Results, Sample};
use super::tensors::{Input, Most, cuts, empty};
use super::{Bench, Job, Suite};
use crate::timing::{seconds, timed};

/// Columns of the factors.
const RANK: usize = 32;
/// Nonzeros at most of a generated tensor, in the full and the short form: packages without threads of their own take seconds.
const MOST: [usize; 2] = [1_000_000, 50_000];
/// Fibers of hardly more than one nonzero, and look-alikes of real tensors with longer ones.
const TENSORS: [&str; 6] = ["skew3d", "skew4d", "darpa-like", "fb-m-like", "uber4d-like", "enron4d-like"];
/// Those of the short form.
const QUICK: [&str; 2] = ["skew3d", "uber4d-like"];
/// Turns of each contender, and sweeps of a turn; a peer whose sweep takes longer than this many seconds does one in a turn.
const TURNS: usize = 3;
const SWEEPS: usize = 3;
const LONG: f64 = 2.0;
/// Names of contenders.
const OURS: [&str; 2] = ["ours", "ours, f32"];
const GENTEN: &str = "GenTen";
const THEIRS: [&str; 3] = [GENTEN, "pyttb", "tensorly"];

/// The suite.
pub struct Mttkrp {
    inputs: Vec<Input>,
}

/// A tensor laid out for our MTTKRP.
struct Ours<T> {
    prepared: MttkrpTensor<T>,
    factors: Vec<Mat<T>>,
    products: Vec<Mat<T>>,
    prepare_s: f64,
    /// Largest error, in units of its bound.
    error: f64,
    /// Of each sweep.
    seconds: Vec<f64>,
}

/// A package that has the tensor, and what it took.
struct Theirs<'a> {
    package: std::cell::RefMut<'a, Package>,
    error: f64,
    sweeps: usize,
    seconds: Vec<f64>,
}

impl Mttkrp {
    /// The files below `data`, else generated tensors; some of them in the short form.
    ///
    /// # Errors
    /// As [`Input::list`].
    pub fn new(data: Option<&Path>, quick: bool) -> Result<Self> {
        let (names, limit) = if quick { (&QUICK[..], QUICK.len()) } else { (&TENSORS[..], usize::MAX) };
        Ok(Self { inputs: Input::list(data, names, Most::Nonzeros(MOST[usize::from(quick)]), limit)? })
    }
}

fn id(input: &Input) -> String {
    format!("MTTKRP {}", input.name())
}

/// A sample from the seconds of sweeps, of which there is one at least.
fn sample(name: &str, ours: bool, detail: String, flops: f64, mut seconds: Vec<f64>) -> Sample {
    let cold_s = seconds[0];
    seconds.sort_by(f64::total_cmp);
    Sample {
        name: name.to_owned(),
        ours,
        detail,
        prepare_s: None,
        min_s: seconds[0],
        median_s: seconds[seconds.len() / 2],
        cold_s,
        runs: seconds.len(),
        gflops: flops / seconds[0] / 1e9,
        error: None,
        figures: BTreeMap::new(),
    }
}

impl<T: Scalar> Ours<T> {
    fn new(bench: &Bench, x: &CooTensor<T>) -> Result<Self> {
        let cpu = &bench.cpu;
        // From 0 to 1, so that no component is orthogonal to the data where decompositions begin from these.
        let factor = |(mode, &rows): (usize, &usize)| {
            let uniform = generate::uniform_dense::<T>(rows, RANK, 1 + mode as u64)?;
            Mat::from_fn(rows, RANK, |i, r| uniform.row(i)[r] + T::from_f64(0.5))
        };
        let factors: Vec<Mat<T>> = cpu.install(|| x.dims().iter().enumerate().map(factor).collect::<Result<_>>())?;
        let products = x.dims().iter().map(|&dim| Mat::zeros(dim, RANK)).collect::<Result<_>>()?;
        let (prepared, prepare_s) = timed(|| cpu.prepare_tensor(x, &TensorOptions::new(RANK)))?;
        let mut ours = Self { prepared, factors, products, prepare_s, error: 0.0, seconds: Vec::new() };
        ours.sweep(bench)?;
        for mode in 0..x.order() {
            ours.error = ours.error.max(deviation(bench, x, &ours.factors, mode, &ours.products[mode])?);
        }
        Ok(ours)
    }

    /// All modes.
    fn sweep(&mut self, bench: &Bench) -> Result<()> {
        let views: Vec<_> = self.factors.iter().map(Mat::as_ref).collect();
        let mut modes = self.products.iter_mut().enumerate();
        modes.try_for_each(|(mode, out)| bench.cpu.mttkrp(&self.prepared, &views, mode, out.as_mut()))
    }

    fn turn(&mut self, bench: &Bench) -> Result<()> {
        for _ in 0..SWEEPS {
            let spent = seconds(|| self.sweep(bench))?;
            self.seconds.push(spent);
        }
        Ok(())
    }

    fn sample(self, name: &str, flops: f64) -> Sample {
        let detail = self.prepared.plan().format().to_string();
        Sample {
            prepare_s: Some(self.prepare_s),
            error: Some(self.error),
            ..sample(name, true, detail, flops, self.seconds)
        }
    }
}

/// How far a product is from the reference, in units of the bound.
fn deviation<T: Scalar>(bench: &Bench, x: &CooTensor<T>, factors: &[Mat<T>], mode: usize, out: &Mat<T>) -> Result<f64> {
    let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
    let compare = || reference::mttkrp(x, &views, mode).and_then(|want| want.deviation(out.as_ref()));
    bench.cpu.install(compare).map(|deviation| deviation.error)
}

/// Has `package` take the tensor, and verifies its product in every mode; or why it is left out.
fn verified<'a>(
    bench: &'a Bench,
    package: &'a std::cell::RefCell<Package>,
    x: &CooTensor<f64>,
    factors: &[Mat<f64>],
) -> Result<std::result::Result<Theirs<'a>, String>> {
    let mut package = package.borrow_mut();
    if let Err(why) = package.load(x, factors, RANK) {
        return Ok(Err(format!("{}: {why}", package.name)));
    }
    let mut worst: f64 = 0.0;
    for mode in 0..x.order() {
        match package.product(mode, x.dims()[mode], RANK) {
            Ok(product) => worst = worst.max(deviation(bench, x, factors, mode, &product)?),
            Err(why) => return Ok(Err(format!("{}: {why}", package.name))),
        }
    }
    if worst > 1.0 {
        return Ok(Err(format!("{}: wrong, {worst:.3} times the bound; not timed", package.name)));
    }
    Ok(Ok(Theirs { package, error: worst, sweeps: SWEEPS, seconds: Vec::new() }))
}

/// The fit of our iterations from `ours`' factors, where it can be compared with that of another library.
fn fit(bench: &Bench, ours: &Ours<f64>) -> Result<Option<f64>> {
    let mut options = CpOptions::new(RANK);
    (options.iterations, options.tolerance) = (SWEEPS, 0.0);
    options.init = CpInit::Factors(ours.factors.clone());
    let state = bench.cpu.cp_als(&ours.prepared, &options, |_, _| ControlFlow::Continue(()))?;
    // Another order of the modes is another path to the same end.
    Ok(ours.prepared.sweep_order().is_sorted().then(|| state.fit()))
}

impl Suite for Mttkrp {
    fn jobs(&self) -> Vec<Job> {
        let job = |input: &Input| Job { id: id(input), weight: 1.0 + 1e-6 * input.size() };
        self.inputs.iter().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let input = &self.inputs[job];
        let x: CooTensor<f64> = input.load(&bench.cpu)?;
        let single: CooTensor<f32> = input.load(&bench.cpu)?;
        let mut case = empty(&id(input), "MTTKRP", &input.name(), &x, RANK);
        case.flops = (x.order() * x.order() * x.nnz() * RANK) as f64;
        let (mut double, mut single) = (Ours::new(bench, &x)?, Ours::new(bench, &single)?);
        for (name, error) in OURS.into_iter().zip([double.error, single.error]).filter(|(_, error)| *error > 1.0) {
            case.wrong = true;
            case.notes.push(format!("{name}: {error:.3} times the bound"));
        }
        if case.wrong {
            return Ok(case);
        }
        let mut genten = bench.peers.genten.as_ref().map(|genten| genten.borrow_mut());
        let mut method = None;
        if let Some(genten) = &mut genten {
            match genten.load(&x, &double.factors, RANK) {
                Ok(()) => method = fastest_method(genten, &mut case.notes),
                Err(why) => case.notes.push(format!("{GENTEN}: {why}")),
            }
        }
        let mut packages = Vec::new();
        for package in &bench.peers.packages {
            match verified(bench, package, &x, &double.factors)? {
                Ok(theirs) => packages.push(theirs),
                Err(why) => case.notes.push(why),
            }
        }
        let wanted = if method.is_some() { fit(bench, &double)? } else { None };
        let mut of_genten = Vec::new();
        for _ in 0..TURNS {
            double.turn(bench)?;
            single.turn(bench)?;
            if let (Some(genten), Some(way)) = (&mut genten, method) {
                match genten.run(way, SWEEPS) {
                    Ok(answer) if wanted.is_some_and(|fit| (fit - answer.fit).abs() > SAME_FIT[0]) => {
                        case.notes.push(format!("{GENTEN}: a fit of {} instead of {wanted:?}; left out", answer.fit));
                        (method, of_genten) = (None, Vec::new());
                    }
                    Ok(answer) => of_genten.extend(answer.mttkrp),
                    Err(why) => {
                        case.notes.push(format!("{GENTEN} failed: {why}"));
                        method = None;
                    }
                }
            }
            packages.retain_mut(|theirs| match theirs.package.sweeps(theirs.sweeps) {
                Ok(seconds) => {
                    if seconds.iter().any(|&s| s > LONG) {
                        theirs.sweeps = 1;
                    }
                    theirs.seconds.extend(seconds);
                    true
                }
                Err(why) => {
                    case.notes.push(format!("{} failed: {why}", theirs.package.name));
                    false
                }
            });
        }
        let flops = case.flops;
        case.samples = vec![double.sample(OURS[0], flops), single.sample(OURS[1], flops)];
        if let Some(method) = method.filter(|_| !of_genten.is_empty()) {
            let checked = if wanted.is_some() { "" } else { ", fits not comparable" };
            let detail = format!("by {method}, in its iterations of CP-ALS{checked}");
            case.samples.push(sample(GENTEN, false, detail, flops, of_genten));
        }
        for theirs in packages.into_iter().filter(|theirs| !theirs.seconds.is_empty()) {
            let detail = theirs.package.detail().to_owned();
            let sample = sample(theirs.package.name, false, detail, flops, theirs.seconds);
            case.samples.push(Sample { error: Some(theirs.error), ..sample });
        }
        Ok(case)
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut rows = Vec::new();
        for case in &results.cases {
            let find = |name: &str| case.samples.iter().find(|sample| sample.name == name).map(|sample| sample.min_s);
            let text = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
            let ours = OURS.map(find);
            let mut row = vec![case.input.clone()];
            row.extend(ours.map(|s| text(s.map(|s| 1e3 * s))));
            row.extend(THEIRS.map(|name| text(find(name).map(|s| 1e3 * s))));
            row.extend(THEIRS.map(|name| text(find(name).zip(ours[0]).map(|(theirs, ours)| theirs / ours))));
            rows.push(row);
        }
        let head = ["tensor", OURS[0], OURS[1]].into_iter().chain(THEIRS).map(str::to_owned);
        let by = THEIRS.map(|name| format!("{name} by ours"));
        let words = format!(
            "Milliseconds of MTTKRP in all modes, the shortest of {} sweeps in {TURNS} turns (of {TURNS} where one takes longer than {LONG} s), rank {RANK}, in \
             double precision unless named otherwise. Products are compared with the naive loop in every mode before they are timed. GenTen's Python \
             package has no MTTKRP of its own: its times are those that its CP-ALS states for it, by the fastest of its ways, and the fits are compared with ours.",
            SWEEPS * TURNS
        );
        let mut sections = vec![Section {
            title: "MTTKRP in all modes".to_owned(),
            text: vec![words],
            table: Some((head.chain(by).collect(), rows)),
            pictures: Vec::new(),
        }];
        let cases: Vec<_> = results.cases.iter().collect();
        let title = format!("MTTKRP in all modes, rank {RANK}: GFLOP/s");
        sections.extend(super::picture::speeds(folder, "mttkrp", title, "tensor", &cases)?);
        sections.push(Section { title: "Tensors".to_owned(), text: cuts(self.inputs.iter()), ..Section::default() });
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}
