//! All modes of a sweep: one after the other, with an update of each mode's factor in between, or all from the same factors.

use sparsimd_kernels::Scalar;

use super::operands::{Buffers, Factor, Output, check_shapes, with_output};
use super::part::{Call, Pointers};
use super::{Body, MttkrpTensor};
use crate::cpu::Cpu;
use crate::dense::{Aligned, Mat, MatMut, MatRef};
use crate::error::{Error, Result};

/// Where a sweep over the modes stands, in the order of [`MttkrpTensor::sweep_order`], over and over, and the partial products that are
/// kept from one turn to the next.
pub(crate) struct SweepState<'a, T: Scalar> {
    cpu: &'a Cpu,
    tensor: &'a MttkrpTensor<T>,
    /// Those of the group whose turn it is.
    products: Option<Aligned<T>>,
}

impl<'a, T: Scalar> SweepState<'a, T> {
    pub(crate) fn new(cpu: &'a Cpu, tensor: &'a MttkrpTensor<T>) -> Self {
        Self { cpu, tensor, products: None }
    }

    /// The MTTKRP of `mode`, whose turn it is. Since the last turn, only the factor of its mode may have changed.
    #[inline(never)]
    pub(crate) fn product(&mut self, factors: &[MatRef<'_, T>], mode: usize, out: MatMut<'_, T>) -> Result<()> {
        let Body::Tree(tree) = &self.tensor.body else {
            return self.cpu.mttkrp(self.tensor, factors, mode, out);
        };
        check_shapes(self.tensor.dims(), mode, factors, &out)?;
        let buffers = &self.tensor.buffers;
        let call = Call::new(self.cpu, out.cols(), buffers);
        let group = tree.group(mode);
        let held = self.products.take();
        self.cpu.install(|| {
            let products = match held {
                // Another number of columns would be another sweep.
                Some(held) if group.modes()[0] != mode && held.len() >= group.product_len(call.stride) => held,
                held => {
                    held.into_iter().for_each(|held| buffers.give(held));
                    group.products(call, factors)
                }
            };
            with_output(out, buffers, |rows| group.output(call, mode, &products, factors, rows));
            self.products = Some(products);
        });
        Ok(())
    }
}

impl<T: Scalar> Drop for SweepState<'_, T> {
    fn drop(&mut self) {
        self.products.take().into_iter().for_each(|products| self.tensor.buffers.give(products));
    }
}

impl Cpu {
    /// The MTTKRP of every mode, in the order of [`MttkrpTensor::sweep_order`]: `products[n]` becomes that of mode n, then
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
        tensor: &MttkrpTensor<T>,
        factors: &mut [Mat<T>],
        products: &mut [Mat<T>],
        mut update: impl FnMut(usize, &[Mat<T>], &mut [Mat<T>]) -> Result<()>,
    ) -> Result<()> {
        check_products(tensor, products.iter().map(Mat::cols))?;
        let mut state = SweepState::new(self, tensor);
        for mode in tensor.sweep_order() {
            let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
            state.product(&views, mode, products[mode].as_mut())?;
            update(mode, products, factors)?;
        }
        Ok(())
    }

    /// The MTTKRP of every mode from the same factors: `products[n]` becomes that of mode n. With the factors' inner products it
    /// is the gradient of a CP model (Acar, Dunlavy and Kolda 2011), for methods that change all factors together; methods that
    /// change one factor after the other need [`Cpu::mttkrp_sweep`].
    ///
    /// What the separate calls of [`Cpu::mttkrp`] would compute, to rounding. A tensor prepared in
    /// [`crate::plan::MttkrpFormat::Joint`] takes one pass over the nonzeros for all modes; others go mode by mode. Shapes are as
    /// there; the same plan gives the same bits.
    ///
    /// # Errors
    /// As [`Cpu::mttkrp`].
    #[inline(never)]
    pub fn mttkrp_all<T: Scalar>(
        &self,
        tensor: &MttkrpTensor<T>,
        factors: &[MatRef<'_, T>],
        products: &mut [MatMut<'_, T>],
    ) -> Result<()> {
        check_products(tensor, products.iter().map(MatMut::cols))?;
        for (mode, product) in products.iter().enumerate() {
            check_shapes(tensor.dims(), mode, factors, product)?;
        }
        let Some(part) = tensor.joint() else {
            let mut state = SweepState::new(self, tensor);
            let mut turn = |mode: usize| state.product(factors, mode, products[mode].reborrow());
            return tensor.sweep_order().into_iter().try_for_each(&mut turn);
        };
        let buffers: &Buffers<T> = &tensor.buffers;
        let call = Call::new(self, factors[0].cols(), buffers);
        self.install(|| {
            let padded: Vec<Factor<'_, T>> = factors.iter().map(|&factor| Factor::new(factor, buffers)).collect();
            let pointers = Pointers(padded.iter().map(Factor::as_ptr).collect());
            let mut outs: Vec<_> = products.iter_mut().map(|out| Output::new(out.reborrow(), buffers)).collect();
            let mut rows: Vec<&mut [T]> = outs.iter_mut().map(Output::rows).collect();
            // SAFETY: the stride is whole cache lines; `check_shapes` compared the operands' rows with the modes' lengths.
            unsafe { part.run_all(call, &pointers, &mut rows) };
            outs.into_iter().for_each(|out| out.finish(buffers));
            padded.into_iter().for_each(|factor| factor.release(buffers));
        });
        Ok(())
    }
}

/// Whether there is a product of every mode, all of one number of columns.
fn check_products<T: Scalar>(tensor: &MttkrpTensor<T>, mut cols: impl ExactSizeIterator<Item = usize>) -> Result<()> {
    let order = tensor.dims().len();
    let many = cols.len() == order;
    let first = cols.next();
    if !many || cols.any(|cols| Some(cols) != first) {
        let detail = format!("products must be {order} matrices of one number of columns");
        return Err(Error::shape("mttkrp", detail));
    }
    Ok(())
}
