//! The sparse operand of an operation: a matrix or a plan, and the type of its values.

use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use sparsimd::ops::Differentiable;
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Cpu, CsrRef, Pattern, Prepared, Result, SparseOperand};

use crate::array::{Element, Value, helper};
use crate::error::value;
use crate::matrix::Csr;
use crate::plan::Plan;

/// Something in single or in double precision.
pub enum Either<A, B> {
    F32(A),
    F64(B),
}

/// Evaluates the expression with the variable bound to what an [`Either`] has.
macro_rules! each {
    ($either:expr, $x:ident => $body:expr) => {
        match $either {
            $crate::sparse::Either::F32($x) => $body,
            $crate::sparse::Either::F64($x) => $body,
        }
    };
}
pub(crate) use each;

/// Where the nonzeros of matrices are, and what is made of that when it is first needed: matrices of other values share it.
pub struct Structure {
    pub pattern: Arc<Pattern>,
    /// The pattern of the transpose and where its values are.
    transposed: OnceLock<(Arc<Pattern>, Vec<usize>)>,
    single: OnceLock<Differentiable<f32>>,
    double: OnceLock<Differentiable<f64>>,
}

impl Structure {
    pub fn new(pattern: Arc<Pattern>) -> Arc<Self> {
        let (transposed, single, double) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Arc::new(Self { pattern, transposed, single, double })
    }

    /// What `f` gives for the matrix of these values, or A^T: that pattern is kept, its values are gathered.
    pub fn with<T: Value, R>(
        &self,
        cpu: &Cpu,
        transposed: bool,
        values: &[T],
        f: impl FnOnce(SparseOperand<'_, T>) -> Result<R>,
    ) -> Result<R> {
        if !transposed {
            return f(CsrRef::on(&self.pattern, values)?.into());
        }
        let (pattern, order) = self.transposed.get_or_init(|| cpu.install(|| self.pattern.transpose()));
        let values: Vec<T> = order.iter().map(|&p| values[p]).collect();
        f(CsrRef::on(pattern, &values)?.into())
    }

    /// What products of heads and gradients need of the pattern, which has nonzeros.
    pub fn differentiable<T: Element>(&self, cpu: &Cpu) -> Result<&Differentiable<T>> {
        let kept = T::differentiable(&self.single, &self.double);
        if let Some(found) = kept.get() {
            return Ok(found);
        }
        // Straight from CSR, for any number of columns: nothing says how often it will be used.
        let options = PlanOptions::new(Op::FusedMm, 1).strategy(Strategy::Direct);
        let made = cpu.prepare_differentiable::<T>(&self.pattern, &options)?;
        Ok(kept.get_or_init(|| made))
    }
}

/// A matrix: its structure, and an array of values where Python has it.
pub struct Typed<T: Value> {
    pub structure: Arc<Structure>,
    pub data: Py<PyArrayDyn<T>>,
}

impl<T: Value> Typed<T> {
    /// The matrix with these values, contiguous and as many as there are nonzeros.
    pub fn new(structure: Arc<Structure>, data: &Bound<'_, PyArrayDyn<T>>) -> PyResult<Self> {
        let typed = Self { structure, data: data.clone().unbind() };
        typed.values(data.py())?;
        Ok(typed)
    }

    /// The values. Python may have changed the array's shape since.
    pub fn values<'py>(&self, py: Python<'py>) -> PyResult<Values<'py, T>> {
        let array = self.data.bind(py);
        let nnz = self.structure.pattern.nnz();
        let contiguous = nnz <= 1 || array.strides() == [size_of::<T>() as isize];
        if array.shape() != [nnz] || !contiguous || !array.data().is_aligned() {
            let detail = format!("{:?} values, contiguous and aligned, are expected; the array was changed", nnz);
            return Err(value("data", detail));
        }
        Ok(Values { array: array.clone(), len: nnz })
    }
}

impl<T: Value> Typed<T> {
    /// numpy's type of the values.
    pub fn dtype<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        numpy::dtype::<T>(py).into_any()
    }

    /// Its name.
    pub fn dtype_name(&self) -> &'static str {
        T::NUMPY
    }
}

/// The values of a matrix.
pub struct Values<'py, T: Value> {
    array: Bound<'py, PyArrayDyn<T>>,
    len: usize,
}

impl<T: Value> Values<'_, T> {
    pub fn slice(&self) -> &[T] {
        match self.len {
            0 => &[],
            // SAFETY: as for `Dense::view`; length, contiguity and alignment were just checked.
            len => unsafe { std::slice::from_raw_parts(self.array.data(), len) },
        }
    }

    pub fn range(&self) -> Range<usize> {
        let start = self.array.data().addr();
        start..start + self.len * size_of::<T>()
    }
}

/// The sparse operand of one call.
pub enum Source<'a, T: Value> {
    Matrix(&'a Typed<T>),
    Plan(&'a RwLock<Prepared<T>>),
}

impl<T: Value> Clone for Source<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Value> Copy for Source<'_, T> {}

impl<T: Value> Source<'_, T> {
    /// Its values, where Python has them.
    pub fn values<'py>(self, py: Python<'py>) -> PyResult<Option<Values<'py, T>>> {
        match self {
            Self::Matrix(matrix) => matrix.values(py).map(Some),
            Self::Plan(_) => Ok(None),
        }
    }

    /// What `f` gives for the operand with these `values`.
    pub fn with<R>(self, values: Option<&[T]>, f: impl FnOnce(SparseOperand<'_, T>) -> Result<R>) -> Result<R> {
        match (self, values) {
            (Self::Matrix(matrix), Some(values)) => f(CsrRef::on(&matrix.structure.pattern, values)?.into()),
            (Self::Matrix(matrix), None) => f((&matrix.structure.pattern).into()),
            (Self::Plan(plan), _) => f((&*plan.read().unwrap_or_else(PoisonError::into_inner)).into()),
        }
    }

    /// What `f` gives for A^T as a matrix. A plan is given as it is.
    pub fn with_transposed<R>(
        self,
        cpu: &Cpu,
        values: Option<&[T]>,
        f: impl FnOnce(SparseOperand<'_, T>) -> Result<R>,
    ) -> Result<R> {
        match (self, values) {
            (Self::Matrix(matrix), Some(values)) => matrix.structure.with(cpu, true, values, f),
            _ => self.with(values, f),
        }
    }
}

/// The sparse operand as Python gave it.
pub enum Given<'py> {
    Matrix(Bound<'py, Csr>),
    Plan(Bound<'py, Plan>),
}

static CSR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl<'py> Given<'py> {
    /// A `CSR` or a `Plan`, or what `csr()` makes one of.
    pub fn of(a: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(matrix) = a.cast::<Csr>() {
            return Ok(Self::Matrix(matrix.clone()));
        }
        if let Ok(plan) = a.cast::<Plan>() {
            return Ok(Self::Plan(plan.clone()));
        }
        let made = helper(a.py(), &CSR, "matrix")?.call1((a,))?;
        Ok(Self::Matrix(made.cast_into::<Csr>()?))
    }

    /// Rows and columns of the matrix.
    pub fn shape(&self) -> (usize, usize) {
        let pattern = self.pattern();
        (pattern.rows(), pattern.cols())
    }

    /// Number of nonzeros.
    pub fn nnz(&self) -> usize {
        self.pattern().nnz()
    }

    fn pattern(&self) -> &Arc<Pattern> {
        &self.structure().pattern
    }

    /// What matrices of other values share.
    pub fn structure(&self) -> &Arc<Structure> {
        match self {
            Self::Matrix(matrix) => matrix.get().structure(),
            Self::Plan(plan) => plan.get().structure(),
        }
    }

    /// Whether its values are integers.
    pub fn has_integers(&self) -> bool {
        matches!(self, Self::Matrix(matrix) if matches!(matrix.get().values(), Any::I32(_) | Any::I64(_)))
    }

    /// The operand by its precision; an error for integers.
    pub fn source(&self) -> PyResult<Either<Source<'_, f32>, Source<'_, f64>>> {
        Ok(match self {
            Self::Matrix(matrix) => match matrix.get().floats()? {
                Either::F32(typed) => Either::F32(Source::Matrix(typed)),
                Either::F64(typed) => Either::F64(Source::Matrix(typed)),
            },
            Self::Plan(plan) => match &plan.get().inner {
                Either::F32(plan) => Either::F32(Source::Plan(plan)),
                Either::F64(plan) => Either::F64(Source::Plan(plan)),
            },
        })
    }
}

/// A matrix by the type of its values.
pub enum Any {
    F32(Typed<f32>),
    F64(Typed<f64>),
    I32(Typed<i32>),
    I64(Typed<i64>),
}

macro_rules! into_any {
    ($($t:ident $variant:ident)*) => {
        $(impl From<Typed<$t>> for Any {
            fn from(typed: Typed<$t>) -> Self {
                Self::$variant(typed)
            }
        })*
    };
}
into_any!(f32 F32 f64 F64 i32 I32 i64 I64);

/// Evaluates the expression with the variable bound to what an [`Any`] has.
macro_rules! any {
    ($any:expr, $x:ident => $body:expr) => {
        match $any {
            $crate::sparse::Any::F32($x) => $body,
            $crate::sparse::Any::F64($x) => $body,
            $crate::sparse::Any::I32($x) => $body,
            $crate::sparse::Any::I64($x) => $body,
        }
    };
}
pub(crate) use any;

impl Any {
    /// The one of floating-point numbers, for the operations that have no other.
    pub fn floats(&self) -> PyResult<Either<&Typed<f32>, &Typed<f64>>> {
        match self {
            Self::F32(typed) => Ok(Either::F32(typed)),
            Self::F64(typed) => Ok(Either::F64(typed)),
            _ => Err(PyTypeError::new_err(
                "A: has integers; float32 or float64 is expected here: astype() converts, spmm() and @ take integers",
            )),
        }
    }
}
