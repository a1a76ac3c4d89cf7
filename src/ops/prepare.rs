//! Preparing a sparse operand for many runs of one operation (the inspector of inspector-executor).

use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::operand::Sparse;
use crate::cpu::Cpu;
use crate::dense::Aligned;
use crate::error::{Error, Result};
use crate::formats::{Panel, Pattern};
use crate::plan::{Op, Path, Plan, PlanOptions, Stats, blocks};

/// A sparse operand prepared for one operation and one number of dense columns.
///
/// New values over the same pattern are one call, [`Prepared::set_values`]. The plan was made for a number of columns;
/// running with another is correct and may be slower.
#[derive(Clone, Debug)]
pub struct Prepared<T> {
    plan: Plan,
    /// As the caller gave it.
    pattern: Arc<Pattern>,
    /// Values in CSR order; empty and unused when there are none.
    values: Option<Vec<T>>,
    /// For A^T: its pattern, and the position in `values` of each of its values.
    transposed: Option<(Arc<Pattern>, Vec<usize>)>,
    /// Values of what is worked on, when that is not `values` itself: of A^T in CSR order, of panels in panel order.
    arranged: Aligned<T>,
    panel: Option<Panel>,
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
        a: impl Into<Sparse<'a, T>>,
        n: usize,
        path: Path,
        reuse: usize,
    ) -> Result<Prepared<T>> {
        let a = a.into();
        let pattern = Arc::clone(a.pattern());
        let values = a.values().map(<[T]>::to_vec);
        let transposed = (op == Op::SpmmTransposed).then(|| pattern.transpose());
        let worked = transposed.as_ref().map_or(&pattern, |(pattern, _)| pattern);
        let options = self.plan_options(path, reuse);
        let plan = Plan::choose(op, &Stats::of(worked), self.machine(), n, size_of::<T>(), &options)?;
        let panel = (plan.path == Path::Panel).then(|| {
            let bounds = blocks(worked.row_ptr(), plan.block_rows, plan.blocks_multiple);
            self.install(|| Panel::new(worked, plan.panel_width, &bounds))
        });
        let arranged = Panel::no_values();
        let mut prepared = Prepared { plan, pattern, values, transposed, arranged, panel };
        self.install(|| prepared.arrange());
        Ok(prepared)
    }

    /// What a plan needs to know of this executor.
    pub(super) fn plan_options(&self, path: Path, reuse: usize) -> PlanOptions {
        PlanOptions {
            path,
            reuse,
            threads: self.threads(),
            vector_bytes: self.arch().vector_bytes(),
            registers: self.arch().registers(),
        }
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

    /// The values in CSR order, if it was prepared with values.
    pub fn values(&self) -> Option<&[T]> {
        self.values.as_deref()
    }

    /// The panels, if the plan has them.
    pub fn panel(&self) -> Option<&Panel> {
        self.panel.as_ref()
    }

    /// Takes new values, in CSR order of the pattern that was prepared.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the number of nonzeros.
    pub fn set_values(&mut self, values: &[T]) -> Result<()> {
        if values.len() != self.pattern.nnz() {
            return Err(Error::shape(
                "set_values",
                format!("{} values for a pattern of {} nonzeros", values.len(), self.pattern.nnz()),
            ));
        }
        let own = self.values.get_or_insert_default();
        own.clear();
        own.extend_from_slice(values);
        self.arrange();
        Ok(())
    }

    /// Brings the values into the order in which they are used.
    fn arrange(&mut self) {
        let Some(values) = &self.values else { return };
        let of_transpose: Vec<T>;
        let values = match &self.transposed {
            None => values,
            Some((_, order)) => {
                of_transpose = order.iter().map(|&p| values[p]).collect();
                &of_transpose
            }
        };
        match &self.panel {
            Some(panel) => panel.arrange(values, &mut self.arranged),
            None if self.transposed.is_some() => {
                self.arranged.clear();
                self.arranged.extend_from_slice(values);
            }
            None => {}
        }
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

    /// The values that are worked on: in panel order if there is a panel, else in CSR order of [`Prepared::worked`].
    pub(super) fn worked_values(&self) -> Option<&[T]> {
        let values = self.values.as_deref()?;
        Some(if self.panel.is_some() || self.transposed.is_some() { &self.arranged } else { values })
    }
}
