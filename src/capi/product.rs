//! The operations on a plan: SpMM, SDDMM and FusedMM.

use super::CpuHandle;
use super::handle;
use super::plan::PlanHandle;
use super::status::{Failure, Outcome, Status, guard};
use super::value::Element;
use super::view::{mat, mat_mut, slice_mut};
use crate::dense::addresses;
use crate::plan::Op;
use sparsimd_kernels::{Stored, edge};

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
    /// max(s, scale s).
    LeakyRelu = 4,
    /// exp(max(s, scale s)) divided by its sum over the row.
    SoftmaxLeakyRelu = 5,
}

/// What a sparsimd_edge stands for; `scale` is the factor of a softmax and the slope of a leaky rectifier.
pub(super) fn function_of<T: Element>(edge: u32, scale: T) -> Outcome<edge::BuiltIn<T>> {
    match edge {
        0 => Ok(edge::Identity.into()),
        1 => Ok(edge::Scale.into()),
        2 => Ok(edge::Sigmoid.into()),
        3 => Ok(edge::Softmax { scale }.into()),
        4 => Ok(edge::LeakyRelu { slope: scale }.into()),
        5 => Ok(edge::SoftmaxLeakyRelu { slope: scale }.into()),
        _ => Err(Failure::argument("edge", &format!("{edge} is not a sparsimd_edge"))),
    }
}

/// A dense matrix of an argument list: its first element and its row stride.
pub(super) type Dense<T> = (T, usize);

#[expect(clippy::too_many_arguments, reason = "the operation's own")]
pub(super) unsafe fn spmm<D: Stored<Scalar: Element>>(
    transposed: bool,
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    alpha: D::Scalar,
    b: Dense<*const D>,
    beta: D::Scalar,
    c: Dense<*mut D>,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, plan) = unsafe { (handle::get(cpu)?, handle::get(plan)?.of::<D::Scalar>()?) };
    let a = plan.operand(if transposed { Op::SpmmTransposed } else { Op::Spmm })?;
    let (rows, cols) = (a.pattern().rows(), a.pattern().cols());
    let (into, from) = if transposed { (cols, rows) } else { (rows, cols) };
    // SAFETY: by the rules of the interface.
    let (b, c) = unsafe {
        let b = mat("b", b.0, from, n, b.1)?;
        (b, mat_mut("c", c.0, into, n, c.1, &plan.inputs([addresses(b.data())]))?)
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
    guard(|| unsafe { spmm::<f32>(false, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
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
    guard(|| unsafe { spmm::<f64>(false, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
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
    guard(|| unsafe { spmm::<f32>(true, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
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
    guard(|| unsafe { spmm::<f64>(true, cpu, plan, n, alpha, (b, ldb), beta, (c, ldc)) })
}

pub(super) unsafe fn sddmm<D: Stored<Scalar: Element>, V: Stored<Scalar = D::Scalar>>(
    scaled: bool,
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    n: usize,
    c: Dense<*const D>,
    b: Dense<*const D>,
    out: *mut V,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, plan) = unsafe { (handle::get(cpu)?, handle::get(plan)?.of::<D::Scalar>()?) };
    let a = plan.operand(Op::Sddmm)?;
    let pattern = a.pattern();
    // SAFETY: by the rules of the interface.
    let (c, b, out) = unsafe {
        let c = mat("c", c.0, pattern.rows(), n, c.1)?;
        let b = mat("b", b.0, pattern.cols(), n, b.1)?;
        (c, b, slice_mut("out", out, pattern.nnz(), &plan.inputs([addresses(c.data()), addresses(b.data())]))?)
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
    guard(|| unsafe { sddmm::<f32, f32>(false, cpu, plan, n, (c, ldc), (b, ldb), out) })
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
    guard(|| unsafe { sddmm::<f64, f64>(false, cpu, plan, n, (c, ldc), (b, ldb), out) })
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
    guard(|| unsafe { sddmm::<f32, f32>(true, cpu, plan, n, (c, ldc), (b, ldb), out) })
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
    guard(|| unsafe { sddmm::<f64, f64>(true, cpu, plan, n, (c, ldc), (b, ldb), out) })
}

#[expect(clippy::too_many_arguments, reason = "the operation's own")]
pub(super) unsafe fn fusedmm<D: Stored<Scalar: Element>>(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    (weight, scale): (u32, D::Scalar),
    n: usize,
    c: Dense<*const D>,
    b: Dense<*const D>,
    p: usize,
    d: Dense<*const D>,
    e: Dense<*mut D>,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, plan) = unsafe { (handle::get(cpu)?, handle::get(plan)?.of::<D::Scalar>()?) };
    let a = plan.operand(Op::FusedMm)?;
    let (rows, cols) = (a.pattern().rows(), a.pattern().cols());
    // SAFETY: by the rules of the interface.
    let (c, b, d, e) = unsafe {
        let c = mat("c", c.0, rows, n, c.1)?;
        let b = mat("b", b.0, cols, n, b.1)?;
        let d = mat("d", d.0, cols, p, d.1)?;
        (
            c,
            b,
            d,
            mat_mut(
                "e",
                e.0,
                rows,
                p,
                e.1,
                &plan.inputs([addresses(c.data()), addresses(b.data()), addresses(d.data())]),
            )?,
        )
    };
    cpu.fusedmm(a, function_of(weight, scale)?, c, b, d, e)?;
    Ok(())
}

/// E_i = sum over the nonzeros (i, j) of A of f((C B^T)_ij, a_ij) D_j: C dense M x n, B dense K x n, D dense K x p, E dense
/// M x p. `edge` is a sparsimd_edge; `scale` is the softmax's factor, the leaky rectifiers' slope, and otherwise not looked at.
/// Rows without nonzeros become zeros.
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
    guard(|| unsafe { fusedmm::<f32>(cpu, plan, (edge, scale), n, (c, ldc), (b, ldb), p, (d, ldd), (e, lde)) })
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
    guard(|| unsafe { fusedmm::<f64>(cpu, plan, (edge, scale), n, (c, ldc), (b, ldb), p, (d, ldd), (e, lde)) })
}
