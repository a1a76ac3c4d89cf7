//! Edge functions of FusedMM: what a dot product becomes before it weights a row.
//!
//! An edge function works on whole registers of dot products. Those of this module are compiled into the kernels; another is called for a
//! run of dots, not for each.

use pulp::Simd;

use crate::{Scalar, exp};

/// The weight f(s, a) of an edge, from its dot product s = C_i . B_j and the matrix' value a.
pub trait Edge<T: Scalar>: Copy + Send + Sync {
    /// Which function of this module it is: those have their code in the kernels, and some have gradients.
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = None;

    /// Whether `a` is used; without it, a pattern without values will do.
    fn uses_values(self) -> bool {
        false
    }

    /// Whether the weights of a row are normalised by softmax: exp(f_ij) / sum over the row of exp(f_ij).
    fn is_softmax(self) -> bool {
        false
    }

    /// f by lane.
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S>;
}

/// A function of this module, chosen at run time: those have gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum BuiltIn<T> {
    /// [`Identity`].
    Identity,
    /// [`Scale`].
    Scale,
    /// [`Sigmoid`].
    Sigmoid,
    /// [`Softmax`].
    Softmax(Softmax<T>),
    /// [`LeakyRelu`].
    LeakyRelu(LeakyRelu<T>),
    /// [`SoftmaxLeakyRelu`].
    SoftmaxLeakyRelu(SoftmaxLeakyRelu<T>),
    /// [`Ratio`], which has no gradient here.
    Ratio(Ratio<T>),
}

/// f = s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Identity;

/// f = a s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale;

/// f = 1 / (1 + e^-s).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sigmoid;

/// exp(c s) / sum over the row of exp(c s), c the given factor: sparse attention. Empty rows give zeros.
///
/// Computed online, with a running maximum (Milakov and Gimelshein 2018), so that nothing overflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax<T> {
    /// c, usually 1 / sqrt(N).
    pub scale: T,
}

/// f = s for s > 0, else c s, c the slope, from 0 to 1: max(s, c s).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyRelu<T> {
    /// c. Outside 0 to 1 f is still max(s, c s), and gradients are those of the line above.
    pub slope: T,
}

/// exp(g(s)) / sum over the row of exp(g(s)), g the [`LeakyRelu`] of this slope: graph attention (Velickovic et al. 2018), where s is
/// a_i + b_j, the product of the rows (a_i, 1) and (1, b_j).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxLeakyRelu<T> {
    /// The slope of g.
    pub slope: T,
}

macro_rules! into_built_in {
    ($($name:ident)*; $($with:ident)*) => {
        $(impl<T> From<$name> for BuiltIn<T> {
            fn from(_: $name) -> Self {
                Self::$name
            }
        })*
        $(impl<T> From<$with<T>> for BuiltIn<T> {
            fn from(edge: $with<T>) -> Self {
                Self::$with(edge)
            }
        })*
    };
}
into_built_in!(Identity Scale Sigmoid; Softmax LeakyRelu SoftmaxLeakyRelu);

/// f = a / max(s, floor): a value by what a model says of it, as in Poisson regression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio<T> {
    /// What s is taken for at least: above 0.
    pub floor: T,
}

/// Any function of (s, a), lane by lane: `Map(|s, a| if s > 0.0 { a * s } else { 0.0 })`.
///
/// It is compiled for each instruction set, and vectorised where its body allows it.
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

    #[inline(always)]
    fn uses_values(self) -> bool {
        true
    }

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

    #[inline(always)]
    fn is_softmax(self) -> bool {
        true
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, T::splat(simd, self.scale), dot)
    }
}

impl<T: Scalar> Edge<T> for LeakyRelu<T> {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(BuiltIn::LeakyRelu);

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        T::vmax(simd, dot, T::vmul(simd, T::splat(simd, self.slope), dot))
    }
}

impl<T: Scalar> Edge<T> for SoftmaxLeakyRelu<T> {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(BuiltIn::SoftmaxLeakyRelu);

    #[inline(always)]
    fn is_softmax(self) -> bool {
        true
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        LeakyRelu { slope: self.slope }.apply(simd, dot, value)
    }
}

impl<T: Scalar> Edge<T> for Ratio<T> {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(BuiltIn::Ratio);

    #[inline(always)]
    fn uses_values(self) -> bool {
        true
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        T::vdiv(simd, value, T::vmax(simd, dot, T::splat(simd, self.floor)))
    }
}

impl<T: Scalar> Edge<T> for BuiltIn<T> {
    const BUILT_IN: Option<fn(Self) -> BuiltIn<T>> = Some(|edge| edge);

    #[inline(always)]
    fn uses_values(self) -> bool {
        matches!(self, Self::Scale | Self::Ratio(_))
    }

    #[inline(always)]
    fn is_softmax(self) -> bool {
        matches!(self, Self::Softmax(_) | Self::SoftmaxLeakyRelu(_))
    }

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, value: T::Vector<S>) -> T::Vector<S> {
        match self {
            Self::Identity => Edge::<T>::apply(Identity, simd, dot, value),
            Self::Scale => Edge::<T>::apply(Scale, simd, dot, value),
            Self::Sigmoid => Edge::<T>::apply(Sigmoid, simd, dot, value),
            Self::Softmax(edge) => edge.apply(simd, dot, value),
            Self::LeakyRelu(edge) => edge.apply(simd, dot, value),
            Self::SoftmaxLeakyRelu(edge) => edge.apply(simd, dot, value),
            Self::Ratio(edge) => edge.apply(simd, dot, value),
        }
    }
}

impl<T: Scalar, F: Fn(T, T) -> T + Copy + Send + Sync> Edge<T> for Map<F> {
    #[inline(always)]
    fn uses_values(self) -> bool {
        true
    }

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
