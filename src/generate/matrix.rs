//! Random sparse matrices and dense operands.

use rayon::prelude::*;
use sparsimd_kernels::Scalar;

use super::random::Stream;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};

/// Numbers in [-0.5, 0.5): of `bits` as many as f32 holds exactly, so that both element types get the same ones.
fn centred<T: Scalar>(bits: u64) -> T {
    T::from_f64((bits >> 40) as f64 / (1u64 << 24) as f64 - 0.5)
}

/// `count` numbers uniform in [-0.5, 0.5).
pub fn uniform_values<T: Scalar>(count: usize, seed: u64) -> Vec<T> {
    (0..count as u64).into_par_iter().map(|p| centred(Stream::new(seed, p).bits())).collect()
}

/// A dense matrix of numbers uniform in [-0.5, 0.5); element (i, j) is number `i cols + j` of the seed, whatever the
/// stride.
///
/// # Errors
/// As [`Mat::zeros`].
pub fn uniform_dense<T: Scalar>(rows: usize, cols: usize, seed: u64) -> Result<Mat<T>> {
    Mat::from_fn(rows, cols, |i, j| centred(Stream::new(seed, (i * cols + j) as u64).bits()))
}

/// A random matrix: each place is nonzero with probability `1 - sparsity`, independently; values uniform in
/// [-0.5, 0.5); columns ascend in each row.
///
/// # Errors
/// [`Error::Argument`] when `sparsity` is not in [0, 1]; [`Error::Structure`] when a dimension exceeds u32.
pub fn random_matrix<T: Scalar>(rows: usize, cols: usize, sparsity: f64, seed: u64) -> Result<Csr<T>> {
    if !(0.0..=1.0).contains(&sparsity) {
        return Err(Error::argument("sparsity", format!("{sparsity} is not in [0, 1]")));
    }
    if rows.max(cols) > u32::MAX as usize {
        return Err(Error::argument("matrix", format!("{rows} x {cols} exceeds the largest dimension, {}", u32::MAX)));
    }
    let row_indices = |i: usize| random_row(cols, 1.0 - sparsity, Stream::new(seed, i as u64));
    let mut row_ptr = vec![0usize; rows + 1];
    let rows_of_columns: Vec<Vec<u32>> = (0..rows).into_par_iter().map(row_indices).collect();
    for (i, row) in rows_of_columns.iter().enumerate() {
        row_ptr[i + 1] = row_ptr[i] + row.len();
    }
    let pattern = Pattern::new(rows, cols, row_ptr, rows_of_columns.concat())?;
    // A seed of its own: the streams of `seed` itself made the places.
    let values = uniform_values(pattern.nnz(), Stream::new(seed, u64::MAX).bits());
    Csr::new(pattern, values)
}

/// The nonzero columns of one row, found by drawing the gaps between them, which are geometrically distributed.
fn random_row(cols: usize, density: f64, mut random: Stream) -> Vec<u32> {
    if density >= 1.0 {
        return (0..cols as u32).collect();
    }
    let mut out = Vec::new();
    // ln(1 - density) by a function that keeps its digits for small densities; density 0 gives infinite gaps.
    let scale = 1.0 / (-density).ln_1p();
    let mut j = 0.0;
    loop {
        // 1 - unit is in (0, 1]: its logarithm is finite.
        j += ((1.0 - random.unit()).ln() * scale).floor();
        if j.is_nan() || j >= cols as f64 {
            return out;
        }
        out.push(j as u32);
        j += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn density_is_as_asked() {
        let a = random_matrix::<f32>(500, 400, 0.9, 3).unwrap();
        // 20000 expected, standard deviation sqrt(200000 * 0.09) = 134.
        assert!((19_330..20_670).contains(&a.nnz()), "{}", a.nnz());
        assert!(a.values().iter().all(|x| (-0.5..0.5).contains(x)));
        assert_eq!(random_matrix::<f32>(3, 7, 0.0, 1).unwrap().nnz(), 21);
        assert_eq!(random_matrix::<f32>(3, 7, 1.0, 1).unwrap().nnz(), 0);
        assert_eq!(random_matrix::<f32>(0, 7, 0.5, 1).unwrap().rows(), 0);
    }

    #[test]
    fn impossible_arguments_are_refused() {
        assert!(random_matrix::<f32>(3, 3, 1.5, 0).is_err());
        assert!(random_matrix::<f32>(3, 3, f64::NAN, 0).is_err());
        assert!(random_matrix::<f32>(1 << 33, 0, 0.5, 0).is_err());
    }

    #[test]
    fn same_seed_same_numbers() {
        assert_eq!(random_matrix::<f64>(40, 50, 0.7, 9).unwrap(), random_matrix::<f64>(40, 50, 0.7, 9).unwrap());
        assert_ne!(uniform_values::<f64>(8, 1), uniform_values::<f64>(8, 2));
    }
}
