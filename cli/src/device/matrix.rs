//! The matrix operations on a Vulkan device, alone or beside the processor.

use sparsimd::edge::Edge;
use sparsimd::gpu::{self, DeviceScalar, EdgeKind, Gpu, GpuCsr, GpuMat, Portable};
use sparsimd::hetero::{Hetero, HeteroCsr};
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Cpu, Csr, Error, Mat, Number, Result, reference};

use super::Ran;
use super::executor::Devices;
use crate::matrix::{Common, EdgeName, Measured, dense_bytes, sparse_bytes};
use crate::timing::{Check, Times, timed};

/// How often and where an operation runs, and on which matrix.
struct Job<'a, T: DeviceScalar> {
    devices: Devices,
    args: &'a Common,
    a: &'a Csr<T>,
    op: Op,
    /// The operation's name as its measured share is kept.
    name: &'static str,
}

/// Times of the runs, and what the devices say of one of them.
struct Timed {
    plan: String,
    prepare_s: f64,
    times: Times,
    kernel_s: Option<f64>,
    upload_s: f64,
    download_s: f64,
}

impl<'a, T: DeviceScalar> Job<'a, T> {
    fn new(op: Op, name: &'static str, args: &'a Common, cpu: &Cpu, a: &'a Csr<T>) -> Result<Self> {
        match Devices::open(&args.place, cpu)? {
            Some(Devices::One(_)) if args.path() == Strategy::Panel => {
                let detail = "a device takes matrices by rows, not by panels".to_owned();
                Err(Error::Argument { name: "path", detail })
            }
            Some(devices) => Ok(Self { devices, args, a, op, name }),
            None => Err(Error::Argument { name: "device", detail: "the processor is none".to_owned() }),
        }
    }

    /// Runs an operation: `resident` uploads the operands and runs once, `again` runs on what that left on the device, and
    /// `download` fetches the result; where the operands do not fit the device together, `streamed` does all of that; `both` runs on
    /// both sides.
    fn run<R, O>(
        &self,
        out: &mut O,
        resident: impl FnOnce(&Gpu) -> Result<R>,
        mut again: impl FnMut(&Gpu, &mut R) -> Result<()>,
        download: impl FnOnce(&R, &mut O) -> Result<()>,
        mut streamed: impl FnMut(&Gpu, &mut O) -> Result<()>,
        mut both: impl FnMut(&Hetero, &mut HeteroCsr<T>, &mut O) -> Result<()>,
    ) -> Result<Timed> {
        let gpu = self.devices.gpu();
        let name = &gpu.info().name;
        match &self.devices {
            Devices::One(_) => match timed(|| resident(gpu)) {
                Ok((mut operands, prepare_s)) => {
                    let uploaded = gpu.take_times();
                    let mut done = self.measure(prepare_s, || again(gpu, &mut operands))?;
                    download(&operands, out)?;
                    // The operands came once, before the runs, and the result goes once, after them.
                    (done.upload_s, done.download_s) = (uploaded.upload_s, gpu.take_times().download_s);
                    done.plan = format!("{} nonzeros on {name}, subgroups of {}", self.a.nnz(), gpu.info().subgroup);
                    Ok(done)
                }
                Err(Error::Device { detail }) => {
                    let mut done = self.measure(0.0, || streamed(gpu, out))?;
                    done.plan = format!("operands pass through {name} in parts: {detail}");
                    Ok(done)
                }
                Err(other) => Err(other),
            },
            Devices::Both(hetero) => {
                let mut shared = HeteroCsr::new(self.a.clone());
                shared.prepare(&PlanOptions::new(self.op, self.args.n).strategy(self.args.path()))?;
                let (_, prepare_s) = timed(|| both(hetero, &mut shared, out))?;
                let mut done = self.measure(prepare_s, || both(hetero, &mut shared, out))?;
                let share = shared.share(self.name).map(|s| format!("{:.1} % by measured rates", 100.0 * s));
                done.plan = format!("share of {name}: {}", share.as_deref().unwrap_or("as given"));
                self.devices.note_failures();
                Ok(done)
            }
        }
    }

    /// Times `run`, and what the device says of the last run and of the shortest in kernels.
    fn measure(&self, prepare_s: f64, mut run: impl FnMut() -> Result<()>) -> Result<Timed> {
        self.devices.gpu().take_times();
        let mut kernel_s: Option<f64> = None;
        let mut last = gpu::Times::default();
        let times = Times::measure(self.args.repeat, || {
            run()?;
            last = self.devices.gpu().take_times();
            kernel_s = match (kernel_s, last.kernel_s) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            Ok(())
        })?;
        let (upload_s, download_s) = (last.upload_s, last.download_s);
        Ok(Timed { plan: String::new(), prepare_s, times, kernel_s, upload_s, download_s })
    }

    fn report(&self, timed: Timed, check: Check, flops: f64, bytes: f64) -> Measured {
        let Timed { plan, prepare_s, times, kernel_s, upload_s, download_s } = timed;
        let ran = Ran { device: self.devices.name(), kernel_s, upload_s: Some(upload_s), download_s: Some(download_s) };
        Measured { plan, path: Strategy::Direct, heads: 1, prepare_s, times, check, flops, bytes, numa: None, ran }
    }
}

/// SpMM on a device.
pub fn spmm<D: Portable>(args: &Common, cpu: &Cpu, a: &Csr<D::Sum>) -> Result<Measured> {
    let job = Job::new(Op::Spmm, "spmm", args, cpu, a)?;
    let b = args.operand::<D>(cpu, "b", a.cols(), 1)?;
    let mut c: Mat<D> = Mat::zeros(a.rows(), args.n)?;
    let (one, zero) = (D::Sum::ONE, D::Sum::ZERO);
    let timed = job.run(
        &mut c,
        |gpu| {
            let (a, b, mut c) = (gpu.csr(a)?, gpu.mat(b.as_ref())?, gpu.zeros(a.rows(), args.n)?);
            gpu.spmm(one, &a, &b, zero, &mut c)?;
            Ok((a, b, c))
        },
        |gpu, (a, b, c)| gpu.spmm(one, &*a, b, zero, c),
        |(_, _, on_device), c| on_device.download(c.as_mut()),
        |gpu, c| gpu.spmm_streamed(one, a, b.as_ref(), zero, c.as_mut()),
        |both, a, c| both.spmm(one, a, b.as_ref(), zero, c.as_mut()),
    )?;
    let check = Check::when(args.verify, || {
        reference::spmm(D::Sum::ONE, a, b.as_ref(), D::Sum::ZERO, c.as_ref())?.deviation(c.as_ref())
    })?;
    args.write_dense(c.as_ref())?;
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let bytes = sparse_bytes::<D::Sum>(a, true) + dense_bytes::<D>(a.rows() + a.cols(), args.n);
    Ok(job.report(timed, check, flops, bytes))
}

/// SDDMM on a device.
pub fn sddmm<D: Portable>(args: &Common, cpu: &Cpu, a: &Csr<D::Sum>) -> Result<Measured> {
    let scaled = args.edge == EdgeName::Scale;
    let job = Job::new(Op::Sddmm, if scaled { "sddmm_scaled" } else { "sddmm" }, args, cpu, a)?;
    let c = args.operand::<D>(cpu, "c", a.rows(), 1)?;
    let b = args.operand::<D>(cpu, "b", a.cols(), 2)?;
    let mut out = vec![D::Sum::ZERO; a.nnz()];
    let on_device = |gpu: &Gpu, a: &GpuCsr<D::Sum>, c: &GpuMat<D>, b: &GpuMat<D>, values: &mut _| match scaled {
        true => gpu.sddmm_scaled(a, c, b, values),
        false => gpu.sddmm(a, c, b, values),
    };
    let timed = job.run(
        &mut out,
        |gpu| {
            let (a, c, b) = (gpu.csr(a)?, gpu.mat(c.as_ref())?, gpu.mat(b.as_ref())?);
            let mut values = a.new_values()?;
            on_device(gpu, &a, &c, &b, &mut values)?;
            Ok((a, c, b, values))
        },
        |gpu, (a, c, b, values)| on_device(gpu, a, c, b, values),
        |(_, _, _, values), out| values.download(out),
        |gpu, out| match scaled {
            true => gpu.sddmm_scaled_streamed(a, c.as_ref(), b.as_ref(), out),
            false => gpu.sddmm_streamed(a, c.as_ref(), b.as_ref(), out),
        },
        |both, a, out| match scaled {
            true => both.sddmm_scaled(a, c.as_ref(), b.as_ref(), out),
            false => both.sddmm(a, c.as_ref(), b.as_ref(), out),
        },
    )?;
    let check =
        Check::when(args.verify, || reference::sddmm(a, scaled, c.as_ref(), b.as_ref())?.deviation_of_values(&out))?;
    args.write_values(a.pattern(), out)?;
    let flops = 2.0 * a.nnz() as f64 * args.n as f64;
    let dense = dense_bytes::<D>(a.rows() + a.cols(), args.n);
    let bytes = sparse_bytes::<D::Sum>(a, scaled) + dense + dense_bytes::<D::Sum>(a.nnz(), 1);
    Ok(job.report(timed, check, flops, bytes))
}

/// FusedMM on a device.
pub fn fusedmm<D: Portable>(args: &Common, cpu: &Cpu, a: &Csr<D::Sum>) -> Result<Measured> {
    let (built_in, wanted) = args.edge.function::<D::Sum>(args.n);
    let edge = EdgeKind::of(built_in).ok_or_else(|| args.no_edge("fusedmm on a device"))?;
    let job = Job::new(Op::FusedMm, "fusedmm", args, cpu, a)?;
    let c = args.operand::<D>(cpu, "c", a.rows(), 1)?;
    let b = args.operand::<D>(cpu, "b", a.cols(), 2)?;
    let d = args.operand::<D>(cpu, "d", a.cols(), 3)?;
    let width = d.cols();
    let mut e: Mat<D> = Mat::zeros(a.rows(), width)?;
    let timed = job.run(
        &mut e,
        |gpu| {
            let dense = |m: &Mat<D>| gpu.mat(m.as_ref());
            let (on_device, mut e) = (gpu.csr(a)?, gpu.zeros(a.rows(), width)?);
            let (c, b, d) = (dense(&c)?, dense(&b)?, dense(&d)?);
            gpu.fusedmm(&on_device, edge, &c, &b, &d, &mut e)?;
            Ok((on_device, c, b, d, e))
        },
        |gpu, (a, c, b, d, e)| gpu.fusedmm(&*a, edge, c, b, d, e),
        |(.., on_device), e| on_device.download(e.as_mut()),
        |gpu, e| gpu.fusedmm_streamed(a, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()),
        |both, a, e| both.fusedmm(a, edge, c.as_ref(), b.as_ref(), d.as_ref(), e.as_mut()),
    )?;
    let check = Check::when(args.verify, || {
        reference::fusedmm(a, wanted, c.as_ref(), b.as_ref(), d.as_ref())?.deviation(e.as_ref())
    })?;
    args.write_dense(e.as_ref())?;
    let flops = 2.0 * a.nnz() as f64 * (args.n + width) as f64;
    let bytes =
        sparse_bytes::<D::Sum>(a, built_in.uses_values()) + dense_bytes::<D>(a.rows() + a.cols(), args.n + width);
    Ok(job.report(timed, check, flops, bytes))
}
