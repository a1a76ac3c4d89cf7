//! Which rows and which copy of the shared operand belong to which NUMA node: pure functions of the machine, the
//! pattern and the policy.
//!
//! In C = A B (and likewise for SDDMM and FusedMM) a row of C needs its row of A and rows of B anywhere. So rows of A
//! and C are split over the nodes by nonzeros, and B, which all nodes read, is left alone, interleaved, or copied to
//! each node.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use sparsimd_kernels::Scalar;

use crate::cut;
use crate::error::{Error, Result};
use crate::formats::Pattern;
use crate::machine::{Machine, MemoryPolicy};

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaPolicy {
    /// As size and reuse suggest.
    #[default]
    Auto,
    /// No placement: one pool over all nodes.
    Off,
    /// Rows with their owners, B where it is.
    FirstTouch,
    /// Rows with their owners, B's pages in turns over the nodes.
    Interleave,
    /// Rows with their owners, one copy of B per node.
    Replicate,
}

/// Where the operand that all rows share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BPlacement {
    /// Where it was allocated.
    Alone,
    /// Its pages in turns over the nodes: no memory controller is the bottleneck.
    Interleave,
    /// One copy per node: all reads are local.
    Replicate,
}

impl NumaPolicy {
    /// Every policy with its name.
    const NAMES: [(Self, &str); 5] = [
        (Self::Auto, "auto"),
        (Self::Off, "off"),
        (Self::FirstTouch, "first-touch"),
        (Self::Interleave, "interleave"),
        (Self::Replicate, "replicate"),
    ];
}

impl FromStr for NumaPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(policy, _)| *policy);
        found.ok_or_else(|| {
            let names = Self::NAMES.map(|(_, name)| name).join(", ");
            Error::argument("numa", format!("'{text}' is none of {names}"))
        })
    }
}

impl fmt::Display for NumaPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(policy, _)| policy == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The shared operand, as far as its placement goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedOperand {
    /// Bytes of it.
    pub bytes: usize,
    /// Bytes of it that one run reads, each use counted.
    pub read_per_run: usize,
    /// Runs that use it before it changes.
    pub runs: usize,
}

impl SharedOperand {
    /// The dense operand of `n` columns of `T` whose rows the nonzeros of `a` use, in `runs` runs.
    pub fn of<T: Scalar>(a: &Pattern, n: usize, runs: usize) -> Self {
        let row = n.saturating_mul(size_of::<T>());
        Self { bytes: a.cols().saturating_mul(row), read_per_run: a.nnz().saturating_mul(row), runs: runs.max(1) }
    }
}

/// Rows by node, and the shared operand.
///
/// Its parts cannot be changed, since the operands that it places rely on them:
///
/// ```compile_fail,E0616
/// # use sparsimd::plan::{BPlacement, RowPlacement};
/// let mut placement = RowPlacement::new(vec![(0, 0..5), (1, 5..9)], BPlacement::Alone, "by hand").unwrap();
/// placement.parts.swap(0, 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RowPlacement {
    /// Nodes ascend strictly, and rows follow each other from 0.
    parts: Vec<(usize, Range<usize>)>,
    shared: BPlacement,
    reason: String,
}

impl fmt::Display for BPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "left alone",
            Self::Interleave => "interleaved",
            Self::Replicate => "copied to each node",
        })
    }
}

impl RowPlacement {
    /// The placement that `parts` say: for each node, by its index in [`Machine::nodes`], the rows that it owns. `reason` is what
    /// [`RowPlacement::explain`] gives.
    ///
    /// # Errors
    /// [`Error::Argument`] unless the nodes ascend, each with one part, and the rows of each part follow those of the part
    /// before it, from row 0.
    pub fn new(parts: Vec<(usize, Range<usize>)>, shared: BPlacement, reason: impl Into<String>) -> Result<Self> {
        let mut before: Option<&(usize, Range<usize>)> = None;
        for part in &parts {
            let (node, rows) = part;
            if rows.start != before.map_or(0, |(_, rows)| rows.end) || rows.end < rows.start {
                let detail = format!("rows {rows:?} on node {node} are not the next rows");
                return Err(Error::argument("placement", detail));
            }
            if let Some((last, _)) = before.filter(|(last, _)| last >= node) {
                let detail =
                    format!("a part of node {node} after one of node {last}: nodes ascend, with one part each");
                return Err(Error::argument("placement", detail));
            }
            before = Some(part);
        }
        Ok(Self { parts, shared, reason: reason.into() })
    }

    /// For each part the index of its node in [`Machine::nodes`], ascending, and the rows that the node owns: every row is in
    /// exactly one part. A single part when nothing is placed.
    pub fn parts(&self) -> &[(usize, Range<usize>)] {
        &self.parts
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.parts.last().map_or(0, |(_, rows)| rows.end)
    }

    /// Where the operand that all rows share is.
    pub fn shared(&self) -> BPlacement {
        self.shared
    }

    /// What will be done and why, in one line.
    pub fn explain(&self) -> String {
        self.reason.clone()
    }

    /// The placement of the rows of a matrix with row pointers `row_ptr` under `policy`, on the nodes `nodes` of
    /// `machine`, each an index into [`Machine::nodes`] with its number of threads. A policy that the process was started
    /// under (`numactl --membind`, `--interleave`) wins over ours.
    ///
    /// # Errors
    /// [`Error::Argument`] when `machine` lacks one of the nodes, or they do not ascend.
    pub fn choose(
        machine: &Machine,
        nodes: &[(usize, usize)],
        outer: &MemoryPolicy,
        policy: NumaPolicy,
        row_ptr: &[usize],
        shared: SharedOperand,
    ) -> Result<Self> {
        let known = machine.nodes().len();
        if let Some((node, _)) = nodes.iter().find(|(node, _)| *node >= known) {
            return Err(Error::argument("nodes", format!("node {node} of a machine with {known}")));
        }
        let unplaced = |reason: String| {
            let first = nodes.first().map_or(0, |(node, _)| *node);
            let rows = 0..row_ptr.len().saturating_sub(1);
            Self::new(vec![(first, rows)], BPlacement::Alone, reason)
        };
        if policy == NumaPolicy::Off {
            return unplaced("off: as asked".to_owned());
        }
        if nodes.len() < 2 {
            return unplaced("off: all threads are on one node".to_owned());
        }
        if outer.is_chosen() {
            return unplaced(format!("off: the process runs under the memory policy '{outer}', which wins"));
        }
        let withheld = |node: &usize| !machine.allowed_memory().contains(machine.nodes()[*node].id);
        if let Some(node) = nodes.iter().map(|(node, _)| *node).find(withheld) {
            let (id, allowed) = (machine.nodes()[node].id, machine.allowed_memory());
            return unplaced(format!(
                "off: threads run on node {id}, but the process may use the memory of {allowed} only"
            ));
        }
        let (b, reason) = match policy {
            NumaPolicy::FirstTouch => (BPlacement::Alone, "as asked".to_owned()),
            NumaPolicy::Interleave => (BPlacement::Interleave, "as asked".to_owned()),
            NumaPolicy::Replicate => (BPlacement::Replicate, "as asked".to_owned()),
            NumaPolicy::Auto | NumaPolicy::Off => choose_shared(machine, nodes, shared),
        };
        let weights: Vec<_> = nodes.iter().map(|(_, threads)| *threads).collect();
        let parts = nodes.iter().map(|(node, _)| *node).zip(split_rows(row_ptr, &weights)).collect::<Vec<_>>();
        let reason = format!("rows over {} nodes by nonzeros, shared operand {b}: {reason}", parts.len());
        Self::new(parts, b, reason)
    }
}

/// Whether copying the shared operand to every node pays.
fn choose_shared(machine: &Machine, nodes: &[(usize, usize)], shared: SharedOperand) -> (BPlacement, String) {
    let count = nodes.len() as f64;
    if shared.bytes <= machine.l3_bytes() / 2 {
        // After the first pass each node's cache holds it anyway.
        return (BPlacement::Interleave, "it fits a node's last-level cache".to_owned());
    }
    let smallest = nodes.iter().map(|(node, _)| machine.nodes()[*node].memory).filter(|&m| m > 0).min();
    if smallest.is_some_and(|memory| shared.bytes as u64 > memory / 4) {
        return (BPlacement::Interleave, "a copy would take over a quarter of a node's memory".to_owned());
    }
    // The mean distance to other nodes over the local one: 2 when remote memory is twice as far.
    let (mut sum, mut pairs) = (0.0, 0.0);
    for (a, _) in nodes {
        for (b, _) in nodes.iter().filter(|(b, _)| b != a) {
            sum += f64::from(machine.nodes()[*a].distances[*b]) / f64::from(machine.nodes()[*a].distances[*a].max(1));
            pairs += 1.0;
        }
    }
    // Interleaved, (n - 1) / n of the reads are remote, each costing that much more; a copy is one read and one write
    // of every byte per further node, done once.
    let remote = shared.read_per_run as f64 * shared.runs as f64 * (count - 1.0) / count * (sum / pairs - 1.0).max(0.0);
    let copies = 2.0 * shared.bytes as f64 * (count - 1.0);
    let mb = |bytes: f64| bytes / 1e6;
    let detail = format!("copying moves {:.0} MB, remote reads cost as much as {:.0} MB", mb(copies), mb(remote));
    (if remote > copies { BPlacement::Replicate } else { BPlacement::Interleave }, detail)
}

/// Splits the rows in one range per weight so that nonzeros are in proportion to the weights: each bound is the row
/// start closest to the exact share. Rows are shared evenly when there are no nonzeros.
pub fn split_rows(row_ptr: &[usize], weights: &[usize]) -> Vec<Range<usize>> {
    let rows = row_ptr.len().saturating_sub(1);
    let nnz = row_ptr.last().copied().unwrap_or(0);
    let total = weights.iter().fold(0usize, |sum, &weight| sum.saturating_add(weight));
    let mut sum = 0usize;
    let mut start = 0;
    let mut parts: Vec<_> = weights
        .iter()
        .map(|&weight| {
            sum = sum.saturating_add(weight);
            let share = |n: usize| cut::share(n, sum, total);
            let end = if nnz == 0 { share(rows) } else { closest(row_ptr, share(nnz)) };
            let part = start..end.max(start);
            start = part.end;
            part
        })
        .collect();
    if let Some(last) = parts.last_mut() {
        // Empty rows at the end have the same pointer: they belong to someone too.
        last.end = rows;
    }
    parts
}

/// The row whose start is closest to `target`.
fn closest(row_ptr: &[usize], target: usize) -> usize {
    let after = cut::first(0..row_ptr.len() - 1, |i| row_ptr[i] >= target);
    match after.checked_sub(1) {
        Some(before) if target - row_ptr[before] <= row_ptr[after].saturating_sub(target) => before,
        _ => after,
    }
}
