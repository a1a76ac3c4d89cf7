//! A block of the panel format: one row block crossed with one panel of columns, as the kernels read it.
//!
//! Rows come first in pairs that have columns in common, so that one load of a row of B serves both, then one by one.
//! What is read once per nonzero is small: offsets into the panel take 8 bits and are read eight at a time.

/// The nonzeros of a row inside a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSegment {
    /// Row, counted from the row block's first.
    pub row: u32,
    /// Number of nonzeros.
    pub nnz: u32,
}

/// The nonzeros of two rows inside a panel, as many in the one as in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The rows, counted from the row block's first.
    pub rows: [u32; 2],
    /// Number of columns where both have a nonzero, and are taken together.
    pub both: u32,
    /// Number of further nonzeros of each.
    pub each: u32,
}

impl Pair {
    /// Nonzeros of each of the two rows.
    #[inline(always)]
    pub fn nnz(&self) -> u32 {
        self.both + self.each
    }
}

/// The nonzeros of one row block in one panel, in the order in which they are visited: pairs of rows, then single rows.
///
/// Values are in the same order; a pair has those of its first row (the common columns first), then the second row's.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The pairs of rows.
    pub pairs: &'a [Pair],
    /// The other rows.
    pub segments: &'a [RowSegment],
    /// How many of the pairs, and of the other rows, have none in the panels before: these come first.
    pub begins: [usize; 2],
    /// Columns in the panel: of each pair the common ones, then the others of both rows in turn; of each row segment
    /// its own. Each of these runs is padded to whole words of 8, and two words follow the last.
    pub offsets: &'a [u8],
}

/// Offsets in one word: as many are read at a time.
pub const OFFSETS_PER_WORD: usize = size_of::<u64>();

/// The offsets of a block, eight to a word, read two words ahead.
///
/// A load of offsets in program order just before the loads that need them waits its turn behind all older loads, and the
/// rows behind it: 5.5 cycles per row of eight vectors where 4.4 is what sequential rows take. Two words ahead: 4.8.
pub(crate) struct Offsets {
    next: *const u8,
    words: [u64; 2],
}

impl Offsets {
    /// The stream that begins at `offsets`.
    ///
    /// # Safety
    /// Two words more than are taken are valid for reads, here and as long as words are taken.
    #[inline(always)]
    pub unsafe fn new(offsets: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let words = [word_at(offsets), word_at(offsets.add(OFFSETS_PER_WORD))];
            Self { next: offsets.add(2 * OFFSETS_PER_WORD), words }
        }
    }

    /// The next eight offsets, the first in the low byte.
    ///
    /// # Safety
    /// As [`Offsets::new`].
    #[inline(always)]
    pub unsafe fn take(&mut self) -> u64 {
        let word = self.words[0];
        // SAFETY: the caller's promise.
        unsafe {
            self.words = [self.words[1], word_at(self.next)];
            self.next = self.next.add(OFFSETS_PER_WORD);
        }
        word
    }
}

/// Eight offsets at `p`.
///
/// # Safety
/// They are valid for reads.
#[inline(always)]
unsafe fn word_at(p: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le(unsafe { p.cast::<u64>().read_unaligned() })
}
