//! Decompositions of sparse tensors: drivers over the operations of [`crate::Cpu`]; small dense algebra is faer's.

mod tucker;

pub use tucker::{Tucker, TuckerInit, TuckerIteration, TuckerOptions};
