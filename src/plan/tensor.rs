//! Statistics of a sparse tensor's pattern: what plans are made from.

use sparsimd_kernels::Scalar;

use crate::formats::{CooTensor, sort_by_length};
use crate::parallel;

/// Nonzeros that fiber lengths and numbers of places are estimated from.
const SAMPLE: usize = 100_000;
/// Nonzeros of a parallel task.
const TASK: usize = 1 << 14;
/// The highest order whose sets of modes are all looked at: 25 sets for order 5, but 56 for order 6.
const ALL_SETS: usize = 5;

/// What a plan needs to know of a tensor's pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorStats {
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Number of nonzeros.
    pub nnz: usize,
    /// For each mode, the number of coordinates that occur (nonempty slices).
    pub nonempty: Vec<usize>,
    /// For each mode the others, in the order that shares most, and the mean number of nonzeros that share the mode's
    /// coordinate and those of the first one, two, ... of them (the last is 1).
    pub fibers: Vec<Vec<(usize, f64)>>,
    /// For some sets of modes, as bits, the estimated number of different places that the nonzeros have in these modes
    /// alone: all sets of two modes or more up to order 5, halves of neighbours by length for higher orders.
    pub places: Vec<(u32, usize)>,
}

impl TensorStats {
    /// The statistics of `coo`; fiber lengths and numbers of places are estimated from a part of the nonzeros. Runs in the
    /// rayon pool of the caller.
    #[inline(never)]
    pub fn of<T: Scalar>(coo: &CooTensor<T>) -> Self {
        let order = coo.order();
        let of_mode = |mode: usize| {
            let mut seen = vec![false; coo.dims()[mode]];
            coo.coords(mode).iter().for_each(|&i| seen[i as usize] = true);
            (seen.iter().filter(|&&seen| seen).count(), fiber_lengths(coo, mode))
        };
        let (nonempty, fibers): (Vec<_>, Vec<_>) = parallel::map_tasks(order, of_mode).into_iter().unzip();
        let sets = sets(order, &nonempty);
        let places = sets.into_iter().map(|set| (set, places(coo, set))).collect();
        Self { dims: coo.dims().to_vec(), nnz: coo.nnz(), nonempty, fibers, places }
    }

    /// The number of different places of the nonzeros in the modes of `set`; none when it was not looked at.
    pub fn places_in(&self, set: u32) -> Option<usize> {
        if set.count_ones() == 1 {
            return self.nonempty.get(set.trailing_zeros() as usize).copied();
        }
        if set.count_ones() as usize == self.dims.len() {
            return Some(self.nnz);
        }
        self.places.iter().find(|&&(of, _)| of == set).map(|&(_, places)| places)
    }
}

/// The sets of modes whose places are worth knowing.
fn sets(order: usize, nonempty: &[usize]) -> Vec<u32> {
    if order <= ALL_SETS {
        let inside = |set: &u32| (2..order).contains(&(set.count_ones() as usize));
        return (0..1u32 << order).filter(inside).collect();
    }
    let mut ascending: Vec<usize> = (0..order).collect();
    sort_by_length(&mut ascending, nonempty);
    let half = order / 2;
    let window =
        |(start, len): (usize, usize)| (start..start + len).fold(0, |set, at| set | 1 << ascending[at % order]);
    let mut sets: Vec<u32> = (0..order).flat_map(|start| [(start, half), (start, order - half)]).map(window).collect();
    sets.sort_unstable();
    sets.dedup();
    sets
}

/// A hash of the coordinates of entry `p` in `modes`.
fn hash<T: Scalar>(coo: &CooTensor<T>, modes: impl Iterator<Item = usize>, p: usize) -> u64 {
    modes.fold(0x9e37_79b9_7f4a_7c15, |hash, mode| {
        // Multiply and fold the high half down, so that the low bits depend on all of the coordinate's.
        let wide = u128::from(hash ^ u64::from(coo.coords(mode)[p])).wrapping_mul(0xd6e8_feb8_6659_fd93);
        wide as u64 ^ (wide >> 64) as u64
    })
}

/// Different values among `hashes`.
fn different(mut hashes: Vec<u64>) -> usize {
    hashes.sort_unstable();
    hashes.dedup();
    hashes.len()
}

/// The estimated number of different places in the modes of `set`: counted exactly among the places that a hash picks, so
/// that each of them is counted once however many nonzeros it has.
fn places<T: Scalar>(coo: &CooTensor<T>, set: u32) -> usize {
    let keep = (coo.nnz() / SAMPLE).max(1) as u64;
    let modes = || (0..coo.order()).filter(move |&mode| set >> mode & 1 == 1);
    let part = |t: usize| {
        let hashes = (t * TASK..coo.nnz().min((t + 1) * TASK)).map(|p| hash(coo, modes(), p));
        hashes.filter(|hash| hash.is_multiple_of(keep)).collect::<Vec<_>>()
    };
    different(parallel::map_tasks(coo.nnz().div_ceil(TASK), part).concat()) * keep as usize
}

/// The other modes, those first that the nonzeros of a slice of `mode` share most, with the mean length of the fibers.
fn fiber_lengths<T: Scalar>(coo: &CooTensor<T>, mode: usize) -> Vec<(usize, f64)> {
    // Whole slices, scattered by a hash so that neighbours and heavy slices are met as often as they occur.
    let keep = (coo.nnz() / SAMPLE).max(1) as u64;
    let slices = coo.coords(mode);
    let kept = |i: u32| (u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(keep);
    let mut sample: Vec<usize> = (0..coo.nnz()).filter(|&p| kept(slices[p])).collect();
    if sample.is_empty() {
        sample = (0..coo.nnz().min(SAMPLE)).collect();
    }
    sample.truncate(SAMPLE);
    let mut rest: Vec<usize> = (0..coo.order()).filter(|&m| m != mode).collect();
    let mut chosen = vec![mode];
    let mut lengths = Vec::new();
    while !rest.is_empty() {
        let count = |candidate: usize| {
            let modes = || chosen.iter().copied().chain([candidate]);
            different(sample.iter().map(|&p| hash(coo, modes(), p)).collect())
        };
        let (fewest, best) = match rest[..] {
            // The last mode makes every nonzero its own fiber.
            [last] => (sample.len(), last),
            _ => rest.iter().map(|&m| (count(m), m)).min().expect("the list is not empty"),
        };
        lengths.push((best, sample.len() as f64 / fewest.max(1) as f64));
        rest.retain(|&m| m != best);
        chosen.push(best);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::skewed;

    #[test]
    fn places_are_counted_or_estimated() {
        // 2 x 3 x 4 places of a full tensor of order 3, and one of order 4 that is full in two modes.
        let coords = |n: u32, f: fn(u32) -> [u32; 3]| (0..3).map(|m| (0..n).map(|p| f(p)[m]).collect()).collect();
        let full = CooTensor::new(vec![2, 3, 4], coords(24, |p| [p / 12, p / 4 % 3, p % 4]), vec![1.0f32; 24]).unwrap();
        let stats = TensorStats::of(&full);
        assert_eq!(stats.nonempty, [2, 3, 4]);
        assert_eq!(
            [0b011, 0b101, 0b110, 0b111].map(|set| stats.places_in(set)),
            [Some(6), Some(8), Some(12), Some(24)]
        );
        assert_eq!(stats.places_in(0b100), Some(4));
        // Sampled: within 5 % of the true number.
        let large = skewed::<f32>(&[300, 400, 2000, 50], 400_000, 1).unwrap();
        let stats = TensorStats::of(&large);
        for set in [0b0011u32, 0b1001, 0b0110] {
            let modes = |p: usize| (0..4).filter(|m| set >> m & 1 == 1).map(|m| large.coords(m)[p]).collect::<Vec<_>>();
            let exact = (0..large.nnz()).map(modes).collect::<std::collections::HashSet<_>>().len() as f64;
            let estimate = stats.places_in(set).unwrap() as f64;
            assert!((estimate / exact - 1.0).abs() < 0.05, "{set:b}: {estimate} of {exact}");
        }
    }

    #[test]
    fn high_orders_look_at_halves_and_their_complements() {
        let coo = skewed::<f32>(&[5, 6, 4, 3, 7, 4, 5], 2000, 6).unwrap();
        let stats = TensorStats::of(&coo);
        assert!(stats.places.len() <= 14 && !stats.places.is_empty());
        assert!(stats.places.iter().all(|&(set, n)| n > 0 && stats.places_in(0b111_1111 & !set).is_some()));
        assert!(TensorStats::of(&skewed::<f32>(&[5, 6], 20, 6).unwrap()).places.is_empty());
    }
}
