//! Arrays of C as slices and matrices.

use std::ops::Range;

use crate::dense::{MatMut, MatRef};

use super::status::{Failure, Outcome};

/// Whether an array of `len` elements may be at `data`.
fn check<T>(name: &str, data: *const T, len: usize) -> Outcome {
    if data.is_null() {
        return Err(Failure::argument(name, "the pointer is null"));
    }
    if !data.is_aligned() {
        return Err(Failure::argument(name, "the pointer is not aligned to its elements"));
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(name, &format!("{len} elements do not fit the address space")));
    }
    Ok(())
}

/// Writes one value.
///
/// # Safety
/// `out` can be written, or is null or misaligned.
pub(super) unsafe fn put<T>(name: &str, out: *mut T, value: T) -> Outcome {
    check(name, out, 1)?;
    // SAFETY: checked above, and by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// An array of `len` elements.
///
/// # Safety
/// `data` points to them, initialised and unchanged while the slice lives, or is null or misaligned.
pub(super) unsafe fn slice<'a, T>(name: &str, data: *const T, len: usize) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(name, data, len)?;
    // SAFETY: checked above, and by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// As [`slice`], to be written; refused where it overlaps one of `inputs`.
///
/// # Safety
/// `data` points to `len` elements that nobody else uses while the slice lives, or is null or misaligned.
pub(super) unsafe fn slice_mut<'a, T>(
    name: &str,
    data: *mut T,
    len: usize,
    inputs: &[Range<usize>],
) -> Outcome<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(name, data, len)?;
    let start = data.addr();
    let end = start.saturating_add(len * size_of::<T>());
    if inputs.iter().any(|input| !input.is_empty() && input.start < end && start < input.end) {
        return Err(Failure::argument(name, "overlaps another operand"));
    }
    // SAFETY: checked above, and by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
}

/// Elements from the first to the last of a matrix.
fn extent(name: &str, rows: usize, cols: usize, stride: usize) -> Outcome<usize> {
    if stride < cols {
        let detail = format!("a row stride of {stride} is less than the {cols} columns");
        return Err(Failure::argument(name, &detail));
    }
    let len = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(cols)),
    };
    len.ok_or_else(|| Failure::argument(name, "the matrix does not fit the address space"))
}

/// A matrix of `rows` x `cols`, rows `stride` elements apart.
///
/// # Safety
/// As [`slice`], from its first to its last element.
pub(super) unsafe fn mat<'a, T>(
    name: &str,
    data: *const T,
    rows: usize,
    cols: usize,
    stride: usize,
) -> Outcome<MatRef<'a, T>> {
    // SAFETY: by the caller's promise.
    let data = unsafe { slice(name, data, extent(name, rows, cols, stride)?)? };
    Ok(MatRef::new(data, rows, cols, stride)?)
}

/// A matrix to be written; refused where it overlaps one of `inputs`.
///
/// # Safety
/// As [`slice_mut`], from its first to its last element.
pub(super) unsafe fn mat_mut<'a, T>(
    name: &str,
    data: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    inputs: &[Range<usize>],
) -> Outcome<MatMut<'a, T>> {
    // SAFETY: by the caller's promise.
    let data = unsafe { slice_mut(name, data, extent(name, rows, cols, stride)?, inputs)? };
    Ok(MatMut::new(data, rows, cols, stride)?)
}
