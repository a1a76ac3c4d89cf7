//! Which rows of a block have columns in common.
//!
//! Rows are paired greedily: the last one with that of the [`CANDIDATES`] before it that shares most of its columns, and so
//! on with those that are left. A set of columns is a bit mask, an overlap a population count.

use pulp::{Simd, WithSimd};

use crate::Arch;

/// Columns of a panel as bits: column 64 k + b is bit b of word k.
pub type ColumnSet = [u64; 4];

/// Rows that a row is compared with. In uniformly random rows with 24 of 80 columns the best of 64 has 10.5 in common, a
/// given one 7; the best of all is hardly better.
const CANDIDATES: usize = 64;

/// Orders `rows` so that those at 2 k and 2 k + 1 are paired, one left over at the end, and says in `shared[k]` how many
/// columns the pair has in common.
///
/// `sets[r]` are the columns of `rows[r]`, all below `width`; both are reordered together. As many overlaps are written as
/// there are pairs.
///
/// # Panics
/// When `sets` is not as long as `rows` or `shared` shorter than half of it.
pub fn pair_rows(arch: Arch, width: usize, sets: &mut [ColumnSet], rows: &mut [u32], shared: &mut [u32]) {
    assert!(sets.len() == rows.len() && shared.len() >= rows.len() / 2, "one set per row, one overlap per pair");
    match width {
        0..=64 => arch.dispatch(PairRows::<1> { sets, rows, shared }),
        65..=128 => arch.dispatch(PairRows::<2> { sets, rows, shared }),
        129..=192 => arch.dispatch(PairRows::<3> { sets, rows, shared }),
        _ => arch.dispatch(PairRows::<4> { sets, rows, shared }),
    }
}

/// Of sets whose first `WORDS` words have all columns.
struct PairRows<'a, const WORDS: usize> {
    sets: &'a mut [ColumnSet],
    rows: &'a mut [u32],
    shared: &'a mut [u32],
}

impl<const WORDS: usize> WithSimd for PairRows<'_, WORDS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for k in 0..self.rows.len() / 2 {
            let (first, from) = (2 * k, 2 * k + 1);
            let set = self.sets[first];
            let mut best = (0, from);
            let to = self.rows.len().min(from + CANDIDATES);
            for at in from..to {
                let other = self.sets[at];
                let mut overlap = 0;
                for w in 0..WORDS {
                    overlap += (set[w] & other[w]).count_ones();
                }
                best = if overlap > best.0 { (overlap, at) } else { best };
            }
            self.sets.swap(from, best.1);
            self.rows.swap(from, best.1);
            self.shared[k] = best.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_partner_is_found_on_every_instruction_set() {
        for arch in Arch::available() {
            let mut sets = [[0b1111, 0, 0, 1], [0b1000, 0, 0, 0], [0, 7, 0, 0], [0b0111, 0, 0, 1], [0, 3, 0, 0]];
            let mut rows = [10, 11, 12, 13, 14];
            let mut shared = [9; 3];
            pair_rows(arch, 256, &mut sets, &mut rows, &mut shared);
            assert_eq!(rows, [10, 13, 12, 14, 11], "{}", arch.name());
            assert_eq!(shared, [4, 2, 9]);
            assert_eq!(sets[1], [0b0111, 0, 0, 1]);
        }
    }
}
