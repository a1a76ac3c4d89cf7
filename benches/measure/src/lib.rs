//! What a machine sustains, measured, and what an operation asks of it, by formula: the two axes of a roofline.
//!
//! [`Ceilings`] and [`fma_peak`] time short loops on the threads of an executor. [`Work`], [`TensorCounts`] and [`Fpga`] count
//! operations and bytes. [`FpgaRun`] simulates the designs for FPGAs on a described [`Board`].

mod bandwidth;
mod boards;
mod bursts;
mod ceilings;
mod models;
mod peak;
mod rate;
mod simulate;

pub use boards::{BOARDS, Board};
pub use ceilings::{Ceilings, LevelCeiling, Rate, clock_ghz};
pub use models::{Accesses, Fpga, FpgaDesign, Granularity, TensorCounts, TensorOp, TreeCounts, Work};
pub use peak::{add_peak, fma_peak};
pub use simulate::{FpgaOp, FpgaRun, FpgaTimes, RowStore};
