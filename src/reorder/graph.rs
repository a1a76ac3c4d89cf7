//! The graph of a pattern, on which rows and columns are numbered.

use crate::error::Result;
use crate::formats::PatternRef;
use crate::parallel;
use crate::{cut, memory};

use super::Reordering;
use super::permutation::{Permutation, check_len};

/// An undirected graph without loops, each edge in the lists of both its ends.
///
/// Of a square matrix the pattern of A + A^T: vertex i is row i and column i. Of any other matrix the bipartite graph: the rows, and
/// after them the columns.
pub(super) struct Graph {
    start: Vec<usize>,
    neighbours: Vec<u32>,
}

impl Graph {
    /// The graph of `a`. Neighbours ascend in each list.
    pub fn of(a: PatternRef<'_>) -> Result<Self> {
        let square = a.rows() == a.cols();
        let vertices = if square { a.rows() } else { check_len(a.rows().saturating_add(a.cols()))? as usize };
        // The transpose with the places that it came from; each edge in a task's list and in the whole one.
        let each = size_of::<u32>() + size_of::<usize>() + 4 * size_of::<u32>();
        let lines = (a.rows() + a.cols(), 3 * size_of::<usize>());
        memory::ensure("the graph of a matrix", memory::total(&[(a.nnz(), each), lines]))?;
        let (transposed, _) = a.transpose_in(rayon::current_num_threads());
        let (rows, below) = (a.rows(), |v: usize| transposed.row(v).iter().copied());
        let list = |v: usize, list: &mut Vec<u32>| match square {
            true => {
                let first = list.len();
                list.extend(a.row(v).iter().copied().chain(below(v)).filter(|&w| w as usize != v));
                list[first..].sort_unstable();
                let mut kept = first;
                for at in first..list.len() {
                    if kept == first || list[at] != list[kept - 1] {
                        list[kept] = list[at];
                        kept += 1;
                    }
                }
                list.truncate(kept);
            }
            false if v < rows => {
                let first = list.len();
                list.extend(a.row(v).iter().map(|&j| rows as u32 + j));
                list[first..].sort_unstable();
            }
            false => list.extend(below(v - rows)),
        };
        let before = |v: usize| match square {
            true => a.row_ptr().at(v) + transposed.row_ptr()[v],
            false => a.row_ptr().at(v.min(rows)) + transposed.row_ptr()[v.saturating_sub(rows)],
        };
        let ranges = cut::ranges(vertices, a.nnz().div_ceil(parallel::GRAIN).max(1), before);
        let parts = parallel::map_tasks(ranges.len(), |t| {
            let (mut lens, mut all) = (Vec::with_capacity(ranges[t].len()), Vec::new());
            for v in ranges[t].clone() {
                let first = all.len();
                list(v, &mut all);
                lens.push(all.len() - first);
            }
            (lens, all)
        });
        let mut start = Vec::with_capacity(vertices + 1);
        start.push(0);
        let mut end = 0;
        start.extend(parts.iter().flat_map(|(lens, _)| lens).map(|len| {
            end += len;
            end
        }));
        let mut neighbours = Vec::with_capacity(end);
        parts.iter().for_each(|(_, all)| neighbours.extend_from_slice(all));
        Ok(Self { start, neighbours })
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.start.len() - 1
    }

    /// The sum of all degrees.
    pub fn degrees(&self) -> usize {
        self.neighbours.len()
    }

    /// The neighbours of `v`.
    pub fn neighbours(&self, v: u32) -> &[u32] {
        &self.neighbours[self.start[v as usize]..self.start[v as usize + 1]]
    }

    /// Their number.
    pub fn degree(&self, v: u32) -> usize {
        self.neighbours(v).len()
    }

    /// The vertices by ascending degree; those of one degree ascend.
    pub fn by_degree(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.vertices() as u32).collect();
        order.sort_by_key(|&v| self.degree(v));
        order
    }
}

/// The orders of the rows and columns of `a` from one of its graph's vertices.
pub(super) fn by_vertices(a: PatternRef<'_>, order: impl FnOnce(&Graph) -> Result<Vec<u32>>) -> Result<Reordering> {
    let order = order(&Graph::of(a)?)?;
    if a.rows() == a.cols() {
        let rows = Permutation::trusted(order);
        return Ok(Reordering { cols: rows.clone(), rows });
    }
    let first = a.rows() as u32;
    let (rows, cols): (Vec<u32>, Vec<u32>) = order.into_iter().partition(|&v| v < first);
    let cols = cols.into_iter().map(|v| v - first).collect();
    Ok(Reordering { rows: Permutation::trusted(rows), cols: Permutation::trusted(cols) })
}
