//! [`DistCsr`]: a rank's part of a sparse matrix, laid out for an algorithm.
//!
//! ```text
//! aware        rank k has rows k; its parts: the columns k, then all others by their ghost
//! dense shift  rank k = i c + l has the columns of blocks l, c + l, 2 c + l, ... (layer l) in the rows of blocks i c to i c + c - 1;
//!              a part for each of these blocks of columns, in the order in which the rows of B pass by
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Pattern, Prepared, SparseOperand};

use crate::blocks::Blocks;
use crate::comm::{Comm, Group};
use crate::dense::{Element, Packed, zeros};
use crate::error::{Error, Result};
use crate::halo::Halo;
use crate::plan::Algorithm;

/// A rank's part of a sparse matrix: rows of A and, as the operands of the operations, rows of the dense matrices that go with
/// its rows (C, E) and with its columns (B, D) are cut into one block for each rank.
#[derive(Debug)]
pub struct DistCsr<T> {
    pub(crate) rank: usize,
    pub(crate) rows: Blocks,
    pub(crate) cols: Blocks,
    /// Nonzeros of this rank's rows.
    pub(crate) nnz: usize,
    pub(crate) algorithm: Algorithm,
    /// The rows of A here.
    pub(crate) here: Range<usize>,
    pub(crate) parts: Vec<Part<T>>,
    /// For the aware algorithm; and the columns of its second part.
    pub(crate) halo: Option<Halo>,
    ghosts: Vec<u32>,
    /// Both of its parts as one, with all columns of A: where B is in memory that ranks have in common, and when it is asked for.
    whole: OnceLock<Part<T>>,
    options: Option<PlanOptions>,
    /// For each rank of the fiber: which of this rank's nonzeros went to it.
    pub(crate) gone: Vec<Vec<usize>>,
    /// How many nonzeros came from each rank of the fiber.
    pub(crate) came: Vec<usize>,
    /// Of rows that travel: they stay from run to run.
    pub(crate) rooms: Mutex<Vec<Packed<T>>>,
}

/// Nonzeros whose columns are some rows of B that are here at the same time.
#[derive(Debug)]
pub(crate) struct Part<T> {
    /// With rows counted from the first one here, and columns from the first of B's.
    pub a: Csr<T>,
    /// Laid out for one operation.
    pub prepared: Option<(Op, Prepared<T>)>,
    /// Which of the nonzeros that came each one is; nothing where they are all, in their order.
    pub origin: Vec<usize>,
    /// The transposed pattern, and which of the nonzeros each of its own is: where it is asked for.
    columns: OnceLock<(Arc<Pattern>, Vec<usize>)>,
}

/// Nonzeros by coordinates: rows from the first one here.
struct Entries<T> {
    rows: Vec<u32>,
    cols: Vec<u32>,
    values: Vec<T>,
}

impl<T: Element> Entries<T> {
    fn new() -> Self {
        Self { rows: Vec::new(), cols: Vec::new(), values: Vec::new() }
    }
}

impl<T: Element> DistCsr<T> {
    /// The matrix of `rows.len()` x `cols.len()` of which this rank gives the rows of its block, with all their columns.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when `local` is not `rows.range(comm.rank()).len()` x `cols.len()`, or the blocks are not one for
    /// each rank; [`sparsimd::Error::Argument`] when the replication does not divide the ranks. As [`Comm::exchange`].
    #[inline(never)]
    pub fn new(comm: &dyn Comm, rows: &Blocks, cols: &Blocks, local: &Csr<T>, algorithm: Algorithm) -> Result<Self> {
        comm.agree(check(comm, rows, cols, local, algorithm))?;
        let rank = comm.rank();
        let replication = algorithm.replication();
        let fiber = fiber(comm, replication);
        let layer = |column: u32| match algorithm {
            Algorithm::Aware => 0,
            Algorithm::DenseShift { .. } => cols.owner(column as usize) % replication,
        };
        let mut gone = vec![Vec::new(); replication];
        let mut sent: Vec<Entries<T>> = (0..replication).map(|_| Entries::new()).collect();
        let here = rows.grouped(replication).range(rank / replication);
        let first = rows.range(rank).start - here.start;
        for i in 0..local.rows() {
            for p in local.pattern().row_ptr()[i]..local.pattern().row_ptr()[i + 1] {
                let column = local.pattern().col_idx()[p];
                let to = layer(column);
                gone[to].push(p);
                sent[to].rows.push((first + i) as u32);
                sent[to].cols.push(column);
                sent[to].values.push(local.values()[p]);
            }
        }
        let (came, entries) = gather_fiber(&fiber, sent)?;
        let (halo, ghosts, parts) = match algorithm {
            Algorithm::Aware => {
                let (ghosts, parts) = comm.agree(split_own(&cols.range(rank), here.len(), &entries))?;
                (Some(Halo::new(comm, cols, &ghosts)?), ghosts, parts)
            }
            Algorithm::DenseShift { .. } => {
                let order = ring_order(comm.size(), replication, rank);
                (None, Vec::new(), comm.agree(split_blocks(cols, &order, here.len(), &entries))?)
            }
        };
        let (rows, cols, nnz) = (rows.clone(), cols.clone(), local.nnz());
        let (whole, options, rooms) = (OnceLock::new(), None, Mutex::default());
        Ok(Self { rank, rows, cols, nnz, algorithm, here, parts, halo, ghosts, whole, options, gone, came, rooms })
    }

    /// Lays the nonzeros out for the operation of `options`, as [`Cpu::prepare`] does; other operations run directly.
    ///
    /// # Errors
    /// As [`Cpu::prepare`].
    #[inline(never)]
    pub fn prepare(&mut self, cpu: &Cpu, options: &PlanOptions) -> Result<()> {
        for part in &mut self.parts {
            part.prepared = Some((options.op(), cpu.prepare(&part.a, options)?));
        }
        (self.options, self.whole) = (Some(*options), OnceLock::new());
        Ok(())
    }

    /// The nonzeros of the aware algorithm's parts, in the order in which this rank gave them.
    pub(crate) fn whole(&self, cpu: &Cpu) -> Result<&Part<T>> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let (mut row_ptr, mut col_idx) = (zeros("row pointers", self.here.len() + 1)?, zeros("columns", self.nnz)?);
        let mut values = zeros("values", self.nnz)?;
        let first = self.cols.range(self.rank).start as u32;
        for (number, part) in self.parts.iter().enumerate() {
            row_ptr.iter_mut().zip(part.a.pattern().row_ptr()).for_each(|(all, own)| *all += own);
            for ((&p, &j), &value) in part.origin.iter().zip(part.a.pattern().col_idx()).zip(part.a.values()) {
                col_idx[p] = if number == 0 { first + j } else { self.ghosts[j as usize] };
                values[p] = value;
            }
        }
        let a = Csr::new(Pattern::new(self.here.len(), self.cols.len(), row_ptr, col_idx)?, values)?;
        let prepare = |options: &PlanOptions| -> sparsimd::Result<_> { Ok((options.op(), cpu.prepare(&a, options)?)) };
        let prepared = self.options.as_ref().map(prepare).transpose()?;
        let whole = Part { a, prepared, origin: Vec::new(), columns: OnceLock::new() };
        Ok(self.whole.get_or_init(|| whole))
    }

    /// How its operations run.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Nonzeros of the rows that this rank gave.
    pub fn nnz(&self) -> usize {
        self.nnz
    }
}

impl<T: Element> Part<T> {
    /// The nonzeros as `op` takes them.
    pub fn operand(&self, op: Op) -> SparseOperand<'_, T> {
        match &self.prepared {
            Some((prepared_for, prepared)) if *prepared_for == op => prepared.into(),
            _ => (&self.a).into(),
        }
    }

    /// The transposed pattern, and `numbers`, one for each nonzero, in its order.
    pub fn by_columns(&self, cpu: &Cpu, numbers: &[T]) -> (&Arc<Pattern>, Vec<T>) {
        let (pattern, order) = self.columns.get_or_init(|| cpu.install(|| self.a.pattern().transpose()));
        (pattern, order.iter().map(|&p| numbers[p]).collect())
    }
}

/// The ranks that share rows of A with this one.
pub(crate) fn fiber<'a>(comm: &'a (dyn Comm + 'a), replication: usize) -> Group<'a> {
    let first = comm.rank() / replication * replication;
    Group::of(comm, (first..first + replication).collect())
}

/// The ranks that rows of B pass between, of which this one is number `rank / replication`.
pub(crate) fn ring<'a>(comm: &'a (dyn Comm + 'a), replication: usize) -> Group<'a> {
    Group::of(comm, (comm.rank() % replication..comm.size()).step_by(replication).collect())
}

/// The blocks of B that pass by `rank`, in their order: its own first, then those of the ranks after it in its ring.
pub(crate) fn ring_order(ranks: usize, replication: usize, rank: usize) -> Vec<usize> {
    let (place, length) = (rank / replication, ranks / replication);
    (0..length).map(|step| (place + step) % length * replication + rank % replication).collect()
}

fn check<T: Element>(
    comm: &dyn Comm,
    rows: &Blocks,
    cols: &Blocks,
    local: &Csr<T>,
    algorithm: Algorithm,
) -> Result<()> {
    let (size, replication) = (comm.size(), algorithm.replication());
    if rows.parts() != size || cols.parts() != size {
        let detail = format!("{} blocks of rows and {} of columns for {size} ranks", rows.parts(), cols.parts());
        return Err(Error::shape("a distributed matrix", detail));
    }
    if replication == 0 || !size.is_multiple_of(replication) {
        return Err(Error::argument("replication", format!("{replication} does not divide the {size} ranks")));
    }
    let wanted = (rows.range(comm.rank()).len(), cols.len());
    if (local.rows(), local.cols()) != wanted {
        let (m, k) = (local.rows(), local.cols());
        let detail = format!("{m} x {k} here, expected {} x {}", wanted.0, wanted.1);
        return Err(Error::shape("a distributed matrix", detail));
    }
    Ok(())
}

/// Hands each rank of the fiber its entries: how many came from each, and the entries in the order of ranks.
fn gather_fiber<T: Element>(fiber: &dyn Comm, sent: Vec<Entries<T>>) -> Result<(Vec<usize>, Entries<T>)> {
    let (mut rows, mut cols, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for part in sent {
        rows.push(part.rows);
        cols.push(part.cols);
        values.push(part.values);
    }
    let rows = fiber.all_to_all(&rows)?;
    let came = rows.iter().map(Vec::len).collect();
    let cols = fiber.all_to_all(&cols)?.concat();
    let entries = Entries { rows: rows.concat(), cols, values: fiber.all_to_all(&values)?.concat() };
    Ok((came, entries))
}

/// The part of the columns `own`, and the part of all others with the ghosts that it names.
fn split_own<T: Element>(own: &Range<usize>, rows: usize, entries: &Entries<T>) -> Result<(Vec<u32>, Vec<Part<T>>)> {
    let (mine, others): (Vec<usize>, Vec<usize>) =
        (0..entries.cols.len()).partition(|&p| own.contains(&(entries.cols[p] as usize)));
    let mut ghosts: Vec<u32> = others.iter().map(|&p| entries.cols[p]).collect();
    ghosts.sort_unstable();
    ghosts.dedup();
    let near = part(rows, own.len(), entries, mine, |j| j - own.start as u32)?;
    let number = |j: u32| ghosts.partition_point(|&ghost| ghost < j) as u32;
    let far = part(rows, ghosts.len(), entries, others, number)?;
    Ok((ghosts, vec![near, far]))
}

/// A part for each of the blocks `order` of the columns.
fn split_blocks<T: Element>(cols: &Blocks, order: &[usize], rows: usize, entries: &Entries<T>) -> Result<Vec<Part<T>>> {
    let mut step_of = vec![0; cols.parts()];
    order.iter().enumerate().for_each(|(step, &block)| step_of[block] = step);
    let mut chosen = vec![Vec::new(); order.len()];
    entries.cols.iter().enumerate().for_each(|(p, &j)| chosen[step_of[cols.owner(j as usize)]].push(p));
    let of_block = |(&block, chosen)| {
        let range = cols.range(block);
        part(rows, range.len(), entries, chosen, |j| j - range.start as u32)
    };
    order.iter().zip(chosen).map(of_block).collect()
}

/// The `chosen` entries by rows, stably, with columns renumbered.
fn part<T: Element>(
    rows: usize,
    cols: usize,
    entries: &Entries<T>,
    chosen: Vec<usize>,
    renumber: impl Fn(u32) -> u32,
) -> Result<Part<T>> {
    let row = |p: usize| entries.rows[p] as usize;
    let mut row_ptr = vec![0; rows + 1];
    chosen.iter().for_each(|&p| row_ptr[row(p) + 1] += 1);
    (0..rows).for_each(|i| row_ptr[i + 1] += row_ptr[i]);
    let mut origin = vec![0; chosen.len()];
    let mut next = row_ptr.clone();
    for p in chosen {
        let place = &mut next[row(p)];
        origin[*place] = p;
        *place += 1;
    }
    let col_idx = origin.iter().map(|&p| renumber(entries.cols[p])).collect();
    let values = origin.iter().map(|&p| entries.values[p]).collect();
    let a = Csr::new(Pattern::new(rows, cols, row_ptr, col_idx)?, values)?;
    Ok(Part { a, prepared: None, origin, columns: OnceLock::new() })
}
