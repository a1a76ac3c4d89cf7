//! [`Blocks`]: which rank has which rows.

use std::ops::Range;

/// 0..n cut into one contiguous block for each rank, in the order of ranks. Blocks may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Where each block begins, and the end of the last one.
    starts: Vec<usize>,
}

impl Blocks {
    /// `parts` blocks of n of equal length, the first ones longer by one where that does not come out even.
    pub fn even(n: usize, parts: usize) -> Self {
        let (each, more) = (n / parts.max(1), n % parts.max(1));
        Self { starts: (0..=parts).map(|k| k * each + k.min(more)).collect() }
    }

    /// `parts` blocks of about equal weight: `weights[i]` is that of i, and every i weighs one more, so that nothing is free.
    pub fn balanced(weights: &[u64], parts: usize) -> Self {
        let n = weights.len();
        let total: u64 = weights.iter().sum::<u64>() + n as u64;
        let (mut starts, mut before) = (vec![0], 0u64);
        for (i, weight) in weights.iter().enumerate() {
            // Block k begins at the first i with k shares before it.
            while starts.len() < parts && u128::from(before) * parts as u128 >= starts.len() as u128 * u128::from(total)
            {
                starts.push(i);
            }
            before += weight + 1;
        }
        starts.resize(parts + 1, n);
        Self { starts }
    }

    /// Blocks that begin at `starts[k]` and end where the next one begins; the last of `starts` is the end of all. `None` where they
    /// do not ascend from 0.
    pub fn new(starts: Vec<usize>) -> Option<Self> {
        (starts.first() == Some(&0) && starts.is_sorted()).then_some(Self { starts })
    }

    /// Blocks that begin at `starts`, which ascend from 0 and end with the end of all.
    pub(crate) fn ascending(starts: Vec<usize>) -> Self {
        debug_assert!(starts.first() == Some(&0) && starts.is_sorted());
        Self { starts }
    }

    /// Number of blocks.
    pub fn parts(&self) -> usize {
        self.starts.len() - 1
    }

    /// n.
    pub fn len(&self) -> usize {
        self.starts[self.parts()]
    }

    /// Whether n is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block of `rank`.
    ///
    /// # Panics
    /// When there is no such rank, as slice indexing does.
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.starts[rank]..self.starts[rank + 1]
    }

    /// The rank that has `i`, which is below n.
    pub fn owner(&self, i: usize) -> usize {
        self.starts.partition_point(|&start| start <= i) - 1
    }

    /// The same cut, `size` blocks at a time taken as one; `size` divides their number.
    pub(crate) fn grouped(&self, size: usize) -> Self {
        Self { starts: self.starts.iter().copied().step_by(size).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_everything_and_owners_agree() {
        let weights: Vec<u64> = (0..50).map(|i| if i == 7 { 1000 } else { i % 3 }).collect();
        for parts in 1..9 {
            for blocks in [Blocks::even(50, parts), Blocks::balanced(&weights, parts), Blocks::even(3, parts)] {
                assert_eq!((blocks.parts(), blocks.range(0).start), (parts, 0));
                let owners = (0..parts).flat_map(|rank| blocks.range(rank).map(move |i| (i, rank)));
                assert!(owners.clone().map(|(i, _)| i).eq(0..blocks.len()));
                owners.for_each(|(i, rank)| assert_eq!(blocks.owner(i), rank));
            }
        }
        assert_eq!(Blocks::balanced(&weights, 2).range(0), 0..8);
        assert_eq!(Blocks::new(vec![0, 2, 2, 5]), Some(Blocks { starts: vec![0, 2, 2, 5] }));
        assert_eq!((Blocks::new(vec![]), Blocks::new(vec![1, 2]), Blocks::new(vec![0, 2, 1])), (None, None, None));
    }
}
