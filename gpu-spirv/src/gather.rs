//! Gather: `out_p = x[order_p]`, and 0 where the order has [`NOTHING`]: the values of A^T, or of A by panels, from those of A.

use sparsimd_gpu_abi::NOTHING;

use crate::block::{Element, at, put};

/// One element.
#[inline(always)]
pub fn body<E: Element>(n: u32, i: u32, order: &[u32], x: &[E], out: &mut [E]) {
    if i < n {
        let from = at(order, i);
        put(out, i, if from == NOTHING { E::ZERO } else { at(x, from) });
    }
}
