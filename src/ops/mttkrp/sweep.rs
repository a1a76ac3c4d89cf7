//! All modes of a sweep, one after the other, with an update of each mode's factor in between.

use sparsimd_kernels::Scalar;

use super::operands::{check_shapes, kernel_stride, with_output};
use super::part::Call;
use super::{Body, Mttkrp};
use crate::cpu::Cpu;
use crate::dense::{Aligned, Mat, MatRef};
use crate::error::{Error, Result};

/// The turns of a tensor's modes, in the order of [`Mttkrp::sweep_order`], over and over, and the partial products that are
/// kept from one turn to the next.
pub(crate) struct Turns<'a, T: Scalar> {
    cpu: &'a Cpu,
    tensor: &'a Mttkrp<T>,
    /// Those of the group whose turn it is.
    products: Option<Aligned<T>>,
}

impl<'a, T: Scalar> Turns<'a, T> {
    pub(crate) fn new(cpu: &'a Cpu, tensor: &'a Mttkrp<T>) -> Self {
        Self { cpu, tensor, products: None }
    }

    /// The MTTKRP of `mode`, whose turn it is. Since the last turn, only the factor of its mode may have changed.
    pub(crate) fn product(&mut self, factors: &[Mat<T>], mode: usize, out: &mut Mat<T>) -> Result<()> {
        let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
        let Body::Tree(tree) = &self.tensor.body else {
            return self.cpu.mttkrp(self.tensor, &views, mode, out.as_mut());
        };
        check_shapes(self.tensor.dims(), mode, &views, &out.as_mut())?;
        let buffers = &self.tensor.buffers;
        let call = Call { arch: self.cpu.arch(), stride: kernel_stride::<T>(out.cols()), buffers };
        let group = tree.group(mode);
        let held = self.products.take();
        self.cpu.install(|| {
            let products = match held {
                // Another number of columns would be another sweep.
                Some(held) if group.modes()[0] != mode && held.len() >= group.product_len(call.stride) => held,
                held => {
                    held.into_iter().for_each(|held| buffers.give(held));
                    group.products(call, &views)
                }
            };
            with_output(out.as_mut(), buffers, |rows| group.output(call, mode, &products, &views, rows));
            self.products = Some(products);
        });
        Ok(())
    }
}

impl<T: Scalar> Drop for Turns<'_, T> {
    fn drop(&mut self) {
        self.products.take().into_iter().for_each(|products| self.tensor.buffers.give(products));
    }
}

impl Cpu {
    /// The MTTKRP of every mode, in the order of [`Mttkrp::sweep_order`]: `products[n]` becomes that of mode n, then
    /// `update(n, products, factors)` may change the factor of mode n, and of mode n alone; later modes see what it has become.
    /// What the separate calls of [`Cpu::mttkrp`] would compute, with fewer passes over the nonzeros where the plan shares
    /// partial products between modes ([`crate::plan::MttkrpFormat::Tree`]).
    ///
    /// `factors[n]` and `products[n]` have the length of mode n in rows and R columns. The same plan gives the same bits.
    ///
    /// # Errors
    /// As [`Cpu::mttkrp`], and what `update` returns.
    pub fn mttkrp_sweep<T: Scalar>(
        &self,
        tensor: &Mttkrp<T>,
        factors: &mut [Mat<T>],
        products: &mut [Mat<T>],
        mut update: impl FnMut(usize, &[Mat<T>], &mut [Mat<T>]) -> Result<()>,
    ) -> Result<()> {
        let cols = products.first().map_or(0, Mat::cols);
        if products.len() != tensor.dims().len() || products.iter().any(|product| product.cols() != cols) {
            let detail = format!("products must be {} matrices of one number of columns", tensor.dims().len());
            return Err(Error::shape("mttkrp", detail));
        }
        let mut turns = Turns::new(self, tensor);
        for mode in tensor.sweep_order() {
            turns.product(factors, mode, &mut products[mode])?;
            update(mode, products, factors)?;
        }
        Ok(())
    }
}
