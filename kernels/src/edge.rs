//! Edge functions of FusedMM: what a dot product becomes before it weights a row.
//!
//! An edge function works on whole registers of dot products and is compiled into the kernel: no call per nonzero.

use pulp::Simd;

use crate::{Scalar, exp};

/// The weight f(s, a) of an edge, from its dot product s = C_i . B_j and the matrix' value a.
pub trait Edge<T: Scalar>: Copy + Send + Sync {
    /// Whether `a` is used; without it, a pattern without values will do.
    const USES_VALUES: bool = false;
    /// Whether the weights of a row are normalised by softmax: exp(f_ij) / sum over the row of exp(f_ij).
    const SOFTMAX: bool = false;
    /// Which function of this module it is: those share one kernel, which is compiled with this crate.
    #[doc(hidden)]
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = None;

    /// f by lane.
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S>;
}

/// A function of this module, chosen at run time.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum BuiltIn<T> {
    /// [`Identity`].
    Identity,
    /// [`Scale`].
    Scale,
    /// [`Sigmoid`].
    Sigmoid,
    /// [`Softmax`].
    Softmax(Softmax<T>),
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

/// Any function of (s, a), lane by lane: `Map(|s, a| if s > 0.0 { a * s } else { 0.0 })`.
///
/// It is inlined into the kernel and vectorised there where its body allows it.
#[derive(Clone, Copy, Debug)]
pub struct Map<F>(pub F);

impl<T: Scalar> Edge<T> for Identity {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(|_| BuiltIn::Identity);

    #[inline(always)]
    fn apply<S: Simd>(self, _: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        dot
    }
}

impl<T: Scalar> Edge<T> for Scale {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(|_| BuiltIn::Scale);
    const USES_VALUES: bool = true;

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, value, dot)
    }
}

impl<T: Scalar> Edge<T> for Sigmoid {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(|_| BuiltIn::Sigmoid);

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        let one = T::splat(simd, T::ONE);
        let minus = T::vsub(simd, T::splat(simd, T::ZERO), dot);
        T::vdiv(simd, one, T::vadd(simd, one, exp::<T, S>(simd, minus)))
    }
}

impl<T: Scalar> Edge<T> for Softmax<T> {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(BuiltIn::Softmax);
    const SOFTMAX: bool = true;

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, T::splat(simd, self.scale), dot)
    }
}

impl<T: Scalar, F: Fn(T, T) -> T + Copy + Send + Sync> Edge<T> for Map<F> {
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

/// What the kernels ask of an edge function, once for a run of dots.
pub(crate) trait Weights<T: Scalar>: Copy {
    /// w = f(w, values); by whole registers where there is `ROOM`.
    ///
    /// # Safety
    /// `w` and `values`, unless null, hold `len` elements; `w` holds as many as whole registers have, where there is `ROOM`.
    unsafe fn apply<S: Simd, const ROOM: bool>(self, simd: S, w: *mut T, values: *const T, len: usize);
}

impl<T: Scalar> Weights<T> for BuiltIn<T> {
    #[inline(always)]
    unsafe fn apply<S: Simd, const ROOM: bool>(self, simd: S, w: *mut T, values: *const T, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Identity => apply::<S, T, _, ROOM>(simd, Identity, w, values, len),
                Self::Scale => apply::<S, T, _, ROOM>(simd, Scale, w, values, len),
                Self::Sigmoid => apply::<S, T, _, ROOM>(simd, Sigmoid, w, values, len),
                Self::Softmax(edge) => apply::<S, T, _, ROOM>(simd, edge, w, values, len),
            }
        }
    }
}

/// Any other function: its kernel is compiled for it.
#[derive(Clone, Copy)]
pub(crate) struct Custom<F>(pub F);

impl<T: Scalar, F: Edge<T>> Weights<T> for Custom<F> {
    #[inline(always)]
    unsafe fn apply<S: Simd, const ROOM: bool>(self, simd: S, w: *mut T, values: *const T, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { apply::<S, T, F, ROOM>(simd, self.0, w, values, len) }
    }
}

/// [`Weights::apply`] with one edge function.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn apply<S: Simd, T: Scalar, F: Edge<T>, const ROOM: bool>(
    simd: S,
    edge: F,
    w: *mut T,
    values: *const T,
    len: usize,
) {
    for at in (0..len).step_by(T::lanes::<S>()) {
        let mask = T::first_lanes(simd, len - at);
        // SAFETY: the caller's promise.
        unsafe {
            let mut a = T::splat(simd, T::ZERO);
            if F::USES_VALUES && !values.is_null() {
                a = T::load_masked(simd, mask, values.add(at));
            }
            let w = w.add(at);
            if ROOM {
                T::store(simd, w, edge.apply(simd, T::load(simd, w), a));
            } else {
                T::store_masked(simd, mask, w, edge.apply(simd, T::load_masked(simd, mask, w), a));
            }
        }
    }
}
