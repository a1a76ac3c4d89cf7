//! Tucker's decomposition.

use std::ops::ControlFlow;

use super::CpuHandle;
use super::handle;
use super::status::{Failure, Outcome, Status, guard};
use super::tensor::TensorHandle;
use super::value::Either;
use super::view::{mat, mat_mut, put, slice, slice_mut};
use crate::cpu::Cpu;
use crate::decomp::{TuckerInit, TuckerOptions as Options};
use crate::dense::{Mat, addresses};
use crate::formats::CooTensor;
use sparsimd_kernels::Scalar;

/// How the factors begin.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum TuckerStart {
    /// The leading singular vectors of the tensor unfolded in each mode.
    Svd = 0,
    /// Orthonormalised random numbers.
    Random = 1,
    /// The factors that are given; the first one's values have no influence.
    Factors = 2,
}

/// How to decompose.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TuckerOptions {
    /// Iterations at most, at least 1.
    pub iterations: usize,
    /// Ends when the fit improves by less than this; 0 for never.
    pub tolerance: f64,
    /// A sparsimd_tucker_start.
    pub start: u32,
    /// Of random numbers.
    pub seed: u64,
}

/// Tucker's decomposition by higher-order orthogonal iteration: X ~ the core times `factors[m]` in every mode m. `factors[m]` (as
/// many rows as mode m is long, `ranks[m]` orthonormal columns, rows `strides[m]` elements apart, no two of them overlapping) and
/// `core` (the product of the ranks, the last mode's index running fastest) receive the result in double precision, `fit`
/// 1 - |X - model| / |X|, `iterations` how many there were. No rank may exceed its mode's length or the product of the
/// others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tucker(
    cpu: *const CpuHandle,
    tensor: *const TensorHandle,
    ranks: *const usize,
    options: *const TuckerOptions,
    factors: *const *mut f64,
    strides: *const usize,
    core: *mut f64,
    fit: *mut f64,
    iterations: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (cpu, tensor) = unsafe { (handle::get(cpu)?, handle::get(tensor)?) };
        // SAFETY: by the rules of the interface.
        unsafe {
            match tensor {
                Either::F32(x) => tucker(cpu, x, ranks, options, (factors, strides), core, (fit, iterations)),
                Either::F64(x) => tucker(cpu, x, ranks, options, (factors, strides), core, (fit, iterations)),
            }
        }
    })
}

unsafe fn tucker<T: Scalar>(
    cpu: &Cpu,
    x: &CooTensor<T>,
    ranks: *const usize,
    options: *const TuckerOptions,
    (factors, strides): (*const *mut f64, *const usize),
    core: *mut f64,
    (fit, iterations): (*mut f64, *mut usize),
) -> Outcome {
    let dims = x.dims();
    // SAFETY: by the rules of the interface.
    let (ranks, given, factors, strides) = unsafe {
        (
            slice("ranks", ranks, dims.len())?,
            slice("options", options, 1)?[0],
            slice("factors", factors, dims.len())?,
            slice("strides", strides, dims.len())?,
        )
    };
    let shapes = || dims.iter().zip(ranks).zip(factors.iter().zip(strides));
    let mut chosen = Options::new(ranks.to_vec());
    (chosen.iterations, chosen.tolerance, chosen.seed) = (given.iterations, given.tolerance, given.seed);
    chosen.init = match given.start {
        0 => TuckerInit::Svd,
        1 => TuckerInit::Random,
        2 => {
            let copies = shapes().map(|((&dim, &rank), (&factor, &stride))| {
                // SAFETY: by the rules of the interface; what may be written may be read.
                let view = unsafe { mat("factors", factor.cast_const(), dim, rank, stride)? };
                Ok(Mat::from_fn(dim, rank, |i, r| view.row(i)[r])?)
            });
            TuckerInit::Given(copies.collect::<Outcome<_>>()?)
        }
        start => return Err(Failure::argument("start", &format!("{start} is not a sparsimd_tucker_start"))),
    };
    // All places are checked before the work.
    let len = ranks.iter().try_fold(1, |len: usize, &rank| len.checked_mul(rank));
    let len = len.ok_or_else(|| Failure::argument("ranks", "the core does not fit the address space"))?;
    let mut places = Vec::with_capacity(dims.len());
    for ((&dim, &rank), (&factor, &stride)) in shapes() {
        let taken: Vec<_> =
            places.iter().map(|place: &crate::MatMut<'_, f64>| addresses(place.as_ref().data())).collect();
        // SAFETY: by the rules of the interface.
        places.push(unsafe { mat_mut("factors", factor, dim, rank, stride, &taken)? });
    }
    let taken: Vec<_> = places.iter().map(|place| addresses(place.as_ref().data())).collect();
    // SAFETY: by the rules of the interface.
    let core = unsafe {
        put("fit", fit, 0.0)?;
        put("iterations", iterations, 0)?;
        slice_mut("core", core, len, &taken)?
    };
    let model = cpu.tucker(x, &chosen, |_, _| ControlFlow::Continue(()))?;
    for (mut place, factor) in places.into_iter().zip(&model.factors) {
        for i in 0..factor.rows() {
            place.reborrow().into_row(i).copy_from_slice(factor.row(i));
        }
    }
    core.copy_from_slice(&model.core);
    // SAFETY: by the rules of the interface.
    unsafe {
        put("fit", fit, model.fit)?;
        put("iterations", iterations, model.fits.len())
    }
}
