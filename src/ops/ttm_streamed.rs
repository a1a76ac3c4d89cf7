//! TTM of a tensor in a file that may be larger than memory, in one pass of reading. The product, a row for each fiber, is often
//! larger than the tensor: it is handed out in pieces as the file is read.
//!
//! ```text
//! for each chunk of the nonzeros, in the order of the file:      the next one is read meanwhile
//!     its fibers of mode n: runs of nonzeros that agree in all other modes
//!     y[f, :] = sum over the run of x U[i_n, :]
//!     the last fiber may go on in the next chunk and waits for it; the others are done
//! ```
//!
//! That needs a file whose nonzeros are sorted with mode n last, so that every fiber is one run.

use sparsimd_kernels::Scalar;

use super::operand::check_columns;
use super::ttm::TtmAlgorithm;
use crate::cpu::Cpu;
use crate::dense::{Mat, MatMut, MatRef, check_shape, padded_stride};
use crate::error::{Error, Result};
use crate::formats::{CooTensor, Fibers, SemiCoo, check_mode};
use crate::io::TnsbStream;
use crate::parallel;

/// Fewest nonzeros of a chunk: with fewer, starting the threads would take as long as their work.
const FEWEST: usize = 1 << 16;

/// A fiber that the next chunk may go on with: its coordinates in the other modes, and its row so far.
struct Open<T> {
    place: Vec<u32>,
    row: Vec<T>,
}

/// What a pass of TTM shares.
struct Pass<'a, T> {
    cpu: &'a Cpu,
    u: MatRef<'a, T>,
    mode: usize,
    /// The other modes, ascending, and the lengths of the product.
    others: Vec<usize>,
    dims: Vec<usize>,
}

impl Cpu {
    /// Y = X x_n U of the tensor in a `.tnsb` file whose nonzeros are sorted with mode n last ([`CooTensor::sort`]), in one pass over it:
    /// `consume` is given Y in pieces, in the order of the file, as semi-sparse tensors with mode n dense and no place twice in all of them.
    ///
    /// `u` is I_n x R. Besides it, and what `consume` keeps, `memory` bytes are used at most: two chunks of nonzeros, and a piece. The same
    /// bits for the same memory.
    ///
    /// # Errors
    /// [`Error::Shape`] when `u` is not I_n x R; [`Error::Argument`] for a mode that the tensor does not have, and when `memory` is too
    /// little, which says what would do; [`Error::Structure`] for a tensor of order 1, and, once it is found, for nonzeros in another order;
    /// as [`TnsbStream::pass`], and then the pieces are of no use; what `consume` returns.
    pub fn ttm_streamed<T: Scalar>(
        &self,
        x: &TnsbStream,
        mode: usize,
        u: MatRef<'_, T>,
        memory: usize,
        mut consume: impl FnMut(SemiCoo<T>) -> Result<()>,
    ) -> Result<()> {
        self.ttm_streamed_by_reference(x, mode, u, memory, &mut consume)
    }

    /// [`Cpu::ttm_streamed`] with the consumer by reference.
    #[inline(never)]
    pub(crate) fn ttm_streamed_by_reference<T: Scalar>(
        &self,
        x: &TnsbStream,
        mode: usize,
        u: MatRef<'_, T>,
        memory: usize,
        consume: &mut dyn FnMut(SemiCoo<T>) -> Result<()>,
    ) -> Result<()> {
        let mut dims = x.dims().to_vec();
        check_mode(mode, dims.len())?;
        if dims.len() < 2 {
            return Err(Error::structure("tensor", "order 1; a tensor that is streamed has two modes or more"));
        }
        check_columns("ttm_streamed", u.cols())?;
        check_shape("ttm_streamed", "U", u.shape(), (dims[mode], u.cols()))?;
        dims[mode] = u.cols();
        let others: Vec<usize> = (0..dims.len()).filter(|&other| other != mode).collect();
        // Every nonzero may be a fiber: its bounds, found and kept, its coordinates, its row.
        let row = padded_stride::<T>(u.cols()) * size_of::<T>();
        let entry = x.entry_bytes::<T>() + 2 * size_of::<usize>() + others.len() * size_of::<u32>() + row;
        let fewest = FEWEST.min(x.nnz().max(1));
        if memory / entry < fewest {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let detail = format!(
                "{} MiB; {fewest} nonzeros and their product of {} columns take {}",
                memory >> 20,
                u.cols(),
                mib(fewest * entry)
            );
            return Err(Error::argument("memory", detail));
        }
        let pass = Pass { cpu: self, u, mode, others, dims };
        let mut open: Option<Open<T>> = None;
        x.pass(memory / entry, |first, chunk| {
            if let Some(piece) = pass.piece(first, &chunk, &mut open)? {
                consume(piece)?;
            }
            Ok(chunk)
        })?;
        open.map_or(Ok(()), |last| consume(pass.last(last)?))
    }
}

impl<T: Scalar> Pass<'_, T> {
    /// The fibers that end in `chunk`, whose first nonzero is the file's number `first`; `open` is the one that was cut, before and after.
    fn piece(&self, first: usize, chunk: &CooTensor<T>, open: &mut Option<Open<T>>) -> Result<Option<SemiCoo<T>>> {
        let coords = |level: usize| chunk.coords(self.others[level]);
        let place = |p: usize| (0..self.others.len()).map(move |level| coords(level)[p]);
        let opens = |p: usize| p == 0 || !place(p - 1).eq(place(p));
        let mut ptr = self.cpu.install(|| parallel::filter(chunk.nnz(), opens));
        let unsorted = |p: usize| {
            let detail = format!("nonzero {} is not in order with mode {} last", first + p, self.mode);
            Err(Error::structure("tensor", detail))
        };
        let in_order = |f: usize| f == 0 || place(ptr[f] - 1).lt(place(ptr[f]));
        if let Some(f) = self.cpu.install(|| parallel::find_first(ptr.len(), |f| !in_order(f))) {
            return unsorted(ptr[f]);
        }
        let Some(last) = ptr.len().checked_sub(1) else { return Ok(None) };
        // The fiber that was cut goes on, or was done, and is a row of its own.
        let mut done = 0;
        if let Some(open) = open {
            match place(0).cmp(open.place.iter().copied()) {
                std::cmp::Ordering::Less => return unsorted(0),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => done = 1,
            }
        }
        let own: Vec<u32> = place(ptr[last]).collect();
        let mut of_piece: Vec<Vec<u32>> = Vec::with_capacity(self.others.len());
        for level in 0..self.others.len() {
            let before = open.iter().take(done).map(|open| open.place[level]);
            of_piece.push(before.chain(ptr[..last].iter().map(|&p| coords(level)[p])).collect());
        }
        ptr.push(chunk.nnz());
        let mut y = Mat::zeros(done + last, self.u.cols())?;
        let stride = y.as_ref().stride();
        if last > 0 {
            let rows = &mut y.as_mut().into_data()[done * stride..];
            self.multiply(chunk, &ptr[..=last], MatMut::new(rows, last, self.u.cols(), stride)?)?;
        }
        let mut row = Mat::zeros(1, self.u.cols())?;
        self.multiply(chunk, &ptr[last..], row.as_mut())?;
        if let Some(open) = open.take() {
            let goes_on = if done == 1 || last > 0 { y.row_mut(0) } else { row.row_mut(0) };
            goes_on.iter_mut().zip(open.row).for_each(|(y, x)| *y += x);
        }
        *open = Some(Open { place: own, row: row.row(0).to_vec() });
        Ok((y.rows() > 0).then(|| SemiCoo::from_checked(self.dims.clone(), vec![self.mode], of_piece, y)))
    }

    /// The rows of the fibers with these bounds.
    fn multiply(&self, chunk: &CooTensor<T>, ptr: &[usize], y: MatMut<'_, T>) -> Result<()> {
        let fibers = Fibers { dim: self.u.rows(), ptr, leaf: chunk.coords(self.mode), values: chunk.values() };
        self.cpu.ttm_fibers_into(fibers, self.u, TtmAlgorithm::Auto, y)
    }

    /// The fiber that ended with the file.
    fn last(&self, Open { place, row }: Open<T>) -> Result<SemiCoo<T>> {
        let y = Mat::from_fn(1, self.u.cols(), |_, r| row[r])?;
        let coords = place.into_iter().map(|i| vec![i]).collect();
        Ok(SemiCoo::from_checked(self.dims.clone(), vec![self.mode], coords, y))
    }
}
