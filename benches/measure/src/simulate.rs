//! The designs for FPGAs of *Exploring the Limits of Cross-Platform Sparse Tensor Processing* (Figure 1), cycle by cycle.
//!
//! ```text
//! processing element: for each slice (MTTKRP):              boundary
//!                         for each fiber:                   boundary (and coordinate, MTTKRP)
//!                             for each nonzero:             coordinate, value; row of the matrix; multiply-add per column
//!                             row of matrix 1, multiply-add per column (MTTKRP)
//!                         store the fiber (TTM), the slice (MTTKRP)
//! ```
//!
//! The steps of an element are pipelined: a row enters every ceil(columns / unit words) cycles, unless as many requests as may be under
//! way wait for the memory. A request is served by bursts of 64 bytes, which take turns among the memory's channels; a channel serves one
//! after the other. Boundaries, coordinates and values are read in streams, a burst at a time, and only take time of the channels. Elements
//! share the channels; the next slice (or fiber) goes to the element that is free first.
//!
//! What the simulation has and Table 3 has not: rows of fewer than 16 columns cost a whole burst, units move 32 words in a cycle,
//! latency, and elements that wait for each other at the channels.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use sparsimd::formats::{Csf, CsfPattern};
use sparsimd::{Error, Result, Scalar};

use super::{Board, FpgaDesign, TreeCounts};

/// Bytes of a burst of DDR4: eight transfers of 8 bytes.
const BURST: u64 = 64;
/// Bytes of a number or index.
const WORD: u64 = 4;

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpgaOp {
    /// Tensor times matrix along the tree's leaves.
    Ttm,
    /// MTTKRP in the mode of the tree's root.
    Mttkrp,
}

/// How rows of the matrix that the nonzeros use are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStore {
    /// In the board's memory: every use is a load.
    Memory,
    /// In the memory, behind a direct-mapped cache of so many bytes, its lines as long as a burst.
    Cache(usize),
    /// All on the chip, loaded before anything else.
    OnChip,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct FpgaRun {
    /// TTM or MTTKRP.
    pub op: FpgaOp,
    /// Columns of the matrices.
    pub columns: usize,
    /// Processing elements.
    pub elements: usize,
    /// Where rows come from.
    pub rows: RowStore,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FpgaTimes {
    /// The design, by Table 3.
    pub design: FpgaDesign,
    /// Seconds that no run is below: by multipliers, bandwidth, and the rows that the units can move.
    pub model_s: f64,
    /// Seconds of the simulation.
    pub simulated_s: f64,
    /// Its cycles.
    pub cycles: u64,
    /// Bytes that the memory moved.
    pub bytes: u64,
    /// Multiply-adds, two operations each.
    pub flops: f64,
}

/// The memory: channels that serve one burst after the other.
struct Memory {
    /// When each channel is free, in cycles.
    free: Vec<f64>,
    /// Cycles of one burst.
    burst: f64,
    latency: f64,
    bytes: u64,
}

impl Memory {
    fn new(board: &Board) -> Self {
        let per_cycle = board.bandwidth * 1e3 / board.clock_mhz / board.channels as f64;
        Self {
            free: vec![0.0; board.channels],
            burst: BURST as f64 / per_cycle,
            latency: board.latency as f64,
            bytes: 0,
        }
    }

    /// A burst asked for at `time`; when its channel has served it.
    fn burst(&mut self, time: f64, number: u64) -> f64 {
        let channel = (number % self.free.len() as u64) as usize;
        let served = self.free[channel].max(time) + self.burst;
        self.free[channel] = served;
        self.bytes += BURST;
        served
    }

    /// The bytes from `address` on; when the last has passed.
    fn bursts(&mut self, time: f64, address: u64, bytes: u64) -> f64 {
        let (first, last) = (address / BURST, (address + bytes.max(1) - 1) / BURST);
        (first..=last).fold(time, |done, number| done.max(self.burst(time, number)))
    }
}

/// Words that are read or written one after the other: a burst for as many as it holds.
struct Stream {
    base: u64,
    words: u64,
}

impl Stream {
    /// The next `words`; the burst that they begin takes its time of a channel.
    fn advance(&mut self, memory: &mut Memory, time: f64, words: u64) {
        let (before, after) = (self.words * WORD, (self.words + words) * WORD);
        (before.div_ceil(BURST)..after.div_ceil(BURST)).for_each(|number| _ = memory.burst(time, self.base + number));
        self.words += words;
    }
}

/// A direct-mapped cache.
struct Cache {
    /// The line that each place holds.
    tags: Vec<u64>,
}

impl Cache {
    /// Whether `line` is there; it is from now on.
    fn hit(&mut self, line: u64) -> bool {
        let place = (line % self.tags.len() as u64) as usize;
        std::mem::replace(&mut self.tags[place], line) == line
    }
}

/// A load unit and the multipliers behind it.
#[derive(Clone)]
struct Unit {
    /// When the next row may enter.
    next: f64,
    /// When the data of the last requests are there, as many as may be under way.
    pending: Vec<f64>,
    turn: usize,
}

impl Unit {
    /// When the next row enters, if its fiber is known at `time`.
    fn enters(&self, time: f64) -> f64 {
        time.max(self.next).max(self.pending[self.turn])
    }

    /// A row enters at `time`, whose data are there at `there`.
    fn enter(&mut self, time: f64, there: f64, interval: f64) {
        self.pending[self.turn] = there;
        self.turn = (self.turn + 1) % self.pending.len();
        self.next = time + interval;
    }
}

/// One processing element.
struct Element {
    /// For rows of the nonzeros, and for those of the nodes above.
    units: [Unit; 2],
    /// When all that entered is done.
    done: f64,
    /// When the results of all that is done are stored.
    end: f64,
    cache: Option<Cache>,
    job: Option<Job>,
}

/// A fiber (TTM) or slice (MTTKRP) that an element has.
struct Job {
    walk: Walk,
    /// Nonzeros of the current fiber that are left.
    nonzeros: Range<usize>,
    /// Nodes above that end with it, the deepest last.
    closed: Vec<(usize, usize)>,
}

impl FpgaRun {
    /// Simulates the run on `board`, of the tree `x`: TTM along its leaves, MTTKRP of its root's mode. Beyond order 3, modes between count
    /// as MTTKRP's fibers do.
    ///
    /// # Errors
    /// [`Error::Argument`] for no columns or elements, more multipliers than the board has, a matrix that does not fit on the chip, a cache
    /// without a line, and a tree of order 1.
    #[inline(never)]
    pub fn simulate<T: Scalar>(&self, board: &Board, x: &Csf<T>) -> Result<FpgaTimes> {
        let fail = |name, detail: String| Err(Error::Argument { name, detail });
        let (pattern, c) = (x.pattern(), self.columns);
        if pattern.order() < 2 {
            return fail("tensor", "order 1; at least 2".to_owned());
        }
        if c == 0 {
            return fail("columns", "0; at least 1".to_owned());
        }
        let tree = TreeCounts::of_pattern(pattern);
        let fpga = board.fpga();
        let wanted = Some(self.elements);
        let design = match self.op {
            FpgaOp::Ttm => fpga.ttm(&tree, c, wanted),
            FpgaOp::Mttkrp => fpga.mttkrp(&tree, c, wanted),
        };
        if self.elements == 0 || design.elements < self.elements {
            let needed = self.elements * design.dsps;
            return fail(
                "elements",
                format!("{} of {} DSP blocks need {needed}; the board has {}", self.elements, design.dsps, board.dsps),
            );
        }
        let leaves = pattern.dims()[pattern.mode_order()[pattern.order() - 1]];
        if self.rows == RowStore::OnChip && !board.holds(leaves, c) {
            let needed = Board::matrix_blocks(leaves, c);
            return fail(
                "columns",
                format!("a matrix of {leaves} x {c} takes {needed} memory blocks of {}", board.ram_blocks),
            );
        }
        if matches!(self.rows, RowStore::Cache(bytes) if (bytes as u64) < BURST) {
            return fail("cache", format!("less than a line of {BURST} bytes"));
        }
        let (cycles, bytes) = self.run(board, pattern, leaves);
        let clock = board.clock_mhz * 1e6;
        let (above, rows) = match self.op {
            FpgaOp::Ttm => (0.0, tree.rows(false)),
            FpgaOp::Mttkrp => (tree.rows(true) - tree.rows(false), tree.rows(true)),
        };
        let flops = 2.0 * c as f64 * rows;
        let loaded = (leaves * c * WORD as usize) as f64;
        let moved = if flops > 0.0 { flops / design.intensity } else { 0.0 };
        let leaf_bytes = (rows - above) * (c as u64 * WORD) as f64;
        let moved = match self.rows {
            RowStore::Memory => moved,
            RowStore::Cache(_) => moved - leaf_bytes,
            RowStore::OnChip => moved - leaf_bytes + loaded,
        };
        // Either unit takes so many rows of the busier kind, each in as many cycles as its width asks for.
        let by_units = above.max(rows - above) * c.div_ceil(board.unit_words) as f64 / (self.elements as f64 * clock);
        let model_s = (moved / (board.bandwidth * 1e9)).max(by_units).max(flops / (design.peak * 1e9));
        Ok(FpgaTimes { design, model_s, simulated_s: cycles as f64 / clock, cycles, bytes, flops })
    }

    fn run(&self, board: &Board, pattern: &CsfPattern, leaves: usize) -> (u64, u64) {
        let mut memory = Memory::new(board);
        let row_bytes = self.columns as u64 * WORD;
        let interval = self.columns.div_ceil(board.unit_words) as f64;
        let on_chip = self.rows == RowStore::OnChip;
        // Arrays that do not overlap, each on a boundary of bursts, in bursts.
        let mut base = 0;
        let mut array = |words: usize| {
            let start = base;
            base += (words as u64 * WORD).div_ceil(BURST) + 1;
            start
        };
        let last = pattern.order() - 1;
        let leaf_rows = array(leaves * self.columns) * BURST;
        let inner_rows: Vec<u64> =
            pattern.mode_order()[1..last].iter().map(|&m| array(pattern.dims()[m] * self.columns) * BURST).collect();
        let mut streams: Vec<Stream> =
            (0..3).map(|_| Stream { base: array(2 * (pattern.nnz() + 2)), words: 0 }).collect();
        let start =
            if on_chip { memory.bursts(0.0, leaf_rows, leaves as u64 * row_bytes) + memory.latency } else { 0.0 };
        let unit = Unit { next: start, pending: vec![start; board.outstanding], turn: 0 };
        let element = |_| Element {
            units: [unit.clone(), unit.clone()],
            done: start,
            end: start,
            cache: match self.rows {
                RowStore::Cache(bytes) => Some(Cache { tags: vec![u64::MAX; bytes / BURST as usize] }),
                _ => None,
            },
            job: None,
        };
        let mut elements: Vec<Element> = (0..self.elements).map(element).collect();
        // One row at a time, of the element that is ready first: so the channels are asked in the order of time.
        let mut ready: BinaryHeap<Reverse<(u64, usize)>> =
            (0..self.elements).map(|e| Reverse((start as u64, e))).collect();
        let level = match self.op {
            FpgaOp::Ttm => last - 1,
            FpgaOp::Mttkrp => 0,
        };
        let mut node = 0;
        while let Some(Reverse((_, e))) = ready.pop() {
            let Element { units, done, end, cache, job } = &mut elements[e];
            let now = units[0].next;
            let Some(own) = job else {
                if node < pattern.nodes(level) {
                    streams[0].advance(&mut memory, now, 1);
                    *job = Some(Job { walk: Walk::new(pattern, level, node), nonzeros: 0..0, closed: Vec::new() });
                    node += 1;
                    ready.push(Reverse((now as u64, e)));
                }
                continue;
            };
            if let Some(p) = own.nonzeros.next() {
                streams[2].advance(&mut memory, now, 2);
                let address = leaf_rows + u64::from(pattern.idx(last)[p]) * row_bytes;
                let enters = units[0].enters(now);
                let lines = address / BURST..(address + row_bytes - 1) / BURST + 1;
                // Each line is looked up, whether or not the one before was there: that is what loads it.
                let cached = cache.as_mut().is_some_and(|cache| lines.filter(|&line| !cache.hit(line)).count() == 0);
                let there = match on_chip || cached {
                    true => enters,
                    false => memory.bursts(enters, address, row_bytes) + memory.latency,
                };
                units[0].enter(enters, there, interval);
                *done = done.max(there + interval);
            } else if let Some((level, node)) = own.closed.pop() {
                let address = inner_rows[level - 1] + u64::from(pattern.idx(level)[node]) * row_bytes;
                let enters = units[1].enters(now);
                let there = memory.bursts(enters, address, row_bytes) + memory.latency;
                units[1].enter(enters, there, interval);
                *done = done.max(there + interval);
            } else if own.walk.left.is_empty() {
                // The result leaves when its last row has passed, and the element goes on meanwhile: its bursts take the channels' time
                // now, between those of rows that are on their way.
                let bursts = row_bytes.div_ceil(BURST);
                let written = memory.bursts(now, base * BURST, row_bytes);
                let after = bursts.div_ceil(memory.free.len() as u64) as f64 * memory.burst;
                *end = end.max(written).max(*done + after);
                base += bursts;
                *job = None;
            } else {
                let (fiber, mut closed) = own.walk.fiber(pattern);
                own.nonzeros = pattern.children(last - 1, fiber);
                if self.op == FpgaOp::Mttkrp {
                    streams[1].advance(&mut memory, now, 2 * closed.len() as u64);
                    closed.reverse();
                    own.closed = closed;
                }
            }
            let Element { units, .. } = &elements[e];
            ready.push(Reverse((units[0].enters(0.0) as u64, e)));
        }
        let ends = elements.iter().map(|element| element.end).chain(memory.free.iter().copied());
        (ends.fold(0.0, f64::max).ceil() as u64, memory.bytes)
    }
}

/// The fibers below a node, one after the other.
struct Walk {
    /// Level of the node.
    level: usize,
    /// On each level from it down to the fibers, the nodes that are left, the current one first.
    left: Vec<Range<usize>>,
}

impl Walk {
    fn new(pattern: &CsfPattern, level: usize, node: usize) -> Self {
        let mut walk = Self { level, left: std::iter::once(node..node + 1).collect() };
        walk.down(pattern);
        walk
    }

    /// From the deepest node down to its first fiber.
    fn down(&mut self, pattern: &CsfPattern) {
        while self.level + self.left.len() < pattern.order() - 1 {
            let (level, node) = (self.level + self.left.len() - 1, self.left[self.left.len() - 1].start);
            self.left.push(pattern.children(level, node));
        }
    }

    /// The current fiber, after which it goes on to the next; and the nodes below the root that end with it, deepest first.
    fn fiber(&mut self, pattern: &CsfPattern) -> (usize, Vec<(usize, usize)>) {
        let fiber = self.left[self.left.len() - 1].start;
        let mut closed = Vec::new();
        while let Some(range) = self.left.last_mut() {
            let node = range.start;
            range.start += 1;
            let more = range.start < range.end;
            let level = self.level + self.left.len() - 1;
            if level > 0 {
                closed.push((level, node));
            }
            if more {
                break;
            }
            self.left.pop();
        }
        if !self.left.is_empty() {
            self.down(pattern);
        }
        (fiber, closed)
    }
}
