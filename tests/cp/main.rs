//! The CP decomposition.

mod apr;
#[path = "../common/mod.rs"]
mod common;
mod opt;

use std::ops::ControlFlow;
use std::path::Path;

use sparsimd::decomp::{CpInit, CpOptions, CpState};
use sparsimd::formats::CooTensor;
use sparsimd::generate::{skewed, uniform_dense};
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{Cpu, Error, Mat, Scalar};

fn cpu() -> Cpu {
    Cpu::builder().threads(2).pin(false).build().unwrap()
}

fn decompose<T: Scalar>(cpu: &Cpu, coo: &CooTensor<T>, options: &CpOptions<T>) -> CpState<T> {
    let tensor = cpu.prepare_tensor(coo, &TensorOptions::new(options.rank)).unwrap();
    cpu.cp_als(&tensor, options, |_, _| ControlFlow::Continue(())).unwrap()
}

/// The factor of mode `m` in [`low_rank`].
fn truth(m: usize, dim: usize, rank: usize) -> Mat<f64> {
    let uniform = uniform_dense::<f64>(dim, rank, 40 + m as u64).unwrap();
    Mat::from_fn(dim, rank, |i, r| uniform.row(i)[r] + 0.5).unwrap()
}

/// The full tensor of a model of `rank` non-negative components.
fn low_rank<T: Scalar>(dims: &[usize], rank: usize) -> CooTensor<T> {
    let factors: Vec<Mat<f64>> = dims.iter().enumerate().map(|(m, &dim)| truth(m, dim, rank)).collect();
    let nnz: usize = dims.iter().product();
    let coords: Vec<Vec<u32>> = (0..dims.len())
        .map(|m| (0..nnz).map(|p| (p / dims[m + 1..].iter().product::<usize>() % dims[m]) as u32).collect())
        .collect();
    let value = |p: usize| {
        let term = |r: usize| (0..dims.len()).map(|m| factors[m].row(coords[m][p] as usize)[r]).product::<f64>();
        T::from_f64((0..rank).map(term).sum())
    };
    let values = (0..nnz).map(value).collect();
    CooTensor::new(dims.to_vec(), coords, values).unwrap()
}

/// The model at one place.
fn model<T: Scalar>(state: &CpState<T>, place: &[usize]) -> f64 {
    let term = |r: usize| place.iter().zip(&state.factors).map(|(&i, f)| f.row(i)[r].to_f64()).product::<f64>();
    state.lambda.iter().enumerate().map(|(r, lambda)| lambda * term(r)).sum()
}

fn bits<T: Scalar>(state: &CpState<T>) -> Vec<u64> {
    let rows = state.factors.iter().flat_map(|f| (0..f.rows()).flat_map(|i| f.row(i).to_vec()));
    let factors = rows.map(|x| x.to_f64().to_bits());
    factors.chain(state.lambda.iter().map(|x| x.to_bits())).chain(state.fits.iter().map(|x| x.to_bits())).collect()
}

#[test]
fn finds_the_components_of_a_low_rank_tensor() {
    let cpu = cpu();
    for (dims, nonnegative) in [(vec![12, 9, 15], false), (vec![12, 9, 15], true), (vec![6, 7, 5, 8], false)] {
        let coo = low_rank::<f64>(&dims, 3);
        let mut options = CpOptions::new(3);
        (options.iterations, options.tolerance, options.nonnegative) = (2000, 1e-9, nonnegative);
        let state = decompose(&cpu, &coo, &options);
        assert!(state.fit() > 0.999, "{dims:?}, non-negative {nonnegative}: {}", state.fit());
        // The fit that is reported is that of the model itself.
        let (mut residual, mut norm) = (0.0, 0.0);
        for p in 0..coo.nnz() {
            let place: Vec<usize> = (0..dims.len()).map(|m| coo.coords(m)[p] as usize).collect();
            residual += (coo.values()[p] - model(&state, &place)).powi(2);
            norm += coo.values()[p].powi(2);
        }
        let fit = 1.0 - residual.sqrt() / norm.sqrt();
        assert!((fit - state.fit()).abs() < 1e-6, "{fit} and {}", state.fit());
        let negative = state.factors.iter().any(|f| (0..f.rows()).any(|i| f.row(i).iter().any(|&x| x < 0.0)));
        assert!(!(nonnegative && negative));
    }
}

#[test]
fn fits_never_decrease_and_columns_have_length_one() {
    let cpu = cpu();
    let coo = skewed::<f32>(&[80, 60, 90], 20_000, 4).unwrap();
    for nonnegative in [false, true] {
        let mut options = CpOptions::new(10);
        (options.iterations, options.tolerance, options.nonnegative) = (25, 0.0, nonnegative);
        let state = decompose(&cpu, &coo, &options);
        // Single precision: what the normal equations lose is some eps of the fit.
        assert!(state.fits.windows(2).all(|w| w[1] >= w[0] - 1e-5), "{:?}", state.fits);
        for factor in &state.factors {
            for r in 0..10 {
                let length: f64 = (0..factor.rows()).map(|i| f64::from(factor.row(i)[r]).powi(2)).sum();
                assert!(length == 0.0 || (length - 1.0).abs() < 1e-4, "{length}");
            }
        }
    }
}

#[test]
fn every_format_leads_to_the_same_fit() {
    let cpu = cpu();
    let coo = skewed::<f64>(&[30, 20, 40, 10], 5000, 4).unwrap();
    let mut options = CpOptions::new(5);
    (options.iterations, options.tolerance) = (8, 0.0);
    let fits: Vec<f64> = MttkrpFormat::ALL
        .into_iter()
        .map(|format| {
            let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(5).format(format)).unwrap();
            cpu.cp_als(&tensor, &options, |_, _| ControlFlow::Continue(())).unwrap().fit()
        })
        .collect();
    assert!(fits.iter().all(|fit| (fit - fits[0]).abs() < 1e-9), "{fits:?}");
}

#[test]
fn a_resumed_run_has_the_bits_of_an_unbroken_one() {
    let cpu = cpu();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    for nonnegative in [false, true] {
        let coo = skewed::<f32>(&[50, 60, 40], 9000, 4).unwrap();
        let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(7)).unwrap();
        let mut options = CpOptions::new(7);
        (options.iterations, options.tolerance, options.nonnegative) = (12, 0.0, nonnegative);
        let whole = cpu.cp_als(&tensor, &options, |_, _| ControlFlow::Continue(())).unwrap();
        // Ended from outside after 5 iterations.
        let half = cpu
            .cp_als(&tensor, &options, |state, iteration| match iteration.number {
                5 => {
                    state.save(&path).unwrap();
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            })
            .unwrap();
        assert_eq!(half.fits, whole.fits[..5]);
        let resumed = CpOptions { init: CpInit::Resume(CpState::load(&path).unwrap()), ..options };
        let again = cpu.cp_als(&tensor, &resumed, |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(bits(&again), bits(&whole));
    }
}

/// `state` as the first version had it in its file: without a word for the tensor's checksum.
fn first_version(path: &Path, state: &CpState<f64>) {
    let numbers = [state.factors.len(), state.lambda.len(), state.fits.len()];
    let rows = state.factors.iter().map(Mat::rows);
    let memory = (!state.memory.is_empty()).then_some(state.memory.len());
    let mut bytes = b"ssimdcp1".to_vec();
    numbers.into_iter().chain(rows).for_each(|n| bytes.extend((n as u64).to_le_bytes()));
    let mut float = |x: &f64| bytes.extend(x.to_le_bytes());
    state.fits.iter().chain(&state.lambda).for_each(&mut float);
    state.factors.iter().flat_map(Mat::iter_rows).flatten().for_each(&mut float);
    memory.into_iter().for_each(|n| bytes.extend((n as u64).to_le_bytes()));
    for vector in &state.memory {
        bytes.extend((vector.len() as u64).to_le_bytes());
        vector.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn checkpoints_know_their_tensor_and_those_of_the_first_version_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let coo = skewed::<f64>(&[12, 9, 10], 300, 3).unwrap();
    let mut state = decompose(&cpu(), &coo, &CpOptions { iterations: 3, ..CpOptions::new(4) });
    let same = |a: &CpState<f64>, b: &CpState<f64>| {
        let rows = a.factors.iter().zip(&b.factors).all(|(a, b)| a.iter_rows().eq(b.iter_rows()));
        rows && (&a.lambda, &a.fits, &a.memory) == (&b.lambda, &b.fits, &b.memory)
    };
    let negated = coo.with_values(coo.values().iter().map(|x| -x).collect::<Vec<_>>()).unwrap();
    let sums = [coo.checksum(), negated.checksum(), coo.cast::<f32>().checksum()];
    let order = coo.sorted_permutation(&[2, 0, 1]).unwrap();
    let pick = |of: &[u32]| order.iter().map(|&p| of[p]).collect::<Vec<u32>>();
    let coords = coo.all_coords().iter().map(|of| pick(of)).collect();
    let values = order.iter().map(|&p| coo.values()[p]).collect();
    let sorted = CooTensor::new(coo.dims().to_vec(), coords, values).unwrap();
    assert!(sorted.all_coords() != coo.all_coords() && sorted.checksum() == coo.checksum());
    // Values that change places are other entries.
    let swapped = coo.with_values(coo.values().iter().rev().copied().collect::<Vec<_>>()).unwrap();
    assert_ne!(swapped.checksum(), coo.checksum());
    assert!(sums[0] == coo.clone().checksum() && sums[0] != sums[1] && sums[0] != sums[2] && !sums.contains(&0));
    for memory in [vec![], vec![vec![1.5, -2.0], vec![], vec![3.0]]] {
        state.memory = memory;
        state.save_of(&path, sums[0]).unwrap();
        for known in [0, sums[0]] {
            assert!(same(&CpState::load_of(&path, known).unwrap(), &state));
        }
        for other in &sums[1..] {
            let refused = CpState::<f64>::load_of(&path, *other).unwrap_err();
            assert!(refused.to_string().contains("other entries"), "{refused}");
        }
        // Of no tensor in particular, and of the version that knew none.
        state.save(&path).unwrap();
        assert!(same(&CpState::load_of(&path, sums[1]).unwrap(), &state));
        first_version(&path, &state);
        assert!(same(&CpState::load_of(&path, sums[1]).unwrap(), &state));
    }
    let mut later = b"ssimdcp4".to_vec();
    later.extend(xxhash_rust::xxh3::xxh3_64(&later).to_le_bytes());
    std::fs::write(&path, later).unwrap();
    assert!(CpState::<f64>::load(&path).unwrap_err().to_string().contains("another version"));
}

#[test]
fn damaged_checkpoints_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let factors = vec![Mat::from_fn(3, 2, |i, r| (i + r) as f64).unwrap(), Mat::from_fn(4, 2, |_, _| 0.5).unwrap()];
    CpState { factors, lambda: vec![1.0, 2.0], fits: vec![0.25], memory: vec![] }.save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    assert_eq!(CpState::<f64>::load(&path).unwrap().fits, [0.25]);
    for at in [0, 9, 40, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, bad).unwrap();
        assert!(matches!(CpState::<f64>::load(&path), Err(Error::Parse { .. })), "byte {at}");
    }
    std::fs::write(&path, &good[..20]).unwrap();
    assert!(CpState::<f64>::load(&path).is_err());
    assert!(matches!(CpState::<f64>::load(&dir.path().join("none")), Err(Error::Io { .. })));
}

#[test]
fn odd_tensors_and_singular_systems_give_numbers() {
    let cpu = cpu();
    let zeros = CooTensor::new(vec![3, 3, 3], vec![vec![0, 2]; 3], vec![0.0f64; 2]).unwrap();
    let none = CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]).unwrap();
    let one = CooTensor::new(vec![9, 5, 7], vec![vec![8], vec![0], vec![3]], vec![2.0]).unwrap();
    for (coo, fit) in [(zeros, 1.0), (none, 1.0), (one, 1.0)] {
        for nonnegative in [false, true] {
            // More components than the tensor has: Gram matrices are singular.
            let mut options = CpOptions::new(6);
            options.nonnegative = nonnegative;
            let state = decompose(&cpu, &coo, &options);
            assert!((state.fit() - fit).abs() < 1e-6, "{:?}", state.fits);
            let finite = |f: &Mat<f64>| (0..f.rows()).all(|i| f.row(i).iter().all(|x| x.is_finite()));
            assert!(state.factors.iter().all(finite) && state.lambda.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn bad_options_are_refused() {
    let cpu = cpu();
    let coo = skewed::<f64>(&[5, 6, 7], 50, 4).unwrap();
    let tensor = cpu.prepare_tensor(&coo, &TensorOptions::new(3)).unwrap();
    let good = CpOptions::<f64>::new(3);
    let factors = |rows: [usize; 3]| rows.map(|n| Mat::zeros(n, 3).unwrap()).to_vec();
    let nan = vec![Mat::zeros(5, 3).unwrap(), Mat::from_fn(6, 3, |_, _| f64::NAN).unwrap(), Mat::zeros(7, 3).unwrap()];
    for bad in [
        CpOptions { rank: 0, ..good.clone() },
        CpOptions { rank: 129, ..good.clone() },
        CpOptions { iterations: 0, ..good.clone() },
        CpOptions { ridge: -1.0, ..good.clone() },
        CpOptions { init: CpInit::Factors(factors([5, 6, 8])), ..good.clone() },
        CpOptions { init: CpInit::Factors(nan), ..good.clone() },
    ] {
        let result = cpu.cp_als(&tensor, &bad, |_, _| ControlFlow::Continue(()));
        assert!(matches!(result, Err(Error::Argument { .. })), "{bad:?}");
    }
    let infinite = CooTensor::new(vec![2, 2], vec![vec![0]; 2], vec![f64::INFINITY]).unwrap();
    let tensor = cpu.prepare_tensor(&infinite, &TensorOptions::new(3)).unwrap();
    assert!(cpu.cp_als(&tensor, &good, |_, _| ControlFlow::Continue(())).is_err());
}

#[test]
fn amino_acids_have_three_components() {
    let Some(dir) = common::data_dir() else { return };
    let cpu = cpu();
    let read = |path| read_tensor::<f64>(path, false, Duplicates::Refuse, ReadOptions::default());
    let coo = read(&dir.join("aminoacid.tns")).unwrap();
    let best = (0..4)
        .map(|seed| {
            let mut options = CpOptions::new(3);
            (options.iterations, options.tolerance, options.init) = (500, 1e-8, CpInit::Seed(seed));
            let state = decompose(&cpu, &coo, &options);
            assert!(state.fits.windows(2).all(|w| w[1] >= w[0] - 1e-9), "{:?}", state.fits);
            state.fit()
        })
        .fold(0.0, f64::max);
    assert!((best - 0.9749).abs() < 1e-4, "{best}");
}
