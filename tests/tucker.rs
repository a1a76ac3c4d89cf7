//! TTM chains against naive loops, and Tucker's decomposition on tensors whose answer is known.

mod common;

use std::ops::ControlFlow;

use sparsimd::decomp::{Tucker, TuckerInit, TuckerIteration, TuckerOptions, TuckerState};
use sparsimd::formats::Csf;
use sparsimd::generate::{TensorSpec, uniform_dense};
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::{Arch, CooTensor, Cpu, Error, Mat, MatRef, Scalar};

fn check_chain<T: Scalar>(cpu: &Cpu, text: &str, ranks: &[usize]) {
    let x: CooTensor<T> = text.parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let order = x.order();
    let u: Vec<Mat<T>> = (0..order).map(|m| uniform_dense(x.dims()[m], ranks[m], m as u64).unwrap()).collect();
    let views: Vec<MatRef<'_, T>> = u.iter().map(Mat::as_ref).collect();
    for root in 0..order {
        let mut modes: Vec<usize> = (0..order).rev().filter(|&m| m != root).collect();
        modes.insert(0, root);
        let csf = Csf::from_coo(&x, &modes).unwrap();
        let y = cpu.ttm_chain(&csf, &views).unwrap();
        let cols: usize = modes[1..].iter().map(|&m| ranks[m]).product();
        assert_eq!((y.rows(), y.cols()), (csf.pattern().nodes(0), cols));
        let mut exact = vec![0.0; y.rows() * cols];
        let mut magnitude = exact.clone();
        let mut counts = vec![0usize; y.rows()];
        for p in 0..x.nnz() {
            let row = csf.pattern().idx(0).iter().position(|&i| i == x.coords(root)[p]).unwrap();
            counts[row] += 1;
            for c in 0..cols {
                let mut rest = c;
                let mut product = x.values()[p].to_f64();
                for &m in modes[1..].iter().rev() {
                    product *= u[m].row(x.coords(m)[p] as usize)[rest % ranks[m]].to_f64();
                    rest /= ranks[m];
                }
                exact[row * cols + c] += product;
                magnitude[row * cols + c] += product.abs();
            }
        }
        for (row, &count) in counts.iter().enumerate() {
            // Every nonzero adds one rounding to the sum, every mode one to the product.
            let c = (count + order + 3) as f64 * T::EPSILON.to_f64();
            for (col, got) in y.row(row).iter().enumerate() {
                let at = row * cols + col;
                let error = (got.to_f64() - exact[at]).abs();
                assert!(
                    error <= c * magnitude[at] + 1e-30,
                    "{text} root {root} {} row {row}: {error}",
                    cpu.arch().name()
                );
            }
        }
    }
}

#[test]
fn chains_of_every_order_rank_type_and_instruction_set() {
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(3).pin(false).arch(arch).build().unwrap();
        for (text, ranks) in [
            ("skew:30x40x20:800", &[3, 4, 5][..]),
            ("skew:30x40x20:800", &[16, 8, 33]),
            ("skew:2x300x200:3000", &[1, 17, 9]),
            ("skew:30x40:300", &[7, 20]),
            ("skew:9x8x7x6:500", &[3, 2, 5, 4]),
            ("skew:5x4x6x3x4:300", &[2, 3, 1, 3, 2]),
            ("skew:1x1x1:1", &[1, 1, 1]),
        ] {
            check_chain::<f32>(&cpu, text, ranks);
            check_chain::<f64>(&cpu, text, ranks);
        }
    }
}

#[test]
fn chains_refuse_bad_shapes() {
    let cpu = Cpu::new().unwrap();
    let x: CooTensor<f32> = "skew:9x8x7:50".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let csf = Csf::from_coo(&x, &[1, 0, 2]).unwrap();
    let u: Vec<Mat<f32>> = [9, 8, 7].iter().map(|&dim| uniform_dense(dim, 2, 0).unwrap()).collect();
    let views = |a: usize, b: usize, c: usize| [u[a].as_ref(), u[b].as_ref(), u[c].as_ref()];
    assert!(cpu.ttm_chain(&csf, &views(0, 1, 2)).is_ok());
    // The root's matrix does not matter.
    assert!(cpu.ttm_chain(&csf, &views(0, 0, 2)).is_ok());
    assert!(matches!(cpu.ttm_chain(&csf, &views(1, 1, 2)), Err(Error::Shape { .. })));
    assert!(cpu.ttm_chain(&csf, &views(0, 1, 2)[..2]).is_err());
    let none = Mat::zeros(7, 0).unwrap();
    assert!(cpu.ttm_chain(&csf, &[u[0].as_ref(), u[1].as_ref(), none.as_ref()]).is_err());
    let line = CooTensor::new(vec![9], vec![vec![1]], vec![1.0f32]).unwrap();
    assert!(cpu.ttm_chain(&Csf::from_coo(&line, &[0]).unwrap(), &[u[0].as_ref()]).is_err());
    let empty = CooTensor::<f32>::new(vec![9, 8, 7], vec![vec![]; 3], vec![]).unwrap();
    let y = cpu.ttm_chain(&Csf::from_coo(&empty, &[1, 0, 2]).unwrap(), &views(0, 1, 2)).unwrap();
    assert_eq!((y.rows(), y.cols()), (0, 4));
}

fn go(_: &TuckerState, _: &TuckerIteration) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The model's value at a place.
fn model(t: &Tucker, place: &[usize]) -> f64 {
    let ranks: Vec<usize> = t.factors.iter().map(Mat::cols).collect();
    let term = |(at, g): (usize, &f64)| {
        let mut rest = at;
        ranks.iter().enumerate().rev().fold(*g, |product, (m, &rank)| {
            let column = rest % rank;
            rest /= rank;
            product * t.factors[m].row(place[m])[column]
        })
    };
    t.core.iter().enumerate().map(term).sum()
}

fn assert_orthonormal(t: &Tucker) {
    for f in &t.factors {
        for (a, b) in (0..f.cols()).flat_map(|a| (0..f.cols()).map(move |b| (a, b))) {
            let dot: f64 = (0..f.rows()).map(|i| f.row(i)[a] * f.row(i)[b]).sum();
            assert!((dot - f64::from(u8::from(a == b))).abs() < 1e-10);
        }
    }
}

#[test]
fn a_tensor_of_low_rank_is_found_exactly() {
    // Dense 12 x 10 x 8 of multilinear rank (3, 2, 4).
    let (dims, ranks) = ([12, 10, 8], [3, 2, 4]);
    let u: Vec<Mat<f64>> = (0..3).map(|m| uniform_dense(dims[m], ranks[m], m as u64).unwrap()).collect();
    let core: Mat<f64> = uniform_dense(1, 24, 9).unwrap();
    let value = |i: usize, j: usize, k: usize| -> f64 {
        let terms = (0..24).map(|g| (g / 8, g / 4 % 2, g % 4, core.row(0)[g]));
        terms.map(|(a, b, c, g)| g * u[0].row(i)[a] * u[1].row(j)[b] * u[2].row(k)[c]).sum()
    };
    let places: Vec<_> = (0..960).map(|p| (p / 80, p / 8 % 10, p % 8)).collect();
    let coords = vec![
        places.iter().map(|p| p.0 as u32).collect(),
        places.iter().map(|p| p.1 as u32).collect(),
        places.iter().map(|p| p.2 as u32).collect(),
    ];
    let x = CooTensor::new(dims.to_vec(), coords, places.iter().map(|&(i, j, k)| value(i, j, k)).collect()).unwrap();
    let cpu = Cpu::new().unwrap();
    for init in [TuckerInit::Svd, TuckerInit::Random] {
        let options = TuckerOptions { init, ..TuckerOptions::new(ranks.to_vec()) };
        let t = cpu.tucker(&x, &options, go).unwrap();
        assert!(t.fit > 1.0 - 1e-6, "{}", t.fit);
        assert_orthonormal(&t);
        let scale = x.values().iter().fold(0.0f64, |s, x| s.max(x.abs()));
        assert!(places.iter().all(|&(i, j, k)| (model(&t, &[i, j, k]) - value(i, j, k)).abs() < 1e-6 * scale));
    }
}

#[test]
fn fits_never_decrease_and_match_the_model() {
    let cpu = Cpu::new().unwrap();
    let x: CooTensor<f64> = "skew:30x25x20x6:2000".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let options = TuckerOptions {
        tolerance: 0.0,
        iterations: 12,
        init: TuckerInit::Random,
        ..TuckerOptions::new(vec![4, 3, 5, 2])
    };
    let t = cpu.tucker(&x, &options, go).unwrap();
    let fits: Vec<f64> = t.iterations.iter().map(|i| i.fit).collect();
    assert!(fits.windows(2).all(|w| w[1] >= w[0] - 1e-12), "{fits:?}");
    assert_orthonormal(&t);
    // |X - model|^2 over all places: the stored ones, and the model's energy elsewhere.
    let energy: f64 = t.core.iter().map(|g| g * g).sum();
    let (mut stored, mut inside, mut norm) = (0.0, 0.0, 0.0);
    for p in 0..x.nnz() {
        let place: Vec<usize> = (0..4).map(|m| x.coords(m)[p] as usize).collect();
        let (value, model) = (x.values()[p], model(&t, &place));
        stored += (value - model).powi(2);
        inside += model * model;
        norm += value * value;
    }
    let fit = 1.0 - ((stored + energy - inside) / norm).sqrt();
    assert!((fit - t.fit).abs() < 1e-9, "{fit} {}", t.fit);
    // The same again, bit for bit; stopping early keeps what there is.
    assert_eq!(cpu.tucker(&x, &options, go).unwrap().core, t.core);
    let two = cpu.tucker(&x, &options, |s, i| if i.number == 2 { ControlFlow::Break(()) } else { go(s, i) }).unwrap();
    assert_eq!((two.iterations.len(), two.fit), (2, fits[1]));
    let again = TuckerOptions { iterations: 1, init: TuckerInit::Given(two.factors), ..options };
    assert!((cpu.tucker(&x, &again, go).unwrap().fit - fits[2]).abs() < 1e-10);
}

#[test]
fn a_resumed_run_has_the_bits_of_an_unbroken_one() {
    let cpu = Cpu::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let x: CooTensor<f32> = "skew:30x25x20:2000".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    for (tolerance, iterations) in [(0.0, 9), (1e-4, 100)] {
        let init = TuckerInit::Random;
        let options = TuckerOptions { tolerance, iterations, init, ..TuckerOptions::new(vec![4, 3, 5]) };
        let whole = cpu.tucker(&x, &options, go).unwrap();
        // Saved after every iteration: whichever is the last one before the end of the process.
        for last in [1, 3, whole.fits.len()] {
            let stop = |state: &TuckerState, iteration: &TuckerIteration| {
                state.save(&path).unwrap();
                if iteration.number == last { ControlFlow::Break(()) } else { go(state, iteration) }
            };
            cpu.tucker(&x, &options, stop).unwrap();
            let init = TuckerInit::Resume(TuckerState::load(&path).unwrap());
            let again = cpu.tucker(&x, &TuckerOptions { init, ..options.clone() }, go).unwrap();
            assert_eq!((&again.fits, &again.core), (&whole.fits, &whole.core), "tolerance {tolerance}, {last}");
            assert_eq!(again.iterations.len(), whole.fits.len() - last);
            let same = |(a, b): (&Mat<f64>, &Mat<f64>)| (0..a.rows()).all(|i| a.row(i) == b.row(i));
            assert!(again.factors.iter().zip(&whole.factors).all(same));
        }
    }
    let state = TuckerState::load(&path).unwrap();
    let other = |ranks| TuckerOptions { init: TuckerInit::Resume(state.clone()), ..TuckerOptions::new(ranks) };
    assert!(matches!(cpu.tucker(&x, &other(vec![4, 3, 4]), go), Err(Error::Argument { name: "init", .. })));
    let none = TuckerOptions { init: TuckerInit::Resume(TuckerState::default()), ..TuckerOptions::new(vec![1, 1, 1]) };
    assert!(matches!(cpu.tucker(&x, &none, go), Err(Error::Argument { name: "init", .. })));
    let good = std::fs::read(&path).unwrap();
    for at in [3, 20, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, bad).unwrap();
        assert!(matches!(TuckerState::load(&path), Err(Error::Parse { .. })), "byte {at}");
    }
}

#[test]
fn large_unfoldings_take_the_gram_matrix() {
    // 3000 x 729 in mode 0: beyond what is decomposed directly. The tensor is a sum of two products of vectors.
    let cpu = Cpu::new().unwrap();
    let (n, m) = (3000, 27);
    let places = || (0..n * m * m).map(|p| (p / (m * m), p / m % m, p % m));
    let value = |i: usize, j: usize, k: usize| {
        (i as f64 * 0.37).sin() * (j as f64 + 1.0) / (k as f64 + 2.0) + (i % 7) as f64 * (k as f64 * 0.9).cos()
    };
    let coords = vec![
        places().map(|p| p.0 as u32).collect(),
        places().map(|p| p.1 as u32).collect(),
        places().map(|p| p.2 as u32).collect(),
    ];
    let x = CooTensor::new(vec![n, m, m], coords, places().map(|(i, j, k)| value(i, j, k)).collect()).unwrap();
    let options = TuckerOptions { iterations: 2, init: TuckerInit::Random, ..TuckerOptions::new(vec![4, m, m]) };
    let t = cpu.tucker(&x, &options, go).unwrap();
    assert_orthonormal(&t);
    assert!(t.fit > 1.0 - 1e-5, "{}", t.fit);
}

#[test]
fn odd_tensors_have_defined_results() {
    let cpu = Cpu::new().unwrap();
    let zero = CooTensor::<f64>::new(vec![4, 3, 2], vec![vec![]; 3], vec![]).unwrap();
    let t = cpu.tucker(&zero, &TuckerOptions::new(vec![2, 2, 2]), go).unwrap();
    assert_eq!(t.fit, 1.0);
    assert!(t.core.iter().all(|&g| g == 0.0));
    assert_orthonormal(&t);
    let stored_zero = CooTensor::new(vec![4, 3, 2], vec![vec![1], vec![1], vec![1]], vec![0.0f64]).unwrap();
    assert_orthonormal(&cpu.tucker(&stored_zero, &TuckerOptions::new(vec![2, 2, 2]), go).unwrap());
    // One nonzero, ranks above what it has: empty slices, and an orthonormal basis all the same.
    let one = CooTensor::new(vec![4, 3, 2], vec![vec![1], vec![1], vec![1]], vec![3.0f64]).unwrap();
    let t = cpu.tucker(&one, &TuckerOptions::new(vec![2, 2, 2]), go).unwrap();
    assert!((t.fit - 1.0).abs() < 1e-9);
    assert_orthonormal(&t);
    for ranks in [vec![2, 2], vec![0, 1, 1], vec![5, 3, 2], vec![3, 2, 1], vec![2, 2, 2, 2]] {
        assert!(matches!(cpu.tucker(&one, &TuckerOptions::new(ranks), go), Err(Error::Argument { .. })));
    }
    let bad = |options| cpu.tucker(&one, &options, go).is_err();
    assert!(bad(TuckerOptions { iterations: 0, ..TuckerOptions::new(vec![1, 1, 1]) }));
    assert!(bad(TuckerOptions { init: TuckerInit::Given(vec![]), ..TuckerOptions::new(vec![1, 1, 1]) }));
    let nan = CooTensor::new(vec![4, 3], vec![vec![1], vec![1]], vec![f64::NAN]).unwrap();
    assert!(matches!(cpu.tucker(&nan, &TuckerOptions::new(vec![1, 1]), go), Err(Error::Structure { .. })));
    let line = CooTensor::new(vec![9], vec![vec![1]], vec![1.0f32]).unwrap();
    assert!(matches!(cpu.tucker(&line, &TuckerOptions::new(vec![1]), go), Err(Error::Shape { .. })));
}

#[test]
fn aminoacid_has_its_known_fit() {
    let Some(dir) = common::data_dir() else { return };
    let cpu = Cpu::new().unwrap();
    let options = TuckerOptions { tolerance: 1e-8, iterations: 100, ..TuckerOptions::new(vec![3, 3, 3]) };
    let path = dir.join("aminoacid.tns");
    let x: CooTensor<f64> = read_tensor(&path, false, Duplicates::Refuse, ReadOptions::default()).unwrap();
    let fit = cpu.tucker(&x, &options, go).unwrap().fit;
    assert!((fit - 0.97553).abs() < 1e-5, "{fit}");
    let single = cpu.tucker(&x.cast::<f32>(), &options, go).unwrap().fit;
    assert!((single - fit).abs() < 1e-5, "{single}");
}
