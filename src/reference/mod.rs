//! Naive loops in f64, and how far from them a correct result may be: what every test and `--verify` compare with.
//!
//! No plan, no SIMD, no kernel: rows are merely shared out to the threads of the rayon pool that the caller is in.
//!
//! # The bound
//!
//! With unit roundoff u, adding n products in any order, by fused operations or not, gives
//! ```text
//! |computed - exact| <= n u / (1 - n u)  sum |a_i| |b_i|
//! ```
//! (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 3.1), and each further multiplication or
//! addition on the way adds 1 to n. Here
//! ```text
//! bound = (n + 3) eps sum |a_i| |b_i| + n tiny,     eps = 2 u
//! ```
//! so the constant of n is 1, counted in eps. The 3 are the operations besides the sum: by alpha, by beta, and adding
//! C. The factor two between eps and u pays for 1 / (1 - n u) as long as n u < 1/2, and, where the element type is f64
//! itself, for the reference's own rounding. `tiny`, the smallest normal number, pays for underflow. Where the sum of the
//! magnitudes exceeds the largest number, intermediate results may overflow: anything is accepted, also where the reference
//! itself overflows. An infinite or NaN operand wants an infinite or NaN result where the reference has one.
//!
//! A result that is stored as bf16 or f16 is computed in f32 and rounded once at the end. With that type's unit roundoff v, smallest
//! normal number t and largest number, each element's bound becomes
//! ```text
//! bound + v (|exact| + bound + t)
//! ```
//! and anything is accepted where |exact| + bound exceeds the largest number. What operands store is exact.
//!
//! Operations that compute in stages say how they carry the first stage's error through the second one.

mod heads;
mod matrix;
mod mttkrp;
mod reduce;
mod tensor;

use sparsimd_kernels::{Number, Scalar, Stored, bf16, f16};

use crate::dense::MatRef;
use crate::error::{Error, Result};
use crate::{memory, parallel};

pub use heads::{FusedGradients, Scores, Weighting, fusedmm_gradient, fusedmm_heads};
pub use matrix::{Edge, fusedmm, sddmm, spmm, spmm_t};
pub use mttkrp::mttkrp;
pub use reduce::{reduce, semiring};
pub use tensor::{tew, ttm, ttv};

/// The numbers of an element type that the bound is made of.
#[derive(Clone, Copy, Debug)]
struct Limits {
    eps: f64,
    tiny: f64,
    max: f64,
}

impl Limits {
    fn of<T: Scalar>() -> Self {
        let (tiny, max) = match size_of::<T>() {
            4 => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
            _ => (f64::MIN_POSITIVE, f64::MAX),
        };
        Self { eps: T::EPSILON.to_f64(), tiny, max }
    }

    /// The bound for a sum of `n` products whose magnitudes add up to `magnitude`.
    fn sum(self, n: usize, magnitude: f64) -> f64 {
        if magnitude > self.max {
            return f64::INFINITY;
        }
        (n + 3) as f64 * self.eps * magnitude + n as f64 * self.tiny
    }
}

/// What an operation must give, and how far from it each element may be. Row-major, without padding.
#[derive(Clone, Debug)]
pub struct Expected {
    rows: usize,
    cols: usize,
    values: Vec<f64>,
    bounds: Vec<f64>,
}

/// The largest error of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// In units of the element's bound: correct results are at most 1.
    pub error: f64,
    /// Where.
    pub row: usize,
    /// Where.
    pub col: usize,
}

impl Expected {
    /// Elements that `fill(i, values, bounds)` computes, row by row, both zero before.
    fn by_rows(rows: usize, cols: usize, fill: impl Fn(usize, &mut [f64], &mut [f64]) + Sync) -> Result<Self> {
        let len = rows.saturating_mul(cols);
        let mut values = memory::zeros("reference", len)?;
        let mut bounds = memory::zeros("reference", len)?;
        if cols > 0 {
            let rows = values.chunks_mut(cols).zip(bounds.chunks_mut(cols)).enumerate();
            parallel::consume(rows, |(i, (values, bounds))| fill(i, values, bounds));
        }
        Ok(Self { rows, cols, values, bounds })
    }

    /// The same, where `finite` says whether all operands are finite: an element of the reference that is not has then
    /// overflowed, which an order of the additions of its own would have avoided. Anything is accepted there.
    fn forgive_overflow(mut self, finite: impl FnOnce() -> bool) -> Self {
        if self.values.iter().any(|value| !value.is_finite()) && finite() {
            for (value, bound) in self.values.iter_mut().zip(&mut self.bounds).filter(|(value, _)| !value.is_finite()) {
                (*value, *bound) = (0.0, f64::INFINITY);
            }
        }
        self
    }

    /// The same for results that are rounded to `D` at the end.
    #[inline(never)]
    pub fn stored_as<D: Stored>(mut self) -> Self {
        // Unit roundoff, smallest normal and largest number.
        let (v, tiny, max) = match D::DTYPE {
            "bf16" => (bf16::EPSILON.to_f64() / 2.0, bf16::MIN_POSITIVE.to_f64(), bf16::MAX.to_f64()),
            "f16" => (f16::EPSILON.to_f64() / 2.0, f16::MIN_POSITIVE.to_f64(), f16::MAX.to_f64()),
            _ => return self,
        };
        for (value, bound) in self.values.iter().zip(&mut self.bounds).filter(|(value, _)| value.is_finite()) {
            let largest = value.abs() + *bound;
            *bound = if largest > max { f64::INFINITY } else { *bound + v * (largest + tiny) };
        }
        self
    }

    /// The reference values.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The first `cols` columns. In the operations with dense factors a column of the result depends on the same column of
    /// the factors alone, so one reference serves every number of columns up to its own.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are fewer.
    pub fn first_columns(&self, cols: usize) -> Result<Self> {
        if cols > self.cols {
            return Err(Error::shape("first_columns", format!("{cols} of {}", self.cols)));
        }
        let narrow = |wide: &[f64]| wide.chunks(self.cols.max(1)).flat_map(|row| row[..cols].to_vec()).collect();
        Ok(Self { rows: self.rows, cols, values: narrow(&self.values), bounds: narrow(&self.bounds) })
    }

    /// The largest error of `got`, in units of the bound, and where it is.
    ///
    /// # Errors
    /// [`Error::Shape`] when `got` has other dimensions.
    #[inline(never)]
    pub fn deviation<D: Stored>(&self, got: MatRef<'_, D>) -> Result<Deviation> {
        if (got.rows(), got.cols()) != (self.rows, self.cols) {
            let (rows, cols) = (got.rows(), got.cols());
            return Err(Error::shape("deviation", format!("{rows} x {cols}, expected {} x {}", self.rows, self.cols)));
        }
        let worst = parallel::map_tasks(self.rows, |i| {
            let row = i * self.cols..(i + 1) * self.cols;
            let elements = self.values[row.clone()].iter().zip(&self.bounds[row]).zip(got.row(i));
            let errors = elements.map(|((&value, &bound), got)| error(got.widen().to_f64(), value, bound));
            errors.enumerate().fold(Deviation { error: 0.0, row: i, col: 0 }, |worst, (col, error)| {
                if error > worst.error { Deviation { error, row: i, col } } else { worst }
            })
        });
        // The first of equals.
        let none = Deviation { error: 0.0, row: 0, col: 0 };
        Ok(worst.into_iter().fold(none, |a, b| if b.error > a.error { b } else { a }))
    }

    /// As [`Expected::deviation`], of results that are not a matrix: one row.
    ///
    /// # Errors
    /// [`Error::Shape`] when `got` has another length.
    pub fn deviation_of_values<D: Stored>(&self, got: &[D]) -> Result<Deviation> {
        self.deviation(MatRef::new(got, 1, got.len(), got.len())?)
    }
}

/// Whether all of `values` are finite.
fn finite<D: Stored>(values: &[D]) -> bool {
    values.iter().all(|x| x.widen().to_f64().is_finite())
}

/// Whether all elements of `a` are finite.
fn finite_rows<D: Stored>(a: MatRef<'_, D>) -> bool {
    (0..a.rows()).all(|i| finite(a.row(i)))
}

/// |got - value| / bound; infinite where no bound would help.
fn error(got: f64, value: f64, bound: f64) -> f64 {
    if value.is_nan() {
        return if got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == value || bound == f64::INFINITY && value.is_finite() {
        return 0.0;
    }
    let error = (got - value).abs() / bound;
    if error.is_nan() { f64::INFINITY } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dense::Mat;

    #[test]
    fn an_overflow_of_the_reference_is_no_error_of_the_result() {
        let pattern = crate::Pattern::new(1, 3, vec![0, 3], vec![0, 1, 2]).unwrap();
        let a = crate::Csr::new(pattern, vec![1.7e308, 1.7e308, -1.7e308]).unwrap();
        let (mut b, c) = (Mat::from_vec(3, 1, vec![1.0, 1.0, 1.0]).unwrap(), Mat::zeros(1, 1).unwrap());
        let error = |b: &Mat<f64>, got: f64| {
            let expected = spmm(1.0, &a, b.as_ref(), 0.0, c.as_ref()).unwrap();
            expected.deviation_of_values(&[got]).unwrap().error
        };
        // From the right there is no overflow.
        assert_eq!((error(&b, 1.7e308), error(&b, f64::INFINITY)), (0.0, 0.0));
        b.row_mut(0)[0] = f64::INFINITY;
        assert_eq!((error(&b, f64::INFINITY), error(&b, 1.7e308)), (0.0, f64::INFINITY));
    }
}
