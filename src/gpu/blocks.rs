//! MTTKRP by HiCOO's blocks on the device: Algorithm 3 of the PASTA suite, without atomic additions.
//!
//! A team owns 128 rows of the output, those of the blocks with the same place in the mode, or a part of these blocks and rows of its own, which
//! are added in order afterwards. It reads a block's rows of the factors' stack once, by one load, and for each nonzero four bytes of offsets
//! from them and the value. One copy serves every mode.

use sparsimd_gpu_abi::{BLOCK_SIDE, WHOLE};
use sparsimd_gpu_host::Buffer;

use super::kernels::MTTKRP_BLOCKS;
use super::mttkrp::TaskLaunch;
use super::operands::GpuMat;
use super::sparse::TaskBuffers;
use super::tensor::{GpuFactors, GpuTensor, Unit, bases, sort_items, squares};
use super::{DeviceScalar, Gpu};
use crate::error::{Error, Result};
use crate::formats::{DEFAULT_BLOCK_BITS, HiCoo};
use crate::plan::{DeviceTasks, MttkrpFormat};

/// Modes whose offsets fit a word.
const MODES: usize = 4;
/// Nonzeros of a block at most: larger ones are cut, so that tasks are of similar work.
const LARGEST_BLOCK: usize = 1024;
/// Nonzeros of a part at least. Its rows of its own cost 128 stores and as many additions, and a device that runs on the processor ends
/// loops after some 8000 steps of a lane.
const PART: usize = 2048;

const _: () = assert!(1 << DEFAULT_BLOCK_BITS == BLOCK_SIDE);

/// A tensor by blocks in device memory.
pub(super) struct Blocks<T> {
    /// First nonzero of each block, and the end of the last.
    ptr: Buffer<u32>,
    /// Rows of the stacked factors of each block's first coordinates.
    bases: Buffer<[u32; 4]>,
    /// Coordinates of each nonzero in its block.
    offsets: Buffer<u32>,
    values: Buffer<T>,
    modes: Vec<BlocksOfMode>,
}

/// How one mode is computed.
struct BlocksOfMode {
    /// The blocks, sorted by their place in the mode.
    order: Buffer<u32>,
    tasks: TaskBuffers,
    /// How many partial rows each task's are apart: the parts of its blocks.
    spread: Buffer<u32>,
}

impl<T: DeviceScalar> Blocks<T> {
    /// Words of the places, pointers and lists.
    pub(super) fn index_words(&self) -> usize {
        let lists: usize = self.modes.iter().map(|mode| mode.order.len()).sum();
        self.ptr.len() + 4 * self.bases.len() + self.offsets.len() + lists
    }
}

/// [`BlocksOfMode`] before it is uploaded.
struct HostMode {
    order: Vec<u32>,
    tasks: DeviceTasks,
    spread: Vec<u32>,
}

impl HostMode {
    /// The blocks, of which `ptr` has the nonzeros and `place` the place in a mode of length `dim`.
    fn new(ptr: &[u32], place: &[u32], dim: usize) -> Self {
        let (row_ptr, order) = sort_items(place.len(), dim.div_ceil(BLOCK_SIDE as usize), |b| place[b] as usize);
        let nonzeros = |block: u32| (ptr[block as usize + 1] - ptr[block as usize]) as usize;
        let mut made: Vec<(usize, [u32; 4], u32)> = Vec::new();
        let (mut cut, mut slots) = (Vec::new(), 0);
        for (at, range) in row_ptr.windows(2).enumerate() {
            let row = at * BLOCK_SIDE as usize;
            let first = made.len();
            let mut start = range[0];
            while start < range[1] {
                let (mut end, mut count) = (start, 0);
                while end < range[1] && count < PART {
                    count += nonzeros(order[end]);
                    end += 1;
                }
                made.push((count, [row as u32, start as u32, end as u32, WHOLE], 1));
                start = end;
            }
            let parts = made.len() - first;
            if parts > 1 {
                for (part, (_, task, spread)) in made[first..].iter_mut().enumerate() {
                    (task[3], *spread) = ((slots + part) as u32, parts as u32);
                }
                let rows = row..dim.min(row + BLOCK_SIDE as usize);
                cut.extend(rows.map(|i| [i as u32, (slots + (i - row) * parts) as u32, parts as u32, 0]));
                slots += BLOCK_SIDE as usize * parts;
            }
        }
        // The longest first, as tasks of rows are.
        made.sort_by_key(|&(count, ..)| std::cmp::Reverse(count));
        let spread = made.iter().map(|&(.., spread)| spread).collect();
        let tasks = made.into_iter().map(|(_, task, _)| task).collect();
        Self { order, tasks: DeviceTasks { tasks, cut, slots }, spread }
    }
}

impl Gpu {
    /// The tensor by blocks of 128 coordinates a mode: HiCOO. One copy serves every mode.
    ///
    /// # Errors
    /// [`Error::Structure`] for order 1, [`Error::Unavailable`] for more than four modes, other blocks or free modes, [`Error::Device`] when
    /// the tensor is larger than what a kernel can see or memory runs out.
    #[inline(never)]
    pub fn tensor_of_blocks<T: DeviceScalar>(&self, x: &HiCoo<T>) -> Result<GpuTensor<T>> {
        let (order, pattern) = (x.order(), x.pattern());
        if order < 2 {
            return Err(Error::structure("HiCOO", "MTTKRP needs a tensor of order 2 or more"));
        }
        if order > MODES || pattern.block_bits() != DEFAULT_BLOCK_BITS || !x.free_modes().is_empty() {
            let detail = format!(
                "{order} modes, {} of them free, in blocks of {}; up to {MODES}, none free, in blocks of {BLOCK_SIDE}",
                x.free_modes().len(),
                1 << pattern.block_bits()
            );
            return Err(Error::Unavailable { what: "MTTKRP by blocks", detail });
        }
        let most = self.shape::<T>().max_len;
        if x.nnz().max(4 * pattern.num_blocks()) > most {
            let detail = format!("{}: {} nonzeros in blocks, more than {most}", self.info().name, x.nnz());
            return Err(Error::Device { detail });
        }
        let mut made = GpuTensor::empty(self, x.dims().to_vec(), MttkrpFormat::HiCoo, Unit::Row);
        (made.nnz, made.norm_squared) = (x.nnz(), squares(x.values()));

        let first: Vec<usize> = bases(x.dims()).collect();
        let (mut ptr, mut rows, mut of_piece) = (vec![0], Vec::new(), Vec::new());
        for (block, range) in pattern.ptr().windows(2).enumerate() {
            let base = |mode: usize| match mode < order {
                true => (first[mode] + ((pattern.blocks(mode)[block] as usize) << DEFAULT_BLOCK_BITS)) as u32,
                false => 0,
            };
            for start in (range[0]..range[1]).step_by(LARGEST_BLOCK) {
                ptr.push((start + LARGEST_BLOCK).min(range[1]) as u32);
                rows.push(std::array::from_fn(base));
                of_piece.push(block);
            }
        }
        let word = |p: usize| (0..order).map(|mode| u32::from(pattern.elements(mode)[p]) << (8 * mode)).sum::<u32>();
        let offsets: Vec<u32> = (0..x.nnz()).map(word).collect();
        let modes = (0..order).map(|mode| {
            let place: Vec<u32> = of_piece.iter().map(|&block| pattern.blocks(mode)[block]).collect();
            let host = HostMode::new(&ptr, &place, x.dims()[mode]);
            Ok(BlocksOfMode {
                order: self.array(&host.order)?,
                tasks: TaskBuffers::new(self, &host.tasks)?,
                spread: self.array(&host.spread)?,
            })
        });
        made.blocks = Some(Box::new(Blocks {
            modes: modes.collect::<Result<_>>()?,
            ptr: self.array(&ptr)?,
            bases: self.array(&rows)?,
            offsets: self.array(&offsets)?,
            values: self.array(x.values())?,
        }));
        Ok(made)
    }

    /// [`Gpu::mttkrp`] of checked operands by blocks.
    pub(super) fn mttkrp_by_blocks<T: DeviceScalar>(
        &self,
        blocks: &Blocks<T>,
        factors: &GpuFactors<T>,
        mode: usize,
        out: &mut GpuMat<T>,
    ) -> Result<()> {
        let BlocksOfMode { order, tasks, spread } = &blocks.modes[mode];
        let Blocks { ptr, bases, offsets, values, modes } = blocks;
        let lists = vec![spread.bind(), order.bind(), ptr.bind(), bases.bind(), offsets.bind(), values.bind()];
        let launch = TaskLaunch { kernel: MTTKRP_BLOCKS, tasks, lists, levels: modes.len(), skip: mode, ordered: true };
        // SAFETY: tasks name rows of the output and blocks of the list, blocks and offsets together rows of the stack; the parts of 128
        // rows have as many slots.
        unsafe { self.mttkrp_by_tasks(&[launch], &factors.stack, out) }
    }
}
