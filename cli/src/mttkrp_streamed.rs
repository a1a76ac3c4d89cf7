//! `sparsimd mttkrp --passes MIB`: MTTKRP of a tensor that stays in its file.

use sparsimd::generate::uniform_dense;
use sparsimd::{CooTensor, Error, Mat, MatRef, Result, Stored, reference};

use super::Verdict;
use super::device::{DeviceName, DeviceScalar};
use super::executor::EffortName;
use super::mttkrp::Args;
use super::reorder::Order;
use super::tensor::{Algorithm, TensorFormat};
use super::tensor_ops::Sweep;
use super::timing::{Times, timed};

/// Runs, verifies and times it in the modes asked for, in passes that take so many MiB.
pub fn run<T: DeviceScalar>(args: &Args, mib: usize) -> Result<Verdict> {
    let common = &args.common;
    let planned = args.memory.is_some() || args.trees.given().is_some() || args.explain || args.atomics;
    let chosen = common.format != TensorFormat::Auto || common.alg != Algorithm::Auto;
    let elsewhere = common.place.device != DeviceName::Cpu || args.reorder != Order::None;
    if planned || chosen || elsewhere || args.effort == EffortName::Measure {
        let detail =
            "the tensor is used as it is in its file, on the processor: there is neither a format nor a plan to choose";
        return Err(Error::Argument { name: "passes", detail: detail.to_owned() });
    }
    let (cpu, numa) = common.executor.cpu()?;
    let path = common.source.file("passes")?;
    let (x, prepare_s) = timed(|| cpu.stream_tensor::<T>(path, common.rank, mib.saturating_mul(1 << 20)))?;
    let modes = common.modes(x.dims().len())?;
    let factors: Vec<Mat<T>> = args.operands(x.dims())?;
    let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();
    // Verification has the whole tensor in memory.
    let whole: Option<CooTensor<T>> = if common.verify { Some(cpu.install(|| common.source.load())?) } else { None };
    let mut sweep = Sweep::new(prepare_s, x.nnz() * x.dims().len() * size_of::<u32>());
    for &mode in &modes {
        let mut out = Mat::zeros(x.dims()[mode], common.rank)?;
        let times = Times::cold(common.repeat, || cpu.mttkrp_streamed(&x, &views, mode, out.as_mut()))?;
        sweep.add(times, "coo", "passes");
        sweep.count::<T>(x.dims(), x.nnz(), common.rank, mode);
        if let Some(whole) = &whole {
            let expected = cpu.install(|| reference::mttkrp(whole, &views, mode))?;
            sweep.check(expected.deviation(out.as_ref())?.error);
        }
        args.folders.write(mode, out.as_ref())?;
    }
    sweep.numa = Some(numa);
    sweep.report::<T>("mttkrp", common, &cpu, (x.dims(), x.nnz()), Some(common.rank), modes)
}

impl Args {
    /// The factors of a tensor of `dims`, from their files, or random.
    pub fn operands<D: Stored>(&self, dims: &[usize]) -> Result<Vec<Mat<D>>> {
        let (rank, seed) = (self.common.rank, self.common.source.seed);
        let operand = |(mode, &dim): (usize, &usize)| {
            self.folders.operand(mode, dim, rank, || uniform_dense(dim, rank, seed ^ mode as u64))
        };
        dims.iter().enumerate().map(operand).collect()
    }
}
