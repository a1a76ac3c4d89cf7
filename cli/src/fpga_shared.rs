//! `sparsimd fpga --share`: the processor, measured, and a simulated board that share one operation.
//!
//! The work is cut as [`sparsimd::hetero`] cuts it between the processor and a device: the board takes the first fibers (TTM) or slices
//! (MTTKRP), the processor the rest.

use std::ops::Range;

use serde::Serialize;
use sparsimd::formats::{Csf, FiberCoo, Fibers};
use sparsimd::generate::uniform_dense;
use sparsimd::hetero::Split;
use sparsimd::ops::TtmAlgorithm;
use sparsimd::plan::{PROBE, TensorOptions, cut_by_share, share_by_rates};
use sparsimd::{CooTensor, Cpu, Mat, MatRef, Result, reference};
use sparsimd_measure::{Board, FpgaOp, FpgaRun};

use super::timing::{Check, Times};

/// Seconds that the processor's half of a probe takes at least, if there is so much work: starting the threads takes some 20 us, which
/// every run has once, so that a shorter probe has them slower than they are.
const LONG_ENOUGH: f64 = 0.5e-3;

/// What both sides came to; times are seconds.
#[derive(Debug, Serialize)]
pub struct Shared {
    /// The part of the work that the board has.
    pub share: f64,
    /// Threads of the processor.
    pub threads: usize,
    /// The processor with all of the work.
    pub cpu_s: f64,
    /// The processor with its part.
    pub cpu_part_s: f64,
    /// The board with its part, simulated.
    pub simulated_part_s: f64,
    /// Both at the same time: the longer of the two.
    pub both_s: f64,
    /// Of the processor's part.
    #[serde(flatten)]
    pub check: Check,
}

impl Shared {
    /// In words, two lines; the board with all of the work takes `simulated_s`.
    pub fn text(&self, simulated_s: f64) -> String {
        let Self { share, threads, cpu_s, cpu_part_s, simulated_part_s, both_s, check } = self;
        format!(
            "shared   {:.1} % on the board: both {both_s:.3e} s (board {simulated_part_s:.3e} s simulated, processor \
             {cpu_part_s:.3e} s); board alone {simulated_s:.3e} s simulated, processor alone {cpu_s:.3e} s (threads: {threads})\n{}",
            100.0 * share,
            check.text()
        )
    }
}

/// One operation that can be cut.
pub struct Shares<'a> {
    cpu: &'a Cpu,
    board: &'a Board,
    mode: usize,
    mode_order: &'a [usize],
    /// The nonzeros in the order of the tree.
    x: CooTensor<f32>,
    /// Where each fiber or slice starts, and where the last one ends.
    starts: Vec<usize>,
}

impl<'a> Shares<'a> {
    /// `op` in `mode` of the tree `csf`.
    pub fn new(cpu: &'a Cpu, board: &'a Board, op: FpgaOp, mode: usize, csf: &'a Csf<f32>) -> Self {
        let pattern = csf.pattern();
        let leaves = pattern.order() - 1;
        // A tree of order 1, which no run takes, has no level above its leaves.
        let level = if op == FpgaOp::Ttm { leaves.saturating_sub(1) } else { 0 };
        let start = |item| (level..leaves).fold(item, |node, level| pattern.ptr(level)[node]);
        let starts = (0..=pattern.nodes(level)).map(start).collect();
        Self { cpu, board, mode, mode_order: pattern.mode_order(), x: csf.to_coo(), starts }
    }

    /// Shares `run` as `split` says, and verifies what the processor computes.
    pub fn run(&self, run: &FpgaRun, split: Split, seed: u64, repeat: Option<usize>, verify: bool) -> Result<Shared> {
        let factor = |(mode, &dim): (usize, &usize)| uniform_dense(dim, run.columns, seed ^ mode as u64);
        let factors = self.x.dims().iter().enumerate().map(factor).collect::<Result<Vec<Mat<f32>>>>()?;
        let factors: Vec<MatRef<'_, f32>> = factors.iter().map(Mat::as_ref).collect();
        let processor =
            |items: Range<usize>, verify: bool| self.processor(run.op, self.part(items)?, &factors, repeat, verify);
        let simulated = |items: Range<usize>| -> Result<f64> {
            let part = self.part(items)?;
            let part = self.cpu.install(|| Csf::from_coo(&part, self.mode_order))?;
            Ok(run.simulate(self.board, &part)?.simulated_s)
        };
        let items = self.starts.len() - 1;
        let work = |item: usize| self.starts[item] + item;
        let share = match split {
            Split::Static(share) => share,
            Split::Adaptive => {
                let (middle, end, seconds) = probe(work, items, |part| Ok(processor(part, false)?.0))?;
                share_by_rates((work(middle), simulated(0..middle)?), (work(end) - work(middle), seconds))
            }
        };
        let middle = cut_by_share(work, items, 0, share);
        let (cpu_s, _) = processor(0..items, false)?;
        let (cpu_part_s, check) = processor(middle..items, verify)?;
        let simulated_part_s = simulated(0..middle)?;
        Ok(Shared {
            share: work(middle) as f64 / work(items).max(1) as f64,
            threads: self.cpu.threads(),
            cpu_s,
            cpu_part_s,
            simulated_part_s,
            both_s: cpu_part_s.max(simulated_part_s),
            check,
        })
    }

    /// The nonzeros of some fibers or slices.
    fn part(&self, items: Range<usize>) -> Result<CooTensor<f32>> {
        let nonzeros = self.starts[items.start]..self.starts[items.end];
        let coords = self.x.all_coords().iter().map(|c| c[nonzeros.clone()].to_vec()).collect();
        CooTensor::new(self.x.dims().to_vec(), coords, self.x.values()[nonzeros].to_vec())
    }

    /// Seconds of the shortest run on the processor.
    fn processor(
        &self,
        op: FpgaOp,
        part: CooTensor<f32>,
        factors: &[MatRef<'_, f32>],
        repeat: Option<usize>,
        verify: bool,
    ) -> Result<(f64, Check)> {
        if part.nnz() == 0 {
            return Ok((0.0, if verify { Check::of(0.0) } else { Check::NONE }));
        }
        match op {
            FpgaOp::Ttm => self.ttm(part, factors[self.mode], repeat, verify),
            FpgaOp::Mttkrp => self.mttkrp(part, factors, repeat, verify),
        }
    }

    fn ttm(
        &self,
        part: CooTensor<f32>,
        u: MatRef<'_, f32>,
        repeat: Option<usize>,
        verify: bool,
    ) -> Result<(f64, Check)> {
        let (cpu, mode) = (self.cpu, self.mode);
        let csf = cpu.install(|| Csf::from_coo(&part, self.mode_order))?;
        let fibers = Fibers::of_csf(&csf)?;
        let mut y = Mat::zeros(fibers.len(), u.cols())?;
        let times = Times::measure(repeat, || cpu.ttm_into(fibers, u, TtmAlgorithm::Auto, y.as_mut()))?;
        let check = Check::when(verify, || {
            let places = FiberCoo::from_csf(&csf)?.coords().to_vec();
            cpu.install(|| reference::ttm(&part, mode, u, &places))?.deviation(y.as_ref())
        })?;
        Ok((times.min, check))
    }

    fn mttkrp(
        &self,
        part: CooTensor<f32>,
        factors: &[MatRef<'_, f32>],
        repeat: Option<usize>,
        verify: bool,
    ) -> Result<(f64, Check)> {
        let (cpu, mode) = (self.cpu, self.mode);
        // As a tensor of its own, from its first slice to its last: the rows of the others are not the processor's.
        let slices = part.coords(mode);
        let (first, last) = (slices[0], slices[slices.len() - 1]);
        let (mut dims, mut coords, values) = part.into_parts();
        dims[mode] = (last - first) as usize + 1;
        coords[mode].iter_mut().for_each(|slice| *slice -= first);
        let x = CooTensor::new(dims, coords, values)?;
        let columns = factors[mode].cols();
        let prepared = cpu.prepare_tensor(&x, &TensorOptions::new(columns))?;
        let mut out = Mat::zeros(x.dims()[mode], columns)?;
        let times = Times::measure(repeat, || cpu.mttkrp(&prepared, factors, mode, out.as_mut()))?;
        let check =
            Check::when(verify, || cpu.install(|| reference::mttkrp(&x, factors, mode))?.deviation(out.as_ref()))?;
        Ok((times.min, check))
    }
}

/// Where the halves of the part that an adaptive run times end, and the seconds of the processor's half, which is the second. The part
/// grows until that half takes [`LONG_ENOUGH`], or to all of the work.
fn probe(
    work: impl Fn(usize) -> usize,
    items: usize,
    mut seconds: impl FnMut(Range<usize>) -> Result<f64>,
) -> Result<(usize, usize, f64)> {
    let mut part = PROBE;
    loop {
        // An item for each side, if there are two.
        let middle = cut_by_share(&work, items, 0, part / 2.0).max(1).min(items);
        let end = cut_by_share(&work, items, 0, part).max(middle + 1).min(items);
        let seconds = seconds(middle..end)?;
        if seconds >= LONG_ENOUGH || part == 1.0 {
            return Ok((middle, end, seconds));
        }
        part = f64::min(2.0 * part, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_long_beside_the_start_of_threads() {
        // 20 us, and 1 or 100 ns for each unit of work, of which an item has two.
        let timed = |items: usize, unit: f64| {
            let seconds = |part: Range<usize>| Ok(20e-6 + unit * 2.0 * part.len() as f64);
            probe(|i| 2 * i, items, seconds).unwrap()
        };
        for (items, unit) in [(1_000_000, 1e-9), (1_000_000, 1e-7), (200_000, 1e-8)] {
            let (middle, end, seconds) = timed(items, unit);
            assert!(seconds >= LONG_ENOUGH && middle.abs_diff(end - middle) <= 1 && end <= items);
            let rate = 2.0 * (end - middle) as f64 / seconds;
            assert!((0.95..=1.0).contains(&(rate * unit)), "{items}, {unit}: {rate}");
        }
        // As much as a tenth is enough where that is long, and there is no more than all.
        assert_eq!(timed(1_000_000, 1e-7).1, 100_000);
        for (items, halves) in [(1000, (500, 1000)), (2, (1, 2)), (1, (1, 1)), (0, (0, 0))] {
            let (middle, end, _) = timed(items, 1e-9);
            assert_eq!((middle, end), halves);
        }
    }

    #[test]
    fn parts_end_between_fibers_and_between_slices() {
        let cpu = Cpu::builder().threads(1).build().unwrap();
        // Slices 1 and 3 of mode 0, the first with two fibers along mode 2.
        let coords = vec![vec![3, 1, 1, 1], vec![0, 1, 0, 0], vec![2, 0, 4, 1]];
        let x = CooTensor::new(vec![4, 2, 5], coords, vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let csf = Csf::from_coo(&x, &[0, 1, 2]).unwrap();
        let shares = |op, mode| Shares::new(&cpu, &sparsimd_measure::BOARDS[0], op, mode, &csf);
        assert_eq!(shares(FpgaOp::Ttm, 2).starts, [0, 2, 3, 4]);
        let mttkrp = shares(FpgaOp::Mttkrp, 0);
        assert_eq!(mttkrp.starts, [0, 3, 4]);
        assert_eq!(mttkrp.part(0..1).unwrap().values(), [4.0, 3.0, 2.0]);
        assert_eq!(mttkrp.part(1..2).unwrap().values(), [1.0]);
        assert_eq!(mttkrp.part(2..2).unwrap().nnz(), 0);
    }
}
