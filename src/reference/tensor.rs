//! TTM and TTV.

use std::collections::HashMap;

use sparsimd_kernels::Scalar;

use super::{Expected, Limits};
use crate::dense::MatRef;
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// Y = X x_n U, n being `mode`: row p is the fiber at the coordinates `places[..][p]` of the other modes, ascending.
///
/// `u` is I_n x R.
///
/// # Errors
/// [`Error::Argument`] when there is no such mode; [`Error::Shape`] when `u` has not I_n rows, or `places` are not those of all the
/// fibers that have a nonzero, each once.
pub fn ttm<T: Scalar>(x: &CooTensor<T>, mode: usize, u: MatRef<'_, T>, places: &[Vec<u32>]) -> Result<Expected> {
    const OP: &str = "reference::ttm";
    if mode >= x.order() {
        return Err(Error::argument("mode", format!("{mode} is not below the tensor's order, {}", x.order())));
    }
    if u.rows() != x.dims()[mode] || places.len() + 1 != x.order() {
        let detail =
            format!("U has {} rows for a mode of {}; {} modes of places", u.rows(), x.dims()[mode], places.len());
        return Err(Error::shape(OP, detail));
    }
    let others: Vec<usize> = (0..x.order()).filter(|&m| m != mode).collect();
    // A tensor of order 1 has one fiber, at no coordinates.
    let rows = places.first().map_or(usize::from(x.nnz() > 0), Vec::len);
    let place = |p: usize| -> Vec<u32> { places.iter().map(|indices| indices[p]).collect() };
    let row_of: HashMap<Vec<u32>, usize> = (0..rows).map(|p| (place(p), p)).collect();
    if row_of.len() != rows {
        return Err(Error::shape(OP, "a place occurs twice"));
    }
    let mut fibers: Vec<Vec<usize>> = vec![Vec::new(); rows];
    for p in 0..x.nnz() {
        let place: Vec<u32> = others.iter().map(|&m| x.coords(m)[p]).collect();
        match row_of.get(&place) {
            Some(&row) => fibers[row].push(p),
            None => return Err(Error::shape(OP, format!("the fiber at {place:?} is missing"))),
        }
    }
    let limits = Limits::of::<T>();
    Ok(Expected::by_rows(rows, u.cols(), |row, values, bounds| {
        for &p in &fibers[row] {
            let (x, u) = (x.values()[p].to_f64(), u.row(x.coords(mode)[p] as usize));
            for ((value, magnitude), &u) in values.iter_mut().zip(&mut *bounds).zip(u) {
                *value += x * u.to_f64();
                *magnitude += (x * u.to_f64()).abs();
            }
        }
        bounds.iter_mut().for_each(|b| *b = limits.sum(fibers[row].len(), *b));
    }))
}

/// y = X x_n v, n being `mode`, one row of one column for each fiber; see [`ttm`].
///
/// # Errors
/// As [`ttm`].
pub fn ttv<T: Scalar>(x: &CooTensor<T>, mode: usize, v: &[T], places: &[Vec<u32>]) -> Result<Expected> {
    ttm(x, mode, MatRef::new(v, v.len(), 1, 1)?, places)
}
