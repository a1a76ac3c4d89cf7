//! Other libraries' matrix products, for benchmarks to compare with.
//!
//! Intel MKL and OpenBLAS are opened while the program runs, where they are found ([`find`]); nothing is linked, and what
//! is absent is an [`Error`] that says so. With the feature `rust`, the crates sprs, faer and gemm stand beside them.
//! Operands are slices: nothing here knows of sparsimd. Results are not checked; the caller does that before it times.

mod blas;
mod element;
mod error;
pub mod find;
mod library;
mod mkl;
#[cfg(feature = "rust")]
pub mod rust;

pub use blas::{Blas, Gemm};
pub use element::Element;
pub use error::{Error, Result};
pub use mkl::{Mkl, MklCsr};

/// The program in Python that times GenTen's CP-ALS on tensors that it is sent.
pub const GENTEN_SCRIPT: &str = include_str!("../genten.py");

/// The program in Python that times MTTKRP of pyttb or tensorly on tensors that it is sent.
pub const MTTKRP_SCRIPT: &str = include_str!("../mttkrp.py");

/// The program in Python that times cuSPARSE, through PyTorch, on matrices that it is sent.
pub const TORCH_SCRIPT: &str = include_str!("../torch_gpu.py");

/// Settings of the environment that a peer reads once, when it is loaded, and that change its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: &'static str,
}

/// Threads of both peers stop spinning soon after a product, so that they do not run into what is timed next: after 1 ms
/// (MKL, by Intel's OpenMP) and 2^20 ticks of the time-stamp counter, about half a millisecond (OpenBLAS).
pub const QUIET: [Setting; 2] =
    [Setting { name: "KMP_BLOCKTIME", value: "1" }, Setting { name: "OPENBLAS_THREAD_TIMEOUT", value: "20" }];

/// A library that is opened while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// Intel oneAPI Math Kernel Library.
    Mkl,
    /// OpenBLAS.
    OpenBlas,
}

impl Loaded {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Mkl, Self::OpenBlas];

    /// Its name, as `--peers` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mkl => "mkl",
            Self::OpenBlas => "openblas",
        }
    }

    /// The settings worth a try besides the library's own choice: neither knows every processor of the other's vendor. One
    /// that names instructions which this processor lacks may end the process.
    pub fn candidates(self) -> &'static [Setting] {
        const fn core(value: &'static str) -> Setting {
            Setting { name: "OPENBLAS_CORETYPE", value }
        }
        const fn instructions(value: &'static str) -> Setting {
            Setting { name: "MKL_ENABLE_INSTRUCTIONS", value }
        }
        match self {
            Self::Mkl => &[const { instructions("AVX2") }, const { instructions("AVX512") }],
            Self::OpenBlas if cfg!(target_arch = "x86_64") => &[
                const { core("Haswell") },
                const { core("Zen") },
                const { core("SkylakeX") },
                const { core("Cooperlake") },
                const { core("SapphireRapids") },
            ],
            Self::OpenBlas if cfg!(target_arch = "aarch64") => {
                &[const { core("NEOVERSEN1") }, const { core("NEOVERSEV1") }, const { core("ARMV8SVE") }]
            }
            Self::OpenBlas => &[],
        }
    }

    /// Finds and opens it, with `threads` threads.
    ///
    /// # Errors
    /// [`Error::Absent`] when it is nowhere, [`Error::Load`] when it does not open or lacks a function.
    pub fn gemm(self, threads: usize) -> Result<Blas> {
        match self {
            Self::Mkl => Ok(Mkl::load(threads)?.blas().clone()),
            Self::OpenBlas => Blas::openblas(threads),
        }
    }
}
