//! Sparse tensors and the operations on their fibers: TTM and TTV.

use super::CpuHandle;
use super::handle::{self, Handle, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::value::{Either, Element, Family};
use super::view::{mat, mat_mut, put, slice, slice_mut};
use crate::dense::addresses;
use crate::formats::{CooTensor, FiberCoo};
use crate::ops::TtmAlgorithm;
use sparsimd_kernels::{Scalar, Stored};

/// A sparse tensor by coordinates.
#[derive(Debug)]
pub struct TensorHandle(());

/// A tensor by the fibers of one mode.
#[derive(Debug)]
pub struct FibersHandle(());

pub(super) struct Tensors;
impl Family for Tensors {
    const NAME: &'static str = "tensor";
    type Of<T: Scalar> = CooTensor<T>;
}

pub(super) struct FiberForms;
impl Family for FiberForms {
    const NAME: &'static str = "fibers";
    type Of<T: Scalar> = FiberCoo<T>;
}

impl Handle for TensorHandle {
    type Value = Either<Tensors>;
    const NAME: &'static str = "tensor";
    const TAG: u64 = u64::from_le_bytes(*b"simdtens");
}

impl Handle for FibersHandle {
    type Value = Either<FiberForms>;
    const NAME: &'static str = "fibers";
    const TAG: u64 = u64::from_le_bytes(*b"simdfibr");
}

unsafe fn tensor_create<T: Element>(
    order: usize,
    dims: *const usize,
    nnz: usize,
    coords: *const *const u32,
    values: *const T,
    tensor: *mut *mut TensorHandle,
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (place, dims, lists, values) = unsafe {
        (
            Place::new(tensor)?,
            slice("dims", dims, order)?,
            slice("coords", coords, order)?,
            slice("values", values, nnz)?,
        )
    };
    // SAFETY: by the rules of the interface.
    let lists = lists.iter().map(|&list| Ok(unsafe { slice("coords", list, nnz)? }.to_vec()));
    let coo = CooTensor::new(dims.to_vec(), lists.collect::<Outcome<_>>()?, values.to_vec())?;
    place.put(T::either::<Tensors>(coo));
    Ok(())
}

/// Copies a tensor of `order` modes of the lengths `dims`: its nonzero p is `values[p]` at the place `coords[mode][p]`,
/// counted from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_create_f32(
    order: usize,
    dims: *const usize,
    nnz: usize,
    coords: *const *const u32,
    values: *const f32,
    tensor: *mut *mut TensorHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { tensor_create(order, dims, nnz, coords, values, tensor) })
}

/// As sparsimd_tensor_create_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_create_f64(
    order: usize,
    dims: *const usize,
    nnz: usize,
    coords: *const *const u32,
    values: *const f64,
    tensor: *mut *mut TensorHandle,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { tensor_create(order, dims, nnz, coords, values, tensor) })
}

/// Frees the tensor; what was made from it remains. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_destroy(tensor: *mut TensorHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(tensor) })
}

/// Number of nonzeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_nnz(tensor: *const TensorHandle, nnz: *mut usize) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let number = match unsafe { handle::get(tensor)? } {
            Either::F32(coo) => coo.nnz(),
            Either::F64(coo) => coo.nnz(),
        };
        // SAFETY: by the rules of the interface.
        unsafe { put("nnz", nnz, number) }
    })
}

/// The nonzeros' coordinates in `mode`, valid as long as the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_coords(
    tensor: *const TensorHandle,
    mode: usize,
    coords: *mut *const u32,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let all = match unsafe { handle::get(tensor)? } {
            Either::F32(coo) => coo.all_coords(),
            Either::F64(coo) => coo.all_coords(),
        };
        let list = all.get(mode);
        let list = list.ok_or_else(|| Failure::argument("mode", &format!("{mode} is not below {}", all.len())))?;
        // SAFETY: by the rules of the interface.
        unsafe { put("coords", coords, list.as_ptr()) }
    })
}

unsafe fn tensor_values<T: Element>(tensor: *const TensorHandle, values: *mut *const T) -> Outcome {
    // SAFETY: by the rules of the interface.
    unsafe { put("values", values, handle::get(tensor)?.of::<T>()?.values().as_ptr()) }
}

/// The nonzeros' values, valid as long as the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_values_f32(tensor: *const TensorHandle, values: *mut *const f32) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { tensor_values(tensor, values) })
}

/// As sparsimd_tensor_values_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tensor_values_f64(tensor: *const TensorHandle, values: *mut *const f64) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { tensor_values(tensor, values) })
}

/// Sorts the nonzeros into fibers of `mode`: those that differ in this mode alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fibers_create(
    cpu: *const CpuHandle,
    tensor: *const TensorHandle,
    mode: usize,
    fibers: *mut *mut FibersHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, tensor) = unsafe { (Place::new(fibers)?, handle::get(cpu)?, handle::get(tensor)?) };
        place.put(match tensor {
            Either::F32(coo) => Either::F32(cpu.install(|| FiberCoo::new(coo.clone(), mode))?),
            Either::F64(coo) => Either::F64(cpu.install(|| FiberCoo::new(coo.clone(), mode))?),
        });
        Ok(())
    })
}

/// Frees the fibers. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fibers_destroy(fibers: *mut FibersHandle) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { handle::destroy(fibers) })
}

/// Number of fibers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fibers_count(fibers: *const FibersHandle, count: *mut usize) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let number = match unsafe { handle::get(fibers)? } {
            Either::F32(fibers) => fibers.num_fibers(),
            Either::F64(fibers) => fibers.num_fibers(),
        };
        // SAFETY: by the rules of the interface.
        unsafe { put("count", count, number) }
    })
}

/// Where the fibers are: the coordinate of each in the `level`-th of the other modes, valid as long as the fibers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_fibers_coords(
    fibers: *const FibersHandle,
    level: usize,
    coords: *mut *const u32,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let all = match unsafe { handle::get(fibers)? } {
            Either::F32(fibers) => fibers.coords(),
            Either::F64(fibers) => fibers.coords(),
        };
        let list = all.get(level);
        let list = list.ok_or_else(|| Failure::argument("level", &format!("{level} is not below {}", all.len())))?;
        // SAFETY: by the rules of the interface.
        unsafe { put("coords", coords, list.as_ptr()) }
    })
}

pub(super) unsafe fn ttm<D: Stored<Scalar: Element>>(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    cols: usize,
    (u, ldu): (*const D, usize),
    (y, ldy): (*mut D, usize),
) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, x) = unsafe { (handle::get(cpu)?, handle::get(fibers)?.of::<D::Scalar>()?) };
    // SAFETY: by the rules of the interface.
    let (u, y) = unsafe {
        let u = mat("u", u, x.dims()[x.mode()], cols, ldu)?;
        (u, mat_mut("y", y, x.num_fibers(), cols, ldy, &[addresses(u.data())])?)
    };
    Ok(cpu.ttm_into(x, u, TtmAlgorithm::Auto, y)?)
}

/// Y = X x_n U, n being the mode of the fibers: U dense, as many rows as the mode is long, `cols` columns; row f of Y
/// receives fiber f.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ttm_f32(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    cols: usize,
    u: *const f32,
    ldu: usize,
    y: *mut f32,
    ldy: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { ttm(cpu, fibers, cols, (u, ldu), (y, ldy)) })
}

/// As sparsimd_ttm_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ttm_f64(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    cols: usize,
    u: *const f64,
    ldu: usize,
    y: *mut f64,
    ldy: usize,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { ttm(cpu, fibers, cols, (u, ldu), (y, ldy)) })
}

unsafe fn ttv<T: Element>(cpu: *const CpuHandle, fibers: *const FibersHandle, v: *const T, y: *mut T) -> Outcome {
    // SAFETY: by the rules of the interface.
    let (cpu, x) = unsafe { (handle::get(cpu)?, handle::get(fibers)?.of::<T>()?) };
    // SAFETY: by the rules of the interface.
    let (v, y) = unsafe {
        let v = slice("v", v, x.dims()[x.mode()])?;
        (v, slice_mut("y", y, x.num_fibers(), &[addresses(v)])?)
    };
    Ok(cpu.ttv_into(x, v, y)?)
}

/// y = X x_n v, n being the mode of the fibers: v one element for each index of the mode, y one for each fiber.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ttv_f32(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    v: *const f32,
    y: *mut f32,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { ttv(cpu, fibers, v, y) })
}

/// As sparsimd_ttv_f32().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ttv_f64(
    cpu: *const CpuHandle,
    fibers: *const FibersHandle,
    v: *const f64,
    y: *mut f64,
) -> Status {
    // SAFETY: by the rules of the interface.
    guard(|| unsafe { ttv(cpu, fibers, v, y) })
}
