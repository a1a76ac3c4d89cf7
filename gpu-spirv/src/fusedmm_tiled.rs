//! FusedMM of a pattern so dense that rows share columns: E_i = sum over the nonzeros k of row i of f(C_i . B_k) D_k,
//! by panels with B and D from workgroup memory.
//!
//! ```text
//! team = panel; lane owns the blocks lane, lane + T, ... of four rows of C and of E, in registers
//!   for the columns k of a granule that any of the four rows has, four at a time:
//!     e = the lane's own of sixteen dot products (shuffled as in SDDMM by panels)
//!     w = f(e)                                     each edge function is computed once, not by every lane
//!     for the columns k: acc[i] += (w of column k and row i) D[k]      for the rows i that have column k
//! ```
//!
//! Row softmax runs online as in [`crate::fusedmm`]: the lanes l mod 4 = i have the largest score m of row i so far,
//! and each of them the sum l of its own weights.

use sparsimd_gpu_abi::edge::{SCALE, SOFTMAX};
use sparsimd_gpu_abi::{FusedParams, GRANULE, NOTHING, Tiled};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at, put};
use crate::each_register;
use crate::fusedmm::{edge, larger, shrink, weight};
use crate::panels::{Lists, Memory, PanelItem, Panels, Rows, Span, ThreadIndex, copy_rows, entry, exchanged, listed};
use crate::sddmm::{Dense, Share, fold_quad};
use crate::spmm::Shape;
use crate::team::Team;

/// `f(a, b)` over the lanes that have the same row: those whose numbers differ by 4 and by 8, where they have other
/// columns.
#[inline(always)]
fn over_columns<E: Element, T: Team>(team: T, x: E, f: impl Fn(E, E) -> E) -> E {
    let mut x = x;
    if team.size() > 4 {
        x = f(x, team.shuffle_xor(x, 4));
    }
    if team.size() > 8 {
        x = f(x, team.shuffle_xor(x, 8));
    }
    x
}

/// `[row][column]` of `[column][row]`.
#[inline(always)]
fn transposed<E: Copy>(s: [[E; 4]; 4]) -> [[E; 4]; 4] {
    let row = |r: usize| [s[0][r], s[1][r], s[2][r], s[3][r]];
    [row(0), row(1), row(2), row(3)]
}

/// The weights of the four rows at column `c`, 0 to 3, from the lanes that have them.
#[inline(always)]
fn weights_of<V: Block, T: Team>(team: T, w: [V::Element; 4], c: usize) -> V {
    let (own, from) = if team.size() == 4 {
        (w[c], 0)
    } else if team.size() == 8 {
        (w[c & 1], 4 * (c as u32 >> 1))
    } else {
        (w[0], 4 * (c as u32 >> 1) + 8 * (c as u32 & 1))
    };
    V::of([
        team.value_of(own, from),
        team.value_of(own, from + 1),
        team.value_of(own, from + 2),
        team.value_of(own, from + 3),
    ])
}

/// Multiplies the sums of the four rows by what the first four lanes have.
#[inline(always)]
fn scale_rows<V: Block, T: Team>(shape: Shape, team: T, acc: &mut Rows<V>, x: V::Element) {
    let x = [team.value_of(x, 0), team.value_of(x, 1), team.value_of(x, 2), team.value_of(x, 3)];
    each_register!(shape.registers, |R| {
        acc.a[R] = acc.a[R].scaled(x[0]);
        acc.b[R] = acc.b[R].scaled(x[1]);
        acc.c[R] = acc.c[R].scaled(x[2]);
        acc.d[R] = acc.d[R].scaled(x[3]);
    });
}

/// What one invocation does. All of a workgroup call it together; `parts` workgroups share the columns of the same panels.
/// `val` has the values of the four rows at each column. `memory` has room for the rows of B, and for those of D after
/// them.
#[inline(always)]
pub fn body<V: Block, T: Team, M: Memory<V>>(
    shape: Shape,
    variant: u32,
    parts: u32,
    p: &Tiled<FusedParams<V::Element>>,
    thread: ThreadIndex,
    team: T,
    panels: Panels<'_>,
    val: &[V::Element],
    c: &[V],
    b: &[V],
    d: &[V],
    e: &mut [V],
    partial: &mut [V],
    stats: &mut [V::Element],
    memory: &mut M,
) {
    let (of, walk) = (&p.of, &p.walk);
    let item = PanelItem::new(shape, parts, of.tasks, thread);
    if !item.any {
        return;
    }
    let c = Dense { data: c, stride: of.c_stride, offset: 0 };
    let b = Dense { data: b, stride: of.b_stride, offset: 0 };
    let d = Dense { data: d, stride: of.d_stride, offset: 0 };
    let (lane, tile) = (item.lane, shape.blocks());
    let d_place = walk.span * GRANULE * tile;
    let live = item.panel < of.tasks;
    let lists = Lists::new(panels, walk, item.panel, live);
    let rows = if live { at(panels.rows, item.panel) } else { UVec4::splat(NOTHING) };
    // Of four columns' sums: lanes l mod 4 divide the rows, l / 4 the columns.
    let share = Share::of(team, 4);
    let own = Rows::load(shape, c, exchanged(rows, lane % 4), lane, of.width);
    let (zero, one) = (V::Element::ZERO, V::Element::ONE);
    let mut acc = Rows::zero();
    // Of row l mod 4: the largest score, the sum of this lane's weights, and whether it has met an edge.
    let (mut m, mut l, mut met) = (V::Element::LOWEST, zero, zero);
    let mut span = Span::first(walk, item.part, parts);
    while span.any() {
        memory.barrier();
        copy_rows(memory, 0, b, walk, span, 0, tile, of.width, thread.local);
        copy_rows(memory, d_place, d, walk, span, 0, tile, of.out_width, thread.local);
        memory.barrier();
        let mut granule = span.first;
        while granule < span.next {
            let (mut step, last) = lists.steps(granule);
            let first = (granule - span.first) * GRANULE * tile + lane;
            // All teams of a subgroup take as many steps: every shuffle happens in uniform control flow.
            let mut rest = team.in_step_max(last - step);
            while rest > 0 {
                let columns = lists.quad(step, last);
                let any = listed(columns);
                let mut sums = [[zero; 4]; 4];
                if any {
                    sums = transposed(own.dots_of_quad(shape, memory, columns, share.first, first));
                }
                let mut w = share.fold(team, fold_quad(team, sums));
                if variant == SOFTMAX {
                    let counts = |i: usize| entry(columns, share.first + i as u32) & GRANULE << (lane & 3) != 0;
                    let mut top = m;
                    each_register!(share.count, |I| {
                        w[I] = if counts(I) { w[I] * of.scale } else { V::Element::LOWEST };
                        top = larger(top, w[I]);
                    });
                    top = over_columns(team, top, larger);
                    let shrink = shrink(m, top);
                    l = l * shrink;
                    each_register!(share.count, |I| {
                        met = if counts(I) { one } else { met };
                        w[I] = weight(counts(I), w[I], top);
                        l = l + w[I];
                    });
                    m = top;
                    scale_rows(shape, team, &mut acc, shrink);
                } else if any {
                    each_register!(share.count, |I| {
                        let column = lists.place_of(step, share.first + I as u32);
                        let value = if variant == SCALE { at(val, 4 * column + (lane & 3)) } else { zero };
                        w[I] = edge(variant, w[I], value);
                    });
                }
                let x0 = weights_of(team, w, 0);
                let x1 = weights_of(team, w, 1);
                let x2 = weights_of(team, w, 2);
                let x3 = weights_of(team, w, 3);
                if any {
                    let first = d_place + first;
                    acc.add_entry(shape, memory, entry(columns, 0), x0, first);
                    acc.add_entry(shape, memory, entry(columns, 1), x1, first);
                    acc.add_entry(shape, memory, entry(columns, 2), x2, first);
                    acc.add_entry(shape, memory, entry(columns, 3), x3, first);
                }
                step += 1;
                rest -= 1;
            }
            granule += 1;
        }
        span = span.following(walk);
    }
    let slot = item.slot(parts);
    if variant == SOFTMAX {
        l = over_columns(team, l, |a, b| a + b);
        met = over_columns(team, met, larger);
        if parts == 1 {
            // A row without edges stays zero.
            scale_rows(shape, team, &mut acc, if met == zero { one } else { one.over(l) });
        } else if live && lane < 4 {
            let place = 2 * (slot + lane * parts);
            put(stats, place, m);
            put(stats, place + 1, if met == zero { zero - one } else { l });
        }
    }
    if live {
        let out = Out { shape, parts, p: of, lane };
        out.row(rows.x, slot, &acc.a, e, partial);
        out.row(rows.y, slot + parts, &acc.b, e, partial);
        out.row(rows.z, slot + 2 * parts, &acc.c, e, partial);
        out.row(rows.w, slot + 3 * parts, &acc.d, e, partial);
    }
}

/// How a lane leaves its sums.
#[derive(Clone, Copy)]
struct Out<'a, E> {
    shape: Shape,
    parts: u32,
    p: &'a FusedParams<E>,
    lane: u32,
}

impl<E: Copy> Out<'_, E> {
    /// One row's: to E, or to its part's partial row.
    #[inline(always)]
    fn row<V: Block<Element = E>>(self, row: u32, slot: u32, sums: &[V; 4], e: &mut [V], partial: &mut [V]) {
        let p = self.p;
        if row == NOTHING {
            return;
        }
        each_register!(self.shape.registers, |R| {
            let j = self.lane + R as u32 * self.shape.team;
            if j < p.out_width {
                if self.parts == 1 {
                    // Padding must stay zero whatever the values: it takes part in later dot products.
                    put(e, row * p.e_stride + j, if j + 1 == p.out_width { sums[R].first(p.tail) } else { sums[R] });
                } else {
                    put(partial, slot * p.out_width + j, sums[R]);
                }
            }
        });
    }
}
