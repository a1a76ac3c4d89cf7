//! `Plan`: a matrix prepared for many runs of one operation.

use std::sync::{Arc, PoisonError, RwLock};

use numpy::PyArrayMethods;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use sparsimd::plan::{Effort, Op, PlanOptions, Strategy};
use sparsimd::{CsrRef, Prepared};

use crate::array::{Element, helper};
use crate::error::{count, expect_count, released, value};
use crate::matrix::Csr;
use crate::ops::{Factors, product, values_of};
use crate::reduce::find;
use crate::sparse::{Either, Given, Structure, Typed, each};

/// What a plan was asked to be.
pub struct Request {
    op: Op,
    n: usize,
    reuse: usize,
    effort: Effort,
    strategy: Strategy,
}

/// Operations by name.
const OPS: [(&str, Op); 4] =
    [("spmm", Op::Spmm), ("spmm_t", Op::SpmmTransposed), ("sddmm", Op::Sddmm), ("fusedmm", Op::FusedMm)];
/// Strategies by name.
const STRATEGIES: [(&str, Strategy); 4] =
    [("auto", Strategy::Auto), ("direct", Strategy::Direct), ("panel", Strategy::Panel), ("slices", Strategy::Slices)];

/// Efforts by name.
const EFFORTS: [(&str, Effort); 2] = [("estimate", Effort::Estimate), ("measure", Effort::Measure)];

/// The name of `wanted` among `all`.
fn name_of<V: PartialEq>(wanted: &V, all: &[(&'static str, V)]) -> &'static str {
    all.iter().find(|(_, value)| value == wanted).map_or("", |(name, _)| name)
}

impl Request {
    /// From the arguments of `prepare`.
    pub fn parse(op: &str, n: i128, reuse: i128, effort: &str, strategy: &str) -> PyResult<Self> {
        let (n, reuse) = (count(n, "n")?, count(reuse, "reuse")?);
        if n == 0 {
            return Err(value("n", "0 columns; at least 1"));
        }
        Ok(Self {
            op: find("op", op, &OPS)?,
            n,
            reuse,
            effort: find("effort", effort, &EFFORTS)?,
            strategy: find("strategy", strategy, &STRATEGIES)?,
        })
    }
}

/// A matrix prepared for many runs of one operation. Made by `CSR.prepare`.
///
/// Give it to the operation in the matrix' place; ``plan @ X`` is ``spmm(plan, X)``. It has a copy of the values, which
/// `set_values` replaces.
///
/// Attributes
/// ----------
/// op : str
/// n : int
///     Columns that it was made for.
/// strategy : str
///     "direct", "panel" or "slices".
/// shape : tuple of int
///     Of the matrix.
/// nnz : int
/// dtype : numpy.dtype
/// matrix : CSR
///     What was prepared.
#[pyclass(frozen, module = "sparsimd")]
pub struct Plan {
    pub inner: Either<RwLock<Prepared<f32>>, RwLock<Prepared<f64>>>,
    matrix: Py<Csr>,
    structure: Arc<Structure>,
    request: Request,
    text: String,
    chosen: Strategy,
}

static LOG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl Plan {
    /// Prepares `matrix`.
    pub fn new(matrix: &Bound<'_, Csr>, request: &Request) -> PyResult<Self> {
        let py = matrix.py();
        let (inner, text, chosen) = match matrix.get().floats()? {
            Either::F32(typed) => {
                let prepared = prepare(py, typed, request)?;
                let (text, chosen) = (prepared.plan().explain(), prepared.plan().strategy());
                (Either::F32(RwLock::new(prepared)), text, chosen)
            }
            Either::F64(typed) => {
                let prepared = prepare(py, typed, request)?;
                let (text, chosen) = (prepared.plan().explain(), prepared.plan().strategy());
                (Either::F64(RwLock::new(prepared)), text, chosen)
            }
        };
        helper(py, &LOG, "log_plan")?.call1((&text,))?;
        let structure = Arc::clone(matrix.get().structure());
        let &Request { op, n, reuse, effort, strategy } = request;
        let request = Request { op, n, reuse, effort, strategy };
        Ok(Self { inner, matrix: matrix.clone().unbind(), structure, request, text, chosen })
    }

    /// Where the nonzeros are, and what is kept with that.
    pub fn structure(&self) -> &Arc<Structure> {
        &self.structure
    }

    /// Whether it multiplies by the transpose.
    pub fn is_transposed(&self) -> bool {
        self.request.op == Op::SpmmTransposed
    }
}

fn prepare<T: Element>(py: Python<'_>, matrix: &Typed<T>, request: &Request) -> PyResult<Prepared<T>> {
    let values = matrix.values(py)?;
    let values = values.slice();
    let &Request { op, n, reuse, effort, strategy } = request;
    let options = PlanOptions::new(op, n).reuse(reuse).strategy(strategy).effort(effort);
    released(py, |cpu| cpu.prepare(CsrRef::on(&matrix.structure.pattern, values)?, &options))
}

#[pymethods]
impl Plan {
    /// What will be done and why.
    ///
    /// Returns
    /// -------
    /// str
    fn explain(&self) -> &str {
        &self.text
    }

    /// The operation.
    #[getter]
    fn op(&self) -> &'static str {
        name_of(&self.request.op, &OPS)
    }

    /// Columns that it was made for.
    #[getter]
    fn n(&self) -> usize {
        self.request.n
    }

    /// "direct", "panel" or "slices".
    #[getter]
    fn strategy(&self) -> &'static str {
        name_of(&self.chosen, &STRATEGIES)
    }

    /// Rows and columns of the matrix.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.structure.pattern.rows(), self.structure.pattern.cols())
    }

    /// Number of stored entries.
    #[getter]
    fn nnz(&self) -> usize {
        self.structure.pattern.nnz()
    }

    /// ``float32`` or ``float64``.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match &self.inner {
            Either::F32(_) => numpy::dtype::<f32>(py).into_any(),
            Either::F64(_) => numpy::dtype::<f64>(py).into_any(),
        }
    }

    /// The matrix that was prepared.
    #[getter]
    fn matrix(&self, py: Python<'_>) -> Py<Csr> {
        self.matrix.clone_ref(py)
    }

    /// Replace the values.
    ///
    /// Parameters
    /// ----------
    /// values : array_like
    ///     (nnz,), in the order of the matrix' `data`. They are copied.
    fn set_values(&self, values: &Bound<'_, PyAny>) -> PyResult<()> {
        each!(&self.inner, plan => set_values(plan, self.structure.pattern.nnz(), values))
    }

    fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        product(&Given::Plan(slf.clone()), false, other, None, Factors::default())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("sparsimd._matrix")?.getattr("restore_plan")?;
        let Request { n, reuse, effort, strategy, .. } = self.request;
        let options = (self.op(), n, reuse, name_of(&effort, &EFFORTS), name_of(&strategy, &STRATEGIES));
        (restore, (self.matrix.bind(py), options)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let (rows, cols) = self.shape();
        format!("<sparsimd.Plan for {rows} x {cols}, {} nonzeros: {}>", self.nnz(), self.text)
    }

    /// numpy leaves ``array @ plan`` alone.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }
}

fn set_values<T: Element>(plan: &RwLock<Prepared<T>>, nnz: usize, values: &Bound<'_, PyAny>) -> PyResult<()> {
    let array = values_of::<T>(values, "values")?;
    let array = array.readonly();
    let values = array.as_slice().map_err(|_| value("values", "are not contiguous"))?;
    expect_count("values", values.len(), nnz, "nonzeros")?;
    released(array.py(), |cpu| plan.write().unwrap_or_else(PoisonError::into_inner).set_values(cpu, values))
}
