//! `--reorder`: orders of rows, columns and modes.

use std::borrow::Cow;
use std::cell::Cell;
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;
use sparsimd::formats::PatternRef;
use sparsimd::reorder::{self, Choice, Permutation, Reordering, permute_modes};
use sparsimd::{CooTensor, Csr, Error, Mat, MatRef, Result, Scalar, Stored};

/// Passes of Lexi-order, as in its paper.
const PASSES: usize = 5;

/// The order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// As it is
    None,
    /// By communities, reverse Cuthill-McKee or as it is, by an estimate of what the announced runs save (operations on matrices)
    Auto,
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
            Self::Auto => return Err(self.is_of("operations: it depends on their runs")),
            Self::Lexi | Self::BfsMcs => return Err(self.is_of("tensors, not of matrices")),
        }))
    }

    /// The orders of the modes of `x`; none to leave them as they are.
    pub fn of_tensor<T: Scalar>(self, x: &CooTensor<T>) -> Result<Option<Vec<Permutation>>> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Lexi => reorder::lexi(x, PASSES)?,
            Self::BfsMcs => reorder::bfs_mcs(x)?,
            Self::Auto => return Err(self.is_of("operations on matrices")),
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
    report: Option<Reordered>,
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

impl<T: Stored> Operand<T> {
    /// In the order that it is read in.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        self.moved.as_ref().unwrap_or(&self.given).as_ref()
    }
}

/// What became of the order.
#[derive(Clone, Debug, Serialize)]
pub struct Reordered {
    /// The order; what was chosen by an estimate.
    order: String,
    /// Of an estimate: rows of dense operands fetched into L2 in a run as it is given, and in the order.
    fetches: Option<[usize; 2]>,
    /// Finding it and permuting the sparse operand, in seconds.
    order_s: f64,
    /// Permuting the dense operands once, and the result once back, in seconds.
    permute_s: f64,
}

impl Reordered {
    /// In words, one line.
    pub fn text(&self) -> String {
        let Self { order, fetches, order_s, permute_s } = self;
        let why = fetches.map(|[before, after]| format!(" (by estimate {after} rows fetched instead of {before})"));
        let why = why.unwrap_or_default();
        format!(
            "order    {order}{why}: {order_s:.3e} s to find and apply, {permute_s:.3e} s for dense operands and results\n"
        )
    }
}

impl<T: Scalar> Ordered<T> {
    /// `given` in `order`, or in the one that `auto` chooses.
    pub fn new(given: Csr<T>, order: Order, auto: impl FnOnce(PatternRef<'_>) -> Result<Choice>) -> Result<Self> {
        let start = Instant::now();
        let pattern = PatternRef::from(given.pattern());
        let (name, fetches, reordering) = match order {
            Order::Auto => {
                let choice = auto(pattern)?;
                (choice.method.to_owned(), Some([choice.before, choice.after]), choice.reordering)
            }
            _ => (order.name(), None, order.of_matrix(pattern)?),
        };
        let apply = |reordering: Reordering| -> Result<Moved<T>> {
            let (pattern, places) = reordering.pattern(given.pattern())?;
            let values = places.iter().map(|&p| given.values()[p]).collect();
            Ok(Moved { matrix: Csr::new(pattern, values)?, reordering, places })
        };
        let moved = reordering.map(apply).transpose()?;
        let report = Reordered { order: name, fetches, order_s: start.elapsed().as_secs_f64(), permute_s: 0.0 };
        Ok(Self { given, moved, report: Some(report).filter(|_| order != Order::None), permute_s: Cell::new(0.0) })
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
        self.report.clone().map(|report| Reordered { permute_s: self.permute_s.get(), ..report })
    }

    /// `given`, a row of which belongs to each row of the matrix.
    pub fn by_rows<D: Stored>(&self, given: Mat<D>) -> Result<Operand<D>> {
        let moved = self.permuted(|reordering| reordering.rows.rows_of_mat(given.as_ref()))?;
        Ok(Operand { given, moved })
    }

    /// `given`, a row of which belongs to each column of the matrix.
    pub fn by_cols<D: Stored>(&self, given: Mat<D>) -> Result<Operand<D>> {
        let moved = self.permuted(|reordering| reordering.cols.rows_of_mat(given.as_ref()))?;
        Ok(Operand { given, moved })
    }

    /// `then` of the dense `result` in the given order of rows.
    pub fn in_given_rows<D: Stored, R>(
        &self,
        result: MatRef<'_, D>,
        then: impl FnOnce(MatRef<'_, D>) -> Result<R>,
    ) -> Result<R> {
        let back = self.permuted(|reordering| reordering.rows.inverse().rows_of_mat(result))?;
        then(back.as_ref().map_or(result, Mat::as_ref))
    }

    /// One value for each nonzero, in the given order.
    pub fn in_given_places<'v, V: Stored>(&self, values: &'v [V]) -> Cow<'v, [V]> {
        let Some(moved) = &self.moved else { return Cow::Borrowed(values) };
        let start = Instant::now();
        let mut given = vec![V::default(); values.len()];
        moved.places.iter().zip(values).for_each(|(&p, &value)| given[p] = value);
        self.add(start);
        Cow::Owned(given)
    }

    fn permuted<D>(&self, permute: impl FnOnce(&Reordering) -> Result<Mat<D>>) -> Result<Option<Mat<D>>> {
        let start = Instant::now();
        let moved = self.moved.as_ref().map(|moved| permute(&moved.reordering)).transpose()?;
        self.add(start);
        Ok(moved)
    }

    fn add(&self, start: Instant) {
        self.permute_s.set(self.permute_s.get() + start.elapsed().as_secs_f64());
    }
}

/// A sparse tensor as it is given, and in the order that it runs in.
pub struct OrderedTensor<'a, T> {
    given: &'a CooTensor<T>,
    moved: Option<(CooTensor<T>, Vec<Permutation>)>,
}

impl<'a, T: Scalar> OrderedTensor<'a, T> {
    /// `given` in `order`.
    pub fn new(given: &'a CooTensor<T>, order: Order) -> Result<Self> {
        let orders = order.of_tensor(given)?;
        let moved = orders.map(|orders| permute_modes(given, &orders).map(|moved| (moved, orders))).transpose()?;
        Ok(Self { given, moved })
    }

    /// As it is given.
    pub fn given(&self) -> &CooTensor<T> {
        self.given
    }

    /// As it runs.
    pub fn tensor(&self) -> &CooTensor<T> {
        self.moved.as_ref().map_or(self.given, |(tensor, _)| tensor)
    }

    /// The factors of all modes as they are read.
    pub fn factors(&self, given: &[Mat<T>]) -> Result<Vec<Mat<T>>> {
        let Some((_, orders)) = &self.moved else { return Ok(given.to_vec()) };
        orders.iter().zip(given).map(|(order, factor)| order.rows_of_mat(factor.as_ref())).collect()
    }

    /// The `result` of `mode` in the given order of rows.
    pub fn in_given_rows(&self, mode: usize, result: Mat<T>) -> Result<Mat<T>> {
        let Some((_, orders)) = &self.moved else { return Ok(result) };
        orders[mode].inverse().rows_of_mat(result.as_ref())
    }

    /// What became of `order`, which took `order_s` seconds to find and apply; `None` for the given one.
    pub fn report(&self, order: Order, order_s: f64, permute_s: f64) -> Option<Reordered> {
        let report = Reordered { order: order.name(), fetches: None, order_s, permute_s };
        self.moved.is_some().then_some(report)
    }
}
