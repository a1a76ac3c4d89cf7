//! CP-OPT: all factors at once.

use sparsimd::decomp::CpIteration;
use sparsimd::reference;

use super::*;

fn optimise<T: Scalar>(
    cpu: &Cpu,
    coo: &CooTensor<T>,
    options: &CpOptions<T>,
    format: MttkrpFormat,
) -> (CpState<T>, Vec<CpIteration>) {
    let tensor = cpu.prepare_tensor(coo, &TensorOptions::new(options.rank).format(Some(format))).unwrap();
    let mut iterations = Vec::new();
    let state = cpu.cp_opt(&tensor, options, |_, iteration| {
        iterations.push(*iteration);
        ControlFlow::Continue(())
    });
    (state.unwrap(), iterations)
}

fn options<T: Scalar>(rank: usize, iterations: usize, tolerance: f64, seed: u64) -> CpOptions<T> {
    CpOptions { iterations, tolerance, init: CpInit::Seed(seed), ..CpOptions::new(rank) }
}

/// How well the best assignment of `found`'s components to those of `truth` matches: the product over the modes of the cosines,
/// the least over the components of `truth`.
fn match_score(truth: &[Mat<f64>], found: &CpState<f64>) -> f64 {
    let cosine = |a: &Mat<f64>, r: usize, b: &Mat<f64>, s: usize| {
        let sum = |f: &dyn Fn(usize) -> f64| (0..a.rows()).map(f).sum::<f64>();
        let dot = sum(&|i| a.row(i)[r] * b.row(i)[s]);
        dot / (sum(&|i| a.row(i)[r].powi(2)) * sum(&|i| b.row(i)[s].powi(2))).sqrt()
    };
    let score = |r: usize, s: usize| truth.iter().zip(&found.factors).map(|(a, b)| cosine(a, r, b, s)).product::<f64>();
    let best = |r: usize| (0..found.lambda.len()).map(|s| score(r, s).abs()).fold(0.0, f64::max);
    (0..truth[0].cols()).map(best).fold(1.0, f64::min)
}

#[test]
fn finds_the_components_of_a_low_rank_tensor() {
    let cpu = cpu();
    for dims in [vec![12, 9, 15], vec![6, 7, 5, 8]] {
        let coo = low_rank::<f64>(&dims, 3);
        let (state, iterations) = optimise(&cpu, &coo, &options(3, 5000, 1e-12, 1), MttkrpFormat::Joint);
        assert!(state.fit() > 0.9999, "{dims:?}: {} after {}", state.fit(), state.fits.len());
        assert!(iterations.windows(2).all(|w| w[1].objective <= w[0].objective));
        // Such a model is unique but for the order of its components (Kruskal 1977).
        let truth: Vec<Mat<f64>> = dims.iter().enumerate().map(|(m, &dim)| truth(m, dim, 3)).collect();
        assert!(match_score(&truth, &state) > 0.999, "{dims:?}: {}", match_score(&truth, &state));
    }
}

/// Acar, Dunlavy and Kolda (2011): with one component too many the others are found all the same.
#[test]
fn finds_the_components_when_asked_for_one_too_many() {
    let cpu = cpu();
    let dims = [20, 18, 16];
    let coo = low_rank::<f64>(&dims, 3);
    let truth: Vec<Mat<f64>> = dims.iter().enumerate().map(|(m, &dim)| truth(m, dim, 3)).collect();
    let scores: Vec<f64> = (0..4)
        .map(|seed| {
            let (state, _) = optimise(&cpu, &coo, &options(4, 5000, 1e-13, seed), MttkrpFormat::Joint);
            assert!(state.fit() > 0.9999, "{}", state.fit());
            match_score(&truth, &state)
        })
        .collect();
    assert!(scores.iter().filter(|&&score| score > 0.99).count() >= 2, "{scores:?}");
}

/// The answer is a stationary point of the function itself, as naive loops compute its gradient.
#[test]
fn the_gradient_at_the_answer_is_zero() {
    let cpu = cpu();
    // A component less than the tensor has: there is a residual.
    let coo = low_rank::<f64>(&[12, 9, 15], 3);
    for ridge in [0.0, 2.0] {
        let (rank, norm) = (2, coo.values().iter().map(|x| x * x).sum::<f64>().sqrt());
        let given = CpOptions { ridge, ..options(rank, 4000, 0.0, 2) };
        let (state, iterations) = optimise(&cpu, &coo, &given, MttkrpFormat::Tree);
        let last = iterations.last().unwrap();
        // The factors as they were reached come first in what the method remembers.
        let mut rest = &state.memory[0][..];
        let factors: Vec<Mat<f64>> = coo
            .dims()
            .iter()
            .map(|&dim| {
                let (own, others) = rest.split_at(dim * rank);
                rest = others;
                Mat::from_fn(dim, rank, |i, r| own[i * rank + r]).unwrap()
            })
            .collect();
        let views: Vec<_> = factors.iter().map(Mat::as_ref).collect();
        let (mut largest, mut squares) = (0.0f64, 0.0);
        for mode in 0..3 {
            let expected = reference::mttkrp(&coo, &views, mode).unwrap();
            let gram = |f: &Mat<f64>, r: usize, s: usize| f.iter_rows().map(|row| row[r] * row[s]).sum::<f64>();
            for i in 0..coo.dims()[mode] {
                let row = factors[mode].row(i);
                for r in 0..rank {
                    let others =
                        |s: usize| (0..3).filter(|&m| m != mode).map(|m| gram(&factors[m], r, s)).product::<f64>();
                    let own: f64 = (0..rank).map(|s| row[s] * others(s)).sum();
                    let g = own + ridge * row[r] - expected.values()[i * rank + r];
                    largest = largest.max(g.abs());
                    squares += row[r] * row[r];
                }
            }
        }
        assert!(largest < 1e-4 * norm, "{largest} of {norm}");
        assert!((largest - last.violation.unwrap()).abs() < 1e-9 * norm, "{largest} {:?}", last.violation);
        let residual = ((1.0 - state.fit()) * norm).powi(2);
        assert!((last.objective - 0.5 * (residual + ridge * squares)).abs() < 1e-8 * norm * norm);
    }
}

#[test]
fn every_format_leads_to_the_same_fit() {
    let cpu = cpu();
    let coo = skewed::<f64>(&[30, 20, 40, 10], 5000, 4).unwrap();
    let fit = |format| optimise(&cpu, &coo, &options(5, 10, 0.0, 3), format).0.fit();
    let fits: Vec<f64> = MttkrpFormat::ALL.into_iter().map(fit).collect();
    assert!(fits.iter().all(|fit| (fit - fits[0]).abs() < 1e-9), "{fits:?}");
}

#[test]
fn a_resumed_run_has_the_bits_of_an_unbroken_one() {
    let cpu = cpu();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let coo = skewed::<f32>(&[50, 60, 40], 9000, 4).unwrap();
    let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(7).format(Some(MttkrpFormat::Joint))).unwrap();
    let options = options::<f32>(7, 20, 0.0, 0);
    let whole = cpu.cp_opt(&tensor, &options, |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(whole.fits.len(), 20);
    for end in [1, 3, 11] {
        let observe = |state: &CpState<f32>, iteration: &CpIteration| match iteration.number {
            number if number == end => {
                state.save(&path).unwrap();
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        };
        let half = cpu.cp_opt(&tensor, &options, observe).unwrap();
        assert_eq!(half.fits, whole.fits[..end]);
        let resumed = CpOptions { init: CpInit::Resume(CpState::load(&path).unwrap()), ..options.clone() };
        let again = cpu.cp_opt(&tensor, &resumed, |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(bits(&again), bits(&whole));
    }
    // From a model of ALS it goes on, too: the fit gets no worse.
    let als = cpu.cp_als(&tensor, &options, |_, _| ControlFlow::Continue(())).unwrap();
    let fit = als.fit();
    let resumed = CpOptions { init: CpInit::Resume(als), iterations: 25, ..options };
    let on = cpu.cp_opt(&tensor, &resumed, |_, _| ControlFlow::Continue(())).unwrap();
    assert!(on.fit() >= fit - 1e-6, "{} after {fit}", on.fit());
}

#[test]
fn odd_tensors_give_numbers_and_bad_options_errors() {
    let cpu = cpu();
    let zeros = CooTensor::new(vec![3, 3, 3], vec![vec![0, 2]; 3], vec![0.0f64; 2]).unwrap();
    let none = CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]).unwrap();
    let one = CooTensor::new(vec![9, 5, 7], vec![vec![8], vec![0], vec![3]], vec![2.0]).unwrap();
    for coo in [zeros, none, one] {
        let (state, _) = optimise(&cpu, &coo, &options(6, 300, 1e-9, 0), MttkrpFormat::Joint);
        assert!((state.fit() - 1.0).abs() < 1e-3, "{:?}", state.fits);
        let finite = |f: &Mat<f64>| f.iter_rows().all(|row| row.iter().all(|x| x.is_finite()));
        assert!(state.factors.iter().all(finite) && state.lambda.iter().all(|x| x.is_finite()));
    }
    let coo = skewed::<f64>(&[5, 6, 7], 50, 4).unwrap();
    let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(3)).unwrap();
    let good = CpOptions::<f64>::new(3);
    for bad in [CpOptions { nonnegative: true, ..good.clone() }, CpOptions { rank: 0, ..good }] {
        let result = cpu.cp_opt(&tensor, &bad, |_, _| ControlFlow::Continue(()));
        assert!(matches!(result, Err(Error::Argument { .. })), "{bad:?}");
    }
}

#[test]
fn amino_acids_have_three_components() {
    let Some(dir) = common::data_dir() else { return };
    let coo =
        read_tensor::<f64>(&dir.join("aminoacid.tns"), false, Duplicates::Refuse, ReadOptions::default()).unwrap();
    let cpu = cpu();
    let fits = (0..3).map(|seed| optimise(&cpu, &coo, &options(3, 2000, 1e-9, seed), MttkrpFormat::Joint).0.fit());
    let best = fits.fold(0.0, f64::max);
    assert!((best - 0.9749).abs() < 1e-4, "{best}");
}
