//! MTTKRP of a tensor in a file that may be larger than memory: one pass of reading for each mode.
//!
//! ```text
//! for each chunk of the nonzeros, in the order of the file:      the next one is read meanwhile
//!     out[i_n, :] += sum over the chunk of x * prod_{m != n} A_m[i_m, :]
//! ```
//!
//! Chunks are used as they are: neither sorted nor re-laid. In a file that is sorted by mode 0, neighbours of mode 0 are summed in
//! registers; the other modes' rows lie anywhere, and tasks that share them have privatised outputs.

use std::path::Path;

use sparsimd_kernels::Scalar;

use super::operands::{Buffers, Factor, check_shapes, kernel_stride, padded, pointers, release, with_output};
use super::part::{Call, Part};
use super::stored::Stored;
use crate::cpu::Cpu;
use crate::dense::{MatMut, MatRef};
use crate::error::{Error, Result};
use crate::formats::CooTensor;
use crate::io::TnsbStream;
use crate::plan::{MttkrpFormat, MttkrpPlan, TensorOptions, TensorStats};

/// Fewest nonzeros of a chunk: with fewer, starting the threads would take as long as their work.
const FEWEST: usize = 1 << 16;
/// The part of the memory that privatised outputs may take.
const PRIVATISED: usize = 8;

/// A tensor in a `.tnsb` file, with what its passes reuse.
#[derive(Debug)]
pub struct StreamedTensor<T> {
    stream: TnsbStream,
    norm_squared: f64,
    checksum: u64,
    /// Nonzeros of a chunk.
    chunk: usize,
    rank: usize,
    plan: MttkrpPlan,
    buffers: Buffers<T>,
}

impl<T: Scalar> StreamedTensor<T> {
    /// Length of each mode.
    pub fn dims(&self) -> &[usize] {
        self.stream.dims()
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> usize {
        self.stream.nnz()
    }

    /// Nonzeros that are worked on at a time.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sum of the squares of all values.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared
    }

    /// [`CooTensor::checksum`] of the tensor.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }
}

impl Cpu {
    /// The tensor in the `.tnsb` file `path`, for MTTKRP with at most `rank` columns in passes that take `memory` bytes at most: factors
    /// and one product for every mode, privatised outputs, and two chunks of nonzeros. Reads the values once, and a chunk.
    ///
    /// # Errors
    /// As [`TnsbStream::open`] and [`TnsbStream::pass`]; [`Error::Argument`] when `memory` is too little, which says what would do, and
    /// for rank 0; [`Error::Structure`] for a tensor of order 1.
    #[inline(never)]
    pub fn stream_tensor<T: Scalar>(&self, path: &Path, rank: usize, memory: usize) -> Result<StreamedTensor<T>> {
        let stream = TnsbStream::open(path)?;
        if stream.dims().len() < 2 {
            return Err(Error::structure("tensor", "order 1; a tensor that is streamed has two modes or more"));
        }
        if rank == 0 {
            return Err(Error::argument("rank", "0 columns; at least 1"));
        }
        let row = kernel_stride::<T>(rank) * size_of::<T>();
        let rows = stream.dims().iter().fold(0usize, |sum, &dim| sum.saturating_add(dim));
        // Factors and products, and the copies of both that rows of another stride need.
        let dense = rows.saturating_mul(row).saturating_mul(4);
        let fewest = FEWEST.min(stream.nnz().max(1));
        // Reading ahead, a chunk's entries also have their rows found: 8 bytes stand for what is small.
        let entry = stream.entry_bytes::<T>() + 8;
        let least = dense.saturating_add(fewest.saturating_mul(entry)).saturating_mul(PRIVATISED) / (PRIVATISED - 1);
        if memory < least {
            let mib = |bytes: usize| bytes.div_ceil(1 << 20);
            let detail = format!(
                "{} MiB; factors and products of {rows} rows at {rank} columns and a chunk of the nonzeros take {}",
                memory >> 20,
                mib(least)
            );
            return Err(Error::argument("memory", detail));
        }
        let privatised = memory / PRIVATISED;
        let chunk = ((memory - privatised - dense) / entry).clamp(fewest, stream.nnz().max(1));
        self.install(|| {
            let (norm_squared, checksum) = stream.norm_and_checksum::<T>()?;
            let mut plan = None;
            let options = TensorOptions::new(rank).format(Some(MttkrpFormat::Coo)).privatised_bytes(privatised);
            let choose = |x: &CooTensor<T>| {
                MttkrpPlan::choose(&TensorStats::of(x), self.machine(), &options, &self.target::<T>())
            };
            // The statistics of the first nonzeros stand for those of all.
            let enough = stream.pass(fewest, |_, x| {
                plan = Some(choose(&x)?);
                Err(Error::argument("pass", "ends after the first chunk"))
            });
            let plan = match plan {
                Some(plan) => plan,
                None => {
                    enough?;
                    let none = vec![Vec::new(); stream.dims().len()];
                    choose(&CooTensor::new(stream.dims().to_vec(), none, Vec::new())?)?
                }
            };
            Ok(StreamedTensor { stream, norm_squared, checksum, chunk, rank, plan, buffers: Buffers::default() })
        })
    }

    /// The MTTKRP of `mode`, as [`Cpu::mttkrp`], in one pass over the file. The same bits for the same memory and number of threads.
    ///
    /// # Errors
    /// As [`Cpu::mttkrp`] and [`TnsbStream::pass`], and [`Error::Shape`] for more columns than the tensor was opened for.
    #[inline(never)]
    pub fn mttkrp_streamed<'a, T: Scalar>(
        &self,
        tensor: &StreamedTensor<T>,
        factors: &[MatRef<'a, T>],
        mode: usize,
        out: MatMut<'_, T>,
    ) -> Result<()> {
        let StreamedTensor { stream, chunk, plan, buffers, .. } = tensor;
        check_shapes(stream.dims(), mode, factors, &out)?;
        if out.cols() > tensor.rank {
            let detail = format!("{} columns of a tensor that was opened for {}", out.cols(), tensor.rank);
            return Err(Error::shape("mttkrp_streamed", detail));
        }
        let call = Call { add: true, ..Call::new(self, out.cols(), buffers) };
        self.install(|| {
            let mut result = Ok(());
            with_output(out, buffers, |rows| {
                rows.fill(T::ZERO);
                let all = padded(factors, mode, |f| Factor::new(f, buffers));
                let pointers = pointers(&all);
                let distances: Vec<usize> = plan.modes.iter().map(|mode| mode.prefetch_distance).collect();
                result = stream.pass(*chunk, |_, x| {
                    let part = Part::of_mode(Stored::as_is(x), mode, stream.dims(), &distances, plan);
                    // SAFETY: the stride is whole cache lines; `check_shapes` compared the operands' rows with the modes' lengths, below
                    // which a pass has checked every coordinate.
                    unsafe { part.run(call, mode, &pointers, rows) };
                    part.stored.into_list()
                });
                release(all, buffers);
            });
            result
        })
    }
}
