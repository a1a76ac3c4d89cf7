//! Decompositions of sparse tensors: drivers over the operations of [`crate::Cpu`]; small dense algebra is faer's.

mod cp;
mod tucker;

pub use cp::{CpInit, CpIteration, CpOptions, CpState, MAX_CP_RANK};
pub use tucker::{Tucker, TuckerInit, TuckerIteration, TuckerOptions};
