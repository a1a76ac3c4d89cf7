//! [`NodeCpus`]: one pool per NUMA node, and work that belongs to nodes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Cpu;
use crate::error::Result;
use crate::machine::Pinning;

/// One [`Cpu`] per NUMA node, made of the same threads (in number and processors) as a [`Cpu`] over all nodes.
#[derive(Clone, Debug)]
pub struct NodeCpus {
    /// The index of the node among the machine's, and its pool.
    nodes: Vec<(usize, Cpu)>,
}

impl NodeCpus {
    /// A pool per node with the threads that `cpu` has there. Threads that `cpu` does not bind are shared out over the
    /// allowed processors of all nodes in turns, since a thread that wanders has no node. The pools are started once and kept with
    /// `cpu`: all that it places shares them.
    ///
    /// # Errors
    /// As [`super::CpuBuilder::build`].
    pub fn new(cpu: &Cpu) -> Result<Self> {
        if let Some(started) = cpu.nodes.get() {
            return Ok(started.clone());
        }
        let machine = cpu.machine();
        let pool = |(node, own): (usize, Vec<usize>)| {
            let builder = Cpu::builder().arch(cpu.arch()).machine(machine.clone());
            Ok((node, builder.threads(own.len()).pinning(Pinning::List(own)).build()?))
        };
        let nodes = processors_by_node(cpu)?.into_iter().map(pool).collect::<Result<_>>()?;
        Ok(cpu.nodes.get_or_init(|| Self { nodes }).clone())
    }

    /// The [`NodeCpus::shares`] that the pools of `cpu` would have, without starting them.
    ///
    /// # Errors
    /// As [`Machine::pin`](crate::Machine::pin).
    pub fn shares_of(cpu: &Cpu) -> Result<Vec<(usize, usize)>> {
        Ok(processors_by_node(cpu)?.into_iter().map(|(node, own)| (node, own.len())).collect())
    }

    /// Number of nodes with threads.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none; never, since a [`Cpu`] has at least one thread.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Each node's index among the machine's, and its pool, ascending.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &Cpu)> + '_ {
        self.nodes.iter().map(|(node, cpu)| (*node, cpu))
    }

    /// Each node's index among the machine's, and its number of threads: what rows are split by.
    pub fn shares(&self) -> Vec<(usize, usize)> {
        self.iter().map(|(node, cpu)| (node, cpu.threads())).collect()
    }

    /// Runs `task(place, cpu, owner, chunk)` for every `chunk` below `chunks[owner]` of every `owner`, where `owner` and
    /// `place` count the nodes of [`NodeCpus::iter`]. Each node does its own chunks in order, one after the other, each
    /// with all its threads (`task` runs in its pool); when it has none left, it takes the next one of the node that
    /// follows. So every chunk runs exactly once, and on its owner's node unless that node is behind.
    pub fn run(&self, chunks: &[usize], task: impl Fn(usize, &Cpu, usize, usize) + Sync) {
        let next: Vec<_> = chunks.iter().map(|_| AtomicUsize::new(0)).collect();
        self.on_each(&|place, cpu| {
            for step in 0..next.len() {
                let owner = (place + step) % next.len();
                while let Some(chunk) = claim(&next[owner], chunks[owner]) {
                    task(place, cpu, owner, chunk);
                }
            }
        });
    }

    /// [`NodeCpus::run`] of a task that may fail: the first error by owner and chunk, after all chunks have run.
    pub(super) fn try_run(
        &self,
        chunks: &[usize],
        task: &(dyn Fn(usize, &Cpu, usize, usize) -> Result<()> + Sync),
    ) -> Result<()> {
        let failures = Mutex::new(Vec::new());
        self.run(chunks, |place, cpu, owner, chunk| {
            if let (Err(error), Ok(mut all)) = (task(place, cpu, owner, chunk), failures.lock()) {
                all.push(((owner, chunk), error));
            }
        });
        let failures = failures.into_inner().unwrap_or_default();
        failures.into_iter().min_by_key(|(place, _)| *place).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Like [`NodeCpus::run`], but every chunk on its owner's node: for first writes, which decide where pages are.
    pub fn run_owned(&self, chunks: &[usize], task: impl Fn(usize, usize) + Sync) {
        self.on_each(&|owner, _| (0..chunks[owner]).for_each(|chunk| task(owner, chunk)));
    }

    /// Runs `f` once in each node's pool, all at the same time; where the system has no thread to wait for a node, the caller's waits.
    fn on_each(&self, f: &(dyn Fn(usize, &Cpu) + Sync)) {
        std::thread::scope(|scope| {
            for (place, (_, cpu)) in self.nodes.iter().enumerate() {
                let run = move || cpu.install(|| f(place, cpu));
                if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                    run();
                }
            }
        });
    }
}

/// The nodes that threads of `cpu` are on, ascending, each with its threads' processors in the order of threads.
fn processors_by_node(cpu: &Cpu) -> Result<Vec<(usize, Vec<usize>)>> {
    let machine = cpu.machine();
    let spread;
    let processors = match cpu.binding() {
        [] => {
            spread = machine.pin(&Pinning::Scatter, cpu.threads())?;
            &spread
        }
        bound => bound,
    };
    Ok(machine.by_node(processors))
}

/// The next number below `end`, if there is one.
fn claim(next: &AtomicUsize, end: usize) -> Option<usize> {
    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&chunk| chunk < end)
}
