//! Cutting one operation between two executors: by a given share, or by rates that a part of the work measures.

use crate::cut;

/// Share of the work that an adaptive run times, half of it on each side.
pub const PROBE: f64 = 0.1;

/// The first of `first ..= items` before which `share` of the work of items `first .. items` is done; `work(i)` is the work of
/// all items before item i, and ascends.
pub fn cut_by_share(work: impl Fn(usize) -> usize, items: usize, first: usize, share: f64) -> usize {
    let before = work(first);
    let wanted = share * (work(items) - before) as f64;
    // The largest item with no more than the wanted work before it.
    cut::first(first..items, |i| (work(i + 1) - before) as f64 > wanted)
}

/// The first side's share by the two rates, `work / seconds` of each. An even one where nothing was measured.
pub fn share_by_rates(first: (usize, f64), second: (usize, f64)) -> f64 {
    let rate = |(work, seconds): (usize, f64)| work as f64 / seconds.max(1e-9);
    let (a, b) = (rate(first), rate(second));
    if a + b > 0.0 { a / (a + b) } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_by_work() {
        // Rows weigh their nonzeros and one more. Work before each row: 0, 11, 12, 13, 24.
        let row_ptr = [0, 10, 10, 10, 20];
        let cut = |first, share| cut_by_share(|i| row_ptr[i] + i, 4, first, share);
        assert_eq!(cut(0, 0.0), 0);
        assert_eq!(cut(0, 0.5), 2);
        assert_eq!(cut(0, 1.0), 4);
        assert_eq!(cut(1, 0.5), 3);
        assert_eq!(cut(4, 0.5), 4);
        assert_eq!(cut_by_share(|_| 0, 0, 0, 0.5), 0);
    }

    #[test]
    fn shares_follow_rates() {
        assert_eq!(share_by_rates((100, 1.0), (100, 3.0)), 0.75);
        assert_eq!(share_by_rates((0, 1.0), (0, 1.0)), 0.5);
        assert_eq!(share_by_rates((0, 1.0), (7, 1.0)), 0.0);
    }
}
