//! Explicit-SIMD kernels for sparse matrices and tensors: SpMM, SDDMM, FusedMM, TTV, TTM, MTTKRP, CP-ALS and Tucker, for f32 and f64.
//!
//! A [`Cpu`] has a pool of threads and an instruction set; operations are its methods. A sparse operand can be used as it is:
//!
//! ```
//! use sparsimd::{Coo, Cpu, Mat};
//!
//! let cpu = Cpu::new()?;
//! // [ 2 . 3 ]
//! // [ . 4 . ]
//! let a = Coo::new(2, 3, vec![0, 0, 1], vec![0, 2, 1], vec![2.0f32, 3.0, 4.0])?.to_csr()?;
//! let b = Mat::from_fn(3, 64, |i, j| (i + j) as f32)?;
//! let mut c = Mat::zeros(2, 64)?;
//! cpu.spmm(1.0, &a, b.as_ref(), 0.0, c.as_mut())?;
//! assert_eq!(c.row(0)[10], 2.0 * 10.0 + 3.0 * 12.0);
//! # Ok::<(), sparsimd::Error>(())
//! ```
//!
//! or be prepared once for many runs of an operation. The plan says what was chosen, and why:
//!
//! ```
//! use sparsimd::plan::{Op, PlanOptions};
//! use sparsimd::{Cpu, Mat, generate};
//!
//! let cpu = Cpu::new()?;
//! let a = generate::random_matrix::<f64>(200, 300, 0.7, 1)?;
//! let (c, b) = (generate::uniform_dense::<f64>(200, 32, 2)?, generate::uniform_dense(300, 32, 3)?);
//! let prepared = cpu.prepare(&a, &PlanOptions::new(Op::Sddmm, 32).reuse(1000))?;
//! println!("{}", prepared.plan());
//! let mut values = vec![0.0; a.nnz()];
//! cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut values)?;
//! # Ok::<(), sparsimd::Error>(())
//! ```
//!
//! Dense operands and values may store [`bf16`](struct@bf16) or [`f16`](struct@f16), which take half the memory and are computed with as f32
//! ([`Stored`]):
//!
//! ```
//! use sparsimd::{Coo, Cpu, Mat, bf16};
//!
//! let a = Coo::new(2, 3, vec![0, 0, 1], vec![0, 2, 1], vec![2.0f32, 3.0, 4.0])?.to_csr()?;
//! let b = Mat::from_fn(3, 64, |i, j| bf16::from_f32((i + j) as f32))?;
//! let mut c = Mat::zeros(2, 64)?;
//! Cpu::new()?.spmm(1.0, &a.stored_as::<bf16>(), b.as_ref(), 0.0, c.as_mut())?;
//! assert_eq!(c.row(0)[10], bf16::from_f32(2.0 * 10.0 + 3.0 * 12.0));
//! # Ok::<(), sparsimd::Error>(())
//! ```
//!
//! Matrices in arrays of the caller are borrowed with [`CsrRef`] and [`MatRef`], with indices of 32 or 64 bits.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `decomp` | CP (ALS, all at once, of counts), Tucker and the power method (`sparsimd::decomp`); their dense linear algebra is nalgebra's |
//! | `vulkan` | the operations on Vulkan devices (`sparsimd::gpu`), and shared between processor and device (`sparsimd::hetero`) |
//! | `capi` | the C interface of `include/sparsimd.h`; with `decomp` |
//! | `faer`, `ndarray`, `sprs` | views and copies of these crates' matrices |
//! | `hwloc` | the machine's topology from hwloc 2.x instead of `/sys` |
//!
//! # Processors
//!
//! The instruction set is chosen when the program runs: AVX-512 or AVX2 with FMA on x86-64, NEON on AArch64, one element at a time
//! elsewhere. [`Arch::available`] lists what a processor has, and [`CpuBuilder::arch`] chooses among it. AVX-512 and AVX2 are tested and
//! tuned (on Zen 4 and Zen 5); NEON compiles, and nobody has run it.

#[cfg(feature = "capi")]
pub mod capi;
// Fuzzing compiles what a target calls, and no more: with sanitizers all of it takes minutes.
#[cfg(not(fuzzing))]
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
pub mod reorder;

#[cfg(not(fuzzing))]
#[doc(hidden)]
pub use compiled::compiled;
pub use cpu::{Cpu, CpuBuilder};
pub use dense::{Aligned, Mat, MatMut, MatRef};
pub use error::{Error, Result};
pub use formats::{Coo, CooRef, CooTensor, Csr, CsrRef, Pattern, PatternRef};
pub use machine::Machine;
pub use ops::{Prepared, SparseOperand};
pub use sparsimd_kernels::{Arch, Number, Scalar, Stored, bf16, edge, f16, semiring};

/// The example in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does that of the page on gradients.
#[cfg(doctest)]
#[doc = include_str!("../docs/gradients.md")]
struct Gradients;
