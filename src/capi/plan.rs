//! Plans of the operations on sparse matrices.

use std::ffi::{CString, c_char};
use std::ops::Range;

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::matrix::{Borrowed, CsrHandle, Matrix};
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{put, slice};
use crate::cpu::Cpu;
use crate::error::Error;
use crate::formats::CsrRef;
use crate::ops::{Prepared, SparseOperand};
use crate::plan::{self, Plan, PlanOptions};
use sparsimd_kernels::{Scalar, Stored};

/// A matrix prepared for many runs of one operation.
#[derive(Debug)]
pub struct PlanHandle(());

/// What a plan is for.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// sparsimd_spmm_f32().
    Spmm = 0,
    /// sparsimd_spmm_t_f32().
    SpmmT = 1,
    /// sparsimd_sddmm_f32() and sparsimd_sddmm_scaled_f32().
    Sddmm = 2,
    /// sparsimd_fusedmm_f32().
    Fusedmm = 3,
}

/// How a plan lays out the nonzeros.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Path {
    /// Whichever is expected to be faster over the runs that were announced.
    Auto = 0,
    /// As they are.
    Direct = 1,
    /// In panels that fit the cache; takes the time of some runs to make.
    Panel = 2,
    /// The fastest of some plans that are run on the matrix itself, which takes at most a tenth of the time that the announced
    /// runs will take.
    Measure = 3,
    /// In slices of rows, which take the time of some runs to make: SpMM with one column; as they are where that is not it.
    Slices = 4,
}

/// A plan, what [`sparsimd_plan_text`] lends, and the executor that prepared it: it prepares new values as well.
pub(super) struct Planned<T: 'static> {
    source: Source<T>,
    text: CString,
    cpu: Cpu,
}

/// What a plan computes with.
enum Source<T: 'static> {
    /// Memory of its own.
    Prepared(Prepared<T>),
    /// The caller's arrays, read where they are by the direct path of one operation; values of its own once they are set.
    Borrowed { matrix: Borrowed<T>, plan: Plan, own: Option<Vec<T>> },
}

impl<T: Scalar> Planned<T> {
    /// The matrix `a`, prepared or borrowed.
    fn new(cpu: &Cpu, a: &Matrix<T>, options: &PlanOptions) -> Outcome<Self> {
        let source = match a {
            // The transpose is made in any case.
            Matrix::Borrowed(matrix)
                if options.op() != plan::Op::SpmmTransposed && options.effort == plan::Effort::Estimate =>
            {
                match cpu.plan::<T>(matrix.operand.pattern(), options)? {
                    plan @ Plan::Direct(_) => Source::Borrowed { matrix: matrix.clone(), plan, own: None },
                    Plan::Panel(_) | Plan::Slices(_) => Source::Prepared(cpu.prepare(a.sparse(), options)?),
                }
            }
            _ => Source::Prepared(cpu.prepare(a.sparse(), options)?),
        };
        let plan = match &source {
            Source::Prepared(prepared) => prepared.plan(),
            Source::Borrowed { plan, .. } => plan,
        };
        let text = CString::new(plan.to_string()).unwrap_or_default();
        Ok(Self { source, text, cpu: cpu.clone() })
    }

    /// The sparse operand of `op`.
    pub fn operand(&self, op: plan::Op) -> Outcome<SparseOperand<'_, T>> {
        match &self.source {
            Source::Prepared(prepared) => Ok(prepared.into()),
            Source::Borrowed { matrix, plan, own } => {
                op.check_prepared(plan.op())?;
                match own {
                    None => Ok(matrix.operand),
                    Some(values) => Ok(CsrRef::on(matrix.operand.pattern(), values)?.into()),
                }
            }
        }
    }

    /// Where the inputs of an operation are: `dense` ones, and the arrays that the plan borrows.
    pub fn inputs(&self, dense: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
        let arrays = match &self.source {
            Source::Prepared(_) => &[][..],
            Source::Borrowed { matrix, .. } => &matrix.arrays,
        };
        dense.into_iter().chain(arrays.iter().cloned()).collect()
    }

    fn set_values<V: Stored<Scalar = T>>(&mut self, values: &[V]) -> Outcome {
        match &mut self.source {
            Source::Prepared(prepared) => prepared.set_values(&self.cpu, values)?,
            Source::Borrowed { matrix, own, .. } => {
                let nnz = matrix.operand.pattern().nnz();
                if values.len() != nnz {
                    let detail = format!("{} values for a pattern of {nnz} nonzeros", values.len());
                    return Err(Error::shape("set_values", detail).into());
                }
                *own = Some(values.iter().map(|value| value.widen()).collect());
            }
        }
        Ok(())
    }
}

/// What a sparsimd_path stands for.
pub(super) fn strategy_of(path: u32) -> Outcome<(plan::Strategy, plan::Effort)> {
    match path {
        0 => Ok((plan::Strategy::Auto, plan::Effort::Estimate)),
        1 => Ok((plan::Strategy::Direct, plan::Effort::Estimate)),
        2 => Ok((plan::Strategy::Panel, plan::Effort::Estimate)),
        3 => Ok((plan::Strategy::Auto, plan::Effort::Measure)),
        4 => Ok((plan::Strategy::Slices, plan::Effort::Estimate)),
        _ => Err(Failure::argument("path", &format!("{path} is not a sparsimd_path"))),
    }
}

pub(super) struct Plans;
impl Family for Plans {
    const NAME: &'static str = "plan";
    type Of<T: Scalar> = Planned<T>;
}

impl Handle for PlanHandle {
    type Value = Either<Plans>;
    const NAME: &'static str = "plan";
    const TAG: u64 = u64::from_le_bytes(*b"simdplan");
}

/// Prepares the matrix for about `reuse` runs of an operation (a sparsimd_op) on dense operands of `n` columns, by a
/// sparsimd_path. The plan keeps what it needs of the matrix; of a borrowed one (sparsimd_csr_borrow_f32()) it may be the arrays
/// themselves. Runs with another number of columns are right, and may be slower.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_create(
    cpu: *const CpuHandle,
    op: u32,
    csr: *const CsrHandle,
    n: usize,
    path: u32,
    reuse: usize,
    plan: *mut *mut PlanHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, csr) = unsafe { (Place::new(plan)?, handle::get(cpu)?, handle::get(csr)?) };
        let op = match op {
            0 => plan::Op::Spmm,
            1 => plan::Op::SpmmTransposed,
            2 => plan::Op::Sddmm,
            3 => plan::Op::FusedMm,
            _ => return Err(Failure::argument("op", &format!("{op} is not a sparsimd_op"))),
        };
        let (strategy, effort) = strategy_of(path)?;
        let options = PlanOptions::new(op, n).strategy(strategy).reuse(reuse).effort(effort);
        place.put(match csr {
            Either::F32(matrix) => Either::F32(Planned::new(cpu, matrix, &options)?),
            Either::F64(matrix) => Either::F64(Planned::new(cpu, matrix, &options)?),
        });
        Ok(())
    })
}

/// Frees the plan. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_destroy(plan: *mut PlanHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(plan) })
}

/// The plan in words, valid as long as the plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_text(plan: *const PlanHandle, text: *mut *const c_char) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let words = match unsafe { handle::get(plan)? } {
            Either::F32(planned) => &planned.text,
            Either::F64(planned) => &planned.text,
        };
        // SAFETY: by the rules of the interface.
        unsafe { put("text", text, words.as_ptr()) }
    })
}

/// Gives the plan `nnz` new values on its pattern, in the order of the matrix it was made from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_set_values_f32(plan: *mut PlanHandle, values: *const f32, nnz: usize) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { set_values(plan, values, nnz) })
}

/// As sparsimd_plan_set_values_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_set_values_f64(plan: *mut PlanHandle, values: *const f64, nnz: usize) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { set_values(plan, values, nnz) })
}

pub(super) unsafe fn set_values<V: Stored<Scalar: Element>>(
    plan: *mut PlanHandle,
    values: *const V,
    nnz: usize,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (plan, values) = unsafe { (handle::get_mut(plan)?.of_mut::<V::Scalar>()?, slice("values", values, nnz)?) };
    plan.set_values(values)
}
