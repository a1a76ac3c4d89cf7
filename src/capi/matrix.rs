//! Sparse matrices, copied or borrowed.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use super::handle::{self, Handle, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{put, slice};
use crate::dense::addresses;
use crate::formats::{ColumnIndex, Csr, CsrRef, Pattern, PatternRef, PointerIndex};
use crate::ops::SparseOperand;
use sparsimd_kernels::{Scalar, Stored};

/// A sparse matrix by rows (CSR), or only its pattern.
#[derive(Debug)]
pub struct CsrHandle(());

/// The integers of an index array that is borrowed.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Index {
    /// uint32_t.
    U32 = 0,
    /// int32_t.
    I32 = 1,
    /// uint64_t; of row pointers only.
    U64 = 2,
    /// int64_t; of row pointers only.
    I64 = 3,
}

pub(super) enum Matrix<T: Scalar> {
    Values(Csr<T>),
    Pattern(Arc<Pattern>),
    Borrowed(Borrowed<T>),
}

/// A matrix in arrays of the caller, which live as long as the handles that refer to them, as the caller promises.
#[derive(Clone)]
pub(super) struct Borrowed<T: 'static> {
    pub operand: SparseOperand<'static, T>,
    /// Where the arrays are.
    pub arrays: [Range<usize>; 3],
}

impl<T: Scalar> Matrix<T> {
    pub fn sparse(&self) -> SparseOperand<'_, T> {
        match self {
            Self::Values(csr) => csr.into(),
            Self::Pattern(pattern) => pattern.into(),
            Self::Borrowed(borrowed) => borrowed.operand,
        }
    }
}

impl Either<Matrices> {
    /// Its pattern, and where the arrays are that it borrows.
    pub fn pattern(&self) -> (PatternRef<'_>, Vec<Range<usize>>) {
        fn of<T: Scalar>(matrix: &Matrix<T>) -> (PatternRef<'_>, Vec<Range<usize>>) {
            let arrays = if let Matrix::Borrowed(borrowed) = matrix { borrowed.arrays.to_vec() } else { Vec::new() };
            (matrix.sparse().pattern(), arrays)
        }
        match self {
            Self::F32(matrix) => of(matrix),
            Self::F64(matrix) => of(matrix),
        }
    }
}

pub(super) struct Matrices;
impl Family for Matrices {
    const NAME: &'static str = "csr";
    type Of<T: Scalar> = Matrix<T>;
}

impl Handle for CsrHandle {
    type Value = Either<Matrices>;
    const NAME: &'static str = "csr";
    const TAG: u64 = u64::from_le_bytes(*b"simd-csr");
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

pub(super) unsafe fn csr_borrow<V: Stored<Scalar: Element>>(
    rows: usize,
    cols: usize,
    row_ptr: (*const c_void, u32),
    col_idx: (*const c_void, u32),
    values: *const V,
    csr: *mut *mut CsrHandle,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let place = unsafe { Place::new(csr)? };
    let (pointers, columns) = (row_ptr.0, col_idx);
    // SAFETY: by the rules of the interface: the arrays have the types that the caller names.
    let borrowed = unsafe {
        match row_ptr.1 {
            0 => borrow_pointers::<u32, V>(rows, cols, pointers.cast(), columns, values)?,
            1 => borrow_pointers::<i32, V>(rows, cols, pointers.cast(), columns, values)?,
            2 => borrow_pointers::<u64, V>(rows, cols, pointers.cast(), columns, values)?,
            3 => borrow_pointers::<i64, V>(rows, cols, pointers.cast(), columns, values)?,
            other => return Err(Failure::argument("row_ptr_type", &format!("{other} is not a sparsimd_index"))),
        }
    };
    place.put(V::Scalar::either::<Matrices>(Matrix::Borrowed(borrowed)));
    Ok(())
}

/// A matrix with row pointers of type `P`.
///
/// # Safety
/// By the rules of the interface; the arrays stay as they are while handles refer to them.
unsafe fn borrow_pointers<P: PointerIndex + TryInto<usize>, V: Stored<Scalar: Element>>(
    rows: usize,
    cols: usize,
    row_ptr: *const P,
    (col_idx, col_idx_type): (*const c_void, u32),
    values: *const V,
) -> Outcome<Borrowed<V::Scalar>> {
    let pointers = rows.checked_add(1).ok_or_else(|| Failure::argument("rows", "too many"))?;
    // SAFETY: by the caller's promise.
    let row_ptr: &'static [P] = unsafe { slice("row_ptr", row_ptr, pointers)? };
    // What is negative is refused with the other pointers.
    let len = row_ptr[rows].try_into().unwrap_or(0);
    // SAFETY: by the caller's promise.
    unsafe {
        match col_idx_type {
            0 => borrow_columns::<P, u32, V>(rows, cols, row_ptr, col_idx.cast(), values, len),
            1 => borrow_columns::<P, i32, V>(rows, cols, row_ptr, col_idx.cast(), values, len),
            other => {
                let detail = format!("{other} is not SPARSIMD_INDEX_U32 or SPARSIMD_INDEX_I32");
                Err(Failure::argument("col_idx_type", &detail))
            }
        }
    }
}

/// A matrix with `len` columns of type `C`.
///
/// # Safety
/// As [`borrow_pointers`].
unsafe fn borrow_columns<P: PointerIndex, C: ColumnIndex, V: Stored<Scalar: Element>>(
    rows: usize,
    cols: usize,
    row_ptr: &'static [P],
    col_idx: *const C,
    values: *const V,
    len: usize,
) -> Outcome<Borrowed<V::Scalar>> {
    // SAFETY: by the caller's promise.
    let col_idx = unsafe { slice("col_idx", col_idx, len)? };
    let (indices, columns) = (addresses(row_ptr), addresses(col_idx));
    if values.is_null() {
        let operand = PatternRef::new(rows, cols, row_ptr, col_idx)?.into();
        return Ok(Borrowed { operand, arrays: [indices, columns, 0..0] });
    }
    // SAFETY: by the caller's promise.
    let values = unsafe { slice("values", values, len)? };
    let operand = SparseOperand::of(CsrRef::new(rows, cols, row_ptr, col_idx, values)?);
    Ok(Borrowed { operand, arrays: [indices, columns, addresses(values)] })
}

/// A matrix of `rows` x `cols` in CSR that stays in the caller's arrays, as scipy and PyTorch hold it: `rows + 1` row pointers
/// of `row_ptr_type` (a sparsimd_index), and as many column indices of `col_idx_type` (SPARSIMD_INDEX_U32 or
/// SPARSIMD_INDEX_I32) and values as the last row pointer says. `values` may be null for a pattern alone. The first row
/// pointer may be above 0, as that of some rows of a larger matrix is: nonzeros are counted from there.
///
/// The arrays are checked here, once, and nothing is copied. They must remain, unchanged, until the matrix and all plans made
/// from it are destroyed: plans by SPARSIMD_PATH_DIRECT read them where they are (but for sparsimd_spmm_t_f32(), which needs
/// the transpose); plans by SPARSIMD_PATH_PANEL and SPARSIMD_PATH_SLICES have copied what they need. An output must not overlap them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_borrow_f32(
    rows: usize,
    cols: usize,
    row_ptr: *const c_void,
    row_ptr_type: u32,
    col_idx: *const c_void,
    col_idx_type: u32,
    values: *const f32,
    csr: *mut *mut CsrHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { csr_borrow(rows, cols, (row_ptr, row_ptr_type), (col_idx, col_idx_type), values, csr) })
}

/// As sparsimd_csr_borrow_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_borrow_f64(
    rows: usize,
    cols: usize,
    row_ptr: *const c_void,
    row_ptr_type: u32,
    col_idx: *const c_void,
    col_idx_type: u32,
    values: *const f64,
    csr: *mut *mut CsrHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { csr_borrow(rows, cols, (row_ptr, row_ptr_type), (col_idx, col_idx_type), values, csr) })
}

/// The matrix with `blocks` along its diagonal, all of element type `T`; values where all have them.
fn block_diagonal<T: Element>(blocks: &[&Either<Matrices>]) -> Outcome<Either<Matrices>> {
    let operands = blocks.iter().map(|block| Ok(block.of::<T>()?.sparse())).collect::<Outcome<Vec<_>>>()?;
    if operands.iter().any(|operand| matches!(operand, SparseOperand::Narrow(_))) {
        return Err(Failure::argument("blocks", "some have values of 16 bits"));
    }
    let with_values: Vec<CsrRef<'_, T>> = operands
        .iter()
        .filter_map(|operand| if let SparseOperand::Csr(a) = operand { Some(*a) } else { None })
        .collect();
    let matrix = match with_values.len() {
        0 => Matrix::Pattern(Pattern::block_diagonal(operands.iter().map(|operand| operand.pattern()))?),
        n if n == blocks.len() => Matrix::Values(Csr::block_diagonal(with_values)?),
        _ => return Err(Failure::argument("blocks", "some have values and some have none")),
    };
    Ok(T::either::<Matrices>(matrix))
}

/// The matrix with `count` blocks, at least one, along its diagonal, and nothing elsewhere: the batch of them, which every operation takes as
/// one matrix, with one plan. Rows follow each other as the blocks do, and so do those of dense operands. Blocks may differ in shape;
/// all are of one element type, and all have values or none has. They are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_csr_block_diagonal(
    count: usize,
    blocks: *const *const CsrHandle,
    csr: *mut *mut CsrHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, handles) = unsafe { (Place::new(csr)?, slice("blocks", blocks, count)?) };
        // SAFETY: by the rules of the interface.
        let blocks = handles.iter().map(|&block| unsafe { handle::get(block) }).collect::<Outcome<Vec<_>>>()?;
        place.put(match blocks.first() {
            None => return Err(Failure::argument("count", "0 blocks have no element type")),
            Some(Either::F32(_)) => block_diagonal::<f32>(&blocks)?,
            Some(Either::F64(_)) => block_diagonal::<f64>(&blocks)?,
        });
        Ok(())
    })
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
        let (pattern, _) = unsafe { handle::get(csr)? }.pattern();
        // SAFETY: by the rules of the interface.
        unsafe {
            put("rows", rows, pattern.rows())?;
            put("cols", cols, pattern.cols())?;
            put("nnz", nnz, pattern.nnz())
        }
    })
}
