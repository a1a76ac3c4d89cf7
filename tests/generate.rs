//! Generated tensors: the same on every number of threads, of the shape asked for, with the properties of their model.

use sparsimd::generate::{
    Initiator, MatrixModel, MatrixSpec, Model, TensorSpec, dense_fibers, dense_slices, kronecker, lone_in_fiber,
};
use sparsimd::generate::{kronecker_bernoulli, lone_in_slice, power_law, power_law_slices, skewed};
use sparsimd::{CooTensor, Cpu, Csr, Error};

fn on_threads(threads: usize, spec: &TensorSpec, seed: u64) -> CooTensor<f32> {
    let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
    cpu.install(|| spec.generate(seed)).unwrap()
}

/// Nonzeros of every coordinate of `mode`, descending.
fn degrees(t: &CooTensor<f32>, mode: usize) -> Vec<usize> {
    let mut counts = vec![0; t.dims()[mode]];
    t.coords(mode).iter().for_each(|&i| counts[i as usize] += 1);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

#[test]
fn the_same_on_every_thread_count_and_different_by_seed() {
    for text in [
        "kron:3000x5000x700:60000",
        "powerlaw:3000x5000x70:60000",
        "skew:3000x500x700x20:60000",
        "best-ttm:300x500x70:60000",
        "best-mttkrp:300x50x70:60000",
        "worst-ttm:300x500x70:60000",
        "worst-mttkrp:60000x500x70:60000",
    ] {
        let spec: TensorSpec = text.parse().unwrap();
        let one = on_threads(1, &spec, 5);
        assert_eq!(one.dims(), spec.dims);
        assert!(one.is_sorted(&(0..one.order()).collect::<Vec<_>>()).unwrap(), "{text}");
        one.check_unique().unwrap();
        assert!(one.values().iter().all(|&x| x > 0.0 && x <= 1.0));
        assert!(one == on_threads(3, &spec, 5), "{text}");
        assert!(one != on_threads(1, &spec, 6), "{text}");
    }
}

#[test]
fn all_named_tensors_are_described() {
    let names = TensorSpec::names();
    assert_eq!(names.len(), 33);
    for name in &names {
        let spec = TensorSpec::named(name).unwrap();
        assert_eq!(*name == "irrS", spec.dims == [32768, 32768, 76] && spec.nnz == 1_000_000);
        assert_eq!(spec, name.parse().unwrap());
    }
    let reg = TensorSpec::named("regS").unwrap();
    let t = on_threads(2, &reg, 1);
    assert_eq!((t.nnz(), t.dims()), (1_100_000, &[65536; 3][..]));
}

#[test]
fn kronecker_follows_its_initiator() {
    // One level only: places have exactly the initiator's weights; weight 0 never occurs.
    let initiator = Initiator::new(vec![2, 3], vec![4.0, 0.0, 1.0, 0.0, 1.0, 2.0]).unwrap();
    let t: CooTensor<f32> = kronecker(&[2, 3], 4, &initiator, 3).unwrap();
    let places: Vec<_> = t.coords(0).iter().zip(t.coords(1)).map(|(&i, &j)| (i, j)).collect();
    assert_eq!(places, [(0, 0), (0, 2), (1, 1), (1, 2)]);
    assert!(kronecker::<f32>(&[2, 3], 5, &initiator, 3).is_err(), "only four places have a weight");
    // Many levels: half of a mode gets the marginal weight of its first digit.
    let initiator = Initiator::core_periphery(3);
    let t: CooTensor<f32> = kronecker(&[1 << 18, 1 << 18, 200_000], 100_000, &initiator, 9).unwrap();
    let low = t.coords(0).iter().filter(|&&i| i < 1 << 17).count() as f64 / t.nnz() as f64;
    // Marginal of digit 0 in the first mode: (0.9 + 2 * 19/30 + 11/30) / 4 = 0.6333; stripping mode 2 and dropping
    // duplicates move it slightly.
    assert!((low - 0.633).abs() < 0.03, "{low}");
    assert!(Initiator::new(vec![2, 1], vec![1.0, 1.0]).is_err());
    assert!(Initiator::new(vec![2], vec![1.0]).is_err());
    assert!(Initiator::new(vec![2], vec![1.0, -1.0]).is_err());
    assert!(Initiator::new(vec![2], vec![0.0, 0.0]).is_err());
    assert!(kronecker::<f32>(&[4, 4], 3, &initiator, 0).is_err());
}

#[test]
fn power_law_is_steep_in_sparse_modes_and_flat_in_dense_ones() {
    let t: CooTensor<f32> = power_law(&[10_000, 10_000, 50], 200_000, 1.0, &[2], 4).unwrap();
    let sparse = degrees(&t, 0);
    // Rank 1 against rank 100: the law says 100, less what duplicates cost the head.
    assert!(sparse[0] > 20 * sparse[99].max(1), "{} {}", sparse[0], sparse[99]);
    let dense = degrees(&t, 2);
    assert!(dense[0] < 2 * dense[49]);
    assert!(power_law::<f32>(&[10, 10], 5, f64::NAN, &[], 0).is_err());
    assert!(power_law::<f32>(&[10, 10], 5, 1.0, &[2], 0).is_err());
}

#[test]
fn skewed_coordinates_follow_the_square_law() {
    let t: CooTensor<f32> = skewed(&[1000, 100_000, 100_000], 100_000, 4).unwrap();
    let degree = degrees(&t, 0);
    // Ranks below a quarter of the mode have u < 1/2: half of the nonzeros.
    let quarter = degree[..250].iter().sum::<usize>() as f64 / t.nnz() as f64;
    assert!((quarter - 0.5).abs() < 0.03, "{quarter}");
}

#[test]
fn extremes_have_the_fibers_they_promise() {
    let t: CooTensor<f32> = dense_fibers(&[30, 40, 50], 1000, 1).unwrap();
    assert_eq!(t.nnz(), 1000);
    assert!(t.coords(2).iter().enumerate().all(|(p, &k)| k as usize == p % 50));
    let t: CooTensor<f32> = dense_slices(&[30, 4, 5, 6], 500, 1).unwrap();
    assert_eq!(t.nnz(), 480);
    assert!(degrees(&t, 0)[..4].iter().all(|&d| d == 120));
    let t: CooTensor<f32> = lone_in_fiber(&[30, 40, 64], 640, 1).unwrap();
    assert!(degrees(&t, 2).iter().all(|&d| d == 10));
    let t: CooTensor<f32> = lone_in_slice(&[700, 64, 32], 640, 1).unwrap();
    assert!(degrees(&t, 0)[..640].iter().all(|&d| d == 1));
    assert!(degrees(&t, 1).iter().all(|&d| d == 10));
}

#[test]
fn impossible_requests_are_refused() {
    assert!(matches!(skewed::<f32>(&[3, 3], 10, 0), Err(Error::Argument { name: "nnz", .. })));
    assert!(skewed::<f32>(&[3, 3], 9, 0).is_ok());
    assert!(skewed::<f32>(&[u32::MAX as usize; 5], 9, 0).is_err());
    assert!(skewed::<f32>(&[u32::MAX as usize; 4], 9, 0).is_ok());
    assert!(dense_fibers::<f32>(&[5], 3, 0).is_err());
    assert!(dense_slices::<f32>(&[5, 0], 3, 0).is_err());
    assert!(lone_in_fiber::<f32>(&[5, 0], 3, 0).is_err());
    assert!(lone_in_slice::<f32>(&[5, 7], 6, 0).is_err());
    for bad in ["nell", "skew:3x:4", "skew:3x3", "skew:3x3:x", "foo:3x3:4", "skew:1x1x1x1x1x1x1x1x1:1", ""] {
        assert!(bad.parse::<TensorSpec>().is_err(), "{bad}");
    }
    let empty = TensorSpec { model: Model::Skewed, dims: vec![0, 4], nnz: 0 };
    assert_eq!(empty.generate::<f64>(0).unwrap().nnz(), 0);
    assert!(TensorSpec { model: Model::Skewed, dims: vec![], nnz: 0 }.generate::<f64>(0).is_err());
}

fn matrix_on_threads(threads: usize, spec: &MatrixSpec, seed: u64) -> Csr<f32> {
    let cpu = Cpu::builder().threads(threads).pin(false).build().unwrap();
    cpu.install(|| spec.generate(seed)).unwrap()
}

/// The nonzeros' places.
fn places(a: &Csr<f32>) -> Vec<(usize, usize)> {
    (0..a.rows()).flat_map(|i| a.pattern().row(i).iter().map(move |&j| (i, j as usize))).collect()
}

#[test]
fn matrices_have_the_places_of_their_models() {
    for (text, nnz) in [
        ("uniform:300x500@0.9", 14_000..16_000),
        // 2 distance + 1 places a row, less those beyond the corners.
        ("banded:300x300:4", 300 * 9 - 20..300 * 9 - 19),
        ("banded:300x40:4@0.5", 120..240),
        ("banded:10x400:1000@0", 4000..4001),
        ("blocks:100x100:32", 3 * 1024 + 16..3 * 1024 + 17),
        ("blocks:100x50:32@0.5", 500..1200),
        ("pruned:200x300@0.9", 6000..6001),
        ("pruned:7x9@0", 63..64),
        ("pruned:7x9@1", 0..1),
        ("pruned:0x9@0.5", 0..1),
    ] {
        let spec: MatrixSpec = text.parse().unwrap();
        let a = matrix_on_threads(1, &spec, 5);
        assert_eq!((a.rows(), a.cols()), (spec.rows, spec.cols), "{text}");
        assert!(nnz.contains(&a.nnz()), "{text}: {}", a.nnz());
        assert!(a == matrix_on_threads(3, &spec, 5), "{text}");
        assert!(a.nnz() < 100 || a != matrix_on_threads(1, &spec, 6), "{text}");
        let inside = |(i, j): (usize, usize)| match spec.model {
            MatrixModel::Banded(distance) => i.abs_diff(j) <= distance,
            MatrixModel::BlockDiagonal(size) => i / size == j / size,
            _ => true,
        };
        assert!(places(&a).into_iter().all(inside), "{text}");
        assert!(
            a.pattern().row_ptr().windows(2).all(|w| a.pattern().col_idx()[w[0]..w[1]].is_sorted_by(|x, y| x < y)),
            "{text}"
        );
    }
    for bad in [
        "uniform:3x3",
        "uniform:3@0.5",
        "uniform:3x3x3@0.5",
        "uniform:3x3:2@0.5",
        "banded:3x3@0.5",
        "blocks:3x3:x",
        "other:3x3@0.5",
        "",
    ] {
        assert!(matches!(bad.parse::<MatrixSpec>(), Err(Error::Argument { .. })), "{bad}");
    }
    for bad in ["blocks:3x3:0", "uniform:3x3@1.5", "pruned:3x3@-1", "pruned:5000000000x1@0.5"] {
        let spec: MatrixSpec = bad.parse().unwrap();
        assert!(matches!(spec.generate::<f32>(0), Err(Error::Argument { .. })), "{bad}");
    }
}

#[test]
fn what_is_pruned_is_smaller_and_rows_differ() {
    let dense = matrix_on_threads(2, &"pruned:400x500@0".parse().unwrap(), 7);
    let pruned = matrix_on_threads(2, &"pruned:400x500@0.9".parse().unwrap(), 7);
    let size = |x: &f32| x.abs();
    let least = pruned.values().iter().map(size).fold(f32::INFINITY, f32::min);
    assert_eq!(dense.values().iter().filter(|x| size(x) >= least).count(), pruned.nnz());
    // Rows vary by more than places drawn alone: their standard deviation would be sqrt(50 * 0.9) = 6.7.
    let mean = pruned.nnz() as f64 / 400.0;
    let variance =
        pruned.pattern().row_ptr().windows(2).map(|w| ((w[1] - w[0]) as f64 - mean).powi(2)).sum::<f64>() / 400.0;
    assert!((12.0..20.0).contains(&variance.sqrt()), "{}", variance.sqrt());
}

#[test]
fn rmat_is_skewed_towards_the_first_vertices() {
    let spec: TensorSpec = "rmat:12:40000".parse().unwrap();
    assert_eq!(spec.dims, [4096, 4096]);
    let t = on_threads(2, &spec, 3);
    assert_eq!(t.nnz(), 40_000);
    // The first digit of the row is 0 with probability 0.76; distinct places lower it.
    let upper = t.coords(0).iter().filter(|&&i| i < 2048).count() as f64 / 40_000.0;
    assert!((0.70..0.77).contains(&upper), "{upper}");
    for bad in ["rmat:0:1", "rmat:32:1", "rmat:2x2:1", "rmat:4:1000"] {
        assert!(bad.parse::<TensorSpec>().and_then(|spec| spec.generate::<f32>(0)).is_err(), "{bad}");
    }
}

#[test]
fn bernoulli_draws_have_the_probabilities_of_the_product() {
    // Two levels of (0.9, 0.5; 0.5, 0.1) = 16 places of probabilities from 0.01 to 0.81, before the scale.
    let initiator = Initiator::core_periphery(2);
    let expected = 2.0;
    let (runs, scale) = (4000u64, expected / 4.0);
    let mut hits = [0u32; 16];
    for seed in 0..runs {
        let t: CooTensor<f32> = kronecker_bernoulli(&[4, 4], expected as usize, &initiator, seed).unwrap();
        t.coords(0).iter().zip(t.coords(1)).for_each(|(&i, &j)| hits[(4 * i + j) as usize] += 1);
    }
    let weight = |i: usize, j: usize| [[0.9, 0.5], [0.5, 0.1]][i][j];
    for (place, &hits) in hits.iter().enumerate() {
        let (i, j) = (place / 4, place % 4);
        let p: f64 = weight(i / 2, j / 2) * weight(i % 2, j % 2) * scale;
        // Five standard deviations.
        let bound = 5.0 * (p * (1.0 - p) / runs as f64).sqrt();
        let share = f64::from(hits) / runs as f64;
        assert!((share - p).abs() < bound, "({i}, {j}): {share} for {p}");
    }
    for text in ["kron-bernoulli:4096x4096x4096:30000", "kron-bernoulli:1024x1024:5000"] {
        let spec: TensorSpec = text.parse().unwrap();
        let t = on_threads(1, &spec, 5);
        assert!((spec.nnz - 1500..spec.nnz + 1500).contains(&t.nnz()), "{text}: {}", t.nnz());
        t.check_unique().unwrap();
        assert!(t.is_sorted(&(0..t.order()).collect::<Vec<_>>()).unwrap() && t == on_threads(3, &spec, 5), "{text}");
    }
    // What falls outside of the lengths is stripped.
    let spec: TensorSpec = "kron-bernoulli:3000x700:20000".parse().unwrap();
    let t = on_threads(2, &spec, 1);
    assert!(t.nnz() > 5000 && t.nnz() < 20_000 && t.coords(1).iter().all(|&j| j < 700), "{}", t.nnz());
    let many = Initiator::new(vec![6, 6], (1..=36).map(f64::from).collect()).unwrap();
    assert!(matches!(kronecker_bernoulli::<f32>(&[1 << 30; 2], 9, &many, 0), Err(Error::Argument { .. })));
}

#[test]
fn slices_of_a_power_law_have_equal_shares_and_the_same_vertices() {
    let spec: TensorSpec = "powerlaw-slices:2000x3000x7:50000".parse().unwrap();
    let t = on_threads(1, &spec, 5);
    assert!(t == on_threads(3, &spec, 5) && t != on_threads(1, &spec, 6));
    assert!(t.nnz() == 50_000 && t.is_sorted(&[0, 1, 2]).unwrap());
    t.check_unique().unwrap();
    let shares = degrees(&t, 2);
    assert_eq!((shares[0], shares[6]), (7143, 7142));
    // The vertex that is met most is one of the ten most in every slice.
    let of_slice = |k: u32| {
        let mut counts = vec![(0, 0); 2000];
        t.coords(0)
            .iter()
            .zip(t.coords(2))
            .filter(|&(_, &s)| s == k)
            .for_each(|(&i, _)| counts[i as usize] = (counts[i as usize].0 + 1, i));
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    };
    let first = of_slice(0)[0].1;
    assert!((1..7).all(|k| of_slice(k)[..10].iter().any(|&(_, i)| i == first)));
    for (dense, nnz) in [(&[][..], 10), (&[0, 1, 2][..], 10), (&[3][..], 10), (&[2, 2][..], 10), (&[2][..], 6)] {
        let result = power_law_slices::<f32>(&[20, 30, 7], nnz, 0.6, dense, 0);
        assert!(matches!(result, Err(Error::Argument { .. })), "{dense:?}");
    }
}
