//! TTV, the tensor times a vector in one mode: y(others) = sum over i_n of x(.., i_n, ..) v(i_n).

use sparsimd_kernels::{Scalar, SpmmRows, spmm_rows};

use super::long_fibers::{long_fibers, without};
use super::run::Shared;
use super::ttm::cut_fibers;
use crate::cpu::Cpu;
use crate::dense::MatRef;
use crate::error::{Error, Result};
use crate::formats::{CooTensor, FiberCoo, Fibers, HiCoo, RowPointers};
use crate::plan::{tasks, work};

impl Cpu {
    /// y = X x_n v for the mode n whose fibers X is given by: [`FiberCoo`], [`Fibers::of_csf`] or [`HiCoo::fibers`];
    /// `y[f]` receives fiber f. Bit-reproducible on any number of threads.
    ///
    /// # Errors
    /// [`Error::Shape`] when `v` has not I_n elements or `y` not one for each fiber.
    pub fn ttv_into<'a, T: Scalar>(&self, x: impl Into<Fibers<'a, T>>, v: &[T], y: &mut [T]) -> Result<()> {
        self.ttv_fibers_into(x.into(), v, y)
    }

    /// [`Cpu::ttv_into`] of fibers: the product of the matrix whose rows they are with v.
    #[inline(never)]
    pub(crate) fn ttv_fibers_into<T: Scalar>(&self, x: Fibers<'_, T>, v: &[T], y: &mut [T]) -> Result<()> {
        if v.len() != x.dim {
            return Err(Error::shape("ttv", format!("v has {} elements, expected {}", v.len(), x.dim)));
        }
        if y.len() != x.len() {
            return Err(Error::shape("ttv", format!("y has {} elements, expected {}", y.len(), x.len())));
        }
        let long = long_fibers(x.ptr);
        let u = MatRef::new(v, v.len(), 1, 1)?;
        for &fiber in &long {
            let nonzeros = x.ptr[fiber]..x.ptr[fiber + 1];
            self.multiply_long(&x.leaf[nonzeros.clone()], &x.values[nonzeros], u, 0, &mut y[fiber..=fiber]);
        }
        let work = work(x.nnz() + x.len(), 1);
        let runs = without(cut_fibers(x.ptr, tasks(work, self.threads(), self.alone())), &long);
        let fibers = RowPointers::of(x.ptr);
        let y = Shared(y.as_mut_ptr());
        self.for_each(runs.len(), work, |k| {
            let task = SpmmRows {
                row_ptr: fibers.raw(),
                columns: x.leaf.as_ptr(),
                values: x.values.as_ptr(),
                rows: [runs[k].start, runs[k].end],
                nonzeros: [0, x.nnz()],
                b: v.as_ptr(),
                ldb: 1,
                n: 1,
                alpha: T::ONE,
                beta: T::ZERO,
                c: y.get(),
                ldc: 1,
                carry_out: [std::ptr::null_mut(); 2],
                prefetch_distance: 0,
                panel: [x.dim; 2],
                stream: false,
            };
            // SAFETY: formats keep `ptr` ascending within `leaf`, which is as long as the values, and coordinates below the mode's
            // length, which is v's; y has an element for each fiber, and each run has its own.
            unsafe { spmm_rows(self.arch(), task) };
        });
        Ok(())
    }

    /// y = X x_n v as a tensor of one mode less.
    ///
    /// # Errors
    /// [`Error::Shape`] when `v` has not I_n elements, or X is of order 1: the result would be a number.
    #[inline(never)]
    pub fn ttv<T: Scalar>(&self, x: &FiberCoo<T>, v: &[T]) -> Result<CooTensor<T>> {
        if x.coords().is_empty() {
            return Err(Error::shape("ttv", "a tensor of order 1 times a vector is a number, not a tensor"));
        }
        let mut y = vec![T::ZERO; x.num_fibers()];
        self.ttv_into(x, v, &mut y)?;
        let mut dims = x.dims().to_vec();
        dims.remove(x.mode());
        Ok(CooTensor::from_checked(dims, x.coords().to_vec(), y))
    }

    /// y = X x_n v of a tensor in gHiCOO, n being its only free mode, in HiCOO with the same blocks.
    ///
    /// # Errors
    /// As [`Cpu::ttv`], and [`Error::Structure`] when not exactly one mode is free.
    #[inline(never)]
    pub fn ttv_hicoo<T: Scalar>(&self, x: &HiCoo<T>, v: &[T]) -> Result<HiCoo<T>> {
        let fibers = x.fibers()?;
        if x.order() == 1 {
            return Err(Error::shape("ttv", "a tensor of order 1 times a vector is a number, not a tensor"));
        }
        let mut y = vec![T::ZERO; fibers.len()];
        self.ttv_into(fibers, v, &mut y)?;
        x.without_free_mode(y)
    }
}
