//! TTM and TTV.

use sparsimd_kernels::Scalar;

use super::{Expected, Limits, finite, finite_rows};
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
#[inline(never)]
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
    // Nonzeros and rows in one and the same order of places: a walk along both finds the nonzeros of every row.
    let of_nonzero = |&p: &usize| others.iter().map(move |&m| x.coords(m)[p]);
    let of_row = |&row: &usize| places.iter().map(move |indices| indices[row]);
    let mut nonzeros: Vec<usize> = (0..x.nnz()).collect();
    nonzeros.sort_by(|p, q| of_nonzero(p).cmp(of_nonzero(q)));
    let mut ascending: Vec<usize> = (0..rows).collect();
    ascending.sort_unstable_by(|p, q| of_row(p).cmp(of_row(q)));
    if ascending.windows(2).any(|pair| of_row(&pair[0]).eq(of_row(&pair[1]))) {
        return Err(Error::shape(OP, "a place occurs twice"));
    }
    let mut fibers: Vec<&[usize]> = vec![&[]; rows];
    let mut left = &nonzeros[..];
    for row in ascending {
        let length = left.iter().take_while(|p| of_nonzero(p).eq(of_row(&row))).count();
        (fibers[row], left) = left.split_at(length);
    }
    if let Some(p) = left.first() {
        let place: Vec<u32> = of_nonzero(p).collect();
        return Err(Error::shape(OP, format!("the fiber at {place:?} is missing")));
    }
    let limits = Limits::of::<T>();
    let expected = Expected::by_rows(rows, u.cols(), |row, values, bounds| {
        for &p in fibers[row] {
            let (x, u) = (x.values()[p].to_f64(), u.row(x.coords(mode)[p] as usize));
            for ((value, magnitude), &u) in values.iter_mut().zip(&mut *bounds).zip(u) {
                *value += x * u.to_f64();
                *magnitude += (x * u.to_f64()).abs();
            }
        }
        bounds.iter_mut().for_each(|b| *b = limits.sum(fibers[row].len(), *b));
    })?;
    Ok(expected.forgive_overflow(|| finite(x.values()) && finite_rows(u)))
}

/// y = X x_n v, n being `mode`, one row of one column for each fiber; see [`ttm`].
///
/// # Errors
/// As [`ttm`].
#[inline(never)]
pub fn ttv<T: Scalar>(x: &CooTensor<T>, mode: usize, v: &[T], places: &[Vec<u32>]) -> Result<Expected> {
    ttm(x, mode, MatRef::new(v, v.len(), 1, 1)?, places)
}
