//! The stochastic Kronecker tensor by its definition: one Bernoulli draw for every place.
//!
//! A place is made of one cell of the initiator for each digit of its coordinates; its probability is the product of the cells'
//! weights, so places of as many cells of each weight have the same one. Of each such class, whose number of places is a product of a
//! multinomial coefficient and powers, the gaps between hits are drawn, and hits are turned into places by their rank:
//! ```text
//! for every class (k_1, k_2, ...), k_g cells of weight w_g:
//!     p = product of w_g^k_g;  rank += geometric gap of p while it is below the number of places:
//!         the rank tells the order of the weights among the digits, and for each which of the cells of that weight
//! ```
//! That takes as long as there are hits and classes, not places. Where a place's probability would pass 1 it is 1, and fewer nonzeros
//! than asked for are expected.

use sparsimd_kernels::Scalar;

use super::distinct::{Place, value};
use super::models::Initiator;
use super::random::Stream;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, MAX_ORDER};
use crate::{memory, parallel};

/// Classes that are gone through, at most.
const MOST_CLASSES: usize = 1 << 20;

/// The cells of one weight.
struct Group {
    weight: f64,
    /// Digits of each cell in every mode.
    cells: Vec<Vec<u64>>,
}

/// A stochastic Kronecker tensor (Leskovec et al. 2010, extended to any order) by Bernoulli draws: every place of the repeated
/// Kronecker product is a nonzero with the probability that the product has there, independently; those outside of `dims` are stripped.
/// The weights are scaled so that `nnz` nonzeros are expected before that: the number itself is random.
///
/// # Errors
/// [`Error::Argument`] when `dims` and the initiator differ in order, or when the product has more than 2^127 places or more than a
/// million classes of places; [`Error::Memory`].
pub fn kronecker_bernoulli<T: Scalar>(
    dims: &[usize],
    nnz: usize,
    initiator: &Initiator,
    seed: u64,
) -> Result<CooTensor<T>> {
    let levels = initiator.levels(dims)?;
    let mut groups: Vec<Group> = Vec::new();
    for (&weight, digits) in initiator.weights().iter().zip(initiator.cells()) {
        match groups.iter_mut().find(|group| group.weight == weight) {
            Some(group) => group.cells.push(digits),
            None => groups.push(Group { weight, cells: vec![digits] }),
        }
    }
    let fail = |detail: String| Err(Error::argument("initiator", detail));
    if (initiator.weights().len() as f64).powi(levels as i32) >= 2f64.powi(127) {
        return fail(format!("{} cells in {levels} digits make more than 2^127 places", initiator.weights().len()));
    }
    let Some(classes) = classes(levels, groups.len()) else {
        return fail(format!("{} weights in {levels} digits make more than {MOST_CLASSES} classes", groups.len()));
    };
    memory::ensure(format_args!("{nnz} nonzeros of {dims:?}"), nnz.saturating_mul(4 * size_of::<Place>()))?;
    let total: f64 = initiator.weights().iter().sum();
    let scale = if levels == 0 { 1.0 } else { (nnz as f64).powf(1.0 / levels as f64) / total };
    let hits = |class: usize| -> Vec<Place> {
        let counts = &classes[class];
        let power = |(group, &count): (&Group, &usize)| (group.weight * scale).powi(count as i32);
        let density = groups.iter().zip(counts).map(power).product::<f64>().min(1.0);
        let orders = multinomial(counts);
        let cells: u128 =
            groups.iter().zip(counts).map(|(g, &count)| (g.cells.len() as u128).pow(count as u32)).product();
        let mut stream = Stream::new(seed, class as u64);
        let (mut next, mut found) = (0u128, Vec::new());
        // A weight of 0 leaves its classes empty.
        if density == 0.0 {
            return found;
        }
        loop {
            next = next.saturating_add(gap(&mut stream, density));
            if next >= orders * cells {
                break;
            }
            found.extend(place(next, orders, cells, counts, &groups, initiator.dims(), dims));
            next += 1;
        }
        found
    };
    let places = parallel::map_tasks(classes.len(), hits).concat();
    let coords = (0..dims.len()).map(|mode| parallel::map(places.len(), |p| places[p][mode])).collect();
    let mut tensor = CooTensor::new(dims.to_vec(), coords, vec![T::ONE; places.len()])?;
    tensor.sort(&(0..dims.len()).collect::<Vec<_>>())?;
    let (dims, coords, values) = tensor.into_parts();
    CooTensor::new(dims, coords, parallel::map(values.len(), |p| value(seed, p as u64)))
}

/// All ways to write `levels` as a sum of `groups` numbers, if they are not too many.
fn classes(levels: usize, groups: usize) -> Option<Vec<Vec<usize>>> {
    let mut all = vec![Vec::new()];
    for group in 0..groups {
        let mut longer = Vec::new();
        for class in &all {
            let left = levels - class.iter().sum::<usize>();
            for count in if group + 1 == groups { left } else { 0 }..=left {
                longer.push([&class[..], &[count]].concat());
            }
            if longer.len() > MOST_CLASSES {
                return None;
            }
        }
        all = longer;
    }
    Some(all)
}

/// In how many orders so many digits of each group can come.
fn multinomial(counts: &[usize]) -> u128 {
    let (mut orders, mut n) = (1u128, 0);
    for &count in counts {
        for k in 1..=count as u128 {
            n += 1;
            // Exact: a product of n consecutive numbers is divisible by n!.
            orders = orders * n / k;
        }
    }
    orders
}

/// How many places are passed over before the next hit.
fn gap(stream: &mut Stream, density: f64) -> u128 {
    // 1 - unit is in (0, 1]: its logarithm is finite. The quotient by minus infinity, at density 1, is 0.
    let gap = ((1.0 - stream.unit()).ln() / (-density).ln_1p()).floor();
    // A double has 53 bits: the lower ones of a long gap are drawn.
    let fine = (gap / (1u64 << 53) as f64) as u64;
    gap as u128 + if fine == 0 { 0 } else { u128::from(stream.bits() % fine) }
}

/// The place of that rank in its class; `None` outside of `dims`.
fn place(
    rank: u128,
    mut orders: u128,
    cells: u128,
    counts: &[usize],
    groups: &[Group],
    bases: &[usize],
    dims: &[usize],
) -> Option<Place> {
    let (mut order, mut cell) = (rank / cells, rank % cells);
    let mut left = counts.to_vec();
    let mut wide = [0u64; MAX_ORDER];
    for digits_left in (1..=counts.iter().sum::<usize>()).rev() {
        // Orders that begin with each group in turn: its share of the digits that are left.
        let group = (0..left.len()).find(|&g| {
            let begin = orders * left[g] as u128 / digits_left as u128;
            let here = order < begin;
            if here {
                orders = begin
            } else {
                order -= begin
            }
            here
        })?;
        left[group] -= 1;
        let of_group = &groups[group].cells;
        let digits = &of_group[(cell % of_group.len() as u128) as usize];
        cell /= of_group.len() as u128;
        for ((i, &digit), &base) in wide.iter_mut().zip(digits).zip(bases) {
            *i = i.saturating_mul(base as u64).saturating_add(digit);
        }
    }
    let inside = wide.iter().zip(dims).all(|(&i, &dim)| i < dim as u64);
    inside.then(|| wide.map(|i| i as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_one_rank() {
        let initiator = Initiator::new(vec![2, 3], vec![1.0, 2.0, 2.0, 3.0, 1.0, 4.0]).unwrap();
        let mut groups: Vec<Group> = Vec::new();
        for (&weight, digits) in initiator.weights().iter().zip(initiator.cells()) {
            match groups.iter_mut().find(|group| group.weight == weight) {
                Some(group) => group.cells.push(digits),
                None => groups.push(Group { weight, cells: vec![digits] }),
            }
        }
        let mut seen = Vec::new();
        for counts in classes(3, groups.len()).unwrap() {
            let cells: u128 = groups.iter().zip(&counts).map(|(g, &k)| (g.cells.len() as u128).pow(k as u32)).product();
            let orders = multinomial(&counts);
            let of = |rank| place(rank, orders, cells, &counts, &groups, initiator.dims(), &[8, 27]).unwrap();
            seen.extend((0..orders * cells).map(|rank| (of(rank)[0], of(rank)[1])));
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..8).flat_map(|i| (0..27).map(move |j| (i, j)))));
        assert_eq!(classes(23, 30), None);
    }
}
