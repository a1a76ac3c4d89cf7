//! The dense half of an iteration: Gram matrices, their pseudo-inverse, products of factors with small matrices.

use faer::Side;
use rayon::prelude::*;
use sparsimd_kernels::{Scalar, add_gram, times_small};

use crate::cpu::Cpu;
use crate::dense::{ALIGN, Mat};
use crate::error::{Error, Result};

/// Rows of one partial sum. Fixed, so that sums do not depend on the threads; short, so that partial sums in single
/// precision lose little.
const CHUNK: usize = 512;

/// Eigenvalues below this part of the largest one count as 0.
const RANK_TOLERANCE: f64 = 1e-12;

/// A square symmetric matrix in double precision.
#[derive(Clone, Debug)]
pub(super) struct Small {
    n: usize,
    data: Vec<f64>,
}

impl Small {
    pub(super) fn ones(n: usize) -> Self {
        Self { n, data: vec![1.0; n * n] }
    }

    /// Element by element.
    pub(super) fn scale_by(&mut self, other: &Self) {
        self.data.iter_mut().zip(&other.data).for_each(|(a, &b)| *a *= b);
    }

    pub(super) fn add_diagonal(&mut self, x: f64) {
        (0..self.n).for_each(|i| self.data[i * self.n + i] += x);
    }

    /// `x^T A x`.
    pub(super) fn quadratic(&self, x: &[f64]) -> f64 {
        let row = |i: usize| (0..self.n).map(|j| self.data[i * self.n + j] * x[j]).sum::<f64>();
        (0..self.n).map(|i| x[i] * row(i)).sum()
    }
}

/// Rows of `cols` elements, `stride` apart, in a copy whose rows are whole cache lines, padded with zeros.
fn padded<T: Scalar>(rows: &[T], stride: usize, cols: usize, width: usize) -> Vec<T> {
    let mut copy = vec![T::ZERO; rows.len().div_ceil(stride) * width];
    for (to, from) in copy.chunks_mut(width).zip(rows.chunks(stride)) {
        to[..cols].copy_from_slice(&from[..cols]);
    }
    copy
}

/// Elements of a row of whole cache lines.
fn line_width<T>(cols: usize) -> usize {
    cols.next_multiple_of(ALIGN / size_of::<T>())
}

/// A^T A.
pub(super) fn gram<T: Scalar>(cpu: &Cpu, a: &Mat<T>) -> Small {
    let (n, stride) = (a.cols(), a.as_ref().stride());
    let width = line_width::<T>(n);
    let partial = |rows: &[T]| {
        let mut sum = vec![T::ZERO; width * width];
        if stride == width {
            add_gram(cpu.arch(), rows, width, &mut sum);
        } else {
            add_gram(cpu.arch(), &padded(rows, stride, n, width), width, &mut sum);
        }
        sum
    };
    let view = a.as_ref();
    let rows = &view.data()[..a.rows() * stride];
    // Chunks are added in order, a bounded number of them at a time.
    let mut data = vec![0.0; n * n];
    for block in rows.chunks(CHUNK * stride * 64) {
        for sum in block.par_chunks(CHUNK * stride).map(partial).collect::<Vec<_>>() {
            for (to, from) in data.chunks_mut(n).zip(sum.chunks(width)) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to += from.to_f64());
            }
        }
    }
    Small { n, data }
}

/// `out = a w`.
pub(super) fn times<T: Scalar>(cpu: &Cpu, a: &Mat<T>, w: &Small, out: &mut Mat<T>) {
    let (n, stride) = (a.cols(), a.as_ref().stride());
    let width = line_width::<T>(n);
    let mut small = vec![T::ZERO; n * width];
    for (to, from) in small.chunks_mut(width).zip(w.data.chunks(n)) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f64(from));
    }
    let view = a.as_ref();
    let rows = &view.data()[..a.rows() * stride];
    let out = &mut out.as_mut().into_data()[..rows.len()];
    out.par_chunks_mut(CHUNK * stride).zip(rows.par_chunks(CHUNK * stride)).for_each(|(out, rows)| {
        if stride == width {
            times_small(cpu.arch(), rows, width, &small, n, out);
            return;
        }
        let mut result = vec![T::ZERO; rows.len() / stride * width];
        times_small(cpu.arch(), &padded(rows, stride, n, width), width, &small, n, &mut result);
        for (to, from) in out.chunks_mut(stride).zip(result.chunks(width)) {
            to[..n].copy_from_slice(&from[..n]);
        }
    });
}

/// The pseudo-inverse of a symmetric positive semi-definite matrix.
pub(super) fn pseudo_inverse(a: &Small) -> Result<Small> {
    let n = a.n;
    let matrix = faer::Mat::from_fn(n, n, |i, j| a.data[i * n + j]);
    let eigen = matrix
        .self_adjoint_eigen(Side::Lower)
        .map_err(|e| Error::structure("cp_als", format!("the Gram matrix's eigenvalues did not converge: {e:?}")))?;
    let (values, vectors) = (eigen.S().column_vector(), eigen.U());
    let largest = (0..n).map(|i| values[i]).fold(0.0, f64::max);
    let inverse = |x: f64| if x > RANK_TOLERANCE * largest { 1.0 / x } else { 0.0 };
    let scaled = faer::Mat::from_fn(n, n, |i, k| vectors[(i, k)] * inverse(values[k]));
    let product = scaled * vectors.transpose();
    // Symmetric to the last bit.
    let data = (0..n * n).map(|p| 0.5 * (product[(p / n, p % n)] + product[(p % n, p / n)])).collect();
    Ok(Small { n, data })
}

/// One pass of hierarchical alternating least squares: every column in turn becomes
/// `max(0, a_r + (m_r - A v_r) / v_rr)`, A being the factor times `lambda`. Rows are independent.
pub(super) fn hals<T: Scalar>(factor: &mut Mat<T>, lambda: &[f64], m: &Mat<T>, v: &Small) {
    let (n, stride) = (m.cols(), m.as_ref().stride());
    let view = m.as_ref();
    let products = &view.data()[..m.rows() * stride];
    let rows = &mut factor.as_mut().into_data()[..products.len()];
    rows.par_chunks_mut(CHUNK * stride).zip(products.par_chunks(CHUNK * stride)).for_each(|(rows, products)| {
        let mut a = vec![0.0; n];
        for (row, m) in rows.chunks_mut(stride).zip(products.chunks(stride)) {
            for ((a, x), lambda) in a.iter_mut().zip(&*row).zip(lambda) {
                *a = x.to_f64() * lambda;
            }
            for r in 0..n {
                let v_r = &v.data[r * n..(r + 1) * n];
                // A component that the other modes have lost has no least squares solution: it stays as it is.
                if v_r[r] > 0.0 {
                    let model: f64 = a.iter().zip(v_r).map(|(a, v)| a * v).sum();
                    a[r] = (a[r] + (m[r].to_f64() - model) / v_r[r]).max(0.0);
                }
            }
            row.iter_mut().zip(&a).for_each(|(x, &a)| *x = T::from_f64(a));
        }
    });
}

/// Divides every column by its length, and returns the lengths. Columns of zeros stay, with length 0.
pub(super) fn normalise<T: Scalar>(a: &mut Mat<T>) -> Vec<f64> {
    let (n, stride) = (a.cols(), a.as_ref().stride());
    let len = a.rows() * stride;
    let data = &mut a.as_mut().into_data()[..len];
    let partial = |rows: &[T]| {
        let mut sums = vec![0.0; n];
        for row in rows.chunks(stride) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.to_f64() * x.to_f64());
        }
        sums
    };
    let mut lengths = vec![0.0f64; n];
    for sums in data.par_chunks(CHUNK * stride).map(partial).collect::<Vec<_>>() {
        lengths.iter_mut().zip(sums).for_each(|(length, sum)| *length += sum);
    }
    lengths.iter_mut().for_each(|length| *length = length.sqrt());
    let inverse: Vec<T> = lengths.iter().map(|&l| T::from_f64(if l > 0.0 { 1.0 / l } else { 0.0 })).collect();
    data.par_chunks_mut(CHUNK * stride).for_each(|rows| {
        for row in rows.chunks_mut(stride) {
            row.iter_mut().zip(&inverse).for_each(|(x, &inverse)| *x = *x * inverse);
        }
    });
    lengths
}

/// `sum_ir m_ir a_ir lambda_r`.
pub(super) fn inner_product<T: Scalar>(m: &Mat<T>, a: &Mat<T>, lambda: &[f64]) -> f64 {
    let partial = |chunk: usize| {
        let rows = chunk * CHUNK..m.rows().min((chunk + 1) * CHUNK);
        let row = |i: usize| {
            let terms = m.row(i).iter().zip(a.row(i)).zip(lambda);
            terms.map(|((m, a), lambda)| m.to_f64() * a.to_f64() * lambda).sum::<f64>()
        };
        rows.map(row).sum::<f64>()
    };
    let sums: Vec<f64> = (0..m.rows().div_ceil(CHUNK)).into_par_iter().map(partial).collect();
    sums.iter().sum()
}
