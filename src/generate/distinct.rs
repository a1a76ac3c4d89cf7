//! Sampling without repetition: random places until enough of them are distinct.
//!
//! ```text
//! repeat: draw samples in parallel, sample number s from its own stream of random numbers
//!         sort by place, keep the lowest sample number of each place
//! until there are nnz places; of a surplus the lowest sample numbers stay
//! ```
//!
//! No step depends on how the samples are shared among threads.

use sparsimd_kernels::Scalar;

use super::random::Stream;
use crate::error::{Error, Result};
use crate::formats::packing::Packing;
use crate::formats::radix::{self, Key};
use crate::formats::{CooTensor, MAX_ORDER};
use crate::memory;
use crate::parallel::{self, GRAIN as TASK};

/// One place under construction; the first `order` coordinates count.
pub type Place = [u32; MAX_ORDER];

/// Samples per requested nonzero after which the distribution is taken to be too narrow.
const PATIENCE: u64 = 200;

/// Distinguishes the streams of values from those of places.
const VALUE_SALT: u64 = 0x76a1_0e5a_17ed_c0de;

/// The value of sample `index`: uniform in (0, 1].
pub fn value<T: Scalar>(seed: u64, index: u64) -> T {
    T::from_f64(1.0 - Stream::new(seed ^ VALUE_SALT, index).unit())
}

/// A tensor of `nnz` distinct places in ascending order, each made by `draw`, which returns false to reject a sample.
///
/// # Errors
/// [`Error::Argument`] when the tensor has fewer than `nnz` places, when its places need more than 128 bits, or when the
/// distribution yields too few distinct places.
#[inline(never)]
pub fn distinct<T: Scalar>(
    dims: &[usize],
    nnz: usize,
    seed: u64,
    draw: impl Fn(&mut Stream, &mut Place) -> bool + Sync,
) -> Result<CooTensor<T>> {
    let places = dims.iter().map(|&dim| dim as f64).product::<f64>();
    if nnz as f64 > places {
        return Err(Error::argument("nnz", format!("{nnz} nonzeros do not fit the {places} places of {dims:?}")));
    }
    // An eighth more samples than nonzeros, four times: drawn, gathered, sorted, and as the tensor's arrays.
    let sample = 2 * size_of::<u128>() * 4;
    memory::ensure(format_args!("{nnz} nonzeros of {dims:?}"), nnz.saturating_mul(sample + sample / 8))?;
    let natural: Vec<usize> = (0..dims.len()).collect();
    match Packing::new(dims, &natural) {
        packing if packing.bits() <= u64::BITS => distinct_packed::<u64, T>(dims, nnz, seed, draw, &packing),
        packing if packing.bits() <= u128::BITS => distinct_packed::<u128, T>(dims, nnz, seed, draw, &packing),
        packing => Err(Error::argument("dims", format!("{dims:?} need {} bits; 128 are supported", packing.bits()))),
    }
}

fn distinct_packed<K: Key, T: Scalar>(
    dims: &[usize],
    nnz: usize,
    seed: u64,
    draw: impl Fn(&mut Stream, &mut Place) -> bool + Sync,
    packing: &Packing,
) -> Result<CooTensor<T>> {
    let sample = |index: u64| {
        let mut place = Place::default();
        draw(&mut Stream::new(seed, index), &mut place).then(|| (packing.pack_place::<K>(&place), index))
    };
    let mut found: Vec<(K, u64)> = Vec::new();
    let mut drawn = 0u64;
    while found.len() < nnz {
        if drawn > PATIENCE * (nnz as u64 + 100) {
            return Err(Error::argument(
                "nnz",
                format!("only {} of {nnz} places are distinct after {drawn} samples of {dims:?}", found.len()),
            ));
        }
        // An eighth more than is missing at first, then by the yield so far.
        let missing = (nnz - found.len()) as u64;
        let more = if drawn == 0 { missing + missing / 8 } else { missing * 2 + drawn / 4 } + 16;
        let part = |t: usize| {
            let samples = drawn + (t * TASK) as u64..(drawn + more).min(drawn + ((t + 1) * TASK) as u64);
            samples.filter_map(sample).collect::<Vec<_>>()
        };
        found.extend(parallel::map_tasks((more as usize).div_ceil(TASK), part).concat());
        drawn += more;
        // Stable, and entries are in sample order at equal places: the first of a run is its lowest sample.
        radix::sort(&mut found, packing.bits());
        found.dedup_by_key(|&mut (key, _)| key);
    }
    if found.len() > nnz {
        let mut samples: Vec<u64> = found.iter().map(|&(_, index)| index).collect();
        let bound = *samples.select_nth_unstable(nnz).1;
        found.retain(|&(_, index)| index < bound);
    }
    let mode = |level: usize| parallel::map(nnz, |p| packing.coordinate(found[p].0, level));
    let coords = (0..dims.len()).map(mode).collect();
    CooTensor::new(dims.to_vec(), coords, parallel::map(nnz, |p| value(seed, found[p].1)))
}
