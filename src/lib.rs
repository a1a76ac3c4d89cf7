//! Explicit-SIMD kernels for sparse matrices and tensors.

#[cfg(feature = "capi")]
pub mod capi;
mod compiled;
mod convert;
pub mod cpu;
mod cut;
#[cfg(feature = "decomp")]
pub mod decomp;
pub mod dense;
mod error;
pub mod formats;
pub mod generate;
#[cfg(feature = "vulkan")]
pub mod gpu;
#[cfg(feature = "vulkan")]
pub mod hetero;
pub mod io;
pub mod machine;
mod memory;
pub mod ops;
mod parallel;
pub mod plan;
pub mod reference;

#[doc(hidden)]
pub use compiled::compiled;
pub use cpu::{Cpu, CpuBuilder};
pub use dense::{Aligned, Mat, MatMut, MatRef};
pub use error::{Error, Result};
pub use formats::{Coo, CooRef, CooTensor, Csr, CsrRef, Pattern, PatternRef};
pub use machine::Machine;
pub use ops::{Prepared, SparseOperand};
pub use sparsimd_kernels::{Arch, Scalar, edge};

/// The example in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
