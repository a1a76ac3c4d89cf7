//! SpMM, SDDMM, FusedMM and CP-ALS of [`sparsimd`] on many ranks, each with its own memory.
//!
//! A rank has rows of the sparse matrix A and of the dense matrices. A [`Comm`] carries messages between ranks:
//! [`ThreadComm`] between threads of one program, `MpiComm` (feature `mpi`) between processes; [`CountComm`] counts what
//! another one carries. A [`DistPlan`] says which
//! rows travel where, before any of them does; [`DistCsr`] is the rank's part of A, laid out as the plan says. [`DistTensor`] is a
//! rank's part of a tensor, with CP-ALS.
//!
//! ```
//! use sparsimd::{Cpu, Csr, Mat, Pattern};
//! use sparsimd_distributed::{Algorithm, Blocks, Comm, DistCsr, DistMat, ThreadComm};
//!
//! // Two ranks, each with one row of the cyclic permutation matrix of order 2.
//! let results = ThreadComm::run(2, |comm: &dyn Comm| -> Result<f64, sparsimd_distributed::Error> {
//!     let cpu = Cpu::builder().threads(1).pin(false).build()?;
//!     let blocks = Blocks::even(2, 2);
//!     let pattern = Pattern::new(1, 2, vec![0, 1], vec![1 - comm.rank() as u32])?;
//!     let a = DistCsr::new(comm, &blocks, &blocks, &Csr::new(pattern, vec![1.0])?, Algorithm::Aware)?;
//!     let b = DistMat::from_fn(&blocks, comm.rank(), 4, |i, _| i as f64)?;
//!     let mut c = DistMat::zeros(&blocks, comm.rank(), 4)?;
//!     a.spmm(&cpu, comm, &b, &mut c)?;
//!     Ok(c.local().row(0)[0])
//! });
//! assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>()?, [1.0, 0.0]);
//! # Ok::<(), sparsimd_distributed::Error>(())
//! ```

#![deny(unsafe_code)]

mod blocks;
#[cfg(feature = "capi")]
#[expect(unsafe_code, reason = "C programs' pointers")]
mod capi;
mod checkpoint;
mod comm;
#[cfg(feature = "mpi")]
mod compiled;
mod count;
mod cp;
mod dense;
mod error;
mod gradient;
mod halo;
mod matrix;
#[cfg(feature = "mpi")]
#[expect(unsafe_code, reason = "communicators of other languages")]
mod mpi;
mod ops;
mod partition;
mod plan;
mod read;
mod schedule;
mod shared;
mod softmax;
mod tensor;
mod threads;
mod trace;
mod travel;
#[cfg_attr(all(target_os = "linux", target_env = "gnu"), expect(unsafe_code, reason = "a function of the C library"))]
mod trim;

pub use blocks::Blocks;
pub use comm::{Comm, Group, Received, Sent};
#[cfg(feature = "mpi")]
#[doc(hidden)]
pub use compiled::compiled;
pub use count::{CountComm, Traffic};
pub use dense::{DistMat, Element};
pub use error::{Error, Result};
pub use gradient::DistGradient;
pub use matrix::DistCsr;
#[cfg(feature = "mpi")]
pub use mpi::MpiComm;
pub use partition::Partition;
pub use plan::{Algorithm, Candidate, Cluster, DistPlan, Operation};
pub use read::{RowsOf, read_entries, read_rows, share_rows};
pub use schedule::{RandomTensor, RankLoad, matrix_steps};
pub use tensor::{DistTensor, grid};
pub use threads::ThreadComm;
pub use trace::{AT_ONCE, Step, TraceComm, write_trace};
