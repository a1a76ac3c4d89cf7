//! Machines in words: hwloc's synthetic notation, so that decisions for a machine that is not at hand can be tested.
//!
//! A description lists levels from the outside in, each `type:count` with the count per object of the level before:
//! `"numa:2 core:8 pu:2"` has 2 nodes of 8 cores of 2 hardware threads. Attributes follow in parentheses:
//! `"pack:2 [numa(memory=64GB)] l3:2(size=32MB) l2:4(size=1MB) core:1 pu:2"`; `[numa]` puts one node beside each object
//! of the level before.

use super::{
    Caches, CpuSet, HugePages, HwThread, Machine, NumaNode, Simd, Source, TransparentHugePages, default_distances,
};
use crate::error::{Error, Result};

/// More hardware threads than any machine has, few enough to hold in memory.
const MAX_THREADS: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Package,
    Numa,
    L3,
    L2,
    L1,
    Core,
    Thread,
    /// Dies, groups, instruction caches: they divide, but nothing here depends on them.
    Other,
}

struct Level<'a> {
    kind: Kind,
    count: usize,
    attributes: Vec<(&'a str, &'a str)>,
}

/// A malformed part of a description.
fn malformed(part: &str, why: &str) -> Error {
    Error::argument("machine", format!("'{part}': {why}"))
}

/// Parts separated by blanks outside of parentheses.
fn parts(text: &str) -> Result<Vec<&str>> {
    let mut depth = 0i32;
    let mut all = Vec::new();
    let mut start = 0;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if !(0..=1).contains(&depth) {
            return Err(malformed(text, "unbalanced parentheses"));
        }
        if c.is_whitespace() && depth == 0 {
            all.extend(Some(&text[start..at]).filter(|part| !part.is_empty()));
            start = at + c.len_utf8();
        }
    }
    if depth != 0 { Err(malformed(text, "unbalanced parentheses")) } else { Ok(all) }
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name.to_ascii_lowercase().as_str() {
        "pack" | "package" | "socket" => Kind::Package,
        "numa" | "numanode" | "node" => Kind::Numa,
        "l3" | "l3cache" | "l3u" => Kind::L3,
        "l2" | "l2cache" | "l2u" => Kind::L2,
        "l1" | "l1d" | "l1cache" | "l1dcache" => Kind::L1,
        "core" => Kind::Core,
        "pu" | "thread" => Kind::Thread,
        "die" | "group" | "l1i" | "l1icache" | "machine" => Kind::Other,
        _ => return None,
    })
}

fn level(part: &str) -> Result<Level<'_>> {
    let bare = part.strip_prefix('[').map(|p| p.strip_suffix(']').ok_or_else(|| malformed(part, "']' is missing")));
    let beside = bare.is_some();
    let text = bare.transpose()?.unwrap_or(part);
    let (head, attributes) = match text.split_once('(') {
        Some((head, rest)) => (head, rest.strip_suffix(')').ok_or_else(|| malformed(part, "')' must come last"))?),
        None => (text, ""),
    };
    let (name, count) = head.split_once(':').unwrap_or((head, if beside { "1" } else { "" }));
    let kind = kind(name).ok_or_else(|| {
        malformed(part, "not a type:count with a type of pack, numa, die, group, l3, l2, l1, core, pu")
    })?;
    let count = count
        .parse()
        .ok()
        .filter(|&n| (1..=MAX_THREADS).contains(&n))
        .ok_or_else(|| malformed(part, "the count must be a number, at least 1"))?;
    if beside && (kind != Kind::Numa || count != 1) {
        return Err(malformed(part, "only a single NUMA node can be in brackets"));
    }
    let attributes = attributes
        .split_whitespace()
        .map(|pair| pair.split_once('=').ok_or_else(|| malformed(part, "attributes are key=value")))
        .collect::<Result<_>>()?;
    Ok(Level { kind, count, attributes })
}

impl Level<'_> {
    /// The attribute `key` in bytes, as hwloc writes sizes: `32KB`, `1MB`, `64GB`, `1TB`, or a plain number.
    fn bytes(&self, key: &str) -> Result<Option<u64>> {
        let Some((_, text)) = self.attributes.iter().find(|(k, _)| *k == key) else { return Ok(None) };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => 1,
            "KB" | "KIB" => 1 << 10,
            "MB" | "MIB" => 1 << 20,
            "GB" | "GIB" => 1 << 30,
            "TB" | "TIB" => 1 << 40,
            _ => return Err(malformed(text, "not a size such as 32KB")),
        };
        let bytes = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit)).filter(|&n| n > 0);
        bytes.map(Some).ok_or_else(|| malformed(text, "not a size such as 32KB"))
    }
}

impl Machine {
    /// The machine that `text` describes in hwloc's synthetic notation, e.g. `"numa:2 core:8 pu:2"`.
    ///
    /// Without `pack`, each NUMA node is a package; without `l3`, each node shares one; the thread level may be left out
    /// (then one per core). Its instruction set is this processor's. Processors are numbered from the outside in, and
    /// all are allowed.
    ///
    /// # Errors
    /// [`Error::Argument`] with the part that cannot be read, or when levels repeat, threads are not the innermost level,
    /// or there are more than 65 536 of them.
    ///
    /// ```
    /// let machine = sparsimd::Machine::describe("numa:2 core:8 pu:2")?;
    /// assert_eq!((machine.nodes().len(), machine.cores(), machine.threads().len()), (2, 16, 32));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn describe(text: &str) -> Result<Self> {
        let levels: Vec<_> = parts(text)?.into_iter().map(level).collect::<Result<_>>()?;
        if levels.is_empty() {
            return Err(malformed(text, "no levels; for instance \"numa:2 core:8 pu:2\""));
        }
        for (i, level) in levels.iter().enumerate() {
            if level.kind != Kind::Other && levels[..i].iter().any(|l| l.kind == level.kind) {
                return Err(malformed(text, "the same level twice"));
            }
            if level.kind == Kind::Thread && i + 1 != levels.len() {
                return Err(malformed(text, "pu must be the innermost level"));
            }
        }
        let total = levels.iter().try_fold(1usize, |n, l| n.checked_mul(l.count)).filter(|&n| n <= MAX_THREADS);
        let total = total.ok_or_else(|| malformed(text, "more than 65536 hardware threads"))?;

        // The number of threads below one object of each kind: thread `t` belongs to object `t / below`.
        let below = |kind| {
            let at = levels.iter().position(|l| l.kind == kind)?;
            Some(levels[at + 1..].iter().map(|l| l.count).product::<usize>())
        };
        let node = below(Kind::Numa).unwrap_or(total);
        let socket = below(Kind::Package).unwrap_or(node);
        let l3 = below(Kind::L3).unwrap_or(node);
        let core = below(Kind::Core).unwrap_or(1);
        let threads: Vec<_> = (0..total)
            .map(|t| HwThread { cpu: t, core: t / core, smt: t % core, l3: t / l3, node: t / node, socket: t / socket })
            .collect();

        let attribute = |kind, key| match levels.iter().find(|l| l.kind == kind) {
            Some(level) => level.bytes(key),
            None => Ok(None),
        };
        let memory = attribute(Kind::Numa, "memory")?.unwrap_or(0);
        let size = |kind| attribute(kind, "size").map(|bytes| bytes.map(|b| b as usize));
        let usual = Caches::default();
        let caches = Caches {
            l1d: size(Kind::L1)?.unwrap_or(usual.l1d),
            l2: size(Kind::L2)?.unwrap_or(usual.l2),
            l3: size(Kind::L3)?.or(usual.l3),
            line: usual.line,
        };
        let count = total / node;
        let nodes: Vec<_> =
            (0..count).map(|id| NumaNode { id, memory, distances: default_distances(id, count) }).collect();
        let allowed: CpuSet = (0..total).collect();
        Ok(Self {
            source: Source::Described,
            processor: text.to_owned(),
            simd: Simd::detect(),
            caches,
            threads,
            nodes,
            allowed_memory: (0..count).collect(),
            parallelism: total,
            allowed,
            huge_pages: HugePages { transparent: TransparentHugePages::Unknown, size: 0, reserved: 0 },
        })
    }
}
