//! What the loops of each format compute and move, counted on the tensor at hand: Table 3 of the MM-CSF paper (Nisa and
//! others, SC '19) for any format and order.
//!
//! Of one column of the factors, with N modes and M nonzeros:
//!
//! | loop | operations | rows of factors read | rows of the output changed |
//! | --- | --- | --- | --- |
//! | nonzero by nonzero | N M | (N - 1) M | M, or a run of nonzeros in one row |
//! | tree, output at level l with n_k nodes of level k | 2 n_k below l, n_k between the root and l, 2 n_l (n_0 at the root) | n_k of every level but l | n_l |
//! | tiled, chunks that share s rows | f + 1 a nonzero with f free modes, s + 1 a chunk | f a nonzero, s a chunk | one a run |
//!
//! A tree whose output is at the leaves multiplies the rows above them once for each fiber, so that its operations are
//! fewer than the paper's 3 M.

use std::iter::Sum;

use sparsimd_kernels::Scalar;

use super::stored::{Stored, list_of};
use super::tree::Group;
use super::{Body, MttkrpTensor};
use crate::formats::{CsfPattern, Tiled};
use crate::parallel;

/// What one MTTKRP computes and moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MttkrpCounts {
    /// Floating point operations for each column of the factors.
    pub operations: usize,
    /// Rows of factors, and of partial products, that are read.
    pub reads: usize,
    /// Rows of the output, and of partial products, that are changed.
    pub writes: usize,
    /// Bytes of coordinates, pointers and values.
    pub stored_bytes: usize,
}

impl Sum for MttkrpCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            operations: a.operations + b.operations,
            reads: a.reads + b.reads,
            writes: a.writes + b.writes,
            stored_bytes: a.stored_bytes + b.stored_bytes,
        })
    }
}

impl<T: Scalar> MttkrpTensor<T> {
    /// What [`Cpu::mttkrp`](crate::Cpu::mttkrp) of `mode` computes and moves, by the loops of the format; of a tree of partial
    /// products, these products included.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn counts(&self, mode: usize) -> MttkrpCounts {
        assert!(mode < self.dims.len(), "mode {mode} of a tensor of order {}", self.dims.len());
        match &self.body {
            Body::Modes(part) => part.stored.counts(mode),
            Body::Tree(tree) => tree.group(mode).counts(mode),
        }
    }
}

impl<T: Scalar> Stored<T> {
    pub(super) fn counts(&self, mode: usize) -> MttkrpCounts {
        let list = |order: usize, nnz: usize, writes: usize, index_bytes: usize| MttkrpCounts {
            operations: order * nnz,
            reads: (order - 1) * nnz,
            writes,
            stored_bytes: index_bytes + nnz * size_of::<T>(),
        };
        match self {
            Self::Coo { copies, .. } => {
                let coo = list_of(copies, mode);
                let rows = coo.coords(mode);
                let opens = |p: usize| p == 0 || rows[p - 1] != rows[p];
                let writes = if self.sums_rows(mode) { parallel::filter(rows.len(), opens).len() } else { rows.len() };
                list(coo.order(), coo.nnz(), writes, coo.index_bytes())
            }
            Self::Alto(alto) => list(alto.dims().len(), alto.nnz(), alto.nnz(), alto.index_bytes()),
            Self::HiCoo(hicoo) => list(hicoo.order(), hicoo.nnz(), hicoo.nnz(), hicoo.index_bytes()),
            Self::CsfSet(set) | Self::Elements(set) => of_tree::<T>(set.tree(mode).pattern(), mode),
            Self::Trees(all) => of_tree::<T>(all[mode].pattern(), mode),
            Self::Bcsf(all) => of_tree::<T>(all[mode].csf().pattern(), mode),
            Self::MmCsf(mm) => mm.trees().iter().map(|tree| of_tree::<T>(tree.pattern(), mode)).sum(),
            Self::Tiled(all) => of_tiles(&all[mode]),
        }
    }
}

impl<T: Scalar> Group<T> {
    fn counts(&self, mode: usize) -> MttkrpCounts {
        self.parts(mode).map(|part| part.stored.counts(0)).sum()
    }
}

fn of_tree<T>(pattern: &CsfPattern, mode: usize) -> MttkrpCounts {
    let (order, output) = (pattern.order(), pattern.level_of(mode));
    let of_level = |level: usize| {
        let nodes = pattern.nodes(level);
        let operations = match level {
            0 if output == 0 => nodes,
            // The product of the root's row alone is the row.
            0 => 0,
            _ if level < output => nodes,
            _ => 2 * nodes,
        };
        MttkrpCounts {
            operations,
            reads: if level == output { 0 } else { nodes },
            writes: if level == output { nodes } else { 0 },
            stored_bytes: 0,
        }
    };
    let stored_bytes = pattern.index_bytes() + pattern.nnz() * size_of::<T>();
    MttkrpCounts { stored_bytes, ..(0..order).map(of_level).sum() }
}

fn of_tiles<T: Scalar>(tiled: &Tiled<T>) -> MttkrpCounts {
    let (nnz, shared) = (tiled.nnz(), tiled.spec().shared);
    let free = tiled.spec().inputs.len() - shared;
    let runs: usize = tiled.tasks().iter().map(|task| task.runs().len()).sum();
    let chunks: usize = match shared {
        0 => 0,
        _ => tiled.tasks().iter().flat_map(|task| task.runs()).map(|run| run.chunks()).sum(),
    };
    MttkrpCounts {
        operations: (free + 1) * nnz + (shared + 1) * chunks,
        reads: free * nnz + shared * chunks,
        writes: runs,
        stored_bytes: tiled.index_bytes() + nnz * size_of::<T>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{MttkrpFormat, TensorOptions};
    use crate::{CooTensor, Cpu};

    /// 3 slices, 5 fibers and 16 nonzeros along modes 0, 1, 2; along mode 1 there are 12 places, 8 of them coordinates.
    fn coo() -> CooTensor<f32> {
        let runs = [(0, 0, 1), (0, 2, 7), (0, 3, 2), (2, 1, 5), (3, 0, 1)];
        let places: Vec<[u32; 3]> = runs.iter().flat_map(|&(i, j, n)| (0..n).map(move |k| [i, j, k])).collect();
        let coords = (0..3).map(|mode| places.iter().map(|place| place[mode]).collect()).collect();
        CooTensor::new(vec![4, 5, 8], coords, vec![1.0; 16]).unwrap()
    }

    #[test]
    fn counts_are_those_of_the_paper() {
        let cpu = Cpu::builder().threads(1).pin(false).build().unwrap();
        let counts = |format: MttkrpFormat, mode: usize| {
            let prepared = cpu.prepare_tensor(&coo(), &TensorOptions::new(8).format(format)).unwrap();
            let MttkrpCounts { operations, reads, writes, .. } = prepared.counts(mode);
            [operations, reads, writes]
        };
        let (s, f, m) = (3, 5, 16);
        assert_eq!(counts(MttkrpFormat::HiCoo, 1), [3 * m, 2 * m, m]);
        assert_eq!(counts(MttkrpFormat::Alto, 2), [3 * m, 2 * m, m]);
        // Sorted by mode 0: a run of nonzeros for each slice.
        assert_eq!(counts(MttkrpFormat::Coo, 0), [3 * m, 2 * m, s]);
        assert_eq!(counts(MttkrpFormat::Coo, 1), [3 * m, 2 * m, m]);
        // The modes from the shortest to the longest are 0, 1, 2.
        assert_eq!(counts(MttkrpFormat::CsfAll, 0), [s + 2 * (f + m), f + m, s]);
        assert_eq!(counts(MttkrpFormat::CsfOne, 1), [2 * (f + m), s + m, f]);
        assert_eq!(counts(MttkrpFormat::CsfOne, 2), [f + 2 * m, s + f, m]);
        // The fibers along mode 2 are the longest of all nonzeros but the lone ones: one tree, that of CSF-one.
        let one = counts(MttkrpFormat::CsfOne, 0);
        assert!(counts(MttkrpFormat::MmCsf, 0)[1] <= one[1] + m);
        assert_eq!(counts(MttkrpFormat::Bcsf, 0), one);
        for mode in 0..3 {
            let [operations, reads, writes] = counts(MttkrpFormat::Tiled, mode);
            assert!(operations <= 3 * m + 2 * m && (m..=2 * m).contains(&reads) && writes <= m, "mode {mode}");
            let [_, reads, writes] = counts(MttkrpFormat::Tree, mode);
            assert!(reads >= m && writes >= 1, "mode {mode}");
        }
    }
}
