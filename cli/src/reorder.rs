//! `--reorder`: orders of rows, columns and modes.

use std::borrow::Cow;
use std::cell::Cell;
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::formats::PatternRef;
use sparsimd::reorder::{self, Permutation, Reordering};
use sparsimd::{CooTensor, Csr, Error, Mat, MatRef, Result, Scalar};

/// Passes of Lexi-order, as in its paper.
const PASSES: usize = 5;

/// The order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// As it is
    None,
    /// Reverse Cuthill-McKee (matrices)
    Rcm,
    /// By degree, descending (matrices)
    Degree,
    /// By communities, Rabbit Order (matrices)
    Rabbit,
    /// Lexi-order (tensors)
    Lexi,
    /// Maximum cardinality search (tensors)
    BfsMcs,
}

impl Order {
    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The orders of the rows and columns of `a`; none to leave them as they are.
    pub fn of_matrix(self, a: PatternRef<'_>) -> Result<Option<Reordering>> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Rcm => reorder::rcm(a)?,
            Self::Degree => reorder::degree(a)?,
            Self::Rabbit => reorder::rabbit(a)?,
            Self::Lexi | Self::BfsMcs => return Err(self.is_of("tensors, not of matrices")),
        }))
    }

    /// The orders of the modes of `x`; none to leave them as they are.
    pub fn of_tensor<T: Scalar>(self, x: &CooTensor<T>) -> Result<Option<Vec<Permutation>>> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Lexi => reorder::lexi(x, PASSES)?,
            Self::BfsMcs => reorder::bfs_mcs(x)?,
            Self::Rcm | Self::Degree | Self::Rabbit => return Err(self.is_of("matrices, not of tensors")),
        }))
    }

    fn is_of(self, what: &str) -> Error {
        Error::Argument { name: "reorder", detail: format!("{} is an order of {what}", self.name()) }
    }
}

/// A sparse matrix as it is given, and in the order that it runs in.
pub struct Ordered<T> {
    given: Csr<T>,
    moved: Option<Moved<T>>,
    order: Order,
    order_s: f64,
    permute_s: Cell<f64>,
}

/// A matrix in another order.
struct Moved<T> {
    matrix: Csr<T>,
    reordering: Reordering,
    /// Of each nonzero: its place in the given matrix.
    places: Vec<usize>,
}

/// A dense operand as it is given, and in the order that it is read in.
pub struct Operand<T> {
    pub given: Mat<T>,
    moved: Option<Mat<T>>,
}

impl<T: Scalar> Operand<T> {
    /// In the order that it is read in.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        self.moved.as_ref().unwrap_or(&self.given).as_ref()
    }
}

/// What became of the order.
#[derive(Clone, Debug, Serialize)]
pub struct Reordered {
    /// The order.
    order: String,
    /// Finding it and permuting the sparse operand, in seconds.
    order_s: f64,
    /// Permuting the dense operands once, and the result once back, in seconds.
    permute_s: f64,
}

impl Reordered {
    /// In words, one line.
    pub fn text(&self) -> String {
        let Self { order, order_s, permute_s } = self;
        format!(
            "order    {order}: {order_s:.3e} s to find and apply, {permute_s:.3e} s for dense operands and results\n"
        )
    }
}

impl<T: Scalar> Ordered<T> {
    /// `given` in `order`.
    pub fn new(given: Csr<T>, order: Order) -> Result<Self> {
        let start = Instant::now();
        let apply = |reordering: Reordering| -> Result<Moved<T>> {
            let (pattern, places) = reordering.pattern(given.pattern())?;
            let values = places.iter().map(|&p| given.values()[p]).collect();
            Ok(Moved { matrix: Csr::new(pattern, values)?, reordering, places })
        };
        let moved = order.of_matrix(given.pattern().into())?.map(apply).transpose()?;
        Ok(Self { given, moved, order, order_s: start.elapsed().as_secs_f64(), permute_s: Cell::new(0.0) })
    }

    /// As it is given.
    pub fn given(&self) -> &Csr<T> {
        &self.given
    }

    /// As it runs.
    pub fn matrix(&self) -> &Csr<T> {
        self.moved.as_ref().map_or(&self.given, |moved| &moved.matrix)
    }

    /// What became of the order; `None` where nobody asked for one.
    pub fn report(&self) -> Option<Reordered> {
        let report =
            |order: Order| Reordered { order: order.name(), order_s: self.order_s, permute_s: self.permute_s.get() };
        Some(self.order).filter(|&order| order != Order::None).map(report)
    }

    /// `given`, a row of which belongs to each row of the matrix.
    pub fn by_rows(&self, given: Mat<T>) -> Result<Operand<T>> {
        let moved = self.permuted(|reordering| reordering.rows.rows_of_mat(given.as_ref()))?;
        Ok(Operand { given, moved })
    }

    /// `given`, a row of which belongs to each column of the matrix.
    pub fn by_cols(&self, given: Mat<T>) -> Result<Operand<T>> {
        let moved = self.permuted(|reordering| reordering.cols.rows_of_mat(given.as_ref()))?;
        Ok(Operand { given, moved })
    }

    /// `then` of the dense `result` in the given order of rows.
    pub fn in_given_rows<R>(&self, result: MatRef<'_, T>, then: impl FnOnce(MatRef<'_, T>) -> Result<R>) -> Result<R> {
        let back = self.permuted(|reordering| reordering.rows.inverse().rows_of_mat(result))?;
        then(back.as_ref().map_or(result, Mat::as_ref))
    }

    /// One value for each nonzero, in the given order.
    pub fn in_given_places<'v>(&self, values: &'v [T]) -> Cow<'v, [T]> {
        let Some(moved) = &self.moved else { return Cow::Borrowed(values) };
        let start = Instant::now();
        let mut given = vec![T::ZERO; values.len()];
        moved.places.iter().zip(values).for_each(|(&p, &value)| given[p] = value);
        self.add(start);
        Cow::Owned(given)
    }

    fn permuted(&self, permute: impl FnOnce(&Reordering) -> Result<Mat<T>>) -> Result<Option<Mat<T>>> {
        let start = Instant::now();
        let moved = self.moved.as_ref().map(|moved| permute(&moved.reordering)).transpose()?;
        self.add(start);
        Ok(moved)
    }

    fn add(&self, start: Instant) {
        self.permute_s.set(self.permute_s.get() + start.elapsed().as_secs_f64());
    }
}
