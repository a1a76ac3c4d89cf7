//! Memory whose size comes from input: running out of it is an error, not the end of the process.
//!
//! An array that is filled in place is allocated by [`zeros`] or [`reserve`]. An operation that allocates many arrays calls
//! [`ensure`] with their total first.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt::Display;

use bytemuck::Zeroable;

use crate::error::{Error, Result};

/// Bytes from which the system is asked how much memory is free. Linux grants more than it has, and ends the process when
/// the pages are touched.
const LARGE: usize = 256 << 20;

/// `len` zeros for `what`.
pub(crate) fn zeros<E: Zeroable>(what: impl Display, len: usize) -> Result<Vec<E>> {
    let bytes = len.saturating_mul(size_of::<E>());
    available(&what, bytes)?;
    if bytes == 0 {
        return reserve(what, len);
    }
    let layout = Layout::array::<E>(len).map_err(|_| refused(&what, bytes))?;
    // SAFETY: the size is not zero.
    let data: *mut E = unsafe { alloc_zeroed(layout) }.cast();
    if data.is_null() {
        return Err(refused(&what, bytes));
    }
    advise_huge_pages(data, len);
    // SAFETY: `data` comes from the global allocator with the layout of `len` elements, and zero bytes are valid ones.
    Ok(unsafe { Vec::from_raw_parts(data, len, len) })
}

/// An empty array with room for `len` elements of `what`.
pub(crate) fn reserve<E>(what: impl Display, len: usize) -> Result<Vec<E>> {
    let bytes = len.saturating_mul(size_of::<E>());
    available(&what, bytes)?;
    let mut array = Vec::new();
    array.try_reserve_exact(len).map_err(|_| refused(&what, bytes))?;
    advise_huge_pages(array.as_mut_ptr(), len);
    Ok(array)
}

/// An empty array with room for `len` elements, on huge pages where it is large and the system offers them: reading it then takes
/// fewer address translations, which in a virtual machine cost more than the memory itself (31 GB/s on one thread, 9 to 20 on
/// pages of 4 KiB), and filling it for the first time a fraction of the page faults.
pub(crate) fn reserved<T>(len: usize) -> Vec<T> {
    let mut data = Vec::with_capacity(len);
    advise_huge_pages(data.as_mut_ptr(), len);
    data
}

/// All of `items`, on huge pages likewise.
pub(crate) fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Vec<T> {
    let mut all = reserved(items.len());
    all.extend(items);
    all
}

/// A copy of `data`, on huge pages likewise.
pub(crate) fn copied<T: Copy>(data: &[T]) -> Vec<T> {
    collected(data.iter().copied())
}

/// Bytes of a huge page on x86-64 and most AArch64 systems; an array of fewer has none.
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages under `len` elements at `data`, before they are first touched. A request: it may go unheard.
pub(crate) fn advise_huge_pages<T>(data: *mut T, len: usize) {
    #[cfg(target_os = "linux")]
    if len * size_of::<T>() >= HUGE_PAGE {
        // Whole pages only: the first and last are shared with other allocations.
        let start = data.addr().next_multiple_of(4096);
        let end = (data.addr() + len * size_of::<T>()) / 4096 * 4096;
        // SAFETY: the range is inside one live allocation; the advice changes no contents.
        unsafe { libc::madvise(data.with_addr(start).cast(), end.saturating_sub(start), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (data, len, HUGE_PAGE);
}

/// Makes room for `more` elements of `what` behind those of `array`: for twice as many as there are, if there is too little.
pub(crate) fn grow<E>(what: impl Display, array: &mut Vec<E>, more: usize) -> Result<()> {
    if array.capacity() - array.len() >= more {
        return Ok(());
    }
    let bytes = array.len().max(more).saturating_mul(size_of::<E>());
    available(&what, bytes)?;
    array.try_reserve(more).map_err(|_| refused(&what, bytes))?;
    let spare = array.spare_capacity_mut();
    advise_huge_pages(spare.as_mut_ptr(), spare.len());
    Ok(())
}

/// Whether `bytes` of memory can be allocated for `what` now. They are not kept: another thread may take them.
pub(crate) fn ensure(what: impl Display, bytes: usize) -> Result<()> {
    reserve::<u8>(what, bytes).map(drop)
}

/// The bytes of arrays: their numbers of elements, each with the bytes of one. The largest number when the sum overflows.
pub(crate) fn total(arrays: &[(usize, usize)]) -> usize {
    arrays.iter().fold(0, |sum, &(len, each)| len.saturating_mul(each).saturating_add(sum))
}

fn refused(what: &impl Display, bytes: usize) -> Error {
    Error::Memory { what: what.to_string(), bytes }
}

/// Whether the system has `bytes` of free memory, as far as it says.
fn available(what: &impl Display, bytes: usize) -> Result<()> {
    if bytes >= LARGE && crate::machine::available_memory().is_some_and(|free| bytes as u64 > free) {
        return Err(refused(what, bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert_eq!(zeros::<u32>("x", 3).unwrap(), [0; 3]);
        assert!(reserve::<u64>("x", 100).unwrap().capacity() >= 100);
        for bytes in [1 << 50, usize::MAX] {
            assert!(matches!(ensure("x", bytes), Err(Error::Memory { bytes: got, .. }) if got == bytes));
        }
        let mut array = vec![1u32];
        grow("x", &mut array, 100).unwrap();
        assert!(array.capacity() > 100 && array == [1] && grow("x", &mut array, usize::MAX).is_err());
        assert!(zeros::<u64>("x", usize::MAX).is_err() && reserve::<u64>("x", usize::MAX).is_err());
        let text = ensure("a matrix", usize::MAX).unwrap_err().to_string();
        assert_eq!(text, format!("a matrix: {} bytes of memory are not available", usize::MAX));
        assert_eq!((total(&[(3, 4), (2, 8)]), total(&[(usize::MAX, 2), (1, 1)])), (28, usize::MAX));
    }
}
