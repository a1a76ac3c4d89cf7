//! Edge functions as the kernels of FusedMM take them: once for a run of dots.

use pulp::{Simd, WithSimd};

use crate::edge::{BuiltIn, Edge, Scale, Sigmoid};
use crate::exp::exp_inside;
use crate::{Arch, Scalar};

/// An edge function, whatever its type: the kernels are compiled once, with this crate.
#[derive(Clone, Copy)]
pub enum EdgeFunction<'a, T> {
    /// One of the module [`edge`](crate::edge).
    BuiltIn(BuiltIn<T>),
    /// Any other.
    Other(&'a dyn Weights<T>),
}

impl<'a, T: Scalar> EdgeFunction<'a, T> {
    /// That of an edge function.
    pub fn of<F: Edge<T>>(edge: &'a F) -> Self {
        if let Some(built_in) = const { F::BUILT_IN } {
            return Self::BuiltIn(built_in(*edge));
        }
        if const { F::BUILT_IN.is_some() } {
            unreachable!("returned above; what follows is not compiled for functions that the kernels have");
        }
        Self::Other(edge)
    }

    /// [`Edge::uses_values`].
    pub fn uses_values(self) -> bool {
        match self {
            Self::BuiltIn(edge) => edge.uses_values(),
            Self::Other(edge) => edge.uses_values(),
        }
    }

    /// [`Edge::is_softmax`].
    pub fn is_softmax(self) -> bool {
        match self {
            Self::BuiltIn(edge) => edge.is_softmax(),
            Self::Other(edge) => edge.is_softmax(),
        }
    }

    /// [`Weights::apply`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn apply<S: Simd>(
        self,
        (arch, simd): (Arch, S),
        room: bool,
        dots: *const T,
        w: *mut T,
        values: *const T,
        len: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                // The dots are the weights.
                Self::BuiltIn(BuiltIn::Identity) if std::ptr::eq(dots, w) => (),
                Self::BuiltIn(BuiltIn::Identity) => dots.copy_to(w, len),
                Self::BuiltIn(BuiltIn::Scale) => apply::<S, T, _>(simd, room, Scale, dots, w, values, len),
                Self::BuiltIn(BuiltIn::Sigmoid) => apply::<S, T, _>(simd, room, Sigmoid, dots, w, values, len),
                Self::BuiltIn(BuiltIn::Softmax(edge)) => apply::<S, T, _>(simd, room, edge, dots, w, values, len),
                Self::BuiltIn(BuiltIn::LeakyRelu(edge)) => apply::<S, T, _>(simd, room, edge, dots, w, values, len),
                Self::BuiltIn(BuiltIn::SoftmaxLeakyRelu(edge)) => {
                    apply::<S, T, _>(simd, room, edge, dots, w, values, len);
                }
                Self::BuiltIn(BuiltIn::Ratio(edge)) => apply::<S, T, _>(simd, room, edge, dots, w, values, len),
                Self::Other(edge) => edge.apply(arch, room, dots, w, values, len),
            }
        }
    }

    /// [`Weights::exponentials`], 0 for a function without softmax.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn exponentials<S: Simd>(
        self,
        (arch, simd): (Arch, S),
        dots: *const T,
        x: *mut T,
        values: *const T,
        len: usize,
    ) -> T {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::BuiltIn(BuiltIn::Softmax(edge)) => exponentials::<S, T, _>(simd, edge, dots, x, values, len),
                Self::BuiltIn(BuiltIn::SoftmaxLeakyRelu(edge)) => {
                    exponentials::<S, T, _>(simd, edge, dots, x, values, len)
                }
                Self::BuiltIn(_) => T::ZERO,
                Self::Other(edge) => edge.exponentials(arch, dots, x, values, len),
            }
        }
    }
}

/// An edge function as an object.
pub trait Weights<T: Scalar>: Sync {
    /// [`Edge::uses_values`].
    fn uses_values(&self) -> bool;

    /// [`Edge::is_softmax`].
    fn is_softmax(&self) -> bool;

    /// w = f(dots, values), `w` may be the dots; by whole registers where there is `room`.
    ///
    /// # Safety
    /// `dots`, `w` and `values`, unless null, hold `len` elements; `dots` and `w` as many as whole registers have, where there is `room`.
    unsafe fn apply(&self, arch: Arch, room: bool, dots: *const T, w: *mut T, values: *const T, len: usize);

    /// x = e^z, z = f(dots, values), by whole registers, where no z is far from 0; the largest square of those z that are numbers.
    ///
    /// # Safety
    /// `dots` and `values`, unless null, hold `len` elements, `x` as many as whole registers have.
    unsafe fn exponentials(&self, arch: Arch, dots: *const T, x: *mut T, values: *const T, len: usize) -> T;
}

impl<T: Scalar, F: Edge<T>> Weights<T> for F {
    fn uses_values(&self) -> bool {
        Edge::uses_values(*self)
    }

    fn is_softmax(&self) -> bool {
        Edge::is_softmax(*self)
    }

    unsafe fn apply(&self, arch: Arch, room: bool, dots: *const T, w: *mut T, values: *const T, len: usize) {
        arch.dispatch(Run::<T, F, false> { edge: *self, room, dots, w, values, len });
    }

    unsafe fn exponentials(&self, arch: Arch, dots: *const T, x: *mut T, values: *const T, len: usize) -> T {
        arch.dispatch(Run::<T, F, true> { edge: *self, room: true, dots, w: x, values, len })
    }
}

/// A run of dots as pulp takes it; what becomes of them are exponentials, or the weights.
struct Run<T, F, const EXPONENTIALS: bool> {
    edge: F,
    room: bool,
    dots: *const T,
    w: *mut T,
    values: *const T,
    len: usize,
}

impl<T: Scalar, F: Edge<T>, const EXPONENTIALS: bool> WithSimd for Run<T, F, EXPONENTIALS> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> T {
        let Self { edge, room, dots, w, values, len } = self;
        // SAFETY: the promise of `Weights::apply`, or of `Weights::exponentials`, of which there is one of these.
        unsafe {
            if EXPONENTIALS {
                return exponentials::<S, T, F>(simd, edge, dots, w, values, len);
            }
            apply::<S, T, F>(simd, room, edge, dots, w, values, len);
            T::ZERO
        }
    }
}

/// [`Weights::apply`] with one edge function.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn apply<S: Simd, T: Scalar, F: Edge<T>>(
    simd: S,
    room: bool,
    edge: F,
    dots: *const T,
    w: *mut T,
    values: *const T,
    len: usize,
) {
    for at in (0..len).step_by(T::lanes::<S>()) {
        let mask = T::first_lanes(simd, len - at);
        // SAFETY: the caller's promise.
        unsafe {
            let mut a = T::splat(simd, T::ZERO);
            if edge.uses_values() && !values.is_null() {
                a = T::load_masked(simd, mask, values.add(at));
            }
            let (dots, w) = (dots.add(at), w.add(at));
            // What is stored under a mask, of all lanes, too, cannot be forwarded to loads that follow at once.
            if room || at + T::lanes::<S>() <= len {
                T::store(simd, w, edge.apply(simd, T::load(simd, dots), a));
            } else {
                T::store_masked(simd, mask, w, edge.apply(simd, T::load_masked(simd, mask, dots), a));
            }
        }
    }
}

/// [`Weights::exponentials`] with one edge function.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn exponentials<S: Simd, T: Scalar, F: Edge<T>>(
    simd: S,
    edge: F,
    dots: *const T,
    x: *mut T,
    values: *const T,
    len: usize,
) -> T {
    let (lanes, zero) = (T::lanes::<S>(), T::splat(simd, T::ZERO));
    let whole = len / lanes * lanes;
    let uses_values = edge.uses_values() && !values.is_null();
    let mut largest = zero;
    // SAFETY: the caller's promise; what lies beyond the last whole register is masked.
    unsafe {
        for at in (0..whole).step_by(lanes) {
            let a = if uses_values { T::load(simd, values.add(at)) } else { zero };
            let z = edge.apply(simd, T::load(simd, dots.add(at)), a);
            largest = T::vlarger(simd, T::vmul(simd, z, z), largest);
            T::store(simd, x.add(at), exp_inside::<T, S>(simd, z));
        }
        if whole < len {
            let mask = T::first_lanes(simd, len - whole);
            let a = if uses_values { T::load_masked(simd, mask, values.add(whole)) } else { zero };
            let z = edge.apply(simd, T::load_masked(simd, mask, dots.add(whole)), a);
            largest = T::vlarger(simd, T::vmul(simd, z, z), largest);
            T::store(simd, x.add(whole), exp_inside::<T, S>(simd, z));
        }
    }
    T::reduce_max(simd, largest)
}
