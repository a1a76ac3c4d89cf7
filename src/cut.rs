//! Cutting 0..n into parts of equal weight. Every cut of the library is made here: by bisection of a weight that ascends, in
//! integers, so that it depends on nothing but its arguments.

use std::ops::Range;

/// The first of `range` for which `reached` holds, or the end of `range`: `reached` holds from some item on.
pub(crate) fn first(range: Range<usize>, reached: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end.max(range.start));
    while low < high {
        let middle = low.midpoint(high);
        if reached(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// `total * part / parts`, rounded down, without overflow; `total` for no parts at all.
pub(crate) fn share(total: usize, part: usize, parts: usize) -> usize {
    (total as u128 * part as u128).checked_div(parts as u128).map_or(total, |share| share as usize)
}

/// The bounds 0 = b_0 <= b_1 <= ... = n of `parts` (at least one) ranges of about equal weight, of which some may be empty. b_k is
/// the first item with k shares of the weight before it; `before(i)` is the weight of all items before item i, and ascends.
pub(crate) fn bounds(n: usize, parts: usize, before: impl Fn(usize) -> usize) -> Vec<usize> {
    let total = before(n);
    let mut bounds = vec![0];
    for part in 1..parts {
        let wanted = share(total, part, parts);
        bounds.push(first(bounds[part - 1]..n, |i| before(i) >= wanted));
    }
    bounds.push(n);
    bounds
}

/// The ranges between [`bounds`] that are not empty.
pub(crate) fn ranges(n: usize, parts: usize, before: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    bounds(n, parts, before).windows(2).map(|b| b[0]..b[1]).filter(|range| !range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_reaches() {
        assert_eq!(first(3..10, |i| i >= 7), 7);
        assert_eq!((first(3..10, |_| true), first(3..10, |_| false), first(5..5, |_| true)), (3, 10, 5));
        let huge = usize::MAX - 1;
        assert_eq!(first(huge - 2..huge, |i| i >= huge - 1), huge - 1);
    }

    #[test]
    fn shares_do_not_overflow() {
        assert_eq!((share(10, 1, 3), share(10, 2, 3), share(10, 3, 3)), (3, 6, 10));
        assert_eq!((share(usize::MAX, usize::MAX, usize::MAX), share(7, 0, 0)), (usize::MAX, 7));
    }

    #[test]
    fn parts_are_equal_and_cover_everything() {
        assert_eq!(bounds(10, 3, |i| i), [0, 3, 6, 10]);
        assert_eq!(ranges(10, 3, |i| i), [0..3, 3..6, 6..10]);
        assert_eq!((bounds(2, 5, |i| i), ranges(2, 5, |i| i)), (vec![0, 0, 0, 1, 1, 2], vec![0..1, 1..2]));
        assert_eq!((bounds(0, 3, |i| i), ranges(0, 3, |i| i)), (vec![0; 4], vec![]));
        // No parts are one, items without weight belong to the last.
        assert_eq!(bounds(4, 0, |i| i), [0, 4]);
        assert!(ranges(4, 3, |_| 0).into_iter().eq(std::iter::once(0..4)));
        // One heavy item.
        let before = [0, 1, 100, 101, 102];
        assert_eq!(ranges(4, 2, |i| before[i]), [0..2, 2..4]);
    }

    #[test]
    fn no_part_exceeds_its_share_by_more_than_an_item() {
        let mut before = vec![0];
        for i in 0..500 {
            before.push(before[i] + i * 7919 % 31);
        }
        for parts in [1, 2, 3, 7, 64, 499, 1000] {
            let cut = bounds(500, parts, |i| before[i]);
            assert_eq!((cut.len(), cut[0], cut[parts]), (parts + 1, 0, 500));
            for part in cut.windows(2) {
                assert!(part[0] <= part[1] && before[part[1]] - before[part[0]] <= before[500] / parts + 1 + 30);
            }
        }
    }
}
