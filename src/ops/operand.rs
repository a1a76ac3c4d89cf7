//! The sparse operand of an operation.

use std::sync::Arc;

use sparsimd_kernels::{Stored, bf16, f16};

use super::prepare::Prepared;
use super::values::{NarrowCsr, Values};
use crate::cpu::Cpu;
use crate::error::{Error, Result};
use crate::formats::{Csr, CsrRef, Panel, Pattern, PatternRef};
use crate::plan::{Op, PanelPlan};

/// A sparse matrix as an operation takes it: everything that is [`Into`] it will do.
///
/// A [`Csr`] or [`CsrRef`] of bf16 or f16 is one of f32, with which its values are computed, whatever the dense operands store.
#[derive(Clone, Copy, Debug)]
pub enum SparseOperand<'a, T> {
    /// Straight from CSR, owned or borrowed: nothing to prepare.
    Csr(CsrRef<'a, T>),
    /// Likewise, of bf16 or f16.
    Narrow(NarrowCsr<'a, T>),
    /// A pattern alone, where no values are needed.
    Pattern(PatternRef<'a>),
    /// Prepared by [`Cpu::prepare`](crate::Cpu::prepare), for many runs.
    Prepared(&'a Prepared<T>),
}

impl<'a, T> From<CsrRef<'a, T>> for SparseOperand<'a, T> {
    fn from(a: CsrRef<'a, T>) -> Self {
        Self::Csr(a)
    }
}

impl<'a, T: Copy> From<&'a Csr<T>> for SparseOperand<'a, T> {
    fn from(a: &'a Csr<T>) -> Self {
        Self::Csr(a.into())
    }
}

macro_rules! narrow {
    ($($t:ty),*) => {$(
        impl<'a> From<CsrRef<'a, $t>> for SparseOperand<'a, f32> {
            fn from(a: CsrRef<'a, $t>) -> Self {
                Self::of(a)
            }
        }

        impl<'a> From<&'a Csr<$t>> for SparseOperand<'a, f32> {
            fn from(a: &'a Csr<$t>) -> Self {
                Self::of(a)
            }
        }
    )*};
}
narrow!(bf16, f16);

impl<'a, T> From<PatternRef<'a>> for SparseOperand<'a, T> {
    fn from(pattern: PatternRef<'a>) -> Self {
        Self::Pattern(pattern)
    }
}

impl<'a, T> From<&'a Arc<Pattern>> for SparseOperand<'a, T> {
    fn from(pattern: &'a Arc<Pattern>) -> Self {
        Self::Pattern(pattern.into())
    }
}

impl<'a, T> From<&'a Prepared<T>> for SparseOperand<'a, T> {
    fn from(prepared: &'a Prepared<T>) -> Self {
        Self::Prepared(prepared)
    }
}

impl<'a, T: Copy> SparseOperand<'a, T> {
    /// A matrix whose values are of any element type that is computed with as `T`, for what is generic in that type.
    pub fn of<D: Stored<Scalar = T>>(a: impl Into<CsrRef<'a, D>>) -> Self {
        let a = a.into();
        match Values::of(a.values()) {
            Values::Same(values) => Self::Csr(CsrRef::from_parts(a.pattern(), values)),
            values @ Values::Narrow(..) => Self::Narrow(NarrowCsr { pattern: a.pattern(), values }),
        }
    }

    /// The pattern, as the caller gave it.
    pub fn pattern(self) -> PatternRef<'a> {
        match self {
            Self::Csr(a) => a.pattern(),
            Self::Narrow(a) => a.pattern,
            Self::Pattern(pattern) => pattern,
            Self::Prepared(prepared) => prepared.pattern().into(),
        }
    }

    /// The values in the order in which the operation uses them, if there are any.
    pub(super) fn values(self) -> Option<Values<'a, T>> {
        match self {
            Self::Csr(a) => Some(Values::Same(a.values())),
            Self::Narrow(a) => Some(a.values),
            Self::Pattern(_) => None,
            Self::Prepared(prepared) => prepared.values(),
        }
    }

    /// The values, or the error that `op` needs them.
    pub(super) fn need_values(self, op: &'static str) -> Result<Values<'a, T>> {
        self.values().ok_or_else(|| Error::shape(op, "needs the values of the sparse matrix, and was given a pattern"))
    }

    /// The panels for a run of `op` by `cpu`, if it is prepared and its plan has them: then its values are as they are computed with.
    ///
    /// # Errors
    /// As [`Prepared::panels_for`].
    pub(super) fn panels_for(self, op: Op, cpu: &Cpu) -> Result<Option<(&'a PanelPlan, &'a Panel)>> {
        if let Self::Prepared(prepared) = self { prepared.panels_for(op, cpu) } else { Ok(None) }
    }
}

/// Checks that there is at least one column.
pub(super) fn check_columns(op: &'static str, n: usize) -> Result<()> {
    if n == 0 { Err(Error::shape(op, "the dense operands have 0 columns; at least 1")) } else { Ok(()) }
}
