//! The format of a tensor by measurement: some are made, and a sweep of MTTKRP runs in each.

use std::time::Instant;

use sparsimd_kernels::Scalar;

use super::MttkrpTensor;
use crate::cpu::Cpu;
use crate::dense::Mat;
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::ops::measure::{GAIN, MOST, SHARE};
use crate::plan::{Measured, MttkrpFormat, TensorOptions};

/// What is tried besides the estimate's format, the most promising first. Those with several copies take several times the memory.
const FORMATS: [MttkrpFormat; 6] = [
    MttkrpFormat::Tiled,
    MttkrpFormat::Tree,
    MttkrpFormat::Coo,
    MttkrpFormat::CsfOne,
    MttkrpFormat::Alto,
    MttkrpFormat::CsfAll,
];

/// Timed sweeps of a format; the shortest counts.
const SWEEPS: usize = 2;

impl Cpu {
    /// `coo` in the fastest of the formats that `options` leave time to try, beginning with the estimate's.
    pub(super) fn prepare_tensor_measured<T: Scalar>(
        &self,
        coo: &CooTensor<T>,
        options: &TensorOptions,
    ) -> Result<MttkrpTensor<T>> {
        let begin = Instant::now();
        let estimate = self.plan_tensor(coo, options)?;
        let mut best = self.prepare_planned(coo, &estimate)?;
        if options.format.is_some() || coo.nnz() == 0 {
            return Ok(best);
        }
        let filled = |value: T| {
            let of_mode = |&dim: &usize| {
                let mut matrix = Mat::zeros(dim, options.rank())?;
                matrix.iter_rows_mut().for_each(|row: &mut [T]| row.fill(value));
                Ok::<_, Error>(matrix)
            };
            coo.dims().iter().map(of_mode).collect::<Result<Vec<_>>>()
        };
        let (mut factors, mut products) = (filled(T::ONE)?, filled(T::ZERO)?);
        let mut sweep = |tensor: &MttkrpTensor<T>| {
            let mut shortest = f64::INFINITY;
            // The first one finds the arrays as they were written.
            for _ in 0..=SWEEPS {
                let start = Instant::now();
                self.mttkrp_sweep(tensor, &mut factors, &mut products, |_, _, _| Ok(()))?;
                shortest = shortest.min(start.elapsed().as_secs_f64());
            }
            Ok::<_, Error>(shortest)
        };
        let first = sweep(&best)?;
        let (mut shortest, mut plans) = (first, 1);
        let budget = (SHARE * options.reuse as f64 * first).min(MOST.as_secs_f64());
        for format in FORMATS.into_iter().filter(|&format| format != estimate.format()) {
            if begin.elapsed().as_secs_f64() >= budget {
                break;
            }
            // Such as one that is too large for the memory, or places that need more bits than the format has.
            let Ok(candidate) =
                self.plan_tensor(coo, &options.format(format)).and_then(|p| self.prepare_planned(coo, &p))
            else {
                continue;
            };
            plans += 1;
            let seconds = sweep(&candidate)?;
            if seconds * GAIN < shortest {
                (best, shortest) = (candidate, seconds);
            }
        }
        let measured = Measured { plans, seconds: begin.elapsed().as_secs_f64(), gain: first / shortest };
        best.plan.because(format!("format {}: {measured}", best.plan.format()));
        Ok(best)
    }
}
