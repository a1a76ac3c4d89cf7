//! MTTKRP in every format and TTM on arbitrary structure, against the reference.
#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sparsimd::formats::FiberCoo;
use sparsimd::ops::TtmAlgorithm;
use sparsimd::plan::{MttkrpFormat, TensorOptions};
use sparsimd::{Arch, CooTensor, Cpu, Mat, MatRef, Scalar, generate, reference};

/// One executor for each instruction set, with one thread and with two.
static CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| {
    let build = |arch, threads| Cpu::builder().arch(arch).threads(threads).pin(false).build().expect("an executor");
    Arch::available().into_iter().flat_map(|arch| [build(arch, 1), build(arch, 2)]).collect()
});

#[derive(Arbitrary, Debug)]
struct Input {
    double: bool,
    cpu: u8,
    format: u8,
    rank: u8,
    element: bool,
    dims: Vec<u8>,
    seed: u64,
    places: Vec<[u8; 6]>,
}

fuzz_target!(|input: Input| if input.double { run::<f64>(&input) } else { run::<f32>(&input) });

fn run<T: Scalar>(input: &Input) {
    let cpu = &CPUS[usize::from(input.cpu) % CPUS.len()];
    let dims: Vec<usize> = input.dims.iter().take(6).map(|&dim| usize::from(dim) + 1).collect();
    if dims.len() < 2 {
        return;
    }
    let mut places: Vec<Vec<u32>> = Vec::new();
    for place in input.places.iter().take(400) {
        places.push(dims.iter().zip(place).map(|(&dim, &i)| u32::from(i) % dim as u32).collect());
    }
    let mut seen = std::collections::HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    let coords = (0..dims.len()).map(|mode| places.iter().map(|place| place[mode]).collect()).collect();
    let values = generate::uniform_values::<T>(places.len(), input.seed);
    let x = CooTensor::new(dims.clone(), coords, values).expect("a tensor");
    let rank = usize::from(input.rank) % 40 + 1;
    let factor = |(mode, &dim): (usize, &usize)| generate::uniform_dense::<T>(dim, rank, mode as u64).expect("memory");
    let factors: Vec<Mat<T>> = dims.iter().enumerate().map(factor).collect();
    let views: Vec<MatRef<'_, T>> = factors.iter().map(Mat::as_ref).collect();

    let format = MttkrpFormat::ALL[usize::from(input.format) % MttkrpFormat::ALL.len()];
    let tensor = cpu.prepare_tensor(&x, &TensorOptions::new(rank).format(format)).expect("a plan");
    for mode in 0..dims.len() {
        let mut out = Mat::zeros(dims[mode], rank).expect("memory");
        cpu.mttkrp(&tensor, &views, mode, out.as_mut()).expect("shapes fit");
        let expected = reference::mttkrp(&x, &views, mode).expect("shapes fit");
        assert!(expected.deviation(out.as_ref()).expect("shapes fit").error <= 1.0, "mttkrp {format} {mode}");
    }

    let mode = usize::from(input.format) % dims.len();
    let fibers = FiberCoo::new(x.clone(), mode).expect("distinct places");
    let algorithm = if input.element { TtmAlgorithm::Element } else { TtmAlgorithm::Fiber };
    let y = cpu.ttm(&fibers, views[mode], algorithm).expect("shapes fit");
    let rows: Vec<Vec<u32>> = y.all_coords().to_vec();
    let expected = reference::ttm(&x, mode, views[mode], &rows).expect("shapes fit");
    assert!(expected.deviation(y.values()).expect("shapes fit").error <= 1.0, "ttm");
}
