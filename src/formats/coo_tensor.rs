//! Coordinate format of a tensor of any order: the hub that files are read into and every other format is made from.

pub use sparsimd_kernels::MAX_ORDER;
use sparsimd_kernels::Scalar;
use xxhash_rust::xxh3::xxh3_64;

use super::packing::Packing;
use super::places::{Places, TASK, gather};
use super::radix::{self, Key};
use crate::error::{Error, Result};
use crate::{memory, parallel};

/// A sparse tensor as one coordinate array per mode and one value array; any order of the entries.
///
/// Parallel methods run in the rayon pool of the caller: see [`crate::Cpu::install`].
#[derive(Clone, Debug, PartialEq)]
pub struct CooTensor<T> {
    dims: Vec<usize>,
    coords: Vec<Vec<u32>>,
    values: Vec<T>,
}

/// Whether `mode_order` names each of `order` modes once.
pub(crate) fn check_mode_order(mode_order: &[usize], order: usize) -> Result<()> {
    let named = |mode| mode_order.iter().filter(|&&m| m == mode).count() == 1;
    if mode_order.len() == order && (0..order).all(named) {
        return Ok(());
    }
    Err(Error::argument("mode_order", format!("{mode_order:?} is not an order of the modes 0 to {}", order - 1)))
}

/// Whether `mode` is one of `order` modes.
pub(crate) fn check_mode(mode: usize, order: usize) -> Result<()> {
    check_modes("mode", &[mode], order)
}

/// Whether `modes` are modes of a tensor of `order`, none twice.
pub(crate) fn check_modes(name: &'static str, modes: &[usize], order: usize) -> Result<()> {
    for (at, &mode) in modes.iter().enumerate() {
        if mode >= order {
            return Err(Error::argument(name, format!("mode {mode} is not below the tensor's order, {order}")));
        }
        if modes[..at].contains(&mode) {
            return Err(Error::argument(name, format!("mode {mode} is named twice")));
        }
    }
    Ok(())
}

/// Whether `dims` are a tensor's.
pub(crate) fn check_tensor_dims(dims: &[usize]) -> Result<()> {
    if dims.is_empty() || dims.len() > MAX_ORDER {
        return Err(Error::structure("tensor", format!("order {} is not between 1 and {MAX_ORDER}", dims.len())));
    }
    dims.iter().try_for_each(|&dim| super::check_dims("tensor", dim, 0))
}

impl<T: Scalar> CooTensor<T> {
    /// A checksum of the lengths, of the entries in whatever order, and of the element type; never 0. It tells tensors apart that a
    /// decomposition might be resumed on. Runs in the rayon pool of the caller.
    pub fn checksum(&self) -> u64 {
        Self::checksum_of(&self.dims, self.hash_sum())
    }

    /// [`CooTensor::checksum`] of the tensor of `dims` whose parts' [`CooTensor::hash_sum`] add up to `hash_sum`, modulo 2^64.
    pub fn checksum_of(dims: &[usize], hash_sum: u64) -> u64 {
        let words = dims.iter().map(|&dim| dim as u64).chain([size_of::<T>() as u64, hash_sum]);
        xxh3_64(bytemuck::cast_slice(&words.collect::<Vec<u64>>())).max(1)
    }

    /// The sum over the entries, modulo 2^64, of the XXH3 hashes of coordinates and value: that of a tensor is the sum of its parts'. Runs
    /// in the rayon pool of the caller.
    pub fn hash_sum(&self) -> u64 {
        /// Entries of a task: milliseconds.
        const ENTRIES: usize = 1 << 16;
        let order = self.order();
        let sums = parallel::map_tasks(self.nnz().div_ceil(ENTRIES), |task| {
            let first = task * ENTRIES;
            let mut entry = [0; 4 * MAX_ORDER + 8];
            (first..self.nnz().min(first + ENTRIES)).fold(0u64, |sum, p| {
                for (to, coords) in entry.as_chunks_mut().0.iter_mut().zip(&self.coords) {
                    *to = coords[p].to_le_bytes();
                }
                entry[4 * order..4 * order + 8].copy_from_slice(&self.values[p].to_f64().to_le_bytes());
                sum.wrapping_add(xxh3_64(&entry[..4 * order + 8]))
            })
        });
        sums.into_iter().fold(0, u64::wrapping_add)
    }

    /// The tensor with `values[p]` at the place `(coords[0][p], coords[1][p], ...)`.
    ///
    /// # Errors
    /// [`Error::Structure`] when the order is not 1 to [`MAX_ORDER`], a dimension exceeds u32, the arrays differ in
    /// number or length, or a coordinate is out of range.
    #[inline(never)]
    pub fn new(dims: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<T>) -> Result<Self> {
        let fail = |detail: String| Err(Error::structure("tensor", detail));
        check_tensor_dims(&dims)?;
        if coords.len() != dims.len() {
            return fail(format!("{} coordinate arrays for order {}", coords.len(), dims.len()));
        }
        for (mode, indices) in coords.iter().enumerate() {
            if indices.len() != values.len() {
                return fail(format!("mode {mode}: {} coordinates for {} values", indices.len(), values.len()));
            }
        }
        if let Some((p, mode)) = (Places { dims: &dims, coords: &coords, n: values.len() }).outside() {
            let i = coords[mode][p];
            return fail(format!("entry {p}: coordinate {i} of mode {mode} is not below {}", dims[mode]));
        }
        Ok(Self { dims, coords, values })
    }

    /// The tensor of arrays that are known to be valid.
    pub(crate) fn from_checked(dims: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<T>) -> Self {
        debug_assert_eq!(coords.len(), dims.len());
        debug_assert!(coords.iter().all(|indices| indices.len() == values.len()));
        Self { dims, coords, values }
    }

    /// Number of modes.
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The coordinate of each entry in `mode`.
    ///
    /// # Panics
    /// When `mode` is not below [`CooTensor::order`], as slice indexing does.
    pub fn coords(&self, mode: usize) -> &[u32] {
        &self.coords[mode]
    }

    /// The coordinate arrays of all modes.
    pub fn all_coords(&self) -> &[Vec<u32>] {
        &self.coords
    }

    /// The entries' places.
    pub(crate) fn places(&self) -> Places<'_> {
        Places { dims: &self.dims, coords: &self.coords, n: self.nnz() }
    }

    /// The value of each entry.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of each entry, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// The tensor with other `values` at the same places.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is not one value for each entry.
    pub fn with_values<U: Scalar>(&self, values: Vec<U>) -> Result<CooTensor<U>> {
        if values.len() != self.nnz() {
            return Err(Error::shape("with_values", format!("{} values for {} entries", values.len(), self.nnz())));
        }
        Ok(CooTensor { dims: self.dims.clone(), coords: self.coords.clone(), values })
    }

    /// Dims, coordinate arrays and values.
    pub fn into_parts(self) -> (Vec<usize>, Vec<Vec<u32>>, Vec<T>) {
        (self.dims, self.coords, self.values)
    }

    /// Bytes of the coordinates: 4 per entry and mode.
    pub fn index_bytes(&self) -> usize {
        size_of::<u32>() * self.order() * self.nnz()
    }

    /// The same tensor with every value converted to `U`.
    pub fn cast<U: Scalar>(&self) -> CooTensor<U> {
        CooTensor {
            dims: self.dims.clone(),
            coords: self.coords.clone(),
            values: self.values.iter().map(|x| U::from_f64(x.to_f64())).collect(),
        }
    }

    /// Whether the entries ascend lexicographically by their coordinates in `mode_order` (equal neighbours allowed).
    ///
    /// # Errors
    /// [`Error::Argument`] when `mode_order` does not name every mode once.
    #[inline(never)]
    pub fn is_sorted(&self, mode_order: &[usize]) -> Result<bool> {
        check_mode_order(mode_order, self.order())?;
        Ok(self.places().is_sorted(mode_order))
    }

    /// Sorts the entries lexicographically by their coordinates in `mode_order`, first mode most significant. Entries at
    /// the same place keep their order.
    ///
    /// # Errors
    /// [`Error::Argument`] when `mode_order` does not name every mode once; [`Error::Memory`].
    #[inline(never)]
    pub fn sort(&mut self, mode_order: &[usize]) -> Result<()> {
        if self.is_sorted(mode_order)? {
            return Ok(());
        }
        self.ensure("sorting the tensor", 0)?;
        match Packing::groups(&self.dims, mode_order).as_slice() {
            [packing] if packing.bits() <= u64::BITS => self.sort_packed::<u64>(packing),
            [packing] => self.sort_packed::<u128>(packing),
            _ => {
                let permutation = self.places().sorted_permutation(mode_order);
                self.coords.iter_mut().for_each(|indices| *indices = gather(indices, &permutation));
                self.values = gather(&self.values, &permutation);
            }
        }
        Ok(())
    }

    /// The entries in the order that [`CooTensor::sort`] would give them: the `p`-th is entry `result[p]` of `self`.
    ///
    /// # Errors
    /// As [`CooTensor::sort`].
    #[inline(never)]
    pub fn sorted_permutation(&self, mode_order: &[usize]) -> Result<Vec<usize>> {
        check_mode_order(mode_order, self.order())?;
        self.ensure("sorting the tensor", 0)?;
        Ok(self.places().sorted_permutation(mode_order))
    }

    /// Sorts by one key; the coordinates travel inside it.
    fn sort_packed<K: Key>(&mut self, packing: &Packing) {
        let mut entries: Vec<(K, T)> = parallel::map(self.nnz(), |p| (packing.pack(&self.coords, p), self.values[p]));
        radix::sort(&mut entries, packing.bits());
        let mut fields: Vec<(usize, usize)> = Vec::with_capacity(self.order());
        packing.unpack(K::ZERO, |mode, _| fields.push((mode, fields.len())));
        for (mode, level) in fields {
            self.coords[mode] = parallel::map(entries.len(), |p| packing.coordinate(entries[p].0, level));
        }
        self.values = parallel::map(entries.len(), |p| entries[p].1);
    }

    /// Whether `other` has the same coordinates in the same order.
    pub(crate) fn same_coords(&self, other: &Self) -> bool {
        let same = |mode: usize| {
            let (own, other) = (self.coords(mode), other.coords(mode));
            own.len() == other.len()
                && parallel::all(own.len().div_ceil(TASK), |t| {
                    let part = t * TASK..own.len().min((t + 1) * TASK);
                    own[part.clone()] == other[part]
                })
        };
        self.order() == other.order() && (0..self.order()).all(same)
    }

    /// Whether no two entries have the same place.
    ///
    /// Cheap when the entries are sorted by modes 0, 1, 2, ...; otherwise as expensive as sorting a copy.
    ///
    /// # Errors
    /// [`Error::Structure`] naming the place and the two entries; [`Error::Memory`].
    #[inline(never)]
    pub fn check_unique(&self) -> Result<()> {
        self.refuse(self.first_duplicate()?)
    }

    /// Two entries at the same place, if there are any, the earlier one first.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn first_duplicate(&self) -> Result<Option<(usize, usize)>> {
        let natural: Vec<usize> = (0..self.order()).collect();
        if !self.is_sorted(&natural)? {
            self.ensure("sorting the tensor", 0)?;
        }
        Ok(self.places().duplicate())
    }

    /// Whether no two neighbours have the same place: [`CooTensor::check_unique`] for sorted entries.
    pub(crate) fn check_sorted_unique(&self) -> Result<()> {
        self.refuse(self.places().first_repetition(|p| p).map(|p| (p - 1, p)))
    }

    fn refuse(&self, duplicate: Option<(usize, usize)>) -> Result<()> {
        match duplicate {
            None => Ok(()),
            Some((p, q)) => {
                let place = self.places().place(p);
                Err(Error::structure("tensor", format!("entries {p} and {q} are both at {place:?}")))
            }
        }
    }

    /// Sorts the entries by modes 0, 1, 2, ... and replaces those at the same place by their sum, in their order.
    /// Returns the number of entries that went away.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline(never)]
    pub fn sum_duplicates(&mut self) -> Result<usize> {
        let natural: Vec<usize> = (0..self.order()).collect();
        self.sort(&natural)?;
        let before = self.nnz();
        let Some(first) = self.places().first_repetition(|p| p) else { return Ok(0) };
        let mut last = first - 1;
        for p in first..before {
            if self.coords.iter().all(|indices| indices[last] == indices[p]) {
                let value = self.values[p];
                self.values[last] += value;
            } else {
                last += 1;
                self.values[last] = self.values[p];
                self.coords.iter_mut().for_each(|indices| indices[last] = indices[p]);
            }
        }
        self.values.truncate(last + 1);
        self.coords.iter_mut().for_each(|indices| indices.truncate(last + 1));
        Ok(before - self.nnz())
    }

    /// Whether there is memory for what sorting the entries takes and for `more` bytes of each entry besides, for `what`.
    pub(crate) fn ensure(&self, what: &str, more: usize) -> Result<()> {
        let widest = Packing::groups(&self.dims, &(0..self.order()).collect::<Vec<_>>());
        let key = if widest.iter().all(|packing| packing.bits() <= u64::BITS) { 8 } else { 16 };
        // Two arrays of keys, each with a value or a position beside it, and the permutation or the sorted coordinates.
        let sorting = 4 * key + size_of::<usize>().max(self.entry_bytes());
        memory::ensure(what, self.nnz().saturating_mul(sorting + more))
    }

    /// Bytes of one entry.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.order() * size_of::<u32>() + size_of::<T>()
    }

    /// A copy.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn try_clone(&self) -> Result<Self> {
        memory::ensure("a copy of the tensor", self.nnz() * self.entry_bytes())?;
        Ok(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor of `nnz` entries at hashed places; the value of an entry is its position.
    fn hashed(dims: &[usize], nnz: usize) -> CooTensor<f64> {
        let coords = dims
            .iter()
            .enumerate()
            .map(|(mode, &dim)| {
                let hash = |p: usize| (p as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ ((mode as u64) << 7)) >> 20;
                (0..nnz).map(|p| (hash(p) % dim as u64) as u32).collect()
            })
            .collect();
        CooTensor::new(dims.to_vec(), coords, (0..nnz).map(|p| p as f64).collect()).unwrap()
    }

    fn entries(t: &CooTensor<f64>) -> Vec<(Vec<u32>, f64)> {
        (0..t.nnz()).map(|p| (t.coords.iter().map(|c| c[p]).collect(), t.values[p])).collect()
    }

    #[test]
    fn sorts_in_every_mode_order_at_every_key_width() {
        let huge = u32::MAX as usize;
        for dims in [vec![7, 1, 300], vec![60_000, 70_000, 80_000, 90_000], vec![huge; 5], vec![3]] {
            for nnz in [0, 1, 1000, 70_000] {
                let t = hashed(&dims, nnz);
                let n = dims.len();
                for mode_order in [(0..n).collect::<Vec<_>>(), (0..n).rev().collect()] {
                    let mut sorted = t.clone();
                    sorted.sort(&mode_order).unwrap();
                    assert!(sorted.is_sorted(&mode_order).unwrap());
                    let mut expected = entries(&t);
                    expected.sort_by_key(|(place, _)| mode_order.iter().map(|&m| place[m]).collect::<Vec<_>>());
                    assert!(entries(&sorted) == expected, "{dims:?}, {nnz} entries, order {mode_order:?}");
                    let permutation = t.sorted_permutation(&mode_order).unwrap();
                    assert!(permutation.iter().map(|&p| p as f64).eq(sorted.values.iter().copied()));
                }
            }
        }
    }

    #[test]
    fn refuses_a_bad_mode_order() {
        let mut t = hashed(&[4, 5, 6], 10);
        for bad in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[0, 1, 2, 0]] {
            assert!(matches!(t.sort(bad), Err(Error::Argument { name: "mode_order", .. })));
            assert!(t.is_sorted(bad).is_err());
            assert!(t.sorted_permutation(bad).is_err());
        }
    }

    #[test]
    fn duplicates_are_refused_or_summed() {
        let coords = vec![vec![1, 0, 1, 1, 0], vec![2, 0, 2, 1, 0]];
        let mut t = CooTensor::new(vec![2, 3], coords, vec![1.0, 2.0, 4.0, 8.0, 16.0]).unwrap();
        let message = t.check_unique().unwrap_err().to_string();
        assert!(message.contains("entries 1 and 4") && message.contains("[0, 0]"), "{message}");
        assert_eq!(t.sum_duplicates().unwrap(), 2);
        t.check_unique().unwrap();
        assert_eq!(entries(&t), [(vec![0, 0], 18.0), (vec![1, 1], 8.0), (vec![1, 2], 5.0)]);
        assert_eq!(t.sum_duplicates().unwrap(), 0);
        assert_eq!(t.index_bytes(), 3 * 2 * 4);
    }

    #[test]
    fn refuses_bad_arrays() {
        let new = |dims: &[usize], coords: Vec<Vec<u32>>| CooTensor::new(dims.to_vec(), coords, vec![1.0f32]);
        assert!(new(&[], vec![]).is_err());
        assert!(new(&[1; 9], vec![vec![0]; 9]).is_err());
        assert!(new(&[2, 2], vec![vec![0]]).is_err());
        assert!(new(&[2, 2], vec![vec![0], vec![0, 1]]).is_err());
        assert!(new(&[usize::MAX], vec![vec![0]]).is_err());
        let message = new(&[2, 2], vec![vec![1], vec![2]]).unwrap_err().to_string();
        assert!(message.contains("entry 0") && message.contains("mode 1"), "{message}");
        assert!(new(&[0], vec![vec![0]]).is_err());
    }
}
