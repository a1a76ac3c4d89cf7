//! MTTKRP: M_i = sum over the nonzeros x of slice i of x times the product of the other modes' factor rows.
//!
//! The nonzeros lie in fibers that share all coordinates but one. All factors lie in one stack of rows, and coordinates
//! are rows of the stack. A task is an output row with a range of items, as for SpMM with parts of long rows added in
//! order:
//!
//! ```text
//! fibers (slice and fiber algorithms of the MM-CSF paper): an item is a fiber
//!   acc += (product of the fiber's rows but the output's) * sum over its nonzeros of x F[leaf]      the sum is SpMM's loop
//! nonzeros (nonzero algorithm; element- and row-centric on COO): an item is a nonzero
//!   acc += x * product of the rows of its fiber but the output's
//! atomic (an option; coordinates only): a task is a run of nonzeros in the order in which they are stored
//!   acc += x * product of the rows of its nonzero but the output's; when the output's row changes, acc is added to it
//!   atomically
//! blocks (element algorithm on HiCOO): an item is a block, all of a task's blocks have the same 128 rows of the output
//!   rows of the block's first coordinates, once; for its nonzeros, by offsets of 8 bits from these rows
//!     acc += x * product of the rows but the output's; when the output's row changes, acc is added to it
//! ```
//!
//! The slice algorithm's items are the fibers in their order; the fiber and nonzero algorithms reach theirs through a list
//! sorted by output row, which makes every team owner of what it adds: no atomics, and the same bits each time. The
//! atomic one needs no list for any mode, and gives sums in whatever order the device runs its teams. A team that has blocks owns their
//! 128 rows, or a copy of them: it adds to memory as it goes, and nobody else does.

use sparsimd_gpu_abi::{BLOCK_SIDE, MttkrpParams, RUN, WHOLE};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at, put};
use crate::each_register;
use crate::spmm::{Nonzeros, RowItem, Shape, accumulate, row_item, store_sums};
use crate::team::{Place, Team};

/// acc *= row `row` of the stack.
#[inline(always)]
fn times_row<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    acc: &mut [V; 4],
    row: u32,
    factors: &[V],
    first: u32,
) {
    let row = row * p.f_stride + p.f_offset;
    each_register!(shape.registers, |R| {
        let j = first + R as u32 * shape.team;
        if j < p.width {
            acc[R] = acc[R].times(at(factors, row + j));
        }
    });
}

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
            times_row(shape, p, acc, at(table, item * p.levels + level), factors, first);
        }
        level += 1;
    }
}

/// out[i][j] += sum.
#[inline(always)]
fn add<V: Block>(p: &MttkrpParams<V::Element>, out: &mut [V], i: u32, j: u32, sum: V) {
    let place = i * p.c_stride + p.c_offset + j;
    let sum = at(out, place).plus(sum);
    // Padding must stay zero whatever the values.
    put(out, place, if j + 1 == p.width { sum.first(p.tail) } else { sum });
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
    let item = row_item(shape, place, tile, tasks, p.tasks, p.width);
    if !item.any {
        return;
    }
    let (row, start, end, first) = (item.task.x, item.task.y, item.task.z, item.first);
    let last = p.f_offset + p.width - 1;
    let mut acc = [V::ZERO; 4];
    let mut i = start;
    while i < end {
        let fiber = if p.ordered != 0 { at(order, i) } else { i };
        let (from, to) = (at(ptr, fiber), at(ptr, fiber + 1));
        let mut sum = accumulate(shape, nonzeros, factors, p.f_stride, p.f_offset + first, last, from, to);
        times_rows(shape, p, &mut sum, fiber, table, factors, first);
        each_register!(shape.registers, |R| {
            acc[R] = acc[R].plus(sum[R]);
        });
        i += 1;
    }
    store_sums(shape, item, p.width, acc, partial, |j, sum| add(p, out, row, j, sum));
}

/// One lane's share of a task whose items are nonzeros; adds to `out`.
///
/// The lanes fetch the values and the fibers of as many nonzeros as they are, side by side, and hand them round:
/// otherwise each nonzero would begin with a chain of three loads, all the same for the whole team.
#[inline(always)]
pub fn nonzeros<V: Block, T: Team>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    task: u32,
    team: T,
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
    // Lanes past the row's end fetch for the others.
    let place = Place { team: task, lane: team.lane() };
    let item = row_item(shape, place, tile, tasks, p.tasks, u32::MAX);
    let (mut start, mut end) = (0, 0);
    if item.any {
        start = item.task.y;
        end = item.task.z;
    }
    let mut acc = [V::ZERO; 4];
    let mut steps = team.in_step_max((end - start).div_ceil(team.size()));
    while steps > 0 {
        let (mut x, mut fiber) = (V::Element::ZERO, 0);
        if start + team.lane() < end {
            let at_list = start + team.lane();
            let item = if p.ordered != 0 { at(order, at_list) } else { at_list };
            x = at(val, item);
            fiber = at(fiber_of, item);
        }
        let left = if end - start < team.size() { end - start } else { team.size() };
        let most = team.in_step_max(left);
        let mut i = 0;
        while i < most {
            let (x, fiber) = (team.value_of(x, i), team.word_of(fiber, i));
            if i < left {
                let mut product = [V::splat(x); 4];
                times_rows(shape, p, &mut product, fiber, table, factors, item.first);
                each_register!(shape.registers, |R| {
                    acc[R] = acc[R].plus(product[R]);
                });
            }
            i += 1;
        }
        start += left;
        steps -= 1;
    }
    if item.any {
        let row = item.task.x;
        store_sums(shape, item, p.width, acc, partial, |j, sum| add(p, out, row, j, sum));
    }
}

/// A tensor of up to four modes by blocks, as a mode's tasks reach it.
#[derive(Clone, Copy)]
pub struct BlockList<'a, E> {
    /// How many partial rows the rows of each task are apart.
    pub spread: &'a [u32],
    /// The blocks of the tasks.
    pub order: &'a [u32],
    /// First nonzero of each block, and the end of the last.
    pub ptr: &'a [u32],
    /// The row of the stack of each block's first coordinate in each mode.
    pub bases: &'a [UVec4],
    /// Eight bits for each mode of a nonzero: how many rows further its own is.
    pub offsets: &'a [u32],
    /// The nonzeros.
    pub val: &'a [E],
}

/// One lane's share of a task whose items are blocks; adds to `out`, or to its part's rows of `partial`.
#[inline(always)]
pub fn blocks<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    place: Place,
    tile: u32,
    tasks: &[UVec4],
    list: BlockList<'_, V::Element>,
    factors: &[V],
    out: &mut [V],
    partial: &mut [V],
) {
    let item = row_item(shape, place, tile, tasks, p.tasks, p.width);
    if !item.any {
        return;
    }
    let first = item.first;
    let spread = at(list.spread, place.team);
    if item.task.w != WHOLE {
        let mut own = 0;
        while own < BLOCK_SIDE {
            each_register!(shape.registers, |R| {
                let j = first + R as u32 * shape.team;
                if j < p.width {
                    put(partial, (item.task.w + own * spread) * p.width + j, V::ZERO);
                }
            });
            own += 1;
        }
    }
    let mut acc = [V::ZERO; 4];
    let mut own = 0;
    let mut i = item.task.y;
    while i < item.task.z {
        let block = at(list.order, i);
        let base = at(list.bases, block);
        let (mut nonzero, end) = (at(list.ptr, block), at(list.ptr, block + 1));
        while nonzero < end {
            let offset = at(list.offsets, nonzero);
            let row = (offset >> (8 * p.skip)) & 255;
            if row != own {
                leave(shape, p, item, spread, own, &acc, out, partial);
                acc = [V::ZERO; 4];
                own = row;
            }
            let mut product = [V::splat(at(list.val, nonzero)); 4];
            // The output's row is no factor's, and a tensor of fewer modes has no such rows.
            if p.skip != 0 {
                times_row(shape, p, &mut product, base.x + (offset & 255), factors, first);
            }
            if p.skip != 1 {
                times_row(shape, p, &mut product, base.y + ((offset >> 8) & 255), factors, first);
            }
            if p.skip != 2 && p.levels > 2 {
                times_row(shape, p, &mut product, base.z + ((offset >> 16) & 255), factors, first);
            }
            if p.skip != 3 && p.levels > 3 {
                times_row(shape, p, &mut product, base.w + (offset >> 24), factors, first);
            }
            each_register!(shape.registers, |R| {
                acc[R] = acc[R].plus(product[R]);
            });
            nonzero += 1;
        }
        i += 1;
    }
    leave(shape, p, item, spread, own, &acc, out, partial);
}

/// Adds what a lane has summed to row `own` of its task's 128.
#[inline(always)]
fn leave<V: Block>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    item: RowItem,
    spread: u32,
    own: u32,
    acc: &[V; 4],
    out: &mut [V],
    partial: &mut [V],
) {
    each_register!(shape.registers, |R| {
        let j = item.first + R as u32 * shape.team;
        if j < p.width {
            if item.task.w == WHOLE {
                add(p, out, item.task.x + own, j, acc[R]);
            } else {
                let place = (item.task.w + own * spread) * p.width + j;
                put(partial, place, at(partial, place).plus(acc[R]));
            }
        }
    });
}

/// Adds one element to memory that other invocations add to as well.
pub trait Add<E> {
    /// `out[i] += x`.
    fn add(&mut self, i: u32, x: E);
}

/// One lane's share of a run of nonzeros; adds to `out`, element by element. `p.tasks` counts the nonzeros, and
/// `p.c_offset` has the first row of the output's mode in the stack taken off.
#[inline(always)]
pub fn atomic<V: Block, O: Add<V::Element>>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    place: Place,
    tile: u32,
    table: &[u32],
    val: &[V::Element],
    factors: &[V],
    out: &mut O,
) {
    let start = place.team * RUN;
    let first = tile * shape.team * shape.registers + place.lane;
    if start >= p.tasks || first >= p.width {
        return;
    }
    let end = if start + RUN < p.tasks { start + RUN } else { p.tasks };
    let mut acc = [V::ZERO; 4];
    let mut row = at(table, start * p.levels + p.skip);
    let mut i = start;
    while i < end {
        let own = at(table, i * p.levels + p.skip);
        if own != row {
            add_row(shape, p, row, first, &acc, out);
            acc = [V::ZERO; 4];
            row = own;
        }
        let x = V::splat(at(val, i));
        let mut product = [x; 4];
        times_rows(shape, p, &mut product, i, table, factors, first);
        each_register!(shape.registers, |R| {
            acc[R] = acc[R].plus(product[R]);
        });
        i += 1;
    }
    add_row(shape, p, row, first, &acc, out);
}

/// Adds a lane's blocks to a row of the output; nothing to its padding.
#[inline(always)]
fn add_row<V: Block, O: Add<V::Element>>(
    shape: Shape,
    p: &MttkrpParams<V::Element>,
    row: u32,
    first: u32,
    acc: &[V; 4],
    out: &mut O,
) {
    each_register!(shape.registers, |R| {
        let j = first + R as u32 * shape.team;
        if j < p.width {
            // Wraps around: the offset may be below zero.
            let place = 4 * row.wrapping_mul(p.c_stride).wrapping_add(p.c_offset).wrapping_add(j);
            let count = if j + 1 == p.width { p.tail } else { 4 };
            out.add(place, acc[R].x());
            if count > 1 {
                out.add(place + 1, acc[R].y());
            }
            if count > 2 {
                out.add(place + 2, acc[R].z());
            }
            if count > 3 {
                out.add(place + 3, acc[R].w());
            }
        }
    });
}
