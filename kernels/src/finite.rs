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
        let nnz = if task.weights.is_null() { 0 } else { pairs.chain(segments).sum() };
        Self { weights: (task.weights, nnz), b: task.b, ldb: task.ldb, width: task.width, n: task.n }
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
        // Sums of products with 0: 0 unless there is one that is infinite or NaN, then NaN.
        let (zero, mut sums) = (T::splat(simd, T::ZERO), [T::splat(simd, T::ZERO); 4]);
        let lanes = T::lanes::<S>();
        let mut add = |p: *const T, len: usize| {
            let mut start = 0;
            // SAFETY: the promise of `are_finite`: the first `len` elements are valid for reads.
            unsafe {
                while start + 4 * lanes <= len {
                    for k in 0..4 {
                        let x = T::load(simd, p.wrapping_add(start + k * lanes));
                        sums[k] = T::vmul_add(simd, x, zero, sums[k]);
                    }
                    start += 4 * lanes;
                }
                while start < len {
                    let x = T::load_masked(simd, T::first_lanes(simd, len - start), p.wrapping_add(start));
                    sums[0] = T::vmul_add(simd, x, zero, sums[0]);
                    start += lanes;
                }
            }
        };
        add(self.weights.0, self.weights.1);
        for row in 0..self.width {
            add(self.b.wrapping_add(row * self.ldb), self.n);
        }
        let sum = T::vadd(simd, T::vadd(simd, sums[0], sums[1]), T::vadd(simd, sums[2], sums[3]));
        let lane = (&raw const sum).cast::<T>();
        // SAFETY: a register is `lanes` elements.
        (0..lanes).all(|k| unsafe { *lane.add(k) == T::ZERO })
    }
}
