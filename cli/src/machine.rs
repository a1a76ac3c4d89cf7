//! The machine that a command is about, and its measured ceilings, remembered on disk.

use std::path::PathBuf;

use sparsimd::io::write_atomically;
use sparsimd::machine::cache_folder;
use sparsimd::{Cpu, Machine, Result};
use sparsimd_measure::Ceilings;
use xxhash_rust::xxh3::xxh3_64;

use super::output;

/// `--machine DESCRIPTION`.
#[derive(Debug, clap::Args)]
pub struct MachineArgs {
    /// Another machine, in hwloc's synthetic notation, such as "numa:2 core:8 pu:2"
    #[arg(long, value_name = "DESCRIPTION")]
    machine: Option<String>,
}

impl MachineArgs {
    /// The described machine, or this one.
    pub fn get(&self) -> Result<Machine> {
        self.machine.as_deref().map_or_else(|| Ok(Machine::detect()), Machine::describe)
    }
}

/// The ceilings of the threads of `cpu`: from an earlier undisturbed measurement on this machine, unless `fresh` asks for a
/// new one.
/// Whether they are new, and where they are kept (when they are).
pub fn ceilings(cpu: &Cpu, fresh: bool) -> Result<(Ceilings, bool, Option<PathBuf>)> {
    let path = cache_file(cpu);
    let known = path.as_ref().filter(|_| !fresh).and_then(|path| {
        // What cannot be read, or was written by another version, is measured again.
        serde_json::from_slice::<Ceilings>(&std::fs::read(path).ok()?).ok()
    });
    if let Some(ceilings) = known {
        return Ok((ceilings, false, path));
    }
    output::note("measuring the machine's ceilings, some seconds ...");
    let ceilings = Ceilings::measure(cpu)?;
    // What other work on the machine has lowered must not be taken for the machine's from now on.
    let undisturbed = ceilings.undisturbed(f32_lanes(cpu.machine()));
    if !undisturbed {
        output::note(
            "the multiply-adds are not where the clock has them, as if other work ran: shown, but not kept for later",
        );
    }
    let kept = path.filter(|_| undisturbed).filter(|path| {
        let folder = path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok());
        let text = serde_json::to_vec_pretty(&ceilings).unwrap_or_default();
        folder && write_atomically(path, |file| file.write_all(&text)).is_ok()
    });
    Ok((ceilings, true, kept))
}

/// `ceilings-KEY.json` in the cache folder, with a key of what the ceilings depend on.
fn cache_file(cpu: &Cpu) -> Option<PathBuf> {
    let machine = cpu.machine();
    let key = format!(
        "{} {} {:?} {:?} {} {:?}",
        env!("CARGO_PKG_VERSION"),
        machine.processor(),
        machine.caches(),
        machine.threads(),
        cpu.arch().name(),
        (cpu.threads(), cpu.binding())
    );
    Some(cache_folder()?.join(format!("ceilings-{:016x}.json", xxh3_64(key.as_bytes()))))
}

/// f32 lanes of a vector register.
pub fn f32_lanes(machine: &Machine) -> usize {
    machine.simd().vector_bytes / size_of::<f32>()
}

/// The ceilings as a table.
pub fn table(ceilings: &Ceilings, lanes: usize) -> String {
    let pair = |name: &str, rate: sparsimd_measure::Rate, unit: &str| {
        format!("{name:<22}{:>10.1}{:>12.1}  {unit}", rate.one, rate.all)
    };
    let all = format!("{} thread(s)", ceilings.threads);
    let mut lines = vec![
        format!("{:<22}{:>10}{:>12}", format!("measured ({})", ceilings.simd), "1 thread", all),
        pair("multiply-add f32", ceilings.fma_f32, "GFLOP/s"),
        pair("multiply-add f64", ceilings.fma_f64, "GFLOP/s"),
        pair("vector add f32", ceilings.add_f32, "GFLOP/s"),
        pair("vector add f64", ceilings.add_f64, "GFLOP/s"),
    ];
    for level in &ceilings.levels {
        let kib = level.bytes_per_thread >> 10;
        lines.push(pair(&format!("{} read", level.name), level.read, &format!("GB/s ({kib} KiB each)")));
        lines.push(pair(&format!("{} triad", level.name), level.triad, "GB/s"));
    }
    lines.push(pair("DRAM random 64 B", ceilings.gather, "GB/s"));
    let latencies: Vec<_> = ceilings.levels.iter().map(|l| format!("{} {:.1}", l.name, l.latency_ns)).collect();
    lines.push(format!("load latency          {} ns", latencies.join(", ")));
    if let (Some(clock), Some((units, bound))) = (ceilings.clock_ghz, ceilings.clock_bound(lanes)) {
        lines.push(format!(
            "clock                 {clock:.2} GHz: {lanes} lanes x 2 x {units} x clock = {bound:.1} GFLOP/s, measured {:+.1} %",
            100.0 * (ceilings.fma_f32.one / bound - 1.0)
        ));
    }
    lines.join("\n")
}
