//! Addresses that multiply-adds take their operands from.

/// `p`, where `REGISTERS` are read from it, in a register of its own if they are several.
///
/// Where a row begins at a base plus an offset, the compiler has each multiply-add of the row add the two. An Intel core takes such an
/// instruction apart when it is decoded, into a load and a multiply-add, which fill twice the room in all that holds instructions until they
/// are done.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read from it there")
)]
pub(crate) fn row_address<T, const REGISTERS: usize>(p: *const T) -> *const T {
    #[cfg(target_arch = "x86_64")]
    if REGISTERS > 1 {
        let mut p = p;
        // SAFETY: there is no instruction; the compiler, which does not know that, keeps the sum.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags)) };
        return p;
    }
    p
}
