//! Which row segments of a block go together: rows of one length that share columns, whose rows of B are then read once for both.

use sparsimd_kernels::{Arch, ColumnSet, pair_rows};

use super::segments::{Found, prefetch_columns};

/// Fewest common columns that make a pair. Rows taken together for less gain nothing.
const LEAST_SHARED: u32 = 2;

/// Which row segments of a block go together.
#[derive(Default)]
pub struct Partners {
    /// By number of common columns, then of nonzeros.
    pub pairs: Vec<Chosen>,
    /// The others, as positions in the block, in its order.
    pub alone: Vec<u32>,
    sets: Vec<ColumnSet>,
    order: Vec<u32>,
    shared: Vec<u32>,
}

/// Two row segments of a block.
pub struct Chosen {
    pub both: u32,
    pub nnz: u32,
    pub segments: [u32; 2],
    pub sets: [ColumnSet; 2],
}

impl Partners {
    /// Pairs up the row segments of `block`, which are ordered by their number of nonzeros; only equal ones are paired,
    /// so that a pair has one number of further nonzeros.
    pub fn choose(&mut self, arch: Arch, block: &[Found], columns: &[u32], base: u32, width: usize) {
        self.pairs.clear();
        self.alone.clear();
        self.order.clear();
        self.order.extend(0..block.len() as u32);
        self.sets.clear();
        self.sets.extend(block.iter().enumerate().map(|(v, segment)| {
            prefetch_columns(block, v, columns);
            let columns = &columns[segment.start..][..segment.nnz as usize];
            let mut set = ColumnSet::default();
            let mut t = 0;
            // Word by word, each in a register.
            for (w, word) in set.iter_mut().enumerate() {
                let end = 64 * (w as u32 + 1);
                let mut bits = 0u64;
                while t < columns.len() && columns[t] - base < end {
                    bits |= 1 << ((columns[t] - base) % 64);
                    t += 1;
                }
                *word = bits;
            }
            set
        }));
        self.shared.resize(block.len() / 2 + 1, 0);
        let mut start = 0;
        for equal in block.chunk_by(|a, b| a.nnz == b.nnz) {
            let (order, sets) =
                (&mut self.order[start..start + equal.len()], &mut self.sets[start..start + equal.len()]);
            pair_rows(arch, width, sets, order, &mut self.shared);
            for ((segments, sets), &shared) in order.chunks(2).zip(sets.chunks(2)).zip(&self.shared) {
                // An even number, so that there are half as many trip counts.
                let both = shared / 2 * 2;
                match (segments, sets) {
                    (&[x, y], &[s, t]) if both >= LEAST_SHARED => {
                        self.pairs.push(Chosen { both, nnz: equal[0].nnz, segments: [x, y], sets: [s, t] });
                    }
                    _ => self.alone.extend(segments),
                }
            }
            start += equal.len();
        }
        self.pairs.sort_by_key(|pair| (pair.both, pair.nnz));
    }
}

/// The `n` lowest columns of `set`, all or all but one.
#[inline(always)]
pub fn lowest(set: &ColumnSet, n: u32) -> ColumnSet {
    let mut out = *set;
    if set.iter().map(|word| word.count_ones()).sum::<u32>() > n
        && let Some(word) = out.iter_mut().rev().find(|word| **word != 0)
    {
        *word &= !(1 << (63 - word.leading_zeros()));
    }
    out
}

/// The columns of a set, ascending.
pub struct Columns {
    set: ColumnSet,
    word: usize,
}

impl Columns {
    #[inline(always)]
    pub fn of(set: ColumnSet) -> Self {
        Self { set, word: 0 }
    }
}

impl Iterator for Columns {
    type Item = u8;

    #[inline(always)]
    fn next(&mut self) -> Option<u8> {
        while *self.set.get(self.word)? == 0 {
            self.word += 1;
        }
        let bits = &mut self.set[self.word];
        let column = 64 * self.word as u32 + bits.trailing_zeros();
        *bits &= *bits - 1;
        Some(column as u8)
    }
}
