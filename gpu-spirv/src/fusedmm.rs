//! FusedMM: E_i = sum over the nonzeros k of row i of f(C_i . B_k) D_k, no edge value ever stored.
//!
//! ```text
//! team = task (row i, nonzeros p0 .. p1); lane owns blocks of C_i and of E_i in registers
//!   for eight nonzeros at a time:
//!     e = the lane's own dot product (as in SDDMM: lane l has number l mod 4 of each quad)
//!     w = f(e)                                    each edge function is computed once, not by every lane
//!     for t in 0 .. 8: acc += (w of lane t) D[k_t]
//! ```
//!
//! Row softmax runs online (Milakov & Gimelshein, 2018): m is the largest score so far, l the sum of exp(score - m); when a
//! larger score appears, acc and l are scaled by exp(m_old - m_new). An empty row gives zeros. A task that is a part of a row
//! stores acc, m and l, which `reduce_rows` brings together.

use sparsimd_gpu_abi::edge::{SCALE, SIGMOID, SOFTMAX};
use sparsimd_gpu_abi::{FusedParams, WHOLE};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at, put};
use crate::each_register;
use crate::memory::{Blocks, BlocksMut};
use crate::sddmm::{Dense, dot_quad, load_row, reduce_quad};
use crate::spmm::Shape;
use crate::team::Team;

/// An edge function that looks at one edge alone.
#[inline(always)]
pub fn edge<E: Element>(variant: u32, x: E, value: E) -> E {
    if variant == SCALE {
        x * value
    } else if variant == SIGMOID {
        E::ONE.over(E::ONE + (E::ZERO - x).exponential())
    } else {
        x
    }
}

/// The larger value. (NaN scores do not win here, but their weight is NaN, and so then is the whole row.)
#[inline(always)]
pub fn larger<E: Element>(a: E, b: E) -> E {
    if b > a { b } else { a }
}

/// exp(score - top), 0 for the score of no edge.
///
/// Nothing above minus infinity yet: every weight so far is zero, and exp(-inf - -inf) would be NaN. A NaN score does not take this
/// way: its comparison with minus infinity is false.
#[inline(always)]
pub fn weight<E: Element>(counts: bool, score: E, top: E) -> E {
    if counts && !(score == E::LOWEST) { (score - top).exponential() } else { E::ZERO }
}

/// What the sums so far are multiplied by when the largest score goes from `m` to `top`.
#[inline(always)]
pub fn shrink<E: Element>(m: E, top: E) -> E {
    if m == E::LOWEST { E::ZERO } else { (m - top).exponential() }
}

/// acc += weights of four edges times their rows of D. `valid` tells which of the four belong to the task.
#[inline(always)]
fn add_quad<V: Block, B: Blocks<Block = V>>(
    shape: Shape,
    acc: &mut [V; 4],
    d: Dense<B>,
    k: UVec4,
    w: [V::Element; 4],
    valid: [bool; 4],
    lane: u32,
    width: u32,
) {
    let rows = k * d.stride + UVec4::splat(d.offset);
    each_register!(shape.registers, |R| {
        let j = lane + R as u32 * shape.team;
        if j < width {
            // A row that is not the task's must not enter even with weight zero: it may be infinite.
            if valid[0] {
                acc[R] = acc[R].add_scaled(w[0], d.data.get(rows.x + j));
            }
            if valid[1] {
                acc[R] = acc[R].add_scaled(w[1], d.data.get(rows.y + j));
            }
            if valid[2] {
                acc[R] = acc[R].add_scaled(w[2], d.data.get(rows.z + j));
            }
            if valid[3] {
                acc[R] = acc[R].add_scaled(w[3], d.data.get(rows.w + j));
            }
        }
    });
}

/// The values of lanes 0 to 3 of a team, in every lane.
#[inline(always)]
fn spread<E: Element, T: Team>(team: T, x: E) -> [E; 4] {
    [team.value_of(x, 0), team.value_of(x, 1), team.value_of(x, 2), team.value_of(x, 3)]
}

/// One lane's share of one task.
#[inline(always)]
pub fn body<V: Block, B: Blocks<Block = V>, E: BlocksMut<Block = V> + ?Sized, T: Team>(
    shape: Shape,
    variant: u32,
    p: &FusedParams<V::Element>,
    task: u32,
    team: T,
    tasks: &[UVec4],
    idx4: &[UVec4],
    val: &[V::Element],
    c: B,
    b: B,
    d: B,
    e: &mut E,
    partial: &mut [V],
    stats: &mut [V::Element],
) {
    let c = Dense { data: c, stride: p.c_stride, offset: 0 };
    let b = Dense { data: b, stride: p.b_stride, offset: 0 };
    let d = Dense { data: d, stride: p.d_stride, offset: 0 };
    let lane = team.lane();
    let zero = V::Element::ZERO;
    let (mut row, mut start, mut end, mut slot) = (0, 0, 0, WHOLE);
    let live = task < p.tasks;
    if live {
        let t = at(tasks, task);
        row = t.x;
        start = t.y;
        end = t.z;
        slot = t.w;
    }
    let base = start & !7;
    let steps = team.in_step_max(if end > start { (end - base).div_ceil(8) } else { 0 });
    let mut own = [V::ZERO; 4];
    if start < end {
        own = load_row(shape, c, row, lane, p.width);
    }
    let mut acc = [V::ZERO; 4];
    let mut m = V::Element::LOWEST;
    let mut l = zero;
    let mut step = 0;
    while step < steps {
        let q0 = base + 8 * step;
        let q1 = q0 + 4;
        let first_counts = q0 < end && q1 > start;
        let second_counts = q1 < end;
        let mut k0 = UVec4::ZERO;
        let mut k1 = UVec4::ZERO;
        let mut s0 = [zero; 4];
        let mut s1 = [zero; 4];
        if first_counts {
            k0 = at(idx4, q0 / 4);
            s0 = dot_quad(shape, &own, b, k0, lane, p.width);
        }
        if second_counts {
            k1 = at(idx4, q1 / 4);
            s1 = dot_quad(shape, &own, b, k1, lane, p.width);
        }
        // This lane's own two edges.
        let (p0, p1) = (q0 + (lane & 3), q1 + (lane & 3));
        let mine0 = p0 >= start && p0 < end;
        let mine1 = p1 >= start && p1 < end;
        let mut w0 = reduce_quad(team, s0);
        let mut w1 = reduce_quad(team, s1);
        if variant == SOFTMAX {
            let score0 = if mine0 { w0 * p.scale } else { V::Element::LOWEST };
            let score1 = if mine1 { w1 * p.scale } else { V::Element::LOWEST };
            let mut top = larger(score0, score1);
            top = larger(top, team.shuffle_xor(top, 1));
            top = larger(top, team.shuffle_xor(top, 2));
            let top = larger(m, top);
            w0 = weight(mine0, score0, top);
            w1 = weight(mine1, score1, top);
            let shrink = shrink(m, top);
            each_register!(shape.registers, |R| {
                acc[R] = acc[R].scaled(shrink);
            });
            l = l * shrink;
            m = top;
        } else if variant == SCALE {
            w0 = edge(variant, w0, if mine0 { at(val, p0) } else { zero });
            w1 = edge(variant, w1, if mine1 { at(val, p1) } else { zero });
        } else {
            w0 = edge(variant, w0, zero);
            w1 = edge(variant, w1, zero);
        }
        let w0 = spread(team, w0);
        let w1 = spread(team, w1);
        if variant == SOFTMAX {
            l = l + ((w0[0] + w0[1]) + (w0[2] + w0[3])) + ((w1[0] + w1[1]) + (w1[2] + w1[3]));
        }
        if first_counts {
            let valid = [
                q0 >= start,
                q0 + 1 >= start && q0 + 1 < end,
                q0 + 2 >= start && q0 + 2 < end,
                q0 + 3 >= start && q0 + 3 < end,
            ];
            add_quad(shape, &mut acc, d, k0, w0, valid, lane, p.out_width);
        }
        if second_counts {
            let valid = [
                q1 >= start,
                q1 + 1 >= start && q1 + 1 < end,
                q1 + 2 >= start && q1 + 2 < end,
                q1 + 3 >= start && q1 + 3 < end,
            ];
            add_quad(shape, &mut acc, d, k1, w1, valid, lane, p.out_width);
        }
        step += 1;
    }
    if !live {
        return;
    }
    let whole = slot == WHOLE;
    if variant == SOFTMAX && whole && start < end {
        let inverse = V::Element::ONE.over(l);
        each_register!(shape.registers, |R| {
            acc[R] = acc[R].scaled(inverse);
        });
    }
    each_register!(shape.registers, |R| {
        let j = lane + R as u32 * shape.team;
        if j < p.out_width {
            if whole {
                // Padding must stay zero whatever the values: it takes part in later dot products.
                let out = if j + 1 == p.out_width { acc[R].first(p.tail) } else { acc[R] };
                e.set(row * p.e_stride + j, out);
            } else {
                put(partial, slot * p.out_width + j, acc[R]);
            }
        }
    });
    if variant == SOFTMAX && !whole && lane == 0 {
        put(stats, 2 * slot, m);
        put(stats, 2 * slot + 1, l);
    }
}

/// The edge function on stored dot products, in place: the way of operands too large to fuse. One team per whole row.
#[inline(always)]
pub fn apply<V: Block, T: Team>(
    variant: u32,
    p: &FusedParams<V::Element>,
    task: u32,
    team: T,
    tasks: &[UVec4],
    val: &[V::Element],
    scores: &mut [V::Element],
) {
    let (mut start, mut end) = (0, 0);
    if task < p.tasks {
        let t = at(tasks, task);
        start = t.y;
        end = t.z;
    }
    let zero = V::Element::ZERO;
    let first = start + team.lane();
    if variant != SOFTMAX {
        let mut i = first;
        while i < end {
            let value = if variant == SCALE { at(val, i) } else { zero };
            let x = at(scores, i);
            put(scores, i, edge(variant, x, value));
            i += team.size();
        }
        return;
    }
    let mut top = V::Element::LOWEST;
    let mut i = first;
    while i < end {
        top = larger(top, at(scores, i) * p.scale);
        i += team.size();
    }
    let mut mask = 1;
    while mask < team.size() {
        top = larger(top, team.shuffle_xor(top, mask));
        mask *= 2;
    }
    let mut sum = zero;
    i = first;
    while i < end {
        let w = (at(scores, i) * p.scale - top).exponential();
        put(scores, i, w);
        sum = sum + w;
        i += team.size();
    }
    mask = 1;
    while mask < team.size() {
        sum = sum + team.shuffle_xor(sum, mask);
        mask *= 2;
    }
    let inverse = V::Element::ONE.over(sum);
    i = first;
    while i < end {
        let w = at(scores, i);
        put(scores, i, w * inverse);
        i += team.size();
    }
}
