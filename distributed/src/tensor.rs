//! [`DistTensor`]: a rank's nonzeros of a sparse tensor, and the rows of the factors that it has and needs.
//!
//! The medium-grained distribution of Smith and Karypis (2016): the modes are cut into q_1, q_2, ... chunks, q_1 q_2 ... = p, and a rank
//! has the nonzeros of one cell of that grid. The rows of a chunk of mode m are cut once more, between the p / q_m ranks whose cells
//! have them.

use std::ops::Range;

use sparsimd::{CooTensor, Cpu};

use crate::blocks::Blocks;
use crate::comm::{Comm, Group};
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::halo::Halo;

/// A rank's part of a tensor.
#[derive(Debug)]
pub struct DistTensor<T> {
    pub(crate) dims: Vec<usize>,
    grid: Vec<usize>,
    pub(crate) modes: Vec<Mode>,
    /// The nonzeros here; coordinates are those of this rank's own rows, then of its ghosts.
    pub(crate) local: CooTensor<T>,
    pub(crate) norm_squared: f64,
    pub(crate) nnz: usize,
    checksum: u64,
}

/// The rows of one mode's factor.
#[derive(Debug)]
pub(crate) struct Mode {
    /// A block for each rank, in the order of `ranks`.
    pub blocks: Blocks,
    /// Which rank has which block.
    pub ranks: Vec<usize>,
    /// Rows here.
    pub own: Range<usize>,
    pub halo: Halo,
}

impl Mode {
    /// The ranks in the order of their blocks.
    pub fn group<'a>(&self, comm: &'a (dyn Comm + 'a)) -> Group<'a> {
        Group::of(comm, self.ranks.clone())
    }
}

impl<T: Element> DistTensor<T> {
    /// The tensor of `dims` of which the ranks have `entries`, any of them each, on the grid that [`grid`] chooses.
    ///
    /// # Errors
    /// [`sparsimd::Error::Structure`] when two entries are at one place; as [`Comm::exchange`].
    #[inline(never)]
    pub fn new(cpu: &Cpu, comm: &dyn Comm, dims: &[usize], entries: &CooTensor<T>) -> Result<Self> {
        let (size, order) = (comm.size(), dims.len());
        let fits = entries.order() == order && entries.dims().iter().zip(dims).all(|(here, all)| here <= all);
        let detail = || format!("entries of dims {:?} for dims {dims:?}", entries.dims());
        comm.agree(if fits { Ok(()) } else { Err(Error::shape("a distributed tensor", detail())) })?;
        let grid = grid(dims, size);
        let mut chunks = Vec::new();
        for (mode, &parts) in grid.iter().enumerate() {
            let mut weights = comm.agree(weights(dims[mode]))?;
            entries.coords(mode).iter().for_each(|&i| weights[i as usize] += 1.0);
            comm.sum(&mut weights)?;
            chunks.push(Blocks::balanced(&weights.into_iter().map(|w| w as u64).collect::<Vec<_>>(), parts));
        }
        let (coords, values) = distribute(comm, &grid, &chunks, entries)?;
        // Before the coordinates are those of this rank's rows.
        let mut hash_sum = 0;
        let unique = CooTensor::new(dims.to_vec(), coords, values).and_then(|all| {
            hash_sum = cpu.install(|| all.hash_sum());
            cpu.install(|| all.first_duplicate())?.map_or(Ok(()), |(p, _)| {
                let place: Vec<u32> = (0..order).map(|mode| all.coords(mode)[p]).collect();
                let detail = format!("two entries are both at {place:?}, counted from 0");
                Err(sparsimd::Error::Structure { format: "tensor", detail })
            })?;
            Ok(all.into_parts())
        });
        let (_, coords, values) = comm.agree(unique.map_err(Error::from))?;

        let mut modes = Vec::new();
        let mut renumbered = Vec::new();
        for (mode, coords) in coords.into_iter().enumerate() {
            let mut ranks: Vec<usize> = (0..size).collect();
            ranks.sort_by_key(|&r| (place(&grid, r)[mode], r));
            let blocks = cut_chunks(&chunks[mode], size / grid[mode]);
            let group = Group::of(comm, ranks.clone());
            let own = blocks.range(group.rank());
            let mut ghosts: Vec<u32> = coords.iter().copied().filter(|&i| !own.contains(&(i as usize))).collect();
            ghosts.sort_unstable();
            ghosts.dedup();
            let number = |i: u32| match own.contains(&(i as usize)) {
                true => i - own.start as u32,
                false => (own.len() + ghosts.partition_point(|&ghost| ghost < i)) as u32,
            };
            renumbered.push(coords.into_iter().map(number).collect::<Vec<u32>>());
            let halo = Halo::new(&group, &blocks, &ghosts)?;
            modes.push(Mode { blocks, ranks, own, halo });
        }
        let lens = modes.iter().map(|mode| mode.own.len() + mode.halo.ghosts()).collect();
        let squares: f64 = values.iter().map(|x| x.to_f64() * x.to_f64()).sum();
        let mut sums = [squares, values.len() as f64];
        comm.sum(&mut sums)?;
        let local = comm.agree(CooTensor::new(lens, renumbered, values).map_err(Error::from))?;
        let [norm_squared, nnz] = sums;
        let hash_sum = comm.all_gather(&[hash_sum], &vec![1; size])?.into_iter().fold(0, u64::wrapping_add);
        let checksum = CooTensor::<T>::checksum_of(dims, hash_sum);
        Ok(Self { dims: dims.to_vec(), grid, modes, local, norm_squared, nnz: nnz as usize, checksum })
    }

    /// The length of every mode, of the whole tensor.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Nonzeros of all ranks together.
    pub fn nnz(&self) -> usize {
        self.nnz
    }

    /// [`CooTensor::checksum`] of the whole tensor, which checkpoints have: the same on any number of ranks, and on one machine.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Parts of each mode.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// The rows of each mode's factor that this rank has.
    pub fn rows(&self) -> Vec<Range<usize>> {
        self.modes.iter().map(|mode| mode.own.clone()).collect()
    }

    /// Rows that this rank receives in one iteration: ghosts of every factor, and parts of products of its own rows.
    pub fn rows_received(&self) -> usize {
        self.modes.iter().map(|mode| mode.halo.ghosts() + mode.halo.given()).sum()
    }
}

/// A number for each of `len` rows or indices, which a file may claim any number of.
pub(crate) fn weights(len: usize) -> Result<Vec<f64>> {
    let mut weights = Vec::new();
    // The sum over ranks has another one, and what is made of them a third.
    let [numbers, bytes] = [3, 24].map(|each| len.saturating_mul(each));
    let detail = |_| Error::from(sparsimd::Error::Memory { what: format!("weights of {len} rows"), bytes });
    weights.try_reserve_exact(numbers).map_err(detail)?;
    weights.resize(len, 0.0);
    weights.shrink_to_fit();
    Ok(weights)
}

/// The grid q of `ranks` cells with the least sum over the modes m of dims_m / q_m, which bounds the rows that a rank exchanges.
pub fn grid(dims: &[usize], ranks: usize) -> Vec<usize> {
    let Some((&dim, rest)) = dims.split_first() else { return Vec::new() };
    if rest.is_empty() {
        return vec![ranks];
    }
    let with = |q: usize| [vec![q], grid(rest, ranks / q)].concat();
    let cost = |q: &Vec<usize>| dims.iter().zip(q).map(|(&dim, &q)| dim as f64 / q as f64).sum::<f64>();
    let divisors = (1..=ranks).filter(|&q| ranks.is_multiple_of(q) && (q == 1 || q <= dim));
    divisors.map(with).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or_else(|| with(1))
}

/// The cell of `rank`, the last mode fastest.
pub(crate) fn place(grid: &[usize], rank: usize) -> Vec<usize> {
    let mut rest = rank;
    let mut place = vec![0; grid.len()];
    for (at, &q) in place.iter_mut().zip(grid).rev() {
        (*at, rest) = (rest % q, rest / q);
    }
    place
}

/// Each of `chunks` in `each` parts.
pub(crate) fn cut_chunks(chunks: &Blocks, each: usize) -> Blocks {
    let inner = |k: usize| {
        let range = chunks.range(k);
        let parts = Blocks::even(range.len(), each);
        (0..each).map(move |j| range.start + parts.range(j).start)
    };
    Blocks::ascending((0..chunks.parts()).flat_map(inner).chain([chunks.len()]).collect())
}

/// Coordinates by mode, and values.
type Entries<T> = (Vec<Vec<u32>>, Vec<T>);

/// Hands each entry to the rank of its cell; what came, in the order of ranks.
fn distribute<T: Element>(
    comm: &dyn Comm,
    grid: &[usize],
    chunks: &[Blocks],
    entries: &CooTensor<T>,
) -> Result<Entries<T>> {
    let size = comm.size();
    let cell = |p: usize| {
        let of_mode = |(mode, q): (usize, &usize)| (chunks[mode].owner(entries.coords(mode)[p] as usize), *q);
        grid.iter().enumerate().map(of_mode).fold(0, |rank, (at, q)| rank * q + at)
    };
    let cells: Vec<usize> = (0..entries.nnz()).map(cell).collect();
    let coords = (0..grid.len()).map(|mode| -> Result<Vec<u32>> {
        let mut sent = vec![Vec::new(); size];
        cells.iter().zip(entries.coords(mode)).for_each(|(&to, &i)| sent[to].push(i));
        Ok(comm.all_to_all(&sent)?.concat())
    });
    let coords = coords.collect::<Result<_>>()?;
    let mut sent = vec![Vec::new(); size];
    cells.iter().zip(entries.values()).for_each(|(&to, &x)| sent[to].push(x));
    Ok((coords, comm.all_to_all(&sent)?.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cut_long_modes() {
        assert_eq!(grid(&[100, 100, 100], 8), [2, 2, 2]);
        assert_eq!(grid(&[1000, 10, 10], 8), [8, 1, 1]);
        assert_eq!(grid(&[5, 7], 1), [1, 1]);
        assert_eq!(grid(&[100, 100, 100], 7).iter().product::<usize>(), 7);
        // More ranks than rows: some have none.
        assert_eq!(grid(&[2, 2], 9).iter().product::<usize>(), 9);
    }

    #[test]
    fn cells_and_blocks_belong_to_every_rank() {
        let grid = [2, 3, 2];
        let places: Vec<_> = (0..12).map(|rank| place(&grid, rank)).collect();
        assert_eq!((&places[0], &places[1], &places[11]), (&vec![0, 0, 0], &vec![0, 0, 1], &vec![1, 2, 1]));
        let blocks = cut_chunks(&Blocks::even(10, 3), 2);
        assert_eq!((0..6).map(|k| blocks.range(k).len()).collect::<Vec<_>>(), [2, 2, 2, 1, 2, 1]);
    }
}
