//! SDDMM with another operation than the dot product: rows of C and B element by element, or over a semiring.

use sparsimd_kernels::semiring::Semiring;
use sparsimd_kernels::{Arithmetic, Number, Pairs, Scalar, pair_rows_elementwise, pair_rows_reduce};

use super::operand::{SparseOperand, check_columns};
use super::run::Shared;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef, check_shape};
use crate::error::{Error, Result};
use crate::plan::{Op, streams, work};

impl Cpu {
    /// out_p = C_i op B_j, element by element, for each nonzero p = (i, j) of the pattern, in CSR order: C dense M x N, B dense
    /// K x N, out dense nnz x N.
    ///
    /// What it writes is what it costs: N numbers for each nonzero. Runs straight from CSR.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes do not fit, N is 0, or `a` was prepared for another operation than [`Op::Sddmm`].
    ///
    /// ```
    /// use sparsimd::ops::Arithmetic;
    /// use sparsimd::{Cpu, Mat, Pattern};
    /// let cpu = Cpu::new()?;
    /// let pattern = Pattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
    /// let c = Mat::from_fn(2, 2, |i, k| (10 * i + k) as f32)?;
    /// let b = Mat::from_fn(3, 2, |j, k| (j + k) as f32)?;
    /// let mut out = Mat::zeros(3, 2)?;
    /// cpu.sddmm_elementwise(Arithmetic::Sub, &pattern, c.as_ref(), b.as_ref(), out.as_mut())?;
    /// assert_eq!((out.row(0), out.row(2)), (&[0.0, 0.0][..], &[9.0, 9.0][..]));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn sddmm_elementwise<'a, T: Scalar>(
        &self,
        op: Arithmetic,
        a: impl Into<SparseOperand<'a, T>>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: MatMut<'_, T>,
    ) -> Result<()> {
        self.pairs_elementwise(op, a.into(), c, b, out)
    }

    /// [`Cpu::sddmm_elementwise`] of an operand.
    #[inline(never)]
    pub(crate) fn pairs_elementwise<T: Scalar>(
        &self,
        op: Arithmetic,
        a: SparseOperand<'_, T>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: MatMut<'_, T>,
    ) -> Result<()> {
        let (nnz, n) = (a.pattern().nnz(), c.cols());
        check_shape("sddmm", "out", (out.rows(), out.cols()), (nnz, n))?;
        let stream = streams(self.machine(), nnz.saturating_mul(n).saturating_mul(size_of::<T>()));
        let (ldo, out) = (out.stride(), Shared(out.into_data().as_mut_ptr()));
        self.for_pairs(a, c, b, |pairs| {
            let pairs = Pairs { out: out.get(), ldo, ..pairs };
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; a nonzero is one task's.
            unsafe { pair_rows_elementwise(self.arch(), op, pairs, stream) };
        })
    }

    /// out_p = add over k of multiply(c_ik, b_jk), in a semiring, for each nonzero p = (i, j) of the pattern, in CSR order: C
    /// dense M x N, B dense K x N; of f32, f64, i32 or i64.
    ///
    /// With [`MAX_MIN`](crate::semiring::MAX_MIN), for example, the widest way from i to j over any k. Runs straight from CSR.
    /// The ordinary dot product is [`Cpu::sddmm`], which is faster.
    ///
    /// # Errors
    /// [`Error::Shape`] when the shapes do not fit, N is 0, or `a` was prepared for another operation than [`Op::Sddmm`].
    pub fn sddmm_semiring<'a, T: Number, R: Semiring<T>>(
        &self,
        semiring: R,
        a: impl Into<SparseOperand<'a, T>>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        self.pairs_reduced(semiring, a.into(), c, b, out)
    }

    /// [`Cpu::sddmm_semiring`] of an operand.
    #[inline(never)]
    pub(crate) fn pairs_reduced<T: Number, R: Semiring<T>>(
        &self,
        semiring: R,
        a: SparseOperand<'_, T>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        let nnz = a.pattern().nnz();
        if out.len() != nnz {
            let detail = format!("out has {} elements for a pattern of {nnz} nonzeros", out.len());
            return Err(Error::shape("sddmm", detail));
        }
        let out = Shared(out.as_mut_ptr());
        self.for_pairs(a, c, b, |pairs| {
            let pairs = Pairs { out: out.get(), ldo: 1, ..pairs };
            // SAFETY: the pattern's invariants and the checked shapes make every index valid; a nonzero is one task's.
            unsafe { pair_rows_reduce(self.arch(), semiring, pairs) };
        })
    }

    /// Checks the shapes, and calls `run` with each task's nonzeros, which have no output yet.
    fn for_pairs<T: Number>(
        &self,
        a: SparseOperand<'_, T>,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        run: impl Fn(Pairs<T>) + Send + Sync,
    ) -> Result<()> {
        let (pattern, n) = (a.pattern(), c.cols());
        check_columns("sddmm", n)?;
        check_shape("sddmm", "C", c.shape(), (pattern.rows(), n))?;
        check_shape("sddmm", "B", b.shape(), (pattern.cols(), n))?;
        if let SparseOperand::Prepared(prepared) = a {
            prepared.panels_for(Op::Sddmm, self)?;
        }
        let direct = self.direct(Op::Sddmm, a, pattern, n)?;
        self.for_each(direct.tasks.len(), work(pattern.nnz(), n), |k| {
            run(Pairs {
                row_ptr: pattern.row_ptr().raw(),
                columns: pattern.col_idx().as_ptr(),
                rows: direct.tasks[k].rows,
                nonzeros: direct.tasks[k].nonzeros,
                c: c.data().as_ptr(),
                ldc: c.stride(),
                b: b.data().as_ptr(),
                ldb: b.stride(),
                n,
                out: std::ptr::null_mut(),
                ldo: 0,
            });
        });
        Ok(())
    }
}
