//! TTM chain on the device: Y = X times U_m in every mode m but that of a tree's root, level by level.
//!
//! The leaves are a TTM: a row of as many columns as their matrix has for each fiber. What belongs to a level above, l, is made of the rows
//! of the level below it,
//! ```text
//! Y_l[v, r, s] = sum over the children j of node v of U[i_j, r] Y_l+1[j, s]
//! ```
//! where i_j is the coordinate of j, U the matrix of its mode and s a column of each level further below but the leaves. That is an SpMM: a row for
//! each (v, r, s), with a nonzero for each child, whose value is an element of U. Y is its last result.

use sparsimd_gpu_abi::BLOCK;
use sparsimd_gpu_host::Buffer;

use super::fibers::GpuFibers;
use super::operands::GpuMat;
use super::sparse::GpuPattern;
use super::{DeviceScalar, Gpu};
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::{Csf, CsfPattern, Fibers, Pattern};
use crate::memory;
use crate::ops::{TtmAlgorithm, chain_cols};

const OP: &str = "ttm_chain";

/// A tensor's tree in device memory, ready for TTM chains with matrices of certain numbers of columns.
pub struct GpuChain<T> {
    gpu: Gpu,
    dims: Vec<usize>,
    ranks: Vec<usize>,
    /// The modes of the tree's levels, root first.
    modes: Vec<usize>,
    slices: usize,
    fibers: GpuFibers<T>,
    /// The levels above the fibers, the root last.
    levels: Vec<Level>,
}

/// A level's SpMM.
struct Level {
    /// The mode whose matrix has the values.
    mode: usize,
    pattern: GpuPattern,
    /// Which element of the matrix each value is, for each chunk of the pattern.
    order: Vec<Buffer<u32>>,
}

impl Gpu {
    /// The tree in device memory, for matrices of `ranks[m]` columns. That of the root's mode has no influence.
    ///
    /// # Errors
    /// [`Error::Shape`] when X is of order 1 or there is not one rank, above 0, for each mode; [`Error::Argument`] when Y does not fit the
    /// address space; [`Error::Memory`]; [`Error::Device`] when memory runs out or a matrix is larger than what a kernel can see.
    #[inline(never)]
    pub fn chain<T: DeviceScalar>(&self, x: &Csf<T>, ranks: &[usize]) -> Result<GpuChain<T>> {
        let pattern = x.pattern();
        let (dims, modes) = (pattern.dims(), pattern.mode_order());
        if ranks.len() != dims.len() {
            return Err(Error::shape(OP, format!("{} ranks for order {}", ranks.len(), dims.len())));
        }
        chain_cols(pattern, &dims.iter().copied().zip(ranks.iter().copied()).collect::<Vec<_>>())?;
        let last = modes.len() - 2;
        let fibers = Fibers {
            dim: dims[modes[last + 1]],
            ptr: pattern.ptr(last),
            leaf: pattern.idx(last + 1),
            values: x.values(),
        };
        // Columns of each level below the one at hand, but the leaves, together.
        let mut below = 1;
        let levels = (0..last).rev().map(|level| {
            let made = self.chain_level::<T>(pattern, level, ranks[modes[level + 1]], below);
            below *= ranks[modes[level + 1]];
            made
        });
        Ok(GpuChain {
            levels: levels.collect::<Result<_>>()?,
            gpu: self.clone(),
            dims: dims.to_vec(),
            ranks: ranks.to_vec(),
            modes: modes.to_vec(),
            slices: pattern.nodes(0),
            fibers: self.fibers(fibers)?,
        })
    }

    /// The SpMM of `level`, whose children's matrix has `rank` columns and whose rows are `below` for each of these and each node.
    fn chain_level<T: DeviceScalar>(
        &self,
        tree: &CsfPattern,
        level: usize,
        rank: usize,
        below: usize,
    ) -> Result<Level> {
        let (mode, most) = (tree.mode_order()[level + 1], self.shape::<T>().max_len);
        let stride = rank.next_multiple_of(BLOCK);
        let rows = tree.nodes(level).saturating_mul(rank * below);
        let cols = tree.nodes(level + 1).saturating_mul(below);
        let largest = tree.dims()[mode].saturating_mul(stride).max(rows).max(cols);
        if largest > most {
            let detail = format!("{}: a TTM chain with {largest} rows or elements, more than {most}", self.info().name);
            return Err(Error::Device { detail });
        }
        let nnz = cols.saturating_mul(rank);
        memory::ensure("a TTM chain", memory::total(&[(rows + 1, size_of::<usize>()), (nnz, 2 * size_of::<u32>())]))?;
        let mut row_ptr = Vec::with_capacity(rows + 1);
        let (mut col_idx, mut order) = (Vec::with_capacity(nnz), Vec::with_capacity(nnz));
        row_ptr.push(0);
        for node in 0..tree.nodes(level) {
            for (r, s) in (0..rank).flat_map(|r| (0..below).map(move |s| (r, s))) {
                let children = tree.children(level, node);
                col_idx.extend(children.clone().map(|child| (child * below + s) as u32));
                order.extend(children.map(|child| (tree.idx(level + 1)[child] as usize * stride + r) as u32));
                row_ptr.push(col_idx.len());
            }
        }
        let pattern = GpuPattern::new(self, &Pattern::new(rows, cols, row_ptr, col_idx)?, most)?;
        let order = pattern.chunks.iter().map(|chunk| {
            let part = &order[chunk.range.nonzeros.clone()];
            let mut buffer = Buffer::new(self.device(), part.len(), "order")?;
            self.timed_upload(|s| s.stream.upload(&mut buffer, 0, part))?;
            Ok(buffer)
        });
        Ok(Level { mode, order: order.collect::<Result<_>>()?, pattern })
    }

    /// Y = X times all matrices but that of the tree's root mode, to the processor's memory: shapes, rows and columns as those of
    /// [`Cpu::ttm_chain`](crate::Cpu::ttm_chain).
    ///
    /// # Errors
    /// [`Error::Shape`] when the devices differ, there is not one matrix for each mode, or one but the root's has not I_m rows and the columns
    /// that X was prepared for; [`Error::Device`] when the device fails or its memory runs out.
    #[inline(never)]
    pub fn ttm_chain<T: DeviceScalar>(&self, x: &GpuChain<T>, u: &[GpuMat<T>]) -> Result<Mat<T>> {
        self.check_own(OP, "X", &x.gpu)?;
        if u.len() != x.modes.len() {
            return Err(Error::shape(OP, format!("{} matrices for order {}", u.len(), x.modes.len())));
        }
        for &mode in &x.modes[1..] {
            u[mode].expect(self, OP, &format!("matrix {mode}"), x.dims[mode], x.ranks[mode])?;
        }
        let leaf = x.modes[x.modes.len() - 1];
        let (width, cols) = (x.ranks[leaf], x.modes[1..].iter().map(|&mode| x.ranks[mode]).product());
        let mut y = Mat::zeros(x.slices, cols)?;
        if x.slices == 0 {
            return Ok(y);
        }
        let mut product = self.uninitialised(x.fibers.len(), width)?;
        self.ttm_into(&x.fibers, &u[leaf], TtmAlgorithm::Fiber, &mut product)?;
        for level in &x.levels {
            let [matrix] = u[level.mode].parts() else {
                return Err(Error::shape(OP, format!("matrix {} is in several parts", level.mode)));
            };
            let mut values = level.pattern.values(self)?;
            for (order, (_, chunk)) in level.order.iter().zip(&mut values.chunks) {
                // SAFETY: the order names elements of rows that the matrix has, in its only part; a chunk has a value for each nonzero.
                unsafe { self.gather::<T>(order, matrix.bind(), chunk.bind_mut()) }?;
            }
            let mut next = self.uninitialised(level.pattern.host.rows(), width)?;
            self.product(T::ONE, &level.pattern, &values, &product, T::ZERO, &mut next)?;
            product = next;
        }
        let mut rows: Mat<T> = Mat::zeros(product.rows(), width)?;
        product.download(rows.as_mut())?;
        for i in 0..x.slices {
            let parts = y.as_mut().into_row(i).chunks_exact_mut(width);
            parts.enumerate().for_each(|(part, y)| y.copy_from_slice(rows.row(i * (cols / width) + part)));
        }
        Ok(y)
    }
}
