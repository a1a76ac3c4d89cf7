//! A sparse operand prepared for an operation and for its gradients.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use sparsimd_kernels::{LINE, Scalar, prefetch_row, prefetch_row_l2};

use super::operand::SparseOperand;
use super::prepare::Prepared;
use super::run::Shared;
use super::values::{Values, ValuesMut};
use crate::cpu::Cpu;
use crate::dense::{Aligned, MatMut, MatRef, fill_with, reserved_aligned};
use crate::error::{Error, Result};
use crate::formats::{Pattern, PatternRef};
use crate::plan::{Op, Plan, PlanOptions};
use crate::{memory, parallel};

/// A sparse operand prepared for SpMM, SDDMM, FusedMM and their gradients: for products with A, with A^T, and at its nonzeros.
///
/// The transposed pattern is made once, here. It also keeps the room in which edge values pass from one stage to the next, one or two
/// numbers for each nonzero and head, from one call to the next.
#[derive(Debug)]
pub struct Differentiable<T> {
    /// A, for products at its nonzeros.
    pub(super) dots: Prepared<T>,
    /// A, for products with it.
    pub(super) rows: Prepared<T>,
    /// A^T, likewise.
    pub(super) columns: Prepared<T>,
    values: Option<Vec<T>>,
    room: Mutex<Vec<Aligned<T>>>,
}

impl Cpu {
    /// Prepares `a` for operations with dense operands of `n` columns and their gradients, by the strategy and for as many runs as
    /// `options` say; the operation that they name does not matter.
    ///
    /// # Errors
    /// As [`Cpu::prepare`].
    pub fn prepare_differentiable<'a, T: Scalar>(
        &self,
        a: impl Into<SparseOperand<'a, T>>,
        options: &PlanOptions,
    ) -> Result<Differentiable<T>> {
        let a = a.into();
        let values = match a {
            SparseOperand::Prepared(_) => {
                return Err(Error::argument("a", "is prepared already; prepare the matrix itself"));
            }
            _ => a.values().map(|values| self.install(|| values.widened(self.arch()).into_owned())),
        };
        let pattern = a.pattern().to_pattern();
        let prepare = |op| {
            let options = PlanOptions { op, ..*options };
            self.prepare_operand(SparseOperand::Pattern((&pattern).into()), &options)
        };
        let (dots, rows, columns) = (prepare(Op::Sddmm)?, prepare(Op::Spmm)?, prepare(Op::SpmmTransposed)?);
        // A pass forward and backward gathers up to four operands.
        let [dots, rows, columns] = [dots, rows, columns].map(Prepared::among_others);
        Ok(Differentiable { dots, rows, columns, values, room: Mutex::new(Vec::new()) })
    }
}

impl<T: Scalar> Differentiable<T> {
    /// The pattern.
    pub fn pattern(&self) -> &Arc<Pattern> {
        self.rows.pattern()
    }

    /// The values, in CSR order, if there are any.
    pub fn values(&self) -> Option<&[T]> {
        self.values.as_deref()
    }

    /// Takes new values, in CSR order.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the number of nonzeros.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        super::heads::check_numbers("set_values", "values", values.len(), self.pattern().nnz(), 1)?;
        let own = self.values.get_or_insert_default();
        own.clear();
        own.extend_from_slice(values);
        Ok(())
    }

    /// The values, or the error that `op` needs them.
    pub(super) fn need_values(&self, op: &'static str) -> Result<&[T]> {
        self.values().ok_or_else(|| Error::shape(op, "needs the values of the sparse matrix, and was given a pattern"))
    }

    /// The transposed pattern.
    pub(super) fn transposed(&self) -> &Arc<Pattern> {
        self.columns.worked()
    }

    /// How the products at the nonzeros, with A and with A^T are run.
    pub fn plans(&self) -> [&Plan; 3] {
        [self.dots.plan(), self.rows.plan(), self.columns.plan()]
    }

    /// Room for `len` numbers; given back by [`Differentiable::give`].
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(super) fn take(&self, len: usize) -> Result<Aligned<T>> {
        let mut room = self.room.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let fits = room.iter().position(|room| room.len() == len);
        if let Some(at) = fits {
            return Ok(room.swap_remove(at));
        }
        room.clear();
        drop(room);
        memory::ensure("edge values", len.saturating_mul(size_of::<T>()))?;
        let mut new = reserved_aligned(len);
        new.resize(len, T::ZERO);
        Ok(new)
    }

    /// Keeps the room for the next call.
    pub(super) fn give(&self, room: impl IntoIterator<Item = Aligned<T>>) {
        self.room.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(room);
    }
}

/// Numbers ahead at which those to be transposed are prefetched: they are far apart, in L3.
const NUMBERS_AHEAD: usize = 64;

impl Cpu {
    /// out_ph = C_ih . B_jh; shapes have been checked.
    pub(super) fn dots_at<T: Scalar>(
        &self,
        a: &Differentiable<T>,
        heads: usize,
        c: MatRef<'_, T>,
        b: MatRef<'_, T>,
        out: &mut [T],
    ) -> Result<()> {
        match heads {
            1 => self.sampled("sddmm", (&a.dots).into(), None, c, b, ValuesMut::Same(out)),
            _ => self.dots_of_heads((&a.dots).into(), heads, c, b, out),
        }
    }

    /// C = A_v B with the values `v`, H for each nonzero of what `a` multiplies by, A or A^T, in CSR order of that; past the caches where
    /// the plan says so or `stream` does. Shapes have been checked.
    pub(super) fn product_of<T: Scalar>(
        &self,
        a: &Prepared<T>,
        heads: usize,
        v: &[T],
        b: MatRef<'_, T>,
        c: MatMut<'_, T>,
        stream: bool,
    ) -> Result<()> {
        let worked: PatternRef<'_> = a.worked().into();
        if heads > 1 {
            return self.sums_of_heads(a.into(), worked, heads, v, b, c, stream);
        }
        if let Some((plan, panel)) = a.panels_for(a.plan().op(), self)? {
            let mut arranged = reserved_aligned(v.len());
            // SAFETY: `arrange` writes every element.
            self.install(|| unsafe { fill_with(&mut arranged, v.len(), |out| panel.arrange(v, out)) });
            self.spmm_by_panels(T::ONE, (plan, panel), &arranged, b, T::ZERO, c);
            return Ok(());
        }
        let mut direct = self.direct(Op::Spmm, a.into(), worked, c.cols())?;
        direct.stream |= stream;
        self.spmm_directly(T::ONE, worked, Values::Same(v), &direct, b, T::ZERO, c);
        Ok(())
    }

    /// The numbers `from`, H of each of K kinds for each nonzero, in the order of the transposed pattern: each kind in one of `to`.
    pub(super) fn transpose_numbers<T: Scalar, const K: usize>(
        &self,
        a: &Differentiable<T>,
        heads: usize,
        from: &[T],
        to: [&mut [T]; K],
    ) {
        let order = a.columns.order().expect("it was prepared for A^T");
        let to = to.map(|to| Shared(to.as_mut_ptr()));
        self.install(|| {
            parallel::ranges(order.len(), parallel::GRAIN / 4, |range| {
                let to = to.map(Shared::get);
                // SAFETY: every one of `to` has H numbers for each nonzero, `from` has them of K kinds; the ranges are disjoint.
                unsafe {
                    match heads {
                        1 => in_order::<T, K, true>(order, range, 1, from, to),
                        _ => in_order::<T, K, false>(order, range, heads, from, to),
                    }
                }
            });
        });
    }
}

/// [`Cpu::transpose_numbers`] for places `range` of the transposed pattern.
///
/// # Safety
/// `from` has K H numbers for each nonzero, every one of `to` H, of which the range's are the caller's own. `ONE` says whether H is 1.
unsafe fn in_order<T: Scalar, const K: usize, const ONE: bool>(
    order: &[usize],
    range: Range<usize>,
    heads: usize,
    from: &[T],
    to: [*mut T; K],
) {
    let heads = if ONE { 1 } else { heads };
    let bytes = heads * size_of::<T>();
    let step = (LINE / bytes).max(1);
    let last = order.len() - 1;
    for begin in range.clone().step_by(step) {
        for to in to {
            // The store of a number would wait for its line, and all others behind it.
            prefetch_row(to.wrapping_add((begin + NUMBERS_AHEAD) * heads), step * bytes);
        }
        for q in begin..range.end.min(begin + step) {
            prefetch_row_l2(from.as_ptr().wrapping_add(order[(q + NUMBERS_AHEAD).min(last)] * K * heads), K * bytes);
            let numbers = &from[order[q] * K * heads..][..K * heads];
            for k in 0..K {
                // SAFETY: the caller's promise.
                unsafe {
                    let to = to[k].add(q * heads);
                    if ONE {
                        // Without the call that copies a number of bytes known at run time alone.
                        to.write(numbers[k]);
                    } else {
                        numbers.as_ptr().add(k * heads).copy_to_nonoverlapping(to, heads);
                    }
                }
            }
        }
    }
}
