//! What a machine sustains, measured, and what an operation asks of it, by formula: the two axes of a roofline.
//!
//! [`Ceilings`] and [`fma_peak`] time short loops on the threads of an executor. [`Work`], [`TensorCounts`] and [`Fpga`] count
//! operations and bytes. [`FpgaRun`] simulates the designs for FPGAs on a described [`Board`].

use std::hint::black_box;

use sparsimd::Scalar;

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
pub use peak::{add_peak, fma_peak, integer_rate_now};
pub use simulate::{FpgaOp, FpgaRun, FpgaTimes, RowStore};

/// Mentions the generic functions that take time, so that they are compiled with this crate, for f32 and f64, and not with the program,
/// which is not optimised. As in the library, the compiler shares instances of functions that are `#[inline(never)]`.
#[doc(hidden)]
#[inline(never)]
pub fn compiled() {
    fn instances<T: Scalar>() {
        black_box([
            fma_peak::<T> as *const (),
            add_peak::<T> as *const (),
            TensorCounts::of::<T> as *const (),
            TreeCounts::of::<T> as *const (),
            FpgaRun::simulate::<T> as *const (),
        ]);
    }
    instances::<f32>();
    instances::<f64>();
}
