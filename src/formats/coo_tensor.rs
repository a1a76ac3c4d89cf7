//! Coordinate format of a tensor of any order: the hub that files are read into and every other format is made from.

use sparsimd_kernels::Scalar;

use crate::error::{Error, Result};

/// The largest supported number of modes.
pub const MAX_ORDER: usize = 8;

/// A sparse tensor as one coordinate array per mode and one value array; any order of the entries.
#[derive(Clone, Debug, PartialEq)]
pub struct CooTensor<T> {
    dims: Vec<usize>,
    coords: Vec<Vec<u32>>,
    values: Vec<T>,
}

impl<T: Scalar> CooTensor<T> {
    /// The tensor with `values[p]` at the place `(coords[0][p], coords[1][p], ...)`.
    ///
    /// # Errors
    /// [`Error::Structure`] when the order is not 1 to [`MAX_ORDER`], a dimension exceeds u32, the arrays differ in
    /// number or length, or a coordinate is out of range.
    pub fn new(dims: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<T>) -> Result<Self> {
        let fail = |detail: String| Err(Error::structure("tensor", detail));
        if dims.is_empty() || dims.len() > MAX_ORDER {
            return fail(format!("order {} is not between 1 and {MAX_ORDER}", dims.len()));
        }
        if coords.len() != dims.len() {
            return fail(format!("{} coordinate arrays for order {}", coords.len(), dims.len()));
        }
        for (mode, (indices, &dim)) in coords.iter().zip(&dims).enumerate() {
            super::coo::check_dims("tensor", dim, 0)?;
            if indices.len() != values.len() {
                return fail(format!("mode {mode}: {} coordinates for {} values", indices.len(), values.len()));
            }
            if let Some(p) = indices.iter().position(|&i| i as usize >= dim) {
                return fail(format!("entry {p}: coordinate {} of mode {mode} is not below {dim}", indices[p]));
            }
        }
        Ok(Self { dims, coords, values })
    }

    /// Number of modes.
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The coordinate of each entry in `mode`.
    ///
    /// # Panics
    /// When `mode` is not below [`CooTensor::order`], as slice indexing does.
    pub fn coords(&self, mode: usize) -> &[u32] {
        &self.coords[mode]
    }

    /// The value of each entry.
    pub fn values(&self) -> &[T] {
        &self.values
    }
}
