//! SpMM, SDDMM and FusedMM with rows on the NUMA nodes that own them.
//!
//! ```text
//! for each node, all at once:            its pool, its chunks of rows, its copy of B
//!     while it has a chunk left, then while another node has one:
//!         C(rows of the chunk) = A(rows of the chunk) B
//! ```
//!
//! Each chunk is prepared by its owner's threads, so that panels, too, are in the owner's memory. A chunk is computed by
//! the ordinary operation, with one node's threads.

use std::sync::Mutex;

use sparsimd_kernels::{Scalar, Stored};

use super::Prepared;
use crate::cpu::{Chunk, Cpu, NodeCpus, NumaCsr, NumaMat, SharedMat};
use crate::dense::{MatMut, MatRef};
use crate::edge::Edge;
use crate::error::{Error, Result};
use crate::formats::{Csr, Pattern};
use crate::machine::{MemoryPolicy, PageBuffer, move_pages_at};
use crate::plan::{NumaPolicy, Op, PlanOptions, RowPlacement, SharedOperand};

/// A sparse matrix on its nodes, prepared for one operation.
#[derive(Debug)]
pub struct NumaPrepared<T> {
    csr: NumaCsr<T>,
    /// By node and chunk.
    prepared: Vec<Vec<Prepared<T>>>,
}

impl Cpu {
    /// Where rows of a matrix of pattern `a` and an operand of `n` columns of `T` that all rows use belong under `policy`,
    /// on the nodes that this executor has threads on, when the operation is run `reuse` times. Decides and touches nothing.
    ///
    /// # Errors
    /// As [`NodeCpus::shares_of`] and [`RowPlacement::choose`].
    #[inline(never)]
    pub fn placement<T: Scalar>(
        &self,
        a: &Pattern,
        n: usize,
        reuse: usize,
        policy: NumaPolicy,
    ) -> Result<RowPlacement> {
        let shared = SharedOperand::of::<T>(a, n, reuse);
        let (shares, outer) = (NodeCpus::shares_of(self)?, MemoryPolicy::current());
        RowPlacement::choose(self.machine(), &shares, &outer, policy, a.row_ptr(), shared)
    }

    /// Puts the rows of `a` on nodes as `placement` says ([`Cpu::placement`]) and prepares them, as [`Cpu::prepare`] does, for the
    /// operation of `options` (not for [`Op::SpmmTransposed`], whose output rows are not A's).
    ///
    /// Bit-reproducible for the same threads and machine, whichever node computes a chunk as long as nodes are alike.
    ///
    /// # Errors
    /// [`Error::Argument`] for an operation that has no rows of A in its output, or when `n` is 0; as [`NodeCpus::new`] and
    /// [`NumaCsr::new`].
    #[inline(never)]
    pub fn place<T: Scalar>(
        &self,
        a: &Csr<T>,
        options: &PlanOptions,
        placement: RowPlacement,
    ) -> Result<NumaPrepared<T>> {
        if options.op() == Op::SpmmTransposed {
            return Err(Error::argument("op", "the output's rows are not A's: place the transpose"));
        }
        let csr = NumaCsr::new(NodeCpus::new(self)?, a, placement)?;
        let slots: Vec<_> = csr.chunks().iter().map(|_| Mutex::new(None)).collect();
        let cpus: Vec<_> = csr.pools().iter().map(|(_, cpu)| cpu).collect();
        let ids: Vec<_> = csr.pools().iter().map(|(node, _)| self.machine().nodes()[node].id).collect();
        csr.pools().run_owned(&vec![1; slots.len()], |owner, _| {
            let prepare = |chunk: &Chunk<T>| {
                let prepared = cpus[owner].prepare(chunk.matrix(), options)?;
                for addresses in prepared.memory() {
                    // Fresh pages are already here; the allocator may have handed out older ones. Where the system cannot
                    // move pages they stay where they are, which is slower and nothing else.
                    let _ = move_pages_at(addresses, |_| ids[owner]);
                }
                Ok(prepared)
            };
            let all: Result<Vec<_>> = csr.chunks()[owner].iter().map(prepare).collect();
            if let Ok(mut slot) = slots[owner].lock() {
                *slot = Some(all);
            }
        });
        let prepared = slots.into_iter().map(|slot| slot.into_inner().ok().flatten().unwrap_or_else(|| Ok(Vec::new())));
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        Ok(NumaPrepared { csr, prepared })
    }
}

impl<T: Scalar> NumaPrepared<T> {
    /// Which rows are where and why.
    #[inline(never)]
    pub fn placement(&self) -> &RowPlacement {
        self.csr.placement()
    }

    /// The chunks and their pools.
    pub fn matrix(&self) -> &NumaCsr<T> {
        &self.csr
    }

    /// The prepared chunks of the pool at `place`, in the order of [`NumaCsr::chunks`].
    ///
    /// # Panics
    /// When there is no such pool, as slice indexing does.
    pub fn prepared_on(&self, place: usize) -> &[Prepared<T>] {
        &self.prepared[place]
    }

    /// How the first chunk is computed; `None` for a matrix without rows.
    pub fn prepared(&self) -> Option<&Prepared<T>> {
        self.prepared.iter().flatten().next()
    }

    /// A matrix of zeros with A's rows, each on its owner's node.
    ///
    /// # Errors
    /// As [`NumaCsr::output`].
    pub fn output<D: Stored>(&self, cols: usize) -> Result<NumaMat<D>> {
        self.csr.output(cols)
    }

    /// A copy of `c`, a dense operand with A's rows, each on its owner's node.
    ///
    /// # Errors
    /// As [`NumaCsr::owned`].
    pub fn owned<D: Stored>(&self, c: MatRef<'_, D>) -> Result<NumaMat<D>> {
        self.csr.owned(c)
    }

    /// Zeros for the values of SDDMM, each on the node of its row.
    ///
    /// # Errors
    /// As [`NumaCsr::values`].
    pub fn values(&self) -> Result<PageBuffer<T>> {
        self.csr.values()
    }

    /// An operand that all rows use, where the placement wants it.
    ///
    /// # Errors
    /// As [`NumaCsr::share`].
    pub fn share<'b, D: Stored>(&self, b: MatRef<'b, D>) -> Result<SharedMat<'b, D>> {
        self.csr.share(b)
    }

    /// C = alpha A B + beta C, as [`Cpu::spmm`].
    ///
    /// # Errors
    /// As [`Cpu::spmm`].
    pub fn spmm<D: Stored<Scalar = T>>(&self, alpha: T, b: &SharedMat<'_, D>, beta: T, c: MatMut<'_, D>) -> Result<()> {
        self.csr.run(c, |cpu, place, (owner, chunk), rows| {
            cpu.spmm(alpha, &self.prepared[owner][chunk], b.on(place)?, beta, rows)
        })
    }

    /// out_p = (C B^T)_ij for each nonzero p = (i, j) of A, times a_ij when `scaled`, as [`Cpu::sddmm`].
    ///
    /// # Errors
    /// As [`Cpu::sddmm`].
    pub fn sddmm<D: Stored<Scalar = T>>(
        &self,
        scaled: bool,
        c: MatRef<'_, D>,
        b: &SharedMat<'_, D>,
        out: &mut [T],
    ) -> Result<()> {
        self.check_rows("sddmm", c)?;
        self.csr.run_values(out, |cpu, place, (owner, chunk), values| {
            let c = c.row_range(self.csr.chunks()[owner][chunk].rows())?;
            let prepared = &self.prepared[owner][chunk];
            match scaled {
                true => cpu.sddmm_scaled(prepared, c, b.on(place)?, values),
                false => cpu.sddmm(prepared, c, b.on(place)?, values),
            }
        })
    }

    /// E = f(C B^T on the pattern) D, as [`Cpu::fusedmm`].
    ///
    /// # Errors
    /// As [`Cpu::fusedmm`].
    pub fn fusedmm<D: Stored<Scalar = T>, F: Edge<T>>(
        &self,
        edge: F,
        c: MatRef<'_, D>,
        b: &SharedMat<'_, D>,
        d: &SharedMat<'_, D>,
        e: MatMut<'_, D>,
    ) -> Result<()> {
        self.check_rows("fusedmm", c)?;
        self.csr.run(e, |cpu, place, (owner, chunk), rows| {
            let c = c.row_range(self.csr.chunks()[owner][chunk].rows())?;
            cpu.fusedmm(&self.prepared[owner][chunk], edge, c, b.on(place)?, d.on(place)?, rows)
        })
    }

    fn check_rows<D>(&self, op: &'static str, c: MatRef<'_, D>) -> Result<()> {
        if c.rows() == self.csr.rows() {
            return Ok(());
        }
        Err(Error::shape(op, format!("C has {} rows, expected {}", c.rows(), self.csr.rows())))
    }
}
