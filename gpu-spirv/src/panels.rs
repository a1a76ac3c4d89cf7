//! What the tiled kernels share: A by panels of four rows, and the walk over the columns of A with rows of B in
//! workgroup memory.
//!
//! ```text
//! workgroup = (128 / T panels of four rows, a range of the columns of A)
//!   for granules of 32 columns of A, as many at a time as their rows of B fit workgroup memory:
//!     barrier; all invocations copy these rows of B to workgroup memory, coalesced; barrier
//!     team = panel: takes the columns that any of its four rows has, four at a time
//! ```
//!
//! Why: a kernel by rows loads 16 bytes of B for four multiply-adds of a lane, whatever serves the load. Here a row of
//! B leaves the second-level cache once for all panels of a workgroup, and once in registers it serves every row of the
//! panel that has its column: at 70 % zeros 1.58 of four on average.
//!
//! The lists of four panels stand side by side, a quad of each in turn, so that four teams of a subgroup read their
//! columns by one wavefront, and what belongs to a column of each by another. The order of a granule's columns is the
//! host's to choose.

use sparsimd_gpu_abi::{BUNDLE, GRANULE, NOTHING, WORKGROUP, Walk};
use spirv_std::glam::{UVec2, UVec4};

use crate::block::{Block, Element, at};
use crate::each_register;
use crate::sddmm::{Dense, load_row};
use crate::spmm::Shape;

/// Memory that the invocations of a workgroup share.
pub trait Memory<V> {
    /// Writes one block.
    fn set(&mut self, i: u32, x: V);
    /// Reads one block.
    fn get(&self, i: u32) -> V;
    /// Waits for all invocations, and for what they wrote.
    fn barrier(&self);
}

/// Workgroup memory.
#[cfg(target_arch = "spirv")]
pub struct Tile<'a, V, const N: usize>(pub &'a mut [V; N]);

#[cfg(target_arch = "spirv")]
impl<V: Copy, const N: usize> Memory<V> for Tile<'_, V, N> {
    #[inline(always)]
    fn set(&mut self, i: u32, x: V) {
        use spirv_std::arch::IndexUnchecked;
        // SAFETY: the host takes as many granules at a time as fit.
        unsafe { *self.0.index_unchecked_mut(i as usize) = x }
    }
    #[inline(always)]
    fn get(&self, i: u32) -> V {
        use spirv_std::arch::IndexUnchecked;
        // SAFETY: as above.
        unsafe { *self.0.index_unchecked(i as usize) }
    }
    #[inline(always)]
    fn barrier(&self) {
        spirv_std::arch::workgroup_memory_barrier_with_group_sync();
    }
}

/// The pattern of the sparse matrix by panels of four rows.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    /// The rows of each panel, [`NOTHING`] where the last one has fewer.
    pub rows: &'a [UVec4],
    /// First step of each granule of each bundle of panels, and the end of the bundle's last. A step has a quad for
    /// each panel.
    pub ptr: &'a [u32],
    /// Quads of columns, 16 bits each: the column within its granule, then a bit for each row that has it. Zeros where
    /// the list of another panel of the bundle is longer.
    pub columns: &'a [UVec2],
}

/// The lists of one panel.
#[derive(Clone, Copy)]
pub struct Lists<'a> {
    panels: Panels<'a>,
    /// Whether there is such a panel; where not, its lists are empty.
    live: bool,
    /// Of the bundle's pointers the first.
    pointers: u32,
    /// Which of the bundle's panels it is.
    place: u32,
}

impl<'a> Lists<'a> {
    /// Those of panel number `panel`, of granules as the walk has them.
    #[inline(always)]
    pub fn new(panels: Panels<'a>, walk: &Walk, panel: u32, live: bool) -> Self {
        Self { panels, live, pointers: panel / BUNDLE * (walk.granules + 1), place: panel % BUNDLE }
    }

    /// The first step of a granule, and the end of its last.
    #[inline(always)]
    pub fn steps(self, granule: u32) -> (u32, u32) {
        if !self.live {
            return (0, 0);
        }
        (at(self.panels.ptr, self.pointers + granule), at(self.panels.ptr, self.pointers + granule + 1))
    }

    /// The panel's quad of a step; one that is not [`listed`] from step `last` on.
    #[inline(always)]
    pub fn quad(self, step: u32, last: u32) -> UVec2 {
        if step < last { at(self.panels.columns, BUNDLE * step + self.place) } else { UVec2::ZERO }
    }

    /// The place of what belongs to column `c`, 0 to 3, of the panel's quad of a step.
    #[inline(always)]
    pub fn place_of(self, step: u32, c: u32) -> u32 {
        (4 * step + c) * BUNDLE + self.place
    }
}

/// Whether a quad has columns: a list's first column of a step has a row.
#[inline(always)]
pub fn listed(quad: UVec2) -> bool {
    quad.x != 0
}

/// Which workgroup and which invocation of it.
#[derive(Clone, Copy)]
pub struct ThreadIndex {
    /// Number of the workgroup among those of its tile.
    pub group: u32,
    /// Number of the invocation in it: teams are neighbours.
    pub local: u32,
    /// Which tile of the columns of B.
    pub tile: u32,
}

impl ThreadIndex {
    /// The thread of an invocation of subgroup number `subgroup` of the `subgroups` that workgroup `group` has, for
    /// teams that exchange values: they must lie within a subgroup. The host asks for full subgroups.
    #[inline(always)]
    pub fn of_subgroup(group: u32, subgroup: u32, subgroups: u32, invocation: u32) -> Self {
        Self { group, local: subgroup * (WORKGROUP / subgroups) + invocation, tile: 0 }
    }
}

/// What one invocation has to do.
#[derive(Clone, Copy)]
pub struct PanelItem {
    /// Whether its workgroup has a panel. Where not, the whole workgroup may go: nobody waits for it at a barrier.
    pub any: bool,
    /// Its team's panel, which may be past the last one.
    pub panel: u32,
    /// Which part of the columns of A.
    pub part: u32,
    /// Its lane of the team.
    pub lane: u32,
}

impl PanelItem {
    /// The item of a thread, where `parts` workgroups share the columns of the same panels.
    #[inline(always)]
    pub fn new(shape: Shape, parts: u32, count: u32, thread: ThreadIndex) -> Self {
        let first = thread.group / parts * (WORKGROUP / shape.team);
        Self {
            any: first < count,
            panel: first + thread.local / shape.team,
            part: thread.group % parts,
            lane: thread.local % shape.team,
        }
    }

    /// Where the panel's first partial row of this part is among the `parts` of each row.
    #[inline(always)]
    pub fn slot(self, parts: u32) -> u32 {
        4 * self.panel * parts + self.part
    }
}

/// Granules whose rows of B are in workgroup memory together.
#[derive(Clone, Copy)]
pub struct Span {
    /// The first one.
    pub first: u32,
    /// One past the last.
    pub next: u32,
    /// One past the last of the part.
    end: u32,
}

impl Span {
    /// The first span of part number `part` of `parts`; empty where the part has none.
    #[inline(always)]
    pub fn first(walk: &Walk, part: u32, parts: u32) -> Self {
        let first = walk.granules * part / parts;
        Self { first, next: first, end: walk.granules * (part + 1) / parts }.following(walk)
    }

    /// The one after this one, empty at the end.
    #[inline(always)]
    pub fn following(self, walk: &Walk) -> Self {
        let next = self.next + walk.span;
        Self { first: self.next, next: if next < self.end { next } else { self.end }, end: self.end }
    }

    /// Whether there is a granule in it.
    #[inline(always)]
    pub fn any(self) -> bool {
        self.first < self.next
    }
}

/// Copies the rows of a span of a dense operand to workgroup memory from block `to` on, of each the blocks of a tile of
/// `tile` blocks from block `base` on, zeros past `width`. All invocations of a workgroup take part, between two
/// barriers.
#[inline(always)]
pub fn copy_rows<V: Block, M: Memory<V>>(
    memory: &mut M,
    to: u32,
    m: Dense<&[V]>,
    walk: &Walk,
    span: Span,
    base: u32,
    tile: u32,
    width: u32,
    local: u32,
) {
    let (first, end) = (span.first * GRANULE, span.next * GRANULE);
    let end = if end < walk.b_rows { end } else { walk.b_rows };
    let mut i = local;
    while i < (end - first) * tile {
        let (row, j) = (first + i / tile, base + i % tile);
        let x = if j < width { at(m.data, row * m.stride + m.offset + j) } else { V::ZERO };
        memory.set(to + i, x);
        i += WORKGROUP;
    }
}

/// The entry of column `c`, 0 to 3, of a quad: its number within the granule and its rows' bits.
#[inline(always)]
pub fn entry(quad: UVec2, c: u32) -> u32 {
    let pair = if c < 2 { quad.x } else { quad.y };
    pair >> (16 * (c & 1)) & 0xffff
}

/// Element i XOR `by` at each place i.
#[inline(always)]
pub fn exchanged(x: UVec4, by: u32) -> UVec4 {
    let x = if by & 2 != 0 { UVec4::new(x.z, x.w, x.x, x.y) } else { x };
    if by & 1 != 0 { UVec4::new(x.y, x.x, x.w, x.z) } else { x }
}

/// The lane's first block of the row of B of an entry, in workgroup memory.
#[inline(always)]
fn row_of(shape: Shape, entry: u32, first: u32) -> u32 {
    first + (entry & (GRANULE - 1)) * shape.blocks()
}

/// Blocks of a lane for each of the four rows of a panel, in registers.
#[derive(Clone, Copy)]
pub struct Rows<V> {
    /// Of row 0.
    pub a: [V; 4],
    /// Of row 1.
    pub b: [V; 4],
    /// Of row 2.
    pub c: [V; 4],
    /// Of row 3.
    pub d: [V; 4],
}

impl<V: Block> Rows<V> {
    /// All zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        let zero = [V::ZERO; 4];
        Self { a: zero, b: zero, c: zero, d: zero }
    }

    /// The lane's blocks of four rows of a dense operand, zeros for [`NOTHING`] and past `width`.
    #[inline(always)]
    pub fn load(shape: Shape, m: Dense<&[V]>, rows: UVec4, lane: u32, width: u32) -> Self {
        let row = |i: u32| load_row(shape, m, i, lane, if i == NOTHING { 0 } else { width });
        Self { a: row(rows.x), b: row(rows.y), c: row(rows.z), d: row(rows.w) }
    }

    /// Adds one column: `entry` is its own, `x` has the rows' values, `first` is the lane's first block of the
    /// granule's row 0 in workgroup memory.
    ///
    /// Which rows add is a mask, not a zero among the values: a row must not meet an element of B that it has no
    /// nonzero for, which may be infinite.
    #[inline(always)]
    pub fn add_entry<M: Memory<V>>(&mut self, shape: Shape, memory: &M, entry: u32, x: V, first: u32) {
        let place = row_of(shape, entry, first);
        let mut y = [V::ZERO; 4];
        each_register!(shape.registers, |R| {
            y[R] = memory.get(place + R as u32 * shape.team);
        });
        if entry & GRANULE != 0 {
            each_register!(shape.registers, |R| {
                self.a[R] = self.a[R].add_scaled(x.x(), y[R]);
            });
        }
        if entry & (2 * GRANULE) != 0 {
            each_register!(shape.registers, |R| {
                self.b[R] = self.b[R].add_scaled(x.y(), y[R]);
            });
        }
        if entry & (4 * GRANULE) != 0 {
            each_register!(shape.registers, |R| {
                self.c[R] = self.c[R].add_scaled(x.z(), y[R]);
            });
        }
        if entry & (8 * GRANULE) != 0 {
            each_register!(shape.registers, |R| {
                self.d[R] = self.d[R].add_scaled(x.w(), y[R]);
            });
        }
    }

    /// The lane's share of the dot products of the four rows with one row of B; arguments as above.
    ///
    /// Without a mask: a dot product that no nonzero wants harms no other.
    #[inline(always)]
    fn dots<M: Memory<V>>(&self, shape: Shape, memory: &M, entry: u32, first: u32) -> [V::Element; 4] {
        let place = row_of(shape, entry, first);
        let mut s = [V::Element::ZERO; 4];
        each_register!(shape.registers, |R| {
            let y = memory.get(place + R as u32 * shape.team);
            s[0] = self.a[R].add_dot(y, s[0]);
            s[1] = self.b[R].add_dot(y, s[1]);
            s[2] = self.c[R].add_dot(y, s[2]);
            s[3] = self.d[R].add_dot(y, s[3]);
        });
        s
    }

    /// The dot products of the four rows with the four rows of B of a quad, each still spread over the lanes:
    /// `[column][row]`, the columns in this lane's order: number c XOR `by` at c.
    #[inline(always)]
    pub fn dots_of_quad<M: Memory<V>>(
        &self,
        shape: Shape,
        memory: &M,
        quad: UVec2,
        by: u32,
        first: u32,
    ) -> [[V::Element; 4]; 4] {
        [
            self.dots(shape, memory, entry(quad, by), first),
            self.dots(shape, memory, entry(quad, 1 ^ by), first),
            self.dots(shape, memory, entry(quad, 2 ^ by), first),
            self.dots(shape, memory, entry(quad, 3 ^ by), first),
        ]
    }
}
