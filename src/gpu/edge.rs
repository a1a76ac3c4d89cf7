//! Edge functions that have kernels.

use sparsimd_gpu_abi::edge as variant;
use sparsimd_kernels::Scalar;
use sparsimd_kernels::edge::{BuiltIn, Identity, Scale, Sigmoid, Softmax};

/// One of the edge functions that are compiled into the kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EdgeKind<T> {
    /// f = s.
    Identity,
    /// f = a s.
    Scale,
    /// f = 1 / (1 + e^-s).
    Sigmoid,
    /// f = exp(c s) / sum over the row of exp(c s).
    Softmax {
        /// c.
        scale: T,
    },
}

impl<T> From<EdgeKind<T>> for BuiltIn<T> {
    fn from(edge: EdgeKind<T>) -> Self {
        match edge {
            EdgeKind::Identity => Self::Identity,
            EdgeKind::Scale => Self::Scale,
            EdgeKind::Sigmoid => Self::Sigmoid,
            EdgeKind::Softmax { scale } => Self::Softmax(Softmax { scale }),
        }
    }
}

/// An edge function with a kernel. Functions of one's own run on the CPU only.
pub trait DeviceEdge<T> {
    /// Which one.
    fn kind(&self) -> EdgeKind<T>;
}

impl<T: Copy> DeviceEdge<T> for EdgeKind<T> {
    fn kind(&self) -> EdgeKind<T> {
        *self
    }
}

impl<T> DeviceEdge<T> for Identity {
    fn kind(&self) -> EdgeKind<T> {
        EdgeKind::Identity
    }
}

impl<T> DeviceEdge<T> for Scale {
    fn kind(&self) -> EdgeKind<T> {
        EdgeKind::Scale
    }
}

impl<T> DeviceEdge<T> for Sigmoid {
    fn kind(&self) -> EdgeKind<T> {
        EdgeKind::Sigmoid
    }
}

impl<T: Copy> DeviceEdge<T> for Softmax<T> {
    fn kind(&self) -> EdgeKind<T> {
        EdgeKind::Softmax { scale: self.scale }
    }
}

impl<T: Scalar> EdgeKind<T> {
    /// The kind of a function that is chosen at run time; `None` if devices do not have it.
    pub fn of(edge: BuiltIn<T>) -> Option<Self> {
        Some(match edge {
            BuiltIn::Identity => Self::Identity,
            BuiltIn::Scale => Self::Scale,
            BuiltIn::Sigmoid => Self::Sigmoid,
            BuiltIn::Softmax(Softmax { scale }) => Self::Softmax { scale },
            _ => return None,
        })
    }

    /// The value of the specialisation constant.
    pub(super) fn variant(self) -> u32 {
        match self {
            Self::Identity => variant::IDENTITY,
            Self::Scale => variant::SCALE,
            Self::Sigmoid => variant::SIGMOID,
            Self::Softmax { .. } => variant::SOFTMAX,
        }
    }

    /// The factor of softmax's scores.
    pub(super) fn scale(self) -> T {
        match self {
            Self::Softmax { scale } => scale,
            _ => T::ONE,
        }
    }
}
