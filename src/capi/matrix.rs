//! Sparse matrices, and plans of the operations on them.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{put, slice};
use crate::cpu::Cpu;
use crate::formats::{Csr, Pattern};
use crate::ops::{Prepared, SparseOperand};
use crate::plan;
use sparsimd_kernels::Scalar;

/// A sparse matrix by rows (CSR), or only its pattern.
#[derive(Debug)]
pub struct CsrHandle(());

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
}

pub(super) enum Matrix<T: Scalar> {
    Values(Csr<T>),
    Pattern(Arc<Pattern>),
}

impl<T: Scalar> Matrix<T> {
    fn sparse(&self) -> SparseOperand<'_, T> {
        match self {
            Self::Values(csr) => csr.into(),
            Self::Pattern(pattern) => pattern.into(),
        }
    }
}

pub(super) struct Matrices;
impl Family for Matrices {
    const NAME: &'static str = "csr";
    type Of<T: Scalar> = Matrix<T>;
}

/// A plan, what [`sparsimd_plan_text`] lends, and the executor that prepared it: it prepares new values as well.
pub(super) struct Planned<T> {
    pub prepared: Prepared<T>,
    text: CString,
    cpu: Cpu,
}

pub(super) struct Plans;
impl Family for Plans {
    const NAME: &'static str = "plan";
    type Of<T: Scalar> = Planned<T>;
}

impl Handle for CsrHandle {
    type Value = Either<Matrices>;
    const NAME: &'static str = "csr";
    const TAG: u64 = u64::from_le_bytes(*b"simd-csr");
}

impl Handle for PlanHandle {
    type Value = Either<Plans>;
    const NAME: &'static str = "plan";
    const TAG: u64 = u64::from_le_bytes(*b"simdplan");
}

unsafe fn csr_create<T: Element>(
    rows: usize,
    cols: usize,
    row_ptr: *const usize,
    col_idx: *const u32,
    values: *const T,
    csr: *mut *mut CsrHandle,
) -> Outcome {
    // SAFETY: by the rules of the interface, as every block here.
    let place = unsafe { Place::new(csr)? };
    let pointers = rows.checked_add(1).ok_or_else(|| Failure::argument("rows", "too many"))?;
    // SAFETY: as above.
    let row_ptr = unsafe { slice("row_ptr", row_ptr, pointers)? };
    let nnz = row_ptr[rows];
    // SAFETY: as above.
    let col_idx = unsafe { slice("col_idx", col_idx, nnz)? };
    let pattern = Pattern::new(rows, cols, row_ptr.to_vec(), col_idx.to_vec())?;
    let matrix = if values.is_null() {
        Matrix::Pattern(pattern)
    } else {
        // SAFETY: as above.
        Matrix::Values(Csr::new(pattern, unsafe { slice("values", values, nnz)? }.to_vec())?)
    };
    place.put(T::either::<Matrices>(matrix));
    Ok(())
}

/// Copies a matrix of `rows` x `cols` in CSR: `rows + 1` row pointers, and as many column indices and values as the last row
/// pointer says. `values` may be null for a pattern alone, which is enough for SDDMM and for FusedMM without scaling.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_create_f32(
    rows: usize,
    cols: usize,
    row_ptr: *const usize,
    col_idx: *const u32,
    values: *const f32,
    csr: *mut *mut CsrHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { csr_create(rows, cols, row_ptr, col_idx, values, csr) })
}

/// As sparsimd_csr_create_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_create_f64(
    rows: usize,
    cols: usize,
    row_ptr: *const usize,
    col_idx: *const u32,
    values: *const f64,
    csr: *mut *mut CsrHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { csr_create(rows, cols, row_ptr, col_idx, values, csr) })
}

/// Frees the matrix; plans made from it remain. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_destroy(csr: *mut CsrHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(csr) })
}

/// The shape of the matrix and its number of nonzeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_shape(
    csr: *const CsrHandle,
    rows: *mut usize,
    cols: *mut usize,
    nnz: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let pattern = match unsafe { handle::get(csr)? } {
            Either::F32(matrix) => matrix.sparse().pattern(),
            Either::F64(matrix) => matrix.sparse().pattern(),
        };
        // SAFETY: by the rules of the interface.
        unsafe {
            put("rows", rows, pattern.rows())?;
            put("cols", cols, pattern.cols())?;
            put("nnz", nnz, pattern.nnz())
        }
    })
}

/// Prepares the matrix for about `reuse` runs of an operation (a sparsimd_op) on dense operands of `n` columns, by a
/// sparsimd_path. The plan keeps what it needs of the matrix. Runs with another number of columns are right, and may be slower.
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
        let path = match path {
            0 => plan::Strategy::Auto,
            1 => plan::Strategy::Direct,
            2 => plan::Strategy::Panel,
            _ => return Err(Failure::argument("path", &format!("{path} is not a sparsimd_path"))),
        };
        place.put(match csr {
            Either::F32(matrix) => Either::F32(planned(
                cpu,
                cpu.prepare(matrix.sparse(), &plan::PlanOptions::new(op, n).strategy(path).reuse(reuse))?,
            )),
            Either::F64(matrix) => Either::F64(planned(
                cpu,
                cpu.prepare(matrix.sparse(), &plan::PlanOptions::new(op, n).strategy(path).reuse(reuse))?,
            )),
        });
        Ok(())
    })
}

fn planned<T: Scalar>(cpu: &Cpu, prepared: Prepared<T>) -> Planned<T> {
    let text = CString::new(prepared.plan().to_string()).unwrap_or_default();
    Planned { prepared, text, cpu: cpu.clone() }
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

unsafe fn set_values<T: Element>(plan: *mut PlanHandle, values: *const T, nnz: usize) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (plan, values) = unsafe { (handle::get_mut(plan)?.of_mut::<T>()?, slice("values", values, nnz)?) };
    Ok(plan.prepared.set_values(&plan.cpu, values)?)
}
