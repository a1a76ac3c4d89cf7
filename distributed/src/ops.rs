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
use sparsimd::{Cpu, Mat, MatRef};

use crate::comm::Comm;
use crate::dense::{DistMat, Element, pack, unpack};
use crate::error::{Error, Result};
use crate::matrix::{DistCsr, fiber, ring, ring_order};

impl<T: Element> DistCsr<T> {
    /// C = A B; B has the rows of A's columns, C those of A's rows.
    ///
    /// The same ranks, blocks and algorithm give the same bits.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when the shapes do not fit or B has no columns, on any rank; as [`Comm::exchange`].
    pub fn spmm(&self, cpu: &Cpu, comm: &dyn Comm, b: &DistMat<T>, c: &mut DistMat<T>) -> Result<()> {
        const OP: &str = "distributed spmm";
        let n = b.cols();
        let checked = self.check(OP, &[("B", b, false, n), ("C", c, true, n)]);
        let mut out = comm.agree(checked.and_then(|()| self.output(n)))?;
        let done = self.each_part(comm, &[b.local().as_ref()], |part, dense| {
            let beta = if part == 0 { T::ZERO } else { T::ONE };
            Ok(cpu.spmm(T::ONE, self.parts[part].operand(Op::Spmm), dense[0], beta, out.as_mut())?)
        });
        comm.agree(done)?;
        self.reduce(comm, &out, c.local_mut())
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
        const OP: &str = "distributed sddmm";
        let n = c.cols();
        let checked = self.check(OP, &[("C", c, true, n), ("B", b, false, n)]).and_then(|()| {
            let nnz = self.nnz;
            let detail = || format!("{} values for {nnz} nonzeros", values.len());
            if values.len() == nnz { Ok(()) } else { Err(Error::shape(OP, detail())) }
        });
        comm.agree(checked)?;
        let gathered = self.gather(comm, c.local())?;
        let c = gathered.as_ref().unwrap_or(c.local()).as_ref();
        let mut came = vec![T::ZERO; self.came.iter().sum()];
        let done = self.each_part(comm, &[b.local().as_ref()], |part, dense| {
            let part = &self.parts[part];
            let mut dots = vec![T::ZERO; part.a.nnz()];
            let operand = part.operand(Op::Sddmm);
            match scaled {
                true => cpu.sddmm_scaled(operand, c, dense[0], &mut dots)?,
                false => cpu.sddmm(operand, c, dense[0], &mut dots)?,
            }
            part.origin.iter().zip(dots).for_each(|(&p, dot)| came[p] = dot);
            Ok(())
        });
        comm.agree(done)?;
        self.give_back(comm, &came, values)
    }

    /// E_i = sum over the nonzeros (i, j) of A of f(C_i . B_j, a_ij) D_j; C and E have the rows of A's rows, B and D those of its
    /// columns. Where D is B, the rows travel once.
    ///
    /// A softmax over the row has its weights when all of B has passed: they are stored, one for each nonzero here, and D travels
    /// after B.
    ///
    /// # Errors
    /// As [`DistCsr::spmm`].
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
        const OP: &str = "distributed fusedmm";
        let (n, width) = (c.cols(), d.cols());
        let operands = [("C", c, true, n), ("B", b, false, n), ("D", d, false, width), ("E", &*e, true, width)];
        if let (true, Some(built_in)) = (F::SOFTMAX, F::BUILT_IN) {
            comm.agree(self.check(OP, &operands))?;
            return self.softmax(cpu, comm, built_in(edge), c, b, d, e);
        }
        let room = || Ok((self.output(width)?, self.output(width)?));
        let (mut out, mut term) = comm.agree(self.check(OP, &operands).and_then(|()| room()))?;
        let gathered = self.gather(comm, c.local())?;
        let c = gathered.as_ref().unwrap_or(c.local()).as_ref();
        let both = [b.local().as_ref(), d.local().as_ref()];
        let travelling = if std::ptr::eq(b, d) { &both[..1] } else { &both[..] };
        let done = self.each_part(comm, travelling, |part, dense| {
            let into = if part == 0 { &mut out } else { &mut term };
            let (b, d) = (dense[0], dense[dense.len() - 1]);
            cpu.fusedmm(self.parts[part].operand(Op::FusedMm), edge, c, b, d, into.as_mut())?;
            if part > 0 {
                add(&mut out, &term);
            }
            Ok(())
        });
        comm.agree(done)?;
        self.reduce(comm, &out, e.local_mut())
    }

    /// Checks operands: name, matrix, whether its rows are those of A's rows (else of A's columns), columns.
    fn check(&self, op: &'static str, operands: &[(&str, &DistMat<T>, bool, usize)]) -> Result<()> {
        for &(name, matrix, of_rows, cols) in operands {
            let blocks = if of_rows { &self.rows } else { &self.cols };
            let wanted = (blocks.len(), blocks.range(self.rank).len(), cols);
            let got = (matrix.rows(), matrix.local().rows(), matrix.cols());
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

    /// Zeros for the rows of A here.
    pub(crate) fn output(&self, cols: usize) -> Result<Mat<T>> {
        Ok(Mat::zeros(self.here.len(), cols)?)
    }

    /// Calls `compute` for each part with the rows of `dense` that it names. Whatever it returns, all messages are exchanged.
    pub(crate) fn each_part(
        &self,
        comm: &dyn Comm,
        dense: &[MatRef<'_, T>],
        mut compute: impl FnMut(usize, &[MatRef<'_, T>]) -> Result<()>,
    ) -> Result<()> {
        let zeros = |rows: usize| -> Result<Vec<Mat<T>>> {
            dense.iter().map(|a| Ok(Mat::zeros(rows, a.cols())?)).collect::<Result<Vec<_>>>()
        };
        if let Some(halo) = &self.halo {
            let mut ghosts = comm.agree(zeros(halo.ghosts()))?;
            let done = halo.fetch(comm, dense, &mut ghosts, || Ok(compute(0, dense)))?;
            let views: Vec<_> = ghosts.iter().map(Mat::as_ref).collect();
            return done.and_then(|()| compute(1, &views));
        }
        let ring = ring(comm, self.algorithm.replication());
        let (ring, width): (&dyn Comm, usize) = (&ring, dense.iter().map(|a| a.cols()).sum());
        let (before, after) = ((ring.rank() + ring.size() - 1) % ring.size(), (ring.rank() + 1) % ring.size());
        let order = ring_order(comm.size(), self.algorithm.replication(), self.rank);
        let blocks = order.iter().map(|&block| zeros(self.cols.range(block).len())).collect::<Result<Vec<_>>>();
        let mut blocks = comm.agree(blocks)?;
        let mut done = Ok(());
        let mut passing = pack(dense, 0..dense[0].rows());
        for step in 0..order.len() {
            let views: Vec<_> = match step {
                0 => dense.to_vec(),
                _ => blocks[step].iter().map(Mat::as_ref).collect(),
            };
            let failed = done.is_err();
            let mut work = || if failed { Ok(()) } else { compute(step, &views) };
            if step + 1 == order.len() {
                return done.and(work());
            }
            let mut next = vec![T::ZERO; self.cols.range(order[step + 1]).len() * width];
            let computed = ring.exchange_during(&[(before, &passing)], vec![(after, &mut next)], || Ok(work()))?;
            done = done.and(computed);
            unpack(&next, &mut blocks[step + 1]);
            blocks[step].clear();
            passing = next;
        }
        done
    }

    /// The rows of C for the rows of A here; none where they are this rank's own.
    pub(crate) fn gather(&self, comm: &dyn Comm, own: &Mat<T>) -> Result<Option<Mat<T>>> {
        let replication = self.algorithm.replication();
        if replication == 1 {
            return Ok(None);
        }
        let fiber = fiber(comm, replication);
        let first = self.rank / replication * replication;
        let lens: Vec<_> = (0..replication).map(|l| self.rows.range(first + l).len() * own.cols()).collect();
        let mut all = [comm.agree(Mat::zeros(self.here.len(), own.cols()).map_err(Error::from))?];
        let packed = (&fiber as &dyn Comm).all_gather(&pack(&[own.as_ref()], 0..own.rows()), &lens)?;
        unpack(&packed, &mut all);
        Ok(all.into_iter().next())
    }

    /// `own` becomes the sum of the fiber's `out` in this rank's rows.
    pub(crate) fn reduce(&self, comm: &dyn Comm, out: &Mat<T>, own: &mut Mat<T>) -> Result<()> {
        let replication = self.algorithm.replication();
        let fiber = fiber(comm, replication);
        let (fiber, first): (&dyn Comm, usize) = (&fiber, self.rank - fiber.rank());
        let rows = |l: usize| {
            let range = self.rows.range(first + l);
            range.start - self.here.start..range.end - self.here.start
        };
        let others = || (0..replication).filter(|&l| l != fiber.rank());
        let packed: Vec<_> = others().map(|l| (l, pack(&[out.as_ref()], rows(l)))).collect();
        let sends: Vec<_> = packed.iter().map(|(l, data)| (*l, &data[..])).collect();
        let mut received = vec![vec![T::ZERO; own.rows() * own.cols()]; replication];
        received[fiber.rank()] = pack(&[out.as_ref()], rows(fiber.rank()));
        let room = received.iter_mut().enumerate().filter(|(l, _)| *l != fiber.rank());
        fiber.exchange_during(&sends, room.map(|(l, data)| (l, &mut data[..])).collect(), || Ok(()))?;
        let cols = own.cols();
        for (i, row) in own.iter_rows_mut().enumerate() {
            row.copy_from_slice(&received[0][i * cols..][..cols]);
            for term in &received[1..] {
                row.iter_mut().zip(&term[i * cols..]).for_each(|(x, &y)| *x += y);
            }
        }
        Ok(())
    }

    /// Hands the values of nonzeros that came from other ranks back to them, into the order in which this rank gave its own.
    fn give_back(&self, comm: &dyn Comm, came: &[T], values: &mut [T]) -> Result<()> {
        let fiber = fiber(comm, self.algorithm.replication());
        let fiber: &dyn Comm = &fiber;
        let (mut rest, mut sends) = (came, Vec::new());
        for (l, &count) in self.came.iter().enumerate() {
            let (part, others) = rest.split_at(count);
            sends.push((l, part));
            rest = others;
        }
        let mut received: Vec<Vec<T>> = self.gone.iter().map(|places| vec![T::ZERO; places.len()]).collect();
        let (_, mine) = sends.remove(fiber.rank());
        received[fiber.rank()].copy_from_slice(mine);
        let room = received.iter_mut().enumerate().filter(|(l, _)| *l != fiber.rank());
        fiber.exchange_during(&sends, room.map(|(l, data)| (l, &mut data[..])).collect(), || Ok(()))?;
        for (places, data) in self.gone.iter().zip(&received) {
            places.iter().zip(data).for_each(|(&p, &x)| values[p] = x);
        }
        Ok(())
    }
}

/// `to += from`.
fn add<T: Element>(to: &mut Mat<T>, from: &Mat<T>) {
    for (to, from) in to.iter_rows_mut().zip(from.iter_rows()) {
        to.iter_mut().zip(from).for_each(|(x, &y)| *x += y);
    }
}
