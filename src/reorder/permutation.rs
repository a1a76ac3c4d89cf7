//! Permutations, and what they do to matrices and tensors.

use std::sync::Arc;

use sparsimd_kernels::{Scalar, Stored};

use crate::dense::{Mat, MatRef};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Csr, CsrRef, Pattern, PatternRef, check_mode, gather};
use crate::{cut, memory, parallel};

/// Nonzeros of a task that renumbers columns.
const NONZEROS: usize = 1 << 15;

/// A permutation p of 0..n: `new[i] = old[p[i]]`.
///
/// ```
/// use sparsimd::Mat;
/// use sparsimd::reorder::Permutation;
/// let p = Permutation::from_vec(vec![2, 0, 1])?;
/// let new = p.rows_of_mat(Mat::from_vec(3, 1, vec![10.0, 11.0, 12.0])?.as_ref())?;
/// assert_eq!((new[(0, 0)], new[(1, 0)], new[(2, 0)]), (12.0, 10.0, 11.0));
/// let old = p.inverse().rows_of_mat(new.as_ref())?;
/// assert_eq!(old[(0, 0)], 10.0);
/// # Ok::<(), sparsimd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    old: Vec<u32>,
}

impl Permutation {
    /// `p[i] = i`.
    ///
    /// # Errors
    /// [`Error::Argument`] when `len` exceeds u32; [`Error::Memory`].
    pub fn identity(len: usize) -> Result<Self> {
        let mut old = memory::reserve("a permutation", check_len(len)? as usize)?;
        old.extend(0..len as u32);
        Ok(Self { old })
    }

    /// `p[i] = old[i]`.
    ///
    /// # Errors
    /// [`Error::Argument`] when a number is not below the length or occurs twice, naming its place; [`Error::Memory`].
    pub fn from_vec(old: Vec<u32>) -> Result<Self> {
        check_len(old.len())?;
        let fail = |detail| Err(Error::argument("permutation", detail));
        let mut met = memory::zeros::<bool>("a permutation", old.len())?;
        for (i, &p) in old.iter().enumerate() {
            match met.get_mut(p as usize) {
                None => return fail(format!("element {i} is {p}, not below {}", old.len())),
                Some(true) => return fail(format!("element {i} is {p}, which occurs before")),
                Some(met) => *met = true,
            }
        }
        Ok(Self { old })
    }

    /// The permutation of an array that is known to be one.
    pub(super) fn trusted(old: Vec<u32>) -> Self {
        debug_assert!(Self::from_vec(old.clone()).is_ok());
        Self { old }
    }

    /// n.
    pub fn len(&self) -> usize {
        self.old.len()
    }

    /// Whether n is 0.
    pub fn is_empty(&self) -> bool {
        self.old.is_empty()
    }

    /// p: where each new element was.
    pub fn as_slice(&self) -> &[u32] {
        &self.old
    }

    /// p^-1: where each old element goes. `p.then(&p.inverse())` is the identity.
    pub fn inverse(&self) -> Self {
        let mut new = vec![0; self.len()];
        (0..).zip(&self.old).for_each(|(i, &p)| new[p as usize] = i);
        Self { old: new }
    }

    /// This permutation and then `next`: `new[i] = old[p[next[i]]]`.
    ///
    /// # Errors
    /// [`Error::Shape`] when the lengths differ.
    pub fn then(&self, next: &Self) -> Result<Self> {
        self.check("then", "the next permutation", next.len())?;
        Ok(Self { old: next.old.iter().map(|&q| self.old[q as usize]).collect() })
    }

    /// The matrix whose row i is row `p[i]` of `a`; columns ascend in each row.
    ///
    /// # Errors
    /// [`Error::Shape`] when `a` does not have n rows; [`Error::Memory`].
    pub fn rows_of<T: Scalar>(&self, a: &Csr<T>) -> Result<Csr<T>> {
        self.check("rows_of", "the rows of A", a.rows())?;
        permuted(a.as_ref(), self, &Self::identity(a.cols())?)
    }

    /// The matrix whose column j is column `p[j]` of `a`; columns ascend in each row.
    ///
    /// # Errors
    /// [`Error::Shape`] when `a` does not have n columns; [`Error::Memory`].
    pub fn cols_of<T: Scalar>(&self, a: &Csr<T>) -> Result<Csr<T>> {
        self.check("cols_of", "the columns of A", a.cols())?;
        permuted(a.as_ref(), &Self::identity(a.rows())?, self)
    }

    /// The dense matrix whose row i is row `p[i]` of `b`.
    ///
    /// # Errors
    /// [`Error::Shape`] when `b` does not have n rows; as [`Mat::zeros`].
    pub fn rows_of_mat<D: Stored>(&self, b: MatRef<'_, D>) -> Result<Mat<D>> {
        self.check("rows_of_mat", "the rows of B", b.rows())?;
        let mut out = Mat::zeros(b.rows(), b.cols())?;
        out.iter_rows_mut().zip(&self.old).for_each(|(row, &p)| row.copy_from_slice(b.row(p as usize)));
        Ok(out)
    }

    /// The tensor whose slice i of `mode` is slice `p[i]` of `x`; the entries stay in their order.
    ///
    /// # Errors
    /// [`Error::Argument`] when there is no such mode; [`Error::Shape`] when it is not n long; [`Error::Memory`].
    pub fn mode_of<T: Scalar>(&self, x: &CooTensor<T>, mode: usize) -> Result<CooTensor<T>> {
        check_mode(mode, x.order())?;
        self.check("mode_of", "the mode", x.dims()[mode])?;
        let entry = size_of::<T>() + size_of::<u32>() * x.order();
        memory::ensure(
            "a tensor in another order",
            memory::total(&[(x.nnz(), entry), (self.len(), size_of::<u32>())]),
        )?;
        let (dims, mut coords, values) = x.clone().into_parts();
        self.inverse().renumber(&mut coords[mode]);
        Ok(CooTensor::from_checked(dims, coords, values))
    }

    /// Each of `indices` becomes the element of this permutation that it names.
    pub(super) fn renumber(&self, indices: &mut [u32]) {
        parallel::chunks_mut(indices, parallel::GRAIN, |_, part| {
            part.iter_mut().for_each(|i| *i = self.old[*i as usize]);
        });
    }

    /// Whether `what`, of `len` elements, can be permuted.
    pub(super) fn check(&self, op: &'static str, what: &str, len: usize) -> Result<()> {
        if len == self.len() {
            return Ok(());
        }
        Err(Error::shape(op, format!("{what} are {len}, and the permutation has {} elements", self.len())))
    }
}

/// Whether `len` elements can be numbered by u32.
pub(super) fn check_len(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| Error::argument("permutation", format!("{len} elements exceed {}", u32::MAX)))
}

/// The matrix with element `(i, j)` = `a(rows[i], cols[j])`.
pub(super) fn permuted<T: Scalar>(a: CsrRef<'_, T>, rows: &Permutation, cols: &Permutation) -> Result<Csr<T>> {
    let (pattern, places) = permuted_pattern(a.pattern(), rows, cols)?;
    memory::ensure("values in another order", memory::total(&[(a.nnz(), size_of::<T>())]))?;
    Csr::new(pattern, gather(a.values(), &places))
}

/// The pattern of element `(i, j)` = `a(rows[i], cols[j])`, columns ascending in each row, and the place in `a` of each of its
/// nonzeros.
pub(super) fn permuted_pattern(
    a: PatternRef<'_>,
    rows: &Permutation,
    cols: &Permutation,
) -> Result<(Arc<Pattern>, Vec<usize>)> {
    rows.check("permuted", "the rows of A", a.rows())?;
    cols.check("permuted", "the columns of A", a.cols())?;
    // Each nonzero once in a task's list, and once in the two arrays.
    let nonzero = size_of::<(u32, usize)>() + size_of::<u32>() + size_of::<usize>();
    let lines = (a.rows() + a.cols(), size_of::<usize>() + size_of::<u32>());
    memory::ensure("a matrix in another order", memory::total(&[(a.nnz(), nonzero), lines]))?;
    let new_cols = cols.inverse().old;
    let mut row_ptr = Vec::with_capacity(a.rows() + 1);
    row_ptr.push(0);
    let mut end = 0;
    row_ptr.extend(rows.old.iter().map(|&i| {
        end += a.row_ptr().row(i as usize).len();
        end
    }));
    let ranges = cut::ranges(a.rows(), a.nnz().div_ceil(NONZEROS).max(1), |i| row_ptr[i]);
    let parts = parallel::map_tasks(ranges.len(), |t| {
        let rows_of_part = ranges[t].clone();
        let mut part = Vec::with_capacity(row_ptr[rows_of_part.end] - row_ptr[rows_of_part.start]);
        for i in rows_of_part {
            let first = part.len();
            let nonzeros = a.row_ptr().row(rows.old[i] as usize);
            part.extend(nonzeros.map(|place| (new_cols[a.col_idx()[place] as usize], place)));
            part[first..].sort_unstable();
        }
        part
    });
    let nonzeros = || parts.iter().flatten();
    let col_idx = nonzeros().map(|&(col, _)| col).collect();
    Ok((Pattern::new(a.rows(), a.cols(), row_ptr, col_idx)?, nonzeros().map(|&(_, place)| place).collect()))
}
