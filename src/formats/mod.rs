//! Storage formats: owned, checked at construction, pattern apart from values.

mod alto;
mod batch;
mod bcsf;
mod borrowed;
mod coo;
mod coo_tensor;
mod csf;
mod csf_set;
mod csr;
mod deposit;
mod fiber_coo;
mod hicoo;
mod mmcsf;
pub(crate) mod packing;
mod panel;
mod places;
pub(crate) mod radix;
mod row_block;
mod semi_coo;
mod slices;
mod tiled;
mod transpose;

pub use alto::{Alto, AltoKeys};
pub use bcsf::{Bcsf, BcsfLimits};
pub use borrowed::{ColumnIndex, CsrRef, PatternRef, PointerIndex, RowPointers};
pub(crate) use coo::counting_sort;
pub use coo::{Coo, CooRef};
pub use coo_tensor::{CooTensor, MAX_ORDER};
pub(crate) use coo_tensor::{check_mode, check_modes, check_tensor_dims};
pub(crate) use csf::sort_by_length;
pub use csf::{Csf, CsfPattern, rooted_mode_order};
pub use csf_set::{CsfKind, CsfSet};
pub use csr::{Csr, Pattern};
pub(crate) use csr::{Place, Violation};
pub use fiber_coo::{FiberCoo, Fibers};
pub use hicoo::{BlockPattern, DEFAULT_BLOCK_BITS, HiCoo};
pub use mmcsf::{MmCsf, MmCsfStrategy, mmcsf_partition};
pub use panel::{MAX_WIDTH, Panel};
pub(crate) use places::{Places, gather};
pub(crate) use row_block::{BlockView, RowBlock};
pub use semi_coo::{SemiCoo, SemiHiCoo};
pub use slices::Slices;
pub use tiled::{Offsets, Tiled, TiledSpec, TiledTask};

use crate::error::{Error, Result};

/// Whether `rows` x `cols` can be addressed by u32 indices.
fn check_dims(format: &'static str, rows: usize, cols: usize) -> Result<()> {
    // u32::MAX + 1 rows would still be addressable, but 2^32 as a length does not fit 32-bit hosts.
    match rows.max(cols) {
        n if n <= u32::MAX as usize => Ok(()),
        n => Err(Error::structure(format, format!("dimension {n} exceeds the largest one, {}", u32::MAX))),
    }
}
