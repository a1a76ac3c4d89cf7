//! FusedMM of heads and its gradients.
//!
//! # The bound
//!
//! Every intermediate number carries a bound of its error, which each operation adds to, to first order and the rounding of its result:
//! ```text
//! x y:          |x| Dy + |y| Dx + Dx Dy + eps |x y|            sum of n:  sum D + n eps sum (|x| + D)
//! e^x:          e^x (expm1(Dx) + 4 eps) + 4 tiny               f(s):      as in `fusedmm`
//! ```
//! The log-sum-exp of r logits z that are off by Dz at most is off by -ln(1 - zeta) + 4 eps (1 + |lse|), zeta the relative error of the
//! sum as in `fusedmm`. Where zeta > 1/2, anything is accepted.

use sparsimd_kernels::Scalar;

use super::matrix::{Edge, dot, leaky, sigmoid};
use super::{Expected, Limits};
use crate::dense::{MatRef, check_shape};
use crate::error::Result;
use crate::formats::{Csr, Pattern};
use crate::parallel;

/// Where the score of an edge (i, j) and head h comes from.
#[derive(Clone, Copy)]
pub enum Scores<'a, T> {
    /// C_ih . B_jh.
    Dots(MatRef<'a, T>, MatRef<'a, T>),
    /// a_ih + b_jh.
    Sums(MatRef<'a, T>, MatRef<'a, T>),
}

/// What weighs the edges of [`fusedmm_heads`].
#[derive(Clone, Copy)]
pub struct Weighting<'a, T> {
    /// The edge function, none of the caller's own.
    pub edge: Edge<'a>,
    /// The scores.
    pub scores: Scores<'a, T>,
    /// Number of heads.
    pub heads: usize,
    /// Added to the logits of a softmax, for each nonzero.
    pub bias: Option<&'a [T]>,
    /// Probability and seed.
    pub dropout: Option<(f64, u64)>,
}

/// The gradients of FusedMM.
pub struct FusedGradients {
    /// By the left operand of the scores.
    pub left: Expected,
    /// By the right operand of the scores.
    pub right: Expected,
    /// By D.
    pub d: Expected,
    /// By the values: one row.
    pub values: Expected,
    /// By the bias: one row.
    pub bias: Expected,
}

/// A number, and how far from it a computed one may be.
#[derive(Clone, Copy, Default)]
struct Near {
    x: f64,
    off: f64,
}

impl Near {
    fn times(self, y: Self, limits: Limits) -> Self {
        let x = self.x * y.x;
        let off = self.x.abs() * y.off + y.x.abs() * self.off + self.off * y.off;
        Self { x, off: off + limits.eps * x.abs() + limits.tiny }
    }

    fn minus(self, y: Self, limits: Limits) -> Self {
        Self { x: self.x - y.x, off: self.off + y.off + limits.eps * (self.x.abs() + y.x.abs()) }
    }

    fn scaled(self, factor: f64, limits: Limits) -> Self {
        self.times(Self { x: factor, off: 0.0 }, limits)
    }

    fn sum(terms: &[Self], limits: Limits) -> Self {
        let (x, off, magnitude) = terms.iter().fold((0.0, 0.0, 0.0), |(x, off, magnitude), term| {
            (x + term.x, off + term.off, magnitude + term.x.abs() + term.off)
        });
        let n = terms.len() as f64;
        Self { x, off: off + (n + 1.0) * limits.eps * magnitude + n * limits.tiny }
    }
}

/// What an edge and head come to.
#[derive(Clone, Copy, Default)]
struct Weighed {
    w: Near,
    ds: Near,
    dvalue: Near,
    dbias: Near,
    lse: Near,
}

/// E and lse of FusedMM with heads: E_ih = sum over j of k_ijh w_ijh D_jh.
///
/// # Errors
/// [`crate::Error::Shape`].
#[inline(never)]
pub fn fusedmm_heads<T: Scalar>(
    a: &Csr<T>,
    weighting: Weighting<'_, T>,
    d: MatRef<'_, T>,
) -> Result<(Expected, Expected)> {
    let heads = weighting.heads;
    let edges = weigh(a, weighting, d, None)?;
    let w: Vec<Near> = edges.iter().map(|edge| edge.w).collect();
    let e = weighted_rows(a.pattern(), |p| p, &w, heads, Some(d), d.cols())?;
    let lse = Expected::by_rows(a.rows(), heads, |i, values, bounds| {
        for h in 0..heads {
            let first = a.pattern().row_ptr()[i] * heads + h;
            let empty = a.pattern().row(i).is_empty();
            let softmax = matches!(weighting.edge, Edge::Softmax { .. } | Edge::SoftmaxLeakyRelu { .. });
            (values[h], bounds[h]) = match (softmax, empty) {
                (false, _) => (0.0, 0.0),
                (true, true) => (f64::NEG_INFINITY, 0.0),
                (true, false) => (edges[first].lse.x, edges[first].lse.off),
            };
        }
    })?;
    Ok((e, lse))
}

/// The gradients of the same, `de` that of E.
///
/// # Errors
/// [`crate::Error::Shape`].
#[inline(never)]
pub fn fusedmm_gradient<T: Scalar>(
    a: &Csr<T>,
    weighting: Weighting<'_, T>,
    d: MatRef<'_, T>,
    de: MatRef<'_, T>,
) -> Result<FusedGradients> {
    let (pattern, heads) = (a.pattern(), weighting.heads);
    check_shape("reference::fusedmm_gradient", "dE", de.shape(), (a.rows(), d.cols()))?;
    let edges = weigh(a, weighting, d, Some(de))?;
    let w: Vec<Near> = edges.iter().map(|edge| edge.w).collect();
    let ds: Vec<Near> = edges.iter().map(|edge| edge.ds).collect();
    let (transposed, order) = pattern.transpose();
    let back = |p: usize| order[p];
    let (left, right) = match weighting.scores {
        Scores::Dots(c, b) => (
            weighted_rows(pattern, |p| p, &ds, heads, Some(b), c.cols())?,
            weighted_rows(&transposed, back, &ds, heads, Some(c), c.cols())?,
        ),
        Scores::Sums(..) => (
            weighted_rows::<T>(pattern, |p| p, &ds, heads, None, heads)?,
            weighted_rows::<T>(&transposed, back, &ds, heads, None, heads)?,
        ),
    };
    let over_heads = |of: fn(&Weighed) -> Near| {
        let sums = edges
            .chunks(heads.max(1))
            .map(|edges| Near::sum(&edges.iter().map(of).collect::<Vec<_>>(), Limits::of::<T>()));
        let (values, bounds) = sums.map(|sum| (sum.x, sum.off)).unzip();
        Expected { rows: 1, cols: pattern.nnz(), values, bounds }
    };
    Ok(FusedGradients {
        left,
        right,
        d: weighted_rows(&transposed, back, &w, heads, Some(de), d.cols())?,
        values: over_heads(|edge| edge.dvalue),
        bias: over_heads(|edge| edge.dbias),
    })
}

/// out_ih = sum over the nonzeros q = (i, j) of `pattern` of x_jh times number h of nonzero `place(q)`; x is 1 where there is none.
fn weighted_rows<T: Scalar>(
    pattern: &Pattern,
    place: impl Fn(usize) -> usize + Sync,
    numbers: &[Near],
    heads: usize,
    x: Option<MatRef<'_, T>>,
    cols: usize,
) -> Result<Expected> {
    let (limits, width) = (Limits::of::<T>(), (cols / heads).max(1));
    Expected::by_rows(pattern.rows(), cols, |i, values, bounds| {
        let range = pattern.row_ptr()[i]..pattern.row_ptr()[i + 1];
        let count = range.len();
        for q in range {
            let p = place(q);
            for c in 0..cols {
                let Near { x: w, off } = numbers[p * heads + c / width];
                let x = x.map_or(1.0, |x| x.row(pattern.col_idx()[q] as usize)[c].to_f64());
                values[c] += w * x;
                bounds[c] += x.abs() * (off + (count + 3) as f64 * limits.eps * (w.abs() + off));
            }
        }
        for bound in bounds {
            *bound += count as f64 * limits.tiny;
        }
    })
}

/// All edges and heads, in CSR order; gradients only where there is `de`.
fn weigh<T: Scalar>(
    a: &Csr<T>,
    weighting: Weighting<'_, T>,
    d: MatRef<'_, T>,
    de: Option<MatRef<'_, T>>,
) -> Result<Vec<Weighed>> {
    let heads = weighting.heads;
    check_shape("reference::fusedmm_heads", "D", d.shape(), (a.cols(), d.cols()))?;
    let rows = parallel::map_tasks(a.rows(), |i| {
        let mut row = vec![Weighed::default(); a.pattern().row(i).len() * heads];
        for h in 0..heads {
            let of_head = weigh_row(a, weighting, i, h, d, de);
            of_head.into_iter().enumerate().for_each(|(t, edge)| row[t * heads + h] = edge);
        }
        row
    });
    Ok(rows.concat())
}

/// The part of a row that belongs to head `h` of `heads`.
fn part<T>(row: &[T], h: usize, heads: usize) -> &[T] {
    let width = row.len() / heads;
    &row[h * width..(h + 1) * width]
}

/// The factor of the edge and head number `index`: dropped, or 1 / (1 - rate).
fn kept(dropout: Option<(f64, u64)>, index: usize) -> f64 {
    let Some((rate, seed)) = dropout else { return 1.0 };
    let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    if ((z >> 32) as f64) < (rate * 4_294_967_296.0).floor() { 0.0 } else { 1.0 / (1.0 - rate) }
}

/// The edges of row `i` and head `h`.
fn weigh_row<T: Scalar>(
    a: &Csr<T>,
    Weighting { edge, scores, heads, bias, dropout }: Weighting<'_, T>,
    i: usize,
    h: usize,
    d: MatRef<'_, T>,
    de: Option<MatRef<'_, T>>,
) -> Vec<Weighed> {
    let limits = Limits::of::<T>();
    let range = a.pattern().row_ptr()[i]..a.pattern().row_ptr()[i + 1];
    let exact = |x: f64| Near { x, off: 0.0 };
    let near_dot = |x: &[T], y: &[T]| {
        let (s, magnitude) = dot(x, y);
        Near { x: s, off: limits.sum(x.len(), magnitude) }
    };
    let column = |p: usize| a.pattern().col_idx()[p] as usize;
    let score = |p: usize| match scores {
        Scores::Dots(c, b) => near_dot(part(c.row(i), h, heads), part(b.row(column(p)), h, heads)),
        Scores::Sums(left, right) => {
            let (x, y) = (left.row(i)[h].to_f64(), right.row(column(p))[h].to_f64());
            Near { x: x + y, off: limits.eps * (x + y).abs() }
        }
    };
    let value = |p: usize| exact(a.values()[p].to_f64());
    let s: Vec<Near> = range.clone().map(score).collect();
    let k: Vec<Near> = range
        .clone()
        .map(|p| {
            let x = kept(dropout, p * heads + h);
            Near { x, off: limits.eps * x }
        })
        .collect();
    // k g, where there is a gradient.
    let g: Vec<Near> = range
        .clone()
        .zip(&k)
        .map(|(p, &k)| {
            de.map_or(exact(0.0), |de| {
                near_dot(part(de.row(i), h, heads), part(d.row(column(p)), h, heads)).times(k, limits)
            })
        })
        .collect();
    let slope_of_leaky = |s: Near, slope: f64| Near {
        x: if s.x > 0.0 { 1.0 } else { slope },
        off: if s.x.abs() <= s.off { 1.0 - slope } else { 0.0 },
    };
    let own = |x: f64| 4.0 * (limits.eps * x.abs() + limits.tiny);
    let logits: Option<Vec<Near>> = match edge {
        Edge::Softmax { scale } => Some(s.iter().map(|s| s.scaled(scale, limits)).collect()),
        Edge::SoftmaxLeakyRelu { slope } => {
            Some(s.iter().map(|s| Near { x: leaky(s.x, slope), off: s.off + limits.eps * s.x.abs() }).collect())
        }
        _ => None,
    };
    let Some(mut z) = logits else {
        return range
            .zip(s.iter().zip(&k).zip(&g))
            .map(|(p, ((&s, &k), &g))| {
                let (w, slope, dvalue) = match edge {
                    Edge::Scale => (s.times(value(p), limits), value(p), s.times(g, limits)),
                    Edge::Sigmoid => {
                        let x = sigmoid(s.x);
                        let w = Near { x, off: sigmoid(s.x + s.off).min(0.25) * s.off + own(x) };
                        (w, w.times(exact(1.0).minus(w, limits), limits), exact(0.0))
                    }
                    Edge::LeakyRelu { slope } => {
                        let w = Near { x: leaky(s.x, slope), off: s.off + own(s.x) };
                        (w, slope_of_leaky(s, slope), exact(0.0))
                    }
                    _ => (s, exact(1.0), exact(0.0)),
                };
                Weighed { w: w.times(k, limits), ds: slope.times(g, limits), dvalue, ..Weighed::default() }
            })
            .collect();
    };
    if let Some(bias) = bias {
        for (z, p) in z.iter_mut().zip(range.clone()) {
            *z = z.minus(exact(-bias[p].to_f64()), limits);
        }
    }
    let r = z.len() as f64;
    let largest = z.iter().map(|z| z.x).fold(f64::NEG_INFINITY, f64::max);
    let smallest = z.iter().map(|z| z.x).fold(f64::INFINITY, f64::min);
    let sum: f64 = z.iter().map(|z| (z.x - largest).exp()).sum();
    let lse = largest + sum.ln();
    let common = limits.eps * (2.0 * (largest - smallest) + 4.0 * (r + 1.0));
    let zeta = r * limits.eps + z.iter().map(|z| (z.x - lse).exp() * (z.off + common).exp_m1()).sum::<f64>();
    let lse_off = if zeta > 0.5 { f64::INFINITY } else { -(-zeta).ln_1p() + 4.0 * limits.eps * (1.0 + lse.abs()) };
    let w: Vec<Near> = z
        .iter()
        .map(|z| {
            let x = (z.x - lse).exp();
            let off = z.off + lse_off + common + 2.0 * limits.eps * (z.x.abs() + lse.abs());
            Near { x, off: x * off.exp_m1() + own(x) }
        })
        .collect();
    let products: Vec<Near> = w.iter().zip(&g).map(|(w, &g)| w.times(g, limits)).collect();
    let delta = Near::sum(&products, limits);
    let edges = s.iter().zip(&w).zip(k.iter().zip(&g));
    edges
        .map(|((&s, &w), (&k, &g))| {
            let dz = w.times(g.minus(delta, limits), limits);
            let slope = match edge {
                Edge::SoftmaxLeakyRelu { slope } => slope_of_leaky(s, slope),
                Edge::Softmax { scale } => exact(scale),
                _ => exact(1.0),
            };
            Weighed {
                w: w.times(k, limits),
                ds: dz.times(slope, limits),
                dbias: dz,
                dvalue: exact(0.0),
                lse: Near { x: lse, off: lse_off },
            }
        })
        .collect()
}
