//! SDDMM of a pattern so dense that rows share columns: `out_p = alpha (C_i . B_k) [a_p]`, by panels with B from
//! workgroup memory.
//!
//! ```text
//! team = panel; lane owns the blocks lane, lane + T, ... of four rows of C, in registers
//!   for the columns k of a granule that any of the four rows has, eight at a time:
//!     s[k][i] = sum over own blocks of C[i][j] . B[k][j]           a block of B from workgroup memory serves four rows
//!     24 to 31 shuffles leave each lane with its own of the 32 sums: those of column l mod 8
//!     out[order[k][i]] = sum                                       where row i has column k
//! ```
//!
//! Each lane computes its sums in an order of its own, so that the shuffles need no selection ([`crate::sddmm::fold`]).
//! The columns of a granule are neighbours among the nonzeros of a row, in whatever order they are listed: a team of
//! eight lanes stores its columns by one wavefront for each row. Rows wider than a team's registers or than workgroup
//! memory come by launches, each of which adds its share.

use sparsimd_gpu_abi::{GRANULE, NOTHING, SddmmParams, Tiled};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at};
use crate::each_register;
use crate::panels::{Lists, Memory, PanelItem, Panels, Rows, Span, ThreadIndex, copy_rows, exchanged, listed};
use crate::sddmm::{Dense, Share, fold, fold_quad, leave};
use crate::spmm::Shape;
use crate::team::Team;

/// What one invocation does. All of a workgroup call it together; `parts` workgroups share the columns of the same panels.
/// `order` tells which nonzeros stand at each column, of the four rows.
#[inline(always)]
pub fn body<V: Block, T: Team, M: Memory<V>>(
    shape: Shape,
    parts: u32,
    p: &Tiled<SddmmParams<V::Element>>,
    thread: ThreadIndex,
    team: T,
    panels: Panels<'_>,
    order: &[UVec4],
    val: &[V::Element],
    c: &[V],
    b: &[V],
    out: &mut [V::Element],
    memory: &mut M,
) {
    let (of, walk) = (&p.of, &p.walk);
    let item = PanelItem::new(shape, parts, of.tasks, thread);
    if !item.any {
        return;
    }
    let c = Dense { data: c, stride: of.c_stride, offset: of.c_offset };
    let b = Dense { data: b, stride: of.b_stride, offset: of.b_offset };
    let (lane, tile) = (item.lane, shape.blocks());
    let live = item.panel < of.tasks;
    let lists = Lists::new(panels, walk, item.panel, live);
    let rows = if live { at(panels.rows, item.panel) } else { UVec4::splat(NOTHING) };
    // Of eight columns' sums: lanes l mod 8 divide the columns, l / 8 the rows.
    let share = Share::of(team, 8);
    let own = Rows::load(shape, c, exchanged(rows, share.first), lane, of.width);
    let (column, later) = (lane % 8, lane / 4 % 2);
    let mut span = Span::first(walk, item.part, parts);
    while span.any() {
        memory.barrier();
        copy_rows(memory, 0, b, walk, span, 0, tile, of.width, thread.local);
        memory.barrier();
        let mut granule = span.first;
        while granule < span.next {
            let (mut step, last) = lists.steps(granule);
            let first = (granule - span.first) * GRANULE * tile + lane;
            // All teams of a subgroup take as many steps: every shuffle happens in uniform control flow.
            let mut pairs = team.in_step_max((last - step).div_ceil(2));
            while pairs > 0 {
                let (near, far) = (lists.quad(step + later, last), lists.quad(step + 1 - later, last));
                let (mut s, mut t) = ([[V::Element::ZERO; 4]; 4], [[V::Element::ZERO; 4]; 4]);
                if listed(near) {
                    s = own.dots_of_quad(shape, memory, near, lane % 4, first);
                }
                let near = fold_quad(team, s);
                if listed(far) {
                    t = own.dots_of_quad(shape, memory, far, lane % 4, first);
                }
                let far = fold_quad(team, t);
                let out_of = Out { p: of, lists, order, last, share };
                if shape.team == 4 {
                    out_of.column(step, column, near, val, out);
                    out_of.column(step + 1, column, far, val, out);
                } else {
                    let sums = share.fold(team, fold(team, 4, near, far));
                    // Lanes from the 33rd on have what others have.
                    if lane < 32 {
                        out_of.column(step + column / 4, column % 4, sums, val, out);
                    }
                }
                step += 2;
                pairs -= 1;
            }
            granule += 1;
        }
        span = span.following(walk);
    }
}

/// How a lane leaves its dot products.
#[derive(Clone, Copy)]
struct Out<'a, E> {
    p: &'a SddmmParams<E>,
    lists: Lists<'a>,
    order: &'a [UVec4],
    /// The end of the granule's last step.
    last: u32,
    share: Share,
}

impl<E: Element> Out<'_, E> {
    /// The lane's share of those of column `c` of a step, each at its nonzero if it has one.
    #[inline(always)]
    fn column(self, step: u32, c: u32, dots: [E; 4], val: &[E], out: &mut [E]) {
        if step >= self.last {
            return;
        }
        let to = exchanged(at(self.order, self.lists.place_of(step, c)), self.share.first).to_array();
        each_register!(self.share.count, |R| {
            if to[R] != NOTHING {
                leave(self.p, to[R], dots[R], val, out);
            }
        });
    }
}
