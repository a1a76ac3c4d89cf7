//! SpMM of a pattern so dense that rows share columns: C = alpha A B + beta C, four rows of A at a time, B from workgroup memory.
//!
//! ```text
//! workgroup = (128 / T panels of four rows, a range of the columns of A, a tile of the columns of B)
//!   for granules of 32 columns of A, as many at a time as their rows of B fit workgroup memory:
//!     barrier; all invocations copy these rows of B to workgroup memory, coalesced; barrier
//!     team = panel; lane owns the blocks lane, lane + T, ... of four rows of C, in registers
//!       for the columns k that any of the four rows has, four at a time:
//!         x = val4[k]                          the four rows' values, zero where a row has none
//!         y = B[k][j_r] from workgroup memory
//!         acc[i][r] += x[i] * y                for the rows i of the panel that have column k
//! ```
//!
//! Why: a row kernel loads 16 bytes of B for four multiply-adds of a lane, whatever serves the load. Here a row of B leaves the
//! second-level cache once for all panels of a workgroup, and once in registers it serves every row of the panel that has its
//! column: at 70 % zeros 1.58 of four on average. Which rows those are is a mask beside the column, not a zero among the
//! values: a row must not meet an element of B that it has no nonzero for, which may be infinite.

use sparsimd_gpu_abi::{GRANULE, NO_ROW, SpmmParams, TiledParams, WORKGROUP};
use spirv_std::glam::{UVec2, UVec4};

use crate::block::{Block, at, put};
use crate::each_register;
use crate::spmm::{Shape, store};

/// Memory that the invocations of a workgroup share.
pub trait Memory<V> {
    /// Writes one block.
    fn set(&mut self, i: u32, x: V);
    /// Reads one block.
    fn get(&self, i: u32) -> V;
    /// Waits for all invocations, and for what they wrote.
    fn barrier(&self);
}

/// The sparse matrix by panels of four rows.
#[derive(Clone, Copy)]
pub struct Panels<'a, V> {
    /// The rows of each panel, [`NO_ROW`] where the last one has fewer.
    pub rows: &'a [UVec4],
    /// First quad of each granule of each panel, and the end of the panel's last.
    pub ptr: &'a [u32],
    /// Quads of columns, 16 bits each: the column within its granule, then a bit for each row that has it.
    pub columns: &'a [UVec2],
    /// Values of the four rows at each column.
    pub values: &'a [V],
}

/// Which workgroup and which invocation of it.
#[derive(Clone, Copy)]
pub struct Seat {
    /// Number of the workgroup among those of its tile.
    pub group: u32,
    /// Number of the invocation in it.
    pub local: u32,
    /// Which tile of the columns of B.
    pub tile: u32,
}

/// The accumulators of a lane: its blocks of four rows.
#[derive(Clone, Copy)]
struct Rows<V> {
    a: [V; 4],
    b: [V; 4],
    c: [V; 4],
    d: [V; 4],
}

/// Adds one column: `packed` is its entry, `x` has the rows' values, `first` is the lane's first block of the tile's row 0.
#[inline(always)]
fn add_column<V: Block, M: Memory<V>>(shape: Shape, memory: &M, acc: &mut Rows<V>, packed: u32, x: V, first: u32) {
    let place = first + (packed & (GRANULE - 1)) * shape.blocks();
    let mut y = [V::ZERO; 4];
    each_register!(shape.registers, |R| {
        y[R] = memory.get(place + R as u32 * shape.team);
    });
    if packed & GRANULE != 0 {
        each_register!(shape.registers, |R| {
            acc.a[R] = acc.a[R].add_scaled(x.x(), y[R]);
        });
    }
    if packed & (2 * GRANULE) != 0 {
        each_register!(shape.registers, |R| {
            acc.b[R] = acc.b[R].add_scaled(x.y(), y[R]);
        });
    }
    if packed & (4 * GRANULE) != 0 {
        each_register!(shape.registers, |R| {
            acc.c[R] = acc.c[R].add_scaled(x.z(), y[R]);
        });
    }
    if packed & (8 * GRANULE) != 0 {
        each_register!(shape.registers, |R| {
            acc.d[R] = acc.d[R].add_scaled(x.w(), y[R]);
        });
    }
}

/// What one invocation does. All of a workgroup call it together; `parts` workgroups share the columns of the same panels.
#[inline(always)]
pub fn body<V: Block, M: Memory<V>>(
    shape: Shape,
    parts: u32,
    p: &TiledParams<V::Element>,
    seat: Seat,
    panels: Panels<'_, V>,
    b: &[V],
    c: &mut [V],
    partial: &mut [V],
    memory: &mut M,
) {
    let first_panel = seat.group / parts * (WORKGROUP / shape.team);
    // The whole workgroup goes: nobody waits for it at a barrier.
    if first_panel >= p.panels {
        return;
    }
    let part = seat.group % parts;
    let panel = first_panel + seat.local / shape.team;
    let lane = seat.local % shape.team;
    let width = shape.blocks();
    let base = seat.tile * width;
    let live = panel < p.panels && base + lane < p.width;
    let (start, end) = (p.granules * part / parts, p.granules * (part + 1) / parts);
    let pointers = panel * (p.granules + 1);
    let zero = [V::ZERO; 4];
    let mut acc = Rows { a: zero, b: zero, c: zero, d: zero };
    let mut granule = start;
    while granule < end {
        let next = if granule + p.span < end { granule + p.span } else { end };
        let first_row = granule * GRANULE;
        let last_row = if next * GRANULE < p.b_rows { next * GRANULE } else { p.b_rows };
        memory.barrier();
        let mut i = seat.local;
        while i < (last_row - first_row) * width {
            let (row, j) = (first_row + i / width, base + i % width);
            let x = if j < p.width { at(b, row * p.b_stride + p.b_offset + j) } else { V::ZERO };
            memory.set(i, x);
            i += WORKGROUP;
        }
        memory.barrier();
        if live {
            let mut g = granule;
            while g < next {
                let first = (g - granule) * GRANULE * width + lane;
                let mut quad = at(panels.ptr, pointers + g);
                let last = at(panels.ptr, pointers + g + 1);
                while quad < last {
                    let k = at(panels.columns, quad);
                    let (x0, x1) = (at(panels.values, 4 * quad), at(panels.values, 4 * quad + 1));
                    let (x2, x3) = (at(panels.values, 4 * quad + 2), at(panels.values, 4 * quad + 3));
                    add_column(shape, memory, &mut acc, k.x & 0xffff, x0, first);
                    add_column(shape, memory, &mut acc, k.x >> 16, x1, first);
                    add_column(shape, memory, &mut acc, k.y & 0xffff, x2, first);
                    add_column(shape, memory, &mut acc, k.y >> 16, x3, first);
                    quad += 1;
                }
                g += 1;
            }
        }
        granule = next;
    }
    if live {
        let rows = at(panels.rows, panel);
        let slot = 4 * panel * parts + part;
        let out = Out { shape, parts, p, first: base + lane };
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
    p: &'a TiledParams<E>,
    first: u32,
}

impl<E: Copy> Out<'_, E> {
    /// One row's: to C, or to its part's partial row.
    #[inline(always)]
    fn row<V: Block<Element = E>>(self, row: u32, slot: u32, sums: &[V; 4], c: &mut [V], partial: &mut [V]) {
        let p = self.p;
        if row == NO_ROW {
            return;
        }
        let same = SpmmParams {
            alpha: p.alpha,
            beta: p.beta,
            tasks: 0,
            width: p.width,
            b_stride: p.b_stride,
            b_offset: p.b_offset,
            c_stride: p.c_stride,
            c_offset: p.c_offset,
            read_c: p.read_c,
            tail: p.tail,
        };
        each_register!(self.shape.registers, |R| {
            let j = self.first + R as u32 * self.shape.team;
            if j < p.width {
                if self.parts == 1 {
                    store(&same, c, row, j, sums[R]);
                } else {
                    put(partial, slot * p.width + j, sums[R]);
                }
            }
        });
    }
}
