//! Preparing a sparse operand for many runs of one operation (the inspector of inspector-executor).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::operand::SparseOperand;
use crate::cpu::Cpu;
use crate::dense::{Aligned, addresses, fill_with, reserved_aligned};
use crate::error::{Error, Result};
use crate::formats::{Panel, Pattern, PatternRef, gather};
use crate::plan::{Op, Plan, PlanOptions, Stats, Strategy, Task, blocks};

/// A sparse operand prepared for one operation and one number of dense columns.
///
/// New values over the same pattern are one call, [`Prepared::set_values`]. The plan was made for a number of columns;
/// running with another is correct and may be slower.
#[derive(Clone, Debug)]
pub struct Prepared<T> {
    plan: Plan,
    /// As the caller gave it.
    pattern: Arc<Pattern>,
    /// For A^T: its pattern, and the position in CSR order of A of each of its values.
    transposed: Option<(Arc<Pattern>, Vec<usize>)>,
    panel: Option<Panel>,
    /// Of the direct path; none where there is a panel.
    tasks: Vec<Task>,
    /// One per nonzero, in the order in which they are used: by panel where SpMM and FusedMM have panels, else in CSR
    /// order of what is worked on.
    values: Option<Aligned<T>>,
}

impl Cpu {
    /// Prepares `a` for many runs of `op` with dense operands of `n` columns.
    ///
    /// `reuse` is how often it will be run, `path` forces a path or leaves the choice to [`Plan::choose`].
    ///
    /// # Errors
    /// [`Error::Argument`] when `n` is 0.
    pub fn prepare<'a, T: Scalar>(
        &self,
        op: Op,
        a: impl Into<SparseOperand<'a, T>>,
        n: usize,
        path: Strategy,
        reuse: usize,
    ) -> Result<Prepared<T>> {
        let a = a.into();
        let pattern = a.pattern().to_pattern();
        let values = match a {
            SparseOperand::Csr(a) => Some(a.values()),
            SparseOperand::Pattern(_) => None,
            SparseOperand::Prepared(_) => {
                return Err(Error::argument("a", "is prepared already; prepare the matrix itself"));
            }
        };
        let transposed = (op == Op::SpmmTransposed).then(|| self.install(|| pattern.transpose_in(self.threads())));
        let worked = transposed.as_ref().map_or(&pattern, |(pattern, _)| pattern);
        let options = self.plan_options(path, reuse);
        let plan = Plan::choose(op, &Stats::of(worked), self.machine(), n, size_of::<T>(), &options)?;
        let panel = (plan.path == Strategy::Panel).then(|| {
            let bounds = blocks(worked.row_ptr(), plan.block_rows, plan.blocks_multiple);
            let pairing = plan.pairs.then(|| self.arch());
            self.install(|| Panel::new(worked, plan.panel_width, &bounds, pairing))
        });
        let tasks = if panel.is_none() { plan.cut(worked.into()) } else { Vec::new() };
        let mut prepared = Prepared { plan, pattern, transposed, panel, tasks, values: None };
        if let Some(values) = values {
            self.install(|| prepared.arrange(values));
        }
        Ok(prepared)
    }

    /// How `pattern` with dense operands of `n` columns goes through the direct path, from what `a` has prepared or anew.
    pub(super) fn direct<'a, T: Scalar>(
        &self,
        op: Op,
        a: SparseOperand<'a, T>,
        pattern: PatternRef<'_>,
        n: usize,
    ) -> Result<Direct<'a>> {
        if let SparseOperand::Prepared(Prepared { plan, tasks, panel: None, .. }) = a
            && plan.n == n
        {
            return Ok(Direct::new(plan, Cow::Borrowed(tasks)));
        }
        // Facts about the pattern would cost a pass over it, and the direct path needs none but its size.
        let (stats, options) = (Stats::size_of(pattern), self.plan_options(Strategy::Direct, 1));
        let plan = Plan::choose(op, &stats, self.machine(), n, size_of::<T>(), &options)?;
        Ok(Direct::new(&plan, Cow::Owned(plan.cut(pattern))))
    }

    /// What a plan needs to know of this executor.
    pub(super) fn plan_options(&self, path: Strategy, reuse: usize) -> PlanOptions {
        PlanOptions {
            path,
            reuse,
            threads: self.threads(),
            vector_bytes: self.arch().vector_bytes(),
            registers: self.arch().registers(),
        }
    }
}

/// The direct path's part of a plan.
pub(super) struct Direct<'a> {
    /// Nonzeros ahead at which rows are prefetched.
    pub ahead: usize,
    /// Columns that a block of rows passes over together.
    pub width: usize,
    /// Whether the result bypasses the caches.
    pub stream: bool,
    /// Pieces of work.
    pub tasks: Cow<'a, [Task]>,
}

impl<'a> Direct<'a> {
    fn new(plan: &Plan, tasks: Cow<'a, [Task]>) -> Self {
        Self { ahead: plan.ahead, width: plan.direct_width, stream: plan.stream, tasks }
    }
}

impl<T: Scalar> Prepared<T> {
    /// How it will be run.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The pattern that was prepared.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern
    }

    /// The panels, if the plan has them.
    pub fn panel(&self) -> Option<&Panel> {
        self.panel.as_ref()
    }

    /// The addresses of the arrays that runs read, to be looked at or moved page by page
    /// ([`machine::page_nodes_at`](crate::machine::page_nodes_at)).
    pub fn memory(&self) -> Vec<Range<usize>> {
        let values = self.values.as_ref().map(|values| addresses(values));
        let panel = self.panel.iter().flat_map(Panel::memory);
        let worked = self.worked();
        let pattern = [addresses(worked.row_ptr()), addresses(worked.col_idx())];
        // With panels, the pattern is read where there are no offsets: nowhere that counts.
        let pattern = pattern.into_iter().filter(|_| self.panel.is_none());
        pattern.chain(panel).chain(values).collect()
    }

    /// Takes new values, in CSR order of the pattern that was prepared; `cpu` puts them in the order of the plan.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the number of nonzeros.
    pub fn set_values(&mut self, cpu: &Cpu, values: &[T]) -> Result<()> {
        if values.len() != self.pattern.nnz() {
            return Err(Error::shape(
                "set_values",
                format!("{} values for a pattern of {} nonzeros", values.len(), self.pattern.nnz()),
            ));
        }
        cpu.install(|| self.arrange(values));
        Ok(())
    }

    /// Takes `values`, in CSR order of the pattern that was prepared, in the order in which they are used.
    fn arrange(&mut self, values: &[T]) {
        let of_transpose: Vec<T>;
        let values = match &self.transposed {
            None => values,
            Some((_, order)) => {
                of_transpose = gather(values, order);
                &of_transpose
            }
        };
        // Taken: a panic on the way must leave no values, not too few.
        let mut own = self.values.take().unwrap_or_else(|| reserved_aligned(values.len()));
        match &self.panel {
            // SDDMM multiplies by them where its dots go: in CSR order.
            // SAFETY: `arrange` writes every element.
            Some(panel) if self.plan.op != Op::Sddmm => unsafe {
                fill_with(&mut own, values.len(), |out| panel.arrange(values, out));
            },
            _ => {
                own.clear();
                own.extend_from_slice(values);
            }
        }
        self.values = Some(own);
    }

    /// The error when this was prepared for another operation than one of `ops`.
    pub(super) fn check_op(&self, name: &'static str, ops: &[Op]) -> Result<()> {
        if ops.contains(&self.plan.op) {
            return Ok(());
        }
        Err(Error::shape(name, format!("the sparse operand was prepared for {:?}", self.plan.op)))
    }

    /// The pattern that is worked on: of A or of A^T.
    pub(super) fn worked(&self) -> &Arc<Pattern> {
        self.transposed.as_ref().map_or(&self.pattern, |(pattern, _)| pattern)
    }

    /// The values in the order in which they are used, if there are any.
    pub(super) fn values(&self) -> Option<&[T]> {
        self.values.as_deref()
    }
}
