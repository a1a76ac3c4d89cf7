//! Stores that bypass the caches: for results larger than they are, which nobody reads soon. An ordinary store first
//! fetches the line it is about to overwrite, which doubles the traffic.

use crate::Number;
use pulp::Simd;

/// Stores all lanes of `x` at `p`, past the caches where the instruction set can.
///
/// # Safety
/// `p` is valid for writes of [`Number::lanes`] elements and a multiple of the register's size. [`stream_fence`] follows
/// before another thread reads the elements.
#[inline(always)]
pub unsafe fn store_streaming<S: Simd, T: Number>(simd: S, p: *mut T, x: T::Vector<S>) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64 as x86;
        // SAFETY: a register of 64 or 32 bytes exists only in an instruction set that has the instruction; the type is
        // 64 or 32 bytes of plain numbers; the rest is the caller's promise.
        unsafe {
            match size_of::<T::Vector<S>>() {
                64 => return x86::_mm512_stream_ps(p.cast(), core::mem::transmute_copy(&x)),
                32 => return x86::_mm256_stream_ps(p.cast(), core::mem::transmute_copy(&x)),
                _ => {}
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { T::store(simd, p, x) }
}

/// Makes streaming stores visible to the threads that synchronise with this one.
#[inline(always)]
pub fn stream_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: sfence is part of SSE, which x86-64 always has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}
