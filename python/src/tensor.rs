//! `Tensor`: a sparse tensor by coordinates, its products with matrices, vectors, numbers and tensors.

use std::sync::RwLock;

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sparsimd::formats::FiberCoo;
use sparsimd::ops::Arithmetic;
use sparsimd::{CooTensor, Cpu, Error, Result};

use crate::array::{Dense, Element, Entry, is_single};
use crate::error::{Failure, count, exception, expect_count, guarded, released, value};
use crate::matrix::indices_of;
use crate::mttkrp::{Format, Kept, Layout, PreparedTensor, half_named};
use crate::ops::values_of;
use crate::sparse::{Either, each};

/// A tensor, and what it was last prepared as.
pub struct Entries<T: Element> {
    pub coo: CooTensor<T>,
    /// What `mttkrp` and `cp_als` prepared.
    pub held: RwLock<Option<Kept<T>>>,
}

impl<T: Element> Entries<T> {
    fn new(coo: CooTensor<T>) -> Self {
        Self { coo, held: RwLock::new(None) }
    }
}

/// A sparse tensor by coordinates.
///
/// Coordinates and values are copied and checked; entries at the same place are added up.
///
/// Parameters
/// ----------
/// coords : array_like of int
///     (order, nnz): a row for each mode, as ``numpy.nonzero`` and PyData sparse have it. Counted from 0.
/// values : array_like
///     (nnz,). ``float32`` and ``float64`` keep their dtype, other numbers become ``float64``.
/// shape : tuple of int
///     Length of each mode; 1 to 8 modes.
///
/// Attributes
/// ----------
/// shape : tuple of int
/// ndim : int
///     The order.
/// nnz : int
/// dtype : numpy.dtype
/// coords, values : numpy.ndarray
///     Copies.
///
/// Examples
/// --------
/// >>> import sparsimd as ss
/// >>> ss.Tensor([[0, 1], [1, 1], [0, 2]], [2.0, 3.0], (2, 2, 3))
/// <sparsimd.Tensor 2 x 2 x 3, 2 nonzeros, float64>
#[pyclass(frozen, module = "sparsimd")]
pub struct Tensor {
    pub inner: Either<Entries<f32>, Entries<f64>>,
}

impl From<CooTensor<f32>> for Tensor {
    fn from(coo: CooTensor<f32>) -> Self {
        Self { inner: Either::F32(Entries::new(coo)) }
    }
}

impl From<CooTensor<f64>> for Tensor {
    fn from(coo: CooTensor<f64>) -> Self {
        Self { inner: Either::F64(Entries::new(coo)) }
    }
}

impl Tensor {
    fn dims(&self) -> &[usize] {
        each!(&self.inner, entries => entries.coo.dims())
    }

    fn single(&self) -> bool {
        matches!(self.inner, Either::F32(_))
    }

    /// In double precision.
    fn wide(&self, py: Python<'_>) -> CooTensor<f64> {
        py.detach(|| each!(&self.inner, entries => entries.coo.cast()))
    }
}

/// The mode that Python counts as `mode`, from the end if it is negative.
pub fn mode_of(mode: isize, order: usize) -> PyResult<usize> {
    let counted = if mode < 0 { mode + order as isize } else { mode };
    match usize::try_from(counted) {
        Ok(counted) if counted < order => Ok(counted),
        _ => Err(value("mode", format!("{mode} is not a mode of a tensor of order {order}"))),
    }
}

/// Checks the entries; those at the same place become one.
fn assembled<T: Element>(cpu: &Cpu, dims: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<T>) -> Result<CooTensor<T>> {
    cpu.install(|| {
        let mut coo = CooTensor::new(dims, coords, values)?;
        if coo.check_unique().is_err() {
            coo.sum_duplicates()?;
        }
        Ok(coo)
    })
}

fn made<T: Element>(values: &Bound<'_, PyAny>, dims: Vec<usize>, coords: Vec<Vec<u32>>) -> PyResult<CooTensor<T>> {
    let py = values.py();
    let array = values_of::<T>(values, "values")?;
    let array = array.readonly();
    let values = array.as_slice().map_err(|_| value("values", "are not contiguous"))?.to_vec();
    if let Some(mode) = coords.iter().position(|indices| indices.len() != values.len()) {
        let detail = format!("{} in mode {mode} for {} values", coords[mode].len(), values.len());
        return Err(value("coords", detail));
    }
    let cpu = crate::threads::cpu()?;
    let made = py.detach(|| guarded(|| assembled(cpu, dims, coords, values)));
    made.map_err(|failure| match failure {
        Failure::Library(Error::Structure { detail, .. }) => {
            value(if detail.starts_with("entry") { "coords" } else { "shape" }, detail)
        }
        other => other.into(),
    })
}

#[pymethods]
impl Tensor {
    #[new]
    fn new(py: Python<'_>, coords: &Bound<'_, PyAny>, values: &Bound<'_, PyAny>, shape: Vec<i128>) -> PyResult<Self> {
        let shape = shape.into_iter().map(|length| count(length, "shape")).collect::<PyResult<Vec<_>>>()?;
        let modes = coords.len()?;
        if modes != shape.len() {
            return Err(value("coords", format!("{modes} rows for a shape of {} modes", shape.len())));
        }
        let coords: Vec<Vec<u32>> =
            (0..modes).map(|mode| indices_of(&coords.get_item(mode)?, "coords")).collect::<PyResult<_>>()?;
        let values = py.import("numpy")?.call_method1("asarray", (values,))?;
        let dtype = values.cast::<PyUntypedArray>()?.dtype();
        Ok(match is_single(py, &dtype, "values") {
            Ok(true) => made::<f32>(&values, shape, coords)?.into(),
            _ => made::<f64>(&values, shape, coords)?.into(),
        })
    }

    /// From pyttb's ``sptensor`` or ``tensor``.
    ///
    /// Parameters
    /// ----------
    /// x : pyttb.sptensor, pyttb.tensor
    ///
    /// Returns
    /// -------
    /// Tensor
    #[staticmethod]
    fn from_pyttb<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        x.py().import("sparsimd._tensor")?.call_method1("from_pyttb", (x,))
    }

    /// From an array of PyData sparse.
    ///
    /// Parameters
    /// ----------
    /// x : sparse.COO or what has ``tocoo()`` or ``asformat("coo")``
    ///
    /// Returns
    /// -------
    /// Tensor
    #[staticmethod]
    fn from_sparse<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        x.py().import("sparsimd._tensor")?.call_method1("from_sparse", (x,))
    }

    /// From a tensor of tensorly, on its numpy backend: a dense array, whose zeros are dropped, or a sparse one.
    ///
    /// Parameters
    /// ----------
    /// x : numpy.ndarray, sparse.COO
    ///
    /// Returns
    /// -------
    /// Tensor
    #[staticmethod]
    fn from_tensorly<'py>(x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        x.py().import("sparsimd._tensor")?.call_method1("from_tensorly", (x,))
    }

    /// The tensor as pyttb has it.
    ///
    /// Returns
    /// -------
    /// pyttb.sptensor
    fn to_pyttb<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparsimd._tensor")?.call_method1("to_pyttb", (slf,))
    }

    /// The tensor as PyData sparse has it.
    ///
    /// Returns
    /// -------
    /// sparse.COO
    fn to_sparse<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparsimd._tensor")?.call_method1("to_sparse", (slf,))
    }

    /// The tensor as a dense array.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    fn toarray<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparsimd._tensor")?.call_method1("to_dense", (slf,))
    }

    /// Length of each mode.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dims())
    }

    /// Number of modes.
    #[getter]
    fn ndim(&self) -> usize {
        self.dims().len()
    }

    /// Number of stored entries.
    #[getter]
    fn nnz(&self) -> usize {
        each!(&self.inner, entries => entries.coo.nnz())
    }

    /// ``float32`` or ``float64``.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        if self.single() { numpy::dtype::<f32>(py).into_any() } else { numpy::dtype::<f64>(py).into_any() }
    }

    /// Coordinates, (order, nnz): a copy.
    #[getter]
    fn coords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows: Vec<Vec<i64>> = each!(&self.inner, entries => {
            entries.coo.all_coords().iter().map(|row| row.iter().map(|&i| i64::from(i)).collect()).collect()
        });
        let array = PyArray2::from_vec2(py, &rows).map_err(|e| PyTypeError::new_err(e.to_string()))?;
        Ok(array.into_any())
    }

    /// The value of each entry: a copy.
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        each!(&self.inner, entries => PyArray1::from_slice(py, entries.coo.values()).into_any())
    }

    /// Prepare the tensor for many MTTKRPs, or a CP decomposition.
    ///
    /// Parameters
    /// ----------
    /// rank : int
    ///     Columns of the factors.
    /// format : {"auto", "coo", "csf-all", "csf-one", "csf-two", "bcsf", "mmcsf", "hicoo", "alto", "tiled", "tree", "joint"}
    ///     How it is stored; by default the one that is expected to be fastest.
    /// factors : dtype_like, optional
    ///     ``"float16"`` or ``"bfloat16"`` where the factors of a ``float32`` tensor will be that: more of their rows fit the caches.
    ///     Any factors are right; by default they are of the tensor's dtype.
    ///
    /// Returns
    /// -------
    /// PreparedTensor
    ///     To be given to `mttkrp` and `cp_als` in the tensor's place.
    #[pyo3(signature = (rank, format = "auto", *, factors = None))]
    fn prepare(
        slf: &Bound<'_, Self>,
        rank: i128,
        format: &str,
        factors: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PreparedTensor> {
        let rank = count(rank, "rank")?;
        let half = factors.map(|factors| half_named(factors, slf.get().single())).transpose()?.flatten();
        PreparedTensor::new(slf, Layout { rank, half, format: Format::parse(format)? })
    }

    fn __add__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        with_tensor(slf, other, Arithmetic::Add)
    }

    fn __sub__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        with_tensor(slf, other, Arithmetic::Sub)
    }

    fn __mul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        with_either(slf, other, Arithmetic::Mul)
    }

    fn __rmul__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        with_either(slf, other, Arithmetic::Mul)
    }

    fn __truediv__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        with_either(slf, other, Arithmetic::Div)
    }

    fn __neg__(&self, py: Python<'_>) -> PyResult<Self> {
        self.scaled(py, Arithmetic::Mul, -1.0)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this) = (slf.py(), slf.get());
        let arrays = (this.coords(py)?, this.values(py), this.shape(py)?);
        (py.get_type::<Self>(), arrays).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let dims = self.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        let dtype = if self.single() { f32::NUMPY } else { f64::NUMPY };
        format!("<sparsimd.Tensor {dims}, {} nonzeros, {dtype}>", self.nnz())
    }

    /// numpy leaves ``number * tensor`` to this class.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }
}

impl Tensor {
    fn scaled(&self, py: Python<'_>, op: Arithmetic, by: f64) -> PyResult<Self> {
        Ok(match &self.inner {
            Either::F32(entries) => released(py, |cpu| cpu.ts(op, &entries.coo, by as f32))?.into(),
            Either::F64(entries) => released(py, |cpu| cpu.ts(op, &entries.coo, by))?.into(),
        })
    }
}

fn with_either(slf: &Bound<'_, Tensor>, other: &Bound<'_, PyAny>, op: Arithmetic) -> PyResult<Py<PyAny>> {
    let py = slf.py();
    match other.extract::<f64>() {
        Ok(number) => Ok(slf.get().scaled(py, op, number)?.into_pyobject(py)?.into_any().unbind()),
        Err(_) => with_tensor(slf, other, op),
    }
}

/// Element by element; in double precision unless both tensors are in single.
fn with_tensor(slf: &Bound<'_, Tensor>, other: &Bound<'_, PyAny>, op: Arithmetic) -> PyResult<Py<PyAny>> {
    let py = slf.py();
    let Ok(other) = other.cast::<Tensor>() else { return Ok(py.NotImplemented()) };
    let (left, right) = (slf.get(), other.get());
    if left.dims() != right.dims() {
        let detail = format!("has shape {:?}; {:?} is expected", right.dims(), left.dims());
        return Err(value("other", detail));
    }
    let result: Tensor = match (&left.inner, &right.inner) {
        (Either::F32(x), Either::F32(z)) => released(py, |cpu| cpu.tew(op, &x.coo, &z.coo))?.into(),
        (Either::F64(x), Either::F64(z)) => released(py, |cpu| cpu.tew(op, &x.coo, &z.coo))?.into(),
        _ => {
            let (x, z) = (left.wide(py), right.wide(py));
            released(py, |cpu| cpu.tew(op, &x, &z))?.into()
        }
    };
    Ok(result.into_pyobject(py)?.into_any().unbind())
}

/// The argument `T` as a tensor.
fn tensor<'a, 'py>(object: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, Tensor>> {
    object.cast::<Tensor>().map_err(|_| {
        let name = object.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("T: {name} is not a Tensor; Tensor.from_pyttb and others make one"))
    })
}

/// Tensor times matrix in one mode: ``Y[..., r, ...] = sum over i of T[..., i, ...] * U[r, i]``.
///
/// Parameters
/// ----------
/// T : Tensor
/// U : array_like
///     (r, length of the mode), as pyttb and tensorly have it. ``W.T`` of a row-major `W` is read where it is; a row-major `U` is
///     copied, and so are float16 and bfloat16, which are widened to the tensor's dtype.
/// mode : int
///     Counted from 0; negative ones from the end.
/// copy : bool, optional
///     Whether `U` may be copied once (the default).
///
/// Returns
/// -------
/// Tensor
///     As `T`, the mode r long.
#[pyfunction]
#[pyo3(signature = (T, U, mode, *, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
pub fn ttm(T: &Bound<'_, PyAny>, U: &Bound<'_, PyAny>, mode: isize, copy: bool) -> PyResult<Tensor> {
    let tensor = tensor(T)?.get();
    let mode = mode_of(mode, tensor.dims().len())?;
    Ok(match &tensor.inner {
        Either::F32(entries) => typed_ttm(entries, U, mode, copy)?.into(),
        Either::F64(entries) => typed_ttm(entries, U, mode, copy)?.into(),
    })
}

fn typed_ttm<T: Element>(x: &Entries<T>, u: &Bound<'_, PyAny>, mode: usize, copy: bool) -> PyResult<CooTensor<T>> {
    let py = u.py();
    let u = Dense::<T>::of(u, "U", true, copy)?;
    if u.vector || u.rows() != x.coo.dims()[mode] {
        let detail = format!("the mode is {} long: (r, {0}) is expected", x.coo.dims()[mode]);
        return Err(value("U", detail));
    }
    let u = u.view();
    released(py, |cpu| {
        let fibers = cpu.install(|| FiberCoo::new(x.coo.try_clone()?, mode))?;
        let product = cpu.ttm(&fibers, u, Default::default())?;
        cpu.install(|| Ok(product.to_coo()))
    })
}

/// Tensor times vector in one mode: ``Y[...] = sum over i of T[..., i, ...] * v[i]``.
///
/// Parameters
/// ----------
/// T : Tensor
/// v : array_like
///     As long as the mode.
/// mode : int
///     Counted from 0; negative ones from the end.
///
/// Returns
/// -------
/// Tensor or float
///     Of the other modes; a number for a tensor of order 1.
#[pyfunction]
#[expect(non_snake_case, reason = "Python's names")]
pub fn ttv<'py>(T: &Bound<'py, PyAny>, v: &Bound<'py, PyAny>, mode: isize) -> PyResult<Bound<'py, PyAny>> {
    let tensor = tensor(T)?.get();
    let mode = mode_of(mode, tensor.dims().len())?;
    each!(&tensor.inner, entries => typed_ttv(entries, v, mode))
}

fn typed_ttv<'py, T: Element>(x: &Entries<T>, v: &Bound<'py, PyAny>, mode: usize) -> PyResult<Bound<'py, PyAny>>
where
    Tensor: From<CooTensor<T>>,
{
    let py = v.py();
    let v = values_of::<T>(v, "v")?;
    let v = v.readonly();
    let v = v.as_slice().map_err(|_| value("v", "is not contiguous"))?;
    expect_count("v", v.len(), x.coo.dims()[mode], "indices of the mode")?;
    if x.coo.order() == 1 {
        let entries = x.coo.coords(0).iter().zip(x.coo.values());
        let sum: f64 = entries.map(|(&i, x)| x.to_f64() * v[i as usize].to_f64()).sum();
        return Ok(sum.into_pyobject(py)?.into_any());
    }
    let product = released(py, |cpu| {
        let fibers = cpu.install(|| FiberCoo::new(x.coo.try_clone()?, mode))?;
        cpu.ttv(&fibers, v)
    })?;
    Ok(Tensor::from(product).into_pyobject(py)?.into_any())
}

/// An error of the library as an exception about the argument `T`.
pub fn about_tensor(error: Error) -> PyErr {
    match error {
        Error::Structure { detail, .. } => value("T", detail),
        other => exception(other),
    }
}
