//! Semirings: what stands for addition and multiplication in C = A B.
//!
//! ```text
//! C_ik = sum over j of a_ij b_jk      becomes      C_ik = add over j of multiply(a_ij, b_jk)
//! ```
//!
//! Shortest paths are products over (min, +), reachability over (or, and), widest paths over (max, min), counts of paths over
//! (+, x) on integers (Kepner and Gilbert 2011, *Graph Algorithms in the Language of Linear Algebra*).
//!
//! # NaN and infinity
//!
//! In minima and maxima a NaN wins: the result is NaN if any operand is (IEEE 754-2019's minimum and maximum, and PyTorch's rule).
//! Infinities are numbers like others, so that 0 times infinity, or infinity minus infinity, is a NaN and wins, too. Which of -0
//! and +0 is the larger is not determined. For `Or` and `And` zeros and NaN are false, all other numbers true, and results 0 or 1.
//! Integers wrap around in sums and products.

use pulp::Simd;

use crate::Number;

/// An addition with a neutral element, and a multiplication.
///
/// It works on whole registers and is compiled into the kernel: no call for each nonzero. The addition must be associative and
/// commutative: the kernels add in an order of their own, which the operand, the plan and the number of threads determine.
///
/// ```
/// use pulp::Simd;
/// use sparsimd_kernels::{Number, semiring::Semiring};
///
/// /// The largest difference |a - b|: Chebyshev's distance where all columns are stored.
/// #[derive(Clone, Copy)]
/// struct Chebyshev;
///
/// impl<T: Number> Semiring<T> for Chebyshev {
///     fn zero(self) -> T {
///         T::ZERO
///     }
///     #[inline(always)]
///     fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
///         T::vmaximum(simd, term, sum)
///     }
///     #[inline(always)]
///     fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
///         T::vmaximum(simd, T::vsub(simd, a, b), T::vsub(simd, b, a))
///     }
/// }
/// ```
pub trait Semiring<T: Number>: Copy + Send + Sync {
    /// How it becomes a [`BuiltIn`]: those share one kernel, which is compiled with this crate.
    #[doc(hidden)]
    const BUILT_IN: Option<fn(Self) -> BuiltIn> = None;

    /// Whether an addition takes several cycles, so that a sum is kept in parts where there are registers for them.
    #[doc(hidden)]
    const LATENT: bool = false;

    /// The neutral element of the addition: the sum of no terms.
    fn zero(self) -> T;

    /// `term + sum` by lane. Mark it `#[inline(always)]`.
    fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S>;

    /// `a b` by lane, a the sparse matrix' value. Mark it `#[inline(always)]`.
    fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S>;

    /// Whether `a` is used; without it, a pattern without values will do.
    fn uses_values(self) -> bool {
        true
    }

    /// sum_j = a b_j + sum_j for all registers of a row's tile.
    #[doc(hidden)]
    #[inline(always)]
    fn accumulate<S: Simd, const NV: usize>(
        self,
        simd: S,
        sum: &mut [T::Vector<S>; NV],
        a: T::Vector<S>,
        b: &[T::Vector<S>; NV],
    ) {
        for j in 0..NV {
            sum[j] = self.add(simd, self.multiply(simd, a, b[j]), sum[j]);
        }
    }
}

/// An addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addition {
    /// a + b; neutral: 0.
    Plus,
    /// The smaller; neutral: infinity, or the largest integer.
    Min,
    /// The larger; neutral: minus infinity, or the least integer.
    Max,
    /// 1 where one of them is true, else 0; neutral: 0.
    Or,
}

/// A multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Multiplication {
    /// a b.
    Times,
    /// a + b.
    Plus,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// 1 where both are true, else 0.
    And,
    /// b: A counts as a pattern, and needs no values.
    Second,
}

/// A semiring of this module: any of the additions with any of the multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// The addition.
    pub add: Addition,
    /// The multiplication.
    pub multiply: Multiplication,
}

macro_rules! ready_made {
    ($($name:ident $text:literal $add:ident $multiply:ident $what:literal;)+) => {
        $(
            #[doc = $what]
            pub const $name: BuiltIn = BuiltIn { add: Addition::$add, multiply: Multiplication::$multiply };
        )+

        impl BuiltIn {
            /// Those that have a name.
            pub const NAMED: &'static [(&'static str, Self)] = &[$(($text, $name)),+];
        }
    };
}

ready_made! {
    PLUS_TIMES "plus-times" Plus Times "(+, x): the ordinary product; on integers, counts of paths.";
    OR_AND "or-and" Or And "(or, and): reachability.";
    MIN_PLUS "min-plus" Min Plus "(min, +): shortest paths.";
    MAX_PLUS "max-plus" Max Plus "(max, +): longest, or critical, paths.";
    MAX_TIMES "max-times" Max Times "(max, x): most probable paths.";
    MIN_TIMES "min-times" Min Times "(min, x).";
    PLUS_MIN "plus-min" Plus Min "(+, min): sizes of intersections of weighted sets.";
    MAX_MIN "max-min" Max Min "(max, min): widest paths.";
    MIN_MAX "min-max" Min Max "(min, max): paths whose worst edge is best.";
    PLUS_SECOND "plus-second" Plus Second "(+, b): sums over neighbours.";
    MAX_SECOND "max-second" Max Second "(max, b): the largest of the neighbours.";
    MIN_SECOND "min-second" Min Second "(min, b): the smallest of the neighbours.";
}

impl BuiltIn {
    /// The ready-made one called `name`, such as `min-plus`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(text, _)| *text == name).map(|&(_, semiring)| semiring)
    }
}

/// 1 where `x` is true, else 0.
#[inline(always)]
fn truth<S: Simd, T: Number>(simd: S, x: T::Vector<S>) -> T::Vector<S> {
    let (zero, one) = (T::splat(simd, T::ZERO), T::splat(simd, T::ONE));
    T::vselect_greater(simd, x, zero, one, T::vselect_greater(simd, zero, x, one, zero))
}

impl<T: Number> Semiring<T> for BuiltIn {
    const BUILT_IN: Option<fn(Self) -> BuiltIn> = Some(|semiring| semiring);

    #[inline(always)]
    fn zero(self) -> T {
        match self.add {
            Addition::Plus | Addition::Or => T::ZERO,
            Addition::Min => T::HIGHEST,
            Addition::Max => T::LOWEST,
        }
    }

    #[inline(always)]
    fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
        match self.add {
            Addition::Plus => T::vadd(simd, term, sum),
            Addition::Min => T::vminimum(simd, term, sum),
            Addition::Max => T::vmaximum(simd, term, sum),
            Addition::Or => T::vmaximum(simd, truth::<S, T>(simd, term), sum),
        }
    }

    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
        match self.multiply {
            Multiplication::Times => T::vmul(simd, a, b),
            Multiplication::Plus => T::vadd(simd, a, b),
            Multiplication::Min => T::vminimum(simd, a, b),
            Multiplication::Max => T::vmaximum(simd, a, b),
            Multiplication::And => T::vmul(simd, truth::<S, T>(simd, a), truth::<S, T>(simd, b)),
            Multiplication::Second => b,
        }
    }

    fn uses_values(self) -> bool {
        self.multiply != Multiplication::Second
    }

    /// Decided once for a row's tile, not for each register: a branch that is foreseen, beside as many loads.
    #[inline(always)]
    fn accumulate<S: Simd, const NV: usize>(
        self,
        simd: S,
        sum: &mut [T::Vector<S>; NV],
        a: T::Vector<S>,
        b: &[T::Vector<S>; NV],
    ) {
        let mut terms = *b;
        match self.multiply {
            Multiplication::Times if self.add == Addition::Plus => {
                for j in 0..NV {
                    sum[j] = T::vmul_add(simd, a, b[j], sum[j]);
                }
                return;
            }
            Multiplication::Times => {
                for j in 0..NV {
                    terms[j] = T::vmul(simd, a, b[j]);
                }
            }
            Multiplication::Plus => {
                for j in 0..NV {
                    terms[j] = T::vadd(simd, a, b[j]);
                }
            }
            Multiplication::Second => {}
            Multiplication::Min | Multiplication::Max | Multiplication::And => {
                for j in 0..NV {
                    terms[j] = Semiring::<T>::multiply(self, simd, a, b[j]);
                }
            }
        }
        match self.add {
            Addition::Plus => {
                for j in 0..NV {
                    sum[j] = T::vadd(simd, terms[j], sum[j]);
                }
            }
            Addition::Max => {
                for j in 0..NV {
                    sum[j] = T::vmaximum(simd, terms[j], sum[j]);
                }
            }
            Addition::Min => {
                for j in 0..NV {
                    sum[j] = T::vminimum(simd, terms[j], sum[j]);
                }
            }
            Addition::Or => {
                for j in 0..NV {
                    sum[j] = Semiring::<T>::add(self, simd, terms[j], sum[j]);
                }
            }
        }
    }
}

/// Plus-times as a type: SpMM's.
#[derive(Clone, Copy)]
pub(crate) struct PlusTimes;

impl<T: Number> Semiring<T> for PlusTimes {
    const LATENT: bool = true;

    #[inline(always)]
    fn zero(self) -> T {
        T::ZERO
    }
    #[inline(always)]
    fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
        T::vadd(simd, term, sum)
    }
    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, a, b)
    }
    #[inline(always)]
    fn accumulate<S: Simd, const NV: usize>(
        self,
        simd: S,
        sum: &mut [T::Vector<S>; NV],
        a: T::Vector<S>,
        b: &[T::Vector<S>; NV],
    ) {
        for j in 0..NV {
            sum[j] = T::vmul_add(simd, a, b[j], sum[j]);
        }
    }
}

/// Max-times, or min-times, as a type, for kernels that are compiled for it alone. With `FINITE`, operands are finite: no product is NaN,
/// and none is looked for among the terms, half of whose instructions that would be; a sum that is NaN stays so.
#[derive(Clone, Copy)]
pub(crate) struct Extreme<const LARGEST: bool, const FINITE: bool>;

impl<T: Number, const LARGEST: bool, const FINITE: bool> Semiring<T> for Extreme<LARGEST, FINITE> {
    fn zero(self) -> T {
        if LARGEST { T::LOWEST } else { T::HIGHEST }
    }
    #[inline(always)]
    fn add<S: Simd>(self, simd: S, term: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
        match (LARGEST, FINITE) {
            (true, false) => T::vmaximum(simd, term, sum),
            (true, true) => T::vlarger(simd, term, sum),
            (false, false) => T::vminimum(simd, term, sum),
            (false, true) => T::vsmaller(simd, term, sum),
        }
    }
    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S, a: T::Vector<S>, b: T::Vector<S>) -> T::Vector<S> {
        T::vmul(simd, a, b)
    }
}
