//! TTM chain on CSF: Y_i = sum over the nonzeros of slice i of x kron(U_1[i_1], ..., U_{L-1}[i_{L-1}]), without a
//! tensor in between.
//!
//! ```text
//! for every fiber (node of level L - 2), depth first
//!     t = sum over its nonzeros of x_p U_{L-1}[k(p)]                    R_{L-1} numbers
//!     for l = L - 2, L - 3, ... as long as the node is its parent's last child
//!         acc_l += U_l[index of the node] (outer) t;  t = acc_l         R_l ... R_{L-1} numbers
//! ```
//! acc_1 is the row of Y itself. What is stored besides is one path of the tree: at most as much again as a row of Y
//! (Smith and Karypis 2017 do the same for Tucker). The sums are linear, so a task may begin and end anywhere: what it
//! has at its end goes up the tree to the row of Y, and rows that several tasks share are added up by the caller.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_compiled;
use crate::{Arch, MAX_ORDER, Scalar, prefetch_row};

/// One level of the tree: its nodes and, below the root, the matrix of its mode.
#[derive(Clone, Copy, Debug)]
pub struct ChainLevel<'a, T> {
    /// Start of each node's children in the next level, and the end of the last one's; empty at the last level.
    pub ptr: &'a [usize],
    /// Coordinate of each node.
    pub idx: &'a [u32],
    /// The matrix of the mode; unused at the root.
    pub u: *const T,
    /// Its row stride.
    pub u_stride: usize,
    /// Its columns.
    pub rank: usize,
}

/// Some fibers' part of a TTM chain.
#[derive(Clone, Copy, Debug)]
pub struct TtmChain<'a, T> {
    /// Root to nonzeros: two levels at least.
    pub levels: &'a [ChainLevel<'a, T>],
    /// Value of each nonzero.
    pub x: &'a [T],
    /// First fiber and one past the last.
    pub fibers: [usize; 2],
    /// Row of Y of the root that the first fiber is below; further roots' rows follow.
    pub y: *mut T,
    /// Row stride of Y.
    pub y_stride: usize,
    /// Where the first root's row goes instead, unless null.
    pub carry_out: *mut T,
    /// Room for [`chain_scratch`] numbers.
    pub scratch: *mut T,
    /// How many nonzeros ahead rows of the last level's matrix are prefetched.
    pub prefetch_distance: usize,
}

/// Numbers of scratch that a task needs, from the ranks of the levels (that of the root, the first one, is ignored).
pub fn chain_scratch(ranks: &[usize]) -> usize {
    let mut size = 1;
    let mut total = 0;
    for &rank in ranks.iter().skip(1).rev() {
        size *= rank;
        total += size;
    }
    total
}

/// Runs the task: rows of Y (or the carry-out) are overwritten.
///
/// # Safety
/// - the levels form a tree as in CSF, and every matrix has a row of `rank` elements for every coordinate of its level;
/// - `fibers` are nodes of the last level but one, and there is a value for every node of the last level;
/// - Y has rows of as many elements as the product of the ranks for every root above the fibers, and so has
///   `carry_out`; nobody else touches them, or the scratch, meanwhile.
pub unsafe fn ttm_chain<T: Scalar>(arch: Arch, task: TtmChain<'_, T>) {
    dispatch_compiled!(arch, Chain(task), Chain<'_, f32>, Chain<'_, f64>);
}

#[derive(Clone, Copy)]
struct Chain<'a, T>(TtmChain<'a, T>);

impl<T: Scalar> WithSimd for Chain<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let task = self.0;
        let levels = task.levels;
        let last = levels.len() - 1;
        assert!((2..=MAX_ORDER).contains(&levels.len()), "a tree of 2 to 8 levels");
        let mut ranks = [0usize; MAX_ORDER];
        for (l, level) in levels.iter().enumerate() {
            ranks[l] = level.rank;
        }
        if task.fibers[0] >= task.fibers[1] {
            return;
        }
        // size[l]: numbers of one sum over the children of a node of level l - 1; acc[l]: where it is.
        let mut size = [1usize; MAX_ORDER + 1];
        let mut acc = [core::ptr::null_mut::<T>(); MAX_ORDER];
        // The node of each level that the fiber is below, found from the fiber upwards.
        let mut node = [0usize; MAX_ORDER];
        let mut room = task.scratch;
        // SAFETY: the scratch has room for all the sizes; the tree's pointers bracket every node.
        unsafe {
            for l in (1..=last).rev() {
                size[l] = size[l + 1] * ranks[l];
                acc[l] = room;
                room = room.add(size[l]);
            }
            node[last - 1] = task.fibers[0];
            for l in (0..last - 1).rev() {
                node[l] = levels[l].ptr.partition_point(|&child| child <= node[l + 1]) - 1;
            }
            let (mut y, mut carry_out) = (task.y, task.carry_out);
            let target = |y: *mut T, carry_out: *mut T| if carry_out.is_null() { y } else { carry_out };
            acc[1] = target(y, carry_out);
            for l in 1..last {
                core::slice::from_raw_parts_mut(acc[l], size[l]).fill(T::ZERO);
            }
            for fiber in task.fibers[0]..task.fibers[1] {
                // With two levels, the fiber's sum is the row itself.
                let t = acc[last];
                leaf::<S, T>(simd, &task, fiber, t);
                let end = fiber + 1 == task.fibers[1];
                node[last - 1] = fiber;
                let mut done = true;
                for l in (1..last).rev() {
                    let level = &levels[l];
                    let row = level.u.add(*level.idx.get_unchecked(node[l]) as usize * level.u_stride);
                    outer::<S, T>(simd, acc[l], row, level.rank, acc[l + 1], size[l + 1]);
                    if l + 1 < last {
                        core::slice::from_raw_parts_mut(acc[l + 1], size[l + 1]).fill(T::ZERO);
                    }
                    let parent = node[l - 1];
                    done = node[l] + 1 == *levels[l - 1].ptr.get_unchecked(parent + 1);
                    node[l] += 1;
                    if !done && !end {
                        break;
                    }
                }
                if done && !end {
                    // The slice is complete; level 0 moves on, and with it the row.
                    node[0] += 1;
                    y = y.add(task.y_stride);
                    carry_out = core::ptr::null_mut();
                    acc[1] = target(y, carry_out);
                    if last > 1 {
                        core::slice::from_raw_parts_mut(acc[1], size[1]).fill(T::ZERO);
                    }
                }
            }
        }
    }
}

/// t = sum over the nonzeros of the fiber of x_p U[k(p)].
///
/// # Safety
/// As [`ttm_chain`]; `t` has room for the last level's rank.
#[inline(always)]
unsafe fn leaf<S: Simd, T: Scalar>(simd: S, task: &TtmChain<'_, T>, fiber: usize, t: *mut T) {
    let last = task.levels.len() - 1;
    let (level, ptr) = (&task.levels[last], task.levels[last - 1].ptr);
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's promise; `p` is a nonzero.
    unsafe {
        let (start, end) = (*ptr.get_unchecked(fiber), *ptr.get_unchecked(fiber + 1));
        for p in start..end {
            let coming = *level.idx.get_unchecked((p + task.prefetch_distance).min(level.idx.len() - 1));
            prefetch_row(level.u.wrapping_add(coming as usize * level.u_stride), level.rank * size_of::<T>());
        }
        let mut at = 0;
        while at < level.rank {
            let mask = T::first_lanes(simd, level.rank - at);
            let whole = level.rank - at >= lanes;
            let mut sum = T::splat(simd, T::ZERO);
            for p in start..end {
                let row = level.u.add(*level.idx.get_unchecked(p) as usize * level.u_stride + at);
                let u = if whole { T::load(simd, row) } else { T::load_masked(simd, mask, row) };
                sum = T::vmul_add(simd, T::splat(simd, *task.x.get_unchecked(p)), u, sum);
            }
            if whole {
                T::store(simd, t.add(at), sum);
            } else {
                T::store_masked(simd, mask, t.add(at), sum);
            }
            at += lanes;
        }
    }
}

/// acc[r][:] += u[r] t[:] for `rank` rows of `n` numbers.
///
/// # Safety
/// `acc` is valid for `rank * n` numbers, `u` for `rank`, `t` for `n`; `acc` overlaps neither.
#[inline(always)]
unsafe fn outer<S: Simd, T: Scalar>(simd: S, acc: *mut T, u: *const T, rank: usize, t: *const T, n: usize) {
    let lanes = T::lanes::<S>();
    // SAFETY: the caller's promise; whole registers stay below `n`, the masked one ends at it.
    unsafe {
        let mut at = 0;
        while at + lanes <= n {
            let t = T::load(simd, t.add(at));
            for r in 0..rank {
                let a = acc.add(r * n + at);
                T::store(simd, a, T::vmul_add(simd, T::splat(simd, *u.add(r)), t, T::load(simd, a)));
            }
            at += lanes;
        }
        if at < n {
            let mask = T::first_lanes(simd, n - at);
            let t = T::load_masked(simd, mask, t.add(at));
            for r in 0..rank {
                let a = acc.add(r * n + at);
                let sum = T::vmul_add(simd, T::splat(simd, *u.add(r)), t, T::load_masked(simd, mask, a));
                T::store_masked(simd, mask, a, sum);
            }
        }
    }
}
