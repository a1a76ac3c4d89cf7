//! What a plan of a matrix operation is asked for: the operation, its size, and the executor.

use std::fmt;

use super::choices::Choices;
use super::partition::work;
use crate::error::{Error, Result};

/// Runs after which a panel has paid for its preparation. Zen 4, 70 % zeros, N = 128: SpMM takes 5 runs to prepare (8
/// where the system has to find the memory first) and is 1.5 times as fast as directly, FusedMM 3 and 1.9, SDDMM 2 and
/// 1.35.
pub(super) const PANEL_PAYS_AFTER: usize = 12;

/// Runs after which slices have paid for their preparation: 15 to 150 of matrices of 7 000 to 650 000 nonzeros (one thread of a Zen 4, f32;
/// amazon_book 15, cryg2500 30, pubmed 54, ca-CondMat 108, bcsstk16 150).
pub(super) const SLICES_PAY_AFTER: usize = 100;

/// An operation on a sparse matrix A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// C = alpha A B + beta C.
    Spmm,
    /// C = alpha A^T B + beta C.
    SpmmTransposed,
    /// A_ij = (C B^T)_ij on the pattern.
    Sddmm,
    /// E = f(C B^T on the pattern) D.
    FusedMm,
}

impl Op {
    /// Its name, as in errors and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spmm => "spmm",
            Self::SpmmTransposed => "spmm_t",
            Self::Sddmm => "sddmm",
            Self::FusedMm => "fusedmm",
        }
    }

    /// Its multiply-adds on `nnz` nonzeros with `n` columns.
    pub(super) fn work(self, nnz: usize, n: usize) -> usize {
        work(nnz, if self == Self::FusedMm { n.saturating_mul(2) } else { n })
    }

    /// Checks that an operand of this operation was prepared for it.
    pub(crate) fn check_prepared(self, prepared: Self) -> Result<()> {
        if self == prepared {
            return Ok(());
        }
        Err(Error::shape(self.name(), format!("the sparse operand was prepared for {prepared:?}")))
    }
}

/// Where the kernels read the nonzeros from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Whichever the model says is faster.
    #[default]
    Auto,
    /// Straight from CSR, no preparation.
    Direct,
    /// From panels that are prepared once.
    Panel,
    /// From slices of rows that are prepared once: SpMM with one column; straight from CSR where that is not it.
    Slices,
}

/// How a plan is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// By what is known of the pattern, the machine, and what was measured before ([`CpuBuilder::wisdom`](crate::CpuBuilder::wisdom)):
    /// nothing is run.
    #[default]
    Estimate,
    /// By running some plans on the operand itself, for at most a tenth of the time that the announced runs will take. What is
    /// found is kept for later estimates.
    Measure,
}

/// What [`Effort::Measure`] came to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// Plans that were run.
    pub plans: usize,
    /// How long that took, the layouts of the plans included.
    pub seconds: f64,
    /// How many times as fast the plan that was chosen is as the estimate's; 1 where that was chosen.
    pub gain: f64,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plans, seconds, gain } = self;
        write!(
            f,
            "the fastest of {plans} that were measured in {seconds:.2} s, {gain:.2} times as fast as the estimate's"
        )
    }
}

/// What a matrix operand is prepared for: the operation, the columns of the dense operands, and how often it will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    pub(crate) op: Op,
    pub(crate) n: usize,
    pub(crate) strategy: Strategy,
    pub(crate) reuse: usize,
    pub(crate) effort: Effort,
}

impl PlanOptions {
    /// For 1000 runs of `op` with dense operands of `n` columns, by the strategy that is expected to be faster.
    pub fn new(op: Op, n: usize) -> Self {
        Self { op, n, strategy: Strategy::Auto, reuse: 1000, effort: Effort::Estimate }
    }

    /// The same with this strategy.
    pub fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// The same for so many runs. Panels cost the time of some runs to prepare.
    pub fn reuse(self, runs: usize) -> Self {
        Self { reuse: runs, ..self }
    }

    /// The same with this effort to find the plan.
    pub fn effort(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }

    /// Whether `choices` that were found for many runs of any strategy are for these ones, too.
    pub(crate) fn allows(&self, choices: &Choices) -> bool {
        match choices {
            Choices::Direct(_) => matches!(self.strategy, Strategy::Auto | Strategy::Direct),
            Choices::Slices => {
                self.strategy == Strategy::Slices || self.strategy == Strategy::Auto && self.reuse >= SLICES_PAY_AFTER
            }
            Choices::Panel(_) => {
                self.strategy == Strategy::Panel || self.strategy == Strategy::Auto && self.reuse >= PANEL_PAYS_AFTER
            }
        }
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Columns of the dense operands.
    pub fn n(&self) -> usize {
        self.n
    }
}

/// What will run a plan: threads, registers and the size of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Threads.
    pub threads: usize,
    /// Bytes of a vector register.
    pub vector_bytes: usize,
    /// Vector registers.
    pub registers: usize,
    /// Bytes of a value: 4 or 8.
    pub value_bytes: usize,
}

impl Target {
    /// Elements of a vector register.
    pub(super) fn lanes(&self) -> usize {
        (self.vector_bytes / self.value_bytes.max(1)).max(1)
    }
}

/// The error of dense operands without columns.
pub(crate) fn check_columns(n: usize) -> Result<()> {
    if n == 0 { Err(Error::argument("n", "0 columns; dense operands have at least 1")) } else { Ok(()) }
}
