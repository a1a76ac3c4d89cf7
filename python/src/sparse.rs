//! The sparse operand of an operation: a matrix or a plan, in single or double precision.

use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use numpy::{PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use sparsimd::{Cpu, CsrRef, Pattern, Prepared, Result, SparseOperand};

use crate::array::{Element, helper};
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

/// A matrix: a checked copy of its indices, and an array of values where Python has it.
pub struct Typed<T: Element> {
    pub pattern: Arc<Pattern>,
    pub data: Py<PyArrayDyn<T>>,
    /// The pattern of the transpose and where its values are, made when it is first needed.
    transposed: OnceLock<(Arc<Pattern>, Vec<usize>)>,
}

impl<T: Element> Typed<T> {
    /// The matrix with these values, contiguous and as many as there are nonzeros.
    pub fn new(pattern: Arc<Pattern>, data: &Bound<'_, PyArrayDyn<T>>) -> PyResult<Self> {
        let typed = Self { pattern, data: data.clone().unbind(), transposed: OnceLock::new() };
        typed.values(data.py())?;
        Ok(typed)
    }

    /// The values. Python may have changed the array's shape since.
    pub fn values<'py>(&self, py: Python<'py>) -> PyResult<Values<'py, T>> {
        let array = self.data.bind(py);
        let nnz = self.pattern.nnz();
        let contiguous = nnz <= 1 || array.strides() == [size_of::<T>() as isize];
        if array.shape() != [nnz] || !contiguous || !array.data().is_aligned() {
            let detail = format!("{:?} values, contiguous and aligned, are expected; the array was changed", nnz);
            return Err(value("data", detail));
        }
        Ok(Values { array: array.clone(), len: nnz })
    }
}

/// The values of a matrix.
pub struct Values<'py, T: Element> {
    array: Bound<'py, PyArrayDyn<T>>,
    len: usize,
}

impl<T: Element> Values<'_, T> {
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
pub enum Source<'a, T: Element> {
    Matrix(&'a Typed<T>),
    Plan(&'a RwLock<Prepared<T>>),
}

impl<T: Element> Clone for Source<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Element> Copy for Source<'_, T> {}

impl<T: Element> Source<'_, T> {
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
            (Self::Matrix(matrix), Some(values)) => f(CsrRef::on(&matrix.pattern, values)?.into()),
            (Self::Matrix(matrix), None) => f((&matrix.pattern).into()),
            (Self::Plan(plan), _) => f((&*plan.read().unwrap_or_else(PoisonError::into_inner)).into()),
        }
    }

    /// What `f` gives for A^T as a matrix: its pattern is kept, its values are gathered. A plan is given as it is.
    pub fn with_transposed<R>(
        self,
        cpu: &Cpu,
        values: Option<&[T]>,
        f: impl FnOnce(SparseOperand<'_, T>) -> Result<R>,
    ) -> Result<R> {
        let (Self::Matrix(matrix), Some(values)) = (self, values) else { return self.with(values, f) };
        let (pattern, order) = matrix.transposed.get_or_init(|| cpu.install(|| matrix.pattern.transpose()));
        let values: Vec<T> = order.iter().map(|&p| values[p]).collect();
        f(CsrRef::on(pattern, &values)?.into())
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
        match self {
            Self::Matrix(matrix) => matrix.get().pattern(),
            Self::Plan(plan) => plan.get().pattern(),
        }
    }

    /// The operand by its precision.
    pub fn source(&self) -> Either<Source<'_, f32>, Source<'_, f64>> {
        match self {
            Self::Matrix(matrix) => match &matrix.get().inner {
                Either::F32(typed) => Either::F32(Source::Matrix(typed)),
                Either::F64(typed) => Either::F64(Source::Matrix(typed)),
            },
            Self::Plan(plan) => match &plan.get().inner {
                Either::F32(plan) => Either::F32(Source::Plan(plan)),
                Either::F64(plan) => Either::F64(Source::Plan(plan)),
            },
        }
    }
}
