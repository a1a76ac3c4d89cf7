//! The 72 cases of the ESIMD paper, on random matrices: 12 shapes, 2 widths, 3 densities; SDDMM, SpMM and FusedMM.

use std::path::Path;

use sparsimd::{Csr, Result, generate};
use sparsimd_measure::Work;

use super::matrix::{Kernel, Task};
use super::picture::speeds;
use super::report::Section;
use super::results::{Case, Results};
use super::{Bench, Job, Suite, report};
use crate::machine::ceilings;
use crate::roofline::{Point, Roofline, levels_of};

/// The paper's k.
const K: usize = 1024;
/// Rows and columns in k.
const SHAPES: [(usize, usize); 12] =
    [(1, 1), (2, 2), (4, 4), (8, 8), (3, 1), (6, 2), (12, 4), (24, 8), (4, 1), (8, 2), (16, 4), (32, 8)];
/// Those of the short form: one of each ratio.
const QUICK_SHAPES: [(usize, usize); 3] = [(2, 2), (3, 1), (8, 2)];
/// Dense columns.
const COLUMNS: [usize; 2] = [32, 128];
/// Zeros in percent.
const ZEROS: [u32; 3] = [70, 80, 90];
/// Those of the short form.
const QUICK_ZEROS: [u32; 2] = [70, 90];

/// One of the cases.
#[derive(Clone, Copy)]
struct Spec {
    shape: (usize, usize),
    zeros: u32,
    n: usize,
    kernel: Kernel,
}

impl Spec {
    /// M/K/N/zeros, as the paper writes its cases.
    fn input(&self) -> String {
        format!("{}k/{}k/{}/{}%", self.shape.0, self.shape.1, self.n, self.zeros)
    }

    fn id(&self) -> String {
        format!("{} {}", self.kernel.name(), self.input())
    }
}

/// The suite.
pub struct Esimd {
    specs: Vec<Spec>,
    /// The last matrix, which several cases share.
    matrix: Option<((usize, usize), u32, Csr<f32>)>,
}

impl Esimd {
    /// All cases, or those of the short form.
    pub fn new(quick: bool) -> Self {
        let shapes = if quick { &QUICK_SHAPES[..] } else { &SHAPES };
        let zeros = if quick { &QUICK_ZEROS[..] } else { &ZEROS };
        let mut specs = Vec::new();
        for &shape in shapes {
            for &zeros in zeros {
                for n in COLUMNS {
                    specs.extend(Kernel::ALL.map(|kernel| Spec { shape, zeros, n, kernel }));
                }
            }
        }
        Self { specs, matrix: None }
    }
}

impl Suite for Esimd {
    fn jobs(&self) -> Vec<Job> {
        let job = |spec: &Spec| {
            let places = (spec.shape.0 * spec.shape.1 * K * K) as f64;
            // Seconds, roughly: what every case takes, and what grows with the dense product, which has no less to do for more
            // zeros; several runs of both peers.
            Job { id: spec.id(), weight: 1.5 + 1.5e-10 * places * spec.n as f64 }
        };
        self.specs.iter().map(job).collect()
    }

    fn run(&mut self, bench: &Bench, job: usize) -> Result<Case> {
        let spec = self.specs[job];
        let (m, k) = (spec.shape.0 * K, spec.shape.1 * K);
        if self.matrix.as_ref().is_none_or(|(shape, zeros, _)| (*shape, *zeros) != (spec.shape, spec.zeros)) {
            // Dropped before the next one is made: the largest takes 0.6 GB.
            self.matrix = None;
            let a = bench.cpu.install(|| generate::random_matrix(m, k, f64::from(spec.zeros) / 100.0, 0))?;
            self.matrix = Some((spec.shape, spec.zeros, a));
        }
        let Some((_, _, a)) = &self.matrix else { unreachable!("just made") };
        Task { bench, a, n: spec.n, kernel: spec.kernel, unfused: false }.case(&spec.id(), &spec.input())
    }

    fn sections(&self, bench: &Bench, results: &Results, folder: &Path) -> Result<Vec<Section>> {
        let mut sections = vec![report::summary(results)];
        for kernel in Kernel::ALL {
            for n in COLUMNS {
                let cases: Vec<_> =
                    results.cases.iter().filter(|case| case.op == kernel.name() && case.n == n).collect();
                // As the paper's Figures 12 to 17.
                let title = format!("{}, N = {n}: GFLOP/s on the nonzeros", kernel.name());
                let name = format!("{}-n{n}", kernel.name().to_lowercase());
                sections.extend(speeds(folder, &name, title, "M / K / N / zeros", &cases)?);
            }
        }
        sections.extend(roofline(bench, results, folder)?);
        sections.push(report::table("All cases", results));
        Ok(sections)
    }
}

/// All three operations of one case under the machine's ceilings, as the paper's Figures 18 and 19: the paper's case, or the
/// largest that was run.
fn roofline(bench: &Bench, results: &Results, folder: &Path) -> Result<Option<Section>> {
    if bench.device.is_some() {
        // The ceilings are the processor's.
        return Ok(None);
    }
    let timed = || results.cases.iter().filter(|case| case.ours().is_some());
    let largest = timed().max_by(|a, b| a.flops.total_cmp(&b.flops));
    let Some(chosen) = timed().find(|case| case.input == "8k/8k/128/70%").or(largest) else { return Ok(None) };
    let input = chosen.input.clone();
    let (ceilings, ..) = ceilings(&bench.cpu, false)?;
    let near = ceilings.levels.first().map_or(0.0, |level| level.read.all);
    let far = ceilings.levels.last().map_or(0.0, |level| level.read.all);
    let point = |case: &Case| {
        let work = Work { flops: case.flops, bytes: case.bytes };
        let intensity = work.intensity();
        Some(Point {
            label: case.op.clone(),
            format: None,
            intensity,
            gflops: case.ours()?.gflops,
            dram_roof: ceilings.fma_f32.all.min(intensity * far),
            roof: ceilings.fma_f32.all.min(intensity * near),
        })
    };
    let points: Vec<_> = timed().filter(|case| case.input == input).filter_map(point).collect();
    let title = format!("M/K/N/zeros = {input}, {} thread(s)", bench.cpu.threads());
    let (fma, add) = (ceilings.fma_f32.all, ceilings.add_f32.all);
    let [svg, _] =
        Roofline { title, levels: &levels_of(&ceilings), fma, add: Some(add), points: &points }.save(folder)?;
    let text = "Bytes are those that the operation asks memory for: each use of a row of a dense operand counts, whether or \
                not a cache still has it. A dot above the line of a level of memory is served from a nearer one.";
    Ok(Some(Section {
        title: format!("Roofline, {input}"),
        text: vec![text.to_owned()],
        pictures: vec![svg],
        ..Section::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::super::summary::distinct;
    use super::*;

    #[test]
    fn seventy_two_cases_of_each_operation() {
        let all = Esimd::new(false).jobs();
        assert_eq!(all.len(), 72 * 3);
        assert_eq!(distinct(all.iter().map(|job| job.id.as_str())).len(), all.len());
        assert!(all.iter().any(|job| job.id == "FusedMM 32k/8k/128/90%"));
        let quick = Esimd::new(true).jobs();
        assert!(quick.iter().all(|job| all.iter().any(|other| other.id == job.id)));
    }
}
