//! Gather: `out_p = x[order_p]`: the values of A^T from those of A.

use crate::block::{Element, at, put};

/// One element.
#[inline(always)]
pub fn body<E: Element>(n: u32, i: u32, order: &[u32], x: &[E], out: &mut [E]) {
    if i < n {
        put(out, i, at(x, at(order, i)));
    }
}
