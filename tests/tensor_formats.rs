//! Conversions between the tensor formats keep every entry; constructors refuse what is not a tensor.

use sparsimd::formats::{HiCoo, SemiCoo, SemiHiCoo};
use sparsimd::generate::{TensorSpec, skewed};
use sparsimd::{CooTensor, Error, Mat};

/// The entries in natural order.
fn canonical(mut t: CooTensor<f64>) -> CooTensor<f64> {
    let natural: Vec<usize> = (0..t.order()).collect();
    t.sort(&natural).unwrap();
    t
}

fn tensors() -> Vec<CooTensor<f64>> {
    let specs =
        ["skew:70x600x5:3000", "skew:40x3x500x1x9:5000", "kron:300x300x300:4000", "skew:9:5", "skew:1000x7:900"];
    let mut all: Vec<_> = specs.iter().map(|s| s.parse::<TensorSpec>().unwrap().generate(3).unwrap()).collect();
    all.push(skewed(&[4_000_000_000, 3, 4_000_000_000], 2000, 1).unwrap());
    all.push(CooTensor::new(vec![4, 0, 3], vec![vec![]; 3], vec![]).unwrap());
    all
}

#[test]
fn hicoo_holds_the_same_entries_in_morton_blocks() {
    for t in tensors() {
        for block_bits in [1, 4, 7, 8] {
            let h = HiCoo::new(&t, block_bits).unwrap();
            let pattern = h.pattern();
            assert_eq!(canonical(h.to_coo()), t, "{:?} by {block_bits}", t.dims());
            assert_eq!(pattern.ptr()[0], 0);
            assert!(pattern.ptr().windows(2).all(|w| w[0] < w[1]) || t.nnz() == 0);
            let modes = t.order();
            assert_eq!(
                h.index_bytes(),
                8 * (pattern.num_blocks() + 1) + 4 * modes * pattern.num_blocks() + modes * t.nnz()
            );
            // No block occurs twice.
            let mut blocks: Vec<Vec<u32>> =
                (0..pattern.num_blocks()).map(|b| (0..modes).map(|m| pattern.blocks(m)[b]).collect()).collect();
            blocks.sort();
            assert!(blocks.windows(2).all(|w| w[0] < w[1]));
            assert!((0..modes).all(|m| pattern.elements(m).iter().all(|&e| u32::from(e) >> block_bits == 0)));
        }
    }
}

#[test]
fn blocks_follow_the_morton_curve() {
    let coords = vec![vec![0, 0, 2, 2, 0, 3], vec![0, 2, 0, 2, 1, 3]];
    let t = CooTensor::new(vec![4, 4], coords, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let h = HiCoo::new(&t, 1).unwrap();
    assert_eq!((h.pattern().blocks(0), h.pattern().blocks(1)), (&[0, 0, 1, 1][..], &[0, 1, 0, 1][..]));
    assert_eq!(h.values(), [1.0, 5.0, 2.0, 3.0, 4.0, 6.0]);
    assert_eq!(h.pattern().ptr(), [0, 2, 3, 4, 6]);
}

#[test]
fn ghicoo_keeps_fibers_of_the_free_mode_together() {
    for t in tensors() {
        for free in 0..t.order() {
            let h = HiCoo::with_free_modes(&t, 5, &[free]).unwrap();
            assert_eq!(canonical(h.to_coo()), t);
            let coo = h.to_coo();
            let others: Vec<usize> = (0..t.order()).filter(|&m| m != free).collect();
            let place = |p: usize| others.iter().map(|&m| coo.coords(m)[p]).collect::<Vec<_>>();
            // A fiber that is left never comes back.
            let mut heads: Vec<_> = (0..t.nnz()).filter(|&p| p == 0 || place(p - 1) != place(p)).map(place).collect();
            let fibers = heads.len();
            heads.sort();
            heads.dedup();
            assert_eq!(heads.len(), fibers);
            let ascending = |p: usize| place(p - 1) != place(p) || coo.coords(free)[p - 1] < coo.coords(free)[p];
            assert!((1..t.nnz()).all(ascending));
        }
    }
    let t = &tensors()[0];
    assert_eq!(HiCoo::with_free_modes(t, 3, &[2, 0]).unwrap().free_modes(), [0, 2]);
}

#[test]
fn hicoo_refuses_bad_input() {
    let t = &tensors()[0];
    for bits in [0, 9] {
        assert!(matches!(HiCoo::new(t, bits), Err(Error::Argument { name: "block_bits", .. })));
    }
    assert!(matches!(HiCoo::with_free_modes(t, 3, &[3]), Err(Error::Argument { name: "free_modes", .. })));
    assert!(HiCoo::with_free_modes(t, 3, &[1, 1]).is_err());
    let twice = CooTensor::new(vec![9, 9], vec![vec![8, 8], vec![3, 3]], vec![1.0, 2.0]).unwrap();
    let message = HiCoo::new(&twice, 3).unwrap_err().to_string();
    assert!(message.contains("[8, 3]"), "{message}");
    let wide = CooTensor::new(vec![u32::MAX as usize; 5], vec![vec![1]; 5], vec![1.0]).unwrap();
    assert!(HiCoo::new(&wide, 8).is_err());
}

#[test]
fn semi_sparse_formats_hold_the_same_entries() {
    for t in tensors().into_iter().filter(|t| t.dims().iter().all(|&d| d < 1000)) {
        for first in 0..t.order() {
            for dense in [vec![first], (0..t.order()).rev().filter(|&m| m != first).take(2).collect()] {
                if dense.is_empty() {
                    continue;
                }
                let s = SemiCoo::from_coo(&t, &dense).unwrap();
                assert_eq!(canonical(s.to_coo()), t, "{:?} dense {dense:?}", t.dims());
                assert_eq!(s.index_bytes(), 4 * s.num_blocks() * (t.order() - dense.len()));
                let h = SemiHiCoo::new(&s, 3).unwrap();
                assert_eq!(canonical(h.to_semi_coo().to_coo()), t);
                assert_eq!(h.pattern().modes(), s.sparse_modes());
                let rebuilt = SemiCoo::new(t.dims().to_vec(), dense, s.all_coords().to_vec(), {
                    Mat::from_fn(s.num_blocks(), s.block_len(), |i, j| s.values().row(i)[j]).unwrap()
                });
                assert_eq!(canonical(rebuilt.unwrap().to_coo()), t);
            }
        }
    }
}

#[test]
fn semi_sparse_refuses_bad_input() {
    let new = |dense: &[usize], coords: Vec<Vec<u32>>, rows, cols| {
        SemiCoo::new(vec![3, 4, 5], dense.to_vec(), coords, Mat::<f32>::zeros(rows, cols).unwrap())
    };
    assert!(new(&[1], vec![vec![0, 1], vec![2, 2]], 2, 4).is_ok());
    assert!(new(&[0, 1, 2], vec![], 1, 60).is_ok());
    for bad in [
        new(&[], vec![vec![0]; 3], 1, 1),
        new(&[3], vec![vec![0]; 2], 1, 4),
        new(&[1, 1], vec![vec![0]; 2], 1, 4),
        new(&[1], vec![vec![0]], 1, 4),
        new(&[1], vec![vec![0], vec![0, 1]], 1, 4),
        new(&[1], vec![vec![0], vec![0]], 1, 5),
        new(&[1], vec![vec![3], vec![0]], 1, 4),
        new(&[1], vec![vec![1, 1], vec![2, 2]], 2, 4),
        new(&[0, 1, 2], vec![], 2, 60),
    ] {
        assert!(bad.is_err());
    }
}
