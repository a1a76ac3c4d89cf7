//! The messages of an operation, rank by rank, without running it: what plans count and traces tell.
//!
//! The order is that of `ops.rs`, `softmax.rs`, `gradient.rs` and `cp.rs`; the tests compare with what these send.

use crate::blocks::Blocks;
use crate::matrix::ring_order;
use crate::plan::{Algorithm, Operation};
use crate::tensor::{cut_chunks, place};
use crate::trace::{Alone, Step};

/// What a rank has of a sparse matrix, as far as messages depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Nonzeros of its rows.
    pub nnz: usize,
    /// Of them those in ghosts' columns (aware).
    pub far: usize,
    /// Ranks that have its ghosts, and how many (aware).
    pub ghosts: Vec<(usize, usize)>,
    /// Nonzeros that go to each rank of its fiber (SDDMM by dense shift); its own are not counted.
    pub gone: Vec<usize>,
}

impl RankLoad {
    /// Of the rank whose nonzeros have these `columns`.
    pub fn of(rank: usize, cols: &Blocks, columns: &[u32], algorithm: Algorithm) -> Self {
        let mut load = Self { nnz: columns.len(), ..Self::default() };
        match algorithm {
            Algorithm::Aware => {
                let own = cols.range(rank);
                let mut named: Vec<u32> = columns.iter().copied().filter(|&j| !own.contains(&(j as usize))).collect();
                load.far = named.len();
                named.sort_unstable();
                named.dedup();
                let before = |end: usize| named.partition_point(|&j| (j as usize) < end);
                let of = |r: usize| (r, before(cols.range(r).end) - before(cols.range(r).start));
                load.ghosts = (0..cols.parts()).map(of).filter(|&(_, rows)| rows > 0).collect();
            }
            Algorithm::DenseShift { replication } => {
                load.gone = vec![0; replication];
                columns.iter().for_each(|&j| load.gone[cols.owner(j as usize) % replication] += 1);
                load.gone[rank % replication] = 0;
            }
        }
        load
    }
}

/// One item of a rank's schedule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    /// All ranks agree that none has failed: a number of eight bytes.
    Agree,
    /// Words from ranks while `flops` operations are done.
    Receive { from: Vec<(usize, usize)>, flops: f64 },
    /// Words to ranks, likewise.
    Send { to: Vec<(usize, usize)>, flops: f64 },
    /// Operations that wait for what has been received.
    Work(f64),
}

/// Rows that travel once, in whatever order their ranks have them.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Columns of all matrices whose rows travel together.
    width: usize,
    /// Operations for each nonzero meanwhile.
    flops: usize,
    /// Whether terms go to the rows' owners instead.
    reversed: bool,
}

/// What `rank` does in one run of `operation`.
pub(crate) fn items(
    rank: usize,
    rows: &Blocks,
    cols: &Blocks,
    share: &RankLoad,
    algorithm: Algorithm,
    operation: Operation,
) -> Vec<Item> {
    let forward = |width, flops| Pass { width, flops, reversed: false };
    let back = |width, flops| Pass { width, flops, reversed: true };
    let mut list = List { rank, rows, cols, share, algorithm, items: vec![Item::Agree] };
    match operation {
        Operation::Spmm { n } => {
            list.pass(forward(n, 2 * n));
            list.sum(n);
        }
        Operation::SpmmTransposed { n } => {
            list.gather(n);
            list.pass(back(n, 2 * n));
        }
        Operation::Sddmm { n } => {
            list.gather(n);
            list.pass(forward(n, 2 * n));
            list.values();
        }
        Operation::FusedMm { n, width, softmax: true, .. } => {
            list.items.extend([Item::Agree, Item::Agree]);
            list.gather(n);
            list.pass(forward(n, 2 * n));
            list.of_rows(2);
            list.pass(forward(width, 2 * width));
            list.sum(width);
        }
        Operation::FusedMm { n, width, same, .. } => {
            list.gather(n);
            list.pass(forward(if same { n } else { n + width }, 2 * (n + width)));
            list.sum(width);
        }
        Operation::FusedMmGradient { n, width, same, softmax, values } => {
            list.gather(n);
            list.gather(width);
            list.pass(forward(if same { n } else { n + width }, 2 * (n + width)));
            if values {
                list.values();
            }
            if softmax {
                list.of_rows(2);
                list.of_rows(1);
            }
            list.pass(forward(n, 2 * n));
            list.sum(n);
            list.pass(back(n + width, 2 * (n + width)));
        }
    }
    list.items
}

/// A schedule that grows.
struct List<'a> {
    rank: usize,
    rows: &'a Blocks,
    cols: &'a Blocks,
    share: &'a RankLoad,
    algorithm: Algorithm,
    items: Vec<Item>,
}

impl List<'_> {
    /// From every other rank of the fiber, which it has `words(rank, its number)` words for.
    fn fiber(&mut self, words: impl Fn(usize, usize) -> usize) {
        let replication = self.algorithm.replication();
        if replication > 1 {
            let first = self.rank / replication * replication;
            let others = (0..replication).filter(|l| first + l != self.rank);
            let from = others.map(|l| (first + l, words(first + l, l))).filter(|&(_, words)| words > 0).collect();
            self.items.push(Item::Receive { from, flops: 0.0 });
        }
    }

    /// Rows of the fiber of a matrix that goes with A's rows.
    fn gather(&mut self, width: usize) {
        if self.algorithm.replication() > 1 {
            self.items.push(Item::Agree);
        }
        let rows = self.rows;
        self.fiber(|r, _| rows.range(r).len() * width);
    }

    /// Terms of the fiber of own rows of the result.
    fn sum(&mut self, width: usize) {
        let rows = self.rows.range(self.rank).len();
        self.fiber(|_, _| rows * width);
    }

    /// `numbers` of each row here.
    fn of_rows(&mut self, numbers: usize) {
        let replication = self.algorithm.replication();
        let here = self.rows.grouped(replication).range(self.rank / replication).len();
        self.fiber(|_, _| numbers * here);
    }

    /// Numbers of nonzeros that other ranks of the fiber have.
    fn values(&mut self) {
        let share = self.share;
        self.fiber(|_, l| share.gone.get(l).copied().unwrap_or(0));
    }

    /// Rows of B, or terms of them, while the nonzeros are worked on.
    fn pass(&mut self, Pass { width, flops, reversed }: Pass) {
        let flops = flops as f64;
        self.items.push(Item::Agree);
        match self.algorithm {
            Algorithm::Aware => {
                let (share, near) = (self.share, flops * (self.share.nnz - self.share.far) as f64);
                let others = share.ghosts.iter().map(|&(r, rows)| (r, rows * width)).collect();
                let far = Item::Work(flops * share.far as f64);
                match reversed {
                    true => self.items.extend([Item::Agree, far, Item::Send { to: others, flops: near }]),
                    false => self.items.extend([Item::Receive { from: others, flops: near }, far]),
                }
            }
            Algorithm::DenseShift { replication } => {
                let order = ring_order(self.rows.parts(), replication, self.rank);
                // As if every block of B met as many nonzeros.
                let flops = flops * self.share.nnz as f64 / order.len() as f64;
                let next = order.get(1).copied().unwrap_or(self.rank);
                let cols = self.cols;
                let receive = |&block: &usize| {
                    let words = cols.range(block).len() * width;
                    Item::Receive { from: if words > 0 { vec![(next, words)] } else { Vec::new() }, flops }
                };
                if reversed {
                    // Terms of the block after the own one are the first; those of the own one come last.
                    self.items.extend([Item::Agree, Item::Work(flops)]);
                    self.items.extend(order.iter().cycle().skip(2).take(order.len() - 1).map(receive));
                } else {
                    self.items.extend(order[1..].iter().map(receive));
                    self.items.push(Item::Work(flops));
                }
            }
        }
        self.items.push(Item::Agree);
    }
}

/// The steps of all ranks in one run of `operation` on a matrix of which rank r has `share(r)`; a word has `element` bytes.
///
/// The rows and columns are cut into `rows.parts()` blocks, and the replication divides that number.
pub fn matrix_steps(
    rows: &Blocks,
    cols: &Blocks,
    share: impl Fn(usize) -> RankLoad,
    algorithm: Algorithm,
    operation: Operation,
    element: usize,
) -> Vec<Vec<Step>> {
    let all = (0..rows.parts()).map(|r| items(r, rows, cols, &share(r), algorithm, operation)).collect();
    steps(all, element)
}

/// The items of all ranks as steps: whatever one receives in item k, another sends in its item k, and the reverse.
fn steps(all: Vec<Vec<Item>>, element: usize) -> Vec<Vec<Step>> {
    let size = all.len();
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut done: Vec<Vec<Step>> = vec![Vec::new(); size];
    for k in 0..longest {
        // What the others say of each rank.
        let mut told = vec![Vec::new(); size];
        for (rank, items) in all.iter().enumerate() {
            if let Some(Item::Receive { from: others, .. } | Item::Send { to: others, .. }) = items.get(k) {
                others.iter().for_each(|&(other, words)| told[other].push((rank, words * element)));
            }
        }
        let bytes = |others: &[(usize, usize)]| others.iter().map(|&(r, words)| (r, words * element)).collect();
        for (rank, (items, told)) in all.iter().zip(told).enumerate() {
            match items.get(k) {
                Some(Item::Agree) => done[rank].extend(Alone::steps(rank, size, |comm| comm.least(0).map(drop))),
                Some(Item::Receive { from, flops }) => {
                    done[rank].push(Step { sends: told, receives: bytes(from), flops: *flops });
                }
                Some(Item::Send { to, flops }) => {
                    done[rank].push(Step { sends: bytes(to), receives: told, flops: *flops });
                }
                Some(Item::Work(flops)) => done[rank].push(Step { flops: *flops, ..Step::default() }),
                None => {}
            }
        }
    }
    done
}

/// A tensor whose `nnz` nonzeros are random and independent, on a grid of ranks: what an iteration of CP-ALS sends, as it is expected.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomTensor {
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Parts of each mode.
    pub grid: Vec<usize>,
    /// Nonzeros of all ranks.
    pub nnz: f64,
}

impl RandomTensor {
    /// Rows of a block of `len` that a cell of the grid names, in `mode`.
    fn named(&self, mode: usize, len: usize) -> usize {
        let cells: usize = self.grid.iter().product();
        let chunk = (self.dims[mode] as f64 / self.grid[mode] as f64).max(1.0);
        let untouched = ((self.nnz / cells as f64) * (-1.0 / chunk).ln_1p()).exp();
        (len as f64 * (1.0 - untouched)).round() as usize
    }

    /// The steps of all ranks in one iteration, but the first, of `components` components with elements of `element` bytes.
    pub fn cp_steps(&self, components: usize, element: usize) -> Vec<Vec<Step>> {
        let size: usize = self.grid.iter().product();
        let order = self.dims.len();
        let modes: Vec<(Blocks, Vec<usize>)> = (0..order)
            .map(|mode| {
                let mut ranks: Vec<usize> = (0..size).collect();
                ranks.sort_by_key(|&r| (place(&self.grid, r)[mode], r));
                (cut_chunks(&Blocks::even(self.dims[mode], self.grid[mode]), size / self.grid[mode]), ranks)
            })
            .collect();
        // Ranks that have rows of the same chunk, each with the rows that one cell names of its block.
        let ghosts = |rank: usize, mode: usize| -> Vec<(usize, usize)> {
            let (blocks, ranks) = &modes[mode];
            let each = size / self.grid[mode];
            let chunk = place(&self.grid, rank)[mode] * each;
            let of = |k: usize| (ranks[k], self.named(mode, blocks.range(k).len()) * components);
            (chunk..chunk + each).map(of).filter(|&(other, words)| other != rank && words > 0).collect()
        };
        // What a rank receives as ghosts of the factors, it sends as parts of products.
        let given = |rank: usize, mode: usize| -> Vec<(usize, usize)> {
            let (blocks, ranks) = &modes[mode];
            let own = ranks.iter().position(|&r| r == rank).map_or(0, |k| blocks.range(k).len());
            let words = self.named(mode, own) * components;
            ghost_ranks(&modes, &self.grid, rank, mode)
                .into_iter()
                .map(|r| (r, words))
                .filter(|&(_, w)| w > 0)
                .collect()
        };
        let flops = order as f64 * (self.nnz / size as f64) * components as f64;
        let sums = |rank: usize, numbers: usize| Alone::steps(rank, size, |comm| comm.sum(&mut vec![0.0; numbers]));
        let agree = |rank: usize| Alone::steps(rank, size, |comm| comm.least(0).map(drop));
        let bytes = |words: Vec<(usize, usize)>| words.into_iter().map(|(r, words)| (r, words * element)).collect();
        let of_rank = |rank: usize| {
            let mut steps = Vec::new();
            for mode in 0..order {
                let last = (mode + order - 1) % order;
                let (receives, sends) = (bytes(ghosts(rank, last)), bytes(given(rank, last)));
                steps.push(Step { sends, receives, flops: 0.0 });
                steps.push(Step { flops, ..Step::default() });
                steps.extend(agree(rank));
                let (receives, sends) = (bytes(given(rank, mode)), bytes(ghosts(rank, mode)));
                steps.push(Step { sends, receives, flops: 0.0 });
                steps.extend(sums(rank, components + 1));
                steps.extend(sums(rank, components * (components + 1) / 2));
            }
            steps.extend(agree(rank));
            steps
        };
        (0..size).map(of_rank).collect()
    }
}

/// The ranks that have rows of the same chunk of `mode` as `rank`.
fn ghost_ranks(modes: &[(Blocks, Vec<usize>)], grid: &[usize], rank: usize, mode: usize) -> Vec<usize> {
    let (_, ranks) = &modes[mode];
    let each = ranks.len() / grid[mode];
    let chunk = place(grid, rank)[mode] * each;
    ranks[chunk..chunk + each].iter().copied().filter(|&r| r != rank).collect()
}
