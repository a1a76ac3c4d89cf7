//! Products on memory of PyTorch's, by address: a view of numpy for each operand takes longer than a small product.
//!
//! These functions are `sparsimd.torch`'s alone, which passes what tensors say of themselves and keeps the tensors alive.

use pyo3::prelude::*;
use sparsimd::{MatMut, MatRef, Stored, bf16, f16};

use crate::error::{exception, expect_count, released, value};
use crate::matrix::Csr;

/// Address, rows, columns and row stride of a matrix on processor memory; rows are contiguous and do not overlap.
type Place = (usize, usize, usize, usize);

/// Evaluates the expression with `$D` the element type that `sparsimd.torch` numbers so.
macro_rules! numbered {
    ($kind:expr, $D:ident => $body:expr) => {
        match $kind {
            0 => {
                type $D = f32;
                $body
            }
            1 => {
                type $D = f64;
                $body
            }
            2 => {
                type $D = bf16;
                $body
            }
            3 => {
                type $D = f16;
                $body
            }
            _ => Err(value("dtype", "is none of float32, float64, bfloat16 and float16")),
        }
    };
}

/// `len` elements from `address` on.
///
/// # Safety
/// They are there, initialised, as long as `'a`.
unsafe fn elements<'a, T>(address: usize, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(address as *const T, len) } }
}

/// The matrix there.
///
/// # Safety
/// As [`elements`].
unsafe fn matrix<'a, D>((address, rows, cols, stride): Place) -> PyResult<MatRef<'a, D>> {
    let len = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * stride + cols };
    // SAFETY: the caller's promise.
    MatRef::new(unsafe { elements(address, len) }, rows, cols, stride).map_err(exception)
}

/// out = A X or A^T X, with these values of A: as `Cpu::spmm`. `out` is contiguous and touches no operand.
#[pyfunction]
pub fn _spmm_at(
    a: &Bound<'_, Csr>,
    transposed: bool,
    kind: u8,
    values: (usize, usize),
    x: Place,
    out: usize,
) -> PyResult<()> {
    let structure = a.get().structure();
    let (rows, cols) = match (transposed, &structure.pattern) {
        (false, pattern) => (pattern.rows(), pattern.cols()),
        (true, pattern) => (pattern.cols(), pattern.rows()),
    };
    expect_count("values", values.1, structure.pattern.nnz(), "nonzeros")?;
    expect_count("X", x.1, cols, "rows that are expected")?;
    if rows == 0 || x.2 == 0 {
        return Ok(());
    }
    numbered!(kind, D => {
        type Values = <D as Stored>::Scalar;
        // SAFETY: `sparsimd.torch` passes what the tensors have, whose shapes have just been checked, and keeps them.
        let (values, x) = unsafe { (elements::<Values>(values.0, values.1), matrix::<D>(x)?) };
        // SAFETY: as above; the memory is a tensor's that nobody else has yet.
        let c = unsafe { std::slice::from_raw_parts_mut(out as *mut D, rows * x.cols()) };
        let c = MatMut::new(c, rows, x.cols(), x.cols()).map_err(exception)?;
        released(a.py(), |cpu| structure.with(cpu, transposed, values, |a| cpu.spmm(1.0, a, x, 0.0, c)))
    })
}

/// out_p = X1_i . X2_j for each nonzero p = (i, j): as `Cpu::sddmm`. `out` is contiguous and touches no operand.
#[pyfunction]
pub fn _sddmm_at(a: &Bound<'_, Csr>, kind: u8, x1: Place, x2: Place, out: usize) -> PyResult<()> {
    let pattern = a.get().pattern();
    expect_count("X1", x1.1, pattern.rows(), "rows that are expected")?;
    expect_count("X2", x2.1, pattern.cols(), "columns that are expected")?;
    expect_count("X2", x2.2, x1.2, "rows that are expected")?;
    if pattern.nnz() == 0 {
        return Ok(());
    }
    numbered!(kind, D => {
        // SAFETY: as in `_spmm_at`.
        let (x1, x2) = unsafe { (matrix::<D>(x1)?, matrix::<D>(x2)?) };
        // SAFETY: likewise.
        let out = unsafe { std::slice::from_raw_parts_mut(out as *mut <D as Stored>::Scalar, pattern.nnz()) };
        if x1.cols() == 0 {
            out.fill(0.0);
            return Ok(());
        }
        released(a.py(), |cpu| cpu.sddmm(pattern, x1, x2, out))
    })
}
