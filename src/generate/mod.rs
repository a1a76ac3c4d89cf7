//! Synthetic inputs: seeded, the same on every number of threads.

mod bernoulli;
mod distinct;
mod extreme;
mod matrix;
mod models;
mod named;
mod random;
mod structured;

pub use bernoulli::kronecker_bernoulli;
pub use extreme::{dense_fibers, dense_slices, lone_in_fiber, lone_in_slice};
pub use matrix::{random_matrix, uniform_dense, uniform_rows, uniform_values};
pub use models::{Initiator, kronecker, power_law, power_law_slices, skewed};
pub use named::{DEFAULT_EXPONENT, Model, TensorSpec, parse_dims};
pub use structured::{MatrixModel, MatrixSpec, pruned};
