//! Software prefetch: pulp has none, core::arch has.

/// Asks for the cache line at `p` in L1. `p` may be any address: a prefetch never faults.
#[inline(always)]
pub fn prefetch_l1<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetcht0 is part of SSE, which x86-64 always has, and has no effect but on the cache.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Asks for `bytes` bytes from `p` on, a cache line at a time.
#[inline(always)]
pub fn prefetch_row<T>(p: *const T, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        prefetch_l1(p.cast::<u8>().wrapping_add(at));
        at += 64;
    }
}
