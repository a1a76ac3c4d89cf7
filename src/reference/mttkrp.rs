//! MTTKRP.

use sparsimd_kernels::{Number, Stored};

use super::{Expected, Limits, finite, finite_rows};
use crate::dense::{MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::CooTensor;

/// `out[i_mode, :] = sum over the nonzeros of x * prod_{m != mode} factors[m][i_m, :]`. The factor of `mode` is not
/// read. Factors may be narrow: what they store is exact, and the result is not rounded to it.
///
/// # Errors
/// [`Error::Argument`] for a mode out of range, [`Error::Shape`] for factors that do not fit.
#[inline(never)]
pub fn mttkrp<D: Stored>(tensor: &CooTensor<D::Scalar>, factors: &[MatRef<'_, D>], mode: usize) -> Result<Expected> {
    let (op, order) = ("reference::mttkrp", tensor.order());
    if mode >= order {
        return Err(Error::argument("mode", format!("{mode} of a tensor of order {order}")));
    }
    let rank = factors.first().map_or(0, MatRef::cols);
    if factors.len() != order {
        return Err(Error::shape(op, format!("{} factors for a tensor of order {order}", factors.len())));
    }
    for (m, factor) in factors.iter().enumerate().filter(|&(m, _)| m != mode) {
        check_shape(op, "a factor", factor.shape(), (tensor.dims()[m], rank))?;
    }
    // The entries of each row of the output.
    let mut of_row = vec![Vec::new(); tensor.dims()[mode]];
    for (p, &i) in tensor.coords(mode).iter().enumerate() {
        of_row[i as usize].push(p);
    }
    let limits = Limits::of::<D::Scalar>();
    let expected = Expected::by_rows(tensor.dims()[mode], rank, |i, values, bounds| {
        for &p in &of_row[i] {
            for (r, (value, bound)) in values.iter_mut().zip(&mut *bounds).enumerate() {
                let rows = (0..order).filter(|&m| m != mode).map(|m| factors[m].row(tensor.coords(m)[p] as usize)[r]);
                let product = rows.fold(tensor.values()[p].to_f64(), |product, a| product * a.widen().to_f64());
                *value += product;
                *bound += product.abs();
            }
        }
        // Each product has order - 1 multiplications.
        bounds.iter_mut().for_each(|bound| *bound = limits.sum(of_row[i].len() + order, *bound));
    })?;
    let others = || factors.iter().enumerate().filter(|&(m, _)| m != mode);
    Ok(expected.forgive_overflow(|| finite(tensor.values()) && others().all(|(_, factor)| finite_rows(*factor))))
}
