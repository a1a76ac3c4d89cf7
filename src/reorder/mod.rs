//! Orders of rows, columns and modes, in which neighbours share what they read.
//!
//! ```text
//! A'(i, j) = A(rows[i], cols[j])        C = A B   becomes   C' = A' B'   with   B'(j, :) = B(cols[j], :),   C'(i, :) = C(rows[i], :)
//! ```
//!
//! A row of B that was read for one row of A is still in a cache when the next row of A needs it. [`rcm`], [`degree`] and [`rabbit`]
//! number the rows and columns of matrices. A square matrix keeps one order for both: vertices of a graph are renamed, and results of
//! one product are operands of the next without another permutation. [`auto`] tells whether an order pays. Of any other matrix rows and columns are numbered apart, by the
//! graph that has them all as vertices and the nonzeros as edges.
//!
//! Sums are in another order than before, so results differ by rounding. An order depends on the pattern alone: not on values, and
//! not on the number of threads, which read the graph and permute matrices in the rayon pool of the caller (see
//! [`crate::Cpu::install`]). The numbering itself is sequential.
//!
//! ```
//! use sparsimd::{Cpu, Mat, generate, reorder};
//!
//! let cpu = Cpu::new()?;
//! let a = generate::random_matrix::<f32>(100, 80, 0.9, 1)?;
//! let b = generate::uniform_dense::<f32>(80, 16, 2)?;
//! let reordering = reorder::rabbit(a.pattern())?;
//! let (a, b) = (reordering.matrix(&a)?, reordering.cols.rows_of_mat(b.as_ref())?);
//! let mut c = Mat::zeros(100, 16)?;
//! cpu.spmm(1.0, &a, b.as_ref(), 0.0, c.as_mut())?;
//! let in_the_given_order = reordering.rows.inverse().rows_of_mat(c.as_ref())?;
//! # assert_eq!(in_the_given_order.rows(), 100);
//! # Ok::<(), sparsimd::Error>(())
//! ```
#![forbid(unsafe_code)]

mod bfs_mcs;
mod estimate;
mod graph;
mod lexi;
mod permutation;
mod rabbit;
mod rcm;

use std::sync::Arc;

use sparsimd_kernels::Scalar;

pub use estimate::{Choice, auto, fetches};
pub use permutation::Permutation;

use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csr, Pattern, PatternRef};
use crate::memory;

/// Orders of the rows and of the columns of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reordering {
    /// Of the rows.
    pub rows: Permutation,
    /// Of the columns.
    pub cols: Permutation,
}

impl Reordering {
    /// A'(i, j) = A(rows\[i\], cols\[j\]), columns ascending in each row.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] when `a` has another number of rows or columns; [`crate::Error::Memory`].
    pub fn matrix<T: Scalar>(&self, a: &Csr<T>) -> Result<Csr<T>> {
        permutation::permuted(a.as_ref(), &self.rows, &self.cols)
    }

    /// The pattern of A', and for each of its nonzeros the place of that nonzero in `a`: the values of A' are
    /// `places.map(|p| values[p])`, and what SDDMM gives for nonzero p of A' belongs to nonzero `places[p]` of A.
    ///
    /// # Errors
    /// As [`Reordering::matrix`].
    pub fn pattern<'a>(&self, a: impl Into<PatternRef<'a>>) -> Result<(Arc<Pattern>, Vec<usize>)> {
        permutation::permuted_pattern(a.into(), &self.rows, &self.cols)
    }
}

/// Reverse Cuthill-McKee: breadth first from a vertex at the edge of the graph, neighbours by ascending degree, all reversed. Keeps
/// nonzeros near the diagonal.
///
/// On the pattern of A + A^T; on the bipartite graph of rows and columns of a matrix that is not square. Takes O(nnz log d) steps for
/// d neighbours of a vertex at most, and 28 bytes a nonzero and 40 a row and column.
///
/// E. Cuthill, J. McKee: Reducing the bandwidth of sparse symmetric matrices, 1969; the start by A. George, J. Liu: An implementation
/// of a pseudoperipheral node finder, 1979.
///
/// # Errors
/// [`crate::Error::Argument`] when the rows and columns of a matrix that is not square together exceed u32;
/// [`crate::Error::Memory`].
pub fn rcm<'a>(a: impl Into<PatternRef<'a>>) -> Result<Reordering> {
    graph::by_vertices(a.into(), rcm::order)
}

/// Rows and columns by the number of their neighbours, descending: those with the most are near each other, and stay in a cache.
/// Equal ones stay in their order.
///
/// Of a square matrix the neighbours in A + A^T, of any other the nonzeros of the row or column. Takes O(nnz + n log n) steps for n
/// rows and columns, and memory as [`rcm`].
///
/// # Errors
/// As [`rcm`].
pub fn degree<'a>(a: impl Into<PatternRef<'a>>) -> Result<Reordering> {
    graph::by_vertices(a.into(), |graph| {
        let mut order: Vec<u32> = (0..graph.vertices() as u32).collect();
        order.sort_by_key(|&v| std::cmp::Reverse(graph.degree(v)));
        Ok(order)
    })
}

/// Rabbit Order: vertices join the neighbour that gains the most modularity, one after the other, by ascending degree; the trees that
/// grow so are numbered depth first. Communities become runs of rows, and communities inside them runs in those.
///
/// On the same graph as [`rcm`]. Takes O(nnz) steps for each level of the trees at most, and 40 bytes a nonzero and 80 a
/// row and column. Sequential, unlike the paper's: one result.
///
/// J. Arai et al.: Rabbit Order: just-in-time parallel reordering for fast graph analysis, IPDPS 2016.
///
/// # Errors
/// As [`rcm`].
pub fn rabbit<'a>(a: impl Into<PatternRef<'a>>) -> Result<Reordering> {
    graph::by_vertices(a.into(), rabbit::order)
}

/// Lexi-order: each mode in turn is numbered so that slices with nonzeros in the same first fibers are neighbours, `passes` times for
/// all modes or until nothing changes. One [`Permutation`] for each mode.
///
/// A pass takes, for each mode, the time of sorting the nonzeros and O(nnz) steps; 72 bytes a nonzero and 40 an index of the longest
/// mode at most, and a copy of the coordinates. Li et al. take 5 passes.
///
/// J. Li, B. Uçar, Ü. V. Çatalyürek, J. Sun, K. Barker, R. Vuduc: Efficient and effective sparse tensor reordering, ICS 2019.
///
/// # Errors
/// [`crate::Error::Memory`].
pub fn lexi<T: Scalar>(x: &CooTensor<T>, passes: usize) -> Result<Vec<Permutation>> {
    memory::ensure("Lexi-order", x.index_bytes())?;
    lexi::orders(x.dims(), &mut x.all_coords().to_vec(), x.nnz(), passes)
}

/// BFS-MCS: the indices of each mode by the number of nonzeros that they share other modes' indices with those numbered before in,
/// the largest first. One [`Permutation`] for each mode; indices without nonzeros are the last.
///
/// Takes O(N nnz log I) steps for each of N modes, I the length of the longest, and 8 N bytes a nonzero and 36 an index of every mode.
///
/// The paper is that of [`lexi`]. There as here a neighbour counts once, whichever vertex reached it first.
///
/// # Errors
/// [`crate::Error::Memory`].
pub fn bfs_mcs<T: Scalar>(x: &CooTensor<T>) -> Result<Vec<Permutation>> {
    bfs_mcs::orders(x.dims(), x.all_coords(), x.nnz())
}

/// X'(i, j, ...) = X(orders\[0\]\[i\], orders\[1\]\[j\], ...); the entries stay in their order.
///
/// # Errors
/// [`crate::Error::Shape`] when there is not one permutation for each mode, as long as the mode; [`crate::Error::Memory`].
pub fn permute_modes<T: Scalar>(x: &CooTensor<T>, orders: &[Permutation]) -> Result<CooTensor<T>> {
    if orders.len() != x.order() {
        let detail = format!("{} permutations for a tensor of order {}", orders.len(), x.order());
        return Err(Error::shape("permute_modes", detail));
    }
    for (order, &dim) in orders.iter().zip(x.dims()) {
        order.check("permute_modes", "the indices of a mode", dim)?;
    }
    let longest = x.dims().iter().max().map_or(0, |&dim| dim);
    let entries = (x.nnz(), size_of::<T>() + size_of::<u32>() * x.order());
    memory::ensure("a tensor in another order", memory::total(&[entries, (longest, size_of::<u32>())]))?;
    let (dims, mut coords, values) = x.clone().into_parts();
    coords.iter_mut().zip(orders).for_each(|(indices, order)| order.inverse().renumber(indices));
    Ok(CooTensor::from_checked(dims, coords, values))
}
