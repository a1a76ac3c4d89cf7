//! SIMD kernels of [sparsimd](https://docs.rs/sparsimd): slices and pointers in, slices out.
//!
//! No formats, no threads, no errors, no allocation. Every kernel is a private struct with pulp's [`pulp::WithSimd`],
//! behind one public function that takes the [`Arch`] and dispatches once, above its loops.

#![warn(missing_docs)]

mod arch;
mod bandwidth;
mod peak;
mod prefetch;
mod scalar;

pub use arch::Arch;
pub use bandwidth::{chase_pass, clock_pass, gather_pass, read_pass, triad_pass};
pub use peak::{add_burst, fma_burst};
pub use prefetch::{prefetch_l1, prefetch_row};
pub use scalar::Scalar;
