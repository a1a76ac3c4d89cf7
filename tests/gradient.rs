//! The gradients of SpMM, SDDMM and FusedMM are those that finite differences find.

use sparsimd::edge::Edge;
use sparsimd::ops::{EdgeWeighting, FusedGradient};
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Cpu, Csr, Mat, MatRef, edge, generate};

/// L = sum_ij W_ij (A B)_ij.
fn loss(cpu: &Cpu, a: &Csr<f64>, b: &Mat<f64>, w: &Mat<f64>) -> f64 {
    let mut c = Mat::zeros(a.rows(), b.cols()).unwrap();
    cpu.spmm(1.0, a, b.as_ref(), 0.0, c.as_mut()).unwrap();
    (0..c.rows()).flat_map(|i| c.row(i).iter().zip(w.row(i))).map(|(c, w)| c * w).sum()
}

#[test]
fn gradients_match_finite_differences() {
    let cpu = Cpu::new().unwrap();
    let (m, k, n) = (23, 31, 19);
    let a = generate::random_matrix::<f64>(m, k, 0.8, 1).unwrap();
    let b = generate::uniform_dense::<f64>(k, n, 2).unwrap();
    let w = generate::uniform_dense::<f64>(m, n, 3).unwrap();

    // dL/da_ij = W_i . B_j, and dL/dB = A^T W.
    let mut da = vec![0.0; a.nnz()];
    cpu.sddmm(&a, w.as_ref(), b.as_ref(), &mut da).unwrap();
    let mut db = Mat::zeros(k, n).unwrap();
    cpu.spmm_t(1.0, &a, w.as_ref(), 0.0, db.as_mut()).unwrap();

    // L is linear in each entry, so the central difference has no error but rounding, about 1e-16 * |L| / h.
    let h = 1.0 / 64.0;
    for (p, &da) in da.iter().enumerate() {
        let at = |x: f64| {
            let mut a = a.clone();
            a.values_mut()[p] += x;
            loss(&cpu, &a, &b, &w)
        };
        approx::assert_abs_diff_eq!((at(h) - at(-h)) / (2.0 * h), da, epsilon = 1e-11);
    }
    for i in 0..k {
        for j in 0..n {
            let at = |x: f64| {
                let mut b = b.clone();
                b.as_mut().into_row(i)[j] += x;
                loss(&cpu, &a, &b, &w)
            };
            approx::assert_abs_diff_eq!((at(h) - at(-h)) / (2.0 * h), db.row(i)[j], epsilon = 1e-11);
        }
    }
}

/// Central differences of L by every element of `x`, against `gradient`: the error of the formula is about h^2 L''' / 6, that of
/// rounding about 1e-16 |L| / h.
fn differences(name: &str, x: &mut Mat<f64>, gradient: &Mat<f64>, loss: impl Fn(&Mat<f64>) -> f64) {
    let h = 1e-5;
    for i in 0..x.rows() {
        for j in 0..x.cols() {
            let old = x[(i, j)];
            let mut at = |value: f64| {
                x[(i, j)] = value;
                loss(x)
            };
            let difference = (at(old + h) - at(old - h)) / (2.0 * h);
            at(old);
            assert!(
                (difference - gradient[(i, j)]).abs() < 1e-8,
                "{name} ({i}, {j}): {difference}, {}",
                gradient[(i, j)]
            );
        }
    }
}

/// Weights with a bias, where there is a softmax, and dropout.
fn weighting<'a>(
    (function, sums, heads): (edge::BuiltIn<f64>, bool, usize),
    left: MatRef<'a, f64>,
    right: MatRef<'a, f64>,
    bias: &'a [f64],
) -> EdgeWeighting<'a, f64> {
    let weights = match sums {
        true => EdgeWeighting::sums(function, left, right),
        false => EdgeWeighting::dots(function, left, right).heads(heads),
    };
    let weights = weights.dropout(0.2, 9);
    if function.is_softmax() { weights.bias(bias) } else { weights }
}

/// Every operand of FusedMM, for every edge function, kind of score and number of heads.
#[test]
fn fusedmm_gradients_match_finite_differences() {
    let cpu = Cpu::new().unwrap();
    let (m, k) = (7, 9);
    let a = generate::random_matrix::<f64>(m, k, 0.5, 1).unwrap();
    let nnz = a.nnz();
    let functions: [edge::BuiltIn<f64>; 6] = [
        edge::Identity.into(),
        edge::Scale.into(),
        edge::Sigmoid.into(),
        edge::LeakyRelu { slope: 0.2 }.into(),
        edge::Softmax { scale: 0.7 }.into(),
        edge::SoftmaxLeakyRelu { slope: 0.2 }.into(),
    ];
    for (function, sums, heads) in
        functions.into_iter().flat_map(|f| [(f, false, 1), (f, true, 1), (f, false, 2), (f, true, 3)])
    {
        let (n, p) = if sums { (heads, 2 * heads) } else { (3 * heads, 2 * heads) };
        let dense = |rows, cols, seed| generate::uniform_dense::<f64>(rows, cols, seed).unwrap();
        let (mut left, mut right, mut d, w) = (dense(m, n, 2), dense(k, n, 3), dense(k, p, 4), dense(m, p, 5));
        let softmax = function.is_softmax();
        // The bias and the values as matrices of one row.
        let (mut bias, mut values) = (dense(1, nnz, 6), Mat::from_vec(1, nnz, a.values().to_vec()).unwrap());
        let options = PlanOptions::new(Op::FusedMm, n);
        let kind = (function, sums, heads);
        let run = |left: &Mat<f64>, right: &Mat<f64>, d: &Mat<f64>, bias: &Mat<f64>, values: &Mat<f64>| {
            let mut prepared = cpu.prepare_differentiable(&a, &options).unwrap();
            prepared.set_values(values.row(0)).unwrap();
            let (mut e, mut lse) = (Mat::zeros(m, p).unwrap(), Mat::zeros(m, heads).unwrap());
            let weights = weighting(kind, left.as_ref(), right.as_ref(), bias.row(0));
            cpu.fusedmm_heads(&prepared, &weights, d.as_ref(), e.as_mut(), Some(lse.as_mut())).unwrap();
            (e, lse)
        };
        let loss = |left: &Mat<f64>, right: &Mat<f64>, d: &Mat<f64>, bias: &Mat<f64>, values: &Mat<f64>| -> f64 {
            let (e, _) = run(left, right, d, bias, values);
            e.iter_rows().flatten().zip(w.iter_rows().flatten()).map(|(e, w)| e * w).sum()
        };
        let (_, lse) = run(&left, &right, &d, &bias, &values);
        let prepared = cpu.prepare_differentiable(&a, &options).unwrap();
        let zeros = |of: &Mat<f64>| Mat::<f64>::zeros(of.rows(), of.cols()).unwrap();
        let (mut dl, mut dr, mut dd) = (zeros(&left), zeros(&right), zeros(&d));
        let (mut dvalues, mut dbias) = (zeros(&values), zeros(&bias));
        let out = FusedGradient {
            left: dl.as_mut(),
            right: dr.as_mut(),
            d: dd.as_mut(),
            values: function.uses_values().then(|| dvalues.row_mut(0)),
            bias: softmax.then(|| dbias.row_mut(0)),
        };
        let of = weighting(kind, left.as_ref(), right.as_ref(), bias.row(0));
        cpu.fusedmm_gradient(&prepared, &of, d.as_ref(), Some(lse.as_ref()), w.as_ref(), out).unwrap();
        let name = format!("{function:?}, sums: {sums}, {heads} heads");
        let (l, r, x, b, v) = (left.clone(), right.clone(), d.clone(), bias.clone(), values.clone());
        differences(&format!("{name}: left"), &mut left, &dl, |left| loss(left, &r, &x, &b, &v));
        differences(&format!("{name}: right"), &mut right, &dr, |right| loss(&l, right, &x, &b, &v));
        differences(&format!("{name}: D"), &mut d, &dd, |d| loss(&l, &r, d, &b, &v));
        differences(&format!("{name}: bias"), &mut bias, &dbias, |bias| loss(&l, &r, &x, bias, &v));
        differences(&format!("{name}: values"), &mut values, &dvalues, |values| loss(&l, &r, &x, &b, values));
    }
}

/// SpMM's and SDDMM's own functions give what the operations give that they consist of.
#[test]
fn gradients_of_the_products() {
    let cpu = Cpu::new().unwrap();
    let a = generate::random_matrix::<f64>(23, 31, 0.8, 1).unwrap();
    let (c, b) =
        (generate::uniform_dense::<f64>(23, 16, 2).unwrap(), generate::uniform_dense::<f64>(31, 16, 3).unwrap());
    for strategy in [Strategy::Direct, Strategy::Panel] {
        let options = PlanOptions::new(Op::Spmm, 16).strategy(strategy);
        let prepared = cpu.prepare_differentiable(&a, &options).unwrap();
        let (mut numbers, mut wanted) = (vec![0.0; a.nnz()], vec![0.0; a.nnz()]);
        let (mut db, mut dc, mut other) =
            (Mat::zeros(31, 16).unwrap(), Mat::zeros(23, 16).unwrap(), Mat::zeros(31, 16).unwrap());
        let near = |x: &[f64], y: &[f64]| x.iter().zip(y).all(|(x, y)| (x - y).abs() < 1e-13);
        let flat = |x: &Mat<f64>| x.iter_rows().flatten().copied().collect::<Vec<_>>();
        let dvalues = Some(&mut numbers[..]);
        cpu.spmm_gradient(&prepared, 1, a.values(), b.as_ref(), c.as_ref(), dvalues, Some(db.as_mut())).unwrap();
        cpu.sddmm(&a, c.as_ref(), b.as_ref(), &mut wanted).unwrap();
        cpu.spmm_t(1.0, &a, c.as_ref(), 0.0, other.as_mut()).unwrap();
        assert!(near(&numbers, &wanted) && near(&flat(&db), &flat(&other)));
        let (dc_at, db_at) = (Some(dc.as_mut()), Some(db.as_mut()));
        cpu.sddmm_gradient(&prepared, 1, c.as_ref(), b.as_ref(), a.values(), dc_at, db_at).unwrap();
        assert!(near(&flat(&db), &flat(&other)));
        let mut product = Mat::zeros(23, 16).unwrap();
        cpu.spmm(1.0, &a, b.as_ref(), 0.0, product.as_mut()).unwrap();
        assert!(near(&flat(&dc), &flat(&product)));
    }
}
