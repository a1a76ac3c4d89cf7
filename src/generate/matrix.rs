//! Random sparse matrices and dense operands.

use std::ops::Range;

use sparsimd_kernels::{Number, Scalar, Stored};

use super::random::Stream;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};
use crate::{memory, parallel};

/// Numbers in [-0.5, 0.5): of `bits` as many as f32 holds exactly, so that both element types get the same ones; narrower types get the nearest.
fn centred<D: Stored>(bits: u64) -> D {
    D::narrow(D::Scalar::from_f64((bits >> 40) as f64 / (1u64 << 24) as f64 - 0.5))
}

/// `count` numbers uniform in [-0.5, 0.5).
#[inline(never)]
pub fn uniform_values<D: Stored>(count: usize, seed: u64) -> Vec<D> {
    parallel::map(count, |p| centred(Stream::new(seed, p as u64).bits()))
}

/// A dense matrix of numbers uniform in [-0.5, 0.5); element (i, j) is number `i cols + j` of the seed, whatever the
/// stride.
///
/// # Errors
/// As [`Mat::zeros`].
#[inline(never)]
pub fn uniform_dense<D: Stored>(rows: usize, cols: usize, seed: u64) -> Result<Mat<D>> {
    uniform_rows(0..rows, cols, seed)
}

/// Rows `rows` of what [`uniform_dense`] makes with as many or more rows.
///
/// # Errors
/// As [`Mat::zeros`].
#[inline(never)]
pub fn uniform_rows<D: Stored>(rows: Range<usize>, cols: usize, seed: u64) -> Result<Mat<D>> {
    let number = |i: usize, j: usize| ((rows.start + i) * cols + j) as u64;
    Mat::from_fn(rows.len(), cols, |i, j| centred(Stream::new(seed, number(i, j)).bits()))
}

/// A random matrix: each place is nonzero with probability `1 - sparsity`, independently; values uniform in
/// [-0.5, 0.5); columns ascend in each row.
///
/// # Errors
/// [`Error::Argument`] when `sparsity` is not in [0, 1] or a dimension exceeds u32; [`Error::Memory`].
#[inline(never)]
pub fn random_matrix<T: Scalar>(rows: usize, cols: usize, sparsity: f64, seed: u64) -> Result<Csr<T>> {
    random_rows(rows, cols, sparsity, seed, &|_| 0..cols)
}

/// Whether a matrix can have these sizes and this sparsity.
pub(super) fn check_matrix(rows: usize, cols: usize, sparsity: f64) -> Result<()> {
    if !(0.0..=1.0).contains(&sparsity) {
        return Err(Error::argument("sparsity", format!("{sparsity} is not in [0, 1]")));
    }
    if rows.max(cols) > u32::MAX as usize {
        return Err(Error::argument("matrix", format!("{rows} x {cols} exceeds the largest dimension, {}", u32::MAX)));
    }
    Ok(())
}

/// A random matrix: each place of `span(i)`, columns of row i, is nonzero with probability `1 - sparsity`, and no other one.
pub(super) fn random_rows<T: Scalar>(
    rows: usize,
    cols: usize,
    sparsity: f64,
    seed: u64,
    span: &(dyn Fn(usize) -> Range<usize> + Sync),
) -> Result<Csr<T>> {
    check_matrix(rows, cols, sparsity)?;
    let what = format!("random matrix of {rows} x {cols} at {sparsity}");
    let of_nonzeros =
        |nnz: usize| memory::total(&[(rows + 1, size_of::<usize>()), (nnz, size_of::<u32>() + size_of::<T>())]);
    // By the expected number first: drawing them takes as long as they are many.
    let places: f64 = (0..rows).map(|i| span(i).len() as f64).sum();
    memory::ensure(&what, of_nonzeros((places * (1.0 - sparsity)) as usize))?;
    let row = |i: usize| RandomRow::new(span(i), 1.0 - sparsity, Stream::new(seed, i as u64));
    // Twice the same numbers: to count, and to write where the count says.
    let row_ptr = row_pointers(&what, rows, |i| row(i).count())?;
    let nnz = row_ptr[rows];
    memory::ensure(&what, of_nonzeros(nnz))?;
    let mut col_idx: Vec<u32> = memory::zeros(&what, nnz)?;
    let mut left = &mut col_idx[..];
    let mut parts = Vec::new();
    for first in (0..rows).step_by(ROWS_PER_TASK) {
        let end = (first + ROWS_PER_TASK).min(rows);
        let (part, rest) = std::mem::take(&mut left).split_at_mut(row_ptr[end] - row_ptr[first]);
        parts.push((first..end, part));
        left = rest;
    }
    parallel::consume(parts, |(rows, part): (Range<usize>, &mut [u32])| {
        for (slot, j) in part.iter_mut().zip(rows.flat_map(row)) {
            *slot = j;
        }
    });
    let pattern = Pattern::new(rows, cols, row_ptr, col_idx)?;
    // A seed of its own: the streams of `seed` itself made the places.
    let values = uniform_values(pattern.nnz(), Stream::new(seed, u64::MAX).bits());
    Csr::new(pattern, values)
}

/// Row pointers of a matrix `what` whose row i has `count(i)` nonzeros.
pub(super) fn row_pointers(what: &str, rows: usize, count: impl Fn(usize) -> usize + Sync) -> Result<Vec<usize>> {
    let mut row_ptr: Vec<usize> = memory::zeros(what, rows + 1)?;
    parallel::chunks_mut(&mut row_ptr[1..], ROWS_PER_TASK, |task, counts| {
        counts.iter_mut().enumerate().for_each(|(i, slot)| *slot = count(task * ROWS_PER_TASK + i));
    });
    for i in 0..rows {
        row_ptr[i + 1] += row_ptr[i];
    }
    Ok(row_ptr)
}

/// Rows made by one task: some hundred microseconds of work.
const ROWS_PER_TASK: usize = 64;

/// The nonzero columns of one row, found by drawing the gaps between them, which are geometrically distributed.
struct RandomRow {
    /// The first column that is not yet decided.
    next: f64,
    end: f64,
    /// 1 / ln(1 - density); minus infinity when there are no nonzeros, 0 when there is nothing else.
    scale: f64,
    random: Stream,
}

impl RandomRow {
    fn new(span: Range<usize>, density: f64, random: Stream) -> Self {
        // By a function that keeps its digits for small densities.
        Self { next: span.start as f64, end: span.end as f64, scale: 1.0 / (-density).ln_1p(), random }
    }
}

impl Iterator for RandomRow {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // 1 - unit is in (0, 1]: its logarithm is finite. NaN, from 0 times infinity at density 0, ends the row too.
        let gap = ((1.0 - self.random.unit()).ln() * self.scale).floor();
        let j = self.next + gap;
        self.next = j + 1.0;
        (j < self.end).then_some(j as u32)
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
