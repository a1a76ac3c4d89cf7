//! The Vulkan kernels. Each file holds one operation: the body, a plain function that the CPU runs in unit tests, and the
//! entry points, which only name the buffers.
//!
//! Explicit registers: a *team* of lanes owns one task (a row, or a part of a long one) and each lane a fixed block
//! `[V; R]` of four-element vectors, as a work-item of Intel's ESIMD owns a `simd<float, N>`. Loads are 16 bytes a lane
//! (32 at f64) and neighbouring lanes load neighbouring blocks.
//!
//! Indexing is unchecked on the device: the host has checked every pattern when it was built and sizes the dispatch.
#![cfg_attr(target_arch = "spirv", no_std)]
#![allow(clippy::too_many_arguments)] // a kernel's arguments are its buffers

pub mod block;
pub mod ceilings;
pub mod elements;
pub mod elementwise;
#[cfg(target_arch = "spirv")]
pub mod entry;
pub mod fusedmm;
pub mod gather;
pub mod memory;
pub mod mttkrp;
pub mod sddmm;
pub mod spmm;
pub mod team;
pub mod ttv;
