//! What a tensor of PyTorch is, by one call of C: asking it for address, dtype, shape and strides by Python takes longer than a small
//! product. The layouts are those of `dlpack.h`, version 1.3, in which packages may offer such functions.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Device, dtype and place of an array, as `DLTensor`.
#[repr(C)]
struct Raw {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

type Describe = unsafe extern "C" fn(*mut ffi::PyObject, *mut Raw) -> c_int;

/// The head of `DLPackExchangeAPI`, and the function that is used of it.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    older: *const c_void,
    others: [*const c_void; 3],
    describe: Option<Describe>,
}

/// PyTorch's functions; null where there are none.
static TORCH: AtomicPtr<Exchange> = AtomicPtr::new(null_mut());

const PROCESSOR: i32 = 1;
const NAME: &CStr = c"dlpack_exchange_api";

/// Takes note of what `torch.Tensor` offers; says whether that is of use.
#[pyfunction]
pub fn _use_exchange(capsule: &Bound<'_, PyCapsule>) -> PyResult<bool> {
    let exchange = capsule.pointer_checked(Some(NAME))?.cast::<Exchange>();
    // SAFETY: a capsule of this name has that table, of which the version is the same in all; it lives as long as torch.
    let usable = unsafe { exchange.as_ref().major == 1 && exchange.as_ref().describe.is_some() };
    if usable {
        TORCH.store(exchange.as_ptr(), Ordering::Release);
    }
    Ok(usable)
}

/// Element types that are told apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Float(u8),
    BFloat16,
    Int(u8),
}

/// A tensor of one or two dimensions in the processor's memory. Nothing holds it.
pub struct View {
    pub address: usize,
    pub kind: Kind,
    pub dims: usize,
    /// Lengths; the second is 1 where there is one dimension.
    pub shape: [usize; 2],
    strides: [i64; 2],
}

impl View {
    /// What `tensor`, of the very type `torch.Tensor` or `torch.nn.Parameter`, is; none if it is of another kind.
    pub fn of(tensor: &Bound<'_, PyAny>) -> Option<Self> {
        // SAFETY: `_use_exchange` has checked it.
        let describe = unsafe { TORCH.load(Ordering::Acquire).as_ref() }?.describe?;
        let mut raw = std::mem::MaybeUninit::<Raw>::zeroed();
        // SAFETY: the function writes what the tensor is, or says that it cannot, with an exception.
        if unsafe { describe(tensor.as_ptr(), raw.as_mut_ptr()) } != 0 {
            drop(PyErr::take(tensor.py()));
            return None;
        }
        // SAFETY: it was written.
        let raw = unsafe { raw.assume_init() };
        let kind = match (raw.code, raw.bits, raw.lanes) {
            (0, bits, 1) => Kind::Int(bits),
            (2, bits, 1) => Kind::Float(bits),
            (4, 16, 1) => Kind::BFloat16,
            _ => return None,
        };
        let dims = usize::try_from(raw.ndim).ok().filter(|dims| (1..=2).contains(dims))?;
        if raw.device[0] != PROCESSOR || raw.strides.is_null() {
            return None;
        }
        let (mut shape, mut strides) = ([1; 2], [1; 2]);
        for d in 0..dims {
            // SAFETY: both have as many numbers as the tensor has dimensions, until the interpreter runs again.
            let (length, stride) = unsafe { (*raw.shape.add(d), *raw.strides.add(d)) };
            (shape[d], strides[d]) = (usize::try_from(length).ok()?, stride);
        }
        let address = raw.data.addr() + usize::try_from(raw.byte_offset).ok()?;
        Some(Self { address, kind, dims, shape, strides })
    }

    /// Its length, if it is a vector without gaps.
    pub fn vector(&self) -> Option<usize> {
        (self.dims == 1 && (self.strides[0] == 1 || self.shape[0] <= 1)).then_some(self.shape[0])
    }

    /// Its transpose.
    pub fn transposed(&self) -> Self {
        let ([m, n], [s, t]) = (self.shape, self.strides);
        Self { shape: [n, m], strides: [t, s], ..*self }
    }

    /// Address, rows, columns and row stride, if it is a matrix whose rows are contiguous and do not overlap.
    pub fn rows(&self) -> Option<(usize, usize, usize, usize)> {
        let [rows, cols] = self.shape;
        if self.dims != 2 || cols == 0 || cols > 1 && self.strides[1] != 1 {
            return None;
        }
        let stride = if rows <= 1 { cols } else { usize::try_from(self.strides[0]).ok()? };
        (stride >= cols).then_some((self.address, rows, cols, stride))
    }
}
