//! Which thread of a pool is bound to which processor: a pure function of the machine and a policy.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::cpuset::numbers;
use super::{HwThread, Machine};
use crate::error::{Error, Result};

/// A policy for binding the threads of a pool to processors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// Threads run where the operating system puts them.
    None,
    /// Neighbours as close as possible: all threads of one core, then the next core of the same shared cache and node.
    Compact,
    /// Round-robin over NUMA nodes, and within a node over its shared caches; a second thread on a core comes last.
    Scatter,
    /// One thread per core in the order of nodes; when there are more threads than cores, their siblings follow.
    #[default]
    Cores,
    /// Thread `i` on the `i`-th processor of the list.
    List(Vec<usize>),
}

/// `none`, `compact`, `scatter`, `cores`, or a processor list such as `0-3,8`, whose order is kept.
impl FromStr for Pinning {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "none" => Self::None,
            "compact" => Self::Compact,
            "scatter" => Self::Scatter,
            "cores" => Self::Cores,
            list if list.starts_with(|c: char| c.is_ascii_digit()) => Self::List(numbers(list)?),
            other => {
                let detail =
                    format!("'{other}' is none of none, compact, scatter, cores and no processor list such as 0-3,8");
                return Err(Error::argument("pinning", detail));
            }
        })
    }
}

impl fmt::Display for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Compact => f.write_str("compact"),
            Self::Scatter => f.write_str("scatter"),
            Self::Cores => f.write_str("cores"),
            Self::List(cpus) => {
                let words: Vec<_> = cpus.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl Machine {
    /// The processors that threads 0, 1, ... of a pool of `threads` are bound to under `policy`. Shorter than `threads`
    /// when there are more threads than allowed processors (the rest is not bound), empty for [`Pinning::None`].
    ///
    /// # Errors
    /// [`Error::Argument`] when an explicit list repeats a processor, has fewer than `threads`, or names one that this
    /// process may not use or that does not exist.
    pub fn pin(&self, policy: &Pinning, threads: usize) -> Result<Vec<usize>> {
        let order = match policy {
            Pinning::None => Vec::new(),
            Pinning::Compact => self.ordered(&|t| [t.node, t.l3, t.core, t.smt]),
            Pinning::Cores => {
                // The rank among the *allowed* threads of the core: its first thread may be out of bounds.
                let rank = self.ranks(&|t| [t.core, 0], &|t| [t.smt, 0, 0]);
                self.ordered(&|t| [rank[&t.cpu], t.node, t.l3, t.core])
            }
            Pinning::Scatter => {
                let sibling = self.ranks(&|t| [t.core, 0], &|t| [t.smt, 0, 0]);
                let in_l3 = self.ranks(&|t| [sibling[&t.cpu], t.l3], &|t| [t.core, 0, 0]);
                let in_node = self.ranks(&|t| [t.node, 0], &|t| [sibling[&t.cpu], in_l3[&t.cpu], t.l3]);
                self.ordered(&|t| [in_node[&t.cpu], t.node, t.cpu, 0])
            }
            Pinning::List(list) => return self.pin_list(list, threads),
        };
        Ok(order.into_iter().take(threads).collect())
    }

    fn pin_list(&self, list: &[usize], threads: usize) -> Result<Vec<usize>> {
        let fail = |detail| Err(Error::argument("pinning", detail));
        for (i, cpu) in list.iter().enumerate() {
            if list[..i].contains(cpu) {
                return fail(format!("processor {cpu} is listed twice"));
            }
            if !self.allowed.contains(*cpu) {
                let exists = self.threads.iter().any(|t| t.cpu == *cpu);
                let why = if exists { "may not be used by this process" } else { "does not exist" };
                return fail(format!("processor {cpu} {why}; allowed: {}", self.allowed));
            }
        }
        if list.len() < threads {
            return fail(format!("{} processors are listed for {threads} threads", list.len()));
        }
        Ok(list[..threads].to_vec())
    }

    /// Allowed processors in ascending order of `key`. Not generic, as is [`Machine::ranks`]: every closure would have a sort
    /// of its own compiled.
    fn ordered(&self, key: &dyn Fn(&HwThread) -> [usize; 4]) -> Vec<usize> {
        let mut all: Vec<_> = self.allowed_threads().map(|t| (key(t), t.cpu)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, cpu)| cpu).collect()
    }

    /// The position of each allowed processor among those of the same `group`, in ascending order of `key`.
    fn ranks(
        &self,
        group: &dyn Fn(&HwThread) -> [usize; 2],
        key: &dyn Fn(&HwThread) -> [usize; 3],
    ) -> BTreeMap<usize, usize> {
        let mut all: Vec<_> = self.allowed_threads().map(|t| (group(t), key(t), t.cpu)).collect();
        all.sort_unstable();
        let groups = all.chunk_by(|a, b| a.0 == b.0);
        groups.flat_map(|run| run.iter().enumerate().map(|(rank, &(.., cpu))| (cpu, rank))).collect()
    }

    /// The index into [`Machine::nodes`] of processor `cpu`; 0 when it is not one of this machine's.
    pub fn node_of(&self, cpu: usize) -> usize {
        self.threads.iter().find(|t| t.cpu == cpu).map_or(0, |t| t.node)
    }

    /// The indices of the nodes that have allowed processors, ascending, each with those processors in the order of
    /// [`Pinning::Cores`].
    pub fn processors_by_node(&self) -> Vec<(usize, Vec<usize>)> {
        let rank = self.ranks(&|t| [t.core, 0], &|t| [t.smt, 0, 0]);
        self.by_node(&self.ordered(&|t| [rank[&t.cpu], t.l3, t.core, 0]))
    }

    /// The indices of the nodes that `processors` are on, ascending, each with those of them that are there, in their order.
    pub fn by_node(&self, processors: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let mut by_node: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &cpu in processors {
            by_node.entry(self.node_of(cpu)).or_default().push(cpu);
        }
        by_node.into_iter().collect()
    }
}
