//! Whether, and how, the modes of a sweep share partial products: a dimension tree of two levels.
//!
//! ```text
//! the modes are parted into groups; for each group S of a sweep:
//!     Y[s] = sum over the nonzeros at place s in the modes of S of x * (product of the rows of all other modes)
//!     for every mode n of S:
//!         out_n[i_n] = sum over the places s of Y[s] * (product of the rows of the other modes of S)
//!         (the caller may update the factor of mode n)
//! ```
//!
//! The factors of the other groups do not change meanwhile, so Y stays right while the modes of S are updated one after
//! the other, and the sweep computes what separate MTTKRPs would. With N modes in two halves the nonzeros are passed
//! over twice instead of N times; what it costs is a row of Y for every place, which pays where places have several
//! nonzeros each. The idea is that of Kaya and Ucar's dimension trees and of AdaTM's memoised semi-sparse tensors.

use super::mttkrp::Request;
use super::tensor::TensorStats;
use super::tiles::{FAR_DISTANCE, MIN_FIBER, Tiles, distance};
use crate::formats::TiledSpec;
use crate::machine::Machine;

/// The modes that share one set of partial products.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupPlan {
    /// The modes whose outputs are computed from the group's partial products, in the order of the sweep. A group of one
    /// mode has none: it is computed from the nonzeros.
    pub(crate) modes: Vec<usize>,
    /// All other modes, those first whose rows chunks of nonzeros share.
    pub(crate) contracted: Vec<usize>,
    /// The layout of the nonzeros: its mode 0 is the place in `modes`, mode n + 1 is `contracted[n]`.
    pub(crate) tiles: TiledSpec,
    /// Nonzeros between the one computed and the one whose rows are prefetched.
    pub(crate) prefetch_distance: usize,
    /// The same between places, whose partial products are read in any order.
    pub(crate) places_distance: usize,
}

/// The groups of a sweep, in its order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TreePlan {
    /// Every mode is in one of them.
    pub(crate) groups: Vec<GroupPlan>,
}

/// What a tree is expected to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Rows of R elements moved in a sweep, in units of one read from L2.
    pub(super) rows: f64,
    /// Bytes of the layouts and of the largest partial products.
    pub(super) bytes: usize,
}

/// A run of nonzeros costs what so many reads of rows cost: its end is mispredicted, its row of the output is read and
/// written (about 3 ns and thread against 0.8 ns for a row of 128 bytes).
const RUN: f64 = 4.0;
/// Reading a row of Y from L3, and from memory, in reads of a row from L2.
const STREAM: (f64, f64) = (1.5, 4.0);

/// The rows that a sweep moves which computes every mode from the nonzeros.
pub(super) fn direct_rows(stats: &TensorStats) -> f64 {
    (0..stats.dims.len()).map(|mode| mode_rows(stats, mode)).sum()
}

/// The rows moved for one mode from the nonzeros: chunks of a fiber share a row.
fn mode_rows(stats: &TensorStats, mode: usize) -> f64 {
    let inputs: f64 = stats.fibers[mode].iter().map(|&(_, length)| stats.nnz as f64 / length.max(1.0)).sum();
    inputs + RUN * stats.nonempty[mode] as f64
}

/// The modes of a set.
fn modes_of(set: u32, order: usize) -> impl Iterator<Item = usize> {
    (0..order).filter(move |&mode| set >> mode & 1 == 1)
}

impl TreePlan {
    /// The tree of the least cost, if the tensor has at least two modes and its sets of modes were looked at.
    pub(super) fn best(stats: &TensorStats, machine: &Machine, request: Request) -> Option<(Self, Cost)> {
        let order = stats.dims.len();
        if order < 2 {
            return None;
        }
        let all = (1u32 << order) - 1;
        // Each pair of a set and its complement once: the set with mode 0 comes first in the sweep.
        let halves = (1..all).filter(|set| set & 1 == 1 && known(stats, *set) && known(stats, all & !set));
        let cost = |set: u32| {
            let (a, b) = (group_cost(stats, machine, request, set), group_cost(stats, machine, request, all & !set));
            // Partial products of one group at a time.
            Cost { rows: a.0.rows + b.0.rows, bytes: a.0.bytes + b.0.bytes + a.1.max(b.1) }
        };
        let (set, cost) = halves.map(|set| (set, cost(set))).min_by(|a, b| a.1.rows.total_cmp(&b.1.rows))?;
        let groups = [set, all & !set].map(|set| group(stats, machine, request, set)).into();
        Some((Self { groups }, cost))
    }
}

/// Whether the number of places in the modes of `set` is known.
fn known(stats: &TensorStats, set: u32) -> bool {
    stats.places_in(set).is_some()
}

/// The input modes of a group's partial products, those first that have the fewest rows, and how many of them chunks of
/// nonzeros share.
fn contracted(stats: &TensorStats, set: u32) -> (Vec<usize>, usize, f64) {
    let order = stats.dims.len();
    if set.count_ones() == 1 {
        let chain = &stats.fibers[set.trailing_zeros() as usize];
        let shared = chain[..chain.len() - 1].iter().take_while(|&&(_, length)| length >= MIN_FIBER).count();
        let length = if shared > 0 { chain[shared - 1].1 } else { 1.0 };
        return (chain.iter().map(|&(mode, _)| mode).collect(), shared, length);
    }
    let mut modes: Vec<usize> = (0..order).filter(|&mode| set >> mode & 1 == 0).collect();
    // The mode that adds the fewest places is shared by the longest chunks.
    let places = |mode: usize| stats.places_in(set | 1 << mode).unwrap_or(stats.nnz);
    modes.sort_by_key(|&mode| (places(mode), stats.nonempty[mode]));
    let length = stats.nnz as f64 / places(modes[0]).max(1) as f64;
    let shared = usize::from(modes.len() > 1 && length >= MIN_FIBER);
    (modes, shared, if shared > 0 { length } else { 1.0 })
}

/// Cost of a group without its partial products, and the bytes of these.
fn group_cost(stats: &TensorStats, machine: &Machine, request: Request, set: u32) -> (Cost, usize) {
    let (inputs, shared, length) = contracted(stats, set);
    let nnz = stats.nnz as f64;
    let layout = stats.nnz.saturating_mul(request.value_bytes + 2 * inputs.len() + 2);
    if set.count_ones() == 1 {
        return (Cost { rows: mode_rows(stats, set.trailing_zeros() as usize), bytes: layout }, 0);
    }
    let modes = set.count_ones() as usize;
    let places = stats.places_in(set).unwrap_or(stats.nnz);
    let products = product_bytes(places, request);
    let stream = if products <= machine.l3_bytes() / 2 { STREAM.0 } else { STREAM.1 };
    let from_nonzeros = nnz * ((inputs.len() - shared) as f64 + shared as f64 / length) + RUN * places as f64;
    let from_products = (modes * places) as f64 * ((modes - 1) as f64 + stream);
    let leaves = places.saturating_mul(modes * (4 * (modes + 1) + request.value_bytes));
    (Cost { rows: from_nonzeros + from_products, bytes: layout.saturating_add(leaves) }, products)
}

/// Bytes of the partial products of so many places.
fn product_bytes(places: usize, request: Request) -> usize {
    places.saturating_mul(request.rank * request.value_bytes)
}

/// Places ahead at which partial products that fit L3 are prefetched.
const PLACES_DISTANCE: usize = 16;

/// The layout of a group.
fn group(stats: &TensorStats, machine: &Machine, request: Request, set: u32) -> GroupPlan {
    let (contracted, shared, _) = contracted(stats, set);
    let places = stats.places_in(set).unwrap_or(stats.nnz);
    let tiles = Tiles::new(stats, machine, request, &contracted, places);
    let inputs = (1..=contracted.len()).collect();
    let far = product_bytes(places, request) > machine.l3_bytes() / 2;
    GroupPlan {
        places_distance: if far { FAR_DISTANCE } else { PLACES_DISTANCE },
        modes: modes_of(set, stats.dims.len()).collect(),
        prefetch_distance: distance(machine, request, contracted.len(), tiles.bytes),
        tiles: TiledSpec { mode: 0, inputs, shared, extent: tiles.extent, tasks: request.threads },
        contracted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::CooTensor;
    use crate::generate::skewed;

    fn request() -> Request {
        Request { rank: 32, value_bytes: 4, element_bytes: 4, threads: 2, memory: None }
    }

    #[test]
    fn places_with_many_nonzeros_make_a_cheap_tree() {
        let machine = Machine::detect();
        // Any pair of modes has at most 2400 places, but for modes 1 and 3, which have tens of thousands.
        let coo: CooTensor<f32> = skewed(&[6, 300, 8, 200], 60_000, 3).unwrap();
        let stats = TensorStats::of(&coo);
        let (tree, cost) = TreePlan::best(&stats, &machine, request()).unwrap();
        let together = |group: &GroupPlan| group.modes.contains(&1) && group.modes.contains(&3);
        assert!(tree.groups.len() == 2 && !tree.groups.iter().any(together), "{tree:?}");
        assert!(cost.rows < 0.8 * direct_rows(&stats), "{} of {}", cost.rows, direct_rows(&stats));
        for group in &tree.groups {
            let mut all = [group.modes.clone(), group.contracted.clone()].concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn places_of_single_nonzeros_make_a_dear_one() {
        let machine = Machine::detect();
        let coo: CooTensor<f32> = skewed(&[6000, 6000, 40_000, 1000], 60_000, 3).unwrap();
        let stats = TensorStats::of(&coo);
        let (_, cost) = TreePlan::best(&stats, &machine, request()).unwrap();
        assert!(cost.rows > direct_rows(&stats));
        assert!(TreePlan::best(&TensorStats::of(&skewed::<f32>(&[9], 5, 1).unwrap()), &machine, request()).is_none());
    }
}
