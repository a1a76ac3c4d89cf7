//! One row block of the panel format: its blocks, and how they are made.

mod pairs;
mod segments;

use std::mem::MaybeUninit;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use sparsimd_kernels::{Arch, Block, OFFSETS_PER_WORD, PAIRED_LANES, Pair, RowSegment};

use self::pairs::{Chosen, Columns, Partners, lowest};
use self::segments::{Found, PREFETCH_DISTANCE, Segments, prefetch_columns};
use crate::dense::addresses;
use crate::memory::reserved;

/// One row block.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowBlock {
    /// Its rows.
    pub rows: Range<usize>,
    /// Position of its first nonzero in the panel order of the whole matrix (and, rows being whole, in CSR order).
    pub first: usize,
    /// Number of nonzeros.
    pub nnz: usize,
    /// Columns of a panel, and of the matrix.
    widths: [usize; 2],
    blocks: Vec<BlockSpan>,
    pairs: Vec<Pair>,
    segments: Vec<RowSegment>,
    starts: Vec<usize>,
    offsets: Vec<u8>,
    /// For each nonzero of a pair, by ascending column as in CSR order, its position among those of its row segment.
    order: Vec<u8>,
    /// The rows by the first block that has them, and by the last one; those without nonzeros follow.
    by_first: Vec<u32>,
    by_last: Vec<u32>,
    /// Number of rows with nonzeros.
    with_nonzeros: usize,
}

/// Where a block's parts begin in the row block's arrays.
#[derive(Clone, Copy, Debug)]
struct BlockSpan {
    panel: usize,
    pairs: usize,
    segments: usize,
    offsets: usize,
    order: usize,
    nonzeros: usize,
    begins: usize,
    ends: usize,
    /// How many pairs, and rows alone, have no nonzeros in blocks before.
    beginning: [usize; 2],
}

/// One block, as the kernels take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockView<'a> {
    /// First column of the panel.
    pub column: usize,
    /// Columns of the panel.
    pub width: usize,
    /// Whether it is the row block's last one.
    pub last: bool,
    /// The rows that no block before has, and those that no later one has, ascending.
    pub begins: &'a [u32],
    pub ends: &'a [u32],
    /// Position of the block's first nonzero in the panel order of the whole matrix.
    pub first: usize,
    /// Number of nonzeros.
    pub nnz: usize,
    /// Position of each row's first nonzero in row-sorted CSR order: two to a pair, then one to a row segment.
    pub starts: &'a [usize],
    /// Pairs, row segments and offsets.
    pub block: Block<'a>,
    /// For each nonzero of a pair, in CSR order of its row, its position among those of its row segment;
    /// [`PAIRED_LANES`] more follow.
    pub order: &'a [u8],
}

/// `n` offsets padded to whole words.
fn padded(n: u32) -> usize {
    (n as usize).next_multiple_of(OFFSETS_PER_WORD)
}

impl RowBlock {
    /// The row block of `rows`, columns ascending in each row; `widths` are those of a panel and of the matrix.
    pub fn new(
        rows: Range<usize>,
        row_ptr: &[usize],
        columns: &[u32],
        widths: [usize; 2],
        pairing: Option<Arch>,
    ) -> Self {
        let width = widths[0];
        let segments = Segments::find(rows.clone(), row_ptr, columns, width as u32);
        let (first, nnz) = (row_ptr[rows.start], row_ptr[rows.end] - row_ptr[rows.start]);
        let mut row_block = Self { rows, first, nnz, widths, ..Self::default() };
        row_block.offsets =
            reserved(segments.found.iter().map(|v| padded(v.nnz)).sum::<usize>() + 2 * OFFSETS_PER_WORD);
        row_block.starts = reserved(segments.found.len());
        row_block.segments = reserved(segments.found.len());
        if pairing.is_some() {
            row_block.order = reserved(nnz + PAIRED_LANES);
        }
        // The first and the last block of each row.
        let [mut first, mut last] = [vec![u32::MAX; row_block.rows.len()], vec![u32::MAX; row_block.rows.len()]];
        let mut nonzeros = 0;
        let mut partners = [Partners::default(), Partners::default()];
        let own_row_ptr = &row_ptr[row_block.rows.start..];
        segments.each_block(own_row_ptr, |panel, block, begin| {
            let (pairs, segments) = (row_block.pairs.len(), row_block.segments.len());
            let (offsets, order) = (row_block.offsets.len(), row_block.order.len());
            let (number, row_of) = (row_block.blocks.len() as u32, |segment: &Found| segment.row as usize);
            for row in block.iter().map(row_of) {
                (first[row], last[row]) = (first[row].min(number), number);
            }
            let (begins, ends) = (0, 0);
            let beginning = [0, begin];
            row_block.blocks.push(BlockSpan {
                panel,
                pairs,
                segments,
                offsets,
                order,
                nonzeros,
                begins,
                ends,
                beginning,
            });
            let base = (panel * width) as u32;
            match pairing {
                None => {
                    for (v, segment) in block.iter().enumerate() {
                        prefetch_columns(block, v, columns);
                        row_block.push_segment(segment, columns, base);
                    }
                }
                Some(arch) => {
                    let parts = [&block[..begin], &block[begin..]];
                    for (partners, block) in partners.iter_mut().zip(parts) {
                        partners.choose(arch, block, columns, base, width);
                        arch.dispatch(PushPairs { row_block: &mut row_block, pairs: &partners.pairs, block });
                    }
                    for (partners, block) in partners.iter().zip(parts) {
                        partners.alone.iter().for_each(|&v| row_block.push_segment(&block[v as usize], columns, base));
                    }
                    let span = row_block.blocks.len() - 1;
                    row_block.blocks[span].beginning = [partners[0].pairs.len(), partners[0].alone.len()];
                }
            }
            nonzeros += block.iter().map(|segment| segment.nnz as usize).sum::<usize>();
        });
        row_block.with_nonzeros = first.iter().filter(|&&block| block != u32::MAX).count();
        row_block.by_first = sorted_by_block(&first, &mut row_block.blocks, |span| &mut span.begins);
        row_block.by_last = sorted_by_block(&last, &mut row_block.blocks, |span| &mut span.ends);
        // The kernels read two words ahead.
        row_block.offsets.resize(row_block.offsets.len() + 2 * OFFSETS_PER_WORD, 0);
        // And a register's positions.
        if pairing.is_some() {
            row_block.order.resize(row_block.order.len() + PAIRED_LANES, 0);
        }
        row_block
    }

    /// Appends a row by itself.
    fn push_segment(&mut self, &Found { nnz, row, start }: &Found, columns: &[u32], base: u32) {
        self.segments.push(RowSegment { row, nnz });
        self.starts.push(start);
        self.offsets.extend(columns[start..start + nnz as usize].iter().map(|&j| (j - base) as u8));
        self.pad();
    }

    /// Appends two rows.
    #[inline(always)]
    fn push_pair(&mut self, chosen: &Chosen, block: &[Found]) {
        let [x, y] = chosen.segments.map(|v| block[v as usize]);
        self.pairs.push(Pair { rows: [x.row, y.row], both: chosen.both, each: x.nnz - chosen.both });
        self.starts.extend([x.start, y.start]);
        let [s, t] = &chosen.sets;
        let common = lowest(&std::array::from_fn(|w| s[w] & t[w]), chosen.both);
        let both = chosen.both as usize;
        let (first, own) = (self.offsets.len(), padded(chosen.both));
        self.offsets.resize(first + own + padded(2 * (x.nnz - chosen.both)), 0);
        let offsets = &mut self.offsets[first..];
        for (r, set) in chosen.sets.iter().enumerate() {
            let begin = self.order.len();
            self.order.resize(begin + x.nnz as usize, 0);
            let order = &mut self.order[begin..];
            let (mut i, mut k) = (0, 0);
            for (position, column) in order.iter_mut().zip(Columns::of(*set)) {
                // Computed, not branched on: random columns would be mispredicted every other time.
                let alone = (!common[usize::from(column / 64)] >> (column % 64) & 1) as usize;
                *position = (i + alone * (both + k - i)) as u8;
                offsets[i + alone * (own + 2 * k + r - i)] = column;
                i += 1 - alone;
                k += alone;
            }
        }
    }

    /// The rows without nonzeros, ascending.
    pub fn without_nonzeros(&self) -> &[u32] {
        &self.by_first[self.with_nonzeros..]
    }

    /// Fills the last word of offsets.
    fn pad(&mut self) {
        self.offsets.resize(self.offsets.len().next_multiple_of(OFFSETS_PER_WORD), 0);
    }

    /// The blocks with nonzeros, by ascending panel.
    pub fn blocks(&self) -> impl Iterator<Item = BlockView<'_>> {
        let [width, cols] = self.widths;
        let end = BlockSpan {
            panel: 0,
            pairs: self.pairs.len(),
            segments: self.segments.len(),
            offsets: self.offsets.len(),
            order: self.order.len(),
            nonzeros: self.nnz,
            begins: self.with_nonzeros,
            ends: self.with_nonzeros,
            beginning: [0; 2],
        };
        (0..self.blocks.len()).map(move |c| {
            let span = self.blocks[c];
            let end = self.blocks.get(c + 1).copied().unwrap_or(end);
            let column = span.panel * width;
            let starts = &self.starts[2 * span.pairs + span.segments..2 * end.pairs + end.segments];
            BlockView {
                column,
                width: width.min(cols - column),
                last: c + 1 == self.blocks.len(),
                begins: &self.by_first[span.begins..end.begins],
                ends: &self.by_last[span.ends..end.ends],
                first: self.first + span.nonzeros,
                nnz: end.nonzeros - span.nonzeros,
                starts,
                block: Block {
                    pairs: &self.pairs[span.pairs..end.pairs],
                    segments: &self.segments[span.segments..end.segments],
                    begins: span.beginning,
                    offsets: &self.offsets[span.offsets..],
                },
                order: &self.order[span.order..],
            }
        })
    }

    /// Number of visits to a row, two for a pair.
    pub fn segments(&self) -> usize {
        self.starts.len()
    }

    /// Number of nonzeros that are taken together with one of another row.
    pub fn shared(&self) -> usize {
        self.pairs.iter().map(|pair| 2 * pair.both as usize).sum()
    }

    /// Where its arrays are.
    pub fn memory(&self) -> [Range<usize>; 7] {
        let (starts, order) = (addresses(&self.starts), addresses(&self.order));
        let [first, last] = [&self.by_first, &self.by_last].map(|rows| addresses(rows));
        let (pairs, segments) = (addresses(&self.pairs), addresses(&self.segments));
        [pairs, segments, addresses(&self.offsets), starts, order, first, last]
    }

    /// Bytes of indices.
    pub fn index_bytes(&self) -> usize {
        self.offsets.len()
            + self.order.len()
            + size_of_val(&self.pairs[..])
            + size_of_val(&self.segments[..])
            + size_of_val(&self.starts[..])
            + size_of_val(&self.blocks[..])
            + size_of_val(&self.by_first[..])
            + size_of_val(&self.by_last[..])
    }

    /// Writes the row block's values in panel order, every element of `out`; `value(p)` is the one at position p of
    /// row-sorted CSR order, and `ask(p, n)` asks for what it will read of about `n` of them from there on.
    pub fn arrange<T: Copy>(
        &self,
        mut out: &mut [MaybeUninit<T>],
        value: impl Fn(usize) -> T,
        ask: impl Fn(usize, usize),
    ) {
        for view in self.blocks() {
            let mut order = view.order;
            let of_pairs = view.block.pairs.iter().flat_map(|pair| [(pair.nnz(), true); 2]);
            let of_segments = view.block.segments.iter().map(|segment| (segment.nnz, false));
            for (v, (nnz, paired)) in of_pairs.chain(of_segments).enumerate() {
                if let Some(&start) = view.starts.get(v + PREFETCH_DISTANCE) {
                    ask(start, nnz as usize);
                }
                let start = view.starts[v];
                let (here, after) = out.split_at_mut(nnz as usize);
                out = after;
                if paired {
                    let (own, others) = order.split_at(here.len());
                    // Every position once.
                    for (p, &position) in (start..).zip(own) {
                        here[usize::from(position)].write(value(p));
                    }
                    order = others;
                } else {
                    for (x, p) in here.iter_mut().zip(start..) {
                        x.write(value(p));
                    }
                }
            }
        }
        assert!(out.is_empty(), "the blocks have all of the row_block's nonzeros");
    }
}

/// The rows by the block that `block_of` has for each, those without one last; `place` of a block becomes the place of its first row.
fn sorted_by_block(
    block_of: &[u32],
    blocks: &mut [BlockSpan],
    place: impl Fn(&mut BlockSpan) -> &mut usize,
) -> Vec<u32> {
    // A counting sort.
    let mut places = vec![0_usize; blocks.len() + 2];
    let bucket = |&block: &u32| (block as usize).min(blocks.len());
    block_of.iter().for_each(|block| places[bucket(block) + 1] += 1);
    for block in 0..=blocks.len() {
        places[block + 1] += places[block];
    }
    let mut rows = vec![0; block_of.len()];
    let mut next = places.clone();
    for (row, block) in (0..).zip(block_of) {
        let next = &mut next[bucket(block)];
        rows[*next] = row;
        *next += 1;
    }
    for (block, first) in blocks.iter_mut().zip(places) {
        *place(block) = first;
    }
    rows
}

/// Appends all pairs of a block: a loop over bits, which newer instruction sets have instructions for.
struct PushPairs<'a> {
    row_block: &'a mut RowBlock,
    pairs: &'a [Chosen],
    block: &'a [Found],
}

impl WithSimd for PushPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for pair in self.pairs {
            self.row_block.push_pair(pair, self.block);
        }
    }
}
