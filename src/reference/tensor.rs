//! TTM and TTV.

use std::collections::{HashMap, HashSet};

use sparsimd_kernels::{Arithmetic, Number, Scalar, Stored};

use super::{Expected, Limits, finite, finite_rows};
use crate::dense::MatRef;
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// Y = X x_n U, n being `mode`: row p is the fiber at the coordinates `places[..][p]` of the other modes, ascending.
///
/// `u` is I_n x R. It may be narrow: the result is then rounded to what it stores.
///
/// # Errors
/// [`Error::Argument`] when there is no such mode; [`Error::Shape`] when `u` has not I_n rows, or `places` are not those of all the
/// fibers that have a nonzero, each once.
#[inline(never)]
pub fn ttm<D: Stored>(
    x: &CooTensor<D::Scalar>,
    mode: usize,
    u: MatRef<'_, D>,
    places: &[Vec<u32>],
) -> Result<Expected> {
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
    let limits = Limits::of::<D::Scalar>();
    let expected = Expected::by_rows(rows, u.cols(), |row, values, bounds| {
        for &p in fibers[row] {
            let (x, u) = (x.values()[p].to_f64(), u.row(x.coords(mode)[p] as usize));
            for ((value, magnitude), &u) in values.iter_mut().zip(&mut *bounds).zip(u) {
                let product = x * u.widen().to_f64();
                *value += product;
                *magnitude += product.abs();
            }
        }
        bounds.iter_mut().for_each(|b| *b = limits.sum(fibers[row].len(), *b));
    })?;
    Ok(expected.stored_as::<D>().forgive_overflow(|| finite(x.values()) && finite_rows(u)))
}

/// y = X x_n v, n being `mode`, one row of one column for each fiber; see [`ttm`].
///
/// # Errors
/// As [`ttm`].
#[inline(never)]
pub fn ttv<T: Scalar>(x: &CooTensor<T>, mode: usize, v: &[T], places: &[Vec<u32>]) -> Result<Expected> {
    ttm(x, mode, MatRef::new(v, v.len(), 1, 1)?, places)
}

/// How far Y is from X op Z, in units of the bound of one rounding; infinite where an entry is missing or too many. A smaller
/// tensor counts as repeated along the modes in which it has length 1 ([`Cpu::tew`](crate::Cpu::tew)).
///
/// # Errors
/// [`Error::Shape`] when Y has not the shape of the result.
#[inline(never)]
pub fn tew<T: Scalar>(op: Arithmetic, x: &CooTensor<T>, z: &CooTensor<T>, y: &CooTensor<T>) -> Result<f64> {
    let order = y.order();
    let dim = |t: &CooTensor<T>, m: usize| (m + t.order()).checked_sub(order).map_or(1, |m| t.dims()[m]);
    let fits = |t: &CooTensor<T>| t.order() <= order && (0..order).all(|m| [1, y.dims()[m]].contains(&dim(t, m)));
    if !fits(x) || !fits(z) {
        return Err(Error::shape("reference::tew", format!("{:?} and {:?} for {:?}", x.dims(), z.dims(), y.dims())));
    }
    let places = |t: &CooTensor<T>| (0..t.nnz()).map(|p| t.places().place(p)).collect::<Vec<_>>();
    let entries = |t| places(t).into_iter().zip(t.values().iter().map(|v| v.to_f64())).collect::<HashMap<_, _>>();
    let (of_x, of_z) = (entries(x), entries(z));
    let own = |t: &CooTensor<T>, place: &[u32]| {
        let own = place[order - t.order()..].iter().zip(t.dims());
        own.map(|(&at, &dim)| if dim == 1 { 0 } else { at }).collect::<Vec<_>>()
    };
    // Every repetition of every entry of X that has a partner.
    let mut both = 0;
    for place in places(x) {
        let mut repeated = vec![Vec::new()];
        for m in 0..order {
            let at = (m + x.order()).checked_sub(order).map_or(0, |m| place[m]);
            let range = if dim(x, m) == y.dims()[m] { at..at + 1 } else { 0..y.dims()[m] as u32 };
            repeated = repeated.iter().flat_map(|p| range.clone().map(move |i| [&p[..], &[i]].concat())).collect();
        }
        both += repeated.iter().filter(|place| of_z.contains_key(&own(z, place))).count();
    }
    let all =
        |t: &CooTensor<T>| (0..order).filter(|&m| dim(t, m) != y.dims()[m]).map(|m| y.dims()[m]).product::<usize>();
    let sum = matches!(op, Arithmetic::Add | Arithmetic::Sub);
    let expected = if sum { x.nnz() * all(x) + z.nnz() * all(z) - both } else { both };
    let places = places(y);
    if places.len() != expected || places.iter().collect::<HashSet<_>>().len() != expected {
        return Ok(f64::INFINITY);
    }
    let mut worst = 0.0f64;
    for (place, got) in places.iter().zip(y.values()) {
        let (a, b) = (of_x.get(&own(x, place)), of_z.get(&own(z, place)));
        if a.is_none() && b.is_none() || !sum && (a.is_none() || b.is_none()) {
            return Ok(f64::INFINITY);
        }
        let (a, b) = (a.copied().unwrap_or(0.0), b.copied().unwrap_or(0.0));
        let exact = match op {
            Arithmetic::Add => a + b,
            Arithmetic::Sub => a - b,
            Arithmetic::Mul => a * b,
            Arithmetic::Div => a / b,
        };
        let limits = Limits::of::<T>();
        worst = worst.max(super::error(got.to_f64(), exact, limits.eps * exact.abs() + limits.tiny));
    }
    Ok(worst)
}
