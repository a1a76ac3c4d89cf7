//! SIMD kernels of [sparsimd](https://docs.rs/sparsimd): slices and pointers in, slices out.
//!
//! No formats, no threads, no errors, no allocation. Every kernel is a private struct with pulp's [`pulp::WithSimd`],
//! behind one public function that takes the [`Arch`] and dispatches once, above its loops.

#![warn(missing_docs)]
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed by constants: the index is the register")]

mod address;
mod arch;
mod block;
mod by_tile;
mod convert;
mod dot;
pub mod edge;
mod edge_function;
mod edge_weights;
mod elementwise;
mod exp;
mod finite;
mod fusedmm;
mod gram;
mod head_sums;
mod heads;
pub mod mttkrp;
mod number;
mod pairing;
mod pairwise;
mod panel;
mod positions;
mod prefetch;
mod reduce;
mod row_ptr;
mod rows;
mod scalar;
mod sddmm;
pub mod semiring;
mod slices;
mod spmm;
mod spmv;
mod spread;
mod stored;
mod stream;
mod tile;
mod ttm;
mod ttm_chain;
mod walk;

/// The most modes of a tensor.
pub const MAX_ORDER: usize = 8;

pub use arch::Arch;
pub use block::{Block, OFFSETS_PER_WORD, Pair, RowSegment};
pub use convert::{NarrowRows, WidenRows, narrow_rows, widen_rows};
pub use edge_function::{EdgeFunction, Weights};
pub use edge_weights::{Dropout, EdgeGradients, EdgeWeights, edge_gradients, edge_weights};
pub use elementwise::{Arithmetic, Second, elementwise};
pub use exp::exp;
pub use fusedmm::{
    EdgeBlock, EdgeRows, FusedRows, SoftmaxRow, SoftmaxScale, edge_block, edge_rows, fused_rows, softmax_scale,
};
pub use gram::{add_gram, times_small};
pub use half::{bf16, f16};
pub use head_sums::{RowSums, SumRows, row_sums, sum_rows};
pub use heads::{HeadRows, SddmmHeads, SpmmHeads, sddmm_heads, spmm_heads};
pub use number::Number;
pub use pairing::{ColumnSet, pair_rows};
pub use pairwise::{Pairs, pair_rows_elementwise, pair_rows_reduce};
pub use panel::RowBlockSums;
pub use positions::{NO_POSITION, positions_into, reduce_positions};
pub use prefetch::{LINE, prefetch_l1, prefetch_row, prefetch_row_l2};
pub use reduce::{ReducePanel, ReduceRows, reduce_into, reduce_panel, reduce_rows};
pub use row_ptr::RowPtr;
pub use scalar::Scalar;
pub use sddmm::{PAIRED_LANES, SddmmPanel, SddmmRows, sddmm_panel, sddmm_rows};
pub use slices::{Slice, SpmvSlices, slice_rows, spmv_slices};
pub use spmm::{SpmmPanel, SpmmRows, scale_rows, spmm_panel, spmm_rows};
pub use stored::{Element, Stored};
pub use stream::{store_streaming, stream_fence};
pub use ttm::{TtmFibers, ttm_fibers};
pub use ttm_chain::{ChainLevel, TtmChain, chain_scratch, ttm_chain};
