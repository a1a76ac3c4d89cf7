//! Edge functions of FusedMM by name, and those that the library does not have.

use pulp::Simd;
use sparsimd::edge::{self, Edge};
use sparsimd::{Cpu, MatMut, MatRef, Result, SparseOperand};

use crate::array::Element;

/// An edge function f of FusedMM.
#[derive(Clone, Copy)]
pub enum Function {
    Identity,
    Scale,
    Sigmoid,
    Softmax,
    LeakyRelu,
    SoftmaxLeakyRelu,
}

impl Function {
    /// All, by their names.
    const ALL: [(&str, Self); 6] = [
        ("identity", Self::Identity),
        ("scale", Self::Scale),
        ("sigmoid", Self::Sigmoid),
        ("softmax", Self::Softmax),
        ("leaky_relu", Self::LeakyRelu),
        ("softmax_leaky_relu", Self::SoftmaxLeakyRelu),
    ];

    /// The one called `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, function)| function)
    }

    /// All names.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }
}

/// s for s >= 0, slope s below, 0 <= slope <= 1; then, if `NORMALISED`, exp of it divided by the sum over the row.
#[derive(Clone, Copy)]
struct Leaky<T, const NORMALISED: bool> {
    scale: T,
    slope: T,
}

impl<T: Element, const NORMALISED: bool> Edge<T> for Leaky<T, NORMALISED> {
    const SOFTMAX: bool = NORMALISED;

    #[inline(always)]
    fn apply<S: Simd>(self, simd: S, dot: T::Vector<S>, _: T::Vector<S>) -> T::Vector<S> {
        let scaled = T::vmul(simd, T::splat(simd, self.scale), dot);
        T::vmax(simd, scaled, T::vmul(simd, T::splat(simd, self.slope), scaled))
    }
}

/// Edge function, its scale and its slope.
#[derive(Clone, Copy)]
pub struct Parameters {
    pub function: Function,
    pub scale: f64,
    pub slope: f64,
}

/// FusedMM with an edge function chosen at run time.
pub fn fusedmm<T: Element>(
    cpu: &Cpu,
    a: SparseOperand<'_, T>,
    Parameters { function, scale, slope }: Parameters,
    [x, y, z]: [MatRef<'_, T>; 3],
    out: MatMut<'_, T>,
) -> Result<()> {
    let (scale, slope) = (T::from_f64(scale), T::from_f64(slope));
    match function {
        Function::Identity => cpu.fusedmm(a, edge::Identity, x, y, z, out),
        Function::Scale => cpu.fusedmm(a, edge::Scale, x, y, z, out),
        Function::Sigmoid => cpu.fusedmm(a, edge::Sigmoid, x, y, z, out),
        Function::Softmax => cpu.fusedmm(a, edge::Softmax { scale }, x, y, z, out),
        Function::LeakyRelu => cpu.fusedmm(a, Leaky::<T, false> { scale, slope }, x, y, z, out),
        Function::SoftmaxLeakyRelu => cpu.fusedmm(a, Leaky::<T, true> { scale, slope }, x, y, z, out),
    }
}
