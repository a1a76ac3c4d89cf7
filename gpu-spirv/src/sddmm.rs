//! SDDMM: `out_p = alpha (C_i . B_k) [a_p]` on the pattern of A.
//!
//! ```text
//! team = task (row i, nonzeros p0 .. p1); lane owns the blocks j = lane, lane + T, ... of the row of C, in registers
//!   for eight nonzeros at a time, two quads:
//!     s[t] = sum over own blocks of C[i][j] . B[k_t][j]             coalesced, eight rows of B in flight
//!     transpose: three shuffles leave each lane of a quad with its own one of four sums, the rest doubles them up
//!     out[p + lane] = sum                                           one coalesced store
//! ```
//!
//! The transposing reduction of four sums over T lanes costs 3 + (log2 T - 2) shuffles; reducing each alone costs 4 log2 T. Quads
//! are aligned to four nonzeros, so indices come by 16-byte loads; positions outside the task hold columns of neighbouring
//! rows (or the padding's zeros), which are loaded harmlessly and not stored. All teams of a subgroup run the same number
//! of steps, so that every shuffle happens in uniform control flow.

use sparsimd_gpu_abi::SddmmParams;
use spirv_std::glam::UVec4;

use crate::block::{Block, Element, at, put};
use crate::each_register;
use crate::memory::Blocks;
use crate::spmm::Shape;
use crate::team::Team;

/// Brings four sums, each spread over a quad of lanes, to the lanes: lane l gets its quad's sum number l mod 4.
#[inline(always)]
fn transpose<E: Element, T: Team>(team: T, s: [E; 4]) -> E {
    let lane = team.lane();
    let upper = lane & 2 != 0;
    let t0 = exchange(team, 2, upper, s[0], s[2]);
    let t1 = exchange(team, 2, upper, s[1], s[3]);
    exchange(team, 1, lane & 1 != 0, t0, t1)
}

/// Of two sums, spread over two lanes whose numbers differ by `mask`: the first in one, the second in the other, the `upper` one.
#[inline(always)]
fn exchange<E: Element, T: Team>(team: T, mask: u32, upper: bool, first: E, second: E) -> E {
    let (keep, give) = if upper { (second, first) } else { (first, second) };
    keep + team.shuffle_xor(give, mask)
}

/// The sum over the lanes whose numbers differ by `mask` and its multiples, in each of them.
#[inline(always)]
fn sum_from<E: Element, T: Team>(team: T, mut sum: E, mut mask: u32) -> E {
    while mask < team.size() {
        sum = sum + team.shuffle_xor(sum, mask);
        mask *= 2;
    }
    sum
}

/// Brings four sums, each spread over all lanes of a team, to the lanes: lane l returns the whole sum number l mod 4.
#[inline(always)]
pub fn reduce_quad<E: Element, T: Team>(team: T, s: [E; 4]) -> E {
    sum_from(team, transpose(team, s), 4)
}

/// A dense operand: its blocks, how many lie from one row to the next, and the first block of a row.
#[derive(Clone, Copy)]
pub struct Dense<B> {
    /// The blocks.
    pub data: B,
    /// Blocks from one row to the next.
    pub stride: u32,
    /// First block of a row.
    pub offset: u32,
}

/// The register block of a lane of row `i`, zero past `width`.
#[inline(always)]
pub fn load_row<B: Blocks>(shape: Shape, m: Dense<B>, i: u32, first: u32, width: u32) -> [B::Block; 4] {
    let mut row = [B::Block::ZERO; 4];
    each_register!(shape.registers, |R| {
        let j = first + R as u32 * shape.team;
        if j < width {
            row[R] = m.data.get(i * m.stride + m.offset + j);
        }
    });
    row
}

/// One lane's share of four dot products: the register block `c` with the rows `k` of B.
#[inline(always)]
pub fn dot_quad<V: Block, B: Blocks<Block = V>>(
    shape: Shape,
    c: &[V; 4],
    b: Dense<B>,
    k: UVec4,
    first: u32,
    width: u32,
) -> [V::Element; 4] {
    let rows = k * b.stride + UVec4::splat(b.offset);
    let mut s = [V::Element::ZERO; 4];
    each_register!(shape.registers, |R| {
        let j = first + R as u32 * shape.team;
        // A lane past the row's end must not multiply its zeros with what it finds there, which may be infinite.
        if j < width {
            let b0 = b.data.get(rows.x + j);
            let b1 = b.data.get(rows.y + j);
            let b2 = b.data.get(rows.z + j);
            let b3 = b.data.get(rows.w + j);
            s[0] = c[R].add_dot(b0, s[0]);
            s[1] = c[R].add_dot(b1, s[1]);
            s[2] = c[R].add_dot(b2, s[2]);
            s[3] = c[R].add_dot(b3, s[3]);
        }
    });
    s
}

/// `a + b` by element.
#[inline(always)]
fn plus<E: Element>(a: [E; 4], b: [E; 4]) -> [E; 4] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
}

/// One lane's share of one task.
#[inline(always)]
pub fn body<V: Block, B: Blocks<Block = V>, T: Team>(
    shape: Shape,
    p: &SddmmParams<V::Element>,
    task: u32,
    team: T,
    tasks: &[UVec4],
    idx4: &[UVec4],
    val: &[V::Element],
    c: B,
    b: B,
    out: &mut [V::Element],
) {
    let c = Dense { data: c, stride: p.c_stride, offset: p.c_offset };
    let b = Dense { data: b, stride: p.b_stride, offset: p.b_offset };
    let lane = team.lane();
    let (mut row, mut start, mut end) = (0, 0, 0);
    if task < p.tasks {
        let t = at(tasks, task);
        row = t.x;
        start = t.y;
        end = t.z;
    }
    let base = start & !7;
    let steps = team.in_step_max(if end > start { (end - base).div_ceil(8) } else { 0 });
    let tile = shape.team * shape.registers;
    let mut own = [V::ZERO; 4];
    if start < end {
        own = load_row(shape, c, row, lane, p.width);
    }
    let mut step = 0;
    while step < steps {
        let q0 = base + 8 * step;
        let q1 = q0 + 4;
        let mut s0 = [V::Element::ZERO; 4];
        let mut s1 = [V::Element::ZERO; 4];
        if q0 < end {
            let first_counts = q1 > start;
            let second_counts = q1 < end;
            let k0 = at(idx4, q0 / 4);
            let k1 = at(idx4, q0 / 4 + 1);
            if first_counts {
                s0 = dot_quad(shape, &own, b, k0, lane, p.width);
            }
            if second_counts {
                s1 = dot_quad(shape, &own, b, k1, lane, p.width);
            }
            // Rows wider than the registers of a team: the rest of C's row comes from the cache each time.
            let mut first = lane + tile;
            while first < p.width {
                let more = load_row(shape, c, row, first, p.width);
                if first_counts {
                    s0 = plus(s0, dot_quad(shape, &more, b, k0, first, p.width));
                }
                if second_counts {
                    s1 = plus(s1, dot_quad(shape, &more, b, k1, first, p.width));
                }
                first += tile;
            }
        }
        let d0 = reduce_quad(team, s0);
        let d1 = reduce_quad(team, s1);
        if shape.team == 4 {
            store(p, q0 + lane, start, end, d0, val, out);
            store(p, q1 + lane, start, end, d1, val, out);
        } else if lane < 8 {
            let dot = if lane < 4 { d0 } else { d1 };
            store(p, q0 + lane, start, end, dot, val, out);
        }
        step += 1;
    }
}

/// `out_i = alpha dot [a_i] [+ out_i]`, for a nonzero of the task.
#[inline(always)]
fn store<E: Element>(p: &SddmmParams<E>, i: u32, start: u32, end: u32, dot: E, val: &[E], out: &mut [E]) {
    if i < start || i >= end {
        return;
    }
    let mut x = p.alpha * dot;
    if p.scaled != 0 {
        x = x * at(val, i);
    }
    if p.accumulate != 0 {
        x = x + at(out, i);
    }
    put(out, i, x);
}
