//! Tensors by name: the synthetic tensors of the PASTA benchmark suite, stand-ins for its real ones, and the benchmark
//! tensors of this library.

use std::str::FromStr;

use sparsimd_kernels::Scalar;

use super::bernoulli::kronecker_bernoulli;
use super::extreme::{dense_fibers, dense_slices, lone_in_fiber, lone_in_slice};
use super::models::{Initiator, kronecker, power_law, power_law_slices, skewed};
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// How the places of a tensor are drawn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Model {
    /// [`kronecker`].
    Kronecker(Initiator),
    /// [`kronecker_bernoulli`].
    KroneckerBernoulli(Initiator),
    /// [`power_law`] with an exponent and the list of dense modes.
    PowerLaw(f64, Vec<usize>),
    /// [`power_law_slices`] likewise.
    PowerLawSlices(f64, Vec<usize>),
    /// [`skewed`].
    Skewed,
    /// [`dense_fibers`].
    DenseFibers,
    /// [`dense_slices`].
    DenseSlices,
    /// [`lone_in_fiber`].
    LoneInFiber,
    /// [`lone_in_slice`].
    LoneInSlice,
}

/// A tensor that can be generated: model, shape and number of nonzeros.
///
/// Read from text as a name of [`TensorSpec::names`], or as `MODEL:DIMS:NNZ`, such as `skew:100x80x60:5000`, where the
/// model is `kron`, `kron-bernoulli`, `powerlaw`, `powerlaw-slices` (slices along the last mode), `skew`, `best-ttm`, `best-mttkrp`, `worst-ttm` or `worst-mttkrp`; or as `rmat:SCALE:NNZ`, an R-MAT
/// graph of 2^SCALE vertices as a tensor of order 2, by [`Initiator::graph500`].
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// How places are drawn.
    pub model: Model,
    /// Length of each mode.
    pub dims: Vec<usize>,
    /// Number of nonzeros.
    pub nnz: usize,
}

/// Exponent of the power law where none is given. Degrees then fall as rank^(-0.6), which makes the frequency of degree d
/// fall as d^(-2.7): inside the 2 to 3 that real graphs show.
pub const DEFAULT_EXPONENT: f64 = 0.6;

/// Name, dims, number of nonzeros and dense modes (from this one on) of a power law; a Kronecker tensor has none.
type Row = (&'static str, &'static [usize], usize, Option<usize>);

/// The synthetic tensors of Table II(b) of "A Sparse Tensor Benchmark Suite for CPUs and GPUs" (Li et al. 2020). Lengths are
/// printed there to two digits; the printed densities show which power of two each of them is (for irrS4d and irrM4d,
/// whose printed lengths contradict their densities, we follow the densities).
const PASTA_SYNTHETIC: [Row; 15] = [
    ("regS", &[1 << 16; 3], 1_100_000, None),
    ("regM", &[1 << 20; 3], 11_500_000, None),
    ("regL", &[1 << 23; 3], 94_000_000, None),
    ("irrS", &[1 << 15, 1 << 15, 76], 1_000_000, Some(2)),
    ("irrM", &[1 << 19, 1 << 19, 126], 10_000_000, Some(2)),
    ("irrL", &[1 << 22, 1 << 22, 168], 84_000_000, Some(2)),
    ("regS4d", &[1 << 13; 4], 1_000_000, None),
    ("regM4d", &[1 << 21; 4], 11_200_000, None),
    ("regL4d", &[1 << 23; 4], 110_000_000, None),
    ("irrS4d", &[1 << 14, 1 << 14, 1 << 14, 82], 1_000_000, Some(3)),
    ("irrM4d", &[1 << 18, 1 << 18, 1 << 18, 144], 10_800_000, Some(3)),
    ("irrL4d", &[1 << 22, 1 << 22, 1 << 22, 226], 100_000_000, Some(3)),
    ("irr2S4d", &[1 << 20, 1 << 20, 122, 436], 1_600_000, Some(2)),
    ("irr2M4d", &[1 << 22, 1 << 22, 232, 746], 19_900_000, Some(2)),
    ("irr2L4d", &[1 << 23, 1 << 23, 952, 324], 109_000_000, Some(2)),
];

/// Shapes of the real tensors of the same paper's Table II(a), drawn here with skewed coordinates: stand-ins where the
/// data themselves are not at hand.
const PASTA_REAL: [(&str, &[usize], usize); 15] = [
    ("vast", &[165_427, 11_374, 2], 26_000_000),
    ("nell2", &[12_092, 9_184, 28_818], 77_000_000),
    ("choa", &[712_000, 10_000, 767], 27_000_000),
    ("darpa", &[22_000, 22_000, 24_000_000], 28_000_000),
    ("fb-m", &[23_000_000, 23_000_000, 166], 100_000_000),
    ("fb-s", &[39_000_000, 39_000_000, 532], 140_000_000),
    ("flickr", &[320_000, 28_000_000, 1_600_000], 113_000_000),
    ("deli", &[533_000, 17_000_000, 2_500_000], 140_000_000),
    ("nell1", &[2_902_330, 2_143_368, 25_495_389], 144_000_000),
    ("crime4d", &[6_000, 24, 77, 32], 5_000_000),
    ("uber4d", &[183, 24, 1_140, 1_717], 3_000_000),
    ("nips4d", &[2_000, 3_000, 14_000, 17], 3_000_000),
    ("enron4d", &[6_000, 6_000, 244_000, 1_000], 54_000_000),
    ("flickr4d", &[320_000, 28_000_000, 1_600_000, 731], 113_000_000),
    ("deli4d", &[533_000, 17_000_000, 2_500_000, 1_000], 140_000_000),
];

/// The tensors that this library's speed is stated on.
const BENCHMARK: [(&str, &[usize], usize); 3] = [
    ("skew3d", &[12_000, 9_000, 29_000], 4_000_000),
    ("skew3d-large", &[100_000; 3], 4_000_000),
    ("skew4d", &[6_000, 6_000, 40_000, 1_000], 3_000_000),
];

impl TensorSpec {
    /// All names: `regS` to `irr2L4d`, `vast-like` to `deli4d-like`, and the `skew` benchmarks.
    pub fn names() -> Vec<String> {
        let synthetic = PASTA_SYNTHETIC.iter().map(|row| row.0.to_owned());
        let real = PASTA_REAL.iter().map(|row| format!("{}-like", row.0));
        BENCHMARK.iter().map(|row| row.0.to_owned()).chain(synthetic).chain(real).collect()
    }

    /// The tensor of that name.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(&(_, dims, nnz, dense)) = PASTA_SYNTHETIC.iter().find(|row| row.0 == name) {
            let model = match dense {
                None => Model::Kronecker(Initiator::core_periphery(dims.len())),
                Some(first) => Model::PowerLaw(DEFAULT_EXPONENT, (first..dims.len()).collect()),
            };
            return Some(Self { model, dims: dims.to_vec(), nnz });
        }
        let real = name.strip_suffix("-like").and_then(|name| PASTA_REAL.iter().find(|row| row.0 == name));
        let &(_, dims, nnz) = real.or_else(|| BENCHMARK.iter().find(|row| row.0 == name))?;
        Some(Self { model: Model::Skewed, dims: dims.to_vec(), nnz })
    }

    /// The tensor, the same for the same `seed` on any number of threads. Values are uniform in (0, 1].
    ///
    /// Runs in the rayon pool of the caller: see [`crate::Cpu::install`].
    ///
    /// # Errors
    /// As the model's function.
    #[inline(never)]
    pub fn generate<T: Scalar>(&self, seed: u64) -> Result<CooTensor<T>> {
        crate::formats::check_tensor_dims(&self.dims)?;
        let (dims, nnz) = (&self.dims[..], self.nnz);
        match &self.model {
            Model::Kronecker(initiator) => kronecker(dims, nnz, initiator, seed),
            Model::KroneckerBernoulli(initiator) => kronecker_bernoulli(dims, nnz, initiator, seed),
            Model::PowerLawSlices(exponent, dense) => power_law_slices(dims, nnz, *exponent, dense, seed),
            Model::PowerLaw(exponent, dense) => power_law(dims, nnz, *exponent, dense, seed),
            Model::Skewed => skewed(dims, nnz, seed),
            Model::DenseFibers => dense_fibers(dims, nnz, seed),
            Model::DenseSlices => dense_slices(dims, nnz, seed),
            Model::LoneInFiber => lone_in_fiber(dims, nnz, seed),
            Model::LoneInSlice => lone_in_slice(dims, nnz, seed),
        }
    }
}

impl FromStr for TensorSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = |detail: String| Error::argument("generate", detail);
        if let Some(spec) = Self::named(text) {
            return Ok(spec);
        }
        let [model, dims, nnz] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err(fail(format!(
                "{text} is neither a known name nor MODEL:DIMS:NNZ; the names are {}",
                Self::names().join(", ")
            )));
        };
        let scale = || dims.parse().ok().filter(|scale| (1..32).contains(scale));
        let lengths = if model == "rmat" { scale().map(|scale: u32| vec![1 << scale; 2]) } else { parse_dims(dims) };
        let dims = lengths.ok_or_else(|| fail(format!("{dims} is not a list of lengths such as 100x80x60")))?;
        let nnz = nnz.parse().map_err(|_| fail(format!("{nnz} is not a number of nonzeros")))?;
        let model = match model {
            "rmat" => Model::Kronecker(Initiator::graph500()),
            "kron" => Model::Kronecker(Initiator::core_periphery(dims.len())),
            "kron-bernoulli" => Model::KroneckerBernoulli(Initiator::core_periphery(dims.len())),
            "powerlaw-slices" => Model::PowerLawSlices(DEFAULT_EXPONENT, vec![dims.len() - 1]),
            "powerlaw" => Model::PowerLaw(DEFAULT_EXPONENT, Vec::new()),
            "skew" => Model::Skewed,
            "best-ttm" => Model::DenseFibers,
            "best-mttkrp" => Model::DenseSlices,
            "worst-ttm" => Model::LoneInFiber,
            "worst-mttkrp" => Model::LoneInSlice,
            _ => return Err(fail(format!("{model} is no model"))),
        };
        Ok(Self { model, dims, nnz })
    }
}

/// `100x80x60` as lengths of modes, at most [`crate::formats::MAX_ORDER`].
pub fn parse_dims(text: &str) -> Option<Vec<usize>> {
    let dims: Vec<usize> = text.split('x').map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    crate::formats::check_tensor_dims(&dims).is_ok().then_some(dims)
}
