//! `CSR`: a sparse matrix whose indices are a checked copy and whose values are an array of numpy.

use std::ops::AddAssign;
use std::sync::Arc;

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sparsimd::{Error, Pattern, PatternRef};

use crate::array::{Value, shape_text};
use crate::error::{count, expect_count, guarded, value};
use crate::ops::{Factors, product, values_of};
use crate::plan::{Plan, Request};
use crate::sparse::{Any, Either, Given, Structure, Typed, any};
use crate::transposed::Transposed;

/// A sparse matrix by rows. Made by `csr()`.
///
/// The indices are a checked copy. `data` is the array that was given, where it has the matrix' dtype and is contiguous: what
/// Python writes to it, later operations see. Plans have a copy of it.
///
/// Attributes
/// ----------
/// shape : tuple of int
/// nnz : int
/// dtype : numpy.dtype
///     ``float32`` or ``float64``.
/// data, indices, indptr : numpy.ndarray
///     Values, and read-only views of columns and row pointers.
/// T : Transposed
///     For ``A.T @ Y``. What the transpose needs is made once and kept.
#[pyclass(frozen, name = "CSR", module = "sparsimd")]
pub struct Csr {
    inner: Any,
}

/// Evaluates the expression with `T` the element type of an array of values.
macro_rules! by_dtype {
    (@ $data:ident, $name:ident => $body:expr, $t:ident) => {
        if $data.cast::<PyArrayDyn<$t>>().is_ok() {
            type $name = $t;
            return $body;
        }
    };
    ($data:ident, $name:ident => $body:expr) => {{
        by_dtype!(@ $data, $name => $body, f32);
        by_dtype!(@ $data, $name => $body, f64);
        by_dtype!(@ $data, $name => $body, i32);
        by_dtype!(@ $data, $name => $body, i64);
        Err(PyTypeError::new_err("data: float32, float64, int32 or int64 is expected"))
    }};
}

impl Csr {
    /// Where the nonzeros are, and what is kept with that.
    pub fn structure(&self) -> &Arc<Structure> {
        any!(&self.inner, matrix => &matrix.structure)
    }

    /// Where the nonzeros are.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.structure().pattern
    }

    /// The matrix by its precision; an error for integers.
    pub fn floats(&self) -> PyResult<Either<&Typed<f32>, &Typed<f64>>> {
        self.inner.floats()
    }

    /// The matrix by the type of its values.
    pub fn values(&self) -> &Any {
        &self.inner
    }

    /// A matrix of new values, which are an array of one of the types.
    fn on(structure: Arc<Structure>, data: &Bound<'_, PyAny>) -> PyResult<Self> {
        by_dtype!(data, T => Ok(Self { inner: Typed::new(structure, &values_of::<T>(data, "data")?)?.into() }))
    }

    /// The matrix that has memory of its own.
    pub fn of_core<T: Value>(py: Python<'_>, matrix: sparsimd::Csr<T>) -> PyResult<Self> {
        let structure = Structure::new(Arc::clone(matrix.pattern()));
        Self::on(structure, PyArray1::from_vec(py, matrix.into_values()).as_any())
    }
}

#[pymethods]
impl Csr {
    /// From arrays; what `csr()` calls.
    #[staticmethod]
    fn _from_arrays(
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        indices: &Bound<'_, PyAny>,
        indptr: &Bound<'_, PyAny>,
        shape: (i128, i128),
    ) -> PyResult<Self> {
        let shape @ (rows, cols) = (count(shape.0, "shape")?, count(shape.1, "shape")?);
        let columns: Vec<u32> = indices_of(indices, "indices")?;
        let pointers: Vec<usize> = indices_of(indptr, "indptr")?;
        expect_count("data", data.len()?, columns.len(), "column indices")?;
        let found = py.detach(|| {
            guarded(|| match PatternRef::new(rows, cols, &pointers, &columns) {
                Ok(_) => Ok(None),
                Err(error) => summed(rows, cols, &pointers, &columns).map(Some).ok_or(error),
            })
        });
        match found {
            Ok(None) => {
                let made = py.detach(|| guarded(|| Pattern::new(rows, cols, pointers, columns)));
                Self::on(Structure::new(made.map_err(named)?), data)
            }
            // Entries at one place are added up, in a copy of the values.
            Ok(Some(sum)) => by_dtype!(data, T => Self::of_sum::<T>(data, sum, shape)),
            Err(failure) => Err(named(failure)),
        }
    }

    /// Rows and columns.
    #[getter]
    pub fn shape(&self) -> (usize, usize) {
        (self.pattern().rows(), self.pattern().cols())
    }

    /// Number of stored entries.
    #[getter]
    pub fn nnz(&self) -> usize {
        self.pattern().nnz()
    }

    /// 2, as numpy's matrices have.
    #[getter]
    fn ndim(&self) -> usize {
        2
    }

    /// ``float32`` or ``float64``, or ``int32`` or ``int64``.
    #[getter]
    pub fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        any!(&self.inner, matrix => matrix.dtype(py))
    }

    /// The value of each stored entry: the array that operations read.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyAny> {
        any!(&self.inner, matrix => matrix.data.clone_ref(py).into_any())
    }

    /// The column of each stored entry, read-only.
    #[getter]
    fn indices<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let pattern = slf.get().pattern();
        let columns = pattern.col_idx();
        if pattern.cols() <= i32::MAX as usize + 1 {
            // SAFETY: u32 and i32 have the same layout.
            let signed = unsafe { std::slice::from_raw_parts(columns.as_ptr().cast::<i32>(), columns.len()) };
            return Ok(read_only(slf, signed));
        }
        Ok(read_only(slf, columns))
    }

    /// Where each row starts in `indices`, and the end of the last one, read-only.
    #[getter]
    fn indptr<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        let pointers = slf.get().pattern().row_ptr();
        // SAFETY: usize is i64 without its sign on the 64-bit processors that Python wheels are for, and the pointers are small.
        let signed = unsafe { std::slice::from_raw_parts(pointers.as_ptr().cast::<isize>(), pointers.len()) };
        read_only(slf, signed)
    }

    /// The transpose, for ``A.T @ Y``.
    #[getter]
    #[pyo3(name = "T")]
    fn transpose(slf: Bound<'_, Self>) -> Transposed {
        Transposed { matrix: slf.unbind() }
    }

    /// The matrix with other values at the same places.
    ///
    /// Parameters
    /// ----------
    /// values : array_like
    ///     (nnz,), used where it is if it is contiguous. ``float32`` and ``float64`` keep their dtype, ``int32`` and ``int64``
    ///     do where the matrix has integers; other numbers get the matrix'.
    ///
    /// Returns
    /// -------
    /// CSR
    ///     Which shares the indices.
    fn with_values(&self, values: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = values.py();
        // The usual arrays without a detour.
        let usual = match (values.cast::<PyArray1<f32>>(), values.cast::<PyArray1<f64>>()) {
            (Ok(array), _) => array.len() == self.nnz(),
            (_, Ok(array)) => array.len() == self.nnz(),
            _ => false,
        };
        if usual {
            return Self::on(Arc::clone(self.structure()), values);
        }
        let values = py.import("sparsimd._arrays")?.call_method1("values", (values, self.dtype(py)))?;
        expect_count("values", values.len()?, self.nnz(), "nonzeros")?;
        Self::on(Arc::clone(self.structure()), &values)
    }

    /// The matrix with its values in another dtype.
    ///
    /// Parameters
    /// ----------
    /// dtype : dtype
    ///     ``float32``, ``float64``, ``int32`` or ``int64``.
    ///
    /// Returns
    /// -------
    /// CSR
    fn astype(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = py.import("sparsimd._matrix")?.call_method1("checked", (dtype,))?;
        Self::on(Arc::clone(self.structure()), &self.data(py).bind(py).call_method1("astype", (dtype,))?)
    }

    /// Prepare the matrix for many runs of one operation.
    ///
    /// Parameters
    /// ----------
    /// op : {"spmm", "spmm_t", "sddmm", "fusedmm"}
    ///     ``spmm_t`` multiplies by the transpose.
    /// n : int
    ///     Columns of the dense operands. Other numbers are right and may be slower.
    /// reuse : int, optional
    ///     About how many runs there will be: preparing takes the time of some.
    /// effort : {"estimate", "measure"}, optional
    ///     Whether a model of the machine chooses the plan, or some plans are run, for at most a tenth of the time of the runs.
    ///     What was measured is kept for later estimates in the user's cache folder, or in the file that the environment
    ///     variable ``SPARSIMD_WISDOM`` names (``off``: nowhere).
    /// strategy : {"auto", "direct", "panel", "slices"}, optional
    ///     The layout, if it is not to be chosen.
    ///
    /// Returns
    /// -------
    /// Plan
    ///     To be given to the operation in the matrix' place.
    #[pyo3(signature = (op, n, *, reuse = 1000, effort = "estimate", strategy = "auto"))]
    fn prepare(slf: &Bound<'_, Self>, op: &str, n: i128, reuse: i128, effort: &str, strategy: &str) -> PyResult<Plan> {
        Plan::new(slf, &Request::parse(op, n, reuse, effort, strategy)?)
    }

    pub fn __matmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        product(&Given::Matrix(slf.clone()), false, other, None, Factors::default())
    }

    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        from_the_left(slf, true, other)
    }

    /// ``A @ x``, for ``scipy.sparse.linalg.aslinearoperator``.
    fn matvec<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::__matmul__(slf, x)
    }

    /// ``A.T @ x``: values are real.
    fn rmatvec<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        product(&Given::Matrix(slf.clone()), true, x, None, Factors::default())
    }

    /// ``A @ X``.
    fn matmat<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::__matmul__(slf, x)
    }

    /// ``A.T @ X``.
    fn rmatmat<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Self::rmatvec(slf, x)
    }

    /// The matrix as scipy has it; values are shared.
    ///
    /// Returns
    /// -------
    /// scipy.sparse.csr_array
    fn to_scipy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparsimd._matrix")?.call_method1("to_scipy", (slf,))
    }

    /// The matrix as a dense array.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    fn toarray<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparsimd._matrix")?.call_method1("to_dense", (slf,))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this) = (slf.py(), slf.get());
        let restore = py.import("sparsimd._matrix")?.getattr("restore_matrix")?;
        let arrays = (this.data(py), Self::indices(slf)?, Self::indptr(slf), this.shape());
        (restore, arrays).into_pyobject(py)
    }

    pub fn __repr__(&self) -> String {
        let (rows, cols) = self.shape();
        let dtype = any!(&self.inner, matrix => matrix.dtype_name());
        format!("<sparsimd.CSR {rows} x {cols}, {} nonzeros, {dtype}>", self.nnz())
    }

    /// numpy leaves ``array @ matrix`` to this class.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }
}

impl Csr {
    /// The matrix with the values of `data` added up as `sum` says.
    fn of_sum<T: Value + AddAssign>(data: &Bound<'_, PyAny>, sum: Sum, (rows, cols): (usize, usize)) -> PyResult<Self> {
        let py = data.py();
        let given = values_of::<T>(data, "data")?;
        let given = given.readonly();
        let given = given.as_slice().map_err(|_| value("data", "is not contiguous"))?;
        let mut values = vec![T::ZERO; sum.columns.len()];
        sum.of.iter().for_each(|&(entry, to)| values[to] += given[entry]);
        let pattern = guarded(|| Pattern::new(rows, cols, sum.pointers, sum.columns)).map_err(named)?;
        Self::on(Structure::new(pattern), PyArray1::from_vec(py, values).as_any())
    }
}

/// How entries at the same place are added up.
struct Sum {
    pointers: Vec<usize>,
    columns: Vec<u32>,
    /// Entry, and the one it is added to, ascending by the latter.
    of: Vec<(usize, usize)>,
}

/// The entries by ascending columns, those at one place as one; none when the arrays break another rule than that of places.
fn summed(rows: usize, cols: usize, pointers: &[usize], columns: &[u32]) -> Option<Sum> {
    let valid = pointers.len() == rows + 1
        && pointers[0] == 0
        && pointers.is_sorted()
        && pointers[rows] == columns.len()
        && columns.iter().all(|&j| (j as usize) < cols);
    if !valid {
        return None;
    }
    let mut sum = Sum { pointers: vec![0], columns: Vec::new(), of: Vec::with_capacity(columns.len()) };
    for row in pointers.windows(2) {
        let mut entries: Vec<usize> = (row[0]..row[1]).collect();
        entries.sort_by_key(|&p| columns[p]);
        let first = sum.columns.len();
        for p in entries {
            if sum.columns.len() == first || sum.columns.last() != Some(&columns[p]) {
                sum.columns.push(columns[p]);
            }
            sum.of.push((p, sum.columns.len() - 1));
        }
        sum.pointers.push(sum.columns.len());
    }
    Some(sum)
}

/// A structure's error with the argument that has it.
fn named(failure: crate::error::Failure) -> PyErr {
    match failure {
        crate::error::Failure::Library(Error::Structure { detail, .. }) => value("A", detail),
        other => other.into(),
    }
}

/// A copy of an index array of 32 or 64 bits as what the library counts with.
pub fn indices_of<I: TryFrom<i64> + TryFrom<i32> + Send>(array: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<I>> {
    fn copied<F, I>(array: &PyReadonlyArray1<'_, F>, name: &str) -> PyResult<Vec<I>>
    where
        F: numpy::Element + Copy + std::fmt::Display,
        I: TryFrom<F>,
    {
        let each = array.as_array();
        let convert = |(p, &i): (usize, &F)| {
            I::try_from(i).map_err(|_| value(name, format!("{i} at position {p} is negative or too large")))
        };
        each.iter().enumerate().map(convert).collect()
    }
    if let Ok(array) = array.extract::<PyReadonlyArray1<'_, i32>>() {
        return copied(&array, name);
    }
    if let Ok(array) = array.extract::<PyReadonlyArray1<'_, i64>>() {
        return copied(&array, name);
    }
    // Other integers, and lists.
    let converted = array.py().import("sparsimd._arrays")?.call_method1("integers", (array, name))?;
    let converted = converted.extract::<PyReadonlyArray1<'_, i64>>();
    copied(&converted.map_err(|_| PyTypeError::new_err(format!("{name}: integers are expected")))?, name)
}

/// `slice`, which `owner` has, as an array that keeps it alive.
fn read_only<'py, E: numpy::Element>(owner: &Bound<'py, Csr>, slice: &[E]) -> Bound<'py, PyAny> {
    // SAFETY: the slice belongs to the pattern, which the matrix never changes; the array holds the matrix. Numpy does not let
    // anybody make an array writable whose owner has no buffer.
    let array = unsafe { PyArray1::borrow_from_array(&ArrayView1::from(slice), owner.clone().into_any()) };
    array.readwrite().make_nonwriteable();
    array.into_any()
}

/// X A = (A^T X^T)^T, or X A^T.
pub fn from_the_left<'py>(
    matrix: &Bound<'py, Csr>,
    transposed: bool,
    x: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let helper = matrix.py().import("sparsimd._arrays")?;
    let x = helper.call_method1("dense", (x, "X"))?;
    let x = x.cast::<PyUntypedArray>()?;
    if x.ndim() == 0 || x.ndim() > 2 {
        return Err(PyValueError::new_err(format!("X: shape {} has not one or two dimensions", shape_text(x.shape()))));
    }
    let product = product(&Given::Matrix(matrix.clone()), transposed, &x.getattr("T")?, None, Factors::default())?;
    product.getattr("T")
}
