//! SDDMM of a pattern so dense that rows share columns: `out_p = alpha (C_i . B_k) [a_p]`, by panels with B from workgroup memory.
//!
//! ```text
//! team = panel; lane owns the blocks lane, lane + T, ... of four rows of C, in registers
//!   for the columns k of a granule that any of the four rows has, four at a time:
//!     s[k][i] = sum over own blocks of C[i][j] . B[k][j]           a block of B from workgroup memory serves four rows
//!     transpose: 12 to 16 shuffles leave each lane with its own of the sixteen sums
//!     out[order[k][i]] = sum                                       where row i has column k
//! ```
//!
//! The order of the nonzeros is read by the lanes side by side, each its own. Rows wider than a team's registers or than workgroup
//! memory come by launches, each of which adds its share.

use sparsimd_gpu_abi::{GRANULE, NOTHING, SddmmParams, Tiled};
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at};
use crate::panels::{Memory, Panels, Rows, Seat, Span, Station, copy_rows};
use crate::sddmm::{Dense, Share, leave, reduce_columns};
use crate::spmm::Shape;
use crate::team::Team;

/// What one invocation does. All of a workgroup call it together; `parts` workgroups share the columns of the same panels.
/// `order` tells which nonzero stands at each column of each of the four rows.
#[inline(always)]
pub fn body<V: Block, T: Team, M: Memory<V>>(
    shape: Shape,
    parts: u32,
    p: &Tiled<SddmmParams<V::Element>>,
    seat: Seat,
    team: T,
    panels: Panels<'_>,
    order: &[u32],
    val: &[V::Element],
    c: &[V],
    b: &[V],
    out: &mut [V::Element],
    memory: &mut M,
) {
    let (of, walk) = (&p.of, &p.walk);
    let station = Station::new(shape, parts, of.tasks, seat);
    if !station.any {
        return;
    }
    let c = Dense { data: c, stride: of.c_stride, offset: of.c_offset };
    let b = Dense { data: b, stride: of.b_stride, offset: of.b_offset };
    let (lane, tile) = (station.lane, shape.blocks());
    let live = station.panel < of.tasks;
    let pointers = station.panel * (walk.granules + 1);
    let rows = if live { at(panels.rows, station.panel) } else { UVec4::splat(NOTHING) };
    let own = Rows::load(shape, c, rows, lane, of.width);
    let share = Share::of(team);
    let mut span = Span::first(walk, station.part, parts);
    while span.any() {
        memory.barrier();
        copy_rows(memory, 0, b, walk, span, 0, tile, of.width, seat.local);
        memory.barrier();
        let mut granule = span.first;
        while granule < span.next {
            let (mut quad, mut last) = (0, 0);
            if live {
                quad = at(panels.ptr, pointers + granule);
                last = at(panels.ptr, pointers + granule + 1);
            }
            let first = (granule - span.first) * GRANULE * tile + lane;
            // All teams of a subgroup take as many steps: every shuffle happens in uniform control flow.
            let mut steps = team.in_step_max(last - quad);
            while steps > 0 {
                let any = quad < last;
                let mut sums = [[V::Element::ZERO; 4]; 4];
                if any {
                    sums = own.dots_of_quad(shape, memory, at(panels.columns, quad), first);
                }
                let dots = reduce_columns(team, sums);
                // Lanes from the seventeenth on have what others have.
                if any && lane < 16 {
                    let mine = 16 * quad + 4 * share.column + (lane & 3);
                    place(of, at(order, mine), dots[0], val, out);
                    if share.count > 1 {
                        place(of, at(order, mine + 4), dots[1], val, out);
                    }
                    if share.count > 2 {
                        place(of, at(order, mine + 8), dots[2], val, out);
                        place(of, at(order, mine + 12), dots[3], val, out);
                    }
                }
                quad += 1;
                steps -= 1;
            }
            granule += 1;
        }
        span = span.following(walk);
    }
}

/// Leaves a dot product at its nonzero, if it has one.
#[inline(always)]
fn place<E: Element>(p: &SddmmParams<E>, i: u32, dot: E, val: &[E], out: &mut [E]) {
    if i != NOTHING {
        leave(p, i, dot, val, out);
    }
}
