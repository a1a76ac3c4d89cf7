//! Reading a matrix on all ranks at once: each parses a part of the file, and hands the entries to those that have their rows.

use std::ops::Range;
use std::path::Path;

use sparsimd::io::{Duplicates, ReadOptions, TensorFormat, read_mtx_part, read_tensor, read_tns_part, read_tnsb_part};
use sparsimd::{Coo, CooTensor, Cpu, Csr};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::partition::{Partition, Renumbered};
use crate::tensor::weights;
use crate::trim::give_back;

/// Entries that a rank hands over at a time: so many are there twice, and sending them takes longer than their messages' latency.
const ROUND: usize = 1 << 18;

/// A rank's rows of a matrix, with all columns, and how the rows and columns are cut.
#[derive(Debug)]
pub struct RowsOf<T> {
    /// Which rank has which rows: about as much work each, a row counting as 1 nonzero more, or 4 where ranks are on several machines; or
    /// as they are partitioned.
    pub rows: Blocks,
    /// Which rank has which columns, that is, rows of B: those of the matrix' rows where it is square, else as many each.
    pub cols: Blocks,
    /// This rank's rows.
    pub local: Csr<T>,
    /// Which rows of the file these are, where a partition has put them into another order; columns likewise.
    pub numbers: Option<Vec<u32>>,
}

/// The matrix in the Matrix Market file `path`: each rank reads its share of the bytes and keeps its rows.
///
/// # Errors
/// Of the lowest rank that failed: as [`read_mtx_part`]; [`sparsimd::Error::Parse`] when entries are missing, too many or repeated;
/// as [`Partition`] has them.
#[inline(never)]
pub fn read_rows<T: Element>(cpu: &Cpu, comm: &dyn Comm, path: &Path, partition: &Partition<'_>) -> Result<RowsOf<T>> {
    let (rank, size) = (comm.rank(), comm.size());
    let part = cpu.install(|| read_mtx_part::<T>(path, rank, size, ReadOptions::default()));
    let part = comm.agree(part.map_err(Error::from))?;
    give_back();
    let mut total = [part.stored as f64];
    comm.sum(&mut total)?;
    comm.agree(part.check_total(path, total[0] as u64).map_err(Error::from))?;
    let cut = match partition {
        Partition::Balanced => {
            let weights = row_weights(comm, &part.entries)?;
            let (rows, cols) = cut(comm, &weights, part.entries.cols());
            Cut { rows, cols, numbers: None }
        }
        _ => {
            let Renumbered { blocks, numbers } = partition.renumber(comm, &part.entries)?;
            Cut { cols: blocks.clone(), rows: blocks, numbers: Some(numbers) }
        }
    };
    distribute(cpu, comm, part.entries, cut, ROUND, |row, column| {
        let detail = format!("row {}, column {} occurs twice", row + 1, column + 1);
        sparsimd::Error::Parse { path: path.to_owned(), line: 0, detail }
    })
}

/// The tensor in the file `path`: the lengths of its modes, and the entries of this rank's share of the file. Coordinates of a text file
/// start at 0 if `zero_based`, else at 1.
///
/// # Errors
/// Of the lowest rank that failed: as [`read_tns_part`], [`read_tnsb_part`] and [`read_tensor`].
#[inline(never)]
pub fn read_entries<T: Element>(
    cpu: &Cpu,
    comm: &dyn Comm,
    path: &Path,
    zero_based: bool,
) -> Result<(Vec<usize>, CooTensor<T>)> {
    let (rank, size) = (comm.rank(), comm.size());
    let part = || match TensorFormat::of(path)? {
        TensorFormat::Tns => read_tns_part(path, zero_based, rank, size, ReadOptions::default()),
        _ if size == 1 => read_tensor(path, zero_based, Duplicates::Refuse, ReadOptions::default()),
        _ => read_tnsb_part(path, rank, size),
    };
    let part: CooTensor<T> = comm.agree(cpu.install(part).map_err(Error::from))?;
    let mut dims: Vec<f64> = part.dims().iter().map(|&dim| dim as f64).collect();
    comm.largest(&mut dims)?;
    Ok((dims.into_iter().map(|dim| dim as usize).collect(), part))
}

/// The rows of `a` that this rank keeps, of a matrix that every rank has.
///
/// # Errors
/// None but those of the library.
#[inline(never)]
pub fn share_rows<T: Element>(comm: &dyn Comm, a: &Csr<T>) -> Result<RowsOf<T>> {
    let weights: Vec<u64> = (0..a.rows()).map(|i| a.pattern().row(i).len() as u64).collect();
    let (rows, cols) = cut(comm, &weights, a.cols());
    let local = a.as_ref().row_range(rows.range(comm.rank()))?.to_csr();
    Ok(RowsOf { rows, cols, local, numbers: None })
}

/// What a row takes besides its nonzeros, in nonzeros: as much as in a thread's tasks where rows of B are read in place; more where messages carry
/// them, since rows are then packed, and the result is written in two parts. On an R-MAT matrix of 2^18 rows and 1.9 M nonzeros, N = 128, two
/// ranks of one thread take, in place, 18.7 ms with 0, 17.9 with 1 and 21.5 with 4; by messages 31.5 with 1, 30.8 with 2, 29.2 with 4 and 30.9 with
/// 8.
fn row_weight(comm: &dyn Comm) -> u64 {
    if comm.one_machine() { 1 } else { 4 }
}

/// Rows of so many nonzeros, and columns, for each rank.
fn cut(comm: &dyn Comm, nonzeros: &[u64], cols: usize) -> (Blocks, Blocks) {
    let ranks = comm.size();
    // Blocks add one themselves.
    let more = row_weight(comm) - 1;
    let weights: Vec<u64> = nonzeros.iter().map(|&nonzeros| nonzeros + more).collect();
    let rows = Blocks::balanced(&weights, ranks);
    let cols = if cols == nonzeros.len() { rows.clone() } else { Blocks::even(cols, ranks) };
    (rows, cols)
}

/// Nonzeros of every row, of all ranks' `entries`.
fn row_weights<T: Element>(comm: &dyn Comm, entries: &Coo<T>) -> Result<Vec<u64>> {
    let mut weights = comm.agree(weights(entries.rows()))?;
    entries.row_idx().iter().for_each(|&i| weights[i as usize] += 1.0);
    comm.sum(&mut weights)?;
    Ok(weights.into_iter().map(|w| w as u64).collect())
}

/// Which rank gets what.
struct Cut {
    rows: Blocks,
    cols: Blocks,
    /// The new number of each row and column.
    numbers: Option<Vec<u32>>,
}

/// Each rank's rows, from entries anywhere, which are handed over `round` at a time; `repeated` makes the error of a place that has two.
fn distribute<T: Element>(
    cpu: &Cpu,
    comm: &dyn Comm,
    entries: Coo<T>,
    Cut { rows, cols, numbers }: Cut,
    round: usize,
    repeated: impl Fn(usize, usize) -> sparsimd::Error,
) -> Result<RowsOf<T>> {
    let mut rounds = [entries.nnz().div_ceil(round) as f64];
    comm.largest(&mut rounds)?;
    let (size, width) = (comm.size(), entries.cols());
    let (mut is, mut js, mut xs) = (Vec::new(), Vec::new(), Vec::new());
    for k in 0..rounds[0] as usize {
        let some = (k * round).min(entries.nnz())..((k + 1) * round).min(entries.nnz());
        let handed = hand_over(comm, &entries, some, &rows, numbers.as_deref(), size)?;
        is.extend(handed.0);
        js.extend(handed.1);
        xs.extend(handed.2);
    }
    drop(entries);
    give_back();
    let own = rows.range(comm.rank());
    let old = numbers.as_ref().map(|numbers| {
        let mut old = vec![0u32; numbers.len()];
        numbers.iter().enumerate().for_each(|(i, &new)| old[new as usize] = i as u32);
        old
    });
    let in_file = |new: usize| old.as_ref().map_or(new, |old| old[new] as usize);
    let local = Coo::new(own.len(), width, is, js, xs).and_then(|coo| {
        cpu.install(|| coo.to_csr()).map_err(|error| match coo.first_repeated() {
            Some((_, p)) => {
                let (i, j) = (coo.row_idx()[p] as usize, coo.col_idx()[p] as usize);
                repeated(in_file(own.start + i), in_file(j))
            }
            None => error,
        })
    });
    let local = comm.agree(local.map_err(Error::from))?;
    let numbers = old.map(|old| old[own].to_vec());
    Ok(RowsOf { rows, cols, local, numbers })
}

/// Rows, counted from a rank's first one, columns and values.
type Triples<T> = (Vec<u32>, Vec<u32>, Vec<T>);

/// Hands `some` of the entries to the ranks that have their rows: what came.
fn hand_over<T: Element>(
    comm: &dyn Comm,
    entries: &Coo<T>,
    some: Range<usize>,
    rows: &Blocks,
    numbers: Option<&[u32]>,
    size: usize,
) -> Result<Triples<T>> {
    let new = |i: u32| numbers.map_or(i, |numbers| numbers[i as usize]);
    let (mut is, mut js, mut xs) = (vec![Vec::new(); size], vec![Vec::new(); size], vec![Vec::new(); size]);
    for p in some {
        let (i, j) = (new(entries.row_idx()[p]), new(entries.col_idx()[p]));
        let to = rows.owner(i as usize);
        is[to].push(i - rows.range(to).start as u32);
        js[to].push(j);
        xs[to].push(entries.values()[p]);
    }
    Ok((comm.all_to_all(&is)?.concat(), comm.all_to_all(&js)?.concat(), comm.all_to_all(&xs)?.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::ThreadComm;

    #[test]
    fn rounds_hand_over_every_entry() {
        let size = 40usize;
        let all: Vec<(u32, u32)> = (0..size as u32).flat_map(|i| [(i, i), (i, (i * 7 + 3) % size as u32)]).collect();
        for (ranks, round) in [(1, 1000), (3, 7), (4, 1)] {
            let parts = ThreadComm::run(ranks, |comm: &dyn Comm| {
                let cpu = Cpu::builder().threads(1).pin(false).build().unwrap();
                // The first rank has nearly all.
                let own: Vec<_> = all.iter().enumerate().filter(|(p, _)| p % 9 % ranks == comm.rank()).collect();
                let of = |pick: fn(&(u32, u32)) -> u32| own.iter().map(|(_, place)| pick(place)).collect();
                let values = own.iter().map(|(p, _)| *p as f64).collect();
                let coo = Coo::new(size, size, of(|p| p.0), of(|p| p.1), values).unwrap();
                let blocks = Blocks::even(size, ranks);
                let cut = Cut { rows: blocks.clone(), cols: blocks, numbers: None };
                let wrong = |i, j| panic!("{i}, {j}");
                distribute(&cpu, comm, coo, cut, round, wrong).unwrap().local
            });
            let mut values: Vec<f64> = parts.iter().flat_map(|part| part.values().to_vec()).collect();
            values.sort_by(f64::total_cmp);
            assert_eq!(values, (0..all.len()).map(|p| p as f64).collect::<Vec<_>>());
        }
    }
}
