//! The places of a tensor's entries, apart from their values: order, sorting permutation, repetitions.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::packing::Packing;
use super::radix::{self, Key};

/// Entries of one parallel task of the linear passes over a tensor.
pub(crate) const TASK: usize = 1 << 14;

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
        (1..self.n).into_par_iter().with_min_len(TASK).all(|p| self.compare(mode_order, p - 1, p).is_le())
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
        let mut entries: Vec<(K, usize)> =
            permutation.into_par_iter().with_min_len(TASK).map(|p| (packing.pack(self.coords, p), p)).collect();
        radix::sort(&mut entries, packing.bits());
        entries.into_par_iter().with_min_len(TASK).map(|(_, p)| p).collect()
    }

    /// The first position at which the sequence `order(0), order(1), ...` of entries repeats a place.
    pub fn first_repetition(&self, order: impl Fn(usize) -> usize + Sync) -> Option<usize> {
        let equal = |&p: &usize| self.coords.iter().all(|indices| indices[order(p - 1)] == indices[order(p)]);
        (1..self.n).into_par_iter().with_min_len(TASK).find_first(equal)
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
            let start = indices.par_chunks(TASK).position_first(wrong)? * TASK;
            let inside = indices[start..].iter().position(|&i| i as usize >= dim)?;
            Some((start + inside, mode))
        })
    }
}

/// The elements of `from` at `permutation`, in its order.
pub(crate) fn gather<E: Copy + Send + Sync>(from: &[E], permutation: &[usize]) -> Vec<E> {
    permutation.par_iter().with_min_len(TASK).map(|&p| from[p]).collect()
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
