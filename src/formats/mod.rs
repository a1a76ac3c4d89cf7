//! Storage formats: owned, checked at construction, pattern apart from values.

mod coo;
mod coo_tensor;
mod csr;
pub mod packing;
pub mod radix;

pub use coo::Coo;
pub(crate) use coo_tensor::check_tensor_dims;
pub use coo_tensor::{CooTensor, MAX_ORDER};
pub use csr::{Csr, Pattern};
