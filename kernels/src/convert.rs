//! Rows of dense operands that store less than is computed with, widened to be worked on and narrowed to be stored.
//!
//! SpMM by panels packs the rows of B anyway, and sums up rows of C that stay in L2: there both are f32 whatever the operands
//! store, and only these two loops know the difference.

use pulp::{Simd, WithSimd};

use crate::arch::dispatch_stored;
use crate::stream::stream_fence;
use crate::{Arch, LINE, Number, Stored};

/// Rows to widen.
#[derive(Clone, Copy, Debug)]
pub struct WidenRows<D: Stored> {
    /// The first row.
    pub from: *const D,
    /// Its row stride.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub n: usize,
    /// What they are multiplied by.
    pub factor: D::Scalar,
    /// Where the first row goes.
    pub to: *mut D::Scalar,
    /// Its row stride: a multiple of the registers' lanes. A row's last register ends in zeros.
    pub to_stride: usize,
}

/// to_r = factor from_r for each row r.
///
/// # Safety
/// `from` is valid for reads of the rows, `to` for writes of as many rows of whole registers, and no one else uses them.
pub unsafe fn widen_rows<D: Stored>(arch: Arch, task: WidenRows<D>) {
    dispatch_stored!(arch, task, WidenRows);
}

impl<D: Stored> WithSimd for WidenRows<D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = D::Scalar::lanes::<S>();
        let factor = D::Scalar::splat(simd, self.factor);
        let whole = self.n / lanes * lanes;
        let mask = D::Scalar::first_lanes(simd, self.n - whole);
        for r in 0..self.rows {
            // SAFETY: the promise of `widen_rows`; registers of the row begin below n.
            unsafe {
                let (from, to) = (self.from.add(r * self.stride), self.to.add(r * self.to_stride));
                for at in (0..whole).step_by(lanes) {
                    let x = D::Scalar::vmul(simd, factor, D::read(simd, from.add(at)));
                    D::Scalar::store(simd, to.add(at), x);
                }
                if whole < self.n {
                    let x = D::Scalar::vmul(simd, factor, D::read_masked(simd, mask, from.add(whole)));
                    D::Scalar::store(simd, to.add(whole), x);
                }
            }
        }
    }
}

/// Rows to narrow.
#[derive(Clone, Copy, Debug)]
pub struct NarrowRows<D: Stored> {
    /// The first row.
    pub from: *const D::Scalar,
    /// Its row stride.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row.
    pub n: usize,
    /// Where the first row goes.
    pub to: *mut D,
    /// Its row stride.
    pub to_stride: usize,
    /// Whether rows bypass the caches where they are whole cache lines.
    pub stream: bool,
}

/// to_r = from_r for each row r, rounded.
///
/// # Safety
/// `from` is valid for reads of the rows, `to` for writes of as many, and no one else uses them.
pub unsafe fn narrow_rows<D: Stored>(arch: Arch, task: NarrowRows<D>) {
    dispatch_stored!(arch, task, NarrowRows);
}

impl<D: Stored> WithSimd for NarrowRows<D> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for r in 0..self.rows {
            let (from, to) = (self.from.wrapping_add(r * self.stride), self.to.wrapping_add(r * self.to_stride));
            // SAFETY: the promise of `narrow_rows`.
            unsafe { narrow_row(simd, from, self.n, to, self.stream) }
        }
        if self.stream {
            stream_fence();
        }
    }
}

/// to = from, `n` elements, rounded; past the caches if they are to `stream` and are whole cache lines.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of n elements. [`stream_fence`] follows before another thread reads what was to
/// stream.
#[inline(always)]
pub(crate) unsafe fn narrow_row<S: Simd, D: Stored>(
    simd: S,
    from: *const D::Scalar,
    n: usize,
    to: *mut D,
    stream: bool,
) {
    let lanes = D::Scalar::lanes::<S>();
    let whole = n / lanes * lanes;
    let stream = stream && to.addr().is_multiple_of(LINE) && (n * size_of::<D>()).is_multiple_of(LINE);
    // SAFETY: the caller's promise; registers begin below n.
    unsafe {
        for at in (0..whole).step_by(lanes) {
            let x = D::Scalar::load(simd, from.add(at));
            if stream { D::write_streaming(simd, to.add(at), x) } else { D::write(simd, to.add(at), x) }
        }
        if whole < n {
            let mask = D::Scalar::first_lanes(simd, n - whole);
            let x = D::Scalar::load_masked(simd, mask, from.add(whole));
            D::write_masked(simd, mask, to.add(whole), x);
        }
    }
}
