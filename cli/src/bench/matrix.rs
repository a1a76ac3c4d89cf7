//! The matrix operations on one sparse matrix: ours, and everybody who can do the same or the parts of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::reference::{self, Deviation, Expected};
use sparsimd::{Cpu, Csr, CsrRef, Mat, MatMut, MatRef, Pattern, Prepared, Result, Stored, edge, generate};
use sparsimd_measure::Work;

use super::Bench;
use super::peers::{Dense, Inspected};
use super::race::Contender;
use super::results::Case;
use super::summary::UNFUSED;
use crate::timing::{StoredDtype, timed};

/// Runs that a plan may count on.
pub const REUSE: usize = 1000;
/// Bytes of a dense matrix as large as the sparse one, above which no dense product is compared with.
const MOST_DENSE: usize = 2 << 30;
/// Our name among the contenders.
pub const OURS: &str = "sparsimd";

/// Times that a case is measured whose share of the peak is above 1.
const TRIES: usize = 2;

/// The three operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Sddmm,
    Spmm,
    /// D is another matrix than B, as in attention.
    FusedMm,
    /// D is B, as in graph embeddings.
    FusedMmOfB,
}

impl Kernel {
    /// In the order of the papers.
    pub const ALL: [Self; 3] = [Self::Sddmm, Self::Spmm, Self::FusedMm];

    /// Those of graphs.
    pub const OF_FILES: [Self; 4] = [Self::Sddmm, Self::Spmm, Self::FusedMm, Self::FusedMmOfB];

    /// As in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sddmm => "SDDMM",
            Self::Spmm => "SpMM",
            Self::FusedMm => "FusedMM",
            Self::FusedMmOfB => "FusedMM-D=B",
        }
    }

    /// Operations and bytes on dense operands that store `D`.
    pub fn work<D: Stored>(self, a: &Pattern, n: usize) -> Work {
        match self {
            Self::Sddmm => Work::sddmm::<D>(a, n),
            Self::Spmm => Work::spmm::<D>(a, n),
            Self::FusedMm | Self::FusedMmOfB => Work::fusedmm::<D>(a, n),
        }
    }
}

/// One operation on one matrix.
pub struct Task<'a> {
    pub bench: &'a Bench,
    pub a: &'a Csr<f32>,
    pub n: usize,
    pub kernel: Kernel,
    /// Whether FusedMM is compared with our own SDDMM and SpMM, too.
    pub unfused: bool,
}

impl Task<'_> {
    /// Verifies and times everybody; `id` and `input` name the case.
    pub fn case(&self, id: &str, input: &str) -> Result<Case> {
        let &Self { bench, a, n, kernel, .. } = self;
        let work = kernel.work::<f32>(a.pattern(), n);
        let mut case = Case {
            id: id.to_owned(),
            op: kernel.name().to_owned(),
            input: input.to_owned(),
            dims: vec![a.rows(), a.cols()],
            nnz: a.nnz(),
            n,
            flops: work.flops,
            bytes: work.bytes,
            ..Case::default()
        };
        let rows = SampledRows::new(a, n, bench.verify_work)?;
        if bench.dtype != StoredDtype::F32 {
            self.stored(&rows, &mut case)?;
            return Ok(case);
        }
        if let Some(device) = &bench.device {
            device.case(self, &rows, &mut case)?;
            return Ok(case);
        }
        for _ in 0..TRIES {
            (case.samples, case.notes) = (Vec::new(), Vec::new());
            let before = sparsimd_measure::fma_peak::<f32>(&bench.cpu);
            match kernel {
                Kernel::Sddmm => self.sddmm(&rows, &mut case)?,
                Kernel::Spmm => self.spmm(&rows, &mut case)?,
                Kernel::FusedMm | Kernel::FusedMmOfB => self.fusedmm(&rows, &mut case)?,
            }
            // Other work on the machine lowers a peak; nothing raises it.
            let highest = bench.peak.get().max(before).max(sparsimd_measure::fma_peak::<f32>(&bench.cpu));
            bench.peak.set(highest);
            case.peak_gflops = highest;
            if case.ours().is_none_or(|ours| ours.gflops <= highest) {
                return Ok(case);
            }
        }
        case.notes.push("faster than the peak, whenever it was measured: other work held the machine then".to_owned());
        Ok(case)
    }

    /// A dense operand.
    pub fn dense(&self, rows: usize, seed: u64) -> Result<Mat<f32>> {
        let n = self.n;
        self.bench.cpu.install(|| generate::uniform_dense(rows, n, seed))
    }

    fn prepare(&self, op: Op) -> Result<(Prepared<f32>, f64)> {
        timed(|| self.bench.cpu.prepare(self.a, &PlanOptions::new(op, self.n).reuse(REUSE)))
    }

    /// out = (C B^T) on the pattern; peers compute all of C B^T, as in the ESIMD paper.
    fn sddmm(&self, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let &Self { bench, a, .. } = self;
        let cpu = &bench.cpu;
        let (c, b) = (self.dense(a.rows(), 1)?, self.dense(a.cols(), 2)?);
        let (c, b) = (c.as_ref(), b.as_ref());
        let gathered = rows.gather(c)?;
        let expected = cpu.install(|| reference::sddmm(&rows.a, false, gathered.as_ref(), b))?;
        let (prepared, prepare_s) = self.prepare(Op::Sddmm)?;
        let mut out = vec![0f32; a.nnz()];
        cpu.sddmm(&prepared, c, b, &mut out)?;
        let error = cpu.install(|| expected.deviation_of_values(&rows.values(&out)))?;
        let wide = self.wide(case)?;

        let run = || cpu.sddmm(&prepared, c, b, &mut out).map_err(|e| e.to_string());
        let mut all = Contenders::new(case, prepared.plan(), prepare_s, error, run);
        for (name, dense) in self.if_wide(&wide) {
            let product = || dense.multiply(cpu, c, b, true, wide.borrow_mut().as_mut());
            let verify = || {
                let got = rows.sampled(&wide.borrow());
                cpu.install(|| expected.deviation_of_values(&got))
            };
            all.peer(name, "all of C B^T", None, product, verify)?;
        }
        all.race(bench)
    }

    /// C = A B; peers: sparse products, and dense ones of A with its zeros.
    fn spmm(&self, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let &Self { bench, a, n, .. } = self;
        let cpu = &bench.cpu;
        let b = self.dense(a.cols(), 2)?;
        let b = b.as_ref();
        let zero = Mat::zeros(rows.rows.len(), n)?;
        let expected = cpu.install(|| reference::spmm(1.0, &rows.a, b, 0.0, zero.as_ref()))?;
        let (prepared, prepare_s) = self.prepare(Op::Spmm)?;
        let mut c = Mat::zeros(a.rows(), n)?;
        cpu.spmm(1.0, &prepared, b, 0.0, c.as_mut())?;
        let error = rows.deviation(cpu, &expected, &c)?;
        let theirs = RefCell::new(Mat::zeros(a.rows(), n)?);
        let inspected = self.inspect(case);
        let full = self.wide(case)?;
        if full.borrow().rows() == a.rows() {
            fill(full.borrow_mut().as_mut(), a);
        }

        let run = || cpu.spmm(1.0, &prepared, b, 0.0, c.as_mut()).map_err(|e| e.to_string());
        let mut all = Contenders::new(case, prepared.plan(), prepare_s, error, run);
        let verify = || rows.deviation(cpu, &expected, &theirs.borrow());
        for (name, matrix, seconds) in &inspected {
            let product = || matrix.multiply(b, theirs.borrow_mut().as_mut());
            all.peer(name, "inspected", Some(*seconds), product, verify)?;
        }
        for (name, dense) in self.if_wide(&full) {
            let product = || dense.multiply(cpu, full.borrow().as_ref(), b, false, theirs.borrow_mut().as_mut());
            all.peer(name, "A with its zeros", None, product, verify)?;
        }
        all.race(bench)
    }

    /// E = (C B^T on the pattern) D; peers: all of C B^T and then a sparse product, the sampling between them left out, as in
    /// the ESIMD paper.
    fn fusedmm(&self, rows: &SampledRows, case: &mut Case) -> Result<()> {
        let &Self { bench, a, n, .. } = self;
        let cpu = &bench.cpu;
        let (c, b, d) = (self.dense(a.rows(), 1)?, self.dense(a.cols(), 2)?, self.dense(a.cols(), 3)?);
        let (c, b, d) = (c.as_ref(), b.as_ref(), d.as_ref());
        let d = if self.kernel == Kernel::FusedMmOfB { b } else { d };
        let gathered = rows.gather(c)?;
        let expected =
            cpu.install(|| reference::fusedmm(&rows.a, reference::Edge::Identity, gathered.as_ref(), b, d))?;
        let (prepared, prepare_s) = self.prepare(Op::FusedMm)?;
        let mut e = Mat::zeros(a.rows(), n)?;
        cpu.fusedmm(&prepared, edge::Identity, c, b, d, e.as_mut())?;
        let error = rows.deviation(cpu, &expected, &e)?;
        let wide = self.wide(case)?;
        let theirs = RefCell::new(Mat::zeros(a.rows(), n)?);
        let inspected = self.inspect(case);
        let zero = Mat::zeros(rows.rows.len(), n)?;
        let dots = cpu.install(|| reference::sddmm(&rows.a, false, gathered.as_ref(), b))?;
        let products = cpu.install(|| reference::spmm(1.0, &rows.a, d, 0.0, zero.as_ref()))?;

        let mut unfused = None;
        let mut values = vec![0.0; a.nnz()];
        if self.unfused {
            let ((sampled, of_dots), (summed, of_sums)) = (self.prepare(Op::Sddmm)?, self.prepare(Op::Spmm)?);
            unfused = Some((sampled, of_dots, summed, of_sums));
        }

        let run = || cpu.fusedmm(&prepared, edge::Identity, c, b, d, e.as_mut()).map_err(|e| e.to_string());
        let mut all = Contenders::new(case, prepared.plan(), prepare_s, error, run);
        // Of the sparse products the one with threads: the first.
        for (sparse, matrix, seconds) in inspected.iter().take(1) {
            for (name, dense) in self.if_wide(&wide) {
                let both = || {
                    dense.multiply(cpu, c, b, true, wide.borrow_mut().as_mut())?;
                    matrix.multiply(d, theirs.borrow_mut().as_mut())
                };
                let verify = || {
                    let got = rows.sampled(&wide.borrow());
                    let first = cpu.install(|| dots.deviation_of_values(&got))?;
                    let second = rows.deviation(cpu, &products, &theirs.borrow())?;
                    Ok(if first.error > second.error { first } else { second })
                };
                let name = format!("{name} + {sparse}");
                all.peer(&name, "one after the other, without the sampling", Some(*seconds), both, verify)?;
            }
        }
        if let Some((sampled, of_dots, summed, of_sums)) = &mut unfused {
            let both = || {
                let mut both = || {
                    cpu.sddmm(&*sampled, c, b, &mut values)?;
                    let mut out = theirs.borrow_mut();
                    if summed.plan().strategy() == Strategy::Direct {
                        return cpu.spmm(1.0, CsrRef::on(a.pattern(), &values)?, d, 0.0, out.as_mut());
                    }
                    summed.set_values(cpu, &values)?;
                    cpu.spmm(1.0, &*summed, d, 0.0, out.as_mut())
                };
                both().map_err(|e| e.to_string())
            };
            let verify = || rows.deviation(cpu, &expected, &theirs.borrow());
            all.peer(UNFUSED, "ours, one after the other", Some(*of_dots + *of_sums), both, verify)?;
        }
        all.race(bench)
    }

    /// Room for a dense matrix of the sparse one's dimensions; of no rows where it is not needed or would be too large.
    fn wide(&self, case: &mut Case) -> Result<RefCell<Mat<f32>>> {
        let &Self { bench, a, .. } = self;
        let bytes = a.rows().saturating_mul(a.cols()).saturating_mul(size_of::<f32>());
        let fits = bytes <= MOST_DENSE;
        if !fits && !bench.peers.dense.is_empty() {
            case.notes.push(format!("dense products left out: {} x {} takes {} GiB", a.rows(), a.cols(), bytes >> 30));
        }
        let rows = if fits && !bench.peers.dense.is_empty() { a.rows() } else { 0 };
        Ok(RefCell::new(Mat::zeros(rows, a.cols())?))
    }

    /// The dense products, when there is room for them.
    fn if_wide(&self, wide: &RefCell<Mat<f32>>) -> &[(&'static str, Dense)] {
        if wide.borrow().rows() == self.a.rows() { &self.bench.peers.dense } else { &[] }
    }

    /// The matrix as each sparse library has it; who refuses is noted.
    fn inspect(&self, case: &mut Case) -> Vec<(&'static str, Inspected<'_>, f64)> {
        let mut inspected = Vec::new();
        for (name, library) in &self.bench.peers.sparse {
            match library.inspect(self.a, self.n) {
                Ok((matrix, seconds)) => inspected.push((*name, matrix, seconds)),
                Err(why) => case.notes.push(format!("{name}: {why}")),
            }
        }
        inspected
    }
}

/// `full` = `a`, zeros and all.
fn fill(mut full: MatMut<'_, f32>, a: &Csr<f32>) {
    for i in 0..a.rows() {
        let row = full.reborrow().into_row(i);
        let range = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
        for (&j, &x) in a.pattern().row(i).iter().zip(&a.values()[range]) {
            row[j as usize] = x;
        }
    }
}

/// Who will race, all of them right.
struct Contenders<'a, 'c> {
    case: &'c mut Case,
    list: Vec<Contender<'a>>,
}

impl<'a, 'c> Contenders<'a, 'c> {
    /// With us.
    fn new(
        case: &'c mut Case,
        plan: &sparsimd::plan::Plan,
        prepare_s: f64,
        deviation: Deviation,
        run: impl FnMut() -> Result<(), String> + 'a,
    ) -> Self {
        case.wrong = deviation.error > 1.0;
        if case.wrong {
            case.notes.push(format!("{OURS}: {:.3} times the bound in row {}", deviation.error, deviation.row));
        }
        let ours = Contender {
            name: OURS.to_owned(),
            ours: true,
            detail: plan.to_string(),
            prepare_s: (plan.strategy() != Strategy::Direct).then_some(prepare_s),
            error: Some(deviation.error),
            figures: BTreeMap::new(),
            run: Box::new(run),
        };
        Self { case, list: vec![ours] }
    }

    /// Runs a peer's product once and adds it if it is right; else it is noted.
    fn peer(
        &mut self,
        name: &str,
        detail: &str,
        prepare_s: Option<f64>,
        mut product: impl FnMut() -> Result<(), String> + 'a,
        verify: impl FnOnce() -> Result<Deviation>,
    ) -> Result<()> {
        if let Err(why) = product() {
            self.case.notes.push(format!("{name}: {why}"));
            return Ok(());
        }
        let deviation = verify()?;
        if deviation.error > 1.0 {
            self.case.notes.push(format!("{name}: wrong, {:.3} times the bound; not timed", deviation.error));
            return Ok(());
        }
        self.list.push(Contender {
            name: name.to_owned(),
            ours: false,
            detail: detail.to_owned(),
            prepare_s,
            error: Some(deviation.error),
            figures: BTreeMap::new(),
            run: Box::new(product),
        });
        Ok(())
    }

    /// Times all, unless we are wrong.
    fn race(self, bench: &Bench) -> Result<()> {
        if self.case.wrong {
            return Ok(());
        }
        let (samples, notes) = bench.race.run(&bench.cpu, self.case.flops, self.list)?;
        self.case.samples = samples;
        self.case.notes.extend(notes);
        Ok(())
    }
}

/// Some rows of a matrix, evenly spread and all of them if that is not too much work: what results are verified on.
pub struct SampledRows {
    pub rows: Vec<usize>,
    /// Their nonzeros in the whole matrix.
    nonzeros: Vec<Range<usize>>,
    /// These rows alone.
    pub a: Csr<f32>,
}

impl SampledRows {
    /// So many rows that products of `n` columns take about `work` multiplications.
    fn new(a: &Csr<f32>, n: usize, work: usize) -> Result<Self> {
        let all = a.rows();
        let share = work as f64 / (a.nnz() as f64 * n as f64).max(1.0);
        let count = ((all as f64 * share) as usize).clamp(16, all.max(16)).min(all);
        // From the first to the last.
        let rows: Vec<usize> = (0..count).map(|i| i * (all - 1) / (count - 1).max(1)).collect();
        let row_ptr = a.pattern().row_ptr();
        let nonzeros: Vec<_> = rows.iter().map(|&i| row_ptr[i]..row_ptr[i + 1]).collect();
        let starts = std::iter::once(0).chain(nonzeros.iter().scan(0, |end, range| {
            *end += range.len();
            Some(*end)
        }));
        let columns = rows.iter().flat_map(|&i| a.pattern().row(i)).copied().collect();
        let pattern = Pattern::new(rows.len(), a.cols(), starts.collect(), columns)?;
        let values = nonzeros.iter().flat_map(|range| &a.values()[range.clone()]).copied().collect();
        Ok(Self { a: Csr::new(pattern, values)?, rows, nonzeros })
    }

    /// Of values in CSR order those of these rows.
    pub fn values<D: Stored>(&self, values: &[D]) -> Vec<D> {
        self.nonzeros.iter().flat_map(|range| &values[range.clone()]).copied().collect()
    }

    /// The elements of `all` at the nonzeros of these rows.
    fn sampled(&self, all: &Mat<f32>) -> Vec<f32> {
        let row = |(&i, at): (&usize, usize)| self.a.pattern().row(at).iter().map(move |&j| all.row(i)[j as usize]);
        self.rows.iter().zip(0..).flat_map(row).collect()
    }

    /// How far these rows of `got` are from `expected`.
    pub fn deviation<D: Stored>(&self, cpu: &Cpu, expected: &Expected, got: &Mat<D>) -> Result<Deviation> {
        let gathered = self.gather(got.as_ref())?;
        cpu.install(|| expected.deviation(gathered.as_ref()))
    }

    /// These rows of `m`.
    pub fn gather<D: Stored>(&self, m: MatRef<'_, D>) -> Result<Mat<D>> {
        let mut gathered = Mat::zeros(self.rows.len(), m.cols())?;
        for (at, &i) in self.rows.iter().enumerate() {
            gathered.as_mut().into_row(at).copy_from_slice(m.row(i));
        }
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_rows_are_those_of_the_matrix() {
        let a = generate::random_matrix::<f32>(1000, 50, 0.8, 3).unwrap();
        for work in [0, 1 << 14, usize::MAX] {
            let sampled = SampledRows::new(&a, 8, work).unwrap();
            assert_eq!((sampled.rows[0], *sampled.rows.last().unwrap()), (0, 999));
            assert!(sampled.rows.is_sorted_by(|a, b| a < b), "{:?}", sampled.rows);
            for (at, &i) in sampled.rows.iter().enumerate() {
                assert_eq!(sampled.a.pattern().row(at), a.pattern().row(i));
                let range = sampled.a.pattern().row_ptr()[at]..sampled.a.pattern().row_ptr()[at + 1];
                assert_eq!(sampled.a.values()[range], a.values()[sampled.nonzeros[at].clone()]);
            }
        }
        assert_eq!(SampledRows::new(&a, 8, usize::MAX).unwrap().rows.len(), 1000);
        assert_eq!(SampledRows::new(&a, 8, 0).unwrap().rows.len(), 16);
    }
}
