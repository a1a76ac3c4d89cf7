//! CP-ALS on many ranks: who reads and writes what, and what is reported.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use sparsimd::MatRef;
use sparsimd::decomp::CpState;
use sparsimd_distributed::{Comm, CountComm, DistTensor, Element, Error, MpiComm, Result, Traffic, read_entries};

use super::run::{executor, on_ranks};
use crate::cp::{Args, init, options};
use crate::decomposition::Watch;
use crate::timing::{Dtype, Times};
use crate::{Verdict, output};

/// One line of JSON, or some of text.
#[derive(Serialize)]
struct Report {
    fit: f64,
    iterations: usize,
    nnz: usize,
    ranks: usize,
    /// Of each rank.
    threads: usize,
    algorithm: &'static str,
    /// Ranks that share rows: none do.
    replication: usize,
    /// Parts of each mode.
    grid: Vec<usize>,
    /// All ranks' together, in the last iteration.
    words_sent: f64,
    /// Likewise, by the model.
    model_words: f64,
    /// Of an iteration on the rank that waits longest, in seconds: the median.
    communication_s: f64,
    /// Of an iteration on the slowest rank: the median.
    iteration_s: f64,
    /// In all, from laying out the tensor on.
    seconds: f64,
    interrupted: bool,
}

impl Args {
    /// Decomposes on the launcher's ranks.
    pub fn run_on_ranks(&self) -> sparsimd::Result<Verdict> {
        on_ranks(|mpi| match self.common.dtype {
            Dtype::F32 => decompose::<f32>(self, mpi),
            Dtype::F64 => decompose::<f64>(self, mpi),
        })
    }
}

fn decompose<T: Element>(args: &Args, mpi: &MpiComm) -> Result<Verdict> {
    let (comm, common): (&dyn Comm, _) = (mpi, &args.common);
    let first = comm.rank() == 0;
    comm.agree(common.check().map_err(Error::from))?;
    let cpu = executor(mpi, common.executor())?;
    let (path, zero_based) = common.file();
    let (dims, entries) = read_entries::<T>(&cpu, comm, path, zero_based)?;
    comm.agree(if first { common.make_folder() } else { Ok(()) }.map_err(Error::from))?;
    let watch = comm.agree(Watch::start(common.iters, first).map_err(Error::from))?;
    let tensor = DistTensor::new(&cpu, comm, &dims, &entries)?;
    drop(entries);
    // Each rank reads its rows.
    let resume = |path: &Path| CpState::load_rows_of(path, &dims, &tensor.rows(), tensor.checksum());
    let options = options(args, comm.agree(init(args, dims.len(), resume).map_err(Error::from))?);

    let counted = CountComm::new(comm);
    let (mut seconds, mut waiting, mut traffic) = (Vec::new(), Vec::new(), Traffic::default());
    let (mut unsaved, mut before) = (Ok(()), Instant::now());
    let state = tensor.cp_als(&cpu, &counted, &options, |state, iteration| {
        seconds.push(before.elapsed().as_secs_f64());
        traffic = counted.take();
        waiting.push(traffic.time.as_secs_f64());
        watch.show(iteration.number, iteration.fit, iteration.time);
        if let Some(path) = common.due(iteration.number) {
            unsaved = tensor.save(comm, state, path);
        }
        before = Instant::now();
        if unsaved.is_err() { ControlFlow::Break(()) } else { watch.flow(false) }
    })?;
    unsaved?;
    // A signal may have come to any of the ranks.
    let mut asked = [f64::from(u8::from(watch.interrupted()))];
    comm.largest(&mut asked)?;
    let interrupted = asked[0] > 0.0;
    if let Some(path) = common.checkpoint().filter(|_| interrupted) {
        tensor.save(comm, &state, path)?;
    }
    let whole = tensor.whole(comm, &state)?;
    let all = watch.finish();
    let written = match first {
        true => MatRef::new(&whole.lambda, whole.lambda.len(), 1, 1)
            .and_then(|lambda| common.write(&whole.factors, ("lambda", &[whole.lambda.len()], lambda))),
        false => Ok(()),
    };
    comm.agree(written.map_err(Error::from))?;

    comm.largest(&mut seconds)?;
    comm.largest(&mut waiting)?;
    let mut sent = [traffic.bytes_sent as f64];
    comm.sum(&mut sent)?;
    let word = size_of::<T>() as f64;
    let median = |times: Vec<f64>| if times.is_empty() { 0.0 } else { Times::of(times).median };
    let report = Report {
        fit: whole.fit(),
        iterations: whole.fits.len(),
        nnz: tensor.nnz(),
        ranks: comm.size(),
        threads: cpu.threads(),
        algorithm: "medium-grained",
        replication: 1,
        grid: tensor.grid().to_vec(),
        words_sent: sent[0] / word,
        model_words: tensor.model_bytes(comm, args.rank)? / word,
        communication_s: median(waiting),
        iteration_s: median(seconds),
        seconds: all,
        interrupted,
    };
    let printed = if first { report.print(common.is_json()) } else { Ok(()) };
    comm.agree(printed.map_err(Error::from))?;
    if !interrupted {
        return Ok(Verdict::Good);
    }
    if first {
        common.note_interrupted(whole.fits.len());
    }
    Ok(Verdict::Interrupted)
}

impl Report {
    fn print(&self, json: bool) -> sparsimd::Result<()> {
        if json {
            return output::json(self);
        }
        let Self { fit, iterations, seconds, iteration_s, communication_s, ranks, threads, words_sent, .. } = self;
        output::line(&format!(
            "{ranks} ranks of {threads} threads, grid {:?}; {words_sent} words sent in the last iteration\n\
             fit {fit:.6} after {iterations} iterations of {iteration_s:.3} s ({communication_s:.3} s communication), {seconds:.3} s in all",
            self.grid
        ))
    }
}
