//! Dense row-major matrices: unit column stride, one row stride.
//!
//! Elements are f32 or f64, or bf16 or f16, which the operations widen to f32.
//!
//! [`Mat`] owns its storage (64-byte aligned rows), [`MatRef`] and [`MatMut`] borrow any slice. Everything else that
//! calls itself a matrix is converted outside, or by the optional features `faer`, `ndarray` and `sprs`.

use std::mem::MaybeUninit;
use std::ops::{Index, IndexMut, Range};
use std::{fmt, slice};

use aligned_vec::{AVec, ConstAlign};

use crate::error::{Error, Result};
use crate::memory::advise_huge_pages;

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
pub(crate) fn zeroed<T: Copy + Default>(mut data: Aligned<T>, len: usize) -> Aligned<T> {
    advise_huge_pages(data.as_mut_ptr(), len);
    data.resize(len, T::default());
    data
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
pub struct Mat<T> {
    data: Aligned<T>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<T: Clone> Clone for Mat<T> {
    fn clone(&self) -> Self {
        let mut data = reserved_aligned(self.data.len()); // On huge pages, as the original.
        data.extend_from_slice(&self.data);
        Self { data, ..*self }
    }
}

/// The row stride that [`Mat`] chooses for rows of `cols` elements; the largest number when there is none.
pub(crate) fn padded_stride<T>(cols: usize) -> usize {
    let line = ALIGN / size_of::<T>();
    if cols < line { cols } else { cols.checked_next_multiple_of(line).unwrap_or(usize::MAX) }
}

impl<T: Copy + Default> Mat<T> {
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

    /// The matrix with element (i, j) at `data[i * cols + j]`; copied, since rows are aligned.
    ///
    /// # Errors
    /// [`Error::Argument`] when `data` does not have `rows * cols` elements; as [`Mat::zeros`].
    ///
    /// ```
    /// let a = sparsimd::Mat::from_vec(2, 3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    /// assert_eq!((a[(1, 0)], a.get(2, 0)), (4.0, None));
    /// # Ok::<(), sparsimd::Error>(())
    /// ```
    pub fn from_vec(rows: usize, cols: usize, data: Vec<T>) -> Result<Self> {
        if rows.checked_mul(cols) != Some(data.len()) {
            return Err(Error::argument("data", format!("{} elements for {rows} x {cols}", data.len())));
        }
        MatRef { data: &data, rows, cols, stride: cols }.to_mat()
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
        self.as_ref().row(i)
    }

    /// Row `i`, to be changed in place.
    ///
    /// # Panics
    /// As [`Mat::row`].
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        self.as_mut().into_row(i)
    }

    /// Element (i, j), if there is one.
    pub fn get(&self, i: usize, j: usize) -> Option<&T> {
        self.as_ref().get(i, j)
    }

    /// The rows, in order.
    pub fn iter_rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.as_ref().iter_rows()
    }

    /// The rows, in order, to be changed in place.
    pub fn iter_rows_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (rows, cols) = (self.rows, self.cols);
        // Rows of no elements have no stride.
        let chunks = self.data.chunks_mut(self.stride.max(1)).map(move |row| &mut row[..cols]);
        chunks.chain(std::iter::repeat_with(|| &mut [][..])).take(rows)
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
#[derive(Clone, Copy)]
pub struct MatRef<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    stride: usize,
}

/// A mutable view of a row-major matrix.
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

impl<'a, T> MatRef<'a, T> {
    /// Element (i, j), if there is one.
    pub fn get(&self, i: usize, j: usize) -> Option<&'a T> {
        if i < self.rows { self.row(i).get(j) } else { None }
    }

    /// The rows, in order.
    pub fn iter_rows(&self) -> impl ExactSizeIterator<Item = &'a [T]> + use<'a, T> {
        let Self { data, rows, cols, stride } = *self;
        (0..rows).map(move |i| &data[i * stride..][..cols])
    }

    /// Rows `rows` as a view of their own.
    ///
    /// # Errors
    /// [`Error::Argument`] when there are no such rows.
    pub fn row_range(&self, rows: Range<usize>) -> Result<Self> {
        check_range(&rows, self.rows)?;
        // Past the last row there may be less than a stride.
        let data = self.data.get(rows.start * self.stride..).unwrap_or_default();
        Ok(Self { data, rows: rows.len(), ..*self })
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }
}

impl<T: Copy + Default> MatRef<'_, T> {
    /// A copy in memory of its own, with aligned rows.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    pub fn to_mat(&self) -> Result<Mat<T>> {
        let mut out = Mat::zeros(self.rows, self.cols)?;
        out.iter_rows_mut().zip(self.iter_rows()).for_each(|(to, from)| to.copy_from_slice(from));
        Ok(out)
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

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
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

/// Checks that `rows` are rows of a matrix of `len`.
pub(crate) fn check_range(rows: &Range<usize>, len: usize) -> Result<()> {
    if rows.start <= rows.end && rows.end <= len {
        return Ok(());
    }
    Err(Error::argument("rows", format!("{} to {} of a matrix of {len}", rows.start, rows.end)))
}

/// Checks that operand `name` of `op`, of `got.0` x `got.1` elements, has `want.0` x `want.1` of them.
pub(crate) fn check_shape(op: &'static str, name: &str, got: (usize, usize), want: (usize, usize)) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::shape(op, format!("{name} is {} x {}, expected {} x {}", got.0, got.1, want.0, want.1)))
}

impl<T> Index<(usize, usize)> for MatRef<'_, T> {
    type Output = T;

    fn index(&self, (i, j): (usize, usize)) -> &T {
        &self.row(i)[j]
    }
}

impl<T> Index<(usize, usize)> for MatMut<'_, T> {
    type Output = T;

    fn index(&self, (i, j): (usize, usize)) -> &T {
        &self.as_ref().row(i)[j]
    }
}

impl<T> IndexMut<(usize, usize)> for MatMut<'_, T> {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut T {
        &mut self.reborrow().into_row(i)[j]
    }
}

impl<T: Copy + Default> Index<(usize, usize)> for Mat<T> {
    type Output = T;

    fn index(&self, (i, j): (usize, usize)) -> &T {
        &self.row(i)[j]
    }
}

impl<T: Copy + Default> IndexMut<(usize, usize)> for Mat<T> {
    fn index_mut(&mut self, (i, j): (usize, usize)) -> &mut T {
        &mut self.row_mut(i)[j]
    }
}

/// Rows and columns that are printed.
const CORNER: usize = 4;

impl<T: fmt::Debug> fmt::Debug for MatRef<'_, T> {
    /// The shape and the first rows and columns: `2 x 9 [[1.0, 2.0, 3.0, 4.0, ..], [5.0, 6.0, 7.0, 8.0, ..]]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} [", self.rows, self.cols)?;
        for (i, row) in self.iter_rows().take(CORNER).enumerate() {
            f.write_str(if i > 0 { ", [" } else { "[" })?;
            for (j, x) in row.iter().take(CORNER).enumerate() {
                f.write_str(if j > 0 { ", " } else { "" })?;
                x.fmt(f)?;
            }
            f.write_str(if self.cols > CORNER { ", ..]" } else { "]" })?;
        }
        f.write_str(if self.rows > CORNER { ", ..]" } else { "]" })
    }
}

impl<T: fmt::Debug> fmt::Debug for MatMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MatRef { data: &self.data, rows: self.rows, cols: self.cols, stride: self.stride }.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_rows_and_words() {
        let data: Vec<f64> = (0..18).map(f64::from).collect();
        let mut a = Mat::from_vec(2, 9, data.clone()).unwrap();
        assert_eq!((a[(1, 8)], a.get(0, 3), a.get(0, 9), a.get(2, 0)), (17.0, Some(&3.0), None, None));
        assert_eq!(format!("{a:?}"), "2 x 9 [[0.0, 1.0, 2.0, 3.0, ..], [9.0, 10.0, 11.0, 12.0, ..]]");
        assert_eq!(a.iter_rows().flatten().copied().collect::<Vec<_>>(), data);
        a[(0, 1)] = 40.0;
        a.row_mut(1)[0] = 50.0;
        a.as_mut()[(1, 1)] += 1.0;
        a.iter_rows_mut().for_each(|row| row[8] = 0.0);
        assert_eq!((a.row(0)[..2].to_vec(), a.row(1)[..2].to_vec()), (vec![0.0, 40.0], vec![50.0, 11.0]));
        assert_eq!((a[(0, 8)], a.as_ref()[(1, 8)]), (0.0, 0.0));
        let tall = Mat::from_fn(5, 1, |i, _| i as f32).unwrap();
        assert_eq!(format!("{:.1?}", tall.as_ref()), "5 x 1 [[0.0], [1.0], [2.0], [3.0], ..]");
        for (rows, cols) in [(0, 3), (3, 0), (0, 0)] {
            let mut none = Mat::<f32>::from_vec(rows, cols, vec![]).unwrap();
            assert_eq!(none.iter_rows().len(), rows);
            assert_eq!(none.iter_rows_mut().count(), rows);
        }
        assert_eq!(Mat::from_vec(2, 2, vec![1.0f32]).unwrap_err().to_string(), "data: 1 elements for 2 x 2");
        assert!(Mat::from_vec(usize::MAX, 2, vec![1.0f32]).is_err());
    }

    #[test]
    fn ranges_of_rows() {
        let data: Vec<f32> = (0..11).map(|i| i as f32).collect();
        // The last row ends with the slice, a stride after it there is none.
        let a = MatRef::new(&data, 3, 3, 4).unwrap();
        let first = |rows| a.row_range(rows).map(|part: MatRef<'_, f32>| (part.rows(), part.get(0, 0).copied()));
        assert_eq!(first(1..3).unwrap(), (2, Some(4.0)));
        assert_eq!(first(3..3).unwrap(), (0, None));
        assert_eq!(first(2..4).unwrap_err().to_string(), "rows: 2 to 4 of a matrix of 3");
    }
}
