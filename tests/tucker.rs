//! TTM chains against naive loops, and Tucker's decomposition on tensors whose answer is known; both on devices as well, where there is one.

mod common;

use std::ops::ControlFlow;

use sparsimd::decomp::{Tucker, TuckerInit, TuckerIteration, TuckerOptions, TuckerState};
use sparsimd::formats::Csf;
use sparsimd::generate::{TensorSpec, uniform_dense};
use sparsimd::gpu::{DeviceOptions, DeviceScalar, GpuMat};
use sparsimd::hetero::{Hetero, HeteroChain, Split};
use sparsimd::io::{Duplicates, ReadOptions, read_tensor};
use sparsimd::{Arch, CooTensor, Cpu, Error, Mat, MatRef, Scalar};

use common::device::{gpu, limited, quiet};

/// Tensors and the columns of each mode's matrix.
const CHAINS: [(&str, &[usize]); 7] = [
    ("skew:30x40x20:800", &[3, 4, 5]),
    ("skew:30x40x20:800", &[16, 8, 33]),
    ("skew:2x300x200:3000", &[1, 17, 9]),
    ("skew:30x40:300", &[7, 20]),
    ("skew:9x8x7x6:500", &[3, 2, 5, 4]),
    ("skew:5x4x6x3x4:300", &[2, 3, 1, 3, 2]),
    ("skew:1x1x1:1", &[1, 1, 1]),
];

/// `chain` against naive loops, with every mode at the root of a tree.
fn check_chain<T: Scalar>(
    what: &str,
    (text, ranks): (&str, &[usize]),
    chain: impl Fn(&Csf<T>, &[MatRef<'_, T>]) -> Mat<T>,
) {
    let x: CooTensor<T> = text.parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let order = x.order();
    let u: Vec<Mat<T>> = (0..order).map(|m| uniform_dense(x.dims()[m], ranks[m], m as u64).unwrap()).collect();
    let views: Vec<MatRef<'_, T>> = u.iter().map(Mat::as_ref).collect();
    for root in 0..order {
        let mut modes: Vec<usize> = (0..order).rev().filter(|&m| m != root).collect();
        modes.insert(0, root);
        let csf = Csf::from_coo(&x, &modes).unwrap();
        let y = chain(&csf, &views);
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
                assert!(error <= c * magnitude[at] + 1e-30, "{text} root {root} {what} row {row}: {error}");
            }
        }
    }
}

#[test]
fn chains_of_every_order_rank_type_and_instruction_set() {
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(3).pin(false).arch(arch).build().unwrap();
        for case in CHAINS {
            check_chain::<f32>(arch.name(), case, |x, u| cpu.ttm_chain(x, u).unwrap());
            check_chain::<f64>(arch.name(), case, |x, u| cpu.ttm_chain(x, u).unwrap());
        }
    }
}

const SPLITS: [Split; 4] = [Split::Static(0.0), Split::Static(0.4), Split::Static(1.0), Split::Adaptive];

fn check_chains_on_devices<T: DeviceScalar>() {
    let Some(gpu) = gpu() else { return };
    let ranks = |u: &[MatRef<'_, T>]| u.iter().map(MatRef::cols).collect::<Vec<_>>();
    for case in CHAINS {
        check_chain::<T>("on the device", case, |x, u| {
            let on_device: Vec<GpuMat<T>> = u.iter().map(|&u| gpu.mat(u).unwrap()).collect();
            let chain = gpu.chain(x, &ranks(u)).unwrap();
            let y = gpu.ttm_chain(&chain, &on_device).unwrap();
            // The same again, bit for bit.
            let again = gpu.ttm_chain(&chain, &on_device).unwrap();
            assert!((0..y.rows()).all(|i| y.row(i) == again.row(i)));
            y
        });
        for split in SPLITS {
            let both = Hetero::new(Cpu::builder().threads(2).pin(false).build().unwrap(), gpu.clone(), split).unwrap();
            check_chain::<T>(&format!("{split:?}"), case, |x, u| {
                let mut chain = HeteroChain::new(x.clone(), &ranks(u));
                let first = both.ttm_chain(&mut chain, u).unwrap();
                assert_eq!(chain.share().is_some(), split == Split::Adaptive);
                // The second adaptive call runs by the remembered rate.
                let second = both.ttm_chain(&mut chain, u).unwrap();
                assert_eq!((first.rows(), first.cols()), (second.rows(), second.cols()));
                second
            });
            assert_eq!(both.take_failures(), Vec::<String>::new());
        }
    }
    quiet(&gpu);
}

#[test]
fn chains_on_devices() {
    check_chains_on_devices::<f32>();
    if gpu().is_some_and(|gpu| gpu.info().float64) {
        check_chains_on_devices::<f64>();
    }
}

#[test]
fn chains_on_devices_refuse_bad_shapes() {
    let Some(gpu) = gpu() else { return };
    let x: CooTensor<f32> = "skew:9x8x7:50".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let csf = Csf::from_coo(&x, &[1, 0, 2]).unwrap();
    let u: Vec<Mat<f32>> = [9, 8, 7].iter().map(|&dim| uniform_dense(dim, 2, 0).unwrap()).collect();
    let views: Vec<MatRef<'_, f32>> = u.iter().map(Mat::as_ref).collect();
    assert!(matches!(gpu.chain(&csf, &[2, 2]), Err(Error::Shape { op: "ttm_chain", .. })));
    assert!(matches!(gpu.chain(&csf, &[2, 2, 0]), Err(Error::Shape { op: "ttm_chain", .. })));
    // The root's rank does not matter, nor does its matrix.
    let chain = gpu.chain(&csf, &[2, 0, 2]).unwrap();
    let on = |which: &[usize]| which.iter().map(|&m| gpu.mat(views[m]).unwrap()).collect::<Vec<_>>();
    assert!(gpu.ttm_chain(&chain, &on(&[0, 0, 2])).is_ok());
    assert!(matches!(gpu.ttm_chain(&chain, &on(&[1, 1, 2])), Err(Error::Shape { op: "ttm_chain", .. })));
    assert!(matches!(gpu.ttm_chain(&chain, &on(&[0, 1])), Err(Error::Shape { op: "ttm_chain", .. })));
    let both = Hetero::new(Cpu::new().unwrap(), gpu.clone(), Split::Static(0.5)).unwrap();
    let refused = |ranks: &[usize], u: &[MatRef<'_, f32>]| {
        let made = both.ttm_chain(&mut HeteroChain::new(csf.clone(), ranks), u);
        matches!(made, Err(Error::Shape { op: "ttm_chain", .. }))
    };
    assert!(!refused(&[2, 0, 2], &[views[0], views[0], views[2]]));
    assert!(refused(&[2, 2, 2], &[views[1], views[1], views[2]]));
    assert!(refused(&[2, 2, 2], &views[..2]) && refused(&[3, 2, 2], &views) && refused(&[2, 2], &views));
    let empty = CooTensor::<f32>::new(vec![9, 8, 7], vec![vec![]; 3], vec![]).unwrap();
    let empty = Csf::from_coo(&empty, &[1, 0, 2]).unwrap();
    let y = gpu.ttm_chain(&gpu.chain(&empty, &[2, 2, 2]).unwrap(), &on(&[0, 1, 2])).unwrap();
    assert_eq!((y.rows(), y.cols()), (0, 4));
    let y = both.ttm_chain(&mut HeteroChain::new(empty, &[2, 2, 2]), &views).unwrap();
    assert_eq!((y.rows(), y.cols()), (0, 4));
    quiet(&gpu);
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

fn check_on_devices<T: DeviceScalar>(tolerance: f64) {
    let Some(gpu) = gpu() else { return };
    let cpu = Cpu::builder().threads(2).pin(false).build().unwrap();
    for (text, ranks) in [("skew:30x25x20:2000", &[4, 3, 5][..]), ("skew:12x10x9x8:1500", &[3, 4, 2, 3])] {
        let x: CooTensor<T> = text.parse::<TensorSpec>().unwrap().generate(3).unwrap();
        let options = TuckerOptions { tolerance: 0.0, iterations: 8, ..TuckerOptions::new(ranks.to_vec()) };
        let want = cpu.tucker(&x, &options, go).unwrap();
        let near = |got: &Tucker, what: &str| {
            assert_orthonormal(got);
            let off = got.fits.iter().zip(&want.fits).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(got.fits.len() == 8 && off < tolerance, "{text}, {what}: {off}");
        };
        let got = gpu.tucker(&cpu, &x, &options, go).unwrap();
        near(&got, "on the device");
        assert_eq!(gpu.tucker(&cpu, &x, &options, go).unwrap().core, got.core);
        for split in SPLITS {
            let both = Hetero::new(cpu.clone(), gpu.clone(), split).unwrap();
            near(&both.tucker(&x, &options, go).unwrap(), &format!("{split:?}"));
            assert_eq!(both.take_failures(), Vec::<String>::new());
        }
        // A resumed run has the bits of an unbroken one, and ends where the observer says.
        let mut kept = None;
        let stopped = gpu.tucker(&cpu, &x, &options, |state, iteration| {
            kept = Some(state.clone());
            if iteration.number == 3 { ControlFlow::Break(()) } else { go(state, iteration) }
        });
        assert_eq!(stopped.unwrap().fits, got.fits[..3]);
        let options = TuckerOptions { init: TuckerInit::Resume(kept.unwrap()), ..options };
        assert_eq!(gpu.tucker(&cpu, &x, &options, go).unwrap().fits, got.fits);
        let wrong = TuckerOptions { iterations: 0, ..options };
        assert!(matches!(gpu.tucker(&cpu, &x, &wrong, go), Err(Error::Argument { name: "iterations", .. })));
    }
    quiet(&gpu);
}

#[test]
fn fits_on_devices_are_the_processors() {
    check_on_devices::<f32>(1e-5);
    if gpu().is_some_and(|gpu| gpu.info().float64) {
        check_on_devices::<f64>(1e-11);
    }
}

#[test]
fn a_modes_turn_moves_one_factor_and_one_product() {
    // A device of its own: the account of copied bytes is the device's.
    let Some(gpu) = limited(DeviceOptions::default()) else { return };
    let x: CooTensor<f32> = "skew:20x15x12:1500".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let copied = |iterations| {
        let options = TuckerOptions { tolerance: 0.0, iterations, ..TuckerOptions::new(vec![8, 4, 8]) };
        gpu.take_times();
        gpu.tucker(&Cpu::new().unwrap(), &x, &options, go).unwrap();
        let times = gpu.take_times();
        [times.uploaded_bytes, times.downloaded_bytes]
    };
    let [one, three] = [copied(1), copied(3)];
    let slices = |mode: usize| {
        let mut coords = x.coords(mode).to_vec();
        coords.sort_unstable();
        coords.dedup();
        coords.len()
    };
    let products = slices(0) * 32 + slices(1) * 64 + slices(2) * 32;
    assert_eq!(three[0] - one[0], 2 * 4 * (20 * 8 + 15 * 4 + 12 * 8));
    assert_eq!([one[1], three[1]], [products as u64 * 4, products as u64 * 12]);
}

#[test]
fn a_device_that_fails_is_replaced() {
    let x: CooTensor<f32> = "skew:30x25x20:2000".parse::<TensorSpec>().unwrap().generate(3).unwrap();
    let options = TuckerOptions { tolerance: 0.0, iterations: 4, ..TuckerOptions::new(vec![4, 3, 5]) };
    let cpu = Cpu::builder().threads(2).pin(false).build().unwrap();
    let want = cpu.tucker(&x, &options, go).unwrap().fit;
    for limits in [
        DeviceOptions { lose_at: Some(0), ..DeviceOptions::default() },
        DeviceOptions { lose_at: Some(9), ..DeviceOptions::default() },
        DeviceOptions { memory_limit: Some(20_000), ..DeviceOptions::default() },
    ] {
        let Some(device) = limited(limits) else { return };
        let both = Hetero::new(cpu.clone(), device, Split::Static(0.5)).unwrap();
        let got = both.tucker(&x, &options, go).unwrap().fit;
        assert!((got - want).abs() < 1e-5, "{got}, on the processor {want}");
        let reasons = both.take_failures();
        assert!(reasons.len() == 1 && reasons[0].starts_with("ttm_chain: "), "{reasons:?}");
    }
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
