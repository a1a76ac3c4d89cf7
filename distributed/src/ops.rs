//! SpMM, SDDMM and FusedMM on the parts of a [`DistCsr`], rows of B travelling while others are worked on.
//!
//! ```text
//! C here = gather C over the fiber                        dense shift with replication
//! for every part t:
//!     start receiving the rows of B that part t + 1 names     aware: the ghosts; dense shift: the next rank's block
//!     out = out + operation(part t, C here, B)
//!     wait
//! own rows of out = sum of the fiber's out                 in the order of ranks
//! ```

use sparsimd::edge::Edge;
use sparsimd::plan::Op;
use sparsimd::{Cpu, CsrRef, Mat, MatRef};

use crate::comm::Comm;
use crate::dense::{DistMat, Element, Rows, RowsMut, add};
use crate::error::{Error, Result};
use crate::matrix::{DistCsr, Part};

impl<T: Element> DistCsr<T> {
    /// C = A B; B has the rows of A's columns, C those of A's rows.
    ///
    /// The same ranks, blocks and algorithm give the same bits.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when the shapes do not fit or B has no columns, on any rank; as [`Comm::exchange`].
    pub fn spmm(&self, cpu: &Cpu, comm: &dyn Comm, b: &DistMat<T>, c: &mut DistMat<T>) -> Result<()> {
        self.spmm_of(cpu, comm, b.view(), c.view_mut())
    }

    /// [`DistCsr::spmm`] of rows that are anywhere; likewise the others.
    #[inline(never)]
    pub(crate) fn spmm_of(&self, cpu: &Cpu, comm: &dyn Comm, b: Rows<'_, T>, mut c: RowsMut<'_, T>) -> Result<()> {
        let n = b.cols();
        let checked = self.check("distributed spmm", &[("B", b, false, n), ("C", c.as_ref(), true, n)]);
        let apart = self.in_place(cpu, comm, (&[b], n), checked, |a, dense| {
            Ok(cpu.spmm(T::ONE, a.operand(Op::Spmm), dense[0], T::ZERO, c.local.reborrow())?)
        })?;
        let Some(checked) = apart else { return Ok(()) };
        let shared = comm.agree(checked.and_then(|()| self.output(n)))?;
        self.product(cpu, comm, None, b, shared, c)
    }

    /// C = A B with the values of A, or with `numbers`, each part's; `shared` is [room](DistCsr::output) for the rows of A here.
    pub(crate) fn product(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        numbers: Option<&[Vec<T>]>,
        b: Rows<'_, T>,
        mut shared: Option<Mat<T>>,
        mut c: RowsMut<'_, T>,
    ) -> Result<()> {
        let mut out = shared.as_mut().map_or_else(|| c.local.reborrow(), Mat::as_mut);
        let done = self.each_part(comm, &[b.local], |part, dense| {
            let beta = if part == 0 { T::ZERO } else { T::ONE };
            let a = match numbers {
                Some(numbers) => CsrRef::on(self.parts[part].a.pattern(), &numbers[part])?.into(),
                None => self.parts[part].operand(Op::Spmm),
            };
            Ok(cpu.spmm(T::ONE, a, dense[0], beta, out.reborrow())?)
        });
        comm.agree(done)?;
        self.reduce(comm, shared, c.local)
    }

    /// B = A^T C; C has the rows of A's rows, B those of its columns: parts of B's rows travel to who has them.
    ///
    /// Each part is laid out by columns when this is called first. The same ranks, blocks and algorithm give the same bits.
    ///
    /// # Errors
    /// As [`DistCsr::spmm`].
    pub fn spmm_transposed(&self, cpu: &Cpu, comm: &dyn Comm, c: &DistMat<T>, b: &mut DistMat<T>) -> Result<()> {
        self.spmm_transposed_of(cpu, comm, c.view(), b.view_mut())
    }

    pub(crate) fn spmm_transposed_of(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        c: Rows<'_, T>,
        b: RowsMut<'_, T>,
    ) -> Result<()> {
        let n = c.cols();
        comm.agree(self.check("distributed spmm_transposed", &[("C", c, true, n), ("B", b.as_ref(), false, n)]))?;
        let gathered = self.gather(comm, c.local)?;
        let c = gathered.as_ref().map_or(c.local, Mat::as_ref);
        let done = self.each_part_reversed(comm, &mut [b.local], |part, terms| {
            let (pattern, values) = self.parts[part].by_columns(cpu, self.parts[part].a.values());
            Ok(cpu.spmm(T::ONE, CsrRef::on(pattern, &values)?, c, T::ZERO, terms[0].reborrow())?)
        });
        comm.agree(done)
    }

    /// `values[p]` = C_i . B_j for the nonzero (i, j) that this rank gave as its p-th, times a_ij when `scaled`; C has the rows of A's
    /// rows, B those of A's columns.
    ///
    /// # Errors
    /// As [`DistCsr::spmm`], and when there are not as many values as nonzeros.
    pub fn sddmm(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        scaled: bool,
        c: &DistMat<T>,
        b: &DistMat<T>,
        values: &mut [T],
    ) -> Result<()> {
        self.sddmm_of(cpu, comm, scaled, c.view(), b.view(), values)
    }

    #[inline(never)]
    pub(crate) fn sddmm_of(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        scaled: bool,
        c: Rows<'_, T>,
        b: Rows<'_, T>,
        values: &mut [T],
    ) -> Result<()> {
        const OP: &str = "distributed sddmm";
        let n = c.cols();
        let checked = self.check(OP, &[("C", c, true, n), ("B", b, false, n)]);
        let checked = checked.and_then(|()| self.check_numbers(OP, "values", values.len()));
        let dots = |part: &Part<T>, c: MatRef<'_, T>, b: MatRef<'_, T>, dots: &mut [T]| match scaled {
            true => cpu.sddmm_scaled(part.operand(Op::Sddmm), c, b, dots),
            false => cpu.sddmm(part.operand(Op::Sddmm), c, b, dots),
        };
        let apart = self.in_place(cpu, comm, (&[b], n), checked, |a, dense| Ok(dots(a, c.local, dense[0], values)?))?;
        let Some(checked) = apart else { return Ok(()) };
        comm.agree(checked)?;
        let gathered = self.gather(comm, c.local)?;
        let c = gathered.as_ref().map_or(c.local, Mat::as_ref);
        let mut came = vec![T::ZERO; self.came.iter().sum()];
        let done = self.each_part(comm, &[b.local], |part, dense| {
            let part = &self.parts[part];
            let mut of_part = vec![T::ZERO; part.a.nnz()];
            dots(part, c, dense[0], &mut of_part)?;
            part.origin.iter().zip(of_part).for_each(|(&p, dot)| came[p] = dot);
            Ok(())
        });
        comm.agree(done)?;
        self.give_back(comm, &came, values)
    }

    /// E_i = sum over the nonzeros (i, j) of A of f(C_i . B_j, a_ij) D_j; C and E have the rows of A's rows, B and D those of its
    /// columns. Where D is B, on all ranks or on none, the rows travel once.
    ///
    /// A softmax over the row has its weights when all of B has passed: they are stored, one for each nonzero here, and D travels
    /// after B.
    ///
    /// # Errors
    /// As [`DistCsr::spmm`]; [`Error::Argument`](sparsimd::Error::Argument) where the edge function is a softmax of the caller's own
    /// and rows are in parts: on several ranks, unless B and D are in memory that all have in common.
    #[expect(clippy::too_many_arguments, reason = "the operation's own, and where it runs")]
    pub fn fusedmm<F: Edge<T>>(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        edge: F,
        c: &DistMat<T>,
        b: &DistMat<T>,
        d: &DistMat<T>,
        e: &mut DistMat<T>,
    ) -> Result<()> {
        let other = (!std::ptr::eq(b, d)).then(|| d.view());
        self.fusedmm_of(cpu, comm, edge, [c.view(), b.view()], other, e.view_mut())
    }

    /// On all ranks, `other` is D, or none where it is B.
    #[inline(never)]
    pub(crate) fn fusedmm_of<F: Edge<T>>(
        &self,
        cpu: &Cpu,
        comm: &dyn Comm,
        edge: F,
        [c, b]: [Rows<'_, T>; 2],
        other: Option<Rows<'_, T>>,
        mut e: RowsMut<'_, T>,
    ) -> Result<()> {
        let d = other.unwrap_or(b);
        let (n, width) = (c.cols(), d.cols());
        let operands = [("C", c, true, n), ("B", b, false, n), ("D", d, false, width), ("E", e.as_ref(), true, width)];
        let checked = self.check("distributed fusedmm", &operands);
        let both = if other.is_none() { &[b][..] } else { &[b, d][..] };
        // A softmax's D travels also where it is B.
        let travel = if edge.is_softmax() { n + width } else { both.iter().map(Rows::cols).sum() };
        let apart = self.in_place(cpu, comm, (both, travel), checked, |a, dense| {
            let (b, d) = (dense[0], dense[dense.len() - 1]);
            Ok(cpu.fusedmm(a.operand(Op::FusedMm), edge, c.local, b, d, e.local.reborrow())?)
        })?;
        let Some(checked) = apart else { return Ok(()) };
        if let (true, Some(built_in)) = (edge.is_softmax(), F::BUILT_IN) {
            comm.agree(checked)?;
            return self.softmax(cpu, comm, built_in(edge), [c, b, d], e);
        }
        if edge.is_softmax() && comm.size() > 1 {
            let detail = "a softmax of the caller's own, whose rows are in parts here";
            return comm.agree(checked.and(Err(Error::argument("edge", detail))));
        }
        let room = || Ok((self.output(width)?, self.zeros(width)?));
        let (mut shared, mut term) = comm.agree(checked.and_then(|()| room()))?;
        let mut out = shared.as_mut().map_or_else(|| e.local.reborrow(), Mat::as_mut);
        let gathered = self.gather(comm, c.local)?;
        let c = gathered.as_ref().map_or(c.local, Mat::as_ref);
        let both = [b.local, d.local];
        let travelling = if other.is_none() { &both[..1] } else { &both[..] };
        let done = self.each_part(comm, travelling, |part, dense| {
            let into = if part == 0 { out.reborrow() } else { term.as_mut() };
            let (b, d) = (dense[0], dense[dense.len() - 1]);
            cpu.fusedmm(self.parts[part].operand(Op::FusedMm), edge, c, b, d, into)?;
            if part > 0 {
                term.iter_rows().enumerate().for_each(|(i, from)| add(out.reborrow().into_row(i), from));
            }
            Ok(())
        });
        comm.agree(done)?;
        self.reduce(comm, shared, e.local)
    }

    /// Checks operands: name, matrix, whether its rows are those of A's rows (else of A's columns), columns.
    pub(crate) fn check(&self, op: &'static str, operands: &[(&str, Rows<'_, T>, bool, usize)]) -> Result<()> {
        for &(name, matrix, of_rows, cols) in operands {
            let blocks = if of_rows { &self.rows } else { &self.cols };
            let wanted = (blocks.len(), blocks.range(self.rank).len(), cols);
            let got = (matrix.all, matrix.local.rows(), matrix.cols());
            if got != wanted {
                let words = |(all, here, n): (usize, usize, usize)| format!("{all} x {n} with {here} rows here");
                return Err(Error::shape(op, format!("{name} is {}, expected {}", words(got), words(wanted))));
            }
            if cols == 0 {
                return Err(Error::shape(op, format!("{name} has 0 columns; at least 1")));
            }
        }
        Ok(())
    }

    /// Whether there are as many `name` as nonzeros that this rank gave.
    pub(crate) fn check_numbers(&self, op: &'static str, name: &str, numbers: usize) -> Result<()> {
        let detail = || format!("{numbers} {name} for {} nonzeros", self.nnz);
        if numbers == self.nnz { Ok(()) } else { Err(Error::shape(op, detail())) }
    }
}
