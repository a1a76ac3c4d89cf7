//! Stable parallel radix sort of `(key, payload)` pairs, for keys of up to 128 bits.
//!
//! ```text
//! partition by the 8 highest bits, all threads on one array     one pass through memory
//! for every bucket, in parallel:
//!     larger than a core's L2?  partition again                 only skewed keys come here
//!     else                      least-significant-digit passes  in cache
//! ```
//!
//! Least-significant-digit passes over the whole array would stream it through memory once for every 8 bits of key. A
//! stable sort has one result, whatever the number of threads.

use crate::parallel::{self, Slots};
use std::mem::MaybeUninit;

/// Bits of one digit: 256 write streams are what the first-level TLB of common cores still covers.
const DIGIT: u32 = 8;
const BUCKETS: usize = 1 << DIGIT;
/// Entries that are sorted by least-significant-digit passes: two such arrays of 16-byte entries fill 1 MiB of L2.
const IN_CACHE: usize = 1 << 15;
/// Entries below which comparing beats counting.
const FEW: usize = 96;
/// Entries of a task of the parallel partition: large enough to hide the 2 KiB of counters it carries.
const TASK: usize = 1 << 16;

/// An unsigned integer that can be sorted by digits.
pub trait Key: Copy + Ord + Send + Sync {
    /// 0.
    const ZERO: Self;
    /// `self` with `field` or-ed in, `shift` bits from the lowest one.
    fn with_field(self, field: u32, shift: u32) -> Self;
    /// `self` with the bits below `shift` (at most all) dropped.
    fn above(self, shift: u32) -> Self;
    /// `self` or `other`, bit by bit.
    fn or(self, other: Self) -> Self;
    /// The `bits` bits (at most 32) that start `shift` bits from the lowest one.
    fn field(self, shift: u32, bits: u32) -> usize;
}

macro_rules! key {
    ($t:ty) => {
        impl Key for $t {
            const ZERO: Self = 0;
            #[inline(always)]
            fn with_field(self, field: u32, shift: u32) -> Self {
                self | (Self::from(field) << shift)
            }
            #[inline(always)]
            fn above(self, shift: u32) -> Self {
                self.checked_shr(shift).unwrap_or(0)
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn field(self, shift: u32, bits: u32) -> usize {
                (self >> shift) as usize & ((1usize << bits) - 1)
            }
        }
    };
}
key!(u32);
key!(u64);
key!(u128);

/// Sorts `entries` by the lowest `bits` bits of their keys; entries with equal keys keep their order. The bits above must
/// be zero. Uses the rayon pool of the caller and a second array of the same length.
pub fn sort<K: Key, P: Copy + Send + Sync>(entries: &mut [(K, P)], bits: u32) {
    let n = entries.len();
    if parallel::all(n.saturating_sub(1), |p| entries[p].0 <= entries[p + 1].0) {
        return;
    }
    if n <= IN_CACHE {
        entries.sort_by_key(key_of);
        return;
    }
    let digit = Digit::highest(bits);
    let mut other: Vec<(K, P)> = Vec::with_capacity(n);
    let ends = partition(entries, &mut other.spare_capacity_mut()[..n], digit);
    // SAFETY: `partition` has written the n entries.
    unsafe { other.set_len(n) };
    sort_buckets(&mut other, entries, &ends, digit.shift, true);
}

/// The key of an entry. A function, since each closure would have a copy of the sort compiled.
fn key_of<K: Copy, P>(entry: &(K, P)) -> K {
    entry.0
}

/// The bits of a key that one pass looks at.
#[derive(Clone, Copy)]
struct Digit {
    shift: u32,
    bits: u32,
}

impl Digit {
    /// The highest digit of keys of `bits` bits.
    fn highest(bits: u32) -> Self {
        let width = bits.min(DIGIT);
        Self { shift: bits - width, bits: width }
    }

    #[inline(always)]
    fn of<K: Key>(self, key: K) -> usize {
        key.field(self.shift, self.bits)
    }
}

/// Whether sorted `entries` have no two with the same key.
pub(super) fn all_different<K: Key, P: Sync>(entries: &[(K, P)]) -> bool {
    parallel::all(entries.len().saturating_sub(1), |p| entries[p].0 != entries[p + 1].0)
}

/// Copies `from` into `to`, stably by `digit`; all of `to` is written. Returns the end of each digit's run.
fn partition<K: Key, P: Copy + Send + Sync>(
    from: &[(K, P)],
    to: &mut [MaybeUninit<(K, P)>],
    digit: Digit,
) -> [usize; BUCKETS] {
    assert_eq!(from.len(), to.len(), "both arrays of a partition have one length");
    let task = |t: usize| &from[t * TASK..from.len().min((t + 1) * TASK)];
    let mut next: Vec<[usize; BUCKETS]> = parallel::map_tasks(from.len().div_ceil(TASK), |t| {
        let mut counts = [0; BUCKETS];
        task(t).iter().for_each(|&(key, _)| counts[digit.of(key)] += 1);
        counts
    });
    // Counts become the first place of each (digit, task): tasks in order inside a digit, which makes the sort stable.
    let mut ends = [0; BUCKETS];
    let mut place = 0;
    for (bucket, end) in ends.iter_mut().enumerate() {
        for counts in &mut next {
            place += std::mem::replace(&mut counts[bucket], place);
        }
        *end = place;
    }
    let places = Slots::new(to);
    parallel::chunks_mut(&mut next, 1, |t, next| {
        for &(key, payload) in task(t) {
            let slot = &mut next[0][digit.of(key)];
            // SAFETY: the places of all (digit, task) pairs are disjoint runs, together 0..len, as long as the number
            // of entries that the same loop over the same entries counted.
            unsafe { places.write(*slot, (key, payload)) };
            *slot += 1;
        }
    });
    ends
}

/// Sorts every run of `at` that ends at `ends` by the lowest `bits` bits, into `other` when `into_other`.
fn sort_buckets<K: Key, P: Copy + Send + Sync>(
    at: &mut [(K, P)],
    other: &mut [(K, P)],
    ends: &[usize; BUCKETS],
    bits: u32,
    into_other: bool,
) {
    let mut buckets = Vec::with_capacity(BUCKETS);
    let (mut at, mut other, mut start) = (at, other, 0);
    for &end in ends {
        let (head, tail) = at.split_at_mut(end - start);
        let (other_head, other_tail) = other.split_at_mut(end - start);
        (at, other, start) = (tail, other_tail, end);
        if !head.is_empty() {
            buckets.push((head, other_head));
        }
    }
    parallel::consume(buckets, |(at, other)| sort_bucket(at, other, bits, into_other));
}

/// Sorts `at` by the lowest `bits` bits, into `other` when `into_other`; both arrays are overwritten.
fn sort_bucket<K: Key, P: Copy + Send + Sync>(at: &mut [(K, P)], other: &mut [(K, P)], bits: u32, into_other: bool) {
    if at.len() > IN_CACHE && bits > 0 {
        let digit = Digit::highest(bits);
        // SAFETY: an initialised array is a valid array of possibly uninitialised entries, and `partition` only writes
        // whole entries.
        let to = unsafe { &mut *(std::ptr::from_mut(other) as *mut [MaybeUninit<(K, P)>]) };
        let ends = partition(at, to, digit);
        return sort_buckets(other, at, &ends, digit.shift, !into_other);
    }
    let in_other = if at.len() <= FEW {
        at.sort_by_key(key_of);
        false
    } else {
        sort_in_cache(at, other, bits)
    };
    match (in_other, into_other) {
        (false, true) => other.copy_from_slice(at),
        (true, false) => at.copy_from_slice(other),
        _ => {}
    }
}

/// Least-significant-digit passes to and fro; returns whether the result is in `other`.
fn sort_in_cache<K: Key, P: Copy>(at: &mut [(K, P)], other: &mut [(K, P)], bits: u32) -> bool {
    let (mut from, mut to) = (at, other);
    let mut in_other = false;
    for shift in (0..bits).step_by(DIGIT as usize) {
        let digit = Digit { shift, bits: DIGIT.min(bits - shift) };
        let mut next = [0usize; BUCKETS];
        from.iter().for_each(|&(key, _)| next[digit.of(key)] += 1);
        if next[digit.of(from[0].0)] == from.len() {
            continue; // one digit for all: nothing moves
        }
        let mut place = 0;
        for count in &mut next {
            place += std::mem::replace(count, place);
        }
        for &entry in from.iter() {
            let slot = &mut next[digit.of(entry.0)];
            to[*slot] = entry;
            *slot += 1;
        }
        std::mem::swap(&mut from, &mut to);
        in_other = !in_other;
    }
    in_other
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` keys of `bits` bits, made by a multiplicative generator; `skew` clears bits so that runs of equal keys occur.
    fn keys<K: Key>(n: usize, bits: u32, skew: bool) -> Vec<(K, u32)> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        (0..n as u32)
            .map(|payload| {
                let mut key = K::ZERO;
                for shift in (0..bits).step_by(16) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let mut field = (state >> 40) as u32 & ((1 << 16.min(bits - shift)) - 1);
                    if skew && state >> 62 != 0 {
                        field &= 3;
                    }
                    key = key.with_field(field, shift);
                }
                (key, payload)
            })
            .collect()
    }

    fn check<K: Key + std::fmt::Debug>(n: usize, bits: u32, skew: bool) {
        let mut entries = keys::<K>(n, bits, skew);
        let mut expected = entries.clone();
        expected.sort_by_key(|&(key, _)| key);
        sort(&mut entries, bits);
        assert!(entries == expected, "{n} keys of {bits} bits, skewed: {skew}");
    }

    #[test]
    fn sorts_stably_at_every_size_and_width() {
        for n in [0, 1, 2, FEW, FEW + 1, IN_CACHE, IN_CACHE + 1, 5 * IN_CACHE + 7] {
            for skew in [false, true] {
                for bits in [1, 7, 8, 9, 32] {
                    check::<u32>(n, bits, skew);
                }
                for bits in [3, 40, 43, 64] {
                    check::<u64>(n, bits, skew);
                }
                for bits in [65, 100, 128] {
                    check::<u128>(n, bits, skew);
                }
            }
        }
    }

    #[test]
    fn a_large_bucket_is_partitioned_again() {
        // All keys share their highest 40 bits but for one entry, so the first buckets exceed the cache.
        let mut entries = keys::<u64>(4 * IN_CACHE, 24, false);
        entries[7].0 |= 1 << 63;
        let mut expected = entries.clone();
        expected.sort_by_key(|&(key, _)| key);
        sort(&mut entries, 64);
        assert!(entries == expected);
    }
}
