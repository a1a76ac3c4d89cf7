//! What is simulated: a product by dense shift, one with the rows that a mesh names, and an iteration of CP-ALS, with their models.

use sparsimd_distributed::{
    AT_ONCE, Algorithm, Blocks, Cluster, Operation, RandomTensor, RankLoad, Step, grid, matrix_steps,
};

/// Bytes of a word: f32.
const WORD: usize = 4;
/// Neighbours in a mesh of three dimensions, and the point itself.
const STENCIL: usize = 7;
/// A mode of the tensor has this part of a rank's rows for each rank: some rows of a chunk are named by all of its ranks, some by none.
const MODE_PART: usize = 16;

/// The size of one rank's share.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Rows of A, and of the mesh.
    pub rows: f64,
    /// Nonzeros in each row.
    pub degree: usize,
    /// Columns of B.
    pub n: usize,
    /// Components of CP.
    pub components: usize,
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// SpMM, a random pattern, dense shift with the replication that the model finds best.
    Dense,
    /// SpMM on a mesh in three dimensions, a box of it for each rank.
    Aware,
    /// An iteration of CP-ALS on a random tensor of three modes.
    Cp,
}

/// What is to be replayed, and what the model says.
pub struct Prepared {
    /// Of every rank.
    pub steps: Vec<Vec<Step>>,
    /// c; 1 where nothing is replicated.
    pub replication: usize,
    /// Of the rank that receives the most.
    pub words: f64,
    /// Seconds of messages, by the model.
    pub communication: f64,
    /// Seconds of arithmetic of a rank, by the model.
    pub work: f64,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dense, Self::Aware, Self::Cp];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "spmm-dense",
            Self::Aware => "spmm-aware",
            Self::Cp => "cp",
        }
    }

    /// On `ranks` ranks; `rate` is a rank's, in operations a second.
    pub fn prepare(self, ranks: usize, share: &Share, cluster: Cluster, rate: f64) -> Prepared {
        let cluster = Cluster { flops: rate, ..cluster };
        match self {
            Self::Dense => dense(ranks, share, cluster),
            Self::Aware => aware(ranks, share, cluster),
            Self::Cp => cp(ranks, share, cluster),
        }
    }
}

/// Latencies of `messages` that are sent together: those of a round overlap.
fn rounds(messages: f64) -> f64 {
    (messages / AT_ONCE as f64).ceil()
}

/// Seconds of `latencies`, one after the other, and `words`.
fn seconds(cluster: Cluster, latencies: f64, words: f64) -> f64 {
    cluster.latency * latencies + words * WORD as f64 / cluster.bandwidth
}

/// Messages of one agreement or sum on a rank.
fn tree(ranks: usize) -> f64 {
    (ranks as f64).log2()
}

/// Agreements of a product: before it, before its rows travel, after it.
const AGREEMENTS: f64 = 3.0;

fn dense(ranks: usize, share: &Share, cluster: Cluster) -> Prepared {
    let rows = (share.rows.round() as usize).max(1);
    let (p, r, all) = (ranks as f64, share.n as f64, (rows * ranks) as f64);
    let model = |c: usize| {
        let c = c as f64;
        let words = all * r * (1.0 / c - 1.0 / p) + (c - 1.0) * all * r / p;
        (words, seconds(cluster, p / c - 1.0 + rounds(c - 1.0) + AGREEMENTS * tree(ranks), words))
    };
    let divisors = (1..=ranks).filter(|&c| ranks.is_multiple_of(c));
    let replication = divisors.min_by(|&a, &b| model(a).1.total_cmp(&model(b).1)).unwrap_or(1);
    let blocks = Blocks::even(rows * ranks, ranks);
    let load = |_| RankLoad { nnz: rows * share.degree, ..RankLoad::default() };
    let (algorithm, operation) = (Algorithm::DenseShift { replication }, Operation::Spmm { n: share.n });
    let steps = matrix_steps(&blocks, &blocks, load, algorithm, operation, WORD);
    let (words, communication) = model(replication);
    let work = 2.0 * (rows * share.degree * share.n) as f64 / cluster.flops;
    Prepared { steps, replication, words, communication, work }
}

fn aware(ranks: usize, share: &Share, cluster: Cluster) -> Prepared {
    let boxes = grid(&[ranks; 3], ranks);
    let side = share.rows.cbrt().round().max(1.0) as usize;
    let (rows, face) = (side * side * side, side * side);
    let place = |rank: usize| [rank / (boxes[1] * boxes[2]), rank / boxes[2] % boxes[1], rank % boxes[2]];
    let number = |[x, y, z]: [usize; 3]| (x * boxes[1] + y) * boxes[2] + z;
    let load = |rank: usize| {
        let mut ghosts = Vec::new();
        for d in 0..3 {
            let at = place(rank);
            let mut neighbour = |to: Option<usize>| {
                if let Some(to) = to.filter(|&to| to < boxes[d]) {
                    let mut other = at;
                    other[d] = to;
                    ghosts.push((number(other), face));
                }
            };
            neighbour(at[d].checked_sub(1));
            neighbour(Some(at[d] + 1));
        }
        ghosts.sort_unstable();
        // A face without a neighbour is the mesh's end.
        let ends = (6 - ghosts.len()) * face;
        RankLoad { nnz: STENCIL * rows - ends, far: ghosts.len() * face, ghosts, gone: Vec::new() }
    };
    let blocks = Blocks::even(rows * ranks, ranks);
    let steps = matrix_steps(&blocks, &blocks, load, Algorithm::Aware, Operation::Spmm { n: share.n }, WORD);
    // Of a rank inside: two faces in each direction that has as many boxes.
    let faces: usize = boxes.iter().map(|&q| (q - 1).min(2)).sum();
    let words = (faces * face * share.n) as f64;
    let work = 2.0 * (STENCIL * rows * share.n) as f64 / cluster.flops;
    let communication = seconds(cluster, rounds(faces as f64) + AGREEMENTS * tree(ranks), words);
    Prepared { steps, replication: 1, words, communication, work }
}

fn cp(ranks: usize, share: &Share, cluster: Cluster) -> Prepared {
    let dim = ((share.rows * ranks as f64 / MODE_PART as f64).round() as usize).max(1);
    let dims = vec![dim; 3];
    let grid = grid(&dims, ranks);
    let (p, r) = (ranks as f64, share.components as f64);
    let cell = share.rows * share.degree as f64;
    let tensor = RandomTensor { dims, grid: grid.clone(), nnz: cell * p };
    let (mut words, mut latencies) = (0.0, tree(ranks));
    for q in grid {
        let (q, chunk) = (q as f64, (dim as f64 / q as f64).max(1.0));
        let named = 1.0 - (cell * (-1.0 / chunk).ln_1p()).exp();
        // Ghosts come, and parts of products of the rank's own rows.
        words += 2.0 * r * chunk * (1.0 - q / p) * named;
        // The sums are in double precision.
        words += 2.0 * tree(ranks) * (r * (r + 3.0) / 2.0 + 1.0);
        latencies += 2.0 * rounds(p / q - 1.0) + 3.0 * tree(ranks);
    }
    let work = 9.0 * cell * r / cluster.flops;
    let steps = tensor.cp_steps(share.components, WORD);
    Prepared { steps, replication: 1, words, communication: seconds(cluster, latencies, words), work }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_near_their_models() {
        let share = Share { rows: 4096.0, degree: 16, n: 32, components: 8 };
        let cluster = Cluster::default();
        for case in Case::ALL {
            for ranks in [8, 64, 128] {
                let Prepared { steps, words, work, .. } = case.prepare(ranks, &share, cluster, 1e10);
                assert_eq!(steps.len(), ranks);
                let received = |steps: &Vec<Step>| -> usize {
                    steps.iter().flat_map(|step| &step.receives).map(|(_, bytes)| bytes).sum()
                };
                // Agreements are 8 bytes in each of log2(p) messages.
                let most = steps.iter().map(received).max().unwrap() as f64 / 4.0;
                assert!((most / words - 1.0).abs() < 0.05, "{case:?} on {ranks}: {most} words, model {words}");
                let flops = steps.iter().map(|s| s.iter().map(|step| step.flops).sum::<f64>()).fold(0.0, f64::max);
                assert!((flops / 1e10 / work - 1.0).abs() < 0.15, "{case:?} on {ranks}: {flops} flops, model {work} s");
                let sent = |(from, to): (usize, usize)| -> usize {
                    steps[from].iter().flat_map(|step| &step.sends).filter(|(r, _)| *r == to).map(|(_, b)| b).sum()
                };
                let came = |(from, to): (usize, usize)| -> usize {
                    steps[to].iter().flat_map(|step| &step.receives).filter(|(r, _)| *r == from).map(|(_, b)| b).sum()
                };
                for pair in [(0, 1), (1, 0), (2, 7), (7, 6), (ranks - 1, 0)] {
                    assert_eq!(sent(pair), came(pair), "{case:?} on {ranks}: {pair:?}");
                }
            }
        }
    }
}
