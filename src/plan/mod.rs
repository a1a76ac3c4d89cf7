//! Plans: how an operation will be done, decided from the pattern and the machine.
//!
//! Pure functions: no threads, no device, no values. A [`Plan`] is data and explains itself in one line (`Display`).

mod device;
mod matrix;
mod mttkrp;
mod occupancy;
mod partition;
mod share;
mod stats;

pub use device::{DeviceShape, DeviceTasks, RowChunk, Team, device_mttkrp_format};
pub use matrix::{Op, Path, Plan, PlanOptions};
pub use mttkrp::{ModePlan, MttkrpFormat, MttkrpPlan, MttkrpRequest, TensorStats};
pub use occupancy::{MAX_THREADS_PER_ROW, threads_per_row};
pub use partition::{Task, blocks, by_nonzeros};
pub use share::{PROBE, cut_by_share, share_by_rates};
pub use stats::Stats;
