//! Storage formats: owned, checked at construction, pattern apart from values.

mod bcsf;
mod block;
mod coo;
mod coo_tensor;
mod csf;
mod csf_set;
mod csr;
pub mod deposit;
mod fiber_coo;
mod hicoo;
mod linear;
mod mmcsf;
pub mod packing;
mod panel;
mod places;
pub mod radix;
mod semi_coo;
mod tiled;
mod transpose;

pub use bcsf::Bcsf;
pub(crate) use block::{Block, CellView};
pub use coo::Coo;
pub use coo_tensor::{CooTensor, MAX_ORDER};
pub(crate) use coo_tensor::{check_mode, check_tensor_dims};
pub use csf::{Csf, CsfPattern, rooted_mode_order};
pub use csf_set::{CsfKind, CsfSet};
pub use csr::{Csr, Pattern};
pub(crate) use csr::{Place, Violation};
pub use fiber_coo::{FiberCoo, Fibers};
pub use hicoo::{BlockPattern, DEFAULT_BLOCK_BITS, HiCoo};
pub use linear::{Linear, LinearKeys};
pub use mmcsf::{MmCsf, MmCsfStrategy, mmcsf_partition};
pub use panel::{MAX_WIDTH, Panel};
pub(crate) use places::gather;
pub use semi_coo::{SemiCoo, SemiHiCoo};
pub use tiled::{Offsets, Tiled, TiledSpec, TiledTask};
