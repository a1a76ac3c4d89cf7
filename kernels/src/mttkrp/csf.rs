//! MTTKRP over a range of fibers of a CSF tensor, for the mode of any level.
//!
//! ```text
//! for f in fibers:                                  nodes of the last level but one
//!     on entering an ancestor at a level above the output's:  down = product of the factor rows from the root
//!     sum = sum over the fiber's nonzeros of x * factor_leaf[k]
//!     output at the root or between (slice algorithm):  up[level] += sum * factor[j], and so on upwards when nodes end
//!     output at the fibers (fiber algorithm):           out[j] += sum * down
//!     output at the leaves (nonzero algorithm):         out[k] += x * down * factor[j] for every nonzero
//! ```
//!
//! The fiber's sum and that of its parent stay in registers; sums and products of the levels above, which change
//! seldom, lie in memory.

use pulp::{Simd, WithSimd};

use super::{
    MAX_ORDER, Operands, Panel, accumulate, add, add_to, load, multiply, panels, prefetch_panel, scale_by, zeros,
};
use crate::arch::dispatch_stored;
use crate::stored::Vector;
use crate::tile::Lines;
use crate::{Arch, Number, Stored};

/// A tensor in compressed sparse fibers, and the part of it that one task computes.
#[derive(Clone, Copy, Debug)]
pub struct CsfView<'a, T> {
    /// The mode of each level, root first; 2 to 8 levels.
    pub mode_order: &'a [usize],
    /// The coordinates of each level's nodes.
    pub idx: &'a [&'a [u32]],
    /// The start of each node's children, for every level but the last.
    pub ptr: &'a [&'a [usize]],
    /// The values of the last level's nodes.
    pub values: &'a [T],
    /// The level of the output's mode.
    pub level: usize,
    /// The fibers (nodes of the last level but one) of this task: first, and one past the last.
    pub fibers: (usize, usize),
}

#[derive(Clone, Copy)]
struct Walk<'a, D: Stored> {
    view: CsfView<'a, D::Scalar>,
    operands: Operands<'a, D>,
}

/// Adds the contributions of the task's fibers to the rows of the output that they name.
///
/// # Safety
/// Stride and columns of `operands` are whole registers of `arch`. The view is a valid CSF tensor (pointers ascend from 0
/// to the number of nodes of the next level, one coordinate per node, one value per leaf) whose coordinates are rows
/// of their factors; the fibers are in range; nobody else uses these columns of the output rows that they name.
pub unsafe fn mttkrp_csf<D: Stored>(arch: Arch, view: CsfView<'_, D::Scalar>, operands: Operands<'_, D>) {
    if view.fibers.0 < view.fibers.1 {
        dispatch_stored!(arch, Walk::<D> { view, operands }, Walk);
    }
}

impl<D: Stored> WithSimd for Walk<'_, D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // SAFETY: the promise to the public function.
        unsafe { panels::<S, D::Scalar, _>(simd, self.operands.columns, &self) }
    }
}

impl<D: Stored> Walk<'_, D> {
    /// The factor row of a node of `level`, from `column` on.
    #[inline(always)]
    unsafe fn row(&self, level: usize, node: usize, column: usize) -> *const D {
        // SAFETY: the node exists, and its coordinate is a row of the factor.
        unsafe {
            let i = *self.view.idx.get_unchecked(level).get_unchecked(node) as usize;
            let mode = *self.view.mode_order.get_unchecked(level);
            self.operands.factors.get_unchecked(mode).add(i * self.operands.stride + column)
        }
    }

    /// The output row of a node of the output's level, from `column` on.
    #[inline(always)]
    unsafe fn out(&self, node: usize, column: usize) -> *mut D::Scalar {
        // SAFETY: the node exists.
        let i = unsafe { *self.view.idx.get_unchecked(self.view.level).get_unchecked(node) } as usize;
        self.operands.out.wrapping_add(i * self.operands.stride + column)
    }

    /// The leaves, from `column` on.
    #[inline(always)]
    fn leaves(&self, column: usize) -> Leaves<D> {
        let Self { view, operands } = self;
        let last = view.idx.len() - 1;
        Leaves {
            idx: view.idx[last].as_ptr(),
            values: view.values.as_ptr(),
            most: view.values.len() - 1,
            rows: operands.factors[view.mode_order[last]].wrapping_add(column),
            stride: operands.stride,
            prefetch_distance: operands.prefetch_distance,
        }
    }
}

/// What every leaf is read from, kept in registers: behind the view's slices of slices it would be loaded again for each.
struct Leaves<D: Stored> {
    idx: *const u32,
    values: *const D::Scalar,
    /// The last leaf.
    most: usize,
    /// Row 0 of the leaves' factor.
    rows: *const D,
    stride: usize,
    prefetch_distance: usize,
}

impl<D: Stored> Leaves<D> {
    /// `sum += x_p factor_leaf[k_p]`.
    #[inline(always)]
    unsafe fn leaf<S: Simd, const G: usize>(&self, simd: S, p: usize, sum: &mut [Vector<D, S>; G]) {
        // SAFETY: the leaf is in range, and its coordinate a row of the factor.
        unsafe {
            let row = |p: usize| self.rows.wrapping_add(*self.idx.add(p) as usize * self.stride);
            if self.prefetch_distance != 0 {
                prefetch_panel::<S, D, G>(row((p + self.prefetch_distance).min(self.most)), self.prefetch_distance);
            }
            let x = D::Scalar::splat(simd, *self.values.add(p));
            let row = row(p);
            for (g, sum) in sum.iter_mut().enumerate() {
                *sum = D::Scalar::vmul_add(simd, x, D::read(simd, row.add(g * D::Scalar::lanes::<S>())), *sum);
            }
        }
    }

    /// `sum_{p in leaves} x_p factor_leaf[k_p]`, in two chains that hide the latency of the multiply-add.
    #[inline(always)]
    unsafe fn sum<S: Simd, const G: usize>(&self, simd: S, (first, end): (usize, usize)) -> [Vector<D, S>; G] {
        let mut even = zeros::<S, D::Scalar, G>(simd);
        let mut odd = zeros::<S, D::Scalar, G>(simd);
        let mut p = first;
        // SAFETY: leaves are in range.
        unsafe {
            while p + 1 < end {
                self.leaf::<S, G>(simd, p, &mut even);
                self.leaf::<S, G>(simd, p + 1, &mut odd);
                p += 2;
            }
            if p < end {
                self.leaf::<S, G>(simd, p, &mut even);
            }
        }
        add::<S, D::Scalar, G>(simd, &mut even, &odd);
        even
    }
}

impl<D: Stored> Panel<D::Scalar> for Walk<'_, D> {
    #[inline(always)]
    unsafe fn panel<S: Simd, const G: usize>(&self, simd: S, column: usize) {
        let view = &self.view;
        let order = view.idx.len();
        let (fiber_level, leaf_level) = (order - 2, order - 1);
        let (first, end) = view.fibers;
        let all_leaves = self.leaves(column);
        let lanes = D::Scalar::lanes::<S>();

        // The ancestors of the first fiber; `node[fiber_level]` is the fiber itself.
        let mut node = [0usize; MAX_ORDER];
        node[fiber_level] = first;
        for l in (0..fiber_level).rev() {
            node[l] = view.ptr[l].partition_point(|&child| child <= node[l + 1]) - 1;
        }
        // down[l]: product of the factor rows of the levels above l. up[l]: sum of a node of level l that is still open.
        let down = &mut Lines([[D::Scalar::splat(simd, D::Scalar::ONE); G]; MAX_ORDER]).0;
        let up = &mut Lines([zeros::<S, D::Scalar, G>(simd); MAX_ORDER]).0;
        // The open node of the fibers' parent level, in registers.
        let mut parent_sum = zeros::<S, D::Scalar, G>(simd);
        // The highest level whose node the next fiber is the first one of.
        let mut entered = 0;
        // Levels whose product goes into `down`: those above the output, of the fibers' ancestors.
        let down_to = view.level.min(fiber_level);

        for fiber in first..end {
            // SAFETY: nodes and leaves are in range by the invariants of the format; rows exist.
            unsafe {
                for l in entered..down_to {
                    let mut product = down[l];
                    scale_by::<S, D, G>(simd, &mut product, self.row(l, node[l], column));
                    down[l + 1] = product;
                }
                let ptr = view.ptr.get_unchecked(fiber_level);
                let leaves = (*ptr.get_unchecked(fiber), *ptr.get_unchecked(fiber + 1));
                if view.level == leaf_level {
                    let mut product = down[fiber_level];
                    scale_by::<S, D, G>(simd, &mut product, self.row(fiber_level, fiber, column));
                    for p in leaves.0..leaves.1 {
                        if self.operands.prefetch_distance != 0 {
                            let q = (p + self.operands.prefetch_distance).min(view.values.len() - 1);
                            prefetch_panel::<S, D::Scalar, G>(self.out(q, column), self.operands.prefetch_distance);
                        }
                        let x = D::Scalar::splat(simd, *view.values.get_unchecked(p));
                        let out = self.out(p, column);
                        for (g, &product) in product.iter().enumerate() {
                            let at = out.add(g * lanes);
                            D::Scalar::store(
                                simd,
                                at,
                                D::Scalar::vmul_add(simd, x, product, D::Scalar::load(simd, at)),
                            );
                        }
                    }
                } else {
                    if self.operands.prefetch_distance != 0 {
                        // Fibers are as many as nonzeros in the hard case, so the distance is the same.
                        let next = (fiber + self.operands.prefetch_distance).min(end - 1);
                        if view.level == fiber_level {
                            prefetch_panel::<S, D::Scalar, G>(self.out(next, column), self.operands.prefetch_distance);
                        } else {
                            prefetch_panel::<S, D, G>(
                                self.row(fiber_level, next, column),
                                self.operands.prefetch_distance,
                            );
                        }
                    }
                    let mut sum = all_leaves.sum::<S, G>(simd, leaves);
                    if view.level == fiber_level {
                        multiply::<S, D::Scalar, G>(simd, &mut sum, &down[fiber_level]);
                        add_to::<S, D::Scalar, G>(simd, self.out(fiber, column), &sum);
                    } else {
                        let row = load::<S, D, G>(simd, self.row(fiber_level, fiber, column));
                        accumulate::<S, D::Scalar, G>(simd, &mut parent_sum, &sum, &row);
                    }
                }

                // The ancestors that end with this fiber, lowest first.
                entered = fiber_level;
                let mut l = fiber_level;
                node[l] = fiber + 1;
                while l > 0 {
                    let open = node[l - 1];
                    let ends = node[l] == *view.ptr.get_unchecked(l - 1).get_unchecked(open + 1);
                    if !(ends || fiber + 1 == end) {
                        break;
                    }
                    l -= 1;
                    if l >= view.level {
                        let sum = if l + 1 == fiber_level { parent_sum } else { up[l] };
                        if l == view.level {
                            let mut total = sum;
                            multiply::<S, D::Scalar, G>(simd, &mut total, &down[l]);
                            add_to::<S, D::Scalar, G>(simd, self.out(open, column), &total);
                        } else {
                            let row = load::<S, D, G>(simd, self.row(l, open, column));
                            let mut above = up[l - 1];
                            accumulate::<S, D::Scalar, G>(simd, &mut above, &sum, &row);
                            up[l - 1] = above;
                        }
                        if l + 1 == fiber_level {
                            parent_sum = zeros::<S, D::Scalar, G>(simd);
                        } else {
                            up[l] = zeros::<S, D::Scalar, G>(simd);
                        }
                    }
                    if ends {
                        node[l] = open + 1;
                        entered = l;
                    }
                }
            }
        }
    }
}
