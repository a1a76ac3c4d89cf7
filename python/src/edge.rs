//! Edge functions of FusedMM by name.

use pyo3::PyResult;
use sparsimd::edge::{Identity, LeakyRelu, Scale, Sigmoid, Softmax, SoftmaxLeakyRelu};
use sparsimd::{Cpu, MatMut, MatRef, Result, SparseOperand};

use crate::array::Element;
use crate::error::value;

/// An edge function f of FusedMM, with its parameter.
#[derive(Clone, Copy)]
pub enum Function {
    Identity,
    Scale,
    Sigmoid,
    Softmax { scale: f64 },
    LeakyRelu { slope: f64 },
    SoftmaxLeakyRelu { slope: f64 },
}

impl Function {
    /// The one called `name`.
    pub fn new(name: &str, scale: f64, slope: f64) -> PyResult<Self> {
        let all = [
            ("identity", Self::Identity),
            ("scale", Self::Scale),
            ("sigmoid", Self::Sigmoid),
            ("softmax", Self::Softmax { scale }),
            ("leaky_relu", Self::LeakyRelu { slope }),
            ("softmax_leaky_relu", Self::SoftmaxLeakyRelu { slope }),
        ];
        let Some(&(_, function)) = all.iter().find(|(known, _)| *known == name) else {
            let names = all.map(|(name, _)| name).join(", ");
            return Err(value("edge", format!("{name:?} is none of {names}")));
        };
        if !(0.0..=1.0).contains(&slope) {
            return Err(value("negative_slope", format!("{slope} is not from 0 to 1")));
        }
        if scale != 1.0 && !matches!(function, Self::Softmax { .. }) {
            return Err(value("scale", format!("is for edge=\"softmax\", not for {name:?}")));
        }
        Ok(function)
    }
}

/// FusedMM with an edge function chosen at run time.
pub fn fusedmm<T: Element>(
    cpu: &Cpu,
    a: SparseOperand<'_, T>,
    function: Function,
    [x, y, z]: [MatRef<'_, T>; 3],
    out: MatMut<'_, T>,
) -> Result<()> {
    match function {
        Function::Identity => cpu.fusedmm(a, Identity, x, y, z, out),
        Function::Scale => cpu.fusedmm(a, Scale, x, y, z, out),
        Function::Sigmoid => cpu.fusedmm(a, Sigmoid, x, y, z, out),
        Function::Softmax { scale } => cpu.fusedmm(a, Softmax { scale: T::from_f64(scale) }, x, y, z, out),
        Function::LeakyRelu { slope } => cpu.fusedmm(a, LeakyRelu { slope: T::from_f64(slope) }, x, y, z, out),
        Function::SoftmaxLeakyRelu { slope } => {
            cpu.fusedmm(a, SoftmaxLeakyRelu { slope: T::from_f64(slope) }, x, y, z, out)
        }
    }
}
