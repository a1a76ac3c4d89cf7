//! MTTKRP: every format x mode x element type x rank against the naive loop, within its bound.

#[path = "../common/mod.rs"]
mod common;
mod joint;
mod narrow;

use sparsimd::formats::{BcsfLimits, CooTensor, MmCsfStrategy};
use sparsimd::generate::{skewed, uniform_dense};
use sparsimd::plan::{MttkrpAlgorithm, MttkrpFormat, MttkrpPlan, Target, TensorOptions, TensorStats};
use sparsimd::{Arch, Cpu, Error, Machine, Mat, MatMut, MatRef, Scalar, reference};

/// Below, at and above whole registers and panels of registers.
const RANKS: [usize; 7] = [1, 5, 8, 16, 32, 33, 64];

fn cpu(threads: usize) -> Cpu {
    Cpu::builder().threads(threads).pin(false).build().unwrap()
}

fn factors<T: Scalar>(dims: &[usize], rank: usize) -> Vec<Mat<T>> {
    dims.iter().enumerate().map(|(m, &dim)| uniform_dense(dim, rank, 11 + m as u64).unwrap()).collect()
}

fn views<T: Scalar>(factors: &[Mat<T>]) -> Vec<MatRef<'_, T>> {
    factors.iter().map(Mat::as_ref).collect()
}

/// The first `cols` columns.
fn first_columns<T: Scalar>(m: &Mat<T>, cols: usize) -> Mat<T> {
    Mat::from_fn(m.rows(), cols, |i, j| m.row(i)[j]).unwrap()
}

/// All formats and modes of one tensor at every one of `ranks`, from one layout for each format.
fn check<T: Scalar>(cpu: &Cpu, name: &str, coo: &CooTensor<T>, ranks: &[usize], formats: &[MttkrpFormat]) {
    let all: Vec<_> = formats.iter().map(|&format| TensorOptions::new(ranks[ranks.len() / 2]).format(format)).collect();
    check_options(cpu, name, coo, ranks, &all);
}

/// The same for tensors prepared by each of `options`.
fn check_options<T: Scalar>(cpu: &Cpu, name: &str, coo: &CooTensor<T>, ranks: &[usize], options: &[TensorOptions]) {
    let widest = *ranks.iter().max().unwrap();
    let wide = factors::<T>(coo.dims(), widest);
    let expected: Vec<_> =
        (0..coo.order()).map(|mode| cpu.install(|| reference::mttkrp(coo, &views(&wide), mode)).unwrap()).collect();
    let cases: Vec<_> = ranks
        .iter()
        .map(|&rank| {
            let factors: Vec<Mat<T>> = wide.iter().map(|f| first_columns(f, rank)).collect();
            let expected: Vec<_> = expected.iter().map(|e| e.first_columns(rank).unwrap()).collect();
            (rank, factors, expected)
        })
        .collect();
    for options in options {
        let prepared = cpu.prepare_tensor(coo, options).unwrap();
        for (rank, factors, expected) in &cases {
            for (mode, expected) in expected.iter().enumerate() {
                // Whatever was in the output is gone afterwards.
                let mut out = Mat::from_fn(coo.dims()[mode], *rank, |_, _| T::from_f64(f64::NAN)).unwrap();
                cpu.mttkrp(&prepared, &views(factors), mode, out.as_mut()).unwrap();
                let worst = cpu.install(|| expected.deviation(out.as_ref())).unwrap();
                assert!(worst.error <= 1.0, "{name}, {options:?}, mode {mode}, {}, R = {rank}: {worst:?}", T::NAME);
            }
        }
    }
}

/// Tensors of order 2 to 6 and the odd ones: few nonzeros, one, none, modes of length 1, full fibers.
fn generated<T: Scalar>() -> Vec<(&'static str, CooTensor<T>)> {
    let law = |dims: &[usize], nnz: usize| skewed::<T>(dims, nnz, 5).unwrap();
    let full = |dims: &[usize]| {
        let nnz: usize = dims.iter().product();
        let coords = (0..dims.len())
            .map(|m| (0..nnz).map(|p| (p / dims[m + 1..].iter().product::<usize>() % dims[m]) as u32).collect())
            .collect();
        CooTensor::new(dims.to_vec(), coords, (0..nnz).map(|p| T::from_f64((p % 7) as f64 - 3.0)).collect()).unwrap()
    };
    let one = CooTensor::new(vec![9, 5, 7], vec![vec![8], vec![0], vec![3]], vec![T::ONE]).unwrap();
    let none = CooTensor::new(vec![4, 5, 6], vec![vec![]; 3], vec![]).unwrap();
    let zeros = CooTensor::new(vec![3, 3, 3], vec![vec![0, 2]; 3], vec![T::ZERO; 2]).unwrap();
    let ones = CooTensor::new(vec![1, 1, 1], vec![vec![0]; 3], vec![T::from_f64(2.5)]).unwrap();
    let line = CooTensor::new(vec![40], vec![vec![3, 39, 0]], vec![T::ONE; 3]).unwrap();
    vec![
        ("order 1", line),
        ("order 2", law(&[90, 200], 3000)),
        ("order 3", law(&[300, 70, 500], 9000)),
        ("order 3, long fibers", full(&[7, 30, 61])),
        ("order 3, a mode of 1", law(&[60, 1, 90], 1500)),
        ("order 4", law(&[60, 50, 300, 20], 6000)),
        ("order 4, long fibers", full(&[4, 5, 6, 30])),
        ("order 5", law(&[30, 40, 50, 7, 12], 4000)),
        ("order 6", law(&[9, 30, 12, 7, 12, 20], 3000)),
        ("order 8", law(&[5, 6, 4, 3, 7, 4, 5, 6], 2000)),
        ("mostly empty slices", law(&[100_000, 3000, 9], 300)),
        ("one nonzero", one),
        ("no nonzeros", none),
        ("zeros only", zeros),
        ("dims 1", ones),
    ]
}

#[test]
fn every_format_mode_and_rank_on_generated_tensors() {
    let cpu = cpu(2);
    for (name, coo) in generated::<f32>() {
        check(&cpu, name, &coo, &RANKS, &MttkrpFormat::ALL);
    }
    for (name, coo) in generated::<f64>() {
        check(&cpu, name, &coo, &RANKS, &MttkrpFormat::ALL);
    }
}

#[test]
fn every_instruction_set_and_thread_count() {
    for arch in Arch::available() {
        for threads in [1, 3] {
            let cpu = Cpu::builder().threads(threads).arch(arch).pin(false).build().unwrap();
            let coo = skewed::<f64>(&[50, 30, 70, 9], 4000, 3).unwrap();
            check(&cpu, arch.name(), &coo, &[3, 64, 80], &MttkrpFormat::ALL);
            check(&cpu, arch.name(), &coo.cast::<f32>(), &[160], &MttkrpFormat::ALL);
        }
    }
}

#[test]
fn every_format_mode_and_rank_on_real_tensors() {
    let Some(dir) = common::data_dir() else { return };
    let cpu = cpu(2);
    for path in common::tensor_files(&dir) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (zero_based, sum) = (false, sparsimd::io::Duplicates::Sum);
        let coo = sparsimd::io::read_tensor::<f64>(&path, zero_based, sum, Default::default()).unwrap();
        let ranks = common::real_ranks(coo.nnz());
        check(&cpu, &name, &coo.cast::<f32>(), ranks, &MttkrpFormat::ALL);
        check(&cpu, &name, &coo, ranks, &MttkrpFormat::ALL);
        for &rank in ranks {
            joint::check(&cpu, &name, &coo.cast::<f32>(), rank, &[MttkrpFormat::Joint]);
            joint::check(&cpu, &name, &coo, rank, &[MttkrpFormat::Joint]);
        }
    }
}

#[test]
fn every_algorithm_that_can_be_asked_for() {
    let cpu = cpu(2);
    for dims in [&[90usize, 200][..], &[300, 70, 500], &[60, 50, 30, 20], &[9, 30, 12, 7, 12]] {
        let coo = skewed::<f64>(dims, 4000, 5).unwrap();
        let factors = factors::<f64>(dims, 20);
        let views = views(&factors);
        for (format, algorithm) in [
            (MttkrpFormat::Coo, MttkrpAlgorithm::Element),
            (MttkrpFormat::Coo, MttkrpAlgorithm::Row),
            (MttkrpFormat::CsfAll, MttkrpAlgorithm::Slice),
            (MttkrpFormat::CsfAll, MttkrpAlgorithm::Fiber),
            (MttkrpFormat::CsfAll, MttkrpAlgorithm::Nonzero),
            (MttkrpFormat::CsfAll, MttkrpAlgorithm::Element),
        ] {
            let options = TensorOptions::new(20).format(format).algorithm(algorithm);
            let prepared = cpu.prepare_tensor(&coo, &options).unwrap();
            for mode in 0..dims.len() {
                // A matrix's fibers are its slices.
                let matrix = dims.len() == 2 && algorithm == MttkrpAlgorithm::Fiber;
                let expected = if matrix { MttkrpAlgorithm::Slice } else { algorithm };
                assert_eq!(prepared.algorithm(mode), Some(expected), "{dims:?}, mode {mode}");
                let mut out = Mat::zeros(dims[mode], 20).unwrap();
                cpu.mttkrp(&prepared, &views, mode, out.as_mut()).unwrap();
                let worst = reference::mttkrp(&coo, &views, mode).unwrap().deviation(out.as_ref()).unwrap();
                assert!(worst.error <= 1.0, "{dims:?}, {format}, {algorithm:?}, mode {mode}: {worst:?}");
            }
        }
    }
}

/// One register of columns of some rows in each task: on every instruction set, whatever the number of tasks and columns.
#[test]
fn elements_of_trees_on_every_instruction_set() {
    let elements = TensorOptions::new(8).format(MttkrpFormat::CsfAll).algorithm(MttkrpAlgorithm::Element);
    for arch in Arch::available() {
        for threads in [1, 3] {
            let cpu = Cpu::builder().threads(threads).arch(arch).pin(false).build().unwrap();
            let name = arch.name();
            for (single, double) in generated::<f32>().iter().zip(&generated::<f64>()) {
                check_options(&cpu, &format!("{name}, {}", single.0), &single.1, &RANKS, &[elements]);
                check_options(&cpu, &format!("{name}, {}", double.0), &double.1, &RANKS, &[elements]);
            }
            // One row of all nonzeros: the columns alone are shared out.
            let coords = vec![vec![3; 900], (0..900).map(|p| p / 30).collect(), (0..900).map(|p| p % 30).collect()];
            let row = CooTensor::new(vec![5, 30, 30], coords, vec![0.5; 900]).unwrap();
            check_options::<f64>(&cpu, &format!("{name}, one row"), &row, &[128], &[elements]);
        }
    }
}

#[test]
fn partitions_and_limits_that_can_be_asked_for() {
    let cpu = cpu(2);
    for dims in [&[90usize, 200][..], &[300, 70, 500], &[60, 50, 30, 20]] {
        let coo = skewed::<f64>(dims, 4000, 5).unwrap();
        let mmcsf = TensorOptions::new(20).format(MttkrpFormat::MmCsf);
        let single = (0..dims.len()).map(MmCsfStrategy::Single);
        let mut all: Vec<_> = [MmCsfStrategy::Static, MmCsfStrategy::Dynamic]
            .into_iter()
            .chain(single)
            .map(|strategy| mmcsf.partition(strategy))
            .collect();
        for (longest_fiber, heaviest) in [(1, 1), (3, 100)] {
            let limits = BcsfLimits { longest_fiber, heaviest };
            all.push(TensorOptions::new(20).format(MttkrpFormat::Bcsf).bcsf_limits(limits));
        }
        check_options(&cpu, &format!("{dims:?}"), &coo, &[20], &all);
        // One tree with the mode at its leaves.
        for leaf in 0..dims.len() {
            let prepared = cpu.prepare_tensor(&coo, &mmcsf.partition(MmCsfStrategy::Single(leaf))).unwrap();
            assert_eq!(prepared.algorithm(leaf), Some(MttkrpAlgorithm::Nonzero));
        }
        assert!(cpu.prepare_tensor(&coo, &mmcsf.partition(MmCsfStrategy::Single(dims.len()))).is_err());
    }
}

/// Nearly all nonzeros in one fiber: trees are cut inside it, and all threads have work.
#[test]
fn a_huge_fiber_is_split() {
    let n = 60_000;
    let mut coords = vec![vec![3; n], vec![5; n], (0..n as u32).collect::<Vec<_>>()];
    for (mode, coords) in coords.iter_mut().enumerate() {
        coords.extend((0..200).map(|p: u32| [p % 20, 6 + p % 3, p * 7][mode]));
    }
    let values: Vec<f64> = (0..n + 200).map(|p| (p % 9) as f64 - 4.0).collect();
    let coo = CooTensor::new(vec![20, 10, n], coords, values).unwrap();
    let cpu = cpu(3);
    for format in [MttkrpFormat::CsfAll, MttkrpFormat::CsfOne, MttkrpFormat::CsfTwo, MttkrpFormat::MmCsf] {
        check(&cpu, "a huge fiber", &coo, &[8, 33], &[format]);
        let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(8).format(format)).unwrap();
        // The row of the fiber is in more than one task.
        assert!(prepared.privatised_rows(0) > 0, "{format}");
        let alone = Cpu::builder().threads(1).pin(false).build().unwrap();
        assert_eq!(alone.prepare_tensor(&coo, &TensorOptions::new(8).format(format)).unwrap().privatised_rows(0), 0);
    }
}

#[test]
fn sorted_lists_are_cut_between_rows() {
    let cpu = cpu(3);
    // 40 rows of 100 nonzeros: four tasks of ten rows each, and nothing private.
    let coords = vec![(0..4000).map(|p| p / 100).collect(), (0..4000).map(|p| p % 100).collect()];
    let coo = CooTensor::new(vec![40, 100], coords, vec![1.0f32; 4000]).unwrap();
    let format = Some(MttkrpFormat::Coo);
    // 4000 / 3 is inside a row, 33 nonzeros from its beginning: 2.5 % of a task.
    assert_eq!(cpu.prepare_tensor(&coo, &TensorOptions::new(8).format(format)).unwrap().privatised_rows(0), 0);
}

/// A sweep that changes every factor: shared partial products must be those of the factors as they are at the time.
#[test]
fn a_sweep_gives_what_separate_products_give() {
    let cpu = cpu(2);
    for dims in [&[40usize, 30][..], &[30, 20, 400], &[20, 50, 30, 9], &[9, 30, 12, 7, 12], &[5, 6, 4, 3, 7, 4, 5, 6]] {
        let coo = skewed::<f64>(dims, 2000.min(dims.iter().product::<usize>() / 2), 7).unwrap();
        for format in MttkrpFormat::ALL {
            let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(24).format(format)).unwrap();
            let mut factors = factors::<f64>(dims, 24);
            let mut products: Vec<Mat<f64>> = dims.iter().map(|&dim| Mat::zeros(dim, 24).unwrap()).collect();
            let mut order = Vec::new();
            let update = |mode: usize, products: &[Mat<f64>], factors: &mut [Mat<f64>]| {
                let expected = reference::mttkrp(&coo, &views(factors), mode).unwrap();
                let worst = expected.deviation(products[mode].as_ref()).unwrap();
                assert!(worst.error <= 1.0, "{dims:?}, {format}, mode {mode}: {worst:?}");
                factors[mode] = uniform_dense(dims[mode], 24, 90 + mode as u64).unwrap();
                order.push(mode);
                Ok(())
            };
            cpu.mttkrp_sweep(&prepared, &mut factors, &mut products, update).unwrap();
            assert_eq!(order, prepared.sweep_order(), "{dims:?}, {format}");
            order.sort_unstable();
            assert!(order.into_iter().eq(0..dims.len()), "{dims:?}, {format}");
        }
    }
}

#[test]
fn a_sweep_refuses_wrong_operands_and_ends_with_its_update() {
    let cpu = cpu(1);
    let coo = skewed::<f32>(&[12, 13, 14, 5], 900, 3).unwrap();
    for format in [MttkrpFormat::Tree, MttkrpFormat::Tiled] {
        let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(4).format(format)).unwrap();
        let zeros = |dims: &[usize]| dims.iter().map(|&dim| Mat::<f32>::zeros(dim, 4).unwrap()).collect::<Vec<_>>();
        let run =
            |factors: &[usize], products: &[usize], update: fn(usize, &mut [Mat<f32>]) -> sparsimd::Result<()>| {
                let (mut factors, mut products) = (zeros(factors), zeros(products));
                cpu.mttkrp_sweep(&prepared, &mut factors, &mut products, |mode, _, factors| update(mode, factors))
            };
        let good = [12, 13, 14, 5];
        assert!(run(&good, &good, |_, _| Ok(())).is_ok());
        assert!(matches!(run(&good, &[12, 13, 14], |_, _| Ok(())), Err(Error::Shape { .. })));
        assert!(matches!(run(&good, &[12, 13, 14, 6], |_, _| Ok(())), Err(Error::Shape { .. })));
        assert!(matches!(run(&[12, 13, 15, 5], &good, |_, _| Ok(())), Err(Error::Shape { .. })));
        let shrink = |mode: usize, factors: &mut [Mat<f32>]| {
            factors[mode] = Mat::zeros(1, 4)?;
            Ok(())
        };
        assert!(matches!(run(&good, &good, shrink), Err(Error::Shape { .. })), "{format}");
        let stop = |_: usize, _: &mut [Mat<f32>]| Err(Error::Argument { name: "update", detail: "enough".to_owned() });
        assert!(matches!(run(&good, &good, stop), Err(Error::Argument { name: "update", .. })));
    }
}

#[test]
fn tiles_and_tasks_of_any_size_are_correct() {
    let cpu = cpu(2);
    let coo = skewed::<f32>(&[40, 300, 200, 30], 20_000, 9).unwrap();
    let factors = factors::<f32>(coo.dims(), 20);
    let views = views(&factors);
    let format = Some(MttkrpFormat::Tiled);
    for (extent, ahead, shared) in [(1, 0, 0), (13, 1, 1), (64, 63, 2), (1 << 20, 9, 2), (1 << 17, 4, 0)] {
        let options = TensorOptions::new(20).format(format).tiles(extent, shared).prefetch_distance(ahead);
        let prepared = cpu.prepare_tensor(&coo, &options).unwrap();
        for mode in 0..4 {
            let mut out = Mat::zeros(coo.dims()[mode], 20).unwrap();
            cpu.mttkrp(&prepared, &views, mode, out.as_mut()).unwrap();
            let worst = reference::mttkrp(&coo, &views, mode).unwrap().deviation(out.as_ref()).unwrap();
            assert!(worst.error <= 1.0, "extent {extent}, mode {mode}: {worst:?}");
        }
    }
}

#[test]
fn rows_with_one_run_are_overwritten_past_the_caches_too() {
    let coo = skewed::<f32>(&[900, 60, 70], 2500, 9).unwrap();
    let empty = (0..900).filter(|i| !coo.coords(0).contains(i)).count();
    assert!(empty > 0 && empty < 450, "{empty}");
    for arch in Arch::available() {
        for machine in ["l3:1(size=64KB) core:4", "l3:1(size=256MB) core:4"] {
            let machine = Machine::describe(machine).unwrap();
            for threads in [1, 3] {
                let builder = Cpu::builder().arch(arch).machine(machine.clone());
                let cpu = builder.threads(threads).pin(false).build().unwrap();
                let options = TensorOptions::new(64).tiles(1 << 20, 0);
                check_options(&cpu, arch.name(), &coo, &RANKS, &[options.format(Some(MttkrpFormat::Tiled))]);
            }
        }
    }
}

#[test]
fn the_same_plan_gives_the_same_bits() {
    let coo = skewed::<f32>(&[500, 400, 300], 60_000, 2).unwrap();
    let factors = factors::<f32>(coo.dims(), 24);
    let views = views(&factors);
    for format in MttkrpFormat::ALL {
        let plan = cpu(4).plan_tensor(&coo, &TensorOptions::new(24).format(format)).unwrap();
        for mode in 0..3 {
            // The threads that run the plan's four tasks may be any number.
            let runs: Vec<Vec<u32>> = [1, 2, 4, 4, 4]
                .into_iter()
                .map(|threads| {
                    let cpu = cpu(threads);
                    let prepared = cpu.prepare_planned(&coo, &plan).unwrap();
                    let mut out = Mat::zeros(coo.dims()[mode], 24).unwrap();
                    cpu.mttkrp(&prepared, &views, mode, out.as_mut()).unwrap();
                    (0..out.rows()).flat_map(|i| out.row(i).iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
                })
                .collect();
            assert!(runs.iter().all(|run| *run == runs[0]), "{format}, mode {mode}");
        }
    }
}

#[test]
fn strided_and_unaligned_operands() {
    let cpu = cpu(2);
    let coo = skewed::<f64>(&[50, 30, 70], 2000, 3).unwrap();
    let (rank, stride) = (16, 19);
    let data: Vec<Vec<f64>> =
        coo.dims().iter().map(|&dim| (0..dim * stride).map(|x| (x % 11) as f64 - 5.0).collect()).collect();
    let views: Vec<MatRef<'_, f64>> =
        data.iter().zip(coo.dims()).map(|(data, &dim)| MatRef::new(data, dim, rank, stride).unwrap()).collect();
    for format in MttkrpFormat::ALL {
        let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(rank).format(format)).unwrap();
        for mode in 0..3 {
            let rows = coo.dims()[mode];
            // What lies between the output's rows is the caller's.
            let mut out = vec![777.0; rows * stride];
            cpu.mttkrp(&prepared, &views, mode, MatMut::new(&mut out, rows, rank, stride).unwrap()).unwrap();
            let view = MatRef::new(&out, rows, rank, stride).unwrap();
            let worst = reference::mttkrp(&coo, &views, mode).unwrap().deviation(view).unwrap();
            assert!(worst.error <= 1.0, "{format}, mode {mode}: {worst:?}");
            assert!(out.chunks(stride).all(|row| row[rank..].iter().all(|&x| x == 777.0)), "{format}");
        }
    }
}

#[test]
fn privatised_outputs_beyond_the_budget_mean_fewer_tasks() {
    let cpu = cpu(6);
    let coo = skewed::<f32>(&[30, 40, 5000], 9000, 3).unwrap();
    let options = TensorOptions::new(8).format(MttkrpFormat::CsfOne);
    let wide = cpu.prepare_tensor(&coo, &options).unwrap();
    assert!(wide.privatised_rows(2) > 0);
    let narrow = cpu.prepare_tensor(&coo, &options.privatised_bytes(0)).unwrap();
    assert_eq!(narrow.privatised_rows(2), 0);
    let expected = [MttkrpAlgorithm::Slice, MttkrpAlgorithm::Fiber, MttkrpAlgorithm::Nonzero];
    assert_eq!(expected.map(Some), [0, 1, 2].map(|mode| narrow.algorithm(mode)));
    assert_eq!(narrow.algorithm(3), None);
    let factors = factors::<f32>(coo.dims(), 8);
    let mut out = Mat::zeros(5000, 8).unwrap();
    cpu.mttkrp(&narrow, &views(&factors), 2, out.as_mut()).unwrap();
    let expected = reference::mttkrp(&coo, &views(&factors), 2).unwrap();
    assert!(expected.deviation(out.as_ref()).unwrap().error <= 1.0);
}

#[test]
fn the_plan_follows_the_memory_and_says_why() {
    let coo = skewed::<f64>(&[300, 400, 500], 50_000, 3).unwrap();
    let stats = TensorStats::of(&coo);
    let machine = Machine::detect();
    let target = cpu(2).target::<f64>();
    let choose =
        |memory: Option<usize>| MttkrpPlan::choose(&stats, &machine, &TensorOptions::new(32).memory(memory), &target);
    let formats = [None, Some(1_500_000), Some(900_000)].map(|memory| choose(memory).unwrap().format());
    assert_eq!(formats, [MttkrpFormat::Tiled, MttkrpFormat::Coo, MttkrpFormat::Alto]);
    let why = choose(Some(900_000)).unwrap().explain();
    let refused = ["not tiled", "not coo", "not csf-one"].iter().all(|no| why.contains(no));
    assert!(refused && why.contains("format alto"), "{why}");
    assert!(matches!(choose(Some(1000)), Err(Error::Argument { name: "memory", .. })));
    for (rank, threads) in [(0, 2), (4, 0)] {
        let target = Target { threads, ..target };
        assert!(MttkrpPlan::choose(&stats, &machine, &TensorOptions::new(rank), &target).is_err());
    }
    // Fibers of 30 nonzeros: a tree gains what it costs on fibers of one.
    let full = full_tensor();
    let options = TensorOptions::new(32).memory(30 * full.nnz());
    let plan = MttkrpPlan::choose(&TensorStats::of(&full), &machine, &options, &target).unwrap();
    assert_eq!(plan.format(), MttkrpFormat::CsfOne, "{}", plan.explain());
    let fibers = TensorStats::of(&full);
    assert_eq!(fibers.fibers[0], [(1, 30.0), (2, 1.0)]);
    assert_eq!(fibers.nonempty, [10, 20, 30]);
}

/// A full tensor of 10 x 20 x 30.
fn full_tensor() -> CooTensor<f32> {
    let n = 6000u32;
    let coords = vec![
        (0..n).map(|p| p / 600).collect(),
        (0..n).map(|p| p / 30 % 20).collect(),
        (0..n).map(|p| p % 30).collect(),
    ];
    CooTensor::new(vec![10, 20, 30], coords, vec![1.0; 6000]).unwrap()
}

#[test]
fn bad_operands_are_refused() {
    let cpu = cpu(1);
    let coo = skewed::<f32>(&[5, 6, 7], 50, 3).unwrap();
    let prepared = cpu.prepare_tensor(&coo, &TensorOptions::new(4)).unwrap();
    let mut out = Mat::zeros(5, 4).unwrap();
    let run = |dims: &[usize], rank: usize, mode: usize, out: &mut Mat<f32>| {
        let factors = factors::<f32>(dims, rank);
        cpu.mttkrp(&prepared, &views(&factors), mode, out.as_mut())
    };
    assert!(run(&[5, 6, 7], 4, 0, &mut out).is_ok());
    // The factor of the output's mode is not read.
    assert!(run(&[1, 6, 7], 4, 0, &mut out).is_ok());
    for (dims, rank, mode) in [(&[5, 6][..], 4, 0), (&[5, 6, 8], 4, 0), (&[5, 6, 7], 3, 0), (&[5, 6, 7], 4, 1)] {
        assert!(matches!(run(dims, rank, mode, &mut out), Err(Error::Shape { .. })), "{dims:?} {rank} {mode}");
    }
    assert!(matches!(run(&[5, 6, 7], 4, 3, &mut out), Err(Error::Argument { name: "mode", .. })));
    let mut empty = Mat::zeros(5, 0).unwrap();
    assert!(matches!(run(&[5, 6, 7], 0, 0, &mut empty), Err(Error::Argument { name: "rank", .. })));
    let other = skewed::<f32>(&[5, 6], 10, 3).unwrap();
    assert!(matches!(cpu.prepare_planned(&other, prepared.plan()), Err(Error::Argument { name: "plan", .. })));
    let longer = skewed::<f32>(&[5, 6, 70], 50, 3).unwrap();
    assert!(matches!(cpu.prepare_planned(&longer, prepared.plan()), Err(Error::Argument { name: "plan", .. })));
    let none = TensorOptions::new(4).format(MttkrpFormat::Tiled).tiles(0, 1);
    assert!(matches!(cpu.prepare_tensor(&coo, &none), Err(Error::Argument { name: "tiles", .. })));
    let twice = CooTensor::new(vec![2, 2, 2], vec![vec![1, 1]; 3], vec![1.0f32, 2.0]).unwrap();
    for format in MttkrpFormat::ALL {
        assert!(cpu.prepare_tensor(&twice, &TensorOptions::new(4).format(format)).is_err(), "{format}");
    }
}
