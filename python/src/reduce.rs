//! SpMM with other reductions than the sum, over semirings, and of integers.

use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use sparsimd::ops::Reduction;
use sparsimd::semiring::{BuiltIn, MAX_TIMES, MIN_TIMES, PLUS_TIMES};

use crate::array::{Element, Value};
use crate::error::value;
use crate::ops::{Operands, applied};
use crate::sparse::{Any, Given, Source, Typed, each};

/// What becomes of the terms of a row.
#[derive(Clone, Copy)]
pub enum Rule {
    Reduction(Reduction),
    Semiring(BuiltIn),
}

/// Reductions by name.
const REDUCTIONS: [(&str, Reduction); 4] =
    [("sum", Reduction::Sum), ("mean", Reduction::Mean), ("max", Reduction::Max), ("min", Reduction::Min)];

impl Rule {
    pub const SUM: Self = Self::Reduction(Reduction::Sum);

    /// From the arguments `reduce` and `semiring`.
    pub fn parse(reduce: &str, semiring: Option<&str>) -> PyResult<Self> {
        let Some(semiring) = semiring else { return Ok(Self::Reduction(find("reduce", reduce, &REDUCTIONS)?)) };
        if reduce != "sum" {
            return Err(value("reduce", format!("{reduce:?} with a semiring, which has an addition of its own")));
        }
        Ok(Self::Semiring(find("semiring", semiring, BuiltIn::NAMED)?))
    }
}

/// What `name` stands for among `all`.
pub fn find<V: Copy>(argument: &str, name: &str, all: &[(&str, V)]) -> PyResult<V> {
    let found = all.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
    found.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|&(known, _)| known).collect();
        value(argument, format!("{name:?} is none of {}", known.join(", ")))
    })
}

/// The reduction of the rows of A, or A^T, with X.
pub fn reduced<'py>(
    a: &Given<'py>,
    transposed: bool,
    x: &Bound<'py, PyAny>,
    rule: Rule,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let operands = (a.shape(), transposed, x, out, copy);
    if let Given::Matrix(matrix) = a {
        match matrix.get().values() {
            Any::I32(typed) => return of_integers(typed, rule, operands),
            Any::I64(typed) => return of_integers(typed, rule, operands),
            _ => (),
        }
    }
    each!(a.source()?, source => match rule {
        Rule::Semiring(semiring) => over(source, semiring, operands),
        Rule::Reduction(reduction) => by_reduction(source, reduction, operands),
    })
}

/// Sums, maxima and minima are of the integers themselves, and wrap around; the mean is float64, as numpy's.
fn of_integers<'py, T: Value>(
    matrix: &Typed<T>,
    rule: Rule,
    operands: Operands<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let a = Source::Matrix(matrix);
    let semiring = match rule {
        Rule::Semiring(semiring) => return over(a, semiring, operands),
        Rule::Reduction(Reduction::Sum) => return over(a, PLUS_TIMES, operands),
        Rule::Reduction(Reduction::Mean) => {
            let widened = matrix.data.bind(operands.2.py()).call_method1("astype", ("float64",))?;
            let widened = Typed::<f64>::new(Arc::clone(&matrix.structure), widened.cast()?)?;
            return by_reduction(Source::Matrix(&widened), Reduction::Mean, operands);
        }
        Rule::Reduction(Reduction::Max) => MAX_TIMES,
        Rule::Reduction(Reduction::Min) => MIN_TIMES,
    };
    applied::<T, T>(a, operands, |cpu, a, x, mut c| {
        cpu.spmm_semiring(semiring, a, x, c.reborrow())?;
        // Not the neutral element, which would be the least or the largest integer.
        for (i, nonzeros) in matrix.structure.pattern.row_ptr().windows(2).enumerate() {
            if nonzeros[0] == nonzeros[1] {
                c.reborrow().into_row(i).fill(T::ZERO);
            }
        }
        Ok(())
    })
}

fn over<'py, T: Value>(
    a: Source<'_, T>,
    semiring: BuiltIn,
    operands: Operands<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    applied::<T, T>(a, operands, |cpu, a, x, c| cpu.spmm_semiring(semiring, a, x, c))
}

fn by_reduction<'py, T: Element>(
    a: Source<'_, T>,
    reduction: Reduction,
    operands: Operands<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    applied::<T, T>(a, operands, |cpu, a, x, c| cpu.spmm_reduce(reduction, a, x, c))
}

/// The maximum or minimum, and the positions of the nonzeros that it comes from.
pub fn with_positions<'py>(
    a: &Given<'py>,
    x: &Bound<'py, PyAny>,
    rule: Rule,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let Rule::Reduction(reduction @ (Reduction::Max | Reduction::Min)) = rule else {
        return Err(value("return_positions", "is for reduce=\"max\" and reduce=\"min\""));
    };
    if i32::try_from(a.nnz()).is_err() {
        return Err(value("return_positions", format!("{} nonzeros; positions have 32 bits, with a sign", a.nnz())));
    }
    let operands = (a.shape(), false, x, out, copy);
    let (result, positions) = each!(a.source()?, source => positions_of(source, reduction, operands))?;
    let positions = PyArray1::from_vec(x.py(), positions).call_method1("reshape", (result.getattr("shape")?,))?;
    Ok((result, positions).into_pyobject(x.py())?.into_any())
}

fn positions_of<'py, T: Element>(
    a: Source<'_, T>,
    reduction: Reduction,
    operands: Operands<'_, 'py>,
) -> PyResult<(Bound<'py, PyAny>, Vec<i32>)> {
    let mut positions = Vec::new();
    let result = applied::<T, T>(a, operands, |cpu, a, x, c| {
        positions.resize(c.rows() * c.cols(), u32::MAX);
        cpu.spmm_reduce_positions(reduction, a, x, c, &mut positions)
    })?;
    // The largest unsigned number, of no nonzero, becomes -1.
    Ok((result, positions.into_iter().map(|position| position as i32).collect()))
}
