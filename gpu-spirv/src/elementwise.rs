//! TEW on equal patterns and TS: z_p = x_p o y_p, or x_p o s.

use sparsimd_gpu_abi::operator::{ADD, MUL, SUB};

use crate::block::{Element, at, put};

/// x o y.
#[inline(always)]
pub fn apply<E: Element>(operator: u32, x: E, y: E) -> E {
    if operator == ADD {
        x + y
    } else if operator == SUB {
        x - y
    } else if operator == MUL {
        x * y
    } else {
        x.over(y)
    }
}

/// One element. `scalar` is used instead of `y` unless `pairwise`.
#[inline(always)]
pub fn body<E: Element>(operator: u32, pairwise: bool, count: u32, i: u32, scalar: E, x: &[E], y: &[E], z: &mut [E]) {
    if i < count {
        let other = if pairwise { at(y, i) } else { scalar };
        put(z, i, apply(operator, at(x, i), other));
    }
}
