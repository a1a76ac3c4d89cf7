//! Every operation on every real matrix, against the reference: each matrix is a test, named as its file.
//!
//! A quick run takes one width and element type per matrix and operation, in turn; `SPARSIMD_VERIFY=all` takes all of
//! them. Both take every path and instruction set.

mod common;

use std::path::Path;
use std::process::ExitCode;

use common::matrices::{STRATEGIES, aligned, prepare};
use libtest_mimic::{Arguments, Trial};
use sparsimd::edge::{self, Edge};
use sparsimd::io::{ReadOptions, read_matrix};
use sparsimd::plan::{Op, Strategy};
use sparsimd::reference::{self, Expected};
use sparsimd::{Arch, Cpu, Csr, Mat, MatRef, Scalar};

const WIDTHS: [usize; 7] = [1, 3, 17, 32, 100, 128, 257];

/// An operation of the command line.
#[derive(Clone, Copy, Debug)]
enum Case {
    Spmm,
    Sddmm,
    ScaledSddmm,
    Identity,
    Scale,
    Sigmoid,
    Softmax,
}

const CASES: [Case; 7] =
    [Case::Spmm, Case::Sddmm, Case::ScaledSddmm, Case::Identity, Case::Scale, Case::Sigmoid, Case::Softmax];

/// A matrix with operands of one width.
struct Problem<'a, T> {
    a: &'a Csr<T>,
    c: Mat<T>,
    b: Mat<T>,
    d: Mat<T>,
}

/// A result: dense, or one value per nonzero.
enum Got<T> {
    Dense(Mat<T>),
    Values(Vec<T>),
}

impl<T: Scalar> Problem<'_, T> {
    fn expected(&self, case: Case) -> Expected {
        let (a, c, b, d) = (self.a, self.c.as_ref(), self.b.as_ref(), self.d.as_ref());
        let fused = |edge| reference::fusedmm(a, edge, c, b, d).unwrap();
        match case {
            Case::Spmm => reference::spmm(T::ONE, a, b, T::ZERO, c).unwrap(),
            Case::Sddmm => reference::sddmm(a, false, c, b).unwrap(),
            Case::ScaledSddmm => reference::sddmm(a, true, c, b).unwrap(),
            Case::Identity => fused(reference::Edge::Identity),
            Case::Scale => fused(reference::Edge::Scale),
            Case::Sigmoid => fused(reference::Edge::Sigmoid),
            Case::Softmax => fused(reference::Edge::Softmax { scale: self.scale().to_f64() }),
        }
    }

    fn scale(&self) -> T {
        T::from_f64(1.0 / (self.c.cols() as f64).sqrt())
    }

    fn run(&self, cpu: &Cpu, path: Strategy, case: Case) -> Got<T> {
        match case {
            Case::Spmm => {
                let mut out = Mat::zeros(self.a.rows(), self.b.cols()).unwrap();
                let prepared = prepare(cpu, Op::Spmm, self.a, self.b.cols(), path);
                cpu.spmm(T::ONE, &prepared, self.b.as_ref(), T::ZERO, out.as_mut()).unwrap();
                Got::Dense(out)
            }
            Case::Sddmm | Case::ScaledSddmm => {
                let mut out = vec![T::ZERO; self.a.nnz()];
                let prepared = prepare(cpu, Op::Sddmm, self.a, self.b.cols(), path);
                let (c, b) = (self.c.as_ref(), self.b.as_ref());
                match case {
                    Case::Sddmm => cpu.sddmm(&prepared, c, b, &mut out).unwrap(),
                    _ => cpu.sddmm_scaled(&prepared, c, b, &mut out).unwrap(),
                }
                Got::Values(out)
            }
            Case::Identity => self.fused(cpu, path, edge::Identity),
            Case::Scale => self.fused(cpu, path, edge::Scale),
            Case::Sigmoid => self.fused(cpu, path, edge::Sigmoid),
            Case::Softmax => self.fused(cpu, path, edge::Softmax { scale: self.scale() }),
        }
    }

    fn fused<F: Edge<T>>(&self, cpu: &Cpu, path: Strategy, edge: F) -> Got<T> {
        let mut out = Mat::zeros(self.a.rows(), self.d.cols()).unwrap();
        let prepared = prepare(cpu, Op::FusedMm, self.a, self.b.cols(), path);
        let (c, b, d): (MatRef<'_, T>, _, _) = (self.c.as_ref(), self.b.as_ref(), self.d.as_ref());
        cpu.fusedmm(&prepared, edge, c, b, d, out.as_mut()).unwrap();
        Got::Dense(out)
    }
}

/// Checks `case` on `file` at width `n`; the largest error.
fn check<T: Scalar>(cpus: &[Cpu], file: &Path, a: &Csr<T>, n: usize, case: Case) -> f64 {
    let problem = Problem { a, c: aligned(a.rows(), n, 1), b: aligned(a.cols(), n, 2), d: aligned(a.cols(), n, 3) };
    let expected = problem.expected(case);
    let mut largest = 0.0f64;
    for cpu in cpus {
        for path in STRATEGIES {
            let worst = match problem.run(cpu, path, case) {
                Got::Dense(out) => expected.deviation(out.as_ref()),
                Got::Values(out) => expected.deviation_of_values(&out),
            }
            .unwrap();
            let (file, arch) = (file.display(), cpu.arch().name());
            assert!(worst.error <= 1.0, "{file}, {case:?}, {}, N = {n}, {path:?}, {arch}: {worst:?}", T::NAME);
            largest = largest.max(worst.error);
        }
    }
    largest
}

fn check_all<T: Scalar>(cpus: &[Cpu], file: &Path, at: usize, everything: bool) -> f64 {
    let a = read_matrix::<T>(file, ReadOptions::default()).unwrap().into_csr().unwrap();
    let mut largest = 0.0f64;
    for (turn, case) in CASES.into_iter().enumerate() {
        for (width, n) in WIDTHS.into_iter().enumerate() {
            // The element types take turns too: f32 at even places.
            let mine = (at + turn) % WIDTHS.len() == width && (at + turn).is_multiple_of(2) == (T::NAME == "f32");
            if everything || mine {
                largest = largest.max(check(cpus, file, &a, n, case));
            }
        }
    }
    largest
}

fn main() -> ExitCode {
    let everything = std::env::var_os("SPARSIMD_VERIFY").is_some_and(|value| value == "all");
    let mut files = vec![common::shipped_matrix()];
    files.extend(common::data_dir().iter().flat_map(|dir| common::matrix_files(dir)));
    let tests = files.into_iter().enumerate().map(|(at, file)| {
        let name = file.file_name().expect("a file").to_string_lossy().into_owned();
        Trial::test(name.clone(), move || {
            let cpus: Vec<Cpu> =
                Arch::available().into_iter().map(|arch| Cpu::builder().arch(arch).build().unwrap()).collect();
            let narrow = check_all::<f32>(&cpus, &file, at, everything);
            let wide = check_all::<f64>(&cpus, &file, at, everything);
            println!("{name}: largest error {narrow:.3} (f32), {wide:.3} (f64) of the bound");
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), tests.collect()).exit_code()
}
