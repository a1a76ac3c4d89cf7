//! Balanced CSF (Nisa and others): CSF whose long fibers and heavy slices are split, so that no piece of work is large.
//!
//! A fiber with more than `longest_fiber` nonzeros becomes several nodes with the same coordinate; a slice with more
//! than `heaviest` nonzeros becomes several *sub-slices*, which are runs of its fibers. Work is handed out by
//! sub-slices: what two of them add to the same row is summed in a fixed order.

use std::sync::Arc;

use sparsimd_kernels::Scalar;

use super::coo_tensor::CooTensor;
use super::csf::Csf;
use crate::error::{Error, Result};
use crate::{memory, parallel};

/// Slices of one task.
const SLICES: usize = 1 << 10;

/// How large the pieces of a B-CSF tensor are, in nonzeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BcsfLimits {
    /// The longest fiber: a longer one is split.
    pub longest_fiber: usize,
    /// The heaviest sub-slice of more than one fiber.
    pub heaviest: usize,
}

impl Default for BcsfLimits {
    /// Fibers of 128: a split fiber multiplies and adds its row once more, less than a hundredth of the work of 128 nonzeros
    /// (and the authors' number). Sub-slices of 4096: tasks are cut between them, so that one has at most 4096 nonzeros, some
    /// microseconds, more than its share.
    fn default() -> Self {
        Self { longest_fiber: 128, heaviest: 4096 }
    }
}

/// A CSF tensor of bounded fibers and its sub-slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Bcsf<T> {
    csf: Csf<T>,
    limits: BcsfLimits,
    /// The first fiber of each sub-slice, and the number of fibers.
    sub_slices: Vec<usize>,
}

impl<T: Scalar> Bcsf<T> {
    /// The tensor `coo` with the levels in `mode_order`, in pieces within `limits` (sub-slices of one fiber may be heavier).
    /// Runs in the rayon pool of the caller.
    ///
    /// # Errors
    /// As [`Csf::from_coo`]; [`Error::Argument`] for an order below 2 (no fibers) and for limits of 0.
    #[inline(never)]
    pub fn from_coo(coo: &CooTensor<T>, mode_order: &[usize], limits: BcsfLimits) -> Result<Self> {
        let BcsfLimits { longest_fiber, heaviest } = limits;
        if coo.order() < 2 {
            return Err(Error::argument("B-CSF", "a tensor of order 1 has no fibers; the order is at least 2"));
        }
        for (name, limit) in [("longest_fiber", longest_fiber), ("heaviest", heaviest)] {
            if limit == 0 {
                return Err(Error::argument(name, "0 nonzeros; at least 1"));
            }
        }
        let csf = Csf::from_coo(coo, mode_order)?;
        let copies = 2 * csf.pattern().index_bytes() + 4 * size_of::<usize>() * coo.nnz() + size_of_val(csf.values());
        memory::ensure("B-CSF", copies)?;
        let split = csf.pattern().split_fibers(longest_fiber);
        let pattern = &split;
        let level = pattern.order() - 2;
        let of_slice = |slice: usize| {
            // The fibers below the slice: the slice itself for order 2.
            let mut fibers = slice..slice + 1;
            for l in 0..level {
                fibers = pattern.ptr(l)[fibers.start]..pattern.ptr(l)[fibers.end];
            }
            let mut start = None;
            fibers.filter(move |&fiber| {
                let end = pattern.ptr(level)[fiber + 1];
                let opens = start.is_none_or(|start| end - start > heaviest);
                if opens {
                    start = Some(pattern.ptr(level)[fiber]);
                }
                opens
            })
        };
        let mut sub_slices = parallel::map_tasks(pattern.nodes(0).div_ceil(SLICES), |t| {
            (t * SLICES..pattern.nodes(0).min((t + 1) * SLICES)).flat_map(of_slice).collect::<Vec<_>>()
        })
        .concat();
        sub_slices.push(pattern.nodes(level));
        let csf = Csf::new(Arc::new(split), csf.values().to_vec())?;
        Ok(Self { csf, limits, sub_slices })
    }

    /// The tensor in CSF, with neighbouring fibers of the same coordinate where one was split.
    pub fn csf(&self) -> &Csf<T> {
        &self.csf
    }

    /// How large its pieces are at most.
    pub fn limits(&self) -> BcsfLimits {
        self.limits
    }

    /// The slices by their number of nonzeros: bin 0 has those of one, bin b those of 2^(b - 1) + 1 to 2^b. The authors give a slice of a heavier
    /// bin to more threads of a device; here sub-slices do that, and the bins tell how uneven the slices are.
    pub fn slice_bins(&self) -> Vec<usize> {
        let mut bins = Vec::new();
        for slice in self.csf.pattern().slice_ptr().windows(2) {
            let bin = (slice[1] - slice[0]).next_power_of_two().trailing_zeros() as usize;
            bins.resize(bins.len().max(bin + 1), 0);
            bins[bin] += 1;
        }
        bins
    }

    /// The first fiber of each sub-slice, and the number of fibers.
    pub fn sub_slices(&self) -> &[usize] {
        &self.sub_slices
    }

    /// Bytes of coordinates and pointers, those of the sub-slices included.
    pub fn index_bytes(&self) -> usize {
        self.csf.pattern().index_bytes() + self.sub_slices.len() * size_of::<usize>()
    }

    /// The same tensor as coordinates.
    #[inline(never)]
    pub fn to_coo(&self) -> CooTensor<T> {
        self.csf.to_coo()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3 slices: one of fibers with 1, 7 and 2 nonzeros, one of a single fiber of 5, one of a single nonzero.
    fn coo() -> CooTensor<f32> {
        let runs = [(0, 0, 1), (0, 2, 7), (0, 3, 2), (2, 1, 5), (3, 0, 1)];
        let mut coords = vec![vec![]; 3];
        for (i, j, n) in runs {
            for k in 0..n {
                coords[0].push(i);
                coords[1].push(j);
                coords[2].push(k);
            }
        }
        CooTensor::new(vec![4, 4, 8], coords, (0..16).map(|p| p as f32).collect()).unwrap()
    }

    fn limits(longest_fiber: usize, heaviest: usize) -> BcsfLimits {
        BcsfLimits { longest_fiber, heaviest }
    }

    #[test]
    fn no_piece_is_larger_than_asked() {
        let b = Bcsf::from_coo(&coo(), &[0, 1, 2], limits(3, 4)).unwrap();
        let pattern = b.csf().pattern();
        assert_eq!(pattern.idx(1), [0, 2, 2, 2, 3, 1, 1, 0]);
        assert_eq!(pattern.ptr(1), [0, 1, 4, 7, 8, 10, 13, 15, 16]);
        assert_eq!(pattern.ptr(0), [0, 5, 7, 8]);
        // Fibers of 1, 3, 3, 1, 2 | 3, 2 | 1 nonzeros.
        assert_eq!(b.sub_slices(), [0, 2, 4, 5, 6, 7, 8]);
        assert_eq!(b.to_coo(), coo());
        assert_eq!(b.index_bytes(), pattern.index_bytes() + 7 * 8);
        assert_eq!(b.limits(), limits(3, 4));
        // Slices of 10, 5 and 1 nonzeros.
        assert_eq!(b.slice_bins(), [1, 0, 0, 1, 1]);
    }

    #[test]
    fn order_two_and_no_entries() {
        let coo = CooTensor::new(vec![2, 9], vec![vec![1; 9], (0..9).collect()], vec![1.0f64; 9]).unwrap();
        let b = Bcsf::from_coo(&coo, &[0, 1], limits(4, 4)).unwrap();
        assert_eq!((b.csf().pattern().idx(0), b.to_coo()), (&[1u32; 3][..], coo));
        let empty = CooTensor::new(vec![2, 9], vec![vec![]; 2], Vec::<f64>::new()).unwrap();
        assert_eq!(Bcsf::from_coo(&empty, &[0, 1], limits(4, 4)).unwrap().sub_slices(), [0]);
    }

    #[test]
    fn refuses_limits_of_zero_and_order_one() {
        assert!(Bcsf::from_coo(&coo(), &[0, 1, 2], limits(0, 4)).is_err());
        assert!(Bcsf::from_coo(&coo(), &[0, 1, 2], limits(3, 0)).is_err());
        let line = CooTensor::new(vec![5], vec![vec![3]], vec![1.0f32]).unwrap();
        assert!(Bcsf::from_coo(&line, &[0], limits(3, 4)).is_err());
    }
}
