//! How many CSF copies of one tensor serve all its modes: SPLATT's three choices.

use sparsimd_kernels::Scalar;

use super::coo_tensor::CooTensor;
use super::csf::{Csf, rooted_mode_order, sort_by_length};
use crate::error::Result;

/// Which orders of the modes a [`CsfSet`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CsfKind {
    /// One copy per mode, with that mode at its root: every mode is computed by the slice algorithm.
    All,
    /// One copy: the modes from the shortest (root) to the longest (leaf).
    One,
    /// That copy, and a second one for the longest mode, which would otherwise be the leaf.
    Two,
}

/// A tensor in one or more orders of its modes.
#[derive(Clone, Debug, PartialEq)]
pub struct CsfSet<T> {
    kind: CsfKind,
    trees: Vec<Csf<T>>,
    tree_of_mode: Vec<usize>,
}

impl<T: Scalar> CsfSet<T> {
    /// The copies of `coo` that `kind` asks for. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`crate::Error::Structure`] when two entries are at the same place.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, kind: CsfKind) -> Result<Self> {
        let dims = coo.dims();
        let order = dims.len();
        let mut ascending: Vec<usize> = (0..order).collect();
        sort_by_length(&mut ascending, dims);
        let (orders, tree_of_mode) = match kind {
            CsfKind::All => ((0..order).map(|mode| rooted_mode_order(dims, mode)).collect(), (0..order).collect()),
            CsfKind::One => (vec![ascending], vec![0; order]),
            CsfKind::Two => {
                let longest = ascending[order - 1];
                let tree_of_mode = (0..order).map(|mode| usize::from(mode == longest && order > 1)).collect();
                let second = (order > 1).then(|| rooted_mode_order(dims, longest));
                (std::iter::once(ascending).chain(second).collect::<Vec<_>>(), tree_of_mode)
            }
        };
        let trees = orders.iter().map(|mode_order| Csf::from_coo(coo, mode_order)).collect::<Result<_>>()?;
        Ok(Self { kind, trees, tree_of_mode })
    }

    /// The same with every fiber of more than `longest` nonzeros as several nodes.
    pub(crate) fn split_fibers(self, longest: usize) -> Self {
        Self { trees: self.trees.into_iter().map(|tree| tree.split_fibers(longest)).collect(), ..self }
    }

    /// Which orders of the modes it holds.
    pub fn kind(&self) -> CsfKind {
        self.kind
    }

    /// All copies.
    pub fn trees(&self) -> &[Csf<T>] {
        &self.trees
    }

    /// The copy that serves `mode` best.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn tree(&self, mode: usize) -> &Csf<T> {
        &self.trees[self.tree_of_mode[mode]]
    }

    /// Bytes of the coordinates and pointers of all copies.
    pub fn index_bytes(&self) -> usize {
        self.trees.iter().map(|tree| tree.pattern().index_bytes()).sum()
    }

    /// The same tensor as coordinates.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        self.trees[0].to_coo()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_their_mode_orders() {
        let coords = vec![vec![8, 1, 0], vec![0, 3, 2], vec![5, 6, 6], vec![0, 1, 0]];
        let coo = CooTensor::new(vec![9, 4, 7, 2], coords, vec![1.0f64, 2.0, 3.0]).unwrap();
        let orders = |kind| {
            let set = CsfSet::from_coo(&coo, kind).unwrap();
            let orders: Vec<_> = set.trees().iter().map(|t| t.pattern().mode_order().to_vec()).collect();
            let roots: Vec<_> = (0..4).map(|mode| set.tree(mode).pattern().mode_order()[0]).collect();
            assert_eq!(set.index_bytes(), set.trees().iter().map(|t| t.pattern().index_bytes()).sum::<usize>());
            assert_eq!((set.kind(), set.to_coo().nnz()), (kind, 3));
            (orders, roots)
        };
        assert_eq!(orders(CsfKind::One), (vec![vec![3, 1, 2, 0]], vec![3; 4]));
        assert_eq!(orders(CsfKind::Two), (vec![vec![3, 1, 2, 0], vec![0, 3, 1, 2]], vec![0, 3, 3, 3]));
        let (all, roots) = orders(CsfKind::All);
        assert_eq!((all[2].as_slice(), roots), (&[2, 3, 1, 0][..], vec![0, 1, 2, 3]));
    }

    #[test]
    fn order_one_has_one_copy_at_most() {
        let line = CooTensor::new(vec![5], vec![vec![3, 1]], vec![1.0f32, 2.0]).unwrap();
        for kind in [CsfKind::All, CsfKind::One, CsfKind::Two] {
            assert_eq!(CsfSet::from_coo(&line, kind).unwrap().trees().len(), 1);
        }
    }
}
