//! Generated tensors: the same on every number of threads, of the shape asked for, with the properties of their model.

use sparsimd::generate::{Initiator, Model, TensorSpec, dense_fibers, dense_slices, kronecker, lone_in_fiber};
use sparsimd::generate::{lone_in_slice, power_law, skewed};
use sparsimd::{CooTensor, Cpu, Error};

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
