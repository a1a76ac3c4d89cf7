//! Tiles of the input modes, and how far ahead rows are prefetched.
//!
//! What was measured (two Zen 5 cores, R = 32): the kernel alone takes 0.9 ns per nonzero and thread at f32 while all
//! rows are in L1, 1.35 ns from L2 and about 2 ns from L3, and a row of the output that is left and entered again costs
//! some 10 nonzeros' time when it does so every 2-4 nonzeros. So tiles should fit L2, but not at the price of runs shorter
//! than about 8 nonzeros; beyond that, prefetching from L3 is the better half.
//!
//! What bounds order 4 on power-law tensors is the way from L2 to L1: whole rows in random order take 0.17 ns a cache line
//! and thread from L1, 0.29 from L2 and 0.5 from L3, and three rows a nonzero are 12 lines at f64, R = 32. So the extent of
//! tiles matters little there, as most accesses go to rows that stay in L2 anyway.
//! Tried there without gain: tiles of the most frequent rows (in simulated caches boxes of coordinates are as good), a
//! tile's columns in halves (a third slower: a half row leaves half of the sets of the caches idle), no prefetch of a
//! factor that fits a quarter of L2 (2 % at f64, a loss at f32), the largest factor prefetched past L2 (a tenth slower
//! at f32), and huge pages under everything (equal).

use sparsimd_kernels::LINE;
use sparsimd_kernels::mttkrp::TILED_MOST_DISTANCE;

use super::mttkrp::Request;
use super::tensor::TensorStats;
use crate::machine::Machine;

/// The shortest mean run that a tile may leave; and where three or more rows of more than two cache lines are read for each
/// nonzero, which at 8 leaves tiles of twice L2 (measured at order 4, f64, R = 32: 1 to 10 % gained in three modes of
/// four).
const MIN_RUN: (usize, usize) = (8, 4);

/// Mean nonzeros of a fiber from which sharing its factor row pays.
pub(super) const MIN_FIBER: f64 = 1.6;

/// Whether a row is shared whatever the length of fibers: from order 4 on, with rows of two cache lines at most. With three
/// input rows for each nonzero, what a loop over chunks of equal length saves on the few longer fibers of power-law tensors
/// exceeds what it costs on fibers of one (measured at order 4: 7 % gained at f32, R = 32; 5 % lost at f64, and at
/// order 3).
pub(super) fn always_share(stats: &TensorStats, request: Request) -> bool {
    stats.dims.len() >= 4 && row_bytes(request) <= TWO_LINES
}

/// Bytes of two cache lines.
const TWO_LINES: usize = 2 * LINE;

/// Cache lines of factor rows between the nonzero computed and the one whose rows are prefetched, which is 4 to 8
/// nonzeros away. Measured in shortest sweeps at R = 32 (Zen 4): where a nonzero reads 16 to 20 lines (orders 5 and 6,
/// f64), 4 ahead take 7 % less than 8; of 12 (order 4, f64) 2 to 6 %; of 8 lines (order 3, f64) 6 ahead take 2 to 3 %
/// less than 8; of 4 and 6 lines 4 to 12 are level.
const PREFETCHED_LINES: usize = 48;

/// Share of L2 that the rows of a tile may take, in tenths. Sides are halved, so that tiles end between half of that
/// and all of it; the rest is for what passes by: the nonzeros and the rows of the output.
const L2_TENTHS: usize = 8;

/// Bytes of a row of a factor.
fn row_bytes(request: Request) -> usize {
    request.rank.saturating_mul(request.element_bytes)
}

/// Tiles of some input modes.
pub(super) struct Tiles {
    /// Length in each input mode.
    pub(super) extent: Vec<usize>,
    /// Bytes of the factor rows of a tile.
    pub(super) bytes: usize,
    /// Mean nonzeros of a run.
    pub(super) run: usize,
}

impl Tiles {
    /// Tiles of the modes `inputs` for an output of which `rows` rows occur.
    pub(super) fn new(stats: &TensorStats, machine: &Machine, request: Request, inputs: &[usize], rows: usize) -> Self {
        let wide = inputs.len() >= 3 && row_bytes(request) > TWO_LINES;
        let min_run = if wide { MIN_RUN.1 } else { MIN_RUN.0 };
        // Halve the longest tile side until the rows fit L2, or runs would become short.
        let mut extent: Vec<usize> = inputs.iter().map(|&m| stats.dims[m].max(1)).collect();
        let run = |extent: &[usize]| {
            let tiles: usize = inputs.iter().zip(extent).map(|(&m, &e)| stats.dims[m].div_ceil(e)).product();
            stats.nnz / rows.max(1).saturating_mul(tiles).max(1)
        };
        let side = |n: usize, extent: &[usize]| factor_bytes(stats, request, inputs[n], extent[n]);
        let bytes = |extent: &[usize]| (0..inputs.len()).map(|n| side(n, extent)).sum::<usize>();
        while bytes(&extent) > machine.l2_bytes() * L2_TENTHS / 10 {
            let longest = (0..inputs.len()).max_by_key(|&n| side(n, &extent)).expect("order 2 or more has inputs");
            let mut halved = extent.clone();
            halved[longest] = extent[longest].div_ceil(2);
            if run(&halved) < min_run || halved[longest] == extent[longest] {
                break;
            }
            extent = halved;
        }
        // Offsets of 2 bytes, where that costs few more tiles.
        let mut capped = extent.clone();
        capped.iter_mut().for_each(|e| *e = (*e).min(1 << 16));
        if run(&capped) >= min_run / 2 {
            extent = capped;
        }
        Self { bytes: bytes(&extent), run: run(&extent), extent }
    }
}

/// Bytes of the rows of `mode`'s factor.
fn factor_bytes(stats: &TensorStats, request: Request, mode: usize, rows: usize) -> usize {
    rows.min(stats.nonempty[mode].max(1)).saturating_mul(row_bytes(request))
}

/// Prefetch distance for reading the whole factors of all modes but one.
pub(super) fn entries_distance(stats: &TensorStats, machine: &Machine, request: Request, mode: usize) -> usize {
    let inputs = (0..stats.dims.len()).filter(|&m| m != mode);
    let bytes: usize = inputs.map(|m| factor_bytes(stats, request, m, stats.dims[m])).sum();
    distance(machine, request, stats.dims.len() - 1, bytes)
}

/// The fewest nonzeros ahead at which rows are prefetched, in L2, where the factors come from memory; partial products of trees are always
/// prefetched so far ahead.
pub(super) const FAR_DISTANCE: usize = 18;

/// Cache lines that are prefetched at a time in L2 where the factors come from memory: as many requests as are under way together. 2 M
/// nonzeros of 400000 x 300000 x 200000, a thread of a Zen 5, 18, 32, 48, 63 nonzeros ahead: R = 64 in bf16, 4 lines each, 20.2, 15.2,
/// 13.2, 12.2 ms; R = 16 in f32, 2 lines, 11.6, 9.6, 8.5, 8.1; R = 64 in f32, 8 lines, 24 to 26; in f64, 16 lines, 59, 60, 65, 67.
const FAR_LINES: usize = 256;

/// Prefetch distance for nonzeros that read `rows` rows each out of so many bytes: none where these share L2 with much
/// else, since the processor's own reordering suffices. Else as many nonzeros as [`PREFETCHED_LINES`] allows, or
/// [`FAR_LINES`] from memory: the more lines one reads, the longer it takes, and the fewer of them cover the way.
pub(super) fn distance(machine: &Machine, request: Request, rows: usize, bytes: usize) -> usize {
    if bytes <= machine.l2_bytes() / 2 {
        return 0;
    }
    let lines = rows.saturating_mul(row_bytes(request).div_ceil(LINE)).max(1);
    if bytes > machine.l3_bytes() / 2 {
        return (FAR_LINES / lines).clamp(FAR_DISTANCE, TILED_MOST_DISTANCE);
    }
    (PREFETCHED_LINES / lines).clamp(4, 8)
}
