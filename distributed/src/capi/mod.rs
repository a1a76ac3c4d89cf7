//! The C interface, `include/sparsimd_mpi.h`: a matrix on the ranks of the caller's communicator, and its products.
//!
//! An array argument has as many initialised elements as its function says, and a handle comes from `sparsimd_mpi_create` and has not
//! been destroyed; that is what every `unsafe` here stands for. No panic passes: it ends all ranks, since others may wait for this one.
#![allow(clippy::missing_safety_doc, reason = "the rules are the same for every function, and stated once, above")]

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use sparsimd::machine::{Machine, Pinning};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, MatRef, Pattern};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::{DistMat, Element};
use crate::error::{Error, Result};
use crate::matrix::DistCsr;
use crate::mpi::MpiComm;
use crate::plan::{Algorithm, Cluster, DistPlan, Operation};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The message of this thread's last call that failed.
#[unsafe(no_mangle)]
pub extern "C" fn sparsimd_mpi_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// 0, or 1 with a message.
fn status(result: Result<()>) -> c_int {
    let Err(error) = result else { return 0 };
    let text: Vec<u8> = error.to_string().bytes().filter(|&byte| byte != 0).collect();
    LAST.with(|last| last.replace(CString::new(text).unwrap_or_default()));
    1
}

/// A matrix on ranks, and what its operations need.
struct Ranks<T> {
    a: DistCsr<T>,
    rows: Blocks,
    cols: Blocks,
    cpu: Cpu,
    comm: MpiComm,
}

/// Of one of the element types.
pub struct Matrix(Box<dyn Operations>);

/// What C calls, whatever the element type.
#[doc(hidden)]
pub trait Operations {
    /// C = A B, or B = A^T C.
    unsafe fn spmm(&self, transposed: bool, from: Dense, to: Dense, n: usize) -> Result<()>;
    /// C B^T at the nonzeros.
    unsafe fn sddmm(&self, scaled: bool, c: Dense, b: Dense, n: usize, values: *mut c_void) -> Result<()>;
    /// Ends all ranks.
    fn abort(&self) -> !;
}

/// Rows of a dense matrix, `1` elements apart.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Dense(*mut c_void, usize);

/// The elements of an array, of which there may be none.
unsafe fn slice<'a, T>(data: *const T, len: usize) -> Result<&'a [T]> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::argument("array", "is null")),
        // SAFETY: the rules of this module.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// Elements of `rows` rows of `n`, `stride` apart.
fn extent(rows: usize, n: usize, stride: usize) -> Result<usize> {
    if stride < n {
        return Err(Error::argument("ld", format!("{stride} is less than the {n} columns of a row")));
    }
    let len = if rows == 0 { Some(0) } else { (rows - 1).checked_mul(stride).and_then(|len| len.checked_add(n)) };
    len.ok_or_else(|| Error::argument("ld", "the rows do not fit the address space"))
}

impl<T: Element> Ranks<T> {
    /// This rank's rows of a dense matrix.
    unsafe fn given(&self, blocks: &Blocks, Dense(data, stride): Dense, n: usize) -> Result<DistMat<T>> {
        let rank = self.comm.rank();
        let rows = blocks.range(rank).len();
        // SAFETY: the rules of this module.
        let data = unsafe { slice(data.cast_const().cast::<T>(), extent(rows, n, stride)?) }?;
        DistMat::new(blocks, rank, MatRef::new(data, rows, n, stride)?.to_mat()?)
    }
}

impl<T: Element> Operations for Ranks<T> {
    unsafe fn spmm(&self, transposed: bool, from: Dense, Dense(to, stride): Dense, n: usize) -> Result<()> {
        let comm: &dyn Comm = &self.comm;
        let (of, into) = if transposed { (&self.rows, &self.cols) } else { (&self.cols, &self.rows) };
        let rows = into.range(comm.rank()).len();
        let ready = || {
            let len = extent(rows, n, stride)?;
            if to.is_null() && len > 0 {
                return Err(Error::argument("array", "is null"));
            }
            // SAFETY: the rules of this module.
            Ok((unsafe { self.given(of, from, n) }?, DistMat::zeros(into, comm.rank(), n)?))
        };
        let (from, mut out) = comm.agree(ready())?;
        match transposed {
            true => self.a.spmm_transposed(&self.cpu, comm, &from, &mut out)?,
            false => self.a.spmm(&self.cpu, comm, &from, &mut out)?,
        }
        for (i, row) in out.local().iter_rows().enumerate() {
            // SAFETY: the rules of this module; row i begins there and has n elements.
            unsafe { std::slice::from_raw_parts_mut(to.cast::<T>().add(i * stride), n) }.copy_from_slice(row);
        }
        Ok(())
    }

    unsafe fn sddmm(&self, scaled: bool, c: Dense, b: Dense, n: usize, values: *mut c_void) -> Result<()> {
        let comm: &dyn Comm = &self.comm;
        let nnz = self.a.nnz();
        let ready = || {
            if values.is_null() && nnz > 0 {
                return Err(Error::argument("array", "is null"));
            }
            // SAFETY: the rules of this module.
            unsafe { Ok((self.given(&self.rows, c, n)?, self.given(&self.cols, b, n)?)) }
        };
        let (c, b) = comm.agree(ready())?;
        let mut out = vec![T::ZERO; nnz];
        self.a.sddmm(&self.cpu, comm, scaled, &c, &b, &mut out)?;
        if nnz > 0 {
            // SAFETY: the rules of this module.
            unsafe { std::slice::from_raw_parts_mut(values.cast::<T>(), nnz) }.copy_from_slice(&out);
        }
        Ok(())
    }

    fn abort(&self) -> ! {
        self.comm.abort(2)
    }
}

/// What a matrix is made of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Rows of A on this rank.
    pub rows: usize,
    /// Columns of A.
    pub cols: usize,
    /// Rows of B on this rank.
    pub b_rows: usize,
    /// Where each row starts, and the end: `rows + 1`.
    pub row_ptr: *const u64,
    /// Columns, ascending in each row.
    pub col_idx: *const u32,
    /// Values.
    pub values: *const c_void,
    /// 0: single precision, 1: double.
    pub double_precision: c_int,
    /// Columns of B that the plan expects.
    pub n: usize,
    /// 0: the plan's choice; 1: aware; 2: dense shift.
    pub algorithm: c_int,
    /// Of dense shift; 0: the plan's choice.
    pub replication: usize,
    /// Threads of this rank; 0: its share of the processors.
    pub threads: usize,
}

unsafe fn build<T: Element>(comm: MpiComm, given: &Given) -> Result<Box<dyn Operations>> {
    let ranks: &dyn Comm = &comm;
    let lens = ranks.all_gather(&[given.rows as u64, given.b_rows as u64], &vec![2; ranks.size()])?;
    let ends = |which: usize| {
        let starts = lens.iter().skip(which).step_by(2).scan(0usize, |end, &len| {
            *end += len as usize;
            Some(*end)
        });
        Blocks::ascending(std::iter::once(0).chain(starts).collect())
    };
    let (rows, cols) = (ends(0), ends(1));
    let local = || -> Result<Csr<T>> {
        if cols.len() != given.cols {
            let detail = format!("{} rows of B on all ranks for {} columns of A", cols.len(), given.cols);
            return Err(Error::shape("a distributed matrix", detail));
        }
        // SAFETY: the rules of this module.
        let row_ptr: Vec<usize> =
            unsafe { slice(given.row_ptr, given.rows.saturating_add(1)) }?.iter().map(|&p| p as usize).collect();
        let nnz = row_ptr[given.rows];
        // SAFETY: likewise.
        let (col_idx, values) = unsafe { (slice(given.col_idx, nnz)?, slice(given.values.cast::<T>(), nnz)?) };
        Ok(Csr::new(Pattern::new(given.rows, given.cols, row_ptr, col_idx.to_vec())?, values.to_vec())?)
    };
    let local = ranks.agree(local())?;
    let machine = Machine::detect();
    let processors = ranks.agree(machine.pin(&Pinning::Compact, machine.allowed().len()).map_err(Error::from))?;
    let share = comm.share(&processors)?.len().max(1);
    let threads = if given.threads == 0 { share } else { given.threads };
    // The caller's threads are where the caller wants them.
    let cpu = ranks.agree(Cpu::builder().threads(threads).pin(false).build().map_err(Error::from))?;
    let allowed = |algorithm: Algorithm| match (given.algorithm, algorithm) {
        (1, _) => algorithm == Algorithm::Aware,
        (0, Algorithm::Aware) => given.replication == 0,
        (_, Algorithm::Aware) => false,
        (_, Algorithm::DenseShift { replication }) => [0, replication].contains(&given.replication),
    };
    let n = given.n.max(1);
    let cluster = Cluster::default().measured(ranks)?;
    let plan = DistPlan::new(ranks, &rows, &cols, &local, Operation::Spmm { n }, cluster, allowed)?;
    let mut a = DistCsr::new(ranks, &rows, &cols, &local, plan.chosen().algorithm)?;
    ranks.agree(a.prepare(&cpu, &PlanOptions::new(Op::Spmm, n)))?;
    Ok(Box::new(Ranks { a, rows, cols, cpu, comm }))
}

/// `run`'s status; a panic ends the program.
fn guard(abort: impl FnOnce(), run: impl FnOnce() -> Result<()>) -> c_int {
    catch_unwind(AssertUnwindSafe(|| status(run()))).unwrap_or_else(|_| {
        abort();
        std::process::abort()
    })
}

/// A matrix on the ranks of the communicator `comm`, of which `given` says this rank's part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_create(comm: c_int, given: *const Given, out: *mut *mut Matrix) -> c_int {
    guard(
        || (),
        || {
            if given.is_null() || out.is_null() {
                return Err(Error::argument("array", "is null"));
            }
            // SAFETY: the rules of this module.
            let (comm, given) = unsafe { (MpiComm::of_handle(comm)?, *given) };
            // SAFETY: likewise.
            let operations = unsafe {
                match given.double_precision {
                    0 => build::<f32>(comm, &given)?,
                    _ => build::<f64>(comm, &given)?,
                }
            };
            // SAFETY: likewise.
            unsafe { *out = Box::into_raw(Box::new(Matrix(operations))) };
            Ok(())
        },
    )
}

/// Calls `run` with the operations of `matrix`.
unsafe fn with(matrix: *const Matrix, run: impl FnOnce(&dyn Operations) -> Result<()>) -> c_int {
    // SAFETY: the rules of this module.
    let Some(Matrix(operations)) = (unsafe { matrix.as_ref() }) else {
        return status(Err(Error::argument("matrix", "is null")));
    };
    guard(|| operations.abort(), || run(&**operations))
}

/// C = A B.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_spmm(
    matrix: *const Matrix,
    n: usize,
    b: *const c_void,
    ldb: usize,
    c: *mut c_void,
    ldc: usize,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe { with(matrix, |m| m.spmm(false, Dense(b.cast_mut(), ldb), Dense(c, ldc), n)) }
}

/// B = A^T C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_spmm_transposed(
    matrix: *const Matrix,
    n: usize,
    c: *const c_void,
    ldc: usize,
    b: *mut c_void,
    ldb: usize,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe { with(matrix, |m| m.spmm(true, Dense(c.cast_mut(), ldc), Dense(b, ldb), n)) }
}

/// values_p = C_i . B_j, times a_ij if `scaled`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_sddmm(
    matrix: *const Matrix,
    scaled: c_int,
    n: usize,
    c: *const c_void,
    ldc: usize,
    b: *const c_void,
    ldb: usize,
    values: *mut c_void,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe { with(matrix, |m| m.sddmm(scaled != 0, Dense(c.cast_mut(), ldc), Dense(b.cast_mut(), ldb), n, values)) }
}

/// Frees the matrix and its copy of the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_destroy(matrix: *mut Matrix) {
    if !matrix.is_null() {
        // SAFETY: the rules of this module.
        drop(unsafe { Box::from_raw(matrix) });
    }
}
