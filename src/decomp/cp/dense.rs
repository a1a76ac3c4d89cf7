//! The dense half of an iteration: Gram matrices, their pseudo-inverse, products of factors with small matrices.

use nalgebra::DMatrix;
use sparsimd_kernels::{Scalar, add_gram, times_small};

use crate::cpu::Cpu;
use crate::decomp::linalg::{inverse, symmetric_eigen};
use crate::dense::{ALIGN, Mat};
use crate::error::Result;
use crate::parallel;

use super::Sum;

/// Rows of one partial sum. Fixed, so that sums do not depend on the threads; short, so that partial sums in single
/// precision lose little.
pub(super) const CHUNK: usize = 512;
/// Chunks whose partial sums are there at a time.
const BLOCK: usize = 64;

/// Eigenvalues below this part of the largest one count as 0.
const RANK_TOLERANCE: f64 = 1e-12;
/// Pivots above this part of the largest are those of a matrix far from [`RANK_TOLERANCE`], whose pseudo-inverse is its inverse:
/// R = 100 takes 0.3 ms, and 3 by eigenvalues.
const PIVOT_TOLERANCE: f64 = 1e-6;

/// A square symmetric matrix in double precision.
#[derive(Clone, Debug)]
pub(super) struct Small {
    n: usize,
    data: Vec<f64>,
}

impl Small {
    fn zeros(n: usize) -> Self {
        Self { n, data: vec![0.0; n * n] }
    }

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

    /// Its sum over all who have a part of it: one triangle says all.
    fn sum(&mut self, sum: &mut Sum<'_>) -> Result<()> {
        let n = self.n;
        let places = || (0..n).flat_map(move |i| (i..n).map(move |j| (i, j)));
        let mut triangle: Vec<f64> = places().map(|(i, j)| self.data[i * n + j]).collect();
        sum(&mut triangle)?;
        for ((i, j), x) in places().zip(triangle) {
            (self.data[i * n + j], self.data[j * n + i]) = (x, x);
        }
        Ok(())
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

/// The rows of a factor as the kernels take them.
#[derive(Clone, Copy)]
struct Layout {
    /// Columns.
    n: usize,
    /// Elements from row to row.
    stride: usize,
    /// Elements of a row of whole cache lines.
    width: usize,
}

impl Layout {
    fn of<T: Scalar>(a: &Mat<T>) -> Self {
        let n = a.cols();
        Self { n, stride: a.as_ref().stride(), width: n.next_multiple_of(ALIGN / size_of::<T>()) }
    }

    /// A^T A of some rows, `width` elements from row to row.
    fn gram<T: Scalar>(self, cpu: &Cpu, rows: &[T]) -> Vec<T> {
        let Self { n, stride, width } = self;
        let mut sum = vec![T::ZERO; width * width];
        if stride == width {
            add_gram(cpu.arch(), rows, width, &mut sum);
        } else {
            add_gram(cpu.arch(), &padded(rows, stride, n, width), width, &mut sum);
        }
        sum
    }

    /// `to += from`, which is such a sum.
    fn add<T: Scalar>(self, to: &mut Small, from: &[T]) {
        for (to, from) in to.data.chunks_mut(self.n).zip(from.chunks(self.width)) {
            for_columns(to, from, |to, from| *to += from.to_f64());
        }
    }
}

/// A^T A, summed by `sum` over all who have rows of A.
pub(super) fn gram<T: Scalar>(cpu: &Cpu, a: &Mat<T>, sum: &mut Sum<'_>) -> Result<Small> {
    let layout = Layout::of(a);
    let view = a.as_ref();
    let rows = &view.data()[..a.rows() * layout.stride];
    let mut gram = Small::zeros(layout.n);
    cpu.install(|| {
        for block in rows.chunks(BLOCK * CHUNK * layout.stride) {
            let chunks: Vec<&[T]> = block.chunks(CHUNK * layout.stride).collect();
            let parts = parallel::map_tasks(chunks.len(), |t| layout.gram(cpu, chunks[t]));
            parts.iter().for_each(|part| layout.add(&mut gram, part));
        }
    });
    gram.sum(sum)?;
    Ok(gram)
}

/// A small matrix as the factor of many rows.
pub(super) struct Weights<T> {
    layout: Layout,
    small: Vec<T>,
}

impl<T: Scalar> Weights<T> {
    /// `w`, for rows that lie as those of `a`.
    pub(super) fn new(w: &Small, a: &Mat<T>) -> Self {
        let layout = Layout::of(a);
        let mut small = vec![T::ZERO; layout.n * layout.width];
        for (to, from) in small.chunks_mut(layout.width).zip(w.data.chunks(layout.n)) {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f64(from));
        }
        Self { layout, small }
    }

    /// `out = rows w`.
    pub(super) fn times(&self, cpu: &Cpu, rows: &[T], out: &mut [T]) {
        let Layout { n, stride, width } = self.layout;
        if stride == width {
            times_small(cpu.arch(), rows, width, &self.small, n, out);
            return;
        }
        let mut result = vec![T::ZERO; rows.len() / stride * width];
        times_small(cpu.arch(), &padded(rows, stride, n, width), width, &self.small, n, &mut result);
        for (to, from) in out.chunks_mut(stride).zip(result.chunks(width)) {
            to[..n].copy_from_slice(&from[..n]);
        }
    }
}

/// `f(to_j, from_j)` for the columns of `to`, at most those of `from`. By index: with code generation in units that do not see each
/// other, as in this project's own builds, zipped slices take two calls for each row.
#[inline(always)]
fn for_columns<A, B: Copy>(to: &mut [A], from: &[B], f: impl Fn(&mut A, B)) {
    let cols = to.len().min(from.len());
    let (to, from) = (&mut to[..cols], &from[..cols]);
    for j in 0..cols {
        f(&mut to[j], from[j]);
    }
}

/// What a factor's new rows came to.
pub(super) struct Settled {
    /// Lengths of the columns, which have length 1 now; columns of zeros stay, with length 0.
    pub lengths: Vec<f64>,
    /// A^T A of the columns of length 1, to the bit what [`gram`] says of them: a resumed run begins there.
    pub gram: Small,
    /// What `fill` gave, added up.
    pub sum: f64,
}

/// Has `fill(first, rows)` make the rows from `first` on, chunk by chunk, and divides every column by its length.
///
/// The factor of a long mode is larger than the caches: whatever is asked of a chunk is asked while it is near, so that the
/// factor passes twice and not five times. `sum` makes the sums over rows those of all who have rows of the factor.
pub(super) fn settle<T: Scalar>(
    cpu: &Cpu,
    a: &mut Mat<T>,
    sum: &mut Sum<'_>,
    fill: impl Fn(usize, &mut [T]) -> f64 + Send + Sync,
) -> Result<Settled> {
    let layout = Layout::of(a);
    let Layout { n, stride, .. } = layout;
    let len = a.rows() * stride;
    let data = &mut a.as_mut().into_data()[..len];
    let filled = cpu.install(|| {
        parallel::map_chunks_mut(data, CHUNK * stride, |chunk, rows| {
            let term = fill(chunk * CHUNK, rows);
            // The squares of the columns, and the term after them.
            let mut sums = vec![0.0; n];
            for row in rows.chunks(stride) {
                for_columns(&mut sums, &row[..n], |sum, x| *sum += x.to_f64() * x.to_f64());
            }
            sums.push(term);
            sums
        })
    });
    let mut sums = vec![0.0f64; n + 1];
    for part in filled {
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    sum(&mut sums)?;
    let lengths: Vec<f64> = sums[..n].iter().map(|square| square.sqrt()).collect();
    let inverse: Vec<T> = lengths.iter().map(|&l| T::from_f64(if l > 0.0 { 1.0 / l } else { 0.0 })).collect();
    let mut gram = Small::zeros(n);
    cpu.install(|| {
        for block in data.chunks_mut(BLOCK * CHUNK * stride) {
            let parts = parallel::map_chunks_mut(block, CHUNK * stride, |_, rows| {
                for row in rows.chunks_mut(stride) {
                    for_columns(row, &inverse, |x, inverse| *x = *x * inverse);
                }
                layout.gram(cpu, rows)
            });
            parts.iter().for_each(|part| layout.add(&mut gram, part));
        }
    });
    gram.sum(sum)?;
    Ok(Settled { lengths, gram, sum: sums[n] })
}

/// `sum_ir m_ir a_ir` over some rows, `stride` elements apart and padded with zeros.
pub(super) fn inner_product<T: Scalar>(m: &[T], a: &[T], stride: usize) -> f64 {
    // A sum for each column: the additions of one do not wait for those of another.
    let mut sums = vec![0.0; stride];
    let mut products = vec![0.0; stride];
    for (m, a) in m.chunks_exact(stride).zip(a.chunks_exact(stride)) {
        for_columns(&mut products, m, |product, m| *product = m.to_f64());
        for_columns(&mut products, a, |product, a| *product *= a.to_f64());
        for_columns(&mut sums, &products, |sum, product| *sum += product);
    }
    sums.iter().sum()
}

/// The pseudo-inverse of a symmetric positive semi-definite matrix.
pub(super) fn pseudo_inverse(a: &Small) -> Result<Small> {
    let n = a.n;
    let matrix = DMatrix::from_fn(n, n, |i, j| a.data[i * n + j]);
    let product = match inverse(&matrix, PIVOT_TOLERANCE) {
        Some(inverse) => inverse,
        None => {
            let (values, vectors) = symmetric_eigen("cp_als", matrix)?;
            let largest = values.iter().copied().fold(0.0, f64::max);
            let inverse = |x: f64| if x > RANK_TOLERANCE * largest { 1.0 / x } else { 0.0 };
            let scaled = DMatrix::from_fn(n, n, |i, k| vectors[(i, k)] * inverse(values[k]));
            scaled * vectors.transpose()
        }
    };
    // Symmetric to the last bit.
    let data = (0..n * n).map(|p| 0.5 * (product[(p / n, p % n)] + product[(p % n, p / n)])).collect();
    Ok(Small { n, data })
}

/// One pass of hierarchical alternating least squares over some `rows`, `stride` elements apart, with their `products`: every column
/// in turn becomes `max(0, a_r + (m_r - A v_r) / v_rr)`, A being the factor times `lambda`. Rows are independent.
pub(super) fn hals<T: Scalar>(rows: &mut [T], stride: usize, lambda: &[f64], products: &[T], v: &Small) {
    let n = v.n;
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
}
