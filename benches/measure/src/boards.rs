//! FPGA boards as data: what the designs of *Exploring the Limits of Cross-Platform Sparse Tensor Processing* ask of one.

use super::Fpga;

/// A board, described.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Board {
    /// How the command line calls it.
    pub name: &'static str,
    /// DSP blocks, each one single precision multiply-add per cycle.
    pub dsps: usize,
    /// Memory blocks of 20 Kbit on the chip.
    pub ram_blocks: usize,
    /// Clock in MHz: the fabric's highest. What a design reaches is below it, and known only once it has been placed.
    pub clock_mhz: f64,
    /// Words of 4 bytes that a load or store unit moves in a cycle: 32, as the paper's section 5.3 has it.
    pub unit_words: usize,
    /// Channels of the memory, between which its bursts alternate.
    pub channels: usize,
    /// Of all channels together, GB/s.
    pub bandwidth: f64,
    /// Cycles from a request to its data, when no other waits.
    pub latency: u64,
    /// Requests of one load unit that may be under way.
    pub outstanding: usize,
}

/// The boards that are described: the paper's, and the largest of the family that followed it.
///
/// DSP and memory blocks are those of Intel's device overviews. The memories are those of the usual accelerator cards: two channels of
/// DDR4-2133, four of DDR4-2400. Latency and requests under way are assumptions, of which long runs hardly depend.
pub const BOARDS: [Board; 2] = [
    Board {
        name: "arria10-gx1150",
        dsps: 1518,
        ram_blocks: 2713,
        clock_mhz: 450.0,
        unit_words: 32,
        channels: 2,
        bandwidth: 34.1,
        latency: 100,
        outstanding: 256,
    },
    Board {
        name: "stratix10-gx2800",
        dsps: 5760,
        ram_blocks: 11721,
        clock_mhz: 480.0,
        unit_words: 32,
        channels: 4,
        bandwidth: 76.8,
        latency: 120,
        outstanding: 256,
    },
];

/// Words of a memory block that is as wide as one number: 512 of 40 bits, of which it uses 32.
const BLOCK_WORDS: usize = 512;
/// Memory blocks of everything but the matrix: what the paper's design without one takes at 16 columns.
const OTHER_BLOCKS: usize = 527;
/// The part of the blocks that can be placed and routed: an assumption, with which the paper's design with an on-chip matrix fits up to
/// 16 columns, as it says.
const USABLE: f64 = 0.9;

impl Board {
    /// The board of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        BOARDS.iter().find(|board| board.name == name)
    }

    /// As the analytic model sees it.
    pub fn fpga(&self) -> Fpga {
        Fpga { dsps: self.dsps, clock_ghz: self.clock_mhz / 1e3, bandwidth: self.bandwidth }
    }

    /// Memory blocks that hold a matrix of `rows` x `columns`: a column each its own, as deep as the next power of two. The paper's
    /// design needs 1022 for the 28818 x 16 of nell-2; this says 1024.
    pub fn matrix_blocks(rows: usize, columns: usize) -> usize {
        columns.saturating_mul(rows.next_power_of_two().div_ceil(BLOCK_WORDS))
    }

    /// Whether a matrix of `rows` x `columns` fits on the chip, beside the rest of the design.
    pub fn holds(&self, rows: usize, columns: usize) -> bool {
        Self::matrix_blocks(rows, columns).saturating_add(OTHER_BLOCKS) as f64 <= USABLE * self.ram_blocks as f64
    }
}
