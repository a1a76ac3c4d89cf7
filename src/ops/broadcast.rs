//! TEW of tensors of different shapes: the smaller one is repeated along the modes in which it has length 1.
//!
//! Shapes are aligned at their last modes, and missing ones have length 1, as in NumPy. PASTA (Li et al. 2020, section II) names
//! the operation on tensors of different orders and shapes, and leaves open what it gives; here the sparse pattern follows from
//! what absent entries, which are 0, give.

use sparsimd_kernels::{Arithmetic, Scalar};

use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::{memory, parallel};

/// The shape that both broadcast to.
///
/// # Errors
/// [`Error::Shape`] when there is none.
pub(super) fn common_dims(x: &[usize], z: &[usize]) -> Result<Vec<usize>> {
    let order = x.len().max(z.len());
    let at = |dims: &[usize], m: usize| (m + dims.len()).checked_sub(order).map_or(1, |m| dims[m]);
    let mode = |m| match (at(x, m), at(z, m)) {
        (a, b) if a == b => Ok(a),
        (1, b) => Ok(b),
        (a, 1) => Ok(a),
        _ => Err(Error::shape("tew", format!("X is {x:?}, Z is {z:?}: mode {m} differs, and is 1 in neither"))),
    };
    (0..order).map(mode).collect()
}

/// `t` repeated to `dims`, which it broadcasts to.
///
/// # Errors
/// [`Error::Memory`].
pub(super) fn repeated<T: Scalar>(t: &CooTensor<T>, dims: &[usize]) -> Result<CooTensor<T>> {
    let missing = dims.len() - t.order();
    let source = |m: usize| m.checked_sub(missing).filter(|&m| t.dims()[m] == dims[m + missing]);
    // Where the repetitions of a mode are among all those of an entry: stride and length.
    let mut copies = 1usize;
    let mut strides = vec![(0, 1); dims.len()];
    for m in (0..dims.len()).rev().filter(|&m| source(m).is_none()) {
        strides[m] = (copies, dims[m]);
        copies = copies.saturating_mul(dims[m]);
    }
    let each = dims.len() * size_of::<u32>() + size_of::<T>();
    memory::ensure("repeating the smaller tensor", memory::total(&[(t.nnz().saturating_mul(copies), each)]))?;
    let n = t.nnz() * copies;
    let coords = (0..dims.len()).map(|m| match source(m) {
        Some(own) => parallel::map(n, |q| t.coords(own)[q / copies]),
        None => parallel::map(n, |q| ((q % copies) / strides[m].0 % strides[m].1) as u32),
    });
    let values = parallel::map(n, |q| t.values()[q / copies]);
    Ok(CooTensor::from_checked(dims.to_vec(), coords.collect(), values))
}

/// X op Z for a product, or a quotient, where X has the result's shape and Z is smaller: each entry of X looks its partner up, and
/// Z is not repeated.
///
/// # Errors
/// [`Error::Structure`] when an entry occurs twice in a tensor; [`Error::Argument`] when an entry of X would be divided by one that
/// Z does not store.
pub(super) fn looked_up<T: Scalar>(op: Arithmetic, x: &CooTensor<T>, z: &CooTensor<T>) -> Result<CooTensor<T>> {
    x.check_unique()?;
    let natural: Vec<usize> = (0..z.order()).collect();
    let mut z = z.clone();
    z.sort(&natural)?;
    z.check_sorted_unique()?;
    let missing = x.order() - z.order();
    let partner = |p: usize| {
        let place = |m: usize| if z.dims()[m] == 1 { 0 } else { x.coords(m + missing)[p] };
        let before = |q: usize| {
            let mut modes = (0..z.order()).map(|m| z.coords(m)[q].cmp(&place(m)));
            modes.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        };
        let q = crate::cut::first(0..z.nnz(), |q| before(q).is_ge());
        (q < z.nnz() && before(q).is_eq()).then_some(q)
    };
    let partners = parallel::map(x.nnz(), partner);
    if op == Arithmetic::Div
        && let Some(p) = partners.iter().position(Option::is_none)
    {
        let place = x.places().place(p);
        return Err(Error::argument("z", format!("X has an entry at {place:?}, Z has none: division by 0")));
    }
    let kept: Vec<(usize, usize)> = partners.iter().enumerate().filter_map(|(p, q)| q.map(|q| (p, q))).collect();
    let values = parallel::map(kept.len(), |at| {
        let (a, b) = (x.values()[kept[at].0], z.values()[kept[at].1]);
        if op == Arithmetic::Div { a / b } else { a * b }
    });
    let coords = (0..x.order()).map(|m| parallel::map(kept.len(), |at| x.coords(m)[kept[at].0]));
    Ok(CooTensor::from_checked(x.dims().to_vec(), coords.collect(), values))
}
