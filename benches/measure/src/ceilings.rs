//! Measured ceilings: what this machine sustains, one thread and all, so that a speed means something.
//!
//! The role of the Empirical Roofline Tool (Lo et al., *Roofline Model Toolkit*, 2015), by the same means: arithmetic in
//! registers, and passes over arrays that fit one level of memory and not the one before.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparsimd::machine::{PageBuffer, Pinning};
use sparsimd::{Cpu, Machine, Result};

use crate::bandwidth::{chase_pass, clock_pass, gather_pass, read_pass, triad_pass};
use crate::bursts::fma_burst;
use crate::peak::{add_peak, fma_peak};
use crate::rate::best_rate;

/// f32 elements of a 64-byte line.
const LINE: usize = 16;
/// Random lines that a gather visits per pass; their list (4 bytes each) streams along.
const GATHERED: usize = 1 << 18;
/// DRAM working set of all threads together, in units of all last-level caches: at 4 a third more than DRAM's bandwidth
/// was measured, since parts of a pass still come from the cache; from 16 on it no longer changes.
const DRAM_FACTOR: usize = 16;
/// Least DRAM working set of all threads together.
const MIN_DRAM: usize = 64 << 20;
/// Beyond this, only as much as exceeds the caches: pages take half a second per GiB to make.
const MAX_DRAM: usize = 4 << 30;
/// Undisturbed measurements of the peak differ from the clock's bound by 1 to 3 %.
const DISTURBED: f64 = 0.05;
/// f32 elements of the smallest working set: whole turns of every kernel's loop on every instruction set.
const GRAIN: usize = 1024;

/// A rate of one thread and of all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// One thread, the others idle.
    pub one: f64,
    /// All threads together.
    pub all: f64,
}

/// What one level of memory delivers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelCeiling {
    /// `"L1"`, `"L2"`, `"L3"` or `"DRAM"`.
    pub name: String,
    /// Bytes that each thread passes over.
    pub bytes_per_thread: usize,
    /// GB/s of loads alone.
    pub read: Rate,
    /// GB/s of a = b + m c: two loads and a store counted, the read before the write of a line not.
    pub triad: Rate,
    /// Nanoseconds from a load's address to its value.
    pub latency_ns: f64,
}

/// Everything measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// The instruction set.
    pub simd: String,
    /// Number of threads that "all" means.
    pub threads: usize,
    /// GFLOP/s of fused multiply-adds, two operations each.
    pub fma_f32: Rate,
    /// The same in f64.
    pub fma_f64: Rate,
    /// GFLOP/s of vector additions, one operation each.
    pub add_f32: Rate,
    /// The same in f64.
    pub add_f64: Rate,
    /// The clock in GHz while one thread computes; `None` where no instruction's latency is known to count by.
    pub clock_ghz: Option<f64>,
    /// The levels of memory, nearest first.
    pub levels: Vec<LevelCeiling>,
    /// GB/s of 64-byte lines read from random places of the DRAM working set, independent of each other.
    pub gather: Rate,
}

impl Ceilings {
    /// Measures them with the threads and the instruction set of `cpu`, in some seconds. Other work on the machine lowers
    /// the result.
    ///
    /// # Errors
    /// As [`PageBuffer::zeros`] and [`sparsimd::CpuBuilder::build`].
    pub fn measure(cpu: &Cpu) -> Result<Self> {
        let machine = cpu.machine();
        let first: Vec<_> = cpu.binding().iter().copied().take(1).collect();
        let builder = Cpu::builder().arch(cpu.arch()).machine(machine.clone()).threads(1);
        let one = match first.as_slice() {
            [] => builder.pin(false),
            _ => builder.pinning(Pinning::List(first)),
        }
        .build()?;
        let rate = |measure: &dyn Fn(&Cpu) -> f64| Rate { one: measure(&one), all: measure(cpu) };

        let threads = cpu.threads();
        let sizes = working_sets(machine, threads);
        let levels = sizes.iter().map(|(name, elements)| {
            let buffers = Buffers::new(cpu, *elements)?;
            Ok(LevelCeiling {
                name: (*name).to_owned(),
                bytes_per_thread: elements * size_of::<f32>(),
                read: rate(&|cpu| buffers.read(cpu)),
                triad: rate(&|cpu| buffers.triad(cpu)),
                latency_ns: latency(&one, elements / LINE)?,
            })
        });
        let levels = levels.collect::<Result<_>>()?;
        let buffers = Buffers::new(cpu, sizes.last().map_or(GRAIN, |(_, elements)| *elements))?;
        Ok(Self {
            simd: cpu.arch().name().to_owned(),
            threads,
            fma_f32: rate(&fma_peak::<f32>),
            fma_f64: rate(&fma_peak::<f64>),
            add_f32: rate(&add_peak::<f32>),
            add_f64: rate(&add_peak::<f64>),
            clock_ghz: clock_ghz(&one),
            levels,
            gather: rate(&|cpu| buffers.gather(cpu)),
        })
    }

    /// What the clock allows: GFLOP/s of f32 multiply-adds of one thread with `lanes` in a register, at the whole number
    /// of multiply-adds per cycle (returned first) that fits [`Ceilings::fma_f32`] best. `None` where the clock is not
    /// known.
    pub fn clock_bound(&self, lanes: usize) -> Option<(u32, f64)> {
        let one_unit = self.clock_ghz? * lanes as f64 * 2.0;
        let units = (self.fma_f32.one / one_unit).round().max(1.0);
        Some((units as u32, units * one_unit))
    }

    /// Whether other work on the machine cannot be told from the measurement: the peak is where the clock has it, as far
    /// as that is known, and all threads together are not slower than one.
    pub fn undisturbed(&self, lanes: usize) -> bool {
        let far = |(_, bound): (u32, f64)| (self.fma_f32.one / bound - 1.0).abs() > DISTURBED;
        !self.clock_bound(lanes).is_some_and(far) && self.fma_f32.all >= (1.0 - DISTURBED) * self.fma_f32.one
    }
}

/// Each level's name and the f32 elements that each thread should pass over to see it: half of its share of a cache, but
/// at least twice the level before; for DRAM, far more than all last-level caches.
fn working_sets(machine: &Machine, threads: usize) -> Vec<(&'static str, usize)> {
    let caches = machine.caches();
    let siblings = machine.threads().len().div_ceil(machine.cores()).min(threads.div_ceil(machine.cores()));
    let share = caches.l3.map_or(0, |_| machine.l3_share(threads));
    let elements = |bytes: usize| (bytes / size_of::<f32>()).next_multiple_of(GRAIN);
    let mut sets = vec![("L1", elements(caches.l1d / 2 / siblings)), ("L2", elements(caches.l2 / 2 / siblings))];
    // Where a thread's share of L3 is hardly more than its L2, there is no such level to see.
    if share >= 4 * caches.l2 / siblings {
        sets.push(("L3", elements(share / 2)));
    }
    let last = machine.l3_bytes() * machine.l3_groups();
    let dram = (DRAM_FACTOR * last).min(MAX_DRAM).max(4 * last).max(MIN_DRAM);
    sets.push(("DRAM", elements(dram / threads)));
    sets
}

/// An array per thread, first written by it.
struct Buffers {
    data: Vec<Mutex<PageBuffer<f32>>>,
}

impl Buffers {
    fn new(cpu: &Cpu, elements: usize) -> Result<Self> {
        let made: Vec<Result<_>> = cpu.install(|| {
            rayon::broadcast(|_| {
                let mut buffer = PageBuffer::zeros(elements)?;
                buffer.advise_huge_pages(std::slice::from_ref(&(0..elements)));
                buffer.fill(1.0);
                Ok(Mutex::new(buffer))
            })
        });
        Ok(Self { data: made.into_iter().collect::<Result<_>>()? })
    }

    /// Calls `pass` with the thread's array for every step; units are what it returns.
    fn rate(&self, cpu: &Cpu, pass: impl Fn(usize, &mut [f32]) -> usize + Sync) -> f64 {
        let bytes = best_rate(cpu, |thread, steps| {
            let Ok(mut data) = self.data[thread].lock() else { return 0 };
            (0..steps).map(|_| pass(thread, &mut data) as u64).sum()
        });
        bytes / 1e9
    }

    fn read(&self, cpu: &Cpu) -> f64 {
        self.rate(cpu, |_, data| {
            std::hint::black_box(read_pass(cpu.arch(), data));
            size_of_val(data)
        })
    }

    fn triad(&self, cpu: &Cpu) -> f64 {
        self.rate(cpu, |_, data| {
            let third = data.len() / 3 / LINE * LINE;
            let (a, rest) = data.split_at_mut(third);
            let (b, rest) = rest.split_at_mut(third);
            // The factor keeps values from growing: 1 = 0 * 1 + 1.
            triad_pass(cpu.arch(), a, b, &rest[..third], std::hint::black_box(0.0));
            3 * third * size_of::<f32>()
        })
    }

    fn gather(&self, cpu: &Cpu) -> f64 {
        let lists: Vec<Vec<u32>> = (0..cpu.threads())
            .map(|thread| {
                let lines = self.data[thread].lock().map_or(1, |data| data.len() / LINE);
                let mut random = fastrand::Rng::with_seed(thread as u64);
                (0..GATHERED).map(|_| random.usize(..lines) as u32).collect()
            })
            .collect();
        self.rate(cpu, |thread, data| {
            std::hint::black_box(gather_pass(cpu.arch(), data, &lists[thread]));
            GATHERED * LINE * size_of::<f32>()
        })
    }
}

/// Nanoseconds per step of a walk through `lines` lines in one random cycle.
fn latency(one: &Cpu, lines: usize) -> Result<f64> {
    // Over at most 64 MiB: beyond every cache but the largest, and quick to lay out.
    let lines = lines.clamp(2, (64 << 20) / 64);
    let mut order: Vec<usize> = (0..lines).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut pages = PageBuffer::<f32>::zeros(lines * LINE)?;
    // Huge pages: the memory's latency is asked for, not the address translation's.
    pages.advise_huge_pages(std::slice::from_ref(&(0..lines * LINE)));
    let next: &mut [u32] = bytemuck::cast_slice_mut(&mut pages);
    for at in 0..lines {
        next[order[at] * LINE] = (order[(at + 1) % lines] * LINE) as u32;
    }
    let at = Mutex::new(0);
    let steps = best_rate(one, |_, steps| {
        let Ok(mut at) = at.lock() else { return 0 };
        let count = steps * 1024;
        *at = chase_pass(next, *at, count as usize);
        count
    });
    Ok(1e9 / steps)
}

/// The clock in GHz of the threads of `cpu` under load, by dependent instructions of known latency; `None` where there
/// are none (other processors than x86-64).
pub fn clock_ghz(cpu: &Cpu) -> Option<f64> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    // Some time under load first, for the clock to settle where vector code leaves it.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        std::hint::black_box(cpu.install(|| fma_burst::<f32>(cpu.arch(), 1 << 14)));
    }
    let cycles = best_rate(cpu, |_, steps| {
        let count = steps * 4096;
        std::hint::black_box(clock_pass(count));
        4 * count
    });
    Some(cycles / cpu.threads() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::{Ceilings, Rate};

    #[test]
    fn disturbed_measurements_are_told_from_quiet_ones() {
        let rate = |one, all| Rate { one, all };
        let quiet = Ceilings {
            simd: String::new(),
            threads: 2,
            fma_f32: rate(254.0, 505.0),
            fma_f64: rate(127.0, 252.0),
            add_f32: rate(127.0, 252.0),
            add_f64: rate(63.0, 126.0),
            clock_ghz: Some(4.0),
            levels: Vec::new(),
            gather: rate(1.0, 2.0),
        };
        assert_eq!(quiet.clock_bound(16), Some((2, 256.0)));
        assert!(quiet.undisturbed(16));
        // One thread slowed; all slowed; and no clock to judge by.
        assert!(!Ceilings { fma_f32: rate(230.0, 505.0), ..quiet.clone() }.undisturbed(16));
        assert!(!Ceilings { fma_f32: rate(254.0, 230.0), ..quiet.clone() }.undisturbed(16));
        assert!(Ceilings { clock_ghz: None, fma_f32: rate(230.0, 460.0), ..quiet }.undisturbed(16));
    }
}
