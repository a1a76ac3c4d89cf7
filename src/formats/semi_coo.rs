//! sCOO: a semi-sparse tensor, whose chosen modes are dense: every stored place of the sparse modes holds a dense block.

use sparsimd_kernels::Scalar;

use super::CooTensor;
use super::coo_tensor::{check_modes, check_tensor_dims};
use super::hicoo::{BlockPattern, Blocked, block};
use super::places::Places;
use crate::dense::{Mat, MatMut, MatRef};
use crate::error::{Error, Result};
use crate::parallel;

/// A semi-sparse tensor in coordinate format.
///
/// Entry `p` lies at the coordinates `coords(level)[p]` of the sparse modes (ascending) and holds the block `values.row(p)`:
/// row-major over the dense modes in the order of [`SemiCoo::dense_modes`], the last one contiguous.
#[derive(Clone, Debug)]
pub struct SemiCoo<T> {
    dims: Vec<usize>,
    sparse_modes: Vec<usize>,
    dense_modes: Vec<usize>,
    coords: Vec<Vec<u32>>,
    values: Mat<T>,
}

/// The modes that are not in `dense_modes`, ascending, and the size of a dense block.
fn split_modes(dims: &[usize], dense_modes: &[usize]) -> Result<(Vec<usize>, usize)> {
    check_tensor_dims(dims)?;
    check_modes("dense_modes", dense_modes, dims.len())?;
    if dense_modes.is_empty() {
        return Err(Error::argument("dense_modes", "a semi-sparse tensor has at least one"));
    }
    let block = dense_modes.iter().try_fold(1usize, |n, &mode| n.checked_mul(dims[mode]));
    let block = block.ok_or_else(|| Error::argument("dense_modes", "the block does not fit the address space"))?;
    Ok(((0..dims.len()).filter(|mode| !dense_modes.contains(mode)).collect(), block))
}

impl<T: Scalar> SemiCoo<T> {
    /// The tensor of `dims` whose modes `dense_modes` are dense, with the block `values.row(p)` at the coordinates
    /// `coords[level][p]` of the other modes, ascending.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense modes are none, out of range or repeated; [`Error::Structure`] when the arrays
    /// differ in number or length, the rows of `values` are not blocks, a coordinate is out of range or a place occurs twice.
    pub fn new(dims: Vec<usize>, dense_modes: Vec<usize>, coords: Vec<Vec<u32>>, values: Mat<T>) -> Result<Self> {
        let fail = |detail: String| Err(Error::structure("sCOO", detail));
        let (sparse_modes, block) = split_modes(&dims, &dense_modes)?;
        if coords.len() != sparse_modes.len() {
            return fail(format!("{} coordinate arrays for {} sparse modes", coords.len(), sparse_modes.len()));
        }
        if let Some(indices) = coords.iter().find(|indices| indices.len() != values.rows()) {
            return fail(format!("{} coordinates for {} blocks", indices.len(), values.rows()));
        }
        if values.cols() != block {
            return fail(format!("blocks of {} values where the dense modes need {block}", values.cols()));
        }
        let sparse_dims: Vec<usize> = sparse_modes.iter().map(|&mode| dims[mode]).collect();
        let places = Places { dims: &sparse_dims, coords: &coords, n: values.rows() };
        if let Some((p, level)) = places.outside() {
            let (i, mode) = (coords[level][p], sparse_modes[level]);
            return fail(format!("block {p}: coordinate {i} of mode {mode} is not below {}", dims[mode]));
        }
        if let Some((p, q)) = places.duplicate() {
            return fail(format!("blocks {p} and {q} are both at {:?}", places.place(p)));
        }
        Ok(Self { dims, sparse_modes, dense_modes, coords, values })
    }

    /// The tensor of arrays that are known to be valid.
    pub(crate) fn from_checked(
        dims: Vec<usize>,
        dense_modes: Vec<usize>,
        coords: Vec<Vec<u32>>,
        values: Mat<T>,
    ) -> Self {
        let sparse_modes: Vec<usize> = (0..dims.len()).filter(|mode| !dense_modes.contains(mode)).collect();
        debug_assert_eq!(coords.len(), sparse_modes.len());
        debug_assert!(coords.iter().all(|indices| indices.len() == values.rows()));
        Self { dims, sparse_modes, dense_modes, coords, values }
    }

    /// `coo` with the modes `dense_modes` dense; places that it does not store become zeros of the blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense modes are none, out of range or repeated, or the blocks do not fit the address
    /// space; [`Error::Structure`] when two entries have the same place.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, dense_modes: &[usize]) -> Result<Self> {
        let (sparse_modes, block) = split_modes(coo.dims(), dense_modes)?;
        let mode_order: Vec<usize> = sparse_modes.iter().chain(dense_modes).copied().collect();
        coo.ensure("sCOO", coo.entry_bytes() + size_of::<usize>())?;
        let mut sorted = coo.clone();
        sorted.sort(&mode_order)?;
        sorted.check_sorted_unique()?;
        let same = |p: usize, q: usize| sparse_modes.iter().all(|&m| sorted.coords(m)[p] == sorted.coords(m)[q]);
        let heads: Vec<usize> = (0..sorted.nnz()).filter(|&p| p == 0 || !same(p - 1, p)).collect();
        let mut values = Mat::zeros(heads.len(), block)?;
        let stride = values.as_ref().stride();
        let data = values.as_mut().into_data();
        for (row, &head) in heads.iter().enumerate() {
            let end = heads.get(row + 1).copied().unwrap_or(sorted.nnz());
            for p in head..end {
                let at = dense_modes.iter().fold(0, |at, &m| at * coo.dims()[m] + sorted.coords(m)[p] as usize);
                data[row * stride + at] = sorted.values()[p];
            }
        }
        let coords = sparse_modes.iter().map(|&m| heads.iter().map(|&p| sorted.coords(m)[p]).collect()).collect();
        Ok(Self::from_checked(coo.dims().to_vec(), dense_modes.to_vec(), coords, values))
    }

    /// The same tensor in coordinate format, without the zeros of the blocks.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        let dense_dims: Vec<usize> = self.dense_modes.iter().map(|&mode| self.dims[mode]).collect();
        let mut coords = vec![Vec::new(); self.dims.len()];
        let mut values = Vec::new();
        for p in 0..self.num_blocks() {
            for (at, &x) in self.values.row(p).iter().enumerate().filter(|(_, x)| **x != T::ZERO) {
                let mut rest = at;
                for (&mode, &dim) in self.dense_modes.iter().zip(&dense_dims).rev() {
                    coords[mode].push((rest % dim) as u32);
                    rest /= dim;
                }
                for (&mode, indices) in self.sparse_modes.iter().zip(&self.coords) {
                    coords[mode].push(indices[p]);
                }
                values.push(x);
            }
        }
        CooTensor::from_checked(self.dims.clone(), coords, values)
    }

    /// Number of modes, dense ones included.
    pub fn order(&self) -> usize {
        self.dims.len()
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The sparse modes, ascending.
    pub fn sparse_modes(&self) -> &[usize] {
        &self.sparse_modes
    }

    /// The dense modes, in the order of the blocks' layout.
    pub fn dense_modes(&self) -> &[usize] {
        &self.dense_modes
    }

    /// Number of dense blocks.
    pub fn num_blocks(&self) -> usize {
        self.values.rows()
    }

    /// Values of one block: the product of the dense modes' lengths.
    pub fn block_len(&self) -> usize {
        self.values.cols()
    }

    /// Coordinate of each block in the `level`-th sparse mode.
    ///
    /// # Panics
    /// When there is no such mode, as slice indexing does.
    pub fn coords(&self, level: usize) -> &[u32] {
        &self.coords[level]
    }

    /// Coordinate arrays of all sparse modes.
    pub fn all_coords(&self) -> &[Vec<u32>] {
        &self.coords
    }

    /// The blocks, one a row.
    pub fn values(&self) -> MatRef<'_, T> {
        self.values.as_ref()
    }

    /// The blocks, one a row, to be changed in place.
    ///
    /// ```
    /// # use sparsimd::{CooTensor, formats::SemiCoo};
    /// let x = CooTensor::new(vec![2, 3], vec![vec![0, 1], vec![0, 2]], vec![2.0, 3.0])?;
    /// let mut x = SemiCoo::from_coo(&x, &[1])?;
    /// x.values_mut().into_row(1)[0] = 5.0;
    /// assert_eq!(x.values().row(1), [5.0, 0.0, 3.0]);
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    ///
    /// Their number and length are the tensor's and stay:
    ///
    /// ```compile_fail,E0308
    /// # use sparsimd::{CooTensor, Mat, formats::SemiCoo};
    /// # let x = CooTensor::new(vec![2, 3], vec![vec![0, 1], vec![0, 2]], vec![2.0, 3.0]).unwrap();
    /// let mut x = SemiCoo::from_coo(&x, &[1]).unwrap();
    /// std::mem::swap(x.values_mut(), &mut Mat::zeros(9, 9).unwrap());
    /// ```
    pub fn values_mut(&mut self) -> MatMut<'_, T> {
        self.values.as_mut()
    }

    /// Bytes of the coordinates: 4 per block and sparse mode.
    pub fn index_bytes(&self) -> usize {
        size_of::<u32>() * self.sparse_modes.len() * self.num_blocks()
    }
}

/// sHiCOO: a semi-sparse tensor whose sparse modes are blocked as in HiCOO.
#[derive(Clone, Debug)]
pub struct SemiHiCoo<T> {
    dims: Vec<usize>,
    dense_modes: Vec<usize>,
    pattern: BlockPattern,
    values: Mat<T>,
}

impl<T: Scalar> SemiHiCoo<T> {
    /// `scoo` with its sparse modes in blocks of 2^`block_bits` (1 to 8) coordinates.
    ///
    /// # Errors
    /// [`Error::Argument`] for other block sizes or when the values do not fit the address space; [`Error::Structure`] when the
    /// coordinates of a place need more than 128 bits together.
    pub fn new(scoo: &SemiCoo<T>, block_bits: u32) -> Result<Self> {
        let sparse_dims: Vec<usize> = scoo.sparse_modes.iter().map(|&mode| scoo.dims[mode]).collect();
        let places = Places { dims: &sparse_dims, coords: &scoo.coords, n: scoo.num_blocks() };
        let levels: Vec<usize> = (0..sparse_dims.len()).collect();
        let Blocked { mut pattern, payload, .. } = block("sHiCOO", places, &levels, &[], block_bits, |p| p)?;
        pattern.set_modes(scoo.sparse_modes.clone());
        let mut values = Mat::zeros(scoo.num_blocks(), scoo.block_len())?;
        let stride = values.as_ref().stride().max(1);
        parallel::chunks_mut(values.as_mut().into_data(), stride, |row, to| {
            to[..scoo.block_len()].copy_from_slice(scoo.values.row(payload[row]));
        });
        Ok(Self { dims: scoo.dims.clone(), dense_modes: scoo.dense_modes.clone(), pattern, values })
    }

    /// The tensor of arrays that are known to be valid.
    pub(crate) fn from_checked(
        dims: Vec<usize>,
        dense_modes: Vec<usize>,
        pattern: BlockPattern,
        values: Mat<T>,
    ) -> Self {
        debug_assert_eq!(pattern.ptr()[pattern.num_blocks()], values.rows());
        Self { dims, dense_modes, pattern, values }
    }

    /// The same tensor in sCOO, blocks in the same order.
    pub fn to_semi_coo(&self) -> SemiCoo<T> {
        let coords = (0..self.pattern.modes().len()).map(|level| self.pattern.expand(level)).collect();
        SemiCoo::from_checked(self.dims.clone(), self.dense_modes.clone(), coords, self.values.clone())
    }

    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The dense modes, in the order of the blocks' layout.
    pub fn dense_modes(&self) -> &[usize] {
        &self.dense_modes
    }

    /// Blocks of the sparse modes.
    pub fn pattern(&self) -> &BlockPattern {
        &self.pattern
    }

    /// The dense blocks, one a row.
    pub fn values(&self) -> MatRef<'_, T> {
        self.values.as_ref()
    }

    /// The dense blocks, one a row, to be changed in place.
    ///
    /// Their number and length are the tensor's and stay:
    ///
    /// ```compile_fail,E0308
    /// # use sparsimd::{CooTensor, Mat, formats::{SemiCoo, SemiHiCoo}};
    /// # let x = CooTensor::new(vec![2, 3], vec![vec![0, 1], vec![0, 2]], vec![2.0, 3.0]).unwrap();
    /// let mut x = SemiHiCoo::new(&SemiCoo::from_coo(&x, &[1]).unwrap(), 2).unwrap();
    /// std::mem::swap(x.values_mut(), &mut Mat::zeros(9, 9).unwrap());
    /// ```
    pub fn values_mut(&mut self) -> MatMut<'_, T> {
        self.values.as_mut()
    }

    /// Bytes of all indices.
    pub fn index_bytes(&self) -> usize {
        self.pattern.index_bytes()
    }
}
