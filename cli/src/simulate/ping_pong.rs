//! `sparsimd simulate --ping-pong`: messages between two ranks, there and back. The platform's are simulated, and beside them stand the
//! model's and, where a launcher has started two ranks, this machine's.
//!
//! ```text
//! measured    the fastest of some messages there and back, halved
//! fitted      simulated on a cluster of the latency and bandwidth that were measured: that of 8 bytes, and that of 4 MiB
//! ```

use serde::Serialize;
use sparsimd::{Error, Result};
use sparsimd_distributed::{Cluster, Step};

use super::platform::Platform;
use super::{Args, replay};
use crate::{Verdict, output};

/// From one that has a latency and nothing else to one whose time is that of its bytes.
const BYTES: [usize; 6] = [8, 1 << 10, 1 << 14, 1 << 17, 1 << 20, LONG];
const LONG: usize = 4 << 20;
/// SimGrid tells whole microseconds.
const TURNS: usize = 1000;

/// Messages of a length, one way.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    bytes: usize,
    /// On the platform.
    simulated_s: f64,
    /// Latency and bytes by the bandwidth.
    model_s: f64,
    measured_s: Option<f64>,
    /// Simulated, on the cluster that was measured.
    fitted_s: Option<f64>,
}

/// One JSON object, or a table.
#[derive(Serialize)]
struct Report {
    latency_s: f64,
    bandwidth: f64,
    measured_latency_s: Option<f64>,
    measured_bandwidth: Option<f64>,
    rows: Vec<Row>,
}

/// Simulates messages, and measures them if the ranks of a launcher are asked for.
pub fn run(args: &Args, platform: &Platform) -> Result<Verdict> {
    if args.mpi {
        return measured(args, platform);
    }
    report(args, platform, None).map(|()| Verdict::Good)
}

/// On the two ranks of a launcher, of which the first reports.
#[cfg(feature = "mpi")]
fn measured(args: &Args, platform: &Platform) -> Result<Verdict> {
    use sparsimd_distributed::Comm;

    crate::ranks::on_ranks(|mpi| {
        let comm: &dyn Comm = mpi;
        if comm.size() != 2 {
            let detail = format!("{} ranks; a ping-pong has two", comm.size());
            return Err(Error::Argument { name: "ping-pong", detail }.into());
        }
        let mut seconds = [0.0; BYTES.len()];
        for (seconds, bytes) in seconds.iter_mut().zip(BYTES) {
            *seconds = one_way(comm, bytes)?;
        }
        let reported = if comm.rank() == 0 { report(args, platform, Some(seconds)) } else { Ok(()) };
        comm.agree(reported.map_err(Into::into)).map(|()| Verdict::Good)
    })
}

/// The error that this build has no ranks, which `check_launcher` has found before.
#[cfg(not(feature = "mpi"))]
fn measured(_: &Args, _: &Platform) -> Result<Verdict> {
    crate::ranks::check_launcher(true).map(|()| Verdict::Failed)
}

/// Seconds of a message of so many bytes between two ranks.
#[cfg(feature = "mpi")]
fn one_way(comm: &dyn sparsimd_distributed::Comm, bytes: usize) -> sparsimd_distributed::Result<f64> {
    /// The first ones set connections up; on a machine that others use the fastest is the one that they have left alone.
    const TRIES: usize = 50;
    let (other, sent, mut room) = (1 - comm.rank(), vec![1u8; bytes], vec![0u8; bytes]);
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        comm.least(0)?;
        let start = std::time::Instant::now();
        for turn in 0..2 {
            match turn == comm.rank() {
                true => comm.exchange_during(&[(other, &sent)], Vec::new(), || Ok(()))?,
                false => comm.exchange_during(&[], vec![(other, &mut room)], || Ok(()))?,
            }
        }
        least = least.min(start.elapsed().as_secs_f64() / 2.0);
    }
    Ok(least)
}

/// Seconds that SimGrid finds for a message on `platform`, one way.
fn simulated(platform: &Platform, bytes: usize) -> Result<f64> {
    let send = |to| Step { sends: vec![(to, bytes)], ..Step::default() };
    let receive = |from| Step { receives: vec![(from, bytes)], ..Step::default() };
    let turns = |steps: [Step; 2]| vec![steps; TURNS].concat();
    let steps = [turns([send(1), receive(1)]), turns([receive(0), send(0)])];
    Ok(replay(platform, &steps)? / (2 * TURNS) as f64)
}

fn report(args: &Args, platform: &Platform, measured: Option<[f64; BYTES.len()]>) -> Result<()> {
    if platform.hosts.len() < 2 {
        return Err(Error::Argument { name: "platform", detail: "a cluster of one node sends nothing".to_owned() });
    }
    let fitted = measured.map(|seconds| {
        let (latency, long) = (seconds[0], seconds[BYTES.len() - 1]);
        // Where ranks wait for a processor, the shortest message may take longer than the longest. SimGrid aborts at no time at all.
        Platform::of(latency, LONG as f64 / (long - latency).max(latency / 100.0))
    });
    let mut rows = Vec::new();
    for (k, bytes) in BYTES.into_iter().enumerate() {
        rows.push(Row {
            bytes,
            simulated_s: simulated(platform, bytes)?,
            model_s: platform.cluster.latency + bytes as f64 / platform.cluster.bandwidth,
            measured_s: measured.map(|seconds| seconds[k]),
            fitted_s: fitted.as_ref().map(|fitted| simulated(fitted, bytes)).transpose()?,
        });
    }
    if let (Some(folder), Some(fitted)) = (&args.out, &fitted) {
        let path = folder.join("measured.xml");
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, &fitted.text));
        written.map_err(|source| Error::Io { path: path.clone(), source })?;
    }
    let Cluster { latency, bandwidth, .. } = platform.cluster;
    let [measured_latency_s, measured_bandwidth] =
        [fitted.as_ref().map(|fitted| fitted.cluster.latency), fitted.as_ref().map(|fitted| fitted.cluster.bandwidth)];
    Report { latency_s: latency, bandwidth, measured_latency_s, measured_bandwidth, rows }.print(args.json)
}

impl Report {
    fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let cluster =
            |latency: f64, bandwidth: f64| format!("{:.2} us a message and {:.2} GB/s", latency * 1e6, bandwidth / 1e9);
        let here = match (self.measured_latency_s, self.measured_bandwidth) {
            (Some(latency), Some(bandwidth)) => format!("; measured here: {}", cluster(latency, bandwidth)),
            _ => String::new(),
        };
        output::line(&format!(
            "simulated network of {}{here}\n   bytes  simulated us  model us  measured us  fitted us",
            cluster(self.latency_s, self.bandwidth)
        ))?;
        for row in &self.rows {
            let us = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{:.2}", s * 1e6));
            let [simulated, model, measured, fitted] =
                [Some(row.simulated_s), Some(row.model_s), row.measured_s, row.fitted_s].map(us);
            output::line(&format!("{:>8} {simulated:>13} {model:>9} {measured:>12} {fitted:>10}", row.bytes))?;
        }
        Ok(())
    }
}
