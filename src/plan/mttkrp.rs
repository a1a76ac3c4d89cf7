//! Which layout, and which tiles, for the MTTKRP of a tensor.

use std::fmt;

use sparsimd_kernels::Stored;

use super::options::{Effort, Target};
use super::tensor::TensorStats;
use super::tiles::{MIN_FIBER, Tiles, always_share, distance, entries_distance};
use super::tree::{TreePlan, direct_rows};
use crate::error::{Error, Result};
use crate::formats::{BcsfLimits, MmCsfStrategy, TiledSpec};
use crate::machine::Machine;

/// A tree of partial products must move this part of the rows that separate modes do, or less, to be chosen: estimates of
/// rows are not times.
const TREE_GAIN: f64 = 0.8;

/// Mean nonzeros of a leaf fiber below which coordinates beat a tree of fibers. Measured at R = 32, factors in the caches
/// and beyond: at 1 to 2 nonzeros coordinates take 0.4 to 0.9 of the tree's time, at 7 about 0.9, at 13 and more 1.1 to
/// 1.5.
const LONG_FIBER: f64 = 8.0;

/// Nonzeros between the one computed for all modes at once and the one whose rows are prefetched. Each has rows of
/// factors and of outputs: 2 to 5 ahead take 35 ms where 8 take 38 (6000 x 6000 x 40000 x 1000, 3 M nonzeros, f64, R =
/// 32, shortest sweeps, Zen 4).
const JOINT_PREFETCH_DISTANCE: usize = 4;

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
    /// Mixed-mode CSF, dynamic partition unless another is asked for ([`TensorOptions::partition`]).
    MmCsf,
    /// Hierarchical coordinates.
    HiCoo,
    /// All coordinates in one integer.
    Alto,
    /// One tiled copy per mode.
    Tiled,
    /// Tiled partial products that several modes share.
    Tree,
    /// Coordinates sorted by the longest mode, for all modes at once from the same factors
    /// ([`crate::Cpu::mttkrp_all`]). Not chosen unless asked for: one mode by itself, as in a sweep of alternating
    /// least squares, takes as long as from coordinates.
    Joint,
}

impl MttkrpFormat {
    /// Every format.
    pub const ALL: [Self; 11] = [
        Self::Coo,
        Self::CsfAll,
        Self::CsfOne,
        Self::CsfTwo,
        Self::Bcsf,
        Self::MmCsf,
        Self::HiCoo,
        Self::Alto,
        Self::Tiled,
        Self::Tree,
        Self::Joint,
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
            Self::Alto => "alto",
            Self::Tiled => "tiled",
            Self::Tree => "tree",
            Self::Joint => "joint",
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

/// How the work of one mode is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MttkrpAlgorithm {
    /// Element-centric. Lists: nonzero by nonzero, each one adding to its row of the output. Trees: a task computes one
    /// register of columns of its rows of the output, so that a few slices occupy all threads; the nonzeros are read
    /// again for each register (Listing 3 of Sousa et al., *Exploring the Limits of Cross-Platform Sparse Tensor
    /// Processing*, where a work item computes one element).
    Element,
    /// Row by row: the nonzeros of a row of the output are neighbours, their sum stays in registers.
    Row,
    /// Slice by slice of a tree with the mode at its root.
    Slice,
    /// Fiber by fiber of a tree with the mode just above the leaves.
    Fiber,
    /// Nonzero by nonzero of a tree with the mode at its leaves.
    Nonzero,
    /// Nonzero by nonzero on a device, each one adding to its row of the output by atomic additions.
    Atomic,
}

impl MttkrpAlgorithm {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Element => "element",
            Self::Row => "row",
            Self::Slice => "slice",
            Self::Fiber => "fiber",
            Self::Nonzero => "nonzero",
            Self::Atomic => "atomic",
        }
    }
}

/// What the output of one mode is computed from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModePlan {
    /// The layout, for [`MttkrpFormat::Tiled`].
    pub(crate) tiles: Option<TiledSpec>,
    /// Nonzeros between the one computed and the one whose rows are prefetched.
    pub(crate) prefetch_distance: usize,
}

/// Format, tasks and tiles for the MTTKRP of one tensor at one rank: made by [`MttkrpPlan::choose`] for tensors of the same
/// dimensions, and not to be changed.
#[derive(Clone, Debug, PartialEq)]
pub struct MttkrpPlan {
    pub(crate) format: MttkrpFormat,
    pub(crate) rank: usize,
    /// Lengths of the modes that it was made for.
    pub(crate) dims: Vec<usize>,
    /// Number of tasks of each mode.
    pub(crate) tasks: usize,
    /// One plan per mode.
    pub(crate) modes: Vec<ModePlan>,
    /// The groups of modes that share partial products, for [`MttkrpFormat::Tree`].
    pub(crate) tree: Option<TreePlan>,
    pub(crate) algorithm: Option<MttkrpAlgorithm>,
    /// Of [`MttkrpFormat::MmCsf`].
    pub(crate) partition: MmCsfStrategy,
    /// Of [`MttkrpFormat::Bcsf`].
    pub(crate) bcsf_limits: BcsfLimits,
    /// Bytes that private copies of the output may take: fewer tasks run side by side where more would be needed.
    pub(crate) privatised_bytes: usize,
    why: Vec<String>,
}

/// What a tensor is prepared for: the rank, and what of the plan is not to be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorOptions {
    rank: usize,
    pub(crate) format: Option<MttkrpFormat>,
    pub(crate) reuse: usize,
    pub(crate) effort: Effort,
    memory: Option<usize>,
    algorithm: Option<MttkrpAlgorithm>,
    partition: MmCsfStrategy,
    bcsf_limits: BcsfLimits,
    privatised_bytes: Option<usize>,
    tiles: Option<(usize, usize)>,
    prefetch_distance: Option<usize>,
    element_bytes: Option<usize>,
}

impl TensorOptions {
    /// For 100 sweeps with factors of `rank` columns, in the format that is expected to be fastest.
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            format: None,
            reuse: 100,
            effort: Effort::Estimate,
            memory: None,
            algorithm: None,
            partition: MmCsfStrategy::Dynamic,
            bcsf_limits: BcsfLimits::default(),
            privatised_bytes: None,
            tiles: None,
            prefetch_distance: None,
            element_bytes: None,
        }
    }

    /// The same for factors that store `D`: tiles that fit the caches are longer where it is narrow.
    pub fn factors<D: Stored>(self) -> Self {
        Self { element_bytes: Some(size_of::<D>()), ..self }
    }

    /// The same in this format; none to have it chosen.
    pub fn format(self, format: impl Into<Option<MttkrpFormat>>) -> Self {
        Self { format: format.into(), ..self }
    }

    /// The same with this effort to find the format, if none is asked for.
    pub fn effort(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }

    /// The same for so many sweeps over all modes: [`Effort::Measure`] takes at most a tenth of their time.
    pub fn reuse(self, sweeps: usize) -> Self {
        Self { reuse: sweeps, ..self }
    }

    /// The same where the prepared tensor may take so many bytes; none for no limit.
    pub fn memory(self, bytes: impl Into<Option<usize>>) -> Self {
        Self { memory: bytes.into(), ..self }
    }

    /// The same with the work cut in this way, where the format leaves a choice: coordinates
    /// ([`MttkrpAlgorithm::Element`], or [`MttkrpAlgorithm::Row`] with a copy sorted for each mode) and one CSF per
    /// mode (slice, fiber or nonzero, by the level that the mode is given, or element). None for the fastest; other
    /// formats have one algorithm for each mode.
    pub fn algorithm(self, algorithm: impl Into<Option<MttkrpAlgorithm>>) -> Self {
        Self { algorithm: algorithm.into(), ..self }
    }

    /// The same with the nonzeros of [`MttkrpFormat::MmCsf`] parted in this way.
    pub fn partition(self, partition: MmCsfStrategy) -> Self {
        Self { partition, ..self }
    }

    /// The same with the pieces of [`MttkrpFormat::Bcsf`] within these limits.
    pub fn bcsf_limits(self, bcsf_limits: BcsfLimits) -> Self {
        Self { bcsf_limits, ..self }
    }

    /// The same where private copies of the output may take so many bytes; fewer tasks run side by side where more
    /// would be needed.
    pub fn privatised_bytes(self, bytes: usize) -> Self {
        Self { privatised_bytes: Some(bytes), ..self }
    }

    /// The same where tiles of [`MttkrpFormat::Tiled`] are `extent` long in every input mode and chunks share the rows
    /// of `shared` modes (of all but one at most).
    pub fn tiles(self, extent: usize, shared: usize) -> Self {
        Self { tiles: Some((extent, shared)), ..self }
    }

    /// The same with so many nonzeros between the one computed and the one whose rows are prefetched: in L1, from 17 on in L2; 0 for no
    /// prefetch.
    pub fn prefetch_distance(self, nonzeros: usize) -> Self {
        Self { prefetch_distance: Some(nonzeros), ..self }
    }

    /// Columns of the factors.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// Options and target, as the parts of the choice take them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) rank: usize,
    pub(super) value_bytes: usize,
    /// Of the factors.
    pub(super) element_bytes: usize,
    pub(super) threads: usize,
    pub(super) memory: Option<usize>,
}

impl MttkrpPlan {
    /// The fastest format that fits the memory, with tiles for the machine's caches.
    ///
    /// # Errors
    /// [`Error::Argument`] for rank 0, 0 threads and tiles of length 0, and when not even coordinates fit the memory.
    pub fn choose(stats: &TensorStats, machine: &Machine, options: &TensorOptions, target: &Target) -> Result<Self> {
        let request = Request {
            rank: options.rank,
            value_bytes: target.value_bytes,
            element_bytes: options.element_bytes.unwrap_or(target.value_bytes),
            threads: target.threads,
            memory: options.memory,
        };
        if request.rank == 0 {
            return Err(Error::argument("rank", "0 columns; at least 1"));
        }
        if request.threads == 0 {
            return Err(Error::argument("threads", "0 threads; at least 1"));
        }
        if let Some((0, _)) = options.tiles {
            return Err(Error::argument("tiles", "tiles of length 0; at least 1"));
        }
        let mut why = Vec::new();
        let mut best = TreePlan::best(stats, machine, request);
        let format = match options.format {
            Some(format) => {
                why.push(format!("format {format}: asked for"));
                format
            }
            None => {
                let direct = direct_rows(stats);
                let tree = best.as_ref().map(|(_, cost)| (cost.rows / direct, cost.bytes));
                Self::format_for(stats, request, tree, &mut why)?
            }
        };
        let tree = if format == MttkrpFormat::Tree { best.take().map(|(tree, _)| tree) } else { None };
        for group in tree.iter().flat_map(|tree| &tree.groups) {
            why.push(format!(
                "modes {:?}: from the products of modes {:?}, tiles of {:?}, prefetch {} ahead",
                group.modes, group.contracted, group.tiles.extent, group.prefetch_distance
            ));
        }
        if format == MttkrpFormat::Joint {
            let root = joint_root(&stats.dims);
            why.push(format!(
                "all modes at once: sorted by mode {root}, the longest, prefetch {JOINT_PREFETCH_DISTANCE} ahead"
            ));
        }
        let mut modes: Vec<ModePlan> = (0..stats.dims.len())
            .map(|mode| match format {
                MttkrpFormat::Joint => ModePlan { tiles: None, prefetch_distance: JOINT_PREFETCH_DISTANCE },
                MttkrpFormat::Tiled if stats.dims.len() > 1 => tiles(stats, machine, request, mode, &mut why),
                _ => ModePlan { tiles: None, prefetch_distance: entries_distance(stats, machine, request, mode) },
            })
            .collect();
        for mode in &mut modes {
            mode.prefetch_distance = options.prefetch_distance.unwrap_or(mode.prefetch_distance);
            if let (Some(spec), Some((extent, shared))) = (&mut mode.tiles, options.tiles) {
                spec.extent.fill(extent);
                spec.shared = shared.min(spec.inputs.len() - 1);
            }
        }
        // Privatised outputs that take longer to add up than the nonzeros take to compute are worse than fewer tasks.
        let privatised_bytes = request.memory.unwrap_or(usize::MAX).min(stats.nnz.saturating_mul(request.rank) * 32);
        let privatised_bytes = options.privatised_bytes.unwrap_or(privatised_bytes);
        let (rank, tasks, dims) = (request.rank, request.threads, stats.dims.clone());
        Ok(Self {
            format,
            rank,
            dims,
            tasks,
            modes,
            tree,
            algorithm: options.algorithm,
            partition: options.partition,
            bcsf_limits: options.bcsf_limits,
            privatised_bytes,
            why,
        })
    }

    /// The format for the tensor; `tree` is the share of rows that the best tree moves, and its bytes.
    fn format_for(
        stats: &TensorStats,
        request: Request,
        tree: Option<(f64, usize)>,
        why: &mut Vec<String>,
    ) -> Result<MttkrpFormat> {
        let limit = request.memory.unwrap_or(usize::MAX);
        if let Some((share, bytes)) = tree {
            let (percent, mib) = (100.0 * share, bytes.div_ceil(1 << 20));
            if share <= TREE_GAIN && bytes <= limit {
                why.push(format!("format tree: a sweep moves {percent:.0} % of the rows; about {mib} MiB"));
                return Ok(MttkrpFormat::Tree);
            }
            why.push(format!("not tree: a sweep would move {percent:.0} % of the rows and take about {mib} MiB"));
        }
        let order = stats.dims.len();
        let value = request.value_bytes;
        let entry_tiled = value + 2 * (order - 1) + 2;
        let coordinate_bits: u32 = stats.dims.iter().map(|&d| crate::formats::packing::mode_bits(d)).sum();
        let wide = usize::from(coordinate_bits > u64::BITS);
        // The fastest first, as measured.
        let fiber = leaf_fiber(stats);
        let lists = format!("the coordinates alone, fibers of {fiber:.1} nonzeros gain nothing");
        let mut candidates = [
            (MttkrpFormat::Tiled, order * entry_tiled, "one copy per mode, its tiles sized for L2"),
            (MttkrpFormat::Coo, value + 4 * order, lists.as_str()),
            (MttkrpFormat::CsfOne, value + 16, "one tree of fibers"),
            (MttkrpFormat::Alto, value + 8 + 8 * wide, "one copy for all modes"),
        ];
        if fiber >= LONG_FIBER {
            candidates.swap(1, 2);
            candidates[2].2 = "the coordinates alone";
        }
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

    /// How the tensor is stored.
    pub fn format(&self) -> MttkrpFormat {
        self.format
    }

    /// Columns of the factors that it was made for.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Adds a reason.
    pub(crate) fn because(&mut self, reason: String) {
        self.why.push(reason);
    }

    /// What will be done and why, a line for each decision.
    pub fn explain(&self) -> String {
        self.why.join("\n")
    }
}

/// The mode that a list for all modes at once is sorted by: the longest, whose rows are read, and written, once, while
/// those of the shorter modes are in the caches.
pub(crate) fn joint_root(dims: &[usize]) -> usize {
    (0..dims.len()).rev().max_by_key(|&mode| dims[mode]).unwrap_or(0)
}

/// Mean nonzeros of a leaf fiber of the tree with the shortest mode at its root.
fn leaf_fiber(stats: &TensorStats) -> f64 {
    let order = stats.dims.len();
    let Some(root) = (0..order).min_by_key(|&mode| stats.dims[mode]) else { return 1.0 };
    match order {
        1 => 1.0,
        2 => stats.nnz as f64 / stats.nonempty[root].max(1) as f64,
        _ => stats.fibers[root][order - 3].1,
    }
}

/// Tiles for the output of `mode`.
fn tiles(stats: &TensorStats, machine: &Machine, request: Request, mode: usize, why: &mut Vec<String>) -> ModePlan {
    let chain = &stats.fibers[mode];
    // The last mode is always free.
    let mut shared = chain[..chain.len() - 1].iter().take_while(|&&(_, length)| length >= MIN_FIBER).count();
    if always_share(stats, request) {
        shared = shared.max(1);
    }
    let inputs: Vec<usize> = chain.iter().map(|&(m, _)| m).collect();
    let tiles = Tiles::new(stats, machine, request, &inputs, stats.nonempty[mode]);
    let prefetch_distance = distance(machine, request, inputs.len(), tiles.bytes);
    why.push(format!(
        "mode {mode}: tiles of {:?} in modes {inputs:?} ({} KiB of factor rows), runs of {} nonzeros, {}, prefetch {prefetch_distance} ahead",
        tiles.extent,
        tiles.bytes >> 10,
        tiles.run,
        match shared {
            0 => "no shared fibers".to_owned(),
            n => format!("fibers of {:.1} nonzeros share {n} modes", chain[n - 1].1),
        },
    ));
    ModePlan {
        tiles: Some(TiledSpec { mode, inputs, shared, extent: tiles.extent, tasks: request.threads }),
        prefetch_distance,
    }
}
