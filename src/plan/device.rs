//! How rows are laid over the teams of a Vulkan device.
//!
//! A team of lanes works on one task: a row, or a part of a long one. Tasks are ordered by length, longest first, so that
//! the teams of one subgroup and the subgroups of one wave have equal work (Gale et al. 2020 call it row swizzle), and
//! parts of a row write partial results that are added in the order of the parts: results do not depend on timing.

use sparsimd_gpu_abi::{MAX_REGISTERS, MIN_TEAM, WHOLE};

use super::{MttkrpFormat, threads_per_row};

/// What a plan needs to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShape {
    /// Lanes of a subgroup.
    pub subgroup: usize,
    /// Subgroups that the device runs at a time: the hardware work-items T of the occupancy formula.
    pub resident: usize,
    /// Elements of one array that a kernel can see.
    pub max_len: usize,
}

impl DeviceShape {
    /// T of the ESIMD paper's GPU, one stack of an Intel Max 1550: what stands in for a device that does not tell.
    pub const DEFAULT_RESIDENT: usize = 4096;
}

/// The register block of an operation on rows of so many blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    /// Lanes that share a row: a power of two.
    pub lanes: u32,
    /// Blocks of four elements that each lane owns: 1, 2 or 4.
    pub registers: u32,
}

impl Team {
    /// The team for rows of `blocks` blocks: as many lanes as blocks, within 4 and the subgroup, then as many registers as it
    /// takes, up to 4. Short rows so share a subgroup (N = 32: 8 lanes a row), long ones fill it (N = 128: 32 lanes).
    pub fn choose(blocks: usize, shape: DeviceShape) -> Self {
        let least = MIN_TEAM as usize;
        let lanes = blocks.next_power_of_two().clamp(least, shape.subgroup.max(least));
        let registers = blocks.div_ceil(lanes).next_power_of_two().clamp(1, MAX_REGISTERS as usize);
        Self { lanes: lanes as u32, registers: registers as u32 }
    }

    /// The team where dot products over the lanes are reduced for each nonzero: half of a subgroup where that holds the row, of two
    /// blocks a lane. Measured on an H100: SDDMM at N = 128 takes 220 us instead of 311 (4096 x 4096, 70 % zeros), 76 instead of 86 on
    /// a graph of 9 nonzeros a row.
    pub fn of_dots(blocks: usize, shape: DeviceShape) -> Self {
        let half = DeviceShape { subgroup: shape.subgroup / 2, ..shape };
        Self::choose(blocks, if blocks <= shape.subgroup { half } else { shape })
    }

    /// The team of FusedMM. It hands each dot product back to all lanes, which costs short rows more than half a team's reduction saves
    /// (measured on an H100: 17 % faster at 70 % zeros, 20 % slower on graphs of 8 nonzeros a row).
    pub fn of_fused(blocks: usize, row_length: usize, shape: DeviceShape) -> Self {
        if row_length < Self::LONG_ROW { Self::choose(blocks, shape) } else { Self::of_dots(blocks, shape) }
    }

    /// Nonzeros of a long row.
    const LONG_ROW: usize = 64;

    /// Blocks of a row that the team holds at once.
    pub fn blocks(self) -> usize {
        (self.lanes * self.registers) as usize
    }
}

/// Rows whose nonzeros one kernel can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChunk {
    /// The rows.
    pub rows: std::ops::Range<usize>,
    /// Their nonzeros.
    pub nonzeros: std::ops::Range<usize>,
}

impl RowChunk {
    /// Cuts the rows into chunks of at most so many rows and nonzeros. The error is a row that alone has more.
    pub fn split(row_ptr: &[usize], max_rows: usize, max_nonzeros: usize) -> Result<Vec<Self>, usize> {
        let rows = row_ptr.len() - 1;
        let mut chunks = Vec::new();
        let mut first = 0;
        while first < rows {
            let end = row_ptr.partition_point(|&p| p <= row_ptr[first].saturating_add(max_nonzeros)) - 1;
            // Empty rows at the end belong to the chunk before them, up to the limit.
            let end = end.min(rows).min(first + max_rows.max(1));
            if end == first {
                return Err(first);
            }
            chunks.push(Self { rows: first..end, nonzeros: row_ptr[first]..row_ptr[end] });
            first = end;
        }
        Ok(chunks)
    }
}

/// The tasks of one chunk, as the kernels read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTasks {
    /// (row, first nonzero, end, slot): nonzeros relative to the chunk; the slot of the partial result, or `WHOLE` for a
    /// whole row. Longest first.
    pub tasks: Vec<[u32; 4]>,
    /// (row, first slot, slots, 0) of each row that was cut.
    pub cut: Vec<[u32; 4]>,
    /// Number of slots.
    pub slots: usize,
}

impl DeviceTasks {
    /// Nonzeros of a part at least, when a row is cut for occupancy: below, adding the parts costs more than it gains.
    const MIN_PART: usize = 32;
    /// A row is cut when it is so many times longer than the average,
    const LONG: usize = 4;
    /// but not below this length: the longest task is the least time of a run (measured on an H100: a graph with rows of up to 1045
    /// nonzeros takes 24 us instead of the 44 of 256, another 27 instead of 43; with 32 some are slower again).
    const MIN_LONG: usize = 64;

    /// Threads that share a row on a device of `shape`, for teams of so many lanes: NT of the occupancy formula, T being the resident
    /// subgroups times half of the teams that share one, where those are four or more.
    pub fn parts(rows: usize, lanes: u32, shape: DeviceShape) -> usize {
        threads_per_row(rows, shape.resident * (shape.subgroup / lanes as usize / 2).max(1))
    }

    /// The tasks of `chunk` of a matrix of `row_ptr` when so many threads share a row.
    pub fn choose(row_ptr: &[usize], chunk: &RowChunk, parts: usize) -> Self {
        let rows = row_ptr.len() - 1;
        let nnz = row_ptr[rows];
        let long = (Self::LONG * nnz.div_ceil(rows.max(1))).max(Self::MIN_LONG);
        Self::cut(row_ptr, chunk, |len| {
            let part = if parts > 1 { len.div_ceil(parts).max(Self::MIN_PART) } else { len };
            part.min(long)
        })
    }

    /// What will be done, in one line.
    pub fn explain(&self) -> String {
        let (tasks, cut, slots) = (self.tasks.len(), self.cut.len(), self.slots);
        format!("direct: {tasks} tasks, longest first; {cut} rows cut, with {slots} partial results")
    }

    /// One task for each row.
    pub fn whole(row_ptr: &[usize], chunk: &RowChunk) -> Self {
        Self::cut(row_ptr, chunk, |len| len)
    }

    /// The tasks of rows of items that are reached through a list, such as the fibers that share an output row: rows without
    /// items have no task, and rows longer than `most` items are cut.
    pub fn of_items(row_ptr: &[usize], most: usize) -> Self {
        let rows = row_ptr.len() - 1;
        let mut made = Self::cut(row_ptr, &RowChunk { rows: 0..rows, nonzeros: 0..row_ptr[rows] }, |_| most);
        made.tasks.retain(|[_, start, end, _]| start < end);
        made
    }

    fn cut(row_ptr: &[usize], chunk: &RowChunk, part: impl Fn(usize) -> usize) -> Self {
        let mut made = Self { tasks: Vec::with_capacity(chunk.rows.len()), cut: Vec::new(), slots: 0 };
        for i in chunk.rows.clone() {
            let (start, end) = (row_ptr[i] - chunk.nonzeros.start, row_ptr[i + 1] - chunk.nonzeros.start);
            let part = part(end - start).max(1);
            let count = (end - start).div_ceil(part);
            if count <= 1 {
                made.tasks.push([i as u32, start as u32, end as u32, WHOLE]);
                continue;
            }
            made.cut.push([i as u32, made.slots as u32, count as u32, 0]);
            for p in (start..end).step_by(part) {
                made.tasks.push([i as u32, p as u32, (p + part).min(end) as u32, made.slots as u32]);
                made.slots += 1;
            }
        }
        made.tasks.sort_by_key(|&[_, start, end, _]| std::cmp::Reverse(end - start));
        made
    }
}

/// How a device should store a tensor of so many nonzeros for MTTKRP, of which a kernel sees `max_len` elements of an array and
/// `memory` bytes are left.
///
/// CSF-ALL, whose slice algorithm reads every factor row once for a fiber and writes every output row once, as long as its copies
/// leave half of the memory to the factors; else one tree for all modes; coordinates where a tree would be larger than
/// what a kernel sees, as only they can be cut.
pub fn device_mttkrp_format(order: usize, nnz: usize, value_bytes: usize, max_len: usize, memory: u64) -> MttkrpFormat {
    // The table of a tree has a coordinate for each level above the leaves, and no more fibers than nonzeros.
    if nnz.saturating_mul(order.saturating_sub(1).max(1)) > max_len {
        return MttkrpFormat::Coo;
    }
    // Of each nonzero: value, leaf, and at most one fiber with its pointer and row of the table.
    let copy = nnz as u64 * (value_bytes + 4 * (order + 1)) as u64;
    if copy.saturating_mul(order as u64) <= memory / 2 { MttkrpFormat::CsfAll } else { MttkrpFormat::CsfOne }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_follow_range_and_memory() {
        let choose = |nnz, memory| device_mttkrp_format(3, nnz, 4, 1 << 20, memory);
        // 20 bytes a nonzero in each of three copies.
        assert_eq!(choose(1000, 120_000), MttkrpFormat::CsfAll);
        assert_eq!(choose(1000, 119_999), MttkrpFormat::CsfOne);
        assert_eq!(choose(1 << 19, u64::MAX), MttkrpFormat::CsfAll);
        assert_eq!(choose((1 << 19) + 1, u64::MAX), MttkrpFormat::Coo);
        assert_eq!(device_mttkrp_format(0, 0, 4, 0, 0), MttkrpFormat::CsfAll);
    }

    const PAPER: DeviceShape = DeviceShape { subgroup: 32, resident: 4096, max_len: 1 << 25 };

    #[test]
    fn teams_of_the_usual_widths() {
        let team = |n: usize, s: usize| {
            let t = Team::choose(n.div_ceil(4), DeviceShape { subgroup: s, ..PAPER });
            (t.lanes, t.registers)
        };
        assert_eq!(team(128, 32), (32, 1));
        assert_eq!(team(32, 32), (8, 1));
        assert_eq!(team(1, 32), (4, 1));
        assert_eq!(team(128, 8), (8, 4));
        assert_eq!(team(129, 32), (32, 2));
        assert_eq!(team(4096, 32), (32, 4));
        assert_eq!(team(0, 4), (4, 1));
        let dots = |n: usize, s: usize| {
            let t = Team::of_dots(n.div_ceil(4), DeviceShape { subgroup: s, ..PAPER });
            (t.lanes, t.registers)
        };
        assert_eq!([dots(128, 32), dots(64, 32), dots(256, 32), dots(4, 4)], [(16, 2), (16, 1), (32, 2), (4, 1)]);
        assert_eq!(Team::of_fused(32, 63, PAPER).lanes, 32);
        assert_eq!(Team::of_fused(32, 64, PAPER).lanes, 16);
    }

    #[test]
    fn chunks_cover_the_rows_once() {
        let row_ptr = [0, 3, 3, 7, 12, 12, 13];
        let chunks = RowChunk::split(&row_ptr, 5, 5).unwrap();
        assert_eq!(chunks.first().unwrap().rows.start, 0);
        assert_eq!(chunks.last().unwrap().rows.end, 6);
        for pair in chunks.windows(2) {
            assert_eq!(pair[0].rows.end, pair[1].rows.start);
        }
        assert!(chunks.iter().all(|c| c.nonzeros.len() <= 5 && c.rows.len() <= 5));
        assert_eq!(RowChunk::split(&row_ptr, 9, 4), Err(3));
        assert_eq!(RowChunk::split(&[0], 4, 4), Ok(vec![]));
        assert_eq!(RowChunk::split(&[0, 0, 0, 0], 2, 9).unwrap().len(), 2);
    }

    #[test]
    fn tasks_cover_every_nonzero_once_longest_first() {
        // 1000 rows of 40 and one of 10000: the long one is cut, the others are when NT asks for it.
        let mut row_ptr: Vec<usize> = (0..=1000).map(|i| 40 * i).collect();
        row_ptr.push(50_000);
        let chunk = RowChunk::split(&row_ptr, 1 << 20, 1 << 20).unwrap().remove(0);
        for parts in [1, 4] {
            let tasks = DeviceTasks::choose(&row_ptr, &chunk, parts);
            let mut seen = vec![0; 50_000];
            for &[row, start, end, _] in &tasks.tasks {
                assert!(row_ptr[row as usize] <= start as usize && end as usize <= row_ptr[row as usize + 1]);
                seen[start as usize..end as usize].iter_mut().for_each(|n| *n += 1);
            }
            assert!(seen.iter().all(|&n| n == 1));
            assert!(tasks.tasks.windows(2).all(|w| w[0][2] - w[0][1] >= w[1][2] - w[1][1]));
            assert_eq!(tasks.cut.iter().map(|c| c[2] as usize).sum::<usize>(), tasks.slots);
            assert!(tasks.cut.iter().any(|c| c[0] == 1000));
            let (cut, slots) = (tasks.cut.len(), tasks.slots);
            assert!(tasks.explain().contains(&format!("{cut} rows cut, with {slots} partial")), "{}", tasks.explain());
        }
    }

    #[test]
    fn few_rows_are_cut_by_the_papers_formula() {
        let row_ptr: Vec<usize> = (0..=1024).map(|i| 200 * i).collect();
        let chunk = RowChunk::split(&row_ptr, 1 << 20, 1 << 20).unwrap().remove(0);
        let tasks = |lanes| DeviceTasks::choose(&row_ptr, &chunk, DeviceTasks::parts(1024, lanes, PAPER)).tasks.len();
        assert_eq!((tasks(32), tasks(16)), (4 * 1024, 4 * 1024));
        // 200 nonzeros in no more than seven parts of 32.
        assert_eq!(tasks(8), 7 * 1024);
    }
}
