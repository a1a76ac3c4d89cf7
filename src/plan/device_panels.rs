//! How a matrix so dense that its rows share columns is laid out for the tiled kernels of a Vulkan device.
//!
//! Four rows of similar length are a panel. A panel lists each column that any of its rows has once, with the four values beside
//! each other, and which of the rows have it. Lists are cut at every [`GRANULE`] columns of A, so that workgroups can take the
//! rows of B by granules.
//!
//! Four panels are a bundle. Teams of a subgroup that have one panel each walk their lists in step, which decides two things. Their
//! quads stand side by side, so that one load serves four teams. And the columns of a granule are sorted by the rows that have
//! them, so that the teams mostly add to the same rows at the same time: at 70 % zeros 67 of 113 additions to a row are then issued
//! in a granule, where in the order of the columns 88 would be and alone a team has 38.

use sparsimd_gpu_abi::{self as abi, NOTHING};

use super::{DeviceShape, MAX_THREADS_PER_ROW, Op, Team, threads_per_row};

/// Columns of A in a granule.
const GRANULE: usize = abi::GRANULE as usize;
/// Rows of a panel.
const PANEL: usize = 4;
/// Panels of a bundle.
const BUNDLE: usize = abi::BUNDLE as usize;
/// Invocations of a workgroup.
const WORKGROUP: usize = abi::WORKGROUP as usize;
/// Blocks of a lane at most.
const MAX_REGISTERS: usize = abi::MAX_REGISTERS as usize;
/// Lanes of a team at least.
const MIN_TEAM: usize = abi::MIN_TEAM as usize;

/// Words of a lane's registers that rows of a panel may take: half of the 255 that devices have, the rest is for rows of B.
const MOST_WORDS: usize = 128;
/// Words of rows for which a lane takes its share of the registers when as many subgroups are resident as the device can have (32 on
/// NVIDIA, other words among them). None of the kernels does with less than twice the share.
const RESIDENT_WORDS: usize = 16;

/// Waves of workgroups from which sharing columns does not pay: the last one leaves a fifth of the time at most to be won, and partial
/// rows are written and read.
const ENOUGH_WAVES: usize = 4;

/// Share of the places of A that must be nonzeros for panels to pay. Counted, not measured: at 90 % zeros a panel uses a row of B
/// 1.16 times a load, from memory of certain speed, and a row kernel once, from whichever cache has it; below 8 % even
/// the padding of each list to quads costs more than the sharing saves.
const DENSE: f64 = 0.08;
/// Rows below which a workgroup's panels are too few for its loads of B to pay.
const LEAST_ROWS: usize = 64;

/// The nonzeros by panels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePanels {
    /// The rows of each panel, `NOTHING` (`u32::MAX`) where the last one has fewer.
    pub rows: Vec<[u32; PANEL]>,
    /// First step of each granule of each bundle, and the end of each bundle's last: granules + 1 of each bundle.
    pub ptr: Vec<u32>,
    /// Quads of columns, one for each panel of the bundle in each step; 16 bits a column: five of its number within its granule, then
    /// one for each row that has it. Quads that a granule does not fill end with columns that no row has.
    pub columns: Vec<[u32; 2]>,
    /// For each value beside a column which nonzero it is, or `NOTHING`: of each step `[column of the quad][panel][row]`.
    pub order: Vec<u32>,
    /// Granules of a panel.
    pub granules: usize,
}

/// A nonzero of a panel: its column, its row within the panel, its number.
type Entry = (u32, u8, u32);

/// A column in a panel's list.
#[derive(Clone, Copy)]
struct Listed {
    column: u32,
    /// A bit for each row that has it.
    rows: u32,
    /// The rows' nonzeros.
    order: [u32; PANEL],
}

impl Listed {
    const NONE: Self = Self { column: 0, rows: 0, order: [NOTHING; PANEL] };

    /// The columns of a granule of a panel, whose entries are sorted, in the order in which teams walk them.
    fn all(entries: &[Entry]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::with_capacity(entries.len().min(GRANULE));
        for &(column, r, p) in entries {
            // A row that has the same column again needs another place for it.
            if all.last().is_none_or(|last| last.column != column || last.rows >> r & 1 == 1) {
                all.push(Self { column, ..Self::NONE });
            }
            if let Some(last) = all.last_mut() {
                last.rows |= 1 << r;
                last.order[usize::from(r)] = p;
            }
        }
        all.sort_by_key(|listed| listed.turn());
        all
    }

    /// The place of its rows in the reflected Gray code, which changes one row at a time: the columns of the last two rows come in one
    /// run each, of the second in two, of the first in four.
    fn turn(self) -> u32 {
        (1..PANEL).fold(self.rows, |turn, shift| turn ^ self.rows >> shift)
    }

    /// As the kernels read it.
    fn packed(self) -> u32 {
        self.column % GRANULE as u32 + self.rows * GRANULE as u32
    }
}

/// How a tiled kernel is launched for one number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The lanes that own a panel, and their blocks.
    pub team: Team,
    /// Granules whose rows of B are in workgroup memory at a time.
    pub span: usize,
    /// Workgroups that share the columns of the same panels.
    pub parts: usize,
    /// Workgroups in all, for each tile of the columns of B.
    pub groups: usize,
}

impl Tiling {
    /// What will be done, in one line.
    pub fn explain(&self) -> String {
        let Self { team: Team { lanes, registers }, span, parts, groups } = self;
        format!(
            "panel: {groups} workgroups, teams of {lanes} lanes with {registers} blocks each, {span} granules at a time in \
             workgroup memory, columns in {parts} parts"
        )
    }

    /// The same without parts.
    pub fn undivided(self) -> Self {
        Self { parts: 1, groups: self.groups / self.parts, ..self }
    }
}

/// Blocks of elements of so many bytes that workgroup memory holds of each operand that goes through it.
fn memory(element: usize) -> usize {
    abi::TILE_BYTES / (abi::BLOCK * element)
}

/// Whether panels pay for a matrix of so many rows, columns and nonzeros.
pub fn device_panels_pay(rows: usize, cols: usize, nnz: usize) -> bool {
    rows >= LEAST_ROWS && cols >= GRANULE && nnz as f64 >= DENSE * rows as f64 * cols as f64
}

impl DevicePanels {
    /// The panels of a pattern, or `None` where an array would have more than `max_len` elements.
    pub fn new(row_ptr: &[usize], col_idx: &[u32], cols: usize, max_len: usize) -> Option<Self> {
        let rows = row_ptr.len() - 1;
        let granules = cols.div_ceil(GRANULE);
        let panels = rows.div_ceil(PANEL);
        let bundles = panels.div_ceil(BUNDLE);
        if col_idx.len() > max_len || bundles.checked_mul(granules + 1)? > max_len || 4 * panels > max_len {
            return None;
        }
        let mut by_length: Vec<u32> = (0..rows as u32).collect();
        by_length.sort_by_key(|&i| std::cmp::Reverse(row_ptr[i as usize + 1] - row_ptr[i as usize]));
        let mut made = Self {
            rows: Vec::with_capacity(panels),
            ptr: Vec::with_capacity(bundles * (granules + 1)),
            columns: Vec::new(),
            order: Vec::new(),
            granules,
        };
        let mut entries: [Vec<Entry>; BUNDLE] = Default::default();
        for bundle in by_length.chunks(BUNDLE * PANEL) {
            entries.iter_mut().for_each(Vec::clear);
            for (entries, group) in entries.iter_mut().zip(bundle.chunks(PANEL)) {
                let mut own = [NOTHING; PANEL];
                own[..group.len()].copy_from_slice(group);
                made.rows.push(own);
                for (r, &i) in group.iter().enumerate() {
                    let range = row_ptr[i as usize]..row_ptr[i as usize + 1];
                    entries.extend(range.map(|p| (col_idx[p], r as u8, p as u32)));
                }
                entries.sort_unstable();
            }
            let mut rest = entries.each_ref().map(Vec::as_slice);
            for granule in 0..granules {
                made.ptr.push(made.steps());
                let lists = rest.each_mut().map(|rest| {
                    let (own, after) =
                        rest.split_at(rest.partition_point(|&(k, ..)| (k as usize) < (granule + 1) * GRANULE));
                    *rest = after;
                    Listed::all(own)
                });
                made.granule(&lists);
                if made.order.len() > max_len {
                    return None;
                }
            }
            made.ptr.push(made.steps());
        }
        Some(made)
    }

    /// Steps so far.
    fn steps(&self) -> u32 {
        (self.columns.len() / BUNDLE) as u32
    }

    /// Appends the steps of one granule of one bundle.
    fn granule(&mut self, lists: &[Vec<Listed>; BUNDLE]) {
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        for first in (0..longest).step_by(4) {
            let column = |list: &[Listed], c: usize| list.get(first + c).copied().unwrap_or(Listed::NONE);
            self.columns.extend(lists.each_ref().map(|list| {
                let half = |c: usize| column(list, c).packed() | column(list, c + 1).packed() << 16;
                [half(0), half(2)]
            }));
            for c in 0..4 {
                self.order.extend(lists.iter().flat_map(|list| column(list, c).order));
            }
        }
    }

    /// Nonzeros for each column that a team loads, those that fill a quad counted: how often a row of B serves once it is in
    /// registers.
    pub fn sharing(&self) -> f64 {
        let nonzeros = self.order.iter().filter(|&&p| p != NOTHING).count();
        let quads = self.columns.iter().filter(|quad| quad[0] != 0).count();
        nonzeros as f64 / (4 * quads).max(1) as f64
    }

    /// Blocks of a row that a tiled kernel takes at a time, of elements of so many bytes: SpMM and SDDMM take wider rows in several
    /// steps, FusedMM does not.
    pub fn widest(op: Op, element: usize, shape: DeviceShape) -> usize {
        (memory(element) / GRANULE).max(MIN_TEAM).min(Self::most_lanes(op, shape) * MAX_REGISTERS).min(WORKGROUP)
    }

    /// Lanes of a team at most: where they exchange values, those of a subgroup.
    fn most_lanes(op: Op, shape: DeviceShape) -> usize {
        match op {
            Op::Spmm | Op::SpmmTransposed => WORKGROUP,
            Op::Sddmm | Op::FusedMm => shape.subgroup.clamp(MIN_TEAM, WORKGROUP),
        }
    }

    /// Words of a lane's registers that the rows of a panel take for each block: FusedMM keeps rows of C and of E.
    fn words_of_block(op: Op, element: usize) -> usize {
        let operands = if op == Op::FusedMm { 2 } else { 1 };
        operands * PANEL * abi::BLOCK * element / 4
    }

    /// How to launch `op` with rows of `blocks` blocks of elements of so many bytes.
    ///
    /// Few lanes with many registers reuse B most, and most panels then share a copy of it. Where that does not keep the device full,
    /// several workgroups share the columns of their panels, NT of the occupancy formula with the workgroups that are resident. Where not
    /// even that fills half of it, panels are spread over more lanes.
    pub fn tiling(op: Op, panels: usize, granules: usize, blocks: usize, element: usize, shape: DeviceShape) -> Tiling {
        let lanes = Self::most_lanes(op, shape);
        let width = blocks.next_power_of_two().clamp(MIN_TEAM, Self::widest(op, element, shape));
        let words = Self::words_of_block(op, element);
        let least = width.div_ceil(lanes);
        let mut registers = (width / MIN_TEAM).clamp(1, (MOST_WORDS / words).min(MAX_REGISTERS)).max(least);
        // Tiles of SDDMM's dot products follow each other.
        let tiles = if op == Op::Sddmm { 1 } else { blocks.div_ceil(width).max(1) };
        let span = (memory(element) / width / GRANULE).max(1);
        // A part has a few spans at least: its partial rows, or the rows of C that it reads, must be less than what it reads of B.
        let most_parts = 1 << (granules / span / 4).clamp(1, MAX_THREADS_PER_ROW).ilog2();
        let groups_of = |registers: usize| panels.div_ceil(WORKGROUP / (width / registers)).max(1);
        let resident = |registers: usize| {
            let crowding = (registers * words / RESIDENT_WORDS).max(2);
            (shape.resident * shape.subgroup / WORKGROUP / crowding).max(1)
        };
        while registers > least && groups_of(registers) * tiles * most_parts * 2 < resident(registers) {
            registers /= 2;
        }
        let groups = groups_of(registers);
        let parts = match groups * tiles < ENOUGH_WAVES * resident(registers) {
            true => threads_per_row(groups * tiles, resident(registers)).min(most_parts),
            false => 1,
        };
        let team = Team { lanes: (width / registers) as u32, registers: registers as u32 };
        Tiling { team, span, parts, groups: groups * parts }
    }

    /// (row, first partial row, parts, 0) of every row of panels of `rows`: what is added when `parts` workgroups share a panel.
    pub fn cut(rows: &[[u32; PANEL]], parts: usize) -> Vec<[u32; 4]> {
        let rows = rows.iter().flatten().enumerate().filter(|&(_, &row)| row != NOTHING);
        rows.map(|(slot, &row)| [row, (slot * parts) as u32, parts as u32, 0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the panels back: (row, column, nonzero) of each value.
    fn places(panels: &DevicePanels) -> Vec<(u32, u32, u32)> {
        let mut found = Vec::new();
        for (panel, rows) in panels.rows.iter().enumerate() {
            for granule in 0..panels.granules {
                let at = panel / BUNDLE * (panels.granules + 1) + granule;
                for step in panels.ptr[at] as usize..panels.ptr[at + 1] as usize {
                    let quad = panels.columns[step * BUNDLE + panel % BUNDLE];
                    for c in 0..4 {
                        let half = quad[c / 2] >> (16 * (c % 2)) & 0xffff;
                        for (r, &row) in rows.iter().enumerate() {
                            let p = panels.order[((4 * step + c) * BUNDLE + panel % BUNDLE) * PANEL + r];
                            assert_eq!(half >> (5 + r) & 1 == 1, p != NOTHING);
                            if p != NOTHING {
                                found.push((row, (granule * GRANULE) as u32 + half % 32, p));
                            }
                        }
                    }
                }
            }
        }
        found
    }

    #[test]
    fn panels_hold_every_nonzero_once() {
        // Rows of very different lengths, unsorted, one with the same column thrice.
        let lists: [&[u32]; 6] = [&[40, 3, 69], &[], &[5, 5, 5, 6], &[69, 68, 3], &[31, 32, 33, 0], &[3]];
        let mut row_ptr = vec![0];
        let mut col_idx = Vec::new();
        for list in lists {
            col_idx.extend_from_slice(list);
            row_ptr.push(col_idx.len());
        }
        let panels = DevicePanels::new(&row_ptr, &col_idx, 70, 1 << 20).unwrap();
        assert_eq!((panels.rows.len(), panels.granules), (2, 3));
        assert_eq!(panels.rows[1][2..], [NOTHING; 2]);
        let mut found = places(&panels);
        found.sort_unstable_by_key(|&(.., p)| p);
        let all = lists.iter().enumerate().flat_map(|(i, list)| list.iter().map(move |&k| (i as u32, k)));
        let want: Vec<_> = all.enumerate().map(|(p, (i, k))| (i, k, p as u32)).collect();
        assert_eq!(found, want);
        let cut = DevicePanels::cut(&panels.rows, 2);
        assert_eq!(cut.len(), 6);
        assert!(
            cut.iter().enumerate().all(|(i, &[row, first, n, _])| {
                n == 2 && first as usize == 2 * i && row == panels.rows[i / 4][i % 4]
            })
        );
        assert_eq!(DevicePanels::new(&row_ptr, &col_idx, 70, 10), None);
        let none = DevicePanels::new(&[0], &[], 0, 1 << 20).unwrap();
        assert!(none.rows.is_empty() && none.sharing() == 0.0);
    }

    #[test]
    fn equal_rows_share_every_column() {
        let row_ptr: Vec<usize> = (0..=8).map(|i| 64 * i).collect();
        let col_idx: Vec<u32> = (0..8).flat_map(|_| 0..64).collect();
        let panels = DevicePanels::new(&row_ptr, &col_idx, 64, 1 << 20).unwrap();
        assert_eq!(panels.sharing(), 4.0);
    }

    #[test]
    fn bundles_stand_side_by_side_and_sort_columns_by_rows() {
        // 20 rows in five panels, the fifth in a bundle of its own; row i has every column that 2 + i % 5 divides.
        let mut row_ptr = vec![0];
        let mut col_idx: Vec<u32> = Vec::new();
        for i in 0..20 {
            col_idx.extend((0..100).step_by(2 + i % 5));
            row_ptr.push(col_idx.len());
        }
        let panels = DevicePanels::new(&row_ptr, &col_idx, 100, 1 << 20).unwrap();
        assert_eq!((panels.rows.len(), panels.granules, panels.ptr.len()), (5, 4, 10));
        assert_eq!(
            (panels.columns.len(), panels.order.len()),
            (4 * panels.steps() as usize, 64 * panels.steps() as usize)
        );
        let mut found = places(&panels);
        found.sort_unstable_by_key(|&(.., p)| p);
        assert!(found.iter().enumerate().all(|(n, &(i, k, p))| p as usize == n && k % (2 + i % 5) == 0));
        assert_eq!(found.len(), col_idx.len());
        // Of each list: in Gray's order, and nothing after what is not a whole quad.
        for (bundle, range) in panels.ptr.windows(2).enumerate().filter(|(at, _)| at % 5 != 4) {
            for panel in 0..BUNDLE {
                let quads = (range[0]..range[1]).map(|step| panels.columns[step as usize * BUNDLE + panel]);
                let all: Vec<u32> = quads.flatten().flat_map(|half| [half & 0xffff, half >> 16]).collect();
                let rows: Vec<u32> = all.iter().map(|column| column >> 5).collect();
                let turns: Vec<u32> = rows.iter().map(|&rows| Listed { rows, ..Listed::NONE }.turn()).collect();
                let end = rows.iter().position(|&rows| rows == 0).unwrap_or(rows.len());
                assert!(
                    turns[..end].is_sorted() && all[end..].iter().all(|&column| column == 0),
                    "{bundle}: {turns:?}"
                );
            }
        }
        let gray = [0, 1, 3, 2, 6, 7, 5, 4, 12, 13, 15, 14, 10, 11, 9, 8];
        assert!((0..16).all(|n| Listed { rows: gray[n], ..Listed::NONE }.turn() == n as u32));
    }

    #[test]
    fn tilings_fit_memory_and_fill_the_device() {
        let h200 = DeviceShape { subgroup: 32, resident: 132 * 64, max_len: 1 << 30 };
        let processor = DeviceShape { subgroup: 4, resident: 16, max_len: 1 << 30 };
        for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
            for (rows, shape) in
                [4usize, 1024, 3072, 8192, 32768].map(|rows| [(rows, h200), (rows, processor)]).concat()
            {
                for blocks in [1, 3, 8, 32, 65, 256] {
                    for element in [4, 8] {
                        let t = DevicePanels::tiling(op, rows.div_ceil(4), 256, blocks, element, shape);
                        let width = t.team.blocks();
                        assert!(t.span * GRANULE * width <= memory(element), "{t:?}");
                        assert!(width <= DevicePanels::widest(op, element, shape));
                        let (lanes, registers) = (t.team.lanes as usize, t.team.registers);
                        assert!(lanes.is_power_of_two() && lanes >= 4 && [1, 2, 4].contains(&registers), "{t:?}");
                        assert!(lanes <= if op == Op::Spmm { 128 } else { shape.subgroup }, "{op:?}: {t:?}");
                        assert!(t.parts <= 16 && t.parts.is_power_of_two());
                        assert!(t.groups / t.parts * (WORKGROUP / lanes) >= rows.div_ceil(4));
                        assert_eq!(t.undivided().groups * t.parts, t.groups);
                    }
                }
            }
        }
        // The paper's shapes: eight lanes of four registers, shared columns before more lanes.
        let of = |op, rows: usize| DevicePanels::tiling(op, rows / 4, rows / 32, 32, 4, h200);
        for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
            for rows in [3072, 8192, 32768, 1 << 18] {
                assert_eq!(of(op, rows).team, Team { lanes: 8, registers: 4 }, "{op:?}, {rows} rows");
                assert!(rows > 8192 || of(op, rows).parts > 1, "{op:?}, {rows} rows");
                assert!(rows < 1 << 18 || of(op, rows).parts == 1, "{op:?}, {rows} rows");
            }
            // No more than eight parts of 32 granules: one workgroup for each multiprocessor is not enough.
            let few = of(op, 1024);
            assert!(few.parts == 8 && few.team.registers < 4, "{op:?}: {few:?}");
            assert!(few.explain().ends_with("columns in 8 parts"), "{}", few.explain());
        }
        // C and E of 64 bits would take all of a lane's registers.
        assert_eq!(DevicePanels::tiling(Op::FusedMm, 1 << 15, 4096, 16, 8, h200).team, Team { lanes: 8, registers: 2 });
        // Subgroups of four lanes: N = 64 at most, in all registers.
        let small = DevicePanels::tiling(Op::FusedMm, 64, 8, 16, 4, processor);
        assert_eq!(small.team, Team { lanes: 4, registers: 4 });
        assert_eq!(DevicePanels::widest(Op::FusedMm, 4, processor), 16);
        assert!(device_panels_pay(4096, 4096, 4096 * 410) && !device_panels_pay(4096, 4096, 4096 * 200));
        assert!(!device_panels_pay(16, 4096, 16 * 4096));
    }
}
