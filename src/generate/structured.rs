//! Sparse matrices by description: uniform, banded, block-diagonal, and pruned by magnitude as neural networks are.

use std::str::FromStr;

use sparsimd_kernels::Scalar;

use super::matrix::{check_matrix, random_matrix, random_rows, row_pointers};
use super::random::Stream;
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};
use crate::{memory, parallel};

/// How the places of a matrix are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum MatrixModel {
    /// Any place.
    Uniform,
    /// The places (i, j) with |i - j| of at most so many.
    Banded(usize),
    /// Square blocks of so many rows on the diagonal.
    BlockDiagonal(usize),
    /// The places of the largest weights of a dense layer: [`pruned`].
    Pruned,
}

/// A matrix that can be generated.
///
/// Read from text as `uniform:MxK@SPARSITY`, `pruned:MxK@SPARSITY`, `banded:MxK:DISTANCE@SPARSITY` or `blocks:MxK:SIZE@SPARSITY`,
/// where the sparsity of the last two is that inside the band or the blocks, and may be left out: 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatrixSpec {
    /// How places are chosen.
    pub model: MatrixModel,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Share of the model's places that are zero; each is with this probability, or, pruned, the smallest ones are.
    pub sparsity: f64,
}

impl MatrixSpec {
    /// Names of the models, as they begin a description.
    pub const MODELS: [&'static str; 4] = ["uniform", "banded", "blocks", "pruned"];

    /// The matrix, the same for the same `seed` on any number of threads; columns ascend in each row. Values are uniform in
    /// [-0.5, 0.5), or the weights that are left.
    ///
    /// Runs in the rayon pool of the caller: see [`crate::Cpu::install`].
    ///
    /// # Errors
    /// [`Error::Argument`] when the sparsity is not in [0, 1], a block has no rows, or a dimension exceeds u32; [`Error::Memory`].
    #[inline(never)]
    pub fn generate<T: Scalar>(&self, seed: u64) -> Result<Csr<T>> {
        let Self { model, rows, cols, sparsity } = *self;
        match model {
            MatrixModel::Uniform => random_matrix(rows, cols, sparsity, seed),
            MatrixModel::Banded(distance) => random_rows(rows, cols, sparsity, seed, &|i| {
                i.saturating_sub(distance).min(cols)..i.saturating_add(distance).saturating_add(1).min(cols)
            }),
            MatrixModel::BlockDiagonal(0) => Err(Error::argument("blocks", "blocks of 0 rows")),
            MatrixModel::BlockDiagonal(size) => random_rows(rows, cols, sparsity, seed, &|i| {
                let first = i / size * size;
                first.min(cols)..first.saturating_add(size).min(cols)
            }),
            MatrixModel::Pruned => pruned(rows, cols, sparsity, seed),
        }
    }
}

impl FromStr for MatrixSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (model, rest) = text.split_once(':')?;
            let (rest, sparsity) = match rest.split_once('@') {
                Some((rest, sparsity)) => (rest, Some(sparsity.parse().ok()?)),
                None => (rest, None),
            };
            let (dims, extent) = match rest.split_once(':') {
                Some((dims, extent)) => (dims, Some(extent.parse().ok()?)),
                None => (rest, None),
            };
            let (rows, cols) = dims.split_once('x')?;
            let model = match (model, extent) {
                ("uniform", None) => MatrixModel::Uniform,
                ("pruned", None) => MatrixModel::Pruned,
                ("banded", Some(distance)) => MatrixModel::Banded(distance),
                ("blocks", Some(size)) => MatrixModel::BlockDiagonal(size),
                _ => return None,
            };
            let sparsity = sparsity.or(extent.map(|_| 0.0))?;
            Some(Self { model, rows: rows.parse().ok()?, cols: cols.parse().ok()?, sparsity })
        };
        parse().ok_or_else(|| {
            let forms =
                "uniform:MxK@SPARSITY, pruned:MxK@SPARSITY, banded:MxK:DISTANCE@SPARSITY, blocks:MxK:SIZE@SPARSITY";
            Error::argument("generate", format!("{text} is none of {forms}"))
        })
    }
}

/// Standard deviation of the logarithms of the scales of rows and columns. Of four matrices of the Deep Learning Matrix Collection
/// that were pruned by magnitude (ResNet-50 at 50 %, Transformer at 70, 90 and 95 %), the numbers of nonzeros in rows and columns
/// vary as with 0.05 to 0.2.
const SCALE_DEVIATION: f64 = 0.08;

/// A dense layer's weights of which the smallest are pruned: w_ij = r_i c_j g_ij, with g normal, r and c log-normal; the
/// round((1 - sparsity) rows cols) places of largest magnitude stay.
///
/// The magnitudes of all places are held at a time, in 8 bytes each.
///
/// # Errors
/// [`Error::Argument`] when `sparsity` is not in [0, 1] or a dimension exceeds u32; [`Error::Memory`].
#[inline(never)]
pub fn pruned<T: Scalar>(rows: usize, cols: usize, sparsity: f64, seed: u64) -> Result<Csr<T>> {
    check_matrix(rows, cols, sparsity)?;
    let what = format!("pruned matrix of {rows} x {cols}");
    let scales = |count: usize, salt: u64| -> Vec<f64> {
        let seed = Stream::new(seed, salt).bits();
        parallel::map(count, |i| (SCALE_DEVIATION * normal(&mut Stream::new(seed, i as u64))).exp())
    };
    let (of_rows, of_cols) = (scales(rows, u64::MAX), scales(cols, u64::MAX - 1));
    let weight = |i: usize, j: usize| of_rows[i] * of_cols[j] * normal(&mut Stream::new(seed, (i * cols + j) as u64));
    let places = rows.saturating_mul(cols);
    let kept = ((1.0 - sparsity) * places as f64).round() as usize;
    let threshold = if kept == 0 {
        f64::INFINITY
    } else {
        let mut sizes: Vec<f64> = memory::zeros(&what, places)?;
        parallel::chunks_mut(&mut sizes, cols, |i, row| {
            row.iter_mut().enumerate().for_each(|(j, size)| *size = weight(i, j).abs());
        });
        *sizes.select_nth_unstable_by(places - kept, f64::total_cmp).1
    };
    let row = |i: usize| (0..cols).filter(move |&j| weight(i, j).abs() >= threshold);
    let row_ptr = row_pointers(&what, rows, |i| row(i).count())?;
    let nnz = row_ptr[rows];
    memory::ensure(&what, nnz.saturating_mul(2 * (size_of::<u32>() + size_of::<T>())))?;
    let of_row = |i: usize| row(i).map(|j| (j as u32, T::from_f64(weight(i, j)))).collect::<Vec<_>>();
    let (col_idx, values) = parallel::map_tasks(rows, of_row).into_iter().flatten().unzip();
    Csr::new(Pattern::new(rows, cols, row_ptr, col_idx)?, values)
}

/// A normal number, by the method of Box and Muller (1958).
fn normal(stream: &mut Stream) -> f64 {
    // 1 - unit is in (0, 1]: its logarithm is finite.
    let radius = (-2.0 * (1.0 - stream.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * stream.unit()).cos()
}
