//! MM-CSF (Nisa and others, SC '19): the nonzeros parted over several orientations of CSF, each one to the orientation in
//! which it lies in the longest fiber. One copy serves all modes.
//!
//! A nonzero of an order-d tensor lies in d fibers, one per *leaf mode* (all its other coordinates fixed). The *static*
//! partition compares the lengths that these fibers have in the whole tensor; the *dynamic* one takes a nonzero that
//! was given to one fiber away from the others before it looks at the next, so that a fiber which has already lost its
//! nonzeros elsewhere no longer attracts any. Ties go to the orientation whose fibers are longer on average.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use sparsimd_kernels::Scalar;

use super::coo_tensor::{CooTensor, MAX_ORDER};
use super::csf::{Csf, sort_by_length};
use super::places::{TASK, gather};
use crate::error::{Error, Result};
use crate::parallel;

/// How MM-CSF parts the nonzeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmCsfStrategy {
    /// By the lengths of the fibers in the whole tensor.
    Static,
    /// By the lengths that the fibers still have when a nonzero's turn comes, in the order of the entries.
    Dynamic,
    /// All to the orientation (the candidate) of this number, for [`MmCsf`] that with this mode as the leaf: what mixed modes
    /// are compared with.
    Single(usize),
}

/// A tensor parted into CSF trees of different orientations.
#[derive(Clone, Debug, PartialEq)]
pub struct MmCsf<T> {
    strategy: MmCsfStrategy,
    trees: Vec<Csf<T>>,
}

/// For each entry of `coo` the candidate whose fiber it goes to. A candidate is the list of modes that are fixed along its
/// fibers: for MM-CSF itself, all modes but the leaf. Returns the candidate of each entry.
///
/// # Errors
/// [`Error::Argument`] when there is no candidate, or none of the number that is asked for, or one names a mode that does not
/// exist or names one twice.
pub fn mmcsf_partition<T: Scalar>(
    coo: &CooTensor<T>,
    candidates: &[Vec<usize>],
    strategy: MmCsfStrategy,
) -> Result<Vec<u8>> {
    if candidates.is_empty() || candidates.len() > MAX_ORDER {
        return Err(Error::argument("candidates", format!("{} of them; 1 to {MAX_ORDER}", candidates.len())));
    }
    check(strategy, candidates.len())?;
    if wide(coo) {
        partition::<u64, T>(coo, candidates, strategy)
    } else {
        partition::<u32, T>(coo, candidates, strategy)
    }
}

fn partition<P: Position, T: Scalar>(
    coo: &CooTensor<T>,
    candidates: &[Vec<usize>],
    strategy: MmCsfStrategy,
) -> Result<Vec<u8>> {
    let fibers = candidates.iter().map(|fixed| Fibers::<P>::new(coo, fixed)).collect::<Result<Vec<_>>>()?;
    Ok(choose(fibers, coo.nnz(), strategy).0)
}

/// Whether the strategy is one for so many candidates.
fn check(strategy: MmCsfStrategy, candidates: usize) -> Result<()> {
    match strategy {
        MmCsfStrategy::Single(only) if only >= candidates => {
            Err(Error::argument("partition", format!("orientation {only} of {candidates}")))
        }
        _ => Ok(()),
    }
}

/// Whether positions need 64 bits.
fn wide<T: Scalar>(coo: &CooTensor<T>) -> bool {
    coo.nnz() > u32::MAX as usize
}

/// A position in the list of nonzeros, a number of a fiber, or a number of nonzeros: of 32 bits wherever these suffice, since
/// the arrays of them are most of what the partition takes.
trait Position: Copy + Send + Sync {
    /// Threads may fill an array in any order.
    type Atomic: Send + Sync;
    fn of(number: usize) -> Self;
    fn get(self) -> usize;
    fn atomic() -> Self::Atomic;
    fn store(at: &Self::Atomic, number: usize);
    fn load(at: &Self::Atomic) -> usize;
}

macro_rules! position {
    ($type:ty, $atomic:ty) => {
        impl Position for $type {
            type Atomic = $atomic;
            fn of(number: usize) -> Self {
                number as Self
            }
            fn get(self) -> usize {
                self as usize
            }
            fn atomic() -> $atomic {
                <$atomic>::new(0)
            }
            fn store(at: &$atomic, number: usize) {
                at.store(number as Self, Relaxed);
            }
            fn load(at: &$atomic) -> usize {
                at.load(Relaxed) as usize
            }
        }
    };
}
position!(u32, AtomicU32);
position!(u64, AtomicU64);

/// The candidate of each of `nnz` entries, and the fibers as they are left.
fn choose<P: Position>(mut fibers: Vec<Fibers<P>>, nnz: usize, strategy: MmCsfStrategy) -> (Vec<u8>, Vec<Fibers<P>>) {
    if let MmCsfStrategy::Single(only) = strategy {
        return (vec![only as u8; nnz], fibers);
    }
    // Longer average fibers first: the first maximum in this order wins a tie.
    let mut preference: Vec<usize> = (0..fibers.len()).collect();
    preference.sort_by_key(|&c| fibers[c].length.len());
    if strategy == MmCsfStrategy::Static {
        let chosen = parallel::map(nnz, |p| longest(&fibers, &preference, p) as u8);
        return (chosen, fibers);
    }
    // Each choice depends on those before it: no two entries can be looked at together.
    let mut chosen = Vec::with_capacity(nnz);
    for p in 0..nnz {
        let best = longest(&fibers, &preference, p);
        for (c, fibers) in fibers.iter_mut().enumerate() {
            if c != best {
                let fiber = fibers.id_of(p);
                fibers.length[fiber] = P::of(fibers.length[fiber].get() - 1);
            }
        }
        chosen.push(best as u8);
    }
    (chosen, fibers)
}

/// The candidate in whose fiber entry `p` has most company; the first one in `preference` of several.
fn longest<P: Position>(fibers: &[Fibers<P>], preference: &[usize], p: usize) -> usize {
    let mut best = preference[0];
    for &c in &preference[1..] {
        if fibers[c].of(p) > fibers[best].of(p) {
            best = c;
        }
    }
    best
}

/// The fibers along which some modes are fixed.
struct Fibers<P: Position> {
    /// The entries sorted by fiber, and inside a fiber by the other modes.
    order: Vec<P>,
    /// The fiber of each entry. Atomic only so that threads may fill it in any order: every entry is in one fiber.
    id: Vec<P::Atomic>,
    /// Nonzeros of each fiber.
    length: Vec<P>,
}

impl<P: Position> Fibers<P> {
    fn new<T: Scalar>(coo: &CooTensor<T>, fixed: &[usize]) -> Result<Self> {
        let mut mode_order = fixed.to_vec();
        mode_order.extend((0..coo.order()).filter(|mode| !fixed.contains(mode)));
        let order = coo.sorted_permutation(&mode_order)?;
        let opens =
            |q: usize| q == 0 || fixed.iter().any(|&mode| coo.coords(mode)[order[q - 1]] != coo.coords(mode)[order[q]]);
        let mut heads = parallel::filter(coo.nnz(), opens);
        heads.push(coo.nnz());
        let id: Vec<P::Atomic> = parallel::map(coo.nnz(), |_| P::atomic());
        parallel::ranges(heads.len() - 1, TASK, |fibers| {
            for fiber in fibers {
                order[heads[fiber]..heads[fiber + 1]].iter().for_each(|&p| P::store(&id[p], fiber));
            }
        });
        let length = parallel::map(heads.len() - 1, |fiber| P::of(heads[fiber + 1] - heads[fiber]));
        Ok(Self { order: parallel::map(order.len(), |q| P::of(order[q])), id, length })
    }

    fn id_of(&self, p: usize) -> usize {
        P::load(&self.id[p])
    }

    fn of(&self, p: usize) -> usize {
        self.length[self.id_of(p)].get()
    }
}

impl<T: Scalar> MmCsf<T> {
    /// The tensor `coo`, parted over the orientations with each mode as the leaf; above the leaf the modes are ordered from
    /// the shortest to the longest. Parts without nonzeros are left out. The dynamic strategy looks at the entries in the
    /// order they have.
    ///
    /// # Errors
    /// [`Error::Structure`] when two entries are at the same place; [`Error::Argument`] for a single orientation whose mode the
    /// tensor does not have.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, strategy: MmCsfStrategy) -> Result<Self> {
        check(strategy, coo.order())?;
        if wide(coo) { Self::parted::<u64>(coo, strategy) } else { Self::parted::<u32>(coo, strategy) }
    }

    /// [`MmCsf::from_coo`] with positions of type `P`.
    fn parted<P: Position>(coo: &CooTensor<T>, strategy: MmCsfStrategy) -> Result<Self> {
        let order = coo.order();
        // For each orientation the order, the fiber and its length of every entry; then the parts and their trees.
        let found = order * 3 * size_of::<P>() + 3 * size_of::<usize>();
        coo.ensure("MM-CSF", found + 2 * coo.entry_bytes() + order * size_of::<usize>())?;
        let mode_orders: Vec<Vec<usize>> = (0..order)
            .map(|leaf| {
                let mut modes: Vec<usize> = (0..order).filter(|&mode| mode != leaf).collect();
                sort_by_length(&mut modes, coo.dims());
                modes
            })
            .collect();
        let fibers = mode_orders.iter().map(|fixed| Fibers::<P>::new(coo, fixed)).collect::<Result<Vec<_>>>()?;
        let (chosen, fibers) = choose(fibers, coo.nnz(), strategy);
        let mut trees = Vec::new();
        for (leaf, (mut mode_order, fibers)) in mode_orders.into_iter().zip(fibers).enumerate() {
            // The entries of a part in the order of its tree, which is the order that told its fibers.
            let own = parallel::filter(coo.nnz(), |q| usize::from(chosen[fibers.order[q].get()]) == leaf);
            let own = parallel::map(own.len(), |at| fibers.order[own[at]].get());
            // An empty tensor is one empty tree.
            if own.is_empty() && (coo.nnz() > 0 || leaf > 0) {
                continue;
            }
            mode_order.push(leaf);
            let coords = (0..order).map(|mode| gather(coo.coords(mode), &own)).collect();
            let part = CooTensor::from_checked(coo.dims().to_vec(), coords, gather(coo.values(), &own));
            trees.push(Csf::from_coo(&part, &mode_order)?);
        }
        Ok(Self { strategy, trees })
    }

    /// The same with every fiber of more than `longest` nonzeros as several nodes.
    pub(crate) fn split_fibers(self, longest: usize) -> Self {
        Self { trees: self.trees.into_iter().map(|tree| tree.split_fibers(longest)).collect(), ..self }
    }

    /// How the nonzeros were parted.
    pub fn strategy(&self) -> MmCsfStrategy {
        self.strategy
    }

    /// The trees, at least one; their nonzeros together are the tensor's.
    pub fn trees(&self) -> &[Csf<T>] {
        &self.trees
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.trees.iter().map(Csf::nnz).sum()
    }

    /// Number of fibers of all trees.
    pub fn fibers(&self) -> usize {
        let level = |tree: &Csf<T>| tree.pattern().order().saturating_sub(2);
        self.trees.iter().map(|tree| tree.pattern().nodes(level(tree))).sum()
    }

    /// Bytes of coordinates and pointers of all trees.
    pub fn index_bytes(&self) -> usize {
        self.trees.iter().map(|tree| tree.pattern().index_bytes()).sum()
    }

    /// The same tensor as coordinates, tree by tree.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let dims = self.trees[0].pattern().dims().to_vec();
        let mut coords = vec![Vec::with_capacity(self.nnz()); dims.len()];
        let mut values = Vec::with_capacity(self.nnz());
        for tree in &self.trees {
            let (_, own, own_values) = tree.to_coo().into_parts();
            coords.iter_mut().zip(&own).for_each(|(all, own)| all.extend_from_slice(own));
            values.extend_from_slice(&own_values);
        }
        CooTensor::new(dims, coords, values).expect("trees hold a tensor's coordinates")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nonzeros of the paper's Figure 4, in its order.
    fn figure_4() -> CooTensor<f32> {
        let places = [[5, 1, 1], [5, 1, 2], [5, 1, 3], [4, 1, 2], [4, 1, 1], [4, 1, 5], [0, 1, 2], [0, 1, 4]];
        let coords = (0..3).map(|mode| places.iter().map(|place| place[mode]).collect()).collect();
        CooTensor::new(vec![6, 2, 6], coords, vec![1.0; 8]).unwrap()
    }

    /// Fibers that the parts have together.
    fn fibers(coo: &CooTensor<f32>, candidates: &[Vec<usize>], chosen: &[u8]) -> usize {
        let mut keys: Vec<(u8, Vec<u32>)> = chosen
            .iter()
            .enumerate()
            .map(|(p, &c)| (c, candidates[usize::from(c)].iter().map(|&mode| coo.coords(mode)[p]).collect()))
            .collect();
        keys.sort();
        keys.dedup();
        keys.len()
    }

    #[test]
    fn figure_4_of_the_paper() {
        let coo = figure_4();
        let candidates = [vec![0, 1], vec![1, 2]];
        let fixed = mmcsf_partition(&coo, &candidates, MmCsfStrategy::Static).unwrap();
        assert_eq!(fixed, [0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(fibers(&coo, &candidates, &fixed), 4);
        let moving = mmcsf_partition(&coo, &candidates, MmCsfStrategy::Dynamic).unwrap();
        assert_eq!(moving, [0; 8]);
        assert_eq!(fibers(&coo, &candidates, &moving), 3);
    }

    #[test]
    fn a_dense_row_and_a_dense_column() {
        // Figure 1's matrix: each line in its own orientation, both compressed to one fiber.
        let mut coords = vec![vec![3; 9], (0..9).collect::<Vec<u32>>()];
        coords[0].extend((0..9).filter(|&i| i != 3));
        coords[1].extend([4; 8]);
        let coo = CooTensor::new(vec![9, 9], coords, (0..17).map(f64::from).collect()).unwrap();
        for strategy in [MmCsfStrategy::Static, MmCsfStrategy::Dynamic] {
            let mm = MmCsf::from_coo(&coo, strategy).unwrap();
            assert_eq!((mm.strategy(), mm.trees().len(), mm.fibers(), mm.nnz()), (strategy, 2, 2, 17));
            let mut back = mm.to_coo();
            back.sort(&[0, 1]).unwrap();
            let mut expected = coo.clone();
            expected.sort(&[0, 1]).unwrap();
            assert_eq!(back, expected);
        }
    }

    /// Tensors of 2^32 nonzeros and more have positions of 64 bits: the same parts from either width.
    #[test]
    fn positions_of_64_bits_give_the_same_parts() {
        let coo = crate::generate::skewed::<f32>(&[40, 30, 50, 6], 9000, 3).unwrap();
        for strategy in [MmCsfStrategy::Static, MmCsfStrategy::Dynamic, MmCsfStrategy::Single(2)] {
            let narrow = MmCsf::parted::<u32>(&coo, strategy).unwrap();
            assert_eq!(MmCsf::parted::<u64>(&coo, strategy).unwrap(), narrow);
            assert_eq!(MmCsf::from_coo(&coo, strategy).unwrap(), narrow);
        }
        let huge = (u32::MAX as usize) + 7;
        assert_eq!((u64::of(huge).get(), u32::of(9).get()), (huge, 9));
        let at = u64::atomic();
        u64::store(&at, huge);
        assert_eq!(u64::load(&at), huge);
    }

    #[test]
    fn all_in_one_orientation() {
        let coo = figure_4();
        for leaf in 0..3 {
            let mm = MmCsf::from_coo(&coo, MmCsfStrategy::Single(leaf)).unwrap();
            assert_eq!((mm.trees().len(), mm.nnz()), (1, 8));
            assert_eq!(mm.trees()[0].pattern().mode_order()[2], leaf);
        }
        assert!(MmCsf::from_coo(&coo, MmCsfStrategy::Single(3)).is_err());
        assert!(mmcsf_partition(&coo, &[vec![0, 1]], MmCsfStrategy::Single(1)).is_err());
    }

    #[test]
    fn no_entries_make_one_empty_tree() {
        let empty = CooTensor::new(vec![5, 6, 7], vec![vec![]; 3], Vec::<f64>::new()).unwrap();
        let mm = MmCsf::from_coo(&empty, MmCsfStrategy::Dynamic).unwrap();
        assert_eq!((mm.trees().len(), mm.nnz(), mm.to_coo()), (1, 0, empty));
    }

    #[test]
    fn refuses_bad_candidates() {
        let coo = figure_4();
        for bad in [vec![], vec![vec![0, 3]], vec![vec![0, 0]]] {
            assert!(mmcsf_partition(&coo, &bad, MmCsfStrategy::Static).is_err(), "{bad:?}");
        }
    }
}
