//! Factors and output as the kernels want them: rows of whole registers, 64-byte aligned, one stride for all.
//!
//! [`crate::Mat`]s whose rank is a whole number of cache lines are used where they lie; anything else is copied. The
//! copies cost `dims * R`, the kernels read `(order - 1) * nnz * R` and lose 20-34 % on rows that are not aligned.

use std::sync::Mutex;

use sparsimd_kernels::{Scalar, Stored};

use super::part::Pointers;
use crate::dense::{ALIGN, Aligned, MatMut, MatRef, zeroed};
use crate::error::{Error, Result};
use crate::parallel;

/// Buffers that are kept from one call to the next: fresh pages would cost more than what is computed in them.
#[derive(Debug, Default)]
pub(super) struct Buffers<T>(Mutex<Vec<Aligned<T>>>);

impl<T: Scalar> Buffers<T> {
    /// A buffer of `len` elements with any contents.
    pub(super) fn take(&self, len: usize) -> Aligned<T> {
        let mut kept = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // The smallest one that is large enough; else a new one in place of the largest.
        let fit = (0..kept.len()).filter(|&b| kept[b].len() >= len).min_by_key(|&b| kept[b].len());
        let found = fit.or_else(|| (0..kept.len()).max_by_key(|&b| kept[b].len()));
        let buffer = found.map(|b| kept.swap_remove(b)).filter(|buffer| buffer.len() >= len);
        drop(kept);
        buffer.unwrap_or_else(|| zeroed(Aligned::with_capacity(ALIGN, len), len))
    }

    /// Gives a buffer back.
    pub(super) fn give(&self, buffer: Aligned<T>) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(buffer);
    }
}

/// Elements from row to row in the kernels: whole cache lines, which are whole registers of every instruction set.
pub(super) fn kernel_stride<T>(rank: usize) -> usize {
    rank.next_multiple_of(ALIGN / size_of::<T>())
}

/// Whether `p` is aligned as the kernels like it.
fn aligned<T>(p: *const T) -> bool {
    (p as usize).is_multiple_of(ALIGN)
}

/// Rows copied by one task.
const ROWS_PER_TASK: usize = 256;

/// A factor that the kernels can read.
pub(super) enum Factor<'a, D: Stored> {
    Borrowed(MatRef<'a, D>),
    /// Rows of D, in a buffer of what they are computed with.
    Copied(Aligned<D::Scalar>),
}

impl<'a, D: Stored> Factor<'a, D> {
    /// `factor` itself, or a copy with padded rows.
    pub(super) fn new(factor: MatRef<'a, D>, buffers: &Buffers<D::Scalar>) -> Self {
        let stride = kernel_stride::<D::Scalar>(factor.cols());
        let whole = factor.data().len() >= factor.rows() * stride;
        if factor.stride() == stride && whole && aligned(factor.data().as_ptr()) {
            return Self::Borrowed(factor);
        }
        let len = factor.rows() * stride;
        let mut copy = buffers.take((len * size_of::<D>()).div_ceil(size_of::<D::Scalar>()));
        // SAFETY: the buffer has room for so many; any bits are an element, whose alignment is no larger than that of what it is
        // computed with.
        let rows = unsafe { std::slice::from_raw_parts_mut(copy.as_mut_ptr().cast::<D>(), len) };
        copy_rows(factor, stride, rows, |data, row| data.copy_from_slice(row));
        Self::Copied(copy)
    }

    /// `factor` as it is computed with: as [`Factor::new`] has it, unless it is narrow.
    pub(super) fn computed<N: Stored<Scalar = D>>(factor: MatRef<'a, N>, buffers: &Buffers<D>) -> Self
    where
        D: Scalar,
    {
        if !N::NARROW {
            // SAFETY: what is not narrow is computed with as it is, so that the types are the same.
            return Self::new(unsafe { std::mem::transmute_copy::<MatRef<'a, N>, MatRef<'a, D>>(&factor) }, buffers);
        }
        let stride = kernel_stride::<D>(factor.cols());
        let len = factor.rows() * stride;
        let mut copy = buffers.take(len);
        copy_rows(factor, stride, &mut copy[..len], |data, row| {
            data.iter_mut().zip(row).for_each(|(wide, narrow)| *wide = narrow.widen());
        });
        Self::Copied(copy)
    }

    /// Row 0.
    pub(super) fn as_ptr(&self) -> *const D {
        match self {
            Self::Borrowed(factor) => factor.data().as_ptr(),
            Self::Copied(copy) => copy.as_ptr().cast(),
        }
    }

    pub(super) fn release(self, buffers: &Buffers<D::Scalar>) {
        if let Self::Copied(copy) = self {
            buffers.give(copy);
        }
    }
}

/// The factors of all modes but `mode`, as `pad` makes them readable.
pub(super) fn padded<'a, 'b, N: Stored, D: Stored>(
    factors: &[MatRef<'a, N>],
    mode: usize,
    pad: impl Fn(MatRef<'a, N>) -> Factor<'b, D>,
) -> Vec<Option<Factor<'b, D>>> {
    factors.iter().enumerate().map(|(m, &factor)| (m != mode).then(|| pad(factor))).collect()
}

/// Row 0 of each factor that there is.
pub(super) fn pointers<D: Stored>(factors: &[Option<Factor<'_, D>>]) -> Pointers<D> {
    Pointers(factors.iter().map(|f| f.as_ref().map_or(std::ptr::null(), Factor::as_ptr)).collect())
}

/// Gives the buffers of `factors` back.
pub(super) fn release<D: Stored>(factors: Vec<Option<Factor<'_, D>>>, buffers: &Buffers<D::Scalar>) {
    factors.into_iter().flatten().for_each(|factor| factor.release(buffers));
}

/// Rows of `factor`, as `copy` writes them to rows of `to`, `stride` apart and filled up with zeros.
fn copy_rows<D: Stored, E: Stored>(
    factor: MatRef<'_, D>,
    stride: usize,
    to: &mut [E],
    copy: impl Fn(&mut [E], &[D]) + Sync,
) {
    parallel::chunks_mut(to, ROWS_PER_TASK * stride, |k, rows| {
        for (i, row) in (k * ROWS_PER_TASK..).zip(rows.chunks_mut(stride)) {
            let (data, padding) = row.split_at_mut(factor.cols());
            copy(data, factor.row(i));
            padding.fill(E::default());
        }
    });
}

/// An output that the kernels can write.
pub(super) struct Output<'a, T> {
    out: MatMut<'a, T>,
    /// Its rows until they are finished, where it cannot be written itself.
    copy: Option<Aligned<T>>,
}

impl<'a, T: Scalar> Output<'a, T> {
    /// `out` itself, or a buffer in its place.
    pub(super) fn new(out: MatMut<'a, T>, buffers: &Buffers<T>) -> Self {
        let stride = kernel_stride::<T>(out.cols());
        // Padding of the caller's may hold something of his: only rows without any are written in place.
        let whole = out.stride() == stride && out.cols() == stride;
        let in_place = whole && aligned(out.as_ref().data().as_ptr());
        let copy = (!in_place).then(|| buffers.take(out.rows() * stride));
        Self { out, copy }
    }

    /// Its rows, of the kernels' stride, with any contents.
    pub(super) fn rows(&mut self) -> &mut [T] {
        let len = self.out.rows() * kernel_stride::<T>(self.out.cols());
        match &mut self.copy {
            Some(copy) => &mut copy[..len],
            None => &mut self.out.reborrow().into_data()[..len],
        }
    }

    /// Has the result in the matrix.
    pub(super) fn finish(self, buffers: &Buffers<T>) {
        let Some(copy) = self.copy else { return };
        let (rows, cols, given) = (self.out.rows(), self.out.cols(), self.out.stride());
        let stride = kernel_stride::<T>(cols);
        let data = self.out.into_data();
        parallel::chunks_mut(data, ROWS_PER_TASK * given, |k, to| {
            let from = copy[..rows * stride].chunks(stride).skip(k * ROWS_PER_TASK);
            to.chunks_mut(given).zip(from).for_each(|(to, from)| to[..cols].copy_from_slice(&from[..cols]));
        });
        buffers.give(copy);
    }
}

/// Calls `compute` with rows of the kernels' stride, then has the result in `out`.
pub(super) fn with_output<T: Scalar>(out: MatMut<'_, T>, buffers: &Buffers<T>, compute: impl FnOnce(&mut [T])) {
    let mut out = Output::new(out, buffers);
    compute(out.rows());
    out.finish(buffers);
}

/// Whether the operands of `op` have the shapes that a tensor of `dims` needs.
pub(super) fn check_shapes<D, T>(
    dims: &[usize],
    mode: usize,
    factors: &[MatRef<'_, D>],
    out: &MatMut<'_, T>,
) -> Result<()> {
    let fail = |detail: String| Err(Error::shape("mttkrp", detail));
    if mode >= dims.len() {
        let detail = format!("{mode} of a tensor of order {}, whose modes are 0 to {}", dims.len(), dims.len() - 1);
        return Err(Error::argument("mode", detail));
    }
    if factors.len() != dims.len() {
        return fail(format!("{} factors for a tensor of order {}", factors.len(), dims.len()));
    }
    let rank = out.cols();
    if rank == 0 {
        return Err(Error::argument("rank", "0 columns; at least 1"));
    }
    if out.rows() != dims[mode] {
        return fail(format!("the output has {} rows for mode {mode} of length {}", out.rows(), dims[mode]));
    }
    for (m, (factor, &dim)) in factors.iter().zip(dims).enumerate() {
        if m != mode && (factor.rows(), factor.cols()) != (dim, rank) {
            return fail(format!(
                "the factor of mode {m} is {} x {}, not {dim} x {rank}",
                factor.rows(),
                factor.cols()
            ));
        }
    }
    Ok(())
}
