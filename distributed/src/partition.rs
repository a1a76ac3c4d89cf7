//! Which rank has which rows: by their work, from a file, or of a graph partitioner.

use std::path::{Path, PathBuf};

use sparsimd::Coo;

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};

/// How the rows of a matrix are given to ranks. Where neighbours are not in order, those of a rank are numbered one after the other, rank
/// by rank, and columns as the rows: the matrix must be square.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partition<'a> {
    /// Rows in their order, about as much work on each rank.
    Balanced,
    /// The rank of each row, a number from 0 on in each line: what METIS' `gpmetis` writes.
    File(&'a Path),
    /// By METIS, so that few ranks need rows of others (feature `metis`). One rank has the whole pattern meanwhile.
    Metis,
}

/// New numbers of rows.
pub(crate) struct Renumbered {
    /// Which rank has which new numbers.
    pub blocks: Blocks,
    /// The new number of each row.
    pub numbers: Vec<u32>,
}

impl Partition<'_> {
    /// New numbers for the rows and columns of a matrix of which this rank has `entries`. The same on all ranks.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when the matrix is not square; [`sparsimd::Error::Parse`] of the partition's file;
    /// [`sparsimd::Error::Unavailable`] without METIS.
    pub(crate) fn renumber<T: Element>(&self, comm: &dyn Comm, entries: &Coo<T>) -> Result<Renumbered> {
        let (rows, cols, size) = (entries.rows(), entries.cols(), comm.size());
        let square = || {
            let detail = format!("A is {rows} x {cols}; a partition numbers rows and columns alike");
            if rows == cols { Ok(()) } else { Err(Error::shape("a partition", detail)) }
        };
        comm.agree(square())?;
        let ranks = match self {
            Self::File(path) => comm.agree(read_partition(path, rows, size))?,
            Self::Metis => metis(comm, entries)?,
            Self::Balanced => (0..rows).map(|i| (i * size / rows.max(1)) as u32).collect(),
        };
        let mut starts = vec![0; size + 1];
        ranks.iter().for_each(|&rank| starts[rank as usize + 1] += 1);
        (0..size).for_each(|rank| starts[rank + 1] += starts[rank]);
        let mut next = starts.clone();
        let mut take = |rank: u32| {
            let number = next[rank as usize];
            next[rank as usize] += 1;
            number as u32
        };
        let numbers = ranks.into_iter().map(&mut take).collect();
        Ok(Renumbered { blocks: Blocks::ascending(starts), numbers })
    }
}

/// The rank of each of `rows` rows.
fn read_partition(path: &Path, rows: usize, ranks: usize) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).map_err(|source| sparsimd::Error::Io { path: path.into(), source })?;
    let fail = |line: usize, detail: String| {
        Error::from(sparsimd::Error::Parse { path: PathBuf::from(path), line: line as u64, detail })
    };
    let mut all = Vec::new();
    for (k, line) in text.lines().enumerate() {
        match line.trim().parse::<u32>() {
            Ok(rank) if (rank as usize) < ranks => all.push(rank),
            _ => return Err(fail(k + 1, format!("{:?} is not a number from 0 to {}", line.trim(), ranks - 1))),
        }
    }
    match all.len() {
        found if found == rows => Ok(all),
        found => Err(fail(0, format!("{found} lines for {rows} rows"))),
    }
}

#[cfg(not(feature = "metis"))]
fn metis<T: Element>(comm: &dyn Comm, _: &Coo<T>) -> Result<Vec<u32>> {
    let detail = "this build is without the feature metis".to_owned();
    comm.agree(Err(sparsimd::Error::Unavailable { what: "METIS", detail }.into()))
}

/// The first rank gathers the pattern, and tells the others what METIS makes of it.
#[cfg(feature = "metis")]
fn metis<T: Element>(comm: &dyn Comm, entries: &Coo<T>) -> Result<Vec<u32>> {
    let (rank, size, rows) = (comm.rank(), comm.size(), entries.rows());
    // An edge each way, and none to itself.
    let first = |numbers: &[u32]| {
        let mut sent = vec![Vec::new(); size];
        sent[0] = numbers.to_vec();
        comm.all_to_all(&sent)
    };
    let (is, js) = (first(entries.row_idx())?.concat(), first(entries.col_idx())?.concat());
    let ranks = comm.agree(if rank == 0 { parts(rows, &is, &js, size) } else { Ok(Vec::new()) })?;
    let mut lens = vec![0; size];
    lens[0] = rows;
    comm.all_gather(&ranks, &lens)
}

/// METIS' parts of the graph whose edges join the rows and columns of nonzeros; a row weighs as much as it has nonzeros, and one more.
#[cfg(feature = "metis")]
fn parts(rows: usize, is: &[u32], js: &[u32], parts: usize) -> Result<Vec<u32>> {
    let failed = |detail: String| Error::from(sparsimd::Error::Unavailable { what: "METIS", detail });
    if parts == 1 || rows == 0 {
        return Ok(vec![0; rows]);
    }
    let mut edges: Vec<(u32, u32)> = Vec::with_capacity(2 * is.len());
    let mut weights = vec![1i32; rows];
    for (&i, &j) in is.iter().zip(js) {
        weights[i as usize] += 1;
        if i != j {
            edges.extend([(i, j), (j, i)]);
        }
    }
    edges.sort_unstable();
    edges.dedup();
    if i32::try_from(edges.len()).is_err() {
        return Err(failed(format!("{} edges, which its numbers of 32 bits do not count", edges.len())));
    }
    let mut starts = vec![0i32; rows + 1];
    edges.iter().for_each(|&(i, _)| starts[i as usize + 1] += 1);
    (0..rows).for_each(|i| starts[i + 1] += starts[i]);
    let neighbours: Vec<i32> = edges.iter().map(|&(_, j)| j as i32).collect();
    let mut found = vec![0i32; rows];
    let graph = metis::Graph::new(1, parts as i32, &starts, &neighbours).map_err(|e| failed(e.to_string()))?;
    graph.set_vwgt(&weights).part_kway(&mut found).map_err(|e| failed(e.to_string()))?;
    Ok(found.into_iter().map(|part| part as u32).collect())
}
