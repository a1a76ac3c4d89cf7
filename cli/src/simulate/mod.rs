//! `sparsimd simulate`: the distributed operations on more ranks than there are, by SimGrid's replay of their traces.
//!
//! ```text
//! for weak and strong scaling, every operation and number of ranks:
//!     steps of every rank from the plan's schedule        -> a trace a rank
//!     smpirun -replay, with the arithmetic and without    -> seconds, and seconds of communication
//! ```
//! A rank's own arithmetic is measured on this machine; the network is the platform's.

mod cases;
mod picture;
mod ping_pong;
mod platform;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use serde::Serialize;
use sparsimd::plan::{Op, PlanOptions, TensorOptions};
use sparsimd::{Cpu, Error, Mat, MatRef, Result, generate};
use sparsimd_distributed::{Step, write_trace};

use super::executor::Executor;
use super::{Verdict, output};
use cases::{Case, Prepared, Share};
use platform::Platform;

/// A measured rate is that of the fastest of so many runs.
const RUNS: usize = 5;

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of ranks: A, 2 A, 4 A, ... up to B
    #[arg(long, value_name = "A..B", default_value = "64..1024")]
    ranks: Ranks,
    /// Cluster: a platform file of SimGrid with one `cluster` element [default: links of 100 Gbit/s and 1 us]
    #[arg(long, value_name = "FILE")]
    platform: Option<PathBuf>,
    /// Rows of A for each rank: of any number of ranks (weak scaling), of the least number (strong scaling)
    #[arg(long, value_name = "M", default_value_t = 32768)]
    rows: usize,
    /// Nonzeros in each row of a random matrix, and for each row of a random tensor
    #[arg(long, value_name = "D", default_value_t = 16)]
    degree: usize,
    /// Columns of B
    #[arg(short = 'n', value_name = "N", default_value_t = 128)]
    n: usize,
    /// Components of the CP decomposition
    #[arg(long, value_name = "R", default_value_t = 16)]
    components: usize,
    /// GFLOP/s of a rank's own arithmetic [default: measured here, with the threads of this machine]
    #[arg(long, value_name = "X")]
    gflops: Option<f64>,
    /// Folder for simulate.csv, scaling.svg and scaling.png
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Messages between two ranks, there and back, instead: simulated, by the model and, with --mpi, measured
    #[arg(long)]
    ping_pong: bool,
    /// On the two ranks that an MPI launcher starts: mpirun -n 2 sparsimd simulate --ping-pong --mpi (a build with the feature mpi); --out
    /// takes measured.xml, a platform of what was measured
    #[arg(long, requires = "ping_pong")]
    pub mpi: bool,
    #[command(flatten)]
    executor: Executor,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// `A..B` or `A`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ranks {
    least: usize,
    most: usize,
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        match (least.parse(), most.parse()) {
            (Ok(least), Ok(most)) if 0 < least && least <= most && most <= 1 << 16 => Ok(Self { least, most }),
            _ => Err("neither a number nor A..B, such as 64..1024, of 65536 at most".to_owned()),
        }
    }
}

/// One simulated run.
#[derive(Clone, Debug, Serialize)]
struct Row {
    case: &'static str,
    scaling: &'static str,
    ranks: usize,
    replication: usize,
    /// Words of the rank that receives the most.
    words: f64,
    /// With the arithmetic.
    simulated_s: f64,
    /// Without it.
    simulated_communication_s: f64,
    /// Latencies, bytes and arithmetic, one after the other.
    model_s: f64,
    model_communication_s: f64,
}

/// One JSON object, or a table.
#[derive(Serialize)]
struct Report {
    latency_s: f64,
    bandwidth: f64,
    /// Of a rank, by operation.
    gflops: Vec<(&'static str, f64)>,
    rows: Vec<Row>,
}

/// Simulates all cases.
pub fn run(args: &Args) -> Result<Verdict> {
    args.check()?;
    let platform = Platform::load(args.platform.as_deref())?;
    if args.ping_pong {
        return ping_pong::run(args, &platform);
    }
    let hosts = platform.hosts.len();
    if args.ranks.most > hosts {
        let detail = format!("{} ranks on a cluster of {hosts} nodes", args.ranks.most);
        return Err(Error::Argument { name: "ranks", detail });
    }
    let share = |rows: f64| Share { rows, degree: args.degree, n: args.n, components: args.components };
    let rates = args.rates(&share(args.rows as f64))?;
    let mut rows = Vec::new();
    for (case, &(_, rate)) in Case::ALL.into_iter().zip(&rates) {
        for scaling in ["weak", "strong"] {
            let counts = std::iter::successors(Some(args.ranks.least), |p| Some(2 * p));
            for ranks in counts.take_while(|&p| p <= args.ranks.most) {
                let shrunk = if scaling == "strong" { args.ranks.least as f64 / ranks as f64 } else { 1.0 };
                let share = share(args.rows as f64 * shrunk);
                let prepared = case.prepare(ranks, &share, platform.cluster, rate);
                let row = simulate(&platform, case, scaling, prepared, rate)?;
                if !args.json {
                    output::note(&format!("{} {scaling}, {ranks} ranks: {:.3e} s", case.name(), row.simulated_s));
                }
                rows.push(row);
            }
        }
    }
    if let Some(folder) = &args.out {
        picture::save_scaling(folder, &rows)?;
        write_csv(&folder.join("simulate.csv"), &rows)?;
    }
    let gflops = Case::ALL.iter().zip(&rates).map(|(case, (_, rate))| (case.name(), rate / 1e9)).collect();
    let (latency_s, bandwidth) = (platform.cluster.latency, platform.cluster.bandwidth);
    Report { latency_s, bandwidth, gflops, rows }.print(args.json)?;
    Ok(Verdict::Good)
}

impl Args {
    fn check(&self) -> Result<()> {
        let zero = [("rows", self.rows), ("degree", self.degree), ("n", self.n), ("components", self.components)];
        if let Some((name, _)) = zero.into_iter().find(|(_, number)| *number == 0) {
            return Err(Error::Argument { name, detail: "0; at least 1".to_owned() });
        }
        let most = zero.map(|(name, number)| (name, number, if name == "rows" { u32::MAX as usize } else { 1 << 16 }));
        if let Some((name, number, most)) = most.into_iter().find(|(_, number, most)| number > most) {
            return Err(Error::Argument { name, detail: format!("{number}; at most {most}") });
        }
        match self.gflops {
            Some(x) if !(x > 0.0 && x.is_finite()) => {
                Err(Error::Argument { name: "gflops", detail: format!("{x} is no speed") })
            }
            _ => Ok(()),
        }
    }

    /// Operations a second of a rank in each case: as given, or measured on one rank's share.
    fn rates(&self, share: &Share) -> Result<Vec<(Case, f64)>> {
        if let Some(gflops) = self.gflops {
            return Ok(Case::ALL.map(|case| (case, gflops * 1e9)).to_vec());
        }
        let cpu = self.executor.cpu()?;
        let (spmm, mttkrp) = (spmm_rate(&cpu, share)?, mttkrp_rate(&cpu, share)?);
        Ok(vec![(Case::Dense, spmm), (Case::Aware, spmm), (Case::Cp, mttkrp)])
    }
}

fn fastest(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

fn spmm_rate(cpu: &Cpu, share: &Share) -> Result<f64> {
    let rows = share.rows as usize;
    let sparsity = 1.0 - (share.degree as f64 / rows as f64).min(1.0);
    let a = generate::random_matrix::<f32>(rows, rows, sparsity, 0)?;
    let prepared = cpu.prepare(&a, &PlanOptions::new(Op::Spmm, share.n))?;
    let b = generate::uniform_dense::<f32>(rows, share.n, 1)?;
    let mut c = Mat::zeros(rows, share.n)?;
    let seconds = fastest(|| cpu.spmm(1.0, &prepared, b.as_ref(), 0.0, c.as_mut()))?;
    Ok((2 * a.nnz() * share.n) as f64 / seconds)
}

fn mttkrp_rate(cpu: &Cpu, share: &Share) -> Result<f64> {
    let rows = share.rows as usize;
    // Every place as likely as any other.
    let uniform = generate::Initiator::new(vec![2; 3], vec![1.0; 8])?;
    let nnz = (rows * share.degree).min(rows.saturating_pow(3) / 2).max(1);
    let x = generate::kronecker::<f32>(&[rows; 3], nnz, &uniform, 0)?;
    let prepared = cpu.prepare_tensor(&x, &TensorOptions::new(share.components))?;
    let factor = generate::uniform_dense::<f32>(rows, share.components, 1)?;
    let views: Vec<MatRef<'_, f32>> = vec![factor.as_ref(); 3];
    let mut out = Mat::zeros(rows, share.components)?;
    let seconds = fastest(|| cpu.mttkrp(&prepared, &views, 0, out.as_mut()))?;
    Ok((3 * x.nnz() * share.components) as f64 / seconds)
}

/// Replays `prepared` with its arithmetic and without.
fn simulate(platform: &Platform, case: Case, scaling: &'static str, prepared: Prepared, rate: f64) -> Result<Row> {
    let Prepared { mut steps, replication, words, communication, work } = prepared;
    let ranks = steps.len();
    // A second of arithmetic is a second, whatever the speed of the platform's nodes.
    let scale = platform.cluster.flops / rate;
    steps.iter_mut().flatten().for_each(|step| step.flops *= scale);
    let simulated_s = replay(platform, &steps)?;
    steps.iter_mut().flatten().for_each(|step| step.flops = 0.0);
    let simulated_communication_s = replay(platform, &steps)?;
    let (model_s, model_communication_s) = (communication + work, communication);
    let (case, words) = (case.name(), words);
    Ok(Row {
        case,
        scaling,
        ranks,
        replication,
        words,
        simulated_s,
        simulated_communication_s,
        model_s,
        model_communication_s,
    })
}

/// Seconds that SimGrid finds for `steps` on `platform`.
fn replay(platform: &Platform, steps: &[Vec<Step>]) -> Result<f64> {
    let fail = |path: &Path, source| Error::Io { path: path.to_owned(), source };
    let folder = tempfile::tempdir().map_err(|source| fail(&std::env::temp_dir(), source))?;
    let at = |name: &str| folder.path().join(name);
    let write = |path: &Path, text: &str| std::fs::write(path, text).map_err(|source| fail(path, source));
    let mut list = String::new();
    let size = steps.len();
    for (rank, steps) in steps.iter().enumerate() {
        let path = at(&format!("{rank}.trace"));
        let traced = || -> std::io::Result<()> {
            let mut out = BufWriter::new(std::fs::File::create(&path)?);
            write_trace(&mut out, rank, size, steps)?;
            out.flush()
        };
        traced().map_err(|source| fail(&path, source))?;
        list.push_str(&format!("{}\n", path.display()));
    }
    let [traces, cluster, hosts] = ["traces", "cluster.xml", "hosts"].map(at);
    write(&traces, &list)?;
    write(&cluster, &platform.text)?;
    write(&hosts, &format!("{}\n", platform.hosts[..steps.len()].join("\n")))?;
    let mut command = Command::new("smpirun");
    command.current_dir(folder.path()).args(["-np", &steps.len().to_string()]);
    command.arg("-platform").arg(&cluster).arg("-hostfile").arg(&hosts).arg("-replay").arg(&traces);
    // The platform's figures as they are: no factors that were fitted to other networks, and no window of TCP.
    command.args([
        "--cfg=smpi/bw-factor:0:1",
        "--cfg=smpi/lat-factor:0:1",
        "--cfg=network/crosstraffic:0",
        "--cfg=network/TCP-gamma:0",
    ]);
    let done = match command.output() {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            let detail = "smpirun is not installed (Debian: libsimgrid-dev)".to_owned();
            return Err(Error::Unavailable { what: "a simulation", detail });
        }
        Err(source) => return Err(fail(Path::new("smpirun"), source)),
        Ok(done) => done,
    };
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let seconds = text.split("Simulation time ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    seconds.ok_or_else(|| {
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no word").to_owned();
        Error::Unavailable { what: "a simulation", detail: format!("smpirun ended with {}: {last}", done.status) }
    })
}

const COLUMNS: &str =
    "case,scaling,ranks,replication,words,simulated_s,simulated_communication_s,model_s,model_communication_s";

fn write_csv(path: &Path, rows: &[Row]) -> Result<()> {
    let line = |row: &Row| {
        let Row { case, scaling, ranks, replication, words, .. } = row;
        let seconds = [row.simulated_s, row.simulated_communication_s, row.model_s, row.model_communication_s];
        let seconds = seconds.map(|s| format!("{s:.6e}")).join(",");
        format!("{case},{scaling},{ranks},{replication},{words:.0},{seconds}\n")
    };
    let text: String = std::iter::once(format!("{COLUMNS}\n")).chain(rows.iter().map(line)).collect();
    std::fs::write(path, text).map_err(|source| Error::Io { path: path.to_owned(), source })
}

impl Report {
    fn print(&self, json: bool) -> Result<()> {
        if json {
            return output::json(self);
        }
        let rates: Vec<String> = self.gflops.iter().map(|(case, x)| format!("{case} {x:.2}")).collect();
        output::line(&format!(
            "simulated network of {:.2} us a message and {:.2} GB/s; GFLOP/s of a rank: {}\n\
             case        scaling  ranks    c         words  simulated s      model s  communication s      model s",
            self.latency_s * 1e6,
            self.bandwidth / 1e9,
            rates.join(", ")
        ))?;
        for row in &self.rows {
            output::line(&format!(
                "{:<11} {:<7} {:>6} {:>4} {:>13.0} {:>12.3e} {:>12.3e} {:>16.3e} {:>12.3e}",
                row.case,
                row.scaling,
                row.ranks,
                row.replication,
                row.words,
                row.simulated_s,
                row.model_s,
                row.simulated_communication_s,
                row.model_communication_s
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Ranks;

    #[test]
    fn numbers_of_ranks() {
        let parse = |text: &str| text.parse().ok();
        assert_eq!(parse("64..1024"), Some(Ranks { least: 64, most: 1024 }));
        assert_eq!(parse("8"), Some(Ranks { least: 8, most: 8 }));
        for bad in ["", "0", "8..4", "a..b", "1..1000000"] {
            assert_eq!(parse(bad), None::<Ranks>, "{bad}");
        }
    }
}
