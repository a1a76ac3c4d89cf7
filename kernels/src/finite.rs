//! Whether the operands of a panel are finite numbers: neither infinite nor NaN.

use pulp::{Simd, WithSimd};

use crate::reduce::ReducePanel;
use crate::{Arch, Number};

/// The weights of a block and the rows of B in its panel.
#[derive(Clone, Copy)]
pub(crate) struct Operands<T> {
    weights: (*const T, usize),
    b: *const T,
    ldb: usize,
    width: usize,
    n: usize,
}

impl<T: Number> Operands<T> {
    /// Those of `task`.
    pub fn of(task: &ReducePanel<'_, T>) -> Self {
        let pairs = task.block.pairs.iter().map(|pair| 2 * pair.nnz() as usize);
        let segments = task.block.segments.iter().map(|segment| segment.nnz as usize);
        Self {
            weights: (task.weights, pairs.chain(segments).sum()),
            b: task.b,
            ldb: task.ldb,
            width: task.width,
            n: task.n,
        }
    }

    /// Whether all are finite: one multiply-add for each vector.
    ///
    /// # Safety
    /// They are valid for reads.
    pub unsafe fn are_finite(self, arch: Arch) -> bool {
        arch.dispatch(self)
    }
}

impl<T: Number> WithSimd for Operands<T> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let mut sums = [T::splat(simd, T::ZERO); 4];
        // SAFETY: the promise of `are_finite`.
        unsafe {
            add::<S, T>(simd, self.weights.0, self.weights.1, &mut sums);
            for row in 0..self.width {
                add::<S, T>(simd, self.b.wrapping_add(row * self.ldb), self.n, &mut sums);
            }
        }
        let sum = T::vadd(simd, T::vadd(simd, sums[0], sums[1]), T::vadd(simd, sums[2], sums[3]));
        let lane = (&raw const sum).cast::<T>();
        // SAFETY: a register is `lanes` elements.
        (0..T::lanes::<S>()).all(|k| unsafe { *lane.add(k) == T::ZERO })
    }
}

/// Adds the products of `len` elements with 0: the sums stay 0 unless there is one that is infinite or NaN, then one becomes NaN.
///
/// # Safety
/// The elements at `p` are valid for reads.
#[inline(always)]
unsafe fn add<S: Simd, T: Number>(simd: S, p: *const T, len: usize, sums: &mut [T::Vector<S>; 4]) {
    let (zero, lanes) = (T::splat(simd, T::ZERO), T::lanes::<S>());
    let mut start = 0;
    // SAFETY: the caller's promise; nothing at or beyond `len` is read.
    unsafe {
        while start + 4 * lanes <= len {
            for k in 0..4 {
                sums[k] = T::vmul_add(simd, T::load(simd, p.add(start + k * lanes)), zero, sums[k]);
            }
            start += 4 * lanes;
        }
        while start < len {
            let x = T::load_masked(simd, T::first_lanes(simd, len - start), p.add(start));
            sums[0] = T::vmul_add(simd, x, zero, sums[0]);
            start += lanes;
        }
    }
}
