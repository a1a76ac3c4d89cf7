//! CP-ALS for C programs: a tensor on the ranks of the caller's communicator, and its decomposition.

use std::ffi::{c_int, c_void};
use std::ops::ControlFlow;

use sparsimd::decomp::{CpInit, CpOptions, CpState};
use sparsimd::{CooTensor, Cpu, MatMut};

use super::operations::{Arrays, Dense, extent};
use super::{executor, guard, status};
use crate::comm::Comm;
use crate::dense::Element;
use crate::error::{Error, Result};
use crate::mpi::MpiComm;
use crate::tensor::DistTensor;

/// Of one of the element types.
pub struct Cp(Box<dyn Decomposition>);

/// This rank's entries of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// Modes.
    pub order: usize,
    /// Lengths of the modes, of the whole tensor.
    pub dims: *const u64,
    /// Entries here.
    pub nnz: usize,
    /// `order` times `nnz` coordinates, those of a mode one after the other.
    pub coords: *const u32,
    /// Values.
    pub values: *const c_void,
    /// 0: single precision, 1: double.
    pub double_precision: c_int,
    /// Threads of this rank; 0: its share of the processors.
    pub threads: usize,
}

/// How to decompose.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Components.
    pub rank: usize,
    /// Most iterations.
    pub iterations: usize,
    /// Least gain of the fit that goes on.
    pub tolerance: f64,
    /// On the diagonal.
    pub ridge: f64,
    /// Whether the factors are kept non-negative.
    pub nonnegative: c_int,
    /// Of the factors to start from.
    pub seed: u64,
}

/// What C calls, whatever the element type.
trait Decomposition {
    fn run(&mut self, options: &Options) -> Result<()>;
    /// First and number of this rank's rows of a mode.
    fn rows(&self, mode: usize) -> Result<[usize; 2]>;
    /// This rank's rows of a factor.
    unsafe fn factor(&self, mode: usize, out: Dense) -> Result<()>;
    /// The components' weights.
    fn weights(&self) -> Result<&[f64]>;
    /// After the last iteration, and how many there were.
    fn fit(&self) -> Result<(f64, usize)>;
    fn abort(&self) -> !;
}

/// A tensor on ranks, and its model once it has one.
struct OnRanks<T> {
    tensor: DistTensor<T>,
    model: Option<CpState<T>>,
    cpu: Cpu,
    comm: MpiComm,
}

impl<T: Element> OnRanks<T> {
    fn model(&self) -> Result<&CpState<T>> {
        self.model.as_ref().ok_or_else(|| Error::argument("cp", "has not been decomposed"))
    }
}

impl<T: Element> Decomposition for OnRanks<T> {
    fn run(&mut self, given: &Options) -> Result<()> {
        let options = CpOptions {
            iterations: given.iterations,
            tolerance: given.tolerance,
            ridge: given.ridge,
            nonnegative: given.nonnegative != 0,
            init: CpInit::Seed(given.seed),
            ..CpOptions::new(given.rank)
        };
        let model = self.tensor.cp_als(&self.cpu, &self.comm, &options, |_, _| ControlFlow::Continue(()))?;
        self.model = Some(model);
        Ok(())
    }

    fn rows(&self, mode: usize) -> Result<[usize; 2]> {
        let rows = self.tensor.rows();
        let order = rows.len();
        let rows = rows.get(mode).ok_or_else(|| Error::argument("mode", format!("{mode} of {order}")))?;
        Ok([rows.start, rows.len()])
    }

    unsafe fn factor(&self, mode: usize, Dense(data, stride): Dense) -> Result<()> {
        let ([_, rows], model) = (self.rows(mode)?, self.model()?);
        let factor = &model.factors[mode];
        let len = extent("factor", rows, factor.cols(), stride)?;
        // SAFETY: the rules of the interface.
        let out = unsafe { Arrays::default().result("factor", data.cast::<T>(), len) }?;
        let mut out = MatMut::new(out, rows, factor.cols(), stride)?;
        for (i, row) in factor.iter_rows().enumerate() {
            out.reborrow().into_row(i).copy_from_slice(row);
        }
        Ok(())
    }

    fn weights(&self) -> Result<&[f64]> {
        Ok(&self.model()?.lambda)
    }

    fn fit(&self) -> Result<(f64, usize)> {
        let model = self.model()?;
        Ok((model.fit(), model.fits.len()))
    }

    fn abort(&self) -> ! {
        self.comm.abort(2)
    }
}

unsafe fn build<T: Element>(comm: MpiComm, given: &Entries) -> Result<Box<dyn Decomposition>> {
    let ranks: &dyn Comm = &comm;
    let mut arrays = Arrays::default();
    let mut read = || -> Result<(Vec<usize>, CooTensor<T>)> {
        // SAFETY: the rules of the interface.
        let dims = unsafe { arrays.operand("dims", given.dims, given.order) }?;
        let fits = |&dim: &u64| usize::try_from(dim).map_err(|_| Error::argument("dims", format!("{dim} is too long")));
        let dims: Vec<usize> = dims.iter().map(fits).collect::<Result<_>>()?;
        let numbers = given.nnz.checked_mul(given.order).ok_or_else(|| Error::argument("nnz", "are too many"))?;
        // SAFETY: likewise.
        let (coords, values) = unsafe {
            let coords = arrays.operand("coords", given.coords, numbers)?;
            (coords, arrays.operand("values", given.values.cast::<T>(), given.nnz)?)
        };
        let of_mode = |mode: usize| coords[mode * given.nnz..][..given.nnz].to_vec();
        let coords = (0..given.order).map(of_mode).collect();
        let entries = CooTensor::new(dims.clone(), coords, values.to_vec())?;
        Ok((dims, entries))
    };
    let (dims, entries) = ranks.agree(read())?;
    let numbers = dims.iter().map(|&dim| dim as u64).chain([dims.len() as u64]);
    // Of everything that follows, messages depend on these.
    let hash = numbers.fold(0u64, |hash, n| (hash.rotate_left(7) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let same = ranks.least(hash)? == hash;
    ranks.agree(if same { Ok(()) } else { Err(Error::argument("dims", "differ between ranks")) })?;
    let cpu = executor(&comm, given.threads)?;
    let tensor = DistTensor::new(&cpu, ranks, &dims, &entries)?;
    Ok(Box::new(OnRanks { tensor, model: None, cpu, comm }))
}

/// The tensor on the ranks of the communicator `comm`, of which `given` says this rank's entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_create(comm: c_int, given: *const Entries, out: *mut *mut Cp) -> c_int {
    guard(
        || (),
        || {
            if given.is_null() || out.is_null() {
                return Err(Error::argument("array", "is null"));
            }
            // SAFETY: the rules of the interface.
            let (comm, given) = unsafe { (MpiComm::of_handle(comm)?, *given) };
            // SAFETY: likewise.
            let cp = unsafe {
                match given.double_precision {
                    0 => build::<f32>(comm, &given)?,
                    _ => build::<f64>(comm, &given)?,
                }
            };
            // SAFETY: likewise.
            unsafe { *out = Box::into_raw(Box::new(Cp(cp))) };
            Ok(())
        },
    )
}

/// Decomposes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_als(cp: *mut Cp, options: *const Options) -> c_int {
    // SAFETY: the rules of the interface.
    let (Some(Cp(cp)), Some(options)) = (unsafe { (cp.as_mut(), options.as_ref()) }) else {
        return status(Err(Error::argument("array", "is null")));
    };
    guard(|| (), || cp.run(options))
}

/// Calls `run` with `cp`.
unsafe fn with(cp: *const Cp, run: impl FnOnce(&dyn Decomposition) -> Result<()>) -> c_int {
    // SAFETY: the rules of the interface.
    let Some(Cp(cp)) = (unsafe { cp.as_ref() }) else {
        return status(Err(Error::argument("cp", "is null")));
    };
    guard(|| cp.abort(), || run(&**cp))
}

/// Writes `x` to `to`, unless that is null.
unsafe fn put<X>(to: *mut X, x: X) {
    // SAFETY: the rules of the interface.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = x;
    }
}

/// This rank's rows of the factor of `mode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_rows(
    cp: *const Cp,
    mode: usize,
    first: *mut usize,
    rows: *mut usize,
) -> c_int {
    // SAFETY: the rules of the interface.
    unsafe {
        with(cp, |cp| {
            let [start, len] = cp.rows(mode)?;
            put(first, start);
            put(rows, len);
            Ok(())
        })
    }
}

/// Their elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_factor(cp: *const Cp, mode: usize, out: *mut c_void, ld: usize) -> c_int {
    // SAFETY: the rules of the interface.
    unsafe { with(cp, |cp| cp.factor(mode, Dense(out, ld))) }
}

/// The components' weights.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_weights(cp: *const Cp, out: *mut f64) -> c_int {
    // SAFETY: the rules of the interface.
    unsafe {
        with(cp, |cp| {
            let weights = cp.weights()?;
            Arrays::default().result("weights", out, weights.len())?.copy_from_slice(weights);
            Ok(())
        })
    }
}

/// The fit, and the iterations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_fit(cp: *const Cp, fit: *mut f64, iterations: *mut usize) -> c_int {
    // SAFETY: the rules of the interface.
    unsafe {
        with(cp, |cp| {
            let (last, number) = cp.fit()?;
            put(fit, last);
            put(iterations, number);
            Ok(())
        })
    }
}

/// Frees the tensor, its model and its copy of the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_destroy(cp: *mut Cp) {
    if !cp.is_null() {
        // SAFETY: the rules of the interface.
        drop(unsafe { Box::from_raw(cp) });
    }
}
