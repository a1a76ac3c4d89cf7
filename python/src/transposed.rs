//! `A.T`: the transpose of a `CSR`, which is not made where it is not needed.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::value;
use crate::matrix::{Csr, from_the_left};
use crate::ops::{Factors, product};
use crate::plan::{Plan, Request};
use crate::sparse::Given;

/// The transpose of a `CSR`, for ``A.T @ Y``.
///
/// Attributes
/// ----------
/// shape : tuple of int
/// nnz : int
/// dtype : numpy.dtype
/// T : CSR
///     The matrix itself.
#[pyclass(frozen, module = "sparsimd")]
pub struct Transposed {
    pub matrix: Py<Csr>,
}

#[pymethods]
impl Transposed {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        let (rows, cols) = self.matrix.get().shape();
        (cols, rows)
    }

    /// Number of stored entries.
    #[getter]
    fn nnz(&self) -> usize {
        self.matrix.get().nnz()
    }

    /// 2, as numpy's matrices have.
    #[getter]
    fn ndim(&self) -> usize {
        2
    }

    /// ``float32`` or ``float64``.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.matrix.get().dtype(py)
    }

    /// The matrix itself.
    #[getter]
    #[pyo3(name = "T")]
    fn transpose(&self, py: Python<'_>) -> Py<Csr> {
        self.matrix.clone_ref(py)
    }

    /// As `CSR.prepare`; the only operation is "spmm".
    #[pyo3(signature = (op, n, *, reuse = 1000, effort = "estimate", strategy = "auto"))]
    fn prepare(&self, py: Python<'_>, op: &str, n: i128, reuse: i128, effort: &str, strategy: &str) -> PyResult<Plan> {
        if op != "spmm" {
            return Err(value("op", format!("{op:?} is not an operation of a transpose; \"spmm\" is")));
        }
        Plan::new(self.matrix.bind(py), &Request::parse("spmm_t", n, reuse, effort, strategy)?)
    }

    fn __matmul__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        product(&Given::Matrix(self.matrix.bind(py).clone()), true, other, None, Factors::default())
    }

    fn __rmatmul__<'py>(&self, py: Python<'py>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        from_the_left(self.matrix.bind(py), false, other)
    }

    /// ``A.T @ x``, for ``scipy.sparse.linalg.aslinearoperator``.
    fn matvec<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__matmul__(py, x)
    }

    /// ``A @ x``: values are real.
    fn rmatvec<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Csr::__matmul__(self.matrix.bind(py), x)
    }

    /// ``A.T @ X``.
    fn matmat<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__matmul__(py, x)
    }

    /// ``A @ X``.
    fn rmatmat<'py>(&self, py: Python<'py>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.rmatvec(py, x)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("sparsimd._matrix")?.getattr("restore_transposed")?;
        (restore, (self.matrix.bind(py),)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        format!("{}.T", self.matrix.get().__repr__())
    }

    /// numpy leaves ``array @ matrix`` to this class.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }
}
