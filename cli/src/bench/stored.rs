//! The matrix operations on dense operands of another element type than f32: ours, beside ours in f32.

use std::collections::BTreeMap;

use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Csr, Error, Mat, MatRef, Number, Result, Stored, bf16, edge, f16, generate, reference};

use super::matrix::{Kernel, OURS, REUSE, SampledRows, Task};
use super::race::Contender;
use super::results::Case;
use crate::timing::{StoredDtype, timed};

/// Ours in f32 among the contenders.
const IN_F32: &str = "sparsimd f32";

impl Task<'_> {
    /// Verifies and times both; fills in the rest of `case`.
    pub fn stored(&self, rows: &SampledRows, case: &mut Case) -> Result<()> {
        match self.bench.dtype {
            StoredDtype::F32 => self.beside_f32::<f32>(rows, case),
            StoredDtype::F64 => self.beside_f32::<f64>(rows, case),
            StoredDtype::Bf16 => self.beside_f32::<bf16>(rows, case),
            StoredDtype::F16 => self.beside_f32::<f16>(rows, case),
        }
    }

    fn beside_f32<D: Stored>(&self, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let bench = self.bench;
        // Other work on the machine lowers a peak; nothing raises it.
        let peak = || {
            bench.peak.set(bench.peak.get().max(sparsimd_measure::fma_peak::<D::Scalar>(&bench.cpu)));
            bench.peak.get()
        };
        peak();
        case.bytes = self.kernel.work::<D>(self.a.pattern(), self.n).bytes;
        let ours = self.contender::<D>(rows, OURS, true)?;
        if let Some(error) = ours.error.filter(|&error| error > 1.0) {
            (case.wrong, case.peak_gflops) = (true, peak());
            case.notes.push(format!("{OURS}: {error:.3} times the bound"));
            return Ok(());
        }
        let theirs = self.contender::<f32>(rows, IN_F32, false)?;
        (case.samples, case.notes) = bench.race.run(&bench.cpu, case.flops, vec![ours, theirs])?;
        case.peak_gflops = peak();
        Ok(())
    }

    /// The operation on operands of `D`, prepared, and its result verified on `rows`.
    fn contender<D: Stored>(&self, rows: &SampledRows, name: &str, ours: bool) -> Result<Contender<'_>> {
        let &Self { bench, n, kernel, .. } = self;
        let cpu = &bench.cpu;
        let (a, sampled) = (as_computed::<D>(self.a)?, as_computed::<D>(&rows.a)?);
        let dense = |rows: usize, seed: u64| cpu.install(|| generate::uniform_dense::<D>(rows, n, seed));
        let op = match kernel {
            Kernel::Sddmm => Op::Sddmm,
            Kernel::Spmm => Op::Spmm,
            Kernel::FusedMm | Kernel::FusedMmOfB => Op::FusedMm,
        };
        let (prepared, prepare_s) = timed(|| cpu.prepare(&a, &PlanOptions::new(op, n).reuse(REUSE)))?;
        let (detail, strategy) = (prepared.plan().to_string(), prepared.plan().strategy());
        let (one, zero) = (D::Scalar::ONE, D::Scalar::ZERO);
        let (c, b) = (dense(a.rows(), 1)?, dense(a.cols(), 2)?);
        let gathered = rows.gather(c.as_ref())?;
        let (error, run): (f64, Box<dyn FnMut() -> Result<(), String>>) = match kernel {
            Kernel::Sddmm => {
                let mut out = vec![D::Scalar::ZERO; a.nnz()];
                cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out)?;
                let expected = cpu.install(|| reference::sddmm(&sampled, false, gathered.as_ref(), b.as_ref()))?;
                let error = cpu.install(|| expected.deviation_of_values(&rows.values(&out)))?.error;
                let run = move || text(cpu.sddmm(&prepared, c.as_ref(), b.as_ref(), &mut out));
                (error, Box::new(run))
            }
            Kernel::Spmm => {
                let mut out = Mat::<D>::zeros(a.rows(), n)?;
                cpu.spmm(one, &prepared, b.as_ref(), zero, out.as_mut())?;
                let nothing = Mat::<D>::zeros(sampled.rows(), n)?;
                let expected = cpu.install(|| reference::spmm(one, &sampled, b.as_ref(), zero, nothing.as_ref()))?;
                let error = rows.deviation(cpu, &expected, &out)?.error;
                let run = move || text(cpu.spmm(one, &prepared, b.as_ref(), zero, out.as_mut()));
                (error, Box::new(run))
            }
            Kernel::FusedMm | Kernel::FusedMmOfB => {
                let d = if kernel == Kernel::FusedMmOfB { None } else { Some(dense(a.cols(), 3)?) };
                let mut out = Mat::<D>::zeros(a.rows(), n)?;
                let d_of = |b| d.as_ref().map_or(b, Mat::as_ref);
                let fused = |out: &mut Mat<D>| {
                    let b: MatRef<'_, D> = b.as_ref();
                    cpu.fusedmm(&prepared, edge::Identity, c.as_ref(), b, d_of(b), out.as_mut())
                };
                fused(&mut out)?;
                let expected = cpu.install(|| {
                    let (edge, b) = (reference::Edge::Identity, b.as_ref());
                    reference::fusedmm(&sampled, edge, gathered.as_ref(), b, d_of(b))
                })?;
                let error = rows.deviation(cpu, &expected, &out)?.error;
                let run = move || {
                    let d = d.as_ref().unwrap_or(&b).as_ref();
                    text(cpu.fusedmm(&prepared, edge::Identity, c.as_ref(), b.as_ref(), d, out.as_mut()))
                };
                (error, Box::new(run))
            }
        };
        Ok(Contender {
            name: name.to_owned(),
            ours,
            detail,
            prepare_s: (strategy != Strategy::Direct).then_some(prepare_s),
            error: Some(error),
            figures: BTreeMap::new(),
            run,
        })
    }
}

/// The matrix with values of what `D` is computed with.
fn as_computed<D: Stored>(a: &Csr<f32>) -> Result<Csr<D::Scalar>> {
    let values = a.values().iter().map(|&x| D::Scalar::from_f64(f64::from(x))).collect();
    Csr::new(a.pattern().clone(), values)
}

fn text(result: Result<(), Error>) -> Result<(), String> {
    result.map_err(|e| e.to_string())
}
