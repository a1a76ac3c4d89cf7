//! What C programs call, for one of the element types, on the arrays that they give.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Weak};

use sparsimd::edge::{self, BuiltIn};
use sparsimd::{Cpu, MatMut, MatRef};

use crate::blocks::Blocks;
use crate::comm::Comm;
use crate::dense::{DistMat, Element, Rows, RowsMut};
use crate::error::{Error, Result};
use crate::gradient::GradientRows;
use crate::matrix::DistCsr;
use crate::mpi::MpiComm;

/// What C calls, whatever the element type. Lengths are those that the matrix and `n`, or `n` and `width`, the columns of D and E, say.
pub(super) trait Operations {
    /// C = A B, or B = A^T C.
    unsafe fn spmm(&self, transposed: bool, n: usize, from: Dense, to: Dense) -> Result<()>;
    /// C B^T at the nonzeros.
    unsafe fn sddmm(&self, scaled: bool, n: usize, operands: [Dense; 2], values: *mut c_void) -> Result<()>;
    /// dC and dB from ds.
    unsafe fn sddmm_gradient(&self, n: usize, operands: [Dense; 2], ds: *const c_void, out: [Dense; 2]) -> Result<()>;
    /// E from C, B and D.
    unsafe fn fusedmm(&self, edge: Edge, columns: [usize; 2], operands: [Dense; 3], e: Dense) -> Result<()>;
    /// dC, dB, dD and the values' from C, B, D and dE.
    unsafe fn fusedmm_gradient(
        &self,
        edge: Edge,
        columns: [usize; 2],
        operands: [Dense; 4],
        out: [Dense; 3],
        values: *mut c_void,
    ) -> Result<()>;
    /// Room for this rank's rows of a B or D of `n` columns, where all ranks read them if that can be; all are `ready` for it, or none gets any.
    fn room_in_common(&self, n: usize, ready: Result<()>) -> Result<Room>;
    /// Ends all ranks.
    fn abort(&self) -> !;
}

/// Zeros that the caller writes: who has them, where they begin, and elements from one row to the next.
pub(super) struct Room {
    pub owner: Arc<dyn Any>,
    pub data: *mut c_void,
    pub stride: usize,
    /// Whether all ranks read them there.
    pub in_common: bool,
}

/// Rows of a dense matrix, `1` elements apart.
#[derive(Clone, Copy)]
pub(super) struct Dense(pub *mut c_void, pub usize);

/// A sparsimd_mpi_edge, and its parameter.
#[derive(Clone, Copy)]
pub(super) struct Edge(pub c_int, pub f64);

impl Edge {
    fn of<T: Element>(self) -> Result<BuiltIn<T>> {
        let scale = T::from_f64(self.1);
        Ok(match self.0 {
            0 => edge::Identity.into(),
            1 => edge::Scale.into(),
            2 => edge::Sigmoid.into(),
            3 => edge::Softmax { scale }.into(),
            4 => edge::LeakyRelu { slope: scale }.into(),
            5 => edge::SoftmaxLeakyRelu { slope: scale }.into(),
            other => return Err(Error::argument("edge", format!("{other} is not a sparsimd_mpi_edge"))),
        })
    }
}

/// The arrays of one call, by their addresses: a result shares no memory with another array. Operands are taken first.
#[derive(Default)]
pub(super) struct Arrays(Vec<Range<usize>>);

impl Arrays {
    /// Whether `len` elements can be at `data`; none where there are none.
    fn take<T>(&mut self, name: &'static str, data: *const T, len: usize, written: bool) -> Result<bool> {
        if len == 0 {
            return Ok(false);
        }
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let end = bytes.and_then(|bytes| data.addr().checked_add(bytes));
        let Some(end) = end else {
            return Err(Error::argument(name, format!("{len} elements do not fit the address space")));
        };
        if data.is_null() {
            return Err(Error::argument(name, "is null"));
        }
        if !data.is_aligned() {
            return Err(Error::argument(name, "does not begin where an element can"));
        }
        let here = data.addr()..end;
        if written && self.0.iter().any(|other| other.start < here.end && here.start < other.end) {
            return Err(Error::argument(name, "shares memory with another array of the call"));
        }
        self.0.push(here);
        Ok(true)
    }

    /// The elements of an operand.
    pub unsafe fn operand<'a, T>(&mut self, name: &'static str, data: *const T, len: usize) -> Result<&'a [T]> {
        // SAFETY: the rules of this module; it is neither null nor too long.
        let some = |data| unsafe { std::slice::from_raw_parts(data, len) };
        Ok(if self.take(name, data, len, false)? { some(data) } else { &[] })
    }

    /// The elements of a result.
    pub unsafe fn result<'a, T>(&mut self, name: &'static str, data: *mut T, len: usize) -> Result<&'a mut [T]> {
        // SAFETY: likewise, and no other slice of the call has any of them.
        let some = |data| unsafe { std::slice::from_raw_parts_mut(data, len) };
        Ok(if self.take(name, data.cast_const(), len, true)? { some(data) } else { &mut [] })
    }
}

/// Elements of `rows` rows of `n`, `stride` apart.
pub(super) fn extent(name: &'static str, rows: usize, n: usize, stride: usize) -> Result<usize> {
    if stride < n {
        return Err(Error::argument(name, format!("rows {stride} elements apart are less than their {n} columns")));
    }
    let len = if rows == 0 { Some(0) } else { (rows - 1).checked_mul(stride).and_then(|len| len.checked_add(n)) };
    len.ok_or_else(|| Error::argument(name, "the rows do not fit the address space"))
}

/// A matrix on ranks, and what its operations need.
pub(super) struct Ranks<T> {
    pub a: DistCsr<T>,
    pub rows: Blocks,
    pub cols: Blocks,
    pub cpu: Cpu,
    pub comm: MpiComm,
    /// What callers have in memory in common, until they free it: a call of an operation knows it by its address.
    pub common: RefCell<Vec<Weak<DistMat<T>>>>,
}

impl<T: Element> Ranks<T> {
    /// This rank's rows of a dense matrix.
    unsafe fn given<'a>(
        &self,
        arrays: &mut Arrays,
        name: &'static str,
        blocks: &Blocks,
        Dense(data, stride): Dense,
        n: usize,
    ) -> Result<Rows<'a, T>> {
        let rows = blocks.range(self.comm.rank()).len();
        let len = extent(name, rows, n, stride)?;
        let start = data.cast_const().cast::<T>();
        // SAFETY: the rules of this module.
        let data = unsafe { arrays.operand(name, start, len) }?;
        let made = self.common.borrow();
        let mut all = made.iter().filter_map(Weak::upgrade);
        let of = all.find(|rows| rows.common().is_some_and(|common| common.is_at(start, n, stride)));
        // SAFETY: its rows are this call's operand, which the caller does not free meanwhile.
        let common = of.as_ref().and_then(|rows| rows.common()).map(|common| unsafe { &*std::ptr::from_ref(common) });
        Ok(Rows { all: blocks.len(), local: MatRef::new(data, rows, n, stride)?, common })
    }

    /// Room for them.
    unsafe fn room<'a>(
        &self,
        arrays: &mut Arrays,
        name: &'static str,
        blocks: &Blocks,
        Dense(data, stride): Dense,
        n: usize,
    ) -> Result<RowsMut<'a, T>> {
        let rows = blocks.range(self.comm.rank()).len();
        let len = extent(name, rows, n, stride)?;
        // SAFETY: the rules of this module.
        let data = unsafe { arrays.result(name, data.cast::<T>(), len) }?;
        Ok(RowsMut { all: blocks.len(), local: MatMut::new(data, rows, n, stride)? })
    }

    /// D, or none where all ranks' D is their B.
    fn other<'a>(&self, [b, d]: [Rows<'a, T>; 2]) -> Result<Option<Rows<'a, T>>> {
        let of = |rows: &Rows<'a, T>| (rows.local.data().as_ptr(), rows.cols(), rows.local.stride());
        // Rows that do not exist are anybody's.
        let same = b.local.rows() == 0 || of(&b) == of(&d);
        Ok((b.cols() != d.cols() || self.comm.least(u64::from(same))? == 0).then_some(d))
    }

    /// Whether the values' gradient is asked for: by all ranks that have nonzeros, or by none.
    fn asked(&self, values: *mut c_void) -> Result<bool> {
        let has = |null: bool| u64::from(self.a.nnz() == 0 || values.is_null() != null);
        let (no_null, no_array) = (self.comm.least(has(true))? == 1, self.comm.least(has(false))? == 1);
        match (no_null, no_array) {
            (false, false) => Err(Error::argument("dvalues", "is null on some ranks, and not on others")),
            _ => Ok(no_null && !no_array),
        }
    }
}

impl<T: Element> Operations for Ranks<T> {
    unsafe fn spmm(&self, transposed: bool, n: usize, from: Dense, to: Dense) -> Result<()> {
        let (comm, mut arrays): (&dyn Comm, _) = (&self.comm, Arrays::default());
        let (of, into) = if transposed { (&self.rows, &self.cols) } else { (&self.cols, &self.rows) };
        let names = if transposed { ["c", "b"] } else { ["b", "c"] };
        // SAFETY: the rules of this module.
        let mut ready = || unsafe {
            Ok((self.given(&mut arrays, names[0], of, from, n)?, self.room(&mut arrays, names[1], into, to, n)?))
        };
        let (from, to) = comm.agree(ready())?;
        match transposed {
            true => self.a.spmm_transposed_of(&self.cpu, comm, from, to),
            false => self.a.spmm_of(&self.cpu, comm, from, to),
        }
    }

    unsafe fn sddmm(&self, scaled: bool, n: usize, [c, b]: [Dense; 2], values: *mut c_void) -> Result<()> {
        let (comm, mut arrays): (&dyn Comm, _) = (&self.comm, Arrays::default());
        // SAFETY: the rules of this module.
        let mut ready = || unsafe {
            let c = self.given(&mut arrays, "c", &self.rows, c, n)?;
            let b = self.given(&mut arrays, "b", &self.cols, b, n)?;
            Ok((c, b, arrays.result("values", values.cast::<T>(), self.a.nnz())?))
        };
        let (c, b, values) = comm.agree(ready())?;
        self.a.sddmm_of(&self.cpu, comm, scaled, c, b, values)
    }

    unsafe fn sddmm_gradient(
        &self,
        n: usize,
        [c, b]: [Dense; 2],
        ds: *const c_void,
        [dc, db]: [Dense; 2],
    ) -> Result<()> {
        let (comm, mut arrays): (&dyn Comm, _) = (&self.comm, Arrays::default());
        // SAFETY: the rules of this module.
        let mut ready = || unsafe {
            let c = self.given(&mut arrays, "c", &self.rows, c, n)?;
            let b = self.given(&mut arrays, "b", &self.cols, b, n)?;
            let ds = arrays.operand("ds", ds.cast::<T>(), self.a.nnz())?;
            let dc = self.room(&mut arrays, "dc", &self.rows, dc, n)?;
            Ok(([c, b], ds, [dc, self.room(&mut arrays, "db", &self.cols, db, n)?]))
        };
        let (operands, ds, out) = comm.agree(ready())?;
        self.a.sddmm_gradient_of(&self.cpu, comm, operands, ds, out)
    }

    unsafe fn fusedmm(&self, edge: Edge, [n, width]: [usize; 2], [c, b, d]: [Dense; 3], e: Dense) -> Result<()> {
        let (comm, mut arrays): (&dyn Comm, _) = (&self.comm, Arrays::default());
        // SAFETY: the rules of this module.
        let mut ready = || unsafe {
            let c = self.given(&mut arrays, "c", &self.rows, c, n)?;
            let b = self.given(&mut arrays, "b", &self.cols, b, n)?;
            let d = self.given(&mut arrays, "d", &self.cols, d, width)?;
            Ok((edge.of::<T>()?, [c, b], d, self.room(&mut arrays, "e", &self.rows, e, width)?))
        };
        let (edge, operands, d, e) = comm.agree(ready())?;
        let (a, cpu, other) = (&self.a, &self.cpu, self.other([operands[1], d])?);
        a.fusedmm_of(cpu, comm, edge, operands, other, e)
    }

    unsafe fn fusedmm_gradient(
        &self,
        edge: Edge,
        [n, width]: [usize; 2],
        [c, b, d, de]: [Dense; 4],
        [dc, db, dd]: [Dense; 3],
        values: *mut c_void,
    ) -> Result<()> {
        let (comm, mut arrays): (&dyn Comm, _) = (&self.comm, Arrays::default());
        let asked = self.asked(values)?;
        // SAFETY: the rules of this module.
        let mut ready = || unsafe {
            let c = self.given(&mut arrays, "c", &self.rows, c, n)?;
            let b = self.given(&mut arrays, "b", &self.cols, b, n)?;
            let d = self.given(&mut arrays, "d", &self.cols, d, width)?;
            let de = self.given(&mut arrays, "de", &self.rows, de, width)?;
            let out = GradientRows {
                c: self.room(&mut arrays, "dc", &self.rows, dc, n)?,
                b: self.room(&mut arrays, "db", &self.cols, db, n)?,
                d: self.room(&mut arrays, "dd", &self.cols, dd, width)?,
                values: match asked {
                    true => Some(arrays.result("dvalues", values.cast::<T>(), self.a.nnz())?),
                    false => None,
                },
            };
            Ok((edge.of::<T>()?, [c, b, de], d, out))
        };
        let (edge, operands, d, out) = comm.agree(ready())?;
        let other = self.other([operands[1], d])?;
        self.a.fusedmm_gradient_of(&self.cpu, comm, edge, operands, other, out)
    }

    fn room_in_common(&self, n: usize, ready: Result<()>) -> Result<Room> {
        let comm: &dyn Comm = &self.comm;
        let zeros = match n {
            0 => Err(Error::argument("n", "0 columns; at least 1")),
            _ => DistMat::<T>::zeros(&self.cols, comm.rank(), n),
        };
        let mut rows = comm.agree(ready.and(zeros))?.into_common(comm)?;
        let (data, stride) = rows.start();
        let (in_common, rows) = (rows.common().is_some(), Arc::new(rows));
        let mut made = self.common.borrow_mut();
        made.retain(|rows| rows.strong_count() > 0);
        made.push(Arc::downgrade(&rows));
        Ok(Room { owner: rows, data: data.cast(), stride, in_common })
    }

    fn abort(&self) -> ! {
        self.comm.abort(2)
    }
}
