//! Contenders take turns: what disturbs the machine for a while disturbs all of them. It does not disturb all alike, so turns wait until
//! nobody else computes on its cores.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use rayon::prelude::*;
use sparsimd::{Cpu, Error, Result};
use sparsimd_measure::integer_rate_now;

use super::results::Sample;
use crate::timing::{Times, seconds};

/// One turn: enough runs for the operands to be as warm as they get.
const TURN: f64 = 0.010;
/// Before each turn, for the threads of the one before to go to sleep: ours and the peers' spin for at most a millisecond.
const PAUSE: Duration = Duration::from_millis(2);
/// Share of the best rate of integer additions so far from which on the cores are taken to be ours alone: a thread of another guest on
/// the same core leaves 0.5 to 0.65 of it, a lower clock more.
const ALONE: f64 = 0.75;
/// Between two looks at that rate.
const LOOK: Duration = Duration::from_millis(20);
/// How often a contender's time a case waits for it, all turns together.
const PATIENCE: u32 = 20;
/// How often that time the first case looks for the best rate.
const SEARCH: u32 = 4;
/// What is said where it was not enough.
const NOT_ALONE: &str = "other work had part of the cores";
/// Least number of timed runs, in as many turns: a shortest one and a median of fewer mean little.
const LEAST_RUNS: usize = 3;
/// Runs with cold caches: the first of a process also sees page faults, the median does not.
const COLD_RUNS: usize = 3;

/// Somebody who does the operation.
pub struct Contender<'a> {
    pub name: String,
    pub ours: bool,
    pub detail: String,
    pub prepare_s: Option<f64>,
    /// Of its result, verified before.
    pub error: Option<f64>,
    pub figures: BTreeMap<String, f64>,
    /// Does it once.
    pub run: Box<dyn FnMut() -> Result<(), String> + 'a>,
}

/// How long, and what fills the caches.
pub struct Race {
    /// All timed runs of one contender together.
    budget: Duration,
    /// More than all caches.
    flush: RefCell<Vec<u64>>,
    /// The best rate of integer additions so far.
    best_rate: Cell<f64>,
}

/// What one contender took, in seconds.
#[derive(Default)]
struct Runs {
    cold: Vec<f64>,
    warm: Vec<f64>,
    spent: f64,
    failed: Option<String>,
}

impl Race {
    /// For the caches of the machine of `cpu`.
    pub fn new(cpu: &Cpu, budget: Duration) -> Self {
        let caches = cpu.machine().l3_bytes().max(16 << 20);
        Self { budget, flush: RefCell::new(vec![1; 2 * caches / size_of::<u64>()]), best_rate: Cell::new(0.0) }
    }

    /// Times all `contenders`, for `flops` useful operations each. Who fails is left out and named.
    ///
    /// # Errors
    /// [`Error::Device`] when it is this library that fails: then there is nothing to compare.
    pub fn run(&self, cpu: &Cpu, flops: f64, contenders: Vec<Contender<'_>>) -> Result<(Vec<Sample>, Vec<String>)> {
        let mut contenders = contenders;
        let mut times: Vec<Runs> = contenders.iter().map(|_| Runs::default()).collect();
        for _ in 0..COLD_RUNS {
            for (contender, times) in contenders.iter_mut().zip(&mut times) {
                self.flush(cpu);
                if let Some(time) = times.time(contender) {
                    times.cold.push(time);
                }
            }
        }
        let budget = self.budget.as_secs_f64();
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        let mut patience = PATIENCE * self.budget;
        if self.best_rate.get() == 0.0 {
            self.find_best_rate(cpu);
        }
        loop {
            order.retain(|&i| {
                times[i].failed.is_none() && (times[i].spent < budget || times[i].warm.len() < LEAST_RUNS)
            });
            if order.is_empty() {
                break;
            }
            for &i in &order {
                patience = self.wait_until_alone(cpu, patience);
                std::thread::sleep(PAUSE);
                times[i].turn(&mut contenders[i]);
            }
            // Nobody always comes after the same one.
            order.reverse();
        }
        let mut samples = Vec::new();
        let mut notes = Vec::new();
        if patience.is_zero() {
            notes.push(NOT_ALONE.to_owned());
        }
        for (contender, times) in contenders.into_iter().zip(times) {
            if let Some(why) = times.failed {
                let detail = format!("{} failed: {why}", contender.name);
                if contender.ours {
                    return Err(Error::Device { detail });
                }
                notes.push(detail);
                continue;
            }
            let (warm, cold) = (Times::of(times.warm), Times::of(times.cold));
            samples.push(Sample {
                name: contender.name,
                ours: contender.ours,
                detail: contender.detail,
                prepare_s: contender.prepare_s,
                min_s: warm.min,
                median_s: warm.median,
                cold_s: cold.median,
                runs: warm.runs,
                gflops: flops / warm.min / 1e9,
                error: contender.error,
                figures: contender.figures,
            });
        }
        Ok((samples, notes))
    }

    /// Waits until the cores are ours alone, `patience` at most; what is left of it.
    fn wait_until_alone(&self, cpu: &Cpu, mut patience: Duration) -> Duration {
        while self.look(cpu) < ALONE * self.best_rate.get() && !patience.is_zero() {
            patience = sleep(patience);
        }
        patience
    }

    /// Looks for the rate of cores that are ours alone.
    fn find_best_rate(&self, cpu: &Cpu) {
        let mut time = SEARCH * self.budget;
        while !time.is_zero() {
            self.look(cpu);
            time = sleep(time);
        }
    }

    /// The rate of integer additions.
    fn look(&self, cpu: &Cpu) -> f64 {
        let rate = integer_rate_now(cpu);
        self.best_rate.set(self.best_rate.get().max(rate));
        rate
    }

    /// Fills all caches with something else.
    fn flush(&self, cpu: &Cpu) {
        let mut data = self.flush.borrow_mut();
        let data = &mut data[..];
        // A line at a time, read and written, by all threads.
        cpu.install(|| data.par_chunks_mut(8).for_each(|line| line[0] = black_box(line[0].wrapping_add(1))));
    }
}

/// Sleeps until the next look, for at most `most`; what is left of it.
fn sleep(most: Duration) -> Duration {
    let pause = LOOK.min(most);
    std::thread::sleep(pause);
    most - pause
}

impl Runs {
    /// Some runs after one that is not counted, unless that one alone is longer than a turn: then what it warmed is what
    /// the next ones would warm again.
    fn turn(&mut self, contender: &mut Contender<'_>) {
        let Some(first) = self.time(contender) else { return };
        if first >= TURN {
            self.warm.push(first);
            self.spent += first;
            return;
        }
        let runs = (TURN / first.max(1e-9)).ceil().clamp(1.0, 1000.0) as usize;
        for _ in 0..runs {
            let Some(time) = self.time(contender) else { return };
            self.warm.push(time);
            self.spent += time;
        }
    }

    fn time(&mut self, contender: &mut Contender<'_>) -> Option<f64> {
        if self.failed.is_some() {
            return None;
        }
        seconds(&mut contender.run).map_err(|why| self.failed = Some(why)).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn contender<'a>(name: &str, run: impl FnMut() -> Result<(), String> + 'a) -> Contender<'a> {
        Contender {
            name: name.to_owned(),
            ours: name == "ours",
            detail: String::new(),
            prepare_s: None,
            error: None,
            figures: BTreeMap::new(),
            run: Box::new(run),
        }
    }

    #[test]
    fn takes_turns_and_leaves_out_who_fails() {
        let cpu = Cpu::builder().threads(1).build().unwrap();
        let race = Race::new(&cpu, Duration::from_millis(20));
        let wait = |ms| {
            move || {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
        };
        let mut left = 5;
        let ends = || {
            left -= 1;
            if left > 0 { Ok(()) } else { Err("enough".to_owned()) }
        };
        let all = vec![contender("ours", wait(1)), contender("slow", wait(12)), contender("ends", ends)];
        let (samples, mut notes) = race.run(&cpu, 1e6, all).unwrap();
        notes.retain(|note| note != NOT_ALONE);
        assert_eq!(samples.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["ours", "slow"]);
        assert_eq!(notes, ["ends failed: enough"]);
        assert!(samples.iter().all(|s| s.runs >= LEAST_RUNS && s.min_s <= s.median_s));
        assert!(samples[0].min_s >= 1e-3 && samples[1].min_s >= 12e-3, "{samples:?}");
        assert!((samples[0].gflops * samples[0].min_s - 1e-3).abs() < 1e-9);
        assert!(race.run(&cpu, 1.0, vec![contender("ours", || Err("no".to_owned()))]).is_err());
    }

    #[test]
    fn waits_for_its_cores_and_says_so() {
        let cpu = Cpu::builder().threads(1).build().unwrap();
        let race = Race::new(&cpu, Duration::from_millis(10));
        // As if they had once been far faster.
        race.best_rate.set(f64::MAX);
        let start = Instant::now();
        let (samples, notes) = race.run(&cpu, 1e6, vec![contender("ours", || Ok(()))]).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(200) && samples[0].runs >= LEAST_RUNS);
        assert_eq!(notes, [NOT_ALONE]);
    }
}
