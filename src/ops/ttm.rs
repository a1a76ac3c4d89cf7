//! TTM, the tensor times a matrix in one mode: Y = X x_n U, y(.., r, ..) = sum over i_n of x(.., i_n, ..) U(i_n, r).
//!
//! U is I_n x R, as in the PASTA suite (the transpose of Kolda and Bader's). Mode n becomes dense, the other modes keep
//! their places: one row of R values for each fiber of X in mode n, so the result's pattern is known beforehand.

use std::ops::Range;

use sparsimd_kernels::{Scalar, Stored, TtmFibers, ttm_fibers};

use super::long_fibers::{long_fibers, without};
use super::operand::check_columns;
use super::run::Shared;
use crate::cpu::Cpu;
use crate::cut;
use crate::dense::{ALIGN, Mat, MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, FiberCoo, Fibers, HiCoo, SemiCoo, SemiHiCoo, check_mode};
use crate::machine::Machine;
use crate::parallel;
use crate::plan::{streams, tasks, work};

/// Bytes of coming rows of U that are prefetched: 64 rows of 32 single-precision columns, which were 10 to 20 % faster
/// than 16 of them with U in L2 and in L3; much more would push out of L1 what is about to be used.
const PREFETCHED_BYTES: usize = 8 << 10;
/// Nonzeros ahead at which rows of U are prefetched, in L2, where U comes from memory (400000 x 300000 x 200000, 64 columns, a thread of
/// a Zen 4: 59 ms 16 ahead in L1, 31 to 37 from 72 to 128 ahead in L2).
const FAR_DISTANCE: usize = 80;

/// How a TTM is cut into tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TtmAlgorithm {
    /// By fibers, unless there are too few of them; a fiber that has much of the nonzeros in parts.
    #[default]
    Auto,
    /// Fiber-centric: a task computes whole rows of Y, or a part of a row that has much of the nonzeros.
    Fiber,
    /// Element-centric: a task computes one register of columns of its rows, so that even a single fiber occupies all
    /// threads; the nonzeros are read again for each register.
    Element,
}

impl TtmAlgorithm {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fiber => "fiber",
            Self::Element => "element",
        }
    }
}

/// `ptr`'s fibers in runs of about equal work: a nonzero is a row of U read, a fiber a row of Y written.
pub(super) fn cut_fibers(ptr: &[usize], tasks: usize) -> Vec<Range<usize>> {
    cut::ranges(ptr.len() - 1, tasks, |f| ptr[f] + f)
}

/// What is multiplied: fibers of nonzeros that hold `block` values each.
struct Blocks<'a, T> {
    ptr: &'a [usize],
    leaf: &'a [u32],
    x: &'a [T],
    x_stride: usize,
    block: usize,
}

/// Blocks of a semi-sparse tensor that one task turns.
const BLOCKS_PER_TASK: usize = 64;

impl Cpu {
    /// Y = X x_n U for the mode n whose fibers X is given by: [`FiberCoo`], [`Fibers::of_csf`] or [`HiCoo::fibers`].
    /// Row f of `y` receives fiber f.
    ///
    /// `u` is I_n x R, `y` fibers x R. Bit-reproducible on any number of threads.
    ///
    /// Both may store bf16 or f16 ([`Stored`]): the values of X and the sums are f32 then, and each element of Y is rounded once.
    ///
    /// # Errors
    /// [`Error::Shape`] when `u` or `y` has another shape.
    pub fn ttm_into<'a, D: Stored>(
        &self,
        x: impl Into<Fibers<'a, D::Scalar>>,
        u: MatRef<'_, D>,
        algorithm: TtmAlgorithm,
        y: MatMut<'_, D>,
    ) -> Result<()> {
        self.ttm_fibers_into(x.into(), u, algorithm, y)
    }

    /// The algorithm by which this executor computes `cols` columns of so many fibers where `algorithm` is asked for: never
    /// [`TtmAlgorithm::Auto`].
    pub fn ttm_algorithm<T: Scalar>(&self, fibers: usize, cols: usize, algorithm: TtmAlgorithm) -> TtmAlgorithm {
        let few = fibers < 4 * self.threads() && cols > self.arch().lanes::<T>();
        match algorithm {
            TtmAlgorithm::Auto if few => TtmAlgorithm::Element,
            TtmAlgorithm::Auto => TtmAlgorithm::Fiber,
            asked => asked,
        }
    }

    /// [`Cpu::ttm_into`] of fibers.
    #[inline(never)]
    pub(crate) fn ttm_fibers_into<D: Stored>(
        &self,
        x: Fibers<'_, D::Scalar>,
        u: MatRef<'_, D>,
        algorithm: TtmAlgorithm,
        y: MatMut<'_, D>,
    ) -> Result<()> {
        check_u(u, x.dim)?;
        check_shape("ttm", "Y", y.shape(), (x.len(), u.cols()))?;
        let blocks = Blocks { ptr: x.ptr, leaf: x.leaf, x: x.values, x_stride: 1, block: 1 };
        self.multiply(&blocks, u, algorithm, y);
        Ok(())
    }

    /// Y = X x_n U as a semi-sparse tensor with mode n dense.
    ///
    /// # Errors
    /// [`Error::Shape`] when `u` is not I_n x R; [`Error::Argument`] when Y does not fit the address space.
    ///
    /// ```
    /// use sparsimd::{CooTensor, Cpu, Mat, formats::FiberCoo};
    /// // x(0, 0) = 2, x(0, 2) = 3; U = ((1, 2), (3, 4), (5, 6)).
    /// let x = CooTensor::new(vec![2, 3], vec![vec![0, 0], vec![0, 2]], vec![2.0, 3.0])?;
    /// let u = Mat::from_fn(3, 2, |i, r| (2 * i + r + 1) as f64)?;
    /// let y = Cpu::new()?.ttm(&FiberCoo::new(x, 1)?, u.as_ref(), Default::default())?;
    /// assert_eq!((y.coords(0), y.values().row(0)), (&[0][..], &[17.0, 22.0][..]));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    #[inline(never)]
    pub fn ttm<T: Scalar>(&self, x: &FiberCoo<T>, u: MatRef<'_, T>, algorithm: TtmAlgorithm) -> Result<SemiCoo<T>> {
        check_u(u, x.dims()[x.mode()])?;
        let mut y = Mat::zeros(x.num_fibers(), u.cols())?;
        self.ttm_into(x, u, algorithm, y.as_mut())?;
        let mut dims = x.dims().to_vec();
        dims[x.mode()] = u.cols();
        Ok(SemiCoo::from_checked(dims, vec![x.mode()], x.coords().to_vec(), y))
    }

    /// Y = X x_n U of a tensor in gHiCOO, n being its only free mode, as a semi-sparse tensor in the same blocks.
    ///
    /// # Errors
    /// As [`Cpu::ttm`], and [`Error::Structure`] when not exactly one mode is free.
    #[inline(never)]
    pub fn ttm_hicoo<T: Scalar>(
        &self,
        x: &HiCoo<T>,
        u: MatRef<'_, T>,
        algorithm: TtmAlgorithm,
    ) -> Result<SemiHiCoo<T>> {
        let fibers = x.fibers()?;
        check_u(u, fibers.dim)?;
        let mut y = Mat::zeros(fibers.len(), u.cols())?;
        self.ttm_into(fibers, u, algorithm, y.as_mut())?;
        let mode = x.free_modes()[0];
        let mut dims = x.dims().to_vec();
        dims[mode] = u.cols();
        Ok(SemiHiCoo::from_checked(dims, vec![mode], x.fiber_pattern()?, y))
    }

    /// Y = X x_n U of a semi-sparse tensor. Mode n, sparse or dense before, becomes the last of the dense modes.
    ///
    /// # Errors
    /// [`Error::Argument`] when `mode` is not below the order, or Y does not fit the address space; [`Error::Shape`] when
    /// `u` is not I_n x R.
    #[inline(never)]
    pub fn ttm_semi<T: Scalar>(&self, x: &SemiCoo<T>, mode: usize, u: MatRef<'_, T>) -> Result<SemiCoo<T>> {
        check_mode(mode, x.order())?;
        check_u(u, x.dims()[mode])?;
        match x.sparse_modes().iter().position(|&m| m == mode) {
            Some(level) => self.ttm_semi_sparse(x, level, u),
            None => self.ttm_semi_dense(x, mode, u),
        }
    }

    /// In a sparse mode: the outer products of blocks and rows of U, added up by fibers.
    fn ttm_semi_sparse<T: Scalar>(&self, x: &SemiCoo<T>, level: usize, u: MatRef<'_, T>) -> Result<SemiCoo<T>> {
        let mode = x.sparse_modes()[level];
        let sparse_dims: Vec<usize> = x.sparse_modes().iter().map(|&m| x.dims()[m]).collect();
        // Positions of blocks take the place of values, so that sorting the places by fibers tells where blocks go.
        let positions: Vec<f64> = (0..x.num_blocks()).map(|p| p as f64).collect();
        let places = CooTensor::from_checked(sparse_dims, x.all_coords().to_vec(), positions);
        let fibers = self.install(|| FiberCoo::new(places, level))?;
        let stride = x.values().stride();
        let mut sorted = Mat::zeros(x.num_blocks(), x.block_len())?;
        let sorted_stride = sorted.as_ref().stride().max(1);
        self.install(|| {
            parallel::chunks_mut(sorted.as_mut().into_data(), sorted_stride, |row, to| {
                let from = &x.values().data()[fibers.values()[row] as usize * stride..][..x.block_len()];
                to[..x.block_len()].copy_from_slice(from);
            });
        });
        let cols = x.block_len().checked_mul(u.cols());
        let cols = cols.ok_or_else(|| Error::argument("ttm", "a block of Y does not fit the address space"))?;
        let mut y = Mat::zeros(fibers.num_fibers(), cols)?;
        let blocks = Blocks {
            ptr: fibers.ptr(),
            leaf: fibers.leaf(),
            x: sorted.as_ref().data(),
            x_stride: sorted_stride,
            block: x.block_len(),
        };
        self.multiply(&blocks, u, TtmAlgorithm::Fiber, y.as_mut());
        let mut dims = x.dims().to_vec();
        dims[mode] = u.cols();
        let dense_modes = [x.dense_modes(), &[mode]].concat();
        Ok(SemiCoo::from_checked(dims, dense_modes, fibers.coords().to_vec(), y))
    }

    /// In a dense mode: every block, turned so that mode n comes last, times U.
    fn ttm_semi_dense<T: Scalar>(&self, x: &SemiCoo<T>, mode: usize, u: MatRef<'_, T>) -> Result<SemiCoo<T>> {
        let at = x.dense_modes().iter().position(|&m| m == mode).expect("a mode is sparse or dense");
        let lens: Vec<usize> = x.dense_modes().iter().map(|&m| x.dims()[m]).collect();
        let (n, inner) = (lens[at], lens[at + 1..].iter().product::<usize>());
        let rows: usize = lens[..at].iter().product::<usize>() * inner;
        let cols = rows.checked_mul(u.cols());
        let cols = cols.ok_or_else(|| Error::argument("ttm", "a block of Y does not fit the address space"))?;
        let mut y = Mat::zeros(x.num_blocks(), cols)?;
        let stride = y.as_ref().stride().max(1);
        // A block is `rows` fibers of n values: the same for all blocks.
        let ptr: Vec<usize> = (0..=rows).map(|row| row * n).collect();
        let leaf: Vec<u32> = (0..rows).flat_map(|_| 0..n as u32).collect();
        self.install(|| {
            parallel::chunks_mut(y.as_mut().into_data(), BLOCKS_PER_TASK * stride, |k, rows_of_y| {
                let mut turned = vec![T::ZERO; rows * n];
                for (p, y) in (k * BLOCKS_PER_TASK..).zip(rows_of_y.chunks_mut(stride)) {
                    let block = x.values().row(p);
                    for (row, fiber) in turned.chunks_exact_mut(n.max(1)).enumerate() {
                        let (outer, inside) = (row / inner, row % inner);
                        fiber.iter_mut().enumerate().for_each(|(k, t)| *t = block[(outer * n + k) * inner + inside]);
                    }
                    let blocks = Blocks { ptr: &ptr, leaf: &leaf, x: &turned, x_stride: 1, block: 1 };
                    let task = task(self.machine(), &blocks, u, u.cols(), y.as_mut_ptr(), u.cols(), false);
                    // SAFETY: `ptr` and `leaf` were made for the block above and U has n rows; `y` is this block's row, of
                    // rows * R values.
                    unsafe { ttm_fibers(self.arch(), task) };
                }
            });
        });
        let mut dims = x.dims().to_vec();
        dims[mode] = u.cols();
        let mut dense_modes: Vec<usize> = x.dense_modes().iter().copied().filter(|&m| m != mode).collect();
        dense_modes.push(mode);
        Ok(SemiCoo::from_checked(dims, dense_modes, x.all_coords().to_vec(), y))
    }

    /// Row f of `y`: the products of fiber f. Shapes have been checked.
    fn multiply<D: Stored>(
        &self,
        x: &Blocks<'_, D::Scalar>,
        u: MatRef<'_, D>,
        algorithm: TtmAlgorithm,
        mut y: MatMut<'_, D>,
    ) {
        let (cols, stride, fibers) = (u.cols(), y.stride(), y.rows());
        debug_assert_eq!(y.cols(), cols * x.block);
        if fibers == 0 || cols == 0 {
            return;
        }
        // Whoever asks for elements gets them. The choice depends on the threads, the bits must not.
        let in_parts = x.block == 1 && algorithm != TtmAlgorithm::Element;
        let long = if in_parts { long_fibers(x.ptr) } else { Vec::new() };
        for &fiber in &long {
            let nonzeros = x.ptr[fiber]..x.ptr[fiber + 1];
            let (leaf, values) = (&x.leaf[nonzeros.clone()], &x.x[nonzeros]);
            self.multiply_long(leaf, values, u, prefetch_distance(self.machine(), u), y.reborrow().into_row(fiber));
        }
        let y = y.into_data();
        let aligned = y.as_ptr().addr().is_multiple_of(ALIGN) && (stride * size_of::<D>()).is_multiple_of(ALIGN);
        let width = match self.ttm_algorithm::<D::Scalar>(fibers, cols, algorithm) {
            TtmAlgorithm::Element => self.arch().lanes::<D::Scalar>(),
            _ => cols,
        };
        // Narrow registers are parts of lines, which would be merged in memory.
        let whole = x.block == 1 && !D::NARROW || (width * size_of::<D>()).is_multiple_of(ALIGN);
        // The rows of U should stay in the caches.
        let bytes = size_of_val::<[D]>(y).saturating_add(size_of_val(u.data()));
        let stream = aligned && whole && streams(self.machine(), bytes);
        let work = work(x.leaf.len(), x.block * cols);
        let runs = without(cut_fibers(x.ptr, tasks(work, self.threads(), self.alone())), &long);
        let columns = || (0..cols).step_by(width);
        let tasks: Vec<_> = runs.iter().flat_map(|run| columns().map(move |at| (run.start, run.end, at))).collect();
        let shared = Shared(y.as_mut_ptr());
        self.for_each(tasks.len(), work, |k| {
            let (first, end, at) = tasks[k];
            let fibers = Blocks { ptr: &x.ptr[first..=end], ..*x };
            let y = shared.get().wrapping_add(first * stride + at);
            let width = width.min(cols - at);
            let u = MatRef::new(&u.data()[at..], u.rows(), width, u.stride()).expect("columns of a valid view");
            let task = task(self.machine(), &fibers, u, cols, y, stride, stream);
            // SAFETY: formats keep `ptr` ascending within `leaf` and coordinates below the mode's length, which is U's
            // number of rows; tasks are disjoint in fibers or columns, all inside `y`.
            unsafe { ttm_fibers(self.arch(), task) };
        });
    }
}

/// Nonzeros ahead at which rows of U are prefetched.
fn prefetch_distance<D>(machine: &Machine, u: MatRef<'_, D>) -> usize {
    let row_bytes = u.cols() * size_of::<D>();
    match size_of_val(u.data()) > machine.l3_bytes() / 2 {
        true => FAR_DISTANCE,
        false => (PREFETCHED_BYTES / row_bytes).clamp(4, 64),
    }
}

/// The kernel's view of one task.
fn task<'a, D: Stored>(
    machine: &Machine,
    x: &Blocks<'a, D::Scalar>,
    u: MatRef<'_, D>,
    y_block: usize,
    y: *mut D,
    y_stride: usize,
    stream: bool,
) -> TtmFibers<'a, D> {
    TtmFibers {
        ptr: x.ptr,
        leaf: x.leaf,
        x: x.x,
        x_stride: x.x_stride,
        block: x.block,
        u: u.data().as_ptr(),
        u_stride: u.stride(),
        cols: u.cols(),
        y,
        y_stride,
        y_block,
        prefetch_distance: prefetch_distance(machine, u),
        stream,
    }
}

/// Whether `u` has a row for every coordinate of the mode.
fn check_u<T>(u: MatRef<'_, T>, dim: usize) -> Result<()> {
    check_columns("ttm", u.cols())?;
    check_shape("ttm", "U", u.shape(), (dim, u.cols()))
}
