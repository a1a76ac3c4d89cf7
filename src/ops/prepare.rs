//! Preparing a sparse operand for many runs of one operation (the inspector of inspector-executor).

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use sparsimd_kernels::{Arch, Number, Scalar, Stored};

use super::operand::SparseOperand;
use super::values::{Narrow, PIECE, Values};
use crate::cpu::Cpu;
use crate::dense::{Aligned, addresses, fill_with, reserved_aligned};
use crate::error::{Error, Result};
use crate::formats::{Panel, Pattern, PatternRef, Slices, gather};
use crate::memory;
use crate::plan::{
    DirectPlan, Effort, Measured, Op, PanelPlan, Plan, PlanOptions, SlicesPlan, Stages, Stats, Target, Task,
    WisdomCase, blocks, by_nonzeros, check_columns,
};

/// A sparse operand prepared for one operation and one number of dense columns.
///
/// Values of bf16 and f16 are kept as they are by the direct strategy, whose tasks widen theirs, and widened in panels and slices.
/// New values over the same pattern are one call, [`Prepared::set_values`]. The plan was made for a number of columns;
/// running with another is correct and may be slower.
/// Panels belong to the instruction set that they were laid out for: an executor of another one refuses them.
#[derive(Clone, Debug)]
pub struct Prepared<T> {
    plan: Plan,
    /// The instruction set of the executor that prepared it.
    arch: Arch,
    /// As the caller gave it.
    pattern: Arc<Pattern>,
    /// For A^T: its pattern, and the position in CSR order of A of each of its values.
    transposed: Option<(Arc<Pattern>, Arc<Vec<usize>>)>,
    layout: Layout,
    /// One per nonzero, in the order in which they are used: by panel where SpMM and FusedMM have panels, else in CSR
    /// order of what is worked on.
    values: Option<Own<T>>,
    /// The same in the order of the slices, if there are slices.
    sliced: Option<Aligned<T>>,
    /// The values by the number of nonzeros of their rows, in the same order, once a mean needed them.
    means: OnceLock<Aligned<T>>,
    measured: Option<Measured>,
}

/// The values of a prepared operand. With panels or slices they are as they are computed with.
#[derive(Clone, Debug)]
enum Own<T> {
    Same(Aligned<T>),
    Narrow(Aligned<u16>, Narrow<T>),
}

/// What is prepared: a matrix, and what every layout of it is made from.
pub(super) struct Inspected<'a, T> {
    pattern: Arc<Pattern>,
    transposed: Option<(Arc<Pattern>, Arc<Vec<usize>>)>,
    values: Option<Values<'a, T>>,
}

impl<T> Inspected<'_, T> {
    /// The pattern that is worked on: of A or of A^T.
    pub fn worked(&self) -> &Arc<Pattern> {
        self.transposed.as_ref().map_or(&self.pattern, |(pattern, _)| pattern)
    }

    /// The number of rows and of columns of A.
    pub fn shape(&self) -> (usize, usize) {
        (self.pattern.rows(), self.pattern.cols())
    }

    /// Whether A has values.
    pub fn has_values(&self) -> bool {
        self.values.is_some()
    }
}

/// What the plan leads to.
#[derive(Clone, Debug)]
enum Layout {
    /// The direct path's pieces of work.
    Tasks(Vec<Task>),
    Panel(Panel),
    /// Beside CSR, from which some rows and dense operands of other shapes are computed.
    Slices(Slices),
}

impl Cpu {
    /// Prepares `a` for many runs of the operation of `options`, as [`Plan::choose`] finds best on this executor's machine.
    ///
    /// # Errors
    /// [`Error::Argument`] when the dense operands have no columns, or `a` is prepared already; [`Error::Memory`]; what operands to
    /// measure with need ([`Effort::Measure`]) as [`Mat::zeros`](crate::Mat::zeros).
    pub fn prepare<'a, T: Scalar>(
        &self,
        a: impl Into<SparseOperand<'a, T>>,
        options: &PlanOptions,
    ) -> Result<Prepared<T>> {
        self.prepare_operand(a.into(), options)
    }

    #[inline(never)]
    pub(crate) fn prepare_operand<T: Scalar>(
        &self,
        a: SparseOperand<'_, T>,
        options: &PlanOptions,
    ) -> Result<Prepared<T>> {
        // Before A^T is made.
        check_columns(options.n())?;
        // Starts, offsets and the values' order, with as much again while they grow; a copy of the pattern, or its
        // transpose. Slices take no more.
        let each = 4 * size_of::<u32>() + 2 * size_of::<usize>() + size_of::<T>();
        let (of, lines) = (a.pattern(), a.pattern().rows() + a.pattern().cols());
        let layouts = match options.effort {
            Effort::Estimate => 1,
            // The first, the best so far, and the one that is tried.
            Effort::Measure => 3,
        };
        let needed = memory::total(&[(of.nnz(), layouts * each), (lines, 2 * size_of::<usize>())]);
        memory::ensure("preparing the matrix", needed)?;
        let pattern = a.pattern().to_pattern();
        if let SparseOperand::Prepared(_) = a {
            return Err(Error::argument("a", "is prepared already; prepare the matrix itself"));
        }
        let transposed = (options.op() == Op::SpmmTransposed).then(|| {
            let (pattern, order) = self.install(|| pattern.transpose_in(self.threads()));
            (pattern, Arc::new(order))
        });
        let inspected = Inspected { pattern, transposed, values: a.values() };
        let stats = Stats::of(inspected.worked());
        let plan = self.plan_for::<T>(&stats, options)?;
        match options.effort {
            Effort::Estimate => Ok(self.lay_out(&inspected, plan)),
            Effort::Measure => self.prepare_measured(&inspected, &stats, options, plan),
        }
    }

    /// `a` in the layout that `plan` leads to.
    pub(super) fn lay_out<T: Scalar>(&self, a: &Inspected<'_, T>, plan: Plan) -> Prepared<T> {
        let worked = a.worked();
        let layout = match &plan {
            Plan::Direct(plan) => Layout::Tasks(plan.cut(worked.into())),
            Plan::Panel(plan) => {
                let bounds = blocks(worked.row_ptr(), plan.block_rows, plan.blocks_multiple);
                let pairing = plan.pairs.then(|| self.arch());
                Layout::Panel(self.install(|| Panel::new(worked, plan.width, &bounds, pairing)))
            }
            Plan::Slices(plan) => {
                let bounds = blocks(worked.row_ptr(), SlicesPlan::BLOCK_ROWS, plan.blocks_multiple);
                Layout::Slices(self.install(|| Slices::new::<T>(worked, &bounds)))
            }
        };
        let (pattern, transposed) = (a.pattern.clone(), a.transposed.clone());
        let mut prepared = Prepared {
            plan,
            arch: self.arch(),
            pattern,
            transposed,
            layout,
            values: None,
            sliced: None,
            means: OnceLock::new(),
            measured: None,
        };
        if let Some(values) = a.values {
            self.install(|| prepared.arrange(values));
        }
        prepared
    }

    /// How the operation of `options` on what is worked on, `worked`, is run by this executor, as far as nothing is measured.
    #[cfg(feature = "capi")]
    #[inline(never)]
    pub(crate) fn plan<'a, T: Scalar>(&self, worked: impl Into<PatternRef<'a>>, options: &PlanOptions) -> Result<Plan> {
        self.plan_for::<T>(&Stats::of(worked), options)
    }

    /// How the operation of `options` is run on a pattern with these statistics: as was measured for one like it, else by the model.
    fn plan_for<T: Scalar>(&self, stats: &Stats, options: &PlanOptions) -> Result<Plan> {
        let (machine, target) = (self.machine(), self.target::<T>());
        let plan = Plan::choose(stats, machine, options, &target)?;
        let case = WisdomCase::new(options.op(), options.n(), stats, &target, self.arch().name());
        let Some(choices) = self.wisdom().find(&case).filter(|choices| options.allows(choices)) else {
            return Ok(plan);
        };
        let reason = format!("as measured for a matrix like this{}", self.wisdom().remark());
        Ok(Plan::with(stats, machine, options, &target, choices, reason))
    }

    /// How `pattern` with dense operands of `n` columns goes through the direct path, from what `a` has prepared or anew.
    pub(super) fn direct<'a, T: Copy>(
        &self,
        op: Op,
        a: SparseOperand<'a, T>,
        pattern: PatternRef<'_>,
        n: usize,
    ) -> Result<Direct<'a>> {
        let direct =
            match a {
                SparseOperand::Prepared(Prepared {
                    plan: Plan::Direct(plan), layout: Layout::Tasks(tasks), ..
                }) if plan.n() == n => Direct::new(plan, Cow::Borrowed(tasks)),
                _ => {
                    // Facts about the pattern would cost a pass over it, and the direct path needs none but its size.
                    let (stats, target) = (Stats::size_of(pattern), self.target::<T>());
                    let plan = DirectPlan::unprepared(op, n, &stats, self.machine(), &target)?;
                    Direct::new(&plan, Cow::Owned(plan.cut(pattern)))
                }
            };
        Ok(if let Some(Values::Narrow(..)) = a.values() { direct.in_pieces(pattern) } else { direct })
    }

    /// What plans need to know of this executor.
    pub fn target<T>(&self) -> Target {
        Target {
            threads: self.threads(),
            vector_bytes: self.arch().vector_bytes(),
            registers: self.arch().registers(),
            value_bytes: size_of::<T>(),
        }
    }
}

/// The direct path's part of a plan.
pub(super) struct Direct<'a> {
    /// Nonzeros ahead at which rows are prefetched.
    pub prefetch_distance: usize,
    /// Columns that a block of rows passes over together.
    pub width: usize,
    /// Whether the result bypasses the caches.
    pub stream: bool,
    /// FusedMM where D is not B.
    pub stages: Stages,
    /// Pieces of work.
    pub tasks: Cow<'a, [Task]>,
}

impl<'a> Direct<'a> {
    fn new(plan: &DirectPlan, tasks: Cow<'a, [Task]>) -> Self {
        Self {
            prefetch_distance: plan.prefetch_distance,
            width: plan.column_slab,
            stream: plan.stream,
            stages: plan.stages,
            tasks,
        }
    }

    /// The same in tasks of no more than about [`PIECE`] nonzeros of `pattern`.
    pub fn in_pieces(self, pattern: PatternRef<'_>) -> Self {
        let pieces = pattern.nnz().div_ceil(PIECE);
        if pieces <= self.tasks.len() {
            return self;
        }
        Self { tasks: Cow::Owned(by_nonzeros(pattern.row_ptr(), pieces, pieces)), ..self }
    }
}

impl<T> Prepared<T> {
    /// How it will be run.
    #[inline(never)]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same for runs between which other operands are gathered.
    pub(super) fn among_others(mut self) -> Self {
        if let Plan::Direct(plan) = &mut self.plan {
            plan.among_others();
        }
        self
    }

    /// What was measured to find the plan; none for an estimate.
    pub fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// The same, with what was measured to find its plan.
    pub(super) fn found_by(self, measured: Measured) -> Self {
        Self { plan: self.plan.because(measured.to_string()), measured: Some(measured), ..self }
    }

    /// The pattern that was prepared.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern
    }

    /// The panels, if the plan has them.
    pub fn panel(&self) -> Option<&Panel> {
        match &self.layout {
            Layout::Panel(panel) => Some(panel),
            Layout::Tasks(_) | Layout::Slices(_) => None,
        }
    }

    /// The slices, if the plan has them.
    pub fn slices(&self) -> Option<&Slices> {
        if let Layout::Slices(slices) = &self.layout { Some(slices) } else { None }
    }

    /// The slices and their values, if there are both.
    pub(super) fn sliced(&self) -> Option<(&Slices, &[T])> {
        Some((self.slices()?, self.sliced.as_deref()?))
    }

    /// The addresses of the arrays that runs read, to be looked at or moved page by page
    /// ([`machine::page_nodes_at`](crate::machine::page_nodes_at)).
    pub fn memory(&self) -> Vec<Range<usize>> {
        let values = self.values.as_ref().map(|values| match values {
            Own::Same(values) => addresses(values),
            Own::Narrow(bits, _) => addresses(bits),
        });
        let panel = self.panel().into_iter().flat_map(Panel::memory);
        let worked = self.worked();
        let pattern = [addresses(worked.row_ptr()), addresses(worked.col_idx())];
        // With panels, the pattern is read where there are no offsets: nowhere that counts.
        let pattern = pattern.into_iter().filter(|_| self.panel().is_none());
        let sliced = self.sliced.iter().map(|values| addresses(values));
        let slices = self.slices().into_iter().flat_map(Slices::memory);
        pattern.chain(panel).chain(values).chain(slices).chain(sliced).collect()
    }

    /// Takes new values, in CSR order of the pattern that was prepared; `cpu` puts them in the order of the plan. They may be bf16 or
    /// f16, whatever those before were.
    ///
    /// # Errors
    /// [`Error::Shape`] when their number is not the number of nonzeros.
    #[inline(never)]
    pub fn set_values<D: Stored<Scalar = T>>(&mut self, cpu: &Cpu, values: &[D]) -> Result<()>
    where
        T: Number,
    {
        if values.len() != self.pattern.nnz() {
            return Err(Error::shape(
                "set_values",
                format!("{} values for a pattern of {} nonzeros", values.len(), self.pattern.nnz()),
            ));
        }
        cpu.install(|| self.arrange(Values::of(values)));
        Ok(())
    }

    /// Takes `values`, in CSR order of the pattern that was prepared, in the order in which they are used.
    #[inline(never)]
    fn arrange(&mut self, values: Values<'_, T>)
    where
        T: Number,
    {
        self.means.take();
        // Taken: a panic on the way must leave no values, not too few.
        let own = self.values.take();
        self.values = Some(match (values, own) {
            (Values::Narrow(bits, of), own) if matches!(self.layout, Layout::Tasks(_)) => {
                let own = if let Some(Own::Narrow(own, _)) = own { Some(own) } else { None };
                Own::Narrow(self.arranged(bits, own), of)
            }
            (values, own) => {
                let own = if let Some(Own::Same(own)) = own { Some(own) } else { None };
                Own::Same(self.arranged(&values.widened(self.arch), own))
            }
        });
        if let (Layout::Slices(slices), Some(Own::Same(values))) = (&self.layout, &self.values) {
            let mut sliced = self.sliced.take().unwrap_or_else(|| reserved_aligned(slices.len()));
            // SAFETY: `arrange` writes every element.
            unsafe { fill_with(&mut sliced, slices.len(), |out| slices.arrange(self.worked(), values, out)) };
            self.sliced = Some(sliced);
        }
    }

    /// `values`, in CSR order of the pattern that was prepared, in the order in which they are used, in `own` if there is one.
    fn arranged<U: Copy + Send + Sync>(&self, values: &[U], own: Option<Aligned<U>>) -> Aligned<U> {
        let of_transpose: Vec<U>;
        let values = match &self.transposed {
            None => values,
            Some((_, order)) => {
                of_transpose = gather(values, order);
                &of_transpose
            }
        };
        let mut own = own.unwrap_or_else(|| reserved_aligned(values.len()));
        match &self.layout {
            // SDDMM multiplies by them where its dots go: in CSR order.
            // SAFETY: `arrange` writes every element.
            Layout::Panel(panel) if self.plan.op() != Op::Sddmm => unsafe {
                fill_with(&mut own, values.len(), |out| panel.arrange(values, out));
            },
            _ => {
                own.clear();
                own.extend_from_slice(values);
            }
        }
        own
    }

    /// The panels for a run of `op` by `cpu`, if the plan has them.
    ///
    /// # Errors
    /// [`Error::Shape`] when this was prepared for another operation; [`Error::Argument`] when its panels are for another
    /// instruction set: their order depends on the width of its registers.
    pub(super) fn panels_for(&self, op: Op, cpu: &Cpu) -> Result<Option<(&PanelPlan, &Panel)>> {
        op.check_prepared(self.plan.op())?;
        let (Plan::Panel(plan), Layout::Panel(panel)) = (&self.plan, &self.layout) else { return Ok(None) };
        let (own, other) = (self.arch.name(), cpu.arch().name());
        if own != other {
            let detail = format!("was prepared for the instruction set {own}; this executor's is {other}");
            return Err(Error::argument("a", detail));
        }
        Ok(Some((plan, panel)))
    }

    /// The pattern that is worked on: of A or of A^T.
    pub(super) fn worked(&self) -> &Arc<Pattern> {
        self.transposed.as_ref().map_or(&self.pattern, |(pattern, _)| pattern)
    }

    /// The position in CSR order of each nonzero of A^T; of A, none.
    pub(super) fn order(&self) -> Option<&[usize]> {
        self.transposed.as_ref().map(|(_, order)| &order[..])
    }

    /// The values of an operand in panels in CSR order of the pattern, if there are any.
    pub(super) fn values_in_order(&self) -> Option<Vec<T>>
    where
        T: Copy + Default + Send + Sync,
    {
        let (Layout::Panel(panel), Some(Own::Same(values))) = (&self.layout, &self.values) else { return None };
        let positions: Vec<usize> = (0..values.len()).collect();
        let mut from = Aligned::with_capacity(crate::dense::ALIGN, values.len());
        // SAFETY: `arrange` writes every element.
        unsafe { fill_with(&mut from, values.len(), |out| panel.arrange(&positions, out)) };
        let mut in_order = vec![T::default(); values.len()];
        from.iter().zip(values.iter()).for_each(|(&p, &value)| in_order[p] = value);
        Some(in_order)
    }

    /// What `means` makes of the values in CSR order, in the order in which they are used; made once. There are values.
    pub(super) fn kept_means(&self, means: impl FnOnce(&[T]) -> Vec<T>) -> &[T]
    where
        T: Number,
    {
        if let Some(kept) = self.means.get() {
            return kept;
        }
        // Not inside `get_or_init`: a thread of the pool that waits for `means` may take up another call's mean.
        let mut made = reserved_aligned(self.pattern.nnz());
        match (&self.layout, self.values_in_order()) {
            (Layout::Panel(panel), Some(values)) => {
                let values = means(&values);
                // SAFETY: `arrange` writes every element.
                unsafe { fill_with(&mut made, values.len(), |out| panel.arrange(&values, out)) }
            }
            _ => made.extend_from_slice(&means(&self.values().map(|v| v.widened(self.arch)).unwrap_or_default())),
        }
        self.means.get_or_init(|| made)
    }

    /// The values in the order in which they are used, if there are any.
    pub(super) fn values(&self) -> Option<Values<'_, T>>
    where
        T: Copy,
    {
        self.values.as_ref().map(|values| match values {
            Own::Same(values) => Values::Same(values),
            Own::Narrow(bits, of) => Values::Narrow(bits, *of),
        })
    }
}
