//! The transpose of a pattern: a stable counting sort of the nonzeros by column.
//!
//! ```text
//! for part of the rows, in parallel:   count its nonzeros by column
//! for column, for part:                the place of the part's first nonzero in the column = the sum of all counts before
//! for part of the rows, in parallel:   each nonzero to the next place of its column and part
//! ```
//!
//! Rows ascend in each column whatever the number of parts is: one result, and the same for every number of threads.

use std::sync::Arc;

use super::{Pattern, PatternRef};
use crate::cut;
use crate::memory::reserved;
use crate::parallel::{self, Slots};

impl Pattern {
    /// The pattern of the transpose (rows ascending in each column), and for each of its nonzeros the place of that
    /// nonzero in `self`: the values of A^T are `order.map(|p| values[p])`.
    pub fn transpose(&self) -> (Arc<Self>, Vec<usize>) {
        self.transpose_in(1)
    }

    /// As [`Pattern::transpose`], in at most `parts` parts on the current rayon pool; one part runs without a pool.
    pub(crate) fn transpose_in(&self, parts: usize) -> (Arc<Self>, Vec<usize>) {
        PatternRef::from(self).transpose_in(parts)
    }
}

/// A stable counting sort of keys below `bound`, of which `part(t)` are those of part t of `parts`: the first place of each key, and
/// of each part and key. One part runs without a pool.
pub(super) fn places<'a>(
    parts: usize,
    bound: usize,
    part: impl Fn(usize) -> &'a [u32] + Sync,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let count = |t: usize| {
        let mut counts = vec![0usize; bound];
        part(t).iter().for_each(|&key| counts[key as usize] += 1);
        counts
    };
    let mut next = match parts {
        1 => vec![count(0)],
        _ => parallel::map_tasks(parts, count),
    };
    // Counts become places.
    let mut ptr = reserved(bound + 1);
    let mut place = 0;
    for key in 0..bound {
        ptr.push(place);
        for counts in &mut next {
            place += std::mem::replace(&mut counts[key], place);
        }
    }
    ptr.push(place);
    (ptr, next)
}

impl PatternRef<'_> {
    /// As [`Pattern::transpose`], in at most `parts` parts on the current rayon pool; one part runs without a pool.
    pub(crate) fn transpose_in(self, parts: usize) -> (Arc<Pattern>, Vec<usize>) {
        let nnz = self.nnz();
        // A part's counters are one per column: they must be fewer than what is counted.
        let parts = parts.min(nnz / self.cols().max(1)).max(1);
        let bounds = cut::bounds(self.rows(), parts, |i| self.row_ptr().at(i));
        let (row_ptr, mut next) = places(parts, self.cols(), |t| {
            &self.col_idx()[self.row_ptr().at(bounds[t])..self.row_ptr().at(bounds[t + 1])]
        });
        let (mut col_idx, mut order) = (reserved::<u32>(nnz), reserved::<usize>(nnz));
        let (rows_at, order_at) = (Slots::of(&mut col_idx), Slots::of(&mut order));
        let scatter = |rows: &[usize], next: &mut Vec<usize>| {
            for i in rows[0]..rows[1] {
                for p in self.row_ptr().row(i) {
                    let slot = &mut next[self.col_idx()[p] as usize];
                    // SAFETY: the places of all (column, part) pairs are disjoint runs, together 0..nnz, as long as the
                    // number of nonzeros that were counted in the same part.
                    unsafe {
                        rows_at.write(*slot, i as u32);
                        order_at.write(*slot, p);
                    }
                    *slot += 1;
                }
            }
        };
        match &mut next[..] {
            [next] => scatter(&bounds, next),
            _ => parallel::chunks_mut(&mut next, 1, |t, next| scatter(&bounds[t..t + 2], &mut next[0])),
        }
        // SAFETY: every place below nnz, the capacity asked for, has been written.
        unsafe {
            col_idx.set_len(nnz);
            order.set_len(nnz);
        }
        (Arc::new(Pattern::from_parts(self.cols(), self.rows(), row_ptr, col_idx)), order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_in_any_number_of_parts() {
        // 97 rows of 0 to 12 nonzeros in 31 columns, some empty columns, rows not sorted.
        let mut row_ptr = vec![0];
        let mut columns = Vec::new();
        for i in 0..97usize {
            columns.extend((0..i * 7 % 13).map(|t| ((t * 11 + i) % 31) as u32).filter(|j| j % 5 != 3));
            row_ptr.push(columns.len());
        }
        let pattern = Pattern::new(97, 31, row_ptr, columns).unwrap();
        let expected = {
            let mut entries = Vec::new();
            for i in 0..97 {
                entries.extend((pattern.row_ptr()[i]..pattern.row_ptr()[i + 1]).map(|p| (pattern.col_idx()[p], i, p)));
            }
            entries.sort_unstable();
            entries
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for parts in [1, 2, 3, 5, 1000] {
            let (transposed, order) = pool.install(|| pattern.transpose_in(parts));
            assert_eq!((transposed.rows(), transposed.cols(), order.len()), (31, 97, expected.len()));
            let row_of = |j: usize| transposed.row(j).iter().map(move |&i| (j as u32, i as usize));
            let got: Vec<_> = (0..31).flat_map(row_of).zip(order).map(|((j, i), p)| (j, i, p)).collect();
            assert_eq!(got, expected, "{parts} parts");
        }
        let empty = Pattern::new(3, 0, vec![0; 4], Vec::new()).unwrap();
        assert_eq!(empty.transpose_in(4).0.row_ptr(), [0]);
    }
}
