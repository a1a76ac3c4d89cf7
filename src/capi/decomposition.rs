//! MTTKRP and the CP decomposition that is made of it.

use std::ffi::{CString, c_char};
use std::ops::{ControlFlow, Range};

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::tensor::TensorHandle;
use super::value::{Either, Element, Family};
use super::view::{mat, mat_mut, put, slice, slice_mut};
use crate::cpu::Cpu;
use crate::decomp::{CpInit, CpOptions};
use crate::dense::{Mat, MatMut, MatRef, addresses};
use crate::formats::CooTensor;
use crate::ops::MttkrpTensor;
use crate::plan::{MttkrpFormat, TensorOptions};
use sparsimd_kernels::{Scalar, Stored};

/// A tensor prepared for many MTTKRPs in all modes.
#[derive(Debug)]
pub struct MttkrpHandle(());

/// How a tensor is stored for MTTKRP.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum TensorFormat {
    /// Whichever is expected to be fastest.
    Auto = 0,
    /// Coordinates.
    Coo = 1,
    /// Compressed sparse fibers, a tree for each mode.
    CsfAll = 2,
    /// One tree for all modes.
    CsfOne = 3,
    /// Two trees.
    CsfTwo = 4,
    /// Balanced trees, one for each mode.
    Bcsf = 5,
    /// Mixed-mode trees: every nonzero in one of them.
    Mmcsf = 6,
    /// Blocks of coordinates.
    Hicoo = 7,
    /// Coordinates in one integer.
    Alto = 8,
    /// Tiles, a copy for each mode.
    Tiled = 9,
    /// Tiled partial products that several modes share.
    Tree = 10,
    /// One list of coordinates for sparsimd_mttkrp_all_f32(): all modes in one pass.
    Joint = 11,
}

/// A tensor as it was given, as it is prepared, and what sparsimd_mttkrp_text() lends.
pub(super) struct Laid<T> {
    tensor: CooTensor<T>,
    prepared: MttkrpTensor<T>,
    text: CString,
}

pub(super) struct Tensors;
impl Family for Tensors {
    const NAME: &'static str = "mttkrp";
    type Of<T: Scalar> = Laid<T>;
}

impl Handle for MttkrpHandle {
    type Value = Either<Tensors>;
    const NAME: &'static str = "mttkrp";
    const TAG: u64 = u64::from_le_bytes(*b"simdmttk");
}

fn laid<T: Scalar>(cpu: &Cpu, tensor: &CooTensor<T>, options: &TensorOptions) -> Outcome<Laid<T>> {
    let prepared = cpu.prepare_tensor(tensor, options)?;
    let text = CString::new(prepared.plan().explain()).unwrap_or_default();
    Ok(Laid { tensor: tensor.clone(), prepared, text })
}

/// What `rank` and a sparsimd_tensor_format ask for.
fn options(rank: usize, format: u32) -> Outcome<TensorOptions> {
    let format = match format {
        0 => None,
        1 => Some(MttkrpFormat::Coo),
        2 => Some(MttkrpFormat::CsfAll),
        3 => Some(MttkrpFormat::CsfOne),
        4 => Some(MttkrpFormat::CsfTwo),
        5 => Some(MttkrpFormat::Bcsf),
        6 => Some(MttkrpFormat::MmCsf),
        7 => Some(MttkrpFormat::HiCoo),
        8 => Some(MttkrpFormat::Alto),
        9 => Some(MttkrpFormat::Tiled),
        10 => Some(MttkrpFormat::Tree),
        11 => Some(MttkrpFormat::Joint),
        _ => return Err(Failure::argument("format", &format!("{format} is not a sparsimd_tensor_format"))),
    };
    Ok(TensorOptions::new(rank).format(format))
}

/// Prepares the tensor for MTTKRP in all modes with factors of `rank` columns, in a sparsimd_tensor_format. Runs with another
/// number of columns are right, and may be slower.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_create(
    cpu: *const CpuHandle,
    tensor: *const TensorHandle,
    rank: usize,
    format: u32,
    mttkrp: *mut *mut MttkrpHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, tensor) = unsafe { (Place::new(mttkrp)?, handle::get(cpu)?, handle::get(tensor)?) };
        let options = options(rank, format)?;
        place.put(match tensor {
            Either::F32(coo) => Either::F32(laid(cpu, coo, &options)?),
            Either::F64(coo) => Either::F64(laid(cpu, coo, &options)?),
        });
        Ok(())
    })
}

pub(super) unsafe fn create_for<D: Stored<Scalar: Element>>(
    cpu: *const CpuHandle,
    tensor: *const TensorHandle,
    rank: usize,
    format: u32,
    mttkrp: *mut *mut MttkrpHandle,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (place, cpu, tensor) = unsafe { (Place::new(mttkrp)?, handle::get(cpu)?, handle::get(tensor)?) };
    let laid = laid(cpu, tensor.of::<D::Scalar>()?, &options(rank, format)?.factors::<D>())?;
    place.put(D::Scalar::either(laid));
    Ok(())
}

/// Frees the prepared tensor. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_destroy(mttkrp: *mut MttkrpHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(mttkrp) })
}

/// How it is stored and why, a line for each decision, valid as long as the prepared tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_text(mttkrp: *const MttkrpHandle, text: *mut *const c_char) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let words = match unsafe { handle::get(mttkrp)? } {
            Either::F32(laid) => &laid.text,
            Either::F64(laid) => &laid.text,
        };
        // SAFETY: by the rules of the interface.
        unsafe { put("text", text, words.as_ptr()) }
    })
}

unsafe fn set_values<T: Element>(
    cpu: *const CpuHandle,
    mttkrp: *mut MttkrpHandle,
    values: *const T,
    nnz: usize,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, laid, values) =
        unsafe { (handle::get(cpu)?, handle::get_mut(mttkrp)?.of_mut::<T>()?, slice("values", values, nnz)?) };
    let tensor = laid.tensor.with_values(values.to_vec())?;
    laid.prepared = cpu.prepare_planned(&tensor, laid.prepared.plan())?;
    laid.tensor = tensor;
    Ok(())
}

/// Gives the prepared tensor `nnz` new values on its pattern, in the order of the tensor it was made from. The plan remains;
/// the nonzeros are laid out anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_set_values_f32(
    cpu: *const CpuHandle,
    mttkrp: *mut MttkrpHandle,
    values: *const f32,
    nnz: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { set_values(cpu, mttkrp, values, nnz) })
}

/// As sparsimd_mttkrp_set_values_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_set_values_f64(
    cpu: *const CpuHandle,
    mttkrp: *mut MttkrpHandle,
    values: *const f64,
    nnz: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { set_values(cpu, mttkrp, values, nnz) })
}

/// A factor, or an output, for each mode: where its first element is, and its row stride.
pub(super) type FactorList<P> = (*const P, *const usize);

/// The factors as views; the one of `but` may be null, and is not looked at.
///
/// # Safety
/// By the rules of the interface.
unsafe fn views<'a, T>(
    (factors, strides): FactorList<*const T>,
    dims: &[usize],
    rank: usize,
    but: usize,
) -> Outcome<Vec<MatRef<'a, T>>> {
    // SAFETY: by the caller's promise.
    let (factors, strides) =
        unsafe { (slice("factors", factors, dims.len())?, slice("strides", strides, dims.len())?) };
    let each = dims.iter().zip(factors).zip(strides).enumerate();
    each.map(|(mode, ((&dim, &factor), &stride))| {
        if mode == but {
            return Ok(MatRef::new(&[], 0, rank, rank)?);
        }
        // SAFETY: by the caller's promise.
        unsafe { mat("factors", factor, dim, rank, stride) }
    })
    .collect()
}

pub(super) unsafe fn mttkrp<D: Stored<Scalar: Element>>(
    cpu: *const CpuHandle,
    tensor: *const MttkrpHandle,
    (mode, rank): (usize, usize),
    factors: FactorList<*const D>,
    (out, ldo): (*mut D::Scalar, usize),
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, tensor) = unsafe { (handle::get(cpu)?, &handle::get(tensor)?.of::<D::Scalar>()?.prepared) };
    let dims = tensor.dims();
    let dim = *dims.get(mode).ok_or_else(|| {
        Failure::argument("mode", &format!("{mode} is not a mode of a tensor of order {}", dims.len()))
    })?;
    // SAFETY: by the rules of the interface.
    let (views, out) = unsafe {
        let views = views(factors, dims, rank, mode)?;
        let inputs: Vec<Range<usize>> = views.iter().map(|view| addresses(view.data())).collect();
        let out = mat_mut("out", out, dim, rank, ldo, &inputs)?;
        (views, out)
    };
    Ok(cpu.mttkrp(tensor, &views, mode, out)?)
}

/// Row i of `out` = the sum over the nonzeros x at places with i in `mode` of x times the elementwise product of their rows
/// of all other factors. `factors[m]` is dense, as many rows as mode m is long, `rank` columns, rows `strides[m]` elements
/// apart; that of `mode` is not read and may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_f32(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    mode: usize,
    rank: usize,
    factors: *const *const f32,
    strides: *const usize,
    out: *mut f32,
    ldo: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { self::mttkrp(cpu, mttkrp, (mode, rank), (factors, strides), (out, ldo)) })
}

/// As sparsimd_mttkrp_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_f64(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    mode: usize,
    rank: usize,
    factors: *const *const f64,
    strides: *const usize,
    out: *mut f64,
    ldo: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { self::mttkrp(cpu, mttkrp, (mode, rank), (factors, strides), (out, ldo)) })
}

unsafe fn mttkrp_all<T: Element>(
    cpu: *const CpuHandle,
    tensor: *const MttkrpHandle,
    rank: usize,
    factors: FactorList<*const T>,
    (outs, ldos): FactorList<*mut T>,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, tensor) = unsafe { (handle::get(cpu)?, &handle::get(tensor)?.of::<T>()?.prepared) };
    let dims = tensor.dims();
    // SAFETY: by the rules of the interface.
    let (views, outs, ldos) = unsafe {
        let (outs, ldos) = (slice("outs", outs, dims.len())?, slice("ldos", ldos, dims.len())?);
        (views(factors, dims, rank, dims.len())?, outs, ldos)
    };
    let mut products: Vec<MatMut<'_, T>> = Vec::with_capacity(dims.len());
    for ((&dim, &out), &ldo) in dims.iter().zip(outs).zip(ldos) {
        let others = products.iter().map(|product| addresses(product.as_ref().data()));
        let taken: Vec<Range<usize>> = views.iter().map(|view| addresses(view.data())).chain(others).collect();
        // SAFETY: by the rules of the interface.
        let product = unsafe { mat_mut("outs", out, dim, rank, ldo, &taken)? };
        products.push(product);
    }
    Ok(cpu.mttkrp_all(tensor, &views, &mut products)?)
}

/// sparsimd_mttkrp_f32() of every mode from the same factors: `outs[m]`, rows `ldos[m]` elements apart, becomes that of mode m.
/// A tensor prepared as SPARSIMD_TENSOR_FORMAT_JOINT takes one pass over the nonzeros for all of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_all_f32(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    rank: usize,
    factors: *const *const f32,
    strides: *const usize,
    outs: *const *mut f32,
    ldos: *const usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { mttkrp_all(cpu, mttkrp, rank, (factors, strides), (outs, ldos)) })
}

/// As sparsimd_mttkrp_all_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mttkrp_all_f64(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    rank: usize,
    factors: *const *const f64,
    strides: *const usize,
    outs: *const *mut f64,
    ldos: *const usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { mttkrp_all(cpu, mttkrp, rank, (factors, strides), (outs, ldos)) })
}

/// How to decompose.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CpAlsOptions {
    /// Iterations at most, at least 1.
    pub iterations: usize,
    /// Ends when the fit improves by less than this; 0 for never.
    pub tolerance: f64,
    /// Added to the diagonal of the equations; 0 for none.
    pub ridge: f64,
    /// Not 0: all factors are kept non-negative.
    pub nonnegative: u32,
    /// Not 0: starts from the factors that are given; 0: from random ones.
    pub start_from_factors: u32,
    /// Of the random start.
    pub seed: u64,
}

unsafe fn cp_als<T: Element>(
    cpu: *const CpuHandle,
    tensor: *const MttkrpHandle,
    rank: usize,
    options: *const CpAlsOptions,
    (factors, strides): FactorList<*mut T>,
    weights: *mut f64,
    (fit, iterations): (*mut f64, *mut usize),
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, tensor, given) =
        unsafe { (handle::get(cpu)?, &handle::get(tensor)?.of::<T>()?.prepared, slice("options", options, 1)?[0]) };
    let dims = tensor.dims();
    let mut chosen = CpOptions::new(rank);
    (chosen.iterations, chosen.tolerance, chosen.ridge) = (given.iterations, given.tolerance, given.ridge);
    (chosen.nonnegative, chosen.init) = (given.nonnegative != 0, CpInit::Seed(given.seed));
    if given.start_from_factors != 0 {
        // SAFETY: by the rules of the interface; what may be written may be read.
        let views = unsafe { views::<T>((factors.cast(), strides), dims, rank, usize::MAX)? };
        let copies = views.iter().map(|view| Mat::from_fn(view.rows(), rank, |i, r| view.row(i)[r]));
        chosen.init = CpInit::Factors(copies.collect::<crate::Result<_>>()?);
    }
    // All places are checked before the work.
    // SAFETY: by the rules of the interface.
    let (places, weights) = unsafe {
        let strides = slice("strides", strides, dims.len())?;
        let places = slice("factors", factors, dims.len())?.iter().zip(dims).zip(strides);
        let places = places.map(|((&place, &dim), &stride)| mat_mut("factors", place, dim, rank, stride, &[]));
        (places.collect::<Outcome<Vec<_>>>()?, slice_mut("weights", weights, rank, &[])?)
    };
    // SAFETY: by the rules of the interface.
    unsafe {
        put("fit", fit, 0.0)?;
        put("iterations", iterations, 0)?;
    }
    let state = cpu.cp_als(tensor, &chosen, |_, _| ControlFlow::Continue(()))?;
    for (mut place, factor) in places.into_iter().zip(&state.factors) {
        for i in 0..factor.rows() {
            place.reborrow().into_row(i).copy_from_slice(factor.row(i));
        }
    }
    weights.copy_from_slice(&state.lambda);
    // SAFETY: by the rules of the interface.
    unsafe {
        put("fit", fit, state.fit())?;
        put("iterations", iterations, state.fits.len())
    }
}

/// The CP decomposition by alternating least squares into `rank` components: X ~ the sum over r of `weights[r]` times the
/// outer product of the r-th columns of all factors, which have length 1. `factors[m]` (as many rows as mode m is long,
/// `rank` columns, rows `strides[m]` elements apart, no two of them overlapping) and `weights` receive the result, `fit`
/// 1 - |X - model| / |X|, `iterations` how many there were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_cp_als_f32(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    rank: usize,
    options: *const CpAlsOptions,
    factors: *const *mut f32,
    strides: *const usize,
    weights: *mut f64,
    fit: *mut f64,
    iterations: *mut usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { cp_als(cpu, mttkrp, rank, options, (factors, strides), weights, (fit, iterations)) })
}

/// As sparsimd_cp_als_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_cp_als_f64(
    cpu: *const CpuHandle,
    mttkrp: *const MttkrpHandle,
    rank: usize,
    options: *const CpAlsOptions,
    factors: *const *mut f64,
    strides: *const usize,
    weights: *mut f64,
    fit: *mut f64,
    iterations: *mut usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { cp_als(cpu, mttkrp, rank, options, (factors, strides), weights, (fit, iterations)) })
}
