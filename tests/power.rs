//! The power method for symmetric tensors.

use std::ops::ControlFlow;

use sparsimd::decomp::{CpIteration, CpState, PowerOptions};
use sparsimd::formats::CooTensor;
use sparsimd::generate::uniform_dense;
use sparsimd::{Cpu, Error, Scalar};

fn cpu(threads: usize) -> Cpu {
    Cpu::builder().threads(threads).pin(false).build().unwrap()
}

fn find<T: Scalar>(cpu: &Cpu, x: &CooTensor<T>, options: &PowerOptions<T>) -> (CpState<T>, Vec<CpIteration>) {
    let mut iterations = Vec::new();
    let state = cpu.power_method(x, options, |_, iteration| {
        iterations.push(*iteration);
        ControlFlow::Continue(())
    });
    (state.unwrap(), iterations)
}

/// The tensor with `value(place)` at every place where that is not 0.
fn full<T: Scalar>(n: usize, order: usize, value: impl Fn(&[usize]) -> f64) -> CooTensor<T> {
    let (mut coords, mut values) = (vec![Vec::new(); order], Vec::new());
    for p in 0..n.pow(order as u32) {
        let place: Vec<usize> = (0..order).map(|m| p / n.pow((order - 1 - m) as u32) % n).collect();
        let x = T::from_f64(value(&place));
        if x != T::ZERO {
            coords.iter_mut().zip(&place).for_each(|(coords, &i)| coords.push(i as u32));
            values.push(x);
        }
    }
    CooTensor::new(vec![n; order], coords, values).unwrap()
}

/// `k` orthonormal vectors of length n, by Gram and Schmidt.
fn orthonormal(n: usize, k: usize, seed: u64) -> Vec<Vec<f64>> {
    let random = uniform_dense::<f64>(k, n, seed).unwrap();
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for row in random.iter_rows() {
        let mut v = row.to_vec();
        for _ in 0..2 {
            for b in &basis {
                let dot: f64 = v.iter().zip(b).map(|(v, b)| v * b).sum();
                v.iter_mut().zip(b).for_each(|(v, b)| *v -= dot * b);
            }
        }
        let length = v.iter().map(|v| v * v).sum::<f64>().sqrt();
        basis.push(v.iter().map(|v| v / length).collect());
    }
    basis
}

fn column<T: Scalar>(state: &CpState<T>, k: usize) -> Vec<f64> {
    state.factors[0].iter_rows().map(|row| row[k].to_f64()).collect()
}

/// Whether two vectors are the same, or, where `either`, opposite.
fn same(a: &[f64], b: &[f64], either: bool, tolerance: f64) -> bool {
    let distance = |sign: f64| a.iter().zip(b).map(|(a, b)| (a - sign * b).powi(2)).sum::<f64>().sqrt();
    distance(1.0) < tolerance || either && distance(-1.0) < tolerance
}

fn recovers<T: Scalar>(order: usize, lambda: &[f64], tolerance: f64) {
    let basis = orthonormal(9, lambda.len(), 3);
    let term = |place: &[usize], k: usize| lambda[k] * place.iter().map(|&i| basis[k][i]).product::<f64>();
    // The same sum for every order of the modes, to the last bit.
    let x = full::<T>(9, order, |place| {
        let mut place = place.to_vec();
        place.sort_unstable();
        (0..lambda.len()).map(|k| term(&place, k)).sum()
    });
    let (state, iterations) = find(&cpu(2), &x, &PowerOptions { starts: 30, ..PowerOptions::new(lambda.len()) });
    assert_eq!(state.lambda.len(), lambda.len());
    for (k, wanted) in lambda.iter().enumerate() {
        let at = (0..lambda.len()).find(|&at| (state.lambda[at].abs() - wanted.abs()).abs() < tolerance);
        let at = at.unwrap_or_else(|| panic!("{wanted} is not among {:?}", state.lambda));
        // Of an odd order, a negative weight is a positive one of the opposite vector.
        let sign = if order % 2 == 1 { wanted.signum() } else { 1.0 };
        let wanted_vector: Vec<f64> = basis[k].iter().map(|x| sign * x).collect();
        assert!(same(&column(&state, at), &wanted_vector, order.is_multiple_of(2), tolerance), "component {k}");
    }
    assert!(state.fit() > 1.0 - 10.0 * tolerance, "{:?}", state.fits);
    assert!(iterations.iter().all(|i| i.violation.unwrap() < tolerance), "{iterations:?}");
}

/// Anandkumar et al. (2014), theorem 5.1: an orthogonal tensor is recovered.
#[test]
fn orthogonal_tensors_are_recovered() {
    recovers::<f64>(3, &[5.0, 3.0, 2.0, 1.0], 1e-7);
    recovers::<f64>(3, &[4.0, -3.0, 1.5], 1e-7);
    recovers::<f64>(4, &[6.0, 2.5, 1.0], 1e-7);
    recovers::<f64>(5, &[3.0, 1.0], 1e-7);
    recovers::<f32>(3, &[5.0, 3.0, 2.0], 1e-3);
    // A matrix: its eigenvalues.
    recovers::<f64>(2, &[8.0, 2.0, 0.5], 1e-6);
}

/// Kofidis and Regalia's tensor, on which iterations without a shift do not converge, and the eigenvalues that Kolda and Mayo
/// (2011, example 3.5, tables 3.1 and 3.2) give for it.
#[test]
fn eigenvalues_of_kofidis_and_regalias_tensor() {
    let value = |place: &[usize]| {
        let mut place: Vec<usize> = place.iter().map(|i| i + 1).collect();
        place.sort_unstable();
        match place[..] {
            [1, 1, 1, 1] => 0.2883,
            [1, 1, 1, 2] => -0.0031,
            [1, 1, 1, 3] => 0.1973,
            [1, 1, 2, 2] => -0.2485,
            [1, 1, 2, 3] => -0.2939,
            [1, 1, 3, 3] => 0.3847,
            [1, 2, 2, 2] => 0.2972,
            [1, 2, 2, 3] => 0.1862,
            [1, 2, 3, 3] => 0.0919,
            [1, 3, 3, 3] => -0.3619,
            [2, 2, 2, 2] => 0.1241,
            [2, 2, 2, 3] => -0.3420,
            [2, 2, 3, 3] => 0.2127,
            [2, 3, 3, 3] => 0.2727,
            _ => -0.3054,
        }
    };
    let x = full::<f64>(3, 4, value);
    let largest = |shift| {
        let options = PowerOptions { shift, starts: 40, iterations: 5000, tolerance: 1e-14, ..PowerOptions::new(1) };
        let (state, iterations) = find(&cpu(1), &x, &options);
        assert!(iterations[0].violation.unwrap() < 1e-9, "{iterations:?}");
        (state.lambda[0], column(&state, 0))
    };
    let (lambda, v) = largest(2.0);
    assert!((lambda - 0.8893).abs() < 5e-5, "{lambda}");
    assert!(same(&v, &[0.6672, 0.2471, -0.7027], true, 2e-4), "{v:?}");
    let (lambda, v) = largest(-2.0);
    assert!((lambda + 1.0954).abs() < 5e-5, "{lambda}");
    assert!(same(&v, &[0.5915, -0.7467, -0.3043], true, 2e-4), "{v:?}");
}

#[test]
fn a_sparse_tensor_of_many_rows_and_nothing_left() {
    // Blocks of two coordinates each: (e_2k + e_2k+1) / sqrt 2, weighted.
    let n = 2000;
    let (mut coords, mut values) = (vec![Vec::new(); 3], Vec::new());
    for k in [3usize, 500, 999] {
        for p in 0..8 {
            (0..3).for_each(|m| coords[m].push((2 * k + (p >> m & 1)) as u32));
            values.push(k as f64);
        }
    }
    let x = CooTensor::new(vec![n; 3], coords, values).unwrap();
    let (state, iterations) = find(&cpu(2), &x, &PowerOptions::new(7));
    // x = k (1, 1)^3 = k 2^1.5 v^3; then nothing is left, and the rest of the seven is not made up.
    let wanted = [999.0, 500.0, 3.0].map(|k| k * 8f64.sqrt());
    assert_eq!(state.lambda.len(), 3, "{:?}", state.lambda);
    let mut found = state.lambda.clone();
    found.sort_by(|a, b| b.total_cmp(a));
    assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9 * b), "{found:?}");
    assert!((state.fit() - 1.0).abs() < 1e-6 && iterations.len() == 3);
    assert!(state.fits.is_sorted());
}

#[test]
fn a_resumed_run_has_the_bits_of_an_unbroken_one_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let basis = orthonormal(8, 4, 5);
    let x = full::<f32>(8, 3, |place| {
        let mut place = place.to_vec();
        place.sort_unstable();
        (0..4).map(|k| (4 - k) as f64 * place.iter().map(|&i| basis[k][i]).product::<f64>()).sum()
    });
    let options = PowerOptions::new(4);
    let (whole, _) = find(&cpu(1), &x, &options);
    assert_eq!(whole.lambda.len(), 4);
    for end in 1..4 {
        let observe = |state: &CpState<f32>, iteration: &CpIteration| {
            if iteration.number < end {
                return ControlFlow::Continue(());
            }
            state.save(&path).unwrap();
            ControlFlow::Break(())
        };
        cpu(2).power_method(&x, &options, observe).unwrap();
        let resumed = PowerOptions { resume: Some(CpState::load(&path).unwrap()), ..options.clone() };
        let (again, _) = find(&cpu(2), &x, &resumed);
        assert_eq!((&again.lambda, &again.fits), (&whole.lambda, &whole.fits));
        assert!((0..4).all(|k| column(&again, k) == column(&whole, k)));
    }
}

#[test]
fn what_is_not_symmetric_or_does_not_fit_is_refused() {
    let cpu = cpu(1);
    let tensor =
        |dims: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<f64>| CooTensor::new(dims, coords, values).unwrap();
    let run = |x: &CooTensor<f64>, options: &PowerOptions<f64>| {
        cpu.power_method(x, options, |_, _| ControlFlow::Continue(())).unwrap_err()
    };
    let good = PowerOptions::new(2);
    for (x, part) in [
        (tensor(vec![3, 4], vec![vec![0], vec![0]], vec![1.0]), "dims"),
        (tensor(vec![3], vec![vec![0]], vec![1.0]), "order 1"),
        (tensor(vec![3; 3], vec![vec![0], vec![1], vec![1]], vec![1.0]), "not symmetric"),
        (tensor(vec![3; 2], vec![vec![0, 1], vec![1, 0]], vec![1.0, 2.0]), "not symmetric"),
        (tensor(vec![3; 2], vec![vec![1], vec![1]], vec![f64::NAN]), "entry 0"),
    ] {
        let error = run(&x, &good);
        assert!(matches!(error, Error::Structure { .. }) && error.to_string().contains(part), "{error}");
    }
    let x = tensor(vec![3; 2], vec![vec![1], vec![1]], vec![2.0]);
    let (state, _) = find(&cpu, &x, &good);
    let other = CpState { lambda: vec![1.0, 2.0], ..state };
    for bad in [
        PowerOptions { components: 0, ..good.clone() },
        PowerOptions { starts: 0, ..good.clone() },
        PowerOptions { iterations: 0, ..good.clone() },
        PowerOptions { shift: f64::NAN, ..good.clone() },
        PowerOptions { resume: Some(other), ..good },
    ] {
        assert!(matches!(run(&x, &bad), Error::Argument { .. }), "{bad:?}");
    }
    // Nothing to find.
    let none = tensor(vec![3; 3], vec![vec![]; 3], vec![]);
    assert!(find(&cpu, &none, &PowerOptions::new(2)).0.lambda.is_empty());
}
