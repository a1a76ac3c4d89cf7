//! Memory that has been freed, back to the system.

/// Gives back what glibc keeps of freed memory: blocks of a file's entries, some MiB each, are freed between others, and stay with the
/// process otherwise.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back() {
    // SAFETY: allowed at any time; memory in use is not touched.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators give it back themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}
