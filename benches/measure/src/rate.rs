//! How fast all threads of a pool together do something short, undisturbed.

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use sparsimd::Cpu;

/// One burst: long against the barrier and the timer, short against the operating system's time slice.
const BURST: Duration = Duration::from_millis(3);
/// All bursts: enough for the clock to rise and for one of them to go undisturbed.
const TOTAL: Duration = Duration::from_millis(80);

/// One burst that says what the machine does at the moment.
const SAMPLE: Duration = Duration::from_micros(500);

/// The largest number of units per second that all threads of `cpu` together do: the best of several bursts, about 0.1 s
/// in all. `work(thread, steps)` does that many steps and returns how many units that were.
pub(super) fn best_rate(cpu: &Cpu, work: impl Fn(usize, u64) -> u64 + Sync) -> f64 {
    best_of(cpu, BURST, TOTAL, work)
}

/// That of one short burst, about 1 ms in all.
pub(super) fn rate_now(cpu: &Cpu, work: impl Fn(usize, u64) -> u64 + Sync) -> f64 {
    best_of(cpu, SAMPLE, Duration::ZERO, work)
}

/// The best of bursts of at least `shortest`, `total` in all, and of at least one.
fn best_of(cpu: &Cpu, shortest: Duration, total: Duration, work: impl Fn(usize, u64) -> u64 + Sync) -> f64 {
    let mut steps = 1;
    while steps < 1 << 40 && burst(cpu, steps, &work).0 < shortest {
        steps *= 2;
    }
    let start = Instant::now();
    let mut best = 0.0f64;
    while best == 0.0 || start.elapsed() < total {
        let (time, units) = burst(cpu, steps, &work);
        best = best.max(units as f64 / time.as_secs_f64().max(1e-9));
    }
    best
}

/// The time from the first thread's start to the last one's end, and the units done by all.
fn burst(cpu: &Cpu, steps: u64, work: &(impl Fn(usize, u64) -> u64 + Sync)) -> (Duration, u64) {
    let barrier = Barrier::new(cpu.threads());
    let spans = Mutex::new(Vec::with_capacity(cpu.threads()));
    cpu.install(|| {
        rayon::broadcast(|context| {
            barrier.wait();
            let start = Instant::now();
            let units = work(context.index(), steps);
            let end = Instant::now();
            if let Ok(mut spans) = spans.lock() {
                spans.push((start, end, units));
            }
        })
    });
    let spans = spans.into_inner().unwrap_or_default();
    let start = spans.iter().map(|s| s.0).min();
    let end = spans.iter().map(|s| s.1).max();
    let time = start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start);
    (time, spans.iter().map(|s| s.2).sum())
}
