//! Tiled rows: the nonzeros of a tensor laid out for the MTTKRP of one mode.
//!
//! ```text
//! task   some rows of the output mode, equally many nonzeros in each task
//!   tile   a box of the input modes, so small that the factor rows it names stay in L2
//!     run    one row of the output: chunks of 1, 2, 4 or 8 nonzeros
//!       chunk  nonzeros that share the coordinates of the `shared` input modes (a piece of a fiber)
//! ```
//!
//! Coordinates are offsets from the tile's corner, 2 bytes each where no tile is longer than 65 536. One such copy per
//! mode is the fastest layout known for MTTKRP here, and the one that takes most memory; the kernel says how it is used.

use std::ops::Range;

use rayon::prelude::*;
use sparsimd_kernels::Scalar;
use sparsimd_kernels::mttkrp::{RunHead, TILED_PADDING, Tile};

use super::coo_tensor::{CooTensor, MAX_ORDER};
use super::packing::mode_bits;
use super::radix::{self, Key};
use crate::error::{Error, Result};

/// Mean nonzeros of a run below which a tile's runs are sorted by length: with short runs the mispredicted ends cost
/// more (10 % at 10 nonzeros) than the lost order of the output rows; with long ones neither matters.
const SORT_BELOW: usize = 64;

/// How far a task's number of nonzeros may be from equal before a row is split between two tasks.
const IMBALANCE: f64 = 0.02;

/// What a [`Tiled`] layout looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledSpec {
    /// The mode of the output.
    pub mode: usize,
    /// The other modes: those that chunks share first, then the free ones.
    pub inputs: Vec<usize>,
    /// How many of `inputs` are shared; at least one must be free.
    pub shared: usize,
    /// Length of a tile in each of `inputs`.
    pub extent: Vec<usize>,
    /// Number of tasks.
    pub tasks: usize,
}

/// Offsets from the tiles' corners.
#[derive(Clone, Debug, PartialEq)]
pub enum Offsets {
    /// Every tile is at most 65 536 long in every mode.
    Short {
        /// For every chunk the shared modes.
        shared: Vec<u16>,
        /// For every nonzero the free modes; padding follows.
        free: Vec<u16>,
    },
    /// Some tile is longer.
    Long {
        /// For every chunk the shared modes.
        shared: Vec<u32>,
        /// For every nonzero the free modes; padding follows.
        free: Vec<u32>,
    },
}

/// The nonzeros of some rows of the output.
#[derive(Clone, Debug)]
pub struct TiledTask<T> {
    rows: Range<usize>,
    tiles: Vec<Tile>,
    runs: Vec<RunHead>,
    offsets: Offsets,
    values: Vec<T>,
}

/// A tensor laid out for the MTTKRP of one mode.
#[derive(Clone, Debug)]
pub struct Tiled<T> {
    dims: Vec<usize>,
    spec: TiledSpec,
    tasks: Vec<TiledTask<T>>,
}

/// Where the fields of a sorting key lie, most significant first: task, tile in each input, row, offset in each input.
struct Fields {
    /// (shift, bits) of each field.
    fields: Vec<(u32, u32)>,
    bits: u32,
}

impl Fields {
    fn new(dims: &[usize], spec: &TiledSpec) -> Self {
        let tile = |(&mode, &extent): (&usize, &usize)| mode_bits(dims[mode].div_ceil(extent));
        let offset = |(&mode, &extent): (&usize, &usize)| mode_bits(extent.min(dims[mode]));
        let inputs = || spec.inputs.iter().zip(&spec.extent);
        let mut widths = vec![mode_bits(spec.tasks)];
        widths.extend(inputs().map(tile));
        widths.push(mode_bits(dims[spec.mode]));
        widths.extend(inputs().map(offset));
        let bits = widths.iter().sum();
        let mut above = bits;
        let fields = widths
            .iter()
            .map(|&width| {
                above -= width;
                // A field of no bits may not be shifted by the whole width.
                (if width == 0 { 0 } else { above }, width)
            })
            .collect();
        Self { fields, bits }
    }

    #[inline]
    fn get<K: Key>(&self, key: K, field: usize) -> usize {
        let (shift, bits) = self.fields[field];
        key.field(shift, bits)
    }

    /// The key without the lowest `n` fields.
    #[inline]
    fn prefix<K: Key>(&self, key: K, n: usize) -> K {
        let below: u32 = self.fields[self.fields.len() - n..].iter().map(|&(_, bits)| bits).sum();
        key.above(below)
    }
}

/// Where each task begins: a row, and how many of that row's nonzeros the task before it has.
fn cut(row_nnz: &[usize], tasks: usize) -> Vec<(usize, usize)> {
    let nnz: usize = row_nnz.iter().sum();
    let slack = ((nnz / tasks) as f64 * IMBALANCE) as usize;
    let mut starts = vec![(0, 0)];
    let (mut row, mut before) = (0, 0);
    for task in 1..tasks {
        let target = (nnz as u128 * task as u128 / tasks as u128) as usize;
        while row < row_nnz.len() && before + row_nnz[row] <= target {
            before += row_nnz[row];
            row += 1;
        }
        let inside = target - before;
        starts.push(match row_nnz.get(row) {
            Some(&n) if inside > slack && n - inside > slack => (row, inside),
            Some(&n) if inside > n - inside => (row + 1, 0),
            _ => (row, 0),
        });
    }
    // Rounding to whole rows keeps the order.
    for t in 1..tasks {
        starts[t] = starts[t].max(starts[t - 1]);
    }
    starts
}

impl<T: Scalar> Tiled<T> {
    /// The tensor `coo` laid out as `spec` says. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`Error::Argument`] when `spec` does not fit the tensor; [`Error::Unavailable`] when a nonzero's place in the
    /// layout does not fit 128 bits; [`Error::Structure`] when two entries are at the same place.
    pub fn from_coo(coo: &CooTensor<T>, spec: &TiledSpec) -> Result<Self> {
        let order = coo.order();
        let mut modes = spec.inputs.clone();
        modes.push(spec.mode);
        modes.sort_unstable();
        let fits = order >= 2
            && modes.iter().copied().eq(0..order)
            && spec.shared < spec.inputs.len()
            && spec.extent.len() == spec.inputs.len()
            && spec.extent.iter().all(|&extent| extent > 0)
            && spec.tasks > 0;
        if !fits {
            return Err(Error::argument("spec", format!("{spec:?} is no layout of a tensor of order {order}")));
        }
        let fields = Fields::new(coo.dims(), spec);
        match fields.bits {
            0..=64 => Self::build::<u64>(coo, spec, &fields),
            65..=128 => Self::build::<u128>(coo, spec, &fields),
            bits => Err(Error::Unavailable {
                what: "the tiled layout",
                detail: format!("a nonzero's place needs {bits} bits, more than 128"),
            }),
        }
    }

    fn build<K: Key>(coo: &CooTensor<T>, spec: &TiledSpec, fields: &Fields) -> Result<Self> {
        let rows = coo.coords(spec.mode);
        let mut row_nnz = vec![0usize; coo.dims()[spec.mode]];
        rows.iter().for_each(|&i| row_nnz[i as usize] += 1);
        let starts = cut(&row_nnz, spec.tasks);
        // The nonzeros of a row that is split go to its tasks by their position.
        let mut rank_in_row = Vec::new();
        if starts.iter().any(|&(_, inside)| inside > 0) {
            let mut seen = vec![0usize; row_nnz.len()];
            let mut rank = |&i: &u32| {
                seen[i as usize] += 1;
                seen[i as usize] - 1
            };
            rank_in_row = rows.iter().map(&mut rank).collect();
        }
        let mut entries: Vec<(K, T)> = (0..coo.nnz())
            .into_par_iter()
            .map(|p| {
                let place = (rows[p] as usize, rank_in_row.get(p).copied().unwrap_or(0));
                let task = starts.partition_point(|&start| start <= place) - 1;
                let m = spec.inputs.len();
                let mut key = K::ZERO.with_field(task as u32, fields.fields[0].0);
                key = key.with_field(rows[p], fields.fields[m + 1].0);
                for (n, (&mode, &extent)) in spec.inputs.iter().zip(&spec.extent).enumerate() {
                    let i = coo.coords(mode)[p] as usize;
                    key = key.with_field((i / extent) as u32, fields.fields[n + 1].0);
                    key = key.with_field((i % extent) as u32, fields.fields[n + m + 2].0);
                }
                (key, coo.values()[p])
            })
            .collect();
        radix::sort(&mut entries, fields.bits);
        if entries.par_windows(2).any(|w| w[0].0 == w[1].0) {
            return coo.check_unique().and(Err(Error::structure("tiled layout", "two entries at the same place")));
        }
        let end_of = |task: usize| entries.partition_point(|&(key, _)| fields.get(key, 0) <= task);
        let ends: Vec<usize> = (0..spec.tasks).map(end_of).collect();
        let tasks = (0..spec.tasks)
            .into_par_iter()
            .map(|t| {
                let first = if t == 0 { 0 } else { ends[t - 1] };
                let end_row = starts.get(t + 1).map_or(row_nnz.len(), |&(row, inside)| row + usize::from(inside > 0));
                TiledTask::build(&entries[first..ends[t]], starts[t].0..end_row.max(starts[t].0), spec, fields)
            })
            .collect();
        Ok(Self { dims: coo.dims().to_vec(), spec: spec.clone(), tasks })
    }

    /// What it looks like.
    pub fn spec(&self) -> &TiledSpec {
        &self.spec
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The tasks, by ascending rows; neighbours may have one row in common.
    pub fn tasks(&self) -> &[TiledTask<T>] {
        &self.tasks
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.tasks.iter().map(|task| task.values.len()).sum()
    }

    /// Bytes of tiles, runs and offsets.
    pub fn index_bytes(&self) -> usize {
        self.tasks.iter().map(TiledTask::index_bytes).sum()
    }

    /// The same tensor as coordinates, in the order of the layout.
    pub fn to_coo(&self) -> CooTensor<T> {
        let mut coords = vec![Vec::with_capacity(self.nnz()); self.dims.len()];
        let mut values = Vec::with_capacity(self.nnz());
        let (shared, inputs) = (self.spec.shared, self.spec.inputs.len());
        for task in &self.tasks {
            for tile in &task.tiles {
                let (mut chunk, mut entry) = (tile.chunk, tile.entry);
                for run in &task.runs[tile.runs.0..tile.runs.1] {
                    let length = 1usize << (run.chunks >> 30);
                    for _ in 0..run.chunks & (u32::MAX >> 2) {
                        for _ in 0..length {
                            coords[self.spec.mode].push(run.row);
                            for (n, &mode) in self.spec.inputs.iter().enumerate() {
                                let offset = match n < shared {
                                    true => task.offsets.get(true, chunk * shared + n),
                                    false => task.offsets.get(false, entry * (inputs - shared) + n - shared),
                                };
                                coords[mode].push(tile.corner[n] + offset);
                            }
                            values.push(task.values[entry]);
                            entry += 1;
                        }
                        chunk += 1;
                    }
                }
            }
        }
        CooTensor::new(self.dims.clone(), coords, values).expect("a layout holds a tensor's coordinates")
    }
}

impl Offsets {
    /// The number at `place` of the shared or the free offsets.
    fn get(&self, of_shared: bool, place: usize) -> u32 {
        match self {
            Self::Short { shared, free } => u32::from(if of_shared { shared[place] } else { free[place] }),
            Self::Long { shared, free } => {
                if of_shared {
                    shared[place]
                } else {
                    free[place]
                }
            }
        }
    }

    fn push(&mut self, to_shared: bool, offset: usize) {
        match self {
            Self::Short { shared, free } => if to_shared { shared } else { free }.push(offset as u16),
            Self::Long { shared, free } => if to_shared { shared } else { free }.push(offset as u32),
        }
    }
}

/// Chunks of one length in one row.
struct Segment {
    log_length: u32,
    row: u32,
    /// Its chunks in the list of the tile's chunks; for layouts without shared modes, its nonzeros.
    chunks: Range<usize>,
}

impl<T: Scalar> TiledTask<T> {
    fn build<K: Key>(entries: &[(K, T)], rows: Range<usize>, spec: &TiledSpec, fields: &Fields) -> Self {
        let m = spec.inputs.len();
        let short = spec.extent.iter().all(|&extent| extent <= 1 << 16);
        let offsets = if short {
            Offsets::Short { shared: Vec::new(), free: Vec::with_capacity(entries.len() * (m - spec.shared)) }
        } else {
            Offsets::Long { shared: Vec::new(), free: Vec::with_capacity(entries.len() * (m - spec.shared)) }
        };
        let mut task =
            Self { rows, tiles: Vec::new(), runs: Vec::new(), offsets, values: Vec::with_capacity(entries.len()) };
        let mut chunk = 0;
        // Fields below the tile's: the row and one offset per input.
        let tile_of = |e: &(K, T)| fields.prefix(e.0, m + 1);
        for tile in entries.chunk_by(|a, b| tile_of(a) == tile_of(b)) {
            let mut corner = [0; MAX_ORDER];
            for (n, (corner, &extent)) in corner.iter_mut().zip(&spec.extent).enumerate() {
                *corner = (fields.get(tile[0].0, n + 1) * extent) as u32;
            }
            let (segments, starts) = segments(tile, spec, fields);
            let first_run = task.runs.len();
            task.tiles.push(Tile { corner, runs: (first_run, 0), chunk, entry: task.values.len() });
            for segment in segments {
                let length = 1usize << segment.log_length;
                let count = segment.chunks.len();
                task.runs.push(RunHead { row: segment.row, chunks: count as u32 | segment.log_length << 30 });
                for c in segment.chunks {
                    let start = starts.get(c).copied().unwrap_or(c);
                    for n in 0..spec.shared {
                        task.offsets.push(true, fields.get(tile[start].0, m + 2 + n));
                    }
                    for (key, value) in &tile[start..start + length] {
                        for n in spec.shared..m {
                            task.offsets.push(false, fields.get(*key, m + 2 + n));
                        }
                        task.values.push(*value);
                    }
                }
                chunk += count;
            }
            task.tiles.last_mut().expect("pushed above").runs.1 = task.runs.len();
        }
        for _ in 0..TILED_PADDING {
            task.offsets.push(false, 0);
        }
        task
    }

    /// The rows of the output that the task covers; those without nonzeros included.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The tiles.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// The runs of all tiles.
    pub fn runs(&self) -> &[RunHead] {
        &self.runs
    }

    /// Offsets of all chunks and nonzeros.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// The values.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    fn index_bytes(&self) -> usize {
        let offsets = match &self.offsets {
            Offsets::Short { shared, free } => (shared.len() + free.len()) * size_of::<u16>(),
            Offsets::Long { shared, free } => (shared.len() + free.len()) * size_of::<u32>(),
        };
        self.tiles.len() * size_of::<Tile>() + self.runs.len() * size_of::<RunHead>() + offsets
    }
}

/// The segments of one tile in their final order, and where in the tile each chunk that they name starts (empty for
/// layouts without shared modes, whose segments name nonzeros).
fn segments<K: Key, T: Scalar>(tile: &[(K, T)], spec: &TiledSpec, fields: &Fields) -> (Vec<Segment>, Vec<usize>) {
    // A run head counts up to 2^30 - 1 chunks.
    const MOST: usize = (1 << 30) - 1;
    let m = spec.inputs.len();
    let row_of = |e: &(K, T)| fields.prefix(e.0, m);
    let mut segments = Vec::new();
    let mut starts = Vec::new();
    let mut at = 0;
    for run in tile.chunk_by(|a, b| row_of(a) == row_of(b)) {
        let row = fields.get(run[0].0, m + 1) as u32;
        if spec.shared == 0 {
            for first in (0..run.len()).step_by(MOST) {
                let chunks = at + first..at + run.len().min(first + MOST);
                segments.push(Segment { log_length: 0, row, chunks });
            }
        } else {
            let mut by_length: [Vec<usize>; 4] = Default::default();
            let fiber_of = |e: &(K, T)| fields.prefix(e.0, m - spec.shared);
            let mut start = at;
            for fiber in run.chunk_by(|a, b| fiber_of(a) == fiber_of(b)) {
                let end = start + fiber.len();
                while start < end {
                    let log_length = (end - start).ilog2().min(3);
                    by_length[log_length as usize].push(start);
                    start += 1 << log_length;
                }
            }
            for (log_length, chunks) in by_length.iter().enumerate().rev() {
                for piece in chunks.chunks(MOST) {
                    let first = starts.len();
                    starts.extend_from_slice(piece);
                    segments.push(Segment { log_length: log_length as u32, row, chunks: first..starts.len() });
                }
            }
        }
        at += run.len();
    }
    if tile.len() < SORT_BELOW * segments.len() {
        segments.sort_by_key(|s| std::cmp::Reverse((s.log_length, s.chunks.len())));
    }
    (segments, starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(dims: &[usize], nnz: usize) -> CooTensor<f64> {
        let mut state = 1u64;
        let mut next = |dim: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) % dim as u64) as u32
        };
        let coords = (0..nnz).map(|_| dims.iter().map(|&d| next(d)).collect::<Vec<_>>()).collect::<Vec<_>>();
        let columns = (0..dims.len()).map(|m| coords.iter().map(|c| c[m]).collect()).collect();
        let mut coo = CooTensor::new(dims.to_vec(), columns, (0..nnz).map(|p| p as f64 + 1.0).collect()).unwrap();
        coo.sum_duplicates();
        coo
    }

    #[test]
    fn to_coo_gives_the_same_tensor_for_every_spec() {
        for (dims, nnz) in [(vec![9, 20, 30], 3000), (vec![4, 5], 12), (vec![7, 8, 9, 10], 4000), (vec![3; 8], 5000)] {
            let coo = hashed(&dims, nnz);
            for mode in 0..dims.len() {
                let inputs: Vec<usize> = (0..dims.len()).filter(|&m| m != mode).rev().collect();
                for shared in 0..inputs.len() {
                    for (extent, tasks) in [(3, 1), (7, 3), (100_000, 2)] {
                        let extent = vec![extent; inputs.len()];
                        let spec = TiledSpec { mode, inputs: inputs.clone(), shared, extent, tasks };
                        let tiled = Tiled::from_coo(&coo, &spec).unwrap();
                        let mut back = tiled.to_coo();
                        back.sort(&(0..dims.len()).collect::<Vec<_>>()).unwrap();
                        assert_eq!(back, coo, "{spec:?}");
                        let most = tiled.tasks().iter().map(|t| t.values().len()).max().unwrap();
                        let even = coo.nnz().div_ceil(tasks) as f64;
                        assert!(most as f64 <= even * (1.0 + 2.0 * IMBALANCE) + 2.0, "{most} of {even}: {spec:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn chunks_follow_the_fibers() {
        // Row 0: fibers of 13 and 1; row 1: one fiber of 2.
        let mut coords = vec![vec![0; 14], vec![2; 13], (0..13).collect::<Vec<u32>>()];
        coords[0].extend([1, 1]);
        coords[1].extend([0, 3, 3]);
        coords[2].extend([5, 1, 2]);
        let coo = CooTensor::new(vec![2, 4, 13], coords, vec![1.0f32; 16]).unwrap();
        let spec = TiledSpec { mode: 0, inputs: vec![1, 2], shared: 1, extent: vec![4, 13], tasks: 1 };
        let tiled = Tiled::from_coo(&coo, &spec).unwrap();
        let heads: Vec<_> =
            tiled.tasks()[0].runs().iter().map(|r| (r.row, r.chunks & 0xffff, 1 << (r.chunks >> 30))).collect();
        assert_eq!(heads, [(0, 1, 8), (0, 1, 4), (1, 1, 2), (0, 2, 1)]);
        let Offsets::Short { shared, .. } = tiled.tasks()[0].offsets() else { panic!("short tiles") };
        assert_eq!(shared, &[2, 2, 3, 0, 2]);
    }

    #[test]
    fn a_heavy_row_is_split_between_tasks() {
        let coo = CooTensor::new(vec![3, 100], vec![vec![1; 100], (0..100).collect()], vec![1.0f64; 100]).unwrap();
        let spec = TiledSpec { mode: 0, inputs: vec![1], shared: 0, extent: vec![100], tasks: 4 };
        let tiled = Tiled::from_coo(&coo, &spec).unwrap();
        assert!(tiled.tasks().iter().all(|t| t.values().len() == 25));
        let rows: Vec<_> = tiled.tasks().iter().map(TiledTask::rows).collect();
        assert_eq!(rows, [0..2, 1..2, 1..2, 1..3]);
    }

    #[test]
    fn refuses_what_is_no_layout() {
        let coo = hashed(&[5, 6, 7], 30);
        let good = TiledSpec { mode: 0, inputs: vec![1, 2], shared: 1, extent: vec![6, 7], tasks: 2 };
        assert!(Tiled::from_coo(&coo, &good).is_ok());
        for bad in [
            TiledSpec { mode: 1, ..good.clone() },
            TiledSpec { shared: 2, ..good.clone() },
            TiledSpec { extent: vec![6], ..good.clone() },
            TiledSpec { extent: vec![6, 0], ..good.clone() },
            TiledSpec { tasks: 0, ..good.clone() },
        ] {
            assert!(Tiled::from_coo(&coo, &bad).is_err(), "{bad:?}");
        }
        let wide = CooTensor::new(vec![u32::MAX as usize; 8], vec![vec![7]; 8], vec![1.0f32]).unwrap();
        let spec = TiledSpec { mode: 0, inputs: (1..8).collect(), shared: 0, extent: vec![1 << 16; 7], tasks: 1 };
        assert!(matches!(Tiled::from_coo(&wide, &spec), Err(Error::Unavailable { .. })));
        let twice = CooTensor::new(vec![2, 2], vec![vec![1, 1], vec![0, 0]], vec![1.0f32, 2.0]).unwrap();
        let spec = TiledSpec { mode: 0, inputs: vec![1], shared: 0, extent: vec![2], tasks: 1 };
        assert!(matches!(Tiled::from_coo(&twice, &spec), Err(Error::Structure { .. })));
    }
}
