//! Peers written in Rust. Those with threads use the rayon pool that they are called in.
//!
//! faer's product of a sparse matrix and a dense one is not among them: it is a loop over single columns, which passes
//! over A once for each of them.

use std::num::NonZero;

use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};
use sprs::CsMatViewI;

use crate::blas::Gemm;
use crate::error::{Error, Result};

/// C = A B or A B^T by the crate `gemm`, with `threads` threads.
///
/// # Errors
/// [`Error::Operands`] when a slice is too short for its shape.
pub fn gemm(threads: usize, shape: Gemm, a: &[f32], b: &[f32], c: &mut [f32]) -> Result<()> {
    let [m, n, k, lda, ldb, ldc] = shape.check::<isize, f32>(a, b, c)?;
    let (b_col, b_row) = if shape.b_transposed { (ldb, 1) } else { (1, ldb) };
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    let (m, n, k) = (m as usize, n as usize, k as usize);
    let (c, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    // SAFETY: the slices hold what the sizes say, checked above; C is exclusive and not read.
    unsafe {
        gemm::gemm(m, n, k, c, 1, ldc, false, a, 1, lda, b, b_col, b_row, 0.0, 1.0, false, false, false, parallelism);
    }
    Ok(())
}

/// C = A B or A B^T by faer, with `threads` threads.
///
/// # Errors
/// [`Error::Operands`] when a slice is too short for its shape.
pub fn faer(threads: usize, shape: Gemm, a: &[f32], b: &[f32], c: &mut [f32]) -> Result<()> {
    use faer::{Accum, MatMut, MatRef, Par};
    let [m, n, k, lda, ldb, ldc] = shape.check::<usize, f32>(a, b, c)?;
    let par = NonZero::new(threads).filter(|threads| threads.get() > 1).map_or(Par::Seq, Par::Rayon);
    let (b_rows, b_cols) = if shape.b_transposed { (n, k) } else { (k, n) };
    let rows = |data, rows, cols, stride| MatRef::from_row_major_slice_with_stride(data, rows, cols, stride);
    let b = rows(exact(b, b_rows, b_cols, ldb), b_rows, b_cols, ldb);
    let b = if shape.b_transposed { b.transpose() } else { b };
    let length = exact(c, m, n, ldc).len();
    // Not its row-major constructor, which takes the stride for that of columns (faer 0.24.4).
    let c = MatMut::from_column_major_slice_with_stride_mut(&mut c[..length], n, m, ldc).transpose_mut();
    faer::linalg::matmul::matmul(c, Accum::Replace, rows(exact(a, m, k, lda), m, k, lda), b, 1.0, par);
    Ok(())
}

/// From the first element to the last one of a matrix.
fn exact(data: &[f32], rows: usize, cols: usize, stride: usize) -> &[f32] {
    &data[..if rows == 0 { 0 } else { (rows - 1) * stride + cols }]
}

/// C = A B by sprs, in one thread (it has no other): A in CSR as `starts`, `columns` and `values`.
///
/// # Errors
/// [`Error::Operands`] when the arrays do not form a CSR matrix or a slice is too short.
pub fn sprs(a: &Sprs<'_>, n: usize, b: &[f32], ldb: usize, c: &mut [f32], ldc: usize) -> Result<()> {
    let (rows, cols) = (a.0.rows(), a.0.cols());
    let short = |what: &str| Error::Operands(format!("{what} is too short"));
    let b = ArrayView2::from_shape((cols, n).strides((ldb, 1)), b).map_err(|_| short("B"))?;
    let mut c = ArrayViewMut2::from_shape((rows, n).strides((ldc, 1)), c).map_err(|_| short("C"))?;
    // It adds to C.
    c.fill(0.0);
    sprs::prod::csr_mulacc_dense_rowmaj(a.0.view(), b, c);
    Ok(())
}

/// A CSR matrix as sprs has it: borrowed arrays, checked.
#[derive(Debug)]
pub struct Sprs<'a>(CsMatViewI<'a, f32, u32, usize>);

impl<'a> Sprs<'a> {
    /// Checks the arrays.
    ///
    /// # Errors
    /// [`Error::Operands`] when they do not form a CSR matrix with ascending columns.
    pub fn new(
        (rows, cols): (usize, usize),
        starts: &'a [usize],
        columns: &'a [u32],
        values: &'a [f32],
    ) -> Result<Self> {
        CsMatViewI::try_new((rows, cols), starts, columns, values)
            .map(Self)
            .map_err(|(.., e)| Error::Operands(e.to_string()))
    }
}
