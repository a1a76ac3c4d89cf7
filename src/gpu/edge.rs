//! Edge functions that have kernels.

use sparsimd_gpu_abi::edge;
use sparsimd_kernels::Scalar;

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

impl<T: Scalar> EdgeKind<T> {
    /// The value of the specialisation constant.
    pub(super) fn variant(self) -> u32 {
        match self {
            Self::Identity => edge::IDENTITY,
            Self::Scale => edge::SCALE,
            Self::Sigmoid => edge::SIGMOID,
            Self::Softmax { .. } => edge::SOFTMAX,
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
