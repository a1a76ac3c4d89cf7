//! Dense row-major matrices: unit column stride, one row stride.
//!
//! [`Mat`] owns its storage (64-byte aligned rows), [`MatRef`] and [`MatMut`] borrow any slice. Everything else that
//! calls itself a matrix is converted outside of the library.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use aligned_vec::{AVec, ConstAlign};
use sparsimd_kernels::Scalar;

use crate::error::{Error, Result};

/// Bytes of a cache line, and of the widest vector register that pulp knows: the alignment of every owned array.
pub const ALIGN: usize = 64;

/// A 64-byte aligned growable array.
pub type Aligned<T> = AVec<T, ConstAlign<ALIGN>>;

/// An empty aligned array with room for `len` elements, on huge pages where it is large and the system offers them: rows
/// gathered from all over a matrix of tens of MiB otherwise miss the TLB more often than the cache.
pub(crate) fn reserved_aligned<T>(len: usize) -> Aligned<T> {
    let mut data = Aligned::with_capacity(ALIGN, len);
    advise_huge_pages(data.as_mut_ptr(), len);
    data
}

/// Makes `data`, which has room for them, the `len` elements that `write` writes: pages are touched by the threads that
/// write them, once.
///
/// # Safety
/// `write` initialises every element.
pub(crate) unsafe fn fill_with<T>(data: &mut Aligned<T>, len: usize, write: impl FnOnce(&mut [MaybeUninit<T>])) {
    assert!(len <= data.capacity(), "room for {len} elements");
    data.clear();
    // SAFETY: the allocation has room for `len` elements, which may be uninitialised, and is borrowed for the call alone.
    write(unsafe { slice::from_raw_parts_mut(data.as_mut_ptr().cast(), len) });
    // SAFETY: the elements are inside the capacity, and initialised as the caller promises.
    unsafe { data.set_len(len) };
}

/// `data`, new and with room for `len` elements, with that many zeros.
fn zeroed<T: Scalar>(mut data: Aligned<T>, len: usize) -> Aligned<T> {
    advise_huge_pages(data.as_mut_ptr(), len);
    data.resize(len, T::ZERO);
    data
}

/// An empty array with room for `len` elements, on huge pages likewise: filling it for the first time then costs a fraction
/// of the page faults.
pub(crate) fn reserved<T>(len: usize) -> Vec<T> {
    let mut data = Vec::with_capacity(len);
    advise_huge_pages(data.as_mut_ptr(), len);
    data
}

/// Bytes of a huge page on x86-64 and most AArch64 systems; an array of fewer has none.
const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages under `len` elements at `data`, before they are first touched. A request: it may go unheard.
fn advise_huge_pages<T>(data: *mut T, len: usize) {
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

/// Where `data` is.
pub(crate) fn addresses<T>(data: &[T]) -> Range<usize> {
    let Range { start, end } = data.as_ptr_range();
    start as usize..end as usize
}

/// An owned row-major matrix.
///
/// Rows of at least one cache line are padded to whole cache lines, so that every row starts aligned: an unaligned row
/// costs 20-34 % in the kernels. Short rows are packed.
#[derive(Clone, Debug)]
pub struct Mat<T> {
    data: Aligned<T>,
    rows: usize,
    cols: usize,
    stride: usize,
}

/// The row stride that [`Mat`] chooses for rows of `cols` elements; the largest number when there is none.
pub(crate) fn padded_stride<T>(cols: usize) -> usize {
    let line = ALIGN / size_of::<T>();
    if cols < line { cols } else { cols.checked_next_multiple_of(line).unwrap_or(usize::MAX) }
}

impl<T: Scalar> Mat<T> {
    /// A matrix of zeros.
    ///
    /// # Errors
    /// [`Error::Argument`] when the matrix would not fit the address space or the system refuses the memory.
    pub fn zeros(rows: usize, cols: usize) -> Result<Self> {
        let too_large = || Error::argument("matrix", format!("{rows} x {cols} elements do not fit the memory"));
        let stride = padded_stride::<T>(cols);
        let len = rows.checked_mul(stride).filter(|&n| n <= isize::MAX as usize / size_of::<T>());
        let len = len.ok_or_else(too_large)?;
        let mut data = Aligned::new(ALIGN);
        data.try_reserve_exact(len).map_err(|_| too_large())?;
        Ok(Self { data: zeroed(data, len), rows, cols, stride })
    }

    /// The matrix with element `f(i, j)` at row `i`, column `j`.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    pub fn from_fn(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> T) -> Result<Self> {
        let mut out = Self::zeros(rows, cols)?;
        for i in 0..rows {
            for (j, x) in out.as_mut().into_row(i).iter_mut().enumerate() {
                *x = f(i, j);
            }
        }
        Ok(out)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`Mat::rows`], as slice indexing does.
    pub fn row(&self, i: usize) -> &[T] {
        assert!(i < self.rows, "row {i} of a matrix of {} rows", self.rows);
        &self.data[i * self.stride..][..self.cols]
    }

    /// A shared view of the whole matrix.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef { data: &self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// A mutable view of the whole matrix.
    pub fn as_mut(&mut self) -> MatMut<'_, T> {
        MatMut { data: &mut self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }
}

/// A shared view of a row-major matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A mutable view of a row-major matrix.
#[derive(Debug)]
pub struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// Whether `len` elements hold `rows` rows of `cols` elements, `stride` apart.
fn check_view(len: usize, rows: usize, cols: usize, stride: usize) -> Result<()> {
    if stride < cols {
        return Err(Error::argument("stride", format!("{stride} is less than the {cols} columns of a row")));
    }
    let need = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(stride).and_then(|n| n.checked_add(cols)),
    };
    match need {
        Some(need) if need <= len => Ok(()),
        _ => Err(Error::argument(
            "data",
            format!("{len} elements do not hold {rows} rows of {cols} elements with stride {stride}"),
        )),
    }
}

impl<'a, T> MatRef<'a, T> {
    /// The view of `rows` x `cols` elements of `data`, rows `stride` elements apart.
    ///
    /// # Errors
    /// [`Error::Argument`] when `stride < cols` or `data` is too short.
    pub fn new(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        check_view(data.len(), rows, cols, stride)?;
        Ok(Self { data, rows, cols, stride })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All the elements, padding included.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// Row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`MatRef::rows`], as slice indexing does.
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of a view of {} rows", self.rows);
        &self.data[i * self.stride..][..self.cols]
    }
}

impl<'a, T> MatMut<'a, T> {
    /// The view of `rows` x `cols` elements of `data`, rows `stride` elements apart.
    ///
    /// # Errors
    /// [`Error::Argument`] when `stride < cols` or `data` is too short.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Result<Self> {
        check_view(data.len(), rows, cols, stride)?;
        Ok(Self { data, rows, cols, stride })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row's start to the next's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// A shared view of the same elements.
    pub fn as_ref(&self) -> MatRef<'_, T> {
        MatRef { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// All the elements, padding included.
    pub fn into_data(self) -> &'a mut [T] {
        self.data
    }

    /// Row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`MatMut::rows`], as slice indexing does.
    pub fn into_row(self, i: usize) -> &'a mut [T] {
        assert!(i < self.rows, "row {i} of a view of {} rows", self.rows);
        &mut self.data[i * self.stride..][..self.cols]
    }
}
