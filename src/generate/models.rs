//! The random models: stochastic Kronecker, biased power law, and skewed coordinates.

use sparsimd_kernels::Scalar;

use super::distinct::distinct;
use super::random::{Scatter, Stream};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::{memory, parallel};

/// The initiator of a stochastic Kronecker tensor: a small dense tensor of weights, whose repeated Kronecker product with
/// itself gives every place of the large tensor its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Initiator {
    dims: Vec<usize>,
    weights: Vec<f64>,
}

impl Initiator {
    /// The initiator of `dims` (2 or more each) with `weights` in row-major order; only their ratios matter.
    ///
    /// # Errors
    /// [`Error::Argument`] when a dimension is below 2, the number of weights is not the product of the dimensions, a weight
    /// is negative or not finite, or all are zero.
    pub fn new(dims: Vec<usize>, weights: Vec<f64>) -> Result<Self> {
        let fail = |detail: String| Err(Error::argument("initiator", detail));
        if dims.is_empty() || dims.iter().any(|&dim| dim < 2) {
            return fail(format!("dimensions {dims:?}; each must be 2 or more"));
        }
        if dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)) != Some(weights.len()) {
            return fail(format!("{} weights for dimensions {dims:?}", weights.len()));
        }
        if let Some(w) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
            return fail(format!("weight {w} is not a finite number of at least 0"));
        }
        if weights.iter().all(|&w| w == 0.0) {
            return fail("all weights are 0".into());
        }
        Ok(Self { dims, weights })
    }

    /// The 2 x ... x 2 initiator whose weight falls linearly from 0.9 at the corner 0...0 to 0.1 at 1...1: in two dimensions
    /// the matrix (0.9, 0.5; 0.5, 0.1) that is the common choice for core-periphery graphs.
    pub fn core_periphery(order: usize) -> Self {
        let weight = |cell: usize| 0.9 - 0.8 * f64::from(cell.count_ones()) / order as f64;
        Self { dims: vec![2; order], weights: (0..1 << order).map(weight).collect() }
    }

    /// The 2 x 2 initiator (0.57, 0.19; 0.19, 0.05) of the Graph500 benchmark's R-MAT graphs (Chakrabarti, Zhan and Faloutsos 2004).
    pub fn graph500() -> Self {
        Self { dims: vec![2; 2], weights: vec![0.57, 0.19, 0.19, 0.05] }
    }

    /// Length of each mode.
    pub(super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The weights, row-major.
    pub(super) fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// The digit of each cell in every mode.
    pub(super) fn cells(&self) -> Vec<Vec<u64>> {
        let cell = |mut cell: usize| {
            let mut place: Vec<u64> = self
                .dims
                .iter()
                .rev()
                .map(|&base| {
                    let digit = cell % base;
                    cell /= base;
                    digit as u64
                })
                .collect();
            place.reverse();
            place
        };
        (0..self.weights.len()).map(cell).collect()
    }

    /// Digits of the coordinates of a tensor of `dims`.
    pub(super) fn levels(&self, dims: &[usize]) -> Result<usize> {
        if dims.len() != self.dims.len() {
            let detail = format!("order {} for a tensor of order {}", self.dims.len(), dims.len());
            return Err(Error::argument("initiator", detail));
        }
        let digits = |(&dim, &base): (&usize, &usize)| {
            std::iter::successors(Some(1usize), |n| n.checked_mul(base)).take_while(|&n| n < dim).count()
        };
        Ok(dims.iter().zip(&self.dims).map(digits).max().unwrap_or(0))
    }

    /// Running sums of the weights, scaled to 2^64, for drawing a cell by one 64-bit number.
    fn thresholds(&self) -> Vec<u64> {
        let total: f64 = self.weights.iter().sum();
        let mut sum = 0.0;
        let scale = |w: &f64| {
            sum += w / total;
            (sum * 2f64.powi(64)) as u64 // saturates at the top, where it belongs
        };
        self.weights.iter().map(scale).collect()
    }
}

/// A stochastic Kronecker tensor (Leskovec et al. 2010, extended to any order): places are drawn one initiator cell for
/// every digit of the coordinates, most significant first; those outside of `dims` are stripped.
///
/// # Errors
/// [`Error::Argument`] when `dims` and the initiator differ in order, or `nnz` distinct places cannot be found.
#[inline(never)]
pub fn kronecker<T: Scalar>(dims: &[usize], nnz: usize, initiator: &Initiator, seed: u64) -> Result<CooTensor<T>> {
    let levels = initiator.levels(dims)?;
    let thresholds = initiator.thresholds();
    // Digits of the cell in every mode, so that drawing needs no division.
    let cells = initiator.cells();
    let last = initiator.weights.iter().rposition(|&w| w > 0.0).unwrap_or(0);
    distinct(dims, nnz, seed, |stream, place| {
        let mut wide = [0u64; crate::formats::MAX_ORDER];
        for _ in 0..levels {
            let bits = stream.bits();
            let cell = thresholds.iter().position(|&t| bits < t).unwrap_or(last);
            for ((i, &digit), &base) in wide.iter_mut().zip(&cells[cell]).zip(&initiator.dims) {
                // Saturating: a mode shorter than the longest one has more digits than it needs.
                *i = i.saturating_mul(base as u64).saturating_add(digit);
            }
        }
        let inside = wide.iter().zip(dims).all(|(&i, &dim)| i < dim as u64);
        place.iter_mut().zip(wide).for_each(|(short, i)| *short = i as u32);
        inside
    })
}

/// A tensor whose coordinates in the sparse modes follow a power law: rank k (counted from 1) of a mode has probability
/// proportional to k^(-exponent), ranks are scattered over the mode by a permutation. `dense` modes are uniform: graphs with power-law degrees,
/// stacked as the slices of a hypergraph.
///
/// # Errors
/// [`Error::Argument`] when the exponent is not a finite number of at least 0, a dense mode is out of range, or `nnz` distinct places cannot be found.
#[inline(never)]
pub fn power_law<T: Scalar>(
    dims: &[usize],
    nnz: usize,
    exponent: f64,
    dense: &[usize],
    seed: u64,
) -> Result<CooTensor<T>> {
    let rank = ranks(dims, exponent, dense)?;
    let scatters = scatters(dims, seed);
    distinct(dims, nnz, seed, |stream, place| {
        for (mode, scatter) in scatters.iter().enumerate() {
            let dim = dims[mode];
            place[mode] = if dense.contains(&mode) {
                stream.below(dim) as u32
            } else {
                scatter.apply(rank(stream.unit(), dim)) as u32
            };
        }
        true
    })
}

/// The rank, from 0, that a number in [0, 1) gives in a mode of some length, for a power law on modes of a tensor of `dims` other than
/// `dense`.
fn ranks(dims: &[usize], exponent: f64, dense: &[usize]) -> Result<impl Fn(f64, usize) -> usize + Copy + Sync + use<>> {
    if !(exponent.is_finite() && exponent >= 0.0) {
        return Err(Error::argument("exponent", format!("{exponent} is not a finite number of at least 0")));
    }
    if let Some(mode) = dense.iter().find(|&&mode| mode >= dims.len()) {
        return Err(Error::argument("dense", format!("mode {mode} is not below the order, {}", dims.len())));
    }
    // The inverse of the continuous distribution function on [1, dim + 1); exponent 1 is its logarithmic limit.
    Ok(move |u: f64, dim: usize| {
        let top = dim as f64 + 1.0;
        let q = 1.0 - exponent;
        let x = if q.abs() < 1e-9 { top.powf(u) } else { (u * (top.powf(q) - 1.0) + 1.0).powf(1.0 / q) };
        (x as usize).clamp(1, dim) - 1
    })
}

/// Graphs of power-law degrees stacked as the slices of a hypergraph, as streams of edges are (FireHose's biased power law, extended by
/// Li et al. 2020): every slice, a place of the `dense` modes, has its equal share of the nonzeros, drawn from a stream of its own;
/// vertices are the same in all of them. Otherwise as [`power_law`], where the shares of slices are random.
///
/// # Errors
/// As [`power_law`], and [`Error::Argument`] when no mode or every mode is dense, or one is named twice.
pub fn power_law_slices<T: Scalar>(
    dims: &[usize],
    nnz: usize,
    exponent: f64,
    dense: &[usize],
    seed: u64,
) -> Result<CooTensor<T>> {
    let rank = ranks(dims, exponent, dense)?;
    crate::formats::check_modes("dense", dense, dims.len())?;
    let sparse: Vec<usize> = (0..dims.len()).filter(|mode| !dense.contains(mode)).collect();
    let slices = dense.iter().try_fold(1usize, |n, &mode| n.checked_mul(dims[mode])).unwrap_or(usize::MAX);
    if dense.is_empty() || sparse.is_empty() || slices == 0 || slices > nnz.max(1) {
        let detail = format!(
            "{slices} slices along modes {dense:?} of {dims:?} for {nnz} nonzeros; 1 to {nnz}, and other modes beside them"
        );
        return Err(Error::argument("dense", detail));
    }
    // All slices, and then the tensor.
    let entry = dims.len() * size_of::<u32>() + size_of::<T>();
    memory::ensure(format_args!("{nnz} nonzeros of {dims:?}"), nnz.saturating_mul(2 * entry))?;
    let scatters = scatters(dims, seed);
    let lengths: Vec<usize> = sparse.iter().map(|&mode| dims[mode]).collect();
    let slice = |k: usize| {
        let share = nnz / slices + usize::from(k < nnz % slices);
        distinct::<T>(&lengths, share, Stream::new(seed, k as u64).bits(), |stream, place| {
            for (i, &mode) in place.iter_mut().zip(&sparse) {
                *i = scatters[mode].apply(rank(stream.unit(), dims[mode])) as u32;
            }
            true
        })
    };
    let graphs = parallel::map_tasks(slices, slice).into_iter().collect::<Result<Vec<_>>>()?;
    let mut coords: Vec<Vec<u32>> = vec![Vec::new(); dims.len()];
    let mut values = Vec::with_capacity(nnz);
    for (k, graph) in graphs.iter().enumerate() {
        let mut rest = k;
        for &mode in dense.iter().rev() {
            coords[mode].extend(std::iter::repeat_n((rest % dims[mode]) as u32, graph.nnz()));
            rest /= dims[mode];
        }
        for (level, &mode) in sparse.iter().enumerate() {
            coords[mode].extend_from_slice(graph.coords(level));
        }
        values.extend_from_slice(graph.values());
    }
    let mut tensor = CooTensor::new(dims.to_vec(), coords, values)?;
    tensor.sort(&(0..dims.len()).collect::<Vec<_>>())?;
    Ok(tensor)
}

/// The benchmark tensors of this library: every coordinate is floor(u^2 dim) with u uniform, scattered over its mode by a
/// permutation. The density of rank k falls as k^(-1/2), few fibers have more than one nonzero: the hard case.
///
/// # Errors
/// [`Error::Argument`] when `nnz` distinct places cannot be found.
#[inline(never)]
pub fn skewed<T: Scalar>(dims: &[usize], nnz: usize, seed: u64) -> Result<CooTensor<T>> {
    let scatters = scatters(dims, seed);
    distinct(dims, nnz, seed, |stream, place| {
        for (mode, scatter) in scatters.iter().enumerate() {
            let u = stream.unit();
            place[mode] = scatter.apply((u * u * dims[mode] as f64) as usize) as u32;
        }
        true
    })
}

/// One permutation for every mode, different even where lengths are equal.
fn scatters(dims: &[usize], seed: u64) -> Vec<Scatter> {
    dims.iter().enumerate().map(|(mode, &dim)| Scatter::new(dim, seed ^ ((mode as u64 + 1) << 56))).collect()
}
