//! The element types that all peers have.

use crate::blas::{Blas, GemmFn};
use crate::mkl::{Mkl, SparseFns};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64`: which of a library's functions to call.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// 1.
    const ONE: Self;
    /// The dense product of `blas`.
    #[doc(hidden)]
    fn gemm_of(blas: &Blas) -> GemmFn<Self>;
    /// The sparse functions of `mkl`.
    #[doc(hidden)]
    fn sparse_of(mkl: &Mkl) -> &SparseFns<Self>;
}

impl Element for f32 {
    const ONE: Self = 1.0;

    fn gemm_of(blas: &Blas) -> GemmFn<Self> {
        blas.single
    }

    fn sparse_of(mkl: &Mkl) -> &SparseFns<Self> {
        &mkl.single
    }
}

impl Element for f64 {
    const ONE: Self = 1.0;

    fn gemm_of(blas: &Blas) -> GemmFn<Self> {
        blas.double
    }

    fn sparse_of(mkl: &Mkl) -> &SparseFns<Self> {
        &mkl.double
    }
}
