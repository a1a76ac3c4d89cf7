//! The hardware: measured ceilings.

mod peak;

pub use peak::fma_peak;
