//! Coordinates grouped by the fibers of one mode: what TTV and TTM in that mode work on.
//!
//! ```text
//! ptr[fiber] .. ptr[fiber + 1]   the nonzeros of a fiber
//! coords[level][fiber]           its coordinates in the other modes, ascending
//! leaf[nonzero], values[nonzero] coordinate in the mode, ascending inside a fiber, and value
//! ```

use sparsimd_kernels::Scalar;

use super::coo_tensor::check_mode;
use super::places::gather;
use super::{CooTensor, Csf};
use crate::error::{Error, Result};
use crate::{memory, parallel};

/// The nonzeros of a tensor by the fibers of one mode, borrowed from any format that has them so.
#[derive(Clone, Copy, Debug)]
pub struct Fibers<'a, T> {
    pub(crate) dim: usize,
    pub(crate) ptr: &'a [usize],
    pub(crate) leaf: &'a [u32],
    pub(crate) values: &'a [T],
}

impl<'a, T: Scalar> Fibers<'a, T> {
    /// The fibers of the last level of `csf`.
    ///
    /// # Errors
    /// [`Error::Structure`] for a tensor of order 1, which has no level above its nonzeros.
    pub fn of_csf(csf: &'a Csf<T>) -> Result<Self> {
        let pattern = csf.pattern();
        let Some(level) = pattern.order().checked_sub(2) else {
            return Err(Error::structure("CSF", "a tensor of order 1 has no level of fibers"));
        };
        let dim = pattern.dims()[pattern.mode_order()[level + 1]];
        Ok(Self { dim, ptr: pattern.ptr(level), leaf: pattern.idx(level + 1), values: csf.values() })
    }

    /// Length of the mode: rows of a matrix that the tensor can be multiplied with.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of fibers.
    pub fn len(&self) -> usize {
        self.ptr.len() - 1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.leaf.len()
    }
}

impl<'a, T: Scalar> From<&'a FiberCoo<T>> for Fibers<'a, T> {
    fn from(x: &'a FiberCoo<T>) -> Self {
        Self { dim: x.dims[x.mode], ptr: &x.ptr, leaf: &x.leaf, values: &x.values }
    }
}

/// A sparse tensor in coordinate format, sorted by the fibers of one mode, whose places are stored once per fiber.
#[derive(Clone, Debug, PartialEq)]
pub struct FiberCoo<T> {
    dims: Vec<usize>,
    mode: usize,
    ptr: Vec<usize>,
    coords: Vec<Vec<u32>>,
    leaf: Vec<u32>,
    values: Vec<T>,
}

impl<T: Scalar> FiberCoo<T> {
    /// `coo` by the fibers of `mode`. Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// [`Error::Argument`] when `mode` is not below the order; [`Error::Structure`] when two entries have the same place.
    #[inline(never)]
    pub fn new(mut coo: CooTensor<T>, mode: usize) -> Result<Self> {
        check_mode(mode, coo.order())?;
        let others: Vec<usize> = (0..coo.order()).filter(|&m| m != mode).collect();
        coo.sort(&[&others[..], &[mode]].concat())?;
        coo.check_sorted_unique()?;
        // A pointer, copied once while it is found, and coordinates of each fiber: at most one for each nonzero.
        let each = 2 * size_of::<usize>() + coo.entry_bytes();
        memory::ensure("a tensor by fibers", coo.nnz().saturating_mul(each))?;
        let head = |p: usize| p == 0 || others.iter().any(|&m| coo.coords(m)[p - 1] != coo.coords(m)[p]);
        let mut ptr = parallel::filter(coo.nnz(), head);
        let at_heads = |&m: &usize| gather(coo.coords(m), &ptr);
        let coords = others.iter().map(at_heads).collect();
        ptr.push(coo.nnz());
        let (dims, mut all, values) = coo.into_parts();
        Ok(Self { dims, mode, ptr, coords, leaf: all.swap_remove(mode), values })
    }

    /// The fibers of the last level of `csf`, whose mode is the tensor's.
    ///
    /// # Errors
    /// [`Error::Structure`] when the tensor was split (B-CSF), so that a fiber occurs twice.
    #[inline(never)]
    pub fn from_csf(csf: &Csf<T>) -> Result<Self> {
        let pattern = csf.pattern();
        let last = pattern.order() - 1;
        let mode = pattern.mode_order()[last];
        if last == 0 {
            return Self::new(csf.to_coo(), mode);
        }
        let fibers = pattern.nodes(last - 1);
        let mut coords = vec![Vec::new(); last];
        // Fibers below each node of the level at hand, found bottom-up.
        let mut below: Vec<usize> = (0..=fibers).collect();
        for level in (0..last).rev() {
            if level + 1 < last {
                below = pattern.ptr(level).iter().map(|&child| below[child]).collect();
            }
            let mut indices = Vec::with_capacity(fibers);
            for (node, &i) in pattern.idx(level).iter().enumerate() {
                indices.resize(below[node + 1], i);
            }
            let m = pattern.mode_order()[level];
            coords[m - usize::from(m > mode)] = indices;
        }
        let repeated = (1..fibers).find(|&f| coords.iter().all(|indices: &Vec<u32>| indices[f - 1] == indices[f]));
        if let Some(f) = repeated {
            return Err(Error::structure("CSF", format!("fibers {} and {f} are one that was split", f - 1)));
        }
        Ok(Self {
            dims: pattern.dims().to_vec(),
            mode,
            ptr: pattern.ptr(last - 1).to_vec(),
            coords,
            leaf: pattern.idx(last).to_vec(),
            values: csf.values().to_vec(),
        })
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The mode whose fibers these are.
    pub fn mode(&self) -> usize {
        self.mode
    }

    /// Number of fibers.
    pub fn num_fibers(&self) -> usize {
        self.ptr.len() - 1
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// First nonzero of each fiber, and the end of the last one.
    pub fn ptr(&self) -> &[usize] {
        &self.ptr
    }

    /// Coordinates of the fibers, one array for each of the other modes, ascending.
    pub fn coords(&self) -> &[Vec<u32>] {
        &self.coords
    }

    /// Coordinate of each nonzero in the mode.
    pub fn leaf(&self) -> &[u32] {
        &self.leaf
    }

    /// The value of each nonzero.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The value of each nonzero, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Bytes of pointers (8 for each fiber) and coordinates (4 for each fiber and other mode, 4 for each nonzero).
    pub fn index_bytes(&self) -> usize {
        let coords = self.coords.len() * self.num_fibers() + self.nnz();
        size_of::<usize>() * self.ptr.len() + size_of::<u32>() * coords
    }

    /// The same tensor in coordinate format, sorted by fibers.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let mut coords: Vec<Vec<u32>> = self
            .coords
            .iter()
            .map(|indices| {
                let fibers = indices.iter().zip(self.ptr.windows(2));
                fibers.flat_map(|(&i, range)| std::iter::repeat_n(i, range[1] - range[0])).collect()
            })
            .collect();
        coords.insert(self.mode, self.leaf.clone());
        CooTensor::from_checked(self.dims.clone(), coords, self.values.clone())
    }
}
