//! Plans that are measured: right on every executor, kept as wisdom, and what the next estimate starts from.

mod common;

use std::path::Path;

use common::matrices::{aligned, executors, sparse_rows};
use sparsimd::plan::{Effort, MttkrpFormat, Op, PlanOptions, Strategy, TensorOptions};
use sparsimd::{Cpu, Csr, Mat, Prepared, Scalar, edge, generate, reference};

const OPS: [Op; 4] = [Op::Spmm, Op::SpmmTransposed, Op::Sddmm, Op::FusedMm];

fn executor(wisdom: &Path) -> Cpu {
    Cpu::builder().threads(2).pin(false).wisdom(wisdom).build().unwrap()
}

/// The error of `op` on what is prepared, in units of its bound.
fn error<T: Scalar>(cpu: &Cpu, op: Op, a: &Csr<T>, n: usize, prepared: &Prepared<T>) -> f64 {
    let (c, b) = (aligned::<T>(a.rows(), n, 1), aligned::<T>(a.cols(), n, 2));
    let zeros = |rows| Mat::zeros(rows, n).unwrap();
    let (c, b) = (c.as_ref(), b.as_ref());
    match op {
        Op::Spmm => {
            let mut out = zeros(a.rows());
            let expected = reference::spmm(T::ONE, a, b, T::ZERO, out.as_ref()).unwrap();
            cpu.spmm(T::ONE, prepared, b, T::ZERO, out.as_mut()).unwrap();
            expected.deviation(out.as_ref())
        }
        Op::SpmmTransposed => {
            let mut out = zeros(a.cols());
            let expected = reference::spmm_t(T::ONE, a, c, T::ZERO, out.as_ref()).unwrap();
            cpu.spmm_t(T::ONE, prepared, c, T::ZERO, out.as_mut()).unwrap();
            expected.deviation(out.as_ref())
        }
        Op::Sddmm => {
            let mut out = vec![T::ZERO; a.nnz()];
            cpu.sddmm(prepared, c, b, &mut out).unwrap();
            reference::sddmm(a, false, c, b).unwrap().deviation_of_values(&out)
        }
        Op::FusedMm => {
            let mut out = zeros(a.rows());
            cpu.fusedmm(prepared, edge::Sigmoid, c, b, b, out.as_mut()).unwrap();
            reference::fusedmm(a, reference::Edge::Sigmoid, c, b, b).unwrap().deviation(out.as_ref())
        }
    }
    .unwrap()
    .error
}

fn measured_plans_are_right<T: Scalar>() {
    let mut matrices = sparse_rows::<T>();
    matrices.push(generate::random_matrix(256, 300, 0.6, 1).unwrap());
    matrices.push(generate::random_matrix(0, 5, 0.5, 1).unwrap());
    let folder = tempfile::tempdir().unwrap();
    for (i, cpu) in executors().iter().enumerate() {
        let wisdom = folder.path().join(i.to_string());
        let cpu = Cpu::builder().arch(cpu.arch()).threads(cpu.threads()).pin(false).wisdom(wisdom).build().unwrap();
        for (a, op) in matrices.iter().flat_map(|a| OPS.map(|op| (a, op))) {
            let options = PlanOptions::new(op, 70).reuse(200).effort(Effort::Measure);
            let prepared = cpu.prepare(a, &options).unwrap();
            let words = format!("{op:?} {}, {}: {}", T::NAME, cpu.arch().name(), prepared.plan().explain());
            let error = error(&cpu, op, a, 70, &prepared);
            assert!(error <= 1.0, "{words}: {error}");
            assert_eq!(words.contains(" that were measured in "), a.nnz() > 0, "{words}");
        }
    }
}

#[test]
fn measured_plans_are_right_f32() {
    measured_plans_are_right::<f32>();
}

#[test]
fn measured_plans_are_right_f64() {
    measured_plans_are_right::<f64>();
}

#[test]
fn a_strategy_that_was_asked_for_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = executor(&folder.path().join("wisdom"));
    let a = generate::random_matrix::<f32>(300, 300, 0.8, 1).unwrap();
    for strategy in [Strategy::Direct, Strategy::Panel] {
        let options = PlanOptions::new(Op::Spmm, 64).strategy(strategy).reuse(1 << 20).effort(Effort::Measure);
        assert_eq!(cpu.prepare(&a, &options).unwrap().plan().strategy(), strategy);
    }
    for strategy in [Strategy::Direct, Strategy::Panel, Strategy::Slices] {
        let options = PlanOptions::new(Op::SpmmTransposed, 1).strategy(strategy).effort(Effort::Measure);
        assert_eq!(cpu.prepare(&a, &options).unwrap().plan().strategy(), strategy);
    }
}

#[test]
fn estimates_start_from_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let wisdom = folder.path().join("wisdom");
    let a = generate::random_matrix::<f32>(500, 500, 0.8, 1).unwrap();
    let options = PlanOptions::new(Op::Spmm, 64).reuse(1 << 20);
    let (cpu, other) = (executor(&wisdom), Cpu::builder().threads(2).pin(false).without_wisdom().build().unwrap());
    let plan = |cpu: &Cpu, options: &PlanOptions| cpu.prepare(&a, options).unwrap().plan().clone();
    let words = |cpu: &Cpu, options: &PlanOptions| plan(cpu, options).explain();
    assert_eq!(plan(&cpu, &options), plan(&other, &options));

    let measured = plan(&cpu, &options.effort(Effort::Measure));
    assert_eq!(std::fs::read_to_string(&wisdom).unwrap().lines().count(), 1);
    for cpu in [&cpu, &executor(&wisdom)] {
        let words = words(cpu, &options);
        assert!(words.ends_with("(as measured for a matrix like this)"), "{words}");
        let numbers = |words: &str| words.split(" (").next().unwrap().to_owned();
        assert_eq!(numbers(&words), numbers(&measured.explain()));
    }
    assert_eq!(plan(&other, &options), plan(&other, &options.effort(Effort::Estimate)));
    // Another number of columns is another case.
    assert!(!words(&executor(&wisdom), &PlanOptions::new(Op::Spmm, 65)).contains("as measured"));
}

/// Kernels read the numbers of plans: a file's are only ever taken within what they allow.
#[test]
fn numbers_beyond_all_limits_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let wisdom = folder.path().join("wisdom");
    let a = generate::random_matrix::<f64>(700, 600, 0.7, 1).unwrap();
    let huge = usize::MAX;
    let absurd = [
        format!("panel {huge} {huge} {huge} 1"),
        "panel 0 0 0 1".to_owned(),
        "panel 5 77 1 1".to_owned(),
        format!("direct 0 {huge}"),
        format!("direct {} 3", huge - 1),
        "slices".to_owned(),
    ];
    for (op, n) in OPS.iter().flat_map(|&op| [1, 5, 128, 200].map(|n| (op, n))) {
        let options = PlanOptions::new(op, n).reuse(1000);
        let _ = std::fs::remove_file(&wisdom);
        executor(&wisdom).prepare(&a, &options.reuse(1 << 20).effort(Effort::Measure)).unwrap();
        let line = std::fs::read_to_string(&wisdom).unwrap();
        let choices = ["panel", "direct", "slices"].into_iter().find_map(|name| line.find(name)).unwrap();
        let case = line[..choices].to_owned();
        for choices in &absurd {
            std::fs::write(&wisdom, format!("{case}{choices}\n")).unwrap();
            let cpu = executor(&wisdom);
            let prepared = cpu.prepare(&a, &options).unwrap();
            assert!(prepared.plan().explain().contains("as measured"), "{choices}: {}", prepared.plan().explain());
            let error = error(&cpu, op, &a, n, &prepared);
            assert!(error <= 1.0, "{op:?}, {n} columns, {choices}: {error}");
        }
    }
}

/// The format that is fastest here is not known; that it is right in every mode, and what was asked for is kept, is.
#[test]
fn measured_tensors_are_right() {
    let x = generate::skewed::<f64>(&[40, 30, 50], 5000, 1).unwrap();
    let factors = [40, 30, 50].map(|rows| aligned::<f64>(rows, 9, 3));
    let views = factors.each_ref().map(Mat::as_ref);
    for cpu in executors() {
        let options = TensorOptions::new(9).reuse(1 << 20).effort(Effort::Measure);
        let free = cpu.prepare_tensor(&x, &options).unwrap();
        assert!(free.plan().explain().contains("the fastest of 6 that were measured in "), "{}", free.plan().explain());
        let fixed = cpu.prepare_tensor(&x, &options.format(MttkrpFormat::MmCsf)).unwrap();
        assert_eq!(fixed.plan().format(), MttkrpFormat::MmCsf);
        for (mode, prepared) in (0..3).flat_map(|mode| [(mode, &free), (mode, &fixed)]) {
            let mut out = Mat::zeros(x.dims()[mode], 9).unwrap();
            cpu.mttkrp(prepared, &views, mode, out.as_mut()).unwrap();
            let worst = reference::mttkrp(&x, &views, mode).unwrap().deviation(out.as_ref()).unwrap();
            assert!(worst.error <= 1.0, "{}, mode {mode}: {worst:?}", cpu.arch().name());
        }
    }
}
