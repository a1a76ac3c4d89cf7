//! Plans that are measured: some are run on the operand itself, one number varied at a time, and the fastest is kept.

use std::time::{Duration, Instant};

use sparsimd_kernels::{Scalar, edge};

use super::prepare::{Inspected, Prepared};
use crate::cpu::Cpu;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::plan::{Choices, Measured, Op, Plan, PlanOptions, Stats, Strategy, WisdomCase};

/// Share of the time of the announced runs that measuring may take.
pub(super) const SHARE: f64 = 0.1;

/// The most that it may take, however many runs are announced.
pub(super) const MOST: Duration = Duration::from_secs(4);

/// Fewest timed runs of a plan; the shortest counts.
const RUNS: usize = 3;

/// Seconds of a plan's runs: its part of the budget, but no less and no more than these. With three runs of 3 to 7 ms, plans that take 1.16
/// and 1.22 times as long were kept on a machine that others disturb.
const TRIAL: [f64; 2] = [0.004, 0.03];

/// Plans that the budget is divided among: about as many are tried.
const TRIALS: f64 = 24.0;

/// A plan must be faster than the best so far by this factor to take its place, so that noise alone changes none.
pub(super) const GAIN: f64 = 1.01;

/// Rounds in which the first and the best plan are run in turns in the end: the machine may have changed its clock between them.
const FINAL_ROUNDS: usize = 5;

impl Cpu {
    /// `a` prepared by the fastest of the plans that `options` leave time to run, beginning with the `estimate`.
    pub(super) fn prepare_measured<T: Scalar>(
        &self,
        a: &Inspected<'_, T>,
        stats: &Stats,
        options: &PlanOptions,
        estimate: Plan,
    ) -> Result<Prepared<T>> {
        if stats.nnz == 0 {
            return Ok(self.lay_out(a, estimate));
        }
        let begin = Instant::now();
        let operands = Operands::new(options, a)?;
        let mut search = Search { cpu: self, a, stats, options, operands, begin, budget: 0.0, tried: Vec::new() };
        let first = search.trial(estimate)?;
        search.budget = (SHARE * options.reuse as f64 * first.seconds).min(MOST.as_secs_f64());
        let best = search.descend(&first)?;
        let gain = match &best {
            Some(best) => search.compare(&first, best)?,
            None => 1.0,
        };
        let plans = search.tried.len();
        // What lost in turns had won by noise.
        let (chosen, gain) = match best {
            Some(best) if gain >= GAIN => (best, gain),
            _ => (first, 1.0),
        };
        if plans > 1 {
            let case = WisdomCase::new(options.op(), options.n(), stats, &self.target::<T>(), self.arch().name());
            self.wisdom().learn(case, chosen.prepared.plan().choices());
        }
        Ok(chosen.prepared.found_by(Measured { plans, seconds: begin.elapsed().as_secs_f64(), gain }))
    }
}

/// A plan that was run, and the seconds of its shortest run.
struct Trial<T> {
    prepared: Prepared<T>,
    seconds: f64,
}

/// The plans that are tried.
struct Search<'a, T> {
    cpu: &'a Cpu,
    a: &'a Inspected<'a, T>,
    stats: &'a Stats,
    options: &'a PlanOptions,
    operands: Operands<T>,
    begin: Instant,
    /// Seconds from the beginning; 0 until the first plan has run.
    budget: f64,
    tried: Vec<Choices>,
}

impl<T: Scalar> Search<'_, T> {
    /// Lays out and runs `plan`.
    fn trial(&mut self, plan: Plan) -> Result<Trial<T>> {
        self.tried.push(plan.choices());
        let mut prepared = self.cpu.lay_out(self.a, plan);
        if !self.a.has_values() && matches!(self.options.op(), Op::Spmm | Op::SpmmTransposed) {
            prepared.set_values(self.cpu, &vec![T::ONE; self.stats.nnz])?;
        }
        let mut seconds = self.operands.run(self.cpu, &prepared)?;
        let (mut runs, mut spent) = (0, 0.0);
        let long = (self.budget / TRIALS).clamp(TRIAL[0], TRIAL[1]);
        while runs < RUNS || spent < long {
            let run = self.operands.run(self.cpu, &prepared)?;
            (runs, spent, seconds) = (runs + 1, spent + run, seconds.min(run));
        }
        Ok(Trial { prepared, seconds })
    }

    /// The fastest plan that is found in time by varying one number after the other, if one beats the `first`.
    fn descend(&mut self, first: &Trial<T>) -> Result<Option<Trial<T>>> {
        let target = self.cpu.target::<T>();
        let mut best: Option<Trial<T>> = None;
        let estimate = first.prepared.plan();
        let mut choices = estimate.choices();
        // The other strategies first, which differ most.
        let mut others = Vec::new();
        for other in [Strategy::Slices, Strategy::Panel, Strategy::Direct] {
            if self.options.strategy == Strategy::Auto && other != estimate.strategy() {
                let plan = Plan::choose(self.stats, self.cpu.machine(), &self.options.strategy(other), &target)?;
                others.extend((plan.strategy() == other).then(|| plan.choices()));
            }
        }
        let mut lists = vec![others];
        let mut number = 0;
        loop {
            for candidate in lists.into_iter().flatten() {
                let plan = Plan::with(self.stats, self.cpu.machine(), self.options, &target, candidate, String::new());
                if self.tried.contains(&plan.choices()) {
                    continue;
                }
                if self.begin.elapsed().as_secs_f64() >= self.budget {
                    return Ok(best);
                }
                let trial = self.trial(plan)?;
                if trial.seconds * GAIN < best.as_ref().unwrap_or(first).seconds {
                    choices = trial.prepared.plan().choices();
                    best = Some(trial);
                }
            }
            lists = choices.alternatives();
            lists = lists.into_iter().skip(number).take(1).collect();
            number += 1;
            if lists.is_empty() {
                return Ok(best);
            }
        }
    }

    /// How many times as fast as the `first` the `best` is, in turns.
    fn compare(&mut self, first: &Trial<T>, best: &Trial<T>) -> Result<f64> {
        let mut seconds = [f64::INFINITY; 2];
        for _ in 0..FINAL_ROUNDS {
            for (seconds, trial) in seconds.iter_mut().zip([first, best]) {
                // The first run after the other plan's finds other data in the caches.
                self.operands.run(self.cpu, &trial.prepared)?;
                *seconds = seconds.min(self.operands.run(self.cpu, &trial.prepared)?);
            }
        }
        Ok(seconds[0] / seconds[1])
    }
}

/// Dense operands to measure with, of ones.
struct Operands<T> {
    op: Op,
    b: Mat<T>,
    c: Mat<T>,
    d: Mat<T>,
    e: Mat<T>,
    values: Vec<T>,
}

impl<T: Scalar> Operands<T> {
    fn new(options: &PlanOptions, a: &Inspected<'_, T>) -> Result<Self> {
        let (op, n) = (options.op(), options.n());
        let (rows, cols) = a.shape();
        let ones = |rows| {
            let mut ones: Mat<T> = Mat::zeros(rows, n)?;
            ones.iter_rows_mut().for_each(|row| row.fill(T::ONE));
            Ok::<_, Error>(ones)
        };
        let [b, c, d, e] = match op {
            Op::Spmm => [ones(cols)?, ones(rows)?, Mat::zeros(0, n)?, Mat::zeros(0, n)?],
            Op::SpmmTransposed => [ones(rows)?, ones(cols)?, Mat::zeros(0, n)?, Mat::zeros(0, n)?],
            Op::Sddmm => [ones(cols)?, ones(rows)?, Mat::zeros(0, n)?, Mat::zeros(0, n)?],
            Op::FusedMm => [ones(cols)?, ones(rows)?, ones(cols)?, ones(rows)?],
        };
        let values = if op == Op::Sddmm { vec![T::ZERO; a.worked().nnz()] } else { Vec::new() };
        Ok(Self { op, b, c, d, e, values })
    }

    /// The seconds of one run.
    fn run(&mut self, cpu: &Cpu, a: &Prepared<T>) -> Result<f64> {
        let (b, start) = (self.b.as_ref(), Instant::now());
        match self.op {
            Op::Spmm => cpu.spmm(T::ONE, a, b, T::ZERO, self.c.as_mut()),
            Op::SpmmTransposed => cpu.spmm_t(T::ONE, a, b, T::ZERO, self.c.as_mut()),
            Op::Sddmm => cpu.sddmm(a, self.c.as_ref(), b, &mut self.values),
            Op::FusedMm => cpu.fusedmm(a, edge::Identity, self.c.as_ref(), b, self.d.as_ref(), self.e.as_mut()),
        }?;
        Ok(start.elapsed().as_secs_f64())
    }
}
