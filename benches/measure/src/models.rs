//! Operational intensity: floating point operations per byte that an operation asks memory for, by formula, for the
//! pattern at hand.
//!
//! Bytes are what the cores request (the cache-aware view): each use of a row of a dense operand counts, whether or not a
//! cache still has it. Which level of memory answers is then seen from the speed. Sources:
//!
//! - tensors in coordinate and HiCOO format: Table I of Li et al., *A Sparse Tensor Benchmark Suite for CPUs and GPUs*
//!   (2020), which has order 3 and f32; here any order N and value size;
//! - TTM and MTTKRP on compressed sparse fibers, element by element or row by row: Table 2 of *Exploring the Limits of
//!   Cross-Platform Sparse Tensor Processing*; its designs for FPGAs: Table 3;
//! - MTTKRP in any format by what its loops read and change, as Table 3 of the MM-CSF paper counts;
//! - SpMM, SDDMM, FusedMM: counted the same way.

use sparsimd::formats::{CooTensor, CsfPattern, Pattern, rooted_mode_order};
use sparsimd::ops::MttkrpCounts;
use sparsimd::{Error, Result, Scalar, Stored};

/// Bytes of a coordinate.
const INDEX: f64 = 4.0;
/// Bytes of a pointer.
const POINTER: f64 = 8.0;

/// Operations and bytes of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating point operations.
    pub flops: f64,
    /// Bytes loaded and stored.
    pub bytes: f64,
}

impl Work {
    /// Operations per byte; 0 when there are no bytes.
    pub fn intensity(&self) -> f64 {
        if self.bytes > 0.0 { self.flops / self.bytes } else { 0.0 }
    }

    /// MTTKRP with `rank` columns, as the loops of a format do it: N nnz R operations, those of coordinates, in every format;
    /// bytes of `counts`, one value for each column of a row read or changed.
    pub fn mttkrp<T: Scalar>(order: usize, nnz: usize, counts: &MttkrpCounts, rank: usize) -> Self {
        let rows = (counts.reads + counts.writes) as f64 * rank as f64 * size_of::<T>() as f64;
        Self { flops: (order * nnz * rank) as f64, bytes: rows + counts.stored_bytes as f64 }
    }

    /// SpMM, C = A B with `n` columns: per nonzero its index, its value and a row of B; the pointers; C once. `D` is what dense
    /// operands store.
    pub fn spmm<D: Stored>(a: &Pattern, n: usize) -> Self {
        let (value, m, nnz, n) = (size_of::<D::Scalar>() as f64, a.rows() as f64, a.nnz() as f64, n as f64);
        let row = n * size_of::<D>() as f64;
        Self { flops: 2.0 * nnz * n, bytes: nnz * (INDEX + value + row) + (m + 1.0) * POINTER + m * row }
    }

    /// SDDMM, (C B^T) on the pattern with rows of `n`: per nonzero its index, its result and a row of B; C once.
    pub fn sddmm<D: Stored>(a: &Pattern, n: usize) -> Self {
        Self::spmm::<D>(a, n)
    }

    /// FusedMM, E = f(C B^T on the pattern) D with rows of `n`: per nonzero its index, its value and rows of B and D; C and
    /// E once.
    pub fn fusedmm<D: Stored>(a: &Pattern, n: usize) -> Self {
        let one = Self::spmm::<D>(a, n);
        let rows = (a.nnz() + a.rows()) as f64 * n as f64 * size_of::<D>() as f64;
        Self { flops: 2.0 * one.flops, bytes: one.bytes + rows }
    }
}

/// A tensor operation of the PASTA suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorOp {
    /// Element-wise on two tensors of one pattern: M operations, three values each.
    Tew,
    /// With a scalar: M operations, two values each.
    Ts,
    /// Times a vector.
    Ttv,
    /// Times a matrix.
    Ttm,
    /// Matricised tensor times Khatri-Rao product.
    Mttkrp,
}

/// Numbers of nonzeros, slices and fibers of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorCounts {
    /// Nonzeros (M).
    pub nnz: usize,
    /// Slices of each mode with a nonzero.
    pub slices: Vec<usize>,
    /// Fibers along each mode with a nonzero (M_F): places of all other modes.
    pub fibers: Vec<usize>,
}

impl TensorCounts {
    /// Counts those of `x`.
    ///
    /// # Errors
    /// As [`CooTensor::sorted_permutation`].
    #[inline(never)]
    pub fn of<T: Scalar>(x: &CooTensor<T>) -> Result<Self> {
        let order = x.order();
        let mut counts = Self { nnz: x.nnz(), slices: vec![0; order], fibers: vec![0; order] };
        for mode in 0..order {
            let others: Vec<_> = (0..order).filter(|&m| m != mode).collect();
            let levels = prefix_counts(x, &[others.as_slice(), &[mode]].concat())?;
            // Of order 1, the one fiber is the tensor.
            counts.fibers[mode] = if order == 1 { x.nnz().min(1) } else { levels[order - 2] };
            counts.slices[mode] = prefix_counts(x, &[&[mode], others.as_slice()].concat())?[0];
        }
        Ok(counts)
    }

    /// Table I, coordinate format: `op` in mode `mode` with `rank` columns (TTM, MTTKRP).
    ///
    /// With M nonzeros, M_F fibers, values of s bytes and order N (Table I has s = 4, N = 3):
    /// ```text
    /// TEW     M        3 s M
    /// TS      M        2 s M
    /// TTV     2 M      (2 s + 4) M + (s + 4 (N - 1)) M_F
    /// TTM     2 M R    s M R + s M_F R + (s + 4) M + 4 (N - 1) M_F
    /// MTTKRP  N M R    s N M R + (s + 4 N) M
    /// ```
    ///
    /// # Panics
    /// When `mode` is not below the order, as slice indexing does.
    pub fn work<T: Scalar>(&self, op: TensorOp, mode: usize, rank: usize) -> Work {
        let (s, m, r) = (size_of::<T>() as f64, self.nnz as f64, rank as f64);
        let (fibers, order) = (self.fibers[mode] as f64, self.fibers.len() as f64);
        let places = INDEX * (order - 1.0) * fibers;
        let (flops, bytes) = match op {
            TensorOp::Tew => (m, 3.0 * s * m),
            TensorOp::Ts => (m, 2.0 * s * m),
            TensorOp::Ttv => (2.0 * m, (2.0 * s + INDEX) * m + s * fibers + places),
            TensorOp::Ttm => (2.0 * m * r, s * m * r + s * fibers * r + (s + INDEX) * m + places),
            TensorOp::Mttkrp => (order * m * r, s * order * m * r + (s + INDEX * order) * m),
        };
        Work { flops, bytes }
    }

    /// Table I, HiCOO: MTTKRP with `blocks` blocks of edge `edge`, of which each touches at most `edge` rows of a factor:
    /// `s N R min(blocks * edge, M) + (s + N) M + (8 + 4 N) blocks` bytes. The other operations are as in coordinate
    /// format.
    pub fn mttkrp_hicoo<T: Scalar>(&self, blocks: usize, edge: usize, rank: usize) -> Work {
        let (s, m, r) = (size_of::<T>() as f64, self.nnz as f64, rank as f64);
        let (order, blocks) = (self.fibers.len() as f64, blocks as f64);
        let rows = (blocks * edge as f64).min(m);
        let bytes = s * order * r * rows + (s + order) * m + (POINTER + INDEX * order) * blocks;
        Work { flops: order * m * r, bytes }
    }
}

/// Numbers of nodes of a tree of compressed sparse fibers, from the roots (slices) to the leaves (nonzeros).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeCounts {
    nodes: Vec<usize>,
}

/// What one run of a kernel on compressed sparse fibers does, in the terms of the paper: values of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accesses {
    /// Floating point operations.
    pub ops: f64,
    /// Values and indices loaded.
    pub loads: f64,
    /// Values stored.
    pub stores: f64,
}

impl Accesses {
    /// Operations per byte, 4 bytes an access.
    pub fn intensity(&self) -> f64 {
        let accesses = self.loads + self.stores;
        if accesses > 0.0 { self.ops / (4.0 * accesses) } else { 0.0 }
    }
}

/// What one work item computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// One element of the output.
    Element,
    /// A fiber (TTM) or row (MTTKRP) of the output.
    Row,
}

impl TreeCounts {
    /// The tree of `x` rooted at mode `root`, other modes by length as the CSF of this library orders them.
    ///
    /// # Errors
    /// [`Error::Argument`] when `root` is not a mode of `x` or its order is below 2.
    #[inline(never)]
    pub fn of<T: Scalar>(x: &CooTensor<T>, root: usize) -> Result<Self> {
        if root >= x.order() || x.order() < 2 {
            let detail = format!("{root} is not a mode of a tensor of order {}, at least 2", x.order());
            return Err(Error::Argument { name: "mode", detail });
        }
        Ok(Self { nodes: prefix_counts(x, &rooted_mode_order(x.dims(), root))? })
    }

    /// A tree of order 3 with these numbers of slices, fibers and nonzeros.
    pub fn new(slices: usize, fibers: usize, nnz: usize) -> Self {
        Self { nodes: vec![slices, fibers, nnz] }
    }

    /// The nodes of a tree.
    pub(crate) fn of_pattern(pattern: &CsfPattern) -> Self {
        Self { nodes: (0..pattern.order()).map(|level| pattern.nodes(level)).collect() }
    }

    /// Rows of matrices that are used: by the nonzeros, and by all nodes `between` them and the roots.
    pub(crate) fn rows(&self, between: bool) -> f64 {
        if between { self.inner() } else { self.nnz() }
    }

    fn slices(&self) -> f64 {
        self.nodes.first().map_or(0.0, |&n| n as f64)
    }

    fn fibers(&self) -> f64 {
        self.nodes.iter().rev().nth(1).map_or(0.0, |&n| n as f64)
    }

    fn nnz(&self) -> f64 {
        self.nodes.last().map_or(0.0, |&n| n as f64)
    }

    /// Nodes below the roots: fibers and nonzeros at order 3, each of which is one row of a factor used.
    fn inner(&self) -> f64 {
        self.nodes.iter().skip(1).map(|&n| n as f64).sum()
    }

    /// Table 2, TTM: all work items together.
    pub fn ttm(&self, granularity: Granularity, columns: usize) -> Accesses {
        let (items, nnz, c) = (self.fibers(), self.nnz(), columns as f64);
        match granularity {
            Granularity::Element => {
                Accesses { ops: 2.0 * nnz * c, loads: (2.0 * items + 3.0 * nnz) * c, stores: items * c }
            }
            Granularity::Row => {
                Accesses { ops: 2.0 * c * nnz, loads: 2.0 * items + nnz * (c + 2.0), stores: items * c }
            }
        }
    }

    /// Table 2, MTTKRP: all work items together. Beyond order 3, inner nodes count as fibers do.
    pub fn mttkrp(&self, granularity: Granularity, columns: usize) -> Accesses {
        let (items, inner, c) = (self.slices(), self.inner(), columns as f64);
        match granularity {
            Granularity::Element => {
                Accesses { ops: 2.0 * inner * c, loads: 3.0 * (items + inner) * c, stores: items * c }
            }
            Granularity::Row => {
                Accesses { ops: 2.0 * c * inner, loads: (c + 2.0) * inner + 3.0 * items, stores: items * c }
            }
        }
    }
}

/// An FPGA as Table 3's designs see it: processing elements of multipliers and adders, no cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fpga {
    /// DSP blocks, one multiply-add per cycle each.
    pub dsps: usize,
    /// Clock in GHz.
    pub clock_ghz: f64,
    /// Memory bandwidth in GB/s.
    pub bandwidth: f64,
}

/// A design for one operation and number of columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FpgaDesign {
    /// DSP blocks of one processing element.
    pub dsps: usize,
    /// Processing elements.
    pub elements: usize,
    /// GFLOP/s of all of them busy.
    pub peak: f64,
    /// Operations per byte.
    pub intensity: f64,
    /// GFLOP/s that peak and bandwidth allow; 0 when not one element fits.
    pub attainable: f64,
}

impl Fpga {
    /// Table 3, TTM: a processing element has a DSP block per column.
    pub fn ttm(&self, tree: &TreeCounts, columns: usize, elements: Option<usize>) -> FpgaDesign {
        let (fibers, nnz, c) = (tree.fibers(), tree.nnz(), columns as f64);
        let work = Accesses { ops: 2.0 * c * nnz, loads: fibers + nnz * (c + 2.0) + 1.0, stores: fibers * c };
        self.design(work, columns, elements)
    }

    /// Table 3, MTTKRP: two DSP blocks per column. Beyond order 3, inner nodes count as fibers do.
    pub fn mttkrp(&self, tree: &TreeCounts, columns: usize, elements: Option<usize>) -> FpgaDesign {
        let (slices, inner, c) = (tree.slices(), tree.inner(), columns as f64);
        let work = Accesses { ops: 2.0 * c * inner, loads: slices + 2.0 + (c + 2.0) * inner, stores: slices * c };
        self.design(work, 2 * columns, elements)
    }

    /// With `elements` processing elements of `dsps` blocks, as far as they fit; as many as fit by default.
    fn design(&self, work: Accesses, dsps: usize, elements: Option<usize>) -> FpgaDesign {
        let fit = self.dsps / dsps.max(1);
        let elements = elements.map_or(fit, |wanted| wanted.min(fit));
        let peak = 2.0 * (elements * dsps) as f64 * self.clock_ghz;
        let intensity = work.intensity();
        FpgaDesign { dsps, elements, peak, intensity, attainable: peak.min(intensity * self.bandwidth) }
    }
}

/// The number of different places of the first 1, 2, ... modes of `mode_order` among the nonzeros.
fn prefix_counts<T: Scalar>(x: &CooTensor<T>, mode_order: &[usize]) -> Result<Vec<usize>> {
    let sorted = x.sorted_permutation(mode_order)?;
    let mut counts = vec![usize::from(x.nnz() > 0); mode_order.len()];
    for pair in sorted.windows(2) {
        // The first mode in which neighbours differ starts a new node there and on all levels below.
        let level = mode_order.iter().position(|&mode| x.coords(mode)[pair[0]] != x.coords(mode)[pair[1]]);
        // Nonzeros at one place are leaves of their own.
        for count in &mut counts[level.unwrap_or(mode_order.len() - 1)..] {
            *count += 1;
        }
    }
    Ok(counts)
}
