//! Matrices and tensors from files and to them.

use std::path::{Path, PathBuf};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sparsimd::io::{
    Duplicates, Format, Matrix, ReadOptions, TensorFormat, read_matrix, read_tensor, write_matrix, write_tensor,
};
use sparsimd::{CooTensor, CsrRef};

use crate::array::{Element, is_single};
use crate::error::{exception, released};
use crate::matrix::Csr;
use crate::sparse::{Given, Typed, each};
use crate::tensor::Tensor;

/// Read a matrix or a tensor.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     ``.mtx`` and ``.smtx`` are matrices, ``.tns`` and ``.tnsb`` tensors; all but the last may be gzip-compressed (``.gz``).
///     Matrix entries without values are ones.
/// dtype : dtype, optional
///     ``float32`` or ``float64`` (default).
/// zero_based : bool, optional
///     Whether coordinates in a ``.tns`` file count from 0.
/// sum_duplicates : bool, optional
///     Whether entries of a tensor at the same place are added up. They are refused otherwise, as in a matrix.
///
/// Returns
/// -------
/// CSR or Tensor
///
/// Raises
/// ------
/// OSError
///     When the file cannot be read.
/// ValueError
///     With the line, when its text is malformed; for a name of no known format.
#[pyfunction]
#[pyo3(signature = (path, *, dtype = None, zero_based = false, sum_duplicates = false))]
pub fn read<'py>(
    py: Python<'py>,
    path: PathBuf,
    dtype: Option<&Bound<'py, PyAny>>,
    zero_based: bool,
    sum_duplicates: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let single = dtype.map(|dtype| is_single(py, dtype, "dtype")).transpose()?.unwrap_or(false);
    if single {
        read_as::<f32>(py, &path, zero_based, sum_duplicates)
    } else {
        read_as::<f64>(py, &path, zero_based, sum_duplicates)
    }
}

fn read_as<'py, T: Element>(
    py: Python<'py>,
    path: &Path,
    zero_based: bool,
    sum_duplicates: bool,
) -> PyResult<Bound<'py, PyAny>>
where
    Tensor: From<CooTensor<T>>,
{
    if TensorFormat::of(path).is_ok() {
        let duplicates = if sum_duplicates { Duplicates::Sum } else { Duplicates::Refuse };
        let read = || read_tensor::<T>(path, zero_based, duplicates, ReadOptions::default());
        let tensor = released(py, |cpu| cpu.install(read))?;
        return Ok(Bound::new(py, Tensor::from(tensor))?.into_any());
    }
    Format::of(path).map_err(|_| exception(unknown(path)))?;
    let matrix = released(py, |cpu| cpu.install(|| read_matrix::<T>(path, ReadOptions::default())?.into_csr()))?;
    Ok(Bound::new(py, Csr::of_core(py, matrix)?)?.into_any())
}

/// The error for a name of no known format.
fn unknown(path: &Path) -> sparsimd::Error {
    let detail = format!("{}: the name ends in none of .mtx, .smtx, .tns (.gz may follow), .tnsb", path.display());
    sparsimd::Error::Argument { name: "path", detail }
}

/// Write a matrix or a tensor: whole, or not at all.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     Its ending is the format, as in `read`. A ``.smtx`` file has no values.
/// x : CSR, Tensor, or what `csr` takes
///
/// Raises
/// ------
/// OSError
///     When the file cannot be written.
#[pyfunction]
pub fn write(py: Python<'_>, path: PathBuf, x: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(tensor) = x.cast::<Tensor>() {
        let write = |path: &Path| {
            each!(&tensor.get().inner, entries => {
                released(py, |cpu| cpu.install(|| write_tensor(path, &entries.coo)))
            })
        };
        return write(&path);
    }
    Format::of(&path).map_err(|_| exception(unknown(&path)))?;
    let Given::Matrix(matrix) = Given::of(x)? else {
        return Err(PyTypeError::new_err("x: a plan cannot be written; its matrix can"));
    };
    each!(matrix.get().floats()?, typed => write_as(py, &path, typed))
}

fn write_as<T: Element>(py: Python<'_>, path: &Path, matrix: &Typed<T>) -> PyResult<()> {
    let values = matrix.values(py)?;
    let values = values.slice();
    released(py, |cpu| {
        let matrix = Matrix::Values(CsrRef::on(&matrix.structure.pattern, values)?.to_csr());
        cpu.install(|| write_matrix(path, &matrix))
    })
}
