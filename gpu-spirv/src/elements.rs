//! Element-centric TTM and MTTKRP: an invocation computes one element of the result (Listings 1 and 3 of Sousa et al.,
//! *Exploring the Limits of Cross-Platform Sparse Tensor Processing*).
//!
//! ```text
//! invocation = (row i, column r)
//!   for each fiber f of row i: sum = 0
//!     for each nonzero (k, x) of f: sum += x F[k][r]                neighbours of a row read neighbouring elements
//!     acc += sum * product of the fiber's other coordinates' elements of column r
//!   out[i][r] = acc
//! ```
//!
//! The fibers' kernels ([`crate::spmm`], [`crate::mttkrp::fibers`]) stand between this and the paper's Listings 2 and 4, where an
//! invocation computes a row: there, a team's lanes share the row by register blocks, and long rows are cut.

use sparsimd_gpu_abi::MttkrpParams;
use spirv_std::glam::UVec4;

use crate::block::{Element, at, put};

/// Element number `i` of the rows of `tasks`, none of which is cut. Where `p.levels` is 0 (TTM), a row is one fiber: the items of
/// its task are nonzeros, and `ptr` and `table` are not read.
#[inline(always)]
pub fn body<E: Element>(
    p: &MttkrpParams<E>,
    i: u32,
    tasks: &[UVec4],
    ptr: &[u32],
    table: &[u32],
    idx: &[u32],
    val: &[E],
    factors: &[E],
    out: &mut [E],
) {
    let columns = 4 * (p.width - 1) + p.tail;
    let (task, r) = (i / columns, i % columns);
    if task >= p.tasks {
        return;
    }
    let task = at(tasks, task);
    let (stride, first) = (4 * p.f_stride, 4 * p.f_offset + r);
    let mut acc = E::ZERO;
    let mut item = task.y;
    while item < task.z {
        let (mut q, mut end) = (item, task.z);
        if p.levels > 0 {
            q = at(ptr, item);
            end = at(ptr, item + 1);
        }
        let mut sum = E::ZERO;
        while q < end {
            sum = sum + at(val, q) * at(factors, at(idx, q) * stride + first);
            q += 1;
        }
        let mut level = 0;
        while level < p.levels {
            if level != p.skip {
                sum = sum * at(factors, at(table, item * p.levels + level) * stride + first);
            }
            level += 1;
        }
        acc = acc + sum;
        item = if p.levels > 0 { item + 1 } else { task.z };
    }
    put(out, 4 * (task.x * p.c_stride + p.c_offset) + r, acc);
}
