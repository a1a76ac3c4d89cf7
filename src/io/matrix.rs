//! A matrix from a file of any format, and to one.

use std::path::Path;
use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::mtx::at_repeated;
use super::{Format, ReadOptions, read_mtx, read_smtx, write_mtx, write_smtx};
use crate::error::{Error, Result};
use crate::formats::{Coo, Csr, Pattern};
use crate::memory;

/// What a matrix file holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Matrix<T> {
    /// Places only (`.smtx`, and `.mtx` of field `pattern`).
    Pattern(Arc<Pattern>),
    /// Places and values.
    Values(Csr<T>),
}

impl<T: Scalar> Matrix<T> {
    /// Where the nonzeros are.
    pub fn pattern(&self) -> &Arc<Pattern> {
        match self {
            Self::Pattern(pattern) => pattern,
            Self::Values(csr) => csr.pattern(),
        }
    }

    /// The matrix with its own values, or with ones where the file has none.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline(never)]
    pub fn into_csr(self) -> Result<Csr<T>> {
        match self {
            Self::Values(csr) => Ok(csr),
            Self::Pattern(pattern) => {
                let mut values = Vec::new();
                memory::grow("values of the matrix", &mut values, pattern.nnz())?;
                values.resize(pattern.nnz(), T::ONE);
                Csr::new(pattern, values)
            }
        }
    }

    /// The matrix with its own values, or with `values(nnz)` where the file has none.
    ///
    /// # Errors
    /// [`Error::Structure`] when `values` returns another number of values.
    pub fn into_csr_with(self, values: impl FnOnce(usize) -> Vec<T>) -> Result<Csr<T>> {
        match self {
            Self::Values(csr) => Ok(csr),
            Self::Pattern(pattern) => {
                let values = values(pattern.nnz());
                Csr::new(pattern, values)
            }
        }
    }
}

/// The matrix in the file `path`, whose name tells the format; columns ascend in each row of an `.mtx` file and stay as
/// they are in an `.smtx` file.
///
/// # Errors
/// [`Error::Argument`] for a name of no known format, [`Error::Io`], and [`Error::Parse`] with the file and line of the
/// first mistake; of two entries at the same place that is the second one.
#[inline(never)]
pub fn read_matrix<T: Scalar>(path: &Path, options: ReadOptions<'_>) -> Result<Matrix<T>> {
    match Format::of(path)? {
        Format::Mtx => {
            let (coo, valued) = read_mtx::<T>(path, options)?;
            let sorted =
                |coo: Coo<T>| coo.to_csr().map_err(|e| at_repeated(path, &coo).unwrap_or_else(|| whole_file(path, e)));
            let csr = coo.into_csr().or_else(sorted)?;
            Ok(if valued { Matrix::Values(csr) } else { Matrix::Pattern(Arc::clone(csr.pattern())) })
        }
        Format::Smtx => read_smtx(path, options).map(Matrix::Pattern),
    }
}

/// Writes `matrix` to the file `path`, whose name tells the format. An `.smtx` file drops the values.
///
/// # Errors
/// [`Error::Argument`] for a name of no known format, [`Error::Io`].
#[inline(never)]
pub fn write_matrix<T: Scalar>(path: &Path, matrix: &Matrix<T>) -> Result<()> {
    match Format::of(path)? {
        Format::Mtx => write_mtx(path, matrix),
        Format::Smtx => write_smtx(path, matrix.pattern()),
    }
}

/// A mistake that only the assembled matrix shows, as an error of its file.
pub(super) fn whole_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Structure { detail, .. } => Error::Parse { path: path.to_owned(), line: 0, detail },
        Error::Memory { what, bytes } => Error::Memory { what: format!("{}: {what}", path.display()), bytes },
        other => other,
    }
}
