//! `sparsimd info`.

use serde::Serialize;
use sparsimd::machine::{CpuSet, MemoryPolicy, Source, TransparentHugePages};
use sparsimd::{Arch, Cpu, Error, Machine, Result};
use sparsimd_measure::Ceilings;

use super::device::{Device, devices};
use super::machine::{MachineArgs, ceilings, f32_lanes, table};
use super::{Verdict, output};

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Also what the machine was measured to sustain (remembered on disk; under 15 s the first time)
    #[arg(long)]
    ceilings: bool,
    /// Measure again
    #[arg(long, requires = "ceilings")]
    fresh: bool,
}

#[derive(Serialize)]
struct Info<'a> {
    version: &'static str,
    source: &'static str,
    processor: &'a str,
    simd: &'static str,
    vector_bytes: usize,
    f32_lanes: usize,
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
    nodes: Vec<Node>,
    /// NUMA nodes whose memory this process may use.
    allowed_memory: String,
    /// Of this process; null for a described machine.
    memory_policy: Option<String>,
    transparent_huge_pages: &'static str,
    huge_page_bytes: usize,
    reserved_huge_pages: usize,
    hwloc: bool,
    devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_devices: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings: Option<Ceilings>,
}

#[derive(Serialize)]
struct Node {
    id: usize,
    memory_bytes: u64,
    distances: Vec<u32>,
    cpus: String,
    /// Those of them that this process may use.
    allowed_cpus: String,
    /// Whether this process may use its memory.
    memory_allowed: bool,
}

/// Prints what the library knows about this machine.
pub fn run(args: &Args) -> Result<Verdict> {
    let machine = args.machine.get()?;
    let described = machine.source() == Source::Described;
    if described && args.ceilings {
        let detail = "only this machine can be measured, not a described one".to_owned();
        return Err(Error::Argument { name: "ceilings", detail });
    }
    let measured = match args.ceilings {
        true => Some(ceilings(&Cpu::builder().machine(machine.clone()).build()?, args.fresh)?.0),
        false => None,
    };
    let info = Info::new(&machine, measured);
    if args.json {
        output::json(&info)?
    } else {
        output::line(&text(&info))?
    }
    Ok(Verdict::Good)
}

impl<'a> Info<'a> {
    fn new(machine: &'a Machine, ceilings: Option<Ceilings>) -> Self {
        let pages = machine.huge_pages();
        let cpus = |node| machine.threads().iter().filter(move |t| t.node == node).map(|t| t.cpu);
        let allowed_cpus = |node| cpus(node).filter(|cpu| machine.allowed().contains(*cpu));
        let nodes = machine.nodes().iter().enumerate().map(|(i, node)| Node {
            id: node.id,
            memory_bytes: node.memory,
            distances: node.distances.clone(),
            cpus: cpus(i).collect::<CpuSet>().to_string(),
            allowed_cpus: allowed_cpus(i).collect::<CpuSet>().to_string(),
            memory_allowed: machine.allowed_memory().contains(node.id),
        });
        let devices = devices();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            source: match machine.source() {
                Source::Sysfs => "sysfs",
                Source::Hwloc => "hwloc",
                Source::Described => "described",
                _ => "assumed",
            },
            processor: machine.processor(),
            simd: machine.simd().name,
            vector_bytes: machine.simd().vector_bytes,
            f32_lanes: f32_lanes(machine),
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
            nodes: nodes.collect(),
            allowed_memory: machine.allowed_memory().to_string(),
            memory_policy: (machine.source() != Source::Described).then(|| MemoryPolicy::current().to_string()),
            transparent_huge_pages: match pages.transparent {
                TransparentHugePages::Always => "always",
                TransparentHugePages::Madvise => "madvise",
                TransparentHugePages::Never => "never",
                _ => "unknown",
            },
            huge_page_bytes: pages.size,
            reserved_huge_pages: pages.reserved,
            hwloc: cfg!(feature = "hwloc"),
            no_devices: devices.as_ref().err().map(ToString::to_string),
            devices: devices.unwrap_or_default(),
            ceilings,
        }
    }
}

fn text(info: &Info<'_>) -> String {
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    let mut lines = vec![
        format!("sparsimd   {}", info.version),
        format!("processor  {} (from {})", info.processor, info.source),
        format!(
            "simd       {}, {} bytes = {} f32 lanes (also: {})",
            info.simd,
            info.vector_bytes,
            info.f32_lanes,
            info.simd_available.join(", ")
        ),
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
    ];
    for node in &info.nodes {
        let gib = node.memory_bytes as f64 / (1u64 << 30) as f64;
        let distances: Vec<_> = node.distances.iter().map(u32::to_string).collect();
        let mut line =
            format!("node {:<5} processors {}; {gib:.1} GiB; distances {}", node.id, node.cpus, distances.join(" "));
        if node.allowed_cpus != node.cpus {
            let own = if node.allowed_cpus.is_empty() { "none" } else { &node.allowed_cpus };
            line += &format!("; allowed processors: {own}");
        }
        if !node.memory_allowed {
            line += "; its memory is not allowed";
        }
        lines.push(line);
    }
    lines.extend(
        info.memory_policy
            .iter()
            .map(|policy| format!("memory     of nodes {}; policy: {policy}", info.allowed_memory)),
    );
    lines.push(format!(
        "huge pages transparent: {}, {} each; {} reserved",
        info.transparent_huge_pages,
        kib(info.huge_page_bytes),
        info.reserved_huge_pages
    ));
    lines.push(format!(
        "topology   {}",
        if info.hwloc { "hwloc is built in" } else { "from /sys: this build is without the feature 'hwloc'" }
    ));
    lines.extend(info.devices.iter().enumerate().map(|(i, d)| format!("gpu:{i}      {}", d.text())));
    lines.extend(info.no_devices.iter().map(|why| format!("gpu        {why}")));
    lines.extend(info.ceilings.as_ref().map(|ceilings| format!("\n{}", table(ceilings, info.f32_lanes))));
    lines.join("\n")
}
