//! Tensors at the two ends of what TTM and MTTKRP can reach: everything reused, nothing reused.

use sparsimd_kernels::Scalar;

use super::distinct::{distinct, value};
use super::random::Scatter;
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// The best case of TTM: dense fibers along the last mode at random places. `nnz` is rounded down to whole fibers, but to one at
/// least.
///
/// # Errors
/// [`Error::Argument`] when the order is below 2, the last mode is empty, or there are not that many fibers.
pub fn dense_fibers<T: Scalar>(dims: &[usize], nnz: usize, seed: u64) -> Result<CooTensor<T>> {
    let (&dim, others) = split(dims, dims.len().wrapping_sub(1))?;
    let fibers = (nnz / dim).max(1);
    let heads = uniform::<T>(&others, fibers, seed)?;
    let repeat = |indices: &[u32]| indices.iter().flat_map(|&i| std::iter::repeat_n(i, dim)).collect();
    let mut coords: Vec<Vec<u32>> = heads.all_coords().iter().map(|indices| repeat(indices)).collect();
    coords.push((0..fibers).flat_map(|_| 0..dim as u32).collect());
    CooTensor::new(dims.to_vec(), coords, values(fibers * dim, seed))
}

/// The best case of MTTKRP: dense slices at random places of the first mode. `nnz` is rounded down to whole slices, but to one
/// at least.
///
/// # Errors
/// [`Error::Argument`] when the order is below 2, a mode is empty, there are not that many slices, or a slice does not
/// fit the address space.
pub fn dense_slices<T: Scalar>(dims: &[usize], nnz: usize, seed: u64) -> Result<CooTensor<T>> {
    let (_, others) = split(dims, 0)?;
    let Some(size) = others.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).filter(|&n| n > 0) else {
        return Err(Error::argument("dims", format!("a slice of {others:?} is empty or too large")));
    };
    let slices = (nnz / size).max(1);
    let heads = uniform::<T>(&dims[..1], slices, seed)?;
    let mut coords = vec![heads.coords(0).iter().flat_map(|&i| std::iter::repeat_n(i, size)).collect::<Vec<u32>>()];
    let mut stride = size;
    for &dim in &others {
        stride /= dim;
        coords.push((0..slices).flat_map(|_| (0..size).map(|place| (place / stride % dim) as u32)).collect());
    }
    CooTensor::new(dims.to_vec(), coords, values(slices * size, seed))
}

/// The worst case of TTM: every fiber along the last mode has one nonzero, and consecutive fibers meet the rows of the
/// matrix in a random permutation, each row once before any is met again.
///
/// # Errors
/// [`Error::Argument`] when the order is below 2, the last mode is empty, or there are fewer than `nnz` fibers.
pub fn lone_in_fiber<T: Scalar>(dims: &[usize], nnz: usize, seed: u64) -> Result<CooTensor<T>> {
    let (&dim, others) = split(dims, dims.len().wrapping_sub(1))?;
    let scatter = Scatter::new(dim, seed);
    let (_, mut coords, values) = uniform::<T>(&others, nnz, seed)?.into_parts();
    coords.push((0..nnz).map(|p| scatter.apply(p % dim) as u32).collect());
    CooTensor::new(dims.to_vec(), coords, values)
}

/// The worst case of MTTKRP: every slice of the first mode has one nonzero, and consecutive slices meet the rows of the
/// other modes' factors in random permutations.
///
/// # Errors
/// [`Error::Argument`] when the order is below 2, a mode is empty, or there are fewer than `nnz` slices.
pub fn lone_in_slice<T: Scalar>(dims: &[usize], nnz: usize, seed: u64) -> Result<CooTensor<T>> {
    let (_, others) = split(dims, 0)?;
    if others.contains(&0) {
        return Err(Error::argument("dims", format!("a slice of {others:?} is empty")));
    }
    let (_, mut coords, values) = uniform::<T>(&dims[..1], nnz, seed)?.into_parts();
    for (mode, &dim) in others.iter().enumerate() {
        let scatter = Scatter::new(dim, seed ^ ((mode as u64 + 1) << 56));
        coords.push((0..nnz).map(|p| scatter.apply(p % dim) as u32).collect());
    }
    CooTensor::new(dims.to_vec(), coords, values)
}

/// The length of `mode` and the other modes' lengths.
fn split(dims: &[usize], mode: usize) -> Result<(&usize, Vec<usize>)> {
    if dims.len() < 2 {
        return Err(Error::argument("dims", format!("{dims:?}: at least two modes are needed")));
    }
    let others = dims.iter().enumerate().filter(|&(m, _)| m != mode).map(|(_, &dim)| dim).collect();
    match &dims[mode] {
        0 => Err(Error::argument("dims", format!("mode {mode} of {dims:?} is empty"))),
        dim => Ok((dim, others)),
    }
}

/// `n` distinct places, all equally likely.
fn uniform<T: Scalar>(dims: &[usize], n: usize, seed: u64) -> Result<CooTensor<T>> {
    distinct(dims, n, seed, |stream, place| {
        place.iter_mut().zip(dims).for_each(|(i, &dim)| *i = stream.below(dim) as u32);
        true
    })
}

fn values<T: Scalar>(n: usize, seed: u64) -> Vec<T> {
    (0..n as u64).map(|p| value(seed, p)).collect()
}
