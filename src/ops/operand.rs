//! The sparse operand of an operation.

use std::sync::Arc;

use super::prepare::Prepared;
use crate::error::{Error, Result};
use crate::formats::{Csr, CsrRef, Pattern, PatternRef};

/// A sparse matrix as an operation takes it: everything that is [`Into`] it will do.
#[derive(Clone, Copy, Debug)]
pub enum SparseOperand<'a, T> {
    /// Straight from CSR, owned or borrowed: nothing to prepare.
    Csr(CsrRef<'a, T>),
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
    /// The pattern, as the caller gave it.
    pub fn pattern(self) -> PatternRef<'a> {
        match self {
            Self::Csr(a) => a.pattern(),
            Self::Pattern(pattern) => pattern,
            Self::Prepared(prepared) => prepared.pattern().into(),
        }
    }

    /// The values in the order in which the operation uses them, if there are any.
    pub(super) fn values(self) -> Option<&'a [T]> {
        match self {
            Self::Csr(a) => Some(a.values()),
            Self::Pattern(_) => None,
            Self::Prepared(prepared) => prepared.values(),
        }
    }

    /// The values, or the error that `op` needs them.
    pub(super) fn need_values(self, op: &'static str) -> Result<&'a [T]> {
        self.values().ok_or_else(|| Error::shape(op, "needs the values of the sparse matrix, and was given a pattern"))
    }
}

/// Checks that there is at least one column.
pub(super) fn check_columns(op: &'static str, n: usize) -> Result<()> {
    if n == 0 { Err(Error::shape(op, "the dense operands have 0 columns; at least 1")) } else { Ok(()) }
}
