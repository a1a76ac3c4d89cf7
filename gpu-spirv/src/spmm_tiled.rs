//! SpMM of a pattern so dense that rows share columns: C = alpha A B + beta C, by panels with B from workgroup memory.
//!
//! ```text
//! team = panel; lane owns the blocks lane, lane + T, ... of a tile of four rows of C, in registers
//!   for the columns k of a granule that any of the four rows has, four at a time:
//!     x = val4[k]                          the four rows' values, zero where a row has none; one wavefront for four teams
//!     y = B[k][j_r] from workgroup memory
//!     acc[i][r] += x[i] * y                for the rows i of the panel that have column k
//! ```
//!
//! Four teams of a subgroup branch together, each to its own panel's rows. So the host sorts the columns of a granule
//! by the rows that have them: then teams mostly agree on which rows add, and few instructions are issued for lanes
//! that sit them out.

use sparsimd_gpu_abi::{GRANULE, NOTHING, SpmmParams, Tiled};

use crate::block::{Block, at, put};
use crate::each_register;
use crate::panels::{Lists, Memory, PanelItem, Panels, Rows, Span, ThreadIndex, copy_rows, entry, listed};
use crate::sddmm::Dense;
use crate::spmm::{Shape, store};

/// What one invocation does. All of a workgroup call it together; `parts` workgroups share the columns of the same panels.
/// `values` has those of the four rows at each column.
#[inline(always)]
pub fn body<V: Block, M: Memory<V>>(
    shape: Shape,
    parts: u32,
    p: &Tiled<SpmmParams<V::Element>>,
    thread: ThreadIndex,
    panels: Panels<'_>,
    values: &[V],
    b: &[V],
    c: &mut [V],
    partial: &mut [V],
    memory: &mut M,
) {
    let (of, walk) = (&p.of, &p.walk);
    let item = PanelItem::new(shape, parts, of.tasks, thread);
    if !item.any {
        return;
    }
    let b = Dense { data: b, stride: of.b_stride, offset: of.b_offset };
    let (lane, tile) = (item.lane, shape.blocks());
    let base = thread.tile * tile;
    let live = item.panel < of.tasks && base + lane < of.width;
    let lists = Lists::new(panels, walk, item.panel, live);
    let mut acc = Rows::zero();
    let mut span = Span::first(walk, item.part, parts);
    while span.any() {
        memory.barrier();
        copy_rows(memory, 0, b, walk, span, base, tile, of.width, thread.local);
        memory.barrier();
        if live {
            let mut granule = span.first;
            while granule < span.next {
                let first = (granule - span.first) * GRANULE * tile + lane;
                let (mut step, last) = lists.steps(granule);
                while step < last {
                    let k = lists.quad(step, last);
                    let x = |c: u32| at(values, lists.place_of(step, c));
                    if listed(k) {
                        let (x0, x1, x2, x3) = (x(0), x(1), x(2), x(3));
                        acc.add_entry(shape, memory, entry(k, 0), x0, first);
                        acc.add_entry(shape, memory, entry(k, 1), x1, first);
                        acc.add_entry(shape, memory, entry(k, 2), x2, first);
                        acc.add_entry(shape, memory, entry(k, 3), x3, first);
                    }
                    step += 1;
                }
                granule += 1;
            }
        }
        span = span.following(walk);
    }
    if live {
        let rows = at(panels.rows, item.panel);
        let slot = item.slot(parts);
        let out = Out { shape, parts, p: of, first: base + lane };
        out.row(rows.x, slot, &acc.a, c, partial);
        out.row(rows.y, slot + parts, &acc.b, c, partial);
        out.row(rows.z, slot + 2 * parts, &acc.c, c, partial);
        out.row(rows.w, slot + 3 * parts, &acc.d, c, partial);
    }
}

/// How a lane leaves its sums.
#[derive(Clone, Copy)]
struct Out<'a, E> {
    shape: Shape,
    parts: u32,
    p: &'a SpmmParams<E>,
    first: u32,
}

impl<E: Copy> Out<'_, E> {
    /// One row's: to C, or to its part's partial row.
    #[inline(always)]
    fn row<V: Block<Element = E>>(self, row: u32, slot: u32, sums: &[V; 4], c: &mut [V], partial: &mut [V]) {
        let p = self.p;
        if row == NOTHING {
            return;
        }
        each_register!(self.shape.registers, |R| {
            let j = self.first + R as u32 * self.shape.team;
            if j < p.width {
                if self.parts == 1 {
                    store(p, c, row, j, sums[R]);
                } else {
                    put(partial, slot * p.width + j, sums[R]);
                }
            }
        });
    }
}
