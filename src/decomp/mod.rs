//! Decompositions of sparse tensors: drivers over the operations of [`crate::Cpu`]; dense linear algebra is nalgebra's.

pub(crate) mod cp;
mod linalg;
pub(crate) mod power;
pub(crate) mod tucker;
#[cfg(feature = "vulkan")]
mod tucker_device;
mod tucker_state;
mod words;

pub use cp::{CpInit, CpIteration, CpOptions, CpSection, CpShare, CpState, MAX_CP_RANK};
pub use power::PowerOptions;
pub use tucker::{Tucker, TuckerInit, TuckerIteration, TuckerOptions, TuckerState};

/// Whether the last iteration improved the fit by less than `tolerance`; never for 0, and not after the first. Told by the fits
/// alone, so that a resumed run ends where an unbroken one does.
fn converged(fits: &[f64], tolerance: f64) -> bool {
    match fits {
        [.., before, last] => tolerance > 0.0 && last - before < tolerance,
        _ => false,
    }
}
