//! Rows of the direct path that a task has alone, with all of their nonzeros, where the dense rows are one tile each and near enough not to
//! be prefetched. What is decided for each row costs as much as its products where rows are short: here it is decided once.

use pulp::{Simd, WithSimd};

use super::softmax::scale_row;
use super::{CHUNK, RowOf, Rows, fused_part};
use crate::rows::Prefetch;
use crate::sddmm::MOST_VECTORS;
use crate::tile::{Lines, store_zeros, tiles_in, tiles_of, with_vectors};
use crate::walk::{Part, inner_rows};
use crate::{Arch, Number, Scalar, Stored};

/// Runs the rows between the task's first and last one, where they are as the module says, and returns which rows it has run: none of
/// them, an empty range at the end, where they are not.
///
/// # Safety
/// As [`fused_rows`](super::fused_rows).
#[inline(always)]
pub(super) unsafe fn run_inner<D: Stored>(arch: Arch, rows: &Rows<'_, D>) -> [usize; 2] {
    let task = &rows.task;
    let (inner, none) = (inner_rows(task.rows), [task.rows[1]; 2]);
    let lanes = arch.lanes::<D::Scalar>();
    let Some(tile) = tiles_in::<D>(task.n, lanes, MOST_VECTORS).next() else { return none };
    let near = task.prefetch_distance == 0 && !task.stream && task.panel[0] >= task.panel[1];
    if D::NARROW
        || !near
        || lanes == 1
        || task.n != tile.vectors * lanes
        || task.width != task.n
        || inner[0] == inner[1]
    {
        return none;
    }
    with_vectors!(tile, run::<D>(arch, rows, inner));
    inner
}

/// Runs the rows, of `NV` vectors each.
#[inline(always)]
fn run<D: Stored, const NV: usize>(arch: Arch, rows: &Rows<'_, D>, inner: [usize; 2]) {
    arch.dispatch_vectors(InnerRows::<D, NV> { arch, rows: *rows, inner }, |_| ());
}

/// The rows as pulp runs them.
struct InnerRows<'a, D: Stored, const NV: usize> {
    arch: Arch,
    rows: Rows<'a, D>,
    inner: [usize; 2],
}

impl<D: Stored, const NV: usize> WithSimd for InnerRows<'_, D, NV> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { arch, rows, inner } = self;
        let task = &rows.task;
        let mut weights = Lines([D::Scalar::ZERO; CHUNK]);
        let chunk = (weights.0.as_mut_ptr(), task.chunk());
        let tiles = [tiles_of::<S, D>(task.n, NV); 2];
        let none = [D::Scalar::NEG_INFINITY, D::Scalar::ZERO];
        // SAFETY: the promise of `fused_rows`: the rows between its first and its last are its own, with all their nonzeros.
        unsafe {
            let mut next = task.row_ptr.at(inner[0]);
            for row in inner[0]..inner[1] {
                let start = next;
                next = task.row_ptr.at(row + 1);
                let e = task.e.0.wrapping_add(row * task.e.1).cast::<D::Scalar>();
                if start == next {
                    store_zeros::<S, D::Scalar, NV>(simd, e, 0, false);
                    continue;
                }
                let part = Part { row, slot: 0, start, end: next, first: true, last: true, inner: true };
                let of = RowOf::whole(e, &part);
                let [_, l] =
                    fused_part::<S, D, NV>((arch, simd), &rows, Prefetch::None, &part, of, (chunk, tiles), none);
                if rows.softmax && l != D::Scalar::ONE {
                    scale_row::<S, D::Scalar>(simd, e, task.width, D::Scalar::ONE / l);
                }
            }
        }
    }
}
