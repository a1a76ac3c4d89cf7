//! FusedMM and its gradients.

use std::ops::Range;

use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sparsimd::ops::{Differentiable, EdgeWeighting, FusedGradient};
use sparsimd::{Cpu, Mat, MatMut, MatRef, Result, Stored};

use crate::array::{Dense, Element, Entry, Output, half_of};
use crate::edge::Function;
use crate::error::{exception, expect_count, released, value};
use crate::ops::{matrix, stored, values_of};
use crate::reduce::find;
use crate::sparse::{Given, Source, Values, each};

/// SDDMM, an edge function and SpMM: ``out[i] = sum over the nonzeros (i, j) of f(X[i] @ Y[j], A[i, j]) * Z[j]``.
///
/// With the defaults it is one pass, and the values of f are not stored: for sparse attention (``edge="softmax"``) the memory does
/// not grow with the nonzeros. Heads, sums, bias, dropout and `return_lse` store one number for each nonzero and head meanwhile.
///
/// Parameters
/// ----------
/// A : CSR, Plan, scipy sparse matrix or array, torch CSR tensor
///     (m, k).
/// X : array_like
///     (m, n). With a float32 matrix and one head, `X`, `Y` and `Z` may be float16 or bfloat16, all; the result has their dtype,
///     as torch's attention has.
/// Y : array_like
///     (k, n).
/// Z : array_like
///     (k, p).
/// edge : {"identity", "scale", "sigmoid", "softmax", "leaky_relu", "softmax_leaky_relu"}, optional
///     f of s, the product of rows, and a, the matrix' value: ``s``, ``a s``, ``1 / (1 + exp(-s))``, the softmax of ``scale s``
///     over the row, ``max(s, negative_slope s)``, and the softmax of that.
/// scale : float, optional
///     Of "softmax" alone.
/// negative_slope : float, optional
///     As above, from 0 to 1.
/// heads : int, optional
///     Heads side by side in the columns of `X`, `Y` and `Z`: head h has n / heads and p / heads of them.
/// scores : {"dots", "sums"}, optional
///     Whether s is ``X[i] @ Y[j]`` or, with one column for each head, ``X[i] + Y[j]``, as in graph attention.
/// bias : array_like, optional
///     (nnz,): added to what the softmax of each nonzero is of, for all heads.
/// dropout : float, optional
///     The probability that a weight becomes 0; the others are divided by ``1 - dropout``.
/// seed : int, optional
///     Which weights are dropped follows from it.
/// return_lse : bool, optional
///     Whether to return the logarithm of each row's sum of exponentials, too.
/// out : numpy.ndarray, optional
///     (m, p), of the result's dtype.
/// copy : bool, optional
///     Whether operands that cannot be read where they are may be copied once (the default).
///
/// Returns
/// -------
/// E : numpy.ndarray
///     (m, p); rows without nonzeros are zeros.
/// lse : numpy.ndarray
///     If `return_lse`: (m, heads); -inf for rows without nonzeros. Of a softmax; else zeros.
///
/// Raises
/// ------
/// ValueError, TypeError
///     As `spmm`.
///
/// See Also
/// --------
/// fusedmm_gradient, attention
#[pyfunction]
#[pyo3(signature = (A, X, Y, Z, *, edge = "softmax", scale = 1.0, negative_slope = 0.2, heads = 1, scores = "dots", bias = None,
    dropout = 0.0, seed = 0, return_lse = false, out = None, copy = true))]
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
    heads: i128,
    scores: &str,
    bias: Option<&Bound<'py, PyAny>>,
    dropout: f64,
    seed: u64,
    return_lse: bool,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let function = Function::new(edge, scale, negative_slope)?;
    let weighting = Weighting::new(function, heads, scores, dropout, seed)?;
    let a = Given::of(A)?;
    if weighting.is_plain() && bias.is_none() && !return_lse {
        return stored!(a.source()?, half_of(X)?, source, D => one_pass::<D>(source, &a, [X, Y, Z], function, out, copy));
    }
    each!(a.source()?, source => {
        let operands = Operands::of(source, &a, [X, Y, Z], bias, weighting, copy)?;
        by_stages(&a, &operands, return_lse, out)
    })
}

/// The gradients of `fusedmm`, from its operands and the gradient of its result.
///
/// Scores and weights are computed again from the log-sum-exp, as flash attention does: nothing else of the forward pass is needed.
///
/// Parameters
/// ----------
/// A, X, Y, Z
///     As given to `fusedmm`; float32 or float64.
/// dE : array_like
///     (m, p), the gradient by its result.
/// lse : array_like, optional
///     (m, heads), which `fusedmm` returned. Needed for a softmax.
/// edge, scale, negative_slope, heads, scores, bias, dropout, seed, copy
///     As given to `fusedmm`.
///
/// Returns
/// -------
/// dX, dY, dZ : numpy.ndarray
///     Of the shapes of `X`, `Y` and `Z`.
/// dvalues : numpy.ndarray or None
///     (nnz,), with ``edge="scale"``.
/// dbias : numpy.ndarray or None
///     (nnz,), with a `bias`.
///
/// Raises
/// ------
/// ValueError, TypeError
///     As `spmm`.
///
/// See Also
/// --------
/// fusedmm
#[pyfunction]
#[pyo3(signature = (A, X, Y, Z, dE, *, lse = None, edge = "softmax", scale = 1.0, negative_slope = 0.2, heads = 1, scores = "dots",
    bias = None, dropout = 0.0, seed = 0, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
#[expect(clippy::too_many_arguments, reason = "Python's own")]
pub fn fusedmm_gradient<'py>(
    A: &Bound<'py, PyAny>,
    X: &Bound<'py, PyAny>,
    Y: &Bound<'py, PyAny>,
    Z: &Bound<'py, PyAny>,
    dE: &Bound<'py, PyAny>,
    lse: Option<&Bound<'py, PyAny>>,
    edge: &str,
    scale: f64,
    negative_slope: f64,
    heads: i128,
    scores: &str,
    bias: Option<&Bound<'py, PyAny>>,
    dropout: f64,
    seed: u64,
    copy: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let weighting = Weighting::new(Function::new(edge, scale, negative_slope)?, heads, scores, dropout, seed)?;
    let a = Given::of(A)?;
    each!(a.source()?, source => {
        let operands = Operands::of(source, &a, [X, Y, Z], bias, weighting, copy)?;
        gradients(&a, &operands, dE, lse, copy)
    })
}

/// How edges are weighed.
#[derive(Clone, Copy)]
struct Weighting {
    function: Function,
    heads: usize,
    sums: bool,
    dropout: f64,
    seed: u64,
}

impl Weighting {
    fn new(function: Function, heads: i128, scores: &str, dropout: f64, seed: u64) -> PyResult<Self> {
        let heads = match usize::try_from(heads) {
            Ok(heads) if heads > 0 => heads,
            _ => return Err(value("heads", format!("{heads} is not a number of heads"))),
        };
        let sums = find("scores", scores, &[("dots", false), ("sums", true)])?;
        if !(0.0..1.0).contains(&dropout) {
            return Err(value("dropout", format!("{dropout} is not from 0 to below 1")));
        }
        Ok(Self { function, heads, sums, dropout, seed })
    }

    /// Whether FusedMM of one pass does it.
    fn is_plain(&self) -> bool {
        self.heads == 1 && !self.sums && self.dropout == 0.0
    }
}

/// The result in one pass.
fn one_pass<'py, D: Entry + Stored<Scalar: Element>>(
    a: Source<'_, D::Scalar>,
    given: &Given<'py>,
    operands: [&Bound<'py, PyAny>; 3],
    function: Function,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, (rows, _)) = (operands[0].py(), given.shape());
    let [x, y, z] = dense::<D>(given, operands, None, copy)?;
    let values = a.values(py)?;
    let inputs = [x.range(), y.range(), z.range(), values.as_ref().map_or(0..0, |values| values.range())];
    let mut out = Output::<D>::of(py, out, (rows, z.cols()), false, &inputs)?;
    if rows > 0 && z.cols() > 0 {
        let (no_x, no_y) = (Filled::of(&x, 1)?, Filled::of(&y, 1)?);
        let (x, y, z, e) = (no_x.or(&x), no_y.or(&y), z.view(), out.view());
        let values = values.as_ref().map(|values| values.slice());
        released(py, |cpu| a.with(values, |a| cpu.fusedmm(a, function.built_in(), x, y, z, e)))?;
    }
    Ok(out.object)
}

/// `X`, `Y` and `Z`, their shapes checked; with sums, of as many columns as `width` says.
fn dense<'py, D: Entry>(
    given: &Given<'py>,
    [x, y, z]: [&Bound<'py, PyAny>; 3],
    width: Option<usize>,
    copy: bool,
) -> PyResult<[Dense<'py, D>; 3]> {
    let (rows, cols) = given.shape();
    let x = Dense::of(matrix(x, "X")?, "X", false, copy)?;
    let y = Dense::of(matrix(y, "Y")?, "Y", false, copy)?;
    let z = Dense::of(matrix(z, "Z")?, "Z", false, copy)?;
    x.expect("X", rows, width)?;
    y.expect("Y", cols, Some(x.cols()))?;
    z.expect("Z", cols, None)?;
    Ok([x, y, z])
}

/// Zeros in the place of an operand without columns: products of rows without elements are 0, and so are those of zeros.
struct Filled<D>(Option<Mat<D>>);

impl<D: Entry + Stored> Filled<D> {
    /// Of `cols` columns, where the operand has none.
    fn of(operand: &Dense<'_, D>, cols: usize) -> PyResult<Self> {
        let zeros = || Mat::zeros(operand.rows(), cols).map_err(exception);
        Ok(Self(if operand.cols() == 0 { Some(zeros()?) } else { None }))
    }

    fn or<'a>(&'a self, operand: &'a Dense<'_, D>) -> MatRef<'a, D> {
        self.0.as_ref().map_or_else(|| operand.view(), Mat::as_ref)
    }

    /// A result as large, or `out`.
    fn or_out<'a>(&'a mut self, out: &'a mut Output<'_, D>) -> MatMut<'a, D> {
        match &mut self.0 {
            Some(zeros) => zeros.as_mut(),
            None => out.view(),
        }
    }
}

/// What the operation and its gradients are given.
struct Operands<'py, T: Element> {
    dense: [Dense<'py, T>; 3],
    bias: Option<PyReadonlyArrayDyn<'py, T>>,
    values: Option<Values<'py, T>>,
    weighting: Weighting,
}

impl<'py, T: Element> Operands<'py, T> {
    fn of(
        a: Source<'_, T>,
        given: &Given<'py>,
        operands: [&Bound<'py, PyAny>; 3],
        bias: Option<&Bound<'py, PyAny>>,
        weighting: Weighting,
        copy: bool,
    ) -> PyResult<Self> {
        let heads = weighting.heads;
        let dense = dense::<T>(given, operands, weighting.sums.then_some(heads), copy)?;
        for (name, operand) in [("X", &dense[0]), ("Z", &dense[2])] {
            if operand.cols() % heads != 0 {
                return Err(value(
                    "heads",
                    format!("the {} columns of {name} are not those of {heads}", operand.cols()),
                ));
            }
        }
        let values = match (weighting.function.uses_values(), a.values(operands[0].py())?) {
            (false, _) => None,
            (true, Some(values)) => Some(values),
            (true, None) => {
                return Err(value("A", "is a plan, which keeps its values to itself; plan.matrix has them"));
            }
        };
        if bias.is_some() && !weighting.function.is_softmax() {
            return Err(value("bias", "is for edge=\"softmax\" and edge=\"softmax_leaky_relu\""));
        }
        let bias: Option<Bound<'py, PyArrayDyn<T>>> = bias.map(|bias| values_of(bias, "bias")).transpose()?;
        if let Some(bias) = &bias {
            expect_count("bias", PyUntypedArrayMethods::len(bias), given.nnz(), "nonzeros")?;
        }
        Ok(Self { dense, bias: bias.map(|bias| bias.readonly()), values, weighting })
    }

    /// Addresses that a result must not touch.
    fn ranges(&self) -> Vec<Range<usize>> {
        let values = self.values.iter().map(Values::range);
        let bias = self.bias.iter().map(|bias| bias.as_slice().map_or(0..0, addresses));
        self.dense.iter().map(Dense::range).chain(values).chain(bias).collect()
    }

    /// The weighting of the library, with X and Y or what stands for them.
    fn weights<'a>(&'a self, x: MatRef<'a, T>, y: MatRef<'a, T>) -> PyResult<EdgeWeighting<'a, T>> {
        let Weighting { function, heads, sums, dropout, seed } = self.weighting;
        let mut weights = match sums {
            true => EdgeWeighting::sums(function.built_in(), x, y),
            false => EdgeWeighting::dots(function.built_in(), x, y).heads(heads),
        };
        if let Some(bias) = &self.bias {
            weights = weights.bias(bias.as_slice().map_err(|_| value("bias", "is not contiguous"))?);
        }
        if let Some(values) = &self.values {
            weights = weights.values(values.slice());
        }
        Ok(weights.dropout(dropout, seed))
    }
}

/// Where a slice is.
fn addresses<T>(slice: &[T]) -> Range<usize> {
    let range = slice.as_ptr_range();
    range.start.addr()..range.end.addr()
}

/// What `f` gives with the pattern prepared.
fn prepared<'py, T: Element>(
    py: Python<'py>,
    given: &Given<'py>,
    f: impl FnOnce(&Cpu, &Differentiable<T>) -> Result<()> + Send,
) -> PyResult<()> {
    let structure = given.structure();
    released(py, |cpu| f(cpu, structure.differentiable(cpu)?))
}

/// The result in stages, and the log-sum-exp if so asked.
fn by_stages<'py, T: Element>(
    given: &Given<'py>,
    operands: &Operands<'py, T>,
    return_lse: bool,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let [x, y, z] = &operands.dense;
    let (py, heads, rows) = (x.py(), operands.weighting.heads, x.rows());
    let mut out = Output::<T>::of(py, out, (rows, z.cols()), false, &operands.ranges())?;
    let mut lse = Output::<T>::of(py, None, (rows, heads), false, &[])?;
    if given.nnz() == 0 {
        out.fill(T::ZERO);
        lse.fill(if operands.weighting.function.is_softmax() { T::NEG_INFINITY } else { T::ZERO });
    } else {
        let zeros = [Filled::of(x, heads)?, Filled::of(y, heads)?, Filled::of(z, heads)?];
        let mut no_e = Filled(zeros[2].0.as_ref().map(|_| Mat::zeros(rows, heads)).transpose().map_err(exception)?);
        let weights = operands.weights(zeros[0].or(x), zeros[1].or(y))?;
        let (z, e, sums) = (zeros[2].or(z), no_e.or_out(&mut out), return_lse.then(|| lse.view()));
        prepared(py, given, |cpu, a| cpu.fusedmm_heads(a, &weights, z, e, sums))?;
    }
    if !return_lse {
        return Ok(out.object);
    }
    Ok((out.object, lse.object).into_pyobject(py)?.into_any())
}

/// The gradients.
fn gradients<'py, T: Element>(
    given: &Given<'py>,
    operands: &Operands<'py, T>,
    de: &Bound<'py, PyAny>,
    lse: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let [x, y, z] = &operands.dense;
    let (py, heads, nnz) = (x.py(), operands.weighting.heads, given.nnz());
    let de = Dense::<T>::of(matrix(de, "dE")?, "dE", false, copy)?;
    de.expect("dE", x.rows(), Some(z.cols()))?;
    let lse = match (operands.weighting.function.is_softmax(), lse) {
        (false, _) => None,
        (true, Some(lse)) => {
            let lse = Dense::<T>::of(lse, "lse", false, copy)?;
            lse.expect("lse", x.rows(), Some(heads))?;
            Some(lse)
        }
        (true, None) => return Err(value("lse", "is needed for the gradients of a softmax; return_lse=True gives it")),
    };
    let result = |rows, cols, vector| Output::<T>::of(py, None, (rows, cols), vector, &[]);
    let numbers = |wanted: bool| wanted.then(|| result(nnz, 1, true)).transpose();
    let [mut dx, mut dy, mut dz] =
        [result(x.rows(), x.cols(), false)?, result(y.rows(), y.cols(), false)?, result(z.rows(), z.cols(), false)?];
    let (mut dvalues, mut dbias) = (numbers(operands.values.is_some())?, numbers(operands.bias.is_some())?);
    // Without columns of Z nothing depends on the weights.
    if nnz == 0 || z.cols() == 0 {
        let all = [Some(&mut dx), Some(&mut dy), Some(&mut dz), dvalues.as_mut(), dbias.as_mut()];
        all.into_iter().flatten().for_each(|result| result.fill(T::ZERO));
    } else {
        let zeros = [Filled::of(x, heads)?, Filled::of(y, heads)?];
        let [mut no_dx, mut no_dy] = [Filled::of(x, heads)?, Filled::of(y, heads)?];
        let weights = operands.weights(zeros[0].or(x), zeros[1].or(y))?;
        let out = FusedGradient {
            left: no_dx.or_out(&mut dx),
            right: no_dy.or_out(&mut dy),
            d: dz.view(),
            values: dvalues.as_mut().map(Output::slice).transpose()?,
            bias: dbias.as_mut().map(Output::slice).transpose()?,
        };
        let (z, de, lse) = (z.view(), de.view(), lse.as_ref().map(Dense::view));
        prepared(py, given, |cpu, a| cpu.fusedmm_gradient(a, &weights, z, lse, de, out))?;
    }
    let [dvalues, dbias] = [dvalues, dbias].map(|numbers| numbers.map(|numbers| numbers.object));
    (dx.object, dy.object, dz.object, dvalues, dbias).into_pyobject(py)
}
