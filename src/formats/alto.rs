//! A linearised tensor (after ALTO): all coordinates of a nonzero in one integer, the bits of the modes interleaved.
//!
//! The nonzeros are sorted by that integer, so that neighbours are close in every mode: one copy serves all modes, and
//! any run of it names few different rows of each factor.

use sparsimd_kernels::Scalar;

use super::coo_tensor::CooTensor;
use super::deposit::{Deposit, interleave};
use super::packing::mode_bits;
use super::radix::{self, Key};
use crate::error::{Error, Result};
use crate::parallel;

/// The sorted integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltoKeys {
    /// The coordinates fit 64 bits.
    Narrow(Vec<u64>),
    /// They fit 128.
    Wide(Vec<u128>),
}

/// A sparse tensor as one sorted integer and one value per nonzero.
#[derive(Clone, Debug, PartialEq)]
pub struct Alto<T> {
    dims: Vec<usize>,
    /// The bits of each mode; bit `b` of a coordinate is the `b`-th lowest of them.
    masks: Vec<u128>,
    keys: AltoKeys,
    values: Vec<T>,
}

impl<T: Scalar> Alto<T> {
    /// The tensor `coo` linearised. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the coordinates need more than 128 bits; [`Error::Structure`] when two entries are at
    /// the same place.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>) -> Result<Self> {
        coo.ensure("the linearised format", size_of::<u128>() + size_of::<T>())?;
        let widths: Vec<u32> = coo.dims().iter().map(|&dim| mode_bits(dim)).collect();
        let (positions, bits) = interleave(&widths, 0);
        let mask = |bits: &Vec<u32>| bits.iter().filter(|&&bit| bit < u128::BITS).fold(0, |mask, &bit| mask | 1 << bit);
        let masks = positions.iter().map(mask).collect();
        let (keys, values) = match bits {
            0..=64 => {
                let (keys, values) = sorted::<u64, T>(coo, positions, bits)?;
                (AltoKeys::Narrow(keys), values)
            }
            65..=128 => {
                let (keys, values) = sorted::<u128, T>(coo, positions, bits)?;
                (AltoKeys::Wide(keys), values)
            }
            _ => {
                return Err(Error::Unavailable {
                    what: "the linearised format",
                    detail: format!("the coordinates of dims {:?} need {bits} bits, more than 128", coo.dims()),
                });
            }
        };
        Ok(Self { dims: coo.dims().to_vec(), masks, keys, values })
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The bits of each mode in the integers.
    pub fn masks(&self) -> &[u128] {
        &self.masks
    }

    /// The integers, ascending.
    pub fn keys(&self) -> &AltoKeys {
        &self.keys
    }

    /// The value of each nonzero.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Bytes of the integers.
    pub fn index_bytes(&self) -> usize {
        match &self.keys {
            AltoKeys::Narrow(keys) => size_of_val(keys.as_slice()),
            AltoKeys::Wide(keys) => size_of_val(keys.as_slice()),
        }
    }

    /// The coordinate of every nonzero in `mode`.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn expand(&self, mode: usize) -> Vec<u32> {
        let mask = self.masks[mode];
        match &self.keys {
            AltoKeys::Narrow(keys) => parallel::map(keys.len(), |p| extract(u128::from(keys[p]), mask)),
            AltoKeys::Wide(keys) => parallel::map(keys.len(), |p| extract(keys[p], mask)),
        }
    }

    /// The same tensor as coordinates, in the order of the integers.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let coords = (0..self.dims.len()).map(|mode| self.expand(mode)).collect();
        CooTensor::new(self.dims.clone(), coords, self.values.clone())
            .expect("the integers hold a tensor's coordinates")
    }
}

/// The bits of `key` in `mask`, packed.
fn extract(key: u128, mask: u128) -> u32 {
    let (mut rest, mut bit, mut i) = (mask, 0, 0);
    while rest != 0 {
        i |= ((key >> rest.trailing_zeros()) as u32 & 1) << bit;
        rest &= rest - 1;
        bit += 1;
    }
    i
}

/// Keys and values of all entries, sorted.
fn sorted<K: Key, T: Scalar>(coo: &CooTensor<T>, positions: Vec<Vec<u32>>, bits: u32) -> Result<(Vec<K>, Vec<T>)> {
    let deposit = Deposit::<K>::new(positions);
    let entry = |p: usize| (deposit.key(|mode| coo.coords(mode)[p]), coo.values()[p]);
    let mut entries: Vec<(K, T)> = parallel::map(coo.nnz(), entry);
    radix::sort(&mut entries, bits);
    if !radix::all_different(&entries) {
        return coo.check_unique().and(Err(Error::structure("linearised tensor", "two entries at the same place")));
    }
    Ok((parallel::map(entries.len(), |p| entries[p].0), parallel::map(entries.len(), |p| entries[p].1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_keys_hold_every_coordinate() {
        for (dims, wide) in [
            (vec![5, 300, 17], false),
            (vec![1, 1], false),
            (vec![u32::MAX as usize; 2], false),
            (vec![u32::MAX as usize; 4], true),
        ] {
            let n = if dims.contains(&1) { 1 } else { 400 };
            let hash = |p: usize, m: usize| (p as u64 * 7919 + 13).wrapping_mul(0x9e37_79b9_7f4a_7c15 >> m) >> 9;
            let coords: Vec<Vec<u32>> = dims
                .iter()
                .enumerate()
                .map(|(m, &dim)| (0..n).map(|p| (hash(p, m) % dim as u64) as u32).collect())
                .collect();
            let mut coo = CooTensor::new(dims.clone(), coords, (0..n).map(|p| p as f64).collect()).unwrap();
            coo.sum_duplicates().unwrap();
            let alto = Alto::from_coo(&coo).unwrap();
            assert_eq!(matches!(alto.keys(), AltoKeys::Wide(_)), wide);
            assert_eq!(alto.index_bytes(), coo.nnz() * if wide { 16 } else { 8 });
            let mut back = alto.to_coo();
            back.sort(&(0..dims.len()).collect::<Vec<_>>()).unwrap();
            assert_eq!(back, coo);
        }
    }

    #[test]
    fn refuses_too_many_bits_and_duplicates() {
        let wide = CooTensor::new(vec![u32::MAX as usize; 5], vec![vec![7]; 5], vec![1.0f32]).unwrap();
        assert!(matches!(Alto::from_coo(&wide), Err(Error::Unavailable { .. })));
        let twice = CooTensor::new(vec![2, 2], vec![vec![1, 1], vec![0, 0]], vec![1.0f32, 2.0]).unwrap();
        assert!(matches!(Alto::from_coo(&twice), Err(Error::Structure { .. })));
    }
}
