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

mod build;

use std::ops::Range;

use sparsimd_kernels::Scalar;
use sparsimd_kernels::mttkrp::{Run, Tile};

use self::build::Fields;
use super::coo_tensor::CooTensor;
use crate::error::{Error, Result};

/// Most tasks of a layout: far more than any machine has threads, few enough that empty ones cost little.
const MOST_TASKS: usize = 1 << 16;

/// What a [`Tiled`] layout looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledSpec {
    /// The mode of the output.
    pub(crate) mode: usize,
    /// The other modes: those that chunks share first, then the free ones.
    pub(crate) inputs: Vec<usize>,
    /// How many of `inputs` are shared; at least one must be free.
    pub(crate) shared: usize,
    /// Length of a tile in each of `inputs`.
    pub(crate) extent: Vec<usize>,
    /// Number of tasks.
    pub(crate) tasks: usize,
}

impl TiledSpec {
    /// Tasks by the rows of `mode`; tiles of length `extent[n]` in mode `inputs[n]`, all other modes; chunks of
    /// nonzeros share the coordinates of the first `shared` of `inputs`. [`Tiled::from_coo`] checks it.
    pub fn new(mode: usize, inputs: Vec<usize>, shared: usize, extent: Vec<usize>, tasks: usize) -> Self {
        Self { mode, inputs, shared, extent, tasks }
    }
}

/// Offsets from the tiles' corners.
#[derive(Clone, Debug, PartialEq)]
pub enum Offsets {
    /// Every tile is at most 65 536 long in every mode.
    Short {
        /// For every chunk the shared modes; padding follows, if there are any.
        shared: Vec<u16>,
        /// For every nonzero the free modes; padding follows.
        free: Vec<u16>,
    },
    /// Some tile is longer.
    Long {
        /// For every chunk the shared modes; padding follows, if there are any.
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
    runs: Vec<Run>,
    one_run_per_row: bool,
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
impl<T: Scalar> Tiled<T> {
    /// The tensor `coo` laid out as `spec` says. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`Error::Argument`] when `spec` does not fit the tensor; [`Error::Unavailable`] when a nonzero's place in the
    /// layout does not fit 128 bits; [`Error::Structure`] when two entries are at the same place.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, spec: &TiledSpec) -> Result<Self> {
        coo.ensure("tiled layout", 2 * coo.entry_bytes())?;
        let order = coo.order();
        let mut modes = spec.inputs.clone();
        modes.push(spec.mode);
        modes.sort_unstable();
        let fits = order >= 2
            && modes.iter().copied().eq(0..order)
            && spec.shared < spec.inputs.len()
            && spec.extent.len() == spec.inputs.len()
            && spec.extent.iter().all(|&extent| extent > 0)
            && (1..=MOST_TASKS).contains(&spec.tasks);
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
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let mut coords = vec![Vec::with_capacity(self.nnz()); self.dims.len()];
        let mut values = Vec::with_capacity(self.nnz());
        let (shared, inputs) = (self.spec.shared, self.spec.inputs.len());
        for task in &self.tasks {
            for tile in &task.tiles {
                let (mut chunk, mut entry) = (tile.chunk, tile.entry);
                for run in &task.runs[tile.runs.0..tile.runs.1] {
                    for _ in 0..run.chunks() {
                        for _ in 0..1usize << run.log_length() {
                            coords[self.spec.mode].push(run.row());
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
}

impl<T: Scalar> TiledTask<T> {
    /// The rows of the output that the task covers; those without nonzeros included.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The tiles.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// The runs of all tiles.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether every row of the range has one run, those without nonzeros included.
    pub fn one_run_per_row(&self) -> bool {
        self.one_run_per_row
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
        self.tiles.len() * size_of::<Tile>() + self.runs.len() * size_of::<Run>() + offsets
    }
}
#[cfg(test)]
mod tests {
    use sparsimd_kernels::mttkrp::TILED_PADDING;

    use super::build::IMBALANCE;
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
        coo.sum_duplicates().unwrap();
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
            tiled.tasks()[0].runs().iter().map(|r| (r.row(), r.chunks(), 1 << r.log_length())).collect();
        assert_eq!(heads, [(0, 1, 8), (0, 1, 4), (1, 1, 2), (0, 2, 1)]);
        let Offsets::Short { shared, .. } = tiled.tasks()[0].offsets() else { panic!("short tiles") };
        let (chunks, padding) = shared.split_at(5);
        assert_eq!((chunks, padding), (&[2, 2, 3, 0, 2][..], &[0; TILED_PADDING][..]));
    }

    #[test]
    fn rows_without_nonzeros_have_empty_runs_where_no_row_has_two() {
        let layout = |rows: Vec<u32>, columns: Vec<u32>, extent: usize| {
            let ones = vec![1.0f64; rows.len()];
            let coo = CooTensor::new(vec![6, 8], vec![rows, columns], ones).unwrap();
            let spec = TiledSpec { mode: 0, inputs: vec![1], shared: 0, extent: vec![extent], tasks: 1 };
            let tiled = Tiled::from_coo(&coo, &spec).unwrap();
            assert_eq!(tiled.to_coo().nnz(), coo.nnz());
            let task = &tiled.tasks()[0];
            (task.one_run_per_row(), task.runs().iter().map(|run| (run.row(), run.chunks())).collect::<Vec<_>>())
        };
        let (one, runs) = layout(vec![1, 1, 3, 5], vec![0, 7, 2, 2], 8);
        assert_eq!((one, runs), (true, vec![(1, 2), (3, 1), (5, 1), (0, 0), (2, 0), (4, 0)]));
        // A row in two tiles, and fewer than half of the rows.
        assert!(!layout(vec![1, 1, 3, 5], vec![0, 7, 2, 2], 4).0);
        assert_eq!(layout(vec![1, 3], vec![0, 1], 8), (false, vec![(1, 1), (3, 1)]));
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
