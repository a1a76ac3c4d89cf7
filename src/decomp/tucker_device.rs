//! Tucker's decomposition with its TTM chains on a Vulkan device, or shared between two executors.
//!
//! The tensor's trees and all factors stay in device memory. In a mode's turn the product comes back, I_n x the product of the other ranks, and
//! the one factor that has changed goes up, I_n x R_n; singular vectors are the processor's.

use std::ops::ControlFlow;

use super::tucker::{Tucker, TuckerIteration, TuckerOptions, TuckerState, each_tree, run};
use crate::cpu::Cpu;
use crate::dense::{Mat, MatRef};
use crate::error::Result;
use crate::formats::CooTensor;
use crate::gpu::{DeviceScalar, Gpu, GpuMat};
use crate::hetero::{Hetero, HeteroChain};

impl Gpu {
    /// Tucker's decomposition of `x`, its TTM chains on this device and the singular vectors on `cpu`: the same algorithm as [`Cpu::tucker`],
    /// with the same options and observer.
    ///
    /// Bit-reproducible for the same tensor, device and number of threads.
    ///
    /// # Errors
    /// As [`Cpu::tucker`] and [`Gpu::chain`], and [`Error::Device`](crate::Error::Device) when the device fails.
    pub fn tucker<T: DeviceScalar>(
        &self,
        cpu: &Cpu,
        x: &CooTensor<T>,
        options: &TuckerOptions,
        mut observe: impl FnMut(&TuckerState, &TuckerIteration) -> ControlFlow<()> + Send,
    ) -> Result<Tucker> {
        let (unfoldings, trees) = each_tree(cpu, x, options, |tree| self.chain(&tree, &options.ranks))?;
        // The factors in device memory, and the mode whose factor the processor has changed since the last turn.
        let mut resident: Option<(Vec<GpuMat<T>>, usize)> = None;
        let mut chain = |factors: &[Mat<T>], mode: usize| {
            let (on_device, changed) = match &mut resident {
                Some((on_device, changed)) => {
                    on_device[*changed].upload(factors[*changed].as_ref())?;
                    (on_device, changed)
                }
                None => {
                    let all = factors.iter().map(|f| self.mat(f.as_ref())).collect::<Result<_>>()?;
                    let (on_device, changed) = resident.insert((all, 0));
                    (on_device, changed)
                }
            };
            *changed = mode;
            self.ttm_chain(&trees[mode], on_device)
        };
        run(cpu, x, options, &unfoldings, &mut chain, &mut observe)
    }
}

impl Hetero {
    /// Tucker's decomposition of `x`, its TTM chains cut by slices between both sides: the same algorithm as [`Cpu::tucker`], with the same
    /// options and observer.
    ///
    /// # Errors
    /// As [`Cpu::tucker`]. A device that fails is replaced: see [`Hetero::take_failures`].
    pub fn tucker<T: DeviceScalar>(
        &self,
        x: &CooTensor<T>,
        options: &TuckerOptions,
        mut observe: impl FnMut(&TuckerState, &TuckerIteration) -> ControlFlow<()> + Send,
    ) -> Result<Tucker> {
        let (unfoldings, mut trees) =
            each_tree(self.cpu(), x, options, |tree| Ok(HeteroChain::new(tree, &options.ranks)))?;
        let mut chain = |factors: &[Mat<T>], mode: usize| {
            let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
            self.ttm_chain(&mut trees[mode], &views)
        };
        run(self.cpu(), x, options, &unfoldings, &mut chain, &mut observe)
    }
}
