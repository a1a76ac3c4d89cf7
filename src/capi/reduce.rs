//! SpMM with another reduction than the sum, and over semirings.

use std::ptr;

use super::CpuHandle;
use super::handle;
use super::matrix::CsrHandle;
use super::plan::PlanHandle;
use super::status::{Failure, Outcome, Status, guard};
use super::value::Element;
use super::view::{mat, mat_mut, slice, slice_mut};
use crate::dense::addresses;
use crate::formats::CsrRef;
use crate::ops;
use crate::plan::Op;
use sparsimd_kernels::{Number, semiring};

/// What becomes of the products of a row's nonzeros with rows of B.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Reduction {
    /// Their sum.
    Sum = 0,
    /// Their sum divided by their number.
    Mean = 1,
    /// The largest, by column; NaN where one is.
    Max = 2,
    /// The smallest, by column; NaN where one is.
    Min = 3,
}

/// An addition and a multiplication, in this order.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Semiring {
    /// a + b, a b.
    PlusTimes = 0,
    /// 0 or 1: whether any of both is not 0, whether both are not.
    OrAnd = 1,
    /// The smaller, a + b.
    MinPlus = 2,
    /// The larger, a + b.
    MaxPlus = 3,
    /// The larger, a b.
    MaxTimes = 4,
    /// The smaller, a b.
    MinTimes = 5,
    /// a + b, the smaller.
    PlusMin = 6,
    /// The larger, the smaller.
    MaxMin = 7,
    /// The smaller, the larger.
    MinMax = 8,
    /// a + b, b: values of A are not needed.
    PlusSecond = 9,
    /// The larger, b: values of A are not needed.
    MaxSecond = 10,
    /// The smaller, b: values of A are not needed.
    MinSecond = 11,
}

/// Those of the interface by their numbers.
const SEMIRINGS: [semiring::BuiltIn; 12] = [
    semiring::PLUS_TIMES,
    semiring::OR_AND,
    semiring::MIN_PLUS,
    semiring::MAX_PLUS,
    semiring::MAX_TIMES,
    semiring::MIN_TIMES,
    semiring::PLUS_MIN,
    semiring::MAX_MIN,
    semiring::MIN_MAX,
    semiring::PLUS_SECOND,
    semiring::MAX_SECOND,
    semiring::MIN_SECOND,
];

/// A number of the interface's enums.
#[derive(Clone, Copy)]
enum Rule {
    Reduction(u32),
    Semiring(u32),
}

/// What a sparsimd_semiring stands for.
fn semiring_of(number: u32) -> Outcome<semiring::BuiltIn> {
    let unknown = || Failure::argument("semiring", &format!("{number} is not a sparsimd_semiring"));
    SEMIRINGS.get(number as usize).copied().ok_or_else(unknown)
}

/// `number` is no sparsimd_reduction.
fn no_reduction(number: u32) -> Failure {
    Failure::argument("reduction", &format!("{number} is not a sparsimd_reduction"))
}

#[expect(clippy::too_many_arguments, reason = "the operation's own")]
unsafe fn reduce<T: Element>(
    rule: Rule,
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    b: *const T,
    ldb: usize,
    c: *mut T,
    ldc: usize,
    positions: *mut u32,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, plan) = unsafe { (handle::get(cpu)?, handle::get(plan)?.of::<T>()?) };
    let a = plan.operand(Op::Spmm)?;
    let (rows, cols) = (a.pattern().rows(), a.pattern().cols());
    // SAFETY: by the rules of the interface.
    let b = unsafe { mat("b", b, cols, n, ldb)? };
    let inputs = plan.inputs([addresses(b.data())]);
    // SAFETY: by the rules of the interface.
    let c = unsafe { mat_mut("c", c, rows, n, ldc, &inputs)? };
    let reduction = match rule {
        Rule::Reduction(0) => ops::Reduction::Sum,
        Rule::Reduction(1) => ops::Reduction::Mean,
        Rule::Reduction(2) => ops::Reduction::Max,
        Rule::Reduction(3) => ops::Reduction::Min,
        Rule::Reduction(other) => return Err(no_reduction(other)),
        Rule::Semiring(number) => {
            cpu.spmm_semiring(semiring_of(number)?, a, b, c)?;
            return Ok(());
        }
    };
    if positions.is_null() {
        cpu.spmm_reduce(reduction, a, b, c)?;
        return Ok(());
    }
    let outputs = plan.inputs([addresses(b.data()), addresses(c.as_ref().data())]);
    let len = rows.checked_mul(n).ok_or_else(|| Failure::argument("n", "too many"))?;
    // SAFETY: by the rules of the interface.
    let positions = unsafe { slice_mut("positions", positions, len, &outputs)? };
    cpu.spmm_reduce_positions(reduction, a, b, c, positions)?;
    Ok(())
}

/// Of integers, which have no plans: straight from CSR.
#[expect(clippy::too_many_arguments, reason = "the operation's own")]
unsafe fn reduce_integers<T: Number>(
    rule: Rule,
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    values: *const T,
    n: usize,
    b: *const T,
    ldb: usize,
    c: *mut T,
    ldc: usize,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, csr) = unsafe { (handle::get(cpu)?, handle::get(csr)?) };
    let (semiring, empty) = match rule {
        Rule::Reduction(0) => (semiring::PLUS_TIMES, Some(T::ZERO)),
        Rule::Reduction(1) => {
            return Err(Failure(Status::Unavailable, "reduction: there is no mean of integers".into()));
        }
        Rule::Reduction(2) => (semiring::MAX_TIMES, Some(T::ZERO)),
        Rule::Reduction(3) => (semiring::MIN_TIMES, Some(T::ZERO)),
        Rule::Reduction(other) => return Err(no_reduction(other)),
        Rule::Semiring(number) => (semiring_of(number)?, None),
    };
    let (pattern, mut inputs) = csr.pattern();
    let a = if values.is_null() && pattern.nnz() > 0 {
        pattern.into()
    } else {
        // SAFETY: by the rules of the interface.
        let values = unsafe { slice("values", values, pattern.nnz())? };
        inputs.push(addresses(values));
        CsrRef::on(pattern, values)?.into()
    };
    // SAFETY: by the rules of the interface.
    let b = unsafe { mat("b", b, pattern.cols(), n, ldb)? };
    inputs.push(addresses(b.data()));
    // SAFETY: by the rules of the interface.
    let c = unsafe { mat_mut("c", c, pattern.rows(), n, ldc, &inputs)? };
    cpu.semiring_operand(semiring, a, b, c, empty)?;
    Ok(())
}

/// C = the reduction over the nonzeros (i, j) of A of a_ij B_j, by column: A sparse M x K, prepared for SPARSIMD_OP_SPMM, B dense
/// K x n, C dense M x n. `reduction` is a sparsimd_reduction. Rows without nonzeros become zeros. `positions` may be null; with the
/// maximum or minimum it gets, for each element of C by rows of n, the position of the nonzero that it comes from in the order of
/// the matrix, or UINT32_MAX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_reduce_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    reduction: u32,
    n: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
    positions: *mut u32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce(Rule::Reduction(reduction), cpu, plan, n, b, ldb, c, ldc, positions) })
}

/// As sparsimd_spmm_reduce_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_reduce_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    reduction: u32,
    n: usize,
    b: *const f64,
    ldb: usize,
    c: *mut f64,
    ldc: usize,
    positions: *mut u32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce(Rule::Reduction(reduction), cpu, plan, n, b, ldb, c, ldc, positions) })
}

/// C = A B with another addition and multiplication: A sparse M x K, prepared for SPARSIMD_OP_SPMM, B dense K x n, C dense M x n.
/// `semiring` is a sparsimd_semiring. Rows without nonzeros become the neutral element of the addition: 0, or infinity where
/// the smaller, minus infinity where the larger is taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_semiring_f32(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    semiring: u32,
    n: usize,
    b: *const f32,
    ldb: usize,
    c: *mut f32,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce(Rule::Semiring(semiring), cpu, plan, n, b, ldb, c, ldc, ptr::null_mut()) })
}

/// As sparsimd_spmm_semiring_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_semiring_f64(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    semiring: u32,
    n: usize,
    b: *const f64,
    ldb: usize,
    c: *mut f64,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce(Rule::Semiring(semiring), cpu, plan, n, b, ldb, c, ldc, ptr::null_mut()) })
}

/// As sparsimd_spmm_reduce_f32(), of integers, which wrap around: on the pattern of `csr`, whose own values are not looked at, with
/// `values` in its order. They have no plans, no positions and no SPARSIMD_REDUCTION_MEAN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_reduce_i32(
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    values: *const i32,
    reduction: u32,
    n: usize,
    b: *const i32,
    ldb: usize,
    c: *mut i32,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce_integers(Rule::Reduction(reduction), cpu, csr, values, n, b, ldb, c, ldc) })
}

/// As sparsimd_spmm_reduce_i32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_reduce_i64(
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    values: *const i64,
    reduction: u32,
    n: usize,
    b: *const i64,
    ldb: usize,
    c: *mut i64,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce_integers(Rule::Reduction(reduction), cpu, csr, values, n, b, ldb, c, ldc) })
}

/// As sparsimd_spmm_semiring_f32(), of integers, on the pattern of `csr` as sparsimd_spmm_reduce_i32(). `values` may be null where the
/// semiring does not need them. The neutral element of the smaller and the larger is the largest and the least integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_semiring_i32(
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    values: *const i32,
    semiring: u32,
    n: usize,
    b: *const i32,
    ldb: usize,
    c: *mut i32,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce_integers(Rule::Semiring(semiring), cpu, csr, values, n, b, ldb, c, ldc) })
}

/// As sparsimd_spmm_semiring_i32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_semiring_i64(
    cpu: *const CpuHandle,
    csr: *const CsrHandle,
    values: *const i64,
    semiring: u32,
    n: usize,
    b: *const i64,
    ldb: usize,
    c: *mut i64,
    ldc: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { reduce_integers(Rule::Semiring(semiring), cpu, csr, values, n, b, ldb, c, ldc) })
}
