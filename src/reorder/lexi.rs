//! Lexi-order of a sparse tensor.
//!
//! ```text
//! for each pass, for each mode:
//!     fibers = the nonzeros that differ in the mode alone, lexicographically by the other modes as they are numbered now
//!     number the mode's indices so that the columns of the 0/1 matrix fibers x indices descend lexicographically
//! ```
//!
//! The columns are sorted by partition refinement: all indices are one class, and each fiber in turn splits the classes into those of
//! its indices, which go first, and the others. That is linear in the nonzeros.

use crate::error::Result;
use crate::formats::Places;
use crate::memory;

use super::permutation::Permutation;

/// Bytes for each entry that sorting takes at most: two arrays of a 128-bit key and a position, and a permutation.
const SORT: usize = 2 * size_of::<(u128, usize)>() + size_of::<usize>();

/// Orders of all modes of `x`, whose coordinates are changed on the way.
pub(super) fn orders(dims: &[usize], coords: &mut [Vec<u32>], n: usize, passes: usize) -> Result<Vec<Permutation>> {
    let index = 6 * size_of::<u32>() + 2 * size_of::<usize>();
    let longest = dims.iter().max().map_or(0, |&dim| dim);
    memory::ensure("Lexi-order", memory::total(&[(n, SORT), (longest, index)]))?;
    let mut orders = dims.iter().map(|&dim| Permutation::identity(dim)).collect::<Result<Vec<_>>>()?;
    for _ in 0..passes {
        let mut changed = false;
        for (mode, total) in orders.iter_mut().enumerate() {
            let others: Vec<usize> = (0..dims.len()).filter(|&other| other != mode).collect();
            let sorted = Places { dims, coords, n }.sorted_permutation(&others);
            let same_fiber = |p: &usize, q: &usize| others.iter().all(|&other| coords[other][*p] == coords[other][*q]);
            let mut classes = Classes::new(dims[mode]);
            for fiber in sorted.chunk_by(same_fiber) {
                classes.split(fiber.iter().map(|&p| coords[mode][p]));
            }
            let order = Permutation::trusted(classes.order);
            changed |= order.as_slice().windows(2).any(|pair| pair[0] > pair[1]);
            *total = total.then(&order)?;
            order.inverse().renumber(&mut coords[mode]);
        }
        if !changed {
            break;
        }
    }
    Ok(orders)
}

/// The indices of a mode in classes, each a run of `order`.
struct Classes {
    order: Vec<u32>,
    /// Of each index: its position in `order`.
    at: Vec<u32>,
    /// Of each index.
    class: Vec<u32>,
    /// Of each class: its positions, and how many of its first ones belong to the fiber at hand.
    runs: Vec<Run>,
    /// The classes with indices of the fiber at hand.
    met: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Run {
    first: u32,
    len: u32,
    taken: u32,
}

impl Classes {
    /// All indices below `dim` in one class.
    fn new(dim: usize) -> Self {
        let order: Vec<u32> = (0..dim as u32).collect();
        let runs = vec![Run { first: 0, len: dim as u32, taken: 0 }];
        Self { at: order.clone(), order, class: vec![0; dim], runs, met: Vec::new() }
    }

    /// Splits each class into its indices in `fiber`, which go first, and the others.
    fn split(&mut self, fiber: impl Iterator<Item = u32>) {
        let Self { order, at, class, runs, met } = self;
        for i in fiber {
            let c = class[i as usize];
            let Run { first, taken, .. } = &mut runs[c as usize];
            let (from, to) = (at[i as usize], *first + *taken);
            if from < to {
                // An entry at the same place came before.
                continue;
            }
            if *taken == 0 {
                met.push(c);
            }
            *taken += 1;
            let other = order[to as usize];
            (order[to as usize], order[from as usize]) = (i, other);
            (at[i as usize], at[other as usize]) = (to, from);
        }
        for c in met.drain(..) {
            let new = runs.len() as u32;
            let run = &mut runs[c as usize];
            let Run { first, len, taken } = std::mem::replace(run, Run { taken: 0, ..*run });
            if taken < len {
                *run = Run { first: first + taken, len: len - taken, taken: 0 };
                runs.push(Run { first, len: taken, taken: 0 });
                order[first as usize..(first + taken) as usize].iter().for_each(|&i| class[i as usize] = new);
            }
        }
    }
}
