//! CP-ALS on 1 to 9 ranks: fits and factors of one machine's, words as the model has them, and resumed on another number of ranks.

use std::ops::ControlFlow;

use sparsimd::decomp::{CpInit, CpOptions, CpState};
use sparsimd::plan::TensorOptions;
use sparsimd::{CooTensor, Cpu, Mat, generate};
use sparsimd_distributed::{Comm, CountComm, DistTensor, Element, Result, ThreadComm};

fn cpu() -> Cpu {
    Cpu::builder().threads(1).pin(false).build().unwrap()
}

fn options<T: Element>(rank: usize) -> CpOptions<T> {
    CpOptions { iterations: 6, tolerance: 0.0, ..CpOptions::new(rank) }
}

/// Every `ranks`-th entry of `x`, from number `rank` on: any cut will do.
fn part<T: Element>(x: &CooTensor<T>, rank: usize, ranks: usize) -> CooTensor<T> {
    let some = |n: usize| (rank..n).step_by(ranks);
    let coords = x.all_coords().iter().map(|c| some(x.nnz()).map(|p| c[p]).collect()).collect();
    CooTensor::new(x.dims().to_vec(), coords, some(x.nnz()).map(|p| x.values()[p]).collect()).unwrap()
}

fn one_machine<T: Element>(x: &CooTensor<T>, options: &CpOptions<T>) -> CpState<T> {
    let tensor = cpu().prepare_tensor(x, &TensorOptions::new(options.rank)).unwrap();
    cpu().cp_als(&tensor, options, |_, _| ControlFlow::Continue(())).unwrap()
}

/// The whole state, on every rank.
fn decompose<T: Element>(comm: &dyn Comm, x: &CooTensor<T>, options: &CpOptions<T>) -> Result<CpState<T>> {
    let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(x, comm.rank(), comm.size()))?;
    let own = tensor.cp_als(&cpu(), comm, options, |_, _| ControlFlow::Continue(()))?;
    tensor.whole(comm, &own)
}

fn close<T: Element>(a: &CpState<T>, b: &CpState<T>, tolerance: f64, case: &str) {
    assert_eq!(a.fits.len(), b.fits.len());
    let fits = a.fits.iter().zip(&b.fits);
    assert!(fits.clone().all(|(x, y)| (x - y).abs() <= tolerance), "{case}: {:?} and {:?}", a.fits, b.fits);
    let elements = |state: &CpState<T>| -> Vec<f64> {
        state.factors.iter().flat_map(|f| f.iter_rows().flatten().map(|x| x.to_f64()).collect::<Vec<_>>()).collect()
    };
    let largest = elements(a).iter().zip(elements(b)).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(largest <= 100.0 * tolerance, "{case}: factors differ by {largest}");
}

fn tensors<T: Element>() -> Vec<(&'static str, CooTensor<T>)> {
    vec![
        ("random", generate::power_law(&[40, 30, 50], 3000, 1.5, &[], 7).unwrap()),
        ("skewed", generate::skewed(&[60, 9, 25, 7], 2000, 3).unwrap()),
        ("one entry", CooTensor::new(vec![5, 4, 3], vec![vec![4], vec![0], vec![2]], vec![T::from_f64(2.0)]).unwrap()),
        ("short modes", generate::dense_fibers(&[2, 3, 40], 100, 1).unwrap()),
    ]
}

#[test]
fn fits_and_factors_are_those_of_one_machine() {
    for (name, x) in tensors::<f64>() {
        for nonnegative in [false, true] {
            let options = CpOptions { nonnegative, ridge: 1e-3, ..options(5) };
            let wanted = one_machine(&x, &options);
            for ranks in 1..=9 {
                let states = ThreadComm::run(ranks, |comm: &dyn Comm| decompose(comm, &x, &options).unwrap());
                for state in &states {
                    close(state, &wanted, 1e-9, &format!("{name}, {ranks} ranks"));
                    assert_eq!(state.fits, states[0].fits);
                }
            }
        }
    }
    for (name, x) in tensors::<f32>() {
        let options = CpOptions { ridge: 1e-3, ..options(5) };
        let wanted = one_machine(&x, &options);
        let states = ThreadComm::run(4, |comm: &dyn Comm| decompose(comm, &x, &options).unwrap());
        assert!(states[0].fits.iter().zip(&wanted.fits).all(|(x, y)| (x - y).abs() <= 1e-3), "{name}");
    }
}

#[test]
fn the_same_ranks_give_the_same_bits() {
    let (_, x) = tensors::<f64>().remove(0);
    let run = || ThreadComm::run(6, |comm: &dyn Comm| decompose(comm, &x, &options(7)).unwrap());
    let bits = |states: &[CpState<f64>]| -> Vec<u64> {
        let elements = states[0].factors.iter().flat_map(Mat::iter_rows).flatten().chain(&states[0].fits);
        elements.map(|x| x.to_bits()).collect()
    };
    assert_eq!(bits(&run()), bits(&run()));
}

#[test]
fn a_run_is_resumed_on_any_number_of_ranks() {
    let (_, x) = tensors::<f64>().remove(1);
    let all = options(4);
    let wanted = one_machine(&x, &all);
    let dir = tempfile::tempdir().unwrap();
    let [file, single] = ["state", "single"].map(|name| dir.path().join(name));
    for (before, after) in [(3, 2), (1, 5), (9, 1), (4, 7)] {
        let first = CpOptions { iterations: 3, ..options(4) };
        ThreadComm::run(before, |comm: &dyn Comm| {
            let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), comm.size())).unwrap();
            let own = tensor.cp_als(&cpu(), comm, &first, |_, _| ControlFlow::Continue(())).unwrap();
            tensor.save(comm, &own, &file).unwrap();
            if comm.rank() == 0 {
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1 + usize::from(single.exists()));
            }
        });
        let whole = CpState::load(&file).unwrap();
        whole.save(&single).unwrap();
        let rest = CpOptions { init: CpInit::Resume(whole), ..options(4) };
        close(&one_machine(&x, &rest), &wanted, 1e-9, &format!("{before} and then one machine"));
        let states = ThreadComm::run(after, |comm: &dyn Comm| decompose(comm, &x, &rest).unwrap());
        close(&states[0], &wanted, 1e-9, &format!("{before} and then {after} ranks"));
        for file in [&file, &single] {
            let states = ThreadComm::run(after, |comm: &dyn Comm| {
                let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), after)).unwrap();
                let own = tensor.load(comm, file).unwrap();
                assert!(own.factors.iter().map(Mat::rows).eq(tensor.rows().iter().map(ExactSizeIterator::len)));
                let rest = CpOptions { init: CpInit::Resume(own), ..options(4) };
                let own = tensor.cp_als(&cpu(), comm, &rest, |_, _| ControlFlow::Continue(())).unwrap();
                tensor.whole(comm, &own).unwrap()
            });
            close(&states[0], &wanted, 1e-9, &format!("{before} and then {after} ranks, each its rows"));
        }
    }
}

#[test]
fn a_checkpoint_that_cannot_be_put_in_place_leaves_nothing() {
    let (_, x) = tensors::<f64>().remove(1);
    let dir = tempfile::tempdir().unwrap();
    // Where a folder is.
    let path = dir.path().join("state");
    std::fs::create_dir(&path).unwrap();
    let errors = ThreadComm::run(3, |comm: &dyn Comm| {
        let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), 3)).unwrap();
        let own = tensor.cp_als(&cpu(), comm, &options(2), |_, _| ControlFlow::Break(())).unwrap();
        tensor.save(comm, &own, &path).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.starts_with("rank 0: ") && error.contains("state")), "{errors:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn damaged_checkpoints_are_refused() {
    let (_, x) = tensors::<f64>().remove(0);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    type Act<'a> = &'a (dyn Fn(&dyn Comm, &DistTensor<f64>) -> Result<()> + Sync);
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let on_ranks = |ranks: usize, act: Act<'_>| {
        let all = ThreadComm::run(ranks, |comm: &dyn Comm| {
            let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), ranks)).unwrap();
            act(comm, &tensor).map_err(|e| e.to_string())
        });
        assert!(all.iter().all(|result| *result == all[0]), "{all:?}");
        all[0].clone()
    };
    let load = || on_ranks(4, &|comm, tensor| tensor.load(comm, &file).map(drop));
    let save = |comm: &dyn Comm, tensor: &DistTensor<f64>| {
        let own = tensor.cp_als(&cpu(), comm, &options(3), |_, _| ControlFlow::Continue(()))?;
        tensor.save(comm, &own, &file)
    };
    on_ranks(3, &save).unwrap();
    load().unwrap();
    let good = std::fs::read(&file).unwrap();
    let last = good.len() - 1;
    let cases: [(Damage<'_>, &str); 6] = [
        (&|b| b[last] ^= 1, "the checksum of section 8 does not match"),
        (&|b| b[60] ^= 1, "the checksum of the head does not match"),
        (&|b| b[14] ^= 1, "the file ends early"),
        (&|b| b.truncate(last), "the file is not as long as its sections"),
        (&|b| b.truncate(100), "the file ends early"),
        (&|b| b.truncate(12), "not a checkpoint of a CP decomposition"),
    ];
    for (damage, words) in cases {
        let mut bytes = good.clone();
        damage(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        let error = load().unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
        assert!(CpState::<f64>::load(&file).is_err());
    }
    std::fs::write(&file, &good).unwrap();
    // Of another tensor; and a folder that is not there.
    let other = ThreadComm::run(2, |comm: &dyn Comm| {
        let x = generate::power_law(&[40, 30, 51], 300, 1.5, &[], 7).unwrap();
        let tensor = DistTensor::<f64>::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), 2)).unwrap();
        tensor.load(comm, &file).unwrap_err().to_string()
    });
    assert!(other[0].contains("the checkpoint is of dims [40, 30, 50], the tensor has [40, 30, 51]"), "{}", other[0]);
    let changed = |change: &(dyn Fn(&mut f64) + Sync)| {
        ThreadComm::run(2, |comm: &dyn Comm| {
            let mut own = part(&x, comm.rank(), 2);
            if comm.rank() == 1 {
                own.values_mut().last_mut().into_iter().for_each(change);
            }
            let tensor = DistTensor::<f64>::new(&cpu(), comm, x.dims(), &own).unwrap();
            (tensor.checksum(), tensor.load(comm, &file).map(drop).map_err(|e| e.to_string()))
        })
    };
    for (checksum, loaded) in changed(&|_| ()) {
        assert_eq!((checksum, loaded), (x.checksum(), Ok(())));
    }
    for (checksum, loaded) in changed(&|value| *value += 1.0) {
        let error = loaded.unwrap_err();
        assert!(checksum != x.checksum() && error.contains("a tensor with other entries"), "{error}");
    }
    // On one machine likewise.
    CpState::<f64>::load_of(&file, x.checksum()).unwrap();
    assert!(CpState::<f64>::load_of(&file, x.checksum() ^ 1).is_err());
    let missing = dir.path().join("none/state");
    let nowhere = on_ranks(2, &|comm, tensor| {
        let own = tensor.cp_als(&cpu(), comm, &options(3), |_, _| ControlFlow::Continue(()))?;
        tensor.save(comm, &own, &missing)
    });
    assert!(nowhere.unwrap_err().contains("none/state: No such file"));
}

#[test]
fn the_words_of_an_iteration_are_the_models() {
    let (rank, iterations) = (4, 3);
    for (_, x) in tensors::<f64>() {
        for ranks in [1usize, 2, 4, 8] {
            ThreadComm::run(ranks, |comm: &dyn Comm| {
                let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), comm.size())).unwrap();
                let counted = CountComm::new(comm);
                let run = |iterations: usize| {
                    let options = CpOptions { iterations, ..options(rank) };
                    tensor.cp_als(&cpu(), &counted, &options, |_, _| ControlFlow::Continue(())).unwrap();
                    counted.take().bytes_received / 8
                };
                let modes = x.order();
                let sums = modes * ranks.ilog2() as usize * (rank * (rank + 3) / 2 + 1);
                assert_eq!(run(iterations + 1) - run(iterations), rank * tensor.rows_received() + sums);
            });
        }
    }
}

#[test]
fn errors_are_those_of_all_ranks() {
    let (_, x) = tensors::<f64>().remove(0);
    let errors = |change: &(dyn Fn(usize, CooTensor<f64>) -> CooTensor<f64> + Sync), options: &CpOptions<f64>| {
        let all = ThreadComm::run(3, |comm: &dyn Comm| {
            let own = change(comm.rank(), part(&x, comm.rank(), 3));
            let tensor = DistTensor::new(&cpu(), comm, x.dims(), &own).map_err(|e| e.to_string())?;
            tensor
                .cp_als(&cpu(), comm, options, |_, _| ControlFlow::Continue(()))
                .map(|_| ())
                .map_err(|e| e.to_string())
        });
        assert!(all.iter().all(|e| *e == all[0]), "{all:?}");
        all[0].clone().unwrap_err()
    };
    let same = |_, own| own;
    assert!(errors(&same, &options(0)).contains("rank: 0 co"));
    let init = CpInit::Factors(vec![Mat::zeros(3, 4).unwrap()]);
    assert!(errors(&same, &CpOptions { init, ..options(4) }).contains("init: factors of [3] rows"));
    // Of one rank alone.
    let uneven = ThreadComm::run(3, |comm: &dyn Comm| {
        let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), 3)).unwrap();
        let cols = if comm.rank() == 1 { 3 } else { 4 };
        let factors = x.dims().iter().map(|&dim| Mat::from_fn(dim, cols, |i, r| (i + r) as f64).unwrap()).collect();
        let options = CpOptions { init: CpInit::Factors(factors), ..options(4) };
        tensor.cp_als(&cpu(), comm, &options, |_, _| ControlFlow::Continue(())).unwrap_err().to_string()
    });
    for error in uneven {
        assert!(error.contains("rank 1: init: a factor of 3 columns for rank 4"), "{error}");
    }
    let twice = |_, own: CooTensor<f64>| {
        let coords = own.all_coords().iter().map(|_| vec![0]).collect();
        CooTensor::new(own.dims().to_vec(), coords, vec![1.0]).unwrap()
    };
    assert!(errors(&twice, &options(4)).contains("are both at"));
    let infinite = |rank, mut own: CooTensor<f64>| {
        if rank == 1 {
            own.values_mut()[0] = f64::INFINITY;
        }
        own
    };
    assert!(errors(&infinite, &options(4)).contains("not finite"));
    // A run ends on all ranks when it ends on one.
    let ends = ThreadComm::run(3, |comm: &dyn Comm| {
        let tensor = DistTensor::new(&cpu(), comm, x.dims(), &part(&x, comm.rank(), 3)).unwrap();
        let state = tensor.cp_als(&cpu(), comm, &options(3), |_, iteration| {
            if comm.rank() == 2 && iteration.number == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        state.unwrap().fits.len()
    });
    assert_eq!(ends, [2, 2, 2]);
}
