//! The sharing itself, of any operation whose operand can be cut.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use super::{Hetero, Split};
use crate::cpu::Cpu;
use crate::dense::MatMut;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::plan::{PROBE, cut_by_share, share_by_rates};

/// The operand that decides where the work is: rows of a matrix, fibers or slices of a tensor.
pub(super) trait Divisible: Sync {
    /// Some items in a device's memory.
    type OnDevice: Sync;
    /// Some items as the processor works on them.
    type OnHost: Sync;
    /// Number of items.
    fn items(&self) -> usize;
    /// Work of the items before item `i`.
    fn work(&self, i: usize) -> usize;
    /// The items of a range on the device.
    fn device_part(&self, gpu: &Gpu, items: &Range<usize>) -> Result<Self::OnDevice>;
    /// The items of a range for the processor.
    fn host_part(&self, cpu: &Cpu, items: &Range<usize>) -> Result<Self::OnHost>;
}

/// An operand with the parts that each side works on, and the rates measured so far.
pub(super) struct Parts<D: Divisible> {
    pub(super) whole: D,
    /// The parts made so far, for either device: a repeated call finds its own again.
    device: [HashMap<Range<usize>, D::OnDevice>; 2],
    host: HashMap<Range<usize>, D::OnHost>,
    /// The first side's share of each operation.
    shares: HashMap<&'static str, f64>,
    /// Why either device does not compute an operation on this operand.
    refusals: [HashMap<&'static str, String>; 2],
}

impl<D: Divisible> Parts<D> {
    pub(super) fn new(whole: D) -> Self {
        let device = [HashMap::new(), HashMap::new()];
        Self { whole, device, host: HashMap::new(), shares: HashMap::new(), refusals: Default::default() }
    }

    /// The first side's share of the work that an adaptive run of `op` found.
    pub(super) fn share(&self, op: &str) -> Option<f64> {
        self.shares.get(op).copied()
    }

    /// Drops the parts, the rates and the refusals.
    pub(super) fn forget(&mut self) {
        self.device.iter_mut().for_each(HashMap::clear);
        self.host.clear();
        self.shares.clear();
        self.refusals.iter_mut().for_each(HashMap::clear);
    }

    /// Remembers that the device of a place does not compute `op`, and leaves its memory to others; any other error is the caller's.
    fn refuse(&mut self, place: usize, op: &'static str, error: Error) -> Result<()> {
        match error {
            Error::Device { detail } | Error::Unavailable { detail, .. } => {
                self.refusals[place].insert(op, detail);
                self.device[place].clear();
                Ok(())
            }
            other => Err(other),
        }
    }

    fn prepare_host(&mut self, cpu: &Cpu, items: &Range<usize>) -> Result<()> {
        if !items.is_empty() && !self.host.contains_key(items) {
            self.host.insert(items.clone(), self.whole.host_part(cpu, items)?);
        }
        Ok(())
    }

    fn prepare_device(&mut self, place: usize, gpu: &Gpu, items: &Range<usize>) -> Result<()> {
        if !items.is_empty() && !self.device[place].contains_key(items) {
            let part = self.whole.device_part(gpu, items)?;
            self.device[place].insert(items.clone(), part);
        }
        Ok(())
    }
}

/// An output that can be cut at an item.
pub(super) trait Output: Sized + Send {
    /// What belongs to the first `items` items, and the rest.
    fn cut(self, items: usize) -> Result<(Self, Self)>;
}

impl<T: Send> Output for MatMut<'_, T> {
    fn cut(self, rows: usize) -> Result<(Self, Self)> {
        let (all, cols, stride) = (self.rows(), self.cols(), self.stride());
        let data = self.into_data();
        let (head, tail) = data.split_at_mut((rows * stride).min(data.len()));
        Ok((MatMut::new(head, rows, cols, stride)?, MatMut::new(tail, all - rows, cols, stride)?))
    }
}

/// How an operation is computed on a part: `upload` brings the operands that are not cut to a device, `device` and `processor`
/// compute the items of a range. `device` leaves its output as it was when it fails, unless it does not read it.
pub(super) struct Job<U, D, P> {
    pub(super) op: &'static str,
    pub(super) upload: U,
    pub(super) device: D,
    pub(super) processor: P,
}

impl Hetero {
    /// Runs the job on all items of `parts`.
    pub(super) fn share_out<W, O, S, U, D, P>(&self, parts: &mut Parts<W>, mut out: O, job: Job<U, D, P>) -> Result<()>
    where
        W: Divisible,
        O: Output,
        S: Sync,
        U: Fn(&Gpu) -> Result<S> + Sync,
        D: Fn(&Gpu, &W::OnDevice, &S, &Range<usize>, &mut O) -> Result<()> + Sync,
        P: Fn(&Cpu, &W::OnHost, &Range<usize>, &mut O) -> Result<()> + Sync,
    {
        let items = parts.whole.items();
        let mut operands: [Option<S>; 2] = [None, None];
        let refusals = |parts: &Parts<W>| parts.refusals.each_ref().map(|of| of.contains_key(job.op));
        let before = refusals(parts);
        for (place, gpu) in self.gpus.iter().enumerate().filter(|&(place, _)| !before[place]) {
            match (job.upload)(gpu) {
                Ok(uploaded) => operands[place] = Some(uploaded),
                Err(error) => parts.refuse(place, job.op, error)?,
            }
        }
        // With no device left, all is the processor's.
        let alone = operands.iter().all(Option::is_none);
        let mut step = |parts: &mut Parts<W>, ranges: [Range<usize>; 2], out: O| -> Result<(O, [f64; 2])> {
            let (first, rest) = out.cut(ranges[0].len())?;
            let (second, rest) = rest.cut(ranges[1].len())?;
            let seconds = self.both(parts, &mut operands, ranges, [first, second], &job)?;
            Ok((rest, seconds))
        };
        let mut first = 0;
        let known = match self.split {
            _ if alone => Some(0.0),
            Split::Static(share) => Some(share),
            Split::Adaptive => parts.share(job.op),
        };
        let share = match known {
            Some(share) => share,
            None => {
                let cut = |parts: &Parts<W>, share| cut_by_share(|i| parts.whole.work(i), items, 0, share);
                // An item for each side before anything is timed: kernels are compiled in their first use.
                let warm = 2.min(items);
                let (rest, _) = step(parts, [0..warm / 2, warm / 2..warm], out)?;
                let middle = cut(parts, PROBE / 2.0).max(warm);
                let end = cut(parts, PROBE).max(middle);
                let (rest, seconds) = step(parts, [warm..middle, middle..end], rest)?;
                (out, first) = (rest, end);
                let work = |from: usize, to: usize| parts.whole.work(to) - parts.whole.work(from);
                let share = share_by_rates((work(warm, middle), seconds[0]), (work(middle, end), seconds[1]));
                parts.shares.insert(job.op, share);
                share
            }
        };
        let middle = cut_by_share(|i| parts.whole.work(i), items, first, share);
        step(parts, [first..middle, middle..items], out)?;
        if refusals(parts) != before {
            // Rates that a failed device had part in say nothing of the calls to come.
            parts.shares.remove(job.op);
        }
        for (place, refusals) in parts.refusals.iter().enumerate() {
            refusals.get(job.op).into_iter().for_each(|why| self.note_failure(place, job.op, why.clone()));
        }
        Ok(())
    }

    /// Both sides at the same time, each on its range, the first on a thread of its own. Returns the seconds of each.
    fn both<W, O, S, U, D, P>(
        &self,
        parts: &mut Parts<W>,
        operands: &mut [Option<S>; 2],
        ranges: [Range<usize>; 2],
        mut outs: [O; 2],
        job: &Job<U, D, P>,
    ) -> Result<[f64; 2]>
    where
        W: Divisible,
        O: Output,
        S: Sync,
        U: Sync,
        D: Fn(&Gpu, &W::OnDevice, &S, &Range<usize>, &mut O) -> Result<()> + Sync,
        P: Fn(&Cpu, &W::OnHost, &Range<usize>, &mut O) -> Result<()> + Sync,
    {
        for (place, range) in ranges.iter().enumerate() {
            if operands[place].is_some()
                && let Err(error) = parts.prepare_device(place, &self.gpus[place], range)
            {
                parts.refuse(place, job.op, error)?;
                operands[place] = None;
            }
            if operands[place].is_none() {
                parts.prepare_host(&self.cpu, range)?;
            }
        }
        let processor = |range: &Range<usize>, out: &mut O, parts: &Parts<W>| {
            parts.host.get(range).map_or(Ok(()), |part| (job.processor)(&self.cpu, part, range, out))
        };
        let run = |place: usize, out: &mut O| -> Result<f64> {
            let start = Instant::now();
            let range = &ranges[place];
            match &operands[place] {
                Some(operands) => {
                    let part = parts.device[place].get(range);
                    part.map_or(Ok(()), |part| (job.device)(&self.gpus[place], part, operands, range, out))
                }
                None => processor(range, out, parts),
            }?;
            Ok(start.elapsed().as_secs_f64())
        };
        let [first, second] = &mut outs;
        let done = match operands[0] {
            // Two jobs for the processor come one after the other: a thread that waits for its pool from outside might wait
            // for the thread that waits for it.
            None => [run(0, first), run(1, second)],
            Some(_) => std::thread::scope(|scope| -> Result<_> {
                let run = &run;
                let first = std::thread::Builder::new().spawn_scoped(scope, move || run(0, first));
                let first = first.map_err(|e| Error::Unavailable { what: "a thread", detail: e.to_string() })?;
                let second = run(1, second);
                Ok([first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), second])
            })?,
        };
        let mut seconds = [0.0; 2];
        for (place, done) in done.into_iter().enumerate() {
            match done {
                Ok(taken) => seconds[place] = taken,
                Err(error) if operands[place].is_some() => {
                    parts.refuse(place, job.op, error)?;
                    operands[place] = None;
                    parts.prepare_host(&self.cpu, &ranges[place])?;
                    processor(&ranges[place], &mut outs[place], parts)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(seconds)
    }
}
