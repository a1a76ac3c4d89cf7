//! Edge functions of FusedMM: what a dot product becomes before it weights a row.
//!
//! An edge function works on whole registers of dot products and is compiled into the kernel: no call per nonzero.

use pulp::Simd;

use crate::arch::dispatch_compiled;
use crate::fusedmm::{self, EdgeCell, FusedRows};
use crate::{Arch, Scalar, exp};

/// The weight f(s, a) of an edge, from its dot product s = C_i . B_j and the matrix' value a.
pub trait Edge<T: Scalar>: Copy + Send + Sync {
    /// Whether `a` is used; without it, a pattern without values will do.
    const USES_VALUES: bool = false;
    /// Whether the weights of a row are normalised by softmax: exp(f_ij) / sum over the row of exp(f_ij).
    const SOFTMAX: bool = false;

    /// f by lane.
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S>;

    /// Runs rows of the direct path. The functions of this module have it compiled with this crate.
    ///
    /// # Safety
    /// As [`fused_rows`](crate::fused_rows).
    #[doc(hidden)]
    unsafe fn run_rows(arch: Arch, task: FusedRows<T, Self>) {
        arch.dispatch(fusedmm::Rows(task));
    }

    /// Runs a cell of the panel path, likewise.
    ///
    /// # Safety
    /// As [`edge_cell`](crate::edge_cell).
    #[doc(hidden)]
    unsafe fn run_cell(arch: Arch, task: EdgeCell<'_, T, Self>) {
        arch.dispatch(fusedmm::EdgeTask(task));
    }
}

/// The two runs of an edge function whose types for f32 and f64 are given, compiled with this crate.
macro_rules! compiled {
    ($f32:ty, $f64:ty) => {
        unsafe fn run_rows(arch: Arch, task: FusedRows<T, Self>) {
            dispatch_compiled!(arch, fusedmm::Rows(task), fusedmm::Rows<f32, $f32>, fusedmm::Rows<f64, $f64>);
        }

        unsafe fn run_cell(arch: Arch, task: EdgeCell<'_, T, Self>) {
            let task = fusedmm::EdgeTask(task);
            dispatch_compiled!(arch, task, fusedmm::EdgeTask<'_, f32, $f32>, fusedmm::EdgeTask<'_, f64, $f64>);
        }
    };
}

/// f = s.
#[derive(Clone, Copy, Debug)]
pub struct Identity;

/// f = a s.
#[derive(Clone, Copy, Debug)]
pub struct Scale;

/// f = 1 / (1 + e^-s).
#[derive(Clone, Copy, Debug)]
pub struct Sigmoid;

/// exp(c s) / sum over the row of exp(c s), c the given factor: sparse attention. Empty rows give zeros.
///
/// Computed online, with a running maximum (Milakov and Gimelshein 2018), so that nothing overflows.
#[derive(Clone, Copy, Debug)]
pub struct Softmax<T> {
    /// c, usually 1 / sqrt(N).
    pub scale: T,
}

/// Any function of (s, a), lane by lane: `Each(|s, a| if s > 0.0 { a * s } else { 0.0 })`.
///
/// It is inlined into the kernel and vectorised there where its body allows it.
#[derive(Clone, Copy, Debug)]
pub struct Each<F>(pub F);

impl<T: Scalar> Edge<T> for Identity {
    compiled!(Identity, Identity);

    #[inline(always)]
    fn apply<S: Simd>(self, _: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        dot
    }
}

impl<T: Scalar> Edge<T> for Scale {
    compiled!(Scale, Scale);

    const USES_VALUES: bool = true;

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, value, dot)
    }
}

impl<T: Scalar> Edge<T> for Sigmoid {
    compiled!(Sigmoid, Sigmoid);

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        let one = T::splat(simd, T::ONE);
        let minus = T::vsub(simd, T::splat(simd, T::ZERO), dot);
        T::vdiv(simd, one, T::vadd(simd, one, exp::<T, S>(simd, minus)))
    }
}

impl<T: Scalar> Edge<T> for Softmax<T> {
    compiled!(Softmax<f32>, Softmax<f64>);

    const SOFTMAX: bool = true;

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, T::splat(simd, self.scale), dot)
    }
}

impl<T: Scalar, F: Fn(T, T) -> T + Copy + Send + Sync> Edge<T> for Each<F> {
    const USES_VALUES: bool = true;

    #[inline(always)]
    fn apply<S: Simd>(self, _: S, mut dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        let s = (&raw mut dot).cast::<T>();
        let a = (&raw const value).cast::<T>();
        for lane in 0..T::lanes::<S>() {
            // SAFETY: a vector is `lanes` elements.
            unsafe { *s.add(lane) = (self.0)(*s.add(lane), *a.add(lane)) }
        }
        dot
    }
}
