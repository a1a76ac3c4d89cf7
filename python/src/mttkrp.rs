//! MTTKRP of tensors and of prepared ones.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use sparsimd::ops::MttkrpTensor;
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{MatRef, Stored, bf16, f16};

use crate::array::{Dense, Element, Entry, Half, Output, half_of, helper, shape_text};
use crate::error::{guarded, released, value};
use crate::ops::stored;
use crate::sparse::{Either, each};
use crate::tensor::{Entries, Tensor, about_tensor, mode_of};

/// A tensor laid out for MTTKRP.
pub type Held<T> = MttkrpTensor<T>;

/// One in either precision, shared.
pub type AnyHeld = Either<Arc<Held<f32>>, Arc<Held<f64>>>;

/// How a tensor is to be stored; none to have it chosen.
#[derive(Clone, Copy)]
pub struct Format(Option<MttkrpFormat>);

impl Format {
    /// The one called `name`.
    pub fn parse(name: &str) -> PyResult<Self> {
        if name == "auto" {
            return Ok(Self(None));
        }
        let found = MttkrpFormat::by_name(name);
        let names = || MttkrpFormat::ALL.map(MttkrpFormat::name).join(", ");
        found
            .map(|found| Self(Some(found)))
            .ok_or_else(|| value("format", format!("{name:?} is none of auto, {}", names())))
    }

    fn name(self) -> &'static str {
        self.0.map_or("auto", MttkrpFormat::name)
    }
}

/// What a tensor is laid out for.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Columns of the factors.
    pub rank: usize,
    /// The type of the factors, if it is one of 16 bits.
    pub half: Option<Half>,
    /// How the tensor is stored.
    pub format: Format,
}

/// What a tensor was last prepared as: columns and type of the factors, and the result.
pub type Kept<T> = (usize, Option<Half>, Arc<Held<T>>);

/// The type of 16 bits that the dtype `factors` of the factors of a tensor is, in single precision or not; none for the tensor's own.
pub fn half_named(factors: &Bound<'_, PyAny>, single: bool) -> PyResult<Option<Half>> {
    let name = helper(factors.py(), &NAMED, "dtype_name")?.call1((factors,))?;
    let own = if single { f32::NUMPY } else { f64::NUMPY };
    match name.extract::<&str>()? {
        "bfloat16" if single => Ok(Some(Half::Bf16)),
        "float16" if single => Ok(Some(Half::F16)),
        name if name == own => Ok(None),
        name => Err(value("factors", format!("{name}, where the tensor is of {own}"))),
    }
}

static NAMED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static LOG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// `entries` prepared as `layout` says.
fn prepare<T: Element>(py: Python<'_>, entries: &Entries<T>, layout: Layout) -> PyResult<Arc<Held<T>>> {
    let cpu = crate::threads::cpu()?;
    let options = TensorOptions::new(layout.rank).format(layout.format.0);
    let options = match layout.half {
        None => options,
        Some(Half::Bf16) => options.factors::<bf16>(),
        Some(Half::F16) => options.factors::<f16>(),
    };
    let prepared = py.detach(|| guarded(|| cpu.prepare_tensor(&entries.coo, &options)));
    let prepared = prepared.map_err(|failure| match failure {
        crate::error::Failure::Library(error) => about_tensor(error),
        other => other.into(),
    })?;
    helper(py, &LOG, "log_plan")?.call1((prepared.plan().explain(),))?;
    Ok(Arc::new(prepared))
}

/// A tensor prepared for many MTTKRPs. Made by `Tensor.prepare`.
///
/// Attributes
/// ----------
/// shape : tuple of int
/// nnz : int
/// rank : int
///     Columns that it was made for. Others are right and may be slower.
/// format : str
///     How it is stored.
#[pyclass(frozen, module = "sparsimd")]
pub struct PreparedTensor {
    pub inner: AnyHeld,
    tensor: Py<Tensor>,
    asked: Layout,
}

impl PreparedTensor {
    /// Prepares `tensor`.
    pub fn new(tensor: &Bound<'_, Tensor>, asked: Layout) -> PyResult<Self> {
        let py = tensor.py();
        let inner = match &tensor.get().inner {
            Either::F32(entries) => Either::F32(prepare(py, entries, asked)?),
            Either::F64(entries) => Either::F64(prepare(py, entries, asked)?),
        };
        Ok(Self { inner, tensor: tensor.clone().unbind(), asked })
    }
}

#[pymethods]
impl PreparedTensor {
    /// What will be done and why, a line for each decision.
    ///
    /// Returns
    /// -------
    /// str
    fn explain(&self) -> String {
        each!(&self.inner, held => held.plan().explain())
    }

    /// Length of each mode.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        each!(&self.inner, held => PyTuple::new(py, held.dims()))
    }

    /// Number of stored entries.
    #[getter]
    fn nnz(&self) -> usize {
        each!(&self.inner, held => held.nnz())
    }

    /// Columns that it was made for.
    #[getter]
    fn rank(&self) -> usize {
        self.asked.rank
    }

    /// How it is stored.
    #[getter]
    fn format(&self) -> &'static str {
        each!(&self.inner, held => held.plan().format().name())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let restore = py.import("sparsimd._tensor")?.getattr("restore_prepared")?;
        let half = self.asked.half.map(Half::name);
        (restore, (self.tensor.bind(py), self.asked.rank, self.asked.format.name(), half)).into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        let dims = each!(&self.inner, held => held.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" x "));
        let (nnz, rank, format) = (self.nnz(), self.asked.rank, self.format());
        format!("<sparsimd.PreparedTensor {dims}, {nnz} nonzeros, rank {rank}: {format}>")
    }
}

/// Something in either precision, prepared for MTTKRP with factors of `rank` columns that are of 16 bits or of the tensor's own type.
pub fn held(object: &Bound<'_, PyAny>, rank: usize, half: Option<Half>) -> PyResult<AnyHeld> {
    if let Ok(prepared) = object.cast::<PreparedTensor>() {
        return Ok(match &prepared.get().inner {
            Either::F32(held) => Either::F32(Arc::clone(held)),
            Either::F64(held) => Either::F64(Arc::clone(held)),
        });
    }
    let Ok(tensor) = object.cast::<Tensor>() else {
        let name = object.get_type().name()?;
        return Err(PyTypeError::new_err(format!("T: {name} is neither a Tensor nor a prepared one")));
    };
    Ok(match &tensor.get().inner {
        Either::F32(entries) => Either::F32(kept(object.py(), entries, rank, half)?),
        // Their factors are widened.
        Either::F64(entries) => Either::F64(kept(object.py(), entries, rank, None)?),
    })
}

/// What the tensor keeps for this rank and type of the factors, made if need be.
fn kept<T: Element>(py: Python<'_>, entries: &Entries<T>, rank: usize, half: Option<Half>) -> PyResult<Arc<Held<T>>> {
    let find = || {
        let held = entries.held.read().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().filter(|kept| (kept.0, kept.1) == (rank, half)).map(|(.., held)| Arc::clone(held))
    };
    if let Some(held) = py.detach(find) {
        return Ok(held);
    }
    let made = prepare(py, entries, Layout { rank, half, format: Format(None) })?;
    let keep = Some((rank, half, Arc::clone(&made)));
    py.detach(|| *entries.held.write().unwrap_or_else(PoisonError::into_inner) = keep);
    Ok(made)
}

/// Matricised tensor times Khatri-Rao product: row i of the result is the sum, over the entries x with index i in `mode`, of x
/// times the elementwise product of their rows of all other factors.
///
/// Parameters
/// ----------
/// T : Tensor, PreparedTensor
///     A tensor is prepared when it is first used with a rank and type of factors, and keeps that; `Tensor.prepare` says when.
/// factors : sequence of array_like
///     (length of the mode, rank) for each mode. That of `mode` is not looked at and may be None. With a float32 tensor they may be
///     float16 or bfloat16, all; products, sums and the result are float32.
/// mode : int
///     Counted from 0; negative ones from the end.
/// out : numpy.ndarray, optional
///     (length of `mode`, rank), of the tensor's dtype.
/// copy : bool, optional
///     Whether factors that cannot be read where they are may be copied once (the default).
///
/// Returns
/// -------
/// numpy.ndarray
#[pyfunction]
#[pyo3(signature = (T, factors, mode, out = None, *, copy = true))]
#[expect(non_snake_case, reason = "Python's names")]
pub fn mttkrp<'py>(
    T: &Bound<'py, PyAny>,
    factors: Vec<Bound<'py, PyAny>>,
    mode: isize,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mode = mode_of(mode, T.getattr("shape")?.len()?)?;
    let other = factors.iter().enumerate().find(|&(m, _)| m != mode).map(|(_, factor)| factor);
    let Some(other) = other else {
        return Err(value("factors", "there is none of another mode"));
    };
    let shape = match other.cast::<PyUntypedArray>() {
        Ok(array) => array.shape().to_vec(),
        Err(_) => other.py().import("numpy")?.call_method1("shape", (other,))?.extract()?,
    };
    let rank = match shape[..] {
        [_, rank] if rank > 0 => rank,
        _ => {
            let shape = shape_text(&shape);
            return Err(value("factors", format!("a factor of shape {shape}; (length of its mode, rank) is expected")));
        }
    };
    let others = factors.iter().enumerate().filter(|&(m, _)| m != mode);
    let kinds = others.map(|(_, factor)| half_of(factor)).collect::<PyResult<Vec<_>>>()?;
    // Of one type they are read where they are; else all are widened.
    let half = kinds[0].filter(|_| kinds.iter().all(|&kind| kind == kinds[0]));
    stored!(held(T, rank, half)?, half, held, D => typed_mttkrp::<D>(&held, &factors, mode, rank, out, copy))
}

fn typed_mttkrp<'py, D: Entry + Stored<Scalar: Element>>(
    tensor: &Held<D::Scalar>,
    factors: &[Bound<'py, PyAny>],
    mode: usize,
    rank: usize,
    out: Option<&Bound<'py, PyAny>>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (dims, py) = (tensor.dims(), factors[0].py());
    if factors.len() != dims.len() {
        return Err(value("factors", format!("{} for a tensor of order {}", factors.len(), dims.len())));
    }
    let others = factors.iter().enumerate().filter(|&(m, _)| m != mode);
    let dense = others.map(|(m, factor)| {
        let name = format!("factors[{m}]");
        let factor = Dense::<D>::of(factor, &name, false, copy)?;
        factor.expect(&name, dims[m], Some(rank))?;
        Ok((m, factor))
    });
    let dense = dense.collect::<PyResult<Vec<_>>>()?;
    let inputs: Vec<Range<usize>> = dense.iter().map(|(_, factor)| factor.range()).collect();
    let mut out = Output::<D::Scalar>::of(py, out, (dims[mode], rank), false, &inputs)?;
    let mut views: Vec<MatRef<'_, D>> =
        (0..dims.len()).map(|_| MatRef::new(&[], 0, rank, rank)).collect::<Result<_, _>>().map_err(about_tensor)?;
    dense.iter().for_each(|(m, factor)| views[*m] = factor.view());
    let result = out.view();
    if result.rows() > 0 {
        released(py, |cpu| cpu.mttkrp(tensor, &views, mode, result))?;
    }
    drop(views);
    Ok(out.object)
}
