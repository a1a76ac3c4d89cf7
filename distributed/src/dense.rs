//! [`DistMat`]: a rank's rows of a dense matrix.

use bytemuck::Pod;
use sparsimd::{Mat, MatMut, MatRef, Scalar};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::shared::Map;

/// An element type whose bytes are sent as they are: `f32` or `f64`.
pub trait Element: Scalar + Pod {}
impl Element for f32 {}
impl Element for f64 {}

/// The rows of a dense matrix that a rank has: those of its block.
#[derive(Debug)]
pub struct DistMat<T> {
    rows: usize,
    local: Local<T>,
}

/// Where they are.
#[derive(Debug)]
enum Local<T> {
    Own(Mat<T>),
    Common(Common<T>),
}

/// Rows of all ranks, one after the other, of which a rank reads others' only together with them.
#[derive(Debug)]
pub(crate) struct Common<T> {
    map: Map<T>,
    shape: [usize; 2],
    /// This rank's.
    rows: usize,
    stride: usize,
}

/// In memory of this rank alone.
impl<T: Element> Clone for DistMat<T> {
    fn clone(&self) -> Self {
        let own = match &self.local {
            Local::Own(own) => own.clone(),
            Local::Common(common) => common.local().to_mat().expect("memory for a copy"),
        };
        Self { rows: self.rows, local: Local::Own(own) }
    }
}

impl<T: Element> DistMat<T> {
    /// `rank`'s rows of a matrix of zeros of `blocks.len()` x `cols`.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    #[inline(never)]
    pub fn zeros(blocks: &Blocks, rank: usize, cols: usize) -> Result<Self> {
        Ok(Self { rows: blocks.len(), local: Local::Own(Mat::zeros(blocks.range(rank).len(), cols)?) })
    }

    /// `rank`'s rows of the matrix with element `f(i, j)` at row `i`, counted in the whole matrix, and column `j`.
    ///
    /// # Errors
    /// As [`Mat::zeros`].
    pub fn from_fn(blocks: &Blocks, rank: usize, cols: usize, mut f: impl FnMut(usize, usize) -> T) -> Result<Self> {
        let first = blocks.range(rank).start;
        let local = Mat::from_fn(blocks.range(rank).len(), cols, |i, j| f(first + i, j))?;
        Ok(Self { rows: blocks.len(), local: Local::Own(local) })
    }

    /// `local` as `rank`'s rows.
    ///
    /// # Errors
    /// [`sparsimd::Error::Shape`] when the block of `rank` has another number of rows.
    pub fn new(blocks: &Blocks, rank: usize, local: Mat<T>) -> Result<Self> {
        let rows = blocks.range(rank).len();
        if local.rows() != rows {
            let detail = format!("{} rows for a block of {rows}", local.rows());
            return Err(Error::shape("a distributed matrix", detail));
        }
        Ok(Self { rows: blocks.len(), local: Local::Own(local) })
    }

    /// The same rows in memory that all ranks have in common, where they are on one machine and can have it; else as they are. Operations read
    /// B and D there: no row travels, and the aware algorithm's own and other rows are one part. Their nonzeros are laid out once more for
    /// that.
    ///
    /// # Errors
    /// As [`Comm::exchange`] and [`Mat::zeros`].
    #[inline(never)]
    pub fn into_common(self, comm: &dyn Comm) -> Result<Self> {
        let Local::Own(own) = &self.local else { return Ok(self) };
        if !comm.one_machine() {
            return Ok(self);
        }
        // Rows begin where they do in a matrix of one rank.
        let stride = comm.agree(Mat::<T>::zeros(0, own.cols()).map_err(Error::from))?.as_ref().stride();
        let lens = comm.all_gather(&[own.rows() as u64], &vec![1; comm.size()])?;
        let first = lens[..comm.rank()].iter().sum::<u64>() as usize;
        let rows = lens.iter().sum::<u64>() as usize;
        let range = first * stride..(first + own.rows()) * stride;
        let Ok(map) = Map::new(comm, rows.saturating_mul(stride), range) else { return Ok(self) };
        let mut common = Common { map, shape: [rows, own.cols()], rows: own.rows(), stride };
        let mut to = common.local_mut();
        own.iter_rows().enumerate().for_each(|(i, from)| to.reborrow().into_row(i).copy_from_slice(from));
        Ok(Self { rows: self.rows, local: Local::Common(common) })
    }

    /// Rows of all ranks together.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.local().cols()
    }

    /// This rank's rows.
    pub fn local(&self) -> MatRef<'_, T> {
        match &self.local {
            Local::Own(own) => own.as_ref(),
            Local::Common(common) => common.local(),
        }
    }

    /// This rank's rows, to be changed.
    pub fn local_mut(&mut self) -> MatMut<'_, T> {
        match &mut self.local {
            Local::Own(own) => own.as_mut(),
            Local::Common(common) => common.local_mut(),
        }
    }

    /// This rank's rows, with the number of all.
    pub(crate) fn view(&self) -> Rows<'_, T> {
        Rows { all: self.rows, local: self.local(), common: self.common() }
    }

    /// All ranks' rows, where they are in memory in common.
    pub(crate) fn common(&self) -> Option<&Common<T>> {
        if let Local::Common(common) = &self.local { Some(common) } else { None }
    }

    /// Where this rank's rows begin, and elements from one to the next: for a caller who reads and writes them there.
    #[cfg(feature = "capi")]
    pub(crate) fn start(&mut self) -> (*mut T, usize) {
        match &mut self.local {
            Local::Own(own) => (own.as_mut().into_data().as_mut_ptr(), own.as_ref().stride()),
            Local::Common(common) => (common.map.own_start(), common.stride),
        }
    }

    /// Likewise, to be changed.
    pub(crate) fn view_mut(&mut self) -> RowsMut<'_, T> {
        RowsMut { all: self.rows, local: self.local_mut() }
    }
}

/// Why a view of [`Common`] is one.
const FITS: &str = "the memory was made for these rows";

impl<T: Element> Common<T> {
    fn local(&self) -> MatRef<'_, T> {
        MatRef::new(self.map.own(), self.rows, self.shape[1], self.stride).expect(FITS)
    }

    fn local_mut(&mut self) -> MatMut<'_, T> {
        MatMut::new(self.map.own_mut(), self.rows, self.shape[1], self.stride).expect(FITS)
    }

    /// Whether this rank's rows, of `cols` elements, begin at `data` and are `stride` elements apart.
    #[cfg(feature = "capi")]
    pub fn is_at(&self, data: *const T, cols: usize, stride: usize) -> bool {
        (self.map.own_start().cast_const(), self.shape[1], self.stride) == (data, cols, stride)
    }

    /// Whether all ranks have these of all of the same.
    fn same(comm: &dyn Comm, matrices: &[Option<&Self>]) -> Result<bool> {
        let number = |all: Option<u64>, a: &Option<&Self>| Some(all?.rotate_left(21) ^ a.as_ref()?.map.number());
        let here = matrices.iter().fold(Some(0), number);
        let least = comm.least(here.unwrap_or(0))?;
        Ok(comm.least(u64::from(here == Some(least)))? == 1)
    }

    /// What `read` makes of the whole of `matrices`, if every rank has these of all in common: all ranks call this.
    pub fn read<R>(
        comm: &dyn Comm,
        matrices: &[Option<&Self>],
        read: impl FnOnce(&[MatRef<'_, T>]) -> Result<R>,
    ) -> Result<Option<R>> {
        if !comm.one_machine() || !Self::same(comm, matrices)? {
            return Ok(None);
        }
        let matrices: Vec<&Self> = matrices.iter().flatten().copied().collect();
        let maps: Vec<&Map<T>> = matrices.iter().map(|a| &a.map).collect();
        let read = |all: &[&[T]]| {
            let data = matrices.iter().zip(all.iter().copied());
            let views = data.map(|(a, data)| MatRef::new(data, a.shape[0], a.shape[1], a.stride));
            read(&views.collect::<sparsimd::Result<Vec<_>>>()?)
        };
        Map::all(comm, &maps, read).map(Some)
    }
}

/// A rank's rows of a dense matrix of `all` rows, wherever they are.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, T> {
    pub all: usize,
    pub local: MatRef<'a, T>,
    /// Others' rows beside them.
    pub common: Option<&'a Common<T>>,
}

impl<T> Rows<'_, T> {
    pub fn cols(&self) -> usize {
        self.local.cols()
    }
}

/// Likewise, to be changed.
pub(crate) struct RowsMut<'a, T> {
    pub all: usize,
    pub local: MatMut<'a, T>,
}

impl<T> RowsMut<'_, T> {
    pub fn as_ref(&self) -> Rows<'_, T> {
        Rows { all: self.all, local: self.local.as_ref(), common: None }
    }
}

/// Rows of several matrices side by side without gaps: as they are sent, and as they are worked on once they have come.
#[derive(Debug)]
pub(crate) struct Packed<T> {
    /// One row, which begins at a cache line.
    room: Mat<T>,
    rows: usize,
    widths: Vec<usize>,
}

impl<T: Element> Packed<T> {
    /// Zeros, of matrices of these `widths`.
    pub fn zeros(rows: usize, widths: &[usize]) -> Result<Self> {
        let room = Mat::zeros(1, rows.saturating_mul(widths.iter().sum()))?;
        Ok(Self { room, rows, widths: widths.to_vec() })
    }

    /// Whether there is room for as much.
    pub fn holds(&self, rows: usize, widths: &[usize]) -> bool {
        rows.saturating_mul(widths.iter().sum()) <= self.room.cols()
    }

    /// Becomes as much, of any content; there is room for it.
    pub fn reshape(&mut self, rows: usize, widths: &[usize]) {
        debug_assert!(self.holds(rows, widths));
        (self.rows, self.widths) = (rows, widths.to_vec());
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.widths.iter().sum()
    }

    /// All of it.
    pub fn data(&self) -> &[T] {
        &self.room.row(0)[..self.rows * self.width()]
    }

    /// All of it, to be changed.
    pub fn data_mut(&mut self) -> &mut [T] {
        let len = self.rows * self.width();
        &mut self.room.row_mut(0)[..len]
    }

    /// Each of the matrices.
    pub fn views(&self) -> Result<Vec<MatRef<'_, T>>> {
        let mut first = 0;
        let view = |&cols: &usize| {
            // Without rows there is nothing to begin in.
            let data = self.data().get(first..).unwrap_or_default();
            first += cols;
            Ok(MatRef::new(data, self.rows, cols, self.width())?)
        };
        self.widths.iter().map(view).collect()
    }

    /// Adds the first rows of `matrices`, which have as many at least and are as wide.
    pub fn add_rows(&mut self, matrices: &[Mat<T>]) {
        let (width, mut first) = (self.width(), 0);
        for a in matrices {
            let to = self.data_mut().chunks_exact_mut(width.max(1));
            to.zip(a.iter_rows()).for_each(|(to, from)| add(&mut to[first..first + from.len()], from));
            first += a.cols();
        }
    }

    /// Becomes `rows` of `matrices`, which have as many and are as wide.
    pub fn fill(&mut self, matrices: &[MatRef<'_, T>], rows: impl Iterator<Item = usize>) {
        let mut rest = self.data_mut();
        for i in rows {
            for a in matrices {
                let (row, others) = std::mem::take(&mut rest).split_at_mut(a.cols());
                row.copy_from_slice(a.row(i));
                rest = others;
            }
        }
    }
}

/// `rows` of `matrix`, row after row without gaps: as they are sent.
pub(crate) fn pack<T: Element>(matrix: MatRef<'_, T>, rows: impl ExactSizeIterator<Item = usize>) -> Vec<T> {
    let mut packed = Vec::with_capacity(rows.len() * matrix.cols());
    rows.for_each(|i| packed.extend_from_slice(matrix.row(i)));
    packed
}

/// Rows as [`Packed`] has them, into those `rows` of `matrices`: `put(to, from)` for each row of each.
pub(crate) fn unpack<T: Element>(
    packed: &[T],
    rows: impl Iterator<Item = usize>,
    matrices: &mut [MatMut<'_, T>],
    put: impl Fn(&mut [T], &[T]),
) {
    let mut rest = packed;
    for i in rows {
        for a in &mut *matrices {
            let (row, others) = rest.split_at(a.cols());
            put(a.reborrow().into_row(i), row);
            rest = others;
        }
    }
}

/// `len` zeros of `what`, or an error where there is no memory for them.
pub(crate) fn zeros<E: Pod>(what: &str, len: usize) -> Result<Vec<E>> {
    let mut zeros = reserve(what, len)?;
    zeros.resize(len, E::zeroed());
    Ok(zeros)
}

/// `numbers` of `what` in an array, likewise.
#[cfg(feature = "capi")]
pub(crate) fn collect<E>(what: &str, numbers: impl ExactSizeIterator<Item = E>) -> Result<Vec<E>> {
    let mut array = reserve(what, numbers.len())?;
    array.extend(numbers);
    Ok(array)
}

/// An empty array with room for `len` of `what`, likewise.
fn reserve<E>(what: &str, len: usize) -> Result<Vec<E>> {
    let mut array = Vec::new();
    let bytes = len.saturating_mul(size_of::<E>());
    let refused = |_| Error::from(sparsimd::Error::Memory { what: what.to_owned(), bytes });
    array.try_reserve_exact(len).map_err(refused)?;
    Ok(array)
}

/// `to += from`.
pub(crate) fn add<T: Element>(to: &mut [T], from: &[T]) {
    to.iter_mut().zip(from).for_each(|(x, &y)| *x += y);
}
