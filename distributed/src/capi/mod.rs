//! The C interface, `include/sparsimd_mpi.h`: a matrix on the ranks of the caller's communicator and its products, or a tensor and its
//! decomposition.
//!
//! An array argument has as many initialised elements as its function says, and a handle comes from one of the functions that create them
//! and has not been destroyed; that is what every `unsafe` here stands for. No panic passes: it ends all ranks, since others may wait for
//! this one.
#![allow(clippy::missing_safety_doc, reason = "the rules are the same for every function, and stated once, above")]

mod cp;
mod operations;

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sparsimd::machine::{Machine, Pinning};
use sparsimd::plan::{Op, PlanOptions};
use sparsimd::{Cpu, Csr, Pattern};
use xxhash_rust::xxh3::xxh3_64;

use self::operations::{Arrays, Dense, Edge, Operations, Ranks};
use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::{Element, collect};
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

/// Of one of the element types.
pub struct Matrix(Box<dyn Operations>);

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
    /// What the matrix is laid out for, a sparsimd_mpi_operation; others run too.
    pub operation: c_int,
    /// Columns of B that the plan expects.
    pub n: usize,
    /// Columns of D that it expects; 0: as many.
    pub width: usize,
    /// 0: the plan's choice; 1: aware; 2: dense shift.
    pub algorithm: c_int,
    /// Of dense shift; 0: the plan's choice.
    pub replication: usize,
    /// Threads of this rank; 0: its share of the processors.
    pub threads: usize,
    /// Whether the plan expects B and D in memory in common.
    pub in_common: c_int,
}

/// Memory of [`sparsimd_mpi_common_create`].
pub struct Common(#[expect(dead_code, reason = "what has the memory")] Arc<dyn Any>);

unsafe fn build<T: Element>(comm: MpiComm, given: &Given) -> Result<Box<dyn Operations>> {
    let ranks: &dyn Comm = &comm;
    // Which messages follow depends on these.
    let kinds = [given.operation, given.algorithm, c_int::from(given.in_common != 0)].map(|kind| kind as u64);
    let lengths = [given.n, given.width, given.replication].map(|length| length as u64);
    same(ranks, "given", &[kinds, lengths].concat(), &[size_of::<T>() as u8])?;
    let lens = ranks.all_gather(&[given.rows as u64, given.b_rows as u64], &vec![2; ranks.size()])?;
    // The same on all ranks, an error too.
    let blocks = |which: usize| -> Result<Blocks> {
        let mut starts = vec![0usize];
        for &len in lens.iter().skip(which).step_by(2) {
            let end = usize::try_from(len).ok().and_then(|len| starts[starts.len() - 1].checked_add(len));
            let detail = || Error::shape("a distributed matrix", "the rows of all ranks do not fit the address space");
            starts.push(end.ok_or_else(detail)?);
        }
        Ok(Blocks::ascending(starts))
    };
    let (rows, cols) = (blocks(0)?, blocks(1)?);
    let mut arrays = Arrays::default();
    let mut local = || -> Result<Csr<T>> {
        if cols.len() != given.cols {
            let detail = format!("{} rows of B on all ranks for {} columns of A", cols.len(), given.cols);
            return Err(Error::shape("a distributed matrix", detail));
        }
        let starts = given.rows.checked_add(1).ok_or_else(|| Error::argument("rows", "are too many"))?;
        // SAFETY: the rules of this module.
        let row_ptr = unsafe { arrays.operand("row_ptr", given.row_ptr, starts) }?;
        let row_ptr = collect("row pointers", row_ptr.iter().map(|&p| p as usize))?;
        let nnz = row_ptr[given.rows];
        // SAFETY: likewise.
        let (col_idx, values) = unsafe {
            (arrays.operand("col_idx", given.col_idx, nnz)?, arrays.operand("values", given.values.cast::<T>(), nnz)?)
        };
        let (col_idx, values) =
            (collect("columns", col_idx.iter().copied())?, collect("values", values.iter().copied())?);
        Ok(Csr::new(Pattern::new(given.rows, given.cols, row_ptr, col_idx)?, values)?)
    };
    let local = ranks.agree(local())?;
    let cpu = executor(&comm, given.threads)?;
    let allowed = |algorithm: Algorithm| match (given.algorithm, algorithm) {
        (1, _) => algorithm == Algorithm::Aware,
        (0, Algorithm::Aware) => given.replication == 0,
        (_, Algorithm::Aware) => false,
        (_, Algorithm::DenseShift { replication }) => [0, replication].contains(&given.replication),
    };
    let n = given.n.max(1);
    let (operation, op) = ranks.agree(planned(given.operation, n, if given.width == 0 { n } else { given.width }))?;
    let in_common = given.in_common != 0 && ranks.one_machine();
    let cluster = Cluster { in_common, ..Cluster::default().measured(ranks)? };
    let plan = DistPlan::new(ranks, &rows, &cols, &local, operation, cluster, allowed)?;
    let mut a = DistCsr::new(ranks, &rows, &cols, &local, plan.chosen().algorithm)?;
    ranks.agree(a.prepare(&cpu, &PlanOptions::new(op, n)))?;
    Ok(Box::new(Ranks { a, rows, cols, cpu, comm, common: RefCell::default() }))
}

/// `threads` threads, or this rank's share of the machine.
fn executor(comm: &MpiComm, threads: usize) -> Result<Cpu> {
    let (ranks, machine): (&dyn Comm, _) = (comm, Machine::detect());
    let processors = ranks.agree(machine.pin(&Pinning::Compact, machine.allowed().len()).map_err(Error::from))?;
    let share = comm.share(&processors)?.len().max(1);
    let threads = if threads == 0 { share } else { threads };
    // The caller's threads are where the caller wants them.
    ranks.agree(Cpu::builder().threads(threads).pin(false).build().map_err(Error::from))
}

/// What a sparsimd_mpi_operation moves, and which of the library's operations its nonzeros are laid out for: a softmax, and gradients, begin
/// with dot products.
fn planned(operation: c_int, n: usize, width: usize) -> Result<(Operation, Op)> {
    Ok(match operation {
        0 => (Operation::Spmm { n }, Op::Spmm),
        1 => (Operation::Sddmm { n }, Op::Sddmm),
        2 => (Operation::FusedMm { n, width, same: false, softmax: false }, Op::FusedMm),
        3 => (Operation::FusedMm { n, width, same: false, softmax: true }, Op::Sddmm),
        4 => (Operation::FusedMmGradient { n, width, same: false, softmax: true, values: false }, Op::Sddmm),
        other => return Err(Error::argument("operation", format!("{other} is not a sparsimd_mpi_operation"))),
    })
}

/// `run`'s status; a panic ends the program.
fn guard(abort: impl FnOnce(), run: impl FnOnce() -> Result<()>) -> c_int {
    catch_unwind(AssertUnwindSafe(|| status(run()))).unwrap_or_else(|_| {
        abort();
        std::process::abort()
    })
}

/// An error where there is no array.
fn not_null<X>(array: *const X) -> Result<()> {
    if array.is_null() { Err(Error::argument("array", "is null")) } else { Ok(()) }
}

/// Puts into `out` what `build` makes of `given`, and of a copy of the communicator `comm`.
unsafe fn create<G: Copy, H>(
    comm: c_int,
    given: *const G,
    out: *mut *mut H,
    build: impl FnOnce(MpiComm, &G) -> Result<H>,
) -> c_int {
    let run = || {
        // SAFETY: the rules of this module.
        let comm = unsafe { MpiComm::of_handle(comm) }?;
        (&comm as &dyn Comm).agree(not_null(given).and(not_null(out)))?;
        // SAFETY: likewise.
        let given = unsafe { *given };
        let made = Box::new(build(comm, &given)?);
        // SAFETY: likewise.
        unsafe { *out = Box::into_raw(made) };
        Ok(())
    };
    guard(|| (), run)
}

/// An error of all ranks where they have not the same `numbers` and `text`.
fn same(ranks: &dyn Comm, name: &'static str, numbers: &[u64], text: &[u8]) -> Result<()> {
    let hash = xxh3_64(&[bytemuck::cast_slice(numbers), text].concat());
    let same = ranks.least(hash)? == hash;
    ranks.agree(if same { Ok(()) } else { Err(Error::argument(name, "differ between ranks")) })
}

/// A matrix on the ranks of the communicator `comm`, of which `given` says this rank's part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_create(comm: c_int, given: *const Given, out: *mut *mut Matrix) -> c_int {
    // SAFETY: the rules of this module.
    unsafe {
        create(comm, given, out, |comm, given| match given.double_precision {
            0 => build::<f32>(comm, given).map(Matrix),
            _ => build::<f64>(comm, given).map(Matrix),
        })
    }
}

/// Calls `run` with the operations of `matrix`.
unsafe fn with(matrix: *const Matrix, run: impl FnOnce(&dyn Operations) -> Result<()>) -> c_int {
    // SAFETY: the rules of this module.
    let Some(Matrix(operations)) = (unsafe { matrix.as_ref() }) else {
        return status(Err(Error::argument("matrix", "is null")));
    };
    guard(|| operations.abort(), || run(&**operations))
}

/// Rows that are read.
fn operand(data: *const c_void, ld: usize) -> Dense {
    Dense(data.cast_mut(), ld)
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
    unsafe { with(matrix, |m| m.spmm(false, n, operand(b, ldb), Dense(c, ldc))) }
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
    unsafe { with(matrix, |m| m.spmm(true, n, operand(c, ldc), Dense(b, ldb))) }
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
    unsafe { with(matrix, |m| m.sddmm(scaled != 0, n, [operand(c, ldc), operand(b, ldb)], values)) }
}

/// dC = A_ds B, dB = A_ds^T C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_sddmm_gradient(
    matrix: *const Matrix,
    n: usize,
    c: *const c_void,
    ldc: usize,
    b: *const c_void,
    ldb: usize,
    ds: *const c_void,
    dc: *mut c_void,
    lddc: usize,
    db: *mut c_void,
    lddb: usize,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe {
        with(matrix, |m| {
            m.sddmm_gradient(n, [operand(c, ldc), operand(b, ldb)], ds, [Dense(dc, lddc), Dense(db, lddb)])
        })
    }
}

/// E_i = sum of f(C_i . B_j, a_ij) D_j.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_fusedmm(
    matrix: *const Matrix,
    edge: c_int,
    scale: f64,
    n: usize,
    c: *const c_void,
    ldc: usize,
    b: *const c_void,
    ldb: usize,
    width: usize,
    d: *const c_void,
    ldd: usize,
    e: *mut c_void,
    lde: usize,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe {
        with(matrix, |m| {
            m.fusedmm(Edge(edge, scale), [n, width], [operand(c, ldc), operand(b, ldb), operand(d, ldd)], Dense(e, lde))
        })
    }
}

/// The gradients of the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_fusedmm_gradient(
    matrix: *const Matrix,
    edge: c_int,
    scale: f64,
    n: usize,
    c: *const c_void,
    ldc: usize,
    b: *const c_void,
    ldb: usize,
    width: usize,
    d: *const c_void,
    ldd: usize,
    de: *const c_void,
    ldde: usize,
    dc: *mut c_void,
    lddc: usize,
    db: *mut c_void,
    lddb: usize,
    dd: *mut c_void,
    lddd: usize,
    dvalues: *mut c_void,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe {
        with(matrix, |m| {
            let operands = [operand(c, ldc), operand(b, ldb), operand(d, ldd), operand(de, ldde)];
            m.fusedmm_gradient(
                Edge(edge, scale),
                [n, width],
                operands,
                [Dense(dc, lddc), Dense(db, lddb), Dense(dd, lddd)],
                dvalues,
            )
        })
    }
}

/// Zeros for this rank's rows of B or D, in memory in common where that can be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_common_create(
    matrix: *const Matrix,
    n: usize,
    common: *mut *mut Common,
    data: *mut *mut c_void,
    ld: *mut usize,
    in_common: *mut c_int,
) -> c_int {
    // SAFETY: the rules of this module.
    unsafe {
        with(matrix, |m| {
            let room = m.room_in_common(n, not_null(common))?;
            put(common, Box::into_raw(Box::new(Common(room.owner))));
            put(data, room.data);
            put(ld, room.stride);
            put(in_common, c_int::from(room.in_common));
            Ok(())
        })
    }
}

/// Frees the memory, here; its matrix may have been destroyed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_common_destroy(common: *mut Common) {
    if !common.is_null() {
        // SAFETY: the rules of this module.
        drop(unsafe { Box::from_raw(common) });
    }
}

/// Writes `x` to `to`, unless that is null.
unsafe fn put<X>(to: *mut X, x: X) {
    // SAFETY: the rules of this module.
    if let Some(to) = unsafe { to.as_mut() } {
        *to = x;
    }
}

/// Frees the matrix and its copy of the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparsimd_mpi_destroy(matrix: *mut Matrix) {
    if !matrix.is_null() {
        // SAFETY: the rules of this module.
        drop(unsafe { Box::from_raw(matrix) });
    }
}
