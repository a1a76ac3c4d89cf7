//! MTTKRP: M_i = sum over the nonzeros x of slice i of x times the product of the other modes' factor rows.
//!
//! The nonzeros lie in fibers that share all coordinates but one. All factors lie in one stack of rows, and coordinates are rows of
//! the stack. A task is an output row with a range of items, as for SpMM with parts of long rows added in order:
//!
//! ```text
//! fibers (slice and fiber algorithms of the MM-CSF paper): an item is a fiber
//!   acc += (product of the fiber's rows but the output's) * sum over its nonzeros of x F[leaf]      the sum is SpMM's loop
//! nonzeros (nonzero algorithm; element- and row-centric on COO): an item is a nonzero
//!   acc += x * product of the rows of its fiber but the output's
//! ```
//!
//! The slice algorithm's items are the fibers in their order; the fiber and nonzero algorithms reach theirs through a list
//! sorted by output row, which makes every team owner of what it adds: no atomics, and the same bits each time.

use sparsimd_gpu_abi::{MttkrpParams, WHOLE};
use spirv_std::glam::UVec4;

use crate::block::{Block, at, put};
use crate::each_register;
use crate::spmm::{Nonzeros, Shape, accumulate};
use crate::team::Place;

/// acc *= the rows of `item` in the table but that of level `skip`.
#[inline(always)]
fn times_rows<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    acc: &mut [V; 4],
    item: u32,
    table: &[u32],
    factors: &[V],
    first: u32,
) {
    let mut level = 0;
    while level < p.levels {
        if level != p.skip {
            let row = at(table, item * p.levels + level) * p.f_stride + p.f_offset;
            each_register!(shape.registers, |R| {
                let j = first + R as u32 * shape.team;
                if j < p.width {
                    acc[R] = acc[R].times(at(factors, row + j));
                }
            });
        }
        level += 1;
    }
}

/// Stores or leaves as a partial result what one lane has of a task.
#[inline(always)]
fn finish<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    task: UVec4,
    first: u32,
    acc: &[V; 4],
    out: &mut [V],
    partial: &mut [V],
) {
    each_register!(shape.registers, |R| {
        let j = first + R as u32 * shape.team;
        if j < p.width {
            if task.w == WHOLE {
                let place = task.x * p.c_stride + p.c_offset + j;
                let sum = at(out, place).plus(acc[R]);
                // Padding must stay zero whatever the values.
                put(out, place, if j + 1 == p.width { sum.first(p.tail) } else { sum });
            } else {
                put(partial, task.w * p.width + j, acc[R]);
            }
        }
    });
}

/// One lane's share of a task whose items are fibers; adds to `out`.
#[inline(always)]
pub fn fibers<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    place: Place,
    tile: u32,
    tasks: &[UVec4],
    order: &[u32],
    ptr: &[u32],
    table: &[u32],
    nonzeros: Nonzeros<'_, V>,
    factors: &[V],
    out: &mut [V],
    partial: &mut [V],
) {
    if place.team >= p.tasks {
        return;
    }
    let task = at(tasks, place.team);
    let first = tile * shape.team * shape.registers + place.lane;
    if first >= p.width {
        return;
    }
    let last = p.f_offset + p.width - 1;
    let mut acc = [V::ZERO; 4];
    let mut i = task.y;
    while i < task.z {
        let fiber = if p.ordered != 0 { at(order, i) } else { i };
        let (start, end) = (at(ptr, fiber), at(ptr, fiber + 1));
        let mut sum = accumulate(shape, nonzeros, factors, p.f_stride, p.f_offset + first, last, start, end);
        times_rows(shape, p, &mut sum, fiber, table, factors, first);
        each_register!(shape.registers, |R| {
            acc[R] = acc[R].plus(sum[R]);
        });
        i += 1;
    }
    finish(shape, p, task, first, &acc, out, partial);
}

/// One lane's share of a task whose items are nonzeros; adds to `out`.
#[inline(always)]
pub fn nonzeros<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    place: Place,
    tile: u32,
    tasks: &[UVec4],
    order: &[u32],
    fiber_of: &[u32],
    table: &[u32],
    val: &[V::Element],
    factors: &[V],
    out: &mut [V],
    partial: &mut [V],
) {
    if place.team >= p.tasks {
        return;
    }
    let task = at(tasks, place.team);
    let first = tile * shape.team * shape.registers + place.lane;
    if first >= p.width {
        return;
    }
    let mut acc = [V::ZERO; 4];
    let mut i = task.y;
    while i < task.z {
        let item = if p.ordered != 0 { at(order, i) } else { i };
        let x = V::splat(at(val, item));
        let mut product = [x; 4];
        times_rows(shape, p, &mut product, at(fiber_of, item), table, factors, first);
        each_register!(shape.registers, |R| {
            acc[R] = acc[R].plus(product[R]);
        });
        i += 1;
    }
    finish(shape, p, task, first, &acc, out, partial);
}
