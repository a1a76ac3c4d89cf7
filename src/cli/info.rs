//! `sparsimd info`.

use serde::Serialize;
use sparsimd::{Arch, Machine, Result};

use super::{Verdict, output};

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Info<'a> {
    version: &'static str,
    processor: &'a str,
    simd: &'static str,
    vector_bytes: usize,
    simd_available: Vec<&'static str>,
    sockets: usize,
    numa_nodes: usize,
    l3_groups: usize,
    cores: usize,
    hardware_threads: usize,
    allowed: String,
    threads: usize,
    l1d_bytes: usize,
    l2_bytes: usize,
    l3_bytes: usize,
    line_bytes: usize,
}

/// Prints what the library knows about this machine.
pub fn run(args: &Args) -> Result<Verdict> {
    let machine = Machine::detect();
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        processor: machine.processor(),
        simd: machine.simd().name,
        vector_bytes: machine.simd().vector_bytes,
        simd_available: Arch::available().into_iter().map(Arch::name).collect(),
        sockets: machine.sockets(),
        numa_nodes: machine.nodes().len(),
        l3_groups: machine.l3_groups(),
        cores: machine.cores(),
        hardware_threads: machine.threads().len(),
        allowed: machine.allowed().to_string(),
        threads: machine.parallelism(),
        l1d_bytes: machine.l1d_bytes(),
        l2_bytes: machine.l2_bytes(),
        l3_bytes: machine.l3_bytes(),
        line_bytes: machine.line_bytes(),
    };
    if args.json {
        output::json(&info)?;
    } else {
        output::line(&text(&info))?;
    }
    Ok(Verdict::Good)
}

fn text(info: &Info<'_>) -> String {
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    [
        format!("sparsimd   {}", info.version),
        format!("processor  {}", info.processor),
        format!("simd       {}, {} bytes (also: {})", info.simd, info.vector_bytes, info.simd_available.join(", ")),
        format!(
            "cores      {} in {} socket(s), {} NUMA node(s), {} L3 group(s); {} hardware thread(s)",
            info.cores, info.sockets, info.numa_nodes, info.l3_groups, info.hardware_threads
        ),
        format!("allowed    processors {}; {} thread(s) by default", info.allowed, info.threads),
        format!(
            "caches     L1d {}, L2 {}, L3 {}; lines of {} bytes",
            kib(info.l1d_bytes),
            kib(info.l2_bytes),
            kib(info.l3_bytes),
            info.line_bytes
        ),
    ]
    .join("\n")
}
