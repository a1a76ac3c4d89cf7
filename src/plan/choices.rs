//! What of a plan is open: the strategy and the numbers that measuring varies and wisdom keeps.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

/// The open numbers of a plan, by its strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choices {
    Direct(DirectChoices),
    Panel(PanelChoices),
    /// None.
    Slices,
}

/// The open numbers of a [`DirectPlan`](super::DirectPlan).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectChoices {
    /// Columns that a block of rows passes over together; the largest number for all.
    pub column_slab: usize,
    /// Nonzeros between the one computed and the one whose row of B is prefetched; 0 for no prefetch.
    pub prefetch_distance: usize,
}

/// The open numbers of a [`PanelPlan`](super::PanelPlan).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelChoices {
    pub tile_vectors: usize,
    pub width: usize,
    pub block_rows: usize,
    pub pairs: bool,
}

impl Choices {
    /// What may be tried instead: a list for each number, the most promising number first.
    pub fn alternatives(self) -> Vec<Vec<Self>> {
        match self {
            Self::Slices => Vec::new(),
            Self::Direct(own) => {
                let distances =
                    [0, 4, 8, 16, 32, 64, 80].map(|prefetch_distance| DirectChoices { prefetch_distance, ..own });
                let slabs = match own.column_slab {
                    // Where all columns pass together, rows are too sparse for less.
                    usize::MAX => Vec::new(),
                    slab => [slab / 2, slab.saturating_mul(2), usize::MAX]
                        .map(|column_slab| DirectChoices { column_slab, ..own })
                        .to_vec(),
                };
                [slabs, distances.to_vec()].map(|list| list.into_iter().map(Self::Direct).collect()).to_vec()
            }
            Self::Panel(own) => {
                // Twice the vectors need half the columns to be as large.
                let halves = PanelChoices { tile_vectors: own.tile_vectors.div_ceil(2), width: 2 * own.width, ..own };
                let doubles = PanelChoices { tile_vectors: 2 * own.tile_vectors, width: own.width / 2, ..own };
                let rows = [own.block_rows / 2, own.block_rows / 4, 2 * own.block_rows]
                    .map(|block_rows| PanelChoices { block_rows, ..own });
                let pairs = PanelChoices { pairs: !own.pairs, ..own };
                let widths =
                    [own.width * 3 / 4, own.width / 2, own.width * 3 / 2].map(|width| PanelChoices { width, ..own });
                [vec![halves, doubles], rows.to_vec(), vec![pairs], widths.to_vec()]
                    .map(|list| list.into_iter().map(Self::Panel).collect())
                    .to_vec()
            }
        }
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(DirectChoices { column_slab: usize::MAX, prefetch_distance }) => {
                write!(f, "direct all {prefetch_distance}")
            }
            Self::Direct(own) => write!(f, "direct {} {}", own.column_slab, own.prefetch_distance),
            Self::Slices => write!(f, "slices"),
            Self::Panel(own) => {
                write!(f, "panel {} {} {} {}", own.tile_vectors, own.width, own.block_rows, u8::from(own.pairs))
            }
        }
    }
}

impl Choices {
    /// Reads what `Display` writes from the next words.
    pub fn read(words: &mut SplitAsciiWhitespace<'_>) -> Option<Self> {
        fn next<N: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<N> {
            words.next()?.parse().ok()
        }
        match words.next()? {
            "slices" => Some(Self::Slices),
            "direct" => {
                let column_slab = match words.next()? {
                    "all" => usize::MAX,
                    columns => columns.parse().ok()?,
                };
                Some(Self::Direct(DirectChoices { column_slab, prefetch_distance: next(words)? }))
            }
            "panel" => {
                let (tile_vectors, width, block_rows) = (next(words)?, next(words)?, next(words)?);
                let pairs = match words.next()? {
                    "0" => false,
                    "1" => true,
                    _ => return None,
                };
                Some(Self::Panel(PanelChoices { tile_vectors, width, block_rows, pairs }))
            }
            _ => None,
        }
    }
}
