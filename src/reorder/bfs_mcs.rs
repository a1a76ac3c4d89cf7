//! BFS-MCS of a sparse tensor: maximum cardinality search, in the manner of breadth-first search.
//!
//! ```text
//! for each mode:
//!     key(i) = 0 for all indices i of the mode
//!     while there are indices without a number:
//!         number i, the one with the largest key; of equal keys the one with the fewest nonzeros
//!         for each index w of another mode in a nonzero of i, that was not met before:
//!             key(j) += 1 for each nonzero of w, j its index in the mode
//! ```

use crate::error::Result;
use crate::formats::counting_sort;
use crate::memory;

use super::permutation::Permutation;

/// Orders of all modes of the tensor with n entries at `coords`.
pub(super) fn orders(dims: &[usize], coords: &[Vec<u32>], n: usize) -> Result<Vec<Permutation>> {
    let rows = dims.iter().fold(0usize, |sum, &dim| sum.saturating_add(dim));
    let (entries, row) = (n.saturating_mul(dims.len()), 3 * size_of::<u64>() + 3 * size_of::<u32>());
    memory::ensure("BFS-MCS", memory::total(&[(entries, size_of::<usize>()), (rows, row)]))?;
    let lists: Vec<Lists> = coords.iter().zip(dims).map(|(indices, &dim)| Lists::of(indices, dim)).collect();
    Ok((0..dims.len()).map(|mode| Permutation::trusted(order(mode, coords, &lists))).collect())
}

/// The entries of each index of a mode.
struct Lists {
    start: Vec<usize>,
    entries: Vec<usize>,
}

impl Lists {
    fn of(indices: &[u32], dim: usize) -> Self {
        let (start, entries) = counting_sort(indices, dim, None);
        Self { start, entries }
    }

    fn of_index(&self, i: u32) -> &[usize] {
        &self.entries[self.start[i as usize]..self.start[i as usize + 1]]
    }

    fn dim(&self) -> usize {
        self.start.len() - 1
    }
}

/// The indices of `mode` in order.
fn order(mode: usize, coords: &[Vec<u32>], lists: &[Lists]) -> Vec<u32> {
    let mut heap = Heap::new(&lists[mode]);
    let mut met: Vec<Vec<bool>> = lists.iter().map(|lists| vec![false; lists.dim()]).collect();
    let mut order = Vec::with_capacity(lists[mode].dim());
    while let Some(i) = heap.pop() {
        order.push(i);
        for &p in lists[mode].of_index(i) {
            for other in (0..coords.len()).filter(|&other| other != mode) {
                let w = coords[other][p];
                if !std::mem::replace(&mut met[other][w as usize], true) {
                    lists[other].of_index(w).iter().for_each(|&q| heap.raise(coords[mode][q]));
                }
            }
        }
    }
    order
}

/// A binary heap of the indices that have no number yet.
struct Heap<'a> {
    lists: &'a Lists,
    heap: Vec<u32>,
    /// Of each index: its position in `heap`; `NONE` when it has left.
    at: Vec<u32>,
    key: Vec<u64>,
}

/// No position.
const NONE: u32 = u32::MAX;

impl<'a> Heap<'a> {
    /// All indices, their keys 0.
    fn new(lists: &'a Lists) -> Self {
        let dim = lists.dim();
        let mut heap = Self { lists, heap: (0..dim as u32).collect(), at: vec![0; dim], key: vec![0; dim] };
        let mut sorted = std::mem::take(&mut heap.heap);
        sorted.sort_unstable_by_key(|&i| heap.rank(i));
        (0..).zip(&sorted).for_each(|(at, &i)| heap.at[i as usize] = at);
        heap.heap = sorted;
        heap
    }

    /// What is least for the index that is next: the larger key, fewer entries but some, the lower index.
    fn rank(&self, i: u32) -> (u64, usize, u32) {
        let entries = self.lists.of_index(i).len();
        (u64::MAX - self.key[i as usize], entries.wrapping_sub(1), i)
    }

    fn set(&mut self, at: usize, i: u32) {
        self.heap[at] = i;
        self.at[i as usize] = at as u32;
    }

    /// Takes the next index out.
    fn pop(&mut self) -> Option<u32> {
        let next = *self.heap.first()?;
        self.at[next as usize] = NONE;
        let Some(last) = self.heap.pop().filter(|&last| last != next) else { return Some(next) };
        let rank = self.rank(last);
        let mut at = 0;
        loop {
            let children = (2 * at + 1..self.heap.len()).take(2);
            match children.min_by_key(|&child| self.rank(self.heap[child])) {
                Some(child) if self.rank(self.heap[child]) < rank => {
                    self.set(at, self.heap[child]);
                    at = child;
                }
                _ => break,
            }
        }
        self.set(at, last);
        Some(next)
    }

    /// Adds 1 to the key of `i`, if it has no number yet.
    fn raise(&mut self, i: u32) {
        let mut at = self.at[i as usize];
        if at == NONE {
            return;
        }
        self.key[i as usize] += 1;
        let rank = self.rank(i);
        while at > 0 && rank < self.rank(self.heap[(at as usize - 1) / 2]) {
            let parent = (at - 1) / 2;
            self.set(at as usize, self.heap[parent as usize]);
            at = parent;
        }
        self.set(at as usize, i);
    }
}
