//! [`DistPlan`]: which algorithm, from the words that each would move. Pure data, which explains itself.
//!
//! Words that a rank receives, A n x n, B of r columns, p ranks, replication c, h ghosts (rows of B that its nonzeros name and
//! others have):
//! ```text
//!                     aware      dense shift
//! SpMM, SDDMM         h r        n r / c + (c - 1) n r / p          SDDMM hands the values back: + (1 - 1/c) nnz / p
//! SpMM, A transposed  h r        the same                           aware: the h r words are sent, to the rows' owners
//! FusedMM, D is B     h r        n r / c + 2 (c - 1) n r / p
//! FusedMM, D is not B h 2 r      2 n r / c + 2 (c - 1) n r / p
//! the same, softmax   h 2 r      2 n r / c + 2 (c - 1) n r / p + 2 (c - 1) c n / p, and D travels after B, also where it is B
//! its gradients       h 5 r      5 n r / c + 3 (c - 1) n r / p; 4 for 5 if D is B; softmax: + 3 (c - 1) c n / p
//! ```
//! These are Bharadwaj, Buluc and Demmel's (2022), with the rank's own block, which does not travel, taken off: the exact numbers
//! are counted from the blocks and the pattern. A plan's time is `latency messages + bytes / bandwidth + flops / rate`, each of
//! the rank that has the most of it. Rows that the aware algorithm reads in memory in common are words, but neither messages nor time.

use std::fmt;
use std::time::Instant;

use sparsimd::Csr;

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::schedule::{Item, RankLoad, items};

/// How rows of B come to the nonzeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// A rank fetches the rows that its nonzeros name.
    Aware,
    /// All rows of B pass by; `replication` ranks share rows of A and C, and each of them sees a part of B.
    DenseShift {
        /// c, which divides the number of ranks.
        replication: usize,
    },
}

impl Algorithm {
    /// Ranks that share rows of A.
    pub fn replication(self) -> usize {
        match self {
            Self::Aware => 1,
            Self::DenseShift { replication } => replication,
        }
    }

    /// `"aware"` or `"dense"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aware => "aware",
            Self::DenseShift { .. } => "dense",
        }
    }
}

/// An operation and the columns of its dense operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// C = A B, B of `n` columns.
    Spmm {
        /// Columns.
        n: usize,
    },
    /// B = A^T C, C of `n` columns.
    SpmmTransposed {
        /// Columns.
        n: usize,
    },
    /// C B^T at the nonzeros, of `n` columns.
    Sddmm {
        /// Columns.
        n: usize,
    },
    /// E = f(C B^T) D.
    FusedMm {
        /// Columns of B and C.
        n: usize,
        /// Columns of D and E.
        width: usize,
        /// Whether D is B.
        same: bool,
        /// Whether the weights of a row are normalised by softmax.
        softmax: bool,
    },
    /// The gradients of FusedMM by its dense operands.
    FusedMmGradient {
        /// Columns of B and C.
        n: usize,
        /// Columns of D and E.
        width: usize,
        /// Whether D is B.
        same: bool,
        /// Whether the weights of a row are normalised by softmax.
        softmax: bool,
        /// Whether the values of A have a gradient too.
        values: bool,
    },
}

impl Operation {
    /// Columns of what is gathered (C, dE), and of the result where it is summed.
    fn shared_widths(self) -> [usize; 2] {
        match self {
            Self::Spmm { n } => [0, n],
            Self::SpmmTransposed { n } | Self::Sddmm { n } => [n, 0],
            Self::FusedMm { n, width, .. } => [n, width],
            Self::FusedMmGradient { n, width, .. } => [n + width, n],
        }
    }

    /// Columns of what travels together, at most.
    fn travelling(self) -> usize {
        match self {
            Self::Spmm { n } | Self::SpmmTransposed { n } | Self::Sddmm { n } => n,
            Self::FusedMm { n, width, softmax: true, .. } => n.max(width),
            Self::FusedMm { n, same: true, .. } => n,
            Self::FusedMm { n, width, .. } | Self::FusedMmGradient { n, width, .. } => n + width,
        }
    }

    /// Whether `algorithm` reads rows where they are, once they are `in_common`.
    fn in_place(self, algorithm: Algorithm, in_common: bool) -> bool {
        let reads = matches!(self, Self::Spmm { .. } | Self::Sddmm { .. } | Self::FusedMm { .. });
        in_common && reads && algorithm == Algorithm::Aware
    }

    /// Floating-point operations for each nonzero.
    pub(crate) fn flops(self) -> usize {
        match self {
            Self::Spmm { n } | Self::SpmmTransposed { n } | Self::Sddmm { n } => 2 * n,
            Self::FusedMm { n, width, .. } => 2 * (n + width),
            Self::FusedMmGradient { n, width, .. } => 6 * n + 4 * width,
        }
    }
}

/// What messages and arithmetic cost on a cluster, and what fits there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Seconds from the start of a message to its end, however short: alpha.
    pub latency: f64,
    /// Bytes a second: 1 / beta.
    pub bandwidth: f64,
    /// Floating-point operations a second of one rank: gamma.
    pub flops: f64,
    /// Bytes that a rank may use for dense rows beyond its operands.
    pub memory: f64,
    /// Whether B and D are in memory that all ranks have in common: the aware algorithm then reads rows where they are.
    pub in_common: bool,
}

impl Default for Cluster {
    /// 2 microseconds and 10 GB/s, as InfiniBand has them, 20 GFLOP/s, as SpMM reaches on a few cores, and memory without limit, each rank
    /// its own.
    fn default() -> Self {
        Self { latency: 2e-6, bandwidth: 1e10, flops: 2e10, memory: f64::INFINITY, in_common: false }
    }
}

impl Cluster {
    /// The same with what messages between these ranks cost: each sends to the next one, all at the same time.
    ///
    /// # Errors
    /// As [`Comm::exchange`].
    pub fn measured(self, comm: &dyn Comm) -> Result<Self> {
        let (rank, size) = (comm.rank(), comm.size());
        if size == 1 {
            return Ok(self);
        }
        let fastest = |bytes: usize| -> Result<f64> {
            let (sent, mut room, mut least) = (vec![1u8; bytes], vec![0u8; bytes], f64::INFINITY);
            for _ in 0..TRIES {
                comm.least(0)?;
                let start = Instant::now();
                let from = (rank + size - 1) % size;
                comm.exchange_during(&[((rank + 1) % size, &sent)], vec![(from, &mut room)], || Ok(()))?;
                least = least.min(start.elapsed().as_secs_f64());
            }
            Ok(least)
        };
        let mut seconds = [fastest(8)?, fastest(LONG_MESSAGE)?];
        comm.largest(&mut seconds)?;
        let [latency, long] = seconds;
        let bandwidth = LONG_MESSAGE as f64 / (long - latency).max(f64::MIN_POSITIVE);
        Ok(Self { latency, bandwidth, ..self })
    }
}

/// Bytes of a message whose time is that of its bytes.
const LONG_MESSAGE: usize = 4 << 20;
/// Messages of each length, of which the fastest counts: the first ones set connections up.
const TRIES: usize = 5;

/// What a rank receives in one run of an operation; of the terms that SpMM with A transposed sends to the rows' owners, what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub words: usize,
    pub messages: usize,
}

/// An algorithm and what it costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Words that this rank receives; or sends, where SpMM with A transposed sends terms of ghosts to their owners.
    pub words: usize,
    /// Words that all ranks receive together.
    pub total_words: f64,
    /// Words of the rank that receives the most.
    pub most_words: f64,
    /// Messages of the rank that receives the most of them; none where rows are read in place.
    pub most_messages: f64,
    /// Predicted seconds of a run.
    pub seconds: f64,
    /// Bytes of dense rows that a rank holds besides its operands, at most.
    pub bytes: f64,
}

/// The algorithm for an operation on a distributed matrix, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct DistPlan {
    ranks: usize,
    operation: Operation,
    cluster: Cluster,
    chosen: Candidate,
    others: Vec<Candidate>,
}

impl DistPlan {
    /// The fastest for `operation` on the matrix of which this rank has the rows `local`, with all columns: of the algorithms
    /// that `allowed` allows and whose dense rows fit every rank's memory. The same on all ranks.
    ///
    /// # Errors
    /// [`sparsimd::Error::Argument`] when no algorithm is allowed; as [`Comm::exchange`].
    pub fn new<T: Element>(
        comm: &dyn Comm,
        rows: &Blocks,
        cols: &Blocks,
        local: &Csr<T>,
        operation: Operation,
        cluster: Cluster,
        allowed: impl Fn(Algorithm) -> bool,
    ) -> Result<Self> {
        let ranks = comm.size();
        let dense = (1..=ranks).filter(|&c| ranks.is_multiple_of(c)).map(|c| Algorithm::DenseShift { replication: c });
        let algorithms = std::iter::once(Algorithm::Aware).chain(dense).filter(|&a| allowed(a));
        let mut candidates = Vec::new();
        for algorithm in algorithms {
            let load = load(comm.rank(), rows, cols, local, algorithm, operation);
            // Rows that are read in place cost what the nonzeros cost that read them.
            let carried = if operation.in_place(algorithm, cluster.in_common) { Load::default() } else { load };
            let bytes = size_of::<T>() * held(comm.rank(), rows, cols, algorithm, operation, carried);
            let flops = operation.flops() * local.nnz();
            let mut most = [carried.words, carried.messages, flops, bytes, load.words].map(|x| x as f64);
            comm.largest(&mut most)?;
            let [carried, most_messages, flops, bytes, most_words] = most;
            let mut total = [load.words as f64];
            comm.sum(&mut total)?;
            let seconds = cluster.latency * most_messages
                + carried * size_of::<T>() as f64 / cluster.bandwidth
                + flops / cluster.flops;
            let [total_words] = total;
            let words = load.words;
            candidates.push(Candidate { algorithm, words, total_words, most_words, most_messages, seconds, bytes });
        }
        let fits = |c: &&Candidate| c.bytes <= cluster.memory;
        let best = candidates.iter().filter(fits).min_by(|a, b| a.seconds.total_cmp(&b.seconds)).copied();
        let chosen = best.ok_or_else(|| {
            let detail =
                format!("none that is allowed divides {ranks} ranks and fits {:.0} bytes a rank", cluster.memory);
            Error::argument("algorithm", detail)
        })?;
        candidates.retain(|c| c.algorithm != chosen.algorithm);
        Ok(Self { ranks, operation, cluster, chosen, others: candidates })
    }

    /// What was chosen.
    pub fn chosen(&self) -> &Candidate {
        &self.chosen
    }

    /// What was not.
    pub fn others(&self) -> &[Candidate] {
        &self.others
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }
}

impl fmt::Display for DistPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cluster { latency, bandwidth, flops, .. } = self.cluster;
        let (microseconds, gigabytes) = (latency * 1e6, bandwidth / 1e9);
        write!(f, "{} on {} ranks", self.chosen, self.ranks)?;
        write!(f, " ({microseconds:.1} us a message, {gigabytes:.1} GB/s, {:.1} GFLOP/s)", flops / 1e9)?;
        for (k, other) in self.others.iter().enumerate() {
            write!(f, "{}{other}", if k == 0 { "; instead of " } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, most_words, most_messages, seconds, .. } = self;
        match algorithm {
            Algorithm::Aware => write!(f, "aware")?,
            Algorithm::DenseShift { replication } => write!(f, "dense shift with replication {replication}")?,
        }
        write!(f, ": at most {most_words} words in {most_messages} messages a rank, {seconds:.2e} s")
    }
}

/// What `rank` receives in one run.
pub(crate) fn load<T: Element>(
    rank: usize,
    rows: &Blocks,
    cols: &Blocks,
    local: &Csr<T>,
    algorithm: Algorithm,
    operation: Operation,
) -> Load {
    let share = RankLoad::of(rank, cols, local.pattern().col_idx(), algorithm);
    let mut load = Load::default();
    for item in items(rank, rows, cols, &share, algorithm, operation) {
        if let Item::Receive { from: others, .. } | Item::Send { to: others, .. } = item {
            load.words += others.iter().map(|(_, words)| words).sum::<usize>();
            load.messages += others.len();
        }
    }
    load
}

/// Elements of dense rows that `rank` holds besides its operands.
fn held(rank: usize, rows: &Blocks, cols: &Blocks, algorithm: Algorithm, operation: Operation, load: Load) -> usize {
    let [gathered, summed] = operation.shared_widths();
    let replication = algorithm.replication();
    let here = rows.grouped(replication).range(rank / replication).len();
    let passing = match algorithm {
        // Received, and as much sent.
        Algorithm::Aware => 2 * load.words,
        Algorithm::DenseShift { .. } => {
            // The block that is worked on, and the next one.
            let longest = (0..cols.parts()).map(|block| cols.range(block).len()).max().unwrap_or(0);
            2 * longest * operation.travelling()
        }
    };
    let copies = if replication > 1 { gathered + 2 * summed } else { 0 };
    here * copies + passing
}
