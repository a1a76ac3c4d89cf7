//! HiCOO (Li, Sun and Vuduc 2018): coordinates split into block and 8-bit element indices.
//!
//! ```text
//! blocks of 2^b coordinates in every blocked mode, in Morton order: ptr[block], blocks[mode][block]
//! entries of a block, by their coordinates inside it:               elements[mode][entry] (u8), values[entry]
//! ```
//!
//! Plain HiCOO blocks every mode. gHiCOO leaves chosen modes free, with full coordinates; entries that share a place in
//! the blocked modes are then neighbours, ordered by their free coordinates.

use sparsimd_kernels::Scalar;

use super::coo_tensor::check_modes;
use super::deposit::{Deposit, interleave};
use super::packing::mode_bits;
use super::places::{Places, TASK};
use super::radix::{self, Key};
use super::{CooTensor, Fibers};
use crate::error::{Error, Result};
use crate::parallel;

/// The block size of the PASTA suite, 128: a block's rows of a factor of 32 single-precision columns fill 16 KiB of L1.
pub const DEFAULT_BLOCK_BITS: u32 = 7;

/// The places of entries in some modes of a tensor, as blocks of 2^b coordinates a side in Morton order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPattern {
    block_bits: u32,
    modes: Vec<usize>,
    ptr: Vec<usize>,
    blocks: Vec<Vec<u32>>,
    elements: Vec<Vec<u8>>,
}

impl BlockPattern {
    /// Side of a block as a power of two.
    pub fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// The blocked modes, ascending.
    pub fn modes(&self) -> &[usize] {
        &self.modes
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.ptr.len() - 1
    }

    /// First entry of each block, and the end of the last one.
    pub fn ptr(&self) -> &[usize] {
        &self.ptr
    }

    /// Block index of each block in the `level`-th blocked mode: the block's first coordinate is this times 2^b.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn blocks(&self, level: usize) -> &[u32] {
        &self.blocks[level]
    }

    /// Coordinate inside its block of each entry in the `level`-th blocked mode.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn elements(&self, level: usize) -> &[u8] {
        &self.elements[level]
    }

    /// Full coordinates of all entries in the `level`-th blocked mode.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn expand(&self, level: usize) -> Vec<u32> {
        let (blocks, elements) = (&self.blocks[level], &self.elements[level]);
        let of_block = |b: usize| {
            let base = blocks[b] << self.block_bits;
            elements[self.ptr[b]..self.ptr[b + 1]].iter().map(move |&e| base + u32::from(e))
        };
        let part = |t: usize| (t * TASK..self.num_blocks().min((t + 1) * TASK)).flat_map(of_block).collect::<Vec<_>>();
        parallel::map_tasks(self.num_blocks().div_ceil(TASK), part).concat()
    }

    /// Renames the blocked modes.
    pub(super) fn set_modes(&mut self, modes: Vec<usize>) {
        debug_assert_eq!(modes.len(), self.modes.len());
        self.modes = modes;
    }

    /// Bytes of pointers, block and element indices: 8 per block, 4 per block and mode, 1 per entry and mode.
    pub fn index_bytes(&self) -> usize {
        let (entries, modes) = (self.ptr[self.num_blocks()], self.modes.len());
        size_of::<usize>() * self.ptr.len() + size_of::<u32>() * modes * self.num_blocks() + modes * entries
    }
}

/// Entries in block order.
pub(super) struct Blocked<P> {
    pub pattern: BlockPattern,
    /// Full coordinates in the free modes.
    pub free: Vec<Vec<u32>>,
    /// First entry of each run that shares its place in the blocked modes, and the end of the last one; empty when no mode
    /// is free.
    pub runs: Vec<usize>,
    pub payload: Vec<P>,
}

/// Sorts `places` into blocks of the modes `blocked`; the other modes of `free` stay whole and least significant.
pub(super) fn block<P: Copy + Send + Sync>(
    format: &'static str,
    places: Places<'_>,
    blocked: &[usize],
    free: &[usize],
    block_bits: u32,
    payload: impl Fn(usize) -> P + Sync,
) -> Result<Blocked<P>> {
    if !(1..=8).contains(&block_bits) {
        return Err(Error::argument("block_bits", format!("{block_bits} is not between 1 and 8")));
    }
    match blocked.iter().chain(free).map(|&mode| mode_bits(places.dims[mode])).sum::<u32>() {
        0..=64 => block_by::<u64, P>(format, places, blocked, free, block_bits, payload),
        65..=128 => block_by::<u128, P>(format, places, blocked, free, block_bits, payload),
        bits => Err(Error::structure(format, format!("{:?} need {bits} bits of key; 128 are supported", places.dims))),
    }
}

fn block_by<K: Key, P: Copy + Send + Sync>(
    format: &'static str,
    places: Places<'_>,
    blocked: &[usize],
    free: &[usize],
    block_bits: u32,
    payload: impl Fn(usize) -> P + Sync,
) -> Result<Blocked<P>> {
    // From the lowest bit: free coordinates, coordinates inside the block (both lexicographic), block in Morton order.
    let width = |&mode: &usize| mode_bits(places.dims[mode]);
    let mut shift = 0;
    let mut field = |width: u32| {
        let positions: Vec<u32> = (shift..shift + width).collect();
        shift += width;
        positions
    };
    let mut free_positions: Vec<_> = free.iter().rev().map(|mode| field(width(mode))).collect();
    free_positions.reverse();
    let mut element_positions: Vec<_> = blocked.iter().rev().map(|mode| field(width(mode).min(block_bits))).collect();
    element_positions.reverse();
    let block_widths: Vec<u32> = blocked.iter().map(|mode| width(mode).saturating_sub(block_bits)).collect();
    let (block_positions, bits) = interleave(&block_widths, shift);
    let joined = element_positions.into_iter().zip(&block_positions).map(|(low, high)| [&low[..], high].concat());
    let deposit = Deposit::<K>::new(joined.chain(free_positions).collect());

    let modes: Vec<usize> = blocked.iter().chain(free).copied().collect();
    let mut entries: Vec<(K, P)> =
        parallel::map(places.n, |p| (deposit.key(|c| places.coords[modes[c]][p]), payload(p)));
    radix::sort(&mut entries, bits);
    let repeated = parallel::find_first(places.n.saturating_sub(1), |p| entries[p].0 == entries[p + 1].0);
    if let Some(p) = repeated {
        let mut place = vec![0; places.dims.len()];
        modes.iter().enumerate().for_each(|(c, &mode)| place[mode] = deposit.coordinate(entries[p].0, c));
        return Err(Error::structure(format, format!("two entries are at {place:?}")));
    }

    let first = |p: usize| p == 0 || entries[p - 1].0.above(shift) != entries[p].0.above(shift);
    let mut ptr = parallel::filter(places.n, first);
    let corner = |c: usize| parallel::map(ptr.len(), |b| deposit.coordinate(entries[ptr[b]].0, c) >> block_bits);
    let blocks = (0..blocked.len()).map(corner).collect();
    ptr.push(places.n);
    let free_bits: u32 = free.iter().map(width).sum();
    let runs = match free.len() {
        0 => Vec::new(),
        _ => {
            let new = |p: usize| p == 0 || entries[p - 1].0.above(free_bits) != entries[p].0.above(free_bits);
            let mut runs = parallel::filter(places.n, new);
            runs.push(places.n);
            runs
        }
    };
    // The element coordinate's bits are a contiguous field: no need to go bit by bit.
    let mut at = shift;
    let elements = blocked
        .iter()
        .map(|mode| {
            let bits = width(mode).min(block_bits);
            at -= bits;
            parallel::map(places.n, |p| entries[p].0.field(at, bits) as u8)
        })
        .collect();
    let free = free
        .iter()
        .map(|mode| {
            let bits = width(mode);
            at -= bits;
            parallel::map(places.n, |p| entries[p].0.field(at, bits) as u32)
        })
        .collect();
    let pattern = BlockPattern { block_bits, modes: blocked.to_vec(), ptr, blocks, elements };
    Ok(Blocked { pattern, free, runs, payload: parallel::map(places.n, |p| entries[p].1) })
}

/// A sparse tensor in HiCOO (all modes blocked) or gHiCOO (some modes free).
#[derive(Clone, Debug, PartialEq)]
pub struct HiCoo<T> {
    dims: Vec<usize>,
    pattern: BlockPattern,
    free_modes: Vec<usize>,
    free: Vec<Vec<u32>>,
    runs: Vec<usize>,
    values: Vec<T>,
}

impl<T: Scalar> HiCoo<T> {
    /// `coo` with all modes in blocks of 2^`block_bits` (1 to 8) coordinates.
    ///
    /// # Errors
    /// [`Error::Argument`] for other block sizes; [`Error::Structure`] when two entries have the same place, or when the
    /// coordinates of a place need more than 128 bits together.
    pub fn new(coo: &CooTensor<T>, block_bits: u32) -> Result<Self> {
        Self::with_free_modes(coo, block_bits, &[])
    }

    /// gHiCOO: `coo` with the modes `free_modes` uncompressed and the others in blocks of 2^`block_bits` coordinates.
    ///
    /// # Errors
    /// As [`HiCoo::new`], and [`Error::Argument`] when a free mode is out of range or named twice.
    #[inline(never)]
    pub fn with_free_modes(coo: &CooTensor<T>, block_bits: u32, free_modes: &[usize]) -> Result<Self> {
        check_modes("free_modes", free_modes, coo.order())?;
        let blocked: Vec<usize> = (0..coo.order()).filter(|mode| !free_modes.contains(mode)).collect();
        let mut free_modes = free_modes.to_vec();
        free_modes.sort_unstable();
        coo.ensure("HiCOO", 2 * coo.entry_bytes() + size_of::<usize>())?;
        let sorted = block("HiCOO", coo.places(), &blocked, &free_modes, block_bits, |p| coo.values()[p])?;
        let Blocked { pattern, free, runs, payload: values } = sorted;
        Ok(Self { dims: coo.dims().to_vec(), pattern, free_modes, free, runs, values })
    }

    /// Number of modes.
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// Blocks of the blocked modes.
    pub fn pattern(&self) -> &BlockPattern {
        &self.pattern
    }

    /// The modes that are not blocked, ascending.
    pub fn free_modes(&self) -> &[usize] {
        &self.free_modes
    }

    /// Full coordinate of each entry in the `i`-th free mode.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn free_coords(&self, i: usize) -> &[u32] {
        &self.free[i]
    }

    /// The value of each entry.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of each entry, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Whether `other` has the same entries in the same order.
    pub(crate) fn same_pattern(&self, other: &Self) -> bool {
        self.dims == other.dims && self.pattern == other.pattern && self.free == other.free
    }

    /// The tensor with other `values` at the same places.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is not one value for each entry.
    pub fn with_values(&self, values: Vec<T>) -> Result<Self> {
        if values.len() != self.nnz() {
            return Err(Error::shape("with_values", format!("{} values for {} entries", values.len(), self.nnz())));
        }
        Ok(Self { values, ..self.clone() })
    }

    /// Bytes of all indices: of the blocks, 4 per entry and free mode, 8 per run of entries that only free modes tell apart.
    pub fn index_bytes(&self) -> usize {
        let free = size_of::<u32>() * self.free_modes.len() * self.nnz();
        self.pattern.index_bytes() + free + size_of::<usize>() * self.runs.len()
    }

    /// The fibers of the only free mode.
    ///
    /// # Errors
    /// [`Error::Structure`] when not exactly one mode is free.
    #[inline(never)]
    pub fn fibers(&self) -> Result<Fibers<'_, T>> {
        match (&self.free_modes[..], &self.free[..]) {
            ([mode], [leaf]) => Ok(Fibers { dim: self.dims[*mode], ptr: &self.runs, leaf, values: &self.values }),
            (modes, _) => Err(Error::structure("gHiCOO", format!("modes {modes:?} are free; fibers need exactly one"))),
        }
    }

    /// Blocks of the places in the blocked modes, each place once: the pattern of a product in the free mode.
    ///
    /// # Errors
    /// As [`HiCoo::fibers`].
    pub fn fiber_pattern(&self) -> Result<BlockPattern> {
        self.fibers()?;
        let heads = &self.runs[..self.runs.len() - 1];
        let at_heads = |elements: &Vec<u8>| heads.iter().map(|&p| elements[p]).collect();
        Ok(BlockPattern {
            block_bits: self.pattern.block_bits,
            modes: self.pattern.modes.clone(),
            // A block starts with a run.
            ptr: self.pattern.ptr.iter().map(|&p| self.runs.partition_point(|&run| run < p)).collect(),
            blocks: self.pattern.blocks.clone(),
            elements: self.pattern.elements.iter().map(at_heads).collect(),
        })
    }

    /// The tensor of one mode less that holds `values` on [`HiCoo::fiber_pattern`].
    pub(crate) fn without_free_mode(&self, values: Vec<T>) -> Result<Self> {
        let mode = self.free_modes.first().copied().unwrap_or(0);
        let mut pattern = self.fiber_pattern()?;
        pattern.modes.iter_mut().for_each(|m| *m -= usize::from(*m > mode));
        let mut dims = self.dims.clone();
        dims.remove(mode);
        debug_assert_eq!(values.len(), self.runs.len() - 1);
        Ok(Self { dims, pattern, free_modes: Vec::new(), free: Vec::new(), runs: Vec::new(), values })
    }

    /// The same tensor in coordinate format, entries in block order.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let mut coords = vec![Vec::new(); self.order()];
        for (level, &mode) in self.pattern.modes.iter().enumerate() {
            coords[mode] = self.pattern.expand(level);
        }
        for (&mode, free) in self.free_modes.iter().zip(&self.free) {
            coords[mode] = free.clone();
        }
        CooTensor::from_checked(self.dims.clone(), coords, self.values.clone())
    }
}
