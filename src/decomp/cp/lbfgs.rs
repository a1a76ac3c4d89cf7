//! L-BFGS (Nocedal 1980; Nocedal and Wright 2006, algorithm 7.4) and the search for a step's length.
//!
//! Of the crates that have it, argmin's owns the loop (a state cannot be kept between two iterations to the bit), computes on
//! one thread and brings a dozen others; the rest search no steps. What is needed of it are these two functions.

use crate::error::Result;
use crate::parallel::{self, GRAIN};

/// Steps that are remembered: what Acar, Dunlavy and Kolda's toolbox takes, too.
pub(super) const PAIRS: usize = 5;

/// A step decreases the function by this part of what its slope promises (Nocedal and Wright 2006, section 3.1).
const SUFFICIENT: f64 = 1e-4;
/// The slope at its end is above this part of the slope at its start: so the curvature between them is positive.
const CURVATURE: f64 = 0.9;
/// Most evaluations of one search: bisection has then narrowed the step's length by 10^6.
const EVALUATIONS: usize = 20;

/// `a . b`, in parts that do not depend on the threads.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let part = |k: usize| {
        let range = k * GRAIN..a.len().min((k + 1) * GRAIN);
        // A sum for each lane: additions of one do not wait for those of another.
        let mut lanes = [0.0; 8];
        for (a, b) in a[range.clone()].chunks(8).zip(b[range].chunks(8)) {
            lanes.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
        }
        lanes.iter().sum::<f64>()
    };
    parallel::map_tasks(a.len().div_ceil(GRAIN), part).iter().sum()
}

/// `y = f(y, x)`, element by element.
pub(super) fn update(y: &mut [f64], x: &[f64], f: impl Fn(f64, f64) -> f64 + Sync) {
    parallel::chunks_mut(y, GRAIN, |k, y| {
        y.iter_mut().zip(&x[k * GRAIN..]).for_each(|(y, &x)| *y = f(*y, x));
    });
}

/// `direction = -H gradient`, H from `pairs`: s and y of every step, the oldest first.
pub(super) fn direction(pairs: &[Vec<f64>], gradient: &[f64], direction: &mut [f64]) {
    update(direction, gradient, |_, g| -g);
    let mut weights = Vec::with_capacity(pairs.len() / 2);
    for pair in pairs.chunks(2).rev() {
        let (s, y) = (&pair[0], &pair[1]);
        let curvature = dot(s, y);
        let weight = dot(s, direction) / curvature;
        update(direction, y, |d, y| d - weight * y);
        weights.push((weight, curvature));
    }
    if let [.., y] = pairs {
        let scale = weights[0].1 / dot(y, y);
        direction.iter_mut().for_each(|d| *d *= scale);
    }
    for (pair, (weight, curvature)) in pairs.chunks(2).zip(weights.into_iter().rev()) {
        let correction = weight - dot(&pair[1], direction) / curvature;
        update(direction, &pair[0], |d, s| d + correction * s);
    }
}

/// Searches t with `f(t) <= f(0) + SUFFICIENT t f'(0)` and `f'(t) >= CURVATURE f'(0)`, the weak Wolfe conditions, beginning with
/// `first`; `evaluate(t)` gives f and f', and was last called with the t that was found. Whether there is one that decreases f.
///
/// Bisection between a t that is too short and one that is too long (Lewis and Overton 2013, algorithm 4.6), after one that is too
/// long at the minimum of the parabola through what is known, if that is not near an end.
pub(super) fn search(
    at_start: (f64, f64),
    first: f64,
    mut evaluate: impl FnMut(f64) -> Result<(f64, f64)>,
) -> Result<bool> {
    let (start, slope_at_start) = at_start;
    // At a minimum nothing decreases.
    if slope_at_start.is_nan() || slope_at_start >= 0.0 {
        return Ok(false);
    }
    let (mut short, mut long) = (0.0, f64::INFINITY);
    let (mut f_short, mut slope_short) = at_start;
    let mut t = first;
    for _ in 0..EVALUATIONS {
        let (f, slope) = evaluate(t)?;
        if f.is_nan() || f > start + SUFFICIENT * t * slope_at_start {
            long = t;
            let width = long - short;
            let minimum = -0.5 * slope_short * width * width / (f - f_short - slope_short * width);
            let inside = if minimum.is_nan() { 0.5 * width } else { minimum.clamp(0.1 * width, 0.9 * width) };
            t = short + inside;
        } else if slope < CURVATURE * slope_at_start {
            (short, f_short, slope_short) = (t, f, slope);
            t = if long.is_finite() { 0.5 * (short + long) } else { 4.0 * t };
        } else {
            return Ok(true);
        }
    }
    // What decreases f is a step, if not one that tells much of the curvature.
    if short > 0.0 {
        evaluate(short)?;
    }
    Ok(short > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rosenbrock's function and its gradient.
    fn rosenbrock(x: &[f64]) -> (f64, Vec<f64>) {
        let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
        (a * a + 100.0 * b * b, vec![-2.0 * a - 400.0 * x[0] * b, 200.0 * b])
    }

    #[test]
    fn finds_the_minimum_of_rosenbrocks_function() {
        let (mut x, mut pairs) = (vec![-1.2, 1.0], Vec::<Vec<f64>>::new());
        let (mut f, mut g) = rosenbrock(&x);
        let mut d = vec![0.0; 2];
        for _ in 0..60 {
            direction(&pairs, &g, &mut d);
            let mut last = (x.clone(), f, g.clone());
            let found = search((f, dot(&d, &g)), 1.0, |t| {
                let at: Vec<f64> = x.iter().zip(&d).map(|(x, d)| x + t * d).collect();
                let (f, g) = rosenbrock(&at);
                let slope = dot(&d, &g);
                last = (at, f, g);
                Ok((f, slope))
            });
            if !found.unwrap() {
                break;
            }
            assert!(last.1 < f, "{} after {f}", last.1);
            let difference = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>();
            let (s, y) = (difference(&last.0, &x), difference(&last.2, &g));
            assert!(dot(&s, &y) > 0.0);
            pairs.extend([s, y]);
            pairs.drain(..pairs.len().saturating_sub(2 * PAIRS));
            (x, f, g) = last;
        }
        assert!((x[0] - 1.0).abs() < 1e-8 && (x[1] - 1.0).abs() < 1e-8, "{x:?}");
    }

    #[test]
    fn a_direction_solves_the_secant_equation() {
        let gradient: Vec<f64> = (0..40_000).map(|i| (i as f64).sin()).collect();
        let s: Vec<f64> = (0..40_000).map(|i| (i as f64 * 0.7).cos()).collect();
        let y: Vec<f64> = s.iter().enumerate().map(|(i, s)| s * (1.0 + (i % 5) as f64)).collect();
        // H y = s, whatever else is known of H.
        let mut d = vec![0.0; s.len()];
        direction(&[gradient.clone(), gradient.iter().map(|g| 2.0 * g).collect(), s.clone(), y.clone()], &y, &mut d);
        assert!(d.iter().zip(&s).all(|(d, s)| (d + s).abs() < 1e-9));
        // Without steps, down the gradient.
        direction(&[], &gradient, &mut d);
        assert!(d.iter().zip(&gradient).all(|(d, g)| *d == -g));
    }

    #[test]
    fn no_step_is_found_where_there_is_none() {
        assert!(!search((0.0, -1.0), 1.0, |t| Ok((t, 1.0))).unwrap());
        assert!(!search((0.0, -1.0), 1.0, |_| Ok((f64::NAN, f64::NAN))).unwrap());
        // A line that only falls: as far as was looked.
        assert!(search((0.0, -1.0), 1.0, |t| Ok((-t, -1.0))).unwrap());
    }
}
