//! Orders of rows, columns and modes: bijections on every shape, what they are for, and the same results.

mod common;

use std::sync::Arc;

use common::matrices::{aligned, from_rows, shapes};
use sparsimd::plan::TensorOptions;
use sparsimd::reorder::{self, Permutation, Reordering};
use sparsimd::{CooTensor, Cpu, Csr, Error, Mat, MatRef, Pattern, generate, reference};

type Method = fn(&Arc<Pattern>) -> Result<Reordering, Error>;

const METHODS: [(&str, Method); 3] =
    [("rcm", |a| reorder::rcm(a)), ("degree", |a| reorder::degree(a)), ("rabbit", |a| reorder::rabbit(a))];

fn cpu(threads: usize) -> Cpu {
    Cpu::builder().threads(threads).pin(false).build().unwrap()
}

/// 0..n in an order that has nothing to do with any matrix.
fn shuffled(n: usize, seed: u64) -> Permutation {
    let keys = generate::uniform_values::<f64>(n, seed);
    let mut order: Vec<u32> = (0..n as u32).collect();
    order.sort_by(|&i, &j| keys[i as usize].total_cmp(&keys[j as usize]));
    Permutation::from_vec(order).unwrap()
}

/// The square matrix of `n` rows with these undirected edges, and the diagonal where `loops`.
fn graph(n: usize, loops: bool, edges: impl IntoIterator<Item = (usize, usize)>) -> Csr<f64> {
    let mut rows: Vec<Vec<u32>> = (0..n).map(|i| if loops { vec![i as u32] } else { vec![] }).collect();
    for (i, j) in edges {
        rows[i].push(j as u32);
        rows[j].push(i as u32);
    }
    from_rows(n, &rows)
}

/// Graphs that searches and communities stumble over, and every awkward shape.
fn matrices() -> Vec<(&'static str, Csr<f64>)> {
    let mut all = shapes::<f64>();
    all.push(("path", graph(50, false, (1..50).map(|i| (i - 1, i)))));
    all.push(("self loops alone", graph(6, true, [])));
    all.push(("hub", graph(400, false, (1..400).map(|i| (0, i)))));
    all.push(("parts", graph(60, true, (0..58).filter(|i| i % 7 != 6).map(|i| (i, i + 1)))));
    all.push(("one direction", from_rows(5, &[vec![4], vec![], vec![0, 1], vec![2], vec![]])));
    all.push(("random", generate::random_matrix(300, 300, 0.97, 3).unwrap()));
    all
}

fn entries(a: &Csr<f64>) -> Vec<(u32, u32, u64)> {
    let row = |i: usize| a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
    let mut all: Vec<_> = (0..a.rows())
        .flat_map(|i| row(i).map(move |p| (i as u32, a.pattern().col_idx()[p], a.values()[p].to_bits())))
        .collect();
    all.sort_unstable();
    all
}

/// The largest |i - j| of a nonzero.
fn bandwidth(a: &Csr<f64>) -> u32 {
    entries(a).iter().map(|&(i, j, _)| i.abs_diff(j)).max().unwrap_or(0)
}

#[test]
fn permutations_are_checked() {
    let message = |old: &[u32]| Permutation::from_vec(old.to_vec()).unwrap_err().to_string();
    assert_eq!(message(&[0, 2]), "permutation: element 1 is 2, not below 2");
    assert_eq!(message(&[1, 0, 1]), "permutation: element 2 is 1, which occurs before");
    let (p, q) = (shuffled(40, 1), shuffled(40, 2));
    assert_eq!(p.then(&p.inverse()).unwrap(), Permutation::identity(40).unwrap());
    assert_eq!(p.inverse().then(&p).unwrap(), Permutation::identity(40).unwrap());
    let b = aligned::<f64>(40, 3, 1);
    let both = p.then(&q).unwrap().rows_of_mat(b.as_ref()).unwrap();
    let after = q.rows_of_mat(p.rows_of_mat(b.as_ref()).unwrap().as_ref()).unwrap();
    assert!(
        (0..40)
            .all(|i| both.row(i) == after.row(i)
                && both.row(i) == b.row(p.as_slice()[q.as_slice()[i] as usize] as usize))
    );
    assert!(Permutation::from_vec(vec![]).unwrap().is_empty());
    let short = shuffled(39, 1);
    assert_eq!(
        short.rows_of_mat(b.as_ref()).unwrap_err().to_string(),
        "rows_of_mat: the rows of B are 40, and the permutation has 39 elements"
    );
    let a = generate::random_matrix::<f64>(40, 41, 0.9, 1).unwrap();
    assert!(p.then(&short).is_err() && short.rows_of(&a).is_err() && short.cols_of(&a).is_err());
    let x = CooTensor::new(vec![40, 5], vec![vec![3], vec![2]], vec![1.0]).unwrap();
    assert!(p.mode_of(&x, 1).is_err() && p.mode_of(&x, 2).is_err());
    assert!(
        reorder::permute_modes(&x, std::slice::from_ref(&p)).is_err()
            && reorder::permute_modes(&x, &[p.clone(), p]).is_err()
    );
}

#[test]
fn rows_columns_and_values_move_together() {
    for (name, a) in matrices() {
        let (rows, cols) = (shuffled(a.rows(), 3), shuffled(a.cols(), 4));
        let (new_row, new_col) = (rows.inverse(), cols.inverse());
        let moved = |by_row: bool, by_col: bool| {
            let mut all = entries(&a);
            for (i, j, _) in &mut all {
                *i = if by_row { new_row.as_slice()[*i as usize] } else { *i };
                *j = if by_col { new_col.as_slice()[*j as usize] } else { *j };
            }
            all.sort_unstable();
            all
        };
        assert_eq!(entries(&rows.rows_of(&a).unwrap()), moved(true, false), "{name}");
        assert_eq!(entries(&cols.cols_of(&a).unwrap()), moved(false, true), "{name}");
        let reordering = Reordering { rows, cols };
        let (pattern, places) = reordering.pattern(a.pattern()).unwrap();
        let values = places.iter().map(|&p| a.values()[p]).collect();
        let new = reordering.matrix(&a).unwrap();
        assert_eq!(new, Csr::new(pattern, values).unwrap(), "{name}");
        assert_eq!(entries(&new), moved(true, true), "{name}");
        assert!((0..new.rows()).all(|i| new.pattern().row(i).is_sorted()), "{name}");
    }
}

#[test]
fn orders_are_bijections_and_the_same_on_any_number_of_threads() {
    for (name, a) in matrices() {
        for (method, order) in METHODS {
            let got = cpu(1).install(|| order(a.pattern())).unwrap();
            for (permutation, len) in [(&got.rows, a.rows()), (&got.cols, a.cols())] {
                assert_eq!(permutation.len(), len, "{method}, {name}");
                assert!(Permutation::from_vec(permutation.as_slice().to_vec()).is_ok(), "{method}, {name}");
            }
            assert!(a.rows() != a.cols() || got.rows == got.cols, "{method}, {name}");
            assert_eq!(cpu(3).install(|| order(a.pattern())).unwrap(), got, "{method}, {name}");
        }
    }
}

#[test]
fn operations_agree_in_every_order() {
    let (cpu, n) = (cpu(2), 20);
    for (name, a) in matrices() {
        let (b, c, d) =
            (aligned::<f64>(a.cols(), n, 1), aligned::<f64>(a.rows(), n, 2), aligned::<f64>(a.cols(), n, 3));
        let zero = Mat::zeros(a.rows(), n).unwrap();
        let product = reference::spmm(1.0, &a, b.as_ref(), 0.0, zero.as_ref()).unwrap();
        let sampled = reference::sddmm(&a, true, c.as_ref(), b.as_ref()).unwrap();
        let sigmoid = reference::Edge::Sigmoid;
        let fused = reference::fusedmm(&a, sigmoid, c.as_ref(), b.as_ref(), d.as_ref()).unwrap();
        for (method, order) in METHODS {
            let reordering = order(a.pattern()).unwrap();
            let (back, by_cols) =
                (reordering.rows.inverse(), |m: &Mat<f64>| reordering.cols.rows_of_mat(m.as_ref()).unwrap());
            let (pattern, places) = reordering.pattern(a.pattern()).unwrap();
            let new = Csr::new(pattern, places.iter().map(|&p| a.values()[p]).collect()).unwrap();
            let (b, c, d) = (by_cols(&b), reordering.rows.rows_of_mat(c.as_ref()).unwrap(), by_cols(&d));
            let mut out = zero.clone();
            cpu.spmm(1.0, &new, b.as_ref(), 0.0, out.as_mut()).unwrap();
            let worst = product.deviation(back.rows_of_mat(out.as_ref()).unwrap().as_ref()).unwrap();
            assert!(worst.error <= 1.0, "SpMM, {method}, {name}: {worst:?}");
            cpu.fusedmm(&new, sparsimd::edge::Sigmoid, c.as_ref(), b.as_ref(), d.as_ref(), out.as_mut()).unwrap();
            let worst = fused.deviation(back.rows_of_mat(out.as_ref()).unwrap().as_ref()).unwrap();
            assert!(worst.error <= 1.0, "FusedMM, {method}, {name}: {worst:?}");
            let mut values = vec![0.0; a.nnz()];
            cpu.sddmm_scaled(&new, c.as_ref(), b.as_ref(), &mut values).unwrap();
            let mut given = vec![f64::NAN; a.nnz()];
            places.iter().zip(&values).for_each(|(&p, &value)| given[p] = value);
            let worst = sampled.deviation_of_values(&given).unwrap();
            assert!(worst.error <= 1.0, "SDDMM, {method}, {name}: {worst:?}");
        }
    }
}

#[test]
fn rcm_finds_a_shuffled_band() {
    let (n, width) = (3000, 7);
    let band = graph(n, true, (0..n).flat_map(|i| (i + 1..n.min(i + width + 1)).map(move |j| (i, j))));
    assert_eq!(bandwidth(&band), width as u32);
    let p = shuffled(n, 9);
    let mixed = Reordering { rows: p.clone(), cols: p }.matrix(&band).unwrap();
    assert!(bandwidth(&mixed) > 2000);
    let found = reorder::rcm(mixed.pattern()).unwrap().matrix(&mixed).unwrap();
    assert!(bandwidth(&found) <= width as u32 * 3 / 2, "{}", bandwidth(&found));
    // A band of a matrix that is not square: each row has the columns from half of its number on.
    let rows: Vec<Vec<u32>> = (0..1000).map(|i| (i / 2..i / 2 + 4).collect()).collect();
    let band = from_rows::<f64>(503, &rows);
    let mixed = Reordering { rows: shuffled(1000, 5), cols: shuffled(503, 6) }.matrix(&band).unwrap();
    let found = reorder::rcm(mixed.pattern()).unwrap().matrix(&mixed).unwrap();
    let spread = |a: &Csr<f64>| entries(a).iter().map(|&(i, j, _)| (i / 2).abs_diff(j)).max().unwrap();
    assert!(spread(&mixed) > 300);
    assert!(spread(&found) <= 12, "{}", spread(&found));
}

#[test]
fn degrees_descend() {
    let a = generate::random_matrix::<f64>(90, 60, 0.8, 3).unwrap();
    let new = reorder::degree(a.pattern()).unwrap().matrix(&a).unwrap();
    assert!((1..90).all(|i| new.pattern().row(i - 1).len() >= new.pattern().row(i).len()));
    let columns = new.transpose();
    assert!((1..60).all(|j| columns.pattern().row(j - 1).len() >= columns.pattern().row(j).len()));
}

#[test]
fn rabbit_finds_shuffled_blocks() {
    let (blocks, size) = (40, 25);
    let n = blocks * size;
    // Three of four entries of each block on the diagonal.
    let inside =
        (0..n).flat_map(|i| (i + 1..(i / size + 1) * size).filter(move |j| (i * 7 + j) % 4 != 0).map(move |j| (i, j)));
    let p = shuffled(n, 4);
    let mixed = Reordering { rows: p.clone(), cols: p.clone() }.matrix(&graph(n, false, inside)).unwrap();
    let order = reorder::rabbit(mixed.pattern()).unwrap().rows;
    let block_of: Vec<u32> = order.as_slice().iter().map(|&i| p.as_slice()[i as usize] / size as u32).collect();
    let changes = block_of.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!(changes, blocks - 1);
    // Likewise rows and columns of blocks that are not square.
    let rows: Vec<Vec<u32>> = (0..600).map(|i| (i / 30 * 10..i / 30 * 10 + 10).collect()).collect();
    let (p, q) = (shuffled(600, 5), shuffled(200, 6));
    let mixed = Reordering { rows: p.clone(), cols: q.clone() }.matrix(&from_rows::<f64>(200, &rows)).unwrap();
    let found = reorder::rabbit(mixed.pattern()).unwrap();
    for (order, given, size) in [(found.rows, p, 30), (found.cols, q, 10)] {
        let blocks: Vec<u32> = order.as_slice().iter().map(|&i| given.as_slice()[i as usize] / size).collect();
        assert_eq!(blocks.windows(2).filter(|pair| pair[0] != pair[1]).count(), 19);
    }
}

#[test]
fn fetches_are_those_of_a_cache_that_is_emptied_when_full() {
    let a = from_rows::<f32>(4, &[vec![0, 1], vec![1, 2], vec![0], vec![], vec![1, 3]]);
    let count = |capacity| reorder::fetches(a.pattern(), None, capacity).unwrap();
    // 0 1 | 2 0 | 1 3, and 0 | 1 | 2 | 0 | 1 | 3 with 1 kept from the first row to the second.
    assert_eq!((count(2), count(1), count(0), count(4), count(100)), (6, 6, 6, 4, 4));
    let order = Permutation::from_vec(vec![3, 2, 0, 4, 1]).unwrap();
    // 0 1 | 3 1 | 2
    assert_eq!(reorder::fetches(a.pattern(), Some(&order), 2).unwrap(), 5);
    let short = Permutation::identity(4).unwrap();
    assert!(matches!(reorder::fetches(a.pattern(), Some(&short), 2), Err(Error::Shape { .. })));
}

#[test]
fn auto_reorders_where_it_pays() {
    let n = 6000;
    let blocks = graph(n, true, (0..n).flat_map(|i| (i + 1..(i / 20 + 1) * 20).map(move |j| (i, j))));
    let p = shuffled(n, 2);
    let mixed = Reordering { rows: p.clone(), cols: p }.matrix(&blocks).unwrap();
    let auto = |a: &Csr<f64>, runs| reorder::auto(a.pattern(), 1 << 16, 512, runs).unwrap();
    let many = auto(&mixed, 10_000);
    assert!(many.before > 100_000 && many.after < 20_000, "{} {}", many.before, many.after);
    assert_ne!(many.method, "none");
    let found = many.reordering.unwrap();
    assert_eq!(reorder::fetches(mixed.pattern(), Some(&found.rows), 128).unwrap(), many.after);
    // Few runs, a matrix that is in order, and one that a cache holds.
    let held = reorder::auto(mixed.pattern(), n * 512, 512, 10_000).unwrap();
    for none in [auto(&mixed, 1), auto(&blocks, 10_000), held] {
        assert_eq!((none.method, none.reordering, none.before), ("none", None, none.after));
    }
    for (name, a) in matrices() {
        assert!(reorder::auto(a.pattern(), 0, 0, usize::MAX).is_ok(), "{name}");
    }
}

/// Tensors of order 1 to 5, without entries, with empty slices, and with the same place twice.
fn tensors() -> Vec<CooTensor<f64>> {
    let skewed = |dims: &[usize], nnz| generate::skewed(dims, nnz, 7).unwrap();
    vec![
        CooTensor::new(vec![0, 3], vec![vec![], vec![]], vec![]).unwrap(),
        CooTensor::new(vec![5], vec![vec![3, 1]], vec![1.0, 2.0]).unwrap(),
        CooTensor::new(vec![1, 1, 1], vec![vec![0], vec![0], vec![0]], vec![2.0]).unwrap(),
        CooTensor::new(vec![4, 9], vec![vec![2, 0, 2, 2], vec![8, 1, 8, 3]], vec![1.0, 2.0, 3.0, 4.0]).unwrap(),
        skewed(&[40, 50, 60], 2000),
        skewed(&[9, 2000, 70, 8], 1500),
        skewed(&[8, 9, 10, 11, 12], 900),
    ]
}

fn views(factors: &[Mat<f64>]) -> Vec<MatRef<'_, f64>> {
    factors.iter().map(Mat::as_ref).collect()
}

fn orders(x: &CooTensor<f64>) -> [(&'static str, Vec<Permutation>); 2] {
    [("Lexi-order", reorder::lexi(x, 5).unwrap()), ("BFS-MCS", reorder::bfs_mcs(x).unwrap())]
}

#[test]
fn orders_of_modes_are_bijections_and_products_agree() {
    let cpu = cpu(2);
    for x in tensors() {
        let got = cpu.install(|| orders(&x));
        assert_eq!(crate::cpu(1).install(|| orders(&x)), got, "{:?}", x.dims());
        let factors: Vec<Mat<f64>> = x.dims().iter().map(|&dim| aligned(dim, 9, dim as u64)).collect();
        for (name, orders) in got {
            let new = reorder::permute_modes(&x, &orders).unwrap();
            let mut one_by_one = x.clone();
            for (mode, order) in orders.iter().enumerate() {
                assert_eq!(order.len(), x.dims()[mode]);
                assert!(Permutation::from_vec(order.as_slice().to_vec()).is_ok(), "{name}, {:?}", x.dims());
                one_by_one = order.mode_of(&one_by_one, mode).unwrap();
            }
            assert_eq!(new, one_by_one);
            if x.order() < 2 || x.check_unique().is_err() {
                continue;
            }
            let prepared = cpu.prepare_tensor(&new, &TensorOptions::new(9)).unwrap();
            let permuted: Vec<Mat<f64>> =
                orders.iter().zip(&factors).map(|(p, f)| p.rows_of_mat(f.as_ref()).unwrap()).collect();
            for (mode, order) in orders.iter().enumerate() {
                let expected = reference::mttkrp(&x, &views(&factors), mode).unwrap();
                let mut product = Mat::zeros(x.dims()[mode], 9).unwrap();
                cpu.mttkrp(&prepared, &views(&permuted), mode, product.as_mut()).unwrap();
                let back = order.inverse().rows_of_mat(product.as_ref()).unwrap();
                let worst = expected.deviation(back.as_ref()).unwrap();
                assert!(worst.error <= 1.0, "{name}, {:?}, mode {mode}: {worst:?}", x.dims());
            }
        }
    }
}

/// Nonzeros that share a block of 8 x 8 x ... with another: the number of such blocks is what the orders are to lower.
fn blocks(x: &CooTensor<f64>) -> usize {
    let mut all: Vec<Vec<u32>> = (0..x.nnz()).map(|p| x.all_coords().iter().map(|c| c[p] / 8).collect()).collect();
    all.sort_unstable();
    all.dedup();
    all.len()
}

#[test]
fn orders_of_modes_bring_shuffled_blocks_together() {
    // 20 full blocks of 8 x 8 x 8, on the diagonal.
    let index = |p: usize, digit: u32| ((p / 512 * 8) + (p / 8usize.pow(digit)) % 8) as u32;
    let coords: Vec<Vec<u32>> = (0..3).map(|mode| (0..20 * 512).map(|p| index(p, mode)).collect()).collect();
    let x = CooTensor::new(vec![160; 3], coords, vec![1.0; 20 * 512]).unwrap();
    assert_eq!(blocks(&x), 20);
    let mixed = reorder::permute_modes(&x, &[shuffled(160, 1), shuffled(160, 2), shuffled(160, 3)]).unwrap();
    assert!(blocks(&mixed) > 4000);
    for (name, orders) in orders(&mixed) {
        assert_eq!(blocks(&reorder::permute_modes(&mixed, &orders).unwrap()), 20, "{name}");
    }
}

#[test]
fn lexi_order_sorts_columns() {
    // Rows 0 1 2 and columns 0 1 2 3; column 3 has the first row, column 1 the first and the second.
    // [ . x . x ]
    // [ . x x . ]
    // [ x . . . ]
    let coords = vec![vec![0, 0, 1, 1, 2], vec![1, 3, 1, 2, 0]];
    let x = CooTensor::new(vec![3, 4], coords, vec![1.0; 5]).unwrap();
    let orders = reorder::lexi(&x, 1).unwrap();
    // Rows first, by columns 0 1 2 3 as fibers: column 0 has row 2, column 1 rows 0 and 1, column 2 row 1.
    assert_eq!(orders[0].as_slice(), [2, 1, 0]);
    // Then columns, by rows 2 1 0.
    assert_eq!(orders[1].as_slice(), [0, 1, 2, 3]);
}
