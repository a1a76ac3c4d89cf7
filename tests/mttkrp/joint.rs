//! All modes at once from the same factors.

use super::*;

/// All modes at once, in every format, against the sums that single modes have.
pub fn check<T: Scalar>(cpu: &Cpu, name: &str, coo: &CooTensor<T>, rank: usize, formats: &[MttkrpFormat]) {
    let factors = factors::<T>(coo.dims(), rank);
    let expected: Vec<_> =
        (0..coo.order()).map(|mode| cpu.install(|| reference::mttkrp(coo, &views(&factors), mode)).unwrap()).collect();
    for &format in formats {
        let prepared = cpu.prepare_tensor(coo, &TensorOptions::new(rank).format(format)).unwrap();
        // Twice: privatised outputs and buffers of the first call are used again.
        for _ in 0..2 {
            let nan = |&dim: &usize| Mat::from_fn(dim, rank, |_, _| T::from_f64(f64::NAN)).unwrap();
            let mut products: Vec<Mat<T>> = coo.dims().iter().map(nan).collect();
            let mut outs: Vec<MatMut<'_, T>> = products.iter_mut().map(Mat::as_mut).collect();
            cpu.mttkrp_all(&prepared, &views(&factors), &mut outs).unwrap();
            for (mode, (expected, product)) in expected.iter().zip(&products).enumerate() {
                let worst = cpu.install(|| expected.deviation(product.as_ref())).unwrap();
                assert!(worst.error <= 1.0, "{name}, {format}, mode {mode}, {}, R = {rank}: {worst:?}", T::NAME);
            }
        }
    }
}

#[test]
fn all_modes_at_once_on_generated_tensors() {
    let cpu = cpu(3);
    for (name, coo) in generated::<f32>() {
        RANKS.iter().for_each(|&rank| check(&cpu, name, &coo, rank, &[MttkrpFormat::Joint]));
        check(&cpu, name, &coo, 16, &MttkrpFormat::ALL);
    }
    for (name, coo) in generated::<f64>() {
        RANKS.iter().for_each(|&rank| check(&cpu, name, &coo, rank, &[MttkrpFormat::Joint]));
    }
    for arch in Arch::available() {
        let cpu = Cpu::builder().threads(2).arch(arch).pin(false).build().unwrap();
        let coo = skewed::<f64>(&[50, 30, 70, 9], 4000, 3).unwrap();
        for rank in [3, 64, 80] {
            check(&cpu, arch.name(), &coo, rank, &[MttkrpFormat::Joint]);
        }
        check(&cpu, arch.name(), &coo.cast::<f32>(), 160, &[MttkrpFormat::Joint]);
    }
}

/// One list for all modes is cut between rows of the longest, and not at all where privatised outputs would be too large.
#[test]
fn all_modes_at_once_keep_to_the_budget() {
    let cpu = cpu(4);
    let coo = skewed::<f32>(&[30, 40, 5000], 9000, 3).unwrap();
    let format = Some(MttkrpFormat::Joint);
    let options = TensorOptions::new(8).format(format);
    let private = |options: TensorOptions| {
        let prepared = cpu.prepare_tensor(&coo, &options).unwrap();
        assert!(prepared.plan().explain().contains("sorted by mode 2"), "{}", prepared.plan().explain());
        let factors = factors::<f32>(coo.dims(), 8);
        let mut products = coo.dims().iter().map(|&dim| Mat::zeros(dim, 8).unwrap()).collect::<Vec<_>>();
        let mut outs: Vec<MatMut<'_, f32>> = products.iter_mut().map(Mat::as_mut).collect();
        cpu.mttkrp_all(&prepared, &views(&factors), &mut outs).unwrap();
        for (mode, product) in products.iter().enumerate() {
            let expected = reference::mttkrp(&coo, &views(&factors), mode).unwrap();
            assert!(expected.deviation(product.as_ref()).unwrap().error <= 1.0);
        }
        [0, 1, 2].map(|mode| prepared.privatised_rows(mode))
    };
    let [short, middle, long] = private(options);
    assert!(short > 0 && short <= 90 && middle > 0 && middle <= 120 && long == 0, "{short} {middle} {long}");
    // Two tasks' privatised outputs fit, four tasks' do not.
    let [short, middle, long] = private(options.privatised_bytes(100 * 64));
    assert!(short > 0 && short <= 30 && middle > 0 && middle <= 40 && long == 0, "{short} {middle} {long}");
    assert_eq!(private(options.privatised_bytes(0)), [0; 3]);
}

#[test]
fn all_modes_at_once_with_strides_and_wrong_operands() {
    let cpu = cpu(2);
    let coo = skewed::<f64>(&[50, 30, 70], 2000, 3).unwrap();
    let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(16).format(MttkrpFormat::Joint)).unwrap();
    let factors = factors::<f64>(coo.dims(), 16);
    // What lies between the outputs' rows is the caller's.
    let (cols, stride) = (16, 19);
    let mut data: Vec<Vec<f64>> = coo.dims().iter().map(|&dim| vec![777.0; dim * stride]).collect();
    let outs = data.iter_mut().zip(coo.dims()).map(|(out, &dim)| MatMut::new(out, dim, cols, stride).unwrap());
    cpu.mttkrp_all(&prepared, &views(&factors), &mut outs.collect::<Vec<_>>()).unwrap();
    for (mode, (out, &dim)) in data.iter().zip(coo.dims()).enumerate() {
        let view = MatRef::new(out, dim, cols, stride).unwrap();
        let worst = reference::mttkrp(&coo, &views(&factors), mode).unwrap().deviation(view).unwrap();
        assert!(worst.error <= 1.0, "mode {mode}: {worst:?}");
        assert!(out.chunks(stride).all(|row| row[cols..].iter().all(|&x| x == 777.0)));
    }

    let run = |factor_dims: &[usize], outs: &[(usize, usize)]| {
        let factors: Vec<Mat<f64>> = factor_dims.iter().map(|&dim| Mat::zeros(dim, 4).unwrap()).collect();
        let mut products: Vec<Mat<f64>> = outs.iter().map(|&(rows, cols)| Mat::zeros(rows, cols).unwrap()).collect();
        let mut outs: Vec<MatMut<'_, f64>> = products.iter_mut().map(Mat::as_mut).collect();
        cpu.mttkrp_all(&prepared, &views(&factors), &mut outs)
    };
    let good = [50, 30, 70];
    assert!(run(&good, &[(50, 4), (30, 4), (70, 4)]).is_ok());
    for outs in [&[(50, 4), (30, 4)][..], &[(50, 4), (30, 4), (70, 5)], &[(50, 4), (31, 4), (70, 4)], &[]] {
        assert!(matches!(run(&good, outs), Err(Error::Shape { .. })), "{outs:?}");
    }
    for dims in [&[50, 30][..], &[50, 30, 71], &[51, 30, 70]] {
        assert!(matches!(run(dims, &[(50, 4), (30, 4), (70, 4)]), Err(Error::Shape { .. })), "{dims:?}");
    }
    assert!(matches!(run(&good, &[(50, 0), (30, 0), (70, 0)]), Err(Error::Argument { name: "rank", .. })));
}

#[test]
fn all_modes_at_once_have_the_same_bits() {
    let coo = skewed::<f32>(&[500, 400, 300], 60_000, 2).unwrap();
    let factors = factors::<f32>(coo.dims(), 24);
    let views = views(&factors);
    let format = Some(MttkrpFormat::Joint);
    let plan = cpu(4).plan_tensor(&coo, &TensorOptions::new(24).format(format)).unwrap();
    let runs = [1, 2, 4, 4].map(|threads| {
        let cpu = cpu(threads);
        let prepared = cpu.prepare_planned(&coo, &plan).unwrap();
        let mut products: Vec<Mat<f32>> = coo.dims().iter().map(|&dim| Mat::zeros(dim, 24).unwrap()).collect();
        let mut outs: Vec<MatMut<'_, f32>> = products.iter_mut().map(Mat::as_mut).collect();
        cpu.mttkrp_all(&prepared, &views, &mut outs).unwrap();
        let bits = |product: &Mat<f32>| {
            (0..product.rows()).flat_map(|i| product.row(i).iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
        };
        products.iter().map(bits).collect::<Vec<Vec<u32>>>()
    });
    assert!(runs.iter().all(|run| *run == runs[0]));
}
