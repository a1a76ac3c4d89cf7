//! Operands on the NUMA nodes that own them: [`NumaCsr`], [`NumaMat`], [`SharedMat`].

use std::ops::Range;
use std::sync::Mutex;

use sparsimd_kernels::{Scalar, Stored};

use super::{Cpu, NodeCpus};
use crate::dense::{MatMut, MatRef, padded_stride};
use crate::error::{Error, Result};
use crate::formats::Csr;
use crate::machine::{PageBuffer, move_pages};
use crate::plan::{BPlacement, RowPlacement};

/// A node's rows are cut in at most this many chunks, the unit that a node which has run dry takes from another.
const MAX_CHUNKS: usize = 8;
/// Nonzeros of the smallest chunk worth its own run of a kernel: a few tenths of a millisecond.
const MIN_CHUNK_NNZ: usize = 1 << 16;

/// Consecutive rows of a sparse matrix as a matrix of its own, in memory of the node that owns them.
#[derive(Debug)]
pub struct Chunk<T> {
    rows: Range<usize>,
    matrix: Csr<T>,
}

impl<T> Chunk<T> {
    /// The rows of the whole matrix that these are.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The rows.
    pub fn matrix(&self) -> &Csr<T> {
        &self.matrix
    }
}

/// A sparse matrix whose rows are copied to the nodes that own them.
#[derive(Debug)]
pub struct NumaCsr<T> {
    pools: NodeCpus,
    placement: RowPlacement,
    /// By part of the placement.
    chunks: Vec<Vec<Chunk<T>>>,
    rows: usize,
}

impl<T: Scalar> NumaCsr<T> {
    /// Copies the rows of `a` to their nodes as `placement` says, each written by its owner's threads.
    ///
    /// # Errors
    /// [`Error::Argument`] when `placement` is for another number of rows than `a` has, or names a node without threads.
    pub fn new(pools: NodeCpus, a: &Csr<T>, placement: RowPlacement) -> Result<Self> {
        let threadless = |node: usize| !pools.iter().any(|(n, _)| n == node);
        if let Some((node, rows)) = placement.parts().iter().find(|(node, _)| threadless(*node)) {
            return Err(Error::argument("placement", format!("rows {rows:?} on node {node}, which has no threads")));
        }
        if placement.rows() != a.rows() {
            return Err(Error::argument(
                "placement",
                format!("{} rows for a matrix of {}", placement.rows(), a.rows()),
            ));
        }
        // One part per pool, in the order of pools: a part with no rows for a pool that owns none.
        let parts: Vec<_> = pools
            .iter()
            .map(|(node, _)| placement.parts().iter().find(|(n, _)| *n == node).map_or(0..0, |(_, rows)| rows.clone()))
            .collect();
        let row_ptr = a.pattern().row_ptr();
        let ranges: Vec<Vec<Range<usize>>> = parts
            .iter()
            .map(|rows| {
                let own: Vec<_> = row_ptr[rows.start..=rows.end].iter().map(|p| p - row_ptr[rows.start]).collect();
                let count = (own[own.len() - 1] / MIN_CHUNK_NNZ).clamp(1, MAX_CHUNKS);
                let cut = crate::plan::split_rows(&own, &vec![1; count]);
                cut.into_iter().map(|r| r.start + rows.start..r.end + rows.start).collect()
            })
            .collect();
        let built: Vec<Mutex<Vec<Chunk<T>>>> = ranges.iter().map(|_| Mutex::default()).collect();
        // Each owner does all of its own: nothing may be built on another node.
        let node_ids: Vec<_> = pools.iter().map(|(node, cpu)| cpu.machine().nodes()[node].id).collect();
        let own = vec![1; ranges.len()];
        pools.run_owned(&own, |place, _| {
            let chunks = ranges[place].iter().map(|rows| chunk(a, rows.clone(), node_ids[place])).collect();
            if let Ok(mut slot) = built[place].lock() {
                *slot = chunks;
            }
        });
        let chunks = built.into_iter().map(|slot| slot.into_inner().unwrap_or_default()).collect();
        Ok(Self { pools, placement, chunks, rows: a.rows() })
    }

    /// The pool of each node.
    pub fn pools(&self) -> &NodeCpus {
        &self.pools
    }

    /// Which rows are where and why.
    pub fn placement(&self) -> &RowPlacement {
        &self.placement
    }

    /// The chunks of each pool's node, in the order of [`NodeCpus::iter`].
    pub fn chunks(&self) -> &[Vec<Chunk<T>>] {
        &self.chunks
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.chunks.iter().flatten().map(|chunk| chunk.matrix.nnz()).sum()
    }

    /// A matrix of zeros with this one's rows, each first written by its owner.
    ///
    /// # Errors
    /// As [`PageBuffer::zeros`].
    pub fn output<D: Stored>(&self, cols: usize) -> Result<NumaMat<D>> {
        let mut out = NumaMat::<D>::untouched(self.rows, cols)?;
        let stride = out.stride;
        let rows = |part: &Vec<Chunk<T>>| Some(part.first()?.rows.start * stride..part.last()?.rows.end * stride);
        out.buffer.advise_huge_pages(&self.chunks.iter().filter_map(rows).collect::<Vec<_>>());
        let slots = self.row_slots(out.as_mut());
        self.write_first(&slots, |rows: MatMut<'_, D>| rows.into_data().fill(D::default()));
        drop(slots);
        Ok(out)
    }

    /// Has each owner write what its slots hold.
    fn write_first<X: Send>(&self, slots: &[Vec<Mutex<Option<X>>>], write: impl Fn(X) + Sync) {
        let counts: Vec<_> = self.chunks.iter().map(Vec::len).collect();
        self.pools.run_owned(&counts, |owner, chunk| {
            if let Some(part) = take(&slots[owner][chunk]) {
                write(part);
            }
        });
    }

    /// A copy of `c`, a dense operand with this matrix's rows, each row on its owner's node.
    ///
    /// # Errors
    /// [`Error::Shape`] when `c` has another number of rows; as [`PageBuffer::zeros`].
    pub fn owned<D: Stored>(&self, c: MatRef<'_, D>) -> Result<NumaMat<D>> {
        if c.rows() != self.rows {
            return Err(Error::shape("placed operand", format!("{} rows for {}", c.rows(), self.rows)));
        }
        let mut out = self.output(c.cols())?;
        out.fill_from(c);
        Ok(out)
    }

    /// Zeros for a value per nonzero, in the order of rows, each first written by its row's owner.
    ///
    /// # Errors
    /// As [`PageBuffer::zeros`].
    pub fn values(&self) -> Result<PageBuffer<T>> {
        let mut out = PageBuffer::zeros(self.nnz())?;
        let mut next = 0;
        let parts = self.chunks.iter().map(|part| {
            let start = next;
            next += part.iter().map(|chunk| chunk.matrix.nnz()).sum::<usize>();
            start..next
        });
        out.advise_huge_pages(&parts.collect::<Vec<_>>());
        let slots = self.value_slots(&mut out);
        self.write_first(&slots, |values: &mut [T]| values.fill(T::ZERO));
        drop(slots);
        Ok(out)
    }

    /// `b`, which all rows use, where the placement wants it.
    ///
    /// # Errors
    /// As [`PageBuffer::zeros`]; [`Error::Unavailable`] when the operating system refuses to interleave.
    pub fn share<'b, D: Stored>(&self, b: MatRef<'b, D>) -> Result<SharedMat<'b, D>> {
        Ok(match self.placement.shared() {
            BPlacement::Alone => SharedMat::Alone(b),
            BPlacement::Interleave => {
                let mut copy = NumaMat::untouched(b.rows(), b.cols())?;
                let ids: Vec<_> = self.pools.iter().map(|(node, cpu)| cpu.machine().nodes()[node].id).collect();
                copy.buffer.interleave(&ids)?;
                copy.fill_from(b);
                SharedMat::Interleaved(copy)
            }
            BPlacement::Replicate => {
                let copies: Vec<_> = self.pools.iter().map(|_| Mutex::new(None)).collect();
                self.pools.run_owned(&vec![1; copies.len()], |place, _| {
                    let made = NumaMat::untouched(b.rows(), b.cols()).map(|mut copy| {
                        let whole = 0..copy.buffer.len();
                        copy.buffer.advise_huge_pages(std::slice::from_ref(&whole));
                        copy.fill_from(b);
                        copy
                    });
                    if let Ok(mut slot) = copies[place].lock() {
                        *slot = Some(made);
                    }
                });
                let copies = copies.into_iter().filter_map(|slot| slot.into_inner().ok().flatten());
                SharedMat::Copies(copies.collect::<Result<_>>()?)
            }
        })
    }

    /// Runs `task(cpu, place, chunk, rows)` once for every chunk, `rows` its rows of `out` and `place` the position of the
    /// pool that runs it; chunks that are behind move to nodes that have none left ([`NodeCpus::run`]).
    ///
    /// # Errors
    /// [`Error::Shape`] when `out` has other rows than the matrix; the first error of `task` in the order of rows.
    pub fn run<D: Stored>(
        &self,
        out: MatMut<'_, D>,
        task: impl Fn(&Cpu, usize, (usize, usize), MatMut<'_, D>) -> Result<()> + Sync,
    ) -> Result<()> {
        if out.rows() != self.rows {
            return Err(Error::shape("placed run", format!("output of {} rows for {}", out.rows(), self.rows)));
        }
        self.run_slots(self.row_slots(out), task)
    }

    /// As [`NumaCsr::run`] with the chunk's nonzeros of `values`, which are in the order of rows.
    ///
    /// # Errors
    /// [`Error::Shape`] when `values` has another length than the matrix has nonzeros; the first error of `task`.
    pub fn run_values(
        &self,
        values: &mut [T],
        task: impl Fn(&Cpu, usize, (usize, usize), &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let nnz = self.nnz();
        if values.len() != nnz {
            return Err(Error::shape("placed run", format!("{} values for {nnz} nonzeros", values.len())));
        }
        self.run_slots(self.value_slots(values), task)
    }

    /// The values of each chunk's nonzeros, to be taken once.
    fn value_slots<'o>(&self, values: &'o mut [T]) -> Vec<Vec<Mutex<Option<&'o mut [T]>>>> {
        let mut rest = values;
        let mut cut = |chunk: &Chunk<T>| {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(chunk.matrix.nnz());
            rest = after;
            Mutex::new(Some(own))
        };
        self.chunks.iter().map(|part| part.iter().map(&mut cut).collect()).collect()
    }

    /// Runs `task` once for every chunk with what its slot holds.
    fn run_slots<X: Send>(
        &self,
        slots: Vec<Vec<Mutex<Option<X>>>>,
        task: impl Fn(&Cpu, usize, (usize, usize), X) -> Result<()> + Sync,
    ) -> Result<()> {
        let counts: Vec<_> = self.chunks.iter().map(Vec::len).collect();
        self.pools.try_run(&counts, &|place, cpu, owner, chunk| match take(&slots[owner][chunk]) {
            Some(part) => task(cpu, place, (owner, chunk), part),
            None => Ok(()),
        })
    }

    /// The rows of `out` of each chunk, to be taken once.
    fn row_slots<'o, D>(&self, out: MatMut<'o, D>) -> Vec<Vec<Mutex<Option<MatMut<'o, D>>>>> {
        let (cols, stride) = (out.cols(), out.stride());
        let mut rest = out.into_data();
        let mut slots: Vec<Vec<_>> = self.chunks.iter().map(|_| Vec::new()).collect();
        // Pools ascend by node, and so do the parts of a `RowPlacement`: chunks come in the order of rows.
        for (owner, chunk) in self.chunks.iter().enumerate().flat_map(|(o, all)| all.iter().map(move |c| (o, c))) {
            let rows = chunk.rows.len();
            // The last row may end before its stride does.
            let (own, after) = rest.split_at_mut((rows * stride).min(rest.len()));
            rest = after;
            slots[owner].push(Mutex::new(MatMut::new(own, rows, cols, stride).ok()));
        }
        slots
    }
}

/// What the slot holds, once.
fn take<X>(slot: &Mutex<Option<X>>) -> Option<X> {
    slot.lock().ok()?.take()
}

/// Rows `rows` of `a`, in memory of node `node` (as the operating system numbers it).
fn chunk<T: Scalar>(a: &Csr<T>, rows: Range<usize>, node: usize) -> Chunk<T> {
    let matrix = a.as_ref().row_range(rows.clone()).expect("a placement's rows are those of its matrix").to_csr();
    // Fresh pages are already here; the allocator may have handed out older ones. Where the system cannot move pages,
    // they stay where they are, which is slower and nothing else.
    let _ = move_pages(matrix.pattern().row_ptr(), |_| node);
    let _ = move_pages(matrix.pattern().col_idx(), |_| node);
    let _ = move_pages(matrix.values(), |_| node);
    Chunk { rows, matrix }
}

/// A dense matrix in pages of its own.
#[derive(Debug)]
pub struct NumaMat<T> {
    buffer: PageBuffer<T>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<T: Stored> NumaMat<T> {
    /// Zeros that nobody has touched, with the row stride of [`crate::Mat`].
    fn untouched(rows: usize, cols: usize) -> Result<Self> {
        let stride = padded_stride::<T>(cols);
        let len = rows.saturating_mul(stride);
        Ok(Self { buffer: PageBuffer::zeros(len)?, rows, cols, stride })
    }

    fn fill_from(&mut self, b: MatRef<'_, T>) {
        for i in 0..b.rows() {
            self.as_mut().into_row(i).copy_from_slice(b.row(i));
        }
    }

    /// A shared view.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef::new(&self.buffer, self.rows, self.cols, self.stride).expect("the buffer holds all rows")
    }

    /// A mutable view.
    pub fn as_mut(&mut self) -> MatMut<'_, T> {
        MatMut::new(&mut self.buffer, self.rows, self.cols, self.stride).expect("the buffer holds all rows")
    }
}

/// An operand that all rows use, as placed.
#[derive(Debug)]
pub enum SharedMat<'b, T> {
    /// Where it was.
    Alone(MatRef<'b, T>),
    /// A copy whose pages take turns over the nodes.
    Interleaved(NumaMat<T>),
    /// A copy per pool.
    Copies(Vec<NumaMat<T>>),
}

impl<T: Stored> SharedMat<'_, T> {
    /// The copy for the pool at `place`.
    ///
    /// # Errors
    /// [`Error::Argument`] when it was made for fewer pools.
    pub fn on(&self, place: usize) -> Result<MatRef<'_, T>> {
        match self {
            Self::Alone(b) => Ok(*b),
            Self::Interleaved(copy) => Ok(copy.as_ref()),
            Self::Copies(copies) => copies.get(place).map(NumaMat::as_ref).ok_or_else(|| {
                let detail = format!("has copies for {} pools; this matrix has a pool {place}", copies.len());
                Error::argument("shared operand", detail)
            }),
        }
    }
}
