//! Operations by panels: where there are any, on one layout, and with new values.

use sparsimd::generate::{random_matrix, uniform_dense, uniform_values};
use sparsimd::gpu::{DeviceOptions, DeviceScalar, EdgeKind, Gpu};
use sparsimd::plan::{Op, PlanOptions, Strategy};
use sparsimd::{Csr, Error, Mat, reference};

use super::{check_fusedmm, check_sddmm, check_spmm, gpu, limited, make_unused_rows_infinite, quiet};

/// SpMM by panels: new values on the same panels, and rows that must not meet what is infinite in rows of B that they do not use.
pub fn check_spmm_by_panels<T: DeviceScalar>(gpu: &Gpu, name: &str, a: &Csr<T>, n: usize) {
    let mut ga = gpu.prepare(a, &PlanOptions::new(Op::Spmm, n).strategy(Strategy::Panel)).unwrap();
    assert_eq!(ga.strategy(), Strategy::Panel);
    let mut b: Mat<T> = uniform_dense(a.cols(), n, 3).unwrap();
    let mut a = a.clone();
    for (infinite, alpha, beta) in [(false, 1.0, 0.0), (true, -1.5, 0.75)] {
        if infinite {
            let values: Vec<T> = uniform_values(a.nnz(), 99);
            ga.set_values(&values).unwrap();
            a = Csr::new(a.pattern().clone(), values).unwrap();
            // The first half of the rows stays finite.
            make_unused_rows_infinite(&a, &mut b);
        }
        let gb = gpu.mat(b.as_ref()).unwrap();
        let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
        let mut c: Mat<T> = uniform_dense(a.rows(), n, 4).unwrap();
        let mut gc = gpu.mat(c.as_ref()).unwrap();
        let want = reference::spmm(alpha, &a, b.as_ref(), beta, c.as_ref()).unwrap();
        gpu.spmm(alpha, &ga, &gb, beta, &mut gc).unwrap();
        gc.download(c.as_mut()).unwrap();
        let d = want.deviation(c.as_ref()).unwrap();
        assert!(d.error <= 1.0, "{name} by panels, {}, n = {n}, infinite {infinite}: {d:?}", T::NAME);
    }
}

#[test]
fn panels_are_made_where_they_pay_and_fit() {
    let Some(gpu) = gpu() else { return };
    let dense = random_matrix::<f32>(300, 200, 0.7, 1).unwrap();
    let sparse = random_matrix::<f32>(300, 200, 0.97, 1).unwrap();
    for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
        for (a, strategy) in [(&dense, Strategy::Panel), (&sparse, Strategy::Direct)] {
            assert_eq!(gpu.prepare(a, &PlanOptions::new(op, 64)).unwrap().strategy(), strategy, "{op:?}");
        }
    }
    let prepare = |op, n, strategy| gpu.prepare(&dense, &PlanOptions::new(op, n).strategy(strategy));
    assert_eq!(prepare(Op::SpmmTransposed, 8, Strategy::Auto).unwrap().strategy(), Strategy::Direct);
    assert!(matches!(prepare(Op::SpmmTransposed, 8, Strategy::Panel), Err(Error::Unavailable { .. })));
    assert_eq!(prepare(Op::FusedMm, 1000, Strategy::Auto).unwrap().strategy(), Strategy::Direct);
    assert!(matches!(prepare(Op::Spmm, 0, Strategy::Auto), Err(Error::Argument { .. })));
    // Wide enough for tiles of columns, tall enough for parts of the columns of A.
    let tall = random_matrix::<f32>(100, 3000, 0.8, 1).unwrap();
    check_spmm_by_panels(&gpu, "many columns", &tall, 300);
    check_sddmm::<f32>(&gpu, "many columns", &tall, 300, Strategy::Panel);
    check_fusedmm::<f32>(&gpu, "many columns", &tall, 64, 60, Strategy::Panel);
    // Operands wider than what was prepared go by rows.
    let (c, b): (Mat<f32>, Mat<f32>) = (uniform_dense(300, 200, 1).unwrap(), uniform_dense(200, 200, 2).unwrap());
    let (gc, gb, mut ge) = (gpu.mat(c.as_ref()).unwrap(), gpu.mat(b.as_ref()).unwrap(), gpu.zeros(300, 200).unwrap());
    let one = prepare(Op::FusedMm, 16, Strategy::Panel).unwrap();
    assert_eq!(one.strategy(), Strategy::Panel);
    gpu.fusedmm(&one, EdgeKind::Scale, &gc, &gb, &gb, &mut ge).unwrap();
    let mut e = Mat::zeros(300, 200).unwrap();
    ge.download(e.as_mut()).unwrap();
    let want = reference::fusedmm(&dense, reference::Edge::Scale, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
    assert!(want.deviation(e.as_ref()).unwrap().error <= 1.0);
    // Not another operation than the one that it was prepared for.
    assert!(matches!(gpu.spmm(1.0, &one, &gb, 0.0, &mut ge), Err(Error::Shape { op: "spmm", .. })));
    // On this device the matrix is cut in chunks: no panels unless they are asked for, then an error; the rows serve.
    let Some(small) = limited(DeviceOptions { range_limit: Some(40 << 10), ..DeviceOptions::default() }) else {
        return;
    };
    for op in [Op::Spmm, Op::Sddmm, Op::FusedMm] {
        let options = PlanOptions::new(op, 40);
        let cut = small.prepare(&dense, &options).unwrap();
        assert!(cut.matrix().chunks() > 1);
        assert_eq!(cut.strategy(), Strategy::Direct);
        let panels = small.prepare(&dense, &options.strategy(Strategy::Panel));
        assert!(matches!(panels, Err(Error::Unavailable { .. })));
    }
    check_spmm::<f32>(&small, "in chunks", &dense, 40);
    // B and C in panels of columns, A whole.
    let Some(small) = limited(DeviceOptions { range_limit: Some(200 << 10), ..DeviceOptions::default() }) else {
        return;
    };
    let whole = random_matrix::<f32>(100, 400, 0.8, 1).unwrap();
    check_spmm_by_panels(&small, "operands in panels of columns", &whole, 300);
    check_sddmm::<f32>(&small, "operands in panels of columns", &whole, 300, Strategy::Panel);
    quiet(&gpu);
    quiet(&small);
}

#[test]
fn panels_take_new_values_and_other_widths() {
    let Some(gpu) = gpu() else { return };
    // Tall and wide enough for parts of the columns of A, whose number follows the width of B.
    let mut a: Csr<f32> = random_matrix(90, 2000, 0.7, 4).unwrap();
    let (c, b): (Mat<f32>, Mat<f32>) = (uniform_dense(90, 48, 1).unwrap(), uniform_dense(2000, 48, 2).unwrap());
    let (gc, gb, mut ge) = (gpu.mat(c.as_ref()).unwrap(), gpu.mat(b.as_ref()).unwrap(), gpu.zeros(90, 48).unwrap());
    for n in [4, 48, 64] {
        let prepare = |op| gpu.prepare(&a, &PlanOptions::new(op, n).strategy(Strategy::Panel)).unwrap();
        let [mut spmm, sddmm, mut fusedmm] = [Op::Spmm, Op::Sddmm, Op::FusedMm].map(prepare);
        let mut e = Mat::zeros(90, 48).unwrap();
        let mut first: Option<Vec<f32>> = None;
        for round in 0..3u64 {
            gpu.fusedmm(&fusedmm, EdgeKind::Scale, &gc, &gb, &gb, &mut ge).unwrap();
            ge.download(e.as_mut()).unwrap();
            let want = reference::fusedmm(&a, reference::Edge::Scale, c.as_ref(), b.as_ref(), b.as_ref()).unwrap();
            assert!(want.deviation(e.as_ref()).unwrap().error <= 1.0, "prepared for {n}, round {round}");
            gpu.spmm(1.0, &spmm, &gb, 0.0, &mut ge).unwrap();
            ge.download(e.as_mut()).unwrap();
            let want = reference::spmm(1.0, &a, b.as_ref(), 0.0, e.as_ref()).unwrap();
            assert!(want.deviation(e.as_ref()).unwrap().error <= 1.0, "prepared for {n}, round {round}");
            // The same bits each time.
            let (mut out, mut values) = (sddmm.matrix().new_values().unwrap(), vec![0.0; a.nnz()]);
            gpu.sddmm(&sddmm, &gc, &gb, &mut out).unwrap();
            out.download(&mut values).unwrap();
            assert_eq!(first.get_or_insert_with(|| values.clone()), &values);
            // New values from here, or from the device: SDDMM's output on the same pattern.
            let fresh = match round {
                0 => uniform_values(a.nnz(), 50),
                _ => values,
            };
            fusedmm.set_values(&fresh).unwrap();
            match round {
                0 => spmm.set_values(&fresh).unwrap(),
                _ => spmm.swap_values(&mut out).unwrap(),
            }
            a = Csr::new(a.pattern().clone(), fresh).unwrap();
        }
    }
    quiet(&gpu);
}
