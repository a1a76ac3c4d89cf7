//! Products on memory of PyTorch's, by address: a view of numpy for each operand takes longer than a small product.
//!
//! These functions are `sparsimd.torch`'s alone, which passes what tensors say of themselves and keeps the tensors alive.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rayon::prelude::*;
use sparsimd::{MatMut, MatRef, Stored, bf16, f16};

use crate::dlpack::{Kind, View};
use crate::error::{exception, expect_count, released, value};
use crate::matrix::Csr;
use crate::threads;

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

/// Elements from the first to the last.
fn length((_, rows, cols, stride): Place) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * stride + cols }
}

/// Its addresses.
fn range<D>(place: Place) -> Range<usize> {
    place.0..place.0 + length(place) * size_of::<D>()
}

/// An error unless elements of `T` can be at `address`. Only views that others made of raw bytes are elsewhere.
fn expect_aligned<T>(name: &str, address: usize) -> PyResult<()> {
    let aligned = address.is_multiple_of(align_of::<T>());
    if aligned { Ok(()) } else { Err(value(name, "its memory is not aligned; clone() it")) }
}

/// `len` elements from `address` on.
///
/// # Safety
/// They are there, aligned and initialised, as long as `'a`.
unsafe fn elements<'a, T>(address: usize, len: usize) -> &'a [T] {
    // SAFETY: the caller's promise.
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(address as *const T, len) } }
}

/// The matrix there, which is the argument `name`.
///
/// # Safety
/// As [`elements`], but for the alignment.
unsafe fn matrix<'a, D>(name: &str, place @ (address, rows, cols, stride): Place) -> PyResult<MatRef<'a, D>> {
    expect_aligned::<D>(name, address)?;
    // SAFETY: the caller's promise.
    MatRef::new(unsafe { elements(address, length(place)) }, rows, cols, stride).map_err(exception)
}

/// As [`matrix`], to be written to.
///
/// # Safety
/// As [`matrix`]; nobody else has the memory meanwhile.
unsafe fn matrix_mut<'a, D>(name: &str, place @ (address, rows, cols, stride): Place) -> PyResult<MatMut<'a, D>> {
    expect_aligned::<D>(name, address)?;
    let data: &mut [D] = match length(place) {
        0 => &mut [],
        // SAFETY: the caller's promise.
        len => unsafe { std::slice::from_raw_parts_mut(address as *mut D, len) },
    };
    MatMut::new(data, rows, cols, stride).map_err(exception)
}

/// Index types of tensors.
trait Index: Copy + Sync {
    /// Its value, which is that of no index of ours where it is negative.
    fn wide(self) -> u64;
}

impl Index for i32 {
    fn wide(self) -> u64 {
        i64::from(self) as u64
    }
}

impl Index for i64 {
    fn wide(self) -> u64 {
        self as u64
    }
}

/// Elements that are compared at once, in 4 KiB or so, and by one task.
const CHUNK: usize = 1 << 10;
/// More than these are compared by all threads: waking them takes about as long as one takes for these.
const ALONE: usize = 1 << 16;

/// Whether two arrays have the same numbers.
fn same<I: Index, J: Copy + Sync>(given: &[I], ours: &[J], wide: impl Fn(J) -> u64 + Sync) -> bool {
    // Without a branch for each, in registers of several.
    let equal = |(a, b): (&[I], &[J])| a.iter().zip(b).fold(0, |d, (&a, &b)| d | (a.wide() ^ wide(b))) == 0;
    if given.len() != ours.len() {
        false
    } else if given.len() <= ALONE {
        given.chunks(CHUNK).zip(ours.chunks(CHUNK)).all(equal)
    } else {
        given.par_chunks(CHUNK).zip(ours.par_chunks(CHUNK)).with_min_len(ALONE / CHUNK / 2).all(equal)
    }
}

/// Whether the matrix has the indices of two contiguous tensors: address, length and bytes of one of `crow`, and of `col`.
///
/// Kernels trust the matrix' own, checked copy of the indices, so that nothing that happens to the tensors can make them read or write
/// elsewhere. This is asked on every call, and by it the copy is that of what the tensors have now, whoever wrote to them and however.
#[pyfunction]
pub fn _has_indices(
    a: &Bound<'_, Csr>,
    crow: usize,
    rows: usize,
    crow_bytes: usize,
    col: usize,
    nnz: usize,
    col_bytes: usize,
) -> PyResult<bool> {
    let pattern = a.get().pattern();
    if !crow.is_multiple_of(crow_bytes) || !col.is_multiple_of(col_bytes) {
        // Copied as what they are by who asks.
        return Ok(false);
    }
    let rows_are = || {
        // SAFETY: `sparsimd.torch` passes what the tensors have, and keeps them; another thread that writes to them meanwhile is a race
        // that torch's own functions have as well.
        unsafe {
            match crow_bytes {
                8 => same(elements::<i64>(crow, rows), pattern.row_ptr(), |p| p as u64),
                _ => same(elements::<i32>(crow, rows), pattern.row_ptr(), |p| p as u64),
            }
        }
    };
    let columns_are = || {
        // SAFETY: as above.
        unsafe {
            match col_bytes {
                8 => same(elements::<i64>(col, nnz), pattern.col_idx(), u64::from),
                _ => same(elements::<i32>(col, nnz), pattern.col_idx(), u64::from),
            }
        }
    };
    if rows.max(nnz) <= ALONE {
        return Ok(rows_are() && columns_are());
    }
    let cpu = threads::cpu()?;
    Ok(a.py().detach(|| cpu.install(|| rows_are() && columns_are())))
}

/// out = A X or A^T X, with these values of A: as `Cpu::spmm`.
#[pyfunction]
pub fn _spmm_at(
    a: &Bound<'_, Csr>,
    transposed: bool,
    kind: u8,
    values: (usize, usize),
    x: Place,
    out: Place,
) -> PyResult<()> {
    product(a, transposed, kind, values, x, out)
}

/// The matrix with these index tensors, if `kept` has it; `kept` has matrices by the addresses of both, and their columns.
fn find<'py>(kept: &Bound<'py, PyDict>, crow: &View, col: &View, cols: usize) -> PyResult<Option<Bound<'py, Csr>>> {
    let (Kind::Int(wide @ (32 | 64)), Kind::Int(width @ (32 | 64))) = (crow.kind, col.kind) else { return Ok(None) };
    let (Some(pointers), Some(columns)) = (crow.vector(), col.vector()) else { return Ok(None) };
    let Some(found) = kept.get_item((crow.address, col.address, cols))? else { return Ok(None) };
    let a = found.cast_into::<Csr>()?;
    let bytes = [wide, width].map(|bits| usize::from(bits) / 8);
    let same = _has_indices(&a, crow.address, pointers, bytes[0], col.address, columns, bytes[1])?;
    Ok(same.then_some(a))
}

/// The number of a dense operand's dtype, and the kind of values beside it.
fn number(kind: Kind) -> Option<(u8, Kind)> {
    Some(match kind {
        Kind::Float(32) => (0, kind),
        Kind::Float(64) => (1, kind),
        Kind::BFloat16 => (2, Kind::Float(32)),
        Kind::Float(16) => (3, Kind::Float(32)),
        _ => return None,
    })
}

/// `A @ x` in `out`, if the tensors are as they usually are and `kept` has a matrix with their indices; else nothing happens, and the
/// answer is false.
#[pyfunction]
pub fn _spmm_kept(
    kept: &Bound<'_, PyDict>,
    crow: &Bound<'_, PyAny>,
    col: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let views = [crow, col, values, x, out].map(View::of);
    let [Some(crow), Some(col), Some(values), Some(x), Some(out)] = &views else { return Ok(false) };
    let Some((kind, beside)) = number(x.kind) else { return Ok(false) };
    let (Some(nnz), Some(operand), Some(target)) = (values.vector(), x.rows(), out.rows()) else { return Ok(false) };
    if values.kind != beside || out.kind != x.kind {
        return Ok(false);
    }
    let Some(a) = find(kept, crow, col, operand.1)? else { return Ok(false) };
    product(&a, false, kind, (values.address, nnz), operand, target)?;
    Ok(true)
}

/// ``x1 @ x2`` at the nonzeros in `out`, likewise.
#[pyfunction]
pub fn _sddmm_kept(
    kept: &Bound<'_, PyDict>,
    crow: &Bound<'_, PyAny>,
    col: &Bound<'_, PyAny>,
    x1: &Bound<'_, PyAny>,
    x2: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let views = [crow, col, x1, x2, out].map(View::of);
    let [Some(crow), Some(col), Some(x1), Some(x2), Some(out)] = &views else { return Ok(false) };
    let Some((kind, beside)) = number(x1.kind) else { return Ok(false) };
    let (Some(left), Some(right), Some(nnz)) = (x1.rows(), x2.transposed().rows(), out.vector()) else {
        return Ok(false);
    };
    if x2.kind != x1.kind || out.kind != beside {
        return Ok(false);
    }
    let Some(a) = find(kept, crow, col, right.1)? else { return Ok(false) };
    if nnz != a.get().pattern().nnz() {
        return Ok(false);
    }
    _sddmm_at(&a, kind, left, right, out.address)?;
    Ok(true)
}

fn product(
    a: &Bound<'_, Csr>,
    transposed: bool,
    kind: u8,
    values: (usize, usize),
    x: Place,
    out: Place,
) -> PyResult<()> {
    let structure = a.get().structure();
    let (rows, cols) = match (transposed, &structure.pattern) {
        (false, pattern) => (pattern.rows(), pattern.cols()),
        (true, pattern) => (pattern.cols(), pattern.rows()),
    };
    expect_count("values", values.1, structure.pattern.nnz(), "nonzeros")?;
    expect_count("X", x.1, cols, "rows that are expected")?;
    if (out.1, out.2) != (rows, x.2) {
        return Err(value("out", format!("has shape ({}, {}); ({rows}, {}) is expected", out.1, out.2, x.2)));
    }
    if rows == 0 || x.2 == 0 {
        return Ok(());
    }
    numbered!(kind, D => {
        type Values = <D as Stored>::Scalar;
        let inputs = [range::<D>(x), range::<Values>((values.0, 1, values.1, values.1))];
        let written = range::<D>(out);
        if inputs.iter().any(|input| !input.is_empty() && input.start < written.end && written.start < input.end) {
            return Err(value("out", "its memory overlaps or interleaves with that of an operand"));
        }
        expect_aligned::<Values>("values", values.0)?;
        // SAFETY: `sparsimd.torch` passes what the tensors have, whose shapes have just been checked, and keeps them.
        let (values, x) = unsafe { (elements::<Values>(values.0, values.1), matrix::<D>("X", x)?) };
        // SAFETY: as above; it touches no operand.
        let c = unsafe { matrix_mut::<D>("out", out)? };
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
        let (x1, x2) = unsafe { (matrix::<D>("X1", x1)?, matrix::<D>("X2", x2)?) };
        // SAFETY: likewise.
        let out = unsafe { std::slice::from_raw_parts_mut(out as *mut <D as Stored>::Scalar, pattern.nnz()) };
        if x1.cols() == 0 {
            out.fill(0.0);
            return Ok(());
        }
        released(a.py(), |cpu| cpu.sddmm(pattern, x1, x2, out))
    })
}
