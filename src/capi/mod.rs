//! The C interface: `include/sparsimd.h` is made from this folder by cbindgen.
//!
//! ```text
//! C function -> guard (no panic passes, the error becomes a status) -> handles and pointers checked -> the Rust call
//! ```
//!
//! Rules that hold for every function, and that its `unsafe` stands for:
//! - an array argument points to as many initialised elements as the function says, or may be null when that is 0;
//! - an output does not overlap an input (refused, from the first to the last element of each);
//! - a handle comes from its `_create` function and has not been destroyed. Null, and handles of another kind, are refused
//!   by a tag at their start; a destroyed handle cannot be told reliably.
//! - functions that take a handle as `const` may run at the same time on several threads; others need it for themselves.
#![allow(clippy::missing_safety_doc, reason = "the rules are the same for every function, and stated once, above")]

mod decomposition;
mod elementwise;
mod gradient;
mod half;
mod handle;
mod matrix;
mod plan;
mod product;
mod reduce;
mod status;
mod tensor;
mod tucker;
mod value;
mod view;

use std::ffi::c_char;

use handle::{Handle, Place};
use status::guard;

pub use decomposition::*;
pub use elementwise::*;
pub use gradient::*;
pub use half::*;
pub use matrix::*;
pub use plan::*;
pub use product::*;
pub use reduce::*;
pub use status::Status;
pub use tensor::*;
pub use tucker::*;

use crate::cpu::Cpu;

/// Major version of the library that this header belongs to.
pub const SPARSIMD_VERSION_MAJOR: u32 = 0;
/// Minor version of the library that this header belongs to.
pub const SPARSIMD_VERSION_MINOR: u32 = 1;
/// Patch version of the library that this header belongs to.
pub const SPARSIMD_VERSION_PATCH: u32 = 0;
/// Changes when a function changes its arguments or meaning; compare it with sparsimd_abi_version().
pub const SPARSIMD_ABI_VERSION: u32 = 1;

/// The SPARSIMD_ABI_VERSION of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn sparsimd_abi_version() -> u32 {
    SPARSIMD_ABI_VERSION
}

/// The version of the library that is loaded, as text.
#[unsafe(no_mangle)]
pub extern "C" fn sparsimd_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The message of the last call of this thread that did not return SPARSIMD_STATUS_OK; empty when there was none. Valid until the
/// next such call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sparsimd_last_error() -> *const c_char {
    status::last_error()
}

/// Executes operations: an instruction set and a pool of threads.
#[derive(Debug)]
pub struct CpuHandle(());

impl Handle for CpuHandle {
    type Value = Cpu;
    const NAME: &'static str = "cpu";
    const TAG: u64 = u64::from_le_bytes(*b"simd-cpu");
}

/// Starts `threads` threads, or with 0 one for each processor that the process may use, pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_cpu_create(threads: usize, cpu: *mut *mut CpuHandle) -> Status {
    guard(|| {
        // SAFETY: by the rules above.
        let place = unsafe { Place::new(cpu)? };
        let builder = Cpu::builder();
        let builder = if threads == 0 { builder } else { builder.threads(threads) };
        place.put(builder.build()?);
        Ok(())
    })
}

/// Ends the threads. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_cpu_destroy(cpu: *mut CpuHandle) -> Status {
    // SAFETY: by the rules above.
    guard(|| unsafe { handle::destroy(cpu) })
}

/// Number of threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_cpu_threads(cpu: *const CpuHandle, threads: *mut usize) -> Status {
    guard(|| {
        // SAFETY: by the rules above.
        unsafe { view::put("threads", threads, handle::get(cpu)?.threads()) }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_macros_are_the_package_version() {
        let macros = [super::SPARSIMD_VERSION_MAJOR, super::SPARSIMD_VERSION_MINOR, super::SPARSIMD_VERSION_PATCH];
        let package =
            [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
        assert_eq!(macros.map(|part| part.to_string()), package);
    }
}
