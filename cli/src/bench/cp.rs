//! CP-ALS: the time of an iteration beside GenTen's, all from one first guess.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use sparsimd::decomp::{CpInit, CpIteration, CpOptions};
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::TensorOptions;
use sparsimd::{CooTensor, Mat, Result, Scalar, generate, reference};

use super::genten::{GenTen, METHODS};
use super::report::{self, Section};
use super::results::{Case, Results, Sample};
use super::tensors::{Input, Most, cuts, empty};
use super::{Bench, Job, Suite};
use crate::timing::timed;

/// Components.
const RANK: usize = 32;
/// Nonzeros at most of a generated tensor, in the full and the short form.
const MOST: [usize; 2] = [4_000_000, 100_000];
/// Skewed coordinates whose fibers have hardly more than one nonzero, and look-alikes of real tensors with longer ones.
const TENSORS: [&str; 7] =
    ["skew3d", "skew3d-large", "skew4d", "darpa-like", "fb-m-like", "uber4d-like", "enron4d-like"];
/// Those of the short form.
const QUICK: [&str; 4] = ["skew3d", "skew4d", "darpa-like", "uber4d-like"];
/// Iterations of a turn, and turns of each contender.
pub const ITERATIONS: usize = 3;
const TURNS: usize = 3;
/// How far apart fits from the same first guess may be: in double precision they differ by rounding, amplified by the
/// least-squares systems; in single precision by that of the sum which the fit is computed from.
pub const SAME_FIT: [f64; 2] = [1e-6, 1e-3];
/// Names of contenders and figures.
const OURS: [&str; 2] = ["ours", "ours, f32"];
const GENTEN: &str = "GenTen";
const MTTKRP: &str = "mttkrp_s";
const FIT: &str = "fit";

/// The suite.
pub struct Cp {
    inputs: Vec<Input>,
}

/// A tensor laid out for our iterations.
struct Ours<T> {
    prepared: MttkrpTensor<T>,
    guess: Vec<Mat<T>>,
    seconds: f64,
    /// Largest error of MTTKRP, in units of its bound.
    error: f64,
}

/// Iterations of one contender.
#[derive(Default)]
pub struct Times {
    /// The first of each turn.
    first: Vec<f64>,
    seconds: Vec<f64>,
    mttkrp: Vec<f64>,
    fit: f64,
}

impl Cp {
    /// The files below `data`, else generated tensors; some of them in the short form.
    ///
    /// # Errors
    /// As [`Input::list`].
    pub fn new(data: Option<&Path>, quick: bool) -> Result<Self> {
        let (names, limit) = if quick { (&QUICK[..], QUICK.len()) } else { (&TENSORS[..], usize::MAX) };
        let inputs = Input::list(data, names, Most::Nonzeros(MOST[usize::from(quick)]), limit)?;
        Ok(Self { inputs })
    }
}

impl<T: Scalar> Ours<T> {
    fn new(bench: &Bench, x: &CooTensor<T>) -> Result<Self> {
        let cpu = &bench.cpu;
        // From 0 to 1, so that no component begins orthogonal to the data.
        let factor = |(mode, &rows): (usize, &usize)| {
            let uniform = generate::uniform_dense::<T>(rows, RANK, 1 + mode as u64)?;
            Mat::from_fn(rows, RANK, |i, r| uniform.row(i)[r] + T::from_f64(0.5))
        };
        let guess: Vec<Mat<T>> = cpu.install(|| x.dims().iter().enumerate().map(factor).collect::<Result<_>>())?;
        let (prepared, seconds) = timed(|| cpu.prepare_tensor(x, &TensorOptions::new(RANK)))?;
        let views: Vec<_> = guess.iter().map(Mat::as_ref).collect();
        let mut error: f64 = 0.0;
        for mode in 0..x.order() {
            let mut out = Mat::zeros(x.dims()[mode], RANK)?;
            cpu.mttkrp(&prepared, &views, mode, out.as_mut())?;
            let deviation =
                cpu.install(|| reference::mttkrp(x, &views, mode).and_then(|want| want.deviation(out.as_ref())))?;
            error = error.max(deviation.error);
        }
        Ok(Self { prepared, guess, seconds, error })
    }

    /// One turn.
    fn turn(&self, bench: &Bench, times: &mut Times) -> Result<()> {
        let mut options = CpOptions::new(RANK);
        (options.iterations, options.tolerance) = (ITERATIONS, 0.0);
        options.init = CpInit::Factors(self.guess.clone());
        let (mut seconds, mut mttkrp) = (Vec::new(), Vec::new());
        let state = bench.cpu.cp_als(&self.prepared, &options, |_, iteration: &CpIteration| {
            seconds.push(iteration.time.as_secs_f64());
            mttkrp.push(iteration.mttkrp.as_secs_f64());
            ControlFlow::Continue(())
        })?;
        times.add(&seconds, &mttkrp, state.fit());
        Ok(())
    }

    /// All turns.
    fn sample(&self, name: &str, flops: f64, times: Times) -> Sample {
        let mut sample = times.sample(name, true, flops);
        sample.detail = self.prepared.plan().format().to_string();
        sample.prepare_s = Some(self.seconds);
        sample.error = Some(self.error);
        sample
    }
}

impl Times {
    /// Adds those of a turn, after which the fit was `fit`.
    pub fn add(&mut self, seconds: &[f64], mttkrp: &[f64], fit: f64) {
        self.first.extend(seconds.first());
        self.seconds.extend(seconds);
        self.mttkrp.extend(mttkrp);
        self.fit = fit;
    }

    /// The sample of the contender `name` with so many operations in an iteration.
    pub fn sample(mut self, name: &str, ours: bool, flops: f64) -> Sample {
        for times in [&mut self.first, &mut self.seconds, &mut self.mttkrp] {
            times.sort_by(f64::total_cmp);
        }
        let min_s = self.seconds[0];
        Sample {
            name: name.to_owned(),
            ours,
            detail: String::new(),
            prepare_s: None,
            min_s,
            median_s: self.seconds[self.seconds.len() / 2],
            cold_s: self.first[self.first.len() / 2],
            runs: self.seconds.len(),
            gflops: flops / min_s / 1e9,
            error: None,
            figures: BTreeMap::from([(MTTKRP.to_owned(), self.mttkrp[0]), (FIT.to_owned(), self.fit)]),
        }
    }
}

/// The peer's way that is fastest for what it has loaded; who fails is noted.
pub fn fastest_method(genten: &mut GenTen, notes: &mut Vec<String>) -> Option<&'static str> {
    let mut tries = Vec::new();
    for method in METHODS {
        match genten.run(method, 1) {
            Ok(answer) => tries.extend(answer.seconds.first().map(|&seconds| (seconds, method))),
            Err(why) => notes.push(format!("{GENTEN} by {method}: {why}")),
        }
    }
    tries.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, method)| method)
}

impl Suite for Cp {
    fn jobs(&self) -> Vec<Job> {
        let job = |input: &Input| Job { id: format!("CP-ALS {}", input.name()), weight: 1.0 + 1e-6 * input.size() };
        self.inputs.iter().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let input = &self.inputs[job];
        let x: CooTensor<f64> = input.load(&bench.cpu)?;
        let single: CooTensor<f32> = input.load(&bench.cpu)?;
        let mut case = empty(&format!("CP-ALS {}", input.name()), "CP-ALS", &input.name(), &x, RANK);
        // MTTKRP in every mode.
        case.flops = (x.order() * x.order() * x.nnz() * RANK) as f64;
        let (double, single) = (Ours::new(bench, &x)?, Ours::new(bench, &single)?);
        for (name, error) in OURS.into_iter().zip([double.error, single.error]).filter(|(_, error)| *error > 1.0) {
            case.wrong = true;
            case.notes.push(format!("{name}: {error:.3} times the bound of MTTKRP"));
        }
        if case.wrong {
            return Ok(case);
        }
        let mut genten = bench.peers.genten.as_ref().map(|genten| genten.borrow_mut());
        let mut method = None;
        if let Some(genten) = &mut genten {
            match genten.load(&x, &double.guess, RANK) {
                Ok(()) => method = fastest_method(genten, &mut case.notes),
                Err(why) => case.notes.push(format!("{GENTEN}: {why}")),
            }
        }
        let (mut in_double, mut in_single, mut theirs) = (Times::default(), Times::default(), Times::default());
        for _ in 0..TURNS {
            double.turn(bench, &mut in_double)?;
            single.turn(bench, &mut in_single)?;
            if let (Some(genten), Some(way)) = (&mut genten, method) {
                match genten.run(way, ITERATIONS) {
                    Ok(answer) => theirs.add(&answer.seconds, &answer.mttkrp, answer.fit),
                    Err(why) => {
                        case.notes.push(format!("{GENTEN} failed: {why}"));
                        method = None;
                    }
                }
            }
        }
        let [fit, of_single, of_theirs] = [in_double.fit, in_single.fit, theirs.fit];
        if (fit - of_single).abs() > SAME_FIT[1] {
            case.wrong = true;
            case.notes.push(format!("{}: a fit of {of_single} instead of {fit}", OURS[1]));
        }
        // Another order of the modes is another path to the same end.
        let comparable = double.prepared.sweep_order().is_sorted();
        if let Some(method) = method.filter(|_| !theirs.seconds.is_empty()) {
            if comparable && (fit - of_theirs).abs() > SAME_FIT[0] {
                case.notes.push(format!("{GENTEN}: a fit of {of_theirs} instead of {fit}"));
            }
            let mut sample = theirs.sample(GENTEN, false, case.flops);
            sample.detail = format!("MTTKRP by {method}");
            case.samples.push(sample);
        }
        let ours = [double.sample(OURS[0], case.flops, in_double), single.sample(OURS[1], case.flops, in_single)];
        case.samples.splice(0..0, ours);
        Ok(case)
    }

    fn sections(&self, _: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut rows = Vec::new();
        for case in &results.cases {
            let find = |name| case.samples.iter().find(|sample| sample.name == name);
            let text = |value: Option<f64>, digits| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
            let [double, single, theirs] = [OURS[0], OURS[1], GENTEN].map(find);
            let mut row = vec![case.input.clone()];
            row.extend([double, single, theirs].map(|s| text(s.map(|s| 1e3 * s.min_s), 2)));
            row.push(text(double.zip(theirs).map(|(ours, theirs)| theirs.min_s / ours.min_s), 2));
            row.extend([double, theirs].map(|s| text(s.map(|s| 100.0 * s.figures[MTTKRP] / s.min_s), 0)));
            row.extend([double, theirs].map(|s| text(s.map(|s| s.figures[FIT]), 6)));
            rows.push(row);
        }
        let head =
            ["tensor", OURS[0], OURS[1], GENTEN, "GenTen by ours", "MTTKRP %, ours", "GenTen", "fit, ours", "GenTen"];
        let text = format!(
            "Milliseconds of the shortest of {} iterations at rank {RANK}, in double precision unless named otherwise, in {TURNS} turns, all from one first guess. Fits \
             after {ITERATIONS} iterations agree unless a note says otherwise or the plan takes the modes in another order. \
             GenTen takes the fastest of its ways of MTTKRP.",
            ITERATIONS * TURNS
        );
        let mut sections = vec![Section {
            title: "An iteration of CP-ALS".to_owned(),
            text: vec![text],
            table: Some((head.map(str::to_owned).to_vec(), rows)),
            pictures: Vec::new(),
        }];
        let cases: Vec<_> = results.cases.iter().collect();
        let title = format!("CP-ALS, rank {RANK}: GFLOP/s of MTTKRP over whole iterations");
        sections.extend(super::picture::speeds(folder, "cp-als", title, "tensor", &cases)?);
        sections.push(Section { title: "Tensors".to_owned(), text: cuts(self.inputs.iter()), ..Section::default() });
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}
