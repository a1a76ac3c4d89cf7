//! Reading a matrix on all ranks at once: each parses a part of the file, and hands the entries to those that have their rows.

use std::path::Path;

use sparsimd::io::{Duplicates, ReadOptions, TensorFormat, read_mtx_part, read_tensor, read_tns_part};
use sparsimd::{Coo, CooTensor, Cpu, Csr};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::tensor::weights;

/// A rank's rows of a matrix, with all columns, and how the rows and columns are cut.
#[derive(Debug)]
pub struct RowsOf<T> {
    /// Which rank has which rows: about as many nonzeros each.
    pub rows: Blocks,
    /// Which rank has which columns, that is, rows of B: those of the matrix' rows where it is square, else as many each.
    pub cols: Blocks,
    /// This rank's rows.
    pub local: Csr<T>,
}

/// The matrix in the Matrix Market file `path`: each rank reads its share of the bytes and keeps its rows.
///
/// # Errors
/// Of the lowest rank that failed: as [`read_mtx_part`]; [`sparsimd::Error::Parse`] when entries are missing, too many or repeated.
pub fn read_rows<T: Element>(cpu: &Cpu, comm: &dyn Comm, path: &Path) -> Result<RowsOf<T>> {
    let (rank, size) = (comm.rank(), comm.size());
    let part = cpu.install(|| read_mtx_part::<T>(path, rank, size, ReadOptions::default()));
    let part = comm.agree(part.map_err(Error::from))?;
    let mut total = [part.stored as f64];
    comm.sum(&mut total)?;
    comm.agree(part.check_total(path, total[0] as u64).map_err(Error::from))?;
    distribute(cpu, comm, &part.entries, |row, column| {
        let detail = format!("row {}, column {} occurs twice", row + 1, column + 1);
        sparsimd::Error::Parse { path: path.to_owned(), line: 0, detail }
    })
}

/// The tensor in the file `path`: the lengths of its modes, and the entries of this rank's share of the file. Coordinates of a text file
/// start at 0 if `zero_based`, else at 1.
///
/// # Errors
/// Of the lowest rank that failed: as [`read_tns_part`] and [`read_tensor`]; [`sparsimd::Error::Argument`] for a binary file and several
/// ranks.
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
        _ => {
            let detail = format!("{} is binary: several ranks read .tns", path.display());
            Err(sparsimd::Error::Argument { name: "file", detail })
        }
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
pub fn share_rows<T: Element>(comm: &dyn Comm, a: &Csr<T>) -> Result<RowsOf<T>> {
    let weights: Vec<u64> = (0..a.rows()).map(|i| a.pattern().row(i).len() as u64).collect();
    let (rows, cols) = cut(&weights, a.cols(), comm.size());
    let local = a.as_ref().row_range(rows.range(comm.rank()))?.to_csr();
    Ok(RowsOf { rows, cols, local })
}

/// Rows of so many nonzeros, and columns, for each rank.
fn cut(weights: &[u64], cols: usize, ranks: usize) -> (Blocks, Blocks) {
    let rows = Blocks::balanced(weights, ranks);
    let cols = if cols == weights.len() { rows.clone() } else { Blocks::even(cols, ranks) };
    (rows, cols)
}

/// Rows of about equal numbers of nonzeros on each rank, from entries anywhere; `repeated` makes the error of a place that has two.
fn distribute<T: Element>(
    cpu: &Cpu,
    comm: &dyn Comm,
    entries: &Coo<T>,
    repeated: impl Fn(usize, usize) -> sparsimd::Error,
) -> Result<RowsOf<T>> {
    let mut weights = comm.agree(weights(entries.rows()))?;
    entries.row_idx().iter().for_each(|&i| weights[i as usize] += 1.0);
    comm.sum(&mut weights)?;
    let weights: Vec<u64> = weights.into_iter().map(|w| w as u64).collect();
    let (rows, cols) = cut(&weights, entries.cols(), comm.size());

    let (mut is, mut js, mut xs) =
        (vec![Vec::new(); comm.size()], vec![Vec::new(); comm.size()], vec![Vec::new(); comm.size()]);
    for ((&i, &j), &x) in entries.row_idx().iter().zip(entries.col_idx()).zip(entries.values()) {
        let to = rows.owner(i as usize);
        is[to].push(i - rows.range(to).start as u32);
        js[to].push(j);
        xs[to].push(x);
    }
    let first = rows.range(comm.rank()).start;
    let (is, js, xs) = (comm.all_to_all(&is)?.concat(), comm.all_to_all(&js)?.concat(), comm.all_to_all(&xs)?.concat());
    let local = Coo::new(rows.range(comm.rank()).len(), entries.cols(), is, js, xs).and_then(|coo| {
        cpu.install(|| coo.to_csr()).map_err(|error| match first_repeated(&coo) {
            Some((i, j)) => repeated(first + i, j),
            None => error,
        })
    });
    let local = comm.agree(local.map_err(Error::from))?;
    Ok(RowsOf { rows, cols, local })
}

/// The first place that has two entries.
fn first_repeated<T: Element>(coo: &Coo<T>) -> Option<(usize, usize)> {
    let mut places: Vec<(u32, u32)> = coo.row_idx().iter().copied().zip(coo.col_idx().iter().copied()).collect();
    places.sort_unstable();
    places.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| (pair[0].0 as usize, pair[0].1 as usize))
}
