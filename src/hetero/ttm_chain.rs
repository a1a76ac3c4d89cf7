//! TTM chain on both sides.

use std::ops::Range;

use super::Hetero;
use super::share::{Divisible, Job, Parts};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::Csf;
use crate::gpu::{DeviceScalar, Gpu, GpuChain, GpuMat};
use crate::ops::chain_cols;

/// A tensor's tree, with the slices that each side works on.
pub struct HeteroChain<T: DeviceScalar> {
    parts: Parts<Tree<T>>,
}

/// The tree, and what it is prepared for.
struct Tree<T> {
    csf: Csf<T>,
    ranks: Vec<usize>,
    /// First nonzero of each slice, and the end of the last one's.
    slice_ptr: Vec<usize>,
}

impl<T: DeviceScalar> Divisible for Tree<T> {
    type OnDevice = GpuChain<T>;
    type OnHost = Csf<T>;

    fn items(&self) -> usize {
        self.slice_ptr.len() - 1
    }

    fn work(&self, i: usize) -> usize {
        self.slice_ptr[i] + i
    }

    fn device_part(&self, gpu: &Gpu, slices: &Range<usize>) -> Result<GpuChain<T>> {
        gpu.chain(&self.csf.slices(slices.clone()), &self.ranks)
    }

    fn host_part(&self, _: &Cpu, slices: &Range<usize>) -> Result<Csf<T>> {
        Ok(self.csf.slices(slices.clone()))
    }
}

impl<T: DeviceScalar> HeteroChain<T> {
    /// The tree, not cut yet, for matrices of `ranks[m]` columns. That of the root's mode has no influence.
    pub fn new(csf: Csf<T>, ranks: &[usize]) -> Self {
        let slice_ptr = csf.pattern().slice_ptr();
        Self { parts: Parts::new(Tree { csf, ranks: ranks.to_vec(), slice_ptr }) }
    }

    /// The whole tree.
    pub fn tree(&self) -> &Csf<T> {
        &self.parts.whole.csf
    }

    /// The (first) device's share of the work that an adaptive run found.
    pub fn share(&self) -> Option<f64> {
        self.parts.share(OP)
    }
}

const OP: &str = "ttm_chain";

/// Copies what an executor made to its rows of Y.
fn copy_rows<T: DeviceScalar>(from: &Mat<T>, to: &mut MatMut<'_, T>) {
    (0..from.rows()).for_each(|i| to.reborrow().into_row(i).copy_from_slice(from.row(i)));
}

impl Hetero {
    /// Y = X times all matrices but that of the tree's root mode, on both sides. Shapes, rows and columns as those of
    /// [`Cpu::ttm_chain`](crate::Cpu::ttm_chain).
    ///
    /// # Errors
    /// As [`Cpu::ttm_chain`](crate::Cpu::ttm_chain), and [`Error::Shape`] when a matrix but the root's has not the columns that X is for.
    /// A device that fails is replaced: see [`Hetero::take_failures`].
    #[inline(never)]
    pub fn ttm_chain<T: DeviceScalar>(&self, x: &mut HeteroChain<T>, u: &[MatRef<'_, T>]) -> Result<Mat<T>> {
        let (tree, ranks) = (x.tree().pattern(), &x.parts.whole.ranks);
        let shapes: Vec<_> = u.iter().map(MatRef::shape).collect();
        let (cols, root) = (chain_cols(tree, &shapes)?, tree.mode_order()[0]);
        if let Some(mode) = tree.mode_order()[1..].iter().find(|&&mode| ranks.get(mode) != Some(&u[mode].cols())) {
            let detail = format!("matrix {mode} has {} columns, X is for {ranks:?}", u[*mode].cols());
            return Err(Error::shape(OP, detail));
        }
        let mut y = Mat::zeros(tree.nodes(0), cols)?;
        let job = Job {
            op: OP,
            // Nobody looks at the root's matrix.
            upload: |gpu: &Gpu| {
                let each = u.iter().enumerate();
                each.map(|(mode, &u)| if mode == root { gpu.zeros(1, 1) } else { gpu.mat(u) })
                    .collect::<Result<Vec<_>>>()
            },
            device: |gpu: &Gpu, x: &GpuChain<T>, u: &Vec<GpuMat<T>>, _: &Range<usize>, y: &mut MatMut<'_, T>| {
                copy_rows(&gpu.ttm_chain(x, u)?, y);
                Ok(())
            },
            processor: |cpu: &Cpu, x: &Csf<T>, _: &Range<usize>, y: &mut MatMut<'_, T>| {
                copy_rows(&cpu.ttm_chain(x, u)?, y);
                Ok(())
            },
        };
        self.share_out(&mut x.parts, y.as_mut(), job)?;
        Ok(y)
    }
}
