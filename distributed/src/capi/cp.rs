//! CP-ALS for C programs: a tensor on the ranks of the caller's communicator, and its decomposition.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::path::Path;

use sparsimd::decomp::{CpInit, CpOptions, CpState};
use sparsimd::{CooTensor, Cpu, Mat, MatMut, MatRef};

use super::operations::{Arrays, Dense, extent};
use super::{create, executor, guard, not_null, put, same, status};
use crate::comm::Comm;
use crate::dense::{Element, collect};
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
    /// Of the factors to start from, where there are none.
    pub seed: u64,
    /// Factors to start from.
    pub init: *const Factor,
    /// How many.
    pub factors: usize,
    /// Path of the checkpoint, or null.
    pub checkpoint: *const c_char,
    /// Iterations from one checkpoint to the next.
    pub every: usize,
    /// Whether to go on from the checkpoint, where there is one.
    pub resume: c_int,
}

/// A factor to start from.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// Its rows, `ld` elements apart.
    pub data: *const c_void,
    /// Of the whole factor, or this rank's.
    pub rows: usize,
    /// Components.
    pub cols: usize,
    /// At least `cols`.
    pub ld: usize,
}

/// What C calls, whatever the element type.
trait Decomposition {
    unsafe fn run(&mut self, options: *const Options) -> Result<()>;
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

    /// The factors to start from; none where there are none.
    unsafe fn factors(given: &Options) -> Result<Option<Vec<Mat<T>>>> {
        let mut arrays = Arrays::default();
        // SAFETY: the rules of the interface.
        let factors = unsafe { arrays.operand("init", given.init, given.factors) }?;
        let copied = factors.iter().map(|&Factor { data, rows, cols, ld }| {
            let len = extent("init", rows, cols, ld)?;
            // SAFETY: likewise.
            let data = unsafe { arrays.operand("init", data.cast::<T>(), len) }?;
            Ok(MatRef::new(data, rows, cols, ld)?.to_mat()?)
        });
        let copied = copied.collect::<Result<Vec<_>>>()?;
        Ok((!copied.is_empty()).then_some(copied))
    }
}

/// The checkpoint's path, if there is one.
unsafe fn checkpoint(given: &Options) -> Result<Option<&Path>> {
    if given.checkpoint.is_null() {
        return Ok(None);
    }
    if given.every == 0 {
        return Err(Error::argument("every", "0 iterations; at least 1"));
    }
    // SAFETY: the rules of the interface: a zero is its end.
    let path = unsafe { CStr::from_ptr(given.checkpoint) }.to_str();
    Ok(Some(Path::new(path.map_err(|_| Error::argument("checkpoint", "is not UTF-8"))?)))
}

impl<T: Element> Decomposition for OnRanks<T> {
    unsafe fn run(&mut self, options: *const Options) -> Result<()> {
        let comm: &dyn Comm = &self.comm;
        // SAFETY: the rules of the interface.
        let ready = || unsafe {
            not_null(options)?;
            let given = &*options;
            Ok((given, Self::factors(given)?, checkpoint(given)?))
        };
        let (given, factors, path) = comm.agree(ready())?;
        let numbers = [given.rank, given.iterations, given.factors, given.every].map(|n| n as u64);
        let more = [given.tolerance.to_bits(), given.ridge.to_bits(), given.seed];
        let flags = [given.nonnegative, given.resume].map(|flag| u64::from(flag != 0));
        let name = path.map_or(&[][..], |path| path.as_os_str().as_encoded_bytes());
        same(comm, "options", &[&numbers[..], &more, &flags].concat(), name)?;
        let there = path.filter(|path| given.resume != 0 && path.exists());
        // All ranks see it, or none goes on from it.
        let resumed = if comm.least(u64::from(there.is_some()))? == 1 { there } else { None };
        let init = match (resumed, factors) {
            (Some(path), _) => CpInit::Resume(self.tensor.load(comm, path)?),
            (None, Some(factors)) => CpInit::Factors(factors),
            (None, None) => CpInit::Seed(given.seed),
        };
        let options = CpOptions {
            iterations: given.iterations,
            tolerance: given.tolerance,
            ridge: given.ridge,
            nonnegative: given.nonnegative != 0,
            init,
            rank: given.rank,
        };
        let mut saved = Ok(());
        let model = self.tensor.cp_als(&self.cpu, comm, &options, |state, iteration| {
            if let Some(path) = path.filter(|_| iteration.number.is_multiple_of(given.every)) {
                saved = self.tensor.save(comm, state, path);
            }
            if saved.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        saved?;
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
        // One that does not fit is refused with those that are too long.
        let dims = dims.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX));
        let dims = collect("lengths of modes", dims)?;
        let numbers = given.nnz.checked_mul(given.order).ok_or_else(|| Error::argument("nnz", "are too many"))?;
        // SAFETY: likewise.
        let (coords, values) = unsafe {
            let coords = arrays.operand("coords", given.coords, numbers)?;
            (coords, arrays.operand("values", given.values.cast::<T>(), given.nnz)?)
        };
        let of_mode = |mode: usize| collect("coordinates", coords[mode * given.nnz..][..given.nnz].iter().copied());
        let coords = (0..given.order).map(of_mode).collect::<Result<_>>()?;
        let entries = CooTensor::new(dims.clone(), coords, collect("values", values.iter().copied())?)?;
        Ok((dims, entries))
    };
    let (dims, entries) = ranks.agree(read())?;
    // Of everything that follows, messages depend on these.
    let numbers: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
    same(ranks, "dims", &numbers, &[size_of::<T>() as u8])?;
    let cpu = executor(&comm, given.threads)?;
    let tensor = DistTensor::new(&cpu, ranks, &dims, &entries)?;
    Ok(Box::new(OnRanks { tensor, model: None, cpu, comm }))
}

/// The tensor on the ranks of the communicator `comm`, of which `given` says this rank's entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_create(comm: c_int, given: *const Entries, out: *mut *mut Cp) -> c_int {
    // SAFETY: the rules of the interface.
    unsafe {
        create(comm, given, out, |comm, given| match given.double_precision {
            0 => build::<f32>(comm, given).map(Cp),
            _ => build::<f64>(comm, given).map(Cp),
        })
    }
}

/// Decomposes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_cp_als(cp: *mut Cp, options: *const Options) -> c_int {
    // SAFETY: the rules of the interface.
    let Some(Cp(cp)) = (unsafe { cp.as_mut() }) else {
        return status(Err(Error::argument("cp", "is null")));
    };
    // SAFETY: likewise.
    guard(|| (), || unsafe { cp.run(options) })
}

/// Calls `run` with `cp`.
unsafe fn with(cp: *const Cp, run: impl FnOnce(&dyn Decomposition) -> Result<()>) -> c_int {
    // SAFETY: the rules of the interface.
    let Some(Cp(cp)) = (unsafe { cp.as_ref() }) else {
        return status(Err(Error::argument("cp", "is null")));
    };
    guard(|| cp.abort(), || run(&**cp))
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
