//! One file per operation, each an `impl Cpu`: shape checks, then disjoint parts of the output, then kernels.
//!
//! # Tensor operations and formats
//!
//! | | COO | CSF | HiCOO family | B-CSF, MM-CSF, linearised, tiled, tree | sCOO |
//! | --- | --- | --- | --- | --- | --- |
//! | TEW, equal patterns | `tew` | `tew_values` | `tew_hicoo` | `tew_values` | `tew_values` |
//! | TEW, different patterns or shapes | `tew` | | | | |
//! | TS | `ts` | `ts_values` | `ts_hicoo` | `ts_values` | `ts_values` |
//! | TTV | `ttv`, `ttv_into` | `ttv_into` (leaf mode) | `ttv_hicoo` (free mode) | | |
//! | TTM | `ttm`, `ttm_into` | `ttm_into` (leaf mode) | `ttm_hicoo` (free mode) | | `ttm_semi` (any mode) |
//! | TTM chain | | `ttm_chain` (all but the root mode) | | | |
//! | MTTKRP | `mttkrp` | `mttkrp` | `mttkrp` | `mttkrp` | |
//!
//! MTTKRP chooses the way through the format by mode, see [`Cpu::mttkrp`](crate::Cpu::mttkrp); lists of coordinates and one
//! CSF per mode leave a choice ([`MttkrpAlgorithm`](crate::plan::MttkrpAlgorithm)). Tree is the format of partial products
//! that the modes of a sweep share ([`Cpu::mttkrp_sweep`](crate::Cpu::mttkrp_sweep)).
//!
//! COO goes through [`FiberCoo`](crate::formats::FiberCoo), its entries by the fibers of the mode, and so does every
//! other format by way of `to_coo`.

mod broadcast;
mod differentiable;
mod elementwise;
mod fusedmm;
mod fusedmm_heads;
mod gradient;
mod gradient_rows;
mod heads;
mod long_fibers;
mod measure;
mod mttkrp;
mod operand;
mod pairwise;
mod placed;
mod prepare;
mod reduce;
mod row_sums;
mod run;
mod sddmm;
mod spmm;
mod spmv;
mod streamed;
mod ttm;
mod ttm_chain;
mod ttm_streamed;
mod ttv;
mod values;

pub use differentiable::Differentiable;
pub use fusedmm_heads::EdgeWeighting;
pub use gradient::FusedGradient;
#[cfg(feature = "decomp")]
pub(crate) use mttkrp::SweepState;
pub use mttkrp::{MttkrpCounts, MttkrpTensor, StreamedTensor};
pub use operand::SparseOperand;
pub use placed::NumaPrepared;
pub use prepare::Prepared;
pub use reduce::Reduction;
pub use sparsimd_kernels::Arithmetic;
pub use streamed::DenseRows;
pub use ttm::TtmAlgorithm;
#[cfg(feature = "vulkan")]
pub(crate) use ttm_chain::chain_cols;
pub use values::NarrowCsr;
