//! Where lists and trees are cut into tasks: into parts of about equal numbers of nonzeros, where possible between rows of the
//! output.

use std::ops::Range;

use sparsimd_kernels::Scalar;

use super::privatised::{Task, row_range};
use crate::cut;
use crate::formats::{Bcsf, CsfPattern};

/// How far a cut may be moved to the next slice, as a part of a task. Both ends of a task may move, so that the longest
/// task, which all wait for, takes at most a tenth longer; what is saved are the privatised outputs, which are cleared,
/// written and added row by row.
const SNAP: f64 = 0.05;

/// Ranges of slices for each thread, where a range cannot be cut: what is left when one thread has finished is then a
/// quarter of its share at most, unless a slice is longer.
const SLICES_PER_THREAD: usize = 4;

/// The longest fiber of a tree that is cut into so many tasks between its fibers: an eighth of a task, so that tasks are about
/// equal whatever the fibers are. Shorter than 4096 nonzeros, some microseconds, is never worth a node more.
pub(super) fn longest_fiber(nnz: usize, tasks: usize) -> usize {
    if tasks > 1 { (nnz / tasks / 8).max(4096) } else { usize::MAX }
}

/// Cuts inside a row of ascending `rows` move to its nearer end where that is close, so that tasks own their rows.
pub(super) fn snap_to_rows(parts: &mut [Range<usize>], rows: &[u32]) {
    let slack = (rows.len() as f64 / parts.len().max(1) as f64 * SNAP) as usize;
    for p in 1..parts.len() {
        let cut = parts[p].start;
        let row = rows[cut];
        let (below, above) = (rows.partition_point(|&i| i < row), rows.partition_point(|&i| i <= row));
        // Where rows do not ascend, these are places all the same.
        let near = if cut.abs_diff(below) <= above.abs_diff(cut) { below } else { above };
        if near.abs_diff(cut) <= slack && near > parts[p - 1].start && near < parts[p].end {
            parts[p - 1].end = near;
            parts[p].start = near;
        }
    }
}

/// The node of `level` above fiber `fiber` (a node of the last level but one).
fn ancestor(pattern: &CsfPattern, level: usize, fiber: usize) -> usize {
    let mut node = fiber;
    for l in (level..pattern.order() - 2).rev() {
        node = pattern.ptr(l).partition_point(|&child| child <= node) - 1;
    }
    node
}

/// The first fiber below slice `slice`, or the number of fibers for the number of slices.
fn first_fiber(pattern: &CsfPattern, slice: usize) -> usize {
    (0..pattern.order() - 2).fold(slice, |node, l| pattern.ptr(l)[node])
}

/// The rows of `mode`'s output that fibers name.
fn fiber_window(pattern: &CsfPattern, mode: usize, fibers: &Range<usize>) -> Range<usize> {
    let (level, fiber_level) = (pattern.level_of(mode), pattern.order() - 2);
    let nodes = if level > fiber_level {
        pattern.ptr(fiber_level)[fibers.start]..pattern.ptr(fiber_level)[fibers.end]
    } else {
        ancestor(pattern, level, fibers.start)..ancestor(pattern, level, fibers.end - 1) + 1
    };
    row_range(&pattern.idx(level)[nodes])
}

/// Tasks of a tree: fibers of about equal numbers of nonzeros.
pub(super) fn tree_tasks(copy: usize, pattern: &CsfPattern, mode: usize, count: usize) -> Vec<Task> {
    let fiber_level = pattern.order() - 2;
    let ptr = pattern.ptr(fiber_level);
    let fibers = pattern.nodes(fiber_level);
    let mut parts = cut::ranges(fibers, count, |fiber| ptr[fiber]);
    if pattern.level_of(mode) == 0 {
        // Cuts near the border of a slice move there, so that the tasks own their rows.
        let slack = (pattern.nnz() as f64 / count as f64 * SNAP) as usize;
        for p in 1..parts.len() {
            let cut = parts[p].start;
            let slice = ancestor(pattern, 0, cut);
            let borders = [first_fiber(pattern, slice), first_fiber(pattern, slice + 1)];
            let near = borders.into_iter().min_by_key(|&b| ptr[b].abs_diff(ptr[cut])).unwrap_or(cut);
            if ptr[near].abs_diff(ptr[cut]) <= slack && near > parts[p - 1].start && near < parts[p].end {
                parts[p - 1].end = near;
                parts[p].start = near;
            }
        }
    }
    parts.into_iter().map(|part| Task::new(copy, part.clone(), fiber_window(pattern, mode, &part))).collect()
}

/// Tasks of a tree for the mode at its root, for `threads` threads: whole slices of about equal numbers of nonzeros.
pub(super) fn slice_tasks(pattern: &CsfPattern, threads: usize) -> Vec<Task> {
    let (fiber_level, count) = (pattern.order() - 2, SLICES_PER_THREAD * threads);
    let parts = cut::ranges(pattern.nodes(0), count, |slice| pattern.ptr(fiber_level)[first_fiber(pattern, slice)]);
    let rows = |slices: &Range<usize>| row_range(&pattern.idx(0)[slices.clone()]);
    let fibers = |slices: &Range<usize>| first_fiber(pattern, slices.start)..first_fiber(pattern, slices.end);
    parts.iter().map(|slices| Task::new(0, fibers(slices), rows(slices))).collect()
}

/// Tasks of a B-CSF tree for the mode at its root: whole sub-slices of about equal numbers of nonzeros.
pub(super) fn sub_slice_tasks<T: Scalar>(bcsf: &Bcsf<T>, count: usize) -> Vec<Task> {
    let pattern = bcsf.csf().pattern();
    let ptr = pattern.ptr(pattern.order() - 2);
    let starts = bcsf.sub_slices();
    let parts = cut::ranges(starts.len() - 1, count, |s| ptr[starts[s]]).into_iter();
    parts
        .map(|part| starts[part.start]..starts[part.end])
        .map(|part| Task::new(0, part.clone(), fiber_window(pattern, pattern.mode_order()[0], &part)))
        .collect()
}
