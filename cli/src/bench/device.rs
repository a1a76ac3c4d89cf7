//! The matrix operations on a Vulkan device: its clock's times of kernels alone, verified, beside cuSPARSE where there is one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sparsimd::gpu::{EdgeKind, Gpu};
use sparsimd::reference::{self, Deviation};
use sparsimd::{Error, Mat, Result};

use super::matrix::{Kernel, OURS, SampledRows, Task};
use super::peers::PeerName;
use super::results::{Case, Sample};
use super::torch::Torch;
use crate::device::DeviceName;
use crate::timing::{seconds, timed};

/// Runs with what fills the caches before each.
const COLD_RUNS: usize = 3;
/// Runs are not counted so long: an idle device takes some tenths of a second to raise its clock.
const WARM_UP: Duration = Duration::from_millis(200);
/// Least and greatest number of timed runs.
const RUNS: [usize; 2] = [3, 1000];
/// Rows and columns of the matrix that fills the caches: 128 MiB, more than twice what any device of today has.
const FLUSH: [usize; 2] = [32 << 10, 1 << 10];
/// Name of the peer among the contenders.
const CUSPARSE: &str = "cuSPARSE";

/// The device, and who else is on it.
pub struct Target {
    gpu: Gpu,
    torch: Option<RefCell<Torch>>,
    /// Who is not there, and why.
    pub absent: Vec<String>,
    peak: f64,
    budget: Duration,
}

impl Target {
    /// The device that `name` says; `None` for the processor.
    pub fn open(name: &DeviceName, peers: &[PeerName], peak: Option<f64>, budget: Duration) -> Result<Option<Self>> {
        let which = match name {
            DeviceName::Cpu => return Ok(None),
            DeviceName::Gpu(which) => which,
            DeviceName::Hetero(_) => {
                let detail = "suites of matrices run on the processor or on a device, not on both".to_owned();
                return Err(Error::Argument { name: "device", detail });
            }
        };
        let mut made = Self {
            gpu: Gpu::open(which.parse().unwrap_or_default())?,
            torch: None,
            absent: Vec::new(),
            peak: peak.unwrap_or(0.0),
            budget,
        };
        for peer in peers {
            match peer {
                PeerName::None => {}
                PeerName::Torch => match Torch::start() {
                    Ok(torch) => made.torch = Some(RefCell::new(torch)),
                    Err(why) => made.absent.push(format!("{CUSPARSE}: {why}")),
                },
                _ => {
                    let detail = "on a device: none or torch; the others are the processor's".to_owned();
                    return Err(Error::Argument { name: "peers", detail });
                }
            }
        }
        Ok(Some(made))
    }

    /// The device in words.
    pub fn name(&self) -> String {
        let info = self.gpu.info();
        format!("{} ({}, Vulkan {}.{}), subgroups of {}", info.name, info.driver, info.api.0, info.api.1, info.subgroup)
    }

    /// Versions of the peers.
    pub fn details(&self) -> BTreeMap<String, String> {
        self.torch.iter().map(|torch| (CUSPARSE.to_owned(), torch.borrow().detail().to_owned())).collect()
    }

    /// Verifies and times `task`.
    pub fn case(&self, task: &Task<'_>, rows: &SampledRows, case: &mut Case) -> Result<()> {
        case.peak_gflops = self.peak;
        match task.kernel {
            Kernel::Sddmm => self.sddmm(task, rows, case)?,
            Kernel::Spmm => self.spmm(task, rows, case)?,
            Kernel::FusedMm | Kernel::FusedMmOfB => self.fusedmm(task, rows, case)?,
        }
        if let (Some(torch), false) = (&self.torch, case.wrong) {
            let op = task.kernel.name().to_lowercase();
            match torch.borrow_mut().measure(&op, task.a, task.n, self.budget.as_secs_f64()) {
                Ok(answer) => case.samples.push(Sample {
                    name: CUSPARSE.to_owned(),
                    ours: false,
                    detail: "the same matrix, through PyTorch".to_owned(),
                    prepare_s: None,
                    min_s: answer.min_s,
                    median_s: answer.median_s,
                    cold_s: answer.cold_s,
                    runs: answer.runs,
                    gflops: case.flops / answer.min_s / 1e9,
                    error: None,
                    figures: BTreeMap::new(),
                }),
                Err(why) => case.notes.push(format!("{CUSPARSE}: {why}")),
            }
        }
        Ok(())
    }

    fn sddmm(&self, task: &Task<'_>, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let (gpu, a) = (&self.gpu, task.a);
        let (c, b) = (task.dense(a.rows(), 1)?, task.dense(a.cols(), 2)?);
        let (ga, prepare_s) = timed(|| gpu.csr(a))?;
        let (gc, gb) = (gpu.mat(c.as_ref())?, gpu.mat(b.as_ref())?);
        let mut values = ga.new_values()?;
        let mut run = || gpu.sddmm(&ga, &gc, &gb, &mut values);
        run()?;
        let mut timed = self.time(&mut run)?;
        let mut out = vec![0.0; a.nnz()];
        timed.download(gpu, || values.download(&mut out))?;
        let gathered = rows.gather(c.as_ref())?;
        let error = task.bench.cpu.install(|| {
            reference::sddmm(&rows.a, false, gathered.as_ref(), b.as_ref())?.deviation_of_values(&rows.values(&out))
        })?;
        timed.into_sample(prepare_s, error, case);
        Ok(())
    }

    fn spmm(&self, task: &Task<'_>, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let (gpu, a, cpu) = (&self.gpu, task.a, &task.bench.cpu);
        let b = task.dense(a.cols(), 2)?;
        let (ga, prepare_s) = timed(|| gpu.csr(a))?;
        let (gb, mut gc) = (gpu.mat(b.as_ref())?, gpu.zeros(a.rows(), task.n)?);
        let mut run = || gpu.spmm(1.0, &ga, &gb, 0.0, &mut gc);
        run()?;
        let mut timed = self.time(&mut run)?;
        let mut c: Mat<f32> = Mat::zeros(a.rows(), task.n)?;
        timed.download(gpu, || gc.download(c.as_mut()))?;
        let zero = Mat::zeros(rows.rows.len(), task.n)?;
        let expected = cpu.install(|| reference::spmm(1.0, &rows.a, b.as_ref(), 0.0, zero.as_ref()))?;
        let error = rows.deviation(cpu, &expected, &c)?;
        timed.into_sample(prepare_s, error, case);
        Ok(())
    }

    fn fusedmm(&self, task: &Task<'_>, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let (gpu, a, cpu) = (&self.gpu, task.a, &task.bench.cpu);
        let of_d = if task.kernel == Kernel::FusedMmOfB { 2 } else { 3 };
        let (c, b, d) = (task.dense(a.rows(), 1)?, task.dense(a.cols(), 2)?, task.dense(a.cols(), of_d)?);
        let (ga, prepare_s) = timed(|| gpu.csr(a))?;
        let [gc, gb, gd] = [&c, &b, &d].map(|m| gpu.mat(m.as_ref()));
        let (gc, gb, gd, mut ge) = (gc?, gb?, gd?, gpu.zeros(a.rows(), task.n)?);
        let mut run = || gpu.fusedmm(&ga, EdgeKind::Identity, &gc, &gb, &gd, &mut ge);
        run()?;
        let mut timed = self.time(&mut run)?;
        let mut e: Mat<f32> = Mat::zeros(a.rows(), task.n)?;
        timed.download(gpu, || ge.download(e.as_mut()))?;
        let gathered = rows.gather(c.as_ref())?;
        let edge = reference::Edge::Identity;
        let expected = cpu.install(|| reference::fusedmm(&rows.a, edge, gathered.as_ref(), b.as_ref(), d.as_ref()))?;
        let error = rows.deviation(cpu, &expected, &e)?;
        timed.into_sample(prepare_s, error, case);
        Ok(())
    }

    /// Times `run`: kernels by the device's clock, or whole calls where it has none.
    fn time(&self, run: &mut dyn FnMut() -> Result<()>) -> Result<Timed> {
        let gpu = &self.gpu;
        let upload_s = gpu.take_times().upload_s;
        let mut timed = Timed { upload_s, clock: true, ..Timed::default() };
        let mut once = || -> Result<[f64; 2]> {
            gpu.take_kernel_time();
            let call = seconds(&mut *run)?;
            let kernel = gpu.take_kernel_time();
            timed.clock &= kernel.is_some();
            Ok([kernel.unwrap_or(call), call])
        };
        let mut cold = Vec::new();
        for _ in 0..COLD_RUNS {
            // A device without the room for it has caches that operands of this size fill by themselves.
            drop(gpu.zeros::<f32>(FLUSH[0], FLUSH[1]));
            cold.push(once()?[0]);
        }
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            once()?;
        }
        let (mut kernels, mut call_s) = (Vec::new(), f64::INFINITY);
        let start = Instant::now();
        while kernels.len() < RUNS[0] || (kernels.len() < RUNS[1] && start.elapsed() < self.budget) {
            let [kernel, call] = once()?;
            kernels.push(kernel);
            call_s = call_s.min(call);
        }
        cold.sort_by(f64::total_cmp);
        kernels.sort_by(f64::total_cmp);
        (timed.cold_s, timed.call_s, timed.kernels) = (cold[cold.len() / 2], call_s, kernels);
        Ok(timed)
    }
}

/// Times of our runs.
#[derive(Default)]
struct Timed {
    /// Sorted.
    kernels: Vec<f64>,
    cold_s: f64,
    call_s: f64,
    upload_s: f64,
    download_s: f64,
    /// Whether the device has one.
    clock: bool,
}

impl Timed {
    fn download(&mut self, gpu: &Gpu, fetch: impl FnOnce() -> Result<()>) -> Result<()> {
        fetch()?;
        self.download_s = gpu.take_times().download_s;
        Ok(())
    }

    /// Into the case, unless the result was wrong.
    fn into_sample(self, prepare_s: f64, deviation: Deviation, case: &mut Case) {
        case.wrong = deviation.error > 1.0;
        if case.wrong {
            case.notes.push(format!("{OURS}: {:.3} times the bound in row {}", deviation.error, deviation.row));
            return;
        }
        if !self.clock {
            case.notes.push("the device has no clock: times are of whole calls".to_owned());
        }
        let min_s = self.kernels[0];
        let ms = |name: &str, seconds: f64| (name.to_owned(), 1e3 * seconds);
        case.samples.push(Sample {
            name: OURS.to_owned(),
            ours: true,
            detail: "by rows".to_owned(),
            prepare_s: Some(prepare_s),
            min_s,
            median_s: self.kernels[self.kernels.len() / 2],
            cold_s: self.cold_s,
            runs: self.kernels.len(),
            gflops: case.flops / min_s / 1e9,
            error: Some(deviation.error),
            figures: BTreeMap::from([
                ms("call ms", self.call_s),
                ms("upload ms", self.upload_s),
                ms("download ms", self.download_s),
            ]),
        });
    }
}
