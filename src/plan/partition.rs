//! Cutting rows into tasks of equal numbers of nonzeros.

use crate::cut;
use crate::formats::RowPointers;

/// Multiply-adds of whole registers of f32 below which handing a part to a thread that is awake costs more than it gains (some 3 us). SpMM of
/// 150 x 150 with 90 % zeros, N = 32, 4500 of them with AVX-512, two threads by one: 1.38 where they shared it (medians, Emerald Rapids).
const ALONE: usize = 1 << 13;

/// Multiply-adds below which a thread runs alone, with registers of so many bytes: of one number at least.
pub(crate) fn alone(vector_bytes: usize) -> usize {
    (vector_bytes / size_of::<f32>()).max(1).saturating_mul(ALONE)
}

/// Multiply-adds for which a nonzero counts at least: to find its row of B takes a nanosecond (SpMV of 0.65 M nonzeros, 1.02 ms).
const LEAST: usize = 16;

/// The multiply-adds of `nnz` nonzeros with `n` columns, for [`alone`].
pub(crate) fn work(nnz: usize, n: usize) -> usize {
    nnz.saturating_mul(n.max(LEAST))
}

/// Tasks for each thread: enough that a late thread can be helped, few enough that starting them is free.
pub(crate) const TASKS_PER_THREAD: usize = 16;

/// [`alone`] by the multiply-adds that are worth a task of their own, some 1.6 us: to take one costs as much as 100 ns where threads compete
/// for it, and the lines of the result come from another processor's caches. SpMM with 90 % zeros, N = 32, two threads of a Zen 3 (AVX2),
/// by one, with tasks of 2^12, 2^14, 2^15: 150 x 150 1.17, 0.80, 0.81; 200 x 200 1.17, 0.68, 0.63; 256 x 256 1.03, 0.70, 0.67; 400 x 400
/// 0.74, 0.65, 0.60.
const TASKS_ALONE: usize = 2;

/// How many tasks `threads` share `work` in, which is less than `alone` where one runs it.
pub(crate) fn tasks(work: usize, threads: usize, alone: usize) -> usize {
    match threads {
        0..=1 => 1,
        _ if work < alone => 1,
        _ => threads.saturating_mul(TASKS_PER_THREAD).min(work.div_ceil(alone / TASKS_ALONE)),
    }
}

/// A piece of work: whole rows, but for the first, which may have begun in the task before, and the last, which may go on in
/// the one after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// First row and one past the last.
    pub rows: [usize; 2],
    /// First nonzero and one past the last.
    pub nonzeros: [usize; 2],
    /// Whether the first row began in the task before: its part is added to that one's result, in task order.
    pub continues: bool,
}

/// At most `parts` tasks (and at most `split` per row) of about equal weight, where a row weighs its nonzeros and one more:
/// empty rows are work as well. Every row begins in exactly one task and every nonzero is in exactly one.
pub fn by_nonzeros(row_ptr: RowPointers<'_>, parts: usize, split: usize) -> Vec<Task> {
    let rows = row_ptr.rows();
    let total = row_ptr.at(rows) + rows;
    let mut tasks: Vec<Task> = Vec::with_capacity(parts);
    // Where the last task ended: a row and the nonzeros of that row already taken.
    let (mut row, mut at) = (0, 0);
    for part in 1..=parts.max(1) {
        let goal = cut::share(total, part, parts.max(1));
        // The first row whose end lies beyond the goal.
        let low = cut::first(row..rows, |i| row_ptr.at(i + 1) + i >= goal);
        let (mut end_row, mut end) = (low, row_ptr.at(low));
        if low < rows {
            let nnz = row_ptr.at(low + 1) - row_ptr.at(low);
            // A row is cut only where it is long enough to be worth a sum of parts.
            let piece = nnz.div_ceil(split.max(1)).max(MIN_PIECE);
            let inside = goal.saturating_sub(low).saturating_sub(row_ptr.at(low)).min(nnz);
            let inside = inside.checked_div(piece).unwrap_or(0) * piece;
            match inside {
                0 => {}
                _ if inside + piece > nnz => (end_row, end) = (low + 1, row_ptr.at(low + 1)),
                _ => end = row_ptr.at(low) + inside,
            }
        }
        if part == parts.max(1) {
            (end_row, end) = (rows, row_ptr.at(rows));
        }
        if (end_row, end) <= (row, at) && !(rows == 0 && tasks.is_empty()) {
            continue;
        }
        let divided = end_row < rows && end > row_ptr.at(end_row);
        let continues = row < rows && at > row_ptr.at(row);
        tasks.push(Task { rows: [row, end_row + usize::from(divided)], nonzeros: [at, end], continues });
        (row, at) = (end_row, end);
    }
    tasks
}

/// Nonzeros of the smallest piece of a row that is cut. A further piece costs three rows of the result more (its carry-out is cleared,
/// written and added), and a nonzero reads one row: 256 of them keep that near a hundredth.
const MIN_PIECE: usize = 256;

/// Bounds of row blocks of at most `max_rows` rows and about equal numbers of nonzeros, `multiple` of them or a multiple of
/// that many, where there are rows enough.
pub fn blocks(row_ptr: &[usize], max_rows: usize, multiple: usize) -> Vec<usize> {
    let rows = row_ptr.len() - 1;
    let count = rows.div_ceil(max_rows.max(1)).next_multiple_of(multiple.max(1)).min(rows).max(1);
    let total = row_ptr[rows] + rows;
    let mut bounds = vec![0];
    for part in 1..count {
        let goal = cut::share(total, part, count);
        let end = cut::first(bounds[bounds.len() - 1]..rows, |i| row_ptr[i] + i >= goal);
        // A stretch of short rows still ends after max_rows of them.
        while end > bounds[bounds.len() - 1] + max_rows {
            bounds.push(bounds[bounds.len() - 1] + max_rows);
        }
        if end > bounds[bounds.len() - 1] {
            bounds.push(end);
        }
    }
    while rows > bounds[bounds.len() - 1] + max_rows {
        bounds.push(bounds[bounds.len() - 1] + max_rows);
    }
    bounds.push(rows);
    bounds.dedup();
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(row_ptr: &[usize], parts: usize, split: usize) -> Vec<Task> {
        let tasks = by_nonzeros(RowPointers::of(row_ptr), parts, split);
        let rows = row_ptr.len() - 1;
        assert!(tasks.len() <= parts.max(1));
        let (mut row, mut at) = (0, 0);
        for task in &tasks {
            assert_eq!(task.nonzeros[0], at);
            assert_eq!(task.continues, row > task.rows[0]);
            assert_eq!(task.rows[0], row - usize::from(task.continues));
            for i in task.rows[0]..task.rows[1] {
                assert!(row_ptr[i] <= task.nonzeros[1] && row_ptr[i + 1] >= task.nonzeros[0]);
            }
            (row, at) = (task.rows[1], task.nonzeros[1]);
        }
        assert_eq!((row, at), (rows, row_ptr[rows]), "{row_ptr:?} {parts}");
        tasks
    }

    #[test]
    fn tasks_for_the_work_there_is() {
        for alone in [0, 32, 64].map(alone) {
            let tasks = |work, threads| tasks(work, threads, alone);
            assert_eq!((tasks(0, 8), tasks(alone - 1, 8), tasks(usize::MAX, 1), tasks(usize::MAX, 0)), (1, 1, 1, 1));
            assert_eq!((tasks(alone, 2), tasks(2 * alone - 1, 64), tasks(usize::MAX, 3)), (2, 4, 3 * TASKS_PER_THREAD));
        }
    }

    #[test]
    fn every_row_and_nonzero_once() {
        let shapes: [&[usize]; 7] = [
            &[],
            &[0, 0, 0],
            &[5; 40],
            &[100_000],
            &[0, 0, 10_000, 0, 3, 9_000, 0],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9],
            &[300, 0, 300, 0, 5000],
        ];
        for lens in shapes {
            let mut row_ptr = vec![0];
            for len in lens {
                row_ptr.push(row_ptr[row_ptr.len() - 1] + len);
            }
            for parts in [1, 2, 3, 7, 32, 100] {
                for split in [1, 2, 16, usize::MAX] {
                    check(&row_ptr, parts, split);
                }
                for max_rows in [1, 3, 1000] {
                    let bounds = blocks(&row_ptr, max_rows, parts);
                    assert_eq!((bounds[0], bounds[bounds.len() - 1]), (0, lens.len()));
                    assert!(bounds.windows(2).all(|w| w[0] < w[1] && w[1] - w[0] <= max_rows), "{bounds:?}");
                }
            }
        }
    }

    #[test]
    fn a_giant_row_is_shared() {
        let tasks = check(&[0, 100_000], 8, usize::MAX);
        assert_eq!(tasks.len(), 8);
        assert!(tasks.iter().all(|t| t.nonzeros[1] - t.nonzeros[0] < 14_000));
        assert_eq!(check(&[0, 100_000], 8, 2).len(), 2);
    }
}
