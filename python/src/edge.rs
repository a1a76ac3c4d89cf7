//! Edge functions of FusedMM by name.

use pyo3::PyResult;
use sparsimd::edge::{BuiltIn, Identity, LeakyRelu, Scale, Sigmoid, Softmax, SoftmaxLeakyRelu};

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

impl Function {
    /// Whether it takes the values of the matrix.
    pub fn uses_values(self) -> bool {
        matches!(self, Self::Scale)
    }

    /// Whether the weights of a row are normalised.
    pub fn is_softmax(self) -> bool {
        matches!(self, Self::Softmax { .. } | Self::SoftmaxLeakyRelu { .. })
    }

    /// The library's.
    pub fn built_in<T: Element>(self) -> BuiltIn<T> {
        match self {
            Self::Identity => Identity.into(),
            Self::Scale => Scale.into(),
            Self::Sigmoid => Sigmoid.into(),
            Self::Softmax { scale } => Softmax { scale: T::from_f64(scale) }.into(),
            Self::LeakyRelu { slope } => LeakyRelu { slope: T::from_f64(slope) }.into(),
            Self::SoftmaxLeakyRelu { slope } => SoftmaxLeakyRelu { slope: T::from_f64(slope) }.into(),
        }
    }
}
