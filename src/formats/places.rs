//! The places of a tensor's entries, apart from their values: order, sorting permutation, repetitions.

use std::cmp::Ordering;

pub(crate) use crate::parallel::GRAIN as TASK;

use super::packing::Packing;
use super::radix::{self, Key};
use crate::parallel;

/// A view of `n` places: `coords[mode][p]` is the coordinate of entry `p` in `mode`, below `dims[mode]`.
///
/// `mode_order` arguments are trusted to name modes that exist.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub dims: &'a [usize],
    pub coords: &'a [Vec<u32>],
    pub n: usize,
}

impl Places<'_> {
    /// Entries `p` and `q` by their coordinates in `mode_order`.
    fn compare(&self, mode_order: &[usize], p: usize, q: usize) -> Ordering {
        let mut modes = mode_order.iter().map(|&mode| self.coords[mode][p].cmp(&self.coords[mode][q]));
        modes.find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// Whether the entries ascend lexicographically in `mode_order`.
    pub fn is_sorted(&self, mode_order: &[usize]) -> bool {
        parallel::all(self.n.saturating_sub(1), |p| self.compare(mode_order, p, p + 1).is_le())
    }

    /// The permutation that sorts the entries lexicographically in `mode_order`, stably.
    pub fn sorted_permutation(&self, mode_order: &[usize]) -> Vec<usize> {
        // One stable sort for each group of modes that fits a key, least significant group first.
        let mut permutation: Vec<usize> = (0..self.n).collect();
        for packing in Packing::groups(self.dims, mode_order).iter().rev() {
            permutation = match packing.bits() {
                0..=64 => self.refine::<u64>(packing, permutation),
                _ => self.refine::<u128>(packing, permutation),
            };
        }
        permutation
    }

    /// `permutation` stably sorted by the keys of `packing`.
    fn refine<K: Key>(&self, packing: &Packing, permutation: Vec<usize>) -> Vec<usize> {
        let entry = |at: usize| (packing.pack(self.coords, permutation[at]), permutation[at]);
        let mut entries: Vec<(K, usize)> = parallel::map(self.n, entry);
        radix::sort(&mut entries, packing.bits());
        parallel::map(self.n, |at| entries[at].1)
    }

    /// The first position at which the sequence `order(0), order(1), ...` of entries repeats a place.
    pub fn first_repetition(&self, order: impl Fn(usize) -> usize + Sync) -> Option<usize> {
        let equal = |p: usize| self.coords.iter().all(|indices| indices[order(p)] == indices[order(p + 1)]);
        parallel::find_first(self.n.saturating_sub(1), equal).map(|p| p + 1)
    }

    /// Two entries at the same place, if there are any. Cheap when the entries are sorted by all the modes.
    pub fn duplicate(&self) -> Option<(usize, usize)> {
        let natural: Vec<usize> = (0..self.coords.len()).collect();
        if self.is_sorted(&natural) {
            return self.first_repetition(|p| p).map(|p| (p - 1, p));
        }
        let permutation = self.sorted_permutation(&natural);
        self.first_repetition(|p| permutation[p]).map(|p| (permutation[p - 1], permutation[p]))
    }

    /// The coordinates of entry `p`.
    pub fn place(&self, p: usize) -> Vec<u32> {
        self.coords.iter().map(|indices| indices[p]).collect()
    }

    /// The first entry with a coordinate outside of `dims`, and the mode.
    pub fn outside(&self) -> Option<(usize, usize)> {
        self.coords.iter().zip(self.dims).enumerate().find_map(|(mode, (indices, &dim))| {
            // The largest coordinate of a part first, a loop that becomes vectors: 35 times as fast as looking at each.
            let wrong = |part: &[u32]| part.iter().fold(0, |most, &i| most.max(i)) as usize >= dim;
            let parts: Vec<&[u32]> = indices.chunks(TASK).collect();
            let start = parallel::map_tasks(parts.len(), |t| wrong(parts[t])).iter().position(|&wrong| wrong)? * TASK;
            let inside = indices[start..].iter().position(|&i| i as usize >= dim)?;
            Some((start + inside, mode))
        })
    }
}

/// The elements of `from` at `permutation`, in its order.
pub(crate) fn gather<E: Copy + Send + Sync>(from: &[E], permutation: &[usize]) -> Vec<E> {
    parallel::map(permutation.len(), |at| from[permutation[at]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_coordinate_outside_is_found_wherever_it_is() {
        let n = 2 * TASK + 5;
        for wrong in [0, 1, TASK - 1, TASK, 2 * TASK + 4] {
            let mut coords = vec![vec![6; n], vec![2; n]];
            let places = |coords: &[Vec<u32>]| Places { dims: &[7, 3], coords, n }.outside();
            assert_eq!(places(&coords), None);
            coords[1][wrong] = 3;
            coords[1][n - 1] = 9;
            assert_eq!(places(&coords), Some((wrong, 1)));
        }
        assert_eq!(Places { dims: &[0, 0], coords: &[vec![], vec![]], n: 0 }.outside(), None);
    }
}
