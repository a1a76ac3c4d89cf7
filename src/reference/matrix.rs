//! SpMM, SDDMM and FusedMM.

use sparsimd_kernels::{Number, Scalar, Stored};

use super::{Expected, Limits, finite, finite_rows};
use crate::dense::{MatRef, check_shape};
use crate::error::Result;
use crate::formats::Csr;
use crate::parallel;

/// Error of an edge function's own evaluation, in eps of its value: 2 for an exponential, 2 for what is around it.
const EDGE_ERROR: f64 = 4.0;

/// The edge function of [`fusedmm`].
#[derive(Clone, Copy)]
pub enum Edge<'a> {
    /// w = s.
    Identity,
    /// w = a s.
    Scale,
    /// w = 1 / (1 + e^-s).
    Sigmoid,
    /// w_ij = e^(c s_ij) / sum over the row of e^(c s_ij).
    Softmax {
        /// c.
        scale: f64,
    },
    /// w = s for s > 0, else c s.
    LeakyRelu {
        /// c, from 0 to 1.
        slope: f64,
    },
    /// w_ij = e^g(s_ij) / sum over the row of e^g(s_ij), g the leaky rectifier.
    SoftmaxLeakyRelu {
        /// The slope of g, from 0 to 1.
        slope: f64,
    },
    /// (w, |dw/ds|) from (s, a): the slope, or the largest one near s, carries the error of s on to w.
    Map(&'a (dyn Fn(f64, f64) -> (f64, f64) + Sync)),
}

/// C = alpha A B + beta C. As in BLAS, `c` is not read when `beta` is 0.
///
/// `a` is m x k, `b` k x n, `c` m x n.
///
/// # Errors
/// [`crate::Error::Shape`].
pub fn spmm<D: Stored>(
    alpha: D::Scalar,
    a: &Csr<D::Scalar>,
    b: MatRef<'_, D>,
    beta: D::Scalar,
    c: MatRef<'_, D>,
) -> Result<Expected> {
    product("reference::spmm", alpha, a, b, beta, c)
}

/// C = alpha A^T B + beta C. As in BLAS, `c` is not read when `beta` is 0.
///
/// `a` is k x m, `b` k x n, `c` m x n.
///
/// # Errors
/// [`crate::Error::Shape`].
pub fn spmm_t<D: Stored>(
    alpha: D::Scalar,
    a: &Csr<D::Scalar>,
    b: MatRef<'_, D>,
    beta: D::Scalar,
    c: MatRef<'_, D>,
) -> Result<Expected> {
    product("reference::spmm_t", alpha, &a.transpose(), b, beta, c)
}

#[inline(never)]
fn product<D: Stored>(
    op: &'static str,
    alpha: D::Scalar,
    a: &Csr<D::Scalar>,
    b: MatRef<'_, D>,
    beta: D::Scalar,
    c: MatRef<'_, D>,
) -> Result<Expected> {
    let n = b.cols();
    check_shape(op, "B", b.shape(), (a.cols(), n))?;
    check_shape(op, "C", c.shape(), (a.rows(), n))?;
    let (alpha, beta, limits) = (alpha.to_f64(), beta.to_f64(), Limits::of::<D::Scalar>());
    let expected = Expected::by_rows(a.rows(), n, |i, values, bounds| {
        let nonzeros = row(a, i);
        let count = nonzeros.len();
        for (j, x) in nonzeros {
            add_row(x, x.abs(), b.row(j), values, bounds);
        }
        for (k, (value, bound)) in values.iter_mut().zip(bounds).enumerate() {
            *value *= alpha;
            *bound *= alpha.abs();
            let old = if beta == 0.0 { 0.0 } else { beta * c.row(i)[k].widen().to_f64() };
            *value += old;
            *bound = limits.sum(count + usize::from(beta != 0.0), *bound + old.abs());
        }
    })?;
    let scalars = alpha.is_finite() && beta.is_finite();
    let finite = || scalars && finite(a.values()) && finite_rows(b) && (beta == 0.0 || finite_rows(c));
    Ok(expected.forgive_overflow(finite).stored_as::<D>())
}

/// Row `i` as columns and values.
fn row<T: Scalar>(a: &Csr<T>, i: usize) -> impl ExactSizeIterator<Item = (usize, f64)> {
    let range = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
    range.map(|p| (a.pattern().col_idx()[p] as usize, a.values()[p].to_f64()))
}

/// values += w b and magnitudes += v |b|.
fn add_row<D: Stored>(w: f64, v: f64, b: &[D], values: &mut [f64], magnitudes: &mut [f64]) {
    for ((value, magnitude), b) in values.iter_mut().zip(magnitudes).zip(b) {
        let b = b.widen().to_f64();
        *value += w * b;
        *magnitude += v * b.abs();
    }
}

/// (s, sum |c| |b|) for s = c . b.
pub(super) fn dot<D: Stored>(c: &[D], b: &[D]) -> (f64, f64) {
    c.iter().zip(b).fold((0.0, 0.0), |(s, magnitude), (c, b)| {
        let product = c.widen().to_f64() * b.widen().to_f64();
        (s + product, magnitude + product.abs())
    })
}

/// s_p = C_i . B_j for the nonzeros (i, j) of A in CSR order, times a_p when `scaled`.
///
/// `a` is m x k, `c` m x n, `b` k x n. The result is one row of nnz elements.
///
/// # Errors
/// [`crate::Error::Shape`].
#[inline(never)]
pub fn sddmm<D: Stored>(a: &Csr<D::Scalar>, scaled: bool, c: MatRef<'_, D>, b: MatRef<'_, D>) -> Result<Expected> {
    let n = c.cols();
    check_shape("reference::sddmm", "C", c.shape(), (a.rows(), n))?;
    check_shape("reference::sddmm", "B", b.shape(), (a.cols(), n))?;
    let limits = Limits::of::<D::Scalar>();
    let element = |i: usize, (j, x): (usize, f64)| {
        let (s, magnitude) = dot(c.row(i), b.row(j));
        let x = if scaled { x } else { 1.0 };
        (x * s, limits.sum(n, x.abs() * magnitude))
    };
    let of_row = |i: usize| row(a, i).map(|nonzero| element(i, nonzero)).collect::<Vec<_>>();
    let (values, bounds) = parallel::map_tasks(a.rows(), of_row).into_iter().flatten().unzip();
    let expected = Expected { rows: 1, cols: a.nnz(), values, bounds };
    Ok(expected.forgive_overflow(|| (!scaled || finite(a.values())) && finite_rows(c) && finite_rows(b)))
}

/// E_i = sum over j of w_ij D_j for the nonzeros (i, j) of A, w_ij the edge function of s_ij = C_i . B_j and a_ij.
///
/// `a` is m x k, `c` m x n, `b` k x n, `d` k x n', the result m x n'.
///
/// # The bound
///
/// s is off by at most delta = (n + 3) eps sum |c| |b| + n tiny. A differentiable edge function makes of it, and of its own
/// evaluation, an error of its value w of at most
/// ```text
/// Delta = max |dw/ds| delta + 4 eps |w|:      1 for the identity, |a| for the scaling,
///                                             min(1/4, sigmoid(s + delta)) for the sigmoid (its slope is w (1 - w))
///                                             1 for the leaky rectifier, which is continuous
/// ```
/// and the sum of r products w d of a row adds its rounding:
/// ```text
/// bound = sum |d| (Delta + (r + 3) eps (|w| + Delta)) + r tiny
/// ```
/// Softmax: x = c s is off by Dx = |c| delta + eps |x| (c = 1 for the leaky rectifier of s), so e^x by the factor 1 + eta with
/// ```text
/// eta = expm1(Dx + 2 eps (max x - min x) + (4 r + 4) eps)
/// ```
/// where the second term is the rounding of the exponents, x - max and the steps of the running maximum, which together
/// are no longer than that range, and the third the evaluation of at most r rescalings, two operations each besides
/// their exponential. The denominator is off by the factor 1 + zeta, zeta = sum w eta + r eps, and so
/// ```text
/// bound = sum w |d| (eta + zeta + (2 r + 8) eps) / (1 - zeta) + 4 (r + 1) tiny sum |d|
/// ```
/// the last term for weights too small to be normal numbers. Where zeta > 1/2 the weights are not determined at all, and the
/// bound is that of any average: 2 max |d|.
///
/// # Errors
/// [`crate::Error::Shape`].
#[inline(never)]
pub fn fusedmm<D: Stored>(
    a: &Csr<D::Scalar>,
    edge: Edge<'_>,
    c: MatRef<'_, D>,
    b: MatRef<'_, D>,
    d: MatRef<'_, D>,
) -> Result<Expected> {
    let op = "reference::fusedmm";
    let n = c.cols();
    check_shape(op, "C", c.shape(), (a.rows(), n))?;
    check_shape(op, "B", b.shape(), (a.cols(), n))?;
    check_shape(op, "D", d.shape(), (a.cols(), d.cols()))?;
    let limits = Limits::of::<D::Scalar>();
    let expected = Expected::by_rows(a.rows(), d.cols(), |i, values, bounds| {
        let edges: Vec<Dot> = row(a, i)
            .map(|(j, a)| {
                let (s, magnitude) = dot(c.row(i), b.row(j));
                Dot { j, a, s, delta: limits.sum(n, magnitude) }
            })
            .collect();
        match edge {
            Edge::Softmax { scale } => softmax_row(&edges, |s| scale * s, scale.abs(), d, limits, values, bounds),
            Edge::SoftmaxLeakyRelu { slope } => {
                softmax_row(&edges, |s| leaky(s, slope), 1.0, d, limits, values, bounds)
            }
            _ => pointwise_row(&edges, edge, d, limits, values, bounds),
        }
        // A bound that is no number belongs to values that are none.
        for bound in bounds.iter_mut().filter(|bound| bound.is_nan()) {
            *bound = 0.0;
        }
    })?;
    Ok(expected.stored_as::<D>())
}

/// A nonzero: its column, value, dot product and that one's error.
struct Dot {
    j: usize,
    a: f64,
    s: f64,
    delta: f64,
}

fn pointwise_row<D: Stored>(
    edges: &[Dot],
    edge: Edge<'_>,
    d: MatRef<'_, D>,
    limits: Limits,
    values: &mut [f64],
    bounds: &mut [f64],
) {
    let rounding = (edges.len() + 3) as f64 * limits.eps;
    for &Dot { j, a, s, delta } in edges {
        let (w, slope) = match edge {
            Edge::Scale => (a * s, a.abs()),
            Edge::Sigmoid => (sigmoid(s), sigmoid(s + delta).min(0.25)),
            Edge::Map(f) => f(s, a),
            Edge::LeakyRelu { slope } => (leaky(s, slope), 1.0),
            Edge::Identity | Edge::Softmax { .. } | Edge::SoftmaxLeakyRelu { .. } => (s, 1.0),
        };
        let own = if matches!(edge, Edge::Identity) { 0.0 } else { EDGE_ERROR * (limits.eps * w.abs() + limits.tiny) };
        let off = slope * delta + own;
        add_row(w, off + rounding * (w.abs() + off), d.row(j), values, bounds);
    }
    for bound in bounds {
        *bound = if *bound > limits.max { f64::INFINITY } else { *bound + edges.len() as f64 * limits.tiny };
    }
}

pub(super) fn sigmoid(s: f64) -> f64 {
    1.0 / (1.0 + (-s).exp())
}

pub(super) fn leaky(s: f64, slope: f64) -> f64 {
    if s > 0.0 { s } else { slope * s }
}

/// The softmax of `logit` of the scores, a function whose slope is at most `steepest`.
fn softmax_row<D: Stored>(
    edges: &[Dot],
    logit: impl Fn(f64) -> f64,
    steepest: f64,
    d: MatRef<'_, D>,
    limits: Limits,
    values: &mut [f64],
    bounds: &mut [f64],
) {
    let r = edges.len() as f64;
    let largest = edges.iter().map(|e| logit(e.s)).fold(f64::NEG_INFINITY, f64::max);
    let smallest = edges.iter().map(|e| logit(e.s)).fold(f64::INFINITY, f64::min);
    let sum: f64 = edges.iter().map(|e| (logit(e.s) - largest).exp()).sum();
    let common = limits.eps * (2.0 * (largest - smallest) + EDGE_ERROR * (r + 1.0));
    let terms: Vec<(f64, f64)> = edges
        .iter()
        .map(|e| {
            let x = logit(e.s);
            let off = steepest * e.delta + limits.eps * x.abs();
            ((x - largest).exp() / sum, (off + common).exp_m1())
        })
        .collect();
    let zeta = r * limits.eps + terms.iter().map(|(w, eta)| w * eta).sum::<f64>();
    if zeta > 0.5 {
        for (&Dot { j, .. }, &(w, _)) in edges.iter().zip(&terms) {
            for ((value, bound), d) in values.iter_mut().zip(&mut *bounds).zip(d.row(j)) {
                *value += w * d.widen().to_f64();
                *bound = bound.max(2.0 * d.widen().to_f64().abs());
            }
        }
        return;
    }
    for (&Dot { j, .. }, &(w, eta)) in edges.iter().zip(&terms) {
        let relative = (eta + zeta + (2.0 * r + 8.0) * limits.eps) / (1.0 - zeta);
        add_row(w, w * relative + EDGE_ERROR * (r + 1.0) * limits.tiny, d.row(j), values, bounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Pattern;

    fn small() -> Csr<f32> {
        // [ 2 . 3 ]
        // [ . . . ]
        Csr::new(Pattern::new(2, 3, vec![0, 2, 2], vec![2, 0]).unwrap(), vec![3.0, 2.0]).unwrap()
    }

    fn view(data: &[f32], rows: usize, cols: usize) -> MatRef<'_, f32> {
        MatRef::new(data, rows, cols, cols).unwrap()
    }

    #[test]
    fn values_by_hand() {
        let a = small();
        let (b, c) = ([1.0, 2.0, f32::NAN, 4.0, 5.0, 6.0], [1.0, 10.0, 100.0, 1000.0]);
        let product = spmm(2.0, &a, view(&b, 3, 2), 3.0, view(&c, 2, 2)).unwrap();
        assert_eq!(product.values(), [2.0 * 17.0 + 3.0, 2.0 * 22.0 + 30.0, 300.0, 3000.0]);
        let nan = [f32::NAN; 4];
        assert_eq!(spmm(1.0, &a, view(&b, 3, 2), 0.0, view(&nan, 2, 2)).unwrap().values(), [17.0, 22.0, 0.0, 0.0]);
        let t = spmm_t(1.0, &a, view(&c, 2, 2), 0.0, view(&b, 3, 2)).unwrap();
        assert_eq!(t.values(), [2.0, 20.0, 0.0, 0.0, 3.0, 30.0]);
        assert_eq!(sddmm(&a, false, view(&c, 2, 2), view(&b, 3, 2)).unwrap().values(), [65.0, 21.0]);
        assert_eq!(sddmm(&a, true, view(&c, 2, 2), view(&b, 3, 2)).unwrap().values(), [195.0, 42.0]);
        let fused = |edge| fusedmm(&a, edge, view(&c, 2, 2), view(&b, 3, 2), view(&b, 3, 2)).unwrap();
        assert_eq!(fused(Edge::Identity).values()[..2], [65.0 * 5.0 + 21.0, 65.0 * 6.0 + 42.0]);
        assert_eq!(fused(Edge::Scale).values()[..2], [195.0 * 5.0 + 42.0, 195.0 * 6.0 + 84.0]);
        approx::assert_relative_eq!(fused(Edge::Sigmoid).values()[0], 5.0 + sigmoid(21.0));
        let w = 1.0 / (1.0 + (-4.4f64).exp());
        approx::assert_relative_eq!(fused(Edge::Softmax { scale: 0.1 }).values()[0], 5.0 * w + (1.0 - w));
        assert_eq!(fused(Edge::Softmax { scale: 0.1 }).values()[2..], [0.0, 0.0]);
        assert_eq!(fused(Edge::Map(&|s, a| (s - a, 1.0))).values()[0], 62.0 * 5.0 + 19.0);
    }

    #[test]
    fn the_bound_separates_right_from_wrong() {
        let a = small();
        let b = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let expected = spmm(1.0, &a, view(&b, 3, 2), 0.0, view(&[0.0; 4], 2, 2)).unwrap();
        let error = |c: [f32; 4]| expected.deviation(view(&c, 2, 2)).unwrap();
        assert_eq!(error([17.0, 22.0, 0.0, 0.0]).error, 0.0);
        let off = error([17.0, 22.0 * (1.0 + 4.0 * f32::EPSILON), 0.0, 0.0]);
        assert!(off.error > 0.7 && off.error < 1.0 && (off.row, off.col) == (0, 1), "{off:?}");
        assert!(error([17.0, 22.001, 0.0, 0.0]).error > 1.0);
        assert_eq!(error([17.0, 22.0, 0.0, 1e-30]).error, f64::INFINITY);
        assert_eq!(error([17.0, f32::NAN, 0.0, 0.0]).error, f64::INFINITY);
        assert_eq!(error([f32::INFINITY, 22.0, 0.0, 0.0]).error, f64::INFINITY);
        assert!(expected.deviation(view(&[0.0; 2], 1, 2)).is_err());
        assert!(spmm(1.0, &a, view(&b, 2, 3), 0.0, view(&[0.0; 4], 2, 2)).is_err());
    }

    #[test]
    fn infinities_and_overflow() {
        let a = small();
        let b = [f32::INFINITY, f32::MAX, 0.0, 0.0, 1.0, f32::MAX];
        let expected = spmm(1.0, &a, view(&b, 3, 2), 0.0, view(&[0.0; 4], 2, 2)).unwrap();
        let error = |c: [f32; 4]| expected.deviation(view(&c, 2, 2)).unwrap().error;
        assert_eq!(error([f32::INFINITY, f32::INFINITY, 0.0, 0.0]), 0.0);
        assert_eq!(error([f32::MAX, f32::INFINITY, 0.0, 0.0]), f64::INFINITY);
    }
}
