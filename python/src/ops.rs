//! SpMM, SDDMM and FusedMM.

use numpy::PyArrayDyn;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sparsimd::Mat;

use crate::array::{Dense, Element, Output};
use crate::edge::{self, Function};
use crate::error::{exception, released, value};
use crate::sparse::{Given, Source, each};

/// Factors of SpMM, and whether operands may be copied.
#[derive(Clone, Copy)]
pub struct Factors {
    pub alpha: f64,
    pub beta: f64,
    pub copy: bool,
}

impl Default for Factors {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 0.0, copy: true }
    }
}

/// alpha A X + beta out, or with A^T.
pub fn product<'py>(
    a: &Given<'py>,
    transposed: bool,
    x: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    factors: Factors,
) -> PyResult<Bound<'py, PyAny>> {
    let (rows, cols) = a.shape();
    let transposed = transposed || matches!(a, Given::Plan(plan) if plan.get().is_transposed());
    let shape = if transposed { (cols, rows) } else { (rows, cols) };
    each!(a.source(), source => typed_product(source, transposed, shape, x, out, factors))
}

fn typed_product<'py, T: Element>(
    a: Source<'_, T>,
    transposed: bool,
    (rows, cols): (usize, usize),
    x: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    Factors { alpha, beta, copy }: Factors,
) -> PyResult<Bound<'py, PyAny>> {
    let py = x.py();
    if beta != 0.0 && out.is_none() {
        return Err(value("beta", "there is no out to multiply by it"));
    }
    let x = Dense::<T>::of(x, "X", false, copy)?;
    x.expect("X", cols, None)?;
    let values = a.values(py)?;
    let inputs = [x.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<T>::of(py, out, (rows, x.cols()), x.vector, &inputs)?;
    if rows > 0 && x.cols() > 0 {
        let (x, c) = (x.view(), out.view());
        let values = values.as_ref().map(|values| values.slice());
        let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
        released(py, |cpu| match (transposed, &a) {
            (false, _) => a.with(values, |a| cpu.spmm(alpha, a, x, beta, c)),
            (true, Source::Plan(_)) => a.with(values, |a| cpu.spmm_t(alpha, a, x, beta, c)),
            (true, Source::Matrix(_)) => a.with_transposed(cpu, values, |a| cpu.spmm(alpha, a, x, beta, c)),
        })?;
    }
    Ok(out.object)
}

/// Sparse matrix times dense matrix: ``alpha * A @ X + beta * out``.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k).
/// X : array_like
///     (k, n), or (k,) for a vector. Read where it is when its rows are contiguous and do not overlap, whatever their stride.
/// out : numpy.ndarray, optional
///     (m, n), or (m,) for a vector, of the matrix' dtype. Receives the result, where it is: it is never copied.
/// alpha, beta : float, optional
///     With ``beta = 0`` (the default) `out` is not read.
/// copy : bool, optional
///     Whether an `X` that cannot be read where it is, or has another dtype, may be copied once (the default).
///
/// Returns
/// -------
/// numpy.ndarray
///     `out`, or a new array.
///
/// Raises
/// ------
/// ValueError
///     When shapes do not fit, `out` overlaps an operand, or a copy would be needed with ``copy=False``.
/// TypeError
///     When an operand cannot be converted to the matrix' dtype without loss.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> import sparsimd as ss
/// >>> A = ss.csr(([2.0, 3.0, 4.0], [0, 2, 1], [0, 2, 3]), shape=(2, 3))
/// >>> ss.spmm(A, np.arange(6.0).reshape(3, 2))
/// array([[12., 17.],
///        [ 8., 12.]])
#[pyfunction]
#[pyo3(signature = (A, X, *, out = None, alpha = 1.0, beta = 0.0, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
pub fn spmm<'py>(
    A: &Bound<'py, PyAny>,
    X: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    alpha: f64,
    beta: f64,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    product(&Given::of(A)?, false, X, out, Factors { alpha, beta, copy })
}

/// Dense products at the nonzeros of a sparse matrix: ``(X1 @ X2)[i, j]`` for each nonzero (i, j) of `A`.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k). Its values matter only if `scaled`.
/// X1 : array_like
///     (m, n).
/// X2 : array_like
///     (n, k), as numpy, torch and DGL have it. ``K.T`` of a row-major `K` is read where it is; a row-major `X2` is copied.
/// scaled : bool, optional
///     Whether results are multiplied by the values of `A`.
/// out : numpy.ndarray, optional
///     (nnz,), contiguous, of the matrix' dtype.
/// copy : bool, optional
///     Whether operands that cannot be read where they are may be copied once (the default).
///
/// Returns
/// -------
/// numpy.ndarray
///     (nnz,), in the order of ``A.data``; ``A.with_values`` makes a matrix of it.
///
/// Raises
/// ------
/// ValueError, TypeError
///     As `spmm`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> import sparsimd as ss
/// >>> A = ss.csr(([1.0, 1.0, 1.0], [0, 2, 1], [0, 2, 3]), shape=(2, 3))
/// >>> ss.sddmm(A, np.ones((2, 4)), np.arange(12.0).reshape(3, 4).T)
/// array([ 6., 38., 22.])
#[pyfunction]
#[pyo3(signature = (A, X1, X2, *, scaled = false, out = None, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
pub fn sddmm<'py>(
    A: &Bound<'py, PyAny>,
    X1: &Bound<'py, PyAny>,
    X2: &Bound<'py, PyAny>,
    scaled: bool,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let a = Given::of(A)?;
    each!(a.source(), source => typed_sddmm(source, &a, [X1, X2], scaled, out, copy))
}

fn typed_sddmm<'py, T: Element>(
    a: Source<'_, T>,
    given: &Given<'py>,
    [x1, x2]: [&Bound<'py, PyAny>; 2],
    scaled: bool,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, (rows, cols)) = (x1.py(), given.shape());
    let x1 = Dense::<T>::of(matrix(x1, "X1")?, "X1", false, copy)?;
    let x2 = Dense::<T>::of(matrix(x2, "X2")?, "X2", true, copy)?;
    x1.expect("X1", rows, None)?;
    if (x2.cols(), x2.rows()) != (x1.cols(), cols) {
        let (n, k) = (x2.cols(), x2.rows());
        return Err(value("X2", format!("has shape ({n}, {k}); ({}, {cols}) is expected", x1.cols())));
    }
    let values = if scaled { a.values(py)? } else { None };
    let inputs = [x1.range(), x2.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<T>::of(py, out, (given.nnz(), 1), true, &inputs)?;
    let result = out.slice()?;
    if x1.cols() == 0 {
        result.fill(T::ZERO);
    } else if !result.is_empty() {
        let (x1, x2) = (x1.view(), x2.view());
        let values = values.as_ref().map(|values| values.slice());
        released(py, |cpu| {
            a.with(values, |a| match scaled {
                true => cpu.sddmm_scaled(a, x1, x2, result),
                false => cpu.sddmm(a, x1, x2, result),
            })
        })?;
    }
    Ok(out.object)
}

/// `object`, unless it is an array of other than two dimensions.
fn matrix<'a, 'py>(object: &'a Bound<'py, PyAny>, name: &str) -> PyResult<&'a Bound<'py, PyAny>> {
    use numpy::{PyUntypedArray, PyUntypedArrayMethods};
    match object.cast::<PyUntypedArray>() {
        Ok(array) if array.ndim() != 2 => Err(value(name, format!("has {} dimensions; 2 are expected", array.ndim()))),
        _ => Ok(object),
    }
}

/// SDDMM, an edge function and SpMM in one pass: ``out[i] = sum over the nonzeros (i, j) of f(X[i] @ Y[j], A[i, j]) * Z[j]``.
///
/// The values of f are not stored: for sparse attention (``edge="softmax"``) the memory does not grow with the nonzeros.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k).
/// X : array_like
///     (m, n).
/// Y : array_like
///     (k, n).
/// Z : array_like
///     (k, p).
/// edge : {"identity", "scale", "sigmoid", "softmax", "leaky_relu", "softmax_leaky_relu"}, optional
///     f of s, the product of rows, and a, the matrix' value: ``s``, ``a s``, ``1 / (1 + exp(-s))``, the softmax of ``scale s``
///     over the row, ``max(s, negative_slope s)``, and the softmax of that. Graph attention's a_i + b_j is the product of the
///     rows (a_i, 1) and (1, b_j).
/// scale : float, optional
///     Of "softmax" alone.
/// negative_slope : float, optional
///     As above, from 0 to 1.
/// out : numpy.ndarray, optional
///     (m, p), of the matrix' dtype.
/// copy : bool, optional
///     Whether operands that cannot be read where they are may be copied once (the default).
///
/// Returns
/// -------
/// numpy.ndarray
///     (m, p); rows without nonzeros are zeros.
///
/// Raises
/// ------
/// ValueError, TypeError
///     As `spmm`.
#[pyfunction]
#[pyo3(signature = (A, X, Y, Z, *, edge = "softmax", scale = 1.0, negative_slope = 0.2, out = None, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
#[expect(clippy::too_many_arguments, reason = "Python's own")]
pub fn fusedmm<'py>(
    A: &Bound<'py, PyAny>,
    X: &Bound<'py, PyAny>,
    Y: &Bound<'py, PyAny>,
    Z: &Bound<'py, PyAny>,
    edge: &str,
    scale: f64,
    negative_slope: f64,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let function = Function::new(edge, scale, negative_slope)?;
    let a = Given::of(A)?;
    each!(a.source(), source => typed_fusedmm(source, &a, [X, Y, Z], function, out, copy))
}

fn typed_fusedmm<'py, T: Element>(
    a: Source<'_, T>,
    given: &Given<'py>,
    [x, y, z]: [&Bound<'py, PyAny>; 3],
    function: Function,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, (rows, cols)) = (x.py(), given.shape());
    let x = Dense::<T>::of(matrix(x, "X")?, "X", false, copy)?;
    let y = Dense::<T>::of(matrix(y, "Y")?, "Y", false, copy)?;
    let z = Dense::<T>::of(matrix(z, "Z")?, "Z", false, copy)?;
    x.expect("X", rows, None)?;
    y.expect("Y", cols, Some(x.cols()))?;
    z.expect("Z", cols, None)?;
    let values = a.values(py)?;
    let inputs = [x.range(), y.range(), z.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<T>::of(py, out, (rows, z.cols()), false, &inputs)?;
    if rows > 0 && z.cols() > 0 {
        // Products of rows without elements are 0, and so are those of one 0.
        let zeros = |rows| if x.cols() == 0 { Mat::zeros(rows, 1).map(Some) } else { Ok(None) };
        let (no_x, no_y) = (zeros(rows).map_err(exception)?, zeros(cols).map_err(exception)?);
        let x = no_x.as_ref().map_or_else(|| x.view(), Mat::as_ref);
        let y = no_y.as_ref().map_or_else(|| y.view(), Mat::as_ref);
        let (z, e) = (z.view(), out.view());
        let values = values.as_ref().map(|values| values.slice());
        released(py, |cpu| a.with(values, |a| edge::fusedmm(cpu, a, function, [x, y, z], e)))?;
    }
    Ok(out.object)
}

/// `data` as values of `T`: where it is if it is contiguous and of that type.
pub fn values_of<'py, T: Element>(data: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    let dense = Dense::<T>::of(data, name, false, true)?;
    if !dense.vector {
        return Err(value(name, "one dimension is expected"));
    }
    if dense.slice().is_some() {
        return Ok(dense.into_array());
    }
    let copied = data.py().import("numpy")?.call_method1("ascontiguousarray", (dense.into_array(),))?;
    copied.cast_into().map_err(|_| PyTypeError::new_err(format!("{name}: cannot be read as an array")))
}
