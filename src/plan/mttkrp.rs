//! Which layout, and which tiles, for the MTTKRP of a tensor.
//!
//! What was measured (two Zen 5 cores, R = 32): the kernel alone takes 0.9 ns per nonzero and thread at f32 while all
//! rows are in L1, 1.35 ns from L2 and about 2 ns from L3, and a row of the output that is left and entered again costs
//! some 10 nonzeros' time when it does so every 2-4 nonzeros. So tiles should fit L2, but not at the price of runs shorter
//! than about 8 nonzeros; beyond that, prefetching from L3 is the better half.

use std::fmt;

use crate::error::{Error, Result};
use crate::formats::{CooTensor, TiledSpec};
use crate::machine::Machine;
use sparsimd_kernels::Scalar;

/// The shortest mean run that a tile may leave.
const MIN_RUN: usize = 8;
/// Mean nonzeros of a fiber from which sharing its factor row pays.
const MIN_FIBER: f64 = 1.6;
/// Nonzeros that fiber lengths are estimated from.
const SAMPLE: usize = 100_000;

/// How a tensor is stored for MTTKRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MttkrpFormat {
    /// Coordinates as they are.
    Coo,
    /// One CSF per mode.
    CsfAll,
    /// One CSF, shortest mode at the root.
    CsfOne,
    /// That CSF and one for the longest mode.
    CsfTwo,
    /// One balanced CSF per mode.
    Bcsf,
    /// Mixed-mode CSF, dynamic partition.
    MmCsf,
    /// Hierarchical coordinates.
    HiCoo,
    /// All coordinates in one integer.
    Linear,
    /// One tiled copy per mode.
    Tiled,
}

impl MttkrpFormat {
    /// Every format.
    pub const ALL: [Self; 9] = [
        Self::Coo,
        Self::CsfAll,
        Self::CsfOne,
        Self::CsfTwo,
        Self::Bcsf,
        Self::MmCsf,
        Self::HiCoo,
        Self::Linear,
        Self::Tiled,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coo => "coo",
            Self::CsfAll => "csf-all",
            Self::CsfOne => "csf-one",
            Self::CsfTwo => "csf-two",
            Self::Bcsf => "bcsf",
            Self::MmCsf => "mmcsf",
            Self::HiCoo => "hicoo",
            Self::Linear => "alto",
            Self::Tiled => "tiled",
        }
    }

    /// The format called `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for MttkrpFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a plan needs to know of a tensor's pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorStats {
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Number of nonzeros.
    pub nnz: usize,
    /// For each mode, the number of coordinates that occur (nonempty slices).
    pub nonempty: Vec<usize>,
    /// For each mode the others, in the order that shares most, and the mean number of nonzeros that share the mode's
    /// coordinate and those of the first one, two, ... of them (the last is 1).
    pub fibers: Vec<Vec<(usize, f64)>>,
}

impl TensorStats {
    /// The statistics of `coo`; fiber lengths are estimated from some of its slices.
    pub fn of<T: Scalar>(coo: &CooTensor<T>) -> Self {
        let order = coo.order();
        let mut nonempty = Vec::with_capacity(order);
        let mut fibers = Vec::with_capacity(order);
        for mode in 0..order {
            let mut count = vec![0u32; coo.dims()[mode]];
            coo.coords(mode).iter().for_each(|&i| count[i as usize] = count[i as usize].saturating_add(1));
            nonempty.push(count.iter().filter(|&&n| n > 0).count());
            fibers.push(fiber_lengths(coo, mode));
        }
        Self { dims: coo.dims().to_vec(), nnz: coo.nnz(), nonempty, fibers }
    }
}

/// The other modes, those first that the nonzeros of a slice of `mode` share most, with the mean length of the fibers.
fn fiber_lengths<T: Scalar>(coo: &CooTensor<T>, mode: usize) -> Vec<(usize, f64)> {
    // Whole slices, scattered by a hash so that neighbours and heavy slices are met as often as they occur.
    let keep = (coo.nnz() / SAMPLE).max(1) as u64;
    let slices = coo.coords(mode);
    let hash = |i: u32| u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let mut sample: Vec<usize> = (0..coo.nnz()).filter(|&p| hash(slices[p]).is_multiple_of(keep)).collect();
    if sample.is_empty() {
        sample = (0..coo.nnz().min(SAMPLE)).collect();
    }
    sample.truncate(SAMPLE);
    let mut rest: Vec<usize> = (0..coo.order()).filter(|&m| m != mode).collect();
    let mut chosen = vec![mode];
    let mut lengths = Vec::new();
    while !rest.is_empty() {
        let count = |candidate: usize| {
            let key = |&p: &usize| chosen.iter().chain([&candidate]).map(|&m| coo.coords(m)[p]).collect::<Vec<_>>();
            let mut keys: Vec<_> = sample.iter().map(key).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.len()
        };
        let (fewest, best) = match rest[..] {
            // The last mode makes every nonzero its own fiber.
            [last] => (sample.len(), last),
            _ => rest.iter().map(|&m| (count(m), m)).min().expect("the list is not empty"),
        };
        lengths.push((best, sample.len() as f64 / fewest.max(1) as f64));
        rest.retain(|&m| m != best);
        chosen.push(best);
    }
    lengths
}

/// What the output of one mode is computed from.
#[derive(Clone, Debug, PartialEq)]
pub struct ModePlan {
    /// The layout, for [`MttkrpFormat::Tiled`].
    pub tiles: Option<TiledSpec>,
    /// Nonzeros between the one computed and the one whose rows are prefetched.
    pub ahead: usize,
}

/// Format, tasks and tiles for the MTTKRP of one tensor at one rank, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct MttkrpPlan {
    /// How the tensor is stored.
    pub format: MttkrpFormat,
    /// The number of columns of the factors.
    pub rank: usize,
    /// Number of tasks of each mode.
    pub tasks: usize,
    /// One plan per mode.
    pub modes: Vec<ModePlan>,
    /// Bytes that private copies of the output may take: fewer tasks run side by side where more would be needed.
    pub window_bytes: usize,
    why: Vec<String>,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MttkrpRequest {
    /// Columns of the factors.
    pub rank: usize,
    /// Bytes of a value: 4 or 8.
    pub value_bytes: usize,
    /// Threads.
    pub threads: usize,
    /// Bytes that the prepared tensor may take; none for no limit.
    pub memory: Option<usize>,
    /// The format, if it is not to be chosen.
    pub format: Option<MttkrpFormat>,
}

impl MttkrpPlan {
    /// The fastest format that fits the memory, with tiles for this machine's caches.
    ///
    /// # Errors
    /// [`Error::Argument`] for rank 0 and 0 threads, and when not even coordinates fit the memory.
    pub fn choose(stats: &TensorStats, machine: &Machine, request: MttkrpRequest) -> Result<Self> {
        if request.rank == 0 {
            return Err(Error::argument("rank", "0 columns; at least 1"));
        }
        if request.threads == 0 {
            return Err(Error::argument("threads", "0 threads; at least 1"));
        }
        let mut why = Vec::new();
        let format = match request.format {
            Some(format) => {
                why.push(format!("format {format}: asked for"));
                format
            }
            None => Self::format_for(stats, request, &mut why)?,
        };
        let modes = (0..stats.dims.len())
            .map(|mode| match format {
                MttkrpFormat::Tiled if stats.dims.len() > 1 => tiles(stats, machine, request, mode, &mut why),
                _ => ModePlan { tiles: None, ahead: ahead(stats, machine, request, mode) },
            })
            .collect();
        // A quarter of the machine's memory would be more than anybody expects; private windows that take longer to
        // add up than the nonzeros take to compute are worse than fewer tasks.
        let window_bytes = request.memory.unwrap_or(usize::MAX).min(stats.nnz.saturating_mul(request.rank) * 32);
        Ok(Self { format, rank: request.rank, tasks: request.threads, modes, window_bytes, why })
    }

    fn format_for(stats: &TensorStats, request: MttkrpRequest, why: &mut Vec<String>) -> Result<MttkrpFormat> {
        let order = stats.dims.len();
        let value = request.value_bytes;
        let entry_tiled = value + 2 * (order - 1) + 2;
        let coordinate_bits: u32 = stats.dims.iter().map(|&d| crate::formats::packing::mode_bits(d)).sum();
        let wide = usize::from(coordinate_bits > u64::BITS);
        let candidates = [
            (MttkrpFormat::Tiled, order * entry_tiled, "one copy per mode, its tiles sized for L2"),
            (MttkrpFormat::CsfOne, value + 16, "one tree of fibers"),
            (MttkrpFormat::Linear, value + 8 + 8 * wide, "one copy for all modes"),
            (MttkrpFormat::Coo, value + 4 * order, "the coordinates alone"),
        ];
        let limit = request.memory.unwrap_or(usize::MAX);
        for (format, per_nonzero, what) in candidates {
            let bytes = stats.nnz.saturating_mul(per_nonzero);
            let mib = bytes.div_ceil(1 << 20);
            if bytes <= limit {
                why.push(format!("format {format}: {what}; about {mib} MiB"));
                return Ok(format);
            }
            why.push(format!("not {format}: about {mib} MiB are more than the {} MiB allowed", limit >> 20));
        }
        Err(Error::argument("memory", format!("{limit} bytes do not hold {} nonzeros in any format", stats.nnz)))
    }

    /// Why the plan is what it is, a line for each decision.
    pub fn why(&self) -> &[String] {
        &self.why
    }
}

/// Bytes of the rows of `mode`'s factor.
fn factor_bytes(stats: &TensorStats, request: MttkrpRequest, mode: usize, rows: usize) -> usize {
    rows.min(stats.nonempty[mode].max(1)).saturating_mul(request.rank * request.value_bytes)
}

/// Prefetch distance for reading the whole factors of all modes but one.
fn ahead(stats: &TensorStats, machine: &Machine, request: MttkrpRequest, mode: usize) -> usize {
    let inputs = (0..stats.dims.len()).filter(|&m| m != mode);
    let bytes: usize = inputs.map(|m| factor_bytes(stats, request, m, stats.dims[m])).sum();
    distance(bytes, machine)
}

/// Prefetch distance for factor rows of so many bytes: none from L2, where the processor's own window suffices.
fn distance(bytes: usize, machine: &Machine) -> usize {
    match bytes {
        n if n <= machine.l2_bytes() * 9 / 10 => 0,
        n if n <= machine.l3_bytes() / 4 => 8,
        _ => 16,
    }
}

/// Tiles for the output of `mode`.
fn tiles(
    stats: &TensorStats,
    machine: &Machine,
    request: MttkrpRequest,
    mode: usize,
    why: &mut Vec<String>,
) -> ModePlan {
    let chain = &stats.fibers[mode];
    // The last mode is always free.
    let shared = chain[..chain.len() - 1].iter().take_while(|&&(_, length)| length >= MIN_FIBER).count();
    let inputs: Vec<usize> = chain.iter().map(|&(m, _)| m).collect();
    // Halve the longest tile side until the rows fit L2, or runs would become short.
    let mut extent: Vec<usize> = inputs.iter().map(|&m| stats.dims[m].max(1)).collect();
    let run = |extent: &[usize]| {
        let tiles: usize = inputs.iter().zip(extent).map(|(&m, &e)| stats.dims[m].div_ceil(e)).product();
        stats.nnz / (stats.nonempty[mode].max(1) * tiles).max(1)
    };
    let side = |n: usize, extent: &[usize]| factor_bytes(stats, request, inputs[n], extent[n]);
    let rows = |extent: &[usize]| (0..inputs.len()).map(|n| side(n, extent)).sum::<usize>();
    while rows(&extent) > machine.l2_bytes() * 8 / 10 {
        let longest = (0..inputs.len()).max_by_key(|&n| side(n, &extent)).expect("order 2 or more has inputs");
        let mut halved = extent.clone();
        halved[longest] = extent[longest].div_ceil(2);
        if run(&halved) < MIN_RUN || halved[longest] == extent[longest] {
            break;
        }
        extent = halved;
    }
    // Offsets of 2 bytes, where that costs few more tiles.
    let mut capped = extent.clone();
    capped.iter_mut().for_each(|e| *e = (*e).min(1 << 16));
    if run(&capped) >= MIN_RUN / 2 {
        extent = capped;
    }
    let ahead = distance(rows(&extent), machine);
    why.push(format!(
        "mode {mode}: tiles of {extent:?} in modes {inputs:?} ({} KiB of factor rows), runs of {} nonzeros, {}, prefetch {ahead} ahead",
        rows(&extent) >> 10,
        run(&extent),
        match shared {
            0 => "no shared fibers".to_owned(),
            n => format!("fibers of {:.1} nonzeros share {n} modes", chain[n - 1].1),
        },
    ));
    ModePlan { tiles: Some(TiledSpec { mode, inputs, shared, extent, tasks: request.threads }), ahead }
}
