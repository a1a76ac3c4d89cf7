//! Whether another order pays: what a cache holds of B from row to row of A.

use crate::error::Result;
use crate::formats::PatternRef;
use crate::memory;

use super::permutation::Permutation;
use super::{Reordering, rabbit, rcm};

/// Bytes fetched in the time that finding both orders takes for a nonzero. On two Zen 4 cores that is 130 to 240 ns, permuting the
/// matrix included, and runs in the better order were shorter by a second for every 50 to 160 GB that the estimate has less: 7 to 24 KB.
const COST: f64 = 20480.0;

/// An order is worth its trouble when this share of the fetches is left, or less: nearer ones are within the error of the estimate.
const LEFT: f64 = 0.9;

/// Rows of B that SpMM with `a` fetches into a cache for `capacity` of them, rows of A taken in `order` (as they are for `None`): the
/// cache is emptied when it is full and another row is needed.
///
/// Emptying is a model that needs one pass and no lists. It never fetches less than a cache that evicts the least recently used row. 0 rows of capacity count as 1. Takes O(nnz) steps and 8 bytes a column.
///
/// # Errors
/// [`crate::Error::Shape`] when `order` does not have one element for each row of `a`; [`crate::Error::Memory`].
pub fn fetches<'a>(a: impl Into<PatternRef<'a>>, order: Option<&Permutation>, capacity: usize) -> Result<usize> {
    let a = a.into();
    if let Some(order) = order {
        order.check("fetches", "the rows of A", a.rows())?;
    }
    let capacity = capacity.max(1);
    // Of each column: the number of fetches up to and with its last one.
    let mut last = memory::zeros::<usize>("an estimate of fetches", a.cols())?;
    let (mut fetched, mut emptied) = (0, 0);
    for i in 0..a.rows() {
        for &j in a.row(order.map_or(i, |order| order.as_slice()[i] as usize)) {
            if last[j as usize] <= emptied {
                if fetched - emptied == capacity {
                    emptied = fetched;
                }
                fetched += 1;
                last[j as usize] = fetched;
            }
        }
    }
    Ok(fetched)
}

/// What [`auto`] decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The order: `rcm`, `rabbit`, or `none` for the given one.
    pub method: &'static str,
    /// The order itself; `None` for the given one.
    pub reordering: Option<Reordering>,
    /// [`fetches`] of a run in the given order.
    pub before: usize,
    /// [`fetches`] of a run in the chosen order.
    pub after: usize,
}

/// The order of [`rcm`] and [`rabbit`] with fewer [`fetches`], if what it saves in `runs` runs pays for finding both.
///
/// `row_bytes` are read of dense operands for each nonzero: 4 N for SpMM and SDDMM in f32, 8 N for FusedMM; `cache_bytes` is the
/// size of the cache that is to hold them, [`crate::Machine::l2_bytes`]. Nothing is timed: the same arguments give the same choice. It
/// is made for the direct strategy; the time for permuting dense operands is not counted.
///
/// # Errors
/// As [`rcm`].
pub fn auto<'a>(a: impl Into<PatternRef<'a>>, cache_bytes: usize, row_bytes: usize, runs: usize) -> Result<Choice> {
    let a = a.into();
    let capacity = cache_bytes / row_bytes.max(1);
    let before = fetches(a, None, capacity)?;
    let given = Choice { method: "none", reordering: None, before, after: before };
    let pays = |saved: usize| saved as f64 * row_bytes as f64 * runs as f64 > COST * a.nnz() as f64;
    // Each row that is read at all is fetched at least once.
    if !pays(before - fetches(a, None, usize::MAX)?) {
        return Ok(given);
    }
    let mut best = given.clone();
    for (method, reordering) in [("rabbit", rabbit(a)?), ("rcm", rcm(a)?)] {
        let after = fetches(a, Some(&reordering.rows), capacity)?;
        if after < best.after {
            best = Choice { method, reordering: Some(reordering), before, after };
        }
    }
    let fewer = best.after as f64 <= LEFT * before as f64;
    Ok(if fewer && pays(before - best.after) { best } else { given })
}
