//! Plans: how an operation will be done, decided from the pattern and the machine.
//!
//! Pure functions: no device, no values, and but for the statistics of a large pattern no threads. A [`Plan`] is data and explains itself in one line (`Display`).

mod choices;
mod device;
mod direct;
mod matrix;
mod mttkrp;
mod occupancy;
mod options;
mod partition;
mod placement;
mod share;
mod slices;
mod stats;
mod stream;
mod tensor;
mod tiles;
mod tree;
mod wisdom;

pub(crate) use choices::Choices;
pub use device::{DeviceShape, DeviceTasks, RowChunk, Team, device_mttkrp_format};
pub use direct::DirectPlan;
pub(crate) use direct::Stages;
pub use matrix::{PanelPlan, Plan};
pub(crate) use mttkrp::{ModePlan, joint_root};
pub use mttkrp::{MttkrpAlgorithm, MttkrpFormat, MttkrpPlan, TensorOptions};
pub use occupancy::threads_per_row;
pub(crate) use options::check_columns;
pub use options::{Effort, Measured, Op, PlanOptions, Strategy, Target};
pub(crate) use partition::{TASKS_PER_THREAD, alone, tasks, work};
pub use partition::{Task, blocks, by_nonzeros};
pub use placement::{BPlacement, NumaPolicy, RowPlacement, SharedOperand, split_rows};
pub use share::{PROBE, cut_by_share, share_by_rates};
pub use slices::SlicesPlan;
pub use stats::Stats;
pub(crate) use stream::streams;
pub use tensor::TensorStats;
pub(crate) use tree::{GroupPlan, TreePlan};
pub(crate) use wisdom::{Wisdom, WisdomCase};
