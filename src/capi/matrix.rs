//! Sparse matrices, plans, and the operations SpMM, SDDMM and FusedMM.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{mat, mat_mut, put, slice, slice_mut};
use crate::formats::{Csr, Pattern};
use crate::ops::{Prepared, Sparse};
use crate::plan;
use sparsimd_kernels::{Scalar, edge};

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

/// The function f of FusedMM: the weight of a nonzero from the dot product s and the value a.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Edge {
    /// s.
    Identity = 0,
    /// a s.
    Scale = 1,
    /// 1 / (1 + exp(-s)).
    Sigmoid = 2,
    /// exp(scale s) divided by its sum over the row.
    Softmax = 3,
}

pub(super) enum Matrix<T: Scalar> {
    Values(Csr<T>),
    Pattern(Arc<Pattern>),
}

impl<T: Scalar> Matrix<T> {
    fn sparse(&self) -> Sparse<'_, T> {
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

/// A plan, and what [`sparsimd_plan_text`] lends.
pub(super) struct Planned<T> {
    prepared: Prepared<T>,
    text: CString,
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
            0 => plan::Path::Auto,
            1 => plan::Path::Direct,
            2 => plan::Path::Panel,
            _ => return Err(Failure::argument("path", &format!("{path} is not a sparsimd_path"))),
        };
        place.put(match csr {
            Either::F32(matrix) => Either::F32(planned(cpu.prepare(op, matrix.sparse(), n, path, reuse)?)),
            Either::F64(matrix) => Either::F64(planned(cpu.prepare(op, matrix.sparse(), n, path, reuse)?)),
        });
        Ok(())
    })
}

fn planned<T: Scalar>(prepared: Prepared<T>) -> Planned<T> {
    let text = CString::new(prepared.plan().to_string()).unwrap_or_default();
    Planned { prepared, text }
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
    Ok(plan.prepared.set_values(values)?)
}

/// A dense matrix of an argument list: its first element and its row stride.
type Dense<T> = (T, usize);

#[expect(clippy::too_many_arguments, reason = "the operation's own")]
unsafe fn spmm<T: Element>(
    transposed: bool,
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: T,
    b: Dense<*const T>,
    beta: T,
    c: Dense<*mut T>,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, a) = unsafe { (handle::get(cpu)?, &handle::get(plan)?.of::<T>()?.prepared) };
    let (rows, cols) = (a.pattern().rows(), a.pattern().cols());
    let (into, from) = if transposed { (cols, rows) } else { (rows, cols) };
    // SAFETY: by the rules of the interface.
    let (b, c) = unsafe {
        let b = mat("b", b.0, from, n, b.1)?;
        (b, mat_mut("c", c.0, into, n, c.1, &[b.data()])?)
    };
    if transposed {
        cpu.spmm_t(alpha, a, b, beta, c)?;
    } else {
        cpu.spmm(alpha, a, b, beta, c)?;
    }
    Ok(())
}

/// C = alpha A B + beta C: A sparse M x K, B dense K x n, C dense M x n, rows `ldb` and `ldc` elements apart. With beta = 0,
/// C is not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: f32,
    b: *const f32,
    ldb: usize,
    beta: f32,
    c: *mut f32,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { spmm(false, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
}

/// As sparsimd_spmm_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: f64,
    b: *const f64,
    ldb: usize,
    beta: f64,
    c: *mut f64,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { spmm(false, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
}

/// C = alpha A^T B + beta C: A sparse M x K, B dense M x n, C dense K x n.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_t_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: f32,
    b: *const f32,
    ldb: usize,
    beta: f32,
    c: *mut f32,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { spmm(true, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
}

/// As sparsimd_spmm_t_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_t_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: f64,
    b: *const f64,
    ldb: usize,
    beta: f64,
    c: *mut f64,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { spmm(true, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
}

unsafe fn sddmm<T: Element>(
    scaled: bool,
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: Dense<*const T>,
    b: Dense<*const T>,
    out: *mut T,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, a) = unsafe { (handle::get(cpu)?, &handle::get(plan)?.of::<T>()?.prepared) };
    let pattern = a.pattern();
    // SAFETY: by the rules of the interface.
    let (c, b, out) = unsafe {
        let c = mat("c", c.0, pattern.rows(), n, c.1)?;
        let b = mat("b", b.0, pattern.cols(), n, b.1)?;
        (c, b, slice_mut("out", out, pattern.nnz(), &[c.data(), b.data()])?)
    };
    if scaled {
        cpu.sddmm_scaled(a, c, b, out)?;
    } else {
        cpu.sddmm(a, c, b, out)?;
    }
    Ok(())
}

/// out_p = (C B^T)_ij for each nonzero p = (i, j) of A: C dense M x n, B dense K x n, `out` one value for each nonzero, in
/// the order of the matrix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: *const f32,
    ldc: usize,
    b: *const f32,
    ldb: usize,
    out: *mut f32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { sddmm(false, cpu, plan, n, (c, ldc), (b, ldb), out) })
}

/// As sparsimd_sddmm_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: *const f64,
    ldc: usize,
    b: *const f64,
    ldb: usize,
    out: *mut f64,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { sddmm(false, cpu, plan, n, (c, ldc), (b, ldb), out) })
}

/// out_p = a_ij (C B^T)_ij for each nonzero p = (i, j) of A, otherwise as sparsimd_sddmm_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_scaled_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: *const f32,
    ldc: usize,
    b: *const f32,
    ldb: usize,
    out: *mut f32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { sddmm(true, cpu, plan, n, (c, ldc), (b, ldb), out) })
}

/// As sparsimd_sddmm_scaled_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_scaled_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: *const f64,
    ldc: usize,
    b: *const f64,
    ldb: usize,
    out: *mut f64,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { sddmm(true, cpu, plan, n, (c, ldc), (b, ldb), out) })
}

#[expect(clippy::too_many_arguments, reason = "the operation's own")]
unsafe fn fusedmm<T: Element>(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    (weight, scale): (u32, T),
    n: usize,
    c: Dense<*const T>,
    b: Dense<*const T>,
    p: usize,
    d: Dense<*const T>,
    e: Dense<*mut T>,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, a) = unsafe { (handle::get(cpu)?, &handle::get(plan)?.of::<T>()?.prepared) };
    let (rows, cols) = (a.pattern().rows(), a.pattern().cols());
    // SAFETY: by the rules of the interface.
    let (c, b, d, e) = unsafe {
        let c = mat("c", c.0, rows, n, c.1)?;
        let b = mat("b", b.0, cols, n, b.1)?;
        let d = mat("d", d.0, cols, p, d.1)?;
        (c, b, d, mat_mut("e", e.0, rows, p, e.1, &[c.data(), b.data(), d.data()])?)
    };
    match weight {
        0 => cpu.fusedmm(a, edge::Identity, c, b, d, e)?,
        1 => cpu.fusedmm(a, edge::Scale, c, b, d, e)?,
        2 => cpu.fusedmm(a, edge::Sigmoid, c, b, d, e)?,
        3 => cpu.fusedmm(a, edge::Softmax { scale }, c, b, d, e)?,
        _ => return Err(Failure::argument("edge", &format!("{weight} is not a sparsimd_edge"))),
    }
    Ok(())
}

/// E_i = sum over the nonzeros (i, j) of A of f((C B^T)_ij, a_ij) D_j: C dense M x n, B dense K x n, D dense K x p, E dense
/// M x p. `edge` is a sparsimd_edge; `scale` is the softmax's and otherwise not looked at. Rows without nonzeros become zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    edge: u32,
    scale: f32,
    n: usize,
    c: *const f32,
    ldc: usize,
    b: *const f32,
    ldb: usize,
    p: usize,
    d: *const f32,
    ldd: usize,
    e: *mut f32,
    lde: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { fusedmm(cpu, plan, (edge, scale), n, (c, ldc), (b, ldb), p, (d, ldd), (e, lde)) })
}

/// As sparsimd_fusedmm_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    edge: u32,
    scale: f64,
    n: usize,
    c: *const f64,
    ldc: usize,
    b: *const f64,
    ldb: usize,
    p: usize,
    d: *const f64,
    ldd: usize,
    e: *mut f64,
    lde: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { fusedmm(cpu, plan, (edge, scale), n, (c, ldc), (b, ldb), p, (d, ldd), (e, lde)) })
}
