//! One file per operation, each an `impl Cpu`: shape checks, then disjoint parts of the output, then kernels.

mod elementwise;
mod fusedmm;
mod mttkrp;
mod operand;
mod prepare;
mod run;
mod sddmm;
mod spmm;
mod ttm;
mod ttm_chain;
mod ttv;

pub use mttkrp::Mttkrp;
pub use operand::Sparse;
pub use prepare::Prepared;
pub use sparsimd_kernels::Arithmetic;
pub use ttm::TtmAlgorithm;
