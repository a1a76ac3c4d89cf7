//! SpMM: C = alpha A B + beta C, A by rows.
//!
//! ```text
//! team = task (row i, nonzeros p0 .. p1); lane owns the blocks j = lane, lane + T, ... of a tile of the row
//!   acc[R] = 0
//!   for four nonzeros at a time: k = idx4[p], v = val4[p]           one 16-byte load, the same for the whole team
//!     acc[r] += v.x * B[k.x][j_r], ... v.w * B[k.w][j_r]            coalesced, four rows of B in flight
//!   C[i][j_r] = alpha acc[r] + beta C[i][j_r]
//! ```
//!
//! A load that is the same for the whole team is one wavefront of the load unit, so four indices and four values cost
//! half a wavefront per nonzero beside the four of B's row (32 lanes x 16 bytes); handing them round by subgroup
//! shuffles would cost two. The loop therefore needs no subgroup operation. The indices of the next four nonzeros are
//! loaded before the current four are used. The algorithm is that of the ESIMD paper (one output row in registers) with the row swizzle and long-row splitting of
//! Sputnik (Gale et al., 2020), both prepared by the host as a list of tasks.

use sparsimd_gpu_abi::{SpmmParams, WHOLE};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at, put};
use crate::each_register;
use crate::memory::{Blocks, BlocksMut};
use crate::team::Place;

/// What specialisation fixes.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Lanes of a team.
    pub team: u32,
    /// Blocks of a lane.
    pub registers: u32,
}

impl Shape {
    /// Blocks of a row that a team holds.
    #[inline(always)]
    pub fn blocks(self) -> u32 {
        self.team * self.registers
    }
}

/// The nonzeros: column and value of each, also by fours.
#[derive(Clone, Copy)]
pub struct Nonzeros<'a, V: Block> {
    /// Columns.
    pub idx: &'a [u32],
    /// Columns by fours.
    pub idx4: &'a [UVec4],
    /// Values.
    pub val: &'a [V::Element],
    /// Values by fours.
    pub val4: &'a [V],
}

/// Adds one nonzero times its row of B.
#[inline(always)]
fn add_one<V: Block, B: Blocks<Block = V>>(
    shape: Shape,
    nonzeros: Nonzeros<'_, V>,
    b: B,
    b_stride: u32,
    at_block: &[u32; 4],
    p: u32,
    acc: &mut [V; 4],
) {
    let row = at(nonzeros.idx, p) * b_stride;
    let v = at(nonzeros.val, p);
    each_register!(shape.registers, |R| {
        acc[R] = acc[R].add_scaled(v, b.get(row + at_block[R]));
    });
}

/// Adds the nonzeros `start .. end` times their rows of B to the register block of one lane; `first` is the lane's first
/// block of a row of B, and its others follow `shape.team` apart, none past `last`. The rows of B of four nonzeros are
/// loaded before the first is used.
#[inline(always)]
pub fn accumulate<V: Block, B: Blocks<Block = V>>(
    shape: Shape,
    nonzeros: Nonzeros<'_, V>,
    b: B,
    b_stride: u32,
    first: u32,
    last: u32,
    start: u32,
    end: u32,
) -> [V; 4] {
    let mut acc = [V::ZERO; 4];
    // Blocks past the row's end repeat its last one: loads stay inside, the results are not stored.
    let mut at_block = [first; 4];
    each_register!(shape.registers, |R| {
        let block = first + R as u32 * shape.team;
        at_block[R] = if block > last { last } else { block };
    });
    let mut p = start;
    // Up to three nonzeros before the first whole four.
    while p < end && p & 3 != 0 {
        add_one(shape, nonzeros, b, b_stride, &at_block, p, &mut acc);
        p += 1;
    }
    if p + 4 <= end {
        let mut k = at(nonzeros.idx4, p / 4);
        let mut v = at(nonzeros.val4, p / 4);
        loop {
            // The buffers hold a spare four past their end, so the last look ahead is inside.
            let next_k = at(nonzeros.idx4, p / 4 + 1);
            let next_v = at(nonzeros.val4, p / 4 + 1);
            let rows = k * b_stride;
            each_register!(shape.registers, |R| {
                let b0 = b.get(rows.x + at_block[R]);
                let b1 = b.get(rows.y + at_block[R]);
                let b2 = b.get(rows.z + at_block[R]);
                let b3 = b.get(rows.w + at_block[R]);
                acc[R] = acc[R].add_scaled(v.x(), b0).add_scaled(v.y(), b1).add_scaled(v.z(), b2).add_scaled(v.w(), b3);
            });
            k = next_k;
            v = next_v;
            p += 4;
            if p + 4 > end {
                break;
            }
        }
    }
    while p < end {
        add_one(shape, nonzeros, b, b_stride, &at_block, p, &mut acc);
        p += 1;
    }
    acc
}

/// What one lane has to do: a task, and the first of its blocks of a row.
#[derive(Clone, Copy)]
pub struct RowItem {
    /// Whether there is anything for it.
    pub any: bool,
    /// (row, first item, end, slot).
    pub task: UVec4,
    /// Its first block; the others follow a team's lanes apart.
    pub first: u32,
}

/// The item of one lane among `count` tasks on rows of `width` blocks.
#[inline(always)]
pub fn row_item(shape: Shape, place: Place, tile: u32, tasks: &[UVec4], count: u32, width: u32) -> RowItem {
    let first = tile * shape.team * shape.registers + place.lane;
    let any = place.team < count && first < width;
    // A lane without work reads the first task: lists of tasks are padded, and the value is not used.
    RowItem { any, task: at(tasks, if any { place.team } else { 0 }), first }
}

/// Leaves what a lane has summed: block j of a whole row by `whole(j, sum)`, a part of one as a partial result.
#[inline(always)]
pub fn store_sums<V: Block>(
    shape: Shape,
    item: RowItem,
    width: u32,
    acc: [V; 4],
    partial: &mut [V],
    mut whole: impl FnMut(u32, V),
) {
    each_register!(shape.registers, |R| {
        let j = item.first + R as u32 * shape.team;
        if j < width {
            if item.task.w == WHOLE {
                whole(j, acc[R]);
            } else {
                put(partial, item.task.w * width + j, acc[R]);
            }
        }
    });
}

/// One lane's share of one task and one tile of columns.
#[inline(always)]
pub fn body<V: Block, B: Blocks<Block = V>, C: BlocksMut<Block = V> + ?Sized>(
    shape: Shape,
    p: &SpmmParams<V::Element>,
    place: Place,
    tile: u32,
    tasks: &[UVec4],
    nonzeros: Nonzeros<'_, V>,
    b: B,
    c: &mut C,
    partial: &mut [V],
) {
    let item = row_item(shape, place, tile, tasks, p.tasks, p.width);
    if !item.any {
        return;
    }
    let (row, start, end, first) = (item.task.x, item.task.y, item.task.z, item.first);
    let last = p.b_offset + p.width - 1;
    let acc = accumulate(shape, nonzeros, b, p.b_stride, p.b_offset + first, last, start, end);
    store_sums(shape, item, p.width, acc, partial, |j, sum| store(p, c, row, j, sum));
}

/// c_ij = alpha sum + beta c_ij, the old C read only where it counts.
#[inline(always)]
pub fn store<V: Block, C: BlocksMut<Block = V> + ?Sized>(
    p: &SpmmParams<V::Element>,
    c: &mut C,
    i: u32,
    j: u32,
    sum: V,
) {
    let place = i * p.c_stride + p.c_offset + j;
    let mut out = sum.scaled(p.alpha);
    if p.read_c != 0 {
        out = out.add_scaled(p.beta, c.get(place));
    }
    // Padding must stay zero whatever the values: it takes part in later dot products.
    if j + 1 == p.width {
        out = out.first(p.tail);
    }
    c.set(place, out);
}

/// Adds the partial rows of a split row in the order of its parts: the result does not depend on which part ends first.
/// A task here is (row, first slot, number of slots); one invocation adds one block.
///
/// For softmax each part carries its maximum m and its sum l in `stats`, and the parts are brought to one maximum. A
/// part without a nonzero has a negative l; a row of such parts alone is zero.
#[inline(always)]
pub fn reduce<V: Block, C: BlocksMut<Block = V> + ?Sized>(
    softmax: bool,
    p: &SpmmParams<V::Element>,
    i: u32,
    tasks: &[UVec4],
    partial: &[V],
    stats: &[V::Element],
    c: &mut C,
) {
    let (task, j) = (i / p.width, i % p.width);
    if task >= p.tasks {
        return;
    }
    let task = at(tasks, task);
    let mut sum = V::ZERO;
    if softmax {
        let mut m = V::Element::LOWEST;
        let mut s = 0;
        while s < task.z {
            let part = at(stats, 2 * (task.y + s));
            if part > m {
                m = part;
            }
            s += 1;
        }
        let mut l = V::Element::ZERO;
        let mut empty = true;
        s = 0;
        while s < task.z {
            let slot = task.y + s;
            // A part whose scores are all minus infinity weighs nothing: exp(-inf - -inf) would be NaN.
            let own = at(stats, 2 * slot);
            let weight = if own == V::Element::LOWEST { V::Element::ZERO } else { (own - m).exponential() };
            let share = at(stats, 2 * slot + 1);
            empty = empty && share < V::Element::ZERO;
            l = l + weight * share;
            sum = sum.add_scaled(weight, at(partial, slot * p.width + j));
            s += 1;
        }
        sum = if empty { V::ZERO } else { sum.scaled(V::Element::ONE.over(l)) };
    } else {
        let mut s = 0;
        while s < task.z {
            sum = sum.plus(at(partial, (task.y + s) * p.width + j));
            s += 1;
        }
    }
    store(p, c, task.x, j, sum);
}
