//! Software prefetch: pulp has none, core::arch has. Elsewhere than on x86-64 there is none.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Prefetches the cache line at `p` in L1. `p` may be any address: a prefetch never faults.
#[inline(always)]
pub fn prefetch_l1<T>(p: *const T) {
    prefetch::<T, NEAR>(p, 1);
}

/// Prefetches `bytes` bytes from `p` on, a cache line at a time.
#[inline(always)]
pub fn prefetch_row<T>(p: *const T, bytes: usize) {
    prefetch::<T, NEAR>(p, bytes);
}

/// As [`prefetch_row`], but in L2: for what is read later, and would push out of L1 what is read now.
#[inline(always)]
pub fn prefetch_row_l2<T>(p: *const T, bytes: usize) {
    prefetch::<T, L2>(p, bytes);
}

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{_MM_HINT_T0 as NEAR, _MM_HINT_T1 as L2, _mm_prefetch};
#[cfg(not(target_arch = "x86_64"))]
const NEAR: i32 = 0;
#[cfg(not(target_arch = "x86_64"))]
const L2: i32 = 0;

/// Prefetches `bytes` bytes from `p` on, a cache line at a time.
#[inline(always)]
fn prefetch<T, const HINT: i32>(p: *const T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let mut at = 0;
        while at < bytes {
            // SAFETY: prefetches are part of SSE, which x86-64 always has, and have no effect but on the caches.
            unsafe { _mm_prefetch::<HINT>(p.cast::<i8>().wrapping_add(at)) };
            at += LINE;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, bytes);
}
