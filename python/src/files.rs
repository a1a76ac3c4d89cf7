//! Matrices and tensors from files and to them.

use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sparsimd::CsrRef;
use sparsimd::io::{Format, Matrix, ReadOptions, read_matrix, write_matrix};

use crate::array::{Element, is_single};
use crate::error::{exception, released};
use crate::matrix::Csr;
use crate::sparse::{Typed, each};

/// Read a matrix or a tensor.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     ``.mtx`` and ``.smtx`` are matrices, any of them gzip-compressed (``.gz``). Entries without values are ones.
/// dtype : dtype, optional
///     ``float32`` or ``float64`` (default).
///
/// Returns
/// -------
/// CSR
///
/// Raises
/// ------
/// OSError
///     When the file cannot be read.
/// ValueError
///     With the line, when its text is malformed; for a name of no known format.
#[pyfunction]
#[pyo3(signature = (path, *, dtype = None))]
pub fn read<'py>(py: Python<'py>, path: PathBuf, dtype: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let single = dtype.map(|dtype| is_single(py, dtype, "dtype")).transpose()?.unwrap_or(false);
    if single { read_as::<f32>(py, path) } else { read_as::<f64>(py, path) }
}

fn read_as<T: Element>(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    Format::of(&path).map_err(exception)?;
    let matrix = released(py, |cpu| cpu.install(|| read_matrix::<T>(&path, ReadOptions::default()))?.into_csr())?;
    Ok(Bound::new(py, Csr::of_core(py, &matrix)?)?.into_any())
}

/// Write a matrix or a tensor: whole, or not at all.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     Its ending is the format, as in `read`.
/// x : CSR or what `csr` takes
///
/// Raises
/// ------
/// OSError
///     When the file cannot be written.
#[pyfunction]
pub fn write(py: Python<'_>, path: PathBuf, x: &Bound<'_, PyAny>) -> PyResult<()> {
    let crate::sparse::Given::Matrix(matrix) = crate::sparse::Given::of(x)? else {
        return Err(PyTypeError::new_err("x: a plan cannot be written; its matrix can"));
    };
    each!(&matrix.get().inner, typed => write_as(py, &path, typed))
}

fn write_as<T: Element>(py: Python<'_>, path: &std::path::Path, matrix: &Typed<T>) -> PyResult<()> {
    let values = matrix.values(py)?;
    let values = values.slice();
    released(py, |cpu| {
        let matrix = Matrix::Values(CsrRef::on(&matrix.pattern, values)?.to_csr());
        cpu.install(|| write_matrix(path, &matrix))
    })
}
