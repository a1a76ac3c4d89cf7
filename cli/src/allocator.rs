//! The last resort where memory runs out: exit status 2 instead of an abort.
//!
//! The library asks for large arrays in ways that can fail, and returns an error. What it and other crates allocate besides
//! (a thread's stack of jobs, a line of text) is small, and the standard library aborts the process where it is refused.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::OnceLock;

/// Larger allocations that are refused are the library's, which tells what they were for.
const SMALL: usize = 16 << 20;

/// The operand of the command, for the message.
static OPERAND: OnceLock<String> = OnceLock::new();

/// Names the operand of the command.
pub fn name_operand(name: String) {
    // The first one stays: a process runs one command.
    let _ = OPERAND.set(name);
}

/// One arena for all threads where the address space is limited: glibc gives each thread one of its own, and takes up to 128 MiB of
/// addresses for a moment to align it, which another thread's allocation may need just then.
pub fn share_arena_under_limit() {
    #[cfg(target_env = "gnu")]
    {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is what the call writes to.
        let read = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
        if read && limit.rlim_cur != libc::RLIM_INFINITY {
            // SAFETY: the call takes two numbers; that it refuses them changes nothing.
            let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    }
}

/// The system's allocator; a small allocation that it refuses ends the process with status 2.
pub struct Checked;

/// Text in an array: a message must not allocate.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = room.len().min(text.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

#[cold]
fn refused(bytes: usize) {
    if bytes > SMALL {
        return;
    }
    let mut line = Line { bytes: [0; 512], len: 0 };
    let operand = OPERAND.get().map_or("memory", String::as_str);
    // Writing to an array cannot fail.
    let _ = writeln!(line, "sparsimd: {operand:.300}: {bytes} bytes of memory are not available");
    // SAFETY: the bytes are initialised, and neither call allocates or runs code of this process.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.len);
        libc::_exit(2);
    }
}

// SAFETY: every method forwards to the system's allocator and returns its answer.
unsafe impl GlobalAlloc for Checked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let data = unsafe { System.alloc(layout) };
        if data.is_null() {
            refused(layout.size());
        }
        data
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let data = unsafe { System.alloc_zeroed(layout) };
        if data.is_null() {
            refused(layout.size());
        }
        data
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let data = unsafe { System.realloc(data, layout, size) };
        if data.is_null() {
            refused(size);
        }
        data
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(data, layout) }
    }
}
