//! The element types that all peers have, and the types of the functions that exist once for each.

use std::ffi::{c_int, c_void};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// Something of a library for each element type.
#[derive(Clone, Copy, Debug)]
pub struct Both<S, D> {
    pub(crate) single: S,
    pub(crate) double: D,
}

/// `cblas_sgemm` or `cblas_dgemm`.
pub type GemmFn<T> = unsafe extern "C" fn(
    layout: c_int,
    a_is: c_int,
    b_is: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: T,
    a: *const T,
    lda: c_int,
    b: *const T,
    ldb: c_int,
    beta: T,
    c: *mut T,
    ldc: c_int,
);

/// `struct matrix_descr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub(crate) kind: c_int,
    pub(crate) fill: c_int,
    pub(crate) diagonal: c_int,
}

/// MKL's handle of a sparse matrix.
pub(crate) type Handle = *mut c_void;

/// The functions that depend on the element type.
#[derive(Clone, Copy, Debug)]
pub struct SparseFns<T> {
    pub(crate) create: unsafe extern "C" fn(
        handle: *mut Handle,
        base: c_int,
        rows: c_int,
        cols: c_int,
        starts: *const c_int,
        ends: *const c_int,
        columns: *const c_int,
        values: *const T,
    ) -> c_int,
    pub(crate) product: unsafe extern "C" fn(
        operation: c_int,
        alpha: T,
        a: Handle,
        description: Description,
        layout: c_int,
        b: *const T,
        columns: c_int,
        ldb: c_int,
        beta: T,
        c: *mut T,
        ldc: c_int,
    ) -> c_int,
    pub(crate) vector: unsafe extern "C" fn(
        operation: c_int,
        alpha: T,
        a: Handle,
        description: Description,
        b: *const T,
        beta: T,
        c: *mut T,
    ) -> c_int,
}

/// `f32` or `f64`: which of a library's functions to call.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// 1.
    const ONE: Self;
    /// This type's dense product.
    #[doc(hidden)]
    fn gemm_of(gemms: &Both<GemmFn<f32>, GemmFn<f64>>) -> GemmFn<Self>;
    /// This type's sparse functions.
    #[doc(hidden)]
    fn sparse_of(sparse: &Both<SparseFns<f32>, SparseFns<f64>>) -> &SparseFns<Self>;
}

impl Element for f32 {
    const ONE: Self = 1.0;

    fn gemm_of(gemms: &Both<GemmFn<f32>, GemmFn<f64>>) -> GemmFn<Self> {
        gemms.single
    }

    fn sparse_of(sparse: &Both<SparseFns<f32>, SparseFns<f64>>) -> &SparseFns<Self> {
        &sparse.single
    }
}

impl Element for f64 {
    const ONE: Self = 1.0;

    fn gemm_of(gemms: &Both<GemmFn<f32>, GemmFn<f64>>) -> GemmFn<Self> {
        gemms.double
    }

    fn sparse_of(sparse: &Both<SparseFns<f32>, SparseFns<f64>>) -> &SparseFns<Self> {
        &sparse.double
    }
}
