//! Operands that store halves. Matrices, plans and tensors are those of f32, which is what is computed with.

use std::ffi::c_void;

use super::CpuHandle;
use super::decomposition::{MttkrpHandle, create_for, mttkrp};
use super::matrix::{CsrHandle, csr_borrow};
use super::plan::{PlanHandle, set_values};
use super::product::{fusedmm, sddmm, spmm};
use super::status::{Failure, Status, guard};
use super::tensor::{FibersHandle, TensorHandle, ttm};
use sparsimd_kernels::{bf16, f16};

/// What 16 bits of an operand are.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Half {
    /// 8 bits of exponent, 7 of mantissa: the upper half of a float.
    Bf16 = 0,
    /// 5 bits of exponent, 10 of mantissa: IEEE 754's binary16.
    F16 = 1,
}

/// The call with `$D` for bf16 or for f16, which are 16 bits of any value.
macro_rules! by_half {
    ($half:ident, $D:ident => $call:expr) => {
        guard(|| match $half {
            0 => {
                type $D = bf16;
                // SAFETY: by the rules of the interface.
                unsafe { $call }
            }
            1 => {
                type $D = f16;
                // SAFETY: by the rules of the interface.
                unsafe { $call }
            }
            _ => Err(Failure::argument("half", &format!("{} is not a sparsimd_half", $half))),
        })
    };
}

/// As sparsimd_csr_borrow_f32(), with values of the elements that `half`, a sparsimd_half, says: a matrix of floats for plans and their
/// runs, whatever dense operands store. By SPARSIMD_PATH_DIRECT the values are read where they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_borrow_half(
    rows: usize,
    cols: usize,
    row_ptr: *const c_void,
    row_ptr_type: u32,
    col_idx: *const c_void,
    col_idx_type: u32,
    half: u32,
    values: *const u16,
    csr: *mut *mut CsrHandle,
) -> Status {
    let (pointers, columns) = ((row_ptr, row_ptr_type), (col_idx, col_idx_type));
    by_half!(half, D => csr_borrow::<D>(rows, cols, pointers, columns, values.cast(), csr))
}

/// As sparsimd_plan_set_values_f32(), of the elements that `half`, a sparsimd_half, says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_plan_set_values_half(
    plan: *mut PlanHandle,
    half: u32,
    values: *const u16,
    nnz: usize,
) -> Status {
    by_half!(half, D => set_values::<D>(plan, values.cast(), nnz))
}

/// C = alpha A B + beta C as sparsimd_spmm_f32(), B and C of the elements that `half`, a sparsimd_half, says. Sums are of
/// floats; each element of C is rounded once, to nearest, ties to even.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    alpha: f32,
    b: *const u16,
    ldb: usize,
    beta: f32,
    c: *mut u16,
    ldc: usize,
) -> Status {
    by_half!(half, D => spmm::<D>(false, cpu, plan, n, alpha, (b.cast(), ldb), beta, (c.cast(), ldc)))
}

/// C = alpha A^T B + beta C as sparsimd_spmm_t_f32(), B and C of halves as in sparsimd_spmm_half().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_spmm_t_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    alpha: f32,
    b: *const u16,
    ldb: usize,
    beta: f32,
    c: *mut u16,
    ldc: usize,
) -> Status {
    by_half!(half, D => spmm::<D>(true, cpu, plan, n, alpha, (b.cast(), ldb), beta, (c.cast(), ldc)))
}

/// As sparsimd_sddmm_f32(), C and B of the elements that `half`, a sparsimd_half, says; `out` is floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    c: *const u16,
    ldc: usize,
    b: *const u16,
    ldb: usize,
    out: *mut f32,
) -> Status {
    by_half!(half, D => sddmm::<D, f32>(false, cpu, plan, n, (c.cast(), ldc), (b.cast(), ldb), out))
}

/// As sparsimd_sddmm_scaled_f32(), C and B of halves as in sparsimd_sddmm_half().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_scaled_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    c: *const u16,
    ldc: usize,
    b: *const u16,
    ldb: usize,
    out: *mut f32,
) -> Status {
    by_half!(half, D => sddmm::<D, f32>(true, cpu, plan, n, (c.cast(), ldc), (b.cast(), ldb), out))
}

/// As sparsimd_sddmm_half(), `out` of halves, too: each is rounded once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_all_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    c: *const u16,
    ldc: usize,
    b: *const u16,
    ldb: usize,
    out: *mut u16,
) -> Status {
    by_half!(half, D => sddmm::<D, D>(false, cpu, plan, n, (c.cast(), ldc), (b.cast(), ldb), out.cast()))
}

/// As sparsimd_sddmm_scaled_half(), `out` of halves, too: each is rounded once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_sddmm_scaled_all_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    n: usize,
    c: *const u16,
    ldc: usize,
    b: *const u16,
    ldb: usize,
    out: *mut u16,
) -> Status {
    by_half!(half, D => sddmm::<D, D>(true, cpu, plan, n, (c.cast(), ldc), (b.cast(), ldb), out.cast()))
}

/// As sparsimd_fusedmm_f32(), C, B, D and E of the elements that `half`, a sparsimd_half, says. Edge values and sums are
/// floats; each element of E is rounded once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fusedmm_half(
    cpu: *const CpuHandle,
    plan: *const PlanHandle,
    half: u32,
    edge: u32,
    scale: f32,
    n: usize,
    c: *const u16,
    ldc: usize,
    b: *const u16,
    ldb: usize,
    p: usize,
    d: *const u16,
    ldd: usize,
    e: *mut u16,
    lde: usize,
) -> Status {
    by_half!(half, D => {
        let (c, b, d, e) = ((c.cast(), ldc), (b.cast(), ldb), (d.cast(), ldd), (e.cast(), lde));
        fusedmm::<D>(cpu, plan, (edge, scale), n, c, b, p, d, e)
    })
}

/// As sparsimd_mttkrp_create(), of a tensor of floats for factors of the elements that `half`, a sparsimd_half, says: more of their
/// rows fit the caches. Runs with floats are right, and may be slower.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_create_half(
    cpu: *const CpuHandle,
    tensor: *const TensorHandle,
    half: u32,
    rank: usize,
    format: u32,
    mttkrp: *mut *mut MttkrpHandle,
) -> Status {
    by_half!(half, D => create_for::<D>(cpu, tensor, rank, format, mttkrp))
}

/// As sparsimd_mttkrp_f32(), factors of the elements that `half`, a sparsimd_half, says; `out` is floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_half(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    half: u32,
    mode: usize,
    rank: usize,
    factors: *const *const u16,
    strides: *const usize,
    out: *mut f32,
    ldo: usize,
) -> Status {
    by_half!(half, D => self::mttkrp::<D>(cpu, mttkrp, (mode, rank), (factors.cast(), strides), (out, ldo)))
}

/// As sparsimd_ttm_f32(), U and Y of the elements that `half`, a sparsimd_half, says. Sums are floats; each element of Y is rounded once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ttm_half(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    half: u32,
    cols: usize,
    u: *const u16,
    ldu: usize,
    y: *mut u16,
    ldy: usize,
) -> Status {
    by_half!(half, D => ttm::<D>(cpu, fibers, cols, (u.cast(), ldu), (y.cast(), ldy)))
}
