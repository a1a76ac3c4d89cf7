//! TEW and TS: operations on the elements of sparse tensors.

use super::CpuHandle;
use super::handle::{self, Place};
use super::status::{Failure, Outcome, Status, guard};
use super::tensor::TensorHandle;
use super::value::Either;
use crate::ops;
use sparsimd_kernels::Number;

/// An operation on two numbers.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
pub enum Arithmetic {
    /// x + z.
    Add = 0,
    /// x - z.
    Sub = 1,
    /// x z.
    Mul = 2,
    /// x / z.
    Div = 3,
}

fn arithmetic(op: u32) -> Outcome<ops::Arithmetic> {
    Ok(match op {
        0 => ops::Arithmetic::Add,
        1 => ops::Arithmetic::Sub,
        2 => ops::Arithmetic::Mul,
        3 => ops::Arithmetic::Div,
        _ => return Err(Failure::argument("op", &format!("{op} is not a sparsimd_arithmetic"))),
    })
}

/// Y = X op Z by elements, `op` a sparsimd_arithmetic, X and Z of the same lengths and element type. Where one of them stores
/// nothing it is 0: Y has the places of both for add and sub, those that both have for mul, those of X for div, which must all
/// be places of Z. With the same places in the same order Y keeps this order, else it is sorted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_tew(
    cpu: *const CpuHandle,
    op: u32,
    x: *const TensorHandle,
    z: *const TensorHandle,
    y: *mut *mut TensorHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, x, z) = unsafe { (Place::new(y)?, handle::get(cpu)?, handle::get(x)?, handle::get(z)?) };
        let op = arithmetic(op)?;
        place.put(match x {
            Either::F32(x) => Either::F32(cpu.tew(op, x, z.of::<f32>()?)?),
            Either::F64(x) => Either::F64(cpu.tew(op, x, z.of::<f64>()?)?),
        });
        Ok(())
    })
}

/// Y = X op s on the stored elements of X, `op` a sparsimd_arithmetic, s rounded to X's element type. Y has the places of X.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_ts(
    cpu: *const CpuHandle,
    op: u32,
    x: *const TensorHandle,
    s: f64,
    y: *mut *mut TensorHandle,
) -> Status {
    guard(|| {
        // SAFETY: by the rules of the interface.
        let (place, cpu, x) = unsafe { (Place::new(y)?, handle::get(cpu)?, handle::get(x)?) };
        let op = arithmetic(op)?;
        place.put(match x {
            Either::F32(x) => Either::F32(cpu.ts(op, x, f32::from_f64(s))?),
            Either::F64(x) => Either::F64(cpu.ts(op, x, s)?),
        });
        Ok(())
    })
}
