//! SpMM and SDDMM.

use numpy::PyArrayDyn;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sparsimd::{Cpu, MatMut, MatRef, Number, Result, SparseOperand, Stored};

use crate::array::{Dense, Element, Entry, Output, Value, half_of};
use crate::error::{released, value};
use crate::reduce::{self, Rule};
use crate::sparse::{Given, Source};

/// Evaluates the expression with `$a` bound to the sparse operand and `$D` the element type of dense operands: that of the matrix or,
/// in single precision, the one of 16 bits that `$half` says.
macro_rules! stored {
    ($source:expr, $half:expr, $a:ident, $D:ident => $body:expr) => {{
        use $crate::array::Half;
        use $crate::sparse::Either;
        match ($source, $half) {
            (Either::F64($a), _) => {
                type $D = f64;
                $body
            }
            (Either::F32($a), None) => {
                type $D = f32;
                $body
            }
            (Either::F32($a), Some(Half::Bf16)) => {
                type $D = sparsimd::bf16;
                $body
            }
            (Either::F32($a), Some(Half::F16)) => {
                type $D = sparsimd::f16;
                $body
            }
        }
    }};
}
pub(crate) use stored;

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
    if a.has_integers() {
        factors.expect_none()?;
        return reduce::reduced(a, transposed, x, Rule::SUM, out, factors.copy);
    }
    let Factors { alpha, beta, copy } = factors;
    if beta != 0.0 && out.is_none() {
        return Err(value("beta", "there is no out to multiply by it"));
    }
    let by_plan = matches!(a, Given::Plan(plan) if plan.get().is_transposed());
    let operands = (a.shape(), transposed || by_plan, x, out, copy);
    // As numpy promotes float16 and float32, the result is float32, unless there is room for it that has 16 bits.
    let half = match (half_of(x)?, out) {
        (Some(half), Some(out)) if half_of(out)? == Some(half) => Some(half),
        _ => None,
    };
    stored!(a.source()?, half, source, D => applied::<D, _>(source, operands, |cpu, a, x, c| {
        let (alpha, beta) = (<_ as Number>::from_f64(alpha), <_ as Number>::from_f64(beta));
        if by_plan { cpu.spmm_t(alpha, a, x, beta, c) } else { cpu.spmm(alpha, a, x, beta, c) }
    }))
}

impl Factors {
    /// An error unless they are those of a call that names none.
    pub fn expect_none(self) -> PyResult<()> {
        match (self.alpha, self.beta) {
            (1.0, 0.0) => Ok(()),
            (1.0, _) => Err(value("beta", "is for sums of floating-point numbers")),
            _ => Err(value("alpha", "is for sums of floating-point numbers")),
        }
    }
}

/// Shape of A, whether it is to be transposed, X, `out`, and whether X may be copied.
pub type Operands<'a, 'py> = ((usize, usize), bool, &'a Bound<'py, PyAny>, Option<&'a Bound<'py, PyAny>>, bool);

/// The result that `run` writes, from the sparse operand, A^T in its place if so asked, and X.
pub fn applied<'py, D: Entry, T: Value>(
    a: Source<'_, T>,
    ((rows, cols), transposed, x, out, copy): Operands<'_, 'py>,
    run: impl FnOnce(&Cpu, SparseOperand<'_, T>, MatRef<'_, D>, MatMut<'_, D>) -> Result<()> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let py = x.py();
    let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
    let x = Dense::<D>::of(x, "X", false, copy)?;
    x.expect("X", cols, None)?;
    let values = a.values(py)?;
    let inputs = [x.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<D>::of(py, out, (rows, x.cols()), x.vector, &inputs)?;
    if rows > 0 && x.cols() > 0 {
        let (x, c) = (x.view(), out.view());
        let values = values.as_ref().map(|values| values.slice());
        released(py, |cpu| match (transposed, &a) {
            (true, Source::Matrix(_)) => a.with_transposed(cpu, values, |a| run(cpu, a, x, c)),
            _ => a.with(values, |a| run(cpu, a, x, c)),
        })?;
    }
    Ok(out.object)
}

/// Sparse matrix times dense matrix: ``alpha * A @ X + beta * out``, or another reduction than the sum.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k).
/// X : array_like
///     (k, n), or (k,) for a vector. Read where it is when its rows are contiguous and do not overlap, whatever their stride.
///     With a float32 matrix also float16 or bfloat16 (of ml_dtypes or torch): the result is float32, as numpy promotes them, and `X`
///     is copied to that; but read where it is if `out` has its dtype, and sums are rounded once.
/// reduce : {"sum", "mean", "max", "min"}, optional
///     What becomes of the terms ``A[i, j] * X[j]`` of a row, by column. NaN wins in "max" and "min". Rows without nonzeros are 0.
///     The mean of integers is float64, as numpy's.
/// semiring : str, optional
///     Another addition and multiplication, in this order: "plus-times", "or-and", "min-plus", "max-plus", "max-times", "min-times",
///     "plus-min", "max-min", "min-max", "plus-second", "max-second" or "min-second". Rows without nonzeros are the addition's
///     neutral element: 0, infinity for "min", minus infinity for "max", of integers the largest and the least.
/// return_positions : bool, optional
///     Whether "max" and "min" of floating-point numbers also say where each element comes from.
/// out : numpy.ndarray, optional
///     (m, n), or (m,) for a vector, of the result's dtype. Receives the result, where it is: it is never copied.
/// alpha, beta : float, optional
///     With ``beta = 0`` (the default) `out` is not read. For sums of floating-point numbers alone.
/// copy : bool, optional
///     Whether an `X` that cannot be read where it is, or has another dtype, may be copied once (the default).
///
/// Returns
/// -------
/// C : numpy.ndarray
///     `out`, or a new array.
/// positions : numpy.ndarray
///     If `return_positions`: for each element the index into ``A.data`` of the nonzero that it comes from, of equal ones the
///     first; -1 in rows without nonzeros. int32, of the result's shape.
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
/// >>> ss.spmm(A, np.arange(6.0).reshape(3, 2), reduce="max")
/// array([[12., 15.],
///        [ 8., 12.]])
#[pyfunction]
#[pyo3(signature = (A, X, *, reduce = "sum", semiring = None, return_positions = false, out = None, alpha = 1.0, beta = 0.0, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
#[expect(clippy::too_many_arguments, reason = "Python's own")]
pub fn spmm<'py>(
    A: &Bound<'py, PyAny>,
    X: &Bound<'py, PyAny>,
    reduce: &str,
    semiring: Option<&str>,
    return_positions: bool,
    out: Option<&Bound<'py, PyAny>>,
    alpha: f64,
    beta: f64,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (a, factors) = (Given::of(A)?, Factors { alpha, beta, copy });
    if reduce == "sum" && semiring.is_none() && !return_positions {
        return product(&a, false, X, out, factors);
    }
    factors.expect_none()?;
    if return_positions {
        return reduce::with_positions(&a, X, Rule::parse(reduce, semiring)?, out, copy);
    }
    reduce::reduced(&a, false, X, Rule::parse(reduce, semiring)?, out, copy)
}

/// Dense products at the nonzeros of a sparse matrix: ``(X1 @ X2)[i, j]`` for each nonzero (i, j) of `A`.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k). Its values matter only if `scaled`.
/// X1 : array_like
///     (m, n). With a float32 matrix `X1` and `X2` may be float16 or bfloat16, both; sums and the result are float32.
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
    stored!(a.source()?, half_of(X1)?, source, D => typed_sddmm::<D>(source, &a, [X1, X2], scaled, out, copy))
}

fn typed_sddmm<'py, D: Entry + Stored<Scalar: Element>>(
    a: Source<'_, D::Scalar>,
    given: &Given<'py>,
    [x1, x2]: [&Bound<'py, PyAny>; 2],
    scaled: bool,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, (rows, cols)) = (x1.py(), given.shape());
    let x1 = Dense::<D>::of(matrix(x1, "X1")?, "X1", false, copy)?;
    let x2 = Dense::<D>::of(matrix(x2, "X2")?, "X2", true, copy)?;
    x1.expect("X1", rows, None)?;
    if (x2.cols(), x2.rows()) != (x1.cols(), cols) {
        let (n, k) = (x2.cols(), x2.rows());
        return Err(value("X2", format!("has shape ({n}, {k}); ({}, {cols}) is expected", x1.cols())));
    }
    let values = if scaled { a.values(py)? } else { None };
    let inputs = [x1.range(), x2.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<D::Scalar>::of(py, out, (given.nnz(), 1), true, &inputs)?;
    let result = out.slice()?;
    if x1.cols() == 0 {
        result.fill(<D::Scalar as Number>::ZERO);
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
pub fn matrix<'a, 'py>(object: &'a Bound<'py, PyAny>, name: &str) -> PyResult<&'a Bound<'py, PyAny>> {
    use numpy::{PyUntypedArray, PyUntypedArrayMethods};
    match object.cast::<PyUntypedArray>() {
        Ok(array) if array.ndim() != 2 => Err(value(name, format!("has {} dimensions; 2 are expected", array.ndim()))),
        _ => Ok(object),
    }
}

/// `data` as values of `T`: where it is if it is contiguous and of that type.
pub fn values_of<'py, T: Value>(data: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
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
