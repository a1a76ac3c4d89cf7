//! How a tiled layout is made: one key for each nonzero, a sort, then the tasks in parallel.

use std::ops::Range;

use sparsimd_kernels::Scalar;
use sparsimd_kernels::mttkrp::{Run, TILED_PADDING, Tile};

use super::{Offsets, Tiled, TiledSpec, TiledTask};
use crate::cut;
use crate::error::{Error, Result};
use crate::formats::packing::mode_bits;
use crate::formats::radix::{self, Key};
use crate::formats::{CooTensor, MAX_ORDER};
use crate::memory::reserved;
use crate::parallel;

/// Mean nonzeros of a run below which a tile's runs are sorted by length: with short runs the mispredicted ends cost
/// more (10 % at 10 nonzeros) than the lost order of the output rows; with long ones neither matters.
const SORT_BELOW: usize = 64;

/// Runs that are sorted together: neighbours keep their output rows in L2 (256 KiB at 32 doubles), which matters where the
/// output is larger than that; that the lengths start anew so often does not.
const SORT_WINDOW: usize = 1024;

/// How far a task's number of nonzeros may be from equal before a row is split between two tasks.
pub(super) const IMBALANCE: f64 = 0.02;

/// Where the fields of a sorting key lie, most significant first: task, tile in each input, row, offset in each input.
pub(super) struct Fields {
    /// (shift, bits) of each field.
    fields: Vec<(u32, u32)>,
    pub(super) bits: u32,
}

impl Fields {
    pub(super) fn new(dims: &[usize], spec: &TiledSpec) -> Self {
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

/// Where each task begins: a row, and how many of that row's nonzeros the task before it has; `before` are the nonzeros
/// before each row, and all.
fn task_starts(before: &[usize], tasks: usize) -> Vec<(usize, usize)> {
    let rows = before.len() - 1;
    let nnz = before[rows];
    let slack = ((nnz / tasks) as f64 * IMBALANCE) as usize;
    let mut starts = vec![(0, 0)];
    let mut row = 0;
    for task in 1..tasks {
        let target = cut::share(nnz, task, tasks);
        row = cut::first(row..rows, |i| before[i + 1] > target);
        let inside = target - before[row];
        starts.push(match before.get(row + 1).map(|end| end - before[row]) {
            Some(n) if inside > slack && n - inside > slack => (row, inside),
            Some(n) if inside > n - inside => (row + 1, 0),
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
    pub(super) fn build<K: Key>(coo: &CooTensor<T>, spec: &TiledSpec, fields: &Fields) -> Result<Self> {
        let rows = coo.coords(spec.mode);
        let dim = coo.dims()[spec.mode];
        let mut before = vec![0usize; dim + 1];
        rows.iter().for_each(|&i| before[i as usize + 1] += 1);
        (0..dim).for_each(|i| before[i + 1] += before[i]);
        let starts = task_starts(&before, spec.tasks);
        // The nonzeros of a row that is split go to its tasks by their position.
        let mut rank_in_row = Vec::new();
        if starts.iter().any(|&(_, inside)| inside > 0) {
            let mut seen = vec![0usize; dim];
            let mut rank = |&i: &u32| {
                seen[i as usize] += 1;
                seen[i as usize] - 1
            };
            rank_in_row = rows.iter().map(&mut rank).collect();
        }
        let mut entries: Vec<(K, T)> = parallel::map(coo.nnz(), |p| {
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
        });
        radix::sort(&mut entries, fields.bits);
        if !radix::all_different(&entries) {
            return coo.check_unique().and(Err(Error::structure("tiled layout", "two entries at the same place")));
        }
        let end_of = |task: usize| entries.partition_point(|&(key, _)| fields.get(key, 0) <= task);
        let ends: Vec<usize> = (0..spec.tasks).map(end_of).collect();
        let tasks = parallel::map_tasks(spec.tasks, |t| {
            let first = if t == 0 { 0 } else { ends[t - 1] };
            let end_row = starts.get(t + 1).map_or(dim, |&(row, inside)| row + usize::from(inside > 0));
            TiledTask::build(&entries[first..ends[t]], starts[t].0..end_row.max(starts[t].0), spec, fields)
        });
        Ok(Self { dims: coo.dims().to_vec(), spec: spec.clone(), tasks })
    }
}

impl Offsets {
    /// Gives back the room for more.
    fn shrink(&mut self) {
        match self {
            Self::Short { shared, .. } => shared.shrink_to_fit(),
            Self::Long { shared, .. } => shared.shrink_to_fit(),
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
        // Of chunks there are hardly ever as many as nonzeros; what is left over is given back, and has never been touched.
        let (most_shared, free) =
            (entries.len() * spec.shared + TILED_PADDING, entries.len() * (m - spec.shared) + TILED_PADDING);
        let offsets = if short {
            Offsets::Short { shared: reserved(most_shared), free: reserved(free) }
        } else {
            Offsets::Long { shared: reserved(most_shared), free: reserved(free) }
        };
        let mut task = Self {
            rows,
            tiles: Vec::new(),
            runs: Vec::new(),
            one_run_per_row: false,
            offsets,
            values: reserved(entries.len()),
        };
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
                task.runs.push(Run::new(segment.row, count, segment.log_length));
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
            if spec.shared > 0 {
                task.offsets.push(true, 0);
            }
        }
        task.offsets.shrink();
        task.name_empty_rows();
        task
    }

    /// Where no row has two runs, and most have one: a run of no chunks for each of the others, so that the runs overwrite
    /// the rows of the task's range. Rows that tasks add to are zeroed first, and so pass through memory
    /// twice more (MTTKRP of 400 000 rows, 2 M nonzeros, R = 64 on a Zen 5: 0.82 of the time when overwritten in f32, 0.78 in bf16).
    fn name_empty_rows(&mut self) {
        let mut named = vec![false; self.rows.len()];
        let twice = |run: &Run| std::mem::replace(&mut named[run.row() as usize - self.rows.start], true);
        if 2 * self.runs.len() < self.rows.len() || self.runs.iter().any(twice) {
            return;
        }
        let Some(last) = self.tiles.last_mut() else { return };
        let empty = self.rows.clone().zip(&named).filter(|(_, named)| !**named);
        self.runs.extend(empty.map(|(row, _)| Run::new(row as u32, 0, 0)));
        last.runs.1 = self.runs.len();
        self.one_run_per_row = true;
    }
}

/// The segments of one tile in their final order, and where in the tile each chunk that they name starts (empty for
/// layouts without shared modes, whose segments name nonzeros).
fn segments<K: Key, T: Scalar>(tile: &[(K, T)], spec: &TiledSpec, fields: &Fields) -> (Vec<Segment>, Vec<usize>) {
    let m = spec.inputs.len();
    let row_of = |e: &(K, T)| fields.prefix(e.0, m);
    let mut segments = Vec::new();
    let mut starts = Vec::new();
    let mut at = 0;
    for run in tile.chunk_by(|a, b| row_of(a) == row_of(b)) {
        let row = fields.get(run[0].0, m + 1) as u32;
        if spec.shared == 0 {
            for first in (0..run.len()).step_by(Run::MOST_CHUNKS) {
                let chunks = at + first..at + run.len().min(first + Run::MOST_CHUNKS);
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
                for piece in chunks.chunks(Run::MOST_CHUNKS) {
                    let first = starts.len();
                    starts.extend_from_slice(piece);
                    segments.push(Segment { log_length: log_length as u32, row, chunks: first..starts.len() });
                }
            }
        }
        at += run.len();
    }
    if tile.len() < SORT_BELOW * segments.len() {
        for window in segments.chunks_mut(SORT_WINDOW) {
            longest_first(window);
        }
    }
    (segments, starts)
}

/// Sorts segments by the length of their chunks, then their number, the largest first.
fn longest_first(segments: &mut [Segment]) {
    segments.sort_by_key(|s| std::cmp::Reverse((s.log_length, s.chunks.len())));
}
